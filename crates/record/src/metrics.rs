//! Metrics: rows of numbers, their statistics, and the recorder that writes them to files.
//!
//! Read first: [`Row`] (named numbers in order), [`Recorder`] (writes them), [`Summary`]
//! (average, spread and extremes of a series).

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::comparison::NOT_COMPARED;
use crate::csv::{CsvFile, CsvState};
use crate::error::{Context, Result};
use crate::folder::{LIVE, RunFolder, check_is_there};
use crate::tensorboard::{EventWriter, HyperParameter};

/// The first column of every table: environment steps, the x axis of all curves.
pub const STEP_COLUMN: &str = "env_steps";

/// Named numbers in the order in which they are to appear.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row(Vec<(String, f64)>);

impl Row {
    /// A row with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a number, or replaces the one of that name.
    pub fn set(&mut self, key: impl Into<String>, value: f64) {
        let key = key.into();
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key, value)),
        }
    }

    /// Adds the five statistics of a series under rlpyt's names: `ReturnAverage`, `ReturnStd`,
    /// `ReturnMedian`, `ReturnMin`, `ReturnMax` for the name `Return`.
    pub fn set_summary(&mut self, name: &str, summary: &Summary) {
        self.set(format!("{name}Average"), summary.average);
        self.set(format!("{name}Std"), summary.std);
        self.set(format!("{name}Median"), summary.median);
        self.set(format!("{name}Min"), summary.min);
        self.set(format!("{name}Max"), summary.max);
    }

    /// The number of that name.
    pub fn get(&self, key: &str) -> Option<f64> {
        let found = self.0.iter().find(|(known, _)| known == key);
        found.map(|(_, value)| *value)
    }

    /// All numbers in order.
    pub fn entries(&self) -> &[(String, f64)] {
        &self.0
    }

    /// The first number that is NaN or infinite among those whose names are `watched`.
    pub fn first_bad(&self, watched: impl Fn(&str) -> bool) -> Option<(&str, f64)> {
        let bad = |(key, value): &&(String, f64)| !value.is_finite() && watched(key);
        self.0.iter().find(bad).map(|(key, value)| (&**key, *value))
    }
}

impl<K: Into<String>> FromIterator<(K, f64)> for Row {
    fn from_iter<I: IntoIterator<Item = (K, f64)>>(pairs: I) -> Self {
        let mut row = Self::new();
        for (key, value) in pairs {
            row.set(key, value);
        }
        row
    }
}

/// Average, spread and extremes of a series; all NaN if it is empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The arithmetic mean.
    pub average: f64,
    /// The standard deviation of the series itself (divided by n, as numpy does it).
    pub std: f64,
    /// The middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Summary {
    /// The statistics of these values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Self {
                average: f64::NAN,
                std: f64::NAN,
                median: f64::NAN,
                min: f64::NAN,
                max: f64::NAN,
            };
        };
        let count = sorted.len() as f64;
        let average = sorted.iter().sum::<f64>() / count;
        let squares: f64 = sorted.iter().map(|value| (value - average).powi(2)).sum();
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        Self {
            average,
            std: (squares / count).sqrt(),
            median,
            min,
            max,
        }
    }
}

/// The most recent values of a series, such as the returns of the last 100 episodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    capacity: usize,
    values: VecDeque<f64>,
}

impl Window {
    /// A window over the last `capacity` values.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            values: VecDeque::new(),
        }
    }

    /// Adds a value and forgets the oldest one if the window is full.
    pub fn push(&mut self, value: f64) {
        self.values.push_back(value);
        while self.values.len() > self.capacity {
            self.values.pop_front();
        }
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no value yet.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Whether the window has seen as many values as it holds.
    pub fn is_full(&self) -> bool {
        self.values.len() >= self.capacity
    }

    /// The values, oldest first.
    pub fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.values.iter().copied()
    }

    /// The statistics of the values in the window.
    pub fn summary(&self) -> Summary {
        Summary::of(self.values())
    }
}

/// Writes rows of metrics to `progress.csv`, `eval.csv` and TensorBoard.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    progress: CsvFile,
    eval: CsvFile,
    events: EventWriter,
    last_step: Option<u64>,
}

/// How far a [`Recorder`] had got; belongs into every checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecorderState {
    /// How far `progress.csv` had got.
    pub progress: CsvState,
    /// How far `eval.csv` had got.
    pub eval: CsvState,
    /// The largest step recorded.
    pub last_step: Option<u64>,
}

impl Recorder {
    /// Starts the files of a new run.
    pub fn create(run: &RunFolder) -> Result<Self> {
        Ok(Self {
            folder: run.path().to_owned(),
            progress: CsvFile::create(run.progress_path()),
            eval: CsvFile::create(run.eval_path()),
            events: EventWriter::create(run.path())?,
            last_step: None,
        })
    }

