//! `starling status`: the processes and the progress of a run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::record::{Live, RunFolder, Table};

use super::numbers::grouped;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Run: its folder, a prefix of its name, or last
    run: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Columns of `progress.csv`, as `--json` calls them.
const COLUMNS: [(&str, &str); 8] = [
    ("env_steps", "Diagnostics/CumSteps"),
    ("updates", "Diagnostics/CumUpdates"),
    ("steps_per_s", "Diagnostics/StepsPerSecond"),
    ("updates_per_s", "Diagnostics/UpdatesPerSecond"),
    ("return_mean", "charts/episodic_return"),
    ("policy_lag", "charts/policy_lag"),
    ("actor_losses", "Diagnostics/ActorLosses"),
    ("loss", "losses/loss"),
];

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let run = super::find_run(&args.run)?;
    let folder = RunFolder::open(&run)?;
    let settings = folder.settings()?;
    let live = Live::read(&folder.live_path());
    let last = last_row(&folder.progress_path());
    if args.json {
        let mut status = json!({
            "run": run.display().to_string(),
            "env": settings["env"]["id"],
            "algo": settings["algo"]["name"],
            "steps": settings["steps"],
            "running": live.as_ref().is_some_and(Live::is_running),
        });
        for ((name, _), value) in COLUMNS.iter().zip(&last) {
            status[name] = json!(value);
        }
        status["evaluation"] = evaluation(&folder);
        status["roles"] = json!(live.as_ref().map(|live| &live.roles));
        status["joining"] = json!(live.as_ref().and_then(|live| live.joining.as_ref()));
        say!("{status:#}");
        return Ok(ExitCode::SUCCESS);
    }
    say!("{}", head(&run, &settings, live.as_ref(), &last, &folder));
    if let Some(live) = &live {
        say!("{}", table(live));
    }
    Ok(ExitCode::SUCCESS)
}

/// The newest value of each of [`COLUMNS`].
fn last_row(path: &Path) -> Vec<Option<f64>> {
    let table = Table::read(path).ok();
    let newest = |column: &str| {
        let column = table.as_ref()?.column(column)?;
        column.into_iter().rev().find(|value| value.is_finite())
    };
    COLUMNS.iter().map(|(_, column)| newest(column)).collect()
}

/// Step and mean return of the last evaluation.
fn evaluation(folder: &RunFolder) -> Value {
    let table = Table::read(&folder.eval_path()).ok();
    let newest = |column: &str| table.as_ref()?.column(column)?.last().copied();
    match (newest("env_steps"), newest("ReturnAverage")) {
        (Some(step), Some(mean)) => json!({"env_steps": step, "return_mean": mean}),
        _ => Value::Null,
    }
}

fn head(
    run: &Path,
    settings: &Value,
    live: Option<&Live>,
    last: &[Option<f64>],
    folder: &RunFolder,
) -> String {
    let [
        steps,
        updates,
        steps_per_s,
        updates_per_s,
        mean,
        lag,
        losses,
        _,
    ] = *last
    else {
        return String::new();
    };
    let state = match live.is_some_and(Live::is_running) {
        true => "running",
        false => "not running",
    };
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let mut lines = vec![
        run.display().to_string(),
        format!(
            "{} on {}, {state}",
            text(&settings["algo"]["name"]),
            text(&settings["env"]["id"])
        ),
    ];
    let whole = |value: Option<f64>| grouped(value.unwrap_or(0.0) as u64);
    lines.push(format!(
        "steps {} of {}, {} steps/s; {} updates, {:.1} updates/s",
        whole(steps),
        grouped(settings["steps"].as_u64().unwrap_or(0)),
        whole(steps_per_s),
        whole(updates),
        updates_per_s.unwrap_or(0.0),
    ));
    let mut parts = Vec::new();
    parts.extend(mean.map(|mean| format!("mean return {mean:.1}")));
    let last_evaluation = evaluation(folder);
    if let (Some(step), Some(mean)) = (
        last_evaluation["env_steps"].as_f64(),
        last_evaluation["return_mean"].as_f64(),
    ) {
        let step = grouped(step as u64);
        parts.push(format!("evaluation at {step}: {mean:.1}"));
    }
    parts.extend(lag.map(|lag| format!("policy lag {lag:.1} updates")));
    parts.extend(losses.map(|losses| format!("{losses} actors lost")));
    lines.extend((!parts.is_empty()).then(|| parts.join(", ")));
    if let Some(joining) = live.and_then(|live| live.joining.as_ref()) {
        lines.push(format!(
            "since the learner started: {} joined, {} left, {} lost, {} reconnects, {} duplicates; \
             {:.2} MB/s",
            joining.joined,
            joining.left,
            joining.lost,
            joining.reconnects,
            joining.duplicates,
            joining.bytes_per_s / 1e6,
        ));
    }
    lines.join("\n")
}

