//! What learners saved, for comparisons between them.

use std::path::Path;

use starling::record::checkpoint;

/// All that a learner saved last, by name, as numbers; and the step.
pub(crate) fn saved(folder: &Path) -> (u64, Vec<(String, Vec<f32>)>) {
    let (latest, damaged) = checkpoint::latest(&folder.join("checkpoints")).unwrap();
    assert!(damaged.is_empty());
    let bytes = latest.read("learner.safetensors").unwrap();
    let mut found = Vec::new();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    for (name, entry) in header.as_object().unwrap() {
        let at = |i: usize| entry["data_offsets"][i].as_u64().unwrap() as usize + 8 + length;
        if entry["dtype"] == "F32" {
            let part = bytes[at(0)..at(1)].chunks(4);
            let numbers = part.map(|four| f32::from_le_bytes(four.try_into().unwrap()));
            found.push((name.clone(), numbers.collect()));
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    (latest.step(), found)
}

/// Updates and gradient steps of what a learner saved last.
pub(crate) fn steps_of_saved(folder: &Path) -> (u64, u64) {
    let (latest, _) = checkpoint::latest(&folder.join("checkpoints")).unwrap();
    let run: serde_json::Value = serde_json::from_slice(&latest.read("run.json").unwrap()).unwrap();
    let (_, learner) = saved(folder);
    let steps = learner.iter().find(|(name, _)| name == "optimizer.steps");
    (run["updates"].as_u64().unwrap(), steps.unwrap().1[0] as u64)
}
