//! Which runs a sweep consists of.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Asha, By, QueueError, Search};
use crate::settings::{self, Request};

/// What a user writes into the file of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sweep {
    /// Settings of all runs. `env`, `algo` and `preset` name what `train` takes as arguments.
    pub base: Map<String, Value>,
    /// Every variant of a level is combined with every variant of the other levels.
    pub levels: Vec<Level>,
    /// Settings that are drawn from ranges, in addition to the levels.
    pub search: Option<Search>,
    /// Every variant is run with each of these seeds.
    pub seeds: Seeds,
    /// Ends the worse runs early.
    pub prune: Option<Asha>,
    /// Compares the last evaluation (`eval.every_steps`) instead of the last training episodes.
    pub by_evaluation: bool,
}

impl Sweep {
    /// Reads the file of a sweep.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_yaml(text: &str) -> Result<Self, String> {
        let tree: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        // 1e6 is a whole number here, as in all files of settings.
        let tree = settings::with_whole_numbers(tree);
        serde_json::from_value(tree).map_err(|error| error.to_string())
    }

    /// The environments that it names.
    pub fn envs(&self) -> BTreeSet<String> {
        let mut envs = BTreeSet::new();
        let mut look = |key: &str, value: &Value| {
            let values = match value {
                Value::Array(values) => values.as_slice(),
                one => std::slice::from_ref(one),
            };
            for value in values {
                let tree = settings::nested(key, value.clone());
                let id = tree
                    .as_ref()
                    .and_then(|tree| tree.pointer("/env/id")?.as_str());
                envs.extend(id.map(str::to_owned));
            }
        };
        let mut tables = vec![&self.base];
        for level in &self.levels {
            match level {
                Level::Variants(variants) => tables.extend(variants),
                Level::Grid(settings) => tables.push(settings),
            }
        }
        for (key, value) in tables.into_iter().flatten() {
            look(key, value);
        }
        envs
    }
}

/// One level of variants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Level {
    /// Variants one by one: settings that belong together, and optionally a `name`.
    Variants(Vec<Map<String, Value>>),
    /// A list of values for each setting, all combined.
    Grid(Map<String, Value>),
}

/// Seeds as a list, or as text: `1..5` is 1, 2, 3, 4, 5.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Vec<u64>")]
pub struct Seeds(pub Vec<u64>);

impl Default for Seeds {
    fn default() -> Self {
        Self(vec![1])
    }
}

impl From<Seeds> for Vec<u64> {
    fn from(seeds: Seeds) -> Self {
        seeds.0
    }
}

impl TryFrom<Value> for Seeds {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match &value {
            Value::String(text) => text.parse(),
            Value::Number(number) => number.to_string().parse(),
            Value::Array(items) => {
                let text: Vec<String> = items.iter().map(Value::to_string).collect();
                text.join(",").parse()
            }
            _ => Err(ALLOWED_SEEDS.to_owned()),
        }
    }
}

const ALLOWED_SEEDS: &str = "allowed: whole numbers such as 3, 1..5 or 1,2,7, each once";
const MOST_SEEDS: u64 = 10_000;

impl std::str::FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut seeds = Vec::new();
        let whole = |text: &str| text.trim().parse::<u64>().map_err(|_| ALLOWED_SEEDS);
        for part in text.split(',') {
            let (first, last) = match part.split_once("..") {
                Some((first, last)) => (
                    whole(first)?,
                    whole(last.strip_prefix('=').unwrap_or(last))?,
                ),
                None => (whole(part)?, whole(part)?),
            };
            if last < first || last - first >= MOST_SEEDS {
                return Err(ALLOWED_SEEDS.to_owned());
            }
            seeds.extend(first..=last);
        }
        let unique: BTreeSet<u64> = seeds.iter().copied().collect();
        match unique.len() == seeds.len() {
            true => Ok(Self(seeds)),
            false => Err(ALLOWED_SEEDS.to_owned()),
        }
    }
}

/// Settings with a name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// The settings in which it differs, or what the user calls it.
    pub name: String,
    /// The preset that the settings are applied to, if not the usual one.
    pub preset: Option<String>,
    /// All its settings, as `--config` reads them.
    pub settings: Value,
}

/// One run: a variant with a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Trial {
    /// The variant's place in the plan.
    pub variant: usize,
    /// The seed.
    pub seed: u64,
}

