//! Carries out a plan: one thread per slot, each with one run at a time as a child process.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use starling_record::{Ending, Run, RunFolder, Source, find_runs};

use super::folder::{chosen, write_durably};
use super::schedule::{Next, RunState, Schedule, Stage};
use super::search::Chosen;
use super::slots::stay_on;
use super::{By, Event, Plan, QueueError, QueueFolder, Report, Slot, Trial, What};
use crate::settings;

/// Runs, how far they are, and where they run.
pub struct Queue<'a> {
    plan: Plan,
    slots: Vec<Slot>,
    /// The program whose `train` and `resume` make the runs.
    program: PathBuf,
    /// How often a run that failed is continued before it is given up.
    retries: u32,
    /// Set to stop: runs end with a checkpoint, and no further ones start.
    stop: &'a AtomicBool,
    board: Mutex<Board>,
    changed: Condvar,
}

struct Board {
    folder: QueueFolder,
    schedule: Schedule,
    /// What a search has chosen, by variant.
    chosen: Vec<Option<Chosen>>,
    failure: Option<QueueError>,
}

/// What happens, for the terminal.
pub enum Said<'a> {
    /// A run starts or continues in a slot.
    Started {
        /// Its name.
        name: &'a str,
        /// Its slot's number, from 1.
        slot: usize,
        /// Whether it was started earlier.
        continued: bool,
    },
    /// A run ended or paused.
    Ended {
        /// Its name.
        name: &'a str,
        /// How.
        event: &'a Event,
        /// Runs that have ended, paused or failed for good.
        done: usize,
        /// All runs.
        of: usize,
    },
}

/// How a queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// All runs have ended.
    All,
    /// Some runs failed; the others have ended.
    SomeFailed,
    /// It was stopped.
    Interrupted,
}

/// How often a child is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How long a run may still be written to by a process of an earlier queue.
const RELEASE: Duration = Duration::from_secs(600);

impl<'a> Queue<'a> {
    /// A queue in a folder, new or to be continued.
    ///
    /// # Errors
    /// When the folder belongs to another plan or cannot be written.
    pub fn open(
        folder: &Path,
        plan: Plan,
        slots: Vec<Slot>,
        program: PathBuf,
        retries: u32,
        stop: &'a AtomicBool,
    ) -> Result<Self, QueueError> {
        let (folder, events) = QueueFolder::open(folder, &plan)?;
        let mut schedule = Schedule::new(&plan.trials(), plan.prune.clone());
        for event in &events {
            schedule.apply(event);
        }
        schedule.continued();
        let mut by_variant = vec![None; plan.variants.len()];
        for (variant, values) in chosen(&events) {
            if let Some(place) = by_variant.get_mut(variant) {
                *place = Some(values);
            }
        }
        for part in ["runs", "logs", "settings"] {
            let path = folder.path().join(part);
            let made = fs::create_dir_all(&path);
            made.map_err(QueueError::io(format!("create {}", path.display())))?;
        }
        Ok(Self {
            plan,
            slots,
            program,
            retries,
            stop,
            board: Mutex::new(Board {
                folder,
                schedule,
                chosen: by_variant,
                failure: None,
            }),
            changed: Condvar::new(),
        })
    }

