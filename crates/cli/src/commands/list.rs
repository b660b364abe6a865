//! `starling list`: what there is, from the tables.

use std::process::ExitCode;

use crate::{algos, envs, presets};

#[derive(clap::Args)]
pub(super) struct Args {
    /// What to list
    what: What,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// Environments
    Envs,
    /// Algorithms
    Algos,
    /// Presets
    Presets,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let rows: Vec<[String; 2]> = match args.what {
        What::Envs => envs::registry::all()
            .iter()
            .map(|env| [env.id.to_owned(), env.summary.to_owned()])
            .collect(),
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
    let width = rows.iter().map(|[name, _]| name.chars().count()).max();
    for [name, summary] in &rows {
        say!("{name:<width$}  {summary}", width = width.unwrap_or(0));
    }
    Ok(ExitCode::SUCCESS)
}
