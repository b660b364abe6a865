//! Existing runs: finding their folders, and reading what a comparison needs.
//!
//! Read first: [`find_runs`], [`find_run`], [`Run`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::csv::Table;
use crate::error::{Context, Error, Result};
use crate::folder::{CONFIG, RunFolder, RunInfo};
use crate::metrics::STEP_COLUMN;

/// One run, as plots and statistics need it.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its folder.
    pub path: PathBuf,
    /// What the run is.
    pub info: RunInfo,
    /// When it was started, as its folder's name says; later runs compare as greater.
    pub started: Option<(String, u64)>,
    /// Its settings, as `config.yaml` has them.
    pub settings: Value,
    /// How it ended.
    pub ending: Ending,
    /// Where its metrics come from.
    pub source: Source,
    /// Its metrics, with a column [`STEP_COLUMN`].
    pub table: Table,
}

/// Which table the metrics of a run are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `progress.csv`: episodes of training, as the agent sees them.
    Training,
    /// `eval.csv`: whole episodes without exploration and with the environment's own rewards.
    Evaluation,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    /// It did all its steps.
    Finished,
    /// It stopped when its mean return reached `stop_at_return`, which is this. Its final value is
    /// that threshold by construction.
    Stopped(f64),
    /// It was interrupted, or is still running.
    Unfinished {
        /// The steps that it has done.
        steps: u64,
        /// The steps that it was to do.
        of: u64,
    },
}

/// The columns that hold an episode's return, in the order in which they are looked for.
pub const RETURN_COLUMNS: [&str; 3] = ["ReturnAverage", "charts/episodic_return", "Return"];

/// The column that holds the points of whole games, where environments count them. Returns of
/// training may be of single lives and of clipped rewards instead.
pub const SCORE_COLUMN: &str = "GameScoreAverage";

/// The column of the seconds spent on the run.
pub const TIME_COLUMN: &str = "Diagnostics/CumTime (s)";

impl Run {
    /// Reads the settings and the metrics of a run.
    pub fn read(folder: &RunFolder, source: Source) -> Result<Self> {
        let settings = folder.settings()?;
        let progress = read_table(
            &folder.progress_path(),
            "there is no such file: the run has written no metrics yet",
        )?;
        let ending = Ending::of(&settings, &progress);
        Ok(Self {
            path: folder.path().to_owned(),
            info: folder.info()?,
            started: folder.started(),
            settings,
            ending,
            source,
            table: match source {
                Source::Evaluation => {
                    let missing =
                        "there is no such file: the run was not evaluated (eval.every_steps)";
                    with_times(read_table(&folder.eval_path(), missing)?, &progress)
                }
                Source::Training => progress,
            },
        })
    }

    /// The last number in a column.
    pub fn last(&self, column: &str) -> Option<f64> {
        last(&self.table, column)
    }
}

impl Ending {
    /// How the run with these settings and this `progress.csv` ended. The last rows are enough.
    pub fn of(settings: &Value, progress: &Table) -> Self {
        let steps = last(progress, STEP_COLUMN).unwrap_or(0.0) as u64;
        let of = settings["steps"].as_u64().unwrap_or(0);
        if steps >= of {
            return Self::Finished;
        }
        if let Some(goal) = settings["stop_at_return"].as_f64() {
            // Where games are counted, the goal is a score of whole games.
            let mut columns = [SCORE_COLUMN].iter().chain(&RETURN_COLUMNS);
            let reached = columns.find_map(|column| last(progress, column));
            if reached.is_some_and(|value| value >= goal) {
                return Self::Stopped(goal);
            }
        }
        Self::Unfinished { steps, of }
    }
}

/// The folders of all runs at or below the given paths, sorted, each once.
///
/// # Errors
/// [`Error::NotARun`] when there is no run at or below one of them.
pub fn find_runs(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all: Vec<(PathBuf, PathBuf)> = Vec::new();
    for path in paths {
        let mut found = Vec::new();
        search(path, DEEPEST, &mut found)?;
        if found.is_empty() {
            return Err(Error::NotARun {
                path: path.clone(),
                missing: CONFIG,
            });
        }
        for run in found {
            all.push((fs::canonicalize(&run).doing("find", &run)?, run));
        }
    }
    all.sort();
    all.dedup_by(|later, earlier| later.0 == earlier.0);
    Ok(all.into_iter().map(|(_, run)| run).collect())
}

