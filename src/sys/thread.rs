//! Threads: named, with an owner that joins them.

use std::thread::JoinHandle;

use crate::error::{Error, Result};

/// Starts a thread called `name` (15 bytes are shown by tools).
///
/// # Errors
/// [`crate::error::Kind::System`] where the system has no thread left.
pub fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|error| Error::system(format!("starting the thread {name}"), error))
}
