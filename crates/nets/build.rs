//! Compiles the small C++ files beside the Rust ones against libtorch's headers, and reads
//! libtorch's version from them.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let native = ["backward", "cuda", "gloo", "host", "script"];
    for name in native {
        println!("cargo:rerun-if-changed=src/native/{name}.cpp");
    }
    println!("cargo:rerun-if-changed=src/native/guarded.h");
    println!("cargo:rerun-if-changed=src/native/gloo_names");
    let folder = PathBuf::from(std::env::var("LIBTORCH").unwrap_or_default());
    read_version(&folder.join("include/torch/headeronly/version.h"));
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include(folder.join("include"))
        .flag_if_supported("-Wno-unused-parameter")
        .file("src/native/host.cpp")
        .file("src/native/script.cpp")
        .compile("starling_host");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        // What libtorch's own headers name of Gloo.
        .include("src/native/gloo_names")
        .include(folder.join("include"))
        .include(folder.join("include/torch/csrc/api/include"))
        .flag_if_supported("-Wno-unused-parameter")
        .warnings(false)
        .file("src/native/backward.cpp")
        .file("src/native/gloo.cpp")
        .compile("starling_gloo");
    build_cuda(&folder);
}

fn read_version(header: &Path) {
    println!("cargo:rerun-if-changed={}", header.display());
    let text = std::fs::read_to_string(header).unwrap_or_default();
    let part = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name));
        line.map_or("?", str::trim).to_owned()
    };
    let version = [
        "TORCH_VERSION_MAJOR ",
        "TORCH_VERSION_MINOR ",
        "TORCH_VERSION_PATCH ",
    ]
    .map(part);
    println!(
        "cargo:rustc-env=STARLING_TORCH_VERSION={}",
        version.join(".")
    );
}

/// The library for CUDA graphs, which the program carries in itself. Without CUDA's headers it
/// stays empty, and computations run without graphs.
fn build_cuda(folder: &Path) {
    let headers = folder.join("include-cuda");
    println!("cargo:rerun-if-changed={}", headers.display());
    let library = PathBuf::from(std::env::var("OUT_DIR").unwrap_or_default()).join("cuda.so");
    println!(
        "cargo:rustc-env=STARLING_CUDA_LIBRARY={}",
        library.display()
    );
    let there = headers.join("cuda_runtime_api.h").exists();
    let compiler = cc::Build::new().cpp(true).std("c++17").get_compiler();
    let built = there
        && compiler
            .to_command()
            .args(["-shared", "-fPIC", "-O2", "-Wno-unused-parameter", "-o"])
            .arg(&library)
            .arg("-I")
            .arg(folder.join("include"))
            .arg("-I")
            .arg(&headers)
            .arg("src/native/cuda.cpp")
            .status()
            .is_ok_and(|status| status.success());
    if !built {
        println!("cargo:warning=built without CUDA graphs: CUDA's headers were not usable");
        let written = std::fs::write(&library, []);
        assert!(written.is_ok(), "{} cannot be written", library.display());
    }
}
