//! Learning curves: runs that differ only in their seeds are averaged into one curve with a band.
//!
//! Read first: [`PlotOptions`], [`Chart`] (the curves, ready to be drawn as a page or as a
//! picture). Which runs belong together is decided by [`Comparison`].

mod axis;
mod html;
mod png;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::comparison::{Comparison, Group};
use crate::csv::Table;
use crate::durable::replace_file;
use crate::error::{Context as _, Error, Result};
use crate::metrics::{STEP_COLUMN, Summary};
use crate::runs::TIME_COLUMN;

/// What the band around the mean of several runs shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Band {
    /// From the lowest run to the highest.
    #[default]
    MinMax,
    /// One standard deviation below and above the mean.
    Std,
}

/// What the x axis shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XAxis {
    /// Steps of all environments.
    #[default]
    Steps,
    /// Time spent on the run.
    Time,
}

/// How to plot.
#[derive(Clone, Debug, Default)]
pub struct PlotOptions {
    /// The title; by default the environments and what is plotted.
    pub title: Option<String>,
    /// What the band shows.
    pub band: Band,
    /// Light text on a dark ground in the picture. The page follows the reader's setting.
    pub dark: bool,
    /// Other curves, such as published ones, to draw beside the runs; they have steps only.
    pub beside: Vec<Reference>,
    /// What the x axis shows.
    pub x: XAxis,
    /// Each point of a run becomes the mean of this many rows up to it; 0 and 1 change nothing.
    pub smooth: usize,
}

/// A curve that is not from a run, such as a published one.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// What it is.
    pub label: String,
    /// The environment that it belongs to.
    pub env: String,
    points: Series,
}

impl Reference {
    /// Reads a table with the columns `label`, `env`, `steps` and `score`: one row per point.
    ///
    /// # Errors
    /// When the file cannot be read, or a column or a number is missing.
    pub fn read(path: &Path) -> Result<Vec<Self>> {
        let text = std::fs::read_to_string(path).doing("read", path)?;
        let malformed = |reason: String| Error::Malformed {
            path: path.to_owned(),
            reason,
        };
        let mut lines = text.lines();
        let header: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let column = |name: &str| {
            let found = header.iter().position(|column| column.trim() == name);
            found.ok_or_else(|| malformed(format!("it has no column called '{name}'")))
        };
        let columns = [
            column("label")?,
            column("env")?,
            column("steps")?,
            column("score")?,
        ];
        let mut curves: BTreeMap<(String, String), Vec<(f64, f64)>> = BTreeMap::new();
        for (i, line) in lines
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
        {
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            let cell = |column: usize| cells.get(column).copied().unwrap_or_default();
            let number = |column: usize| {
                let number = cell(column)
                    .parse::<f64>()
                    .ok()
                    .filter(|number| number.is_finite());
                number.ok_or_else(|| malformed(format!("line {} lacks a number", i + 2)))
            };
            let [label, env, steps, score] = columns;
            let key = (cell(env).to_owned(), cell(label).to_owned());
            curves
                .entry(key)
                .or_default()
                .push((number(steps)?, number(score)?));
        }
        let curves = curves.into_iter().map(|((env, label), points)| Self {
            label,
            env,
            points: Series::sorted(points),
        });
        Ok(curves.collect())
    }

    /// The part of the curve up to a step.
    fn until(&self, end: f64) -> Series {
        let points = &self.points.0;
        let within = points.partition_point(|(step, _)| *step <= end);
        let mut shown = points[..within].to_vec();
        if let (true, Some(value)) = (within < points.len(), self.points.at(end)) {
            shown.push((end, value));
        }
        Series(shown)
    }
}

