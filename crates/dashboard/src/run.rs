//! One run: its row in the table, and its own page.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value, json};
use starling_record::{
    Checkpoint, Ending, Live, NOT_COMPARED, RETURN_COLUMNS, RunFolder, RunInfo, SCORE_COLUMN,
    Version, host_name,
};
use twox_hash::XxHash3_64;

use crate::csv::Csv;
use crate::process::Locks;

/// A run and what was read of it.
#[derive(Debug)]
pub(crate) struct Run {
    folder: RunFolder,
    /// When `config.yaml` was written.
    configured: Option<SystemTime>,
    settings: Value,
    version: Option<Version>,
    pub(crate) progress: Csv,
    pub(crate) eval: Csv,
    log_bytes: u64,
    log_error: Option<String>,
    last: Last,
    pub(crate) summary: Summary,
    /// All settings by their dotted names.
    pub(crate) flat: Map<String, Value>,
    /// The number of the change that brought what is in `summary`, and in `flat`.
    pub(crate) changed: u64,
    pub(crate) flat_changed: u64,
}

/// The last numbers of `progress.csv`.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    finished: bool,
    steps: Option<f64>,
    reward: Option<f64>,
    speed: Option<f64>,
    episodes: Option<f64>,
    seconds: Option<f64>,
}

/// A row of the table of runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) info: RunInfo,
    /// Equal for runs that differ only in the seed.
    group: String,
    pub(crate) state: State,
    /// Why it failed.
    error: Option<String>,
    steps: Option<f64>,
    /// The steps that it is to make.
    of: Option<f64>,
    #[serde(rename = "return")]
    reward: Option<f64>,
    speed: Option<f64>,
    episodes: Option<f64>,
    seconds: Option<f64>,
    /// When it was started, as `20261115T082500Z`.
    started: Option<String>,
    /// When something was last written, in seconds since 1970.
    updated: f64,
    /// Versions and sizes of the files, by which a page knows what it lacks.
    progress: [u64; 2],
    eval: [u64; 2],
    log: u64,
    /// When `live.json` and the list of checkpoints were written, in seconds since 1970.
    live: f64,
    saved: f64,
}

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Running,
    Stopped,
    Failed,
    Finished,
}

/// A run of another machine counts as running while it has written something within this time.
const SILENT: Duration = Duration::from_secs(120);

impl Run {
    /// Opens a run. Its files are read by [`Run::poll`].
    pub(crate) fn open(path: &Path, id: String) -> starling_record::Result<Self> {
        let folder = RunFolder::open(path)?;
        let summary = Summary {
            id,
            info: folder.info()?,
            group: String::new(),
            state: State::Stopped,
            error: None,
            steps: None,
            of: None,
            reward: None,
            speed: None,
            episodes: None,
            seconds: None,
            started: folder.started().map(|(time, _)| time),
            updated: 0.0,
            progress: [0; 2],
            eval: [0; 2],
            log: 0,
            live: 0.0,
            saved: 0.0,
        };
        Ok(Self {
            configured: None,
            settings: Value::Null,
            version: folder.version()?,
            progress: Csv::new(folder.progress_path()),
            eval: Csv::new(folder.eval_path()),
            folder,
            log_bytes: 0,
            log_error: None,
            last: Last::default(),
            summary,
            flat: Map::new(),
            changed: 0,
            flat_changed: 0,
        })
    }

