//! From settings and leases to actors.

use std::ops::Range;
use std::sync::Arc;

use starling_algos::Algorithm;
use starling_envs::{EnvError, EnvSpec, RestartBudget};
use starling_nets::Device;

use super::central::crews;
use super::crew::Recruits;
use super::{Actor, Central, Crew, rollout_steps};
use crate::link::{Lease, Place};
use crate::{EngineError, RunConfig};

/// Everything from which the actors of a run are made.
#[derive(Clone)]
pub(crate) struct ActorKit {
    config: RunConfig,
    spec: &'static EnvSpec,
    pub(crate) algorithm: Arc<dyn Algorithm>,
    /// Where actors compute.
    pub(crate) device: Device,
    /// How many environments were and may be restarted.
    pub(crate) restarts: Option<Arc<RestartBudget>>,
}

impl ActorKit {
    pub(crate) fn new(
        config: &RunConfig,
        restarts: Option<Arc<RestartBudget>>,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            spec: config.env_spec()?,
            algorithm: config.algorithm()?.into(),
            device: config.settings.actor_device().resolve()?,
            config: config.clone(),
            restarts,
        })
    }

    /// An actor with new environments and a new policy.
    pub(crate) fn actor(&self, place: Place, seed: u64) -> Result<Actor, EngineError> {
        let config = &self.config;
        let mut actor = Actor::new(
            self.spec,
            &config.env,
            &*self.algorithm,
            self.device,
            seed,
            place,
            config.settings.decorrelate_steps,
        )?;
        if let Some(budget) = &self.restarts {
            actor.restart_failed(self.spec, &config.env, budget)?;
        }
        Ok(actor)
    }

    /// Environments on threads with one policy for all; each lease is one group.
    pub(crate) fn central(&self, leases: &[Lease]) -> Result<Central, EngineError> {
        let (config, threads) = (&self.config, self.config.collecting_threads());
        let policy = self.algorithm.policy(self.device);
        let groups = leases.iter().map(|lease| {
            let recruits = Recruits {
                spec: self.spec,
                options: &config.env,
                discount: self.algorithm.discount(),
                steps: rollout_steps(&*self.algorithm),
                records: policy.records(),
                state: policy.state(),
                seed: lease.seed,
                total_envs: lease.place.total_envs,
                decorrelate_steps: config.settings.decorrelate_steps,
            };
            let Place {
                first_env, envs, ..
            } = lease.place;
            let shares = shares(first_env..first_env + envs, crews(envs, threads));
            let crews = shares.map(|share| {
                let mut crew = recruits.crew(share.start, share.len())?;
                if let Some(budget) = &self.restarts {
                    crew.restart_failed(self.spec, &config.env, budget)?;
                }
                Ok::<_, EnvError>(crew)
            });
            crews.collect()
        });
        let groups = groups.collect::<Result<Vec<Vec<Crew>>, _>>()?;
        Ok(Central::new(
            policy,
            groups,
            threads,
            config.torch_threads(),
        ))
    }
}

/// A range in parts, as even as it goes.
pub(crate) fn shares(whole: Range<usize>, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let (start, length) = (whole.start, whole.len());
    (0..parts).map(move |i| start + i * length / parts..start + (i + 1) * length / parts)
}
