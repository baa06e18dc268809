//! Processors: how many this process may use, and how to yield them.

use std::path::Path;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::sync::primitive::{OnceLock, Ordering, statics};
use crate::sys::clock;
use crate::sys::quota::Quota;

/// The processors that a thread may run on.
#[derive(Clone, Copy)]
pub struct Allowed(libc::cpu_set_t);

impl Allowed {
    /// Those of this thread; `None` where the system does not tell.
    pub fn here() -> Option<Allowed> {
        let mut set = std::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: the kernel writes at most the size given into the set, which is as large.
        let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) };
        // SAFETY: zeroed is a valid set, and the kernel has filled it in.
        (result == 0).then(|| Allowed(unsafe { set.assume_init() }))
    }

    /// Lets this thread, which must be one of the library's own, run on these; where the system refuses, it stays where
    /// it is.
    pub fn bind(&self) {
        // SAFETY: the kernel reads the size given from the set, which is as large.
        let _stays = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) };
    }

    fn count(&self) -> usize {
        // SAFETY: CPU_COUNT only reads the set.
        let count = unsafe { libc::CPU_COUNT(&self.0) };
        usize::try_from(count).unwrap_or(1).max(1)
    }
}

impl std::fmt::Debug for Allowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allowed").field("count", &self.count()).finish_non_exhaustive()
    }
}

impl PartialEq for Allowed {
    fn eq(&self, other: &Allowed) -> bool {
        // SAFETY: CPU_EQUAL only reads the sets.
        unsafe { libc::CPU_EQUAL(&self.0, &other.0) }
    }
}

/// Whether the processor has instructions for AES-GCM.
#[cfg(target_arch = "x86_64")]
#[cfg(feature = "encrypt")]
pub(crate) fn has_aes() -> bool {
    is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("ssse3")
}

/// Whether the processor has instructions for AES-GCM.
#[cfg(target_arch = "aarch64")]
#[cfg(feature = "encrypt")]
pub(crate) fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull")
}

/// Whether the processor has instructions for AES-GCM: of other kinds nothing is known.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[cfg(feature = "encrypt")]
pub(crate) fn has_aes() -> bool {
    false
}

/// How many processors' time this thread may use, at least 1: of those on which it may run, as many as the quotas of
/// its control groups leave it. It is cheap enough for waits: a quota is read once a second at most.
pub fn allowed() -> usize {
    let on_mask = in_mask();
    quota().map_or(on_mask, |quota| quota.processors().min(on_mask))
}

/// On how many processors this thread may run, at least 1, whatever quota there is.
pub fn in_mask() -> usize {
    let unknown = || std::thread::available_parallelism().map_or(1, usize::from);
    Allowed::here().map_or_else(unknown, |allowed| allowed.count())
}

/// The quota of this process, at most a second old.
fn quota() -> Option<Quota> {
    let now = clock::now();
    let second = now.saturating_duration_since(*BASE.get_or_init(|| now)).as_secs() + 1;
    // Relaxed, here and below: second and quota are one word, and threads that read the quota at once find the same.
    let known = QUOTA.load(Ordering::Relaxed);
    if known >> 32 == second {
        return Quota::from_thousandths(u32::try_from(known & u64::from(u32::MAX)).unwrap_or(0));
    }
    let quota = Quota::of_process(Path::new("/"));
    QUOTA.store(second << 32 | u64::from(quota.map_or(0, Quota::thousandths)), Ordering::Relaxed);
    quota
}

/// Lets this thread run on one processor only.
///
/// # Errors
/// [`crate::error::Kind::System`] where the processor is not one of those that this thread may have.
pub fn bind_to(processor: u32) -> Result<()> {
    bind_to_all(&[processor])
}

/// Lets this thread run on these processors only; no other thread is moved.
///
/// # Errors
/// [`crate::error::Kind::System`] where none of them is one of those that this thread may have.
pub fn bind_to_all(processors: &[u32]) -> Result<()> {
    // SAFETY: a set is made of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for number in processors.iter().map(|processor| *processor as usize) {
        if number < 8 * size_of::<libc::cpu_set_t>() {
            // SAFETY: `set` is initialised, and the number is below its bits.
            unsafe { libc::CPU_SET(number, &mut set) };
        }
    }
    // SAFETY: the kernel reads the size given from the set, which is as large.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Error::system(format!("binding a thread to processors {processors:?}"), error));
    }
    Ok(())
}

/// Lets another thread on this processor run.
pub fn yield_now() {
    std::thread::yield_now();
}

/// Tells the processor that this is a spin loop.
#[inline]
pub fn relax() {
    std::hint::spin_loop();
}

/// When the process first asked for its quota.
static BASE: OnceLock<Instant> = OnceLock::new();
/// The second after [`BASE`] in which the quota was read, from 1 on, and below 32 bits its thousandths; 0 of these is
/// none.
static QUOTA: statics::AtomicU64 = statics::AtomicU64::new(0);
