//! Agent steps per second of the Atari games, compared with ale-py's vector environment and
//! EnvPool.
//!
//! All step 64 environments with random actions: four frames per step, the maximum of the last two
//! in grey, 84×84, stacks of four, no sticky actions. The speed is that of the median batch of
//! steps in two seconds. The peers run in a Python that has them installed, with the same number of
//! threads.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use starling_atari::ale::Ale;
use starling_atari::controllers::Action as Press;
use starling_atari::games::{self, Game};
use starling_atari::palette;
use starling_atari::picture::{Resizer, SIDE, pool};
use starling_envs::atari::roms;
use starling_envs::{Env, EnvOptions, EnvSpec, ObsMut, Rollout, registry, stream};
use starling_tree::{Array, DType, Tree};

use super::BenchError;
use crate::peers;

/// The Pythons that have something to compare with.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// One with ale-py.
    pub ale: Option<PathBuf>,
    /// One with EnvPool.
    pub envpool: Option<PathBuf>,
}

const GAMES: [&str; 8] = [
    "Pong",
    "Breakout",
    "Seaquest",
    "Qbert",
    "SpaceInvaders",
    "MsPacman",
    "BeamRider",
    "Enduro",
];
pub(super) const ENVS: usize = 64;
const STEPS: usize = 8;
const RUN: Duration = Duration::from_secs(2);

