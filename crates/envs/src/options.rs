//! The settings of an environment, as a user gives them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use starling_settings::{
    ConfigError, Schema, Structure, check_ranges, merge, parse_config, parse_over,
};

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

/// What every environment has.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Common {
    /// Steps after which an episode is truncated; null for the environment's own limit.
    #[schemars(range(min = 1))]
    max_episode_steps: Option<u64>,
}

impl EnvOptions {
    /// Reads a table of options. Null stands for the default. Names and types of the family's
    /// options are checked when the environment is made.
    ///
    /// # Errors
    /// When it is not a table, or `max_episode_steps` is not a number from 1.
    pub fn from_table(given: &Value) -> Result<Self, ConfigError> {
        let Some(mut family) = given.as_object().cloned() else {
            return Err(ConfigError::Value {
                key: SECTION.into(),
                value: given.to_string(),
                allowed: "a table of settings".into(),
            });
        };
        family.retain(|_, value| !value.is_null());
        let common: Common = parse_over(SECTION, given, &Common::default())?;
        family.retain(|name, _| name != "max_episode_steps");
        Ok(Self {
            max_episode_steps: common.max_episode_steps,
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
    /// When an option does not exist, has the wrong type or is out of range.
    pub fn read<O: Structure + Default>(&self) -> Result<O, ConfigError> {
        parse_config(SECTION, &self.family())
    }

    /// The options of the family that are given.
    pub fn family(&self) -> Value {
        Value::Object(self.family.clone())
    }

    /// All options as a table, over the defaults of `schema`: that of the
    /// [environment](crate::EnvSpec::schema).
    pub fn to_table(&self, schema: &Schema) -> Value {
        let mut whole = schema.defaults().clone();
        merge(&mut whole, &starling_settings::table(&self.common()));
        merge(&mut whole, &self.family());
        whole
    }

    /// Refuses an option that is not in `schema`, that of the environment.
    pub(crate) fn check(&self, schema: &Schema) -> Result<(), ConfigError> {
        check_ranges(SECTION, &self.common())?;
        let checked = schema.check_names(SECTION, &self.family());
        checked.map_err(|error| match error {
            ConfigError::Unknown { key, nearest, .. } => {
                let names = schema
                    .defaults()
                    .as_object()
                    .into_iter()
                    .flat_map(Map::keys);
                ConfigError::Unknown {
                    key,
                    nearest,
                    available: names.map(|name| format!("{SECTION}.{name}")).collect(),
                }
            }
            error => error,
        })
    }

    fn common(&self) -> Common {
        Common {
            max_episode_steps: self.max_episode_steps,
        }
    }
}

impl TryFrom<Value> for EnvOptions {
    type Error = ConfigError;

    fn try_from(table: Value) -> Result<Self, ConfigError> {
        Self::from_table(&table)
    }
}

/// What every environment has, and then the options of a family.
pub(crate) fn schema_of(family: Schema) -> Schema {
    Schema::of::<Common>().and(family)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    struct Example {
        #[schemars(range(max = 50))]
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
            options.to_table(&schema_of(Schema::of::<Example>())),
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
            options.check(&schema_of(Schema::of::<Example>()))?;
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
            "env.cells is \"many\"; allowed: a whole number, 0 or more"
        );
        assert_eq!(
            message(json!({"cells": 51})),
            "env.cells is 51; allowed: between 0 and 50"
        );
        for (limit, allowed) in [
            (json!(0), "at least 1, or null"),
            (json!(-1), "at least 1, or null"),
            (json!(1.5), "a whole number, 0 or more"),
            (json!("long"), "a whole number, 0 or more"),
        ] {
            let expected = format!("env.max_episode_steps is {limit}; allowed: {allowed}");
            assert_eq!(message(json!({ "max_episode_steps": limit })), expected);
        }
        assert_eq!(message(json!(3)), "env is 3; allowed: a table of settings");
        assert!(check(json!({"max_episode_steps": null, "cells": 3})).is_ok());
    }
}
