//! Rollouts on the learner's device, with advantages.

use std::time::Instant;

use starling_envs::Rollout;
use starling_nets::{
    ActorCritic, ActorCriticOutput, Descent, Device, Kind, Params, Staging, Tensor, no_grad,
    own_stream, synchronize, tree_of, unrecorded,
};
use starling_tree::{Array, DType, Spec, Tree};

use super::carried::last_rows;
use super::{Estimate, Model};
use crate::LearnError;
use crate::ops::generalized_advantages;
use crate::rollout_columns::RolloutColumns;

/// Rollouts as tensors, `[T·B, ..]` in time-major order, with advantages.
///
/// They are views of [`Columns`], into which one batch after the other is loaded, or a choice of
/// their rows.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) steps: usize,
    pub(crate) envs: usize,
    pub(crate) obs: Tree<Tensor>,
    pub(crate) legal: Option<Tensor>,
    pub(crate) actions: Tensor,
    pub(crate) log_probs: Tensor,
    pub(crate) values: Tensor,
    pub(crate) advantages: Tensor,
    pub(crate) returns: Tensor,
    /// 1 where a step is the first of an episode, `[T, B]`.
    pub(crate) starts: Tensor,
    /// Recurrent state before the first step, `[B, ..]`.
    pub(crate) state: Tree<Tensor>,
    /// Observations with the row after the last step, `[T + 1, B, ..]`; `obs` is a view of it.
    pub(crate) rows: Tree<Tensor>,
    /// What V-trace needs beside all this.
    pub(crate) trace: Trace,
}

/// Columns `[T, B]` for V-trace, and those of `T + 1` rows.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) rewards: Tensor,
    /// γ, or 0 where the task ended.
    pub(crate) discounts: Tensor,
    /// 1 where the episode continues with the next row.
    pub(crate) continues: Tensor,
    /// 1 where an episode was cut off, and the value of its final observation there.
    pub(crate) cut: Tensor,
    pub(crate) cut_values: Tensor,
    /// 1 where a row is the first of an episode, `[T + 1, B]`; `starts` is a view of it.
    pub(crate) starts: Tensor,
    /// Legal actions of all rows, `[(T + 1)·B, A]`; `legal` is a view of it.
    pub(crate) legal: Option<Tensor>,
}

/// The memory of a batch: host memory that is filled, and its place on the device. It stays where
/// it is, so that what is computed from there can be recorded.
#[derive(Debug)]
pub(super) struct Columns {
    rollouts: RolloutColumns,
    /// `(T + 1)·B` rows.
    last: Option<Staging>,
    starts: Staging,
    /// `T·B` rows.
    log_probs: Staging,
    values: Staging,
    advantages: Staging,
    returns: Staging,
    rewards: Staging,
    discounts: Staging,
    continues: Staging,
    cut: Staging,
    cut_values: Staging,
    /// B rows.
    state: Tree<Staging>,
}

/// How long it takes to copy a batch to the device.
pub(super) struct Loaded {
    began: Instant,
    seconds: f64,
}

impl Loaded {
    pub(super) fn seconds(&self) -> f64 {
        self.seconds
    }
}

/// The small columns of a batch, with rewards as they are learned from.
pub(super) fn gather(
    model: &Model,
    descent: &mut Descent,
    rollouts: &[&Rollout],
) -> Result<(Whole, Loaded), LearnError> {
    let began = Instant::now();
    own_stream(descent.device());
    let mut whole = Whole::of(rollouts)?;
    if let Some(returns) = &model.returns {
        returns.apply(descent, &mut whole)?;
    }
    let seconds = 0.0;
    Ok((whole, Loaded { began, seconds }))
}

