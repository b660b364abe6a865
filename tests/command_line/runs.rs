//! `starling runs`, `compare`, `rm`, and runs by prefixes of their names.

use serde_json::Value;

use super::{run, stderr, stdout};

#[test]
fn runs_are_listed_compared_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    assert!(stderr(&run(at, &["runs"])).contains("no runs in runs"));
    for (seed, rate) in [
        ("1", "algo.learning_rate=0.002"),
        ("2", "algo.learning_rate=0.001"),
    ] {
        let train = [
            "train",
            "CartPole-v1",
            "--steps",
            "4e3",
            "--seed",
            seed,
            "-q",
            rate,
        ];
        let trained = run(at, &[&train[..], &["log_every_steps=2000"]].concat());
        assert!(trained.status.success(), "{}", stderr(&trained));
    }
    let listed = stdout(&run(at, &["runs"]));
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(
        listed.contains("4,096 (100 %)") && listed.contains("finished"),
        "{listed}"
    );
    let filtered = run(at, &["runs", "seed=2", "algo:ppo", "steps>4e3", "--json"]);
    let filtered: Value = serde_json::from_str(&stdout(&filtered)).unwrap();
    let [found] = filtered.as_array().unwrap().as_slice() else {
        panic!("{filtered}");
    };
    assert_eq!(found["settings"]["algo.learning_rate"], 0.001);
    let lines = |args: &[&str]| stdout(&run(at, args)).lines().count();
    assert_eq!(lines(&["runs", "--", "-seed=2"]), 2);
    assert_eq!(lines(&["runs", "seed=2 algo:ppo steps>4e3"]), 2);
    assert_eq!(lines(&["runs", "seed=2 algo:dqn"]), 0);
    assert_eq!(run(at, &["runs", "steps>many"]).status.code(), Some(2));

    let compared = stdout(&run(at, &["compare", "run-s1", "last", "--plot", "both"]));
    let rate = compared
        .lines()
        .find(|line| line.contains("learning_rate"))
        .unwrap();
    let words: Vec<&str> = rate.split_whitespace().collect();
    assert_eq!(words, ["algo.learning_rate", "0.002", "0.001"]);
    assert!(compared.contains("return at"), "{compared}");
    let page = std::fs::read_to_string(at.join("both/plot.html")).unwrap();
    assert!(page.contains("ppo run=run-s1-") && page.contains("ppo run=run-s2-"));

    let evaluated = run(at, &["eval", "run-s1", "--episodes", "1", "--json"]);
    let evaluated: Value = serde_json::from_str(&stdout(&evaluated)).unwrap();
    assert!(
        evaluated["run"].as_str().unwrap().contains("/run-s1-"),
        "{evaluated}"
    );
    let several = run(at, &["eval", "run"]);
    assert_eq!(several.status.code(), Some(2));
    assert!(
        stderr(&several).contains("'run' matches 2 runs"),
        "{}",
        stderr(&several)
    );
    let plotted = run(
        at,
        &[
            "plot",
            "run-s1",
            "last",
            "--by",
            "algo.gamma",
            "--x",
            "time",
            "--smooth",
            "2",
        ],
    );
    assert!(
        stdout(&plotted).contains("ppo gamma=0.99"),
        "{}",
        stdout(&plotted)
    );
    let unknown = run(at, &["plot", "last", "--by", "algo.gama"]);
    assert_eq!(unknown.status.code(), Some(2));

    // Nothing is deleted without an answer, nor if one of the runs is not there.
    assert_eq!(run(at, &["rm", "last"]).status.code(), Some(2));
    assert_eq!(
        run(at, &["rm", "--yes", "last", "nobody"]).status.code(),
        Some(2)
    );
    let deleted = run(at, &["rm", "--yes", "last"]);
    assert!(stdout(&deleted).contains("run-s2-"), "{}", stdout(&deleted));
    let listed = stdout(&run(at, &["runs"]));
    assert!(
        listed.contains("run-s1-") && !listed.contains("run-s2-"),
        "{listed}"
    );
    assert!(run(at, &["rm", "-y", "last"]).status.success());
    // The folders of the algorithm and the environment go with their last run.
    assert!(at.join("runs").is_dir() && !at.join("runs/CartPole-v1").exists());
}
