//! Distributions over a fixed set of returns (Bellemare et al. 2017).

use starling_nets::{Device, Kind, Tensor};

/// Evenly spaced returns from `low` to `high`, `[atoms]`.
pub fn support(low: f64, high: f64, atoms: usize, device: Device) -> Tensor {
    Tensor::linspace(low, high, atoms as i64, (Kind::Float, device))
}

/// The distribution of `returns + discounts · Z`, projected onto the support of Z.
///
/// `probabilities` `[N, atoms]` are those of Z; `returns` and `discounts` are `[N]`. What lies
/// outside the support goes to its ends, what lies between two atoms is split between them.
pub fn project(
    support: &Tensor,
    probabilities: &Tensor,
    returns: &Tensor,
    discounts: &Tensor,
) -> Tensor {
    let (low, high) = (support.min(), support.max());
    let gap = (&high - &low) / (support.numel() as f64 - 1.0);
    let moved = returns.unsqueeze(-1) + discounts.unsqueeze(-1) * support;
    let moved = moved.maximum(&low).minimum(&high);
    // [N, from, to]: the share of each old atom that each new one receives.
    let distance = (moved.unsqueeze(-1) - support).abs() / gap;
    let share = (distance.ones_like() - distance).clamp_min(0.0);
    probabilities.unsqueeze(1).matmul(&share).squeeze_dim(1)
}

/// KL(target ‖ prediction) `[N]` from probabilities and log-probabilities `[N, atoms]`.
///
/// Its gradient is that of the cross-entropy; unlike it, it is 0 for a perfect prediction.
pub fn divergence(target: &Tensor, log_prediction: &Tensor) -> Tensor {
    let entropy = target.xlogy(target);
    (entropy - target * log_prediction).sum_dim_intlist([-1].as_slice(), false, Kind::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn projected(at: usize, return_: f32, discount: f32) -> Vec<f32> {
        let support = support(-10.0, 10.0, 51, Device::Cpu);
        let mut mass = [0f32; 51];
        mass[at] = 1.0;
        let mass = Tensor::from_slice(&mass).reshape([1, 51]);
        let (returns, discounts) = (
            Tensor::from_slice(&[return_]),
            Tensor::from_slice(&[discount]),
        );
        let out = project(&support, &mass, &returns, &discounts);
        Vec::try_from(out.reshape([-1])).unwrap()
    }

    fn close(actual: &[f32], expected: &[(usize, f32)]) {
        for (i, &value) in actual.iter().enumerate() {
            let wanted = expected.iter().find(|(at, _)| *at == i);
            let wanted = wanted.map_or(0.0, |(_, value)| *value);
            assert!((value - wanted).abs() < 1e-5, "atom {i}: {value}");
        }
    }

    /// Numbers of an independent script, 51 atoms from −10 to 10. Atom 25 is 0, atom 30 is 2.
    #[test]
    fn projections_computed_elsewhere() {
        close(&projected(25, 1.0, 1.0), &[(27, 0.5), (28, 0.5)]);
        let moved = projected(30, 0.5, 0.970299);
        close(&moved, &[(31, 0.898505), (32, 0.101495)]);
        close(&projected(30, 9.5, 0.970299), &[(50, 1.0)]);
    }

    /// Target (1, 0): KL = −ln 0.25. Equal distributions: 0.
    #[test]
    fn divergence_by_hand() {
        let target = Tensor::from_slice(&[1f32, 0.0, 0.3, 0.7]).reshape([2, 2]);
        let prediction = Tensor::from_slice(&[0.25f32, 0.75, 0.3, 0.7]).reshape([2, 2]);
        let kl = divergence(&target, &prediction.log());
        assert!((kl.double_value(&[0]) - 4f64.ln()).abs() < 1e-6);
        assert!(kl.double_value(&[1]).abs() < 1e-6);
    }
}
