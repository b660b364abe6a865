//! For tests: updates of off-policy learners for continuous actions, as PyTorch computed them.

use serde_json::Value;
use starling_envs::Space;
use starling_replay::{Layout, TransitionBatch};
use starling_tree::{Array, DType, Spec, Tree};

use crate::{Learner, Progress, Report, Saved, Spaces};

pub(crate) const PROGRESS: Progress = Progress {
    env_steps: 0,
    total_steps: 1,
};

pub(crate) fn spaces() -> Spaces {
    Spaces {
        observation: Space::unbounded(&[3]),
        action: Space::vector(&[-2.0, 0.0], &[2.0, 4.0]),
        legal_actions: None,
        frame_stack: None,
    }
}

/// A batch of this many transitions, all zero.
pub(crate) fn empty_batch(size: usize) -> TransitionBatch {
    let rows = Layout {
        observation: spaces().observation.spec(),
        action: Spec::new(DType::F32, &[2]),
        legal_actions: None,
        records: Tree::empty(),
        state: Tree::empty(),
        streams: 1,
    };
    TransitionBatch::new(&rows, size)
}

pub(crate) fn numbers(value: &Value) -> Vec<f32> {
    let numbers = value.as_array().unwrap().iter();
    numbers.map(|x| x.as_f64().unwrap() as f32).collect()
}

/// The transitions of a case. `returns` is what it calls them; weights are given or stay zero.
pub(crate) fn batch(inputs: &Value, returns: &str) -> TransitionBatch {
    let mut batch = empty_batch(numbers(&inputs[returns]).len());
    let fill = |array: &mut Array, name: &str| {
        let values = numbers(&inputs[name]);
        array.as_mut_slice::<f32>().copy_from_slice(&values);
    };
    for (tree, name) in [(&mut batch.obs, "obs"), (&mut batch.next_obs, "next_obs")] {
        let Tree::Leaf(array) = tree else {
            panic!("an observation is one array here");
        };
        fill(array, name);
    }
    fill(&mut batch.actions, "actions");
    fill(&mut batch.returns, returns);
    fill(&mut batch.discounts, "discounts");
    if inputs.get("weights").is_some() {
        fill(&mut batch.weights, "weights");
    }
    batch
}

/// Gives a learner the parameters that PyTorch began with.
pub(crate) fn begin(learner: &mut dyn Learner, case: &Value) {
    let mut saved: Saved = learner.save();
    for (name, value) in case["before"].as_object().unwrap() {
        let shape = value["shape"].as_array().unwrap().iter();
        let shape: Vec<usize> = shape.map(|n| n.as_u64().unwrap() as usize).collect();
        let array = Array::from_slice(&numbers(&value["values"]), &shape);
        let old = saved.insert(name.clone(), array);
        assert!(old.is_some(), "{name} is not saved");
    }
    learner.load(&saved).unwrap();
}

/// Compares what an update reported and changed.
pub(crate) fn compare(learner: &dyn Learner, report: &Report, case: &Value, tolerance: f64) {
    for (metric, theirs) in case["metrics"].as_object().unwrap() {
        let ours = report.metrics.iter().find(|(name, _)| name == metric);
        close(ours.unwrap().1, theirs.as_f64().unwrap(), tolerance, metric);
    }
    let saved = learner.save();
    for (name, theirs) in case["after"].as_object().unwrap() {
        let (ours, theirs) = (saved[name].as_slice::<f32>(), numbers(&theirs["values"]));
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(theirs) {
            close(f64::from(*ours), f64::from(theirs), tolerance, name);
        }
    }
}

pub(crate) fn close(ours: f64, theirs: f64, tolerance: f64, what: &str) {
    let error = (ours - theirs).abs();
    assert!(
        error < tolerance * theirs.abs().max(1.0),
        "{what}: {ours} is not {theirs}"
    );
}
