//! Which transport a pair of ranks uses: a table, no I/O.

use crate::transport::PeerInfo;
use crate::types::{Rank, TransportKind};

/// What the user forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// `NCCL_P2P_DISABLE`: no direct pointers between threads.
    pub no_local: bool,
    /// `NCCL_SHM_DISABLE`: no shared memory.
    pub no_shm: bool,
}

/// The first transport that can: local, shm, net.
pub fn select(mine: &PeerInfo, theirs: &PeerInfo, policy: Policy) -> TransportKind {
    let same_host = mine.host == theirs.host;
    let same_process = same_host && mine.process == theirs.process;
    match (same_process && !policy.no_local, same_host && !policy.no_shm) {
        (true, _) => TransportKind::Local,
        (false, true) => TransportKind::Shm,
        (false, false) => TransportKind::Net,
    }
}

/// Equal for two ranks exactly where they can map each other's memory: where [`select`] finds a transport other than NET.
pub fn neighbourhood(peer: &PeerInfo, policy: Policy) -> (u64, Option<u64>, Option<Rank>) {
    match (policy.no_local, policy.no_shm) {
        (_, false) => (peer.host, None, None),
        (false, true) => (peer.host, Some(peer.process), None),
        (true, true) => (peer.host, Some(peer.process), Some(peer.rank)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let me = PeerInfo { rank: Rank::new(0), host: 1, process: 1, pid: 1, cores: 1, settings: 0 };
        let sibling = PeerInfo { rank: Rank::new(1), ..me };
        let neighbour = PeerInfo { process: 2, ..sibling };
        let stranger = PeerInfo { host: 2, ..neighbour };
        // The process number is random: equal ones on two hosts mean nothing.
        let lookalike = PeerInfo { host: 2, ..sibling };
        let (local, shm, net) = (TransportKind::Local, TransportKind::Shm, TransportKind::Net);
        let table = [
            (false, false, [local, shm, net, net]),
            (true, false, [shm, shm, net, net]),
            (false, true, [local, net, net, net]),
            (true, true, [net, net, net, net]),
        ];
        for (no_local, no_shm, expected) in table {
            let policy = Policy { no_local, no_shm };
            let found = [sibling, neighbour, stranger, lookalike].map(|peer| select(&me, &peer, policy));
            assert_eq!(found, expected, "{policy:?}");
            for (peer, kind) in [sibling, neighbour, stranger, lookalike].iter().zip(found) {
                let together = neighbourhood(&me, policy) == neighbourhood(peer, policy);
                assert_eq!(together, kind != net, "{policy:?} {peer:?}");
            }
        }
    }
}
