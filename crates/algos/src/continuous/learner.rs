//! The update that all off-policy algorithms for continuous actions share.

use std::sync::Arc;
use std::time::Instant;

use starling_envs::{Rng, stream};
use starling_nets::{
    ActionBounds, Descent, Device, Kind, Params, Recorded, Reducer, Snapshot, Staging, Tensor,
    UnitScale, array_of, fill_normal, no_grad, own_stream,
};
use starling_replay::TransitionBatch;
use starling_tree::{Array, DType, Spec, Tree};

use super::temperature::{Temperature, TemperatureConfig};
use super::{ContinuousConfig, Critics, Method, Nets};
use crate::trained::{
    load_count, load_descent, load_params, load_rng, save_count, save_descent, save_params,
    save_rng, shared_reducer,
};
use crate::{Batch, LearnError, Learner, Progress, Report, Saved, Started};

/// What an update of the critics reports, in order; the norm of the gradient comes last.
const OF_CRITICS: [&str; 4] = ["loss", "td_error", "q_value", "grad_norm"];

/// What an update of the actor reports, in order. The last two are only of actors that draw.
const OF_ACTOR: [&str; 4] = ["actor_loss", "actor_grad_norm", "entropy", "alpha"];

/// Actor, critics, their targets, and what moves them.
pub(super) struct ContinuousLearner<M> {
    config: ContinuousConfig,
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
    /// The first halves of the gradient steps, once there was a batch.
    steps: Option<Steps>,
}

/// Networks that follow those that learn.
pub(super) struct Targets {
    pub(super) critics: Params,
    /// Only of methods with a target network of the actor.
    pub(super) actor: Option<Params>,
}

struct Steps {
    critics: Recorded<Inputs, OfCritics>,
    actor: Recorded<ActorInputs, Tensor>,
    /// Room for random numbers on the host.
    normal: Vec<f32>,
}

/// What an update reads, always in the same memory, so that it can be recorded.
struct Inputs {
    obs: Tree<Staging>,
    next_obs: Tree<Staging>,
    actions: Staging,
    returns: Staging,
    discounts: Staging,
    weights: Staging,
    /// Standard normal numbers, `[2, N, A]`: for what follows, and for the actor's step.
    noise: Staging,
}

/// Those of the same tensors that the actor's step reads.
struct ActorInputs {
    obs: Tree<Tensor>,
    noise: Tensor,
}

/// What an update of the critics leaves behind.
struct OfCritics {
    /// Those of [`OF_CRITICS`] but the last.
    numbers: Tensor,
    /// `[N]`.
    priorities: Tensor,
}

impl Inputs {
    /// Memory for batches like this one.
    fn new(batch: &TransitionBatch, device: Device) -> Self {
        let column = |array: &Array| {
            let (rows, item) = (array.shape()[0], &array.shape()[1..]);
            Staging::new(rows, &Spec::new(array.dtype(), item), device)
        };
        let numbers = batch.actions.shape()[1..].iter().product();
        let noise = Spec::new(DType::F32, &[batch.size(), numbers]);
        Self {
            obs: batch.obs.map(column),
            next_obs: batch.next_obs.map(column),
            actions: column(&batch.actions),
            returns: column(&batch.returns),
            discounts: column(&batch.discounts),
            weights: column(&batch.weights),
            noise: Staging::new(2, &noise, device),
        }
    }

    /// Takes over a batch of the same shape.
    fn load(&self, batch: &TransitionBatch) {
        for (columns, arrays) in [(&self.obs, &batch.obs), (&self.next_obs, &batch.next_obs)] {
            let arrays = arrays.leaves().into_iter();
            for ((_, column), (_, array)) in columns.leaves().into_iter().zip(arrays) {
                column.load(array);
            }
        }
        self.actions.load(&batch.actions);
        self.returns.load(&batch.returns);
        self.discounts.load(&batch.discounts);
        self.weights.load(&batch.weights);
    }

    fn rows(&self) -> i64 {
        self.weights.tensor().size()[0]
    }

    fn of_actor(&self) -> ActorInputs {
        ActorInputs {
            obs: tensors(&self.obs),
            noise: self.noise.tensor().get(1),
        }
    }
}

fn tensors(columns: &Tree<Staging>) -> Tree<Tensor> {
    columns.map(|column| column.tensor().shallow_clone())
}

