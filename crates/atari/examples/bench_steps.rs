//! Where an agent's step goes: four frames, the maximum of the last two, 84 by 84 in grey, a stack
//! of four. All times are the processor's, so that they hold on a busy machine.
//!
//! usage: bench_steps ROM_FOLDER [--python PYTHON | --threads N | --consoles N] [GAME...]
//!
//! With a Python that has ale-py and numpy, its vector environment is measured too. With a number
//! of threads, only their steps per second are measured, compared with one thread.
//! With a number of consoles, each takes a step in turn, so that they share the host's caches.
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use starling_atari::ale::{Ale, SavedGame};
use starling_atari::cartridge::Rom;
use starling_atari::controllers::Action;
use starling_atari::palette;
use starling_atari::picture::{Resizer, SIDE, pool};

const GAMES: [&str; 8] = [
    "pong",
    "breakout",
    "seaquest",
    "qbert",
    "space_invaders",
    "ms_pacman",
    "beam_rider",
    "enduro",
];
const STEPS: u32 = 3000;
const STACK: usize = 4;

/// How much of a step is done.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Until {
    Played,
    Drawn,
    Shown,
}

#[expect(clippy::print_stdout, reason = "this is a command")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or(
        "usage: bench_steps ROM_FOLDER [--python PYTHON | --threads N | --consoles N] [GAME...]",
    )?;
    let mut rest: Vec<String> = arguments.collect();
    let (mut python, mut threads, mut consoles) = (None, None, 1);
    if rest.len() > 1 && rest[0].starts_with("--") {
        let value = rest.remove(1);
        match rest.remove(0).as_str() {
            "--python" => python = Some(value),
            "--threads" => threads = Some(value.parse()?),
            "--consoles" => consoles = value.parse()?,
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    if rest.is_empty() {
        rest = GAMES.map(str::to_owned).to_vec();
    }
    if let Some(threads) = threads {
        for game in rest {
            let bytes = std::fs::read(Path::new(&folder).join(format!("{game}.bin")))?;
            let (one, all) = (
                steps_per_second(&bytes, 1)?,
                steps_per_second(&bytes, threads)?,
            );
            println!(
                "{game:20} {one:9.0} steps/s on one thread, {all:9.0} on {threads}: {:.2}x",
                all / one
            );
        }
        return Ok(());
    }
    println!(
        "{:20} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "us of the processor", "frame", "step", "playing", "drawing", "showing", "peer", "ratio"
    );
    let mut ratios = Vec::new();
    for game in rest {
        let bytes = std::fs::read(Path::new(&folder).join(format!("{game}.bin")))?;
        let rom = Arc::new(Rom::new(&bytes)?);
        let mut agents = Vec::new();
        for number in 0..consoles {
            agents.push(Agent::new(&rom, number)?);
        }
        let mut frames = Frames::default();
        run(&mut agents, &mut frames, Until::Shown);
        let played = run(&mut agents, &mut frames, Until::Played);
        let drawn = run(&mut agents, &mut frames, Until::Drawn);
        let step = run(&mut agents, &mut frames, Until::Shown);
        let peer = python.as_deref().and_then(|python| peer(python, &game));
        let mut beside = String::new();
        if let Some(peer) = peer {
            ratios.push(peer / step);
            beside = format!("{peer:9.1} {:8.2}x", peer / step);
        }
        println!(
            "{game:20} {:9.2} {step:9.1} {played:9.1} {:9.1} {:9.1} {beside}",
            played / 4.0,
            drawn - played,
            step - drawn
        );
        println!(
            "{:20} {:9.2} to save and restore a state of {} bytes",
            "",
            agents.first_mut().map_or(0.0, Agent::save_and_restore),
            size_of::<SavedGame>()
        );
    }
    ratios.sort_by(f64::total_cmp);
    if let Some(middle) = ratios.get(ratios.len() / 2) {
        println!("median ratio of {} games: {middle:.2}x", ratios.len());
    }
    Ok(())
}

/// Agent steps that some threads take in a second, each with a console of its own.
fn steps_per_second(bytes: &[u8], threads: usize) -> Result<f64, Box<dyn std::error::Error>> {
    let rom = Arc::new(Rom::new(bytes)?);
    let mut agents = Vec::new();
    for number in 0..threads {
        agents.push(Agent::new(&rom, number as u32)?);
    }
    let start = Instant::now();
    std::thread::scope(|scope| {
        for agent in &mut agents {
            scope.spawn(|| {
                let mut frames = Frames::default();
                for _ in 0..4 * STEPS {
                    agent.step(&mut frames, Until::Shown);
                }
            });
        }
    });
    Ok(f64::from(4 * STEPS) * threads as f64 / start.elapsed().as_secs_f64())
}

/// Microseconds that a step takes on average of some consoles that take turns.
fn run(agents: &mut [Agent], frames: &mut Frames, until: Until) -> f64 {
    let rounds = STEPS.div_ceil(agents.len() as u32);
    let start = on_cpu();
    for _ in 0..rounds {
        for agent in &mut *agents {
            agent.step(frames, until);
        }
    }
    (on_cpu() - start) / f64::from(rounds * agents.len() as u32)
}

/// Where two frames are drawn before they are put into one.
#[derive(Default)]
struct Frames {
    last: Vec<u8>,
    before: Vec<u8>,
}

/// A game and what is needed to look at it.
struct Agent {
    ale: Ale,
    random: u32,
    resizer: Resizer,
    grays: [u8; 256],
    picture: Vec<u8>,
    stack: Vec<u8>,
    observation: Vec<u8>,
    latest: usize,
}

impl Agent {
    fn new(rom: &Arc<Rom>, number: u32) -> Result<Self, Box<dyn std::error::Error>> {
        let ale = Ale::new(Arc::clone(rom), 0)?;
        let console = ale.console();
        Ok(Self {
            random: 1 + number,
            resizer: Resizer::new(console),
            grays: palette::grays(console.format()),
            picture: vec![0; console.height() * 160],
            stack: vec![0; STACK * SIDE * SIDE],
            observation: vec![0; STACK * SIDE * SIDE],
            latest: 0,
            ale,
        })
    }

    /// Takes a step.
    fn step(&mut self, frames: &mut Frames, until: Until) {
        let actions = self.ale.game().minimal_actions;
        self.random = self
            .random
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        let code = actions[(self.random >> 16) as usize % actions.len()];
        let action = Action::new(code).unwrap_or(Action::NOOP);
        let Frames { last, before } = &mut *frames;
        last.resize(self.picture.len(), 0);
        before.resize(self.picture.len(), 0);
        let mut drawn = false;
        if until == Until::Played {
            for _ in 0..4 {
                self.ale.act(action);
            }
        } else {
            for _ in 0..2 {
                self.ale.act(action);
            }
            drawn = self.ale.act_and_draw(action, &self.grays, before).1;
            drawn &= self.ale.act_and_draw(action, &self.grays, last).1;
        }
        if self.ale.outcome().terminal {
            self.ale.reset();
            drawn = false;
        }
        if until >= Until::Drawn && !drawn {
            let console = self.ale.console();
            console.shaded_screens(&self.grays, last, before);
        }
        if until == Until::Shown {
            self.show(frames);
        }
    }

    /// Puts the two frames that were drawn into the stack.
    fn show(&mut self, frames: &Frames) {
        const SQUARE: usize = SIDE * SIDE;
        let changed = pool(&mut self.picture, &frames.last, Some(&frames.before));
        let next = (self.latest + SQUARE) % self.stack.len();
        self.stack
            .copy_within(self.latest..self.latest + SQUARE, next);
        self.latest = next;
        let square = &mut self.stack[next..next + SQUARE];
        self.resizer.resize_rows(&self.picture, &changed, square);
        let (recent, old) = self.stack.split_at(next + SQUARE);
        self.observation[..old.len()].copy_from_slice(old);
        self.observation[old.len()..].copy_from_slice(recent);
    }

    /// Microseconds that saving and restoring takes.
    fn save_and_restore(&mut self) -> f64 {
        let start = on_cpu();
        for _ in 0..10 * STEPS {
            let saved = self.ale.save();
            self.ale.restore(&saved);
        }
        (on_cpu() - start) / f64::from(10 * STEPS)
    }
}

/// Microseconds this process has been on a processor.
fn on_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds: f64 = text
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0.0);
    nanoseconds / 1e3
}

/// Microseconds of the processor that an agent step of ale-py's vector environment takes on one
/// thread.
fn peer(python: &str, game: &str) -> Option<f64> {
    let program = format!(
        "
import time
import numpy as np
from ale_py.vector_env import AtariVectorEnv

env = AtariVectorEnv(
    game='{game}', num_envs=16, num_threads=1, noop_max=30, frameskip=4,
    repeat_action_probability=0.0, use_fire_reset=False, reward_clipping=False,
)
rng = np.random.default_rng(0)
env.reset(seed=0)
count = env.single_action_space.n
steps = 0
start = time.process_time()
while time.process_time() - start < 2:
    env.step(rng.integers(0, count, 16))
    steps += 16
print((time.process_time() - start) / steps * 1e6)
"
    );
    let output = Command::new(python).args(["-c", &program]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().last()?.trim().parse().ok()
}
