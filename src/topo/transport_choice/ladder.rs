//! The one ladder of ways: by which way two ranks reach each other's memory, and why by none of the better ones.
//!
//! Communicators ask it with what their ranks have told each other (`transport::table`, `reach::device_ways`), and
//! `rsccl topo --why` with what a description shows ([`described`](super::described)).
//!
//! Memory of the host ([`HostFacts`]): direct pointers between threads, shared memory, the network.
//!
//! Memory of devices ([`PairFacts`]): a direct pointer inside a process, a descriptor (CUMEM), a handle (IPC), memory
//! of a third rank's device that both reach (indirect), pinned memory of the host (SHM); between hosts a fabric handle
//! (MNNVL), and slots that a thread moves over the network (NET). A rank decides what it alone can know
//! ([`PairFacts::decide`]); then all ranks tell each other what they have found ([`Sayings`]), and each takes from that
//! what the pair does ([`PeerDecision::settled`]).

use std::fmt;

use crate::topo::paths::PathKind;
use crate::types::{Rank, TransportKind};

/// What settings say of the ways between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WaySettings {
    /// `NCCL_P2P_DISABLE`
    pub no_p2p: bool,
    /// `NCCL_SHM_DISABLE`
    pub no_shm: bool,
    /// `NCCL_P2P_DIRECT_DISABLE`
    pub no_pointers: bool,
    /// `NCCL_CUMEM_ENABLE=0`
    pub by_handle: bool,
    /// `NCCL_MNNVL_ENABLE=0`
    pub no_mnnvl: bool,
    /// `NCCL_P2P_READ_ENABLE`; `None`: as the devices want it.
    pub reads: Option<bool>,
    /// `NCCL_P2P_LEVEL`; `None`: any way, the driver alone decides. NCCL's own limit, PXB, is not ours.
    pub level: Option<PathKind>,
}

impl WaySettings {
    /// Why two GPUs of a host may not reach each other's memory, which are as far apart as `kind` says; `None` where
    /// that is not known.
    pub fn forbids(&self, kind: Option<PathKind>) -> Option<String> {
        if self.no_p2p {
            return Some(P2P_DISABLED.to_owned());
        }
        let (level, kind) = (self.level?, kind?);
        (kind > level).then(|| format!("{kind} is beyond NCCL_P2P_LEVEL={level}"))
    }

    /// Why a rank hands its GPU memory to no rank of another host.
    pub fn forbids_crossing(&self) -> Option<&'static str> {
        if self.no_mnnvl {
            return Some("NCCL_MNNVL_ENABLE is 0");
        }
        if self.no_p2p {
            return Some(P2P_DISABLED);
        }
        if self.level == Some(PathKind::Loc) {
            return Some("NCCL_P2P_LEVEL is LOC");
        }
        self.by_handle.then_some("NCCL_CUMEM_ENABLE is 0")
    }

    /// Whether a rank, as receiver, rather reads from a peer's device than lets it write into its own: GPUs of
    /// capability 8.0 read by NVLink faster than they write. Both ends must want it.
    pub fn wants_reading(&self, capability: Option<u32>, is_linked: impl FnOnce() -> bool) -> bool {
        self.reads.unwrap_or_else(|| capability == Some(READING_CAPABILITY) && is_linked())
    }
}

/// What is known of two ranks, for the way between their memories of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostFacts {
    /// Whether they are threads of one process.
    pub one_process: bool,
    /// Whether they are on one host and can share memory there.
    pub one_host: bool,
    /// `NCCL_P2P_DISABLE`
    pub no_p2p: bool,
    /// `NCCL_SHM_DISABLE`
    pub no_shm: bool,
}

impl HostFacts {
    /// Why a transport does not connect them; `None` where it does.
    pub const fn refusal(self, kind: TransportKind) -> Option<&'static str> {
        match kind {
            TransportKind::Local if self.no_p2p => Some(P2P_DISABLED),
            TransportKind::Local if !self.one_host || !self.one_process => Some("the rank is in another process"),
            TransportKind::Shm if self.no_shm => Some("NCCL_SHM_DISABLE is set"),
            TransportKind::Shm if !self.one_host => Some("the rank is on another host"),
            TransportKind::Local | TransportKind::Shm | TransportKind::Net => None,
        }
    }
}

/// How a rank's memory leaves its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeavesBy {
    /// A descriptor of the memory.
    Descriptor,
    /// A handle, as `NCCL_CUMEM_ENABLE=0` asks.
    HandleBySetting,
    /// A handle, because the device has no descriptors.
    HandleByDevice,
}

