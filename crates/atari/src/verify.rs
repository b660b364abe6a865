//! Comparing a console with a recorded run of the Arcade Learning Environment, frame by frame.
//!
//! `tests/record_ale.py` writes the traces; [`Trace::parse`] reads one and [`verify`] replays it.

use std::sync::Arc;

use crate::ale::{Ale, AleError};
use crate::cartridge::Rom;
use crate::controllers::Action;

/// Why a trace cannot be read or replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The bytes are not a trace.
    #[error("not a trace of record_ale.py: {0}")]
    Format(&'static str),
    /// The cartridge is another one than the trace was recorded with.
    #[error("the trace was recorded with the cartridge {trace}, not {rom}")]
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

/// A recorded run.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The game's name.
    pub game: String,
    /// The md5 of its cartridge.
    pub md5: String,
    /// The seed of sticky actions.
    pub seed: u32,
    /// The chance of a sticky action.
    pub sticky: f32,
    /// The mode, where it is not the default.
    pub mode: Option<u16>,
    /// The difficulty, where it is not the default.
    pub difficulty: Option<u8>,
    records: Vec<Record>,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    reset: bool,
    action: u8,
    over: bool,
    lives: u8,
    reward: i32,
    ram: u32,
    screen: u32,
}

/// Where a replay first differed, by the number of the record; nowhere where all are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Frames that were compared.
    pub frames: usize,
    /// The first record with another memory.
    pub ram: Option<usize>,
    /// The first record with another screen.
    pub screen: Option<usize>,
    /// The first record with another reward.
    pub reward: Option<usize>,
    /// The first record with other lives.
    pub lives: Option<usize>,
    /// The first record where the episode ended in one and not in the other.
    pub over: Option<usize>,
}

impl Report {
    /// Whether everything was equal.
    pub fn equal(&self) -> bool {
        self.machine_equal() && self.reward.or(self.lives).or(self.over).is_none()
    }

    /// Whether memory and screen were equal.
    pub fn machine_equal(&self) -> bool {
        self.ram.or(self.screen).is_none()
    }
}

impl Trace {
    /// Reads a trace.
    pub fn parse(bytes: &[u8]) -> Result<Self, VerifyError> {
        let rest = bytes
            .strip_prefix(b"STARTRC1")
            .ok_or(VerifyError::Format("it does not begin with STARTRC1"))?;
        let (length, rest) = rest
            .split_first_chunk::<4>()
            .ok_or(VerifyError::Format("it ends within its header"))?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > rest.len() {
            return Err(VerifyError::Format("it ends within its header"));
        }
        let (header, records) = rest.split_at(length);
        let header = std::str::from_utf8(header)
            .map_err(|_| VerifyError::Format("its header is not UTF-8"))?;
        let text = |key: &str| field(header, key).map(|value| value.trim_matches('"').to_owned());
        let missing = || VerifyError::Format("its header lacks a field");
        let records = records
            .as_chunks::<16>()
            .0
            .iter()
            .map(Record::parse)
            .collect();
        Ok(Self {
            game: text("game").ok_or_else(missing)?,
            md5: text("md5").ok_or_else(missing)?,
            seed: number(header, "seed").ok_or_else(missing)?,
            sticky: number(header, "sticky").ok_or_else(missing)?,
            mode: number(header, "mode"),
            difficulty: number(header, "difficulty"),
            records,
        })
    }

    /// The number of frames and resets in the trace.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is nothing in the trace.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// Replays a trace on a console of ours.
pub fn verify(rom: Arc<Rom>, trace: &Trace) -> Result<Report, VerifyError> {
    if rom.md5() != trace.md5 {
        let (trace, rom) = (trace.md5.clone(), rom.md5().to_owned());
        return Err(VerifyError::OtherRom { trace, rom });
    }
    let mut ale = Ale::sticky(rom, trace.seed, trace.sticky)?;
    if let Some(difficulty) = trace.difficulty {
        ale.set_difficulty(difficulty)?;
    }
    if let Some(mode) = trace.mode {
        ale.set_mode(mode)?;
    }
    let mut pixels = vec![0; ale.console().height() * 160];
    let mut report = Report::default();
    for (index, record) in trace.records.iter().enumerate() {
        if record.reset {
            ale.reset();
        } else {
            ale.act(Action::new(record.action).unwrap_or(Action::NOOP));
            report.frames += 1;
        }
        let outcome = ale.outcome();
        ale.console().screen(&mut pixels);
        let note = |slot: &mut Option<usize>, equal: bool| {
            if !equal && slot.is_none() {
                *slot = Some(index);
            }
        };
        note(&mut report.ram, crc32(ale.ram()) == record.ram);
        note(&mut report.screen, crc32(&pixels) == record.screen);
        note(&mut report.reward, outcome.reward == record.reward);
        note(&mut report.lives, outcome.lives == record.lives);
        note(&mut report.over, outcome.terminal == record.over);
        if report.over.is_some() {
            // The two have parted: nothing after this can be compared.
            break;
        }
    }
    Ok(report)
}

impl Record {
    fn parse(bytes: &[u8; 16]) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self {
            reset: bytes[0] == 1,
            action: bytes[1],
            over: bytes[2] != 0,
            lives: bytes[3],
            reward: word(4) as i32,
            ram: word(8),
            screen: word(12),
        }
    }
}

/// The value of a key in a flat JSON object that our own recorder wrote; none where it is null.
fn field<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let key = format!("\"{key}\":");
    let start = header.find(&key)? + key.len();
    let value = header[start..].split([',', '}']).next()?.trim();
    (value != "null").then_some(value)
}

fn number<T: std::str::FromStr>(header: &str, key: &str) -> Option<T> {
    field(header, key)?.parse().ok()
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
        assert!(Trace::parse(b"").is_err());
        assert!(Trace::parse(b"STARTRC1").is_err());
        assert!(Trace::parse(b"STARTRC1\xFF\xFF\xFF\xFF").is_err());
        assert!(Trace::parse(b"STARTRC1\x02\0\0\0{}").is_err());
    }
}
