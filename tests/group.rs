//! Groups of learners in separate processes: equivalence with one learner, and recovery from failures.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use starling::record::{Table, checkpoint};
use starling_testing::{Process, children, formations, only_run, signal, text, wait_for};

#[path = "support/saved.rs"]
mod support;
use support::{saved, steps_of_saved};

fn starling(folder: &Path, log: &str, args: &[&str]) -> Process {
    Process::run(env!("CARGO_BIN_EXE_starling"), folder, log, args)
}

fn run_of(folder: &Path) -> PathBuf {
    only_run(folder).unwrap()
}

const COMMON: [&str; 6] = [
    "--quiet",
    "--preset",
    "none",
    "device=cpu",
    "torch_threads=1",
    "threads=1",
];

fn train<'a>(env: &'a str, algo: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["train", env, "--algo", algo];
    all.extend(COMMON);
    all.extend(more);
    all
}

fn finish(folder: &Path, args: &[&str]) {
    let code = starling(folder, "out.txt", args).end();
    assert_eq!(code, 0, "{args:?}: {}", text(folder.join("out.txt")));
}

fn updates(run: &Path) -> f64 {
    let table = Table::read(&run.join("progress.csv")).unwrap();
    *table
        .column("Diagnostics/CumUpdates")
        .unwrap()
        .last()
        .unwrap()
}

/// The largest difference of weights, relative to the largest weight of the parameter.
fn difference(one: &[(String, Vec<f32>)], other: &[(String, Vec<f32>)]) -> f32 {
    let mut most = 0.0f32;
    for ((name, a), (same, b)) in one.iter().zip(other) {
        assert_eq!((name, a.len()), (same, b.len()));
        let largest = a.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
        let apart = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        most = most.max(apart.fold(0.0, f32::max) / largest);
    }
    most
}

/// Two learners with four environments each are one learner with eight: the same environments, the same
/// draws, and gradients that differ by the order in which numbers are added. Where A2C and IMPALA make
/// one gradient step per round, PPO makes four.
#[test]
fn two_learners_in_lockstep_are_one_with_the_joined_batch() {
    let ppo = ["algo.minibatches=1", "algo.normalize_advantage=false"];
    for (algo, more) in [("a2c", &[][..]), ("impala", &[]), ("ppo", &ppo)] {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let common = ["steps=1600", "log_every_steps=800", "algo.rollout_steps=10"];
        let args = |envs, learners| {
            let mut args = train("CartPole-v1", algo, &common);
            args.extend([envs, learners]);
            args.extend(more);
            args
        };
        finish(one.path(), &args("envs=8", "learners=1"));
        finish(two.path(), &args("envs=4", "learners=2"));
        let (one, two) = (run_of(one.path()), run_of(two.path()));
        assert_eq!((updates(&one), updates(&two)), (20.0, 20.0));
        let (alone, first) = (saved(&one), saved(&two));
        let second = saved(&two.join("learners/1"));
        assert!(first == second, "{algo}: the learners differ");
        let apart = difference(&alone.1, &first.1);
        assert!(apart < 1e-5, "{algo}: {apart}");
        // Episodes of both count.
        let returns = |run: &Path| {
            let table = Table::read(&run.join("progress.csv")).unwrap();
            table.column("ReturnAverage").unwrap()
        };
        assert_eq!(returns(&one), returns(&two), "{algo}");
    }
}

