//! What `starling config explain` says about settings.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use starling_algos::AlgoSpec;
use starling_engine::{EngineError, RunConfig};
use starling_envs::EnvSpec;
use starling_settings::{Form, Setting};

use super::{Request, SettingsError, names, resolve};
use crate::presets;

#[cfg(test)]
mod tests;

/// Columns of the output.
const WIDTH: usize = 80;

/// More settings than this are listed, not explained.
const FEW: usize = 3;

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Question {
    /// The name of a setting or section, in any of the ways that users write it; all if there is
    /// none.
    pub key: Option<String>,
    /// The environment whose settings they are; those of all if there is none.
    pub env: Option<String>,
    /// The algorithm whose settings they are; those of all algorithms if neither it nor an
    /// environment is named.
    pub algo: Option<String>,
}

/// A setting as some algorithms or environments have it.
#[derive(Clone, Debug)]
struct Known {
    setting: Setting,
    /// Who has it, and its default there; empty for a setting of every run.
    owners: Vec<(&'static str, Value)>,
}

/// All settings that a question is about, and where their values come from.
struct Scope {
    known: Vec<Known>,
    env: Option<&'static EnvSpec>,
    algo: Option<&'static AlgoSpec>,
}

/// Text about one setting, about a section, or about all of them.
///
/// # Errors
/// When there is no such setting, environment or algorithm.
pub fn explain(question: &Question) -> Result<String, SettingsError> {
    crate::add_environments();
    let scope = Scope::of(question)?;
    let Some(key) = &question.key else {
        return Ok(listed(scope.known.iter().map(|known| &known.setting)));
    };
    let keys = scope.keys();
    let meant = names::meant(key, &keys);
    if meant.is_empty() {
        // The only name may be that of an environment.
        let env = starling_envs::registry::find(key).ok();
        if let (Some(env), None) = (env, &question.env) {
            return explain(&Question {
                key: None,
                env: Some(env.id.to_owned()),
                algo: question.algo.clone(),
            });
        }
        return Err(scope.unknown(key, &keys));
    }
    let found = |key: &String| {
        let matches = |known: &&Known| known.setting.key == *key;
        scope.known.iter().filter(matches).collect::<Vec<_>>()
    };
    if meant.len() > FEW {
        let found = meant.iter().filter_map(|key| found(key).first().copied());
        return Ok(listed(found.map(|known| &known.setting)));
    }
    let values = scope.values(question)?;
    let mut text = String::new();
    for known in meant.iter().flat_map(found) {
        if !text.is_empty() {
            text.push('\n');
        }
        text += &scope.one(known, values.as_ref());
        if known.setting.is_section() {
            let prefix = format!("{}.", known.setting.key);
            let inside = scope.known.iter().map(|known| &known.setting);
            text.push('\n');
            text += &listed(inside.filter(|setting| setting.key.starts_with(&prefix)));
        }
    }
    Ok(text)
}

/// Everything that is known about all settings, for tools: those of every run by `run`, those of
/// environments by `env` (by family, or by id where those of a family differ), those of algorithms by
/// `algo`.
pub fn schema() -> Value {
    let described = |settings: Vec<Setting>| -> Value {
        let described = settings.iter().map(|setting| {
            let mut described = json!(setting);
            described["other_names"] = names::elsewhere(&setting.key).into();
            described
        });
        described.collect()
    };
    let envs = kinds().into_iter();
    let envs = envs.map(|(name, env)| (name, env.schema().settings("env")));
    let algos = starling_algos::registry::all().into_iter();
    let algos = algos.map(|algo| (algo.name, algo.schema().settings("algo")));
    let by_name = |(name, settings): (&str, _)| (name.to_owned(), described(settings));
    json!({
        "run": described(RunConfig::run_settings()),
        "env": envs.map(by_name).collect::<Value>(),
        "algo": algos.map(by_name).collect::<Value>(),
    })
}

/// The environments that differ in their settings, one of each kind: by family, or by id where
/// those of a family differ.
pub(super) fn kinds() -> Vec<(&'static str, &'static EnvSpec)> {
    crate::add_environments();
    let mut families: Vec<(&str, Vec<&EnvSpec>)> = Vec::new();
    let schemes = starling_envs::registry::schemes().into_iter();
    let of_schemes = schemes.filter_map(|s| starling_envs::registry::find(s.pattern).ok());
    for env in starling_envs::registry::all().into_iter().chain(of_schemes) {
        match families
            .iter_mut()
            .find(|(family, _)| *family == env.family)
        {
            Some((_, envs)) => envs.push(env),
            None => families.push((env.family, vec![env])),
        }
    }
    let mut found = Vec::new();
    for (family, envs) in families {
        let first = envs[0];
        let schema = first.schema();
        match envs.iter().all(|env| env.schema() == schema) {
            true => found.push((family, first)),
            false => found.extend(envs.into_iter().map(|env| (env.id, env))),
        }
    }
    found
}

impl Scope {
    fn of(question: &Question) -> Result<Self, SettingsError> {
        let env = question.env.as_deref();
        let env = env.map(starling_envs::registry::find).transpose();
        let env = env.map_err(EngineError::from)?;
        let usual = env.map(|env| presets::default_algo(env.family));
        let algo = question.algo.as_deref().or(usual);
        let algo = algo.map(starling_algos::registry::find).transpose();
        let algo = algo.map_err(EngineError::from)?;
        Ok(Self::new(env, algo))
    }

