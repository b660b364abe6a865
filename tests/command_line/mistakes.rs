//! What is answered to mistakes.

use super::{run, starling, stderr, stdout};

#[test]
fn mistakes_get_an_explanation_and_exit_2_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&["train", "CartPol-v1"][..], "did you mean 'CartPole-v1'"),
        (
            &["train", "CartPole-v1", "--algo", "pp0"],
            "did you mean 'ppo'? Available: a2c",
        ),
        (
            &["train", "CartPole-v1", "--algo", "PEARL"],
            "pearl cannot be used here: it needs continuous actions",
        ),
        (
            &["train", "CartPole-v1", "--preset", "classic/pp"],
            "classic/ppo",
        ),
        (
            &["train", "CartPole-v1", "algo.learning_rat=1"],
            "did you mean algo.learning_rate?",
        ),
        (&["train", "CartPole-v1", "sed=3"], "did you mean seed"),
        (&["atari", "verify", "ALE/Pon-v5"], "'ALE/Pong-v5'"),
        (
            &["train", "CartPole-v1", "env.sticky=1"],
            "CartPole-v1 has no setting called 'env.sticky'; it has: env.max_episode_steps",
        ),
        (
            &["train", "ALE/Pong-v5", "env.stik=1"],
            "did you mean env.stack or",
        ),
        (
            &["train", "ALE/Pong-v5", "env.stack=many"],
            "env.stack is \"many\"; allowed: a whole number, 0 or more",
        ),
        (
            &["train", "ALE/Pong-v5", "env.stack=100"],
            "env.stack is 100; allowed: between 1 and 64",
        ),
        (
            &["train", "CartPole-v1", "algo.epochs=many"],
            "algo.epochs is \"many\"",
        ),
        (
            &["train", "CartPole-v1", "algo.gamma=1.5"],
            "algo.gamma is 1.5; allowed: between 0 and 1",
        ),
        (
            &["train", "CartPole-v1", "mode=parallel"],
            "mode is \"parallel\"",
        ),
        (&["train", "CartPole-v1", "device=cuda:7"], "cuda:7"),
        (
            &[
                "train",
                "CartPole-v1",
                "--algo",
                "dqn",
                "algo.capacity_steps=1",
            ],
            "algo.capacity_steps is 1",
        ),
        (
            &["train", "CartPole-v1", "env.max_episode_steps=0"],
            "env.max_episode_steps is 0; allowed: at least 1, or null",
        ),
        (
            &["train", "CartPole-v1", "algo.learning_rate=fast"],
            "allowed: a number, or {start",
        ),
        (
            &["train", "CartPole-v1", "algo.net.hidden=[0]"],
            "algo.net.hidden[0] is 0",
        ),
        (
            &["train", "CartPole-v1", "algo.optimizer.beta2=2"],
            "algo.optimizer.beta2 is 2",
        ),
        (
            &["train", "CartPole-v1", "envs=1000000000"],
            "envs is 1000000000",
        ),
        (
            &["train", "CartPole-v1", "stall_timeout_s=1e30"],
            "stall_timeout_s",
        ),
        (
            &[
                "train",
                "CartPole-v1",
                "--algo",
                "dqn",
                "algo.capacity_steps=1000000000000",
            ],
            "what fits into memory",
        ),
        (
            &[
                "train",
                "CartPole-v1",
                "--algo",
                "a2c",
                "--preset",
                "classic/dqn",
            ],
            "is not for the algorithm 'a2c'",
        ),
        (
            &["train", "Pendulum-v1", "--algo", "dqn"],
            "are continuous; usable here: a2c, appo, crossq, ddpg, impala, ppo, sac, td3",
        ),
        (
            &["train", "CartPole-v1", "learning_rate=0.1"],
            "did you mean algo.learning_rate?",
        ),
        (
            &["train", "CartPole-v1", "--lr", "0.1"],
            "there is no option '--lr'; settings are given as KEY=VALUE, without dashes: \
             algo.learning_rate=…\n\n`starling train --help`",
        ),
        (
            &["train", "CartPole-v1", "--batch-size", "64"],
            "without dashes: algo.minibatches=…",
        ),
        (
            &[
                "train",
                "CartPole-v1",
                "--algo",
                "dqn",
                "--batch-size",
                "64",
            ],
            "without dashes: algo.batch_size=…",
        ),
        (
            &["train", "TMaze-v0", "--batch-size", "64"],
            "without dashes: algo.batch_size=…",
        ),
        (
            &["train", "CartPole-v1", "--algo=dqn", "--n-epochs", "4"],
            "dqn has no such setting; `starling config show CartPole-v1 --algo dqn` shows all",
        ),
        (
            &["train", "CartPole-v1", "--algo", "dqn", "envs=100000"],
            "at least 700000 (7 for each of 100000 environments), or fewer environments",
        ),
        (
            &[
                "train",
                "CartPole-v1",
                "envs=100000",
                "algo.rollout_steps=1e8",
            ],
            "algo.rollout_steps is 100000000; allowed: what fits into memory: it would take",
        ),
        (
            &[
                "train",
                "MinAtar/Breakout-v1",
                "envs=1e5",
                "algo.rollout_steps=9e4",
            ],
            "for rollouts of 90000 steps (algo.rollout_steps)",
        ),
        (
            &["train", "CartPole-v1", "--preset", "atari/ppo"],
            "the preset 'atari/ppo' does not fit CartPole-v1: ",
        ),
        (
            &["train", "CartPole-v1", "Algo.Learning_Rate=0.1"],
            "did you mean algo.learning_rate?",
        ),
        (
            &["train", "--env", "CartPole-v1"],
            "the environment is given without an option",
        ),
        (&["train", "CartPole-v1", "-n", "1000"], "--steps N"),
        (
            &["train", "CartPole-v1", "--total-timesteps=1000"],
            "--steps N",
        ),
        (
            &["train", "CartPole-v1", "--step", "5"],
            "did you mean --steps?",
        ),
        (
            &["train", "CartPole-v1", "--seed", "-1"],
            "invalid value '-1' for '--seed <SEED>': allowed: a whole number, 0 or more",
        ),
        (
            &["train", "CartPole-v1", "--steps", "-5"],
            "allowed: a whole number from 1",
        ),
        (
            &["train", "CartPole-v1", "--num-envs", "0"],
            "allowed: a number from 1, or auto",
        ),
        (
            &["train", "CartPole-v1", "algo.net.hidden=[-4]"],
            "algo.net.hidden[0] is -4; allowed: between 1 and 65536",
        ),
        (
            &["train", "CartPole-v1", "device=tpu"],
            "device is \"tpu\"; allowed: auto, cpu, cuda:0",
        ),
        (
            &["train", "CartPole-v1", "--device", "tpu"],
            "device is \"tpu\"; allowed: auto, cpu, cuda:0",
        ),
        (
            &["train", "CartPole-v1", "env.id=Acrobot-v1"],
            "both 'CartPole-v1' and env.id=Acrobot-v1 are given",
        ),
        (
            &["train", "CartPole-v1", "algo.minibatches=100000"],
            "algo.minibatches is 100000; allowed: at most the 1024 samples",
        ),
        (&["train", "CartPole-v1", "--name", ".."], "cannot be used"),
        (&["eval", "nowhere"], "there is no run 'nowhere'"),
        (&["resume", "nowhere"], "there is no run 'nowhere'"),
        (&["bench", "envs", "--env", "Nothing"], "'Nothing'"),
        (&["check-env", "CartPole-v1", "--steps", "0"], "from 1"),
        (&["play", "CartPol-v1"], "did you mean 'CartPole-v1'"),
        (
            &["play", "CartPole-v1", "env.stack=1"],
            "there is no setting called 'env.stack'; available: env.max_episode_steps",
        ),
        (
            &["check-env", "CartPole-v1", "seed=1"],
            "'seed' is not a setting of the environment",
        ),
        (
            &["selftest", "--device", "cpu", "--algo", "nothing"],
            "no algorithm's name contains 'nothing'",
        ),
        (
            &["train", "CartPole-v1", "--config", "nowhere.yaml"],
            "nowhere.yaml",
        ),
        (&["train"], "no environment was named"),
        (&["config", "show", "breakout"], "MinAtar/Breakout-v1"),
        (&["check-env", "Acrobat-v1"], "Acrobot-v1"),
        (
            &["check-env", "Acrobot-v1", "--steps", "0"],
            "a whole number from 1",
        ),
        (&["train", "LunarLander-v3"], "is 'gym:LunarLander-v3'"),
    ] {
        let output = run(folder.path(), args);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.contains(expected), "{args:?}: {message}");
        assert!(
            !folder.path().join("runs").exists(),
            "{args:?} wrote something"
        );
    }
}

