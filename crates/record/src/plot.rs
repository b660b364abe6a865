//! Learning curves: runs that differ only in their seeds are averaged into one curve with a band.
//!
//! Read first: [`PlotOptions`], [`Chart`] (the curves, ready to be drawn as a page or as a
//! picture). Which runs belong together is decided by [`Comparison`].

mod axis;
mod html;
mod png;

use std::path::{Path, PathBuf};

use crate::comparison::{Comparison, Group};
use crate::csv::Table;
use crate::durable::replace_file;
use crate::error::Result;
use crate::metrics::{STEP_COLUMN, Summary};

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
    /// The title; by default the environments and what is plotted.
    pub title: Option<String>,
    /// What the band shows.
    pub band: Band,
    /// Light text on a dark ground in the picture. The page follows the reader's setting.
    pub dark: bool,
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
    /// The environment steps at which the curves are known.
    pub x: Vec<f64>,
    /// The curves, sorted by name.
    pub curves: Vec<Curve>,
}

/// The mean of one or more runs, and how far they spread. NaN where no run reaches.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Algorithm, the settings that differ and, if there are several, the environment.
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
    /// The curves of groups of runs. Each run is interpolated between its rows; one that ended
    /// before others of its group keeps its last value.
    pub fn of(runs: &Comparison, options: &PlotOptions) -> Self {
        let series: Vec<(&Group, Vec<Series>)> = runs
            .groups
            .iter()
            .map(|group| {
                let column = &group.measure.column;
                let series = group.runs.iter();
                let series = series.map(|run| Series::of(&run.table, column));
                (group, series.collect())
            })
            .collect();
        let x = common_steps(series.iter().flat_map(|(_, series)| series));
        let envs = runs.envs();
        let curves: Vec<Curve> = series
            .iter()
            .map(|(group, series)| {
                let mut label = group.label();
                if envs.len() > 1 {
                    label = format!("{label}, {}", group.env);
                }
                Curve::of(label, series, &x, options.band)
            })
            .collect();
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
        let note = if curves.iter().any(|curve| curve.runs > 1) {
            format!("Line: mean over runs. Band: {band}.")
        } else {
            String::new()
        };
        Self {
            title,
            y_label,
            note,
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
        let ends = group.iter().filter_map(|series| Some(series.0.last()?.0));
        let end = ends.fold(f64::NEG_INFINITY, f64::max);
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

/// A picture does not show more points than this.
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
