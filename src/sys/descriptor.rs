//! Unix sockets that pass descriptors between processes of one host.
//!
//! Names are abstract, so that no file is left behind, unless the ends have two network namespaces; those where memory
//! is handed over are random. A received descriptor is close-on-exec. A message must carry exactly one descriptor;
//! anything else is an error of the peer.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, SockRef, Socket};

use crate::error::{Error, Result};
use crate::sys::alive::Process;
use crate::sys::fork::Birthplace;
use crate::sys::open;

/// A non-blocking listener on an abstract name, or on a file.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// The file that goes with it, if its name is that of one.
    _file: Option<SocketFile>,
}

/// The file of a listener, which the process that has made it removes, and no forked child.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    birthplace: Birthplace,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.birthplace.is_here() {
            // Where the folder has gone, so has the file.
            let _gone = std::fs::remove_file(&self.path);
        }
    }
}

/// A connected, non-blocking stream.
#[derive(Debug)]
pub struct HandoverStream(Socket);

/// Who listens on a name that anybody can guess.
#[derive(Debug)]
pub enum NameHolder {
    /// Nobody.
    Nobody,
    /// A process of this user.
    Own(HandoverStream),
    /// A process of the user with this number.
    OtherUsers(u32),
    /// Somebody whose backlog is full: look again.
    Busy,
}

impl Listener {
    /// Listens on the abstract `name`.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`].
    pub fn bind(name: &str) -> Result<Listener> {
        let socket = socket()?;
        let address = address(name)?;
        socket.bind(&address).map_err(|error| Error::system(format!("bind of the unix socket @{name}"), error))?;
        socket.listen(BACKLOG).map_err(|error| Error::system("listen on a unix socket", error))?;
        Ok(Listener { socket, _file: None })
    }

    /// Listens on a file of this path, which must not be there, and which goes with the listener.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`].
    pub fn bind_file(path: &Path) -> Result<Listener> {
        let socket = socket()?;
        let failed = |error| Error::system(format!("bind of the unix socket {}", path.display()), error);
        socket.bind(&SockAddr::unix(path).map_err(failed)?).map_err(failed)?;
        let file = SocketFile { path: path.to_owned(), birthplace: Birthplace::here() };
        socket.listen(BACKLOG).map_err(|error| Error::system("listen on a unix socket", error))?;
        Ok(Listener { socket, _file: Some(file) })
    }

