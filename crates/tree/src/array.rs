//! Arrays: bytes with a type and a shape.

use std::any::Any;
use std::fmt::Debug;

use serde::{Deserialize, Serialize};

/// The type of an array's elements. Flags and masks are `U8` with the values 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// Unsigned bytes: pixels, flags, masks.
    U8,
    /// 32-bit signed integers.
    I32,
    /// 64-bit signed integers: discrete actions, indices.
    I64,
    /// 32-bit floats: observations, rewards, everything a network sees.
    F32,
    /// 64-bit floats: sums that must not lose precision.
    F64,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }
}

/// A Rust type that an [`Array`] can hold.
pub trait Element: bytemuck::Pod {
    /// The matching [`DType`].
    const DTYPE: DType;
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;
}
impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
impl Element for i64 {
    const DTYPE: DType = DType::I64;
}
impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for f64 {
    const DTYPE: DType = DType::F64;
}

/// Element type and shape of one item, without leading dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spec {
    /// Element type.
    pub dtype: DType,
    /// Shape of one item; empty for a scalar.
    pub shape: Vec<usize>,
}

impl Spec {
    /// A specification from its parts.
    pub fn new(dtype: DType, shape: &[usize]) -> Self {
        let shape = shape.to_vec();
        Self { dtype, shape }
    }

    /// One number per item.
    pub fn scalar(dtype: DType) -> Self {
        Self::new(dtype, &[])
    }

    /// Elements of one item.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of one item.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }
}

/// A dense array in row-major order, owned as bytes.
///
/// The storage is allocated in 8-byte words, so that a typed slice of it is always aligned.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    dtype: DType,
    shape: Vec<usize>,
    words: Words,
    byte_len: usize,
}

/// Memory that an [`Array`] can lie in instead of the heap, such as memory that a device reads
/// by itself. It stays in its place for as long as it lives.
pub trait Memory: Debug + Send + Sync {
    /// All of it.
    fn words(&self) -> &[u64];

    /// All of it, to be written.
    fn words_mut(&mut self) -> &mut [u64];

    /// For those who know what kind of memory it may be.
    fn as_any(&self) -> &dyn Any;

    /// The same, for those who change it.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// Where the elements are. A copy of an array is always on the heap.
#[derive(Debug)]
enum Words {
    Heap(Vec<u64>),
    Special(Box<dyn Memory>),
}

impl Words {
    fn get(&self) -> &[u64] {
        match self {
            Words::Heap(words) => words,
            Words::Special(memory) => memory.words(),
        }
    }

    fn get_mut(&mut self) -> &mut [u64] {
        match self {
            Words::Heap(words) => words,
            Words::Special(memory) => memory.words_mut(),
        }
    }
}

impl Clone for Words {
    fn clone(&self) -> Self {
        Words::Heap(self.get().to_vec())
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Array {
    /// An array of zeros.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Self {
        let byte_len = shape.iter().product::<usize>() * dtype.size();
        Self {
            dtype,
            shape: shape.to_vec(),
            words: Words::Heap(vec![0; byte_len.div_ceil(8)]),
            byte_len,
        }
    }

    /// Moves the elements to other memory, which `make` gives for a number of words.
    ///
    /// # Panics
    /// When the memory has another size.
    pub fn move_to<M: Memory + 'static>(&mut self, make: impl FnOnce(usize) -> M) {
        let words = self.words.get();
        let mut memory = make(words.len());
        memory.words_mut().copy_from_slice(words);
        self.words = Words::Special(Box::new(memory));
    }

    /// The memory that the elements lie in; `None` on the heap.
    pub fn memory(&self) -> Option<&dyn Memory> {
        match &self.words {
            Words::Heap(_) => None,
            Words::Special(memory) => Some(&**memory),
        }
    }

    /// The same, to be changed.
    pub fn memory_mut(&mut self) -> Option<&mut dyn Memory> {
        match &mut self.words {
            Words::Heap(_) => None,
            Words::Special(memory) => Some(&mut **memory),
        }
    }

    /// A copy of `values` with the given shape.
    ///
    /// # Panics
    /// When the number of values is not the product of the shape.
    pub fn from_slice<T: Element>(values: &[T], shape: &[usize]) -> Self {
        let mut array = Self::zeros(T::DTYPE, shape);
        array.as_mut_slice::<T>().copy_from_slice(values);
        array
    }

    /// Arrays laid side by side along a dimension; `None` if there is none or they differ in
    /// another dimension or in type.
    pub fn side_by_side(arrays: &[&Array], dimension: usize) -> Option<Self> {
        let first = arrays.first()?;
        let mut shape = first.shape().to_vec();
        let fits = |array: &&&Array| {
            let (a, b) = (array.shape(), first.shape());
            array.dtype() == first.dtype()
                && a.len() == b.len()
                && a[..dimension] == b[..dimension]
                && a[dimension + 1..] == b[dimension + 1..]
        };
        if shape.len() <= dimension || arrays.iter().filter(fits).count() != arrays.len() {
            return None;
        }
        shape[dimension] = arrays.iter().map(|array| array.shape()[dimension]).sum();
        let rows: usize = shape[..dimension].iter().product();
        let mut joined = Array::zeros(first.dtype(), &shape);
        let mut rest = joined.bytes_mut();
        for row in 0..rows {
            for array in arrays {
                let width = array.bytes().len() / rows.max(1);
                let (target, after) = rest.split_at_mut(width);
                target.copy_from_slice(&array.bytes()[row * width..(row + 1) * width]);
                rest = after;
            }
        }
        Some(joined)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// All dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// All elements as bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(self.words.get())[..self.byte_len]
    }

    /// All elements as bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(self.words.get_mut())[..self.byte_len]
    }

