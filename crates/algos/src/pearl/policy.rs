//! Acting in trials: z from the prior, then from what was seen of the task.

use std::sync::Arc;

use rand::RngExt as _;
use starling_envs::{Rng, Rollout};
use starling_nets::{
    Device, Kind, Params, Recorded, ShapeMismatch, Snapshot, Staging, Tensor, UnitScale, array_of,
    fill_normal, no_grad,
};
use starling_replay::MARK;
use starling_tree::{Array, DType, Spec, Tree};

use super::Config;
use super::networks::{CONTEXT_REWARD, Networks};
use crate::continuous::choose_squashed;
use crate::shown::Shown;
use crate::{Acting, Part, Policy, TRIAL};

/// Whether the episode of an environment has begun.
const BEGUN: &str = "begun";

/// Parts of what is kept of a trial: [`TrialState`], and in training the newest transitions of context,
/// as the encoder sees them.
pub(super) const KNOWN: &str = "known";
pub(super) const CONTEXT: &str = "context";

/// Chooses actions by observation and z, and infers z from the trial's transitions.
pub(super) struct PearlPolicy {
    config: Arc<Config>,
    networks: Arc<Networks>,
    params: Params,
    device: Device,
    groups: Vec<Option<Group>>,
}

/// A group of environments whose actions are chosen in one recorded pass.
struct Group {
    shown: Shown,
    z: Staging,
    act: Recorded<(Tree<Tensor>, Tensor), Tensor>,
    /// In evaluations: the last transition of each environment, as the encoder sees it.
    context: Staging,
    /// What each of them adds to the sums of [`TrialState`].
    encode: Recorded<Tensor, Tensor>,
    /// A context batch of one environment.
    batch: Staging,
    /// The sums of [`TrialState`] over it.
    infer: Recorded<Tensor, Tensor>,
    unit: UnitScale,
}

impl PearlPolicy {
    pub(super) fn new(config: Arc<Config>, networks: Arc<Networks>, device: Device) -> Self {
        Self {
            params: Params::zeros(&networks.acting, device),
            config,
            networks,
            device,
            groups: Vec::new(),
        }
    }

