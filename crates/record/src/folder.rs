//! The folder of one run: its name, its fixed files, and its lock.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::durable::{create_folders, remove_leftovers, replace_file, sync_parent};
use crate::error::{Context, Error, Result};
use crate::utc;

/// The folder `runs/<env>/<algo>/<name>-s<seed>-<utc>/` and the paths inside it.
///
/// A folder from [`RunFolder::create`] or [`RunFolder::open_to_write`] is locked against other
/// processes for as long as the value lives; [`RunFolder::open`] only reads and takes no lock.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    lock: Option<Lock>,
}

/// The folder and a file in it, locked for the lifetime of the value.
///
/// The lock of the folder holds even if the file is deleted; the lock of the file is visible to
/// other machines if the folder is on a network file system.
#[derive(Debug)]
struct Lock {
    locked: Vec<File>,
    warning: Option<String>,
}

impl Drop for Lock {
    /// Closing the files is not enough: a process that is being started at this moment has them
    /// open too.
    fn drop(&mut self) {
        for file in &self.locked {
            // Where locks are unknown there is none.
            let _ = file.unlock();
        }
    }
}

/// What a run is, as its folder name says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunInfo {
    /// The id of the environment, such as `MinAtar/Breakout-v1`.
    pub env: String,
    /// The algorithm's name, such as `ppo`.
    pub algo: String,
    /// The name the user gave.
    pub name: String,
    /// The seed of the run.
    pub seed: u64,
}

/// Which program made the run, from which sources, where and how: the text of `version.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The run this is about.
    pub run: RunInfo,
    /// The version of the program.
    pub starling: String,
    /// The state of the sources, if the program was started inside a git repository.
    pub git: Option<GitState>,
    /// The name of the machine.
    pub host: String,
    /// Operating system and processor, such as `linux x86_64`.
    pub system: String,
    /// The command line, one argument each.
    pub command: Vec<String>,
}

/// The state of a git repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitState {
    /// The commit that is checked out.
    pub commit: String,
    /// Whether files differ from that commit or are not known to git.
    pub dirty: bool,
    /// What `git diff --stat HEAD` says: which files differ, and by how much.
    pub diff_stat: String,
}

