//! THE table of algorithms.

use serde_json::Value;

use crate::config::{ConfigError, parse_config, parse_parts, side_by_side};
use crate::{
    Algorithm, Spaces, a2c, apex, appo, c51, dqn, impala, iqn, ngu, ppo, pqn, qr_dqn, r2d2, rainbow,
};

/// One line of the table.
pub struct AlgoSpec {
    /// Name on the command line.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
    /// All settings with their defaults.
    pub defaults: fn() -> Value,
    /// Makes it from settings (those not given keep their defaults) for an environment's spaces.
    pub build: fn(&Value, &Spaces) -> Built,
}

/// An algorithm, or what is wrong with its settings.
pub type Built = Result<Box<dyn Algorithm>, ConfigError>;

/// All algorithms, by name.
pub fn all() -> &'static [AlgoSpec] {
    const {
        &[
            AlgoSpec {
                name: "a2c",
                summary: "Advantage actor-critic, one gradient step per rollout",
                paper: "Mnih et al. 2016",
                defaults: || defaults::<a2c::Config>(),
                build: |given, spaces| {
                    Ok(Box::new(a2c::A2c::new(
                        parse_config("algo", given)?,
                        spaces,
                    )?))
                },
            },
            AlgoSpec {
                name: "apex-dqn",
                summary: "Ape-X: many environments, a ladder of exploration, priorities from the actors",
                paper: "Horgan et al. 2018",
                defaults: || side_by_side(&apex::apex_dqn()),
                build: |given, spaces| {
                    let (shared, config) = parse_parts("algo", given, &apex::apex_dqn())?;
                    dqn::build(shared, config, spaces)
                },
            },
            AlgoSpec {
                name: "apex-rainbow",
                summary: "Ape-X over Rainbow",
                paper: "Horgan et al. 2018, Hessel et al. 2018",
                defaults: || side_by_side(&apex::apex_rainbow()),
                build: |given, spaces| {
                    let (shared, config) = parse_parts("algo", given, &apex::apex_rainbow())?;
                    c51::build(shared, config, spaces)
                },
            },
            AlgoSpec {
                name: "apex-rainbow-iqn",
                summary: "Ape-X over Rainbow-IQN",
                paper: "Toromanoff et al. 2019",
                defaults: || side_by_side(&apex::apex_rainbow_iqn()),
                build: |given, spaces| {
                    let (shared, config) = parse_parts("algo", given, &apex::apex_rainbow_iqn())?;
                    iqn::build(shared, config, spaces)
                },
            },
            AlgoSpec {
                name: "appo",
                summary: "Asynchronous PPO: its clipped loss on V-trace targets",
                paper: "Luo et al. 2020; Petrenko et al. 2020",
                defaults: || defaults::<appo::Config>(),
                build: |given, spaces| {
                    Ok(Box::new(appo::Appo::new(
                        parse_config("algo", given)?,
                        spaces,
                    )?))
                },
            },
            AlgoSpec {
                name: "c51",
                summary: "Categorical DQN: a distribution over fixed returns per action",
                paper: "Bellemare et al. 2017",
                defaults: || side_by_side(&c51::defaults()),
                build: |given, spaces| {
                    let (shared, config) = parse_parts("algo", given, &c51::defaults())?;
                    c51::build(shared, config, spaces)
                },
            },
            AlgoSpec {
                name: "dqn",
                summary: "Deep Q-learning; double, dueling, n-step, prioritized, noisy and Munchausen by switches",
                paper: "Mnih et al. 2015",
                defaults: || side_by_side(&dqn::defaults()),
                build: |given, spaces| {
                    let (shared, config) = parse_parts("algo", given, &dqn::defaults())?;
                    dqn::build(shared, config, spaces)
                },
            },
            AlgoSpec {
                name: "epsilon-rainbow",
                summary: "Rainbow with a chance of random actions in place of noise",
                paper: "Stooke and Abbeel 2019",
                defaults: || side_by_side(&rainbow::epsilon_rainbow()),
                build: |given, spaces| {
                    let (shared, config) = parse_parts("algo", given, &rainbow::epsilon_rainbow())?;
                    c51::build(shared, config, spaces)
                },
            },
            AlgoSpec {
                name: "impala",
                summary: "Asynchronous actors, corrected for their age by V-trace",
                paper: "Espeholt et al. 2018",
                defaults: || defaults::<impala::Config>(),
                build: |given, spaces| {
                    Ok(Box::new(impala::Impala::new(
                        parse_config("algo", given)?,
                        spaces,
                    )?))
                },
            },
            AlgoSpec {
                name: "iqn",
                summary: "Implicit quantile networks: any quantile of the return per action",
                paper: "Dabney et al. 2018",
                defaults: || side_by_side(&iqn::defaults()),
                build: |given, spaces| {
                    let (shared, config) = parse_parts("algo", given, &iqn::defaults())?;
                    iqn::build(shared, config, spaces)
                },
            },
            AlgoSpec {
                name: "ngu",
                summary: "R2D2 that is also rewarded for what is new, with a bandit over how much",
                paper: "Badia et al. 2020",
                defaults: || side_by_side(&ngu::defaults()),
                build: |given, spaces| {
                    let (shared, config) = parse_parts("algo", given, &ngu::defaults())?;
                    ngu::build(shared, config, spaces)
                },
            },
            AlgoSpec {
                name: "ppo",
                summary: "Proximal policy optimisation, several epochs per rollout",
                paper: "Schulman et al. 2017",
                defaults: || defaults::<ppo::Config>(),
                build: |given, spaces| {
                    Ok(Box::new(ppo::Ppo::new(
                        parse_config("algo", given)?,
                        spaces,
                    )?))
                },
            },
            AlgoSpec {
                name: "pqn",
                summary: "Parallelised Q-learning with λ-returns, without replay or target network",
                paper: "Gallici et al. 2025",
                defaults: || defaults::<pqn::Config>(),
                build: |given, spaces| {
                    Ok(Box::new(pqn::Pqn::new(
                        parse_config("algo", given)?,
                        spaces,
                    )?))
                },
            },
            AlgoSpec {
                name: "qr-dqn",
                summary: "Quantile regression DQN: fixed quantiles of the return per action",
                paper: "Dabney et al. 2018",
                defaults: || side_by_side(&qr_dqn::defaults()),
                build: |given, spaces| {
                    let (shared, config) = parse_parts("algo", given, &qr_dqn::defaults())?;
                    qr_dqn::build(shared, config, spaces)
                },
            },
            AlgoSpec {
                name: "r2d2",
                summary: "Q-learning with an LSTM over replayed sequences with stored states",
                paper: "Kapturowski et al. 2019",
                defaults: || side_by_side(&r2d2::defaults()),
                build: |given, spaces| {
                    let (shared, config) = parse_parts("algo", given, &r2d2::defaults())?;
                    r2d2::build(shared, config, spaces)
                },
            },
            AlgoSpec {
                name: "rainbow",
                summary: "C51 with double, dueling, n-step, prioritized replay and noisy layers",
                paper: "Hessel et al. 2018",
                defaults: || side_by_side(&rainbow::rainbow()),
                build: |given, spaces| {
                    let (shared, config) = parse_parts("algo", given, &rainbow::rainbow())?;
                    c51::build(shared, config, spaces)
                },
            },
            AlgoSpec {
                name: "rainbow-iqn",
                summary: "IQN with double, dueling, n-step, prioritized replay and noisy layers",
                paper: "Toromanoff et al. 2019",
                defaults: || side_by_side(&rainbow::rainbow_iqn()),
                build: |given, spaces| {
                    let (shared, config) = parse_parts("algo", given, &rainbow::rainbow_iqn())?;
                    iqn::build(shared, config, spaces)
                },
            },
        ]
    }
}

