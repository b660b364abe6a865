//! `starling list`, `config show` and `check-env`.

use super::{run, stdout};

#[test]
fn the_tables_are_listed_and_settings_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let envs = stdout(&run(folder.path(), &["list", "envs"]));
    assert!(envs.contains("CartPole-v1") && envs.contains("MinAtar/Seaquest-v1"));
    let algos = stdout(&run(folder.path(), &["list", "algos"]));
    assert_eq!(
        algos.lines().count(),
        starling::algos::registry::all().len()
    );
    for (set, games) in [("atari57", 57), ("saber", 61)] {
        let listed = stdout(&run(folder.path(), &["list", set]));
        assert_eq!(listed.lines().count(), games);
        assert!(listed.lines().all(|line| line.starts_with("ALE/")));
    }
    let presets = stdout(&run(folder.path(), &["list", "presets"]));
    assert!(presets.contains("classic/ppo"));
    let shown = stdout(&run(
        folder.path(),
        &["config", "show", "CartPole-v1", "seed=9"],
    ));
    assert!(
        shown.contains("seed: 9") && shown.contains("id: CartPole-v1"),
        "{shown}"
    );
    let explained = run(folder.path(), &["config", "explain", "lr", "CartPole-v1"]);
    let explained = stdout(&explained);
    assert!(
        explained.starts_with("algo.learning_rate\n") && explained.contains("classic/ppo"),
        "{explained}"
    );
    let schema = stdout(&run(folder.path(), &["config", "explain", "--json"]));
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(schema["run"][0]["key"], "seed");
    let unknown = run(folder.path(), &["config", "explain", "algo.gamm"]);
    assert_eq!(unknown.status.code(), Some(2));
    let completions = stdout(&run(folder.path(), &["completions", "bash"]));
    for name in ["CartPole-v1", "check-env", "classic/ppo", "cuda:0"] {
        assert!(completions.contains(name), "{name}");
    }
    assert!(!completions.contains("probe-bf16"));
}

#[test]
fn environments_of_the_table_pass_the_checker() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(
        folder.path(),
        &["check-env", "MinAtar/Seaquest-v1", "--steps", "3000"],
    );
    assert!(output.status.success(), "{}", stdout(&output));
    assert!(stdout(&output).contains("nothing is wrong"));
}
