//! An environment of your own, known to every command.
//!
//! ```text
//! cargo run --release --example custom_env -- check-env Corridor-v0
//! cargo run --release --example custom_env -- train Corridor-v0 --steps 50000
//! ```
//!
//! A corridor of 11 cells: the agent starts in the middle, cheese lies at one end, and a sign
//! at the start says which. The reward is 1 at the cheese and a small cost per step elsewhere.

#![expect(clippy::print_stderr, reason = "a program says why it ends")]

use std::process::ExitCode;

use rand::RngExt as _;
use starling::envs::{Action, Env, EnvError, EnvSpec, ObsMut, Rng, Space, Step, registry};

const CELLS: usize = 11;

#[derive(Default)]
struct Corridor {
    cell: usize,
    cheese_right: bool,
}

impl Corridor {
    fn show(&self, mut obs: ObsMut<'_>) {
        let place = self.cell as f32 / (CELLS - 1) as f32;
        let sign = if self.cheese_right { 1.0 } else { -1.0 };
        obs.write(&[place, sign]);
    }
}

impl Env for Corridor {
    fn observation_space(&self) -> Space {
        Space::vector(&[0.0, -1.0], &[1.0, 1.0])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.cell = CELLS / 2;
        self.cheese_right = rng.random();
        self.show(obs);
        Ok(())
    }

    fn step(&mut self, action: Action<'_>, _: &mut Rng, obs: ObsMut<'_>) -> Result<Step, EnvError> {
        match action.discrete(2)? {
            0 => self.cell = self.cell.saturating_sub(1),
            _ => self.cell = (self.cell + 1).min(CELLS - 1),
        }
        self.show(obs);
        let cheese = if self.cheese_right { CELLS - 1 } else { 0 };
        let found = self.cell == cheese;
        Ok(Step {
            reward: if found { 1.0 } else { -0.02 },
            terminated: found,
            truncated: false,
        })
    }

    // With these two a run of this environment can be resumed exactly.
    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(vec![self.cell as u8, u8::from(self.cheese_right)])
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        let &[cell, cheese_right] = snapshot else {
            return Err(EnvError::Snapshot("it has two bytes".into()));
        };
        self.cell = usize::from(cell).min(CELLS - 1);
        self.cheese_right = cheese_right != 0;
        Ok(())
    }
}

fn main() -> ExitCode {
    let added = registry::add(EnvSpec {
        id: "Corridor-v0",
        family: "custom",
        max_episode_steps: Some(50),
        reward_threshold: None,
        summary: "find the cheese at the end that the sign points to",
        options: &[],
        bare: |_, _| Ok(Box::new(Corridor::default())),
    });
    match added {
        Ok(()) => starling::commands::main(),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
