//! A small rasteriser: filled shapes with smooth edges.

use super::{Colour, Picture};

/// A place on a canvas, in pixels from the top left corner: right, then down.
pub type Point = [f64; 2];

/// Lines per row of pixels along which the cover of a shape is measured.
const LINES: usize = 8;

/// A picture that is being drawn. Later shapes cover earlier ones.
#[derive(Clone, Debug)]
pub struct Canvas {
    picture: Picture,
    /// How much of each pixel of a row a shape covers.
    cover: Vec<f32>,
    /// Where a line crosses the edges of a shape.
    crossings: Vec<f64>,
}

impl Canvas {
    /// A canvas of one colour.
    pub fn new(width: usize, height: usize, colour: Colour) -> Self {
        Self {
            picture: Picture {
                width,
                height,
                rgb: colour.repeat(width * height),
            },
            cover: vec![0.0; width],
            crossings: Vec::new(),
        }
    }

    /// Fills a polygon. Where it overlaps itself an even number of times, it is empty.
    pub fn polygon(&mut self, points: &[Point], colour: Colour) {
        let (width, height) = (self.picture.width, self.picture.height);
        let rows = points.iter().map(|point| point[1]);
        let top = rows.clone().fold(f64::INFINITY, f64::min).floor();
        let bottom = rows.fold(f64::NEG_INFINITY, f64::max).ceil();
        if !(top.is_finite() && bottom.is_finite()) {
            return;
        }
        let first = top.clamp(0.0, height as f64) as usize;
        let last = bottom.clamp(0.0, height as f64) as usize;
        for row in first..last {
            self.cover.fill(0.0);
            for line in 0..LINES {
                let y = row as f64 + (line as f64 + 0.5) / LINES as f64;
                self.cross(points, y);
                for span in self.crossings.chunks_exact(2) {
                    add_span(&mut self.cover, span[0], span[1]);
                }
            }
            let pixels = &mut self.picture.rgb[3 * row * width..3 * (row + 1) * width];
            for (pixel, cover) in pixels.chunks_exact_mut(3).zip(&self.cover) {
                if *cover > 0.0 {
                    blend(pixel, colour, (cover / LINES as f32).min(1.0));
                }
            }
        }
    }

    /// Fills an upright rectangle, given its top left corner.
    pub fn rectangle(&mut self, corner: Point, width: f64, height: f64, colour: Colour) {
        let [x, y] = corner;
        let (right, bottom) = (x + width, y + height);
        self.polygon(&[[x, y], [right, y], [right, bottom], [x, bottom]], colour);
    }

    /// Fills a circle.
    pub fn circle(&mut self, centre: Point, radius: f64, colour: Colour) {
        let corner = |i: usize| {
            let angle = std::f64::consts::TAU * i as f64 / 64.0;
            [
                centre[0] + radius * angle.cos(),
                centre[1] + radius * angle.sin(),
            ]
        };
        self.polygon(&std::array::from_fn::<Point, 64, _>(corner), colour);
    }

    /// Draws a line with round ends.
    pub fn line(&mut self, from: Point, to: Point, width: f64, colour: Colour) {
        let (dx, dy) = (to[0] - from[0], to[1] - from[1]);
        let heading = dy.atan2(dx);
        // Half a circle around each end, one after the other.
        let corner = |i: usize| {
            let (end, turn) = if i < 33 { (to, i) } else { (from, i - 1) };
            let quarter = std::f64::consts::FRAC_PI_2;
            let angle = heading - quarter + std::f64::consts::PI * turn as f64 / 32.0;
            [
                end[0] + width / 2.0 * angle.cos(),
                end[1] + width / 2.0 * angle.sin(),
            ]
        };
        self.polygon(&std::array::from_fn::<Point, 66, _>(corner), colour);
    }

    /// The finished picture.
    pub fn finish(self) -> Picture {
        self.picture
    }

