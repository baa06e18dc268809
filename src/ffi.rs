//! The bridge under the C++ classes.

#[cxx::bridge(namespace = "rsccl::ffi")]
mod bridge {
    extern "Rust" {
        fn version() -> String;
    }
}

fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}
