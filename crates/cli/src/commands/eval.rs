//! `starling eval`: how good a trained agent is.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::engine::evaluate_checkpoint;
use crate::record::{RunFolder, Summary, checkpoint};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run
    run: PathBuf,
    /// Episodes to play
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    episodes: u32,
    /// Seed of the environments; different from the run's own evaluations
    #[arg(long, default_value_t = 1_000_000)]
    seed: u64,
    /// The best checkpoint by score instead of the latest
    #[arg(long)]
    best: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let folder = RunFolder::open(&args.run)?;
    let config = crate::read_config(&folder)?;
    let best = match args.best {
        true => checkpoint::best(&folder.checkpoints_path())?,
        false => None,
    };
    let chosen = match best {
        Some(best) => best,
        None => {
            let (latest, damaged) = checkpoint::latest(&folder.checkpoints_path())?;
            for damage in damaged {
                eprintln!("warning: {damage}");
            }
            latest
        }
    };
    let evaluation = evaluate_checkpoint(&config, &chosen, args.episodes as usize, args.seed)?;
    let returns = Summary::of(evaluation.returns.iter().copied());
    let lengths = Summary::of(evaluation.lengths.iter().copied());
    if args.json {
        let report = serde_json::json!({
            "env": config.env_id,
            "algo": config.algo_name,
            "step": chosen.step(),
            "episodes": evaluation.returns.len(),
            "return_mean": returns.average,
            "return_std": returns.std,
            "return_min": returns.min,
            "return_max": returns.max,
            "length_mean": lengths.average,
            "returns": evaluation.returns,
        });
        say!("{report:#}");
    } else {
        say!(
            "{} {} at step {}: return {:.1} ± {:.1} (min {:.1}, median {:.1}, max {:.1}), \
             length {:.1}, over {} episodes",
            config.env_id,
            config.algo_name,
            chosen.step(),
            returns.average,
            returns.std,
            returns.min,
            returns.median,
            returns.max,
            lengths.average,
            evaluation.returns.len()
        );
    }
    Ok(ExitCode::SUCCESS)
}
