//! Waiting for sockets with epoll, behind safe functions.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::sys::{futex, open};

/// Watches descriptors, level-triggered: a descriptor that stays ready is reported again.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

/// What to wait for on a descriptor; its end and its errors are always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Only its end and its errors.
    None,
    /// Bytes to read, or a connection to accept.
    Read,
    /// Room to write, or the end of a connect.
    Write,
    /// Both.
    ReadWrite,
}

/// One descriptor's readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    /// The token that [`Poller::add`] was given.
    pub token: u64,
    /// Reading would not block: bytes have arrived, or the stream has ended, or it has an error.
    pub readable: bool,
    /// Writing would not block.
    pub writable: bool,
}

/// The most descriptors that one wait reports; the next wait reports the others.
const BATCH: usize = 256;
const NO_EVENT: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };

/// The results of a wait; the memory is reused.
#[derive(Default)]
pub struct Ready {
    events: Vec<libc::epoll_event>,
    count: usize,
    /// What [`wait_few`] asks for.
    set: Vec<libc::pollfd>,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Ready {
    /// The results of the last wait.
    pub fn iter(&self) -> impl Iterator<Item = Readiness> {
        (0..self.count).filter_map(|place| self.get(place))
    }

    /// Result number `place` of the last wait.
    pub fn get(&self, place: usize) -> Option<Readiness> {
        const READABLE: libc::c_int = libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP;
        const WRITABLE: libc::c_int = libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP;
        let event = self.events.get(..self.count)?.get(place)?;
        Some(Readiness {
            token: event.u64,
            readable: event.events & READABLE.cast_unsigned() != 0,
            writable: event.events & WRITABLE.cast_unsigned() != 0,
        })
    }

    /// Whether the last wait filled it, so that more descriptors may be ready.
    pub fn is_full(&self) -> bool {
        self.count == BATCH
    }
}

impl Poller {
    /// A poller that watches no descriptor yet.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if no descriptor is left.
    pub fn new() -> Result<Poller> {
        // SAFETY: no pointer is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        // SAFETY: it is what the call has just returned.
        let epoll = unsafe { open::own(fd) }.map_err(|error| Error::system("epoll_create1", error))?;
        Ok(Poller { epoll })
    }

    /// Watches `fd` until it is closed or removed. Reports carry `token`.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if it is watched already or the kernel's limit of watches is reached.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, bits(interest))
    }

    /// As [`Poller::add`], edge-triggered: it is reported once if it is ready when added, and each time it becomes
    /// ready again. The caller then reads or writes until that would block.
    ///
    /// # Errors
    /// As [`Poller::add`].
    pub fn add_edge(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, bits(interest) | libc::EPOLLET)
    }

    /// Changes what `fd` is watched for.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if it is not watched.
    pub fn modify(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, bits(interest))
    }

    /// Stops watching `fd`. Closing the last copy of a descriptor does the same.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if it is not watched.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, operation: libc::c_int, fd: BorrowedFd<'_>, token: u64, events: libc::c_int) -> Result<()> {
        let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: token };
        // SAFETY: both descriptors are open for the call, which reads one `epoll_event`.
        let code = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) };
        if code == 0 { Ok(()) } else { Err(Error::last_os("epoll_ctl")) }
    }

    /// Waits at most `timeout` (rounded up to whole milliseconds) until something is ready, and fills `ready`. A signal
    /// ends the wait early with an empty result.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`], which never happens with a valid poller.
    pub fn wait(&self, ready: &mut Ready, timeout: Duration) -> Result<()> {
        ready.count = 0;
        let timeout = milliseconds(timeout);
        let room = libc::c_int::try_from(BATCH).expect("a batch is small");
        ready.events.resize(BATCH, NO_EVENT);
        // SAFETY: the kernel writes at most `room` events, and the array has so many.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), ready.events.as_mut_ptr(), room, timeout) };
        match usize::try_from(count) {
            Ok(count) => {
                ready.count = count;
                Ok(())
            }
            Err(_) => {
                let error = std::io::Error::last_os_error();
                if error.kind() == std::io::ErrorKind::Interrupted {
                    Ok(())
                } else {
                    Err(Error::system("epoll_wait", error))
                }
            }
        }
    }
}

