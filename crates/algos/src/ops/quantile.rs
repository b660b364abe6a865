//! Regression of quantiles (Dabney et al. 2018).

use starling_nets::{Kind, Tensor};

/// The quantile Huber loss `[N]`: the mean over targets of the sum over predictions of
/// |τ − 1{δ < 0}| · Huber_κ(δ) / κ, with δ = target − prediction.
///
/// `predictions` and their fractions τ are `[N or 1, K]`, `targets` `[N, K']`.
pub fn quantile_huber(
    predictions: &Tensor,
    fractions: &Tensor,
    targets: &Tensor,
    kappa: f64,
) -> Tensor {
    // [N, K', K]
    let errors = targets.unsqueeze(-1) - predictions.unsqueeze(-2);
    let below = errors.lt(0.0).to_kind(Kind::Float);
    let weight = (fractions.unsqueeze(-2) - below).abs();
    let losses = weight * huber(&errors, kappa) / kappa;
    let sums = losses.sum_dim_intlist([-1].as_slice(), false, Kind::Float);
    sums.mean_dim([-1].as_slice(), false, Kind::Float)
}

/// ½δ² up to κ, κ(|δ| − κ/2) beyond.
pub fn huber(errors: &Tensor, kappa: f64) -> Tensor {
    let size = errors.abs();
    let inner = size.clamp_max(kappa);
    (&size - &inner * 0.5) * &inner
}

#[cfg(test)]
mod tests {
    use super::*;

    /// κ = 1, τ = (.25, .75), θ = (1, 2), targets (1.5, 4): the sums per target are .0625 and
    /// 1.75, computed by an independent script.
    #[test]
    fn numbers_computed_elsewhere() {
        let row = |values: &[f32]| Tensor::from_slice(values).reshape([1, -1]);
        let (theta, tau) = (row(&[1.0, 2.0]), row(&[0.25, 0.75]));
        let of = |targets: &[f32]| quantile_huber(&theta, &tau, &row(targets), 1.0);
        assert!((of(&[1.5]).double_value(&[0]) - 0.0625).abs() < 1e-6);
        assert!((of(&[4.0]).double_value(&[0]) - 1.75).abs() < 1e-6);
        assert!((of(&[1.5, 4.0]).double_value(&[0]) - 0.90625).abs() < 1e-6);
    }

    /// Minimising the loss with κ → 0 over fixed targets gives their quantiles: for targets 0
    /// to 9 and τ = 0.75 it is 7, with less than three quarters below and more up to it.
    #[test]
    fn the_minimum_is_the_quantile() {
        let targets: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let targets = Tensor::from_slice(&targets).reshape([1, -1]);
        let tau = Tensor::from_slice(&[0.75f32]).reshape([1, 1]);
        let loss = |theta: f32| {
            let theta = Tensor::from_slice(&[theta]).reshape([1, 1]);
            quantile_huber(&theta, &tau, &targets, 1e-3).double_value(&[0])
        };
        assert!(loss(7.0) < loss(6.5) && loss(7.0) < loss(7.5));
    }
}
