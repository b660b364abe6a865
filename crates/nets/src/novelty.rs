//! Novelty of observations: random network distillation, and an embedding of what the agent can
//! control.

use starling_envs::Space;
use starling_tree::Tree;
use tch::{Kind, Tensor};

use crate::torso::layer_init;
use crate::{
    Layout, Linear, Moments, NetConfig, Params, QNetConfig, RunningNorm, ShapeMismatch, Torso,
    number_of_actions,
};

/// Normalised observations stay within ±5.
const LIMIT: f64 = 5.0;

/// Errors are compared with about this many others. All of them would not do: errors fall while the
/// network learns, and beside those of the beginning nothing would ever be new again.
const ERRORS_COMPARED: f64 = 50_000.0;

/// A network that is trained to foretell the output of a fixed random one (Burda et al. 2019,
/// "RND"): its error is large for what was rarely seen.
///
/// Observations are normalised by running statistics, as the errors are. Both are kept among the
/// weights.
#[derive(Clone, Debug)]
pub struct RandomDistillation {
    norm: RunningNorm,
    predictor: Encoder,
    target: Encoder,
    errors: RunningNorm,
}

impl RandomDistillation {
    /// For observations that are one array, with `features` outputs.
    pub fn new(
        layout: &mut Layout,
        config: &QNetConfig,
        observations: &Space,
        features: usize,
    ) -> Result<Self, ShapeMismatch> {
        let Space::Box { shape, .. } = observations else {
            return Err(ShapeMismatch(format!(
                "novelty needs observations that are one array, not {observations:?}"
            )));
        };
        let normalised = Space::unbounded(shape);
        Ok(Self {
            norm: RunningNorm::new(layout, "rnd.norm", shape),
            predictor: Encoder::new(layout, config, "rnd.predictor.", &normalised, features)?,
            target: Encoder::new(layout, config, "rnd.target.", &normalised, features)?,
            errors: RunningNorm::new(layout, "rnd.errors", &[1]).of_the_last(ERRORS_COMPARED),
        })
    }

    /// Squared errors `[N]` of the prediction; only the predictor has gradients.
    pub fn errors(&self, params: &Params, obs: &Tensor) -> Tensor {
        let obs = self.norm.forward(params, &obs.to_kind(Kind::Float));
        let obs = Tree::Leaf(obs.clamp(-LIMIT, LIMIT));
        let wanted = self.target.forward(params, &obs).detach();
        let difference = self.predictor.forward(params, &obs) - wanted;
        difference
            .square()
            .mean_dim([-1].as_slice(), false, Kind::Float)
    }

    /// What observations `[N, ..]` and their errors `[N]` bring to the running statistics, where
    /// `counted` `[N]` is 1.
    pub fn seen(
        &self,
        obs: &Tensor,
        errors: &Tensor,
        counted: &Tensor,
    ) -> [(RunningNorm, Moments); 2] {
        let errors = errors.reshape([-1, 1]);
        [
            (self.norm.clone(), self.norm.moments_counted(obs, counted)),
            (
                self.errors.clone(),
                self.errors.moments_counted(&errors, counted),
            ),
        ]
    }

    /// 1 + (error − mean) / deviation `[N]`: how much newer than usual observations are.
    pub fn surprise(&self, params: &Params, obs: &Tensor) -> Tensor {
        let errors = self.errors(params, obs).reshape([-1, 1]);
        self.errors.forward(params, &errors).squeeze_dim(-1) + 1.0
    }
}

/// An embedding from which the action between two observations can be told (Pathak et al. 2017):
/// it keeps what the agent controls.
#[derive(Clone, Debug)]
pub struct InverseModel {
    encoder: Encoder,
    hidden: Linear,
    logits: Linear,
    /// Size of the embedding.
    pub size: usize,
}

