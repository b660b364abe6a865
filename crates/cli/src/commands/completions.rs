//! `starling completions`: completion scripts, with the names of environments, algorithms, presets
//! and settings.

use std::process::ExitCode;

use clap_complete::Shell;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

pub(super) fn run<Cli: clap::CommandFactory>(args: Args) -> anyhow::Result<ExitCode> {
    let mut command = Cli::command();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "starling", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if args.shell == Shell::Bash {
        script = script.replace(
            "complete -F _starling ",
            "complete -F _starling_completions ",
        );
        script.insert_str(0, BASH);
    }
    say!("{script}");
    Ok(ExitCode::SUCCESS)
}

/// Bash puts a space behind what it completed, and behind `algo.gamma=` a value follows.
const BASH: &str = r#"_starling_completions() {
    _starling "$@"
    if [[ ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}

"#;