/// One line per role, of at most 80 columns.
fn table(live: &Live) -> String {
    let line = |role: &str, name: &str, state: &str, rate: &str, lag: &str| {
        let name: String = name.chars().take(34).collect();
        let state: String = state.chars().take(19).collect();
        let line = format!("{role:<10}{name:<35}{state:<20}{rate:>9}{lag:>6}");
        line.trim_end().to_owned()
    };
    let mut lines = vec![
        String::new(),
        line("role", "name", "state", "steps/s", "lag"),
    ];
    let is = |name: &'static str| live.roles.iter().filter(move |role| role.role == name);
    let running = live.is_running();
    for learner in is("learner") {
        let state = if running { "running" } else { "not running" };
        lines.push(line("learner", &learner.name, state, "", ""));
    }
    // The last state of a run that has ended is outdated.
    if !running {
        return lines.join("\n");
    }
    for actor in is("actor") {
        let state = match actor.away_s {
            Some(away) => format!("away for {away:.0} s"),
            None => actor.state.clone(),
        };
        let text = |number: Option<u64>| number.map_or_else(String::new, grouped);
        let rate = text(actor.steps_per_s.map(|rate| rate as u64));
        let lag = actor.lag.map_or(String::new(), |lag| lag.to_string());
        lines.push(line("actor", &actor.name, &state, &rate, &lag));
    }
    for evaluator in is("evaluator") {
        let state = match evaluator.evaluating {
            Some(step) => format!("at step {}", grouped(step)),
            None => "waiting".into(),
        };
        lines.push(line("evaluator", &evaluator.name, &state, "", ""));
    }
    if let Some(joining) = &live.joining {
        let free = joining.places.saturating_sub(is("actor").count() as u64);
        if free > 0 {
            lines.push(format!("{free} of {} places are free", joining.places));
        }
    }
    let spares = is("spare").count();
    if spares > 0 {
        lines.push(format!("{spares} spares wait for a place"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Joining, Role};

    #[test]
    fn the_table_fits_80_columns() {
        let long = "a-host-with-a-very-long-name.example.org:1234567 (place 1234)";
        let role = |role: &str| Role {
            role: role.into(),
            name: long.into(),
            ..Role::default()
        };
        let live = Live {
            written: f64::MAX,
            roles: vec![
                role("learner"),
                Role {
                    away_s: Some(123_456.0),
                    steps_per_s: Some(1_234_567.0),
                    lag: Some(99_999),
                    ..role("actor")
                },
                role("spare"),
                Role {
                    evaluating: Some(123_456_789_012),
                    ..role("evaluator")
                },
            ],
            joining: Some(Joining {
                places: 4,
                ..Joining::default()
            }),
            ..Live::default()
        };
        let table = table(&live);
        assert!(
            table.lines().all(|line| line.chars().count() <= 80),
            "{table}"
        );
        assert!(
            table.contains("1,234,567") && table.contains("99999"),
            "{table}"
        );
        assert!(table.contains("at step 123,456,789") && table.contains("3 of 4 places"));
        assert!(table.contains("1 spares"), "{table}");
    }
}