/// A way between the devices of two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerWay {
    /// By a pointer, between threads.
    Direct,
    /// By a descriptor.
    CuMem,
    /// By a handle.
    Ipc,
    /// Over the device of this rank.
    Indirect(Rank),
    /// Through pinned memory of the host.
    Pinned,
    /// By fabric handles, to another host.
    Crossing,
    /// Over the network.
    Wire,
}

/// What is known of two ranks on different devices.
#[derive(Debug, Clone)]
pub struct PairFacts {
    /// The rank at the other end.
    pub peer: Rank,
    /// `None` where the ranks share memory of their host.
    pub far: Option<FarFacts>,
    /// Why settings forbid that this rank's device reaches the peer's.
    pub forbidden: Option<String>,
    /// Why it does not reach it.
    pub unreached: Option<String>,
    /// Whether the ranks are threads of one process.
    pub one_process: bool,
    /// The rank of the pair that has `NCCL_P2P_DIRECT_DISABLE=1`.
    pub without_pointers: Option<Rank>,
    /// How the peer's memory leaves its process.
    pub leaves_by: LeavesBy,
}

/// What is known of two ranks that share no memory of a host, most often because they are on different ones.
#[derive(Debug, Clone)]
pub struct FarFacts {
    /// Why they hand each other neither GPU memory inside a host (P2P) nor the host's (SHM).
    pub p2p: String,
    /// See `p2p`.
    pub shm: String,
    /// Why fabric handles do not lead from one to the other; `None` where they do.
    pub apart: Option<String>,
}

/// What a rank says of a peer's device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// It reaches the memory there, or needs no way to it.
    Reached,
    /// By links between the two devices alone.
    Linked,
    /// It does not, for this reason; data may lie on a device that both reach.
    Unreached(String),
    /// Settings forbid it, for this reason, and a way over other devices too.
    Forbidden(String),
}

/// What of an [`Access`] all ranks are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ToldAccess {
    /// See [`Access::Reached`].
    Reached,
    /// See [`Access::Linked`].
    Linked,
    /// See [`Access::Unreached`].
    Unreached,
    /// See [`Access::Forbidden`].
    Forbidden,
}

/// What a rank tells all others of a peer's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saying {
    /// Whether it reaches the memory there.
    pub access: ToldAccess,
    /// Whether it wants the slots of connections with the peer at the sender.
    pub wants_reading: bool,
}

/// What all ranks have told: of a rank and of a peer what the first says of the second.
#[derive(Debug)]
pub struct Sayings<Of: Fn(Rank, Rank) -> Saying> {
    /// How many ranks there are.
    pub ranks: u32,
    /// What the first rank says of the second one.
    pub of: Of,
}

/// What a pair does by what all ranks have told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairAgreement {
    /// Whether one of them does not reach the other's memory.
    pub is_parted: bool,
    /// The rank on whose device the data lie that the one sends to the other, where that is so.
    pub third: Option<Rank>,
    /// Whether each reads what the other sends.
    pub reads: bool,
}

/// The way of a pair, and why by none of those above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerDecision {
    /// The way.
    pub way: PeerWay,
    refused: Vec<(&'static str, String)>,
    access: Access,
    /// Whether each rank reads what the other sends from the other's memory.
    reads: bool,
}

impl LeavesBy {
    /// The number that is told.
    pub fn code(self) -> u8 {
        match self {
            LeavesBy::Descriptor => 0,
            LeavesBy::HandleBySetting => 1,
            LeavesBy::HandleByDevice => 2,
        }
    }

    /// What a number says.
    pub fn of_code(code: u8) -> Option<LeavesBy> {
        [LeavesBy::Descriptor, LeavesBy::HandleBySetting, LeavesBy::HandleByDevice]
            .into_iter()
            .find(|way| way.code() == code)
    }
}

impl FarFacts {
    /// `apart` says why fabric handles do not join the pair; `None` if they do.
    pub fn new((no_p2p, no_shm): (bool, bool), apart: Option<String>) -> FarFacts {
        let facts = HostFacts { one_process: false, one_host: false, no_p2p, no_shm };
        let elsewhere = facts.refusal(TransportKind::Shm).unwrap_or_default();
        let p2p = match (no_p2p, no_shm) {
            (true, _) => P2P_DISABLED,
            (false, true) => "GPU memory is handed over as shared memory is",
            (false, false) => elsewhere,
        };
        FarFacts { p2p: p2p.to_owned(), shm: elsewhere.to_owned(), apart }
    }
}

impl Access {
    /// What all ranks are told of it.
    pub fn told(&self) -> ToldAccess {
        match self {
            Access::Reached => ToldAccess::Reached,
            Access::Linked => ToldAccess::Linked,
            Access::Unreached(_) => ToldAccess::Unreached,
            Access::Forbidden(_) => ToldAccess::Forbidden,
        }
    }

