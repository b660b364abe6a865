//! Whether networks in bfloat16 (`algo.net.bf16`) work on this machine's processor.
//!
//! Some virtual machines advertise AMX but cannot use it; libtorch is then killed by SIGILL without
//! a message. So the program first runs itself with a hidden command that makes a small computation
//! in bfloat16. If that crashes, an environment variable disables AMX in libtorch's oneDNN. oneDNN
//! reads the variable at its first use, so this program restarts itself.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::RunConfig;
use crate::nets;

/// The hidden command, which only calls [`nets::try_bf16`].
pub(super) const PROBE: &str = "probe-bf16";

/// The instructions that oneDNN may use at most.
const LIMIT: (&str, &str) = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16");

/// What the probe found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// It works.
    Works,
    /// It works without AMX.
    WorksLimited,
    /// It does not work.
    Fails,
}

/// Makes sure that a run in bfloat16 does not die: starts this program again without AMX where
/// that is needed, or sets the run to float32, with a warning.
pub(super) fn ensure(config: &mut RunConfig) -> anyhow::Result<()> {
    let on_cpu = config.settings.device.resolve()? == nets::Device::Cpu;
    let wanted = config.to_value()["algo"]["net"]["bf16"] == true;
    if wanted && on_cpu && !ready()? {
        note!(
            "warning: this processor cannot compute in bfloat16; the run uses float32 \
             (algo.net.bf16=false)"
        );
        let float32 = serde_json::json!({ "net": { "bf16": false } });
        crate::settings::merge(&mut config.algo, &float32);
    }
    Ok(())
}

/// Whether this process can compute in bfloat16. Starts the program again without AMX if that is
/// what it takes; call it before anything is written.
pub(super) fn ready() -> anyhow::Result<bool> {
    match verdict(&probe_command()?) {
        Verdict::Works => Ok(true),
        Verdict::Fails => Ok(false),
        Verdict::WorksLimited => {
            let (name, value) = LIMIT;
            note!(
                "warning: this machine advertises AMX but cannot use it; starting again with \
                 {name}={value}"
            );
            let mut arguments = std::env::args_os();
            let mut again = Command::new(std::env::current_exe()?);
            if let Some(called) = arguments.next() {
                again.arg0(called);
            }
            Err(again.args(arguments).env(name, value).exec()).context("cannot start again")
        }
    }
}

/// What there is to say about this machine.
pub(super) fn check() -> anyhow::Result<Verdict> {
    Ok(verdict(&probe_command()?))
}

/// A program and its arguments.
type Call = (PathBuf, Vec<OsString>);

fn probe_command() -> anyhow::Result<Call> {
    Ok((std::env::current_exe()?, vec![PROBE.into()]))
}

fn verdict(call: &Call) -> Verdict {
    let works = |limit: Option<(&str, &str)>| {
        let mut command = Command::new(&call.0);
        command.args(&call.1).envs(limit);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if works(None) {
        Verdict::Works
    } else if std::env::var_os(LIMIT.0).is_none() && works(Some(LIMIT)) {
        Verdict::WorksLimited
    } else {
        Verdict::Fails
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_shell(script: &str) -> Verdict {
        verdict(&("/bin/sh".into(), vec!["-c".into(), script.into()]))
    }

    /// Programs that die as the probe does where AMX is advertised and cannot run.
    #[test]
    fn a_probe_that_dies_is_tried_without_amx() {
        assert_eq!(of_shell("exit 0"), Verdict::Works);
        assert_eq!(of_shell("kill -ILL $$"), Verdict::Fails);
        let dies_with_amx = "test \"$ONEDNN_MAX_CPU_ISA\" = AVX512_CORE_BF16 || kill -ILL $$";
        assert_eq!(of_shell(dies_with_amx), Verdict::WorksLimited);
    }
}
