//! The Atari games' ROMs: extracted from the `ale-py` wheel, which is downloaded but not installed.

use std::path::{Path, PathBuf};

use starling_atari::games::Game;
use starling_envs::atari::roms::{self, RomsError};

use crate::wheels::{self, Temporary};

/// Why ROMs cannot be downloaded.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// A program could not be started.
    #[error("{program} cannot be run: {cause}; {REMEDY}")]
    Program {
        /// The program.
        program: &'static str,
        /// What went wrong.
        cause: std::io::Error,
    },
    /// pip failed: often there is no network.
    #[error(
        "pip could not download {WHEEL}: {reason}\nwhen there is a network, `starling roms` \
         downloads the ROMs; {REMEDY}"
    )]
    Download {
        /// The end of what pip said.
        reason: String,
    },
    /// The wheel could not be opened.
    #[error("{WHEEL} could not be unpacked: {reason}")]
    Unpack {
        /// The end of what Python said.
        reason: String,
    },
    /// The temporary folder could not be made.
    #[error("{}: {cause}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What went wrong.
        cause: std::io::Error,
    },
    /// The ROMs could not be put where they belong.
    #[error(transparent)]
    Roms(#[from] RomsError),
}

const WHEEL: &str = "ale-py==0.12.1";
const REMEDY: &str = "`starling roms --from DIR` uses ROMs that you have";

/// Takes the `.bin` files out of the wheels of the current folder.
const UNPACK: &str = "import glob, os, zipfile
for wheel in glob.glob('*.whl'):
    with zipfile.ZipFile(wheel) as file:
        for name in file.namelist():
            if name.endswith('.bin'):
                with open(os.path.basename(name), 'wb') as rom:
                    rom.write(file.read(name))
";

/// Downloads the ROMs and installs those of known games in the user's folder, after checking their
/// md5. Returns the installed games and the folder.
///
/// # Errors
/// When there is no Python, no pip or no network, or the folder cannot be written.
pub fn fetch() -> Result<(Vec<&'static Game>, PathBuf), FetchError> {
    let folder = Temporary::new("roms");
    let folder = folder.map_err(|(path, cause)| FetchError::Folder { path, cause })?;
    // Any wheel does, for all hold the same ROMs: naming one works with every Python and system.
    let pip = "-m pip download --quiet --disable-pip-version-check --no-deps \
               --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64";
    let mut arguments: Vec<&str> = pip.split_whitespace().collect();
    arguments.push(WHEEL);
    python(&folder.0, &arguments)?.map_err(|reason| FetchError::Download { reason })?;
    python(&folder.0, &["-c", UNPACK])?.map_err(|reason| FetchError::Unpack { reason })?;
    Ok(roms::install(&folder.0)?)
}

fn python(folder: &Path, arguments: &[&str]) -> Result<Result<(), String>, FetchError> {
    wheels::python(folder, arguments).map_err(|cause| FetchError::Program {
        program: "python3",
        cause,
    })
}
