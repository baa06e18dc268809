//! What a launcher gives to its ranks beside variables: a socket that is open already, and work at the end of the
//! process.

use std::io;
use std::os::fd::OwnedFd;

use socket2::Socket;

use crate::sys::open;

/// A copy of the socket that this process was started with under this number. The number's own descriptor stays open.
///
/// # Errors
/// The system's, if the number is no open descriptor, or not that of a socket.
pub fn socket(number: u32) -> io::Result<Socket> {
    let number = i32::try_from(number).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: it copies a descriptor, and fails for a number that is none; the copy is this call's alone.
    let copy: OwnedFd = unsafe { open::own(libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0)) }?;
    let socket = Socket::from(copy);
    socket.r#type()?;
    Ok(socket)
}

/// Whether a library of this process, or the program, exports a function of this name.
pub fn has_function(name: &std::ffi::CStr) -> bool {
    // SAFETY: the name ends in a zero byte; the address is compared, and not used.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null()
}

/// Has `work` called when the process ends by itself: by `exit`, or by the end of `main`. `false` if the system has no
/// room for it.
pub fn at_exit(work: extern "C" fn()) -> bool {
    // SAFETY: the function lives as long as the program; a library that is unloaded has it called before.
    unsafe { libc::atexit(work) == 0 }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_socket_is_copied_and_other_numbers_are_refused() {
        let (mine, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut copy = socket(u32::try_from(mine.as_raw_fd()).unwrap()).unwrap();
        drop(mine);
        copy.write_all(b"x").unwrap();
        let mut byte = [0];
        theirs.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(socket(u32::try_from(file.as_raw_fd()).unwrap()).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
        assert_eq!(socket(u32::MAX).unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(socket(1_000_000).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn functions_of_this_process_are_found() {
        assert!(has_function(c"malloc") && !has_function(c"no_such_function"));
    }
}
