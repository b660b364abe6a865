//! The table of all environments.
//!
//! A new environment is one file and one entry in `registry/table.rs`. The entries of the Atari
//! games are derived from the emulator's table. Lists, help texts and shell completions are
//! generated from this table.

mod similar;
mod table;

use std::sync::{PoisonError, RwLock};

use starling_settings::{ConfigError, Schema};

use self::similar::{hint, nearest};
use self::table::ENVS;
use crate::meta::Family;
use crate::options::{EnvOptions, schema_of};
use crate::wrappers::TimeLimit;
use crate::{BatchOfOne, BatchVecEnv, Env, EnvBatch, EnvError, SyncVecEnv, VecEnv, atari};

/// One entry of the table: an environment that can be made by its id.
///
/// Your own entry need not be in the table: whatever takes an `&EnvSpec` accepts it as well. Start
/// from [`EnvSpec::new`]:
///
/// ```
/// # use starling_envs::{EnvSpec, classic::CartPole};
/// let spec = EnvSpec {
///     max_episode_steps: Some(500),
///     ..EnvSpec::new("MyCartPole-v0", "mine", "balance a pole", |_, _| {
///         Ok(Box::new(CartPole::new()))
///     })
/// };
/// ```
#[derive(Clone, Debug)]
pub struct EnvSpec {
    /// Its name, as Gymnasium spells it: `CartPole-v1`, `MinAtar/Breakout-v1`.
    pub id: &'static str,
    /// Its family: `classic`, `memory`, `exploration`, `meta`, `minatar`, `atari`. Presets are for
    /// families.
    pub family: &'static str,
    /// One line for lists.
    pub summary: &'static str,
    /// Steps after which an episode is truncated, unless the options say otherwise.
    pub max_episode_steps: Option<u64>,
    /// Mean return at which the task counts as solved, if one is agreed on.
    pub reward_threshold: Option<f64>,
    /// The options that it has besides `max_episode_steps`: [`Schema::of`] the family's structure.
    pub options: fn() -> Schema,
    /// The options of the same task in evaluations.
    pub for_evaluation: fn(&EnvOptions) -> EnvOptions,
    /// The options with which it can be rendered, if that has to be said when it is made.
    pub for_pictures: fn(&EnvOptions) -> EnvOptions,
    /// Its own limit on the steps of an episode: `max_episode_steps`, unless only the environment
    /// itself knows it.
    pub own_limit: OwnLimit,
    /// The tasks of a family, of which every environment of a run has one.
    pub tasks: Option<Family>,
    /// How it is made.
    pub build: Build,
}

/// How an environment is made, without the limit on the steps of an episode that [`EnvSpec`] adds.
#[derive(Clone, Copy, Debug)]
pub enum Build {
    /// One by one; a vector of them is a [`SyncVecEnv`].
    Env(MakeEnv),
    /// As a batch that code of its own steps together; a vector of them is a [`BatchVecEnv`].
    Batch(MakeBatch),
}

/// Finds out the environment's own limit on the steps of an episode.
pub type OwnLimit = fn(&EnvSpec, &EnvOptions) -> Result<Option<u64>, EnvError>;

/// Makes the environment of an id.
pub type MakeEnv = fn(&str, &EnvOptions) -> Result<Box<dyn Env>, EnvError>;

/// Makes a batch of that many environments of an id.
pub type MakeBatch = fn(&str, &EnvOptions, usize) -> Result<Box<dyn EnvBatch>, EnvError>;

impl EnvSpec {
    /// An environment without options and without a limit on the steps of an episode, evaluated as
    /// it is trained.
    pub const fn new(
        id: &'static str,
        family: &'static str,
        summary: &'static str,
        build: MakeEnv,
    ) -> Self {
        Self::built(id, family, summary, Build::Env(build))
    }

    /// The same for environments that are made as a batch.
    pub const fn batched(
        id: &'static str,
        family: &'static str,
        summary: &'static str,
        build: MakeBatch,
    ) -> Self {
        Self::built(id, family, summary, Build::Batch(build))
    }

    const fn built(
        id: &'static str,
        family: &'static str,
        summary: &'static str,
        build: Build,
    ) -> Self {
        Self {
            id,
            family,
            summary,
            max_episode_steps: None,
            reward_threshold: None,
            options: Schema::empty,
            for_evaluation: EnvOptions::clone,
            for_pictures: EnvOptions::clone,
            own_limit: |spec, _| Ok(spec.max_episode_steps),
            tasks: None,
            build,
        }
    }

    /// Makes the environment, with its limit on the steps of an episode; of a family of tasks, that
    /// of the first task.
    ///
    /// # Errors
    /// When an option is given that this environment does not have, or that is out of range.
    pub fn make(&self, options: &EnvOptions) -> Result<Box<dyn Env>, EnvError> {
        self.make_numbered(options, 0)
    }