/// Draws the groups of runs to `plot.html` (one file that works offline) and `plot.png` in
/// `folder`, one curve each, and returns their paths.
pub fn plot(runs: &Comparison, options: &PlotOptions, folder: &Path) -> Result<[PathBuf; 2]> {
    let chart = Chart::of(runs, options);
    let paths = [folder.join("plot.html"), folder.join("plot.png")];
    replace_file(&paths[0], chart.to_html().as_bytes())?;
    replace_file(&paths[1], &chart.to_png(options.dark)?)?;
    Ok(paths)
}

/// Curves over a common x axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// What the y axis shows.
    pub y_label: String,
    /// What a curve and its band are, in a sentence for the reader.
    pub note: String,
    /// What the x axis shows.
    pub x_label: String,
    /// The environment steps, or the times, at which the curves are known.
    pub x: Vec<f64>,
    /// The curves, sorted by name.
    pub curves: Vec<Curve>,
}

/// The mean of one or more runs, and how far they spread. NaN where no run reaches.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Algorithm, the settings that differ and, if there are several, the environment.
    pub label: String,
    /// The number of runs in it; none for a curve that is not from runs.
    pub runs: usize,
    /// The mean at each x.
    pub mean: Vec<f64>,
    /// The lower edge of the band.
    pub low: Vec<f64>,
    /// The upper edge of the band.
    pub high: Vec<f64>,
}

impl Chart {
    /// The curves of groups of runs. Each run is interpolated between its rows; one that ended
    /// before others of its group keeps its last value.
    pub fn of(runs: &Comparison, options: &PlotOptions) -> Self {
        let series: Vec<(&Group, Vec<Series>)> = runs
            .groups
            .iter()
            .map(|group| {
                let column = &group.measure.column;
                let series = group.runs.iter();
                let series = series.map(|run| Series::of(&run.table, column, options.x));
                let series = series.map(|series| series.smoothed(options.smooth));
                (group, series.collect())
            })
            .collect();
        let mut series = series;
        let envs = runs.envs();
        let ends = series.iter().flat_map(|(_, series)| series);
        let mut end = ends.filter_map(Series::end).fold(0.0, f64::max);
        let mut x_label = "environment steps".to_owned();
        if options.x == XAxis::Time {
            let (unit, seconds) = match end {
                end if end < 300.0 => ("seconds", 1.0),
                end if end < 300.0 * 60.0 => ("minutes", 60.0),
                _ => ("hours", 3600.0),
            };
            x_label = format!("time ({unit})");
            end /= seconds;
            for (x, _) in series
                .iter_mut()
                .flat_map(|(_, runs)| runs)
                .flat_map(|run| &mut run.0)
            {
                *x /= seconds;
            }
        }
        let beside = options.beside.iter().filter(|_| options.x == XAxis::Steps);
        let beside: Vec<(&Reference, Series)> = beside
            .filter(|reference| envs.contains(&&*reference.env))
            .map(|reference| (reference, reference.until(end)))
            .collect();
        let own = series.iter().flat_map(|(_, series)| series);
        let x = common_steps(own.chain(beside.iter().map(|(_, series)| series)));
        let mut curves: Vec<Curve> = series
            .iter()
            .map(|(group, series)| {
                let mut label = group.label();
                if envs.len() > 1 {
                    label = format!("{label}, {}", group.env);
                }
                Curve::of(label, series, &x, options.band)
            })
            .collect();
        for (reference, series) in &beside {
            let mut label = reference.label.clone();
            if envs.len() > 1 {
                label = format!("{label}, {}", reference.env);
            }
            let mut curve = Curve::of(label, std::slice::from_ref(series), &x, options.band);
            curve.runs = 0;
            curves.push(curve);
        }
        let mut measured: Vec<&str> = runs.groups.iter().map(|g| g.measure.label()).collect();
        measured.sort_unstable();
        measured.dedup();
        let y_label = measured.join(" or ");
        let title = options
            .title
            .clone()
            .unwrap_or_else(|| format!("{}: {y_label}", envs.join(", ")));
        let band = match options.band {
            Band::MinMax => "lowest to highest run",
            Band::Std => "one standard deviation around the mean",
        };
        let mut notes = Vec::new();
        if curves.iter().any(|curve| curve.runs > 1) {
            notes.push(format!("Line: mean over runs. Band: {band}."));
        }
        if options.smooth > 1 {
            notes.push(format!("Smoothed: mean of {} rows.", options.smooth));
        }
        let note = notes.join(" ");
        Self {
            title,
            y_label,
            note,
            x_label,
            x,
            curves,
        }
    }

