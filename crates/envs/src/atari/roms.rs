//! Where the games' cartridges are found on this machine.
//!
//! This program brings no cartridges: `starling roms` puts them into the user's cache. Every file
//! is checked against the md5 in the table of games before it is played.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use starling_atari::ale::{Ale, AleError};
use starling_atari::cartridge::{Rom, RomError};
use starling_atari::games::{self, Game};

/// Why a game's cartridge cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum RomsError {
    /// There is none in any of the folders.
    #[error(
        "the ROM of {game} is missing: there is no {game}.bin in {}; `./starling roms` fetches it",
        listed(folders)
    )]
    Missing {
        /// The game's name.
        game: &'static str,
        /// Where it was looked for.
        folders: Vec<PathBuf>,
    },
    /// A file is there, but it holds something else.
    #[error(
        "{} is not the ROM of {game} (its md5 is {found}, not {wanted}); remove it and run \
         `./starling roms`",
        path.display()
    )]
    Wrong {
        /// The game's name.
        game: &'static str,
        /// The file.
        path: PathBuf,
        /// The file's md5.
        found: String,
        /// The game's md5.
        wanted: &'static str,
    },
    /// A file or folder could not be read or written.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        cause: std::io::Error,
    },
    /// The file is no cartridge at all.
    #[error("{}: {cause}", path.display())]
    Cartridge {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: RomError,
    },
    /// Neither `STARLING_ROMS` nor a home folder is known.
    #[error("there is no folder for ROMs: set STARLING_ROMS, XDG_CACHE_HOME or HOME")]
    NoFolder,
    /// The console refuses it.
    #[error(transparent)]
    Console(#[from] AleError),
}

/// Where cartridges are looked for: `STARLING_ROMS` if it is set, else the user's cache.
pub fn folders() -> Vec<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let own = set("STARLING_ROMS").map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")))
        .map(|cache| cache.join("starling").join("roms"));
    own.into_iter().chain(cache).collect()
}

/// Whether a file for the game is in one of the [`folders`].
pub fn is_there(game: &Game) -> bool {
    path_of(game).is_some()
}

/// The games whose files are in the [`folders`], each with its file.
pub fn found() -> Vec<(&'static Game, PathBuf)> {
    games::all()
        .filter_map(|game| Some((game, path_of(game)?)))
        .collect()
}

/// Copies every known cartridge of a folder, whatever its file is called, into the first of the
/// [`folders`]. Says for which games there was one, and where they are now.
///
/// # Errors
/// When a folder or file cannot be read or written.
pub fn install(from: &Path) -> Result<(Vec<&'static Game>, PathBuf), RomsError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |cause| RomsError::File { path, cause }
    };
    let folder = folders().into_iter().next().ok_or(RomsError::NoFolder)?;
    std::fs::create_dir_all(&folder).map_err(failed(&folder))?;
    let mut games = Vec::new();
    for entry in std::fs::read_dir(from).map_err(failed(from))? {
        let path = entry.map_err(failed(from))?.path();
        if !path.is_file() {
            continue;
        }
        let bytes = std::fs::read(&path).map_err(failed(&path))?;
        // A file of another size is no cartridge, and none of our business.
        let Ok(rom) = Rom::new(&bytes) else { continue };
        let Some(game) = games::by_md5(rom.md5()) else {
            continue;
        };
        let target = folder.join(file_name(game));
        // Written beside and renamed: others may be reading.
        let beside = folder.join(format!("{}.{}", game.name, std::process::id()));
        std::fs::write(&beside, &bytes).map_err(failed(&beside))?;
        std::fs::rename(&beside, &target).map_err(failed(&target))?;
        games.push(game);
    }
    games.sort_by_key(|game| game.name);
    games.dedup_by_key(|game| game.name);
    Ok((games, folder))
}

/// Reads a game's cartridge.
///
/// # Errors
/// When there is none, or it is not this game's.
pub fn load(game: &'static Game) -> Result<Arc<Rom>, RomsError> {
    let path = path_of(game).ok_or_else(|| RomsError::Missing {
        game: game.name,
        folders: folders(),
    })?;
    let bytes = std::fs::read(&path).map_err(|cause| RomsError::File {
        path: path.clone(),
        cause,
    })?;
    let rom = Rom::new(&bytes).map_err(|cause| RomsError::Cartridge {
        path: path.clone(),
        cause,
    })?;
    if rom.md5() != game.md5 {
        return Err(RomsError::Wrong {
            game: game.name,
            path,
            found: rom.md5().to_owned(),
            wanted: game.md5,
        });
    }
    Ok(Arc::new(rom))
}

/// A console that has just been switched on with a game's cartridge in it.
///
/// Switching on takes some 200 frames, so that it is done once per game and then copied.
pub(super) fn console(game: &'static Game) -> Result<Ale, RomsError> {
    static CONSOLES: Mutex<Option<HashMap<&'static str, Ale>>> = Mutex::new(None);
    let mut consoles = CONSOLES.lock().unwrap_or_else(PoisonError::into_inner);
    let consoles = consoles.get_or_insert_default();
    if let Some(console) = consoles.get(game.name) {
        return Ok(console.clone());
    }
    let console = Ale::new(load(game)?, 0)?;
    consoles.insert(game.name, console.clone());
    Ok(console)
}

fn path_of(game: &Game) -> Option<PathBuf> {
    let mut paths = folders()
        .into_iter()
        .map(|folder| folder.join(file_name(game)));
    paths.find(|path| path.is_file())
}

fn file_name(game: &Game) -> String {
    format!("{}.bin", game.name)
}

fn listed(folders: &[PathBuf]) -> String {
    match folders {
        [] => "any folder (neither STARLING_ROMS nor HOME is set)".to_owned(),
        _ => {
            let folders: Vec<String> = folders
                .iter()
                .map(|folder| folder.display().to_string())
                .collect();
            folders.join(" or ")
        }
    }
}
