//! `starling bench`: the speed of the hot paths on this machine.

use std::process::ExitCode;

use crate::envs::registry;
use crate::{bench, mujoco, nets, peers};

#[derive(clap::Args)]
pub(super) struct Args {
    /// What to measure
    #[arg(value_enum, default_value_t = What::All)]
    what: What,
    /// Measure only environments whose id contains this text
    #[arg(long, default_value = "")]
    env: String,
    /// Python that has the libraries to compare with [default: python3, or for Atari a virtual
    /// environment in the user's cache]
    #[arg(long)]
    python: Option<String>,
    /// Measure the replay with a million frames (takes 7.1 GB of memory)
    #[arg(long)]
    full: bool,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum What {
    /// Everything
    All,
    /// Stepping environments
    Envs,
    /// Atari games, compared with ale-py's vector environment and EnvPool (not part of `all`)
    Atari,
    /// MuJoCo tasks, compared with Gymnasium and EnvPool (not part of `all`)
    Mujoco,
    /// Sampling from the replay
    Replay,
    /// Collecting with a policy
    Collect,
    /// Whole training runs, compared with other libraries (not part of `all`)
    Train,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let out = &mut std::io::stdout();
    let wanted = |what| args.what == What::All || args.what == what;
    if wanted(What::Envs) {
        // One that is named is fetched; otherwise what is not installed is not measured.
        let mut named = registry::all().into_iter().filter(|spec| {
            spec.family == mujoco::FAMILY && !args.env.is_empty() && spec.id.contains(&args.env)
        });
        if let Some(spec) = named.next() {
            super::mujoco::ensure(spec.id)?;
        }
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
        bench::atari(&atari_peers(args.python.as_deref()), out)?;
    }
    if args.what == What::Mujoco {
        super::mujoco::ensure("HalfCheetah-v5")?;
        bench::mujoco(&args.env, &mujoco_peers(args.python.as_deref()), out)?;
    }
    if args.what == What::Train {
        super::roms::ensure("ALE/Pong-v5")?;
        // Without a GPU, one of the runs is in bfloat16 on the processor.
        if nets::cuda_devices() == 0 && !super::bf16::ready()? {
            anyhow::bail!("bench train uses bfloat16, which this processor does not support");
        }
        bench::train(args.python.as_deref(), out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The peers that are installed or can be installed; prints the others.
fn atari_peers(wanted: Option<&str>) -> bench::Peers {
    let ale = super::atari::peer(wanted);
    let envpool = match &ale {
        Ok(python) if peers::says(python, "import envpool").is_ok() => Ok(python.clone()),
        _ => peers::install(&["envpool"]),
    };
    if let Err(error) = &ale {
        note!("not compared with ale-py: {error}");
    }
    if let Err(error) = &envpool {
        note!("not compared with EnvPool: {error}");
    }
    bench::Peers {
        ale: ale.ok(),
        envpool: envpool.ok(),
    }
}

/// The peers of MuJoCo's tasks that are installed or can be; says which cannot.
fn mujoco_peers(wanted: Option<&str>) -> bench::MujocoPeers {
    let find = |imports: &str, packages: &[&str]| match wanted {
        Some(python) => peers::says(python.as_ref(), imports).map(|_| python.into()),
        None => peers::install(packages),
    };
    let gymnasium = find(
        "import gymnasium, mujoco",
        &["gymnasium==1.4.0", "mujoco==3.17.0", "imageio"],
    );
    let envpool = find("import envpool", &["envpool"]);
    if let Err(error) = &gymnasium {
        note!("not compared with Gymnasium: {error}");
    }
    if let Err(error) = &envpool {
        note!("not compared with EnvPool: {error}");
    }
    bench::MujocoPeers {
        gymnasium: gymnasium.ok(),
        envpool: envpool.ok(),
    }
}