    /// The smallest and the largest number to be seen on the y axis.
    fn y_range(&self) -> (f64, f64) {
        let all = self
            .curves
            .iter()
            .flat_map(|curve| curve.low.iter().chain(&curve.high));
        let finite = all.copied().filter(|value| value.is_finite());
        finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        })
    }
}

impl Curve {
    fn of(label: String, group: &[Series], x: &[f64], band: Band) -> Self {
        let mut curve = Self {
            label,
            runs: group.len(),
            mean: Vec::with_capacity(x.len()),
            low: Vec::with_capacity(x.len()),
            high: Vec::with_capacity(x.len()),
        };
        let end = group
            .iter()
            .filter_map(Series::end)
            .fold(f64::NEG_INFINITY, f64::max);
        for &step in x {
            let at = |series: &Series| series.at(step).filter(|_| step <= end);
            let summary = Summary::of(group.iter().filter_map(at));
            let (low, high) = match band {
                Band::MinMax => (summary.min, summary.max),
                Band::Std => (summary.average - summary.std, summary.average + summary.std),
            };
            curve.mean.push(summary.average);
            curve.low.push(low);
            curve.high.push(high);
        }
        curve
    }

    /// Whether it is not from runs.
    fn is_reference(&self) -> bool {
        self.runs == 0
    }

    /// The name with the number of runs, for a legend.
    fn legend(&self) -> String {
        match self.runs {
            0 | 1 => self.label.clone(),
            runs => format!("{} ({runs} runs)", self.label),
        }
    }
}

/// Colours that can be told apart on white and on black, also by most colour-blind people.
const COLOURS: [&str; 8] = [
    "#2f7ed8", "#e8731c", "#1a9e77", "#d6438a", "#8a63d2", "#b8860b", "#17a2b8", "#8c6d5a",
];

/// A picture does not show more points than this.
const MOST_POINTS: usize = 2000;

/// Points of one run, by rising step.
#[derive(Clone, Debug, PartialEq)]
struct Series(Vec<(f64, f64)>);

impl Series {
    fn of(table: &Table, key: &str, axis: XAxis) -> Self {
        let axis = match axis {
            XAxis::Steps => STEP_COLUMN,
            XAxis::Time => TIME_COLUMN,
        };
        let (Some(x), Some(y)) = (table.column(axis), table.column(key)) else {
            return Self(Vec::new());
        };
        let points = x.into_iter().zip(y);
        let points = points.filter(|(x, y)| x.is_finite() && y.is_finite());
        Self::sorted(points.collect())
    }

    fn sorted(mut points: Vec<(f64, f64)>) -> Self {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points.dedup_by(|later, earlier| {
            // Of two rows at the same step the later one counts.
            let same = later.0 == earlier.0;
            if same {
                earlier.1 = later.1;
            }
            same
        });
        Self(points)
    }

    /// Each point as the mean of this many up to it.
    fn smoothed(self, rows: usize) -> Self {
        let mean = |at: usize| {
            let first = (at + 1).saturating_sub(rows.max(1));
            let window = &self.0[first..=at];
            window.iter().map(|(_, y)| y).sum::<f64>() / window.len() as f64
        };
        let points = self.0.iter().enumerate();
        Self(points.map(|(at, (x, _))| (*x, mean(at))).collect())
    }

    /// The last step.
    fn end(&self) -> Option<f64> {
        Some(self.0.last()?.0)
    }

