//! Where the time goes, how fast each side would be alone, and whether a device computes the same
//! results as the CPU.

mod collected;
mod limits;
mod profile;
mod selftest;

pub use self::collected::{Collected, compare_collected};
pub use self::limits::{Limits, limits};
pub use self::profile::{Profile, Spent};
pub use self::selftest::{Comparison, compare_devices};
