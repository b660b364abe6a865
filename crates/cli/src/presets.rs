//! THE table of presets: tuned settings per family of environments and algorithm.
//!
//! A preset is `presets/<family>/<algo>.yaml`, or `<algo>.<variant>.yaml` for one that is only
//! used when it is named, such as `atari/ppo.gpu`, or `atari/dqn.rlpyt` with the settings of
//! another system. Under `per_env` it may hold settings for single
//! environments, which are laid over the rest.

use serde_json::Value;

use crate::settings::{SettingsError, from_yaml, merge};

/// One preset, built into the program.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// `<family>/<algo>` or `<family>/<algo>.<variant>`.
    pub name: &'static str,
    /// The file's text.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        &[$(Preset {
            name: $name,
            text: include_str!(concat!("../../../presets/", $name, ".yaml")),
        }),*]
    };
}

/// All presets.
pub fn all() -> &'static [Preset] {
    presets![
        "atari/a2c",
        "atari/a2c.rlpyt",
        "atari/apex-dqn",
        "atari/apex-dqn.gpu",
        "atari/apex-dqn.rela",
        "atari/apex-rainbow",
        "atari/apex-rainbow-iqn",
        "atari/apex-rainbow-iqn.valeoai",
        "atari/apex-rainbow.valeoai",
        "atari/appo",
        "atari/c51",
        "atari/dqn",
        "atari/dqn.rlpyt",
        "atari/epsilon-rainbow",
        "atari/epsilon-rainbow.rlpyt",
        "atari/impala",
        "atari/impala.gpu",
        "atari/impala.multi-learner",
        "atari/iqn",
        "atari/ngu",
        "atari/ngu.marltas",
        "atari/ppo",
        "atari/ppo.gpu",
        "atari/ppo.rlpyt",
        "atari/pqn",
        "atari/qr-dqn",
        "atari/r2d2",
        "atari/r2d2.rela",
        "atari/r2d2.rlpyt",
        "atari/rainbow",
        "atari/rainbow-iqn",
        "classic/a2c",
        "classic/apex-dqn",
        "classic/apex-rainbow",
        "classic/apex-rainbow-iqn",
        "classic/appo",
        "classic/c51",
        "classic/dqn",
        "classic/epsilon-rainbow",
        "classic/impala",
        "classic/iqn",
        "classic/ngu",
        "classic/ppo",
        "classic/pqn",
        "classic/qr-dqn",
        "classic/r2d2",
        "classic/rainbow",
        "classic/rainbow-iqn",
        "exploration/dqn",
        "exploration/ngu",
        "memory/dqn",
        "memory/r2d2",
        "minatar/a2c",
        "minatar/apex-dqn",
        "minatar/apex-rainbow",
        "minatar/apex-rainbow-iqn",
        "minatar/appo",
        "minatar/c51",
        "minatar/dqn",
        "minatar/epsilon-rainbow",
        "minatar/impala",
        "minatar/iqn",
        "minatar/ngu",
        "minatar/ppo",
        "minatar/pqn",
        "minatar/qr-dqn",
        "minatar/r2d2",
        "minatar/rainbow",
        "minatar/rainbow-iqn",
    ]
}

/// The preset of a name.
pub fn find(name: &str) -> Result<&'static Preset, SettingsError> {
    all()
        .iter()
        .find(|preset| preset.name == name)
        .ok_or_else(|| {
            let mut nearest: Vec<&str> = all().iter().map(|preset| preset.name).collect();
            nearest.sort_by_key(|known| strsim::damerau_levenshtein(name, known));
            nearest.truncate(3);
            SettingsError::UnknownPreset {
                name: name.to_owned(),
                nearest: nearest.join(", "),
            }
        })
}

/// The algorithm that a preset of this name is for.
pub fn algo_of(name: &str) -> Option<&str> {
    let (_, algo) = name.split_once('/')?;
    algo.split('.').next()
}

