//! The learner's side: experience in, updates, weights out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::Rng as _;
use serde::{Deserialize, Serialize};
use starling_algos::{
    Algorithm, Batch, Experience, LearnError, Learner, Progress, ReplayNeeds, Report, Spaces,
    Started,
};
use starling_envs::{Rng, Rollout, stream};
use starling_nets::{Device, pin, send};
use starling_replay::{
    Draw, Filled, GroupedDraws, Layout, PRIORITY, Prefetcher, RateLimiter, Replay, ReplayError,
    SampleId, SequenceBatch, TransitionBatch,
};
use starling_tree::{Array, Tree};

use crate::patience::Patience;
use crate::pool::Pace;
use crate::{EngineError, Settings};

/// Updates at a free pace before the run looks up again. What is owed is not forgotten: the
/// limiter holds the actors back.
const UPDATES_AT_ONCE: usize = 1000;

/// After a signal to stop: how long the updates that are owed for a round may still take.
const LAST_UPDATES: Duration = Duration::from_secs(10);

/// A learner with what feeds it.
pub(crate) struct Pupil {
    pub(crate) learner: Box<dyn Learner>,
    pub(crate) feed: Feed,
    /// The update that the device is computing, and its batch.
    under_way: Option<(Drawn, Started)>,
    /// Updates since the beginning, without the one under way.
    pub(crate) updates: u64,
    pub(crate) means: Means,
    pub(crate) times: Times,
}

/// Where the learner's time went since the beginning.
#[derive(Clone, Copy, Default)]
pub(crate) struct Times {
    /// Everything.
    pub(crate) all: Duration,
    /// Experience went into the replay.
    pub(crate) insert: Duration,
    /// Batches were drawn from it, or waited for.
    pub(crate) draw: Duration,
    /// Batches were brought to the device.
    pub(crate) assemble: Duration,
    /// The replay was given new priorities.
    pub(crate) prioritize: Duration,
}

impl Times {
    /// What went by since `before`: by name, the rest being `update`.
    pub(crate) fn since(&self, before: &Times) -> [(&'static str, Duration); 5] {
        let insert = self.insert - before.insert;
        let draw = self.draw - before.draw;
        let assemble = self.assemble - before.assemble;
        let prioritize = self.prioritize - before.prioritize;
        let all = self.all - before.all;
        let update = all.saturating_sub(insert + draw + assemble + prioritize);
        [
            ("insert", insert),
            ("draw", draw),
            ("assemble", assemble),
            ("prioritize", prioritize),
            ("update", update),
        ]
    }
}

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
    spare: Vec<Drawn>,
    /// Threads that draw ahead; 0 to draw when a batch is needed.
    threads: usize,
    /// How long they may take for a batch.
    patience: Duration,
    /// Begins with the first batch.
    prefetcher: Option<Prefetcher<Drawn>>,
}

/// What the replay draws, in buffers that are used again.
enum Drawn {
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
                let (obs, next_obs) = (batch.obs.leaves_mut(), batch.next_obs.leaves_mut());
                send(obs.into_iter().chain(next_obs).map(|(_, array)| array));
            }
            Drawn::Sequences(batch) => {
                replay.sample_sequences_into(batch, beta, rng)?;
                send(batch.obs.leaves_mut().into_iter().map(|(_, array)| array));
            }
        }
        Ok(())
    }
}

impl Drawn {
    /// Buffers whose observations lie where the device can fetch them by itself.
    fn new(needs: &ReplayNeeds, layout: &Layout, device: Device) -> Result<Self, ReplayError> {
        let size = needs.batch_size;
        let pin_all = |obs: &mut Tree<Array>| {
            for (_, array) in obs.leaves_mut() {
                pin(array, device);
            }
        };
        Ok(match needs.replay.sequence {
            None => {
                let mut batch = TransitionBatch::new(layout, size);
                pin_all(&mut batch.obs);
                pin_all(&mut batch.next_obs);
                Drawn::Transitions(Box::new(batch), needs.draws.clone())
            }
            Some(_) => {
                let mut batch = SequenceBatch::new(&needs.replay, layout, size)?;
                pin_all(&mut batch.obs);
                Drawn::Sequences(Box::new(batch))
            }
        })
    }

