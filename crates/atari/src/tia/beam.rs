//! The beam: the TIA's picture registers, its five movable objects, and the pixels they make.
//!
//! [`Beam::write`] replays one register write: it first lets the beam run, with the old registers,
//! up to the clock at which the write shows, then changes them. A line is six sets of pixels
//! ([`Line`]), one per object; overlaps of sets are collisions, and their order of priority gives
//! colours.

use serde::{Deserialize, Serialize};

use super::lines::{self, EMPTY, Line, WIDTH};
use super::motion;
use super::{LINE_CLOCKS, Write};

/// Clocks of a line before its first pixel.
const BLANK: u32 = 68;

/// Where the beam's pixels go.
pub(crate) trait Screen {
    /// Whether pixels are wanted; a beam that draws looks for no collisions, for another one does.
    const DRAWS: bool;
    /// The pixels of a row, counted from the top of the picture.
    fn row(&mut self, row: u32) -> Option<&mut [u8]>;
    /// What a pixel of a palette index is drawn as.
    fn shade(&self, index: u8) -> u8;
}

/// Nobody looks.
pub(crate) struct NoScreen;

impl Screen for NoScreen {
    const DRAWS: bool = false;
    fn row(&mut self, _row: u32) -> Option<&mut [u8]> {
        None
    }
    fn shade(&self, index: u8) -> u8 {
        index
    }
}

/// A clock before all frames.
const LONG_AGO: i32 = i32::MIN / 2;

const P0: usize = 0;
const P1: usize = 1;
const M0: usize = 2;
const M1: usize = 3;
const BL: usize = 4;
const PF: usize = 5;

/// The picture registers, the objects' places, and how far the frame is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Beam {
    /// The clock, from the frame's first line on, up to which the picture is done.
    clock: u32,
    /// The clock at which the current line began, and its row in the picture.
    line_start: u32,
    row: u32,
    /// The clocks between which there is a picture at all.
    window: (u32, u32),
    /// Whether HMOVE blanks pixels at all: for some cartridges the reference leaves them.
    combs: bool,

    vblank: bool,
    sizes: [u8; 2],
    /// The colours of player 0, player 1, playfield and background.
    colours: [u8; 4],
    /// Whether colours are lost in this frame: palette indices are odd then.
    faded: bool,
    control: u8,
    /// The playfield's 20 bits, leftmost in bit 0.
    playfield: u32,
    /// Whether the right half of the current line shows the playfield mirrored.
    reflect: bool,
    mirrored: [bool; 2],
    graphics: [u8; 2],
    old_graphics: [u8; 2],
    delayed: [bool; 2],
    missiles_on: [bool; 2],
    ball_on: bool,
    old_ball_on: bool,
    ball_delayed: bool,
    /// Missiles held, invisible, at the middle of their player.
    locked: [bool; 2],
    motions: [u8; 5],
    positions: [u8; 5],
    /// Players whose first copy is missing until the line ends, for they were placed anew.
    skip_first: [bool; 2],
    /// Whether the line's first eight pixels are blanked by HMOVE.
    comb: bool,
    hmove_clock: i32,
    /// The starfield of Cosmic Ark: a motion that HMOVE left running.
    stars: bool,
    star_phase: u8,
    star_shape: StarShape,

    /// Two bits per collision register, D7 above D6.
    collided: u16,
    /// The pixels of the six objects, where `stale` does not name them.
    objects: [Line; 6],
    stale: u8,
    /// Which objects have any pixels at all.
    live: u8,
    /// Whether the objects as they are have been looked at for collisions over a whole line.
    line_known: bool,
}

impl Beam {
    pub(crate) fn new(window: (u32, u32), combs: bool) -> Self {
        Self {
            clock: window.0,
            line_start: window.0,
            row: 0,
            window,
            combs,
            vblank: false,
            sizes: [0; 2],
            colours: [0; 4],
            faded: false,
            control: 0,
            playfield: 0,
            reflect: false,
            mirrored: [false; 2],
            graphics: [0; 2],
            old_graphics: [0; 2],
            delayed: [false; 2],
            missiles_on: [false; 2],
            ball_on: false,
            old_ball_on: false,
            ball_delayed: false,
            locked: [false; 2],
            motions: [0; 5],
            positions: [0; 5],
            skip_first: [false; 2],
            comb: false,
            hmove_clock: LONG_AGO,
            stars: false,
            star_phase: 0,
            star_shape: StarShape::Plain,
            collided: 0,
            objects: [EMPTY; 6],
            stale: 0,
            live: 0,
            line_known: false,
        }
    }

