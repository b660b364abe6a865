//! What averaging the gradient costs an update, with and without overlap with the backward pass.
//!
//! The update is real, a Nature CNN on this machine. The network between the learners is emulated: a
//! part of the gradient takes the time that a ring all-reduce needs for its bytes at the full rate of
//! the link, and no processor time. Times are those of the fastest tenth, because other programs of the
//! machine disturb the rest.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use starling_nets::{
    Collective, Conv2d, Descent, Device, Group, Init, Kind, Layout, Linear, OptimizerConfig,
    Params, Recorded, ReduceError, Reducer, SharedReducer, Tensor,
};

use super::BenchError;
use super::group::{WEIGHTS, group_error, on_the_wire_ms};

/// The update whose efficiency is computed.
const UPDATE_MS: f64 = 20.0;

/// Updates that are timed.
const UPDATES: usize = 200;

/// Learners whose network is emulated.
const LEARNERS: usize = 4;

pub(super) fn run(out: &mut dyn Write) -> Result<(), BenchError> {
    let threads = starling_nets::threads();
    starling_nets::set_threads(1);
    let measured = measure(out);
    starling_nets::set_threads(threads);
    measured
}

fn measure(out: &mut dyn Write) -> Result<(), BenchError> {
    let batch = calibrated();
    let noted = Arc::new(Mutex::new(Noted::default()));
    let mut watched = Update::new(batch, Some(noted.clone() as SharedReducer));
    let mut alone = Update::new(batch, None);
    let mut in_group = Vec::new();
    for (bf16, during) in [(false, false), (true, false), (false, true), (true, true)] {
        let group = Group::new(bf16)?;
        group.enter(|| Ok(Box::new(Wire))).map_err(group_error)?;
        let reducer: SharedReducer = match during {
            true => Arc::new(Mutex::new(group.clone())),
            false => Arc::new(Mutex::new(Afterwards(group.clone()))),
        };
        in_group.push(Variant {
            bf16,
            during,
            group,
            update: Update::new(batch, Some(reducer)),
            times: Vec::new(),
        });
    }
    // In turn, so that all see the same load of the machine.
    let (mut plain, mut firsts, mut alls) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..UPDATES {
        plain.push(alone.timed()?);
        if let Ok(mut noted) = noted.lock() {
            *noted = Noted::default();
        }
        watched.timed()?;
        if let Ok(noted) = noted.lock() {
            firsts.extend(noted.ready.first().map(|(_, at)| at.as_secs_f64() * 1e3));
            alls.extend(noted.ready.last().map(|(_, at)| at.as_secs_f64() * 1e3));
        }
        for variant in &mut in_group {
            let before = variant.group.spent();
            let time = variant.update.timed()?;
            let spent = variant.group.spent();
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            let averaging = ms(spent.averaging - before.averaging);
            let waiting = ms(spent.waiting - before.waiting);
            variant.times.push((time, averaging, waiting));
        }
    }
    let (alone, first, all) = (fastest(plain), fastest(firsts), fastest(alls));
    let share = noted.lock().map_or(0.0, |noted| {
        noted
            .ready
            .first()
            .map_or(0.0, |(numbers, _)| *numbers as f64 / WEIGHTS as f64)
    });
    writeln!(
        out,
        "an update of the Nature CNN with a batch of {batch}: {alone:.1} ms; {:.0} % of the gradient are \
         ready after {first:.1} ms, all after {all:.1} ms (one thread)",
        100.0 * share
    )?;
    writeln!(
        out,
        "measured with an emulated 10 Gbit network of {LEARNERS} learners, per update:"
    )?;
    for variant in in_group {
        let of =
            |pick: fn(&(f64, f64, f64)) -> f64| fastest(variant.times.iter().map(pick).collect());
        let (time, averaging, waiting) = (of(|it| it.0), of(|it| it.1), of(|it| it.2));
        writeln!(
            out,
            "{}, averaged {} the backward pass: {time:.1} ms, {:.0} %; averaging takes {averaging:.2} ms, \
             the learner waits {waiting:.2} ms",
            kind_name(variant.bf16),
            if variant.during { "during" } else { "after" },
            100.0 * alone / time,
        )?;
    }
    let rounding = rounding_ms();
    writeln!(
        out,
        "rounding to bfloat16 and back: {rounding:.2} ms\ncomputed from these parts for updates of \
         {UPDATE_MS} ms (after, during):"
    )?;
    for size in [2, 4, 8] {
        for bf16 in [false, true] {
            let cost = |share: f64| {
                let bytes = if bf16 { 2.0 } else { 4.0 };
                let rounding = if bf16 { rounding } else { 0.0 };
                on_the_wire_ms(size, WEIGHTS as f64 * bytes * share) + rounding * share
            };
            let scale = UPDATE_MS / alone;
            let parts = [
                (first * scale, cost(share)),
                (all * scale, cost(1.0 - share)),
            ];
            let (after, during) = (cost(1.0), exposed_ms(&parts, all * scale));
            let percent = |more: f64| 100.0 * UPDATE_MS / (UPDATE_MS + more);
            writeln!(
                out,
                "{size} learners, {}: {after:.1} ms more, {:.0} %; {during:.1} ms more, {:.0} %",
                kind_name(bf16),
                percent(after),
                percent(during)
            )?;
        }
    }
    Ok(())
}

/// A way to average, and the milliseconds of its updates: in all, of averaging, and of waiting for it.
struct Variant {
    bf16: bool,
    during: bool,
    group: Group,
    update: Update,
    times: Vec<(f64, f64, f64)>,
}

fn kind_name(bf16: bool) -> &'static str {
    if bf16 { "bfloat16" } else { "float32" }
}

