//! Videos: pictures one after the other as MP4 (H.264, which every browser plays) or GIF.
//!
//! Read first: [`Video`].

mod gif;
mod mp4;

use std::path::{Path, PathBuf};

use crate::durable::replace_file;
use crate::error::{Error, Result};

/// A video that is being made. The file appears when it is [finished](Video::finish).
pub struct Video {
    path: PathBuf,
    size: (usize, usize),
    encoder: Encoder,
}

enum Encoder {
    Gif(gif::Gif),
    Mp4(Box<mp4::Mp4>),
}

/// The formats, by the ends of file names.
pub const VIDEO_FORMATS: [&str; 2] = ["mp4", "gif"];

impl Video {
    /// Starts a video of pictures of this width and height. The end of the file's name says whether it is
    /// an MP4 or a GIF.
    ///
    /// # Errors
    /// [`Error::Video`] if the name ends otherwise, or the size does not fit the format.
    pub fn create(path: &Path, size: (usize, usize), fps: f64) -> Result<Self> {
        let end = path.extension().and_then(|end| end.to_str());
        let encoder = match end.map(str::to_lowercase).as_deref() {
            Some("gif") => gif::Gif::new(size, fps).map(Encoder::Gif),
            Some("mp4") => mp4::Mp4::new(size, fps).map(|mp4| Encoder::Mp4(Box::new(mp4))),
            _ => Err("the name of a video ends in .mp4 or .gif".to_owned()),
        };
        Ok(Self {
            encoder: encoder.map_err(|reason| failed(path, reason))?,
            path: path.to_owned(),
            size,
        })
    }

    /// Adds a picture: red, green and blue of each pixel, row by row.
    pub fn add(&mut self, rgb: &[u8]) -> Result<()> {
        let (width, height) = self.size;
        let added = match rgb.len() == 3 * width * height {
            true => match &mut self.encoder {
                Encoder::Gif(gif) => gif.add(rgb),
                Encoder::Mp4(mp4) => mp4.add(rgb),
            },
            false => Err(format!("a picture is not of {width} × {height} pixels")),
        };
        added.map_err(|reason| failed(&self.path, reason))
    }

    /// Writes the file.
    pub fn finish(self) -> Result<()> {
        let bytes = match self.encoder {
            Encoder::Gif(gif) => gif.finish(),
            Encoder::Mp4(mp4) => mp4.finish(),
        };
        let bytes = bytes.map_err(|reason| failed(&self.path, reason))?;
        replace_file(&self.path, &bytes)
    }
}

impl std::fmt::Debug for Video {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Video")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

fn failed(path: &Path, reason: String) -> Error {
    let path = path.to_owned();
    Error::Video { path, reason }
}

#[cfg(test)]
mod tests;
