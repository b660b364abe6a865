//! What is known about settings: name, words, form, unit, range and default of each.
//!
//! All of it comes from the structures that hold the settings, by `#[derive(JsonSchema)]`: words
//! are the doc comments of the fields, ranges and units are attributes:
//!
//! ```
//! # use schemars::JsonSchema;
//! # use serde::{Deserialize, Serialize};
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields, default)]
//! struct Ice {
//!     /// Cells along each side.
//!     #[schemars(range(min = 2, max = 50), extend("unit" = "cells"))]
//!     side: u8,
//!     /// Probability of a step in a random direction.
//!     #[schemars(range(min = 0.0, max = 1.0))]
//!     slip: f64,
//!     /// What the last step brings.
//!     #[schemars(extend("exclusiveMinimum" = 0.0))]
//!     prize: f64,
//! }
//! # impl Default for Ice {
//! #     fn default() -> Self { Self { side: 5, slip: 0.2, prize: 1.0 } }
//! # }
//! let schema = starling_settings::Schema::of::<Ice>();
//! let sides = &schema.settings("env")[0];
//! assert_eq!((&*sides.key, sides.range.to_string()), ("env.side", "between 2 and 50".into()));
//! ```
//!
//! A range also holds for the numbers inside of a value (the items of a list, both ends of a
//! schedule) that have none of their own. A number that may be anything finite says so:
//! `#[schemars(extend("unbounded" = true))]`.

use std::any::TypeId;
use std::collections::HashMap;
use std::fmt;
use std::sync::{PoisonError, RwLock};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::ser::{Serialize, SerializeStruct as _, Serializer};
use serde_json::{Map, Value};

use crate::{ConfigError, join, merge, table};

/// The settings of one structure, or of several side by side in one table.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    parts: Vec<&'static Value>,
    defaults: Value,
}

/// One setting, or a section of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Dotted name.
    pub key: String,
    /// What it means.
    pub words: String,
    /// The forms that a value can have.
    pub forms: Vec<Form>,
    /// Whether it can be null.
    pub nullable: bool,
    /// What it is counted or measured in.
    pub unit: Option<String>,
    /// What its numbers must be within.
    pub range: Range,
    /// Its default. Within a section that is null by default, the one that it has as soon as the
    /// section is given.
    pub default: Value,
}

/// A form of a value.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// True or false.
    Bool,
    /// A whole number.
    Integer,
    /// Any number.
    Float,
    /// One of some names.
    Choice(Vec<Choice>),
    /// Any text.
    Text,
    /// A list of values of one form.
    List(Box<Form>),
    /// A table that is given as a whole, with these entries; without any, its entries are not known
    /// here.
    Table(Vec<Setting>),
    /// Settings of their own, whose names begin with this one's.
    Section,
}

/// One of the names that a setting can have as its value.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Choice {
    /// The name.
    pub name: String,
    /// What it stands for.
    pub words: String,
}

/// What a number must be within.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Range {
    /// The smallest allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum: Option<f64>,
    /// What it must be above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_minimum: Option<f64>,
    /// The largest allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum: Option<f64>,
    /// What it must be below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_maximum: Option<f64>,
    /// Whether any finite number is meant to be allowed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unbounded: bool,
}

/// A number that is out of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// Dotted name of the setting.
    pub key: String,
    /// What was given.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
}

impl Schema {
    /// The settings of a structure, with the defaults of that structure.
    pub fn of<C: JsonSchema + Serialize + Default + 'static>() -> Self {
        Self::over(&C::default())
    }

    /// The settings of a structure, with other defaults than those of the structure.
    pub fn over<C: JsonSchema + Serialize + 'static>(defaults: &C) -> Self {
        Self {
            parts: vec![description::<C>()],
            defaults: table(defaults),
        }
    }

    /// No settings at all.
    pub fn empty() -> Self {
        Self {
            parts: Vec::new(),
            defaults: Value::Object(Map::new()),
        }
    }

    /// These settings and then others, in one table.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.parts.extend(others.parts);
        merge(&mut self.defaults, &others.defaults);
        self
    }

    /// The same settings, each with null as its default: for defaults that depend on something
    /// else.
    #[must_use]
    pub fn without_defaults(mut self) -> Self {
        for default in self.defaults.as_object_mut().into_iter().flatten() {
            *default.1 = Value::Null;
        }
        self
    }

    /// All settings with their defaults, as a table.
    pub fn defaults(&self) -> &Value {
        &self.defaults
    }

    /// All settings. Sections stand before the settings in them. `section` is the place of the
    /// table, such as `algo`.
    pub fn settings(&self, section: &str) -> Vec<Setting> {
        let mut found = Vec::new();
        for part in &self.parts {
            list(section, part, Some(&self.defaults), &mut found);
        }
        found
    }

    /// Refuses a name that no setting has.
    ///
    /// # Errors
    /// When there is one; the error has the nearest that exist.
    pub fn check_names(&self, section: &str, given: &Value) -> Result<(), ConfigError> {
        let properties = self.parts.iter().flat_map(|part| properties(part));
        check_names(section, given, &properties.collect())
    }

    /// Refuses a number that is out of its range. Names that no setting has are ignored, and so are
    /// values of a wrong form.
    ///
    /// # Errors
    /// When there is one; the error names the setting, the value and what is allowed.
    pub fn check_ranges(&self, section: &str, given: &Value) -> Result<(), OutOfRange> {
        let mut parts = self.parts.iter();
        parts.try_for_each(|part| check_ranges(section, given, part, Range::default()))
    }
}