impl Columns {
    /// Memory for batches of this size, of rollouts like this one.
    pub(super) fn new(model: &Model, like: &Rollout, whole: &Whole, device: Device) -> Self {
        let (steps, envs) = (whole.steps, whole.envs);
        let numbers = |rows: usize| Staging::new(rows, &Spec::scalar(DType::F32), device);
        let (all, taken) = ((steps + 1) * envs, steps * envs);
        Self {
            rollouts: RolloutColumns::new(like, envs, device),
            last: model.net.last.as_ref().map(|last| {
                let item = Spec::new(DType::F32, &[last.size]);
                Staging::new(all, &item, device)
            }),
            starts: numbers(all),
            log_probs: numbers(taken),
            values: numbers(taken),
            advantages: numbers(taken),
            returns: numbers(taken),
            rewards: numbers(taken),
            discounts: numbers(taken),
            continues: numbers(taken),
            cut: numbers(taken),
            cut_values: numbers(taken),
            state: like.state.map(|array| {
                let item = Spec::new(array.dtype(), &array.shape()[1..]);
                Staging::new(envs, &item, device)
            }),
        }
    }

    /// Whether a batch has this size.
    pub(super) fn fits(&self, rollouts: &[&Rollout]) -> bool {
        self.rollouts.fits(rollouts)
    }

    /// The batch on the device, always in the same memory.
    pub(super) fn views(&self) -> Prepared {
        let columns = &self.rollouts;
        let (steps, envs) = (columns.steps as i64, columns.envs as i64);
        let all = [steps + 1, envs];
        let mut rows = columns
            .obs
            .map(|obs| obs.tensor().unflatten(0, all.as_slice()));
        if let Some(last) = &self.last {
            let last = last.tensor().unflatten(0, all.as_slice());
            rows = ActorCritic::with_last(rows, last);
        }
        let vector = |column: &Staging| column.tensor().shallow_clone();
        let table = |column: &Staging| column.tensor().view([steps, envs]);
        let starts = self.starts.tensor().view(all);
        let legal = columns.legal.as_ref().map(vector);
        Prepared {
            steps: columns.steps,
            envs: columns.envs,
            obs: rows.map(|all| all.narrow(0, 0, steps).flatten(0, 1)),
            rows,
            legal: legal.as_ref().map(|all| all.narrow(0, 0, steps * envs)),
            actions: vector(&columns.actions),
            log_probs: vector(&self.log_probs),
            values: vector(&self.values),
            advantages: vector(&self.advantages),
            returns: vector(&self.returns),
            starts: starts.narrow(0, 0, steps),
            state: self.state.map(vector),
            trace: Trace {
                rewards: table(&self.rewards),
                discounts: table(&self.discounts),
                continues: table(&self.continues),
                cut: table(&self.cut),
                cut_values: table(&self.cut_values),
                starts,
                legal,
            },
        }
    }

    /// Copies everything that does not depend on the weights to the device.
    pub(super) fn load(
        &self,
        model: &Model,
        rollouts: &[&Rollout],
        whole: &Whole,
        loaded: Loaded,
    ) -> Loaded {
        self.rollouts.load(rollouts);
        if let (Some(last), Some(column)) = (&model.net.last, &self.last) {
            fill(column, &last_rows(last, rollouts));
        }
        self.log_probs.load(&whole.log_probs);
        self.values.load(&whole.values);
        self.rewards.load(&whole.rewards);
        fill(&self.starts, &whole.starts);
        for ((_, column), (_, state)) in self.state.leaves().into_iter().zip(whole.state.leaves()) {
            column.load(state);
        }
        synchronize(self.values.tensor().device());
        Loaded {
            seconds: loaded.began.elapsed().as_secs_f64(),
            ..loaded
        }
    }

    /// Copies what depends on the weights to the device: advantages, or the inputs of V-trace.
    pub(super) fn fill(
        &self,
        batch: &Prepared,
        model: &Model,
        params: &Params,
        rollouts: &[&Rollout],
        whole: &Whole,
        (estimate, gamma): (Estimate, f64),
    ) {
        unrecorded(params.device(), || match estimate {
            Estimate::Gae(lambda) => {
                self.estimate(batch, model, params, rollouts, whole, (gamma, lambda));
            }
            Estimate::Vtrace => self.trace(batch, model, params, rollouts, whole, gamma),
        });
    }

