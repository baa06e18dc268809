//! Loads, stores and atomic operations of a warp, in every space.

use super::FaultKind;
use super::definedness;
use super::execute::space_of;
use super::grid::Grid;
use super::poll::{Poll, Word};
use super::races::Races;
use super::random::Random;
use super::translate::{Cell, Checked, Translation, Trouble, check_alignment};
use super::update;
use super::warp::{LANES, Warp};
use super::weak::Weak;
use crate::alu::convert::extend;
use crate::ptx::instruction::{Address, Op, RowIndex};
use crate::ptx::types::{Order, Scope, Space, Type, WINDOW_MASK};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the warps of a block share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) grid: Arc<Grid>,
    pub(super) index: [u32; 3],
    pub(super) multiprocessor: u32,
    pub(super) random: Random,
    /// Warp instructions so far.
    pub(super) clock: u64,
    /// The instruction that runs, and its lanes.
    pub(super) at: (u32, u32),
    pub(super) shared: Vec<u8>,
    /// With checks: whether a byte of shared memory has been set.
    pub(super) shared_defined: Vec<bool>,
    pub(super) translation: Translation,
    /// The memory model; None where memory is strong.
    pub(super) weak: Option<Box<Weak>>,
    /// With checks: who touched shared memory.
    races: Option<Box<Races>>,
    /// Something was stored since the warps that poll looked last.
    pub(super) stored: bool,
    /// Something was stored in global memory since the last [`finish`](Self::finish).
    pub(super) changed: bool,
    /// A weak load gave an old value: the loop around it must look again.
    pub(super) showed_old: bool,
}

/// Fresh shared and local memory holds this, as fresh device memory does.
pub(super) const POISON: u8 = 0xcb;
/// A lane's access: which bytes, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    pub(super) warp: u32,
    pub(super) lane: u32,
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) order: Order,
    /// Whether the instruction stores the access's whole 128-byte line.
    pub(super) line: bool,
}

impl Core {
    pub(super) fn new(grid: Arc<Grid>, index: [u32; 3], multiprocessor: u32, number: u32, threads: u32) -> Self {
        let shared = grid.shared_bytes() as usize;
        let place = index.iter().fold(0u64, |sum, part| sum.wrapping_mul(65_537).wrapping_add(u64::from(*part)));
        let random = Random::new(
            grid.config.seed ^ place.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ u64::from(grid.config.gpu) << 56,
        );
        let checks = grid.config.checks;
        Self {
            index,
            multiprocessor,
            random,
            clock: 0,
            at: (0, 0),
            shared: vec![POISON; shared],
            shared_defined: if checks { vec![false; shared] } else { Vec::new() },
            translation: Translation::default(),
            races: if checks { Some(Box::new(Races::new(shared, threads.div_ceil(32) as usize))) } else { None },
            weak: if grid.config.weak { Some(Box::new(Weak::new(&grid, number, threads))) } else { None },
            stored: false,
            changed: false,
            showed_old: false,
            grid,
        }
    }

    /// Before a round of turns; returns the count of changes.
    pub(super) fn begin(&mut self) -> u64 {
        self.translation.refresh(&*self.grid.memory);
        self.grid.memory.changes()
    }

    /// After a round of turns: tells others of the stores.
    pub(super) fn finish(&mut self) {
        if std::mem::take(&mut self.changed) {
            self.grid.memory.bump();
        }
    }

    /// Whether nothing has been mapped or unmapped since the last [`begin`](Self::begin).
    pub(super) fn knows_memory(&self) -> bool {
        self.translation.is_fresh(&*self.grid.memory)
    }

    /// Whether one of the words that a loop polls may hold something else now, once [`knows_memory`](Self::knows_memory).
    pub(super) fn has_news(&self, poll: &Poll) -> bool {
        poll.watched().is_none_or(|mut words| words.any(|word| self.has_changed(word)))
    }

    pub(super) fn has_changed(&self, word: &Word) -> bool {
        if word.is_shared {
            let now =
                self.shared_at(word.address, word.bytes).map(|at| little(&self.shared[at..at + word.bytes as usize]));
            return now.ok() != Some(word.value);
        }
        // A store of this block on its way is seen by the block before it is in memory.
        let is_on_its_way = self.weak.as_ref().is_some_and(|weak| weak.may_store(word.address));
        let now = || {
            self.translation
                .known(word.address, word.bytes)
                .map(|extent| Cell::new(extent, word.address, word.bytes).load())
        };
        is_on_its_way || now() != Some(word.value)
    }

