//! Comparison of runs: which are repetitions of each other, and what they reached.
//!
//! Runs of one environment and algorithm that differ only in the seed are repetitions. Runs with
//! different settings are separate groups, labelled with the settings that differ.
//!
//! Unless a column is given, the score of whole games is compared if the table has it (Atari), and
//! the return of episodes otherwise. Only scores of whole games, and returns of evaluations, are
//! normalised by human scores: training returns may be those of single lives with clipped rewards.
//!
//! Read first: [`Comparison`], [`Group`], [`FinalScore`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::runs::{Ending, RETURN_COLUMNS, Run, SCORE_COLUMN, Source};
use crate::scores::scores_of;
use crate::statistics::{Aggregate, aggregate};

/// Runs that were put into groups.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The groups, sorted by environment, algorithm and settings.
    pub groups: Vec<Group>,
    /// Runs that were left out, and why.
    pub notes: Vec<String>,
}

/// Runs that differ in their seeds only.
#[derive(Clone, Debug)]
pub struct Group {
    /// The environment.
    pub env: String,
    /// The algorithm.
    pub algo: String,
    /// The settings in which this group differs from others of its environment and algorithm, by
    /// their dotted names.
    pub settings: Vec<(String, String)>,
    /// What is compared.
    pub measure: Measure,
    /// The runs, sorted by seed.
    pub runs: Vec<Run>,
}

/// What is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    /// The column of the table.
    pub column: String,
    /// What it means.
    pub kind: Kind,
}

/// What a column means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The points of whole games.
    GameScore,
    /// The return of an episode of an evaluation, in the environment's own rewards.
    EvalReturn,
    /// The return of an episode of training, as the agent sees it.
    Return,
    /// Another column, which the user named.
    Other,
}

impl Measure {
    /// What an axis or a line of results calls it.
    pub fn label(&self) -> &str {
        match self.kind {
            Kind::GameScore => "game score",
            Kind::EvalReturn => "evaluation return",
            Kind::Return => "return",
            Kind::Other => &self.column,
        }
    }

    fn of(column: &str, source: Source) -> Self {
        let kind = match source {
            _ if column == SCORE_COLUMN => Kind::GameScore,
            _ if !RETURN_COLUMNS.contains(&column) => Kind::Other,
            Source::Evaluation => Kind::EvalReturn,
            Source::Training => Kind::Return,
        };
        let column = column.to_owned();
        Self { column, kind }
    }

    /// Whether it can be compared with scores of human play.
    fn is_of_whole_games(&self) -> bool {
        matches!(self.kind, Kind::GameScore | Kind::EvalReturn)
    }
}

impl Comparison {
    /// Puts runs into groups. A run counts once, and so does a seed: a second run with the same
    /// settings and seed is not an independent sample, and the newest one is kept.
    ///
    /// `column` is what to compare instead of game scores or returns.
    ///
    /// # Errors
    /// [`Error::NoColumn`] if no run has that column, [`Error::NothingToPlot`] if none has a number
    /// there.
    pub fn of(runs: Vec<Run>, column: Option<&str>) -> Result<Self> {
        Self::by(runs, column, &[])
    }

    /// As [`Comparison::of`], but runs of one environment and algorithm form a group if they are equal
    /// in these settings, whatever else differs. Besides dotted names of settings there are `seed`,
    /// `name` (the first part of the folder's name) and `run` (each run by itself). If none are given,
    /// groups differ in everything but the seed.
    ///
    /// # Errors
    /// As [`Comparison::of`]; [`Error::NoSetting`] if no run has one of these settings.
    pub fn by(runs: Vec<Run>, column: Option<&str>, by: &[String]) -> Result<Self> {
        if let Some(name) = by
            .iter()
            .find(|key| runs.iter().all(|run| value_of(run, key).is_none()))
        {
            let name = name.clone();
            return Err(Error::NoSetting { name });
        }
        let mut notes = Vec::new();
        let mut kinds: BTreeMap<(String, String), Vec<Run>> = BTreeMap::new();
        let measures = measures(&runs, column)?;
        for run in runs {
            let measure = &measures[&run.info.env];
            if run.last(&measure.column).is_some() {
                let kind = (run.info.env.clone(), run.info.algo.clone());
                kinds.entry(kind).or_default().push(run);
            } else {
                let (path, what) = (run.path.display(), measure.label());
                notes.push(format!("{path} is left out: it has no {what} yet"));
            }
        }
        let mut groups = Vec::new();
        for ((env, algo), runs) in kinds {
            let grouped = match by {
                [] => by_settings(runs),
                by => by_keys(runs, by),
            };
            for (settings, mut runs) in grouped {
                keep_newest(&mut runs, &mut notes);
                groups.push(Group {
                    measure: measures[&env].clone(),
                    env: env.clone(),
                    algo: algo.clone(),
                    settings,
                    runs,
                });
            }
        }
        match groups.is_empty() {
            false => Ok(Self { groups, notes }),
            true => Err(Error::NothingToPlot {
                reason: match notes.is_empty() {
                    true => "no runs".to_owned(),
                    false => notes.join("; "),
                },
            }),
        }
    }

