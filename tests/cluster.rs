//! Learners and actors in separate processes: results equal those of a local run, and a killed process
//! loses no more than what it had not sent.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use starling::record::{Table, checkpoint};
use starling_testing::{Process, RedisServer, logged, only_run, text, wait_for};
use tempfile::TempDir;

fn starling(folder: &Path, log: &str, args: &[&str]) -> Process {
    Process::run(env!("CARGO_BIN_EXE_starling"), folder, log, args)
}

/// One with a limit on open files.
fn starling_limited(folder: &Path, log: &str, files: u32, args: &[&str]) -> Process {
    let mut shell = Command::new("bash");
    let script = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_starling")]);
    shell.args(args);
    Process::start(shell, folder, log)
}

/// Any port of this machine.
const HERE: &str = "127.0.0.1:0";

/// A learner that meets its actors there, and its join file.
fn learner(address: &str, folder: &Path, args: &[&str]) -> (Process, String) {
    let all = listening(address, args);
    joinable(folder, starling(folder, "learner.txt", &all))
}

fn listening<'a>(address: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["train"];
    all.extend(args);
    all.extend(["--listen", address, "--lease-seconds", "1"]);
    all
}

/// A Redis server, and its address. `None` if the machine has none.
fn redis(test: &str, folder: &Path) -> Option<(RedisServer, String)> {
    let server = RedisServer::start(test, folder, &[])?;
    let address = format!("redis://127.0.0.1:{}", server.port());
    Some((server, address))
}

/// A learner, once it listens.
fn joinable(folder: &Path, mut learner: Process) -> (Process, String) {
    let file = || only_run(folder).map(|run| run.join("join.json"));
    wait_for("the join file", || {
        let running = learner.is_running();
        assert!(running, "{}", text(folder.join("learner.txt")));
        file().is_some_and(|file| file.exists())
    });
    (learner, file().unwrap().display().to_string())
}

fn actor(folder: &Path, join: &str, log: &str, threads: &str) -> Process {
    let args = ["actor", "--join", join, "--threads", threads];
    starling(folder, log, &args)
}

/// The newest number of a column of a run that may have logged nothing yet.
fn newest(folder: &Path, column: &str) -> Option<f64> {
    let table = Table::read(&only_run(folder)?.join("progress.csv")).ok()?;
    table.column(column)?.last().copied()
}

/// Steps that a run has logged so far.
fn steps(folder: &Path) -> f64 {
    newest(folder, "Diagnostics/CumSteps").unwrap_or(0.0)
}

fn last(folder: &Path, column: &str) -> f64 {
    newest(folder, column).unwrap()
}

/// The learner's file of the last checkpoint, and what was logged of learning.
fn learned(folder: &Path) -> (Vec<u8>, Vec<Vec<u64>>) {
    let run = only_run(folder).unwrap();
    let (latest, damaged) = checkpoint::latest(&run.join("checkpoints")).unwrap();
    assert!(damaged.is_empty());
    let table = Table::read(&run.join("progress.csv")).unwrap();
    let columns = ["ReturnAverage", "losses/loss", "Diagnostics/CumSteps"];
    let bits = |name: &str| {
        table
            .column(name)
            .unwrap()
            .into_iter()
            .map(f64::to_bits)
            .collect()
    };
    (
        latest.read("learner.safetensors").unwrap(),
        columns.map(bits).to_vec(),
    )
}

const COMMON: [&str; 7] = [
    "--quiet",
    "mode=threads",
    "threads=2",
    "envs=6",
    "device=cpu",
    "torch_threads=1",
    "log_every_steps=1000",
];

fn settings<'a>(algo: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["CartPole-v1", "--preset", "none", "--algo", algo];
    all.extend(COMMON);
    all.extend(more);
    all
}

