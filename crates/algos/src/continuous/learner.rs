//! The update that all off-policy algorithms for continuous actions share.

use std::sync::Arc;
use std::time::Instant;

use starling_envs::{Rng, stream};
use starling_nets::{
    ActionBounds, Arriving, Descent, Device, Params, Recorded, SharedReducer, Snapshot, Staging,
    Tensor, UnitScale, fill_normal, own_stream,
};
use starling_replay::TransitionBatch;
use starling_tree::{Array, DType, Spec};

use super::temperature::{Temperature, TemperatureConfig};
use super::update::{Columns, NUMBERS, Outcome, Steps, Update, in_order};
use super::{ContinuousConfig, Critics, Method};
use crate::off_policy::TargetSettings;
use crate::staged::{IN_FLIGHT, StagedTransitions, in_flight, report, staged};
use crate::trained::{
    load_count, load_descent, load_params, load_rng, save_count, save_descent, save_params,
    save_rng,
};
use crate::{Batch, LearnError, Learner, Progress, Report, Saved, Started};

/// Actor, critics, their targets, and what moves them.
pub(super) struct ContinuousLearner<M> {
    config: ContinuousConfig,
    target: Option<TargetSettings>,
    method: Arc<M>,
    networks: Critics,
    pub(super) actor: Descent,
    pub(super) critics: Descent,
    pub(super) targets: Targets,
    temperature: Temperature,
    unit: UnitScale,
    rng: Rng,
    updates: u64,
    device: Device,
    /// Once there was a batch.
    prepared: Option<Prepared>,
}

/// Target networks.
pub(super) struct Targets {
    pub(super) critics: Option<Params>,
    pub(super) actor: Option<Params>,
}

impl Targets {
    /// Those that there are, by the name of what they follow.
    fn named(&self) -> impl Iterator<Item = (&'static str, &Params)> {
        let named = [
            ("critic.target", &self.critics),
            ("actor.target", &self.actor),
        ];
        named
            .into_iter()
            .filter_map(|(name, target)| Some((name, target.as_ref()?)))
    }
}

/// Memory for batches, and what is computed there.
struct Prepared {
    inputs: Inputs,
    /// Room for random numbers on the host.
    normal: Vec<f32>,
    /// Whole updates, each recorded when it first occurs.
    whole: Vec<(Steps, Recorded<Columns, Outcome>)>,
    /// The first halves of the gradient steps, for learners in a group.
    halves: Option<Halves>,
}

struct Halves {
    critics: Recorded<Columns, (Vec<Tensor>, Tensor)>,
    actor: Recorded<Columns, Vec<Tensor>>,
}

/// Where batches are written.
struct Inputs {
    transitions: StagedTransitions,
    weights: Staging,
    /// Standard normal numbers, `[2, N, A]`: for the next actions, and for the actor's step.
    noise: Staging,
}

impl Inputs {
    /// Memory for batches like this one.
    fn new(batch: &TransitionBatch, device: Device) -> Self {
        let numbers = batch.actions.shape()[1..].iter().product();
        let noise = Spec::new(DType::F32, &[batch.size(), numbers]);
        Self {
            transitions: StagedTransitions::new(batch, device),
            weights: staged(&batch.weights, device),
            noise: Staging::ahead(2, &noise, device, IN_FLIGHT),
        }
    }

    /// Takes over a batch of the same shape.
    fn load(&self, batch: &TransitionBatch) {
        self.transitions.load(batch);
        self.weights.load(&batch.weights);
    }

    fn rows(&self) -> i64 {
        self.weights.tensor().size()[0]
    }

    /// The same memory on the device.
    fn columns(&self) -> Columns {
        Columns {
            transitions: self.transitions.columns(),
            weights: self.weights.tensor().shallow_clone(),
            noise: self.noise.tensor().shallow_clone(),
        }
    }
}

impl<M: Method> ContinuousLearner<M> {
    pub(super) fn new(
        config: ContinuousConfig,
        target: Option<TargetSettings>,
        method: Arc<M>,
        networks: Critics,
        bounds: &ActionBounds,
        seed: u64,
        device: Device,
    ) -> Self {
        let mut rng = stream(seed, "learner", 0);
        let (optimizer, clip_norm) = (config.optimizer, config.clip_norm);
        let mut descent = |layout| {
            let params = Params::init(layout, &mut rng, device);
            Descent::new(params, optimizer, clip_norm)
        };
        let (actor, critics) = (descent(method.actor()), descent(&networks.layout));
        let copy = |layout, of: &Descent| {
            let target = Params::zeros(layout, device);
            target.copy_from(of.params());
            target
        };
        let without = TemperatureConfig::Fixed(0.0);
        let temperature = method.temperature().unwrap_or(without);
        Self {
            targets: Targets {
                critics: target.as_ref().map(|_| copy(&networks.layout, &critics)),
                actor: M::TARGET_ACTOR.then(|| copy(method.actor(), &actor)),
            },
            temperature: Temperature::new(&temperature, optimizer, device),
            config,
            target,
            method,
            networks,
            actor,
            critics,
            unit: bounds.unit(device),
            rng,
            updates: 0,
            device,
            prepared: None,
        }
    }

