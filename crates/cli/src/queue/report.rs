//! Results of the runs of a queue.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use starling_record::plot::{PlotOptions, plot};
use starling_record::{Aggregate, Comparison, Ending, Run, TIME_COLUMN, aggregate};

use super::folder::write_durably;
use super::schedule::{RunState, Stage};
use super::{Plan, QueueError, Variant};
use crate::settings;

/// A table of variants, and the runs behind it.
#[derive(Debug)]
pub struct Report {
    /// One row per variant, in the order of the plan.
    pub rows: Vec<ReportRow>,
    runs: Vec<RunLine>,
    read: Vec<Run>,
    /// How each searched setting and the score rise together: Spearman's rank correlation.
    pub importance: Vec<(String, f64)>,
}

/// What the runs of one variant reached.
#[derive(Clone, Debug)]
pub struct ReportRow {
    /// The variant.
    pub variant: Variant,
    /// The scores of its runs, by seed.
    pub scores: Vec<f64>,
    /// Mean of the scores.
    pub mean: f64,
    /// Interquartile mean with its interval; none without scores.
    pub aggregate: Option<Aggregate>,
    /// Runs that have ended.
    pub finished: usize,
    /// All its runs.
    pub of: usize,
    /// The steps of its runs together.
    pub steps: u64,
    /// The seconds that its runs trained, together.
    pub seconds: f64,
}

#[derive(Debug)]
struct RunLine {
    variant: String,
    seed: u64,
    state: &'static str,
    steps: u64,
    score: Option<f64>,
    /// What the run itself counted: a part that ended with a kill is in it, up to the checkpoint from
    /// which it was continued.
    seconds: f64,
}

/// The last score of a run: of whole games where there are some, of episodes otherwise.
pub(super) fn score(run: &Run) -> Option<f64> {
    let compared = Comparison::of(vec![run.clone()], None).ok()?;
    let group = compared.groups.first()?;
    run.last(&group.measure.column)
}

impl Report {
    pub(super) fn of(plan: &Plan, runs: &[(RunState, Option<Run>)]) -> Self {
        let mut lines = Vec::new();
        for (state, run) in runs {
            lines.push(RunLine {
                variant: plan.variants[state.trial.variant].name.clone(),
                seed: state.trial.seed,
                state: match state.stage {
                    Stage::Waiting => "waiting",
                    Stage::Running | Stage::Interrupted => "unfinished",
                    Stage::Paused => "pruned",
                    Stage::Finished(_) => "finished",
                    Stage::Failed(_) => "failed",
                },
                steps: run.as_ref().map_or(0, steps_of),
                score: run.as_ref().and_then(score),
                seconds: run
                    .as_ref()
                    .and_then(|run| run.last(TIME_COLUMN))
                    .unwrap_or(state.seconds),
            });
        }
        let rows = plan.variants.iter().enumerate().map(|(i, variant)| {
            let own = || {
                let all = runs.iter().zip(&lines);
                all.filter(move |((state, _), _)| state.trial.variant == i)
            };
            let scores: Vec<f64> = own().filter_map(|(_, line)| line.score).collect();
            ReportRow {
                variant: variant.clone(),
                mean: scores.iter().sum::<f64>() / scores.len() as f64,
                aggregate: aggregate(std::slice::from_ref(&scores)),
                scores,
                finished: own().filter(|(_, line)| line.state == "finished").count(),
                of: own().count(),
                steps: own().map(|(_, line)| line.steps).sum(),
                seconds: own().map(|(_, line)| line.seconds).sum(),
            }
        });
        let rows: Vec<ReportRow> = rows.collect();
        Self {
            importance: importance(plan, &rows),
            rows,
            runs: lines,
            read: runs.iter().filter_map(|(_, run)| run.clone()).collect(),
        }
    }

    /// The variant with the highest interquartile mean among those whose runs have all ended; with
    /// pruning, among all.
    pub fn best(&self) -> Option<&ReportRow> {
        let whole = self.rows.iter().filter(|row| row.finished == row.of);
        let whole: Vec<&ReportRow> = whole.collect();
        let candidates = match whole.is_empty() {
            true => self.rows.iter().collect(),
            false => whole,
        };
        let iqm = |row: &ReportRow| row.aggregate.map(|all| all.iqm.value);
        let candidates = candidates.into_iter().filter(|row| iqm(row).is_some());
        candidates.max_by(|a, b| {
            iqm(a)
                .partial_cmp(&iqm(b))
                .unwrap_or(std::cmp::Ordering::Equal)
        })
    }

