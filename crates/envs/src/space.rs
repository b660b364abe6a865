//! The spaces of observations and actions.

use rand::RngExt as _;
use starling_tree::{DType, Spec, Tree, ViewMut};

use crate::Rng;

/// The set of values of an observation or an action.
#[derive(Clone, Debug, PartialEq)]
pub enum Space {
    /// One of `n` choices, numbered from 0; stored as `i64`.
    Discrete {
        /// Number of choices.
        n: usize,
    },
    /// Several independent choices at once; stored as one `i64` each.
    MultiDiscrete {
        /// Number of choices of each component.
        choices: Vec<usize>,
    },
    /// An array of numbers within bounds.
    Box {
        /// Element type: `F32`, or `U8` for pixels and flags.
        dtype: DType,
        /// Shape of the array.
        shape: Vec<usize>,
        /// Smallest and largest values.
        bounds: Bounds,
    },
    /// Named parts, in order.
    Dict(Vec<(String, Space)>),
}

/// Smallest and largest values of a [`Space::Box`].
#[derive(Clone, Debug, PartialEq)]
pub enum Bounds {
    /// The same for every element.
    Uniform {
        /// Smallest value, possibly −∞.
        low: f32,
        /// Largest value, possibly ∞.
        high: f32,
    },
    /// One pair per element, in row-major order.
    PerElement {
        /// Smallest values.
        low: Vec<f32>,
        /// Largest values.
        high: Vec<f32>,
    },
}

impl Bounds {
    /// The bounds of element `i`.
    pub fn of(&self, i: usize) -> (f32, f32) {
        match self {
            Bounds::Uniform { low, high } => (*low, *high),
            Bounds::PerElement { low, high } => (low[i], high[i]),
        }
    }
}

impl Space {
    /// Floats without bounds.
    pub fn unbounded(shape: &[usize]) -> Self {
        Self::floats(shape, f32::NEG_INFINITY, f32::INFINITY)
    }

    /// Floats with the same bounds for every element.
    pub fn floats(shape: &[usize], low: f32, high: f32) -> Self {
        Space::Box {
            dtype: DType::F32,
            shape: shape.to_vec(),
            bounds: Bounds::Uniform { low, high },
        }
    }

    /// A vector of floats with separate bounds for each element.
    pub fn vector(low: &[f32], high: &[f32]) -> Self {
        Space::Box {
            dtype: DType::F32,
            shape: vec![low.len()],
            bounds: Bounds::PerElement {
                low: low.to_vec(),
                high: high.to_vec(),
            },
        }
    }

    /// Bytes from 0 to `high`.
    pub fn bytes(shape: &[usize], high: u8) -> Self {
        Space::Box {
            dtype: DType::U8,
            shape: shape.to_vec(),
            bounds: Bounds::Uniform {
                low: 0.0,
                high: f32::from(high),
            },
        }
    }

    /// How values of this space are stored.
    pub fn spec(&self) -> Tree<Spec> {
        match self {
            Space::Discrete { .. } => Tree::Leaf(Spec::scalar(DType::I64)),
            Space::MultiDiscrete { choices } => Tree::Leaf(Spec::new(DType::I64, &[choices.len()])),
            Space::Box { dtype, shape, .. } => Tree::Leaf(Spec::new(*dtype, shape)),
            Space::Dict(parts) => Tree::node(
                parts
                    .iter()
                    .map(|(name, part)| (name.as_str(), part.spec())),
            ),
        }
    }

