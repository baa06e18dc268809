//! Which bytes of global memory have ever been set: one bit a byte, beside the memory itself.

use super::memory::Extent;
use std::sync::atomic::{AtomicU8, Ordering};

fn flags(extent: &Extent, address: u64) -> Option<(&'static AtomicU8, u64)> {
    if extent.defined.is_null() {
        return None;
    }
    let offset = address - extent.start;
    let at = extent.defined.wrapping_add(usize::try_from(offset / 8).expect("a host has as many addresses"));
    // SAFETY: the driver promises a bit for each byte of the extent, mapped while kernels run, used through atomics.
    Some((unsafe { AtomicU8::from_ptr(at) }, offset % 8))
}

/// Notes which of `bytes` bytes are defined now. An aligned access of up to 8 bytes lies in one byte of flags.
pub(super) fn set(extent: &Extent, address: u64, bytes: u32, defined: u8) {
    let Some((flags, shift)) = flags(extent, address) else { return };
    let field = (u8::MAX >> (8 - bytes)) << shift;
    let bits = (defined << shift) & field;
    if field == u8::MAX {
        flags.store(bits, Ordering::Relaxed);
    } else {
        flags.fetch_or(bits, Ordering::Relaxed);
        if bits != field {
            flags.fetch_and(bits | !field, Ordering::Relaxed);
        }
    }
}

/// A bit for each byte that is defined; those above the access are zero in a register, hence defined.
pub(super) fn get(extent: &Extent, address: u64, bytes: u32) -> u8 {
    let Some((flags, shift)) = flags(extent, address) else { return u8::MAX };
    let bits = flags.load(Ordering::Relaxed) >> shift;
    let field = u8::MAX >> (8 - bytes);
    bits & field | !field
}
