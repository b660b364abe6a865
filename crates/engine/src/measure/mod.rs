//! Where the time goes, how fast each side would be alone, and whether a device computes what the
//! CPU computes.

pub(crate) mod limits;
pub(crate) mod profile;
pub(crate) mod selftest;
