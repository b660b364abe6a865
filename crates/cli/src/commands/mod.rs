//! The `starling` command: one file per subcommand.
//!
//! Results go to standard output, progress and errors to standard error. Exit codes: 0 for
//! success, 1 for failure, 2 for what the user wrote, 130 after Ctrl-C or SIGTERM.

#![expect(clippy::print_stderr, reason = "a command line prints")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::EngineError;
use crate::settings::SettingsError;

/// Prints a line of results. Whoever reads them may stop reading: that ends the program quietly.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::commands::write_line(&format!($($text)*))
    };
}

mod atari;
mod bench;
mod check_env;
mod completions;
mod config;
mod doctor;
mod eval;
mod list;
mod play;
mod plot;
mod profile;
mod progress;
mod resume;
mod roms;
mod selftest;
mod train;

/// Deep reinforcement learning, from a laptop to a cluster
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

Environment variables:
  STARLING_LIBTORCH  a torch 2.11.0 folder to use instead of the downloaded one (read by ./starling)
  STARLING_ROMS      a folder of Atari ROMs to use before the user's cache
  NO_COLOR           no colours";

#[derive(Subcommand)]
enum Command {
    /// Train an agent
    Train(train::Args),
    /// Go on with a run from its latest checkpoint
    Resume(resume::Args),
    /// Play episodes with a trained agent and report its returns
    Eval(eval::Args),
    /// Play an Atari game, by chance or by a trained agent: in the terminal and into a GIF
    Play(play::Args),
    /// Draw learning curves of one or more runs (HTML and PNG)
    Plot(plot::Args),
    /// Show what there is: environments, algorithms, presets
    List(list::Args),
    /// Show the settings that a run would have
    Config(config::Args),
    /// Measure environments, replay and collection on this machine
    Bench(bench::Args),
    /// Check an environment for mistakes that make learning fail
    CheckEnv(check_env::Args),
    /// Report what is found on this machine, and how to mend what is missing
    Doctor(doctor::Args),
    /// Get the ROMs of the Atari games, and list those that are here
    Roms(roms::Args),
    /// Compare our Atari with the reference
    Atari(atari::Args),
    /// Test that a GPU computes what the CPU computes, for every algorithm
    Selftest(selftest::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

/// Runs the command that the program's arguments ask for, and says how it ended.
///
/// A program that adds environments of its own to the table and then calls this has them in
/// every command; see `examples/custom_env.rs`.
pub fn main() -> ExitCode {
    // libtorch looks for its devices at its first use: before anything else.
    starling_nets::load_cuda();
    let result = match Cli::parse().command {
        Command::Train(args) => train::run(args),
        Command::Resume(args) => resume::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Play(args) => play::run(args),
        Command::Plot(args) => plot::run(args),
        Command::List(args) => list::run(args),
        Command::Config(args) => config::run(args),
        Command::Bench(args) => bench::run(args),
        Command::CheckEnv(args) => check_env::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Roms(args) => roms::run(args),
        Command::Atari(args) => atari::run(args),
        Command::Selftest(args) => selftest::run(args),
        Command::Completions(args) => completions::run::<Cli>(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", explain(&error));
            exit_code(&error)
        }
    }
}

fn write_line(line: &str) {
    use std::io::Write as _;
    let end = if line.ends_with('\n') { "" } else { "\n" };
    let written = std::io::stdout().write_all(format!("{line}{end}").as_bytes());
    if written.is_err() {
        std::process::exit(0);
    }
}

/// The error with its causes. Those that it quotes already are not said twice.
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

/// 2 for what the user wrote, 1 for everything else.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    let engine = match error.downcast_ref::<SettingsError>() {
        Some(SettingsError::Engine(engine)) => Some(engine),
        Some(SettingsError::Record(_)) => None,
        Some(_) => return ExitCode::from(2),
        None => error.downcast_ref::<EngineError>(),
    };
    match engine {
        Some(
            EngineError::Config(_)
            | EngineError::UnknownEnv(_)
            | EngineError::UnknownAlgo(_)
            | EngineError::Device(_),
        ) => ExitCode::from(2),
        _ if error.is::<starling_envs::UnknownEnv>() => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}