    fn new(env: Option<&'static EnvSpec>, algo: Option<&'static AlgoSpec>) -> Self {
        let envs = env
            .map_or_else(kinds, |env| vec![(env.id, env)])
            .into_iter();
        let envs = envs.map(|(name, env)| (name, env.schema().settings("env")));
        let algos = algo.map_or_else(starling_algos::registry::all, |algo| vec![algo]);
        let algos = algos.into_iter();
        let algos = algos.map(|algo| (algo.name, algo.schema().settings("algo")));
        let [env_id, algo_name] = RunConfig::names_of_parts();
        let mut known = common(env_id);
        known.extend(grouped(envs));
        known.extend(common(algo_name));
        known.extend(grouped(algos));
        known.extend(common(RunConfig::run_settings()));
        Self { known, env, algo }
    }

    fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = Vec::new();
        for known in &self.known {
            if !keys.contains(&known.setting.key) {
                keys.push(known.setting.key.clone());
            }
        }
        keys
    }

    /// The settings of a run with the usual preset, if an environment is named.
    fn values(&self, question: &Question) -> Result<Option<Value>, SettingsError> {
        let Some(env) = self.env else {
            return Ok(None);
        };
        let request = Request {
            algo: question.algo.clone(),
            ..Request::new(env.id)
        };
        Ok(Some(resolve(&request)?.to_value()))
    }

    /// Says who has a setting that there is not here, or which may be meant.
    fn unknown(&self, key: &str, keys: &[String]) -> SettingsError {
        let everywhere = Self::new(None, None);
        let meant = names::meant(key, &everywhere.keys());
        let elsewhere = everywhere.known.iter();
        let elsewhere = elsewhere.filter(|known| meant.contains(&known.setting.key));
        let owners = elsewhere.flat_map(|known| &known.owners);
        let owners: Vec<&str> = owners.map(|(name, _)| *name).collect();
        let here = [self.env.map(|env| env.id), self.algo.map(|algo| algo.name)];
        let here: Vec<&str> = here.into_iter().flatten().collect();
        SettingsError::NotExplained {
            key: key.to_owned(),
            here: here.join(" with "),
            nearest: names::similar(key, keys),
            owners: owners.join(", "),
        }
    }

    /// Everything about one setting.
    fn one(&self, known: &Known, values: Option<&Value>) -> String {
        let setting = &known.setting;
        let mut page = Page::default();
        page.line(0, &setting.key);
        page.block("", 2, &setting.words);
        page.line(0, "");
        match setting.forms.as_slice() {
            [Form::Choice(_)] if setting.nullable => page.fact("type", "null or one of"),
            [Form::Choice(_)] => page.fact("type", "one of"),
            _ => page.fact("type", &setting.form()),
        }
        page.items(&setting.forms);
        if let Some(unit) = &setting.unit {
            page.fact("unit", unit);
        }
        if setting.is_numeric() {
            page.fact("range", &setting.allowed());
        }
        if !setting.is_section() || setting.nullable {
            page.fact("default", &defaults(known));
        }
        if let Some(value) = self.value(setting, values) {
            page.fact("value", &value);
        }
        let (whose, all, chosen) = match setting.key.starts_with("env.") {
            true => ("envs", kinds().len(), self.env.is_some()),
            false => {
                let all = starling_algos::registry::all().len();
                ("algorithms", all, self.algo.is_some())
            }
        };
        if !chosen && (1..all).contains(&known.owners.len()) {
            let owners: Vec<&str> = known.owners.iter().map(|(name, _)| *name).collect();
            page.fact(whose, &owners.join(", "));
        }
        let elsewhere = names::elsewhere(&setting.key);
        if !elsewhere.is_empty() {
            page.fact("elsewhere", &elsewhere.join(", "));
        }
        page.0
    }

    /// The value that the usual preset gives, and which preset that is.
    fn value(&self, setting: &Setting, values: Option<&Value>) -> Option<String> {
        let (env, algo) = (self.env?, self.algo?);
        let pointer = format!("/{}", setting.key.replace('.', "/"));
        let value = values?.pointer(&pointer)?;
        // The settings of a section have values of their own.
        if setting.is_section() && value.is_object() {
            return None;
        }
        let preset = presets::usual(env.family, algo.name).ok()?;
        let value = shown(value);
        Some(format!(
            "{value} for {} with preset {}",
            env.id, preset.name
        ))
    }
}

