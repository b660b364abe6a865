//! Checkpoints: what they hold, and the thread that writes them.

pub(crate) mod moment;
pub(crate) mod saver;
