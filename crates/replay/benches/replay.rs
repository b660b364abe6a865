//! How fast priorities and transitions are drawn: `cargo bench -p starling-replay`.
//!
//! Figures of peers were measured on a 2-core EPYC with the same sizes; the ratio to a plain
//! copy of the same bytes is taken in this run and holds on any machine.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]
#![expect(clippy::unwrap_used, reason = "a benchmark ends where something fails")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use starling_envs::{Rollout, Space};
use starling_replay::{Layout, PriorityConfig, ReplayConfig, SumTree, TransitionReplay};
use starling_tree::Tree;

const BATCH: usize = 512;

fn main() {
    sum_tree();
    transitions();
}

fn sum_tree() {
    const LEAVES: usize = 1_000_000;
    const INSERT: usize = 64;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut tree = SumTree::new(LEAVES);
    tree.set_many((0..LEAVES).map(|leaf| (leaf, rng.random::<f64>())));
    println!("sum tree, {LEAVES} leaves, {} MB", tree.bytes() / 1_000_000);

    let (mut masses, mut found) = (Vec::new(), Vec::new());
    for stratified in [true, false] {
        let mut cycle = |tree: &mut SumTree| {
            masses.clear();
            let total = tree.total();
            masses.extend((0..BATCH).map(|i| match stratified {
                true => (i as f64 + rng.random::<f64>()) * total / BATCH as f64,
                false => rng.random::<f64>() * total,
            }));
            tree.find_many(&masses, &mut found);
            tree.set_many(found.iter().map(|&leaf| (leaf, rng.random::<f64>())));
        };
        let per_second = rate(|| cycle(&mut tree)) * BATCH as f64;
        let kind = if stratified {
            "stratified"
        } else {
            "independent"
        };
        println!(
            "  sample + update, {kind}: {:.2} M/s (wanted: 1 M/s)",
            per_second / 1e6
        );
        let mut cursor = 0;
        let cycles = rate(|| {
            let new = cursor..cursor + INSERT;
            tree.set_many(new.map(|leaf| (leaf % LEAVES, 1.0)));
            cursor = (cursor + INSERT) % LEAVES;
            cycle(&mut tree);
        });
        println!("  insert {INSERT} + sample {BATCH} + update, {kind}: {cycles:.0} cycles/s");
        for (peer, theirs) in [("torchrl", 1000.0), ("cpprb", 1700.0), ("rlpyt", 2900.0)] {
            println!("    {:.1} x {peer} ({theirs:.0} cycles/s)", cycles / theirs);
        }
    }
}

fn transitions() {
    const SHAPE: [usize; 3] = [4, 84, 84];
    const STEPS: usize = 50_000;
    const ENVS: usize = 8;
    let (t, none) = (8, Tree::empty());
    let (pixels, actions) = (Space::bytes(&SHAPE, 255), Space::Discrete { n: 18 });
    let mut rollout = Rollout::new(t, ENVS, &pixels, &actions, None, &none, &none);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
    for (_, array) in rollout.obs.leaves_mut() {
        rng.fill_bytes(array.bytes_mut());
    }
    let config = ReplayConfig {
        capacity_steps: STEPS,
        n_steps: 3,
        gamma: 0.99,
        priority: Some(PriorityConfig::default()),
    };
    let mut replay = TransitionReplay::new(config, Layout::of_rollout(&rollout, ENVS)).unwrap();
    println!(
        "transitions, {SHAPE:?} bytes, {STEPS} steps, n = 3, batch {BATCH}, {:.1} GB",
        replay.bytes() as f64 / 1e9
    );
    let mut insert = |replay: &mut TransitionReplay| {
        rollout.carry_over();
        replay.insert(&rollout, 0, None).unwrap();
    };
    for _ in 0..STEPS / (t * ENVS) + 1 {
        insert(&mut replay);
    }
    let inserts = rate(|| insert(&mut replay));
    println!(
        "  insert: {:.0} k steps/s",
        inserts * (t * ENVS) as f64 / 1e3
    );

    let mut batch = replay.sample(BATCH, 0.4, &mut rng).unwrap();
    let priorities: Vec<f32> = (0..BATCH).map(|_| rng.random()).collect();
    let item: usize = SHAPE.iter().product();
    let bytes = 2 * BATCH * item;
    let sampling = rate(|| {
        replay.sample_into(&mut batch, 0.4, &mut rng).unwrap();
        replay.update_priorities(&batch.ids, &priorities).unwrap();
        black_box(&batch);
    });
    let cycles = rate(|| {
        insert(&mut replay);
        replay.sample_into(&mut batch, 0.4, &mut rng).unwrap();
        replay.update_priorities(&batch.ids, &priorities).unwrap();
        black_box(&batch);
    });
    drop(replay);

    // The same bytes from as large a source, one after the other.
    let source = vec![1u8; STEPS * item];
    let mut target = vec![1u8; bytes];
    let mut parts = source.chunks_exact(bytes).cycle();
    let copying = rate(|| {
        if let Some(part) = parts.next() {
            target.copy_from_slice(part);
        }
        black_box(&target);
    });
    // The same bytes in the same pieces from random places: what the memory gives for this
    // pattern, without any of the replay's work.
    let pieces = rate(|| {
        for piece in target.chunks_exact_mut(item) {
            let first = rng.random_range(0..STEPS) * item;
            piece.copy_from_slice(&source[first..first + item]);
        }
        black_box(&target);
    });
    println!("  sample + update: {sampling:.0} batches/s (observations and next observations)");
    println!("  plain copy of the same bytes: {copying:.0} /s");
    println!("  ratio to the plain copy: {:.2}", sampling / copying);
    println!(
        "  copy of random rows: {pieces:.0} /s, ratio {:.2}",
        sampling / pieces
    );
    println!("  insert 64 + sample + update: {cycles:.0} cycles/s");
    for (peer, theirs) in [
        ("torchrl (one observation, 100 k)", 156.0),
        ("cpprb (both, 100 k)", 138.0),
        ("rlpyt (both, 1 M, unique frames)", 104.0),
    ] {
        println!(
            "    {:.1} x {peer}: {theirs:.0} cycles/s",
            sampling / theirs
        );
    }
}

/// Calls per second: the best of five parts of 0.4 s after one to warm up.
fn rate(mut f: impl FnMut()) -> f64 {
    let mut part = || {
        let (start, mut calls) = (Instant::now(), 0u32);
        while start.elapsed() < Duration::from_millis(400) {
            f();
            calls += 1;
        }
        f64::from(calls) / start.elapsed().as_secs_f64()
    };
    part();
    (0..5).map(|_| part()).fold(0.0, f64::max)
}