    /// Where the edges of a polygon cross a line of constant `y`, from left to right.
    fn cross(&mut self, points: &[Point], y: f64) {
        self.crossings.clear();
        let ends = points.iter().skip(1).chain(points.first());
        for (from, to) in points.iter().zip(ends) {
            if (from[1] <= y) != (to[1] <= y) {
                let share = (y - from[1]) / (to[1] - from[1]);
                self.crossings.push(from[0] + share * (to[0] - from[0]));
            }
        }
        self.crossings.sort_by(f64::total_cmp);
    }
}

/// Adds the stretch between two places to the cover of a row of pixels.
fn add_span(cover: &mut [f32], from: f64, to: f64) {
    let end = cover.len() as f64;
    let (from, to) = (from.clamp(0.0, end), to.clamp(0.0, end));
    let (first, last) = (from.floor() as usize, to.ceil() as usize);
    for (x, cover) in cover.iter_mut().enumerate().take(last).skip(first) {
        let left = from.max(x as f64);
        let right = to.min(x as f64 + 1.0);
        *cover += (right - left).max(0.0) as f32;
    }
}

fn blend(pixel: &mut [u8], colour: Colour, share: f32) {
    for (value, target) in pixel.iter_mut().zip(colour) {
        let (old, new) = (f32::from(*value), f32::from(target));
        *value = (old + share * (new - old)).round() as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHITE: Colour = [255; 3];
    const BLACK: Colour = [0; 3];

    /// How many pixels are black, in all.
    fn area(picture: &Picture) -> f64 {
        let pixels = picture.rgb.chunks_exact(3);
        pixels.map(|pixel| 1.0 - f64::from(pixel[0]) / 255.0).sum()
    }

    #[test]
    fn an_edge_covers_its_share_of_a_pixel() {
        let mut canvas = Canvas::new(10, 10, WHITE);
        canvas.rectangle([2.5, 3.0], 3.0, 4.25, BLACK);
        let picture = canvas.finish();
        assert_eq!(picture.pixel(3, 4), BLACK);
        assert_eq!(picture.pixel(2, 4), [128; 3]);
        assert_eq!(picture.pixel(5, 4), [128; 3]);
        assert_eq!(picture.pixel(3, 7), [191; 3]);
        assert_eq!(picture.pixel(6, 4), WHITE);
        assert_eq!(picture.pixel(3, 2), WHITE);
    }

    #[test]
    fn shapes_have_the_right_area() {
        let pi = std::f64::consts::PI;
        let shapes: [fn(&mut Canvas); 3] = [
            |canvas| canvas.circle([50.2, 50.7], 30.0, BLACK),
            |canvas| canvas.line([20.0, 30.0], [60.0, 60.0], 8.0, BLACK),
            |canvas| canvas.polygon(&[[-20.0, 10.0], [20.0, 10.0], [20.0, 60.0]], BLACK),
        ];
        // The line is 50 long and 8 wide, with half a circle at each end. Three quarters of the
        // triangle are inside.
        let areas = [900.0 * pi, 400.0 + 16.0 * pi, 750.0];
        for (draw, expected) in shapes.iter().zip(areas) {
            let mut canvas = Canvas::new(100, 100, WHITE);
            draw(&mut canvas);
            let drawn = area(&canvas.finish());
            let off = (drawn - expected).abs();
            assert!(off < 0.01 * expected, "{drawn} {expected}");
        }
    }

    #[test]
    fn what_is_outside_is_not_drawn() {
        let mut canvas = Canvas::new(10, 10, WHITE);
        canvas.circle([-50.0, 5.0], 20.0, BLACK);
        canvas.rectangle([2.0, -30.0], 4.0, 20.0, BLACK);
        canvas.polygon(&[], BLACK);
        canvas.line([f64::NAN, 0.0], [5.0, 5.0], 2.0, BLACK);
        assert_eq!(area(&canvas.finish()), 0.0);
    }
}