/// The run that a person means by a text: its folder; `last` for the run that was started last; the
/// beginning of its folder's name, or of its path below `root`, if it fits only one run; or a folder
/// that contains only one run. `other/last` and `other/be` search the folder `other` instead.
///
/// # Errors
/// [`Error::NoSuchRun`] if there is none, [`Error::SeveralRuns`] if there are several.
pub fn find_run(text: &Path, root: &Path) -> Result<PathBuf> {
    if text.join(CONFIG).is_file() {
        return Ok(text.to_owned());
    }
    let parents = text.ancestors().filter(|path| !path.as_os_str().is_empty());
    let base = parents.into_iter().find(|path| path.is_dir());
    let wanted = match base {
        Some(base) => text.strip_prefix(base).unwrap_or(text),
        None => text,
    };
    let base = base.unwrap_or(root);
    let none = || Error::NoSuchRun {
        text: text.display().to_string(),
        folder: base.to_owned(),
    };
    let mut runs = Vec::new();
    if base.is_dir() {
        search(base, DEEPEST, &mut runs)?;
    }
    if wanted == Path::new("last") {
        return runs
            .into_iter()
            .max_by_key(|run| newest(run))
            .ok_or_else(none);
    }
    let wanted = wanted.to_string_lossy();
    let name = |run: &PathBuf| {
        run.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    if let Some(exact) = runs.iter().position(|run| name(run) == wanted) {
        return Ok(runs.swap_remove(exact));
    }
    runs.retain(|run| {
        let below = run.strip_prefix(base).unwrap_or(run);
        name(run).starts_with(&*wanted) || below.to_string_lossy().starts_with(&*wanted)
    });
    runs.sort();
    match runs.len() {
        0 => Err(none()),
        1 => Ok(runs.swap_remove(0)),
        _ => Err(Error::SeveralRuns {
            text: text.display().to_string(),
            runs,
        }),
    }
}

/// Later runs compare as greater.
fn newest(run: &Path) -> (Option<(String, u64)>, PathBuf) {
    let folder = RunFolder::open(run).ok();
    let started = folder.and_then(|folder| folder.started());
    (started, run.to_owned())
}

/// `runs/<env>/<algo>/<run>`, and some more for those who sort their runs further.
const DEEPEST: usize = 6;

fn search(path: &Path, deepest: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    if path.join(CONFIG).is_file() {
        found.push(path.to_owned());
        return Ok(());
    }
    if deepest == 0 || !path.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(path).doing("list", path)? {
        let entry = entry.doing("list", path)?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        // Links could lead in circles.
        if !hidden && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            search(&entry.path(), deepest - 1, found)?;
        }
    }
    Ok(())
}

fn read_table(path: &Path, missing: &str) -> Result<Table> {
    match Table::read(path) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Err(Error::Malformed {
                path: path.to_owned(),
                reason: missing.to_owned(),
            })
        }
        read => read,
    }
}

/// Evaluations have no times of their own: that of the last row of `progress.csv` up to their step.
fn with_times(mut eval: Table, progress: &Table) -> Table {
    let (Some(steps), Some(at), Some(times)) = (
        eval.column(STEP_COLUMN),
        progress.column(STEP_COLUMN),
        progress.column(TIME_COLUMN),
    ) else {
        return eval;
    };
    eval.columns.push(TIME_COLUMN.to_owned());
    for (row, step) in eval.rows.iter_mut().zip(steps) {
        let before = at.iter().rposition(|at| *at <= step);
        row.push(
            before
                .or((!at.is_empty()).then_some(0))
                .map_or(f64::NAN, |i| times[i]),
        );
    }
    eval
}

