//! The root's decisions: who has checked in, who is missing, what follows. It has no sockets and no clock: the root's
//! loop passes it events and times.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::bootstrap::checkin::{AddressTable, CheckIn, RankBlock, WorldShape, ranges};
use crate::bootstrap::graph::neighbours;
use crate::bootstrap::link::moment;
use crate::error::{Error, Kind, Result};
use crate::types::Rank;

/// See the module. The roster of root `root`; the first check-in defines the shape.
#[derive(Debug)]
pub(super) struct Roster {
    session: [u8; 16],
    check_in_timeout: Duration,
    state: Option<Known>,
    /// Ranks that were rejected, for the message when the deadline passes.
    turned_away: Vec<String>,
    deadline: Instant,
    started: Instant,
}

/// The facts that the first check-in defines.
#[derive(Debug)]
struct Known {
    shape: WorldShape,
    root: u32,
    by: Rank,
    /// For each rank of the block: its listening address, once it has checked in.
    present: Vec<Option<SocketAddr>>,
    missing: usize,
    /// At root 0: the blocks of the other roots.
    blocks: Vec<Option<Vec<SocketAddr>>>,
    blocks_missing: usize,
}

/// The root's next action.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Wait for more ranks.
    Wait,
    /// Send the block to its first rank and wait for the table.
    Report(RankBlock),
    /// The table of all ranks is complete: answer everyone.
    Answer(AddressTable),
}

/// The most rejected ranks that the message lists.
const MAX_TURNED_AWAY: usize = 8;

/// How long before a rank gives up its root answers, so that the rank still receives the answer.
const MARGIN: Duration = Duration::from_secs(1);

impl Roster {
    /// A roster that waits `lifetime` for the first rank, then `check_in_timeout` for the last.
    pub(super) fn new(session: [u8; 16], lifetime: Duration, check_in_timeout: Duration, now: Instant) -> Roster {
        let deadline = moment(now, lifetime);
        Roster { session, check_in_timeout, state: None, turned_away: Vec::new(), deadline, started: now }
    }

    /// When the root gives up.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether no rank has checked in.
    pub(super) fn is_empty(&self) -> bool {
        self.state.is_none()
    }

    /// The shape, once it is known.
    pub(super) fn shape(&self) -> Option<WorldShape> {
        self.state.as_ref().map(|known| known.shape)
    }

    /// The first rank of the block, once it is known.
    pub(super) fn first(&self) -> Option<Rank> {
        self.state.as_ref().map(|known| known.shape.first(known.root))
    }

    /// Records the check-in of a rank; `from` is the address of its connection.
    ///
    /// # Errors
    /// The reason to reject it: its number is taken, or it reports another world. No other rank is affected.
    pub(super) fn check_in(&mut self, check_in: &CheckIn, from: SocketAddr, now: Instant) -> Result<NextStep> {
        let outcome = self.admit(check_in);
        if let Err(error) = outcome {
            if self.turned_away.len() < MAX_TURNED_AWAY {
                self.turned_away.push(format!("{} (from {from})", error.message()));
            }
            return Err(error);
        }
        self.hurry(check_in.left_ms, now);
        Ok(self.next_step(now))
    }

    fn admit(&mut self, check_in: &CheckIn) -> Result<()> {
        let CheckIn { rank, shape, root, address, .. } = check_in;
        let known = self.state.get_or_insert_with(|| Known::new(*shape, *root, *rank));
        if (*shape, *root) != (known.shape, known.root) {
            return Err(known.mismatch(&format!("rank {rank}"), *shape, *root));
        }
        let seat = &mut known.present[Rank::new(rank.get() - known.shape.first(*root).get()).index()];
        if let Some(holder) = seat {
            return Err(Error::mismatch(format!(
                "two ranks have the number {rank}: one listens at {holder}, the other at {address}; either two \
                 processes were given this rank (RSCCL_RANK, RANK, or the argument of init), or two jobs use one id or \
                 store"
            ))
            .about(*rank));
        }
        *seat = Some(*address);
        known.missing -= 1;
        Ok(())
    }

    /// At root 0: records the block of another root.
    ///
    /// # Errors
    /// The reason to reject it.
    pub(super) fn block(&mut self, block: RankBlock, now: Instant) -> Result<NextStep> {
        let first = block.shape.first(block.root);
        let known = self.state.get_or_insert_with(|| Known::new(block.shape, 0, first));
        if block.shape != known.shape || known.root != 0 || block.root == 0 {
            return Err(known.mismatch(&format!("the block of root {}", block.root), block.shape, 0));
        }
        let seat = &mut known.blocks[Rank::new(block.root).index()];
        if seat.is_some() {
            let root = block.root;
            return Err(Error::mismatch(format!("the block of root {root} came twice: is one id given twice?")));
        }
        *seat = Some(block.addresses);
        known.blocks_missing -= 1;
        self.hurry(block.left_ms, now);
        Ok(self.next_step(now))
    }

