//! Sends the log's lines to a callback of the program in place of standard output or a file.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use crate::config::DebugLevel;
use crate::sync::primitive::statics::{Mutex, MutexGuard};
use crate::sys::fork::PerProcess;

/// One line of the log.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LogLine<'a> {
    /// The level.
    pub level: DebugLevel,
    /// The rank that logs, if known.
    pub rank: Option<u32>,
    /// The text.
    pub text: &'a str,
    /// The whole line as it would be printed, with its end of line.
    pub printed: &'a str,
}

/// Passes the log's lines to `callback`; `None` prints them again. Applies to the whole process, as the log does, and
/// not to its forked children.
///
/// `NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS` and their fields of the first [`crate::Config`] still select the lines. The thread
/// that logs calls the callback, so several calls may run at a time. Lines that the callback logs itself are dropped;
/// if it panics, the panic is caught and the line is lost.
///
/// # Examples
/// ```
/// use rsccl::Config;
/// use rsccl::config::DebugLevel;
/// use std::sync::{Arc, Mutex};
///
/// let lines = Arc::new(Mutex::new(Vec::new()));
/// let kept = Arc::clone(&lines);
/// rsccl::log::redirect(Some(Box::new(move |line| kept.lock().expect("no holder panics").push(line.text.to_owned()))));
/// rsccl::local::run_with(2, &Config::default().with_debug(DebugLevel::Info), |comm| comm.barrier())?;
/// rsccl::log::redirect(None);
/// assert!(lines.lock().expect("no holder panics").iter().any(|line| line.ends_with("Init COMPLETE")));
/// # Ok::<(), rsccl::Error>(())
/// ```
pub fn redirect(callback: Option<LogCallback>) {
    *target() = callback.map(|callback| Target(Arc::from(callback)));
}

/// A receiver of the log's lines.
pub type LogCallback = Box<dyn Fn(LogLine<'_>) + Send + Sync>;

/// Passes the line to the callback; false if there is none.
pub(super) fn take(line: LogLine<'_>) -> bool {
    // Called without the lock: the callback may be slow, and may redirect the log.
    let Some(Target(callback)) = target().clone() else { return false };
    if !INSIDE.replace(true) {
        let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| callback(line)));
        INSIDE.set(false);
        // The panic hook has reported the panic; communication continues.
        drop(called);
    }
    true
}

fn target() -> MutexGuard<'static, Option<Target>> {
    TARGET.get_or_init(Mutex::default).lock()
}

#[derive(Clone)]
struct Target(Arc<dyn Fn(LogLine<'_>) + Send + Sync>);

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").finish_non_exhaustive()
    }
}

/// The destination of lines. The log belongs to the process, so this does too. A forked child begins without: the
/// callback may wait for a thread of the parent.
static TARGET: PerProcess<Mutex<Option<Target>>> = PerProcess::new();

thread_local! {
    /// Whether this thread is inside the callback: lines that it logs there would call it again without end.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}
