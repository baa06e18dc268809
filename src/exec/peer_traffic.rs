//! What a program of a device moves to and from each peer. It is counted on the rank's page where a launch is made: no
//! word of the device says it.

use crate::plan::{Action, Lane, Operand};
use crate::sync::primitive::Arc;
use crate::transport::Way;
use crate::types::Rank;

/// What one run moves between this rank and a peer, one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerTraffic {
    /// The peer; in plans that name this rank's own window, the rank itself.
    pub peer: Rank,
    /// Whether the peer gets it.
    pub way: Way,
    /// Slots of a connection, or pieces in the peer's memory.
    pub messages: u64,
    /// Elements; of messages, bytes.
    pub elements: u64,
}

/// That of a plan's lanes, each peer and way once.
pub fn of_lanes(lanes: &[Lane]) -> Arc<[PeerTraffic]> {
    let mut found: Vec<PeerTraffic> = Vec::new();
    for lane in lanes {
        for step in &*lane.steps {
            let Action::Combine(combine) = &step.action else { continue };
            let (block, piece) = (lane.sizes.block(combine).0, lane.sizes.piece(combine).0);
            let rounds = u64::from(lane.sizes.rounds);
            let messages = block.div_ceil(piece.max(1)).min(rounds);
            let elements = block.min(piece.saturating_mul(rounds));
            for (way, operands) in [(Way::Receive, &combine.sources), (Way::Send, &combine.targets)] {
                for operand in operands {
                    if let (Operand::Slot(peer) | Operand::Window(peer, _), 1..) = (operand, elements) {
                        add(&mut found, PeerTraffic { peer: *peer, way, messages, elements });
                    }
                }
            }
        }
    }
    found.into()
}

fn add(found: &mut Vec<PeerTraffic>, more: PeerTraffic) {
    match found.iter_mut().find(|known| (known.peer, known.way) == (more.peer, more.way)) {
        Some(known) => {
            known.messages = known.messages.saturating_add(more.messages);
            known.elements = known.elements.saturating_add(more.elements);
        }
        None => found.push(more),
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::plan::{Count, Layout, Limits, Plan, Spec, Windows};
    use crate::types::{Algorithm, Collective, Elements, Protocol, World};

    fn of(algorithm: Algorithm, windows: Windows, rank: u32, count: u64) -> Vec<PeerTraffic> {
        let ranks: Vec<Rank> = (0..4).map(Rank::new).collect();
        let spec = Spec {
            collective: Collective::AllReduce,
            world: World { rank: Rank::new(rank), size: 4 },
            root: Rank::new(0),
            count: Count::Each(Elements(count)),
            in_place: false,
            algorithm,
            protocol: Protocol::Simple,
            windows,
            layout: Arc::new(Layout::of_hosts(&[ranks]).unwrap()),
            limits: Limits { slot: Elements(4096), slots: 8, scratch: Elements(1 << 20), channels: 1 },
        };
        of_lanes(&Plan::build(&spec).unwrap().lanes).to_vec()
    }

    #[test]
    fn a_ring_sends_to_one_and_receives_from_one() {
        // Each rank sends three quarters of the vector to be reduced, and three once they are.
        for count in [400, 400_000] {
            let mut found = of(Algorithm::Ring, Windows::None, 1, count);
            found.sort_by_key(|one| one.peer);
            let ends: Vec<(u32, Way, u64)> = found.iter().map(|one| (one.peer.get(), one.way, one.elements)).collect();
            let bytes = count / 4 * 6;
            assert_eq!(ends, [(0, Way::Receive, bytes), (2, Way::Send, bytes)]);
            assert!(found.iter().all(|one| one.messages >= bytes / 4096), "{found:?}");
        }
        assert!(of(Algorithm::Ring, Windows::None, 1, 0).is_empty());
    }

    #[test]
    fn in_windows_each_reads_its_share_and_those_of_others() {
        let of_rank = |rank: u32| -> u64 {
            let found = of(Algorithm::Direct, Windows::User, rank, 40_000);
            found.iter().filter(|one| one.peer != Rank::new(rank)).map(|one| one.elements).sum()
        };
        // Each rank's share of three others, and the three shares that these have reduced.
        assert_eq!((0..4).map(of_rank).sum::<u64>(), 6 * 40_000);
    }
}
