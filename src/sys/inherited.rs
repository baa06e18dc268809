//! The library's sockets in a forked child: dead ends.
//!
//! A forked child has a copy of each descriptor of its parent. The kernel tells a peer that a connection has ended when
//! the last copy is closed. So a child that lives longer than its parent, such as a data loader that has only to read,
//! would keep the parent's connections open, and the parent's peers would wait for a dead rank until their deadlines.
//!
//! The lock of a file likewise ends with its last copy.
//!
//! So in the child an unconnected socket takes the place of each socket and locked file of the library, under the same
//! number: an object of the parent that the child drops closes that, and no descriptor that the program has opened
//! meanwhile. Nobody in the child uses the parent's sockets ([`Birthplace`](super::fork::Birthplace)).
//!
//! A table says which numbers these have. Its entries are their identity (device and inode), so that a socket's entry
//! needs no end: if the number belongs to something else at the fork, that is left alone. A file's entry ends with it,
//! since a file system gives inodes again.

use std::cell::UnsafeCell;
use std::os::fd::RawFd;

use crate::sync::primitive::{Ordering, statics};
use crate::sys::fork;

/// While this lives no fork begins: what is opened meanwhile is in the table when one does.
#[derive(Debug)]
pub(super) struct ForksHeld {
    _held: statics::MutexGuard<'static, ()>,
}

impl ForksHeld {
    /// From before a socket is made, for a moment: forks wait.
    pub(super) fn begin() -> ForksHeld {
        fork::watch();
        ForksHeld { _held: lock() }
    }

    /// Puts the descriptor into the table.
    pub(super) fn note(&self, descriptor: RawFd) {
        let (Some((chunk, slot)), Some((device, inode))) = (place(descriptor), identity(descriptor)) else { return };
        let table = &CHUNKS[chunk];
        // Relaxed, here and below: the lock orders all accesses, since a fork holds it.
        let mut found = table.load(Ordering::Relaxed);
        if found.is_null() {
            found = Box::into_raw(Box::new([const { Slot::new() }; CHUNK]));
            table.store(found, Ordering::Relaxed);
        }
        // SAFETY: a box that is never freed.
        let slot = unsafe { &(*found)[slot] };
        slot.device.store(device, Ordering::Relaxed);
        slot.inode.store(inode, Ordering::Relaxed);
    }

    /// Takes the descriptor out of the table, before it is closed.
    pub(super) fn forget(&self, descriptor: RawFd) {
        let Some((chunk, slot)) = place(descriptor) else { return };
        // Relaxed: see `note`.
        // SAFETY: null, or a box that is never freed.
        if let Some(slots) = unsafe { CHUNKS[chunk].load(Ordering::Relaxed).as_ref() } {
            slots[slot].inode.store(0, Ordering::Relaxed);
        }
    }
}

/// A descriptor of the library, as `fstat` knows it.
#[derive(Debug)]
struct Slot {
    device: statics::AtomicU64,
    /// 0 where there is none.
    inode: statics::AtomicU64,
}

impl Slot {
    const fn new() -> Slot {
        Slot { device: statics::AtomicU64::new(0), inode: statics::AtomicU64::new(0) }
    }
}

/// By descriptor, in chunks that are made when they are needed: a child may not allocate.
static CHUNKS: [statics::AtomicPtr<[Slot; CHUNK]>; CHUNKS_MOST] =
    [const { statics::AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS_MOST];
const CHUNK: usize = 1024;
/// For a million descriptors, the kernel's own limit for a process (`fs.nr_open`) unless somebody raises it.
const CHUNKS_MOST: usize = 1024;

fn place(descriptor: RawFd) -> Option<(usize, usize)> {
    let number = usize::try_from(descriptor).ok()?;
    (number / CHUNK < CHUNKS_MOST).then_some((number / CHUNK, number % CHUNK))
}

/// Device and inode; async-signal-safe.
fn identity(descriptor: RawFd) -> Option<(u64, u64)> {
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a call on a number; it fills `about`.
    let told = unsafe { libc::fstat(descriptor, &raw mut about) };
    (told == 0).then_some((about.st_dev, about.st_ino))
}

/// Held while a socket is opened, and across a fork.
static OPENING: statics::Mutex<()> = statics::Mutex::new(());

fn lock() -> statics::MutexGuard<'static, ()> {
    OPENING.lock()
}

