//! What TCP tells of a connection whose data do not arrive.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Packets that the system has sent again and that nobody has acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswered {
    /// How many are on the way.
    pub packets: u32,
    /// How often in a row the oldest was sent again.
    pub times: u8,
    /// The most bytes of one.
    pub packet_bytes: u32,
}

/// What was sent on a TCP connection and has been sent again without an answer; `None` where all is well, or the kernel
/// does not tell.
pub fn of(socket: BorrowedFd<'_>) -> Option<Unanswered> {
    let info = told(socket)?;
    let found = Unanswered {
        packets: word(&info, UNACKNOWLEDGED),
        times: info[SENT_AGAIN],
        packet_bytes: word(&info, SEGMENT),
    };
    (found.packets > 0 && found.times > 0).then_some(found)
}

/// How long ago the other end of a TCP connection has acknowledged anything, where it owes an answer: to what was sent
/// again, or to a probe whether it takes anything again. `None` where it owes none, or the kernel does not tell.
pub fn silence(socket: BorrowedFd<'_>) -> Option<Duration> {
    let info = told(socket)?;
    let owes = (word(&info, UNACKNOWLEDGED) > 0 && info[SENT_AGAIN] > 0) || info[PROBES] > 0;
    owes.then(|| Duration::from_millis(word(&info, LAST_ACKNOWLEDGED).into()))
}

fn word(info: &[u8; TOLD_BYTES], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|byte| info[at + byte]))
}

fn told(socket: BorrowedFd<'_>) -> Option<[u8; TOLD_BYTES]> {
    let mut info = [0u8; TOLD_BYTES];
    let mut length = libc::socklen_t::try_from(TOLD_BYTES).ok()?;
    // SAFETY: the kernel writes at most `length` bytes into `info`, which is as large.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 || usize::try_from(length).ok()? < TOLD_BYTES {
        return None;
    }
    Some(info)
}

// Where these stand in `struct tcp_info`, of which a kernel writes as many bytes as are asked for.
/// `tcpi_retransmits`.
const SENT_AGAIN: usize = 2;
/// `tcpi_snd_mss`.
const SEGMENT: usize = 16;
/// `tcpi_unacked`.
const UNACKNOWLEDGED: usize = 24;
/// `tcpi_probes`.
const PROBES: usize = 3;
/// `tcpi_last_ack_recv`.
const LAST_ACKNOWLEDGED: usize = 56;
const TOLD_BYTES: usize = LAST_ACKNOWLEDGED + 4;

const _: () = assert!(std::mem::offset_of!(libc::tcp_info, tcpi_retransmits) == SENT_AGAIN);
const _: () = assert!(std::mem::offset_of!(libc::tcp_info, tcpi_snd_mss) == SEGMENT);
const _: () = assert!(std::mem::offset_of!(libc::tcp_info, tcpi_unacked) == UNACKNOWLEDGED);
const _: () = assert!(std::mem::offset_of!(libc::tcp_info, tcpi_probes) == PROBES);
const _: () = assert!(std::mem::offset_of!(libc::tcp_info, tcpi_last_ack_recv) == LAST_ACKNOWLEDGED);

/// Has the system send again what is not acknowledged, and ask a peer that takes nothing, after at most `pause`: it
/// would double the pause each time, up to two minutes. Nothing where the kernel does not know that.
pub fn limit_resend_pause(socket: BorrowedFd<'_>, pause: Duration) {
    let milliseconds = u32::try_from(pause.as_millis()).unwrap_or(u32::MAX).clamp(1000, 120_000);
    let length = libc::socklen_t::try_from(size_of::<u32>()).expect("four bytes");
    // SAFETY: the kernel reads the four bytes of `milliseconds`, which lives through the call.
    let _unknown_before_6_15 = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const milliseconds).cast(),
            length,
        )
    };
}

/// Linux 6.15's `tcp.h`; libc has no name for it.
const TCP_RTO_MAX_MS: libc::c_int = 44;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_connection_that_is_well_and_what_is_none_tell_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let pair = UnixStream::pair().unwrap();
        for socket in [stream.as_fd(), pair.0.as_fd()] {
            assert_eq!((of(socket), silence(socket)), (None, None));
        }
    }
}