    /// The environments, each once.
    pub fn envs(&self) -> Vec<&str> {
        let envs: BTreeSet<&str> = self.groups.iter().map(|group| &*group.env).collect();
        envs.into_iter().collect()
    }

    /// What the runs of each algorithm and its settings ended with.
    ///
    /// Several games are put together on a common scale, that of human play, if it is known for
    /// all of them and the scores are of whole games. A single game has its own scale too.
    pub fn final_scores(&self) -> Vec<FinalScore> {
        let normalised = self.groups.iter().all(|group| {
            let known = scores_of(&group.env).is_some_and(|game| game.human.is_some());
            known && group.measure.is_of_whole_games()
        });
        let mut agents: BTreeMap<_, Vec<&Group>> = BTreeMap::new();
        for group in &self.groups {
            let agent = (&group.algo, &group.settings);
            agents.entry(agent).or_default().push(group);
        }
        let mut scores = Vec::new();
        for groups in agents.values() {
            if !normalised || groups.len() == 1 {
                scores.extend(groups.iter().filter_map(|group| {
                    let what = format!("{}: {}", group.env, group.measure.label());
                    FinalScore::of(&[group], what, |_, value| Some(value))
                }));
            }
            if normalised {
                let what = "human-normalised score".to_owned();
                scores.extend(FinalScore::of(groups, what, |group, value| {
                    scores_of(&group.env)?.human_normalized(value)
                }));
            }
        }
        scores
    }
}

impl Group {
    /// The algorithm, and the settings in which it differs from other groups.
    pub fn label(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for (key, _) in &self.settings {
            let short = key.rsplit('.').next().unwrap_or(key);
            let same = |(other, _): &&(String, String)| other.rsplit('.').next() == Some(short);
            let unique = self.settings.iter().filter(same).count() == 1;
            names.push(if unique { short } else { key });
        }
        let values = self.settings.iter().map(|(_, value)| value);
        let pairs = names.iter().zip(values);
        let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
        [std::slice::from_ref(&self.algo), &pairs]
            .concat()
            .join(" ")
    }
}

/// What the runs of one algorithm ended with, over games and seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct FinalScore {
    /// The algorithm, and the settings in which it differs from others.
    pub label: String,
    /// What the numbers are.
    pub what: String,
    /// The numbers.
    pub scores: Aggregate,
    /// Runs that stopped at a return that was set beforehand: their final value is that threshold
    /// by construction.
    pub stopped: usize,
    /// Runs that were interrupted or are still running.
    pub unfinished: usize,
}

impl FinalScore {
    fn of(
        groups: &[&Group],
        what: String,
        scale: impl Fn(&Group, f64) -> Option<f64>,
    ) -> Option<Self> {
        let scores: Vec<Vec<f64>> = groups
            .iter()
            .map(|group| {
                let last = |run: &Run| scale(group, run.last(&group.measure.column)?);
                group.runs.iter().filter_map(last).collect()
            })
            .collect();
        let runs = || groups.iter().flat_map(|group| &group.runs);
        let count = |ending: fn(Ending) -> bool| runs().filter(|run| ending(run.ending)).count();
        Some(Self {
            label: groups.first()?.label(),
            what,
            scores: aggregate(&scores)?,
            stopped: count(|ending| matches!(ending, Ending::Stopped(_))),
            unfinished: count(|ending| matches!(ending, Ending::Unfinished { .. })),
        })
    }
}

