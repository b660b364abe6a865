//! Many threads at once: nothing is torn, nothing is lost, nobody waits for ever.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rand::RngExt;
use starling_envs::{Rollout, Space, stream};
use starling_replay::{
    Layout, Prefetcher, PriorityConfig, Replay, ReplayConfig, ReplayError, SequenceBatch,
    SequenceConfig, Snapshot, TransitionBatch,
};
use starling_tree::{DType, Spec, Tree};

const STREAMS: usize = 4;
const STACK: usize = 3;
/// Bytes of a frame: enough that a torn read would be seen.
const FRAME: [usize; 2] = [16, 16];

/// An environment that shows its stream and the number of the frame, and never ends.
struct Counting {
    stream: usize,
    frame: u64,
    steps: usize,
}

impl Counting {
    fn new(stream: usize, steps: usize) -> Self {
        Self {
            stream,
            frame: 0,
            steps,
        }
    }

    fn next(&mut self) -> Rollout {
        let (pixels, none) = (
            Space::bytes(&[STACK, FRAME[0], FRAME[1]], 255),
            Tree::empty(),
        );
        let actions = Space::Discrete { n: 2 };
        let memory = Tree::node([("state", Tree::Leaf(Spec::new(DType::F32, &[1])))]);
        let mut rollout = Rollout::new(self.steps, 1, &pixels, &actions, None, &memory, &none);
        for t in 0..=self.steps {
            let row = self.frame + t as u64;
            for (_, array) in rollout.obs.leaves_mut() {
                let mut item = array.at_mut(&[t, 0]);
                let frames = item
                    .as_mut_slice::<u8>()
                    .chunks_exact_mut(FRAME[0] * FRAME[1]);
                for (k, frame) in frames.enumerate() {
                    fill(
                        frame,
                        self.stream,
                        (row + 1 + k as u64).saturating_sub(STACK as u64),
                    );
                }
            }
            if t < self.steps {
                rollout
                    .rewards
                    .at_mut(&[t, 0])
                    .write(&[(row % 1000) as f32]);
                for (_, array) in rollout.policy.leaves_mut() {
                    array.at_mut(&[t, 0]).write(&[(row % 1000) as f32]);
                }
            }
        }
        self.frame += self.steps as u64;
        rollout
    }
}

/// Every byte of a frame says which one it is.
fn fill(frame: &mut [u8], stream: usize, number: u64) {
    let number = number % 1000;
    for (i, byte) in frame.iter_mut().enumerate() {
        *byte = match i % 3 {
            0 => stream as u8,
            1 => (number / 256) as u8,
            _ => (number % 256) as u8,
        };
    }
}

/// The stream and the number of a frame, if all its bytes agree.
fn read(frame: &[u8]) -> (usize, u64) {
    let (stream, number) = (
        frame[0] as usize,
        u64::from(frame[1]) * 256 + u64::from(frame[2]),
    );
    let mut expected = vec![0; frame.len()];
    fill(&mut expected, stream, number);
    assert_eq!(frame, expected, "a torn frame");
    (stream, number)
}

/// The newest frame of a stack whose frames follow each other.
fn read_stack(stack: &[u8]) -> (usize, u64) {
    let frames: Vec<_> = stack.chunks_exact(FRAME[0] * FRAME[1]).map(read).collect();
    let (stream, newest) = *frames.last().unwrap();
    for (back, frame) in frames.iter().rev().enumerate() {
        // The first frame of all fills the first stack.
        let number = (newest + 1000 - back as u64) % 1000;
        assert!(*frame == (stream, number) || frame.1 == 0, "{frames:?}");
    }
    (stream, newest)
}

fn config(compress: bool) -> ReplayConfig {
    ReplayConfig {
        capacity_steps: STREAMS * 200,
        n_steps: 2,
        gamma: 1.0,
        priority: Some(PriorityConfig::default()),
        frame_stack: Some(STACK),
        compress,
        ..ReplayConfig::default()
    }
}

fn layout() -> Layout {
    Layout::of_rollout(&Counting::new(0, 1).next(), STREAMS)
}

