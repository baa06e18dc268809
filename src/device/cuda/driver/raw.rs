//! The table of the driver's functions: loaded from `libcuda.so.1`, each in the form that it had in a named version of
//! CUDA.
//!
//! Results are plain integers, because a newer driver may answer a code that no list here has.

#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphNode, CUipcMemHandle, CUmemAccessDesc,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemGenericAllocationHandle,
    CUmemLocation, CUmodule, CUstream, CUuserObject, CUuuid,
};

use crate::error::{Error, Kind, Result};
use crate::sys::library::{self, Library};

/// `CUstreamBatchMemOpParams` of a write or a wait of 32 bits.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(in crate::device::cuda) struct MemoryOperation {
    pub(in crate::device::cuda) operation: c_uint,
    pub(in crate::device::cuda) padding: c_uint,
    pub(in crate::device::cuda) address: CUdeviceptr,
    /// The lower half counts.
    pub(in crate::device::cuda) value: u64,
    pub(in crate::device::cuda) flags: c_uint,
    pub(in crate::device::cuda) reserved: c_uint,
    /// What is not used.
    pub(in crate::device::cuda) rest: [u64; 2],
}

const _: () = assert!(size_of::<MemoryOperation>() == 48);

/// `CUmemAllocationProp`. Here the types of handles are bits; cudarc's enumeration has no value for two of them.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(in crate::device::cuda) struct AllocationProperties {
    pub(in crate::device::cuda) kind: CUmemAllocationType,
    pub(in crate::device::cuda) handle_types: c_int,
    pub(in crate::device::cuda) location: CUmemLocation,
    /// What Windows wants.
    pub(in crate::device::cuda) windows: *mut c_void,
    pub(in crate::device::cuda) flags: CUmemAllocationProp_st__bindgen_ty_1,
}

const _: () = assert!(size_of::<AllocationProperties>() == size_of::<CUmemAllocationProp>());

