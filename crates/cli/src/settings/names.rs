//! Names of settings, and suggestions for misspelt names and names from other libraries.

use std::collections::BTreeSet;

use serde_json::Value;
use starling_algos::ConfigError;
use starling_engine::{EngineError, RunConfig};
use starling_settings::Setting;

use super::SettingsError;
use super::explain::kinds;

/// Dotted names of all settings of an environment and an algorithm, sections among them.
pub(crate) fn all(env: &str, algo: &str) -> Vec<String> {
    let env = starling_envs::registry::find(env);
    let algo = starling_algos::registry::find(algo);
    let (Ok(env), Ok(algo)) = (env, algo) else {
        return Vec::new();
    };
    let settings = RunConfig::settings_of(env, algo).into_iter();
    settings.map(|setting| setting.key).collect()
}

/// The settings of all environments and algorithms.
fn every_setting() -> Vec<Setting> {
    let [mut settings, named] = RunConfig::names_of_parts();
    let envs = kinds().into_iter();
    settings.extend(envs.flat_map(|(_, env)| env.schema().settings("env")));
    settings.extend(named);
    let algos = starling_algos::registry::all().into_iter();
    settings.extend(algos.flat_map(|algo| algo.schema().settings("algo")));
    settings.extend(RunConfig::run_settings());
    settings
}

/// Dotted names of the settings of all environments and algorithms, sections among them.
pub(crate) fn every() -> Vec<String> {
    let keys = every_setting().into_iter().map(|setting| setting.key);
    let keys: BTreeSet<String> = keys.collect();
    keys.into_iter().collect()
}

/// The same without sections, as the beginnings of `KEY=VALUE`; with the value where there are only
/// some.
pub(crate) fn assignments() -> Vec<String> {
    let mut found = BTreeSet::new();
    for setting in every_setting()
        .iter()
        .filter(|setting| !setting.is_section())
    {
        let values = setting.values();
        if values.is_empty() {
            found.insert(format!("{}=", setting.key));
        }
        found.extend(
            values
                .iter()
                .map(|value| format!("{}={value}", setting.key)),
        );
    }
    found.into_iter().collect()
}

/// What other libraries call a setting.
pub(super) fn elsewhere(key: &str) -> Vec<&'static str> {
    let names = ALIASES.iter().filter(|(_, setting)| *setting == key);
    names.map(|(name, _)| *name).collect()
}

/// The settings that a name means: the same name in other case or with dashes, or else the same
/// name in another section, or else what another library calls so.
pub(crate) fn meant(name: &str, known: &[String]) -> Vec<String> {
    let name = plain(name);
    let last_part = last(&name);
    let find = |is: &dyn Fn(&str) -> bool| -> Vec<String> {
        known.iter().filter(|known| is(known)).cloned().collect()
    };
    let aliases = ALIASES.iter().filter(|(alias, _)| *alias == last_part);
    let aliases: Vec<&str> = aliases.map(|(_, setting)| *setting).collect();
    let searches = [
        find(&|known| known == name),
        find(&|known| last(known) == last_part),
        find(&|known| aliases.contains(&known)),
    ];
    let mut found = searches.into_iter().filter(|found| !found.is_empty());
    found.next().unwrap_or_default()
}

/// Explains an unknown setting by those that the user may mean: who writes `learning_rate` means
/// `algo.learning_rate`. `given` is the tree that the error is about.
pub(super) fn explain(error: EngineError, given: &Value, env: &str, algo: &str) -> SettingsError {
    let EngineError::Config(ConfigError::Unknown {
        key,
        nearest,
        available,
    }) = error
    else {
        return error.into();
    };
    let key = whole_key(key, given);
    let known = all(env, algo);
    let similar = similar(&key, &known);
    // Without a section, the setting may be in any of them.
    let closeness = |guess: &[String]| guess.first().map_or(0.0, |guess| alike(&key, guess));
    let guesses = match !key.contains('.') && closeness(&similar) > closeness(&nearest) {
        true => [meant(&key, &known), similar, nearest],
        false => [meant(&key, &known), nearest, similar],
    };
    let mut guesses = guesses.into_iter().filter(|guess| !guess.is_empty());
    SettingsError::UnknownSetting {
        key,
        nearest: guesses.next().unwrap_or_default(),
        available,
        env: env.to_owned(),
        algo: algo.to_owned(),
    }
}

/// The key as the user wrote it. The error names the first part that is unknown, which may be the
/// section: `Algo` of `Algo.Gamma`.
fn whole_key(mut key: String, given: &Value) -> String {
    let start = key.split('.').try_fold(given, |tree, part| tree.get(part));
    let mut table = start.and_then(Value::as_object);
    while let Some((name, value)) = table.and_then(|table| table.iter().next()) {
        key = format!("{key}.{name}");
        table = value.as_object();
    }
    key
}