fn check(batch: &TransitionBatch) {
    let (obs, next) = (batch.obs.leaf().unwrap(), batch.next_obs.leaf().unwrap());
    for i in 0..batch.size() {
        let (stream, number) = read_stack(obs.at(&[i]).bytes);
        let sum = (number + (number + 1) % 1000) as f32;
        assert_eq!(batch.returns.as_slice::<f32>()[i], sum);
        let later = read_stack(next.at(&[i]).bytes);
        assert_eq!(later, (stream, (number + 2) % 1000));
        assert_eq!(batch.ids[i].slot / 200, stream);
    }
}

/// Counts down when its thread ends, also by a panic: others would wait for ever.
struct Working<'a>(&'a AtomicUsize);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Writers, samplers, priorities and snapshots at once; the rings go round many times.
#[test]
fn what_is_drawn_is_whole_whatever_others_do() {
    for compress in [false, true] {
        let replay = Replay::new(config(compress), layout()).unwrap();
        let writing = AtomicUsize::new(STREAMS);
        let (late, given) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for stream in 0..STREAMS {
                let (replay, writing) = (&replay, &writing);
                scope.spawn(move || {
                    let _working = Working(writing);
                    let mut env = Counting::new(stream, 7);
                    for _ in 0..600 {
                        replay.insert(&env.next(), stream, None).unwrap();
                        std::thread::yield_now();
                    }
                });
            }
            for sampler in 0..2 {
                let (replay, writing, late, given) = (&replay, &writing, &late, &given);
                scope.spawn(move || {
                    let mut rng = crate::stream(7, "sampler", sampler);
                    let mut batch = TransitionBatch::new(replay.layout(), 40);
                    let mut old = Vec::new();
                    while writing.load(Ordering::SeqCst) > 0 {
                        match replay.sample_into(&mut batch, 0.4, &mut rng) {
                            Err(ReplayError::Empty { .. }) => continue,
                            drawn => drawn.unwrap(),
                        }
                        check(&batch);
                        old.extend(batch.ids.iter().copied());
                        let first = old.len().saturating_sub(400);
                        let ids = &old[first..];
                        let new: Vec<f32> = ids.iter().map(|_| rng.random()).collect();
                        given.fetch_add(ids.len(), Ordering::SeqCst);
                        let dropped = replay.update_priorities(ids, &new).unwrap();
                        late.fetch_add(dropped, Ordering::SeqCst);
                        old.drain(..first);
                    }
                });
            }
            let (replay, writing) = (&replay, &writing);
            scope.spawn(move || {
                let mut saved = None;
                while writing.load(Ordering::SeqCst) > 0 {
                    let snapshot = Snapshot::begin(replay, saved.as_ref()).unwrap();
                    saved = Some(snapshot.write(std::io::sink()).unwrap());
                }
            });
        });
        assert_eq!(replay.inserted_steps(), 600 * 7 * STREAMS as u64);
        assert_eq!(replay.breaks(), 0);
        // All rows of every ring but those without successors and those without history.
        assert_eq!(replay.entries().len(), replay.len());
        assert_eq!(replay.len(), STREAMS * (200 - 2 - (STACK - 1)));
        let (late, given) = (late.into_inner(), given.into_inner());
        assert!(late > 0 && late < given, "{late} of {given}");
        // Nobody's change of a weight was lost: the totals are those of the entries.
        let mut rng = stream(1, "test", 0);
        for _ in 0..50 {
            check(&replay.sample(32, 0.4, &mut rng).unwrap());
        }
    }
}

