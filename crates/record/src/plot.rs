//! Learning curves: several runs of one kind become one curve with a band.
//!
//! Read first: [`Run`] (what is plotted), [`PlotOptions`], [`Chart`] (the curves, ready to be
//! drawn as a page or as a picture).

mod axis;
mod html;
mod png;

use std::path::{Path, PathBuf};

use crate::csv::Table;
use crate::durable::replace_file;
use crate::error::{Error, Result};
use crate::folder::{RunFolder, RunInfo};
use crate::metrics::{STEP_COLUMN, Summary};

/// One run, as a plot needs it.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the run is.
    pub info: RunInfo,
    /// Its metrics, with a column [`STEP_COLUMN`].
    pub table: Table,
}

impl Run {
    /// Reads a run's `progress.csv`.
    pub fn read(run: &RunFolder) -> Result<Self> {
        Ok(Self {
            info: run.info()?,
            table: Table::read(&run.progress_path())?,
        })
    }

    /// The last value of a column, by default of the returns.
    pub fn last(&self, key: Option<&str>) -> Option<f64> {
        let values = match key {
            Some(key) => self.table.column(key)?,
            None => RETURN_COLUMNS
                .iter()
                .find_map(|name| self.table.column(name))?,
        };
        values.into_iter().rev().find(|value| !value.is_nan())
    }

    /// Reads a run's `eval.csv` instead.
    pub fn read_eval(run: &RunFolder) -> Result<Self> {
        Ok(Self {
            info: run.info()?,
            table: Table::read(&run.eval_path())?,
        })
    }
}

/// What the band around the mean of several runs shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Band {
    /// From the lowest run to the highest.
    #[default]
    MinMax,
    /// One standard deviation below and above the mean.
    Std,
}

/// How to plot.
#[derive(Clone, Debug, Default)]
pub struct PlotOptions {
    /// The column to plot; by default the first there is of [`RETURN_COLUMNS`].
    pub key: Option<String>,
    /// The title; by default the environments and what is plotted.
    pub title: Option<String>,
    /// What the band shows.
    pub band: Band,
    /// Light text on a dark ground in the picture. The page follows the reader's setting.
    pub dark: bool,
}

/// The columns that hold an episode's return, in the order in which they are looked for.
pub const RETURN_COLUMNS: [&str; 3] = ["ReturnAverage", "charts/episodic_return", "Return"];

/// Draws the runs to `plot.html` (one file that works offline) and `plot.png` in `folder`, and
/// returns their paths. Runs of the same environment and algorithm become one curve.
pub fn plot(runs: &[Run], options: &PlotOptions, folder: &Path) -> Result<[PathBuf; 2]> {
    let chart = Chart::of(runs, options)?;
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
    /// The environment steps at which the curves are known.
    pub x: Vec<f64>,
    /// The curves, sorted by name.
    pub curves: Vec<Curve>,
}

/// The mean of one or more runs, and how far they spread. NaN where no run reaches.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Algorithm and, if they differ, environment.
    pub label: String,
    /// How many runs there are in it.
    pub runs: usize,
    /// The mean at each x.
    pub mean: Vec<f64>,
    /// The lower edge of the band.
    pub low: Vec<f64>,
    /// The upper edge of the band.
    pub high: Vec<f64>,
}

