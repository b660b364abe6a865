//! An Atari 2600 made for learning agents.
//!
//! Read first: [`games::Game`] (what is known about a game) and [`games::Rules`] (how its memory
//! becomes reward, lives and the end of an episode).

pub mod games;
