//! The speed of inserting into and sampling from the replay, compared with other replays and a
//! plain copy.
//!
//! Frames are those of Atari games with random actions if the ROMs are installed (a few thousand
//! frames, repeated); otherwise noise, for what does not depend on them. Everything is measured on
//! at most two threads. Peers run in a Python that has them installed, in the same run
//! (`peer_replay.py`), with smaller buffers, which is easier.

use std::hint::black_box;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::{Rng, RngExt};
use starling_envs::{EnvOptions, Rollout, Space, registry, stream};
use starling_replay::{
    Layout, Prefetcher, PriorityConfig, Replay, ReplayConfig, Snapshot, SumTree, TransitionBatch,
};
use starling_tree::Tree;

use super::{BenchError, rate};

const BATCH: usize = 512;
const SHAPE: [usize; 3] = [4, 84, 84];
/// Bytes of the observations of a batch.
const STACKS: usize = BATCH * SHAPE[0] * SHAPE[1] * SHAPE[2];
const ENVS: usize = 8;
/// Steps of each environment in one insert: 64 in all.
const STEPS: usize = 8;
/// Inserts that are recorded and then repeated.
const RECORDED: usize = 64;

/// Measures the sum tree alone, then replays of pictures, then the peers.
pub(super) fn run(python: Option<&str>, full: bool, out: &mut dyn Write) -> Result<(), BenchError> {
    let peers = peers(python.unwrap_or("python3"), out)?;
    let peer = |name: &str| peers.iter().find(|(known, _, _)| known == name);
    let trees = ["torchrl-sampler", "torchrl-tree"].map(peer);
    sum_tree(&trees, out)?;
    let capacity = if full { 1_000_000 } else { 100_000 };
    if !full {
        writeln!(
            out,
            "{capacity} frames; --full measures 1000000, which takes 7.1 GB of memory"
        )?;
    }
    let ours = transitions(capacity, out)?;
    for name in ["torchrl", "cpprb", "rlpyt"] {
        if let Some((_, speed, what)) = peer(name) {
            let [one, two] = ours.map(|ours| ours / speed);
            writeln!(
                out,
                "  {one:.1} x, on two threads {two:.1} x {what}: {speed:.0} cycles/s"
            )?;
        }
    }
    Ok(())
}

/// The figure of a peer: name, speed, what was measured.
type Peer = (String, f64, String);

fn peers(python: &str, out: &mut dyn Write) -> Result<Vec<Peer>, BenchError> {
    let program = include_str!("peer_replay.py");
    let output = Command::new(python).args(["-c", program]).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        writeln!(
            out,
            "{python} has no numpy, so there are no peers to compare with: pip install \
             torchrl cpprb into a virtual environment and name its Python with --python; for \
             rlpyt, put a copy of its repository on PYTHONPATH"
        )?;
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut fields = line.split('\t');
        match (fields.next(), fields.next(), fields.next()) {
            (Some(name), Some(speed), Some(what)) => {
                let speed = speed.parse().unwrap_or(f64::NAN);
                found.push((name.to_owned(), speed, what.to_owned()));
            }
            _ if line.starts_with('#') => writeln!(out, "{line}")?,
            // What the peers themselves print.
            _ => {}
        }
    }
    Ok(found)
}

