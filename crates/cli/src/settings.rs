//! From an environment's name, a preset, a file and `key=value` pairs to a [`RunConfig`].
//!
//! Later ones win: defaults < preset < file < command line. `env: CartPole-v1` and `algo: ppo` are
//! short for `env: {id: CartPole-v1}` and `algo: {name: ppo}`.

pub mod explain;
pub(crate) mod names;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use starling_engine::{EngineError, RunConfig};
use starling_envs::EnvOptions;
use starling_nets::{Device, DeviceChoice};
pub use starling_settings::merge;

use crate::presets;

/// What a user asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The environment's id; the file may name it instead.
    pub env: Option<String>,
    /// The algorithm; if none is named, that of [`presets::default_algo`].
    pub algo: Option<String>,
    /// The preset; if none is given, that of [`presets::usual`]. `none` for no preset at all.
    pub preset: Option<String>,
    /// A YAML file of settings.
    pub file: Option<PathBuf>,
    /// `key=value` pairs with dotted keys.
    pub overrides: Vec<String>,
}

impl Request {
    /// An environment with everything else left open.
    pub fn new(env: &str) -> Self {
        Self {
            env: Some(env.to_owned()),
            ..Self::default()
        }
    }
}

/// Settings that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Not YAML, or not a table.
    #[error("{origin} cannot be read: {reason}")]
    Yaml {
        /// The file.
        origin: String,
        /// Where and why.
        reason: String,
    },
    /// A file that cannot be opened.
    #[error("{path} cannot be opened: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// An argument that is not `key=value`.
    #[error("'{0}' is not of the form key=value, such as algo.gamma=0.99")]
    Override(String),
    /// No such preset.
    #[error("there is no preset called '{name}'; the nearest are {nearest}")]
    UnknownPreset {
        /// What was asked for.
        name: String,
        /// Existing names.
        nearest: String,
    },
    /// A preset of another algorithm.
    #[error("the preset '{preset}' is not for the algorithm '{algo}'")]
    PresetOf {
        /// The preset.
        preset: String,
        /// The algorithm that was asked for.
        algo: String,
    },
    /// A preset that has settings for other environments.
    #[error(
        "the preset '{preset}' does not fit {env}: {source}; without --preset, '{usual}' is used"
    )]
    PresetMisfit {
        /// The preset.
        preset: String,
        /// The environment.
        env: String,
        /// The preset that is usual for it.
        usual: String,
        /// Which of its settings does not fit.
        source: Box<SettingsError>,
    },
    /// No such setting.
    #[error("{}", unknown(key, nearest, available, env, algo))]
    UnknownSetting {
        /// The dotted name.
        key: String,
        /// Settings that may be meant.
        nearest: Vec<String>,
        /// Settings of that section; empty where they are too many to list.
        available: Vec<String>,
        /// The environment.
        env: String,
        /// The algorithm.
        algo: String,
    },
    /// No such setting, here or at all.
    #[error("{}", not_explained(key, here, nearest, owners))]
    NotExplained {
        /// The name that was given.
        key: String,
        /// The environment and the algorithm, if some were named.
        here: String,
        /// Settings that may be meant.
        nearest: Vec<String>,
        /// The algorithms or families of environments that have it.
        owners: String,
    },
    /// No environment is named.
    #[error("no environment was named; `starling list envs` shows them")]
    NoEnv,
    /// Two arguments name different environments or algorithms.
    #[error("both '{first}' and {key}={second} are given; name only one")]
    Twice {
        /// What was named first.
        first: String,
        /// The setting that names something else.
        key: &'static str,
        /// What it names.
        second: String,
    },
    /// The settings of an existing run cannot be used.
    #[error("{}: {source}", path.display())]
    Run {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: EngineError,
    },
    /// A setting that cannot be changed when a run is continued.
    #[error("{key} cannot be changed: it would be another run; start one with `starling train`")]
    Fixed {
        /// The setting.
        key: &'static str,
    },
    /// The settings do not fit together.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Files of a run.
    #[error(transparent)]
    Record(#[from] starling_record::Error),
}

/// The environment that a request names: by itself, among its pairs or in its file.
pub(crate) fn env_of(request: &Request) -> Option<String> {
    let named = |tree: &Value| Some(tree.pointer("/env/id")?.as_str()?.to_owned());
    let pairs = || named(&overrides(&request.overrides).ok()?);
    let file = || named(&read_file(request.file.as_deref()?).ok()?);
    request.env.clone().or_else(pairs).or_else(file)
}

