//! NumPy arrays as bytes, and bytes as NumPy arrays.

use numpy::{
    IntoPyArray as _, PyArrayMethods as _, PyReadonlyArrayDyn, PyReadwriteArrayDyn, PyUntypedArray,
    PyUntypedArrayMethods as _,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use starling_tree::{Array, DType, Spec, Tree};

/// An array of the caller's that is written to.
pub(crate) enum ColumnMut<'py> {
    U8(PyReadwriteArrayDyn<'py, u8>),
    I32(PyReadwriteArrayDyn<'py, i32>),
    I64(PyReadwriteArrayDyn<'py, i64>),
    F32(PyReadwriteArrayDyn<'py, f32>),
    F64(PyReadwriteArrayDyn<'py, f64>),
}

impl<'py> ColumnMut<'py> {
    /// The array, if it has this type and shape.
    pub(crate) fn new(array: &Bound<'py, PyAny>, dtype: DType, shape: &[usize]) -> PyResult<Self> {
        let untyped = array.cast::<PyUntypedArray>()?;
        if untyped.shape() != shape {
            let found = untyped.shape();
            return Err(PyValueError::new_err(format!(
                "an array has the shape {found:?}, {shape:?} is needed"
            )));
        }
        Ok(match dtype {
            DType::U8 => Self::U8(array.extract()?),
            DType::I32 => Self::I32(array.extract()?),
            DType::I64 => Self::I64(array.extract()?),
            DType::F32 => Self::F32(array.extract()?),
            DType::F64 => Self::F64(array.extract()?),
        })
    }

    /// All elements.
    pub(crate) fn bytes_mut(&mut self) -> PyResult<&mut [u8]> {
        Ok(match self {
            Self::U8(array) => array.as_slice_mut()?,
            Self::I32(array) => bytemuck::cast_slice_mut(array.as_slice_mut()?),
            Self::I64(array) => bytemuck::cast_slice_mut(array.as_slice_mut()?),
            Self::F32(array) => bytemuck::cast_slice_mut(array.as_slice_mut()?),
            Self::F64(array) => bytemuck::cast_slice_mut(array.as_slice_mut()?),
        })
    }
}

/// A copy of an array of the caller's, if it has this type and as many elements as the shape.
pub(crate) fn copied(given: &Bound<'_, PyAny>, spec: &Spec, leading: &[usize]) -> PyResult<Array> {
    let shape: Vec<usize> = leading.iter().chain(&spec.shape).copied().collect();
    let mut array = Array::zeros(spec.dtype, &shape);
    let found = given.cast::<PyUntypedArray>()?.shape().to_vec();
    if found.iter().product::<usize>() != shape.iter().product::<usize>() {
        return Err(PyValueError::new_err(format!(
            "an array has the shape {found:?}, {shape:?} is needed"
        )));
    }
    fn copy<T: numpy::Element + bytemuck::Pod>(
        given: &Bound<'_, PyAny>,
        to: &mut [u8],
    ) -> PyResult<()> {
        let given: PyReadonlyArrayDyn<'_, T> = given.extract().map_err(|_| {
            PyTypeError::new_err(format!(
                "an array is not of the type {}",
                std::any::type_name::<T>()
            ))
        })?;
        to.copy_from_slice(bytemuck::cast_slice(given.as_slice()?));
        Ok(())
    }
    let bytes = array.bytes_mut();
    match spec.dtype {
        DType::U8 => copy::<u8>(given, bytes),
        DType::I32 => copy::<i32>(given, bytes),
        DType::I64 => copy::<i64>(given, bytes),
        DType::F32 => copy::<f32>(given, bytes),
        DType::F64 => copy::<f64>(given, bytes),
    }?;
    Ok(array)
}

/// A new NumPy array of these bytes.
pub(crate) fn to_numpy<'py>(
    py: Python<'py>,
    bytes: &[u8],
    dtype: DType,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    fn array<'py, T: numpy::Element + bytemuck::Pod>(
        py: Python<'py>,
        bytes: &[u8],
        shape: &[usize],
    ) -> PyResult<Bound<'py, PyAny>> {
        // The bytes need not be aligned.
        let elements = bytes.chunks_exact(size_of::<T>());
        let elements: Vec<T> = elements.map(bytemuck::pod_read_unaligned).collect();
        Ok(elements
            .into_pyarray(py)
            .reshape(shape.to_vec())?
            .into_any())
    }
    match dtype {
        DType::U8 => array::<u8>(py, bytes, shape),
        DType::I32 => array::<i32>(py, bytes, shape),
        DType::I64 => array::<i64>(py, bytes, shape),
        DType::F32 => array::<f32>(py, bytes, shape),
        DType::F64 => array::<f64>(py, bytes, shape),
    }
}

/// The name of a type in NumPy.
pub(crate) fn name_of(dtype: DType) -> &'static str {
    match dtype {
        DType::U8 => "uint8",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::F32 => "float32",
        DType::F64 => "float64",
    }
}

/// Path, type and shape of every array, in order.
pub(crate) fn described(tree: &Tree<Spec>) -> Vec<(String, &'static str, Vec<usize>)> {
    let leaves = tree.leaves().into_iter();
    let leaf = |(path, spec): (String, &Spec)| (path, name_of(spec.dtype), spec.shape.clone());
    leaves.map(leaf).collect()
}
