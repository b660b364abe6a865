//! A crew: a batch of environments with everything that collection needs except a policy.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use starling_algos::{Acting, Algorithm, Experience, Part, carried_state, survives_episode};
use starling_envs::{
    EnvError, EnvOptions, EnvSpec, Episode, Pulse, RestartBudget, Rng, Rollout, VecEnv,
    VecSnapshot, stream,
};
use starling_nets::ShapeMismatch;
use starling_tree::{Array, Spec, Tree};

use crate::error::Unusable;
use crate::link::Place;

/// A batch of environments with everything that collecting needs but a policy.
pub(crate) struct Crew {
    envs: Box<dyn VecEnv>,
    rngs: Vec<Rng>,
    state: Tree<Array>,
    rollout: Rollout,
    place: Place,
    decorrelate_steps: u64,
    started: bool,
    /// True in training; in evaluation the policy shows its best.
    explore: bool,
    /// Environments of the vector that were restarted in the last step.
    restarted: Vec<usize>,
    /// The run is to stop: what need not be done now is left out.
    hurry: Arc<AtomicBool>,
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

/// From what all crews of a run are made.
pub(crate) struct Recruits<'a> {
    pub(crate) spec: &'a EnvSpec,
    pub(crate) options: &'a EnvOptions,
    pub(crate) discount: f64,
    pub(crate) steps: usize,
    pub(crate) records: Tree<Spec>,
    pub(crate) state: Tree<Spec>,
    pub(crate) seed: u64,
    pub(crate) total_envs: usize,
    pub(crate) decorrelate_steps: u64,
}

impl Recruits<'_> {
    /// A crew with `envs` environments from number `first_env` on, all random streams following
    /// from the seed.
    pub(crate) fn crew(&self, first_env: usize, envs: usize) -> Result<Crew, EnvError> {
        let (spec, options, seed) = (self.spec, self.options, self.seed);
        let mut vector = spec.make_vec(options, envs, seed, "env", first_env as u64)?;
        vector.set_discount(self.discount);
        let place = Place {
            first_env,
            envs,
            total_envs: self.total_envs,
        };
        let (records, state) = (&self.records, &self.state);
        let mut crew = Crew::new(
            vector,
            self.steps,
            records,
            state,
            policy_rngs(seed, place),
            place,
        );
        crew.decorrelate_steps = self.decorrelate_steps;
        Ok(crew)
    }
}

/// Steps of each environment per rollout.
pub(crate) fn rollout_steps(algorithm: &dyn Algorithm) -> usize {
    match algorithm.experience() {
        Experience::Rollouts { steps } => steps,
        Experience::Transitions(needs) => needs.steps,
    }
}

impl Crew {
    pub(super) fn new(
        envs: Box<dyn VecEnv>,
        steps: usize,
        records: &Tree<Spec>,
        state: &Tree<Spec>,
        rngs: Vec<Rng>,
        place: Place,
    ) -> Self {
        let rollout = Rollout::new(
            steps,
            place.envs,
            envs.observation_space(),
            envs.action_space(),
            envs.legal_actions(),
            records,
            &carried_state(state),
        );
        Self {
            rngs,
            state: Tree::zeros(state, &[place.envs]),
            envs,
            rollout,
            place,
            decorrelate_steps: 0,
            started: false,
            explore: true,
            restarted: Vec::new(),
            hurry: Arc::default(),
        }
    }

    pub(crate) fn restart_failed(
        &mut self,
        spec: &EnvSpec,
        options: &EnvOptions,
        budget: &Arc<RestartBudget>,
    ) -> Result<(), EnvError> {
        let first = self.place.first_env;
        restart_failed(&mut *self.envs, first, spec, options, budget)
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// To be set when the run is to stop.
    pub(crate) fn hurry(&self) -> &Arc<AtomicBool> {
        &self.hurry
    }

    /// Shows whether the environments are moving.
    pub(crate) fn pulse(&self) -> &Arc<Pulse> {
        self.envs.pulse()
    }

    /// Shows it there from now on.
    pub(crate) fn set_pulse(&mut self, pulse: Arc<Pulse>) {
        self.envs.set_pulse(pulse);
    }

    pub(crate) fn rollout(&self) -> &Rollout {
        &self.rollout
    }

    /// Makes the rollout ready for its first step.
    pub(crate) fn begin(&mut self, version: u64) -> Result<(), EnvError> {
        if self.started {
            self.rollout.carry_over();
        } else if self.decorrelate_steps > 0 {
            self.envs
                .decorrelate(self.decorrelate_steps, &self.hurry, &mut self.rollout)?;
            self.started = true;
        } else {
            self.envs.reset(&mut self.rollout)?;
            self.started = true;
        }
        self.note_restarts();
        self.rollout.version = version;
        for (path, array) in self.rollout.state.leaves_mut() {
            if let Some(Tree::Leaf(now)) = self.state.get(&path) {
                array.bytes_mut().copy_from_slice(now.bytes());
            }
        }
        Ok(())
    }

    /// What a policy needs to choose the actions of row `t`.
    pub(crate) fn part(&mut self, t: usize, env_steps: u64) -> Part<'_> {
        Part {
            rollout: &mut self.rollout,
            acting: Acting {
                explore: self.explore,
                env_steps: env_steps + (t * self.place.total_envs) as u64,
                first_env: self.place.first_env,
                total_envs: self.place.total_envs,
                rngs: &mut self.rngs,
                state: &mut self.state,
            },
        }
    }