    /// Accepts a connection whose other end runs under this user (or root); `None` if none waits. Others are closed.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`].
    pub fn accept(&self) -> Result<Option<HandoverStream>> {
        for _ in 0..UNWELCOME_AT_ONCE {
            let socket = match open::accept(&self.socket) {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(Error::system("accept on a unix socket", error)),
            };
            socket.set_nonblocking(true).map_err(|error| Error::system("a non-blocking unix socket", error))?;
            let (theirs, mine) = users(&socket)?;
            if is_welcome(theirs, mine) {
                return Ok(Some(HandoverStream(socket)));
            }
        }
        // The poller tells of those that still wait.
        Ok(None)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl HandoverStream {
    /// Connects to the abstract `name`; `None` if the listener's backlog is full: call again.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`].
    pub fn connect(name: &str) -> Result<Option<HandoverStream>> {
        HandoverStream::connect_to(&address(name)?, &format!("@{name}"))
    }

    /// [`HandoverStream::connect`] to a file of this path.
    ///
    /// # Errors
    /// As there.
    pub fn connect_file(path: &Path) -> Result<Option<HandoverStream>> {
        let shown = path.display().to_string();
        let address = SockAddr::unix(path).map_err(|error| Error::system(format!("the unix socket {shown}"), error))?;
        HandoverStream::connect_to(&address, &shown)
    }

    fn connect_to(address: &SockAddr, name: &str) -> Result<Option<HandoverStream>> {
        let socket = socket()?;
        match socket.connect(address) {
            Ok(()) => {
                // The listener would close the connection without an answer.
                let (theirs, mine) = users(&socket)?;
                if is_welcome(mine, theirs) { Ok(Some(HandoverStream(socket))) } else { Err(other_user(theirs, mine)) }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(Error::system(format!("connect to the unix socket {name}"), error)),
        }
    }

    /// Connects to the abstract `name`, where anybody may listen, and looks whether it is a process of this user. Root
    /// may connect to any socket, but must not believe it.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`].
    pub fn look_for(name: &str) -> Result<NameHolder> {
        let socket = socket()?;
        match socket.connect(&address(name)?) {
            Ok(()) => {
                let (theirs, mine) = users(&socket)?;
                Ok(if theirs == mine {
                    NameHolder::Own(HandoverStream(socket))
                } else {
                    NameHolder::OtherUsers(theirs)
                })
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(NameHolder::Nobody),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(NameHolder::Busy),
            Err(error) => Err(Error::system(format!("connect to the unix socket @{name}"), error)),
        }
    }

    /// Reads what has arrived; `None` if nothing has, `Some(0)` at the end of the stream.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`].
    pub fn read(&self, into: &mut [u8]) -> Result<Option<usize>> {
        let mut socket = &self.0;
        settle(io::Read::read(&mut socket, into), "read from a unix socket")
    }

    /// Writes as much as fits; `None` if nothing fits.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`].
    pub fn write(&self, bytes: &[u8]) -> Result<Option<usize>> {
        settle(self.0.send_with_flags(bytes, libc::MSG_NOSIGNAL), "write to a unix socket")
    }

    /// The process at the other end: on the connecting side, the one that listened.
    pub fn process(&self) -> Option<Process> {
        credentials(&self.0).ok().and_then(|peer| Process::of(peer.pid))
    }

    /// Sends one byte with a descriptor; false if the socket is full.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`].
    pub fn send_descriptor(&self, descriptor: BorrowedFd<'_>) -> Result<bool> {
        let mut byte = [1u8];
        let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut control = ControlBuffer::new();
        let mut message = control.message(&mut part);
        message.msg_controllen = control_space();
        // SAFETY: `message` has a control buffer of at least one header, set just above.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        let raw = descriptor.as_raw_fd();
        // SAFETY: the header lies in `control`, which is aligned for it.
        let header = unsafe { &mut *header };
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        header.cmsg_len = control_length();
        // SAFETY: CMSG_DATA points behind the header, inside `control`, with room for one descriptor.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: as above; written unaligned, as the macro promises no alignment.
        unsafe { data.cast::<libc::c_int>().write_unaligned(raw) };
        // SAFETY: all pointers in `message` lead to locals that outlive the call.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        if sent == 1 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock {
            Ok(false)
        } else {
            Err(Error::system("sendmsg of a descriptor", error))
        }
    }

    /// Receives one byte with its descriptor; `None` if nothing has arrived yet.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`], also if no descriptor is left; [`crate::error::Kind::Remote`] if the message
    /// does not have exactly one descriptor.
    pub fn receive_descriptor(&self) -> Result<Option<OwnedFd>> {
        let mut byte = [0u8];
        let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut control = ControlBuffer::new();
        let mut message = control.message(&mut part);
        // SAFETY: all pointers in `message` lead to locals that outlive the call.
        let got = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if got < 0 {
            let error = io::Error::last_os_error();
            let nothing = error.kind() == io::ErrorKind::WouldBlock;
            return if nothing { Ok(None) } else { Err(Error::system("recvmsg of a descriptor", error)) };
        }
        let refused =
            || Error::new(crate::error::Kind::Remote, "a peer closed or sent no descriptor where one was due");
        // SAFETY: the kernel has filled `message` in; its control buffer is `control`.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // The kernel drops a descriptor for which this process has no number left.
        if got == 1 && header.is_null() && message.msg_flags & libc::MSG_CTRUNC != 0 {
            let full = io::Error::from_raw_os_error(libc::EMFILE);
            return Err(Error::system("recvmsg of a descriptor", full));
        }
        if got != 1 || header.is_null() {
            return Err(refused());
        }
        // SAFETY: not null, so the header lies inside `control`.
        let header = unsafe { &*header };
        if header.cmsg_level != libc::SOL_SOCKET || header.cmsg_type != libc::SCM_RIGHTS {
            return Err(refused());
        }
        // The buffer has room for one descriptor; the kernel discards the others.
        if header.cmsg_len != control_length() {
            return Err(refused());
        }
        // SAFETY: the length says that one descriptor stands behind the header.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: as above.
        let raw = unsafe { data.cast::<libc::c_int>().read_unaligned() };
        // SAFETY: the kernel has just installed this descriptor for us.
        unsafe { open::own(raw) }.map(Some).map_err(|error| Error::system("dup of a received descriptor", error))
    }
}

impl AsFd for HandoverStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Writes as much of `parts` as fits into a socket. If the peer is gone this is an error and not SIGPIPE, which would
/// end programs that do not ignore it: Rust's runtime does, other languages' do not, and the standard library's
/// vectored write relies on that.
///
/// # Errors
/// The system's.
pub fn write_parts(socket: &impl AsFd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    SockRef::from(socket).send_vectored_with_flags(parts, libc::MSG_NOSIGNAL)
}

/// Makes the call until no signal interrupts it; `None` where it would block. Pumps rely on that: the kernel reports
/// readiness again only after a call that would have blocked.
///
/// # Errors
/// The system's, under the `name` of the call.
pub fn settled(name: &str, mut call: impl FnMut() -> io::Result<usize>) -> Result<Option<usize>> {
    loop {
        return match call() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // A socket that is still connecting says NotConnected to a read.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => Ok(None),
            Err(error) => Err(Error::system(name, error)),
        };
    }
}

/// Room for one control message, aligned for its header.
#[repr(align(8))]
struct ControlBuffer([u8; 64]);

impl ControlBuffer {
    fn new() -> ControlBuffer {
        assert!(control_space() <= 64, "one descriptor's control message fits");
        ControlBuffer([0; 64])
    }

    fn message(&mut self, part: &mut libc::iovec) -> libc::msghdr {
        // SAFETY: all-zero is a valid msghdr: null pointers with zero lengths.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = part;
        message.msg_iovlen = 1;
        message.msg_control = self.0.as_mut_ptr().cast();
        message.msg_controllen = control_space();
        message
    }
}

fn control_space() -> usize {
    // SAFETY: pure arithmetic.
    unsafe { libc::CMSG_SPACE(DESCRIPTOR_BYTES) as usize }
}

fn control_length() -> usize {
    // SAFETY: pure arithmetic.
    unsafe { libc::CMSG_LEN(DESCRIPTOR_BYTES) as usize }
}

fn socket() -> Result<Socket> {
    open::socket(Domain::UNIX, None).map_err(|error| Error::system("a unix socket", error))
}

fn address(name: &str) -> Result<SockAddr> {
    SockAddr::unix(format!("\0{name}")).map_err(|error| Error::system(format!("the unix socket name @{name}"), error))
}

/// The user of the other end and of this end.
fn users(socket: &Socket) -> Result<(u32, u32)> {
    // SAFETY: takes nothing, never fails.
    Ok((credentials(socket)?.uid, unsafe { libc::geteuid() }))
}

fn credentials(socket: &Socket) -> Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("12 bytes");
    // SAFETY: the kernel writes at most `length` bytes into `peer`, which is as large.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(Error::last_os("SO_PEERCRED"));
    }
    Ok(peer)
}