    /// Advantages and returns from the learner's present values of the states that follow, with γ
    /// and λ.
    fn estimate(
        &self,
        batch: &Prepared,
        model: &Model,
        params: &Params,
        rollouts: &[&Rollout],
        whole: &Whole,
        (gamma, lambda): (f64, f64),
    ) {
        let passed = model
            .is_recurrent()
            .then(|| no_grad(|| batch.forward(model, params)));
        let next = batch.next_values(model, params, rollouts, whole, passed.as_ref());
        let computed = generalized_advantages(
            whole.rewards.as_slice(),
            whole.values.as_slice(),
            &next,
            &whole.ends,
            batch.envs,
            gamma as f32,
            lambda as f32,
        );
        fill(&self.advantages, &computed.advantages);
        fill(&self.returns, &computed.returns);
    }

    /// What V-trace needs, with the learner's present values of the final observations of episodes
    /// that were cut off.
    fn trace(
        &self,
        batch: &Prepared,
        model: &Model,
        params: &Params,
        rollouts: &[&Rollout],
        whole: &Whole,
        gamma: f64,
    ) {
        let discount = |terminated| if terminated { 0.0 } else { gamma as f32 };
        let discounts: Vec<f32> = flags(&whole.terminated).map(discount).collect();
        let number = |flag: bool| f32::from(u8::from(flag));
        let continues: Vec<f32> = whole.ends.iter().map(|&ended| number(!ended)).collect();
        fill(&self.discounts, &discounts);
        fill(&self.continues, &continues);
        let cut = cut_off(rollouts);
        let (mut mask, mut values) = (vec![0.0; discounts.len()], vec![0.0; discounts.len()]);
        if !cut.is_empty() {
            let passed = model
                .is_recurrent()
                .then(|| no_grad(|| batch.forward(model, params)));
            let next = batch.next_values(model, params, rollouts, whole, passed.as_ref());
            for end in &cut {
                let at = end.t * batch.envs + end.b;
                (mask[at], values[at]) = (1.0, next[at]);
            }
        }
        fill(&self.cut, &mask);
        fill(&self.cut_values, &values);
    }
}

impl Prepared {
    /// The same memory, not a copy.
    pub(super) fn share(&self) -> Self {
        let same = Tensor::shallow_clone;
        let trace = &self.trace;
        Self {
            steps: self.steps,
            envs: self.envs,
            obs: self.obs.map(same),
            legal: self.legal.as_ref().map(same),
            actions: same(&self.actions),
            log_probs: same(&self.log_probs),
            values: same(&self.values),
            advantages: same(&self.advantages),
            returns: same(&self.returns),
            starts: same(&self.starts),
            state: self.state.map(same),
            rows: self.rows.map(same),
            trace: Trace {
                rewards: same(&trace.rewards),
                discounts: same(&trace.discounts),
                continues: same(&trace.continues),
                cut: same(&trace.cut),
                cut_values: same(&trace.cut_values),
                starts: same(&trace.starts),
                legal: trace.legal.as_ref().map(same),
            },
        }
    }

    /// The rows with these numbers: of some of the B environments (for recurrent networks, whose
    /// sequences stay whole), or of some of the T·B steps.
    pub(crate) fn select(&self, chosen: &Tensor, whole_sequences: bool) -> Prepared {
        let (steps, envs) = (self.steps as i64, self.envs as i64);
        let rows = if whole_sequences {
            let time = Tensor::arange(steps, (Kind::Int64, chosen.device())).reshape([-1, 1]);
            (time * envs + chosen).reshape([-1])
        } else {
            chosen.shallow_clone()
        };
        let pick = |tensor: &Tensor| tensor.index_select(0, &rows);
        Prepared {
            steps: if whole_sequences { self.steps } else { 1 },
            envs: chosen.numel(),
            obs: self.obs.map(pick),
            rows: Tree::empty(),
            trace: Trace::none(chosen.device()),
            legal: self.legal.as_ref().map(pick),
            actions: pick(&self.actions),
            log_probs: pick(&self.log_probs),
            values: pick(&self.values),
            advantages: pick(&self.advantages),
            returns: pick(&self.returns),
            starts: match whole_sequences {
                true => self.starts.index_select(1, chosen),
                false => self.starts.shallow_clone(),
            },
            state: match whole_sequences {
                true => self.state.map(|tensor| tensor.index_select(0, chosen)),
                false => Tree::empty(),
            },
        }
    }

