//! Generalized advantage estimation (Schulman et al. 2016) and λ-returns.

/// Advantages and value targets `[T, B]`, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    /// How much better an action was than expected.
    pub advantages: Vec<f32>,
    /// What the value should have been: advantage + value.
    pub returns: Vec<f32>,
}

/// Advantages over T steps of B environments; all inputs are `[T, B]` in row-major order.
///
/// `next_values` are the values of the states after each step *within the same episode*: zero
/// where the task ended, the value of the final observation where it was cut off. `ends` is true
/// where an episode ended for either reason; nothing flows back across it.
pub fn generalized_advantages(
    rewards: &[f32],
    values: &[f32],
    next_values: &[f32],
    ends: &[bool],
    envs: usize,
    gamma: f32,
    lambda: f32,
) -> Advantages {
    let mut advantages = vec![0.0; rewards.len()];
    for b in 0..envs {
        let mut following = 0.0;
        for i in (b..rewards.len()).step_by(envs).rev() {
            let error = rewards[i] + gamma * next_values[i] - values[i];
            let carried = if ends[i] {
                0.0
            } else {
                gamma * lambda * following
            };
            following = error + carried;
            advantages[i] = following;
        }
    }
    let returns = advantages.iter().zip(values).map(|(a, v)| a + v).collect();
    Advantages {
        advantages,
        returns,
    }
}

/// λ-returns over T steps of B environments; all inputs are `[T, B]` in row-major order, with
/// `next_values` and `ends` as in [`generalized_advantages`].
///
/// G_t = r_t + γ((1 − λ) V_{t+1} + λ G_{t+1}), with V_{t+1} in place of G_{t+1} where an episode
/// ends and after the last step.
pub fn lambda_returns(
    rewards: &[f32],
    next_values: &[f32],
    ends: &[bool],
    envs: usize,
    gamma: f32,
    lambda: f32,
) -> Vec<f32> {
    let mut returns = vec![0.0; rewards.len()];
    for i in (0..rewards.len()).rev() {
        let following = match (ends[i], returns.get(i + envs)) {
            (false, Some(following)) => *following,
            _ => next_values[i],
        };
        let mixed = (1.0 - lambda) * next_values[i] + lambda * following;
        returns[i] = rewards[i] + gamma * mixed;
    }
    returns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(actual: &[f32], expected: [f32; 4]) {
        for (a, e) in actual.iter().zip(expected) {
            assert!((a - e).abs() < 1e-5, "{actual:?} is not {expected:?}");
        }
    }

    /// r = [1, 0, 2, 1], V = [.5, .4, .3, .2], done after the third step, bootstrap .6,
    /// γ .99: computed by an independent script.
    #[test]
    fn numbers_computed_elsewhere() {
        let rewards = [1.0, 0.0, 2.0, 1.0];
        let values = [0.5, 0.4, 0.3, 0.2];
        let next_values = [0.4, 0.3, 0.0, 0.6];
        let ends = [false, false, true, false];
        let gae = |lambda| {
            generalized_advantages(&rewards, &values, &next_values, &ends, 1, 0.99, lambda)
        };
        close(&gae(0.95).advantages, [2.302847, 1.49585, 1.7, 1.394]);
        close(&gae(0.95).returns, [2.802847, 1.89585, 2.0, 1.594]);
        close(&gae(1.0).returns, [2.9602, 1.98, 2.0, 1.594]);
    }

    /// A cut-off episode is bootstrapped from its final observation, here worth 10:
    /// δ₁ = 1 + .5·10 − 2 = 4 and δ₀ = 1 + .5·2 − 3 = −1, so A₀ = −1 + .5·4 = 1.
    #[test]
    fn truncation_is_bootstrapped_and_does_not_leak() {
        let out = generalized_advantages(
            &[1.0, 1.0, 7.0],
            &[3.0, 2.0, 5.0],
            &[2.0, 10.0, 0.0],
            &[false, true, true],
            1,
            0.5,
            1.0,
        );
        assert_eq!(out.advantages, [1.0, 4.0, 2.0]);
    }

    /// γ = λ = ½: G₂ = 4 + ½·8 = 8, G₁ = 2 (ended), G₀ = 1 + ½(½·6 + ½·2) = 3 for the first
    /// environment; the second has rewards 0 and values 4 throughout.
    #[test]
    fn lambda_returns_by_hand() {
        let returns = lambda_returns(
            &[1.0, 0.0, 2.0, 0.0, 4.0, 0.0],
            &[6.0, 4.0, 0.0, 4.0, 8.0, 4.0],
            &[false, false, true, false, false, false],
            2,
            0.5,
            0.5,
        );
        let second = [1.0 + 0.25 * 1.5, 1.5, 2.0];
        assert_eq!(returns, [3.0, second[0], 2.0, second[1], 8.0, second[2]]);
    }

    #[test]
    fn environments_do_not_mix() {
        let both = generalized_advantages(
            &[1.0, 10.0, 2.0, 20.0],
            &[0.0; 4],
            &[0.0; 4],
            &[false; 4],
            2,
            1.0,
            1.0,
        );
        assert_eq!(both.advantages, [3.0, 30.0, 2.0, 20.0]);
    }
}