/// Where the actors are makes no difference, bit for bit: with a thread in each of two processes, with
/// two threads in one, and with one policy for both places.
#[test]
fn a_run_with_actor_processes_is_the_same_run() {
    let ppo = settings("ppo", &["steps=4000", "asynchronous=true", "fixed_lag=1"]);
    let dqn = settings(
        "dqn",
        &[
            "steps=3000",
            "algo.learning_starts_steps=1000",
            "algo.batch_size=16",
        ],
    );
    let central = settings("impala", &["steps=4000"]);
    let r2d2 = settings(
        "r2d2",
        &[
            "steps=3000",
            "algo.learning_starts_steps=500",
            "algo.batch_size=4",
            "algo.net.hidden=[16]",
        ],
    );
    let ngu = settings(
        "ngu",
        &[
            "steps=2000",
            "algo.learning_starts_steps=500",
            "algo.batch_size=4",
            "algo.net.hidden=[16]",
        ],
    );
    let cases = [
        (apex(), 2, vec!["--threads", "1"]),
        (apex(), 1, vec!["--threads", "2", "--central"]),
        (appo(), 2, vec!["--threads", "1"]),
        (ngu, 1, vec!["--threads", "2"]),
        (r2d2, 2, vec!["--threads", "1"]),
        (ppo, 2, vec!["--threads", "1"]),
        (dqn, 1, vec!["--threads", "2"]),
        (central, 1, vec!["--threads", "2", "--central"]),
    ];
    for (settings, processes, how) in cases {
        equals_local(HERE, &settings, processes, &how);
    }
}

/// The same over a Redis server.
#[test]
fn a_run_over_redis_is_the_same_run() {
    let folder = tempfile::tempdir().unwrap();
    let Some((_server, address)) = redis("a_run_over_redis_is_the_same_run", folder.path()) else {
        return;
    };
    let ppo = settings("ppo", &["steps=4000", "asynchronous=true", "fixed_lag=1"]);
    let dqn = settings(
        "dqn",
        &[
            "steps=3000",
            "algo.learning_starts_steps=1000",
            "algo.batch_size=16",
        ],
    );
    let impala = settings("impala", &["steps=4000"]);
    equals_local(&address, &ppo, 2, &["--threads", "1"]);
    equals_local(&address, &dqn, 1, &["--threads", "2"]);
    equals_local(&address, &impala, 1, &["--threads", "2", "--central"]);
    equals_local(&address, &apex(), 1, &["--threads", "2", "--central"]);
    equals_local(&address, &apex(), 2, &["--threads", "1"]);
    equals_local(&address, &appo(), 1, &["--threads", "2"]);
}

/// Ape-X in lockstep: actors with different ε send the priorities of their steps.
fn apex<'a>() -> Vec<&'a str> {
    settings(
        "apex-dqn",
        &[
            "steps=3000",
            "algo.learning_starts_steps=1000",
            "algo.batch_size=16",
            "algo.replay_ratio=1",
            "algo.target_every_updates=10",
        ],
    )
}

/// APPO whose rollouts are always one update old.
fn appo<'a>() -> Vec<&'a str> {
    settings(
        "appo",
        &[
            "steps=4000",
            "asynchronous=true",
            "fixed_lag=1",
            "algo.minibatches=2",
        ],
    )
}

/// Ape-X as it is used: asynchronously, with the learner at its own pace.
#[test]
fn ape_x_inserts_and_learns_asynchronously() {
    let folder = tempfile::tempdir().unwrap();
    let test = "ape_x_inserts_and_learns_asynchronously";
    let redis = redis(test, folder.path());
    let over_redis = redis.as_ref().map(|(_, address)| address.as_str());
    for address in [HERE].into_iter().chain(over_redis) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let given = settings(
            "apex-dqn",
            &[
                "steps=20000",
                "asynchronous=true",
                "algo.learning_starts_steps=1000",
                "algo.batch_size=16",
                "algo.capacity_steps=100000",
            ],
        );
        let (learner, join) = learner(address, path, &given);
        let actors = ["one.txt", "two.txt"].map(|log| actor(path, &join, log, "1"));
        assert_eq!(learner.end(), 0, "{}", text(path.join("learner.txt")));
        for actor in actors {
            assert_eq!(actor.end(), 0);
        }
        assert!(last(path, "Diagnostics/CumUpdates") > 10.0);
        // All steps, but for those of the 6 environments whose return over 3 steps is not complete.
        let inserted = last(path, "Diagnostics/ReplaySize");
        let collected = last(path, "Diagnostics/CumSteps");
        assert!(
            (0.0..=12.0).contains(&(collected - inserted)),
            "{inserted} of {collected}"
        );
    }
}

