//! Weak memory: outcomes that PTX allows, chosen by the launch's seed, and none that it forbids.
//!
//! Stores wait in queues ([`stores`](super::stores)); a weak load may give what a granule held before its last overwrite
//! ([`shadow`](super::shadow)), unless the thread must have seen the overwrite: it was made by its own block, or before
//! the thread's last acquire of sufficient scope, or before the block's last strong load of that granule. The time is the
//! count of changes of the machine's memory. Stores become visible to all other blocks at once, and loads do not run
//! ahead of older loads: outcomes of IRIW and load buffering are not shown.
//!
//! Where exact bookkeeping would cost too much, accesses are ordered more strongly than PTX demands.

use super::Mutation;
use super::access::{Access, Core};
use super::definedness;
use super::grid::Grid;
use super::memory::{Extent, Home};
use super::shadow::{GRANULE, LINE, Line, Shadow, Writer};
use super::stores::{After, Arrival, Entry, Queue, present};
use super::translate::{Cell, Checked};
use crate::ptx::types::{Order, Scope};

/// A thread's place in the order of things.
#[derive(Debug, Clone, Copy, Default)]
struct Thread {
    /// Stores of its warp and of its block below these happened before what it does now.
    warp: u64,
    block: u64,
    /// What its releases so far cover: its later stores follow them.
    released: After,
    /// Stores of its block below this may have been seen by its strong loads; an acquire makes them happen before.
    observed: u64,
    /// The times of its last acquires.
    gpu: u64,
    system: u64,
}

/// A block's part of the memory model.
#[derive(Debug)]
pub(super) struct Weak {
    queue: Queue,
    /// Stores so far.
    count: u64,
    threads: Vec<Thread>,
    /// Threads that have come to each barrier: warp and lanes.
    come: Vec<Vec<(u32, u32)>>,
    /// Granules that this block may have stored to by strong stores or atomic operations, by a few bits of theirs: whoever
    /// of the block reads them may see what another of its threads has released.
    published: [u64; 16],
    /// When this block last looked at a granule by a strong load: granule and time, by the granule's low bits.
    strong: Vec<(u64, u64)>,
    /// Before this time, everything has been seen: the block's start, or strong loads that `strong` forgot.
    floor: u64,
    me: Writer,
    mutation: Option<Mutation>,
    /// A line that stays locked from one lane's load to the next.
    held: Option<(u64, Line)>,
}

// SAFETY: a `Line` is an address of shared memory that is used through atomics; it belongs to no thread.
unsafe impl Send for Line {}

/// Strong loads that a block remembers.
const STRONG: usize = 256;
/// Stores in a queue above which some leave: of a block's with each instruction, of a GPU's with each store that comes.
const QUEUED: usize = 64;
/// A store leaves the block's queue once in this many instructions, on average.
const ODDS: usize = 8;
/// A store leaves the GPU's queue once in this many, and whenever one comes to `QUEUED` others.
const GPU_ODDS: usize = 16;

impl Weak {
    pub(super) fn new(grid: &Grid, block: u32, threads: u32) -> Self {
        let now = grid.memory.changes();
        let thread = Thread { gpu: now, system: now, ..Thread::default() };
        let actor = std::process::id() << 8 | (grid.config.gpu & 0xff);
        Self {
            queue: Queue::of_block(grid.config.mutation == Some(Mutation::SameAddress)),
            count: 0,
            threads: vec![thread; threads.next_multiple_of(32) as usize],
            come: vec![Vec::new(); 16],
            published: [0; 16],
            strong: vec![(u64::MAX, 0); STRONG],
            floor: now,
            me: Writer { actor, block },
            mutation: grid.config.mutation,
            held: None,
        }
    }

    /// Whether a store near this address may be in the block's queue.
    pub(super) fn may_store(&self, address: u64) -> bool {
        self.queue.may_hold(address / GRANULE)
    }

