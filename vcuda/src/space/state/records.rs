//! The table of records: what exists on the machine, of which kind, and whose it is.

use std::cell::UnsafeCell;
use std::fmt;

use super::MAX_RECORDS;

/// What a record stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum Kind {
    /// A file with device memory: a block of 2 MiB or more, or a piece of physical memory made by `cuMemCreate`.
    File = 1,
    /// A process's reference to a file.
    Hold,
    /// Memory from `cuMemAlloc`, inside a file.
    Allocation,
    /// An allocation of another process, opened here.
    Opened,
    /// A handle from `cuMemCreate` or an import.
    Handle,
    /// A range from `cuMemAddressReserve`.
    Reservation,
    /// Memory from `cuMemHostAlloc`.
    HostMemory,
    /// Memory that `cuMemHostRegister` has pinned.
    Registration,
    /// A pool of stream-ordered memory.
    Pool,
    /// Memory from `cuMemAllocAsync`.
    PoolAllocation,
    /// A context from `cuCtxCreate`, or a reference to a primary one.
    Context,
    /// A stream.
    Stream,
    /// An event.
    Event,
    /// A module.
    Module,
    /// A graph.
    Graph,
    /// An executable graph.
    GraphExec,
    /// A user object.
    UserObject,
}

impl Kind {
    const ALL: [Kind; 17] = [
        Kind::File,
        Kind::Hold,
        Kind::Allocation,
        Kind::Opened,
        Kind::Handle,
        Kind::Reservation,
        Kind::HostMemory,
        Kind::Registration,
        Kind::Pool,
        Kind::PoolAllocation,
        Kind::Context,
        Kind::Stream,
        Kind::Event,
        Kind::Module,
        Kind::Graph,
        Kind::GraphExec,
        Kind::UserObject,
    ];

    /// Whether a program makes and destroys such a thing by a call of its own: one that is left is a leak.
    pub fn is_programs_own(self) -> bool {
        !matches!(self, Kind::File | Kind::Hold)
    }

    /// What the leak list calls it.
    pub fn noun(self) -> &'static str {
        match self {
            Kind::File => "file of device memory",
            Kind::Hold => "reference to a file of device memory",
            Kind::Allocation => "allocation (cuMemAlloc)",
            Kind::Opened => "opened IPC handle (cuIpcOpenMemHandle)",
            Kind::Handle => "memory handle (cuMemCreate or import)",
            Kind::Reservation => "reserved addresses (cuMemAddressReserve)",
            Kind::HostMemory => "pinned memory (cuMemHostAlloc)",
            Kind::Registration => "registered memory (cuMemHostRegister)",
            Kind::Pool => "memory pool (cuMemPoolCreate)",
            Kind::PoolAllocation => "pool memory (cuMemAllocAsync)",
            Kind::Context => "context",
            Kind::Stream => "stream",
            Kind::Event => "event",
            Kind::Module => "module",
            Kind::Graph => "graph",
            Kind::GraphExec => "executable graph",
            Kind::UserObject => "user object",
        }
    }
}

/// A record. Which fields mean what depends on the kind.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Record {
    pub(crate) kind: u32,
    /// The process whose it is.
    pub pid: u32,
    /// Unique on the machine.
    pub id: u64,
    /// The file it belongs to (`File`: its own number).
    pub file: u64,
    /// Where it begins in that file.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    /// Inode of the file, by which an imported descriptor is recognised.
    pub inode: u64,
    /// The GPU it belongs to: by its line of the state for a file and a hold, else by its number on its host.
    pub gpu: u32,
    /// How often it is referenced, where that is counted.
    pub references: u32,
    /// Handle types that it may be exported as, and other bits of its kind.
    pub flags: u64,
    /// A key that only those who were given it know (IPC and fabric handles).
    pub key: u64,
}

