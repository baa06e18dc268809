//! Small collectives inside a host: one hop, no plan.
//!
//! Each rank writes its bytes with a label into its own flat slot; who needs them reads them there. Everyone reduces in rank order,
//! so that all ranks get the same bits. The slot's flag, the label and up to 24 bytes of data are one cache line.
//!
//! # When a slot may be used again
//! Slots go round; the writer of operation n needs everyone to have finished operation n - [`FLAT_SLOTS`]. In a symmetric operation
//! each rank waits for all others, so having finished it proves that all have finished the one before. Rooted operations
//! prove nothing, so each rank raises its `done` flag after them, and a writer looks at these flags when it runs out of slots.

use std::ptr::NonNull;

use crate::device::{Kernel, Pass, Store};
use crate::error::Result;
use crate::exec::{Operation, Until, mismatch, same_call, sequence};
use crate::sync::ring::Label;
use crate::transport::{Arena, FLAT_BYTES, FLAT_SLOTS, FlatSlot, HostWindows};

/// The state of one rank's flat operations.
#[derive(Debug, Default)]
pub struct Flat {
    /// The number of the next operation.
    next: u64,
    /// All ranks have finished the operations below this number.
    finished: u64,
}

/// One flat operation under way: announced, not yet finished.
#[derive(Debug)]
pub struct Exchange<'a> {
    windows: &'a HostWindows,
    operation: &'a Operation,
    label: Label,
    number: u64,
}

impl Flat {
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
        idle: &mut impl Until,
        (bytes, fill): (usize, impl FnOnce(NonNull<u8>)),
    ) -> Result<Exchange<'a>> {
        assert!(bytes <= FLAT_BYTES, "flat operations fit their slot");
        let number = self.next;
        if number >= self.finished.saturating_add(FLAT_SLOTS) {
            self.make_room(windows, idle)?;
        }
        self.next += 1;
        let label = operation.label();
        let slot = windows.mine().flat(number);
        fill(slot.data(bytes));
        slot.write_label(label);
        slot.flag.raise(number + 1);
        Ok(Exchange { windows, operation, label, number })
    }

    /// Ends an operation in which I have waited for everyone.
    #[inline]
    pub fn finish_symmetric(&mut self, exchange: &Exchange<'_>) {
        self.finished = self.finished.max(exchange.number);
    }

    /// Ends an operation in which I have not.
    #[inline]
    pub fn finish_rooted(&mut self, exchange: &Exchange<'_>) {
        exchange.windows.mine().done().raise(exchange.number + 1);
    }

    /// The first of the latest flat operations that this rank and the one at `place` called differently, as both announced it. Labels
    /// stay in their slots until the slots are used again.
    #[cold]
    pub fn first_difference(&self, windows: &HostWindows, place: usize) -> Option<(Label, Label)> {
        (self.next.saturating_sub(FLAT_SLOTS)..self.next).find_map(|number| {
            let (mine, theirs) = (announced(windows.mine(), number)?, announced(&windows.arenas[place], number)?);
            (sequence(mine) == sequence(theirs) && !same_call(mine, theirs)).then_some((mine, theirs))
        })
    }

    #[cold]
    fn make_room(&mut self, windows: &HostWindows, idle: &mut impl Until) -> Result<()> {
        // Half of the slots at once: a root whose readers share its processor gives it away once for so many operations.
        let needed = self.next - FLAT_SLOTS / 2;
        let mut least = u64::MAX;
        for (arena, rank) in windows.arenas.iter().zip(&windows.ranks) {
            if *rank == windows.ranks[windows.me] {
                continue;
            }
            let done = arena.done();
            idle.until(done, needed, &|| format!("rank {rank} (to finish an operation {} back)", FLAT_SLOTS / 2))?;
            least = least.min(done.value());
        }
        self.finished = self.finished.max(least);
        Ok(())
    }
}

/// The label that operation `number` was announced with, where its slot still has it.
fn announced(arena: &Arena, number: u64) -> Option<Label> {
    let slot = arena.flat(number);
    let is_its = || slot.flag.value() == number + 1;
    let label = is_its().then(|| slot.read_label())?;
    // The owner may have written the next label meanwhile; it raises the flag only after that, but it is a rank that runs ahead of
    // this one by as many operations as there are slots, and the comparison of numbers sees it.
    is_its().then_some(label)
}

