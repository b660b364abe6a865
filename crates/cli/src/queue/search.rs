//! Settings that are sampled from ranges: at random, or by a tree-structured Parzen estimator (TPE).

use std::collections::BTreeMap;

use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use starling_envs::{Rng, stream};

use crate::settings;

/// A search over ranges of settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// The number of variants to try.
    pub trials: usize,
    /// How they are chosen.
    #[serde(default)]
    pub by: By,
    /// The seed of the search itself.
    #[serde(default)]
    pub seed: u64,
    /// The range of each setting, by its dotted name.
    pub space: BTreeMap<String, Dimension>,
}

/// How the settings of a trial are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Independently of each other.
    #[default]
    Random,
    /// Near the better ones of the trials that have ended (Bergstra et al. 2011).
    Tpe,
}

/// The range of a setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dimension {
    /// Uniform between two numbers.
    Linear([f64; 2]),
    /// Uniform in the logarithm between two positive numbers.
    Log([f64; 2]),
    /// A whole number between two, both included.
    Integer([i64; 2]),
    /// One of these values.
    Choice(Vec<Value>),
}

/// The chosen values, by the dotted names of their settings.
pub(super) type Chosen = BTreeMap<String, Value>;

/// Trials that TPE draws at random before it uses results.
const RANDOM_FIRST: usize = 10;

impl Search {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.trials == 0 || self.space.is_empty() {
            return Err("a search needs at least one trial and one setting in `space`".to_owned());
        }
        for (key, dimension) in &self.space {
            let fits = match dimension {
                Dimension::Linear([low, high]) => low.is_finite() && high.is_finite() && low < high,
                Dimension::Log([low, high]) => *low > 0.0 && high.is_finite() && low < high,
                Dimension::Integer([low, high]) => low < high && high - low < 1 << 53,
                Dimension::Choice(values) => !values.is_empty(),
            };
            if !fits {
                return Err(format!(
                    "search: the range of '{key}' must go from a smaller to a larger number \
                     (positive ones for `log`), or be a list of values for `choice`"
                ));
            }
            if settings::nested(key, Value::Null).is_none() {
                return Err(format!("search: '{key}' is not the name of a setting"));
            }
        }
        Ok(())
    }

    /// Values for a trial, drawn independently of all others.
    pub(super) fn random(&self, trial: usize) -> Chosen {
        let mut rng = stream(self.seed, "search", trial as u64);
        let space = self.space.iter();
        space
            .map(|(key, dimension)| (key.clone(), dimension.value(dimension.draw(&mut rng))))
            .collect()
    }

    /// Values for a trial after others ended with these scores; higher ones are better.
    pub(super) fn suggest(&self, trial: usize, ended: &[(Chosen, f64)]) -> Chosen {
        if self.by == By::Random || ended.len() < RANDOM_FIRST.min(self.trials / 2) {
            return self.random(trial);
        }
        let mut rng = stream(self.seed, "tpe", trial as u64);
        let mut chosen = Chosen::new();
        for (key, dimension) in &self.space {
            let results = ended.iter().filter_map(|(values, score)| {
                let place = dimension.place(values.get(key)?)?;
                Some((place, *score))
            });
            let place = dimension.suggest(results, &mut rng);
            let place = place.unwrap_or_else(|| dimension.draw(&mut rng));
            chosen.insert(key.clone(), dimension.value(place));
        }
        chosen
    }

    /// Chosen values as a tree of settings.
    pub(super) fn tree(&self, chosen: &Chosen) -> Value {
        let mut tree = Value::Object(Map::new());
        for (key, value) in chosen {
            // The names were checked.
            if let Some(nested) = settings::nested(key, value.clone()) {
                settings::merge(&mut tree, &nested);
            }
        }
        tree
    }
}

/// A dimension as TPE sees it: places on a line, or the numbers of choices.
impl Dimension {
    fn range(&self) -> (f64, f64) {
        match self {
            Self::Linear([low, high]) => (*low, *high),
            Self::Log([low, high]) => (low.ln(), high.ln()),
            // Half a unit on each side belongs to the first and the last number.
            Self::Integer([low, high]) => (*low as f64 - 0.5, *high as f64 + 0.5),
            Self::Choice(values) => (0.0, values.len() as f64),
        }
    }