impl Preset {
    /// The first comment line of the file.
    pub fn summary(&self) -> &'static str {
        let first = self.text.lines().next().unwrap_or_default();
        first.trim_start_matches('#').trim()
    }

    /// The settings for one environment.
    pub fn settings(&self, env_id: &str) -> Result<Value, SettingsError> {
        let mut tree = from_yaml(self.text, &format!("preset {}", self.name))?;
        let per_env = tree
            .as_object_mut()
            .and_then(|tree| tree.shift_remove("per_env"));
        if let Some(special) = per_env.as_ref().and_then(|per_env| per_env.get(env_id)) {
            merge(&mut tree, special);
        }
        Ok(tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Request, resolve};
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn the_table_lists_every_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../presets");
        let mut files = BTreeSet::new();
        for family in std::fs::read_dir(root).unwrap() {
            let family = family.unwrap();
            for file in std::fs::read_dir(family.path()).unwrap() {
                let stem = file.unwrap().path().with_extension("");
                let (family, stem) = (family.file_name(), stem.file_name().unwrap().to_owned());
                let (family, stem) = (family.to_str().unwrap(), stem.to_str().unwrap());
                files.insert(format!("{family}/{stem}"));
            }
        }
        let table: BTreeSet<String> = all().iter().map(|preset| preset.name.into()).collect();
        assert_eq!(files, table);
    }

    /// Every preset gives usable settings for every environment of its family, and its `per_env`
    /// names environments that exist.
    #[test]
    fn every_preset_resolves() {
        for preset in all() {
            let (family, _) = preset.name.split_once('/').unwrap();
            let algo = algo_of(preset.name).unwrap();
            let envs = crate::envs::registry::all().into_iter();
            for env in envs.filter(|env| env.family == family) {
                let mut request = Request::new(env.id);
                request.algo = Some(algo.to_owned());
                request.preset = Some(preset.name.to_owned());
                let continuous = env.id.contains("Continuous") || env.id.starts_with("Pendulum");
                let policies = ["a2c", "appo", "impala", "ppo"];
                if !policies.contains(&algo) && continuous {
                    assert!(resolve(&request).is_err(), "{}", env.id);
                } else {
                    resolve(&request).unwrap();
                }
            }
            let tree = from_yaml(preset.text, preset.name).unwrap();
            let special = tree.get("per_env").and_then(Value::as_object);
            for id in special.into_iter().flat_map(|special| special.keys()) {
                crate::envs::registry::find(id).unwrap();
            }
            assert!(!preset.summary().is_empty(), "{}", preset.name);
        }
    }

    /// Presets named after another system, chosen by name alone, have that system's environment
    /// and the settings in which it differs from ours.
    #[test]
    fn presets_of_other_systems_have_their_settings() {
        let sources: [(&str, &str, &[(&str, &str)]); 11] = [
            (
                "atari/apex-dqn.rela",
                "rela",
                &[("/net/dueling_legal", "true")],
            ),
            (
                "atari/r2d2.rela",
                "rela",
                &[("/sum_over_time", "true"), ("/last_action_reward", "false")],
            ),
            ("atari/a2c.rlpyt", "rlpyt", &[("/net/padding", "[0,1]")]),
            (
                "atari/ppo.rlpyt",
                "rlpyt",
                &[("/normalize_advantage_over", "\"rollout\"")],
            ),
            (
                "atari/dqn.rlpyt",
                "rlpyt",
                &[
                    ("/epsilon_hold_steps", "50000"),
                    ("/net/padding", "[0,1,1]"),
                ],
            ),
            (
                "atari/epsilon-rainbow.rlpyt",
                "rlpyt",
                &[
                    ("/priority/initial_priority", "1"),
                    ("/net/advantage_bias", "false"),
                ],
            ),
            ("atari/r2d2.rlpyt", "rlpyt", &[("/priority_beta", "0.6")]),
            (
                "atari/impala.multi-learner",
                "deepmind",
                &[("/net/padding", "\"same\""), ("/net/lstm_forget_bias", "1")],
            ),
            (
                "atari/apex-rainbow.valeoai",
                "saber",
                &[("/clip_norm", "null"), ("/net/noisy_sigma", "0.1")],
            ),
            (
                "atari/apex-rainbow-iqn.valeoai",
                "saber",
                &[
                    ("/noise_every_steps", "4"),
                    ("/net/noisy_bias_by_outputs", "true"),
                ],
            ),
            (
                "atari/ngu.marltas",
                "deepmind",
                &[("/beta", "0.15"), ("/priority/max_priority", "1")],
            ),
        ];
        for (name, env, settings) in sources {
            let mut request = Request::new("ALE/Pong-v5");
            request.preset = Some(name.to_owned());
            if find(name).unwrap().text.contains("capacity_steps") {
                // Less than the source has, so that it fits into the memory of any machine.
                request.overrides = vec!["algo.capacity_steps=200000".into()];
            }
            let config = resolve(&request).unwrap();
            assert_eq!(Some(&*config.algo_name), algo_of(name));
            let settings_of = config.to_value();
            assert_eq!(settings_of["env"]["preset"], env, "{name}");
            for (key, expected) in settings {
                let found = settings_of["algo"].pointer(key).map(Value::to_string);
                assert_eq!(found.as_deref(), Some(*expected), "{name}{key}");
            }
        }
    }
}