    /// Goes back to the top of the next frame.
    ///
    /// A PAL television loses the colours of a frame that follows one with an odd number of lines.
    pub(crate) fn start_frame(&mut self, faded: bool) {
        self.clock = self.window.0;
        self.line_start = self.window.0;
        self.row = 0;
        self.faded = faded;
        self.hmove_clock = LONG_AGO;
    }

    pub(crate) fn combs(&self) -> bool {
        self.combs
    }

    /// The clocks between which there is a picture.
    pub(crate) fn window(&self) -> (u32, u32) {
        self.window
    }

    /// The clock up to which the picture is done.
    pub(crate) fn clock(&self) -> u32 {
        self.clock
    }

    /// The two bits of a collision register, at the top of a byte.
    pub(crate) fn collisions(&self, register: usize) -> u8 {
        ((self.collided >> (2 * register)) as u8) << 6
    }

    /// Replays one write.
    #[inline]
    pub(crate) fn write<S: Screen>(&mut self, write: Write, screen: &mut S) {
        let clock = u32::from(write.cycle) * 3;
        if self.shows::<S>(write) {
            self.advance(clock + delay(write), screen);
        }
        self.apply(write, clock, screen);
    }

    /// Whether a write changes pixels or collisions from its moment on: for all others the beam
    /// need not stop.
    #[inline(always)]
    fn shows<S: Screen>(&self, write: Write) -> bool {
        let Write {
            register, value, ..
        } = write;
        match register {
            0x01 => self.vblank != (value & 2 != 0),
            0x04 | 0x05 => {
                let player = usize::from(register - 0x04);
                self.sizes[player] != value
                    || self.skip_first[player]
                    || self.star_shape != StarShape::Plain
            }
            0x06..=0x09 => S::DRAWS && self.colours[usize::from(register - 0x06)] != value & 0xFE,
            0x0A => self.control != value || self.reflect != (value & 1 != 0),
            0x0B | 0x0C => self.mirrored[usize::from(register - 0x0B)] != (value & 8 != 0),
            0x0D..=0x0F => {
                let (mask, bits) = playfield_part(register, value);
                self.playfield & mask != bits
            }
            0x1B | 0x1C => {
                let player = usize::from(register - 0x1B);
                let other = 1 - player;
                (!self.delayed[player] && self.graphics[player] != value)
                    || (self.delayed[other] && self.old_graphics[other] != self.graphics[other])
                    || (player == 1 && self.ball_delayed && self.old_ball_on != self.ball_on)
            }
            0x1D | 0x1E => self.missiles_on[usize::from(register - 0x1D)] != (value & 2 != 0),
            0x1F => !self.ball_delayed && self.ball_on != (value & 2 != 0),
            0x20..=0x24 | 0x2B => false,
            0x25 | 0x26 => self.delayed[usize::from(register - 0x25)] != (value & 1 != 0),
            0x27 => self.ball_delayed != (value & 1 != 0),
            0x28 | 0x29 => self.locked[usize::from(register - 0x28)] != (value & 2 != 0),
            _ => true,
        }
    }

    /// Lets the beam run up to `clock`.
    #[inline]
    pub(crate) fn advance<S: Screen>(&mut self, clock: u32, screen: &mut S) {
        let to = clock.min(self.window.1);
        while self.clock < to {
            if self.clock == self.line_start + LINE_CLOCKS {
                self.line_start = self.clock;
                self.row += 1;
                self.end_line();
            }
            let from = (self.clock - self.line_start).max(BLANK);
            let end = (to - self.line_start).min(LINE_CLOCKS);
            if end > from {
                self.draw(from - BLANK, end - BLANK, screen);
            }
            self.clock = self.line_start + end;
        }
    }

