//! Everything that defines a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use starling_algos::registry::{self, AlgoSpec};
use starling_algos::{Algorithm, ConfigError, Experience, Spaces, parse_config, require};
use starling_envs::{Env, EnvError, EnvOptions, EnvSpec};
use starling_nets::DeviceChoice;
use starling_replay::{RateLimiter, ReplayError};
use starling_settings::{Form, Range, Schema, Setting, merge};

use super::memory::{fits, rollouts_fit};
use crate::EngineError;
use crate::collect::GROUPS;
use crate::learn::replay_layout;

/// Everything that defines a run, read from one tree of settings:
///
/// ```yaml
/// env: {id: CartPole-v1}
/// algo: {name: ppo, learning_rate: 0.001}
/// seed: 1
/// steps: 100000
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RunConfig {
    /// The environment's id.
    pub env_id: String,
    /// The environment's settings.
    pub env: EnvOptions,
    /// The algorithm's name.
    pub algo_name: String,
    /// The algorithm's settings; its own file says which there are.
    pub algo: Value,
    /// Everything else.
    pub settings: Settings,
    /// Which learner of a group this process is. Not a setting: it is 0 but for processes that join.
    pub seat: Seat,
}

/// A learner's place in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its number.
    pub rank: usize,
    /// Learners that share the cores of this machine.
    pub beside: usize,
}

impl Default for Seat {
    fn default() -> Self {
        Self { rank: 0, beside: 1 }
    }
}

/// The settings of a run that belong to no environment and no algorithm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Seed of all random streams.
    pub seed: u64,
    /// Steps of all environments together.
    #[schemars(range(min = 1))]
    pub steps: u64,
    /// Who steps the environments.
    pub mode: Mode,
    /// Actors keep collecting while the learner learns, with slightly older weights (not with
    /// `serial`).
    pub asynchronous: bool,
    /// With `asynchronous`: act with the weights of exactly this many updates ago, so that what is
    /// learned does not depend on the speed of the machine; null for the latest weights.
    #[schemars(range(min = 1, max = 16), extend("unit" = "updates"))]
    pub fixed_lag: Option<u64>,
    /// Environments of the run, or of each learner if there are several; 0 chooses by mode, cores and
    /// device.
    #[schemars(range(max = 100_000))]
    pub envs: usize,
    /// Learners, each a process with its own actors, environments and replay, whose gradients are
    /// averaged. `envs`, the batch size and everything else of `algo` are those of each; `steps` are those
    /// of all together.
    #[schemars(range(min = 1, max = 64))]
    pub learners: usize,
    /// With several learners: how many may be lost in the whole run. The others continue, and a new one
    /// can join.
    #[schemars(extend("unit" = "learners"))]
    pub max_learner_losses: u64,
    /// With several learners: the library that averages their gradients.
    pub collective: CollectiveLibrary,
    /// With several learners: round gradients to bfloat16 on their way, which halves what travels.
    pub bf16_gradients: bool,
    /// Threads that step environments (not with `serial`); 0 for one per core.
    pub threads: usize,
    /// Pin each of those threads to its own core.
    pub pin_threads: bool,
    /// Where networks are computed.
    pub device: DeviceChoice,
    /// Where actors and evaluations compute them, if elsewhere: for a few environments and a small
    /// network the CPU is faster than a GPU. null for `device`.
    pub actor_device: Option<DeviceChoice>,
    /// On a GPU: round the inputs of float32 products to TensorFloat-32, which is several times
    /// faster.
    pub tf32: bool,
    /// Threads of one libtorch operation of the learner; 0 chooses by mode and cores.
    #[schemars(range(max = 1024))]
    pub torch_threads: usize,
    /// With `asynchronous` and a replay: threads that insert steps into the replay, sample batches
    /// and send them to the device ahead of the learner; 0 leaves all of that to the learner.
    #[schemars(range(max = 64))]
    pub prefetch_threads: usize,
    /// With `asynchronous` and a replay: updates between two publications of the weights.
    #[schemars(range(min = 1))]
    pub publish_every_updates: u64,
    /// Each environment first takes a random number of random steps, up to this many, so that
    /// episodes do not end at the same time.
    #[schemars(range(max = 100_000_000))]
    pub decorrelate_steps: u64,
    /// End the run when the mean return of the last 100 episodes (on Atari: the mean score of the
    /// last 100 games) reaches this.
    #[schemars(extend("unbounded" = true))]
    pub stop_at_return: Option<f64>,
    /// Steps between two rows of metrics.
    #[schemars(range(min = 1))]
    pub log_every_steps: u64,
    /// What happens when an environment reports an error. A panic is the loss of an actor.
    pub on_env_error: OnEnvError,
    /// With `on_env_error: restart`: maximum number of restarts in the whole run.
    #[schemars(extend("unit" = "restarts"))]
    pub max_env_restarts: u64,
    /// What happens when an actor fails, such as by an environment that panics.
    pub on_actor_loss: OnActorLoss,
    /// With `on_actor_loss: continue`: maximum number of actors lost in the whole run.
    #[schemars(extend("unit" = "actors"))]
    pub max_actor_losses: u64,
    /// Evaluation on environments of its own.
    pub eval: EvalConfig,
    /// Checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Videos of the agent, in the folder `videos` of the run.
    pub video: VideoConfig,
    /// Seconds that a single call of an environment may take, and that actors and learner wait for
    /// each other, before the run ends with an error. Time in which the whole process is paused
    /// does not count.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub stall_timeout_s: f64,
}

