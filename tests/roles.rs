//! Evaluators in separate processes, and `starling status`.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use starling::record::{RunFolder, Table, checkpoint};
use starling_testing::{Process, RedisServer, logged, only_run, text, wait_for};

fn starling(folder: &Path, log: &str, args: &[&str]) -> Process {
    Process::run(env!("CARGO_BIN_EXE_starling"), folder, log, args)
}

fn column(run: &Path, name: &str) -> Vec<f64> {
    let table = Table::read(&run.join("eval.csv")).ok();
    table
        .and_then(|table| table.column(name))
        .unwrap_or_default()
}

/// The score of the weights that were kept.
fn best(run: &Path) -> Option<f64> {
    let folder = RunFolder::open(run).unwrap();
    checkpoint::best_with(&folder.best_path(), |_| true)
        .unwrap()?
        .score()
}

const SERIAL: [&str; 9] = [
    "train",
    "CartPole-v1",
    "--preset",
    "none",
    "--quiet",
    "device=cpu",
    "torch_threads=1",
    "eval.every_steps=5000",
    "eval.episodes=4",
];

/// An evaluation has the same result in the learner and in a separate process, and so has training.
#[test]
fn an_evaluator_process_finds_what_the_learner_would() {
    let results = ["learner", "process"].map(|by| {
        let folder = tempfile::tempdir().unwrap();
        let by = format!("eval.by={by}");
        let mut args = SERIAL.to_vec();
        args.extend(["--algo", "ppo", "steps=20000", &by]);
        let run = starling(folder.path(), "said.txt", &args);
        assert_eq!(run.end(), 0, "{}", text(folder.path().join("said.txt")));
        let run = only_run(folder.path()).unwrap();
        let (latest, _) = checkpoint::latest(&run.join("checkpoints")).unwrap();
        let rows: Vec<(u64, f64)> = column(&run, "env_steps")
            .into_iter()
            .map(|step| step as u64)
            .zip(column(&run, "ReturnAverage"))
            .collect();
        if by == "eval.by=process" {
            let highest = rows.iter().map(|(_, mean)| *mean).fold(f64::MIN, f64::max);
            assert_eq!(best(&run), Some(highest));
            assert!(text(run.join("evaluator.txt")).contains("the evaluator ended"));
        }
        (rows, latest.read("learner.safetensors").unwrap())
    });
    let [(here, learned), (there, same)] = results;
    assert!(learned == same, "the evaluator changed what was learned");
    assert!(here.len() == 4 && !there.is_empty());
    // One that came due while the process was busy may have been replaced.
    assert!(
        there.iter().all(|row| here.contains(row)),
        "{here:?} {there:?}"
    );
    assert_eq!(there.last(), here.last());
}

/// A learner whose evaluators are elsewhere, the folder of its run, and its join file.
fn evaluated_elsewhere(path: &Path, address: &str, steps: &str) -> (Process, PathBuf, String) {
    let learner = starling(
        path,
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
            "envs=8",
            "device=cpu",
            "torch_threads=1",
            steps,
            "log_every_steps=5000",
            "eval.every_steps=4000",
            "eval.episodes=2",
            "eval.by=evaluators",
            "--listen",
            address,
        ],
    );
    let run = || only_run(path);
    let join = || {
        run()
            .map(|run| run.join("join.json"))
            .filter(|join| join.exists())
    };
    wait_for("the join file", || join().is_some());
    (
        learner,
        run().unwrap(),
        join().unwrap().display().to_string(),
    )
}

/// What was recorded of the evaluations: each of them once, and the best weights are kept. So many may
/// have arrived after the last round.
fn each_is_recorded_once(run: &Path, late: u64) -> Vec<f64> {
    let (mut steps, means) = (column(run, "env_steps"), column(run, "ReturnAverage"));
    let log = text(run.join("log.txt"));
    let rows = steps.len();
    let more = logged(&log, "evaluated").checked_sub(rows as u64);
    assert!(more.is_some_and(|more| more <= late), "{rows} rows: {log}");
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    assert_eq!(steps.len(), rows, "recorded twice: {steps:?}");
    assert_eq!(
        best(run),
        means.iter().copied().reduce(f64::max),
        "{means:?}"
    );
    steps
}

