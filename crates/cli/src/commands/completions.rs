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

/// Bash takes `mode=serial` for three words of which it completes the last, and puts a space behind
/// what it completed, where behind `algo.gamma=` a value follows.
const BASH: &str = r#"_starling_completions() {
    local i word words=() current=0
    for i in "${!COMP_WORDS[@]}"; do
        word=${COMP_WORDS[i]}
        if ((i > 1)) && [[ $word == [=:]* || ${COMP_WORDS[i - 1]} == *[=:] ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        if ((i == COMP_CWORD)); then
            current=$((${#words[@]} - 1))
        fi
    done
    local COMP_WORDS=("${words[@]}") COMP_CWORD=$current
    word=${words[current]}
    _starling "$1" "$word" "${words[current - 1]}"
    if [[ $word == *[=:]* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[=:]}"}"}")
    fi
    if [[ ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}

"#;
