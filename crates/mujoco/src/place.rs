//! Where MuJoCo's library is on this machine, and opening it.
//!
//! `STARLING_MUJOCO` names a folder that is searched before the user's cache, where `starling mujoco`
//! puts the library.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Library, MujocoError, VERSION};

/// The library's name in its wheel.
pub const FILE: &str = if cfg!(target_os = "macos") {
    "libmujoco.3.17.0.dylib"
} else {
    "libmujoco.so.3.17.0"
};

/// Names that it also has, in other distributions.
const OTHER_FILES: [&str; 2] = ["libmujoco.so", "libmujoco.dylib"];

/// The variable that names a folder.
pub const VARIABLE: &str = "STARLING_MUJOCO";

/// Where `starling mujoco` puts the library: a folder in the user's cache.
pub fn cache() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&set("HOME")?).join(".cache")));
    Some(cache?.join("starling").join(format!("mujoco-{VERSION}")))
}

/// The library's file.
///
/// # Errors
/// When there is none; the error says where it was looked for.
pub fn find() -> Result<PathBuf, MujocoError> {
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    // A folder that is named is the only one: anything else would be a surprise.
    let folders = match named {
        Some(folder) => vec![PathBuf::from(folder)],
        None => cache().into_iter().collect(),
    };
    find_in(&folders)
}

fn find_in(folders: &[PathBuf]) -> Result<PathBuf, MujocoError> {
    let names = [FILE].into_iter().chain(OTHER_FILES);
    let files = folders.iter().flat_map(|folder| {
        let names = names.clone();
        names.flat_map(move |name| [folder.join(name), folder.join("lib").join(name)])
    });
    let mut found = files.filter(|file| file.is_file());
    found.next().ok_or_else(|| MujocoError::Missing {
        file: FILE,
        folders: folders.to_vec(),
    })
}

/// Whether a library is there, without opening it.
pub fn is_there() -> bool {
    find().is_ok()
}

/// The library, opened at the first call that finds it.
///
/// # Errors
/// When there is none, or it cannot be used.
pub fn open() -> Result<Arc<Library>, MujocoError> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(library) = &*opened {
        return Ok(Arc::clone(library));
    }
    let library = Arc::new(Library::open(&find()?)?);
    *opened = Some(Arc::clone(&library));
    Ok(library)
}

static OPENED: Mutex<Option<Arc<Library>>> = Mutex::new(None);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_that_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let error = find_in(&[folder.path().to_owned()])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&folder.path().display().to_string()),
            "{error}"
        );
        assert!(
            error.contains("`./starling mujoco` downloads it"),
            "{error}"
        );
        assert!(error.contains(VARIABLE), "{error}");
        std::fs::create_dir(folder.path().join("lib")).unwrap();
        let file = folder.path().join("lib").join("libmujoco.so");
        std::fs::write(&file, "").unwrap();
        assert_eq!(find_in(&[folder.path().to_owned()]).unwrap(), file);
    }
}