/// Two evaluators, of which one is killed: training does not wait, every evaluation is recorded once,
/// and the best weights are kept.
fn evaluates_elsewhere(address: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    // It ends when the test says so: `status` below shows a run that runs.
    let (learner, run, join) = evaluated_elsewhere(path, address, "steps=1e9");
    let evaluator = |log: &str| starling(path, log, &["evaluator", "--join", &join]);
    let (killed, stays) = (evaluator("killed.txt"), evaluator("stays.txt"));
    for log in ["killed.txt", "stays.txt"] {
        wait_for("the evaluators", || {
            text(path.join(log)).contains("waiting for weights")
        });
    }
    let actor = starling(
        path,
        "actor.txt",
        &["actor", "--join", &join, "--threads", "1"],
    );
    wait_for("two evaluations", || column(&run, "env_steps").len() >= 2);

    // Meanwhile `status` shows all of them.
    let status = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
        let output = command.arg("status").arg(&run).args(args).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let roles = |shown: &Value, name: &str| {
        let roles = shown["roles"].as_array().unwrap().iter();
        let roles = roles.filter(|role| role["role"] == name);
        roles.cloned().collect::<Vec<_>>()
    };
    // The learner says from time to time who is there.
    let mut shown = Value::Null;
    wait_for("the actor in what `status` shows", || {
        shown = serde_json::from_str(&status(&["--json"])).unwrap();
        assert_eq!(shown["running"], true, "{shown}");
        let actors = roles(&shown, "actor");
        !actors.is_empty() && actors[0]["steps"].as_u64() > Some(0)
    });
    let (actors, evaluators) = (roles(&shown, "actor"), roles(&shown, "evaluator"));
    assert_eq!((actors.len(), evaluators.len()), (1, 2), "{shown}");
    assert_eq!(shown["joining"]["joined"], 1, "{shown}");
    let table = status(&[]);
    assert!(
        table.contains("connected") && table.contains("evaluator"),
        "{table}"
    );
    assert!(
        table.lines().all(|line| line.chars().count() <= 100),
        "{table}"
    );

    killed.kill();
    // What the killed one had claimed is given to the other.
    let evaluated = column(&run, "env_steps").len();
    wait_for("more evaluations", || {
        column(&run, "env_steps").len() > evaluated + 2
    });
    learner.signal("TERM");
    assert_eq!(learner.end(), 130, "{}", text(path.join("learner.txt")));
    assert_eq!(actor.end(), 0, "{}", text(path.join("actor.txt")));
    assert_eq!(stays.end(), 0, "{}", text(path.join("stays.txt")));
    each_is_recorded_once(&run, 1);
    assert!(logged(&text(path.join("stays.txt")), "evaluated") > 0);
    assert!(status(&[]).contains("not running"));

    // A run that ends by itself waits for the last evaluation.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let (learner, run, join) = evaluated_elsewhere(path, address, "steps=20000");
    let evaluator = starling(path, "evaluator.txt", &["evaluator", "--join", &join]);
    let args = ["actor", "--join", &join, "--threads", "1"];
    wait_for("the evaluator", || {
        text(path.join("evaluator.txt")).contains("waiting for weights")
    });
    let actor = starling(path, "actor.txt", &args);
    for (role, log) in [
        (learner, "learner.txt"),
        (actor, "actor.txt"),
        (evaluator, "evaluator.txt"),
    ] {
        assert_eq!(role.end(), 0, "{}", text(path.join(log)));
    }
    let steps = each_is_recorded_once(&run, 0);
    assert!(steps.last() >= Some(&20_000.0), "{steps:?}");
}

#[test]
fn evaluators_join_over_grpc() {
    evaluates_elsewhere("127.0.0.1:0");
}

#[test]
fn evaluators_join_over_redis() {
    let folder = tempfile::tempdir().unwrap();
    if let Some(server) = RedisServer::start("evaluators_join_over_redis", folder.path(), &[]) {
        evaluates_elsewhere(&format!("redis://127.0.0.1:{}", server.port()));
    }
}

/// Without evaluators, training ends normally, and the log says so.
#[test]
fn training_does_not_wait_for_evaluators() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut args = SERIAL.to_vec();
    args.extend([
        "--algo",
        "ppo",
        "steps=20000",
        "threads=1",
        "eval.by=evaluators",
    ]);
    args.extend(["--listen", "127.0.0.1:0"]);
    let learner = starling(path, "learner.txt", &args);
    let join = || only_run(path).map(|run| run.join("join.json"));
    wait_for("the join file", || join().is_some_and(|join| join.exists()));
    let join = join().unwrap().display().to_string();
    let actor = starling(path, "actor.txt", &["actor", "--join", &join]);
    assert_eq!(learner.end(), 0, "{}", text(path.join("learner.txt")));
    assert_eq!(actor.end(), 0);
    let run = only_run(path).unwrap();
    assert!(text(run.join("log.txt")).contains("no evaluator was available for"));
    assert_eq!(column(&run, "env_steps"), [] as [f64; 0]);
}

#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for (args, code, expected) in [
        (vec!["evaluator"], 2, "--join or STARLING_JOIN"),
        (
            vec![
                "train",
                "CartPole-v1",
                "eval.by=evaluators",
                "eval.every_steps=100",
            ],
            2,
            "needs --listen",
        ),
        (
            vec!["train", "CartPole-v1", "eval.by=nobody"],
            2,
            "evaluators",
        ),
        (vec!["status", "nothing"], 2, "nothing"),
    ] {
        let ended = starling(path, "said.txt", &args).end();
        let said = text(path.join("said.txt"));
        assert!(said.contains(expected), "{args:?}: {said}");
        assert_eq!(ended, code, "{args:?}: {said}");
    }
}
