//! Every environment of the table continues exactly from a snapshot, taken anywhere; the Atari games
//! have their own tests.

use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use starling_envs::{EnvError, EnvOptions, Rollout, VecEnv, VecSnapshot, registry, stream};
use starling_tree::Tree;

fn columns(vector: &dyn VecEnv, steps: usize) -> Rollout {
    Rollout::new(
        steps,
        vector.len(),
        vector.observation_space(),
        vector.action_space(),
        vector.legal_actions(),
        &Tree::empty(),
        &Tree::empty(),
    )
}

/// Fills the columns with random actions from a separate stream.
fn play(vector: &mut dyn VecEnv, rollout: &mut Rollout, seed: u64) -> Result<(), EnvError> {
    let mut rng = stream(seed, "actions", 0);
    for t in 0..rollout.steps() {
        for b in 0..rollout.envs() {
            let action = rollout.actions.at_mut(&[t, b]);
            vector.action_space().sample(&mut rng, None, action);
        }
        vector.step(t, rollout)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_restored_vector_goes_on_bit_for_bit(
        seed in any::<u64>(),
        before in 1usize..400,
        after in 1usize..300,
        count in 1usize..4,
    ) {
        for spec in registry::all().into_iter().filter(|spec| spec.family != "atari") {
            let options = EnvOptions::default();
            let mut vector = spec.make_vec(&options, count, seed, "env", 3).unwrap();
            let mut first = columns(&*vector, before);
            let stop = AtomicBool::new(false);
            vector.decorrelate(30, &stop, &mut first).unwrap();
            play(&mut *vector, &mut first, seed).unwrap();
            first.carry_over();

            let bytes = postcard::to_allocvec(&vector.snapshot()).unwrap();
            let snapshot: VecSnapshot = postcard::from_bytes(&bytes).unwrap();
            prop_assert!(snapshot.is_complete());
            // Of another seed, so that everything that matters must come from the snapshot.
            let mut restored = spec.make_vec(&options, count, seed ^ 1, "other", 0).unwrap();
            let mut wanted = columns(&*vector, after);
            let mut shown = columns(&*restored, after);
            restored.reset(&mut shown).unwrap();
            restored.restore(&snapshot, &mut shown).unwrap();
            prop_assert_eq!(&restored.snapshot(), &snapshot);
            for b in 0..count {
                for rollout in [&mut wanted, &mut shown] {
                    rollout.obs.copy_at(&[0, b], &first.obs, &[0, b]).unwrap();
                }
            }
            play(&mut *vector, &mut wanted, seed.wrapping_add(1)).unwrap();
            play(&mut *restored, &mut shown, seed.wrapping_add(1)).unwrap();
            prop_assert_eq!(&wanted, &shown, "{}", spec.id);
            let wanted: Vec<_> = vector.finished().collect();
            let shown: Vec<_> = restored.finished().collect();
            prop_assert_eq!(wanted, shown);
        }
    }

    #[test]
    fn a_snapshot_cut_short_or_too_long_is_refused(
        seed in any::<u64>(),
        cut in 0usize..200,
        extra in any::<u8>(),
    ) {
        for spec in registry::all().into_iter().filter(|spec| spec.family != "atari") {
            let mut env = spec.make(&EnvOptions::default()).unwrap();
            let mut rollout = columns(
                &*spec.make_vec(&EnvOptions::default(), 1, seed, "env", 0).unwrap(),
                1,
            );
            let mut rng = stream(seed, "env", 0);
            let obs = starling_envs::ObsMut::at(&mut rollout.obs, &[0, 0]);
            env.reset(&mut rng, obs).unwrap();
            let whole = env.snapshot().unwrap();
            let short = &whole[..cut.min(whole.len() - 1)];
            prop_assert!(env.restore(short).is_err(), "{}", spec.id);
            let mut long = whole.clone();
            long.push(extra);
            prop_assert!(env.restore(&long).is_err(), "{}", spec.id);
            env.restore(&whole).unwrap();
            prop_assert_eq!(env.snapshot(), Some(whole));
        }
    }
}
