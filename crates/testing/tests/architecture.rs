//! ARCHITECTURE.md is true where a test can tell: which crate depends on which, and what is found in
//! only one place.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn crates() -> BTreeSet<String> {
    let folders = fs::read_dir(root().join("crates")).unwrap();
    let names = folders.map(|folder| folder.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// The names in `[dependencies]` of a crate.
fn dependencies(name: &str) -> BTreeSet<String> {
    let manifest = root().join("crates").join(name).join("Cargo.toml");
    let text = fs::read_to_string(manifest).unwrap();
    let section = text
        .split("\n[")
        .find(|part| part.starts_with("dependencies]"));
    let lines = section.unwrap_or_default().lines().skip(1);
    let names = lines.map(|line| line.split(['.', ' ', '=']).next().unwrap_or_default());
    names
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

/// The sources of a crate, without their tests, and their paths below `crates`.
fn sources(name: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates").join(name).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                let code = code.lines().filter(|line| !line.trim().starts_with("//"));
                let code: Vec<&str> = code.collect();
                let path = path.strip_prefix(root().join("crates")).unwrap();
                found.push((path.display().to_string(), code.join("\n")));
            }
        }
    }
    found
}

fn quoted(cell: &str) -> BTreeSet<String> {
    let names = cell.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

#[test]
fn the_table_of_crates_has_their_dependencies() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = text.split("| crate | depends on | contents |").nth(1);
    let rows = table.unwrap().lines().skip(2);
    let mut listed = BTreeSet::new();
    for row in rows.take_while(|row| row.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').collect();
        let name = quoted(cells[1]).pop_first().unwrap();
        let given = cells[2].trim();
        let mut expected = quoted(given);
        if given.starts_with("all except") {
            let others = crates().into_iter().filter(|other| *other != name);
            expected = others.filter(|other| !expected.contains(other)).collect();
        }
        let own = dependencies(&name);
        let own = own
            .iter()
            .filter_map(|other| other.strip_prefix("starling-"));
        let own: BTreeSet<String> = own.map(str::to_owned).collect();
        assert_eq!(own, expected, "{name}");
        listed.insert(name);
    }
    assert_eq!(listed, crates());
}

#[test]
fn some_libraries_belong_to_few_crates() {
    for (library, owners) in [
        ("tch", &["nets"][..]),
        ("tokio", &["cluster", "dashboard"]),
        ("tonic", &["cluster"]),
        ("redis", &["cluster"]),
        ("axum", &["dashboard"]),
        ("anyhow", &["cli"]),
        ("pyo3", &["agent", "wheel"]),
    ] {
        let users: Vec<String> = crates()
            .into_iter()
            .filter(|name| dependencies(name).contains(library))
            .collect();
        assert_eq!(users, owners, "{library}");
    }
}

#[test]
fn unsafe_code_is_where_the_map_says() {
    let all = crates().into_iter().flat_map(|name| sources(&name));
    let with_unsafe = all.filter(|(_, code)| {
        ["unsafe {", "unsafe impl", "unsafe extern", "unsafe fn"]
            .iter()
            .any(|word| code.contains(word))
    });
    let found: BTreeSet<String> = with_unsafe.map(|(path, _)| path).collect();
    let expected = [
        "mujoco/src/library.rs",
        "nets/src/device.rs",
        "nets/src/native.rs",
        "nets/src/native/backward.rs",
        "nets/src/native/gloo.rs",
        "nets/src/native/mpi.rs",
        "nets/src/native/nccl.rs",
        "python/src/memory.rs",
        "replay/src/streaming.rs",
        "wheel/src/batch.rs",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
}

#[test]
fn only_the_command_line_prints() {
    for name in crates() {
        // Tests report what they skipped through `testing`.
        if ["cli", "testing"].contains(&name.as_str()) {
            continue;
        }
        for (path, code) in sources(&name) {
            for word in ["println!(", "print!("] {
                assert!(!code.contains(word), "{path} has {word}");
            }
        }
    }
}

#[test]
fn environments_and_algorithms_have_no_threads() {
    for name in [
        "tree", "settings", "atari", "envs", "mujoco", "python", "algos",
    ] {
        for (path, code) in sources(name) {
            for word in ["thread::spawn", "thread::scope", "thread::Builder"] {
                assert!(!code.contains(word), "{path} has {word}");
            }
        }
    }
}
