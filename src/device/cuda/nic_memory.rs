//! Memory of a GPU that NICs read and write (GPUDirect RDMA): as a DMA-BUF, or by its address where a module of the
//! kernel (`nvidia_peermem`) tells the NIC's driver what lies there.

use std::ffi::{c_int, c_void};

use crate::device::cuda::driver::context::Primary;
use crate::device::cuda::driver::result::Driver;
use crate::device::{DmaBuf, NicWays, Region};
use crate::error::{Error, Kind, Result};
use crate::sys::{open, pinning};

/// By which ways NICs may reach mapped memory of a GPU, by its attributes.
pub(super) fn ways(driver: &Driver, has: impl Fn(c_int) -> bool) -> NicWays {
    // Without it mapped memory, which all of the library's is, cannot be pinned for a NIC.
    let is_pinned = has(MAPPED_MEMORY_FOR_NICS);
    let dma_buf = is_pinned && has(DMA_BUFS) && driver.functions().cuMemGetHandleForAddressRange.is_some();
    NicWays { dma_buf, address: is_pinned && has(ADDRESSES) }
}

/// `region`, which is whole pages of mapped memory, as a DMA-BUF.
///
/// # Errors
/// Where the driver gives none, or the region is not whole pages.
pub(super) fn dma_buf(driver: &Driver, primary: &Primary, region: &Region) -> Result<DmaBuf> {
    let _entered = primary.enter()?;
    let page = pinning::page_bytes();
    let (start, bytes) = (region.base().addr().get(), region.bytes());
    if !start.is_multiple_of(page) || !bytes.is_multiple_of(page) {
        return Err(Error::internal("memory for a NIC is not whole pages"));
    }
    let ask = driver.functions().cuMemGetHandleForAddressRange;
    let ask = ask.ok_or_else(|| Error::new(Kind::System, "this GPU driver gives no DMA-BUF"))?;
    let mut descriptor: c_int = -1;
    let place: *mut c_void = (&raw mut descriptor).cast();
    // SAFETY: the place has the width of a descriptor; the pages lie in memory that the driver has mapped for us, in
    // whole granules, which are whole pages.
    let code = unsafe { ask(place, start as u64, bytes, DMA_BUF_DESCRIPTOR, 0) };
    let asked = primary.check("cuMemGetHandleForAddressRange", code);
    asked.map_err(|failure| primary.error(failure))?;
    // SAFETY: the driver made the descriptor for us alone.
    let descriptor = unsafe { open::own(descriptor) };
    let descriptor = descriptor.map_err(|error| Error::system("dup of a DMA-BUF's descriptor", error))?;
    Ok(DmaBuf { descriptor, offset: 0 })
}

/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`
const MAPPED_MEMORY_FOR_NICS: c_int = 110;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED`
const ADDRESSES: c_int = 116;
/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`
const DMA_BUFS: c_int = 124;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`
const DMA_BUF_DESCRIPTOR: c_int = 1;
