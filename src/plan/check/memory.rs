//! Memory that remembers what each element holds, who wrote it last and who has read it since.

use super::value::{Strip, Value};

/// A moment in the life of a lane or of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Whose.
    pub(super) thread: usize,
    /// Its how-manieth step.
    pub(super) time: u32,
}

/// For each thread, up to which moment it is known to have come.
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
    /// Whether it was a write.
    pub(super) wrote: bool,
}

#[derive(Debug, Clone)]
struct Cell {
    start: u64,
    length: u64,
    value: Option<Value>,
    written: Stamp,
    read: Vec<Stamp>,
}

/// A piece of memory, from element 0 on.
#[derive(Debug, Default)]
pub(super) struct Memory {
    cells: Vec<Cell>,
}

impl Memory {
    /// Appends elements that `by` has written.
    pub(super) fn append(&mut self, length: u64, value: Option<Value>, by: Stamp) {
        if length > 0 {
            let start = self.length();
            self.cells.push(Cell { start, length, value, written: by, read: Vec::new() });
        }
    }

    /// How many elements there are.
    pub(super) fn length(&self) -> u64 {
        self.cells.last().map_or(0, |cell| cell.start + cell.length)
    }

    /// Makes a cell begin at `at`, and tells which.
    fn split(&mut self, at: u64) -> usize {
        let index = self.cells.partition_point(|cell| cell.start + cell.length <= at);
        match self.cells.get_mut(index) {
            Some(cell) if cell.start < at => {
                let used = at - cell.start;
                let mut rest = cell.clone();
                rest.start = at;
                rest.length -= used;
                rest.value = rest.value.map(|value| value.ahead(used));
                cell.length = used;
                self.cells.insert(index + 1, rest);
                index + 1
            }
            _ => index,
        }
    }

    fn cells(&mut self, start: u64, length: u64) -> &mut [Cell] {
        let first = self.split(start);
        let end = self.split(start + length);
        &mut self.cells[first..end]
    }

    /// What the elements hold, without an access.
    pub(super) fn look(&mut self, start: u64, length: u64) -> Vec<Strip> {
        self.cells(start, length).iter().map(|cell| Strip { length: cell.length, value: cell.value.clone() }).collect()
    }

    /// Reads elements at `now`, knowing `clock`.
    pub(super) fn read(&mut self, (start, length): (u64, u64), now: Stamp, clock: &Clock) -> Result<(), Conflict> {
        for cell in self.cells(start, length) {
            if !cell.written.before(clock) {
                return Err(Conflict { element: cell.start, other: cell.written, wrote: true });
            }
            cell.read.retain(|earlier| earlier.thread != now.thread);
            cell.read.push(now);
        }
        Ok(())
    }

    /// Writes elements from `start` on at `now`, knowing `clock`.
    pub(super) fn write(&mut self, start: u64, content: &[Strip], now: Stamp, clock: &Clock) -> Result<(), Conflict> {
        let length = content.iter().map(|strip| strip.length).sum();
        self.settled(start, length, clock)?;
        let first = self.split(start);
        let end = self.split(start + length);
        let mut next = start;
        let cells = content.iter().map(|strip| {
            let start = next;
            next += strip.length;
            Cell { start, length: strip.length, value: strip.value.clone(), written: now, read: Vec::new() }
        });
        self.cells.splice(first..end, cells.collect::<Vec<_>>());
        Ok(())
    }

    /// Whether all accesses to the elements come before `clock`.
    pub(super) fn settled(&mut self, start: u64, length: u64, clock: &Clock) -> Result<(), Conflict> {
        for cell in self.cells(start, length) {
            let element = cell.start;
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
