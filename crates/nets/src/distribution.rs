//! Distributions over actions: on tensors for learning, on host numbers for acting.

use rand::RngExt as _;
use rand_distr::{Distribution as _, StandardNormal};
use starling_envs::{Rng, Space};
use starling_tree::{Array, DType, View};
use tch::{Kind, Tensor};

use crate::export::{Graph, Value};
use crate::{Init, Layout, Linear, ParamId, Params, ShapeMismatch};

/// Added to the logits of illegal actions: their probability is exactly zero in float32, and
/// unlike −∞ it makes no NaN in the entropy.
const ILLEGAL: f64 = -1e8;

const LOG_SQRT_2PI: f64 = 0.918_938_533_204_672_8;

/// The last layer of a policy.
#[derive(Clone, Debug)]
pub struct PolicyHead {
    linear: Linear,
    kind: HeadKind,
}

#[derive(Clone, Debug)]
enum HeadKind {
    Categorical { choices: Vec<usize> },
    Gaussian { log_std: ParamId },
}

impl PolicyHead {
    /// A head for the actions of a space: categorical for choices, Gaussian for numbers. The
    /// standard deviation is learned, starts at exp(`log_std`) and does not depend on the
    /// observation.
    pub fn new(
        layout: &mut Layout,
        name: &str,
        features: usize,
        actions: &Space,
        init: Init,
        log_std: f64,
    ) -> Result<Self, ShapeMismatch> {
        let (outputs, kind) = match actions {
            Space::Discrete { n } => (*n, HeadKind::Categorical { choices: vec![*n] }),
            Space::MultiDiscrete { choices } => {
                let choices = choices.clone();
                (choices.iter().sum(), HeadKind::Categorical { choices })
            }
            Space::Box { shape, .. } => {
                let n = shape.iter().product();
                let init = Init::Constant(log_std);
                let log_std = layout.add(format!("{name}.log_std"), &[n], init);
                (n, HeadKind::Gaussian { log_std })
            }
            Space::Dict(_) => {
                return Err(ShapeMismatch(
                    "actions with named parts have no policy head; use one Box or MultiDiscrete"
                        .into(),
                ));
            }
        };
        let linear = Linear::new(layout, name, features, outputs, init);
        Ok(Self { linear, kind })
    }

    /// The distribution over actions for features `[N, F]`; `legal` `[N, A]` holds 1 for the
    /// actions that may be taken.
    pub fn forward(
        &self,
        params: &Params,
        features: &Tensor,
        legal: Option<&Tensor>,
    ) -> Distribution {
        let output = self.linear.forward(params, features);
        match &self.kind {
            HeadKind::Gaussian { log_std } => Distribution::Gaussian {
                mean: output,
                log_std: params.get(*log_std).shallow_clone(),
            },
            HeadKind::Categorical { choices } => {
                let logits = match legal {
                    Some(legal) => output.masked_fill(&legal.eq(0), ILLEGAL),
                    None => output,
                };
                Distribution::Categorical {
                    logits,
                    choices: choices.clone(),
                }
            }
        }
    }
}

impl PolicyHead {
    /// In a graph: logits (masked) or means, named so, and the most probable actions, as `[N, ..]` of the
    /// given space and within its bounds.
    pub fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        features: &Value,
        legal: Option<&Value>,
        actions: &Space,
    ) -> (&'static str, Value, Value) {
        let output = self.linear.export(graph, params, features);
        match &self.kind {
            HeadKind::Gaussian { .. } => {
                let action = bounded(graph, &output, actions);
                ("mean", output, action)
            }
            HeadKind::Categorical { choices } => {
                let logits = graph.masked(&output, legal);
                let mut start = 0;
                let mut parts = Vec::new();
                for &n in choices {
                    let part = graph.slice(&logits, 1, start, start + n as i64);
                    start += n as i64;
                    let best = graph.argmax(&part);
                    parts.push(match actions {
                        Space::Discrete { .. } => best,
                        _ => graph.unsqueeze(&best, 1),
                    });
                }
                let action = graph.concat(&parts, 1.min(parts[0].shape.len() - 1));
                ("logits", logits, action)
            }
        }
    }
}

