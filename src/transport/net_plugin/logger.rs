//! Where plug-ins log: a function of C with variable arguments, whose lines go to our log.
//!
//! Stable Rust defines no such function. So the one that plug-ins get is a few instructions, which hand the arguments
//! on as C's own variadic functions would (`va_list`). On other processors only the number of lines is logged.

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod aarch64;
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod elsewhere;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;

#[cfg(all(target_arch = "aarch64", not(miri)))]
pub(super) use aarch64::log_of_plug_in;
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
pub(super) use elsewhere::log_of_plug_in;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) use x86_64::log_of_plug_in;
