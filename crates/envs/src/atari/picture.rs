//! From the console's frames to what an observation shows of them.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use starling_atari::ale::Ale;
use starling_atari::palette;
use starling_atari::picture::{Resizer, SIDE, pool};

use super::bilinear::Bilinear;
use super::options::{Observation, Resize};

const WIDTH: usize = 160;
const RAM: usize = 128;

/// One frame as an observation shows it, and the full-size picture that it was made from.
///
/// The full-size picture is kept, for at the end of a game the reference shows it once more.
pub(super) struct Picture {
    kind: Observation,
    height: usize,
    grays: [u8; 256],
    /// Red, green and blue of every palette index.
    colours: [[u8; 256]; 3],
    resizer: Arc<Resizer>,
    /// Where each frame is resized before it is pooled.
    bilinear: Option<Box<Bilinear>>,
    /// The pooled picture, plane by plane, or where frames are resized first the pooled square;
    /// empty for memory.
    pub(super) full: Vec<u8>,
}

thread_local! {
    /// The other frame of two that are pooled, and the first one or palette indices.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Which frames a picture is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frames {
    /// The last one.
    Last,
    /// The maximum of the last two.
    LastTwo,
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
        let bilinear = (kind == Observation::Gray84 && resize == Resize::Bilinear)
            .then(|| Box::new(Bilinear::new(WIDTH, height)));
        let planes = match kind {
            Observation::Gray84 | Observation::Gray => 1,
            Observation::Rgb => 3,
            Observation::Ram => 0,
        };
        Self {
            kind,
            height,
            grays: palette::grays(format),
            colours,
            resizer: resizer(ale),
            full: match bilinear {
                Some(_) => vec![0; SIDE * SIDE],
                None => vec![0; planes * height * WIDTH],
            },
            bilinear,
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

    /// Draws frames and writes what an observation shows of them. `out` holds what was written
    /// last.
    pub(super) fn draw(&mut self, ale: &Ale, frames: Frames, out: &mut [u8]) {
        let console = ale.console();
        let pixels = self.height * WIDTH;
        SCRATCH.with_borrow_mut(|(other, indices)| match self.kind {
            Observation::Ram => {}
            Observation::Gray84 if self.bilinear.is_none() => {
                indices.resize(pixels, 0);
                other.resize(pixels, 0);
                let changed = match frames {
                    Frames::Last => {
                        console.shaded_screen(false, &self.grays, indices);
                        pool(&mut self.full, indices, None)
                    }
                    Frames::LastTwo => {
                        console.shaded_screens(&self.grays, indices, other);
                        pool(&mut self.full, indices, Some(other))
                    }
                    Frames::ShownAndBefore => {
                        indices.copy_from_slice(&self.full);
                        console.shaded_screen(true, &self.grays, other);
                        pool(&mut self.full, indices, Some(other))
                    }
                };
                self.resizer.resize_rows(&self.full, &changed, out);
            }
            Observation::Gray84 | Observation::Gray => {
                let mut draw = |before: bool, out: &mut [u8]| match &self.bilinear {
                    Some(bilinear) => {
                        indices.resize(pixels, 0);
                        console.shaded_screen(before, &self.grays, indices);
                        bilinear.resize(indices, out);
                    }
                    None => console.shaded_screen(before, &self.grays, out),
                };
                if frames != Frames::ShownAndBefore {
                    draw(false, &mut self.full);
                }
                if frames != Frames::Last {
                    other.resize(self.full.len(), 0);
                    draw(true, other);
                    brighten(&mut self.full, other);
                }
            }
            Observation::Rgb => {
                let plain: [u8; 256] = std::array::from_fn(|index| index as u8);
                indices.resize(pixels, 0);
                for before in [false, true] {
                    let wanted = match frames {
                        Frames::Last => !before,
                        Frames::LastTwo => true,
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
        if self.kind != Observation::Gray84 || self.bilinear.is_some() {
            self.show(ale, out);
        }
    }

    /// Writes what an observation shows of the picture that was drawn last.
    pub(super) fn show(&self, ale: &Ale, out: &mut [u8]) {
        match self.kind {
            Observation::Gray84 if self.bilinear.is_none() => {
                self.resizer.resize(&self.full, out);
            }
            Observation::Gray84 => out.copy_from_slice(&self.full),
            Observation::Gray | Observation::Rgb => out.copy_from_slice(&self.full),
            Observation::Ram => out.copy_from_slice(ale.ram()),
        }
    }
}

/// The shape of a stack of frames of a picture with so many rows.
pub(super) fn shape(kind: Observation, stack: usize, height: usize) -> Vec<usize> {
    match kind {
        Observation::Gray84 => vec![stack, SIDE, SIDE],
        Observation::Gray => vec![stack, height, WIDTH],
        Observation::Rgb => vec![3 * stack, height, WIDTH],
        Observation::Ram => vec![stack, RAM],
    }
}

fn brighten(picture: &mut [u8], other: &[u8]) {
    for (pixel, other) in picture.iter_mut().zip(other) {
        *pixel = (*pixel).max(*other);
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
