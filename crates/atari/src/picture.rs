//! Observations: the maximum of two frames, in grey, resized to a square.
//!
//! [`Resizer`] equals, byte for byte, OpenCV's `INTER_AREA` from 160 columns and any number of rows
//! to 84 × 84.

use crate::console::Console;
use crate::tia::lines::WIDTH;

/// The side of the square that learners see.
pub const SIDE: usize = 84;

const COLUMNS: usize = WIDTH as usize;

/// The weights for one height of picture: the same for all consoles whose pictures have it.
#[derive(Clone, Debug)]
pub struct Resizer {
    height: usize,
    rows: Vec<Cell>,
    columns: Vec<Cell>,
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
        Self::of_height(console.height())
    }

    /// A resizer for pictures with this many rows.
    fn of_height(height: usize) -> Self {
        Self {
            height,
            rows: cells(height),
            columns: cells(COLUMNS),
        }
    }

    /// Resizes a grey picture of this resizer's height into 84 by 84 pixels.
    pub fn resize(&self, gray: &[u8], square: &mut [u8]) {
        self.resize_rows(gray, &Rows::ALL, square);
    }

    /// Resizes a grey picture of which only some rows have changed since `square` was made from
    /// it.
    pub fn resize_rows(&self, gray: &[u8], changed: &Rows, square: &mut [u8]) {
        debug_assert_eq!(gray.len(), self.height * COLUMNS);
        let row_sum = self.rows.first().map_or(1, Cell::sum);
        let sum = row_sum * u32::from(CELL);
        let scale = Scale::new(sum);
        let narrow = sum == u32::from(NARROW_SUM);
        let mut line = [0u16; COLUMNS + 2];
        for (row, out) in self.rows.iter().zip(square.as_chunks_mut::<SIDE>().0) {
            if !changed.any(row.first, row.taps()) {
                continue;
            }
            row.weigh(gray, &mut line);
            let ties = if narrow {
                shrink_narrow(&line, out)
            } else {
                shrink(&line, &scale, out)
            };
            if ties {
                self.break_ties(gray, row, &line, &scale, out);
            }
        }
    }

    /// Halfway between two values the reference's rounding errors decide.
    #[cold]
    fn break_ties(
        &self,
        gray: &[u8],
        row: &Cell,
        line: &[u16; COLUMNS + 2],
        scale: &Scale,
        out: &mut [u8; SIDE],
    ) {
        for (index, (column, pixel)) in self.columns.iter().zip(out).enumerate() {
            let (group, phase) = (index / PHASES.len(), index % PHASES.len());
            let (first, weights) = PHASES[phase];
            let taps = &line[group * GROUP + first..][..3];
            let weighed = weigh_taps(taps, weights);
            if scale.divide(weighed).1 {
                *pixel = tie(gray, row, column);
            }
        }
    }
}

/// A set of a picture's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows([u64; 5]);

impl Rows {
    /// No row.
    pub const NONE: Self = Self([0; 5]);
    /// All rows.
    pub const ALL: Self = Self([!0; 5]);

    fn insert(&mut self, row: usize) {
        if let Some(word) = self.0.get_mut(row / 64) {
            *word |= 1 << (row % 64);
        }
    }

    /// Whether any of `count` rows from `first` on is in the set; at most 64 are looked at.
    fn any(&self, first: usize, count: usize) -> bool {
        let word = |index: usize| u128::from(self.0.get(index).copied().unwrap_or(0));
        let both = word(first / 64) | word(first / 64 + 1) << 64;
        both >> (first % 64) & ((1 << count) - 1) != 0
    }
}

/// Makes `picture` the maximum of one or two frames, and says which of its rows have changed.
pub fn pool(picture: &mut [u8], frame: &[u8], other: Option<&[u8]>) -> Rows {
    let mut changed = Rows::NONE;
    let (rows, _) = picture.as_chunks_mut::<COLUMNS>();
    let (frame, _) = frame.as_chunks::<COLUMNS>();
    let others = other.map(|other| other.as_chunks::<COLUMNS>().0);
    for (index, (row, new)) in rows.iter_mut().zip(frame).enumerate() {
        let other = others.and_then(|others| others.get(index)).unwrap_or(new);
        let mut differs = 0;
        for ((pixel, new), other) in row.iter_mut().zip(new).zip(other) {
            let new = (*new).max(*other);
            differs |= *pixel ^ new;
            *pixel = new;
        }
        if differs != 0 {
            changed.insert(index);
        }
    }
    changed
}

