//! Ranks whose devices do not reach each other's memory: what they have for each other lies in memory of the host, in
//! which the programs of both work.
//!
//! Every rank that has such a peer brings one piece of that memory. It is pinned at set-up, because pinning waits for
//! kernels. It holds the rank's control words and its scratch, which all ranks use, and for each such peer the words
//! and queues of their connections. Connections with the other peers stay in the memory of devices.

use crate::comm::session::Session;
use crate::device::lines;
use crate::device::records::SLOT_HEADER;
use crate::error::{Error, Result};
use crate::plan::LEAST_SLOTS;
use crate::sync::Wait;
use crate::sync::primitive::Arc;
use crate::sync::ring::Shape;
use crate::transport::Channel;
use crate::types::{Rank, World};
use crate::wire;

use super::device_sharing::{QUEUE_WORDS, SideLayout, channel_number, fits, stage_bytes};

/// Which pairs of ranks do not reach each other's memory. The same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Staged {
    /// Of each rank the peers, in order.
    peers: Vec<Vec<Rank>>,
}

/// Where things lie in the memory of the host that ranks bring.
#[derive(Debug, Clone)]
pub(super) struct StagingLayout {
    pub(super) staged: Arc<Staged>,
    pub(super) side: SideLayout,
    pub(super) scratch_bytes: usize,
    pub(super) shape: Shape,
    /// How many channels collectives use.
    pub(super) channels: u32,
    /// Whether ranks of other processes on the device have a stage behind their scratch (`comm::across`).
    pub(super) across: bool,
}

impl Staged {
    /// All ranks tell which ranks they do not reach; `mine` has the reason for each, and comes back. A pair works in
    /// the memory of its devices where each reaches the other's.
    ///
    /// # Errors
    /// Of the exchange; of `mine`, on all ranks.
    pub(super) fn agree(
        session: &Session,
        mine: Result<Vec<Option<String>>>,
        wait: &Wait,
    ) -> Result<(Staged, Vec<Option<String>>)> {
        let told = session.bootstrap.all_gather(&tell(&mine), wait)?;
        let mine = mine?;
        Ok((Staged::of(session.world, &told)?, mine))
    }

    fn of(world: World, told: &[Vec<u8>]) -> Result<Staged> {
        for (rank, bytes) in world.ranks().zip(told) {
            if let Some(reason) = bytes.strip_prefix(&[FAILED]) {
                let reason = String::from_utf8_lossy(reason);
                return Err(Error::remote(rank, format!("rank {rank} cannot tell which GPUs it reaches: {reason}")));
            }
            if bytes.len() != told.len() {
                let message =
                    format!("rank {rank} tells which of {} ranks it reaches, not of {}", bytes.len(), told.len());
                return Err(Error::remote(rank, message));
            }
        }
        let without = |rank: Rank| {
            let misses = |peer: &Rank| told[rank.index()][peer.index()] != 0 || told[peer.index()][rank.index()] != 0;
            world.ranks().filter(|peer| *peer != rank).filter(misses).collect()
        };
        Ok(Staged { peers: world.ranks().map(without).collect() })
    }

    /// The ranks that `rank` does not work with in the memory of devices, in order.
    pub(super) fn peers_of(&self, rank: Rank) -> &[Rank] {
        &self.peers[rank.index()]
    }

    /// Whether two ranks work through the host's memory.
    pub(super) fn parts(&self, rank: Rank, peer: Rank) -> bool {
        self.peers_of(rank).binary_search(&peer).is_ok()
    }

    /// The first such pair.
    pub(super) fn first(&self) -> Option<(Rank, Rank)> {
        let ranks = (0..).map(Rank::new).zip(&self.peers);
        ranks.into_iter().find_map(|(rank, peers)| Some((rank, *peers.first()?)))
    }

    /// Whether there is such a pair.
    pub(super) fn is_any(&self) -> bool {
        self.peers.iter().any(|peers| !peers.is_empty())
    }

    /// Whether some ranks of different devices, of which `shares_device` tells, work in each other's memory, and some
    /// do not.
    pub(super) fn is_partial(&self, shares_device: impl Fn(Rank, Rank) -> bool) -> bool {
        let ranks = || (0..).map(Rank::new).take(self.peers.len());
        let reaches = |rank: Rank| ranks().any(|peer| !shares_device(rank, peer) && !self.parts(rank, peer));
        self.is_any() && ranks().any(reaches)
    }
}

impl StagingLayout {
    /// Whether `rank` brings memory of the host, where its control words and scratch are then.
    pub(super) fn has(&self, rank: Rank) -> bool {
        !self.staged.peers_of(rank).is_empty()
    }

    /// Bytes that `rank` brings on its device.
    pub(super) fn device_bytes(&self, rank: Rank) -> Result<usize> {
        let behind = match (self.has(rank), self.across) {
            (true, _) => 0,
            (false, true) => stage_bytes(self.scratch_bytes).saturating_mul(2),
            (false, false) => self.scratch_bytes,
        };
        Ok(fits(self.side.scratch())?.saturating_add(behind))
    }

    /// Bytes that `rank` brings of the host's memory; 0: none.
    pub(super) fn host_bytes(&self, rank: Rank) -> Result<usize> {
        if !self.has(rank) {
            return Ok(0);
        }
        let queues = self.staged.peers_of(rank).len() as u64 * self.queues_of_peer() * self.queue_bytes(rank);
        Ok(fits(self.queues_at().saturating_add(queues))?.next_multiple_of(PAGE))
    }

