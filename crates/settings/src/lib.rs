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
    // What is not given keeps this structure's default, also inside a table: serde alone would
    // take the defaults of the table's own type.
    let mut settings = table(defaults);
    let mut own = given.clone();
    if let (Some(own), Some(known)) = (own.as_object_mut(), settings.as_object()) {
        own.retain(|key, _| known.contains_key(key));
    }
    merge(&mut settings, &own);
    deserialize(section, &settings, given)
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

fn deserialize<C: DeserializeOwned>(
    section: &str,
    settings: &Value,
    given: &Value,
) -> Result<C, ConfigError> {
    serde_path_to_error::deserialize(settings).map_err(|error| {
        let path = error.path().to_string();
        let key = match path.as_str() {
            "." => section.to_owned(),
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
}
