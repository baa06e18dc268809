//! Processors: how many this process may use, and how to yield them.

/// How many processors this thread may run on, at least 1.
pub fn allowed() -> usize {
    let mut set = std::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the kernel writes at most the size given into the set, which is as large.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) };
    if result != 0 {
        return std::thread::available_parallelism().map_or(1, usize::from);
    }
    // SAFETY: zeroed is a valid set, and the kernel has filled it in.
    let set = unsafe { set.assume_init() };
    // SAFETY: CPU_COUNT only reads the set.
    let count = unsafe { libc::CPU_COUNT(&set) };
    usize::try_from(count).unwrap_or(1).max(1)
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
