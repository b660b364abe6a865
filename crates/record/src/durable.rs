//! Writing such that a crash or a full disk leaves either the old file or the new one.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};

/// Replaces the file at `path`: written aside, synced, renamed.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let aside = beside(path);
    let written = File::create(&aside)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    if let Err(source) = written {
        // The error that matters is the one above; what is left aside is only litter.
        let _ = fs::remove_file(&aside);
        return Err(source).doing("write", path);
    }
    fs::rename(&aside, path).doing("replace", path)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Makes renames and new names inside a folder last through a power cut.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .doing("sync the folder", path)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}
