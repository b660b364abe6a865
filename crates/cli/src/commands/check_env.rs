//! `starling check-env`: finds bugs in environments that break learning.

use std::process::ExitCode;

use crate::envs::check;
use crate::envs::registry::{self, Build};

use super::numbers::{at_least_one, whole};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Environment
    id: String,
    /// Settings of the environment, such as env.stack=1
    #[arg(value_name = "KEY=VALUE")]
    options: Vec<String>,
    /// Steps to take
    #[arg(
        long,
        default_value = "10000",
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    steps: u64,
    /// Seed of the environment and of the random actions
    #[arg(long, default_value = "1", value_parser = whole, allow_negative_numbers = true)]
    seed: u64,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let spec = registry::find(&args.id)?;
    super::roms::ensure(spec.id)?;
    super::mujoco::ensure(spec.id)?;
    let options = super::env_options(spec, &args.options)?;
    // What cannot be made at all is an error, not a finding.
    spec.limit(&options)?;
    let report = match spec.build {
        Build::Env(_) => check::check(&mut || spec.make(&options), args.seed, args.steps),
        Build::Batch(make) => {
            let mut make = |count| make(spec.id, &options, count);
            check::check_batch(&mut make, args.seed, args.steps)
        }
    };
    for finding in &report.findings {
        say!("{finding}");
    }
    let verdict = match report.passed() {
        true => "nothing is wrong",
        false => "see above",
    };
    say!(
        "{}: {verdict}; {} steps, {} episodes, {:.0} steps/s, {}",
        args.id,
        report.steps,
        report.episodes,
        report.steps_per_second,
        match report.can_be_saved {
            true => "runs can be resumed exactly",
            false => "its state cannot be saved",
        }
    );
    Ok(match report.passed() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