impl Cell {
    fn sum(&self) -> u32 {
        self.weights.iter().map(|weight| u32::from(*weight)).sum()
    }

    /// How many pixels it takes from.
    fn taps(&self) -> usize {
        self.weights.iter().filter(|weight| **weight != 0).count()
    }

    /// The weighed sum of the rows that it takes.
    #[inline(always)]
    fn weigh(&self, gray: &[u8], line: &mut [u16; COLUMNS + 2]) {
        let (rows, _) = gray.as_chunks::<COLUMNS>();
        let row = |offset: usize| rows.get(self.first + offset).unwrap_or(&NO_ROW);
        let [w0, w1, w2, w3] = self.weights;
        let (r0, r1, r2) = (row(0), row(1), row(2));
        for (slot, ((p0, p1), p2)) in line.iter_mut().zip(r0.iter().zip(r1).zip(r2)) {
            *slot = u16::from(*p0) * w0 + u16::from(*p1) * w1 + u16::from(*p2) * w2;
        }
        if w3 != 0 {
            for (slot, pixel) in line.iter_mut().zip(row(3)) {
                *slot += u16::from(*pixel) * w3;
            }
        }
    }
}

const NO_ROW: [u8; COLUMNS] = [0; COLUMNS];

/// Columns repeat after this many pixels, which become 21 of the square.
const GROUP: usize = 40;
/// What one pixel of the square takes from its columns altogether.
const CELL: u16 = 40;
/// Where the pixels of the square that come of one group start in it, and what they take: a pixel
/// counts 21, a pixel of the square 40.
const PHASES: [(usize, [u16; 3]); 21] = {
    let mut phases = [(0, [0; 3]); 21];
    let mut phase = 0;
    while phase < 21 {
        let start = phase * GROUP;
        let first = start / 21;
        let head = (first + 1) * 21 - start;
        let second = if GROUP - head < 21 { GROUP - head } else { 21 };
        let third = GROUP - head - second;
        phases[phase] = (first, [head as u16, second as u16, third as u16]);
        phase += 1;
    }
    phases
};

/// Division by a sum of weights, rounded to the nearest.
struct Scale {
    half: u32,
    /// The sum's reciprocal, times 2^40 and rounded up: exact below 2^40 / sum, which no weighed
    /// sum nears.
    reciprocal: u64,
    /// Whether halves can come out at all.
    even: bool,
}

impl Scale {
    fn new(sum: u32) -> Self {
        Self {
            half: sum / 2,
            reciprocal: (1u64 << 40) / u64::from(sum) + 1,
            even: sum.is_multiple_of(2),
        }
    }

    /// The rounded quotient, and whether it was halfway between two.
    #[inline(always)]
    fn divide(&self, weighed: u32) -> (u8, bool) {
        let product = u64::from(weighed + self.half) * self.reciprocal;
        let quotient = (product >> 40) as u8;
        // The fraction of a whole quotient is only what the reciprocal was rounded up by.
        let whole = product & ((1 << 40) - 1) < self.reciprocal;
        (quotient, whole && self.even)
    }
}

#[inline(always)]
fn weigh_taps(taps: &[u16], weights: [u16; 3]) -> u32 {
    taps.iter()
        .zip(weights)
        .map(|(tap, weight)| u32::from(*tap) * u32::from(weight))
        .sum()
}