/// Parcels that a server gets before it is killed.
const PARCELS_PER_KILL: u64 = 200;

/// Parcels that a server got since it was started.
fn parcels(server: &RedisServer) -> u64 {
    let stats = server.ask(&["INFO", "commandstats"]);
    let calls = stats.split_once("cmdstat_xadd:calls=");
    let calls = calls.and_then(|(_, rest)| rest.split_once(',')?.0.parse().ok());
    calls.unwrap_or(0)
}

/// The same while the server is killed again and again and loses all it has.
#[test]
fn a_run_over_a_redis_that_is_killed_is_the_same_run() {
    let folder = tempfile::tempdir().unwrap();
    let test = "a_run_over_a_redis_that_is_killed_is_the_same_run";
    let Some((mut server, address)) = redis(test, folder.path()) else {
        return;
    };
    let given = settings(
        "dqn",
        &[
            "steps=12000",
            "algo.learning_starts_steps=1000",
            "algo.batch_size=16",
        ],
    );
    let done = AtomicBool::new(false);
    let reconnects = std::thread::scope(|scope| {
        scope.spawn(|| {
            // After so many parcels, however long they took: there is progress between two kills.
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                if parcels(&server) >= PARCELS_PER_KILL {
                    server.kill();
                    std::thread::sleep(Duration::from_millis(100));
                    server.start_again();
                }
            }
        });
        let there = std::panic::catch_unwind(|| {
            let there = equals_local(&address, &given, 2, &["--threads", "1"]);
            logged(
                &text(only_run(there.path()).unwrap().join("log.txt")),
                "reconnects",
            )
        });
        done.store(true, Ordering::Relaxed);
        there.unwrap()
    });
    assert!(reconnects > 0, "nothing was disturbed");
}

/// Trains with threads, and with so many actor processes that are started like this, and compares what
/// was learned. Returns the folder of the latter.
fn equals_local(address: &str, settings: &[&str], processes: usize, how: &[&str]) -> TempDir {
    let here = tempfile::tempdir().unwrap();
    let mut args = vec!["train"];
    args.extend(settings);
    if how.contains(&"--central") {
        // The order of episodes that end in one round follows the threads that step.
        args.push("mode=central");
    }
    assert_eq!(starling(here.path(), "local.txt", &args).end(), 0);
    let there = tempfile::tempdir().unwrap();
    let (learner, join) = learner(address, there.path(), settings);
    let start = |i| {
        let mut args = vec!["actor", "--join", &join];
        args.extend(how);
        starling(there.path(), &format!("actor{i}.txt"), &args)
    };
    let actors: Vec<Process> = (0..processes).map(start).collect();
    assert_eq!(
        learner.end(),
        0,
        "{}",
        text(there.path().join("learner.txt"))
    );
    for actor in actors {
        assert_eq!(actor.end(), 0);
    }
    assert!(
        learned(here.path()) == learned(there.path()),
        "{settings:?}"
    );
    there
}

/// Steps that may be on their way when a run ends: two parcels of each place in the learner's queue,
/// and one of each that came before its turn.
const ON_THE_WAY: u64 = 3;

/// One actor is killed, another told to stop, and a spare takes each place. Every step that the
/// learner counts came in one parcel that was taken once.
#[test]
fn actors_are_killed_and_replaced() {
    replaces_killed_actors(HERE);
}

#[test]
fn actors_are_killed_and_replaced_over_redis() {
    let folder = tempfile::tempdir().unwrap();
    let test = "actors_are_killed_and_replaced_over_redis";
    if let Some((_server, address)) = redis(test, folder.path()) {
        replaces_killed_actors(&address);
    }
}

