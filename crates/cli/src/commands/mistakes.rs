//! Mistakes on the command line, explained in our own words where clap's advice would mislead.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::settings;

/// The message for arguments that cannot be parsed. `command` is the first argument.
pub(super) fn explain(error: &Error, command: Option<String>) -> String {
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
    let trains = matches!(command.as_deref(), Some("train" | "config"));
    let known = (trains && option.starts_with('-')).then(|| known_elsewhere(option));
    let advice = match (known.flatten(), text(ContextKind::SuggestedArg)) {
        (Some(advice), _) => advice,
        (None, Some(similar)) => format!("; did you mean {similar}?"),
        (None, None) => String::new(),
    };
    let advice = match (command.as_deref(), advice.is_empty()) {
        (Some("resume"), true) => "; a run continues with the settings of its config.yaml, where \
                                   they can be changed"
            .to_owned(),
        _ => advice,
    };
    let help = match command {
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
fn known_elsewhere(option: &str) -> Option<String> {
    let name = option.trim_start_matches('-').replace('-', "_");
    let advice = match name.as_str() {
        "e" | "env" | "env_id" | "env_name" | "environment" | "game" => {
            "the environment is given without an option: starling train CartPole-v1".to_owned()
        }
        "n" => "the number of steps is given as --steps N".to_owned(),
        _ => match settings::setting_called(&name)?.as_str() {
            "steps" => "the number of steps is given as --steps N".to_owned(),
            "envs" => "the number of environments is given as --num-envs N".to_owned(),
            "algo.name" => "the algorithm is given as --algo NAME".to_owned(),
            key => format!("settings are given as KEY=VALUE, without dashes: {key}=…"),
        },
    };
    Some(format!("; {advice}"))
}