/// Shrinks a line of 160 weighed sums to 84 pixels. Says whether any was halfway between two.
fn shrink(line: &[u16; COLUMNS + 2], scale: &Scale, out: &mut [u8; SIDE]) -> bool {
    let mut ties = false;
    for (group, pixels) in out.as_chunks_mut::<21>().0.iter_mut().enumerate() {
        let Some((taps, _)) = line[group * GROUP..].split_first_chunk::<{ GROUP + 2 }>() else {
            continue;
        };
        for (pixel, (first, weights)) in pixels.iter_mut().zip(PHASES) {
            let (quotient, tie) = scale.divide(weigh_taps(&taps[first..first + 3], weights));
            *pixel = quotient;
            ties |= tie;
        }
    }
    ties
}

/// What all weights of a pixel of the square come to where the picture has 210 rows, as nearly all
/// have: no weighed sum needs more than 16 bits then.
const NARROW_SUM: u16 = 200;

/// The same for pictures of 210 rows, where many pixels can be divided at once.
fn shrink_narrow(line: &[u16; COLUMNS + 2], out: &mut [u8; SIDE]) -> bool {
    let mut sums = [0; SIDE];
    for (group, sums) in sums.as_chunks_mut::<21>().0.iter_mut().enumerate() {
        let Some((taps, _)) = line[group * GROUP..].split_first_chunk::<{ GROUP + 2 }>() else {
            continue;
        };
        for (sum, (first, weights)) in sums.iter_mut().zip(PHASES) {
            let weighed = |tap: usize| taps[first + tap].wrapping_mul(weights[tap]);
            *sum = weighed(0).wrapping_add(weighed(1)).wrapping_add(weighed(2));
        }
    }
    let mut ties = false;
    for (pixel, sum) in out.iter_mut().zip(sums) {
        let (quotient, tie) = divide_narrow(sum);
        *pixel = quotient;
        ties |= tie;
    }
    ties
}

/// A weighed sum of at most 255 times [`NARROW_SUM`], divided by it and rounded; and whether it was
/// halfway between two.
#[inline(always)]
fn divide_narrow(weighed: u16) -> (u8, bool) {
    /// The reciprocal of an eighth of the sum, times 2^20.
    const RECIPROCAL: u32 = (1 << 20) / (NARROW_SUM as u32 / 8) + 1;
    let weighed = weighed.wrapping_add(NARROW_SUM / 2);
    let quotient = ((u32::from(weighed >> 3) * RECIPROCAL) >> 16) as u16 >> 4;
    (quotient as u8, quotient.wrapping_mul(NARROW_SUM) == weighed)
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
    fn columns_have_the_phases_of_the_cells() {
        for (index, cell) in cells(COLUMNS).iter().enumerate() {
            let (first, weights) = PHASES[index % 21];
            assert_eq!(cell.first, index / 21 * GROUP + first);
            assert_eq!(cell.weights[..3], weights);
        }
    }

    #[test]
    fn a_narrow_division_is_a_division() {
        let scale = Scale::new(u32::from(NARROW_SUM));
        for weighed in 0..=255 * NARROW_SUM {
            assert_eq!(divide_narrow(weighed), scale.divide(u32::from(weighed)));
        }
    }

    #[test]
    fn resizing_the_rows_that_changed_is_resizing_all() {
        for height in [210, 250] {
            let resizer = Resizer::of_height(height);
            let mut picture = noise(height, 1, 0xFF);
            let mut square = [0; SIDE * SIDE];
            resizer.resize(&picture, &mut square);
            for row in [0, 1, 4, 63, 64, 65, 127, 128, height - 1] {
                let mut next = picture.clone();
                next[row * COLUMNS + row % COLUMNS] ^= 0x80;
                let changed = pool(&mut picture, &next, None);
                assert_eq!(picture, next);
                resizer.resize_rows(&picture, &changed, &mut square);
                let mut whole = [0; SIDE * SIDE];
                resizer.resize(&picture, &mut whole);
                assert!(square == whole, "row {row} of {height}");
            }
        }
    }

    #[test]
    fn resizing_equals_opencv_byte_for_byte() {
        for (height, seed, mask, expected) in OPENCV {
            let mut square = [0; SIDE * SIDE];
            Resizer::of_height(height).resize(&noise(height, seed, mask), &mut square);
            assert_eq!(crc32(&square), expected, "height {height}, mask {mask:#x}");
        }
    }
}
