//! Learners and actors in processes of their own: what is learned is the same, and processes that are
//! killed cost no more than what they had not sent.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use starling::record::{Table, checkpoint};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A process that does not outlive its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(folder: &Path, log: &str, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
        command.current_dir(folder).stdin(Stdio::null());
        let log = File::create(folder.join(log)).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        Self(command.args(args).spawn().unwrap())
    }

    /// Its exit code.
    fn end(mut self) -> i32 {
        wait_for("a process to end", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap().code().unwrap()
    }

    /// As `kill -9` does.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn signal(&self, name: &str) {
        let mut command = Command::new("kill");
        command.args(["-s", name, &self.0.id().to_string()]);
        assert!(command.status().unwrap().success());
    }
}

fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < LONG, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The folder of the only run there is.
fn only_run(folder: &Path) -> Option<PathBuf> {
    let mut path = folder.join("runs");
    for _ in 0..3 {
        path = std::fs::read_dir(&path).ok()?.next()?.ok()?.path();
    }
    Some(path)
}

/// A learner that listens, and its join file.
fn learner(folder: &Path, args: &[&str]) -> (Process, String) {
    let mut all = vec!["train"];
    all.extend(args);
    all.extend(["--listen", "127.0.0.1:0", "--lease-seconds", "1"]);
    let mut learner = Process::start(folder, "learner.txt", &all);
    let file = || only_run(folder).map(|run| run.join("join.json"));
    wait_for("the join file", || {
        let ended = learner.0.try_wait().unwrap();
        assert!(ended.is_none(), "{}", text(folder.join("learner.txt")));
        file().is_some_and(|file| file.exists())
    });
    (learner, file().unwrap().display().to_string())
}

fn actor(folder: &Path, join: &str, log: &str, threads: &str) -> Process {
    let args = ["actor", "--join", join, "--threads", threads];
    Process::start(folder, log, &args)
}

fn text(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// A number that a process logged as `name: 7` last.
fn logged(text: &str, name: &str) -> u64 {
    let from = text
        .rfind(&format!("{name}: "))
        .unwrap_or_else(|| panic!("no {name} in {text}"));
    let digits = text[from + name.len() + 2..].chars();
    let digits: String = digits.take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Steps that a run has logged so far.
fn steps(folder: &Path) -> f64 {
    let table = only_run(folder).map(|run| Table::read(&run.join("progress.csv")));
    let table = table.and_then(Result::ok);
    let column = table.and_then(|table| table.column("Diagnostics/CumSteps"));
    column
        .and_then(|column| column.last().copied())
        .unwrap_or(0.0)
}

fn last(folder: &Path, column: &str) -> f64 {
    let table = Table::read(&only_run(folder).unwrap().join("progress.csv")).unwrap();
    *table.column(column).unwrap().last().unwrap()
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
        (ngu, 1, vec!["--threads", "2"]),
        (r2d2, 2, vec!["--threads", "1"]),
        (ppo, 2, vec!["--threads", "1"]),
        (dqn, 1, vec!["--threads", "2"]),
        (central, 1, vec!["--threads", "2", "--central"]),
    ];
    for (settings, processes, how) in cases {
        let here = tempfile::tempdir().unwrap();
        let mut args = vec!["train"];
        args.extend(&settings);
        if how.contains(&"--central") {
            // The order of episodes that end in one round follows the threads that step.
            args.push("mode=central");
        }
        assert_eq!(Process::start(here.path(), "local.txt", &args).end(), 0);
        let there = tempfile::tempdir().unwrap();
        let (learner, join) = learner(there.path(), &settings);
        let start = |i| {
            let mut args = vec!["actor", "--join", &join];
            args.extend(&how);
            Process::start(there.path(), &format!("actor{i}.txt"), &args)
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
    }
}

/// Steps that may be on their way when a run ends: two parcels of each place in the learner's queue,
/// and one of each that came before its turn.
const ON_THE_WAY: u64 = 3;

/// One actor is killed, another told to stop, and a spare takes each place. Every step that the
/// learner counts came in one parcel that was taken once.
#[test]
fn actors_are_killed_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let given = settings(
        "dqn",
        &[
            "steps=60000",
            "asynchronous=true",
            "algo.learning_starts_steps=1000",
            "algo.batch_size=16",
            "algo.capacity_steps=200000",
        ],
    );
    let (learner, join) = learner(path, &given);
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
    assert_eq!(learner.end(), 0, "{}", text(path.join("learner.txt")));
    assert_eq!(spares.end(), 0);

    let log = text(only_run(path).unwrap().join("log.txt"));
    let [joined, left, lost, parcels, taken] =
        ["joined", "left", "lost", "parcels", "steps"].map(|name| logged(&log, name));
    assert_eq!((joined, left, lost), (4, 1, 1), "{log}");
    assert_eq!(last(path, "Diagnostics/ActorLosses"), 1.0);
    assert_eq!(last(path, "Diagnostics/Actors"), 2.0);
    // Nothing was used twice, and nothing that was taken is lost but what the end of the run left.
    let used = last(path, "Diagnostics/CumSteps") as u64;
    let each = taken / parcels;
    assert_eq!(taken, parcels * each);
    assert!(
        used <= taken && taken - used <= 2 * ON_THE_WAY * each,
        "{used} of {taken}"
    );
    assert_eq!(last(path, "Diagnostics/ReplaySize") as u64, used);
    // A living actor loses nothing: what it made was acknowledged, but for its window at the end.
    for (name, window) in [("stopped.txt", 2), ("spares.txt", 4)] {
        let actor = text(path.join(name));
        let (made, known) = (logged(&actor, "made"), logged(&actor, "acknowledged"));
        assert!(known <= made && made - known <= window, "{actor}");
    }
}

/// The learner is killed and resumed: the same actor process goes on with the new one, and what was
/// collected for the old one is not used.
#[test]
fn the_learner_is_killed_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let given = settings(
        "impala",
        &[
            "steps=60000",
            "asynchronous=true",
            "checkpoint.every_steps=2000",
        ],
    );
    let (first, join) = learner(path, &given);
    let actors = actor(path, &join, "actors.txt", "2");
    let run = only_run(path).unwrap();
    wait_for("a checkpoint", || {
        steps(path) >= 5_000.0 && checkpoint::latest(&run.join("checkpoints")).is_ok()
    });
    first.kill();
    let (latest, _) = checkpoint::latest(&run.join("checkpoints")).unwrap();
    let (from, name) = (latest.step(), run.display().to_string());
    let args = ["resume", &name, "--quiet", "--listen", "127.0.0.1:0"];
    let second = Process::start(path, "learner.txt", &args);
    assert_eq!(second.end(), 0, "{}", text(path.join("learner.txt")));
    assert_eq!(actors.end(), 0, "{}", text(path.join("actors.txt")));

    let log = text(run.join("log.txt"));
    assert_eq!(
        (logged(&log, "joined"), logged(&log, "lost")),
        (2, 0),
        "{log}"
    );
    let (parcels, taken) = (logged(&log, "parcels"), logged(&log, "steps"));
    let used = last(path, "Diagnostics/CumSteps") as u64 - from;
    let each = taken / parcels;
    assert!(
        used <= taken && taken - used <= 2 * ON_THE_WAY * each,
        "{used} of {taken}"
    );
    let places = text(path.join("actors.txt")).matches("has place").count();
    assert_eq!(places, 4);
}

/// At a free pace, with actors in processes of their own, CartPole is learned.
#[test]
fn cart_pole_is_learned() {
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
    let (learner, join) = learner(path, &given);
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
    ] {
        let ended = Process::start(path, "said.txt", &args).end();
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