    fn next_step(&self, now: Instant) -> NextStep {
        let Some(known) = &self.state else { return NextStep::Wait };
        if known.missing > 0 || known.blocks_missing > 0 {
            return NextStep::Wait;
        }
        let own: Vec<SocketAddr> = known.present.iter().flatten().copied().collect();
        if known.root != 0 {
            let left = self.deadline.saturating_duration_since(now).as_millis();
            let left_ms = u32::try_from(left).unwrap_or(u32::MAX);
            return NextStep::Report(RankBlock { root: known.root, left_ms, shape: known.shape, addresses: own });
        }
        let mut addresses = own;
        addresses.extend(known.blocks.iter().flatten().flatten());
        NextStep::Answer(AddressTable { session: self.session, addresses })
    }

    /// Shortens the deadline to that of the most impatient rank: after it gives up, the others would wait in vain. The
    /// check-in time itself begins with the first rank.
    fn hurry(&mut self, left_ms: u32, now: Instant) {
        let first = self.state.as_ref().is_some_and(|known| known.is_first());
        if first {
            self.started = now;
            self.deadline = moment(now, self.check_in_timeout);
        }
        let left = Duration::from_millis(u64::from(left_ms));
        let margin = (left / 8).min(MARGIN);
        self.deadline = self.deadline.min(now + (left - margin));
    }

    /// The error for every present rank when the deadline has passed.
    pub(super) fn overdue(&self, now: Instant) -> Error {
        let Some(known) = &self.state else { return Error::timeout("no rank has checked in") };
        let waited = now.saturating_duration_since(self.started).as_secs_f64();
        let world = known.shape.world;
        let mut message = match known.absent() {
            None => {
                format!("root 0 did not answer within {waited:.1} s, although all ranks of this root had checked in")
            }
            Some(absent) => {
                let ranks = if absent.parse::<u32>().is_ok() { "rank" } else { "ranks" };
                format!("{ranks} {absent} of {world} never came within {waited:.1} s")
            }
        };
        for reason in &self.turned_away {
            message += "; turned away: ";
            message += reason;
        }
        Error::timeout(message)
    }

    /// The error for everyone when `rank` was lost after its check-in.
    pub(super) fn lost(&self, rank: Rank, why: &str) -> Error {
        Error::new(Kind::Remote, format!("rank {rank} has died while the others came: {why}")).about(rank)
    }
}

impl Known {
    fn new(shape: WorldShape, root: u32, by: Rank) -> Known {
        let count = Rank::new(shape.count(root)).index();
        let blocks = if root == 0 { Rank::new(shape.roots).index() } else { 1 };
        let (present, blocks) = (vec![None; count], vec![None; blocks]);
        Known { shape, root, by, missing: count, present, blocks_missing: blocks.len() - 1, blocks }
    }

    /// Whether exactly one rank or block has come so far.
    fn is_first(&self) -> bool {
        (self.present.len() - self.missing) + (self.blocks.len() - 1 - self.blocks_missing) == 1
    }

    fn mismatch(&self, who: &str, theirs: WorldShape, root: u32) -> Error {
        let WorldShape { world, roots } = self.shape;
        let by = self.by;
        if theirs.world != world {
            let other = theirs.world;
            return Error::mismatch(format!(
                "ranks disagree about the world: {who} reports {other} ranks, rank {by} reported {world}"
            ));
        }
        let (other, at) = (theirs.roots, self.root);
        Error::mismatch(format!(
            "ranks disagree about the roots: {who} takes this one for root {root} of {other}, rank {by} for root {at} \
             of {roots}"
        ))
    }

    /// The missing ranks as ranges; `None` if all that this root waits for have come.
    fn absent(&self) -> Option<String> {
        let first = self.shape.first(self.root).get();
        let own = (first..).zip(&self.present).filter(|(_, address)| address.is_none()).map(|(rank, _)| rank);
        let others = (1..).zip(self.blocks.iter().skip(1)).filter(|(_, block)| block.is_none());
        let others = others
            .flat_map(|(root, _)| (self.shape.first(root).get()..).take(Rank::new(self.shape.count(root)).index()));
        let absent = ranges(own.chain(others));
        (!absent.is_empty()).then_some(absent)
    }
}

/// The part of the whole table that `rank` needs: the addresses of its neighbours.
pub(super) fn welcome(table: &AddressTable, rank: Rank) -> AddressTable {
    let world = u32::try_from(table.addresses.len()).unwrap_or(u32::MAX);
    let neighbours = neighbours(rank, world).into_iter();
    let addresses = neighbours.map(|neighbour| table.addresses[neighbour.rank.index()]).collect();
    AddressTable { session: table.session, addresses }
}
