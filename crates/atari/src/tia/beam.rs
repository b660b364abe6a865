//! The beam: the TIA's picture registers, its five movable objects, and the pixels they make.
//!
//! [`Beam::write`] replays one register write. A line is six sets of pixels, one per object;
//! overlaps of sets are collisions, and their order of priority gives colours. An object that
//! changes while the beam is inside a line is cut there: what it has shown so far is kept, and the
//! line is looked at as a whole when the beam has left it.

use serde::{Deserialize, Serialize};

use super::lines::{self, EMPTY, Line, WIDTH};
use super::motion;
use super::objects::{
    BL, M0, M1, Moment, P0, P1, PAIRS, PAIRS_OF, PAIRS_WITH, PF, Sketch, StarShape,
};
use super::{LINE_CLOCKS, Write};

/// Clocks of a line before its first pixel.
const BLANK: u32 = 68;

/// Where the beam's pixels go.
pub(crate) trait Screen {
    /// Whether pixels are wanted.
    const DRAWS: bool;
    /// Whether collisions are wanted.
    const COLLIDES: bool;
    /// Draws the pixels `from..to` of a row, counted from the top of the picture; nothing but
    /// black where there is no look.
    fn draw(&mut self, row: u32, from: u32, to: u32, look: Option<Look<'_>>);
}

/// How a span of a line looks.
pub(crate) struct Look<'a> {
    /// The pixels of the six objects, valid where `live` has their bit.
    pub(crate) objects: &'a [Line; 6],
    pub(crate) live: u32,
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
    const COLLIDES: bool = true;
    fn draw(&mut self, _row: u32, _from: u32, _to: u32, _look: Option<Look<'_>>) {}
}

/// A clock before all frames.
const LONG_AGO: i32 = i32::MIN / 2;

/// The picture registers, the objects' places, and how far the frame is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Beam {
    /// The latest clock at which something has shown.
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
    /// Whether HMOVE blanks the first eight pixels of the line, and of the next one.
    comb: bool,
    comb_next: bool,
    hmove_clock: i32,
    /// The starfield of Cosmic Ark: a motion that HMOVE left running.
    stars: bool,
    star_phase: u8,
    pub(super) star_shape: StarShape,

    /// Two bits per collision register, D7 above D6.
    collided: u32,
    /// The pixel of the current line from which on collisions count.
    counts_from: u8,
    /// The pixel of the current line up to which it is drawn.
    drawn: u8,
    /// The objects that have changed inside the current line, up to which pixel, and what they
    /// have shown before.
    cut: u32,
    cut_at: [u8; 6],
    shown: [Line; 6],

    /// Whether anything has changed since a whole row was drawn.
    #[serde(skip)]
    changed: Changed,
    #[serde(skip)]
    pub(super) sketch: Sketch,
}

impl Beam {
    pub(crate) fn new(window: (u32, u32), combs: bool) -> Self {
        Self {
            clock: 0,
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
            comb_next: false,
            hmove_clock: LONG_AGO,
            stars: false,
            star_phase: 0,
            star_shape: StarShape::Plain,
            collided: 0,
            counts_from: 0,
            drawn: 0,
            cut: 0,
            cut_at: [0; 6],
            shown: [EMPTY; 6],
            changed: Changed(true),
            sketch: Sketch::default(),
        }
    }

    /// Goes back to the top of the next frame.
    ///
    /// A PAL television loses the colours of a frame that follows one with an odd number of lines.
    pub(crate) fn start_frame(&mut self, faded: bool) {
        self.clock = 0;
        self.line_start = self.window.0;
        self.row = 0;
        self.start_line();
        self.faded = faded;
        self.changed = Changed(true);
        self.hmove_clock = LONG_AGO;
    }

    /// Makes a state that came from elsewhere one that a beam can be in; `like` is a beam of the
    /// same console.
    pub(crate) fn fit(&mut self, like: &Self) {
        self.window = like.window;
        self.combs = like.combs;
        let (top, bottom) = self.window;
        let rows = self.line_start.saturating_sub(top) / LINE_CLOCKS;
        if self.line_start != top + rows * LINE_CLOCKS || self.line_start > bottom {
            self.line_start = top;
        }
        self.row = (self.line_start - top) / LINE_CLOCKS;
        self.playfield &= 0xF_FFFF;
        for position in &mut self.positions {
            *position %= WIDTH as u8;
        }
        self.hmove_clock = self.hmove_clock.clamp(LONG_AGO, 1 << 20);
        self.star_phase &= 3;
        self.cut &= 0x3F;
        for place in self
            .cut_at
            .iter_mut()
            .chain([&mut self.counts_from, &mut self.drawn])
        {
            *place = (*place).min(WIDTH as u8);
        }
        self.changed = Changed(true);
        self.sketch = Sketch::default();
    }

