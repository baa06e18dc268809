//! The driver of this process, loaded once, and the meaning of its answers.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;

use super::gate::Gate;
use super::raw::{self, Functions};
use crate::device::cuda::memory::host_pins::Pins;
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::OnceLock;
use crate::sys::fork::Birthplace;

/// The driver of this process, loaded and initialised.
#[derive(Debug)]
pub(in crate::device::cuda) struct Driver {
    functions: Functions,
    pins: Pins,
    gate: Gate,
    birthplace: Birthplace,
}

/// A call of the driver that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::cuda) struct Refusal {
    /// The function's name.
    pub(in crate::device::cuda) call: &'static str,
    /// Its answer.
    pub(in crate::device::cuda) code: c_int,
}

/// Calls a function of the driver and checks its answer: `call!(owner, cuStreamQuery(stream))`, inside `unsafe`. The
/// owner checks the answer; it is the [`Driver`] or a primary context.
macro_rules! call {
    ($owner:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $owner.check(stringify!($name), ($owner.functions().$name)($($argument),*))
    };
}
pub(in crate::device::cuda) use call;

impl Driver {
    /// The driver, loaded at the first call.
    ///
    /// # Errors
    /// Where there is no driver, none that is new enough, or none that starts. A later call tries again.
    pub(in crate::device::cuda) fn get() -> Result<&'static Driver> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        let (pins, gate) = (Pins::default(), Gate::default());
        let driver = Driver { functions: raw::load()?, pins, gate, birthplace: Birthplace::here() };
        // SAFETY: the driver's first call, with the one flag that there is.
        unsafe { call!(driver, cuInit(0)) }.map_err(|failure| failure.at(&driver))?;
        let mut version = 0;
        // SAFETY: the place is ours and lives through the call.
        unsafe { call!(driver, cuDriverGetVersion(&raw mut version)) }.map_err(|failure| failure.at(&driver))?;
        if version < OLDEST {
            let message = format!("the GPU driver is of CUDA {}: rsccl needs 12.0 (525) or newer", Dotted(version));
            return Err(Error::new(Kind::System, message));
        }
        Ok(DRIVER.get_or_init(|| driver))
    }

    pub(in crate::device::cuda) fn functions(&self) -> &Functions {
        &self.functions
    }

    /// The host memory that is pinned.
    pub(in crate::device::cuda) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// By which launches and the freeing of memory take turns.
    pub(in crate::device::cuda) fn gate(&self) -> &Gate {
        &self.gate
    }

    #[inline]
    pub(in crate::device::cuda) fn check(&self, call: &'static str, code: c_int) -> Result<(), Refusal> {
        if code == 0 { Ok(()) } else { Err(Refusal { call, code }) }
    }

    /// Refuses calls in a forked child: a driver does not survive a fork.
    pub(in crate::device::cuda) fn check_process(&self) -> Result<()> {
        if self.birthplace.is_here() {
            return Ok(());
        }
        Err(Error::invalid_usage(
            "this process was forked after the GPU driver was started: start a new program (exec)",
        ))
    }

    /// What the driver says about a code.
    fn words(&self, code: c_int) -> String {
        let ask = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = std::ptr::null();
            // SAFETY: the place is ours and lives through the call.
            let told = unsafe { function(code, &raw mut text) };
            if told != 0 || text.is_null() {
                return None;
            }
            // SAFETY: the driver's text ends in a zero byte and lives as long as the driver.
            Some(unsafe { CStr::from_ptr(text) }.to_string_lossy())
        };
        let name = ask(self.functions.cuGetErrorName).unwrap_or("an unknown error".into());
        match ask(self.functions.cuGetErrorString) {
            Some(text) => format!("{name} ({code}): {text}"),
            None => format!("{name} ({code})"),
        }
    }
}

/// CUDA 12.0, whose driver (525) loads the kernels' PTX.
const OLDEST: c_int = 12_000;

/// A version as people write it: 12.8 for 12080.
struct Dotted(c_int);

impl fmt::Display for Dotted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

impl Refusal {
    /// The error, in the driver's words.
    #[cold]
    pub(in crate::device::cuda) fn at(self, driver: &Driver) -> Error {
        Error::new(Kind::System, format!("{}: {}", self.call, driver.words(self.code)))
    }

    /// Whether the context can never be used again after this answer, and all of its memory is lost.
    pub(super) fn is_sticky(self) -> bool {
        matches!(self.code, DEINITIALIZED | ECC | NVLINK | CONTAINED | 700 | 702 | 709 | 710 | 714..=719)
    }
}

/// `CUDA_ERROR_DEINITIALIZED`: the process is ending.
const DEINITIALIZED: c_int = 4;
/// `CUDA_ERROR_ECC_UNCORRECTABLE`
const ECC: c_int = 214;
/// `CUDA_ERROR_NVLINK_UNCORRECTABLE`
const NVLINK: c_int = 220;
/// `CUDA_ERROR_CONTAINED`
const CONTAINED: c_int = 226;
/// `CUDA_ERROR_NOT_READY`
pub(super) const NOT_READY: c_int = 600;
/// `CUDA_ERROR_NO_BINARY_FOR_GPU`
pub(in crate::device::cuda) const NO_BINARY_FOR_GPU: c_int = 209;
