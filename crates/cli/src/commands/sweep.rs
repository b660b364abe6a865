//! `starling sweep`: the runs that a file describes.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::queue::{QueueError, Sweep};

use super::many::{self, Places};

#[derive(clap::Args)]
pub(super) struct Args {
    /// YAML file with `base` settings, `levels` of variants or a `search`, and `seeds`; the book's
    /// chapter on many runs describes it
    file: PathBuf,
    /// Folder of the queue; if it has the same plan, its runs continue [default:
    /// runs/queues/ and the name of the file]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let file = args.file.display();
    let text =
        std::fs::read_to_string(&args.file).with_context(|| format!("cannot open {file}"))?;
    let sweep = Sweep::from_yaml(&text);
    let sweep = sweep.map_err(|reason| QueueError::Plan(format!("{file}: {reason}")))?;
    let name = args.file.file_stem().unwrap_or_default().to_string_lossy();
    let folder = many::folder_of(args.out, &name);
    many::run(&sweep, &folder, &args.places)
}