impl fmt::Display for FinalScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, what, .. } = self;
        let scores = &self.scores;
        write!(f, "{label}, {what}: ")?;
        match scores.runs {
            1 => write!(f, "{:.2}", scores.iqm.value)?,
            _ => write!(f, "IQM {}, median {}", scores.iqm, scores.median)?,
        }
        let (games, runs) = (count(scores.games, "game"), count(scores.runs, "run"));
        write!(f, " ({games}, {runs}")?;
        if scores.iqm.interval.is_some() {
            write!(f, "; 95 % bootstrap intervals")?;
        }
        write!(f, ")")?;
        if self.stopped > 0 {
            let runs = count(self.stopped, "run");
            write!(
                f,
                "\n  {runs} stopped at stop_at_return: the final value is that threshold by \
                 construction"
            )?;
        }
        if self.unfinished > 0 {
            let runs = count(self.unfinished, "run");
            write!(f, "\n  {runs} unfinished: the value is the last one so far")?;
        }
        Ok(())
    }
}

fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

/// What is compared in each environment: the column that was asked for, or the first of the usual
/// ones in which one of its runs has a number.
fn measures(runs: &[Run], column: Option<&str>) -> Result<BTreeMap<String, Measure>> {
    let wanted: Vec<&str> = match column {
        Some(column) => vec![column],
        None => [SCORE_COLUMN].into_iter().chain(RETURN_COLUMNS).collect(),
    };
    let columns = runs.iter().flat_map(|run| &run.table.columns);
    let columns: BTreeSet<&str> = columns.map(|column| &**column).collect();
    if !runs.is_empty() && !wanted.iter().any(|column| columns.contains(column)) {
        let present: Vec<String> = columns.into_iter().map(str::to_owned).collect();
        return Err(match present.is_empty() {
            true => Error::NothingToPlot {
                reason: "the runs have no rows yet".to_owned(),
            },
            false => Error::NoColumn {
                name: wanted.join(" or "),
                present,
            },
        });
    }
    let mut measures = BTreeMap::new();
    for run in runs {
        let env = &run.info.env;
        let of_env = || runs.iter().filter(|run| run.info.env == *env);
        let has = |column: &&&str| of_env().any(|run| run.last(column).is_some());
        let column = wanted.iter().find(has).or(wanted.last());
        if let Some(column) = column {
            measures.insert(env.clone(), Measure::of(column, run.source));
        }
    }
    Ok(measures)
}

/// Settings that say which sample a run is, what is written, or how fast it is, and not what is
/// learned.
pub const NOT_COMPARED: [&str; 8] = [
    "seed",
    "log_every_steps",
    "eval",
    "checkpoint",
    "video",
    "stall_timeout_s",
    "pin_threads",
    "torch_threads",
];

/// Puts runs of one environment and algorithm into groups by the settings that differ.
fn by_settings(runs: Vec<Run>) -> BTreeMap<Vec<(String, String)>, Vec<Run>> {
    let mut differing = Vec::new();
    let all: Vec<&Value> = runs.iter().map(|run| &run.settings).collect();
    find_differing("", &all, &NOT_COMPARED, &mut differing);
    let of_run = |i: usize| {
        let settings = differing.iter();
        let settings = settings.map(|(key, values)| (key.clone(), values[i].clone()));
        settings.collect::<Vec<_>>()
    };
    let keys: Vec<_> = (0..runs.len()).map(of_run).collect();
    let mut groups: BTreeMap<_, Vec<Run>> = BTreeMap::new();
    for (key, run) in keys.into_iter().zip(runs) {
        groups.entry(key).or_default().push(run);
    }
    groups
}

/// Puts runs of one environment and algorithm into groups by some settings.
fn by_keys(runs: Vec<Run>, by: &[String]) -> BTreeMap<Vec<(String, String)>, Vec<Run>> {
    let mut groups: BTreeMap<_, Vec<Run>> = BTreeMap::new();
    for run in runs {
        let value = |key: &String| {
            (
                key.clone(),
                value_of(&run, key).unwrap_or_else(|| "–".into()),
            )
        };
        let key: Vec<(String, String)> = by.iter().map(value).collect();
        groups.entry(key).or_default().push(run);
    }
    groups
}

/// What a run has for a setting by its dotted name, or for `seed`, `name` and `run`.
fn value_of(run: &Run, key: &str) -> Option<String> {
    match key {
        "seed" => Some(run.info.seed.to_string()),
        "name" => Some(run.info.name.clone()),
        "run" => Some(run.path.file_name()?.to_string_lossy().into_owned()),
        key => {
            let pointer = format!("/{}", key.replace('.', "/"));
            run.settings.pointer(&pointer).map(text)
        }
    }
}

