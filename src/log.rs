//! The log: the lines that `NCCL_DEBUG` asks for, in NCCL's format, and the same events for `tracing`.
//!
//! Each event goes to two independent destinations:
//!
//! - If the user sets `NCCL_DEBUG`, the library writes NCCL's lines itself, whatever `tracing` subscriber the program
//!   has or installs later:
//!
//! ```text
//! node0:4711:4712 [2] RSCCL INFO Bootstrap: Using eth0:10.0.0.7<40213>
//!
//! [2026-01-31 12:00:00] node0:4711:4712 [2] src/comm/init.rs:71 RSCCL WARN rank 3 has not come
//! ```
//!
//!   that is: host, process, thread, rank (`-` if none is known yet), level, text; before a warning an empty line.
//! - A `tracing` event goes to the program's subscriber, if there is one: the subsystem is the target (`rsccl::net`),
//!   the rank a field. The library installs no subscriber. Warnings are WARN; the beginning and end of a communicator
//!   are INFO; connections and calls are DEBUG; the CALL lines and everything at NCCL's level TRACE are TRACE.
//!
//! An event without listeners costs two loads. Inner loops have no events.
//!
//! Inside the crate: `log::info!(Init, "text {value}")`, or with a rank `log::info!(Init @ rank, "text {value}")`.

mod event_text;
mod line;
mod printer;
mod redirect;
mod sink;
pub(crate) mod spans;
mod spool;
mod trace_file;

use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU8, Ordering};

use tracing::level_filters::LevelFilter;

use crate::config::{Config, DebugLevel, Note, Subsystem};
use crate::sync::primitive::statics::Mutex;
use crate::sys::fork::PerProcess;
use crate::sys::writing;

pub(crate) use event_text::LeftEvents;
pub(crate) use event_text::{lane_thread, left, microseconds};
use printer::Printer;
pub use redirect::{LogCallback, LogLine, redirect};

/// Starts to log as `config` says: the first configuration of the process that sets `NCCL_DEBUG` decides. Then logs the
/// remarks about the configuration, each one once in a process; their lines name the caller's place. Mistakes of
/// whoever runs the program stand on standard error too, from rank 0 or from a process that knows no `rank`. May be
/// called again.
///
/// No setting of the log ends a program: lines whose file cannot be opened go to standard output.
#[track_caller]
pub(crate) fn install(config: &Config, rank: Option<u32>) {
    let mut mistakes = Vec::new();
    if PRINTER.get().is_none()
        && let Some((printer, mistake)) = Printer::new(config)
    {
        mistakes.extend(mistake);
        // If two threads come at the same time, the second one's printer is dropped.
        let printer = PRINTER.get_or_init(|| printer);
        // Relaxed: a thread that sees these numbers early looks for the printer, and prints nothing if it is not there
        // yet.
        LOUDNESS.store(printer.level() as u8 + 1, Ordering::Relaxed);
        if printer.hears_calls() {
            hear_calls(HEARD_BY_PRINTER);
        }
    }
    mistakes.extend(silent_subsystems(config));
    for note in config.notes().iter().cloned().chain(mistakes.into_iter().map(Note::Mistake)) {
        match note {
            Note::Mistake(text) if rank.unwrap_or(0) == 0 => tell(&text),
            note => say_once(&note),
        }
    }
}

/// What is said where somebody asks, by name, for subsystems that no event has.
fn silent_subsystems(config: &Config) -> Option<String> {
    let asked = config.debug_subsystems;
    let silent = Subsystem::ALL.iter().filter(|subsystem| subsystem.is_silent() && asked.contains(**subsystem));
    let names: Vec<&str> = silent.map(|subsystem| subsystem.name()).collect();
    // More than half is what a list such as `^GRAPH` leaves, which names none of them.
    let all = Subsystem::ALL;
    let is_inverse = all.iter().filter(|one| asked.contains(**one)).count() > all.len() / 2;
    let is_asked = config.debug >= Some(DebugLevel::Info) && !is_inverse && !names.is_empty();
    is_asked.then(|| format!("NCCL_DEBUG_SUBSYS: nothing is ever logged under {}", names.join(", ")))
}

/// Logs the version, once in a process. Rank 0 calls this when an init begins, as in NCCL.
pub(crate) fn version() {
    if is_new(VERSION) {
        event!(Version / INFO, Init, "{VERSION}");
    }
}

const VERSION: &str = concat!("RSCCL version ", env!("CARGO_PKG_VERSION"));

/// Whether calls have a listener: their lines, the trace, or ranges of NVTX. Costs two loads, for calls that must cost
/// no more without one.
#[inline]
pub(crate) fn hears_calls() -> bool {
    // Relaxed: a call during the installation may lack its line.
    CALLS_HEARD_BY.load(Ordering::Relaxed) != 0 || LevelFilter::current() >= LevelFilter::DEBUG
}

/// Whether their lines have one.
pub(crate) fn has_lines_of_calls() -> bool {
    CALLS_HEARD_BY.load(Ordering::Relaxed) & HEARD_BY_PRINTER != 0 || LevelFilter::current() >= LevelFilter::DEBUG
}

/// Whether profilers have ranges of them.
pub(crate) fn shows_ranges() -> bool {
    CALLS_HEARD_BY.load(Ordering::Relaxed) & HEARD_BY_RANGES != 0
}

/// Calls have this listener from now on.
pub(crate) fn hear_calls(by: u8) {
    CALLS_HEARD_BY.fetch_or(by, Ordering::Relaxed);
}

/// The printer has lines for calls.
const HEARD_BY_PRINTER: u8 = 1;
/// The trace records them.
const HEARD_BY_TRACE: u8 = 2;
/// A profiler has ranges of them.
pub(crate) const HEARD_BY_RANGES: u8 = 4;

