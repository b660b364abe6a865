//! Exported policies compute what the program computes: every algorithm and every part of a network, in
//! ONNX Runtime, in the program's own evaluation of ONNX files, and as TorchScript.
//!
//! Weights are those that a run begins with, moved a little, so that running statistics and biases count.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::path::{Path, PathBuf};

use rand::RngExt as _;
use serde_json::{Value, json};
use starling::engine::{Agreement, ExportedFile, Exporter, RunConfig, Samples, TOLERANCE};
use starling::envs::registry::{self, MakeEnv};
use starling::envs::{Action, Env, EnvError, EnvSpec, ObsMut, Rng, Space, Step, stream};
use starling::nets::{Device, Snapshot};
use starling::onnxruntime;
use starling::settings::{self, Request};

fn python() -> PathBuf {
    std::env::var_os("STARLING_TEST_PYTHON").map_or_else(|| "python3".into(), PathBuf::from)
}

fn has_onnxruntime(test: &str) -> bool {
    let python = python();
    let there = onnxruntime::is_in(&python);
    if !there {
        let why = format!(
            "{} cannot import onnxruntime (pip install onnxruntime onnx)",
            python.display()
        );
        starling_testing::skip("onnxruntime", &format!("export: {test}"), &why);
    }
    there
}

/// An exporter with the first weights of a run, each number moved by up to 0.05.
fn exporter(config: &RunConfig) -> Exporter {
    let moved = |config: &RunConfig, algorithm: &dyn starling::algos::Algorithm| {
        let first = algorithm
            .learner(config.settings.seed, Device::Cpu)
            .weights();
        let mut rng = stream(7, "moved", 0);
        let moved = first
            .values()
            .iter()
            .map(|value| value + 0.05 * rng.random::<f32>());
        Ok(Snapshot::from_values(moved.collect()))
    };
    Exporter::with_weights(config, 123, moved).unwrap()
}

fn config(env: &str, algo: &str, overrides: &[&str]) -> RunConfig {
    let request = Request {
        algo: Some(algo.to_owned()),
        overrides: overrides.iter().map(|&pair| pair.to_owned()).collect(),
        ..Request::new(env)
    };
    settings::resolve(&request).unwrap()
}

/// Writes both formats, and compares what they compute.
fn check(what: &str, config: &RunConfig, folder: &Path) -> Vec<Agreement> {
    starling::nets::set_threads(1);
    let exporter = exporter(config);
    let samples = exporter.samples(24, 3).unwrap();
    let files = exporter.files();
    assert_eq!(files.len(), samples.len());
    let checked = files.iter().zip(&samples).flat_map(|(file, samples)| {
        check_file(&format!("{what}_{}", file.part), file, samples, folder)
    });
    checked.collect()
}

fn check_file(
    what: &str,
    file: &ExportedFile<'_>,
    samples: &Samples,
    folder: &Path,
) -> Vec<Agreement> {
    assert_eq!(samples.count(), 24);
    let (onnx, script) = (
        folder.join(format!("{what}.onnx")),
        folder.join(format!("{what}.pt")),
    );
    file.write_onnx(&onnx).unwrap();
    file.write_torchscript(&script).unwrap();
    let own = file.run_onnx(&onnx, samples).unwrap();
    let script = file.run_torchscript(&script, samples).unwrap();
    let theirs = onnxruntime::run(&python(), &onnx, &samples.inputs).unwrap();
    let all = [
        ("own", own),
        ("torchscript", script),
        ("onnxruntime", theirs.outputs),
    ];
    let compared = all.into_iter().map(|(by, outputs)| {
        let agreement = samples
            .compare(&outputs)
            .unwrap_or_else(|error| panic!("{what}, {by}: {error}"));
        assert!(
            agreement.largest <= TOLERANCE,
            "{what}, {by}: {agreement:?}"
        );
        agreement
    });
    compared.collect()
}

