//! `starling plot`: learning curves.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::record::plot::{Band, PlotOptions, Run, plot};
use crate::record::{RunFolder, aggregate, scores_of};
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
    for line in final_scores(&runs, options.key.as_deref()) {
        say!("{line}");
    }
    Ok(ExitCode::SUCCESS)
}

/// A line per algorithm: what its runs ended with, over games and seeds.
fn final_scores(runs: &[Run], key: Option<&str>) -> Vec<String> {
    let mut algos: Vec<&str> = runs.iter().map(|run| run.info.algo.as_str()).collect();
    algos.sort_unstable();
    algos.dedup();
    let games = |runs: &[&Run]| {
        let mut games: Vec<String> = runs.iter().map(|run| run.info.env.clone()).collect();
        games.sort_unstable();
        games.dedup();
        games
    };
    let all: Vec<&Run> = runs.iter().collect();
    // Scores of different games can only be put together on a common scale.
    let known = |game: &String| scores_of(game).is_some_and(|row| row.human.is_some());
    let common = games(&all).iter().all(known);
    let mut lines = Vec::new();
    for algo in algos {
        let of_algo: Vec<&Run> = all
            .iter()
            .copied()
            .filter(|r| r.info.algo == algo)
            .collect();
        let groups = match common {
            true => vec![games(&of_algo)],
            false => games(&of_algo).into_iter().map(|game| vec![game]).collect(),
        };
        for group in groups {
            let scores: Vec<Vec<f64>> = group
                .iter()
                .map(|game| {
                    let runs = of_algo.iter().filter(|run| run.info.env == *game);
                    let last = runs.filter_map(|run| run.last(key));
                    last.filter_map(|score| match (common, scores_of(game)) {
                        (true, Some(row)) => row.human_normalized(score),
                        _ => Some(score),
                    })
                    .collect()
                })
                .collect();
            let Some(all) = aggregate(&scores) else {
                continue;
            };
            let what = match common {
                true => "human-normalised".to_owned(),
                false => group.join(", "),
            };
            lines.push(format!(
                "{algo}, {what}: IQM {:.2} [{:.2}, {:.2}], median {:.2} [{:.2}, {:.2}] \
                 (95 %, {} games, {} runs)",
                all.iqm.value,
                all.iqm.low,
                all.iqm.high,
                all.median.value,
                all.median.low,
                all.median.high,
                all.games,
                all.runs,
            ));
        }
    }
    lines
}
