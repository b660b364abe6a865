//! The colours of a line: which object is in front of which.

use super::beam::Look;
use super::lines::{self, Line, WIDTH};
use super::objects::{BL, PF};

/// Paints the pixels `from..to` of a row: the background, then the objects from the hindmost to
/// the foremost, each palette index as `shades` says.
pub(crate) fn paint(
    pixels: &mut [u8; WIDTH as usize],
    from: u32,
    to: u32,
    look: &Look<'_>,
    shades: &[u8; 256],
) {
    let shade = |colour: u8| shades[usize::from(colour)];
    let [player0, player1, field, back] = look.colours.map(shade);
    pixels[from as usize..to as usize].fill(back);
    let live = look.live;
    if live != 0 {
        let span = lines::span(from, to);
        let object = |index: usize| -> Line {
            if live >> index & 1 != 0 {
                look.objects[index]
            } else {
                lines::EMPTY
            }
        };
        let mut paint = |line: &Line, colour: u8| lines::paint(pixels, line, &span, colour);
        let first = || lines::both(&object(0), &object(2));
        let second = || lines::both(&object(1), &object(3));
        let (firsts, seconds) = (live & 0b0101 != 0, live & 0b1010 != 0);
        if look.control & 4 != 0 {
            if seconds {
                paint(&second(), player1);
            }
            if firsts {
                paint(&first(), player0);
            }
            paint(&lines::both(&object(PF), &object(BL)), field);
        } else if look.control & 2 != 0 {
            // The two halves of the playfield belong to the players, in colour and in priority.
            let left = lines::common(&object(PF), &LEFT_HALF);
            let right = lines::common(&object(PF), &RIGHT_HALF);
            paint(&object(BL), field);
            paint(&lines::both(&second(), &right), player1);
            paint(&lines::both(&first(), &left), player0);
        } else {
            paint(&lines::both(&object(PF), &object(BL)), field);
            if seconds {
                paint(&second(), player1);
            }
            if firsts {
                paint(&first(), player0);
            }
        }
    }
    if look.comb && from < 8 {
        pixels[from as usize..(to as usize).min(8)].fill(shade(0));
    }
}

const LEFT_HALF: Line = [!0, 0xFFFF, 0];
const RIGHT_HALF: Line = [0, !0xFFFF, !0];