    /// The same beam, with nothing left of what it has met: when drawing only the rest counts.
    pub(crate) fn without_collisions(&self) -> Self {
        Self {
            collided: 0,
            ..self.clone()
        }
    }

    /// The row that is being drawn, counted from the top of the picture.
    pub(crate) fn row(&self) -> u32 {
        self.row
    }

    /// Whether nothing of the current row is drawn yet.
    pub(crate) fn at_a_row_start(&self) -> bool {
        self.drawn == 0
    }

    /// The same beam, where the row above may look different.
    pub(crate) fn in_another_picture(&self) -> Self {
        Self {
            changed: Changed(true),
            ..self.clone()
        }
    }

    pub(crate) fn combs(&self) -> bool {
        self.combs
    }

    /// The clocks between which there is a picture.
    pub(crate) fn window(&self) -> (u32, u32) {
        self.window
    }

    /// The two bits of a collision register, at the top of a byte.
    pub(crate) fn collisions(&self, register: usize) -> u8 {
        collision_bits(self.collided, register)
    }

    /// All collisions, if the beam is where there are no new ones until the next write.
    pub(crate) fn settled_collisions(&self) -> Option<u32> {
        (self.vblank || self.line_start >= self.window.1).then_some(self.collided)
    }

    /// Replays one write: lets the beam run up to the clock at which the write shows, if it
    /// changes pixels or collisions at all, then changes the register.
    #[inline(always)]
    pub(crate) fn write<S: Screen>(&mut self, write: Write, screen: &mut S) {
        let clock = write.clock();
        let (register, value) = (write.register(), write.value());
        match register {
            0x01 => {
                let vblank = value & 2 != 0;
                if self.vblank != vblank {
                    self.settle(clock + 1, screen);
                    self.counts_from = self.place();
                    self.vblank = vblank;
                    self.changed = Changed(true);
                }
            }
            0x04 | 0x05 => {
                let player = usize::from(register - 0x04);
                if self.sizes[player] != value
                    || self.skip_first[player]
                    || self.star_shape != StarShape::Plain
                {
                    self.reach(clock + 8, screen);
                    self.cut::<S>(player);
                    self.cut::<S>(M0 + player);
                    self.sizes[player] = value;
                    self.plain_star(player);
                    self.skip_first[player] = false;
                }
            }
            0x06..=0x09 => {
                let colour = &mut self.colours[usize::from(register - 0x06)];
                if !S::DRAWS {
                    *colour = value & 0xFE;
                } else if *colour != value & 0xFE {
                    self.reach_and_draw(clock, screen);
                    self.colours[usize::from(register - 0x06)] = value & 0xFE;
                    self.changed = Changed(true);
                }
            }
            0x0A if self.control != value || self.reflect != (value & 1 != 0) => {
                self.reach_and_draw(clock, screen);
                self.cut::<S>(BL);
                self.cut::<S>(PF);
                self.control = value;
                // The right half keeps its kind once the beam is there.
                if clock % LINE_CLOCKS < BLANK + 79 {
                    self.reflect = value & 1 != 0;
                }
            }
            0x0B | 0x0C => {
                let player = usize::from(register - 0x0B);
                let mirrored = value & 8 != 0;
                if self.mirrored[player] != mirrored {
                    self.reach(clock + 1, screen);
                    self.cut::<S>(player);
                    self.mirrored[player] = mirrored;
                }
            }
            0x0D..=0x0F => {
                let (mask, bits) = playfield_part(register, value);
                if self.playfield & mask != bits {
                    // The phase in the line: it has a multiple of four cycles.
                    let delay = [4, 5, 2, 3][usize::from(write.cycle() & 3)];
                    self.reach(clock + delay, screen);
                    self.cut::<S>(PF);
                    self.playfield = (self.playfield & !mask) | bits;
                    self.note_live(PF);
                }
            }
            0x10 | 0x11 => self.place_player(usize::from(register - 0x10), clock, screen),
            0x12 | 0x13 => {
                let missile = M0 + usize::from(register - 0x12);
                self.reach(clock + 8, screen);
                self.cut::<S>(missile);
                self.plain_star(missile - M0);
                self.place_small(missile, clock);
            }
            0x14 => {
                self.reach(clock, screen);
                self.cut::<S>(BL);
                self.place_small(BL, clock);
            }
            0x1B => self.write_graphics(P0, value, clock, screen),
            0x1C => self.write_graphics(P1, value, clock, screen),
            0x1D | 0x1E => {
                let player = usize::from(register - 0x1D);
                let on = value & 2 != 0;
                if self.missiles_on[player] != on {
                    self.reach(clock, screen);
                    self.cut::<S>(M0 + player);
                    self.missiles_on[player] = on;
                    self.note_live(M0 + player);
                }
            }
            0x1F => {
                let on = value & 2 != 0;
                if self.ball_on != on {
                    if !self.ball_delayed {
                        self.reach(clock, screen);
                        self.cut::<S>(BL);
                    }
                    self.ball_on = on;
                    self.note_live(BL);
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
                    self.reach(clock, screen);
                    self.cut::<S>(player);
                    self.delayed[player] = delayed;
                    self.note_live(player);
                }
            }
            0x27 => {
                let delayed = value & 1 != 0;
                if self.ball_delayed != delayed {
                    self.reach(clock, screen);
                    self.cut::<S>(BL);
                    self.ball_delayed = delayed;
                    self.note_live(BL);
                }
            }
            0x28 | 0x29 => {
                let player = usize::from(register - 0x28);
                let lock = value & 2 != 0;
                if self.locked[player] != lock {
                    self.reach(clock, screen);
                    self.cut::<S>(M0 + player);
                    self.lock_missile(player, lock);
                    self.note_live(M0 + player);
                }
            }
            0x2A => {
                self.reach(clock, screen);
                self.strobe_motion::<S>(usize::from(write.cycle() % 76), clock);
            }
            0x2B => self.motions = [0; 5],
            0x2C => {
                self.reach(clock, screen);
                self.counts_from = self.place();
                self.collided = 0;
                self.sketch.apart = 0;
            }
            _ => {}
        }
    }

