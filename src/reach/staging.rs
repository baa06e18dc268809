//! Ranks whose devices do not reach each other's memory: what they have for each other lies in memory of the host, in
//! which the programs of both work.
//!
//! Every rank that has such a peer brings one piece of that memory. It is pinned at set-up, because pinning waits for
//! kernels. It holds the rank's control words and its scratch, which all ranks use, and for each such peer the words
//! and queues of their connections. Connections with the other peers stay in the memory of devices.
//!
//! Where links lead from both devices to that of a third rank, the slots and lines lie there, behind what that rank
//! brings on its device. Nothing runs there for them. The words stay in the host's memory: a kernel that polls them
//! takes no room on the links.

use crate::device::lines;
use crate::device::records::{SLOT_HEADER, SlotQueue};
use crate::error::{Error, Result};
use crate::plan::LEAST_SLOTS;
use crate::reach::side_layout::{Addresses, QUEUE_WORDS, SideLayout, channel_number, ends, fits, stage_bytes};
use crate::session::Session;
use crate::sync::Wait;
use crate::sync::primitive::Arc;
use crate::sync::ring::Shape;
use crate::topo::transport_choice::ladder::{Saying, Sayings, ToldAccess};
use crate::transport::{Channel, Need, Way};
use crate::types::{Rank, World};
use crate::wire;

/// Which pairs of ranks do not reach each other's memory, and which of the others read from it what they are sent. The
/// same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// Of each rank the peers, in order.
    peers: Vec<Vec<Rank>>,
    /// Beside each peer the rank on whose device the data lie that the peer sends to this rank; `None`: in the host's
    /// memory.
    between: Vec<Vec<Option<Rank>>>,
    /// Of each rank the peers from whose memory it reads what they send, and they from its, in order.
    reading: Vec<Vec<Rank>>,
}

/// Where things lie in the memory of the host that ranks bring.
#[derive(Debug, Clone)]
pub struct StagingLayout {
    pub staged: Arc<Staged>,
    pub side: SideLayout,
    pub scratch_bytes: usize,
    pub shape: Shape,
    /// How many channels collectives use.
    pub channels: u32,
    /// Whether ranks have a stage on their devices, for the process that leads there (`engine::across`).
    pub led: bool,
}

impl Staged {
    /// All ranks tell which ranks they reach; `mine` has that of this rank. A pair works in the memory of its devices
    /// where each reaches the other's. `lends` says whether a third rank's memory stays as long as a pair may use it.
    ///
    /// # Errors
    /// Of the exchange; of `mine`, on all ranks.
    pub(super) fn agree(
        session: &Session,
        mine: Result<Vec<Saying>>,
        lends: impl Fn(Rank, [Rank; 2]) -> bool,
        wait: &Wait,
    ) -> Result<Staged> {
        let told = session.bootstrap.all_gather(&tell(&mine), wait)?;
        mine?;
        Staged::of(session.world, &told, lends)
    }

