//! Trained policies as files for other programs, and the comparison of what they compute.

use std::path::Path;

use serde_json::{Value, json};
use starling_algos::{
    ACTION, Computation, Exported, Inputs, LAST_ACTION, LAST_REWARD, LEGAL, NEXT, REWARD, Spaces,
    TERMINATED, Z, Z_MEAN, Z_STD, observation_names,
};
use starling_envs::{Action, EnvError, ObsMut, Rng, Space, stream};
use starling_nets::export::{Element, Evaluation, NotExported};
use starling_nets::{Device, Kind, Snapshot, Tensor, array_of, fill_normal, tensor_of};
use starling_record::Checkpoint;
use starling_tree::{Array, DType, Tree};

use crate::run::config::spaces_of;
use crate::run::evaluate::weights_of;
use crate::{EngineError, RunConfig};

/// The policy of a run, ready to be written as ONNX or TorchScript.
///
/// It is the policy as evaluations play it, without the random actions of `algo.epsilon_eval`, in float32
/// (`algo.net.bf16` is not followed).
#[derive(Debug)]
pub struct Exporter {
    exported: Exported,
    config: RunConfig,
    spaces: Spaces,
    step: u64,
}

/// One of the files that a policy is written to.
#[derive(Clone, Copy, Debug)]
pub struct ExportedFile<'a> {
    /// `policy` or `encoder`.
    pub part: &'static str,
    computation: &'a Computation,
    exporter: &'a Exporter,
}

/// What a file is given in real episodes, and what the program itself computes from it.
#[derive(Debug)]
pub struct Samples {
    /// Inputs by name, `[N, ..]`.
    pub inputs: Vec<(String, Tensor)>,
    /// Outputs by name, `[N, ..]`.
    pub outputs: Vec<(String, Tensor)>,
}

/// How far the outputs of a file are from those of the program.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    /// The largest difference of a number, relative to numbers above 1.
    pub largest: f64,
    /// Where it is.
    pub output: String,
    /// Discrete actions that differ because two of them are equally good within [`TOLERANCE`].
    pub ties: usize,
}

/// Numbers may differ by as much, relative to numbers above 1.
pub const TOLERANCE: f64 = 1e-5;

/// What goes wrong when a policy is exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The run cannot be read, or its environment failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The policy has no export, or the file cannot be written or read.
    #[error(transparent)]
    NotExported(#[from] NotExported),
    /// The file computes something else.
    #[error("the file does not compute what the program computes: {0}")]
    Differs(String),
}

impl From<EnvError> for ExportError {
    fn from(error: EnvError) -> Self {
        Self::Engine(error.into())
    }
}

impl Exporter {
    /// The policy of a checkpoint.
    pub fn new(config: &RunConfig, checkpoint: &Checkpoint) -> Result<Self, ExportError> {
        let weights = |config: &RunConfig, algorithm: &dyn starling_algos::Algorithm| {
            weights_of(config, checkpoint, algorithm, Device::Cpu)
        };
        Self::with_weights(config, checkpoint.step(), weights)
    }

    /// The policy with weights that are made for its algorithm.
    pub fn with_weights(
        config: &RunConfig,
        step: u64,
        weights: impl FnOnce(
            &RunConfig,
            &dyn starling_algos::Algorithm,
        ) -> Result<Snapshot, EngineError>,
    ) -> Result<Self, ExportError> {
        let mut config = config.clone();
        if let Some(bf16) = config.algo.pointer_mut("/net/bf16") {
            *bf16 = false.into();
        }
        let env = config.env_spec()?.make(&config.env)?;
        let spaces = Spaces {
            frame_stack: None,
            ..spaces_of(&*env)
        };
        let algorithm = config
            .algo_spec()?
            .build(&config.algo, &spaces)
            .map_err(EngineError::from)?;
        let weights = weights(&config, &*algorithm)?;
        Ok(Self {
            exported: algorithm.export(&spaces, &weights)?,
            config,
            spaces,
            step,
        })
    }

