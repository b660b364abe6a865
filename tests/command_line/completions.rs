//! `starling completions`.

use std::path::Path;
use std::process::Command;

use super::{run, stderr, stdout};

/// What bash offers at the end of a line, and whether it puts a space behind it.
fn completed(folder: &Path, words: &[&str]) -> (Vec<String>, bool) {
    let script = folder.join("completions.bash");
    std::fs::write(&script, run(folder, &["completions", "bash"]).stdout).unwrap();
    let program = r#"
        source "$1"; shift
        # Outside of a completion there are no options to change.
        compopt() { echo "$*" >&2; }
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        complete=$(complete -p starling)
        [[ $complete =~ -F\ ([a-z_]+) ]]
        "${BASH_REMATCH[1]}" "$1" "${@: -1}" "${@: -2:1}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    let bash = bash.args(["--norc", "-c", program, "bash"]);
    let output = bash.arg(&script).args(words).output().unwrap();
    let space = match stderr(&output).as_str() {
        "" => true,
        "-o nospace\n" => false,
        other => panic!("{other}"),
    };
    (stdout(&output).lines().map(str::to_owned).collect(), space)
}

#[test]
fn bash_completes_names_and_values_of_settings() {
    let folder = tempfile::tempdir().unwrap();
    let completed = |words: &[&str]| completed(folder.path(), words);
    let rates = (
        vec![
            "algo.learning_rate=".to_owned(),
            "algo.learning_starts_steps=".to_owned(),
        ],
        false,
    );
    assert_eq!(
        completed(&["starling", "train", "CartPole-v1", "algo.lea"]),
        rates
    );
    assert_eq!(
        completed(&[
            "starling",
            "config",
            "show",
            "CartPole-v1",
            "--seed",
            "3",
            "algo.lea"
        ]),
        rates
    );
    let (names, _) = completed(&["starling", "train", "CartPole-v1", "ch"]);
    let expected = [
        "every_minutes",
        "every_steps",
        "keep_last",
        "milestone_steps",
    ];
    assert_eq!(names, expected.map(|name| format!("checkpoint.{name}=")));
    assert_eq!(
        completed(&["starling", "train", "Pong", "env.noop"]),
        (vec!["env.noop_max=".to_owned()], false)
    );
    let (values, _) = completed(&["starling", "train", "CartPole-v1", "mod"]);
    assert_eq!(values, ["mode=central", "mode=serial", "mode=threads"]);
    // Bash splits at `=`, and replaces only what follows.
    let (values, _) = completed(&["starling", "train", "CartPole-v1", "mode", "="]);
    assert_eq!(values, ["central", "serial", "threads"]);
    assert_eq!(
        completed(&["starling", "train", "CartPole-v1", "mode", "=", "se"]),
        (vec!["serial".to_owned()], true)
    );
    let (values, _) = completed(&["starling", "train", "CartPole-v1", "device", "=", "cu"]);
    assert_eq!(values, ["cuda:0"]);
    let after = [
        "starling",
        "train",
        "CartPole-v1",
        "mode",
        "=",
        "serial",
        "tf",
    ];
    assert_eq!(completed(&after).0, ["tf32=false", "tf32=true"]);
    let (names, _) = completed(&["starling", "config", "explain", "checkpoint.k"]);
    assert_eq!(names, ["checkpoint.keep_last"]);
    // Other words are followed by a space, as before.
    assert_eq!(
        completed(&["starling", "train", "CartPole-v1", "--algo", "qr"]),
        (vec!["qr-dqn".to_owned()], true)
    );
    assert_eq!(
        completed(&["starling", "train", "CartPole-v"]),
        (vec!["CartPole-v1".to_owned()], true)
    );
}