    pub fn of(world: World, told: &[Vec<u8>], lends: impl Fn(Rank, [Rank; 2]) -> bool) -> Result<Staged> {
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
            if let Some(code) = bytes.iter().find(|code| usize::from(**code & !WANTS_READING) >= ACCESSES.len()) {
                return Err(Error::remote(rank, format!("rank {rank} tells an unknown way to a GPU, {code}")));
            }
        }
        let says = |rank: Rank, peer: Rank| {
            let code = told[rank.index()][peer.index()];
            Saying { access: ACCESSES[usize::from(code & !WANTS_READING)], wants_reading: code & WANTS_READING != 0 }
        };
        let sayings = Sayings { ranks: world.size, of: says };
        let without = |rank: Rank| -> Vec<Rank> { world.ranks().filter(|peer| sayings.parts(rank, *peer)).collect() };
        let peers: Vec<Vec<Rank>> = world.ranks().map(without).collect();
        let of =
            |(to, peers): (Rank, &Vec<Rank>)| peers.iter().map(|from| sayings.between(*from, to, &lends)).collect();
        let between = world.ranks().zip(&peers).map(of).collect();
        let reading_of = |rank: Rank| world.ranks().filter(|peer| sayings.reads(rank, *peer)).collect();
        Ok(Staged { between, reading: world.ranks().map(reading_of).collect(), peers })
    }

    /// The rank on whose device the data lie that `from` sends to `to`, a pair without a direct way; `None` where they
    /// lie in the host's memory.
    pub fn between(&self, (from, to): (Rank, Rank)) -> Option<Rank> {
        let place = self.peers_of(to).binary_search(&from).ok()?;
        self.between[to.index()][place]
    }

    /// Whether data that this rank sends or receives lie on the device of `third`.
    pub(super) fn works_on(&self, rank: Rank, third: Rank) -> bool {
        let ways = |peer: &Rank| [self.between((rank, *peer)), self.between((*peer, rank))];
        self.peers_of(rank).iter().flat_map(ways).any(|between| between == Some(third))
    }

    /// The pairs whose data lie on the device of `third`, in order.
    fn pairs_on(&self, third: Rank) -> impl Iterator<Item = (Rank, Rank)> {
        let of = move |(to, peers): (Rank, &Vec<Rank>)| -> Vec<(Rank, Rank)> {
            let pairs = peers.iter().map(|from| (*from, to));
            pairs.filter(|pair| self.between(*pair) == Some(third)).collect()
        };
        (0..).map(Rank::new).zip(&self.peers).flat_map(of)
    }

    /// The ranks that `rank` does not work with in the memory of devices, in order.
    pub(super) fn peers_of(&self, rank: Rank) -> &[Rank] {
        &self.peers[rank.index()]
    }

    /// Whether two ranks work through the host's memory.
    pub fn parts(&self, rank: Rank, peer: Rank) -> bool {
        self.peers_of(rank).binary_search(&peer).is_ok()
    }

    /// The ranks with which the slots of connections of `rank` lie at the sender, in order.
    pub fn reading_of(&self, rank: Rank) -> &[Rank] {
        &self.reading[rank.index()]
    }

    /// The first pair of ranks that work through the host's memory.
    pub fn first(&self) -> Option<(Rank, Rank)> {
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
    pub fn has(&self, rank: Rank) -> bool {
        !self.staged.peers_of(rank).is_empty()
    }

    /// Bytes that `rank` brings on its device.
    pub fn device_bytes(&self, rank: Rank) -> Result<usize> {
        let queues = self.staged.pairs_on(rank).count() as u64 * self.queues_of_peer();
        let own = self.own_bytes(rank)?;
        if queues == 0 { Ok(own) } else { fits(lent_at(own).saturating_add(queues * self.lent_bytes(rank))) }
    }

    /// The same without what other ranks have there for each other.
    fn own_bytes(&self, rank: Rank) -> Result<usize> {
        let stage = if self.led { stage_bytes(self.scratch_bytes) } else { 0 };
        let scratch = match (self.has(rank), self.led) {
            (true, _) => 0,
            (false, true) => stage_bytes(self.scratch_bytes),
            (false, false) => self.scratch_bytes,
        };
        Ok(fits(self.side.scratch())?.saturating_add(scratch).saturating_add(stage))
    }

    /// Where the stage of `rank` begins in what it brings on its device.
    pub fn stage(&self, rank: Rank) -> u64 {
        let scratch = if self.has(rank) { 0 } else { stage_bytes(self.scratch_bytes) };
        self.side.scratch() + scratch as u64
    }

    /// Bytes that `rank` brings of the host's memory; 0: none.
    pub fn host_bytes(&self, rank: Rank) -> Result<usize> {
        if !self.has(rank) {
            return Ok(0);
        }
        let queues =
            self.staged.peers_of(rank).iter().map(|from| self.queues_of_peer() * self.queue_bytes((*from, rank)));
        Ok(fits(self.queues_at().saturating_add(queues.sum()))?.next_multiple_of(PAGE))
    }

    /// Slots of each queue from one rank to another: as many as the settings say, or fewer where there are many queues
    /// where these slots lie.
    pub fn slots(&self, (from, to): (Rank, Rank)) -> u32 {
        match self.staged.between((from, to)) {
            Some(third) => self.lent_slots(third),
            None => {
                let peers = self.staged.peers_of(to).iter();
                self.slots_of(peers.filter(|from| self.staged.between((**from, to)).is_none()).count())
            }
        }
    }

    fn lent_slots(&self, third: Rank) -> u32 {
        self.slots_of(self.staged.pairs_on(third).count())
    }

    fn slots_of(&self, pairs: usize) -> u32 {
        let queues = pairs as u64 * self.queues_of_peer();
        let fit = MOST_QUEUE_BYTES / (queues.max(1) * self.slot_bytes());
        u32::try_from(fit).unwrap_or(u32::MAX).max(LEAST_SLOTS).min(self.shape.slots)
    }

    /// Where, in the memory of `to`, the queue lies in which it receives from `from`: its words, and its slots if they
    /// lie on no other device. `None` where they have none: the channel is not used.
    pub fn queue(&self, (from, to): (Rank, Rank), channel: Channel) -> Option<u64> {
        let peers = self.staged.peers_of(to);
        let place = peers.binary_search(&from).ok()?;
        let channel = self.number(channel)?;
        let before = peers[..place].iter().map(|peer| self.queues_of_peer() * self.queue_bytes((*peer, to)));
        Some(self.queues_at() + before.sum::<u64>() + channel * self.queue_bytes((from, to)))
    }

    /// The rank on whose device the slots from one rank to another lie, and where they begin there; `None` where they
    /// lie in the host's memory, or the channel is not used.
    pub fn lent(&self, pair: (Rank, Rank), channel: Channel) -> Option<(Rank, u64)> {
        let third = self.staged.between(pair)?;
        let place = self.staged.pairs_on(third).position(|other| other == pair)?;
        let number = place as u64 * self.queues_of_peer() + self.number(channel)?;
        Some((third, lent_at(self.own_bytes(third).ok()?) + number * self.lent_bytes(third)))
    }

    /// This rank's end of a connection in the host's memory, and on a third rank's device.
    ///
    /// # Errors
    /// For a channel that has no queue.
    pub fn end(&self, (me, need): (Rank, Need), places: &Addresses) -> Result<SlotQueue> {
        let ((from, to), sends) = (ends(me, need), need.way == Way::Send);
        let queue = self.queue((from, to), need.channel);
        let queue = queue.ok_or_else(|| Error::internal(format!("no queue in the host's memory for {need:?}")))?;
        let receiver = places.stages[to.index()] + queue;
        let lent = self.lent((from, to), need.channel).map(|(third, at)| places.sides[third.index()] + at);
        let slots = lent.unwrap_or(receiver + QUEUE_WORDS);
        let (count, payload) = (self.slots((from, to)), u64::from(self.shape.slot_bytes));
        Ok(SlotQueue {
            rank: from.get(),
            sends,
            slots,
            headers: slots,
            header_stride: SlotQueue::stride(payload),
            lines: lines::first(slots + lines::slots_bytes((count, payload))),
            count,
            payload,
            tail: receiver,
            head: places.stages[from.index()] + self.side.sender(to, need.channel),
            mine: self.side.own_count(need, places.sides[me.index()]),
        })
    }

    fn number(&self, channel: Channel) -> Option<u64> {
        Some(channel_number(channel)).filter(|number| *number < self.queues_of_peer())
    }

    /// One for messages, and one for each channel.
    fn queues_of_peer(&self) -> u64 {
        1 + u64::from(self.channels)
    }

    fn slot_bytes(&self) -> u64 {
        SLOT_HEADER + u64::from(self.shape.slot_bytes)
    }

    fn queue_bytes(&self, pair: (Rank, Rank)) -> u64 {
        match self.staged.between(pair) {
            Some(_) => QUEUE_WORDS,
            None => QUEUE_WORDS + self.slots_bytes(self.slots(pair)),
        }
    }

    /// Bytes of the slots and lines of each queue on the device of `third`.
    fn lent_bytes(&self, third: Rank) -> u64 {
        self.slots_bytes(self.lent_slots(third))
    }

    /// Neither by way of the host nor over another device LL128 is used.
    fn slots_bytes(&self, count: u32) -> u64 {
        let slots = (count, u64::from(self.shape.slot_bytes));
        lines::connection_bytes(slots, lines::LL_ALONE).next_multiple_of(QUEUE_WORDS)
    }

    fn queues_at(&self) -> u64 {
        (self.side.scratch() + self.scratch_bytes as u64).next_multiple_of(QUEUE_WORDS)
    }
}

