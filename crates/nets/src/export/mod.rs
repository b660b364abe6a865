//! Networks for other programs: ONNX and TorchScript files.
//!
//! ```text
//! network + Params ──export──▶ Graph ──┬─▶ ONNX file ──▶ Evaluation (reads it back and computes)
//!                                      └─▶ TorchScript file
//! ```
//!
//! A network adds its computation to a [`Graph`] in its `export` method, next to `forward`. The same graph
//! is then written in either format. It contains all weights, preprocessing and action selection: scaling
//! of bytes, running statistics, action bounds, the choice of an action.
//!
//! Read first: [`Graph`], [`Evaluation`].

mod evaluation;
mod graph;
mod messages;
mod onnx;
mod script;

pub use evaluation::Evaluation;
pub use graph::{Element, Graph, Value};

/// Why a network cannot be exported, or a file not be written or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent cannot be exported: {0}")]
pub struct NotExported(pub String);

impl NotExported {
    pub(crate) fn file(path: &std::path::Path, error: impl std::fmt::Display) -> Self {
        Self(format!("{}: {error}", path.display()))
    }
}