impl<M: Method> ContinuousLearner<M> {
    pub(super) fn new(
        config: ContinuousConfig,
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
                critics: copy(&networks.layout, &critics),
                actor: M::TARGET_ACTOR.then(|| copy(method.actor(), &actor)),
            },
            temperature: Temperature::new(&temperature, optimizer, device),
            config,
            method,
            networks,
            actor,
            critics,
            unit: bounds.unit(device),
            rng,
            updates: 0,
            device,
            steps: None,
        }
    }

    /// Brings a batch and the random numbers of its update to the device.
    fn load(&mut self, batch: &TransitionBatch) -> &mut Steps {
        own_stream(self.device);
        let size = batch.size() as i64;
        let fits = |old: &Steps| old.critics.inputs().rows() == size;
        let steps = self.steps.take().filter(fits);
        let mut steps = steps.unwrap_or_else(|| self.record(Inputs::new(batch, self.device)));
        let inputs = steps.critics.inputs();
        inputs.load(batch);
        let each = steps.normal.len();
        let mut drawn = false;
        for (row, needed) in [M::NOISE.following, M::NOISE.actor].into_iter().enumerate() {
            if needed {
                fill_normal(&mut self.rng, &mut steps.normal);
                let normal = Array::from_slice(&steps.normal, &[each]);
                inputs.noise.write(row, normal.bytes());
                drawn = true;
            }
        }
        if drawn {
            inputs.noise.upload();
        }
        self.steps.insert(steps)
    }

    /// The first halves of the gradient steps.
    fn record(&self, inputs: Inputs) -> Steps {
        let each = inputs.noise.tensor().get(0).numel();
        Steps {
            actor: self.record_actor(inputs.of_actor()),
            critics: self.record_critics(inputs),
            normal: vec![0.0; each],
        }
    }

    fn shared(&self) -> Shared {
        let next_actor = self.targets.actor.as_ref();
        let next_actor = next_actor.unwrap_or(self.actor.params());
        Shared {
            networks: self.networks.clone(),
            critics: self.critics.params().frozen(),
            target_critics: self.targets.critics.share(),
            next_actor: next_actor.frozen(),
            log_alpha: self.temperature.log_alpha().shallow_clone(),
        }
    }

    fn record_critics(&self, inputs: Inputs) -> Recorded<Inputs, OfCritics> {
        let (method, shared) = (Arc::clone(&self.method), self.shared());
        let (q, unit) = (self.networks.q.clone(), self.unit.share());
        self.critics.of(inputs, move |inputs: &Inputs, critics| {
            let targets = no_grad(|| {
                let (next, noise) = (tensors(&inputs.next_obs), inputs.noise.tensor().get(0));
                let following = shared.with(|nets| method.following(nets, &next, &noise));
                inputs.returns.tensor() + inputs.discounts.tensor() * following
            });
            let actions = unit.apply(inputs.actions.tensor());
            let values = q.forward(critics, &tensors(&inputs.obs), &actions);
            let (loss, errors) = critic_loss(&values, &targets, inputs.weights.tensor());
            let priorities = errors.mean_dim([0].as_slice(), false, Kind::Float);
            let (surprise, value) = (priorities.mean(Kind::Float), values.mean(Kind::Float));
            let outcome = OfCritics {
                numbers: Tensor::stack(&[&loss, &surprise, &value], 0).detach(),
                priorities,
            };
            (loss, outcome)
        })
    }

    /// Its output are the numbers of [`OF_ACTOR`] but the norm.
    fn record_actor(&self, inputs: ActorInputs) -> Recorded<ActorInputs, Tensor> {
        let (method, shared) = (Arc::clone(&self.method), self.shared());
        let place = self.temperature.log_prob().map(Tensor::shallow_clone);
        self.actor.of(inputs, move |inputs: &ActorInputs, actor| {
            shared.with(|nets| {
                let found = method.actor_loss(nets, actor, &inputs.obs, &inputs.noise);
                let mut numbers = vec![found.loss.detach()];
                if let Some(log_prob) = found.log_prob {
                    let log_prob = log_prob.detach();
                    if let Some(place) = &place {
                        place.shallow_clone().copy_(&log_prob);
                    }
                    numbers.extend([-log_prob, nets.alpha.shallow_clone()]);
                }
                (found.loss, Tensor::stack(&numbers, 0))
            })
        })
    }

    /// One update on what was loaded. Returns the numbers of [`OF_CRITICS`] and, if the actor took a
    /// step, of [`OF_ACTOR`]; and priorities, if the replay wants them.
    fn learn(&mut self, progress: Progress) -> Result<(Tensor, Option<Tensor>), LearnError> {
        let learning_rate = self.config.learning_rate.at(progress.fraction());
        self.critics.optimizer().set_learning_rate(learning_rate);
        let Some(steps) = &mut self.steps else {
            return Err(LearnError::Mismatch);
        };
        let OfCritics {
            numbers,
            priorities,
        } = steps.critics.run();
        let prioritized = self.config.replay.priority.as_ref();
        let priorities = prioritized.map(|_| priorities.shallow_clone());
        let norm = self.critics.step()?.reshape([1]);
        let mut numbers = Tensor::cat(&[numbers, &norm], 0);

        self.updates += 1;
        if self.updates.is_multiple_of(self.config.actor_every_updates) {
            let of_actor = self.step_actor(progress)?;
            numbers = Tensor::cat(&[numbers, of_actor], 0);
        }
        let every = self.config.target.target_every_updates;
        if self.updates.is_multiple_of(every) {
            self.follow();
        }
        Ok((numbers, priorities))
    }

    /// A step of the actor and of the temperature. Returns what [`OF_ACTOR`] names.
    fn step_actor(&mut self, progress: Progress) -> Result<Tensor, LearnError> {
        let rate = self.config.actor_learning_rate.at(progress.fraction());
        self.actor.optimizer().set_learning_rate(rate);
        let Some(steps) = &mut self.steps else {
            return Err(LearnError::Mismatch);
        };
        let numbers = steps.actor.run();
        let norm = self.actor.step()?.reshape([1]);
        let first = numbers.narrow(0, 0, 1);
        let rest = numbers.narrow(0, 1, numbers.size()[0] - 1);
        let numbers = Tensor::cat(&[first, norm, rest], 0);
        self.temperature.step(progress)?;
        Ok(numbers)
    }

    fn follow(&mut self) {
        let tau = self.config.target.target_tau;
        self.targets.critics.blend(self.critics.params(), tau);
        if let Some(actor) = &self.targets.actor {
            actor.blend(self.actor.params(), tau);
        }
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
        let place = self.load(batch).critics.inputs().noise.tensor();
        place.shallow_clone().copy_(&noise.reshape_as(place));
        let (numbers, priorities) = self.learn(progress)?;
        report(&numbers, priorities.as_ref(), progress.fraction())
    }
}

