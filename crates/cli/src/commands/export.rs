//! `starling export`: a trained agent as a file for other programs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;

use super::numbers::{at_least_one, grouped};
use crate::engine::{Agreement, Exporter, Samples};
use crate::onnxruntime;
use crate::record::RunFolder;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Run: its folder, a prefix of its name, or last
    run: PathBuf,
    /// File to write; PEARL's encoder is written beside it [default: <environment>-<algorithm>.onnx or
    /// .pt]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Format of the file [default: by the file extension, otherwise onnx]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Use the checkpoint with the best score instead of the latest
    #[arg(long)]
    best: bool,
    /// Steps to play for the comparison of the file with the program
    #[arg(long, default_value = "256", value_parser = at_least_one, allow_negative_numbers = true)]
    steps: u64,
    /// Python with onnxruntime [default: STARLING_PYTHON, the active virtual environment, or python3]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For ONNX Runtime, browsers, C++, Unity and others
    Onnx,
    /// For PyTorch and libtorch
    Torchscript,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let folder = RunFolder::open(&super::find_run(&args.run)?)?;
    let config = super::read_config(&folder, Some("cpu"))?;
    let chosen = super::eval::checkpoint_of(&folder, args.best)?;
    let by_name = args.out.as_deref().and_then(Path::extension);
    let by_name = match by_name.and_then(|end| end.to_str()) {
        Some("pt" | "pth" | "ts" | "torchscript") => Format::Torchscript,
        _ => Format::Onnx,
    };
    let format = args.format.unwrap_or(by_name);
    let out = args.out.unwrap_or_else(|| {
        let env = super::play::plain_name(&config.env_id);
        let end = match format {
            Format::Onnx => "onnx",
            Format::Torchscript => "pt",
        };
        format!("{env}-{}.{end}", config.algo_name).into()
    });
    starling_nets::set_threads(1);
    let exporter = Exporter::new(&config, &chosen)?;
    let samples = exporter.samples(args.steps as usize, config.settings.seed)?;
    for (file, samples) in exporter.files().into_iter().zip(&samples) {
        let path = path_of(&out, file.part);
        let checked = match format {
            Format::Onnx => {
                file.write_onnx(&path)?;
                let ran = file.run_onnx(&path, samples)?;
                let mut checked = vec![(
                    "the program's own evaluation of the file".to_owned(),
                    samples.compare(&ran)?,
                )];
                checked.extend(by_onnxruntime(args.python.as_deref(), &path, samples)?);
                checked
            }
            Format::Torchscript => {
                file.write_torchscript(&path)?;
                let ran = file.run_torchscript(&path, samples)?;
                vec![("libtorch".to_owned(), samples.compare(&ran)?)]
            }
        };
        let bytes = std::fs::metadata(&path)
            .with_context(|| path.display().to_string())?
            .len();
        say!(
            "{} {} at step {}, {}: {} ({} bytes)",
            config.env_id,
            config.algo_name,
            grouped(chosen.step()),
            file.part,
            path.display(),
            grouped(bytes)
        );
        say!("inputs:  {}", file.inputs().join(", "));
        say!("outputs: {}", file.outputs().join(", "));
        for (by, agreement) in checked {
            print_agreement(&by, &agreement, samples.count());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The file of a part of the agent: `agent.onnx` for the policy, `agent-encoder.onnx` for its encoder.
fn path_of(out: &Path, part: &str) -> PathBuf {
    if part == "policy" {
        return out.to_owned();
    }
    let stem = out.file_stem().unwrap_or_default().to_string_lossy();
    let end = out
        .extension()
        .map(|end| format!(".{}", end.to_string_lossy()));
    out.with_file_name(format!("{stem}-{part}{}", end.unwrap_or_default()))
}

fn print_agreement(by: &str, agreement: &Agreement, steps: usize) {
    let ties = match agreement.ties {
        0 => String::new(),
        ties => format!(", {ties} actions differ that are equally good"),
    };
    say!(
        "compared over {steps} steps with {by}: largest difference {:.1e} ({}){ties}",
        agreement.largest,
        agreement.output
    );
}

/// The comparison with ONNX Runtime, if there is one; a note says where it was looked for.
fn by_onnxruntime(
    python: Option<&Path>,
    file: &Path,
    samples: &Samples,
) -> anyhow::Result<Option<(String, Agreement)>> {
    let found = starling_python::interpreter::find(python);
    if !onnxruntime::is_in(&found.path) {
        let python = found.path.display();
        note!(
            "note: {python} has no onnxruntime, so the file was not compared with it (pip install onnxruntime)"
        );
        return Ok(None);
    }
    let ran = onnxruntime::run(&found.path, file, &samples.inputs)
        .map_err(|reason| anyhow::anyhow!("onnxruntime cannot run {}: {reason}", file.display()))?;
    let agreement = samples.compare(&ran.outputs)?;
    Ok(Some((format!("onnxruntime {}", ran.version), agreement)))
}
