//! Existing checkpoints: finding one, checking its files, reading them.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::manifest::{Damage, FileEntry, Manifest, Sound, hex};
use super::{BEST, TIMES, folder_name, step_of, steps};
use crate::durable::{open_regular, read_small};
use crate::error::{Context, Error, Result};
use crate::folder::RunFolder;

/// A checkpoint whose manifest is whole, and those of its files that were asked for.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    sound: Sound,
}

impl Checkpoint {
    /// Opens one checkpoint and checks every byte of it.
    ///
    /// # Errors
    /// [`Error::Damaged`] with the reason, if it is not whole.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, |_| true)
    }

    /// Opens one checkpoint and checks only the files whose names are `needed`. The others may be
    /// damaged; they are checked when they are read.
    ///
    /// # Errors
    /// [`Error::Damaged`] with the reason, if the manifest or a file that is needed is not whole.
    pub fn open_with(path: &Path, needed: impl Fn(&str) -> bool) -> Result<Self> {
        let damaged = |reason| {
            let path = path.to_owned();
            Error::Damaged(Damaged { path, reason })
        };
        let mut checkpoint = Self {
            path: path.to_owned(),
            manifest: Manifest::read(path).map_err(damaged)?,
            sound: Sound::default(),
        };
        let found = checkpoint.first_damage(needed);
        found.map_or(Ok(checkpoint), |damage| Err(damaged(damage)))
    }

    /// Checks the files whose names are `which`, and returns those that are not whole.
    pub fn damaged_files(&mut self, which: impl Fn(&str) -> bool) -> Vec<(String, Damage)> {
        let entries = self.manifest.files.iter();
        entries
            .filter(|entry| which(&entry.name))
            .filter_map(|entry| {
                let checked = check(&mut self.sound, &self.path, entry);
                Some((entry.name.clone(), checked.err()?))
            })
            .collect()
    }

    fn first_damage(&mut self, which: impl Fn(&str) -> bool) -> Option<Damage> {
        let entries = self.manifest.files.iter();
        entries
            .filter(|entry| which(&entry.name))
            .find_map(|entry| check(&mut self.sound, &self.path, entry).err())
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The environment step at which it was taken.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// The score it was given, if any.
    pub fn score(&self) -> Option<f64> {
        self.manifest.score
    }

    /// The names of its files, sorted.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.manifest.files.iter().map(|file| &*file.name)
    }

    /// The bytes of one of its files, which are checked.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let entry = self.entry(name)?;
        let path = self.path.join(name);
        let mut bytes = Vec::new();
        open_regular(&path)
            .and_then(|file| file.take(entry.bytes + 1).read_to_end(&mut bytes))
            .doing("read", &path)?;
        if bytes.len() as u64 != entry.bytes || hex(crc32c::crc32c(&bytes)) != entry.crc32c {
            return Err(self.damaged(Damage::Checksum(name.to_owned())));
        }
        Ok(bytes)
    }

    /// One of its files, to be read piece by piece. It is checked first, unless it was already.
    pub fn reader(&self, name: &str) -> Result<BufReader<File>> {
        let path = self.path.join(name);
        let mut sound = Sound::default();
        sound
            .check(&path, self.entry(name)?, &self.sound)
            .map_err(|damage| self.damaged(damage))?;
        let file = File::open(&path).doing("open", &path)?;
        Ok(BufReader::with_capacity(1 << 16, file))
    }

    /// What `times.json` holds, if it is there and can be read.
    pub fn times(&self) -> Option<Value> {
        let bytes = read_small(&self.path.join(TIMES), 1 << 20).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// The files that were checked.
    pub(super) fn sound(&self) -> &Sound {
        &self.sound
    }

    fn entry(&self, name: &str) -> Result<&FileEntry> {
        self.manifest.entry(name).ok_or_else(|| Error::NoSuchFile {
            path: self.path.clone(),
            name: name.to_owned(),
            present: self.files().map(str::to_owned).collect(),
        })
    }

    fn damaged(&self, reason: Damage) -> Error {
        let path = self.path.clone();
        Error::Damaged(Damaged { path, reason })
    }
}

fn check(sound: &mut Sound, folder: &Path, entry: &FileEntry) -> Result<(), Damage> {
    sound.check(&folder.join(&entry.name), entry, &Sound::default())
}

/// A checkpoint that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Its folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: Damage,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the checkpoint {} cannot be used: {}",
            self.path.display(),
            self.reason
        )
    }
}

/// The newest checkpoint in a folder that is complete and undamaged, and those newer ones that
/// are not, newest first. Changes nothing.
///
/// # Errors
/// [`Error::NoCheckpoint`] if there is none.
pub fn latest(folder: &Path) -> Result<(Checkpoint, Vec<Damaged>)> {
    latest_with(folder, |_| true)
}

/// As [`latest`], but only the files whose names are `needed` have to be undamaged.
pub fn latest_with(
    folder: &Path,
    needed: impl Fn(&str) -> bool,
) -> Result<(Checkpoint, Vec<Damaged>)> {
    latest_before(folder, u64::MAX, needed)
}

/// As [`latest_with`], of the checkpoints before this step.
pub(super) fn latest_before(
    folder: &Path,
    before: u64,
    needed: impl Fn(&str) -> bool,
) -> Result<(Checkpoint, Vec<Damaged>)> {
    let found = if folder.is_dir() {
        steps(folder)?
    } else {
        BTreeSet::new()
    };
    let mut damaged = Vec::new();
    for step in found.into_iter().rev().filter(|step| *step < before) {
        match Checkpoint::open_with(&folder.join(folder_name(step)), &needed) {
            Ok(checkpoint) => return Ok((checkpoint, damaged)),
            Err(Error::Damaged(one)) => damaged.push(one),
            Err(error) => return Err(error),
        }
    }
    Err(Error::NoCheckpoint {
        path: folder.to_owned(),
        damaged,
    })
}

/// The checkpoint with the best score; `None` if none is marked as the best. Changes nothing.
///
/// # Errors
/// [`Error::Damaged`] if it is not whole.
pub fn best(folder: &Path) -> Result<Option<Checkpoint>> {
    best_with(folder, |_| true)
}

/// The best of a run: of its checkpoints, and of the weights that evaluators in other processes have
/// found ([`RunFolder::best_path`]). The files whose names are `needed` have to be undamaged.
///
/// # Errors
/// [`Error::Damaged`] if it is not whole.
pub fn best_of_run(run: &RunFolder, needed: impl Fn(&str) -> bool) -> Result<Option<Checkpoint>> {
    let own = best_with(&run.checkpoints_path(), &needed)?;
    let judged = best_with(&run.best_path(), &needed)?;
    Ok(match (own, judged) {
        (Some(own), Some(judged)) if own.score() >= judged.score() => Some(own),
        (own, judged) => judged.or(own),
    })
}

/// As [`best`], but only the files whose names are `needed` have to be undamaged.
pub fn best_with(folder: &Path, needed: impl Fn(&str) -> bool) -> Result<Option<Checkpoint>> {
    let marker = folder.join(BEST);
    let name = match read_small(&marker, 1 << 10) {
        Ok(name) => name,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).doing("read", &marker),
    };
    let name = String::from_utf8_lossy(&name);
    let name = name.trim();
    if step_of(Path::new(name)).is_none_or(|step| folder_name(step) != name) {
        return Err(Error::Malformed {
            path: marker,
            reason: format!("{name:?} is not the name of a checkpoint; delete the file"),
        });
    }
    Checkpoint::open_with(&folder.join(name), needed).map(Some)
}
