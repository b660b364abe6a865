//! `starling doctor`: what is found on this machine, and how to mend what is missing.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::envs::atari::roms;
use crate::nets;

#[derive(clap::Args)]
pub(super) struct Args {}

pub(super) fn run(Args {}: Args) -> anyhow::Result<ExitCode> {
    let mut healthy = true;
    let mut line = |good: bool, what: &str, found: String, remedy: &str| {
        let mark = if good { "ok     " } else { "missing" };
        say!("{mark}  {what:<10} {found}");
        if !good {
            say!("                    → {remedy}");
            healthy = false;
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    line(
        true,
        "cpu",
        format!("{cores} cores, {}", cpu_features()),
        "",
    );
    let memory = memory();
    line(
        memory.is_some(),
        "memory",
        memory.unwrap_or_default(),
        "/proc is not mounted",
    );
    let torch = nets::torch_version();
    line(
        true,
        "libtorch",
        format!("{torch}, {} threads", nets::threads()),
        "",
    );
    let devices = nets::cuda_devices();
    let gpu = Path::new("/proc/driver/nvidia").exists();
    line(
        !gpu || devices > 0,
        "cuda",
        match (devices, nets::has_graphs()) {
            (0, _) | (_, true) => format!("{devices} devices"),
            (_, false) => format!("{devices} devices, used without CUDA graphs"),
        },
        "an NVIDIA driver is here, but libtorch's CUDA libraries are not: pip install \
         torch==2.11.0, then STARLING_LIBTORCH=$(python3 -c 'import torch; \
         print(torch.__path__[0])') ./starling doctor",
    );
    for (tool, remedy) in [
        ("cargo", "install Rust with rustup"),
        ("python3", "install Python 3 with your package manager"),
        ("c++", "install a C++ compiler, such as g++"),
    ] {
        let version = version_of(tool);
        line(version.is_some(), tool, version.unwrap_or_default(), remedy);
    }
    let (roms, all) = (roms::found().len(), starling_atari::games::all().len());
    let hint = if roms == 0 {
        " (./starling roms fetches them)"
    } else {
        ""
    };
    line(true, "atari", format!("{roms} of {all} ROMs{hint}"), "");
    let free = free_disk(Path::new("."));
    let enough = free.is_none_or(|bytes| bytes > 2_000_000_000);
    let text = free.map_or("unknown".into(), |bytes| {
        format!("{:.1} GB free here", bytes as f64 / 1e9)
    });
    line(
        enough,
        "disk",
        text,
        "free some space: a build needs about 2 GB",
    );
    let writable = tempfile_in(Path::new("."));
    line(
        writable,
        "folder",
        "runs can be written here".into(),
        "choose another with --runs DIR",
    );
    Ok(match healthy {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn cpu_features() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        let features = [
            ("avx2", is_x86_feature_detected!("avx2")),
            ("fma", is_x86_feature_detected!("fma")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
            ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
        ];
        let found: Vec<&str> = features
            .iter()
            .filter(|(_, there)| *there)
            .map(|(name, _)| *name)
            .collect();
        format!("x86_64 with {}", found.join(" "))
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH.to_owned()
}

fn memory() -> Option<String> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    let (total, free) = (kilobytes("MemTotal:")?, kilobytes("MemAvailable:")?);
    Some(format!("{:.1} GB, {:.1} GB free", total / 1e6, free / 1e6))
}

fn version_of(tool: &str) -> Option<String> {
    let output = Command::new(tool).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Some(text.lines().next().unwrap_or_default().to_owned())
}

fn free_disk(folder: &Path) -> Option<u64> {
    let output = Command::new("df").args(["-Pk"]).arg(folder).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let blocks = text.lines().nth(1)?.split_whitespace().nth(3)?;
    Some(blocks.parse::<u64>().ok()? * 1024)
}

fn tempfile_in(folder: &Path) -> bool {
    let probe = folder.join(format!(".starling-doctor-{}", std::process::id()));
    let written = std::fs::write(&probe, b"").is_ok();
    written && std::fs::remove_file(&probe).is_ok()
}