    /// Lets the beam run up to `clock`, and draws or looks for collisions up to there.
    pub(crate) fn settle<S: Screen>(&mut self, clock: u32, screen: &mut S) {
        self.reach_and_draw(clock, screen);
        if S::COLLIDES {
            let place = self.place();
            self.collide(place);
            // The blanked pixels are behind the beam.
            if place >= 8 {
                self.comb = false;
            }
        }
    }

    /// Lets the beam run up to `clock`, and draws up to there.
    fn reach_and_draw<S: Screen>(&mut self, clock: u32, screen: &mut S) {
        self.reach(clock, screen);
        if S::DRAWS {
            let place = self.place();
            self.draw(place, screen);
        }
    }

    /// GRP0 and GRP1: each also makes the other player's last graphics its old ones.
    #[inline(always)]
    fn write_graphics<S: Screen>(&mut self, player: usize, value: u8, clock: u32, screen: &mut S) {
        let other = 1 - player;
        if self.delayed == [false; 2] && !self.ball_delayed {
            if self.graphics[player] != value {
                self.reach(clock + 1, screen);
                self.cut::<S>(player);
            }
            self.graphics[player] = value;
            self.old_graphics[other] = self.graphics[other];
        } else {
            let new = !self.delayed[player] && self.graphics[player] != value;
            let late = self.delayed[other] && self.old_graphics[other] != self.graphics[other];
            let ball = player == P1 && self.ball_delayed && self.old_ball_on != self.ball_on;
            if new || late || ball {
                self.reach(clock + 1, screen);
                if new {
                    self.cut::<S>(player);
                }
                if late {
                    self.cut::<S>(other);
                }
                if ball {
                    self.cut::<S>(BL);
                }
            }
            self.graphics[player] = value;
            self.old_graphics[other] = self.graphics[other];
            self.note_live(other);
        }
        self.note_live(player);
        if player == P1 {
            self.old_ball_on = self.ball_on;
            self.note_live(BL);
        }
    }

    /// Lets the beam run into the line of `clock`.
    #[inline(always)]
    fn reach<S: Screen>(&mut self, clock: u32, screen: &mut S) {
        self.clock = self.clock.max(clock);
        if self.clock > self.line_start + LINE_CLOCKS {
            self.run_lines(screen);
        }
    }

