//! A data socket that notices when nothing answers at the other end: a cable, a switch, an interface or a host that
//! died says nothing.
//!
//! Who waits to receive is told by keep-alive: the systems of both hosts exchange probes while nothing else comes. Who
//! has sent something that nobody acknowledges looks at what TCP tells ([`DataSocket::look`]). `TCP_USER_TIMEOUT` would
//! do the latter, but ends a connection too whose receiver lives and does not read for so long (Linux since 5.11), and
//! a rank that computes reads nothing.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

use crate::error::{Error, Kind, Result};
use crate::sys::{descriptor, interfaces, unanswered};
use crate::transport::net::wire::DataSocket;

/// The socket.
#[derive(Debug)]
pub(in crate::transport) struct WatchedSocket {
    stream: TcpStream,
    /// Its addresses, which the system forgets once it has given it up.
    own: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    /// How long the other end may answer nothing.
    silence: Duration,
    /// Since when something has been owed an answer.
    since: Option<Instant>,
}

impl WatchedSocket {
    /// A connected `stream`, whose other end may be silent for so long.
    pub(super) fn new(stream: TcpStream, silence: Duration) -> WatchedSocket {
        let (own, peer) = (stream.local_addr().ok(), stream.peer_addr().ok());
        WatchedSocket { stream, own, peer, silence, since: None }
    }

    /// The error of the system in words, where it means that nothing answers.
    fn explain(&self, error: Error) -> Error {
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
        match source.map(io::Error::kind) {
            Some(
                ErrorKind::TimedOut
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::NetworkDown,
            ) => self.lost(error.message()),
            _ => error,
        }
    }

    fn lost(&self, why: &str) -> Error {
        let ip = |address: Option<SocketAddr>| {
            address.map_or_else(|| "an unknown address".to_owned(), |address| address.ip().to_string())
        };
        let known = interfaces::list().unwrap_or_default();
        let interface = known.iter().find(|known| self.own.is_some_and(|own| own.ip() == known.address));
        let (name, state) = match interface {
            Some(interface) if interface.running => (&*interface.name, ""),
            Some(interface) => (&*interface.name, ", which is down or has no carrier,"),
            None => ("of this host that is gone", ""),
        };
        let seconds = self.silence.as_secs();
        Error::new(
            Kind::Remote,
            format!(
                "interface {name} ({}){state} gets no answer from {} any more (RSCCL_NIC_TIMEOUT={seconds}): {why}",
                ip(self.own),
                ip(self.peer)
            ),
        )
    }
}

impl AsFd for WatchedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl DataSocket for WatchedSocket {
    fn may_stop_anywhere(&self) -> bool {
        true
    }

    fn read_into(&self, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>> {
        let mut stream = &self.stream;
        let read = descriptor::settled("read from a data socket", || stream.read_vectored(parts));
        read.map_err(|error| self.explain(error))
    }

    fn write_from(&self, parts: &[IoSlice<'_>]) -> Result<Option<usize>> {
        let written = descriptor::settled("write to a data socket", || descriptor::write_parts(&self.stream, parts));
        written.map_err(|error| self.explain(error))
    }

    fn look(&mut self, now: Instant) -> Result<()> {
        let silence = unanswered::silence(self.stream.as_fd());
        let (since, is_over) = waited((self.since, now), silence, allowed(self.silence));
        self.since = since;
        match is_over {
            true => Err(self.lost("what was sent is not acknowledged")),
            false => Ok(()),
        }
    }
}

/// Since when something is owed an answer, of which the last came `silence` ago; `None` where nothing is owed. And
/// whether that is longer than `allowed`.
fn waited(
    (since, now): (Option<Instant>, Instant),
    silence: Option<Duration>,
    allowed: Duration,
) -> (Option<Instant>, bool) {
    let Some(silence) = silence else { return (None, false) };
    // The silence may have begun long before anything was sent; and an answer may have come since the last look.
    let since = since.unwrap_or(now).max(now.checked_sub(silence).unwrap_or(now));
    (Some(since), now.saturating_duration_since(since) >= allowed)
}

/// What is left of the user's time when a first packet has been sent again, and between two looks.
fn allowed(silence: Duration) -> Duration {
    silence.saturating_sub(LOST_BY_LOOKING)
}

/// Has the system ask a silent peer's system whether it lives, and ask soon enough while the peer takes nothing.
pub(super) fn probe(socket: &SockRef<'_>, silence: Duration) -> io::Result<()> {
    let (idle, interval, probes) = probes(silence);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes))?;
    // Kernels before 6.15 do not know it. There a NIC that dies while its peer has long taken nothing is noticed with
    // the system's next probe, within two minutes.
    unanswered::limit_resend_pause(socket.as_fd(), silence / 5);
    Ok(())
}

