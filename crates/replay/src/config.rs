//! Settings of a replay.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_settings::check_ranges;
use starling_tree::Spec;

use crate::column::PACKED_OVERHEAD;
use crate::{Layout, ReplayError};

/// What a replay keeps and how it is drawn from. The parts combine freely.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReplayConfig {
    /// Steps kept, over all streams; rounded up to the same number of rows per stream. The end
    /// of a cut-off episode takes a row of its own, and with `frame_stack` the beginning of an
    /// episode takes K − 1.
    pub capacity_steps: usize,
    /// Steps whose rewards are summed before bootstrapping.
    #[schemars(range(min = 1))]
    pub n_steps: usize,
    /// Discount per step (γ).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// Draw by priority; uniformly if absent.
    pub priority: Option<PriorityConfig>,
    /// Draw sequences; single transitions if absent.
    pub sequence: Option<SequenceConfig>,
    /// Observations are stacks of this many frames (K), the newest one last, of which each frame
    /// is stored once; whole observations are stored if absent.
    #[schemars(range(min = 2), extend("unit" = "frames"))]
    pub frame_stack: Option<usize>,
    /// Store observations compressed: less memory, slower sampling.
    pub compress: bool,
    /// Bytes that the replay may take; without a limit if absent. A plain replay that would
    /// take more is refused at the start. A compressed one drops its oldest steps earlier.
    pub memory_limit_bytes: Option<u64>,
    /// Keep the last observation of episodes that terminated too, which takes a row of its own: for
    /// learners that look at `next_obs` also where its value does not count. Not part of snapshots:
    /// their rows tell.
    #[serde(skip)]
    pub keep_terminal_obs: bool,
}

/// How entries are drawn by priority: P(i) ∝ p_i^α.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PriorityConfig {
    /// Exponent of priorities (α): 0 samples uniformly, 1 in proportion.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub alpha: f64,
    /// The smallest priority an entry can have, so that each can be sampled again.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub min_priority: f64,
    /// The largest priority an entry can have; null for no limit. rlpyt's is the δ of its Huber
    /// loss.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub max_priority: Option<f64>,
    /// The priority of new entries that come without one; null for the largest so far.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub initial_priority: Option<f64>,
    /// How the draws of one batch relate to each other.
    pub draws: Draws,
}

/// How the draws of one batch relate to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Draws {
    /// One draw from each of N equal parts of the total priority: less variance.
    #[default]
    Stratified,
    /// N draws that do not know of each other.
    Independent,
}

/// How episodes are cut into sequences for recurrent learners.
///
/// The trained parts of an episode begin at its steps 0, L − O, 2(L − O), … (L steps long, O of
/// them shared with the next). A sequence never reaches into another episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SequenceConfig {
    /// Steps before the trained part that only warm up the recurrent state.
    pub burn_in_steps: usize,
    /// Steps of the trained part (L).
    #[schemars(range(min = 1))]
    pub length_steps: usize,
    /// Steps that the trained parts of two sequences in a row share (O).
    pub overlap_steps: usize,
    /// Steps of an episode between two stored recurrent states. Has to divide
    /// `burn_in_steps` and L − O, so that every sequence begins with a stored state. With 0, none
    /// is stored and sequences begin with zeros.
    pub state_interval_steps: usize,
    /// Weight of the largest error in the priority of a sequence (η); the mean error has the
    /// rest. Used where actors give one priority per step.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub priority_eta: f64,
}

impl Default for ReplayConfig {
    fn default() -> Self {
        Self {
            capacity_steps: 1_000_000,
            n_steps: 1,
            gamma: 0.99,
            priority: None,
            sequence: None,
            frame_stack: None,
            compress: false,
            memory_limit_bytes: None,
            keep_terminal_obs: false,
        }
    }
}

impl Default for PriorityConfig {
    fn default() -> Self {
        Self {
            alpha: 0.6,
            min_priority: 1e-6,
            max_priority: None,
            initial_priority: None,
            draws: Draws::default(),
        }
    }
}

impl Default for SequenceConfig {
    fn default() -> Self {
        Self {
            burn_in_steps: 40,
            length_steps: 80,
            overlap_steps: 40,
            state_interval_steps: 40,
            priority_eta: 0.9,
        }
    }
}

impl SequenceConfig {
    /// Steps from the beginning of one trained part to that of the next.
    pub fn stride_steps(&self) -> usize {
        self.length_steps.saturating_sub(self.overlap_steps)
    }

    /// Observations of one sequence: burn-in, trained part, and the n steps that its last
    /// targets look ahead.
    pub fn total_steps(&self, n_steps: usize) -> usize {
        self.burn_in_steps + self.length_steps + n_steps
    }
}

/// The memory that a replay will take when it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Rows of all streams.
    pub rows: usize,
    /// Bytes of observations as they are given; a compressed replay takes less.
    pub observation_bytes: u64,
    /// Bytes of everything else.
    pub other_bytes: u64,
}

