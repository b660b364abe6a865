//! The Atari games' ROMs: extracted from the `ale-py` wheel, which is downloaded but not installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use starling_atari::games::Game;
use starling_envs::atari::roms::{self, RomsError};

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
    let folder = Temporary::new()?;
    // Any wheel does, for all hold the same ROMs: naming one works with every Python and system.
    let pip = "-m pip download --quiet --disable-pip-version-check --no-deps \
               --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64";
    let mut arguments: Vec<&str> = pip.split_whitespace().collect();
    arguments.push(WHEEL);
    python(&folder.0, &arguments)?.map_err(|reason| FetchError::Download { reason })?;
    python(&folder.0, &["-c", UNPACK])?.map_err(|reason| FetchError::Unpack { reason })?;
    Ok(roms::install(&folder.0)?)
}

/// Runs Python in a folder; the inner error is the end of what it said.
fn python(folder: &Path, arguments: &[&str]) -> Result<Result<(), String>, FetchError> {
    let output = Command::new("python3")
        .args(arguments)
        .current_dir(folder)
        .output()
        .map_err(|cause| FetchError::Program {
            program: "python3",
            cause,
        })?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    Ok(Err(last.unwrap_or("it gave no reason").trim().to_owned()))
}

/// A folder that is removed in the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Result<Self, FetchError> {
        let path = std::env::temp_dir().join(format!("starling-roms-{}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => Ok(Self(path)),
            Err(cause) => Err(FetchError::Folder { path, cause }),
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What cannot be removed is left to the system, which clears its folder for such files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
