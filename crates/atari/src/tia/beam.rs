//! The beam: the TIA's picture registers, its five movable objects, and the pixels they make.
//!
//! [`Beam::write`] replays one register write: it first lets the beam run, with the old registers,
//! up to the clock at which the write shows, then changes them. A line is six sets of pixels
//! ([`Line`]), one per object; overlaps of sets are collisions, and their order of priority gives
//! colours.

use serde::{Deserialize, Serialize};

use super::lines::{self, Line, WIDTH};
use super::motion;
use super::objects::{BL, M0, M1, Moment, P0, P1, PAIRS, PAIRS_OF, PF, Sketch, StarShape};
use super::{LINE_CLOCKS, Write};

/// Clocks of a line before its first pixel.
const BLANK: u32 = 68;

/// Where the beam's pixels go.
pub(crate) trait Screen {
    /// Whether pixels are wanted; a beam that draws looks for no collisions, for another one does.
    const DRAWS: bool;
    /// Draws the pixels `from..to` of a row, counted from the top of the picture; nothing but
    /// black where there is no look.
    fn draw(&mut self, row: u32, from: u32, to: u32, look: Option<Look<'_>>);
}

/// How a span of a line looks.
pub(crate) struct Look<'a> {
    /// The pixels of the six objects, valid where `live` has their bit.
    pub(crate) objects: &'a [Line; 6],
    pub(crate) live: u8,
    /// The palette indices of player 0, player 1, playfield and background.
    pub(crate) colours: [u8; 4],
    /// The control register: its bits 1 and 2 say how the playfield is coloured and placed.
    pub(crate) control: u8,
    /// Whether the line's first eight pixels are black.
    pub(crate) comb: bool,
    /// Whether all this is as it was when the whole row above was drawn.
    pub(crate) same: bool,
}

/// Nobody looks.
pub(crate) struct NoScreen;

impl Screen for NoScreen {
    const DRAWS: bool = false;
    fn draw(&mut self, _row: u32, _from: u32, _to: u32, _look: Option<Look<'_>>) {}
}

/// A clock before all frames.
const LONG_AGO: i32 = i32::MIN / 2;

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
    pub(super) sizes: [u8; 2],
    /// The colours of player 0, player 1, playfield and background.
    colours: [u8; 4],
    /// Whether colours are lost in this frame: palette indices are odd then.
    faded: bool,
    pub(super) control: u8,
    /// The playfield's 20 bits, leftmost in bit 0.
    pub(super) playfield: u32,
    /// Whether the right half of the current line shows the playfield mirrored.
    pub(super) reflect: bool,
    pub(super) mirrored: [bool; 2],
    pub(super) graphics: [u8; 2],
    pub(super) old_graphics: [u8; 2],
    pub(super) delayed: [bool; 2],
    pub(super) missiles_on: [bool; 2],
    pub(super) ball_on: bool,
    pub(super) old_ball_on: bool,
    pub(super) ball_delayed: bool,
    /// Missiles held, invisible, at the middle of their player.
    pub(super) locked: [bool; 2],
    motions: [u8; 5],
    pub(super) positions: [u8; 5],
    /// Players whose first copy is missing until the line ends, for they were placed anew.
    pub(super) skip_first: [bool; 2],
    /// Whether the line's first eight pixels are blanked by HMOVE.
    comb: bool,
    hmove_clock: i32,
    /// The starfield of Cosmic Ark: a motion that HMOVE left running.
    stars: bool,
    star_phase: u8,
    pub(super) star_shape: StarShape,

    /// Two bits per collision register, D7 above D6.
    collided: u16,
    /// Whether anything has changed since a whole row was drawn.
    #[serde(skip)]
    changed: Changed,
    #[serde(skip)]
    pub(super) sketch: Sketch,
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
            changed: Changed(true),
            sketch: Sketch::default(),
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
        self.changed = Changed(true);
        self.sketch.quiet = 0;
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

