//! Environments that go wrong: each is an error that names the environment and says what happened, or
//! is replaced.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{own, python, rollout, vector};
use serde_json::{Value, json};
use starling_envs::{RestartBudget, Rollout, VecEnv, stream};

use rand::Rng as _;

/// Seeds above this one go wrong: only the second of four environments draws such a seed first.
fn only_the_second() -> u64 {
    let seeds = [10, 11, 12, 13].map(|index| stream(1, "env", index).next_u64() >> 33);
    seeds[1] - 1
}

/// Four environments in two processes, of which number 11 goes wrong in the third step. All seeds
/// that are larger than that of the second do so, too.
fn bad(python: &Path, name: &str, how: &str, more: &Value) -> Box<dyn VecEnv> {
    let mut kwargs = json!({"how": how, "only_seeds_above": only_the_second()});
    starling_settings::merge(&mut kwargs, more);
    let settings = json!({"envs_per_worker": 2, "kwargs": kwargs});
    vector(python, &own(name), 4, &settings).unwrap()
}

/// The first error within some steps.
fn error(vector: &mut dyn VecEnv) -> String {
    let mut rollout = rollout(vector, 10);
    vector.reset(&mut rollout).unwrap();
    let mut steps = (0..10).map(|t| vector.step(t, &mut rollout));
    steps.find_map(Result::err).unwrap().to_string()
}

/// Whether the second of four environments is the only one that can go wrong first.
fn first_to_fail() -> Vec<u64> {
    let seeds = [10, 11, 12, 13].map(|index| stream(1, "env", index).next_u64() >> 33);
    let indices = (10..14).zip(seeds);
    let bad = indices.filter(|(_, seed)| *seed > only_the_second());
    bad.map(|(index, _)| index).collect()
}

#[test]
fn failures_name_the_environment_and_say_what_happened() {
    let Some(python) = python("failures_name_the_environment_and_say_what_happened") else {
        return;
    };
    assert!(first_to_fail().contains(&11));
    for (name, how, says) in [
        (
            "Bad",
            "raise",
            &[
                "its step raised an exception\nTraceback (most recent call last):",
                "in raise_deep_inside",
                "ValueError: the wheel came off",
            ][..],
        ),
        ("Bad", "system_exit", &["SystemExit: 4"]),
        (
            "Bad",
            "exit",
            &[
                "its worker process ended with exit status 3, with all its 2 environments",
                "good bye",
            ],
        ),
        (
            "Bad",
            "segfault",
            &[
                "its worker process was killed by signal 11 (SIGSEGV)",
                "Fatal Python error: Segmentation fault",
                "envs.py",
            ],
        ),
        ("Bad", "nan", &["its observation has NaN at element 1"]),
        ("Bad", "nan_reward", &["it gave the reward NaN"]),
        (
            "Bad",
            "shape",
            &["its observation has shape (2,), but its space has (3,)"],
        ),
        (
            "Bad",
            "broadcast",
            &["its observation has shape (1,), but its space has (3,)"],
        ),
        (
            "Bad",
            "dtype",
            &["its observation is a ndarray, not an array of numbers"],
        ),
        (
            "Bytes",
            "none",
            &["has dtype float32, but its space has uint8"],
        ),
        (
            "Bad",
            "none",
            &["its observation is a NoneType, not an array of numbers"],
        ),
        ("Bad", "reward", &["its reward is 'much', not a number"]),
        ("Bad", "old", &["its step returns 4 values", "shimmy"]),
    ] {
        let mut vector = bad(&python, name, how, &json!({}));
        let error = error(&mut *vector);
        let named = match name {
            // The other kind goes wrong in all of them.
            "Bytes" => vec![10],
            _ => first_to_fail(),
        };
        let id = own(name);
        let begins = |index: &u64| error.starts_with(&format!("environment {index} ({id}): "));
        assert!(named.iter().any(begins), "{how}: {error}");
        for text in says {
            assert!(error.contains(text), "{how}: {error}");
        }
    }
}

