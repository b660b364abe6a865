//! The table of all presets: tuned settings for a family of environments and an algorithm.
//!
//! A preset is `presets/<family>/<algo>.yaml`, or `<algo>.<variant>.yaml` for one that is used only
//! on request, such as `atari/dqn.rlpyt` with the settings of another system. `default/<algo>` is
//! for families without a preset, such as those of users.
//!
//! A preset may contain sections that override the rest, in this order: `small` for environments
//! with small observations, `floats` for those with arrays of floats among their observations,
//! `gpu` for runs on a GPU, `per_env` for single environments.

use serde_json::Value;
use starling_envs::{EnvOptions, EnvSpec};
use starling_tree::{DType, Spec};

use crate::settings::{SettingsError, from_yaml, merge};

/// Observations of at most this many numbers are small: more than one thread per operation of
/// such a network costs time instead of saving it.
const SMALL: usize = 4096;

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
        "atari/impala.multi-learner",
        "atari/iqn",
        "atari/ngu",
        "atari/ngu.marltas",
        "atari/ppo",
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
        "classic/crossq",
        "classic/ddpg",
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
        "classic/sac",
        "classic/td3",
        "default/any",
        "default/ppo",
        "exploration/dqn",
        "exploration/ngu",
        "memory/dqn",
        "memory/ppo",
        "memory/r2d2",
        "meta/pearl",
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
        "mujoco/crossq",
        "mujoco/ddpg",
        "mujoco/ppo",
        "mujoco/sac",
        "mujoco/sac.simba",
        "mujoco/td3",
        "python/dqn",
        "python/ppo",
    ]
}

/// The preset of a name.
pub fn find(name: &str) -> Result<&'static Preset, SettingsError> {
    all()
        .iter()
        .find(|preset| preset.name == name)
        .ok_or_else(|| {
            let mut nearest: Vec<&str> = all().iter().map(|preset| preset.name).collect();
            nearest.sort_by_key(|known| match known.split_once('/') {
                // Only the family was left out.
                Some((_, algo)) if algo == name => 0,
                _ => strsim::damerau_levenshtein(name, known),
            });
            nearest.truncate(3);
            SettingsError::UnknownPreset {
                name: name.to_owned(),
                nearest: nearest.join(", "),
            }
        })
}

/// The preset that is used if none is named: that of the family, or else the one for environments
/// without a preset.
pub fn usual(family: &str, algo: &str) -> Result<&'static Preset, SettingsError> {
    let names = [format!("{family}/{algo}"), format!("default/{algo}")];
    let mut found = names.iter().filter_map(|name| find(name).ok());
    found.next().map_or_else(|| find("default/any"), Ok)
}

/// The algorithm for a family of environments if none is named.
pub fn default_algo(family: &str) -> &'static str {
    match family {
        // Random actions almost never reach the goal, so PPO has nothing to learn from.
        "exploration" => "ngu",
        "memory" => "r2d2",
        "meta" => "pearl",
        _ => "ppo",
    }
}

/// The algorithm that a preset of this name is for; none for `default/any`.
pub fn algo_of(name: &str) -> Option<&str> {
    let (_, algo) = name.split_once('/')?;
    algo.split('.').next().filter(|algo| *algo != "any")
}

impl Preset {
    /// The first comment line of the file.
    pub fn summary(&self) -> &'static str {
        let first = self.text.lines().next().unwrap_or_default();
        first.trim_start_matches('#').trim()
    }

    /// Whether it was made for this family of environments, or for any.
    pub fn is_for(&self, family: &str) -> bool {
        let own = self.name.split_once('/').map(|(family, _)| family);
        own == Some(family) || own == Some("default")
    }

    /// Whether it has separate settings for runs on a GPU.
    pub fn minds_gpu(&self) -> bool {
        self.text.lines().any(|line| line == "gpu:")
    }

    /// The settings for one environment with these options, on a GPU or not.
    pub fn settings(
        &self,
        env: &EnvSpec,
        options: &EnvOptions,
        on_gpu: bool,
    ) -> Result<Value, SettingsError> {
        let mut tree = from_yaml(self.text, &format!("preset {}", self.name))?;
        let mut section = |name: &str| tree.as_object_mut()?.shift_remove(name);
        let (small, floats) = (section("small"), section("floats"));
        let (gpu, per_env) = (section("gpu"), section("per_env"));
        if small.is_some() || floats.is_some() {
            let (is_small, has_floats) = observations(env, options);
            let fitting = [small.filter(|_| is_small), floats.filter(|_| has_floats)];
            for special in fitting.iter().flatten() {
                merge(&mut tree, special);
            }
        }
        if let Some(special) = gpu.filter(|_| on_gpu) {
            merge(&mut tree, &special);
        }
        if let Some(special) = per_env.as_ref().and_then(|per_env| per_env.get(env.id)) {
            merge(&mut tree, special);
        }
        Ok(tree)
    }
}

