//! TensorBoard event files: scalars and texts, written without TensorFlow.
//!
//! A file is a sequence of records (length, checksum, bytes, checksum), each record one
//! protobuf message `Event` of `tensorflow/core/util/event.proto`. Only the few fields needed
//! here are encoded, by hand; [`decode`] reads them back and is what the tests use.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Context, Error, Result};
use crate::folder::host_name;

/// Appends events to one file that TensorBoard reads.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
    /// Bytes of complete records, to cut off one that a full disk left half written.
    bytes: u64,
}

impl EventWriter {
    /// Begins a new event file in `folder`, for a run that starts.
    pub fn create(folder: &Path) -> Result<Self> {
        let path = new_path(folder)?;
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(&path)
            .doing("create", &path)?;
        let mut writer = Self {
            path,
            file,
            bytes: 0,
        };
        writer.write_event(&event(0, |body| {
            put_bytes(body, EVENT_FILE_VERSION, FILE_VERSION.as_bytes());
        }))?;
        Ok(writer)
    }

    /// Starts a new event file in `folder` for a run that continues at `first_step`: TensorBoard
    /// forgets what earlier files of the folder say about this step and later ones.
    pub fn resume(folder: &Path, first_step: u64) -> Result<Self> {
        let mut writer = Self::create(folder)?;
        writer.write_event(&event(first_step, |body| {
            let mut session = Vec::new();
            put_varint(&mut session, SESSION_STATUS, SESSION_START);
            put_bytes(body, EVENT_SESSION_LOG, &session);
        }))?;
        Ok(writer)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes numbers at one step. TensorBoard keeps them as 32-bit floats. NaN means that
    /// there was nothing to measure, and is left out.
    pub fn scalars<K: AsRef<str>>(&mut self, step: u64, values: &[(K, f64)]) -> Result<()> {
        let mut summary = Vec::new();
        for (tag, number) in values {
            if number.is_nan() {
                continue;
            }
            let mut value = Vec::new();
            put_bytes(&mut value, VALUE_TAG, tag.as_ref().as_bytes());
            put_float(&mut value, VALUE_SIMPLE, *number as f32);
            put_bytes(&mut summary, SUMMARY_VALUE, &value);
        }
        if summary.is_empty() {
            return Ok(());
        }
        self.write_event(&event(step, |body| {
            put_bytes(body, EVENT_SUMMARY, &summary)
        }))
    }

    /// Writes a text (Markdown) at one step.
    pub fn text(&mut self, step: u64, tag: &str, markdown: &str) -> Result<()> {
        let mut plugin = Vec::new();
        put_bytes(&mut plugin, PLUGIN_NAME, b"text");
        let mut metadata = Vec::new();
        put_bytes(&mut metadata, METADATA_PLUGIN, &plugin);
        put_varint(&mut metadata, METADATA_DATA_CLASS, DATA_CLASS_TENSOR);
        let mut dimension = Vec::new();
        put_varint(&mut dimension, DIMENSION_SIZE, 1);
        let mut shape = Vec::new();
        put_bytes(&mut shape, SHAPE_DIMENSION, &dimension);
        let mut tensor = Vec::new();
        put_varint(&mut tensor, TENSOR_TYPE, TYPE_STRING);
        put_bytes(&mut tensor, TENSOR_SHAPE, &shape);
        put_bytes(&mut tensor, TENSOR_STRING, markdown.as_bytes());
        let mut value = Vec::new();
        put_bytes(&mut value, VALUE_TAG, tag.as_bytes());
        put_bytes(&mut value, VALUE_TENSOR, &tensor);
        put_bytes(&mut value, VALUE_METADATA, &metadata);
        let mut summary = Vec::new();
        put_bytes(&mut summary, SUMMARY_VALUE, &value);
        self.write_event(&event(step, |body| {
            put_bytes(body, EVENT_SUMMARY, &summary)
        }))
    }

    /// Writes the settings of a run for the hparams tab, which compares runs by them.
    pub fn hyperparameters(&mut self, settings: &[(&str, HyperParameter)]) -> Result<()> {
        let mut start = Vec::new();
        for (name, setting) in settings {
            let mut value = Vec::new();
            match setting {
                HyperParameter::Number(number) => {
                    put_key(&mut value, PROTO_NUMBER, WIRE_64);
                    value.extend(number.to_le_bytes());
                }
                HyperParameter::Flag(flag) => put_varint(&mut value, PROTO_BOOL, u64::from(*flag)),
                HyperParameter::Text(text) => put_bytes(&mut value, PROTO_STRING, text.as_bytes()),
            }
            let mut entry = Vec::new();
            put_bytes(&mut entry, MAP_KEY, name.as_bytes());
            put_bytes(&mut entry, MAP_VALUE, &value);
            put_bytes(&mut start, SESSION_HPARAMS, &entry);
        }
        put_key(&mut start, SESSION_START_TIME, WIRE_64);
        start.extend(seconds_now().to_le_bytes());
        let mut content = Vec::new();
        put_bytes(&mut content, HPARAMS_SESSION_START, &start);
        let mut plugin = Vec::new();
        put_bytes(&mut plugin, PLUGIN_NAME, b"hparams");
        put_bytes(&mut plugin, PLUGIN_CONTENT, &content);
        let mut metadata = Vec::new();
        put_bytes(&mut metadata, METADATA_PLUGIN, &plugin);
        put_varint(&mut metadata, METADATA_DATA_CLASS, DATA_CLASS_TENSOR);
        // An empty vector of floats: the plugin reads the metadata only.
        let mut dimension = Vec::new();
        put_varint(&mut dimension, DIMENSION_SIZE, 0);
        let mut shape = Vec::new();
        put_bytes(&mut shape, SHAPE_DIMENSION, &dimension);
        let mut tensor = Vec::new();
        put_varint(&mut tensor, TENSOR_TYPE, TYPE_FLOAT);
        put_bytes(&mut tensor, TENSOR_SHAPE, &shape);
        let mut value = Vec::new();
        put_bytes(&mut value, VALUE_TAG, b"_hparams_/session_start_info");
        put_bytes(&mut value, VALUE_TENSOR, &tensor);
        put_bytes(&mut value, VALUE_METADATA, &metadata);
        let mut summary = Vec::new();
        put_bytes(&mut summary, SUMMARY_VALUE, &value);
        self.write_event(&event(0, |body| put_bytes(body, EVENT_SUMMARY, &summary)))
    }

    fn write_event(&mut self, event: &[u8]) -> Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(event.len() + 16);
        record.extend(length);
        record.extend(masked_crc(&length).to_le_bytes());
        record.extend(event);
        record.extend(masked_crc(event).to_le_bytes());
        if let Err(error) = self.file.write_all(&record) {
            // Half a record would make TensorBoard stop there, for good.
            let _ = self.file.set_len(self.bytes);
            return Err(error).doing("write", &self.path);
        }
        self.bytes += record.len() as u64;
        Ok(())
    }
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum HyperParameter {
    /// A number.
    Number(f64),
    /// True or false.
    Flag(bool),
    /// Anything else.
    Text(String),
}

impl HyperParameter {
    /// What a text means: JSON, or any other.
    pub fn of(text: &str) -> Self {
        let text = text.trim_matches('"');
        match (text, text.parse::<f64>()) {
            ("true", _) => Self::Flag(true),
            ("false", _) => Self::Flag(false),
            (_, Ok(number)) if number.is_finite() => Self::Number(number),
            _ => Self::Text(text.to_owned()),
        }
    }
}

/// One event read back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    /// Seconds since 1970.
    pub wall_time: f64,
    /// The step.
    pub step: u64,
    /// The version of the format; only in the first event.
    pub file_version: Option<String>,
    /// Whether the event says that a session starts at this step.
    pub session_start: bool,
    /// Numbers by tag.
    pub scalars: Vec<(String, f32)>,
    /// Texts by tag.
    pub texts: Vec<(String, String)>,
}