    /// Makes all runs. Returns when they have ended or `stop` was set.
    ///
    /// # Errors
    /// When the state cannot be written or no process can be started.
    pub fn run(&self, say: &(dyn Fn(Said<'_>) + Sync)) -> Result<Finished, QueueError> {
        std::thread::scope(|scope| {
            for (number, slot) in self.slots.iter().enumerate() {
                scope.spawn(move || self.serve(number + 1, slot, say));
            }
        });
        let mut board = self.board();
        if let Some(failure) = board.failure.take() {
            return Err(failure);
        }
        let mut stages = board.schedule.runs().iter().map(|run| &run.stage);
        Ok(match () {
            () if board.schedule.next() != Next::Done => Finished::Interrupted,
            () if stages.any(|stage| matches!(stage, Stage::Failed(_))) => Finished::SomeFailed,
            () => Finished::All,
        })
    }

    /// What the runs have reached.
    ///
    /// # Errors
    /// When the folder of the runs cannot be read.
    pub fn report(&self) -> Result<Report, QueueError> {
        let board = self.board();
        let mut runs = Vec::new();
        for state in board.schedule.runs() {
            let folder = self.find(&board.folder, state.trial)?;
            let run = folder.and_then(|folder| self.read(&folder));
            runs.push((state.clone(), run));
        }
        let plan = self.plan_with(&board.chosen);
        Ok(Report::of(&plan, &runs))
    }

    /// The folder of the queue.
    pub fn path(&self) -> PathBuf {
        self.board().folder.path().to_owned()
    }

    /// One slot: run after run.
    fn serve(&self, number: usize, slot: &Slot, say: &(dyn Fn(Said<'_>) + Sync)) {
        let mut outcome =
            stay_on(&slot.cores).map_err(QueueError::io("choose the cores of a slot"));
        while outcome.is_ok()
            && let Some((trial, until)) = self.take()
        {
            outcome = self.make(trial, until, number, slot, say);
            self.changed.notify_all();
        }
        if let Err(error) = outcome {
            self.stop.store(true, Ordering::Relaxed);
            self.board().failure.get_or_insert(error);
        }
        self.changed.notify_all();
    }

    /// The next run for a free slot; none when nothing is left or the queue is to stop.
    fn take(&self) -> Option<(Trial, Option<u64>)> {
        let mut board = self.board();
        loop {
            if self.stop.load(Ordering::Relaxed) || board.failure.is_some() {
                return None;
            }
            match board.schedule.next() {
                Next::Run(trial, until) => {
                    // No other slot takes it from here on.
                    board.schedule.apply(&Event::new(trial, What::Started));
                    return Some((trial, until));
                }
                Next::Done => return None,
                Next::Wait => {
                    let woken = self.changed.wait_timeout(board, LOOK);
                    board = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Starts or continues a run, waits for its end, and records how it ended.
    fn make(
        &self,
        trial: Trial,
        until: Option<u64>,
        number: usize,
        slot: &Slot,
        say: &(dyn Fn(Said<'_>) + Sync),
    ) -> Result<(), QueueError> {
        let name = self.plan.name_of(trial);
        self.wait_for_release(trial)?;
        if self.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (mut command, continued) = self.prepare(trial, until, slot)?;
        self.board().folder.append(&Event {
            slot: Some(format!("slot {number}: {slot}")),
            ..Event::new(trial, What::Started)
        })?;
        say(Said::Started {
            name: &name,
            slot: number,
            continued,
        });
        let began = Instant::now();
        let child = command.spawn();
        let child = child.map_err(QueueError::io(format!("start {}", self.program.display())))?;
        let status = self.wait(child);
        let status = status.map_err(QueueError::io(format!("wait for '{name}'")))?;
        let mut board = self.board();
        let what = self.what_happened(&board, trial, until, status)?;
        let event = Event {
            trial,
            what,
            seconds: began.elapsed().as_secs_f64(),
            slot: None,
        };
        board.folder.append(&event)?;
        board.schedule.apply(&event);
        let runs = board.schedule.runs();
        let is_done = |run: &&RunState| {
            matches!(
                run.stage,
                Stage::Finished(_) | Stage::Paused | Stage::Failed(_)
            )
        };
        let (done, of) = (runs.iter().filter(is_done).count(), runs.len());
        drop(board);
        say(Said::Ended {
            name: &name,
            event: &event,
            done,
            of,
        });
        Ok(())
    }

    /// Waits until no process writes to the folder of a run: when a queue is killed, its runs notice
    /// that and write their last checkpoints, while the queue may have been started again.
    fn wait_for_release(&self, trial: Trial) -> Result<(), QueueError> {
        let began = Instant::now();
        loop {
            let run = self.find(&self.board().folder, trial)?;
            match run.map(|run| RunFolder::open_to_write(run.path())) {
                None | Some(Ok(_)) => return Ok(()),
                Some(Err(starling_record::Error::InUse { .. })) if began.elapsed() < RELEASE => {}
                Some(Err(error)) => return Err(error.into()),
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The command that starts a run, or continues it where it has a checkpoint.
    fn prepare(
        &self,
        trial: Trial,
        until: Option<u64>,
        slot: &Slot,
    ) -> Result<(Command, bool), QueueError> {
        let mut board = self.board();
        let variant = self.settle(&mut board, trial)?;
        let log = board.folder.log_of(&self.plan.name_of(trial));
        let mut command = Command::new(&self.program);
        let continued = match self.find(&board.folder, trial)? {
            Some(run) if has_checkpoint(&run) => {
                command.arg("resume").arg(run.path());
                true
            }
            older => {
                if let Some(run) = older {
                    // It was killed before its first checkpoint: nothing in it can be continued.
                    let path = run.path().to_owned();
                    RunFolder::open_to_write(&path)?;
                    let removed = fs::remove_dir_all(&path);
                    removed.map_err(QueueError::io(format!("remove {}", path.display())))?;
                }
                let file = board.folder.settings_of(&variant.name);
                let written = write_durably(&file, &settings::to_yaml(&variant.settings));
                written.map_err(QueueError::io(format!("write {}", file.display())))?;
                command.arg("train").arg("--config").arg(file);
                command.arg("--seed").arg(trial.seed.to_string());
                command.arg("--name").arg(&variant.name);
                command.arg("--runs").arg(board.folder.runs());
                if let Some(preset) = &variant.preset {
                    command.arg("--preset").arg(preset);
                }
                false
            }
        };
        if let Some(steps) = until {
            command.arg("--stop-after").arg(steps.to_string());
        }
        let parent = std::process::id().to_string();
        command.args(["--quiet", "--end-with", &parent]);
        if let Some(gpu) = &slot.gpu {
            command.env("CUDA_VISIBLE_DEVICES", gpu);
        }
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let file = file.map_err(QueueError::io(format!("open {}", log.display())))?;
        let errors = file.try_clone();
        let errors = errors.map_err(QueueError::io(format!("open {}", log.display())))?;
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        Ok((command, continued))
    }

    /// The settings of a run, with what the search chooses for it.
    fn settle(&self, board: &mut Board, trial: Trial) -> Result<super::Variant, QueueError> {
        let search = self
            .plan
            .search
            .as_ref()
            .filter(|search| search.by == By::Tpe);
        if let Some(search) = search
            && board.chosen[trial.variant].is_none()
        {
            let ended: Vec<(Chosen, f64)> = board
                .schedule
                .runs()
                .iter()
                .filter_map(|run| {
                    let score = match run.stage {
                        Stage::Finished(score) => score,
                        _ => *run.rungs.last()?,
                    };
                    let values = board.chosen[run.trial.variant].clone()?;
                    score.is_finite().then_some((values, score))
                })
                .collect();
            let values = search.suggest(trial.variant, &ended);
            let json = serde_json::to_value(&values).unwrap_or(Value::Null);
            let event = Event::new(trial, What::Chosen { values: json });
            board.folder.append(&event)?;
            board.chosen[trial.variant] = Some(values);
        }
        Ok(self
            .plan_with(&board.chosen)
            .variants
            .swap_remove(trial.variant))
    }

    /// The plan with what the search has chosen so far.
    fn plan_with(&self, chosen: &[Option<Chosen>]) -> Plan {
        let mut plan = self.plan.clone();
        for (variant, values) in plan.variants.iter_mut().zip(chosen) {
            if let (Some(values), Some(search)) = (values, &self.plan.search) {
                settings::merge(&mut variant.settings, &search.tree(values));
            }
        }
        plan
    }

    /// Waits for a run. When the queue is to stop, so is the run, with a checkpoint.
    fn wait(&self, mut child: Child) -> std::io::Result<ExitStatus> {
        let mut told = false;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if self.stop.load(Ordering::Relaxed) && !told {
                told = true;
                if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
                    // It may have ended in this moment.
                    let _ = kill_process(pid, Signal::TERM);
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    fn what_happened(
        &self,
        board: &Board,
        trial: Trial,
        until: Option<u64>,
        status: ExitStatus,
    ) -> Result<What, QueueError> {
        let run = self.find(&board.folder, trial)?;
        let run = run.and_then(|folder| self.read(&folder));
        let score = run.as_ref().and_then(super::report::score);
        let ended = run.as_ref().map(|run| run.ending);
        let stopped = self.stop.load(Ordering::Relaxed);
        match status.code() {
            Some(0) => Ok(match (ended, until) {
                (Some(Ending::Finished | Ending::Stopped(_)), _) | (_, None) => {
                    What::Finished { score }
                }
                _ => What::Paused { score },
            }),
            Some(130) if stopped => Ok(What::Interrupted),
            code => {
                let failures = board.schedule.runs().iter();
                let failures = failures.filter(|run| run.trial == trial);
                let failures = failures.map(|run| run.failures).sum::<u32>();
                // Wrong settings stay wrong.
                let last = code == Some(2) || failures >= self.retries;
                let log = board.folder.log_of(&self.plan.name_of(trial));
                let reason = format!("{status}; see {}", log.display());
                Ok(What::Failed { reason, last })
            }
        }
    }

    /// The newest folder of a run, if it was started.
    fn find(&self, folder: &QueueFolder, trial: Trial) -> Result<Option<RunFolder>, QueueError> {
        let variant = &self.plan.variants[trial.variant].name;
        let runs = match find_runs(&[folder.runs()]) {
            Ok(runs) => runs,
            Err(starling_record::Error::NotARun { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut found = None;
        for path in runs {
            let run = RunFolder::open(&path)?;
            let info = run.info()?;
            if info.name == *variant && info.seed == trial.seed {
                // Sorted by name, which ends with the time of the start.
                found = Some(run);
            }
        }
        Ok(found)
    }

    /// The metrics of a run; none if it has written none yet.
    fn read(&self, folder: &RunFolder) -> Option<Run> {
        let source = match self.plan.by_evaluation {
            true => Source::Evaluation,
            false => Source::Training,
        };
        Run::read(folder, source).ok()
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        // A slot that panicked has recorded all that it had done.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Complete checkpoints are called by their step.
fn has_checkpoint(run: &RunFolder) -> bool {
    let entries = fs::read_dir(run.checkpoints_path());
    let mut entries = entries.into_iter().flatten().flatten();
    let is_step = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    entries.any(|entry| entry.file_name().to_str().is_some_and(is_step))
}
