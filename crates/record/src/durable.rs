//! Reading and writing that survives a crash, a power cut or an unexpected file.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};

/// Replaces the file at `path`: written to another name, synced, renamed. A crash or a full disk
/// leaves either the old file or the new one.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let aside = beside(path);
    let written = File::create(&aside)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    if let Err(source) = written {
        // The error that matters is the one above; the other file is only litter.
        let _ = fs::remove_file(&aside);
        return Err(source).doing("write", path);
    }
    fs::rename(&aside, path).doing("replace", path)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// As [`replace_file`], but a power cut may lose the new file or both.
pub(crate) fn replace_unsynced(path: &Path, bytes: &[u8]) -> Result<()> {
    let aside = beside(path);
    if let Err(source) = fs::write(&aside, bytes) {
        let _ = fs::remove_file(&aside);
        return Err(source).doing("write", path);
    }
    fs::rename(&aside, path).doing("replace", path)
}

/// Removes what [`replace_file`] left in a folder when the process was killed.
pub(crate) fn remove_leftovers(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(NEW) {
            // Litter is no reason to refuse a run.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Creates a folder, with those above it that are missing, so that it lasts through a power cut.
pub(crate) fn create_folders(path: &Path) -> Result<()> {
    let exists = |folder: &Path| folder.as_os_str().is_empty() || folder.is_dir();
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !exists(path)).collect();
    for folder in missing.into_iter().rev() {
        match fs::create_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Another process may have been faster.
                if !folder.is_dir() {
                    let error = io::Error::from(io::ErrorKind::NotADirectory);
                    return Err(error).doing("create the folder", folder);
                }
            }
            created => created.doing("create the folder", folder)?,
        }
        sync_parent(folder)?;
    }
    Ok(())
}

/// Makes the name of a new folder last through a power cut.
pub(crate) fn sync_parent(folder: &Path) -> Result<()> {
    match sync_folder(folder.parent().unwrap_or(Path::new("."))) {
        // One may create folders in a folder that one may not read.
        Err(crate::Error::Io { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            Ok(())
        }
        synced => synced,
    }
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

/// Opens a regular file. A pipe or a device in its place would block or never end.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path)
}

/// Reads a regular file that has at most `limit` bytes.
pub(crate) fn read_small(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?
        .take(limit + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}

const NEW: &str = ".new";

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(NEW);
    path.with_file_name(name)
}
