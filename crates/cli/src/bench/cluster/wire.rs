//! What crosses the network: parcels of Atari games into a replay. Weights are in `weights.rs`.
//!
//! Parcels are recorded by real actors when a feeder starts, and sent again and again, packed. So
//! feeders take little of this machine, as if they were on others; what packing takes is measured
//! separately, in CPU time.

use std::io::{BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use starling_algos::Experience;
use starling_cluster::{Gateway, Identity, JoinFile, Joined, Line, Options, Seated};
use starling_engine::link::wire::{Packed, ParcelFormat, PublicationFormat, Spares};
use starling_engine::link::{
    ActorLink, Control, Event, LearnerLink as _, Lease, LinkError, Loss, Parcel, Places,
    Publication, Start, Terms, Wanted,
};
use starling_engine::{EngineError, Weights, serve};
use starling_envs::Rollout;
use starling_nets::Device;
use starling_replay::{Layout, PRIORITY, Replay};
use starling_tree::Tree;

use super::net::{DEVICE, Net};
use super::{ENVS, Processes, failed, weights};
use crate::RunConfig;
use crate::bench::BenchError;
use crate::settings::{Request, resolve};

/// From small parcels to large ones.
const GAMES: [&str; 8] = [
    "Breakout",
    "Pong",
    "Qbert",
    "SpaceInvaders",
    "MsPacman",
    "Seaquest",
    "BattleZone",
    "Enduro",
];

/// A game with all 18 actions, so that the replay takes the experience of every game.
const ALL_ACTIONS: &str = "Seaquest";

/// Processes that feed, each with a share of the games.
const FEEDERS: usize = 2;

/// Parcels of each game that are played before those that are kept, and those.
const SKIPPED: usize = 8;
const KEPT: usize = 8;

/// How often each parcel is packed and unpacked to measure it.
const TIMES: u32 = 4;

pub(super) const WARM_UP: Duration = Duration::from_secs(3);
pub(super) const MEASURED: Duration = Duration::from_secs(10);

pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Rate of the link, as `tc` reads it.
const PARCELS_RATE: &str = "1gbit";

/// One process of the measurement.
#[derive(Debug, Serialize, Deserialize)]
pub enum Side {
    /// A learner's side with a replay.
    Receive {
        /// Address to listen at.
        listen: String,
        /// Where the join file goes.
        join: PathBuf,
        /// The network device whose bytes are counted.
        device: Option<String>,
    },
    /// Sends the parcels of some games.
    Feed {
        /// The join file.
        join: PathBuf,
        /// Numbers of the games.
        games: Vec<usize>,
    },
    /// Publishes weights.
    Publish {
        /// Address to listen at.
        listen: String,
        /// Where the join file goes.
        join: PathBuf,
        /// Number of the network.
        network: usize,
        /// The network device whose bytes are counted.
        device: Option<String>,
    },
    /// Follows the weights, as so many processes do.
    Follow {
        /// The join file.
        join: PathBuf,
    },
}

/// What is known of a game.
#[derive(Debug, Serialize, Deserialize)]
struct Game {
    game: usize,
    bytes_per_step: f64,
    /// Microseconds of CPU time per step.
    pack_us: f64,
    unpack_us: f64,
    insert_us: f64,
}

/// What a receiver measured.
#[derive(Debug, Serialize, Deserialize)]
struct Received {
    steps_per_s: f64,
    /// Of parcels.
    bytes_per_s: f64,
    /// Of everything, both directions together.
    wire_bytes_per_s: Option<f64>,
    /// Cores that inserting took, and everything else.
    insert_cores: f64,
    other_cores: f64,
}

/// Runs the processes and prints what they found.
pub(super) fn run(program: &Path, out: &mut dyn Write) -> Result<(), BenchError> {
    parcels(program, out)?;
    weights::run(program, out)
}

/// The network, and where the first machine listens. Without root there is only this machine.
pub(super) fn network(rate: &str) -> (Option<Net>, &'static str) {
    match Net::new(rate) {
        Some(net) => (Some(net), "10.78.0.1:0"),
        None => (None, "127.0.0.1:0"),
    }
}

pub(super) fn described(net: Option<&Net>, rate: &str) -> String {
    match net {
        Some(_) => format!("two network namespaces joined at {rate}/s"),
        None => "loopback (a limited rate needs root)".into(),
    }
}

fn parcels(program: &Path, out: &mut dyn Write) -> Result<(), BenchError> {
    let folder = tempfile::tempdir()?;
    let join = folder.path().join("join.json");
    let (net, listen) = network(PARCELS_RATE);
    writeln!(
        out,
        "parcels of {} Atari games over gRPC with TLS, {}",
        GAMES.len(),
        described(net.as_ref(), PARCELS_RATE)
    )?;
    let mut processes = Processes::default();
    let receive = Side::Receive {
        listen: listen.into(),
        join: join.clone(),
        device: net.as_ref().map(|_| DEVICE.to_owned()),
    };
    let a = net.as_ref().map(|net| net.on_a(program));
    let mut received = start(&mut processes, a, program, &receive)?;
    super::wait_for("the receiver", || Ok(join.exists().then_some(())))?;
    writeln!(
        out,
        "  {:<14} {:>10} {:>9} {:>10} {:>10}",
        "game", "bytes/step", "pack us", "unpack us", "insert us"
    )?;
    let mut all: Vec<Game> = Vec::new();
    let each = GAMES.len() / FEEDERS;
    for feeder in 0..FEEDERS {
        let games: Vec<usize> = (feeder * each..(feeder + 1) * each).collect();
        let feed = Side::Feed {
            join: join.clone(),
            games: games.clone(),
        };
        let b = net.as_ref().map(|net| net.on_b(program));
        let mut told = start(&mut processes, b, program, &feed)?;
        for _ in games {
            let game: Game = read(&mut told)?;
            writeln!(
                out,
                "  {:<14} {:>10.0} {:>9.1} {:>10.1} {:>10.1}",
                GAMES[game.game], game.bytes_per_step, game.pack_us, game.unpack_us, game.insert_us
            )?;
            out.flush()?;
            all.push(game);
        }
    }
    let mean = |of: fn(&Game) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    let (pack, unpack) = (mean(|game| game.pack_us), mean(|game| game.unpack_us));
    writeln!(
        out,
        "  {:<14} {:>10.0} {pack:>9.1} {unpack:>10.1} {:>10.1}",
        "mean",
        mean(|game| game.bytes_per_step),
        mean(|game| game.insert_us)
    )?;
    let told: Received = read(&mut received)?;
    let rate = told.steps_per_s;
    let wire = told.wire_bytes_per_s;
    let wire_text = match wire {
        Some(wire) => format!(
            "{:.1} MB/s and {:.0} bytes per step on the wire",
            wire / 1e6,
            wire / rate
        ),
        None => format!("{:.1} MB/s of parcels", told.bytes_per_s / 1e6),
    };
    writeln!(
        out,
        "  {rate:.0} steps/s into the replay, {wire_text}\n  \
         learner's side: inserting {:.2} cores, everything else {:.2} cores\n  \
         at 100,000 steps/s unpacking takes {:.2} cores, at 1,000 steps/s of an actor packing takes {:.1} % \
         of a core",
        told.insert_cores,
        told.other_cores,
        unpack * 0.1,
        pack * 0.1
    )?;
    out.flush()?;
    Ok(())
}

/// Starts one side; what it prints.
pub(super) fn start(
    processes: &mut Processes,
    command: Option<Command>,
    program: &Path,
    side: &Side,
) -> Result<impl std::io::BufRead + use<>, BenchError> {
    let mut command = command.unwrap_or_else(|| Command::new(program));
    let side = serde_json::to_string(side).map_err(failed)?;
    command.args(["bench", "cluster", "--side", &side]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let output = processes.start(&mut command)?.stdout.take();
    let output = output.ok_or_else(|| failed("a process has no output"))?;
    Ok(BufReader::new(output))
}

pub(super) fn read<T: serde::de::DeserializeOwned>(
    output: &mut impl std::io::BufRead,
) -> Result<T, BenchError> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    serde_json::from_str(&line).map_err(|_| failed("a process of the measurement failed"))
}

pub(super) fn print(what: &impl Serialize, out: &mut dyn Write) -> Result<(), BenchError> {
    writeln!(out, "{}", serde_json::to_string(what).map_err(failed)?)?;
    Ok(out.flush()?)
}

/// Is one side of the measurement until it ends.
pub(in crate::bench) fn side(side: Side, out: &mut dyn Write) -> Result<(), BenchError> {
    match side {
        Side::Receive {
            listen,
            join,
            device,
        } => receive(&listen, &join, device.as_deref(), out),
        Side::Feed { join, games } => feed(&join, &games, out),
        Side::Publish {
            listen,
            join,
            network,
            device,
        } => weights::publish(&listen, &join, network, device.as_deref(), out),
        Side::Follow { join } => weights::follow(&join, out),
    }
}

/// Ape-X with one place per game.
fn config(game: &str) -> Result<RunConfig, BenchError> {
    let mut request = Request::new(&format!("{game}NoFrameskip-v4"));
    request.algo = Some("apex-dqn".into());
    request.overrides = vec![
        "device=cpu".into(),
        "torch_threads=1".into(),
        "algo.rollout_steps=64".into(),
        "algo.capacity_steps=100000".into(),
        format!("threads={}", GAMES.len()),
        format!("envs={}", GAMES.len() * ENVS),
    ];
    Ok(resolve(&request).map_err(Box::new)?)
}

pub(super) fn places(count: usize) -> Arc<Places> {
    let shares = (0..count).map(|place| place * ENVS..(place + 1) * ENVS);
    Arc::new(Places::new(shares, Start::default()))
}

pub(super) fn engine(error: EngineError) -> BenchError {
    BenchError::Engine(Box::new(error))
}

/// A learner's side that listens, with a join file at `join`.
pub(super) fn gateway(
    terms: Terms,
    config: &RunConfig,
    listen: &str,
    join: &Path,
) -> Result<Gateway, BenchError> {
    let listener = TcpListener::bind(listen)?;
    let address = listener.local_addr()?.to_string();
    let identity = Identity::new(true).map_err(failed)?;
    let file = identity.join_file(address);
    let options = Options::default();
    let gateway = Gateway::listen(terms, &config.to_value(), listener, identity, options);
    let gateway = gateway.map_err(failed)?;
    file.write(join).map_err(failed)?;
    Ok(gateway)
}

fn replay_of(config: &RunConfig, parcels: &ParcelFormat) -> Result<Replay, BenchError> {
    let algorithm = config.algorithm().map_err(engine)?;
    let Experience::Transitions(needs) = algorithm.experience() else {
        return Err(failed("Ape-X has a replay"));
    };
    let layout = Layout::of_rollout(&parcels.rollout(1), GAMES.len() * ENVS);
    Ok(Replay::new(needs.replay, layout)?)
}

fn insert(replay: &Replay, first_env: usize, rollout: &Rollout) -> Result<(), BenchError> {
    let priorities = rollout.policy.get(PRIORITY).and_then(Tree::leaf);
    let priorities = priorities.map(|column| column.as_slice::<f32>());
    replay.insert(rollout, first_env, priorities)?;
    Ok(())
}

fn receive(
    listen: &str,
    join: &Path,
    device: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), BenchError> {
    let config = config(ALL_ACTIONS)?;
    let places = places(GAMES.len());
    let parcels = ParcelFormat::of(&config, &places).map_err(engine)?;
    let replay = replay_of(&config, &parcels)?;
    let terms = Terms {
        places,
        parcels,
        publications: PublicationFormat { weights: 0 },
        history: 1,
        evaluations: None,
    };
    let gateway = gateway(terms, &config, listen, join)?;
    let mut heard = [0u64; GAMES.len()];
    let (mut warm, mut began) = (None, None);
    loop {
        let parcel = match gateway.receive(PATIENCE).map_err(failed)? {
            Event::Parcel(parcel) => parcel,
            Event::Joined { .. } => continue,
            other => return Err(failed(format!("a feeder ended: {other:?}"))),
        };
        for (first_env, rollout) in &parcel.rollouts {
            insert(&replay, *first_env, rollout)?;
        }
        let place = parcel.lease.place;
        heard[place] += 1;
        let rollouts = parcel.rollouts.into_iter().map(|(_, rollout)| rollout);
        gateway.recycle(place, rollouts.collect());
        if heard.contains(&0) {
            continue;
        }
        let warm: Instant = *warm.get_or_insert_with(Instant::now);
        if warm.elapsed() < WARM_UP {
            continue;
        }
        let (since, first) = began.get_or_insert_with(|| (Instant::now(), count(&replay, device)));
        if since.elapsed() < MEASURED {
            continue;
        }
        let (seconds, last) = (since.elapsed().as_secs_f64(), count(&replay, device));
        let steps = (last.steps - first.steps) as f64;
        let counts = gateway.counts();
        let insert_cores = (last.thread - first.thread) / seconds;
        let wire = last.wire.zip(first.wire);
        let received = Received {
            steps_per_s: steps / seconds,
            bytes_per_s: steps / seconds * counts.bytes as f64 / counts.steps.max(1) as f64,
            wire_bytes_per_s: wire.map(|(last, first)| (last - first) as f64 / seconds),
            insert_cores,
            other_cores: (last.process - first.process) / seconds - insert_cores,
        };
        return print(&received, out);
    }
}

/// Counters of a process at one time.
struct Counted {
    steps: u64,
    wire: Option<u64>,
    /// Seconds of CPU time.
    thread: f64,
    process: f64,
}

fn count(replay: &Replay, device: Option<&str>) -> Counted {
    Counted {
        steps: replay.inserted_steps(),
        wire: device.and_then(device_bytes),
        thread: cpu_s(ClockId::ThreadCPUTime),
        process: cpu_s(ClockId::ProcessCPUTime),
    }
}

/// Bytes that a network device has received and sent.
pub(super) fn device_bytes(device: &str) -> Option<u64> {
    let read = |direction: &str| {
        let path = format!("/sys/class/net/{device}/statistics/{direction}_bytes");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().parse::<u64>().ok()
    };
    Some(read("rx")? + read("tx")?)
}

pub(super) fn cpu_s(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// An actor's link that keeps its parcels and ends after some.
struct Recorder {
    weights: Publication,
    parcels: Mutex<Vec<Parcel>>,
    sent: AtomicU64,
}

impl ActorLink for Recorder {
    fn weights(&self, _: Wanted, _: Duration) -> Result<Publication, LinkError> {
        Ok(self.weights.clone())
    }

    fn send(&self, parcel: Parcel, _: Duration) -> Result<Option<Vec<Rollout>>, LinkError> {
        if self.sent.fetch_add(1, Ordering::Relaxed) >= SKIPPED as u64 {
            let mut parcels = self.parcels.lock().unwrap_or_else(PoisonError::into_inner);
            parcels.push(parcel);
        }
        match self.is_closed() {
            true => Err(LinkError::Closed),
            false => Ok(None),
        }
    }

    fn fail(&self, _: Loss) {}

    fn is_closed(&self) -> bool {
        self.sent.load(Ordering::Relaxed) >= (SKIPPED + KEPT) as u64
    }
}

/// Plays a game as an actor of a run does, and returns what it would send.
pub(super) fn record(config: &RunConfig, lease: &Lease) -> Result<Vec<Parcel>, BenchError> {
    let algorithm = config.algorithm().map_err(engine)?;
    let learner = algorithm.learner(config.settings.seed, Device::Cpu);
    let recorder = Arc::new(Recorder {
        weights: Publication {
            weights: Arc::new(Weights {
                version: 0,
                values: learner.weights(),
            }),
            control: Control::default(),
        },
        parcels: Mutex::default(),
        sent: AtomicU64::new(0),
    });
    let link = Arc::clone(&recorder) as Arc<dyn ActorLink>;
    match serve(config, lease, link) {
        Ok(()) | Err(EngineError::Link(LinkError::Closed)) => {}
        Err(error) => return Err(engine(error)),
    }
    let mut parcels = recorder
        .parcels
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut parcels))
}

