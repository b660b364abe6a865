//! Failure tests of a distributed run: processes are killed and suspended at random, connections are
//! closed, delayed and stalled, Redis is restarted, emptied and filled, the network is partitioned,
//! the disk is full. The invariants are checked with the counters that every process logs.
//!
//! In CI this takes about a minute. `STARLING_CHAOS_SECONDS` (`scripts/chaos.sh`) makes it longer.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use starling::record::{Live, Table, checkpoint};
use starling_testing::{
    Process, RedisServer, Relay, all_logged, children, formations, logged, only_run, processes_in,
    signal, skip, text, wait_for,
};

#[path = "support/saved.rs"]
mod support;
use support::{saved, steps_of_saved};

/// Parcels of a lease that may be on the way.
const WINDOW: u64 = 2;

/// Steps that may be on their way when a run ends: two parcels of each place in the learner's queue,
/// and one of each that came before its turn.
const ON_THE_WAY: u64 = 3;

/// Places of the run, and threads of each of the actors.
const PLACES: u64 = 2;

/// Seconds over which updates are counted, and how often, for the speed before the first failure.
const RATED_S: f64 = 1.0;
const RATED: usize = 5;

/// Steps in the replay. It is full before memory is measured for the first time.
const CAPACITY: u64 = 20_000;

/// Updates per second after the failures, as a share of those before.
const RECOVERED: f64 = 0.9;

/// The commit of a version that nobody has.
const OTHER_COMMIT: &str = "ffffffffffff";

/// The program with the name of another commit in the place of its own, `None` if it names none.
fn other_version(folder: &Path) -> Option<PathBuf> {
    let mut program = std::fs::read(env!("CARGO_BIN_EXE_starling")).unwrap();
    let mark = concat!(env!("CARGO_PKG_VERSION"), "+").as_bytes();
    let places: Vec<usize> = program
        .windows(mark.len() + OTHER_COMMIT.len())
        .enumerate()
        .filter(|(_, bytes)| {
            bytes.starts_with(mark) && bytes[mark.len()..].iter().all(u8::is_ascii_hexdigit)
        })
        .map(|(at, _)| at + mark.len())
        .collect();
    for at in &places {
        program[*at..at + OTHER_COMMIT.len()].copy_from_slice(OTHER_COMMIT.as_bytes());
    }
    let path = folder.join("other-version");
    std::fs::write(&path, program).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    (!places.is_empty()).then_some(path)
}

/// One test at a time: each measures the speed of its processes.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that failed is over.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A small generator, so that a run of the test can be repeated (`STARLING_CHAOS_SEED`).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    let given = std::env::var(variable).ok();
    given
        .and_then(|given| given.parse().ok())
        .unwrap_or(otherwise)
}

fn starling(folder: &Path, log: &str, args: &[&str]) -> Process {
    Process::run(env!("CARGO_BIN_EXE_starling"), folder, log, args)
}

