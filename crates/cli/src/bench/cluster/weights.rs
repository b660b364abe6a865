//! Weights to many processes: how many versions per second reach each, and how late.
//!
//! The versions are those of a real learner, some updates apart, because on slow connections only their
//! changes are sent.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use starling_algos::{Batch, Progress};
use starling_cluster::{JoinFile, Line, Options};
use starling_engine::link::wire::{ParcelFormat, PublicationFormat};
use starling_engine::link::{
    ActorLink as _, Control, Event, LearnerLink as _, Publication, Terms, Wanted,
};
use starling_engine::{EngineError, Weights};
use starling_nets::{Device, Snapshot};

use super::net::DEVICE;
use super::wire::{
    MEASURED, PATIENCE, Side, WARM_UP, cpu_s, described, device_bytes, engine, gateway, network,
    places, print, read, record, seats, start,
};
use super::{Processes, failed, median};
use crate::RunConfig;
use crate::bench::BenchError;
use crate::settings::{Request, resolve};

/// Processes that follow the weights, and versions per second.
const FOLLOWERS: usize = 32;
const VERSIONS_PER_S: u32 = 2;

/// Updates between two versions.
const UPDATES_PER_VERSION: usize = 4;

/// Rates of the link, as `tc` reads them.
const RATES: [&str; 2] = ["10gbit", "1gbit"];

/// Networks whose weights are sent.
const NETWORKS: [(&str, &[&str]); 2] =
    [("Nature CNN", &[]), ("ResNet", &["algo.net.torso=resnet"])];

/// What a publisher or its followers measured.
#[derive(Debug, Serialize, Deserialize)]
struct Sent {
    /// Unix time in seconds by version, for each follower, or of the publications.
    times: Vec<Vec<(u64, f64)>>,
    /// Of the weights.
    bytes: usize,
    /// Of everything on the wire, both directions together.
    wire_bytes_per_s: Option<f64>,
    cores: f64,
}

/// Runs the processes and prints what they found.
pub(super) fn run(program: &Path, out: &mut dyn Write) -> Result<(), BenchError> {
    for (network, (name, _)) in NETWORKS.iter().enumerate() {
        for rate in RATES {
            weights(program, network, name, rate, out)?;
        }
    }
    Ok(())
}

fn weights(
    program: &Path,
    network_number: usize,
    name: &str,
    rate: &str,
    out: &mut dyn Write,
) -> Result<(), BenchError> {
    let folder = tempfile::tempdir()?;
    let join = folder.path().join("join.json");
    let (net, listen) = network(rate);
    let mut processes = Processes::default();
    let publish = Side::Publish {
        listen: listen.into(),
        join: join.clone(),
        network: network_number,
        device: net.as_ref().map(|_| DEVICE.to_owned()),
    };
    let a = net.as_ref().map(|net| net.on_a(program));
    let mut published = start(&mut processes, a, program, &publish)?;
    super::wait_for("the publisher", || Ok(join.exists().then_some(())))?;
    let b = net.as_ref().map(|net| net.on_b(program));
    let mut followed = start(&mut processes, b, program, &Side::Follow { join })?;
    let published: Sent = read(&mut published)?;
    let followed: Sent = read(&mut followed)?;
    let made = published.times.first().map_or(&[][..], Vec::as_slice);
    let seconds = MEASURED.as_secs_f64();
    let got: usize = followed.times.iter().map(Vec::len).sum();
    let per_follower = got as f64 / followed.times.len().max(1) as f64 / seconds;
    // How long after its publication a version was there.
    let mut delays = Vec::new();
    for (version, at) in followed.times.iter().flatten() {
        let begun = made.iter().find(|(held, _)| held == version);
        delays.extend(begun.map(|(_, begun)| 1e3 * (at - begun)));
    }
    let sent = match published.wire_bytes_per_s {
        Some(wire) => format!("{:.0} MB/s on the wire", wire / 1e6),
        None => format!(
            "{:.0} MB/s",
            got as f64 * published.bytes as f64 / seconds / 1e6
        ),
    };
    writeln!(
        out,
        "weights of the {name} ({:.1} MB) to {FOLLOWERS} processes, {VERSIONS_PER_S} versions/s, {}\n  \
         {per_follower:.2} versions/s each, {sent}, there after {:.0} ms (median); \
         learner's side {:.2} cores",
        published.bytes as f64 / 1e6,
        described(net.as_ref(), rate),
        median(delays),
        published.cores
    )?;
    out.flush()?;
    Ok(())
}

