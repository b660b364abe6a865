//! What policy-gradient algorithms share: the model, and rollouts as tensors with advantages.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use starling_envs::Rollout;
use starling_nets::{
    ActorCritic, ActorCriticOutput, Device, Kind, Layout, NetConfig, Params, RunningNorm,
    ShapeMismatch, Tensor, no_grad, own_stream, synchronize, tensor_of, tensor_of_view, tree_of,
};
use starling_tree::{Array, Tree};

use crate::acting::{ActorCriticPolicy, DeviceColumns};
use crate::memory::{LAST, ReturnScale, last_rows};
use crate::ops::generalized_advantages;
use crate::{LearnError, Spaces};

/// A network with the layout of its weights.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) net: ActorCritic,
    pub(crate) layout: Arc<Layout>,
    pub(crate) frame_stack: Option<usize>,
    /// How rewards are scaled, if they are.
    pub(crate) returns: Option<ReturnScale>,
}

impl Model {
    /// With `returns`, rewards are scaled by the deviation of returns with this discount.
    pub(crate) fn new(
        config: &NetConfig,
        spaces: &Spaces,
        returns: Option<f64>,
    ) -> Result<Self, ShapeMismatch> {
        let mut layout = Layout::default();
        let net = ActorCritic::new(&mut layout, config, &spaces.observation, &spaces.action)?;
        let returns = returns.map(|gamma| ReturnScale {
            norm: RunningNorm::new(&mut layout, "returns", &[1]),
            gamma: gamma as f32,
        });
        Ok(Self {
            net,
            returns,
            layout: Arc::new(layout),
            frame_stack: spaces.frame_stack,
        })
    }

    pub(crate) fn policy(&self, device: Device) -> ActorCriticPolicy {
        ActorCriticPolicy::new(self, device)
    }

    pub(crate) fn is_recurrent(&self) -> bool {
        !self.net.state_spec().is_empty()
    }
}

/// Rollouts as tensors, `[T·B, ..]` in time-major order, with advantages.
///
/// A learner keeps one and [`load`](Prepared::load)s one batch after the other into the same
/// memory, so that what it computes from there can be recorded.
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

/// What was loaded into a [`Prepared`].
pub(crate) struct Loaded {
    /// The memory is new: what was recorded with the old is void.
    pub(crate) moved: bool,
    /// Seconds it took to bring the batch to the device.
    pub(crate) seconds: f64,
}

impl Prepared {
    /// Puts a batch into `place`, with advantages from the learner's present values of the
    /// states that follow.
    pub(crate) fn load(
        place: &mut Option<Prepared>,
        model: &Model,
        params: &Params,
        rollouts: &[&Rollout],
        gamma: f64,
        lambda: f64,
    ) -> Result<Loaded, LearnError> {
        let (prepared, whole, loaded) = Self::place(place, model, params, rollouts)?;
        let envs = prepared.envs;
        let passed = model
            .is_recurrent()
            .then(|| no_grad(|| prepared.forward(model, params)));
        let values = whole.values.as_slice();
        let next = prepared.next_values(model, params, rollouts, &whole, passed.as_ref());
        let computed = generalized_advantages(
            whole.rewards.as_slice(),
            values,
            &next,
            &whole.ends,
            envs,
            gamma as f32,
            lambda as f32,
        );
        fill(&prepared.advantages, &computed.advantages);
        fill(&prepared.returns, &computed.returns);
        Ok(loaded)
    }

    /// Puts a batch into `place` for V-trace, with the learner's present values of the final
    /// observations of episodes that were cut off.
    pub(crate) fn load_trace(
        place: &mut Option<Prepared>,
        model: &Model,
        params: &Params,
        rollouts: &[&Rollout],
        gamma: f64,
    ) -> Result<Loaded, LearnError> {
        let (prepared, whole, loaded) = Self::place(place, model, params, rollouts)?;
        let trace = &prepared.trace;
        let discount = |terminated| if terminated { 0.0 } else { gamma as f32 };
        let discounts: Vec<f32> = flags(&whole.terminated).map(discount).collect();
        let number = |flag: bool| f32::from(u8::from(flag));
        let continues: Vec<f32> = whole.ends.iter().map(|&ended| number(!ended)).collect();
        fill(&trace.rewards, whole.rewards.as_slice());
        fill(&trace.discounts, &discounts);
        fill(&trace.continues, &continues);
        let cut = cut_off(rollouts);
        let (mut mask, mut values) = (vec![0.0; discounts.len()], vec![0.0; discounts.len()]);
        if !cut.is_empty() {
            let passed = model
                .is_recurrent()
                .then(|| no_grad(|| prepared.forward(model, params)));
            let next = prepared.next_values(model, params, rollouts, &whole, passed.as_ref());
            for end in &cut {
                let at = end.t * prepared.envs + end.b;
                (mask[at], values[at]) = (1.0, next[at]);
            }
        }
        fill(&trace.cut, &mask);
        fill(&trace.cut_values, &values);
        Ok(loaded)
    }