/// Memory of a process, in bytes.
fn resident(process: u32) -> u64 {
    let status = text(format!("/proc/{process}/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// A run whose roles are killed and started again.
struct Fleet {
    folder: tempfile::TempDir,
    address: String,
    learner: Option<Process>,
    /// Actors and the evaluator, with the number of their starts.
    others: Vec<(&'static str, Option<Process>, u64)>,
    starts: u64,
    /// The step from which the learner continued last.
    from: u64,
    relay: Option<Relay>,
    /// Updates per second before the first failure.
    undisturbed: f64,
}

impl Fleet {
    fn start(address: &str, relayed: bool) -> Self {
        let mut fleet = Self {
            folder: tempfile::tempdir().unwrap(),
            address: address.to_owned(),
            learner: None,
            others: vec![
                ("actor-a", None, 0),
                ("actor-b", None, 0),
                ("evaluator", None, 0),
            ],
            starts: 0,
            from: 0,
            relay: None,
            undisturbed: 0.0,
        };
        fleet.start_learner();
        if relayed {
            let join: Value = serde_json::from_str(&text(fleet.run().join("join.json"))).unwrap();
            let target: SocketAddr = join["address"].as_str().unwrap().parse().unwrap();
            // A learner that starts again listens at the same port.
            fleet.address = target.to_string();
            fleet.relay = Some(Relay::to(target));
        }
        for at in 0..fleet.others.len() {
            fleet.start_other(at);
        }
        fleet.recovers();
        let mut rates: Vec<f64> = (0..RATED).map(|_| fleet.rate()).collect();
        rates.sort_by(f64::total_cmp);
        fleet.undisturbed = rates[RATED / 2];
        fleet
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self) -> PathBuf {
        only_run(self.path()).unwrap()
    }

    fn start_learner(&mut self) {
        let log = format!("learner-{}.txt", self.starts);
        let capacity = format!("algo.capacity_steps={CAPACITY}");
        let mut args = match self.starts {
            0 => vec!["train", "CartPole-v1", "--preset", "none", "--algo", "dqn"],
            _ => vec!["resume"],
        };
        let run = (self.starts > 0).then(|| self.run().display().to_string());
        args.extend(run.as_deref());
        if self.starts == 0 {
            args.extend([
                "threads=2",
                "envs=8",
                "device=cpu",
                "torch_threads=1",
                "asynchronous=true",
                "steps=1000000000",
                "algo.learning_starts_steps=500",
                "algo.batch_size=16",
                &capacity,
                "algo.net.hidden=[16]",
                "log_every_steps=1000",
                "checkpoint.every_steps=5000",
                "eval.every_steps=10000",
                "eval.episodes=1",
                "eval.max_steps=200",
                "eval.by=evaluators",
            ]);
        }
        let address = self.address.clone();
        args.extend(["--quiet", "--listen", &address, "--lease-seconds", "2"]);
        let mut learner = starling(self.path(), &log, &args);
        let path = self.path().to_owned();
        wait_for("the learner", || {
            assert!(learner.is_running(), "{}", text(path.join(&log)));
            // That of the last start says that it has ended, or names another process.
            let live = only_run(&path).and_then(|run| Live::read(&run.join("live.json")));
            live.is_some_and(|live| live.process == learner.id() && !live.ended)
        });
        self.learner = Some(learner);
        self.starts += 1;
    }

    fn start_other(&mut self, at: usize) {
        let run = self.run();
        // Through the relay, where there is one.
        let mut join: Value = serde_json::from_str(&text(run.join("join.json"))).unwrap();
        if let Some(relay) = &self.relay {
            join["address"] = relay.address().to_string().into();
        }
        let file = self.path().join("join.json");
        std::fs::write(&file, join.to_string()).unwrap();
        let (file, path) = (file.display().to_string(), self.path().to_owned());
        let (name, process, starts) = &mut self.others[at];
        let log = format!("{name}-{starts}.txt");
        let role = name.split('-').next().unwrap_or(name);
        let mut args = vec![role, "--join", &file];
        if role == "actor" {
            args.extend(["--threads", "1"]);
        }
        *process = Some(starling(&path, &log, &args));
        *starts += 1;
    }

    /// What the learner logged last.
    fn newest<const N: usize>(&self, columns: [&str; N]) -> [f64; N] {
        let table = Table::read(&self.run().join("progress.csv")).ok();
        columns.map(|name| {
            let column = table.as_ref().and_then(|table| table.column(name));
            column
                .and_then(|column| column.last().copied())
                .unwrap_or(0.0)
        })
    }

    /// Seconds and updates that the learner has logged.
    fn progress(&self) -> (f64, f64) {
        let [seconds, updates] = self.newest(["Diagnostics/CumTime (s)", "Diagnostics/CumUpdates"]);
        (seconds, updates)
    }

    /// Memory of the learner, of an actor and of the evaluator, in bytes.
    fn memory(&self) -> [u64; 3] {
        let of = |process: &Option<Process>| resident(process.as_ref().unwrap().id());
        [
            of(&self.learner),
            of(&self.others[0].1).max(of(&self.others[1].1)),
            of(&self.others[2].1),
        ]
    }

    /// Updates per second during the next few seconds.
    fn rate(&self) -> f64 {
        let (began, before) = self.progress();
        wait_for("the learner to log", || self.progress().0 > began + RATED_S);
        let (ended, after) = self.progress();
        (after - before) / (ended - began)
    }

    /// Waits until the learner is as fast as it was before the first failure.
    fn is_as_fast_as_before(&self) {
        wait_for("as many updates per second as before", || {
            self.rate() >= RECOVERED * self.undisturbed
        });
    }

    /// One actor is slowed down to a few percent of its speed: the learner continues with the other.
    fn slow_actor(&self, at: usize) {
        let id = self.others[at].1.as_ref().unwrap().id();
        let (began, learned) = (Instant::now(), self.progress().1);
        wait_for("the learner to learn without the slow actor", || {
            signal(id, "STOP");
            std::thread::sleep(Duration::from_millis(190));
            signal(id, "CONT");
            self.progress().1 > learned && began.elapsed() > Duration::from_secs(2)
        });
    }

    /// An actor of another version is refused, with the versions of both sides.
    fn refuses_another_version(&self, program: &Path) {
        let join = self.path().join("join.json").display().to_string();
        let args = ["actor", "--join", &join, "--threads", "1"];
        let program = program.display().to_string();
        let actor = Process::run(&program, self.path(), "other-version.txt", &args);
        let ended = actor.end();
        let said = text(self.path().join("other-version.txt"));
        assert_eq!(ended, 1, "{said}");
        // The compiler may keep the last bytes of the name elsewhere.
        let version = concat!(
            "this process Starling ",
            env!("CARGO_PKG_VERSION"),
            "+ffffffff"
        );
        assert!(
            said.contains("the learner refused: the learner runs Starling")
                && said.contains(version)
                && said.contains("use the same version on both sides")
                && !said.contains("has place"),
            "{said}"
        );
    }

    /// Waits until more has been learned than now.
    fn recovers(&mut self) {
        let (_, before) = self.progress();
        wait_for("the learner to learn again", || {
            if let Some(learner) = &mut self.learner {
                assert!(learner.is_running(), "the learner ended");
            }
            self.progress().1 > before
        });
    }

    fn kill_learner(&mut self) {
        if let Some(learner) = self.learner.take() {
            learner.kill();
        }
        let newest = checkpoint::latest(&self.run().join("checkpoints"));
        self.from = newest.unwrap().0.step();
        self.start_learner();
    }

    fn kill_other(&mut self, at: usize) {
        if let Some(process) = self.others[at].1.take() {
            process.kill();
        }
        self.start_other(at);
    }

    /// Ends the run in order, and checks what has to hold.
    fn end(mut self) {
        // A role that starts after the end of the run would look for the learner for long.
        for (name, _, starts) in &self.others {
            let log = self.path().join(format!("{name}-{}.txt", starts - 1));
            wait_for("every role to join", || {
                let said = text(&log);
                said.contains("has place") || said.contains("waiting for weights")
            });
        }
        self.recovers();
        self.is_as_fast_as_before();
        let learner = self.learner.take().unwrap();
        learner.signal("TERM");
        let said = |fleet: &Self| {
            text(
                fleet
                    .path()
                    .join(format!("learner-{}.txt", fleet.starts - 1)),
            )
        };
        assert_eq!(learner.end(), 130, "{}", said(&self));
        for (name, process, starts) in std::mem::take(&mut self.others) {
            let log = self.path().join(format!("{name}-{}.txt", starts - 1));
            assert_eq!(process.unwrap().end(), 0, "{name}: {}", text(&log));
        }
        self.check();
    }

    fn check(&self) {
        let run = self.run();
        let log = text(run.join("log.txt"));
        let last = |name: &str| logged(&log, name);
        // The steps that were used are the steps that arrived since the last start, except for queued
        // parcels, and the steps in the replay. Duplicates are counted separately.
        let (newest, damaged) = checkpoint::latest(&run.join("checkpoints")).unwrap();
        assert!(damaged.is_empty(), "{damaged:?}");
        let state: Value = serde_json::from_slice(&newest.read("run.json").unwrap()).unwrap();
        let absorbed = state["tally"]["env_steps"].as_u64().unwrap();
        assert_eq!(absorbed, newest.step());
        assert_eq!(state["limiter"]["inserted_steps"], absorbed);
        let (taken, parcels) = (last("steps"), last("parcels"));
        let each = taken.checked_div(parcels).unwrap_or(0);
        assert_eq!(taken, parcels * each, "a parcel of another size");
        let (from, used) = (self.from, absorbed - self.from);
        assert!(
            used <= taken && taken - used <= PLACES * ON_THE_WAY * each,
            "{used} of {taken} steps since step {from}: {log}"
        );
        // Places: every lease that was granted was given back, lost, or held at the end.
        let (joined, left, lost) = (last("joined"), last("left"), last("lost"));
        assert!(
            joined >= left + lost && joined - left - lost <= PLACES,
            "{joined} joined, {left} left, {lost} lost"
        );
        // Nothing else is lost, and weights never go back, on any actor that ended in order.
        for name in ["actor-a", "actor-b"] {
            for start in 0.. {
                let path = self.path().join(format!("{name}-{start}.txt"));
                if !path.exists() {
                    break;
                }
                let said = text(&path);
                let leases = said.matches("has place").count() as u64;
                if let (Some(made), Some(known)) = (
                    all_logged(&said, "made").last(),
                    all_logged(&said, "acknowledged").last(),
                ) {
                    assert!(known <= made, "{said}");
                    assert!(
                        made - known <= WINDOW * leases,
                        "{made} made, {known} known: {said}"
                    );
                }
                assert!(
                    all_logged(&said, "went_back").iter().all(|back| *back == 0),
                    "{said}"
                );
                assert!(!said.contains("panicked"), "{said}");
            }
        }
        assert!(!log.contains("panicked"), "{log}");
        // Each evaluation is recorded once.
        if let Ok(table) = Table::read(&run.join("eval.csv")) {
            let mut steps = table.column("env_steps").unwrap();
            let rows = steps.len();
            steps.sort_by(f64::total_cmp);
            steps.dedup();
            assert_eq!(steps.len(), rows, "an evaluation was recorded twice");
        }
    }
}

/// How long the long tests take together. Each of them does everything at least once.
fn seconds() -> u64 {
    number("STARLING_CHAOS_SECONDS", 40)
}

/// Memory that a role may take beyond what it had before the first failure.
const MORE_MEMORY: u64 = 64 << 20;

#[test]
fn roles_are_killed_stopped_and_cut_off_at_random() {
    let _alone = alone();
    let mut dice = Dice(number("STARLING_CHAOS_SEED", 20_261_117));
    let mut fleet = Fleet::start("127.0.0.1:0", true);
    let other_version = other_version(fleet.path());
    if other_version.is_none() {
        let test = "roles_are_killed_stopped_and_cut_off_at_random";
        skip("git", test, "the program names no commit: no other version");
    }
    wait_for("a checkpoint", || {
        checkpoint::latest(&fleet.run().join("checkpoints")).is_ok()
    });
    wait_for("a full replay and an evaluation", || {
        let [size] = fleet.newest(["Diagnostics/ReplaySize"]);
        size >= 0.9 * CAPACITY as f64 && fleet.run().join("eval.csv").exists()
    });
    // The baseline of the whole test, whoever is started again.
    let (began, memory) = (Instant::now(), fleet.memory());
    let mut kinds = [0; 9];
    while kinds.contains(&0) || began.elapsed() < Duration::from_secs(seconds() / 2) {
        let kind = match kinds.iter().position(|count| *count == 0) {
            // Each at least once, then at random.
            Some(kind) => kind,
            None => dice.below(kinds.len() as u64) as usize,
        };
        kinds[kind] += 1;
        match kind {
            0 => fleet.kill_other(dice.below(2) as usize),
            1 => fleet.kill_learner(),
            2 => {
                // Longer than the lease: it has lost its place when it wakes up.
                let id = fleet.others[dice.below(2) as usize]
                    .1
                    .as_ref()
                    .unwrap()
                    .id();
                signal(id, "STOP");
                std::thread::sleep(Duration::from_secs(3));
                signal(id, "CONT");
            }
            3 => fleet.relay.as_ref().unwrap().cut(),
            4 => {
                let relay = fleet.relay.as_ref().unwrap();
                relay.set_silent(true);
                std::thread::sleep(Duration::from_millis(200 + dice.below(3_000)));
                relay.set_silent(false);
            }
            5 => {
                let relay = fleet.relay.as_ref().unwrap();
                relay.set_delay(Duration::from_millis(50));
                std::thread::sleep(Duration::from_secs(1));
                relay.set_delay(Duration::ZERO);
            }
            6 => fleet.kill_other(2),
            7 => fleet.slow_actor(dice.below(2) as usize),
            _ => {
                if let Some(program) = &other_version {
                    fleet.refuses_another_version(program);
                }
            }
        }
        fleet.recovers();
        for (now, before) in fleet.memory().into_iter().zip(memory) {
            let grown = now.saturating_sub(before);
            assert!(
                grown < MORE_MEMORY,
                "{grown} more bytes than {before} after {kinds:?}"
            );
        }
    }
    fleet.end();
}

#[test]
fn redis_is_restarted_emptied_and_full() {
    let _alone = alone();
    let test = "redis_is_restarted_emptied_and_full";
    let folder = tempfile::tempdir().unwrap();
    let mut dice = Dice(number("STARLING_CHAOS_SEED", 7));
    // Its files matter when it is restarted.
    let (with, without) = (vec!["--appendonly", "yes"], vec![]);
    for (files, args, first) in [
        ("with", with, &[0, 2][..]),
        ("without", without, &[0, 1, 3]),
    ] {
        let files = folder.path().join(files);
        std::fs::create_dir(&files).unwrap();
        let Some(mut server) = RedisServer::start(test, &files, &args) else {
            return;
        };
        let mut fleet = Fleet::start(&format!("redis://127.0.0.1:{}", server.port()), false);
        let (began, mut round) = (Instant::now(), 0);
        while round < first.len() || began.elapsed() < Duration::from_secs(seconds() / 8) {
            let kind = first.get(round).copied().unwrap_or_else(|| dice.below(4));
            match kind {
                0 => {
                    server.kill();
                    std::thread::sleep(Duration::from_millis(dice.below(1_500)));
                    server.start_again();
                }
                1 => assert!(server.ask(&["FLUSHALL"]).starts_with("+OK")),
                2 => {
                    server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
                    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
                    std::thread::sleep(Duration::from_secs(1));
                    assert!(
                        server
                            .ask(&["CONFIG", "SET", "maxmemory", "0"])
                            .starts_with("+OK")
                    );
                }
                _ => fleet.kill_other(dice.below(3) as usize),
            }
            fleet.recovers();
            round += 1;
        }
        fleet.end();
    }
}

/// Learners of a group, started by learner 0.
struct Learners {
    folder: tempfile::TempDir,
    first: Process,
    starts: u64,
}

impl Learners {
    /// Gradient steps of an update: 4 epochs of 4 minibatches.
    const STEPS: u64 = 16;

    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let args = [
            "train",
            "CartPole-v1",
            "--preset",
            "none",
            "--algo",
            "ppo",
            "--quiet",
            "device=cpu",
            "torch_threads=1",
            "threads=1",
            "envs=4",
            "learners=3",
            "max_learner_losses=1000000",
            "steps=1e9",
            "algo.epochs=4",
            "algo.minibatches=4",
            "algo.rollout_steps=32",
            "algo.net.hidden=[16]",
            "log_every_steps=2000",
            "checkpoint.every_steps=4000",
        ];
        let first = starling(folder.path(), "learner-0.txt", &args);
        let started = Self {
            folder,
            first,
            starts: 1,
        };
        wait_for("the run", || only_run(started.folder.path()).is_some());
        started
    }

    fn run(&self) -> PathBuf {
        only_run(self.folder.path()).unwrap()
    }

    fn log(&self) -> String {
        text(self.run().join("log.txt"))
    }

    fn said(&self) -> String {
        let path = self.folder.path();
        text(path.join(format!("learner-{}.txt", self.starts - 1))) + &self.log()
    }

    /// One of the others.
    fn other(&self, dice: &mut Dice) -> u32 {
        let others = children(self.first.id());
        assert_eq!(others.len(), 2, "{}", self.said());
        others[dice.below(2) as usize]
    }

    /// Waits until all are in a group, the last of at least so many, and learn.
    fn recover(&mut self, groups: usize) {
        wait_for("a group of all", || {
            assert!(self.first.is_running(), "{}", self.said());
            let formed = formations(&self.log());
            formed.len() >= groups && formed.last().is_some_and(|(_, all)| all.len() == 3)
        });
        let rows = self.log().matches("progress").count();
        wait_for("the group to learn", || {
            assert!(self.first.is_running(), "{}", self.said());
            self.log().matches("progress").count() > rows + 1
        });
    }

    /// Learner 0 is killed, the others end, and the run is resumed.
    fn kill_first(&mut self) {
        signal(self.first.id(), "KILL");
        wait_for("the others to end", || {
            processes_in(self.folder.path()).is_empty()
        });
        let run = self.run().display().to_string();
        let log = format!("learner-{}.txt", self.starts);
        let args = ["resume", "--quiet", &run];
        self.first = starling(self.folder.path(), &log, &args);
        self.starts += 1;
    }

    /// Every group is compared before its first update, or replaced by the next one, and averages over
    /// as many learners as it has.
    fn check(&self) {
        let log = self.log();
        let mut compared = 0;
        let mut formed: Option<(u64, Vec<usize>)> = None;
        for line in log.lines() {
            let field = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}="))?;
                rest.split_whitespace().next()?.parse::<u64>().ok()
            };
            if let [group] = &formations(line)[..] {
                formed = Some(group.clone());
            } else if line.contains("the learners of the group are equal") {
                let (generation, members) = formed.take().unwrap();
                assert_eq!(field("generation"), Some(generation), "{line}");
                assert!(line.contains(&format!("learners={members:?}")), "{line}");
                compared += 1;
            } else if line.contains(" in group ") {
                let members = line.split_once("learners=[").unwrap().1;
                let members = members.split_once(']').unwrap().0.split(", ").count();
                assert_eq!(field("size"), Some(members as u64), "{line}");
            } else if line.contains("progress") && !line.contains("resumed") {
                assert!(formed.is_none(), "an update in {formed:?}: {log}");
            }
        }
        assert!(compared > 4, "{log}");
        for learner in ["", "learners/1", "learners/2"] {
            let log = text(self.run().join(learner).join("log.txt"));
            assert!(!log.contains("panicked"), "{log}");
            assert!(!log.contains("different weights"), "{log}");
        }
    }
}

/// Every learner is killed, the others are suspended for a moment and for so long that they count as
/// lost: each group is compared before its first update, and in the end all have made the same steps.
#[test]
fn learners_of_a_group_are_killed_and_suspended_at_random() {
    let _alone = alone();
    let mut dice = Dice(number("STARLING_CHAOS_SEED", 99));
    let mut learners = Learners::start();
    learners.recover(1);
    wait_for("a checkpoint", || {
        checkpoint::latest(&learners.run().join("checkpoints")).is_ok()
    });
    let began = Instant::now();
    let mut kinds = [0; 5];
    while kinds.contains(&0) || began.elapsed() < Duration::from_secs(seconds() / 4) {
        let kind = match kinds.iter().position(|count| *count == 0) {
            Some(kind) => kind,
            None => dice.below(kinds.len() as u64) as usize,
        };
        kinds[kind] += 1;
        let groups = formations(&learners.log()).len();
        let changes = match kind {
            0 => {
                signal(learners.other(&mut dice), "KILL");
                true
            }
            1 => {
                let other = learners.other(&mut dice);
                signal(other, "STOP");
                std::thread::sleep(Duration::from_millis(dice.below(2_000)));
                signal(other, "CONT");
                false
            }
            2 => {
                for other in children(learners.first.id()) {
                    signal(other, "KILL");
                }
                true
            }
            3 => {
                learners.kill_first();
                true
            }
            _ => {
                // It is given up, and joins again when it is woken up.
                let lost = || learners.log().matches("a learner was lost").count();
                let (other, before) = (learners.other(&mut dice), lost());
                signal(other, "STOP");
                wait_for("it to count as lost", || lost() > before);
                signal(other, "CONT");
                true
            }
        };
        learners.recover(groups + usize::from(changes));
    }
    signal(learners.first.id(), "INT");
    wait_for("learner 0 to end", || !learners.first.is_running());
    wait_for("all to end", || {
        processes_in(learners.folder.path()).is_empty()
    });
    learners.check();
    let run = learners.run();
    let (updates, steps) = steps_of_saved(&run);
    assert_eq!(steps, Learners::STEPS * updates, "{}", learners.said());
    for other in ["learners/1", "learners/2"] {
        assert_eq!(steps_of_saved(&run.join(other)), (updates, steps));
        assert!(saved(&run.join(other)) == saved(&run), "{other}");
    }
}

/// A machine that is cut off without closing its connections: the loss is counted once, and the actor
/// rejoins.
#[test]
fn a_partition_between_machines_is_survived() {
    let _alone = alone();
    let test = "a_partition_between_machines_is_survived";
    let root = Command::new("id").arg("-u").output().unwrap();
    if root.stdout != b"0\n" {
        skip("root", test, "network namespaces take root");
        return;
    }
    let Some(net) = Namespaces::new() else {
        skip("root", test, "there are no network namespaces (ip netns)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let inside = |space: &str, log: &str, args: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", space, env!("CARGO_BIN_EXE_starling")]);
        command.args(args);
        Process::start(command, path, log)
    };
    let learner = inside(
        &net.a,
        "learner.txt",
        &[
            "train",
            "CartPole-v1",
            "--preset",
            "none",
            "--algo",
            "ppo",
            "--quiet",
            "threads=1",
            "envs=4",
            "device=cpu",
            "torch_threads=1",
            "asynchronous=true",
            "steps=1000000000",
            "log_every_steps=1000",
            "--listen",
            "10.77.0.1:0",
            "--lease-seconds",
            "1",
        ],
    );
    let join = || only_run(path).map(|run| run.join("join.json"));
    wait_for("the join file", || join().is_some_and(|join| join.exists()));
    let (join, run) = (
        join().unwrap().display().to_string(),
        only_run(path).unwrap(),
    );
    let actor = inside(
        &net.b,
        "actor.txt",
        &["actor", "--join", &join, "--threads", "1"],
    );
    let steps = || {
        let table = Table::read(&run.join("progress.csv")).ok();
        let column = table.and_then(|table| table.column("Diagnostics/CumSteps"));
        column
            .and_then(|column| column.last().copied())
            .unwrap_or(0.0)
    };
    wait_for("the first steps", || steps() > 2_000.0);
    net.link("down");
    let log = || text(run.join("log.txt"));
    // Found out by keep-alive: 5 seconds without an answer, and 5 more; then the lease.
    wait_for("the loss to be noticed", || {
        log().contains("it has had no connection for 1 s")
    });
    let before = steps();
    net.link("up");
    wait_for("the actor to be back", || steps() > before + 1_000.0);
    learner.signal("TERM");
    wait_for("the learner to end", || log().contains("Interrupted"));
    assert_eq!(actor.end(), 0, "{}", text(path.join("actor.txt")));
    assert_eq!(learner.end(), 130);
    let lost = logged(&log(), "lost");
    assert_eq!(lost, 1, "{}", log());
}

