//! V-trace: value targets and advantages from a behaviour policy that is not the learner's
//! (Espeholt et al. 2018).
//!
//! With ρ = π(a)/μ(a), ρ̄ = min(ρ̂, ρ) and c = λ·min(ĉ, ρ):
//!
//! ```text
//! δ_t  = ρ̄_t · (r_t + γ_t V_{t+1} − V_t)
//! vs_t = V_t + δ_t + γ_t c_t (vs_{t+1} − V_{t+1})
//! A_t  = min(ρ̂_pg, ρ_t) · (r_t + γ_t vs_{t+1} − V_t)
//! ```
//!
//! Everything is an operation on tensors that does not read their values, so that it can be
//! recorded as a CUDA graph.

use starling_nets::{ShapeMismatch, Tensor, no_grad};

/// The inputs of V-trace; every tensor is `[T, ..]`, usually `[T, B]`.
#[derive(Debug)]
pub struct Trajectories<'a> {
    /// log π(a) − log μ(a) of the actions taken.
    pub log_rhos: &'a Tensor,
    /// γ, or 0 where the task ended with this step.
    pub discounts: &'a Tensor,
    /// Rewards.
    pub rewards: &'a Tensor,
    /// Values of the states that the actions were taken in.
    pub values: &'a Tensor,
    /// Values of the states that followed, *within the same episode*: where an episode was cut
    /// off that of its final observation, after the last step the bootstrap.
    pub next_values: &'a Tensor,
    /// 1 where the episode went on with the next row, 0 where it ended for any reason.
    pub continues: &'a Tensor,
}

/// Upper limits of the importance weights; `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RhoClips {
    /// ρ̂, in the temporal differences: which policy's value is learnt.
    pub rho: Option<f64>,
    /// ĉ, in the traces: how far corrections reach back.
    pub c: Option<f64>,
    /// ρ̂_pg, in the advantages of the policy gradient.
    pub pg_rho: Option<f64>,
    /// Factor on the traces (λ of the paper's appendix): 1 for the full correction.
    pub lambda: f64,
}

/// What comes of it, without gradients.
#[derive(Debug)]
pub struct Vtrace {
    /// Targets of the values, `[T, ..]`.
    pub targets: Tensor,
    /// r_t + γ_t vs_{t+1} − V_t, `[T, ..]`: how much better an action was than expected.
    pub surpluses: Tensor,
    /// Advantages for the policy gradient: the same times min(ρ̂_pg, ρ_t), `[T, ..]`.
    pub advantages: Tensor,
}

/// Targets and advantages of some trajectories.
pub fn vtrace(x: &Trajectories<'_>, clips: RhoClips) -> Result<Vtrace, ShapeMismatch> {
    check_shapes(x)?;
    Ok(no_grad(|| {
        let rhos = x.log_rhos.exp();
        let clipped = |limit: Option<f64>| match limit {
            Some(limit) => rhos.clamp_max(limit),
            None => rhos.shallow_clone(),
        };
        let deltas = clipped(clips.rho) * (x.rewards + x.discounts * x.next_values - x.values);
        let carried = x.discounts * clipped(clips.c) * x.continues * clips.lambda;
        let steps = deltas.size()[0];
        let mut corrections = Vec::with_capacity(steps as usize);
        let mut following = deltas.select(0, 0).zeros_like();
        for t in (0..steps).rev() {
            following = deltas.select(0, t) + carried.select(0, t) * following;
            corrections.push(following.shallow_clone());
        }
        corrections.reverse();
        let corrections = Tensor::stack(&corrections, 0);
        // vs_{t+1} is the next row's target while the episode continues; where it ended and after
        // the last row there is no correction of the value that follows.
        let last = corrections.narrow(0, 0, 1).zeros_like();
        let next = Tensor::cat(&[corrections.narrow(0, 1, steps - 1), last], 0);
        let next_targets = x.next_values + next * x.continues;
        let surpluses = x.rewards + x.discounts * next_targets - x.values;
        Vtrace {
            targets: x.values + corrections,
            advantages: clipped(clips.pg_rho) * &surpluses,
            surpluses,
        }
    }))
}