/// Who steps the environments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One actor and the learner take turns, in a fixed order: reproducible bit for bit.
    #[default]
    Serial,
    /// Several threads, each with its own environments and its own copy of the policy.
    Threads,
    /// Several threads with environments, and one that chooses the actions of all in large
    /// batches: the mode for a GPU.
    Central,
}

/// The library that averages the gradients of several learners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CollectiveLibrary {
    /// Gloo, over TCP: part of libtorch.
    #[default]
    Gloo,
    /// NCCL, between GPUs: `libnccl.so.2`, which comes with libtorch for CUDA.
    Nccl,
    /// MPI, between processes that `mpirun` started: Open MPI or MPICH, where installed. Without one of
    /// its learners the run ends, and can be resumed.
    Mpi,
}

/// What happens when an environment reports an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnEnvError {
    /// The run ends with the reason.
    #[default]
    Stop,
    /// The episode is cut off, and the environment is restarted.
    Restart,
}

/// What happens when an actor fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnActorLoss {
    /// The run ends with the reason.
    #[default]
    Stop,
    /// Another actor takes its place (not with `mode: serial`).
    Continue,
}

/// When and how much to evaluate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// Steps between two evaluations; 0 for none.
    pub every_steps: u64,
    /// Episodes per evaluation; of algorithms that adapt to a task (PEARL), trials of several
    /// episodes.
    #[schemars(range(min = 1))]
    pub episodes: usize,
    /// Steps after which an episode of an evaluation is cut off: an agent may have found a way to
    /// play forever.
    #[schemars(range(min = 1))]
    pub max_steps: u64,
    /// Who plays the episodes.
    pub by: EvalBy,
}

/// Who plays the episodes of evaluations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EvalBy {
    /// The learner: training waits meanwhile.
    #[default]
    Learner,
    /// A process of its own on the same machine: training continues. An evaluation that comes due
    /// while the process is still busy is skipped if another one comes due before it is done.
    Process,
    /// Processes that join with `starling evaluator` (needs `--listen`): training continues.
    Evaluators,
}

/// When to save, and what to keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Steps between two checkpoints; 0 for none by steps.
    pub every_steps: u64,
    /// Minutes between two checkpoints; 0 for none by time. There is always one at the end.
    #[schemars(range(min = 0.0))]
    pub every_minutes: f64,
    /// How many of the latest to keep.
    #[schemars(range(min = 1), extend("unit" = "checkpoints"))]
    pub keep_last: usize,
    /// Steps between two checkpoints that are never removed; null for none.
    pub milestone_steps: Option<u64>,
}

