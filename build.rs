//! Builds the C++ side of the bridge, where feature `cpp` asks for it. Nothing else.

#[cfg(feature = "cpp")]
fn main() {
    cxx_build::bridge("src/ffi.rs").std("c++17").compile("rsccl_cxx");
    println!("cargo:rerun-if-changed=src/ffi.rs");
}

#[cfg(not(feature = "cpp"))]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
