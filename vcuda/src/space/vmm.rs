//! `cuMemCreate` and its kin: physical memory, addresses and rights apart; sharing by descriptors and fabric handles.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::backing::Request;
use super::state::{FLAG_EXPORTED, Kind, Record, RecordId, State};
use super::{Backing, GRANULARITY, Inner, Piece, PieceKind, Space};
use crate::driver::{CUresult, Outcome};

/// Handle types that memory may be exported as, as bits (`CUmemAllocationHandleType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HandleTypes(pub u32);

impl HandleTypes {
    /// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
    pub const POSIX_FD: u32 = 1;
    /// `CU_MEM_HANDLE_TYPE_FABRIC`.
    pub const FABRIC: u32 = 8;
    /// Not one of CUDA's: NICs may pin it (`gpuDirectRDMACapable`).
    pub const NICS: u32 = 1 << 16;

    /// Those that CUDA knows.
    pub fn shown(self) -> u32 {
        self.0 & (HandleTypes::POSIX_FD | HandleTypes::FABRIC)
    }

    /// Whether this type is among them.
    pub fn has(self, one: u32) -> bool {
        self.0 & one != 0
    }
}

/// What ranges for drivers of NICs are multiples of.
const HOST_PAGE: u64 = 4096;

/// What `cuMemCreate` was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// The GPU.
    pub gpu: u32,
    /// How it may be exported.
    pub types: HandleTypes,
}

/// A right to memory: `CU_MEM_ACCESS_FLAGS_PROT_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// No access.
    None,
    /// Read only.
    Read,
    /// Read and write.
    ReadWrite,
}

/// A handle of physical memory.
#[derive(Debug)]
pub(super) struct Handle {
    backing: Arc<Backing>,
    properties: Properties,
    /// Size as the creator asked for it.
    references: u32,
    record: RecordId,
}

/// Reserved addresses.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) start: u64,
    pub(super) bytes: u64,
    record: RecordId,
}

impl Space {
    /// Reserves addresses.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` for a size or alignment that is no multiple of the granularity, `OUT_OF_MEMORY` without room.
    pub fn reserve(&self, bytes: u64, align: u64, wanted: u64) -> Outcome<u64> {
        let align = align.max(GRANULARITY);
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || !align.is_power_of_two() {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut inner = self.write();
        let start = inner.addresses.take(bytes, align, wanted).ok_or(CUresult::OUT_OF_MEMORY)?;
        let record =
            Record { bytes, inode: start, ..Record::new(Kind::Reservation, self.state.pid(), self.state.next_id()) };
        let record = self.record(record)?;
        inner.reservations.insert(start, Reservation { start, bytes, record });
        Ok(start)
    }

    /// Frees reserved addresses, whole.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` if this is not what was reserved, or something is mapped there.
    pub fn unreserve(&self, start: u64, bytes: u64) -> Outcome {
        let mut guard = self.write();
        let inner = &mut *guard;
        let is_mapped = inner.pieces.range(start..start.saturating_add(bytes)).next().is_some();
        if is_mapped || inner.reservations.get(&start).is_none_or(|range| range.bytes != bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        if let Some(range) = inner.reservations.remove(&start) {
            self.state.lock().remove(range.record);
        }
        let is_buried = inner.buried.iter().any(|(at, _, _)| (start..start + bytes).contains(at));
        if is_buried {
            // What was mapped here is still in the way of reuse: take it away now that the range is given up.
            inner.addresses.unmap(start, bytes);
            inner.buried.retain(|(at, _, _)| !(start..start + bytes).contains(at));
        }
        inner.addresses.give_back(start, bytes);
        Ok(())
    }

    /// Makes physical memory.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` for a size that is no multiple of the granularity, `OUT_OF_MEMORY`.
    pub fn create(&self, properties: Properties, bytes: u64) -> Outcome<u64> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(CUresult::INVALID_VALUE);
        }
        let Properties { gpu, types } = properties;
        let request = Request { gpu, bytes, total: self.total(gpu), types: types.0.into() };
        let backing = Backing::create(&self.state, request, self.watch())?;
        self.add_handle(backing, properties)
    }