/// When to film the agent, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VideoConfig {
    /// Steps between two videos, each of one episode as in an evaluation; 0 for none. Training waits
    /// meanwhile.
    pub every_steps: u64,
    /// Format of the files.
    pub format: VideoFormat,
    /// Steps after which a video ends.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_steps: u64,
}

/// The format of videos.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VideoFormat {
    /// H.264 in an MP4 file, which browsers play.
    #[default]
    Mp4,
    /// An animated GIF, without loss where a picture has at most 256 colours.
    Gif,
}

impl VideoFormat {
    /// How the names of files end.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Mp4 => "mp4",
            Self::Gif => "gif",
        }
    }
}

impl Default for VideoConfig {
    fn default() -> Self {
        Self {
            every_steps: 0,
            format: VideoFormat::Mp4,
            max_steps: 1000,
        }
    }
}

impl Settings {
    /// Puts a number in the place of `envs: 0`.
    fn choose_envs(&mut self) -> Result<(), EngineError> {
        if self.envs == 0 {
            let on_gpu = self.device.resolve()? != starling_nets::Device::Cpu;
            self.envs = match (self.mode, on_gpu) {
                (Mode::Serial, _) => 8,
                // What keeps a GPU busy while the other half of the environments steps.
                (_, true) => 64 * cores(),
                (_, false) => 8 * cores(),
            };
        }
        Ok(())
    }
}

impl Settings {
    /// Where actors and evaluations compute.
    pub fn actor_device(&self) -> &DeviceChoice {
        self.actor_device.as_ref().unwrap_or(&self.device)
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            steps: 100_000,
            mode: Mode::Serial,
            asynchronous: false,
            fixed_lag: None,
            envs: 8,
            learners: 1,
            max_learner_losses: 10,
            collective: CollectiveLibrary::default(),
            bf16_gradients: false,
            threads: 0,
            pin_threads: false,
            device: DeviceChoice::Auto,
            actor_device: None,
            tf32: true,
            torch_threads: 0,
            prefetch_threads: 0,
            publish_every_updates: 1,
            decorrelate_steps: 0,
            stop_at_return: None,
            log_every_steps: 10_000,
            on_env_error: OnEnvError::Stop,
            max_env_restarts: 100,
            on_actor_loss: OnActorLoss::Stop,
            max_actor_losses: 100,
            eval: EvalConfig::default(),
            checkpoint: CheckpointConfig::default(),
            video: VideoConfig::default(),
            stall_timeout_s: 300.0,
        }
    }
}

impl Default for EvalConfig {
    fn default() -> Self {
        Self {
            every_steps: 0,
            episodes: 10,
            max_steps: 27_000,
            by: EvalBy::Learner,
        }
    }
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            every_steps: 100_000,
            every_minutes: 10.0,
            keep_last: 3,
            milestone_steps: None,
        }
    }
}

impl RunConfig {
    /// Reads a whole tree of settings and checks everything that can be checked without
    /// starting: names, types, ranges, and whether algorithm and environment fit.
    pub fn from_value(value: &Value) -> Result<Self, EngineError> {
        let mut tree = value.as_object().cloned().unwrap_or_default();
        let (env_id, env) = named_section(&mut tree, "env", "id")?;
        let (algo_name, algo) = named_section(&mut tree, "algo", "name")?;
        // Its name as the table has it, also where the user wrote PPO.
        let algo_name = registry::find(&algo_name)?.name.to_owned();
        let mut config = Self {
            env: EnvOptions::from_table(&env)?,
            env_id,
            algo_name,
            algo,
            settings: parse_config("", &Value::Object(tree))?,
            seat: Seat::default(),
        };
        config.settings.choose_envs()?;
        config.check()?;
        Ok(config)
    }

