//! The weight of the entropy (α), fixed or learned so that the entropy stays near a target.

use std::sync::Arc;

use starling_envs::stream;
use starling_nets::{
    Descent, Device, Init, Kind, Layout, Mover, OptimizerConfig, ParamId, Params, Recorded,
    Schedule, SharedReducer, Tensor,
};

use crate::trained::{load_descent, save_descent};
use crate::{LearnError, Progress, Saved};

/// How the weight of the entropy is found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TemperatureConfig {
    Fixed(f64),
    Learned {
        initial: f64,
        target_entropy: f64,
        learning_rate: Schedule,
    },
}

/// The weight of the entropy, by its logarithm.
pub(super) struct Temperature {
    /// `[1]`.
    log_alpha: Tensor,
    learned: Option<Learned>,
}

struct Learned {
    descent: Descent,
    learning_rate: Schedule,
    id: ParamId,
    target_entropy: f64,
    /// Its input is the mean log-probability of the actions that the actor draws.
    step: Recorded<Tensor, ()>,
}

impl Temperature {
    pub(super) fn new(
        config: &TemperatureConfig,
        optimizer: OptimizerConfig,
        device: Device,
    ) -> Self {
        let (alpha, learning) = match config {
            TemperatureConfig::Fixed(alpha) => (*alpha, None),
            TemperatureConfig::Learned {
                initial,
                target_entropy,
                learning_rate,
            } => (*initial, Some((*target_entropy, *learning_rate))),
        };
        let mut layout = Layout::default();
        let id = layout.add("log_alpha", &[1], Init::Constant(alpha.ln()));
        // A constant draws nothing.
        let mut unused = stream(0, "learner", 0);
        let params = Params::init(&Arc::new(layout), &mut unused, device);
        let log_alpha = params.frozen().get(id).shallow_clone();
        // As in SB3, CleanRL and CrossQ: what the networks' Adam does differently is not for α.
        let usual = OptimizerConfig::default();
        let optimizer = OptimizerConfig {
            beta1: usual.beta1,
            ..optimizer
        };
        let learned = learning.map(|(target_entropy, learning_rate)| {
            let descent = Descent::new(params, optimizer, None);
            let log_prob = Tensor::zeros([], (Kind::Float, device));
            let step = descent.of(log_prob, move |log_prob: &Tensor, params| {
                (loss(params.get(id), log_prob, target_entropy), ())
            });
            Learned {
                descent,
                learning_rate,
                id,
                target_entropy,
                step,
            }
        });
        Self { log_alpha, learned }
    }

    /// The same temperature, not a copy, for a recorded computation.
    pub(super) fn recorded(&self) -> TemperatureStep {
        TemperatureStep {
            log_alpha: self.log_alpha.shallow_clone(),
            learned: self.learned.as_ref().map(|learned| LearnedStep {
                mover: learned.descent.mover(),
                id: learned.id,
                target_entropy: learned.target_entropy,
            }),
        }
    }

    /// Where the mean log-probability of the actor's actions is put before a
    /// [`step`](Temperature::step).
    pub(super) fn log_prob(&self) -> Option<&Tensor> {
        self.learned.as_ref().map(|learned| learned.step.inputs())
    }

    /// Sets the size of the steps from now on.
    pub(super) fn set_learning_rate(&self, progress: Progress) {
        if let Some(learned) = &self.learned {
            let rate = learned.learning_rate.at(progress.fraction());
            learned.descent.optimizer().set_learning_rate(rate);
        }
    }

    /// One gradient step, if it is learned, averaged over a group of learners.
    pub(super) fn step(&mut self) -> Result<(), LearnError> {
        if let Some(learned) = &mut self.learned {
            learned.step.run();
            learned.descent.step()?;
        }
        Ok(())
    }

    pub(super) fn join(&mut self, reducer: SharedReducer) {
        if let Some(learned) = &mut self.learned {
            learned.descent.join(reducer);
        }
    }

    pub(super) fn save(&self, saved: &mut Saved) {
        if let Some(learned) = &self.learned {
            save_descent(saved, "alpha.", &learned.descent);
        }
    }

