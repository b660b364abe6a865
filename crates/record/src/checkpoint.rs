//! Checkpoints: folders that are either complete or not there.
//!
//! A checkpoint is the folder `checkpoints/<step, 12 digits>/`. It is written under another
//! name, its `manifest.json` last, synced and then renamed, so that a crash or a full disk at
//! any moment leaves the earlier checkpoints as they were. Equal contents give equal bytes;
//! times belong into `times.json`, which the manifest does not cover.
//!
//! Read first: [`Checkpoints`] (the folder of them and what is kept), [`CheckpointWriter`],
//! [`Checkpoint`] (one that was found whole).

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::durable::{replace_file, sync_folder};
use crate::error::{Context, Error, Result};

/// Which checkpoints stay when a new one has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How many of the latest ones; at least 1.
    pub keep_last: usize,
    /// If set, the first checkpoint at or after each multiple of so many steps stays for good.
    pub milestone_steps: Option<u64>,
}

impl Default for Retention {
    /// The last 3, no milestones. The best one by score always stays.
    fn default() -> Self {
        Self {
            keep_last: 3,
            milestone_steps: None,
        }
    }
}

/// The folder of a run's checkpoints, to write new ones.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    retention: Retention,
    /// Steps of checkpoints found damaged: they stay, but do not count among the last ones.
    damaged: BTreeSet<u64>,
}

impl Checkpoints {
    /// Opens the folder, which is made if it is not there, and removes what an interrupted
    /// write left behind. Only for the process that writes to the run; to look into a run that
    /// may be in use there are [`latest`] and [`best`].
    pub fn open(folder: &Path, retention: Retention) -> Result<Self> {
        fs::create_dir_all(folder).doing("create the folder", folder)?;
        for name in names(folder)? {
            let path = folder.join(&name);
            if let Some(step) = name.strip_prefix(REPLACED)
                && !folder.join(step).exists()
            {
                // The crash came between moving the old one away and the new one in.
                fs::rename(&path, folder.join(step)).doing("restore", &path)?;
            } else if [ASIDE, REPLACED, REMOVED]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                fs::remove_dir_all(&path).doing("remove", &path)?;
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            retention,
            damaged: BTreeSet::new(),
        })
    }

    /// Begins the checkpoint of this step. It counts only once it is committed; a writer that
    /// is dropped before leaves nothing behind.
    pub fn begin(&mut self, step: u64) -> Result<CheckpointWriter<'_>> {
        let aside = self.folder.join(format!("{ASIDE}{}", folder_name(step)));
        if aside.exists() {
            fs::remove_dir_all(&aside).doing("remove", &aside)?;
        }
        fs::create_dir(&aside).doing("create the folder", &aside)?;
        Ok(CheckpointWriter {
            checkpoints: self,
            step,
            aside,
            files: Vec::new(),
            unfinished: None,
        })
    }

    /// The newest checkpoint that is complete and undamaged, as [`latest`].
    pub fn latest(&mut self) -> Result<(Checkpoint, Vec<Damaged>)> {
        let found = latest(&self.folder);
        let damaged = match &found {
            Ok((_, damaged)) | Err(Error::NoCheckpoint { damaged, .. }) => damaged.as_slice(),
            Err(_) => &[],
        };
        self.damaged
            .extend(damaged.iter().filter_map(|one| step_of(&one.path)));
        found
    }

    fn retain(&self, newest: u64) -> Result<()> {
        let mut manifests = Vec::new();
        for step in steps(&self.folder)? {
            let path = self.folder.join(folder_name(step));
            // What cannot be read stays where it is, for a person to look at.
            if let Ok(manifest) = Manifest::read(&path)
                && !self.damaged.contains(&step)
            {
                manifests.push(manifest);
            }
        }
        let mut keep = BTreeSet::from([newest]);
        let last = manifests.iter().rev().take(self.retention.keep_last);
        keep.extend(last.map(|manifest| manifest.step));
        if let Some(every) = self.retention.milestone_steps.filter(|every| *every > 0) {
            let mut reached = 0;
            for manifest in &manifests {
                if manifest.step / every > reached {
                    reached = manifest.step / every;
                    keep.insert(manifest.step);
                }
            }
        }
        if let Some(best) = best_of(&manifests) {
            keep.insert(best.step);
            let marker = self.folder.join(BEST);
            let name = folder_name(best.step) + "\n";
            if fs::read_to_string(&marker).ok().as_ref() != Some(&name) {
                replace_file(&marker, name.as_bytes())?;
            }
        }
        for manifest in manifests.iter().filter(|one| !keep.contains(&one.step)) {
            // Renamed first: a removal that is interrupted must not look like damage.
            let path = self.folder.join(folder_name(manifest.step));
            let doomed = self
                .folder
                .join(format!("{REMOVED}{}", folder_name(manifest.step)));
            fs::rename(&path, &doomed).doing("remove", &path)?;
            fs::remove_dir_all(&doomed).doing("remove", &doomed)?;
        }
        Ok(())
    }
}

