//! `starling dashboard` in a real browser, with a thousand runs and one that is being made.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Ends a process when the test does, however it ends.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn starling() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// A program whose speed is measured: before all others of this machine, if the system allows it (it
/// does for root). Else it runs as they do.
fn first(program: &str) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "-15", program]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// A run with a curve that rises to `level`. Not through `RunFolder::create`, which waits for the disk.
fn make_run(root: &Path, env: &str, algo: &str, rate: f64, seed: u64, level: f64) {
    let folder = format!("{env}/{algo}/rate{rate}-s{seed}-20261115T082500Z");
    let folder = root.join(folder);
    fs::create_dir_all(&folder).unwrap();
    let settings = format!(
        "env: {{id: {env}}}\nalgo: {{name: {algo}, learning_rate: {rate}}}\nseed: {seed}\nsteps: 100000\n"
    );
    fs::write(folder.join("config.yaml"), settings).unwrap();
    let mut text = "env_steps,Diagnostics/CumTime (s),Diagnostics/CumCompletedTrajs,\
                    Diagnostics/StepsPerSecond,ReturnAverage\n"
        .to_owned();
    for i in 1..=200_u64 {
        let wave = ((i * 7 + seed * 13) % 23) as f64 / 23.0 - 0.5;
        let value = level * (1.0 - (-(i as f64) / 60.0).exp()) + wave * level * 0.2;
        let (steps, time) = (i * 500, i as f64 * 0.7);
        text += &format!("{steps},{time},{},{:.1},{value:.3}\n", i * 3, 700.0 + wave);
    }
    fs::write(folder.join("progress.csv"), text).unwrap();
}

fn make_queue(root: &Path) {
    let folder = root.join("queues/sweep");
    fs::create_dir_all(&folder).unwrap();
    let plan = r#"{"variants": [{"name": "low"}, {"name": "high"}], "seeds": [1, 2]}"#;
    fs::write(folder.join("queue.json"), plan).unwrap();
    let state = r#"{"variant":0,"seed":1,"event":"started","seconds":0.0,"slot":"slot 1: core 0"}
{"variant":0,"seed":1,"event":"finished","score":195.0,"seconds":12.5}
{"variant":0,"seed":2,"event":"started","seconds":0.0,"slot":"slot 1: core 0"}
"#;
    fs::write(folder.join("state.jsonl"), state).unwrap();
    fs::write(folder.join("queue.lock"), "").unwrap();
}

/// 20 environments, algorithms and learning rates with 50 seeds each.
fn make_runs(root: &Path) {
    for (i, env) in ["Walker2d-v5", "Hopper-v5", "Ant-v5"].iter().enumerate() {
        let algos: &[&str] = if i == 0 {
            &["sac", "ppo", "td3", "ddpg", "a2c"]
        } else {
            &["sac", "ppo"]
        };
        for (j, algo) in algos.iter().enumerate() {
            for rate in [1e-4, 1e-3] {
                for seed in 1..=50 {
                    let level = 400.0 + 100.0 * (i + j) as f64 + rate * 2e5;
                    make_run(root, env, algo, rate, seed, level);
                }
            }
        }
    }
    for seed in 1..=100 {
        make_run(root, "Pong", "dqn", 1e-4, seed, 20.0);
    }
}

fn target() -> PathBuf {
    // target/release/starling
    let program = Path::new(env!("CARGO_BIN_EXE_starling"));
    program.parent().unwrap().parent().unwrap().to_owned()
}

