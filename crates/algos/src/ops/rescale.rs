//! Value rescaling, so that large returns do not dominate small ones (Pohlen et al. 2018).

use starling_nets::Tensor;

/// The ε of the papers.
pub const RESCALE_EPSILON: f64 = 1e-3;

/// h(x) = sign(x)(√(|x| + 1) − 1) + εx.
pub fn rescale(x: &Tensor) -> Tensor {
    x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + x * RESCALE_EPSILON
}

/// The inverse of [`rescale`].
pub fn unscale(x: &Tensor) -> Tensor {
    let e = RESCALE_EPSILON;
    let root = ((x.abs() + (1.0 + e)) * (4.0 * e) + 1.0).sqrt();
    x.sign() * (((root - 1.0) / (2.0 * e)).square() - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_nets::Kind;

    /// Numbers of an independent script.
    #[test]
    fn numbers_computed_elsewhere() {
        let x = Tensor::from_slice(&[1f64, 10.0, 100.0, 1000.0, -10.0]);
        let h = rescale(&x);
        let expected = [0.415214, 2.326625, 9.149876, 31.638584, -2.326625];
        for (i, expected) in expected.iter().enumerate() {
            assert!((h.double_value(&[i as i64]) - expected).abs() < 1e-6);
        }
        let back = unscale(&Tensor::from_slice(&[1f64, 10.0]));
        assert!((back.double_value(&[0]) - 2.9881).abs() < 1e-4);
        assert!((back.double_value(&[1]) - 117.4303).abs() < 1e-4);
    }

    /// Also in single precision, where the root cancels digits.
    #[test]
    fn the_inverse_undoes_it() {
        let x = Tensor::from_slice(&[-3000f32, -1.0, -0.01, 0.0, 0.5, 7.0, 1e5]);
        let back = unscale(&rescale(&x));
        let error = ((back - &x).abs() / (x.abs() + 1.0)).max();
        assert!(error.to_kind(Kind::Double).double_value(&[]) < 2e-3);
    }
}