/// Whether the observations of an environment are small, and whether there are arrays of floats
/// among them.
fn observations(env: &EnvSpec, options: &EnvOptions) -> (bool, bool) {
    // What is wrong with an environment that cannot be made is said when the run is checked.
    let Ok(env) = env.make(options) else {
        return (true, false);
    };
    let spec = env.observation_space().spec();
    let leaves = spec.leaves();
    let numbers = |leaf: &Spec| leaf.shape.iter().product::<usize>();
    let total: usize = leaves.iter().map(|(_, leaf)| numbers(leaf)).sum();
    let floats = leaves.iter().any(|(_, leaf)| leaf.dtype == DType::F32);
    (total <= SMALL, floats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Request, resolve};
    use serde_json::json;
    use starling_engine::RunConfig;
    use starling_envs::{Action, Env, EnvError, ObsMut, Rng, Space, Step};
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

    /// All environments that can be made on this machine.
    fn environments(test: &str) -> Vec<&'static EnvSpec> {
        crate::add_environments();
        let mut envs = crate::envs::registry::all();
        if let Err(error) = crate::mujoco::place::find() {
            starling_testing::skip("mujoco", &format!("{test} (MuJoCo)"), &error.to_string());
            envs.retain(|env| !crate::mujoco::needs_mujoco(env.id));
        }
        envs
    }

    /// Every preset gives usable settings for every environment of its family, and its `per_env`
    /// names environments that exist.
    #[test]
    fn every_preset_resolves() {
        let known = environments("every_preset_resolves");
        for preset in all() {
            let (family, _) = preset.name.split_once('/').unwrap();
            let algo = algo_of(preset.name);
            for env in known.iter().filter(|env| env.family == family) {
                let mut request = Request::new(env.id);
                request.algo = algo.map(str::to_owned);
                request.preset = Some(preset.name.to_owned());
                let continuous = env.id.contains("Continuous")
                    || env.id.starts_with("Pendulum")
                    || [crate::mujoco::FAMILY, crate::envs::meta::FAMILY].contains(&family);
                let fits = match algo {
                    None | Some("a2c" | "appo" | "impala" | "ppo") => true,
                    Some("crossq" | "ddpg" | "pearl" | "sac" | "td3") => continuous,
                    Some(_) => !continuous,
                };
                assert_eq!(resolve(&request).is_ok(), fits, "{}", env.id);
                if fits && preset.minds_gpu() {
                    let mut tree = preset.settings(env, &EnvOptions::default(), true).unwrap();
                    let names = json!({"env": {"id": env.id}, "algo": {"name": algo}});
                    merge(&mut tree, &names);
                    RunConfig::from_value(&tree).unwrap();
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
        // Name, environment preset, settings by path.
        type Source = (
            &'static str,
            &'static str,
            &'static [(&'static str, &'static str)],
        );
        let sources: [Source; 11] = [
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

    /// Plain `train ENV`, as far as settings go, on every environment of the table.
    #[test]
    fn the_default_algorithm_of_every_environment_has_a_preset() {
        let envs = environments("the_default_algorithm_of_every_environment_has_a_preset");
        for env in envs.into_iter().filter(|env| env.family != "custom") {
            let algo = default_algo(env.family);
            let own = format!("{}/{algo}", env.family);
            assert_eq!(usual(env.family, algo).unwrap().name, own);
            let config = resolve(&Request::new(env.id)).unwrap();
            assert_eq!(config.algo_name, algo, "{}", env.id);
        }
    }

    #[test]
    fn classic_tasks_have_settings_of_their_own() {
        let algo = |env| resolve(&Request::new(env)).unwrap().to_value()["algo"].clone();
        assert_eq!(algo("Pendulum-v1")["gamma"], 0.9);
        assert_eq!(
            algo("MountainCarContinuous-v0")["net"]["initial_log_std"],
            1.0
        );
        assert_eq!(algo("MountainCar-v0")["normalize_returns"], true);
        for (env, normalized) in [("Acrobot-v1", true), ("CartPole-v1", false)] {
            assert_eq!(algo(env)["net"]["normalize_observations"], normalized);
        }
    }

    /// Observations of one space, for a family without presets.
    struct Shows(Space);

    impl Env for Shows {
        fn observation_space(&self) -> Space {
            self.0.clone()
        }

        fn action_space(&self) -> Space {
            Space::floats(&[2], -1.0, 1.0)
        }

        fn reset(&mut self, _: &mut Rng, _: ObsMut<'_>) -> Result<(), EnvError> {
            Ok(())
        }

        fn step(&mut self, _: Action<'_>, _: &mut Rng, _: ObsMut<'_>) -> Result<Step, EnvError> {
            Ok(Step::default())
        }
    }

    /// What plain `train` takes for a user's own environment, whatever it shows and whatever the
    /// algorithm.
    #[test]
    fn environments_without_presets_get_defaults_that_fit() {
        let add = |id, build| {
            let spec = EnvSpec::new(id, "custom", "", build);
            crate::envs::registry::add(spec).unwrap();
        };
        add("Vector-v0", |_, _| {
            Ok(Box::new(Shows(Space::unbounded(&[3]))))
        });
        add("Board-v0", |_, _| {
            Ok(Box::new(Shows(Space::bytes(&[4, 10, 10], 1))))
        });
        add("Image-v0", |_, _| {
            Ok(Box::new(Shows(Space::bytes(&[3, 84, 84], 255))))
        });
        let resolved = |env, algo: &str| {
            let mut request = Request::new(env);
            request.algo = Some(algo.to_owned());
            resolve(&request).unwrap().to_value()
        };
        for (env, threads, normalized, separate) in [
            ("Vector-v0", 1, true, true),
            ("Board-v0", 1, false, true),
            ("Image-v0", 0, false, false),
        ] {
            let tree = resolved(env, "ppo");
            assert_eq!(tree["torch_threads"], threads, "{env}");
            let net = &tree["algo"]["net"];
            assert_eq!(net["normalize_observations"], normalized, "{env}");
            assert_eq!(net["separate_critic"], separate, "{env}");
            assert_eq!(tree["algo"]["normalize_advantage"], true, "{env}");
            assert_eq!(resolved(env, "a2c")["torch_threads"], threads, "{env}");
        }
        let mut request = Request::new("Vector-v0");
        request.preset = Some("none".into());
        assert_eq!(resolve(&request).unwrap().settings.torch_threads, 0);
    }
}
