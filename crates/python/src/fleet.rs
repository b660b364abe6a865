//! The workers of a batch and the memory that they share with it.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};
use starling_envs::{EnvError, Pulse, Space};
use starling_tree::DType;

use crate::description::{Description, not_made};
use crate::memory::Memory;
use crate::options::Task;
use crate::worker::{Answer, Worker, wait_for};

/// What is asked of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// A step of all its environments.
    Step,
    /// A reset of those that [`Layout::ask`] names.
    Reset,
    /// A picture of the one that it names.
    Picture,
}

/// The worker processes of a batch. Each has a range of its environments.
pub(crate) struct Fleet {
    task: Task,
    description: Arc<Description>,
    pub(crate) memory: Memory,
    pub(crate) layout: Layout,
    workers: Vec<Worker>,
    shares: Vec<Range<usize>>,
    /// Why a worker is gone.
    gone: Vec<Option<String>>,
    pub(crate) watch: Option<(Arc<Pulse>, u64)>,
}

/// What came of a command.
#[derive(Default)]
pub(crate) struct Outcome {
    /// The environments that failed, and why.
    pub(crate) failed: Vec<(usize, String)>,
    /// The picture that was asked for.
    pub(crate) picture: Option<(usize, usize, Vec<u8>)>,
}

impl Fleet {
    /// Starts all workers, and waits until each has made its first environment.
    pub(crate) fn start(
        task: Task,
        description: Arc<Description>,
        envs: usize,
        workers: usize,
        watch: Option<(Arc<Pulse>, u64)>,
    ) -> Result<Self, EnvError> {
        let layout = Layout::new(&description, envs, workers);
        let memory = Memory::new(layout.bytes);
        let memory = memory.map_err(|error| {
            let text = format!("there is no memory to share with workers: {error}");
            EnvError::Failed(text)
        })?;
        let share = |w: usize| w * envs / workers..(w + 1) * envs / workers;
        let mut fleet = Self {
            task,
            description,
            memory,
            layout,
            workers: Vec::new(),
            shares: (0..workers).map(share).collect(),
            gone: vec![None; workers],
            watch,
        };
        for w in 0..workers {
            let worker = fleet.worker(w).map_err(EnvError::Failed)?;
            fleet.workers.push(worker);
        }
        let all = vec![true; workers];
        fleet.wait(&all);
        for w in 0..workers {
            fleet.welcome(w)?;
        }
        Ok(fleet)
    }

    /// The environments of each worker.
    pub(crate) fn shares(&self) -> &[Range<usize>] {
        &self.shares
    }

    /// Why a worker is gone, if it is.
    pub(crate) fn gone(&self, worker: usize) -> Option<&str> {
        self.gone[worker].as_deref()
    }

    /// Starts a new worker in the place of one that is gone. Its environments are new.
    pub(crate) fn replace(&mut self, w: usize) -> Result<(), String> {
        self.workers[w] = self.worker(w)?;
        self.gone[w] = None;
        let mut alone = vec![false; self.workers.len()];
        alone[w] = true;
        self.wait(&alone);
        self.welcome(w).map_err(|error| error.to_string())
    }

    /// Sends a command to some workers, and waits for their answers.
    pub(crate) fn command(&mut self, command: Command, which: &[bool]) -> Outcome {
        let byte = match command {
            Command::Step => b's',
            Command::Reset => b'r',
            Command::Picture => b'p',
        };
        for (worker, _) in self
            .workers
            .iter_mut()
            .zip(which)
            .filter(|(_, asked)| **asked)
        {
            worker.send(&[byte]);
        }
        self.wait(which);
        let mut outcome = Outcome::default();
        for w in (0..which.len()).filter(|w| which[*w]) {
            match self.workers[w].answer() {
                Ok(Answer::Done) => {}
                Ok(Answer::Picture(height, width, bytes)) => {
                    outcome.picture = Some((height, width, bytes));
                }
                Ok(Answer::Failed(table) | Answer::Described(table)) => {
                    let first = self.shares[w].start;
                    for entry in table.as_array().into_iter().flatten() {
                        let env = entry[0].as_u64().unwrap_or(0) as usize;
                        let text = entry[1].as_str().unwrap_or_default();
                        outcome.failed.push((first + env, text.to_owned()));
                    }
                }
                Err(ended) => outcome.failed.extend(self.lost(w, &ended)),
            }
        }
        outcome
    }

    /// A worker has ended: all its environments failed. The one that was at work comes first.
    fn lost(&mut self, w: usize, ended: &str) -> Vec<(usize, String)> {
        let share = self.shares[w].clone();
        let at_work = self.at_work(w);
        let mut envs: Vec<usize> = share.collect();
        envs.sort_by_key(|env| Some(*env) != at_work);
        let others = match envs.len() {
            1 => String::new(),
            count => format!(", with all its {count} environments"),
        };
        let text = format!("its worker process {ended}");
        // What it said last stands at the end.
        let text = match text.split_once("; ") {
            Some((how, last)) => format!("{how}{others}; {last}"),
            None => format!("{text}{others}"),
        };
        self.gone[w] = Some(text.clone());
        envs.into_iter().map(|env| (env, text.clone())).collect()
    }

    /// The environment that a worker is stepping or resetting.
    fn at_work(&self, w: usize) -> Option<usize> {
        let number = self.memory.number(self.layout.at_work + 8 * w);
        let env = usize::try_from(number).ok()?;
        Some(self.shares[w].start + env)
    }