/// The lock that the thread has which forks.
struct HeldByFork(UnsafeCell<Option<statics::MutexGuard<'static, ()>>>);

// SAFETY: only the thread touches it that has `OPENING`.
unsafe impl Sync for HeldByFork {}

static HELD: HeldByFork = HeldByFork(UnsafeCell::new(None));

/// Before a fork: waits for sockets that are being opened.
pub(super) fn hold() {
    let held = lock();
    // SAFETY: this thread has just got the lock.
    unsafe { *HELD.0.get() = Some(held) };
}

/// After a fork, in the parent and in the child: the thread that has forked, or its copy, has the lock.
pub(super) fn release() {
    // SAFETY: as above, since `hold`.
    let held = unsafe { (*HELD.0.get()).take() };
    drop(held);
}

/// In a forked child: makes dead ends of the library's sockets. Makes system calls only.
pub(super) fn silence() {
    let mut inert = -1;
    for (first, chunk) in (0..).step_by(CHUNK).zip(&CHUNKS) {
        // Relaxed: see `ForksHeld::note`.
        // SAFETY: null, or a box that is never freed.
        let Some(slots) = (unsafe { chunk.load(Ordering::Relaxed).as_ref() }) else { continue };
        for (descriptor, slot) in (first..).zip(slots) {
            let noted = (slot.device.load(Ordering::Relaxed), slot.inode.load(Ordering::Relaxed));
            slot.inode.store(0, Ordering::Relaxed);
            if noted.1 != 0 && identity(descriptor) == Some(noted) {
                replace(descriptor, &mut inert);
            }
        }
    }
    if inert >= 0 {
        // SAFETY: it was made here, and has no owner.
        unsafe { libc::close(inert) };
    }
}

/// Puts a copy of `inert` under the number; makes `inert` first where it is negative.
fn replace(descriptor: RawFd, inert: &mut RawFd) {
    if *inert < 0 {
        *inert = unconnected();
    }
    if *inert < 0 {
        // No number is left: this one becomes the dead end itself, since it is the lowest that is free.
        // SAFETY: the parent's objects own the number, and get it back at once.
        unsafe { libc::close(descriptor) };
        let made = unconnected();
        if made >= 0 && made != descriptor {
            *inert = made;
        }
    }
    if *inert >= 0 {
        // SAFETY: the parent's objects own the number, and keep it.
        if unsafe { libc::dup3(*inert, descriptor, libc::O_CLOEXEC) } < 0 {
            // The number lies above a limit that was lowered: nobody can get it.
            // SAFETY: as above.
            unsafe { libc::close(descriptor) };
        }
    }
}

fn unconnected() -> RawFd {
    // SAFETY: a plain call.
    unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use socket2::{Domain, Protocol};

    use crate::sys::open;

    fn listener() -> TcpListener {
        let socket = open::socket(Domain::IPV4, Some(Protocol::TCP)).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        socket.listen(4).unwrap();
        socket.into()
    }

    /// Runs `meanwhile` while a forked child does nothing.
    fn beside_an_idle_child(meanwhile: impl FnOnce()) {
        // SAFETY: the child only sleeps, and is ended below.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: a plain call.
                unsafe { libc::pause() };
            }
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        let mut status = 0;
        // SAFETY: the child is ours and unreaped.
        unsafe { libc::kill(child, libc::SIGKILL) };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        done.unwrap();
    }

    /// Both ends of a connection, one of the library's and one that is not.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = listener();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ours = std::iter::repeat_with(|| open::accept_tcp(&listener)).find_map(std::io::Result::ok).unwrap().0;
        ours.set_nonblocking(false).unwrap();
        (ours, theirs)
    }

    #[test]
    fn a_peer_sees_the_end_of_a_connection_of_which_a_child_has_a_copy() {
        let (ours, mut theirs) = connection();
        theirs.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        beside_an_idle_child(|| {
            (&ours).write_all(b"x").unwrap();
            theirs.read_exact(&mut [0]).unwrap();
            drop(ours);
            assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "the end of the stream");
        });
    }

    #[test]
    fn a_child_has_no_copy_of_what_another_library_has_opened() {
        let listener = listener();
        let foreign = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = std::iter::repeat_with(|| open::accept_tcp(&listener)).find_map(std::io::Result::ok);
        let mut peer = accepted.unwrap().0;
        peer.set_nonblocking(false).unwrap();
        peer.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        open::note_foreign(&[foreign.as_raw_fd()]);
        beside_an_idle_child(|| {
            drop(foreign);
            assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the end of the stream");
        });
    }

    /// Its library closes it, and another file gets its number and may be like it.
    #[test]
    fn a_child_keeps_what_has_the_number_of_a_foreign_descriptor_that_was_forgotten() {
        let file = std::fs::File::open("/dev/zero").unwrap();
        open::note_foreign(&[file.as_raw_fd()]);
        open::forget_foreign(&[file.as_raw_fd()]);
        assert!(super::super::fork::in_child(|| (&file).read(&mut [7]).is_ok_and(|count| count == 1)));
    }

    #[test]
    fn a_child_has_a_dead_end_and_leaves_what_has_taken_a_number_since() {
        let (ours, mut theirs) = connection();
        let (gone, _other) = connection();
        let copy = gone.as_raw_fd();
        let file = std::fs::File::open("/dev/zero").unwrap();
        // The number of a noted socket becomes another file's at once: no other test can take it in between.
        let taken = std::mem::ManuallyDrop::new(gone);
        // SAFETY: both are open. dup3 closes the socket behind the number, and `taken` is never dropped: the number is
        // closed once, below.
        assert_eq!(unsafe { libc::dup3(file.as_raw_fd(), taken.as_raw_fd(), libc::O_CLOEXEC) }, copy);
        assert!(super::super::fork::in_child(|| {
            let mut byte = [7u8];
            // SAFETY: one byte goes to `byte`.
            let read = unsafe { libc::read(copy, byte.as_mut_ptr().cast(), 1) };
            (&ours).write_all(b"y").is_err() && read == 1 && byte == [0]
        }));
        // SAFETY: made above.
        unsafe { libc::close(copy) };
        (&ours).write_all(b"x").unwrap();
        let mut heard = [0];
        theirs.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"x", "the child has sent nothing");
    }

    /// Regression: a child could not write to a file of the program that had the descriptor and the inode of a locked
    /// file of the library from before.
    #[test]
    fn a_file_that_has_a_locked_files_number_since_is_a_file_in_a_child() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let mut options = std::fs::OpenOptions::new();
        options.create(true).truncate(false).write(true);
        // In a child of its own: no other test takes the number in between.
        assert!(super::super::fork::in_child(|| {
            let number = open::lock_file(&options, &path).expect("a file").as_raw_fd();
            let mut file = options.open(&path).expect("the file again");
            file.as_raw_fd() == number && super::super::fork::in_child(|| file.write_all(b"x").is_ok())
        }));
    }
}
