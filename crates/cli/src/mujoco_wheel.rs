//! MuJoCo's library: extracted from its wheel, which is downloaded but not installed.

use std::path::{Path, PathBuf};

use starling_mujoco::{Library, MujocoError, VERSION, place};

use crate::wheels::{self, Temporary};

/// Why the library cannot be downloaded.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// There is no wheel that is known for this machine.
    #[error("there is no known wheel of MuJoCo {VERSION} for this machine ({machine}); {REMEDY}")]
    Machine {
        /// Processor and system.
        machine: String,
    },
    /// Python could not be started.
    #[error("python3 cannot be run: {0}; {REMEDY}")]
    Python(std::io::Error),
    /// pip failed: often there is no network.
    #[error(
        "pip could not download mujoco {VERSION}: {reason}\nwhen there is a network, `starling \
         mujoco` downloads it; {REMEDY}"
    )]
    Download {
        /// The end of what pip said.
        reason: String,
    },
    /// The wheel could not be opened.
    #[error("the wheel of mujoco {VERSION} could not be unpacked: {reason}")]
    Unpack {
        /// The end of what Python said.
        reason: String,
    },
    /// A file or folder could not be written.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        cause: std::io::Error,
    },
    /// There is no place for it.
    #[error("there is no folder for MuJoCo: set XDG_CACHE_HOME or HOME")]
    NoFolder,
    /// What was downloaded cannot be used.
    #[error(transparent)]
    Library(#[from] MujocoError),
}

const REMEDY: &str = "STARLING_MUJOCO may name a folder that has the library, such as that of the \
                      Python package mujoco";

/// Processor, pip's names for it, and the SHA-256 of the wheel that PyPI states.
const WHEELS: [(&str, &str, &str); 2] = [
    (
        "x86_64",
        "manylinux_2_28_x86_64",
        "42371356efe53a5f5f73ed03fcb967bdf04048017f80e2fca01e71a360e42da2",
    ),
    (
        "aarch64",
        "manylinux_2_28_aarch64",
        "525e09a00ecd964f06582773d9eeb03bb0e5a1675edf296a6868024759b3b235",
    ),
];

/// Takes the library and its licences out of the wheel in the current folder.
const UNPACK: &str = "import glob, os, zipfile
for wheel in glob.glob('*.whl'):
    with zipfile.ZipFile(wheel) as file:
        for name in file.namelist():
            if os.path.basename(name).startswith(('libmujoco.so.', 'LICENSE')):
                with open(os.path.basename(name), 'wb') as part:
                    part.write(file.read(name))
";

/// Downloads the library into the user's cache, after checking the wheel's SHA-256. Returns its file.
///
/// # Errors
/// When there is no Python, no pip or no network, or the cache cannot be written.
pub fn fetch() -> Result<PathBuf, FetchError> {
    let (machine, system) = (std::env::consts::ARCH, std::env::consts::OS);
    let mut wheels = WHEELS.iter().filter(|_| system == "linux");
    let wheel = wheels.find(|(processor, ..)| *processor == machine);
    let (_, platform, hash) = wheel.ok_or_else(|| FetchError::Machine {
        machine: format!("{machine}, {system}"),
    })?;
    let target = place::cache().ok_or(FetchError::NoFolder)?;
    let folder = Temporary::new("mujoco");
    let folder = folder.map_err(|(path, cause)| FetchError::File { path, cause })?;
    let requirements = folder.0.join("requirements.txt");
    write(
        &requirements,
        format!("mujoco=={VERSION} --hash=sha256:{hash}\n").as_bytes(),
    )?;
    // A wheel of any Python does, for all hold the same library.
    let pip = "-m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
               --only-binary=:all: --python-version 3.12 --requirement requirements.txt --platform";
    let mut arguments: Vec<&str> = pip.split_whitespace().collect();
    arguments.push(platform);
    let python = |arguments: &[&str]| wheels::python(&folder.0, arguments);
    let downloaded = python(&arguments).map_err(FetchError::Python)?;
    downloaded.map_err(|reason| FetchError::Download { reason })?;
    let unpacked = python(&["-c", UNPACK]).map_err(FetchError::Python)?;
    unpacked.map_err(|reason| FetchError::Unpack { reason })?;
    install(&folder.0, &target)
}

/// Copies the library, with its licences, from one folder to another.
fn install(from: &Path, to: &Path) -> Result<PathBuf, FetchError> {
    std::fs::create_dir_all(to).map_err(failed(to))?;
    for name in ["LICENSE", "LICENSES_THIRD_PARTY.md", place::FILE] {
        let (source, target) = (from.join(name), to.join(name));
        let bytes = std::fs::read(&source).map_err(failed(&source))?;
        // Written to a temporary file and renamed: other processes may have it open.
        let beside = to.join(format!("{name}.{}", std::process::id()));
        write(&beside, &bytes)?;
        std::fs::rename(&beside, &target).map_err(failed(&target))?;
    }
    let file = to.join(place::FILE);
    Library::open(&file)?;
    Ok(file)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), FetchError> {
    std::fs::write(path, bytes).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> FetchError {
    let path = path.to_owned();
    move |cause| FetchError::File { path, cause }
}
