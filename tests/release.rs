//! `scripts/release.sh`: the program that it packs runs without the checkout.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn checkout() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::canonicalize(path).unwrap()
}

fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr];
    parts.map(|part| String::from_utf8_lossy(part)).concat()
}

#[test]
fn the_archive_trains_in_an_empty_folder() {
    let folder = tempfile::tempdir().unwrap();
    let archives = folder.path().join("archives");
    let mut pack = Command::new(checkout().join("scripts/release.sh"));
    pack.args(["--program", env!("CARGO_BIN_EXE_starling")]);
    let packed = pack.arg(&archives).output().unwrap();
    assert!(packed.status.success(), "{}", text(&packed));
    let archive = String::from_utf8(packed.stdout).unwrap();
    let archive = Path::new(archive.trim());
    let name = archive.file_name().unwrap().to_str().unwrap();
    let name = name.strip_suffix(".tar.gz").unwrap();
    // Nothing is left beside the archive and its checksum.
    let sum = Command::new("sha256sum")
        .args(["--check", "--quiet", &format!("{name}.tar.gz.sha256")])
        .current_dir(&archives)
        .output()
        .unwrap();
    assert!(sum.status.success(), "{}", text(&sum));
    assert_eq!(fs::read_dir(&archives).unwrap().count(), 2);

    let elsewhere = folder.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join("home")).unwrap();
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(archive).arg("-C").arg(&elsewhere);
    assert!(unpack.status().unwrap().success());
    fs::remove_file(archive).unwrap();
    let root = elsewhere.join(name);
    let starling = |arguments: &[&str]| {
        let mut command = Command::new(root.join("starling"));
        // As a new user of another machine.
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.env("HOME", elsewhere.join("home"));
        command.current_dir(elsewhere.join("home")).args(arguments);
        command
    };
    // Its libraries are those of the archive, or of the system.
    let loaded = starling(&[])
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .output()
        .unwrap();
    let loaded = text(&loaded);
    let checkout = checkout();
    for line in loaded.lines() {
        let own = line.contains("torch") || line.contains("libc10");
        assert!(!own || line.contains(root.to_str().unwrap()), "{line}");
        assert!(!line.contains("not found"), "{line}");
        assert!(!line.contains(checkout.to_str().unwrap()), "{line}");
    }
    assert!(loaded.contains("libtorch_cpu.so"), "{loaded}");
    let trained = starling(&["train", "CartPole-v1", "--steps", "10000", "--quiet"]);
    let trained = { trained }.output().unwrap();
    assert!(trained.status.success(), "{}", text(&trained));
    let run = String::from_utf8(trained.stdout).unwrap();
    let evaluated = starling(&["eval", run.trim(), "--episodes", "3"])
        .output()
        .unwrap();
    assert!(evaluated.status.success(), "{}", text(&evaluated));
    // What has to go with the program.
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    assert!(read("licenses/crates.txt").contains("\naxum-"));
    assert!(read("README.txt").contains("./starling train CartPole-v1"));
    for name in ["LICENSE-MIT", "LICENSE-APACHE", "scripts/fetch_libtorch.py"] {
        assert!(root.join(name).is_file(), "{name}");
    }
}