/// Without ROMs and without the means to fetch them, everything says which command helps.
#[test]
fn missing_roms_name_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let without = |args: &[&str]| {
        let mut command = starling(folder.path());
        command.env("STARLING_ROMS", folder.path().join("none"));
        command.env("XDG_CACHE_HOME", folder.path()).env("PATH", "");
        command.args(args).output().unwrap()
    };
    let train = without(&["train", "Pong", "--steps", "64"]);
    assert_eq!(train.status.code(), Some(1));
    assert!(stderr(&train).contains("ALE/Pong-v5 needs the ROM of pong"));
    assert!(
        stderr(&train).contains("`starling roms --from DIR`"),
        "{}",
        stderr(&train)
    );
    assert!(!folder.path().join("runs").exists());

    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(empty.join("pong.bin"), [0; 2048]).unwrap();
    let roms = without(&["roms", "--from", empty.to_str().unwrap()]);
    assert_eq!(roms.status.code(), Some(1));
    assert!(
        stderr(&roms).contains("is the ROM of a known game"),
        "{}",
        stderr(&roms)
    );
    let listed = without(&["roms", "--list"]);
    assert_eq!(listed.status.code(), Some(1));
    assert!(stdout(&listed).contains("0 of 104 games can be played"));

    let shown = without(&["config", "show", "Pong"]);
    assert!(stdout(&shown).contains("id: ALE/Pong-v5"));
    assert!(stdout(&shown).contains("life_loss: continues"));
    let doctor = stdout(&without(&["doctor"]));
    assert!(doctor.contains("0 of 104 ROMs"), "{doctor}");
    assert!(doctor.contains("missing  cargo      not found"), "{doctor}");
    assert!(doctor.contains("ok       bfloat16"), "{doctor}");
}

