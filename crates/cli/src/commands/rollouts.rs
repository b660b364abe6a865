//! The steps of evaluations as JSON lines.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use crate::engine::EpisodeStep;
use crate::tree::{Array, DType, Tree, View};

/// A file of steps: one line each, whole episodes one after the other in the order in which they end.
pub(super) struct Rollouts {
    path: PathBuf,
    file: BufWriter<File>,
    /// Lines of episodes under way.
    open: BTreeMap<usize, String>,
    failed: Option<std::io::Error>,
}

/// Larger observations, such as images, are left out.
const MOST_NUMBERS: usize = 1024;

impl Rollouts {
    pub(super) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Self {
            path: path.to_owned(),
            file: BufWriter::new(file),
            open: BTreeMap::new(),
            failed: None,
        })
    }

    pub(super) fn add(&mut self, step: &EpisodeStep<'_>) {
        let lines = self.open.entry(step.episode).or_default();
        // An episode that was cut off by a failure begins again.
        if step.step == 0 {
            lines.clear();
        }
        lines.push_str(&line(step).to_string());
        lines.push('\n');
        if !(flag(&step.rollout.terminated, step.env) || flag(&step.rollout.truncated, step.env)) {
            return;
        }
        let lines = self.open.remove(&step.episode).unwrap_or_default();
        if let Err(error) = self.file.write_all(lines.as_bytes()) {
            self.failed.get_or_insert(error);
        }
    }

    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        let written = self.failed.map_or_else(|| self.file.flush(), Err);
        written.with_context(|| format!("{} cannot be written", self.path.display()))
    }
}

fn flag(column: &Array, env: usize) -> bool {
    column.at(&[0, env]).bytes[0] != 0
}

fn line(step: &EpisodeStep<'_>) -> Value {
    let (rollout, at) = (step.rollout, [0, step.env]);
    let mut line = json!({
        "episode": step.episode,
        "step": step.step,
        "action": numbers(rollout.actions.at(&at)),
        "reward": rollout.rewards.at(&at).as_slice::<f32>()[0],
        "terminated": flag(&rollout.terminated, step.env),
        "truncated": flag(&rollout.truncated, step.env),
    });
    if let Some(observation) = observation(&rollout.obs, &at) {
        line["observation"] = observation;
    }
    if let Some(legal) = &rollout.legal {
        line["legal_actions"] = numbers(legal.at(&at));
    }
    line
}

/// The arrays of an observation that are small enough; none if no array is.
fn observation(obs: &Tree<Array>, at: &[usize]) -> Option<Value> {
    match obs {
        Tree::Leaf(array) => {
            let view = array.at(at);
            let count: usize = view.shape.iter().product();
            (count <= MOST_NUMBERS).then(|| numbers(view))
        }
        Tree::Node(parts) => {
            let parts = parts.iter();
            let parts =
                parts.filter_map(|(name, part)| Some((name.clone(), observation(part, at)?)));
            let parts: Map<String, Value> = parts.collect();
            (!parts.is_empty()).then_some(Value::Object(parts))
        }
    }
}

/// Numbers in row-major order; a single one if the item is a scalar.
fn numbers(view: View<'_>) -> Value {
    let scalar = view.shape.is_empty();
    let values: Vec<Value> = match view.dtype {
        DType::U8 => view.as_slice::<u8>().iter().map(|&x| x.into()).collect(),
        DType::I32 => view.as_slice::<i32>().iter().map(|&x| x.into()).collect(),
        DType::I64 => view.as_slice::<i64>().iter().map(|&x| x.into()).collect(),
        DType::F32 => view.as_slice::<f32>().iter().map(|&x| x.into()).collect(),
        DType::F64 => view.as_slice::<f64>().iter().map(|&x| x.into()).collect(),
    };
    match (scalar, values.as_slice()) {
        (true, [single]) => single.clone(),
        _ => Value::Array(values),
    }
}
