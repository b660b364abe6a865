//! Effects of instructions on registers and flags.

use super::super::layout::Layout;
use super::super::{ALWAYS, BREAK, CARRY, DECIMAL, INTERRUPT, OVERFLOW, ZERO};
use super::Fast;

impl<'a, L: Layout<'a>> Fast<'_, L> {
    #[inline(always)]
    pub(super) fn decimal(&self) -> bool {
        self.di & DECIMAL != 0
    }

    #[inline(always)]
    pub(super) fn negative(&self) -> bool {
        self.nz & 0x8080 != 0
    }

    #[inline(always)]
    pub(super) fn zero(&self) -> bool {
        self.nz & 0xFF == 0
    }

    #[inline(always)]
    pub(super) fn carry(&self) -> bool {
        self.c != 0
    }

    #[inline(always)]
    pub(super) fn overflow(&self) -> bool {
        self.v & 0x80 != 0
    }

    #[inline(always)]
    pub(super) fn load_a(&mut self, value: u8) {
        self.a = value;
        self.nz = u16::from(value);
    }

    #[inline(always)]
    pub(super) fn load_x(&mut self, value: u8) {
        self.x = value;
        self.nz = u16::from(value);
    }

    #[inline(always)]
    pub(super) fn load_y(&mut self, value: u8) {
        self.y = value;
        self.nz = u16::from(value);
    }

    /// Adds in binary; subtracting is adding the complement.
    #[inline(always)]
    pub(super) fn add(&mut self, value: u8) {
        let sum = u16::from(self.a) + u16::from(value) + u16::from(self.c);
        let result = sum as u8;
        self.v = !(self.a ^ value) & (self.a ^ result);
        self.c = (sum >> 8) as u8;
        self.load_a(result);
    }

    #[inline(always)]
    pub(super) fn compare(&mut self, register: u8, value: u8) {
        self.c = u8::from(register >= value);
        self.nz = u16::from(register.wrapping_sub(value));
    }

    #[inline(always)]
    pub(super) fn bit(&mut self, value: u8) {
        self.nz = u16::from(self.a & value) | u16::from(value & 0x80) << 8;
        self.v = value << 1;
    }

    #[inline(always)]
    pub(super) fn increment(&mut self, value: u8) -> u8 {
        let result = value.wrapping_add(1);
        self.nz = u16::from(result);
        result
    }

    #[inline(always)]
    pub(super) fn decrement(&mut self, value: u8) -> u8 {
        let result = value.wrapping_sub(1);
        self.nz = u16::from(result);
        result
    }

    #[inline(always)]
    pub(super) fn shift_left(&mut self, value: u8) -> u8 {
        self.c = value >> 7;
        let result = value << 1;
        self.nz = u16::from(result);
        result
    }

    #[inline(always)]
    pub(super) fn shift_right(&mut self, value: u8) -> u8 {
        self.c = value & 1;
        let result = value >> 1;
        self.nz = u16::from(result);
        result
    }

    #[inline(always)]
    pub(super) fn rotate_left(&mut self, value: u8) -> u8 {
        let result = value << 1 | self.c;
        self.c = value >> 7;
        self.nz = u16::from(result);
        result
    }

    #[inline(always)]
    pub(super) fn rotate_right(&mut self, value: u8) -> u8 {
        let result = value >> 1 | self.c << 7;
        self.c = value & 1;
        self.nz = u16::from(result);
        result
    }

    /// The flags as `PHP` pushes them.
    #[inline(always)]
    pub(super) fn status(&self) -> u8 {
        ALWAYS
            | BREAK
            | self.di
            | u8::from(self.negative()) << 7
            | (self.v & 0x80) >> 1
            | u8::from(self.zero()) << 1
            | self.c
    }

    #[inline(always)]
    pub(super) fn set_status(&mut self, p: u8) {
        self.nz = u16::from(p & 0x80) << 8 | u16::from(!p & ZERO);
        self.c = p & CARRY;
        self.v = (p & OVERFLOW) << 1;
        self.di = p & (DECIMAL | INTERRUPT);
    }
}
