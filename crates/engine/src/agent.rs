//! A trained policy that acts on observations from anywhere.

use std::path::Path;

use starling_algos::{Acting, Part, Policy, survives_episode};
use starling_envs::{Action, Rng, Rollout, Space, stream};
use starling_record::{Checkpoint, RunFolder, checkpoint};
use starling_tree::{Array, Tree};

use crate::run::evaluate::policy_of_checkpoint;
use crate::{EngineError, RunConfig, is_needed_to_act};

/// A trained policy with its memory: give it observations, take its actions.
///
/// ```no_run
/// use starling_engine::Agent;
///
/// let mut agent = Agent::load("runs/CartPole-v1/ppo/run-s1")?;
/// let action = agent.act(&[0.01, 0.0, 0.02, 0.0])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It acts as in an evaluation, without more exploration than its settings define for that.
/// Recurrent policies need [`reset`](Agent::reset) at the beginning of an episode, and those that
/// use rewards need [`rewarded`](Agent::rewarded) after each step.
pub struct Agent {
    policy: Box<dyn Policy>,
    action_space: Space,
    /// One step of one environment: the next observation is written behind it.
    rollout: Rollout,
    state: Tree<Array>,
    rng: [Rng; 1],
    /// An action was chosen, and what followed is to be seen.
    acted: bool,
    reward: f32,
    /// The next observation is the first of an episode.
    ended: bool,
    /// The last continuous action within its bounds.
    bounded: Vec<f32>,
}

/// An observation that was given to an [`Agent`].
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// All numbers of a space of floats.
    Floats(&'a [f32]),
    /// All bytes of a space of bytes.
    Bytes(&'a [u8]),
    /// Named parts.
    Tree(&'a Tree<Array>),
}

/// An observation that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the observation does not fit: {0}")]
pub struct WrongObservation(String);

impl Agent {
    /// The agent of a run's latest checkpoint.
    pub fn load(run: impl AsRef<Path>) -> Result<Self, EngineError> {
        let folder = RunFolder::open(run.as_ref())?;
        let checkpoints = folder.checkpoints_path();
        let (latest, _) = checkpoint::latest_with(&checkpoints, is_needed_to_act)?;
        Self::new(&RunConfig::from_value(&folder.settings()?)?, &latest)
    }

    /// The agent of a run's best checkpoint by evaluation, or of the latest if none is marked.
    pub fn load_best(run: impl AsRef<Path>) -> Result<Self, EngineError> {
        let folder = RunFolder::open(run.as_ref())?;
        match checkpoint::best_of_run(&folder, is_needed_to_act)? {
            Some(best) => Self::new(&RunConfig::from_value(&folder.settings()?)?, &best),
            None => Self::load(run),
        }
    }

    /// The agent of a checkpoint.
    pub fn new(config: &RunConfig, checkpoint: &Checkpoint) -> Result<Self, EngineError> {
        Self::with_policy(config, policy_of_checkpoint(config, checkpoint)?)
    }

    /// An agent that acts by a policy that has its weights.
    pub(crate) fn with_policy(
        config: &RunConfig,
        policy: Box<dyn Policy>,
    ) -> Result<Self, EngineError> {
        let spec = config.env_spec()?;
        let env = spec.make(&(spec.for_evaluation)(&config.env))?;
        let (observation, action_space) = (env.observation_space(), env.action_space());
        let legal = match &action_space {
            Space::Discrete { n } if env.masks_actions() => Some(*n),
            _ => None,
        };
        let (records, state) = (policy.records(), policy.state());
        Ok(Self {
            rollout: Rollout::new(1, 1, &observation, &action_space, legal, &records, &state),
            state: Tree::zeros(&state, &[1]),
            rng: [stream(config.settings.seed, "agent", 0)],
            policy,
            action_space,
            acted: false,
            reward: 0.0,
            ended: false,
            bounded: Vec::new(),
        })
    }

    /// The action for an observation, where all actions are legal.
    pub fn act<'o>(
        &mut self,
        observation: impl Into<Observation<'o>>,
    ) -> Result<Action<'_>, WrongObservation> {
        self.act_legally(observation, None)
    }

    /// The action for an observation, of those that are legal: a byte for each, 0 if it is not.
    pub fn act_legally<'o>(
        &mut self,
        observation: impl Into<Observation<'o>>,
        legal: Option<&[u8]>,
    ) -> Result<Action<'_>, WrongObservation> {
        let row = usize::from(self.acted);
        write(&mut self.rollout.obs, row, observation.into())?;
        if let Some(column) = &mut self.rollout.legal {
            let mut place = column.at_mut(&[row, 0]);
            let place = place.as_mut_slice::<u8>();
            match legal {
                Some(legal) if legal.len() == place.len() => place.copy_from_slice(legal),
                Some(legal) => {
                    let (given, wanted) = (legal.len(), place.len());
                    let text = format!("{given} legal actions were given, there are {wanted}");
                    return Err(WrongObservation(text));
                }
                None => place.fill(1),
            }
        }
        match self.acted {
            true => self.settle(),
            // Nothing was done yet that could have ended or brought a reward.
            false => (self.ended, self.reward) = (false, 0.0),
        }
        self.rollout.state.clone_from(&self.state);
        let (policy, Part { rollout, acting }) = self.part();
        policy.act(0, rollout, acting);
        self.acted = true;
        let (space, actions) = (&self.action_space, &self.rollout.actions);
        let action = Action::at(space, actions, &[0, 0]);
        Ok(action.within(space, &mut self.bounded))
    }

    /// The reward that followed the last action. Only policies that use rewards need it.
    pub fn rewarded(&mut self, reward: f32) {
        self.reward = reward;
    }

    /// The next observation is the first of an episode.
    pub fn reset(&mut self) {
        self.ended = true;
    }

    /// The same agent with another random stream.
    pub fn with_rng(self, rng: Rng) -> Self {
        Self { rng: [rng], ..self }
    }

    /// Advances the memory past the last action: its reward and the next observation are known.
    fn settle(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        self.rollout.rewards.as_mut_slice::<f32>()[0] = std::mem::take(&mut self.reward);
        self.rollout.terminated.as_mut_slice::<u8>()[0] = u8::from(ended);
        if ended {
            let memories = self.state.leaves_mut().into_iter();
            for (_, memory) in memories.filter(|(path, _)| !survives_episode(path)) {
                memory.bytes_mut().fill(0);
            }
        }
        let (policy, part) = self.part();
        policy.finish(0, &mut [part]);
        self.rollout.carry_over();
    }

    fn part(&mut self) -> (&mut dyn Policy, Part<'_>) {
        let part = Part {
            rollout: &mut self.rollout,
            acting: Acting {
                explore: false,
                env_steps: 0,
                first_env: 0,
                total_envs: 1,
                rngs: &mut self.rng,
                state: &mut self.state,
            },
        };
        (&mut *self.policy, part)
    }
}

