//! From the console's frames to observations.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use starling_atari::ale::Ale;
use starling_atari::controllers::Action as Press;
use starling_atari::games::Outcome;
use starling_atari::palette;
use starling_atari::picture::{Resizer, SIDE, pool};

use super::bilinear::{Aligned, Bilinear};
use super::options::{Observation, Resize};

const WIDTH: usize = 160;
const RAM: usize = 128;
/// Width and height of rlpyt's picture.
const HALF: (usize, usize) = (80, 104);

/// One frame as an observation shows it, and the full-size picture that it was made from.
///
/// The full-size picture is kept, because at the end of a game the reference shows it again.
pub(super) struct Picture {
    kind: Observation,
    height: usize,
    grays: [u8; 256],
    /// Red, green and blue of every palette index.
    colours: [[u8; 256]; 3],
    way: Way,
    /// The pooled picture, plane by plane, or where frames are resized first the pooled square;
    /// empty for memory.
    full: Vec<u8>,
}

/// How frames become what is shown.
enum Way {
    /// Pooled and shown as they are.
    Whole,
    /// Pooled, then resized by area.
    Area(Arc<Resizer>),
    /// Each resized, then pooled.
    Bilinear(Box<Bilinear>),
    /// Pooled, then resized without the first and the last row.
    Cropped(Box<Bilinear>),
    /// Pooled in colour, then resized, then made grey.
    Aligned(Box<Aligned>),
}

thread_local! {
    /// The other frame of two that are pooled, and palette indices.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Which frames a picture is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frames {
    /// The last one.
    Last,
    /// The maximum of the last two.
    LastTwo,
    /// The same, where [`Picture::play`] has drawn both.
    LastTwoDrawn,
    /// The maximum of the picture that was shown last and the frame before the last.
    ShownAndBefore,
}

impl Picture {
    pub(super) fn new(kind: Observation, resize: Resize, ale: &Ale) -> Self {
        let console = ale.console();
        let (height, format) = (console.height(), console.format());
        let mut colours = [[0; 256]; 3];
        for index in 0..=255u8 {
            for (plane, value) in colours.iter_mut().zip(palette::rgb(format, index)) {
                plane[usize::from(index)] = value;
            }
        }
        let size = (WIDTH, height);
        let square = (SIDE, SIDE);
        let way = match (kind, resize) {
            (Observation::Gray | Observation::Rgb | Observation::Ram, _) => Way::Whole,
            (Observation::Gray104, _) => {
                let cropped = (WIDTH, height - 2);
                Way::Cropped(Box::new(Bilinear::new(cropped, HALF)))
            }
            (Observation::Gray84, Resize::Area) => Way::Area(resizer(ale)),
            (Observation::Gray84, Resize::Bilinear) => {
                Way::Bilinear(Box::new(Bilinear::new(size, square)))
            }
            (Observation::Gray84, Resize::Aligned) => {
                Way::Aligned(Box::new(Aligned::new(size, SIDE)))
            }
        };
        let length = match (kind, &way) {
            (Observation::Ram, _) => 0,
            (_, Way::Bilinear(_)) => SIDE * SIDE,
            (Observation::Rgb, _) | (_, Way::Aligned(_)) => 3 * height * WIDTH,
            _ => height * WIDTH,
        };
        Self {
            kind,
            height,
            grays: palette::grays(format),
            colours,
            full: vec![0; length],
            way,
        }
    }

    /// The shape of a stack of frames.
    pub(super) fn shape(&self, stack: usize) -> Vec<usize> {
        shape(self.kind, stack, self.height)
    }

    /// Bytes that one frame of a stack takes.
    pub(super) fn frame_len(&self) -> usize {
        self.shape(1).iter().product()
    }

    /// The full-size picture, or what takes its place.
    pub(super) fn full(&self) -> &[u8] {
        &self.full
    }

    /// Restores a picture that [`full`](Picture::full) gave.
    pub(super) fn set_full(&mut self, full: Vec<u8>) {
        self.full = full;
    }

    /// Whether frames can be drawn as they are played.
    pub(super) fn draws_while_playing(&self) -> bool {
        matches!(self.way, Way::Area(_))
    }

    /// Plays a frame and draws it, as the last one or the one before it. Also returns whether it
    /// could be drawn.
    pub(super) fn play(&self, ale: &mut Ale, press: Press, last: bool) -> (Outcome, bool) {
        SCRATCH.with_borrow_mut(|(other, indices)| {
            let pixels = if last { other } else { indices };
            pixels.resize(self.height * WIDTH, 0);
            ale.act_and_draw(press, &self.grays, pixels)
        })
    }

