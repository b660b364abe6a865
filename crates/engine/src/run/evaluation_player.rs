//! Plays the episodes of evaluations, in the learner's process or in a separate one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::bounded;
use starling_algos::Algorithm;
use starling_envs::Pulse;
use starling_nets::Device;

use super::evaluate::{Episodes, Evaluation, MOST_ENVS, evaluate};
use crate::collect::attend;
use crate::link::patience::Watchdog;
use crate::{EngineError, RunConfig, Weights};

/// Evaluates weights of a run. The same weights at the same step give the same result in any process.
pub struct EvaluationPlayer {
    config: RunConfig,
    algorithm: Arc<dyn Algorithm>,
    device: Device,
}

impl EvaluationPlayer {
    /// For a run with these settings.
    ///
    /// # Errors
    /// When the environment, the algorithm or the device cannot be used.
    pub fn new(config: &RunConfig) -> Result<Self, EngineError> {
        let device = config.settings.actor_device().resolve()?;
        Ok(Self::with(config, config.algorithm()?.into(), device))
    }

    pub(super) fn with(config: &RunConfig, algorithm: Arc<dyn Algorithm>, device: Device) -> Self {
        Self {
            config: config.clone(),
            algorithm,
            device,
        }
    }

    /// Plays the episodes of the evaluation that was due at `env_steps`, on a separate thread, so that
    /// a stuck environment is detected. `None` if it was stopped meanwhile.
    ///
    /// # Errors
    /// When an environment fails or is stuck, or the weights do not fit.
    pub fn play(
        &self,
        weights: Arc<Weights>,
        env_steps: u64,
        stop: &AtomicBool,
    ) -> Result<Option<Evaluation>, EngineError> {
        let episodes = Episodes {
            count: self.config.settings.eval.episodes,
            seed: self.config.settings.seed,
            index: env_steps,
            marks: Vec::new(),
        };
        let (config, algorithm) = (self.config.clone(), Arc::clone(&self.algorithm));
        let (device, pulse) = (self.device, Arc::<Pulse>::default());
        let watchdog = Watchdog::new([Arc::clone(&pulse)]);
        let cancel = Arc::new(AtomicBool::new(false));
        let cancelled = Arc::clone(&cancel);
        let (results, done) = bounded(1);
        let work = move || {
            starling_nets::set_threads(config.torch_threads());
            let played = evaluate(
                &config,
                &*algorithm,
                &weights,
                device,
                &episodes,
                &cancelled,
                pulse,
            );
            // The receiver may have given up.
            let _ = results.send(played);
        };
        let thread = std::thread::Builder::new().name("evaluation".into());
        let started = thread.spawn(work);
        started
            .map_err(|error| EngineError::Thread(format!("evaluation did not start: {error}")))?;
        let patience = self.config.patience();
        let give_up = || cancel.store(true, Ordering::Relaxed);
        let played = attend(&done, watchdog, patience, stop, give_up);
        let played = played.map_err(|error| match error {
            EngineError::Stuck { env, seconds, .. } => EngineError::Stuck {
                env: env % MOST_ENVS as u64,
                seconds,
                place: " of the evaluation",
            },
            other => other,
        })?;
        played.unwrap_or(Ok(None))
    }
}
