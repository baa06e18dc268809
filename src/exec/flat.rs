//! Small collectives inside a host: one hop, no plan.
//!
//! Each rank writes its bytes with a label into its own flat slot, where the other ranks read them. Every rank reduces
//! in rank order, so that all ranks get the same bits. The slot's flag, the label and up to 24 bytes of data are one
//! cache line.
//!
//! # Many ranks
//! If every rank read every slot, and ranks share processors, each rank would wait once for each other rank. So more
//! than 16 ranks, or more than 8 that share processors, form teams. The rank that comes last in its team, by
//! [`Arrivals`](crate::sync::Arrivals), reduces the team's slots into a partial result. The last of these ranks reduces
//! the partial results, and hands the result to each team.
//! All others wait once. One slot for the result is enough: the next result is written when every rank has announced
//! the next operation, and so has read this result.
//!
//! # When a slot may be used again
//! Slots are used in turn: the writer of operation n waits until every rank has finished operation n - [`FLAT_SLOTS`].
//! In a symmetric operation each rank waits for all others, so having finished it proves that all have finished the one
//! before. Rooted operations prove nothing, so each rank raises its `done` flag after some of them, and a writer looks
//! at these flags when it runs out of slots.

use std::cell::Cell;
use std::ops::Range;
use std::ptr::NonNull;

use crate::device::{Average, Kernel, Pass, SourceRange, Store};
use crate::error::Result;
use crate::exec::{FlagWait, Operation, is_same, mismatch, same_call, sequence};
use crate::sync::Flag;
use crate::sync::ring::Label;
use crate::sys::prefetch;
use crate::transport::{Arena, FLAT_BYTES, FLAT_SLOTS, FlatSlot, HostWindows, INLINE_BYTES};

/// The state of one rank's flat operations.
#[derive(Debug, Default)]
pub struct Flat {
    /// The teams of the host's ranks, if they form teams.
    teams: Option<Teams>,
    /// Whether a reduction must be one pass over all slots, in rank order.
    reproducible: bool,
    /// The number of the next operation.
    next: u64,
    /// All ranks have finished the operations below this number.
    finished: u64,
    /// In how many rooted operations in a row this rank has waited for nobody.
    unwaited: u32,
}

/// One flat operation under way: announced, not yet finished.
#[derive(Debug)]
pub struct Exchange<'a> {
    windows: &'a HostWindows,
    operation: &'a Operation,
    label: Label,
    /// Bytes of my data.
    bytes: usize,
    number: u64,
    teams: Option<Teams>,
    reproducible: bool,
    /// Whether the ranks whose slots I read are likely some operations ahead of me.
    trails: bool,
    /// Whether I have waited for a slot.
    waited: Cell<bool>,
}

/// Reduces sources into a target; whether the result is final, so that an average is divided now.
pub type SlotFold<'f> = dyn FnMut(&[*const u8], *mut u8, bool) + 'f;

impl Flat {
    /// For a host of `ranks` ranks that share `cores` cores; all of them pass the same. `reproducible` reductions are
    /// one pass over all slots, in rank order.
    pub fn new(ranks: usize, cores: usize, reproducible: bool) -> Flat {
        let crowded = ranks > cores && ranks >= LEAST_CROWD;
        let teams = (crowded || ranks > TEAM_RANKS).then(|| Teams::new(ranks, TEAM_RANKS));
        Flat { teams, reproducible, ..Flat::default() }
    }

