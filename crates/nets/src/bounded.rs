//! Actors for bounded actions. They choose actions between −1 and 1, and [`ActionBounds`] maps
//! these to the environment's bounds.

use rand_distr::{Distribution as _, StandardNormal};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{Rng, Space};
use starling_tree::{DType, Tree};
use tch::{Device, Kind, Tensor};

use crate::control_body::{Body, ControlLayers};
use crate::export::{Graph, NotExported, Value};
use crate::{ControlNetConfig, Init, Layout, Linear, Params, ShapeMismatch, Statistics, Torso};

/// The bounds of an environment's actions, and the way between them and −1 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct ActionBounds {
    low: Vec<f32>,
    high: Vec<f32>,
}

impl ActionBounds {
    /// The bounds of a space of floats; all of them have to be finite.
    pub fn of(actions: &Space) -> Result<Self, ShapeMismatch> {
        let Space::Box {
            dtype: DType::F32,
            shape,
            bounds,
        } = actions
        else {
            return Err(ShapeMismatch(
                "it needs continuous actions, and this environment has none".into(),
            ));
        };
        let count = shape.iter().product();
        let (low, high): (Vec<f32>, Vec<f32>) = (0..count).map(|i| bounds.of(i)).unzip();
        let finite = |(low, high): (&f32, &f32)| low.is_finite() && high.is_finite() && low < high;
        match low.iter().zip(&high).all(finite) {
            true => Ok(Self { low, high }),
            false => Err(ShapeMismatch(
                "it needs finite bounds for every action; some of this environment's have none"
                    .into(),
            )),
        }
    }

    /// Number of action dimensions.
    #[expect(clippy::len_without_is_empty, reason = "a size, not a collection")]
    pub fn len(&self) -> usize {
        self.low.len()
    }

    /// Maps an action from −1..1 to the bounds, in place.
    pub fn scale(&self, action: &mut [f32]) {
        for ((value, low), high) in action.iter_mut().zip(&self.low).zip(&self.high) {
            let (middle, half) = (0.5 * (low + high), 0.5 * (high - low));
            // Rounding must not lead out of the bounds.
            *value = (middle + *value * half).clamp(*low, *high);
        }
    }

    /// Actions `[N, A]` from −1..1 in a graph, mapped to the bounds.
    pub fn export(&self, graph: &mut Graph, action: &Value) -> Value {
        let (low, high) = (
            Tensor::from_slice(&self.low),
            Tensor::from_slice(&self.high),
        );
        let [middle, half] = [(&low + &high) * 0.5, (&high - &low) * 0.5];
        let [middle, half, low, high] = [middle, half, low, high].map(|row| graph.constant(&row));
        let scaled = graph.mul(action, &half);
        let scaled = graph.add(&scaled, &middle);
        graph.clamp(&scaled, &low, &high)
    }

    /// Maps the bounds to −1..1 on a device.
    pub fn unit(&self, device: Device) -> UnitScale {
        let low = Tensor::from_slice(&self.low).to_device(device);
        let high = Tensor::from_slice(&self.high).to_device(device);
        UnitScale {
            middle: (&low + &high) * 0.5,
            half: (high - low) * 0.5,
        }
    }
}

/// Maps actions within [`ActionBounds`] to −1..1.
#[derive(Debug)]
pub struct UnitScale {
    middle: Tensor,
    half: Tensor,
}

impl UnitScale {
    /// The same tensors, not a copy.
    pub fn share(&self) -> Self {
        Self {
            middle: self.middle.shallow_clone(),
            half: self.half.shallow_clone(),
        }
    }

    /// Actions `[N, ..]` as `[N, A]`, from −1 to 1.
    pub fn apply(&self, actions: &Tensor) -> Tensor {
        let actions = actions.reshape([actions.size()[0], -1]);
        (actions - &self.middle) / &self.half
    }

    /// Actions `[N, A]` in a graph, from −1 to 1.
    pub fn export(&self, graph: &mut Graph, actions: &Value) -> Value {
        let [middle, half] = [&self.middle, &self.half].map(|row| graph.constant(row));
        let centred = graph.sub(actions, &middle);
        graph.div(&centred, &half)
    }
}

