//! Finds the process that writes to a run, and signals it to stop or to write a checkpoint.
//!
//! A run's folder has a file that its process keeps locked. The kernel lists all locks with their
//! holders, so no process id from a file has to be trusted.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{major, minor};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The file locks of this machine.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// By the number of the file; files of several disks can have the same.
    holders: HashMap<u64, Vec<Holder>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    process: i32,
    device: (u32, u32),
}

/// Why a run was not asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAsked {
    /// No process of this machine holds the run's lock.
    #[error("no process of this machine is writing to the run")]
    NotRunning,
    /// The process that holds the lock according to the kernel does not have the file open, or belongs
    /// to another user.
    #[error("process {0} could not be verified to be the run; nothing was sent to it")]
    NotVerified(i32),
    /// The system refused.
    #[error("no signal could be sent to process {0}: {1}")]
    Refused(i32, Errno),
    /// It was asked before: a second signal would end it without a checkpoint.
    #[error("process {0} was already asked to stop; it ends after its current round")]
    AlreadyAsked(i32),
    /// Its program has no handler for the signal.
    #[error("process {0} cannot be asked for checkpoints: it was started by an older version")]
    TooOld(i32),
}

impl Locks {
    /// The locks at this moment; none if the system does not list them.
    pub(crate) fn read() -> Option<Self> {
        Some(Self::parse(&read_locks().ok()?))
    }

    /// Lines such as `1: FLOCK  ADVISORY  WRITE 30027 fe:00:6727947 0 EOF`.
    fn parse(text: &str) -> Self {
        let mut holders: HashMap<u64, Vec<Holder>> = HashMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, "FLOCK", _, "WRITE", process, file, ..] = words.as_slice() else {
                continue;
            };
            let parts: Vec<&str> = file.split(':').collect();
            let [major, minor, inode] = parts.as_slice() else {
                continue;
            };
            let hex = |text: &str| u32::from_str_radix(text, 16);
            if let (Ok(process), Ok(major), Ok(minor), Ok(inode)) =
                (process.parse(), hex(major), hex(minor), inode.parse())
            {
                holders.entry(inode).or_default().push(Holder {
                    process,
                    device: (major, minor),
                });
            }
        }
        Self { holders }
    }

    /// The process that holds the lock of a file.
    pub(crate) fn holder_of(&self, file: &Path) -> Option<i32> {
        let file = fs::metadata(file).ok()?;
        let holders = self.holders.get(&file.ino())?;
        let device = (major(file.dev()), minor(file.dev()));
        // Some file systems report another device here than there.
        let of_this_file =
            |holder: &&Holder| holder.device == device || has_open(holder.process, &file);
        holders
            .iter()
            .find(of_this_file)
            .map(|holder| holder.process)
    }
}

/// The content of `/proc/locks`. The kernel counts the lines that it has handed out: a lock that is
/// released between two reads makes the next read skip a line. So the whole file is asked for at once.
/// The kernel still returns long lists page by page.
fn read_locks() -> io::Result<String> {
    let mut file = File::open("/proc/locks")?;
    let mut content = vec![0; 1 << 16];
    let mut length = 0;
    loop {
        match file.read(&mut content[length..])? {
            0 => break,
            more => length += more,
        }
        if content.len() - length < 1 << 15 {
            content.resize(2 * content.len(), 0);
        }
    }
    content.truncate(length);
    String::from_utf8(content).map_err(io::Error::other)
}

