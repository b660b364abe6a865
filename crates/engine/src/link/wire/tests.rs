//! What is sent is what is read, and nothing else can be.

use proptest::prelude::*;
use starling_tree::DType;

use super::*;
use crate::link::Start;

fn format() -> ParcelFormat {
    let places = Places::new([0..1, 1..4], Start::default());
    ParcelFormat {
        steps: 3,
        observation: Space::Dict(vec![
            ("eyes".into(), Space::unbounded(&[2])),
            ("ears".into(), Space::Discrete { n: 9 }),
            ("film".into(), Space::unbounded(&[3, 1, 2])),
        ]),
        action: Space::Discrete { n: 4 },
        legal_actions: Some(4),
        records: Tree::node([("value", Tree::Leaf(Spec::scalar(DType::F32)))]),
        state: Tree::node([("hidden", Tree::Leaf(Spec::new(DType::F32, &[5])))]),
        places: places.all(),
    }
}

/// A parcel of place 1, in two rollouts, with other numbers for every seed.
fn parcel(seed: u8) -> Parcel {
    let format = format();
    let rollout = |first_env: usize, envs: usize| {
        let mut rollout = format.rollout(envs);
        rollout.version = u64::from(seed);
        let seen = rollout.obs.leaves_mut();
        let mut arrays: Vec<&mut Array> = seen.into_iter().map(|(_, array)| array).collect();
        for array in &mut arrays {
            // Every second byte: so some stacks continue the one before and others do not.
            for (i, byte) in array.bytes_mut().iter_mut().enumerate() {
                *byte = ((i as u8).wrapping_mul(seed) / 16) % 2;
            }
        }
        for array in columns_mut(&mut rollout) {
            for (i, byte) in array.bytes_mut().iter_mut().enumerate() {
                *byte = (i as u8).wrapping_add(seed) % 2;
            }
        }
        let actions = rollout.actions.as_mut_slice::<i64>();
        for (i, action) in actions.iter_mut().enumerate() {
            *action = ((i + usize::from(seed)) % 4) as i64;
        }
        for end in 0..usize::from(seed) % 4 {
            rollout.keep_final(end, (end + first_env) % envs);
        }
        (first_env, rollout)
    };
    let episode = Episode {
        env: 2,
        return_: -1.5,
        discounted_return: f64::from(seed),
        length: 1 << 40,
        nonzero_rewards: 3,
        game_score: Some(0.25),
    };
    Parcel {
        lease: LeaseId {
            place: 1,
            term: 2,
            epoch: u64::MAX,
        },
        number: u64::from(seed) << 32,
        rollouts: vec![rollout(1, 2), rollout(3, 1)],
        episodes: vec![episode; usize::from(seed) % 3],
    }
}

fn written(parcel: &Parcel) -> Vec<u8> {
    let mut frame = Vec::new();
    write_parcel(parcel, &mut frame).unwrap();
    frame
}

/// What was in the memory that a parcel is read into makes no difference.
#[test]
fn memory_is_used_again() {
    let (format, mut spares) = (format(), Spares::default());
    for seed in [3, 7, 2, 0, 5, 3] {
        let frame = written(&parcel(seed));
        let read = format.read_into(&frame, &mut spares).unwrap();
        assert_eq!(written(&read), frame, "{seed}");
        let rollouts = read.rollouts.into_iter().map(|(_, rollout)| rollout);
        spares.rollouts.extend(rollouts);
        assert_eq!(spares.rollouts.len(), 2, "{seed}");
    }
}

/// The same bytes with a checksum that fits.
fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
    end_frame(0, &mut frame);
    frame
}

fn publication() -> Publication {
    Publication {
        weights: Arc::new(Weights {
            version: 8,
            values: starling_nets::Snapshot::from_values(vec![1.5, f32::MIN_POSITIVE, -0.0]),
        }),
        control: Control { env_steps: 1 << 50 },
    }
}