    /// Reads what has changed. Returns whether the settings and whether anything differs.
    pub(crate) fn poll(&mut self, locks: Option<&Locks>, now: SystemTime) -> (bool, bool) {
        let before = self.summary.clone();
        let configured = modified(&self.folder.config_path());
        let new_settings = configured != self.configured && self.read_settings();
        self.configured = configured;
        let progressed = self.progress.poll();
        if progressed || new_settings {
            self.read_progress();
        }
        self.eval.poll();
        self.read_log();
        let written = [self.folder.log_path(), self.folder.progress_path()];
        let written = written.iter().filter_map(|path| modified(path)).max();
        let written = written.or(configured).unwrap_or(UNIX_EPOCH);
        let last = self.last;
        let summary = &mut self.summary;
        summary.updated = seconds(written);
        summary.steps = last.steps;
        summary.of = self.settings["steps"].as_f64();
        summary.reward = last.reward;
        summary.speed = last.speed;
        summary.episodes = last.episodes;
        summary.seconds = last.seconds;
        summary.progress = [self.progress.generation().into(), self.progress.bytes()];
        summary.eval = [self.eval.generation().into(), self.eval.bytes()];
        summary.log = self.log_bytes;
        let of = |path: &Path| modified(path).map_or(0.0, seconds);
        (summary.live, summary.saved) = (
            of(&self.folder.live_path()),
            of(&self.folder.checkpoints_path()),
        );
        let here = self.version.as_ref().is_none_or(|v| v.host == host_name());
        let running = match locks {
            Some(locks) if here => locks.holder_of(&self.folder.lock_path()).is_some(),
            _ => !last.finished && now.duration_since(written).unwrap_or_default() < SILENT,
        };
        summary.state = match () {
            () if running => State::Running,
            () if last.finished => State::Finished,
            () if self.log_error.is_some() => State::Failed,
            () => State::Stopped,
        };
        summary.error = match summary.state {
            State::Failed => self.log_error.clone(),
            _ => None,
        };
        (new_settings, *summary != before)
    }

    /// Whether they are new. A file that is being edited is read when it is whole again.
    fn read_settings(&mut self) -> bool {
        let Ok(settings) = self.folder.settings() else {
            return false;
        };
        self.flat = flattened(&settings);
        let compared = self.flat.iter().filter(|(key, _)| {
            let first = key.split('.').next().unwrap_or(key);
            !NOT_COMPARED.contains(&first)
        });
        let compared: BTreeMap<&String, &Value> = compared.collect();
        let text = serde_json::to_string(&compared).unwrap_or_default();
        self.summary.group = format!("{:016x}", XxHash3_64::oneshot(text.as_bytes()));
        self.settings = settings;
        true
    }

    fn read_progress(&mut self) {
        let Ok(table) = self.progress.end() else {
            return;
        };
        let last = |name: &str| {
            let values = table.column(name)?;
            values.into_iter().rev().find(|value| value.is_finite())
        };
        let mut rewards = [SCORE_COLUMN].into_iter().chain(RETURN_COLUMNS);
        self.last = Last {
            finished: !table.rows.is_empty()
                && !matches!(
                    Ending::of(&self.settings, &table),
                    Ending::Unfinished { .. }
                ),
            steps: last(starling_record::STEP_COLUMN),
            reward: rewards.find_map(last),
            speed: last("Diagnostics/StepsPerSecond"),
            episodes: last("Diagnostics/CumCompletedTrajs"),
            seconds: last("Diagnostics/CumTime (s)"),
        };
    }

    fn read_log(&mut self) {
        let path = self.folder.log_path();
        let bytes = fs::metadata(&path).map_or(0, |found| found.len());
        if bytes != self.log_bytes {
            self.log_bytes = bytes;
            let tail = read_from(&path, bytes.saturating_sub(1 << 14), 1 << 14);
            self.log_error = tail.ok().and_then(|text| last_error(&text));
        }
    }

    /// What its process said about itself last.
    pub(crate) fn live(&self) -> Option<Live> {
        Live::read(&self.folder.live_path())
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.folder.lock_path()
    }

    /// The log from a byte on, at most its last 64 kB, and the byte that it begins with.
    pub(crate) fn log(&self, from: u64) -> (u64, String) {
        let start = from.max(self.log_bytes.saturating_sub(LOG));
        let text = read_from(&self.folder.log_path(), start, LOG);
        (start, text.unwrap_or_default())
    }

    /// What only the page of a run shows.
    pub(crate) fn details(&self, preset: Option<&Value>) -> Value {
        let path = self.folder.path();
        let config = self.folder.config_path();
        let repeat = [
            "starling",
            "train",
            "--config",
            &config.display().to_string(),
        ];
        let command = self.version.as_ref().map(|version| shell(&version.command));
        json!({
            "path": path.display().to_string(),
            "command": command,
            "repeat": shell(&repeat),
            "version": self.version,
            "settings": self.flat,
            "preset": preset.map(flattened),
            "videos": self.videos().iter().map(|video| video.file_name().unwrap_or_default()
                .to_string_lossy()).collect::<Vec<_>>(),
            "columns": names(&self.progress),
            "eval_columns": names(&self.eval),
        })
    }