/// One checkpoint being written. Dropped without [`CheckpointWriter::commit`], it vanishes.
#[derive(Debug)]
pub struct CheckpointWriter<'a> {
    checkpoints: &'a mut Checkpoints,
    step: u64,
    aside: PathBuf,
    files: Vec<FileEntry>,
    unfinished: Option<String>,
}

impl CheckpointWriter<'_> {
    /// Writes one file of the checkpoint.
    pub fn file(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.create(name)?;
        let written = file.write_all(bytes);
        let path = file.path.clone();
        written.doing("write", &path)?;
        file.finish()
    }

    /// Begins a file of the checkpoint to be written piece by piece; it counts only once
    /// [`CheckpointFile::finish`] was called.
    pub fn create(&mut self, name: &str) -> Result<CheckpointFile<'_>> {
        self.check_name(name)?;
        let path = self.aside.join(name);
        let file = File::create(&path).doing("create", &path)?;
        self.unfinished = Some(name.to_owned());
        Ok(CheckpointFile {
            file: BufWriter::with_capacity(1 << 16, file),
            path,
            name: name.to_owned(),
            bytes: 0,
            crc: 0,
            files: &mut self.files,
            unfinished: &mut self.unfinished,
        })
    }

    /// Takes over a file of an earlier checkpoint, given by its folder, without writing it
    /// again: both folders name the same bytes on disk, which stay until neither does. Where the
    /// file system has no such links, the file is copied.
    ///
    /// # Errors
    /// When the earlier checkpoint has no such file, or not as it was written.
    pub fn link(&mut self, earlier: &Path, name: &str) -> Result<()> {
        self.check_name(name)?;
        let damaged = |reason| {
            let path = earlier.to_owned();
            Error::Damaged(Damaged { path, reason })
        };
        let manifest = Manifest::read(earlier).map_err(damaged)?;
        let entry = manifest.entry(earlier, name)?.clone();
        let path = earlier.join(name);
        if fs::hard_link(&path, self.aside.join(name)).is_ok() {
            check_length(&path, &entry).map_err(damaged)?;
            self.files.push(entry);
            return Ok(());
        }
        let mut original = File::open(&path).doing("open", &path)?;
        let mut copy = self.create(name)?;
        io::copy(&mut original, &mut copy).doing("copy", &path)?;
        if (copy.bytes, hex(copy.crc)) != (entry.bytes, entry.crc32c) {
            return Err(damaged(Damage::Checksum(name.to_owned())));
        }
        copy.finish()
    }

    fn check_name(&self, name: &str) -> Result<()> {
        let bad = |reason| {
            Err(Error::BadName {
                what: "checkpoint file",
                name: name.to_owned(),
                reason,
            })
        };
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\']) {
            return bad("it must be a plain file name that does not begin with a dot");
        }
        if [MANIFEST, TIMES].contains(&name) || self.files.iter().any(|file| file.name == name) {
            return bad("the checkpoint has a file of that name already");
        }
        Ok(())
    }

    /// Writes `times.json`: durations and dates, which differ between runs that are otherwise
    /// equal. The manifest does not cover it.
    pub fn times(&mut self, times: &Value) -> Result<()> {
        let path = self.aside.join(TIMES);
        let file = File::create(&path).and_then(|mut file| {
            writeln!(file, "{times:#}")?;
            Ok(file)
        });
        file.and_then(|file| file.sync_all()).doing("write", &path)
    }

    /// Completes the checkpoint and removes those that need not be kept any longer. With a
    /// score (higher is better) it may become the best one. Returns its folder.
    pub fn commit(mut self, score: Option<f64>) -> Result<PathBuf> {
        if let Some(name) = self.unfinished.take() {
            return Err(Error::Unfinished { name });
        }
        self.files.sort_by(|a, b| a.name.cmp(&b.name));
        let manifest = Manifest {
            format: FORMAT,
            step: self.step,
            score: score.filter(|score| score.is_finite()),
            files: std::mem::take(&mut self.files),
            check: String::new(),
        };
        manifest.write(&self.aside)?;
        let folder = self.checkpoints.folder.clone();
        let name = folder_name(self.step);
        let path = folder.join(&name);
        let replaced = folder.join(format!("{REPLACED}{name}"));
        let replaces = path.exists();
        if replaces {
            fs::rename(&path, &replaced).doing("replace", &path)?;
        }
        fs::rename(&self.aside, &path).doing("complete", &path)?;
        sync_folder(&folder)?;
        if replaces {
            fs::remove_dir_all(&replaced).doing("remove", &replaced)?;
        }
        self.checkpoints.damaged.remove(&self.step);
        self.checkpoints.retain(self.step)?;
        Ok(path)
    }
}