#[test]
fn publications_come_back_as_they_were() {
    let weights = PublicationFormat { weights: 3 };
    let mut frame = Vec::new();
    write_publication(&publication(), &mut frame);
    assert_eq!(
        frame.len() as u64,
        HEADER_BYTES as u64 + weights.most_bytes()
    );
    let back = weights.read(&frame).unwrap();
    assert_eq!(back, publication());
    assert!(back.weights.values.values()[2].is_sign_negative());
    let other = PublicationFormat { weights: 4 };
    let error = other.read(&frame).unwrap_err().to_string();
    assert!(error.contains("4 parameters"), "{error}");
    assert!(matches!(
        format().read(&frame),
        Err(WireError::Unexpected(_))
    ));
}

/// Changes since an earlier version give the same bits as the weights themselves, and take less.
#[test]
fn changes_of_weights_are_exact() {
    let count = 10_000;
    let format = PublicationFormat { weights: count };
    let publication = |version: u64, value: &dyn Fn(usize) -> f32| Publication {
        weights: Arc::new(Weights {
            version,
            values: Snapshot::from_values((0..count).map(value).collect()),
        }),
        control: Control { env_steps: version },
    };
    let old = publication(7, &|i| (i as f32).sin());
    // Small steps, and everything that numbers can be.
    let new = publication(9, &|i| match i {
        0 => f32::NAN,
        1 => f32::NEG_INFINITY,
        2 => -0.0,
        3 => f32::MIN_POSITIVE / 2.0,
        i => (i as f32).sin() * (1.0 + 1e-6 * (i % 5) as f32),
    });
    let frame_of = |publication: &Publication| {
        let mut frame = Vec::new();
        write_publication(publication, &mut frame);
        frame
    };
    let (base, whole) = (frame_of(&old), frame_of(&new));
    let changes = changes_between(&base, &whole).unwrap();
    assert!(changes.len() < whole.len() / 2, "{} bytes", changes.len());
    let held = |version: u64| (version == 7).then(|| Arc::clone(&old.weights));
    let back = format.read_with(&changes, held).unwrap();
    let bits = |publication: &Publication| -> Vec<u32> {
        let values = publication.weights.values.values().iter();
        values.map(|value| value.to_bits()).collect()
    };
    assert_eq!(bits(&back), bits(&new));
    assert_eq!(back.weights.version, 9);
    assert_eq!(back.control, new.control);
    assert!(matches!(
        format.read(&changes),
        Err(WireError::Unexpected(_))
    ));

    // Weights without anything in common are sent whole.
    let mut state = 1u64;
    let noise: Vec<f32> = (0..count)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            f32::from_bits((state >> 32) as u32)
        })
        .collect();
    let other = publication(10, &|i| noise[i]);
    assert_eq!(changes_between(&base, &frame_of(&other)), None);
    assert_eq!(changes_between(&base[..90], &whole), None);

    // Damage, other sizes and bombs.
    for at in [HEADER_BYTES, HEADER_BYTES + 30, changes.len() - 1] {
        let mut damaged = changes.clone();
        damaged[at] ^= 1;
        assert_eq!(
            format.read_with(&damaged, held).unwrap_err(),
            WireError::Damaged
        );
    }
    for length in 0..changes.len().min(80) {
        assert!(format.read_with(&changes[..length], held).is_err());
    }
    let smaller = PublicationFormat { weights: count / 2 };
    assert!(matches!(
        smaller.read_with(&changes, held),
        Err(WireError::Unexpected(_))
    ));
    for length in [4 * count - 1, 4 * count + 1, 1 << 26] {
        let mut bomb = Vec::new();
        let begin = begin_frame(CHANGES, &mut bomb);
        bomb.extend(7u64.to_le_bytes());
        bomb.extend([0; 16]);
        bomb.extend(zstd::bulk::compress(&vec![0; length], 1).unwrap());
        end_frame(begin, &mut bomb);
        assert_eq!(
            format.read_with(&bomb, held).unwrap_err(),
            WireError::Damaged
        );
    }
}

