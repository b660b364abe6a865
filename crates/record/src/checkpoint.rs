//! Checkpoints: folders that are either complete or absent.
//!
//! A checkpoint is the folder `checkpoints/<step, 12 digits>/`. It is written under another name,
//! its `manifest.json` last, synced and then renamed, so that a crash or a full disk at any time
//! leaves the earlier checkpoints intact. Equal contents give equal bytes; times belong in
//! `times.json`, which the manifest does not cover.
//!
//! The manifest has a checksum of every file. A reader that needs only some of the files checks
//! only those ([`latest_with`]), so the weights can be used even if the replay is damaged.
//!
//! Read first: [`Checkpoints`] (the folder of them and what is kept), [`CheckpointWriter`],
//! [`Checkpoint`] (one that was found).

mod manifest;
mod read;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use self::manifest::{FORMAT, FileEntry, Manifest, Sound, hex, is_plain, unreadable};
use crate::durable::{create_folders, open_regular, remove_leftovers, replace_file, sync_folder};
use crate::error::{Context, Error, Result};

pub use self::manifest::Damage;
use self::read::latest_before;
pub use self::read::{Checkpoint, Damaged, best, best_of_run, best_with, latest, latest_with};

/// Which checkpoints stay when a new one has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How many of the latest ones; at least 1.
    pub keep_last: usize,
    /// If set, the first checkpoint at or after each multiple of this number of steps is kept for
    /// good.
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
    /// Steps of checkpoints found unusable: they stay, but do not count among the last ones.
    unusable: BTreeSet<u64>,
    /// Files of the last checkpoint that need not be read again to know that they are whole.
    sound: Sound,
}

