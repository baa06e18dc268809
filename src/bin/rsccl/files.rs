//! Files that the user names to be read: however they end, or not.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rsccl::{Error, Result};

/// The most bytes of a file, and what to do about one that has more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    pub(crate) advice: &'static str,
}

/// All that `path` has; one that is longer than `limit` says is an error with its advice. A pipe that has a name would
/// wait for a writer, and a device may never end: they are errors. A pipe that the shell has made (`<(..)`) has its
/// writer.
///
/// # Errors
/// [`rsccl::error::Kind::System`] where it cannot be read; [`rsccl::error::Kind::InvalidArgument`] for what is no file,
/// and where there is more.
pub(crate) fn read(path: &Path, limit: Limit) -> Result<Vec<u8>> {
    let named = |error| Error::system(format!("reading {}", path.display()), error);
    let about = fs::metadata(path).map_err(named)?;
    // What the shell has made leads to no name.
    if about.file_type().is_fifo() && path.canonicalize().is_ok() {
        let shown = path.display();
        return Err(Error::invalid_argument(format!(
            "{shown} is a named pipe, whose writer may never come: name a file"
        )));
    }
    if !about.is_file() && !about.file_type().is_fifo() {
        return Err(Error::invalid_argument(format!("{} is no regular file: name a file", path.display())));
    }
    check_length(path, about.len(), limit)?;
    let mut bytes = Vec::new();
    // A pipe tells no length, and a file may grow meanwhile.
    let length = File::open(path).and_then(|file| file.take(limit.bytes + 1).read_to_end(&mut bytes)).map_err(named)?;
    check_length(path, length as u64, limit)?;
    Ok(bytes)
}

/// That so many bytes of `path` are not too many.
///
/// # Errors
/// [`rsccl::error::Kind::InvalidArgument`] where they are.
pub(crate) fn check_length(path: &Path, bytes: u64, limit: Limit) -> Result<()> {
    if bytes <= limit.bytes {
        return Ok(());
    }
    let (shown, Limit { bytes, advice }) = (path.display(), limit);
    Err(Error::invalid_argument(format!("{shown} has more than {bytes} bytes: {advice}")))
}

/// Equal for two names of one file; `None` where there is none.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|about| (about.dev(), about.ino()))
}