pub(super) fn seats(
    line: &Line,
    threads: impl Iterator<Item = usize>,
) -> Result<Vec<Seated>, BenchError> {
    let joined = threads.map(
        |thread| match line.join(thread as u64, 0).map_err(failed)? {
            Joined::Seated(seated) => Ok(*seated),
            Joined::Spare | Joined::Closed => Err(failed("there is no place for a feeder")),
        },
    );
    joined.collect()
}

fn feed(join: &Path, games: &[usize], out: &mut dyn Write) -> Result<(), BenchError> {
    let join = JoinFile::read(join).map_err(failed)?;
    let line = Line::new(&join, Options::default()).map_err(failed)?;
    let mut feeds = Vec::new();
    for (seated, game) in seats(&line, 0..games.len())?.into_iter().zip(games) {
        let config = config(GAMES[*game])?;
        let parcels = record(&config, &seated.lease)?;
        let (known, packed) = examine(*game, &config, &parcels)?;
        print(&known, out)?;
        feeds.push((seated, packed));
    }
    let ended: Vec<LinkError> = std::thread::scope(|scope| {
        let feeds: Vec<_> = feeds
            .iter()
            .map(|(seated, packed)| scope.spawn(|| send_all(seated, packed)))
            .collect();
        let panicked = |_| LinkError::Lost("a thread panicked".into());
        let ended = feeds.into_iter().map(|feed| feed.join());
        ended.map(|ended| ended.unwrap_or_else(panicked)).collect()
    });
    match ended.into_iter().find(|end| *end != LinkError::Closed) {
        Some(error) => Err(failed(error)),
        None => Ok(()),
    }
}