/// Reads the events of a file's bytes. A last record that is cut short is left out.
///
/// # Errors
/// [`Error::Malformed`], with the file's name, if a checksum does not fit or a message cannot
/// be read.
pub fn decode(path: &Path, mut bytes: &[u8]) -> Result<Vec<Event>> {
    let malformed = |reason: String| Error::Malformed {
        path: path.to_owned(),
        reason,
    };
    let mut events = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<8>() {
        let Some((check, rest)) = rest.split_first_chunk::<4>() else {
            break;
        };
        if masked_crc(length) != u32::from_le_bytes(*check) {
            return Err(malformed(format!(
                "checksum of the length of record {}",
                events.len()
            )));
        }
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let Some((body, rest)) = rest.split_at_checked(length) else {
            break;
        };
        let Some((check, rest)) = rest.split_first_chunk::<4>() else {
            break;
        };
        if masked_crc(body) != u32::from_le_bytes(*check) {
            return Err(malformed(format!("checksum of record {}", events.len())));
        }
        let event = decode_event(body)
            .ok_or_else(|| malformed(format!("record {} is not an event", events.len())))?;
        events.push(event);
        bytes = rest;
    }
    Ok(events)
}

const FILE_VERSION: &str = "brain.Event:2";

// Field numbers of the messages, from event.proto, summary.proto, tensor.proto and
// tensor_shape.proto.
const EVENT_WALL_TIME: u32 = 1;
const EVENT_STEP: u32 = 2;
const EVENT_FILE_VERSION: u32 = 3;
const EVENT_SUMMARY: u32 = 5;
const EVENT_SESSION_LOG: u32 = 7;
const SESSION_STATUS: u32 = 1;
const SESSION_START: u64 = 1;
const SUMMARY_VALUE: u32 = 1;
const VALUE_TAG: u32 = 1;
const VALUE_SIMPLE: u32 = 2;
const VALUE_TENSOR: u32 = 8;
const VALUE_METADATA: u32 = 9;
const METADATA_PLUGIN: u32 = 1;
const METADATA_DATA_CLASS: u32 = 4;
const DATA_CLASS_TENSOR: u64 = 2;
const PLUGIN_NAME: u32 = 1;
const PLUGIN_CONTENT: u32 = 2;
const TENSOR_TYPE: u32 = 1;
const TENSOR_SHAPE: u32 = 2;
const TENSOR_STRING: u32 = 8;
const TYPE_STRING: u64 = 7;
const TYPE_FLOAT: u64 = 1;
const SHAPE_DIMENSION: u32 = 2;
const DIMENSION_SIZE: u32 = 1;