    /// Announces `operation` in my slot, with `bytes` of data that `fill` writes.
    ///
    /// # Errors
    /// Of waiting for a slot.
    ///
    /// # Panics
    /// Where `bytes` is above [`FLAT_BYTES`]; callers choose another path then.
    #[inline]
    pub fn announce<'a>(
        &mut self,
        windows: &'a HostWindows,
        operation: &'a Operation,
        wait_context: &mut impl FlagWait,
        (bytes, fill): (usize, impl FnOnce(NonNull<u8>)),
    ) -> Result<Exchange<'a>> {
        if !self.has_room() {
            self.make_room(windows, wait_context)?;
        }
        Ok(self.put(windows, (operation, operation.label()), (bytes, fill)))
    }

    /// Whether the slot of the next operation is free.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.next < self.finished.saturating_add(FLAT_SLOTS)
    }

    /// [`Flat::announce`] of an operation of this label, where there is [room](Flat::has_room).
    ///
    /// # Panics
    /// As there.
    #[inline]
    pub fn put<'a>(
        &mut self,
        windows: &'a HostWindows,
        (operation, label): (&'a Operation, Label),
        (bytes, fill): (usize, impl FnOnce(NonNull<u8>)),
    ) -> Exchange<'a> {
        assert!(bytes <= FLAT_BYTES, "flat operations fit their slot");
        let number = self.next;
        self.next += 1;
        let slot = windows.mine().flat(number);
        fill(slot.data(bytes));
        slot.write_label(label);
        slot.flag.raise(number + 1);
        prefetch::to_write(windows.mine().flat(number + AHEAD).line());
        self.exchange(windows, (operation, label), (bytes, number))
    }

    /// The operation of this number that was announced with so many bytes and has not ended: the last one.
    #[inline]
    pub fn exchange<'a>(
        &self,
        windows: &'a HostWindows,
        (operation, label): (&'a Operation, Label),
        (bytes, number): (usize, u64),
    ) -> Exchange<'a> {
        let Flat { teams, reproducible, .. } = *self;
        let trails = self.unwaited >= TRAILING;
        Exchange { windows, operation, label, bytes, number, teams, reproducible, trails, waited: Cell::new(false) }
    }

    /// Whether ranks form teams.
    pub fn has_teams(&self) -> bool {
        self.teams.is_some()
    }

    /// Ends an operation in which this rank has waited for all others.
    #[inline]
    pub fn finish_symmetric(&mut self, exchange: &Exchange<'_>) {
        self.finished = self.finished.max(exchange.number);
        self.unwaited = 0;
        exchange.prefetch_next();
    }

    /// Ends an operation in which this rank has not waited for all others.
    #[inline]
    pub fn finish_rooted(&mut self, exchange: &Exchange<'_>) {
        self.unwaited = if exchange.waited.get() { 0 } else { self.unwaited.saturating_add(1) };
        if (exchange.number + 1).is_multiple_of(DONE_EVERY) {
            exchange.windows.mine().done().raise(exchange.number + 1);
        }
        exchange.prefetch_next();
    }

    /// The first of the latest flat operations that this rank and the one at `place` called differently, as both
    /// announced it. Labels stay in their slots until the slots are used again.
    #[cold]
    pub fn first_difference(&self, windows: &HostWindows, place: usize) -> Option<(Label, Label)> {
        (self.next.saturating_sub(FLAT_SLOTS)..self.next).find_map(|number| {
            let (mine, theirs) = (announced(windows.mine(), number)?, announced(&windows.arenas[place], number)?);
            (sequence(mine) == sequence(theirs) && !same_call(mine, theirs)).then_some((mine, theirs))
        })
    }

    /// Waits until the slot of the next operation is free.
    ///
    /// # Errors
    /// Of the wait.
    #[cold]
    pub fn make_room(&mut self, windows: &HostWindows, wait_context: &mut impl FlagWait) -> Result<()> {
        // This waits for half of the slots at once, so that a root whose readers share its processor yields the
        // processor once for that many operations.
        let needed = self.next - FLAT_SLOTS / 2;
        let mut least = u64::MAX;
        for (arena, rank) in windows.arenas.iter().zip(&windows.ranks) {
            if *rank == windows.ranks[windows.me] {
                continue;
            }
            let done = arena.done();
            let waiting_for =
                || format!("rank {rank} (to end the call that came {} calls before this one)", FLAT_SLOTS / 2);
            wait_context.until(done, needed, &waiting_for)?;
            least = least.min(done.value());
        }
        self.finished = self.finished.max(least);
        Ok(())
    }
}

/// The flag of the rank at `place` and the value that it must reach, where that rank has not announced operation
/// `number`.
#[inline]
pub fn missing_at(windows: &HostWindows, number: u64, place: usize) -> Option<(&Flag, u64)> {
    let flag = windows.arenas[place].flat(number).flag;
    (!flag.reached(number + 1)).then_some((flag, number + 1))
}

/// The label of operation `number`, if its slot still holds it.
fn announced(arena: &Arena, number: u64) -> Option<Label> {
    let slot = arena.flat(number);
    let is_its = || slot.flag.value() == number + 1;
    let label = is_its().then(|| slot.read_label())?;
    // The owner may have written the next label meanwhile; it raises the flag only after that, but it is a rank that
    // runs ahead of this one by as many operations as there are slots, and the comparison of numbers sees it.
    is_its().then_some(label)
}

