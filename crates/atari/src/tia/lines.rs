//! A line of the picture as bits: which of its 160 pixels an object covers.

/// One bit per pixel, the leftmost pixel in bit 0 of the first word.
pub(crate) type Line = [u64; 3];

/// Pixels in a line.
pub(crate) const WIDTH: u32 = 160;

pub(crate) const EMPTY: Line = [0; 3];

/// The pixels from `from` up to, not including, `to`.
#[inline(always)]
pub(crate) fn span(from: u8, to: u8) -> Line {
    let (below, above) = (&BELOW[usize::from(to)], &BELOW[usize::from(from)]);
    [
        below[0] & !above[0],
        below[1] & !above[1],
        below[2] & !above[2],
    ]
}

/// All pixels left of one.
const BELOW: [Line; 256] = {
    let mut table = [EMPTY; 256];
    let mut pixel = 0;
    while pixel < 255 {
        table[pixel + 1] = table[pixel];
        if pixel < WIDTH as usize {
            table[pixel + 1][pixel / 64] |= 1 << (pixel % 64);
        }
        pixel += 1;
    }
    table
};

/// Adds a pattern of at most 64 pixels at `position`, around the edge of the line.
#[inline(always)]
pub(crate) fn place(line: &mut Line, pattern: u64, position: u32) {
    let position = if position >= WIDTH {
        position - WIDTH
    } else {
        position
    };
    let shift = position % 64;
    let low = pattern << shift;
    let high = (pattern >> 1) >> (63 - shift);
    match position / 64 {
        0 => {
            line[0] |= low;
            line[1] |= high;
        }
        1 => {
            line[1] |= low;
            line[2] |= high & 0xFFFF_FFFF;
            line[0] |= high >> 32;
        }
        _ => {
            line[2] |= low & 0xFFFF_FFFF;
            line[0] |= low >> 32 | high << 32;
        }
    }
}

/// The pixels of either line.
#[inline(always)]
pub(crate) fn both(first: &Line, second: &Line) -> Line {
    [
        first[0] | second[0],
        first[1] | second[1],
        first[2] | second[2],
    ]
}

/// The pixels of both lines at once.
#[inline(always)]
pub(crate) fn common(first: &Line, second: &Line) -> Line {
    [
        first[0] & second[0],
        first[1] & second[1],
        first[2] & second[2],
    ]
}

/// Gives the pixels of a line inside a span a colour, eight at a time.
#[inline(always)]
pub(crate) fn paint(pixels: &mut [u8; WIDTH as usize], line: &Line, span: &Line, colour: u8) {
    let colour = u64::from(colour) * 0x0101_0101_0101_0101;
    for word in 0..3 {
        let mut bits = line[word] & span[word];
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
    let bytes = line.iter().flat_map(|word| word.to_le_bytes());
    for (eight, bits) in eights.iter_mut().zip(bytes) {
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
    let [low, high] = quadruple(bits);
    let [right_low, right_high] = if reflect {
        quadruple(bits.reverse_bits() >> 12)
    } else {
        [low, high]
    };
    [
        low,
        high | right_low << 16,
        right_low >> 48 | right_high << 16,
    ]
}

/// Spreads 20 bits to four times their width: 64 pixels and 16 more.
#[inline(always)]
fn quadruple(bits: u32) -> [u64; 2] {
    let [first, second, third, _] = bits.to_le_bytes();
    let wide = |byte: u8| u64::from(WIDE[usize::from(byte)]);
    [wide(first) | wide(second) << 32, wide(third) & 0xFFFF]
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