/// Waits until something is there.
fn wait_for<T>(otherwise: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{otherwise}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The answer to a request: status, headers and body as one text.
fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request =
        format!("{request}\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_run_shows_itself_and_takes_wishes() {
    let folder = tempfile::tempdir().unwrap();
    let mut training = starling();
    training
        .args(["train", "CartPole-v1", "--steps", "1e9", "--quiet"])
        .args(["stop_at_return=null", "checkpoint.every_steps=1000000000"])
        .args(["--dashboard", "--runs"])
        .arg(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut training = Started(training.spawn().unwrap());
    let lines = BufReader::new(training.0.stderr.take().unwrap()).lines();
    let line = lines
        .map_while(Result::ok)
        .find(|line| line.contains("dashboard"));
    let line = line.unwrap();
    // dashboard: http://127.0.0.1:PORT/?token=TOKEN#/run/ID
    let (address, rest) = line
        .split_once("http://")
        .unwrap()
        .1
        .split_once('/')
        .unwrap();
    let (query, id) = rest.split_once("#/run/").unwrap();
    let page = ask(address, &format!("GET /{query} HTTP/1.1"));
    let cookie = page.split("set-cookie: ").nth(1).unwrap();
    let cookie = cookie.split(';').next().unwrap();
    let get = |path: &str| ask(address, &format!("GET {path} HTTP/1.1\r\nCookie: {cookie}"));
    let body = |answer: String| -> Value {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        serde_json::from_str(body).unwrap()
    };
    let session = body(get("/api/session"));
    let token = session["token"].as_str().unwrap();
    let post = |what: &str| {
        let path = format!("/api/runs/{id}/{what}");
        let head = format!("POST {path} HTTP/1.1\r\nCookie: {cookie}\r\nX-Starling-Token: {token}");
        ask(address, &head)
    };
    // What it says about itself.
    let live = wait_for("the run says nothing about itself", || {
        let live = body(get(&format!("/api/runs/{id}/live")));
        (live["profile"].as_array()?.len() > 1).then_some(live)
    });
    assert_eq!(live["process"], training.0.id());
    assert!(
        live["memory_bytes"].as_u64().unwrap() > 10_000_000,
        "{live}"
    );
    assert_eq!(live["roles"][0]["role"], "learner");
    // Checkpoints on request; the run continues after each.
    let checkpoints = || body(get(&format!("/api/runs/{id}/checkpoints")));
    assert_eq!(checkpoints().as_array().unwrap().len(), 0);
    let mut newest = 0;
    for _ in 0..2 {
        let answer = post("checkpoint");
        assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
        newest = wait_for("no checkpoint is written", || {
            let all = checkpoints();
            let step = all.as_array()?.last()?["step"].as_u64()?;
            (step > newest).then_some(step)
        });
    }
    let answer = post("stop");
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    assert_eq!(training.0.wait().unwrap().code(), Some(130));
}

#[test]
fn the_dashboard_works_in_a_browser() {
    let name = "the_dashboard_works_in_a_browser";
    let library = target().join("test-browser");
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !library.join("node_modules/playwright-core").is_dir() || !has("node") || !has("chromium") {
        let why = "chromium, node or playwright-core is missing (scripts/install_browser.sh)";
        return starling_testing::skip("chromium", name, why);
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("runs");
    make_runs(&root);
    make_queue(&root);
    let mut queue = starling();
    queue
        .args(["queue", "CartPole-v1", "--seeds", "1,2", "--slots", "1"])
        .args(["steps=4096", "stop_at_return=null", "--out"])
        .arg(root.join("queues/tiny"));
    assert!(queue.stdout(Stdio::null()).status().unwrap().success());
    let mut training = starling();
    training.args([
        "train",
        "CartPole-v1",
        "--steps",
        "1e9",
        "--name",
        "live",
        "--quiet",
        "--listen",
        "127.0.0.1:0",
    ]);
    training.args([
        "stop_at_return=null",
        "log_every_steps=2000",
        "threads=1",
        "--runs",
    ]);
    let mut training = Started(training.arg(&root).stdout(Stdio::null()).spawn().unwrap());
    let live = wait_for("the run does not begin", || {
        let runs = starling::record::find_runs(&[root.join("CartPole-v1")]).ok()?;
        runs[0].join("join.json").exists().then(|| runs[0].clone())
    });
    let mut actor = starling();
    actor.args(["actor", "--threads", "1", "--join"]);
    actor.arg(live.join("join.json"));
    let _actor = Started(actor.stdout(Stdio::null()).spawn().unwrap());
    wait_for("nothing is learned", || {
        live.join("progress.csv").exists().then_some(())
    });
    let mut dashboard = first(env!("CARGO_BIN_EXE_starling"));
    dashboard
        .args(["dashboard", "runs"])
        .current_dir(folder.path())
        .stdout(Stdio::piped());
    let mut dashboard = Started(dashboard.spawn().unwrap());
    let output = BufReader::new(dashboard.0.stdout.take().unwrap());
    let address = output.lines().next().unwrap().unwrap();
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
    let pictures = library.join("pictures");
    fs::create_dir_all(&pictures).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/browser/dashboard.mjs");
    let mut browser = first("node");
    browser
        .arg(script)
        .arg(&address)
        .arg(&library)
        .arg(&pictures)
        .arg(&root)
        // A thousand, the two of the queue and the one that is being made.
        .arg("1003");
    let output = browser.stderr(Stdio::piped()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let measured: Value = serde_json::from_slice(&output.stdout).unwrap();
    fs::write(library.join("measured.json"), measured.to_string()).unwrap();
    // Other programs of this machine can only make it slower: the best of the attempts counts.
    let attempts = |name: &str| measured[name].as_array().unwrap().clone();
    let loads = attempts("load_ms");
    assert!(
        loads.iter().any(|load| load.as_f64().unwrap() < 2000.0),
        "{measured}"
    );
    let fluid = |scroll: &Value| {
        let number = |key: &str| scroll[key].as_f64().unwrap();
        // Sixty frames per second leave 16.7 ms for each.
        number("cpu_ms_per_frame") < 1000.0 / 60.0 && number("fps") > 55.0
    };
    assert!(attempts("scroll").iter().any(fluid), "{measured}");
    // The run ended by the signal, with a checkpoint.
    assert_eq!(training.0.wait().unwrap().code(), Some(130));
    let log = fs::read_to_string(live.join("log.txt")).unwrap();
    assert!(log.contains("the run ended reason=Interrupted"), "{log}");
    assert!(live.join("checkpoints/best").exists());
}