/// A snapshot shows one moment, though writers have gone round the ring before it was written.
#[test]
fn a_snapshot_is_of_its_moment() {
    for compress in [false, true] {
        let replay = Arc::new(Replay::new(config(compress), layout()).unwrap());
        let mut envs: Vec<_> = (0..STREAMS).map(|s| Counting::new(s, 11)).collect();
        let mut insert = |rounds: usize| {
            for _ in 0..rounds {
                for (stream, env) in envs.iter_mut().enumerate() {
                    replay.insert(&env.next(), stream, None).unwrap();
                }
            }
        };
        insert(40);
        let mut before = Vec::new();
        let snapshot = Snapshot::begin(&*replay, None).unwrap();
        snapshot.write(&mut before).unwrap();
        // Of the same moment, but written when nothing of it is left.
        let snapshot = Snapshot::begin(Arc::clone(&replay), None).unwrap();
        let busy = Snapshot::begin(&*replay, None);
        assert!(busy.is_err());
        insert(60);
        let mut after = Vec::new();
        let saved = snapshot.write(&mut after).unwrap();
        assert!(before == after);
        // The next part has only what came since, and together they are all there is.
        insert(3);
        let snapshot = Snapshot::begin(&*replay, Some(&saved)).unwrap();
        let mut next = Vec::new();
        let again = snapshot.write(&mut next).unwrap();
        let numbers: Vec<u64> = again.parts().collect();
        // The ring went round since the first one.
        assert_eq!(numbers, [2]);
        insert(3);
        let snapshot = Snapshot::begin(&*replay, Some(&again)).unwrap();
        let mut last = Vec::new();
        let all = snapshot.write(&mut last).unwrap();
        assert_eq!(all.parts().collect::<Vec<_>>(), [2, 3]);
        assert!(last.len() < next.len() / 2, "{} {}", last.len(), next.len());
        let earlier = |number| match number {
            2 => Ok(&next[..]),
            _ => panic!("part {number} was not written"),
        };
        let (config, layout) = (replay.config(), replay.layout());
        let (loaded, _) = Replay::load(&last[..], earlier, config, layout).unwrap();
        let mut rngs = [stream(3, "test", 0), stream(3, "test", 0)];
        for _ in 0..20 {
            let batch = replay.sample(32, 0.5, &mut rngs[0]).unwrap();
            assert!(batch == loaded.sample(32, 0.5, &mut rngs[1]).unwrap());
        }
        // A part of another snapshot is not taken for it.
        let wrong = Replay::load(&last[..], |_| Ok(&before[..]), config, layout);
        assert!(wrong.is_err());
    }
}

#[test]
fn batches_come_back_in_the_order_in_which_buffers_were_given() {
    let replay = Arc::new(Replay::new(config(false), layout()).unwrap());
    let patience = Duration::from_secs(20);
    let mut prefetcher = Prefetcher::new(Arc::clone(&replay), 3).unwrap();
    assert!(prefetcher.take(patience).is_none());
    prefetcher.give(TransitionBatch::new(replay.layout(), 4), 0.4, 5);
    let empty = prefetcher.take(patience).unwrap();
    assert_eq!(empty.drawn, Err(ReplayError::Empty { steps: 0 }));

    for stream in 0..STREAMS {
        let mut env = Counting::new(stream, 50);
        replay.insert(&env.next(), stream, None).unwrap();
    }
    // Told apart by their sizes.
    for size in 1..=6 {
        prefetcher.give(
            TransitionBatch::new(replay.layout(), size),
            0.4,
            size as u64,
        );
    }
    assert_eq!(prefetcher.ahead(), 6);
    let taking = AtomicUsize::new(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut env = Counting::new(1, 50);
            env.frame = 50;
            while taking.load(Ordering::SeqCst) > 0 {
                replay.insert(&env.next(), 1, None).unwrap();
            }
        });
        let _working = Working(&taking);
        for round in 0..300 {
            let Some(filled) = prefetcher.take(patience) else {
                panic!("round {round}: nothing came");
            };
            assert_eq!(filled.drawn, Ok(()));
            assert_eq!(filled.batch.size(), round % 6 + 1);
            check(&filled.batch);
            prefetcher.give(filled.batch, 0.4, round as u64);
        }
    });
    // Ends though buffers are still out.
    drop(prefetcher);
}

/// The same orders give the same draws, whichever thread fills them.
#[test]
fn prefetched_draws_follow_the_seeds() {
    let sequence = SequenceConfig {
        burn_in_steps: 2,
        length_steps: 4,
        overlap_steps: 2,
        state_interval_steps: 2,
        priority_eta: 0.9,
    };
    let config = ReplayConfig {
        sequence: Some(sequence),
        ..config(false)
    };
    let replay = Arc::new(Replay::new(config.clone(), layout()).unwrap());
    replay
        .insert(&Counting::new(0, 100).next(), 0, None)
        .unwrap();
    let draws = |threads| {
        let mut prefetcher = Prefetcher::new(Arc::clone(&replay), threads).unwrap();
        for seed in 0..8 {
            let buffers = SequenceBatch::new(&config, replay.layout(), 5).unwrap();
            prefetcher.give(buffers, 0.6, seed);
        }
        let taken = (0..8).map(|_| prefetcher.take(Duration::from_secs(20)).unwrap().batch);
        taken.collect::<Vec<_>>()
    };
    assert!(draws(1) == draws(3));
}
