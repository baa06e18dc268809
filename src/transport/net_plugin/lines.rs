//! The lines that plug-ins log, in our log.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::panic::catch_unwind;

use crate::config::DebugLevel;
use crate::log;
use crate::sys::printed;
use crate::transport::net_plugin::abi::{LOG_ABORT, LOG_INFO, LOG_OF_INIT, LOG_WARN};

/// Runs `call`, which calls a plug-in; with the last warning that the plug-in has logged in it, on this thread.
pub(super) fn heard<T>(call: impl FnOnce() -> T) -> (T, Option<String>) {
    LAST_WARNING.with_borrow_mut(Option::take);
    let done = call();
    (done, LAST_WARNING.with_borrow_mut(Option::take))
}

/// Writes a line. No panic leaves it: the caller is a library in C.
///
/// # Safety
/// As [`printed::text`] asks of the last two.
pub(super) unsafe extern "C" fn take_line(
    level: c_int,
    subsystems: u64,
    _file: *const c_char,
    _line: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) {
    let nccl = match level {
        LOG_WARN => DebugLevel::Warn,
        LOG_INFO | LOG_ABORT => DebugLevel::Info,
        _ => DebugLevel::Trace,
    };
    if level != LOG_WARN && !log::is_heard(nccl) {
        return;
    }
    // SAFETY: the caller's word.
    let text = unsafe { printed::text(format, arguments) };
    let _panicked = catch_unwind(|| match nccl {
        DebugLevel::Warn => {
            log::warn!(Net, "NET/Plugin: {text}");
            // A thread that ends, as that of `main` in functions for the end of a process, has no such place any more.
            let _gone = LAST_WARNING.try_with(|last| last.replace(Some(text)));
        }
        DebugLevel::Info if subsystems & LOG_OF_INIT != 0 => log::detail!(Init, "NET/Plugin: {text}"),
        DebugLevel::Info => log::detail!(Net, "NET/Plugin: {text}"),
        _ => log::trace!(Net, "NET/Plugin: {text}"),
    });
}

thread_local! {
    /// What a plug-in has warned of last, for the error that may follow.
    static LAST_WARNING: RefCell<Option<String>> = const { RefCell::new(None) };
}