/// Without MuJoCo and without the means to fetch it, everything else works, and what needs it says which
/// command helps.
#[test]
fn missing_mujoco_names_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let without = |args: &[&str]| {
        let mut command = starling(folder.path());
        command.env_remove("STARLING_MUJOCO");
        command.env("XDG_CACHE_HOME", folder.path()).env("PATH", "");
        command.args(args).output().unwrap()
    };
    let listed = stdout(&without(&["list", "envs", "Cheetah"]));
    assert!(listed.starts_with("HalfCheetah-v5  run"), "{listed}");
    for command in ["train", "play", "check-env"] {
        let output = without(&[command, "HalfCheetah-v5"]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        let said = stderr(&output);
        let line = "HalfCheetah-v5 needs MuJoCo 3.17.0, which is not installed: downloading it";
        assert!(said.starts_with(line), "{said}");
        assert!(said.contains("error: python3 cannot be run"), "{said}");
        assert!(said.contains("STARLING_MUJOCO may name a folder"), "{said}");
    }
    assert!(!folder.path().join("runs").exists());
    assert_eq!(without(&["mujoco"]).status.code(), Some(1));
    let doctor = stdout(&without(&["doctor"]));
    assert!(
        doctor.contains("ok       mujoco     not installed (`"),
        "{doctor}"
    );
    let unknown = stderr(&without(&["train", "HalfCheetah-v2"]));
    assert!(
        unknown.contains("did you mean one of 'HalfCheetah-v5', 'HalfCheetah-v4'?"),
        "{unknown}"
    );

    // A folder that is named is the only one; nothing is downloaded instead.
    let named = |text: &str| {
        std::fs::write(folder.path().join("libmujoco.so.3.17.0"), text).unwrap();
        let mut command = starling(folder.path());
        command.env("STARLING_MUJOCO", folder.path());
        command
            .args(["check-env", "HalfCheetah-v5"])
            .output()
            .unwrap()
    };
    let output = named("not a library");
    assert_eq!(output.status.code(), Some(1));
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert!(said.contains("cannot be opened as a library"), "{said}");
    assert!(
        said.contains("remove it and run `./starling mujoco`"),
        "{said}"
    );
}