/// How a log-std is kept within its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogStdLimit {
    /// What is outside is set to the limit; there is no gradient there (SAC's authors, SB3).
    #[default]
    Clamp,
    /// The whole range is squeezed between the limits by tanh (CleanRL).
    Tanh,
}

/// A deterministic actor: tanh of a network.
#[derive(Clone, Debug)]
pub struct TanhActor {
    features: ActorFeatures,
    head: Linear,
}

impl TanhActor {
    /// An actor with `actions` numbers per action; adds its parameters to `layout`.
    pub fn new(
        layout: &mut Layout,
        config: &ControlNetConfig,
        observations: &Space,
        actions: usize,
    ) -> Result<Self, ShapeMismatch> {
        let (features, head) = with_head(layout, config, observations, actions)?;
        Ok(Self { features, head })
    }

    /// Actions `[N, A]` for observations `[N, ..]`.
    pub fn forward(&self, params: &Params, obs: &Tree<Tensor>) -> Tensor {
        let features = self.features.forward(params, obs, Statistics::Running);
        self.head.forward(params, &features).tanh()
    }

    /// The same in a graph.
    pub fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        obs: &Tree<Value>,
    ) -> Result<Value, NotExported> {
        let features = self.features.export(graph, params, obs)?;
        let raw = self.head.export(graph, params, &features);
        Ok(graph.tanh(&raw))
    }
}

/// A stochastic actor: a normal distribution squashed by tanh, whose std depends on the observation.
#[derive(Clone, Debug)]
pub struct SquashedActor {
    features: ActorFeatures,
    head: Linear,
    limit: LogStdLimit,
    log_std: (f64, f64),
}

impl SquashedActor {
    /// An actor with `actions` numbers per action, and a log-std between the two numbers of
    /// `log_std`; adds its parameters to `layout`.
    pub fn new(
        layout: &mut Layout,
        config: &ControlNetConfig,
        observations: &Space,
        actions: usize,
        limit: LogStdLimit,
        log_std: (f64, f64),
    ) -> Result<Self, ShapeMismatch> {
        let (features, head) = with_head(layout, config, observations, 2 * actions)?;
        Ok(Self {
            features,
            head,
            limit,
            log_std,
        })
    }

    /// The distributions for observations `[N, ..]`.
    pub fn forward(&self, params: &Params, obs: &Tree<Tensor>) -> SquashedGaussian {
        self.forward_by(params, obs, Statistics::Running)
    }

    /// The same, normalised by these statistics, where the actor has batch renormalisation.
    pub fn forward_by(
        &self,
        params: &Params,
        obs: &Tree<Tensor>,
        by: Statistics,
    ) -> SquashedGaussian {
        let features = self.features.forward(params, obs, by);
        let both = self.head.forward(params, &features);
        let actions = self.head.outputs as i64 / 2;
        let (mean, log_std) = (
            both.narrow(-1, 0, actions),
            both.narrow(-1, actions, actions),
        );
        let (low, high) = self.log_std;
        let log_std = match self.limit {
            LogStdLimit::Clamp => log_std.clamp(low, high),
            LogStdLimit::Tanh => (log_std.tanh() + 1.0) * (0.5 * (high - low)) + low,
        };
        SquashedGaussian { mean, log_std }
    }

    /// Means and log-stds in a graph.
    pub fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        obs: &Tree<Value>,
    ) -> Result<[Value; 2], NotExported> {
        let features = self.features.export(graph, params, obs)?;
        let both = self.head.export(graph, params, &features);
        let actions = self.head.outputs as i64 / 2;
        let mean = graph.slice(&both, 1, 0, actions);
        let log_std = graph.slice(&both, 1, actions, 2 * actions);
        let (low, high) = self.log_std;
        let log_std = match self.limit {
            LogStdLimit::Clamp => {
                let (low, high) = (graph.scalar(low), graph.scalar(high));
                graph.clamp(&log_std, &low, &high)
            }
            LogStdLimit::Tanh => {
                let squeezed = graph.tanh(&log_std);
                let (half, middle) = (0.5 * (high - low), 0.5 * (high + low));
                let (half, middle) = (graph.scalar(half), graph.scalar(middle));
                let scaled = graph.mul(&squeezed, &half);
                graph.add(&scaled, &middle)
            }
        };
        Ok([mean, log_std])
    }
}