impl<'a> Exchange<'a> {
    /// Waits for the slot of the host's rank at `place`, and sees that it runs the same operation.
    ///
    /// # Errors
    /// Of the wait; [`crate::error::Kind::Mismatch`] where the rank runs another operation.
    #[inline]
    pub fn read(&self, place: usize, idle: &mut impl Until) -> Result<FlatSlot<'a>> {
        let slot = self.windows.arenas[place].flat(self.number);
        let rank = self.windows.ranks[place];
        idle.until(slot.flag, self.number + 1, &|| format!("rank {rank} (to call {})", self.operation))?;
        let theirs = slot.read_label();
        if theirs != self.label { Err(mismatch(self.label, rank, theirs)) } else { Ok(slot) }
    }

    /// Waits for everyone.
    ///
    /// # Errors
    /// As [`Exchange::read`].
    #[inline]
    pub fn read_all(&self, idle: &mut impl Until) -> Result<()> {
        for place in 0..self.windows.ranks.len() {
            self.read(place, idle)?;
        }
        Ok(())
    }

    /// Waits for everyone, and reduces `count` elements that lie `offset` bytes into each slot's `bytes` into `target`.
    ///
    /// # Errors
    /// As [`Exchange::read`].
    ///
    /// # Safety
    /// `target` is good for writing `count` elements of the kernel's type, and `offset` plus their size is at most `bytes`.
    #[inline]
    pub unsafe fn reduce(
        &self,
        kernel: &Kernel,
        idle: &mut impl Until,
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
            let data = self.read(place, idle)?.data(bytes);
            *source = data.as_ptr().wrapping_add(offset);
        }
        let pass = Pass { sources, raw: None, targets: &[target], count, finish: true, store: Store::Cached };
        // SAFETY: each source is a slot of at least `offset` + count elements that its owner does not touch before everyone is done;
        // the target is the caller's.
        unsafe { kernel.run(&pass) };
        Ok(())
    }
}

/// Ranks whose sources stand on the stack.
const FEW_RANKS: usize = 8;

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::sync::Flag;
    use crate::sync::flag::models::EVER;
    use crate::sync::primitive::Arc;
    use crate::sys::futex::{Membarrier, model};
    use crate::transport::Arena;
    use crate::types::{Collective, DataType, Rank};

    /// Waits with nothing but the flag's wake to end a sleep.
    struct Sleep;

    impl Until for Sleep {
        fn until(&mut self, flag: &Flag, target: u64, _: &dyn Fn() -> String) -> Result<()> {
            while !flag.reached(target) {
                flag.park(target, EVER);
            }
            Ok(())
        }
    }

    /// Data of each rank's slots as loom sees it: it cannot watch the mapping, so whoever touches a slot there touches its cell here.
    type Cells = Vec<[UnsafeCell<()>; SLOTS]>;

    #[expect(clippy::cast_possible_truncation, reason = "two slots")]
    const SLOTS: usize = FLAT_SLOTS as usize;

    struct Host {
        arenas: Vec<Arena>,
        cells: Cells,
    }

    // SAFETY: that nobody writes a slot while others read it is what the models prove; loom fails where it is not so.
    unsafe impl Sync for Host {}
    // SAFETY: as above.
    unsafe impl Send for Host {}

    impl Host {
        fn new(ranks: usize) -> Host {
            let cells = (0..ranks).map(|_| std::array::from_fn(|_| UnsafeCell::new(()))).collect();
            let arenas = (0..ranks).map(|_| Arena::laid().expect("some pages")).collect();
            Host { arenas, cells }
        }

        fn cell(&self, rank: usize, number: u64) -> &UnsafeCell<()> {
            &self.cells[rank][usize::try_from(number % FLAT_SLOTS).expect("two slots")]
        }

        /// Rank `me` runs as many operations as there are `readers`: those read everyone's slots; all do where there are none.
        fn run(&self, me: usize, readers: &[Readers]) {
            let ranks = self.arenas.len();
            let windows = HostWindows {
                ranks: (0..u32::try_from(ranks).expect("a few")).map(Rank::new).collect(),
                me,
                arenas: self.arenas.clone(),
                boards: None,
                registered: Vec::new(),
            };
            let mut flat = Flat::default();
            for (number, readers) in (0..).zip(readers) {
                let operation = Operation {
                    collective: Collective::Barrier,
                    data_type: DataType::U8,
                    op: None,
                    root: None,
                    count: 1,
                    sequence: number,
                    past: 0,
                };
                let fill = |slot: NonNull<u8>| {
                    // SAFETY: the place of the one byte that is announced.
                    self.cell(me, number).with_mut(|_| unsafe { slot.as_ptr().write(byte(me, number)) });
                };
                let exchange = flat.announce(&windows, &operation, &mut Sleep, (1, fill)).expect("no wait fails");
                let read = |rank: usize| {
                    let slot = exchange.read(rank, &mut Sleep).expect("all run the same operation");
                    // SAFETY: the place of the one byte that was announced.
                    let found = self.cell(rank, number).with(|_| unsafe { slot.data(1).as_ptr().read() });
                    assert_eq!(found, byte(rank, number));
                };
                match readers {
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
        model(Membarrier::Works, move || {
            let host = Arc::new(Host::new(2));
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
    fn kinds_of_operations_may_follow_each_other() {
        slots_go_round(&[Readers::Of(0), Readers::Root(0), Readers::All, Readers::Of(1), Readers::Of(1)]);
    }
}
