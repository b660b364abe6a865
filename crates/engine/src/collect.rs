//! An actor: one batch of environments and a policy, filling rollouts.

use serde::{Deserialize, Serialize};
use starling_algos::{Acting, Algorithm, Experience, Part, Policy};
use starling_envs::{
    EnvError, EnvOptions, EnvSpec, Episode, Rng, Rollout, VecEnv, VecSnapshot, stream,
};
use starling_nets::{Device, ShapeMismatch};
use starling_tree::{Array, Tree};

use crate::Weights;
use crate::error::Unusable;

/// Steps its environments with its policy and fills one rollout after the other.
pub struct Actor {
    envs: VecEnv,
    policy: Box<dyn Policy>,
    rngs: Vec<Rng>,
    state: Tree<Array>,
    rollout: Rollout,
    place: Place,
    decorrelate_steps: u64,
    version: Option<u64>,
    started: bool,
}

/// Which environments of the run an actor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of its first environment.
    pub first_env: usize,
    /// How many it has.
    pub envs: usize,
    /// Environments of the whole run.
    pub total_envs: usize,
}

/// Everything from which an actor continues exactly.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ActorSnapshot {
    envs: VecSnapshot,
    rngs: Vec<Rng>,
    /// Memory of the policy and present observations, as the bytes of their arrays in order.
    state: Vec<Vec<u8>>,
    obs: Vec<Vec<u8>>,
    started: bool,
}

impl Actor {
    /// An actor with environments of its own, all random streams following from `seed`.
    pub fn new(
        spec: &EnvSpec,
        options: &EnvOptions,
        algorithm: &dyn Algorithm,
        device: Device,
        seed: u64,
        place: Place,
        decorrelate_steps: u64,
    ) -> Result<Self, EnvError> {
        let first = place.first_env as u64;
        let mut envs = VecEnv::new(spec, options, place.envs, seed, "env", first)?;
        envs.set_discount(algorithm.discount());
        let steps = match algorithm.experience() {
            Experience::Rollouts { steps } => steps,
            Experience::Transitions(needs) => needs.steps,
        };
        Ok(Self::with_envs(
            envs,
            algorithm.policy(device),
            steps,
            seed,
            place,
            decorrelate_steps,
        ))
    }

    /// An actor over given environments, filling rollouts of `steps` steps.
    pub fn with_envs(
        envs: VecEnv,
        policy: Box<dyn Policy>,
        steps: usize,
        seed: u64,
        place: Place,
        decorrelate_steps: u64,
    ) -> Self {
        let rollout = Rollout::new(
            steps,
            place.envs,
            envs.observation_space(),
            envs.action_space(),
            envs.legal_actions(),
            &policy.records(),
            &policy.state(),
        );
        let indices = place.first_env..place.first_env + place.envs;
        Self {
            rngs: indices.map(|i| stream(seed, "policy", i as u64)).collect(),
            state: Tree::zeros(&policy.state(), &[place.envs]),
            envs,
            policy,
            rollout,
            place,
            decorrelate_steps,
            version: None,
            started: false,
        }
    }

    /// Fills the rollout with the steps that follow. `env_steps` is how far the run has come.
    pub fn collect(&mut self, weights: &Weights, env_steps: u64) -> Result<(), CollectError> {
        if self.version != Some(weights.version) {
            self.policy.load(&weights.values)?;
            self.version = Some(weights.version);
        }
        if self.started {
            self.rollout.carry_over();
        } else if self.decorrelate_steps > 0 {
            self.envs
                .decorrelate(self.decorrelate_steps, &mut self.rollout)?;
            self.started = true;
        } else {
            self.envs.reset(&mut self.rollout)?;
            self.started = true;
        }
        self.rollout.version = weights.version;
        self.rollout.state.clone_from(&self.state);
        for t in 0..self.rollout.steps() {
            let acting = Acting {
                explore: true,
                env_steps: env_steps + (t * self.place.total_envs) as u64,
                first_env: self.place.first_env,
                total_envs: self.place.total_envs,
                rngs: &mut self.rngs,
                state: &mut self.state,
            };
            self.policy.act(t, &mut self.rollout, acting);
            self.envs.step(t, &mut self.rollout)?;
            forget_ended(&mut self.state, &self.rollout, t);
        }
        let acting = Acting {
            explore: true,
            env_steps,
            first_env: self.place.first_env,
            total_envs: self.place.total_envs,
            rngs: &mut self.rngs,
            state: &mut self.state,
        };
        let rollout = &mut self.rollout;
        self.policy.finish(0, &mut [Part { rollout, acting }]);
        Ok(())
    }