    /// Draws a value uniformly and writes it as an item of a column of actions, where named parts
    /// are side by side as floats.
    ///
    /// Of a discrete space only choices whose `legal` is not 0 are drawn. If one bound is infinite,
    /// the value is within 1 of the other; if both are, it is between −1 and 1.
    ///
    /// # Panics
    /// When the item is not one of this space, or no choice is legal.
    pub fn sample(&self, rng: &mut Rng, legal: Option<&[u8]>, mut item: ViewMut<'_>) {
        match self {
            Space::Discrete { n } => {
                item.as_mut_slice::<i64>()[0] = draw_choice(*n, legal, rng) as i64;
            }
            Space::MultiDiscrete { choices } => {
                for (value, n) in item.as_mut_slice::<i64>().iter_mut().zip(choices) {
                    *value = draw_choice(*n, None, rng) as i64;
                }
            }
            Space::Box { bounds, dtype, .. } if *dtype == DType::U8 => {
                for (i, value) in item.as_mut_slice::<u8>().iter_mut().enumerate() {
                    let (low, high) = bounds.of(i);
                    *value = rng.random_range(low as u8..=high as u8);
                }
            }
            Space::Box { .. } | Space::Dict(_) => {
                let mut values = item.as_mut_slice::<f32>().iter_mut();
                self.sample_floats(rng, &mut values);
            }
        }
    }

    fn sample_floats<'a>(&self, rng: &mut Rng, values: &mut impl Iterator<Item = &'a mut f32>) {
        match self {
            Space::Discrete { n } => {
                for value in values.take(1) {
                    *value = draw_choice(*n, None, rng) as f32;
                }
            }
            Space::MultiDiscrete { choices } => {
                for (n, value) in choices.iter().zip(values) {
                    *value = draw_choice(*n, None, rng) as f32;
                }
            }
            Space::Box { shape, bounds, .. } => {
                for i in 0..shape.iter().product() {
                    let (low, high) = match bounds.of(i) {
                        (low, high) if low.is_finite() && high.is_finite() => (low, high),
                        (low, _) if low.is_finite() => (low, low + 1.0),
                        (_, high) if high.is_finite() => (high - 1.0, high),
                        _ => (-1.0, 1.0),
                    };
                    for value in values.take(1) {
                        *value = rng.random_range(low..=high);
                    }
                }
            }
            Space::Dict(parts) => {
                for (_, part) in parts {
                    part.sample_floats(rng, values);
                }
            }
        }
    }
}

fn draw_choice(n: usize, legal: Option<&[u8]>, rng: &mut Rng) -> usize {
    let Some(legal) = legal else {
        return rng.random_range(0..n);
    };
    let count = legal.iter().filter(|flag| **flag != 0).count();
    assert!(count > 0, "none of the {n} actions is legal");
    let chosen = rng.random_range(0..count);
    let mut choices = legal.iter().enumerate().filter(|(_, flag)| **flag != 0);
    choices.nth(chosen).map_or(0, |(choice, _)| choice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream;
    use starling_tree::Array;

    #[test]
    fn samples_are_legal_and_within_bounds() {
        let mut rng = stream(1, "sample", 0);
        let mut choice = Array::zeros(DType::I64, &[1]);
        let mut seen = [0; 4];
        for _ in 0..200 {
            let space = Space::Discrete { n: 4 };
            space.sample(&mut rng, Some(&[0, 1, 0, 1]), choice.at_mut(&[0]));
            seen[choice.as_slice::<i64>()[0] as usize] += 1;
        }
        assert!(seen[0] == 0 && seen[2] == 0, "{seen:?}");
        assert!(seen[1] > 50 && seen[3] > 50, "{seen:?}");

        let mut numbers = Array::zeros(DType::F32, &[1, 5]);
        let space = Space::Dict(vec![
            (
                "throttle".into(),
                Space::vector(
                    &[-2.0, f32::NEG_INFINITY, 3.0, f32::NEG_INFINITY],
                    &[-1.0, f32::INFINITY, f32::INFINITY, 0.5],
                ),
            ),
            ("gear".into(), Space::Discrete { n: 2 }),
        ]);
        for _ in 0..200 {
            space.sample(&mut rng, None, numbers.at_mut(&[0]));
            let values = numbers.as_slice::<f32>();
            let within = [
                (-2.0, -1.0),
                (-1.0, 1.0),
                (3.0, 4.0),
                (-0.5, 0.5),
                (0.0, 1.0),
            ];
            for (value, (low, high)) in values.iter().zip(within) {
                assert!((low..=high).contains(value), "{values:?}");
            }
            assert_eq!(values[4].fract(), 0.0);
        }
    }
}
