//! Acting in trials: z from the prior, then from what was seen of the task.

use std::sync::Arc;

use starling_envs::{Rng, Rollout};
use starling_nets::{
    Device, Params, Recorded, ShapeMismatch, Snapshot, Staging, Tensor, UnitScale, array_of,
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
    /// The last transition of each environment, as the encoder sees it.
    context: Staging,
    /// What the transitions add to the sums of [`TrialState`].
    encode: Recorded<Tensor, Tensor>,
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
        let staging = |numbers: usize| {
            let spec = Spec::new(DType::F32, &[numbers]);
            Staging::new(envs, &spec, device)
        };
        let shown = Shown::new(rollout, envs, None, device);
        let (z, context) = (
            staging(self.networks.latent),
            staging(self.networks.context.size()),
        );
        let (networks, params) = (Arc::clone(&self.networks), self.params.share());
        let act = move |(obs, z): &(Tree<Tensor>, Tensor)| {
            no_grad(|| {
                let policy = networks.acting(&params, &networks.seen.of(obs), z);
                Tensor::cat(&[policy.mean, policy.log_std], 1)
            })
        };
        let (networks, params) = (Arc::clone(&self.networks), self.params.share());
        let encode = move |context: &Tensor| {
            no_grad(|| match networks.encode(&params, context) {
                None => context.narrow(1, 0, 0),
                Some((means, variances)) => {
                    let precisions = variances.reciprocal();
                    Tensor::cat(&[&precisions, &(means * &precisions)], 1)
                }
            })
        };
        let inputs = (shown.tensors(), z.tensor().shallow_clone());
        Group {
            act: Recorded::new(device, inputs, act),
            encode: Recorded::new(device, context.tensor().shallow_clone(), encode),
            unit: self.networks.bounds.unit(Device::Cpu),
            shown,
            z,
            context,
        }
    }

    /// Adds the transitions of row `t` to what is known of the trials.
    fn absorb(&mut self, t: usize, group: usize, parts: &mut [Part<'_>]) {
        let (latent, networks) = (self.networks.latent, Arc::clone(&self.networks));
        let is_context = |part: &mut Part<'_>, b: usize| {
            let explore = part.acting.explore;
            let phase = TrialState::of(part.acting.state, b, latent).phase();
            !explore || phase.is_context()
        };
        let wanted = |part: &mut Part<'_>| {
            let envs = 0..part.acting.rngs.len();
            envs.into_iter().any(|b| is_context(part, b))
        };
        if latent == 0 || !parts.iter_mut().any(wanted) {
            return;
        }
        let group = self.group(group, parts);
        let mut first = 0;
        for part in parts.iter() {
            let actions = group.unit.apply(&actions_of(part.rollout, t));
            let actions = array_of(&actions);
            for b in 0..part.acting.rngs.len() {
                let action = actions.at(&[b]);
                let row = context_of(&networks, part.rollout, t, b, action.as_slice());
                let bytes = Array::from_slice(&row, &[row.len()]);
                group.context.write(first + b, bytes.bytes());
            }
            first += part.acting.rngs.len();
        }
        group.context.upload();
        let sums = array_of(group.encode.run());
        let mut first = 0;
        for part in parts {
            for b in 0..part.acting.rngs.len() {
                if is_context(part, b) {
                    let sums = sums.at(&[first + b]);
                    TrialState::of(part.acting.state, b, latent).add(sums.as_slice());
                }
            }
            first += part.acting.rngs.len();
        }
    }
}

impl Policy for PearlPolicy {
    fn records(&self) -> Tree<Spec> {
        Tree::node([(MARK, Tree::Leaf(Spec::scalar(DType::U8)))])
    }

    fn state(&self) -> Tree<Spec> {
        let size = TrialState::size(self.networks.latent);
        Tree::node([
            (BEGUN, Tree::Leaf(Spec::scalar(DType::U8))),
            (TRIAL, Tree::Leaf(Spec::new(DType::F32, &[size]))),
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
                if begins {
                    match explore {
                        true => trial.next_of_training(&config, initial, rng),
                        false => trial.next_of_evaluation(&config, rng),
                    }
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

/// What is known of a trial: sums over its context of 1/σ² and μ/σ², the present z, and counters.
pub(super) struct TrialState<'a> {
    precision: &'a mut [f32],
    weighted: &'a mut [f32],
    pub(super) z: &'a mut [f32],
    counters: &'a mut [f32],
}

/// Transitions in the sums.
const CONTEXT: usize = 0;
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
        let size = Self::size(latent);
        match state.get_mut(TRIAL) {
            Some(Tree::Leaf(array)) => {
                let all = array.as_mut_slice::<f32>();
                Self::in_slice(&mut all[b * size..(b + 1) * size], latent)
            }
            // The engine keeps what `Policy::state` asked for.
            _ => unreachable!("the state of a policy has its part '{TRIAL}'"),
        }
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

    /// Adds a transition of context: its 1/σ², then its μ/σ².
    pub(super) fn add(&mut self, sums: &[f32]) {
        let known = self.precision.iter_mut().chain(&mut *self.weighted);
        for (known, new) in known.zip(sums) {
            *known += new;
        }
        *self.counter(CONTEXT) += 1.0;
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

    /// The next trajectory of training.
    pub(super) fn next_of_training(&mut self, config: &Config, initial: bool, rng: &mut Rng) {
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
        match self.phase() {
            Phase::Initial | Phase::Prior => fill_normal(rng, self.z),
            Phase::Posterior | Phase::Extra => {
                // As if the posterior were that of a batch of context, which is what the encoder
                // is trained with.
                let size = self.counters[CONTEXT].max(1.0);
                self.draw_z(config.context_batch as f32 / size, rng);
            }
        }
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
            false => self.draw_z(1.0, rng),
        }
    }

    /// Draws z from the posterior, with its precision times `scale`.
    fn draw_z(&mut self, scale: f32, rng: &mut Rng) {
        fill_normal(rng, self.z);
        if self.counters[CONTEXT] == 0.0 {
            return;
        }
        for (i, z) in self.z.iter_mut().enumerate() {
            let precision = self.precision[i];
            *z = self.weighted[i] / precision + *z / (scale * precision).sqrt();
        }
    }
}