/// Algorithms of several families, in `mode=serial` and `mode=threads`.
#[test]
fn every_family_learns_in_a_group() {
    let replay = ["algo.learning_starts_steps=200", "algo.batch_size=8"];
    let recurrent = [
        "algo.learning_starts_steps=200",
        "algo.batch_size=4",
        "algo.net.hidden=[16]",
        "mode=threads",
    ];
    let continuous = [
        "algo.learning_starts_steps=400",
        "algo.batch_size=8",
        "algo.net.hidden=[16]",
        "algo.net.critic_hidden=[16]",
    ];
    let free = [
        "algo.learning_starts_steps=200",
        "algo.batch_size=8",
        "mode=threads",
        "asynchronous=true",
    ];
    let norm = [
        "algo.net.normalize_observations=true",
        "algo.rollout_steps=16",
        "mode=threads",
        "threads=2",
    ];
    let cases: [(&str, &str, &[&str]); 8] = [
        ("CartPole-v1", "dqn", &free),
        ("CartPole-v1", "rainbow", &replay),
        ("CartPole-v1", "iqn", &replay),
        ("CartPole-v1", "r2d2", &recurrent),
        ("CartPole-v1", "pqn", &[]),
        ("Pendulum-v1", "sac", &continuous),
        ("Pendulum-v1", "crossq", &continuous),
        ("Pendulum-v1", "ppo", &norm),
    ];
    for (env, algo, more) in cases {
        let folder = tempfile::tempdir().unwrap();
        let mut args = train(env, algo, &["steps=1000", "envs=4", "learners=2"]);
        args.push("log_every_steps=400");
        args.extend(more);
        finish(folder.path(), &args);
        let run = run_of(folder.path());
        assert!(updates(&run) > 2.0, "{algo}");
        let (first, second) = (saved(&run), saved(&run.join("learners/1")));
        assert!(
            first == second,
            "{algo}: {}",
            difference(&first.1, &second.1)
        );
    }
}

/// A group that was stopped and resumed has learned the same, bit for bit, as one that was not.
#[test]
fn a_group_in_lockstep_resumes_exactly() {
    let dqn = ["algo.learning_starts_steps=200", "algo.batch_size=8"];
    for (algo, more) in [("a2c", &[][..]), ("dqn", &dqn)] {
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut args = train("CartPole-v1", algo, &["steps=2000", "envs=2", "learners=2"]);
        args.extend(more);
        finish(whole.path(), &args);
        args.extend(["--stop-after", "1000"]);
        finish(parts.path(), &args);
        let run = run_of(parts.path());
        finish(
            parts.path(),
            &["resume", "--quiet", &run.display().to_string()],
        );
        let whole = run_of(whole.path());
        for learner in ["", "learners/1"] {
            let (one, other) = (saved(&whole.join(learner)), saved(&run.join(learner)));
            assert!(one == other, "{algo} {learner}");
        }
        assert!(
            !text(run.join("log.txt")).contains("new episodes"),
            "{algo}"
        );
    }
}

/// A learner that is killed is noticed at once. The other two continue as a group, the lost one is started
/// again and joins, and at the end all three have the same weights.
#[test]
fn a_killed_learner_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let more = [
        "steps=1e9",
        "envs=2",
        "learners=3",
        "algo.learning_starts_steps=200",
        "log_every_steps=500",
        "algo.batch_size=8",
    ];
    let args = train("CartPole-v1", "dqn", &more);
    let learner = starling(folder.path(), "out.txt", &args);
    let log = || only_run(folder.path()).map_or_else(String::new, |run| text(run.join("log.txt")));
    wait_for("the first rows", || log().matches("progress").count() > 2);
    assert_eq!(formations(&log()), [(1, vec![0, 1, 2])], "{}", log());
    let others = children(learner.id());
    assert_eq!(others.len(), 2);
    let rows = log().matches("progress").count();
    let killed = Instant::now();
    signal(others[0], "KILL");
    wait_for("the loss", || log().contains("a learner was lost"));
    assert!(killed.elapsed() < Duration::from_secs(30));
    // The other two are a group, unless the lost one is back before their next round.
    let three = vec![0, 1, 2];
    wait_for("a group of three", || {
        let groups = formations(&log());
        groups.len() > 1 && groups.last().is_some_and(|(_, members)| *members == three)
    });
    let groups = formations(&log());
    assert!(
        groups[1].1 == three || groups[1].1.len() == 2 && groups[1].1[0] == 0,
        "{groups:?}"
    );
    wait_for("more rows", || log().matches("progress").count() > rows + 3);
    learner.signal("INT");
    assert_eq!(
        learner.end(),
        130,
        "{}",
        text(folder.path().join("out.txt"))
    );
    let run = run_of(folder.path());
    let first = saved(&run);
    for other in ["learners/1", "learners/2"] {
        assert!(saved(&run.join(other)) == first, "{other}");
    }
}