impl Record {
    /// A record of `pid` with nothing else set.
    pub fn new(kind: Kind, pid: u32, id: u64) -> Record {
        Record {
            kind: kind as u32,
            pid,
            id,
            file: 0,
            offset: 0,
            bytes: 0,
            inode: 0,
            gpu: 0,
            references: 0,
            flags: 0,
            key: 0,
        }
    }

    /// What it stands for; `None` for a place that is free.
    pub fn kind(&self) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u32 == self.kind)
    }
}

/// Where a record stands, and its number, so that a place used anew is not taken for the old record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordId {
    index: u32,
    /// The record's number.
    pub id: u64,
}

/// All records. Touched under the lock of the state only.
#[repr(C)]
pub(super) struct Table(UnsafeCell<Places>);

impl fmt::Debug for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Table")
    }
}

impl Table {
    /// Runs `what` on the places. The guard that calls this holds the lock.
    pub(super) fn with<T>(&self, what: impl FnOnce(&mut Places) -> T) -> T {
        // SAFETY: only `Guard` calls this, and it holds the lock over all processes; no closure keeps the reference.
        let places = unsafe { &mut *self.0.get() };
        what(places)
    }
}

#[repr(C)]
pub(super) struct Places {
    /// Places from this one on have never been used.
    used: u64,
    /// Where to look for a free place first.
    hint: u64,
    places: [Record; MAX_RECORDS],
}

impl Places {
    pub(super) fn add(&mut self, record: Record) -> Option<RecordId> {
        let used = usize::try_from(self.used).ok()?.min(MAX_RECORDS);
        let hint = usize::try_from(self.hint).ok()?.min(used);
        let free = (hint..used).chain(0..hint).find(|index| self.places[*index].kind == 0);
        let index = match free {
            Some(index) => index,
            None if used < MAX_RECORDS => {
                self.used += 1;
                used
            }
            None => return None,
        };
        self.hint = index as u64 + 1;
        self.places[index] = record;
        Some(RecordId { index: u32::try_from(index).ok()?, id: record.id })
    }

    pub(super) fn remove(&mut self, id: RecordId) {
        if let Some(place) = self.place(id) {
            place.kind = 0;
            self.hint = id.index.into();
        }
    }

    pub(super) fn get(&mut self, id: RecordId) -> Option<Record> {
        self.place(id).copied()
    }

    pub(super) fn change(&mut self, id: RecordId, how: impl FnOnce(&mut Record)) {
        if let Some(place) = self.place(id) {
            how(place);
        }
    }

    pub(super) fn find(&self, kind: Kind, wanted: impl Fn(&Record) -> bool) -> Option<(RecordId, Record)> {
        self.in_use().find(|(_, record)| record.kind == kind as u32 && wanted(record))
    }

    pub(super) fn all(&self) -> Vec<(RecordId, Record)> {
        self.in_use().collect()
    }

    fn in_use(&self) -> impl Iterator<Item = (RecordId, Record)> + '_ {
        let used = usize::try_from(self.used).unwrap_or(0).min(MAX_RECORDS);
        let places = self.places[..used].iter().zip(0_u32..);
        places.filter(|(place, _)| place.kind != 0).map(|(place, index)| (RecordId { index, id: place.id }, *place))
    }

    fn place(&mut self, id: RecordId) -> Option<&mut Record> {
        let place = self.places.get_mut(id.index as usize)?;
        (place.kind != 0 && place.id == id.id).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Share, State};
    use super::*;

    #[test]
    fn a_place_used_anew_is_not_the_old_record() {
        let state = State::open(None, Share::ALL).expect("an anonymous state");
        let mut guard = state.lock();
        let first = guard.add(Record::new(Kind::Stream, 1, 10)).expect("room");
        guard.remove(first);
        let second = guard.add(Record::new(Kind::Event, 1, 11)).expect("room");
        assert_eq!(first.index, second.index);
        assert!(guard.get(first).is_none());
        assert_eq!(guard.get(second).and_then(|record| record.kind()), Some(Kind::Event));
        guard.remove(first);
        assert!(guard.get(second).is_some());
    }
}