impl Drop for CheckpointWriter<'_> {
    fn drop(&mut self) {
        // After a commit the folder has another name, and there is nothing to remove. If the
        // removal fails, the next `Checkpoints::open` tries again.
        let _ = fs::remove_dir_all(&self.aside);
    }
}

/// A file of a checkpoint being written.
#[derive(Debug)]
pub struct CheckpointFile<'a> {
    file: BufWriter<File>,
    path: PathBuf,
    name: String,
    bytes: u64,
    crc: u32,
    files: &'a mut Vec<FileEntry>,
    unfinished: &'a mut Option<String>,
}

impl CheckpointFile<'_> {
    /// Brings the file to the disk and adds it to the checkpoint.
    pub fn finish(mut self) -> Result<()> {
        self.file.flush().doing("write", &self.path)?;
        self.file.get_ref().sync_all().doing("sync", &self.path)?;
        self.files.push(FileEntry {
            name: self.name,
            bytes: self.bytes,
            crc32c: hex(self.crc),
        });
        *self.unfinished = None;
        Ok(())
    }
}

impl Write for CheckpointFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        self.crc = crc32c::crc32c_append(self.crc, &bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A checkpoint whose files were all found whole.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// Opens one checkpoint and checks every byte of it.
    ///
    /// # Errors
    /// [`Error::Damaged`] with the reason, if it is not whole.
    pub fn open(path: &Path) -> Result<Self> {
        let checked = Manifest::read(path).and_then(|manifest| {
            for file in &manifest.files {
                check_file(path, file)?;
            }
            Ok(manifest)
        });
        match checked {
            Ok(manifest) => Ok(Self {
                path: path.to_owned(),
                manifest,
            }),
            Err(reason) => Err(Error::Damaged(Damaged {
                path: path.to_owned(),
                reason,
            })),
        }
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

    /// The bytes of one of its files.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.file_path(name)?;
        fs::read(&path).doing("read", &path)
    }

    /// One of its files, to be read piece by piece.
    pub fn reader(&self, name: &str) -> Result<BufReader<File>> {
        let path = self.file_path(name)?;
        let file = File::open(&path).doing("open", &path)?;
        Ok(BufReader::with_capacity(1 << 16, file))
    }

    /// What `times.json` holds, if it is there and can be read.
    pub fn times(&self) -> Option<Value> {
        let bytes = fs::read(self.path.join(TIMES)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    fn file_path(&self, name: &str) -> Result<PathBuf> {
        let entry = self.manifest.entry(&self.path, name)?;
        Ok(self.path.join(&entry.name))
    }
}

/// A checkpoint that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Its folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: Damage,
}

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
    let found = if folder.is_dir() {
        steps(folder)?
    } else {
        BTreeSet::new()
    };
    let mut damaged = Vec::new();
    for step in found.into_iter().rev() {
        match Checkpoint::open(&folder.join(folder_name(step))) {
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

/// The checkpoint with the best score, if any has one and it is undamaged. Changes nothing.
pub fn best(folder: &Path) -> Result<Option<Checkpoint>> {
    let marker = folder.join(BEST);
    match fs::read_to_string(&marker) {
        Ok(name) => Checkpoint::open(&folder.join(name.trim())).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).doing("read", &marker),
    }
}

const FORMAT: u32 = 1;
const MANIFEST: &str = "manifest.json";
const TIMES: &str = "times.json";
const BEST: &str = "best";
const ASIDE: &str = ".writing-";
const REPLACED: &str = ".replaced-";
const REMOVED: &str = ".removed-";

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    step: u64,
    score: Option<f64>,
    files: Vec<FileEntry>,
    /// Checksum of the manifest with this field empty.
    check: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct FileEntry {
    name: String,
    bytes: u64,
    crc32c: String,
}

impl Manifest {
    fn write(mut self, folder: &Path) -> Result<()> {
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

    fn read(folder: &Path) -> Result<Self, Damage> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let bytes = match fs::read(folder.join(MANIFEST)) {
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
        Ok(manifest)
    }

    fn entry(&self, folder: &Path, name: &str) -> Result<&FileEntry> {
        let found = self.files.iter().find(|entry| entry.name == name);
        found.ok_or_else(|| Error::NoSuchFile {
            path: folder.to_owned(),
            name: name.to_owned(),
            present: self.files.iter().map(|entry| entry.name.clone()).collect(),
        })
    }

    fn checksum(&self) -> serde_json::Result<String> {
        let mut bare = self.clone();
        bare.check.clear();
        Ok(hex(crc32c::crc32c(&serde_json::to_vec(&bare)?)))
    }
}

/// Highest score; the earliest of those that are equal.
fn best_of(manifests: &[Manifest]) -> Option<&Manifest> {
    let mut best: Option<(&Manifest, f64)> = None;
    for manifest in manifests {
        if let Some(score) = manifest.score
            && best.is_none_or(|(_, highest)| score > highest)
        {
            best = Some((manifest, score));
        }
    }
    best.map(|(manifest, _)| manifest)
}

fn check_file(folder: &Path, entry: &FileEntry) -> Result<(), Damage> {
    let name = &entry.name;
    let path = folder.join(name);
    check_length(&path, entry)?;
    let mut file = File::open(&path).map_err(|error| unreadable(name, &error))?;
    let mut crc = 0;
    let mut piece = vec![0; 1 << 18];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => crc = crc32c::crc32c_append(crc, &piece[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(name, &error)),
        }
    }
    if hex(crc) != entry.crc32c {
        return Err(Damage::Checksum(name.clone()));
    }
    Ok(())
}

fn check_length(path: &Path, entry: &FileEntry) -> Result<(), Damage> {
    let name = &entry.name;
    let found = match fs::metadata(path) {
        Ok(file) => file.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Damage::MissingFile(name.clone()));
        }
        Err(error) => return Err(unreadable(name, &error)),
    };
    if found != entry.bytes {
        return Err(Damage::Length {
            name: name.clone(),
            found,
            expected: entry.bytes,
        });
    }
    Ok(())
}

fn unreadable(name: &str, error: &io::Error) -> Damage {
    Damage::Unreadable {
        name: name.to_owned(),
        message: error.to_string(),
    }
}

fn hex(crc: u32) -> String {
    format!("{crc:08x}")
}

fn folder_name(step: u64) -> String {
    format!("{step:012}")
}

fn step_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let digits = name.len() >= 12 && name.bytes().all(|byte| byte.is_ascii_digit());
    if digits { name.parse().ok() } else { None }
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).doing("list", folder)? {
        let name = entry.doing("list", folder)?.file_name();
        names.extend(name.into_string().ok());
    }
    names.sort();
    Ok(names)
}

fn steps(folder: &Path) -> Result<BTreeSet<u64>> {
    Ok(names(folder)?
        .iter()
        .filter_map(|name| step_of(Path::new(name)))
        .collect())
}
