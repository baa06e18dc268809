//! What TCP tells of a connection whose data do not arrive.

use std::os::fd::{AsRawFd, BorrowedFd};

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
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| info[at + byte]));
    let found = Unanswered { packets: word(UNACKNOWLEDGED), times: info[SENT_AGAIN], packet_bytes: word(SEGMENT) };
    (found.packets > 0 && found.times > 0).then_some(found)
}

// Where these stand in `struct tcp_info`, of which a kernel writes as many bytes as are asked for.
/// `tcpi_retransmits`.
const SENT_AGAIN: usize = 2;
/// `tcpi_snd_mss`.
const SEGMENT: usize = 16;
/// `tcpi_unacked`.
const UNACKNOWLEDGED: usize = 24;
const TOLD_BYTES: usize = UNACKNOWLEDGED + 4;

const _: () = assert!(std::mem::offset_of!(libc::tcp_info, tcpi_retransmits) == SENT_AGAIN);
const _: () = assert!(std::mem::offset_of!(libc::tcp_info, tcpi_snd_mss) == SEGMENT);
const _: () = assert!(std::mem::offset_of!(libc::tcp_info, tcpi_unacked) == UNACKNOWLEDGED);

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
        assert_eq!(of(stream.as_fd()), None);
        assert_eq!(of(UnixStream::pair().unwrap().0.as_fd()), None);
    }
}
