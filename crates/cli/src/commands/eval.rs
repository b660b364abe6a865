//! `starling eval`: how good a trained agent is.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::engine::{RunConfig, evaluate_checkpoint};
use crate::protocol;
use crate::record::{RunFolder, Summary, checkpoint, scores_of};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run
    run: PathBuf,
    /// Device instead of the run's own: auto, cpu, cuda:0
    #[arg(long)]
    device: Option<String>,
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
    /// Judge an Atari agent by a protocol of the field
    #[arg(long, value_enum)]
    protocol: Option<Protocol>,
    /// Folder for the table and page of --protocol saber [default: that of the run]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Protocol {
    /// Whole games with all 18 actions, sticky, cut off after 5 minutes without a reward; scores
    /// at 5 minutes, 30 minutes and the end
    Saber,
    /// What the last 100 training episodes had reached at 10, 50, 100 and 200 million frames
    Training,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let folder = RunFolder::open(&args.run)?;
    let mut config = crate::read_config(&folder, args.device.as_deref())?;
    super::bf16::ensure(&mut config)?;
    if let Some(Protocol::Training) = args.protocol {
        return training(&folder, &config, args.json);
    }
    let best = match args.best {
        true => checkpoint::best(&folder.checkpoints_path())?,
        false => None,
    };
    let chosen = match best {
        Some(best) => best,
        None => {
            let (latest, damaged) = checkpoint::latest(&folder.checkpoints_path())?;
            for damage in damaged {
                note!("warning: {damage}");
            }
            latest
        }
    };
    let episodes = args.episodes as usize;
    if let Some(Protocol::Saber) = args.protocol {
        let report = protocol::saber(&config, &chosen, episodes, args.seed)?;
        let out = args.out.unwrap_or_else(|| args.run.clone());
        let [table, page] = protocol::write_report(&report, &out)?;
        if args.json {
            let report = serde_json::json!({
                "env": report.env,
                "algo": report.algo,
                "step": report.step,
                "scores_5min": report.five_minutes,
                "scores_30min": report.thirty_minutes,
                "scores": report.scores,
                "frames": report.frames,
            });
            say!("{report:#}");
        } else {
            say!("{} {} at step {}", report.env, report.algo, report.step);
            say!("{}", report.summary().trim_end());
            say!("{}\n{}", table.display(), page.display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let evaluation = evaluate_checkpoint(&config, &chosen, episodes, args.seed, &[])?;
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

fn training(folder: &RunFolder, config: &RunConfig, json: bool) -> anyhow::Result<ExitCode> {
    if config.env_spec()?.family != "atari" {
        let text = format!(
            "--protocol is for Atari games, and this is a run of {}",
            config.env_id
        );
        return Err(super::Usage(text).into());
    }
    let skip = u64::from(config.env.frame_skip.unwrap_or(4));
    let scores = protocol::training_scores(folder, skip)?;
    let game = scores_of(&config.env_id);
    if json {
        let rows = scores.iter().map(|row| {
            serde_json::json!({
                "million_frames": row.millions,
                "score": row.score,
                "human_normalized": game.and_then(|game| game.human_normalized(row.score)),
                "record_normalized": game.and_then(|game| game.record_normalized(row.score)),
            })
        });
        say!("{:#}", serde_json::Value::Array(rows.collect()));
        return Ok(ExitCode::SUCCESS);
    }
    if scores.is_empty() {
        say!("the run has not got to 10 million frames");
    }
    for row in &scores {
        say!("{:>4} M frames: {:.1}", row.millions, row.score);
    }
    if config.env.clip_rewards == Some(true) {
        say!("these are sums of clipped rewards, as the agent was trained with");
    }
    Ok(ExitCode::SUCCESS)
}