    /// Brings a batch and the random numbers of its update to the device.
    fn load(&mut self, batch: &TransitionBatch) -> &Inputs {
        own_stream(self.device);
        let size = batch.size() as i64;
        let prepared = self.prepared.take();
        let prepared = prepared.filter(|old| old.inputs.rows() == size);
        let mut prepared = prepared.unwrap_or_else(|| {
            let inputs = Inputs::new(batch, self.device);
            Prepared {
                normal: vec![0.0; inputs.noise.tensor().numel() / 2],
                inputs,
                whole: Vec::new(),
                halves: None,
            }
        });
        prepared.inputs.load(batch);
        let each = prepared.normal.len();
        let mut drawn = false;
        for (row, needed) in [M::NOISE.following, M::NOISE.actor].into_iter().enumerate() {
            if needed {
                fill_normal(&mut self.rng, &mut prepared.normal);
                let normal = Array::from_slice(&prepared.normal, &[each]);
                prepared.inputs.noise.write(row, normal.bytes());
                drawn = true;
            }
        }
        if drawn {
            prepared.inputs.noise.upload();
        }
        &self.prepared.insert(prepared).inputs
    }

    /// What an update reads and changes, to be owned by a recording.
    fn computation(&self) -> Update<M> {
        let target_actor = self.targets.actor.as_ref();
        let next_actor = target_actor.unwrap_or(self.actor.params());
        Update {
            method: Arc::clone(&self.method),
            q: self.networks.q.clone(),
            unit: self.unit.share(),
            critics: self.critics.mover(),
            actor: self.actor.mover(),
            frozen_critics: self.critics.params().frozen(),
            target_critics: self.targets.critics.as_ref().map(Params::share),
            next_actor: next_actor.frozen(),
            target_actor: target_actor.map(Params::share),
            temperature: self.temperature.recorded(),
            tau: self.target.as_ref().map_or(0.0, |target| target.target_tau),
        }
    }

    /// One update on what was loaded. Returns what [`NUMBERS`] names, and priorities, if the replay
    /// wants them.
    fn learn(&mut self, progress: Progress) -> Result<(Tensor, Option<Tensor>), LearnError> {
        let fraction = progress.fraction();
        let rate = self.config.learning_rate.at(fraction);
        self.critics.optimizer().set_learning_rate(rate);
        let rate = self.config.actor_learning_rate.at(fraction);
        self.actor.optimizer().set_learning_rate(rate);
        self.temperature.set_learning_rate(progress);
        let update = self.updates + 1;
        let moves = |target: &TargetSettings| update.is_multiple_of(target.target_every_updates);
        let steps = Steps {
            actor: update.is_multiple_of(self.config.actor_every_updates),
            targets: self.target.as_ref().is_some_and(moves),
        };
        let mut prepared = self.prepared.take().ok_or(LearnError::Mismatch)?;
        let learned = match self.critics.in_group() {
            true => self.learn_in_group(&mut prepared, steps),
            false => Ok(self.learn_alone(&mut prepared, steps)),
        };
        self.prepared = Some(prepared);
        let (numbers, priorities) = learned?;
        self.updates = update;
        let prioritized = self.config.replay.priority.is_some();
        Ok((numbers, prioritized.then_some(priorities)))
    }

    fn learn_alone(&self, prepared: &mut Prepared, steps: Steps) -> (Tensor, Tensor) {
        let Prepared { whole, inputs, .. } = prepared;
        let known = whole.iter().position(|(kind, _)| *kind == steps);
        let index = known.unwrap_or_else(|| {
            let update = self.computation();
            let compute = move |columns: &Columns| update.whole(columns, steps);
            let recorded = Recorded::new(self.device, inputs.columns(), compute);
            whole.push((steps, recorded));
            whole.len() - 1
        });
        let outcome = whole[index].1.run();
        let Outcome {
            numbers,
            priorities,
        } = outcome;
        (numbers.shallow_clone(), priorities.shallow_clone())
    }

