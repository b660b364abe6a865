//! Whether actors collect on a device what they collect on the CPU.
//!
//! Two sets of actors work side by side with the same seeds and the same weights, on the threads of
//! the run's own mode: one with policies on the CPU, one with policies on the device.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use starling_algos::resident_observations;
use starling_envs::Rollout;
use starling_nets::{Device, DeviceChoice, Snapshot};
use starling_tree::{Array, DType, Tree};

use super::selftest::worst;
use crate::collect::{ActorKit, LocalActors, Station, rollout_steps};
use crate::link::{Control, InProcess, Inbox, Parcel, Publication, Start, Weights};
use crate::run::tally::Tally;
use crate::{EngineError, RunConfig};

/// How far what actors collected on a device is from what they collected on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Collected {
    /// Steps that were compared. Where an action differs, its environment is left out from then on:
    /// it goes elsewhere.
    pub steps: usize,
    /// Share of actions that were chosen differently.
    pub actions: f64,
    /// Largest difference of what policies record and remember (values, log-probabilities, states of
    /// an LSTM), relative to its size.
    pub records: f64,
    /// Observations that differ, although all actions before were the same to the last bit.
    pub observations: usize,
    /// Rollouts whose observations the policy left on the device.
    pub resident: usize,
    /// Observations there that are not those of the rollout.
    pub resident_wrong: usize,
}

impl Collected {
    /// Whether the differences are those of rounding. Observations are copies: they do not differ.
    pub fn agrees(&self) -> bool {
        self.steps > 0
            && self.actions <= 0.005
            && self.records <= 0.01
            && self.observations == 0
            && self.resident_wrong == 0
    }
}

/// Lets the actors of a run's mode collect on the CPU and on `device`, each for at least `rows` steps
/// of every environment, in rounds, with other weights in each round.
///
/// # Errors
/// When the environments or actors fail.
pub fn compare_collected(
    config: &RunConfig,
    device: Device,
    rows: usize,
) -> Result<Collected, EngineError> {
    // TensorFloat-32 is a choice, not a mistake.
    starling_nets::allow_tf32(false);
    let algorithm = config.algorithm()?;
    let first = algorithm.learner(config.settings.seed, Device::Cpu);
    let first = first.weights();
    let mut sides = [
        Side::start(config, Device::Cpu, &first)?,
        Side::start(config, device, &first)?,
    ];
    let mut comparison = Comparison {
        course: vec![Course::Same; config.settings.envs],
        ..Comparison::default()
    };
    let rounds = rows.div_ceil(rollout_steps(&*algorithm)).max(2);
    for round in 0..rounds as u64 {
        let [cpu, other] = &mut sides;
        let (cpu_parcels, parcels) = (cpu.receive()?, other.receive()?);
        for (a, b) in cpu_parcels.iter().zip(&parcels) {
            for ((first_env, a), (_, b)) in a.rollouts.iter().zip(&b.rollouts) {
                comparison.look(*first_env, a, b);
            }
        }
        let weights = scaled(&first, round + 1);
        for (side, parcels) in sides.iter().zip([cpu_parcels, parcels]) {
            side.inbox.recycle(parcels);
            side.publish(round + 1, &weights);
        }
    }
    let mut found = comparison.found;
    found.actions = f64::from(comparison.different) / f64::from(comparison.chosen.max(1));
    Ok(found)
}

/// Other weights in each round, so that a recorded pass that keeps old ones is found.
fn scaled(weights: &Snapshot, version: u64) -> Snapshot {
    let factor = 1.0 + 0.05 * version as f32;
    let values = weights.values().iter().map(|value| value * factor);
    Snapshot::from_values(values.collect())
}

/// The actors of one device, and their learner's end.
struct Side {
    // The link is closed before the actors are dropped.
    inbox: Inbox,
    _actors: LocalActors,
}

impl Side {
    fn start(config: &RunConfig, device: Device, weights: &Snapshot) -> Result<Self, EngineError> {
        let mut config = config.clone();
        config.settings.device = match device {
            Device::Cuda(number) => DeviceChoice::Cuda(number),
            _ => DeviceChoice::Cpu,
        };
        config.settings.actor_device = None;
        let kit = ActorKit::new(&config, None)?;
        let start = Start {
            seed: config.settings.seed,
            ..Start::default()
        };
        let places = Arc::new(config.places(start));
        let link = InProcess::new(Arc::clone(&places), config.history());
        let mut actors = LocalActors::new(&config, &kit, link.clone(), Arc::clone(&places));
        let mut inbox = config.inbox(Box::new(link), places, &Tally::new(false));
        let station = Station::new(&config, &kit, actors.link(), Arc::default());
        inbox.watch(actors.start(&station)?);
        let side = Self {
            inbox,
            _actors: actors,
        };
        side.publish(0, weights);
        Ok(side)
    }

    fn publish(&self, version: u64, values: &Snapshot) {
        self.inbox.publish(Publication {
            weights: Arc::new(Weights {
                version,
                values: values.clone(),
            }),
            control: Control::default(),
        });
    }

    /// One parcel of every place.
    fn receive(&mut self) -> Result<Vec<Parcel>, EngineError> {
        let parcels = self.inbox.receive_all(&AtomicBool::new(false))?;
        // Nobody stops it.
        Ok(parcels.unwrap_or_default())
    }
}

#[derive(Default)]
struct Comparison {
    found: Collected,
    chosen: u32,
    different: u32,
    course: Vec<Course>,
}

/// How far an environment has been the same on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Course {
    /// All actions were the same to the last bit, and so must be what is seen.
    #[default]
    Same,
    /// Continuous actions were rounded differently, and what is seen with them.
    Close,
    /// It went elsewhere.
    Apart,
}