    fn add_handle(&self, backing: Arc<Backing>, properties: Properties) -> Outcome<u64> {
        let id = self.state.next_id();
        let record = Record {
            file: backing.number,
            bytes: backing.bytes,
            gpu: backing.gpu,
            ..Record::new(Kind::Handle, self.state.pid(), id)
        };
        let record = self.record(record)?;
        backing.add_user();
        self.write().handles.insert(id, Handle { backing, properties, references: 1, record });
        Ok(id)
    }

    /// Gives up one reference to a handle; mappings keep the memory.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` for what is no handle.
    pub fn release(&self, handle: u64) -> Outcome {
        let mut inner = self.write();
        let entry = inner.handles.get_mut(&handle).ok_or(CUresult::INVALID_VALUE)?;
        entry.references -= 1;
        if entry.references == 0
            && let Some(entry) = inner.handles.remove(&handle)
        {
            self.state.lock().remove(entry.record);
            entry.backing.drop_user();
        }
        Ok(())
    }

    /// Maps a handle's memory at reserved addresses; nobody has access yet.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` for what is no handle, addresses that are not reserved or mapped already, sizes beyond the memory.
    pub fn map(&self, start: u64, bytes: u64, handle: u64) -> Outcome {
        let mut guard = self.write();
        let inner = &mut *guard;
        let entry = inner.handles.get(&handle).ok_or(CUresult::INVALID_VALUE)?;
        let backing = Arc::clone(&entry.backing);
        let end = start.checked_add(bytes).ok_or(CUresult::INVALID_VALUE)?;
        let fits = bytes != 0
            && bytes <= backing.bytes
            && start.is_multiple_of(GRANULARITY)
            && bytes.is_multiple_of(GRANULARITY);
        let inside = |range: &Reservation| range.start <= start && end <= range.start + range.bytes;
        if !fits || !inner.reservations.values().any(inside) || inner.pieces.range(start..end).next().is_some() {
            return Err(CUresult::INVALID_VALUE);
        }
        // A mapping of before that waits to be taken away is replaced by this one.
        inner.buried.retain(|(at, length, _)| *at + *length <= start || *at >= end);
        inner.addresses.map(start, bytes, backing.fd()).map_err(|_| CUresult::MAP_FAILED)?;
        backing.add_user();
        let piece = Piece {
            start,
            bytes,
            context: 0,
            gpu: backing.gpu,
            buffer_id: self.state.next_id(),
            sync_memops: false,
            data: inner.addresses.data(start),
            shadow: backing.shadow_at(0),
            defined: backing.defined_at(0),
            kind: PieceKind::Mapped { backing, rights: Vec::new() },
            record: None,
        };
        inner.insert(piece);
        Ok(())
    }

    /// Takes mappings away; the range is made of whole mappings.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` if it is not.
    pub fn unmap(&self, start: u64, bytes: u64) -> Outcome {
        let mut guard = self.write();
        let inner = &mut *guard;
        let starts = inner.whole_mappings(start, bytes)?;
        for start in starts {
            if let Some(Piece { kind: PieceKind::Mapped { backing, .. }, bytes, .. }) = inner.remove(start) {
                backing.drop_user();
                inner.buried.push((start, bytes, backing));
            }
        }
        drop(guard);
        self.state.new_generation();
        Ok(())
    }

    /// Sets a GPU's right to mapped memory.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` if the range is not made of whole mappings; `INVALID_DEVICE` if the GPU cannot reach the memory.
    pub fn set_access(&self, start: u64, bytes: u64, gpu: u32, access: Access) -> Outcome {
        let mut inner = self.write();
        let starts = inner.whole_mappings(start, bytes)?;
        // Memory of another host has come by a fabric handle.
        let reaches = |home: u32| home == gpu || State::is_foreign(home) || self.machine.can_access_peer(gpu, home);
        if access != Access::None
            && !starts.iter().all(|start| inner.pieces.get(start).is_some_and(|piece| reaches(piece.gpu)))
        {
            return Err(CUresult::INVALID_DEVICE);
        }
        for start in starts {
            if let Some(Piece { kind: PieceKind::Mapped { rights, .. }, .. }) = inner.pieces.get_mut(&start) {
                rights.retain(|right| right.0 != gpu);
                if access != Access::None {
                    rights.push((gpu, access == Access::ReadWrite));
                }
            }
        }
        drop(inner);
        self.state.new_generation();
        Ok(())
    }