/// Whether a listener run by `owner` accepts a connection of user `guest`: only the same user, or root.
fn is_welcome(guest: u32, owner: u32) -> bool {
    guest == owner || guest == 0
}

fn other_user(theirs: u32, mine: u32) -> Error {
    Error::invalid_usage(format!(
        "it runs as user {theirs} and this rank as user {mine}, but only processes of one user can share memory: run \
         all ranks as one user, or set NCCL_SHM_DISABLE=1 on all"
    ))
}

fn settle(result: io::Result<usize>, call: &str) -> Result<Option<usize>> {
    match result {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(Error::system(call, error)),
    }
}

/// How many connections of other users are closed in a row.
const UNWELCOME_AT_ONCE: u32 = 64;
const BACKLOG: libc::c_int = 1024;
const DESCRIPTOR_BYTES: libc::c_uint = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_travels() {
        let name = format!("rsccl-test-{}-{:p}", std::process::id(), &BACKLOG);
        let listener = Listener::bind(&name).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let client = HandoverStream::connect(&name).unwrap().unwrap();
        let server = listener.accept().unwrap().unwrap();
        assert!(client.receive_descriptor().unwrap().is_none());
        let memory = crate::sys::memory::SharedMemory::memfd(4096).unwrap();
        assert_eq!(client.process(), Process::of(i32::try_from(std::process::id()).unwrap()));
        assert!(server.send_descriptor(crate::sys::region::Keep::descriptor(&memory).unwrap().as_fd()).unwrap());
        let file = client.receive_descriptor().unwrap().unwrap();
        crate::sys::memory::SharedMemory::from_peer(file, 4096).unwrap();
    }

    #[test]
    fn a_message_without_a_descriptor_is_the_peers_fault() {
        let name = format!("rsccl-test-none-{}-{:p}", std::process::id(), &BACKLOG);
        let listener = Listener::bind(&name).unwrap();
        let client = HandoverStream::connect(&name).unwrap().unwrap();
        let server = listener.accept().unwrap().unwrap();
        assert_eq!(server.write(b"x").unwrap(), Some(1));
        assert_eq!(client.receive_descriptor().unwrap_err().kind(), crate::error::Kind::Remote);
    }

    /// Once the listener closed without an answer, and the other rank reported that its peer had closed.
    #[test]
    fn a_listener_of_another_user_is_named() {
        const NOBODY: u32 = 65534;
        assert!(is_welcome(5, 5) && is_welcome(0, 5) && !is_welcome(5, 0) && !is_welcome(5, 6));
        // SAFETY: takes nothing, never fails.
        if unsafe { libc::geteuid() } != 0 {
            drop(io::Write::write_all(&mut io::stderr(), b"skipped: only root can become another user\n"));
            return;
        }
        let name = format!("rsccl-test-{}", std::process::id());
        let _listener = Listener::bind(&name).unwrap();
        let other = crate::sys::thread::spawn("nobody", move || {
            // SAFETY: the call by number changes this thread's users alone; the wrapper of libc would change all
            // threads'.
            let status = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(status, 0);
            HandoverStream::connect(&name).unwrap_err()
        });
        let error = other.unwrap().join().unwrap();
        assert!(error.message().contains("it runs as user 0 and this rank as user 65534"), "{error}");
    }
}
