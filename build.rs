//! Builds the C++ side of the library if feature `cpp` is enabled. Does nothing else.

#[cfg(feature = "cpp")]
fn main() {
    let files =
        ["buffer", "communicator", "config", "error", "log", "mpi_calls", "store", "testing", "types", "unique_id"];
    let files = files.map(|name| format!("cpp/src/{name}.cc"));
    cxx_build::bridge("src/ffi.rs")
        .files(&files)
        .include("cpp/include")
        .include("cpp/src")
        .std("c++17")
        .flag_if_supported("-fvisibility-inlines-hidden")
        .compile("rsccl_cxx");
    println!("cargo:rerun-if-changed=src/ffi.rs");
    println!("cargo:rerun-if-changed=cpp/src");
    println!("cargo:rerun-if-changed=cpp/include");
    check_version();
}

/// Checks that the version in the headers is the package's.
#[cfg(feature = "cpp")]
fn check_version() {
    let header = std::fs::read_to_string("cpp/include/rsccl/version.hpp").expect("the header is in the tree");
    let (major, minor, patch) =
        (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH"));
    let parts = [("MAJOR", major), ("MINOR", minor), ("PATCH", patch)]
        .map(|(part, value)| format!("#define RSCCL_VERSION_{part} {value}\n"));
    let version = env!("CARGO_PKG_VERSION");
    let whole = format!("#define RSCCL_VERSION_STRING \"{version}\"\n");
    for line in parts.iter().chain([&whole]) {
        assert!(header.contains(line), "cpp/include/rsccl/version.hpp is not that of version {version}: {line}");
    }
}

#[cfg(not(feature = "cpp"))]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