    /// Whether a mapping at an address was taken away and is still behind it, since work may have used it.
    pub fn is_buried(&self, start: u64) -> bool {
        self.read().buried.iter().any(|(at, bytes, _)| (*at..*at + *bytes).contains(&start))
    }

    /// A GPU's right to the mapping at an address.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` where nothing is mapped.
    pub fn access(&self, address: u64, gpu: u32) -> Outcome<Access> {
        match self.read().piece(address).map(|piece| &piece.kind) {
            Some(PieceKind::Mapped { rights, .. }) => Ok(match rights.iter().find(|right| right.0 == gpu) {
                None => Access::None,
                Some((_, false)) => Access::Read,
                Some((_, true)) => Access::ReadWrite,
            }),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    /// The handle of the memory that is mapped at an address, with one reference more.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` where nothing is mapped: memory of `cuMemAlloc` has no handle.
    pub fn retain_handle(&self, address: u64) -> Outcome<u64> {
        let mut guard = self.write();
        let inner = &mut *guard;
        let Some(Piece { kind: PieceKind::Mapped { backing, .. }, .. }) = inner.piece(address) else {
            return Err(CUresult::INVALID_VALUE);
        };
        let backing = Arc::clone(backing);
        let same = |handle: &Handle| Arc::ptr_eq(&handle.backing, &backing);
        let known = inner.handles.iter_mut().map(|(id, handle)| (*id, handle)).find(|(_, handle)| same(handle));
        if let Some((id, handle)) = known {
            handle.references += 1;
            return Ok(id);
        }
        drop(guard);
        // All handles were released; the mapping kept the memory, and its record the handle types.
        let types = self.state.lock().find(Kind::File, |file| file.file == backing.number);
        let types = types.map_or(0, |(_, record)| u32::try_from(record.flags & u64::from(u32::MAX)).unwrap_or(0));
        let properties = Properties { gpu: backing.gpu, types: HandleTypes(types) };
        self.add_handle(backing, properties)
    }

    /// What a handle was made as, and its size.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` for what is no handle.
    pub fn properties(&self, handle: u64) -> Outcome<(Properties, u64)> {
        let inner = self.read();
        let entry = inner.handles.get(&handle).ok_or(CUresult::INVALID_VALUE)?;
        Ok((entry.properties, entry.backing.bytes))
    }

    /// A descriptor of a handle's memory, which another process may import.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` for what is no handle, or one that was not made to be exported as a descriptor.
    pub fn export_fd(&self, handle: u64) -> Outcome<OwnedFd> {
        let inner = self.read();
        let entry = inner.handles.get(&handle).ok_or(CUresult::INVALID_VALUE)?;
        if !entry.properties.types.has(HandleTypes::POSIX_FD) {
            return Err(CUresult::INVALID_VALUE);
        }
        self.mark_exported(&entry.backing);
        entry.backing.fd().try_clone_to_owned().map_err(|_| CUresult::OPERATING_SYSTEM)
    }

    /// A descriptor by which a driver of NICs pins mapped memory: the memory's file, whose position is where the range
    /// begins. A NIC's stand-in maps it from there.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` for what is not whole pages of one mapping, or was made without `gpuDirectRDMACapable`.
    pub fn dma_buf(&self, start: u64, bytes: u64) -> Outcome<OwnedFd> {
        let inner = self.read();
        let piece = inner.piece(start).ok_or(CUresult::INVALID_VALUE)?;
        let PieceKind::Mapped { backing, .. } = &piece.kind else { return Err(CUresult::NOT_SUPPORTED) };
        let is_whole = bytes != 0 && start.is_multiple_of(HOST_PAGE) && bytes.is_multiple_of(HOST_PAGE);
        if !is_whole || start.checked_add(bytes).is_none_or(|end| end > piece.end()) {
            return Err(CUresult::INVALID_VALUE);
        }
        let types = self.state.lock().find(Kind::File, |file| file.file == backing.number);
        if types.is_none_or(|(_, record)| record.flags & u64::from(HandleTypes::NICS) == 0) {
            return Err(CUresult::INVALID_VALUE);
        }
        // A description of its own, for its position.
        let path = format!("/proc/self/fd/{}", backing.fd().as_raw_fd());
        let file = File::options().read(true).write(true).open(path).map_err(|_| CUresult::OPERATING_SYSTEM)?;
        (&file).seek(SeekFrom::Start(start - piece.start)).map_err(|_| CUresult::OPERATING_SYSTEM)?;
        Ok(OwnedFd::from(file))
    }

    /// The number by which processes of the machine import a handle's memory over the fabric.
    ///
    /// # Errors
    ///
    /// As [`Space::export_fd`].
    pub fn export_fabric(&self, handle: u64) -> Outcome<u64> {
        let inner = self.read();
        let entry = inner.handles.get(&handle).ok_or(CUresult::INVALID_VALUE)?;
        if !entry.properties.types.has(HandleTypes::FABRIC) {
            return Err(CUresult::INVALID_VALUE);
        }
        self.mark_exported(&entry.backing);
        Ok(entry.backing.number)
    }

    /// Imports memory by a descriptor; the caller keeps its own descriptor.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` for a descriptor that is no memory of this host.
    pub fn import_fd(&self, fd: &OwnedFd) -> Outcome<u64> {
        let copy = fd.as_fd().try_clone_to_owned().map_err(|_| CUresult::INVALID_VALUE)?;
        let file = File::from(copy);
        let inode = file.metadata().map_err(|_| CUresult::INVALID_VALUE)?.ino();
        let is_here = |record: &Record| !State::is_foreign(self.state.gpu_of(record.gpu));
        let exported = |record: &Record| record.inode == inode && record.flags & FLAG_EXPORTED != 0 && is_here(record);
        let found = self.state.lock().find(Kind::File, exported);
        let (_, record) = found.ok_or(CUresult::INVALID_VALUE)?;
        self.import(OwnedFd::from(file), &record)
    }

    /// Imports memory by the number of [`Space::export_fabric`].
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` for what stands for no memory of this machine.
    pub fn import_fabric(&self, number: u64) -> Outcome<u64> {
        let exported = |record: &Record| {
            record.file == number
                && record.flags & FLAG_EXPORTED != 0
                && record.flags & u64::from(HandleTypes::FABRIC) != 0
        };
        let found = self.state.lock().find(Kind::File, exported);
        let (_, record) = found.ok_or(CUresult::INVALID_VALUE)?;
        let path = self.state.file_path(number).ok_or(CUresult::INVALID_VALUE)?;
        let file = File::options().read(true).write(true).open(path).map_err(|_| CUresult::INVALID_VALUE)?;
        self.import(OwnedFd::from(file), &record)
    }

    fn import(&self, fd: OwnedFd, record: &Record) -> Outcome<u64> {
        let backing = Backing::adopt(&self.state, fd, record, self.watch())?;
        let types = u32::try_from(record.flags & u64::from(u32::MAX)).unwrap_or(0);
        let gpu = backing.gpu;
        self.add_handle(backing, Properties { gpu, types: HandleTypes(types) })
    }

    fn mark_exported(&self, backing: &Backing) {
        let mut guard = self.state.lock();
        if let Some((id, _)) = guard.find(Kind::File, |record| record.file == backing.number) {
            guard.change(id, |record| record.flags |= FLAG_EXPORTED);
        }
    }
}

impl Inner {
    /// The mappings that make up a range, by first address.
    fn whole_mappings(&self, start: u64, bytes: u64) -> Outcome<Vec<u64>> {
        let end = start.checked_add(bytes).filter(|_| bytes != 0).ok_or(CUresult::INVALID_VALUE)?;
        let mut starts = Vec::new();
        let mut at = start;
        while at < end {
            match self.pieces.get(&at) {
                Some(piece) if matches!(piece.kind, PieceKind::Mapped { .. }) && piece.end() <= end => {
                    starts.push(at);
                    at = piece.end();
                }
                _ => return Err(CUresult::INVALID_VALUE),
            }
        }
        Ok(starts)
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::Share;
    use super::*;
    use crate::machine::Machine;
    use crate::simt::MemoryFault;

    fn space() -> Space {
        let machine = Arc::new(Machine::load("2-nvswitch").expect("a ready machine"));
        Space::new(machine, Arc::new(State::open(None, Share::ALL).expect("a state"))).expect("addresses")
    }

    const ANY: Properties = Properties { gpu: 0, types: HandleTypes(HandleTypes::POSIX_FD) };

    #[test]
    fn a_mapping_without_access_may_not_be_touched() {
        let space = space();
        let at = space.reserve(2 * GRANULARITY, 0, 0).expect("addresses");
        let memory = space.create(ANY, GRANULARITY).expect("memory");
        assert_eq!(space.map(at, 2 * GRANULARITY, memory), Err(CUresult::INVALID_VALUE), "more than there is");
        space.map(at, GRANULARITY, memory).expect("mapped");
        assert_eq!(space.map(at, GRANULARITY, memory), Err(CUresult::INVALID_VALUE), "something is there");
        assert!(matches!(space.extent(1, 0, at), Err(MemoryFault::NoAccess { .. })));
        space.set_access(at, GRANULARITY, 1, Access::Read).expect("a peer may read");
        assert!(matches!(space.extent(1, 0, at), Err(MemoryFault::NoAccess { .. })));
        assert!(!space.extent(2, 1, at).expect("readable").writable);
        assert_eq!(space.access(at, 1), Ok(Access::Read));
        assert_eq!(space.access(at, 0), Ok(Access::None));
    }

    #[test]
    fn memory_lives_as_long_as_a_handle_or_a_mapping() {
        let space = space();
        let at = space.reserve(GRANULARITY, 0, 0).expect("addresses");
        let memory = space.create(ANY, GRANULARITY).expect("memory");
        space.map(at, GRANULARITY, memory).expect("mapped");
        space.release(memory).expect("released");
        assert_eq!(space.release(memory), Err(CUresult::INVALID_VALUE));
        assert_eq!(space.state.used_bytes(0), GRANULARITY);
        let again = space.retain_handle(at).expect("the mapping has it");
        assert_eq!(space.properties(again), Ok((ANY, GRANULARITY)));
        space.release(again).expect("released");
        assert_eq!(space.unreserve(at, GRANULARITY), Err(CUresult::INVALID_VALUE), "mapped");
        space.unmap(at, GRANULARITY).expect("unmapped");
        assert_eq!(space.state.used_bytes(0), 0);
        space.unreserve(at, GRANULARITY).expect("free");
    }

    #[test]
    fn a_descriptor_is_imported_as_the_same_memory() {
        let space = space();
        let memory = space.create(ANY, GRANULARITY).expect("memory");
        let fd = space.export_fd(memory).expect("a descriptor");
        let other = space.import_fd(&fd).expect("imported");
        space.release(memory).expect("released");
        assert_eq!(space.state.used_bytes(0), GRANULARITY, "the import holds it");
        space.release(other).expect("released");
        assert_eq!(space.state.used_bytes(0), 0);
        let revived = space.import_fd(&fd).expect("the descriptor is still about");
        assert_eq!(space.state.used_bytes(0), GRANULARITY);
        space.release(revived).expect("released");
        let private = space.create(Properties { types: HandleTypes(0), ..ANY }, GRANULARITY).expect("memory");
        assert!(matches!(space.export_fd(private), Err(CUresult::INVALID_VALUE)));
        let alien = File::open("/dev/null").expect("a file");
        assert!(matches!(space.import_fd(&OwnedFd::from(alien)), Err(CUresult::INVALID_VALUE)));
    }
}
