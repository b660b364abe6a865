//! Tells the crate from which commit it is built, so that actors and learners can compare it.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    // The log of the branch changes with every commit, checkout and merge.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
    let version = match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(commit) => format!("{version}+{commit}"),
        None => version,
    };
    println!("cargo::rustc-env=STARLING_VERSION={version}");
}

/// What git says of the checkout that this crate lies in.
fn git(args: &[&str]) -> Option<String> {
    let said = Command::new("git").args(args).output().ok()?;
    let said = said
        .status
        .success()
        .then(|| String::from_utf8(said.stdout));
    Some(said?.ok()?.trim().to_owned())
}