    /// Whether the model has this defect, on purpose.
    fn lacks(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn thread(&mut self, warp: u32, lane: u32) -> &mut Thread {
        &mut self.threads[(warp * 32 + lane) as usize]
    }

    fn join(&mut self, members: &[(u32, u32)], whole_block: bool) {
        let numbers: Vec<usize> = members
            .iter()
            .flat_map(|(warp, lanes)| {
                (0..32).filter(move |lane| lanes >> lane & 1 == 1).map(move |lane| (warp * 32 + lane) as usize)
            })
            .collect();
        let all =
            |part: fn(&Thread) -> u64| numbers.iter().map(|number| part(&self.threads[*number])).max().unwrap_or(0);
        let (gpu, system, block) = (all(|thread| thread.gpu), all(|thread| thread.system), all(|thread| thread.block));
        let block = if whole_block { self.count } else { block };
        for number in numbers {
            let thread = &mut self.threads[number];
            (thread.gpu, thread.system, thread.block, thread.warp) = (gpu, system, block, self.count);
        }
    }

    pub(super) fn join_warp(&mut self, warp: u32, lanes: u32) {
        self.join(&[(warp, lanes)], false);
    }

    pub(super) fn reach(&mut self, warp: u32, lanes: u32, number: usize) {
        self.come[number].push((warp, lanes));
    }

    pub(super) fn join_block(&mut self, number: usize) {
        let members = std::mem::take(&mut self.come[number]);
        if !self.lacks(Mutation::Barrier) {
            self.join(&members, true);
        }
    }

    fn publish(&mut self, granule: u64) {
        self.published[usize::try_from(granule >> 6 & 15).expect("four bits")] |= 1 << (granule & 63);
    }

    fn may_be_published(&self, granule: u64) -> bool {
        self.published[usize::try_from(granule >> 6 & 15).expect("four bits")] >> (granule & 63) & 1 == 1
    }

    fn note_strong(&mut self, granule: u64, time: u64) {
        if self.lacks(Mutation::LoadOrder) {
            return;
        }
        let slot = usize::try_from(granule % STRONG as u64).expect("below the table's size");
        let (held, at) = self.strong[slot];
        if held != granule {
            // What is forgotten counts for all granules.
            self.floor = self.floor.max(at);
        }
        self.strong[slot] = (granule, time);
    }

    fn strong_time(&self, granule: u64) -> u64 {
        let slot = usize::try_from(granule % STRONG as u64).expect("below the table's size");
        let (held, at) = self.strong[slot];
        if held == granule { at.max(self.floor) } else { self.floor }
    }

    fn acquire(&mut self, warp: u32, lane: u32, scope: Scope, now: u64) {
        if self.lacks(Mutation::Acquire) {
            return;
        }
        let thread = self.thread(warp, lane);
        thread.block = thread.block.max(thread.observed);
        if scope >= Scope::Gpu {
            thread.gpu = now;
        }
        if scope == Scope::System {
            thread.system = now;
        }
    }

    /// What a release at this point covers.
    fn covered(&mut self, warp: u32, lane: u32, scope: Scope) -> After {
        let (own, lacks_release) = (self.count, self.lacks(Mutation::Release));
        let thread = self.thread(warp, lane);
        let old = thread.released;
        if scope == Scope::Block || lacks_release {
            return old;
        }
        After {
            own,
            warp: thread.warp.max(old.warp),
            block: thread.block.max(old.block),
            system: old.system || scope == Scope::System,
        }
    }
}

fn acquires(order: Order) -> Option<Scope> {
    match order {
        Order::Acquire(scope) | Order::AcquireRelease(scope) => Some(scope),
        Order::Weak | Order::Relaxed(_) | Order::Release(_) => None,
    }
}

fn releases(order: Order) -> Option<Scope> {
    match order {
        Order::Release(scope) | Order::AcquireRelease(scope) => Some(scope),
        Order::Weak | Order::Relaxed(_) | Order::Acquire(_) => None,
    }
}

impl Core {
    fn parts(&mut self) -> (&mut Weak, Arrival<'_>) {
        let Self { grid, translation, weak, .. } = self;
        let weak = weak.as_mut().expect("called in weak mode only");
        let actor = weak.me.actor;
        (weak, Arrival { memory: &*grid.memory, translation, gpu: grid.config.gpu, actor })
    }

    fn weak(&mut self) -> &mut Weak {
        self.parts().0
    }

