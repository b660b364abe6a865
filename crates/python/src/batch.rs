//! Python environments as a batch.

use std::cell::RefCell;
use std::sync::Arc;

use rand::Rng as _;
use starling_envs::render::Picture;
use starling_envs::{EnvBatch, EnvError, ObsMut, Pulse, Rng, Space, Step};
use starling_tree::View;

use crate::description::{self, Description};
use crate::fleet::{Command, Fleet};
use crate::options::{PythonOptions, Task};

/// Environments in worker processes, which start with the first reset.
///
/// A worker resets an environment whose episode has ended in the same turn, with the seed that
/// [`EnvBatch::reset`] is about to draw, and keeps the first observation until it is asked for: so the
/// end of an episode costs no second turn. If the reset comes with another seed after all, it is done
/// again.
pub struct PythonBatch {
    task: Task,
    description: Arc<Description>,
    observation_space: Space,
    action_space: Space,
    envs: usize,
    workers: usize,
    watch: Option<(Arc<Pulse>, u64)>,
    /// Pictures are asked for through a shared reference.
    fleet: RefCell<Option<Fleet>>,
    /// Why an environment has to be replaced.
    broken: Vec<Option<String>>,
    /// The seed of the next episode, where that has begun already.
    begun: Vec<Option<i64>>,
    failed: Vec<(usize, EnvError)>,
}

impl PythonBatch {
    /// A batch of `envs` environments of an id.
    ///
    /// # Errors
    /// When there is no such environment, its Python lacks something, or its spaces cannot be used.
    pub fn new(id: &str, options: &PythonOptions, envs: usize) -> Result<Self, EnvError> {
        let task = options.task(id);
        let description = description::of(&task)?;
        Ok(Self {
            observation_space: description.observation_space(),
            action_space: description.action_space(),
            workers: options.workers(envs),
            task,
            description,
            envs,
            watch: None,
            fleet: RefCell::new(None),
            broken: vec![None; envs],
            begun: vec![None; envs],
            failed: Vec::new(),
        })
    }

    /// The workers, which are started if they are not yet.
    fn started(&mut self) -> Result<&mut Fleet, EnvError> {
        let fleet = self.fleet.get_mut();
        if fleet.is_none() {
            *fleet = Some(Fleet::start(
                self.task.clone(),
                Arc::clone(&self.description),
                self.envs,
                self.workers,
                self.watch.clone(),
            )?);
        }
        // It was put there.
        fleet
            .as_mut()
            .ok_or_else(|| EnvError::Failed("its workers are gone".into()))
    }

    /// Notes which environments failed.
    fn note(&mut self, failed: Vec<(usize, String)>) {
        for (b, cause) in failed {
            self.broken[b] = Some(cause.clone());
            self.failed.push((b, EnvError::Failed(cause)));
        }
    }
}

impl EnvBatch for PythonBatch {
    fn len(&self) -> usize {
        self.envs
    }

    fn observation_space(&self) -> Space {
        self.observation_space.clone()
    }

    fn action_space(&self) -> Space {
        self.action_space.clone()
    }

    fn reset(
        &mut self,
        which: &[bool],
        rngs: &mut [Rng],
        mut obs: ObsMut<'_>,
    ) -> Result<(), EnvError> {
        self.failed.clear();
        self.started()?;
        let Some(fleet) = self.fleet.get_mut() else {
            return Ok(());
        };
        let mut asked = vec![false; which.len()];
        let mut lost = Vec::new();
        for b in 0..which.len() {
            fleet
                .memory
                .bytes_mut(fleet.layout.ask + b..fleet.layout.ask + b + 1)[0] = 0;
            if !which[b] {
                continue;
            }
            let seed = draw(&mut rngs[b]);
            if self.begun[b].take() == Some(seed) && self.broken[b].is_none() {
                copy_row(fleet, b, true, &mut obs);
                continue;
            }
            asked[b] = true;
            let kind = 1 + u8::from(self.broken[b].is_some());
            fleet
                .memory
                .bytes_mut(fleet.layout.ask + b..fleet.layout.ask + b + 1)[0] = kind;
            write_seed(fleet, b, seed);
        }
        let mut turns = vec![false; fleet.shares().len()];
        for (w, turn) in turns.iter_mut().enumerate() {
            let share = fleet.shares()[w].clone();
            *turn = share.clone().any(|b| asked[b]);
            if *turn && let Some(cause) = fleet.gone(w) {
                // The others of that worker are gone, too, and noticed at their next step.
                let cause = cause.to_owned();
                share
                    .clone()
                    .for_each(|b| self.broken[b] = Some(cause.clone()));
                if let Err(error) = fleet.replace(w) {
                    *turn = false;
                    lost.extend(share.filter(|b| asked[*b]).map(|b| (b, error.clone())));
                }
            }
        }
        let mut failed = match turns.contains(&true) {
            true => fleet.command(Command::Reset, &turns).failed,
            false => Vec::new(),
        };
        failed.extend(lost);
        for b in (0..which.len()).filter(|b| asked[*b]) {
            if failed.iter().all(|(env, _)| *env != b) {
                self.broken[b] = None;
                copy_row(fleet, b, false, &mut obs);
            }
        }
        // Those that were not asked for fail at their next step.
        let (now, later): (Vec<_>, Vec<_>) = failed.into_iter().partition(|(b, _)| asked[*b]);
        self.note(now);
        for (b, cause) in later {
            self.broken[b] = Some(cause);
        }
        Ok(())
    }

