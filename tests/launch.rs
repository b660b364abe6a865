//! `starling launch`: start, restart and shutdown of processes over a real sshd; scripts and manifests.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use starling::record::{Table, checkpoint};
use starling_testing::{
    Process, SlurmCluster, SshServer, formations, only_run, processes_in, signal, text, wait_for,
};

#[path = "support/saved.rs"]
mod support;
use support::{saved, steps_of_saved};

fn starling(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.args(args);
    command
}

/// A server, a home and a folder for programs that it starts, and a folder for the launcher.
struct Site {
    root: tempfile::TempDir,
    server: SshServer,
}

impl Site {
    fn new(test: &str) -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        for folder in ["ssh", "home", "far", "here"] {
            std::fs::create_dir(root.path().join(folder)).unwrap();
        }
        let server = SshServer::start(test, &root.path().join("ssh"), &root.path().join("home"))?;
        Some(Self { root, server })
    }

    fn far(&self) -> PathBuf {
        self.root.path().join("far")
    }

    fn here(&self) -> PathBuf {
        self.root.path().join("here")
    }

    /// A plan whose learner is behind ssh, as JSON, which is YAML too.
    fn plan(&self, steps: u64, more: &Value) -> PathBuf {
        let libtorch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.libtorch/lib");
        let mut plan = json!({
            "run": {
                "env": "CartPole-v1",
                "algo": {"name": "ppo", "net": {"hidden": [16]}},
                "preset": "none",
                "steps": steps,
                "threads": 2,
                "envs": 4,
                "torch_threads": 1,
                "log_every_steps": 2000,
                "checkpoint": {"every_steps": 2000},
                "eval": {"every_steps": 4000, "episodes": 2},
            },
            "learner": {
                "host": self.server.host(),
                "listen": "127.0.0.1:0",
                "device": "cpu",
            },
            "libtorch": libtorch.canonicalize().unwrap(),
            "folder": self.far(),
            "ssh": self.server.options(),
        });
        for (key, value) in more.as_object().unwrap() {
            plan[key] = value.clone();
        }
        let file = self.here().join("cluster.yaml");
        std::fs::write(&file, plan.to_string()).unwrap();
        file
    }

    fn launch(&self) -> Process {
        let command = starling(&["launch", "cluster.yaml"]);
        Process::start(command, &self.here(), "said.txt")
    }

    fn said(&self) -> String {
        let mut said = text(self.here().join("said.txt"));
        for role in [
            "learner-0",
            "learner-1",
            "actor-0",
            "actor-1",
            "evaluator-0",
        ] {
            let file = self.here().join("launch").join(format!("{role}.txt"));
            said += &format!("--- {role}\n{}", text(file));
        }
        said
    }

    /// The folder of the run.
    fn run(&self) -> Option<PathBuf> {
        only_run(&self.far())
    }

    fn steps(&self) -> f64 {
        let table = self.run().map(|run| Table::read(&run.join("progress.csv")));
        let column = table.and_then(|table| table.ok()?.column("Diagnostics/CumSteps"));
        column
            .and_then(|column| column.last().copied())
            .unwrap_or(0.0)
    }

    /// Processes of a role that run behind ssh.
    fn running(&self, role: &str) -> Vec<u32> {
        let all = processes_in(&self.far()).into_iter();
        let its = all.filter(|(_, words)| words.get(1).is_some_and(|word| word == role));
        its.map(|(id, _)| id).collect()
    }

    fn nothing_is_left(&self) {
        wait_for("all processes to end", || {
            processes_in(&self.far()).is_empty()
        });
    }
}