    /// Writes `results.csv` and `times.csv` (runs), `variants.csv`, `best.yaml` (for `train --config`)
    /// and a plot, and returns the paths. No file but `times.csv` depends on how often the queue was
    /// interrupted, if the runs do not.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<Vec<PathBuf>, QueueError> {
        let mut paths = Vec::new();
        let mut write = |name: &str, text: &str| {
            let path = folder.join(name);
            let written = write_durably(&path, text.trim_end());
            written.map_err(QueueError::io(format!("write {}", path.display())))?;
            paths.push(path);
            Ok::<_, QueueError>(())
        };
        let mut text = "variant,seed,state,steps,score\n".to_owned();
        for run in &self.runs {
            let score = run.score.map_or(String::new(), |score| score.to_string());
            let variant = quoted(&run.variant);
            let (seed, state, steps) = (run.seed, run.state, run.steps);
            let _ = writeln!(text, "{variant},{seed},{state},{steps},{score}");
        }
        write("results.csv", &text)?;
        let mut text = "variant,seed,seconds\n".to_owned();
        for run in &self.runs {
            let (variant, seed, seconds) = (quoted(&run.variant), run.seed, run.seconds);
            let _ = writeln!(text, "{variant},{seed},{seconds:.2}");
        }
        write("times.csv", &text)?;
        let mut text = "variant,finished,runs,steps,mean,iqm,low,high\n".to_owned();
        for row in &self.rows {
            let variant = quoted(&row.variant.name);
            let _ = write!(text, "{variant},{},{},{}", row.finished, row.of, row.steps);
            let iqm = row.aggregate.map(|all| all.iqm);
            let interval = iqm.and_then(|iqm| iqm.interval);
            for number in [
                iqm.map(|_| row.mean),
                iqm.map(|iqm| iqm.value),
                interval.map(|(low, _)| low),
                interval.map(|(_, high)| high),
            ] {
                let number = number.map_or(String::new(), |number| number.to_string());
                let _ = write!(text, ",{number}");
            }
            text.push('\n');
        }
        write("variants.csv", &text)?;
        if let Some(best) = self.best() {
            let preset = best.variant.preset.as_ref();
            let note = preset.map_or(String::new(), |preset| format!(" --preset {preset}"));
            let text = format!(
                "# {}: train --config best.yaml{note}\n{}",
                best.variant.name,
                settings::to_yaml(&best.variant.settings)
            );
            write("best.yaml", &text)?;
        }
        if let Ok(compared) = Comparison::of(self.read.clone(), None) {
            paths.extend(plot(&compared, &PlotOptions::default(), folder)?);
        }
        Ok(paths)
    }

    /// The table for a terminal.
    pub fn table(&self) -> String {
        let mut lines = vec![
            [
                "variant",
                "runs",
                "mean",
                "IQM",
                "95 % interval",
                "steps",
                "time",
            ]
            .map(str::to_owned),
        ];
        for row in &self.rows {
            let iqm = row.aggregate.map(|all| all.iqm);
            let interval = iqm.and_then(|iqm| iqm.interval);
            let number = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.1}"));
            lines.push([
                row.variant.name.clone(),
                format!("{}/{}", row.finished, row.of),
                number(iqm.map(|_| row.mean)),
                number(iqm.map(|iqm| iqm.value)),
                interval.map_or("–".to_owned(), |(low, high)| {
                    format!("{low:.1} to {high:.1}")
                }),
                row.steps.to_string(),
                format!("{:.0} s", row.seconds),
            ]);
        }
        let width = |column: usize| {
            let cells = lines.iter().map(|line| line[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..7).map(width).collect();
        let mut text = String::new();
        for line in &lines {
            let cells = line.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, &width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

fn steps_of(run: &Run) -> u64 {
    match run.ending {
        Ending::Unfinished { steps, .. } => steps,
        _ => run.last(starling_record::STEP_COLUMN).unwrap_or(0.0) as u64,
    }
}

fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// How each numeric setting of a search and the score rise together.
fn importance(plan: &Plan, rows: &[ReportRow]) -> Vec<(String, f64)> {
    let Some(search) = &plan.search else {
        return Vec::new();
    };
    let correlation = |key: &String| {
        let pointer = format!("/{}", key.replace('.', "/"));
        let pairs = rows.iter().filter_map(|row| {
            let value = row.variant.settings.pointer(&pointer)?.as_f64()?;
            Some((value, row.aggregate?.iqm.value))
        });
        let pairs: Vec<(f64, f64)> = pairs.collect();
        let (values, scores): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        Some((key.clone(), spearman(&values, &scores)?))
    };
    search.space.keys().filter_map(correlation).collect()
}

/// The correlation of ranks; none with fewer than three pairs or where all are equal.
fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() < 3 {
        return None;
    }
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 - 1.0) / 2.0;
    let product = |x: &[f64], y: &[f64]| {
        let pairs = x.iter().zip(y);
        pairs.map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>()
    };
    let scale = (product(&a, &a) * product(&b, &b)).sqrt();
    (scale > 0.0).then(|| product(&a, &b) / scale)
}

/// The places of numbers in their order; equal ones share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        below as f64 + (equal as f64 - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: ranks 0 1 2 3 against 0 2 1 3 give 1 − 6·2/(4·15) = 0.8.
    #[test]
    fn rank_correlations_by_hand() {
        let correlation = spearman(&[1.0, 2.0, 3.0, 40.0], &[5.0, 7.0, 6.0, 8.0]);
        assert!((correlation.unwrap() - 0.8).abs() < 1e-12);
        assert_eq!(spearman(&[1.0, 1.0, 1.0], &[1.0, 2.0, 3.0]), None);
        assert_eq!(ranks(&[3.0, 1.0, 3.0]), [1.5, 0.0, 1.5]);
    }
}
