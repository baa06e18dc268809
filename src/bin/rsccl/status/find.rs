//! The processes of this host that have ranks, found without their help: by the memory that they hold under the name of
//! the library's pages, in `/proc/PID/fd`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rsccl::internals::session::page_view::{DOCUMENT_VERSION, ProcessView, Unread};
use rsccl::internals::sys::foreign_pages::ForeignPages;
use rsccl::internals::sys::{clock, host, rank_page};
use serde_json::{Value, json};

use super::ranks::World;
use super::screen;

/// What `/proc` says of a process that this user may look at.
struct Process {
    number: u64,
    /// Its number in its own namespace.
    inside: u64,
    parent: u64,
    /// When it began, in ticks since the boot.
    started: u64,
    name: String,
    /// The letter of its state, or of a thread of it that runs.
    state: char,
    /// `Name:` lines of its status that are numbers of KiB.
    memory: Value,
}

/// All that is found of this host, as a document: what `--json` prints and `--merge` reads. `latest`: how many of each
/// rank's latest collectives it has.
pub(crate) fn document(latest: usize) -> Value {
    let me = host::user_id();
    let (mut found, mut closed) = (Vec::new(), BTreeMap::new());
    let all: Vec<Process> = numbers(Path::new("/proc")).filter_map(|number| process(number, me)).collect();
    for process in &all {
        match pages_of(process, latest) {
            Looked::Ranks(document) => found.push(document),
            Looked::Closed => drop(closed.insert(process.number, process.name.clone())),
            Looked::OtherVersion => {
                let what = "has pages of another version of rsccl";
                found.push(described(process, json!({ "process": process.inside, "ranks": [], "problem": what })));
            }
            Looked::Nothing => {}
        }
    }
    let others = missing(&found, &all, &closed);
    let beside = beside(&found, &all);
    let closed: Vec<Value> = closed.iter().map(|(number, name)| json!({ "pid": number, "command": name })).collect();
    json!({
        "rsccl_status": DOCUMENT_VERSION,
        "host": host::hostname().unwrap_or_default(),
        "processes": found,
        "missing": others,
        "beside": beside,
        "not_dumpable": closed,
    })
}

/// Leaves in a document what belongs to the jobs of the processes `wanted`; of none, everything.
pub(crate) fn only_jobs_of(document: &mut Value, wanted: &[u64]) {
    let mut world = World::default();
    if wanted.is_empty() || world.add(document).is_err() {
        return;
    }
    let is_wanted = |process: &usize| wanted.contains(&world.processes[*process].pid);
    let jobs = screen::jobs(&world);
    let kept: BTreeSet<usize> = jobs.into_iter().filter(|job| job.iter().any(is_wanted)).flatten().collect();
    if let Some(processes) = document["processes"].as_array_mut() {
        let mut place = 0;
        processes.retain(|_| {
            place += 1;
            kept.contains(&(place - 1))
        });
    }
}

enum Looked {
    Ranks(Value),
    /// It has no rank, or has gone.
    Nothing,
    /// Of this user, and not to be looked at.
    Closed,
    OtherVersion,
}

fn pages_of(process: &Process, latest: usize) -> Looked {
    if process.state == 'Z' {
        return Looked::Nothing;
    }
    let folder = format!("/proc/{}/fd", process.number);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Looked::Closed,
        // It has ended.
        Err(_) => return Looked::Nothing,
    };
    let name = format!("/memfd:{} (deleted)", rank_page::PAGES_NAME.to_string_lossy());
    let is_pages = |path: &PathBuf| fs::read_link(path).is_ok_and(|target| target.as_os_str() == name.as_str());
    let mut seen = Looked::Nothing;
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()).filter(is_pages) {
        let Ok(pages) = ForeignPages::open(&path) else { continue };
        match ProcessView::read(&|word| pages.word(word), clock::monotonic_nanoseconds()) {
            // A forked child has its parent's pages open.
            Ok(view) if view.process == process.inside => {
                if let Ok(document) = serde_json::from_str(&view.as_json(latest)) {
                    return Looked::Ranks(described(process, document));
                }
            }
            Err(Unread::OtherVersion) => seen = Looked::OtherVersion,
            Ok(_) | Err(Unread::Nothing) => {}
        }
    }
    seen
}

/// A process's document, with what `/proc` says of it.
fn described(process: &Process, mut document: Value) -> Value {
    document["pid"] = json!(process.number);
    document["parent"] = json!(process.parent);
    document["boot"] = json!(host::boot_id().unwrap_or_default());
    document["started"] = json!(process.started);
    let space = fs::read_link(format!("/proc/{}/ns/pid", process.number));
    document["pid_namespace"] = json!(space.map(|space| space.to_string_lossy().into_owned()).unwrap_or_default());
    document["command"] = json!(process.name);
    document["state"] = json!(state_name(process.state));
    document["memory_kib"] = process.memory.clone();
    document["mapped_kib"] = mapped(process.number);
    document["threads"] = json!(thread_names(process.number));
    document
}

