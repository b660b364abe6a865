//! The manifest of a checkpoint: its files, and whether they are unchanged.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{MANIFEST, TIMES, step_of};
use crate::durable::{open_regular, read_small, replace_file, sync_folder};
use crate::error::{Error, Result};

/// What can be wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The manifest is not there: the write was not completed.
    #[error("manifest.json is missing")]
    NoManifest,
    /// The manifest was changed or cut.
    #[error("manifest.json is damaged ({0})")]
    BadManifest(String),
    /// The checkpoint was written by a newer version.
    #[error("its format is {0}, this version reads up to {FORMAT}")]
    NewerFormat(u32),
    /// A file is not there.
    #[error("{0} is missing")]
    MissingFile(String),
    /// A file has another length than when it was written.
    #[error("{name} has {found} bytes instead of {expected}")]
    Length {
        /// The file.
        name: String,
        /// Its length now.
        found: u64,
        /// Its length when it was written.
        expected: u64,
    },
    /// A file has the right length and other contents.
    #[error("{0} has changed (its checksum differs)")]
    Checksum(String),
    /// A file could not be read.
    #[error("{name} cannot be read: {message}")]
    Unreadable {
        /// The file.
        name: String,
        /// What the system said.
        message: String,
    },
}

/// The text of `manifest.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) step: u64,
    pub(super) score: Option<f64>,
    pub(super) files: Vec<FileEntry>,
    /// Checksum of the manifest with this field empty.
    pub(super) check: String,
}

/// A file of a checkpoint, as it was written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FileEntry {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) crc32c: String,
}

pub(super) const FORMAT: u32 = 1;

/// Far more than any checkpoint needs.
const MOST_BYTES: u64 = 1 << 24;

impl Manifest {
    pub(super) fn write(mut self, folder: &Path) -> Result<()> {
        let path = folder.join(MANIFEST);
        let malformed = |error: serde_json::Error| Error::Malformed {
            path: path.clone(),
            reason: error.to_string(),
        };
        self.check = self.checksum().map_err(malformed)?;
        let mut text = serde_json::to_string_pretty(&self).map_err(malformed)?;
        text.push('\n');
        // The data's names must be on disk before the manifest says that they are.
        sync_folder(folder)?;
        replace_file(&path, text.as_bytes())
    }

    pub(super) fn read(folder: &Path) -> Result<Self, Damage> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let bytes = match read_small(&folder.join(MANIFEST), MOST_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Damage::NoManifest);
            }
            Err(error) => return Err(unreadable(MANIFEST, &error)),
        };
        let bad = |error: serde_json::Error| Damage::BadManifest(error.to_string());
        let Format { format } = serde_json::from_slice(&bytes).map_err(bad)?;
        if format > FORMAT {
            return Err(Damage::NewerFormat(format));
        }
        let manifest: Self = serde_json::from_slice(&bytes).map_err(bad)?;
        if manifest.check != manifest.checksum().map_err(bad)? {
            return Err(Damage::BadManifest("its checksum differs".to_owned()));
        }
        if step_of(folder).is_some_and(|step| step != manifest.step) {
            return Err(Damage::BadManifest(format!(
                "it is that of step {}",
                manifest.step
            )));
        }
        if let Some(entry) = manifest.files.iter().find(|entry| !is_plain(&entry.name)) {
            let reason = format!("it names {:?}, which is not a plain file name", entry.name);
            return Err(Damage::BadManifest(reason));
        }
        Ok(manifest)
    }

    pub(super) fn entry(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|entry| entry.name == name)
    }

    fn checksum(&self) -> serde_json::Result<String> {
        let mut bare = self.clone();
        bare.check.clear();
        Ok(hex(crc32c::crc32c(&serde_json::to_vec(&bare)?)))
    }
}

/// Whether a name can be that of a checkpoint's file: inside the folder, and not one of our own.
pub(super) fn is_plain(name: &str) -> bool {
    let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\']);
    plain && ![MANIFEST, TIMES].contains(&name)
}

/// Files whose checksums were verified, as long as the file system reports that they did not change
/// since.
#[derive(Clone, Debug, Default)]
pub(super) struct Sound(HashMap<Identity, String>);

impl Sound {
    /// Remembers that a file that is open has this checksum.
    pub(super) fn insert(&mut self, file: &File, crc32c: &str) {
        if let Some(identity) = file.metadata().ok().as_ref().and_then(Identity::of) {
            self.0.insert(identity, crc32c.to_owned());
        }
    }

    /// Whether the file at `path` is as `entry` says. Reads all of it, unless that is known here
    /// or in `earlier`.
    pub(super) fn check(
        &mut self,
        path: &Path,
        entry: &FileEntry,
        earlier: &Self,
    ) -> Result<(), Damage> {
        let name = &entry.name;
        let file = match open_regular(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Damage::MissingFile(name.clone()));
            }
            Err(error) => return Err(unreadable(name, &error)),
        };
        let metadata = file.metadata().map_err(|error| unreadable(name, &error))?;
        if metadata.len() != entry.bytes {
            return Err(Damage::Length {
                name: name.clone(),
                found: metadata.len(),
                expected: entry.bytes,
            });
        }
        let identity = Identity::of(&metadata);
        let known = identity.and_then(|id| self.0.get(&id).or_else(|| earlier.0.get(&id)));
        if known != Some(&entry.crc32c) {
            let crc = checksum_of(&file).map_err(|error| unreadable(name, &error))?;
            if hex(crc) != entry.crc32c {
                return Err(Damage::Checksum(name.clone()));
            }
        }
        if let Some(identity) = identity {
            self.0.insert(identity, entry.crc32c.clone());
        }
        Ok(())
    }
}

/// Which file it is, and what changes when it is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Identity {
    #[cfg(unix)]
    fn of(file: &fs::Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        Some(Self {
            device: file.dev(),
            inode: file.ino(),
            bytes: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }

    #[cfg(not(unix))]
    fn of(_: &fs::Metadata) -> Option<Self> {
        None
    }
}

fn checksum_of(mut file: &File) -> io::Result<u32> {
    let mut crc = 0;
    let mut piece = vec![0; 1 << 18];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(crc),
            Ok(length) => crc = crc32c::crc32c_append(crc, &piece[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

pub(super) fn unreadable(name: &str, error: &io::Error) -> Damage {
    Damage::Unreadable {
        name: name.to_owned(),
        message: error.to_string(),
    }
}

pub(super) fn hex(crc: u32) -> String {
    format!("{crc:08x}")
}