/// Measures one thread, two and, where there are more cores, one on each; and the peers that
/// there are.
pub(super) fn run(peers: &Peers, out: &mut dyn Write) -> Result<(), BenchError> {
    let columns = [
        ("ale-py", peers.ale.as_deref(), ale_program as Program),
        ("EnvPool", peers.envpool.as_deref(), envpool_program),
    ];
    writeln!(
        out,
        "{:<14} {:>9} {:>9} {:>6} {:>11} {:>11} {:>11} {:>11}",
        "steps/s", "1 thread", "2 threads", "", "ale-py 1", "ale-py 2", "EnvPool 1", "EnvPool 2"
    )?;
    let mut ratios = [const { Vec::new() }; 4];
    let (mut speeds, mut scaling) = (Vec::new(), Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    for id in GAMES {
        let ours = [measure(id, 1)?, measure(id, 2)?];
        let mut beside = String::new();
        for (peer, (_, python, program)) in columns.iter().enumerate() {
            for threads in [1, 2] {
                let steps = python.and_then(|python| speed(python, &program(id, threads)));
                let cell = match steps {
                    Some(steps) => {
                        let ratio = ours[threads - 1] / steps;
                        ratios[2 * peer + threads - 1].push(ratio);
                        format!("{ratio:.2}x")
                    }
                    None => "–".into(),
                };
                beside.push_str(&format!(" {cell:>11}"));
            }
        }
        writeln!(
            out,
            "{id:<14} {:>9.0} {:>9.0} {:>5.2}x{beside}",
            ours[0],
            ours[1],
            ours[1] / ours[0]
        )?;
        speeds.push((id, ours[0]));
        if cores > 2 {
            let all = measure(id, cores)?;
            writeln!(
                out,
                "{:<14} {all:>9.0} on {cores} threads, {:.2}x one",
                "",
                all / ours[0]
            )?;
            scaling.push(all / ours[0]);
        }
    }
    if !scaling.is_empty() {
        let middle = median(&mut scaling);
        let own = plain_work(cores) / plain_work(1);
        writeln!(
            out,
            "median on {cores} threads: {middle:.2}x one thread; plain arithmetic: {own:.2}x"
        )?;
    }
    for (index, ratios) in ratios.iter_mut().enumerate() {
        if !ratios.is_empty() {
            let (name, ..) = columns[index / 2];
            let threads = index % 2 + 1;
            let middle = median(ratios);
            writeln!(
                out,
                "median over {} games, threads {threads}: {middle:.2}x {name}",
                ratios.len()
            )?;
        }
    }
    writeln!(
        out,
        "\n{:<14} {:>9} {:>9} {:>12} {:>9} {:>9} {:>9}",
        "microseconds", "per step", "per frame", "interpreter", "drawing", "resizing", "the rest"
    )?;
    for (id, speed) in speeds {
        let [frames, drawing, resizing] = parts(id)?;
        let step = 1e6 / speed;
        writeln!(
            out,
            "{id:<14} {step:>9.1} {:>9.1} {frames:>12.1} {drawing:>9.1} {resizing:>9.1} {:>9.1}",
            step / 4.0,
            step - frames - drawing - resizing
        )?;
    }
    match memory()? {
        Some(bytes) => writeln!(
            out,
            "\nmemory: {:.1} KiB per environment besides its observation stack",
            bytes / 1024.0
        )?,
        None => writeln!(out, "\nmemory: not known on this system")?,
    }
    Ok(())
}

/// Microseconds of a step that go into its frames, into drawing two of them, and into resizing.
fn parts(id: &str) -> Result<[f64; 3], BenchError> {
    const STEPS: usize = 1500;
    let game = game(id)?;
    let rom = roms::load(game).map_err(starling_envs::EnvError::from)?;
    let mut ale = Ale::new(rom, 0).map_err(starling_envs::EnvError::from)?;
    let resizer = Resizer::new(ale.console());
    let grays = palette::grays(ale.console().format());
    let size = 160 * ale.console().height();
    let [mut last, mut before, mut pooled] = [(); 3].map(|()| vec![0; size]);
    let mut square = [0; SIDE * SIDE];
    let mut rng = stream(0, "actions", 0);
    let mut times = [const { Vec::new() }; 3];
    // Drawing is a part of playing, so that it is what a step takes longer that draws.
    for step in 0..2 * STEPS {
        let draws = step % 2 == 1;
        let code = game.minimal_actions[rng.random_range(0..game.minimal_actions.len())];
        let press = Press::new(code).unwrap_or(Press::NOOP);
        let start = Instant::now();
        for frame in 0..4 {
            match frame {
                2 if draws => drop(ale.act_and_draw(press, &grays, &mut before)),
                3 if draws => drop(ale.act_and_draw(press, &grays, &mut last)),
                _ => drop(ale.act(press)),
            }
        }
        let played = Instant::now();
        times[usize::from(draws)].push((played - start).as_secs_f64() * 1e6);
        if draws {
            let changed = pool(&mut pooled, &last, Some(&before));
            resizer.resize_rows(&pooled, &changed, &mut square);
            times[2].push(played.elapsed().as_secs_f64() * 1e6);
        }
        if ale.outcome().terminal {
            ale.reset();
        }
    }
    let [frames, drawn, resizing] = times.map(|mut times| median(&mut times));
    Ok([frames, drawn - frames, resizing])
}

/// Bytes that one environment takes, its stack of frames aside; none where the system does not
/// tell.
fn memory() -> Result<Option<f64>, BenchError> {
    const ENVS: usize = 256;
    const STACK: f64 = 4.0 * (SIDE * SIDE) as f64;
    let resident = || -> Option<f64> {
        let text = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let spec = spec(GAMES[2])?;
    let mut row = Tree::Leaf(Array::zeros(DType::U8, &[4, SIDE, SIDE]));
    let mut make = |number: usize| -> Result<Box<dyn Env>, BenchError> {
        let mut env = spec.make(&EnvOptions::default())?;
        let mut rng = stream(0, "memory", number as u64);
        env.reset(&mut rng, ObsMut::at(&mut row, &[]))?;
        for _ in 0..8 {
            let action = starling_envs::Action::Discrete(0);
            env.step(action, &mut rng, ObsMut::at(&mut row, &[]))?;
        }
        Ok(env)
    };
    let mut envs = vec![make(0)?];
    let Some(before) = resident() else {
        return Ok(None);
    };
    for number in 1..=ENVS {
        envs.push(make(number)?);
    }
    let after = resident().unwrap_or(before);
    drop(envs);
    Ok(Some((after - before) * 1024.0 / ENVS as f64 - STACK))
}

fn game(id: &str) -> Result<&'static Game, BenchError> {
    games::all()
        .find(|game| game.id == id)
        .ok_or_else(|| starling_envs::EnvError::Failed(format!("{id} is not an Atari game")).into())
}

fn spec(id: &str) -> Result<&'static EnvSpec, BenchError> {
    let found = registry::find(&format!("{id}NoFrameskip-v4"));
    Ok(found.map_err(crate::EngineError::from).map_err(Box::new)?)
}