    /// The whole tree, with every default filled in.
    pub fn to_value(&self) -> Value {
        let whole = |first: (&str, &str), rest: Value| {
            let mut section = Map::new();
            section.insert(first.0.into(), first.1.into());
            section.extend(rest.as_object().cloned().unwrap_or_default());
            Value::Object(section)
        };
        let mut algo = self.algo_spec().map_or(Value::Null, |spec| spec.defaults());
        merge(&mut algo, &self.algo);
        let mut tree = Map::new();
        let env = self
            .env_spec()
            .map_or(Value::Null, |spec| self.env.to_table(&spec.schema()));
        tree.insert("env".into(), whole(("id", &self.env_id), env));
        tree.insert("algo".into(), whole(("name", &self.algo_name), algo));
        let settings = serde_json::to_value(&self.settings).unwrap_or_default();
        tree.extend(settings.as_object().cloned().unwrap_or_default());
        Value::Object(tree)
    }

    /// All settings of a run with this environment and algorithm. Sections stand before the
    /// settings in them.
    pub fn settings_of(env: &EnvSpec, algo: &AlgoSpec) -> Vec<Setting> {
        let [mut all, named] = Self::names_of_parts();
        all.extend(env.schema().settings("env"));
        all.extend(named);
        all.extend(algo.schema().settings("algo"));
        all.extend(Self::run_settings());
        all
    }

    /// The settings that belong to no environment and no algorithm.
    pub fn run_settings() -> Vec<Setting> {
        Schema::of::<Settings>().settings("")
    }

    /// The section of the environment and the setting that names it; the same of the algorithm.
    pub fn names_of_parts() -> [Vec<Setting>; 2] {
        let named = |key: &str, words: &str, form| Setting {
            key: key.to_owned(),
            words: words.to_owned(),
            forms: vec![form],
            nullable: false,
            unit: None,
            range: Range::default(),
            default: Value::Null,
        };
        let env = "The environment; `starling list envs` shows all.";
        let algo = "The algorithm; `starling list algos` shows all. If none is named, the \
                    environment's family decides.";
        [
            vec![
                named("env", "The environment and its settings.", Form::Section),
                named("env.id", env, Form::Text),
            ],
            vec![
                named("algo", "The algorithm and its settings.", Form::Section),
                named("algo.name", algo, Form::Text),
            ],
        ]
    }