impl<'a> Exchange<'a> {
    /// Asks for the lines that the next operation writes if it has as many bytes as this one. Not before this one is
    /// over: its own reads wait for lines too.
    #[inline]
    fn prefetch_next(&self) {
        if self.bytes > INLINE_BYTES && self.bytes <= MOST_ASKED {
            let next = self.windows.mine().flat(self.number + 1);
            prefetch::all_to_write(next.data(self.bytes), self.bytes);
        }
    }

    /// This rank has waited for another one, elsewhere.
    pub fn note_wait(&self) {
        self.waited.set(true);
    }

    /// The number of the operation.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Waits for the slot of the host's rank at `place`, checks that this rank runs the same operation, and returns
    /// where the slot's `bytes` of data lie.
    ///
    /// # Errors
    /// Of the wait; [`crate::error::Kind::Mismatch`] where the rank runs another operation.
    #[inline]
    pub fn read(&self, place: usize, bytes: usize, wait_context: &mut impl FlagWait) -> Result<NonNull<u8>> {
        let slot = self.windows.arenas[place].flat(self.number);
        if place == self.windows.me {
            return Ok(slot.data(bytes));
        }
        let rank = self.windows.ranks[place];
        if !slot.flag.reached(self.number + 1) {
            self.waited.set(true);
            wait_context.until(slot.flag, self.number + 1, &|| format!("rank {rank} (to call {})", self.operation))?;
        } else if self.trails {
            prefetch::to_read(self.windows.arenas[place].flat(self.number + BEHIND).line());
        }
        let theirs = slot.read_label();
        if is_same(theirs, self.label) { Ok(slot.data(bytes)) } else { Err(mismatch(self.label, rank, theirs)) }
    }

    /// If ranks form teams, waits for all of them and returns the result of `fold` over all slots' `bytes`. Otherwise
    /// `None`: each rank waits for the slots that it reads.
    ///
    /// # Errors
    /// As [`Exchange::read`].
    #[inline]
    pub fn meet(
        &self,
        wait_context: &mut impl FlagWait,
        (bytes, fold): (usize, Option<&mut SlotFold<'_>>),
    ) -> Result<Option<FlatSlot<'a>>> {
        match self.teams {
            Some(teams) => self.meet_in_teams(teams, wait_context, (bytes, fold)).map(Some),
            None => Ok(None),
        }
    }

    /// Whether ranks form teams.
    #[inline]
    pub fn has_teams(&self) -> bool {
        self.teams.is_some()
    }

    /// Whether a reduction may be computed from partial results.
    #[inline]
    pub fn may_fold(&self) -> bool {
        !self.reproducible || self.teams.is_some_and(|teams| teams.count == 1)
    }

    /// How a fold of [`Exchange::meet`] that is `last`, or of one team, adds up averages.
    pub fn average(&self, last: bool) -> Average {
        match (self.teams.is_none_or(|teams| teams.count == 1), last) {
            (true, _) => Average::Whole,
            // A team's slots are inputs; what teams have made of theirs are not.
            (false, false) => Average::Parts(SourceRange::ALL),
            (false, true) => Average::Parts(SourceRange::NONE),
        }
    }

    fn meet_in_teams(
        &self,
        teams: Teams,
        wait_context: &mut impl FlagWait,
        (bytes, mut fold): (usize, Option<&mut SlotFold<'_>>),
    ) -> Result<FlatSlot<'a>> {
        let arenas = &self.windows.arenas;
        let members = teams.members(teams.of(self.windows.me));
        let home = &arenas[members.start];
        if home.arrivals().arrive(members.len()) {
            let slots = members.clone().map(|place| (place, arenas[place].flat(self.number)));
            if teams.count == 1 {
                self.hand_out(teams, slots, (bytes, fold))?;
            } else {
                self.fold_into(home.partial(), slots, (bytes, fold.as_deref_mut(), false))?;
                if arenas[0].team_arrivals().arrive(teams.count) {
                    let partials = (0..teams.count).map(|team| teams.members(team).start);
                    let partials = partials.map(|place| (place, arenas[place].partial()));
                    self.hand_out(teams, partials, (bytes, fold))?;
                }
            }
        }
        let result = home.result();
        wait_context.until(result.flag, self.number + 1, &|| self.missing())?;
        self.agrees(result, members.start)?;
        Ok(result)
    }

