//! `starling plot`: learning curves.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::record::RunFolder;
use crate::record::plot::{Band, PlotOptions, Run, plot};
use anyhow::Context as _;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Folders of runs; those of the same environment and algorithm become one curve with a band
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// Folder to write plot.html and plot.png to [default: that of the run, or here for several]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Column to draw instead of the mean return, such as losses/loss
    #[arg(long)]
    key: Option<String>,
    /// Draw eval.csv instead of progress.csv
    #[arg(long)]
    eval: bool,
    /// Title
    #[arg(long)]
    title: Option<String>,
    /// What the band shows
    #[arg(long, value_enum, default_value_t = BandChoice::Range)]
    band: BandChoice,
    /// Dark picture (the page follows the reader's own setting)
    #[arg(long)]
    dark: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum BandChoice {
    /// From the lowest run to the highest
    Range,
    /// One standard deviation to both sides
    Std,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut runs = Vec::new();
    for path in &args.runs {
        let folder = RunFolder::open(path)?;
        runs.push(match args.eval {
            true => Run::read_eval(&folder)?,
            false => Run::read(&folder)?,
        });
    }
    let out = match (args.out, args.runs.as_slice()) {
        (Some(out), _) => out,
        (None, [single]) => single.clone(),
        (None, _) => PathBuf::from("."),
    };
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let options = PlotOptions {
        key: args.key,
        title: args.title,
        band: match args.band {
            BandChoice::Range => Band::MinMax,
            BandChoice::Std => Band::Std,
        },
        dark: args.dark,
    };
    for path in plot(&runs, &options, &out)? {
        say!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}
