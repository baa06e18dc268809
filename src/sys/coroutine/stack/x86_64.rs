//! The switch on x86-64, by the System V calling convention: a called function keeps `rbx`, `rbp`, `r12` to `r15` and
//! the stack pointer.

use std::arch::naked_asm;

/// The top of a stack that has not run.
#[repr(C)]
struct First {
    /// r15, r14, r13, r12, rbx, rbp.
    saved: [usize; 6],
    /// Where the switch returns to.
    first: usize,
    /// The end of the chain of frames. With them the stack pointer at `call_entry` is a multiple of 16.
    above: [usize; 2],
}
const _: () = assert!(size_of::<First>() == 72);

/// Lets a switch to the stack that ends at `top` call `entry` with `argument`; its stack pointer until then.
///
/// # Safety
/// Memory lies below `top`, a multiple of 16, of which nothing is in use.
pub(super) unsafe fn first(top: *mut u8, entry: unsafe extern "C" fn(*const ()), argument: *const ()) -> *mut u8 {
    let frame = First {
        saved: [0, 0, 0, argument.expose_provenance(), entry as usize, 0],
        first: call_entry as *const () as usize,
        above: [0, 0],
    };
    // SAFETY: the caller's promise.
    let place = unsafe { top.sub(size_of::<First>()) };
    // SAFETY: as above.
    unsafe { place.cast::<First>().write(frame) };
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
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// The first function of a stack: calls `rbx` with `r12`, which does not return (see `OwnStack::finish`).
#[unsafe(naked)]
unsafe extern "C" fn call_entry() {
    naked_asm!("mov rdi, r12", "call rbx", "ud2")
}