    /// Waits for answers. The pulse names the environment that is waited for.
    fn wait(&mut self, which: &[bool]) {
        let (memory, at_work, shares) = (&self.memory, self.layout.at_work, &self.shares);
        let watch = &self.watch;
        wait_for(&mut self.workers, which, &mut |waiting| {
            let Some((pulse, first)) = watch else {
                return;
            };
            let slow = (0..waiting.len()).filter(|w| waiting[*w]);
            let mut slow = slow.filter_map(|w| {
                let env = usize::try_from(memory.number(at_work + 8 * w)).ok()?;
                Some(shares[w].start + env)
            });
            if let Some(env) = slow.next() {
                pulse.point(first + env as u64);
            }
        });
    }

    fn worker(&self, w: usize) -> Result<Worker, String> {
        let share = self.shares[w].clone();
        let worker = Worker::start(
            &self.task.python,
            Some(self.memory.file()),
            |life, memory| {
                let mut config = serde_json::to_value(&self.task).unwrap_or_default();
                let more = self.layout.config(w);
                let known = json!({
                    "describe": false,
                    "life": life,
                    "memory": memory,
                    "size": self.memory.len(),
                    "count": share.len(),
                    "first": share.start,
                    "masks": self.description.masks,
                    "spaces": self.description.spaces,
                });
                for table in [more, known] {
                    for (name, value) in table.as_object().into_iter().flatten() {
                        config[name.as_str()] = value.clone();
                    }
                }
                config
            },
        )?;
        let name = match &self.watch {
            Some((_, first)) => {
                let (start, end) = (first + share.start as u64, first + share.end as u64);
                format!(
                    "{}, worker of environments {start} to {}",
                    self.task.id,
                    end - 1
                )
            }
            None => self.task.id.clone(),
        };
        Ok(worker.named(name))
    }

    /// Whether a worker that was started is ready.
    fn welcome(&mut self, w: usize) -> Result<(), EnvError> {
        let problem = match self.workers[w].answer() {
            Ok(Answer::Described(_)) => return Ok(()),
            Ok(Answer::Failed(table)) => not_made(&self.task, &table),
            Ok(_) => EnvError::Failed("its worker gave a wrong answer".into()),
            Err(ended) => {
                let text = format!("{} could not be made: its worker {ended}", self.task.id);
                EnvError::Failed(text)
            }
        };
        self.gone[w] = Some(problem.to_string());
        Err(problem)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // All at once: each is waited for when it is dropped.
        self.workers.iter_mut().for_each(Worker::close);
    }
}

/// Where everything is in the shared memory. Each array has one item per environment.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) leaves: Vec<LeafPlace>,
    /// Actions, as in a rollout.
    pub(crate) actions: Range<usize>,
    /// `f64`.
    pub(crate) rewards: usize,
    /// `i64`: seeds of resets.
    pub(crate) seeds: usize,
    /// Four bytes: terminated, truncated, whether the next episode has begun already.
    pub(crate) flags: usize,
    /// One byte: 1 for what is asked of this environment, 2 for a new environment.
    pub(crate) ask: usize,
    /// Legal actions, and those at the beginning of the next episode.
    pub(crate) mask: usize,
    pub(crate) next_mask: usize,
    /// `i64` for each worker: the environment that is at work, or −1.
    at_work: usize,
    /// The number of actions.
    pub(crate) choices: usize,
    bytes: usize,
}

/// Where one array of the observations is.
#[derive(Clone, Debug)]
pub(crate) struct LeafPlace {
    /// Its dotted name.
    pub(crate) path: String,
    /// Where it is.
    pub(crate) offset: usize,
    /// Where that of the first observation of the next episode is.
    pub(crate) next: usize,
    /// Bytes of one environment.
    pub(crate) bytes: usize,
}

impl Layout {
    fn new(description: &Description, envs: usize, workers: usize) -> Self {
        let mut bytes = 0;
        // Each begins at a line of the processor's cache.
        let mut take = |each: usize| {
            let place = bytes;
            bytes += (each * envs.max(workers)).next_multiple_of(64);
            place
        };
        let spec = description.observation_space().spec();
        let leaves = spec.leaves().into_iter().map(|(path, spec)| {
            let bytes = spec.bytes();
            LeafPlace {
                path,
                offset: take(bytes),
                next: take(bytes),
                bytes,
            }
        });
        let leaves = leaves.collect();
        let (width, size) = match description.action_space() {
            Space::Discrete { .. } => (1, DType::I64),
            Space::MultiDiscrete { choices } => (choices.len(), DType::I64),
            Space::Box { shape, .. } => (shape.iter().product(), DType::F32),
            Space::Dict(_) => (0, DType::F32),
        };
        let choices = match description.action_space() {
            Space::Discrete { n } => n,
            _ => 0,
        };
        let item = width * size.size();
        let actions = take(item);
        Self {
            leaves,
            actions: actions..actions + item * envs,
            rewards: take(8),
            seeds: take(8),
            flags: take(4),
            ask: take(1),
            mask: take(choices),
            next_mask: take(choices),
            at_work: take(8),
            choices,
            bytes: bytes.max(64),
        }
    }

    /// What worker `w` is told of it.
    fn config(&self, w: usize) -> Value {
        let leaves = self
            .leaves
            .iter()
            .map(|leaf| json!({"offset": leaf.offset, "next": leaf.next, "bytes": leaf.bytes}));
        json!({
            "leaves": leaves.collect::<Vec<_>>(),
            "choices": self.choices,
            "offsets": {
                "actions": self.actions.start,
                "rewards": self.rewards,
                "seeds": self.seeds,
                "flags": self.flags,
                "ask": self.ask,
                "mask": self.mask,
                "next_mask": self.next_mask,
                "at_work": self.at_work + 8 * w,
            },
        })
    }
}
