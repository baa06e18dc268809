//! The log: what `NCCL_DEBUG` asks for, in NCCL's line format, and the same as `tracing` events.
//!
//! Each event goes two ways that know nothing of each other:
//!
//! - Where the user sets `NCCL_DEBUG`, the library writes NCCL's lines itself, whatever `tracing` subscriber the program has or
//!   installs later:
//!
//! ```text
//! node0:4711:4712 [2] RSCCL INFO Bootstrap: Using eth0:10.0.0.7<40213>
//!
//! [2026-01-31 12:00:00] node0:4711:4712 [2] src/comm/init.rs:71 RSCCL WARN rank 3 has not come
//! ```
//!
//!   that is host, process, thread, rank (`-` where none is known yet), level, text; warnings after an empty line.
//! - A `tracing` event goes to the program's subscriber, if it has one: the subsystem is the target (`rsccl::net`), the rank a field.
//!   The library installs no subscriber. Warnings are WARN; the beginning and end of a communicator are INFO; connections and calls
//!   are DEBUG; the CALL lines and all that NCCL has at its level TRACE are TRACE.
//!
//! Event sites that nobody listens to cost two loads. None stand in inner loops.
//!
//! Inside the crate: `log::info!(Init, "text {value}")`, or with a rank `log::info!(Init @ rank, "text {value}")`.

mod line;
mod printer;
mod redirect;
mod sink;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};

use tracing::level_filters::LevelFilter;

use crate::config::{Config, DebugLevel, Note, Subsystem};
use crate::error::Result;

use printer::Printer;
pub use redirect::{LogCallback, LogLine, redirect};

/// Begins to log as `config` says: the first configuration of the process that sets `NCCL_DEBUG` chooses the lines. Then says what
/// was noticed in the configuration, each thing once in a process. Harmless when called again.
///
/// # Errors
/// Where `NCCL_DEBUG_FILE` cannot be opened; the error names the variable and the path.
pub(crate) fn install(config: &Config) -> Result<()> {
    if PRINTER.get().is_none()
        && let Some(printer) = Printer::new(config)?
    {
        let (level, hears_calls) = (printer.level() as u8, printer.hears_calls());
        // Of two threads that come at the same time the second one's printer is dropped.
        if PRINTER.set(printer).is_ok() {
            // Relaxed: whoever sees these numbers early looks for the printer, and prints nothing where it is not there yet.
            LOUDNESS.store(level + 1, Ordering::Relaxed);
            PRINTS_CALLS.store(hears_calls, Ordering::Relaxed);
        }
    }
    for note in config.notes() {
        say_once(note);
    }
    Ok(())
}

/// Logs the version, once in a process. Rank 0 calls it when it begins an init, as in NCCL.
pub(crate) fn version() {
    // Relaxed: who comes second need not see what the first one printed.
    if !SAID_VERSION.swap(true, Ordering::Relaxed) {
        event!(Version / INFO, Init, "RSCCL version {}", env!("CARGO_PKG_VERSION"));
    }
}

/// Whether anybody listens to the lines of calls: two loads, for calls that should cost no more where nobody does.
#[inline]
pub(crate) fn hears_calls() -> bool {
    // Relaxed: a call beside the installation may miss its line.
    PRINTS_CALLS.load(Ordering::Relaxed) || LevelFilter::current() >= LevelFilter::DEBUG
}

/// Tells the user on standard error, whatever `NCCL_DEBUG` asks for: for what makes all that follows wrong, and is no error of a call.
/// Once in a process for each text.
#[cfg(feature = "mpi")]
pub(crate) fn tell(text: &str) {
    if is_new(text) {
        // Where nobody can read it there is nobody to tell.
        let _unread =
            std::io::Write::write_all(&mut std::io::stderr().lock(), format!("rsccl: warning: {text}\n").as_bytes());
        warn!(Init, "{text}");
    }
}

/// Where an event comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    pub(crate) level: DebugLevel,
    pub(crate) subsystem: Subsystem,
    pub(crate) file: &'static str,
    pub(crate) line: u32,
}

