//! The replay buffer: experience that is stored and sampled repeatedly.
//!
//! Rollouts are inserted, batches are sampled. A replay stores each step once, as columns of bytes
//! in one ring per environment, and never interprets observations. What a batch needs beyond single
//! rows (n-step returns, the observation n steps later, frame stacks, importance weights) is
//! computed when it is sampled.
//!
//! There is one type, configured by [`ReplayConfig`]: sampling is uniform or prioritized, of
//! transitions or of sequences; observations are stored whole, as unique frames, or compressed.
//!
//! Read first: [`Replay`] (insert, sample and update priorities, from many threads),
//! [`ReplayConfig`], [`SequenceBatch`] (a batch for a recurrent learner). [`RateLimiter`] limits
//! how many samples are drawn per inserted step, [`Prefetcher`] assembles batches ahead on separate
//! threads, [`Snapshot`] saves a replay while it is in use.
//!
//! # An example
//!
//! Transitions of two environments, sampled by priority; then the same experience as sequences.
//!
//! ```
//! use starling_envs::{Rollout, Space, stream};
//! use starling_replay::{
//!     Layout, PriorityConfig, Replay, ReplayConfig, ReplayError, SequenceConfig, mixed_priority,
//! };
//! use starling_tree::{DType, Spec, Tree};
//!
//! # fn main() -> Result<(), ReplayError> {
//! // Eight steps of two environments. The policy has a recurrent state of 16 numbers, which it
//! // records before each step under the name `state`.
//! let memory = Tree::node([("state", Tree::Leaf(Spec::new(DType::F32, &[16])))]);
//! let (pixels, actions) = (Space::bytes(&[4, 84, 84], 255), Space::Discrete { n: 6 });
//! let rollout = Rollout::new(8, 2, &pixels, &actions, None, &memory, &Tree::empty());
//! let layout = Layout::of_rollout(&rollout, 2);
//!
//! // n-step transitions by priority, each 84×84 frame stored once.
//! let config = ReplayConfig {
//!     capacity_steps: 1000,
//!     n_steps: 3,
//!     priority: Some(PriorityConfig::default()),
//!     frame_stack: Some(4),
//!     ..ReplayConfig::default()
//! };
//! println!("the replay will take {} bytes", config.memory(&layout).total_bytes());
//! let replay = Replay::new(config, layout.clone())?;
//! // Columns 0 and 1 of the rollout are streams 0 and 1. Actors may give a priority per step.
//! replay.insert(&rollout, 0, Some(&[1.0; 16]))?;
//! let mut rng = stream(1, "replay", 0);
//! let mut batch = replay.sample(32, 0.4, &mut rng)?;
//! assert_eq!(batch.next_obs.leaf().map(|a| a.shape()), Some(&[32, 4, 84, 84][..]));
//! // target = batch.returns + batch.discounts · V(batch.next_obs); then the TD errors go back.
//! replay.update_priorities(&batch.ids, &[0.5; 32])?;
//! // The same buffers again, without a new allocation.
//! replay.sample_into(&mut batch, 0.5, &mut rng)?;
//!
//! // Sequences of 4 trained steps behind 2 steps of burn-in, with stored states.
//! let config = ReplayConfig {
//!     sequence: Some(SequenceConfig {
//!         burn_in_steps: 2,
//!         length_steps: 4,
//!         overlap_steps: 2,
//!         state_interval_steps: 2,
//!         priority_eta: 0.9,
//!     }),
//!     ..replay.config().clone()
//! };
//! let replay = Replay::new(config, layout)?;
//! replay.insert(&rollout, 0, None)?;
//! let batch = replay.sample_sequences(5, 0.6, &mut rng)?;
//! // S = 2 + 4 + 3 positions of B = 5 sequences; targets for the L = 4 trained steps.
//! assert_eq!(batch.rewards.shape(), [9, 5]);
//! assert_eq!(batch.returns.shape(), [4, 5]);
//! // Unroll from batch.state over S positions, setting the state to zero where batch.resets is
//! // 1; the target of step t is returns[t] + discounts[t] · V at position bootstrap[t], and
//! // counts where mask[t] is 1.
//! let errors = [0.1, 0.5, 2.0, 0.4];
//! let priority = mixed_priority(errors, 0.9) as f32;
//! replay.update_priorities(&batch.ids, &[priority; 5])?;
//! # Ok(())
//! # }
//! ```

mod batch;
mod blocks;
mod codec;
mod column;
mod config;
mod error;
mod groups;
mod input;
mod layout;
mod prefetch;
mod priority;
mod rate;
mod replay;
mod ring;
mod sequence;
mod snapshot;
mod streaming;
mod sum_tree;

pub use batch::{SampleId, TransitionBatch};
pub use config::{Draws, MemoryPlan, PriorityConfig, ReplayConfig, SequenceConfig};
pub use error::ReplayError;
pub use groups::{GroupDraw, GroupedDraws};
pub use layout::{Layout, MARK, PRIORITY, STATE};
pub use prefetch::{Draw, Filled, Prefetcher};
pub use priority::mixed_priority;
pub use rate::{RateConfig, RateLimiter};
pub use replay::Replay;
pub use sequence::SequenceBatch;
pub use snapshot::{Saved, Snapshot, SnapshotError};
pub use sum_tree::SumTree;