    /// The files of the policy: itself, and the encoder that infers its z, if it has one.
    pub fn files(&self) -> Vec<ExportedFile<'_>> {
        let file = |part, computation| ExportedFile {
            part,
            computation,
            exporter: self,
        };
        let encoder = self.exported.encoder.as_ref();
        std::iter::once(file("policy", &self.exported.policy))
            .chain(encoder.map(|encoder| file("encoder", encoder)))
            .collect()
    }

    /// Plays this many steps in the environment of evaluations, with the program's own actions, and keeps
    /// what each file is given. All steps together are then given to it once more.
    pub fn samples(&self, steps: usize, seed: u64) -> Result<Vec<Samples>, ExportError> {
        let spec = self.config.env_spec()?;
        let mut env = spec.make(&(spec.for_evaluation)(&self.config.env))?;
        let mut rng = stream(seed, "export", 0);
        let mut obs = Tree::zeros(&self.spaces.observation.spec(), &[]);
        let mut legal = self.spaces.legal_actions.map(|count| vec![1u8; count]);
        let mut policy = Given::new(&self.exported.policy);
        let mut encoder = self.exported.encoder.as_ref().map(Given::new);
        let mut task = Task::new(&self.exported, stream(seed, "export", 1));
        let mut state = policy.first_state();
        let mut z = task.draw_z();
        env.reset(&mut rng, ObsMut::at(&mut obs, &[]))?;
        for _ in 0..steps.max(1) {
            let mut inputs = self.arrays("", &obs);
            if let Some(legal) = &mut legal {
                env.legal_actions(legal);
                inputs.push((LEGAL.to_owned(), Tensor::from_slice(legal).unsqueeze(0)));
            }
            inputs.extend(shared(&state));
            inputs.extend(shared(&z));
            let outputs = policy.give(&inputs);
            let Some(action) = named(&outputs, ACTION) else {
                return Err(NotExported("it has no output called 'action'".into()).into());
            };
            let chosen: Array = array_of(action);
            let taken = Action::at(&self.spaces.action, &chosen, &[0]);
            let before = self.arrays("", &obs);
            let step = env.step(taken, &mut rng, ObsMut::at(&mut obs, &[]))?;
            if let Some(encoder) = &mut encoder {
                let mut inputs = before;
                inputs.extend(self.arrays(NEXT, &obs));
                inputs.push((ACTION.to_owned(), action.shallow_clone()));
                inputs.push((REWARD.to_owned(), Tensor::from_slice(&[step.reward])));
                let terminated = Tensor::from_slice(&[u8::from(step.terminated)]);
                inputs.push((TERMINATED.to_owned(), terminated));
                task.infer(encoder, inputs);
            }
            if step.done() {
                env.reset(&mut rng, ObsMut::at(&mut obs, &[]))?;
                state = policy.first_state();
                z = task.draw_z();
                continue;
            }
            for (name, state) in &mut state {
                *state = match name.as_str() {
                    LAST_ACTION => action.shallow_clone(),
                    LAST_REWARD => Tensor::from_slice(&[step.reward]),
                    name => match named(&outputs, &next_name(name)) {
                        Some(next) => next.shallow_clone(),
                        None => continue,
                    },
                };
            }
        }
        let given = std::iter::once(policy).chain(encoder);
        Ok(given.map(Given::samples).collect())
    }

    /// The arrays of an observation, `[1, ..]` each, with names that begin with `prefix`.
    fn arrays(&self, prefix: &str, obs: &Tree<Array>) -> Vec<(String, Tensor)> {
        let names = observation_names(&self.spaces.observation).into_iter();
        let arrays = names.zip(obs.leaves()).map(|(name, (_, array))| {
            let tensor = tensor_of(array, Device::Cpu).unsqueeze(0);
            (format!("{prefix}{name}"), tensor)
        });
        arrays.collect()
    }
}

