//! The source of batches: the replay, its rate limiter, and the buffers that are filled from it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng as _;
use starling_algos::{Algorithm, Batch, ReplayNeeds, Spaces};
use starling_envs::{Rng, Rollout, stream};
use starling_nets::{Device, pin, send};
use starling_replay::{
    Draw, Filled, GroupedDraws, Layout, Prefetcher, RateLimiter, Replay, ReplayError, SampleId,
    SequenceBatch, TransitionBatch,
};
use starling_tree::{Array, Tree};

use crate::link::patience::Patience;
use crate::{EngineError, Settings};

/// Where batches come from.
pub(crate) enum Feed {
    /// Straight from the actors.
    Rollouts,
    /// From a replay.
    Replay(Box<ReplayFeed>),
}

pub(crate) struct ReplayFeed {
    pub(crate) needs: ReplayNeeds,
    pub(crate) replay: Arc<Replay>,
    pub(crate) limiter: RateLimiter,
    /// Decides what is drawn, by whichever thread.
    pub(crate) rng: Rng,
    /// Buffers that nothing is in.
    pub(super) spare: Vec<Drawn>,
    /// Threads that draw ahead; 0 to draw when a batch is needed.
    pub(super) threads: usize,
    /// How long they may take for a batch.
    patience: Duration,
    /// Begins with the first batch.
    pub(super) prefetcher: Option<Prefetcher<Drawn>>,
}

/// What the replay draws, in buffers that are used again.
pub(super) enum Drawn {
    Transitions(Box<TransitionBatch>, Option<GroupedDraws>),
    Sequences(Box<SequenceBatch>),
}

impl Draw for Drawn {
    fn draw(&mut self, replay: &Replay, beta: f64, rng: &mut Rng) -> Result<(), ReplayError> {
        match self {
            Drawn::Transitions(batch, draws) => {
                match draws {
                    Some(draws) => replay.sample_groups_into(batch, draws, beta, rng)?,
                    None => replay.sample_into(batch, beta, rng)?,
                }
                send(columns(batch));
            }
            Drawn::Sequences(batch) => {
                replay.sample_sequences_into(batch, beta, rng)?;
                send(batch.obs.leaves_mut().into_iter().map(|(_, array)| array));
            }
        }
        Ok(())
    }
}

/// All that a learner takes to its device.
fn columns(batch: &mut TransitionBatch) -> impl Iterator<Item = &mut Array> {
    let (obs, next_obs) = (batch.obs.leaves_mut(), batch.next_obs.leaves_mut());
    let obs = obs.into_iter().chain(next_obs).map(|(_, array)| array);
    obs.chain([
        &mut batch.actions,
        &mut batch.returns,
        &mut batch.discounts,
        &mut batch.weights,
    ])
}

impl Drawn {
    /// Buffers that lie where the device can fetch them by itself.
    fn new(needs: &ReplayNeeds, layout: &Layout, device: Device) -> Result<Self, ReplayError> {
        let size = needs.batch_size;
        Ok(match needs.replay.sequence {
            None => {
                let mut batch = TransitionBatch::new(layout, size);
                columns(&mut batch).for_each(|array| pin(array, device));
                Drawn::Transitions(Box::new(batch), needs.draws.clone())
            }
            Some(_) => {
                let mut batch = SequenceBatch::new(&needs.replay, layout, size)?;
                for (_, array) in batch.obs.leaves_mut() {
                    pin(array, device);
                }
                Drawn::Sequences(Box::new(batch))
            }
        })
    }

    pub(super) fn batch(&self) -> Batch<'_> {
        match self {
            Drawn::Transitions(batch, _) => Batch::Transitions(batch),
            Drawn::Sequences(batch) => Batch::Sequences(batch),
        }
    }

    pub(super) fn ids(&self) -> &[SampleId] {
        match self {
            Drawn::Transitions(batch, _) => &batch.ids,
            Drawn::Sequences(batch) => &batch.ids,
        }
    }
}

