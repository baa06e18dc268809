//! Device memory: addresses, blocks in files, who may touch what, and the state that the processes of a machine share.
//!
//! One reservation of the process holds all device addresses. Its lower half is what programs see and cannot be read or
//! written by the host; the same offset in its upper half is where files are mapped, for copies and the interpreter:
//!
//! ```text
//! base            base + span            base + 2 span
//! | device addresses, no access | files mapped: address + span |
//! ```
//!
//! A file backs a block of 2 MiB (or more, for one large allocation), or a piece of physical memory from `cuMemCreate`.
//! It holds the data, then the interpreter's shadow (32 bytes for each 16), then a bit a byte that says whether the byte
//! has been written. Small allocations are cut from blocks, 512 bytes apart, so that an access beyond one hits nothing.
//!
//! What lies at an address is a [`Piece`]. [`Space`] keeps them by address and answers [`GlobalMemory::extent`] for a
//! context through [`View`].

pub mod state;

mod addresses;
mod allocate;
mod backing;
mod bytes;
mod host;
mod pieces;
mod rights;
mod share;
mod transfer;
mod vmm;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use allocate::{Owner, Whose};
pub use backing::Backing;
pub use host::Pinner;
pub use pieces::{Piece, PieceKind};
pub use rights::View;
pub use share::{IPC_HANDLE_BYTES, IpcHandle, Opener};
pub use transfer::{Agent, Side, TransferError};
pub use vmm::{Access, HandleTypes, Properties};

use crate::driver::{CUresult, Outcome};
use crate::machine::Machine;

use addresses::Addresses;
use allocate::Block;
use state::{Record, RecordId, State};
use vmm::{Handle, Reservation};

/// The unit in which memory is mapped and in which blocks are made.
pub const GRANULARITY: u64 = 2 << 20;

/// A process's view of the machine's memory.
#[derive(Debug)]
pub struct Space {
    machine: Arc<Machine>,
    state: Arc<State>,
    inner: RwLock<Inner>,
}

/// Everything that changes under the lock.
#[derive(Debug)]
struct Inner {
    addresses: Addresses,
    /// What lies where, by first address; device and pinned host memory alike.
    pieces: BTreeMap<u64, Piece>,
    /// Where freed pieces lay, until something else lies there.
    freed: BTreeMap<u64, u64>,
    blocks: BTreeMap<u64, Block>,
    handles: HashMap<u64, Handle>,
    reservations: BTreeMap<u64, Reservation>,
    /// (a, b): context a may touch the memory of context b.
    peers: HashSet<(u64, u64)>,
    /// Ranges to unmap once no kernel runs, and the files that lie there.
    buried: Vec<(u64, u64, Arc<Backing>)>,
}

impl Space {
    /// The memory of a machine for this process.
    ///
    /// # Errors
    ///
    /// If the addresses cannot be reserved.
    pub fn new(machine: Arc<Machine>, state: Arc<State>) -> std::io::Result<Space> {
        let inner = Inner {
            addresses: Addresses::reserve()?,
            pieces: BTreeMap::new(),
            freed: BTreeMap::new(),
            blocks: BTreeMap::new(),
            handles: HashMap::new(),
            reservations: BTreeMap::new(),
            peers: HashSet::new(),
            buried: Vec::new(),
        };
        Ok(Space { machine, state, inner: RwLock::new(inner) })
    }

    /// What processes share.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Lets context `a` touch the memory of context `b`; false if it may already.
    pub fn enable_peer(&self, a: u64, b: u64) -> bool {
        let fresh = self.write().peers.insert((a, b));
        self.state.new_generation();
        fresh
    }

    /// Takes the permission back; false if there was none.
    pub fn disable_peer(&self, a: u64, b: u64) -> bool {
        let was = self.write().peers.remove(&(a, b));
        self.state.new_generation();
        was
    }

    /// Unmaps what was freed while kernels ran. The caller knows that none runs now.
    pub fn unmap_buried(&self) {
        let mut inner = self.write();
        let inner = &mut *inner;
        for (start, bytes, _backing) in inner.buried.drain(..) {
            inner.addresses.unmap(start, bytes);
            if !inner.reservations.values().any(|range| range.start <= start && start < range.start + range.bytes) {
                inner.addresses.give_back(start, bytes);
            }
        }
    }

    /// The piece at an address.
    pub fn piece(&self, address: u64) -> Option<Piece> {
        self.read().piece(address).cloned()
    }

    /// Whether an address is one of the device's.
    pub fn is_device_address(&self, address: u64) -> bool {
        self.read().addresses.contains(address)
    }

    /// Changes the piece at an address; false if there is none.
    pub fn change_piece(&self, address: u64, how: impl FnOnce(&mut Piece)) -> bool {
        let mut inner = self.write();
        let Some(start) = inner.piece(address).map(|piece| piece.start) else { return false };
        inner.pieces.get_mut(&start).map(how).is_some()
    }

    /// Adds a record of something that this process's program has made.
    ///
    /// # Errors
    ///
    /// `OUT_OF_MEMORY` when the machine's table is full.
    pub fn record(&self, record: Record) -> Outcome<RecordId> {
        self.state.lock().add(record).ok_or(CUresult::OUT_OF_MEMORY)
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Inner {
    fn piece(&self, address: u64) -> Option<&Piece> {
        let (_, piece) = self.pieces.range(..=address).next_back()?;
        (address < piece.start + piece.bytes).then_some(piece)
    }

    fn insert(&mut self, piece: Piece) {
        let end = piece.start + piece.bytes;
        let covered: Vec<u64> =
            self.freed.range(..end).filter(|(at, bytes)| **at + **bytes > piece.start).map(|(at, _)| *at).collect();
        for start in covered {
            self.freed.remove(&start);
        }
        self.pieces.insert(piece.start, piece);
    }

    fn remove(&mut self, start: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&start)?;
        self.freed.insert(start, piece.bytes);
        if self.freed.len() > FREED_KEPT {
            self.freed.pop_first();
        }
        Some(piece)
    }
}

/// The folder beside a host's that all hosts of its run share, if it has one.
#[must_use]
pub fn fabric_folder(host: &Path) -> Option<PathBuf> {
    host.parent().map(|run| run.join(FABRIC_FOLDER)).filter(|folder| folder.is_dir())
}

/// The name of that folder.
pub(crate) const FABRIC_FOLDER: &str = "fabric";

/// What the dead processes of a machine have left: a sentence for each object that nobody destroyed. No state, no leaks.
///
/// # Errors
///
/// If the state of the folder cannot be read.
pub fn leaks(folder: &Path) -> Result<Vec<String>, String> {
    if !folder.join("state").exists() {
        return Ok(Vec::new());
    }
    let state = State::inspect(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let sentence = |record: &Record| {
        let noun = record.kind().map_or("thing", state::Kind::noun);
        let size = if record.bytes > 0 { format!("{} bytes, ", record.bytes) } else { String::new() };
        format!("{noun}: {size}GPU {}, by process {}", record.gpu, record.pid)
    };
    Ok(state.leaks().iter().map(sentence).collect())
}

/// Places of freed memory that are remembered, for reports.
const FREED_KEPT: usize = 4096;

/// A count of bytes as an index. Addresses here have 64 bits.
pub(crate) fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// `value` rounded up to a multiple of `unit`; `None` when that is more than 64 bits hold.
pub(crate) fn round_up(value: u64, unit: u64) -> Option<u64> {
    value.checked_next_multiple_of(unit)
}