    /// Takes the actions of row `t`.
    pub(crate) fn step(&mut self, t: usize) -> Result<(), EnvError> {
        self.envs.step(t, &mut self.rollout)?;
        self.note_restarts();
        forget_ended(&mut self.state, &self.rollout, t);
        Ok(())
    }

    /// From now on the policy does not explore.
    pub(super) fn show_best(&mut self) {
        self.explore = false;
    }

    /// Environments of the vector that were restarted in the last step.
    pub(super) fn restarted(&self) -> &[usize] {
        &self.restarted
    }

    /// The policy's memory of an environment becomes zero, also what it keeps over a trial.
    pub(super) fn forget(&mut self, env: usize) {
        for (_, array) in self.state.leaves_mut() {
            array.at_mut(&[env]).bytes.fill(0);
        }
    }

    fn note_restarts(&mut self) {
        self.restarted.clear();
        for restart in self.envs.restarts() {
            tracing::warn!("environment failed; restarting it: {}", restart.cause);
            self.restarted.push(restart.env);
        }
    }

    /// Episodes that ended since the last call.
    pub(crate) fn episodes(&mut self) -> Vec<Episode> {
        self.envs.finished().collect()
    }

    /// Hands over the rollout and continues with another buffer, `spare` if there is one.
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

    /// Everything from which [`restore`](Crew::restore) continues exactly.
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
        let differs = || Unusable("it belongs to other environments or another network".into());
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
                self.forget(b);
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

/// From now on environments of this kind that report an error are restarted. `first` is the number
/// of the first of them.
pub(crate) fn restart_failed(
    envs: &mut dyn VecEnv,
    first: usize,
    spec: &EnvSpec,
    options: &EnvOptions,
    budget: &Arc<RestartBudget>,
) -> Result<(), EnvError> {
    let (spec, options) = (spec.clone(), options.clone());
    let make = move |env: usize| spec.make_numbered(&options, first + env);
    envs.restart_failed(Box::new(make), Arc::clone(budget))
}

/// The streams from which actions are drawn, one for each environment of a place.
pub(super) fn policy_rngs(seed: u64, place: Place) -> Vec<Rng> {
    let indices = place.first_env..place.first_env + place.envs;
    indices.map(|i| stream(seed, "policy", i as u64)).collect()
}

/// The policy's memory is zero where an episode begins, but for what it keeps over a trial.
fn forget_ended(state: &mut Tree<Array>, rollout: &Rollout, t: usize) {
    if state.is_empty() {
        return;
    }
    let (terminated, truncated) = (rollout.terminated.at(&[t]), rollout.truncated.at(&[t]));
    let state = state.leaves_mut().into_iter();
    for (_, array) in state.filter(|(path, _)| !survives_episode(path)) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use starling_algos::TRIAL;
    use starling_envs::Space;
    use starling_tree::DType;

    /// Of two environments the second ends its episode: its memory becomes zero, but for the part
    /// of its trial.
    #[test]
    fn what_is_known_of_a_trial_survives_an_episode() {
        let leaf = || Tree::Leaf(Array::from_slice(&[5f32, 7.0], &[2]));
        let mut state = Tree::node([
            ("hidden", leaf()),
            (TRIAL, Tree::node([("task", leaf())])),
            ("trials", leaf()),
        ]);
        let (none, space) = (Tree::empty(), Space::Discrete { n: 2 });
        let mut rollout = Rollout::new(1, 2, &space, &space, None, &none, &none);
        rollout.truncated.at_mut(&[0, 1]).write(&[1u8]);
        forget_ended(&mut state, &rollout, 0);
        let left = state.map(|array| array.as_slice::<f32>().to_vec());
        let left: Vec<_> = left.leaves().into_iter().map(|(_, row)| row[1]).collect();
        assert_eq!(left, [0.0, 7.0, 0.0]);
        assert!(state.leaves().iter().all(|(_, array)| {
            array.dtype() == DType::F32 && array.as_slice::<f32>()[0] == 5.0
        }));
    }
}
