//! Tasks whose reward is far away: an agent that explores at random hardly ever sees it.

mod key_door;

pub use key_door::KeyDoor;