    fn batch(&self) -> Batch<'_> {
        match self {
            Drawn::Transitions(batch, _) => Batch::Transitions(batch),
            Drawn::Sequences(batch) => Batch::Sequences(batch),
        }
    }

    fn ids(&self) -> &[SampleId] {
        match self {
            Drawn::Transitions(batch, _) => &batch.ids,
            Drawn::Sequences(batch) => &batch.ids,
        }
    }
}

impl Pupil {
    pub(crate) fn new(
        algorithm: &dyn Algorithm,
        spaces: &Spaces,
        settings: &Settings,
        device: Device,
    ) -> Result<Self, EngineError> {
        let (seed, prefetch_threads) = (settings.seed, settings.prefetch_threads);
        let feed = match algorithm.experience() {
            Experience::Rollouts { .. } => Feed::Rollouts,
            Experience::Transitions(needs) => {
                let layout = replay_layout(algorithm, spaces, settings.envs);
                let buffers = (2 * prefetch_threads).max(1);
                let spare = (0..buffers).map(|_| Drawn::new(&needs, &layout, device));
                Feed::Replay(Box::new(ReplayFeed {
                    spare: spare.collect::<Result<_, _>>()?,
                    replay: Arc::new(Replay::new(needs.replay.clone(), layout)?),
                    limiter: RateLimiter::new(needs.rate.clone())?,
                    needs: *needs,
                    rng: stream(seed, "replay", 0),
                    threads: prefetch_threads,
                    patience: Duration::from_secs_f64(settings.stall_timeout_s),
                    prefetcher: None,
                }))
            }
        };
        Ok(Self {
            learner: algorithm.learner(seed, device),
            feed,
            under_way: None,
            updates: 0,
            means: Means::default(),
            times: Times::default(),
        })
    }

    /// Whether more experience may come in now.
    pub(crate) fn may_take(&self, steps: u64) -> bool {
        match &self.feed {
            Feed::Rollouts => true,
            // As long as nothing can be drawn, waiting for draws would be waiting forever.
            Feed::Replay(feed) => feed.replay.is_empty() || feed.limiter.may_insert(steps),
        }
    }

    /// Whether it could learn now without more experience.
    pub(crate) fn may_learn(&self) -> bool {
        match &self.feed {
            Feed::Rollouts => false,
            Feed::Replay(feed) => feed.may_learn(),
        }
    }

    /// Takes in rollouts (each with the number of its first environment) and learns as much as
    /// it should. Returns the number of updates.
    pub(crate) fn absorb(
        &mut self,
        rollouts: &[(usize, &Rollout)],
        progress: Progress,
        version: u64,
        pace: Pace,
        stop: &AtomicBool,
    ) -> Result<u64, EngineError> {
        let before = self.updates;
        for (_, rollout) in rollouts {
            let lag = version.saturating_sub(rollout.version);
            self.means.add("policy_lag", lag as f64);
        }
        let began = Instant::now();
        match &self.feed {
            Feed::Rollouts => self.learn_from_rollouts(rollouts, progress)?,
            Feed::Replay(_) => self.learn_from_replay(rollouts, progress, pace, stop)?,
        }
        self.times.all += began.elapsed();
        Ok(self.updates - before)
    }

    fn learn_from_rollouts(
        &mut self,
        rollouts: &[(usize, &Rollout)],
        progress: Progress,
    ) -> Result<(), EngineError> {
        let parts: Vec<&Rollout> = rollouts.iter().map(|(_, rollout)| *rollout).collect();
        if parts.is_empty() {
            return Ok(());
        }
        let report = self.learner.update(Batch::Rollouts(&parts), progress);
        self.count(&report.map_err(|source| failed(progress, source))?);
        Ok(())
    }