    /// Ends all lines that the beam has left.
    fn run_lines<S: Screen>(&mut self, screen: &mut S) {
        while self.clock > self.line_start + LINE_CLOCKS && self.line_start < self.window.1 {
            if S::DRAWS {
                self.draw(WIDTH as u8, screen);
            }
            if S::COLLIDES {
                self.collide(WIDTH as u8);
            }
            self.comb = self.comb_next;
            self.comb_next = false;
            self.start_line();
            self.line_start += LINE_CLOCKS;
            self.row += 1;
            // Below the picture the beam is not followed.
            if self.turns() && self.line_start < self.window.1 {
                self.end_line::<S>();
            }
        }
    }

    /// Whether anything changes at the end of a line.
    #[inline(always)]
    fn turns(&self) -> bool {
        self.skip_first != [false; 2] || self.reflect != (self.control & 1 != 0) || self.stars
    }

    #[inline(always)]
    fn start_line(&mut self) {
        self.counts_from = 0;
        self.drawn = 0;
        let mut cut = std::mem::take(&mut self.cut);
        while cut != 0 {
            let object = (cut.trailing_zeros() as usize).min(PF);
            cut &= cut - 1;
            self.shown[object] = EMPTY;
            self.cut_at[object] = 0;
        }
    }

    /// The pixel at which the beam is in its line: none is left of it outside of the picture.
    #[inline(always)]
    fn place(&self) -> u8 {
        if self.line_start >= self.window.1 {
            return 0;
        }
        let pixels = self.clock.saturating_sub(self.line_start + BLANK);
        pixels.min(WIDTH) as u8
    }

    /// Before an object changes: keeps what it has shown in this line.
    #[inline(always)]
    fn cut<S: Screen>(&mut self, object: usize) {
        if self.clock > self.line_start + BLANK {
            self.cut_inside::<S>(object);
        }
        self.touch::<S>(object);
    }

    fn cut_inside<S: Screen>(&mut self, object: usize) {
        let place = self.place();
        // Nothing shows in the vertical blank.
        if place <= self.cut_at[object] || self.vblank {
            return;
        }
        let live = self.live();
        // What has shown only matters for collisions if there is an object that it may have met.
        let pairs = PAIRS_OF[(live | self.cut) as usize & 63] & PAIRS_WITH[object];
        let matters = S::DRAWS || u32::from(pairs) & !self.collided != 0;
        if matters && live >> object & 1 != 0 {
            self.refresh(1 << object);
            let span = lines::span(self.cut_at[object], place);
            let seen = lines::common(&self.sketch.objects()[object], &span);
            self.shown[object] = lines::both(&self.shown[object], &seen);
        }
        self.cut |= 1 << object;
        self.cut_at[object] = place;
    }

    /// What the objects show in this line where some were cut.
    fn patched(&self, live: u32) -> [Line; 6] {
        let mut objects = *self.sketch.objects();
        let mut cut = self.cut;
        while cut != 0 {
            let object = (cut.trailing_zeros() as usize).min(PF);
            cut &= cut - 1;
            let mut line = self.shown[object];
            if live >> object & 1 != 0 {
                let rest = lines::span(self.cut_at[object], WIDTH as u8);
                line = lines::both(&line, &lines::common(&objects[object], &rest));
            }
            objects[object] = line;
        }
        objects
    }

    /// Draws the current line up to a pixel.
    fn draw<S: Screen>(&mut self, to: u8, screen: &mut S) {
        if to <= self.drawn {
            return;
        }
        let (from, to) = (u32::from(self.drawn), u32::from(to));
        let whole = from == 0 && to == WIDTH;
        if self.vblank {
            screen.draw(self.row, from, to, None);
        } else {
            let same = whole && !self.changed.0 && !self.comb;
            let mut live = self.live();
            self.refresh(live);
            let patched;
            let objects = if self.cut == 0 {
                self.sketch.objects()
            } else {
                patched = self.patched(live);
                live |= self.cut;
                &patched
            };
            let look = Look {
                objects,
                live,
                colours: self.colours.map(|colour| colour | u8::from(self.faded)),
                control: self.control,
                comb: self.comb,
                same,
            };
            screen.draw(self.row, from, to, Some(look));
        }
        self.changed = Changed(!whole || self.vblank || self.comb || self.cut != 0);
        self.drawn = to as u8;
    }