    /// What happens when the beam turns, noticed when it starts to draw the next line.
    fn end_line(&mut self) {
        for player in 0..2 {
            if self.skip_first[player] {
                self.skip_first[player] = false;
                self.touch(player);
            }
        }
        let reflect = self.control & 1 != 0;
        if reflect != self.reflect {
            self.reflect = reflect;
            self.touch(PF);
        }
        if self.stars {
            self.star_phase = (self.star_phase + 1) & 3;
            let (step, shape) = match self.star_phase {
                0 => (18, StarShape::Plain),
                1 => (33, StarShape::Wide),
                2 => (0, StarShape::Hidden),
                _ => (17, StarShape::Plain),
            };
            self.star_shape = shape;
            self.positions[M0] = moved(self.positions[M0], -step);
            self.touch(M0);
        }
    }

    fn touch(&mut self, object: usize) {
        self.stale |= 1 << object;
    }

    /// Changes a register.
    fn apply<S: Screen>(&mut self, write: Write, clock: u32, screen: &mut S) {
        let Write {
            cycle,
            register,
            value,
        } = write;
        let place = clock % LINE_CLOCKS;
        match register {
            0x01 => self.vblank = value & 2 != 0,
            0x04 | 0x05 => {
                let player = usize::from(register - 0x04);
                self.sizes[player] = value;
                self.plain_star(player);
                self.skip_first[player] = false;
                self.touch(player);
                self.touch(M0 + player);
            }
            0x06..=0x09 => self.colours[usize::from(register - 0x06)] = value & 0xFE,
            0x0A => {
                self.control = value;
                // The right half keeps its kind once the beam is there.
                if place < BLANK + 79 {
                    self.reflect = value & 1 != 0;
                }
                self.touch(BL);
                self.touch(PF);
            }
            0x0B | 0x0C => {
                let player = usize::from(register - 0x0B);
                self.mirrored[player] = value & 8 != 0;
                self.touch(player);
            }
            0x0D..=0x0F => {
                let (mask, bits) = playfield_part(register, value);
                if self.playfield & mask != bits {
                    self.playfield = (self.playfield & !mask) | bits;
                    self.touch(PF);
                }
            }
            0x10 | 0x11 => self.place_player(usize::from(register - 0x10), clock, screen),
            0x12 | 0x13 => {
                let missile = M0 + usize::from(register - 0x12);
                self.plain_star(missile - M0);
                self.positions[missile] = self
                    .odd_place(missile, clock)
                    .unwrap_or_else(|| reset_position(place, 4, 2));
                self.touch(missile);
            }
            0x14 => {
                self.positions[BL] = self
                    .odd_place(BL, clock)
                    .unwrap_or_else(|| reset_position(place, 4, 2));
                self.touch(BL);
            }
            0x1B | 0x1C => {
                let player = usize::from(register - 0x1B);
                let other = 1 - player;
                if self.graphics[player] != value {
                    self.graphics[player] = value;
                    if !self.delayed[player] {
                        self.touch(player);
                    }
                }
                if self.old_graphics[other] != self.graphics[other] {
                    self.old_graphics[other] = self.graphics[other];
                    if self.delayed[other] {
                        self.touch(other);
                    }
                }
                if player == 1 && self.old_ball_on != self.ball_on {
                    self.old_ball_on = self.ball_on;
                    self.touch(BL);
                }
            }
            0x1D | 0x1E => {
                let player = usize::from(register - 0x1D);
                self.missiles_on[player] = value & 2 != 0;
                self.touch(M0 + player);
            }
            0x1F => {
                self.ball_on = value & 2 != 0;
                self.touch(BL);
            }
            0x22 => {
                // A motion changed from 7 to 6 just as its last clock is due never ends.
                let due = clock as i32 == self.hmove_clock + 63;
                if due && self.motions[M0] == 0x70 && value & 0xF0 == 0x60 {
                    self.stars = true;
                    self.star_phase = 0;
                }
                self.motions[M0] = value & 0xF0;
            }
            0x20..=0x24 => self.motions[usize::from(register - 0x20)] = value & 0xF0,
            0x25 | 0x26 => {
                let player = usize::from(register - 0x25);
                self.delayed[player] = value & 1 != 0;
                self.touch(player);
            }
            0x27 => {
                self.ball_delayed = value & 1 != 0;
                self.touch(BL);
            }
            0x28 | 0x29 => self.lock_missile(usize::from(register - 0x28), value & 2 != 0),
            0x2A => self.strobe_motion(i32::from(cycle % 76), clock),
            0x2B => self.motions = [0; 5],
            0x2C => {
                self.collided = 0;
                self.line_known = false;
            }
            _ => {}
        }
    }

