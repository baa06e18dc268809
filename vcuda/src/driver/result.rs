//! The driver's return codes: name, number and description, in one table.

use std::ffi::CStr;
use std::fmt;

/// What a call of the driver returns: 0 or the number of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CUresult(pub i32);

/// The result of a call inside the driver: a value, or the code that the C function returns.
pub type Outcome<T = ()> = Result<T, CUresult>;

macro_rules! codes {
    ($($constant:ident $number:literal $name:literal $text:literal;)*) => {
        impl CUresult {
            $(#[doc = concat!("`", $name, "`: ", $text, ".")] pub const $constant: CUresult = CUresult($number);)*
        }

        /// Every code: number, name, description.
        static CODES: &[(i32, &str, &str)] = &[$(($number, concat!($name, "\0"), concat!($text, "\0"))),*];
    };
}

codes! {
    SUCCESS 0 "CUDA_SUCCESS" "no error";
    INVALID_VALUE 1 "CUDA_ERROR_INVALID_VALUE" "invalid argument";
    OUT_OF_MEMORY 2 "CUDA_ERROR_OUT_OF_MEMORY" "out of memory";
    NOT_INITIALIZED 3 "CUDA_ERROR_NOT_INITIALIZED" "initialization error";
    DEINITIALIZED 4 "CUDA_ERROR_DEINITIALIZED" "driver shutting down";
    STUB_LIBRARY 34 "CUDA_ERROR_STUB_LIBRARY" "CUDA driver is a stub library";
    DEVICE_UNAVAILABLE 46 "CUDA_ERROR_DEVICE_UNAVAILABLE" "CUDA-capable device(s) is/are busy or unavailable";
    NO_DEVICE 100 "CUDA_ERROR_NO_DEVICE" "no CUDA-capable device is detected";
    INVALID_DEVICE 101 "CUDA_ERROR_INVALID_DEVICE" "invalid device ordinal";
    INVALID_IMAGE 200 "CUDA_ERROR_INVALID_IMAGE" "device kernel image is invalid";
    INVALID_CONTEXT 201 "CUDA_ERROR_INVALID_CONTEXT" "invalid device context";
    MAP_FAILED 205 "CUDA_ERROR_MAP_FAILED" "mapping of buffer object failed";
    UNMAP_FAILED 206 "CUDA_ERROR_UNMAP_FAILED" "unmapping of buffer object failed";
    ALREADY_MAPPED 208 "CUDA_ERROR_ALREADY_MAPPED" "resource already mapped";
    NO_BINARY_FOR_GPU 209 "CUDA_ERROR_NO_BINARY_FOR_GPU" "no kernel image is available for execution on the device";
    NOT_MAPPED 211 "CUDA_ERROR_NOT_MAPPED" "resource not mapped";
    ECC_UNCORRECTABLE 214 "CUDA_ERROR_ECC_UNCORRECTABLE" "uncorrectable ECC error encountered";
    UNSUPPORTED_LIMIT 215 "CUDA_ERROR_UNSUPPORTED_LIMIT" "limit is not supported on this architecture";
    CONTEXT_ALREADY_IN_USE 216 "CUDA_ERROR_CONTEXT_ALREADY_IN_USE" "exclusive-thread device already in use by a different thread";
    PEER_ACCESS_UNSUPPORTED 217 "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" "peer access is not supported between these two devices";
    INVALID_PTX 218 "CUDA_ERROR_INVALID_PTX" "a PTX JIT compilation failed";
    UNSUPPORTED_PTX_VERSION 222 "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" "the provided PTX was compiled with an unsupported toolchain";
    INVALID_SOURCE 300 "CUDA_ERROR_INVALID_SOURCE" "device kernel image is invalid";
    FILE_NOT_FOUND 301 "CUDA_ERROR_FILE_NOT_FOUND" "file not found";
    SHARED_OBJECT_SYMBOL_NOT_FOUND 302 "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND" "shared object symbol not found";
    SHARED_OBJECT_INIT_FAILED 303 "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED" "shared object initialization failed";
    OPERATING_SYSTEM 304 "CUDA_ERROR_OPERATING_SYSTEM" "OS call failed or operation not supported on this OS";
    INVALID_HANDLE 400 "CUDA_ERROR_INVALID_HANDLE" "invalid resource handle";
    ILLEGAL_STATE 401 "CUDA_ERROR_ILLEGAL_STATE" "the operation cannot be performed in the present state";
    NOT_FOUND 500 "CUDA_ERROR_NOT_FOUND" "named symbol not found";
    NOT_READY 600 "CUDA_ERROR_NOT_READY" "device not ready";
    ILLEGAL_ADDRESS 700 "CUDA_ERROR_ILLEGAL_ADDRESS" "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES 701 "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" "too many resources requested for launch";
    LAUNCH_TIMEOUT 702 "CUDA_ERROR_LAUNCH_TIMEOUT" "the launch timed out and was terminated";
    PEER_ACCESS_ALREADY_ENABLED 704 "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED 705 "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED" "peer access has not been enabled";
    PRIMARY_CONTEXT_ACTIVE 708 "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE" "cannot set while device is active in this process";
    CONTEXT_IS_DESTROYED 709 "CUDA_ERROR_CONTEXT_IS_DESTROYED" "context is destroyed";
    ASSERT 710 "CUDA_ERROR_ASSERT" "device-side assert triggered";
    TOO_MANY_PEERS 711 "CUDA_ERROR_TOO_MANY_PEERS" "peer mapping resources exhausted";
    HOST_MEMORY_ALREADY_REGISTERED 712 "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED 713 "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" "pointer does not correspond to a registered memory region";
    HARDWARE_STACK_ERROR 714 "CUDA_ERROR_HARDWARE_STACK_ERROR" "hardware stack error";
    ILLEGAL_INSTRUCTION 715 "CUDA_ERROR_ILLEGAL_INSTRUCTION" "an illegal instruction was encountered";
    MISALIGNED_ADDRESS 716 "CUDA_ERROR_MISALIGNED_ADDRESS" "misaligned address";
    INVALID_ADDRESS_SPACE 717 "CUDA_ERROR_INVALID_ADDRESS_SPACE" "operation not supported on global/shared address space";
    INVALID_PC 718 "CUDA_ERROR_INVALID_PC" "invalid program counter";
    LAUNCH_FAILED 719 "CUDA_ERROR_LAUNCH_FAILED" "unspecified launch failure";
    COOPERATIVE_LAUNCH_TOO_LARGE 720 "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" "too many blocks in cooperative launch";
    NOT_PERMITTED 800 "CUDA_ERROR_NOT_PERMITTED" "operation not permitted";
    NOT_SUPPORTED 801 "CUDA_ERROR_NOT_SUPPORTED" "operation not supported";
    SYSTEM_NOT_READY 802 "CUDA_ERROR_SYSTEM_NOT_READY" "system not yet initialized";
    SYSTEM_DRIVER_MISMATCH 803 "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" "system has unsupported display driver / cuda driver combination";
    STREAM_CAPTURE_UNSUPPORTED 900 "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED 901 "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE 902 "CUDA_ERROR_STREAM_CAPTURE_MERGE" "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED 903 "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED" "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED 904 "CUDA_ERROR_STREAM_CAPTURE_UNJOINED" "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION 905 "CUDA_ERROR_STREAM_CAPTURE_ISOLATION" "dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT 906 "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT 907 "CUDA_ERROR_CAPTURED_EVENT" "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD 908 "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD" "attempt to terminate a thread-local capture sequence from another thread";
    TIMEOUT 909 "CUDA_ERROR_TIMEOUT" "wait operation timed out";
    GRAPH_EXEC_UPDATE_FAILURE 910 "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE" "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    EXTERNAL_DEVICE 911 "CUDA_ERROR_EXTERNAL_DEVICE" "an async error has occurred in external entity outside of CUDA";
    UNKNOWN 999 "CUDA_ERROR_UNKNOWN" "unknown error";
}

impl CUresult {
    /// The code with this number, or with this name (with or without `CUDA_ERROR_`).
    ///
    /// ```
    /// use vcuda::driver::CUresult;
    /// assert_eq!(CUresult::named("OUT_OF_MEMORY"), Some(CUresult::OUT_OF_MEMORY));
    /// assert_eq!(CUresult::named("CUDA_ERROR_ILLEGAL_ADDRESS"), Some(CUresult(700)));
    /// assert_eq!(CUresult::named("719"), Some(CUresult::LAUNCH_FAILED));
    /// assert_eq!(CUresult::named("NO_SUCH_CODE"), None);
    /// ```
    pub fn named(name: &str) -> Option<CUresult> {
        let number = name.parse::<i32>().ok();
        let matches = |code: &&(i32, &str, &str)| {
            let full = code.1.trim_end_matches('\0');
            number == Some(code.0) || full == name || full.strip_prefix("CUDA_ERROR_") == Some(name)
        };
        CODES.iter().find(matches).map(|code| CUresult(code.0))
    }

    /// The name, as `cuGetErrorName` gives it; `None` for a number that is no code.
    pub fn name(self) -> Option<&'static CStr> {
        self.row().and_then(|row| CStr::from_bytes_with_nul(row.1.as_bytes()).ok())
    }

    /// The description, as `cuGetErrorString` gives it; `None` for a number that is no code.
    pub fn text(self) -> Option<&'static CStr> {
        self.row().and_then(|row| CStr::from_bytes_with_nul(row.2.as_bytes()).ok())
    }

    /// Whether the error, once a kernel or copy has met it, stays with the context until it is destroyed.
    ///
    /// ```
    /// use vcuda::driver::CUresult;
    /// assert!(CUresult::ILLEGAL_ADDRESS.is_sticky());
    /// assert!(!CUresult::OUT_OF_MEMORY.is_sticky());
    /// ```
    pub fn is_sticky(self) -> bool {
        matches!(self.0, 214 | 700 | 702 | 710 | 714..=719)
    }

    fn row(self) -> Option<&'static (i32, &'static str, &'static str)> {
        CODES.iter().find(|row| row.0 == self.0)
    }
}

impl fmt::Display for CUresult {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(formatter, "{} ({})", name.to_string_lossy(), self.0),
            None => write!(formatter, "code {}", self.0),
        }
    }
}

impl std::error::Error for CUresult {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_and_name_stands_once() {
        for (index, row) in CODES.iter().enumerate() {
            for other in &CODES[index + 1..] {
                assert!(row.0 != other.0 && row.1 != other.1, "{row:?} {other:?}");
            }
        }
    }

    #[test]
    fn an_unknown_number_has_no_name() {
        assert_eq!(CUresult(12345).name(), None);
        assert_eq!(CUresult(12345).to_string(), "code 12345");
    }
}
