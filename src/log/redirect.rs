//! Lines that go to the program in place of standard output or a file.

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::DebugLevel;

/// One line of the log.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LogLine<'a> {
    /// How loud it is.
    pub level: DebugLevel,
    /// The rank that speaks, where one is known.
    pub rank: Option<u32>,
    /// What it says.
    pub text: &'a str,
    /// The whole line as it would be printed, its end of line included.
    pub printed: &'a str,
}

/// Gives the log's lines to `callback`, or with `None` prints them again. For the whole process, as the log is.
///
/// `NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS` and their fields of the first [`crate::Config`] still choose the lines. The callback is
/// called by whichever thread logs, several at a time. What it logs itself is dropped; a panic of it is caught, and the line is lost.
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

/// What takes the log's lines.
pub type LogCallback = Box<dyn Fn(LogLine<'_>) + Send + Sync>;

/// Gives the line to the callback. False where there is none.
pub(super) fn take(line: LogLine<'_>) -> bool {
    // Called without the lock: the callback may take its time, and may redirect the log.
    let Some(Target(callback)) = target().clone() else { return false };
    if !INSIDE.replace(true) {
        let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| callback(line)));
        INSIDE.set(false);
        // The panic has been reported by the panic hook; communication goes on.
        drop(called);
    }
    true
}

fn target() -> std::sync::MutexGuard<'static, Option<Target>> {
    // A target is whole after every statement, so a panic elsewhere does not spoil it.
    TARGET.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone)]
struct Target(Arc<dyn Fn(LogLine<'_>) + Send + Sync>);

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").finish_non_exhaustive()
    }
}

/// Where lines go: the log is the process's, so this is too.
static TARGET: Mutex<Option<Target>> = Mutex::new(None);

thread_local! {
    /// Whether this thread is in the callback, whose own lines would come back to it without end.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}