impl Chart {
    /// Groups the runs by environment and algorithm. Each run is interpolated between its
    /// rows; one that ended before others of its group keeps its last value.
    pub fn of(runs: &[Run], options: &PlotOptions) -> Result<Self> {
        let key = choose_key(runs, options)?;
        let mut series: Vec<(&RunInfo, Series)> = runs
            .iter()
            .map(|run| (&run.info, Series::of(&run.table, &key)))
            .filter(|(_, series)| !series.0.is_empty())
            .collect();
        if series.is_empty() {
            return Err(Error::NothingToPlot {
                reason: format!("no run has a number in the column {key} yet"),
            });
        }
        series.sort_by_key(|(info, _)| (&info.env, &info.algo, info.seed, &info.name));
        let x = common_steps(&series);
        let mut envs: Vec<&str> = series.iter().map(|(info, _)| &*info.env).collect();
        envs.dedup();
        let curves: Vec<Curve> = series
            .chunk_by(|(a, _), (b, _)| (&a.env, &a.algo) == (&b.env, &b.algo))
            .map(|group| {
                let info = group[0].0;
                let label = if envs.len() > 1 {
                    format!("{}, {}", info.algo, info.env)
                } else {
                    info.algo.clone()
                };
                Curve::of(label, group, &x, options.band)
            })
            .collect();
        let is_return = RETURN_COLUMNS.contains(&&*key);
        let y_label = if is_return {
            "episode return".to_owned()
        } else {
            key.clone()
        };
        let title = options
            .title
            .clone()
            .unwrap_or_else(|| format!("{}: {y_label}", envs.join(", ")));
        let band = match options.band {
            Band::MinMax => "lowest to highest run",
            Band::Std => "one standard deviation around the mean",
        };
        let note = if curves.iter().any(|curve| curve.runs > 1) {
            format!("Line: mean over runs. Band: {band}.")
        } else {
            String::new()
        };
        Ok(Self {
            title,
            y_label,
            note,
            x,
            curves,
        })
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
    fn of(label: String, group: &[(&RunInfo, Series)], x: &[f64], band: Band) -> Self {
        let mut curve = Self {
            label,
            runs: group.len(),
            mean: Vec::with_capacity(x.len()),
            low: Vec::with_capacity(x.len()),
            high: Vec::with_capacity(x.len()),
        };
        let ends = group
            .iter()
            .filter_map(|(_, series)| Some(series.0.last()?.0));
        let end = ends.fold(f64::NEG_INFINITY, f64::max);
        for &step in x {
            let at = |(_, series): &(_, Series)| series.at(step).filter(|_| step <= end);
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

    /// The name with the number of runs, for a legend.
    fn legend(&self) -> String {
        match self.runs {
            1 => self.label.clone(),
            runs => format!("{} ({runs} runs)", self.label),
        }
    }
}

/// Colours that can be told apart on white and on black, also by most colour-blind people.
const COLOURS: [&str; 8] = [
    "#2f7ed8", "#e8731c", "#1a9e77", "#d6438a", "#8a63d2", "#b8860b", "#17a2b8", "#8c6d5a",
];

/// More points than this are not to be seen in a picture.
const MOST_POINTS: usize = 2000;

/// Points of one run, by rising step.
struct Series(Vec<(f64, f64)>);

impl Series {
    fn of(table: &Table, key: &str) -> Self {
        let (Some(x), Some(y)) = (table.column(STEP_COLUMN), table.column(key)) else {
            return Self(Vec::new());
        };
        let points = x.into_iter().zip(y);
        let mut points: Vec<(f64, f64)> = points
            .filter(|(x, y)| x.is_finite() && y.is_finite())
            .collect();
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

fn choose_key(runs: &[Run], options: &PlotOptions) -> Result<String> {
    let has = |key: &str| {
        runs.iter()
            .any(|run| run.table.columns.iter().any(|column| column == key))
    };
    let wanted: Vec<&str> = match &options.key {
        Some(key) => vec![key],
        None => RETURN_COLUMNS.to_vec(),
    };
    if let Some(key) = wanted.iter().find(|key| has(key)) {
        return Ok((*key).to_owned());
    }
    let mut present: Vec<&str> = runs
        .iter()
        .flat_map(|run| run.table.columns.iter().map(|column| &**column))
        .collect();
    present.sort_unstable();
    present.dedup();
    Err(Error::NothingToPlot {
        reason: if present.is_empty() {
            "the runs have no rows yet".to_owned()
        } else {
            format!(
                "no column {}; there is: {}",
                wanted.join(" or "),
                present.join(", ")
            )
        },
    })
}

/// All steps at which some run has a point, or as many evenly spaced ones as can be seen.
fn common_steps(series: &[(&RunInfo, Series)]) -> Vec<f64> {
    let points = series.iter().flat_map(|(_, series)| &series.0);
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

    fn run(algo: &str, seed: u64, csv: &str) -> Run {
        Run {
            info: RunInfo {
                env: "CartPole-v1".to_owned(),
                algo: algo.to_owned(),
                name: "t".to_owned(),
                seed,
            },
            table: Table::parse(csv),
        }
    }

    #[test]
    fn runs_of_one_kind_become_one_curve() {
        let runs = [
            run("ppo", 2, "env_steps,ReturnAverage\n0,2\n10,4\n20,6\n"),
            run("dqn", 1, "env_steps,ReturnAverage\n0,nan\n10,1\n"),
            run("ppo", 1, "env_steps,ReturnAverage\n0,0\n20,20\n30,40\n"),
        ];
        let chart = Chart::of(&runs, &PlotOptions::default()).unwrap();
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
        assert_eq!(chart.title, "CartPole-v1: episode return");
    }

    #[test]
    fn a_missing_column_is_answered_with_those_there_are() {
        let runs = [run("ppo", 1, "env_steps,losses/value\n0,1\n")];
        let error = Chart::of(&runs, &PlotOptions::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("there is: env_steps, losses/value"),
            "{error}"
        );
        let options = PlotOptions {
            key: Some("losses/value".to_owned()),
            band: Band::Std,
            ..PlotOptions::default()
        };
        assert_eq!(Chart::of(&runs, &options).unwrap().y_label, "losses/value");
        let empty = [run("ppo", 1, "env_steps,ReturnAverage\n0,nan\n")];
        assert!(Chart::of(&empty, &PlotOptions::default()).is_err());
        assert!(Chart::of(&[], &PlotOptions::default()).is_err());
    }

    #[test]
    fn long_runs_are_thinned() {
        let rows: String = (0..5000).map(|i| format!("{},{i}\n", i * 3)).collect();
        let runs = [run("ppo", 1, &format!("env_steps,ReturnAverage\n{rows}"))];
        let chart = Chart::of(&runs, &PlotOptions::default()).unwrap();
        assert_eq!(chart.x.len(), MOST_POINTS);
        assert_eq!(chart.curves[0].mean.last(), Some(&4999.0));
    }

    #[test]
    fn both_files_are_written_and_equal_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = vec![
            run(
                "ppo</script>",
                2,
                "env_steps,ReturnAverage\n0,2\n10,4\n20,6\n",
            ),
            run("dqn", 1, "env_steps,ReturnAverage\n5,3\n"),
        ];
        let read = |runs: &[Run]| {
            let paths = plot(runs, &PlotOptions::default(), folder.path()).unwrap();
            paths.map(|path| std::fs::read(path).unwrap())
        };
        let [page, picture] = read(&runs);
        runs.reverse();
        assert_eq!(read(&runs), [page.clone(), picture.clone()]);
        let page = String::from_utf8(page).unwrap();
        assert!(!page.contains("ppo</script>") && !page.contains("{{"));
        assert!(!page.contains("src=") && !page.contains("href="));
        let picture = tiny_skia::Pixmap::decode_png(&picture).unwrap();
        assert_eq!((picture.width(), picture.height()), (1280, 800));
    }
}