impl MemoryPlan {
    /// All bytes; of a compressed replay, an upper bound.
    pub fn total_bytes(&self) -> u64 {
        self.observation_bytes.saturating_add(self.other_bytes)
    }
}

impl ReplayConfig {
    /// Rows that each of `streams` rings has.
    pub fn rows_per_stream(&self, streams: usize) -> usize {
        self.capacity_steps.div_ceil(streams.max(1))
    }

    /// The memory that a replay of these settings will take, known before any is taken.
    ///
    /// Recurrent states are counted as if episodes were long: one per interval.
    pub fn memory(&self, layout: &Layout) -> MemoryPlan {
        let per_stream = self.rows_per_stream(layout.streams);
        let rows = per_stream.saturating_mul(layout.streams);
        // A capacity that makes no sense must give a size that makes none, and no panic.
        let all = |rows: usize, bytes: usize| (rows as u64).saturating_mul(bytes as u64);
        let leaves = layout.observation.leaves();
        let frames = leaves.iter().map(|(_, leaf)| self.frame_bytes(leaf));
        let states = match self.sequence.as_ref().map(|s| s.state_interval_steps) {
            Some(interval @ 1..) => {
                let state = layout.state.item_bytes() + STATE_OVERHEAD;
                all(rows.div_ceil(interval), state)
            }
            _ => 0,
        };
        let pointers = match self.compress {
            true => leaves.len() * PACKED_OVERHEAD,
            false => 0,
        };
        let step = layout.step_bytes(self.priority.is_some()) + pointers;
        let tree = all(rows, size_of::<f64>() * 8) / 7;
        MemoryPlan {
            rows,
            observation_bytes: all(rows, frames.sum()),
            other_bytes: all(rows, step).saturating_add(states).saturating_add(tree),
        }
    }

    /// Refuses settings that cannot work, for a replay of this layout.
    ///
    /// # Errors
    /// Names the first setting that is out of range, and what is allowed.
    pub fn validate(&self, layout: &Layout) -> Result<(), ReplayError> {
        let streams = layout.streams;
        check(streams >= 1, "streams", streams, "at least 1")?;
        check_ranges("", self)?;
        if let Some(priority) = &self.priority {
            let min = priority.min_priority;
            let max = priority.max_priority.unwrap_or(f64::INFINITY);
            let allowed = "at least priority.min_priority";
            check(max >= min, "priority.max_priority", max, allowed)?;
        }
        if let Some(sequence) = &self.sequence {
            sequence.validate()?;
        }
        if let Some(frames) = self.frame_stack {
            let leaves = layout.observation.leaves();
            let stacked = leaves.iter().any(|(_, leaf)| self.stack_of(leaf) > 1);
            let allowed = "the first dimension of an observation that is a stack of frames";
            check(stacked, "frame_stack", frames, allowed)?;
        }
        let rows = self.smallest_ring();
        let allowed = format!(
            "at least {} ({rows} for each of {streams} environments), or fewer environments",
            rows.saturating_mul(streams)
        );
        let fits = self.rows_per_stream(streams) >= rows;
        check(fits, "capacity_steps", self.capacity_steps, &allowed)?;
        if let Some(limit) = self.memory_limit_bytes {
            let plan = self.memory(layout);
            let needed = if self.compress {
                plan.other_bytes
            } else {
                plan.total_bytes()
            };
            let allowed = format!(
                "at least {needed} for capacity_steps {}, or a smaller capacity",
                self.capacity_steps
            );
            check(needed <= limit, "memory_limit_bytes", limit, &allowed)?;
        }
        Ok(())
    }

    /// Frames that one row of the leaf shows: K for stacks, else 1.
    pub(crate) fn stack_of(&self, leaf: &Spec) -> usize {
        match (self.frame_stack, leaf.shape.as_slice()) {
            (Some(frames), [first, _, ..]) if *first == frames => frames,
            _ => 1,
        }
    }

    /// Bytes that one row of the leaf stores.
    pub(crate) fn frame_bytes(&self, leaf: &Spec) -> usize {
        leaf.bytes() / self.stack_of(leaf)
    }

    /// Rows before an entry that it needs.
    pub(crate) fn lookback(&self) -> usize {
        // The previous action of a sequence's first step lies one row before it.
        let burn_in = self.sequence.as_ref().map_or(0, |s| s.burn_in_steps + 1);
        burn_in + self.frame_stack.unwrap_or(1) - 1
    }

    /// Rows after an entry that it needs.
    pub(crate) fn lookahead(&self) -> usize {
        let length = self.sequence.as_ref().map_or(1, |s| s.length_steps);
        length.saturating_add(self.n_steps)
    }

