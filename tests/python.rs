//! Environments in Python as a user meets them: training, evaluating and showing with a file of one's
//! own and with those of other packages, and what happens when they go wrong.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use starling_testing::{Process, only_run, signal, text, wait_for};

/// A Python that has gymnasium. `STARLING_TEST_PYTHON` names it; without it, `python3`. If it lacks
/// gymnasium, the test is skipped.
fn python(test: &str) -> Option<PathBuf> {
    let python = std::env::var_os("STARLING_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    match starling::python::interpreter::about(Path::new(&python)) {
        Ok(about) if about.gymnasium.is_some() => Some(python.into()),
        Ok(_) => {
            starling_testing::skip("gymnasium", test, "this Python has no gymnasium");
            None
        }
        Err(problem) => {
            starling_testing::skip("gymnasium", test, &problem);
            None
        }
    }
}

/// A folder with a file of environments.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("field.py"), FIELD).unwrap();
    folder
}

const FIELD: &str = r#"
import os, sys, time
import gymnasium as gym
import numpy as np

class Field(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, size=5, trouble=None, render_mode=None):
        self.size, self.trouble, self.render_mode, self.steps = size, trouble, render_mode, 0
        self.observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(4)

    def see(self):
        return (self.place / self.size).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.integers(0, self.size - 1, 2)
        if self.trouble == "print":
            print("a new episode begins")
        return self.see(), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 300:
            if self.trouble == "raise":
                raise ValueError("the wheel came off")
            elif self.trouble == "exit":
                os._exit(7)
            elif self.trouble == "hang":
                self.tell()
                time.sleep(1000)
            elif self.trouble == "tell":
                self.tell()
            elif self.trouble == "nan":
                return self.see() * np.nan, 0.0, False, False, {}
            elif self.trouble == "shape":
                return np.zeros(3, np.float32), 0.0, False, False, {}
        moves = [(0, 1), (1, 0), (0, -1), (-1, 0)]
        self.place = np.clip(self.place + moves[action], 0, self.size - 1)
        done = bool((self.place == self.size - 1).all())
        return self.see(), 1.0 if done else -0.05, done, False, {}

    def tell(self):
        own = f"pid-{os.getpid()}"
        with open(own, "w") as file:
            file.write(str(os.getpid()))
        os.replace(own, "pid")

    def render(self):
        picture = np.zeros((60, 60, 3), np.uint8)
        y, x = self.place * 60 // self.size
        picture[y : y + 10, x : x + 10] = (255, 128, 0)
        return picture

def small():
    return gym.wrappers.TimeLimit(Field(4), 25)
"#;

fn starling(python: &Path, folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.current_dir(folder).stdin(Stdio::null()).args(args);
    command.env("STARLING_PYTHON", python);
    command
}

fn run(python: &Path, folder: &Path, args: &[&str]) -> Output {
    starling(python, folder, args).output().unwrap()
}