    /// Slots of each queue in which `to` receives: as many as the settings say, or fewer where there are many queues.
    pub(super) fn slots(&self, to: Rank) -> u32 {
        let queues = self.staged.peers_of(to).len() as u64 * self.queues_of_peer();
        let fit = MOST_QUEUE_BYTES / (queues.max(1) * self.slot_bytes());
        u32::try_from(fit).unwrap_or(u32::MAX).max(LEAST_SLOTS).min(self.shape.slots)
    }

    /// Where, in the memory of `to`, the queue lies in which it receives from `from`. `None` where they have none: the
    /// channel is not used.
    pub(super) fn queue(&self, (from, to): (Rank, Rank), channel: Channel) -> Option<u64> {
        let place = self.staged.peers_of(to).binary_search(&from).ok()?;
        let channel = Some(channel_number(channel)).filter(|number| *number < self.queues_of_peer())?;
        let number = place as u64 * self.queues_of_peer() + channel;
        Some(self.queues_at() + number * self.queue_bytes(to))
    }

    /// One for messages, and one for each channel.
    fn queues_of_peer(&self) -> u64 {
        1 + u64::from(self.channels)
    }

    fn slot_bytes(&self) -> u64 {
        SLOT_HEADER + u64::from(self.shape.slot_bytes)
    }

    fn queue_bytes(&self, to: Rank) -> u64 {
        // By way of the host LL128 is not used.
        let slots = (self.slots(to), u64::from(self.shape.slot_bytes));
        (QUEUE_WORDS + lines::connection_bytes(slots, lines::LL_ALONE)).next_multiple_of(QUEUE_WORDS)
    }

    fn queues_at(&self) -> u64 {
        (self.side.scratch() + self.scratch_bytes as u64).next_multiple_of(QUEUE_WORDS)
    }
}

/// Bytes of a rank's queues in the host's memory, where plans can do with as few slots as that takes.
const MOST_QUEUE_BYTES: u64 = 32 << 20;
const PAGE: usize = 4096;

/// A byte for each rank that tells whether it is not reached; or the reason why that is not known.
fn tell(mine: &Result<Vec<Option<String>>>) -> Vec<u8> {
    match mine {
        Ok(reasons) => reasons.iter().map(|reason| u8::from(reason.is_some())).collect(),
        Err(error) => [&[FAILED], wire::cut(error.message(), MAX_REASON_BYTES).as_bytes()].concat(),
    }
}

/// In place of the first rank's byte.
const FAILED: u8 = 2;
/// An error with the name of a file.
const MAX_REASON_BYTES: usize = 4 << 10;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn world(size: u32) -> World {
        World { rank: Rank::new(0), size }
    }

    fn rank(number: u32) -> Rank {
        Rank::new(number)
    }

    /// Rank 2 says that it does not reach rank 0, and ranks 1 and 3 say that of each other.
    fn staged() -> Staged {
        let told = [[0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]].map(Vec::from);
        Staged::of(world(4), &told).unwrap()
    }

    #[test]
    fn a_pair_is_staged_where_either_does_not_reach_the_other() {
        let staged = staged();
        assert_eq!(staged.peers_of(rank(0)), [rank(2)]);
        assert_eq!(staged.peers_of(rank(3)), [rank(1)]);
        assert!(staged.parts(rank(0), rank(2)) && staged.parts(rank(2), rank(0)) && !staged.parts(rank(0), rank(1)));
        assert!(staged.is_any() && staged.is_partial(|one, other| one == other));
        // Two devices, and none reaches the other.
        let apart =
            Staged::of(world(4), &[[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]].map(Vec::from)).unwrap();
        assert!(apart.is_any() && !apart.is_partial(|one, other| one.get() / 2 == other.get() / 2));
        let failed = tell(&Err(Error::invalid_argument("t.xml:3: no tag")));
        let error = Staged::of(world(2), &[tell(&Ok(vec![None, None])), failed]).unwrap_err();
        assert_eq!(error.message(), "rank 1 cannot tell which GPUs it reaches: t.xml:3: no tag");
        let error = Staged::of(world(2), &[vec![0, 0], vec![0]]).unwrap_err();
        assert_eq!(error.peer(), Some(1));
    }

    #[test]
    fn the_queues_of_a_rank_do_not_overlap() {
        let told = [[0, 1, 1], [1, 0, 0], [1, 0, 0]].map(Vec::from);
        let staged = Arc::new(Staged::of(world(3), &told).unwrap());
        for (slot_bytes, slots) in [(64, 8), (128 << 10, 8), (8 << 20, LEAST_SLOTS)] {
            let (side, shape) = (SideLayout { ranks: 3 }, Shape { slots: 8, slot_bytes });
            let layout = StagingLayout {
                staged: Arc::clone(&staged),
                side,
                scratch_bytes: 100,
                shape,
                channels: 3,
                across: false,
            };
            assert_eq!(layout.slots(rank(0)), slots);
            let channels = [Channel::PointToPoint, Channel::Collective(0), Channel::Collective(2)];
            let mut starts: Vec<u64> = [1, 2]
                .iter()
                .flat_map(|from| channels.map(|channel| layout.queue((rank(*from), rank(0)), channel).unwrap()))
                .collect();
            assert!(starts[0] >= side.scratch() + 100 && starts.iter().all(|start| start % QUEUE_WORDS == 0));
            starts.push(layout.host_bytes(rank(0)).unwrap() as u64);
            let bytes = QUEUE_WORDS + u64::from(slots) * (SLOT_HEADER + u64::from(slot_bytes));
            assert!(starts.windows(2).all(|pair| pair[0] + bytes <= pair[1]), "{starts:?}");
            assert_eq!(layout.queue((rank(1), rank(0)), Channel::Collective(3)), None);
            assert_eq!(layout.queue((rank(1), rank(2)), Channel::PointToPoint), None);
        }
    }
}
