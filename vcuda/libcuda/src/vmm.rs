//! Physical memory, addresses and rights apart (`cuMemCreate` and its kin).

use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

use vcuda::driver::{self, CUresult, CreateRequest, Location};

use crate::entry::{In, Out, entries};

/// `CUmemLocation`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct CLocation {
    kind: i32,
    id: i32,
}

/// `CUmemAllocationProp`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct AllocationProperties {
    kind: i32,
    handle_types: i32,
    location: CLocation,
    win32: u64,
    compression: u8,
    gpu_direct: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct AccessDescription {
    location: CLocation,
    flags: i32,
}

/// `CUmemPoolProps`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct PoolProperties {
    pub(crate) kind: i32,
    pub(crate) handle_types: i32,
    pub(crate) location: CLocation,
    win32: u64,
    most_bytes: u64,
    reserved: [u8; 56],
}

const _: () = {
    assert!(size_of::<AllocationProperties>() == 32);
    assert!(size_of::<AccessDescription>() == 12);
    assert!(size_of::<PoolProperties>() == 88);
};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, `FABRIC`.
const POSIX_FD: i32 = 1;
const FABRIC: i32 = 8;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: i32 = 1;
/// What a fabric handle of ours begins with.
const MAGIC: u64 = 0x7663_7564_612d_6661;

impl From<CLocation> for Location {
    fn from(location: CLocation) -> Location {
        Location { kind: location.kind, id: location.id }
    }
}

impl From<AllocationProperties> for CreateRequest {
    fn from(properties: AllocationProperties) -> CreateRequest {
        CreateRequest {
            kind: properties.kind,
            handle_types: properties.handle_types,
            location: properties.location.into(),
            for_nics: properties.gpu_direct != 0,
        }
    }
}

entries! {
    cuMemGetAllocationGranularity(10020) (bytes: Out<u64>, properties: In<AllocationProperties>, option: i32) {
        bytes.check()?;
        if !(0..=1).contains(&option) {
            return Err(CUresult::INVALID_VALUE);
        }
        bytes.put(driver::get()?.granularity(properties.get()?.into())?)
    }

    cuMemCreate(10020) (handle: Out<u64>, bytes: u64, properties: In<AllocationProperties>, flags: u64) {
        handle.check()?;
        handle.put(driver::get()?.memory_create(properties.get()?.into(), bytes, flags)?)
    }

    cuMemRelease(10020) (handle: u64) { driver::get()?.memory_release(handle) }

    cuMemAddressReserve(10020) (address: Out<u64>, bytes: u64, align: u64, wanted: u64, flags: u64) {
        address.check()?;
        address.put(driver::get()?.address_reserve(bytes, align, wanted, flags)?)
    }

    cuMemAddressFree(10020) (address: u64, bytes: u64) { driver::get()?.address_free(address, bytes) }

    cuMemMap(10020) (address: u64, bytes: u64, offset: u64, handle: u64, flags: u64) {
        driver::get()?.memory_map(address, bytes, offset, handle, flags)
    }

    cuMemUnmap(10020) (address: u64, bytes: u64) { driver::get()?.memory_unmap(address, bytes) }

    cuMemSetAccess(10020) (address: u64, bytes: u64, descriptions: In<AccessDescription>, count: u64) {
        let count = usize::try_from(count).ok().filter(|count| (1..=1024).contains(count));
        for description in descriptions.get_all(count.ok_or(CUresult::INVALID_VALUE)?)? {
            driver::get()?.memory_set_access(address, bytes, description.location.into(), description.flags)?;
        }
        Ok(())
    }

    cuMemGetAccess(10020) (flags: Out<u64>, location: In<CLocation>, address: u64) {
        flags.check()?;
        flags.put(driver::get()?.memory_access(address, location.get()?.into())?)
    }

    cuMemRetainAllocationHandle(11000) (handle: Out<u64>, address: u64) {
        handle.check()?;
        handle.put(driver::get()?.memory_retain(address)?)
    }

    cuMemGetAllocationPropertiesFromHandle(10020) (properties: Out<AllocationProperties>, handle: u64) {
        properties.check()?;
        let found = driver::get()?.memory_properties(handle)?;
        properties.put(AllocationProperties {
            kind: found.kind,
            handle_types: found.handle_types,
            location: CLocation { kind: found.location.kind, id: found.location.id },
            win32: 0,
            compression: 0,
            gpu_direct: u8::from(found.for_nics),
            usage: 0,
            reserved: [0; 4],
        })
    }

    cuMemExportToShareableHandle(10020) (shareable: Out<i32>, handle: u64, kind: i32, flags: u64) {
        shareable.check()?;
        match kind {
            _ if flags != 0 => Err(CUresult::INVALID_VALUE),
            POSIX_FD => shareable.put(driver::get()?.memory_export_fd(handle)?.into_raw_fd()),
            FABRIC => {
                let number = driver::get()?.memory_export_fabric(handle)?;
                shareable.at::<[u64; 8]>().put([MAGIC, number, 0, 0, 0, 0, 0, 0])
            }
            _ => Err(CUresult::NOT_SUPPORTED),
        }
    }

    cuMemGetHandleForAddressRange(11070) (handle: Out<i32>, address: u64, bytes: u64, kind: i32, flags: u64) {
        handle.check()?;
        if kind != DMA_BUF_FD || flags != 0 {
            return Err(CUresult::NOT_SUPPORTED);
        }
        handle.put(driver::get()?.memory_dma_buf(address, bytes)?.into_raw_fd())
    }

    cuMemImportFromShareableHandle(10020) (handle: Out<u64>, shareable: In<[u64; 8]>, kind: i32) {
        handle.check()?;
        match kind {
            // The descriptor stands in the pointer itself.
            POSIX_FD => {
                let fd = i32::try_from(shareable.address()).map_err(|_| CUresult::INVALID_VALUE)?;
                handle.put(driver::get()?.memory_import_fd(&duplicate(fd)?)?)
            }
            FABRIC => match shareable.get()? {
                [MAGIC, number, ..] => handle.put(driver::get()?.memory_import_fabric(number)?),
                _ => Err(CUresult::INVALID_VALUE),
            },
            _ => Err(CUresult::NOT_SUPPORTED),
        }
    }
}

/// A copy of the program's descriptor, which stays the program's own.
fn duplicate(fd: i32) -> driver::Outcome<OwnedFd> {
    if fd < 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the program gives a descriptor of its own for the time of the call; what is none is refused by the kernel.
    let borrowed = ManuallyDrop::new(unsafe { BorrowedFd::borrow_raw(fd) });
    borrowed.try_clone_to_owned().map_err(|_| CUresult::INVALID_VALUE)
}