/// After how much silence the system sends a first probe, the pause to the next, and how many it sends: before the
/// last has had its time the silence is over.
fn probes(silence: Duration) -> (Duration, Duration, u32) {
    let seconds = u32::try_from(silence.as_secs()).unwrap_or(u32::MAX).max(2);
    let interval = (seconds / 10).max(1);
    let probes = (seconds / interval).saturating_sub(2).clamp(1, MOST_PROBES);
    let idle = (seconds - 1).saturating_sub(probes * interval).max(1);
    (Duration::from_secs(idle.into()), Duration::from_secs(interval.into()), probes)
}

/// The most probes that are not answered.
const MOST_PROBES: u32 = 5;
/// The system sends a packet again after a few hundred milliseconds; looks are half a second apart.
const LOST_BY_LOOKING: Duration = Duration::from_secs(1);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::sys::clock;

    #[test]
    fn all_probes_have_had_their_time_before_the_silence_is_over() {
        for seconds in (2..=60).chain([100, 1000, 3600]) {
            let (idle, interval, count) = probes(Duration::from_secs(seconds));
            let all = idle + interval * count;
            assert!(idle.as_secs() >= 1 && interval.as_secs() >= 1 && count >= 1, "{seconds}");
            assert!(all.as_secs() <= seconds.max(2) && all.as_secs() * 2 >= seconds, "{seconds}: {all:?}");
        }
        assert_eq!(probes(Duration::from_secs(10)), (Duration::from_secs(4), Duration::from_secs(1), 5));
    }

    #[test]
    fn only_what_was_sent_and_finds_no_answer_counts() {
        let (start, allowed) = (clock::now(), Duration::from_secs(9));
        let second = |count: u64| Duration::from_secs(count);
        // Nothing was sent for an hour; the first packet is lost.
        let (since, is_over) = waited((None, start), Some(second(3600)), allowed);
        assert_eq!((since, is_over), (Some(start), false));
        let at = |seconds, silence| waited((since, start + second(seconds)), silence, allowed);
        assert!(!at(8, Some(second(3608))).1 && at(9, Some(second(3609))).1);
        // An answer has come in between.
        assert_eq!(at(9, Some(second(2))), (Some(start + second(7)), false));
        assert_eq!(at(9, None), (None, false));
    }

    /// A rank that computes reads nothing: its system answers for it.
    #[test]
    fn a_peer_that_takes_nothing_is_not_lost() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_kept, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        probe(&SockRef::from(&stream), Duration::from_secs(2)).unwrap();
        let mut socket = WatchedSocket::new(stream, Duration::from_secs(2));
        while socket.write_from(&[IoSlice::new(&[0; 65536])]).unwrap().is_some() {}
        let start = clock::now();
        while clock::now().duration_since(start) < Duration::from_secs(4) {
            crate::sys::poller::pause(Duration::from_millis(100));
            socket.look(clock::now()).unwrap();
        }
        // The system has not given it up either.
        let _room = socket.write_from(&[IoSlice::new(&[0; 8])]).unwrap();
    }
}
