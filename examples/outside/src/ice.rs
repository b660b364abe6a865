//! `Ice-v0`: cross a square of ice from one corner to the other. Sometimes the agent slips and
//! moves in a random direction.

use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use starling::envs::render::{Picture, cells, colours};
use starling::envs::{Action, Env, EnvError, EnvSpec, ObsMut, Rng, Space, Step};
use starling::{JsonSchema, Schema};

/// The entry for the table of environments.
pub fn spec() -> EnvSpec {
    EnvSpec {
        max_episode_steps: Some(100),
        options: Schema::of::<IceOptions>,
        ..EnvSpec::new("Ice-v0", "ice", "cross a square of slippery ice", |_, options| {
            Ok(Box::new(Ice::new(options.read()?)))
        })
    }
}

/// The settings: `env.side=6` on the command line, `env: {id: Ice-v0, side: 6}` in a file.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(crate = "starling::schemars")]
pub struct IceOptions {
    /// Cells along each side.
    #[schemars(range(min = 2, max = 50), extend("unit" = "cells"))]
    pub side: u8,
    /// Probability of a step in a random direction.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub slip: f64,
}

impl Default for IceOptions {
    fn default() -> Self {
        Self { side: 5, slip: 0.2 }
    }
}

pub struct Ice {
    options: IceOptions,
    row: u8,
    column: u8,
}

impl Ice {
    fn new(options: IceOptions) -> Self {
        Self {
            options,
            row: 0,
            column: 0,
        }
    }

    fn last(&self) -> u8 {
        self.options.side - 1
    }

    fn show(&self, mut obs: ObsMut<'_>) {
        let place = |at: u8| f32::from(at) / f32::from(self.last());
        obs.write(&[place(self.row), place(self.column)]);
    }
}

impl Env for Ice {
    fn observation_space(&self) -> Space {
        Space::floats(&[2], 0.0, 1.0)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 4 }
    }

    fn reset(&mut self, _: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        (self.row, self.column) = (0, 0);
        self.show(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let wanted = action.discrete(4)?;
        let slips = rng.random_bool(self.options.slip);
        let way = if slips { rng.random_range(0..4) } else { wanted };
        match way {
            0 => self.row = self.row.saturating_sub(1),
            1 => self.row = (self.row + 1).min(self.last()),
            2 => self.column = self.column.saturating_sub(1),
            _ => self.column = (self.column + 1).min(self.last()),
        }
        self.show(obs);
        let across = (self.row, self.column) == (self.last(), self.last());
        Ok(Step {
            reward: if across { 1.0 } else { -0.01 },
            terminated: across,
            truncated: false,
        })
    }

    fn render(&self) -> Result<Picture, EnvError> {
        let side = usize::from(self.options.side);
        let agent = (usize::from(self.row), usize::from(self.column));
        Ok(cells(side, side, 400 / side, |row, column| {
            let place = (row, column);
            let goal = (place == (side - 1, side - 1)).then_some(colours::GOAL);
            if place == agent {
                Some(colours::AGENT)
            } else {
                goal
            }
        }))
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(vec![self.row, self.column])
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        let &[row, column] = snapshot else {
            return Err(EnvError::Snapshot("it has two bytes".into()));
        };
        (self.row, self.column) = (row.min(self.last()), column.min(self.last()));
        Ok(())
    }
}