fn replaces_killed_actors(address: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let given = settings(
        "dqn",
        &[
            "steps=1e9",
            "asynchronous=true",
            "algo.learning_starts_steps=1000",
            "algo.batch_size=16",
            "algo.capacity_steps=20000000",
        ],
    );
    let (learner, join) = learner(address, path, &given);
    let killed = actor(path, &join, "killed.txt", "1");
    let stopped = actor(path, &join, "stopped.txt", "1");
    wait_for("the first steps", || steps(path) >= 3_000.0);
    let spares = actor(path, &join, "spares.txt", "2");
    wait_for("the spares", || {
        text(path.join("spares.txt")).matches("spare").count() == 2
    });
    killed.kill();
    stopped.signal("TERM");
    assert_eq!(stopped.end(), 130);
    // Only then the run ends.
    wait_for("the spares to have both places", || {
        text(path.join("spares.txt")).matches("has place").count() == 2
            && newest(path, "Diagnostics/ActorLosses") == Some(1.0)
            && newest(path, "Diagnostics/Actors") == Some(2.0)
    });
    learner.signal("TERM");
    assert_eq!(learner.end(), 130, "{}", text(path.join("learner.txt")));
    assert_eq!(spares.end(), 0);

    let run = only_run(path).unwrap();
    let log = text(run.join("log.txt"));
    let [joined, left, lost, parcels, taken] =
        ["joined", "left", "lost", "parcels", "steps"].map(|name| logged(&log, name));
    assert_eq!((joined, left, lost), (4, 1, 1), "{log}");
    // Nothing was used twice, and nothing that was taken is lost but what the end of the run left.
    let (newest, _) = checkpoint::latest(&run.join("checkpoints")).unwrap();
    let used = newest.step();
    let each = taken / parcels;
    assert_eq!(taken, parcels * each);
    assert!(
        used <= taken && taken - used <= 2 * ON_THE_WAY * each,
        "{used} of {taken}"
    );
    assert_eq!(
        last(path, "Diagnostics/ReplaySize"),
        last(path, "Diagnostics/CumSteps")
    );
    // A living actor loses nothing: what it made was acknowledged, but for its window at the end.
    for (name, window) in [("stopped.txt", 2), ("spares.txt", 4)] {
        let actor = text(path.join(name));
        let (made, known) = (logged(&actor, "made"), logged(&actor, "acknowledged"));
        assert!(known <= made && made - known <= window, "{actor}");
    }
}

/// The learner is killed and resumed: the same actor process continues with the new one, and what was
/// collected for the old one is not used.
#[test]
fn the_learner_is_killed_and_resumed() {
    resumes_killed_learner(HERE);
}

#[test]
fn the_learner_is_killed_and_resumed_over_redis() {
    let folder = tempfile::tempdir().unwrap();
    let test = "the_learner_is_killed_and_resumed_over_redis";
    if let Some((_server, address)) = redis(test, folder.path()) {
        resumes_killed_learner(&address);
    }
}

fn resumes_killed_learner(address: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let given = settings(
        "impala",
        &[
            "steps=1e9",
            "asynchronous=true",
            "checkpoint.every_steps=2000",
        ],
    );
    let (first, join) = learner(address, path, &given);
    let actors = actor(path, &join, "actors.txt", "2");
    let run = only_run(path).unwrap();
    wait_for("a checkpoint", || {
        steps(path) >= 5_000.0 && checkpoint::latest(&run.join("checkpoints")).is_ok()
    });
    first.kill();
    let (latest, _) = checkpoint::latest(&run.join("checkpoints")).unwrap();
    let (from, name) = (latest.step(), run.display().to_string());
    let args = ["resume", &name, "--quiet", "--listen", address];
    let second = starling(path, "learner.txt", &args);
    // Only when both threads of the actors have a place again, the run ends.
    wait_for("the actors to have places of both learners", || {
        text(path.join("actors.txt")).matches("has place").count() == 4
    });
    second.signal("TERM");
    assert_eq!(second.end(), 130, "{}", text(path.join("learner.txt")));
    assert_eq!(actors.end(), 0, "{}", text(path.join("actors.txt")));

    let log = text(run.join("log.txt"));
    assert_eq!(
        (logged(&log, "joined"), logged(&log, "lost")),
        (2, 0),
        "{log}"
    );
    let (parcels, taken) = (logged(&log, "parcels"), logged(&log, "steps"));
    let (newest, _) = checkpoint::latest(&run.join("checkpoints")).unwrap();
    let used = newest.step() - from;
    let each = taken / parcels;
    assert!(
        used <= taken && taken - used <= 2 * ON_THE_WAY * each,
        "{used} of {taken}"
    );
}