    fn draw(&self, rng: &mut Rng) -> f64 {
        let (low, high) = self.range();
        let place = low + (high - low) * rng.random::<f64>();
        match self {
            Self::Choice(_) => place.floor(),
            _ => place,
        }
    }

    fn value(&self, place: f64) -> Value {
        match self {
            Self::Linear([low, high]) => json!(place.clamp(*low, *high)),
            Self::Log([low, high]) => json!(place.exp().clamp(*low, *high)),
            Self::Integer([low, high]) => json!((place.round() as i64).clamp(*low, *high)),
            Self::Choice(values) => values[(place as usize).min(values.len() - 1)].clone(),
        }
    }

    fn place(&self, value: &Value) -> Option<f64> {
        match self {
            Self::Linear(_) | Self::Integer(_) => value.as_f64(),
            Self::Log(_) => value.as_f64().map(f64::ln),
            Self::Choice(values) => {
                let at = values.iter().position(|one| one == value)?;
                Some(at as f64)
            }
        }
    }

    /// The next place to try; none if the estimator takes none of the results.
    fn suggest(&self, results: impl Iterator<Item = (f64, f64)>, rng: &mut Rng) -> Option<f64> {
        let (low, high) = self.range();
        // The estimator looks for the smallest value.
        macro_rules! ask {
            ($estimator:expr, $range:expr) => {{
                let mut optimizer = tpe::TpeOptimizer::new($estimator, $range.ok()?);
                for (place, score) in results {
                    optimizer.tell(place, -score).ok()?;
                }
                optimizer.ask(rng).ok()
            }};
        }
        match self {
            Self::Choice(values) => {
                ask!(
                    tpe::histogram_estimator(),
                    tpe::categorical_range(values.len())
                )
            }
            _ => ask!(tpe::parzen_estimator(), tpe::range(low, high)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(by: By) -> Search {
        let space = [
            ("algo.learning_rate", Dimension::Log([1e-5, 1e-1])),
            ("algo.gamma", Dimension::Linear([0.9, 1.0])),
            ("algo.epochs", Dimension::Integer([1, 10])),
            (
                "algo.net.torso",
                Dimension::Choice(vec![json!("a"), json!("b")]),
            ),
        ];
        Search {
            trials: 60,
            by,
            seed: 1,
            space: space.map(|(key, range)| (key.to_owned(), range)).into(),
        }
    }

    /// The best is at a rate of 1e-3, a γ of 0.99, 7 epochs and torso b.
    fn score(chosen: &Chosen) -> f64 {
        let number = |key: &str| chosen[key].as_f64().unwrap();
        let rate = (number("algo.learning_rate").log10() + 3.0).abs();
        let gamma = (number("algo.gamma") - 0.99).abs() * 20.0;
        let epochs = (number("algo.epochs") - 7.0).abs() / 4.0;
        let torso = if chosen["algo.net.torso"] == "b" {
            0.0
        } else {
            1.0
        };
        -(rate + gamma + epochs + torso)
    }

    fn mean_of_last(by: By) -> f64 {
        let search = search(by);
        let mut ended = Vec::new();
        for trial in 0..search.trials {
            let chosen = search.suggest(trial, &ended);
            let score = score(&chosen);
            ended.push((chosen, score));
        }
        let last: Vec<f64> = ended
            .iter()
            .rev()
            .take(20)
            .map(|(_, score)| *score)
            .collect();
        last.iter().sum::<f64>() / last.len() as f64
    }

    #[test]
    fn tpe_finds_better_settings_than_random_draws() {
        let (random, tpe) = (mean_of_last(By::Random), mean_of_last(By::Tpe));
        assert!(tpe > random + 0.7, "tpe {tpe}, random {random}");
    }

    #[test]
    fn values_stay_in_their_ranges_and_are_the_same_at_every_call() {
        let search = search(By::Random);
        for trial in 0..200 {
            let chosen = search.random(trial);
            assert_eq!(chosen, search.random(trial));
            let rate = chosen["algo.learning_rate"].as_f64().unwrap();
            assert!((1e-5..=1e-1).contains(&rate));
            assert!((1..=10).contains(&chosen["algo.epochs"].as_i64().unwrap()));
        }
        let tree = search.tree(&search.random(0));
        assert!(tree["algo"]["net"]["torso"].is_string());
    }
}
