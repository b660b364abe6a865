//! The user's Python.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// The variable that names the Python to use.
pub const VARIABLE: &str = "STARLING_PYTHON";

/// A Python, and why it is this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// The program.
    pub path: PathBuf,
    /// What named it: `env.python`, a variable, or nothing.
    pub named_by: Option<&'static str>,
}

/// The Python for environments: the one that is given (`env.python`), or else that of
/// `STARLING_PYTHON`, of the active virtual environment or conda environment, or `python3`.
pub fn find(given: Option<&Path>) -> Interpreter {
    choose(
        given,
        |name| std::env::var_os(name).filter(|value| !value.is_empty()),
        Path::is_file,
    )
}

fn choose(
    given: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
    exists: impl Fn(&Path) -> bool,
) -> Interpreter {
    let named = |path: PathBuf, by| Interpreter {
        path,
        named_by: Some(by),
    };
    if let Some(path) = given {
        return named(path.to_owned(), "env.python");
    }
    if let Some(path) = variable(VARIABLE) {
        return named(path.into(), VARIABLE);
    }
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        let Some(folder) = variable(name) else {
            continue;
        };
        let path = Path::new(&folder).join("bin").join("python");
        if exists(&path) {
            return named(path, name);
        }
    }
    Interpreter {
        path: "python3".into(),
        named_by: None,
    }
}

/// What a Python has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct About {
    /// Where it is.
    pub program: PathBuf,
    /// Its version.
    pub python: String,
    /// The version of Gymnasium, if it has it.
    pub gymnasium: Option<String>,
    /// The version of numpy, if it has it.
    pub numpy: Option<String>,
}

const ASK: &str = "import importlib.metadata as m, json, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({'program': sys.executable, 'python': sys.version.split()[0],
                  'gymnasium': version('gymnasium'), 'numpy': version('numpy')}))";

/// Asks a Python what it has.
///
/// # Errors
/// When it cannot be run; the error says why.
pub fn about(python: &Path) -> Result<About, String> {
    let output = command(python).args(["-c", ASK]).output();
    let output = output.map_err(|error| cannot_run(python, &error))?;
    let said = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(said.trim()).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        let reason = last.unwrap_or("it gave no reason");
        format!("{} cannot be used: {reason}", python.display())
    })
}

/// The command that installs Gymnasium.
pub fn install_command(python: &Path) -> String {
    format!("{} -m pip install gymnasium", python.display())
}

pub(crate) fn cannot_run(python: &Path, error: &std::io::Error) -> String {
    format!(
        "the Python {} cannot be run: {error}; name another one by env.python or {VARIABLE}",
        python.display()
    )
}

/// A command of a Python that does not find our libtorch before its own.
pub fn command(python: &Path) -> Command {
    const LIBRARIES: &str = "LD_LIBRARY_PATH";
    let mut command = Command::new(python);
    if let Some(paths) = std::env::var_os(LIBRARIES) {
        let others =
            std::env::split_paths(&paths).filter(|folder| !folder.join("libtorch_cpu.so").exists());
        match std::env::join_paths(others) {
            Ok(others) if !others.is_empty() => command.env(LIBRARIES, others),
            _ => command.env_remove(LIBRARIES),
        };
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_comes_first_and_python3_last() {
        let all = |name: &str| Some(OsString::from(format!("/{name}")));
        let chosen = |given: Option<&str>, unset: &[&str], exists: fn(&Path) -> bool| {
            let set = |name: &str| all(name).filter(|_| !unset.contains(&name));
            let found = choose(given.map(Path::new), set, exists);
            (found.path.display().to_string(), found.named_by)
        };
        assert_eq!(
            chosen(Some("py"), &[], |_| true),
            ("py".into(), Some("env.python"))
        );
        assert_eq!(
            chosen(None, &[], |_| true),
            ("/STARLING_PYTHON".into(), Some(VARIABLE))
        );
        assert_eq!(
            chosen(None, &[VARIABLE], |_| true),
            ("/VIRTUAL_ENV/bin/python".into(), Some("VIRTUAL_ENV"))
        );
        // One that was removed while it was active.
        assert_eq!(
            chosen(None, &[VARIABLE], |path| path.starts_with("/CONDA_PREFIX")),
            ("/CONDA_PREFIX/bin/python".into(), Some("CONDA_PREFIX"))
        );
        assert_eq!(
            chosen(None, &[VARIABLE], |_| false),
            ("python3".into(), None)
        );
    }
}
