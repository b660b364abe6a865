//! Explanations of mistakes on the command line, where clap's advice would be misleading.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::settings::names;
use crate::{algos, envs, presets};

/// The message for arguments that cannot be parsed, given without the program's name.
pub(super) fn explain(error: &Error, arguments: &[String]) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(ContextValue::Strings(texts)) => texts.first().map(String::as_str),
        _ => None,
    };
    let (ErrorKind::UnknownArgument, Some(option)) = (error.kind(), text(ContextKind::InvalidArg))
    else {
        return error.render().to_string().trim_end().to_owned();
    };
    let option = option.split([' ', '=']).next().unwrap_or(option);
    // Only these take settings and name an environment.
    let command = arguments.first().map(String::as_str);
    let trains = matches!(command, Some("train" | "config"));
    let known = (trains && option.starts_with('-')).then(|| known_elsewhere(option, arguments));
    let advice = match (known.flatten(), text(ContextKind::SuggestedArg)) {
        (Some(advice), _) => advice,
        (None, Some(similar)) => format!("; did you mean {similar}?"),
        (None, None) => String::new(),
    };
    let advice = match (command, advice.is_empty()) {
        (Some("resume"), true) => "; a run continues with the settings of its config.yaml, where \
                                   they can be changed"
            .to_owned(),
        _ => advice,
    };
    let help = match command {
        Some("config") => "config show --help".to_owned(),
        Some(command) if !command.starts_with('-') => format!("{command} --help"),
        _ => "--help".to_owned(),
    };
    let what = match option.starts_with('-') {
        true => "there is no option",
        false => "unexpected argument",
    };
    format!("error: {what} '{option}'{advice}\n\n`starling {help}` shows all options")
}

/// Advice for an option of other libraries, or for a setting written as an option.
fn known_elsewhere(option: &str, arguments: &[String]) -> Option<String> {
    let name = option.trim_start_matches('-').replace('-', "_");
    let advice = match name.as_str() {
        "e" | "env" | "env_id" | "env_name" | "environment" | "game" => {
            "the environment is given without an option: starling train CartPole-v1".to_owned()
        }
        "n" => "the number of steps is given as --steps N".to_owned(),
        _ => setting(&name, arguments)?,
    };
    Some(format!("; {advice}"))
}

/// How to give the setting that has this name, here or in another library.
fn setting(name: &str, arguments: &[String]) -> Option<String> {
    let (env, algo) = named(arguments);
    let meant = |algo: &str| {
        names::meant(name, &names::all(env, algo))
            .into_iter()
            .next()
    };
    let Some(key) = meant(algo) else {
        let mut others = algos::registry::all().into_iter();
        let elsewhere = others.any(|other| meant(other.name).is_some());
        return elsewhere.then(|| {
            format!(
                "{algo} has no such setting; `starling config show {env} --algo {algo}` shows all"
            )
        });
    };
    Some(match key.as_str() {
        "steps" => "the number of steps is given as --steps N".to_owned(),
        "envs" => "the number of environments is given as --num-envs N".to_owned(),
        "algo.name" => "the algorithm is given as --algo NAME".to_owned(),
        key => format!("settings are given as KEY=VALUE, without dashes: {key}=…"),
    })
}

/// The environment and the algorithm that the arguments name, or the usual ones.
fn named(arguments: &[String]) -> (&'static str, &'static str) {
    let value = |option: &str| {
        let after = arguments.iter().position(|argument| argument == option);
        let after = after.and_then(|place| arguments.get(place + 1));
        let mut joined = arguments
            .iter()
            .filter_map(|argument| argument.strip_prefix(option)?.strip_prefix('='));
        after.map(String::as_str).or_else(|| joined.next())
    };
    let mut envs = arguments
        .iter()
        .filter_map(|argument| envs::registry::find(argument).ok());
    let env = envs.next();
    let algo = value("--algo").or_else(|| value("algo"));
    let algo = algo.or_else(|| presets::algo_of(value("--preset")?));
    let algo = algo.and_then(|algo| algos::registry::find(algo).ok());
    let usual = presets::default_algo(env.map_or("", |env| env.family));
    (
        env.map_or("CartPole-v1", |env| env.id),
        algo.map_or(usual, |algo| algo.name),
    )
}