/// Whether NCCL's lines of this level are written at all.
#[inline]
pub(crate) fn is_loud(level: DebugLevel) -> bool {
    // Relaxed: as in `hears_calls`.
    LOUDNESS.load(Ordering::Relaxed) > level as u8
}

/// Writes NCCL's line of an event, where `NCCL_DEBUG` asks for it.
#[cold]
pub(crate) fn write(site: &Site, rank: Option<u32>, text: fmt::Arguments<'_>) {
    if let Some(printer) = PRINTER.get() {
        printer.print(site, rank, text);
    }
}

/// Says a thing about the configuration, once in a process.
pub(crate) fn say_once(note: &Note) {
    let text = match note {
        Note::Warning(text) | Note::Information(text) => text,
    };
    if !is_new(text) {
        return;
    }
    match note {
        Note::Warning(text) => warn!(Env, "{text}"),
        Note::Information(text) => info!(Env, "{text}"),
    }
}

/// Whether `text` was not said before; from now on it was.
fn is_new(text: &str) -> bool {
    // A holder of the lock that panicked leaves a set that is still good.
    let mut said = SAID.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    said.len() < MAX_SAID && said.insert(text.to_owned())
}

/// Emits an event at a level of NCCL's and one of `tracing`: `event!(Info / DEBUG, Init @ rank, "text")`.
macro_rules! event {
    (! $nccl:ident / $level:ident, $subsystem:ident, $rank:expr, $($text:tt)+) => {{
        let rank: Option<u32> = $rank;
        match ::core::format_args!($($text)+) {
            text => {
                if $crate::log::is_loud($crate::config::DebugLevel::$nccl) {
                    let site = $crate::log::Site {
                        level: $crate::config::DebugLevel::$nccl,
                        subsystem: $crate::config::Subsystem::$subsystem,
                        file: ::core::file!(),
                        line: ::core::line!(),
                    };
                    $crate::log::write(&site, rank, text);
                }
                ::tracing::event!(
                    target: $crate::config::Subsystem::$subsystem.target(),
                    ::tracing::Level::$level,
                    rank,
                    "{text}"
                );
            }
        }
    }};
    ($nccl:ident / $level:ident, $subsystem:ident @ $rank:expr, $($text:tt)+) => {
        $crate::log::event!(! $nccl / $level, $subsystem, Some($crate::types::Rank::get($rank)), $($text)+)
    };
    ($nccl:ident / $level:ident, $subsystem:ident, $($text:tt)+) => {
        $crate::log::event!(! $nccl / $level, $subsystem, None, $($text)+)
    };
}

/// How a communicator begins and ends. `info!(Init @ rank, "text {value}")`, or without the rank where none is known.
macro_rules! info {
    ($($event:tt)+) => { $crate::log::event!(Info / INFO, $($event)+) };
}

/// What NCCL has at its level INFO and a program's subscriber should not hear by default: connections, and every call.
macro_rules! detail {
    ($($event:tt)+) => { $crate::log::event!(Info / DEBUG, $($event)+) };
}

/// What went wrong. `warn!(Net @ rank, "text {value}")`.
macro_rules! warn_ {
    ($($event:tt)+) => { $crate::log::event!(Warn / WARN, $($event)+) };
}

/// Every step. `trace!(Proxy @ rank, "text {value}")`.
macro_rules! trace {
    ($($event:tt)+) => { $crate::log::event!(Trace / TRACE, $($event)+) };
}

pub(crate) use {detail, event, info, trace, warn_ as warn};

/// What writes NCCL's lines. Standard output and `NCCL_DEBUG_FILE` are the process's, so this is too.
static PRINTER: OnceLock<Printer> = OnceLock::new();
/// One more than the level of [`PRINTER`]; 0 while there is none.
static LOUDNESS: AtomicU8 = AtomicU8::new(0);
/// Whether [`PRINTER`] has lines for calls.
static PRINTS_CALLS: AtomicBool = AtomicBool::new(false);
static SAID_VERSION: AtomicBool = AtomicBool::new(false);
/// What was said of the configuration: a process with many communicators says it once.
static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// The most things to remember having said; a process has a few.
const MAX_SAID: usize = 256;
