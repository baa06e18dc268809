//! What codes of libibverbs mean for connections: plain numbers in, verdicts out.

use std::ffi::c_int;

use crate::error::Kind;
use crate::transport::verbs::abi::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_WC_LOC_LEN_ERR,
};

/// What has become of a port or of its device, by one of the device's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VerbsEvent {
    /// This port of the device has gone down, or is up again.
    PortDown,
    PortUp,
    /// Nothing on the device works any more.
    DeviceLost(&'static str),
    /// The queue pair at this address has failed, by the peer's fault or the device's.
    PairLost(u64, (&'static str, Kind)),
    /// An event that changes nothing here.
    Other,
}

impl VerbsEvent {
    /// The event of this kind. `element` is libibverbs's union of pointers and the number of a port; `port` is the port
    /// that is used.
    pub(super) fn of((kind, element): (u32, u64), port: u8) -> VerbsEvent {
        let is_of_port = number_of_port(element) == c_int::from(port);
        match kind {
            IBV_EVENT_CQ_ERR => VerbsEvent::DeviceLost("its queue of completions has overrun or failed (CQ_ERR)"),
            IBV_EVENT_DEVICE_FATAL => VerbsEvent::DeviceLost("the device has failed or was removed (DEVICE_FATAL)"),
            IBV_EVENT_QP_FATAL => VerbsEvent::PairLost(element, ("a queue pair has failed (QP_FATAL)", Kind::System)),
            IBV_EVENT_QP_REQ_ERR => {
                VerbsEvent::PairLost(element, ("the peer sent what it may not (QP_REQ_ERR)", Kind::Remote))
            }
            IBV_EVENT_QP_ACCESS_ERR => {
                VerbsEvent::PairLost(element, ("the peer asked for what it may not (QP_ACCESS_ERR)", Kind::Remote))
            }
            IBV_EVENT_PORT_ERR if is_of_port => VerbsEvent::PortDown,
            IBV_EVENT_PORT_ACTIVE if is_of_port => VerbsEvent::PortUp,
            _ => VerbsEvent::Other,
        }
    }
}

/// The number lies in the first bytes of the union, as an `int`.
fn number_of_port(element: u64) -> c_int {
    element.to_ne_bytes().first_chunk().map_or(0, |bytes| c_int::from_ne_bytes(*bytes))
}

/// Whose fault a completion's status is: [`Kind::Remote`] where it is the peer's or that of the way to it, and the own
/// port is up; [`Kind::System`] where it is this host's.
pub(super) fn fault_of(status: u32, (is_send, is_port_up): (bool, bool)) -> Kind {
    // BAD_RESP_ERR; REM_INV_REQ, REM_ACCESS, REM_OP, RETRY_EXC, RNR_RETRY_EXC; REM_INV_RD_REQ, REM_ABORT.
    let is_peers = matches!(status, 7 | 9..=13 | 15 | 16) || (status == IBV_WC_LOC_LEN_ERR && !is_send);
    if is_peers && is_port_up { Kind::Remote } else { Kind::System }
}

/// What has become of a request that was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PostVerdict {
    Taken,
    /// The queue is full.
    Later,
    Refused(i32),
    /// The request lies in its queue, but the device was not told of it: the code is that of its doorbell.
    Untold(i32),
}

impl PostVerdict {
    /// By the code of the call, and whether it has said which request is the first that was not taken.
    pub(super) fn of(code: c_int, names_request: bool) -> PostVerdict {
        match (code.wrapping_abs(), names_request) {
            (0, _) => PostVerdict::Taken,
            // Drivers say the first where a queue is full, and some the second.
            (ENOMEM | EAGAIN, true) => PostVerdict::Later,
            (code, true) => PostVerdict::Refused(code),
            (code, false) => PostVerdict::Untold(code),
        }
    }
}

/// Whether `ibv_fork_init` is to be called: by the answer of `ibv_is_fork_initialized`, which older releases lack.
/// Where the kernel copies pinned pages at a fork (5.12) it is not needed, and may harm: providers' queues on the heap
/// are then missing in forked children, with other objects on the same pages.
pub(super) fn needs_fork_init(answer: Option<c_int>) -> bool {
    matches!(answer, None | Some(IBV_FORK_DISABLED))
}

pub(super) const EAGAIN: i32 = 11;
pub(super) const ENOMEM: i32 = 12;
const IBV_FORK_DISABLED: c_int = 0;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn events_that_end_something_are_told_from_others() {
        let of_port = |port: c_int| {
            let mut element = [0xee; 8];
            element[..4].copy_from_slice(&port.to_ne_bytes());
            u64::from_ne_bytes(element)
        };
        let of = |kind, element| VerbsEvent::of((kind, element), 2);
        assert!(matches!(of(0, 77), VerbsEvent::DeviceLost(why) if why.contains("CQ_ERR")));
        assert!(matches!(of(8, 77), VerbsEvent::DeviceLost(why) if why.contains("DEVICE_FATAL")));
        for (kind, fault) in [(1, Kind::System), (2, Kind::Remote), (3, Kind::Remote)] {
            let pair = 0x7fff_1234_5678_9abc;
            assert!(matches!(of(kind, pair), VerbsEvent::PairLost(at, (_, whose)) if (at, whose) == (pair, fault)));
        }
        assert_eq!([of(10, of_port(2)), of(9, of_port(2))], [VerbsEvent::PortDown, VerbsEvent::PortUp]);
        for (kind, port) in [(10, 1), (9, 3), (10, 258), (4, 2), (5, 2), (11, 2), (18, 2), (99, 2)] {
            assert_eq!(of(kind, of_port(port)), VerbsEvent::Other, "event {kind} of port {port}");
        }
    }

    #[test]
    fn peers_are_blamed_for_their_own_faults_only() {
        // Of a send and of a receive, as `ibv_wc_status` numbers them.
        let peers = |is_send| (1..=21).filter(move |status| fault_of(*status, (is_send, true)) == Kind::Remote);
        assert_eq!(peers(true).collect::<Vec<_>>(), [7, 9, 10, 11, 12, 13, 15, 16]);
        assert_eq!(peers(false).collect::<Vec<_>>(), [1, 7, 9, 10, 11, 12, 13, 15, 16]);
        // Nothing reaches a peer by a port that is down.
        assert!((1..=21).all(|status| fault_of(status, (status % 2 == 0, false)) == Kind::System));
    }

    #[test]
    fn a_request_that_lies_in_its_queue_is_not_posted_again() {
        for (code, names_request, expected) in [
            (0, false, PostVerdict::Taken),
            (0, true, PostVerdict::Taken),
            (12, true, PostVerdict::Later),
            (-12, true, PostVerdict::Later),
            (11, true, PostVerdict::Later),
            (22, true, PostVerdict::Refused(22)),
            (12, false, PostVerdict::Untold(12)),
            (11, false, PostVerdict::Untold(11)),
            (-5, false, PostVerdict::Untold(5)),
        ] {
            assert_eq!(PostVerdict::of(code, names_request), expected, "{code} {names_request}");
        }
    }

    #[test]
    fn forks_are_prepared_only_where_the_kernel_does_not_copy() {
        assert!(needs_fork_init(None) && needs_fork_init(Some(0)));
        assert!(!needs_fork_init(Some(1)), "the program has done it");
        assert!(!needs_fork_init(Some(2)), "not needed");
    }
}
