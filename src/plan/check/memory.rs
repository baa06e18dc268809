//! Memory that remembers what each element holds, who wrote it last and who has read it since.

use std::collections::BTreeMap;

use super::value::{Strip, Value};

/// A moment in the life of a lane or of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// The thread (a lane or a caller).
    pub(super) thread: usize,
    /// The number of its step, counted from 1.
    pub(super) time: u32,
}

/// A vector clock: for each thread, the last moment that is known to have passed.
pub(super) type Clock = Vec<u32>;

impl Stamp {
    fn before(self, clock: &Clock) -> bool {
        self.time <= clock[self.thread]
    }
}

/// Two accesses that nothing orders.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conflict {
    /// The element.
    pub(super) element: u64,
    /// The other access.
    pub(super) other: Stamp,
    /// Whether the other access was a write.
    pub(super) wrote: bool,
}

#[derive(Debug, Clone)]
struct Cell {
    length: u64,
    value: Option<Value>,
    written: Stamp,
    read: Vec<Stamp>,
}

/// A piece of memory. Its cells are sorted by their first elements, begin at element 0 and leave no gaps.
#[derive(Debug, Default)]
pub(super) struct Memory {
    cells: BTreeMap<u64, Cell>,
}

impl Memory {
    /// Appends elements that `by` has written.
    pub(super) fn append(&mut self, length: u64, value: Option<Value>, by: Stamp) {
        if length > 0 {
            self.cells.insert(self.length(), Cell { length, value, written: by, read: Vec::new() });
        }
    }

    /// How many elements there are.
    pub(super) fn length(&self) -> u64 {
        self.cells.last_key_value().map_or(0, |(start, cell)| start + cell.length)
    }

    /// Splits a cell so that one begins at `at`, if the memory reaches that far.
    fn split(&mut self, at: u64) {
        let Some((start, cell)) = self.cells.range_mut(..at).next_back() else { return };
        let used = at - start;
        if used >= cell.length {
            return;
        }
        let mut rest = cell.clone();
        rest.length -= used;
        rest.value = rest.value.map(|value| value.ahead(used));
        cell.length = used;
        self.cells.insert(at, rest);
    }

    fn cells(&mut self, start: u64, length: u64) -> impl Iterator<Item = (u64, &mut Cell)> {
        self.split(start);
        self.split(start + length);
        self.cells.range_mut(start..start + length).map(|(start, cell)| (*start, cell))
    }

    /// What the elements hold. This does not count as an access.
    pub(super) fn look(&mut self, start: u64, length: u64) -> Vec<Strip> {
        let strip = |(_, cell): (u64, &mut Cell)| Strip { length: cell.length, value: cell.value.clone() };
        self.cells(start, length).map(strip).collect()
    }

    /// Records a read of elements at the moment `now` by a thread whose clock is `clock`.
    pub(super) fn read(&mut self, (start, length): (u64, u64), now: Stamp, clock: &Clock) -> Result<(), Conflict> {
        for (element, cell) in self.cells(start, length) {
            if !cell.written.before(clock) {
                return Err(Conflict { element, other: cell.written, wrote: true });
            }
            cell.read.retain(|earlier| earlier.thread != now.thread);
            cell.read.push(now);
        }
        Ok(())
    }

    /// Records a write of elements from `start` on at the moment `now` by a thread whose clock is `clock`.
    pub(super) fn write(&mut self, start: u64, content: &[Strip], now: Stamp, clock: &Clock) -> Result<(), Conflict> {
        let length = content.iter().map(|strip| strip.length).sum();
        self.settled(start, length, clock)?;
        let old: Vec<u64> = self.cells(start, length).map(|(start, _)| start).collect();
        old.iter().for_each(|start| drop(self.cells.remove(start)));
        let mut next = start;
        for Strip { length, value } in content {
            self.cells.insert(next, Cell { length: *length, value: value.clone(), written: now, read: Vec::new() });
            next += length;
        }
        Ok(())
    }

    /// Checks that all accesses to the elements come before `clock`.
    pub(super) fn settled(&mut self, start: u64, length: u64, clock: &Clock) -> Result<(), Conflict> {
        for (element, cell) in self.cells(start, length) {
            if !cell.written.before(clock) {
                return Err(Conflict { element, other: cell.written, wrote: true });
            }
            if let Some(other) = cell.read.iter().find(|stamp| !stamp.before(clock)) {
                return Err(Conflict { element, other: *other, wrote: false });
            }
        }
        Ok(())
    }
}
