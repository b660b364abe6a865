//! A line of the picture as bits: which of its 160 pixels an object covers.

use serde::{Deserialize, Serialize};

/// One bit per pixel, the leftmost pixel in bit 0.
///
/// In two integers rather than an array of words: those would be stored one by one and then loaded
/// several at once, for which the host's processor has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The first 128 pixels.
    left: u128,
    /// The last 32 pixels.
    right: u32,
}

/// Pixels in a line.
pub(crate) const WIDTH: u32 = 160;

pub(crate) const EMPTY: Line = Line { left: 0, right: 0 };
pub(crate) const LEFT_HALF: Line = Line {
    left: (1 << 80) - 1,
    right: 0,
};
pub(crate) const RIGHT_HALF: Line = Line {
    left: !((1 << 80) - 1),
    right: !0,
};

/// The pixels from `from` up to, not including, `to`.
#[inline(always)]
pub(crate) fn span(from: u8, to: u8) -> Line {
    let (below, above) = (&BELOW[usize::from(to)], &BELOW[usize::from(from)]);
    Line {
        left: below.left & !above.left,
        right: below.right & !above.right,
    }
}

/// All pixels left of one.
const BELOW: [Line; 256] = {
    let mut table = [EMPTY; 256];
    let mut pixel = 0;
    while pixel < 255 {
        table[pixel + 1] = table[pixel];
        if pixel < 128 {
            table[pixel + 1].left |= 1 << pixel;
        } else if pixel < WIDTH as usize {
            table[pixel + 1].right |= 1 << (pixel - 128);
        }
        pixel += 1;
    }
    table
};

/// A pattern of at most 64 pixels at `position`, around the edge of the line.
#[inline(always)]
pub(crate) fn place(pattern: u64, position: u32) -> Line {
    let position = if position >= WIDTH {
        position - WIDTH
    } else {
        position
    };
    let shift = position % 64;
    let low = u128::from(pattern << shift);
    let high = (pattern >> 1) >> (63 - shift);
    match position / 64 {
        0 => Line {
            left: low | u128::from(high) << 64,
            right: 0,
        },
        1 => Line {
            left: low << 64 | u128::from(high >> 32),
            right: high as u32,
        },
        _ => Line {
            left: low >> 32 | u128::from(high) << 32,
            right: low as u32,
        },
    }
}

/// The pixels of either line.
#[inline(always)]
pub(crate) fn both(first: &Line, second: &Line) -> Line {
    Line {
        left: first.left | second.left,
        right: first.right | second.right,
    }
}

/// The pixels of both lines at once.
#[inline(always)]
pub(crate) fn common(first: &Line, second: &Line) -> Line {
    Line {
        left: first.left & second.left,
        right: first.right & second.right,
    }
}

/// Whether three lines have a pixel in common.
#[inline(always)]
pub(crate) fn meet(first: &Line, second: &Line, third: &Line) -> bool {
    first.left & second.left & third.left != 0 || first.right & second.right & third.right != 0
}

/// Gives the pixels of a line inside a span a colour, eight at a time.
#[inline(always)]
pub(crate) fn paint(pixels: &mut [u8; WIDTH as usize], line: &Line, span: &Line, colour: u8) {
    let colour = u64::from(colour) * 0x0101_0101_0101_0101;
    let shown = common(line, span);
    let words = [
        shown.left as u64,
        (shown.left >> 64) as u64,
        u64::from(shown.right),
    ];
    for (word, mut bits) in words.into_iter().enumerate() {
        while bits != 0 {
            let byte = bits.trailing_zeros() / 8;
            let mask = EXPANDED[(bits >> (byte * 8)) as u8 as usize];
            bits &= !(0xFF << (byte * 8));
            let at = word * 64 + byte as usize * 8;
            if let Some(Ok(eight)) = pixels.get_mut(at..at + 8).map(<&mut [u8; 8]>::try_from) {
                let old = u64::from_le_bytes(*eight);
                *eight = ((old & !mask) | (colour & mask)).to_le_bytes();
            }
        }
    }
}

/// Gives all pixels one of two colours: the first where the line has them.
pub(crate) fn fill(pixels: &mut [u8; WIDTH as usize], line: &Line, colours: [u8; 2]) {
    let [front, back] = colours.map(|colour| u64::from(colour) * 0x0101_0101_0101_0101);
    let (eights, _) = pixels.as_chunks_mut::<8>();
    let (left, right) = (line.left.to_le_bytes(), line.right.to_le_bytes());
    for (eight, bits) in eights.iter_mut().zip(left.into_iter().chain(right)) {
        let mask = EXPANDED[usize::from(bits)];
        *eight = ((front & mask) | (back & !mask)).to_le_bytes();
    }
}

/// Eight bits as eight bytes of all ones or all zeros.
const EXPANDED: [u64; 256] = {
    let mut table = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut bit = 0;
        while bit < 8 {
            if bits >> bit & 1 != 0 {
                table[bits] |= 0xFF << (bit * 8);
            }
            bit += 1;
        }
        bits += 1;
    }
    table
};

/// The playfield's 20 bits, each four pixels wide, in both halves of the line.
pub(crate) fn playfield(bits: u32, reflect: bool) -> Line {
    let half = quadruple(bits);
    let other = if reflect {
        quadruple(bits.reverse_bits() >> 12)
    } else {
        half
    };
    Line {
        left: half | other << 80,
        right: (other >> 48) as u32,
    }
}

/// Spreads 20 bits to four times their width.
#[inline(always)]
fn quadruple(bits: u32) -> u128 {
    let [first, second, third, _] = bits.to_le_bytes();
    let wide = |byte: u8| u64::from(WIDE[usize::from(byte)]);
    let low = wide(first) | wide(second) << 32;
    u128::from(low) | u128::from(wide(third) & 0xFFFF) << 64
}

/// Eight bits at four times their width.
const WIDE: [u32; 256] = {
    let mut table = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut bit = 0;
        while bit < 8 {
            if bits >> bit & 1 != 0 {
                table[bits] |= 0xF << (bit * 4);
            }
            bit += 1;
        }
        bits += 1;
    }
    table
};