/// How far observations may drift before an environment whose actions are rounded counts as apart.
const DRIFT: f64 = 1e-3;

impl Comparison {
    /// Compares rollouts of the same environments, from number `first_env` on.
    fn look(&mut self, first_env: usize, cpu: &Rollout, other: &Rollout) {
        if let Some(resident) = resident_observations(other) {
            self.found.resident += 1;
            let rows = (0..=other.steps()).flat_map(|t| (0..other.envs()).map(move |b| [t, b]));
            let wrong = rows.filter(|at| !same(&resident, &other.obs, at));
            self.found.resident_wrong += wrong.count();
        }
        for b in 0..cpu.envs() {
            let mut course = self.course[first_env + b];
            for t in 0..cpu.steps() {
                let at = [t, b];
                match course {
                    Course::Same if !same(&cpu.obs, &other.obs, &at) => {
                        self.found.observations += 1;
                        course = Course::Apart;
                    }
                    Course::Close if numbers_apart(&cpu.obs, &other.obs, &at) > DRIFT => {
                        course = Course::Apart;
                    }
                    _ => {}
                }
                if course == Course::Apart {
                    break;
                }
                (self.chosen, self.found.steps) = (self.chosen + 1, self.found.steps + 1);
                if !same_action(&cpu.actions, &other.actions, &at) {
                    self.different += 1;
                    course = Course::Apart;
                } else if cpu.actions.at(&at).bytes != other.actions.at(&at).bytes {
                    course = Course::Close;
                }
            }
            self.course[first_env + b] = course;
            // What looks ahead, such as a priority, depends on all of the rollout.
            if course != Course::Apart {
                let found = &mut self.found.records;
                for t in 0..cpu.steps() {
                    worst(found, numbers_apart(&cpu.policy, &other.policy, &[t, b]));
                }
                worst(found, numbers_apart(&cpu.state, &other.state, &[b]));
            }
        }
    }
}

fn same(a: &Tree<Array>, b: &Tree<Array>, at: &[usize]) -> bool {
    let mut pairs = a.leaves().into_iter().zip(b.leaves());
    pairs.all(|((_, a), (_, b))| a.at(at).bytes == b.at(at).bytes)
}

/// Numbers may differ by rounding.
fn same_action(a: &Array, b: &Array, at: &[usize]) -> bool {
    let (a, b) = (a.at(at), b.at(at));
    match a.dtype {
        DType::F32 => {
            let mut pairs = a.as_slice::<f32>().iter().zip(b.as_slice::<f32>());
            pairs.all(|(a, b)| (a - b).abs() <= 1e-2)
        }
        _ => a.bytes == b.bytes,
    }
}

/// Largest difference of a number, relative to its size where that is above 1.
fn numbers_apart(a: &Tree<Array>, b: &Tree<Array>, at: &[usize]) -> f64 {
    let mut apart = 0.0;
    for ((_, a), (_, b)) in a.leaves().into_iter().zip(b.leaves()) {
        if a.dtype() == DType::F32 {
            let (a, b) = (a.at(at), b.at(at));
            for (a, b) in a.as_slice::<f32>().iter().zip(b.as_slice::<f32>()) {
                let difference = f64::from((a - b).abs());
                worst(&mut apart, difference / f64::from(a.abs()).max(1.0));
            }
        }
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(mode: &str, algo: &str, env: &str) -> RunConfig {
        RunConfig::from_value(&json!({
            "env": {"id": env},
            "algo": {"name": algo},
            "mode": mode,
            "threads": 2,
            "envs": 8,
            "device": "cpu",
            "torch_threads": 1,
        }))
        .unwrap()
    }

    #[test]
    fn the_cpu_collects_what_it_collects_in_every_mode() {
        for mode in ["threads", "central"] {
            for (algo, env) in [("ppo", "CartPole-v1"), ("sac", "Pendulum-v1")] {
                let found = compare_collected(&config(mode, algo, env), Device::Cpu, 20).unwrap();
                assert!(found.agrees(), "{mode} {algo}: {found:?}");
                assert_eq!((found.actions, found.records), (0.0, 0.0));
                assert!(found.steps >= 8 * 20);
            }
        }
    }

    /// Every difference is found, and an environment that went elsewhere is left out.
    #[test]
    fn differences_are_found() {
        let config = config("threads", "ppo", "CartPole-v1");
        let kit = ActorKit::new(&config, None).unwrap();
        let place = crate::Place {
            first_env: 0,
            envs: 2,
            total_envs: 2,
        };
        let rollout = kit.actor(place, 1).unwrap().rollout().clone();
        let look = |change: &dyn Fn(&mut Rollout)| {
            let mut other = rollout.clone();
            change(&mut other);
            let mut comparison = Comparison {
                course: vec![Course::Same; 2],
                ..Comparison::default()
            };
            comparison.look(0, &rollout, &other);
            (comparison.found, comparison.different)
        };
        let steps = rollout.steps();
        let (same, different) = look(&|_| {});
        assert_eq!((same.steps, different), (2 * steps, 0));
        let (found, different) = look(&|other| other.actions.at_mut(&[3, 1]).write(&[1i64]));
        assert_eq!((found.steps, different), (steps + 4, 1));
        let (found, _) = look(&|other| {
            for (_, array) in other.obs.leaves_mut() {
                array.at_mut(&[2, 0]).write(&[1f32, 0.0, 0.0, 0.0]);
            }
        });
        assert_eq!((found.observations, found.steps), (1, steps + 2));
        let (found, _) = look(&|other| {
            if let Some(Tree::Leaf(values)) = other.policy.get_mut("value") {
                values.at_mut(&[5]).write(&[0f32, 0.5]);
            }
        });
        assert_eq!(found.records, 0.5);
        assert!(!found.agrees());
    }
}
