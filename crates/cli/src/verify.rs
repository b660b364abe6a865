//! Compares the Atari emulator with ale-py, frame by frame, while ale-py plays.
//!
//! Read first: [`plan`] (what there is to compare), [`run`] (compares it).

use std::collections::VecDeque;
use std::io::{BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};

use serde::Serialize;
use starling_atari::games::{self, Game};
use starling_atari::verify::{self, RECORDER, Report, VerifyError, What};
use starling_envs::atari::roms::{self, RomsError};

/// Why a comparison could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The recorder does not run.
    #[error("the recorder cannot be run with {}: {cause}", python.display())]
    Recorder {
        /// The Python that was to run it.
        python: PathBuf,
        /// What went wrong.
        cause: std::io::Error,
    },
    /// A trace could not be replayed.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// A cartridge is missing.
    #[error(transparent)]
    Roms(#[from] RomsError),
}

/// One part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The game as it is loaded.
    Default,
    /// Every mode with every difficulty.
    Modes,
    /// Sticky actions at 0.25.
    Sticky,
}

/// What is to be compared of one game.
#[derive(Clone, Debug)]
pub struct Plan {
    game: &'static Game,
    runs: Vec<(Part, Job)>,
}

/// One run: what the recorder is asked for.
#[derive(Clone, Debug, Serialize)]
struct Job {
    rom: PathBuf,
    game: &'static str,
    frames: u32,
    seed: u32,
    sticky: f32,
    mode: Option<u16>,
    difficulty: Option<u8>,
}

/// How one part of a game's comparison went.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Runs that were compared.
    pub runs: usize,
    /// Runs that were equal.
    pub equal: usize,
    /// Frames of all of them.
    pub frames: u64,
    /// Resets of all of them.
    pub resets: u64,
}

impl Tally {
    /// Nothing was compared.
    pub const fn none() -> Self {
        Self {
            runs: 0,
            equal: 0,
            frames: 0,
            resets: 0,
        }
    }

    /// Adds what another comparison gave.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.equal += other.equal;
        self.frames += other.frames;
        self.resets += other.resets;
    }
}

/// How the comparison of one game went.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The game.
    pub game: &'static Game,
    /// The default mode, the modes, and sticky actions.
    pub parts: [Tally; 3],
    /// Says for each run that differs what was the first difference.
    pub differences: Vec<String>,
}

/// Games that are compared with sticky actions: one of every kind of cartridge and controller.
pub const STICKY_GAMES: [&str; 20] = [
    "alien",
    "asteroids",
    "backgammon",
    "beam_rider",
    "breakout",
    "double_dunk",
    "enduro",
    "freeway",
    "jamesbond",
    "kaboom",
    "montezuma_revenge",
    "ms_pacman",
    "pitfall2",
    "pong",
    "qbert",
    "riverraid",
    "robotank",
    "seaquest",
    "space_invaders",
    "tennis",
];
const MODE_FRAMES: u32 = 600;
const STICKY_FRAMES: u32 = 5_000;

/// What there is to compare of these games: all where none is named, and then sticky actions of
/// [`STICKY_GAMES`] only. `frames` are those of the default mode.
pub fn plan(named: &[&'static Game], parts: &[Part], frames: u32, seed: u32) -> Vec<Plan> {
    let all: Vec<&'static Game> = games::all().collect();
    let chosen = if named.is_empty() { &all } else { named };
    let found = roms::found();
    let plan = |game: &'static Game| {
        let rom = found.iter().find(|(known, _)| known.name == game.name);
        let job = |frames: u32, sticky: f32, setting: Option<(u16, u8)>| Job {
            rom: rom.map(|(_, path)| path.clone()).unwrap_or_default(),
            game: game.name,
            frames,
            seed,
            sticky,
            mode: setting.map(|(mode, _)| mode),
            difficulty: setting.map(|(_, difficulty)| difficulty),
        };
        let mut runs = Vec::new();
        for part in parts {
            match part {
                Part::Default => runs.push((*part, job(frames, 0.0, None))),
                Part::Modes => {
                    for mode in game.modes {
                        if !verify::is_deterministic(game, *mode) {
                            continue;
                        }
                        for difficulty in game.difficulties {
                            let setting = Some((*mode, *difficulty));
                            runs.push((*part, job(MODE_FRAMES, 0.0, setting)));
                        }
                    }
                }
                Part::Sticky if named.is_empty() && !STICKY_GAMES.contains(&game.name) => {}
                Part::Sticky => runs.push((*part, job(STICKY_FRAMES, 0.25, None))),
            }
        }
        Plan { game, runs }
    };
    let mut plans: Vec<Plan> = chosen.iter().map(|game| plan(game)).collect();
    plans.retain(|plan| !plan.runs.is_empty());
    plans
}

