//! The programs that the Atari emulator is compared with: `ale-py` and EnvPool, in the user's
//! Python or in a virtual environment in the user's cache.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a peer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// A program could not be started.
    #[error("{} cannot be run: {cause}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// What went wrong.
        cause: std::io::Error,
    },
    /// A program failed: often there is no network.
    #[error("{what}: {reason}")]
    Failed {
        /// What could not be done.
        what: String,
        /// The end of what the program said.
        reason: String,
    },
    /// There is no place for the virtual environment.
    #[error("there is no folder for Python packages: set XDG_CACHE_HOME or HOME")]
    NoFolder,
}

/// The version of ale-py that the console is compared with, as pip takes it.
pub const ALE: &str = "ale-py==0.12.1";

const HAS_ALE: &str = "import gymnasium, numpy, importlib.metadata as m
assert m.version('ale-py') == '0.12.1'";

/// A Python that has ale-py, numpy and gymnasium: `wanted`, or else `python3`, or else that of
/// our virtual environment.
pub fn find(wanted: Option<&str>) -> Option<PathBuf> {
    let places = match wanted {
        Some(python) => vec![python.into()],
        None => ["python3".into()].into_iter().chain(own_python()).collect(),
    };
    places
        .into_iter()
        .find(|python: &PathBuf| says(python, HAS_ALE).is_ok())
}

/// Where [`install`] puts packages.
pub fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")))
        .map(|cache| cache.join("starling").join("peers"))
}

/// Installs packages with pip into our virtual environment, which is created if it does not exist;
/// returns its Python.
///
/// # Errors
/// When there is no Python with pip, no network or no package for this machine.
pub fn install(packages: &[&str]) -> Result<PathBuf, PeerError> {
    let folder = folder().ok_or(PeerError::NoFolder)?;
    let python = own_python().ok_or(PeerError::NoFolder)?;
    if !python.is_file() {
        let what = format!(
            "could not create a virtual environment in {}",
            folder.display()
        );
        let mut venv = Command::new("python3");
        run(venv.args(["-m", "venv"]).arg(&folder), what)?;
    }
    let what = format!("pip could not install {}", packages.join(" "));
    let pip = "-m pip install --quiet --disable-pip-version-check --only-binary=:all:";
    let mut command = Command::new(&python);
    run(command.args(pip.split(' ')).args(packages), what)?;
    Ok(python)
}

/// What a Python program prints last.
///
/// # Errors
/// When it fails.
pub fn says(python: &Path, program: &str) -> Result<String, PeerError> {
    let mut command = Command::new(python);
    let what = "a Python program failed".to_owned();
    let text = run(command.args(["-c", program]), what)?;
    Ok(text.lines().last().unwrap_or_default().to_owned())
}

fn own_python() -> Option<PathBuf> {
    Some(folder()?.join("bin").join("python"))
}

fn run(command: &mut Command, what: String) -> Result<String, PeerError> {
    let output = command.output().map_err(|cause| PeerError::Program {
        program: command.get_program().into(),
        cause,
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    let reason = last.unwrap_or("it gave no reason").trim().to_owned();
    Err(PeerError::Failed { what, reason })
}
