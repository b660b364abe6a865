//! Compares a console with a recorded run of the Arcade Learning Environment, frame by frame.
//!
//! [`RECORDER`] is a program that plays the reference and writes traces; [`replay`] reads a trace,
//! from a file or while it is being written, and plays the same on our console.

use std::io::Read;
use std::sync::Arc;

use crate::ale::{Ale, AleError};
use crate::cartridge::Rom;
use crate::controllers::Action;
use crate::games::Game;

/// A Python program that records traces with ale-py; its first lines say how.
pub const RECORDER: &str = include_str!("record_ale.py");

/// Why a trace cannot be read or replayed.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The bytes are not a trace.
    #[error("not a trace of record_ale.py: {0}")]
    Format(&'static str),
    /// The bytes cannot be read, or end too early.
    #[error("the trace cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// There is no ROM to replay it with.
    #[error("{0}")]
    NoRom(String),
    /// The ROM is not the one that the trace was recorded with.
    #[error("the trace was recorded with the ROM of md5 {trace}, not {rom}")]
    OtherRom {
        /// The md5 in the trace.
        trace: String,
        /// The md5 of the cartridge at hand.
        rom: String,
    },
    /// The game cannot be set up.
    #[error(transparent)]
    Game(#[from] AleError),
}

/// What a recorded run was of.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// The game's name.
    pub game: String,
    /// The md5 of its cartridge.
    pub md5: String,
    /// The seed of sticky actions.
    pub seed: u32,
    /// The probability of a sticky action.
    pub sticky: f32,
    /// The mode, where it is not the default.
    pub mode: Option<u16>,
    /// The difficulty, where it is not the default.
    pub difficulty: Option<u8>,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The 128 bytes of memory.
    Ram,
    /// The picture.
    Screen,
    /// The reward of a frame.
    Reward,
    /// The lives that are left.
    Lives,
    /// Whether the episode is over.
    Over,
    /// The frames that a reset counts.
    ResetFrames,
}

/// How a replay went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Frames that were compared.
    pub frames: u64,
    /// Resets that were compared.
    pub resets: u64,
    /// What differed first, each with the number of frames played until then.
    pub differences: Vec<(What, u64)>,
}

impl Report {
    /// Whether everything was equal.
    pub fn equal(&self) -> bool {
        self.differences.is_empty()
    }
}

/// Whether runs of the reference in this mode are equal to each other at all: in two modes of
/// `adventure` it starts at a random time, whatever the seed.
pub fn is_deterministic(game: &Game, mode: u16) -> bool {
    game.name != "adventure" || mode == 0
}

/// Reads the next trace and replays it; `None` after the last one.
///
/// # Errors
/// When the bytes are not a trace, or there is no ROM for it.
pub fn replay(
    from: &mut impl Read,
    rom: impl FnOnce(&Header) -> Result<Arc<Rom>, VerifyError>,
) -> Result<Option<(Header, Report)>, VerifyError> {
    let Some(header) = Header::read(from)? else {
        return Ok(None);
    };
    let rom = rom(&header)?;
    if rom.md5() != header.md5 {
        let (trace, rom) = (header.md5, rom.md5().to_owned());
        return Err(VerifyError::OtherRom { trace, rom });
    }
    let mut ale = Ale::sticky(rom, header.seed, header.sticky)?;
    if let Some(difficulty) = header.difficulty {
        ale.set_difficulty(difficulty)?;
    }
    if let Some(mode) = header.mode {
        ale.set_mode(mode)?;
    }
    let mut pixels = vec![0; ale.console().height() * 160];
    let mut report = Report::default();
    let mut parted = false;
    while let Some(record) = Record::read(from)? {
        if parted {
            // Nothing can be compared any more, but the rest is to be read.
            continue;
        }
        parted = compare(&mut ale, &record, &mut pixels, &mut report);
    }
    Ok(Some((header, report)))
}

