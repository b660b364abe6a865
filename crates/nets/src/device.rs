//! Devices that networks run on, and the number of threads.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use tch::{Cuda, Device};

/// `auto`, `cpu` or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DeviceChoice {
    /// The first GPU if there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// One GPU by its number.
    Cuda(usize),
}

impl JsonSchema for DeviceChoice {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DeviceChoice".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "oneOf": [
            { "const": "auto", "description": "The first GPU if there is one, else the CPU." },
            { "const": "cpu", "description": "The CPU." },
            { "const": "cuda:0", "description": "The first GPU; `cuda:1` is the second." },
        ]})
    }
}

/// A device that was asked for and is not there, or a name that means none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// No such name.
    #[error("'{0}' is not a device; allowed: auto, cpu, cuda:0, cuda:1, …")]
    Name(String),
    /// No such GPU here.
    #[error(
        "cuda:{wanted} was requested, but {found} CUDA devices are usable; run `starling doctor`, \
         or set device=cpu"
    )]
    Absent {
        /// Number that was asked for.
        wanted: usize,
        /// Number of devices that were found.
        found: usize,
    },
}

impl DeviceChoice {
    /// The device it means on this machine.
    pub fn resolve(self) -> Result<Device, DeviceError> {
        let found = cuda_devices();
        match self {
            DeviceChoice::Cpu => Ok(Device::Cpu),
            DeviceChoice::Auto if found == 0 => Ok(Device::Cpu),
            DeviceChoice::Auto => Ok(Device::Cuda(0)),
            DeviceChoice::Cuda(wanted) if wanted < found => Ok(Device::Cuda(wanted)),
            DeviceChoice::Cuda(wanted) => Err(DeviceError::Absent { wanted, found }),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => write!(f, "auto"),
            DeviceChoice::Cpu => write!(f, "cpu"),
            DeviceChoice::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::Name(name.to_owned());
        match name {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" | "gpu" => Ok(DeviceChoice::Cuda(0)),
            _ => {
                let index = name.strip_prefix("cuda:").ok_or_else(unknown)?;
                Ok(DeviceChoice::Cuda(index.parse().map_err(|_| unknown())?))
            }
        }
    }
}

impl From<DeviceChoice> for String {
    fn from(choice: DeviceChoice) -> String {
        choice.to_string()
    }
}

impl TryFrom<String> for DeviceChoice {
    type Error = DeviceError;

    fn try_from(name: String) -> Result<Self, DeviceError> {
        name.parse()
    }
}

/// Loads libtorch's CUDA libraries if they are installed, so that one binary works with and without
/// a GPU. It must be called before anything else of this crate: libtorch looks for devices once, at
/// first use.
pub fn load_cuda() -> bool {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: opening a library runs its initialisers. This one is the other half of the
    // libtorch that the process is linked with and made to be loaded at start-up; nothing of it
    // is called here, and it is never unloaded.
    #[expect(unsafe_code, reason = "there is no safe way to load a library")]
    let loaded = unsafe { Library::open(Some("libtorch_cuda.so"), RTLD_NOW | RTLD_GLOBAL) };
    match loaded {
        Ok(library) => {
            std::mem::forget(library);
            crate::native::load_graphs();
            true
        }
        Err(error) => {
            let _ = NOT_LOADED.set(error.to_string());
            false
        }
    }
}

/// Why libtorch's CUDA libraries could not be loaded.
static NOT_LOADED: OnceLock<String> = OnceLock::new();

/// Why there are no CUDA devices, as far as it is known; `None` if there are some.
pub fn why_no_cuda() -> Option<String> {
    if cuda_devices() > 0 {
        return None;
    }
    let driver = driver_version();
    Some(match (NOT_LOADED.get(), driver) {
        (_, Err(Driver::Missing)) => {
            "no NVIDIA driver is installed (libcuda.so.1 was not found)".into()
        }
        (_, Err(Driver::Fails(code))) => format!(
            "the NVIDIA driver cannot be used (cuInit returns {code}); `nvidia-smi` may say more"
        ),
        (Some(error), Ok(_)) if error.contains("libtorch_cuda.so: cannot open") => {
            "this libtorch has no CUDA libraries (libtorch_cuda.so was not found)".into()
        }
        (Some(error), Ok(_)) => format!("libtorch's CUDA libraries cannot be loaded: {error}"),
        (None, Ok(version)) => format!(
            "the driver supports CUDA up to {}.{}, which is too old for this libtorch, or it \
             shows no device (see CUDA_VISIBLE_DEVICES)",
            version / 1000,
            version % 1000 / 10
        ),
    })
}

/// What is wrong with the NVIDIA driver.
enum Driver {
    /// It is not installed.
    Missing,
    /// It answers with an error code.
    Fails(i32),
}

/// The newest CUDA that the driver supports, as 1000 major + 10 minor.
fn driver_version() -> Result<i32, Driver> {
    use libloading::os::unix::{Library, Symbol};
    // SAFETY: this is the driver's documented interface: `cuInit` takes flags that must be 0,
    // `cuDriverGetVersion` writes one int. The library stays open while they are called, and
    // libtorch itself loads the same one.
    #[expect(unsafe_code, reason = "there is no safe way to ask the driver")]
    unsafe {
        let library = Library::new("libcuda.so.1").map_err(|_| Driver::Missing)?;
        let init: Symbol<unsafe extern "C" fn(u32) -> i32> =
            library.get(b"cuInit\0").map_err(|_| Driver::Missing)?;
        let get_version: Symbol<unsafe extern "C" fn(*mut i32) -> i32> = library
            .get(b"cuDriverGetVersion\0")
            .map_err(|_| Driver::Missing)?;
        let (code, mut version) = (init(0), 0);
        match (code, get_version(&raw mut version)) {
            (0, 0) => Ok(version),
            (0, code) | (code, _) => Err(Driver::Fails(code)),
        }
    }
}

/// Sets how many threads libtorch uses for one operation that is called from this thread.
pub fn set_threads(threads: usize) {
    tch::set_num_threads(threads.clamp(1, 1024) as i32);
}

/// How many threads libtorch uses for one operation that is called from this thread.
pub fn threads() -> usize {
    tch::get_num_threads().max(1) as usize
}

/// CUDA devices that can be used.
pub fn cuda_devices() -> usize {
    Cuda::device_count().max(0) as usize
}

/// The version of the libtorch that this program was built against, from its headers.
pub fn torch_version() -> &'static str {
    env!("STARLING_TORCH_VERSION")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_libtorch_is_known() {
        assert_eq!(torch_version(), "2.11.0", "tch 0.24 is made for this one");
    }

    #[test]
    fn names_are_read_and_written() {
        for name in ["auto", "cpu", "cuda:3"] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap().to_string(), name);
        }
        assert!("cuda:x".parse::<DeviceChoice>().is_err());
        for name in ["cuda", "gpu"] {
            assert_eq!(name.parse(), Ok(DeviceChoice::Cuda(0)));
        }
        assert!("tpu".parse::<DeviceChoice>().is_err());
    }
}