    /// The value at a step, interpolated; none before the first point, and the last one after
    /// the last point.
    fn at(&self, step: f64) -> Option<f64> {
        let after = self.0.partition_point(|(x, _)| *x < step);
        let Some(&(x1, y1)) = self.0.get(after) else {
            return self.0.last().map(|(_, y)| *y);
        };
        if x1 == step {
            return Some(y1);
        }
        let &(x0, y0) = self.0.get(after.checked_sub(1)?)?;
        Some(y0 + (y1 - y0) * (step - x0) / (x1 - x0))
    }
}

/// All steps at which some run has a point, or as many evenly spaced ones as can be seen.
fn common_steps<'a>(series: impl Iterator<Item = &'a Series>) -> Vec<f64> {
    let points = series.flat_map(|series| &series.0);
    let mut steps: Vec<f64> = points.map(|(x, _)| *x).collect();
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    match (steps.first(), steps.last()) {
        (Some(&first), Some(&last)) if steps.len() > MOST_POINTS => (0..MOST_POINTS)
            .map(|i| first + (last - first) * i as f64 / (MOST_POINTS - 1) as f64)
            .collect(),
        _ => steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::RunInfo;
    use crate::runs::{Ending, Run, Source};
    use serde_json::Value;

    fn run(algo: &str, seed: u64, csv: &str) -> Run {
        Run {
            path: format!("runs/{algo}/{seed}").into(),
            info: RunInfo {
                env: "CartPole-v1".to_owned(),
                algo: algo.to_owned(),
                name: "t".to_owned(),
                seed,
            },
            started: None,
            settings: Value::Null,
            ending: Ending::Finished,
            source: Source::Training,
            table: Table::parse(csv),
        }
    }

    fn chart(runs: &[Run]) -> Chart {
        let compared = Comparison::of(runs.to_vec(), None).unwrap();
        Chart::of(&compared, &PlotOptions::default())
    }

    #[test]
    fn runs_of_one_kind_become_one_curve() {
        let chart = chart(&[
            run("ppo", 2, "env_steps,ReturnAverage\n0,2\n10,4\n20,6\n"),
            run("dqn", 1, "env_steps,ReturnAverage\n0,nan\n10,1\n"),
            run("ppo", 1, "env_steps,ReturnAverage\n0,0\n20,20\n30,40\n"),
        ]);
        assert_eq!(chart.x, [0.0, 10.0, 20.0, 30.0]);
        let labels: Vec<String> = chart.curves.iter().map(Curve::legend).collect();
        assert_eq!(labels, ["dqn", "ppo (2 runs)"]);
        let ppo = &chart.curves[1];
        // At 10 the first is 4 and the second, halfway from 0 to 20, is 10. The first ended at
        // 20 with 6.
        assert_eq!(ppo.mean, [1.0, 7.0, 13.0, 23.0]);
        assert_eq!(ppo.low, [0.0, 4.0, 6.0, 6.0]);
        assert_eq!(ppo.high, [2.0, 10.0, 20.0, 40.0]);
        let dqn = &chart.curves[0];
        assert!(dqn.mean[0].is_nan() && dqn.mean[1] == 1.0 && dqn.mean[2].is_nan());
        assert_eq!(chart.y_range(), (0.0, 40.0));
        assert_eq!(chart.title, "CartPole-v1: return");
    }

    /// On Atari the return may be of one life and of clipped rewards.
    #[test]
    fn the_score_of_whole_games_is_drawn_where_there_is_one() {
        let csv = "env_steps,ReturnAverage,GameScoreAverage\n0,1,nan\n10,2,300\n20,3,500\n";
        let chart = chart(&[run("ppo", 1, csv)]);
        assert_eq!(chart.y_label, "game score");
        assert_eq!(
            (chart.x, &*chart.curves[0].mean),
            (vec![10.0, 20.0], &[300.0, 500.0][..])
        );
    }

    /// A published curve is drawn as far as the runs go, for their environment only.
    #[test]
    fn curves_from_elsewhere_are_drawn_beside() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("published.csv");
        let text = "label,env,steps,score\npaper,CartPole-v1,0,10\npaper,CartPole-v1,100,110\n\
                    paper,Other-v1,10,1\n";
        std::fs::write(&file, text).unwrap();
        let runs = [run("ppo", 1, "env_steps,ReturnAverage\n0,2\n20,6\n")];
        let compared = Comparison::of(runs.to_vec(), None).unwrap();
        let options = PlotOptions {
            beside: Reference::read(&file).unwrap(),
            ..PlotOptions::default()
        };
        let chart = Chart::of(&compared, &options);
        let labels: Vec<String> = chart.curves.iter().map(Curve::legend).collect();
        assert_eq!(labels, ["ppo", "paper"]);
        assert_eq!(chart.x, [0.0, 20.0]);
        assert_eq!(chart.curves[1].mean, [10.0, 30.0]);
        assert!(chart.to_html().contains("paper"));
        std::fs::write(&file, "label,env,steps,score\npaper,CartPole-v1,0,x\n").unwrap();
        let error = Reference::read(&file).unwrap_err().to_string();
        assert!(error.contains("line 2 lacks a number"), "{error}");
    }

    #[test]
    fn curves_over_time_and_smoothed() {
        let csv = "env_steps,ReturnAverage,Diagnostics/CumTime (s)\n0,0,0\n10,4,300\n20,8,1200\n";
        let compared = Comparison::of(vec![run("ppo", 1, csv)], None).unwrap();
        let options = PlotOptions {
            x: XAxis::Time,
            smooth: 2,
            ..PlotOptions::default()
        };
        let chart = Chart::of(&compared, &options);
        assert_eq!(chart.x_label, "time (minutes)");
        assert_eq!(chart.x, [0.0, 5.0, 20.0]);
        assert_eq!(chart.curves[0].mean, [0.0, 2.0, 6.0]);
        assert!(chart.note.contains("mean of 2 rows"), "{}", chart.note);
        assert!(chart.to_html().contains("time (minutes)"));
    }

    #[test]
    fn long_runs_are_thinned() {
        let rows: String = (0..5000).map(|i| format!("{},{i}\n", i * 3)).collect();
        let chart = chart(&[run("ppo", 1, &format!("env_steps,ReturnAverage\n{rows}"))]);
        assert_eq!(chart.x.len(), MOST_POINTS);
        assert_eq!(chart.curves[0].mean.last(), Some(&4999.0));
    }

    #[test]
    fn both_files_are_written_and_equal_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = vec![
            run("ppo</script>", 2, "env_steps,ReturnAverage\n10,4\n20,6\n"),
            run("dqn", 1, "env_steps,ReturnAverage\n5,3\n"),
        ];
        let read = |runs: &[Run]| {
            let compared = Comparison::of(runs.to_vec(), None).unwrap();
            let paths = plot(&compared, &PlotOptions::default(), folder.path()).unwrap();
            paths.map(|path| std::fs::read(path).unwrap())
        };
        let [page, picture] = read(&runs);
        runs.reverse();
        assert_eq!(read(&runs), [page.clone(), picture.clone()]);
        let page = String::from_utf8(page).unwrap();
        assert!(!page.contains("ppo</script>") && !page.contains("{{"));
        assert!(!page.contains("src=") && !page.contains("href="));
        // The x axis starts at 0, as that of the picture does.
        assert!(page.contains(r#""x":[0.0,5.0,10.0,20.0]"#));
        assert!(page.contains(r#""mean":[null,3.0,null,null]"#));
        let picture = tiny_skia::Pixmap::decode_png(&picture).unwrap();
        assert_eq!((picture.width(), picture.height()), (1280, 800));
    }
}