/// Processes that ranks name as their peers and that have no page here: what became of them.
fn missing(found: &[Value], all: &[Process], closed: &BTreeMap<u64, String>) -> Vec<Value> {
    let known: BTreeSet<u64> = found.iter().filter_map(|process| process["pid"].as_u64()).collect();
    // Where a process has another number inside of its container, so have its peers.
    let outside = found.iter().filter(|process| process["pid"] == process["process"]);
    let ranks = outside.flat_map(|process| process["ranks"].as_array().into_iter().flatten());
    let named = ranks.flat_map(|rank| rank["processes"].as_array().into_iter().flatten());
    let named: BTreeSet<u64> = named.filter_map(|pair| pair[1].as_u64()).collect();
    let fate = |number: &u64| {
        let fate = match all.iter().find(|process| process.number == *number) {
            // Nobody has reaped it yet.
            Some(process) if process.state == 'Z' => "ended",
            _ if closed.contains_key(number) => "not dumpable",
            Some(_) => "without pages",
            None if Path::new(&format!("/proc/{number}")).exists() => "of another user",
            None => "ended",
        };
        json!({ "pid": number, "fate": fate })
    };
    named.difference(&known).map(fate).collect()
}

/// Processes without a rank that were started beside those that have some, by the same process and under the same name:
/// they may be ranks that have not begun.
fn beside(found: &[Value], all: &[Process]) -> Vec<Value> {
    let known: BTreeSet<u64> = found.iter().filter_map(|process| process["pid"].as_u64()).collect();
    let starts: BTreeSet<(u64, &str)> = found
        .iter()
        .filter_map(|process| Some((process["parent"].as_u64()?, process["command"].as_str()?)))
        .filter(|(parent, _)| *parent > 1)
        .collect();
    let is_beside = |process: &&Process| {
        !known.contains(&process.number) && process.state != 'Z' && starts.contains(&(process.parent, &*process.name))
    };
    let shown = |process: &Process| {
        let state = state_name(process.state);
        json!({ "pid": process.number, "parent": process.parent, "command": process.name, "state": state })
    };
    all.iter().filter(is_beside).map(shown).collect()
}

/// The numbers that are names in a folder.
fn numbers(folder: &Path) -> impl Iterator<Item = u64> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// What `/proc` says of a process, if it is one of this user's; root looks at all.
fn process(number: u64, me: u32) -> Option<Process> {
    let status = fs::read_to_string(format!("/proc/{number}/status")).ok()?;
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let user: u32 = line("Uid")?.split_whitespace().next()?.parse().ok()?;
    if me != 0 && user != me {
        return None;
    }
    let inside = line("NSpid").and_then(|numbers| numbers.split_whitespace().last()?.parse().ok()).unwrap_or(number);
    let kibibytes = |name: &str| line(name).and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    let memory = [("resident", "VmRSS"), ("shared", "RssShmem"), ("locked", "VmLck"), ("pinned", "VmPin")];
    let memory = memory.map(|(name, line)| (name.to_owned(), json!(kibibytes(line)))).into_iter().collect();
    let state = line("State").and_then(|state| state.chars().next()).unwrap_or('?');
    Some(Process {
        number,
        inside,
        started: started(number),
        parent: line("PPid").and_then(|parent| parent.parse().ok()).unwrap_or(0),
        name: line("Name").unwrap_or_default().to_owned(),
        state: if matches!(state, 'S' | 'D') && has_running_thread(number) { 'R' } else { state },
        memory: Value::Object(memory),
    })
}

/// What a process has mapped of the library's memory, its own and its peers', in KiB by kind.
fn mapped(number: u64) -> Value {
    let maps = fs::read_to_string(format!("/proc/{number}/maps")).unwrap_or_default();
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for line in maps.lines() {
        let Some((range, name)) = line.split_once(' ').zip(line.split_once("/memfd:rsccl-")) else { continue };
        let kind = name.1.split(' ').next().unwrap_or_default().to_owned();
        let address = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
        let bytes = range.0.split_once('-').map_or(0, |(from, to)| address(to).saturating_sub(address(from)));
        *kinds.entry(kind).or_default() += bytes >> 10;
    }
    json!(kinds)
}

/// When a process began, in ticks since the boot: with its number it is a process's name until the next boot.
fn started(number: u64) -> u64 {
    let text = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    // Behind the name, which may have any letters.
    let field = text.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(STARTED_AT)?.parse().ok());
    field.unwrap_or(0)
}

/// The place of the start in `/proc/PID/stat`, counted from the state.
const STARTED_AT: usize = 19;

/// Its first threads are looked at: enough for any that works.
fn has_running_thread(number: u64) -> bool {
    let folder = format!("/proc/{number}/task");
    let runs = |thread: u64| {
        let text = fs::read_to_string(format!("{folder}/{thread}/stat")).unwrap_or_default();
        text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
    };
    numbers(Path::new(&folder)).take(MOST_THREADS).any(runs)
}

fn thread_names(number: u64) -> Vec<String> {
    let folder = format!("/proc/{number}/task");
    let name = |thread| fs::read_to_string(format!("{folder}/{thread}/comm")).ok().map(|name| name.trim().to_owned());
    numbers(Path::new(&folder)).take(MOST_THREADS).filter_map(name).collect()
}

fn state_name(letter: char) -> &'static str {
    match letter {
        'R' => "running",
        'S' | 'I' => "sleeping",
        'D' => "in the kernel",
        'T' => "stopped",
        't' => "traced",
        'Z' | 'X' | 'x' => "ended",
        _ => "unknown",
    }
}

/// Threads of a process that are looked at.
const MOST_THREADS: usize = 256;
