//! Starling: deep reinforcement learning in Rust.
//!
//! This is the library behind the `starling` command; everything that the command does can be done
//! from Rust. Read first: [`settings::resolve`] (from an environment's name to a [`RunConfig`]),
//! [`train`] (a whole run), [`Env`] (to write your own environment).
//!
//! ```no_run
//! use starling::settings::{self, Request};
//!
//! let config = settings::resolve(&Request::new("CartPole-v1"))?;
//! let outcome = starling::train(config, "runs".as_ref(), "example", &mut ())?;
//! println!("{:?}", outcome.status.mean_return);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

pub use starling_algos as algos;
pub use starling_atari as atari;
pub use starling_cluster as cluster;
pub use starling_dashboard as dashboard;
pub use starling_engine as engine;
pub use starling_engine::{EngineError, Outcome, Reason, RunConfig, Status, Training, Watcher};
pub use starling_envs as envs;
pub use starling_envs::Env;
pub use starling_mujoco as mujoco;
pub use starling_nets as nets;
pub use starling_python as python;
pub use starling_record as record;
pub use starling_replay as replay;
pub use starling_settings::{JsonSchema, Schema, schemars};
pub use starling_tree as tree;

use starling_record::{RunFolder, RunInfo, Version};

pub mod bench;
pub mod commands;
pub mod mujoco_wheel;
pub mod onnxruntime;
pub mod peers;
pub mod presets;
pub mod queue;
pub mod roms;
pub mod run_filter;
pub mod saber;
pub mod settings;
pub mod verify;
mod wheels;

/// Adds the environments of crates that the table in `envs` does not know: MuJoCo's and Python's. Commands and
/// [`settings::resolve`] do it themselves; call it before looking into [`envs::registry`].
pub fn add_environments() {
    mujoco::add();
    python::add();
}

/// Makes a run folder under `root`, writes what defines the run into it, and trains to the end.
pub fn train(
    config: RunConfig,
    root: &Path,
    name: &str,
    watcher: &mut dyn Watcher,
) -> Result<Outcome, EngineError> {
    let folder = create_folder(&config, root, name)?;
    let training = Training::start(config, &folder)?;
    training.run(&AtomicBool::new(false), None, watcher)
}

/// Makes the folder of a run and writes what defines the run into it. If that fails, nothing is
/// left behind.
pub fn create_folder(
    config: &RunConfig,
    root: &Path,
    name: &str,
) -> Result<RunFolder, EngineError> {
    let seed = config.settings.seed;
    let (env, algo) = (config.env_id.as_str(), config.algo_name.as_str());
    let folder = RunFolder::create(root, env, algo, name, seed, SystemTime::now())?;
    let info = RunInfo {
        env: env.to_owned(),
        algo: algo.to_owned(),
        name: name.to_owned(),
        seed,
    };
    match describe_run(&folder, config, info) {
        Ok(()) => Ok(folder),
        Err(error) => {
            // The error says more than a failure to remove what was just made would.
            let _ = std::fs::remove_dir_all(folder.path());
            Err(error.into())
        }
    }
}

fn describe_run(
    folder: &RunFolder,
    config: &RunConfig,
    info: RunInfo,
) -> Result<(), starling_record::Error> {
    let resolved = config.to_value();
    folder.write_config(&settings::to_yaml(&resolved))?;
    folder.write_params(&resolved)?;
    // The checkout that the program was built from, while it is there.
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = if built_from.exists() {
        built_from
    } else {
        Path::new(".")
    };
    folder.write_version(&Version::collect(info, env!("CARGO_PKG_VERSION"), sources))
}

/// The settings of an existing run, on another device if one is given.
pub fn read_config(
    folder: &RunFolder,
    device: Option<&str>,
) -> Result<RunConfig, settings::SettingsError> {
    add_environments();
    let path = folder.config_path();
    let mut tree = read_settings(folder)?;
    if let Some(device) = device {
        settings::merge(&mut tree, &serde_json::json!({ "device": device }));
    }
    RunConfig::from_value(&tree).map_err(|error| match error {
        // This machine's, not the file's.
        EngineError::Device(_) => error.into(),
        source => settings::SettingsError::Run { path, source },
    })
}

/// The settings of an existing run with some of them changed, given as `key=value` pairs. What makes it
/// this run, its environment, algorithm and seed, cannot be changed.
pub fn read_changed_config(
    folder: &RunFolder,
    changes: &[String],
) -> Result<RunConfig, settings::SettingsError> {
    let config = read_config(folder, None)?;
    let changes = settings::overrides(changes)?;
    for (key, pointer) in [
        ("env.id", "/env/id"),
        ("algo.name", "/algo/name"),
        ("seed", "/seed"),
    ] {
        let fixed = config.to_value().pointer(pointer).cloned();
        if changes
            .pointer(pointer)
            .is_some_and(|changed| Some(changed) != fixed.as_ref())
        {
            return Err(settings::SettingsError::Fixed { key });
        }
    }
    let mut tree = read_settings(folder)?;
    settings::merge(&mut tree, &changes);
    settings::check(&tree, &config.env_id, &config.algo_name)
}

fn read_settings(folder: &RunFolder) -> Result<serde_json::Value, settings::SettingsError> {
    let text = folder.read_config()?;
    settings::from_yaml(&text, &folder.config_path().display().to_string())
}
