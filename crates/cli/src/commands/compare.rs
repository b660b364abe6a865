//! `starling compare`: the settings in which two runs differ, and their learning curves.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use super::numbers::{grouped, short};
use crate::record::plot::{PlotOptions, XAxis, plot};
use crate::record::{
    Comparison, Ending, Run, RunFolder, STEP_COLUMN, Source, TIME_COLUMN, differences,
};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Run: its folder, a prefix of its name, or last
    a: PathBuf,
    /// Another run
    b: PathBuf,
    /// Folder for plot.html and plot.png with both curves
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Column to compare, such as losses/loss [default: game scores on Atari, otherwise returns]
    #[arg(long)]
    key: Option<String>,
    /// Compare eval.csv instead of progress.csv
    #[arg(long)]
    eval: bool,
    /// Compare and draw by time instead of steps
    #[arg(long)]
    time: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let source = match args.eval {
        true => Source::Evaluation,
        false => Source::Training,
    };
    let read = |run: &Path| -> anyhow::Result<Run> {
        let folder = RunFolder::open(&super::find_run(run)?)?;
        Ok(Run::read(&folder, source)?)
    };
    let runs = [read(&args.a)?, read(&args.b)?];
    let differing = differences(&runs[0].settings, &runs[1].settings);
    let compared = Comparison::by(runs.to_vec(), args.key.as_deref(), &["run".to_owned()])?;
    let column = |run: &Run| {
        let group = compared
            .groups
            .iter()
            .find(|group| group.env == run.info.env);
        group.map(|group| {
            (
                group.measure.column.clone(),
                group.measure.label().to_owned(),
            )
        })
    };
    let columns = [column(&runs[0]), column(&runs[1])];
    let axis = match args.time {
        true => TIME_COLUMN,
        false => STEP_COLUMN,
    };
    let curves: Vec<Vec<(f64, f64)>> = runs
        .iter()
        .zip(&columns)
        .map(|(run, column)| {
            column
                .as_ref()
                .map_or_else(Vec::new, |(name, _)| points(run, axis, name))
        })
        .collect();
    if args.json {
        let report = json!({
            "runs": runs.iter().zip(&curves).map(|(run, curve)| described(run, curve)).collect::<Vec<_>>(),
            "settings": differing.iter().map(|(key, [a, b])| (key.clone(), json!([a, b])))
                .collect::<Map<String, Value>>(),
        });
        say!("{report:#}");
    } else {
        let what = columns
            .iter()
            .flatten()
            .next()
            .map_or("value", |(_, label)| label);
        say!("{}", text(&runs, &differing, &curves, what, args.time));
    }
    if let Some(folder) = &args.plot {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let options = PlotOptions {
            x: if args.time { XAxis::Time } else { XAxis::Steps },
            ..PlotOptions::default()
        };
        for path in plot(&compared, &options, folder)? {
            note!("{}", path.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The rows in which a run has both numbers.
fn points(run: &Run, axis: &str, column: &str) -> Vec<(f64, f64)> {
    let (Some(x), Some(y)) = (run.table.column(axis), run.table.column(column)) else {
        return Vec::new();
    };
    let points = x.into_iter().zip(y);
    points
        .filter(|(x, y)| x.is_finite() && y.is_finite())
        .collect()
}

fn described(run: &Run, curve: &[(f64, f64)]) -> Value {
    json!({
        "path": run.path.display().to_string(),
        "env": run.info.env,
        "algo": run.info.algo,
        "seed": run.info.seed,
        "ending": ending(run),
        "steps": run.last(STEP_COLUMN),
        "seconds": run.last(TIME_COLUMN),
        "last": curve.last().map(|(_, y)| y),
        "best": best(curve),
        "curve": curve,
    })
}

fn ending(run: &Run) -> &'static str {
    match run.ending {
        Ending::Finished => "finished",
        Ending::Stopped(_) => "reached stop_at_return",
        Ending::Unfinished { .. } => "unfinished",
    }
}

fn best(curve: &[(f64, f64)]) -> Option<f64> {
    curve.iter().map(|(_, y)| *y).max_by(f64::total_cmp)
}

/// At how many places of the curves their values are listed.
const PLACES: usize = 8;

fn text(
    runs: &[Run; 2],
    differing: &[(String, [String; 2])],
    curves: &[Vec<(f64, f64)>],
    what: &str,
    by_time: bool,
) -> String {
    let dash = || "–".to_owned();
    let row = |name: &str, value: &dyn Fn(usize) -> Option<String>| {
        [
            name.to_owned(),
            value(0).unwrap_or_else(dash),
            value(1).unwrap_or_else(dash),
        ]
    };
    let steps = |steps: f64| grouped(steps as u64);
    let seconds = |seconds: f64| format!("{seconds:.0} s");
    let mut rows = vec![
        row("", &|i| Some(["A", "B"][i].to_owned())),
        row("environment", &|i| Some(runs[i].info.env.clone())),
        row("algorithm", &|i| Some(runs[i].info.algo.clone())),
        row("ending", &|i| Some(ending(&runs[i]).to_owned())),
        row("steps", &|i| runs[i].last(STEP_COLUMN).map(steps)),
        row("time", &|i| runs[i].last(TIME_COLUMN).map(seconds)),
        row(&format!("last {what}"), &|i| {
            Some(short(curves[i].last()?.1))
        }),
        row(&format!("best {what}"), &|i| best(&curves[i]).map(short)),
    ];
    rows.push(Default::default());
    match differing {
        [] => rows.push([
            "settings: no differences".to_owned(),
            String::new(),
            String::new(),
        ]),
        _ => rows.push([
            "settings that differ".to_owned(),
            String::new(),
            String::new(),
        ]),
    }
    let settings = differing.iter();
    rows.extend(settings.map(|(key, [a, b])| [format!("  {key}"), a.clone(), b.clone()]));
    let ends = curves.iter().filter_map(|curve| Some(curve.last()?.0));
    let end = ends.fold(0.0, f64::max);
    if end > 0.0 {
        rows.push(Default::default());
        rows.push([format!("{what} at"), String::new(), String::new()]);
        for place in 1..=PLACES {
            let x = end * place as f64 / PLACES as f64;
            let name = match by_time {
                true => seconds(x),
                false => steps(x),
            };
            let at = |i: usize| value_at(&curves[i], x).map(short);
            rows.push(row(&format!("  {name}"), &at));
        }
    }
    let names = [("A", &runs[0]), ("B", &runs[1])];
    let names = names.map(|(name, run)| format!("{name}: {}", run.path.display()));
    format!("{}\n\n{}", names.join("\n"), aligned(&rows))
}

/// The last value up to a place; none after the end of the curve.
fn value_at(curve: &[(f64, f64)], x: f64) -> Option<f64> {
    let after = curve.partition_point(|(at, _)| *at <= x);
    let ended = curve.last().is_some_and(|(end, _)| *end < x * (1.0 - 1e-9));
    match ended {
        true => None,
        false => Some(curve.get(after.checked_sub(1)?)?.1),
    }
}

fn aligned(rows: &[[String; 3]]) -> String {
    let size = |text: &String| text.chars().count();
    let width = |column: usize| rows.iter().map(|row| size(&row[column])).max().unwrap_or(0);
    let (name, a) = (width(0), width(1));
    let lines = rows.iter().map(|[first, second, third]| {
        let line = format!("{first:<name$}  {second:<a$}  {third}");
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_no_value_after_its_end() {
        let curve = [(10.0, 1.0), (20.0, 3.0)];
        let at = |x: f64| value_at(&curve, x);
        assert_eq!((at(5.0), at(10.0), at(19.0)), (None, Some(1.0), Some(1.0)));
        assert_eq!((at(20.0), at(21.0)), (Some(3.0), None));
    }
}
