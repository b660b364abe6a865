//! The `starling` program.

fn main() -> std::process::ExitCode {
    starling::commands::main()
}