/// The checker of the ONNX project, with its inference of shapes.
fn check_files(folder: &Path) {
    let script = "import sys, glob, onnx
for path in sorted(glob.glob(sys.argv[1] + '/*.onnx')):
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    keys = {entry.key for entry in model.metadata_props}
    assert {'algorithm', 'environment', 'environment_settings', 'step', 'observation_space',
            'action_space', 'starling_version'} <= keys, keys
";
    let mut command = starling::python::interpreter::command(&python());
    let output = command.args(["-c", script]).arg(folder).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// One for each family of networks and for each algorithm with its own way to act.
const CASES: [(&str, &str, &str, &[&str]); 24] = [
    (
        "ppo",
        "CartPole-v1",
        "ppo",
        &["algo.net.normalize_observations=true"],
    ),
    (
        "a2c",
        "Acrobot-v1",
        "a2c",
        &["algo.net.separate_critic=true", "algo.net.layer_norm=true"],
    ),
    (
        "impala",
        "MinAtar/Breakout-v1",
        "impala",
        &["algo.net.torso=resnet"],
    ),
    (
        "appo",
        "MinAtar/Seaquest-v1",
        "appo",
        &["algo.net.torso=resnet", "algo.net.padding=same"],
    ),
    (
        "ppo_lstm",
        "CartPoleMasked-v1",
        "ppo",
        &[
            "algo.net.lstm=16",
            "algo.net.lstm_forget_bias=1",
            "algo.net.last_action_reward=true",
            "algo.net.separate_critic=true",
        ],
    ),
    (
        "ppo_continuous",
        "Pendulum-v1",
        "ppo",
        &["algo.net.lstm=8", "algo.net.last_action_reward=true"],
    ),
    (
        "dqn",
        "MinAtar/Freeway-v1",
        "dqn",
        &["algo.net.layer_norm=true"],
    ),
    (
        "dqn_dueling",
        "CartPole-v1",
        "dqn",
        &[
            "algo.net.dueling=true",
            "algo.net.advantage_bias=false",
            "algo.net.dueling_gradient=0.7",
            "algo.net.head_hidden=16",
        ],
    ),
    ("c51", "CartPole-v1", "c51", &["algo.net.activation=tanh"]),
    ("qr_dqn", "CartPole-v1", "qr-dqn", &[]),
    ("iqn", "CartPole-v1", "iqn", &["algo.net.dueling=true"]),
    ("rainbow", "MinAtar/Asterix-v1", "rainbow", &[]),
    (
        "rainbow_iqn",
        "MinAtar/SpaceInvaders-v1",
        "rainbow-iqn",
        &[],
    ),
    ("pqn", "CartPole-v1", "pqn", &[]),
    ("r2d2", "TMaze-v0", "r2d2", &["algo.lstm=32"]),
    ("ngu", "KeyDoor-v0", "ngu", &["algo.lstm=32"]),
    (
        "ngu_beta",
        "KeyDoor-v0",
        "ngu",
        &["algo.lstm=32", "algo.beta=0.3"],
    ),
    (
        "sac",
        "Pendulum-v1",
        "sac",
        &["algo.net.layers=residual", "algo.net.hidden=[32,32]"],
    ),
    (
        "crossq",
        "MountainCarContinuous-v0",
        "crossq",
        &["algo.net.hidden=[32,32]"],
    ),
    ("td3", "Pendulum-v1", "td3", &[]),
    ("ddpg", "MountainCarContinuous-v0", "ddpg", &[]),
    ("pearl", "PointRobot-v0", "pearl", &[]),
    (
        "pearl_sparse",
        "SparsePointRobot-v0",
        "pearl",
        &["algo.context_next_obs=true"],
    ),
    (
        "pearl_oracle",
        "PointRobot-v0",
        "pearl",
        &["algo.latent_size=0", "env.show_task=true"],
    ),
];

#[test]
fn every_family_agrees_with_onnxruntime() {
    if !has_onnxruntime("every_family_agrees_with_onnxruntime") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (what, env, algo, overrides) in CASES {
        check(what, &config(env, algo, overrides), folder.path());
    }
    check_files(folder.path());
    // No algorithm is left out: some share the networks and policies above.
    for algo in starling::algos::registry::all() {
        let tried = CASES.iter().any(|(_, _, name, _)| *name == algo.name);
        let alike = [
            "apex-dqn",
            "apex-rainbow",
            "apex-rainbow-iqn",
            "epsilon-rainbow",
        ];
        assert!(
            tried || alike.contains(&algo.name),
            "{} is not tried",
            algo.name
        );
    }
}

#[test]
fn atari_agents_take_bytes() {
    if std::env::var_os("STARLING_ROMS").is_none() {
        let why = "STARLING_ROMS is not set";
        starling_testing::skip("roms", "export: atari_agents_take_bytes", why);
        return;
    }
    if !has_onnxruntime("atari_agents_take_bytes") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = config(
        "ALE/Pong-v5",
        "ppo",
        &["algo.net.bf16=true", "algo.net.channels_last=true"],
    );
    check("pong", &config, folder.path());
    check_files(folder.path());
}

/// Named parts of an observation, choices among them, and actions of which some are illegal, or several
/// choices at once.
struct Parts {
    several: bool,
    at: u8,
}

impl Parts {
    fn show(&self, mut obs: ObsMut<'_>) {
        let map: Vec<u8> = (0..18).map(|i| (i * 7 + self.at) % 5).collect();
        obs.part::<u8>("map").copy_from_slice(&map);
        let me = [f32::from(self.at) * 0.1, -1.0, 2.0];
        obs.part::<f32>("me").copy_from_slice(&me);
        obs.part::<i64>("place")[0] = i64::from(self.at % 4);
        let keys = [i64::from(self.at % 2), i64::from(self.at % 3)];
        obs.part::<i64>("keys").copy_from_slice(&keys);
    }
}

impl Env for Parts {
    fn observation_space(&self) -> Space {
        Space::Dict(vec![
            ("map".into(), Space::bytes(&[2, 3, 3], 4)),
            ("me".into(), Space::unbounded(&[3])),
            ("place".into(), Space::Discrete { n: 4 }),
            (
                "keys".into(),
                Space::MultiDiscrete {
                    choices: vec![2, 3],
                },
            ),
        ])
    }

    fn action_space(&self) -> Space {
        match self.several {
            true => Space::MultiDiscrete {
                choices: vec![3, 2],
            },
            false => Space::Discrete { n: 5 },
        }
    }

    fn masks_actions(&self) -> bool {
        !self.several
    }

    fn legal_actions(&self, legal: &mut [u8]) {
        for (i, legal) in legal.iter_mut().enumerate() {
            *legal = u8::from((i + usize::from(self.at)) % 3 != 0);
        }
    }

    fn reset(&mut self, _: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.at = 0;
        self.show(obs);
        Ok(())
    }

    fn step(&mut self, _: Action<'_>, _: &mut Rng, obs: ObsMut<'_>) -> Result<Step, EnvError> {
        self.at += 1;
        self.show(obs);
        Ok(Step {
            reward: f32::from(self.at),
            terminated: self.at == 9,
            truncated: false,
        })
    }
}

#[test]
fn named_parts_masks_and_several_choices() {
    let make: [(&'static str, MakeEnv); 2] = [
        ("Parts-v0", |_, _| {
            Ok(Box::new(Parts {
                several: false,
                at: 0,
            }))
        }),
        ("SeveralParts-v0", |_, _| {
            Ok(Box::new(Parts {
                several: true,
                at: 0,
            }))
        }),
    ];
    for (id, make) in make {
        registry::add(EnvSpec::new(id, "test", "named parts", make)).unwrap();
    }
    if !has_onnxruntime("named_parts_masks_and_several_choices") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = |env: &str, algo: Value| {
        RunConfig::from_value(&json!({"env": {"id": env}, "algo": algo, "device": "cpu"})).unwrap()
    };
    let net = json!({"normalize_observations": true, "lstm": 8, "last_action_reward": true});
    for (what, env, algo) in [
        ("masked_ppo", "Parts-v0", json!({"name": "ppo", "net": net})),
        (
            "several",
            "SeveralParts-v0",
            json!({"name": "ppo", "net": net}),
        ),
        (
            "masked_dqn",
            "Parts-v0",
            json!({"name": "dqn", "net": {"dueling": true, "dueling_legal": true}}),
        ),
        (
            "masked_iqn",
            "Parts-v0",
            json!({"name": "iqn", "net": {"dueling": true, "dueling_legal": true}}),
        ),
        (
            "masked_r2d2",
            "Parts-v0",
            json!({"name": "r2d2", "lstm": 8,
                                           "net": {"dueling": true, "dueling_legal": true}}),
        ),
    ] {
        check(what, &config(env, algo), folder.path());
    }
    check_files(folder.path());
}

/// A file that computes something else is found out.
#[test]
fn differences_are_found() {
    let exporter = exporter(&config("CartPole-v1", "dqn", &[]));
    let (files, samples) = (exporter.files(), exporter.samples(8, 1).unwrap());
    let ([file], [samples]) = (&files[..], &samples[..]) else {
        panic!("one file: {files:?}");
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.onnx");
    file.write_onnx(&path).unwrap();
    let mut outputs = file.run_onnx(&path, samples).unwrap();
    assert!(samples.compare(&outputs).unwrap().largest <= TOLERANCE);
    let (_, values) = outputs
        .iter_mut()
        .find(|(name, _)| name == "q_values")
        .unwrap();
    *values = &*values + 1e-3;
    let error = samples.compare(&outputs).unwrap_err().to_string();
    assert!(error.contains("'q_values' is "), "{error}");
    outputs.retain(|(name, _)| name != "q_values");
    assert!(
        samples
            .compare(&outputs)
            .unwrap_err()
            .to_string()
            .contains("no output")
    );
    // A checkpoint of the weights is not needed for a description.
    assert_eq!(file.inputs(), ["observation [batch, 4] float32"]);
    assert_eq!(
        file.outputs(),
        ["action [batch] int64", "q_values [batch, 2] float32"]
    );
}
