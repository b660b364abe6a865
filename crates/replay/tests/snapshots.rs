//! Saving and loading: exact, or refused with the reason.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use starling_envs::{Rollout, Space};
use starling_replay::{
    Layout, PriorityConfig, Replay, ReplayConfig, Snapshot, SnapshotError, TransitionBatch,
};
use starling_tree::Tree;

const ENVS: usize = 3;

fn config() -> ReplayConfig {
    ReplayConfig {
        capacity_steps: 60,
        n_steps: 3,
        gamma: 0.97,
        priority: Some(PriorityConfig::default()),
        ..ReplayConfig::default()
    }
}

/// Environments that show random bytes; one generator is one history.
fn rollout(rng: &mut Xoshiro256PlusPlus) -> Rollout {
    let (none, pixels) = (Tree::empty(), Space::bytes(&[5, 2], 255));
    let actions = Space::Discrete { n: 4 };
    let mut rollout = Rollout::new(7, ENVS, &pixels, &actions, Some(4), &none, &none);
    for (_, array) in rollout.obs.leaves_mut() {
        rng.fill(array.bytes_mut());
    }
    rng.fill(rollout.legal.as_mut().unwrap().bytes_mut());
    for t in 0..7 {
        for b in 0..ENVS {
            rollout
                .rewards
                .at_mut(&[t, b])
                .write(&[rng.random::<f32>()]);
            rollout
                .actions
                .at_mut(&[t, b])
                .write(&[rng.random_range(0..4i64)]);
            if rng.random_range(0..5) == 0 {
                rollout.truncated.at_mut(&[t, b]).write(&[1u8]);
                rollout.keep_final(t, b);
            }
        }
    }
    rollout.version = rng.random_range(0..1000);
    rollout
}

fn layout() -> Layout {
    Layout::of_rollout(&rollout(&mut Xoshiro256PlusPlus::seed_from_u64(0)), ENVS)
}

/// One round of collecting and learning.
fn go_on(replay: &Replay, rng: &mut Xoshiro256PlusPlus) -> TransitionBatch {
    replay.insert(&rollout(rng), 0, None).unwrap();
    let batch = replay.sample(16, 0.4, rng).unwrap();
    let priorities: Vec<f32> = (0..16).map(|_| rng.random()).collect();
    replay.update_priorities(&batch.ids, &priorities).unwrap();
    batch
}

fn saved(replay: &Replay) -> Vec<u8> {
    let mut bytes = Vec::new();
    Snapshot::begin(replay, None)
        .unwrap()
        .write(&mut bytes)
        .unwrap();
    bytes
}

fn load(bytes: &[u8]) -> Result<Replay, SnapshotError> {
    load_with(bytes, &config(), &layout())
}

fn load_with(
    bytes: &[u8],
    config: &ReplayConfig,
    layout: &Layout,
) -> Result<Replay, SnapshotError> {
    let none = |_| -> std::io::Result<&[u8]> { panic!("one part holds everything") };
    Ok(Replay::load(bytes, none, config, layout)?.0)
}

/// A replay after `rounds` rounds, and the generator that made its history.
fn history(rounds: usize) -> (Replay, Xoshiro256PlusPlus) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
    let replay = Replay::new(config(), layout()).unwrap();
    for _ in 0..rounds {
        go_on(&replay, &mut rng);
    }
    (replay, rng)
}

#[test]
fn a_loaded_replay_goes_on_as_the_saved_one() {
    // Empty, partly filled, and after the rings have gone round.
    for rounds in [0, 1, 2, 11] {
        let (replay, mut rng) = history(rounds);
        let bytes = saved(&replay);
        let loaded = load(&bytes).unwrap();
        assert_eq!(saved(&loaded), bytes);
        let mut same = rng.clone();
        if rounds > 0 {
            let batch = replay.sample(16, 0.4, &mut rng).unwrap();
            assert_eq!(loaded.sample(16, 0.4, &mut same).unwrap(), batch);
        }
        for _ in 0..6 {
            let batch = go_on(&replay, &mut rng);
            assert_eq!(go_on(&loaded, &mut same), batch);
        }
        assert_eq!(saved(&loaded), saved(&replay));
        assert_eq!(loaded.inserted_steps(), replay.inserted_steps());
        assert_eq!(loaded.breaks(), replay.breaks());
    }
}

#[test]
fn equal_histories_give_equal_bytes() {
    assert_eq!(saved(&history(9).0), saved(&history(9).0));
    assert_ne!(saved(&history(9).0), saved(&history(8).0));
}