/// Publishes weights until all versions are out.
pub(super) fn publish(
    listen: &str,
    join: &Path,
    network: usize,
    device: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), BenchError> {
    let mut request = Request::new("PongNoFrameskip-v4");
    request.algo = Some("impala".into());
    request.overrides = NETWORKS[network].1.iter().map(|&set| set.into()).collect();
    request.overrides.push("device=cpu".into());
    let config = resolve(&request).map_err(Box::new)?;
    let versions = versions(&config)?;
    let parameters = versions[0].values().len();
    let places = places(FOLLOWERS);
    let terms = Terms {
        parcels: ParcelFormat::of(&config, &places).map_err(engine)?,
        places,
        publications: PublicationFormat {
            weights: parameters,
        },
        history: 4,
        evaluations: None,
    };
    let gateway = gateway(terms, &config, listen, join)?;
    let publish = |version: u64, values: &Snapshot| {
        // Each version is copied from the device of a learner.
        let values = Snapshot::from_values(values.values().to_vec());
        gateway.publish(Publication {
            weights: Arc::new(Weights { version, values }),
            control: Control { env_steps: version },
        });
    };
    publish(0, &versions[0]);
    let mut joined = 0;
    while joined < FOLLOWERS {
        match gateway.receive(PATIENCE).map_err(failed)? {
            Event::Joined { .. } => joined += 1,
            other => return Err(failed(format!("a follower ended: {other:?}"))),
        }
    }
    std::thread::sleep(WARM_UP);
    let (began, cpu) = (Instant::now(), cpu_s(ClockId::ProcessCPUTime));
    let wire = device.and_then(device_bytes);
    let mut times = Vec::new();
    for (version, values) in (1..).zip(&versions[1..]) {
        times.push((version, unix_s()));
        publish(version, values);
        let next = Duration::from_secs(1) / VERSIONS_PER_S * version as u32;
        std::thread::sleep(next.saturating_sub(began.elapsed()));
    }
    let cores = (cpu_s(ClockId::ProcessCPUTime) - cpu) / began.elapsed().as_secs_f64();
    let wire = device.and_then(device_bytes).zip(wire);
    let sent = Sent {
        times: vec![times],
        bytes: 4 * parameters,
        wire_bytes_per_s: wire
            .map(|(last, first)| (last - first) as f64 / began.elapsed().as_secs_f64()),
        cores,
    };
    print(&sent, out)
}

/// Weights as a learner publishes them: those of the beginning, and those after every few updates with
/// real experience.
fn versions(config: &RunConfig) -> Result<Vec<Snapshot>, BenchError> {
    let lease = places(1)
        .lease()
        .ok_or_else(|| failed("there is no place"))?;
    let parcels = record(config, &lease)?;
    let mut rollouts = parcels.iter().flat_map(|parcel| &parcel.rollouts).cycle();
    let algorithm = config.algorithm().map_err(engine)?;
    let mut learner = algorithm.learner(config.settings.seed, Device::Cpu);
    let progress = Progress {
        env_steps: 0,
        total_steps: config.settings.steps,
    };
    let mut versions = vec![learner.weights()];
    for _ in 0..u64::from(VERSIONS_PER_S) * MEASURED.as_secs() {
        for (_, rollout) in rollouts.by_ref().take(UPDATES_PER_VERSION) {
            let updated = learner.update(Batch::Rollouts(&[rollout]), progress);
            updated.map_err(|source| engine(EngineError::Learn { step: 0, source }))?;
        }
        versions.push(learner.weights());
    }
    Ok(versions)
}

/// Follows the weights with many connections until the run ends.
pub(super) fn follow(join: &Path, out: &mut dyn Write) -> Result<(), BenchError> {
    let join = JoinFile::read(join).map_err(failed)?;
    let lines = (0..FOLLOWERS).map(|_| Line::new(&join, Options::default()).map_err(failed));
    let lines: Vec<Line> = lines.collect::<Result<_, _>>()?;
    let cpu = cpu_s(ClockId::ProcessCPUTime);
    let (began, over) = (Instant::now(), AtomicBool::new(false));
    let times = std::thread::scope(|scope| {
        let followers: Vec<_> = lines
            .iter()
            .map(|line| scope.spawn(|| follow_one(line, &over)))
            .collect();
        let panicked = |_| Err(failed("a thread panicked"));
        let ended = followers.into_iter().map(|follower| follower.join());
        let ended: Vec<_> = ended.map(|ended| ended.unwrap_or_else(panicked)).collect();
        ended.into_iter().collect::<Result<Vec<_>, BenchError>>()
    })?;
    let cores = (cpu_s(ClockId::ProcessCPUTime) - cpu) / began.elapsed().as_secs_f64();
    print(
        &Sent {
            times,
            bytes: 0,
            wire_bytes_per_s: None,
            cores,
        },
        out,
    )
}

/// When each version was there, until the run ends.
fn follow_one(line: &Line, over: &AtomicBool) -> Result<Vec<(u64, f64)>, BenchError> {
    let seats = seats(line, 0..1)?;
    let mut times: Vec<(u64, f64)> = Vec::new();
    while let Some(seated) = seats.first()
        && !over.load(Ordering::Relaxed)
    {
        match seated.link.weights(Wanted::Latest, PATIENCE) {
            Ok(publication) => {
                let version = publication.weights.version;
                let known = times.last().map_or(0, |(version, _)| *version);
                match version > known {
                    true => times.push((version, unix_s())),
                    false => std::thread::sleep(Duration::from_millis(20)),
                }
            }
            Err(_) => over.store(true, Ordering::Relaxed),
        }
    }
    Ok(times)
}

fn unix_s() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
