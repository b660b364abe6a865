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
    /// A Python with the libraries to compare with [default: python3]
    #[arg(long)]
    python: Option<String>,
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
    /// Whole runs on Pong, learning included (not part of all)
    Train,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let out = &mut std::io::stdout();
    let wanted = |what| args.what == What::All || args.what == what;
    if wanted(What::Envs) {
        bench::envs(&args.env, out)?;
    }
    if wanted(What::Replay) {
        bench::replay(out)?;
    }
    if wanted(What::Collect) {
        bench::collect(out)?;
    }
    if args.what == What::Atari {
        super::roms::ensure("ALE/Pong-v5")?;
        bench::atari(args.python.as_deref(), out)?;
    }
    if args.what == What::Train {
        super::roms::ensure("ALE/Pong-v5")?;
        bench::train(args.python.as_deref(), out)?;
    }
    Ok(ExitCode::SUCCESS)
}
