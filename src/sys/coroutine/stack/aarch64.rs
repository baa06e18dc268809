//! The switch on 64-bit Arm, by its calling convention (AAPCS64): a called function keeps `x19` to `x29`, the low
//! halves of `v8` to `v15` and the stack pointer, and returns to `x30`.

use std::arch::naked_asm;

/// What a switch leaves on a stack: x19 to x30, then d8 to d15.
type Saved = [usize; 20];
/// The places of x19, x20 and x30.
const ENTRY: usize = 0;
const ARGUMENT: usize = 1;
const RETURN: usize = 11;
const _: () = assert!(size_of::<Saved>() == 160, "as the switch has it, and a multiple of 16");

/// Lets a switch to the stack that ends at `top` call `entry` with `argument`; its stack pointer until then.
///
/// # Safety
/// Memory lies below `top`, a multiple of 16, of which nothing is in use.
pub(super) unsafe fn first(top: *mut u8, entry: unsafe extern "C" fn(*const ()), argument: *const ()) -> *mut u8 {
    // The frame pointer of 0 ends the chain of frames.
    let mut saved: Saved = [0; 20];
    saved[ENTRY] = entry as usize;
    saved[ARGUMENT] = argument.expose_provenance();
    saved[RETURN] = call_entry as *const () as usize;
    // SAFETY: the caller's promise.
    let place = unsafe { top.sub(size_of::<Saved>()) };
    // SAFETY: as above.
    unsafe { place.cast::<Saved>().write(saved) };
    place
}

/// Saves this side's registers on its stack, stores its stack pointer at `save`, and goes on with the side whose stack
/// pointer is `to`.
///
/// # Safety
/// `to` came from such a store, or from [`first`]; that side does not run.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn switch(save: *mut *mut u8, to: *mut u8) {
    naked_asm!(
        "sub sp, sp, #160",
        "stp x19, x20, [sp]",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "mov x9, sp",
        "str x9, [x0]",
        "mov sp, x1",
        "ldp x19, x20, [sp]",
        "ldp x21, x22, [sp, #16]",
        "ldp x23, x24, [sp, #32]",
        "ldp x25, x26, [sp, #48]",
        "ldp x27, x28, [sp, #64]",
        "ldp x29, x30, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "add sp, sp, #160",
        "ret",
    )
}

/// The first function of a stack: calls `x19` with `x20`, which does not return (see `OwnStack::finish`).
#[unsafe(naked)]
unsafe extern "C" fn call_entry() {
    naked_asm!("mov x0, x20", "blr x19", "brk #1")
}
