//! `starling config`: the settings of a run, without starting it.

use std::process::ExitCode;

use crate::settings;

use super::train::Wanted;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Print all settings that a run would use, with every default filled in
    Show(Box<Wanted>),
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Command::Show(wanted) = args.command;
    let request = wanted.request();
    if let Some(env) = settings::env_of(&request) {
        super::mujoco::ensure(&env)?;
    }
    let config = settings::resolve(&request)?;
    say!("{}", settings::to_yaml(&config.to_value()));
    Ok(ExitCode::SUCCESS)
}
