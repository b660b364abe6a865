//! Batches of the replay, whose arrays are NumPy views of memory of ours.

use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::ndarray::{ArrayViewD, IxDyn};
use numpy::{PyArray2, PyArrayDyn};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use starling_replay::TransitionBatch;
use starling_tree::{Array, DType, Element};

use crate::columns::to_numpy;

/// Transitions. Its arrays are views of memory that is filled again by the next draw into it.
#[pyclass(frozen, name = "Batch", module = "starling._native")]
pub(crate) struct PyBatch(Mutex<TransitionBatch>);

#[pymethods]
impl PyBatch {
    /// Views of all columns by name; observations are lists of arrays.
    #[expect(unsafe_code, reason = "the views have no lifetimes")]
    fn views<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let py = this.py();
        let owner = this.clone().into_any();
        let batch = this.get().lock();
        let views = PyDict::new(py);
        for (name, tree) in [("obs", &batch.obs), ("next_obs", &batch.next_obs)] {
            let arrays = tree.leaves().into_iter();
            // SAFETY: the memory of the columns stays where it is for as long as the batch lives,
            // and nothing here replaces the batch in its cell.
            let arrays = arrays.map(|(_, array)| unsafe { view(&owner, array) });
            views.set_item(name, arrays.collect::<PyResult<Vec<_>>>()?)?;
        }
        for (name, array) in [
            ("actions", &batch.actions),
            ("returns", &batch.returns),
            ("discounts", &batch.discounts),
            ("weights", &batch.weights),
        ] {
            // SAFETY: as above.
            views.set_item(name, unsafe { view(&owner, array) }?)?;
        }
        Ok(views)
    }

    /// What was drawn, to give priorities back.
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let batch = self.lock();
        let ids: Vec<u64> = batch
            .ids
            .iter()
            .flat_map(|id| [id.slot as u64, id.generation])
            .collect();
        let bytes = bytemuck::cast_slice(&ids);
        let array = to_numpy(py, bytes, DType::I64, &[batch.size(), 2])?;
        Ok(array.call_method1("view", ("uint64",))?.cast_into()?)
    }
}

impl PyBatch {
    pub(crate) fn new(batch: TransitionBatch) -> Self {
        Self(Mutex::new(batch))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, TransitionBatch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A NumPy array of the elements of `array`, without a copy. It keeps `owner` alive.
///
/// # Safety
/// `array` belongs to `owner`, and its memory stays where it is for as long as `owner` lives.
#[expect(unsafe_code, reason = "NumPy's arrays have no lifetimes")]
unsafe fn view<'py>(owner: &Bound<'py, PyAny>, array: &Array) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the caller's promise is that of `typed`, whichever type it has.
    unsafe {
        match array.dtype() {
            DType::U8 => typed::<u8>(owner, array),
            DType::I32 => typed::<i32>(owner, array),
            DType::I64 => typed::<i64>(owner, array),
            DType::F32 => typed::<f32>(owner, array),
            DType::F64 => typed::<f64>(owner, array),
        }
    }
}

#[expect(unsafe_code, reason = "as above")]
unsafe fn typed<'py, T: numpy::Element + Element>(
    owner: &Bound<'py, PyAny>,
    array: &Array,
) -> PyResult<Bound<'py, PyAny>> {
    let elements = ArrayViewD::from_shape(IxDyn(array.shape()), array.as_slice::<T>());
    let elements = elements.map_err(|error| PyValueError::new_err(error.to_string()))?;
    // SAFETY: the array holds a reference to its owner, and by the caller's promise the memory
    // stays in its place until the owner is dropped.
    let view = unsafe { PyArrayDyn::borrow_from_array(&elements, owner.clone()) };
    Ok(view.into_any())
}
