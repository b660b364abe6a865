//! Reads an algorithm's settings from one table into two structures.

use serde_json::Value;
pub use starling_settings::{ConfigError, parse_config, require};
use starling_settings::{Schema, Structure, parse_over};

/// Reads settings that are in one table but belong to two structures, over their defaults.
pub(crate) fn parse_parts<A, B>(
    section: &str,
    given: &Value,
    defaults: &(A, B),
) -> Result<(A, B), ConfigError>
where
    A: Structure,
    B: Structure,
{
    side_by_side(defaults).check_names(section, given)?;
    Ok((
        parse_over(section, given, &defaults.0)?,
        parse_over(section, given, &defaults.1)?,
    ))
}

/// The settings of two structures as one table.
pub(crate) fn side_by_side<A: Structure, B: Structure>(parts: &(A, B)) -> Schema {
    Schema::over(&parts.0).and(Schema::over(&parts.1))
}

/// Refuses a setting that contradicts another.
pub(crate) fn refuse(
    problem: Option<(&'static str, String, &'static str)>,
) -> Result<(), ConfigError> {
    match problem {
        None => Ok(()),
        Some((key, value, allowed)) => require(false, &format!("algo.{key}"), value, allowed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};
    use serde_json::json;

    #[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    struct Example {
        learning_rate: f64,
        net: Net,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    struct Net {
        hidden: usize,
    }

    #[test]
    fn two_structures_are_read_from_one_table() {
        let defaults = (
            Example {
                learning_rate: 0.5,
                net: Net { hidden: 0 },
            },
            Net { hidden: 7 },
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