/// Plays one record; says whether the two have parted, so that nothing after it can be compared.
fn compare(ale: &mut Ale, record: &Record, pixels: &mut [u8], report: &mut Report) -> bool {
    if record.reset {
        ale.reset();
        report.resets += 1;
    } else {
        ale.act(Action::new(record.action).unwrap_or(Action::NOOP));
        report.frames += 1;
    }
    let outcome = ale.outcome();
    ale.console().screen(pixels);
    let mut note = |what: What, equal: bool| {
        if !equal && report.differences.iter().all(|(known, _)| *known != what) {
            report.differences.push((what, report.frames));
        }
    };
    note(What::Ram, crc32(ale.ram()) == record.ram);
    note(What::Screen, crc32(pixels) == record.screen);
    if record.reset {
        let counted = ale.frame_numbers().1;
        note(What::ResetFrames, u64::from(record.number) == counted);
    } else {
        note(What::Reward, outcome.reward == record.number.cast_signed());
    }
    note(What::Lives, outcome.lives == record.lives);
    note(What::Over, outcome.terminal == record.over);
    outcome.terminal != record.over
}

impl Header {
    fn read(from: &mut impl Read) -> Result<Option<Self>, VerifyError> {
        let mut magic = [0; 8];
        if from.read(&mut magic[..1])? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut magic[1..])?;
        if magic != *b"STARTRC2" {
            return Err(VerifyError::Format("it does not begin with STARTRC2"));
        }
        let mut length = [0];
        from.read_exact(&mut length)?;
        let mut text = |length: u8| {
            let mut bytes = vec![0; usize::from(length)];
            from.read_exact(&mut bytes)?;
            String::from_utf8(bytes).map_err(|_| VerifyError::Format("a name is not UTF-8"))
        };
        let (game, md5) = (text(length[0])?, text(32)?);
        let mut word = || {
            let mut bytes = [0; 4];
            from.read_exact(&mut bytes)?;
            Ok::<_, VerifyError>(u32::from_le_bytes(bytes))
        };
        // What is out of range is the default, written as -1.
        Ok(Some(Self {
            game,
            md5,
            seed: word()?,
            sticky: f32::from_bits(word()?),
            mode: word()?.try_into().ok(),
            difficulty: word()?.try_into().ok(),
        }))
    }
}

#[derive(Clone, Copy, Debug)]
struct Record {
    reset: bool,
    action: u8,
    over: bool,
    lives: u8,
    number: u32,
    ram: u32,
    screen: u32,
}

impl Record {
    /// None at the end of a trace.
    fn read(from: &mut impl Read) -> Result<Option<Self>, VerifyError> {
        let mut bytes = [0; 16];
        from.read_exact(&mut bytes)?;
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Ok((bytes[0] != 255).then(|| Self {
            reset: bytes[0] == 1,
            action: bytes[1],
            over: bytes[2] != 0,
            lives: bytes[3],
            number: word(4),
            ram: word(8),
            screen: word(12),
        }))
    }
}

/// The CRC-32 of some bytes, as zlib computes it.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        CRC[usize::from(crc as u8 ^ byte)] ^ (crc >> 8)
    })
}

const CRC: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut word = index as u32;
        let mut bit = 0;
        while bit < 8 {
            word = if word & 1 != 0 {
                0xEDB8_8320 ^ (word >> 1)
            } else {
                word >> 1
            };
            bit += 1;
        }
        table[index] = word;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_crc_32_holds() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn a_cut_or_foreign_trace_is_refused() {
        let read = |bytes: &[u8]| {
            let no_rom = |_: &Header| Err(VerifyError::NoRom("none".into()));
            replay(&mut &bytes[..], no_rom)
        };
        assert!(matches!(read(b""), Ok(None)));
        let mut whole = b"STARTRC2\x04pong".to_vec();
        whole.extend([b'0'; 32]);
        whole.extend([0; 16]);
        for length in 1..whole.len() {
            assert!(matches!(read(&whole[..length]), Err(VerifyError::Read(_))));
        }
        assert!(matches!(read(&whole), Err(VerifyError::NoRom(_))));
        assert!(matches!(read(b"STARTRC1"), Err(VerifyError::Format(_))));
    }
}