    /// The group of this number; a new one if its size has changed.
    fn group(&mut self, number: usize, parts: &[Part<'_>]) -> &mut Group {
        let envs = parts.iter().map(|part| part.acting.rngs.len()).sum();
        while self.groups.len() <= number {
            self.groups.push(None);
        }
        let group = self.groups[number].take();
        let group = group.filter(|old| old.shown.envs() == envs);
        let group = group.unwrap_or_else(|| self.new_group(envs, parts[0].rollout));
        self.groups[number].insert(group)
    }

    fn new_group(&self, envs: usize, rollout: &Rollout) -> Group {
        let device = self.device;
        let staging = |rows: usize, numbers: usize| {
            let spec = Spec::new(DType::F32, &[numbers]);
            Staging::new(rows, &spec, device)
        };
        let shown = Shown::new(rollout, envs, None, device);
        let seen = self.networks.context.size();
        let (z, context) = (staging(envs, self.networks.latent), staging(envs, seen));
        let batch = staging(self.config.context_batch, seen);
        let (networks, params) = (Arc::clone(&self.networks), self.params.share());
        let act = move |(obs, z): &(Tree<Tensor>, Tensor)| {
            no_grad(|| {
                let policy = networks.acting(&params, &networks.seen.of(obs), z);
                Tensor::cat(&[policy.mean, policy.log_std], 1)
            })
        };
        let inputs = (shown.tensors(), z.tensor().shallow_clone());
        Group {
            act: Recorded::new(device, inputs, act),
            encode: self.encoding(&context, |each| each),
            infer: self.encoding(&batch, |each| {
                each.sum_dim_intlist([0].as_slice(), false, Kind::Float)
            }),
            unit: self.networks.bounds.unit(Device::Cpu),
            shown,
            z,
            context,
            batch,
        }
    }

    /// What is made of 1/σ² and μ/σ² `[N, 2·L]` of transitions.
    fn encoding(
        &self,
        context: &Staging,
        then: impl Fn(Tensor) -> Tensor + Send + 'static,
    ) -> Recorded<Tensor, Tensor> {
        let (networks, params) = (Arc::clone(&self.networks), self.params.share());
        let encode = move |context: &Tensor| {
            no_grad(|| match networks.encode(&params, context) {
                None => context.narrow(1, 0, 0),
                Some((means, variances)) => {
                    let precisions = variances.reciprocal();
                    let each = Tensor::cat(&[&precisions, &(means * &precisions)], 1);
                    then(each)
                }
            })
        };
        Recorded::new(self.device, context.tensor().shallow_clone(), encode)
    }

    /// Takes the transitions of row `t` as context of their trials. In training they are remembered as
    /// they are, since the encoder will have changed when the posterior is inferred from them; in
    /// evaluations it does not change, and what it says is added up.
    fn absorb(&mut self, t: usize, group: usize, parts: &mut [Part<'_>]) {
        if self.networks.latent == 0 {
            return;
        }
        let networks = Arc::clone(&self.networks);
        let (latent, size) = (networks.latent, networks.context.size());
        let evaluates = parts.iter().any(|part| !part.acting.explore);
        let group = self.group(group, parts);
        let mut first = 0;
        for part in parts.iter_mut() {
            let actions = array_of(&group.unit.apply(&actions_of(part.rollout, t)));
            for b in 0..part.acting.rngs.len() {
                let action = actions.at(&[b]);
                let row = context_of(&networks, part.rollout, t, b, action.as_slice());
                if part.acting.explore {
                    remember(part.acting.state, b, latent, &row);
                } else {
                    let bytes = Array::from_slice(&row, &[size]);
                    group.context.write(first + b, bytes.bytes());
                }
            }
            first += part.acting.rngs.len();
        }
        if !evaluates {
            return;
        }
        group.context.upload();
        let sums = array_of(group.encode.run());
        let mut first = 0;
        for part in parts.iter_mut() {
            for b in 0..part.acting.rngs.len() {
                if !part.acting.explore {
                    let sums = sums.at(&[first + b]);
                    TrialState::of(part.acting.state, b, latent).add(sums.as_slice());
                }
            }
            first += part.acting.rngs.len();
        }
    }
}

impl Group {
    /// The sums of [`TrialState`] over a context batch, by the encoder as it is now.
    fn infer(&mut self, batch: &[f32]) -> Vec<f32> {
        let rows = Array::from_slice(batch, &[batch.len()]);
        self.batch.write(0, rows.bytes());
        self.batch.upload();
        array_of(self.infer.run()).as_slice().to_vec()
    }
}

impl Policy for PearlPolicy {
    fn records(&self) -> Tree<Spec> {
        Tree::node([(MARK, Tree::Leaf(Spec::scalar(DType::U8)))])
    }

    fn state(&self) -> Tree<Spec> {
        let floats = |shape: &[usize]| Tree::Leaf(Spec::new(DType::F32, shape));
        let mut trial = vec![(KNOWN, floats(&[TrialState::size(self.networks.latent)]))];
        if self.networks.latent > 0 {
            let shape = [self.config.context_steps(), self.networks.context.size()];
            trial.push((CONTEXT, floats(&shape)));
        }
        Tree::node([
            (BEGUN, Tree::Leaf(Spec::scalar(DType::U8))),
            (TRIAL, Tree::node(trial)),
        ])
    }

    fn load(&mut self, weights: &Snapshot) -> Result<(), ShapeMismatch> {
        self.params.load(weights)
    }

    fn act(&mut self, t: usize, rollout: &mut Rollout, acting: Acting<'_>) {
        self.act_together(t, 0, &mut [Part { rollout, acting }]);
    }

    fn act_together(&mut self, t: usize, group: usize, parts: &mut [Part<'_>]) {
        if parts.is_empty() {
            return;
        }
        if t > 0 {
            self.absorb(t - 1, group, parts);
        }
        let (config, networks) = (Arc::clone(&self.config), Arc::clone(&self.networks));
        let group = self.group(group, parts);
        let mut first = 0;
        for part in parts.iter_mut() {
            let Acting {
                explore,
                env_steps,
                ref mut rngs,
                ref mut state,
                ..
            } = part.acting;
            let initial = env_steps < config.learning_starts_steps;
            for (b, rng) in rngs.iter_mut().enumerate() {
                let begins = begin(state, b);
                let mut trial = TrialState::of(state, b, networks.latent);
                if begins && explore {
                    let by_posterior = trial.next_of_training(&config, initial);
                    let steps = trial.context_steps();
                    if by_posterior && steps > 0 && networks.latent > 0 {
                        let batch = context_batch(state, b, steps, &config, rng);
                        let sums = group.infer(&batch);
                        trial = TrialState::of(state, b, networks.latent);
                        trial.know(&sums);
                        trial.draw_z(rng);
                    } else {
                        fill_normal(rng, trial.z);
                    }
                } else if begins {
                    trial.next_of_evaluation(&config, rng);
                }
                trial.step();
                let marked = u8::from(trial.phase().is_context());
                if networks.latent > 0 {
                    let z = Array::from_slice(trial.z, &[trial.z.len()]);
                    group.z.write(first + b, z.bytes());
                }
                if let Some(Tree::Leaf(marks)) = part.rollout.policy.get_mut(MARK) {
                    marks.at_mut(&[t, b]).write(&[marked]);
                }
            }
            first += rngs.len();
        }
        if networks.latent > 0 {
            group.z.upload();
        }
        group.shown.show(t, parts);
        let proposed = array_of(group.act.run());
        let mut first = 0;
        for Part { rollout, acting } in parts {
            for (b, rng) in acting.rngs.iter_mut().enumerate() {
                let mut item = rollout.actions.at_mut(&[t, b]);
                let action = item.as_mut_slice::<f32>();
                let row = proposed.at(&[first + b]);
                let rng = acting.explore.then_some(rng);
                choose_squashed(row.as_slice(), rng, action);
                networks.bounds.scale(action);
            }
            first += acting.rngs.len();
        }
    }

    fn finish(&mut self, group: usize, parts: &mut [Part<'_>]) {
        if let Some(last) = parts
            .first()
            .and_then(|part| part.rollout.steps().checked_sub(1))
        {
            self.absorb(last, group, parts);
        }
    }
}

/// Whether environment `b` begins an episode; it has begun one from now on.
fn begin(state: &mut Tree<Array>, b: usize) -> bool {
    let Some(Tree::Leaf(begun)) = state.get_mut(BEGUN) else {
        return true;
    };
    let begun = &mut begun.as_mut_slice::<u8>()[b];
    std::mem::replace(begun, 1) == 0
}

/// Actions of row `t`, `[B, A]`.
fn actions_of(rollout: &Rollout, t: usize) -> Tensor {
    let row = rollout.actions.at(&[t]);
    let envs = rollout.envs() as i64;
    Tensor::from_slice(row.as_slice::<f32>()).reshape([envs, -1])
}

/// The transition of row `t` as the encoder sees it, as in the learner's batches.
fn context_of(
    networks: &Networks,
    rollout: &Rollout,
    t: usize,
    b: usize,
    action: &[f32],
) -> Vec<f32> {
    let at = |tree: &Tree<Array>, index: &[usize], wanted: bool| -> Vec<f32> {
        let leaves = tree.leaves().into_iter();
        let leaves = leaves.filter(|(path, _)| (path == CONTEXT_REWARD) == wanted);
        let rows = leaves.flat_map(|(_, array)| array.at(index).as_slice::<f32>().to_vec());
        rows.collect()
    };
    let one = |array: &Array| array.at(&[t, b]).bytes[0] != 0;
    let terminated = one(&rollout.terminated);
    let last = rollout.final_at.iter().rposition(|&at| at == (t, b));
    let next = |wanted: bool| match last {
        Some(row) => at(&rollout.final_obs, &[row], wanted),
        None => at(&rollout.obs, &[t + 1, b], wanted),
    };
    let reward = rollout.rewards.at(&[t, b]).as_slice::<f32>()[0];
    let reward = match networks.seen.context_reward && !terminated {
        true => next(true).first().copied().unwrap_or(reward),
        false => reward,
    };
    let mut row = at(&rollout.obs, &[t, b], false);
    row.extend_from_slice(action);
    row.push(reward);
    if networks.context.next_obs {
        row.extend(match terminated {
            true => at(&rollout.obs, &[t, b], false),
            false => next(false),
        });
    }
    row
}

/// Puts a transition among the newest ones of a trial in training, if its phase collects context.
fn remember(state: &mut Tree<Array>, b: usize, latent: usize, row: &[f32]) {
    let mut trial = TrialState::of(state, b, latent);
    if !trial.phase().is_context() {
        return;
    }
    let before = trial.context_steps();
    *trial.counter(CONTEXT_STEPS) += 1.0;
    let context = part_of(state, CONTEXT, b);
    let rows = context.len() / row.len();
    let place = before % rows;
    context[place * row.len()..(place + 1) * row.len()].copy_from_slice(row);
}

/// Transitions of a trial of `steps` steps of context, drawn with replacement, one after the other.
fn context_batch(
    state: &mut Tree<Array>,
    b: usize,
    steps: usize,
    config: &Config,
    rng: &mut Rng,
) -> Vec<f32> {
    let context = part_of(state, CONTEXT, b);
    let size = context.len() / config.context_steps();
    let known = steps.min(config.context_steps());
    let mut batch = Vec::with_capacity(config.context_batch * size);
    for _ in 0..config.context_batch {
        let row = rng.random_range(0..known);
        batch.extend_from_slice(&context[row * size..(row + 1) * size]);
    }
    batch
}

/// A part of what is kept of the trial of environment `b`.
fn part_of<'a>(state: &'a mut Tree<Array>, name: &str, b: usize) -> &'a mut [f32] {
    let trial = state.get_mut(TRIAL).and_then(|trial| trial.get_mut(name));
    match trial {
        Some(Tree::Leaf(array)) => array.at_mut(&[b]).into_mut_slice(),
        // The engine keeps what `Policy::state` asked for.
        _ => unreachable!("the state of a policy has its part '{TRIAL}.{name}'"),
    }
}

/// What is known of a trial: sums over context of 1/σ² and μ/σ², the present z, and counters. In
/// training they are sums over the context batch that z was last inferred from, in evaluations over all
/// transitions of the trial.
pub(super) struct TrialState<'a> {
    precision: &'a mut [f32],
    weighted: &'a mut [f32],
    pub(super) z: &'a mut [f32],
    counters: &'a mut [f32],
}

/// Steps of context of the trial.
const CONTEXT_STEPS: usize = 0;
/// Steps of the phase.
const STEPS: usize = 1;
/// Trajectories of the trial with the present one; 0 before the first.
const TRAJECTORIES: usize = 2;
const PHASE: usize = 3;
const COUNTERS: usize = 4;

/// What a trial in training is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Before anything is learned, every trajectory is a trial.
    Initial,
    Prior,
    Posterior,
    Extra,
}