    fn extent(&mut self, access: Access, store: bool) -> Checked<Extent> {
        let Self { grid, translation, .. } = self;
        translation.find(&*grid.memory, grid.config.gpu, access.address, u64::from(access.bytes), store).copied()
    }

    /// Lets go of the line that loads hold.
    pub(super) fn release_line(&mut self) {
        if let Some(weak) = &mut self.weak {
            weak.held = None;
        }
    }

    /// A strong access of shared memory: it may have shown the thread what others did before.
    pub(super) fn observe(&mut self, access: Access) {
        if let Some(weak) = &mut self.weak
            && access.order != Order::Weak
        {
            let count = weak.count;
            let thread = weak.thread(access.warp, access.lane);
            thread.observed = count;
            if acquires(access.order).is_some() {
                thread.block = count;
            }
        }
    }

    /// Sends entries of the block's queue on, to memory or to the GPU's queue.
    fn send(&mut self, entries: &[Entry]) -> Checked<()> {
        let home = self.parts().1.home(&entries[0])?;
        if home != Home::ThisGpu {
            let full = {
                let mut queue = self.grid.stores.lock();
                entries.iter().for_each(|entry| queue.push(*entry));
                queue.entries.len().saturating_sub(QUEUED)
            };
            for _ in 0..full {
                self.drain_gpu()?;
            }
            return Ok(());
        }
        if entries.iter().any(|entry| entry.after.system) {
            self.flush_gpu()?;
        }
        self.parts().1.put(entries)
    }