/// Makes the comparisons with `workers` recorders at a time, and calls `done` after each game.
///
/// # Errors
/// When a recorder cannot be run or a cartridge is missing.
pub fn run(
    python: &Path,
    plans: Vec<Plan>,
    workers: usize,
    mut done: impl FnMut(Compared),
) -> Result<(), CompareError> {
    let plans = Mutex::new(VecDeque::from(plans));
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..workers.max(1) {
            let (plans, sender) = (&plans, sender.clone());
            scope.spawn(move || {
                let next = || {
                    let mut plans = plans.lock().unwrap_or_else(PoisonError::into_inner);
                    plans.pop_front()
                };
                let mut recorder = match Recorder::start(python) {
                    Ok(recorder) => recorder,
                    Err(error) => return drop(sender.send(Err(error))),
                };
                while let Some(plan) = next() {
                    // Nobody listens any more after an error elsewhere.
                    if sender.send(recorder.compare(&plan)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for result in results {
            done(result?);
        }
        Ok(())
    })
}

/// A Python that plays the reference, and what it writes.
struct Recorder {
    child: Child,
    jobs: ChildStdin,
    traces: BufReader<ChildStdout>,
}

impl Recorder {
    fn start(python: &Path) -> Result<Self, CompareError> {
        let failed = |cause| CompareError::Recorder {
            python: python.to_owned(),
            cause,
        };
        let mut child = Command::new(python)
            .args(["-c", RECORDER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let no_pipe = || failed(std::io::ErrorKind::BrokenPipe.into());
        let jobs = child.stdin.take().ok_or_else(no_pipe)?;
        let traces = BufReader::with_capacity(1 << 16, child.stdout.take().ok_or_else(no_pipe)?);
        Ok(Self {
            child,
            jobs,
            traces,
        })
    }

    fn compare(&mut self, plan: &Plan) -> Result<Compared, CompareError> {
        let rom = roms::load(plan.game)?;
        let mut compared = Compared {
            game: plan.game,
            parts: Default::default(),
            differences: Vec::new(),
        };
        for (part, job) in &plan.runs {
            let mut line = serde_json::to_vec(job).map_err(std::io::Error::from);
            if let Ok(line) = &mut line {
                line.push(b'\n');
            }
            self.jobs
                .write_all(&line.map_err(VerifyError::from)?)
                .map_err(VerifyError::from)?;
            let ended = || VerifyError::Read(std::io::ErrorKind::UnexpectedEof.into());
            let (_, report) =
                verify::replay(&mut self.traces, |_| Ok(rom.clone()))?.ok_or_else(ended)?;
            let tally = &mut compared.parts[*part as usize];
            tally.runs += 1;
            tally.equal += usize::from(report.equal());
            tally.frames += report.frames;
            tally.resets += report.resets;
            compared.differences.extend(difference(job, &report));
        }
        Ok(compared)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What differed first; none where nothing did.
fn difference(job: &Job, report: &Report) -> Option<String> {
    let (what, frame) = report.differences.first()?;
    let what = match what {
        What::Ram => "RAM",
        What::Screen => "screen",
        What::Reward => "reward",
        What::Lives => "lives",
        What::Over => "end of the game",
        What::ResetFrames => "number of frames of a reset",
    };
    let mut setting = String::new();
    if let (Some(mode), Some(difficulty)) = (job.mode, job.difficulty) {
        setting = format!(" in mode {mode}, difficulty {difficulty}");
    }
    if job.sticky > 0.0 {
        setting.push_str(" with sticky actions");
    }
    Some(format!(
        "{}{setting}: the {what} differs at frame {frame}",
        job.game
    ))
}
