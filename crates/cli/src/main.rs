//! The `starling` command: one file per subcommand under `commands/`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line prints"
)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod commands;
mod progress;

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
  starling eval runs/CartPole-v1/ppo/<run>
  starling plot runs/CartPole-v1/ppo/*

Environment variables:
  STARLING_LIBTORCH  a torch 2.11.0 folder to use instead of the downloaded one (read by ./starling)
  NO_COLOR           no colours";

#[derive(Subcommand)]
enum Command {
    /// Train an agent
    Train(commands::train::Args),
    /// Go on with a run from its latest checkpoint
    Resume(commands::resume::Args),
    /// Play episodes with a trained agent and report its returns
    Eval(commands::eval::Args),
    /// Draw learning curves of one or more runs (HTML and PNG)
    Plot(commands::plot::Args),
    /// Show what there is: environments, algorithms, presets
    List(commands::list::Args),
    /// Show the settings that a run would have
    Config(commands::config::Args),
    /// Measure environments, replay and collection on this machine
    Bench(commands::bench::Args),
    /// Check an environment for mistakes that make learning fail
    CheckEnv(commands::check_env::Args),
    /// Report what is found on this machine, and how to mend what is missing
    Doctor(commands::doctor::Args),
    /// Print a completion script for a shell
    Completions(commands::completions::Args),
}

fn main() -> ExitCode {
    // libtorch looks for its devices at its first use: before anything else.
    starling::nets::load_cuda();
    let result = match Cli::parse().command {
        Command::Train(args) => commands::train::run(args),
        Command::Resume(args) => commands::resume::run(args),
        Command::Eval(args) => commands::eval::run(args),
        Command::Plot(args) => commands::plot::run(args),
        Command::List(args) => commands::list::run(args),
        Command::Config(args) => commands::config::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::CheckEnv(args) => commands::check_env::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Completions(args) => commands::completions::run::<Cli>(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            commands::exit_code(&error)
        }
    }
}