/// Asynchronously, with actors in processes of their own, CartPole is learned.
#[test]
fn cart_pole_is_learned() {
    learns_cart_pole(HERE);
}

#[test]
fn cart_pole_is_learned_over_redis() {
    let folder = tempfile::tempdir().unwrap();
    if let Some((_server, address)) = redis("cart_pole_is_learned_over_redis", folder.path()) {
        learns_cart_pole(&address);
    }
}

fn learns_cart_pole(address: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let given = [
        "CartPole-v1",
        "--algo",
        "ppo",
        "--quiet",
        "threads=2",
        "device=cpu",
        "stop_at_return=400",
    ];
    let (learner, join) = learner(address, path, &given);
    let actors = [
        actor(path, &join, "one.txt", "1"),
        actor(path, &join, "two.txt", "1"),
    ];
    assert_eq!(learner.end(), 0, "{}", text(path.join("learner.txt")));
    for actor in actors {
        assert_eq!(actor.end(), 0);
    }
    let log = text(only_run(path).unwrap().join("log.txt"));
    assert!(log.contains("Solved"), "{log}");
}

/// A learner that cannot open another file because unauthenticated clients connect neither ends nor spins, and serves
/// its actors when they are gone.
#[test]
fn too_many_connections_are_survived() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let given = settings("ppo", &["steps=4000"]);
    let learner = starling_limited(path, "learner.txt", 64, &listening(HERE, &given));
    let (learner, join) = joinable(path, learner);
    let address: serde_json::Value = serde_json::from_str(&text(&join)).unwrap();
    let address = address["address"].as_str().unwrap().to_owned();
    let clients: Vec<_> = (0..100)
        .map(|_| std::net::TcpStream::connect(&address).unwrap())
        .collect();
    let log = || text(only_run(path).unwrap().join("log.txt"));
    wait_for("the learner to notice", || {
        log().contains("Too many open files")
    });
    drop(clients);
    let actors = actor(path, &join, "actors.txt", "2");
    assert_eq!(learner.end(), 0, "{}", text(path.join("learner.txt")));
    assert_eq!(actors.end(), 0);
    assert!(
        log().matches("Too many open files").count() < 10,
        "{}",
        log()
    );
}

/// What a user does wrong is said in a sentence.
#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for (args, code, expected) in [
        (vec!["actor"], 2, "--join or STARLING_JOIN"),
        (vec!["actor", "--join", "no.json"], 1, "cannot read no.json"),
        (
            vec!["train", "CartPole-v1", "--listen", "nowhere"],
            1,
            "cannot listen at nowhere",
        ),
        (vec!["train", "CartPole-v1", "--insecure"], 2, "--listen"),
        (
            vec!["train", "CartPole-v1", "--listen", "redis://127.0.0.1:1"],
            1,
            "cannot listen at redis://127.0.0.1:1",
        ),
        (
            vec!["train", "CartPole-v1", "--listen", "redis://10.0.0.5"],
            2,
            "use rediss://, or --insecure",
        ),
        (
            vec![
                "train",
                "CartPole-v1",
                "--listen",
                "redis://:secret@127.0.0.1",
            ],
            1,
            "STARLING_REDIS_PASSWORD",
        ),
    ] {
        let ended = starling(path, "said.txt", &args).end();
        let said = text(path.join("said.txt"));
        assert!(said.contains(expected), "{args:?}: {said}");
        assert_eq!(ended, code, "{args:?}: {said}");
    }
    // The content of a join file is a secret, so it is not an argument.
    let mut actor = Command::new(env!("CARGO_BIN_EXE_starling"));
    actor.arg("actor").env("STARLING_JOIN", "{\"address\"");
    let said = actor.output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("the join file is damaged"), "{said}");
}