impl ExportedFile<'_> {
    /// Inputs by name, with their shapes.
    pub fn inputs(&self) -> Vec<String> {
        let inputs = self.computation.graph.inputs().into_iter();
        inputs.map(|(name, value)| described(name, value)).collect()
    }

    /// Outputs by name, with their shapes.
    pub fn outputs(&self) -> Vec<String> {
        let outputs = self.computation.graph.outputs().into_iter();
        outputs
            .map(|(name, value)| described(name, value))
            .collect()
    }

    /// The metadata of the file: the origin of the policy, and the spaces.
    pub fn metadata(&self) -> Vec<(String, String)> {
        let exporter = self.exporter;
        let settings = exporter.config.to_value();
        let text = |value: Value| value.to_string();
        let entries = [
            ("starling_version", env!("CARGO_PKG_VERSION").to_owned()),
            ("part", self.part.to_owned()),
            ("algorithm", exporter.config.algo_name.clone()),
            ("environment", exporter.config.env_id.clone()),
            ("environment_settings", text(settings["env"].clone())),
            ("step", exporter.step.to_string()),
            ("seed", exporter.config.settings.seed.to_string()),
            (
                "observation_space",
                text(described_space(&exporter.spaces.observation)),
            ),
            (
                "action_space",
                text(described_space(&exporter.spaces.action)),
            ),
        ];
        entries.map(|(key, value)| (key.to_owned(), value)).into()
    }

    /// Writes an ONNX file.
    pub fn write_onnx(&self, path: &Path) -> Result<(), ExportError> {
        Ok(self.computation.graph.write_onnx(path, &self.metadata())?)
    }

    /// Writes a TorchScript file, whose metadata is the JSON in its extra file `starling.json`.
    pub fn write_torchscript(&self, path: &Path) -> Result<(), ExportError> {
        let metadata: serde_json::Map<String, Value> = self
            .metadata()
            .into_iter()
            .map(|(key, value)| (key, value.into()))
            .collect();
        let about = Value::Object(metadata).to_string();
        Ok(self.computation.graph.write_torchscript(path, &about)?)
    }

    /// What an ONNX file computes from the inputs of samples, by an evaluation of the file with libtorch.
    pub fn run_onnx(
        &self,
        path: &Path,
        samples: &Samples,
    ) -> Result<Vec<(String, Tensor)>, ExportError> {
        let bytes = std::fs::read(path);
        let bytes = bytes.map_err(|error| NotExported(format!("{}: {error}", path.display())))?;
        Ok(Evaluation::read(&bytes)?.run(&samples.inputs)?)
    }

    /// What a TorchScript file computes from the inputs of samples.
    pub fn run_torchscript(
        &self,
        path: &Path,
        samples: &Samples,
    ) -> Result<Vec<(String, Tensor)>, ExportError> {
        Ok(self
            .computation
            .graph
            .run_torchscript(path, &samples.inputs)?)
    }
}

/// A computation, and everything that it was given.
struct Given<'a> {
    computation: &'a Computation,
    /// By the number of the input.
    rows: Vec<Vec<Tensor>>,
}

impl<'a> Given<'a> {
    fn new(computation: &'a Computation) -> Self {
        let rows = computation.graph.inputs().into_iter().map(|_| Vec::new());
        Self {
            computation,
            rows: rows.collect(),
        }
    }

    fn names(&self) -> Vec<String> {
        let inputs = self.computation.graph.inputs().into_iter();
        inputs.map(|(name, _)| name.to_owned()).collect()
    }

    /// What it computes from the inputs that it has, each `[1, ..]`.
    fn give(&mut self, all: &[(String, Tensor)]) -> Vec<(String, Tensor)> {
        let mut inputs = Vec::new();
        for (name, rows) in self.names().into_iter().zip(&mut self.rows) {
            if let Some(value) = named(all, &name) {
                rows.push(value.shallow_clone());
                inputs.push((name, value.shallow_clone()));
            }
        }
        (self.computation.reference)(&Inputs(&inputs))
    }

    /// What it remembers where an episode begins, `[1, ..]` each.
    fn first_state(&self) -> Vec<(String, Tensor)> {
        let graph = &self.computation.graph;
        let outputs = graph.outputs();
        let remembered = |name: &str| {
            let next = next_name(name);
            [LAST_ACTION, LAST_REWARD].contains(&name)
                || outputs.iter().any(|(other, _)| *other == next)
        };
        let inputs = graph.inputs().into_iter();
        let state = inputs.filter(|(name, _)| remembered(name));
        let first = state.map(|(name, value)| {
            let mut shape = value.shape.clone();
            shape[0] = 1;
            let (kind, number) = match value.element {
                // No action was taken yet.
                Element::I64 => (Kind::Int64, -1),
                _ => (Kind::Float, 0),
            };
            let first = Tensor::full(shape.as_slice(), number, (kind, Device::Cpu));
            (name.to_owned(), first)
        });
        first.collect()
    }