/// Two machines that see each other: namespaces of this one.
struct Namespaces {
    a: String,
    b: String,
}

impl Namespaces {
    fn new() -> Option<Self> {
        let id = std::process::id();
        let names = Self {
            a: format!("stl{id}a"),
            b: format!("stl{id}b"),
        };
        let (a, b) = (names.a.as_str(), names.b.as_str());
        let made = ip(&["netns", "add", a])
            && ip(&["netns", "add", b])
            && ip(&[
                "link", "add", "va", "netns", a, "type", "veth", "peer", "name", "vb", "netns", b,
            ])
            && ip(&["-n", a, "addr", "add", "10.77.0.1/24", "dev", "va"])
            && ip(&["-n", b, "addr", "add", "10.77.0.2/24", "dev", "vb"])
            && [(a, "lo"), (a, "va"), (b, "lo"), (b, "vb")]
                .iter()
                .all(|(space, device)| ip(&["-n", space, "link", "set", device, "up"]));
        made.then_some(names)
    }

    /// Cuts the machines off from each other, or joins them again.
    fn link(&self, state: &str) {
        assert!(ip(&["-n", &self.b, "link", "set", "vb", state]));
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in [&self.a, &self.b] {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(args: &[&str]) -> bool {
    let done = Command::new("ip").args(args).output();
    done.is_ok_and(|done| done.status.success())
}

/// A learner whose disk is full ends with the reason, and its checkpoints are whole.
#[test]
fn a_full_disk_ends_the_run_with_the_reason() {
    let _alone = alone();
    let test = "a_full_disk_ends_the_run_with_the_reason";
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
        .arg(&disk);
    if !mount.output().is_ok_and(|done| done.status.success()) {
        skip("root", test, "a small disk takes root (mount)");
        return;
    }
    let _mounted = Mounted(disk.clone());
    let learner = starling(
        folder.path(),
        "said.txt",
        &[
            "train",
            "CartPole-v1",
            "--algo",
            "ppo",
            "--runs",
            "disk/runs",
            "device=cpu",
            "torch_threads=1",
            "steps=10000000",
            "checkpoint.every_steps=2000",
            "checkpoint.keep_last=1000",
        ],
    );
    assert_eq!(learner.end(), 1);
    let said = text(folder.path().join("said.txt"));
    assert!(said.contains("No space left on device"), "{said}");
    let run = only_run(&disk).unwrap();
    let (latest, damaged) = checkpoint::latest(&run.join("checkpoints")).unwrap();
    assert!(latest.step() > 0 && damaged.is_empty(), "{damaged:?}");
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