/// The line of an algorithm. Names do not mind case: `PPO` is `ppo`.
pub fn find(name: &str) -> Result<&'static AlgoSpec, UnknownAlgo> {
    all()
        .iter()
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

/// Adds to an error which algorithms can be used with an environment's spaces, if this one cannot
/// be, whatever its settings are.
pub fn with_usable(error: ConfigError, spec: &AlgoSpec, spaces: &Spaces) -> ConfigError {
    let fits = |spec: &AlgoSpec| (spec.build)(&(spec.defaults)(), spaces).is_ok();
    match error {
        ConfigError::Misfit(reason) if !fits(spec) => {
            let usable = all().iter().filter(|spec| fits(spec));
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
    if PLANNED.contains(&name.as_str()) {
        return format!("{name} is not implemented yet.");
    }
    match nearest(&name) {
        Some(near) => format!("there is no algorithm called '{name}'; did you mean '{near}'?"),
        None => format!("there is no algorithm called '{name}'."),
    }
}

/// Algorithms that users ask for and that are still missing.
const PLANNED: &[&str] = &["ddpg", "pearl", "sac", "td3"];

/// The name that is the fewest typing mistakes away; of equals, the one that begins alike.
fn nearest(name: &str) -> Option<&'static str> {
    let names = all().iter().map(|spec| spec.name);
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

fn defaults<C: Default + serde::Serialize>() -> Value {
    serde_json::to_value(C::default()).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_names_get_the_nearest_or_hear_that_they_are_planned() {
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
        assert!(message("SAC").starts_with("sac is not implemented yet. Available: a2c, "));
        assert!(!message("reinforce").contains("did you mean"));
        assert!(PLANNED.iter().all(|name| find(name).is_err()));
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
        for spec in all() {
            (spec.build)(&(spec.defaults)(), &spaces).unwrap();
        }
    }
}
