//! The root's decisions: who has checked in, who is missing, what follows. It has no sockets and no clock: the root's
//! loop passes it events and times.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::bootstrap::checkin::{AddressTable, CheckIn, EncryptionTally, FurtherRoot, RankBlock, WorldShape, ranges};
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
    /// The world of the first rank that served or looked for a further root before any rank checked in, and that rank.
    said: Option<(WorldShape, Rank)>,
    /// When the most impatient rank must have an answer.
    impatience: Option<Instant>,
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
    encryption: EncryptionTally,
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
/// Of a rank that has less left than this, in ms, the margin is in proportion.
const LITTLE_TIME_MS: u32 = 8_000;

impl Roster {
    /// A roster that waits `lifetime` for the first rank, then `check_in_timeout` for the last.
    pub(super) fn new(session: [u8; 16], lifetime: Duration, check_in_timeout: Duration, now: Instant) -> Roster {
        let deadline = moment(now, lifetime);
        Roster {
            session,
            check_in_timeout,
            state: None,
            said: None,
            impatience: None,
            turned_away: Vec::new(),
            deadline,
            started: now,
        }
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
        self.state.as_ref().map(|known| known.shape).or(self.said.map(|(shape, _)| shape))
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
        self.admit(check_in).map_err(|error| self.turn_away(error, from))?;
        self.begin(now);
        self.hurry(check_in.left_ms, now);
        Ok(self.next_step(now))
    }

    /// Keeps why a rank was rejected, for those who wait for it in vain.
    pub(super) fn turn_away(&mut self, error: Error, from: SocketAddr) -> Error {
        if self.turned_away.len() < MAX_TURNED_AWAY {
            self.turned_away.push(format!("{} (from {from})", error.message()));
        }
        error
    }

    fn admit(&mut self, check_in: &CheckIn) -> Result<()> {
        let CheckIn { rank, shape, root, address, encryption, .. } = check_in;
        if self.state.is_none() {
            self.check_said(&format!("rank {rank}"), (*shape, *root))?;
        }
        let known = self
            .state
            .get_or_insert_with(|| Known::new(*shape, (*root, *rank), EncryptionTally::new(*rank, *encryption)));
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
        known.encryption.add(*rank, *encryption);
        known.missing -= 1;
        Ok(())
    }

    /// At root 0: whether a rank of another block may serve, or look for, the root of that block.
    ///
    /// # Errors
    /// The reason to reject it: it takes the world for another than the ranks that have come.
    pub(super) fn check_further(&self, further: &FurtherRoot) -> Result<()> {
        let FurtherRoot { rank, shape, .. } = *further;
        let who = format!("rank {rank}");
        match &self.state {
            Some(known) if shape != known.shape || known.root != 0 => Err(known.mismatch(&who, shape, 0)),
            Some(_) => Ok(()),
            None => self.check_said(&who, (shape, 0)),
        }
    }

    /// At root 0: a rank that was [checked](Roster::check_further) serves, or looks for, the root of another block.
    pub(super) fn hear_of(&mut self, further: &FurtherRoot, now: Instant) {
        if self.state.is_none() {
            self.said.get_or_insert((further.shape, further.rank));
        }
        // Later than that rank's own root answers: it knows who is missing there, and says it here, too.
        self.answer_in_time((further.left_ms, MARGIN / 2), now);
    }

    /// Fails where ranks of other blocks have come, who take the world for another.
    fn check_said(&self, who: &str, theirs: (WorldShape, u32)) -> Result<()> {
        match self.said {
            Some((shape, by)) if (shape, 0) != theirs => Err(disagreement((who, theirs), (by, (shape, 0)))),
            Some(_) | None => Ok(()),
        }
    }