    /// What was collected last.
    pub fn rollout(&self) -> &Rollout {
        &self.rollout
    }

    /// Hands over the rollout and goes on with another buffer, `spare` if there is one.
    pub(crate) fn take_rollout(&mut self, spare: Option<Rollout>) -> Rollout {
        let mut next = spare.unwrap_or_else(|| self.rollout.clone());
        // The next rollout begins where this one ended: its last row has to be there.
        let last = self.rollout.steps();
        let copied = next.obs.copy_at(&[last], &self.rollout.obs, &[last]);
        debug_assert!(copied.is_ok(), "all buffers of an actor are alike");
        if let (Some(next), Some(legal)) = (&mut next.legal, &self.rollout.legal) {
            let row = legal.at(&[last]);
            next.at_mut(&[last]).bytes.copy_from_slice(row.bytes);
        }
        std::mem::replace(&mut self.rollout, next)
    }

    /// Episodes that ended since the last call.
    pub fn episodes(&mut self) -> Vec<Episode> {
        self.envs.finished().collect()
    }

    /// Everything from which [`restore`](Actor::restore) continues exactly.
    pub(crate) fn snapshot(&self) -> ActorSnapshot {
        let last = self.rollout.steps();
        let obs = self.rollout.obs.leaves().into_iter();
        let state = self.state.leaves().into_iter();
        ActorSnapshot {
            envs: self.envs.snapshot(),
            rngs: self.rngs.clone(),
            state: state.map(|(_, array)| array.bytes().to_vec()).collect(),
            obs: obs
                .map(|(_, array)| array.at(&[last]).bytes.to_vec())
                .collect(),
            started: self.started,
        }
    }

    /// Continues from a snapshot; false if some environment could not be saved and starts a new
    /// episode.
    pub(crate) fn restore(&mut self, snapshot: &ActorSnapshot) -> Result<bool, Unusable> {
        let differs = || Unusable("it is of other environments or another network".into());
        if snapshot.rngs.len() != self.rngs.len() {
            return Err(differs());
        }
        let last = self.rollout.steps();
        let mut obs = self.rollout.obs.leaves_mut();
        let mut state = self.state.leaves_mut();
        if obs.len() != snapshot.obs.len() || state.len() != snapshot.state.len() {
            return Err(differs());
        }
        for ((_, array), bytes) in obs.iter_mut().zip(&snapshot.obs) {
            for row in [0, last] {
                let view = array.at_mut(&[row]);
                if view.bytes.len() != bytes.len() {
                    return Err(differs());
                }
                view.bytes.copy_from_slice(bytes);
            }
        }
        for ((_, array), bytes) in state.iter_mut().zip(&snapshot.state) {
            if array.bytes().len() != bytes.len() {
                return Err(differs());
            }
            array.bytes_mut().copy_from_slice(bytes);
        }
        self.rngs.clone_from(&snapshot.rngs);
        self.started = snapshot.started;
        if self.started {
            self.envs.restore(&snapshot.envs, &mut self.rollout)?;
            for b in snapshot.envs.restarted() {
                for (_, array) in self.state.leaves_mut() {
                    array.at_mut(&[b]).bytes.fill(0);
                }
            }
            // Restoring writes row 0; the next rollout is carried over from the last row.
            for (_, array) in self.rollout.obs.leaves_mut() {
                copy_row(array, 0, last);
            }
            if let Some(legal) = &mut self.rollout.legal {
                copy_row(legal, 0, last);
            }
        }
        Ok(snapshot.envs.is_complete())
    }
}

/// What goes wrong while collecting.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// An environment failed.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The weights do not fit the policy.
    #[error(transparent)]
    Weights(#[from] ShapeMismatch),
}

impl From<CollectError> for crate::EngineError {
    fn from(error: CollectError) -> Self {
        match error {
            CollectError::Env(error) => error.into(),
            CollectError::Weights(error) => error.into(),
        }
    }
}

/// The policy's memory is zero where an episode begins.
pub(crate) fn forget_ended(state: &mut Tree<Array>, rollout: &Rollout, t: usize) {
    if state.is_empty() {
        return;
    }
    let (terminated, truncated) = (rollout.terminated.at(&[t]), rollout.truncated.at(&[t]));
    for (_, array) in state.leaves_mut() {
        for b in 0..rollout.envs() {
            if terminated.bytes[b] != 0 || truncated.bytes[b] != 0 {
                array.at_mut(&[b]).bytes.fill(0);
            }
        }
    }
}

fn copy_row(array: &mut Array, from: usize, to: usize) {
    let row = array.at(&[0]).bytes.len();
    array
        .bytes_mut()
        .copy_within(from * row..(from + 1) * row, to * row);
}
