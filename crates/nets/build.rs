//! Reads the version of the libtorch that is built against from its headers, so that the program
//! can say which one it has.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let folder = std::env::var("LIBTORCH").unwrap_or_default();
    let header = Path::new(&folder).join("include/torch/headeronly/version.h");
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
