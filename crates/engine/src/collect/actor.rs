//! An actor: environments and a policy, filling rollouts.

use std::sync::Arc;
use std::time::Instant;

use starling_algos::{Algorithm, Part, Policy};
use starling_envs::{EnvError, EnvOptions, EnvSpec, Episode, RestartBudget, Rng, Rollout, VecEnv};
use starling_nets::Device;

use super::crew::{CollectError, Crew, Recruits, policy_rngs, rollout_steps};
use crate::link::{Place, Weights};
use crate::measure::Profile;

/// Steps its environments with its policy and fills one rollout after the other.
pub struct Actor {
    crew: Crew,
    policy: Box<dyn Policy>,
    version: Option<u64>,
}

impl Actor {
    /// An actor with new environments; all random streams derive from `seed`.
    pub fn new(
        spec: &EnvSpec,
        options: &EnvOptions,
        algorithm: &dyn Algorithm,
        device: Device,
        seed: u64,
        place: Place,
        decorrelate_steps: u64,
    ) -> Result<Self, EnvError> {
        let policy = algorithm.policy(device);
        let recruits = Recruits {
            spec,
            options,
            discount: algorithm.discount(),
            steps: rollout_steps(algorithm),
            records: policy.records(),
            state: policy.state(),
            seed,
            total_envs: place.total_envs,
            decorrelate_steps,
        };
        Ok(Self {
            crew: recruits.crew(place.first_env, place.envs)?,
            policy,
            version: None,
        })
    }

    /// An actor over given environments, filling rollouts of `steps` steps.
    pub fn with_envs(
        envs: Box<dyn VecEnv>,
        policy: Box<dyn Policy>,
        steps: usize,
        seed: u64,
        place: Place,
    ) -> Self {
        let (records, state) = (policy.records(), policy.state());
        Self {
            crew: Crew::new(
                envs,
                steps,
                &records,
                &state,
                policy_rngs(seed, place),
                place,
            ),
            policy,
            version: None,
        }
    }

    /// Fills the rollout with the steps that follow. `env_steps` is how far the run has come.
    pub fn collect(
        &mut self,
        weights: &Weights,
        env_steps: u64,
        profile: &Profile,
    ) -> Result<(), CollectError> {
        if self.version != Some(weights.version) {
            self.policy.load(&weights.values)?;
            self.version = Some(weights.version);
        }
        self.fill(weights.version, env_steps, profile)
    }

    /// The loop of all acting and stepping: fills the rollout with the weights that it has.
    fn fill(
        &mut self,
        version: u64,
        env_steps: u64,
        profile: &Profile,
    ) -> Result<(), CollectError> {
        let crew = &mut self.crew;
        crew.begin(version)?;
        for t in 0..crew.rollout().steps() {
            let began = Instant::now();
            let Part { rollout, acting } = crew.part(t, env_steps);
            self.policy.act(t, rollout, acting);
            profile.add("actor", "infer", began.elapsed());
            let began = Instant::now();
            crew.step(t)?;
            profile.add("actor", "step", began.elapsed());
        }
        let last = crew.rollout().steps();
        self.policy.finish(0, &mut [crew.part(last, env_steps)]);
        Ok(())
    }

    /// What was collected last.
    pub fn rollout(&self) -> &Rollout {
        self.crew.rollout()
    }

    /// Episodes that ended since the last call.
    pub fn episodes(&mut self) -> Vec<Episode> {
        self.crew.episodes()
    }

    /// From now on environments that report an error are restarted, within the budget.
    ///
    /// # Errors
    /// When they cannot be restarted one by one.
    pub fn restart_failed(
        &mut self,
        spec: &EnvSpec,
        options: &EnvOptions,
        budget: &Arc<RestartBudget>,
    ) -> Result<(), EnvError> {
        self.crew.restart_failed(spec, options, budget)
    }

    pub(crate) fn crew(&self) -> &Crew {
        &self.crew
    }

    pub(crate) fn crew_mut(&mut self) -> &mut Crew {
        &mut self.crew
    }
}

/// Plays with a policy that does not explore, one step of all environments at a time, for
/// evaluations and other observers.
pub struct Player {
    actor: Actor,
    profile: Profile,
}

impl Player {
    /// A policy that has its weights, over given environments. `rngs` has one stream for each of
    /// them, from which actions are drawn where the policy draws them.
    pub fn new(envs: Box<dyn VecEnv>, policy: Box<dyn Policy>, rngs: Vec<Rng>) -> Self {
        let place = Place {
            first_env: 0,
            envs: envs.len(),
            total_envs: envs.len(),
        };
        let (records, state) = (policy.records(), policy.state());
        let mut crew = Crew::new(envs, 1, &records, &state, rngs, place);
        crew.show_best();
        Self {
            actor: Actor {
                crew,
                policy,
                version: None,
            },
            profile: Profile::default(),
        }
    }

    /// One step of every environment. Its only row is what happened.
    pub fn step(&mut self) -> Result<&Rollout, CollectError> {
        self.actor.fill(0, 0, &self.profile)?;
        Ok(self.actor.rollout())
    }

    /// Episodes that ended since the last call.
    pub fn episodes(&mut self) -> Vec<Episode> {
        self.actor.episodes()
    }

    /// Environments whose episodes were cut off in the last step, because they failed.
    pub fn restarted(&self) -> &[usize] {
        self.actor.crew.restarted()
    }

    /// The policy forgets all about an environment, also what it kept over a trial.
    pub(crate) fn forget(&mut self, env: usize) {
        self.actor.crew.forget(env);
    }
}