    /// All that it was given, at once.
    fn samples(self) -> Samples {
        let names = self.names().into_iter();
        let inputs: Vec<(String, Tensor)> = names
            .zip(&self.rows)
            .map(|(name, rows)| (name, Tensor::cat(rows, 0)))
            .collect();
        let outputs = (self.computation.reference)(&Inputs(&inputs));
        Samples { inputs, outputs }
    }
}

/// What is known of the task that is played, for policies that infer it.
struct Task {
    rng: Rng,
    /// Of z; 0 without one.
    size: usize,
    mean_and_std: Option<(Tensor, Tensor)>,
    /// What the encoder remembers.
    state: Vec<(String, Tensor)>,
}

impl Task {
    fn new(exported: &Exported, rng: Rng) -> Self {
        let inputs = exported.policy.graph.inputs().into_iter();
        let z = inputs.filter(|(name, _)| *name == Z);
        let encoder = exported.encoder.as_ref().map(Given::new);
        Self {
            rng,
            size: z.map(|(_, value)| value.shape[1] as usize).sum(),
            mean_and_std: None,
            state: encoder.map_or_else(Vec::new, |encoder| encoder.first_state()),
        }
    }

    /// The z of a trajectory, from what the earlier ones have shown.
    fn draw_z(&mut self) -> Vec<(String, Tensor)> {
        if self.size == 0 {
            return Vec::new();
        }
        let mut noise = vec![0.0; self.size];
        fill_normal(&mut self.rng, &mut noise);
        let noise = Tensor::from_slice(&noise).unsqueeze(0);
        let z = match &self.mean_and_std {
            Some((mean, std)) => mean + std * noise,
            None => noise,
        };
        vec![(Z.to_owned(), z)]
    }

    fn infer(&mut self, encoder: &mut Given<'_>, mut inputs: Vec<(String, Tensor)>) {
        inputs.extend(shared(&self.state));
        let outputs = encoder.give(&inputs);
        for (name, state) in &mut self.state {
            if let Some(next) = named(&outputs, &next_name(name)) {
                *state = next.shallow_clone();
            }
        }
        let both = (named(&outputs, Z_MEAN), named(&outputs, Z_STD));
        if let (Some(mean), Some(std)) = both {
            self.mean_and_std = Some((mean.shallow_clone(), std.shallow_clone()));
        }
    }
}

fn named<'a>(values: &'a [(String, Tensor)], name: &str) -> Option<&'a Tensor> {
    let found = values.iter().find(|(other, _)| other == name);
    found.map(|(_, value)| value)
}

/// The output that is the input of this name in the next step.
fn next_name(name: &str) -> String {
    format!("{name}_next")
}

fn shared(values: &[(String, Tensor)]) -> impl Iterator<Item = (String, Tensor)> {
    values
        .iter()
        .map(|(name, value)| (name.clone(), value.shallow_clone()))
}