fn check_shapes(x: &Trajectories<'_>) -> Result<(), ShapeMismatch> {
    let shape = x.log_rhos.size();
    let others = [
        ("discounts", x.discounts),
        ("rewards", x.rewards),
        ("values", x.values),
        ("next_values", x.next_values),
        ("continues", x.continues),
    ];
    for (name, tensor) in others {
        if tensor.size() != shape {
            return Err(ShapeMismatch(format!(
                "{name} is {:?}, log_rhos is {shape:?}",
                tensor.size()
            )));
        }
    }
    match shape.first() {
        Some(1..) => Ok(()),
        _ => Err(ShapeMismatch(format!("there are no steps in {shape:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt as _;
    use starling_envs::stream;
    use starling_nets::Kind;

    /// Columns `[T, B]` in row-major order.
    struct Columns {
        envs: usize,
        log_rhos: Vec<f64>,
        discounts: Vec<f64>,
        rewards: Vec<f64>,
        values: Vec<f64>,
        next_values: Vec<f64>,
        continues: Vec<f64>,
    }

    impl Columns {
        fn vtrace(&self, clips: RhoClips) -> (Vec<f64>, Vec<f64>) {
            let tensor =
                |values: &[f64]| Tensor::from_slice(values).reshape([-1, self.envs as i64]);
            let (log_rhos, discounts) = (tensor(&self.log_rhos), tensor(&self.discounts));
            let (rewards, values) = (tensor(&self.rewards), tensor(&self.values));
            let (next_values, continues) = (tensor(&self.next_values), tensor(&self.continues));
            let trajectories = Trajectories {
                log_rhos: &log_rhos,
                discounts: &discounts,
                rewards: &rewards,
                values: &values,
                next_values: &next_values,
                continues: &continues,
            };
            let out = vtrace(&trajectories, clips).unwrap();
            let flat = |tensor: Tensor| Vec::<f64>::try_from(tensor.reshape([-1])).unwrap();
            (flat(out.targets), flat(out.advantages))
        }

        /// The definition as a sum over the future, term by term, of one environment.
        fn by_definition(&self, b: usize, clips: RhoClips) -> (Vec<f64>, Vec<f64>) {
            let steps = self.rewards.len() / self.envs;
            let at = |column: &[f64], t: usize| column[t * self.envs + b];
            let clip = |limit: Option<f64>, t: usize| {
                at(&self.log_rhos, t)
                    .exp()
                    .min(limit.unwrap_or(f64::INFINITY))
            };
            let error = |t: usize, next: f64| {
                at(&self.rewards, t) + at(&self.discounts, t) * next - at(&self.values, t)
            };
            let target = |s: usize| {
                let mut sum = at(&self.values, s);
                for t in s..steps {
                    let mut factor = 1.0;
                    for i in s..t {
                        let trace = clips.lambda * clip(clips.c, i);
                        factor *= at(&self.discounts, i) * trace * at(&self.continues, i);
                    }
                    sum += factor * clip(clips.rho, t) * error(t, at(&self.next_values, t));
                }
                sum
            };
            let targets: Vec<f64> = (0..steps).map(target).collect();
            let advantages = (0..steps).map(|t| {
                let goes_on = t + 1 < steps && at(&self.continues, t) == 1.0;
                let next = match goes_on {
                    true => targets[t + 1],
                    false => at(&self.next_values, t),
                };
                clip(clips.pg_rho, t) * error(t, next)
            });
            let advantages = advantages.collect();
            (targets, advantages)
        }
    }

    fn close(actual: &[f64], expected: &[f64]) {
        assert_eq!(actual.len(), expected.len());
        for (a, e) in actual.iter().zip(expected) {
            assert!(
                (a - e).abs() < 1e-5 * e.abs().max(1.0),
                "{actual:?} is not {expected:?}"
            );
        }
    }

    const NONE: RhoClips = RhoClips {
        rho: None,
        c: None,
        pg_rho: None,
        lambda: 1.0,
    };

    /// The inputs of the reference's own test with one trajectory; results computed by an
    /// independent script.
    #[test]
    fn numbers_computed_elsewhere() {
        let values = [0.0, 1.0, 2.0, 3.0, 4.0];
        let columns = Columns {
            envs: 1,
            log_rhos: (0..5).map(|t| 5.0 * (f64::from(t) / 5.0 - 0.5)).collect(),
            discounts: vec![0.9; 5],
            rewards: values.to_vec(),
            values: values.to_vec(),
            next_values: vec![1.0, 2.0, 3.0, 4.0, 1.0],
            continues: vec![1.0; 5],
        };
        let (targets, advantages) = columns.vtrace(RhoClips {
            rho: Some(3.7),
            c: Some(1.0),
            pg_rho: Some(2.2),
            lambda: 1.0,
        });
        close(&targets, &[0.200182, 2.709682, 8.513628, 11.932397, 7.33]);
        close(
            &advantages,
            &[0.200182, 1.709682, 6.513628, 10.876614, 1.98],
        );
        let (targets, advantages) = columns.vtrace(RhoClips {
            rho: Some(1.0),
            c: Some(1.0),
            pg_rho: Some(1.0),
            lambda: 1.0,
        });
        close(&targets, &[0.163557, 2.21393, 6.044953, 7.41, 4.9]);
        close(&advantages, &[0.163557, 1.21393, 4.044953, 4.41, 0.9]);
    }

    /// Random trajectories with ends of both kinds, against the definition.
    #[test]
    fn the_recursion_is_the_definition() {
        let mut rng = stream(1, "test", 0);
        let (steps, envs) = (7, 5);
        let mut draw = |low: f64, high: f64| -> Vec<f64> {
            (0..steps * envs)
                .map(|_| rng.random_range(low..high))
                .collect()
        };
        let (log_rhos, rewards) = (draw(-2.0, 2.0), draw(-1.0, 1.0));
        let (values, mut next_values) = (draw(-3.0, 3.0), draw(-3.0, 3.0));
        let kinds = draw(0.0, 1.0);
        let terminated = |i: usize| kinds[i] < 0.15;
        let continues: Vec<f64> = kinds
            .iter()
            .map(|&kind| f64::from(u8::from(kind > 0.3)))
            .collect();
        let discounts = (0..steps * envs).map(|i| if terminated(i) { 0.0 } else { 0.95 });
        let discounts = discounts.collect();
        // Where an episode continues, the value that follows is the next row's.
        for i in 0..(steps - 1) * envs {
            if continues[i] == 1.0 {
                next_values[i] = values[i + envs];
            }
        }
        let columns = Columns {
            envs,
            log_rhos,
            discounts,
            rewards,
            values,
            next_values,
            continues,
        };
        let clips = RhoClips {
            rho: Some(1.5),
            c: Some(0.8),
            pg_rho: Some(1.2),
            lambda: 0.9,
        };
        for clips in [clips, NONE] {
            let (targets, advantages) = columns.vtrace(clips);
            for b in 0..envs {
                let of_env = |all: &[f64]| -> Vec<f64> {
                    all.iter().skip(b).step_by(envs).copied().collect()
                };
                let (expected_targets, expected_advantages) = columns.by_definition(b, clips);
                close(&of_env(&targets), &expected_targets);
                close(&of_env(&advantages), &expected_advantages);
            }
        }
    }

    /// With equal policies the targets are the discounted returns: 1 + .5·(2 + .5·(3 + .5·8)).
    #[test]
    fn on_policy_targets_are_returns() {
        let columns = Columns {
            envs: 1,
            log_rhos: vec![0.0; 3],
            discounts: vec![0.5; 3],
            rewards: vec![1.0, 2.0, 3.0],
            values: vec![5.0, -1.0, 0.5],
            next_values: vec![-1.0, 0.5, 8.0],
            continues: vec![1.0; 3],
        };
        let (targets, _) = columns.vtrace(NONE);
        close(&targets, &[3.75, 5.5, 7.0]);
    }

    #[test]
    fn shapes_that_do_not_match_are_refused() {
        let (two, three) = (
            Tensor::zeros([2, 1], (Kind::Float, starling_nets::Device::Cpu)),
            Tensor::zeros([2, 3], (Kind::Float, starling_nets::Device::Cpu)),
        );
        let error = vtrace(
            &Trajectories {
                log_rhos: &three,
                discounts: &three,
                rewards: &three,
                values: &two,
                next_values: &three,
                continues: &three,
            },
            NONE,
        );
        assert!(error.unwrap_err().to_string().contains("values is [2, 1]"));
    }
}
