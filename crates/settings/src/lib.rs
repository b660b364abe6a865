//! Settings: what is known about each ([`Schema`]), and reading a table of them over the defaults
//! of a structure.
//!
//! Read first: [`parse_config`] (from a table to a structure), [`Schema`] (name, words, form, unit,
//! range and default of every setting), [`ConfigError`] (what can be wrong with one). Errors name
//! keys as the user writes them.

mod schema;

pub use schema::{Choice, Form, OutOfRange, Range, Schema, Setting};
/// For `#[derive(JsonSchema)]` on a structure of settings.
pub use schemars::{self, JsonSchema};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A structure whose fields are settings.
pub trait Structure: Serialize + DeserializeOwned + JsonSchema + 'static {}

impl<C: Serialize + DeserializeOwned + JsonSchema + 'static> Structure for C {}

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

impl From<OutOfRange> for ConfigError {
    fn from(wrong: OutOfRange) -> Self {
        ConfigError::Value {
            key: wrong.key,
            value: wrong.value,
            allowed: wrong.allowed,
        }
    }
}

/// Reads settings over the defaults of their structure, and refuses unknown names and numbers out of
/// range. `section` is their place in the whole config (`algo`), so that errors name keys as the
/// user writes them.
pub fn parse_config<C: Structure + Default>(
    section: &str,
    given: &Value,
) -> Result<C, ConfigError> {
    let defaults = C::default();
    Schema::over(&defaults).check_names(section, given)?;
    parse_over(section, given, &defaults)
}

/// A structure as a table of settings.
pub fn table<C: Serialize>(settings: &C) -> Value {
    // A structure of numbers, strings, lists and tables can always be written.
    serde_json::to_value(settings).unwrap_or(Value::Null)
}

/// Reads those of the given settings that a structure has over the given defaults, and refuses
/// numbers out of range. Other names are left to [`Schema::check_names`].
pub fn parse_over<C: Structure>(
    section: &str,
    given: &Value,
    defaults: &C,
) -> Result<C, ConfigError> {
    let schema = Schema::over(defaults);
    schema.check_ranges(section, given)?;
    let mut own = given.clone();
    if let (Some(own), Some(known)) = (own.as_object_mut(), schema.defaults().as_object()) {
        own.retain(|key, _| known.contains_key(key));
    }
    deserialize(section, schema.defaults(), &own)
}

