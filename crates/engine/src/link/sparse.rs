//! A link that does not carry recurrent states which no replay keeps.
//!
//! A policy records its recurrent state before every step, and a replay of sequences keeps one in
//! `state_interval_steps` steps of an episode. Between processes the others are most of the bytes. They
//! are overwritten here with one value, which takes no room when it is compressed. It is not a number,
//! so that one that were used by mistake would end the run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use starling_algos::{Algorithm, Experience};
use starling_envs::Rollout;
use starling_replay::STATE;

use super::{ActorLink, LinkError, Loss, Parcel, Publication, Wanted};

/// For the actor of one lease, or of several.
pub(crate) struct Sparse {
    link: Arc<dyn ActorLink>,
    interval: u64,
    /// Steps of the open episode of each environment, counted as the replay does: from the beginning
    /// of the lease, or of an episode.
    positions: Mutex<BTreeMap<usize, u64>>,
}

impl Sparse {
    /// The link, with less to carry where the algorithm allows it.
    pub(crate) fn over(link: Arc<dyn ActorLink>, algorithm: &dyn Algorithm) -> Arc<dyn ActorLink> {
        let sequence = match algorithm.experience() {
            Experience::Rollouts { .. } => None,
            Experience::Transitions(needs) => needs.replay.sequence,
        };
        match sequence.map(|sequence| sequence.state_interval_steps) {
            Some(interval @ 2..) => Arc::new(Self {
                link,
                interval: interval as u64,
                positions: Mutex::default(),
            }),
            _ => link,
        }
    }

    fn thin(&self, first_env: usize, rollout: &mut Rollout) {
        let mut positions = self
            .positions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Rollout {
            policy,
            state,
            terminated,
            truncated,
            ..
        } = rollout;
        // What the policy carried into the rollout is for learners without a replay.
        for (_, array) in state.leaves_mut() {
            array.bytes_mut().fill(u8::MAX);
        }
        let (terminated, truncated) = (terminated.as_slice::<u8>(), truncated.as_slice::<u8>());
        let Some(state) = policy.get_mut(STATE) else {
            return;
        };
        let mut states = state.leaves_mut();
        let Some(&[steps, envs, ..]) = states.first().map(|(_, array)| array.shape()) else {
            return;
        };
        for t in 0..steps {
            for b in 0..envs {
                let position = positions.entry(first_env + b).or_default();
                if !position.is_multiple_of(self.interval) {
                    for (_, array) in &mut states {
                        array.at_mut(&[t, b]).bytes.fill(u8::MAX);
                    }
                }
                let at = t * envs + b;
                let ended = terminated[at] != 0 || truncated[at] != 0;
                *position = if ended { 0 } else { *position + 1 };
            }
        }
    }
}

impl ActorLink for Sparse {
    fn weights(&self, wanted: Wanted, patience: Duration) -> Result<Publication, LinkError> {
        self.link.weights(wanted, patience)
    }

    fn send(
        &self,
        mut parcel: Parcel,
        patience: Duration,
    ) -> Result<Option<Vec<Rollout>>, LinkError> {
        for (first_env, rollout) in &mut parcel.rollouts {
            self.thin(*first_env, rollout);
        }
        self.link.send(parcel, patience)
    }

    fn fail(&self, loss: Loss) {
        self.link.fail(loss);
    }

    fn is_closed(&self) -> bool {
        self.link.is_closed()
    }
}
