//! By which way the programs of a rank's device reach the memory of another rank's, and why by none of the better ones.
//!
//! The ways in their order: a direct pointer inside a process, a descriptor (CUMEM), a handle (IPC), memory of a third
//! rank's device that both reach (indirect), pinned memory of the host (SHM); between hosts a fabric handle (MNNVL),
//! and slots that a thread moves over the network (NET). One function decides for a pair what it alone can know; the
//! third device is found by [`Staged`], fabric handles by [`Crossings`].
//!
//! [`Staged`]: crate::reach::staging::Staged
//! [`Crossings`]: crate::reach::crossings::Crossings

use std::fmt;

use crate::reach::staging::Access;
use crate::transport::Policy;
use crate::types::Rank;

/// How a rank's memory leaves its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeavesBy {
    Descriptor,
    /// A handle, as `NCCL_CUMEM_ENABLE=0` asks.
    HandleBySetting,
    /// A handle, because the device has no descriptors.
    HandleByDevice,
}

/// A way between the devices of two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerWay {
    Direct,
    CuMem,
    Ipc,
    /// Over the device of this rank.
    Indirect(Rank),
    Pinned,
    /// By fabric handles, to another host.
    Crossing,
    Wire,
}

/// What is known of two ranks on different devices.
#[derive(Debug, Clone)]
pub(super) struct PairFacts {
    pub peer: Rank,
    /// `None` where the ranks share memory of their host.
    pub far: Option<FarFacts>,
    /// Why settings forbid that this rank's device reaches the peer's.
    pub forbidden: Option<String>,
    /// Why it does not reach it.
    pub(super) unreached: Option<String>,
    /// Whether the ranks are threads of one process.
    pub(super) one_process: bool,
    /// The rank of the pair that has `NCCL_P2P_DIRECT_DISABLE=1`.
    pub(super) without_pointers: Option<Rank>,
    pub(super) leaves_by: LeavesBy,
}

/// What is known of two ranks that share no memory of a host, most often because they are on different ones.
#[derive(Debug, Clone)]
pub(super) struct FarFacts {
    /// Why they hand each other neither GPU memory inside a host (P2P) nor the host's (SHM).
    pub(super) p2p: String,
    pub shm: String,
    /// Why fabric handles do not lead from one to the other; `None` where they do.
    pub apart: Option<String>,
}

/// The way of a pair, and why by none of those above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerDecision {
    pub way: PeerWay,
    refused: Vec<(&'static str, String)>,
    access: Access,
    /// Whether each reads from the memory of the other what that sends.
    reads: bool,
}

impl LeavesBy {
    pub fn code(self) -> u8 {
        match self {
            LeavesBy::Descriptor => 0,
            LeavesBy::HandleBySetting => 1,
            LeavesBy::HandleByDevice => 2,
        }
    }

    pub(super) fn of_code(code: u8) -> Option<LeavesBy> {
        [LeavesBy::Descriptor, LeavesBy::HandleBySetting, LeavesBy::HandleByDevice]
            .into_iter()
            .find(|way| way.code() == code)
    }
}

impl FarFacts {
    /// Facts of a pair that fabric handles do not join, for the reason of `apart`, or do.
    pub fn new(policy: Policy, apart: Option<String>) -> FarFacts {
        let p2p = match (policy.no_local, policy.no_shm) {
            (true, _) => "NCCL_P2P_DISABLE is set",
            (false, true) => "GPU memory is handed over as shared memory is",
            (false, false) => "the rank is on another host",
        };
        let shm = if policy.no_shm { "NCCL_SHM_DISABLE is set" } else { "the rank is on another host" };
        FarFacts { p2p: p2p.to_owned(), shm: shm.to_owned(), apart }
    }
}

impl PairFacts {
    /// The first way that is open.
    pub fn decide(self) -> PeerDecision {
        let PairFacts { peer, far, forbidden, unreached, one_process, without_pointers, leaves_by } = self;
        if let Some(FarFacts { p2p, shm, apart }) = far {
            return match apart {
                None => PeerDecision::reached(PeerWay::Crossing, vec![("CUMEM", p2p)]),
                Some(apart) => PeerDecision::reached(PeerWay::Wire, vec![("P2P", p2p), ("SHM", shm), ("MNNVL", apart)]),
            };
        }
        if let Some(reason) = forbidden {
            return PeerDecision::pinned(Access::Forbidden(reason));
        }
        if let Some(reason) = unreached {
            return PeerDecision::pinned(Access::Unreached(reason));
        }
        let against_pointers = match (one_process, without_pointers) {
            (true, None) => return PeerDecision::reached(PeerWay::Direct, Vec::new()),
            (true, Some(rank)) => format!("rank {rank} has NCCL_P2P_DIRECT_DISABLE=1"),
            (false, _) => format!("rank {peer} is in another process"),
        };
        let handle = match leaves_by {
            LeavesBy::Descriptor => {
                return PeerDecision::reached(PeerWay::CuMem, vec![("direct pointer", against_pointers)]);
            }
            LeavesBy::HandleBySetting => format!("rank {peer} has NCCL_CUMEM_ENABLE=0"),
            LeavesBy::HandleByDevice => format!("the memory of rank {peer} has no descriptors"),
        };
        if one_process {
            // The driver opens a handle in other processes only.
            return PeerDecision::pinned(Access::Forbidden(format!(
                "{against_pointers}, {handle}, and a process cannot open its own handles"
            )));
        }
        PeerDecision::reached(PeerWay::Ipc, vec![("direct pointer", against_pointers), ("CUMEM", handle)])
    }
}