    /// Why not, where it is not reached.
    pub fn reason(&self) -> Option<&String> {
        match self {
            Access::Reached | Access::Linked => None,
            Access::Unreached(reason) | Access::Forbidden(reason) => Some(reason),
        }
    }
}

impl<Of: Fn(Rank, Rank) -> Saying> Sayings<Of> {
    fn all(&self) -> impl Iterator<Item = Rank> {
        (0..self.ranks).map(Rank::new)
    }

    /// Whether one of two ranks does not reach the other's memory: a pair works in the memory of its devices where each
    /// reaches the other's.
    pub fn parts(&self, one: Rank, other: Rank) -> bool {
        one != other
            && [(one, other), (other, one)].iter().any(|(a, b)| (self.of)(*a, *b).access >= ToldAccess::Unreached)
    }

    /// The rank on whose device the data lie that `from` sends to `to`, a pair that is [parted](Sayings::parts):
    /// links lead there from both, and `lends` says that its memory stays as long as the pair may use it. `None` where
    /// the data lie in the host's memory.
    pub fn between(&self, from: Rank, to: Rank, lends: impl Fn(Rank, [Rank; 2]) -> bool) -> Option<Rank> {
        let forbids = |one, other| (self.of)(one, other).access == ToldAccess::Forbidden;
        if forbids(from, to) || forbids(to, from) {
            return None;
        }
        let is_linked =
            |rank: Rank, third: Rank| (self.of)(rank, third).access == ToldAccess::Linked && !self.parts(rank, third);
        let is_between = |third: &Rank| is_linked(from, *third) && is_linked(to, *third) && lends(*third, [from, to]);
        let thirds: Vec<Rank> = self.all().filter(is_between).collect();
        // The pairs spread over the possible third ranks.
        thirds.get(from.index() % thirds.len().max(1)).copied()
    }

    /// Whether each of two ranks reads from the other's memory what that sends.
    pub fn reads(&self, one: Rank, other: Rank) -> bool {
        let wants = |rank, peer| (self.of)(rank, peer).wants_reading;
        one != other && wants(one, other) && wants(other, one) && !self.parts(one, other)
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
    fn pinned(access: Access) -> PeerDecision {
        let refused = access.reason().map(|reason| ("P2P", reason.clone()));
        PeerDecision { way: PeerWay::Pinned, refused: refused.into_iter().collect(), access, reads: false }
    }

    /// The same over the device of `third`.
    fn over(self, third: Rank) -> PeerDecision {
        let refused = self.access.reason().map(|reason| ("without a GPU between", reason.clone()));
        PeerDecision { way: PeerWay::Indirect(third), refused: refused.into_iter().collect(), ..self }
    }

    /// Whether links lead to the peer's device, if it is reached.
    pub fn note_links(&mut self, is_linked: bool) {
        if is_linked && self.access == Access::Reached {
            self.access = Access::Linked;
        }
    }

    /// The way between these ranks, of which the first has decided, by what all ranks have told.
    #[must_use]
    pub fn settled(self, (me, peer): (Rank, Rank), agreed: PairAgreement) -> PeerDecision {
        let mut settled = match agreed.is_parted && self.way != PeerWay::Pinned {
            true => PeerDecision::pinned(Access::Unreached(format!("rank {peer} does not reach rank {me}"))),
            false => self,
        };
        if let Some(third) = agreed.third {
            settled = settled.over(third);
        }
        PeerDecision { reads: agreed.reads, ..settled }
    }

    /// The ways above it in their order, each with the reason against it.
    pub fn refused(&self) -> &[(&'static str, String)] {
        &self.refused
    }

    /// Whether each rank reads what the other sends from the other's memory.
    pub fn reads(&self) -> bool {
        self.reads
    }

    /// What this rank says of the peer's device.
    pub fn access(&self) -> &Access {
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

/// Why no fabric handles lead from one GPU to another, though both lead to some.
pub const OTHER_CLIQUE: &str = "the GPUs are in different NVLink cliques";
const P2P_DISABLED: &str = "NCCL_P2P_DISABLE is set";
/// A100.
const READING_CAPABILITY: u32 = 80;

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
        let (pair, near) =
            ((Rank::new(0), Rank::new(1)), PairAgreement { is_parted: false, third: None, reads: false });
        let reading = open.clone().decide().settled(pair, PairAgreement { reads: true, ..near });
        assert_eq!(reading.to_string(), "P2P/direct pointer/read");
        let missed = open.clone().decide().settled(pair, PairAgreement { is_parted: true, ..near });
        assert_eq!(missed.to_string(), "SHM/pinned (P2P: rank 1 does not reach rank 0)");
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
        let over = PairAgreement { is_parted: true, third: Some(Rank::new(7)), ..near };
        let over = unreached.clone().decide().settled(pair, over);
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
