//! Nested named arrays with leading dimensions: the shape of all experience.
//!
//! Everything that moves between environments, replay and learners is a [`Tree`] of [`Array`]s
//! whose leading dimensions are time and environment, `[T, B, ..]`. One index reads or writes
//! the whole structure: `tree.at(&[t, b])` is a tree of views, one per array.
//!
//! Read first: [`Array`] (bytes with a type and a shape), [`Tree`] (a leaf or named children; its
//! leaf type is generic, so that specifications, arrays, views and tensors have the same
//! structure), [`Spec`] (the type and shape of one item, without leading dimensions).

mod array;
mod nested;

pub use array::{Array, DType, Element, Memory, Spec, View, ViewMut};
pub use nested::{Mismatch, Tree};
