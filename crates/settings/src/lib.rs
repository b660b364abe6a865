//! Reading settings: a table of values over the defaults of a structure.
//!
//! Read first: [`parse_config`] (from a table to a structure), [`ConfigError`] (what can be wrong
//! with it). Errors name keys as the user writes them.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Settings that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value of the wrong type or out of range.
    #[error("{key} is {value}; allowed: {allowed}")]
    Value {
        /// Dotted name of the setting.
        key: String,
        /// What was given.
        value: String,
        /// What may be given.
        allowed: String,
    },
    /// Settings that are fine by themselves, but not together.
    #[error("{0}")]
    Misfit(String),
    /// A key that does not exist.
    #[error("there is no setting called '{key}'{}{}", did_you_mean(.nearest), listed(.nearest, .available))]
    Unknown {
        /// Dotted name that was given.
        key: String,
        /// Existing names that look like it.
        nearest: Vec<String>,
        /// All names that exist there; empty where they are too many to list.
        available: Vec<String>,
    },
}

/// Reads settings over the defaults of their structure. `section` is their place in the whole config
/// (`algo`), so that errors name keys as the user writes them.
pub fn parse_config<C>(section: &str, given: &Value) -> Result<C, ConfigError>
where
    C: DeserializeOwned + Serialize + Default,
{
    let defaults = C::default();
    check_keys(section, given, &table(&defaults))?;
    parse_over(section, given, &defaults)
}

/// A structure as a table of settings.
pub fn table<C: Serialize>(settings: &C) -> Value {
    // A structure of numbers, strings, lists and tables can always be written.
    serde_json::to_value(settings).unwrap_or(Value::Null)
}

/// Reads those of the given settings that a structure has over the given defaults; others are left
/// to [`check_keys`].
pub fn parse_over<C>(section: &str, given: &Value, defaults: &C) -> Result<C, ConfigError>
where
    C: DeserializeOwned + Serialize,
{
    let defaults = table(defaults);
    let mut own = given.clone();
    if let (Some(own), Some(known)) = (own.as_object_mut(), defaults.as_object()) {
        own.retain(|key, _| known.contains_key(key));
    }
    deserialize(section, &defaults, &own)
}

/// Lays one tree of settings over another: tables are merged, everything else is replaced.
pub fn merge(under: &mut Value, over: &Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                match under.get_mut(key) {
                    Some(existing) => merge(existing, value),
                    None => {
                        under.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (under, over) => *under = over.clone(),
    }
}

/// Refuses a value that is out of range.
pub fn require(
    good: bool,
    key: &str,
    value: impl ToString,
    allowed: &str,
) -> Result<(), ConfigError> {
    if good {
        return Ok(());
    }
    Err(ConfigError::Value {
        key: key.to_owned(),
        value: value.to_string(),
        allowed: allowed.to_owned(),
    })
}

/// Refuses a key that the defaults do not have. Where the default is not a table (a number that may
/// also be a schedule, an optional part), serde checks what is inside.
pub fn check_keys(section: &str, given: &Value, defaults: &Value) -> Result<(), ConfigError> {
    let (Value::Object(given), Value::Object(defaults)) = (given, defaults) else {
        return Ok(());
    };
    for (key, value) in given {
        let path = join(section, key);
        let Some(default) = defaults.get(key) else {
            let mut nearest: Vec<(f64, &String)> = defaults
                .keys()
                .map(|name| (strsim::jaro_winkler(key, name), name))
                .filter(|(similarity, _)| *similarity > 0.75)
                .collect();
            nearest.sort_by(|a, b| b.0.total_cmp(&a.0));
            let nearest = nearest.into_iter().take(3);
            return Err(ConfigError::Unknown {
                key: path,
                nearest: nearest.map(|(_, name)| join(section, name)).collect(),
                available: Vec::new(),
            });
        };
        check_keys(&path, value, default)?;
    }
    Ok(())
}

/// Reads the given settings over defaults. What is not given keeps its default, also inside a
/// table: serde alone would take the defaults of the table's own type.
fn deserialize<C: DeserializeOwned>(
    section: &str,
    defaults: &Value,
    given: &Value,
) -> Result<C, ConfigError> {
    let over_defaults = |given: &Value| {
        let mut settings = defaults.clone();
        merge(&mut settings, given);
        serde_path_to_error::deserialize(settings)
    };
    over_defaults(given).map_err(|error| {
        let mut path = error.path().to_string();
        if path == "." {
            // serde does not know the way to a value in a flattened part.
            path = first_unreadable(given, &|one| over_defaults(one).map(|_: C| ()).is_ok());
        }
        let key = match path.as_str() {
            "" => section.to_owned(),
            path => join(section, path),
        };
        // `net.hidden[0]` is the key `net`, the key `hidden` and the place 0.
        let mut parts = path
            .split(['.', '['])
            .map(|part| part.trim_end_matches(']'));
        let value = parts.try_fold(given, |value, part| match part.parse::<usize>() {
            Ok(place) if value.is_array() => value.get(place),
            _ => value.get(part),
        });
        ConfigError::Value {
            key,
            value: value.unwrap_or(given).to_string(),
            allowed: allowed(&error.into_inner().to_string()),
        }
    })
}

/// The dotted name of the first of the given settings that cannot be read by itself; empty if
/// each of them can.
fn first_unreadable(given: &Value, readable: &dyn Fn(&Value) -> bool) -> String {
    let Value::Object(settings) = given else {
        return String::new();
    };
    for (key, value) in settings {
        let alone = |value: &Value| {
            let table = [(key.clone(), value.clone())];
            Value::Object(table.into_iter().collect())
        };
        if !readable(&alone(value)) {
            let inside = first_unreadable(value, &|value| readable(&alone(value)));
            return match inside.as_str() {
                "" => key.clone(),
                inside => join(key, inside),
            };
        }
    }
    String::new()
}

/// serde says `invalid type: string "x", expected f64`: only the second half is news, in words
/// that do not need Rust.
fn allowed(message: &str) -> String {
    let expected = match (
        message.split_once("allowed: "),
        message.split_once("expected "),
    ) {
        (Some((_, allowed)), _) => allowed,
        (None, Some((_, expected))) => expected.trim_start_matches("one of "),
        (None, None) => message,
    };
    match expected {
        "u64" | "usize" | "u32" | "u16" | "u8" => "a whole number, not negative".into(),
        "f64" | "f32" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "a list, such as [64, 64]".into(),
        other if other.starts_with("struct ") => "a table of settings".into(),
        other => other.to_owned(),
    }
}

fn join(section: &str, key: &str) -> String {
    if section.is_empty() {
        key.to_owned()
    } else {
        format!("{section}.{key}")
    }
}

fn did_you_mean(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        names => format!("; did you mean {}?", names.join(" or ")),
    }
}