    /// Rows that a ring needs at least: those of an entry, the end of one episode and the
    /// beginning of the next, and one more.
    pub(crate) fn smallest_ring(&self) -> usize {
        let episodes = self.frame_stack.unwrap_or(1) + 1;
        (self.lookback() + 1 + episodes).saturating_add(self.lookahead())
    }
}

/// What the queue of states adds to each: its row, a pointer and a length.
const STATE_OVERHEAD: usize = 32;

impl SequenceConfig {
    fn validate(&self) -> Result<(), ReplayError> {
        let length = self.length_steps;
        check(
            self.overlap_steps < length,
            "sequence.overlap_steps",
            self.overlap_steps,
            &format!("less than length_steps, {length}"),
        )?;
        let interval = self.state_interval_steps;
        let (burn_in, stride) = (self.burn_in_steps, self.stride_steps());
        check(
            interval == 0 || (burn_in.is_multiple_of(interval) && stride.is_multiple_of(interval)),
            "sequence.state_interval_steps",
            interval,
            &format!(
                "0, or a divisor of burn_in_steps ({burn_in}) and of length_steps − overlap_steps ({stride})"
            ),
        )
    }
}

fn check(ok: bool, key: &str, value: impl ToString, allowed: &str) -> Result<(), ReplayError> {
    if ok {
        return Ok(());
    }
    Err(ReplayError::Config {
        key: key.to_owned(),
        value: value.to_string(),
        allowed: allowed.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use starling_tree::{DType, Tree};

    use super::*;

    fn layout(streams: usize, shape: &[usize]) -> Layout {
        Layout {
            observation: Tree::Leaf(Spec::new(DType::U8, shape)),
            action: Spec::scalar(DType::I64),
            legal_actions: None,
            records: Tree::empty(),
            state: Tree::empty(),
            streams,
        }
    }

    #[test]
    fn unknown_keys_are_refused_by_name() {
        let config = serde_json::from_str::<ReplayConfig>(r#"{"capacity": 5}"#);
        assert!(config.unwrap_err().to_string().contains("capacity"));
        let config = serde_json::from_str::<ReplayConfig>(
            r#"{"capacity_steps": 50, "priority": {"alpha": 0.5, "draws": "independent"}}"#,
        );
        let priority = config.unwrap().priority.unwrap();
        assert_eq!(priority.draws, Draws::Independent);
        assert_eq!(priority.min_priority, 1e-6);
    }

    #[test]
    fn a_setting_out_of_range_is_named_with_what_is_allowed() {
        let refused = |config: &ReplayConfig, layout: &Layout| {
            config.validate(layout).unwrap_err().to_string()
        };
        let mut config = ReplayConfig {
            gamma: 1.5,
            ..ReplayConfig::default()
        };
        let message = refused(&config, &layout(4, &[4]));
        assert_eq!(message, "replay: gamma is 1.5; allowed: between 0 and 1");
        config = ReplayConfig {
            capacity_steps: 24,
            n_steps: 3,
            ..ReplayConfig::default()
        };
        assert!(refused(&config, &layout(4, &[4])).contains("at least 28 (7 for each of 4"));
        assert_eq!(config.validate(&layout(3, &[4])), Ok(()));
        config.frame_stack = Some(4);
        assert!(refused(&config, &layout(1, &[3, 5, 5])).contains("frame_stack is 4"));
        assert_eq!(config.validate(&layout(1, &[4, 5, 5])), Ok(()));
        config.sequence = Some(SequenceConfig {
            burn_in_steps: 4,
            length_steps: 6,
            overlap_steps: 3,
            state_interval_steps: 2,
            priority_eta: 0.9,
        });
        let message = refused(&config, &layout(1, &[4, 5, 5]));
        assert!(message.contains("state_interval_steps is 2"), "{message}");
    }

    /// One frame of 84×84 per row and 8 + 4 + 8 + 1 + 4 bytes of action, reward, version, flags
    /// and given priority, and 8·8/7 of the sum tree: 7.09 GB for a million steps.
    #[test]
    fn the_memory_is_known_before_it_is_taken() {
        let mut config = ReplayConfig {
            priority: Some(PriorityConfig::default()),
            frame_stack: Some(4),
            ..ReplayConfig::default()
        };
        let layout = layout(8, &[4, 84, 84]);
        let plan = config.memory(&layout);
        assert_eq!(plan.rows, 1_000_000);
        assert_eq!(plan.observation_bytes, 7_056_000_000);
        assert_eq!(plan.other_bytes, 25_000_000 + 64_000_000 / 7);
        assert!(plan.total_bytes() < 7_200_000_000);
        config.memory_limit_bytes = Some(7_000_000_000);
        let message = config.validate(&layout).unwrap_err().to_string();
        assert!(message.contains("memory_limit_bytes is 7000000000"));
        config.frame_stack = None;
        config.memory_limit_bytes = None;
        assert_eq!(config.memory(&layout).observation_bytes, 28_224_000_000);
    }
}
