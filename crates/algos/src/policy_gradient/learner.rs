//! The update that all policy-gradient algorithms share.

use std::sync::Arc;

use starling_nets::{Device, Kind, Recorded, SharedReducer, Snapshot, Tensor, array_of};

use super::batch::{self, Columns, Loaded};
use super::{Context, Method, Model, PolicyGradientConfig, Prepared};
use crate::minibatches::Minibatches;
use crate::trained::Trained;
use crate::{Batch, LearnError, Learner, Progress, Report, Saved};

/// What all gradient steps report first; the norm of the gradient comes last.
const TERMS: [&str; 4] = ["loss", "policy_loss", "value_loss", "entropy"];

/// Batches of this many widths keep their memory and their recordings: asynchronously, rollouts of
/// actors with different numbers of environments come in any mixture.
const WIDTHS: usize = 4;

pub(super) struct PolicyGradientLearner<M> {
    shared: PolicyGradientConfig,
    method: Arc<M>,
    model: Model,
    trained: Trained,
    /// By the number of environments of a batch, the latest last.
    places: Vec<Place>,
    /// Present value of [`Method::ratio_clip`].
    ratio_clip: Tensor,
    /// Sums of what gradient steps report.
    sums: Tensor,
    norms: Tensor,
}

/// The memory of a batch, and what was recorded over it.
struct Place {
    columns: Columns,
    batch: Prepared,
    prepare: Option<Recorded<Prepared, Vec<Tensor>>>,
    steps: Minibatches,
}

impl<M: Method> PolicyGradientLearner<M> {
    pub(super) fn new(
        shared: PolicyGradientConfig,
        method: Arc<M>,
        model: Model,
        seed: u64,
        device: Device,
    ) -> Self {
        let (optimizer, clip_norm) = (shared.optimizer, shared.clip_norm);
        let trained = Trained::new(&model.layout, optimizer, clip_norm, seed, device);
        let reported = (TERMS.len() + M::REPORTED.len()) as i64;
        Self {
            shared,
            method,
            model,
            trained,
            places: Vec::new(),
            ratio_clip: Tensor::zeros([], (Kind::Float, device)),
            sums: Tensor::zeros([reported], (Kind::Float, device)),
            norms: Tensor::zeros([], (Kind::Float, device)),
        }
    }

    /// Copies a batch to the device, with advantages or the inputs of V-trace.
    fn load(&mut self, batch: Batch<'_>) -> Result<(Place, Loaded), LearnError> {
        let Batch::Rollouts(rollouts) = batch else {
            return Err(LearnError::WrongBatch { wanted: "rollouts" });
        };
        let (model, descent) = (&self.model, &mut self.trained.descent);
        let (whole, loaded) = batch::gather(model, descent, rollouts)?;
        let known = self
            .places
            .iter()
            .position(|place| place.columns.fits(rollouts));
        let place = match known {
            Some(known) => self.places.remove(known),
            None => {
                let columns = Columns::new(model, rollouts[0], &whole, descent.device());
                Place {
                    batch: columns.views(),
                    columns,
                    prepare: None,
                    steps: Minibatches::default(),
                }
            }
        };
        let loaded = place.columns.load(model, rollouts, &whole, loaded);
        let by = (self.method.estimate(), self.shared.gamma);
        let (batch, params) = (&place.batch, descent.params());
        place
            .columns
            .fill(batch, model, params, rollouts, &whole, by);
        Ok((place, loaded))
    }

