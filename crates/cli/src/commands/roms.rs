//! `starling roms`: downloads, imports and lists the ROMs of the Atari games.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use crate::atari::games::Game;
use crate::envs::atari::{self, roms};
use crate::envs::registry;
use crate::roms::fetch;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Import ROMs from this folder instead of downloading them; files are recognised by content
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Only list the ROMs that are installed
    #[arg(long, conflicts_with = "from")]
    list: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let all = starling_atari::games::all().len();
    if !args.list {
        let (games, folder) = match &args.from {
            Some(from) => roms::install(from)?,
            None if roms::found().len() == all => (Vec::new(), PathBuf::new()),
            None => {
                note!("downloading the ROMs of ale-py 0.12.1 with pip (3 MB)");
                fetch()?
            }
        };
        if let (Some(from), true) = (&args.from, games.is_empty()) {
            bail!("no file in {} is the ROM of a known game", from.display());
        }
        if !games.is_empty() {
            say!("{} ROMs installed in {}", games.len(), folder.display());
        }
    }
    let mut right = 0;
    for (game, path) in roms::found() {
        match roms::load(game) {
            Ok(_) => {
                right += 1;
                say!("ok     {:<20} {}", game.name, path.display());
            }
            Err(error) => say!("wrong  {error}"),
        }
    }
    say!("{right} of {all} games can be played");
    Ok(match right {
        0 => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

/// Downloads the ROMs if that of one of these games is missing (of any game, if none is named).
pub(super) fn ensure_games(named: &[&'static Game]) -> anyhow::Result<()> {
    let all: Vec<&'static Game> = starling_atari::games::all().collect();
    let games = if named.is_empty() { &all } else { named };
    if !games.iter().all(|game| roms::is_there(game)) {
        note!("downloading the ROMs of ale-py 0.12.1 with pip (3 MB, once)");
        let (games, folder) = fetch()?;
        note!("{} ROMs installed in {}", games.len(), folder.display());
    }
    Ok(())
}

/// Downloads the ROMs if an environment needs one that is missing.
pub(super) fn ensure(env_id: &str) -> anyhow::Result<()> {
    // An unknown id is reported where it is used.
    let Ok(spec) = registry::find(env_id) else {
        return Ok(());
    };
    match atari::parse(spec.id) {
        Some((game, _)) if !roms::is_there(game) => {
            note!(
                "{} needs the ROM of {}, which is not installed: downloading the ROMs of ale-py \
                 0.12.1 with pip (3 MB, once)",
                spec.id,
                game.name
            );
            let (games, folder) = fetch()?;
            note!("{} ROMs installed in {}", games.len(), folder.display());
            Ok(())
        }
        _ => Ok(()),
    }
}
