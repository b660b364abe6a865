//! The beam: the TIA's picture registers, its five movable objects, and their pixels.
//!
//! [`Beam::write`] (in `registers`) replays one register write. A line is six sets of pixels, one
//! per object; overlaps of sets are collisions, and their order of priority gives colours. An
//! object that changes while the beam is within a line is split there: what was shown so far is
//! kept, and the line is processed as a whole when the beam has left it.

mod registers;
mod screen;

use serde::{Deserialize, Serialize};

use super::LINE_CLOCKS;
use super::lines::{self, EMPTY, Line, WIDTH};
use super::objects::{M0, PAIRS, PAIRS_OF, PAIRS_WITH, PF, Sketch, StarShape};
pub(crate) use screen::{Look, NoScreen, Screen};

/// Clocks of a line before its first pixel.
const BLANK: u32 = 68;

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
    /// Players whose first copy is missing until the line ends, because they were moved.
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

/// Whether the next row has to be redrawn; not part of the state, so that all are equal.
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
