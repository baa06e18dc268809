//! `cuMemCreate` and its kin: the checks of their arguments. The memory itself is [`crate::space`]'s.
//!
//! Nothing here waits for kernels but what takes a mapping away: programs of others map memory beside kernels that run.

use std::os::fd::OwnedFd;

use super::{CUresult, Driver, Outcome};
use crate::machine::FabricAttr;
use crate::schedule::Reason;
use crate::space::{Access, GRANULARITY, HandleTypes, Properties};

/// A place for memory or for who may touch it: `CUmemLocation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// `CU_MEM_LOCATION_TYPE_*`: 1 for a device.
    pub kind: i32,
    /// The device.
    pub id: i32,
}

/// What `cuMemCreate` is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreateRequest {
    /// `CU_MEM_ALLOCATION_TYPE_*`: 1 for pinned.
    pub kind: i32,
    /// Handle types it may be exported as.
    pub handle_types: i32,
    /// Where it is to lie.
    pub location: Location,
    /// Whether NICs may pin it.
    pub for_nics: bool,
}

impl Driver {
    fn location(&self, location: Location) -> Outcome<u32> {
        if location.kind != 1 {
            return Err(CUresult::INVALID_VALUE);
        }
        self.gpu(location.id)
    }

    fn properties(&self, request: CreateRequest) -> Outcome<Properties> {
        let gpu = self.location(request.location)?;
        let types = HandleTypes(u32::try_from(request.handle_types).map_err(|_| CUresult::INVALID_VALUE)?);
        if request.kind != 1 {
            return Err(CUresult::INVALID_VALUE);
        }
        if !self.machine.virtual_memory {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let known = HandleTypes::POSIX_FD | HandleTypes::FABRIC;
        let fd_refused = types.has(HandleTypes::POSIX_FD) && !self.machine.posix_fd;
        let fabric_refused = types.has(HandleTypes::FABRIC) && self.machine.fabric == FabricAttr::None;
        if types.0 & !known != 0 || fd_refused || fabric_refused {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let nics = if request.for_nics { HandleTypes::NICS } else { 0 };
        Ok(Properties { gpu, types: HandleTypes(types.0 | nics) })
    }

    /// `cuMemGetAllocationGranularity`.
    pub fn granularity(&self, request: CreateRequest) -> Outcome<u64> {
        self.properties(request)?;
        Ok(GRANULARITY)
    }

    /// `cuMemCreate`. The fabric's attribute may have said yes: without an IMEX channel the answer is `NOT_PERMITTED`.
    pub fn memory_create(&self, request: CreateRequest, bytes: u64, flags: u64) -> Outcome<u64> {
        let properties = self.properties(request)?;
        if flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        if let Some(code) = crate::fault::lost(properties.gpu) {
            return Err(CUresult(code));
        }
        if properties.types.has(HandleTypes::FABRIC) && self.machine.fabric != FabricAttr::Works {
            return Err(CUresult::NOT_PERMITTED);
        }
        self.guard_capture()?;
        self.space.create(properties, bytes)
    }

    /// `cuMemRelease`.
    pub fn memory_release(&self, handle: u64) -> Outcome {
        self.space.release(handle)?;
        self.tidy_memory();
        Ok(())
    }

    /// `cuMemAddressReserve`.
    pub fn address_reserve(&self, bytes: u64, align: u64, wanted: u64, flags: u64) -> Outcome<u64> {
        if flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        self.space.reserve(bytes, align, wanted)
    }

    /// `cuMemAddressFree`.
    pub fn address_free(&self, start: u64, bytes: u64) -> Outcome {
        self.wait_for_everything()?;
        self.space.unreserve(start, bytes)
    }

    /// `cuMemMap`.
    pub fn memory_map(&self, start: u64, bytes: u64, offset: u64, handle: u64, flags: u64) -> Outcome {
        if offset != 0 || flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        self.wait_for_everything_mapped(start)?;
        self.space.map(start, bytes, handle)
    }

    /// `cuMemUnmap`: waits for all work of all contexts.
    pub fn memory_unmap(&self, start: u64, bytes: u64) -> Outcome {
        self.guard_capture()?;
        self.wait_for_everything()?;
        self.space.unmap(start, bytes)?;
        self.tidy_memory();
        Ok(())
    }

    /// `cuMemSetAccess` for one location.
    pub fn memory_set_access(&self, start: u64, bytes: u64, location: Location, flags: i32) -> Outcome {
        let gpu = self.location(location)?;
        let access = match flags {
            0 => Access::None,
            1 => Access::Read,
            3 => Access::ReadWrite,
            _ => return Err(CUresult::INVALID_VALUE),
        };
        self.space.set_access(start, bytes, gpu, access)
    }

    /// `cuMemGetAccess`.
    pub fn memory_access(&self, address: u64, location: Location) -> Outcome<u64> {
        let gpu = self.location(location)?;
        Ok(match self.space.access(address, gpu)? {
            Access::None => 0,
            Access::Read => 1,
            Access::ReadWrite => 3,
        })
    }

    /// `cuMemRetainAllocationHandle`.
    pub fn memory_retain(&self, address: u64) -> Outcome<u64> {
        self.space.retain_handle(address)
    }

    /// `cuMemGetAllocationPropertiesFromHandle`.
    pub fn memory_properties(&self, handle: u64) -> Outcome<CreateRequest> {
        let (properties, _) = self.space.properties(handle)?;
        let handle_types = i32::try_from(properties.types.shown()).map_err(|_| CUresult::INVALID_VALUE)?;
        let location = Location { kind: 1, id: self.ordinal(properties.gpu) };
        let for_nics = properties.types.has(HandleTypes::NICS);
        Ok(CreateRequest { kind: 1, handle_types, location, for_nics })
    }

    /// `cuMemExportToShareableHandle` as a descriptor.
    pub fn memory_export_fd(&self, handle: u64) -> Outcome<OwnedFd> {
        self.space.export_fd(handle)
    }

    /// `cuMemGetHandleForAddressRange` as a DMA-BUF.
    pub fn memory_dma_buf(&self, start: u64, bytes: u64) -> Outcome<OwnedFd> {
        self.space.dma_buf(start, bytes)
    }

    /// `cuMemExportToShareableHandle` as a fabric handle.
    pub fn memory_export_fabric(&self, handle: u64) -> Outcome<u64> {
        self.space.export_fabric(handle)
    }

    /// `cuMemImportFromShareableHandle` by a descriptor.
    pub fn memory_import_fd(&self, fd: &OwnedFd) -> Outcome<u64> {
        self.space.import_fd(fd)
    }

    /// `cuMemImportFromShareableHandle` by a fabric handle.
    pub fn memory_import_fabric(&self, number: u64) -> Outcome<u64> {
        if self.machine.fabric != FabricAttr::Works {
            return Err(CUresult::NOT_PERMITTED);
        }
        self.space.import_fabric(number)
    }

    /// Mapping over what waits to be unmapped needs that nobody uses it any more.
    fn wait_for_everything_mapped(&self, start: u64) -> Outcome {
        if self.space.is_buried(start) { self.wait_for_everything() } else { Ok(()) }
    }

    /// Waits for the work of all contexts; errors of contexts are their owners' matter.
    fn wait_for_everything(&self) -> Outcome {
        let contexts: Vec<(u64, u32)> =
            self.engine.lock().contexts.iter().map(|(context, entry)| (*context, entry.gpu)).collect();
        for (context, gpu) in contexts {
            let outcome = self.wait_for_all(super::Current { context, gpu }, Reason::Implicit);
            if outcome == Err(CUresult::LAUNCH_TIMEOUT) {
                return outcome;
            }
        }
        self.engine.wait_for_workers();
        Ok(())
    }
}
