//! Files out of Python wheels, which are downloaded with pip but not installed.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `python3` in a folder; the inner error is the end of what it said.
pub(crate) fn python(folder: &Path, arguments: &[&str]) -> io::Result<Result<(), String>> {
    let output = Command::new("python3")
        .args(arguments)
        .current_dir(folder)
        .output()?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    Ok(Err(last.unwrap_or("it gave no reason").trim().to_owned()))
}

/// A folder that is removed in the end.
pub(crate) struct Temporary(pub(crate) PathBuf);

impl Temporary {
    /// The inner error has the folder's name.
    pub(crate) fn new(what: &str) -> Result<Self, (PathBuf, io::Error)> {
        let name = format!("starling-{what}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        match std::fs::create_dir(&path) {
            Ok(()) => Ok(Self(path)),
            Err(cause) => Err((path, cause)),
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What cannot be removed is left to the system, which clears its folder for such files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