/// Settings of any section whose last part is spelt like that of a key.
pub(super) fn similar(key: &str, known: &[String]) -> Vec<String> {
    let mut similar: Vec<(f64, &String)> = known
        .iter()
        .map(|known| (alike(key, known), known))
        .filter(|(similarity, _)| *similarity > 0.9)
        .collect();
    similar.sort_by(|a, b| b.0.total_cmp(&a.0));
    let nearest = similar.into_iter().take(3);
    nearest.map(|(_, name)| name.clone()).collect()
}

/// How similar the last parts of two names are, from 0 to 1.
fn alike(key: &str, known: &str) -> f64 {
    strsim::jaro_winkler(last(&plain(key)), last(known))
}

fn plain(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// What other libraries call our settings.
const ALIASES: &[(&str, &str)] = &[
    ("algorithm", "algo.name"),
    ("batch_size", "algo.minibatches"),
    ("buffer_size", "algo.capacity_steps"),
    ("clip_coef", "algo.ratio_clip"),
    ("clip_eps", "algo.ratio_clip"),
    ("clip_range", "algo.ratio_clip"),
    ("cuda", "device"),
    ("ent_coef", "algo.entropy_coef"),
    ("env_id", "env.id"),
    ("gpu", "device"),
    ("hidden_sizes", "algo.net.hidden"),
    ("lam", "algo.gae_lambda"),
    ("lambda", "algo.gae_lambda"),
    ("learning_starts", "algo.learning_starts_steps"),
    ("lr", "algo.learning_rate"),
    ("max_grad_norm", "algo.clip_norm"),
    ("minibatch_size", "algo.minibatches"),
    ("n_envs", "envs"),
    ("n_epochs", "algo.epochs"),
    ("n_minibatch", "algo.minibatches"),
    ("n_steps", "algo.rollout_steps"),
    ("n_timesteps", "steps"),
    ("net_arch", "algo.net.hidden"),
    ("num_envs", "envs"),
    ("num_minibatches", "algo.minibatches"),
    ("num_steps", "algo.rollout_steps"),
    ("num_workers", "threads"),
    ("replay_size", "algo.capacity_steps"),
    ("target_network_frequency", "algo.target_every_updates"),
    ("target_update_interval", "algo.target_every_updates"),
    ("tau", "algo.target_tau"),
    ("timesteps", "steps"),
    ("total_steps", "steps"),
    ("total_timesteps", "steps"),
    ("update_epochs", "algo.epochs"),
    ("vf_coef", "algo.value_coef"),
    ("workers", "threads"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Request, resolve};

    fn message(algo: &str, pair: &str) -> String {
        let mut request = Request::new("CartPole-v1");
        request.algo = Some(algo.into());
        request.overrides = vec![pair.into()];
        resolve(&request).unwrap_err().to_string()
    }

    #[test]
    fn a_name_without_its_section_in_other_case_or_of_another_library_is_recognised() {
        for (algo, pair, expected) in [
            ("ppo", "learning_rate=0.1", "algo.learning_rate?"),
            ("ppo", "lr=0.1", "algo.learning_rate?"),
            ("ppo", "algo.lr=0.1", "algo.learning_rate?"),
            ("ppo", "ent_coef=0.1", "algo.entropy_coef?"),
            ("ppo", "n_envs=4", "envs?"),
            ("ppo", "total_timesteps=4", "steps?"),
            ("ppo", "n_steps=4", "algo.rollout_steps?"),
            ("dqn", "n_steps=4", "algo.n_steps?"),
            ("ppo", "batch_size=4", "algo.minibatches?"),
            ("dqn", "batch_size=4", "algo.batch_size?"),
            ("ppo", "hidden=[4]", "algo.net.hidden?"),
            ("ppo", "Algo.Learning_Rate=0.1", "algo.learning_rate?"),
            ("ppo", "algo.Learning-Rate=0.1", "algo.learning_rate?"),
            ("ppo", "ALGO.NET.HIDDEN=[4]", "algo.net.hidden?"),
            ("ppo", "SEED=4", "seed?"),
            ("ppo", "learning_rat=4", "algo.learning_rate?"),
            ("ppo", "Algo.Gama=4", "algo.gamma?"),
        ] {
            let message = message(algo, pair);
            let (key, _) = pair.split_once('=').unwrap();
            let expected = format!("there is no setting called '{key}'; did you mean {expected}");
            assert_eq!(message, expected, "{algo} {pair}");
        }
        // Every name that the table gives exists.
        let algos = starling_algos::registry::all().into_iter();
        let known: Vec<String> = algos
            .flat_map(|algo| all("CartPole-v1", algo.name))
            .collect();
        for (alias, setting) in ALIASES {
            assert!(known.iter().any(|known| known == setting), "{alias}");
        }
    }

    #[test]
    fn where_nothing_is_similar_the_command_that_shows_all_is_named() {
        assert_eq!(
            message("dqn", "algo.minibatches=4"),
            "dqn on CartPole-v1 has no setting called 'algo.minibatches'; `starling config show \
             CartPole-v1 --algo dqn` shows all"
        );
    }
}
