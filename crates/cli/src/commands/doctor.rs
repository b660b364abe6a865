//! `starling doctor`: what this machine has, and how to fix what is missing.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::envs::atari::roms;
use crate::mujoco;
use crate::nets;
use crate::python::interpreter;

use super::{bf16, caller};

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
        match (nets::why_no_cuda(), nets::has_graphs()) {
            (Some(reason), _) => format!("no devices: {reason}"),
            (None, true) => format!("{devices} devices"),
            (None, false) => format!("{devices} devices, used without CUDA graphs"),
        },
        "to use the GPU: pip install torch==2.11.0, then STARLING_LIBTORCH=$(python3 -c 'import \
         torch; print(torch.__path__[0])') ./starling doctor",
    );
    let bf16 = match bf16::check()? {
        bf16::Verdict::Works => "works",
        bf16::Verdict::WorksLimited => {
            "works without AMX, which this machine advertises and cannot run; runs with \
             algo.net.bf16=true take care of it"
        }
        bf16::Verdict::Fails => {
            "does not work on this processor; runs with algo.net.bf16=true use float32"
        }
    };
    line(true, "bfloat16", bf16.to_owned(), "");
    for (tool, remedy) in [
        (
            "cargo",
            "needed to build Starling: install Rust from https://rustup.rs",
        ),
        (
            "python3",
            "needed to build Starling: install Python 3 with your package manager",
        ),
        (
            "c++",
            "needed to build Starling: install a C++ compiler, such as g++",
        ),
    ] {
        match version_of(tool) {
            Ok(version) => line(true, tool, version, ""),
            Err(problem) => line(false, tool, problem, remedy),
        }
    }
    let python = interpreter::find(None);
    let because = python
        .named_by
        .map_or(String::new(), |name| format!(", from {name}"));
    match interpreter::about(&python.path) {
        Ok(about) => {
            let versions = [("gymnasium", &about.gymnasium), ("numpy", &about.numpy)];
            let versions = versions.map(|(name, version)| match version {
                Some(version) => format!("{name} {version}"),
                None => format!("no {name}"),
            });
            let mut text = format!(
                "{} for environments ({}{because}), {}",
                about.python,
                about.program.display(),
                versions.join(", ")
            );
            if about.gymnasium.is_none() {
                let command = interpreter::install_command(&about.program);
                text += &format!(" (gym: and python: environments need it: {command})");
            }
            line(true, "python", text, "");
        }
        // Nothing else needs it, unless it was named.
        Err(problem) => line(
            python.named_by.is_none(),
            "python",
            problem,
            "gym: and python: environments cannot be used until then",
        ),
    }
    let (roms, all) = (roms::found().len(), starling_atari::games::all().len());
    let hint = match roms {
        0 => format!(" (`{} roms` downloads them)", caller::name()),
        _ => String::new(),
    };
    line(true, "atari", format!("{roms} of {all} ROMs{hint}"), "");
    line(
        !mujoco::place::is_there() || mujoco::place::open().is_ok(),
        "mujoco",
        match mujoco::place::open() {
            Ok(library) => format!("{}, {}", mujoco::VERSION, library.path().display()),
            Err(_) if !mujoco::place::is_there() => {
                format!("not installed (`{} mujoco` downloads it)", caller::name())
            }
            Err(error) => error.to_string(),
        },
        "MuJoCo's environments cannot be used until then",
    );
    let free = free_disk(Path::new("."));
    let enough = free.is_none_or(|bytes| bytes > 4_000_000_000);
    let text = free.map_or("unknown".into(), |bytes| {
        format!("{:.1} GB free here", bytes as f64 / 1e9)
    });
    line(
        enough,
        "disk",
        text,
        "free some space: building Starling takes about 4 GB",
    );
    match write_in(Path::new(".")) {
        Ok(()) => line(true, "folder", "runs can be written here".into(), ""),
        Err(error) => line(
            false,
            "folder",
            format!("runs cannot be written here: {error}"),
            "change to another folder, or name one with --runs DIR",
        ),
    }
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

/// The first line that a tool prints about its version, or why it cannot be used.
fn version_of(tool: &str) -> Result<String, String> {
    let output = Command::new(tool).arg("--version").output();
    let output = output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "not found".to_owned(),
        _ => error.to_string(),
    })?;
    let first = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.lines().next().unwrap_or_default().to_owned()
    };
    match output.status.success() {
        true => Ok(first(&output.stdout)),
        false => Err(format!(
            "`{tool} --version` fails: {}",
            first(&output.stderr)
        )),
    }
}

fn free_disk(folder: &Path) -> Option<u64> {
    let output = Command::new("df").args(["-Pk"]).arg(folder).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let blocks = text.lines().nth(1)?.split_whitespace().nth(3)?;
    Some(blocks.parse::<u64>().ok()? * 1024)
}

fn write_in(folder: &Path) -> std::io::Result<()> {
    let probe = folder.join(format!(".starling-doctor-{}", std::process::id()));
    std::fs::write(&probe, b"")?;
    std::fs::remove_file(&probe)
}
