//! The script `./starling`, and what it needs.

use std::path::Path;
use std::process::{Command, Output};

use super::{stderr, stdout};

/// A wheel must not write outside its folder.
#[test]
fn wheels_with_files_outside_their_folder_are_refused() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let folder = tempfile::tempdir().unwrap();
    let program = "
import pathlib, sys, zipfile
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import fetch_libtorch
wheel, aside = pathlib.Path('evil.whl'), pathlib.Path('aside')
with zipfile.ZipFile(wheel, 'w') as archive:
    archive.writestr('torch/include/../../../evil.h', '')
fetch_libtorch.unpack(wheel, aside)
";
    let mut python = Command::new("python3");
    let python = python.args(["-c", program]).arg(scripts);
    let output = python.current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(
        message.contains("has a file outside its folder"),
        "{message}"
    );
    assert!(!folder.path().join("evil.h").exists());
}

/// The script `./starling`, in a checkout with a program that prints how it was called, and with
/// only the given commands besides those of a bare system.
fn script(commands: &[(&str, &str)], is_built: bool) -> Output {
    use std::os::unix::fs::PermissionsExt as _;
    let checkout = tempfile::tempdir().unwrap();
    let checkout = checkout.path();
    let write = |path: &str, text: &str| {
        let path = checkout.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for file in ["starling", "Cargo.toml"] {
        write(file, &std::fs::read_to_string(root.join(file)).unwrap());
    }
    if is_built {
        write(
            "target/release/starling",
            "#!/bin/sh\necho \"called as $STARLING_ARGV0\"",
        );
    }
    for (name, text) in commands {
        write(&format!("bin/{name}"), &format!("#!/bin/sh\n{text}"));
    }
    let system = ["bash", "dirname", "sed", "cut", "sort", "head", "sh"];
    std::fs::create_dir_all(checkout.join("bin")).unwrap();
    for name in system {
        let mut places = ["/usr/bin", "/bin"].map(Path::new).into_iter();
        let found = places.find(|folder| folder.join(name).exists()).unwrap();
        let found = found.join(name);
        std::os::unix::fs::symlink(found, checkout.join("bin").join(name)).unwrap();
    }
    Command::new(checkout.join("bin/bash"))
        .args(["./starling", "list", "envs"])
        .current_dir(checkout)
        .env("PATH", checkout.join("bin"))
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("STARLING_LIBTORCH")
        .output()
        .unwrap()
}

#[test]
fn the_script_asks_for_tools_only_where_something_has_to_be_built() {
    let built = script(&[], true);
    assert_eq!(
        stdout(&built),
        "called as ./starling\n",
        "{}",
        stderr(&built)
    );
    let bare = script(&[], false);
    assert_eq!(bare.status.code(), Some(1));
    assert!(stderr(&bare).contains("Rust is missing (cargo was not found)"));
    let old = script(
        &[("cargo", "echo 'cargo 1.75.0 (1d8b05cdd 2023-11-20)'")],
        false,
    );
    assert_eq!(old.status.code(), Some(1));
    assert!(
        stderr(&old).contains("Rust 1.75.0 is too old"),
        "{}",
        stderr(&old)
    );
    // New enough, so that the next thing is missing.
    let new = script(
        &[("cargo", "echo 'cargo 1.100.0-nightly (0123456 2027-01-01)'")],
        false,
    );
    assert!(
        stderr(&new).contains("Python 3 is missing"),
        "{}",
        stderr(&new)
    );
}

/// What README tells people to run is what CI runs.
#[test]
fn ci_runs_the_test_command_of_the_readme() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let ci = read(".ci/run");
    let command = ci.lines().last().unwrap().trim_start_matches("exec ");
    assert_eq!(command, "./starling test");
    let readme = read("README.md");
    for command in [command, "./starling train CartPole-v1"] {
        assert!(
            readme.lines().any(|line| line.trim() == command),
            "{command}"
        );
    }
}
