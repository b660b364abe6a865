//! The last frames, stored as the TIA's state at the start of the frame and the log of writes
//! since. A frame that is not used is never drawn.

use serde::{Deserialize, Serialize};

use crate::tia::beam::Beam;
use crate::tia::lines::WIDTH;
use crate::tia::paint::Pixels;
use crate::tia::{LINE_CLOCKS, Log, Tia, Write, clock_of};

/// The running frame and the two before it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Frames {
    frames: [Frame; 3],
    running: usize,
}

/// A copy leaves out the oldest frame: it is never looked at again.
impl Clone for Frames {
    fn clone(&self) -> Self {
        let mut copy = Self::new(&self.frames[self.running].start);
        copy.clone_from(self);
        copy
    }

    fn clone_from(&mut self, other: &Self) {
        self.running = other.running;
        for age in [0, 1] {
            let index = (other.running + 3 - age) % 3;
            self.frames[index].clone_from(&other.frames[index]);
        }
        self.frames[(other.running + 1) % 3].clear();
    }
}

impl PartialEq for Frames {
    fn eq(&self, other: &Self) -> bool {
        [0, 2]
            .into_iter()
            .all(|age| self.aged(age) == other.aged(age))
    }
}

/// How one frame came to be.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Frame {
    start: Beam,
    log: Log,
    /// The clock up to which the beam has drawn.
    end: u32,
    /// What was on the screen before the beam came by: only kept where the beam did not come by
    /// everywhere.
    beneath: Option<Box<[u8]>>,
}

impl Clone for Frame {
    fn clone(&self) -> Self {
        Self {
            start: self.start.clone(),
            log: self.log.clone(),
            end: self.end,
            beneath: self.beneath.clone(),
        }
    }

    fn clone_from(&mut self, other: &Self) {
        self.start.clone_from(&other.start);
        self.log.clone_from(&other.log);
        self.end = other.end;
        self.beneath.clone_from(&other.beneath);
    }
}

impl Frame {
    /// Whether the beam came by everywhere.
    fn fills(&self) -> bool {
        self.end >= self.start.window().1
    }

    fn clear(&mut self) {
        self.log.clear();
        self.beneath = None;
    }

    fn new(start: &Beam) -> Self {
        Self {
            start: start.clone(),
            log: Log::new(),
            end: start.window().0,
            beneath: None,
        }
    }

    /// Draws the frame, each palette index as `shades` says.
    fn draw(&self, shades: &[u8; 256], pixels: &mut [u8]) {
        match &self.beneath {
            Some(beneath) => {
                for (pixel, index) in pixels.iter_mut().zip(beneath.iter()) {
                    *pixel = shades[usize::from(*index)];
                }
            }
            None if !self.fills() => pixels.fill(shades[0]),
            None => {}
        }
        let mut screen = Pixels::<false>::new(shades, pixels);
        let mut beam = self.start.clone();
        for write in self.log.writes() {
            beam.write(*write, &mut screen);
        }
        beam.settle(self.end, &mut screen);
    }
}

/// Two frames that are drawn side by side.
struct Pair<'a> {
    last: Drawing<'a>,
    before: Drawing<'a>,
}

/// A frame while it is drawn.
struct Drawing<'a> {
    beam: Beam,
    writes: &'a [Write],
    end: u32,
    screen: Pixels<'a, false>,
}

impl<'a> Pair<'a> {
    fn new(
        frames: [&'a Frame; 2],
        shades: &'a [u8; 256],
        last: &'a mut [u8],
        before: &'a mut [u8],
    ) -> Self {
        let drawing = |frame: &'a Frame, pixels: &'a mut [u8]| Drawing {
            beam: frame.start.without_collisions(),
            writes: frame.log.writes(),
            end: frame.end,
            screen: Pixels::new(shades, pixels),
        };
        Self {
            last: drawing(frames[0], last),
            before: drawing(frames[1], before),
        }
    }

    fn draw(mut self) {
        let (top, bottom) = self.last.beam.window();
        let mut line = top;
        while line < bottom {
            // What a row shows already is no part of a beam's state.
            if self.last.beam.at_a_row_start() && self.last.beam == self.before.beam {
                self.draw_shared();
                let writes = [self.last.writes, self.before.writes];
                let Some(parted) = writes.iter().filter_map(|writes| writes.first()).min() else {
                    break;
                };
                let rows = parted.clock().saturating_sub(top) / LINE_CLOCKS;
                line = line.max(top + rows * LINE_CLOCKS);
            }
            line += LINE_CLOCKS;
            self.last.draw_line(line);
            self.before.draw_line(line);
        }
        for drawing in [&mut self.last, &mut self.before] {
            for write in drawing.writes {
                drawing.beam.write(*write, &mut drawing.screen);
            }
            drawing.beam.settle(drawing.end, &mut drawing.screen);
        }
    }

    /// Draws both frames up to where they part.
    fn draw_shared(&mut self) {
        let start = self.last.beam.row() as usize;
        let (first, second) = (self.last.writes, self.before.writes);
        let shared = first
            .iter()
            .zip(second)
            .take_while(|(first, second)| first == second)
            .count();
        for write in &first[..shared] {
            self.last.beam.write(*write, &mut self.last.screen);
        }
        self.last.writes = &first[shared..];
        self.before.writes = &second[shared..];
        self.before.beam = self.last.beam.in_another_picture();
        let end = (self.last.beam.row() as usize + 1) * WIDTH as usize;
        let rows = start * WIDTH as usize..end.min(self.last.screen.rows().len());
        if let (Some(from), Some(to)) = (
            self.last.screen.rows().get(rows.clone()),
            self.before.screen.rows().get_mut(rows),
        ) {
            to.copy_from_slice(from);
        }
    }
}

impl Drawing<'_> {
    /// Replays what was written before a clock, and draws all lines up to there.
    fn draw_line(&mut self, clock: u32) {
        let count = self
            .writes
            .iter()
            .take_while(|write| write.clock() < clock)
            .count();
        let (now, later) = self.writes.split_at(count);
        for write in now {
            self.beam.write(*write, &mut self.screen);
        }
        self.writes = later;
    }
}