impl Samples {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.inputs
            .first()
            .map_or(0, |(_, tensor)| tensor.size()[0] as usize)
    }

    /// Compares what a file computed with what the program computes.
    ///
    /// # Errors
    /// [`ExportError::Differs`] if an output is missing or differs by more than [`TOLERANCE`].
    pub fn compare(&self, outputs: &[(String, Tensor)]) -> Result<Agreement, ExportError> {
        let mut agreement = Agreement {
            largest: 0.0,
            output: String::new(),
            ties: 0,
        };
        for (name, expected) in &self.outputs {
            let found = outputs.iter().find(|(other, _)| other == name);
            let Some((_, found)) = found else {
                return Err(ExportError::Differs(format!(
                    "it has no output called '{name}'"
                )));
            };
            if found.size() != expected.size() {
                let (found, expected) = (found.size(), expected.size());
                let text = format!("'{name}' has the shape {found:?}, {expected:?} is expected");
                return Err(ExportError::Differs(text));
            }
            if expected.kind() == Kind::Int64 {
                agreement.ties += self.differing_choices(name, found, expected)?;
                continue;
            }
            let (found, expected) = (numbers(found), numbers(expected));
            for (found, expected) in found.iter().zip(&expected) {
                let difference = (found - expected).abs() / expected.abs().max(1.0);
                if difference.is_nan() || difference > TOLERANCE {
                    let text = format!("'{name}' is {found}, {expected} is expected");
                    return Err(ExportError::Differs(text));
                }
                if difference >= agreement.largest {
                    (agreement.largest, agreement.output) = (difference, name.clone());
                }
            }
        }
        Ok(agreement)
    }

    /// How many actions differ, which have to be as good as those expected.
    fn differing_choices(
        &self,
        name: &str,
        found: &Tensor,
        expected: &Tensor,
    ) -> Result<usize, ExportError> {
        let (found, expected) = (array_of(found), array_of(expected));
        let (found, expected) = (found.as_slice::<i64>(), expected.as_slice::<i64>());
        let scores = ["q_values", "logits"];
        let scores = self
            .outputs
            .iter()
            .find(|(name, _)| scores.contains(&&**name));
        let mut ties = 0;
        for (row, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            if found == expected {
                continue;
            }
            let tied = scores.is_some_and(|(_, scores)| {
                let score = |action: i64| scores.double_value(&[row as i64, action]);
                // Several choices per action have their logits side by side.
                let single =
                    scores.size()[0] as usize == self.count() && self.outputs[0].1.dim() == 1;
                let width = scores.size()[1];
                single
                    && (0..width).contains(&found)
                    && (score(found) - score(expected)).abs()
                        <= TOLERANCE * score(expected).abs().max(1.0)
            });
            if !tied {
                let text = format!("'{name}' is {found} in row {row}, {expected} is expected");
                return Err(ExportError::Differs(text));
            }
            ties += 1;
        }
        Ok(ties)
    }
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    let array = array_of(&tensor.to_kind(Kind::Double));
    array.as_slice::<f64>().to_vec()
}

/// `hidden [batch, 128] float32`.
fn described(name: &str, value: &starling_nets::export::Value) -> String {
    let sizes = value.shape.iter().map(|&size| match size {
        -1 => "batch".to_owned(),
        size => size.to_string(),
    });
    let element = match value.element {
        Element::F32 => "float32",
        Element::F64 => "float64",
        Element::U8 => "uint8",
        Element::I32 => "int32",
        Element::I64 => "int64",
        Element::Bool => "bool",
    };
    let sizes: Vec<String> = sizes.collect();
    format!("{name} [{}] {element}", sizes.join(", "))
}

/// A space as JSON, with Gymnasium's names. Infinite bounds are null.
fn described_space(space: &Space) -> Value {
    match space {
        Space::Discrete { n } => json!({"type": "Discrete", "n": n}),
        Space::MultiDiscrete { choices } => json!({"type": "MultiDiscrete", "nvec": choices}),
        Space::Box {
            dtype,
            shape,
            bounds,
        } => {
            let count: usize = shape.iter().product();
            let pairs = (0..count).map(|i| bounds.of(i));
            let (low, high): (Vec<f32>, Vec<f32>) = pairs.unzip();
            // One number where all elements have the same.
            let short = |values: Vec<f32>| match values.first() {
                Some(&first) if values.iter().all(|&value| value == first) => json!(first),
                _ => json!(values),
            };
            let dtype = match dtype {
                DType::U8 => "uint8",
                _ => "float32",
            };
            json!({"type": "Box", "shape": shape, "dtype": dtype, "low": short(low), "high": short(high)})
        }
        Space::Dict(parts) => {
            let parts = parts
                .iter()
                .map(|(name, part)| (name.clone(), described_space(part)));
            json!({"type": "Dict", "spaces": parts.collect::<serde_json::Map<_, _>>()})
        }
    }
}