/// Prints a warning on standard error, whatever `NCCL_DEBUG` asks for: for a situation that makes all results wrong but
/// is not an error of a call, and for settings that have not the effect which the user expects. Each text is printed
/// once in a process.
#[track_caller]
pub(crate) fn tell(text: &str) {
    if is_new(text) {
        // If standard error cannot be written, nobody can be told.
        let line = format!("rsccl: warning: {text}\n");
        let _unread =
            writing::without_signal(|| std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
        event!(Warn / WARN, Init in Location::caller(), "{text}");
    }
}

/// The source location and subsystem of an event.
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

/// Whether anybody hears events of this level, for who has to do something before there is one.
pub(crate) fn is_heard(level: DebugLevel) -> bool {
    is_loud(level) || tracing::enabled!(tracing::Level::DEBUG)
}

/// Writes NCCL's line of an event, if `NCCL_DEBUG` asks for it.
#[cold]
pub(crate) fn write(site: &Site, rank: Option<u32>, text: fmt::Arguments<'_>) {
    if let Some(printer) = PRINTER.get() {
        printer.print(site, rank, text);
    }
}

/// Logs a remark about the configuration, once in a process, as an event of the caller's place.
#[track_caller]
pub(crate) fn say_once(note: &Note) {
    let text = match note {
        Note::Mistake(text) | Note::Warning(text) | Note::Information(text) => text,
    };
    if !is_new(text) {
        return;
    }
    match note {
        Note::Mistake(text) | Note::Warning(text) => event!(Warn / WARN, Env in Location::caller(), "{text}"),
        Note::Information(text) => event!(Info / INFO, Env in Location::caller(), "{text}"),
    }
}

/// Whether `text` is new; records it.
fn is_new(text: &str) -> bool {
    let mut said = SAID.get_or_init(Mutex::default).lock();
    said.len() < MAX_SAID && said.insert(text.to_owned())
}

/// Emits an event at a level of NCCL's and one of `tracing`: `event!(Info / DEBUG, Init @ rank, "text")`. Its place is
/// where it stands, or `Init in place`, the caller's for functions that log for others.
macro_rules! event {
    (! $nccl:ident / $level:ident, $subsystem:ident, ($rank:expr, $file:expr, $line:expr), $($text:tt)+) => {{
        let rank: Option<u32> = $rank;
        match ::core::format_args!($($text)+) {
            text => {
                if $crate::log::is_loud($crate::config::DebugLevel::$nccl) {
                    let site = $crate::log::Site {
                        level: $crate::config::DebugLevel::$nccl,
                        subsystem: $crate::config::Subsystem::$subsystem,
                        file: $file,
                        line: $line,
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
        $crate::log::event!(
            ! $nccl / $level,
            $subsystem,
            (Some($crate::types::Rank::get($rank)), ::core::file!(), ::core::line!()),
            $($text)+
        )
    };
    ($nccl:ident / $level:ident, $subsystem:ident in $place:expr, $($text:tt)+) => {{
        let place: &'static Location<'static> = $place;
        $crate::log::event!(! $nccl / $level, $subsystem, (None, place.file(), place.line()), $($text)+)
    }};
    ($nccl:ident / $level:ident, $subsystem:ident, $($text:tt)+) => {
        $crate::log::event!(! $nccl / $level, $subsystem, (None, ::core::file!(), ::core::line!()), $($text)+)
    };
}

/// The beginning and end of a communicator. `info!(Init @ rank, "text {value}")`, or without the rank if none is known.
macro_rules! info {
    ($($event:tt)+) => { $crate::log::event!(Info / INFO, $($event)+) };
}

/// Events at NCCL's level INFO that a program's subscriber should not get by default: connections, and every call.
macro_rules! detail {
    ($($event:tt)+) => { $crate::log::event!(Info / DEBUG, $($event)+) };
}

/// Warnings and errors. `warn!(Net @ rank, "text {value}")`.
macro_rules! warn_ {
    ($($event:tt)+) => { $crate::log::event!(Warn / WARN, $($event)+) };
}

/// Single steps. `trace!(Proxy @ rank, "text {value}")`.
macro_rules! trace {
    ($($event:tt)+) => { $crate::log::event!(Trace / TRACE, $($event)+) };
}

pub(crate) use {detail, event, info, trace, warn_ as warn};

/// The printer of NCCL's lines. Standard output and `NCCL_DEBUG_FILE` belong to the process, so the printer does too. A
/// forked child begins without: its lines have another process number, and perhaps a file of their own.
static PRINTER: PerProcess<Printer> = PerProcess::new();
/// One more than the level of [`PRINTER`]; 0 while there is none.
static LOUDNESS: AtomicU8 = AtomicU8::new(0);
/// Who hears of calls: bits such as [`HEARD_BY_PRINTER`].
static CALLS_HEARD_BY: AtomicU8 = AtomicU8::new(0);
/// The remarks that have been logged, and the version: a process with many communicators logs each once.
static SAID: PerProcess<Mutex<BTreeSet<String>>> = PerProcess::new();
/// The most remarks that are remembered; a process has a few.
const MAX_SAID: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SubsystemSet;

    #[test]
    fn only_subsystems_that_were_named_are_said_to_be_silent() {
        let silent = Subsystem::ALL.iter().find(|subsystem| subsystem.is_silent()).expect("there is one").name();
        let said = |subsystems: &str| {
            let asked = SubsystemSet::parse(subsystems).unwrap();
            silent_subsystems(&Config::default().with_debug(DebugLevel::Info).with_debug_subsystems(asked))
        };
        assert!(said(silent).unwrap().ends_with(silent));
        assert_eq!([said("ALL"), said("^GRAPH"), said("^INIT,NET"), said("INIT")], [const { None }; 4]);
    }
}