/// The program is copied and all roles run. A killed actor is restarted, and so is the learner, which
/// resumes from its checkpoint. All end when the run has ended.
#[test]
fn roles_are_started_over_ssh_and_kept_going() {
    let Some(site) = Site::new("roles_are_started_over_ssh_and_kept_going") else {
        return;
    };
    let host = site.server.host();
    site.plan(
        300_000,
        &json!({
            "actors": [{"host": host, "threads": 1}, {"host": "local", "threads": 1}],
            "evaluators": [{"host": host}],
        }),
    );
    let launch = site.launch();
    wait_for("the first steps", || site.steps() > 4_000.0);
    let actors = site.running("actor");
    assert_eq!(actors.len(), 1, "{}", site.said());
    signal(actors[0], "KILL");
    wait_for("another actor", || {
        let now = site.running("actor");
        !now.is_empty() && now != actors
    });
    let run = site.run().unwrap();
    wait_for("a checkpoint and an evaluation", || {
        let evaluated = Table::read(&run.join("eval.csv"));
        let evaluated = evaluated.is_ok_and(|table| !table.column("env_steps").unwrap().is_empty());
        evaluated && checkpoint::latest(&run.join("checkpoints")).is_ok()
    });
    for learner in site.running("train") {
        signal(learner, "KILL");
    }
    assert_eq!(launch.end(), 0, "{}", site.said());
    site.nothing_is_left();
    assert!(site.steps() >= 300_000.0, "{}", site.said());
    let programs = site.root.path().join("home/.cache/starling/launch");
    let copies = std::fs::read_dir(programs).unwrap().count();
    assert_eq!(copies, 1, "the program is copied once");
    let said = text(site.here().join("said.txt"));
    assert!(
        said.contains("restarting") && said.contains("ended"),
        "{said}"
    );
    assert!(
        said.lines().all(|line| line.chars().count() <= 200),
        "{said}"
    );
    let evaluated = Table::read(&run.join("eval.csv")).unwrap();
    assert!(!evaluated.column("env_steps").unwrap().is_empty());
    assert!(text(run.join("log.txt")).contains("joined: "));
}

/// Two learners of a group and two actors, one for each learner. A learner that is killed is started again
/// and joins, learner 0 is resumed when it is killed, and in the end both have the same weights.
#[test]
fn a_group_of_learners_is_started_over_ssh() {
    let Some(site) = Site::new("a_group_of_learners_is_started_over_ssh") else {
        return;
    };
    let host = site.server.host();
    let more = json!({
        "learners": [{"host": host, "device": "cpu"}],
        "actors": [{"host": host, "threads": 2, "count": 2}],
        "program": env!("CARGO_BIN_EXE_starling"),
    });
    site.plan(100_000_000, &more);
    // Both learners have their actors elsewhere.
    let launch = site.launch();
    wait_for("the first steps", || site.steps() > 4_000.0);
    let run = site.run().unwrap();
    let log = || text(run.join("log.txt"));
    let groups = || formations(&log());
    assert_eq!(groups()[0].1, [0, 1], "{}", site.said());
    assert_eq!(site.running("actor").len(), 2, "{}", site.said());
    let whole = |after: usize| {
        wait_for("a group of two", || {
            let all = groups();
            all.len() > after && all.last().is_some_and(|(_, members)| members.len() == 2)
        });
        let before = site.steps();
        wait_for("more steps", || site.steps() > before + 4_000.0);
    };
    let others = site.running("learner");
    assert_eq!(others.len(), 1, "{}", site.said());
    let before = groups().len();
    signal(others[0], "KILL");
    whole(before);
    wait_for("a checkpoint", || {
        checkpoint::latest(&run.join("checkpoints")).is_ok()
    });
    let before = groups().len();
    for learner in site.running("train") {
        signal(learner, "KILL");
    }
    whole(before);
    launch.signal("INT");
    assert_eq!(launch.end(), 130, "{}", site.said());
    site.nothing_is_left();
    let first = saved(&run);
    let other = site.far().join("learner-1");
    assert!(saved(&other) == first, "they differ");
    assert_eq!(steps_of_saved(&other), steps_of_saved(&run));
    for learner in [&run, &other] {
        let log = text(learner.join("log.txt"));
        assert!(log.contains("actors join at"), "{log}");
    }
}

