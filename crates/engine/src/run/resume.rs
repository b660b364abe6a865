//! Resuming a run: which checkpoint is used, and what the user should know about it.

use std::collections::BTreeSet;
use std::time::Duration;

use starling_record::{Checkpoints, Recorder, RunFolder};

use super::parts::Parts;
use super::{Training, report};
use crate::error::Unusable;
use crate::save::moment::{self, Lost, Restored};
use crate::save::saver::{Saver, open_checkpoints};
use crate::{Actor, EngineError, RunConfig};

/// Which checkpoints a run may continue from, one search after the other.
struct Search {
    /// Files that have to be undamaged.
    needed: fn(&str) -> bool,
    /// Give up where as many newer ones are damaged as are usually kept: rather lose a part of the
    /// replay than go back that far.
    near: bool,
}

const SEARCHES: [Search; 3] = [
    Search {
        needed: |_| true,
        near: true,
    },
    Search {
        needed: |name| !moment::is_replay(name),
        near: false,
    },
    Search {
        needed: |_| true,
        near: false,
    },
];

impl Training {
    /// A run from the latest usable checkpoint of its folder. Also returns what the user should
    /// know: damaged checkpoints that were passed over, what of the replay is lost, settings that
    /// were changed since, and whether the run continues exactly.
    pub fn resume(
        config: RunConfig,
        folder: &RunFolder,
    ) -> Result<(Self, Vec<String>), EngineError> {
        Self::resume_where(config, folder, &|_| true)
    }

    /// The same from a checkpoint of a step that `fits` accepts.
    pub fn resume_where(
        config: RunConfig,
        folder: &RunFolder,
        fits: &dyn Fn(u64) -> bool,
    ) -> Result<(Self, Vec<String>), EngineError> {
        let mut checkpoints = open_checkpoints(&config, folder)?;
        let mut notes: Vec<String> = folder.warning().map(str::to_owned).into_iter().collect();
        let mut failure: Option<EngineError> = None;
        let mut unusable = BTreeSet::new();
        for search in SEARCHES {
            let mut before = u64::MAX;
            loop {
                let found = checkpoints.latest_before(before, search.needed);
                let (mut checkpoint, damaged) = match found {
                    Ok(found) => found,
                    Err(error) => {
                        failure.get_or_insert(error.into());
                        break;
                    }
                };
                for one in damaged.iter().map(ToString::to_string) {
                    if !notes.contains(&one) {
                        notes.push(one);
                    }
                }
                if search.near && damaged.len() >= config.settings.checkpoint.keep_last {
                    break;
                }
                before = checkpoint.step();
                if !fits(before) {
                    // What it would have held is written again when the run gets there.
                    checkpoints.pass_over(before);
                    continue;
                }
                if unusable.contains(&before) {
                    continue;
                }
                let mut parts = Parts::make(&config, before)?;
                let actor = parts.actor.as_mut().map(Actor::crew_mut);
                match moment::read(&mut checkpoint, &mut parts.learning, actor) {
                    Ok(restored) => {
                        notes.extend(what_to_know(&config, &restored));
                        let times = checkpoint.times();
                        let training =
                            Self::continued(config, folder, parts, checkpoints, restored, times)?;
                        return Ok((training.with_evaluations(folder)?, notes));
                    }
                    Err(Unusable(reason)) => {
                        let path = checkpoint.path().to_owned();
                        let error = EngineError::Checkpoint { path, reason };
                        notes.push(error.to_string());
                        // The newest one's reason is the one to report.
                        if unusable.is_empty() {
                            failure = Some(error);
                        }
                        unusable.insert(before);
                        checkpoints.pass_over(before);
                    }
                }
            }
        }
        let (path, damaged) = (folder.checkpoints_path(), Vec::new());
        let none = starling_record::Error::NoCheckpoint { path, damaged };
        Err(failure.unwrap_or(EngineError::Record(none)))
    }

    /// A run from a restored checkpoint.
    fn continued(
        config: RunConfig,
        folder: &RunFolder,
        parts: Parts,
        checkpoints: Checkpoints,
        restored: Restored,
        times: Option<serde_json::Value>,
    ) -> Result<Self, EngineError> {
        let recorder = Recorder::resume(folder, restored.recorder)?;
        if let Some(restarts) = &parts.kit.restarts {
            restarts.set_used(restored.tally.env_restarts);
        }
        let elapsed = times.and_then(|times| times["elapsed_s"].as_f64());
        // No checksum covers this file: a time that makes no sense is not worth the run.
        let elapsed = Duration::try_from_secs_f64(elapsed.unwrap_or(0.0)).unwrap_or_default();
        let (mut tally, at) = (restored.tally, (restored.version, restored.epoch));
        tally.counts_games = parts.counts_games;
        let saver = Saver::new(checkpoints, restored.on_disk);
        Self::assemble(config, parts, recorder, saver, tally, at, elapsed)
    }
}

/// What the user should know of a resumed run.
fn what_to_know(config: &RunConfig, restored: &Restored) -> Vec<String> {
    let mut notes = Vec::new();
    match restored.lost {
        Lost::Nothing => {}
        Lost::OldRows => notes.push(
            "a part of the replay is damaged: the run continues with its newest steps".to_owned(),
        ),
        Lost::Everything => notes.push(
            "the replay is damaged: the run continues with an empty one, which has to fill again \
             before it learns"
                .to_owned(),
        ),
    }
    let changed = changed_settings(&config.to_value(), &restored.settings);
    if !changed.is_empty() {
        notes.push(format!(
            "settings changed since the checkpoint was written: {}",
            changed.join(", ")
        ));
    }
    if !restored.exact {
        notes.push(
            "the environments start new episodes: only mode=serial, with environments that can \
             be saved, continues bit for bit"
                .to_owned(),
        );
    }
    notes
}

/// Settings that are not as they were, by name.
fn changed_settings(now: &serde_json::Value, before: &serde_json::Value) -> Vec<String> {
    if before.is_null() {
        return Vec::new();
    }
    let (now, before) = (report::flatten(now), report::flatten(before));
    let old = |key: &str| before.iter().find(|(name, _)| name == key);
    let changed = now.iter().filter_map(|(key, value)| match old(key) {
        Some((_, old)) if old == value => None,
        Some((_, old)) => Some(format!("{key} (was {old})")),
        None => Some(key.clone()),
    });
    changed.collect()
}