/// All settings of a run, with everything checked that can be checked before it starts.
pub fn resolve(request: &Request) -> Result<RunConfig, SettingsError> {
    let file = match &request.file {
        Some(path) => read_file(path)?,
        None => Value::Object(Map::new()),
    };
    resolve_file(request, file)
}

/// What a request asks for beyond its preset, as one tree of settings.
pub(crate) fn joined(request: &Request) -> Result<Value, SettingsError> {
    let mut tree = match &request.file {
        Some(path) => read_file(path)?,
        None => Value::Object(Map::new()),
    };
    merge(&mut tree, &overrides(&request.overrides)?);
    for (given, table, name) in [(&request.env, "env", "id"), (&request.algo, "algo", "name")] {
        if let Some(given) = given {
            merge(&mut tree, &section(table, name, given));
        }
    }
    Ok(tree)
}

/// As [`resolve`], with these settings as the content of the request's file.
pub(crate) fn resolve_file(request: &Request, file: Value) -> Result<RunConfig, SettingsError> {
    crate::add_environments();
    let mut line = overrides(&request.overrides)?;
    for (given, table, key, name) in [
        (&request.env, "env", "env.id", "id"),
        (&request.algo, "algo", "algo.name", "name"),
    ] {
        let Some(given) = given else {
            continue;
        };
        if let Some(other) = line.get(table).and_then(|table| table.get(name)?.as_str())
            && other != given
        {
            return Err(SettingsError::Twice {
                first: given.clone(),
                key,
                second: other.to_owned(),
            });
        }
        merge(&mut line, &section(table, name, given));
    }
    let named = |section: &str, name: &str| {
        let given = [&line, &file].into_iter();
        let mut given = given.filter_map(|tree| tree.get(section)?.get(name)?.as_str());
        given.next().map(str::to_owned)
    };
    let env = named("env", "id").ok_or(SettingsError::NoEnv)?;
    let preset = match request.preset.as_deref() {
        None | Some("none") => None,
        Some(name) => Some(presets::find(name)?),
    };
    let spec = starling_envs::registry::find(&env).map_err(EngineError::from)?;
    let preset_algo = preset.and_then(|preset| presets::algo_of(preset.name));
    let usual = preset_algo.unwrap_or_else(|| presets::default_algo(spec.family));
    let algo = named("algo", "name").unwrap_or_else(|| usual.to_owned());
    // Names of algorithms do not mind case; from here on it is the one of the table.
    let algo = starling_algos::registry::find(&algo).map_err(EngineError::from)?;
    let algo = algo.name.to_owned();
    if let (Some(preset), Some(made_for)) = (preset, preset_algo)
        && made_for != algo
    {
        return Err(SettingsError::PresetOf {
            preset: preset.name.to_owned(),
            algo,
        });
    }

    let preset = match request.preset {
        Some(_) => preset,
        None => Some(presets::usual(spec.family, &algo)?),
    };
    let base = match preset {
        Some(preset) => {
            let given = [&line, &file].into_iter();
            let mut device = given.filter_map(|tree| tree.get("device")?.as_str());
            let on_gpu = preset.minds_gpu() && is_gpu(device.next().unwrap_or("auto"));
            preset.settings(spec, &env_options(&[&file, &line]), on_gpu)?
        }
        None => Value::Object(Map::new()),
    };
    let mut tree = base.clone();
    if [&file, &line].into_iter().any(has_own_network) {
        drop_built_in_network(&mut tree);
    }
    merge(&mut tree, &section("algo", "name", &algo));
    merge(&mut tree, &file);
    merge(&mut tree, &line);
    // A game's bare name becomes its id, by which the run is known from here on.
    merge(&mut tree, &section("env", "id", spec.id));
    merge(&mut tree, &section("algo", "name", &algo));
    let config = check(&tree, spec.id, &algo);
    let Some(preset) = preset.filter(|_| config.is_err()) else {
        return config;
    };
    // Is it the preset, or what was added to it?
    let mut alone = base;
    merge(&mut alone, &section("env", "id", spec.id));
    merge(&mut alone, &section("algo", "name", &algo));
    match check(&alone, spec.id, &algo) {
        Err(source) if !preset.is_for(spec.family) => Err(SettingsError::PresetMisfit {
            preset: preset.name.to_owned(),
            env: spec.id.to_owned(),
            usual: presets::usual(spec.family, &algo)?.name.to_owned(),
            source: Box::new(source),
        }),
        _ => config,
    }
}

