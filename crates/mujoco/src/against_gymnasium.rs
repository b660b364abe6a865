//! Every step of recorded episodes of Gymnasium (`tests/record_gymnasium.py`), in double precision.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use starling_envs::{EnvOptions, Space};

use crate::tasks;
use crate::tests::library_or_skip;

#[derive(Deserialize)]
struct Head {
    id: String,
    options: Value,
    steps: usize,
    whole: usize,
    /// Positions, velocities, controls and numbers of an observation.
    sizes: [usize; 4],
    limit: Option<u64>,
    threshold: Option<f64>,
    starts: Vec<usize>,
    ends: Vec<(usize, bool, bool)>,
}

/// A recording that is being read.
struct Recording {
    bytes: Vec<u8>,
    at: usize,
}

impl Recording {
    fn open(path: &Path) -> (Head, Self) {
        let bytes = std::fs::read(path).unwrap();
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        let head = serde_json::from_slice(&bytes[..end]).unwrap();
        let at = end + 1;
        (head, Self { bytes, at })
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        self.at += length;
        self.bytes[self.at - length..self.at].to_vec()
    }

    fn words(&mut self, count: usize) -> Vec<u64> {
        let bytes = self.take(8 * count);
        let words = bytes.chunks_exact(8);
        words
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect()
    }

    fn floats(&mut self, count: usize) -> Vec<f64> {
        self.words(count).into_iter().map(f64::from_bits).collect()
    }
}

fn hash<'a>(values: impl IntoIterator<Item = &'a f64>) -> u64 {
    values
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |code, value| {
            (code ^ value.to_bits()).wrapping_mul(0x0100_0000_01b3)
        })
}

fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

fn compare(path: &Path) {
    let (head, mut recording) = Recording::open(path);
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    let options = EnvOptions::from_table(&head.options).unwrap();
    let mut env = tasks::exact(&head.id, &options).unwrap();
    let [nq, nv, nu, width] = head.sizes;
    assert_eq!(
        env.observation_space(),
        Space::unbounded(&[width]),
        "{name}"
    );
    let Space::Box { bounds, shape, .. } = env.action_space() else {
        panic!("{name}");
    };
    assert_eq!(shape, [nu], "{name}");

    let controls = recording.take(head.steps * nu);
    let episodes: Vec<(Vec<f64>, Vec<f64>, u64)> = head
        .starts
        .iter()
        .map(|_| {
            (
                recording.floats(nq),
                recording.floats(nv),
                recording.words(1)[0],
            )
        })
        .collect();
    let hashes = recording.words(head.steps);
    let whole = recording.floats((1 + width) * head.steps.div_ceil(head.whole));
    assert_eq!(recording.at, recording.bytes.len(), "{name}");

    let mut row = vec![0f32; nu];
    for step in 0..head.steps {
        if let Some(episode) = head.starts.iter().position(|start| *start == step) {
            let (qpos, qvel, first) = &episodes[episode];
            env.begin_at(qpos, qvel).unwrap();
            assert_eq!(
                hash(env.exact().0),
                *first,
                "{name}: first observation, step {step}"
            );
        }
        for (i, value) in row.iter_mut().enumerate() {
            let (low, high) = bounds.of(i);
            *value = low + (high - low) * (f32::from(controls[step * nu + i]) / 255.0);
        }
        let terminated = env.advance(&row).unwrap();
        let (observation, reward) = env.exact();
        if step % head.whole == 0 {
            let from = step / head.whole * (1 + width);
            let expected = &whole[from..from + 1 + width];
            let found = [&[reward], observation].concat();
            let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(
                bits(&found),
                bits(expected),
                "{name}, step {step}: {found:?} {expected:?}"
            );
        }
        let end = f64::from(u8::from(terminated));
        let found = hash(observation.iter().chain([&reward, &end]));
        assert_eq!(
            found, hashes[step],
            "{name}, step {step}: {reward} {observation:?}"
        );
        let recorded = head.ends.iter().find(|(end, ..)| *end == step);
        assert_eq!(
            terminated,
            recorded.is_some_and(|end| end.1),
            "{name}, step {step}"
        );
    }
}

/// Observations, rewards and ends, with default options and with others.
#[test]
fn every_step_is_equal_bit_by_bit() {
    if library_or_skip("every_step_is_equal_bit_by_bit").is_none() {
        return;
    }
    let files = recordings();
    assert!(files.len() >= 39, "{}", files.len());
    files.iter().for_each(|file| compare(file));
}

/// Limits, thresholds and truncations are Gymnasium's, and every task of the table is recorded.
#[test]
fn the_table_is_gymnasiums() {
    let recorded: Vec<Head> = recordings()
        .iter()
        .map(|file| Recording::open(file).0)
        .collect();
    for spec in tasks::specs() {
        let head = recorded.iter().find(|head| head.id == spec.id).unwrap();
        assert_eq!(spec.max_episode_steps, head.limit, "{}", spec.id);
        assert_eq!(spec.reward_threshold, head.threshold, "{}", spec.id);
        for (step, _, truncated) in &head.ends {
            let start = head
                .starts
                .iter()
                .filter(|start| *start <= step)
                .max()
                .unwrap();
            let full = spec.max_episode_steps == Some((step - start + 1) as u64);
            assert_eq!(*truncated, full, "{}, step {step}", spec.id);
        }
    }
    assert!(
        recorded
            .iter()
            .all(|head| tasks::specs().iter().any(|spec| spec.id == head.id))
    );
}
