//! `CorridorFamily-v0`: find the cheese in a corridor. Where it lies is the task, which the agent does
//! not see: a family for meta-learning.

use serde::{Deserialize, Serialize};
use serde_json::json;
use starling::envs::meta::{Family, TaskSettings, held_out};
use starling::envs::{Action, Env, EnvError, EnvSpec, ObsMut, Rng, Space, Step};
use starling::{JsonSchema, Schema};

/// The entry for the table of environments.
pub fn spec() -> EnvSpec {
    EnvSpec {
        max_episode_steps: Some(20),
        options: Schema::of::<CorridorOptions>,
        for_evaluation: held_out,
        tasks: Some(Family {
            settings: |options| Ok(options.read::<CorridorOptions>()?.tasks),
            task: |options, number| {
                let total = options.read::<CorridorOptions>()?.tasks.total();
                Ok(json!({"cheese": place_of(number, total)}))
            },
        }),
        ..EnvSpec::new("CorridorFamily-v0", "meta", "find the cheese", |_, options| {
            Ok(Box::new(Corridor::new(options.read()?)))
        })
    }
}

/// Places from −1 to 1, those of evaluations between those of training.
fn place_of(number: usize, total: usize) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_894_8;
    let turns = number as f64 * GOLDEN;
    let spread = if total > 1 { 2.0 } else { 0.0 };
    spread * (turns - turns.floor()) - spread / 2.0
}

/// The settings.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(crate = "starling::schemars")]
pub struct CorridorOptions {
    /// The task: where the cheese is.
    #[schemars(range(min = -1.0, max = 1.0))]
    pub cheese: f64,
    /// Its tasks.
    #[serde(flatten)]
    pub tasks: TaskSettings,
}

pub struct Corridor {
    options: CorridorOptions,
    place: f64,
}

impl Corridor {
    fn new(options: CorridorOptions) -> Self {
        Self {
            options,
            place: 0.0,
        }
    }

    fn show(&self, mut obs: ObsMut<'_>) {
        let mut seen = vec![self.place as f32];
        if self.options.tasks.show_task {
            seen.push(self.options.cheese as f32);
        }
        obs.write(&seen);
    }
}

impl Env for Corridor {
    fn observation_space(&self) -> Space {
        let seen = if self.options.tasks.show_task { 2 } else { 1 };
        Space::floats(&[seen], -1.0, 1.0)
    }

    fn action_space(&self) -> Space {
        Space::floats(&[1], -1.0, 1.0)
    }

    fn reset(&mut self, _: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.place = 0.0;
        self.show(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let step = f64::from(action.continuous(1)?[0]);
        self.place = (self.place + 0.2 * step).clamp(-1.0, 1.0);
        self.show(obs);
        Ok(Step {
            reward: -(self.place - self.options.cheese).abs() as f32,
            terminated: false,
            truncated: false,
        })
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        Some(self.place.to_le_bytes().to_vec())
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        let bytes = snapshot.try_into();
        let bytes = bytes.map_err(|_| EnvError::Snapshot("it has eight bytes".into()))?;
        self.place = f64::from_le_bytes(bytes);
        Ok(())
    }
}
