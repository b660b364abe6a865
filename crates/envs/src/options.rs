//! The settings of an environment, as a user gives them.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use starling_settings::{ConfigError, merge, parse_config, require, table};

/// The settings of an environment: the limit that every environment has, and the options of its
/// family, by name. What is not given has its default.
///
/// Each family has a structure for its options, which [`read`](EnvOptions::read) fills.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct EnvOptions {
    /// Steps after which an episode is truncated, instead of the environment's own limit.
    pub max_episode_steps: Option<u64>,
    family: Map<String, Value>,
}

/// Where the settings of the environment are in those of a run: errors name `env.stack`.
const SECTION: &str = "env";

/// The option that every environment has.
const LIMIT: &str = "max_episode_steps";

impl EnvOptions {
    /// Reads a table of options. Null stands for the default. Names and types of the family's
    /// options are checked when the environment is made.
    ///
    /// # Errors
    /// When it is not a table, or `max_episode_steps` is not a number.
    pub fn from_table(given: &Value) -> Result<Self, ConfigError> {
        let Some(mut family) = given.as_object().cloned() else {
            return Err(ConfigError::Value {
                key: SECTION.into(),
                value: given.to_string(),
                allowed: "a table of settings".into(),
            });
        };
        family.retain(|_, value| !value.is_null());
        let limit = family.shift_remove(LIMIT);
        let max_episode_steps = limit.as_ref().and_then(Value::as_u64);
        if let Some(limit) = limit {
            let good = max_episode_steps.is_some_and(|steps| steps > 0);
            require(
                good,
                &format!("{SECTION}.{LIMIT}"),
                limit,
                "a whole number, at least 1",
            )?;
        }
        Ok(Self {
            max_episode_steps,
            family,
        })
    }

    /// The same with some options of the family replaced, of which `max_episode_steps` is none. Null
    /// removes one.
    pub fn with(&self, over: &Value) -> Self {
        let mut family = Value::Object(self.family.clone());
        merge(&mut family, over);
        let mut family = family.as_object().cloned().unwrap_or_default();
        family.retain(|_, value| !value.is_null());
        Self {
            max_episode_steps: self.max_episode_steps,
            family,
        }
    }

    /// The family's options, over the defaults of their structure.
    ///
    /// # Errors
    /// When an option does not exist or has the wrong type.
    pub fn read<O: DeserializeOwned + Serialize + Default>(&self) -> Result<O, ConfigError> {
        parse_config(SECTION, &self.family())
    }

    /// The options of the family that are given.
    pub fn family(&self) -> Value {
        Value::Object(self.family.clone())
    }

    /// All options as a table, those of the family over `defaults`.
    pub fn to_table(&self, defaults: &Value) -> Value {
        let mut whole = limit_and(defaults);
        if let Some(limit) = whole.get_mut(LIMIT) {
            *limit = self.max_episode_steps.into();
        }
        merge(&mut whole, &self.family());
        whole
    }

    /// Refuses an option that is not among `defaults`.
    pub(crate) fn check(&self, defaults: &Value) -> Result<(), ConfigError> {
        require(
            self.max_episode_steps != Some(0),
            &format!("{SECTION}.{LIMIT}"),
            0,
            "at least 1",
        )?;
        let known = limit_and(defaults);
        starling_settings::check_keys(SECTION, &self.family(), &known).map_err(|error| {
            let ConfigError::Unknown { key, nearest, .. } = error else {
                return error;
            };
            let names = known.as_object().into_iter().flat_map(Map::keys);
            ConfigError::Unknown {
                key,
                nearest,
                available: names.map(|name| format!("{SECTION}.{name}")).collect(),
            }
        })
    }
}

impl TryFrom<Value> for EnvOptions {
    type Error = ConfigError;

    fn try_from(table: Value) -> Result<Self, ConfigError> {
        Self::from_table(&table)
    }
}

/// A family's options with their defaults, for [`EnvSpec::options`](crate::EnvSpec::options).
pub fn defaults<O: Default + Serialize>() -> Value {
    table(&O::default())
}

/// Refuses an option that is out of range; `name` is that of its field.
///
/// # Errors
/// When it is not `good`.
pub fn require_option(
    good: bool,
    name: &str,
    value: impl ToString,
    allowed: &str,
) -> Result<(), ConfigError> {
    require(good, &format!("{SECTION}.{name}"), value, allowed)
}

fn limit_and(defaults: &Value) -> Value {
    let mut whole = serde_json::json!({ LIMIT: null });
    merge(&mut whole, defaults);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Example {
        cells: usize,
        icy: bool,
    }

    impl Default for Example {
        fn default() -> Self {
            Self {
                cells: 11,
                icy: false,
            }
        }
    }

    fn given(table: Value) -> EnvOptions {
        EnvOptions::from_table(&table).unwrap()
    }

    #[test]
    fn options_are_read_over_their_defaults_and_null_is_the_default() {
        let options = given(json!({"icy": true, "cells": null, "max_episode_steps": 7}));
        assert_eq!(options.max_episode_steps, Some(7));
        let expected = Example {
            cells: 11,
            icy: true,
        };
        assert_eq!(options.read::<Example>().unwrap(), expected);
        assert_eq!(
            options.to_table(&defaults::<Example>()),
            json!({"max_episode_steps": 7, "cells": 11, "icy": true})
        );
        let over = options.with(&json!({"cells": 5, "icy": null}));
        assert_eq!(over.family(), json!({"cells": 5}));
        assert_eq!(over.max_episode_steps, Some(7));
    }

    #[test]
    fn mistakes_name_the_key_and_what_there_is() {
        let check = |table: Value| {
            let options = EnvOptions::from_table(&table)?;
            options.check(&defaults::<Example>())?;
            options.read::<Example>()
        };
        let message = |table: Value| check(table).unwrap_err().to_string();
        assert_eq!(
            message(json!({"cels": 3})),
            "there is no setting called 'env.cels'; did you mean env.cells? Available: \
             env.max_episode_steps, env.cells, env.icy"
        );
        assert_eq!(
            message(json!({"cells": "many"})),
            "env.cells is \"many\"; allowed: a whole number, not negative"
        );
        for limit in [json!(0), json!("long"), json!(1.5), json!(-1)] {
            let message = message(json!({ "max_episode_steps": limit.clone() }));
            let start = format!("env.max_episode_steps is {limit}; allowed: a whole number");
            assert!(message.starts_with(&start), "{message}");
        }
        assert_eq!(message(json!(3)), "env is 3; allowed: a table of settings");
        assert!(check(json!({"max_episode_steps": null, "cells": 3})).is_ok());
    }
}