impl Phase {
    const ALL: [Phase; 4] = [Phase::Initial, Phase::Prior, Phase::Posterior, Phase::Extra];

    /// Whether its steps are context.
    fn is_context(self) -> bool {
        self != Phase::Extra
    }
}

impl<'a> TrialState<'a> {
    pub(super) fn size(latent: usize) -> usize {
        3 * latent + COUNTERS
    }

    fn of(state: &'a mut Tree<Array>, b: usize, latent: usize) -> Self {
        Self::in_slice(part_of(state, KNOWN, b), latent)
    }

    pub(super) fn in_slice(slice: &'a mut [f32], latent: usize) -> Self {
        let (precision, rest) = slice.split_at_mut(latent);
        let (weighted, rest) = rest.split_at_mut(latent);
        let (z, counters) = rest.split_at_mut(latent);
        Self {
            precision,
            weighted,
            z,
            counters,
        }
    }

    fn counter(&mut self, which: usize) -> &mut f32 {
        &mut self.counters[which]
    }

    pub(super) fn phase(&self) -> Phase {
        let number = self.counters[PHASE] as usize;
        Phase::ALL[number.min(Phase::ALL.len() - 1)]
    }

    fn set_phase(&mut self, phase: Phase) {
        *self.counter(PHASE) = phase as usize as f32;
        *self.counter(STEPS) = 0.0;
    }

