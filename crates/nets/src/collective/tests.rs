//! Groups of threads over Gloo.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::*;
use crate::{
    Descent, Init, Layout, OptimizerConfig, OptimizerKind, ParamId, Params, Recorded, Reducer,
    SharedReducer,
};
use tch::Kind;

const LONG: Duration = Duration::from_secs(60);

fn store() -> (GlooStore, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    (GlooStore::serve(listener, LONG).unwrap(), at)
}

/// Runs one thread per member and returns what each made.
fn members<T: Send>(
    size: usize,
    name: &str,
    timeout: Duration,
    work: impl Fn(usize, Gloo) -> T + Sync,
) -> Vec<T> {
    let (_store, at) = store();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let work = &work;
                scope.spawn(move || {
                    let store = GlooStore::connect(at, LONG).unwrap();
                    let gloo = Gloo::join(&store, name, "127.0.0.1", rank, size, timeout).unwrap();
                    work(rank, gloo)
                })
            })
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

fn group_of(collective: impl Collective + 'static, bf16: bool) -> Group {
    let group = Group::new(bf16).unwrap();
    group.enter(move || Ok(Box::new(collective))).unwrap();
    group
}

#[test]
fn gloo_conforms() {
    let checked = members(3, "conformance", LONG, |_, mut gloo| {
        check_collective(&mut gloo, Device::Cpu)
    });
    assert_eq!(checked, [Ok(()), Ok(()), Ok(())]);
}

#[test]
fn three_members_add_up_and_broadcast() {
    let results = members(3, "three", LONG, |rank, gloo| {
        let mut group = group_of(gloo, false);
        let values = Tensor::from_slice(&[rank as f32, 3.0, -1.0]);
        group.mean(&values).unwrap();
        let mut bytes = [rank as u8, 7];
        group.broadcast_bytes(&mut bytes, 2).unwrap();
        (Vec::<f32>::try_from(values).unwrap(), bytes)
    });
    for result in results {
        assert_eq!(result, (vec![1.0, 3.0, -1.0], [2, 7]));
    }
}

/// The mean is that of the members of the present group, whatever the size of the one before.
#[test]
fn the_divisor_is_the_number_of_members() {
    let first = members(3, "before", LONG, |rank, gloo| {
        let mut group = group_of(gloo, false);
        let values = Tensor::from_slice(&[[6.0f32, 3.0, 90.0][rank]]);
        group.mean(&values).unwrap();
        assert_eq!(group.size(), 3);
        (group, values.double_value(&[0]))
    });
    let groups = Mutex::new(Vec::new());
    for (group, mean) in first {
        assert_eq!(mean, 33.0);
        groups.lock().unwrap().push(Some(group));
    }
    let second = members(2, "after", LONG, |rank, gloo| {
        let mut group = groups.lock().unwrap()[rank].take().unwrap();
        group.enter(move || Ok(Box::new(gloo))).unwrap();
        let size = group.size();
        let part = |number: f32| Tensor::from_slice(&[number]);
        let (mean, gradient) = (part([6.0, 3.0][rank]), part([1.0, 2.0][rank]));
        group.mean(&mean).unwrap();
        group.mean_gradient(&gradient).unwrap();
        group.leave();
        // Alone nothing is divided.
        let alone = part(5.0);
        group.mean_gradient(&alone).unwrap();
        let numbers = [mean, gradient, alone].map(|it| it.double_value(&[0]));
        (size, numbers)
    });
    assert_eq!(second, [(2, [4.5, 1.5, 5.0]); 2]);
}

/// 1 + 2⁻⁹ has no place in bfloat16, whose step at 1 is 2⁻⁷; the statistics of a run do not pass
/// through it.
#[test]
fn only_gradients_are_rounded() {
    let results = members(2, "rounded", LONG, |_, gloo| {
        let mut group = group_of(gloo, true);
        let one = 1.0 + f32::powi(2.0, -9);
        let (gradient, other) = (Tensor::from_slice(&[one]), Tensor::from_slice(&[one]));
        group.mean_gradient(&gradient).unwrap();
        group.mean(&other).unwrap();
        assert_eq!(group.spent().gradients, 1);
        (gradient.double_value(&[0]), other.double_value(&[0]))
    });
    for (gradient, other) in results {
        assert_eq!(gradient, 1.0);
        assert_eq!(other, f64::from(1.0 + f32::powi(2.0, -9)));
    }
}

/// The remaining members get an error at once if a member's process ended, and after the timeout
/// if it does not respond.
#[test]
fn lost_and_silent_members_are_errors() {
    let results = members(2, "lost", LONG, |rank, mut gloo| {
        if rank == 1 {
            return None;
        }
        let began = Instant::now();
        let error = gloo.sum(&Tensor::zeros([1000], (Kind::Float, Device::Cpu)));
        Some((error.unwrap_err(), began.elapsed()))
    });
    let (error, took) = results.into_iter().flatten().next().unwrap();
    assert!(took < Duration::from_secs(20), "{took:?}: {error}");
    // It is the limit of joining, too.
    let short = Duration::from_secs(10);
    let barrier = std::sync::Barrier::new(2);
    let results = members(2, "silent", short, |rank, mut gloo| {
        let values = Tensor::zeros([1000], (Kind::Float, Device::Cpu));
        let result = (rank == 0).then(|| gloo.sum(&values));
        barrier.wait();
        result
    });
    let error = results.into_iter().flatten().next().unwrap().unwrap_err();
    assert!(error.to_string().contains("10000ms"), "{error}");
}

/// Averages whole gradients, after the backward pass.
struct Whole(Group);

