//! What every command prints, on whatever its standard output and standard error are: a pipe that does not block and
//! has a slow reader, a reader that has gone, a full disk.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rsccl::internals::sys::process::{Want, wait_ready};
use rsccl::{Error, Result};

/// Writes `text` to standard output, all of it: where that does not block, its reader is waited for. A reader that has
/// gone (`rsccl env | head`) has read enough, and is no error.
///
/// # Errors
/// [`rsccl::error::Kind::System`] for everything else, such as a full disk; `what` says what was being written.
pub(crate) fn out(what: &str, text: &str) -> Result<()> {
    match write_all(std::io::stdout().as_fd(), text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Error::system(format!("writing {what} to standard output"), error)),
    }
}

/// Writes a line to standard error. If that cannot be written there is nobody left to tell.
pub(crate) fn complain(line: &str) {
    let written = write_all(std::io::stderr().as_fd(), format!("{line}\n").as_bytes());
    // Not `eprintln!`: it panics here.
    drop(written);
}

/// Writes all of `bytes`. It bypasses the buffers of the standard library, because after an error such a buffer does
/// not tell how much of its content was written.
fn write_all(stream: BorrowedFd<'_>, mut bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::from(stream.try_clone_to_owned()?);
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A reader may take its time: a pipe that blocks would wait as long.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_ready(&[(stream, Want::Write)], None).map_err(std::io::Error::other)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