fn sum_tree(peers: &[Option<&Peer>], out: &mut dyn Write) -> Result<(), BenchError> {
    const LEAVES: usize = 1_000_000;
    let mut rng = stream(1, "bench", 0);
    let mut tree = SumTree::new(LEAVES);
    tree.set_many((0..LEAVES).map(|leaf| (leaf, rng.random::<f64>())));
    let megabytes = tree.bytes() / 1_000_000;
    writeln!(out, "sum tree, {LEAVES} leaves, {megabytes} MB")?;
    let (mut masses, mut found) = (Vec::new(), Vec::new());
    for stratified in [true, false] {
        let cycles = rate(|| {
            masses.clear();
            let total = tree.total();
            masses.extend((0..BATCH).map(|i| match stratified {
                true => (i as f64 + rng.random::<f64>()) * total / BATCH as f64,
                false => rng.random::<f64>() * total,
            }));
            tree.find_many(&masses, &mut found);
            tree.set_many(found.iter().map(|&leaf| (leaf, rng.random::<f64>())));
            Ok::<_, BenchError>(())
        })?;
        let kind = if stratified {
            "stratified"
        } else {
            "independent"
        };
        writeln!(
            out,
            "  sample {BATCH} + update, {kind}: {cycles:.0} cycles/s ({:.1} M/s)",
            cycles * BATCH as f64 / 1e6
        )?;
        for (_, speed, what) in peers.iter().flatten() {
            let ratio = cycles / speed;
            writeln!(out, "    {ratio:.1} x {what}: {speed:.0} cycles/s")?;
        }
    }
    Ok(())
}

/// Replays of `capacity` frames: plain, and beside it compressed ones of several games. Returns
/// cycles per second of the plain one, on one thread and on two.
fn transitions(capacity: usize, out: &mut dyn Write) -> Result<[f64; 2], BenchError> {
    let config = ReplayConfig {
        capacity_steps: capacity,
        n_steps: 3,
        gamma: 0.99,
        priority: Some(PriorityConfig::default()),
        frame_stack: Some(SHAPE[0]),
        ..ReplayConfig::default()
    };
    let mut games = Vec::new();
    for game in ["Pong", "Breakout", "Seaquest", "SpaceInvaders"] {
        match record(game)? {
            Some(rollouts) => games.push((game, rollouts)),
            None => writeln!(out, "{game}: no cartridge (`starling roms`)")?,
        }
    }
    let noise = noise();
    let shown = games.first().map_or(&noise, |(_, rollouts)| rollouts);
    let mut plain = Filled::new(config.clone(), shown, "plain", out)?;
    let cycles = [plain.beside_copies(out)?, plain.ahead_beside_copies(out)?];
    plain.beside_writers(out)?;
    plain.snapshots(out)?;
    for (game, rollouts) in &games {
        let config = ReplayConfig {
            compress: true,
            ..config.clone()
        };
        let name = format!("compressed, {game}");
        let mut compressed = Filled::new(config, rollouts, &name, out)?;
        let mut ours = compressed.prefetcher()?;
        let mut theirs = plain.prefetcher()?;
        let [fast, slow] = alternate([&mut || theirs.next(), &mut || ours.next()])?;
        drop((ours, theirs));
        writeln!(
            out,
            "  sample + update, prefetched by two threads: {slow:.0} batches/s, {:.2} of the plain {fast:.0}",
            slow / fast
        )?;
        compressed.beside_writers(out)?;
        compressed.snapshots(out)?;
    }
    Ok(cycles)
}

/// A full replay and what it is fed with.
struct Filled<'a> {
    replay: Arc<Replay>,
    rollouts: &'a [Rollout],
    next: usize,
    batch: TransitionBatch,
    priorities: Vec<f32>,
    rng: starling_envs::Rng,
}

impl<'a> Filled<'a> {
    fn new(
        config: ReplayConfig,
        rollouts: &'a [Rollout],
        name: &str,
        out: &mut dyn Write,
    ) -> Result<Self, BenchError> {
        let capacity = config.capacity_steps;
        let layout = Layout::of_rollout(&rollouts[0], ENVS);
        let replay = Arc::new(Replay::new(config, layout)?);
        let mut rng = stream(2, "bench", 0);
        let mut filled = Self {
            batch: TransitionBatch::new(replay.layout(), BATCH),
            replay,
            rollouts,
            next: 0,
            priorities: (0..BATCH).map(|_| rng.random()).collect(),
            rng,
        };
        let start = Instant::now();
        while filled.replay.inserted_steps() < capacity as u64 + 1000 {
            filled.insert()?;
        }
        let speed = filled.replay.inserted_steps() as f64 / start.elapsed().as_secs_f64();
        writeln!(
            out,
            "{name}: {SHAPE:?}, n = 3, batch {BATCH}, {capacity} frames, {:.2} GB; filled with {:.0} k steps/s",
            filled.replay.bytes() as f64 / 1e9,
            speed / 1e3
        )?;
        Ok(filled)
    }

