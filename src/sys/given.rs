//! What a launcher gives to its ranks beside variables: a socket that is open already, and work at the end of the
//! process.

use std::io;
use std::os::fd::OwnedFd;

use socket2::Socket;

use crate::sys::library::as_function;
use crate::sys::open;

/// A copy of the socket that this process was started with under this number. The number's own descriptor stays open.
///
/// # Errors
/// The system's, if the number is no open descriptor, or not that of a socket.
pub fn socket(number: u32) -> io::Result<Socket> {
    let number = i32::try_from(number).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: it copies a descriptor, and fails for a number that is none.
    let copied = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: the copy is this call's alone.
    let copy: OwnedFd = unsafe { open::own(copied) }?;
    let socket = Socket::from(copy);
    socket.r#type()?;
    Ok(socket)
}

/// How far MPI is in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MpiState {
    /// No library of the process is an MPI.
    None,
    /// It is there, and was not initialised.
    Waits,
    /// It is initialised.
    Runs,
    /// It was finalised.
    Ended,
}

/// Asks the MPI library of this process, if there is one.
pub fn mpi_state() -> MpiState {
    // SAFETY: all MPIs and all their versions give the two functions this type.
    let [begun, ended] = [c"MPI_Initialized", c"MPI_Finalized"].map(|name| unsafe { function::<AskMpi>(name) });
    let (Some(begun), Some(ended)) = (begun, ended) else { return MpiState::None };
    let asks = |ask: AskMpi| {
        let mut answer = 0;
        // SAFETY: the function may be called at any time, by any thread, and writes one number.
        unsafe { ask(&raw mut answer) };
        answer != 0
    };
    match (asks(begun), asks(ended)) {
        (_, true) => MpiState::Ended,
        (true, false) => MpiState::Runs,
        (false, false) => MpiState::Waits,
    }
}

type AskMpi = unsafe extern "C" fn(*mut libc::c_int) -> libc::c_int;

/// The function of this name that a library of this process, or the program, exports.
///
/// # Safety
/// `F` is a pointer to a function of the type that the name has.
unsafe fn function<F: Copy>(name: &std::ffi::CStr) -> Option<F> {
    // SAFETY: the name ends in a zero byte.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the caller knows the type.
    unsafe { as_function(address) }
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
        // SAFETY: the type of `getpid`.
        let pid = unsafe { function::<extern "C" fn() -> i32>(c"getpid") }.unwrap();
        assert_eq!(u32::try_from(pid()).unwrap(), std::process::id());
        // SAFETY: there is no such function.
        assert!(unsafe { function::<extern "C" fn()>(c"no_such_function") }.is_none());
        #[cfg(not(feature = "mpi"))]
        assert_eq!(mpi_state(), MpiState::None);
    }
}
