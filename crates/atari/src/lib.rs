//! An Atari 2600 for learning agents.

pub mod ale;
mod bus;
pub mod cartridge;
pub mod console;
pub mod controllers;
mod cpu;
mod dpc;
mod frames;
pub mod games;
mod md5;
pub mod palette;
pub mod picture;
pub mod properties;
pub mod random;
mod riot;
mod tia;
mod wide;
pub mod verify;