/// Palette indices as they are.
pub(crate) const PLAIN: [u8; 256] = {
    let mut shades = [0; 256];
    let mut index = 0;
    while index < 256 {
        shades[index] = index as u8;
        index += 1;
    }
    shades
};

impl Frames {
    pub(crate) fn new(start: &Beam) -> Self {
        Self {
            frames: [Frame::new(start), Frame::new(start), Frame::new(start)],
            running: 0,
        }
    }

    /// Makes a state that came from elsewhere one that these frames can be in; `like` is a beam
    /// of the same console.
    pub(crate) fn fit(&mut self, like: &Beam) {
        self.running %= 3;
        let (top, bottom) = like.window();
        let pixels = ((bottom - top) / LINE_CLOCKS * WIDTH) as usize;
        for frame in &mut self.frames {
            frame.start.fit(like);
            frame.end = frame.end.clamp(top, bottom);
            frame.beneath = frame
                .beneath
                .take()
                .filter(|beneath| beneath.len() == pixels);
        }
    }

    /// The running frame, or with 2 the one before it.
    fn aged(&self, age: usize) -> &Frame {
        &self.frames[(self.running + age) % 3]
    }

    /// The log of the running frame.
    pub(crate) fn log_mut(&mut self) -> &mut Log {
        &mut self.frames[self.running].log
    }

    /// Whether the beam came by everywhere in the running frame.
    pub(crate) fn fills(&self) -> bool {
        self.frames[self.running].fills()
    }

    /// The log of the running frame, to read.
    pub(crate) fn log(&self) -> &Log {
        &self.frames[self.running].log
    }

    /// A black screen.
    pub(crate) fn reset(&mut self, start: &Beam) {
        for frame in &mut self.frames {
            frame.start.clone_from(start);
            frame.log.clear();
            frame.end = start.window().0;
            frame.beneath = None;
        }
    }

    /// Begins a new frame.
    pub(crate) fn start(&mut self, start: &Beam) {
        self.running = (self.running + 1) % 3;
        let frame = &mut self.frames[self.running];
        frame.start.clone_from(start);
        frame.log.clear();
        frame.end = start.window().0;
        frame.beneath = None;
    }

    /// Notes how far the beam came.
    pub(crate) fn end_update(&mut self, tia: &Tia) {
        let before = (self.running + 1) % 3;
        let window = tia.beam.window();
        let end = clock_of(tia.touched).clamp(window.0, window.1);
        self.frames[self.running].end = end;
        if end < window.1 && self.frames[self.running].beneath.is_none() {
            let rows = (window.1 - window.0) / LINE_CLOCKS;
            let mut pixels = vec![0; (rows * WIDTH) as usize].into_boxed_slice();
            self.frames[before].draw(&PLAIN, &mut pixels);
            self.frames[self.running].beneath = Some(pixels);
        }
    }

    /// Draws the last frame and the one before it. Most of two frames on end is the same: as long
    /// as both beams are in the same state and the same is written, only one is drawn.
    pub(crate) fn screens(&self, shades: &[u8; 256], last: &mut [u8], before: &mut [u8]) {
        let frames = [self.aged(0), self.aged(2)];
        if frames.iter().any(|frame| !frame.fills()) {
            self.screen(false, shades, last);
            self.screen(true, shades, before);
            return;
        }
        Pair::new(frames, shades, last, before).draw();
    }

    /// Draws the last frame, or the one before it.
    pub(crate) fn screen(&self, before: bool, shades: &[u8; 256], pixels: &mut [u8]) {
        self.aged(if before { 2 } else { 0 }).draw(shades, pixels);
    }
}
