//! Queues: many runs on slots of a machine, killed and continued.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn sweep(file: &Path, out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.arg("sweep").arg(file).arg("--out").arg(out);
    command.args(["--slots", "2"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn write(folder: &Path, text: &str) -> std::path::PathBuf {
    let file = folder.join("sweep.yaml");
    fs::write(&file, text).unwrap();
    file
}

/// Waits until the state has this many lines with this text.
fn wait_for(out: &Path, text: &str, lines: usize, child: &mut Child) {
    let began = Instant::now();
    loop {
        let state = fs::read_to_string(out.join("state.jsonl")).unwrap_or_default();
        let found = state.lines().filter(|line| line.contains(text)).count();
        if found >= lines {
            return;
        }
        assert!(child.try_wait().unwrap().is_none(), "the queue ended early");
        assert!(began.elapsed() < Duration::from_secs(120), "{state}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

const TWELVE: &str = "
base:
  env: CartPole-v1
  algo: dqn
  steps: 6000
  log_every_steps: 500
  stop_at_return: null
  algo.learning_starts_steps: 500
  checkpoint.every_steps: 1000
levels:
  - algo.learning_rate: [0.0001, 0.001]
  - [{name: small, algo.net.hidden: [16]}, {name: large, algo.net.hidden: [64, 64], algo.gamma: 0.98}]
seeds: 1..3
";

/// Twelve runs on two slots, killed twice with SIGKILL, end with the same tables as without.
#[test]
fn a_queue_that_was_killed_twice_ends_with_the_same_tables() {
    let root = tempfile::tempdir().unwrap();
    let file = write(root.path(), TWELVE);
    let (whole, killed) = (root.path().join("whole"), root.path().join("killed"));
    let output = sweep(&file, &whole).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(shown.contains("learning_rate=0.001 large"), "{shown}");

    for started in [3, 7] {
        let mut child = sweep(&file, &killed).spawn().unwrap();
        wait_for(&killed, "\"started\"", started, &mut child);
        // In the middle of a run.
        std::thread::sleep(Duration::from_millis(300));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let output = sweep(&file, &killed).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let state = fs::read_to_string(killed.join("state.jsonl")).unwrap();
    let started = state
        .lines()
        .filter(|line| line.contains("started"))
        .count();
    assert!(started > 12, "nothing was interrupted: {state}");
    for name in ["results.csv", "variants.csv", "best.yaml"] {
        let read = |folder: &Path| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(read(&whole), read(&killed), "{name}");
    }

    // The time of a run counts, also of one that was killed.
    let times = fs::read_to_string(killed.join("times.csv")).unwrap();
    let seconds = times.lines().skip(1).map(|line| {
        let number = line.rsplit_once(',').unwrap().1;
        number.parse::<f64>().unwrap()
    });
    let seconds: Vec<f64> = seconds.collect();
    assert_eq!(seconds.len(), 12, "{times}");
    assert!(seconds.iter().all(|&seconds| seconds > 0.0), "{times}");

    // The best settings are those of a config file.
    let best = killed.join("best.yaml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.args(["train", "--quiet", "steps=1000", "--config"]);
    command
        .arg(&best)
        .arg("--runs")
        .arg(root.path().join("again"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let again = String::from_utf8(output.stdout).unwrap();
    let settings = |file: &Path| -> serde_json::Value {
        let text = fs::read_to_string(file).unwrap();
        starling::settings::from_yaml(&text, "test").unwrap()
    };
    let (best, again) = (
        settings(&best),
        settings(&Path::new(again.trim()).join("config.yaml")),
    );
    for key in [
        "/env/id",
        "/algo/name",
        "/algo/learning_rate",
        "/algo/net/hidden",
    ] {
        assert!(best.pointer(key).is_some(), "{key}: {best}");
        assert_eq!(again.pointer(key), best.pointer(key), "{key}");
    }
    assert_eq!(again["steps"], 1000);

    // Nothing is left to do, and that is quick.
    let before = fs::read_to_string(killed.join("state.jsonl")).unwrap();
    assert!(sweep(&file, &killed).status().unwrap().success());
    assert_eq!(
        fs::read_to_string(killed.join("state.jsonl")).unwrap(),
        before
    );
}

/// The runs of a queue that is killed stop too, with a checkpoint.
#[test]
fn runs_end_with_their_queue() {
    let root = tempfile::tempdir().unwrap();
    let text = "
base:
  env: CartPole-v1
  steps: 1e9
  stop_at_return: null
  log_every_steps: 1000
  checkpoint.every_steps: 0
";
    let file = write(root.path(), text);
    let out = root.path().join("out");
    let mut child = sweep(&file, &out).spawn().unwrap();
    // The files of the run's folder whose names begin with this.
    let files = |start: &str| {
        let runs = fs::read_dir(out.join("runs/CartPole-v1/ppo"));
        let runs = runs.into_iter().flatten().flatten();
        let folders = runs.flat_map(|run| [run.path(), run.path().join("checkpoints")]);
        let entries = folders.flat_map(fs::read_dir).flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with(start)).count()
    };
    let wait = |start: &str| {
        let began = Instant::now();
        while files(start) == 0 {
            let waited = began.elapsed();
            assert!(waited < Duration::from_secs(60), "there is no {start}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait("progress.csv");
    child.kill().unwrap();
    child.wait().unwrap();
    wait("0000");
}

const SEARCH: &str = "
base: {env: CartPole-v1, algo: ppo, steps: 8192, log_every_steps: 1024, stop_at_return: null}
search:
  trials: 6
  by: random
  space:
    algo.learning_rate: {log: [1e-7, 1e-2]}
";

/// What a run of a queue has learned and logged at its end, without times.
fn learned(out: &Path, variant: &str, step: &str) -> (Vec<u8>, Vec<String>) {
    let runs = fs::read_dir(out.join("runs/CartPole-v1/ppo")).unwrap();
    let mut runs = runs.map(|run| run.unwrap().path());
    let name = format!("{}-s1-", variant.replace(' ', "-"));
    let run = runs.find(|run| {
        run.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with(&name)
    });
    let run = run.unwrap();
    let learner = run
        .join("checkpoints")
        .join(step)
        .join("learner.safetensors");
    let progress = fs::read_to_string(run.join("progress.csv")).unwrap();
    let head: Vec<&str> = progress.lines().next().unwrap().split(',').collect();
    let wanted = [
        "Diagnostics/CumSteps",
        "ReturnAverage",
        "losses/policy_loss",
        "losses/value_loss",
    ];
    let columns: Vec<usize> = wanted
        .iter()
        .map(|name| head.iter().position(|column| column == name).unwrap())
        .collect();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let cells: Vec<&str> = columns.iter().map(|column| cells[*column]).collect();
        cells.join(",")
    };
    let rows = progress.lines().map(row).collect();
    (fs::read(learner).unwrap(), rows)
}

/// The best run of three continues from each rung, exactly as if it had not paused; the others stay
/// where they are.
#[test]
fn pruned_runs_stop_at_their_rung_and_the_others_continue_exactly() {
    let root = tempfile::tempdir().unwrap();
    let (pruned, whole) = (root.path().join("pruned"), root.path().join("whole"));
    let file = write(
        root.path(),
        &format!("{SEARCH}prune: {{eta: 3, rungs: [2048]}}"),
    );
    let output = sweep(&file, &pruned).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let results = fs::read_to_string(pruned.join("results.csv")).unwrap();
    let with = |state: &str| -> Vec<&str> {
        let lines = results.lines().filter(|line| line.contains(state));
        lines.map(|line| line.split(',').next().unwrap()).collect()
    };
    let finished = with(",finished,");
    assert!((2..=3).contains(&finished.len()), "{results}");
    assert_eq!(finished.len() + with(",pruned,").len(), 6, "{results}");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        shown.contains("algo.learning_rate: rank correlation"),
        "{shown}"
    );

    let file = write(root.path(), SEARCH);
    let output = sweep(&file, &whole).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for variant in finished {
        let step = "000000008192";
        let (paused, uninterrupted) = (
            learned(&pruned, variant, step),
            learned(&whole, variant, step),
        );
        assert_eq!(paused.1, uninterrupted.1, "{variant}");
        assert!(paused.0 == uninterrupted.0, "{variant}: the weights differ");
    }
}

/// The values of each trial are chosen when it starts, and recorded.
#[test]
fn a_search_by_tpe_records_what_it_chose() {
    let root = tempfile::tempdir().unwrap();
    let text = "
base: {env: CartPole-v1, algo: a2c, steps: 640, log_every_steps: 320, stop_at_return: null}
search:
  trials: 12
  by: tpe
  seed: 3
  space:
    algo.learning_rate: {log: [1e-5, 1e-2]}
    algo.rollout_steps: {integer: [4, 16]}
";
    let file = write(root.path(), text);
    let out = root.path().join("out");
    let output = sweep(&file, &out).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let state = fs::read_to_string(out.join("state.jsonl")).unwrap();
    let events = state
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let chosen: Vec<_> = events.filter(|event| event["event"] == "chosen").collect();
    assert_eq!(chosen.len(), 12, "{state}");
    for event in chosen {
        let rate = event["values"]["algo.learning_rate"].as_f64().unwrap();
        let steps = event["values"]["algo.rollout_steps"].as_f64().unwrap();
        assert!((1e-5..=1e-2).contains(&rate), "{event}");
        assert!(
            (4.0..=16.0).contains(&steps) && steps.fract() == 0.0,
            "{event}"
        );
    }
}

/// The processes of a queue have the cores and the GPUs of their slots.
#[test]
fn runs_stay_on_the_cores_and_gpus_of_their_slots() {
    let root = tempfile::tempdir().unwrap();
    let text = "
base: {env: CartPole-v1, steps: 1e9, log_every_steps: 1000, stop_at_return: null, device: cpu}
seeds: 1..2
";
    let file = write(root.path(), text);
    let out = root.path().join("out");
    let mut command = sweep(&file, &out);
    command.args(["--gpus", "5,7"]);
    let mut queue = command.spawn().unwrap();
    wait_for(&out, "\"started\"", 2, &mut queue);
    let state = fs::read_to_string(out.join("state.jsonl")).unwrap();
    let mut wanted: Vec<String> = state
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|event| {
            event["slot"]
                .as_str()
                .unwrap()
                .split_once(": ")
                .unwrap()
                .1
                .to_owned()
        })
        .collect();
    wanted.sort();
    let began = Instant::now();
    let found = loop {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            let status = read("status");
            let line = |name: &str| {
                let value = status.lines().find_map(|line| line.strip_prefix(name));
                value.unwrap_or_default().trim().to_owned()
            };
            let variables = read("environ");
            let mut variables = variables.split('\0');
            let gpu = variables.find_map(|variable| variable.strip_prefix("CUDA_VISIBLE_DEVICES="));
            if let (true, Some(gpu)) = (line("PPid:") == queue.id().to_string(), gpu) {
                let cores = line("Cpus_allowed_list:");
                let word = if cores.contains([',', '-']) {
                    "cores"
                } else {
                    "core"
                };
                found.push(format!("{word} {cores}, GPU {gpu}"));
            }
        }
        if found.len() == 2 {
            found.sort();
            break found;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{found:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    queue.kill().unwrap();
    queue.wait().unwrap();
    // With one core there is nothing to divide.
    if std::thread::available_parallelism().unwrap().get() >= 2 {
        assert_eq!(found, wanted);
    }
}

/// Every mistake is found before the first run starts.
#[test]
fn mistakes_are_found_before_anything_starts() {
    let refused = |text: &str| {
        let root = tempfile::tempdir().unwrap();
        let file = write(root.path(), text);
        let out = root.path().join("out");
        let output = sweep(&file, &out).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(!out.exists());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let wrong = refused("{base: {env: CartPole-v1}, levels: [{algo.learning_rat: [1, 2]}]}");
    assert!(wrong.contains("did you mean algo.learning_rate"), "{wrong}");
    let wrong = refused("{base: {env: CartPole-v1}, levels: [{algo.gamma: [0.9, 2]}]}");
    assert!(
        wrong.contains("variant 'gamma=2': algo.gamma is 2"),
        "{wrong}"
    );
    let wrong = refused("{base: {env: CartPole-v1}, levles: []}");
    assert!(wrong.contains("levles"), "{wrong}");
    let wrong = refused("{base: {env: CartPole-v1}, seeds: [1, 1]}");
    assert!(wrong.contains("each once"), "{wrong}");
    let wrong = refused(
        "{base: {env: CartPole-v1, steps: 100, log_every_steps: 9}, prune: {rungs: [100]}}",
    );
    assert!(wrong.contains("the last rung"), "{wrong}");
    let wrong = refused("{base: {env: CartPole-v1, log_every_steps: 200}, prune: {rungs: [100]}}");
    assert!(wrong.contains("log_every_steps"), "{wrong}");
}

/// `queue` crosses what the command line names, and another plan in the same folder is refused.
#[test]
fn queues_cross_environments_algorithms_and_settings() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let queue = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
        command.arg("queue").args(words).arg("--out").arg(&out);
        command.output().unwrap()
    };
    let words = [
        "CartPole-v1",
        "Acrobot-v1",
        "--algo",
        "ppo,a2c",
        "--seeds",
        "1,2",
    ];
    let settings = ["steps=2000", "algo.gamma=0.9,0.99"];
    let shown = queue(&[&words[..], &settings, &["--dry-run"]].concat());
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert_eq!(text.lines().count(), 16, "{text}");
    assert!(text.contains("Acrobot-v1 a2c gamma=0.9, seed 2"), "{text}");
    let made = queue(&["CartPole-v1", "steps=2000", "--seeds", "1,2"]);
    assert!(made.status.success(), "{made:?}");
    let refused = queue(&["CartPole-v1", "steps=2000", "--seeds", "1..3"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("another plan"));
}

/// `train --seeds` makes one run per seed with the settings of the line.
#[test]
fn train_takes_several_seeds() {
    let root = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.args([
        "train",
        "CartPole-v1",
        "--seeds",
        "3..4",
        "--jobs",
        "2",
        "steps=2000",
    ]);
    let output = command.arg("--runs").arg(root.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let folder = root.path().join("queues/CartPole-v1-run");
    let results = fs::read_to_string(folder.join("results.csv")).unwrap();
    let seeds: Vec<&str> = results.lines().skip(1).map(|line| &line[..5]).collect();
    assert_eq!(seeds, ["run,3", "run,4"], "{results}");
}