    /// Looks for collisions in the current line up to a pixel. They latch: a pair that has met
    /// once, or that had a whole line to meet in as it is, need not be looked at.
    #[inline(always)]
    fn collide(&mut self, to: u8) {
        let live = self.live();
        let met_or_apart = self.collided | self.sketch.apart;
        let pairs = u32::from(PAIRS_OF[(live | self.cut) as usize & 63]) & !met_or_apart;
        if pairs != 0 && to > self.counts_from && !self.vblank {
            self.collide_pairs(pairs, to);
        }
    }

    /// Looks whether some pairs meet in the current line up to a pixel.
    fn collide_pairs(&mut self, pairs: u32, to: u8) {
        let live = self.live();
        let whole = self.counts_from == 0 && u32::from(to) == WIDTH;
        let span = lines::span(self.counts_from, to);
        self.refresh(live);
        if self.cut == 0 {
            self.collided |= met(pairs, self.sketch.objects(), &span);
            if whole {
                self.sketch.apart |= pairs;
            }
        } else {
            self.collided |= met(pairs, &self.patched(live), &span);
        }
    }

    /// What happens when the beam turns, noticed when it is inside the next line.
    fn end_line<S: Screen>(&mut self) {
        for player in 0..2 {
            if self.skip_first[player] {
                self.skip_first[player] = false;
                self.touch::<S>(player);
            }
        }
        let reflect = self.control & 1 != 0;
        if reflect != self.reflect {
            self.reflect = reflect;
            self.touch::<S>(PF);
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
            self.touch::<S>(M0);
        }
    }

    #[inline(always)]
    fn touch<S: Screen>(&mut self, object: usize) {
        self.sketch.touch(object);
        if S::DRAWS {
            self.changed = Changed(true);
        }
    }

    fn plain_star(&mut self, player: usize) {
        if player == 0 {
            self.star_shape = StarShape::Plain;
        }
    }

    /// RESP0 and RESP1.
    fn place_player<S: Screen>(&mut self, player: usize, clock: u32, screen: &mut S) {
        self.reach(clock, screen);
        let new = reset_position(clock % LINE_CLOCKS, 5, 3);
        let old = self.positions[player];
        let moment = Moment::of(self.sizes[player], old, new);
        if moment == Moment::Drawing {
            self.reach(clock + 11, screen);
        }
        self.cut::<S>(player);
        self.positions[player] = new;
        self.skip_first[player] = moment != Moment::Starting;
    }

    /// RESM0, RESM1 and RESBL.
    fn place_small(&mut self, object: usize, clock: u32) {
        self.positions[object] = self
            .odd_place(object, clock)
            .unwrap_or_else(|| reset_position(clock % LINE_CLOCKS, 4, 2));
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
    }

    /// HMOVE.
    #[inline(always)]
    fn strobe_motion<S: Screen>(&mut self, cycle: usize, clock: u32) {
        if self.combs && motion::blanks(cycle) {
            if self.place() < 8 {
                self.comb = true;
            } else {
                self.comb_next = true;
            }
        }
        if self.skip_first != [false; 2] {
            for player in [P0, P1] {
                if self.skip_first[player] {
                    self.cut::<S>(player);
                    self.skip_first[player] = false;
                }
            }
        }
        self.stars = false;
        if self.star_shape != StarShape::Plain {
            self.cut::<S>(M0);
            self.star_shape = StarShape::Plain;
        }
        self.hmove_clock = clock as i32;
        if self.motions == [0; 5] && motion::rests(cycle) {
            return;
        }
        for object in P0..=BL {
            let pixels = motion::motion(cycle, self.motions[object]);
            if pixels != 0 {
                self.cut::<S>(object);
                self.positions[object] = moved(self.positions[object], pixels);
            }
        }
    }
}

/// The two bits of a collision register, at the top of a byte.
#[inline(always)]
pub(crate) fn collision_bits(collided: u32, register: usize) -> u8 {
    ((collided >> (2 * (register & 7))) as u8) << 6
}

/// Which of some pairs of objects meet within a span.
#[inline(always)]
fn met(mut pairs: u32, objects: &[Line; 6], span: &Line) -> u32 {
    let mut met = 0;
    while pairs != 0 {
        let bit = pairs.trailing_zeros() as usize;
        pairs &= pairs - 1;
        let (first, second) = PAIRS[bit & 15];
        let meets = lines::meet(&objects[first], &objects[second], span);
        met |= u32::from(meets) << bit;
    }
    met
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