/// The options of the environment that are given. What is wrong with them is said when the run is
/// checked.
fn env_options(given: &[&Value]) -> EnvOptions {
    let mut table = Value::Object(Map::new());
    for tree in given {
        if let Some(env) = tree.get("env") {
            merge(&mut table, env);
        }
    }
    if let Some(table) = table.as_object_mut() {
        table.shift_remove("id");
    }
    EnvOptions::from_table(&table).unwrap_or_default()
}

/// Whether a run on a device of this name is one on a GPU. Names that mean nothing are refused when
/// the settings are checked.
fn is_gpu(device: &str) -> bool {
    let device = device
        .parse::<DeviceChoice>()
        .and_then(DeviceChoice::resolve);
    matches!(device, Ok(Device::Cuda(_)))
}

/// `key=value` pairs with dotted keys as a tree of settings.
pub(crate) fn overrides(pairs: &[String]) -> Result<Value, SettingsError> {
    let mut tree = Value::Object(Map::new());
    for pair in pairs {
        apply_override(&mut tree, pair)?;
    }
    Ok(tree)
}

/// The settings of a run of this environment and algorithm, from a whole tree.
pub(crate) fn check(tree: &Value, env: &str, algo: &str) -> Result<RunConfig, SettingsError> {
    RunConfig::from_value(tree).map_err(|error| names::explain(error, tree, env, algo))
}

fn unknown(key: &str, nearest: &[String], available: &[String], env: &str, algo: &str) -> String {
    match (nearest, available) {
        ([], []) => format!(
            "{algo} on {env} has no setting called '{key}'; `starling config show {env} --algo \
             {algo}` shows all"
        ),
        ([], _) => format!(
            "{env} has no setting called '{key}'; it has: {}",
            available.join(", ")
        ),
        (_, []) => format!(
            "there is no setting called '{key}'; did you mean {}?",
            nearest.join(" or ")
        ),
        _ => format!(
            "there is no setting called '{key}'; did you mean {}? Available: {}",
            nearest.join(" or "),
            available.join(", ")
        ),
    }
}

fn not_explained(key: &str, here: &str, nearest: &[String], owners: &str) -> String {
    match (nearest, owners) {
        (_, "") if nearest.is_empty() => {
            format!("there is no setting called '{key}'; `starling config explain` lists all")
        }
        (_, "") => format!(
            "there is no setting called '{key}'; did you mean {}?",
            nearest.join(" or ")
        ),
        _ => format!("{here} has no setting called '{key}', but these have: {owners}"),
    }
}

/// Whether these settings name a TorchScript file.
fn has_own_network(tree: &Value) -> bool {
    let file = tree.pointer("/algo/net/torchscript");
    file.is_some_and(|file| !file.is_null())
}

/// Removes from a preset what describes the built-in networks: a TorchScript file replaces them.
fn drop_built_in_network(preset: &mut Value) {
    const BUILT_IN: [&str; 7] = [
        "torso",
        "torso_options",
        "width",
        "padding",
        "hidden",
        "layer_norm",
        "normalize_observations",
    ];
    let net = preset.pointer_mut("/algo/net");
    if let Some(net) = net.and_then(Value::as_object_mut) {
        net.retain(|name, _| !BUILT_IN.contains(&name.as_str()));
    }
}

/// Reads a YAML table.
pub fn from_yaml(text: &str, origin: &str) -> Result<Value, SettingsError> {
    let broken = |reason: String| SettingsError::Yaml {
        origin: origin.to_owned(),
        reason,
    };
    let tree = serde_saphyr::from_str(text)
        .map_err(|error| broken(in_plain_words(&error.to_string(), origin)))?;
    match tree {
        Value::Object(mut tree) => {
            for (table, name) in [("env", "id"), ("algo", "name")] {
                if let Some(Value::String(short)) = tree.get(table) {
                    let whole = serde_json::json!({ name: short });
                    tree.insert(table.to_owned(), whole);
                }
            }
            Ok(Value::Object(tree))
        }
        Value::Null => Ok(Value::Object(Map::new())),
        _ => Err(broken("it is not a table of settings".into())),
    }
}