/// Ctrl-C ends all, with a checkpoint. A launcher that is killed takes all with it, too.
#[test]
fn ctrl_c_and_the_death_of_the_launcher_end_all() {
    let Some(site) = Site::new("ctrl_c_and_the_death_of_the_launcher_end_all") else {
        return;
    };
    let host = site.server.host();
    let actors = json!({
        "actors": [{"host": host, "count": 2, "threads": 1}],
        "program": env!("CARGO_BIN_EXE_starling"),
    });
    site.plan(100_000_000, &actors);
    let launch = site.launch();
    wait_for("the first steps", || site.steps() > 2_000.0);
    launch.signal("INT");
    assert_eq!(launch.end(), 130, "{}", site.said());
    site.nothing_is_left();
    let run = site.run().unwrap();
    checkpoint::latest(&run.join("checkpoints")).unwrap();
    assert!(text(run.join("log.txt")).contains("Interrupted"));

    std::fs::remove_dir_all(site.far().join("runs")).unwrap();
    let launch = site.launch();
    wait_for("the first steps", || site.steps() > 2_000.0);
    assert_eq!(site.running("actor").len(), 2);
    launch.kill();
    site.nothing_is_left();
    let run = site.run().unwrap();
    assert!(text(run.join("log.txt")).contains("Interrupted"));
}

/// Processes that stand still until this is dropped.
struct Suspended(Vec<u32>);

impl Drop for Suspended {
    fn drop(&mut self) {
        for process in &self.0 {
            let mut command = Command::new("kill");
            let _ = command
                .args(["-s", "CONT", &process.to_string()])
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// A launcher that cannot be reached, while all connections stay open: its processes end by themselves,
/// the learner with a checkpoint.
#[test]
fn processes_end_when_the_launcher_is_out_of_reach() {
    let Some(site) = Site::new("processes_end_when_the_launcher_is_out_of_reach") else {
        return;
    };
    let more = json!({
        "actors": [{"host": site.server.host(), "threads": 2}],
        "program": env!("CARGO_BIN_EXE_starling"),
        "heartbeat_timeout_s": 10,
    });
    site.plan(100_000_000, &more);
    let launch = site.launch();
    wait_for("the first steps", || site.steps() > 2_000.0);
    // Longer than the timeout: heartbeats arrive.
    let before = site.running("train");
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(site.running("train"), before, "{}", site.said());
    let all = processes_in(&site.here()).into_iter();
    let clients = all.filter(|(_, words)| words.first().is_some_and(|word| word == "ssh"));
    let clients: Vec<u32> = clients.map(|(id, _)| id).collect();
    assert_eq!(clients.len(), 2, "{}", site.said());
    clients.iter().for_each(|client| signal(*client, "STOP"));
    let suspended = Suspended(clients);
    site.nothing_is_left();
    let run = site.run().unwrap();
    checkpoint::latest(&run.join("checkpoints")).unwrap();
    let log = text(run.join("log.txt"));
    assert!(
        log.contains("no heartbeat from the launcher for 10 s") && log.contains("Interrupted"),
        "{log}"
    );
    launch.kill();
    drop(suspended);
}

/// A role that fails repeatedly ends the launch, with its last lines.
#[test]
fn a_role_that_cannot_run_ends_the_launch() {
    let Some(site) = Site::new("a_role_that_cannot_run_ends_the_launch") else {
        return;
    };
    let more = json!({
        "program": "/nowhere/starling",
        "actors": [{"host": "local", "threads": 1}],
        "restarts": {"most": 2, "within_s": 60},
    });
    site.plan(1_000, &more);
    assert_eq!(site.launch().end(), 1, "{}", site.said());
    let said = text(site.here().join("said.txt"));
    assert!(said.contains("learner 0 on 127.0.0.1"), "{said}");
    assert!(
        said.contains("failed 2 times") && said.contains("/nowhere/starling"),
        "{said}"
    );
    site.nothing_is_left();
}

/// Errors in a plan are reported before anything is started.
#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let good = json!({
        "run": {"env": "CartPole-v1"},
        "learner": {"host": "local"},
        "actors": [{"host": "local"}],
    });
    let with = |key: &str, value: Value| {
        let mut plan = good.clone();
        plan[key] = value;
        plan.to_string()
    };
    for (name, content, expected) in [
        ("a.yaml", with("actor", json!([])), "unknown field `actor`"),
        ("b.yaml", with("run", json!({})), "run.env is missing"),
        (
            "c.yaml",
            with("actors", json!([{"host": "-oProxyCommand=x"}])),
            "is not a host",
        ),
        (
            "d.yaml",
            with("run", json!({"env": "CartPole-v1", "setps": 5})),
            "setps",
        ),
        (
            "e.csv",
            "job,ip,ssh_password\nlearner,gpu1,geheim\n".into(),
            "'ssh_password' is refused",
        ),
        (
            "h.yaml",
            with("heartbeat_timeout_s", json!(0)),
            "allowed: 1 to 86400",
        ),
        ("f.csv", "job,ip\nactor,cpu1\n".into(), "'learner'"),
        (
            "g.csv",
            "job,ip\nlearner,cpu1\n".into(),
            "run.env is missing",
        ),
    ] {
        std::fs::write(folder.path().join(name), content).unwrap();
        let launch = Process::start(starling(&["launch", name]), folder.path(), "said.txt");
        let code = launch.end();
        let said = text(folder.path().join("said.txt"));
        assert!(said.contains(expected), "{name}: {said}");
        assert!(!said.contains("geheim"), "{said}");
        assert_eq!(code, 2, "{name}: {said}");
    }
}

