//! What is written for TensorBoard, read by the Python package `tensorboard`.
//!
//! `STARLING_TEST_PYTHON` names the interpreter that has the package; without it, `python3`.

use std::process::Command;
use std::time::SystemTime;

use serde_json::{Value, json};
use starling_record::{Recorder, Row, RunFolder};

#[test]
fn the_python_package_reads_the_events() {
    let python = std::env::var("STARLING_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_package = Command::new(&python)
        .args(["-c", "import tensorboard"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_package {
        starling_testing::skip(
            "tensorboard",
            "record: the_python_package_reads_the_events",
            &format!("{python} cannot import tensorboard (pip install tensorboard)"),
        );
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let run = RunFolder::create(root.path(), "CartPole-v1", "ppo", "t", 1, now).unwrap();
    let row = |step: u64, session: f64| -> Row {
        let row = [
            ("charts/SPS", step as f64),
            ("losses/value", session),
            ("LengthMax", 3.0),
        ];
        row.into_iter().collect()
    };

    let mut recorder = Recorder::create(&run).unwrap();
    let settings = [
        ("lr", "0.001"),
        ("seed", "7"),
        ("algo.double", "true"),
        ("env.id", "\"CartPole-v1\""),
        ("checkpoint.every_steps", "100"),
    ];
    recorder.hyperparameters(&settings).unwrap();
    recorder.log(0, &row(0, 1.0)).unwrap();
    recorder.log(1000, &row(1000, 1.0)).unwrap();
    recorder.log_eval(1000, &row(1000, 1.0)).unwrap();
    let state = recorder.state();
    // These come after the checkpoint, and the resumed run takes other steps.
    recorder.log(1500, &row(1500, 1.0)).unwrap();
    recorder.log(2000, &row(2000, 1.0)).unwrap();
    drop(recorder);
    let mut recorder = Recorder::resume(&run, state).unwrap();
    recorder.log(2000, &row(2000, 2.0)).unwrap();
    recorder
        .log(5_000_000_000, &row(5_000_000_000, 2.5))
        .unwrap();

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/read_events.py");
    let output = Command::new(&python)
        .arg(script)
        .arg(run.path())
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let read: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = json!({
        "charts/SPS": [[0, 0.0], [1000, 1000.0], [2000, 2000.0], [5_000_000_000_u64, 5e9]],
        "losses/value": [[0, 1.0], [1000, 1.0], [2000, 2.0], [5_000_000_000_u64, 2.5]],
        "episodes/LengthMax": [[0, 3.0], [1000, 3.0], [2000, 3.0], [5_000_000_000_u64, 3.0]],
        "eval/charts/SPS": [[1000, 1000.0]],
        "eval/losses/value": [[1000, 1.0]],
        "eval/LengthMax": [[1000, 3.0]],
    });
    assert_eq!(read["scalars"], expected);
    // As the hparams tab shows them: all runs of a folder, and the types of their settings.
    assert_eq!(
        read["hparams"],
        json!({"lr": 0.001, "seed": 7.0, "algo.double": true, "env.id": "CartPole-v1"})
    );
    assert_eq!(
        read["hparam_types"],
        json!({"lr": "DATA_TYPE_FLOAT64", "seed": "DATA_TYPE_FLOAT64",
               "algo.double": "DATA_TYPE_BOOL", "env.id": "DATA_TYPE_STRING"})
    );
    let rows = "|lr|0.001|\n|seed|7|\n|algo.double|true|\n|env.id|\"CartPole-v1\"|\n\
                |checkpoint.every_steps|100|\n";
    let text = format!("|key|value|\n|-|-|\n{rows}");
    assert_eq!(
        read["texts"],
        json!({ "hyperparameters": [[0, "text", [text]]] })
    );
}