/// Writes an observation into a row.
fn write(
    rows: &mut Tree<Array>,
    row: usize,
    observation: Observation<'_>,
) -> Result<(), WrongObservation> {
    let wrong = |text: String| Err(WrongObservation(text));
    let mut leaves = rows.leaves_mut();
    let values = match observation {
        Observation::Tree(tree) => {
            let given = tree.leaves();
            if given.len() != leaves.len() {
                let (given, wanted) = (given.len(), leaves.len());
                return wrong(format!("it has {given} parts, {wanted} are needed"));
            }
            for ((name, column), (given_name, given)) in leaves.iter_mut().zip(given) {
                let place = column.at_mut(&[row, 0]);
                if *name != given_name || place.bytes.len() != given.bytes().len() {
                    return wrong(format!("'{given_name}' is not like '{name}'"));
                }
                place.bytes.copy_from_slice(given.bytes());
            }
            return Ok(());
        }
        Observation::Floats(values) => Array::from_slice(values, &[values.len()]),
        Observation::Bytes(values) => Array::from_slice(values, &[values.len()]),
    };
    let [(_, column)] = &mut leaves[..] else {
        return wrong("it has named parts: give a tree".into());
    };
    let (dtype, wanted) = (values.dtype(), column.dtype());
    if dtype != wanted {
        return wrong(format!("it is of {dtype:?}, {wanted:?} is needed"));
    }
    let place = column.at_mut(&[row, 0]);
    if place.bytes.len() != values.bytes().len() {
        let (given, wanted) = (values.shape()[0], place.bytes.len() / dtype.size());
        return wrong(format!("it has {given} numbers, {wanted} are needed"));
    }
    place.bytes.copy_from_slice(values.bytes());
    Ok(())
}

impl<'a> From<&'a [f32]> for Observation<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::Floats(values)
    }
}

impl<'a, const N: usize> From<&'a [f32; N]> for Observation<'a> {
    fn from(values: &'a [f32; N]) -> Self {
        Self::Floats(values)
    }
}

impl<'a> From<&'a [u8]> for Observation<'a> {
    fn from(values: &'a [u8]) -> Self {
        Self::Bytes(values)
    }
}

impl<'a> From<&'a Tree<Array>> for Observation<'a> {
    fn from(tree: &'a Tree<Array>) -> Self {
        Self::Tree(tree)
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent")
            .field("action_space", &self.action_space)
            .finish_non_exhaustive()
    }
}