    /// Continues the files of a run as they were at `state`; what came later is removed
    /// from the tables and, by a mark that TensorBoard understands, from its curves.
    pub fn resume(run: &RunFolder, state: RecorderState) -> Result<Self> {
        Ok(Self {
            folder: run.path().to_owned(),
            progress: CsvFile::resume(run.progress_path(), state.progress)?,
            eval: CsvFile::resume(run.eval_path(), state.eval)?,
            events: EventWriter::resume(run.path(), state.last_step.map_or(0, |step| step + 1))?,
            last_step: state.last_step,
        })
    }

    /// Records metrics of training at `step` environment steps.
    ///
    /// # Errors
    /// [`Error::Gone`](crate::Error::Gone) if the run folder was deleted.
    pub fn log(&mut self, step: u64, row: &Row) -> Result<()> {
        check_is_there(&self.folder)?;
        self.progress.append(&with_step(step, row))?;
        self.last_step = self.last_step.max(Some(step));
        let entries = row.entries().iter();
        let tagged: Vec<(String, f64)> = entries.map(|(key, value)| (tag(key), *value)).collect();
        self.events.scalars(step, &tagged)
    }

    /// Records the result of an evaluation: to `eval.csv`, and to TensorBoard under `eval/`.
    ///
    /// # Errors
    /// [`Error::Gone`](crate::Error::Gone) if the run folder was deleted.
    pub fn log_eval(&mut self, step: u64, row: &Row) -> Result<()> {
        check_is_there(&self.folder)?;
        self.eval.append(&with_step(step, row))?;
        self.last_step = self.last_step.max(Some(step));
        let tagged: Vec<(String, f64)> = row
            .entries()
            .iter()
            .map(|(key, value)| (format!("eval/{key}"), *value))
            .collect();
        self.events.scalars(step, &tagged)
    }

    /// The folder of the run.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Records the hyperparameters as a table in TensorBoard's text tab, and for its hparams tab: numbers
    /// and flags as such, without those that do not change what is learned.
    pub fn hyperparameters<K: AsRef<str>, V: AsRef<str>>(
        &mut self,
        table: &[(K, V)],
    ) -> Result<()> {
        let compared = table.iter().filter_map(|(key, value)| {
            let (key, value) = (key.as_ref(), value.as_ref());
            let section = key.split('.').next().unwrap_or(key);
            let counts = key == "seed" || !NOT_COMPARED.contains(&section);
            counts.then(|| (key, HyperParameter::of(value)))
        });
        self.events.hyperparameters(&compared.collect::<Vec<_>>())?;
        let mut markdown = String::from("|key|value|\n|-|-|\n");
        for (key, value) in table {
            let value = value.as_ref().replace('|', "\\|").replace('\n', " ");
            markdown.push_str(&format!("|{}|{value}|\n", key.as_ref()));
        }
        self.events.text(0, "hyperparameters", &markdown)
    }

    /// Where the live state of the process is written, `live.json`.
    pub fn live_path(&self) -> PathBuf {
        self.folder.join(LIVE)
    }

    /// How far the files have got, for a checkpoint. Before that counts, the tables have to be
    /// safely on disk: see [`Recorder::tables`].
    pub fn state(&self) -> RecorderState {
        RecorderState {
            progress: self.progress.state(),
            eval: self.eval.state(),
            last_step: self.last_step,
        }
    }

    /// The tables as they are now, to be synced to disk by another thread.
    pub fn tables(&self) -> Result<OpenTables> {
        let tables = [self.progress.handle()?, self.eval.handle()?];
        Ok(OpenTables(tables.into_iter().flatten().collect()))
    }
}

/// Tables of metrics that may not be safely on disk yet.
#[derive(Debug)]
pub struct OpenTables(Vec<(File, PathBuf)>);

impl OpenTables {
    /// Makes their rows last through a power cut.
    pub fn sync(&self) -> Result<()> {
        let mut tables = self.0.iter();
        tables.try_for_each(|(file, path)| file.sync_all().doing("sync", path))
    }
}

/// What TensorBoard calls a column. It makes a section of what stands before the first slash, sorted by
/// name: `charts`, with the return, the speed and the learning rate, comes first.
fn tag(column: &str) -> String {
    match column.split_once('/') {
        None => format!("episodes/{column}"),
        Some(("Diagnostics", rest)) => format!("diagnostics/{rest}"),
        Some(_) => column.to_owned(),
    }
}