    fn plain_star(&mut self, player: usize) {
        if player == 0 {
            self.star_shape = StarShape::Plain;
        }
    }

    /// RESP0 and RESP1.
    fn place_player<S: Screen>(&mut self, player: usize, clock: u32, screen: &mut S) {
        let new = reset_position(clock % LINE_CLOCKS, 5, 3);
        let old = self.positions[player];
        let moment = Moment::of(self.sizes[player], old, new);
        if moment == Moment::Drawing {
            self.advance(clock + 11, screen);
        }
        self.positions[player] = new;
        self.skip_first[player] = moment != Moment::Starting;
        self.touch(player);
    }

    /// Where a missile or the ball lands whose reset meets the clocks of an HMOVE that is still
    /// running: the seven cases that the reference knows.
    fn odd_place(&self, object: usize, clock: u32) -> Option<u8> {
        let cycle = clock as i32 % LINE_CLOCKS as i32 / 3;
        let strobed = cycle - (clock as i32 - self.hmove_clock) / 3;
        match (object, strobed, cycle) {
            (BL | M1, 3, 6) => Some(3),
            (BL, 3, 9) => Some(5),
            (BL, 3, 10) => Some(6),
            (BL, 2, 20) | (BL, 5, 23) => Some(10),
            (M0, 3, 23) => Some(8),
            _ => None,
        }
    }

    /// RESMP0 and RESMP1: a missile let go starts from its player's middle.
    fn lock_missile(&mut self, player: usize, lock: bool) {
        if self.locked[player] && !lock {
            let middle = match self.sizes[player] & 7 {
                5 => 8,
                7 => 16,
                _ => 4,
            };
            self.positions[M0 + player] = moved(self.positions[player], middle);
        }
        self.locked[player] = lock;
        self.touch(M0 + player);
    }

    /// HMOVE.
    fn strobe_motion(&mut self, cycle: i32, clock: u32) {
        if self.combs && motion::blanks(cycle) {
            self.comb = true;
        }
        self.skip_first = [false; 2];
        self.stars = false;
        self.plain_star(0);
        self.touch(P0);
        self.touch(P1);
        self.touch(M0);
        for object in P0..=BL {
            let pixels = motion::motion(cycle, self.motions[object]);
            if pixels != 0 {
                self.positions[object] = moved(self.positions[object], pixels);
                self.touch(object);
            }
        }
        self.hmove_clock = clock as i32;
    }

    /// Brings the pixels of changed objects up to date.
    fn refresh(&mut self) {
        let mut stale = std::mem::take(&mut self.stale);
        self.line_known = false;
        while stale != 0 {
            let object = stale.trailing_zeros() as usize;
            stale &= stale - 1;
            let line = match object {
                P0 | P1 => self.player_line(object),
                M0 | M1 => self.missile_line(object - M0),
                BL => self.ball_line(),
                _ => lines::playfield(self.playfield, self.reflect),
            };
            let bit = 1 << object;
            if line == EMPTY {
                self.live &= !bit;
            } else {
                self.live |= bit;
            }
            self.objects[object.min(PF)] = line;
        }
    }

    fn player_line(&self, player: usize) -> Line {
        let mut bits = if self.delayed[player] {
            self.old_graphics[player]
        } else {
            self.graphics[player]
        };
        let mut line = EMPTY;
        if bits == 0 {
            return line;
        }
        if !self.mirrored[player] {
            bits = bits.reverse_bits();
        }
        let size = usize::from(self.sizes[player] & 7);
        // Wide players start a pixel late.
        let (pattern, late) = match size {
            5 => (u64::from(DOUBLE[usize::from(bits)]), 1),
            7 => (quadruple(bits), 1),
            _ => (u64::from(bits), 0),
        };
        let copies = COPIES[size];
        let first = usize::from(self.skip_first[player]);
        for offset in copies.iter().skip(first) {
            lines::place(
                &mut line,
                pattern,
                u32::from(self.positions[player]) + offset + late,
            );
        }
        line
    }