/// All runs of a queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The variants. Those that a search by TPE chooses are known when they begin, and have no
    /// settings of the search until then.
    pub variants: Vec<Variant>,
    /// The seeds of each.
    pub seeds: Vec<u64>,
    /// The search that the variants are from.
    pub search: Option<Search>,
    /// Ends the worse runs early.
    pub prune: Option<Asha>,
    /// Compares evaluations instead of training episodes.
    pub by_evaluation: bool,
}

impl Plan {
    /// Combines the levels, and checks the settings of every variant.
    ///
    /// # Errors
    /// When the file asks for something that does not exist or cannot be combined.
    pub fn of(sweep: &Sweep) -> Result<Self, QueueError> {
        let mut variants = vec![Overlay::default()];
        for (i, level) in sweep.levels.iter().enumerate() {
            let choices = level.choices(i + 1)?;
            let combined = variants.iter().flat_map(|before| {
                choices
                    .iter()
                    .map(|choice| before.with(choice))
                    .collect::<Vec<_>>()
            });
            variants = combined.collect();
        }
        if let Some(search) = &sweep.search {
            search.check().map_err(QueueError::Plan)?;
            if !sweep.levels.is_empty() && search.by == By::Tpe {
                let text = "a search by tpe learns from one set of runs: it takes no levels";
                return Err(QueueError::Plan(text.to_owned()));
            }
            let drawn = (0..search.trials).map(|i| Overlay::drawn(search, i));
            let drawn: Vec<Overlay> = drawn.collect();
            let combined = variants.iter().flat_map(|before| {
                drawn
                    .iter()
                    .map(|choice| before.with(choice))
                    .collect::<Vec<_>>()
            });
            variants = combined.collect();
        }
        let base = Overlay {
            names: Vec::new(),
            ..Overlay::of(&sweep.base)?
        };
        let mut names = BTreeSet::new();
        let mut plan = Self {
            variants: Vec::new(),
            seeds: sweep.seeds.0.clone(),
            search: sweep.search.clone(),
            prune: sweep.prune.clone(),
            by_evaluation: sweep.by_evaluation,
        };
        for variant in variants {
            let variant = base.with(&variant).into_variant();
            if !names.insert(variant.name.clone()) {
                return Err(QueueError::Plan(format!(
                    "two variants are called '{}'; give them a `name`",
                    variant.name
                )));
            }
            plan.variants.push(variant);
        }
        if plan.seeds.is_empty() || plan.variants.is_empty() {
            return Err(QueueError::Plan("there are no runs to make".to_owned()));
        }
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), QueueError> {
        if let Some(prune) = &self.prune {
            prune.check().map_err(QueueError::Plan)?;
        }
        let mut envs = BTreeSet::new();
        for (i, variant) in self.variants.iter().enumerate() {
            let mut tree = variant.settings.clone();
            if let Some(search) = &self.search {
                // What TPE chooses is not known yet; other values of the same ranges are checked.
                settings::merge(&mut tree, &search.tree(&search.random(i)));
            }
            let config = self.resolve(variant, tree)?;
            let steps = config.settings.steps;
            envs.insert(config.env_id);
            let reported = config.settings.log_every_steps;
            if let Some(first) = self.prune.as_ref().and_then(|prune| prune.rungs.first())
                && *first < reported
            {
                return Err(QueueError::Plan(format!(
                    "the first rung is at {first} steps, but scores are written every {reported} \
                     steps; lower log_every_steps"
                )));
            }
            if let Some(last) = self.prune.as_ref().and_then(|prune| prune.rungs.last())
                && *last >= steps
            {
                return Err(QueueError::Plan(format!(
                    "the last rung is at {last} steps, but '{}' has only {steps} steps",
                    variant.name
                )));
            }
        }
        let compares = self.prune.is_some() || self.search.is_some();
        match compares && envs.len() > 1 {
            true => Err(QueueError::Plan(
                "`prune` and `search` compare scores, so all runs need the same environment"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }

    /// The settings of a run of a variant, checked.
    fn resolve(&self, variant: &Variant, tree: Value) -> Result<crate::RunConfig, QueueError> {
        let request = Request {
            preset: variant.preset.clone(),
            ..Request::default()
        };
        settings::resolve_file(&request, tree).map_err(|source| QueueError::Settings {
            variant: variant.name.clone(),
            source: Box::new(source),
        })
    }

    /// All runs: the first seed of every variant, then the second, ….
    pub fn trials(&self) -> Vec<Trial> {
        let of_seed =
            |&seed: &u64| (0..self.variants.len()).map(move |variant| Trial { variant, seed });
        self.seeds.iter().flat_map(of_seed).collect()
    }

    /// What a run is called.
    pub fn name_of(&self, trial: Trial) -> String {
        format!("{}, seed {}", self.variants[trial.variant].name, trial.seed)
    }
}

impl Level {
    fn choices(&self, number: usize) -> Result<Vec<Overlay>, QueueError> {
        let choices: Vec<Overlay> = match self {
            Self::Variants(variants) => {
                variants.iter().map(Overlay::of).collect::<Result<_, _>>()?
            }
            Self::Grid(settings) => {
                let mut combined = vec![Overlay::default()];
                for (key, values) in settings {
                    let Value::Array(values) = values else {
                        return Err(QueueError::Plan(format!(
                            "level {number}: '{key}' needs a list of values; for settings that \
                             belong together, write a list of variants"
                        )));
                    };
                    let choices = values
                        .iter()
                        .map(|value| Overlay::of(&Map::from_iter([(key.clone(), value.clone())])));
                    let choices = choices.collect::<Result<Vec<_>, _>>()?;
                    let each = combined.iter().flat_map(|before: &Overlay| {
                        choices
                            .iter()
                            .map(|choice| before.with(choice))
                            .collect::<Vec<_>>()
                    });
                    combined = each.collect();
                }
                combined
            }
        };
        match choices.is_empty() {
            true => Err(QueueError::Plan(format!("level {number} has no variants"))),
            false => Ok(choices),
        }
    }
}

/// Settings that are laid over others.
#[derive(Clone, Debug, Default)]
struct Overlay {
    names: Vec<String>,
    preset: Option<String>,
    settings: Value,
}

impl Overlay {
    /// From settings by their dotted names or in tables, a `preset` and a `name`.
    fn of(settings: &Map<String, Value>) -> Result<Self, QueueError> {
        let mut overlay = Self {
            settings: Value::Object(Map::new()),
            ..Self::default()
        };
        let text = |key: &str, value: &Value| match value {
            Value::String(text) => Ok(text.clone()),
            _ => Err(QueueError::Plan(format!("'{key}' needs a text"))),
        };
        let mut name = None;
        for (key, value) in settings {
            match key.as_str() {
                "name" => name = Some(text(key, value)?),
                "preset" => overlay.preset = Some(text(key, value)?),
                "seed" | "seeds" => {
                    return Err(QueueError::Plan(
                        "seeds are given once, by `seeds:` beside `base:`".to_owned(),
                    ));
                }
                _ => {
                    let tree = settings::nested(key, value.clone()).ok_or_else(|| {
                        QueueError::Plan(format!("'{key}' is not the name of a setting"))
                    })?;
                    settings::merge(&mut overlay.settings, &tree);
                }
            }
            if !matches!(key.as_str(), "name") {
                overlay.names.push(label(key, value));
            }
        }
        if let Some(name) = name {
            overlay.names = vec![name];
        }
        Ok(overlay)
    }

    /// The settings of a trial of a search.
    fn drawn(search: &Search, trial: usize) -> Self {
        let mut overlay = Self {
            names: vec![format!("trial {}", trial + 1)],
            settings: Value::Object(Map::new()),
            ..Self::default()
        };
        if search.by == By::Random {
            settings::merge(&mut overlay.settings, &search.tree(&search.random(trial)));
        }
        overlay
    }

    fn with(&self, above: &Self) -> Self {
        let mut both = self.clone();
        if both.settings.is_null() {
            both.settings = Value::Object(Map::new());
        }
        both.names.extend(above.names.iter().cloned());
        both.preset = above.preset.clone().or(both.preset);
        if above.settings.is_object() {
            settings::merge(&mut both.settings, &above.settings);
        }
        both
    }

    fn into_variant(self) -> Variant {
        Variant {
            name: match self.names.is_empty() {
                true => "run".to_owned(),
                false => self.names.join(" "),
            },
            preset: self.preset,
            settings: self.settings,
        }
    }
}

/// `algo.learning_rate: 0.001` as `learning_rate=0.001`; `env: CartPole-v1` as `CartPole-v1`.
fn label(key: &str, value: &Value) -> String {
    let value = match value {
        Value::String(text) => text.clone(),
        other => other.to_string().replace('"', ""),
    };
    match key {
        "env" | "env.id" | "algo" | "algo.name" | "preset" => value,
        _ => format!("{}={value}", key.rsplit('.').next().unwrap_or(key)),
    }
}
