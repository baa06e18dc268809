//! The primary context of a GPU: retained while the library uses it, entered for each call, never reset.
//!
//! A program's own context and capture mode are left as they were: [`Primary::enter`] makes the primary context current
//! and the thread's capture mode relaxed, and its guard undoes both; inside of that guard, entering again asks the
//! driver for nothing. The mode must be relaxed, because a call of ours, such as the query of an event, would otherwise
//! spoil the capture of another thread.

use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;

use cudarc::driver::sys::{CUcontext, CUdevice};

use super::gate::Gate;
use super::raw::Functions;
use super::result::{Driver, Refusal, call};
use super::stream::StreamHandle;
use crate::device::Surroundings;
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::{Arc, AtomicU32, Ordering};

/// How memory of a GPU can be made, and who reaches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::device::cuda) struct MemoryWays {
    /// Whether the driver maps memory, which it does beside kernels that run.
    pub(in crate::device::cuda) maps: bool,
    /// Whether mapped memory can leave the process as a descriptor.
    pub(in crate::device::cuda) exports: bool,
    /// Whether mapped memory can leave the host by a fabric handle, says an attribute that is no promise.
    pub(in crate::device::cuda) fabric: bool,
    /// Whether NICs may reach mapped memory.
    pub(in crate::device::cuda) nics: bool,
    /// The devices whose kernels reach mapped memory: this one, then those with peer access to it.
    pub(in crate::device::cuda) visitors: Vec<CUdevice>,
}

/// A reference to a GPU's primary context, given back when it is dropped.
#[derive(Debug)]
pub(in crate::device::cuda) struct Primary {
    driver: &'static Driver,
    device: CUdevice,
    context: CUcontext,
    memory_ways: MemoryWays,
    /// The driver's answer after which the context can never be used again; 0 if there was none.
    lost: AtomicU32,
    /// The driver's answer when it refused memory with fabric handles; 0 if it has not.
    no_fabric: AtomicU32,
    /// Says that somebody uses the device. The last field: it goes when the context has been given back.
    _user: Arc<()>,
}

// SAFETY: the context is a handle, which the driver lets any thread use.
unsafe impl Send for Primary {}
// SAFETY: as above.
unsafe impl Sync for Primary {}

impl Primary {
    /// Takes a reference, which makes the context if nobody has one.
    /// `user` is kept until it is given back.
    pub(in crate::device::cuda) fn retain(
        driver: &'static Driver,
        device: CUdevice,
        memory_ways: MemoryWays,
        user: Arc<()>,
    ) -> Result<Primary> {
        driver.check_process()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the place is ours and lives through the call; the driver refuses numbers that are no device.
        let retained = unsafe { call!(driver, cuDevicePrimaryCtxRetain(&raw mut context, device)) };
        retained.map_err(|failure| failure.at(driver))?;
        let (lost, no_fabric) = (AtomicU32::new(0), AtomicU32::new(0));
        Ok(Primary { driver, device, context, memory_ways, lost, no_fabric, _user: user })
    }

    pub(in crate::device::cuda) fn functions(&self) -> &Functions {
        self.driver.functions()
    }

    /// The device's number to the driver.
    pub(in crate::device::cuda) fn device(&self) -> CUdevice {
        self.device
    }

    /// What the driver calls the context, as a number.
    pub(in crate::device::cuda) fn number(&self) -> u64 {
        self.context.addr() as u64
    }

    /// By which launches and the freeing of memory take turns.
    pub(in crate::device::cuda) fn gate(&self) -> &Gate {
        self.driver.gate()
    }

    pub(in crate::device::cuda) fn memory_ways(&self) -> &MemoryWays {
        &self.memory_ways
    }

    /// What an answer means; remembers one after which the context is lost.
    #[inline]
    pub(in crate::device::cuda) fn check(&self, call: &'static str, code: c_int) -> Result<(), Refusal> {
        let checked = self.driver.check(call, code);
        if let Err(failure) = checked {
            self.note(failure);
        }
        checked
    }

    #[cold]
    fn note(&self, failure: Refusal) {
        if failure.is_sticky() {
            // Relaxed: readers ask only whether it is zero, and the driver gives the same answer to every other call.
            self.lost.store(failure.code.unsigned_abs(), Ordering::Relaxed);
        }
    }

