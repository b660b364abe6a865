//! Shows pictures of environments in the terminal and writes them as a GIF.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use anyhow::Context as _;

use crate::envs::render::{Colour, Picture};

/// A GIF that is being written.
pub(super) struct Film {
    encoder: gif::Encoder<File>,
    /// Hundredths of a second between pictures.
    delay: u16,
    last: Option<Picture>,
}

impl Film {
    /// Starts a GIF of pictures like the first one.
    pub(super) fn create(path: &Path, first: &Picture, fps: f64) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let (width, height) = (side(first.width)?, side(first.height)?);
        let mut encoder = gif::Encoder::new(file, width, height, &[])?;
        encoder.set_repeat(gif::Repeat::Infinite)?;
        Ok(Self {
            encoder,
            // Viewers slow down what is faster than 50 pictures per second.
            delay: (100.0 / fps).round().clamp(2.0, 100.0) as u16,
            last: None,
        })
    }

    /// Adds a picture: the part that differs from the one before.
    pub(super) fn add(&mut self, picture: &Picture) -> anyhow::Result<()> {
        let [left, top, right, bottom] = match &self.last {
            Some(last) => changed(last, picture),
            None => [0, 0, picture.width, picture.height],
        };
        let colours = (top..bottom).flat_map(|y| (left..right).map(move |x| (x, y)));
        let colours: Vec<Colour> = colours.map(|(x, y)| picture.pixel(x, y)).collect();
        let (palette, buffer) = indexed(&colours);
        self.encoder.write_frame(&gif::Frame {
            delay: self.delay,
            left: side(left)?,
            top: side(top)?,
            width: side(right - left)?,
            height: side(bottom - top)?,
            palette: Some(palette),
            buffer: buffer.into(),
            ..gif::Frame::default()
        })?;
        self.last = Some(picture.clone());
        Ok(())
    }
}

fn side(pixels: usize) -> anyhow::Result<u16> {
    u16::try_from(pixels).context("a GIF has at most 65,535 pixels on each side")
}

/// Left, top, right and bottom of the part in which two pictures differ; one pixel if they do not.
fn changed(last: &Picture, picture: &Picture) -> [usize; 4] {
    let (width, height) = (picture.width, picture.height);
    if (last.width, last.height) != (width, height) {
        return [0, 0, width, height];
    }
    let mut found: Option<[usize; 4]> = None;
    let pixels = last.rgb.chunks_exact(3).zip(picture.rgb.chunks_exact(3));
    for (at, _) in pixels.enumerate().filter(|(_, (old, new))| old != new) {
        let (x, y) = (at % width, at / width);
        let [left, top, right, _] = found.unwrap_or([x, y, x, y]);
        found = Some([left.min(x), top, right.max(x), y]);
    }
    let [left, top, right, bottom] = found.unwrap_or_default();
    [left, top, right + 1, bottom + 1]
}

/// A palette of at most 256 colours, and the place of each pixel's colour in it. Where there are more
/// colours, those that are alike become one.
fn indexed(colours: &[Colour]) -> (Vec<u8>, Vec<u8>) {
    // With one bit for each of red, green and blue there are at most eight colours.
    let found = (0..8).find_map(|dropped_bits| with_palette(colours, dropped_bits));
    found.unwrap_or_default()
}

/// Takes colours that differ only in their last bits for one; `None` if more than 256 are left.
fn with_palette(colours: &[Colour], dropped_bits: u32) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut places: HashMap<Colour, u8> = HashMap::new();
    let mut palette = Vec::new();
    let mut buffer = Vec::with_capacity(colours.len());
    for colour in colours {
        let kind = colour.map(|value| value >> dropped_bits);
        let place = match places.get(&kind) {
            Some(place) => *place,
            None => {
                let place = u8::try_from(places.len()).ok()?;
                places.insert(kind, place);
                palette.extend(colour);
                place
            }
        };
        buffer.push(place);
    }
    Some((palette, buffer))
}

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
    use crate::envs::render::{Canvas, cells};

    fn board(lit: usize) -> Picture {
        cells(2, 4, 10, |row, column| {
            (row == 1 && column == lit).then_some([200, 0, 0])
        })
    }

    #[test]
    fn only_what_changes_is_written() {
        assert_eq!(changed(&board(0), &board(0)), [0, 0, 1, 1]);
        // The inner parts of cells 1 and 2 of the second row.
        assert_eq!(changed(&board(1), &board(2)), [11, 11, 29, 19]);
        assert_eq!(
            changed(&board(1), &Canvas::new(5, 7, [0; 3]).finish()),
            [0, 0, 5, 7]
        );
    }

    #[test]
    fn a_gif_shows_the_pictures_that_were_added() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gif");
        let mut film = Film::create(&path, &board(0), 10.0).unwrap();
        for lit in [0, 1, 1, 3] {
            film.add(&board(lit)).unwrap();
        }
        drop(film);
        let mut options = gif::DecodeOptions::new();
        options.set_color_output(gif::ColorOutput::RGBA);
        let mut read = options.read_info(File::open(&path).unwrap()).unwrap();
        let mut shown = vec![0; 3 * 40 * 20];
        let mut pictures = Vec::new();
        while let Some(frame) = read.read_next_frame().unwrap() {
            assert_eq!(frame.delay, 10);
            for (i, pixel) in frame.buffer.chunks_exact(4).enumerate() {
                let width = usize::from(frame.width);
                let (x, y) = (
                    usize::from(frame.left) + i % width,
                    usize::from(frame.top) + i / width,
                );
                shown[3 * (y * 40 + x)..][..3].copy_from_slice(&pixel[..3]);
            }
            pictures.push(shown.clone());
        }
        let expected = [0, 1, 1, 3].map(|lit| board(lit).rgb);
        assert_eq!(pictures, expected);
    }

    #[test]
    fn many_colours_become_a_palette() {
        let grey = |value: u32| [value as u8, (value / 3) as u8, 7];
        let few: Vec<Colour> = (0..200).map(grey).collect();
        let (palette, buffer) = indexed(&few);
        assert_eq!((palette.len(), buffer.len()), (600, 200));
        let at = 3 * usize::from(buffer[100]);
        assert_eq!(palette[at..at + 3], grey(100));
        let many: Vec<Colour> = (0..4096u32)
            .map(|i| [(i / 16) as u8, (16 * (i % 16)) as u8, 9])
            .collect();
        let (palette, buffer) = indexed(&many);
        assert!(palette.len() <= 768 && buffer.len() == 4096);
        for (colour, place) in many.iter().zip(buffer) {
            let shown = &palette[3 * usize::from(place)..][..3];
            let off = colour.iter().zip(shown).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(off < Some(32), "{colour:?} {shown:?}");
        }
    }

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
