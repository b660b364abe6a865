//! The `starling` command: one file per subcommand.
//!
//! Results go to standard output, progress and errors to standard error. Exit codes: 0 for success,
//! 1 for failure, 2 for invalid arguments or settings, 130 after Ctrl-C, SIGTERM, SIGHUP, SIGUSR1
//! or SIGUSR2.

use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::bench::BenchError;
use crate::envs::{EnvOptions, EnvSpec};
use crate::queue::QueueError;
use crate::record::RunFolder;
use crate::settings::SettingsError;
use crate::{EngineError, RunConfig};

/// Prints a line of results to standard output. A closed pipe ends the program quietly; any other
/// failure, such as a full disk, ends it with an error.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::commands::write_or_exit(&format!($($text)*), 0)
    };
}

/// Prints a line to standard error and ignores failures: a run must not end because a pipe was
/// closed or a disk is full, as it would with `eprintln!`.
macro_rules! note {
    ($($text:tt)*) => {
        $crate::commands::write_note(format_args!($($text)*))
    };
}

mod actor;
mod atari;
mod bench;
mod bf16;
mod caller;
mod check_env;
mod compare;
mod completions;
mod config;
mod dashboard;
mod doctor;
mod eval;
mod evaluator;
mod export;
mod film;
mod group;
mod joining;
mod launch;
mod learner;
mod list;
mod listen;
mod many;
mod mistakes;
mod mpi;
mod mujoco;
mod numbers;
mod own_evaluator;
mod play;
mod plot;
mod profile;
mod progress;
mod queue;
mod resume;
mod rm;
mod rollouts;
mod roms;
mod runs;
mod selftest;
mod signals;
mod status;
mod stream;
mod sweep;
mod train;