    /// Steps of context so far.
    fn context_steps(&self) -> usize {
        self.counters[CONTEXT_STEPS] as usize
    }

    /// Sets the sums over a context batch.
    pub(super) fn know(&mut self, sums: &[f32]) {
        let (precision, weighted) = sums.split_at(self.precision.len());
        self.precision.copy_from_slice(precision);
        self.weighted.copy_from_slice(weighted);
    }

    /// Adds a transition of context: its 1/σ², then its μ/σ².
    pub(super) fn add(&mut self, sums: &[f32]) {
        let known = self.precision.iter_mut().chain(&mut *self.weighted);
        for (known, new) in known.zip(sums) {
            *known += new;
        }
        *self.counter(CONTEXT_STEPS) += 1.0;
    }

    /// Counts a step.
    pub(super) fn step(&mut self) {
        *self.counter(STEPS) += 1.0;
    }

    fn begin(&mut self, phase: Phase) {
        self.precision.fill(0.0);
        self.weighted.fill(0.0);
        self.counters.fill(0.0);
        self.set_phase(phase);
    }

    /// The next trajectory of training. Returns whether its z comes from the posterior.
    pub(super) fn next_of_training(&mut self, config: &Config, initial: bool) -> bool {
        if self.counters[TRAJECTORIES] == 0.0 || self.phase() == Phase::Initial {
            self.begin(if initial {
                Phase::Initial
            } else {
                Phase::Prior
            });
        }
        let over = |steps: f32, most: usize| steps >= most as f32;
        loop {
            let (next, most) = match self.phase() {
                Phase::Initial => break,
                Phase::Prior => (Some(Phase::Posterior), config.prior_steps),
                Phase::Posterior => (Some(Phase::Extra), config.posterior_steps),
                Phase::Extra => (None, config.extra_steps),
            };
            if !over(self.counters[STEPS], most) {
                break;
            }
            match next {
                Some(next) => self.set_phase(next),
                None => self.begin(Phase::Prior),
            }
        }
        *self.counter(TRAJECTORIES) += 1.0;
        matches!(self.phase(), Phase::Posterior | Phase::Extra)
    }

    /// The next trajectory of an evaluation. After those of a trial, one on the prior follows.
    pub(super) fn next_of_evaluation(&mut self, config: &Config, rng: &mut Rng) {
        let control = usize::from(config.latent_size > 0);
        if self.counters[TRAJECTORIES] as usize == config.eval_trajectories + control {
            self.begin(Phase::Prior);
        }
        let before = self.counters[TRAJECTORIES] as usize;
        *self.counter(TRAJECTORIES) += 1.0;
        match before < config.eval_prior_trajectories || before == config.eval_trajectories {
            true => fill_normal(rng, self.z),
            false => self.draw_z(rng),
        }
    }

    /// Draws z from the posterior that the sums give, or from the prior if nothing was seen.
    pub(super) fn draw_z(&mut self, rng: &mut Rng) {
        fill_normal(rng, self.z);
        if self.context_steps() == 0 {
            return;
        }
        for (i, z) in self.z.iter_mut().enumerate() {
            let precision = self.precision[i];
            *z = self.weighted[i] / precision + *z / precision.sqrt();
        }
    }
}
