//! `starling list`: environments, algorithms and presets, from the tables.

use std::process::ExitCode;

use crate::envs::atari;
use crate::{algos, envs, presets};

#[derive(clap::Args)]
pub(super) struct Args {
    /// What to list
    what: What,
    /// Show only lines that contain this text (case-insensitive)
    #[arg(value_name = "TEXT")]
    filter: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// Environments
    Envs,
    /// The 57 Atari games used in most papers
    Atari57,
    /// The Atari games for which SABER has a world record
    Saber,
    /// Algorithms
    Algos,
    /// Presets
    Presets,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let rows: Vec<[String; 2]> = match args.what {
        What::Envs => rows(|_| true),
        What::Atari57 => rows(|id| in_set("atari57", id)),
        What::Saber => rows(|id| in_set("saber", id)),
        What::Algos => algos::registry::all()
            .iter()
            .map(|algo| {
                let summary = format!("{} ({})", algo.summary, algo.paper);
                [algo.name.to_owned(), summary]
            })
            .collect(),
        What::Presets => presets::all()
            .iter()
            .map(|preset| [preset.name.to_owned(), preset.summary().to_owned()])
            .collect(),
    };
    let wanted = args.filter.unwrap_or_default().to_lowercase();
    let contains = |text: &String| text.to_lowercase().contains(&wanted);
    let rows: Vec<_> = rows
        .into_iter()
        .filter(|row| row.iter().any(contains))
        .collect();
    if rows.is_empty() {
        anyhow::bail!("no line contains '{wanted}'");
    }
    let width = rows.iter().map(|[name, _]| name.chars().count()).max();
    for [name, summary] in &rows {
        say!("{name:<width$}  {summary}", width = width.unwrap_or(0));
    }
    Ok(ExitCode::SUCCESS)
}

/// The environments whose ids are selected.
fn rows(wanted: impl Fn(&str) -> bool) -> Vec<[String; 2]> {
    let schemes = envs::registry::schemes().into_iter();
    let schemes = schemes.filter(|scheme| wanted(scheme.pattern));
    let schemes = schemes.map(|scheme| [scheme.pattern.to_owned(), scheme.summary.to_owned()]);
    envs::registry::all()
        .iter()
        .filter(|env| wanted(env.id))
        .map(|env| {
            let summary = match presets::default_algo(env.family) {
                "ppo" => env.summary.to_owned(),
                other => format!("{} (default algorithm: {other})", env.summary),
            };
            [env.id.to_owned(), summary]
        })
        .chain(schemes)
        .collect()
}

/// Whether an id is the usual one of a game of a set.
fn in_set(set: &str, id: &str) -> bool {
    let games = atari::set(set).unwrap_or_default();
    atari::parse(id).is_some_and(|(game, version)| {
        version == atari::Version::V5 && games.iter().any(|known| known.name == game.name)
    })
}