    pub(super) fn load(&self, saved: &Saved) -> Result<(), LearnError> {
        match &self.learned {
            Some(learned) => load_descent(saved, "alpha.", &learned.descent),
            None => Ok(()),
        }
    }
}

/// What a recorded computation needs of a [`Temperature`].
pub(super) struct TemperatureStep {
    /// `[1]`.
    log_alpha: Tensor,
    learned: Option<LearnedStep>,
}

struct LearnedStep {
    mover: Mover,
    id: ParamId,
    target_entropy: f64,
}

impl TemperatureStep {
    /// α, a scalar.
    pub(super) fn alpha(&self) -> Tensor {
        self.log_alpha.exp().squeeze()
    }

    /// One gradient step, if it is learned, by the mean log-probability of the actor's actions.
    pub(super) fn step(&self, log_prob: &Tensor) {
        if let Some(learned) = &self.learned {
            let log_alpha = learned.mover.params().get(learned.id);
            let loss = loss(log_alpha, log_prob, learned.target_entropy);
            learned.mover.differentiate(&loss);
            let _ = learned.mover.apply();
        }
    }
}

/// −log α · (log π + H): descending it raises α where the entropy −log π is below its target H.
fn loss(log_alpha: &Tensor, log_prob: &Tensor, target_entropy: f64) -> Tensor {
    let gap = (log_prob + target_entropy).detach();
    (-log_alpha * gap).sum(Kind::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adam's first step is the learning rate, in the direction that brings the entropy closer to
    /// its target of −1: α rises with an entropy of −2 (log π = 2) and falls with one of 0.
    #[test]
    fn alpha_moves_the_entropy_towards_its_target() {
        for (log_prob, expected) in [(2.0, 0.6), (0.0, 0.4)] {
            let config = TemperatureConfig::Learned {
                initial: 1.0,
                target_entropy: -1.0,
                learning_rate: Schedule::Constant(0.1),
            };
            let mut alpha = Temperature::new(&config, OptimizerConfig::default(), Device::Cpu);
            let _ = alpha.log_prob().unwrap().shallow_clone().fill_(log_prob);
            let progress = Progress {
                env_steps: 0,
                total_steps: 1,
            };
            alpha.set_learning_rate(progress);
            for alone in [false, true] {
                let before = alpha.log_alpha.double_value(&[0]);
                match alone {
                    true => alpha.recorded().step(&Tensor::from(log_prob as f32)),
                    false => alpha.step().unwrap(),
                }
                let moved = alpha.log_alpha.double_value(&[0]) - before;
                assert!(
                    (moved - (expected - 0.5)).abs() < 1e-6,
                    "{log_prob}: {moved}"
                );
            }
        }
    }

    /// CrossQ's β₁ of 0.5 is for its networks.
    #[test]
    fn alpha_has_the_usual_adam() {
        let moved = |beta1: f64| {
            let config = TemperatureConfig::Learned {
                initial: 1.0,
                target_entropy: -1.0,
                learning_rate: Schedule::Constant(0.1),
            };
            let optimizer = OptimizerConfig {
                beta1,
                ..OptimizerConfig::default()
            };
            let mut alpha = Temperature::new(&config, optimizer, Device::Cpu);
            alpha.set_learning_rate(Progress {
                env_steps: 0,
                total_steps: 1,
            });
            for log_prob in [2.0, -3.0, 1.5] {
                let _ = alpha.log_prob().unwrap().shallow_clone().fill_(log_prob);
                alpha.step().unwrap();
            }
            alpha.log_alpha.double_value(&[0])
        };
        assert_eq!(moved(0.5), moved(0.9));
    }

    #[test]
    fn a_fixed_alpha_stays() {
        let config = TemperatureConfig::Fixed(0.2);
        let alpha = Temperature::new(&config, OptimizerConfig::default(), Device::Cpu);
        assert!(alpha.log_prob().is_none());
        assert!((alpha.log_alpha.exp().double_value(&[0]) - 0.2).abs() < 1e-7);
    }
}