/// Deep reinforcement learning: train, evaluate and compare agents
#[derive(Parser)]
#[command(version, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  starling train CartPole-v1
  starling train MinAtar/Breakout-v1 --algo dqn --seed 3 algo.n_steps=5
  starling train ALE/Pong-v5
  starling eval runs/CartPole-v1/ppo/<run>
  starling plot runs/CartPole-v1/ppo/*
  starling runs state:running
  starling eval last

A RUN is the folder of a run, an unambiguous prefix of the name of a run in runs/, or `last` for the
newest run.

Environment variables:
  STARLING_LIBTORCH  torch 2.11.0 folder to use instead of the downloaded one (read by ./starling)
  STARLING_ROMS      folder of Atari ROMs, searched before the user's cache
  STARLING_MUJOCO    folder of MuJoCo's library, used instead of the one in the user's cache
  STARLING_PYTHON    Python for gym: and python: environments (default: that of the active virtual
                     environment, or python3)
  STARLING_JOIN      join file of a run, or its content (read by actor, evaluator and learner)";

#[derive(Subcommand)]
enum Command {
    /// Train an agent
    Train(Box<train::Args>),
    /// Continue a run from its latest checkpoint
    Resume(resume::Args),
    /// Collect experience for a learner in another process or on another machine (`train --listen`)
    Actor(actor::Args),
    /// Learn with others in a run of several learners (`train learners=N --learners-at`)
    Learner(learner::Args),
    /// Evaluate the newest weights of a learner in another process or on another machine
    Evaluator(evaluator::Args),
    /// Start a learner, actors and evaluators on several machines over ssh, and restart those that fail
    Launch(launch::Args),
    /// Show the progress of a run and its processes
    Status(status::Args),
    /// Start the runs that a file describes: variants of settings, hyperparameter search, seeds
    Sweep(sweep::Args),
    /// Start runs of several environments, algorithms, settings and seeds
    Queue(queue::Args),
    /// Play episodes with a trained agent and report its returns
    Eval(eval::Args),
    /// Show an environment with random actions or a trained agent, in the terminal and as a video
    Play(play::Args),
    /// Write a trained agent as a file for other programs: ONNX or TorchScript
    Export(export::Args),
    /// Draw learning curves of one or more runs (HTML and PNG)
    Plot(plot::Args),
    /// List runs: environment, algorithm, state, steps, return
    Runs(runs::Args),
    /// Compare two runs: the settings that differ, and the curves
    Compare(compare::Args),
    /// Delete runs
    Rm(rm::Args),
    /// Show runs and queues in a browser, live
    Dashboard(dashboard::Args),
    /// List environments, algorithms or presets
    List(list::Args),
    /// Show the settings of a run without starting it
    Config(config::Args),
    /// Measure the speed of environments, replay and collection on this machine
    Bench(bench::Args),
    /// Check an environment for bugs that break learning
    CheckEnv(check_env::Args),
    /// Check this machine's setup and explain how to fix what is missing
    Doctor(doctor::Args),
    /// Download the ROMs of the Atari games, or list the installed ones
    Roms(roms::Args),
    /// Download the library that MuJoCo's environments need
    Mujoco(mujoco::Args),
    /// Compare the Atari emulator with ale-py, the reference
    Atari(atari::Args),
    /// Check that a GPU computes the same results as the CPU and that every algorithm learns on it
    Selftest(selftest::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

/// Runs the command given by the program's arguments and returns its exit code.
///
/// If a program adds its environments to the table before it calls this, every command knows them;
/// see `examples/custom_env.rs`.
pub fn main() -> ExitCode {
    // libtorch looks for its devices at its first use: before anything else.
    starling_nets::load_cuda();
    crate::add_environments();
    // Not one of the commands, which completions and --help would show.
    if std::env::args().nth(1).as_deref() == Some(bf16::PROBE) {
        starling_nets::try_bf16();
        return ExitCode::SUCCESS;
    }
    let arguments = match Cli::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            let arguments = std::env::args_os().skip(1);
            let arguments: Vec<String> = arguments
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect();
            note!("{}", mistakes::explain(&error, &arguments));
            return ExitCode::from(2);
        }
        Err(help) => {
            // Coloured where the output is a terminal.
            return match help.print() {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    note!("error: {}", not_written(&error));
                    ExitCode::FAILURE
                }
                _ => ExitCode::SUCCESS,
            };
        }
    };
    let result = match arguments.command {
        Command::Train(args) => train::run(*args),
        Command::Resume(args) => resume::run(args),
        Command::Actor(args) => actor::run(args),
        Command::Learner(args) => learner::run(args),
        Command::Evaluator(args) => evaluator::run(args),
        Command::Launch(args) => launch::run(args),
        Command::Status(args) => status::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Queue(args) => queue::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Play(args) => play::run(args),
        Command::Export(args) => export::run(args),
        Command::Plot(args) => plot::run(args),
        Command::Runs(args) => runs::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Rm(args) => rm::run(args),
        Command::Dashboard(args) => dashboard::run(&args),
        Command::List(args) => list::run(args),
        Command::Config(args) => config::run(args),
        Command::Bench(args) => bench::run(args),
        Command::CheckEnv(args) => check_env::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Roms(args) => roms::run(args),
        Command::Mujoco(args) => mujoco::run(args),
        Command::Atari(args) => atari::run(args),
        Command::Selftest(args) => selftest::run(args),
        Command::Completions(args) => completions::run::<Cli>(args),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let text = explain(&error);
            // Into the run's log, where the command has one.
            tracing::error!("{text}");
            note!("error: {text}");
            exit_code(&error)
        }
    }
}

/// The folder in which runs are stored, unless the user names another.
const RUNS: &str = "runs";

/// The run that the user means: its folder, `last`, or a prefix of its name.
fn find_run(text: &Path) -> Result<PathBuf, crate::record::Error> {
    crate::record::find_run(text, Path::new(RUNS))
}

/// The settings of an existing run, after what its environment needs has been fetched.
fn read_config(folder: &RunFolder, device: Option<&str>) -> anyhow::Result<RunConfig> {
    // What is wrong with the file is said when it is read as a whole.
    let tree = folder.read_config().ok();
    let tree = tree.and_then(|text| crate::settings::from_yaml(&text, "").ok());
    if let Some(env) = tree
        .as_ref()
        .and_then(|tree| tree.pointer("/env/id")?.as_str())
    {
        mujoco::ensure(env)?;
    }
    Ok(crate::read_config(folder, device)?)
}

/// The options of an environment that are given as `env.stack=1`.
fn env_options(spec: &EnvSpec, pairs: &[String]) -> anyhow::Result<EnvOptions> {
    let given = crate::settings::overrides(pairs)?;
    let sections = given.as_object().into_iter().flatten();
    let mut options = EnvOptions::default();
    for (section, table) in sections {
        if section != "env" {
            let text =
                format!("'{section}' is not a setting of the environment; those begin with env.");
            return Err(Usage(text).into());
        }
        options = EnvOptions::from_table(table).map_err(EngineError::from)?;
    }
    spec.check(&options).map_err(EngineError::from)?;
    Ok(options)
}

/// An invalid argument that no library detects: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// Writes to a terminal without a new line.
fn write_raw(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

fn write_note(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes results, or ends the program: with `code` if the pipe was closed, with 1 otherwise.
fn write_or_exit(text: &str, code: u8) {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    match io::stdout().write_all(format!("{text}{end}").as_bytes()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            std::process::exit(code.into());
        }
        Err(error) => {
            let text = not_written(&error);
            tracing::error!("{text}");
            note!("error: {text}");
            std::process::exit(1);
        }
    }
}

fn not_written(error: &io::Error) -> String {
    format!("cannot write to standard output: {error}")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let written = match error.downcast_ref::<BenchError>() {
        Some(BenchError::Write(error)) => Some(error),
        _ => error.downcast_ref::<io::Error>(),
    };
    written.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The error with its causes. Causes that it already quotes are not repeated.
fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

/// 2 for invalid arguments or settings, 1 for everything else.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    let mistaken = error.is::<Usage>()
        || error.is::<starling_envs::UnknownEnv>()
        || error.downcast_ref().is_some_and(QueueError::is_mistake)
        || error.downcast_ref().is_some_and(is_mistaken_engine)
        || error.downcast_ref().is_some_and(is_mistaken_record)
        || error.downcast_ref().is_some_and(|error| match error {
            SettingsError::Engine(error) | SettingsError::Run { source: error, .. } => {
                is_mistaken_engine(error)
            }
            SettingsError::Record(error) => is_mistaken_record(error),
            _ => true,
        })
        || error
            .downcast_ref()
            .is_some_and(|error| matches!(error, BenchError::NoEnv(_)));
    ExitCode::from(if mistaken { 2 } else { 1 })
}

fn is_mistaken_engine(error: &EngineError) -> bool {
    match error {
        EngineError::Config(_)
        | EngineError::UnknownEnv(_)
        | EngineError::UnknownAlgo(_)
        | EngineError::Device(_) => true,
        EngineError::Record(error) => is_mistaken_record(error),
        _ => false,
    }
}

fn is_mistaken_record(error: &crate::record::Error) -> bool {
    use crate::record::Error;
    matches!(
        error,
        Error::NotARun { .. }
            | Error::NoSuchRun { .. }
            | Error::SeveralRuns { .. }
            | Error::BadName { .. }
            | Error::NoColumn { .. }
            | Error::NoSetting { .. }
    )
}