/// What a frame announces is not believed: nobody takes memory for it.
#[test]
fn frames_that_are_too_long_are_refused_by_their_header() {
    let mut frame = written(&parcel(1));
    frame[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    let most = format().most_bytes();
    let error = format().read(&frame).unwrap_err();
    let bytes = u64::MAX;
    assert_eq!(error, WireError::TooLong { bytes, most });
    let header = frame.first_chunk().unwrap();
    assert!(body_bytes(header, most).is_err());
}

#[test]
fn other_protocols_and_strangers_are_told_apart() {
    let mut newer = written(&parcel(1));
    newer[4] = 99;
    let error = format().read(&newer).unwrap_err();
    assert_eq!(error, WireError::Protocol { theirs: 99 });
    let http = b"GET / HTTP/1.1\r\nHost: example\r\n\r\n";
    assert_eq!(format().read(http).unwrap_err(), WireError::Foreign);
}

/// Whole frames, checksum and all, that do not belong to this run.
#[test]
fn parcels_of_other_runs_are_refused() {
    let refused = |parcel: &Parcel| {
        let read = format().read(&written(parcel));
        matches!(read, Err(WireError::Unexpected(_)))
    };
    let good = parcel(3);
    assert!(!refused(&good));
    let changed = |change: fn(&mut Parcel)| {
        let mut parcel = parcel(3);
        change(&mut parcel);
        parcel
    };
    assert!(refused(&changed(|parcel| parcel.lease.place = 2)));
    assert!(refused(&changed(|parcel| parcel.lease.place = 0)));
    assert!(refused(&changed(|parcel| parcel.rollouts[0].0 = 0)));
    assert!(refused(&changed(|parcel| drop(parcel.rollouts.pop()))));
    assert!(refused(&changed(|parcel| parcel.rollouts.reverse())));
    assert!(refused(&changed(
        |parcel| parcel.rollouts[0].1.final_at[0] = (3, 0)
    )));
    assert!(refused(&changed(|parcel| {
        parcel.rollouts[0].1.actions.as_mut_slice::<i64>()[0] = 4;
    })));
    assert!(refused(&changed(|parcel| {
        parcel.rollouts[0].1.rewards.as_mut_slice::<f32>()[0] = f32::NAN;
    })));
    assert!(refused(&changed(|parcel| {
        parcel.rollouts[0].1.truncated.as_mut_slice::<u8>()[0] = 2;
    })));
    let mut longer = format();
    longer.steps = 4;
    let mut other = parcel(3);
    other.rollouts = vec![(1, longer.rollout(3))];
    assert!(refused(&other));
}

/// Where the compressed columns begin: after their length.
fn columns_at(frame: &[u8]) -> usize {
    let head = u32::from_le_bytes(array(&frame[HEADER_BYTES..HEADER_BYTES + 4]));
    HEADER_BYTES + 4 + head as usize + 8
}

/// The same parcel with other columns.
fn with_columns(announced: u64, packed: &[u8]) -> Vec<u8> {
    let mut frame = written(&parcel(1));
    let at = columns_at(&frame);
    frame.truncate(at);
    frame[at - 8..].copy_from_slice(&announced.to_le_bytes());
    frame.extend(packed);
    sealed(frame)
}

/// Few bytes that unpack to many are refused by what a parcel can hold, whatever they announce.
#[test]
fn bombs_do_not_go_off() {
    let most = format().most_bytes();
    let bomb = zstd::bulk::compress(&vec![0; 1 << 24], ZSTD_LEVEL).unwrap();
    assert!(bomb.len() < 4096);
    let refused = |announced| format().read(&with_columns(announced, &bomb)).unwrap_err();
    let bytes = 1 << 24;
    assert_eq!(refused(bytes), WireError::TooLong { bytes, most });
    assert_eq!(
        refused(u64::MAX),
        WireError::TooLong {
            bytes: u64::MAX,
            most
        }
    );
    assert_eq!(refused(most), WireError::Damaged);
    assert_eq!(refused(0), WireError::Damaged);
}

/// Of a stack that continues the one before only its newest frame is sent.
#[test]
fn continued_stacks_are_sent_once() {
    let places = Places::new(std::iter::once(0..2), Start::default());
    let (steps, side) = (40, 16);
    let format = ParcelFormat {
        steps,
        observation: Space::unbounded(&[4, side, side]),
        places: places.all(),
        legal_actions: None,
        ..format()
    };
    let mut rollout = format.rollout(2);
    let item = 4 * side * side;
    for (_, array) in rollout.obs.leaves_mut() {
        let pixels = array.as_mut_slice::<f32>();
        for (i, pixel) in pixels.iter_mut().enumerate() {
            let (row, at) = (i / item, i % item);
            let (t, b, frame) = (row / 2, row % 2, at / (side * side));
            // Frame `t + frame` of environment `b`, of bytes that do not compress.
            let seed = ((t + frame) * 7 + b) * side * side + at % (side * side);
            *pixel = f32::from_bits((seed as u32).wrapping_mul(0x9E37_79B9) >> 2);
        }
    }
    rollout.keep_final(3, 1);
    rollout.terminated.as_mut_slice::<u8>()[7] = 1;
    let parcel = Parcel {
        lease: LeaseId {
            place: 0,
            term: 0,
            epoch: 1,
        },
        number: 0,
        rollouts: vec![(0, rollout)],
        episodes: Vec::new(),
    };
    let frame = written(&parcel);
    assert_eq!(format.read(&frame).unwrap(), parcel);
    let frames = 2 * (steps + 1 + 3) + 1;
    let most = frames * side * side * 4 + 4096;
    assert!(frame.len() < most, "{} bytes of {most}", frame.len());
}

proptest! {
    /// Any columns that can be unpacked are a parcel of this run or an error.
    #[test]
    fn forged_columns_are_read_or_refused(
        seed: u8,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in 0usize..40,
    ) {
        let frame = written(&parcel(seed));
        let at = columns_at(&frame);
        let most = format().most_bytes() as usize;
        let mut raw = zstd::bulk::decompress(&frame[at..], most).unwrap();
        raw.truncate(raw.len() - cut);
        for (at, byte) in changes {
            let at = at.index(raw.len());
            raw[at] = byte;
        }
        let packed = zstd::bulk::compress(&raw, ZSTD_LEVEL).unwrap();
        let _ = format().read(&with_columns(raw.len() as u64, &packed));
    }

    #[test]
    fn parcels_come_back_as_they_were(seed: u8) {
        let parcel = parcel(seed);
        let frame = written(&parcel);
        let body = frame.len() - HEADER_BYTES;
        prop_assert!(body as u64 <= format().most_bytes());
        prop_assert_eq!(body_bytes(frame.first_chunk().unwrap(), 1 << 20), Ok(body));
        prop_assert_eq!(format().read(&frame).unwrap(), parcel);
    }

    /// A frame that was cut off, or in which one byte changed, is never read as another parcel.
    #[test]
    fn damage_is_noticed(seed: u8, at: prop::sample::Index, change in 1u8..=255) {
        let frame = written(&parcel(seed));
        let cut = at.index(frame.len());
        prop_assert!(format().read(&frame[..cut]).is_err());
        let mut damaged = frame;
        damaged[cut] ^= change;
        prop_assert!(format().read(&damaged).is_err());
    }

    /// A peer with the right checksum can send any bytes: they are a parcel of this run, or
    /// an error, and never a panic.
    #[test]
    fn forged_frames_are_read_or_refused(
        seed: u8,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut frame = written(&parcel(seed));
        let head = (frame.len() - HEADER_BYTES).min(64);
        for (at, byte) in changes {
            frame[HEADER_BYTES + at.index(head)] = byte;
        }
        let _ = format().read(&sealed(frame.clone()));
        frame.truncate(HEADER_BYTES + keep.index(frame.len() - HEADER_BYTES));
        if let Ok(parcel) = format().read(&sealed(frame)) {
            prop_assert_eq!(parcel.rollouts.len(), 2);
        }
    }
}
