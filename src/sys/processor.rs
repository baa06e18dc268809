//! The processor that a thread runs on, by a load: the kernel keeps the number up to date in an area of each thread
//! (rseq, Linux 4.18) that the C library registers (glibc from 2.35 on). Nothing is asked of the kernel.

use crate::sync::primitive::{Ordering, statics::AtomicU64};

/// The number of the processor on which this thread runs, plus one: a moment later it may run on another one. 0 where
/// it is not known: on other C libraries, and before [`find`].
#[inline]
pub fn here() -> u32 {
    // Relaxed: a thread that does not see the offset yet does not know its processor.
    let offset = OFFSET.load(Ordering::Relaxed);
    // A thread without an area has -1 or -2 there.
    if offset == 0 { 0 } else { thread::load(offset).wrapping_add(1) }
}

/// Finds where the C library has put the area. To be called before the first [`here`] that is to know.
pub fn find() {
    let symbol = |name: &std::ffi::CStr| {
        // SAFETY: the name ends in a zero byte.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    let (offset, size) = (symbol(c"__rseq_offset"), symbol(c"__rseq_size"));
    if cfg!(miri) || offset.is_null() || size.is_null() {
        return;
    }
    // SAFETY: where the C library has this name it is a constant `ptrdiff_t`, set before `main`.
    let offset = unsafe { *offset.cast::<isize>() };
    // SAFETY: likewise an `unsigned int`.
    let size = unsafe { *size.cast::<u32>() };
    // The size is 0 where the kernel has refused, or the user: then nobody writes the area.
    if size > 0 {
        let field = i64::try_from(offset).map_or(0, |offset| offset.wrapping_add(PROCESSOR_BYTE));
        OFFSET.store(field.cast_unsigned(), Ordering::Relaxed);
    }
}

/// From the thread's pointer to the number in its area, modulo 2⁶⁴; 0: not known. The C library's area lies outside of
/// the words at the pointer itself.
static OFFSET: AtomicU64 = AtomicU64::new(0);

/// Where `cpu_id` stands in the area (`struct rseq`).
const PROCESSOR_BYTE: i64 = 4;

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod thread {
    use std::arch::asm;

    #[inline]
    pub(super) fn load(offset: u64) -> u32 {
        let number: u32;
        // SAFETY: the thread's area, which the C library keeps as long as the thread lives, is readable there. Not
        // `pure`: the kernel changes it, and a call may go on on another thread.
        unsafe {
            asm!(
                "mov {number:e}, dword ptr fs:[{offset}]",
                number = out(reg) number,
                offset = in(reg) offset,
                options(nostack, preserves_flags, readonly),
            );
        }
        number
    }
}

#[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
mod thread {
    use std::arch::asm;

    #[inline]
    pub(super) fn load(offset: u64) -> u32 {
        let number: u32;
        // SAFETY: as for x86-64.
        unsafe {
            asm!(
                "mrs {pointer}, tpidr_el0",
                "ldr {number:w}, [{pointer}, {offset}]",
                pointer = out(reg) _,
                number = lateout(reg) number,
                offset = in(reg) offset,
                options(nostack, preserves_flags, readonly),
            );
        }
        number
    }
}

/// Architectures whose thread pointer is not known here, and Miri.
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(miri))))]
mod thread {
    pub(super) fn load(_: u64) -> u32 {
        u32::MAX
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::sys::{cpu, numa, thread};

    #[test]
    fn a_bound_thread_knows_its_processor() {
        find();
        if here() == 0 {
            return println!("skipped: this C library does not tell threads their processor");
        }
        let bound = thread::spawn("bound", || {
            numa::allowed_processors(Path::new("/"))
                .into_iter()
                .map(|processor| {
                    cpu::bind_to(processor).unwrap();
                    (processor + 1, here())
                })
                .collect::<Vec<_>>()
        });
        for (expected, found) in bound.unwrap().join().unwrap() {
            assert_eq!(found, expected);
        }
    }
}