/// As [`Poller::wait`], for descriptors that are named anew at each wait, each with its token: so it takes none of its
/// own. Each costs a little time: for few.
///
/// # Errors
/// [`crate::error::Kind::System`], which never happens with open descriptors.
pub fn wait_few<'a>(
    few: impl Iterator<Item = (u64, BorrowedFd<'a>, Interest)>,
    ready: &mut Ready,
    timeout: Duration,
) -> Result<()> {
    let Ready { events, count, set } = ready;
    *count = 0;
    set.clear();
    events.clear();
    for (token, fd, interest) in few {
        set.push(asked(fd, interest));
        events.push(libc::epoll_event { events: 0, u64: token });
    }
    if set.is_empty() && timeout.is_zero() {
        return Ok(());
    }
    poll(set, timeout)?;
    for place in 0..set.len() {
        // Both calls have the same bits.
        if *count < BATCH && set[place].revents != 0 {
            let reported = u32::from(set[place].revents.cast_unsigned());
            events[*count] = libc::epoll_event { events: reported, u64: events[place].u64 };
            *count += 1;
        }
    }
    Ok(())
}

/// A poller is readable while it has something to report, so that it can be waited for as a descriptor itself.
impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn bits(interest: Interest) -> libc::c_int {
    match interest {
        Interest::None => 0,
        Interest::Read => libc::EPOLLIN | libc::EPOLLRDHUP,
        Interest::Write => libc::EPOLLOUT,
        Interest::ReadWrite => libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLOUT,
    }
}

/// Sleeps for `duration`, or less if a signal arrives. For retries of operations that nothing reports as ready; the
/// caller checks its deadline and abort flag between two retries.
pub fn pause(duration: Duration) {
    // SAFETY: no descriptor is passed, so nothing is read or written.
    unsafe { libc::poll(std::ptr::null_mut(), 0, milliseconds(duration)) };
}

/// How many sent bytes the other end's kernel has not acknowledged yet. Acknowledged bytes can be read there whatever
/// happens to the connection.
///
/// # Errors
/// [`crate::error::Kind::System`] if `fd` is not a connected socket.
pub fn unacknowledged(fd: BorrowedFd<'_>) -> Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: for a socket this request writes one `int`, which `count` is.
    let code = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    if code == 0 { Ok(usize::try_from(count).unwrap_or(0)) } else { Err(Error::last_os("ioctl(SIOCOUTQ)")) }
}

/// Whether the `error` of a non-blocking connect means that it continues; [`Interest::Write`] reports its completion.
pub fn is_under_way(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINPROGRESS)
}

