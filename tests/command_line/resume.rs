//! `starling resume`.

use super::{run, stderr, stdout};

/// A finished run has nothing left to do, and says what to change; a nonsensical time in a file
/// without a checksum does not matter.
#[test]
fn resuming_a_finished_run_says_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let train = ["train", "CartPole-v1", "--steps", "2e3", "-q"];
    let trained = run(folder.path(), &train);
    assert!(trained.status.success(), "{}", stderr(&trained));
    let path = stdout(&trained).trim().to_owned();
    let checkpoints = folder.path().join(&path).join("checkpoints");
    let checkpoint = std::fs::read_dir(checkpoints)
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let times = checkpoint.path().join("times.json");
    assert!(times.exists());
    std::fs::write(times, "{\"elapsed_s\": 2e19}").unwrap();
    let resumed = run(folder.path(), &["resume", &path]);
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert!(stderr(&resumed).contains("resuming from step 2,048"));
    let said = stdout(&resumed);
    assert!(
        said.contains(&format!("nothing to do: the run has made all its steps; to train longer, raise steps in {path}/config.yaml")),
        "{said}"
    );

    // A mistake in a run's own settings names the file.
    let config = folder.path().join(&path).join("config.yaml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("gamma:", "gama:")).unwrap();
    let resumed = run(folder.path(), &["resume", &path]);
    assert_eq!(resumed.status.code(), Some(2));
    let message = stderr(&resumed);
    assert!(
        message.contains(&format!(
            "{path}/config.yaml: there is no setting called 'algo.gama'"
        )),
        "{message}"
    );
    let protocol = run(folder.path(), &["eval", &path, "--protocol", "training"]);
    assert_ne!(protocol.status.code(), Some(0));
}