    fn step(
        &mut self,
        actions: View<'_>,
        rngs: &mut [Rng],
        mut obs: ObsMut<'_>,
        steps: &mut [Step],
    ) -> Result<(), EnvError> {
        self.failed.clear();
        self.started()?;
        let Some(fleet) = self.fleet.get_mut() else {
            return Ok(());
        };
        let place = fleet.layout.actions.clone();
        fleet.memory.bytes_mut(place).copy_from_slice(actions.bytes);
        let mut seeds = Vec::with_capacity(self.envs);
        for (b, rng) in rngs.iter().enumerate() {
            let seed = draw(&mut rng.clone());
            write_seed(fleet, b, seed);
            seeds.push(seed);
        }
        let turns: Vec<bool> = (0..fleet.shares().len())
            .map(|w| fleet.gone(w).is_none())
            .collect();
        let mut failed: Vec<(usize, String)> = Vec::new();
        for (b, cause) in self.broken.iter().enumerate() {
            failed.extend(cause.clone().map(|cause| (b, cause)));
        }
        for (b, cause) in fleet.command(Command::Step, &turns).failed {
            if self.broken[b].is_none() {
                failed.push((b, cause));
            }
        }
        if failed.is_empty() {
            for leaf in &fleet.layout.leaves {
                let all = leaf.offset..leaf.offset + leaf.bytes * self.envs;
                obs.bytes(&leaf.path)
                    .copy_from_slice(fleet.memory.bytes(all));
            }
        } else {
            for b in (0..self.envs).filter(|b| failed.iter().all(|(env, _)| env != b)) {
                copy_row(fleet, b, false, &mut obs);
            }
        }
        let (rewards, flags) = (fleet.layout.rewards, fleet.layout.flags);
        for (b, step) in steps.iter_mut().enumerate() {
            let mut reward = [0; 8];
            let at = rewards + 8 * b;
            reward.copy_from_slice(fleet.memory.bytes(at..at + 8));
            let at = flags + 4 * b;
            let flags = fleet.memory.bytes(at..at + 4);
            *step = Step {
                reward: f64::from_le_bytes(reward) as f32,
                terminated: flags[0] != 0,
                truncated: flags[1] != 0,
            };
            self.begun[b] = (flags[2] != 0).then_some(seeds[b]);
        }
        self.note(failed);
        Ok(())
    }

    fn failed(&mut self) -> Vec<(usize, EnvError)> {
        std::mem::take(&mut self.failed)
    }

    fn replaces_failed(&self) -> bool {
        true
    }

    fn discard(&mut self, env: usize) {
        self.broken[env] = Some("its output could not be used".into());
    }

    fn watch(&mut self, pulse: &Arc<Pulse>, first_index: u64) {
        self.watch = Some((Arc::clone(pulse), first_index));
        if let Some(fleet) = self.fleet.get_mut() {
            fleet.watch.clone_from(&self.watch);
        }
    }

    fn masks_actions(&self) -> bool {
        self.description.masks.is_some()
    }

    fn legal_actions(&self, env: usize, mask: &mut [u8]) {
        match &*self.fleet.borrow() {
            Some(fleet) => {
                let at = fleet.layout.mask + env * mask.len();
                mask.copy_from_slice(fleet.memory.bytes(at..at + mask.len()));
            }
            None => mask.fill(1),
        }
    }

    fn render(&self, env: usize) -> Result<Picture, EnvError> {
        let mut fleet = self.fleet.borrow_mut();
        let Some(fleet) = fleet.as_mut().filter(|_| self.task.render) else {
            return Err(EnvError::Failed(
                "it was made without pictures; use env.render=true".into(),
            ));
        };
        for b in 0..self.envs {
            let at = fleet.layout.ask + b;
            fleet.memory.bytes_mut(at..at + 1)[0] = u8::from(b == env);
        }
        let turns: Vec<bool> = fleet.shares().iter().map(|s| s.contains(&env)).collect();
        let outcome = fleet.command(Command::Picture, &turns);
        match (outcome.picture, outcome.failed.into_iter().next()) {
            (Some((height, width, rgb)), _) => Ok(Picture { width, height, rgb }),
            (None, Some((_, cause))) => Err(EnvError::Failed(cause)),
            (None, None) => Err(EnvError::NoPicture),
        }
    }

    fn render_fps(&self) -> f64 {
        self.description.fps.unwrap_or(15.0)
    }
}

/// The seed of an episode. Many environments take no larger ones.
fn draw(rng: &mut Rng) -> i64 {
    (rng.next_u64() >> 33) as i64
}

fn write_seed(fleet: &mut Fleet, b: usize, seed: i64) {
    let at = fleet.layout.seeds + 8 * b;
    fleet
        .memory
        .bytes_mut(at..at + 8)
        .copy_from_slice(&seed.to_le_bytes());
}

/// Copies what one environment shows: now, or at the beginning of the episode that has `begun`.
fn copy_row(fleet: &mut Fleet, b: usize, begun: bool, obs: &mut ObsMut<'_>) {
    for leaf in &fleet.layout.leaves {
        let from = if begun { leaf.next } else { leaf.offset };
        let from = from + b * leaf.bytes..from + (b + 1) * leaf.bytes;
        let row = b * leaf.bytes..(b + 1) * leaf.bytes;
        obs.bytes(&leaf.path)[row].copy_from_slice(fleet.memory.bytes(from));
    }
    let choices = fleet.layout.choices;
    if begun && choices > 0 {
        let at = fleet.layout.next_mask + b * choices;
        let next = fleet.memory.bytes(at..at + choices).to_vec();
        let at = fleet.layout.mask + b * choices;
        fleet
            .memory
            .bytes_mut(at..at + choices)
            .copy_from_slice(&next);
    }
}
