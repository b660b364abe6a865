//! One file per subcommand.

use std::process::ExitCode;

use starling::EngineError;
use starling::settings::SettingsError;

pub(crate) mod bench;
pub(crate) mod check_env;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod list;
pub(crate) mod plot;
pub(crate) mod resume;
pub(crate) mod train;

/// 2 for what the user wrote, 1 for everything else.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    let engine = match error.downcast_ref::<SettingsError>() {
        Some(SettingsError::Engine(engine)) => Some(engine),
        Some(SettingsError::Record(_)) => None,
        Some(_) => return ExitCode::from(2),
        None => error.downcast_ref::<EngineError>(),
    };
    match engine {
        Some(
            EngineError::Config(_)
            | EngineError::UnknownEnv(_)
            | EngineError::UnknownAlgo(_)
            | EngineError::Device(_),
        ) => ExitCode::from(2),
        _ if error.is::<starling::envs::UnknownEnv>() => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}