    pub(super) fn is_weak(&self) -> bool {
        self.grid.config.weak
    }

    pub(super) fn checks(&self) -> bool {
        self.grid.config.checks
    }

    /// Before each instruction.
    #[inline]
    pub(super) fn tick(&mut self) -> Checked<()> {
        self.clock += 1;
        if self.weak.is_some() { self.drain_some() } else { Ok(()) }
    }

    pub(super) fn take_stored(&mut self) -> bool {
        std::mem::take(&mut self.stored)
    }

    pub(super) fn nanoseconds(&self) -> u64 {
        u64::try_from(self.grid.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The index of a thread from its number in the block.
    pub(super) fn thread_index(&self, thread: u32) -> [u32; 3] {
        let [x, y, _] = self.grid.config.block;
        [thread % x, thread / x % y, thread / x / y]
    }

    pub(super) fn line_of(&self, position: u32) -> u32 {
        self.grid.function.program.code.get(position as usize).map_or(0, |instruction| instruction.line)
    }

    pub(super) fn local_offset(&self, lane: usize) -> usize {
        lane * self.grid.local_bytes() as usize
    }

    /// A text in global memory, cut after 256 bytes, for a report.
    pub(super) fn text(&mut self, address: u64) -> String {
        let mut bytes = Vec::new();
        for at in address..address.saturating_add(256) {
            match self.cell(at, 1, false).map(Cell::load) {
                Ok(0) | Err(_) => break,
                Ok(byte) => bytes.extend(u8::try_from(byte)),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn cell(&mut self, address: u64, bytes: u32, store: bool) -> Checked<Cell> {
        let Self { grid, translation, .. } = self;
        let extent = translation.find(&*grid.memory, grid.config.gpu, address, u64::from(bytes), store)?;
        Ok(Cell::new(extent, address, bytes))
    }

    /// A load's value, and which of its bytes are defined.
    #[inline]
    fn global_load(&mut self, access: Access) -> Checked<(u64, u8)> {
        if self.weak.is_some() {
            return self.weak_load(access);
        }
        let Self { grid, translation, .. } = self;
        let extent =
            translation.find(&*grid.memory, grid.config.gpu, access.address, u64::from(access.bytes), false)?;
        let defined = if grid.config.checks { definedness::get(extent, access.address, access.bytes) } else { u8::MAX };
        Ok((Cell::new(extent, access.address, access.bytes).load(), defined))
    }

    #[inline]
    fn global_store(&mut self, access: Access, value: u64, defined: u8) -> Checked<()> {
        self.stored = true;
        if self.weak.is_some() {
            // Others are told when it leaves the queues.
            return self.weak_store(access, value, defined);
        }
        self.changed = true;
        let Self { grid, translation, .. } = self;
        let extent = translation.find(&*grid.memory, grid.config.gpu, access.address, u64::from(access.bytes), true)?;
        Cell::new(extent, access.address, access.bytes).store(value);
        if !extent.defined.is_null() {
            definedness::set(extent, access.address, access.bytes, defined);
        }
        Ok(())
    }

    /// The old value and which of its bytes were defined. `defined` tells from both which bytes of the new one are.
    fn global_update(
        &mut self,
        access: Access,
        new: impl Fn(u64) -> u64,
        defined: impl Fn(u64, u8) -> u8,
    ) -> Checked<(u64, u8)> {
        if self.weak.is_some() {
            return self.weak_update(access, new, defined);
        }
        let Self { grid, translation, .. } = self;
        let extent = translation.find(&*grid.memory, grid.config.gpu, access.address, u64::from(access.bytes), true)?;
        let set = definedness::get(extent, access.address, access.bytes);
        let old = Cell::new(extent, access.address, access.bytes).update(&new);
        definedness::set(extent, access.address, access.bytes, defined(old, set));
        let changed = new(old) != old;
        self.stored |= changed;
        self.changed |= changed;
        Ok((old, set))
    }

    /// A fence of these lanes.
    pub(super) fn fence(&mut self, warp: u32, active: u32, scope: Scope, sequential: bool) -> Checked<()> {
        // Blocks run on several threads: a fence of theirs must be one of the host's.
        std::sync::atomic::fence(Ordering::SeqCst);
        self.signals(warp, Order::Relaxed(scope));
        if self.weak.is_some() { self.weak_fence(warp, active, scope, sequential) } else { Ok(()) }
    }

    /// Lanes of a warp have met at `bar.warp.sync`.
    pub(super) fn warp_joined(&mut self, warp: u32, lanes: u32) {
        self.warp_met(warp);
        if let Some(weak) = &mut self.weak {
            weak.join_warp(warp, lanes);
        }
    }

    /// Lanes of a warp have met at some instruction of the whole warp.
    pub(super) fn warp_met(&mut self, warp: u32) {
        if let Some(races) = &mut self.races {
            races.advance(warp);
        }
    }

    /// A strong access or fence of a warp.
    fn signals(&mut self, warp: u32, order: Order) {
        if order != Order::Weak
            && let Some(races) = &mut self.races
        {
            races.learn(warp);
        }
    }

    /// Lanes have come to a barrier of the block.
    pub(super) fn barrier_reached(&mut self, warp: u32, lanes: u32, number: usize) {
        if let Some(races) = &mut self.races {
            races.reach(warp, number);
        }
        if let Some(weak) = &mut self.weak {
            weak.reach(warp, lanes, number);
        }
    }

    /// Everybody has come to a barrier of the block.
    pub(super) fn barrier_opened(&mut self, number: usize) {
        if let Some(races) = &mut self.races {
            races.open(number);
        }
        if let Some(weak) = &mut self.weak {
            weak.join_block(number);
        }
    }

    /// Where in shared memory an access lies.
    fn shared_at(&self, address: u64, bytes: u32) -> Checked<usize> {
        let offset = if address & WINDOW_MASK == 0 { address } else { address & !WINDOW_MASK };
        let end = offset.saturating_add(u64::from(bytes));
        if end <= self.shared.len() as u64 {
            return Ok(usize::try_from(offset).expect("below the size of a vector"));
        }
        let what = format!(
            "an access of {bytes} bytes at {offset:#x} of shared memory, of which the block has {} bytes",
            self.shared.len()
        );
        Err(Trouble::new(FaultKind::IllegalAddress, Some(address), what))
    }

    fn parameter(&self, address: u64, bytes: u32) -> Checked<u64> {
        let offset = usize::try_from(address & !WINDOW_MASK).unwrap_or(usize::MAX);
        let Some(source) = self.grid.config.parameters.get(offset..offset.saturating_add(bytes as usize)) else {
            let what = format!("a load of {bytes} bytes at {offset:#x} of the kernel's parameters");
            return Err(Trouble::new(FaultKind::IllegalAddress, Some(address), what));
        };
        Ok(little(source))
    }
}

fn little(source: &[u8]) -> u64 {
    let mut value = [0; 8];
    value[..source.len()].copy_from_slice(source);
    u64::from_le_bytes(value)
}

impl Warp {
    fn resolved(address: u64, space: Space) -> Space {
        if space == Space::Generic { space_of(address) } else { space }
    }

    /// Local memory takes space once a thread uses it.
    pub(super) fn ensure_local(&mut self, core: &Core) {
        if self.local.is_empty() {
            let bytes = core.grid.local_bytes() as usize * LANES;
            self.local = vec![POISON; bytes];
            self.local_defined = if core.checks() { vec![false; bytes] } else { Vec::new() };
        }
    }

    /// Where in the warp's local memory a lane's access lies.
    fn local_at(&mut self, core: &Core, lane: usize, address: u64, bytes: u32) -> Checked<usize> {
        let size = core.grid.local_bytes();
        self.ensure_local(core);
        let offset = address & !WINDOW_MASK;
        if offset.saturating_add(u64::from(bytes)) <= u64::from(size) {
            return Ok(core.local_offset(lane) + usize::try_from(offset).expect("below the size of a vector"));
        }
        let what = format!("an access of {bytes} bytes at {offset:#x} of a thread's {size} bytes of local memory");
        Err(Trouble::new(FaultKind::IllegalAddress, Some(address), what))
    }

    fn read(&mut self, core: &mut Core, access: Access, space: Space) -> Checked<(u64, u8)> {
        let width = access.bytes as usize;
        Ok(match space {
            Space::Global | Space::Constant | Space::Generic => core.global_load(access)?,
            Space::Shared => {
                let at = core.shared_at(access.address, access.bytes)?;
                core.observe(access);
                if access.order == Order::Weak
                    && let Some(races) = &mut core.races
                {
                    races.load(at, width, access.warp, access.lane)?;
                }
                (little(&core.shared[at..at + width]), set_bits(&core.shared_defined, at, width))
            }
            Space::Local => {
                let at = self.local_at(core, access.lane as usize, access.address, access.bytes)?;
                (little(&self.local[at..at + width]), set_bits(&self.local_defined, at, width))
            }
            Space::Parameter => (core.parameter(access.address, access.bytes)?, u8::MAX),
        })
    }

    pub(super) fn load(
        &mut self,
        core: &mut Core,
        to: &[Option<RowIndex>],
        (kind, register_bits, order): (Type, u32, Order),
        address: Address,
        active: u32,
    ) -> Checked<()> {
        let bytes = kind.bytes();
        let whole = u64::from(bytes) * to.len() as u64;
        let bases = *self.row(address.base);
        let line = core.line_of(core.at.0);
        core.signals(self.index, order);
        let mut out = [[0; LANES]; 4];
        let mut defined = [[u8::MAX; LANES]; 4];
        for lane in (0..32u32).filter(|lane| active >> lane & 1 == 1) {
            let index = lane as usize;
            let first = bases[index].wrapping_add_signed(address.offset);
            core.at.1 = 1 << lane;
            check_alignment(first, whole)?;
            let space = Self::resolved(first, address.space);
            for part in 0..to.len() {
                let at = first.wrapping_add(part as u64 * u64::from(bytes));
                let access = Access { warp: self.index, lane, address: at, bytes, order, line: false };
                let (value, set) = self.read(core, access, space)?;
                if !matches!(space, Space::Local | Space::Parameter) {
                    let word = Word { address: at, bytes, value, is_shared: space == Space::Shared };
                    self.groups[self.current].poll.read(word, line);
                }
                (out[part][index], defined[part][index]) = if kind.is_signed() {
                    // The bytes above are made of the highest one.
                    let above = if set >> (bytes - 1) & 1 == 1 { 0 } else { !(u8::MAX >> (8 - bytes)) };
                    (extend(value, kind.bits(), register_bits, true), set & !above)
                } else {
                    (value, set)
                };
            }
        }
        core.release_line();
        if std::mem::take(&mut core.showed_old) {
            self.groups[self.current].poll.moved();
        }
        for (part, row) in to.iter().enumerate() {
            let Some(row) = *row else { continue };
            self.write(row, &out[part], active);
            self.write_defined(row, &defined[part], active);
        }
        Ok(())
    }

    fn write_defined(&mut self, row: RowIndex, values: &[u8; LANES], mask: u32) {
        let Some(target) = self.defined.get_mut(row as usize) else { return };
        for (lane, (target, value)) in target.iter_mut().zip(values).enumerate() {
            if mask >> lane & 1 == 1 {
                *target = *value;
            }
        }
    }

    pub(super) fn store(
        &mut self,
        core: &mut Core,
        from: &[RowIndex],
        (kind, order): (Type, Order),
        address: Address,
        active: u32,
    ) -> Checked<()> {
        let bytes = kind.bytes();
        let whole = u64::from(bytes) * from.len() as u64;
        let bases = *self.row(address.base);
        self.groups[self.current].poll.moved();
        core.signals(self.index, order);
        let lines = if core.is_weak() { whole_lines(&bases, address.offset, whole, active) } else { 0 };
        for lane in (0..32u32).filter(|lane| active >> lane & 1 == 1) {
            let index = lane as usize;
            let first = bases[index].wrapping_add_signed(address.offset);
            core.at.1 = 1 << lane;
            check_alignment(first, whole)?;
            let space = Self::resolved(first, address.space);
            for (part, row) in from.iter().enumerate() {
                let at = first.wrapping_add(part as u64 * u64::from(bytes));
                let access = Access { warp: self.index, lane, address: at, bytes, order, line: lines >> lane & 1 == 1 };
                let value = self.row(*row)[index];
                let set = self.defined.get(*row as usize).map_or(u8::MAX, |row| row[index]);
                self.put(core, access, space, (value, set))?;
            }
        }
        Ok(())
    }

    fn put(&mut self, core: &mut Core, access: Access, space: Space, (value, set): (u64, u8)) -> Checked<()> {
        let width = access.bytes as usize;
        let source = &value.to_le_bytes()[..width];
        match space {
            Space::Global | Space::Generic => core.global_store(access, value, set),
            Space::Shared => {
                let at = core.shared_at(access.address, access.bytes)?;
                let same = core.shared[at..at + width] == *source;
                if access.order == Order::Weak
                    && let Some(races) = &mut core.races
                {
                    races.store(at, width, (access.warp, access.lane), same)?;
                }
                core.shared[at..at + width].copy_from_slice(source);
                store_bits(&mut core.shared_defined, at, width, set);
                core.stored = true;
                Ok(())
            }
            Space::Local => {
                let at = self.local_at(core, access.lane as usize, access.address, access.bytes)?;
                self.local[at..at + width].copy_from_slice(source);
                store_bits(&mut self.local_defined, at, width, set);
                Ok(())
            }
            Space::Constant | Space::Parameter => {
                Err(Trouble::new(FaultKind::IllegalAddress, Some(access.address), "a store to the kernel's parameters"))
            }
        }
    }

    pub(super) fn atomic(&mut self, core: &mut Core, op: &Op, active: u32) -> Checked<()> {
        let Op::Atomic { update, d, kind, order, address, b, c } = op else { return Ok(()) };
        let (bases, operands, values) = (*self.row(address.base), *self.row(*b), *self.row(*c));
        let line = core.line_of(core.at.0);
        core.signals(self.index, *order);
        let (mut out, mut old_defined) = ([0; LANES], [u8::MAX; LANES]);
        let set_of = |warp: &Self, row: RowIndex| warp.defined.get(row as usize).map_or([u8::MAX; LANES], |row| *row);
        let (operands_set, values_set) = (set_of(self, *b), set_of(self, *c));
        for lane in (0..32u32).filter(|lane| active >> lane & 1 == 1) {
            let index = lane as usize;
            let at = bases[index].wrapping_add_signed(address.offset);
            core.at.1 = 1 << lane;
            check_alignment(at, u64::from(kind.bytes()))?;
            let access =
                Access { warp: self.index, lane, address: at, bytes: kind.bytes(), order: *order, line: false };
            let new = |old: u64| update::updated(*update, *kind, old, operands[index], values[index]);
            let sets = (operands_set[index], values_set[index]);
            let defined = |old: u64, set: u8| update::defined(*update, (old, set), (operands[index], sets.0), sets.1);
            let space = Self::resolved(at, address.space);
            let (old, set) = match space {
                Space::Shared => {
                    let place = core.shared_at(at, access.bytes)?;
                    core.observe(access);
                    let width = access.bytes as usize;
                    let old = little(&core.shared[place..place + width]);
                    core.shared[place..place + width].copy_from_slice(&new(old).to_le_bytes()[..width]);
                    let set = set_bits(&core.shared_defined, place, width);
                    store_bits(&mut core.shared_defined, place, width, defined(old, set));
                    core.stored |= new(old) != old;
                    (old, set)
                }
                Space::Global | Space::Generic => core.global_update(access, new, defined)?,
                Space::Local | Space::Constant | Space::Parameter => {
                    let what = "an atomic operation outside global and shared memory";
                    return Err(Trouble::new(FaultKind::IllegalAddress, Some(at), what));
                }
            };
            let poll = &mut self.groups[self.current].poll;
            if new(old) == old {
                let word = Word { address: at, bytes: kind.bytes(), value: old, is_shared: space == Space::Shared };
                poll.read(word, line);
            } else {
                poll.moved();
            }
            (out[index], old_defined[index]) = (old, set);
        }
        if let Some(d) = d {
            self.write(*d, &out, active);
            self.write_defined(*d, &old_defined, active);
        }
        Ok(())
    }
}

/// The lanes whose accesses together fill aligned lines of 128 bytes, in order.
fn whole_lines(bases: &[u64; LANES], offset: i64, width: u64, active: u32) -> u32 {
    let lanes = usize::try_from(128 / width).unwrap_or(LANES);
    let mut found = 0;
    for first in (0..LANES).step_by(lanes).filter(|first| first + lanes <= LANES) {
        let start = bases[first].wrapping_add_signed(offset);
        let follows =
            |index: usize| bases[first + index].wrapping_add_signed(offset) == start.wrapping_add(index as u64 * width);
        let mask = (u64::from(u32::MAX) >> (LANES - lanes)) << first;
        if start.is_multiple_of(128) && u64::from(active) & mask == mask && (0..lanes).all(follows) {
            found |= u32::try_from(mask).unwrap_or(0);
        }
    }
    found
}

fn set_bits(flags: &[bool], at: usize, width: usize) -> u8 {
    match flags.get(at..at + width) {
        None => u8::MAX,
        Some(flags) => {
            let set = flags.iter().enumerate().fold(0, |bits, (index, set)| bits | u8::from(*set) << index);
            // Bytes above the access are zero, hence defined.
            set | !(u8::MAX >> (8 - width))
        }
    }
}

fn store_bits(flags: &mut [bool], at: usize, width: usize, set: u8) {
    if let Some(flags) = flags.get_mut(at..at + width) {
        for (index, flag) in flags.iter_mut().enumerate() {
            *flag = set >> index & 1 == 1;
        }
    }
}
