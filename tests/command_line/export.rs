//! `starling export`, videos, and steps as JSON lines.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{run, stderr, stdout};

#[test]
fn an_agent_is_exported_filmed_and_written_step_by_step() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let train = [
        "train",
        "CartPole-v1",
        "--steps",
        "6e3",
        "-q",
        "video.every_steps=2500",
        "video.max_steps=20",
    ];
    let trained = run(at, &train);
    assert!(trained.status.success(), "{}", stderr(&trained));
    let path = at.join(stdout(&trained).trim());
    let videos = std::fs::read_dir(path.join("videos")).unwrap();
    let mut videos: Vec<_> = videos.map(|entry| entry.unwrap().path()).collect();
    videos.sort();
    assert_eq!(videos.len(), 2, "{videos:?}");
    let bytes = std::fs::read(&videos[1]).unwrap();
    assert!(&bytes[4..8] == b"ftyp" && bytes.len() > 1000, "{videos:?}");

    let eval = [
        "eval",
        "last",
        "--episodes",
        "3",
        "--json",
        "--video",
        "a.mp4",
        "--rollouts",
        "steps.jsonl",
    ];
    let evaluated = run(at, &eval);
    assert!(evaluated.status.success(), "{}", stderr(&evaluated));
    let report: Value = serde_json::from_str(&stdout(&evaluated)).unwrap();
    assert!(at.join("a.mp4").is_file());
    let steps = std::fs::read_to_string(at.join("steps.jsonl")).unwrap();
    let (mut returns, mut ends) = (BTreeMap::<u64, f64>::new(), 0);
    for line in steps.lines() {
        let step: Value = serde_json::from_str(line).unwrap();
        *returns
            .entry(step["episode"].as_u64().unwrap())
            .or_default() += step["reward"].as_f64().unwrap();
        assert_eq!(step["observation"].as_array().unwrap().len(), 4);
        assert!([0, 1].contains(&step["action"].as_i64().unwrap()));
        ends += i32::from(step["terminated"] == true || step["truncated"] == true);
    }
    let reported: Vec<f64> = serde_json::from_value(report["returns"].clone()).unwrap();
    assert_eq!(returns.into_values().collect::<Vec<_>>(), reported);
    assert_eq!(ends, 3);
    let refused = run(at, &["play", "last", "--quiet", "--video", "a.avi"]);
    assert!(
        stderr(&refused).contains("ends in .mp4 or .gif"),
        "{}",
        stderr(&refused)
    );

    for (name, by) in [
        ("agent.onnx", "the program's own evaluation"),
        ("agent.pt", "libtorch"),
    ] {
        let exported = run(at, &["export", "last", "--out", name, "--steps", "40"]);
        assert!(exported.status.success(), "{}", stderr(&exported));
        let said = stdout(&exported);
        assert!(
            said.contains("inputs:  observation [batch, 4] float32"),
            "{said}"
        );
        assert!(
            said.contains(&format!("compared over 40 steps with {by}")),
            "{said}"
        );
        assert!(at.join(name).metadata().unwrap().len() > 10_000);
    }
    let named = run(at, &["export", "last", "--steps", "1"]);
    assert!(
        at.join("CartPole-v1-ppo.onnx").is_file(),
        "{}",
        stderr(&named)
    );
}