    /// The environment's line in the table.
    pub fn env_spec(&self) -> Result<&'static EnvSpec, EngineError> {
        Ok(starling_envs::registry::find(&self.env_id)?)
    }

    /// The algorithm's line in the table.
    pub fn algo_spec(&self) -> Result<&'static AlgoSpec, EngineError> {
        Ok(registry::find(&self.algo_name)?)
    }

    /// The algorithm, made for the environment's spaces.
    pub fn algorithm(&self) -> Result<Box<dyn Algorithm>, EngineError> {
        let env = self.env_spec()?.make(&self.env)?;
        Ok(self.algo_spec()?.build(&self.algo, &spaces_of(&*env))?)
    }

    fn check(&self) -> Result<(), EngineError> {
        let s = &self.settings;
        let env = self.env_spec()?.make(&self.env);
        let env = env.map_err(|error| match error {
            EnvError::Options(error) => error,
            error => ConfigError::Misfit(format!("env: {error}")),
        })?;
        let step = env.observation_space().spec().item_bytes();
        let spaces = spaces_of(&*env);
        let spec = self.algo_spec()?;
        let is_family = self.env_spec()?.tasks.is_some();
        let algorithm = spec.build(&self.algo, &spaces).and_then(|algorithm| {
            registry::check_tasks(spec, &*algorithm, is_family)?;
            Ok(algorithm)
        });
        let algorithm =
            algorithm.map_err(|error| registry::with_usable(error, spec, &spaces, is_family))?;
        self.check_minibatches(algorithm.experience())?;
        match algorithm.experience() {
            Experience::Rollouts { steps } => {
                rollouts_fit(steps, s.envs, step)?;
                // Asynchronously a batch is of any actors, and all learners have to make as many gradient
                // steps.
                let free = s.asynchronous && s.fixed_lag.is_none();
                require(
                    s.learners == 1 || !free || s.envs.is_multiple_of(self.parts()),
                    "envs",
                    s.envs,
                    "a multiple of threads (with mode=central of 2) where several learners are \
                     asynchronous without a fixed_lag",
                )?;
            }
            Experience::Transitions(needs) => {
                let layout = replay_layout(&*algorithm, &spaces, s.envs);
                let memory = needs.replay.memory(&layout);
                let row = memory.total_bytes() as usize / memory.rows.max(1);
                let capacity = needs.replay.capacity_steps;
                fits("algo.capacity_steps", capacity, capacity, row, "")?;
                needs.replay.validate(&layout).map_err(in_algo)?;
                rollouts_fit(needs.steps, s.envs, step)?;
                RateLimiter::new(needs.rate).map_err(in_algo)?;
            }
        }
        let tasks = self.env_spec()?.count_tasks(&self.env)?.unwrap_or(0);
        require(
            s.envs >= tasks,
            "envs",
            s.envs,
            "at least env.train_tasks: every task has an environment",
        )?;
        s.device.resolve()?;
        s.actor_device().resolve()?;
        let groups = if s.mode == Mode::Central { GROUPS } else { 1 };
        require(
            s.threads <= s.envs / groups,
            "threads",
            s.threads,
            "at most one per environment (envs; with mode=central, per two)",
        )?;
        require(
            s.on_env_error == OnEnvError::Stop || s.max_env_restarts >= 1,
            "max_env_restarts",
            s.max_env_restarts,
            "at least 1 with on_env_error=restart",
        )?;
        require(
            s.on_actor_loss == OnActorLoss::Stop || s.max_actor_losses >= 1,
            "max_actor_losses",
            s.max_actor_losses,
            "at least 1 with on_actor_loss=continue",
        )?;
        require(
            s.on_actor_loss == OnActorLoss::Stop || s.mode != Mode::Serial,
            "on_actor_loss",
            "continue",
            "stop with mode=serial, whose one actor takes turns with the learner; use \
             mode=threads or mode=central",
        )?;
        let central = s.mode == Mode::Central;
        require(
            !central || s.envs >= 2,
            "envs",
            s.envs,
            "at least 2 with mode=central, which lets two groups take turns",
        )?;
        let lag = s.fixed_lag;
        require(
            lag.is_none() || s.asynchronous,
            "fixed_lag",
            lag.unwrap_or(0),
            "null without asynchronous=true",
        )?;
        let free = s.asynchronous && s.fixed_lag.is_none();
        require(
            s.prefetch_threads == 0 || free,
            "prefetch_threads",
            s.prefetch_threads,
            "0 without asynchronous=true, and with fixed_lag: what is prefetched depends on the \
             speed of the machine",
        )?;
        require(
            s.prefetch_threads == 0 || s.learners == 1,
            "prefetch_threads",
            s.prefetch_threads,
            "0 with several learners (learners)",
        )?;
        let serial = s.mode == Mode::Serial;
        require(
            !(serial && s.asynchronous),
            "asynchronous",
            true,
            "false with mode=serial, which has no separate actors; use mode=threads or \
             mode=central",
        )?;
        Ok(())
    }

    /// Refuses more minibatches than there are samples in a rollout.
    fn check_minibatches(&self, experience: Experience) -> Result<(), EngineError> {
        let algo = &self.to_value()["algo"];
        let (Experience::Rollouts { steps }, Some(minibatches)) =
            (experience, algo["minibatches"].as_u64())
        else {
            return Ok(());
        };
        let samples = steps.saturating_mul(self.settings.envs);
        let allowed = format!("at most the {samples} samples of a rollout (rollout_steps × envs)");
        let good = minibatches <= samples as u64;
        Ok(require(good, "algo.minibatches", minibatches, &allowed)?)
    }
}

/// The replay's settings stand among the algorithm's.
fn in_algo(error: ReplayError) -> EngineError {
    match error {
        ReplayError::Config {
            key,
            value,
            allowed,
        } => EngineError::Config(ConfigError::Value {
            key: format!("algo.{key}"),
            value,
            allowed,
        }),
        other => other.into(),
    }
}

