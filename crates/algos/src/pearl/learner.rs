//! PEARL's learner: networks, optimisers, and the update as one recorded computation.

use std::sync::Arc;
use std::time::Instant;

use starling_envs::{Rng, stream};
use starling_nets::{
    Arriving, Descent, Device, Kind, Params, Recorded, SharedReducer, Snapshot, Staging, Tensor,
    UnitScale, fill_normal, no_grad, own_stream,
};
use starling_replay::TransitionBatch;
use starling_tree::{Array, DType, Spec};

use super::Config;
use super::networks::Networks;
use super::update::{Columns, NUMBERS, Update};
use crate::staged::{IN_FLIGHT, StagedTransitions, in_flight, report};
use crate::trained::{load_descent, load_params, load_rng, save_descent, save_params, save_rng};
use crate::{Batch, LearnError, Learner, Progress, Report, Saved, Started};

/// All networks, and what moves them.
pub(super) struct PearlLearner {
    config: Arc<Config>,
    networks: Arc<Networks>,
    /// With the encoder.
    pub(super) critics: Descent,
    value: Descent,
    actor: Descent,
    target_value: Params,
    /// What policies get.
    acting: Params,
    unit: UnitScale,
    rng: Rng,
    device: Device,
    /// Once there was a batch.
    prepared: Option<Prepared>,
}

/// Memory for batches, and what is computed there.
struct Prepared {
    inputs: Inputs,
    /// Room for random numbers on the host.
    normal: Vec<f32>,
    whole: Recorded<Columns, Tensor>,
    /// The first halves of the gradient steps, for learners in a group.
    halves: Option<[Recorded<Columns, Vec<Tensor>>; 3]>,
}

/// Where batches are written.
struct Inputs {
    transitions: StagedTransitions,
    z_noise: Staging,
    action_noise: Staging,
    z: Tensor,
    learners: Tensor,
}

impl Inputs {
    /// Memory for batches like this one.
    fn new(batch: &TransitionBatch, config: &Config, networks: &Networks, device: Device) -> Self {
        let noise = |rows: usize, numbers: usize| {
            Staging::ahead(rows, &Spec::new(DType::F32, &[numbers]), device, IN_FLIGHT)
        };
        let (tasks, latent) = (config.meta_batch, networks.latent);
        Self {
            transitions: StagedTransitions::new(batch, device),
            z_noise: noise(tasks, latent),
            action_noise: noise(tasks * config.batch_size, networks.bounds.len()),
            z: Tensor::zeros([tasks as i64, latent as i64], (Kind::Float, device)),
            learners: Tensor::ones([], (Kind::Float, device)),
        }
    }

    /// The same memory on the device.
    fn columns(&self) -> Columns {
        Columns {
            transitions: self.transitions.columns(),
            z_noise: self.z_noise.tensor().shallow_clone(),
            action_noise: self.action_noise.tensor().shallow_clone(),
            z: self.z.shallow_clone(),
            learners: self.learners.shallow_clone(),
        }
    }
}

impl PearlLearner {
    pub(super) fn new(
        config: Arc<Config>,
        networks: Arc<Networks>,
        seed: u64,
        device: Device,
    ) -> Self {
        let mut rng = stream(seed, "learner", 0);
        let mut descent = |layout| {
            let params = Params::init(layout, &mut rng, device);
            Descent::new(params, config.optimizer, config.clip_norm)
        };
        let critics = descent(&networks.critics);
        let (value, actor) = (descent(&networks.value), descent(&networks.actor));
        let target_value = Params::zeros(&networks.value, device);
        target_value.copy_from(value.params());
        Self {
            acting: Params::zeros(&networks.acting, device),
            unit: networks.bounds.unit(device),
            config,
            networks,
            critics,
            value,
            actor,
            target_value,
            rng,
            device,
            prepared: None,
        }
    }

    /// What an update reads and changes, to be owned by a recording.
    fn computation(&self) -> Update {
        Update {
            config: Arc::clone(&self.config),
            networks: Arc::clone(&self.networks),
            unit: self.unit.share(),
            critics: self.critics.mover(),
            value: self.value.mover(),
            actor: self.actor.mover(),
            frozen_critics: self.critics.params().frozen(),
            target_value: self.target_value.share(),
        }
    }

    /// Brings a batch and the random numbers of its update to the device.
    fn load_batch(&mut self, batch: &TransitionBatch) -> Result<(), LearnError> {
        if batch.size() != self.config.draws().batch_size() {
            return Err(LearnError::Mismatch);
        }
        own_stream(self.device);
        let mut prepared = self.prepared.take().unwrap_or_else(|| {
            let inputs = Inputs::new(batch, &self.config, &self.networks, self.device);
            let update = self.computation();
            let compute = move |columns: &Columns| update.whole(columns);
            Prepared {
                normal: Vec::new(),
                whole: Recorded::new(self.device, inputs.columns(), compute),
                inputs,
                halves: None,
            }
        });
        let Prepared { inputs, normal, .. } = &mut prepared;
        inputs.transitions.load(batch);
        let noises = [&inputs.z_noise, &inputs.action_noise];
        for noise in noises
            .into_iter()
            .filter(|noise| noise.tensor().numel() > 0)
        {
            normal.resize(noise.tensor().numel(), 0.0);
            fill_normal(&mut self.rng, normal);
            let numbers = Array::from_slice(normal, &[normal.len()]);
            noise.write(0, numbers.bytes());
            noise.upload();
        }
        self.prepared = Some(prepared);
        Ok(())
    }