/// PPO makes 16 gradient steps per update, so that a group usually breaks in the middle of one. The steps
/// before are not made again: in the end there are 16 per update, on all learners. Actors have threads of
/// their own here, and Ctrl-C ends all learners with a checkpoint.
#[test]
fn a_broken_update_makes_every_gradient_step_once() {
    let folder = tempfile::tempdir().unwrap();
    let more = [
        "steps=1e9",
        "envs=4",
        "learners=3",
        "mode=threads",
        "log_every_steps=2000",
        "algo.epochs=4",
        "algo.minibatches=4",
    ];
    let args = train("CartPole-v1", "ppo", &more);
    let learner = starling(folder.path(), "out.txt", &args);
    let log = || only_run(folder.path()).map_or_else(String::new, |run| text(run.join("log.txt")));
    // The group of all that was formed after so many groups.
    let whole_after = |groups: usize| {
        wait_for("a group of three", || {
            let formed = formations(&log());
            let newer = formed.iter().skip(groups);
            newer.last().is_some_and(|(_, members)| members.len() == 3)
        });
    };
    whole_after(0);
    for _ in 0..3 {
        let rows = log().matches("progress").count();
        wait_for("more rows", || log().matches("progress").count() > rows + 1);
        let (groups, others) = (formations(&log()).len(), children(learner.id()));
        assert_eq!(others.len(), 2);
        signal(others[0], "KILL");
        whole_after(groups);
    }
    learner.signal("INT");
    assert_eq!(
        learner.end(),
        130,
        "{}",
        text(folder.path().join("out.txt"))
    );
    let run = run_of(folder.path());
    let (updates, steps) = steps_of_saved(&run);
    assert_eq!(steps, 16 * updates);
    for other in ["learners/1", "learners/2"] {
        assert_eq!(steps_of_saved(&run.join(other)), (updates, steps));
        assert!(saved(&run.join(other)) == saved(&run), "{other}");
    }
}

/// A group resumes although the checkpoint of one learner is damaged: that learner gets the weights from
/// the others. Its checkpoint is kept for inspection.
#[test]
fn a_damaged_checkpoint_of_a_learner_does_not_end_the_group() {
    let folder = tempfile::tempdir().unwrap();
    let mut args = train(
        "CartPole-v1",
        "dqn",
        &["steps=2000", "envs=2", "learners=2"],
    );
    args.extend(["algo.learning_starts_steps=200", "algo.batch_size=8"]);
    args.extend(["--stop-after", "1000"]);
    finish(folder.path(), &args);
    let run = run_of(folder.path());
    let other = run.join("learners/1");
    let (latest, _) = checkpoint::latest(&other.join("checkpoints")).unwrap();
    let file = latest.path().join("learner.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    finish(
        folder.path(),
        &["resume", "--quiet", &run.display().to_string()],
    );
    assert!(saved(&run) == saved(&other));
    assert!(other.join("checkpoints.1").is_dir());
    let log = text(other.join("log.txt"));
    assert!(log.contains("the replay is empty"), "{log}");
}

/// The processes of `selftest` add up numbers, and one notices that the other is lost.
#[test]
fn the_selftest_of_a_group_passes() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["selftest", "--device", "cpu", "--only", "group"];
    finish(folder.path(), &args);
}

/// Without a GPU, NCCL is refused with a sentence.
#[test]
fn nccl_needs_a_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["steps=2000", "envs=2", "learners=2", "collective=nccl"];
    let args = train("CartPole-v1", "a2c", &settings);
    assert_eq!(starling(folder.path(), "out.txt", &args).end(), 1);
    let said = text(folder.path().join("out.txt"));
    assert!(said.contains("collective=nccl needs a GPU"), "{said}");
}

/// `mpirun` of `STARLING_MPIRUN`, or the one that is installed.
fn mpirun(test: &str) -> Option<Command> {
    let given = std::env::var_os("STARLING_MPIRUN").unwrap_or_else(|| "mpirun".into());
    let version = Command::new(&given).arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        starling_testing::skip("mpi", test, "mpirun is not installed");
        return None;
    }
    let mut command = Command::new(given);
    // More processes than cores, and in a container as root.
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // Only this machine.
    command.env("OMPI_MCA_btl", "self,vader,tcp");
    command.env("OMPI_MCA_pml", "ob1");
    Some(command)
}