    /// All elements.
    ///
    /// # Panics
    /// When `T` is not the array's element type.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        check_dtype::<T>(self.dtype);
        bytemuck::cast_slice(self.bytes())
    }

    /// All elements, to be written.
    ///
    /// # Panics
    /// When `T` is not the array's element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        check_dtype::<T>(self.dtype);
        bytemuck::cast_slice_mut(self.bytes_mut())
    }

    /// The part of the array under a leading index: `at(&[t])` is a row, `at(&[t, b])` an item.
    ///
    /// # Panics
    /// When the index is out of range or longer than the shape.
    pub fn at(&self, index: &[usize]) -> View<'_> {
        let range = self.range(index);
        View {
            dtype: self.dtype,
            shape: &self.shape[index.len()..],
            bytes: &self.bytes()[range],
        }
    }

    /// The part of the array under a leading index, to be written.
    ///
    /// # Panics
    /// When the index is out of range or longer than the shape.
    pub fn at_mut(&mut self, index: &[usize]) -> ViewMut<'_> {
        let range = self.range(index);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(self.words.get_mut());
        ViewMut {
            dtype: self.dtype,
            shape: &self.shape[index.len()..],
            bytes: &mut bytes[range],
        }
    }

    /// The same elements under another shape of the same size.
    ///
    /// # Panics
    /// When the sizes differ.
    pub fn reshaped(mut self, shape: &[usize]) -> Self {
        assert_eq!(
            shape.iter().product::<usize>(),
            self.shape.iter().product::<usize>(),
            "cannot view {:?} as {shape:?}",
            self.shape
        );
        self.shape = shape.to_vec();
        self
    }

    fn range(&self, index: &[usize]) -> std::ops::Range<usize> {
        let (leading, item) = self.shape.split_at(index.len());
        let mut flat = 0;
        for (&i, &n) in index.iter().zip(leading) {
            assert!(i < n, "index {index:?} is outside {:?}", self.shape);
            flat = flat * n + i;
        }
        let bytes = item.iter().product::<usize>() * self.dtype.size();
        flat * bytes..(flat + 1) * bytes
    }
}

/// A borrowed part of an [`Array`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View<'a> {
    /// Element type.
    pub dtype: DType,
    /// Shape of this part.
    pub shape: &'a [usize],
    /// Its elements.
    pub bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// The elements.
    ///
    /// # Panics
    /// When `T` is not the element type.
    pub fn as_slice<T: Element>(&self) -> &'a [T] {
        check_dtype::<T>(self.dtype);
        bytemuck::cast_slice(self.bytes)
    }
}

/// A mutably borrowed part of an [`Array`].
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// Element type.
    pub dtype: DType,
    /// Shape of this part.
    pub shape: &'a [usize],
    /// Its elements.
    pub bytes: &'a mut [u8],
}

impl<'a> ViewMut<'a> {
    /// The elements, to be written.
    ///
    /// # Panics
    /// When `T` is not the element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        check_dtype::<T>(self.dtype);
        bytemuck::cast_slice_mut(self.bytes)
    }

    /// The elements, to be written, for as long as the array is borrowed.
    ///
    /// # Panics
    /// When `T` is not the element type.
    pub fn into_mut_slice<T: Element>(self) -> &'a mut [T] {
        check_dtype::<T>(self.dtype);
        bytemuck::cast_slice_mut(self.bytes)
    }

    /// Overwrites all elements.
    ///
    /// # Panics
    /// When the element type or the number of values differs.
    pub fn write<T: Element>(&mut self, values: &[T]) {
        self.as_mut_slice::<T>().copy_from_slice(values);
    }

    /// A shorter borrow of the same part.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut {
            dtype: self.dtype,
            shape: self.shape,
            bytes: self.bytes,
        }
    }
}

fn check_dtype<T: Element>(actual: DType) {
    assert!(
        T::DTYPE == actual,
        "an array of {actual:?} was read as {:?}",
        T::DTYPE
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_reads_and_writes_the_right_bytes() {
        let mut array = Array::zeros(DType::F32, &[2, 3, 2]);
        array.at_mut(&[1, 2]).write(&[5.0f32, 6.0]);
        assert_eq!(array.as_slice::<f32>()[10..], [5.0, 6.0]);
        assert_eq!(array.at(&[1]).shape, [3, 2]);
        assert_eq!(array.at(&[1, 2]).as_slice::<f32>(), [5.0, 6.0]);
    }

    #[derive(Debug)]
    struct Elsewhere(Vec<u64>);

    impl Memory for Elsewhere {
        fn words(&self) -> &[u64] {
            &self.0
        }

        fn words_mut(&mut self) -> &mut [u64] {
            &mut self.0
        }

        fn as_any(&self) -> &dyn Any {
            self
        }

        fn as_any_mut(&mut self) -> &mut dyn Any {
            self
        }
    }

    #[test]
    fn an_array_can_lie_in_other_memory() {
        let array = Array::from_slice(&[1f32, 2.0, 3.0], &[3]);
        let mut moved = array.clone();
        moved.move_to(|words| Elsewhere(vec![0; words]));
        assert_eq!(moved, array);
        moved.at_mut(&[1]).write(&[5f32]);
        assert_eq!(moved.as_slice::<f32>(), [1.0, 5.0, 3.0]);
        assert!(moved.memory().unwrap().as_any().is::<Elsewhere>());
        assert!(moved.clone().memory().is_none());
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn an_index_past_a_dimension_is_refused() {
        Array::zeros(DType::U8, &[2, 3]).at(&[0, 3]);
    }

    #[test]
    #[should_panic(expected = "was read as F32")]
    fn a_wrong_type_is_refused() {
        Array::zeros(DType::U8, &[4]).as_slice::<f32>();
    }
}