/// The settings in which two runs differ, all of them, by their dotted names, with both values.
pub fn differences(a: &Value, b: &Value) -> Vec<(String, [String; 2])> {
    let mut found = Vec::new();
    find_differing("", &[a, b], &[], &mut found);
    let pair = |values: Vec<String>| values.try_into().unwrap_or_default();
    found
        .into_iter()
        .map(|(key, values)| (key, pair(values)))
        .collect()
}

/// Finds the settings below `path` in which runs differ, by their dotted names, with the value of
/// each run, without the sections `left_out`. Where one run has a table and another has not, the whole
/// table is one value, and so is a schedule.
fn find_differing(
    path: &str,
    values: &[&Value],
    left_out: &[&str],
    found: &mut Vec<(String, Vec<String>)>,
) {
    if values.iter().all(|value| value == &values[0]) {
        return;
    }
    let tables: Option<Vec<_>> = values
        .iter()
        .map(|value| value.as_object().filter(|_| schedule(value).is_none()))
        .collect();
    let Some(tables) = tables else {
        let texts = values.iter().map(|value| text(value));
        found.push((path.to_owned(), texts.collect()));
        return;
    };
    let keys: BTreeSet<&String> = tables.iter().flat_map(|table| table.keys()).collect();
    for key in keys {
        // A setting that an older version did not have counts as not set.
        let values: Vec<&Value> = tables
            .iter()
            .map(|table| table.get(key).unwrap_or(&Value::Null))
            .collect();
        match path {
            "" if left_out.contains(&&**key) => {}
            "" => find_differing(key, &values, left_out, found),
            _ => find_differing(&format!("{path}.{key}"), &values, left_out, found),
        }
    }
}

/// A value as a label shows it.
fn text(value: &Value) -> String {
    schedule(value).unwrap_or_else(|| value.to_string().replace('"', ""))
}

/// A linear change over the run, `{start: 0.001, end: 0, by: 0.5}`, as `0.001→0 by 0.5`.
fn schedule(value: &Value) -> Option<String> {
    let table = value.as_object()?;
    let known = |key: &String| ["start", "end", "by"].contains(&key.as_str());
    if !table.keys().all(known) {
        return None;
    }
    let number = |key| table.get(key).and_then(Value::as_f64);
    let change = format!("{}→{}", number("start")?, number("end")?);
    Some(match number("by") {
        None | Some(1.0) => change,
        Some(by) => format!("{change} by {by}"),
    })
}

/// Sorts by seed, and keeps the newest of runs with the same seed and the same settings.
fn keep_newest(runs: &mut Vec<Run>, notes: &mut Vec<String>) {
    runs.sort_by(|a, b| {
        let newest_first = b.started.cmp(&a.started);
        let by_seed = a.info.seed.cmp(&b.info.seed);
        let by_settings = compared(a).cmp(&compared(b));
        by_seed
            .then(by_settings)
            .then(newest_first)
            .then(a.path.cmp(&b.path))
    });
    runs.dedup_by(|older, kept| {
        let same = older.info.seed == kept.info.seed && compared(older) == compared(kept);
        if same {
            notes.push(format!(
                "{} is left out: {} has the same settings and seed",
                older.path.display(),
                kept.path.display()
            ));
        }
        same
    });
}

