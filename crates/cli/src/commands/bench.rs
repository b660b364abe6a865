//! `starling bench`: the speed of the hot paths on this machine.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

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
    /// One of the processes that the measurement `cluster` starts
    #[arg(long, value_name = "JSON", hide = true)]
    side: Option<String>,
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
    /// Environments in Python, compared with Gymnasium's, Stable-Baselines3's and PufferLib's
    /// vectors (not part of `all`)
    Python,
    /// SAC and TD3 on a MuJoCo task, compared with other libraries (not part of `all`)
    Continuous,
    /// Groups of 1, 2 and 4 learners, and what averaging costs (not part of `all`)
    Group,
    /// Remote actors compared with local ones, and what crosses the network (not part of `all`)
    Cluster,
    /// Sampling from the replay
    Replay,
    /// Collecting with a policy
    Collect,
    /// Whole training runs, compared with other libraries (not part of `all`)
    Train,
    /// Atari games from Python, with the package starling-rl, compared with Rust (not part of `all`)
    Wheel,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let out = &mut std::io::stdout();
    let wanted = |what| args.what == What::All || args.what == what;
    if wanted(What::Envs) {
        // One that is named is fetched; otherwise what is not installed is not measured.
        let mut named = registry::all().into_iter().filter(|spec| {
            mujoco::needs_mujoco(spec.id) && !args.env.is_empty() && spec.id.contains(&args.env)
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
    if args.what == What::Python {
        bench::python(&python_peers(args.python.as_deref())?, out)?;
    }
    if args.what == What::Continuous {
        super::mujoco::ensure("HalfCheetah-v5")?;
        let python = continuous_peer(args.python.as_deref());
        bench::continuous(python.as_deref(), out)?;
    }
    if args.what == What::Group {
        bench::group(&std::env::current_exe()?, out)?;
    }
    if args.what == What::Cluster {
        super::roms::ensure("ALE/Pong-v5")?;
        match &args.side {
            Some(side) => bench::cluster_side(serde_json::from_str(side)?, out)?,
            None => bench::cluster(&std::env::current_exe()?, out)?,
        }
    }
    if args.what == What::Train {
        super::roms::ensure("ALE/Pong-v5")?;
        // Without a GPU, one of the runs is in bfloat16 on the processor.
        if nets::cuda_devices() == 0 && !super::bf16::ready()? {
            anyhow::bail!("bench train uses bfloat16, which this processor does not support");
        }
        bench::train(args.python.as_deref(), out)?;
    }
    if args.what == What::Wheel {
        super::roms::ensure("ALE/Pong-v5")?;
        let python = PathBuf::from(args.python.as_deref().unwrap_or("python3"));
        peers::says(&python, "import starling").context(
            "this Python has no starling-rl; build it with scripts/build_wheels.py and install it",
        )?;
        bench::wheel(&python, out)?;
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

/// A Python with gymnasium and those peers of Python environments that can be installed; prints the
/// others.
fn python_peers(wanted: Option<&str>) -> anyhow::Result<PathBuf> {
    let python = match wanted {
        Some(python) => python.into(),
        None => peers::install(&["gymnasium==1.4.0"])?,
    };
    let sb3 = peers::says(&python, "import stable_baselines3");
    let sb3 = match wanted {
        None if sb3.is_err() => peers::install(&["stable-baselines3==2.9.2"]).map(drop),
        _ => sb3.map(drop),
    };
    if let Err(error) = sb3 {
        note!("not compared with Stable-Baselines3: {error}");
    }
    // It has no wheels, and needs other versions of what the others need.
    if let Err(error) = peers::says(&python, "import pufferlib.vector, pufferlib.emulation") {
        note!("not compared with PufferLib: {error} (PYTHONPATH may name a folder that has it)");
    }
    Ok(python)
}

/// A Python with Stable-Baselines3, PyTorch and MuJoCo; says why there is none. PyTorch takes 5 GB.
fn continuous_peer(wanted: Option<&str>) -> Option<std::path::PathBuf> {
    let imports = "import stable_baselines3, torch, gymnasium, mujoco";
    let packages = [
        "stable-baselines3",
        "torch==2.11.0",
        "gymnasium==1.4.0",
        "mujoco==3.17.0",
    ];
    let found = match wanted {
        Some(python) => peers::says(python.as_ref(), imports).map(|_| python.into()),
        None => peers::install(&packages),
    };
    if let Err(error) = &found {
        note!("not compared with Stable-Baselines3 and PyTorch: {error}");
    }
    found.ok()
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
