//! Work that this process still does when SIGTERM asks it to end.
//!
//! The handler of the signal rings a thread and does nothing else, since a handler may neither allocate nor take locks.
//! The thread does the work, gives the signal its default meaning back, and sends it again. A forked child has the
//! handler and not the thread: there the signal ends the process at once, as it would without either.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::{Error, Result};
use crate::sync::primitive::{Ordering, statics::AtomicU64};
use crate::sys::{host, open, thread};

/// Does `work` on a thread of its own when SIGTERM comes, and then ends the process by that signal. The first call of a
/// process counts. False where the program handles or ignores the signal itself: it is left alone then.
///
/// # Errors
/// [`crate::error::Kind::System`] where there is no descriptor or thread for it.
pub fn before_sigterm(work: impl FnOnce() + Send + 'static) -> Result<bool> {
    let me = u64::from(host::process_id());
    // Relaxed: a claim. A forked child claims anew.
    if OWNER.swap(me, Ordering::Relaxed) == me {
        return Ok(true);
    }
    // SAFETY: the structure is made of integers and pointers, for which zero is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks for the disposition, into a structure of ours.
    let asked = unsafe { libc::sigaction(libc::SIGTERM, std::ptr::null(), &raw mut action) };
    let ours = (on_sigterm as *const ()).addr();
    if asked != 0 || (action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != ours) {
        return Ok(false);
    }
    // SAFETY: the call takes numbers.
    let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    // SAFETY: it is what the call has just returned.
    let bell = unsafe { open::own(raw) }.map_err(|error| Error::system("an eventfd for SIGTERM", error))?;
    // Release: pairs with the acquire of the handler, which rings what is there.
    BELL.store(u64::try_from(bell.as_raw_fd()).unwrap_or(0), Ordering::Release);
    // It lives as long as the process.
    drop(thread::spawn("rsccl recorder", move || serve(&bell, work))?);
    action.sa_sigaction = ours;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler makes system calls and atomic accesses only, which a handler may.
    let set = unsafe { libc::sigaction(libc::SIGTERM, &raw const action, std::ptr::null_mut()) };
    if set == 0 { Ok(true) } else { Err(Error::last_os("a handler of SIGTERM")) }
}

fn serve(bell: &OwnedFd, work: impl FnOnce()) {
    let mut count = 0u64;
    loop {
        // SAFETY: `count` is ours, and as long as the call is told.
        let read = unsafe { libc::read(bell.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
        if read > 0 {
            break;
        }
    }
    work();
    end();
}

/// Ends the process by SIGTERM, as the signal does by itself.
fn end() {
    // SAFETY: the default disposition, no handler of ours is involved.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_DFL) };
    // SAFETY: the call takes nothing.
    let me = unsafe { libc::getpid() };
    // SAFETY: the call takes numbers.
    unsafe { libc::kill(me, libc::SIGTERM) };
}

extern "C" fn on_sigterm(_: libc::c_int) {
    // SAFETY: the call takes nothing.
    let me = unsafe { libc::getpid() };
    // Relaxed: the process itself has stored it. Acquire: see where the bell is made.
    if u64::try_from(me) != Ok(OWNER.load(Ordering::Relaxed)) {
        return end();
    }
    let bell = i32::try_from(BELL.load(Ordering::Acquire)).unwrap_or(-1);
    let one = 1u64;
    // SAFETY: the call takes nothing.
    let errno = unsafe { libc::__errno_location() };
    // The interrupted code may be about to read it.
    // SAFETY: the place of this thread's `errno`, which lives as long as the thread.
    let before = unsafe { errno.read() };
    // SAFETY: eight bytes of ours; a descriptor that is gone is an error.
    unsafe { libc::write(bell, (&raw const one).cast(), size_of::<u64>()) };
    // SAFETY: as above.
    unsafe { errno.write(before) };
}

/// The process that does work before it ends.
static OWNER: AtomicU64 = AtomicU64::new(0);
/// The descriptor that its thread reads.
static BELL: AtomicU64 = AtomicU64::new(0);
