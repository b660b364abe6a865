//! `starling runs`: lists runs.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::Value;

use super::Usage;
use super::numbers::grouped;
use crate::run_filter::Filter;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Show only runs that match: pong, env:Pong, algo=ppo, state:running, seed=3, steps>1e6,
    /// return>=400, algo.gamma=0.99; with a minus sign in front (after `--`), runs that do not match
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// Folder to search for runs
    #[arg(long, default_value = super::RUNS, value_name = "DIR")]
    runs: PathBuf,
    /// Show only this many, the newest
    #[arg(long, value_name = "N", value_parser = super::numbers::at_least_one)]
    last: Option<u64>,
    /// Print JSON, with all settings
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut filters = Vec::new();
    // Quoted, several words are one argument: 'algo=ppo return>10'.
    for word in args.filters.iter().flat_map(|text| text.split_whitespace()) {
        filters.push(Filter::parse(word).map_err(|error| Usage(error.to_string()))?);
    }
    let mut runs = starling_dashboard::list_runs(&args.runs);
    let all = runs.len();
    runs.retain(|run| filters.iter().all(|filter| filter.fits(run)));
    let key = |run: &Value, name: &str| run[name].as_str().unwrap_or_default().to_owned();
    runs.sort_by_key(|run| (key(run, "started"), key(run, "path")));
    if let Some(last) = args.last {
        let first = runs.len().saturating_sub(last as usize);
        runs.drain(..first);
    }
    if args.json {
        for run in &mut runs {
            // What only the dashboard's page needs.
            for own in ["id", "group", "progress", "eval", "log"] {
                if let Some(run) = run.as_object_mut() {
                    run.shift_remove(own);
                }
            }
        }
        say!("{:#}", Value::Array(runs));
        return Ok(ExitCode::SUCCESS);
    }
    if runs.is_empty() {
        match all {
            0 => note!("no runs in {}", args.runs.display()),
            _ => note!("none of the {all} runs in {} matches", args.runs.display()),
        }
        return Ok(ExitCode::SUCCESS);
    }
    say!("{}", table(&runs));
    Ok(ExitCode::SUCCESS)
}

const TITLES: [&str; 8] = [
    "started",
    "environment",
    "algorithm",
    "seed",
    "state",
    "steps",
    "return",
    "folder",
];

/// Whether a column is right-aligned.
const NUMERIC: [bool; 8] = [false, false, false, true, false, true, true, false];

fn table(runs: &[Value]) -> String {
    let mut rows = vec![TITLES.map(str::to_owned)];
    rows.extend(runs.iter().map(cells));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..TITLES.len()).map(|i| width(i).unwrap_or(0)).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).zip(NUMERIC);
        let cells = cells.map(|((cell, &width), numeric)| match numeric {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn cells(run: &Value) -> [String; 8] {
    let text = |name: &str| match &run[name] {
        Value::String(text) => text.clone(),
        Value::Null => "–".to_owned(),
        value => value.to_string(),
    };
    let number = |name: &str| run[name].as_f64();
    let steps = match (number("steps"), number("of")) {
        (Some(steps), Some(of)) if of > 0.0 => {
            let percent = (100.0 * steps / of).min(100.0).floor();
            format!("{} ({percent} %)", grouped(steps as u64))
        }
        (Some(steps), _) => grouped(steps as u64),
        _ => "–".to_owned(),
    };
    [
        started(&text("started")),
        text("env"),
        text("algo"),
        text("seed"),
        text("state"),
        steps,
        number("return").map_or_else(|| "–".to_owned(), super::numbers::short),
        text("path"),
    ]
}

/// `20261115T082500Z` as `2026-11-15 08:25`.
fn started(compact: &str) -> String {
    let parts = [0..4, 4..6, 6..8, 9..11, 11..13].map(|part| compact.get(part));
    match parts {
        [Some(year), Some(month), Some(day), Some(hour), Some(minute)] => {
            format!("{year}-{month}-{day} {hour}:{minute}")
        }
        _ => compact.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_has_a_line_for_each_run() {
        let runs = [
            json!({"env": "CartPole-v1", "algo": "ppo", "seed": 1, "state": "finished",
                   "steps": 100352.0, "of": 100000.0, "return": 487.25,
                   "started": "20261115T082500Z", "path": "runs/a"}),
            json!({"env": "ALE/Pong-v5", "algo": "dqn", "seed": 12, "state": "running",
                   "steps": null, "of": 1e6, "return": null, "started": null, "path": "runs/b"}),
        ];
        let expected = "\
started           environment  algorithm  seed  state               steps  return  folder
2026-11-15 08:25  CartPole-v1  ppo           1  finished  100,352 (100 %)   487.2  runs/a
–                 ALE/Pong-v5  dqn          12  running                 –       –  runs/b";
        assert_eq!(table(&runs), expected);
    }
}