impl ReplayFeed {
    pub(super) fn new(
        needs: ReplayNeeds,
        layout: Layout,
        settings: &Settings,
        device: Device,
        in_flight: usize,
        rank: usize,
    ) -> Result<Self, ReplayError> {
        let threads = settings.prefetch_threads;
        let buffers = match threads {
            0 => 1,
            _ => 2 * threads + in_flight - 1,
        };
        let spare = (0..buffers).map(|_| Drawn::new(&needs, &layout, device));
        Ok(Self {
            spare: spare.collect::<Result<_, _>>()?,
            replay: Arc::new(Replay::new(needs.replay.clone(), layout)?),
            limiter: RateLimiter::new(needs.rate.clone())?,
            needs,
            rng: stream(settings.seed, "replay", rank as u64),
            threads,
            patience: Duration::from_secs_f64(settings.stall_timeout_s),
            prefetcher: None,
        })
    }

    pub(super) fn may_learn(&self) -> bool {
        let ahead = self.prefetcher.as_ref();
        ahead.is_some_and(|prefetcher| prefetcher.ahead() > 0) || self.may_draw()
    }

    fn may_draw(&self) -> bool {
        !self.replay.is_empty() && self.limiter.may_sample(self.needs.batch_steps())
    }

    /// How many updates could be made now, counted up to `most`.
    pub(super) fn owed(&self, most: u64) -> u64 {
        if self.replay.is_empty() {
            return 0;
        }
        let most = match self.needs.rate.samples_per_insert {
            Some(_) => most,
            None => 1,
        };
        let (mut limiter, steps) = (self.limiter.clone(), self.needs.batch_steps());
        let mut owed = 0;
        while owed < most && limiter.may_sample(steps) {
            limiter.sampled(steps);
            owed += 1;
        }
        owed
    }

    /// The next batch, once sampling is allowed; `None` if there are no buffers for it. The caller
    /// returns the buffers to `spare`.
    pub(super) fn next(&mut self, beta: f64) -> Result<Option<Drawn>, EngineError> {
        if self.threads == 0 {
            let Some(mut drawn) = self.spare.pop() else {
                return Ok(None);
            };
            self.limiter.sampled(self.needs.batch_steps());
            drawn.draw(&self.replay, beta, &mut self.rng)?;
            return Ok(Some(drawn));
        }
        let mut prefetcher = match self.prefetcher.take() {
            Some(prefetcher) => prefetcher,
            None => Prefetcher::new(Arc::clone(&self.replay), self.threads)
                .map_err(|error| EngineError::Prefetch(error.to_string()))?,
        };
        while self.may_draw()
            && let Some(drawn) = self.spare.pop()
        {
            self.limiter.sampled(self.needs.batch_steps());
            prefetcher.give(drawn, beta, self.rng.next_u64());
        }
        let mut patience = Patience::new(self.patience);
        let filled = loop {
            let began = Instant::now();
            match prefetcher.take(patience.slice()) {
                Some(filled) => break filled,
                None if patience.spend(began) => {}
                None => {
                    let seconds = self.patience.as_secs();
                    let reason = format!("no batch was ready within {seconds} s (stall_timeout_s)");
                    return Err(EngineError::Prefetch(reason));
                }
            }
        };
        self.prefetcher = Some(prefetcher);
        let Filled { batch, drawn } = filled;
        drawn?;
        Ok(Some(batch))
    }

    /// Samples drawn and steps inserted so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.limiter.drawn_samples(), self.limiter.inserted_steps())
    }
}

/// The columns of a replay for an environment's spaces and what the policy records.
pub(crate) fn replay_layout(algorithm: &dyn Algorithm, spaces: &Spaces, envs: usize) -> Layout {
    let (nothing, records) = (Tree::empty(), algorithm.policy(Device::Cpu).records());
    let (observation, action) = (&spaces.observation, &spaces.action);
    let legal = spaces.legal_actions;
    let rollout = Rollout::new(1, 1, observation, action, legal, &records, &nothing);
    Layout::of_rollout(&rollout, envs)
}