/// The settings that count, as a text.
fn compared(run: &Run) -> String {
    let mut settings = run.settings.clone();
    if let Some(settings) = settings.as_object_mut() {
        settings.retain(|key, _| !NOT_COMPARED.contains(&&**key));
    }
    settings.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csv::Table;
    use crate::folder::RunInfo;
    use serde_json::json;

    fn run(env: &str, seed: u64, settings: Value, csv: &str) -> Run {
        Run {
            path: format!("runs/{env}/{seed}").into(),
            info: RunInfo {
                env: env.to_owned(),
                algo: "ppo".to_owned(),
                name: "t".to_owned(),
                seed,
            },
            started: None,
            settings,
            ending: Ending::Finished,
            source: Source::Training,
            table: Table::parse(csv),
        }
    }

    const CART_POLE: &str = "env_steps,ReturnAverage\n0,1\n10,5\n";

    fn lines(runs: Vec<Run>) -> Vec<String> {
        let scores = Comparison::of(runs, None).unwrap().final_scores();
        scores.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn different_settings_are_not_seeds() {
        let settings = |seed: u64, rate: f64| {
            json!({
                "seed": seed,
                "log_every_steps": 100 * seed,
                "checkpoint": {"every_steps": seed},
                "algo": {"learning_rate": rate, "net": {"hidden": [64, 64]}},
            })
        };
        let runs = [(1, 0.1), (2, 0.1), (1, 0.01), (2, 0.01)]
            .map(|(seed, rate)| run("CartPole-v1", seed, settings(seed, rate), CART_POLE));
        let compared = Comparison::of(runs.to_vec(), None).unwrap();
        let labels: Vec<String> = compared.groups.iter().map(Group::label).collect();
        assert_eq!(labels, ["ppo learning_rate=0.01", "ppo learning_rate=0.1"]);
        assert!(compared.groups.iter().all(|group| group.runs.len() == 2));
        assert!(compared.notes.is_empty(), "{:?}", compared.notes);
        let alike = Comparison::of(runs[..2].to_vec(), None).unwrap();
        assert_eq!(alike.groups[0].label(), "ppo");
    }

    #[test]
    fn settings_of_the_same_short_name_are_told_apart() {
        let settings = |a: u64, b: u64| json!({"algo": {"x": a, "y": {"x": b}}, "mode": "serial"});
        let runs = [(1, 1), (2, 3)].map(|(a, b)| run("E", 1, settings(a, b), CART_POLE));
        let compared = Comparison::of(runs.to_vec(), None).unwrap();
        assert_eq!(compared.groups[1].label(), "ppo algo.x=2 algo.y.x=3");
    }

    /// A schedule and a number are two values of one setting, and so are two schedules.
    #[test]
    fn a_schedule_is_one_value() {
        let rates = [
            json!(0.5),
            json!({"start": 0.002, "end": 0.0}),
            json!({"start": 0.002, "end": 1e-5, "by": 0.5}),
            json!({"start": 0.003, "end": 0.0, "by": 1.0}),
        ];
        let runs = rates.map(|rate| {
            let settings = json!({"algo": {"learning_rate": rate, "gamma": 0.99}});
            run("E", 1, settings, CART_POLE)
        });
        let compared = Comparison::of(runs.to_vec(), None).unwrap();
        let labels: Vec<String> = compared.groups.iter().map(Group::label).collect();
        let expected = [
            "ppo learning_rate=0.002→0",
            "ppo learning_rate=0.002→0.00001 by 0.5",
            "ppo learning_rate=0.003→0",
            "ppo learning_rate=0.5",
        ];
        assert_eq!(labels, expected);
        let schedules = Comparison::of(runs[1..].to_vec(), None).unwrap();
        assert_eq!(schedules.groups[0].label(), expected[0]);
    }

    #[test]
    fn a_table_beside_nothing_is_one_value() {
        let priorities = [json!(null), json!({"alpha": 0.6})];
        let runs = priorities.map(|priority| {
            let settings = json!({"algo": {"priority": priority}});
            run("E", 1, settings, CART_POLE)
        });
        let compared = Comparison::of(runs.to_vec(), None).unwrap();
        let labels: Vec<String> = compared.groups.iter().map(Group::label).collect();
        assert_eq!(labels, ["ppo priority=null", "ppo priority={alpha:0.6}"]);
    }

    #[test]
    fn a_seed_counts_once_and_the_newest_run_is_kept() {
        let started = |seed: u64, time: &str, value: f64| {
            let csv = format!("env_steps,ReturnAverage\n10,{value}\n");
            let mut run = run("E", seed, Value::Null, &csv);
            run.started = Some((time.to_owned(), 1));
            run.path = format!("runs/{seed}-{time}").into();
            run
        };
        let runs = vec![
            started(1, "20260101T000000Z", 1.0),
            started(1, "20260103T000000Z", 3.0),
            started(1, "20260102T000000Z", 2.0),
            started(2, "20260101T000000Z", 5.0),
        ];
        let compared = Comparison::of(runs, None).unwrap();
        let group = &compared.groups[0];
        let last: Vec<f64> = group
            .runs
            .iter()
            .filter_map(|run| run.last("ReturnAverage"))
            .collect();
        assert_eq!(last, [3.0, 5.0]);
        assert_eq!(compared.notes.len(), 2);
        let expected = "runs/1-20260102T000000Z is left out: runs/1-20260103T000000Z has the same \
                        settings and seed";
        assert_eq!(compared.notes[0], expected);
    }

    /// Space Invaders: random play 148, human 1668.7. The clipped return of one life says nothing.
    #[test]
    fn human_normalised_scores_are_of_whole_games() {
        let csv = "env_steps,ReturnAverage,GameScoreAverage\n10,3.1,908.35\n";
        let space_invaders = "ALE/SpaceInvaders-v5";
        let atari = run(space_invaders, 1, Value::Null, csv);
        assert_eq!(
            lines(vec![atari.clone()]),
            [
                "ppo, ALE/SpaceInvaders-v5: game score: 908.35 (1 game, 1 run)",
                "ppo, human-normalised score: 0.50 (1 game, 1 run)",
            ]
        );
        // Before the first whole game there is only the return, which is not normalised.
        let csv = "env_steps,ReturnAverage,GameScoreAverage\n10,3.1,nan\n";
        let early = run(space_invaders, 2, Value::Null, csv);
        assert_eq!(
            lines(vec![early.clone()]),
            ["ppo, ALE/SpaceInvaders-v5: return: 3.10 (1 game, 1 run)"]
        );
        // Nor is it put together with scores of other runs.
        let compared = Comparison::of(vec![atari.clone(), early], None).unwrap();
        assert_eq!(compared.groups[0].runs.len(), 1);
        assert!(compared.notes[0].contains("has no game score yet"));
        // Asked for by its name, it is what it is.
        let compared = Comparison::of(vec![atari.clone()], Some("ReturnAverage")).unwrap();
        let scores = compared.final_scores();
        assert_eq!((scores.len(), scores[0].scores.iqm.value), (1, 3.1));
        // Evaluations are of whole games and unclipped rewards.
        let mut evaluated = run(space_invaders, 1, Value::Null, CART_POLE);
        evaluated.source = Source::Evaluation;
        let said = lines(vec![evaluated]);
        assert!(said[0].contains("evaluation return: 5.00"), "{said:?}");
        assert!(
            said[1].contains("human-normalised score: -0.09"),
            "{said:?}"
        );
    }

    #[test]
    fn games_are_put_together_on_the_human_scale() {
        let table = |score: f64| format!("env_steps,GameScoreAverage\n10,{score}\n");
        // Half way from random play to human play in each.
        let runs = (1..=3).flat_map(|seed| {
            [("ALE/Breakout-v5", 16.1), ("ALE/Pong-v5", -3.05)]
                .map(|(env, score)| run(env, seed, Value::Null, &table(score)))
        });
        let said = lines(runs.collect());
        let expected = "ppo, human-normalised score: IQM 0.50 [0.50, 0.50], median 0.50 \
                        [0.50, 0.50] (2 games, 6 runs; 95 % bootstrap intervals)";
        assert_eq!(said, [expected]);
        // With a game whose human score is not known they stay apart.
        let runs = ["ALE/Pong-v5", "ALE/AirRaid-v5"];
        let runs = runs.map(|env| run(env, 1, Value::Null, &table(1.0)));
        assert_eq!(lines(runs.to_vec()).len(), 2);
    }

    #[test]
    fn few_runs_have_no_interval_and_endings_are_told() {
        let mut runs: Vec<Run> = (1..=3)
            .map(|seed| run("CartPole-v1", seed, Value::Null, CART_POLE))
            .collect();
        let expected = "ppo, CartPole-v1: return: IQM 5.00, median 5.00 (1 game, 2 runs)";
        assert_eq!(lines(runs[..2].to_vec()), [expected]);
        runs[0].ending = Ending::Stopped(5.0);
        runs[1].ending = Ending::Unfinished { steps: 10, of: 20 };
        let said = lines(runs);
        let mut said = said[0].lines();
        assert!(said.next().unwrap().contains("[5.00, 5.00]"));
        assert!(
            said.next()
                .unwrap()
                .contains("1 run stopped at stop_at_return")
        );
        assert!(said.next().unwrap().contains("1 run unfinished"));
    }

    #[test]
    fn a_missing_column_is_answered_with_those_there_are() {
        let runs = vec![run("E", 1, Value::Null, "env_steps,losses/value\n0,1\n")];
        let error = Comparison::of(runs.clone(), None).unwrap_err().to_string();
        let expected = "no column GameScoreAverage or ReturnAverage or charts/episodic_return or \
                        Return; available: env_steps, losses/value";
        assert!(error.contains(expected), "{error}");
        let compared = Comparison::of(runs, Some("losses/value")).unwrap();
        assert_eq!(compared.groups[0].measure.label(), "losses/value");
        let empty = run("E", 1, Value::Null, "env_steps,ReturnAverage\n0,nan\n");
        let error = Comparison::of(vec![empty], None).unwrap_err().to_string();
        assert!(error.contains("has no return yet"), "{error}");
        assert!(Comparison::of(Vec::new(), None).is_err());
    }
}
