//! The table of all algorithms.
//!
//! A new algorithm is one file and one entry. [`add`] adds one from another crate.

use std::sync::{LazyLock, PoisonError, RwLock};

use serde_json::Value;
use starling_settings::{Schema, Structure};

use crate::config::{ConfigError, parse_config, parse_parts, side_by_side};
use crate::continuous::{crossq, ddpg, sac, td3};
use crate::{
    Algorithm, Spaces, a2c, apex, appo, c51, dqn, impala, iqn, ngu, pearl, ppo, pqn, qr_dqn, r2d2,
    rainbow,
};

/// One line of the table.
pub struct AlgoSpec {
    /// Name on the command line.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
    schema: Box<dyn Fn() -> Schema + Send + Sync>,
    build: Box<Build>,
}

type Build = dyn Fn(&Value, &Spaces) -> Built + Send + Sync;

/// An algorithm, or what is wrong with its settings.
pub type Built = Result<Box<dyn Algorithm>, ConfigError>;

impl AlgoSpec {
    /// An algorithm with the settings `C`, which `build` makes for the spaces of an environment.
    pub fn new<C>(
        name: &'static str,
        summary: &'static str,
        paper: &'static str,
        build: fn(C, &Spaces) -> Built,
    ) -> Self
    where
        C: Default + Structure,
    {
        Self {
            name,
            summary,
            paper,
            schema: Box::new(Schema::of::<C>),
            build: Box::new(move |given, spaces| build(parse_config("algo", given)?, spaces)),
        }
    }

    /// An algorithm with the settings of its family beside its own, in one table.
    fn of_family<A, B>(
        name: &'static str,
        summary: &'static str,
        paper: &'static str,
        defaults: fn() -> (A, B),
        build: fn(A, B, &Spaces) -> Built,
    ) -> Self
    where
        A: Structure,
        B: Structure,
    {
        Self {
            name,
            summary,
            paper,
            schema: Box::new(move || side_by_side(&defaults())),
            build: Box::new(move |given, spaces| {
                let (shared, own) = parse_parts("algo", given, &defaults())?;
                build(shared, own, spaces)
            }),
        }
    }

    /// Its settings.
    pub fn schema(&self) -> Schema {
        (self.schema)()
    }

    /// All settings with their defaults.
    pub fn defaults(&self) -> Value {
        self.schema().defaults().clone()
    }

    /// Makes it from settings (those not given keep their defaults) for an environment's spaces.
    pub fn build(&self, given: &Value, spaces: &Spaces) -> Built {
        (self.build)(given, spaces)
    }
}

/// All algorithms by name, then those that were [added](add).
pub fn all() -> Vec<&'static AlgoSpec> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    TABLE.iter().chain(added.iter().copied()).collect()
}

/// Adds your own algorithm, so that every command and every run of this program knows it. It stays
/// until the program ends.
///
/// # Errors
/// When there is already an algorithm of this name.
pub fn add(spec: AlgoSpec) -> Result<(), ConfigError> {
    let name = spec.name;
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    let mut known = TABLE.iter().chain(added.iter().copied());
    if known.any(|known| known.name.eq_ignore_ascii_case(name)) {
        let message = format!("there is already an algorithm called '{name}'");
        return Err(ConfigError::Misfit(message));
    }
    added.push(Box::leak(Box::new(spec)));
    Ok(())
}

static ADDED: RwLock<Vec<&'static AlgoSpec>> = RwLock::new(Vec::new());

