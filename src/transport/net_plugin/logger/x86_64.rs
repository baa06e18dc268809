//! The logger on x86-64, by the System V calling convention.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int};

use crate::transport::net_plugin::lines::take_line;

/// `ncclDebugLogger_t`: level, subsystems, file, line, format, and what the format asks for.
///
/// It puts the registers that may hold variable arguments on its stack (`al` says whether vectors are among them), and
/// a `va_list` that leads to them:
/// ```text
/// offset  bytes  meaning
/// 0       48     registers of integers; the first five are the named arguments
/// 48      128    registers of vectors
/// 176     4      where the next integer lies in the above: 40
/// 180     4      where the next vector lies: 48
/// 184     8      the arguments on the caller's stack
/// 192     8      the address of the above
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
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 208",
        "mov [rsp + 40], r9",
        "test al, al",
        "je 2f",
        "movaps [rsp + 48], xmm0",
        "movaps [rsp + 64], xmm1",
        "movaps [rsp + 80], xmm2",
        "movaps [rsp + 96], xmm3",
        "movaps [rsp + 112], xmm4",
        "movaps [rsp + 128], xmm5",
        "movaps [rsp + 144], xmm6",
        "movaps [rsp + 160], xmm7",
        "2:",
        "mov dword ptr [rsp + 176], 40",
        "mov dword ptr [rsp + 180], 48",
        "lea rax, [rbp + 16]",
        "mov [rsp + 184], rax",
        "mov [rsp + 192], rsp",
        "lea r9, [rsp + 176]",
        "call {take}",
        "leave",
        "ret",
        take = sym take_line,
    )
}