    /// Remembers that the driver refuses memory with fabric handles, so that nobody asks for it again.
    #[cold]
    pub(in crate::device::cuda) fn note_no_fabric(&self, code: c_int) {
        // Relaxed: it is a hint, with nothing behind it.
        self.no_fabric.store(code.unsigned_abs(), Ordering::Relaxed);
    }

    /// The driver's refusal of memory with fabric handles, if it was asked.
    pub(in crate::device::cuda) fn fabric_refusal(&self) -> Option<Refusal> {
        // Relaxed: see `note_no_fabric`.
        let code = self.no_fabric.load(Ordering::Relaxed);
        let code = c_int::try_from(code).unwrap_or(c_int::MAX);
        (code != 0).then_some(Refusal { call: "cuMemCreate with fabric handles", code })
    }

    /// The error of a failure.
    #[cold]
    pub(in crate::device::cuda) fn error(&self, failure: Refusal) -> Error {
        failure.at(self.driver).on(self.device)
    }

    /// Whether the context was lost: nothing of it may be touched then, and nothing can be freed.
    pub(super) fn is_lost(&self) -> bool {
        // Relaxed: see `note`.
        self.lost.load(Ordering::Relaxed) != 0 || self.driver.check_process().is_err()
    }

    /// Whether a stream is of this context. Streams 0, 1 and 2 are of the context that is current, as this one is in
    /// all calls of ours.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`] where it is of another.
    pub(in crate::device::cuda) fn check_owns(&self, stream: StreamHandle) -> Result<()> {
        if stream.is_of_current_context() {
            return Ok(());
        }
        let _entered = self.enter()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the stream lives (`StreamHandle::new`), and the place is ours.
        let asked = unsafe { call!(self, cuStreamGetCtx(stream.0, &raw mut context)) };
        asked.map_err(|failure| self.error(failure))?;
        if context == self.context {
            return Ok(());
        }
        Err(Error::invalid_argument(format!(
            "the stream is not of the primary context of GPU {}: give a stream of that GPU, made in its primary \
             context as CUDA's runtime and cudarc do",
            self.device
        )))
    }