/// Sends the same parcels until the run ends.
fn send_all(seated: &Seated, packed: &[Packed]) -> LinkError {
    for (number, packed) in (0..).zip(packed.iter().cycle()) {
        if let Err(error) = seated.link.send_packed(packed, number, PATIENCE) {
            return error;
        }
    }
    LinkError::Closed
}

/// Packs the parcels of a game, and measures what that takes.
fn examine(
    game: usize,
    config: &RunConfig,
    parcels: &[Parcel],
) -> Result<(Game, Vec<Packed>), BenchError> {
    let format = ParcelFormat::of(config, &places(GAMES.len())).map_err(engine)?;
    let replay = replay_of(config, &format)?;
    let mut raw = Vec::new();
    let mut pack =
        |parcel: &Parcel| Packed::new(&parcel.rollouts, &parcel.episodes, &mut raw).map_err(failed);
    let framed = |parcel: &Parcel, packed: &Packed| {
        let mut frame = Vec::new();
        let written = packed.write(parcel.lease, parcel.number, &mut frame);
        written.map(|()| frame).map_err(failed)
    };
    let (mut packed, mut frames) = (Vec::new(), Vec::new());
    for parcel in parcels {
        let sent = pack(parcel)?;
        let frame = framed(parcel, &sent)?;
        let arrived = format.read(&frame).map_err(failed)?;
        if framed(&arrived, &pack(&arrived)?)? != frame {
            return Err(failed("a parcel changed on its way"));
        }
        packed.push(sent);
        frames.push(frame);
    }
    let rollouts = parcels.iter().flat_map(|parcel| &parcel.rollouts);
    let steps: usize = rollouts.map(|(_, part)| part.steps() * part.envs()).sum();
    let per_step = |work: &mut dyn FnMut() -> Result<(), BenchError>| {
        // The first time takes memory.
        work()?;
        let began = cpu_s(ClockId::ThreadCPUTime);
        for _ in 0..TIMES {
            work()?;
        }
        let spent = cpu_s(ClockId::ThreadCPUTime) - began;
        Ok::<f64, BenchError>(1e6 * spent / f64::from(TIMES) / steps as f64)
    };
    let pack_us = per_step(&mut || parcels.iter().try_for_each(|parcel| pack(parcel).map(drop)))?;
    let mut spares = Spares::default();
    let unpack_us = per_step(&mut || {
        frames.iter().try_for_each(|frame| {
            let parcel = format.read_into(frame, &mut spares).map_err(failed)?;
            let rollouts = parcel.rollouts.into_iter().map(|(_, rollout)| rollout);
            spares.rollouts.extend(rollouts);
            Ok(())
        })
    })?;
    let insert_us = per_step(&mut || {
        let mut rollouts = parcels.iter().flat_map(|parcel| &parcel.rollouts);
        rollouts.try_for_each(|(first_env, rollout)| insert(&replay, *first_env, rollout))
    })?;
    let bytes: usize = frames.iter().map(Vec::len).sum();
    let known = Game {
        game,
        bytes_per_step: bytes as f64 / steps as f64,
        pack_us,
        unpack_us,
        insert_us,
    };
    Ok((known, packed))
}