static TABLE: LazyLock<Vec<AlgoSpec>> = LazyLock::new(|| {
    vec![
        AlgoSpec::of_family(
            "a2c",
            "Advantage actor-critic, one gradient step per rollout",
            "Mnih et al. 2016",
            a2c::defaults,
            a2c::build,
        ),
        AlgoSpec::of_family(
            "apex-dqn",
            "Ape-X: many environments with different exploration rates, priorities from the actors",
            "Horgan et al. 2018",
            apex::apex_dqn,
            dqn::build,
        ),
        AlgoSpec::of_family(
            "apex-rainbow",
            "Ape-X with Rainbow",
            "Horgan et al. 2018, Hessel et al. 2018",
            apex::apex_rainbow,
            c51::build,
        ),
        AlgoSpec::of_family(
            "apex-rainbow-iqn",
            "Ape-X with Rainbow-IQN",
            "Toromanoff et al. 2019",
            apex::apex_rainbow_iqn,
            iqn::build,
        ),
        AlgoSpec::of_family(
            "appo",
            "Asynchronous PPO: the clipped loss with V-trace targets",
            "Luo et al. 2020; Petrenko et al. 2020",
            appo::defaults,
            appo::build,
        ),
        AlgoSpec::of_family(
            "c51",
            "Categorical DQN: a distribution over fixed return values per action",
            "Bellemare et al. 2017",
            c51::defaults,
            c51::build,
        ),
        AlgoSpec::of_family(
            "crossq",
            "SAC with batch renormalisation and without target networks",
            "Bhatt et al. 2024",
            crossq::defaults,
            crossq::build,
        ),
        AlgoSpec::of_family(
            "ddpg",
            "A deterministic actor that maximises its critic's value, for continuous actions",
            "Lillicrap et al. 2016",
            ddpg::defaults,
            ddpg::build,
        ),
        AlgoSpec::of_family(
            "dqn",
            "Deep Q-learning, optionally double, dueling, n-step, prioritized, noisy and Munchausen",
            "Mnih et al. 2015",
            dqn::defaults,
            dqn::build,
        ),
        AlgoSpec::of_family(
            "epsilon-rainbow",
            "Rainbow with ε-greedy exploration instead of noisy layers",
            "Stooke and Abbeel 2019",
            rainbow::epsilon_rainbow,
            c51::build,
        ),
        AlgoSpec::of_family(
            "impala",
            "Asynchronous actors, whose older policies are corrected for by V-trace",
            "Espeholt et al. 2018",
            impala::defaults,
            impala::build,
        ),
        AlgoSpec::of_family(
            "iqn",
            "Implicit quantile networks: any quantile of the return per action",
            "Dabney et al. 2018",
            iqn::defaults,
            iqn::build,
        ),
        AlgoSpec::of_family(
            "ngu",
            "R2D2 with intrinsic rewards for novelty, whose weight is chosen by a bandit",
            "Badia et al. 2020",
            ngu::defaults,
            ngu::build,
        ),
        AlgoSpec::new(
            "pearl",
            "Meta-learning: SAC with a variable for the task, inferred from a few episodes",
            "Rakelly et al. 2019",
            pearl::build,
        ),
        AlgoSpec::of_family(
            "ppo",
            "Proximal policy optimisation, several epochs per rollout",
            "Schulman et al. 2017",
            ppo::defaults,
            ppo::build,
        ),
        AlgoSpec::new(
            "pqn",
            "Parallelised Q-learning with λ-returns, without replay or target network",
            "Gallici et al. 2025",
            pqn::build,
        ),
        AlgoSpec::of_family(
            "qr-dqn",
            "Quantile regression DQN: fixed quantiles of the return per action",
            "Dabney et al. 2018",
            qr_dqn::defaults,
            qr_dqn::build,
        ),
        AlgoSpec::of_family(
            "r2d2",
            "Q-learning with an LSTM over replayed sequences with stored states",
            "Kapturowski et al. 2019",
            r2d2::defaults,
            r2d2::build,
        ),
        AlgoSpec::of_family(
            "rainbow",
            "C51 with double, dueling, n-step, prioritized replay and noisy layers",
            "Hessel et al. 2018",
            rainbow::rainbow,
            c51::build,
        ),
        AlgoSpec::of_family(
            "rainbow-iqn",
            "IQN with double, dueling, n-step, prioritized replay and noisy layers",
            "Toromanoff et al. 2019",
            rainbow::rainbow_iqn,
            iqn::build,
        ),
        AlgoSpec::of_family(
            "sac",
            "Soft actor-critic: maximises return and entropy, for continuous actions",
            "Haarnoja et al. 2018",
            sac::defaults,
            sac::build,
        ),
        AlgoSpec::of_family(
            "td3",
            "DDPG with twin critics, smoothed targets and a delayed actor",
            "Fujimoto et al. 2018",
            td3::defaults,
            td3::build,
        ),
    ]
});