impl Setting {
    /// Its form in a few words: `float or null`.
    pub fn form(&self) -> String {
        let mut forms: Vec<String> = self.forms.iter().map(Form::to_string).collect();
        if self.nullable {
            forms.push("null".into());
        }
        forms.join(" or ")
    }

    /// What its numbers may be, in words; empty if it has none.
    pub fn allowed(&self) -> String {
        let in_list = self.forms.iter().any(|form| matches!(form, Form::List(_)));
        match self.is_numeric() {
            false => String::new(),
            true if in_list && self.range.is_open() => "any finite numbers".into(),
            true if in_list => format!("each {}", self.range),
            true => self.range.to_string(),
        }
    }

    /// Whether it only holds other settings.
    pub fn is_section(&self) -> bool {
        self.forms.contains(&Form::Section)
    }

    /// Whether a number can be given, alone or in a list.
    pub fn is_numeric(&self) -> bool {
        self.forms.iter().any(|form| match form {
            Form::List(items) => matches!(**items, Form::Integer | Form::Float),
            form => matches!(form, Form::Integer | Form::Float),
        })
    }

    /// The names that can be given, if it has some.
    pub fn choices(&self) -> &[Choice] {
        let choices = self.forms.iter().find_map(|form| match form {
            Form::Choice(choices) => Some(choices.as_slice()),
            _ => None,
        });
        choices.unwrap_or_default()
    }

    /// All values that can be given, where they can be listed.
    pub fn values(&self) -> Vec<String> {
        let mut values: Vec<String> = match self.forms.as_slice() {
            [Form::Bool] => vec!["true".into(), "false".into()],
            [Form::Choice(choices)] => choices.iter().map(|choice| choice.name.clone()).collect(),
            _ => return Vec::new(),
        };
        if self.nullable {
            values.push("null".into());
        }
        values
    }
}

impl Serialize for Setting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Setting", 9)?;
        fields.serialize_field("key", &self.key)?;
        fields.serialize_field("words", &self.words)?;
        fields.serialize_field("type", &self.form())?;
        fields.serialize_field("forms", &self.forms)?;
        fields.serialize_field("nullable", &self.nullable)?;
        fields.serialize_field("unit", &self.unit)?;
        fields.serialize_field("allowed", &self.allowed())?;
        fields.serialize_field("range", &self.range)?;
        fields.serialize_field("default", &self.default)?;
        fields.end()
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Bool => f.write_str("true or false"),
            Form::Integer => f.write_str("integer"),
            Form::Float => f.write_str("float"),
            Form::Choice(choices) => {
                let names: Vec<&str> = choices.iter().map(|choice| &*choice.name).collect();
                f.write_str(&names.join(", "))
            }
            Form::Text => f.write_str("text"),
            Form::List(items) => write!(f, "list of {items}s"),
            Form::Table(entries) => {
                let names: Vec<&str> = entries.iter().map(|entry| &*entry.key).collect();
                match names.as_slice() {
                    [] => f.write_str("table"),
                    names => write!(f, "{{{}}}", names.join(", ")),
                }
            }
            Form::Section => f.write_str("section"),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = match (self.minimum, self.exclusive_minimum) {
            (_, Some(low)) => Some(format!("above {low}")),
            (Some(0.0), None) => Some("0 or more".into()),
            (low, None) => low.map(|low| format!("at least {low}")),
        };
        let high = match (self.maximum, self.exclusive_maximum) {
            (_, Some(high)) => Some(format!("below {high}")),
            (Some(0.0), None) => Some("0 or less".into()),
            (high, None) => high.map(|high| format!("at most {high}")),
        };
        match (self.minimum, self.maximum, low, high) {
            (Some(low), Some(high), _, _) => write!(f, "between {low} and {high}"),
            (_, _, Some(low), Some(high)) => write!(f, "{low} and {high}"),
            (_, _, Some(one), None) | (_, _, None, Some(one)) => f.write_str(&one),
            (_, _, None, None) => f.write_str("any finite number"),
        }
    }
}