/// Sleeps at most `timeout` until one of these descriptors is ready; for callers without a [`Poller`].
///
/// # Errors
/// [`crate::error::Kind::System`].
pub fn wait_any(interests: &[(BorrowedFd<'_>, Interest)], timeout: Duration) -> Result<()> {
    ready(interests, timeout).map(drop)
}

/// [`wait_any`], which says of each descriptor whether it is ready.
///
/// # Errors
/// As there.
pub fn ready(interests: &[(BorrowedFd<'_>, Interest)], timeout: Duration) -> Result<Vec<bool>> {
    let mut set: Vec<libc::pollfd> = interests.iter().map(|(fd, interest)| asked(*fd, *interest)).collect();
    poll(&mut set, timeout)?;
    Ok(set.iter().map(|one| one.revents != 0).collect())
}

fn asked(fd: BorrowedFd<'_>, interest: Interest) -> libc::pollfd {
    let events = match interest {
        Interest::None => 0,
        Interest::Read => libc::POLLIN | libc::POLLRDHUP,
        Interest::Write => libc::POLLOUT,
        Interest::ReadWrite => libc::POLLIN | libc::POLLRDHUP | libc::POLLOUT,
    };
    libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
}

/// Sleeps at most `timeout` until one of `set` is ready, of which nothing was reported before. A signal ends it early.
/// Where the system refuses for now, it has slept a moment, and each may be ready: callers do not block.
fn poll(set: &mut [libc::pollfd], timeout: Duration) -> Result<()> {
    let count = libc::nfds_t::try_from(set.len()).expect("a count of descriptors");
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    };
    // SAFETY: the set has as many entries as said, and the limit lives through the call.
    let result = unsafe { libc::ppoll(set.as_mut_ptr(), count, &raw const limit, std::ptr::null()) };
    let error = std::io::Error::last_os_error();
    match error.raw_os_error().filter(|_| result < 0) {
        None | Some(libc::EINTR) => {}
        // The kernel has no memory, or the program has set its limit of open files below the number of these.
        Some(libc::ENOMEM | libc::EINVAL) => {
            futex::nap(timeout.min(REFUSED_NAP));
            set.iter_mut().for_each(|one| one.revents = one.events);
            return Ok(());
        }
        Some(_) => return Err(Error::system("ppoll", error)),
    }
    // After an error nothing was written. What the program has closed is reported at once, always.
    if set.iter().any(|one| one.revents & libc::POLLNVAL != 0) {
        return Err(Error::system("ppoll", std::io::Error::from_raw_os_error(libc::EBADF)));
    }
    Ok(())
}

/// Rounded up, so that a wait of less than a millisecond does not spin.
fn milliseconds(duration: Duration) -> libc::c_int {
    let rounded = duration.saturating_add(Duration::from_nanos(999_999)).as_millis();
    libc::c_int::try_from(rounded).unwrap_or(libc::c_int::MAX)
}

/// How long a sleep lasts that the system refuses.
const REFUSED_NAP: Duration = Duration::from_millis(2);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn reports_bytes_room_and_the_end() {
        let poller = Poller::new().unwrap();
        let mut ready = Ready::default();
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        poller.add(ours.as_fd(), 42, Interest::Read).unwrap();
        poller.wait(&mut ready, Duration::ZERO).unwrap();
        assert_eq!(ready.iter().count(), 0);
        theirs.write_all(b"x").unwrap();
        poller.wait(&mut ready, Duration::from_secs(10)).unwrap();
        assert_eq!(ready.iter().collect::<Vec<_>>(), [Readiness { token: 42, readable: true, writable: false }]);
        ours.read_exact(&mut [0]).unwrap();
        poller.modify(ours.as_fd(), 43, Interest::Write).unwrap();
        poller.wait(&mut ready, Duration::from_secs(10)).unwrap();
        assert_eq!(ready.iter().collect::<Vec<_>>(), [Readiness { token: 43, readable: false, writable: true }]);
        drop(theirs);
        poller.modify(ours.as_fd(), 44, Interest::None).unwrap();
        poller.wait(&mut ready, Duration::from_secs(10)).unwrap();
        assert!(ready.iter().all(|event| event.readable && event.token == 44) && !ready.is_full());
        poller.remove(ours.as_fd()).unwrap();
        assert!(poller.remove(ours.as_fd()).is_err());
    }

    #[test]
    fn few_descriptors_are_reported_as_by_a_poller() {
        let mut ready = Ready::default();
        let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        let interests = [Interest::Read, Interest::Write, Interest::None];
        let wait = |ready: &mut Ready, timeout| {
            let few =
                (7..).zip(&pairs).zip(interests).map(|((token, (mine, _)), interest)| (token, mine.as_fd(), interest));
            wait_few(few, ready, timeout).unwrap();
        };
        let room = Readiness { token: 8, readable: false, writable: true };
        wait(&mut ready, Duration::MAX);
        assert_eq!(ready.iter().collect::<Vec<_>>(), [room]);
        (&pairs[0].1).write_all(b"x").unwrap();
        wait(&mut ready, Duration::ZERO);
        let bytes = Readiness { token: 7, readable: true, writable: false };
        assert_eq!(ready.iter().collect::<Vec<_>>(), [bytes, room]);
        pairs[2].1.shutdown(std::net::Shutdown::Both).unwrap();
        wait(&mut ready, Duration::ZERO);
        assert!(ready.iter().any(|event| event.token == 9 && event.readable) && !ready.is_full());
        wait_few(std::iter::empty(), &mut ready, Duration::ZERO).unwrap();
        assert_eq!(ready.iter().count(), 0);
    }

    /// Regression: what sleeps beside descriptors took them for closed, for good.
    #[test]
    #[cfg(not(miri))]
    fn a_sleep_that_the_system_refuses_is_short_and_says_that_all_may_be_ready() {
        let ends = UnixStream::pair().unwrap();
        let interests = [(ends.0.as_fd(), Interest::Read), (ends.1.as_fd(), Interest::None)];
        assert!(crate::sys::fork::in_child(|| {
            let few = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
            // SAFETY: the call reads one `rlimit`.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
            let minute = Duration::from_secs(60);
            let began = crate::sys::clock::now();
            let told = ready(&interests, minute).unwrap();
            let mut few = Ready::default();
            wait_few((7..).zip(interests).map(|(token, (fd, wanted))| (token, fd, wanted)), &mut few, minute).unwrap();
            let took = crate::sys::clock::now().duration_since(began);
            let tokens: Vec<u64> = few.iter().map(|event| event.token).collect();
            told == [true, false] && tokens == [7] && took < minute
        }));
    }

    #[test]
    fn durations_round_up_and_saturate() {
        assert_eq!(milliseconds(Duration::ZERO), 0);
        assert_eq!(milliseconds(Duration::from_micros(1)), 1);
        assert_eq!(milliseconds(Duration::from_millis(7)), 7);
        assert_eq!(milliseconds(Duration::MAX), i32::MAX);
        pause(Duration::from_micros(10));
    }
}
