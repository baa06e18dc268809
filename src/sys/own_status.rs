//! What the kernel tells a process of itself, in the files below `/proc/self`.

use std::path::Path;

use crate::error::{Error, Result};

/// The text of a file there.
///
/// # Errors
/// Where it cannot be read.
pub fn text(file: &str) -> Result<String> {
    let path = Path::new("/proc/self").join(file);
    let bytes = std::fs::read(&path).map_err(|error| Error::system(format!("reading {}", path.display()), error))?;
    // Names of files may be any bytes; what is asked for is ASCII.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The value of a line of `status`; 0 where there is none.
pub fn kilobytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}
