//! Filters for lists of runs: terms that all have to match, as in the filter box of the dashboard.
//!
//! | term | matches |
//! |---|---|
//! | `pong` | a part of the environment, algorithm or name |
//! | `env:Pong` | a part of a text |
//! | `seed=3` | an equal value |
//! | `steps>1e6` | a number; also `<`, `>=`, `<=` |
//! | `algo.gamma=0.99`, `gamma=0.99` | a setting, by its dotted name or the end of it |
//! | `-env:Pong` | runs that do not match `env:Pong` |

use serde_json::Value;

/// A word of a filter.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    negative: bool,
    test: Test,
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    Anywhere(String),
    Contains(String, String),
    Equals(String, String),
    Compares(String, Order, f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A word that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word}: a number is needed after {operator}")]
pub struct BadFilter {
    word: String,
    operator: &'static str,
}

/// In the order in which they are looked for at one place.
const OPERATORS: [&str; 6] = [">=", "<=", ":", "=", ">", "<"];

impl Filter {
    /// Reads a word.
    pub fn parse(word: &str) -> Result<Self, BadFilter> {
        let (negative, rest) = match word.strip_prefix('-') {
            Some(rest) if !rest.is_empty() => (true, rest),
            _ => (false, word),
        };
        let place = rest.find([':', '=', '>', '<']).filter(|place| *place > 0);
        let found = place.and_then(|place| {
            let (key, behind) = rest.split_at(place);
            let operator = OPERATORS.into_iter().find(|op| behind.starts_with(op))?;
            Some((key.to_owned(), operator, &behind[operator.len()..]))
        });
        let Some((key, operator, wanted)) = found else {
            let test = Test::Anywhere(rest.to_lowercase());
            return Ok(Self { negative, test });
        };
        let order = match operator {
            ":" => {
                return Ok(Self {
                    negative,
                    test: Test::Contains(key, wanted.to_lowercase()),
                });
            }
            "=" => {
                return Ok(Self {
                    negative,
                    test: Test::Equals(key, wanted.to_owned()),
                });
            }
            "<" => Order::Less,
            "<=" => Order::LessOrEqual,
            ">" => Order::Greater,
            _ => Order::GreaterOrEqual,
        };
        let limit = wanted.parse().map_err(|_| BadFilter {
            word: word.to_owned(),
            operator,
        })?;
        let test = Test::Compares(key, order, limit);
        Ok(Self { negative, test })
    }

    /// Whether a run fits, as [`starling_dashboard::list_runs`] gives it.
    pub fn fits(&self, run: &Value) -> bool {
        let fits = match &self.test {
            Test::Anywhere(wanted) => ["env", "algo", "name"]
                .iter()
                .any(|key| text(&run[key]).to_lowercase().contains(wanted)),
            Test::Contains(key, wanted) => {
                value_of(run, key).is_some_and(|value| text(value).to_lowercase().contains(wanted))
            }
            Test::Equals(key, wanted) => value_of(run, key).is_some_and(|value| {
                let number = wanted.parse::<f64>().ok();
                text(value) == *wanted || (number.is_some() && value.as_f64() == number)
            }),
            Test::Compares(key, order, limit) => {
                let value = value_of(run, key).and_then(Value::as_f64);
                value.is_some_and(|value| match order {
                    Order::Less => value < *limit,
                    Order::LessOrEqual => value <= *limit,
                    Order::Greater => value > *limit,
                    Order::GreaterOrEqual => value >= *limit,
                })
            }
        };
        fits != self.negative
    }
}

const OWN: [&str; 9] = [
    "env", "algo", "name", "seed", "state", "steps", "return", "speed", "episodes",
];

fn value_of<'a>(run: &'a Value, key: &str) -> Option<&'a Value> {
    if OWN.contains(&key) {
        return run.get(key).filter(|value| !value.is_null());
    }
    let settings = run["settings"].as_object()?;
    // A schedule counts with its first value.
    let named = settings
        .get(key)
        .or_else(|| settings.get(&format!("{key}.start")));
    if named.is_some() || key.contains('.') {
        return named;
    }
    let end = format!(".{key}");
    let mut found = settings.iter().filter(|(name, _)| name.ends_with(&end));
    match (found.next(), found.next()) {
        (Some((_, value)), None) => Some(value),
        _ => None,
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_fit_as_in_the_dashboard() {
        let run = json!({
            "env": "ALE/Pong-v5", "algo": "ppo", "name": "wide", "seed": 3, "state": "running",
            "steps": 2e6, "return": null,
            "settings": {"algo.gamma": 0.99, "algo.learning_rate.start": 0.001, "algo.net.lstm": 0},
        });
        let fits = |word: &str| Filter::parse(word).unwrap().fits(&run);
        for word in [
            "pong",
            "WIDE",
            "env:pong",
            "seed=3",
            "steps>1e6",
            "steps<=2e6",
            "-state:stopped",
            "algo.gamma=0.99",
            "gamma=0.99",
            "algo.learning_rate<0.01",
            "algo=ppo",
            "-dqn",
            "lstm=0",
        ] {
            assert!(fits(word), "{word}");
        }
        for word in [
            "dqn",
            "seed=4",
            "steps<1e6",
            "return>1",
            "-pong",
            "algo.nothing=1",
            "algo=pp",
        ] {
            assert!(!fits(word), "{word}");
        }
        let error = Filter::parse("steps>many").unwrap_err().to_string();
        assert_eq!(error, "steps>many: a number is needed after >");
    }
}