/// Numbers `[N, A]` as actions of a space of floats: within its bounds, and in its shape.
fn bounded(graph: &mut Graph, x: &Value, actions: &Space) -> Value {
    let Space::Box { shape, bounds, .. } = actions else {
        return x.clone();
    };
    let count = shape.iter().product();
    let (low, high): (Vec<f32>, Vec<f32>) = (0..count).map(|i| bounds.of(i)).unzip();
    // The largest numbers stand for no bound.
    let row = |row: Vec<f32>| {
        let row: Vec<f32> = row.iter().map(|x| x.clamp(f32::MIN, f32::MAX)).collect();
        Tensor::from_slice(&row)
    };
    let (low, high) = (graph.constant(&row(low)), graph.constant(&row(high)));
    let action = graph.clamp(x, &low, &high);
    let shape: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
    graph.reshape(&action, &[&[-1], &shape[..]].concat())
}

/// A distribution over actions, one per row.
#[derive(Debug)]
pub enum Distribution {
    /// One or several independent choices; the logits of all lie side by side `[N, Σ choices]`.
    Categorical {
        /// Unnormalised log-probabilities.
        logits: Tensor,
        /// Number of choices of each component.
        choices: Vec<usize>,
    },
    /// Independent normal distributions `[N, D]`.
    Gaussian {
        /// Means.
        mean: Tensor,
        /// Logarithms of the standard deviations, `[D]`.
        log_std: Tensor,
    },
}

impl Distribution {
    /// Its tensors, whose numbers [`sampler`](Distribution::sampler) takes.
    pub fn tensors(&self) -> Vec<&Tensor> {
        match self {
            Distribution::Categorical { logits, .. } => vec![logits],
            Distribution::Gaussian { mean, log_std } => vec![mean, log_std],
        }
    }

    /// Draws actions; `numbers` are those of its [`tensors`](Distribution::tensors).
    pub fn sampler(&self, numbers: impl IntoIterator<Item = Array>) -> ActionSampler {
        let mut numbers = numbers.into_iter();
        let mut next = || {
            numbers
                .next()
                .unwrap_or_else(|| Array::zeros(DType::F32, &[0]))
        };
        match self {
            Distribution::Categorical { choices, .. } => ActionSampler::Categorical {
                logits: next(),
                choices: choices.clone(),
            },
            Distribution::Gaussian { .. } => ActionSampler::Gaussian {
                mean: next(),
                log_std: next(),
            },
        }
    }

    /// Some of the rows.
    pub fn rows(&self, first: usize, count: usize) -> Self {
        let part = |tensor: &Tensor| tensor.narrow(0, first as i64, count as i64);
        match self {
            Distribution::Categorical { logits, choices } => Distribution::Categorical {
                logits: part(logits),
                choices: choices.clone(),
            },
            Distribution::Gaussian { mean, log_std } => Distribution::Gaussian {
                mean: part(mean),
                log_std: log_std.shallow_clone(),
            },
        }
    }

    /// Log-probability of actions `[N]` or `[N, D]`, as `[N]`.
    pub fn log_prob(&self, actions: &Tensor) -> Tensor {
        match self {
            Distribution::Categorical { logits, choices } => {
                let rows = logits.size()[0];
                let actions = actions.reshape([rows, choices.len() as i64]);
                let mut total: Option<Tensor> = None;
                for (i, part) in components(logits, choices).enumerate() {
                    let action = actions.narrow(1, i as i64, 1);
                    let chosen = part.log_softmax(-1, Kind::Float).gather(1, &action, false);
                    let chosen = chosen.squeeze_dim(1);
                    total = Some(match total {
                        Some(total) => total + chosen,
                        None => chosen,
                    });
                }
                total.unwrap_or_else(|| Tensor::zeros([rows], (Kind::Float, logits.device())))
            }
            Distribution::Gaussian { mean, log_std } => {
                let actions = actions.reshape_as(mean);
                let z = (actions - mean) / log_std.exp();
                let density = z.square() * -0.5 - log_std - LOG_SQRT_2PI;
                density.sum_dim_intlist([-1].as_slice(), false, Kind::Float)
            }
        }
    }

