//! The logger on 64-bit Arm, by the procedure call standard of Linux.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int};

use crate::transport::net_plugin::lines::take_line;

/// `ncclDebugLogger_t`: level, subsystems, file, line, format, and what the format asks for.
///
/// It puts the registers that may hold variable arguments on its stack, and a `va_list` that leads to them:
/// ```text
/// offset  bytes  meaning
/// 0       16     frame pointer and return address
/// 16      128    registers of vectors, q0 to q7
/// 144     24     registers of integers behind the named arguments, x5 to x7
/// 176     8      the arguments on the caller's stack
/// 184     8      the end of the integers: 168
/// 192     8      the end of the vectors: 144
/// 200     4      where the next integer lies before that end: -24
/// 204     4      where the next vector lies before its end: -128
/// ```
///
/// # Safety
/// As C calls it; the format ends in a zero byte, and its arguments are there.
#[unsafe(naked)]
pub(in crate::transport::net_plugin) unsafe extern "C" fn log_of_plug_in(
    level: c_int,
    subsystems: u64,
    file: *const c_char,
    line: c_int,
    format: *const c_char,
) {
    naked_asm!(
        "stp x29, x30, [sp, #-208]!",
        "mov x29, sp",
        "stp q0, q1, [sp, #16]",
        "stp q2, q3, [sp, #48]",
        "stp q4, q5, [sp, #80]",
        "stp q6, q7, [sp, #112]",
        "stp x5, x6, [sp, #144]",
        "str x7, [sp, #160]",
        "add x9, sp, #208",
        "str x9, [sp, #176]",
        "add x9, sp, #168",
        "str x9, [sp, #184]",
        "add x9, sp, #144",
        "str x9, [sp, #192]",
        "mov w9, #-24",
        "str w9, [sp, #200]",
        "mov w9, #-128",
        "str w9, [sp, #204]",
        "add x5, sp, #176",
        "bl {take}",
        "ldp x29, x30, [sp], #208",
        "ret",
        take = sym take_line,
    )
}