    /// Draws frames and writes what an observation shows of them. `out` holds what was written
    /// last: where pictures are resized by area, only rows that change are resized.
    pub(super) fn draw(&mut self, ale: &Ale, frames: Frames, out: &mut [u8]) {
        let console = ale.console();
        let pixels = self.height * WIDTH;
        SCRATCH.with_borrow_mut(|(other, indices)| match (self.kind, &self.way) {
            (Observation::Ram, _) => {}
            (_, Way::Area(resizer)) => {
                other.resize(pixels, 0);
                indices.resize(pixels, 0);
                let changed = match frames {
                    Frames::Last => {
                        console.shaded_screen(false, &self.grays, other);
                        pool(&mut self.full, other, None)
                    }
                    Frames::LastTwo => {
                        console.shaded_screens(&self.grays, other, indices);
                        pool(&mut self.full, other, Some(indices))
                    }
                    Frames::LastTwoDrawn => pool(&mut self.full, other, Some(indices)),
                    Frames::ShownAndBefore => {
                        other.copy_from_slice(&self.full);
                        console.shaded_screen(true, &self.grays, indices);
                        pool(&mut self.full, other, Some(indices))
                    }
                };
                resizer.resize_rows(&self.full, &changed, out);
            }
            (Observation::Gray84 | Observation::Gray104 | Observation::Gray, way)
                if !matches!(way, Way::Aligned(_)) =>
            {
                let mut draw = |before: bool, out: &mut [u8]| match way {
                    Way::Bilinear(bilinear) => {
                        indices.resize(pixels, 0);
                        console.shaded_screen(before, &self.grays, indices);
                        bilinear.resize(indices, out);
                    }
                    _ => console.shaded_screen(before, &self.grays, out),
                };
                if frames != Frames::ShownAndBefore {
                    draw(false, &mut self.full);
                }
                if frames != Frames::Last {
                    other.resize(self.full.len(), 0);
                    draw(true, other);
                    for (pixel, other) in self.full.iter_mut().zip(other.iter()) {
                        *pixel = (*pixel).max(*other);
                    }
                }
            }
            _ => {
                let plain: [u8; 256] = std::array::from_fn(|index| index as u8);
                indices.resize(pixels, 0);
                for before in [false, true] {
                    let wanted = match frames {
                        Frames::Last => !before,
                        Frames::LastTwo | Frames::LastTwoDrawn => true,
                        Frames::ShownAndBefore => before,
                    };
                    if !wanted {
                        continue;
                    }
                    console.shaded_screen(before, &plain, indices);
                    let planes = self.full.chunks_exact_mut(pixels).zip(&self.colours);
                    for (plane, colours) in planes {
                        for (value, index) in plane.iter_mut().zip(indices.iter()) {
                            let colour = colours[usize::from(*index)];
                            *value = if before { colour.max(*value) } else { colour };
                        }
                    }
                }
            }
        });
        if !matches!(self.way, Way::Area(_)) {
            self.show(ale, out);
        }
    }

    /// Writes what an observation shows of the picture that was drawn last.
    pub(super) fn show(&self, ale: &Ale, out: &mut [u8]) {
        match &self.way {
            _ if self.kind == Observation::Ram => out.copy_from_slice(ale.ram()),
            Way::Whole | Way::Bilinear(_) => out.copy_from_slice(&self.full),
            Way::Area(resizer) => resizer.resize(&self.full, out),
            Way::Cropped(bilinear) => {
                let rows = WIDTH..self.full.len() - WIDTH;
                bilinear.resize(&self.full[rows], out);
            }
            Way::Aligned(aligned) => aligned.resize(&self.full, out),
        }
    }
}

/// The shape of a stack of frames of a picture with `height` rows.
pub(super) fn shape(kind: Observation, stack: usize, height: usize) -> Vec<usize> {
    match kind {
        Observation::Gray84 => vec![stack, SIDE, SIDE],
        Observation::Gray104 => vec![stack, HALF.1, HALF.0],
        Observation::Gray => vec![stack, height, WIDTH],
        Observation::Rgb => vec![3 * stack, height, WIDTH],
        Observation::Ram => vec![stack, RAM],
    }
}

/// The resizer of a console's pictures: the same for all of one height.
fn resizer(ale: &Ale) -> Arc<Resizer> {
    static RESIZERS: Mutex<Vec<(usize, Arc<Resizer>)>> = Mutex::new(Vec::new());
    let height = ale.console().height();
    let mut resizers = RESIZERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, resizer)) = resizers.iter().find(|(known, _)| *known == height) {
        return Arc::clone(resizer);
    }
    let resizer = Arc::new(Resizer::new(ale.console()));
    resizers.push((height, Arc::clone(&resizer)));
    resizer
}
