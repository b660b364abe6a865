//! Errors of a replay.

use starling_settings::OutOfRange;

/// What goes wrong when a replay is built, fed or drawn from.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// A setting is out of range.
    #[error("replay: {key} is {value}; allowed: {allowed}")]
    Config {
        /// Name of the setting.
        key: String,
        /// What it was.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// A rollout does not have the columns that this replay was built for.
    #[error("replay: '{field}' of the rollout is {found}, but this replay stores {expected}")]
    Columns {
        /// The column.
        field: String,
        /// What the replay was built for.
        expected: String,
        /// What the rollout has.
        found: String,
    },
    /// Streams to insert into or to draw from do not exist.
    #[error("replay: streams {first} to {last} were requested, but there are only {streams}")]
    Stream {
        /// The first of them.
        first: usize,
        /// The last of them.
        last: usize,
        /// Streams of this replay.
        streams: usize,
    },
    /// An episode ended but its last observation, which is to be kept, is not in the rollout.
    #[error(
        "replay: the episode of column {b} ended at step {t}, but its final observation is missing"
    )]
    FinalMissing {
        /// Step in the rollout.
        t: usize,
        /// Column in the rollout.
        b: usize,
    },
    /// An observation is not the stack of frames that follows the one before.
    #[error(
        "replay: column {b}: the observation after step {t} does not continue the previous \
         frame stack; unset frame_stack to store whole observations"
    )]
    NotAStack {
        /// Step in the rollout.
        t: usize,
        /// Column in the rollout.
        b: usize,
    },
    /// Nothing can be drawn yet.
    #[error(
        "replay: nothing can be sampled yet ({steps} steps inserted, none with all its next steps)"
    )]
    Empty {
        /// Steps inserted so far.
        steps: u64,
    },
    /// Transitions were asked of a replay of sequences, or the other way round.
    #[error("replay: this replay holds {holds}; it cannot fill a batch of {asked}")]
    Kind {
        /// What it holds.
        holds: &'static str,
        /// What was asked for.
        asked: &'static str,
    },
    /// A batch was made for another replay.
    #[error("replay: '{column}' of the batch does not have the size or type of this replay")]
    Batch {
        /// The first column that differs.
        column: &'static str,
    },
    /// A priority is negative or not a number.
    #[error("replay: priority {index} of {count} is {value}; allowed: finite, at least 0")]
    Priority {
        /// Its place among the given priorities.
        index: usize,
        /// How many were given.
        count: usize,
        /// What it was.
        value: f32,
    },
    /// The number of priorities is not that of the entries.
    #[error("replay: {priorities} priorities were given for {entries} entries")]
    PriorityCount {
        /// Priorities given.
        priorities: usize,
        /// Entries they were for.
        entries: usize,
    },
}

impl From<OutOfRange> for ReplayError {
    fn from(wrong: OutOfRange) -> Self {
        ReplayError::Config {
            key: wrong.key,
            value: wrong.value,
            allowed: wrong.allowed,
        }
    }
}
