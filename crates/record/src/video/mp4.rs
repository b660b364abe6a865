//! MP4: H.264 by OpenH264, which is compiled into the program.

use muxide::api::{Muxer, MuxerBuilder, VideoCodec};
use openh264::OpenH264API;
use openh264::encoder::{
    Encoder, EncoderConfig, FrameRate, FrameType, IntraFramePeriod, Profile, RateControlMode,
    UsageType, VuiConfig,
};
use openh264::formats::{RgbSliceU8, YUVBuffer};

pub(super) struct Mp4 {
    encoder: Encoder,
    muxer: Muxer<Shared>,
    written: Shared,
    /// Of the pictures.
    size: (usize, usize),
    /// Of the video: even numbers.
    even: (usize, usize),
    fps: f64,
    frames: u32,
}

/// Bytes that the muxer writes, and that can be taken when it is done.
#[derive(Clone, Default)]
struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut all = self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        all.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Frames from one that can be decoded alone to the next.
const KEY_FRAMES: u32 = 120;

impl Mp4 {
    pub(super) fn new(size: (usize, usize), fps: f64) -> Result<Self, String> {
        let even = (size.0.next_multiple_of(2), size.1.next_multiple_of(2));
        let (small, large) = (even.0.min(even.1), even.0.max(even.1));
        if !(16..=2160).contains(&small) || large > 3840 {
            return Err(format!(
                "an MP4 has 16 × 16 to 3,840 × 2,160 pixels, not {} × {}",
                size.0, size.1
            ));
        }
        let config = EncoderConfig::new()
            .usage_type(UsageType::ScreenContentRealTime)
            .profile(Profile::Baseline)
            // The same quality for every picture, and every picture is shown for the same time.
            .rate_control_mode(RateControlMode::Off)
            .skip_frames(false)
            .max_frame_rate(FrameRate::from_hz(fps as f32))
            .intra_frame_period(IntraFramePeriod::from_num_frames(KEY_FRAMES))
            // The encoder prints a warning where these are on: screen content has none of them.
            .adaptive_quantization(false)
            .background_detection(false)
            .num_threads(1)
            .vui(VuiConfig::bt601());
        let encoder = Encoder::with_api_config(OpenH264API::from_source(), config);
        let written = Shared::default();
        let muxer = MuxerBuilder::new(written.clone())
            .video(VideoCodec::H264, even.0 as u32, even.1 as u32, fps)
            .build();
        Ok(Self {
            encoder: encoder.map_err(|error| error.to_string())?,
            muxer: muxer.map_err(|error| error.to_string())?,
            written,
            size,
            even,
            fps,
            frames: 0,
        })
    }

    pub(super) fn add(&mut self, rgb: &[u8]) -> Result<(), String> {
        let padded;
        let rgb = match self.size == self.even {
            true => rgb,
            false => {
                padded = padded_to(rgb, self.size, self.even);
                &padded
            }
        };
        let yuv = YUVBuffer::from_rgb8_source(RgbSliceU8::new(rgb, self.even));
        let encoded = self
            .encoder
            .encode(&yuv)
            .map_err(|error| error.to_string())?;
        let key = matches!(encoded.frame_type(), FrameType::IDR | FrameType::I);
        let time = f64::from(self.frames) / self.fps;
        let written = self.muxer.write_video(time, &encoded.to_vec(), key);
        written.map_err(|error| error.to_string())?;
        self.frames += 1;
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Vec<u8>, String> {
        self.muxer.finish().map_err(|error| error.to_string())?;
        let mut all = self
            .written
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(std::mem::take(&mut *all))
    }
}

/// The picture with its last column and row repeated.
fn padded_to(rgb: &[u8], (width, height): (usize, usize), even: (usize, usize)) -> Vec<u8> {
    let mut padded = Vec::with_capacity(3 * even.0 * even.1);
    for y in 0..even.1 {
        let row = &rgb[3 * width * y.min(height - 1)..][..3 * width];
        padded.extend_from_slice(row);
        for _ in width..even.0 {
            padded.extend_from_slice(&row[3 * (width - 1)..]);
        }
    }
    padded
}