impl Range {
    /// What a description says, if it says anything.
    fn stated(schema: &Value) -> Option<Self> {
        let bound = |name| schema.get(name).and_then(Value::as_f64);
        let range = Self {
            minimum: bound("minimum"),
            exclusive_minimum: bound("exclusiveMinimum"),
            maximum: bound("maximum"),
            exclusive_maximum: bound("exclusiveMaximum"),
            unbounded: schema.get("unbounded").is_some(),
        };
        (range != Self::default()).then_some(range)
    }

    /// Whether a number is within it.
    pub fn contains(&self, value: f64) -> bool {
        value.is_finite()
            && self.minimum.is_none_or(|low| value >= low)
            && self.exclusive_minimum.is_none_or(|low| value > low)
            && self.maximum.is_none_or(|high| value <= high)
            && self.exclusive_maximum.is_none_or(|high| value < high)
    }

    /// Whether it allows every finite number, on purpose or not.
    pub fn is_open(&self) -> bool {
        let bounded = Self {
            unbounded: false,
            ..*self
        };
        bounded == Self::default()
    }
}

/// The JSON schema of a structure, without references to other schemas; made once per structure.
fn description<C: JsonSchema + 'static>() -> &'static Value {
    static KNOWN: RwLock<Option<HashMap<TypeId, &'static Value>>> = RwLock::new(None);
    let id = TypeId::of::<C>();
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.as_ref().and_then(|known| known.get(&id)) {
        return known;
    }
    drop(known);
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<C>();
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    known
        .entry(id)
        .or_insert_with(|| Box::leak(Box::new(schema.to_value())))
}

type Properties<'a> = Vec<(&'a String, &'a Value)>;

fn properties(schema: &Value) -> Properties<'_> {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.into_iter().flatten().collect()
}

/// A schema without the alternatives that it consists of: `null` is none of them.
fn alternatives(schema: &Value) -> Vec<&Value> {
    match schema.get("anyOf").and_then(Value::as_array) {
        Some(parts) => parts.iter().flat_map(alternatives).collect(),
        None if schema.get("type").is_some_and(|kind| kind == "null") => Vec::new(),
        None => vec![schema],
    }
}

fn is_nullable(schema: &Value) -> bool {
    let of_type = match schema.get("type") {
        Some(Value::Array(types)) => types.iter().any(|name| name == "null"),
        Some(name) => name == "null",
        None => false,
    };
    let parts = schema.get("anyOf").and_then(Value::as_array);
    of_type || parts.into_iter().flatten().any(is_nullable)
}

/// The form of a schema that has no alternatives but null.
fn form(schema: &Value, alone: bool) -> Form {
    if let Some(parts) = schema.get("oneOf").and_then(Value::as_array) {
        let choice = |part: &Value| {
            Some(Choice {
                name: part.get("const")?.as_str()?.to_owned(),
                words: words(part),
            })
        };
        return Form::Choice(parts.iter().filter_map(choice).collect());
    }
    if let Some(names) = schema.get("enum").and_then(Value::as_array) {
        let choice = |name: &Value| {
            Some(Choice {
                name: name.as_str()?.to_owned(),
                words: String::new(),
            })
        };
        return Form::Choice(names.iter().filter_map(choice).collect());
    }
    if let Some(name) = schema.get("const").and_then(Value::as_str) {
        return Form::Choice(vec![Choice {
            name: name.to_owned(),
            words: words(schema),
        }]);
    }
    let kind = match schema.get("type") {
        Some(Value::Array(types)) => types.iter().find(|name| *name != "null"),
        kind => kind,
    };
    match kind.and_then(Value::as_str).unwrap_or_default() {
        "boolean" => Form::Bool,
        "integer" => Form::Integer,
        "number" => Form::Float,
        "array" => {
            let items = schema.get("items").unwrap_or(&Value::Null);
            Form::List(Box::new(form(items, false)))
        }
        "object" if alone && !properties(schema).is_empty() => Form::Section,
        "object" => {
            let mut entries = Vec::new();
            list("", schema, None, &mut entries);
            Form::Table(entries)
        }
        _ => Form::Text,
    }
}

/// The first range that is stated for the numbers of a schema.
fn range(schema: &Value) -> Range {
    let inside = || {
        let items = alternatives(schema).into_iter().flat_map(|part| {
            let items = part.get("items").and_then(Range::stated);
            [Range::stated(part), items]
        });
        items.flatten().next()
    };
    Range::stated(schema).or_else(inside).unwrap_or_default()
}

/// Doc comments are broken into lines and may refer to items of the code.
fn words(schema: &Value) -> String {
    let text = schema.get("description").and_then(Value::as_str);
    let lines: Vec<&str> = text.unwrap_or_default().split_whitespace().collect();
    lines.join(" ").replace("[`", "`").replace("`]", "`")
}

