//! A program outside Starling's checkout: `starling` with its own environment, family of tasks,
//! algorithm, network and link.
//!
//! ```text
//! cargo run --release -- list envs Ice
//! cargo run --release -- config explain env.side Ice-v0
//! cargo run --release -- train Ice-v0 --steps 20000 env.side=6 env.slip=0.1
//! cargo run --release -- train CorridorFamily-v0 env.train_tasks=10 env.eval_tasks=4 envs=10
//! cargo run --release -- train CartPole-v1 --algo reinforce algo.hidden=32
//! cargo run --release -- train CartPole-v1 algo.net.torso=fourier
//! cargo run --release -- socket-train CartPole-v1 threads=2
//! ```

mod corridor;
mod fourier;
mod ice;
mod reinforce;
mod socket;

use std::error::Error;
use std::process::ExitCode;

use starling::{algos, envs, nets};

fn main() -> ExitCode {
    match add() {
        Ok(()) => socket::command().unwrap_or_else(starling::commands::main),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Adds everything of this program's own to the tables.
fn add() -> Result<(), Box<dyn Error>> {
    envs::registry::add(ice::spec())?;
    envs::registry::add(corridor::spec())?;
    algos::registry::add(reinforce::spec())?;
    nets::torsos::add(fourier::spec())?;
    Ok(())
}
