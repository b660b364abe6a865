//! What an environment shows and what it accepts.

use starling_tree::{DType, Spec, Tree};

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

    /// A vector of floats with bounds of its own for each element.
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
}