/// What the end of a setting's name says about its unit.
const UNITS: &[(&str, &str)] = &[
    ("steps", "steps"),
    ("updates", "updates"),
    ("episodes", "episodes"),
    ("frames", "frames"),
    ("envs", "environments"),
    ("threads", "threads"),
    ("bytes", "bytes"),
    ("minutes", "minutes"),
    ("s", "seconds"),
];

fn unit(name: &str, schema: &Value, forms: &[Form]) -> Option<String> {
    if let Some(unit) = schema.get("unit").and_then(Value::as_str) {
        return Some(unit.to_owned());
    }
    // `pin_threads` is not a number of threads.
    if !forms
        .iter()
        .any(|form| matches!(form, Form::Integer | Form::Float))
    {
        return None;
    }
    let last = name.rsplit('_').next()?;
    let found = UNITS.iter().find(|(end, _)| *end == last)?;
    Some(found.1.to_owned())
}

/// Adds the settings of a table. `defaults` is that table; none where the section is null.
fn list(section: &str, schema: &Value, defaults: Option<&Value>, found: &mut Vec<Setting>) {
    for (name, schema) in properties(schema) {
        let parts = alternatives(schema);
        let alone = parts.len() == 1;
        let forms: Vec<Form> = parts.iter().map(|part| form(part, alone)).collect();
        let given = defaults.map(|defaults| defaults.get(name));
        let default = given.unwrap_or_else(|| schema.get("default"));
        let nullable = is_nullable(schema) || default == Some(&Value::Null);
        let default = default.cloned().unwrap_or_default();
        let key = join(section, name);
        let is_section = forms.contains(&Form::Section);
        found.push(Setting {
            key: key.clone(),
            words: words(schema),
            nullable,
            unit: unit(name, schema, &forms),
            range: range(schema),
            default: default.clone(),
            forms,
        });
        if is_section {
            let defaults = Some(&default).filter(|default| default.is_object());
            parts
                .iter()
                .for_each(|part| list(&key, part, defaults, found));
        }
    }
}

fn check_names(section: &str, given: &Value, known: &Properties<'_>) -> Result<(), ConfigError> {
    for (name, value) in given.as_object().into_iter().flatten() {
        let path = join(section, name);
        let Some((_, schema)) = known.iter().find(|(known, _)| *known == name) else {
            return Err(ConfigError::Unknown {
                key: path,
                nearest: nearest(name, known.iter().map(|(known, _)| known.as_str()))
                    .map(|near| join(section, near))
                    .collect(),
                available: Vec::new(),
            });
        };
        // Whether a table fits where there are other forms, serde says.
        if let [part] = alternatives(schema).as_slice() {
            let inside = properties(part);
            if !inside.is_empty() {
                check_names(&path, value, &inside)?;
            }
        }
    }
    Ok(())
}

/// The names that are spelt most like one, at most three.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    let mut nearest: Vec<(f64, &str)> = known
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .filter(|(similarity, _)| *similarity > 0.75)
        .collect();
    nearest.sort_by(|a, b| b.0.total_cmp(&a.0));
    nearest.into_iter().take(3).map(|(_, name)| name)
}

/// `outer` is the range of what holds this value.
fn check_ranges(key: &str, given: &Value, schema: &Value, outer: Range) -> Result<(), OutOfRange> {
    let nullable = is_nullable(schema);
    let outer = Range::stated(schema).unwrap_or(outer);
    for part in alternatives(schema) {
        let range = Range::stated(part).unwrap_or(outer);
        match given {
            // What is not finite in a structure is null in its table.
            Value::Number(_) | Value::Null => {
                let numeric = matches!(form(part, true), Form::Integer | Form::Float);
                let allowed = match given.as_f64() {
                    // A float of 32 bits has less room.
                    Some(value) if part.get("format").is_some_and(|name| name == "float") => {
                        (value as f32).is_finite() && range.contains(value)
                    }
                    Some(value) => range.contains(value),
                    None => nullable,
                };
                if numeric && !allowed {
                    let or_null = if nullable { ", or null" } else { "" };
                    return Err(OutOfRange {
                        key: key.to_owned(),
                        value: shown(given),
                        allowed: format!("{range}{or_null}"),
                    });
                }
            }
            Value::Array(items) => {
                let Some(schema) = part.get("items") else {
                    continue;
                };
                for (place, item) in items.iter().enumerate() {
                    check_ranges(&format!("{key}[{place}]"), item, schema, range)?;
                }
            }
            Value::Object(table) => {
                for (name, schema) in properties(part) {
                    if let Some(value) = table.get(name) {
                        check_ranges(&join(key, name), value, schema, range)?;
                    }
                }
            }
            Value::Bool(_) | Value::String(_) => {}
        }
    }
    Ok(())
}

/// A value as a user would write it: 2 and not 2.0.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