fn printed(folder: &Path, what: &str, file: &str, more: &[&str]) -> String {
    let mut command = starling(&["launch", file, "--print", what]);
    let output = command.args(more).current_dir(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

/// A plan for a small cluster.
fn write_cluster(folder: &Path) {
    let plan = "\
run: {env: CartPole-v1, algo: ppo, threads: 8, envs: 32, eval.every_steps: 10000}
learner: {host: gpu01}
actors:
  - {host: 'cpu[01-03]', count: 2, threads: 4}
evaluators: [{host: cpu04}]
kubernetes: {image: 'registry/starling:1', learner_gpus: 1, namespace: rl}
slurm: {nodes: 3, cpus_per_task: 4, time: '01:00:00', options: ['--gres=gpu:1']}
";
    std::fs::write(folder.join("cluster.yaml"), plan).unwrap();
}

#[test]
fn a_script_for_slurm_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    write_cluster(folder.path());
    let more = ["--program", "/opt/star ling"];
    let script = printed(folder.path(), "slurm", "cluster.yaml", &more);
    for expected in [
        "#SBATCH --ntasks=8\n",
        "#SBATCH --gres=gpu:1\n",
        "srun --ntasks=6 --exact --kill-on-bad-exit=0",
        "'/opt/star ling' actor --threads 4 --join \"$join\"",
        "'/opt/star ling' evaluator --join \"$join\"",
        "eval.by=evaluators",
    ] {
        assert!(script.contains(expected), "{expected}: {script}");
    }
    // Over Redis, the learner says how actors reach the server.
    let plan = text(folder.path().join("cluster.yaml")).replace(
        "learner: {host: gpu01}",
        "learner: {host: gpu01, advertise: 'redis1:7'}\ntransport: rediss://10.0.0.5",
    );
    std::fs::write(folder.path().join("redis.yaml"), plan).unwrap();
    let over_redis = printed(folder.path(), "slurm", "redis.yaml", &more);
    assert!(
        over_redis.contains("--listen rediss://10.0.0.5 --advertise redis1:7 "),
        "{over_redis}"
    );
    let file = folder.path().join("job.sh");
    std::fs::write(&file, &script).unwrap();
    let checked = Command::new("bash").arg("-n").arg(&file).status().unwrap();
    assert!(checked.success(), "{script}");
}

/// A plan for a group of learners.
fn write_group(folder: &Path) {
    let plan = "\
run: {env: CartPole-v1, algo: ppo, preset: none, steps: 6000, threads: 1, envs: 4, device: cpu, torch_threads: 1}
learner: {host: local, listen: '127.0.0.1:0', advertise: 127.0.0.1, learners_at: '127.0.0.1:0'}
learners: [{host: local}]
actors: [{host: local, count: 2, threads: 1}]
";
    std::fs::write(folder.join("group.yaml"), plan).unwrap();
}

/// The same for a group: each learner has its actor.
#[test]
fn the_script_of_a_group_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write_group(path);
    let program = env!("CARGO_BIN_EXE_starling");
    let script = printed(path, "slurm", "group.yaml", &["--program", program]);
    assert!(script.contains("learners=2"), "{script}");
    let stand_in = "srun() { while [[ $1 == --* ]]; do shift; done; exec \"$@\"; }\n\
                    scontrol() { echo 127.0.0.1; }\n";
    std::fs::write(path.join("job.sh"), format!("{stand_in}{script}")).unwrap();
    let mut command = Command::new("bash");
    command.arg("job.sh").env("SLURM_SUBMIT_DIR", path);
    command
        .env("SLURM_JOB_ID", "7")
        .env("SLURM_JOB_NODELIST", "n1");
    let job = Process::start(command, path, "said.txt");
    assert_eq!(job.end(), 0, "{}", text(path.join("said.txt")));
    let said = text(path.join("said.txt"));
    assert_eq!(said.matches("has place").count(), 2, "{said}");
    let runs = path.join("starling-7/CartPole-v1/ppo");
    let run = std::fs::read_dir(runs).unwrap().next().unwrap().unwrap();
    let other = path.join("starling-7/learner-1");
    assert!(saved(&run.path()) == saved(&other), "{said}");
}

