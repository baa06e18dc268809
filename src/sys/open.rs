//! Opens what the library opens: every descriptor that it keeps or writes to is made here, or comes here from the
//! system call that made it. `tests/tidy.rs` holds that.
//!
//! The kernel gives the lowest free number to what is opened next. In a program without standard streams (a daemon, a
//! container) that is 0, 1 or 2: a line that any part of the program prints would then go into a connection between
//! ranks, or end the program by SIGPIPE. So what has one of these numbers gets another, which leaves them closed.
//!
//! A forked child gets dead ends in place of the sockets that are made here (`sys::inherited`).
//!
//! What is read whole inside one call, such as a file of `/proc`, may have any number: nothing can be written to it.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::sys::inherited::ForksHeld;

/// `opened`, under a number of its own if it has that of a standard stream.
///
/// # Errors
/// The system's, if no descriptor is left; what was opened is closed then.
pub fn above_streams<T: From<OwnedFd> + Into<OwnedFd>>(opened: T) -> io::Result<T> {
    let opened: OwnedFd = opened.into();
    if opened.as_raw_fd() >= FIRST_OWN {
        return Ok(opened.into());
    }
    // SAFETY: a plain call on a descriptor that we own; it makes another one.
    let raw = unsafe { libc::fcntl(opened.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST_OWN) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call just gave us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) }.into())
}

/// A copy of a descriptor, which stays open when that one is closed.
///
/// # Errors
/// The system's, if no descriptor is left.
pub fn twin(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    above_streams(descriptor.try_clone_to_owned()?)
}

/// What a system call has opened, by its result; the error of the call where that is negative.
///
/// # Errors
/// The system's.
///
/// # Safety
/// `raw` is negative, or a descriptor that the calling thread has just been given and that nobody else owns.
pub unsafe fn own(raw: libc::c_int) -> io::Result<OwnedFd> {
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: by the caller's promise.
    above_streams(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Opens `path` for reading.
///
/// # Errors
/// The system's.
pub fn file(path: &Path) -> io::Result<File> {
    above_streams(File::open(path)?)
}

/// [`file`] of what may be a pipe, for whose other end it does not wait.
///
/// # Errors
/// The system's.
pub fn file_at_once(path: &Path) -> io::Result<File> {
    above_streams(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?)
}

/// Opens `path` as `options` say.
///
/// # Errors
/// The system's.
pub fn file_with(options: &OpenOptions, path: &Path) -> io::Result<File> {
    above_streams(options.open(path)?)
}

/// [`file_with`] of a file that is locked: a forked child gets no copy, which would keep the lock.
///
/// # Errors
/// The system's.
pub fn lock_file(options: &OpenOptions, path: &Path) -> io::Result<LockedFile> {
    let file = options.open(path)?;
    // Not before: a file system may keep an open waiting, and forks with it.
    noted(&ForksHeld::begin(), file).map(|file| LockedFile { file: ManuallyDrop::new(file) })
}

/// [`lock_file`] of what may be a pipe, for whose other end it does not wait.
///
/// # Errors
/// The system's.
pub fn lock_file_at_once(options: &mut OpenOptions, path: &Path) -> io::Result<LockedFile> {
    lock_file(options.custom_flags(libc::O_NONBLOCK), path)
}

/// A file of which a forked child gets no copy.
///
/// A file system gives the inode of a removed file to the next one; no two sockets have the same. So a file that the
/// program opens later may have this one's descriptor, device and inode, and a child would find a dead end in its
/// place: the entry in the table ends when this is dropped.
#[derive(Debug)]
pub struct LockedFile {
    file: ManuallyDrop<File>,
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        let closing = ForksHeld::begin();
        closing.forget(self.file.as_raw_fd());
        // SAFETY: it is dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

/// Calls what opens descriptors in a library that is not ours, none of which gets the number of a standard stream.
///
/// # Errors
/// The system's, if no descriptor is left.
pub fn above_streams_by<T>(open: impl FnOnce() -> T) -> io::Result<T> {
    let mut kept = Vec::new();
    loop {
        // Not `above_streams`: the low numbers are wanted.
        let placeholder = File::open("/dev/null")?;
        if placeholder.as_raw_fd() >= FIRST_OWN {
            break;
        }
        kept.push(placeholder);
    }
    Ok(open())
}

/// Descriptors that a library which is not ours has opened: a forked child gets dead ends in their place.
///
/// Not before they are opened: a driver may keep an open waiting, and forks with it. A fork in between has copies.
pub fn note_foreign(descriptors: &[RawFd]) {
    let opening = ForksHeld::begin();
    descriptors.iter().for_each(|descriptor| opening.note(*descriptor));
}

/// To be called before that library closes them: what the program opens later may be like them.
pub fn forget_foreign(descriptors: &[RawFd]) {
    let closing = ForksHeld::begin();
    descriptors.iter().for_each(|descriptor| closing.forget(*descriptor));
}

/// Writes `bytes` to `path`, where nothing else stands afterwards. A limit of file sizes is an error.
///
/// # Errors
/// The system's.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let mut file = file_with(OpenOptions::new().write(true).create(true).truncate(true), path)?;
    super::writing::without_signal(|| io::Write::write_all(&mut file, bytes.as_ref()))
}

/// A socket, close-on-exec and non-blocking.
///
/// # Errors
/// The system's.
pub fn socket(domain: Domain, protocol: Option<Protocol>) -> io::Result<Socket> {
    let opening = ForksHeld::begin();
    let opened = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), protocol)?;
    noted(&opening, opened)
}