// From tensorboard/plugins/hparams/plugin_data.proto and google/protobuf/struct.proto.
const HPARAMS_SESSION_START: u32 = 3;
const SESSION_HPARAMS: u32 = 1;
const SESSION_START_TIME: u32 = 5;
const MAP_KEY: u32 = 1;
const MAP_VALUE: u32 = 2;
const PROTO_NUMBER: u32 = 2;
const PROTO_STRING: u32 = 3;
const PROTO_BOOL: u32 = 4;

// How the value of a protobuf field is laid out.
const WIRE_VARINT: u32 = 0;
const WIRE_64: u32 = 1;
const WIRE_BYTES: u32 = 2;
const WIRE_32: u32 = 5;

/// A name that sorts after the folder's other event files, since TensorBoard reads them in the
/// order of their names.
fn new_path(folder: &Path) -> Result<PathBuf> {
    const PREFIX: &str = "events.out.tfevents.";
    let mut second = crate::utc::unix_seconds(SystemTime::now());
    for entry in fs::read_dir(folder).doing("list", folder)? {
        let name = entry.doing("list", folder)?.file_name();
        let earlier = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.split('.').next()?.parse().ok());
        second = second.max(earlier.map_or(0, |earlier: u64| earlier + 1));
    }
    let (host, process) = (host_name(), std::process::id());
    Ok(folder.join(format!("{PREFIX}{second:010}.{host}.{process}.0")))
}

fn event(step: u64, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let now = seconds_now();
    let mut body = Vec::new();
    put_key(&mut body, EVENT_WALL_TIME, WIRE_64);
    body.extend(now.to_le_bytes());
    put_varint(&mut body, EVENT_STEP, step);
    fill(&mut body);
    body
}

fn seconds_now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// The checksum of the TFRecord format: rotated and shifted, so that a checksum of data that
/// itself holds checksums stays good.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

fn put_key(out: &mut Vec<u8>, field: u32, wire: u32) {
    put_raw_varint(out, u64::from(field << 3 | wire));
}

fn put_raw_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_varint(out: &mut Vec<u8>, field: u32, value: u64) {
    put_key(out, field, WIRE_VARINT);
    put_raw_varint(out, value);
}

