//! `starling completions`: completion scripts, with the names of environments and algorithms.

use std::process::ExitCode;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

pub(super) fn run<Cli: clap::CommandFactory>(args: Args) -> anyhow::Result<ExitCode> {
    let mut command = Cli::command();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "starling", &mut script);
    say!("{}", String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}