    /// The same with all gradients averaged over a group of learners.
    fn learn_in_group(
        &mut self,
        prepared: &mut Prepared,
        steps: Steps,
    ) -> Result<(Tensor, Tensor), LearnError> {
        let Prepared { halves, inputs, .. } = prepared;
        let halves = halves.get_or_insert_with(|| {
            let (critics, actor) = (self.computation(), self.computation());
            let place = self.temperature.log_prob().map(Tensor::shallow_clone);
            let of_critics = move |columns: &Columns| critics.differentiate_critics(columns);
            let of_actor = move |columns: &Columns| {
                let (numbers, log_prob) = actor.differentiate_actor(columns);
                if let (Some(place), Some(log_prob)) = (&place, log_prob) {
                    place.shallow_clone().copy_(&log_prob);
                }
                numbers
            };
            Halves {
                critics: Recorded::new(self.device, inputs.columns(), of_critics),
                actor: Recorded::new(self.device, inputs.columns(), of_actor),
            }
        });
        let share = |tensors: &[Tensor]| -> Vec<Tensor> {
            tensors.iter().map(Tensor::shallow_clone).collect()
        };
        let (numbers, priorities) = halves.critics.run();
        let (mut numbers, priorities) = (share(numbers), priorities.shallow_clone());
        numbers.push(self.critics.step()?.shallow_clone());
        if steps.actor {
            let of_actor = share(halves.actor.run());
            let norm = self.actor.step()?.shallow_clone();
            numbers.extend(in_order(of_actor, norm));
            self.temperature.step()?;
        }
        if steps.targets {
            self.computation().follow();
        }
        Ok((Tensor::stack(&numbers, 0), priorities))
    }
}

#[cfg(test)]
impl<M: Method> ContinuousLearner<M> {
    /// An update with given random numbers, `[2, N, A]` laid flat.
    pub(super) fn update_with_noise(
        &mut self,
        batch: &TransitionBatch,
        noise: &Tensor,
        progress: Progress,
    ) -> Result<Report, LearnError> {
        let place = self.load(batch).noise.tensor();
        place.shallow_clone().copy_(&noise.reshape_as(place));
        let (numbers, priorities) = self.learn(progress)?;
        report(&NUMBERS, arriving(&numbers, priorities.as_ref()), 0.0)
    }
}

fn arriving(numbers: &Tensor, priorities: Option<&Tensor>) -> Arriving {
    let all: Vec<&Tensor> = std::iter::once(numbers).chain(priorities).collect();
    Arriving::of(&all)
}

impl<M: Method> Learner for ContinuousLearner<M> {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        self.start(batch, progress)?.finish()
    }

    fn start(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Started, LearnError> {
        let Batch::Transitions(batch) = batch else {
            let wanted = "transitions";
            return Err(LearnError::WrongBatch { wanted });
        };
        let began = Instant::now();
        self.load(batch);
        let assemble_s = began.elapsed().as_secs_f64();
        let (numbers, priorities) = self.learn(progress)?;
        let learning_rate = self.config.learning_rate.at(progress.fraction());
        let arriving = arriving(&numbers, priorities.as_ref());
        Ok(Started::new(move || {
            let mut report = report(&NUMBERS, arriving, learning_rate)?;
            report.assemble_s = assemble_s;
            Ok(report)
        }))
    }

    fn in_flight(&self) -> usize {
        in_flight(self.device)
    }

    fn weights(&self) -> Snapshot {
        self.actor.params().snapshot()
    }

    fn join(&mut self, reducer: SharedReducer) {
        self.critics.join(Arc::clone(&reducer));
        self.actor.join(Arc::clone(&reducer));
        self.temperature.join(reducer);
    }

    fn save(&self) -> Saved {
        let mut saved = Saved::new();
        save_descent(&mut saved, "actor.", &self.actor);
        save_descent(&mut saved, "critic.", &self.critics);
        self.temperature.save(&mut saved);
        for (name, target) in self.targets.named() {
            save_params(&mut saved, name, target);
        }
        save_rng(&mut saved, &self.rng);
        save_count(&mut saved, "updates", self.updates);
        saved
    }

    fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        load_descent(saved, "actor.", &self.actor)?;
        load_descent(saved, "critic.", &self.critics)?;
        self.temperature.load(saved)?;
        for (name, target) in self.targets.named() {
            load_params(saved, name, target)?;
        }
        self.rng = load_rng(saved)?;
        self.updates = load_count(saved, "updates")?;
        Ok(())
    }
}