fn put_float(out: &mut Vec<u8>, field: u32, value: f32) {
    put_key(out, field, WIRE_32);
    out.extend(value.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_key(out, field, WIRE_BYTES);
    put_raw_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

/// The value of one field.
#[derive(Clone, Copy)]
enum Field<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    Bytes(&'a [u8]),
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn fields(mut bytes: &[u8]) -> Option<Vec<(u32, Field<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = u32::try_from(take_varint(&mut bytes)?).ok()?;
        let field = match key & 7 {
            WIRE_VARINT => Field::Varint(take_varint(&mut bytes)?),
            WIRE_64 => {
                let (value, rest) = bytes.split_first_chunk()?;
                bytes = rest;
                Field::Fixed64(*value)
            }
            WIRE_32 => {
                let (value, rest) = bytes.split_first_chunk()?;
                bytes = rest;
                Field::Fixed32(*value)
            }
            WIRE_BYTES => {
                let length = usize::try_from(take_varint(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Field::Bytes(value)
            }
            _ => return None,
        };
        fields.push((key >> 3, field));
    }
    Some(fields)
}

fn decode_event(body: &[u8]) -> Option<Event> {
    let mut event = Event::default();
    for (number, field) in fields(body)? {
        match (number, field) {
            (EVENT_WALL_TIME, Field::Fixed64(bytes)) => event.wall_time = f64::from_le_bytes(bytes),
            (EVENT_STEP, Field::Varint(step)) => event.step = step,
            (EVENT_FILE_VERSION, Field::Bytes(bytes)) => event.file_version = Some(utf8(bytes)?),
            (EVENT_SESSION_LOG, Field::Bytes(bytes)) => {
                event.session_start = fields(bytes)?
                    .iter()
                    .any(|pair| matches!(pair, (SESSION_STATUS, Field::Varint(SESSION_START))));
            }
            (EVENT_SUMMARY, Field::Bytes(bytes)) => {
                for (number, field) in fields(bytes)? {
                    if let (SUMMARY_VALUE, Field::Bytes(value)) = (number, field) {
                        decode_value(value, &mut event)?;
                    }
                }
            }
            _ => {}
        }
    }
    Some(event)
}

fn decode_value(body: &[u8], event: &mut Event) -> Option<()> {
    let mut tag = String::new();
    let mut scalar = None;
    let mut text = None;
    for (number, field) in fields(body)? {
        match (number, field) {
            (VALUE_TAG, Field::Bytes(bytes)) => tag = utf8(bytes)?,
            (VALUE_SIMPLE, Field::Fixed32(bytes)) => scalar = Some(f32::from_le_bytes(bytes)),
            (VALUE_TENSOR, Field::Bytes(bytes)) => {
                for (number, field) in fields(bytes)? {
                    if let (TENSOR_STRING, Field::Bytes(bytes)) = (number, field) {
                        text = Some(utf8(bytes)?);
                    }
                }
            }
            _ => {}
        }
    }
    if let Some(scalar) = scalar {
        event.scalars.push((tag, scalar));
    } else if let Some(text) = text {
        event.texts.push((tag, text));
    }
    Some(())
}

fn utf8(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_owned()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(writer: &EventWriter) -> Vec<Event> {
        decode(writer.path(), &fs::read(writer.path()).unwrap()).unwrap()
    }

    #[test]
    fn events_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        writer.text(0, "hyperparameters", "lr: 1").unwrap();
        let row = [
            ("charts/SPS", 1e6),
            ("empty", f64::NAN),
            ("losses/value", -0.25),
        ];
        writer.scalars(300, &row).unwrap();
        writer
            .scalars(5_000_000_000, &[("x", f64::INFINITY)])
            .unwrap();
        let events = read(&writer);
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!(
            events[1].texts,
            [("hyperparameters".into(), "lr: 1".into())]
        );
        assert_eq!(
            events[2].scalars,
            [("charts/SPS".into(), 1e6), ("losses/value".into(), -0.25)]
        );
        assert_eq!((events[2].step, events[3].step), (300, 5_000_000_000));
        assert!(events.iter().all(|event| event.wall_time > 1.7e9));
    }

    #[test]
    fn a_resumed_file_sorts_last_and_says_where_it_starts() {
        let folder = tempfile::tempdir().unwrap();
        let first = EventWriter::create(folder.path()).unwrap();
        let second = EventWriter::resume(folder.path(), 1001).unwrap();
        let third = EventWriter::resume(folder.path(), 1001).unwrap();
        assert!(first.path() < second.path() && second.path() < third.path());
        let events = read(&second);
        assert!(events[1].session_start && events[1].step == 1001);
        assert!(!events[0].session_start);
    }

    #[test]
    fn damage_is_noticed_and_a_cut_end_is_not_damage() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        writer.scalars(1, &[("x", 1.0)]).unwrap();
        let mut bytes = fs::read(writer.path()).unwrap();
        for cut in 1..20 {
            let events = decode(writer.path(), &bytes[..bytes.len() - cut]).unwrap();
            assert_eq!(events.len(), 1);
        }
        let last = bytes.len() - 6;
        bytes[last] ^= 4;
        let error = decode(writer.path(), &bytes).unwrap_err().to_string();
        assert!(error.contains("checksum of record 1"), "{error}");
    }

    #[test]
    fn the_masked_checksum_is_that_of_the_format() {
        // The first 12 bytes of any file that begins with a 24-byte event, as TensorFlow
        // writes them: its length and the checksum of that.
        let header = [0x18, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(masked_crc(&header).to_le_bytes(), [0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        writer.file = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let error = writer.scalars(1, &[("x", 1.0)]).unwrap_err().to_string();
        assert!(error.contains("Free some disk space"), "{error}");
    }
}
