//! What a learner sees: two frames' maximum, in grey, resized to a square.
//!
//! [`Resizer`] gives, byte for byte, what OpenCV's `INTER_AREA` gives from 160 columns and any
//! number of rows down to 84 by 84.

use crate::console::Console;
use crate::palette;
use crate::tia::lines::WIDTH;

/// The side of the square that learners see.
pub const SIDE: usize = 84;

const COLUMNS: usize = WIDTH as usize;

/// Buffers and weights for one height of picture.
#[derive(Clone, Debug)]
pub struct Resizer {
    height: usize,
    rows: Vec<Cell>,
    columns: Vec<Cell>,
    grays: [u8; 256],
    last: Vec<u8>,
    before: Vec<u8>,
}

/// What one pixel of the square takes from a line: whole weights, as fractions of a common sum.
#[derive(Clone, Debug)]
struct Cell {
    first: usize,
    /// One weight per source pixel; a fourth is never needed, for lines shrink less than threefold.
    weights: [u16; 4],
    /// The same weights as the reference's 32-bit fractions.
    fractions: [f32; 4],
}

impl Resizer {
    /// A resizer for the pictures of a console.
    pub fn new(console: &Console) -> Self {
        let height = console.height();
        Self {
            height,
            rows: cells(height),
            columns: cells(COLUMNS),
            grays: palette::grays(console.format()),
            last: vec![0; height * COLUMNS],
            before: vec![0; height * COLUMNS],
        }
    }

    /// Draws the last frame, or the maximum of the last two, into `square`, 84 by 84 pixels.
    pub fn observe(&mut self, console: &Console, pooled: bool, square: &mut [u8]) {
        console.shaded_screen(false, &self.grays, &mut self.last);
        if pooled {
            console.shaded_screen(true, &self.grays, &mut self.before);
            for (pixel, before) in self.last.iter_mut().zip(&self.before) {
                *pixel = (*pixel).max(*before);
            }
        }
        resize(&self.last, &self.rows, &self.columns, square);
    }

    /// Resizes a grey picture of this resizer's height.
    pub fn resize(&self, gray: &[u8], square: &mut [u8]) {
        debug_assert_eq!(gray.len(), self.height * COLUMNS);
        resize(gray, &self.rows, &self.columns, square);
    }
}

/// The cells of a line of `length` pixels: in units of 1/84 of a pixel every cell is `length`
/// wide and every pixel 84.
fn cells(length: usize) -> Vec<Cell> {
    let scale = length as f64 / SIDE as f64;
    let common = gcd(length, SIDE);
    (0..SIDE)
        .map(|cell| {
            let (start, end) = (cell * length, (cell + 1) * length);
            let first = start / SIDE;
            let mut weights = [0; 4];
            let mut fractions = [0.0; 4];
            for (offset, (weight, fraction)) in weights.iter_mut().zip(&mut fractions).enumerate() {
                let pixel = (first + offset) * SIDE;
                let overlap = end.min(pixel + SIDE).saturating_sub(start.max(pixel));
                *weight = (overlap / common) as u16;
                *fraction = fraction_of(cell, first + offset, scale);
            }
            Cell {
                first,
                weights,
                fractions,
            }
        })
        .collect()
}

/// The weight that the reference computes for a pixel in a cell, with its roundings.
fn fraction_of(cell: usize, pixel: usize, scale: f64) -> f32 {
    let start = cell as f64 * scale;
    let end = start + scale;
    let (whole_start, whole_end) = (start.ceil(), end.floor());
    let pixel = pixel as f64;
    if pixel < whole_start {
        if whole_start - start > 1e-3 {
            ((whole_start - start) / scale) as f32
        } else {
            0.0
        }
    } else if pixel < whole_end {
        (1.0 / scale) as f32
    } else if pixel == whole_end && end - whole_end > 1e-3 {
        ((end - whole_end).min(1.0).min(scale) / scale) as f32
    } else {
        0.0
    }
}

fn gcd(first: usize, second: usize) -> usize {
    if second == 0 {
        first
    } else {
        gcd(second, first % second)
    }
}

