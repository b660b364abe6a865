//! What can be wrong with MuJoCo, a model or a simulation.

use std::path::PathBuf;

use starling_envs::EnvError;

use crate::VERSION;

/// What can be wrong with MuJoCo, a model or a simulation.
#[derive(Debug, thiserror::Error)]
pub enum MujocoError {
    /// It is not installed.
    #[error(
        "MuJoCo {VERSION} is missing: there is no {file} in {}; `./starling mujoco` downloads it, or \
         set STARLING_MUJOCO to a folder that has it",
        listed(folders)
    )]
    Missing {
        /// The file's usual name.
        file: &'static str,
        /// Where it was looked for.
        folders: Vec<PathBuf>,
    },
    /// The file cannot be opened as a shared library.
    #[error(
        "{} cannot be opened as a library: {cause}; remove it and run `./starling mujoco`",
        path.display()
    )]
    NotALibrary {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: String,
    },
    /// It is another version.
    #[error(
        "{} is MuJoCo {}, and {VERSION} is needed: other versions compute other numbers; \
         `./starling mujoco` downloads the right one",
        path.display(),
        dotted(*found)
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version, as MuJoCo numbers them.
        found: i32,
    },
    /// A function is missing.
    #[error(
        "{} has no function called {name}: it is not MuJoCo {VERSION} or it is damaged; remove it and \
         run `./starling mujoco`",
        path.display()
    )]
    NoFunction {
        /// The file.
        path: PathBuf,
        /// The function.
        name: &'static str,
    },
    /// Its structures are not as in the headers that this program was made from.
    #[error(
        "{} says that it is MuJoCo {VERSION}, but its structures are laid out differently; use the \
         one that `./starling mujoco` downloads",
        .0.display()
    )]
    Layout(PathBuf),
    /// A model cannot be used.
    #[error("the model {name} cannot be used: {reason}")]
    Model {
        /// Its file.
        name: String,
        /// Why.
        reason: String,
    },
    /// The simulation left the numbers that it can compute with.
    #[error(
        "the simulation is unstable: MuJoCo found NaN, infinity or a huge number in {what}[{place}]; \
         smaller actions or a smaller env.reset_noise_scale may help, and on_env_error=restart \
         continues a run with a new environment"
    )]
    Unstable {
        /// Which part of the state.
        what: &'static str,
        /// Its index.
        place: i32,
    },
    /// MuJoCo met an error that it cannot continue from.
    #[error("MuJoCo stopped with an error: {0}")]
    Stopped(String),
    /// A state of another model.
    #[error("a state has {found} numbers instead of {wanted}")]
    State {
        /// Numbers that it has.
        found: usize,
        /// Numbers that it should have.
        wanted: usize,
    },
}

impl From<MujocoError> for EnvError {
    fn from(error: MujocoError) -> Self {
        match error {
            MujocoError::State { .. } => EnvError::Snapshot(error.to_string()),
            other => EnvError::Failed(other.to_string()),
        }
    }
}

fn listed(folders: &[PathBuf]) -> String {
    let folders = folders.iter().map(|folder| folder.display().to_string());
    let folders: Vec<String> = folders.collect();
    match folders.len() {
        0 => "the user's cache (set XDG_CACHE_HOME or HOME)".into(),
        _ => folders.join(" or "),
    }
}

/// 3003007 is 3.3.7.
fn dotted(version: i32) -> String {
    let (major, rest) = (version / 1_000_000, version % 1_000_000);
    match major {
        // Before version 3.5 it was 337 for 3.3.7.
        0 => format!("{}.{}.{}", rest / 100, rest / 10 % 10, rest % 10),
        _ => format!("{major}.{}.{}", rest / 1000, rest % 1000),
    }
}
