//! Replay: experience that is kept, drawn and drawn again.
//!
//! Rollouts come in, batches go out. A replay stores each step once, as columns of bytes in one
//! ring per environment, and never looks inside an observation. What a batch needs beyond single
//! rows (n-step returns, the observation n steps later, importance weights) is worked out when
//! it is drawn.
//!
//! Read first: [`TransitionReplay`] (n-step transitions, drawn uniformly or by priority),
//! [`SumTree`] (draws by priority), [`RateLimiter`] (how many samples per inserted step).

mod batch;
mod config;
mod error;
mod priority;
mod rate;
mod snapshot;
mod store;
mod streams;
mod sum_tree;
mod transitions;

pub use batch::{SampleId, TransitionBatch};
pub use config::{Draws, PriorityConfig, ReplayConfig};
pub use error::ReplayError;
pub use rate::{RateConfig, RateLimiter};
pub use snapshot::SnapshotError;
pub use store::Layout;
pub use sum_tree::SumTree;
pub use transitions::TransitionReplay;
