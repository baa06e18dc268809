//! The selection of events that become lines, and their format.

use std::fmt;
use std::time::Instant;

use crate::config::{Config, DebugLevel, DebugLevels, Subsystem, SubsystemSet};
use crate::sys::{clock, host};

use super::Site;
use super::line::{Identity, Line, print_time};
use super::redirect::{self, LogLine};
use super::sink::Sink;

/// Prints the library's events in NCCL's line format.
#[derive(Debug)]
pub(super) struct Printer {
    level: DebugLevel,
    subsystems: SubsystemSet,
    time_format: String,
    time_levels: DebugLevels,
    identity: Identity,
    began: Instant,
    sink: Sink,
}

impl Printer {
    /// The printer that `config` asks for, and why its file is not used; `None` if `NCCL_DEBUG` is not set.
    pub(super) fn new(config: &Config) -> Option<(Printer, Option<String>)> {
        let level = config.debug?;
        let name = host::hostname().unwrap_or_else(|_| "-".to_owned());
        // As in NCCL, without the domain.
        let host = name.split('.').next().unwrap_or_default().to_owned();
        let identity = Identity { host, process: host::process_id() };
        let (sink, mistake) = Sink::open(config.debug_file.as_deref(), &identity);
        let printer = Printer {
            level,
            subsystems: config.debug_subsystems,
            time_format: config.debug_time_format.clone(),
            time_levels: config.debug_time_levels,
            identity,
            began: clock::now(),
            sink,
        };
        Some((printer, mistake))
    }

    /// The most detailed level that is printed.
    pub(super) fn level(&self) -> DebugLevel {
        self.level
    }

    /// Whether calls are printed.
    pub(super) fn hears_calls(&self) -> bool {
        let lines = [
            (DebugLevel::Info, Subsystem::Coll),
            (DebugLevel::Info, Subsystem::Tuning),
            (DebugLevel::Trace, Subsystem::Call),
        ];
        lines.into_iter().any(|(level, subsystem)| self.passes(level, subsystem))
    }

    /// Prints the line of an event, if the level and the subsystem are selected.
    pub(super) fn print(&self, site: &Site, rank: Option<u32>, text: fmt::Arguments<'_>) {
        if !self.passes(site.level, site.subsystem) {
            return;
        }
        let text = text.to_string();
        let time = match self.time_levels.contains(site.level) {
            true => print_time(host::wall_time(), &self.time_format),
            false => String::new(),
        };
        let line = Line {
            level: site.level,
            is_call: site.subsystem == Subsystem::Call,
            time: &time,
            thread: host::thread_id(),
            rank,
            place: (site.file, site.line),
            elapsed: clock::now().saturating_duration_since(self.began),
            text: &text,
        };
        let printed = line.print(&self.identity);
        if !redirect::take(LogLine { level: site.level, rank, text: &text, printed: &printed }) {
            self.sink.write(&printed);
        }
    }

    /// Warnings and the version are printed for every subsystem, as in NCCL.
    fn passes(&self, level: DebugLevel, subsystem: Subsystem) -> bool {
        let wanted = match level {
            DebugLevel::Version | DebugLevel::Warn => true,
            DebugLevel::Info | DebugLevel::Trace => self.subsystems.contains(subsystem),
        };
        wanted && level <= self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printer(level: DebugLevel, subsystems: &str) -> Printer {
        let set = SubsystemSet::parse(subsystems).unwrap();
        Printer::new(&Config::default().with_debug(level).with_debug_subsystems(set)).unwrap().0
    }

    #[test]
    fn levels_and_subsystems_select() {
        use DebugLevel::{Info, Trace, Version, Warn};
        use Subsystem::{Call, Coll, Init, Net};
        let info = printer(Info, "INIT");
        assert!(info.passes(Info, Init) && !info.passes(Info, Net) && info.passes(Warn, Net));
        assert!(!info.passes(Trace, Init) && info.passes(Version, Init));
        assert!(!info.hears_calls() && !printer(Info, "CALL").hears_calls());
        assert!(printer(Info, "COLL").hears_calls() && printer(Trace, "CALL").hears_calls());
        let all = printer(Trace, "ALL");
        assert!(all.passes(Trace, Call) && all.passes(Info, Coll));
        let version = printer(Version, "ALL");
        assert!(!version.passes(Warn, Init) && version.passes(Version, Init));
    }

    #[test]
    fn without_debug_there_is_no_printer() {
        assert!(Printer::new(&Config::default()).is_none());
    }
}
