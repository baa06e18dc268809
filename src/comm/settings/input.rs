//! Files that settings name.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// The text of a file: `what` it is, and the `variable` that names it.
///
/// # Errors
/// [`crate::error::Kind::System`] where it cannot be read as text; [`crate::error::Kind::InvalidArgument`] where it is
/// too long, or no regular file.
pub(super) fn read(path: &Path, what: &str, variable: &str) -> Result<String> {
    let shown = path.display();
    let failed = |error| Error::system(format!("reading {what} {shown} ({variable})"), error);
    // Checked before opening, because opening a FIFO would wait for its writer.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Error::invalid_argument(format!("{what} {shown} ({variable}) is not a regular file")));
    }
    let mut text = String::new();
    let length =
        File::open(path).map_err(failed)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if length as u64 > MAX_FILE_BYTES {
        let message = format!("{what} {shown} ({variable}) must be at most {MAX_FILE_BYTES} bytes long");
        return Err(Error::invalid_argument(message));
    }
    Ok(text)
}

/// The longest are topology files: a host of 72 GPUs takes some 64 KiB.
const MAX_FILE_BYTES: u64 = 16 << 20;
