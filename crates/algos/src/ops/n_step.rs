//! n-step returns within a rollout; fewer steps at its end.

/// An n-step return, and where to bootstrap from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ahead {
    /// Discounted sum of the rewards.
    pub return_: f64,
    /// What the value that follows is multiplied by; 0 where the task ended.
    pub discount: f64,
    /// Whose value that is.
    pub next: Next,
}

/// An observation of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// That of a row, at most T.
    Row(usize),
    /// The last one of the episode that was cut off with step t.
    Final(usize),
}

/// The n steps that begin with each step of one environment. Near the end of the rollout they
/// are fewer: its last observation is as far as anybody can look.
pub fn n_steps_ahead(
    rewards: &[f32],
    terminated: &[bool],
    truncated: &[bool],
    n: usize,
    gamma: f64,
) -> Vec<Ahead> {
    let steps = rewards.len();
    let ahead = |start: usize| {
        let (mut return_, mut power) = (0.0, 1.0);
        for t in start..steps.min(start + n) {
            return_ += power * f64::from(rewards[t]);
            power *= gamma;
            if terminated[t] || truncated[t] {
                return Ahead {
                    return_,
                    discount: if terminated[t] { 0.0 } else { power },
                    next: Next::Final(t),
                };
            }
        }
        Ahead {
            return_,
            discount: power,
            next: Next::Row(steps.min(start + n)),
        }
    };
    (0..steps).map(ahead).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// n = 3, γ = .9, rewards 1 to 6, the task ends with the fourth step: returns of an
    /// independent script.
    #[test]
    fn returns_computed_elsewhere() {
        let rewards = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut terminated = [false; 6];
        terminated[3] = true;
        let ahead = n_steps_ahead(&rewards, &terminated, &[false; 6], 3, 0.9);
        for (ahead, expected) in ahead.iter().zip([5.23, 7.94, 6.6, 4.0]) {
            assert!((ahead.return_ - expected).abs() < 1e-9);
        }
        let ended: Vec<bool> = ahead.iter().map(|ahead| ahead.discount == 0.0).collect();
        assert_eq!(ended, [false, true, true, true, false, false]);
        assert_eq!(ahead[0].next, Next::Row(3));
        // Two steps are left for the fifth, one for the last.
        assert_eq!(ahead[4].next, Next::Row(6));
        assert!((ahead[4].return_ - 10.4).abs() < 1e-9);
        assert!((ahead[4].discount - 0.81).abs() < 1e-9);
        assert!((ahead[5].discount - 0.9).abs() < 1e-9);
    }

    #[test]
    fn a_cut_off_episode_is_bootstrapped_from_its_last_observation() {
        let truncated = [false, true, false];
        let ahead = n_steps_ahead(&[1.0, 1.0, 1.0], &[false; 3], &truncated, 3, 0.5);
        assert_eq!(ahead[0].next, Next::Final(1));
        assert_eq!((ahead[0].return_, ahead[0].discount), (1.5, 0.25));
        assert_eq!(ahead[2].next, Next::Row(3));
    }
}
