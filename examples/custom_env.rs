//! An environment of your own, known to every command.
//!
//! ```text
//! cargo run --release --example custom_env -- check-env Corridor-v0
//! cargo run --release --example custom_env -- play Corridor-v0
//! cargo run --release --example custom_env -- train Corridor-v0 --steps 50000 env.cells=21
//! ```
//!
//! A corridor: the agent starts in the middle, cheese is at one end, and a sign says which. The
//! reward is 1 at the cheese and a small cost per step elsewhere. Its length and that cost are
//! settings.

#![expect(clippy::print_stderr, reason = "a program says why it ends")]

use std::process::ExitCode;

use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use starling::envs::render::{Canvas, Picture, colours};
use starling::envs::{Action, Env, EnvError, EnvSpec, ObsMut, Rng, Space, Step, registry};
use starling::{JsonSchema, Schema};

/// The settings of a corridor: `env.cells=21` on the command line, `env: {cells: 21}` in a file.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(crate = "starling::schemars")]
struct CorridorOptions {
    /// Length of the corridor.
    #[schemars(range(min = 3, max = 255), extend("unit" = "cells"))]
    cells: usize,
    /// What each step costs.
    #[schemars(range(min = 0.0))]
    step_cost: f32,
}

impl Default for CorridorOptions {
    fn default() -> Self {
        Self {
            cells: 11,
            step_cost: 0.02,
        }
    }
}

struct Corridor {
    options: CorridorOptions,
    cell: usize,
    cheese_right: bool,
}

impl Corridor {
    fn new(options: CorridorOptions) -> Self {
        Self {
            cell: options.cells / 2,
            cheese_right: false,
            options,
        }
    }

    fn last(&self) -> usize {
        self.options.cells - 1
    }

    fn show(&self, mut obs: ObsMut<'_>) {
        let place = self.cell as f32 / self.last() as f32;
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
        self.cell = self.options.cells / 2;
        self.cheese_right = rng.random();
        self.show(obs);
        Ok(())
    }

    fn step(&mut self, action: Action<'_>, _: &mut Rng, obs: ObsMut<'_>) -> Result<Step, EnvError> {
        match action.discrete(2)? {
            0 => self.cell = self.cell.saturating_sub(1),
            _ => self.cell = (self.cell + 1).min(self.last()),
        }
        self.show(obs);
        let cheese = if self.cheese_right { self.last() } else { 0 };
        let found = self.cell == cheese;
        Ok(Step {
            reward: if found { 1.0 } else { -self.options.step_cost },
            terminated: found,
            truncated: false,
        })
    }

    // With this one it can be shown.
    fn render(&self) -> Result<Picture, EnvError> {
        let mut canvas = Canvas::new(600, 100, colours::PAPER);
        let x = |cell: usize| 30.0 + 540.0 * cell as f64 / self.last() as f64;
        canvas.line([x(0), 70.0], [x(self.last()), 70.0], 4.0, colours::GROUND);
        let cheese = if self.cheese_right { self.last() } else { 0 };
        canvas.circle([x(cheese), 50.0], 12.0, colours::GOAL);
        canvas.circle([x(self.cell), 50.0], 16.0, colours::AGENT);
        Ok(canvas.finish())
    }

    // With these two a run of this environment can be resumed exactly.
    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(vec![self.cell as u8, u8::from(self.cheese_right)])
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        let &[cell, cheese_right] = snapshot else {
            return Err(EnvError::Snapshot("it has two bytes".into()));
        };
        self.cell = usize::from(cell).min(self.last());
        self.cheese_right = cheese_right != 0;
        Ok(())
    }
}

fn main() -> ExitCode {
    let added = registry::add(EnvSpec {
        max_episode_steps: Some(50),
        options: Schema::of::<CorridorOptions>,
        ..EnvSpec::new(
            "Corridor-v0",
            "custom",
            "find the cheese at the end that the sign points to",
            |_, options| Ok(Box::new(Corridor::new(options.read()?))),
        )
    });
    match added {
        Ok(()) => starling::commands::main(),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
