//! How fast priorities and transitions are drawn.
//!
//! Figures of peers were measured on a 2-core EPYC with the same sizes; the ratio to a plain
//! copy of the same bytes is taken in this run and holds on any machine.

use std::hint::black_box;
use std::io::Write;

use rand::{Rng, RngExt};
use starling_envs::{Rollout, Space, stream};
use starling_replay::{Layout, PriorityConfig, Replay, ReplayConfig, SumTree};
use starling_tree::Tree;

use super::{BenchError, rate};

const BATCH: usize = 512;

/// Measures the sum tree alone, then whole transitions.
pub(super) fn run(out: &mut dyn Write) -> Result<(), BenchError> {
    sum_tree(out)?;
    transitions(out)
}

fn sum_tree(out: &mut dyn Write) -> Result<(), BenchError> {
    const LEAVES: usize = 1_000_000;
    const INSERT: usize = 64;
    let mut rng = stream(1, "bench", 0);
    let mut tree = SumTree::new(LEAVES);
    tree.set_many((0..LEAVES).map(|leaf| (leaf, rng.random::<f64>())));
    writeln!(
        out,
        "sum tree, {LEAVES} leaves, {} MB",
        tree.bytes() / 1_000_000
    )?;

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
            Ok::<_, BenchError>(())
        };
        let per_second = rate(|| cycle(&mut tree))? * BATCH as f64;
        let kind = if stratified {
            "stratified"
        } else {
            "independent"
        };
        writeln!(
            out,
            "  sample + update, {kind}: {:.2} M/s (wanted: 1 M/s)",
            per_second / 1e6
        )?;
        let mut cursor = 0;
        let cycles = rate(|| {
            let new = cursor..cursor + INSERT;
            tree.set_many(new.map(|leaf| (leaf % LEAVES, 1.0)));
            cursor = (cursor + INSERT) % LEAVES;
            cycle(&mut tree)
        })?;
        writeln!(
            out,
            "  insert {INSERT} + sample {BATCH} + update, {kind}: {cycles:.0} cycles/s"
        )?;
        for (peer, theirs) in [("torchrl", 1000.0), ("cpprb", 1700.0), ("rlpyt", 2900.0)] {
            writeln!(
                out,
                "    {:.1} x {peer} ({theirs:.0} cycles/s)",
                cycles / theirs
            )?;
        }
    }
    Ok(())
}

fn transitions(out: &mut dyn Write) -> Result<(), BenchError> {
    const SHAPE: [usize; 3] = [4, 84, 84];
    const STEPS: usize = 50_000;
    const ENVS: usize = 8;
    let (t, none) = (8, Tree::empty());
    let (pixels, actions) = (Space::bytes(&SHAPE, 255), Space::Discrete { n: 18 });
    let mut rollout = Rollout::new(t, ENVS, &pixels, &actions, None, &none, &none);
    let mut rng = stream(2, "bench", 0);
    for (_, array) in rollout.obs.leaves_mut() {
        rng.fill_bytes(array.bytes_mut());
    }
    let config = ReplayConfig {
        capacity_steps: STEPS,
        n_steps: 3,
        gamma: 0.99,
        priority: Some(PriorityConfig::default()),
        frame_stack: std::env::var("STACK").ok().map(|_| 4),
        compress: std::env::var("COMPRESS").is_ok(),
        ..ReplayConfig::default()
    };
    let replay = Replay::new(config, Layout::of_rollout(&rollout, ENVS))?;
    writeln!(
        out,
        "transitions, {SHAPE:?} bytes, {STEPS} steps, n = 3, batch {BATCH}, {:.1} GB",
        replay.bytes() as f64 / 1e9
    )?;
    let mut insert = |replay: &Replay| {
        rollout.carry_over();
        replay.insert(&rollout, 0, None)?;
        Ok::<_, BenchError>(())
    };
    for _ in 0..STEPS / (t * ENVS) + 1 {
        insert(&replay)?;
    }
    let inserts = rate(|| insert(&replay))?;
    writeln!(
        out,
        "  insert: {:.0} k steps/s",
        inserts * (t * ENVS) as f64 / 1e3
    )?;

    let mut batch = replay.sample(BATCH, 0.4, &mut rng)?;
    let priorities: Vec<f32> = (0..BATCH).map(|_| rng.random()).collect();
    let item: usize = SHAPE.iter().product();
    let bytes = 2 * BATCH * item;
    let sampling = rate(|| {
        replay.sample_into(&mut batch, 0.4, &mut rng)?;
        replay.update_priorities(&batch.ids, &priorities)?;
        black_box(&batch);
        Ok::<_, BenchError>(())
    })?;
    let cycles = rate(|| {
        insert(&replay)?;
        replay.sample_into(&mut batch, 0.4, &mut rng)?;
        replay.update_priorities(&batch.ids, &priorities)?;
        black_box(&batch);
        Ok::<_, BenchError>(())
    })?;
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
        Ok::<_, BenchError>(())
    })?;
    // The same bytes in the same pieces from random places: what the memory gives for this
    // pattern, without any of the replay's work.
    let pieces = rate(|| {
        for piece in target.chunks_exact_mut(item) {
            let first = rng.random_range(0..STEPS) * item;
            piece.copy_from_slice(&source[first..first + item]);
        }
        black_box(&target);
        Ok::<_, BenchError>(())
    })?;
    writeln!(
        out,
        "  sample + update: {sampling:.0} batches/s (observations and next observations)"
    )?;
    writeln!(out, "  plain copy of the same bytes: {copying:.0} /s")?;
    writeln!(out, "  ratio to the plain copy: {:.2}", sampling / copying)?;
    writeln!(
        out,
        "  copy of random rows: {pieces:.0} /s, ratio {:.2}",
        sampling / pieces
    )?;
    writeln!(out, "  insert 64 + sample + update: {cycles:.0} cycles/s")?;
    for (peer, theirs) in [
        ("torchrl (one observation, 100 k)", 156.0),
        ("cpprb (both, 100 k)", 138.0),
        ("rlpyt (both, 1 M, unique frames)", 104.0),
    ] {
        writeln!(
            out,
            "    {:.1} x {peer}: {theirs:.0} cycles/s",
            sampling / theirs
        )?;
    }
    Ok(())
}
