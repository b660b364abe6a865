//! The actors' side: environments and a policy that fill rollouts, and the threads they work on.
//!
//! | what collects | where |
//! |---|---|
//! | one actor that takes turns with the learner | `serial.rs` |
//! | one actor on a thread, or in a separate process | `serve.rs` |
//! | one thread that acts, and several that step | `central.rs` |
//!
//! Read first: [`Actor`] (`actor.rs`, the loop of acting and stepping, which [`Player`] uses too),
//! [`serve`] (an actor and its link to a learner).

mod actor;
mod central;
mod crew;
mod kit;
mod local;
mod serial;
mod serve;

pub use self::actor::{Actor, Player};
pub(crate) use self::central::{Central, GROUPS};
pub use self::crew::CollectError;
pub(crate) use self::crew::{ActorSnapshot, Crew, restart_failed, rollout_steps};
pub(crate) use self::kit::{ActorKit, shares};
pub(crate) use self::local::{LocalActors, panic_message};
pub(crate) use self::serial::{SerialActor, attend};
pub(crate) use self::serve::Station;
pub use self::serve::{serve, serve_central};
