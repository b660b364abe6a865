//! Where the games' ROMs are on this machine.
//!
//! Starling contains no ROMs: `starling roms` downloads them into the user's cache. Every file is
//! checked against the md5 in the table of games before it is used.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use starling_atari::ale::{Ale, AleError};
use starling_atari::cartridge::{Rom, RomError};
use starling_atari::games::{self, Game};

/// Why a game's ROM cannot be used.
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
    /// The file is not a ROM.
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
    /// The console cannot play it.
    #[error(transparent)]
    Console(#[from] AleError),
}

/// Where ROMs are looked for: `STARLING_ROMS` if it is set, then the user's cache.
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

/// Copies every known ROM in a folder, whatever its file is called, into the first of the
/// [`folders`]. Returns the games found and the folder they are in now.
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
        // A file that is not a ROM is left alone.
        let Ok((rom, bytes)) = read(&path).map_err(failed(&path))? else {
            continue;
        };
        let Some(game) = games::by_md5(rom.md5()) else {
            continue;
        };
        let target = folder.join(file_name(game));
        // Written to a temporary file and renamed: other processes may be reading.
        let beside = folder.join(format!("{}.{}", game.name, std::process::id()));
        std::fs::write(&beside, &bytes).map_err(failed(&beside))?;
        std::fs::rename(&beside, &target).map_err(failed(&target))?;
        games.push(game);
    }
    games.sort_by_key(|game| game.name);
    games.dedup_by_key(|game| game.name);
    Ok((games, folder))
}

/// Reads a game's ROM.
///
/// # Errors
/// When there is none, or it is not this game's.
pub fn load(game: &'static Game) -> Result<Arc<Rom>, RomsError> {
    let path = path_of(game).ok_or_else(|| RomsError::Missing {
        game: game.name,
        folders: folders(),
    })?;
    let read = read(&path).map_err(|cause| RomsError::File {
        path: path.clone(),
        cause,
    })?;
    let (rom, _) = read.map_err(|cause| RomsError::Cartridge {
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

/// Reads a file and takes it for a ROM. A file that is too large for one is not read.
pub(super) fn read(path: &Path) -> std::io::Result<Result<(Rom, Vec<u8>), RomError>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    if size > Rom::MAX_BYTES as u64 {
        return Ok(Err(RomError::Size(size)));
    }
    let mut bytes = Vec::new();
    // The file may have grown since.
    file.by_ref()
        .take(Rom::MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(Rom::new(&bytes).map(|rom| (rom, bytes)))
}

/// A console that has just been switched on with a game's ROM.
///
/// Switching on takes about 200 frames, so it is done once per game and then copied.
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