fn resize(gray: &[u8], rows: &[Cell], columns: &[Cell], square: &mut [u8]) {
    let total = |cells: &[Cell]| -> u32 {
        cells.first().map_or(1, |cell| {
            cell.weights.iter().map(|weight| u32::from(*weight)).sum()
        })
    };
    let sum = total(rows) * total(columns);
    // Division by the sum as a multiplication: exact below 2^40 / sum, which no weighed sum nears.
    let reciprocal = (1u64 << 40) / u64::from(sum) + 1;
    let half = sum / 2;
    let mut lines = [0u16; COLUMNS + 4];
    for (row, out) in rows.iter().zip(square.chunks_exact_mut(SIDE)) {
        lines.fill(0);
        for (offset, weight) in row.weights.iter().enumerate() {
            let start = (row.first + offset) * COLUMNS;
            if *weight == 0 {
                continue;
            }
            let Some(line) = gray.get(start..start + COLUMNS) else {
                continue;
            };
            for (slot, pixel) in lines.iter_mut().zip(line) {
                *slot += u16::from(*pixel) * weight;
            }
        }
        for (column, pixel) in columns.iter().zip(out) {
            // Columns shrink less than twofold: the fourth weight is always zero.
            let taps = &lines[column.first..column.first + 3];
            let [w0, w1, w2, _] = column.weights.map(u32::from);
            let weighed =
                u32::from(taps[0]) * w0 + u32::from(taps[1]) * w1 + u32::from(taps[2]) * w2;
            let rounded = ((u64::from(weighed + half) * reciprocal) >> 40) as u32;
            *pixel = rounded as u8;
            if rounded * sum == weighed + half && sum == 2 * half {
                *pixel = tie(gray, row, column);
            }
        }
    }
}

/// Halfway between two values the reference's rounding errors decide: this repeats its sums.
#[cold]
fn tie(gray: &[u8], row: &Cell, column: &Cell) -> u8 {
    let mut sum = 0.0f32;
    for (y, share) in row.fractions.iter().enumerate() {
        if *share == 0.0 {
            continue;
        }
        let mut line = 0.0f32;
        for (x, fraction) in column.fractions.iter().enumerate() {
            if *fraction == 0.0 {
                continue;
            }
            let index = (row.first + y) * COLUMNS + column.first + x;
            let pixel = gray.get(index).copied().unwrap_or(0);
            line += f32::from(pixel) * fraction;
        }
        sum += share * line;
    }
    sum.round_ties_even() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::crc32;

    /// A picture of noise: the top bytes of a linear congruential generator, masked.
    fn noise(height: usize, seed: u32, mask: u8) -> Vec<u8> {
        let mut state = seed;
        (0..height * COLUMNS)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8 & mask
            })
            .collect()
    }

    /// Height, seed, mask and the CRC-32 of what OpenCV 4's `INTER_AREA` makes of the picture. Few
    /// distinct values make many halves, where rounding errors decide.
    #[rustfmt::skip]
    const OPENCV: [(usize, u32, u8, u32); 15] = [
        (210, 1, 0xFF, 0xA3824CA6),
        (210, 2, 0xC0, 0x0B3CEFBA),
        (210, 3, 0x81, 0x2CD8E819),
        (214, 1, 0xFF, 0xA27AAD43),
        (214, 2, 0xC0, 0x8C6C5E5A),
        (214, 3, 0x81, 0x64741DA3),
        (220, 1, 0xFF, 0xB84AD027),
        (220, 2, 0xC0, 0x7578D60D),
        (220, 3, 0x81, 0xEC51EAB6),
        (230, 1, 0xFF, 0x7F2250E7),
        (230, 2, 0xC0, 0x2A7AB907),
        (230, 3, 0x81, 0xF71FAA7A),
        (250, 1, 0xFF, 0x3A64398D),
        (250, 2, 0xC0, 0x7BD79B55),
        (250, 3, 0x81, 0xDEDC4FFA),
    ];

    #[test]
    fn resizing_equals_opencv_byte_for_byte() {
        for (height, seed, mask, expected) in OPENCV {
            let mut square = [0; SIDE * SIDE];
            resize(
                &noise(height, seed, mask),
                &cells(height),
                &cells(COLUMNS),
                &mut square,
            );
            assert_eq!(crc32(&square), expected, "height {height}, mask {mask:#x}");
        }
    }
}