/// Whether a process has a file open.
fn has_open(process: i32, file: &Metadata) -> bool {
    let opened = fs::read_dir(format!("/proc/{process}/fd"));
    let mut opened = opened.into_iter().flatten().flatten();
    opened.any(|entry| {
        let open = fs::metadata(entry.path());
        open.is_ok_and(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
    })
}

/// The process that writes to a run, as a handle that no later process can take over.
pub(crate) struct Verified {
    process: i32,
    handle: rustix::fd::OwnedFd,
}

impl Verified {
    /// Finds the process that keeps `lock` locked, and makes sure that it is this one: the kernel
    /// names it as the holder, and it has the file open.
    pub(crate) fn find(lock: &Path) -> Result<Self, NotAsked> {
        // A long list can lack a lock (see `read_locks`), so that one look is not enough to say no.
        let holder = || (0..4).find_map(|_| Locks::read()?.holder_of(lock));
        let process = holder().ok_or(NotAsked::NotRunning)?;
        let id = Pid::from_raw(process).ok_or(NotAsked::NotVerified(process))?;
        let handle = pidfd_open(id, PidfdFlags::empty()).map_err(|error| match error {
            Errno::SRCH => NotAsked::NotRunning,
            error => NotAsked::Refused(process, error),
        })?;
        // Looked at again now that the handle exists: the number could have been given to another
        // process before.
        let file = fs::metadata(lock).map_err(|_| NotAsked::NotRunning)?;
        match holder() == Some(process) && has_open(process, &file) {
            true => Ok(Self { process, handle }),
            false => Err(NotAsked::NotVerified(process)),
        }
    }

    pub(crate) fn process(&self) -> i32 {
        self.process
    }

    /// Asks it to stop with a checkpoint, as Ctrl-C does.
    pub(crate) fn stop(&self) -> Result<(), NotAsked> {
        self.send(Signal::TERM)
    }

    /// Asks it to write a checkpoint and to continue. The system ignores this signal where a program
    /// does not know it, so that no process can be ended by it.
    pub(crate) fn checkpoint(&self) -> Result<(), NotAsked> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process));
        match catches(&status.unwrap_or_default(), Signal::URG) {
            true => self.send(Signal::URG),
            false => Err(NotAsked::TooOld(self.process)),
        }
    }

    fn send(&self, signal: Signal) -> Result<(), NotAsked> {
        pidfd_send_signal(&self.handle, signal).map_err(|error| match error {
            Errno::SRCH => NotAsked::NotRunning,
            error => NotAsked::Refused(self.process, error),
        })
    }
}

/// Whether a process has a handler for a signal, by the content of `/proc/<pid>/status`.
fn catches(status: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found_and_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let (locked, open) = (folder.path().join("locked"), folder.path().join("open"));
        let file = fs::File::create(&locked).unwrap();
        let _other = fs::File::create(&open).unwrap();
        file.try_lock().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let locks = Locks::read().unwrap();
        assert_eq!(locks.holder_of(&locked), Some(own));
        assert_eq!(locks.holder_of(&open), None);
        assert_eq!(Verified::find(&locked).unwrap().process(), own);
        // Open, but not locked.
        let error = Verified::find(&open).err().unwrap();
        assert!(matches!(error, NotAsked::NotRunning), "{error}");
        file.unlock().unwrap();
        let error = Verified::find(&locked).err().unwrap();
        assert!(matches!(error, NotAsked::NotRunning), "{error}");
    }

    #[test]
    fn only_whole_file_write_locks_count() {
        let text = "1: FLOCK  ADVISORY  WRITE 12 fe:00:99 0 EOF\n\
                    2: POSIX  ADVISORY  WRITE 13 fe:00:99 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 14 fe:00:99 0 EOF\n\
                    3: FLOCK  ADVISORY  READ 15 fe:00:100 0 EOF\n";
        let locks = Locks::parse(text);
        let device = (0xfe, 0);
        let process = 12;
        assert_eq!(locks.holders[&99], [Holder { process, device }]);
        assert!(!locks.holders.contains_key(&100));
    }

    #[test]
    fn a_process_that_has_no_handler_is_not_asked_for_a_checkpoint() {
        assert!(catches(
            "Name:\tx\nSigCgt:\t0000000000400000\n",
            Signal::URG
        ));
        assert!(!catches(
            "SigIgn:\t0000000000400000\nSigCgt:\t0\n",
            Signal::URG
        ));
        assert!(!catches("", Signal::URG));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let file = fs::File::create(&path).unwrap();
        file.try_lock().unwrap();
        // This process is a test, not a run.
        let error = Verified::find(&path).unwrap().checkpoint().unwrap_err();
        assert!(matches!(error, NotAsked::TooOld(_)), "{error}");
    }
}