    /// Replays one write: lets the beam run up to the clock at which the write shows, if it
    /// changes pixels or collisions at all, then changes the register.
    #[inline(always)]
    pub(crate) fn write<S: Screen>(&mut self, write: Write, screen: &mut S) {
        let clock = u32::from(write.cycle()) * 3;
        let (register, value) = (write.register(), write.value());
        match register {
            0x01 => {
                let vblank = value & 2 != 0;
                if self.vblank != vblank {
                    self.advance(clock + 1, screen);
                    self.vblank = vblank;
                }
            }
            0x04 | 0x05 => {
                let player = usize::from(register - 0x04);
                if self.sizes[player] != value
                    || self.skip_first[player]
                    || self.star_shape != StarShape::Plain
                {
                    self.advance(clock + 8, screen);
                    self.sizes[player] = value;
                    self.plain_star(player);
                    self.skip_first[player] = false;
                    self.touch(player);
                    self.touch(M0 + player);
                }
            }
            0x06..=0x09 => {
                let colour = &mut self.colours[usize::from(register - 0x06)];
                if !S::DRAWS {
                    *colour = value & 0xFE;
                } else if *colour != value & 0xFE {
                    self.advance(clock, screen);
                    self.colours[usize::from(register - 0x06)] = value & 0xFE;
                    self.changed = Changed(true);
                }
            }
            0x0A => {
                if self.control != value || self.reflect != (value & 1 != 0) {
                    self.advance(clock, screen);
                    self.control = value;
                    // The right half keeps its kind once the beam is there.
                    if clock % LINE_CLOCKS < BLANK + 79 {
                        self.reflect = value & 1 != 0;
                    }
                    self.touch(BL);
                    self.touch(PF);
                }
            }
            0x0B | 0x0C => {
                let player = usize::from(register - 0x0B);
                let mirrored = value & 8 != 0;
                if self.mirrored[player] != mirrored {
                    self.advance(clock + 1, screen);
                    self.mirrored[player] = mirrored;
                    self.touch(player);
                }
            }
            0x0D..=0x0F => {
                let (mask, bits) = playfield_part(register, value);
                if self.playfield & mask != bits {
                    // A line has four times as many cycles as this has cases.
                    let delay = [4, 5, 2, 3][usize::from(write.cycle() & 3)];
                    self.advance(clock + delay, screen);
                    self.playfield = (self.playfield & !mask) | bits;
                    self.touch(PF);
                }
            }
            0x10 | 0x11 => {
                self.advance(clock, screen);
                self.place_player(usize::from(register - 0x10), clock, screen);
            }
            0x12 | 0x13 => {
                let missile = M0 + usize::from(register - 0x12);
                self.advance(clock + 8, screen);
                self.plain_star(missile - M0);
                self.place_small(missile, clock);
            }
            0x14 => {
                self.advance(clock, screen);
                self.place_small(BL, clock);
            }
            0x1B | 0x1C => self.write_graphics(usize::from(register - 0x1B), value, clock, screen),
            0x1D | 0x1E => {
                let player = usize::from(register - 0x1D);
                let on = value & 2 != 0;
                if self.missiles_on[player] != on {
                    self.advance(clock, screen);
                    self.missiles_on[player] = on;
                    self.touch(M0 + player);
                }
            }
            0x1F => {
                let on = value & 2 != 0;
                if self.ball_on != on {
                    if !self.ball_delayed {
                        self.advance(clock, screen);
                        self.touch(BL);
                    }
                    self.ball_on = on;
                }
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
                let delayed = value & 1 != 0;
                if self.delayed[player] != delayed {
                    self.advance(clock, screen);
                    self.delayed[player] = delayed;
                    self.touch(player);
                }
            }
            0x27 => {
                let delayed = value & 1 != 0;
                if self.ball_delayed != delayed {
                    self.advance(clock, screen);
                    self.ball_delayed = delayed;
                    self.touch(BL);
                }
            }
            0x28 | 0x29 => {
                let player = usize::from(register - 0x28);
                let lock = value & 2 != 0;
                if self.locked[player] != lock {
                    self.advance(clock, screen);
                    self.lock_missile(player, lock);
                }
            }
            0x2A => {
                self.advance(clock, screen);
                self.strobe_motion(usize::from(write.cycle() % 76), clock);
            }
            0x2B => self.motions = [0; 5],
            0x2C => {
                self.advance(clock, screen);
                self.collided = 0;
                self.sketch.apart = 0;
            }
            _ => {}
        }
    }

    /// GRP0 and GRP1: each also makes the other player's last graphics its old ones.
    #[inline(always)]
    fn write_graphics<S: Screen>(&mut self, player: usize, value: u8, clock: u32, screen: &mut S) {
        let other = 1 - player;
        let new = !self.delayed[player] && self.graphics[player] != value;
        let late = self.delayed[other] && self.old_graphics[other] != self.graphics[other];
        let ball = player == P1 && self.ball_delayed && self.old_ball_on != self.ball_on;
        if new || late || ball {
            self.advance(clock + 1, screen);
            if new {
                self.touch(player);
            }
            if late {
                self.touch(other);
            }
            if ball {
                self.touch(BL);
            }
        }
        self.graphics[player] = value;
        self.old_graphics[other] = self.graphics[other];
        if player == P1 {
            self.old_ball_on = self.ball_on;
        }
    }

    /// Lets the beam run up to `clock`.
    #[inline(always)]
    pub(crate) fn advance<S: Screen>(&mut self, clock: u32, screen: &mut S) {
        if clock > self.sketch.quiet {
            self.run_to(clock, screen);
        }
    }

