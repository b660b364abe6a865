//! Conversion between host arrays and tensors.

use starling_tree::{Array, DType, Tree, View};
use tch::{Device, Kind, Tensor};

/// A tensor with a copy of the array's elements.
pub fn tensor_of(array: &Array, device: Device) -> Tensor {
    tensor_of_view(array.at(&[]), device)
}

/// A tensor with a copy of the elements of a part of an array.
pub fn tensor_of_view(view: View<'_>, device: Device) -> Tensor {
    let shape: Vec<i64> = view.shape.iter().map(|&n| n as i64).collect();
    Tensor::from_data_size(view.bytes, &shape, kind_of(view.dtype)).to_device(device)
}

/// A tree of tensors with copies of everything under a leading index.
pub fn tree_of(tree: &Tree<Array>, index: &[usize], device: Device) -> Tree<Tensor> {
    tree.map(|array| tensor_of_view(array.at(index), device))
}

/// An array with a copy of the tensor's elements; halves become floats, flags become bytes.
pub fn array_of(tensor: &Tensor) -> Array {
    let (dtype, kind) = match tensor.kind() {
        Kind::Uint8 | Kind::Bool => (DType::U8, Kind::Uint8),
        Kind::Int => (DType::I32, Kind::Int),
        Kind::Int64 => (DType::I64, Kind::Int64),
        Kind::Double => (DType::F64, Kind::Double),
        _ => (DType::F32, Kind::Float),
    };
    let tensor = tensor.detach().to_device(Device::Cpu).to_kind(kind);
    let tensor = tensor.contiguous();
    let shape: Vec<usize> = tensor.size().iter().map(|&n| n as usize).collect();
    let mut array = Array::zeros(dtype, &shape);
    tensor.copy_data_u8(array.bytes_mut(), tensor.numel());
    array
}

pub(crate) fn kind_of(dtype: DType) -> Kind {
    match dtype {
        DType::U8 => Kind::Uint8,
        DType::I32 => Kind::Int,
        DType::I64 => Kind::Int64,
        DType::F32 => Kind::Float,
        DType::F64 => Kind::Double,
    }
}