    /// Entropy of each row, `[N]`.
    pub fn entropy(&self) -> Tensor {
        match self {
            Distribution::Categorical { logits, choices } => {
                let parts = components(logits, choices).map(|part| {
                    let log_p = part.log_softmax(-1, Kind::Float);
                    -(log_p.exp() * log_p).sum_dim_intlist([-1].as_slice(), false, Kind::Float)
                });
                let zero = Tensor::zeros([logits.size()[0]], (Kind::Float, logits.device()));
                parts.fold(zero, |sum, part| sum + part)
            }
            Distribution::Gaussian { mean, log_std } => {
                let one = (log_std + (0.5 + LOG_SQRT_2PI)).sum(Kind::Float);
                one.expand([mean.size()[0]], false)
            }
        }
    }
}

/// Draws actions on the host.
#[derive(Debug)]
pub enum ActionSampler {
    /// As [`Distribution::Categorical`].
    Categorical {
        /// Unnormalised log-probabilities, `[N, Σ choices]`.
        logits: Array,
        /// Number of choices of each component.
        choices: Vec<usize>,
    },
    /// As [`Distribution::Gaussian`].
    Gaussian {
        /// Means, `[N, D]`.
        mean: Array,
        /// Logarithms of the standard deviations, `[D]`.
        log_std: Array,
    },
}

impl ActionSampler {
    /// Draws one action for each of the rows from `first` on into `actions` (row `t` of a column
    /// `[T, B, ..]`) and its log-probability into `log_probs`. With `explore` false the most
    /// probable action is taken.
    ///
    /// Row `first + i` draws from `rngs[i]`, so that an environment's actions do not depend on which
    /// other environments share its batch.
    pub fn act(
        &self,
        first: usize,
        rngs: &mut [Rng],
        explore: bool,
        t: usize,
        actions: &mut Array,
        log_probs: Option<&mut [f32]>,
    ) {
        let mut chances = vec![0.0; rngs.len()];
        match self {
            ActionSampler::Categorical { logits, choices } => {
                for (b, rng) in rngs.iter_mut().enumerate() {
                    let mut row = logits.at(&[first + b]).as_slice::<f32>();
                    let mut action = actions.at_mut(&[t, b]);
                    for (chosen, &n) in action.as_mut_slice::<i64>().iter_mut().zip(choices) {
                        let (part, rest) = row.split_at(n);
                        row = rest;
                        let (index, log_prob) = if explore {
                            sample_categorical(part, rng)
                        } else {
                            (argmax(part), 0.0)
                        };
                        *chosen = index as i64;
                        chances[b] += log_prob;
                    }
                }
            }
            ActionSampler::Gaussian { mean, log_std } => {
                let log_std = log_std.as_slice::<f32>();
                for (b, rng) in rngs.iter_mut().enumerate() {
                    let row: View<'_> = mean.at(&[first + b]);
                    let mut action = actions.at_mut(&[t, b]);
                    let targets = action.as_mut_slice::<f32>().iter_mut();
                    for ((target, mean), log_std) in targets.zip(row.as_slice::<f32>()).zip(log_std)
                    {
                        let z: f32 = if explore {
                            StandardNormal.sample(rng)
                        } else {
                            0.0
                        };
                        *target = mean + z * log_std.exp();
                        chances[b] += -0.5 * z * z - log_std - LOG_SQRT_2PI as f32;
                    }
                }
            }
        }
        if let Some(log_probs) = log_probs {
            log_probs.copy_from_slice(&chances);
        }
    }
}

