//! Checkpoints: what they hold, and the threads that write them.

pub(crate) mod keeper;
pub(crate) mod moment;
pub(crate) mod saver;