/// The YAML reader's message, without the words that it has for programmers.
fn in_plain_words(message: &str, origin: &str) -> String {
    let message = message.trim_start_matches("error: ");
    let message = message.replace("<input>", origin);
    [
        (", set DuplicateKeyPolicy in Options if acceptable", ""),
        ("duplicate mapping key:", "this key is given twice:"),
        (
            "cannot deserialize null into string; use Option<String>",
            "a key is missing before the colon",
        ),
        (
            "recursive references require weak recursion types",
            "an alias refers to itself",
        ),
    ]
    .into_iter()
    .fold(message, |message, (theirs, ours)| {
        message.replace(theirs, ours)
    })
}

/// Writes a tree of settings as YAML.
pub fn to_yaml(tree: &Value) -> String {
    // Numbers, strings, lists and tables can always be written.
    serde_saphyr::to_string(tree).unwrap_or_default()
}

fn read_file(path: &Path) -> Result<Value, SettingsError> {
    let text = std::fs::read_to_string(path).map_err(|source| SettingsError::File {
        path: path.to_owned(),
        source,
    })?;
    Ok(with_whole_numbers(from_yaml(
        &text,
        &path.display().to_string(),
    )?))
}

fn apply_override(tree: &mut Value, pair: &str) -> Result<(), SettingsError> {
    let not_a_pair = || SettingsError::Override(pair.to_owned());
    let (key, value) = pair.split_once('=').ok_or_else(not_a_pair)?;
    merge(
        tree,
        &nested(key, parse_value(value)).ok_or_else(not_a_pair)?,
    );
    Ok(())
}

/// A setting by its dotted name as a tree; none if that is not a name. `env` and `algo` are short
/// for `env.id` and `algo.name`, unless their value is a table.
pub(crate) fn nested(key: &str, value: Value) -> Option<Value> {
    let key = match key {
        "env" if !value.is_object() => "env.id",
        "algo" if !value.is_object() => "algo.name",
        key => key,
    };
    if key.is_empty() || key.split('.').any(str::is_empty) {
        return None;
    }
    let mut nested = value;
    for part in key.rsplit('.') {
        let mut table = Map::new();
        table.insert(part.to_owned(), nested);
        nested = Value::Object(table);
    }
    Some(nested)
}

/// YAML, with two additions: `1_000_000`, and `1e6` where a whole number is meant.
pub(crate) fn parse_value(text: &str) -> Value {
    let plain = text.replace('_', "");
    let text = match plain.parse::<f64>() {
        Ok(_) => plain.as_str(),
        Err(_) => text,
    };
    let value = serde_saphyr::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    with_whole_numbers(value)
}

/// `1e6` is a whole number too; where a fraction is wanted, a whole number will do.
pub(crate) fn with_whole_numbers(value: Value) -> Value {
    match value {
        Value::Object(table) => {
            let entries = table.into_iter();
            Value::Object(
                entries
                    .map(|(key, v)| (key, with_whole_numbers(v)))
                    .collect(),
            )
        }
        Value::Array(items) => items.into_iter().map(with_whole_numbers).collect(),
        Value::Number(number) if number.is_f64() => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => Value::from(float as i64),
            _ => Value::Number(number),
        },
        other => other,
    }
}

