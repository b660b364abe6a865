//! Resizes a picture as OpenCV's `INTER_LINEAR` does, byte for byte: between the two nearest pixels
//! in each direction, with weights of 11 bits. [`Aligned`] is PyTorch's way, which keeps the
//! corners.

/// The weights from one size of picture to another.
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
    /// From a picture of some width and height to one of another.
    pub(super) fn new(
        (width, height): (usize, usize),
        (to_width, to_height): (usize, usize),
    ) -> Self {
        Self {
            width,
            rows: taps(height, to_height),
            columns: taps(width, to_width),
        }
    }

    /// Writes the smaller picture.
    pub(super) fn resize(&self, gray: &[u8], small: &mut [u8]) {
        let across = |row: usize, column: &Tap| -> i32 {
            let line = &gray[row * self.width..(row + 1) * self.width];
            let [first, second] = column.places.map(|place| i32::from(line[place]));
            first * column.weights[0] + second * column.weights[1]
        };
        let width = self.columns.len();
        for (row, out) in self.rows.iter().zip(small.chunks_exact_mut(width)) {
            for (column, pixel) in self.columns.iter().zip(out) {
                // The reference drops low bits on the way, so that sums fit its registers.
                let part =
                    |end: usize| (row.weights[end] * (across(row.places[end], column) >> 4)) >> 16;
                *pixel = ((part(0) + part(1) + 2) >> 2) as u8;
            }
        }
    }
}

fn taps(length: usize, to: usize) -> Vec<Tap> {
    let scale = length as f64 / to as f64;
    let last = length - 1;
    (0..to)
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

/// The weights of PyTorch's `interpolate(mode="bilinear", align_corners=True)`, and rela's grey.
#[derive(Debug)]
pub(super) struct Aligned {
    width: usize,
    rows: Vec<(usize, usize, f32)>,
    columns: Vec<(usize, usize, f32)>,
}

/// What red, green and blue weigh in rela's grey.
const RELA_GRAY: [f32; 3] = [0.21, 0.72, 0.07];

impl Aligned {
    /// From a picture of some width and height to a square.
    pub(super) fn new((width, height): (usize, usize), side: usize) -> Self {
        let taps = |length: usize| {
            let scale = (length - 1) as f32 / (side - 1) as f32;
            let tap = |cell: usize| {
                let place = scale * cell as f32;
                let first = (place as usize).min(length - 1);
                (first, (first + 1).min(length - 1), place - first as f32)
            };
            (0..side).map(tap).collect()
        };
        Self {
            width,
            rows: taps(height),
            columns: taps(width),
        }
    }

    /// Writes the square in grey, from planes of red, green and blue.
    pub(super) fn resize(&self, planes: &[u8], square: &mut [u8]) {
        let side = self.columns.len();
        let length = planes.len() / 3;
        for ((upper, lower, down), out) in self.rows.iter().zip(square.chunks_exact_mut(side)) {
            for ((left, right, across), pixel) in self.columns.iter().zip(out) {
                let mut gray = 0.0;
                for (plane, weight) in planes.chunks_exact(length).zip(RELA_GRAY) {
                    let at = |row: usize, column: usize| {
                        f32::from(plane[row * self.width + column]) / 255.0
                    };
                    let line =
                        |row: usize| (1.0 - across) * at(row, *left) + across * at(row, *right);
                    gray += weight * ((1.0 - down) * line(*upper) + down * line(*lower));
                }
                *pixel = (gray * 255.0) as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_atari::picture::SIDE;

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
            Bilinear::new((160, height), (SIDE, SIDE)).resize(&image, &mut square);
            let found: u64 = square.iter().map(|pixel| u64::from(*pixel)).sum();
            let places = square.iter().zip(1u64..);
            let found_weighed: u64 = places.map(|(pixel, i)| u64::from(*pixel) * i).sum();
            assert_eq!((found, found_weighed), (sum, weighed), "{height} rows");
        }
    }

    /// As above, to a width of 80 and a height of 104.
    #[test]
    fn half_the_size_equals_opencv() {
        for (height, sum, weighed) in HALVED {
            let image: Vec<u8> = (0..height as u64 * 160)
                .map(|i| (((i * i * 31 + i * 7) >> 4) & 255) as u8)
                .collect();
            let mut small = vec![0; 80 * 104];
            Bilinear::new((160, height), (80, 104)).resize(&image, &mut small);
            let found: u64 = small.iter().map(|pixel| u64::from(*pixel)).sum();
            let places = small.iter().zip(1u64..);
            let found_weighed: u64 = places.map(|(pixel, i)| u64::from(*pixel) * i).sum();
            assert_eq!((found, found_weighed), (sum, weighed), "{height} rows");
        }
    }

    #[test]
    fn corners_are_kept_and_colours_weighed() {
        let mut planes = vec![0; 3 * 210 * 160];
        for (plane, value) in [200, 100, 50].into_iter().enumerate() {
            planes[plane * 210 * 160..][..160].fill(value);
        }
        // The last column of the first row.
        planes[159] = 0;
        let mut square = vec![9; SIDE * SIDE];
        Aligned::new((160, 210), SIDE).resize(&planes, &mut square);
        let gray = 0.21 * 200.0 + 0.72 * 100.0 + 0.07 * 50.0;
        assert_eq!(square[0], gray as u8);
        assert_eq!(square[SIDE - 1], (gray - 0.21 * 200.0) as u8);
        // The second row of the square lies 2.5 rows below: there is nothing there.
        assert!(square[SIDE..].iter().all(|pixel| *pixel == 0));
    }

    const HALVED: [(usize, u64, u64); 3] = [
        (208, 1062048, 4414552816),
        (248, 1062215, 4419470112),
        (212, 1064562, 4431709199),
    ];

    const REFERENCE: [(usize, u64, u64); 3] = [
        (210, 898585, 3169544258),
        (250, 894305, 3141697693),
        (214, 899564, 3174362314),
    ];
}