    /// Makes environment `number` of a run: of a family of tasks, that of its task.
    ///
    /// # Errors
    /// As [`make`](EnvSpec::make).
    pub fn make_numbered(
        &self,
        options: &EnvOptions,
        number: usize,
    ) -> Result<Box<dyn Env>, EnvError> {
        self.check(options)?;
        let of_task = self.tasks.map(|family| family.of(options, number));
        let of_task = of_task.transpose()?;
        let options = of_task.as_ref().unwrap_or(options);
        let env = match self.build {
            Build::Env(make) => make(self.id, options)?,
            Build::Batch(make) => Box::new(BatchOfOne::new(make(self.id, options, 1)?)?),
        };
        Ok(match self.limit(options)? {
            Some(steps) => Box::new(TimeLimit::new(env, steps)),
            None => env,
        })
    }

    /// Tasks that the environments with these options have, if they are a family of them.
    ///
    /// # Errors
    /// When an option is wrong.
    pub fn count_tasks(&self, options: &EnvOptions) -> Result<Option<usize>, EnvError> {
        let family = self.tasks.as_ref();
        let count = family.map(|family| family.count(options)).transpose()?;
        Ok(count.filter(|count| *count > 0))
    }

    /// Makes `count` of them, to be stepped by one thread. Environment `i` draws from
    /// `stream(seed, role, first_index + i)`, and is number `first_index + i` of its run.
    ///
    /// # Errors
    /// When `count` is 0, the environments cannot be made with these options, or their spaces
    /// differ.
    pub fn make_vec(
        &self,
        options: &EnvOptions,
        count: usize,
        seed: u64,
        role: &str,
        first_index: u64,
    ) -> Result<Box<dyn VecEnv>, EnvError> {
        self.make_vec_from(
            first_index as usize,
            options,
            count,
            seed,
            role,
            first_index,
        )
    }

    /// The same, where the environments are number `first_number + i`.
    ///
    /// # Errors
    /// As [`make_vec`](EnvSpec::make_vec).
    pub fn make_vec_from(
        &self,
        first_number: usize,
        options: &EnvOptions,
        count: usize,
        seed: u64,
        role: &str,
        first_index: u64,
    ) -> Result<Box<dyn VecEnv>, EnvError> {
        Ok(match self.build {
            Build::Env(_) => {
                let numbers = first_number..first_number + count;
                let envs = numbers.map(|number| self.make_numbered(options, number));
                let envs = envs.collect::<Result<_, _>>()?;
                let vector = SyncVecEnv::from_envs(envs, seed, role, first_index)?;
                Box::new(vector.named(self.id))
            }
            Build::Batch(make) => {
                self.check(options)?;
                let batch = make(self.id, options, count)?;
                let limit = self.limit(options)?;
                let vector = BatchVecEnv::new(self.id, batch, limit, seed, role, first_index)?;
                Box::new(vector)
            }
        })
    }

    /// Steps after which an episode is truncated.
    ///
    /// # Errors
    /// When the environment has to be asked and cannot be made.
    pub fn limit(&self, options: &EnvOptions) -> Result<Option<u64>, EnvError> {
        match options.max_episode_steps {
            Some(steps) => Ok(Some(steps)),
            None => (self.own_limit)(self, options),
        }
    }

    /// Refuses options that this environment does not have.
    ///
    /// # Errors
    /// When there is one; the error names similar options.
    pub fn check(&self, options: &EnvOptions) -> Result<(), ConfigError> {
        options.check(&self.schema())
    }

    /// Its settings.
    pub fn schema(&self) -> Schema {
        schema_of((self.options)())
    }
}

/// All environments, in the order in which they should be listed: the table, then those that
/// were [added](add).
pub fn all() -> Vec<&'static EnvSpec> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    let table = ENVS.iter().chain(atari::specs());
    table.chain(added.iter().copied()).collect()
}

/// Adds your own environment, so that every command and every run of this program knows it. It
/// stays until the program ends.
///
/// # Errors
/// When there is already an environment with this id.
pub fn add(spec: EnvSpec) -> Result<(), EnvError> {
    if all().iter().any(|known| known.id == spec.id) {
        return Err(EnvError::Failed(format!(
            "there is already an environment called '{}'",
            spec.id
        )));
    }
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    added.push(Box::leak(Box::new(spec)));
    Ok(())
}

static ADDED: RwLock<Vec<&'static EnvSpec>> = RwLock::new(Vec::new());

/// Environments that are not in the table: every id that begins with a prefix is one.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// How its ids begin: `gym:`.
    pub prefix: &'static str,
    /// How its ids look, for lists: `gym:ID`.
    pub pattern: &'static str,
    /// One line for lists.
    pub summary: &'static str,
    /// The entry of an id.
    pub spec: fn(&'static str) -> EnvSpec,
}

/// The schemes that were [added](add_scheme).
pub fn schemes() -> Vec<Scheme> {
    let schemes = SCHEMES.read().unwrap_or_else(PoisonError::into_inner);
    schemes.clone()
}