/// tanh of independent normal distributions, `[N, A]` each.
#[derive(Debug)]
pub struct SquashedGaussian {
    /// Means before tanh.
    pub mean: Tensor,
    /// Log-stds before tanh.
    pub log_std: Tensor,
}

impl SquashedGaussian {
    /// Actions `[N, A]` from standard normal noise `[N, A]`, and their log-probabilities `[N]`.
    /// Both have gradients.
    pub fn sample(&self, noise: &Tensor) -> (Tensor, Tensor) {
        const LOG_SQRT_2PI: f64 = 0.918_938_533_204_672_8;
        let raw = &self.mean + self.log_std.exp() * noise;
        // ln(1 − tanh²u) = 2(ln 2 − u − softplus(−2u)), which does not lose its digits where
        // tanh u is close to ±1.
        let squash = ((&raw * -2.0).softplus() + &raw - std::f64::consts::LN_2) * 2.0;
        let density = noise.square() * -0.5 - &self.log_std - LOG_SQRT_2PI + squash;
        let log_probs = density.sum_dim_intlist([-1].as_slice(), false, Kind::Float);
        (raw.tanh(), log_probs)
    }
}

/// Standard normal numbers.
pub fn fill_normal(rng: &mut Rng, values: &mut [f32]) {
    for value in values {
        *value = StandardNormal.sample(rng);
    }
}

/// From observations to what an actor's last layer reads.
#[derive(Clone, Debug)]
enum ActorFeatures {
    Plain(Torso),
    /// One network of [`Body`]'s.
    Body(Torso, Body),
}

impl ActorFeatures {
    fn forward(&self, params: &Params, obs: &Tree<Tensor>, by: Statistics) -> Tensor {
        match self {
            Self::Plain(torso) => torso.forward(params, obs),
            Self::Body(torso, body) => {
                let x = torso.forward(params, obs).unsqueeze(0);
                body.forward(params, x, by).squeeze_dim(0)
            }
        }
    }
}

impl ActorFeatures {
    fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        obs: &Tree<Value>,
    ) -> Result<Value, NotExported> {
        match self {
            Self::Plain(torso) => torso.export(graph, params, obs),
            Self::Body(torso, body) => {
                let x = torso.export(graph, params, obs)?;
                Ok(body.export(graph, params, &x))
            }
        }
    }
}