/// Runs the script with shell functions in place of Slurm's commands: the learner starts, actors join
/// with its file, and a requeued job resumes the run.
#[test]
fn the_script_for_slurm_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let plan = "\
run: {env: CartPole-v1, algo: ppo, preset: none, steps: 6000, threads: 1, envs: 4, device: cpu, torch_threads: 1}
learner: {host: local, listen: '127.0.0.1:0'}
actors: [{host: local, threads: 1}]
";
    std::fs::write(path.join("cluster.yaml"), plan).unwrap();
    let program = env!("CARGO_BIN_EXE_starling");
    let script = printed(path, "slurm", "cluster.yaml", &["--program", program]);
    // `srun` without what it would do elsewhere; the learner is found at this machine.
    let stand_in = "srun() { while [[ $1 == --* ]]; do shift; done; exec \"$@\"; }\n\
                    scontrol() { echo 127.0.0.1; }\n";
    std::fs::write(path.join("job.sh"), format!("{stand_in}{script}")).unwrap();
    for (restart, log) in [("0", "first.txt"), ("1", "second.txt")] {
        let mut command = Command::new("bash");
        command.arg("job.sh").env("SLURM_SUBMIT_DIR", path);
        command
            .env("SLURM_JOB_ID", "7")
            .env("SLURM_JOB_NODELIST", "n1");
        command.env("SLURM_RESTART_COUNT", restart);
        let job = Process::start(command, path, log);
        assert_eq!(job.end(), 0, "{}", text(path.join(log)));
    }
    let runs = std::fs::read_dir(path.join("starling-7/CartPole-v1/ppo")).unwrap();
    assert_eq!(
        runs.count(),
        1,
        "the second job continues the run of the first"
    );
}

