//! Memory of a GPU without addresses: what `cuMemCreate` makes, and what leaves the process for others to map.
//!
//! It leaves by a descriptor for processes of this host, and by a fabric handle for those of other hosts whose GPUs
//! hang on the same NVSwitches (multi-node NVLink). A driver may say of a GPU that its memory has fabric handles and
//! then refuse such memory, because this process has no IMEX channel; it is made without them then.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};

use cudarc::driver::sys::{
    CUdevice, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemLocationType,
};

use super::allocation::refused;
use crate::device::FabricHandle;
use crate::device::cuda::driver::context::Primary;
use crate::device::cuda::driver::raw::AllocationProperties;
use crate::device::cuda::driver::result::{Refusal, call};
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::Arc;
use crate::sys::open;

/// By what memory shall be able to leave its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::cuda) enum Handles {
    /// A descriptor, where the GPU has them.
    Descriptor,
    /// A fabric handle too, unless the driver refuses.
    AlsoFabric,
}

/// Memory without an address.
#[derive(Debug)]
pub(in crate::device::cuda) struct Physical {
    primary: Arc<Primary>,
    handle: CUmemGenericAllocationHandle,
    /// Whether it was made with fabric handles.
    has_fabric: bool,
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
pub(super) const POSIX: c_int = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`
const FABRIC: c_int = 8;

/// `CUmemFabricHandle`, aligned for drivers that read it by words.
#[repr(C, align(8))]
struct FabricBytes([u8; FabricHandle::BYTES]);

impl Physical {
    pub(in crate::device::cuda) fn new(primary: &Arc<Primary>, bytes: usize, handles: Handles) -> Result<Physical> {
        let create = |properties: &AllocationProperties| {
            let mut handle = 0;
            // SAFETY: both places live through the call.
            let made = unsafe { call!(primary, cuMemCreate(&raw mut handle, bytes, properties, 0)) };
            made.map(|()| handle)
        };
        let made = with_properties(primary, handles, create);
        let (handle, has_fabric) = made.map_err(|failure| refused(primary, failure, bytes))?;
        Ok(Physical { primary: Arc::clone(primary), handle, has_fabric })
    }

    pub(in crate::device::cuda) fn import(primary: &Arc<Primary>, descriptor: &OwnedFd) -> Result<Physical> {
        let mut handle = 0;
        let number = usize::try_from(descriptor.as_raw_fd()).expect("descriptors are not negative");
        let descriptor = std::ptr::without_provenance_mut(number);
        // SAFETY: the place is ours; the number, which takes the place of a pointer, is an open descriptor, and the
        // driver refuses one that is no memory.
        let made = unsafe { call!(primary, cuMemImportFromShareableHandle(&raw mut handle, descriptor, POSIX)) };
        made.map_err(|failure| Error::new(Kind::Remote, format!("a peer's descriptor: {}", primary.error(failure))))?;
        Ok(Physical { primary: Arc::clone(primary), handle, has_fabric: false })
    }

    pub(in crate::device::cuda) fn import_fabric(primary: &Arc<Primary>, theirs: &FabricHandle) -> Result<Physical> {
        let (mut handle, mut bytes) = (0, FabricBytes(theirs.0));
        let place: *mut c_void = (&raw mut bytes).cast();
        // SAFETY: both places are ours; the second has the width of a fabric handle, which the driver looks up: it
        // refuses bytes that name no memory.
        let made = unsafe { call!(primary, cuMemImportFromShareableHandle(&raw mut handle, place, FABRIC)) };
        made.map_err(|failure| {
            Error::new(Kind::Remote, format!("a peer's fabric handle: {}", primary.error(failure).message()))
        })?;
        Ok(Physical { primary: Arc::clone(primary), handle, has_fabric: false })
    }

    pub(in crate::device::cuda) fn primary(&self) -> &Arc<Primary> {
        &self.primary
    }

    /// What the driver calls it, to map it.
    pub(in crate::device::cuda) fn handle(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }

    /// A descriptor, for processes of this host.
    pub(in crate::device::cuda) fn descriptor(&self) -> Result<OwnedFd> {
        let primary = &self.primary;
        let _entered = primary.enter()?;
        let mut descriptor: c_int = -1;
        let place: *mut c_void = (&raw mut descriptor).cast();
        // SAFETY: the handle is ours; the place has the width of a descriptor, which this type of handle is.
        let made = unsafe { call!(primary, cuMemExportToShareableHandle(place, self.handle, POSIX, 0)) };
        made.map_err(|failure| primary.error(failure))?;
        // SAFETY: the driver made the descriptor for us alone.
        unsafe { open::own(descriptor) }.map_err(|error| Error::system("dup of a GPU memory's descriptor", error))
    }

    /// A fabric handle, for processes of other hosts; `None` where it was made without.
    pub(in crate::device::cuda) fn fabric_handle(&self) -> Result<Option<FabricHandle>> {
        if !self.has_fabric {
            return Ok(None);
        }
        let primary = &self.primary;
        let _entered = primary.enter()?;
        let mut bytes = FabricBytes([0; FabricHandle::BYTES]);
        let place: *mut c_void = (&raw mut bytes).cast();
        // SAFETY: the handle is ours; the place has the width of a fabric handle, which this type of handle is.
        let made = unsafe { call!(primary, cuMemExportToShareableHandle(place, self.handle, FABRIC, 0)) };
        made.map_err(|failure| primary.error(failure))?;
        Ok(Some(FabricHandle(bytes.0)))
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: gives back our one reference; what is mapped elsewhere stays.
        self.primary.give_back(|| unsafe { call!(self.primary, cuMemRelease(self.handle)) });
    }
}

/// The driver's answers to memory with fabric handles where it has none of it: `CUDA_ERROR_NOT_PERMITTED`,
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NO_FABRIC: [c_int; 2] = [800, 801];

/// Asks the driver about memory with these handles. If it refuses fabric handles, it is asked without them, now and
/// from then on. Returns whether the memory has fabric handles beside its answer.
fn with_properties<T>(
    primary: &Primary,
    handles: Handles,
    ask: impl Fn(&AllocationProperties) -> Result<T, Refusal>,
) -> Result<(T, bool), Refusal> {
    let ways = primary.memory_ways();
    let descriptor = if ways.exports { POSIX } else { 0 };
    if handles == Handles::AlsoFabric && ways.fabric && primary.fabric_refusal().is_none() {
        match ask(&properties(primary, descriptor | FABRIC)) {
            Err(refusal) if NO_FABRIC.contains(&refusal.code) => primary.note_no_fabric(refusal.code),
            answer => return answer.map(|answer| (answer, true)),
        }
    }
    ask(&properties(primary, descriptor)).map(|answer| (answer, false))
}

fn properties(primary: &Primary, handle_types: c_int) -> AllocationProperties {
    AllocationProperties {
        kind: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handle_types,
        location: location(primary.device()),
        windows: std::ptr::null_mut(),
        flags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: u8::from(primary.memory_ways().nics),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

pub(in crate::device::cuda) fn location(device: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// What lengths are multiples of, in bytes.
pub(super) fn granule(primary: &Primary, handles: Handles) -> Result<usize> {
    let ask = |properties: &AllocationProperties| {
        let mut bytes = 0;
        // SAFETY: both places live through the call; 0 asks for the least granule.
        let asked = unsafe { call!(primary, cuMemGetAllocationGranularity(&raw mut bytes, properties, 0)) };
        asked.map(|()| bytes)
    };
    let (bytes, _) = with_properties(primary, handles, ask).map_err(|failure| primary.error(failure))?;
    if bytes.is_power_of_two() {
        return Ok(bytes);
    }
    Err(Error::new(
        Kind::System,
        format!("GPU {}: the driver gives memory in granules of {bytes} bytes", primary.device()),
    ))
}
