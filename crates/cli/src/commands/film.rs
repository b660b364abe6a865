//! Pictures of environments in the terminal.

use crate::envs::render::{Colour, Picture};

/// A picture as half blocks that fill the given columns and lines of a terminal as far as its shape
/// allows, from the top left corner on.
pub(super) fn text(picture: &Picture, columns: usize, lines: usize) -> String {
    let (wide, high) = (picture.width as f64, picture.height as f64);
    let scale = (columns as f64 / wide).min(2.0 * lines as f64 / high);
    let columns = ((wide * scale) as usize).max(1);
    // An even number of rows: a character shows two.
    let lines = ((high * scale / 2.0).round() as usize).max(1);
    let mut text = String::from("\x1b[H");
    for line in 0..lines {
        for column in 0..columns {
            let colour = |row| mean(picture, (column, columns), (row, 2 * lines));
            let ([r, g, b], [s, h, c]) = (colour(2 * line), colour(2 * line + 1));
            text.push_str(&format!("\x1b[38;2;{r};{g};{b}m\x1b[48;2;{s};{h};{c}m▀"));
        }
        text.push_str("\x1b[0m\x1b[K\n");
    }
    text
}

/// The mean colour of one field when the picture is divided into this many columns and rows.
fn mean(picture: &Picture, column: (usize, usize), row: (usize, usize)) -> Colour {
    let range = |(at, of): (usize, usize), size: usize| {
        let first = at * size / of;
        first..((at + 1) * size / of).max(first + 1)
    };
    let (mut sums, mut count) = ([0u32; 3], 0);
    for y in range(row, picture.height) {
        for x in range(column, picture.width) {
            let pixel = picture.pixel(x, y);
            sums = std::array::from_fn(|i| sums[i] + u32::from(pixel[i]));
            count += 1;
        }
    }
    sums.map(|sum| (sum / count.max(1)) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envs::render::Canvas;

    #[test]
    fn a_picture_fits_into_the_terminal() {
        let shape = |text: &str| {
            let lines: Vec<&str> = text.lines().collect();
            (lines[0].matches('▀').count(), lines.len())
        };
        let wide = Canvas::new(600, 400, [9; 3]).finish();
        assert_eq!(shape(&text(&wide, 80, 40)), (80, 27));
        let square = Canvas::new(400, 400, [9; 3]).finish();
        assert_eq!(shape(&text(&square, 80, 22)), (44, 22));
    }
}