impl Reducer for Whole {
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

/// A network whose gradient has three parts and ends in a parameter that the loss does not depend on.
struct Layers {
    descent: Descent,
    loss: Recorded<Tensor, ()>,
}

const WIDTH: usize = 520;

impl Layers {
    fn new(reducer: SharedReducer) -> Self {
        let mut layout = Layout::default();
        let init = Init::FanIn { fan_in: WIDTH };
        let mut add = |name: &str, shape: &[usize]| layout.add(name, shape, init);
        let weights: [ParamId; 3] = ["a", "b", "c"].map(|name| add(name, &[WIDTH, WIDTH]));
        add("unused", &[3, 3]);
        let mut rng = starling_envs::stream(1, "init", 0);
        let params = Params::init(&Arc::new(layout), &mut rng, Device::Cpu);
        let config = OptimizerConfig {
            kind: OptimizerKind::Rmsprop,
            ..OptimizerConfig::default()
        };
        let mut descent = Descent::new(params, config, Some(0.5));
        descent.optimizer().set_learning_rate(1e-3);
        descent.join(reducer);
        let input = Tensor::zeros([4, WIDTH as i64], (Kind::Float, Device::Cpu));
        let loss = descent.of(input, move |input: &Tensor, params| {
            let layer = |x: Tensor, id: ParamId| x.matmul(params.get(id)).tanh();
            let output = weights.into_iter().fold(input.shallow_clone(), layer);
            (output.square().mean(Kind::Float), ())
        });
        Self { descent, loss }
    }

    fn step(&mut self, input: f64) -> Result<(), ReduceError> {
        let _ = self.loss.inputs().shallow_clone().fill_(input);
        self.loss.run();
        self.descent.step().map(|_| ())
    }
}

/// A gradient that is averaged in parts during the backward pass gives the weights that averaging it
/// after the backward pass gives: the same bits for two members, whose sums have only one order; up to
/// rounding for three. All members have the same bits.
#[test]
fn averaging_during_the_backward_pass_gives_the_same_weights() {
    for (size, bf16) in [(2, false), (2, true), (3, false)] {
        let weights = |name: &str, in_parts: bool| {
            members(size, name, LONG, |rank, gloo| {
                let group = group_of(gloo, bf16);
                let reducer: SharedReducer = match in_parts {
                    true => Arc::new(Mutex::new(group.clone())),
                    false => Arc::new(Mutex::new(Whole(group.clone()))),
                };
                let mut layers = Layers::new(reducer);
                for step in 0..3 {
                    layers.step(0.1 + rank as f64 + f64::from(step)).unwrap();
                }
                assert_eq!(group.spent().gradients, 3);
                layers.descent.params().to_vec()
            })
        };
        let (whole, parts) = (weights("whole", false), weights("parts", true));
        for member in &parts {
            assert!(*member == parts[0], "{size} members differ");
            let pairs = || member.iter().zip(&whole[0]);
            match size {
                2 => assert!(pairs().all(|(a, b)| a == b), "bf16 {bf16}"),
                _ => assert!(pairs().all(|(a, b)| (a - b).abs() < 1e-5)),
            }
        }
    }
}

/// Fails with the given call, as if a member were lost then.
struct Fails {
    inner: Gloo,
    calls: usize,
    at: usize,
}

impl Collective for Fails {
    fn sum(&mut self, values: &Tensor) -> Result<(), ReduceError> {
        self.calls += 1;
        match self.calls == self.at {
            true => Err(ReduceError("lost".into())),
            false => self.inner.sum(values),
        }
    }

    fn broadcast(&mut self, values: &Tensor, root: usize) -> Result<(), ReduceError> {
        self.inner.broadcast(values, root)
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }
}

/// A gradient has three parts. If the second part of the second gradient fails, the second step is not
/// applied, and the third part is not waited for. The update is then repeated: its first step is
/// not applied again, its second is, and the weights are those of an update that did not break.
#[test]
fn a_broken_average_applies_every_step_once() {
    let results = members(2, "breaks", LONG, |rank, gloo| {
        let at = 5;
        let mut broken = (Vec::new(), Vec::new(), 0);
        let group = Group::new(false).unwrap();
        let calls = Fails {
            inner: gloo,
            calls: 0,
            at,
        };
        group.enter(move || Ok(Box::new(calls))).unwrap();
        let mut layers = Layers::new(Arc::new(Mutex::new(group.clone())));
        let inputs = [1.0 + rank as f64, 2.0 - rank as f64];
        layers.step(inputs[0]).unwrap();
        broken.0 = layers.descent.params().to_vec();
        assert_eq!(layers.step(inputs[1]), Err(ReduceError("lost".into())));
        broken.1 = layers.descent.params().to_vec();
        broken.2 = group.applied();
        (group, layers, inputs, broken)
    });
    for (_, _, _, broken) in &results {
        assert!(broken.0 == broken.1, "half a step was applied");
        assert_eq!(broken.2, 1);
    }
    let unbroken = members(2, "whole", LONG, |rank, gloo| {
        let mut layers = Layers::new(Arc::new(Mutex::new(group_of(gloo, false))));
        for input in [1.0 + rank as f64, 2.0 - rank as f64] {
            layers.step(input).unwrap();
        }
        layers.descent.params().to_vec()
    });
    let results = Mutex::new(results.into_iter().map(Some).collect::<Vec<_>>());
    let repeated = members(2, "again", LONG, |rank, gloo| {
        let (group, mut layers, inputs, _) = results.lock().unwrap()[rank].take().unwrap();
        group.enter(move || Ok(Box::new(gloo))).unwrap();
        group.begin_update(group.applied());
        for input in inputs {
            layers.step(input).unwrap();
        }
        assert_eq!(group.applied(), 2);
        layers.descent.params().to_vec()
    });
    assert!(repeated == unbroken);
}
