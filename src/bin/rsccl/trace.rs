//! `rsccl trace`: one trace of those that the processes of a job have written.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rsccl::internals::session::trace_text;
use rsccl::{Error, Result};
use serde_json::Value;

use crate::files::{self, Limit};
use crate::print;

/// Traces of RSCCL_TRACE.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    work: Work,
}

#[derive(Debug, clap::Subcommand)]
enum Work {
    /// Puts the traces of several processes into one file, in the order of time
    Merge(Merge),
}

#[derive(Debug, clap::Args)]
struct Merge {
    /// What the processes have written; a file that a killed process has left is read as far as it goes
    #[arg(value_name = "FILES", num_args = 1.., required = true)]
    files: Vec<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode> {
    let Work::Merge(merge) = &arguments.work;
    let mut all = Merged::default();
    let (mut seen, mut count) = (HashSet::new(), 0);
    if files::identity(&merge.output)
        .is_some_and(|output| merge.files.iter().any(|path| files::identity(path) == Some(output)))
    {
        let output = merge.output.display();
        return Err(Error::invalid_argument(format!("--output {output} is one of the traces: name another file")));
    }
    for path in &merge.files {
        if files::identity(path).is_some_and(|known| !seen.insert(known)) {
            print::complain(&format!("{}: it was named before: its events count once", path.display()));
            continue;
        }
        let (events, lost) = read_whole(path)?;
        if lost > 0 {
            print::complain(&format!("{}: its end is cut: {lost} events are lost", path.display()));
        }
        all.add(path, events);
        count += 1;
    }
    let (ranks, events) = (all.owners.len(), all.events.len());
    let text = all.into_text();
    fs::write(&merge.output, text)
        .map_err(|error| Error::system(format!("writing {}", merge.output.display()), error))?;
    let output = merge.output.display();
    print::out("what was done", &format!("{count} files, {ranks} ranks, {events} events in {output}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Events of several files.
#[derive(Debug, Default)]
struct Merged {
    /// Where it stands, and the event.
    events: Vec<(f64, Value)>,
    /// Whose each number of a process is: host and process.
    owners: BTreeMap<u64, (String, u64)>,
}

impl Merged {
    /// Adds a file's events. Two processes of one rank, as of two jobs, get numbers of their own.
    fn add(&mut self, path: &Path, mut events: Vec<Value>) {
        let named = events.iter().filter(|event| event["name"] == "process_name");
        let owners: Vec<(u64, (String, u64))> = named
            .filter_map(|event| {
                let arguments = &event["args"];
                let host = arguments["host"].as_str().unwrap_or_default().to_owned();
                Some((event["pid"].as_u64()?, (host, arguments["process"].as_u64().unwrap_or(0))))
            })
            .collect();
        let mut renamed = BTreeMap::new();
        for (number, owner) in owners {
            let mut free = number;
            while self.owners.get(&free).is_some_and(|known| *known != owner) {
                let Some(next) = free.checked_add(OTHER_JOB) else { break };
                free = next;
            }
            if free != number {
                let text = format!(
                    "{}: rank {} of another job: shown as process {free}",
                    path.display(),
                    number.saturating_sub(1)
                );
                print::complain(&text);
            }
            self.owners.insert(free, owner);
            renamed.insert(number, free);
        }
        for event in &mut events {
            if let Some(free) = event["pid"].as_u64().and_then(|number| renamed.get(&number)) {
                event["pid"] = (*free).into();
            }
        }
        self.events.extend(events.into_iter().map(|event| (event["ts"].as_f64().unwrap_or(0.0), event)));
    }

    fn into_text(mut self) -> String {
        // Names first, then by time; of one time the longer slice comes first, as it holds the other.
        let length = |event: &Value| event["dur"].as_f64().unwrap_or(0.0);
        self.events.sort_by(|(one, event), (other, with)| {
            one.total_cmp(other).then_with(|| length(with).total_cmp(&length(event)))
        });
        let lines: Vec<String> = self.events.iter().map(|(_, event)| event.to_string()).collect();
        format!("[\n{}\n]\n", lines.join(",\n"))
    }
}

/// The events of a file, and how many were cut off. Each stands on a line of its own; other files are read as a whole.
fn read(path: &Path) -> Result<(Vec<Value>, usize)> {
    parse(path, &files::read(path, LIMIT)?)
}

/// The events of a trace, with those that its process has left as records beside it, and how many are lost.
fn read_whole(path: &Path) -> Result<(Vec<Value>, usize)> {
    let named = |error| Error::system(format!("reading what its process has left beside {}", path.display()), error);
    let left = fs::metadata(path).and_then(|about| trace_text::left(path, about.len())).map_err(named)?;
    let Some(left) = left else { return read(path) };
    files::check_length(path, left.whole_bytes.saturating_add(left.text.len() as u64), LIMIT)?;
    let mut bytes = files::read(path, LIMIT)?;
    // What the process wrote last may be cut, and is among the records.
    bytes.truncate(usize::try_from(left.whole_bytes).unwrap_or(usize::MAX));
    bytes.extend_from_slice(b"\n]\n");
    let (mut events, lost) = parse(path, &bytes)?;
    let (more, _) = parse(path, left.text.as_bytes())?;
    let (path, count) = (path.display(), more.len());
    print::complain(&format!("{path}: its process ended before its text was whole: {count} events are of its records"));
    if left.cut_bytes > 0 {
        print::complain(&format!("{path}: the last {} bytes of its records are cut", left.cut_bytes));
    }
    events.extend(more);
    Ok((events, lost))
}

fn parse(path: &Path, bytes: &[u8]) -> Result<(Vec<Value>, usize)> {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(events) = serde_json::from_str::<Vec<Value>>(&text) {
        return Ok((events, 0));
    }
    let strange = || Error::invalid_argument(format!("{} is no trace of RSCCL_TRACE", path.display()));
    let mut lines = text.lines();
    if lines.next().map(str::trim) != Some("[") {
        return Err(strange());
    }
    let mut events = Vec::new();
    let (mut lost, mut is_cut) = (0, false);
    for line in lines.map(|line| line.trim().trim_end_matches(',')).filter(|line| !matches!(*line, "" | "]")) {
        match serde_json::from_str::<Value>(line) {
            Ok(event) if event.is_object() && !is_cut => events.push(event),
            // Behind the first that is cut nothing is whole.
            Ok(_) | Err(_) => (lost, is_cut) = (lost + 1, true),
        }
    }
    Ok((events, lost))
}

/// Between the numbers of processes of two jobs: more than ranks.
const OTHER_JOB: u64 = 1 << 20;
/// Of a trace: beyond it the memory of a machine.
const LIMIT: Limit = Limit { bytes: 8 << 30, advice: "merge fewer files at a time, or record a shorter run" };