/// Refuses a structure with a number out of its range.
pub fn check_ranges<C: Structure>(section: &str, settings: &C) -> Result<(), OutOfRange> {
    let schema = Schema::over(settings);
    schema.check_ranges(section, schema.defaults())
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

/// Refuses a value that does not go with other settings. The range of a single one is part of its
/// [`Schema`].
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
        "u64" | "usize" | "u32" | "u16" | "u8" => "a whole number, 0 or more".into(),
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

    #[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
            "algo.net.hidden is \"big\"; allowed: a whole number, 0 or more"
        );
        assert_eq!(
            message(json!({"net": {"sizes": [64, -4]}})),
            "algo.net.sizes[1] is -4; allowed: 0 or more"
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

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
            "algo.net.hidden is -1; allowed: 0 or more"
        );
        assert_eq!(
            message(json!({"maybe": {"hidden": -1}})),
            "algo.maybe.hidden is -1; allowed: 0 or more"
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

    /// A number, or a straight line.
    #[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(untagged)]
    enum Rate {
        Constant(f64),
        Line(Line),
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    struct Line {
        /// Value at the beginning.
        start: f64,
        /// When it is reached.
        #[serde(default)]
        #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
        by: f64,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Shape {
        /// No corners.
        Round,
        /// Four corners.
        VerySquare,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    struct Ranged {
        /// How fast,
        /// as in [`Rate`].
        #[schemars(extend("minimum" = 0.0, "maximum" = 10.0))]
        rate: Rate,
        /// Its limit.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        limit: Option<f64>,
        #[schemars(inner(range(min = 1, max = 9)))]
        sizes: Option<Vec<usize>>,
        part: Option<Part>,
        shape: Option<Shape>,
        every_steps: u8,
        small: f32,
        on: bool,
        #[schemars(extend("unit" = "mice"))]
        cheese: u64,
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    struct Part {
        #[schemars(range(max = 0.0))]
        depth: f64,
    }

    impl Default for Ranged {
        fn default() -> Self {
            Self {
                rate: Rate::Constant(1.0),
                limit: None,
                sizes: None,
                part: None,
                shape: None,
                every_steps: 7,
                small: 0.5,
                on: true,
                cheese: 1,
            }
        }
    }

    #[test]
    fn ranges_hold_at_every_depth() {
        let message = |given: Value| match parse_config::<Ranged>("algo", &given) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        for (given, expected) in [
            (
                json!({"rate": 10.5}),
                "algo.rate is 10.5; allowed: between 0 and 10",
            ),
            (
                json!({"rate": null}),
                "algo.rate is null; allowed: between 0 and 10",
            ),
            (
                json!({"rate": {"start": -1, "by": 1}}),
                "algo.rate.start is -1; allowed: between 0 and 10",
            ),
            (
                json!({"rate": {"start": 1, "by": 0}}),
                "algo.rate.by is 0; allowed: above 0 and at most 1",
            ),
            (
                json!({"limit": 0.0}),
                "algo.limit is 0; allowed: above 0, or null",
            ),
            (
                json!({"sizes": [9, 10]}),
                "algo.sizes[1] is 10; allowed: between 1 and 9",
            ),
            (
                json!({"part": {"depth": 1}}),
                "algo.part.depth is 1; allowed: 0 or less",
            ),
            (
                json!({"every_steps": 300}),
                "algo.every_steps is 300; allowed: between 0 and 255",
            ),
            (
                json!({"small": 1e300}),
                "algo.small is 1e+300; allowed: any finite number",
            ),
            (
                json!({"cheese": -1}),
                "algo.cheese is -1; allowed: 0 or more",
            ),
            (
                json!({"part": {"dept": 1}}),
                "there is no setting called 'algo.part.dept'; did you mean algo.part.depth?",
            ),
            (
                json!({"rate": {"start": 1, "by": 1}, "limit": null, "sizes": [1], "part": null}),
                "",
            ),
        ] {
            assert_eq!(message(given), expected);
        }
        let wrong = Ranged {
            rate: Rate::Constant(f64::NAN),
            ..Ranged::default()
        };
        assert_eq!(check_ranges("", &wrong).unwrap_err().key, "rate");
        assert_eq!(check_ranges("", &Ranged::default()), Ok(()));
    }

    #[test]
    fn a_schema_lists_settings_with_all_that_is_known() {
        let settings = Schema::of::<Ranged>().settings("algo");
        let find = |key: &str| settings.iter().find(|setting| setting.key == key).unwrap();
        let rate = find("algo.rate");
        assert_eq!(rate.words, "How fast, as in `Rate`.");
        assert_eq!(rate.form(), "float or {start, by}");
        assert_eq!((&rate.default, rate.nullable), (&json!(1.0), false));
        assert_eq!(find("algo.sizes").form(), "list of integers or null");
        assert_eq!(find("algo.sizes").allowed(), "each between 1 and 9");
        assert!(find("algo.part").is_section() && find("algo.part").nullable);
        // What it is as soon as the section is given.
        assert_eq!(find("algo.part.depth").default, json!(0.0));
        let shape = find("algo.shape");
        assert_eq!(shape.form(), "round, very_square or null");
        assert_eq!(shape.choices()[1].words, "Four corners.");
        assert_eq!(shape.values(), ["round", "very_square", "null"]);
        assert_eq!(find("algo.on").values(), ["true", "false"]);
        assert_eq!(find("algo.every_steps").unit.as_deref(), Some("steps"));
        assert_eq!(find("algo.cheese").unit.as_deref(), Some("mice"));
        assert!(find("algo.small").range.is_open());
        let both = Schema::of::<Part>().and(Schema::of::<Net>());
        let keys = both.settings("").into_iter().map(|setting| setting.key);
        assert_eq!(
            keys.collect::<Vec<_>>(),
            ["depth", "hidden", "depth", "sizes"]
        );
        let open = Schema::of::<Net>().without_defaults();
        assert_eq!(open.settings("")[0].form(), "integer or null");
    }
}
