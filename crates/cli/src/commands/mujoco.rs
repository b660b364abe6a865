//! `starling mujoco`: the library that MuJoCo's environments need.

use std::process::ExitCode;

use crate::mujoco::{VERSION, needs_mujoco, place};
use crate::mujoco_wheel::fetch;

#[derive(clap::Args)]
pub(super) struct Args {}

pub(super) fn run(Args {}: Args) -> anyhow::Result<ExitCode> {
    // A file that cannot be used is replaced, unless the user chose it.
    let chosen = std::env::var_os(place::VARIABLE).is_some_and(|folder| !folder.is_empty());
    if !chosen && place::open().is_err() {
        note!("downloading MuJoCo {VERSION} with pip (26 MB)");
        fetch()?;
    }
    let library = place::open()?;
    say!("MuJoCo {VERSION} is in {}", library.path().display());
    Ok(ExitCode::SUCCESS)
}

/// Downloads the library if an environment needs it and there is none.
pub(super) fn ensure(env_id: &str) -> anyhow::Result<()> {
    let needed = needs_mujoco(env_id);
    let chosen = std::env::var_os(place::VARIABLE).is_some_and(|folder| !folder.is_empty());
    if needed && !chosen && !place::is_there() {
        note!(
            "{env_id} needs MuJoCo {VERSION}, which is not installed: downloading it with pip \
             (26 MB, once)"
        );
        let file = fetch()?;
        note!("MuJoCo {VERSION} is in {}", file.display());
    }
    Ok(())
}
