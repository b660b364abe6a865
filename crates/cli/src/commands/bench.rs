//! `starling bench`: the hot paths on this machine.

use std::process::ExitCode;

use crate::bench;

#[derive(clap::Args)]
pub(super) struct Args {
    /// What to measure
    #[arg(value_enum, default_value_t = What::All)]
    what: What,
    /// Only environments whose id contains this
    #[arg(long, default_value = "")]
    env: String,
    /// A Python with ale-py to compare Atari games with, or with torchrl and cpprb to compare the
    /// replay with [default: python3]
    #[arg(long)]
    python: Option<String>,
    /// Measure the replay with a million frames (7.1 GB of memory)
    #[arg(long)]
    full: bool,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum What {
    /// Everything
    All,
    /// Stepping environments
    Envs,
    /// Atari games beside ale-py's vector environment (not part of all)
    Atari,
    /// Drawing from the replay
    Replay,
    /// Collecting with a policy
    Collect,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let out = &mut std::io::stdout();
    let wanted = |what| args.what == What::All || args.what == what;
    if wanted(What::Envs) {
        bench::envs(&args.env, out)?;
    }
    if wanted(What::Replay) {
        bench::replay(args.python.as_deref(), args.full, out)?;
    }
    if wanted(What::Collect) {
        bench::collect(out)?;
    }
    if args.what == What::Atari {
        super::roms::ensure("ALE/Pong-v5")?;
        bench::atari(args.python.as_deref(), out)?;
    }
    Ok(ExitCode::SUCCESS)
}
