//! Lets the library find libtorch in the `torch` package beside its own.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // DT_RPATH, which LD_LIBRARY_PATH does not override: there must be one libtorch in a process.
    for argument in ["-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../torch/lib"] {
        println!("cargo:rustc-link-arg-cdylib={argument}");
    }
}