impl Checkpoints {
    /// Opens the folder, which is created if it is not there, and removes what an interrupted
    /// write left behind. Only for the process that writes to the run; to look into a run that
    /// may be in use there are [`latest`] and [`best`].
    pub fn open(folder: &Path, retention: Retention) -> Result<Self> {
        create_folders(folder)?;
        remove_leftovers(folder);
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
                // A file that somebody else has open may stay for a while; what stays is not in
                // the way.
                let _ = fs::remove_dir_all(&path);
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            retention,
            unusable: BTreeSet::new(),
            sound: Sound::default(),
        })
    }

    /// Begins the checkpoint of this step. It counts only once it is committed; a writer that
    /// is dropped before leaves nothing behind.
    ///
    /// # Errors
    /// [`Error::Gone`] if the folder was deleted since it was opened.
    pub fn begin(&mut self, step: u64) -> Result<CheckpointWriter<'_>> {
        if let Ok(false) = self.folder.try_exists() {
            let path = self.folder.clone();
            return Err(Error::Gone { path });
        }
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
            sound: Sound::default(),
            unfinished: None,
        })
    }

    /// The newest checkpoint that is complete and undamaged, as [`latest`].
    pub fn latest(&mut self) -> Result<(Checkpoint, Vec<Damaged>)> {
        self.latest_with(|_| true)
    }

    /// The newest checkpoint of which the files whose names are `needed` are undamaged, as
    /// [`latest_with`]. [`Checkpoint::damaged_files`] says which of the others are not.
    pub fn latest_with(
        &mut self,
        needed: impl Fn(&str) -> bool,
    ) -> Result<(Checkpoint, Vec<Damaged>)> {
        self.latest_before(u64::MAX, needed)
    }

    /// As [`latest_with`](Self::latest_with), of the checkpoints before this step.
    pub fn latest_before(
        &mut self,
        step: u64,
        needed: impl Fn(&str) -> bool,
    ) -> Result<(Checkpoint, Vec<Damaged>)> {
        let found = latest_before(&self.folder, step, needed);
        if let Ok((checkpoint, _)) = &found {
            self.sound = checkpoint.sound().clone();
        }
        let damaged = match &found {
            Ok((_, damaged)) | Err(Error::NoCheckpoint { damaged, .. }) => damaged.as_slice(),
            Err(_) => &[],
        };
        self.unusable
            .extend(damaged.iter().filter_map(|one| step_of(&one.path)));
        found
    }

    /// The files of this step's checkpoint are as they were written, but what is in them cannot be
    /// used: from now on it counts as damaged.
    pub fn pass_over(&mut self, step: u64) {
        self.unusable.insert(step);
    }

    /// Removes what need not be kept, and returns what went wrong with that. The newest
    /// checkpoint is complete by now, so nothing here is a reason to end the run.
    fn retain(&self, newest: u64) -> Vec<String> {
        let mut warnings = Vec::new();
        let (mut manifests, mut all) = (Vec::new(), Vec::new());
        let steps = steps(&self.folder).unwrap_or_else(|error| {
            warnings.push(error.to_string());
            BTreeSet::new()
        });
        for step in steps {
            let path = self.folder.join(folder_name(step));
            // What cannot be read stays where it is, for a person to look at.
            if let Ok(manifest) = Manifest::read(&path) {
                // The best one may be damaged where it does not matter for acting.
                all.push(manifest.clone());
                if !self.unusable.contains(&step) {
                    manifests.push(manifest);
                }
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
        if let Some(best) = best_of(&all) {
            keep.insert(best.step);
            let marker = self.folder.join(BEST);
            let name = folder_name(best.step) + "\n";
            if fs::read_to_string(&marker).ok().as_ref() != Some(&name)
                && let Err(error) = replace_file(&marker, name.as_bytes())
            {
                warnings.push(error.to_string());
            }
        }
        for manifest in manifests.iter().filter(|one| !keep.contains(&one.step)) {
            let name = folder_name(manifest.step);
            warnings.extend(self.doom(&name, &name).err().map(|error| error.to_string()));
        }
        warnings.extend(self.remove_doomed());
        warnings
    }

    /// Renames what is to be removed: a removal that is interrupted must not look like damage.
    fn doom(&self, name: &str, step: &str) -> Result<()> {
        let path = self.folder.join(name);
        let doomed = self.folder.join(format!("{REMOVED}{step}"));
        fs::rename(&path, doomed).doing("remove", &path)
    }

    /// Removes what was renamed for that, also by an earlier call that failed: network file systems
    /// keep a folder as long as one of its files is open.
    fn remove_doomed(&self) -> Vec<String> {
        let names = names(&self.folder).unwrap_or_default();
        let doomed = names.iter().filter(|name| name.starts_with(REMOVED));
        let failed = doomed.filter_map(|name| {
            let path = self.folder.join(name);
            let error = fs::remove_dir_all(&path).doing("remove", &path).err()?;
            Some(format!("{error}; the next checkpoint tries again"))
        });
        failed.collect()
    }
}

/// A checkpoint that was completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its folder.
    pub path: PathBuf,
    /// What went wrong afterwards, such as an old checkpoint that could not be removed. The new
    /// one is complete all the same.
    pub warnings: Vec<String>,
}