#[test]
fn an_episode_that_cannot_start_is_an_error() {
    let Some(python) = python("an_episode_that_cannot_start_is_an_error") else {
        return;
    };
    let mut vector = bad(&python, "Bad", "reset", &json!({}));
    let error = error(&mut *vector);
    assert!(error.starts_with("environment 10 "), "{error}");
    assert!(
        error.contains("its reset raised an exception\nTraceback"),
        "{error}"
    );
    assert!(
        error.ends_with("RuntimeError: it does not start again"),
        "{error}"
    );
}

/// Goes wrong once, and continues.
fn play_on(vector: &mut dyn VecEnv, budget: u64) -> (Rollout, Vec<(usize, String)>) {
    let budget = Arc::new(RestartBudget::new(budget));
    let never = Box::new(|_: usize| panic!("the batch does it"));
    vector.restart_failed(never, budget).unwrap();
    let mut rollout = rollout(vector, 10);
    vector.reset(&mut rollout).unwrap();
    for t in 0..10 {
        vector.step(t, &mut rollout).unwrap();
    }
    let restarts = vector.restarts();
    let restarts = restarts.map(|restart| (restart.env, restart.cause.to_string()));
    let restarts = restarts.collect();
    assert_eq!(vector.finished().count(), 0);
    (rollout, restarts)
}

#[test]
fn failed_environments_are_replaced_and_their_episodes_truncated() {
    let Some(python) = python("failed_environments_are_replaced_and_their_episodes_truncated")
    else {
        return;
    };
    for (how, shares_worker) in [
        ("raise", false),
        ("nan", false),
        ("shape", false),
        ("exit", true),
        ("segfault", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let marker = folder.path().join("failed");
        let mut vector = bad(&python, "Bad", how, &json!({"marker": marker}));
        let (rollout, restarts) = play_on(&mut *vector, 2);
        let mut lost: Vec<usize> = restarts.iter().map(|(env, _)| *env).collect();
        // The one that was at work comes first.
        let first = lost[0];
        lost.sort_unstable();
        match shares_worker {
            true => assert_eq!(
                lost,
                [first / 2 * 2, first / 2 * 2 + 1],
                "{how}: {restarts:?}"
            ),
            false => assert_eq!(lost, [first], "{how}: {restarts:?}"),
        }
        for b in 0..4 {
            let failed = lost.contains(&b);
            let reward = |t: usize| rollout.rewards.at(&[t, b]).as_slice::<f32>()[0];
            let truncated = |t: usize| rollout.truncated.at(&[t, b]).bytes[0];
            let shown = |t: usize| rollout.obs.leaf().unwrap().at(&[t, b]).as_slice::<f32>()[0];
            // The third step changed nothing and paid nothing; then a new episode began.
            assert_eq!((reward(1), truncated(1), shown(2)), (1.0, 0, 2.0), "{how}");
            let third = if failed {
                (0.0, 1, 0.0, 1.0)
            } else {
                (1.0, 0, 3.0, 4.0)
            };
            assert_eq!(
                (reward(2), truncated(2), shown(3), shown(4)),
                third,
                "{how}, {b}"
            );
            let kept = rollout.final_at.contains(&(2, b));
            assert_eq!(kept, failed, "{how}");
            assert_eq!(shown(10), if failed { 7.0 } else { 10.0 }, "{how}");
        }
        let last = rollout.final_obs.leaf().unwrap().at(&[0]);
        assert_eq!(last.as_slice::<f32>(), [2.0; 3], "{how}");
    }
}

/// Killed from outside, as the kernel does it when memory runs out.
#[test]
fn a_worker_that_is_killed_is_an_error_or_is_replaced() {
    let Some(python) = python("a_worker_that_is_killed_is_an_error_or_is_replaced") else {
        return;
    };
    for restarts in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let settings = json!({"envs_per_worker": 2, "kwargs": {"folder": folder.path()}});
        let mut vector = vector(&python, &own("Tells"), 4, &settings).unwrap();
        if restarts {
            let never = Box::new(|_: usize| panic!("the batch does it"));
            let budget = Arc::new(RestartBudget::new(2));
            vector.restart_failed(never, budget).unwrap();
        }
        let mut rollout = rollout(&*vector, 3);
        vector.reset(&mut rollout).unwrap();
        vector.step(0, &mut rollout).unwrap();
        // Not the one that described the environment, which has ended.
        let workers = || -> Vec<String> {
            let files = std::fs::read_dir(folder.path()).unwrap();
            let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
            names
                .filter(|process| Path::new("/proc").join(process).exists())
                .collect()
        };
        let before = workers();
        assert_eq!(before.len(), 2);
        starling_testing::signal(before[0].parse().unwrap(), "KILL");
        let says = "its worker process was killed by signal 9 (SIGKILL: was the machine out of \
                    memory?), with all its 2 environments";
        if !restarts {
            let error = vector.step(1, &mut rollout).unwrap_err().to_string();
            assert!(error.starts_with("environment 1"), "{error}");
            assert!(error.contains(says), "{error}");
            continue;
        }
        for t in 1..3 {
            vector.step(t, &mut rollout).unwrap();
        }
        let causes = vector.restarts();
        let causes: Vec<_> = causes
            .map(|restart| (restart.env, restart.cause.to_string()))
            .collect();
        assert_eq!(causes.len(), 2, "{causes:?}");
        assert!(
            causes.iter().all(|(_, cause)| cause.contains(says)),
            "{causes:?}"
        );
        // Only the episodes of that worker were cut.
        for b in 0..4 {
            let lost = causes.iter().any(|(env, _)| *env == b);
            let cut: Vec<u8> = (0..3)
                .map(|t| rollout.truncated.at(&[t, b]).bytes[0])
                .collect();
            assert_eq!(cut, [0, u8::from(lost), 0], "{b}");
        }
        let after = workers();
        assert_eq!(after.len(), 2);
        assert!(after.contains(&before[1]) && !after.contains(&before[0]));
    }
}