    fn insert(&mut self) -> Result<(), BenchError> {
        self.next += 1;
        let rollout = &self.rollouts[self.next % self.rollouts.len()];
        self.replay.insert(rollout, 0, None)?;
        Ok(())
    }

    /// Draws a batch and gives priorities back.
    fn learn(&mut self) -> Result<(), BenchError> {
        let (replay, batch) = (&self.replay, &mut self.batch);
        replay.sample_into(batch, 0.4, &mut self.rng)?;
        replay.update_priorities(&batch.ids, &self.priorities)?;
        black_box(batch);
        Ok(())
    }

    /// What plain copies read, one part after the other: as many bytes as there are frames, 1 GB at
    /// most.
    fn source(&self) -> Vec<u8> {
        let frames = self.replay.config().capacity_steps * SHAPE[1] * SHAPE[2];
        vec![1; frames.clamp(2 * STACKS, 1_000_000_000)]
    }

    /// Cycles of one thread, in turns with a plain copy of the same bytes.
    fn beside_copies(&mut self, out: &mut dyn Write) -> Result<f64, BenchError> {
        let source = self.source();
        let mut parts = source.chunks_exact(STACKS).cycle();
        let mut targets = [vec![0u8; STACKS], vec![0u8; STACKS]];
        let copy = &mut || {
            for (target, part) in targets.iter_mut().zip(&mut parts) {
                target.copy_from_slice(part);
                black_box(&target);
            }
            Ok(())
        };
        let cycle = &mut || {
            self.insert()?;
            self.learn()
        };
        let [copies, cycles] = alternate([copy, cycle])?;
        writeln!(
            out,
            "  insert 64 + sample + update, one thread: {cycles:.0} cycles/s, {:.2} of a plain copy of the same bytes ({copies:.0} /s)",
            cycles / copies
        )?;
        Ok(cycles)
    }

    /// The same on two threads: one thread inserts and gives priorities back while two draw ahead,
    /// in turns with two threads that copy half of a batch each.
    fn ahead_beside_copies(&mut self, out: &mut dyn Write) -> Result<f64, BenchError> {
        let source = self.source();
        let mut parts = source.chunks_exact(STACKS).cycle();
        let mut targets = [vec![0u8; STACKS], vec![0u8; STACKS]];
        let copy = &mut || {
            std::thread::scope(|scope| {
                for (target, part) in targets.iter_mut().zip(&mut parts) {
                    scope.spawn(|| {
                        target.copy_from_slice(part);
                        black_box(target);
                    });
                }
            });
            Ok(())
        };
        let mut learner = self.prefetcher()?;
        let cycle = &mut || {
            self.insert()?;
            learner.next()
        };
        let [copies, cycles] = alternate([copy, cycle])?;
        writeln!(
            out,
            "  the same, prefetched by two threads: {cycles:.0} cycles/s, {:.2} of a plain copy by two threads ({copies:.0} /s)",
            cycles / copies
        )?;
        Ok(cycles)
    }

    fn prefetcher(&self) -> Result<Learner, BenchError> {
        Learner::new(Arc::clone(&self.replay), &self.priorities)
    }

