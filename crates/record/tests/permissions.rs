//! Folders without write permission. Root may write everywhere, so as root the test starts
//! itself again as another user.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use starling_record::{Checkpoints, Error, Retention, RunFolder};

const FOLDER: &str = "STARLING_TEST_READ_ONLY_FOLDER";
const NOBODY: u32 = 65534;

#[test]
fn a_folder_without_write_permission_is_a_clear_error() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        check(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o555)).unwrap();
    if fs::write(folder.path().join("probe"), "").is_err() {
        check(folder.path());
        return;
    }
    fs::remove_file(folder.path().join("probe")).unwrap();
    let program = tempfile::tempdir().unwrap();
    fs::set_permissions(program.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = program.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let child = Command::new(copy)
        .env(FOLDER, folder.path())
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    match child {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && said.contains("1 passed"),
                "{said}"
            );
        }
        Err(error) => starling_testing::skip(
            "root",
            "record: a_folder_without_write_permission_is_a_clear_error",
            &format!("cannot run as another user: {error}"),
        ),
    }
}

fn check(folder: &Path) {
    let now = SystemTime::now();
    let created = RunFolder::create(folder, "CartPole-v1", "ppo", "t", 1, now).unwrap_err();
    let opened = Checkpoints::open(&folder.join("checkpoints"), Retention::default()).unwrap_err();
    for error in [created, opened] {
        assert!(matches!(error, Error::Io { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("Choose a folder that you have permission to use"),
            "{text}"
        );
        assert!(text.contains(&*folder.to_string_lossy()), "{text}");
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
}
