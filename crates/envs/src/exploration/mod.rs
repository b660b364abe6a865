//! Hard-exploration tasks: random actions rarely find the reward.

mod key_door;

pub use key_door::KeyDoor;
