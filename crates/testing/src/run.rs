//! What the processes of a test leave behind: the folder of a run, and what they logged.

use std::path::{Path, PathBuf};

/// The folder of the only run below `runs` in a folder.
pub fn only_run(folder: &Path) -> Option<PathBuf> {
    let mut path = folder.join("runs");
    for _ in 0..3 {
        path = std::fs::read_dir(&path).ok()?.next()?.ok()?.path();
    }
    Some(path)
}

/// The content of a file; nothing if there is none.
pub fn text(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Numbers that a process logged as `name: 7`, in their order.
pub fn all_logged(text: &str, name: &str) -> Vec<u64> {
    let mark = format!("{name}: ");
    let marks = text.match_indices(&*mark);
    let digits = marks.map(|(at, mark)| {
        let rest = text[at + mark.len()..].chars();
        rest.take_while(char::is_ascii_digit).collect::<String>()
    });
    digits.filter_map(|digits| digits.parse().ok()).collect()
}

/// The number that a process logged as `name: 7` last.
///
/// # Panics
/// When there is none.
pub fn logged(text: &str, name: &str) -> u64 {
    let all = all_logged(text, name);
    *all.last().unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// The groups of learners that were formed according to a log: generation and members of each.
pub fn formations(log: &str) -> Vec<(u64, Vec<usize>)> {
    let lines = log.lines();
    let lines = lines.filter(|line| line.contains("the learners form a group"));
    let found = lines.filter_map(|line| {
        let (_, rest) = line.split_once("generation=")?;
        let (generation, rest) = rest.split_once(" learners=[")?;
        let (members, _) = rest.split_once(']')?;
        let members = members
            .split(", ")
            .map(str::parse)
            .collect::<Result<_, _>>();
        Some((generation.parse().ok()?, members.ok()?))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_a_log() {
        let log = "a line\nINFO the learners form a group generation=1 learners=[0, 1] most_advanced=0\n\
                   INFO the learners form a group generation=2 learners=[0] most_advanced=0\n";
        assert_eq!(formations(log), [(1, vec![0, 1]), (2, vec![0])]);
    }
}