    /// At root 0: records the block of another root.
    ///
    /// # Errors
    /// The reason to reject it.
    pub(super) fn block(&mut self, block: RankBlock, now: Instant) -> Result<NextStep> {
        let first = block.shape.first(block.root);
        if self.state.is_none() {
            self.check_said(&format!("the block of root {}", block.root), (block.shape, 0))?;
        }
        let known = self.state.get_or_insert_with(|| Known::new(block.shape, (0, first), block.encryption));
        if block.shape != known.shape || known.root != 0 || block.root == 0 {
            return Err(known.mismatch(&format!("the block of root {}", block.root), block.shape, 0));
        }
        let seat = &mut known.blocks[Rank::new(block.root).index()];
        if seat.is_some() {
            let root = block.root;
            return Err(Error::mismatch(format!("the block of root {root} came twice: is one id given twice?")));
        }
        *seat = Some(block.addresses);
        known.encryption.merge(block.encryption);
        known.blocks_missing -= 1;
        self.begin(now);
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
            return NextStep::Report(RankBlock {
                root: known.root,
                left_ms,
                shape: known.shape,
                encryption: known.encryption,
                addresses: own,
            });
        }
        let mut addresses = own;
        addresses.extend(known.blocks.iter().flatten().flatten());
        NextStep::Answer(AddressTable { session: self.session, addresses })
    }

    /// A rank or a block has come: the check-in time begins with the first one.
    fn begin(&mut self, now: Instant) {
        if self.state.as_ref().is_some_and(Known::is_first) {
            self.started = now;
            self.deadline = moment(now, self.check_in_timeout);
        }
    }

    /// Shortens the deadline to that of the most impatient rank: after it gives up, the others would wait in vain.
    fn hurry(&mut self, left_ms: u32, now: Instant) {
        self.answer_in_time((left_ms, MARGIN), now);
    }

    /// The same, so long before the rank gives up; less of a rank with little time.
    fn answer_in_time(&mut self, (left_ms, margin): (u32, Duration), now: Instant) {
        let left = Duration::from_millis(u64::from(left_ms));
        let until = now + (left - (margin * left_ms.min(LITTLE_TIME_MS) / LITTLE_TIME_MS));
        let impatience = self.impatience.map_or(until, |earlier| earlier.min(until));
        self.impatience = Some(impatience);
        self.deadline = self.deadline.min(impatience);
    }

    /// The error for all ranks where settings differ that connections need, once all have come.
    pub(super) fn difference(&self) -> Option<Error> {
        self.state.as_ref().and_then(|known| known.encryption.difference())
    }

    /// Whether ranks of this root's own block have not come, of which others have.
    pub(super) fn misses_ranks(&self) -> bool {
        self.state.as_ref().is_some_and(|known| known.missing > 0)
    }

    /// The error for every present rank when the deadline has passed.
    pub(super) fn overdue(&self, now: Instant) -> Error {
        let mut message = self.missing(now);
        for reason in &self.turned_away {
            message += "; turned away: ";
            message += reason;
        }
        Error::timeout(message)
    }

    /// Who has not come, in words.
    fn missing(&self, now: Instant) -> String {
        let Some(known) = &self.state else {
            let first_block = self.shape().filter(|shape| shape.roots > 1).map(|shape| (shape.count(0), shape.world));
            return first_block.map_or_else(
                || "no rank has checked in".to_owned(),
                |(count, world)| format!("none of the first {count} ranks of {world} has come"),
            );
        };
        let waited = now.saturating_duration_since(self.started).as_secs_f64();
        let world = known.shape.world;
        match known.absent() {
            None => {
                format!("root 0 did not answer within {waited:.1} s, although all ranks of this root had checked in")
            }
            Some(absent) => {
                let ranks = if absent.parse::<u32>().is_ok() { "rank" } else { "ranks" };
                format!("{ranks} {absent} of {world} never came within {waited:.1} s")
            }
        }
    }

    /// The error for everyone when `rank` was lost after its check-in.
    pub(super) fn lost(&self, rank: Rank, why: &str) -> Error {
        Error::new(Kind::Remote, format!("rank {rank} has died while the others came: {why}")).about(rank)
    }
}

impl Known {
    fn new(shape: WorldShape, (root, by): (u32, Rank), encryption: EncryptionTally) -> Known {
        let count = Rank::new(shape.count(root)).index();
        let blocks = if root == 0 { Rank::new(shape.roots).index() } else { 1 };
        let (present, blocks) = (vec![None; count], vec![None; blocks]);
        Known { shape, root, by, encryption, missing: count, present, blocks_missing: blocks.len() - 1, blocks }
    }

    /// Whether exactly one rank or block has come so far.
    fn is_first(&self) -> bool {
        (self.present.len() - self.missing) + (self.blocks.len() - 1 - self.blocks_missing) == 1
    }