/// Starts so many processes, whose messages go to a file.
fn start_mpi(mut mpirun: Command, folder: &Path, processes: &str, args: &[&str]) -> Process {
    mpirun.args(["-n", processes, env!("CARGO_BIN_EXE_starling")]);
    mpirun.args(args);
    Process::start_printing(mpirun, folder, "mpi.txt")
}

/// The same calls as for Gloo give the right results, and two learners have the same bits as with Gloo,
/// because a sum of two numbers has only one order.
#[test]
fn learners_of_mpi_are_those_of_gloo() {
    let test = "learners_of_mpi_are_those_of_gloo";
    let folder = tempfile::tempdir().unwrap();
    for processes in ["2", "3"] {
        let Some(mpirun) = mpirun(test) else { return };
        let args = ["selftest", "--device", "cpu", "--only", "group"];
        let args = [&args[..], &["--collective", "mpi"]].concat();
        let process = start_mpi(mpirun, folder.path(), processes, &args);
        let code = process.end();
        let said = text(folder.path().join("mpi.txt"));
        assert_eq!(code, 0, "{said}");
        assert!(
            said.contains(&format!("{processes} processes agree")),
            "{said}"
        );
    }
    let settings = ["steps=2000", "envs=2", "learners=2"];
    let mut args = train("CartPole-v1", "a2c", &settings);
    let gloo = tempfile::tempdir().unwrap();
    finish(gloo.path(), &args);
    args.push("collective=mpi");
    let Some(mpirun) = mpirun(test) else { return };
    let code = start_mpi(mpirun, folder.path(), "2", &args).end();
    assert_eq!(code, 0, "{}", text(folder.path().join("mpi.txt")));
    let (run, gloo) = (run_of(folder.path()), run_of(gloo.path()));
    for learner in ["", "learners/1"] {
        assert!(
            saved(&run.join(learner)) == saved(&gloo.join(learner)),
            "{learner}"
        );
    }
}

/// Without one of its processes a group of MPI ends, and the run can be resumed.
#[test]
fn a_group_of_mpi_ends_with_a_lost_learner_and_resumes() {
    let test = "a_group_of_mpi_ends_with_a_lost_learner_and_resumes";
    let folder = tempfile::tempdir().unwrap();
    let more = [
        "steps=1e9",
        "envs=2",
        "learners=2",
        "collective=mpi",
        "checkpoint.every_steps=1000",
    ];
    let args = train("CartPole-v1", "a2c", &more);
    let Some(command) = mpirun(test) else { return };
    let process = start_mpi(command, folder.path(), "2", &args);
    let saved_both = || {
        let Some(run) = only_run(folder.path()) else {
            return false;
        };
        let has = |folder: PathBuf| checkpoint::latest(&folder.join("checkpoints")).is_ok();
        has(run.clone()) && has(run.join("learners/1"))
    };
    wait_for("checkpoints", saved_both);
    // MPICH has a process in between.
    let mut learners = children(process.id());
    learners.extend(learners.clone().into_iter().flat_map(children));
    let first = learners.iter().find(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        environment.contains("OMPI_COMM_WORLD_RANK=1") || environment.contains("PMI_RANK=1")
    });
    signal(*first.unwrap(), "KILL");
    assert_ne!(process.end(), 0);
    let run = run_of(folder.path());
    let (step, _) = saved(&run);
    let until = format!("steps={}", step + 1000);
    let path = run.display().to_string();
    let Some(command) = mpirun(test) else { return };
    let resume = ["resume", "--quiet", &path, &until];
    let code = start_mpi(command, folder.path(), "2", &resume).end();
    assert_eq!(code, 0, "{}", text(folder.path().join("mpi.txt")));
    assert!(saved(&run) == saved(&run.join("learners/1")));
    // Without mpirun there is only one process, or no library.
    let alone = starling(folder.path(), "alone.txt", &args);
    assert_ne!(alone.end(), 0);
    let said = text(folder.path().join("alone.txt"));
    assert!(
        said.contains("mpirun -n 2") || said.contains("no MPI library was found"),
        "{said}"
    );
}