/// Where what other ranks have for each other begins behind `own` bytes of a rank.
fn lent_at(own: usize) -> u64 {
    (own as u64).next_multiple_of(PAGE as u64)
}

/// Bytes of a rank's queues in the host's memory, and of those that others have on its device, where plans can do with
/// as few slots as that takes.
const MOST_QUEUE_BYTES: u64 = 32 << 20;
const PAGE: usize = 4096;

/// A byte for each rank that tells whether it is reached; or the reason why that is not known.
pub(super) fn tell(mine: &Result<Vec<Saying>>) -> Vec<u8> {
    let code = |access: ToldAccess| match access {
        ToldAccess::Reached => 0,
        ToldAccess::Linked => 1,
        ToldAccess::Unreached => 2,
        ToldAccess::Forbidden => 3,
    };
    let told = |of: &Saying| code(of.access) | if of.wants_reading { WANTS_READING } else { 0 };
    match mine {
        Ok(all) => all.iter().map(told).collect(),
        Err(error) => [&[FAILED], wire::cut(error.message(), MAX_REASON_BYTES).as_bytes()].concat(),
    }
}

/// By their codes.
const ACCESSES: [ToldAccess; 4] =
    [ToldAccess::Reached, ToldAccess::Linked, ToldAccess::Unreached, ToldAccess::Forbidden];