    /// Makes the context current in this thread, and its capture mode relaxed, until the guard is dropped.
    ///
    /// # Errors
    /// Where the context was lost, or the driver refuses.
    pub(in crate::device::cuda) fn enter(&self) -> Result<Entered<'_>> {
        self.driver.check_process()?;
        // Relaxed: see `note`.
        let lost = self.lost.load(Ordering::Relaxed);
        if lost != 0 {
            return Err(self.lost(lost));
        }
        if INNERMOST.get() == self.context {
            return Ok(Entered { _outer: None, _here: PhantomData });
        }
        self.step_in().map_err(|failure| self.error(failure))
    }

    #[cold]
    fn lost(&self, code: u32) -> Error {
        let failure = Refusal { call: "an earlier call", code: c_int::try_from(code).unwrap_or(c_int::MAX) };
        let cause = failure.at(self.driver);
        let message = format!(
            "GPU {} failed before ({}): its context can never be used again, nor its memory freed; end the process",
            self.device,
            cause.message()
        );
        Error::new(Kind::System, message)
    }

    fn step_in(&self) -> Result<Entered<'_>, Refusal> {
        let mut mode = RELAXED;
        // SAFETY: the place is ours and holds a mode; the thread's mode before comes back there.
        unsafe { call!(self, cuThreadExchangeStreamCaptureMode(&raw mut mode)) }?;
        // Dropped, it puts the mode back, also where the next calls fail.
        let mut outer = Outer { primary: self, mode, pushed: false, before: INNERMOST.get() };
        let mut current = std::ptr::null_mut();
        // SAFETY: the place is ours and lives through the call.
        unsafe { call!(self, cuCtxGetCurrent(&raw mut current)) }?;
        if current != self.context {
            // SAFETY: `self` holds a reference to the context.
            unsafe { call!(self, cuCtxPushCurrent(self.context)) }?;
            outer.pushed = true;
        }
        INNERMOST.set(self.context);
        Ok(Entered { _outer: Some(outer), _here: PhantomData })
    }

    /// Lets kernels of this context reach the memory of another GPU's, which [`Primary::can_reach`] allows. For set-up.
    pub(in crate::device::cuda) fn reach(&self, other: &Primary) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: both contexts are retained; this one is current.
        match unsafe { call!(self, cuCtxEnablePeerAccess(other.context, 0)) } {
            Ok(()) => Ok(()),
            Err(failure) if failure.code == PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            Err(failure) => Err(self.error(failure)),
        }
    }

    /// Whether kernels of one GPU can reach the memory of another; the reason where not.
    pub(in crate::device::cuda) fn can_reach(
        driver: &Driver,
        device: CUdevice,
        other: CUdevice,
    ) -> Result<std::result::Result<(), String>> {
        let mut can = 0;
        // SAFETY: the place is ours and lives through the call.
        let asked = unsafe { call!(driver, cuDeviceCanAccessPeer(&raw mut can, device, other)) };
        asked.map_err(|failure| failure.at(driver))?;
        let reason =
            || format!("no peer access between GPU {device} and GPU {other} (nvidia-smi topo -p2p r shows it)");
        Ok(if can == 0 { Err(reason()) } else { Ok(()) })
    }

    /// Gives something back to the driver, in a destructor. A destructor can report no error, so a call that fails is
    /// made once more. If the context is lost, no call is made.
    pub(in crate::device::cuda) fn give_back(&self, mut call: impl FnMut() -> Result<(), Refusal>) {
        if self.is_lost() {
            return;
        }
        // Without the context current, most calls still find it by the handle.
        let _entered = self.enter();
        if call().is_err() && !self.is_lost() {
            // Nothing more can be done about a second failure.
            let _second = call();
        }
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        if self.is_lost() {
            return;
        }
        // SAFETY: gives back the one reference of `retain`; all handles of ours are gone, because they keep this value.
        let release = || unsafe { call!(self, cuDevicePrimaryCtxRelease(self.device)) };
        if release().is_err() {
            // Nothing more can be done about a second failure.
            let _second = release();
        }
    }
}

/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`
const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`
const RELAXED: c_int = 2;

impl Surroundings for Primary {
    fn around(&self, body: &mut dyn FnMut()) {
        let _entered = self.enter();
        body();
    }
}

thread_local! {
    /// The context of the innermost guard of this thread that has made a context current; null where there is none.
    static INNERMOST: Cell<CUcontext> = const { Cell::new(std::ptr::null_mut()) };
}

/// While it lives, the context is current in the thread that entered it.
#[derive(Debug)]
pub(in crate::device::cuda) struct Entered<'a> {
    /// `None` inside of another guard of the same context.
    _outer: Option<Outer<'a>>,
    /// Guards stay in the thread that entered.
    _here: PhantomData<*const ()>,
}

/// Makes a thread as it was before it entered.
#[derive(Debug)]
struct Outer<'a> {
    primary: &'a Primary,
    /// The thread's capture mode before.
    mode: c_int,
    pushed: bool,
    /// What was the innermost context before.
    before: CUcontext,
}

impl Drop for Outer<'_> {
    fn drop(&mut self) {
        INNERMOST.set(self.before);
        let primary = self.primary;
        let twice = |call: &mut dyn FnMut() -> Result<(), Refusal>| {
            if call().is_err() {
                // Nothing more can be done about a second failure.
                let _second = call();
            }
        };
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: the place is ours; `enter` pushed the context on this thread's stack, for the guard does not move
            // to another thread.
            twice(&mut || unsafe { call!(primary, cuCtxPopCurrent(&raw mut popped)) });
        }
        let mut mode = self.mode;
        // SAFETY: the place is ours and holds the mode that the driver gave.
        twice(&mut || unsafe { call!(primary, cuThreadExchangeStreamCaptureMode(&raw mut mode)) });
    }
}

/// Names the GPU in an error.
trait OnGpu {
    fn on(self, device: CUdevice) -> Error;
}

impl OnGpu for Error {
    fn on(self, device: CUdevice) -> Error {
        Error::new(self.kind(), format!("GPU {device}: {}", self.message()))
    }
}