fn with_head(
    layout: &mut Layout,
    config: &ControlNetConfig,
    observations: &Space,
    outputs: usize,
) -> Result<(ActorFeatures, Linear), ShapeMismatch> {
    config.check(&config.hidden)?;
    let (features, fan_in) = match config.layers {
        ControlLayers::Plain => {
            let torso = Torso::new(layout, "torso", observations, &config.of_actor())?;
            let size = torso.features;
            (ActorFeatures::Plain(torso), size)
        }
        kind => {
            let torso = Torso::new(layout, "torso", observations, &config.of_observations())?;
            let (inputs, hidden) = (torso.features, &config.hidden);
            let (body, size) = Body::new(layout, "", kind, config.activation, 1, inputs, hidden);
            (ActorFeatures::Body(torso, body), size)
        }
    };
    let head = Linear::new(layout, "head", fan_in, outputs, Init::FanIn { fan_in });
    Ok((features, head))
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.reshape([-1])).unwrap()
    }

    fn gaussian(mean: &[f32], log_std: &[f32]) -> SquashedGaussian {
        let row = |values: &[f32]| Tensor::from_slice(values).reshape([1, -1]);
        SquashedGaussian {
            mean: row(mean),
            log_std: row(log_std),
        }
    }

    /// By the change of variables, in double precision: ln N(u) − ln(1 − tanh²u).
    #[test]
    fn log_probabilities_by_the_definition() {
        let (mean, log_std, noise) = ([0.3f64, -1.2], [-0.5f64, 0.4], [0.7f64, -0.2]);
        let mut expected = 0.0;
        let mut actions = Vec::new();
        for i in 0..2 {
            let std = log_std[i].exp();
            let raw = mean[i] + std * noise[i];
            let z = (raw - mean[i]) / std;
            let normal = (-0.5 * z * z).exp() / (std * (2.0 * std::f64::consts::PI).sqrt());
            expected += normal.ln() - (1.0 - raw.tanh().powi(2)).ln();
            actions.push(raw.tanh());
        }
        let single = |values: [f64; 2]| values.map(|value| value as f32);
        let gaussian = gaussian(&single(mean), &single(log_std));
        let noise = Tensor::from_slice(&single(noise)).reshape([1, 2]);
        let (ours, log_prob) = gaussian.sample(&noise);
        assert!((log_prob.double_value(&[0]) - expected).abs() < 1e-5);
        for (ours, expected) in numbers(&ours).into_iter().zip(actions) {
            assert!((f64::from(ours) - expected).abs() < 1e-6);
        }
    }

    /// Far out tanh is 1 in single precision, and ln(1 − tanh²u) tends to 2(ln 2 − |u|).
    #[test]
    fn log_probabilities_stay_finite_near_the_bounds() {
        for mean in [30f32, -30.0] {
            let (action, log_prob) = gaussian(&[mean], &[0.0])
                .sample(&Tensor::zeros([1, 1], (Kind::Float, Device::Cpu)));
            assert_eq!(numbers(&action), [mean.signum()]);
            let expected = -0.918_938_5 - 2.0 * (std::f64::consts::LN_2 - 30.0);
            assert!((log_prob.double_value(&[0]) - expected).abs() < 1e-4);
        }
    }

    #[test]
    fn both_limits_hold_the_deviation() {
        let obs = Space::unbounded(&[1]);
        let config = ControlNetConfig {
            hidden: vec![],
            ..ControlNetConfig::default()
        };
        for (limit, expected) in [
            (LogStdLimit::Clamp, [-5.0, 0.5, 2.0]),
            // 0.5 · 7 · (tanh x + 1) − 5
            (LogStdLimit::Tanh, [-5.0, 0.117_41, 2.0]),
        ] {
            let mut layout = Layout::default();
            let actor =
                SquashedActor::new(&mut layout, &config, &obs, 1, limit, (-5.0, 2.0)).unwrap();
            let params = Params::zeros(&std::sync::Arc::new(layout), Device::Cpu);
            // Weights of mean and deviation, then biases: the deviation's input is the observation.
            params.load_slice(&[0.0, 1.0, 0.0, 0.0]).unwrap();
            let obs = Tensor::from_slice(&[-40f32, 0.5, 40.0]).reshape([3, 1]);
            let policy = actor.forward(&params, &Tree::Leaf(obs));
            for (ours, expected) in numbers(&policy.log_std).into_iter().zip(expected) {
                assert!((ours - expected).abs() < 1e-4, "{limit:?}: {ours}");
            }
        }
    }

    #[test]
    fn actions_go_to_the_bounds_and_back() {
        let bounds = ActionBounds::of(&Space::vector(&[-2.0, 0.0], &[2.0, 10.0])).unwrap();
        let mut action = [0.5, -1.0];
        bounds.scale(&mut action);
        assert_eq!(action, [1.0, 0.0]);
        let back = bounds.unit(Device::Cpu);
        let back = back.apply(&Tensor::from_slice(&action).reshape([1, 2]));
        assert_eq!(numbers(&back), [0.5, -1.0]);
        for space in [
            Space::unbounded(&[1]),
            Space::Discrete { n: 2 },
            Space::vector(&[0.0, 0.0], &[1.0, f32::INFINITY]),
        ] {
            assert!(ActionBounds::of(&space).is_err(), "{space:?}");
        }
    }

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let mut values = vec![0.0; 40_000];
        fill_normal(&mut stream(1, "test", 0), &mut values);
        let values = Tensor::from_slice(&values);
        assert!(values.mean(Kind::Float).double_value(&[]).abs() < 0.02);
        assert!((values.std(false).double_value(&[]) - 1.0).abs() < 0.02);
    }
}