/// One checkpoint being written. Dropped without [`CheckpointWriter::commit`], it vanishes.
#[derive(Debug)]
pub struct CheckpointWriter<'a> {
    checkpoints: &'a mut Checkpoints,
    step: u64,
    aside: PathBuf,
    files: Vec<FileEntry>,
    sound: Sound,
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
            sound: &mut self.sound,
            unfinished: &mut self.unfinished,
        })
    }

    /// Takes over a file of an earlier checkpoint, given by its folder, without writing it
    /// again: both folders name the same bytes on disk, which stay until neither does. Where the
    /// file system has no such links, the file is copied.
    ///
    /// The file's checksum is checked, unless that was done before in this process and nothing has
    /// written to the file since.
    ///
    /// # Errors
    /// [`Error::Damaged`] when the earlier checkpoint does not have the file as it was written,
    /// for whatever reason. This checkpoint is then as it was before the call, so that the file
    /// can be written again. Any other error is about this checkpoint.
    pub fn link(&mut self, earlier: &Path, name: &str) -> Result<()> {
        self.check_name(name)?;
        let damaged = |reason| {
            let path = earlier.to_owned();
            Error::Damaged(Damaged { path, reason })
        };
        let manifest = Manifest::read(earlier).map_err(damaged)?;
        let missing = || damaged(Damage::MissingFile(name.to_owned()));
        let entry = manifest.entry(name).ok_or_else(missing)?.clone();
        let original = match open_regular(&earlier.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            Err(error) => return Err(damaged(unreadable(name, &error))),
        };
        let here = self.aside.join(name);
        if fs::hard_link(earlier.join(name), &here).is_ok() {
            let checked = self.sound.check(&here, &entry, &self.checkpoints.sound);
            if let Err(reason) = checked {
                // Left here, it would be written to, and with it the earlier checkpoint's.
                fs::remove_file(&here).doing("remove", &here)?;
                return Err(damaged(reason));
            }
            self.files.push(entry);
            return Ok(());
        }
        let copied = self.copy(original, &entry)?;
        if let Err(reason) = copied {
            self.unfinished = None;
            fs::remove_file(&here).doing("remove", &here)?;
            return Err(damaged(reason));
        }
        Ok(())
    }

    /// Copies a file that has to be as `entry` says. The inner error is about the original.
    fn copy(&mut self, original: File, entry: &FileEntry) -> Result<Result<(), Damage>> {
        let name = &entry.name;
        let mut copy = self.create(name)?;
        let mut original = original.take(entry.bytes + 1);
        let mut piece = vec![0; 1 << 18];
        loop {
            match original.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => {
                    let written = copy.write_all(&piece[..length]);
                    written.doing("write", &copy.path)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Ok(Err(unreadable(name, &error))),
            }
        }
        if (copy.bytes, hex(copy.crc)) != (entry.bytes, entry.crc32c.clone()) {
            return Ok(Err(Damage::Checksum(name.clone())));
        }
        copy.finish().map(Ok)
    }

    fn check_name(&self, name: &str) -> Result<()> {
        let bad = |reason| {
            Err(Error::BadName {
                what: "checkpoint file",
                name: name.to_owned(),
                reason,
            })
        };
        if !is_plain(name) {
            return bad("it must be a plain file name, not one that the checkpoint itself uses");
        }
        if self.files.iter().any(|file| file.name == name) {
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
    /// score (higher is better) it may become the best one.
    pub fn commit(mut self, score: Option<f64>) -> Result<Committed> {
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
        let mut warnings = Vec::new();
        if replaces {
            let doomed = self.checkpoints.doom(&format!("{REPLACED}{name}"), &name);
            warnings.extend(doomed.err().map(|error| error.to_string()));
        }
        self.checkpoints.unusable.remove(&self.step);
        self.checkpoints.sound = std::mem::take(&mut self.sound);
        warnings.extend(self.checkpoints.retain(self.step));
        Ok(Committed { path, warnings })
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
    sound: &'a mut Sound,
    unfinished: &'a mut Option<String>,
}

impl CheckpointFile<'_> {
    /// Syncs the file to disk and adds it to the checkpoint.
    pub fn finish(mut self) -> Result<()> {
        self.file.flush().doing("write", &self.path)?;
        self.file.get_ref().sync_all().doing("sync", &self.path)?;
        let crc32c = hex(self.crc);
        self.sound.insert(self.file.get_ref(), &crc32c);
        self.files.push(FileEntry {
            name: self.name,
            bytes: self.bytes,
            crc32c,
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

const MANIFEST: &str = "manifest.json";
const TIMES: &str = "times.json";
const BEST: &str = "best";
const ASIDE: &str = ".writing-";
const REPLACED: &str = ".replaced-";
const REMOVED: &str = ".removed-";

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