    /// One thread writes 100 k steps/s, or what it can, while another one draws.
    fn beside_writers(&mut self, out: &mut dyn Write) -> Result<(), BenchError> {
        const WANTED: f64 = 100_000.0;
        let stop = AtomicBool::new(false);
        let (replay, rollouts) = (Arc::clone(&self.replay), self.rollouts);
        let (written, drawn) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let (start, mut steps) = (Instant::now(), 0);
                for rollout in rollouts.iter().cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    steps += replay.insert(rollout, 0, None)?;
                    let due = Duration::from_secs_f64(steps as f64 / WANTED);
                    if let Some(early) = due.checked_sub(start.elapsed()) {
                        std::thread::sleep(early);
                    }
                }
                Ok::<_, BenchError>(steps as f64 / start.elapsed().as_secs_f64())
            });
            let drawn = rate(|| self.learn());
            stop.store(true, Ordering::Relaxed);
            let written = writer.join();
            (written.unwrap_or(Ok(f64::NAN)), drawn)
        });
        writeln!(
            out,
            "  a writer that aims at 100 k steps/s, while another thread samples: {:.0} k steps/s, {:.0} batches/s",
            written? / 1e3,
            drawn?
        )?;
        Ok(())
    }

    /// The longest that an insert, a draw and a change of priorities take while the whole replay
    /// is written, and a second part after 10000 more steps.
    fn snapshots(&mut self, out: &mut dyn Write) -> Result<(), BenchError> {
        let (replay, rollouts) = (&self.replay, self.rollouts);
        let mut saved = None;
        let mut next = rollouts.iter().cycle();
        for part in ["whole", "10 k steps later"] {
            let mut rng = stream(5, "bench", 0);
            let mut batch = TransitionBatch::new(replay.layout(), 64);
            let begin = Instant::now();
            let snapshot = Snapshot::begin(Arc::clone(replay), saved.as_ref())?;
            let begin = begin.elapsed();
            let start = Instant::now();
            let done = AtomicBool::new(false);
            let mut longest = Duration::ZERO;
            let file = tempfile::tempfile()?;
            let result = std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let saved = snapshot.write(std::io::BufWriter::new(&file));
                    done.store(true, Ordering::Relaxed);
                    saved
                });
                while !done.load(Ordering::Relaxed) {
                    let before = Instant::now();
                    if let Some(rollout) = next.next() {
                        replay.insert(rollout, 0, None)?;
                    }
                    replay.sample_into(&mut batch, 0.4, &mut rng)?;
                    replay.update_priorities(&batch.ids, &[1.0; 64])?;
                    longest = longest.max(before.elapsed());
                    // As a learner would: not all the time.
                    std::thread::sleep(Duration::from_millis(1));
                }
                writer.join().map_err(|_| {
                    BenchError::Write(std::io::Error::other("the writer of the snapshot panicked"))
                })
            })?;
            saved = Some(result?);
            let bytes = file.metadata()?.len();
            writeln!(
                out,
                "  snapshot, {part}: started in {:.1} ms, written in {:.1} s, {:.1} MB; the longest insert 64 + sample 64 + update meanwhile: {:.1} ms",
                begin.as_secs_f64() * 1e3,
                start.elapsed().as_secs_f64(),
                bytes as f64 / 1e6,
                longest.as_secs_f64() * 1e3
            )?;
            for rollout in next.by_ref().take(10_000 / (ENVS * STEPS)) {
                replay.insert(rollout, 0, None)?;
            }
        }
        Ok(())
    }
}

/// One that only takes what two threads assemble, and gives priorities back.
struct Learner {
    replay: Arc<Replay>,
    prefetcher: Prefetcher<TransitionBatch>,
    seeds: starling_envs::Rng,
    priorities: Vec<f32>,
}

impl Learner {
    fn new(replay: Arc<Replay>, priorities: &[f32]) -> Result<Self, BenchError> {
        const THREADS: usize = 2;
        let mut seeds = stream(3, "bench", 0);
        let mut prefetcher = Prefetcher::new(Arc::clone(&replay), THREADS)?;
        for _ in 0..THREADS + 1 {
            let batch = TransitionBatch::new(replay.layout(), BATCH);
            prefetcher.give(batch, 0.4, seeds.next_u64());
        }
        Ok(Self {
            replay,
            prefetcher,
            seeds,
            priorities: priorities.to_vec(),
        })
    }