#[test]
fn a_file_cut_anywhere_is_refused_as_truncated() {
    let bytes = saved(&history(4).0);
    for length in 0..bytes.len() {
        let error = load(&bytes[..length]).unwrap_err();
        assert!(
            matches!(error, SnapshotError::Truncated { .. }),
            "{length}: {error}"
        );
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused() {
    let mut bytes = saved(&history(4).0);
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = load(&bytes).unwrap_err();
        let expected = match bit / 8 {
            0..8 => matches!(error, SnapshotError::NotASnapshot),
            8..12 => matches!(error, SnapshotError::Format { .. }),
            // A length that became larger may also point past the end.
            _ => matches!(
                error,
                SnapshotError::Damaged { .. } | SnapshotError::Truncated { .. }
            ),
        };
        assert!(expected, "bit {bit}: {error}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(load(&bytes).is_ok());
}

#[test]
fn another_layout_or_setting_is_refused_by_name() {
    let bytes = saved(&history(2).0);
    let refused = |config: &ReplayConfig, layout: &Layout| {
        let error = load_with(&bytes[..], config, layout).unwrap_err();
        error.to_string()
    };
    let mut other = layout();
    other.streams = 4;
    let expected = "the replay snapshot has streams 3, but this run has 4";
    assert_eq!(refused(&config(), &other), expected);
    other = layout();
    other.legal_actions = None;
    assert!(refused(&config(), &other).contains("legal_actions Some(4)"));
    let mut settings = config();
    settings.capacity_steps = 61;
    assert!(refused(&settings, &layout()).contains("capacity_steps 60, but this run has 61"));
    settings = config();
    settings.priority = None;
    assert!(refused(&settings, &layout()).contains("priority"));
}

#[test]
fn many_blocks_are_as_exact_as_one() {
    // Bytes that do not compress, 4 MB of them.
    let (none, pixels) = (Tree::empty(), Space::bytes(&[100, 100], 255));
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(6);
    let mut rollout = Rollout::new(
        400,
        1,
        &pixels,
        &Space::Discrete { n: 2 },
        None,
        &none,
        &none,
    );
    for (_, array) in rollout.obs.leaves_mut() {
        rng.fill(array.bytes_mut());
    }
    let config = ReplayConfig {
        capacity_steps: 500,
        ..ReplayConfig::default()
    };
    let layout = Layout::of_rollout(&rollout, 1);
    let replay = Replay::new(config.clone(), layout.clone()).unwrap();
    replay.insert(&rollout, 0, None).unwrap();
    let mut bytes = saved(&replay);
    assert!(bytes.len() > 3 << 20);
    let loaded = load_with(&bytes[..], &config, &layout).unwrap();
    assert!(saved(&loaded) == bytes);
    let batch = replay.sample(16, 0.4, &mut rng.clone()).unwrap();
    assert_eq!(loaded.sample(16, 0.4, &mut rng).unwrap(), batch);
    // Two blocks that change places match their bytes but not their numbers.
    let block = 12 + (1 << 20);
    let (first, second) = bytes[12..12 + 2 * block].split_at_mut(block);
    first.swap_with_slice(second);
    let error = load_with(&bytes[..], &config, &layout).unwrap_err();
    assert!(
        matches!(error, SnapshotError::Damaged { block: 0 }),
        "{error}"
    );
}

/// The replay in several parts, of which one is lost: what is younger is there and is drawn as
/// before, what is older is gone, and the replay continues.
#[test]
fn the_rows_after_a_lost_part_are_kept() {
    let config = ReplayConfig {
        capacity_steps: 600,
        ..config()
    };
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(8);
    let replay = Replay::new(config.clone(), layout()).unwrap();
    let (mut parts, mut last) = (Vec::new(), None);
    for _ in 0..5 {
        for _ in 0..4 {
            go_on(&replay, &mut rng);
        }
        let mut bytes = Vec::new();
        let snapshot = Snapshot::begin(&replay, last.as_ref()).unwrap();
        last = Some(snapshot.write(&mut bytes).unwrap());
        parts.push(bytes);
    }
    let load = |lost: Option<u64>| {
        let earlier = |number: u64| {
            let part = parts[number as usize - 1].as_slice();
            Ok((Some(number) != lost).then_some(part))
        };
        Replay::load_newest_rows(&parts[4][..], earlier, &config, &layout()).unwrap()
    };
    let whole = load(None);
    assert_eq!(saved(&whole.0), saved(&replay));
    let mut before = whole.0.len();
    for lost in 1..=4 {
        let (rest, parts) = load(Some(lost));
        assert!(rest.len() < before, "{lost}");
        before = rest.len();
        assert_eq!(parts.parts().next(), Some(lost + 1));
        // The entries that are left are those of the whole replay.
        let mut same = rng.clone();
        for _ in 0..50 {
            let batch = rest.sample(8, 0.4, &mut same).unwrap();
            let mut again = TransitionBatch::new(replay.layout(), 8);
            assert_eq!(replay.read_into(&batch.ids, &mut again), Ok(0));
            assert_eq!(again.returns, batch.returns);
            assert_eq!(again.next_obs, batch.next_obs);
        }
        let mut rng = rng.clone();
        for _ in 0..200 {
            go_on(&rest, &mut rng);
        }
        let bytes = saved(&rest);
        let none = |_| -> std::io::Result<&[u8]> { panic!("one part holds everything") };
        assert!(Replay::load(&bytes[..], none, &config, &layout()).is_ok());
    }
}