/// The line of an algorithm. Names do not mind case: `PPO` is `ppo`.
pub fn find(name: &str) -> Result<&'static AlgoSpec, UnknownAlgo> {
    all()
        .into_iter()
        .find(|spec| spec.name.eq_ignore_ascii_case(name))
        .ok_or_else(|| UnknownAlgo {
            name: name.to_owned(),
        })
}

/// A name that no algorithm has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} Available: {}", explain(.name), names())]
pub struct UnknownAlgo {
    /// The name that was given.
    pub name: String,
}

/// An algorithm that adapts to tasks needs an environment that is a family of them.
///
/// # Errors
/// When it is not.
pub fn check_tasks(
    spec: &AlgoSpec,
    algorithm: &dyn Algorithm,
    is_family: bool,
) -> Result<(), ConfigError> {
    match algorithm.trial().is_some() && !is_family {
        false => Ok(()),
        true => Err(ConfigError::Misfit(format!(
            "{} cannot be used here: it adapts to the tasks of a family, and this environment has one \
             task only (`starling list envs meta` shows those that are families)",
            spec.name
        ))),
    }
}

/// Adds to an error which algorithms can be used with an environment (its spaces, and whether it is a
/// family of tasks), if this one cannot be, whatever its settings are.
pub fn with_usable(
    error: ConfigError,
    spec: &AlgoSpec,
    spaces: &Spaces,
    is_family: bool,
) -> ConfigError {
    let fits = |spec: &AlgoSpec| {
        let built = spec.build(&spec.defaults(), spaces);
        built.is_ok_and(|algorithm| check_tasks(spec, &*algorithm, is_family).is_ok())
    };
    match error {
        ConfigError::Misfit(reason) if !fits(spec) => {
            let usable = all().into_iter().filter(|spec| fits(spec));
            let usable: Vec<&str> = usable.map(|spec| spec.name).collect();
            ConfigError::Misfit(match usable.is_empty() {
                true => reason,
                false => format!("{reason}; usable here: {}", usable.join(", ")),
            })
        }
        error => error,
    }
}

fn explain(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    match nearest(&name) {
        Some(near) => format!("there is no algorithm called '{name}'; did you mean '{near}'?"),
        None => format!("there is no algorithm called '{name}'."),
    }
}

/// The name that is the fewest typing mistakes away; of equals, the one that begins alike.
fn nearest(name: &str) -> Option<&'static str> {
    let names = all().into_iter().map(|spec| spec.name);
    let scored = names.map(|known| {
        let mistakes = strsim::damerau_levenshtein(name, known);
        (mistakes, strsim::jaro_winkler(name, known), known)
    });
    let best = scored.min_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)))?;
    (best.0 <= 1 + name.len() / 4).then_some(best.2)
}

fn names() -> String {
    let names: Vec<&str> = all().iter().map(|spec| spec.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_names_get_the_nearest() {
        assert_eq!(find("PPO").unwrap().name, "ppo");
        let message = |name: &str| find(name).err().unwrap().to_string();
        for (wrong, near) in [
            ("pppo", "ppo"),
            ("pp", "ppo"),
            ("Apex_DQN", "apex-dqn"),
            ("dqnn", "dqn"),
        ] {
            let message = message(wrong);
            assert!(
                message.contains(&format!("did you mean '{near}'? Available: a2c, ")),
                "{message}"
            );
        }
        assert!(!message("reinforce").contains("did you mean"));
    }

    #[test]
    fn names_are_sorted_and_defaults_parse() {
        assert!(all().is_sorted_by_key(|spec| spec.name));
        let spaces = Spaces {
            observation: starling_envs::Space::unbounded(&[4]),
            action: starling_envs::Space::Discrete { n: 2 },
            legal_actions: None,
            frame_stack: None,
        };
        let bounded = Spaces {
            action: starling_envs::Space::floats(&[2], -1.0, 1.0),
            ..spaces.clone()
        };
        for spec in all() {
            // Some are for discrete actions, some for continuous ones, some for both.
            let built = spec.build(&spec.defaults(), &spaces);
            built
                .or_else(|_| spec.build(&spec.defaults(), &bounded))
                .unwrap();
        }
    }
}