    fn missile_line(&self, player: usize) -> Line {
        let mut line = EMPTY;
        if !self.missiles_on[player] || self.locked[player] {
            return line;
        }
        let mut size = self.sizes[player];
        if player == 0 {
            match self.star_shape {
                StarShape::Plain => {}
                StarShape::Wide => size |= 0x10,
                StarShape::Hidden => return line,
            }
        }
        let pattern = (1 << (1 << (size >> 4 & 3))) - 1;
        for offset in COPIES[usize::from(size & 7)] {
            lines::place(
                &mut line,
                pattern,
                u32::from(self.positions[M0 + player]) + offset,
            );
        }
        line
    }

    fn ball_line(&self) -> Line {
        let mut line = EMPTY;
        let on = if self.ball_delayed {
            self.old_ball_on
        } else {
            self.ball_on
        };
        if on {
            let pattern = (1 << (1 << (self.control >> 4 & 3))) - 1;
            lines::place(&mut line, pattern, u32::from(self.positions[BL]));
        }
        line
    }

    /// Makes the pixels `from..to` of the current row.
    #[inline]
    fn draw<S: Screen>(&mut self, from: u32, to: u32, screen: &mut S) {
        if self.vblank {
            if S::DRAWS {
                let black = screen.shade(0);
                if let Some(pixels) = screen.row(self.row) {
                    pixels[from as usize..to as usize].fill(black);
                }
            }
        } else {
            if self.stale != 0 {
                self.refresh();
            }
            // Collisions latch: a pair that has met once, or whose objects are as they were when
            // they last had a whole line to meet in, need not be looked at.
            let pairs = PAIRS_OF[usize::from(self.live & 63)] & !self.collided;
            if !S::DRAWS && pairs != 0 && !self.line_known {
                let whole = from == 0 && to == WIDTH;
                if whole {
                    self.collide(pairs, &[!0; 3]);
                    self.line_known = true;
                } else {
                    self.collide(pairs, &lines::span(from, to));
                }
            }
            if S::DRAWS {
                let black = screen.shade(0);
                let colours = self
                    .colours
                    .map(|colour| screen.shade(colour | u8::from(self.faded)));
                if let Some(pixels) = screen.row(self.row) {
                    self.paint(pixels, from, to, colours);
                    if self.comb && from < 8 {
                        pixels[from as usize..(to as usize).min(8)].fill(black);
                    }
                }
            }
        }
        if from < 8 && to >= 8 {
            self.comb = false;
        }
    }

    #[inline]
    fn collide(&mut self, mut pairs: u16, span: &Line) {
        while pairs != 0 {
            let bit = pairs.trailing_zeros() as usize;
            pairs &= pairs - 1;
            let (first, second) = PAIRS[bit & 15];
            let (first, second) = (&self.objects[first], &self.objects[second]);
            let both = (first[0] & second[0] & span[0])
                | (first[1] & second[1] & span[1])
                | (first[2] & second[2] & span[2]);
            if both != 0 {
                self.collided |= 1 << bit;
            }
        }
    }

    /// Paints a span: the background, then the objects from the hindmost to the foremost.
    fn paint(&self, pixels: &mut [u8], from: u32, to: u32, colours: [u8; 4]) {
        let [player0, player1, field, back] = colours;
        pixels[from as usize..to as usize].fill(back);
        if self.live == 0 {
            return;
        }
        let span = lines::span(from, to);
        let [p0, p1, m0, m1, ball, playfield] = &self.objects;
        let first = lines::both(p0, m0);
        let second = lines::both(p1, m1);
        if self.control & 4 != 0 {
            lines::paint(pixels, &second, &span, player1);
            lines::paint(pixels, &first, &span, player0);
            lines::paint(pixels, &lines::both(playfield, ball), &span, field);
        } else if self.control & 2 != 0 {
            // The two halves of the playfield belong to the players, in colour and in priority.
            let left = lines::common(playfield, &LEFT_HALF);
            let right = lines::common(playfield, &RIGHT_HALF);
            lines::paint(pixels, ball, &span, field);
            lines::paint(pixels, &lines::both(&second, &right), &span, player1);
            lines::paint(pixels, &lines::both(&first, &left), &span, player0);
        } else {
            lines::paint(pixels, &lines::both(playfield, ball), &span, field);
            lines::paint(pixels, &second, &span, player1);
            lines::paint(pixels, &first, &span, player0);
        }
    }
}