/// Steps per second of all threads together.
pub(super) fn measure(game: &str, threads: usize) -> Result<f64, BenchError> {
    let speeds: Vec<Result<f64, BenchError>> = std::thread::scope(|scope| {
        let work = |thread: usize| move || measure_thread(game, ENVS / threads, thread);
        let threads: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(work(thread)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    speeds.into_iter().sum()
}

/// Rounds per second, of all threads together, of arithmetic and small tables that keep a core as
/// busy as an interpreter does: what the machine's cores have beside each other.
fn plain_work(threads: usize) -> f64 {
    const ROUNDS: usize = 10_000;
    let work = |seed: u64| {
        let table: Vec<u64> = (0..1024u64).map(|i| i.wrapping_mul(seed | 1)).collect();
        let mut lanes = [1u64, 2, 3, 4, 5, 6, 7, 8].map(|lane| lane ^ seed);
        let (start, mut rounds) = (Instant::now(), 0);
        while start.elapsed() < RUN / 2 {
            for _ in 0..ROUNDS {
                for lane in &mut lanes {
                    let entry = table[(*lane >> 7) as usize % table.len()];
                    *lane = (*lane ^ (*lane << 13)).wrapping_add(entry);
                }
            }
            rounds += ROUNDS;
        }
        std::hint::black_box(lanes);
        rounds as f64 / start.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(thread as u64)))
            .collect();
        let speeds = threads.into_iter().map(|thread| thread.join());
        speeds.map(|speed| speed.unwrap_or(f64::NAN)).sum()
    })
}

fn measure_thread(game: &str, envs: usize, thread: usize) -> Result<f64, BenchError> {
    let options = EnvOptions::default();
    let mut vector = spec(game)?.make_vec(&options, envs, thread as u64, "env", 0)?;
    let mut rollout = Rollout::new(
        STEPS,
        envs,
        vector.observation_space(),
        vector.action_space(),
        vector.legal_actions(),
        &Tree::empty(),
        &Tree::empty(),
    );
    let starling_envs::Space::Discrete { n } = *vector.action_space() else {
        return Ok(0.0);
    };
    let mut rng = stream(0, "actions", thread as u64);
    vector.reset(&mut rollout)?;
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < RUN {
        let before = Instant::now();
        for t in 0..STEPS {
            for action in rollout.actions.at_mut(&[t]).as_mut_slice::<i64>() {
                *action = rng.random_range(0..n as i64);
            }
            vector.step(t, &mut rollout)?;
        }
        rollout.carry_over();
        vector.finished().for_each(drop);
        times.push(before.elapsed().as_secs_f64());
    }
    Ok((STEPS * envs) as f64 / median(&mut times))
}

pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

/// What a peer's program prints; `None` if it fails.
pub(super) fn speed(python: &Path, program: &str) -> Option<f64> {
    peers::says(python, program).ok()?.parse().ok()
}

/// A Python program that prints a peer's steps per second, measured as ours are.
type Program = fn(&str, usize) -> String;

fn ale_program(id: &str, threads: usize) -> String {
    let name = game(id).map_or("", |game| game.name);
    let make = format!(
        "from ale_py.vector_env import AtariVectorEnv
env = AtariVectorEnv(
    game='{name}', num_envs={ENVS}, num_threads={threads}, noop_max=30, frameskip=4,
    repeat_action_probability=0.0, use_fire_reset=False, reward_clipping=False,
)
env.reset(seed=0)
count = env.single_action_space.n"
    );
    timed(&make)
}

fn envpool_program(id: &str, threads: usize) -> String {
    let make = format!(
        "import envpool
env = envpool.make(
    '{id}-v5', env_type='gymnasium', num_envs={ENVS}, num_threads={threads}, seed=0,
    stack_num=4, frame_skip=4, noop_max=30, use_fire_reset=False, reward_clip=False,
    repeat_action_probability=0.0, episodic_life=False,
)
env.reset()
count = env.action_space.n"
    );
    timed(&make)
}

/// A program that steps the environment `env` by random ones of `count` actions.
pub(super) fn timed(make: &str) -> String {
    let seconds = RUN.as_secs();
    format!(
        "
import time
import numpy as np
{make}
rng = np.random.default_rng(0)
times = []
start = time.perf_counter()
while time.perf_counter() - start < {seconds}:
    before = time.perf_counter()
    for _ in range({STEPS}):
        env.step(rng.integers(0, count, {ENVS}).astype(np.int32))
    times.append(time.perf_counter() - before)
print({STEPS} * {ENVS} / np.median(times))
"
    )
}