    /// The first half of a gradient step over the chosen items of a batch, or all of it.
    fn record(
        &self,
        batch: &Prepared,
    ) -> impl Fn(&Trained, Tensor, bool) -> Recorded<Tensor, ()> + use<M> {
        let (shared, method) = (self.shared.clone(), Arc::clone(&self.method));
        let (model, batch) = (self.model.clone(), batch.share());
        let (ratio_clip, sums) = (self.ratio_clip.shallow_clone(), self.sums.shallow_clone());
        move |trained, chosen, whole| {
            let (shared, method) = (shared.clone(), Arc::clone(&method));
            let (model, batch) = (model.clone(), batch.share());
            let (ratio_clip, sums) = (ratio_clip.shallow_clone(), sums.shallow_clone());
            trained.descent.of(chosen, move |chosen, params| {
                let context = Context {
                    model: &model,
                    params,
                    ratio_clip: &ratio_clip,
                };
                let terms = method.terms(&context, &batch, (!whole).then_some(chosen));
                let loss = shared.total(&terms.policy_loss, &terms.value_loss, &terms.entropy);
                let all = [&loss, &terms.policy_loss, &terms.value_loss, &terms.entropy];
                let all = all.map(|term| term / terms.summed_steps);
                let all: Vec<&Tensor> = all.iter().chain(&terms.numbers).collect();
                let mut sums = sums.shallow_clone();
                sums += Tensor::stack(&all, 0).detach();
                (loss, ())
            })
        }
    }

    /// What is computed once for a batch; its numbers are those of [`Method::PREPARED`].
    fn prepare(&self, place: &mut Place) -> Vec<f64> {
        if !self.method.prepares() {
            return Vec::new();
        }
        let prepare = place.prepare.get_or_insert_with(|| {
            let (method, model) = (Arc::clone(&self.method), self.model.clone());
            let params = self.trained.params().share();
            let ratio_clip = self.ratio_clip.shallow_clone();
            let compute = move |batch: &Prepared| {
                let context = Context {
                    model: &model,
                    params: &params,
                    ratio_clip: &ratio_clip,
                };
                method.prepare(&context, batch)
            };
            Recorded::new(self.sums.device(), place.batch.share(), compute)
        });
        let numbers = prepare.run().iter();
        numbers.map(|number| number.double_value(&[])).collect()
    }
}

impl<M: Method> Learner for PolicyGradientLearner<M> {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        let (mut place, loaded) = self.load(batch)?;
        let learning_rate = self.shared.learning_rate.at(progress.fraction());
        self.trained
            .descent
            .optimizer()
            .set_learning_rate(learning_rate);
        if let Some(schedule) = self.method.ratio_clip() {
            let _ = self.ratio_clip.fill_(schedule.at(progress.fraction()));
        }
        let _ = (self.sums.zero_(), self.norms.zero_());

        let prepared = self.prepare(&mut place);
        let passes = self.method.passes(&place.batch, self.model.is_recurrent());
        let record = self.record(&place.batch);
        let (trained, norms) = (&mut self.trained, &mut self.norms);
        let steps = place.steps.learn(passes, trained, norms, record)?;
        // After learning, so that the statistics change together with the weights.
        let seen = self.model.net.seen(&place.batch.obs);
        self.trained.descent.observe(&seen)?;

        if self.places.len() == WIDTHS {
            self.places.remove(0);
        }
        self.places.push(place);
        let sums = Tensor::cat(&[&self.sums, &self.norms.reshape([1])], 0);
        let means = array_of(&(sums / steps));
        let means = means.as_slice::<f32>().iter().map(|&mean| f64::from(mean));
        let names = TERMS.iter().chain(M::REPORTED).copied();
        let mut metrics: Vec<_> = names.chain(["grad_norm"]).zip(means).collect();
        metrics.extend(M::PREPARED.iter().copied().zip(prepared));
        metrics.push(("learning_rate", learning_rate));
        let mut report = Report::checked(metrics, None)?;
        report.assemble_s = loaded.seconds();
        Ok(report)
    }

    fn weights(&self) -> Snapshot {
        self.trained.params().snapshot()
    }

    fn join(&mut self, reducer: SharedReducer) {
        self.trained.descent.join(reducer);
        if M::SUMS {
            self.trained.descent.sum_gradients();
        }
    }

    fn save(&self) -> Saved {
        self.trained.save()
    }

    fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        self.trained.load(saved)
    }
}