const LEFT_HALF: Line = [!0, 0xFFFF, 0];
const RIGHT_HALF: Line = [0, !0xFFFF, !0];

/// How missile 0 looks on a line of the starfield.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum StarShape {
    Plain,
    Wide,
    Hidden,
}

/// How a player's reset meets the copies that are on their way to the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Away from all copies.
    Between,
    /// A copy has been triggered and is about to start.
    Starting,
    /// A copy is being drawn.
    Drawing,
}

impl Moment {
    fn of(size: u8, old: u8, new: u8) -> Self {
        let size = usize::from(size & 7);
        let width = match size {
            5 => 16,
            7 => 32,
            _ => 8,
        };
        for offset in COPIES[size] {
            let after = (u32::from(new) + 2 * WIDTH - u32::from(old) - offset) % WIDTH;
            if after < 4 {
                return Self::Starting;
            }
            if after < 4 + width {
                return Self::Drawing;
            }
        }
        Self::Between
    }
}

/// Where the copies of a player or missile start, by the low bits of its size register.
const COPIES: [&[u32]; 8] = [
    &[0],
    &[0, 16],
    &[0, 32],
    &[0, 16, 32],
    &[0, 64],
    &[0],
    &[0, 32, 64],
    &[0],
];

/// Which two objects each collision bit is about: D6 and D7 of the eight registers in turn.
const PAIRS: [(usize, usize); 16] = [
    (M0, P0),
    (M0, P1),
    (M1, P1),
    (M1, P0),
    (P0, BL),
    (P0, PF),
    (P1, BL),
    (P1, PF),
    (M0, BL),
    (M0, PF),
    (M1, BL),
    (M1, PF),
    (BL, BL),
    (BL, PF),
    (M0, M1),
    (P0, P1),
];
/// The bit that no collision sets.
const UNUSED_BIT: usize = 12;

/// Which collision bits a set of objects can set.
const PAIRS_OF: [u16; 64] = {
    let mut table = [0; 64];
    let mut live = 0;
    while live < 64 {
        let mut bit = 0;
        while bit < 16 {
            let (first, second) = PAIRS[bit];
            if bit != UNUSED_BIT && live >> first & live >> second & 1 != 0 {
                table[live] |= 1 << bit;
            }
            bit += 1;
        }
        live += 1;
    }
    table
};

/// Which of the playfield's 20 bits a register holds, and what a value makes of them.
#[inline(always)]
fn playfield_part(register: u8, value: u8) -> (u32, u32) {
    match register {
        0x0D => (0x0_000F, u32::from(value >> 4)),
        0x0E => (0x0_0FF0, u32::from(value.reverse_bits()) << 4),
        _ => (0xF_F000, u32::from(value) << 12),
    }
}

/// How many clocks after the processor's write the picture changes.
fn delay(write: Write) -> u32 {
    match write.register {
        0x04 | 0x05 | 0x12 | 0x13 => 8,
        0x0D..=0x0F => [4, 5, 2, 3][usize::from(write.cycle % 76) & 3],
        0x01 | 0x0B | 0x0C | 0x1B | 0x1C => 1,
        _ => 0,
    }
}

/// Where an object lands that is reset at clock `place` of a line.
fn reset_position(place: u32, latency: u32, in_blank: u8) -> u8 {
    if place < BLANK {
        in_blank
    } else {
        ((place - BLANK + latency) % WIDTH) as u8
    }
}

fn moved(position: u8, pixels: i32) -> u8 {
    (i32::from(position) + pixels).rem_euclid(WIDTH as i32) as u8
}

/// Eight bits at twice their width.
const DOUBLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut bit = 0;
        while bit < 8 {
            if bits >> bit & 1 != 0 {
                table[bits] |= 0b11 << (bit * 2);
            }
            bit += 1;
        }
        bits += 1;
    }
    table
};

/// Eight bits at four times their width.
fn quadruple(bits: u8) -> u64 {
    let double = DOUBLE[usize::from(bits)].to_le_bytes();
    let [low, high] = double.map(|half| u64::from(DOUBLE[usize::from(half)]));
    low | high << 16
}