fn last(table: &Table, column: &str) -> Option<f64> {
    let values = table.column(column)?.into_iter();
    values.rev().find(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn how_a_run_ended() {
        let ending = |settings: Value, csv: &str| Ending::of(&settings, &Table::parse(csv));
        let table = "env_steps,ReturnAverage\n100,3\n200,9\n";
        assert_eq!(ending(json!({"steps": 200}), table), Ending::Finished);
        let early = json!({"steps": 500, "stop_at_return": 9.0});
        assert_eq!(ending(early, table), Ending::Stopped(9.0));
        let unfinished = Ending::Unfinished {
            steps: 200,
            of: 500,
        };
        let settings = json!({"steps": 500, "stop_at_return": 10.0});
        assert_eq!(ending(settings, table), unfinished);
        assert_eq!(ending(json!({"steps": 500}), table), unfinished);
        // On Atari the threshold is one of game scores.
        let table = "env_steps,ReturnAverage,GameScoreAverage\n200,1,20\n";
        let early = json!({"steps": 500, "stop_at_return": 19});
        assert_eq!(ending(early, table), Ending::Stopped(19.0));
    }

    #[test]
    fn a_run_is_read_with_its_settings_and_its_ending() {
        let root = tempfile::tempdir().unwrap();
        let now = std::time::SystemTime::now();
        let folder = RunFolder::create(root.path(), "E", "ppo", "t", 3, now).unwrap();
        let settings = "steps: 500\nalgo: {learning_rate: 0.1}\n";
        folder.write_config(settings).unwrap();
        let error = Run::read(&folder, Source::Training).unwrap_err();
        assert!(error.to_string().contains("no metrics yet"), "{error}");
        let progress = "env_steps,ReturnAverage,Diagnostics/CumTime (s)\n90,8,2\n200,9,5\n";
        fs::write(folder.progress_path(), progress).unwrap();
        let run = Run::read(&folder, Source::Training).unwrap();
        assert_eq!(run.settings["algo"]["learning_rate"], 0.1);
        let (steps, of) = (200, 500);
        assert_eq!(run.ending, Ending::Unfinished { steps, of });
        assert_eq!((run.info.seed, run.last("ReturnAverage")), (3, Some(9.0)));
        let error = Run::read(&folder, Source::Evaluation).unwrap_err();
        assert!(error.to_string().contains("not evaluated"), "{error}");
        fs::write(folder.eval_path(), "env_steps,ReturnAverage\n100,4\n").unwrap();
        let run = Run::read(&folder, Source::Evaluation).unwrap();
        assert_eq!(run.last("ReturnAverage"), Some(4.0));
        assert_eq!(run.last(TIME_COLUMN), Some(2.0));
        assert_eq!(run.ending, Ending::Unfinished { steps, of });
    }

    #[test]
    fn folders_are_searched_and_runs_found_once() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for run in ["CartPole-v1/ppo/a", "CartPole-v1/ppo/b", "Pong/dqn/c"] {
            fs::create_dir_all(at(run).join("checkpoints")).unwrap();
            fs::write(at(run).join(CONFIG), "").unwrap();
        }
        // What is inside a run is not another run.
        fs::write(at("CartPole-v1/ppo/a/checkpoints/config.yaml"), "").unwrap();
        fs::create_dir_all(at("empty/ppo")).unwrap();
        let found = |paths: &[&str]| {
            let paths: Vec<PathBuf> = paths.iter().map(|path| at(path)).collect();
            find_runs(&paths).map(|runs| runs.len())
        };
        assert_eq!(found(&[""]).unwrap(), 3);
        assert_eq!(found(&["CartPole-v1/ppo"]).unwrap(), 2);
        let twice = ["CartPole-v1/ppo/b", "CartPole-v1/../CartPole-v1/ppo/b", ""];
        assert_eq!(found(&twice).unwrap(), 3);
        for nothing in ["empty", "nowhere"] {
            let error = found(&["CartPole-v1", nothing]).unwrap_err();
            assert!(matches!(error, Error::NotARun { .. }), "{error}");
        }
    }

    #[test]
    fn a_run_is_found_by_the_beginning_of_its_name() {
        let root = tempfile::tempdir().unwrap();
        let runs = root.path().join("runs");
        let names = [
            "CartPole-v1/ppo/base-s1-20261115T100000Z",
            "CartPole-v1/ppo/base-s2-20261116T100000Z",
            "Pong/dqn/wide-s1-20261114T100000Z",
            "Pong/dqn/wide-s1-20261114T100000Z-2",
        ];
        for name in names {
            fs::create_dir_all(runs.join(name)).unwrap();
            fs::write(runs.join(name).join(CONFIG), "").unwrap();
        }
        let found = |text: &str| find_run(Path::new(text), &runs);
        let is = |text: &str, name: usize| assert_eq!(found(text).unwrap(), runs.join(names[name]));
        is("last", 1);
        is("base-s1", 0);
        is("CartPole-v1/ppo/base-s2", 1);
        is("wide-s1-20261114T100000Z", 2);
        is("wide-s1-20261114T100000Z-", 3);
        is(&runs.join(names[0]).display().to_string(), 0);
        let below = |text: &str| runs.join(text).display().to_string();
        is(&below("Pong/dqn/last"), 3);
        is(&below("CartPole-v1/ppo/base-s2"), 1);
        let error = found("base").unwrap_err();
        assert!(
            matches!(&error, Error::SeveralRuns { runs, .. } if runs.len() == 2),
            "{error}"
        );
        let error = found(&below("Pong")).unwrap_err().to_string();
        assert!(error.contains("2 runs"), "{error}");
        for nothing in ["nobody", "Pong/ppo", ""] {
            let found = found(nothing);
            assert!(found.is_err(), "{nothing}: {found:?}");
        }
        let error = find_run(Path::new("last"), &root.path().join("nowhere")).unwrap_err();
        assert!(
            error.to_string().contains("there is no run 'last'"),
            "{error}"
        );
    }
}
