//! How the user called this program, for the commands that it suggests.

use std::path::Path;

/// Set by the script `./starling`, which starts the program under another name.
const CALLED_AS: &str = "STARLING_ARGV0";

/// The program as the user called it: `./starling`, or the name of the user's program.
pub(super) fn name() -> String {
    let called = std::env::var(CALLED_AS).ok();
    let called = called.or_else(|| std::env::args().next());
    quoted(called.as_deref().unwrap_or("starling"))
}

/// The whole command, to be given again.
pub(super) fn command() -> String {
    let arguments = std::env::args().skip(1);
    let arguments = arguments.map(|argument| quoted(&argument));
    let words: Vec<String> = std::iter::once(name()).chain(arguments).collect();
    words.join(" ")
}

/// A path as a shell takes it.
pub(super) fn path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_where_a_shell_needs_it() {
        assert_eq!(path(Path::new("runs/a-v1/x")), "runs/a-v1/x");
        assert_eq!(path(Path::new("my runs/x")), "'my runs/x'");
        assert_eq!(path(Path::new("it's")), r"'it'\''s'");
    }
}