    /// Reduces `slots` to the final result, and gives it to each team.
    fn hand_out<'s>(
        &self,
        teams: Teams,
        slots: impl ExactSizeIterator<Item = (usize, FlatSlot<'s>)>,
        (bytes, fold): (usize, Option<&mut SlotFold<'_>>),
    ) -> Result<()> {
        let arenas = &self.windows.arenas;
        let first = arenas[0].result();
        let copies = fold.is_some();
        self.fold_into(first, slots, (bytes, fold, true))?;
        for home in (0..teams.count).map(|team| teams.members(team).start) {
            let result = arenas[home].result();
            if home > 0 && copies {
                // SAFETY: slots of two arenas, both of at least `bytes`; the teams have all announced this operation,
                // so nobody reads a result of the one before.
                unsafe { result.data(bytes).copy_from_nonoverlapping(first.data(bytes), bytes) };
            }
            result.write_label(self.label);
            result.flag.raise(self.number + 1);
        }
        Ok(())
    }

    /// Reduces slots into `target`. All their owners have announced the operation.
    fn fold_into<'s>(
        &self,
        target: FlatSlot<'_>,
        slots: impl ExactSizeIterator<Item = (usize, FlatSlot<'s>)>,
        (bytes, fold, last): (usize, Option<&mut SlotFold<'_>>, bool),
    ) -> Result<()> {
        let mut sources = [std::ptr::null::<u8>(); MOST_SOURCES];
        let count = slots.len();
        for ((place, slot), source) in slots.zip(&mut sources) {
            self.agrees(slot, place)?;
            *source = slot.data(bytes).as_ptr();
        }
        if let Some(fold) = fold {
            fold(&sources[..count], target.data(bytes).as_ptr(), last);
        }
        target.write_label(self.label);
        Ok(())
    }

    /// Checks that the rank at `place` runs the same operation.
    #[inline]
    fn agrees(&self, slot: FlatSlot<'_>, place: usize) -> Result<()> {
        let theirs = slot.read_label();
        if is_same(theirs, self.label) { Ok(()) } else { Err(mismatch(self.label, self.windows.ranks[place], theirs)) }
    }

    /// The ranks that have not announced the operation, in words.
    #[cold]
    fn missing(&self) -> String {
        let HostWindows { arenas, ranks, .. } = self.windows;
        let is_late = |place: &usize| !arenas[*place].flat(self.number).flag.reached(self.number + 1);
        match (0..ranks.len()).find(is_late) {
            Some(place) => format!("rank {} (to call {})", ranks[place], self.operation),
            None => format!("the rank that came last (to end {})", self.operation),
        }
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// As [`Exchange::read`].
    #[inline]
    pub fn read_all(&self, wait_context: &mut impl FlagWait) -> Result<()> {
        for place in 0..self.windows.ranks.len() {
            self.read(place, 0, wait_context)?;
        }
        Ok(())
    }

    /// Waits for all ranks, and reduces `count` elements that lie `offset` bytes into each slot's `bytes` into
    /// `target`.
    ///
    /// # Errors
    /// As [`Exchange::read`].
    ///
    /// # Safety
    /// `target` is good for writing `count` elements of the kernel's type, and `offset` plus their size is at most
    /// `bytes`.
    #[inline]
    pub unsafe fn reduce(
        &self,
        kernel: &Kernel,
        wait_context: &mut impl FlagWait,
        (bytes, offset): (usize, usize),
        (target, count): (*mut u8, usize),
    ) -> Result<()> {
        let ranks = self.windows.ranks.len();
        let mut few = [std::ptr::null::<u8>(); FEW_RANKS];
        let mut many = Vec::new();
        let sources = if ranks <= FEW_RANKS {
            &mut few[..ranks]
        } else {
            many.resize(ranks, std::ptr::null());
            &mut many[..]
        };
        for (place, source) in sources.iter_mut().enumerate() {
            let data = self.read(place, bytes, wait_context)?;
            *source = data.as_ptr().wrapping_add(offset);
        }
        let pass = Pass {
            sources,
            raw: None,
            targets: &[target],
            count,
            finish: true,
            average: Average::Whole,
            store: Store::Cached,
        };
        // SAFETY: each source is a slot of at least `offset` + count elements that its owner does not touch before
        // everyone is done; the target is the caller's.
        unsafe { kernel.run(&pass) };
        Ok(())
    }
}

/// The teams of a host: neighbours, of nearly one size.
#[derive(Debug, Clone, Copy)]
struct Teams {
    ranks: usize,
    count: usize,
}

impl Teams {
    fn new(ranks: usize, most: usize) -> Teams {
        Teams { ranks, count: ranks.div_ceil(most).min(MOST_SOURCES) }
    }

    fn edge(self, team: usize) -> usize {
        self.ranks * team / self.count
    }

    fn members(self, team: usize) -> Range<usize> {
        self.edge(team)..self.edge(team + 1)
    }

    /// The team of the rank at `place`.
    fn of(self, place: usize) -> usize {
        // The last team whose edge is not after the place.
        ((place + 1) * self.count - 1) / self.ranks
    }
}

/// How many operations before a slot's line is written the rank asks for it. Readers of the operation that had the slot
/// before have a copy of the line, and to take it back from a far processor costs more than a whole call.
const AHEAD: u64 = 4;
/// The most bytes of which the lines are asked for before they are written. Asking for 16 KiB gained nothing.
const MOST_ASKED: usize = 8 << 10;
/// A rank that has waited for nobody in so many rooted operations trails the others.
const TRAILING: u32 = 8;
/// How many operations before a slot is read a rank that trails asks for its line. One that does not trail would take
/// the line from a writer that still needs it.
const BEHIND: u64 = 2;
/// At which numbers of rooted operations a rank tells that it has finished them: at multiples of this. A writer that is
/// out of slots looks at the line all the time, so that each raise has to take it back.
const DONE_EVERY: u64 = FLAT_SLOTS.div_ceil(4);
const _: () = assert!(DONE_EVERY <= FLAT_SLOTS / 2, "a writer waits for an operation that many back: one tells of it");
/// Up to this many ranks, the list of sources is on the stack.
const FEW_RANKS: usize = 8;
/// Ranks of a team: the last of them reads this many slots, one after the other.
const TEAM_RANKS: usize = 16;
/// The fewest ranks that form teams because they share processors. With fewer, the hop to the last rank and back costs
/// more than the waits that it spares: bench/NOTES.md, "Four ranks on two processors".
const LEAST_CROWD: usize = 9;
/// Slots that one rank reduces at once: those of a team, or the partial results of all teams.
const MOST_SOURCES: usize = 64;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::types::ReduceOp;
    use crate::{Config, local};

    /// Ranks tell of some rooted operations only that they are over. Here a root runs far ahead of readers that come
    /// late, after operations of any number, and ranks take turns as root.
    #[test]
    fn a_root_gets_room_whichever_operation_it_starts_from() {
        const RANKS: u32 = 3;
        let config = Config::default().with_timeout(std::time::Duration::from_secs(30));
        let ran = local::run_with(RANKS, &config, |comm| {
            let me = comm.rank();
            for start in 0..2 * u32::try_from(DONE_EVERY).expect("a few") {
                for _ in 0..start % 19 {
                    comm.barrier()?;
                }
                let root = start % RANKS;
                if me == (root + 1) % RANKS {
                    (0..20).for_each(|_| crate::sys::cpu::yield_now());
                }
                for step in 0..150 {
                    let mut sent = [if me == root { start + step } else { 0 }];
                    comm.broadcast(&mut sent, root)?;
                    assert_eq!(sent, [start + step], "rank {me}, start {start}");
                }
                for step in 0..150 {
                    let mut sum = [0];
                    comm.reduce(&[step + me], &mut sum, ReduceOp::Sum, root)?;
                    let all = if me == root { RANKS * step + 3 } else { 0 };
                    assert_eq!(sum, [all], "rank {me}, start {start}");
                }
            }
            Ok(())
        });
        ran.expect("nobody waits in vain");
    }

    #[test]
    fn every_rank_is_in_one_team_and_no_team_is_too_large() {
        for ranks in 1..=800 {
            for most in [1, 2, 3, 16] {
                let teams = Teams::new(ranks, most);
                let mut all = (0..teams.count).flat_map(|team| teams.members(team).map(move |place| (place, team)));
                assert!((0..ranks).map(|place| (place, teams.of(place))).all(|pair| all.next() == Some(pair)));
                assert_eq!(all.next(), None);
                assert!(teams.count <= MOST_SOURCES);
                assert!(ranks > MOST_SOURCES * most || teams.members(0).len() <= most);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::sync::Flag;
    use crate::sync::flag::models::EVER;
    use crate::sync::primitive::Arc;
    use crate::sys::futex::{Membarrier, model};
    use crate::transport::{Arena, Neighbour};
    use crate::types::{Collective, DataType, Rank};

    /// Waits with nothing but the flag's wake to end a sleep.
    struct Sleep;

    impl FlagWait for Sleep {
        fn until(&mut self, flag: &Flag, target: u64, _: &dyn crate::sync::Waiting) -> Result<()> {
            while !flag.reached(target) {
                flag.park(target, EVER);
            }
            Ok(())
        }
    }

    /// Data of each rank's slots as loom sees it: it cannot watch the mapping, so whoever touches a slot there touches
    /// its cell here.
    type Cells = Vec<[UnsafeCell<()>; SLOTS]>;

    #[expect(clippy::cast_possible_truncation, reason = "two slots")]
    const SLOTS: usize = FLAT_SLOTS as usize;

    struct Host {
        arenas: Vec<Arena>,
        cells: Cells,
        /// Of each rank's partial result, and of the result. Those that teams have of it are written together with the
        /// first.
        partials: Vec<UnsafeCell<()>>,
        result: UnsafeCell<()>,
        /// Ranks of a team.
        team_ranks: usize,
    }

    // SAFETY: that nobody writes a slot while others read it is what the models prove; loom fails where it is not so.
    unsafe impl Sync for Host {}
    // SAFETY: as above.
    unsafe impl Send for Host {}

    impl Host {
        fn new(ranks: usize, team_ranks: usize) -> Host {
            let cells = (0..ranks).map(|_| std::array::from_fn(|_| UnsafeCell::new(()))).collect();
            let arenas = (0..ranks).map(|_| Arena::laid().expect("some pages")).collect();
            let partials = (0..ranks).map(|_| UnsafeCell::new(())).collect();
            Host { arenas, cells, partials, result: UnsafeCell::new(()), team_ranks }
        }

        /// Adds the bytes of slots as the last rank of a team does: loom is told which slots that touches.
        fn fold(&self, number: u64, sources: &[*const u8], target: *mut u8) {
            let at = |slot: FlatSlot<'_>| slot.data(1).as_ptr();
            let cells = |place: *const u8| {
                let ranks = 0..self.arenas.len();
                let partial = ranks.clone().find(|rank| at(self.arenas[*rank].partial()).cast_const() == place);
                let slot = ranks.clone().find(|rank| at(self.arenas[*rank].flat(number)).cast_const() == place);
                match (partial, slot) {
                    (Some(rank), _) => &self.partials[rank],
                    (None, Some(rank)) => self.cell(rank, number),
                    (None, None) => &self.result,
                }
            };
            // SAFETY: the places of the one byte that each slot has; loom finds who else touches them.
            let sum = sources.iter().map(|source| cells(*source).with(|_| unsafe { source.read() })).sum();
            // SAFETY: as above.
            cells(target).with_mut(|_| unsafe { target.write(sum) });
        }

        fn cell(&self, rank: usize, number: u64) -> &UnsafeCell<()> {
            &self.cells[rank][usize::try_from(number % FLAT_SLOTS).expect("two slots")]
        }

        /// Rank `me` runs as many operations as there are `readers`: those read everyone's slots; all do where there
        /// are none.
        fn run(&self, me: usize, readers: &[Readers]) {
            let ranks = self.arenas.len();
            let windows = HostWindows {
                ranks: (0..u32::try_from(ranks).expect("a few")).map(Rank::new).collect(),
                me,
                arenas: self.arenas.clone(),
                neighbours: vec![Neighbour::Thread; ranks],
                boards: None,
                registered: Vec::new(),
            };
            let mut flat = Flat::default();
            flat.teams = (self.team_ranks > 0).then(|| Teams::new(ranks, self.team_ranks));
            for (number, readers) in (0..).zip(readers) {
                let operation = Operation {
                    collective: Collective::Barrier,
                    data_type: DataType::U8,
                    op: None,
                    root: None,
                    count: 1,
                    sequence: number,
                    past: 0,
                    on_device: false,
                    windows: 0,
                };
                let fill = |slot: NonNull<u8>| {
                    // SAFETY: the place of the one byte that is announced.
                    self.cell(me, number).with_mut(|_| unsafe { slot.as_ptr().write(byte(me, number)) });
                };
                let exchange = flat.announce(&windows, &operation, &mut Sleep, (1, fill)).expect("no wait fails");
                let read = |rank: usize| {
                    let data = exchange.read(rank, 1, &mut Sleep).expect("all run the same operation");
                    // SAFETY: the place of the one byte that was announced.
                    let found = self.cell(rank, number).with(|_| unsafe { data.as_ptr().read() });
                    assert_eq!(found, byte(rank, number));
                };
                match readers {
                    Readers::Teams => {
                        let mut fold = |sources: &[*const u8], target: *mut u8, _| self.fold(number, sources, target);
                        let met = exchange.meet(&mut Sleep, (1, Some(&mut fold))).expect("no wait fails");
                        let result = met.expect("ranks stand in teams");
                        // SAFETY: the place of the one byte of the result.
                        let found = self.result.with(|_| unsafe { result.data(1).as_ptr().read() });
                        assert_eq!(found, (0..ranks).map(|rank| byte(rank, number)).sum::<u8>());
                        flat.finish_symmetric(&exchange);
                    }
                    Readers::All => {
                        (0..ranks).for_each(read);
                        flat.finish_symmetric(&exchange);
                    }
                    Readers::Of(root) => {
                        if me != *root {
                            read(*root);
                        }
                        flat.finish_rooted(&exchange);
                    }
                    Readers::Root(root) => {
                        if me == *root {
                            (0..ranks).for_each(read);
                        }
                        flat.finish_rooted(&exchange);
                    }
                }
            }
        }
    }

    /// Who reads whose slots in an operation.
    #[derive(Debug, Clone, Copy)]
    enum Readers {
        /// The last of each team those of its team.
        Teams,
        /// Everyone everyone's.
        All,
        /// Everyone the root's, as in a broadcast.
        Of(usize),
        /// The root everyone's, as in a gather.
        Root(usize),
    }

    fn byte(rank: usize, number: u64) -> u8 {
        u8::try_from(number * 16).expect("a few operations") + u8::try_from(rank).expect("a few ranks")
    }

    /// No rank writes a slot that another still reads, in operations that follow each other so.
    fn slots_go_round(operations: &'static [Readers]) {
        slots_go_round_in_teams(0, operations);
    }

    fn slots_go_round_in_teams(team_ranks: usize, operations: &'static [Readers]) {
        model(Membarrier::Works, move || {
            let host = Arc::new(Host::new(2, team_ranks));
            let theirs = Arc::clone(&host);
            let peer = loom::thread::spawn(move || theirs.run(1, operations));
            host.run(0, operations);
            peer.join().expect("loom ends the model before a panic comes here");
        });
    }

    #[test]
    fn symmetric_operations_prove_that_slots_were_read() {
        slots_go_round(&[Readers::All; 4]);
    }

    #[test]
    fn a_root_that_runs_ahead_waits_for_its_readers() {
        slots_go_round(&[Readers::Of(0); 4]);
    }

    #[test]
    fn ranks_that_run_ahead_wait_for_a_root() {
        slots_go_round(&[Readers::Root(0); 4]);
    }

    #[test]
    fn the_last_of_a_team_reduces_for_all() {
        slots_go_round_in_teams(2, &[Readers::Teams; 3]);
    }

    #[test]
    fn the_last_of_all_teams_hands_the_result_to_each() {
        slots_go_round_in_teams(1, &[Readers::Teams; 3]);
    }

    #[test]
    fn operations_with_and_without_teams_may_follow_each_other() {
        slots_go_round_in_teams(2, &[Readers::Teams, Readers::Of(0), Readers::Root(1), Readers::Teams]);
    }

    #[test]
    fn kinds_of_operations_may_follow_each_other() {
        slots_go_round(&[Readers::Of(0), Readers::Root(0), Readers::All, Readers::Of(1), Readers::Of(1)]);
    }
}
