//! Inserting experience into the replay: on the learner's thread, or on others while it learns.

use std::time::Instant;

use starling_algos::Progress;
use starling_envs::Rollout;
use starling_replay::{PRIORITY, Replay};
use starling_tree::Tree;

use super::Learning;
use crate::EngineError;

impl Learning {
    /// Stores rollouts on as many threads as draw ahead, and meanwhile keeps learning from what was
    /// stored before. Returns how many steps they have.
    pub(super) fn learn_while_inserting(
        &mut self,
        replay: &Replay,
        rollouts: &[(usize, &Rollout)],
        threads: usize,
        progress: Progress,
    ) -> Result<u64, EngineError> {
        // Rollouts of the same environments stay together: they have an order.
        let mut firsts: Vec<usize> = rollouts.iter().map(|(first, _)| *first).collect();
        firsts.sort_unstable();
        firsts.dedup();
        let share = |thread: usize| {
            let firsts = &firsts;
            rollouts.iter().filter(move |(first, _)| {
                firsts.binary_search(first).unwrap_or(0) % threads == thread
            })
        };
        std::thread::scope(|scope| {
            let writers = (0..threads.min(firsts.len())).map(|thread| {
                let builder = std::thread::Builder::new().name(format!("insert-{thread}"));
                let started = builder.spawn_scoped(scope, move || insert(replay, share(thread)));
                started.map_err(|error| EngineError::Prefetch(error.to_string()))
            });
            let writers = writers.collect::<Result<Vec<_>, _>>()?;
            while self.may_learn() && writers.iter().any(|writer| !writer.is_finished()) {
                self.start_update(progress)?;
            }
            let began = Instant::now();
            let mut steps = 0;
            for writer in writers {
                let its = writer.join();
                steps +=
                    its.unwrap_or_else(|_| Err(EngineError::Prefetch("a thread panicked".into())))?;
            }
            self.times.insert += began.elapsed();
            Ok(steps)
        })
    }
}

/// Whether rollouts are stored sooner than threads for it are started.
pub(super) fn is_little(rollouts: &[(usize, &Rollout)]) -> bool {
    const LITTLE: usize = 1 << 16;
    let bytes = rollouts.iter().map(|(_, rollout)| {
        let obs = rollout.obs.leaves().into_iter();
        obs.map(|(_, array)| array.bytes().len()).sum::<usize>()
    });
    bytes.sum::<usize>() <= LITTLE
}

/// Stores rollouts, each with the number of its first environment, and returns how many steps
/// they have.
pub(super) fn insert<'a>(
    replay: &Replay,
    rollouts: impl Iterator<Item = &'a (usize, &'a Rollout)>,
) -> Result<u64, EngineError> {
    let mut steps = 0;
    for (first_env, rollout) in rollouts {
        let priorities = rollout.policy.get(PRIORITY).and_then(Tree::leaf);
        let priorities = priorities.map(|column| column.as_slice::<f32>());
        steps += replay.insert(rollout, *first_env, priorities)? as u64;
    }
    Ok(steps)
}
