//! `starling selftest`.

use super::{run, stderr, stdout};

/// The self-test runs without a GPU too, and fails where the device is missing.
#[test]
fn the_selftest_compares_and_needs_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let command = ["selftest", "--device", "cpu", "--algo", "pqn"];
    let same = run(folder.path(), &command);
    assert!(same.status.success(), "{}", stderr(&same));
    let said = stdout(&same);
    assert!(
        said.contains("1 of 1 agree after 10 updates each"),
        "{said}"
    );
    assert!(said.contains("2 of 2 collect the same"), "{said}");
    assert!(said.contains("learning, until"), "{said}");
    assert!(!said.contains("NOT LEARNED"), "{said}");
    let missing = run(folder.path(), &["selftest", "--device", "cuda:99"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("cuda:99 was requested"));
}
