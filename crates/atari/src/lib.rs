//! An Atari 2600 emulator for learning agents: the console, its games, and observations.
//!
//! It plays every game as the Arcade Learning Environment (ale-py 0.12.1) does, bit for bit:
//! memory, screen, reward, lives and the end of an episode, at every frame. It was written from the
//! behaviour of the hardware and the observed output of that program, without code of another
//! emulator. Where the two differ, it follows the program, and a comment says so.
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
//! `general` every opcode), `bus` (address decoding), `riot` (the timer and ports), `tia`
//! (registers with an immediate effect), `tia::beam` (objects, pixels, collisions), `cartridge` and
//! `dpc` (banks and chips), [`controllers`]. [`properties`] holds what cannot be derived from a
//! cartridge; [`palette`] and [`picture`] turn colour indices into observations; [`verify`]
//! compares everything with recordings of the reference.
//!
//! # Four ideas
//!
//! **The cartridge is decoded once.** Every byte of its image is decoded as the instruction that
//! would start there (frequent pairs as one), and the result is shared by all consoles that play
//! it. The loop over these instructions calls no functions; it stops before an instruction that
//! needs a chip, and the general interpreter runs that one.
//!
//! **The picture is lazy.** A write to a picture register is only logged, as cycle, register and
//! value, and not even that if the register already holds the value. The beam replays the log when
//! the program reads a collision, and once at the end of a frame. A frame that is known to be
//! needed is drawn in that same replay ([`ale::Ale::act_and_draw`]); otherwise its pixels are drawn
//! from the log on request, and never for skipped frames. A frame is stored as its log, a few KiB,
//! not as pixels; two consecutive frames are drawn in one pass as long as their logs are the same.
//!
//! **A line is a set of bits.** Each of the six objects is a set of the line's 160 pixels. An
//! object that changes within a line is split there, and the line is processed once, as a whole.
//! Collisions are intersections, computed only for pairs that have changed and have not collided
//! yet.
//!
//! **The state is plain data.** [`console::Machine`] holds everything that determines later frames,
//! and the logs of the last two frames: a clone saves the game and its picture. The cartridge's
//! image is shared. Values of restored states are brought into their valid ranges.
//!
//! # Invariants
//!
//! - No program, action or order of calls makes it panic, hang or read out of bounds: an update
//!   ends after 25,000 instructions at the latest.
//! - Nothing here depends on time, threads or other crates of this workspace.
//! - `cpu::fast` calls nothing out of line, so that the emulated registers stay in the host's.
//! - Caches (`Shadow`, `Sketch`) never change the behaviour.

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