/// A real Slurm runs it on two nodes, with all roles.
#[test]
fn slurm_runs_the_script() {
    let folder = tempfile::tempdir().unwrap();
    let (slurm, job) = (folder.path().join("slurm"), folder.path().join("job"));
    std::fs::create_dir(&slurm).unwrap();
    std::fs::create_dir(&job).unwrap();
    let Some(cluster) = SlurmCluster::start("slurm_runs_the_script", &slurm) else {
        return;
    };
    let plan = "\
run: {env: CartPole-v1, algo: ppo, preset: none, steps: 10000, threads: 2, envs: 4, device: cpu, torch_threads: 1, eval: {every_steps: 4000, episodes: 2}}
learner: {host: local, listen: '127.0.0.1:0', advertise: 127.0.0.1}
actors: [{host: local, count: 2, threads: 1}]
evaluators: [{host: local}]
slurm: {nodes: 2}
";
    std::fs::write(job.join("cluster.yaml"), plan).unwrap();
    let program = env!("CARGO_BIN_EXE_starling");
    let script = printed(&job, "slurm", "cluster.yaml", &["--program", program]);
    std::fs::write(job.join("job.sh"), script).unwrap();
    let mut sbatch = cluster.command("sbatch");
    sbatch.args(["--wait", "--output=said.txt", "job.sh"]);
    let ended = Process::start(sbatch, &job, "sbatch.txt").end();
    let said = text(job.join("said.txt")) + &text(job.join("sbatch.txt"));
    assert_eq!(ended, 0, "{said}");
    assert_eq!(said.matches("has place").count(), 2, "{said}");
    assert!(said.contains("the evaluator ended"), "{said}");
}

#[test]
fn manifests_for_kubernetes_are_valid() {
    let test = "manifests_for_kubernetes_are_valid";
    let folder = tempfile::tempdir().unwrap();
    write_cluster(folder.path());
    let manifests = printed(folder.path(), "kubernetes", "cluster.yaml", &[]);
    for expected in [
        "StatefulSet",
        "replicas: 6",
        "secretKeyRef",
        "namespace: rl",
    ] {
        assert!(manifests.contains(expected), "{expected}: {manifests}");
    }
    let file = folder.path().join("all.yaml");
    std::fs::write(&file, &manifests).unwrap();
    let python = std::env::var("STARLING_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let has_it = Command::new(&python)
        .args(["-c", "import kubernetes_validate"])
        .stderr(Stdio::null())
        .status();
    if !has_it.is_ok_and(|status| status.success()) {
        let why = format!("{python} has no kubernetes-validate");
        starling_testing::skip("kubernetes-validate", test, &why);
        return;
    }
    let check = "import sys, yaml, kubernetes_validate as k\n\
                 docs = list(yaml.safe_load_all(open(sys.argv[1])))\n\
                 [k.validate(doc, '1.31', strict=True) for doc in docs]\n\
                 print(len(docs))";
    let checked = |file: &Path| {
        let mut command = Command::new(&python);
        command.args(["-c", check]).arg(file).output().unwrap()
    };
    let output = checked(&file);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "5");
    // A group: each learner has its pod, and its actors.
    write_group(folder.path());
    let group = printed(folder.path(), "kubernetes", "group.yaml", &[]);
    for expected in [
        "replicas: 2",
        "join-1.json",
        "learners.json",
        "starling learner --rank",
        "starling-run-learner-0.starling-run-learner:7788",
    ] {
        assert!(group.contains(expected), "{expected}: {group}");
    }
    let file_of_group = folder.path().join("group-all.yaml");
    std::fs::write(&file_of_group, &group).unwrap();
    let output = checked(&file_of_group);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    // The check finds what is wrong.
    std::fs::write(&file, manifests.replace("replicas:", "replicsa:")).unwrap();
    assert!(!checked(&file).status.success());
}
