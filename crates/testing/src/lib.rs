//! Helpers for the tests of several crates. Only a dev-dependency.
//!
//! A test that needs something the machine may not have (ROMs, MuJoCo, Python packages, a C compiler,
//! git, a Redis server, mpirun, sshd, Slurm, root, a GPU) calls [`skip`] and returns when it is missing.

mod process;
mod redis;
mod relay;
mod run;
mod slurm;
mod ssh;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

pub use process::{Process, children, processes_in, signal, wait_for};
pub use redis::RedisServer;
pub use relay::Relay;
pub use run::{all_logged, formations, logged, only_run, text};
pub use slurm::SlurmCluster;
pub use ssh::SshServer;

/// Records that `test` cannot run because `what` is missing. The test returns after the call.
///
/// `STARLING_REQUIRE` is a comma-separated list of things that must be there: `roms`, `mujoco`,
/// `tensorboard`, `gymnasium`, `onnxruntime`, `wandb`, `chromium`, `cc`, `git`, `redis`, `sshd`, `slurm`,
/// `kubernetes-validate`, `root`, `cuda`, `wheels-envs`, `wheels-train`. If `what` is one of them, the test fails
/// instead.
/// `STARLING_SKIPS` names a file to which a line `TEST: WHY` is appended, because the test harness
/// hides what a passing test prints.
///
/// # Panics
/// When `what` is required, or the file cannot be written.
pub fn skip(what: &str, test: &str, why: &str) {
    let required = std::env::var("STARLING_REQUIRE").unwrap_or_default();
    let skips = std::env::var_os("STARLING_SKIPS");
    record(&required, skips.as_deref().map(Path::new), what, test, why);
}

fn record(required: &str, skips: Option<&Path>, what: &str, test: &str, why: &str) {
    assert!(
        !required.split(',').any(|name| name.trim() == what),
        "{test} would be skipped, but STARLING_REQUIRE has '{what}': {why}"
    );
    let Some(path) = skips else { return };
    let file = OpenOptions::new().create(true).append(true).open(path);
    // One write: tests of several processes append at the same time.
    let written = file.and_then(|mut file| file.write_all(format!("{test}: {why}\n").as_bytes()));
    if let Err(error) = written {
        panic!("cannot write {} (STARLING_SKIPS): {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_appended_to_the_file() {
        let name = format!("starling-skips-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        record("", Some(&path), "roms", "first", "no ROMs");
        record("git, root", Some(&path), "roms", "second", "no ROMs");
        record("", None, "roms", "third", "no ROMs");
        let lines = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(lines, "first: no ROMs\nsecond: no ROMs\n");
    }

    #[test]
    #[should_panic(expected = "STARLING_REQUIRE has 'roms': no ROMs")]
    fn what_is_required_is_not_skipped() {
        record("git, roms", None, "roms", "a_test", "no ROMs");
    }
}