    fn next(&mut self) -> Result<(), BenchError> {
        let Some(filled) = self.prefetcher.take(Duration::from_secs(60)) else {
            return Ok(());
        };
        filled.drawn?;
        let ids = &filled.batch.ids;
        self.replay.update_priorities(ids, &self.priorities)?;
        self.prefetcher
            .give(filled.batch, 0.4, self.seeds.next_u64());
        Ok(())
    }
}

/// Something that is measured.
type Work<'a> = &'a mut dyn FnMut() -> Result<(), BenchError>;

/// Calls per second of two, measured in turns, so that other work on the machine hardly disturbs
/// their ratio: the best of seven parts of 0.3 s of each.
fn alternate(mut works: [Work<'_>; 2]) -> Result<[f64; 2], BenchError> {
    let mut best = [0.0f64; 2];
    for _ in 0..7 {
        for (work, best) in works.iter_mut().zip(&mut best) {
            let (start, mut calls) = (Instant::now(), 0u32);
            while start.elapsed() < Duration::from_millis(300) {
                work()?;
                calls += 1;
            }
            *best = best.max(f64::from(calls) / start.elapsed().as_secs_f64());
        }
    }
    Ok(best)
}

/// Rollouts of a game played at random, one after the other; `None` without its cartridge.
fn record(game: &str) -> Result<Option<Vec<Rollout>>, BenchError> {
    let id = format!("{game}NoFrameskip-v4");
    let spec = registry::find(&id)
        .map_err(crate::EngineError::from)
        .map_err(Box::new)?;
    let Ok(mut vector) = spec.make_vec(&EnvOptions::default(), ENVS, 0, "env", 0) else {
        return Ok(None);
    };
    let mut rollout = empty_rollout(vector.observation_space(), vector.action_space());
    let Space::Discrete { n } = *vector.action_space() else {
        return Ok(None);
    };
    let mut rng = stream(0, "actions", 0);
    vector.reset(&mut rollout)?;
    let mut rollouts = Vec::new();
    for _ in 0..RECORDED {
        for t in 0..STEPS {
            for action in rollout.actions.at_mut(&[t]).as_mut_slice::<i64>() {
                *action = rng.random_range(0..n as i64);
            }
            vector.step(t, &mut rollout)?;
        }
        vector.finished().for_each(drop);
        rollouts.push(rollout.clone());
        rollout.carry_over();
    }
    Ok(Some(rollouts))
}

fn empty_rollout(observation: &Space, action: &Space) -> Rollout {
    let none = Tree::empty();
    Rollout::new(STEPS, ENVS, observation, action, None, &none, &none)
}

/// Rollouts of stacks that follow each other and show nothing.
fn noise() -> Vec<Rollout> {
    let (pixels, actions) = (Space::bytes(&SHAPE, 255), Space::Discrete { n: 18 });
    let mut rng = stream(6, "bench", 0);
    let mut rollout = empty_rollout(&pixels, &actions);
    let item: usize = SHAPE.iter().product();
    let frame = item / SHAPE[0];
    let mut rollouts = Vec::new();
    for _ in 0..RECORDED {
        rollout.carry_over();
        for (_, array) in rollout.obs.leaves_mut() {
            for row in 1..=STEPS {
                for b in 0..ENVS {
                    let before = array.at(&[row - 1, b]).bytes[frame..].to_vec();
                    let to = array.at_mut(&[row, b]).bytes;
                    to[..before.len()].copy_from_slice(&before);
                    rng.fill_bytes(&mut to[before.len()..]);
                }
            }
        }
        rollouts.push(rollout.clone());
    }
    rollouts
}