/// Networks without gradients that both steps read.
struct Shared {
    networks: Critics,
    critics: Params,
    target_critics: Params,
    next_actor: Params,
    log_alpha: Tensor,
}

impl Shared {
    fn with<T>(&self, compute: impl FnOnce(&Nets<'_>) -> T) -> T {
        compute(&Nets {
            q: &self.networks.q,
            critics: &self.critics,
            target_critics: &self.target_critics,
            next_actor: &self.next_actor,
            alpha: &self.log_alpha.exp().squeeze(),
        })
    }
}

/// The sum over critics of the mean of half squared errors of values `[C, N]`, weighted by
/// `weights` `[N]`; and absolute errors `[C, N]`.
pub(super) fn critic_loss(values: &Tensor, targets: &Tensor, weights: &Tensor) -> (Tensor, Tensor) {
    let errors = values - targets;
    let losses = errors.square() * 0.5 * weights;
    let critics = values.size()[0] as f64;
    (losses.mean(Kind::Float) * critics, errors.detach().abs())
}

/// What came of an update, by the numbers of [`OF_CRITICS`] and perhaps [`OF_ACTOR`].
fn report(
    numbers: &Tensor,
    priorities: Option<&Tensor>,
    learning_rate: f64,
) -> Result<Report, LearnError> {
    let numbers = array_of(numbers);
    let numbers = numbers.as_slice::<f32>().iter().map(|&x| f64::from(x));
    let names = OF_CRITICS.into_iter().chain(OF_ACTOR);
    let mut metrics: Vec<_> = names.zip(numbers).collect();
    metrics.push(("learning_rate", learning_rate));
    let priorities = priorities.map(|all| array_of(all).as_slice::<f32>().to_vec());
    Report::checked(metrics, priorities)
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
        Ok(Started::new(move || {
            let mut report = report(&numbers, priorities.as_ref(), learning_rate)?;
            report.assemble_s = assemble_s;
            Ok(report)
        }))
    }

    fn weights(&self) -> Snapshot {
        self.actor.params().snapshot()
    }

    fn join(&mut self, reducer: Box<dyn Reducer>) {
        let reducer = shared_reducer(reducer);
        self.critics.join(reducer());
        self.actor.join(reducer());
        self.temperature.join(reducer());
    }

    fn save(&self) -> Saved {
        let mut saved = Saved::new();
        save_descent(&mut saved, "actor.", &self.actor);
        save_descent(&mut saved, "critic.", &self.critics);
        self.temperature.save(&mut saved);
        save_params(&mut saved, "critic.target", &self.targets.critics);
        if let Some(actor) = &self.targets.actor {
            save_params(&mut saved, "actor.target", actor);
        }
        save_rng(&mut saved, &self.rng);
        save_count(&mut saved, "updates", self.updates);
        saved
    }

    fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        load_descent(saved, "actor.", &self.actor)?;
        load_descent(saved, "critic.", &self.critics)?;
        self.temperature.load(saved)?;
        load_params(saved, "critic.target", &self.targets.critics)?;
        if let Some(actor) = &self.targets.actor {
            load_params(saved, "actor.target", actor)?;
        }
        self.rng = load_rng(saved)?;
        self.updates = load_count(saved, "updates")?;
        Ok(())
    }
}