    fn learn_from_replay(
        &mut self,
        rollouts: &[(usize, &Rollout)],
        progress: Progress,
        pace: Pace,
        stop: &AtomicBool,
    ) -> Result<(), EngineError> {
        let Feed::Replay(feed) = &self.feed else {
            return Ok(());
        };
        let (threads, unlimited) = (feed.threads, feed.needs.rate.samples_per_insert.is_none());
        let replay = Arc::clone(&feed.replay);
        let steps = if threads == 0 {
            let began = Instant::now();
            let steps = insert(&replay, rollouts.iter())?;
            self.times.insert += began.elapsed();
            steps
        } else {
            self.learn_while_inserting(&replay, rollouts, threads, progress)?
        };
        if let Feed::Replay(feed) = &mut self.feed {
            feed.limiter.inserted(steps);
        }
        let mut stopping: Option<Instant> = None;
        for update in 0.. {
            if !self.may_learn() || pace == Pace::Free && update == UPDATES_AT_ONCE {
                break;
            }
            // In rounds nothing holds the actors back, so that all that is owed is done at once.
            if stop.load(Ordering::Relaxed)
                && stopping.get_or_insert_with(Instant::now).elapsed() > LAST_UPDATES
            {
                tracing::warn!("stopping in the middle of a round: some updates are still owed");
                break;
            }
            self.start_update(progress)?;
            if threads == 0 {
                self.settle(progress)?;
            }
            if unlimited {
                break;
            }
        }
        Ok(())
    }

    /// Stores rollouts on as many threads as draw ahead, and meanwhile keeps learning from what was
    /// stored before. Returns how many steps they have.
    fn learn_while_inserting(
        &mut self,
        replay: &Replay,
        rollouts: &[(usize, &Rollout)],
        threads: usize,
        progress: Progress,
    ) -> Result<u64, EngineError> {
        // Rollouts of the same environments stay together: they have an order.
        let mut firsts: Vec<usize> = rollouts.iter().map(|(first, _)| *first).collect();
        firsts.sort_unstable();
        firsts.dedup();
        let share = |thread: usize| {
            let firsts = &firsts;
            rollouts.iter().filter(move |(first, _)| {
                firsts.binary_search(first).unwrap_or(0) % threads == thread
            })
        };
        std::thread::scope(|scope| {
            let writers = (0..threads.min(firsts.len())).map(|thread| {
                let builder = std::thread::Builder::new().name(format!("insert-{thread}"));
                let started = builder.spawn_scoped(scope, move || insert(replay, share(thread)));
                started.map_err(|error| EngineError::Prefetch(error.to_string()))
            });
            let writers = writers.collect::<Result<Vec<_>, _>>()?;
            while self.may_learn() && writers.iter().any(|writer| !writer.is_finished()) {
                self.start_update(progress)?;
            }
            let began = Instant::now();
            let mut steps = 0;
            for writer in writers {
                let its = writer.join();
                steps +=
                    its.unwrap_or_else(|_| Err(EngineError::Prefetch("a thread panicked".into())))?;
            }
            self.times.insert += began.elapsed();
            Ok(steps)
        })
    }

    /// Starts the next update once the one before is finished, whose priorities the replay gets
    /// while the device computes.
    fn start_update(&mut self, progress: Progress) -> Result<(), EngineError> {
        let Feed::Replay(feed) = &mut self.feed else {
            return Ok(());
        };
        let beta = feed.needs.beta.at(progress.fraction());
        let began = Instant::now();
        let Some(drawn) = feed.next(beta)? else {
            return Ok(());
        };
        self.times.draw += began.elapsed();
        let finished = self.finish(progress)?;
        let started = self.learner.start(drawn.batch(), progress);
        let started = started.map_err(|source| failed(progress, source))?;
        self.under_way = Some((drawn, started));
        match finished {
            Some((drawn, report)) => self.prioritize(drawn, &report),
            None => Ok(()),
        }
    }