/// The next connection of a listener, which does not block.
///
/// # Errors
/// The system's, such as [`io::ErrorKind::WouldBlock`].
pub fn accept(listener: &Socket) -> io::Result<(Socket, SockAddr)> {
    let opening = ForksHeld::begin();
    let (socket, from) = listener.accept()?;
    Ok((noted(&opening, socket)?, from))
}

/// [`accept`] of a TCP listener.
///
/// # Errors
/// As there.
pub fn accept_tcp(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let opening = ForksHeld::begin();
    let (stream, from) = listener.accept()?;
    Ok((noted(&opening, stream)?, from))
}

/// [`above_streams`] of what a forked child gets no copy of.
fn noted<T: From<OwnedFd> + Into<OwnedFd>>(opening: &ForksHeld, opened: T) -> io::Result<T> {
    let opened: OwnedFd = above_streams(opened.into())?;
    opening.note(opened.as_raw_fd());
    Ok(opened.into())
}

/// The least number of a descriptor of the library.
const FIRST_OWN: libc::c_int = 3;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::sys::alive::Process;
    use crate::sys::bell::Bell;
    use crate::sys::descriptor::{HandoverStream, Listener};
    use crate::sys::memory::SharedMemory;
    use crate::sys::poller::Poller;
    use crate::sys::process::Signals;
    use crate::sys::region::Keep;
    use crate::sys::room::alone;

    fn close_streams() {
        for number in 0..FIRST_OWN {
            // SAFETY: the process is a child of a test, and prints nothing.
            unsafe { libc::close(number) };
        }
    }

    fn are_closed() -> bool {
        // SAFETY: a plain call on a number.
        (0..FIRST_OWN).all(|number| unsafe { libc::fcntl(number, libc::F_GETFD) } < 0)
    }

    /// Everything that is kept open at one time, in a process whose standard streams are closed.
    #[test]
    fn nothing_gets_the_number_of_a_standard_stream() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(alone(|| {
            close_streams();
            let kept = || -> crate::error::Result<_> {
                let name = format!("rsccl-test-open-{}", std::process::id());
                let listener = Listener::bind(&name)?;
                let client = HandoverStream::connect(&name)?.expect("the backlog has room");
                let server = listener.accept()?.expect("it has connected");
                let memory = SharedMemory::memfd(4096)?;
                let file = memory.descriptor().expect("it has one");
                let sent = client.send_descriptor(std::os::fd::AsFd::as_fd(&*file))?;
                let received = server.receive_descriptor()?.expect("it was sent");
                let (bell, poller, signals) = (Bell::new()?, Poller::new()?, Signals::take_over(&[])?);
                Ok((sent && are_closed(), (listener, client, server, memory, received, bell, poller, signals)))
            };
            let files = || -> io::Result<_> {
                write(&path, b"text")?;
                let read = file(&path)?;
                let appended = file_with(OpenOptions::new().append(true), &path)?;
                let socket = socket(Domain::IPV4, Some(Protocol::TCP))?;
                socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
                socket.listen(1)?;
                let listener = TcpListener::from(socket);
                let stream = TcpStream::connect(listener.local_addr()?)?;
                let foreign = above_streams_by(|| File::open(&path))??;
                let accepted = std::iter::repeat_with(|| accept_tcp(&listener)).find_map(io::Result::ok);
                // The test's own stream has number 0.
                drop(above_streams(stream)?);
                Ok((are_closed(), (read, appended, listener, accepted, foreign)))
            };
            let ended = Process::of(i32::MAX).is_some_and(Process::has_ended);
            kept().is_ok_and(|(fine, _kept)| fine) && files().is_ok_and(|(fine, _kept)| fine) && ended && are_closed()
        }));
    }
}
