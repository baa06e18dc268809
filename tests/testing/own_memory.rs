//! GPU memory that a program allocates itself, in each way of the driver.

use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};

/// An allocation, and part of which it is.
pub struct OwnMemory {
    kind: Kind,
    /// Where it may be used from.
    pub address: u64,
    base: u64,
    _context: Arc<CudaContext>,
}

/// How it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `cuMemAlloc`
    Allocated,
    /// `cuMemAllocAsync`
    Pooled,
    /// `cuMemCreate` and its kin: that much in each of some allocations.
    Mapped { parts: usize, bytes: usize },
}

impl OwnMemory {
    /// `bytes` of memory of a GPU, not at the beginning of its allocation:
    ///
    /// | name | made by |
    /// |---|---|
    /// | `alloc` | `cuMemAlloc` |
    /// | `pool` | `cuMemAllocAsync` |
    /// | `map` | `cuMemCreate`, for a POSIX descriptor |
    /// | `parts` | the same, with two allocations one behind the other |
    /// | `many` | the same, with allocations of one granule each |
    /// | `closed` | `cuMemCreate` for no descriptor |
    pub fn new(gpu: usize, name: &str, bytes: usize) -> OwnMemory {
        let context = CudaContext::new(gpu).expect("the primary context");
        context.bind_to_thread().expect("it becomes current");
        let whole = bytes + ASIDE;
        let (base, kind) = match name {
            // SAFETY: the memory is not used before it is filled.
            "alloc" => (unsafe { result::malloc_sync(whole) }.expect("memory"), Kind::Allocated),
            // SAFETY: as above; the stream is the null one.
            "pool" => (unsafe { result::malloc_async(null_mut(), whole) }.expect("memory"), Kind::Pooled),
            "map" => mapped(gpu, (1, whole), POSIX),
            "parts" => mapped(gpu, (2, whole), POSIX),
            "many" => mapped(gpu, (whole.div_ceil(GRANULE) + 1, GRANULE), POSIX),
            "closed" => mapped(gpu, (1, whole), 0),
            _ => panic!("no kind of memory is called {name}"),
        };
        let before = match kind {
            Kind::Mapped { parts: 1, .. } | Kind::Allocated | Kind::Pooled => ASIDE,
            // It begins in the first and ends in another one.
            Kind::Mapped { bytes, .. } => bytes - ASIDE,
        };
        OwnMemory { kind, address: base + before as u64, base, _context: context }
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        self._context.bind_to_thread().expect("it becomes current");
        match self.kind {
            // SAFETY: ours, and who drops it knows that no work uses it.
            Kind::Allocated => unsafe { result::free_sync(self.base) }.expect("freed"),
            // SAFETY: as above.
            Kind::Pooled => unsafe { result::free_async(self.base, null_mut()) }.expect("freed"),
            Kind::Mapped { parts, bytes } => {
                for part in 0..parts {
                    // SAFETY: as above; mapped in these parts.
                    must(unsafe { sys::cuMemUnmap(self.base + (part * bytes) as u64, bytes) });
                }
                // SAFETY: nothing is mapped there any more.
                must(unsafe { sys::cuMemAddressFree(self.base, parts * bytes) });
            }
        }
    }
}

/// Some allocations one behind the other, each in whole granules.
fn mapped(gpu: usize, (parts, least): (usize, usize), handle_types: u32) -> (u64, Kind) {
    let bytes = least.next_multiple_of(GRANULE);
    let location = sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: i32::try_from(gpu).expect("small"),
    };
    // SAFETY: all zero is a value of this struct of C.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location;
    if handle_types == POSIX {
        properties.requestedHandleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    let mut base = 0;
    // SAFETY: the place lives through the call.
    must(unsafe { sys::cuMemAddressReserve(&raw mut base, parts * bytes, 0, 0, 0) });
    for part in 0..parts {
        let (mut handle, at) = (0, base + (part * bytes) as u64);
        // SAFETY: the places live through the call.
        must(unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const properties, 0) });
        // SAFETY: nothing is mapped at these addresses of ours.
        must(unsafe { sys::cuMemMap(at, bytes, 0, handle, 0) });
        // SAFETY: what is mapped stays.
        must(unsafe { sys::cuMemRelease(handle) });
    }
    let access = sys::CUmemAccessDesc { location, flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    // SAFETY: mapped a moment ago.
    must(unsafe { sys::cuMemSetAccess(base, parts * bytes, &raw const access, 1) });
    (base, Kind::Mapped { parts, bytes })
}

fn must(answer: sys::CUresult) {
    assert_eq!(answer, sys::CUresult::CUDA_SUCCESS);
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const POSIX: u32 = 1;
const GRANULE: usize = 2 << 20;
/// Bytes of an allocation before the part that is used.
const ASIDE: usize = 512;