    /// Brings everything that does not depend on the weights to the device.
    fn place<'a>(
        place: &'a mut Option<Prepared>,
        model: &Model,
        params: &Params,
        rollouts: &[&Rollout],
    ) -> Result<(&'a mut Prepared, Whole, Loaded), LearnError> {
        let began = Instant::now();
        let device = params.flat().device();
        own_stream(device);
        let mut whole = Whole::of(rollouts)?;
        if let Some(returns) = &model.returns {
            returns.apply(params, &mut whole);
        }
        let (steps, envs) = (whole.steps, whole.envs);
        let fits = |old: &Prepared| (old.steps, old.envs) == (steps, envs);
        let moved = !place.as_ref().is_some_and(fits);
        if moved {
            *place = Some(Self::empty(model, rollouts[0], &whole, device));
        }
        let Some(prepared) = place else {
            return Err(LearnError::Mismatch);
        };
        prepared.load_columns(model, rollouts, &whole)?;
        synchronize(device);
        let seconds = began.elapsed().as_secs_f64();
        Ok((prepared, whole, Loaded { moved, seconds }))
    }

    fn empty(model: &Model, like: &Rollout, whole: &Whole, device: Device) -> Self {
        let (steps, envs) = (whole.steps as i64, whole.envs as i64);
        let column = |array: &Array, lead: &[i64]| {
            let item = array.shape()[2..].iter().map(|&n| n as i64);
            let shape: Vec<i64> = lead.iter().copied().chain(item).collect();
            let one = tensor_of_view(array.at(&[0, 0]), device);
            Tensor::zeros(&shape, (one.kind(), device))
        };
        let mut rows = like.obs.map(|array| column(array, &[steps + 1, envs]));
        let floats = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, device));
        if let Some(last) = &model.net.last {
            let last = floats(&[steps + 1, envs, last.size as i64]);
            rows = ActorCritic::with_last(rows, last);
        }
        let vector = || floats(&[steps * envs]);
        let trace = Trace {
            rewards: floats(&[steps, envs]),
            discounts: floats(&[steps, envs]),
            continues: floats(&[steps, envs]),
            cut: floats(&[steps, envs]),
            cut_values: floats(&[steps, envs]),
            starts: floats(&[steps + 1, envs]),
            legal: like
                .legal
                .as_ref()
                .map(|array| column(array, &[(steps + 1) * envs])),
        };
        let legal = trace.legal.as_ref();
        Self {
            steps: whole.steps,
            envs: whole.envs,
            obs: rows.map(|all| all.narrow(0, 0, steps).flatten(0, 1)),
            rows,
            legal: legal.map(|all| all.narrow(0, 0, steps * envs)),
            actions: column(&like.actions, &[steps * envs]),
            log_probs: vector(),
            values: vector(),
            advantages: vector(),
            returns: vector(),
            starts: trace.starts.narrow(0, 0, steps),
            trace,
            state: like.state.map(|array| {
                let item = array.shape()[1..].iter().map(|&n| n as i64);
                let shape: Vec<i64> = std::iter::once(envs).chain(item).collect();
                Tensor::zeros(&shape, (Kind::Float, device))
            }),
        }
    }

    fn load_columns(
        &mut self,
        model: &Model,
        rollouts: &[&Rollout],
        whole: &Whole,
    ) -> Result<(), LearnError> {
        let device = self.advantages.device();
        let mut first = 0;
        for rollout in rollouts {
            let envs = rollout.envs() as i64;
            let resident = rollout.resident.get::<DeviceColumns>();
            let resident =
                resident.map(|columns| columns.lock().unwrap_or_else(PoisonError::into_inner));
            let columns = match &resident {
                Some(columns) => columns.map(Tensor::shallow_clone),
                None => tree_of(&rollout.obs, &[], device),
            };
            for ((_, rows), (_, column)) in self.rows.leaves().into_iter().zip(columns.leaves()) {
                no_grad(|| rows.narrow(1, first, envs).copy_(column));
            }
            first += envs;
        }
        if let (Some(last), Some(Tree::Leaf(rows))) = (&model.net.last, self.rows.get(LAST)) {
            fill(rows, &last_rows(last, rollouts));
        }
        if let (Some(legal), Some(mask)) = (&self.trace.legal, &whole.legal) {
            let mask = tensor_of(mask, device).flatten(0, 1);
            legal.shallow_clone().copy_(&mask);
        }
        let actions = tensor_of(&whole.actions, device).flatten(0, 1);
        self.actions.copy_(&actions);
        fill(&self.log_probs, whole.log_probs.as_slice());
        fill(&self.values, whole.values.as_slice());
        fill(&self.trace.starts, &whole.starts);
        for ((_, state), (_, whole)) in self.state.leaves().into_iter().zip(whole.state.leaves()) {
            state.shallow_clone().copy_(&tensor_of(whole, device));
        }
        Ok(())
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

    /// Takes the observations into the running statistics of the network, if it keeps any. This
    /// comes after learning, so that the statistics change together with the weights.
    pub(crate) fn observe(&self, model: &Model, params: &Params) {
        model.net.observe(params, &self.obs);
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
pub(crate) struct Whole {
    pub(crate) steps: usize,
    pub(crate) envs: usize,
    legal: Option<Array>,
    actions: Array,
    pub(crate) rewards: Array,
    terminated: Array,
    log_probs: Array,
    values: Array,
    pub(crate) state: Tree<Array>,
    /// Whether an episode ended with the step.
    pub(crate) ends: Vec<bool>,
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
            legal: match &first.legal {
                Some(_) => Some(join(&|rollout| rollout.legal.clone(), 1)?),
                None => None,
            },
            actions: join(&|rollout| Some(rollout.actions.clone()), 1)?,
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

/// Overwrites a tensor with numbers from the host.
fn fill(tensor: &Tensor, values: &[f32]) {
    let values = Tensor::from_slice(values).reshape(tensor.size());
    no_grad(|| tensor.shallow_clone().copy_(&values));
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