fn good(python: &Path, folder: &Path, args: &[&str]) -> String {
    let output = run(python, folder, args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What `--quiet` prints: the folder of the run.
fn train(python: &Path, folder: &Path, args: &[&str]) -> PathBuf {
    let said = good(python, folder, &[&["train", "--quiet"], args].concat());
    folder.join(said.trim())
}

fn mean_return(python: &Path, folder: &Path, run: &Path) -> f64 {
    let run = run.to_str().unwrap();
    let said = good(python, folder, &["eval", run, "--episodes", "20", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    report["return_mean"].as_f64().unwrap()
}

#[test]
fn a_file_of_ones_own_is_learned_evaluated_and_shown() {
    let Some(python) = python("a_file_of_ones_own_is_learned_evaluated_and_shown") else {
        return;
    };
    let folder = folder();
    let folder = folder.path();
    // 0.72 is the mean of the shortest ways; random steps take about 50.
    for (id, algo, steps) in [
        ("python:./field.py:Field", "ppo", "20000"),
        ("python:field:small", "dqn", "12000"),
    ] {
        let mut args = vec![id, "--algo", algo, "--steps", steps];
        match algo {
            "ppo" => args.extend(["env.max_episode_steps=50", "env.kwargs={size: 5}"]),
            _ => args.extend([
                "algo.learning_starts_steps=1000",
                "algo.epsilon_decay_steps=4000",
            ]),
        }
        let run = train(&python, folder, &args);
        let mean = mean_return(&python, folder, &run);
        assert!(mean > 0.6, "{id} {algo}: {mean}");
        let (run, film) = (run.to_str().unwrap(), format!("{algo}.gif"));
        good(
            &python,
            folder,
            &["eval", run, "--episodes", "2", "--video", &film],
        );
        good(&python, folder, &["play", run, "--quiet", "--gif", &film]);
        assert!(
            std::fs::read(folder.join(film))
                .unwrap()
                .starts_with(b"GIF89a")
        );
    }
    good(
        &python,
        folder,
        &["play", "python:./field.py:Field", "--quiet"],
    );
    assert!(folder.join("python-field.py-Field.gif").is_file());
    let said = good(
        &python,
        folder,
        &["check-env", "python:./field.py:Field", "--steps", "2000"],
    );
    assert!(said.contains("nothing is wrong"), "{said}");
}

/// LunarLander needs Box2D; MiniGrid has observations with parts.
#[test]
fn other_packages_train_with_both_kinds_of_algorithms_in_every_mode() {
    let name = "other_packages_train_with_both_kinds_of_algorithms_in_every_mode";
    let Some(python) = python(name) else {
        return;
    };
    let folder = folder();
    let folder = folder.path();
    for (args, mode) in [
        (&["gym:LunarLander-v3"][..], "serial"),
        (
            &[
                "gym:LunarLander-v3",
                "--algo",
                "dqn",
                "algo.learning_starts_steps=500",
            ],
            "threads",
        ),
        (
            &[
                "gym:minigrid:MiniGrid-Empty-5x5-v0",
                "env.leave_out=[mission]",
            ],
            "central",
        ),
        (
            &[
                "gym:minigrid:MiniGrid-Empty-5x5-v0",
                "env.leave_out=[mission]",
                "--algo",
                "dqn",
                "algo.learning_starts_steps=500",
            ],
            "serial",
        ),
    ] {
        let (mode_given, threads) = (format!("mode={mode}"), "threads=2");
        let mut args = args.to_vec();
        args.extend([
            "--steps",
            "2048",
            "envs=4",
            "log_every_steps=512",
            &mode_given,
        ]);
        if mode != "serial" {
            args.push(threads);
        }
        let run = train(&python, folder, &args);
        let table = starling::record::Table::read(&run.join("progress.csv")).unwrap();
        let updates = table.column("Diagnostics/CumUpdates").unwrap();
        assert!(*updates.last().unwrap() > 0.0, "{args:?}");
    }
}

#[test]
fn runs_repeat_and_resume_with_new_episodes() {
    let Some(python) = python("runs_repeat_and_resume_with_new_episodes") else {
        return;
    };
    let folder = folder();
    let folder = folder.path();
    let few = [
        "python:./field.py:Field",
        "env.max_episode_steps=50",
        "log_every_steps=1024",
    ];
    let returns = |run: &Path| {
        let table = starling::record::Table::read(&run.join("progress.csv")).unwrap();
        table.column("ReturnAverage").unwrap().to_vec()
    };
    let whole = |more: &[&str]| {
        let args = [&few[..], &["--steps", "4096"], more].concat();
        returns(&train(&python, folder, &args))
    };
    let first = whole(&[]);
    assert_eq!(first.len(), 4);
    // In any number of processes.
    assert_eq!(whole(&["env.envs_per_worker=1"]), first);
    assert_ne!(whole(&["--seed", "2"]), first);

    let args = [&few[..], &["--steps", "4096", "--stop-after", "2048"]].concat();
    let run = train(&python, folder, &args);
    assert_eq!(returns(&run)[..2], first[..2]);
    let resumed = self::run(&python, folder, &["resume", run.to_str().unwrap()]);
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert_eq!(returns(&run).len(), 4);
    let said = format!(
        "{}{}",
        stderr(&resumed),
        std::fs::read_to_string(run.join("log.txt")).unwrap()
    );
    assert!(said.contains("new episode"), "{said}");
}

#[test]
fn trouble_ends_the_run_with_the_reason() {
    let Some(python) = python("trouble_ends_the_run_with_the_reason") else {
        return;
    };
    let folder = folder();
    let folder = folder.path();
    for (trouble, says) in [
        (
            "raise",
            &[
                "(python:./field.py:Field): its step raised an exception\nTraceback",
                "ValueError: the wheel came off",
            ][..],
        ),
        ("exit", &["its worker process ended with exit status 7"]),
        ("nan", &["its observation has NaN at element 0"]),
        (
            "shape",
            &["its observation has shape (3,), but its space has (2,)"],
        ),
    ] {
        let kwargs = format!("env.kwargs.trouble={trouble}");
        let args = [
            "train",
            "python:./field.py:Field",
            "--quiet",
            "--steps",
            "8000",
            &kwargs,
        ];
        let output = run(&python, folder, &args);
        assert_eq!(output.status.code(), Some(1), "{trouble}");
        let said = stderr(&output);
        assert!(
            said.contains("error: an environment failed: environment "),
            "{said}"
        );
        for text in says {
            assert!(said.contains(text), "{trouble}: {said}");
        }
        // The same run continues where environments are replaced.
        let more = ["on_env_error=restart", "max_env_restarts=200"];
        let restarted = train(&python, folder, &[&args[1..2], &args[3..], &more].concat());
        let log = std::fs::read_to_string(restarted.join("log.txt")).unwrap();
        assert!(
            log.contains("WARN") && log.contains("restarting it"),
            "{trouble}: {log}"
        );
    }
}

#[test]
fn prints_go_to_the_log() {
    let Some(python) = python("prints_go_to_the_log") else {
        return;
    };
    let folder = folder();
    let args = [
        "python:./field.py:Field",
        "--steps",
        "2048",
        "env.kwargs.trouble=print",
    ];
    let args = [&["train", "--quiet"], &args[..]].concat();
    let output = run(&python, folder.path(), &args);
    assert!(output.status.success());
    assert_eq!(stderr(&output), "");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    let log = std::fs::read_to_string(folder.path().join(said.trim()).join("log.txt")).unwrap();
    assert!(log.contains("printed: a new episode begins"), "{log}");
}

#[test]
fn an_environment_that_hangs_is_named_and_leaves_no_process() {
    let Some(python) = python("an_environment_that_hangs_is_named_and_leaves_no_process") else {
        return;
    };
    let folder = folder();
    let args = [
        "train",
        "python:./field.py:Field",
        "--quiet",
        "--steps",
        "8000",
        "env.kwargs.trouble=hang",
        "env.envs_per_worker=4",
        "stall_timeout_s=15",
    ];
    let output = run(&python, folder.path(), &args);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    // All take their 300th step in the same turn, the first of a worker first.
    let named = [0, 4].map(|env| format!("environment {env} has not returned"));
    assert!(named.iter().any(|text| said.contains(text)), "{said}");
    gone(folder.path());
}

/// Killed from outside, as the kernel does it when memory runs out.
#[test]
fn a_worker_that_is_killed_ends_the_run_or_is_replaced() {
    let Some(python) = python("a_worker_that_is_killed_ends_the_run_or_is_replaced") else {
        return;
    };
    for restarts in [false, true] {
        let folder = folder();
        let folder = folder.path();
        let args = [
            "train",
            "python:./field.py:Field",
            "--quiet",
            "--steps",
            "1e9",
            "stop_at_return=null",
            "envs=4",
            "env.envs_per_worker=4",
            "env.max_episode_steps=50",
            "env.kwargs.trouble=tell",
            match restarts {
                true => "on_env_error=restart",
                false => "on_env_error=stop",
            },
        ];
        let training = starling(&python, folder, &args);
        let training = Process::start(training, folder, "said.txt");
        // The worker, when its environments have made 300 steps.
        let worker = || text(folder.join("pid")).parse::<u32>().ok();
        wait_for("the first worker", || worker().is_some());
        let killed = worker();
        signal(killed.unwrap(), "KILL");
        if restarts {
            wait_for("another worker", || worker() != killed);
            training.signal("TERM");
        }
        let code = training.end();
        let said = "its worker process was killed by signal 9 (SIGKILL";
        let (file, expected) = match restarts {
            true => (only_run(folder).unwrap().join("log.txt"), 130),
            false => (folder.join("said.txt"), 1),
        };
        let log = text(file);
        assert_eq!(code, expected, "{log}");
        assert!(log.contains(said), "{log}");
        assert_eq!(log.contains("restarting it"), restarts, "{log}");
    }
}

/// `python:PACKAGE.MODULE:FUNCTION`, where the package is in the current folder.
#[test]
fn a_module_of_a_package_is_imported() {
    let Some(python) = python("a_module_of_a_package_is_imported") else {
        return;
    };
    let folder = folder();
    let folder = folder.path();
    let package = folder.join("my_package");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("__init__.py"), "").unwrap();
    std::fs::rename(folder.join("field.py"), package.join("field.py")).unwrap();
    let envs = "from .field import Field\n\ndef make_env(size):\n    return Field(size)\n";
    std::fs::write(package.join("envs.py"), envs).unwrap();
    let id = "python:my_package.envs:make_env";
    let (size, limit) = ("env.kwargs.size=4", "env.max_episode_steps=50");
    let run = train(&python, folder, &[id, "--steps", "1024", size, limit]);
    assert!(mean_return(&python, folder, &run).is_finite());
    let missing = self::run(
        &python,
        folder,
        &["check-env", "python:my_package.nothing:make_env"],
    );
    assert_eq!(missing.status.code(), Some(1));
    let said = stderr(&missing);
    assert!(
        said.contains("No module named 'my_package.nothing'"),
        "{said}"
    );
}

/// Also where the program is killed and cannot clean up.
#[test]
fn workers_end_with_the_program() {
    let Some(python) = python("workers_end_with_the_program") else {
        return;
    };
    let folder = folder();
    let args = [
        "train",
        "python:./field.py:Field",
        "--quiet",
        "env.kwargs.trouble=hang",
    ];
    let mut child = starling(&python, folder.path(), &args);
    let mut child = child.stdout(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while !folder.path().join("pid").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing hangs");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    gone(folder.path());
}

/// The worker that wrote its number has ended.
fn gone(folder: &Path) {
    let pid = std::fs::read_to_string(folder.join("pid")).unwrap();
    let begun = Instant::now();
    let alive = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // One that has ended and was not waited for yet counts as gone.
        !status.is_empty() && !status.contains(") Z ")
    };
    while alive() {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{pid} is still there"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_python_without_gymnasium_is_told_what_to_install() {
    let Some(python) = python("a_python_without_gymnasium_is_told_what_to_install") else {
        return;
    };
    let folder = folder();
    // A Python that sees no packages.
    let bare = folder.path().join("bare");
    let text = format!("#!/bin/sh\nexec {} -I -S \"$@\"\n", python.display());
    std::fs::write(&bare, text).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&bare, mode).unwrap();
    let output = run(&bare, folder.path(), &["train", "gym:CartPole-v1"]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(
        said.contains("needs the Python package gymnasium"),
        "{said}"
    );
    assert!(said.contains("-m pip install gymnasium"), "{said}");
    let said = run(&bare, folder.path(), &["doctor"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(
        said.contains("from STARLING_PYTHON), no gymnasium, no numpy"),
        "{said}"
    );
}