/// A learner that cannot continue ends the run with its reason, and nothing is left running.
#[test]
fn a_failure_ends_all_learners_with_one_message() {
    let folder = tempfile::tempdir().unwrap();
    let mut args = train("CartPole-v1", "ppo", &["steps=1e9", "envs=2", "learners=2"]);
    args.push("max_learner_losses=0");
    let learner = starling(folder.path(), "out.txt", &args);
    let joined = || {
        only_run(folder.path()).is_some_and(|run| text(run.join("log.txt")).contains("in group 1"))
    };
    wait_for("the group", joined);
    let others = children(learner.id());
    signal(others[0], "KILL");
    assert_eq!(learner.end(), 1);
    let said = text(folder.path().join("out.txt"));
    assert!(said.contains("learner 1 was lost"), "{said}");
    assert!(said.contains("max_learner_losses"), "{said}");
}

/// A group whose actors are elsewhere learns what it learns with its own, bit for bit: with an actor
/// process for each learner, and with one for both.
#[test]
fn a_group_with_remote_actors_is_the_same_group() {
    for (algo, together) in [("impala", false), ("ppo", true)] {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let more = ["steps=4000", "envs=4", "learners=2", "mode=threads"];
        let mut args = train("CartPole-v1", algo, &more);
        finish(here.path(), &args);
        args.extend(["--listen", "127.0.0.1:0"]);
        let path = there.path();
        let learner = starling(path, "out.txt", &args);
        let files = || {
            let run = only_run(path)?;
            let files = [run.join("join.json"), run.join("learners/1/join.json")];
            files.iter().all(|file| file.exists()).then_some(files)
        };
        wait_for("both join files", || files().is_some());
        let files = files().unwrap().map(|file| file.display().to_string());
        let actor = |log: &str, files: &[String]| {
            let threads = files.len().to_string();
            let mut args = vec!["actor", "--threads", &threads];
            files.iter().for_each(|file| args.extend(["--join", file]));
            starling(path, log, &args)
        };
        let actors = match together {
            true => vec![actor("actors.txt", &files)],
            false => vec![actor("one.txt", &files[..1]), actor("two.txt", &files[1..])],
        };
        assert_eq!(learner.end(), 0, "{}", text(path.join("out.txt")));
        for actor in actors {
            assert_eq!(actor.end(), 0);
        }
        let (here, there) = (run_of(here.path()), run_of(path));
        for learner in ["", "learners/1"] {
            let (one, other) = (saved(&here.join(learner)), saved(&there.join(learner)));
            assert!(one == other, "{algo} {learner}");
        }
    }
}

/// A learner of another process joins by the file, is refused without the token, and ends with the run.
#[test]
fn learners_elsewhere_join_by_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let more = [
        "steps=4000",
        "envs=2",
        "learners=2",
        "--learners-at",
        "127.0.0.1:0",
    ];
    let args = train("CartPole-v1", "a2c", &more);
    let learner = starling(folder.path(), "out.txt", &args);
    let join = || only_run(folder.path()).map(|run| run.join("learners.json"));
    wait_for("the join file", || join().is_some_and(|file| file.exists()));
    let file = join().unwrap();
    let strange = text(&file).replacen("\"token\": \"", "\"token\": \"0", 1);
    std::fs::write(folder.path().join("strange.json"), strange).unwrap();
    let stranger = starling(
        folder.path(),
        "strange.txt",
        &["learner", "--join", "strange.json"],
    );
    assert_eq!(stranger.end(), 1);
    let said = text(folder.path().join("strange.txt"));
    assert!(said.contains("invalid token"), "{said}");
    let file = file.display().to_string();
    let other = starling(folder.path(), "other.txt", &["learner", "--join", &file]);
    assert_eq!(learner.end(), 0, "{}", text(folder.path().join("out.txt")));
    assert_eq!(other.end(), 0, "{}", text(folder.path().join("other.txt")));
    let run = run_of(folder.path());
    assert!(saved(&run) == saved(&folder.path().join("learner-1")));
}