    /// One update on what was loaded. Returns what [`NUMBERS`] names.
    fn learn(&mut self, progress: Progress) -> Result<Tensor, LearnError> {
        let rate = self.config.learning_rate.at(progress.fraction());
        for descent in [&self.critics, &self.value, &self.actor] {
            descent.optimizer().set_learning_rate(rate);
        }
        let mut prepared = self.prepared.take().ok_or(LearnError::Mismatch)?;
        let learned = match self.critics.in_group() {
            true => self.learn_in_group(&mut prepared),
            false => Ok(prepared.whole.run().shallow_clone()),
        };
        self.prepared = Some(prepared);
        learned
    }

    /// The same with all gradients averaged over a group of learners.
    fn learn_in_group(&mut self, prepared: &mut Prepared) -> Result<Tensor, LearnError> {
        let Prepared { inputs, halves, .. } = prepared;
        let learners = self.critics.group_size() as f64;
        let _ = no_grad(|| inputs.learners.shallow_clone().fill_(learners));
        let [critics, value, actor] = halves.get_or_insert_with(|| {
            let half = |compute: fn(&Update, &Columns) -> Vec<Tensor>| {
                let update = self.computation();
                let compute = move |columns: &Columns| compute(&update, columns);
                Recorded::new(self.device, inputs.columns(), compute)
            };
            [
                half(Update::differentiate_critics),
                half(|update, columns| {
                    let proposed = no_grad(|| update.propose(columns));
                    update.differentiate_value(columns, &proposed)
                }),
                half(|update, columns| update.differentiate_actor(&update.propose(columns))),
            ]
        });
        let share = |tensors: &[Tensor]| -> Vec<Tensor> {
            tensors.iter().map(Tensor::shallow_clone).collect()
        };
        let mut numbers = share(critics.run());
        numbers.push(self.critics.step()?.shallow_clone());
        numbers.extend(share(value.run()));
        numbers.push(self.value.step()?.shallow_clone());
        numbers.extend(share(actor.run()));
        numbers.push(self.actor.step()?.shallow_clone());
        // After the last step, since an update that breaks is made again. The actor does not use it.
        let tau = self.config.target_tau;
        self.target_value.blend(self.value.params(), tau);
        Ok(Tensor::stack(&numbers, 0))
    }
}

#[cfg(test)]
impl PearlLearner {
    /// An update with given random numbers.
    pub(super) fn update_with_noise(
        &mut self,
        batch: &TransitionBatch,
        noise: [&Tensor; 2],
        progress: Progress,
    ) -> Result<Report, LearnError> {
        self.load_batch(batch)?;
        let inputs = &self.prepared.as_ref().ok_or(LearnError::Mismatch)?.inputs;
        for (place, noise) in [&inputs.z_noise, &inputs.action_noise]
            .into_iter()
            .zip(noise)
        {
            let place = place.tensor();
            place.shallow_clone().copy_(&noise.reshape_as(place));
        }
        let numbers = self.learn(progress)?;
        report(&NUMBERS, Arriving::of(&[&numbers]), 0.0)
    }
}

impl Learner for PearlLearner {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        self.start(batch, progress)?.finish()
    }

    fn start(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Started, LearnError> {
        let Batch::Transitions(batch) = batch else {
            let wanted = "transitions";
            return Err(LearnError::WrongBatch { wanted });
        };
        let began = Instant::now();
        self.load_batch(batch)?;
        let assemble_s = began.elapsed().as_secs_f64();
        let numbers = self.learn(progress)?;
        let learning_rate = self.config.learning_rate.at(progress.fraction());
        let arriving = Arriving::of(&[&numbers]);
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
        no_grad(|| {
            let size = self.networks.encoder_size;
            let encoder = self.critics.params().flat().narrow(0, 0, size);
            let parts = [&encoder, self.actor.params().flat()];
            self.acting
                .flat()
                .shallow_clone()
                .copy_(&Tensor::cat(&parts, 0));
        });
        self.acting.snapshot()
    }

    fn join(&mut self, reducer: SharedReducer) {
        self.critics.join(Arc::clone(&reducer));
        self.value.join(Arc::clone(&reducer));
        self.actor.join(reducer);
    }

    fn save(&self) -> Saved {
        let mut saved = Saved::new();
        save_descent(&mut saved, "critic.", &self.critics);
        save_descent(&mut saved, "value.", &self.value);
        save_descent(&mut saved, "actor.", &self.actor);
        save_params(&mut saved, "value.target", &self.target_value);
        save_rng(&mut saved, &self.rng);
        saved
    }

    fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        load_descent(saved, "critic.", &self.critics)?;
        load_descent(saved, "value.", &self.value)?;
        load_descent(saved, "actor.", &self.actor)?;
        load_params(saved, "value.target", &self.target_value)?;
        self.rng = load_rng(saved)?;
        Ok(())
    }
}