fn listed(nearest: &[String], available: &[String]) -> String {
    // After a question a new sentence begins.
    match (nearest, available) {
        (_, []) => String::new(),
        ([], names) => format!("; available: {}", names.join(", ")),
        (_, names) => format!(" Available: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Example {
        learning_rate: f64,
        net: Net,
    }

    impl Default for Example {
        fn default() -> Self {
            Self {
                learning_rate: 0.0,
                net: Net {
                    hidden: 0,
                    depth: 2,
                    sizes: vec![1],
                },
            }
        }
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Net {
        hidden: usize,
        depth: usize,
        sizes: Vec<usize>,
    }

    fn message(given: Value) -> String {
        let result: Result<Example, _> = parse_config("algo", &given);
        result.unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_key_the_value_and_what_is_allowed() {
        assert_eq!(
            message(json!({"learning_rat": 1})),
            "there is no setting called 'algo.learning_rat'; did you mean algo.learning_rate?"
        );
        assert_eq!(
            message(json!({"net": {"hiden": 1}})),
            "there is no setting called 'algo.net.hiden'; did you mean algo.net.hidden?"
        );
        assert_eq!(
            message(json!({"net": {"hidden": "big"}})),
            "algo.net.hidden is \"big\"; allowed: a whole number, not negative"
        );
        assert_eq!(
            message(json!({"net": {"sizes": [64, -4]}})),
            "algo.net.sizes[1] is -4; allowed: a whole number, not negative"
        );
    }

    #[test]
    fn what_is_not_given_keeps_its_default() {
        let config: Example = parse_config("algo", &json!({"net": {"hidden": 3}})).unwrap();
        assert_eq!(config.net.hidden, 3);
        assert_eq!(
            config.net.depth, 2,
            "the example's own default, not the type's"
        );
        assert_eq!(config.learning_rate, 0.0);
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Composed {
        #[serde(flatten)]
        example: Example,
        other: usize,
        maybe: Option<Net>,
    }

    /// Also inside of parts that serde reads without knowing where it is.
    #[test]
    fn errors_in_flattened_parts_name_the_key() {
        let message = |given: Value| {
            let result: Result<Composed, _> = parse_config("algo", &given);
            result.unwrap_err().to_string()
        };
        assert_eq!(
            message(json!({"other": 1, "learning_rate": "fast"})),
            "algo.learning_rate is \"fast\"; allowed: a number"
        );
        assert_eq!(
            message(json!({"net": {"depth": 3, "hidden": -1}, "other": 2})),
            "algo.net.hidden is -1; allowed: a whole number, not negative"
        );
        assert_eq!(
            message(json!({"maybe": {"hidden": -1}})),
            "algo.maybe.hidden is -1; allowed: a whole number, not negative"
        );
        assert!(message(json!({"learning_rat": 1})).contains("algo.learning_rate?"));
        let given = json!({"learning_rate": 2, "net": {"hidden": 3}, "other": 4});
        let composed: Composed = parse_config("algo", &given).unwrap();
        assert_eq!((composed.example.learning_rate, composed.other), (2.0, 4));
        assert_eq!(
            (composed.example.net.hidden, composed.example.net.depth),
            (3, 2)
        );
    }
}
