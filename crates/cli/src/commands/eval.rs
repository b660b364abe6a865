//! `starling eval`: how good a trained agent is.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::numbers::{at_least_one, whole};
use super::rollouts::Rollouts;
use crate::engine::{
    Agent, EpisodeStep, Episodes, Filmed, Played, RunConfig, evaluate_checkpoint,
    evaluate_checkpoint_seen, is_needed_to_act,
};
use crate::record::{Checkpoint, RunFolder, Summary, checkpoint, scores_of};
use crate::saber;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Run: its folder, a prefix of its name, or last
    run: PathBuf,
    /// Device to use instead of the run's: auto, cpu, cuda:0
    #[arg(long)]
    device: Option<String>,
    /// Episodes to play, or trials with algorithms that adapt to a task
    #[arg(long, default_value = "100", value_parser = at_least_one, allow_negative_numbers = true)]
    episodes: u64,
    /// Seed of the environments; the default differs from the seed of evaluations during training
    #[arg(long, default_value = "1000000", value_parser = whole, allow_negative_numbers = true)]
    seed: u64,
    /// Use the checkpoint with the best score instead of the latest
    #[arg(long)]
    best: bool,
    /// Write the first episode as a video, .mp4 or .gif
    #[arg(long, value_name = "FILE", conflicts_with = "protocol")]
    video: Option<PathBuf>,
    /// Write every step of all episodes as JSON lines: observation, action, reward, end
    #[arg(long, value_name = "FILE", conflicts_with = "protocol")]
    rollouts: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Score an Atari agent according to a published protocol
    #[arg(long, value_enum)]
    protocol: Option<Protocol>,
    /// Folder for the table and page of --protocol saber [default: the run's]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Protocol {
    /// Whole games with all 18 actions and sticky actions, stopped after 5 minutes without a
    /// reward; scores at 5 minutes, 30 minutes and the end
    Saber,
    /// Mean score of the last 100 games of training at 10, 50, 100 and 200 million frames
    Training,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let run = super::find_run(&args.run)?;
    let folder = RunFolder::open(&run)?;
    let mut config = super::read_config(&folder, args.device.as_deref())?;
    super::bf16::ensure(&mut config)?;
    if let Some(Protocol::Training) = args.protocol {
        return training(&folder, &config, args.json);
    }
    let chosen = checkpoint_of(&folder, args.best)?;
    let episodes = args.episodes as usize;
    if let Some(Protocol::Saber) = args.protocol {
        let report = saber::saber(&config, &chosen, episodes, args.seed)?;
        let out = args.out.unwrap_or_else(|| run.clone());
        let [table, page] = saber::write_report(&report, &out)?;
        if args.json {
            let report = serde_json::json!({
                "env": report.env,
                "algo": report.algo,
                "run": run.display().to_string(),
                "checkpoint": chosen.path().display().to_string(),
                "step": report.step,
                "seed": args.seed,
                "scores_5min": report.five_minutes,
                "scores_30min": report.thirty_minutes,
                "scores": report.scores,
                "frames": report.frames,
            });
            say!("{report:#}");
        } else {
            say!("{} {} at step {}", report.env, report.algo, report.step);
            say!("checkpoint {}, seed {}", chosen.path().display(), args.seed);
            say!("{}", report.summary().trim_end());
            say!("{}\n{}", table.display(), page.display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let episodes = Episodes {
        count: episodes,
        seed: args.seed,
        ..Episodes::default()
    };
    let evaluation = match &args.rollouts {
        None => evaluate_checkpoint(&config, &chosen, &episodes)?,
        Some(path) => {
            let mut rollouts = Rollouts::create(path)?;
            let mut see = |step: EpisodeStep<'_>| rollouts.add(&step);
            let evaluation = evaluate_checkpoint_seen(&config, &chosen, &episodes, &mut see)?;
            rollouts.finish()?;
            note!("{}: {} episodes", path.display(), evaluation.returns.len());
            evaluation
        }
    };
    if evaluation.cut_off > 0 {
        note!(
            "warning: {} of {} episodes were cut off after {} steps (eval.max_steps)",
            evaluation.cut_off,
            evaluation.returns.len(),
            config.settings.eval.max_steps
        );
    }
    if let Some(path) = &args.video {
        let most = config.settings.eval.max_steps;
        let played = film(&config, &chosen, args.seed, most, path)?;
        note!("{} shows an episode: {played}", path.display());
    }
    let returns = Summary::of(evaluation.returns.iter().copied());
    let lengths = Summary::of(evaluation.lengths.iter().copied());
    if args.json {
        let mut report = serde_json::json!({
            "env": config.env_id,
            "algo": config.algo_name,
            "run": run.display().to_string(),
            "checkpoint": chosen.path().display().to_string(),
            "step": chosen.step(),
            "seed": args.seed,
            "episodes": evaluation.returns.len(),
            "return_mean": returns.average,
            "return_median": returns.median,
            "return_std": returns.std,
            "return_min": returns.min,
            "return_max": returns.max,
            "length_mean": lengths.average,
            "cut_off": evaluation.cut_off,
            "returns": evaluation.returns,
        });
        if !evaluation.by_trajectory.is_empty() {
            let returns = evaluation.by_trajectory.into_iter();
            let returns = returns.map(|(name, returns)| (name, returns.into()));
            report["trajectories"] = serde_json::Value::Object(returns.collect());
        }
        say!("{report:#}");
    } else {
        say!(
            "{} {} at step {}, {} episodes, seed {}",
            config.env_id,
            config.algo_name,
            chosen.step(),
            evaluation.returns.len(),
            args.seed
        );
        say!(
            "return {}, length {:.1}",
            describe(&returns),
            lengths.average
        );
        for (name, returns) in &evaluation.by_trajectory {
            say!(
                "  {name}: return {}",
                describe(&Summary::of(returns.iter().copied()))
            );
        }
        say!("{}", chosen.path().display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The best checkpoint of a run by evaluation, if it is asked for and there is one, or the latest.
pub(super) fn checkpoint_of(folder: &RunFolder, best: bool) -> anyhow::Result<Checkpoint> {
    let checkpoints = folder.checkpoints_path();
    if best {
        if let Some(best) = checkpoint::best_of_run(folder, is_needed_to_act)? {
            return Ok(best);
        }
        note!(
            "warning: no checkpoint is marked as the best (there is no {}); the latest is used",
            checkpoints.join("best").display()
        );
    }
    let (latest, damaged) = checkpoint::latest_with(&checkpoints, is_needed_to_act)?;
    for damage in damaged {
        note!("warning: {damage}");
    }
    Ok(latest)
}

/// Plays the first episode of the evaluation once more, with the same random streams, as a video.
fn film(
    config: &RunConfig,
    chosen: &Checkpoint,
    seed: u64,
    most: u64,
    path: &Path,
) -> anyhow::Result<Played> {
    let spec = config.env_spec()?;
    let options = (spec.for_evaluation)(&config.env);
    let agent = Agent::new(config, chosen)?;
    let roles = ["eval", "eval-policy"];
    let mut player = Filmed::new(spec, &options, Some(agent), roles, seed)?;
    player.film(&[path], most, |_, _| Ok(()))
}

/// `0.950 ± 0.041 (min …, median …, max …)`, with more decimals for small numbers.
fn describe(returns: &Summary) -> String {
    let digits = match returns.min.abs().max(returns.max.abs()) {
        size if size < 1.0 => 3,
        size if size < 10.0 => 2,
        _ => 1,
    };
    let Summary {
        average,
        std,
        median,
        min,
        max,
    } = returns;
    format!(
        "{average:.digits$} ± {std:.digits$} (min {min:.digits$}, median {median:.digits$}, \
         max {max:.digits$})"
    )
}

fn training(folder: &RunFolder, config: &RunConfig, json: bool) -> anyhow::Result<ExitCode> {
    let scores = saber::training_scores(folder, config)?;
    if scores.is_empty() {
        anyhow::bail!("the run has not reached 10 million frames yet: there is nothing to report");
    }
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
    for row in &scores {
        let share = game.and_then(|game| game.human_normalized(row.score));
        let share = share.map_or(String::new(), |share| {
            format!(", {:.1} % of human", 100.0 * share)
        });
        say!("{:>4} M frames: {:.1}{share}", row.millions, row.score);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_returns_have_decimals() {
        let text = |values: [f64; 2]| describe(&Summary::of(values));
        assert_eq!(
            text([0.91, 0.99]),
            "0.950 ± 0.040 (min 0.910, median 0.950, max 0.990)"
        );
        assert!(text([1.0, 9.5]).starts_with("5.25 ± 4.25"));
        assert!(text([-200.0, -100.0]).starts_with("-150.0 ± 50.0"));
    }
}