fn section(section: &str, key: &str, value: &str) -> Value {
    serde_json::json!({ section: { key: value } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_the_preset() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "algo:\n  gamma: 0.5\n  epochs: 7\nseed: 3").unwrap();
        let mut request = Request::new("CartPole-v1");
        request.file = Some(file.path().to_owned());
        request.overrides = vec!["algo.epochs=9".into(), "steps=2e4".into()];
        let config = resolve(&request).unwrap();
        let tree = config.to_value();
        assert_eq!(config.settings.seed, 3);
        assert_eq!(config.settings.steps, 20_000);
        assert_eq!(tree["algo"]["gamma"], 0.5);
        assert_eq!(tree["algo"]["epochs"], 9);
        let cart_pole = starling_envs::registry::find("CartPole-v1").unwrap();
        let preset = presets::find("classic/ppo").unwrap();
        let preset = preset.settings(cart_pole, &EnvOptions::default(), false);
        let preset = preset.unwrap();
        assert_eq!(tree["envs"], preset["envs"]);
    }

    #[test]
    fn mistakes_are_named() {
        let message = |change: fn(&mut Request)| {
            let mut request = Request::new("CartPole-v1");
            change(&mut request);
            resolve(&request).unwrap_err().to_string()
        };
        assert!(message(|r| r.env = Some("Cartpole".into())).contains("CartPole-v1"));
        assert!(message(|r| r.algo = Some("ppoo".into())).contains("did you mean 'ppo'?"));
        assert!(message(|r| r.preset = Some("clasic/ppo".into())).contains("classic/ppo"));
        assert!(message(|r| r.overrides = vec!["steps".into()]).contains("key=value"));
        assert!(message(|r| r.overrides = vec!["algo.gama=1".into()]).contains("algo.gamma"));
        let bad = message(|r| r.overrides = vec!["algo.gamma=2".into()]);
        assert_eq!(bad, "algo.gamma is 2; allowed: between 0 and 1");
        let misfit = message(|r| r.preset = Some("atari/ppo".into()));
        assert_eq!(
            misfit,
            "the preset 'atari/ppo' does not fit CartPole-v1: CartPole-v1 has no setting called \
             'env.fire_reset'; it has: env.max_episode_steps; without --preset, 'classic/ppo' is \
             used"
        );
        let nearest = message(|r| r.preset = Some("ppo".into()));
        assert!(nearest.ends_with("the nearest are atari/ppo, classic/ppo, default/ppo"));
        let twice = message(|r| r.overrides = vec!["env.id=Acrobot-v1".into()]);
        assert_eq!(
            twice,
            "both 'CartPole-v1' and env.id=Acrobot-v1 are given; name only one"
        );
    }

    #[test]
    fn environment_and_algorithm_have_short_forms_and_algorithms_do_not_mind_case() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "env: CartPole-v1\nalgo: A2C").unwrap();
        let mut request = Request {
            file: Some(file.path().to_owned()),
            ..Request::default()
        };
        let config = resolve(&request).unwrap();
        assert_eq!(
            (&*config.env_id, &*config.algo_name),
            ("CartPole-v1", "a2c")
        );
        request.overrides = vec!["algo=PPO".into(), "algo.epochs=9".into()];
        let config = resolve(&request).unwrap();
        assert_eq!(
            (&*config.algo_name, &config.algo["epochs"]),
            ("ppo", &9.into())
        );
    }

    #[test]
    fn broken_yaml_is_explained_without_the_words_of_the_library() {
        let reason = |text: &str| from_yaml(text, "mine.yaml").unwrap_err().to_string();
        let twice = reason("seed: 1\nseed: 2\n");
        assert!(
            twice.contains("line 2 column 1: this key is given twice: seed\n"),
            "{twice}"
        );
        assert!(twice.contains("--> mine.yaml:2:1"), "{twice}");
        let empty = reason(": x\n");
        assert!(
            empty.contains("a key is missing before the colon"),
            "{empty}"
        );
        for message in [twice, empty] {
            assert!(
                !message.contains("Option") && !message.contains("<input>"),
                "{message}"
            );
        }
    }

    /// The preset's `hidden` and `normalize_observations` describe the built-in network.
    #[test]
    fn a_network_from_torchscript_replaces_that_of_the_preset() {
        let file = concat!(
            "algo.net.torchscript=",
            env!("CARGO_MANIFEST_DIR"),
            "/../../examples/torchscript/cartpole.pt"
        );
        for preset in [None, Some("default/ppo".to_owned())] {
            let mut request = Request::new("CartPole-v1");
            request.preset = preset;
            request.overrides = vec![file.into()];
            let net = resolve(&request).unwrap().to_value()["algo"]["net"].clone();
            assert_eq!(net["hidden"], Value::Null);
            assert_eq!(net["normalize_observations"], false);
            assert_eq!(net["separate_critic"], true);
        }
    }

    #[test]
    fn yaml_survives_a_round_trip() {
        let config = resolve(&Request::new("CartPole-v1")).unwrap().to_value();
        assert_eq!(from_yaml(&to_yaml(&config), "test").unwrap(), config);
    }
}
