//! `starling plot`: learning curves.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::record::plot::{Band, PlotOptions, Reference, XAxis, plot};
use crate::record::{Comparison, Run, RunFolder, Source, find_runs};
use anyhow::Context as _;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Runs (folders, prefixes of names, or last), or folders to search for runs. Runs that differ
    /// only in their seeds are averaged into one curve with a band
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// Folder for plot.html and plot.png [default: the run's, or the current one for several runs]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Column to draw, such as losses/loss [default: game scores on Atari, otherwise returns]
    #[arg(long)]
    key: Option<String>,
    /// Draw eval.csv instead of progress.csv
    #[arg(long)]
    eval: bool,
    /// Title of the plot
    #[arg(long)]
    title: Option<String>,
    /// What the band shows
    #[arg(long, value_enum, default_value_t = BandChoice::Range)]
    band: BandChoice,
    /// Table of curves to draw beside the runs, with the columns label, env, steps and score, such as
    /// benches/atari/published.csv
    #[arg(long, value_name = "FILE")]
    beside: Option<PathBuf>,
    /// Average runs that are equal in these settings, whatever else differs: dotted names, separated by
    /// commas, such as algo.learning_rate; also seed, name, run
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    by: Vec<String>,
    /// What the x axis shows
    #[arg(long, value_enum, default_value_t = XChoice::Steps)]
    x: XChoice,
    /// Draw the mean of this many rows up to each point
    #[arg(
        long,
        value_name = "ROWS",
        default_value = "1",
        value_parser = super::numbers::at_least_one,
        allow_negative_numbers = true
    )]
    smooth: u64,
    /// Draw the PNG with a dark background (the page follows the browser's setting)
    #[arg(long)]
    dark: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum BandChoice {
    /// From the lowest run to the highest
    Range,
    /// One standard deviation on each side of the mean
    Std,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum XChoice {
    /// Steps of all environments
    Steps,
    /// Time spent on the run
    Time,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let source = match args.eval {
        true => Source::Evaluation,
        false => Source::Training,
    };
    let mut paths = Vec::new();
    for run in &args.runs {
        paths.push(match run.exists() {
            true => run.clone(),
            false => super::find_run(run)?,
        });
    }
    let paths = find_runs(&paths)?;
    let (mut runs, mut unreadable) = (Vec::new(), Vec::new());
    for path in &paths {
        match RunFolder::open(path).and_then(|folder| Run::read(&folder, source)) {
            Ok(run) => runs.push(run),
            Err(error) => unreadable.push(error),
        }
    }
    if runs.is_empty() && !unreadable.is_empty() {
        return Err(unreadable.remove(0).into());
    }
    for error in unreadable {
        note!("warning: a run is left out: {error}");
    }
    let compared = Comparison::by(runs, args.key.as_deref(), &args.by)?;
    for note in &compared.notes {
        note!("warning: {note}");
    }
    let out = match (args.out, paths.as_slice()) {
        (Some(out), _) => out,
        (None, [single]) => single.clone(),
        (None, _) => PathBuf::from("."),
    };
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let options = PlotOptions {
        title: args.title,
        band: match args.band {
            BandChoice::Range => Band::MinMax,
            BandChoice::Std => Band::Std,
        },
        dark: args.dark,
        x: match args.x {
            XChoice::Steps => XAxis::Steps,
            XChoice::Time => XAxis::Time,
        },
        smooth: args.smooth as usize,
        beside: match &args.beside {
            Some(file) => Reference::read(file)?,
            None => Vec::new(),
        },
    };
    for path in plot(&compared, &options, &out)? {
        say!("{}", path.display());
    }
    for score in compared.final_scores() {
        say!("{score}");
    }
    Ok(ExitCode::SUCCESS)
}