/// Text in lines of [`WIDTH`] columns.
#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, indent: usize, text: &str) {
        self.0 += format!("{:indent$}{text}", "").trim_end();
        self.0.push('\n');
    }

    /// The names that can be given, or those of the entries of a table.
    fn items(&mut self, forms: &[Form]) {
        let items = forms.iter().flat_map(|form| match form {
            Form::Choice(choices) => {
                let items = choices.iter().map(|choice| (&choice.name, &choice.words));
                items.collect()
            }
            Form::Table(entries) => {
                let items = entries.iter().map(|entry| (&entry.key, &entry.words));
                items.collect()
            }
            _ => Vec::new(),
        });
        let items: Vec<(&String, &String)> = items.collect();
        let width = items.iter().map(|(name, _)| name.chars().count()).max();
        let column = 15 + width.unwrap_or(0) + 2;
        for (name, words) in items {
            self.block(&format!("{:15}{name}", ""), column, words);
        }
    }

    /// A name, and what is said about it beside it.
    fn fact(&mut self, name: &str, words: &str) {
        self.block(&format!("  {name}"), 13, words);
    }

    /// Words from a column on, with something before the first line.
    fn block(&mut self, before: &str, column: usize, words: &str) {
        for (i, line) in wrapped(words, WIDTH - column).iter().enumerate() {
            let before = if i == 0 { before } else { "" };
            self.line(0, &format!("{before:<column$}{line}"));
        }
    }
}

/// The default that most have, and who has others; all of them where no majority has the same.
fn defaults(known: &Known) -> String {
    let mut values: Vec<(&Value, Vec<&str>)> = Vec::new();
    for (owner, value) in &known.owners {
        match values.iter_mut().find(|(seen, _)| *seen == value) {
            Some((_, owners)) => owners.push(owner),
            None => values.push((value, vec![owner])),
        }
    }
    values.sort_by_key(|(_, owners)| std::cmp::Reverse(owners.len()));
    let words: Vec<String> = values
        .iter()
        .map(
            |(value, owners)| match 2 * owners.len() > known.owners.len() {
                true => shown(value),
                false => format!("{} for {}", shown(value), owners.join(", ")),
            },
        )
        .collect();
    match (&known.setting.default, known.setting.nullable) {
        _ if !words.is_empty() => words.join("; "),
        (Value::Null, false) => "none".into(),
        (default, _) => shown(default),
    }
}

/// A value as it is written in a file.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(shown).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(table) => {
            let entries = table
                .iter()
                .map(|(key, value)| format!("{key}: {}", shown(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Settings of every run.
fn common(settings: Vec<Setting>) -> Vec<Known> {
    let known = settings.into_iter().map(|setting| Known {
        setting,
        owners: Vec::new(),
    });
    known.collect()
}

/// The settings of several owners, those that differ only in their defaults together. A setting
/// stands behind the one that it follows for its first owner.
fn grouped(owned: impl Iterator<Item = (&'static str, Vec<Setting>)>) -> Vec<Known> {
    let mut found: Vec<Known> = Vec::new();
    for (owner, settings) in owned {
        let mut place = 0;
        for setting in settings {
            let default = (owner, setting.default.clone());
            let same = |known: &Known| {
                let default = known.setting.default.clone();
                known.setting
                    == Setting {
                        default,
                        ..setting.clone()
                    }
            };
            match found.iter().position(same) {
                Some(known) => {
                    found[known].owners.push(default);
                    place = known + 1;
                }
                None => {
                    let owners = vec![default];
                    found.insert(place, Known { setting, owners });
                    place += 1;
                }
            }
        }
    }
    found
}

/// One line for each setting: its name and the beginning of its words.
fn listed<'a>(settings: impl Iterator<Item = &'a Setting>) -> String {
    let mut seen = BTreeSet::new();
    let settings = settings.filter(|setting| seen.insert(&setting.key));
    let settings: Vec<&Setting> = settings.collect();
    let width = settings.iter().map(|setting| setting.key.len()).max();
    let width = width.unwrap_or(0);
    let mut text = String::new();
    for setting in settings {
        let line = format!("{:<width$}  {}", setting.key, setting.words);
        let line: String = match line.chars().count() > WIDTH {
            true => line.chars().take(WIDTH - 1).chain(['…']).collect(),
            false => line,
        };
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Lines of at most `width` characters, broken between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(last) if line == 0 || line + 1 + word.chars().count() <= width => {
                if line > 0 {
                    last.push(' ');
                }
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
