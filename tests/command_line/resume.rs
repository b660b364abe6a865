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
        said.contains(
            "nothing to do: the run has already completed all its steps; to train longer: "
        ) && said.contains(&format!(" resume {path} steps=4000")),
        "{said}"
    );

    // More steps are made at once, and stay in the settings.
    let resumed = run(
        folder.path(),
        &["resume", "last", "steps=3e3", "algo.entropy_coef=0.02"],
    );
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert!(
        stdout(&resumed).contains("finished: "),
        "{}",
        stdout(&resumed)
    );
    let config = std::fs::read_to_string(folder.path().join(&path).join("config.yaml")).unwrap();
    assert!(
        config.contains("steps: 3000\n") && config.contains("entropy_coef: 0.02"),
        "{config}"
    );

    // What it cannot continue with changes nothing.
    for (change, complaint) in [
        ("algo.gama=1", "did you mean algo.gamma"),
        ("algo.gamma=3", "allowed: between 0 and 1"),
        ("seed=9", "seed cannot be changed"),
        (
            "algo.net.hidden=[7]",
            "'torso.hidden0.weight' is F32 [64, 4]",
        ),
    ] {
        let resumed = run(folder.path(), &["resume", "last", "steps=9e3", change]);
        assert_ne!(resumed.status.code(), Some(0));
        let said = stderr(&resumed);
        assert!(said.contains(complaint), "{change}: {said}");
    }
    let after = std::fs::read_to_string(folder.path().join(&path).join("config.yaml")).unwrap();
    assert_eq!(after, config);

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
