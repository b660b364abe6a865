//! Spaces, as dictionaries that `starling/_spaces.py` makes Gymnasium's from.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use starling_envs::Space;

use crate::columns::{name_of, to_numpy};
use starling_tree::DType;

pub(crate) fn describe<'py>(py: Python<'py>, space: &Space) -> PyResult<Bound<'py, PyDict>> {
    let described = PyDict::new(py);
    match space {
        Space::Discrete { n } => {
            described.set_item("kind", "discrete")?;
            described.set_item("n", *n)?;
        }
        Space::MultiDiscrete { choices } => {
            described.set_item("kind", "multi_discrete")?;
            described.set_item("choices", choices.clone())?;
        }
        Space::Box {
            dtype,
            shape,
            bounds,
        } => {
            let pairs = (0..shape.iter().product()).map(|i| bounds.of(i));
            let (low, high): (Vec<f32>, Vec<f32>) = pairs.unzip();
            described.set_item("kind", "box")?;
            described.set_item("dtype", name_of(*dtype))?;
            for (name, values) in [("low", low), ("high", high)] {
                let bytes = bytemuck::cast_slice(&values);
                described.set_item(name, to_numpy(py, bytes, DType::F32, shape)?)?;
            }
        }
        Space::Dict(parts) => {
            let list = PyList::empty(py);
            for (name, part) in parts {
                list.append((name, describe(py, part)?))?;
            }
            described.set_item("kind", "dict")?;
            described.set_item("parts", list)?;
        }
    }
    Ok(described)
}
