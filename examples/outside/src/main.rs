//! A program outside Starling's checkout: `starling` with environments of its own.
//!
//! ```text
//! cargo run --release -- list envs Ice
//! cargo run --release -- train Ice-v0 --steps 20000 env.side=6 env.slip=0.1
//! ```

mod ice;

use std::error::Error;
use std::process::ExitCode;

use starling::envs::registry;

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
    registry::add(ice::spec())?;
    Ok(())
}
