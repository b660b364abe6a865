//! The actors' side: environments and a policy that fill rollouts, and the threads they work on.

pub(crate) mod actor;
pub(crate) mod central;
pub(crate) mod crew;
pub(crate) mod pool;
pub(crate) mod serial;
