//! `starling config`: the settings of a run, without starting it.

use std::process::ExitCode;
use std::sync::LazyLock;

use crate::settings::explain::{self, Question};
use crate::settings::{self, names};

use super::train::{Offered, Wanted, algo_names, env_ids};

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Print all settings that a run would use, with every default filled in
    Show(Box<Wanted>),
    /// Explain a setting or a section: meaning, type, unit, range, default
    Explain(Explain),
}

#[derive(clap::Args)]
struct Explain {
    /// Name of a setting or section, such as algo.gamma or checkpoint; without one, all are listed
    #[arg(value_parser = setting_names(), hide_possible_values = true)]
    key: Option<String>,
    /// Environment whose preset gives the value
    #[arg(value_parser = env_ids(), hide_possible_values = true)]
    env: Option<String>,
    /// Algorithm; without one, that of the environment's preset, or all
    #[arg(long, value_parser = algo_names(), hide_possible_values = true)]
    algo: Option<String>,
    /// Print everything about all settings as JSON
    #[arg(long, conflicts_with_all = ["key", "env", "algo"])]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Show(wanted) => {
            let request = wanted.request();
            if let Some(env) = settings::env_of(&request) {
                super::mujoco::ensure(&env)?;
            }
            let config = settings::resolve(&request)?;
            say!("{}", settings::to_yaml(&config.to_value()));
        }
        Command::Explain(Explain { json: true, .. }) => {
            say!("{}", serde_json::to_string_pretty(&explain::schema())?);
        }
        Command::Explain(Explain { key, env, algo, .. }) => {
            if let Some(env) = &env {
                super::mujoco::ensure(env)?;
            }
            say!("{}", explain::explain(&Question { key, env, algo })?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Names of settings and sections of every algorithm and environment.
fn setting_names() -> Offered {
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(names::every);
    Offered(|| NAMES.iter().map(String::as_str).collect())
}
