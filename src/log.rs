//! The log: what `NCCL_DEBUG` asks for, in NCCL's line format, out of `tracing` events.
//!
//! The library emits `tracing` events with a subsystem as target (`rsccl::net`) and the rank as a field, so a program with a
//! subscriber of its own sees them there. Where the user sets `NCCL_DEBUG` and the program has no subscriber, [`install`]
//! puts a small one in place that prints
//!
//! ```text
//! node0:4711:4712 [2] RSCCL INFO Bootstrap: using eth0:10.0.0.7
//!
//! [2026-01-31 12:00:00] node0:4711:4712 [2] src/comm/init.rs:71 RSCCL WARN rank 3 has not come
//! ```
//!
//! that is host, process, thread, rank (`-` where none is known yet), level, text; warnings after an empty line. Event
//! sites that nobody listens to cost one load. None stand in inner loops.
//!
//! Inside the crate: `log::info!(Init, "text {value}")`, or with a rank `log::info!(Init @ rank, "text {value}")`.

mod line;
mod printer;
mod redirect;
mod sink;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::level_filters::LevelFilter;

use crate::config::{Config, Note};
use crate::error::Result;

pub use printer::Printer;
pub use redirect::{LogCallback, LogLine, redirect};

/// Begins to log as `config` says: with `NCCL_DEBUG` set and no subscriber in the program, ours becomes the process's. Then
/// says what was noticed in the configuration, each thing once in a process. Harmless when called again.
///
/// # Errors
/// Where `NCCL_DEBUG_FILE` cannot be opened; the error names the variable and the path.
pub fn install(config: &Config) -> Result<()> {
    // Relaxed: the flag only spares work; `tracing` orders the installation itself.
    if config.debug.is_some() && !INSTALLED.load(Ordering::Relaxed) {
        if let Some(printer) = Printer::new(config)? {
            // An error says that the program has a subscriber, which is then the one that prints.
            let _ = tracing::subscriber::set_global_default(printer);
        }
        INSTALLED.store(true, Ordering::Relaxed);
    }
    for note in config.notes() {
        say_once(note);
    }
    Ok(())
}

/// Logs the version, once in a process. Rank 0 calls it, as in NCCL.
pub fn version() {
    // Relaxed: who comes second need not see what the first one printed.
    if !SAID_VERSION.swap(true, Ordering::Relaxed) {
        tracing::info!(target: printer::VERSION_TARGET, "RSCCL version {}", env!("CARGO_PKG_VERSION"));
    }
}

/// Whether anybody listens to what the library tells (level INFO): one load, for calls that should cost no more where nobody does.
#[inline]
pub(crate) fn is_heard() -> bool {
    LevelFilter::current() >= LevelFilter::INFO
}

/// Says a thing about the configuration, once in a process.
pub(crate) fn say_once(note: &Note) {
    let text = match note {
        Note::Warning(text) | Note::Information(text) => text,
    };
    // A holder of the lock that panicked leaves a set that is still good.
    let mut said = SAID.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if said.len() >= MAX_SAID || !said.insert(text.clone()) {
        return;
    }
    drop(said);
    match note {
        Note::Warning(text) => warn!(Env, "{text}"),
        Note::Information(text) => info!(Env, "{text}"),
    }
}

/// Emits an event at a level: `event!(INFO, Init @ rank, "text")`.
macro_rules! event {
    ($level:ident, $subsystem:ident @ $rank:expr, $($text:tt)+) => {
        ::tracing::event!(
            target: $crate::config::Subsystem::$subsystem.target(),
            ::tracing::Level::$level,
            rank = $crate::types::Rank::get($rank),
            $($text)+
        )
    };
    ($level:ident, $subsystem:ident, $($text:tt)+) => {
        ::tracing::event!(
            target: $crate::config::Subsystem::$subsystem.target(),
            ::tracing::Level::$level,
            $($text)+
        )
    };
}

/// How things were set up. `info!(Init @ rank, "text {value}")`, or without the rank where none is known.
macro_rules! info {
    ($($event:tt)+) => { $crate::log::event!(INFO, $($event)+) };
}

/// What went wrong. `warn!(Net @ rank, "text {value}")`.
macro_rules! warn_ {
    ($($event:tt)+) => { $crate::log::event!(WARN, $($event)+) };
}

#[allow(unused_macros, reason = "a level of NCCL's that the floors above may use")]
/// Every step. `trace!(Proxy @ rank, "text {value}")`.
macro_rules! trace {
    ($($event:tt)+) => { $crate::log::event!(TRACE, $($event)+) };
}

#[allow(unused_imports, reason = "as above")]
pub(crate) use trace;
pub(crate) use {event, info, warn_ as warn};

/// Whether [`install`] has done its work in this process. A process has one subscriber, so this is the process's too.
static INSTALLED: AtomicBool = AtomicBool::new(false);
static SAID_VERSION: AtomicBool = AtomicBool::new(false);
/// What was said of the configuration: a process with many communicators says it once.
static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// The most things to remember having said; a process has a few.
const MAX_SAID: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DebugLevel, SubsystemSet};
    use crate::types::Rank;

    #[test]
    fn macros_carry_subsystem_and_rank() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log");
        let config = Config::default()
            .with_debug(DebugLevel::Trace)
            .with_debug_subsystems(SubsystemSet::parse("INIT,NET").unwrap())
            .with_debug_file(file.to_str().unwrap());
        let printer = Printer::new(&config).unwrap().unwrap();
        tracing::subscriber::with_default(printer, || {
            let rank = Rank::new(7);
            info!(Init @ rank, "a {}", 1);
            info!(Coll @ rank, "unseen");
            trace!(Net, "b {rank}");
            warn!(Coll @ rank, "c");
        });
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].ends_with(" [7] RSCCL INFO a 1"), "{text}");
        assert!(lines[1].contains(" [-] ") && lines[1].ends_with(" RSCCL TRACE b 7"), "{text}");
        assert!(lines[2].is_empty() && lines[3].ends_with(" RSCCL WARN c"), "{text}");
        assert!(lines[3].contains(&format!(" [7] {}:", file!())), "{text}");
    }
}