impl InverseModel {
    /// An embedding of `size` with a classifier of 128 hidden units.
    pub fn new(
        layout: &mut Layout,
        config: &QNetConfig,
        observations: &Space,
        actions: &Space,
        size: usize,
    ) -> Result<Self, ShapeMismatch> {
        const HIDDEN: usize = 128;
        let actions = number_of_actions(actions)?;
        let encoder = Encoder::new(layout, config, "embedding.", observations, size)?;
        let init = |fan_in| layer_init(false, fan_in, 1.0);
        Ok(Self {
            encoder,
            hidden: Linear::new(layout, "inverse.hidden", 2 * size, HIDDEN, init(2 * size)),
            logits: Linear::new(layout, "inverse.logits", HIDDEN, actions, init(HIDDEN)),
            size,
        })
    }

    /// Embeddings `[N, size]` of observations `[N, ..]`.
    pub fn embed(&self, params: &Params, obs: &Tree<Tensor>) -> Tensor {
        self.encoder.forward(params, obs)
    }

    /// Log-probabilities `[N, A]` of the actions that led from one embedding to the next.
    pub fn actions_between(&self, params: &Params, from: &Tensor, to: &Tensor) -> Tensor {
        let both = Tensor::cat(&[from, to], -1);
        let hidden = self.hidden.forward(params, &both).relu();
        let logits = self.logits.forward(params, &hidden);
        logits.log_softmax(-1, Kind::Float)
    }
}

/// A torso and a linear layer.
#[derive(Clone, Debug)]
struct Encoder {
    torso: Torso,
    linear: Linear,
}

impl Encoder {
    fn new(
        layout: &mut Layout,
        config: &QNetConfig,
        prefix: &str,
        observations: &Space,
        outputs: usize,
    ) -> Result<Self, ShapeMismatch> {
        // A script of one's own comes with its own first weights: two copies of it would be the
        // same network, and there would be nothing to foretell.
        let config = NetConfig {
            torso: config.torso,
            torso_options: config.torso_options.clone(),
            width: config.width,
            padding: config.padding.clone(),
            hidden: config.hidden.clone(),
            orthogonal: config.orthogonal,
            ..NetConfig::default()
        };
        let torso = Torso::new(layout, &format!("{prefix}torso"), observations, &config)?;
        let init = layer_init(config.orthogonal, torso.features, 1.0);
        let name = format!("{prefix}linear");
        let linear = Linear::new(layout, &name, torso.features, outputs, init);
        Ok(Self { torso, linear })
    }

    fn forward(&self, params: &Params, obs: &Tree<Tensor>) -> Tensor {
        self.linear
            .forward(params, &self.torso.forward(params, obs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Optimizer, OptimizerConfig};
    use starling_envs::stream;
    use std::sync::Arc;
    use tch::Device;

    /// Trained on one observation, it foretells that one and not another; what it foretells does
    /// not move.
    #[test]
    fn what_was_seen_often_surprises_less() {
        let mut layout = Layout::default();
        let space = Space::unbounded(&[3]);
        let config = QNetConfig::default();
        let rnd = RandomDistillation::new(&mut layout, &config, &space, 8).unwrap();
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let params = params.trainable();
        let known = Tensor::from_slice(&[1f32, 0.0, -1.0]).reshape([1, 3]);
        let new = Tensor::from_slice(&[-1f32, 1.0, 1.0]).reshape([1, 3]);
        let both = Tensor::cat(&[&known, &new], 0);
        let fixed = |x: &Tensor| rnd.target.forward(&params, &Tree::Leaf(x.shallow_clone()));
        let before = fixed(&new).detach().copy();
        let start = rnd.errors(&params, &both).detach().copy();
        let optimizer = Optimizer::new(OptimizerConfig::default(), params.flat());
        for _ in 0..200 {
            let loss = rnd.errors(&params, &known).mean(Kind::Float);
            optimizer.step(params.flat(), &params.gradient(&loss), 1e-3);
        }
        let end = rnd.errors(&params, &both);
        assert!(end.double_value(&[0]) < 0.05 * start.double_value(&[0]));
        assert!(end.double_value(&[1]) > 3.0 * end.double_value(&[0]));
        let moved = (fixed(&new) - before).abs().max();
        assert_eq!(moved.double_value(&[]), 0.0);
    }
}