#[test]
fn a_budget_of_restarts_ends() {
    let Some(python) = python("a_budget_of_restarts_ends") else {
        return;
    };
    // Without a marker every new environment fails again.
    let mut vector = bad(&python, "Bad", "exit", &json!({"only_seeds_above": -1}));
    let budget = Arc::new(RestartBudget::new(3));
    let never = Box::new(|_: usize| panic!("the batch does it"));
    vector.restart_failed(never, budget).unwrap();
    let error = error(&mut *vector);
    assert!(
        error.contains("3 environments were already restarted"),
        "{error}"
    );
}

/// The pulse names the environment that does not return, so that a watchdog can.
#[test]
fn the_pulse_names_the_environment_that_hangs() {
    let Some(python) = python("the_pulse_names_the_environment_that_hangs") else {
        return;
    };
    let mut vector = bad(&python, "Bad", "hang", &json!({}));
    let pulse = Arc::clone(vector.pulse());
    // The thread never ends; its worker does, with this process.
    std::thread::spawn(move || error(&mut *vector));
    let begun = Instant::now();
    let hanging = first_to_fail();
    loop {
        let still = pulse.at_work();
        std::thread::sleep(Duration::from_millis(400));
        if let Some((env, _)) = still
            && pulse.at_work() == still
            && hanging.contains(&env)
        {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{still:?}");
    }
}

#[test]
fn printing_does_not_disturb() {
    let Some(python) = python("printing_does_not_disturb") else {
        return;
    };
    let mut vector = vector(&python, &own("Prints"), 2, &json!({})).unwrap();
    let mut rollout = rollout(&*vector, 20);
    rollout.actions.as_mut_slice::<i64>().fill(1);
    vector.reset(&mut rollout).unwrap();
    for t in 0..20 {
        vector.step(t, &mut rollout).unwrap();
    }
    assert_eq!(vector.finished().count(), 10);
}