/// Adds environments whose ids begin with a prefix, unless that prefix is known already.
pub fn add_scheme(scheme: Scheme) {
    let mut schemes = SCHEMES.write().unwrap_or_else(PoisonError::into_inner);
    if schemes.iter().all(|known| known.prefix != scheme.prefix) {
        schemes.push(scheme);
    }
}

static SCHEMES: RwLock<Vec<Scheme>> = RwLock::new(Vec::new());

/// The environments of schemes that were asked for.
static OF_SCHEMES: RwLock<Vec<&'static EnvSpec>> = RwLock::new(Vec::new());

/// The entry of an id that begins with the prefix of a scheme. Each is made once.
fn of_scheme(id: &str) -> Option<&'static EnvSpec> {
    let scheme = schemes().into_iter().find(|scheme| {
        let rest = id.strip_prefix(scheme.prefix);
        rest.is_some_and(|rest| !rest.is_empty())
    })?;
    let mut known = OF_SCHEMES.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(spec) = known.iter().find(|spec| spec.id == id) {
        return Some(spec);
    }
    let spec: &'static EnvSpec = Box::leak(Box::new((scheme.spec)(id.to_owned().leak())));
    known.push(spec);
    Some(spec)
}

/// The environment with this id, or the Atari game with this bare name (`Pong` is `ALE/Pong-v5`).
///
/// # Errors
/// When there is none; the error names similar ids.
pub fn find(id: &str) -> Result<&'static EnvSpec, UnknownEnv> {
    let find = |id: &str| all().into_iter().find(|spec| spec.id == id);
    let found = find(id)
        .or_else(|| find(&atari::of_bare_name(id)?))
        .or_else(|| of_scheme(id));
    found.ok_or_else(|| UnknownEnv {
        id: id.to_owned(),
        nearest: nearest(id),
    })
}

/// There is no environment with this id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no environment called '{id}'{}", hint(id, nearest))]
pub struct UnknownEnv {
    /// What was asked for.
    pub id: String,
    /// Similar ids, nearest first; possibly none.
    pub nearest: Vec<&'static str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_found() {
        for spec in all() {
            assert_eq!(find(spec.id).unwrap().id, spec.id);
            assert_eq!(all().iter().filter(|s| s.id == spec.id).count(), 1);
        }
    }

    #[test]
    fn ids_of_a_scheme_begin_with_its_prefix() {
        assert!(find("same:CartPole-v1").is_err());
        let scheme = Scheme {
            prefix: "same:",
            pattern: "same:ID",
            summary: "a cart and a pole, whatever its name",
            spec: |id| {
                EnvSpec::new(id, "test", "", |_, _| {
                    Ok(Box::new(crate::classic::CartPole::new()))
                })
            },
        };
        add_scheme(scheme);
        add_scheme(scheme);
        assert_eq!(schemes().len(), 1);
        let found = find("same:CartPole-v1").unwrap();
        assert_eq!(found.id, "same:CartPole-v1");
        assert!(std::ptr::eq(found, find("same:CartPole-v1").unwrap()));
        assert!(find("same:").is_err());
        assert!(all().iter().all(|spec| spec.family != "test"));
    }

    #[test]
    fn the_bare_name_of_an_atari_game_is_its_usual_id() {
        assert_eq!(find("Pong").unwrap().id, "ALE/Pong-v5");
        assert_eq!(find("Breakout").unwrap().id, "ALE/Breakout-v5");
        assert_eq!(find("CartPole").unwrap_err().nearest, ["CartPole-v1"]);
    }

    /// The options of a family and how they differ in evaluations are tested where the family is.
    #[test]
    fn options_that_do_not_apply_are_refused() {
        let options =
            |table: &str| EnvOptions::from_table(&serde_json::from_str(table).unwrap()).unwrap();
        let sticky = options(r#"{"sticky_action_prob": 0.2}"#);
        let refused = |id: &str, options: &EnvOptions| match find(id).unwrap().make(options) {
            Ok(_) => panic!("{id} accepts {options:?}"),
            Err(error) => error.to_string(),
        };
        assert!(find("MinAtar/Breakout-v1").unwrap().make(&sticky).is_ok());
        assert_eq!(
            refused("CartPole-v1", &sticky),
            "there is no setting called 'env.sticky_action_prob'; available: \
             env.max_episode_steps"
        );
        assert_eq!(
            refused(
                "MinAtar/Breakout-v1",
                &options(r#"{"sticky_action_prob": 1.5}"#)
            ),
            "env.sticky_action_prob is 1.5; allowed: between 0 and 1"
        );
        assert_eq!(
            refused("MinAtar/Breakout-v1", &options(r#"{"sticky": 0.1}"#)),
            "there is no setting called 'env.sticky'; did you mean env.sticky_action_prob? \
             Available: env.max_episode_steps, env.sticky_action_prob, env.difficulty_ramping"
        );
        let mut never = EnvOptions::default();
        never.max_episode_steps = Some(0);
        let error = refused("CartPole-v1", &never);
        assert_eq!(
            error,
            "env.max_episode_steps is 0; allowed: at least 1, or null"
        );
    }
}
