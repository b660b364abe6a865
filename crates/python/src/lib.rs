//! Environments written in Python, with Gymnasium's interface, in worker processes.
//!
//! `gym:LunarLander-v3` is an environment of Gymnasium's own table, `python:my_pkg.envs:make_env` and
//! `python:./file.py:Class` are what a function or a class makes. [`add`] makes these ids known.
//!
//! Each worker runs `worker.py`, which is part of the program, in the user's Python. It steps several
//! environments. Actions and observations are in memory that it shares with this process; a byte
//! through a pipe says that it is its turn. No process ever waits by spinning.
//!
//! Read first: `PythonBatch` (`batch.rs`), `Fleet` (`fleet.rs`), `worker.py`.

mod batch;
mod description;
mod fleet;
pub mod interpreter;
mod memory;
mod options;
mod worker;

pub use batch::PythonBatch;
pub use options::PythonOptions;

use starling_envs::registry::{self, Scheme};
use starling_envs::{EnvSpec, Schema};

/// The family of these environments, which presets are for.
pub const FAMILY: &str = "python";

/// Makes the ids of these environments known.
pub fn add() {
    registry::add_scheme(Scheme {
        prefix: "gym:",
        pattern: "gym:ID",
        summary: "any environment of Gymnasium's table, in Python: gym:LunarLander-v3, \
                  gym:PACKAGE:ID",
        spec: |id| spec(id, "an environment of Gymnasium, in Python"),
    });
    registry::add_scheme(Scheme {
        prefix: "python:",
        pattern: "python:MODULE:NAME",
        summary: "your own environment in Python: python:my_pkg.envs:make_env, \
                  python:./file.py:Class",
        spec: |id| spec(id, "an environment of your own, in Python"),
    });
}

fn spec(id: &'static str, summary: &'static str) -> EnvSpec {
    EnvSpec {
        options: Schema::of::<PythonOptions>,
        for_pictures: |options| options.with(&serde_json::json!({"render": true})),
        own_limit: |spec, options| {
            let task = options.read::<PythonOptions>()?.task(spec.id);
            Ok(description::of(&task)?.limit)
        },
        ..EnvSpec::batched(id, FAMILY, summary, |id, options, count| {
            let options: PythonOptions = options.read()?;
            Ok(Box::new(PythonBatch::new(id, &options, count)?))
        })
    }
}
