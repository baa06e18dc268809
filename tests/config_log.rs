//! The log as a program gets it: the first configuration of a process chooses its lines, so this file has one test.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::sync::{Arc, Mutex};

use rsccl::config::{Config, Environment};
use rsccl::{ReduceOp, local};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A subscriber like that of most programs: it takes all events at INFO and above.
struct Usual(Arc<Mutex<Vec<String>>>);

impl Subscriber for Usual {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!("{} {}", event.metadata().level(), event.metadata().target()));
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

fn work(config: &Config, calls: u32) {
    local::run_with(2, config, |comm| {
        let mut sum = [comm.rank()];
        (0..calls).try_for_each(|_| comm.all_reduce_in_place(&mut sum, ReduceOp::Max))?;
        comm.finalize()
    })
    .unwrap();
}

#[test]
fn nccls_lines_come_whatever_subscriber_the_program_has_or_installs_later() {
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("log.%h.%p");
    let resolve = |file: &str| {
        let variables = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,COLL"), ("NCCL_DEBUG_FILE", file)];
        Config::default().resolve_in(&Environment::of(variables)).unwrap()
    };
    let config = resolve(pattern.to_str().unwrap());
    work(&config, 3);
    let heard = Arc::new(Mutex::new(Vec::new()));
    // What `tracing_subscriber::fmt::init()` does, which panics where this is an error.
    tracing::subscriber::set_global_default(Usual(Arc::clone(&heard))).expect("rsccl has installed no subscriber");
    work(&config, 5);

    let host = rsccl::internals::sys::host::hostname().unwrap();
    let host = host.split('.').next().unwrap();
    let process = std::process::id();
    let text = std::fs::read_to_string(folder.path().join(format!("log.{host}.{process}"))).unwrap();
    let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
    assert_eq!(text.lines().filter(|line| **line == *"RSCCL version 0.1.0").count(), 1, "{text}");
    for rank in 0..2 {
        let count = |part: &str| count(&format!("[{rank}] RSCCL INFO {part}"));
        assert_eq!(count(&format!("local rank {rank} nranks 2 - Init START")), 2, "{text}");
        assert_eq!(count("local comm "), 2, "{text}");
        assert_eq!(count("AllReduce: opCount "), 3 + 5, "{text}");
    }
    assert_eq!((count(" - Init COMPLETE"), count(" - Destroy COMPLETE")), (4, 4), "{text}");

    let heard = heard.lock().unwrap();
    let count =
        |part: &str| heard.iter().filter(|line| line.starts_with("INFO rsccl::") && line.contains(part)).count();
    assert_eq!((count("Init START"), count("Init COMPLETE"), count("Destroy COMPLETE")), (2, 2, 2), "{heard:?}");
    assert_eq!(count("rank=1"), 4, "start, end, timings, farewell: {heard:?}");
    assert_eq!(heard.len(), 2 * 4, "no line for each call: {heard:?}");
}