/// `cuGetProcAddress_v2`: name, place of the function, version of CUDA, flags, place of a status.
type Find = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong, *mut c_int) -> c_int;

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`: stream 0 is the legacy one, whatever the program was compiled for.
const LEGACY_STREAM: c_ulonglong = 1;
/// `CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT`
const VERSION_NOT_SUFFICIENT: c_int = 2;

/// Declares the table: each function with the version of CUDA that brought its form, as `cuGetProcAddress` counts
/// versions. The `optional` ones may be absent.
macro_rules! functions {
    (
        required { $($name:ident($since:literal)($($argument:ty),*);)* }
        optional { $($maybe:ident($maybe_since:literal)($($maybe_argument:ty),*);)* }
    ) => {
        /// Functions of the driver, by the names that `cuGetProcAddress` knows.
        pub(in crate::device::cuda) struct Functions {
            $(pub(in crate::device::cuda) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            $(pub(in crate::device::cuda) $maybe: Option<unsafe extern "C" fn($($maybe_argument),*) -> c_int>,)*
        }

        impl Functions {
            fn resolve(find: Find) -> Result<Functions> {
                Ok(Functions {
                    $($name: {
                        let found = address(find, terminated(concat!(stringify!($name), "\0")), $since)?;
                        // SAFETY: the driver's function of this name and version has the type that is declared here.
                        unsafe { library::as_function(found) }.ok_or_else(|| absent(stringify!($name)))?
                    },)*
                    $($maybe: {
                        let found = address(find, terminated(concat!(stringify!($maybe), "\0")), $maybe_since);
                        // SAFETY: as above.
                        found.ok().and_then(|found| unsafe { library::as_function(found) })
                    },)*
                })
            }
        }
    };
}

functions! {
required {
    cuInit(2000)(c_uint);
    cuDriverGetVersion(2020)(*mut c_int);
    cuGetErrorName(6000)(c_int, *mut *const c_char);
    cuGetErrorString(6000)(c_int, *mut *const c_char);

    cuDeviceGetCount(2000)(*mut c_int);
    cuDeviceGet(2000)(*mut CUdevice, c_int);
    cuDeviceGetUuid(11040)(*mut CUuuid, CUdevice);
    cuDeviceGetName(2000)(*mut c_char, c_int, CUdevice);
    cuDeviceGetAttribute(2000)(*mut c_int, c_int, CUdevice);
    cuDevicePrimaryCtxRetain(7000)(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease(11000)(CUdevice);
    cuCtxPushCurrent(4000)(CUcontext);
    cuCtxPopCurrent(4000)(*mut CUcontext);
    cuCtxGetCurrent(4000)(*mut CUcontext);
    cuCtxGetDevice(2000)(*mut CUdevice);
    cuDeviceCanAccessPeer(4000)(*mut c_int, CUdevice, CUdevice);
    cuCtxEnablePeerAccess(4000)(CUcontext, c_uint);
    cuThreadExchangeStreamCaptureMode(10010)(*mut c_int);

    cuMemAlloc(3020)(*mut CUdeviceptr, usize);
    cuMemFree(3020)(CUdeviceptr);
    cuMemHostAlloc(2020)(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(2000)(*mut c_void);
    cuMemHostRegister(6050)(*mut c_void, usize, c_uint);
    cuMemHostUnregister(4000)(*mut c_void);
    cuMemHostGetDevicePointer(3020)(*mut CUdeviceptr, *mut c_void, c_uint);
    cuMemGetAllocationGranularity(10020)(*mut usize, *const AllocationProperties, c_int);
    cuMemCreate(10020)(*mut CUmemGenericAllocationHandle, usize, *const AllocationProperties, c_ulonglong);
    cuMemRelease(10020)(CUmemGenericAllocationHandle);
    cuMemAddressReserve(10020)(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    cuMemAddressFree(10020)(CUdeviceptr, usize);
    cuMemMap(10020)(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    cuMemUnmap(10020)(CUdeviceptr, usize);
    cuMemSetAccess(10020)(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    cuMemGetAccess(10020)(*mut c_ulonglong, *const CUmemLocation, CUdeviceptr);
    cuMemRetainAllocationHandle(11000)(*mut CUmemGenericAllocationHandle, *mut c_void);
    cuMemExportToShareableHandle(10020)(*mut c_void, CUmemGenericAllocationHandle, c_int, c_ulonglong);
    cuMemImportFromShareableHandle(10020)(*mut CUmemGenericAllocationHandle, *mut c_void, c_int);
    cuMemGetAddressRange(3020)(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    cuIpcGetMemHandle(4010)(*mut CUipcMemHandle, CUdeviceptr);
    cuIpcOpenMemHandle(11000)(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    cuIpcCloseMemHandle(4010)(CUdeviceptr);
    cuPointerGetAttributes(7000)(c_uint, *const c_int, *mut *mut c_void, CUdeviceptr);

    cuMemcpyAsync(4000)(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemsetD8Async(3020)(CUdeviceptr, u8, usize, CUstream);

    cuStreamCreate(2000)(*mut CUstream, c_uint);
    cuStreamDestroy(4000)(CUstream);
    cuStreamSynchronize(2000)(CUstream);
    cuStreamQuery(2000)(CUstream);
    cuStreamBatchMemOp(11070)(CUstream, c_uint, *const MemoryOperation, c_uint);
    cuStreamGetCtx(9020)(CUstream, *mut CUcontext);
    cuStreamWaitEvent(3020)(CUstream, CUevent, c_uint);
    cuStreamGetCaptureInfo(11030)(
        CUstream, *mut c_int, *mut c_ulonglong, *mut CUgraph, *mut *const CUgraphNode, *mut usize
    );
    cuEventCreate(2000)(*mut CUevent, c_uint);
    cuEventDestroy(4000)(CUevent);
    cuEventRecord(2000)(CUevent, CUstream);
    cuEventQuery(2000)(CUevent);

    cuUserObjectCreate(11030)(*mut CUuserObject, *mut c_void, unsafe extern "C" fn(*mut c_void), c_uint, c_uint);
    cuUserObjectRelease(11030)(CUuserObject, c_uint);
    cuGraphRetainUserObject(11030)(CUgraph, CUuserObject, c_uint, c_uint);

    cuModuleLoadData(2000)(*mut CUmodule, *const c_void);
    cuModuleUnload(2000)(CUmodule);
    cuModuleGetFunction(2000)(*mut CUfunction, CUmodule, *const c_char);
    cuFuncGetAttribute(2020)(*mut c_int, c_int, CUfunction);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(6050)(*mut c_int, CUfunction, c_int, usize);
    cuLaunchKernel(4000)(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );
    cuLaunchCooperativeKernel(9000)(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void
    );

}
optional {
    cuFuncLoad(12040)(CUfunction);
    cuMemGetHandleForAddressRange(11070)(*mut c_void, CUdeviceptr, usize, c_int, c_ulonglong);
}
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Functions")
    }
}

/// Loads the library and finds its functions.
///
/// # Errors
/// Where there is no driver, or it is too old: the message names the function that it lacks.
pub(in crate::device::cuda) fn load() -> Result<Functions> {
    let library =
        Library::open(LIBRARY).map_err(|reason| Error::new(Kind::System, format!("no GPU driver: {reason}")))?;
    // SAFETY: the type that cuda.h declares for this name.
    let find = unsafe { library.function::<Find>(c"cuGetProcAddress_v2") };
    Functions::resolve(find.ok_or_else(|| absent("cuGetProcAddress_v2"))?)
}

/// The name under which the driver installs its library. `libcuda.so` belongs to toolkits, whose copy is a stub.
const LIBRARY: &CStr = c"libcuda.so.1";

/// A literal that the macro has ended with a zero byte.
fn terminated(name: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(name.as_bytes()).expect("the macro ends each name with its only zero byte")
}

fn address(find: Find, name: &CStr, since: c_int) -> Result<*mut c_void> {
    let (mut found, mut status) = (std::ptr::null_mut(), 0);
    // SAFETY: the name ends in a zero byte, and both places are ours and live through the call.
    let code = unsafe { find(name.as_ptr(), &raw mut found, since, LEGACY_STREAM, &raw mut status) };
    let name = name.to_string_lossy();
    if code != 0 {
        return Err(Error::new(Kind::System, format!("cuGetProcAddress of {name} failed with code {code}")));
    }
    if found.is_null() && status == VERSION_NOT_SUFFICIENT {
        let (major, minor) = (since / 1000, since % 1000 / 10);
        let message = format!("the GPU driver's {name} is older than CUDA {major}.{minor}: update the driver");
        return Err(Error::new(Kind::System, message));
    }
    if found.is_null() {
        return Err(absent(&name));
    }
    Ok(found)
}

fn absent(name: &str) -> Error {
    Error::new(Kind::System, format!("the GPU driver lacks {name}: rsccl needs a driver of CUDA 12.0 (525) or newer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that has the functions of the test's name only.
    unsafe extern "C" fn old(
        name: *const c_char,
        place: *mut *mut c_void,
        _: c_int,
        _: c_ulonglong,
        status: *mut c_int,
    ) -> c_int {
        // SAFETY: `address` passes text that ends in a zero byte.
        let name = unsafe { CStr::from_ptr(name) };
        let (found, told) = match name.to_bytes() {
            b"cuInit" => (old as *mut c_void, 0),
            b"cuDriverGetVersion" => (std::ptr::null_mut(), VERSION_NOT_SUFFICIENT),
            b"cuMemAlloc" => return 999,
            _ => (std::ptr::null_mut(), 1),
        };
        // SAFETY: `address` passes a place for the function.
        unsafe { place.write(found) };
        // SAFETY: and one for the status.
        unsafe { status.write(told) };
        0
    }

    #[test]
    fn an_old_driver_is_an_error_that_names_the_function() {
        let tell = |name, since| address(old, name, since).map(drop).map_err(|error| error.to_string());
        assert_eq!(tell(c"cuInit", 2000), Ok(()));
        let old_form = tell(c"cuDriverGetVersion", 12030).unwrap_err();
        assert!(old_form.contains("cuDriverGetVersion is older than CUDA 12.3"), "{old_form}");
        let absent = tell(c"cuFuncLoad", 12040).unwrap_err();
        assert!(absent.contains("lacks cuFuncLoad"), "{absent}");
        assert!(tell(c"cuMemAlloc", 3020).unwrap_err().contains("cuMemAlloc failed with code 999"));
        let table = Functions::resolve(old).unwrap_err().to_string();
        assert!(table.contains("cuDriverGetVersion"), "{table}");
    }
}