    /// What the network says now about these rows, with a graph for gradients.
    pub(crate) fn forward(&self, model: &Model, params: &Params) -> ActorCriticOutput {
        let legal = self.legal.as_ref();
        model.net.forward(
            params,
            &self.obs,
            legal,
            self.steps,
            &self.starts,
            &self.state,
        )
    }

    /// Values of the states after each step within the same episode, `[T, B]`.
    fn next_values(
        &self,
        model: &Model,
        params: &Params,
        rollouts: &[&Rollout],
        whole: &Whole,
        passed: Option<&ActorCriticOutput>,
    ) -> Vec<f32> {
        let (steps, envs) = (self.steps, self.envs);
        let device = self.advantages.device();
        let mut next = vec![0.0; steps * envs];
        next[..(steps - 1) * envs].copy_from_slice(&whole.values.as_slice()[envs..]);

        // One forward pass for the row after the last step and the ends of cut-off episodes.
        let cut = cut_off(rollouts);
        let mut obs = self.rows.map(|rows| rows.select(0, steps as i64));
        for end in &cut {
            let mut last = tree_of(&end.rollout.final_obs, &[end.kept], device);
            if let Some(input) = &model.net.last {
                let rollout = end.rollout;
                let at = [end.t, end.rollout_b];
                let mut encoded = vec![0.0; input.size];
                let reward = rollout.rewards.at(&at).as_slice::<f32>()[0];
                input.encode(rollout.actions.at(&at), reward, &mut encoded);
                let encoded = Tensor::from_slice(&encoded).to_device(device);
                last = ActorCritic::with_last(last, encoded);
            }
            let joined = obs.zip_mut(&last, |all, last| {
                *all = Tensor::cat(&[&*all, &last.unsqueeze(0)], 0);
            });
            debug_assert!(joined.is_ok(), "both are observations of one space");
        }
        let at: Vec<usize> = cut.iter().map(|end| end.t * envs + end.b).collect();
        let state = match passed {
            None => Tree::empty(),
            Some(output) => {
                // Rows of the state after each step, [T·B, ..]: the last B, then the cut ones.
                let last = (steps - 1) * envs;
                let rows = (last..last + envs).chain(at.iter().copied());
                let rows: Vec<i64> = rows.map(|row| row as i64).collect();
                let rows = Tensor::from_slice(&rows).to_device(device);
                output.states.map(|tensor| tensor.index_select(0, &rows))
            }
        };
        let total = (envs + cut.len()) as i64;
        let starts = Tensor::zeros([1, total], (Kind::Float, device));
        let output = no_grad(|| model.net.forward(params, &obs, None, 1, &starts, &state));
        let bootstrap = starling_nets::array_of(&output.value);
        let bootstrap = bootstrap.as_slice::<f32>();

        next[(steps - 1) * envs..].copy_from_slice(&bootstrap[..envs]);
        for (&at, &value) in at.iter().zip(&bootstrap[envs..]) {
            next[at] = value;
        }
        for (next, terminated) in next.iter_mut().zip(flags(&whole.terminated)) {
            if terminated {
                *next = 0.0;
            }
        }
        next
    }
}

impl Trace {
    fn none(device: Device) -> Self {
        let nothing = || Tensor::zeros([0], (Kind::Float, device));
        Self {
            rewards: nothing(),
            discounts: nothing(),
            continues: nothing(),
            cut: nothing(),
            cut_values: nothing(),
            starts: nothing(),
            legal: None,
        }
    }
}

/// The small columns of a batch, side by side on the host.
pub(super) struct Whole {
    pub(super) steps: usize,
    pub(super) envs: usize,
    pub(super) rewards: Array,
    terminated: Array,
    log_probs: Array,
    values: Array,
    pub(super) state: Tree<Array>,
    /// Whether an episode ended with the step.
    pub(super) ends: Vec<bool>,
    /// 1 where one of the T + 1 rows is the first of an episode that began within the rollout.
    starts: Vec<f32>,
}

