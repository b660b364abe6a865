//! An Atari 2600 made for learning agents: the console, its games, and what an agent sees.
//!
//! It plays every game as the Arcade Learning Environment (ale-py 0.12.1) does, to the bit: memory,
//! screen, reward, lives and the end of an episode, at every frame. It was written from how the
//! hardware works and from what that program shows when run; where the two differ, the program is
//! followed, and the place says so.
//!
//! Read first: [`ale::Ale`] (a game, one frame at a time), [`console::Console`] (the machine) and
//! [`games::Game`] (what is known about a game).
//!
//! # The console's map
//!
//! ```text
//!  actions ─▶ controllers ─▶ ┌───────────── console ─────────────┐
//!                            │ cpu ──▶ bus ─┬─▶ cartridge (dpc)   │──▶ ram ──▶ games (reward, lives)
//!                            │              ├─▶ riot              │
//!                            │              └─▶ tia ──▶ write log ─│──▶ frames ──▶ picture
//!                            └────────────────────▲──────────┬─────┘
//!                                     collisions  └── beam ◀──┘
//! ```
//!
//! One part of the hardware is one file or folder: `cpu` (the 6507: `fast` runs nearly everything,
//! `general` every opcode), `bus` (who answers where), `riot` (the timer and ports), `tia` (what
//! acts at once), `tia::beam` (objects, pixels, collisions), `cartridge` and `dpc` (banks and
//! chips), [`controllers`]. [`properties`] holds what cannot be read off a cartridge; [`palette`]
//! and [`picture`] turn indices into what a learner looks at; [`verify`] compares all of it with
//! recordings of the reference.
//!
//! # Four ideas
//!
//! **The cartridge is decoded once.** Every byte of its image is taken apart as the instruction
//! that would start there, frequent pairs as one, and shared by all consoles that play it. The loop
//! over these calls nothing; before an instruction that needs a chip it stops, and the general
//! interpreter runs that one.
//!
//! **The picture is lazy.** A write to a picture register is only logged, as cycle, register and
//! value, and not even that if the register holds the value already. The beam replays the log when
//! the program reads a collision, and once at the end of a frame. Who knows that a frame will be
//! looked at has it drawn in that same replay ([`ale::Ale::act_and_draw`]); else its pixels are
//! drawn from the log when somebody asks, and never for the frames that are skipped. A frame is
//! kept as its log, some KiB, not as pixels; two frames on end that are drawn later are drawn
//! together as long as their logs are the same.
//!
//! **A line is a set of bits.** Each of the six objects is a set of the line's 160 pixels. An
//! object that changes inside a line is cut there, and the line is looked at once, as a whole.
//! Collisions are intersections, looked at only for pairs that have not met yet and have changed.
//!
//! **The state is plain data.** [`console::Machine`] holds all that decides the future, and the logs
//! of the last two frames: a clone saves the game and its picture. The cartridge's image is shared.
//! States that come from elsewhere are made to fit when they are restored.
//!
//! # Invariants
//!
//! - No program, action or order of calls makes it panic, hang or read out of bounds: an update
//!   ends after 25,000 instructions at the latest.
//! - Nothing here depends on time, threads or other crates of this workspace.
//! - `cpu::fast` calls nothing out of line, so that the processor's registers stay in the host's.
//! - What is remembered to save work (`Shadow`, `Sketch`) never decides what happens.

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
pub mod verify;
mod wide;