/// How long a backward pass that ends at `end` has to wait for its parts, which are ready at a time and
/// take a time, one after the other.
fn exposed_ms(parts: &[(f64, f64)], end: f64) -> f64 {
    let done = parts
        .iter()
        .fold(0.0, |free: f64, (ready, takes)| free.max(*ready) + takes);
    (done - end).max(0.0)
}

/// The batch whose update takes about [`UPDATE_MS`].
fn calibrated() -> i64 {
    let time = |batch: i64| {
        let mut update = Update::new(batch, None);
        let times = (0..40).filter_map(|_| update.timed().ok());
        fastest(times.collect())
    };
    let (few, many) = (time(4), time(20));
    let (per_item, fixed) = ((many - few) / 16.0, few - (many - few) / 4.0);
    (((UPDATE_MS - fixed) / per_item.max(1e-3)) as i64).clamp(1, 256)
}

/// One update of a Nature CNN.
struct Update {
    descent: Descent,
    loss: Recorded<Tensor, ()>,
}

impl Update {
    fn new(batch: i64, reducer: Option<SharedReducer>) -> Self {
        let mut layout = Layout::default();
        let init = Init::Orthogonal { gain: 1.0 };
        let mut conv = |name, inputs, channels, kernel, stride| {
            Conv2d::new(&mut layout, name, inputs, channels, kernel, stride, init)
        };
        let convs = [
            conv("conv1", 4, 32, 8, 4),
            conv("conv2", 32, 64, 4, 2),
            conv("conv3", 64, 64, 3, 1),
        ];
        let hidden = Linear::new(&mut layout, "hidden", 3136, 512, init);
        let head = Linear::new(&mut layout, "head", 512, 6, init);
        debug_assert_eq!(layout.elements(), WEIGHTS as usize);
        let mut rng = starling_envs::stream(1, "bench", 0);
        let params = Params::init(&Arc::new(layout), &mut rng, Device::Cpu);
        let mut descent = Descent::new(params, OptimizerConfig::default(), Some(10.0));
        descent.optimizer().set_learning_rate(1e-4);
        if let Some(reducer) = reducer {
            descent.join(reducer);
        }
        let frames = Tensor::rand([batch, 4, 84, 84], (Kind::Float, Device::Cpu));
        let loss = descent.of(frames, move |frames: &Tensor, params| {
            let layer = |x: Tensor, conv: &Conv2d| conv.forward(params, &x).relu();
            let features = convs.iter().fold(frames.shallow_clone(), layer);
            let hidden = hidden.forward(params, &features.flatten(1, -1)).relu();
            let values = head.forward(params, &hidden);
            (values.square().mean(Kind::Float), ())
        });
        Self { descent, loss }
    }

    /// Makes an update. Returns its milliseconds.
    fn timed(&mut self) -> Result<f64, BenchError> {
        let began = Instant::now();
        self.loss.run();
        self.descent.step().map_err(group_error)?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }
}

/// Notes when the parts of a gradient are ready, since the update began.
struct Noted {
    began: Instant,
    ready: Vec<(usize, Duration)>,
}

impl Default for Noted {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            ready: Vec::new(),
        }
    }
}

impl Reducer for Noted {
    fn mean(&mut self, _: &Tensor) -> Result<(), ReduceError> {
        Ok(())
    }

    fn takes_parts(&mut self) -> bool {
        true
    }

    fn start(&mut self, part: &Tensor) {
        self.ready.push((part.numel(), self.began.elapsed()));
    }

    fn size(&self) -> usize {
        LEARNERS
    }
}

/// Averages a gradient after the backward pass.
struct Afterwards(Group);

impl Reducer for Afterwards {
    fn mean(&mut self, values: &Tensor) -> Result<(), ReduceError> {
        self.0.mean(values)
    }

    fn mean_gradient(&mut self, gradient: &Tensor) -> Result<(), ReduceError> {
        self.0.mean_gradient(gradient)
    }

    fn size(&self) -> usize {
        self.0.size()
    }
}

/// A group whose all-reduce takes as long as on a network and changes nothing.
struct Wire;

impl Collective for Wire {
    fn sum(&mut self, values: &Tensor) -> Result<(), ReduceError> {
        let bytes = values.numel() * values.kind().elt_size_in_bytes();
        let takes = on_the_wire_ms(LEARNERS, bytes as f64) / 1e3;
        std::thread::sleep(Duration::from_secs_f64(takes));
        Ok(())
    }

    fn broadcast(&mut self, _: &Tensor, _: usize) -> Result<(), ReduceError> {
        Ok(())
    }

    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        LEARNERS
    }
}

fn rounding_ms() -> f64 {
    let gradient = Tensor::ones([WEIGHTS], (Kind::Float, Device::Cpu));
    let times = (0..UPDATES).map(|_| {
        let began = Instant::now();
        let rounded = gradient.to_kind(Kind::BFloat16);
        gradient.shallow_clone().copy_(&rounded);
        began.elapsed().as_secs_f64() * 1e3
    });
    fastest(times.collect())
}

/// The slowest of the fastest tenth.
fn fastest(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 10).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part that is ready at 5 and takes 8 is done at 13; the second, ready at 10, waits for it and is
    /// done at 14, 4 after the end of the pass. If the first takes 2, only the second is waited for.
    #[test]
    fn parts_wait_for_each_other() {
        assert_eq!(exposed_ms(&[(5.0, 8.0), (10.0, 1.0)], 10.0), 4.0);
        assert_eq!(exposed_ms(&[(5.0, 2.0), (10.0, 1.0)], 10.0), 1.0);
    }
}