    fn run_to<S: Screen>(&mut self, clock: u32, screen: &mut S) {
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
        // Up to the first pixel of a line that has begun there is nothing to do, nor below the
        // picture.
        self.sketch.quiet = if self.clock >= self.window.1 {
            u32::MAX
        } else if self.clock > self.line_start {
            self.clock.max(self.line_start + BLANK)
        } else {
            self.clock
        };
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

    #[inline(always)]
    fn touch(&mut self, object: usize) {
        self.sketch.touch(object);
        self.changed = Changed(true);
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

    /// RESM0, RESM1 and RESBL.
    fn place_small(&mut self, object: usize, clock: u32) {
        self.positions[object] = self
            .odd_place(object, clock)
            .unwrap_or_else(|| reset_position(clock % LINE_CLOCKS, 4, 2));
        self.touch(object);
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
    fn strobe_motion(&mut self, cycle: usize, clock: u32) {
        if self.combs && motion::blanks(cycle) {
            self.comb = true;
        }
        for player in [P0, P1] {
            if self.skip_first[player] {
                self.skip_first[player] = false;
                self.touch(player);
            }
        }
        self.stars = false;
        if self.star_shape != StarShape::Plain {
            self.star_shape = StarShape::Plain;
            self.touch(M0);
        }
        for object in P0..=BL {
            let pixels = motion::motion(cycle, self.motions[object]);
            if pixels != 0 {
                self.positions[object] = moved(self.positions[object], pixels);
                self.touch(object);
            }
        }
        self.hmove_clock = clock as i32;
    }

    /// Makes the pixels `from..to` of the current row.
    #[inline(always)]
    fn draw<S: Screen>(&mut self, from: u32, to: u32, screen: &mut S) {
        let whole = from == 0 && to == WIDTH;
        if S::DRAWS {
            if self.vblank {
                screen.draw(self.row, from, to, None);
            } else {
                let live = self.live();
                self.refresh(live);
                let look = Look {
                    objects: self.sketch.objects(),
                    live,
                    colours: self.colours.map(|colour| colour | u8::from(self.faded)),
                    control: self.control,
                    comb: self.comb,
                    same: !self.changed.0 && !self.comb,
                };
                screen.draw(self.row, from, to, Some(look));
            }
            self.changed = Changed(!whole || self.vblank || self.comb);
        } else if !self.vblank {
            self.collide(from, to, whole);
        }
        if from < 8 && to >= 8 {
            self.comb = false;
        }
    }

    /// Looks for collisions in a span. They latch: a pair that has met once, or that had a whole
    /// line to meet in as it is, need not be looked at.
    #[inline(always)]
    fn collide(&mut self, from: u32, to: u32, whole: bool) {
        let live = self.live();
        let pairs = PAIRS_OF[usize::from(live & 63)] & !(self.collided | self.sketch.apart);
        if pairs == 0 {
            return;
        }
        self.refresh(live);
        let span = if whole {
            [!0; 3]
        } else {
            lines::span(from, to)
        };
        let objects = self.sketch.objects();
        let mut left = pairs;
        while left != 0 {
            let bit = left.trailing_zeros() as usize;
            left &= left - 1;
            let (first, second) = PAIRS[bit & 15];
            let (first, second) = (&objects[first], &objects[second]);
            let both = (first[0] & second[0] & span[0])
                | (first[1] & second[1] & span[1])
                | (first[2] & second[2] & span[2]);
            self.collided |= u16::from(both != 0) << bit;
        }
        if whole {
            self.sketch.apart |= pairs;
        }
    }
}

/// Whether the next row has to be drawn anew; no part of the state, so that all are equal.
#[derive(Clone, Copy, Debug)]
struct Changed(bool);

impl Default for Changed {
    fn default() -> Self {
        Self(true)
    }
}

impl PartialEq for Changed {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

/// Which of the playfield's 20 bits a register holds, and what a value makes of them.
#[inline(always)]
fn playfield_part(register: u8, value: u8) -> (u32, u32) {
    match register {
        0x0D => (0x0_000F, u32::from(value >> 4)),
        0x0E => (0x0_0FF0, u32::from(value.reverse_bits()) << 4),
        _ => (0xF_F000, u32::from(value) << 12),
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

/// A position up to 33 pixels to either side of another.
fn moved(position: u8, pixels: i32) -> u8 {
    let moved = i32::from(position) + pixels;
    if moved < 0 {
        (moved + WIDTH as i32) as u8
    } else if moved >= WIDTH as i32 {
        (moved - WIDTH as i32) as u8
    } else {
        moved as u8
    }
}
