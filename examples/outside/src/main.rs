//! A program outside Starling's checkout: `starling` with its own environment and algorithm.
//!
//! ```text
//! cargo run --release -- list envs Ice
//! cargo run --release -- train Ice-v0 --steps 20000 env.side=6 env.slip=0.1
//! cargo run --release -- train CartPole-v1 --algo reinforce algo.hidden=32
//! ```

mod ice;
mod reinforce;

use std::error::Error;
use std::process::ExitCode;

use starling::{algos, envs};

fn main() -> ExitCode {
    match add() {
        Ok(()) => starling::commands::main(),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Adds everything of this program's own to the tables.
fn add() -> Result<(), Box<dyn Error>> {
    envs::registry::add(ice::spec())?;
    algos::registry::add(reinforce::spec())?;
    Ok(())
}