impl RunFolder {
    /// Creates the folder of a new run under `root` (usually `runs`) and locks it.
    ///
    /// Slashes and other characters that are not fit for a file name become dashes. If there is
    /// such a folder already, because an equal run was started in the same second, the name gets
    /// a suffix: `-2`, `-3`, ….
    pub fn create(
        root: &Path,
        env: &str,
        algo: &str,
        name: &str,
        seed: u64,
        time: SystemTime,
    ) -> Result<Self> {
        let parent = root
            .join(component("environment id", env)?)
            .join(component("algorithm name", algo)?);
        let name = format!(
            "{}-s{seed}-{}",
            component("run name", name)?,
            utc::compact(time)
        );
        create_folders(&parent)?;
        let mut path = parent.join(&name);
        for suffix in 2_u64.. {
            match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    path = parent.join(format!("{name}-{suffix}"));
                }
                created => {
                    created.doing("create the folder", &path)?;
                    break;
                }
            }
        }
        sync_parent(&path)?;
        let lock = Some(lock(&path)?);
        Ok(Self { path, lock })
    }

    /// Opens the folder of a run to read from it, also while it is being written.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.join(CONFIG).is_file() {
            return Err(Error::NotARun {
                path: path.to_owned(),
                missing: CONFIG,
            });
        }
        Ok(Self {
            path: path.to_owned(),
            lock: None,
        })
    }

    /// Opens the folder of a run to continue writing to it, and removes files that were being
    /// written when the run was killed.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process is writing to it.
    pub fn open_to_write(path: &Path) -> Result<Self> {
        let mut run = Self::open(path)?;
        run.lock = Some(lock(path)?);
        remove_leftovers(path);
        Ok(run)
    }

    /// Opens the folder of one of several processes of a run to write to it, and creates it where it is
    /// missing. It has no settings of its own, so that it is not taken for a run.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process is writing to it.
    pub fn part(path: &Path) -> Result<Self> {
        create_folders(path)?;
        let lock = Some(lock(path)?);
        remove_leftovers(path);
        let path = path.to_owned();
        Ok(Self { path, lock })
    }

    /// What the user should know about the folder: that it could not be locked, because its file
    /// system has no locks.
    pub fn warning(&self) -> Option<&str> {
        self.lock.as_ref()?.warning.as_deref()
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The resolved configuration, `config.yaml`.
    pub fn config_path(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// The parameters as viskit reads them, `params.json`.
    pub fn params_path(&self) -> PathBuf {
        self.path.join("params.json")
    }

    /// Program, sources, machine and command line, `version.json`.
    pub fn version_path(&self) -> PathBuf {
        self.path.join("version.json")
    }

    /// The metrics, one row per report, `progress.csv`.
    pub fn progress_path(&self) -> PathBuf {
        self.path.join("progress.csv")
    }

    /// The evaluations, one row each, `eval.csv`.
    pub fn eval_path(&self) -> PathBuf {
        self.path.join("eval.csv")
    }

    /// The file that the process which writes to the run keeps locked, `.lock`.
    pub fn lock_path(&self) -> PathBuf {
        self.path.join(LOCK)
    }

    /// The log, `log.txt`.
    pub fn log_path(&self) -> PathBuf {
        self.path.join("log.txt")
    }

    /// Live state of the run's process, `live.json`.
    pub fn live_path(&self) -> PathBuf {
        self.path.join(LIVE)
    }

    /// The folder of checkpoints, `checkpoints`.
    pub fn checkpoints_path(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// The folder of the best weights that evaluators in other processes have found, `best`.
    pub fn best_path(&self) -> PathBuf {
        self.path.join("best")
    }

    /// The folder of videos, `videos`.
    pub fn videos_path(&self) -> PathBuf {
        self.path.join("videos")
    }

    /// Opens the log to append to it.
    pub fn open_log(&self) -> Result<File> {
        let path = self.log_path();
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .doing("open", &path)
    }

    /// Writes the resolved configuration.
    pub fn write_config(&self, yaml: &str) -> Result<()> {
        replace_file(&self.config_path(), yaml.as_bytes())
    }

    /// Reads the resolved configuration back.
    pub fn read_config(&self) -> Result<String> {
        let path = self.config_path();
        fs::read_to_string(&path).doing("read", &path)
    }

    /// The resolved configuration as a tree of settings.
    pub fn settings(&self) -> Result<Value> {
        serde_saphyr::from_str(&self.read_config()?).map_err(|error| Error::Malformed {
            path: self.config_path(),
            reason: error.to_string(),
        })
    }

    /// Writes the parameters, nested or flat, as rllab's viskit reads them.
    pub fn write_params(&self, params: &Value) -> Result<()> {
        write_json(&self.params_path(), params)
    }

    /// Writes `version.json`; [`Version::collect`] gives what belongs there.
    pub fn write_version(&self, version: &Version) -> Result<()> {
        write_json(&self.version_path(), version)
    }

    /// What `version.json` says; none if there is no such file.
    pub fn version(&self) -> Result<Option<Version>> {
        let path = self.version_path();
        match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(version) => Ok(Some(version)),
                Err(error) => Err(Error::Malformed {
                    path,
                    reason: error.to_string(),
                }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).doing("read", &path),
        }
    }

    /// What the run is: from `version.json`, or from the folder's name where that is missing.
    pub fn info(&self) -> Result<RunInfo> {
        let version = self.version()?;
        Ok(version.map_or_else(|| self.info_from_path(), |version| version.run))
    }

    fn info_from_path(&self) -> RunInfo {
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let mut parts = path
            .iter()
            .rev()
            .map(|part| part.to_string_lossy().into_owned());
        let folder = parts.next().unwrap_or_default();
        let algo = parts.next().unwrap_or_default();
        let env = parts.next().unwrap_or_default();
        let (name, seed) = match FolderName::parse(&folder) {
            Some(parts) => (parts.name.to_owned(), parts.seed),
            None => (folder, 0),
        };
        RunInfo {
            env,
            algo,
            name,
            seed,
        }
    }

    /// When the run was started, as its folder's name says: later runs compare as greater.
    pub fn started(&self) -> Option<(String, u64)> {
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let folder = path.file_name()?.to_string_lossy();
        let parts = FolderName::parse(&folder)?;
        Some((parts.time.to_owned(), parts.suffix))
    }
}

impl Version {
    /// Gathers what can be known about this process and the sources around `sources`, the
    /// folder in which git is asked.
    pub fn collect(run: RunInfo, starling: &str, sources: &Path) -> Self {
        Self {
            run,
            starling: starling.to_owned(),
            git: GitState::of(sources),
            host: host_name(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            command: std::env::args_os()
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect(),
        }
    }
}

impl GitState {
    /// The state of the repository around a folder; none if there is no repository or no git.
    pub fn of(folder: &Path) -> Option<Self> {
        let commit = git(folder, &["rev-parse", "HEAD"])?;
        let status = git(folder, &["status", "--porcelain"])?;
        let diff_stat = git(folder, &["diff", "--stat", "HEAD"])?;
        Some(Self {
            commit,
            dirty: !status.is_empty(),
            diff_stat,
        })
    }
}

/// The name of this machine, or `unknown`.
pub fn host_name() -> String {
    let from_kernel = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    from_kernel
        .or_else(|| output_of(&mut Command::new("hostname")))
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}

pub(crate) const LIVE: &str = "live.json";
pub(crate) const CONFIG: &str = "config.yaml";
const LOCK: &str = ".lock";

/// Refuses to continue where the folder of a run was deleted or moved: files that are open could
/// still be written to, but their content would be lost.
///
/// Who deletes a folder while something is written to it may leave some of it behind, so the
/// folder alone proves nothing.
pub(crate) fn check_is_there(run: &Path) -> Result<()> {
    let is_gone = |name: &str| matches!(run.join(name).try_exists(), Ok(false));
    if is_gone(CONFIG) && is_gone(LOCK) {
        let path = run.to_owned();
        return Err(Error::Gone { path });
    }
    Ok(())
}

/// The parts of `<name>-s<seed>-<utc>` or `<name>-s<seed>-<utc>-<suffix>`.
struct FolderName<'a> {
    name: &'a str,
    seed: u64,
    time: &'a str,
    suffix: u64,
}

impl<'a> FolderName<'a> {
    fn parse(folder: &'a str) -> Option<Self> {
        let (mut front, mut time) = folder.rsplit_once('-')?;
        let mut suffix = 1;
        if let Ok(number) = time.parse() {
            suffix = number;
            (front, time) = front.rsplit_once('-')?;
        }
        let (name, seed) = front.rsplit_once("-s")?;
        let seed = seed.parse().ok()?;
        Some(Self {
            name,
            seed,
            time,
            suffix,
        })
    }
}

/// One component of a path, made from a name that a person chose.
fn component(what: &'static str, name: &str) -> Result<String> {
    let clean: String = name
        .chars()
        .map(|c| match c {
            '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|' => '-',
            c if c.is_control() || c.is_whitespace() => '-',
            c => c,
        })
        .collect();
    if clean.trim_matches(['.', '-']).is_empty() || clean.starts_with('.') {
        return Err(Error::BadName {
            what,
            name: name.to_owned(),
            reason: "it needs a letter or a digit and may not begin with a dot",
        });
    }
    Ok(clean)
}

fn lock(run: &Path) -> Result<Lock> {
    let mut lock = Lock {
        locked: Vec::new(),
        warning: None,
    };
    // Not every system lets a folder be opened or locked; the file below is locked all the same.
    if let Ok(folder) = File::open(run) {
        match folder.try_lock() {
            Ok(()) => lock.locked.push(folder),
            Err(TryLockError::WouldBlock) => return Err(in_use(run)),
            Err(TryLockError::Error(_)) => {}
        }
    }
    let path = run.join(LOCK);
    loop {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .doing("open", &path)?;
        lock.warning = locked(run, &path, file.try_lock())?;
        // Somebody may have deleted the file before it was locked: then others lock another one.
        if lock.warning.is_some() || is_same(&file, &path) {
            lock.locked.push(file);
            return Ok(lock);
        }
    }
}

fn in_use(run: &Path) -> Error {
    let path = run.to_owned();
    Error::InUse { path }
}

/// Whether the run may be used after an attempt to lock it, and with which warning.
fn locked(
    run: &Path,
    path: &Path,
    attempt: Result<(), TryLockError>,
) -> Result<Option<String>, Error> {
    match attempt {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Err(in_use(run)),
        // Some network file systems have no locks. That is no reason to refuse a run there.
        Err(TryLockError::Error(error)) if has_no_locks(&error) => Ok(Some(format!(
            "{} cannot be locked ({error}); do not start another process on this run",
            run.display()
        ))),
        Err(TryLockError::Error(error)) => Err(error).doing("lock", path),
    }
}

fn has_no_locks(error: &io::Error) -> bool {
    let no_locks_available = if cfg!(target_os = "linux") { 37 } else { 77 };
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(no_locks_available)
}

/// Whether an open file is the one at `path`.
#[cfg(unix)]
fn is_same(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Elsewhere an open file cannot be deleted.
#[cfg(not(unix))]
fn is_same(_: &File, _: &Path) -> bool {
    true
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).map_err(|error| Error::Malformed {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    text.push('\n');
    replace_file(path, text.as_bytes())
}

fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    output_of(Command::new("git").arg("-C").arg(folder).args(arguments))
        .map(|text| text.trim_end().to_owned())
}

fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|o| o.status.success())?;
    String::from_utf8(output.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn time() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_794_731_100)
    }

    fn create(root: &Path) -> Result<RunFolder> {
        RunFolder::create(root, "MinAtar/Breakout-v1", "ppo", "first try", 7, time())
    }

    #[test]
    fn the_folder_is_named_after_the_run() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path()).unwrap();
        let expected = "MinAtar-Breakout-v1/ppo/first-try-s7-20261115T082500Z";
        assert_eq!(run.path(), root.path().join(expected));
        assert!(run.path().is_dir());
    }

    /// A sweep starts several runs in the same second.
    #[test]
    fn equal_runs_of_the_same_second_get_folders_of_their_own() {
        let root = tempfile::tempdir().unwrap();
        let runs: Vec<RunFolder> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| create(root.path()).unwrap()))
                .collect();
            let runs = started.into_iter().map(|thread| thread.join().unwrap());
            runs.collect()
        });
        let mut names: Vec<String> = runs
            .iter()
            .map(|run| run.path().file_name().unwrap().to_string_lossy().into())
            .collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 8);
        assert_eq!(names[0], "first-try-s7-20261115T082500Z");
        assert_eq!(names[1], "first-try-s7-20261115T082500Z-2");
        for run in &runs {
            let info = run.info().unwrap();
            assert_eq!((info.name.as_str(), info.seed), ("first-try", 7));
        }
        let mut started: Vec<_> = runs.iter().map(|run| run.started().unwrap()).collect();
        started.sort();
        assert_eq!(started[7], ("20261115T082500Z".to_owned(), 8));
    }

    #[test]
    fn names_that_would_leave_the_folder_are_refused() {
        let root = tempfile::tempdir().unwrap();
        for name in ["", "..", ".hidden", "///"] {
            let error = RunFolder::create(root.path(), "E", "a", name, 0, time()).unwrap_err();
            assert!(matches!(error, Error::BadName { .. }), "{name:?}: {error}");
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_one_process_writes() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path()).unwrap();
        run.write_config("").unwrap();
        let path = run.path().to_owned();
        RunFolder::open(&path).unwrap();
        let error = RunFolder::open_to_write(&path).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        // The lock does not depend on a file that anybody can delete.
        fs::remove_file(path.join(".lock")).unwrap();
        let error = RunFolder::open_to_write(&path).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        drop(run);
        let run = RunFolder::open_to_write(&path).unwrap();
        assert_eq!(run.warning(), None);
    }

    #[test]
    fn a_file_system_without_locks_is_a_warning() {
        let run = Path::new("runs/a");
        let attempt = |error: io::Error| locked(run, run, Err(TryLockError::Error(error)));
        let no_locks = if cfg!(target_os = "linux") { 37 } else { 77 };
        let errors = [
            io::Error::from_raw_os_error(no_locks),
            io::ErrorKind::Unsupported.into(),
        ];
        for error in errors {
            let warning = attempt(error).unwrap().unwrap();
            assert!(warning.contains("runs/a cannot be locked"), "{warning}");
        }
        assert!(attempt(io::ErrorKind::PermissionDenied.into()).is_err());
        assert_eq!(locked(run, run, Ok(())).unwrap(), None);
        let error = locked(run, run, Err(TryLockError::WouldBlock)).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
    }

    #[test]
    fn what_a_kill_left_behind_is_removed_when_the_run_continues() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path()).unwrap();
        run.write_config("seed: 7\n").unwrap();
        let path = run.path().to_owned();
        drop(run);
        let litter = [".params.json.new", ".version.json.new", ".progress.csv.new"];
        for name in litter {
            fs::write(path.join(name), "{").unwrap();
        }
        fs::write(path.join("mine.new"), "").unwrap();
        RunFolder::open(&path).unwrap();
        assert!(path.join(litter[0]).exists());
        RunFolder::open_to_write(&path).unwrap();
        let left = litter.iter().filter(|name| path.join(name).exists());
        assert_eq!(left.count(), 0);
        assert!(path.join("mine.new").exists() && path.join("config.yaml").exists());
    }

    #[test]
    fn a_folder_without_a_run_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let error = RunFolder::open(root.path()).unwrap_err();
        assert!(error.to_string().contains("config.yaml"), "{error}");
    }

    #[test]
    fn info_survives_without_version_json() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path()).unwrap();
        let by_path = run.info().unwrap();
        assert_eq!(by_path.env, "MinAtar-Breakout-v1");
        assert_eq!((by_path.name.as_str(), by_path.seed), ("first-try", 7));

        let info = RunInfo {
            env: "MinAtar/Breakout-v1".to_owned(),
            ..by_path
        };
        let version = Version::collect(info.clone(), "0.1.0", root.path());
        assert!(version.git.is_none());
        assert!(!version.host.is_empty());
        run.write_version(&version).unwrap();
        assert_eq!(run.info().unwrap(), info);
    }

    #[test]
    fn git_state_knows_clean_from_dirty() {
        let root = tempfile::tempdir().unwrap();
        let run = |arguments: &[&str]| git(root.path(), arguments);
        if run(&["init", "-q"]).is_none() {
            let test = "record: git_state_knows_clean_from_dirty";
            starling_testing::skip("git", test, "git is not installed");
            return;
        }
        fs::write(root.path().join("a.txt"), "one\n").unwrap();
        run(&["add", "a.txt"]).unwrap();
        let who = ["-c", "user.name=t", "-c", "user.email=t@example.org"];
        run(&[&who[..], &["commit", "-qm", "one"]].concat()).unwrap();
        let clean = GitState::of(root.path()).unwrap();
        assert!(!clean.dirty && clean.commit.len() == 40 && clean.diff_stat.is_empty());
        fs::write(root.path().join("a.txt"), "two\n").unwrap();
        let dirty = GitState::of(root.path()).unwrap();
        assert!(dirty.dirty && dirty.diff_stat.contains("a.txt"));
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let error = create(&file).unwrap_err().to_string();
        assert!(
            error.contains("create the folder") && error.contains("file"),
            "{error}"
        );
    }
}