fn with_step(step: u64, row: &Row) -> Vec<(&str, f64)> {
    let mut cells = vec![(STEP_COLUMN, step as f64)];
    let others = row.entries().iter().filter(|(key, _)| key != STEP_COLUMN);
    cells.extend(others.map(|(key, value)| (&**key, *value)));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensorboard::{Event, decode};
    use std::fs;
    use std::time::SystemTime;

    #[test]
    fn statistics_worked_by_hand() {
        let summary = Summary::of([4.0, 1.0, 3.0, 2.0]);
        // Deviations from 2.5: 1.5, 1.5, 0.5, 0.5; squares sum to 5; 5 / 4 = 1.25.
        let expected = Summary {
            average: 2.5,
            std: 1.25_f64.sqrt(),
            median: 2.5,
            min: 1.0,
            max: 4.0,
        };
        assert_eq!(summary, expected);
        assert_eq!(Summary::of([3.0, 1.0, 9.0]).median, 3.0);
        assert!(Summary::of([]).average.is_nan());
        let mut row = Row::new();
        row.set_summary("Return", &summary);
        let keys: Vec<&str> = row.entries().iter().map(|(key, _)| &**key).collect();
        let expected = [
            "ReturnAverage",
            "ReturnStd",
            "ReturnMedian",
            "ReturnMin",
            "ReturnMax",
        ];
        assert_eq!(keys, expected);
    }

    #[test]
    fn a_window_forgets() {
        let mut window = Window::new(3);
        for value in 0..5 {
            window.push(f64::from(value));
        }
        assert!(window.is_full());
        assert_eq!(window.values().collect::<Vec<_>>(), [2.0, 3.0, 4.0]);
        let text = serde_json::to_string(&window).unwrap();
        assert_eq!(serde_json::from_str::<Window>(&text).unwrap(), window);
    }

    #[test]
    fn a_bad_loss_is_found() {
        let row: Row = [("ReturnAverage", f64::NAN), ("losses/value", f64::INFINITY)]
            .into_iter()
            .collect();
        let found = row.first_bad(|key| key.starts_with("losses/"));
        assert_eq!(found, Some(("losses/value", f64::INFINITY)));
        assert_eq!(row.first_bad(|key| key == "x"), None);
    }

    fn run(root: &std::path::Path, seed: u64) -> RunFolder {
        let now = SystemTime::now();
        RunFolder::create(root, "CartPole-v1", "ppo", "t", seed, now).unwrap()
    }

    fn row(step: u64) -> Row {
        let mut row = Row::new();
        row.set("losses/value", (step as f64).sin());
        if step > 40 {
            row.set("late", step as f64 / 3.0);
        }
        row
    }

    fn record(recorder: &mut Recorder, steps: impl Iterator<Item = u64>) {
        for step in steps.map(|i| i * 10) {
            recorder.log(step, &row(step)).unwrap();
            if step % 30 == 0 {
                recorder.log_eval(step, &row(step)).unwrap();
            }
        }
    }

    fn events(run: &RunFolder) -> Vec<Event> {
        let mut paths: Vec<_> = fs::read_dir(run.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().contains("tfevents"))
            .collect();
        paths.sort();
        let decoded = paths
            .iter()
            .map(|path| decode(path, &fs::read(path).unwrap()).unwrap());
        decoded.flatten().collect()
    }

    /// What TensorBoard shows: later sessions replace the steps they start at.
    fn shown(events: Vec<Event>) -> Vec<(u64, Vec<(String, f32)>)> {
        let mut shown: Vec<(u64, Vec<(String, f32)>)> = Vec::new();
        for event in events {
            if event.session_start {
                shown.retain(|(step, _)| *step < event.step);
            }
            if !event.scalars.is_empty() {
                shown.push((event.step, event.scalars));
            }
        }
        shown
    }

    #[test]
    fn resumed_files_equal_uninterrupted_ones() {
        let root = tempfile::tempdir().unwrap();
        let whole = run(root.path(), 1);
        let mut recorder = Recorder::create(&whole).unwrap();
        record(&mut recorder, 0..10);

        let cut = run(root.path(), 2);
        let mut first = Recorder::create(&cut).unwrap();
        record(&mut first, 0..4);
        let state = first.state();
        record(&mut first, 4..7);
        drop(first);
        let text = serde_json::to_string(&state).unwrap();
        let mut second = Recorder::resume(&cut, serde_json::from_str(&text).unwrap()).unwrap();
        record(&mut second, 4..10);

        for file in ["progress.csv", "eval.csv"] {
            let read = |run: &RunFolder| fs::read_to_string(run.path().join(file)).unwrap();
            assert_eq!(read(&cut), read(&whole), "{file}");
            assert!(read(&cut).starts_with("env_steps,losses/value,late\n0,0,nan\n"));
        }
        assert_eq!(second.state(), recorder.state());
        assert_eq!(shown(events(&cut)), shown(events(&whole)));
    }

    #[test]
    fn a_deleted_folder_is_an_error_although_the_files_are_open() {
        let root = tempfile::tempdir().unwrap();
        let run = run(root.path(), 1);
        let mut recorder = Recorder::create(&run).unwrap();
        record(&mut recorder, 0..4);
        fs::remove_dir_all(run.path()).unwrap();
        for error in [recorder.log(40, &row(40)), recorder.log_eval(40, &row(40))] {
            let error = error.unwrap_err();
            assert!(
                matches!(&error, crate::Error::Gone { path } if path == run.path()),
                "{error}"
            );
        }
        assert!(!run.path().exists());
    }

    #[test]
    fn hyperparameters_become_a_table() {
        let root = tempfile::tempdir().unwrap();
        let run = run(root.path(), 1);
        let mut recorder = Recorder::create(&run).unwrap();
        recorder
            .hyperparameters(&[("lr", "0.1"), ("act", "a|b")])
            .unwrap();
        let text = &events(&run)[2].texts[0].1;
        assert_eq!(text, "|key|value|\n|-|-|\n|lr|0.1|\n|act|a\\|b|\n");
    }
}
