//! `starling dashboard` and `train --dashboard`: runs in a browser.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::dashboard::{Dashboard, Program};
use crate::record::RunInfo;
use crate::settings::{self, Request};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder with runs and queues
    #[arg(default_value = "runs")]
    folder: PathBuf,
    /// Address to listen on; with another one than the default, other machines can open the page (with
    /// its token, unencrypted)
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 for any that is free
    #[arg(long, default_value_t = 0)]
    port: u16,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dashboard = Dashboard::open(&args.folder, &args.host, args.port, program()?)?;
    if !dashboard.address().ip().is_loopback() {
        note!(
            "other machines can reach this server. The token protects it, but nothing is encrypted: an \
             SSH tunnel to a dashboard without --host is safer"
        );
    }
    say!("{}", dashboard.url());
    note!("open this address in a browser; Ctrl-C ends the dashboard, not the runs");
    dashboard.run()?;
    Ok(ExitCode::SUCCESS)
}

/// Shows the runs below a folder while this program runs, at the page of `run` if there is one. `say`
/// tells the user the address.
pub(super) fn beside(
    folder: &Path,
    port: u16,
    run: Option<&Path>,
    say: impl Fn(&str),
) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let dashboard = Dashboard::open(folder, "127.0.0.1", port, program()?)?;
    let address = match run {
        Some(run) => dashboard.url_of(run),
        None => dashboard.url(),
    };
    say(&format!("dashboard: {address}"));
    let serve = move || {
        // Training does not depend on it.
        if let Err(error) = dashboard.run() {
            tracing::error!("the dashboard has ended: {error}");
        }
    };
    let thread = std::thread::Builder::new().name("dashboard".into());
    thread.spawn(serve)?;
    Ok(())
}

fn program() -> anyhow::Result<Program> {
    let program = std::env::current_exe().context("the program does not know its own path")?;
    Ok(Program {
        preset: Box::new(preset),
        player: Box::new(move |run| {
            let mut command = Command::new(&program);
            command.args(["play", "--stream", "--run"]).arg(run);
            command
        }),
    })
}

/// The settings that `train` would use for the same environment and algorithm.
fn preset(run: &RunInfo) -> Option<serde_json::Value> {
    // Those with a prefix would have to be started to learn their spaces.
    if run.env.contains(':') {
        return None;
    }
    let request = Request {
        algo: Some(run.algo.clone()),
        ..Request::new(&run.env)
    };
    Some(settings::resolve(&request).ok()?.to_value())
}