    /// Brings the update that is under way to its end.
    pub(crate) fn settle(&mut self, progress: Progress) -> Result<(), EngineError> {
        match self.finish(progress)? {
            Some((drawn, report)) => self.prioritize(drawn, &report),
            None => Ok(()),
        }
    }

    /// Waits for the update that is under way.
    fn finish(&mut self, progress: Progress) -> Result<Option<(Drawn, Report)>, EngineError> {
        let Some((drawn, started)) = self.under_way.take() else {
            return Ok(None);
        };
        let report = started.finish();
        let report = report.map_err(|source| failed(progress, source))?;
        self.count(&report);
        Ok(Some((drawn, report)))
    }

    /// Gives a batch's new priorities to the replay, and its buffers back.
    fn prioritize(&mut self, drawn: Drawn, report: &Report) -> Result<(), EngineError> {
        let Feed::Replay(feed) = &mut self.feed else {
            return Ok(());
        };
        let began = Instant::now();
        if let Some(priorities) = &report.priorities {
            feed.replay.update_priorities(drawn.ids(), priorities)?;
        }
        feed.spare.push(drawn);
        self.times.prioritize += began.elapsed();
        Ok(())
    }

    fn count(&mut self, report: &Report) {
        self.updates += 1;
        self.times.assemble += Duration::from_secs_f64(report.assemble_s);
        for (name, value) in &report.metrics {
            self.means.add(name, *value);
        }
    }
}

impl ReplayFeed {
    fn may_learn(&self) -> bool {
        let ahead = self.prefetcher.as_ref();
        ahead.is_some_and(|prefetcher| prefetcher.ahead() > 0) || self.may_draw()
    }

    fn may_draw(&self) -> bool {
        !self.replay.is_empty() && self.limiter.may_sample(self.needs.batch_steps())
    }

    /// The next batch, once there may be one; `None` if there are no buffers for it. Whoever
    /// takes it gives the buffers back to `spare`.
    fn next(&mut self, beta: f64) -> Result<Option<Drawn>, EngineError> {
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
                    let reason = format!("nothing was drawn for {seconds} s (stall_timeout_s)");
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

/// An update failed.
fn failed(progress: Progress, source: LearnError) -> EngineError {
    EngineError::Learn {
        step: progress.env_steps,
        source,
    }
}

/// Stores rollouts, each with the number of its first environment, and returns how many steps
/// they have.
fn insert<'a>(
    replay: &Replay,
    rollouts: impl Iterator<Item = &'a (usize, &'a Rollout)>,
) -> Result<u64, EngineError> {
    let mut steps = 0;
    for (first_env, rollout) in rollouts {
        let priorities = rollout.policy.get(PRIORITY).and_then(Tree::leaf);
        let priorities = priorities.map(|column| column.as_slice::<f32>());
        steps += replay.insert(rollout, *first_env, priorities)? as u64;
    }
    Ok(steps)
}

/// The columns of a replay for an environment's spaces and what the policy records.
pub(crate) fn replay_layout(algorithm: &dyn Algorithm, spaces: &Spaces, envs: usize) -> Layout {
    let (nothing, records) = (Tree::empty(), algorithm.policy(Device::Cpu).records());
    let (observation, action) = (&spaces.observation, &spaces.action);
    let legal = spaces.legal_actions;
    let rollout = Rollout::new(1, 1, observation, action, legal, &records, &nothing);
    Layout::of_rollout(&rollout, envs)
}

/// Means of named numbers since the last row of metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Means {
    sums: Vec<(String, f64, f64)>,
}

impl Means {
    pub(crate) fn add(&mut self, name: &str, value: f64) {
        match self.sums.iter_mut().find(|(known, _, _)| known == name) {
            Some((_, sum, count)) => {
                *sum += value;
                *count += 1.0;
            }
            None => self.sums.push((name.to_owned(), value, 1.0)),
        }
    }