/// What an environment shows and accepts.
pub(crate) fn spaces_of(env: &dyn Env) -> Spaces {
    let action = env.action_space();
    let legal_actions = match (&action, env.masks_actions()) {
        (starling_envs::Space::Discrete { n }, true) => Some(*n),
        _ => None,
    };
    Spaces {
        observation: env.observation_space(),
        action,
        legal_actions,
        frame_stack: env.frame_stack(),
    }
}

/// Takes `{name: …, rest…}` out of the tree: the name and the rest.
fn named_section(
    tree: &mut Map<String, Value>,
    section: &str,
    name: &str,
) -> Result<(String, Value), ConfigError> {
    let key = format!("{section}.{name}");
    let missing = |value: &Value| ConfigError::Value {
        key: key.clone(),
        value: value.to_string(),
        allowed: format!("a name; `starling list {section}s` shows all"),
    };
    match tree.remove(section) {
        Some(Value::Object(mut rest)) => match rest.remove(name) {
            Some(Value::String(name)) => Ok((name, Value::Object(rest))),
            other => Err(missing(&other.unwrap_or(Value::Null))),
        },
        other => Err(missing(&other.unwrap_or(Value::Null))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_resolved_config_reads_back_as_itself() {
        let given = json!({
            "env": {"id": "CartPole-v1"},
            "algo": {"name": "ppo", "epochs": 2},
            "steps": 5,
        });
        let config = RunConfig::from_value(&given).unwrap();
        let resolved = config.to_value();
        assert_eq!(resolved["algo"]["epochs"], 2);
        assert_eq!(resolved["algo"]["minibatches"], 4);
        let again = RunConfig::from_value(&resolved).unwrap();
        assert_eq!(again.to_value(), resolved);
    }

    #[test]
    fn mistakes_are_named() {
        let message = |given: Value| RunConfig::from_value(&given).unwrap_err().to_string();
        let base = |extra: Value| {
            let mut tree = json!({"env": {"id": "CartPole-v1"}, "algo": {"name": "ppo"}});
            merge(&mut tree, &extra);
            tree
        };
        assert!(message(base(json!({"env": {"id": "CartPol-v1"}}))).contains("CartPole-v1"));
        assert!(message(base(json!({"algo": {"name": "pp"}}))).contains("did you mean 'ppo'"));
        assert!(message(base(json!({"step": 5}))).contains("did you mean steps"));
        assert!(message(base(json!({"steps": "many"}))).contains("steps is \"many\""));
        assert!(message(base(json!({"steps": 0}))).contains("at least 1"));
        assert!(message(base(json!({"asynchronous": true}))).contains("mode=serial"));
        let alone = message(base(json!({"on_actor_loss": "continue"})));
        assert!(alone.contains("use mode=threads"), "{alone}");
        let continuous = json!({"env": {"id": "Pendulum-v1"}, "algo": {"name": "dqn"}});
        assert_eq!(
            message(continuous),
            "dqn cannot be used here: action values need discrete actions, and those of this \
             environment are continuous; usable here: a2c, appo, crossq, ddpg, impala, ppo, \
             sac, td3"
        );
        let one_task = message(json!({"env": {"id": "Pendulum-v1"}, "algo": {"name": "pearl"}}));
        assert!(
            one_task.starts_with("pearl cannot be used here: it adapts to the tasks of a family"),
            "{one_task}"
        );
        assert!(
            one_task.ends_with("crossq, ddpg, impala, ppo, sac, td3"),
            "{one_task}"
        );
        let family = json!({"env": {"id": "PointRobot-v0"}, "algo": {"name": "dqn"}});
        assert!(message(family).contains("pearl"));
        let many = message(base(json!({"algo": {"minibatches": 100_000}, "envs": 8})));
        assert!(
            many.contains("algo.minibatches is 100000; allowed: at most"),
            "{many}"
        );
    }
}
