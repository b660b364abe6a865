//! GIF: of each picture only the part that changes.

use std::collections::HashMap;

type Colour = [u8; 3];

pub(super) struct Gif {
    encoder: gif::Encoder<Vec<u8>>,
    size: (usize, usize),
    /// Hundredths of a second between pictures.
    delay: u16,
    last: Option<Vec<u8>>,
}

impl Gif {
    pub(super) fn new((width, height): (usize, usize), fps: f64) -> Result<Self, String> {
        let text = |error: gif::EncodingError| error.to_string();
        let mut encoder =
            gif::Encoder::new(Vec::new(), side(width)?, side(height)?, &[]).map_err(text)?;
        encoder.set_repeat(gif::Repeat::Infinite).map_err(text)?;
        Ok(Self {
            encoder,
            size: (width, height),
            // Viewers slow down what is faster than 50 pictures per second.
            delay: (100.0 / fps).round().clamp(2.0, 100.0) as u16,
            last: None,
        })
    }

    pub(super) fn add(&mut self, rgb: &[u8]) -> Result<(), String> {
        let (width, height) = self.size;
        let [left, top, right, bottom] = match &self.last {
            Some(last) => changed(last, rgb, width),
            None => [0, 0, width, height],
        };
        let pixel = |(x, y): (usize, usize)| {
            let at = 3 * (y * width + x);
            [rgb[at], rgb[at + 1], rgb[at + 2]]
        };
        let places = (top..bottom).flat_map(|y| (left..right).map(move |x| (x, y)));
        let colours: Vec<Colour> = places.map(pixel).collect();
        let (palette, buffer) = indexed(&colours);
        let frame = gif::Frame {
            delay: self.delay,
            left: side(left)?,
            top: side(top)?,
            width: side(right - left)?,
            height: side(bottom - top)?,
            palette: Some(palette),
            buffer: buffer.into(),
            ..gif::Frame::default()
        };
        self.encoder
            .write_frame(&frame)
            .map_err(|error| error.to_string())?;
        self.last = Some(rgb.to_vec());
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Vec<u8>, String> {
        self.encoder.into_inner().map_err(|error| error.to_string())
    }
}

fn side(pixels: usize) -> Result<u16, String> {
    u16::try_from(pixels).map_err(|_| "a GIF has at most 65,535 pixels on each side".to_owned())
}

/// Left, top, right and bottom of the part in which two pictures differ; one pixel if they do not.
pub(super) fn changed(last: &[u8], picture: &[u8], width: usize) -> [usize; 4] {
    let mut found: Option<[usize; 4]> = None;
    let pixels = last.chunks_exact(3).zip(picture.chunks_exact(3));
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
pub(super) fn indexed(colours: &[Colour]) -> (Vec<u8>, Vec<u8>) {
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