    pub(crate) fn checkpoints(&self) -> Vec<Value> {
        let folder = self.folder.checkpoints_path();
        let best = fs::read_to_string(folder.join("best")).unwrap_or_default();
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Only the manifest is read: the rest can be large.
            let Ok(checkpoint) = Checkpoint::open_with(&entry.path(), |_| false) else {
                continue;
            };
            let files = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            let bytes: u64 = files
                .filter_map(|file| Some(file.metadata().ok()?.len()))
                .sum();
            found.push(json!({
                "step": checkpoint.step(),
                "score": checkpoint.score(),
                "best": best.trim() == name,
                "bytes": bytes,
                "time": modified(&entry.path()).map(seconds),
            }));
        }
        found.sort_by_key(|checkpoint| checkpoint["step"].as_u64());
        found
    }

    /// The videos in the run's folder, sorted.
    pub(crate) fn videos(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.videos_path());
        let files = entries.into_iter().flatten().flatten();
        let files = files.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let mut videos: Vec<PathBuf> = files
            .map(|entry| entry.path())
            .filter(|path| video_type(path).is_some())
            .collect();
        videos.sort();
        videos
    }
}

const LOG: u64 = 1 << 16;

/// The media type of a video, by the end of its name.
pub(crate) fn video_type(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "mp4" => Some("video/mp4"),
        "webm" => Some("video/webm"),
        "gif" => Some("image/gif"),
        _ => None,
    }
}

/// The names of the columns of a file.
pub(crate) fn names(csv: &Csv) -> Vec<String> {
    csv.end().map(|table| table.columns).unwrap_or_default()
}

/// The message of the last entry of a log, if that is an error.
fn last_error(log: &str) -> Option<String> {
    let mut error = None;
    for line in log.lines() {
        let Some((time, rest)) = line.split_once(' ') else {
            continue;
        };
        // 2026-11-16T19:40:29.417923Z
        let is_time = time.len() > 20 && time.ends_with('Z') && time.as_bytes()[4] == b'-';
        if is_time {
            let message = rest.trim_start().strip_prefix("ERROR ");
            error = message.map(|message| message.trim().to_owned());
        }
    }
    error
}

fn read_from(path: &Path, from: u64, most: u64) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Settings by their dotted names. Lists are values.
fn flattened(settings: &Value) -> Map<String, Value> {
    fn add(path: &str, value: &Value, flat: &mut Map<String, Value>) {
        match value {
            Value::Object(table) if !table.is_empty() => {
                for (key, value) in table {
                    let key = match path {
                        "" => key.clone(),
                        _ => format!("{path}.{key}"),
                    };
                    add(&key, value, flat);
                }
            }
            value => {
                flat.insert(path.to_owned(), value.clone());
            }
        }
    }
    let mut flat = Map::new();
    add("", settings, &mut flat);
    flat
}

/// Words as a shell reads them.
fn shell(words: &[impl AsRef<str>]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    let words = words.iter().map(|word| {
        let word = word.as_ref();
        match !word.is_empty() && word.chars().all(plain) {
            true => word.to_owned(),
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_failed_if_its_log_ends_with_an_error() {
        let error = "2026-11-16T19:40:29.417923Z ERROR environment 3 failed: no\nTraceback:\n  x";
        assert_eq!(last_error(error).unwrap(), "environment 3 failed: no");
        let later = "2026-11-16T19:50:29.417923Z  INFO resumed env_steps=3";
        assert_eq!(last_error(&format!("{error}\n{later}\n")), None);
        assert_eq!(last_error("ERROR in the middle of a line"), None);
    }

    #[test]
    fn settings_have_dotted_names() {
        let tree = json!({"algo": {"net": {"width": 2}, "hidden": [1, 2]}, "seed": 3, "x": {}});
        let flat = Value::Object(flattened(&tree));
        let expected = json!({"algo.net.width": 2, "algo.hidden": [1, 2], "seed": 3, "x": {}});
        assert_eq!(flat, expected);
    }

    #[test]
    fn commands_can_be_pasted() {
        assert_eq!(shell(&["a", "b c", "it's"]), r"a 'b c' 'it'\''s'");
    }
}