impl Whole {
    fn of(rollouts: &[&Rollout]) -> Result<Self, LearnError> {
        let first = rollouts.first().ok_or(LearnError::Mismatch)?;
        let join = |pick: &dyn Fn(&Rollout) -> Option<Array>, dimension: usize| {
            let arrays: Option<Vec<Array>> = rollouts.iter().map(|rollout| pick(rollout)).collect();
            let arrays = arrays.ok_or(LearnError::Mismatch)?;
            let arrays: Vec<&Array> = arrays.iter().collect();
            Array::side_by_side(&arrays, dimension).ok_or(LearnError::Mismatch)
        };
        let record =
            |name: &'static str| join(&move |rollout| rollout.policy.get(name)?.leaf().cloned(), 1);
        let terminated = join(&|rollout| Some(rollout.terminated.clone()), 1)?;
        let truncated = join(&|rollout| Some(rollout.truncated.clone()), 1)?;
        let ends = flags(&terminated).zip(flags(&truncated));
        let ends: Vec<bool> = ends.map(|(a, b)| a || b).collect();
        let (steps, envs) = (terminated.shape()[0], terminated.shape()[1]);
        let begun = ends.iter().map(|&ended| f32::from(u8::from(ended)));
        let starts = std::iter::repeat_n(0.0, envs).chain(begun).collect();
        let mut state = first.state.map(Array::clone);
        for (path, array) in state.leaves_mut() {
            *array = join(&|rollout| rollout.state.get(&path)?.leaf().cloned(), 0)?;
        }
        Ok(Self {
            steps,
            envs,
            rewards: join(&|rollout| Some(rollout.rewards.clone()), 1)?,
            terminated,
            log_probs: record("log_prob")?,
            values: record("value")?,
            state,
            ends,
            starts,
        })
    }
}

/// The end of an episode that was cut off, not terminated.
struct CutOff<'a> {
    rollout: &'a Rollout,
    /// Row of its last observation among those that the rollout kept.
    kept: usize,
    t: usize,
    /// Environment among those of the rollout.
    rollout_b: usize,
    /// Environment among all of the batch.
    b: usize,
}

fn cut_off<'a>(rollouts: &[&'a Rollout]) -> Vec<CutOff<'a>> {
    let (mut first, mut cut) = (0, Vec::new());
    for rollout in rollouts {
        for (kept, &(t, b)) in rollout.final_at.iter().enumerate() {
            if rollout.terminated.at(&[t, b]).bytes[0] == 0 {
                cut.push(CutOff {
                    rollout,
                    kept,
                    t,
                    rollout_b: b,
                    b: first + b,
                });
            }
        }
        first += rollout.envs();
    }
    // The same order however the environments are spread over rollouts: the last bits of a
    // network's output can depend on the row.
    cut.sort_by_key(|end| (end.t, end.b));
    cut
}

/// Copies numbers to the device.
fn fill(column: &Staging, values: &[f32]) {
    column.load(&Array::from_slice(values, &[values.len()]));
}

/// Advantages with mean 0 and standard deviation 1.
pub(crate) fn normalized(advantages: &Tensor) -> Tensor {
    let centred = advantages - advantages.mean(Kind::Float);
    let deviation = advantages.std(false).clamp_min(1e-6);
    centred / deviation
}

fn flags(column: &Array) -> impl Iterator<Item = bool> + '_ {
    column.as_slice::<u8>().iter().map(|&flag| flag != 0)
}

/// A batch in new memory.
#[cfg(test)]
pub(super) fn loaded(
    model: &Model,
    descent: &mut Descent,
    rollouts: &[&Rollout],
    estimate: Estimate,
    gamma: f64,
) -> Prepared {
    let (whole, timed) = gather(model, descent, rollouts).unwrap();
    let columns = Columns::new(model, rollouts[0], &whole, descent.device());
    let batch = columns.views();
    columns.load(model, rollouts, &whole, timed);
    columns.fill(
        &batch,
        model,
        descent.params(),
        rollouts,
        &whole,
        (estimate, gamma),
    );
    batch
}
