//! Shrinking a picture to 84×84 as OpenCV's `INTER_LINEAR` does, byte for byte: between the two
//! nearest pixels in each direction, with weights of 11 bits.

use starling_atari::picture::SIDE;

/// The weights for one size of picture.
#[derive(Debug)]
pub(super) struct Bilinear {
    width: usize,
    rows: Vec<Tap>,
    columns: Vec<Tap>,
}

/// The two pixels that one pixel of the square lies between, and their weights.
#[derive(Clone, Copy, Debug)]
struct Tap {
    places: [usize; 2],
    weights: [i32; 2],
}

/// What weights add up to.
const WHOLE: f32 = 2048.0;

impl Bilinear {
    pub(super) fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            rows: taps(height),
            columns: taps(width),
        }
    }

    /// Writes the square.
    pub(super) fn resize(&self, gray: &[u8], square: &mut [u8]) {
        let across = |row: usize, column: &Tap| -> i32 {
            let line = &gray[row * self.width..(row + 1) * self.width];
            let [first, second] = column.places.map(|place| i32::from(line[place]));
            first * column.weights[0] + second * column.weights[1]
        };
        for (row, out) in self.rows.iter().zip(square.chunks_exact_mut(SIDE)) {
            for (column, pixel) in self.columns.iter().zip(out) {
                // The reference drops low bits on the way, so that sums fit its registers.
                let part =
                    |end: usize| (row.weights[end] * (across(row.places[end], column) >> 4)) >> 16;
                *pixel = ((part(0) + part(1) + 2) >> 2) as u8;
            }
        }
    }
}

fn taps(length: usize) -> Vec<Tap> {
    let scale = length as f64 / SIDE as f64;
    let last = length - 1;
    (0..SIDE)
        .map(|cell| {
            let place = ((cell as f64 + 0.5) * scale - 0.5) as f32;
            let first = place.floor().max(0.0);
            let share = if place < 0.0 { 0.0 } else { place - first };
            let first = (first as usize).min(last);
            let weight = |share: f32| (share * WHOLE).round_ties_even() as i32;
            Tap {
                places: [first, (first + 1).min(last)],
                weights: [weight(1.0 - share), weight(share)],
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of pixels and of pixels times their places, from
    /// `cv2.resize(image, (84, 84), interpolation=cv2.INTER_LINEAR)` of OpenCV 4, where pixel i of
    /// the image is `(i * i * 31 + i * 7 >> 4) & 255`.
    #[test]
    fn it_equals_opencv() {
        for (height, sum, weighed) in REFERENCE {
            let image: Vec<u8> = (0..height as u64 * 160)
                .map(|i| (((i * i * 31 + i * 7) >> 4) & 255) as u8)
                .collect();
            let mut square = vec![0; SIDE * SIDE];
            Bilinear::new(160, height).resize(&image, &mut square);
            let found: u64 = square.iter().map(|pixel| u64::from(*pixel)).sum();
            let places = square.iter().zip(1u64..);
            let found_weighed: u64 = places.map(|(pixel, i)| u64::from(*pixel) * i).sum();
            assert_eq!((found, found_weighed), (sum, weighed), "{height} rows");
        }
    }

    const REFERENCE: [(usize, u64, u64); 3] = [
        (210, 898585, 3169544258),
        (250, 894305, 3141697693),
        (214, 899564, 3174362314),
    ];
}