    /// The means so far, without forgetting them.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        let found = self.sums.iter().find(|(known, _, _)| known == name);
        found.map(|(_, sum, count)| sum / count)
    }

    /// The means, and starts again.
    pub(crate) fn take(&mut self) -> Vec<(String, f64)> {
        let sums = std::mem::take(&mut self.sums).into_iter();
        sums.map(|(name, sum, count)| (name, sum / count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parts::{Collectors, Parts};
    use crate::profile::Profile;
    use crate::transport::Weights;
    use crate::{Actor, RunConfig};

    /// A learner, and an actor that collects for it with its first weights.
    struct Pair {
        pupil: Pupil,
        actor: Box<Actor>,
        weights: Weights,
    }

    const PROGRESS: Progress = Progress {
        env_steps: 0,
        total_steps: 1_000_000,
    };

    impl Pair {
        fn new(env: &str, envs: usize, algo: serde_json::Value, prefetch_threads: usize) -> Self {
            let config = RunConfig::from_value(&json!({
                "env": {"id": env},
                "algo": algo,
                "envs": envs,
                "device": "cpu",
                "torch_threads": 1,
            }))
            .unwrap();
            let parts = Parts::make(&config, 0).unwrap();
            let Collectors::Resting(actor) = parts.collectors else {
                panic!("the usual mode is serial");
            };
            let env = config.env_spec().unwrap().make(&config.env).unwrap();
            let spaces = crate::config::spaces_of(&*env);
            let settings = Settings {
                prefetch_threads,
                ..config.settings
            };
            let pupil = Pupil::new(&*parts.algorithm, &spaces, &settings, Device::Cpu).unwrap();
            let weights = Weights {
                version: 0,
                values: pupil.learner.weights(),
            };
            Self {
                pupil,
                actor,
                weights,
            }
        }

        fn collect(&mut self) -> &Rollout {
            let profile = Profile::default();
            self.actor.collect(&self.weights, 0, &profile).unwrap();
            self.actor.rollout()
        }

        /// Collects once and learns all that is owed for it.
        fn round(&mut self) {
            self.collect();
            self.pupil.take(&[(0, self.actor.rollout())]);
        }

        fn feed(&mut self) -> &mut ReplayFeed {
            match &mut self.pupil.feed {
                Feed::Replay(feed) => feed,
                Feed::Rollouts => panic!("action values are learned from a replay"),
            }
        }
    }

    impl Pupil {
        fn take(&mut self, rollouts: &[(usize, &Rollout)]) {
            let stop = AtomicBool::new(false);
            self.absorb(rollouts, PROGRESS, 0, Pace::Lag(0), &stop)
                .unwrap();
        }
    }

    /// With batches drawn ahead or without: every update that was started ends, its priorities
    /// reach the replay, and its buffers come back.
    #[test]
    fn updates_end_and_their_buffers_come_back() {
        for threads in [0, 2] {
            let algo = json!({
                "name": "dqn",
                "capacity_steps": 4_000,
                "learning_starts_steps": 100,
                "batch_size": 16,
                "replay_ratio": 8,
                "priority": {"alpha": 0.6},
            });
            let mut pair = Pair::new("CartPole-v1", 4, algo, threads);
            for _ in 0..40 {
                pair.round();
            }
            assert_eq!(pair.pupil.under_way.is_some(), threads > 0);
            pair.pupil.settle(PROGRESS).unwrap();

            let updates = pair.pupil.updates;
            let feed = pair.feed();
            let ahead = feed.prefetcher.as_ref().map_or(0, Prefetcher::ahead);
            assert_eq!(feed.spare.len() + ahead, (2 * threads).max(1));
            let (samples, _) = feed.counts();
            assert_eq!(samples, 16 * (updates + ahead as u64));
            assert!(updates > 50, "{updates}");
            let mut batch = TransitionBatch::new(feed.replay.layout(), 16);
            feed.replay
                .sample_into(&mut batch, 1.0, &mut feed.rng)
                .unwrap();
            let weights = batch.weights.as_slice::<f32>();
            assert!(weights.iter().any(|weight| *weight != weights[0]));
        }
    }

    /// A learner of sequences with nothing drawable yet, though the ratio owes samples: either the
    /// learner may learn or more experience may come in, at every moment.
    #[test]
    fn limiter_and_empty_replay_do_not_hold_each_other() {
        let algo = json!({
            "name": "r2d2",
            "rollout_steps": 5,
            "batch_size": 1,
            "replay_ratio": 4,
            "learning_starts_steps": 1,
            "net": {"hidden": [8]},
        });
        let mut pair = Pair::new("MountainCar-v0", 64, algo, 0);
        let mut rounds = 0;
        while pair.pupil.updates == 0 {
            let moves = pair.pupil.may_take(1) || pair.pupil.may_learn();
            assert!(moves, "round {rounds}");
            pair.round();
            rounds += 1;
        }
        assert!(rounds > 2, "something could be drawn at once");
    }

    /// Every batch is put together as the algorithm asks: half from the environments of one group,
    /// half from those of another or of the same.
    #[test]
    fn an_algorithm_can_ask_for_several_draws() {
        for threads in [0, 1] {
            let algo = json!({"name": "dqn", "learning_starts_steps": 100, "batch_size": 8});
            let mut pair = Pair::new("CartPole-v1", 4, algo, threads);
            let draws = GroupedDraws {
                groups: vec![0..1, 1..4],
                chosen: 2,
                rows: vec![4],
            };
            let feed = pair.feed();
            for drawn in &mut feed.spare {
                let Drawn::Transitions(_, asked) = drawn else {
                    panic!("DQN learns from transitions");
                };
                *asked = Some(draws.clone());
            }
            for _ in 0..40 {
                pair.round();
            }
            pair.pupil.settle(PROGRESS).unwrap();
            assert!(pair.pupil.updates > 0);
            let feed = pair.feed();
            let rows = feed.replay.config().rows_per_stream(4);
            for drawn in &feed.spare {
                let groups: Vec<bool> = drawn.ids().iter().map(|id| id.slot / rows > 0).collect();
                assert!(groups[..4].iter().all(|group| *group == groups[0]));
                assert!(groups[4..].iter().all(|group| *group == groups[4]));
            }
        }
    }

    /// In rounds the ratio holds however many updates a round owes.
    #[test]
    fn a_round_does_all_the_updates_that_it_owes() {
        let algo = json!({
            "name": "dqn",
            "rollout_steps": 64,
            "batch_size": 1,
            "replay_ratio": 2,
            "learning_starts_steps": 1,
            "net": {"hidden": [4]},
        });
        let mut pair = Pair::new("CartPole-v1", 16, algo, 0);
        pair.round();
        // 1024 steps owe 2048 samples.
        assert!(pair.pupil.updates >= 2_000, "{}", pair.pupil.updates);
    }

    /// What is drawn ahead follows the run's stream, which a checkpoint holds: a resumed run does
    /// not draw the same again.
    #[test]
    fn drawing_ahead_advances_the_stream() {
        let algo = json!({"name": "dqn", "learning_starts_steps": 8, "batch_size": 4});
        let mut pair = Pair::new("CartPole-v1", 8, algo, 1);
        let before = pair.feed().rng.clone();
        for _ in 0..4 {
            pair.round();
        }
        assert!(pair.pupil.updates > 0);
        assert_ne!(pair.feed().rng, before);
    }

    /// Several threads store what arrived; the rollouts of one environment keep their order.
    #[test]
    fn threads_that_store_keep_the_order_of_each_environment() {
        let algo = json!({
            "name": "dqn",
            "learning_starts_steps": 100_000,
            "rollout_steps": 2,
        });
        let mut pair = Pair::new("CartPole-v1", 4, algo, 3);
        let collected: Vec<Rollout> = (0..300).map(|_| pair.collect().clone()).collect();
        let rollouts: Vec<_> = collected.iter().map(|rollout| (0, rollout)).collect();
        pair.pupil.take(&rollouts);
        assert_eq!(pair.feed().replay.inserted_steps(), 300 * 2 * 4);
        assert_eq!(pair.feed().replay.breaks(), 0);
    }
}