impl PeerDecision {
    fn reached(way: PeerWay, refused: Vec<(&'static str, String)>) -> PeerDecision {
        PeerDecision { way, refused, access: Access::Reached, reads: false }
    }

    /// Through memory of the host, because there is no access.
    pub fn pinned(access: Access) -> PeerDecision {
        let refused = access.reason().map(|reason| ("P2P", reason.clone()));
        PeerDecision { way: PeerWay::Pinned, refused: refused.into_iter().collect(), access, reads: false }
    }

    /// The same over the device of `third`.
    pub fn over(self, third: Rank) -> PeerDecision {
        let refused = self.access.reason().map(|reason| ("without a GPU between", reason.clone()));
        PeerDecision { way: PeerWay::Indirect(third), refused: refused.into_iter().collect(), ..self }
    }

    /// Whether links lead to the peer's device, if it is reached.
    pub(super) fn note_links(&mut self, is_linked: bool) {
        if is_linked && self.access == Access::Reached {
            self.access = Access::Linked;
        }
    }

    /// Both ends want slots at the sender.
    pub(super) fn note_reading(&mut self) {
        self.reads = true;
    }

    /// What this rank says of the peer's device.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }
}

impl fmt::Display for PeerWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PeerWay::Indirect(third) => return write!(f, "P2P/indirect/{third}"),
            PeerWay::Direct => "P2P/direct pointer",
            PeerWay::CuMem => "P2P/CUMEM",
            PeerWay::Ipc => "P2P/IPC",
            PeerWay::Pinned => "SHM/pinned",
            PeerWay::Crossing => "P2P/MNNVL",
            PeerWay::Wire => "NET/Socket/0, staged in pinned memory of the host",
        })
    }
}

/// As in the log: `P2P/CUMEM/read`, or `P2P/IPC (direct pointer: ...; CUMEM: ...)`.
impl fmt::Display for PeerDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.way, if self.reads { "/read" } else { "" })?;
        if self.refused.is_empty() { Ok(()) } else { write!(f, " ({})", join(&self.refused)) }
    }
}

fn join(refused: &[(&str, String)]) -> String {
    let reasons = refused.iter().map(|(way, reason)| format!("{way}: {reason}"));
    reasons.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn the_first_open_way_is_taken_and_the_others_say_why_not() {
        let open = PairFacts {
            peer: Rank::new(1),
            far: None,
            forbidden: None,
            unreached: None,
            one_process: true,
            without_pointers: None,
            leaves_by: LeavesBy::Descriptor,
        };
        let line = |facts: &PairFacts| facts.clone().decide().to_string();
        assert_eq!(line(&open), "P2P/direct pointer");
        let mut reading = open.clone().decide();
        reading.note_reading();
        assert_eq!(reading.to_string(), "P2P/direct pointer/read");
        let elsewhere = PairFacts { one_process: false, ..open.clone() };
        assert_eq!(line(&elsewhere), "P2P/CUMEM (direct pointer: rank 1 is in another process)");
        let set = PairFacts { leaves_by: LeavesBy::HandleBySetting, ..elsewhere.clone() };
        let ipc = "P2P/IPC (direct pointer: rank 1 is in another process; CUMEM: rank 1 has NCCL_CUMEM_ENABLE=0)";
        assert_eq!(line(&set), ipc);
        let lacking = PairFacts { leaves_by: LeavesBy::HandleByDevice, ..elsewhere };
        assert!(line(&lacking).starts_with("P2P/IPC ") && line(&lacking).contains("rank 1 has no descriptors"));
        let apart = PairFacts { without_pointers: Some(Rank::new(0)), ..open.clone() };
        assert_eq!(line(&apart), "P2P/CUMEM (direct pointer: rank 0 has NCCL_P2P_DIRECT_DISABLE=1)");
        let by_no_handle = PairFacts { leaves_by: LeavesBy::HandleBySetting, ..apart };
        let pinned = "SHM/pinned (P2P: rank 0 has NCCL_P2P_DIRECT_DISABLE=1, rank 1 has NCCL_CUMEM_ENABLE=0, and a \
                      process cannot open its own handles)";
        assert_eq!(line(&by_no_handle), pinned);
        let unreached = PairFacts { unreached: Some("no way".to_owned()), ..open.clone() };
        assert_eq!(line(&unreached), "SHM/pinned (P2P: no way)");
        assert_eq!(*unreached.clone().decide().access(), Access::Unreached("no way".to_owned()));
        let over = unreached.clone().decide().over(Rank::new(7));
        assert_eq!(over.to_string(), "P2P/indirect/7 (without a GPU between: no way)");
        let forbidden = PairFacts { forbidden: Some("a level".to_owned()), ..unreached };
        assert_eq!(*forbidden.decide().access(), Access::Forbidden("a level".to_owned()));
        let far = FarFacts { p2p: "a".to_owned(), shm: "b".to_owned(), apart: Some("c".to_owned()) };
        let wired = PairFacts { far: Some(far.clone()), ..open.clone() }.decide();
        assert_eq!(wired.to_string(), "NET/Socket/0, staged in pinned memory of the host (P2P: a; SHM: b; MNNVL: c)");
        assert_eq!(*wired.access(), Access::Reached);
        let crossing = PairFacts { far: Some(FarFacts { apart: None, ..far }), ..open }.decide();
        assert_eq!(crossing.to_string(), "P2P/MNNVL (CUMEM: a)");
    }

    #[test]
    fn codes_come_back_and_others_are_refused() {
        for way in [LeavesBy::Descriptor, LeavesBy::HandleBySetting, LeavesBy::HandleByDevice] {
            assert_eq!(LeavesBy::of_code(way.code()), Some(way));
        }
        assert_eq!(LeavesBy::of_code(3), None);
    }
}