    fn mismatch(&self, who: &str, theirs: WorldShape, root: u32) -> Error {
        disagreement((who, (theirs, root)), (self.by, (self.shape, self.root)))
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

/// The error for `who`, who takes this root for another root, or the world for another, than rank `by` did before.
fn disagreement(
    (who, (theirs, their_root)): (&str, (WorldShape, u32)),
    (by, (ours, root)): (Rank, (WorldShape, u32)),
) -> Error {
    let WorldShape { world, roots, ids } = ours;
    if theirs.world != world {
        let other = theirs.world;
        return Error::mismatch(format!(
            "ranks disagree about the world: {who} reports {other} ranks, rank {by} reported {world}"
        ));
    }
    if theirs.ids != ids {
        let other = theirs.ids;
        return Error::mismatch(format!(
            "ranks disagree about the unique ids: {who} was given {other}, rank {by} was given {ids}"
        ));
    }
    let other = theirs.roots;
    Error::mismatch(format!(
        "ranks disagree about the roots: {who} takes this one for root {their_root} of {other}, rank {by} for root \
         {root} of {roots}"
    ))
}

/// The part of the whole table that `rank` needs: the addresses of its neighbours.
pub(super) fn welcome(table: &AddressTable, rank: Rank) -> AddressTable {
    let world = u32::try_from(table.addresses.len()).unwrap_or(u32::MAX);
    let neighbours = neighbours(rank, world).into_iter();
    let addresses = neighbours.map(|neighbour| table.addresses[neighbour.rank.index()]).collect();
    AddressTable { session: table.session, addresses }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Encryption;
    use crate::sys::clock;

    /// Three roots of one id: their blocks begin at ranks 0, 2 and 4.
    const SHAPE: WorldShape = WorldShape { world: 6, roots: 3, ids: 1 };
    const PATIENT_MS: u32 = 600_000;

    fn roster(now: Instant) -> Roster {
        Roster::new([0; 16], Duration::from_secs(1800), Duration::from_secs(10), now)
    }

    fn from() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 9))
    }

    fn check_in(rank: u32, shape: WorldShape) -> CheckIn {
        let (root, left_ms, address, encryption) = (0, PATIENT_MS, from(), Encryption::Off);
        CheckIn { rank: Rank::new(rank), shape, root, left_ms, address, encryption }
    }

    fn looks(rank: u32) -> FurtherRoot {
        let rank = Rank::new(rank);
        FurtherRoot { rank, shape: SHAPE, root: SHAPE.root_of(rank), left_ms: PATIENT_MS, at: None }
    }

    /// Regression: each rank that looked for its root while one rank was there began the check-in time anew.
    #[test]
    fn the_check_in_time_begins_with_the_first_rank_and_with_no_other() {
        let start = clock::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut roster = roster(start);
        roster.hear_of(&looks(5), start);
        roster.check_in(&check_in(0, SHAPE), from(), after(1)).unwrap();
        roster.hear_of(&looks(3), after(10));
        assert_eq!(roster.deadline(), after(11));
        assert!(roster.overdue(after(11)).message().contains("never came within 10.0 s"));
        // The impatience of any rank still counts.
        roster.hear_of(&FurtherRoot { left_ms: 800, ..looks(3) }, after(10));
        assert_eq!(roster.deadline(), after(10) + Duration::from_millis(750));
    }

    /// Regression: the ranks that waited for one that was told no did not hear why it had not come.
    #[test]
    fn ranks_that_wait_hear_why_a_rank_of_another_block_was_turned_away() {
        let now = clock::now();
        let of_ids = WorldShape { ids: 3, ..SHAPE };
        for is_first_there in [true, false] {
            let mut roster = roster(now);
            if is_first_there {
                roster.check_in(&check_in(0, SHAPE), from(), now).unwrap();
            } else {
                roster.hear_of(&looks(5), now);
            }
            let error = roster.check_further(&FurtherRoot { shape: of_ids, ..looks(2) }).unwrap_err();
            roster.turn_away(error, from());
            let words = roster.overdue(now).message().to_owned();
            assert!(words.contains("turned away: ranks disagree about the unique ids: rank 2 was given 3"), "{words}");
        }
    }
}
