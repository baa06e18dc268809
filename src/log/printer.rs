//! The subscriber: which events are printed.

use std::fmt::{self, Write};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::config::{Config, DebugLevel, DebugLevels, Subsystem, SubsystemSet};
use crate::error::Result;
use crate::sys::{clock, host};

use super::line::{Identity, Line, print_time};
use super::redirect::{self, LogLine};
use super::sink::Sink;

/// A `tracing` subscriber that prints the library's events in NCCL's line format, and no other crate's.
#[derive(Debug)]
pub struct Printer {
    level: DebugLevel,
    subsystems: SubsystemSet,
    time_format: String,
    time_levels: DebugLevels,
    identity: Identity,
    began: Instant,
    sink: Sink,
}

impl Printer {
    /// The printer that `config` asks for; `None` where `NCCL_DEBUG` is not set.
    ///
    /// # Errors
    /// Where `NCCL_DEBUG_FILE` cannot be opened; the error names the variable and the path.
    pub fn new(config: &Config) -> Result<Option<Printer>> {
        let Some(level) = config.debug else { return Ok(None) };
        let name = host::hostname()?;
        // As in NCCL, without the domain.
        let host = name.split('.').next().unwrap_or_default().to_owned();
        let identity = Identity { host, process: host::process_id() };
        let sink = Sink::open(config.debug_file.as_deref(), &identity)?;
        Ok(Some(Printer {
            level,
            subsystems: config.debug_subsystems,
            time_format: config.debug_time_format.clone(),
            time_levels: config.debug_time_levels,
            identity,
            began: clock::now(),
            sink,
        }))
    }

    /// Warnings pass whatever their subsystem, as in NCCL.
    fn passes(&self, target: &str, level: DebugLevel) -> bool {
        let known = Subsystem::from_target(target);
        let ours = target == CRATE || target.strip_prefix(CRATE).is_some_and(|rest| rest.starts_with("::"));
        let wanted = match level {
            DebugLevel::Version | DebugLevel::Warn => true,
            DebugLevel::Info | DebugLevel::Trace => {
                known.map_or(self.subsystems == SubsystemSet::ALL, |known| self.subsystems.contains(known))
            }
        };
        ours && wanted && level <= self.level
    }
}

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.passes(metadata.target(), debug_level(metadata))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // The line of the version is an event of level INFO, so nothing below INFO would do.
        Some(if self.level == DebugLevel::Trace { LevelFilter::TRACE } else { LevelFilter::INFO })
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let level = debug_level(metadata);
        let mut fields = Fields::default();
        event.record(&mut fields);
        let time = match self.time_levels.contains(level) {
            true => print_time(host::wall_time(), &self.time_format),
            false => String::new(),
        };
        let line = Line {
            level,
            time: &time,
            thread: host::thread_id(),
            rank: fields.rank,
            file: metadata.file(),
            line: metadata.line(),
            elapsed: clock::now().saturating_duration_since(self.began),
            text: &fields.text,
        };
        let printed = line.print(&self.identity);
        let rank = fields.rank.and_then(|rank| u32::try_from(rank).ok());
        if !redirect::take(LogLine { level, rank, text: &fields.text, printed: &printed }) {
            self.sink.write(&printed);
        }
    }

    // The library opens no spans, and those of others are not enabled.
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

fn debug_level(metadata: &Metadata<'_>) -> DebugLevel {
    if metadata.target() == VERSION_TARGET {
        return DebugLevel::Version;
    }
    match *metadata.level() {
        Level::ERROR | Level::WARN => DebugLevel::Warn,
        Level::INFO => DebugLevel::Info,
        _ => DebugLevel::Trace,
    }
}

/// The rank, the message, and other fields as ` name=value` behind it.
#[derive(Default)]
struct Fields {
    rank: Option<u64>,
    text: String,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "rank" => self.rank = Some(value),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            // The message comes first, whatever the order of the fields.
            "message" => {
                self.text.insert_str(0, &format!("{value:?}"));
                Ok(())
            }
            name => write!(self.text, " {name}={value:?}"),
        };
        debug_assert!(written.is_ok(), "a String takes everything");
    }
}

/// The target of the line with the version, which every level prints.
pub(super) const VERSION_TARGET: &str = "rsccl::version";
const CRATE: &str = "rsccl";

#[cfg(test)]
mod tests {
    use super::*;

    fn printer(level: DebugLevel, subsystems: &str) -> Printer {
        let set = SubsystemSet::parse(subsystems).unwrap();
        Printer::new(&Config::default().with_debug(level).with_debug_subsystems(set)).unwrap().unwrap()
    }

    #[test]
    fn levels_and_subsystems_select() {
        use DebugLevel::{Info, Trace, Version, Warn};
        let info = printer(Info, "INIT");
        assert!(info.passes("rsccl::init", Info) && info.passes("rsccl::init::deep", Info));
        assert!(!info.passes("rsccl::net", Info) && info.passes("rsccl::net", Warn));
        assert!(!info.passes("rsccl::init", Trace) && info.passes(VERSION_TARGET, Version));
        assert!(!info.passes("rsccl::comm", Info) && !info.passes("rsccltwo::init", Warn));
        assert!(!info.passes("other::init", Warn) && info.passes("rsccl", Warn));
        let all = printer(Trace, "ALL");
        assert!(all.passes("rsccl::comm", Trace));
        let version = printer(Version, "ALL");
        assert!(!version.passes("rsccl::init", Warn) && version.passes(VERSION_TARGET, Version));
        assert_eq!(version.max_level_hint(), Some(LevelFilter::INFO));
        assert_eq!(all.max_level_hint(), Some(LevelFilter::TRACE));
    }

    #[test]
    fn without_debug_there_is_no_printer() {
        assert!(Printer::new(&Config::default()).unwrap().is_none());
    }
}
