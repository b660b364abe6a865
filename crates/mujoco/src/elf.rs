//! Whether a file is a whole shared library.
//!
//! The system opens a library by mapping its file into memory. Where the end of the file is missing,
//! the first access ends the program with SIGBUS, so the lengths in its header are checked before.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::MujocoError;

/// Refuses a file that is no ELF file or shorter than its header says. Other systems have other kinds
/// of files, which are left to them.
pub(crate) fn check_whole(path: &Path) -> Result<(), MujocoError> {
    if !cfg!(target_os = "linux") {
        return Ok(());
    }
    let bad = |cause: &str| MujocoError::NotALibrary {
        path: path.to_owned(),
        cause: cause.to_owned(),
    };
    let file = File::open(path).map_err(|cause| bad(&cause.to_string()))?;
    let length = file
        .metadata()
        .map_err(|cause| bad(&cause.to_string()))?
        .len();
    let mut header = Vec::new();
    let read = file.take(64).read_to_end(&mut header);
    read.map_err(|cause| bad(&cause.to_string()))?;
    // Four magic bytes, then 2 for 64 bits and 1 for little-endian.
    if header.len() < 64 || !header.starts_with(b"\x7fELF\x02\x01") {
        return Err(bad("it is not a 64-bit ELF file"));
    }
    let number = |at: usize, bytes: usize| {
        let bytes = header[at..at + bytes].iter().rev();
        bytes.fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
    };
    // The table of sections is the last thing in a file: its place, and the size and number of entries.
    let end = number(0x28, 8).saturating_add(number(0x3a, 2) * number(0x3c, 2));
    if end > length {
        return Err(bad(&format!("it has {length} bytes of {end}")));
    }
    Ok(())
}
