//! Reading an algorithm's settings, with errors that name the key.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use starling_nets::Schedule;

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
    #[error("there is no setting called '{key}'{}", did_you_mean(.nearest))]
    Unknown {
        /// Dotted name that was given.
        key: String,
        /// Existing names that look like it.
        nearest: Vec<String>,
    },
}

fn did_you_mean(nearest: &[String]) -> String {
    if nearest.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", nearest.join(" or "))
    }
}

/// Reads settings over defaults. `section` is their place in the whole config (`algo`), so that
/// errors name keys as the user writes them.
pub fn parse_config<C>(section: &str, given: &Value) -> Result<C, ConfigError>
where
    C: DeserializeOwned + Serialize + Default,
{
    let defaults = serde_json::to_value(C::default()).unwrap_or(Value::Null);
    check_keys(section, given, &defaults)?;
    deserialize(section, &defaults, given)
}

/// Reads settings that are in one table but belong to two structures, over their defaults.
pub(crate) fn parse_parts<A, B>(
    section: &str,
    given: &Value,
    defaults: &(A, B),
) -> Result<(A, B), ConfigError>
where
    A: DeserializeOwned + Serialize,
    B: DeserializeOwned + Serialize,
{
    check_keys(section, given, &side_by_side(defaults))?;
    Ok((
        parse_part(section, given, &defaults.0)?,
        parse_part(section, given, &defaults.1)?,
    ))
}

/// The settings of two structures as one table.
pub(crate) fn side_by_side<A: Serialize, B: Serialize>(parts: &(A, B)) -> Value {
    let mut all = serde_json::to_value(&parts.0).unwrap_or(Value::Null);
    let rest = serde_json::to_value(&parts.1).unwrap_or(Value::Null);
    merge(&mut all, &rest);
    all
}

/// Those of the given settings that a structure has, over its defaults.
fn parse_part<C>(section: &str, given: &Value, defaults: &C) -> Result<C, ConfigError>
where
    C: DeserializeOwned + Serialize,
{
    let defaults = serde_json::to_value(defaults).unwrap_or(Value::Null);
    let mut own = given.clone();
    if let (Some(own), Some(known)) = (own.as_object_mut(), defaults.as_object()) {
        own.retain(|key, _| known.contains_key(key));
    }
    deserialize(section, &defaults, &own)
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

/// Lays one tree of settings over another: tables are merged, everything else is replaced.
fn merge(under: &mut Value, over: &Value) {
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
        "u64" | "usize" | "u32" => "a whole number, 0 or more".into(),
        "f64" | "f32" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "a list, such as [64, 64]".into(),
        other if other.starts_with("struct ") => "a table of settings".into(),
        other => other.to_owned(),
    }
}

/// Refuses the first of some settings that is out of range.
pub(crate) fn refuse(
    problem: Option<(&'static str, String, &'static str)>,
) -> Result<(), ConfigError> {
    match problem {
        None => Ok(()),
        Some((key, value, allowed)) => require(false, &format!("algo.{key}"), value, allowed),
    }
}

/// Refuses a schedule that leaves a range.
pub(crate) fn require_schedule(
    key: &str,
    schedule: &Schedule,
    high: f64,
) -> Result<(), ConfigError> {
    match schedule.problem(0.0, high) {
        None => Ok(()),
        Some(allowed) => require(false, key, schedule, &allowed),
    }
}

/// Every key must exist in the defaults. Where the default is not a table (a number that may
/// also be a schedule, an optional part), serde checks what is inside.
fn check_keys(section: &str, given: &Value, defaults: &Value) -> Result<(), ConfigError> {
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
            });
        };
        check_keys(&path, value, default)?;
    }
    Ok(())
}

fn join(section: &str, key: &str) -> String {
    if section.is_empty() {
        key.to_owned()
    } else {
        format!("{section}.{key}")
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
            "algo.net.hidden is -1; allowed: a whole number, 0 or more"
        );
        assert_eq!(
            message(json!({"maybe": {"hidden": -1}})),
            "algo.maybe.hidden is -1; allowed: a whole number, 0 or more"
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
            "algo.net.hidden is \"big\"; allowed: a whole number, 0 or more"
        );
        assert_eq!(
            message(json!({"net": {"sizes": [64, -4]}})),
            "algo.net.sizes[1] is -4; allowed: a whole number, 0 or more"
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

    #[test]
    fn two_structures_are_read_from_one_table() {
        let defaults = (
            Example {
                learning_rate: 0.5,
                ..Example::default()
            },
            Net {
                hidden: 7,
                depth: 2,
                sizes: vec![1],
            },
        );
        let given = json!({"hidden": 8, "net": {"hidden": 3}});
        let (example, net) = parse_parts("algo", &given, &defaults).unwrap();
        assert_eq!((example.learning_rate, example.net.hidden), (0.5, 3));
        assert_eq!(net.hidden, 8);
        let wrong = parse_parts("algo", &json!({"hidden": "big"}), &defaults);
        assert_eq!(
            wrong.unwrap_err().to_string(),
            "algo.hidden is \"big\"; allowed: a whole number, 0 or more"
        );
        let unknown = parse_parts("algo", &json!({"hiden": 1}), &defaults);
        assert!(unknown.unwrap_err().to_string().contains("algo.hidden?"));
    }
}