fn components<'a>(logits: &'a Tensor, choices: &'a [usize]) -> impl Iterator<Item = Tensor> + 'a {
    let mut start = 0;
    choices.iter().map(move |&n| {
        let part = logits.narrow(1, start, n as i64);
        start += n as i64;
        part
    })
}

/// An index drawn with probability ∝ exp(logit), and its log-probability.
pub fn sample_categorical(logits: &[f32], rng: &mut Rng) -> (usize, f32) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = logits.iter().map(|l| (l - largest).exp()).sum();
    let mut left = rng.random::<f32>() * total;
    let mut chosen = argmax(logits);
    for (i, logit) in logits.iter().enumerate() {
        let mass = (logit - largest).exp();
        // Rounding can leave a rest after the last action; the most probable one is kept then.
        if left < mass {
            chosen = i;
            break;
        }
        left -= mass;
    }
    (chosen, logits[chosen] - largest - total.ln())
}

/// The index of the largest number; the first of equals.
pub fn argmax(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;

    #[test]
    fn categorical_numbers_by_hand() {
        // p = (1/4, 3/4): log p and entropy by hand.
        let logits = Tensor::from_slice(&[0f32, 3f32.ln()]).reshape([1, 2]);
        let choices = vec![2];
        let d = Distribution::Categorical { logits, choices };
        let log_prob = d.log_prob(&Tensor::from_slice(&[1i64])).double_value(&[0]);
        assert!((log_prob - 0.75f64.ln()).abs() < 1e-6);
        let entropy = -(0.25 * 0.25f64.ln() + 0.75 * 0.75f64.ln());
        assert!((d.entropy().double_value(&[0]) - entropy).abs() < 1e-6);
    }

    #[test]
    fn gaussian_numbers_by_hand() {
        // N(1, 2²) at 3: −½ − ln 2 − ½ ln 2π.
        let d = Distribution::Gaussian {
            mean: Tensor::from_slice(&[1f32]).reshape([1, 1]),
            log_std: Tensor::from_slice(&[2f32.ln()]),
        };
        let log_prob = d.log_prob(&Tensor::from_slice(&[3f32]).reshape([1, 1]));
        let expected = -0.5 - 2f64.ln() - LOG_SQRT_2PI;
        assert!((log_prob.double_value(&[0]) - expected).abs() < 1e-6);
    }

    #[test]
    fn samples_follow_the_probabilities_and_never_the_illegal() {
        let logits = [0f32, 3f32.ln(), ILLEGAL as f32];
        let mut rng = stream(1, "test", 0);
        let mut counts = [0; 3];
        for _ in 0..40_000 {
            let (index, log_prob) = sample_categorical(&logits, &mut rng);
            counts[index] += 1;
            assert!((log_prob - [0.25f32, 0.75, 0.0][index].ln()).abs() < 1e-5);
        }
        assert_eq!(counts[2], 0);
        assert!((f64::from(counts[1]) / 40_000.0 - 0.75).abs() < 0.01);
    }

    #[test]
    fn acting_and_learning_agree_on_log_probabilities() {
        let logits = Tensor::from_slice(&[0.3f32, -1.0, 0.7, 2.0, 0.1]).reshape([1, 5]);
        let choices = vec![2, 3];
        let d = Distribution::Categorical { logits, choices };
        let mut actions = Array::zeros(starling_tree::DType::I64, &[1, 1, 2]);
        let mut log_probs = [0.0];
        let numbers = d.tensors().into_iter().map(crate::array_of);
        d.sampler(numbers).act(
            0,
            &mut [stream(3, "test", 0)],
            true,
            0,
            &mut actions,
            Some(&mut log_probs),
        );
        let actions = crate::tensor_of(&actions, tch::Device::Cpu).reshape([1, 2]);
        let learned = d.log_prob(&actions).double_value(&[0]);
        assert!((learned - f64::from(log_probs[0])).abs() < 1e-5);
    }
}