    /// Sends entry `wanted` of the block's queue on, after all that it has to follow.
    fn send_with_older(&mut self, wanted: usize) -> Checked<()> {
        let number = self.weak().queue.entries[wanted].number;
        loop {
            let Some(at) = self.weak().queue.entries.iter().position(|entry| entry.number == number) else {
                return Ok(());
            };
            let (entries, is_last) = self.weak().queue.take(at);
            self.send(&entries)?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// Empties the block's queue.
    fn flush_block(&mut self) -> Checked<()> {
        while !self.weak().queue.is_empty() {
            self.send_with_older(0)?;
        }
        Ok(())
    }

    /// Empties the GPU's queue, in some order that it allows.
    fn flush_gpu(&mut self) -> Checked<()> {
        while self.drain_gpu()? {}
        Ok(())
    }

    /// Sends one entry of the GPU's queue to memory; whether there was one.
    fn drain_gpu(&mut self) -> Checked<bool> {
        let Self { grid, translation, random, weak, .. } = self;
        let Some(weak) = weak else { return Ok(false) };
        // The lock is held until the entry is in memory: no load may find it in neither place.
        let mut queue = grid.stores.lock();
        if queue.is_empty() {
            return Ok(false);
        }
        let entries = queue.take_any(random);
        let mut arrival = Arrival { memory: &*grid.memory, translation, gpu: grid.config.gpu, actor: weak.me.actor };
        arrival.put(&entries)?;
        Ok(true)
    }

    /// Sends a granule's stores in the GPU's queue to memory.
    fn flush_gpu_granule(&mut self, granule: u64) -> Checked<()> {
        let Self { grid, translation, weak, .. } = self;
        let Some(weak) = weak else { return Ok(()) };
        let mut queue = grid.stores.lock();
        while let Some(wanted) = queue.last_of(granule) {
            let (entries, _) = queue.take(wanted);
            let mut arrival =
                Arrival { memory: &*grid.memory, translation, gpu: grid.config.gpu, actor: weak.me.actor };
            arrival.put(&entries)?;
        }
        Ok(())
    }

    /// Before each instruction: some stores arrive.
    pub(super) fn drain_some(&mut self) -> Checked<()> {
        let Self { random, weak, .. } = self;
        let Some(weak) = weak else { return Ok(()) };
        let mut sends = usize::from(!weak.queue.is_empty() && random.below(ODDS) == 0);
        sends += weak.queue.entries.len().saturating_sub(QUEUED);
        let from_gpu = random.below(GPU_ODDS) == 0;
        for _ in 0..sends {
            let Self { random, weak: Some(weak), .. } = self else { break };
            if weak.queue.is_empty() {
                break;
            }
            let entries = weak.queue.take_any(random);
            self.send(&entries)?;
        }
        if from_gpu {
            self.drain_gpu()?;
        }
        Ok(())
    }

    /// Sends stores on their way before the block sleeps or ends; whether all have arrived.
    pub(super) fn settle(&mut self) -> Checked<bool> {
        let Self { random, weak: Some(weak), .. } = self else { return Ok(true) };
        if !weak.queue.is_empty() {
            let entries = weak.queue.take_any(random);
            self.send(&entries)?;
            return Ok(false);
        }
        Ok(!self.drain_gpu()?)
    }

    pub(super) fn weak_store(&mut self, access: Access, value: u64, defined: u8) -> Checked<()> {
        let extent = self.extent(access, true)?;
        let (clock, number) = (self.clock, self.weak().count);
        let weak = self.weak();
        let after = match releases(access.order) {
            Some(scope) => weak.covered(access.warp, access.lane, scope),
            None => weak.thread(access.warp, access.lane).released,
        };
        let whole = access.line && extent.ll128 && !weak.lacks(Mutation::Line);
        let line = if whole { clock * 64 + access.address / LINE % 64 + 1 } else { 0 };
        weak.count += 1;
        if access.order != Order::Weak {
            weak.publish(access.address / GRANULE);
        }
        let entry = Entry {
            number,
            warp: access.warp,
            lane: access.lane,
            address: access.address,
            bytes: access.bytes,
            value,
            defined,
            after,
            line,
            block: weak.me.block,
        };
        if weak.lacks(Mutation::Doubleword) && access.bytes == 8 {
            weak.queue.push(Entry { bytes: 4, ..entry });
            weak.queue.push(Entry { address: access.address + 4, bytes: 4, value: value >> 32, ..entry });
        } else {
            weak.queue.push(entry);
        }
        Ok(())
    }

    pub(super) fn weak_load(&mut self, access: Access) -> Checked<(u64, u8)> {
        if access.order == Order::Weak { self.weakest_load(access) } else { self.strong_load(access) }
    }

    fn weakest_load(&mut self, access: Access) -> Checked<(u64, u8)> {
        let extent = self.extent(access, false)?;
        let granule = access.address / GRANULE;
        let may_choose = self.random.below(2) == 0;
        let stores = std::sync::Arc::clone(&self.grid.stores);
        let weak = self.weak();
        // A load elsewhere sees what its own GPU has stored there: the GPU's lock is taken before any line's.
        let elsewhere = if extent.home == Home::ThisGpu {
            None
        } else {
            weak.held = None;
            Some(stores.lock())
        };
        hold(weak, &extent, access.address);
        let mut value = Cell::new(&extent, access.address, access.bytes).load();
        let mut defined = definedness::get(&extent, access.address, access.bytes);
        let mut is_old = false;
        if may_choose && let Some(shadow) = Shadow::of(&extent, access.address) {
            let (time, writer) = shadow.overwritten();
            let thread = weak.threads[(access.warp * 32 + access.lane) as usize];
            let acquired = if writer.actor == weak.me.actor { thread.gpu } else { thread.system };
            let seen = acquired.max(weak.strong_time(granule));
            // Another block of this GPU stored to memory elsewhere: this GPU saw that when it left the block already.
            let own = writer == weak.me || (writer.actor == weak.me.actor && extent.home != Home::ThisGpu);
            if time > seen && !own {
                value = shadow.before(access.address, access.bytes);
                is_old = true;
                defined = u8::MAX;
            }
        }
        if let Some(queue) = &elsewhere {
            queue.overlay(access.address, access.bytes, &mut value, &mut defined);
            weak.held = None;
        }
        weak.queue.overlay(access.address, access.bytes, &mut value, &mut defined);
        drop(elsewhere);
        self.showed_old |= is_old;
        Ok((value, defined))
    }

    fn strong_load(&mut self, access: Access) -> Checked<(u64, u8)> {
        let extent = self.extent(access, false)?;
        let granule = access.address / GRANULE;
        self.arrive(access, &extent)?;
        let weak = self.weak();
        hold(weak, &extent, access.address);
        let value = Cell::new(&extent, access.address, access.bytes).load();
        let defined = definedness::get(&extent, access.address, access.bytes);
        self.saw(access, granule);
        Ok((value, defined))
    }

    /// Sends on the stores to an access's granule that are still on their way.
    fn arrive(&mut self, access: Access, extent: &Extent) -> Checked<()> {
        let granule = access.address / GRANULE;
        if self.weak().queue.may_hold(granule) {
            self.release_line();
            while let Some(at) = self.weak().queue.last_of(granule) {
                self.send_with_older(at)?;
            }
        }
        if extent.home != Home::ThisGpu {
            self.release_line();
            self.flush_gpu_granule(granule)?;
        }
        Ok(())
    }

    /// A strong load has read a granule.
    fn saw(&mut self, access: Access, granule: u64) {
        let now = self.grid.memory.changes();
        let weak = self.weak();
        weak.note_strong(granule, now);
        if weak.may_be_published(granule) {
            let count = weak.count;
            weak.thread(access.warp, access.lane).observed = count;
        }
        if let Some(scope) = acquires(access.order) {
            weak.acquire(access.warp, access.lane, scope, now);
        }
    }

    pub(super) fn weak_update(
        &mut self,
        access: Access,
        new: impl Fn(u64) -> u64,
        defined: impl Fn(u64, u8) -> u8,
    ) -> Checked<(u64, u8)> {
        let extent = self.extent(access, true)?;
        if self.weak().lacks(Mutation::Atomic) {
            let (old, set) = self.strong_load(access)?;
            self.release_line();
            self.weak_store(access, new(old), defined(old, set))?;
            return Ok((old, set));
        }
        let weak = self.weak();
        let after = match releases(access.order) {
            Some(scope) => weak.covered(access.warp, access.lane, scope),
            None => weak.thread(access.warp, access.lane).released,
        };
        // It acts on memory at once, so what it has to follow must be there before.
        while let Some(at) = self.weak().queue.first_before(after, access.warp, access.lane) {
            self.send_with_older(at)?;
        }
        if after.system {
            self.flush_gpu()?;
        }
        self.arrive(access, &extent)?;
        self.release_line();
        let me = self.weak().me;
        let cell = Cell::new(&extent, access.address, access.bytes);
        let line = Line::lock(&extent, access.address);
        let present_value = cell.load();
        // An operation that changes nothing is no change: who polls by it may sleep.
        if new(present_value) != present_value {
            let time = self.grid.memory.bump();
            if let Some(shadow) = Shadow::of(&extent, access.address) {
                shadow.note(time, me, present(&extent, access.address));
            }
        }
        let set = definedness::get(&extent, access.address, access.bytes);
        let old = cell.update(&new);
        let changed = new(old) != old;
        definedness::set(&extent, access.address, access.bytes, defined(old, set));
        drop(line);
        self.stored |= changed;
        if changed {
            // As in `Arrival::put`: the count above is the time of the change, this one wakes those who missed it.
            self.grid.memory.bump();
        }
        self.saw(access, access.address / GRANULE);
        self.weak().publish(access.address / GRANULE);
        Ok((old, set))
    }

    pub(super) fn weak_fence(&mut self, warp: u32, lanes: u32, scope: Scope, sequential: bool) -> Checked<()> {
        if sequential && scope >= Scope::Gpu && !self.weak().lacks(Mutation::Sequential) {
            self.flush_block()?;
            if scope == Scope::System {
                self.flush_gpu()?;
            }
        }
        let now = self.grid.memory.changes();
        let weak = self.weak();
        for lane in (0..32).filter(|lane| lanes >> lane & 1 == 1) {
            weak.acquire(warp, lane, scope, now);
            let after = weak.covered(warp, lane, scope);
            weak.thread(warp, lane).released = after;
        }
        Ok(())
    }
}

/// Locks the line of an address, unless it is held already.
fn hold(weak: &mut Weak, extent: &Extent, address: u64) {
    let line = address / LINE;
    if weak.held.as_ref().is_some_and(|(held, _)| *held == line) {
        return;
    }
    weak.held = None;
    weak.held = Line::lock(extent, address).map(|lock| (line, lock));
}
