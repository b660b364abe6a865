//! The colours of a line, the priority of objects, and the picture that is drawn to.

use super::beam::{Look, Screen};
use super::lines::{self, Line, WIDTH};
use super::objects::{BL, PF};

/// A picture while it is drawn, each palette index as `shades` says; collisions are looked for on
/// the way, or not.
#[derive(Debug)]
pub(crate) struct Pixels<'a, const COLLIDES: bool> {
    pixels: &'a mut [u8],
    shades: &'a [u8; 256],
    ground: Ground,
}

impl<'a, const COLLIDES: bool> Pixels<'a, COLLIDES> {
    pub(crate) fn new(shades: &'a [u8; 256], pixels: &'a mut [u8]) -> Self {
        Self {
            pixels,
            shades,
            ground: Ground::new(),
        }
    }

    /// The whole picture.
    pub(crate) fn rows(&mut self) -> &mut [u8] {
        self.pixels
    }
}

impl<const COLLIDES: bool> Screen for Pixels<'_, COLLIDES> {
    const DRAWS: bool = true;
    const COLLIDES: bool = COLLIDES;

    #[inline(always)]
    fn draw(&mut self, row: u32, from: u32, to: u32, look: Option<Look<'_>>) {
        let start = row as usize * WIDTH as usize;
        let Some(end) = start.checked_add(WIDTH as usize) else {
            return;
        };
        let Some((above, pixels)) = self
            .pixels
            .get_mut(..end)
            .and_then(|rows| rows.split_last_chunk_mut::<{ WIDTH as usize }>())
        else {
            return;
        };
        let Some(look) = look else {
            pixels[from as usize..to as usize].fill(self.shades[0]);
            return;
        };
        if look.same
            && from == 0
            && to == WIDTH
            && let Some(above) = above.last_chunk()
        {
            *pixels = *above;
            return;
        }
        paint(pixels, (from, to), &look, self.shades, &mut self.ground);
    }
}

/// A row of nothing but background, playfield and ball: rows often share it.
#[derive(Clone, Debug)]
struct Ground {
    line: Line,
    colours: [u8; 2],
    pixels: Row,
}

/// The pixels of a row.
type Row = [u8; WIDTH as usize];

impl Ground {
    /// A row of one colour.
    fn new() -> Self {
        Self {
            line: lines::EMPTY,
            colours: [0; 2],
            pixels: [0; WIDTH as usize],
        }
    }

    /// The row with the pixels of `line` in the first colour and all others in the second.
    #[inline(always)]
    fn of(&mut self, line: &Line, colours: [u8; 2]) -> &Row {
        if self.line != *line || self.colours != colours {
            self.line = *line;
            self.colours = colours;
            lines::fill(&mut self.pixels, line, colours);
        }
        &self.pixels
    }
}

/// Paints the pixels `from..to` of a row: the background, then the objects from the hindmost to
/// the foremost, each palette index as `shades` says.
#[inline(always)]
fn paint(
    pixels: &mut Row,
    (from, to): (u32, u32),
    look: &Look<'_>,
    shades: &[u8; 256],
    ground: &mut Ground,
) {
    let shade = |colour: u8| shades[usize::from(colour)];
    let [player0, player1, field, back] = look.colours.map(shade);
    let live = look.live;
    let object = |index: usize| -> Line {
        if live >> index & 1 != 0 {
            look.objects[index]
        } else {
            lines::EMPTY
        }
    };
    let fixed = lines::both(&object(PF), &object(BL));
    let whole = from == 0 && to == WIDTH;
    let span = lines::span(from as u8, to as u8);
    let first = || lines::both(&object(0), &object(2));
    let second = || lines::both(&object(1), &object(3));
    let (firsts, seconds) = (live & 0b0101 != 0, live & 0b1010 != 0);
    if look.control & 6 == 0 || !(firsts || seconds || look.control & 4 == 0) {
        if whole {
            *pixels = *ground.of(&fixed, [field, back]);
        } else {
            pixels[from as usize..to as usize].fill(back);
            lines::paint(pixels, &fixed, &span, field);
        }
        if seconds {
            lines::paint(pixels, &second(), &span, player1);
        }
        if firsts {
            lines::paint(pixels, &first(), &span, player0);
        }
    } else {
        pixels[from as usize..to as usize].fill(back);
        if look.control & 4 != 0 {
            lines::paint(pixels, &second(), &span, player1);
            lines::paint(pixels, &first(), &span, player0);
            lines::paint(pixels, &fixed, &span, field);
        } else {
            // The two halves of the playfield belong to the players, in colour and in priority.
            let left = lines::common(&object(PF), &lines::LEFT_HALF);
            let right = lines::common(&object(PF), &lines::RIGHT_HALF);
            lines::paint(pixels, &object(BL), &span, field);
            lines::paint(pixels, &lines::both(&second(), &right), &span, player1);
            lines::paint(pixels, &lines::both(&first(), &left), &span, player0);
        }
    }
    if look.comb && from < 8 {
        pixels[from as usize..(to as usize).min(8)].fill(shade(0));
    }
}
