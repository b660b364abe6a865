//! Runs an ONNX file with ONNX Runtime, if the user's Python has it.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use starling_nets::{Device, Tensor, array_of, tensor_of};
use starling_tree::{Array, DType};

/// What ONNX Runtime computed.
#[derive(Debug)]
pub struct Ran {
    /// Its version.
    pub version: String,
    /// Outputs by name.
    pub outputs: Vec<(String, Tensor)>,
}

#[derive(Deserialize)]
struct Answer {
    version: String,
    outputs: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    file: String,
    dtype: String,
    shape: Vec<usize>,
}

const SCRIPT: &str = include_str!("commands/onnxruntime.py");

/// Whether a Python has `onnxruntime`.
pub fn is_in(python: &Path) -> bool {
    let probe = "import numpy, onnxruntime";
    let output = starling_python::interpreter::command(python)
        .args(["-c", probe])
        .output();
    output.is_ok_and(|output| output.status.success())
}

/// Runs a file with the `onnxruntime` of a Python, on inputs by name.
///
/// # Errors
/// What Python said, or what could not be read.
pub fn run(python: &Path, model: &Path, inputs: &[(String, Tensor)]) -> Result<Ran, String> {
    let failed = |error: std::io::Error| error.to_string();
    let folder = tempfile::tempdir().map_err(failed)?;
    let mut entries = Vec::new();
    for (i, (name, tensor)) in inputs.iter().enumerate() {
        let array = array_of(tensor);
        let file = format!("input{i}");
        fs::write(folder.path().join(&file), array.bytes()).map_err(failed)?;
        entries.push(serde_json::json!({
            "name": name, "file": file, "dtype": dtype_name(array.dtype()), "shape": array.shape(),
        }));
    }
    let text = serde_json::Value::Array(entries).to_string();
    fs::write(folder.path().join("inputs.json"), text).map_err(failed)?;
    let mut command = starling_python::interpreter::command(python);
    let output = command
        .args(["-c", SCRIPT])
        .arg(folder.path())
        .arg(model)
        .output();
    let output = output.map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        return Err(last.unwrap_or("Python gave no reason").to_owned());
    }
    let answer: Answer =
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let mut outputs = Vec::new();
    for entry in answer.outputs {
        let dtype = match entry.dtype.as_str() {
            "float32" => DType::F32,
            "float64" => DType::F64,
            "int64" => DType::I64,
            other => return Err(format!("the output {} is of {other}", entry.name)),
        };
        let mut array = Array::zeros(dtype, &entry.shape);
        let bytes = fs::read(folder.path().join(&entry.file)).map_err(failed)?;
        if bytes.len() != array.bytes().len() {
            return Err(format!("the output {} is cut short", entry.name));
        }
        array.bytes_mut().copy_from_slice(&bytes);
        outputs.push((entry.name, tensor_of(&array, Device::Cpu)));
    }
    Ok(Ran {
        version: answer.version,
        outputs,
    })
}

fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::U8 => "uint8",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::F32 => "float32",
        DType::F64 => "float64",
    }
}