/// Beside a code.
const WANTS_READING: u8 = 0x10;
/// In place of the first rank's byte.
const FAILED: u8 = 4;
/// An error with the name of a file.
const MAX_REASON_BYTES: usize = 4 << 10;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const UNREACHED: u8 = 2;
    const FORBIDDEN: u8 = 3;

    fn world(size: u32) -> World {
        World { rank: Rank::new(0), size }
    }

    fn rank(number: u32) -> Rank {
        Rank::new(number)
    }

    /// Rank 2 says that it does not reach rank 0, and ranks 1 and 3 say that of each other.
    fn staged() -> Staged {
        of([[0, 0, 0, 0], [0, 0, 0, 2], [2, 0, 0, 0], [0, 2, 0, 0]])
    }

    fn of<const RANKS: usize>(told: [[u8; RANKS]; RANKS]) -> Staged {
        let size = u32::try_from(RANKS).unwrap();
        Staged::of(world(size), &told.map(Vec::from), |_, _| true).unwrap()
    }

    /// Links lead from ranks 0 and 3 to ranks 1 and 2, and no others reach each other.
    const SQUARE: [[u8; 4]; 4] = [[0, 1, 1, 2], [1, 0, 2, 1], [1, 2, 0, 1], [2, 1, 1, 0]];

    #[test]
    fn a_pair_is_staged_where_either_does_not_reach_the_other() {
        let staged = staged();
        assert_eq!(staged.peers_of(rank(0)), [rank(2)]);
        assert_eq!(staged.peers_of(rank(3)), [rank(1)]);
        assert!(staged.parts(rank(0), rank(2)) && staged.parts(rank(2), rank(0)) && !staged.parts(rank(0), rank(1)));
        assert!(staged.is_any() && staged.is_partial(|one, other| one == other));
        // Two devices, and none reaches the other.
        let apart = of([[0, 0, 2, 2], [0, 0, 3, 2], [2, 2, 0, 0], [2, 2, 0, 0]]);
        assert!(apart.is_any() && !apart.is_partial(|one, other| one.get() / 2 == other.get() / 2));
        let failed = tell(&Err(Error::invalid_argument("t.xml:3: no tag")));
        let lends = |_: Rank, _: [Rank; 2]| true;
        let says = |access| Saying { access, wants_reading: true };
        let told = tell(&Ok(ACCESSES.map(says).to_vec()));
        assert_eq!(told, [0, 1, UNREACHED, FORBIDDEN].map(|code| code | WANTS_READING));
        let told = told[..2].to_vec();
        let error = Staged::of(world(2), &[told, failed], lends).unwrap_err();
        assert_eq!(error.message(), "rank 1 cannot tell which GPUs it reaches: t.xml:3: no tag");
        for broken in [vec![0], vec![0, 5], vec![0, 0x20]] {
            assert_eq!(Staged::of(world(2), &[vec![0, 0], broken], lends).unwrap_err().peer(), Some(1));
        }
    }

    #[test]
    fn data_lie_on_a_device_to_which_links_lead_from_both() {
        let pair = (rank(0), rank(3));
        let square = of(SQUARE);
        // Each way by another one, and not where the pair has links of its own.
        assert_eq!(
            [(0, 3), (3, 0), (1, 2), (2, 1), (0, 1)].map(|(from, to)| square.between((rank(from), rank(to)))),
            [Some(rank(1)), Some(rank(2)), Some(rank(3)), Some(rank(0)), None]
        );
        assert!(square.works_on(rank(0), rank(1)) && square.works_on(rank(3), rank(2)));
        assert!(!square.works_on(rank(1), rank(2)));
        let mut told = SQUARE;
        // Rank 3 reaches rank 1 by no link, and then not at all.
        for code in [0, UNREACHED] {
            told[3][1] = code;
            assert_eq!(of(told).between(pair), Some(rank(2)));
        }
        told[0][3] = FORBIDDEN;
        assert_eq!((of(told).between(pair), of(told).between((rank(3), rank(0)))), (None, None));
        let lends = |third: Rank, of: [Rank; 2]| third == rank(2) || of != [rank(0), rank(3)];
        let lent = Staged::of(world(4), &SQUARE.map(Vec::from), lends).unwrap();
        assert_eq!([lent.between(pair), lent.between((rank(3), rank(0)))], [Some(rank(2)); 2]);
    }

    #[test]
    fn slots_lie_at_the_sender_where_both_want_it_and_reach_each_other() {
        const R: u8 = WANTS_READING;
        let staged = of([[R, R, 0, R | UNREACHED], [R | 1, 0, R, 0], [R, R, 0, 0], [R, 0, 0, 0]]);
        assert_eq!(
            [0, 1, 2, 3].map(|of| staged.reading_of(rank(of)).to_vec()),
            [vec![rank(1)], vec![rank(0), rank(2)], vec![rank(1)], vec![]]
        );
    }

    #[test]
    fn what_a_rank_lends_does_not_overlap() {
        let staged = Arc::new(of(SQUARE));
        for (slot_bytes, slots) in [(64, 8), (8 << 20, LEAST_SLOTS)] {
            let layout = StagingLayout {
                staged: Arc::clone(&staged),
                side: SideLayout { ranks: 4 },
                scratch_bytes: 100,
                shape: Shape { slots: 8, slot_bytes, spread: 1 },
                channels: 2,
                led: false,
            };
            for third in (0..4).map(rank) {
                let pairs: Vec<(Rank, Rank)> = staged.pairs_on(third).collect();
                let channels = [Channel::PointToPoint, Channel::Collective(0), Channel::Collective(1)];
                let lent = |pair| channels.map(|channel| layout.lent(pair, channel).unwrap());
                let mut starts: Vec<u64> = pairs
                    .iter()
                    .flat_map(|pair| lent(*pair))
                    .map(|(on, at)| {
                        assert_eq!(on, third);
                        at
                    })
                    .collect();
                assert_eq!(starts.len(), 3);
                assert!(starts[0] >= layout.own_bytes(third).unwrap() as u64);
                starts.push(layout.device_bytes(third).unwrap() as u64);
                let bytes = u64::from(slots) * (SLOT_HEADER + u64::from(slot_bytes));
                assert!(starts.windows(2).all(|pair| pair[0] % QUEUE_WORDS == 0 && pair[0] + bytes <= pair[1]));
                assert_eq!((layout.slots(pairs[0]), layout.lent(pairs[0], Channel::Collective(2))), (slots, None));
            }
            // In the host's memory there are words alone.
            let queue = |channel| layout.queue((rank(0), rank(3)), channel).unwrap();
            assert_eq!(queue(Channel::Collective(0)), queue(Channel::PointToPoint) + QUEUE_WORDS);
        }
    }

    #[test]
    fn the_queues_of_a_rank_do_not_overlap() {
        let staged = Arc::new(of([[0, 2, 2], [2, 0, 0], [2, 0, 0]]));
        for (slot_bytes, slots) in [(64, 8), (128 << 10, 8), (8 << 20, LEAST_SLOTS)] {
            let (side, shape) = (SideLayout { ranks: 3 }, Shape { slots: 8, slot_bytes, spread: 1 });
            let layout =
                StagingLayout { staged: Arc::clone(&staged), side, scratch_bytes: 100, shape, channels: 3, led: false };
            assert_eq!(layout.slots((rank(1), rank(0))), slots);
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

    /// Links lead from ranks 0 and 2 to rank 1.
    #[test]
    fn slots_over_another_device_lie_there_and_their_words_do_not() {
        let told = [[0, 1, 2], [1, 0, 1], [2, 1, 0]].map(Vec::from);
        let world = World { rank: Rank::new(0), size: 3 };
        let layout = StagingLayout {
            staged: Arc::new(Staged::of(world, &told, |_, _| true).unwrap()),
            side: SideLayout { ranks: 3 },
            scratch_bytes: 100,
            shape: Shape { slots: 8, slot_bytes: 64, spread: 1 },
            channels: 1,
            led: false,
        };
        let (sides, stages) = (vec![1 << 30, 2 << 30, 3 << 30], vec![4 << 30, 0, 5 << 30]);
        let places = Addresses { sides, stages };
        let end = |rank: u32, way: Way| {
            let need = Need { peer: Rank::new(2 - rank), way, channel: Channel::Collective(0) };
            layout.end((Rank::new(rank), need), &places).unwrap()
        };
        let (sends, receives) = (end(0, Way::Send), end(2, Way::Receive));
        assert_eq!([sends.slots, sends.tail, sends.head], [receives.slots, receives.tail, receives.head]);
        assert_eq!([sends.slots >> 30, sends.tail >> 30, sends.head >> 30], [2, 5, 4]);
        assert_eq!([sends.mine >> 30, receives.mine >> 30], [1, 3]);
    }
}
