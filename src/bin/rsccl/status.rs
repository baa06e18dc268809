//! `rsccl status`: what running jobs do, and who holds them up; read from outside, without a word of theirs.

mod explain;
mod find;
mod ranks;
mod screen;
mod verdict;

use std::fs;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rsccl::internals::session::page_view::DOCUMENT_VERSION;
use rsccl::internals::sys::{poller, rank_page, terminal};
use rsccl::{Error, Result};
use serde_json::{Value, json};

use self::ranks::World;
use self::verdict::Finding;
use crate::files::{self, Limit};
use crate::print;

/// What running jobs of this user do on this host, and who holds them up.
///
/// Nothing is asked of the processes: they may run, be stopped, loop or hang. Only processes of this user can be looked
/// at, and none that has made itself undumpable (`PR_SET_DUMPABLE`), which is said of those that others name as ranks.
///
/// Exit codes: 0 all goes on, 1 an error, 2 a wrong command line, 3 a job is held up or has failed, 4 no rank found.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// Only the jobs of these processes
    #[arg(value_name = "PID")]
    pids: Vec<u64>,
    /// Print JSON: what `--merge` reads of every host, with `verdicts`
    #[arg(long)]
    json: bool,
    /// Show it again and again, every so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", require_equals = true)]
    #[arg(conflicts_with_all = ["json", "merge", "record", "explain"])]
    watch: Option<f64>,
    /// Look at no process here, but at what `rsccl status --json` has printed on all hosts
    #[arg(long, value_name = "FILES", num_args = 1.., conflicts_with_all = ["record", "explain"])]
    merge: Vec<PathBuf>,
    /// Write what is known of each process, with its latest collectives, to files in this folder
    #[arg(long, value_name = "DIR", conflicts_with = "explain")]
    record: Option<PathBuf>,
    /// Say where the ranks of the records in this folder first differ
    #[arg(long, value_name = "DIR")]
    explain: Option<PathBuf>,
    /// How many seconds a wait lasts before it counts as held up
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    late: f64,
    /// Show too how much memory each rank holds, and what went through its connections
    #[arg(long)]
    details: bool,
    /// The most rows of ranks for each job
    #[arg(long, value_name = "COUNT", default_value = "64", value_parser = rows)]
    rows: usize,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(folder) = &arguments.explain {
        return explain(folder);
    }
    if let Some(folder) = &arguments.record {
        return record(arguments, folder);
    }
    if let Some(seconds) = arguments.watch {
        return watch(arguments, seconds);
    }
    let documents = match &arguments.merge[..] {
        [] => vec![document(arguments)],
        files => files.iter().map(|file| documents_of(file)).collect::<Result<Vec<_>>>()?.concat(),
    };
    let world = world_of(&documents)?;
    let findings = verdict::findings(&world, arguments.late);
    let text = match arguments.json {
        true => format!("{:#}\n", as_json(documents, &findings)),
        false => shown(&world, &findings, arguments),
    };
    print::out("the status", &text)?;
    Ok(code(&world, &findings))
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=MOST_SECONDS).contains(number));
    number.ok_or(format!("allowed: seconds from 0 to {MOST_SECONDS}"))
}

fn rows(text: &str) -> std::result::Result<usize, String> {
    text.parse::<usize>().ok().filter(|count| *count > 0).ok_or("allowed: a whole number from 1".to_owned())
}

/// What is found here, of the jobs that are asked for.
fn document(arguments: &Arguments) -> Value {
    let mut document = find::document(rank_page::LABELS);
    find::only_jobs_of(&mut document, &arguments.pids);
    document
}

fn shown(world: &World, findings: &[Finding], arguments: &Arguments) -> String {
    if !world.processes.is_empty() {
        return screen::text(world, findings, (arguments.rows, arguments.details));
    }
    let mut text = no_rank(arguments);
    if !world.closed.is_empty() {
        let closed: Vec<String> =
            world.closed.iter().take(16).map(|(_, pid, name)| format!("{pid} ({name})")).collect();
        text.push_str(&format!("Not dumpable, so that nobody can look at them: {}.\n", closed.join(", ")));
    }
    text
}

/// That there is no rank; where processes were named, which ones there are.
fn no_rank(arguments: &Arguments) -> String {
    let asked = if arguments.merge.is_empty() { &arguments.pids[..] } else { &[] };
    let all = if asked.is_empty() { Value::Null } else { find::document(1) };
    let with_ranks = all["processes"].as_array().map_or(&[][..], Vec::as_slice);
    let in_words = |pids: &[u64]| pids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let has_ranks = |process: &&Value| process["ranks"].as_array().is_some_and(|ranks| !ranks.is_empty());
    let others: Vec<u64> = with_ranks.iter().filter(has_ranks).filter_map(|process| process["pid"].as_u64()).collect();
    match (asked, &others[..]) {
        (_, []) => "No process of this user here has a rank of rsccl.\n".to_owned(),
        (asked, others) => {
            let (word, asked) = (if asked.len() == 1 { "process" } else { "processes" }, in_words(asked));
            let others = in_words(others);
            format!("This user sees no rank of rsccl in {word} {asked}; processes with ranks: {others}.\n")
        }
    }
}

fn code(world: &World, findings: &[Finding]) -> ExitCode {
    if !findings.is_empty() {
        return ExitCode::from(EXIT_HELD_UP);
    }
    if world.processes.is_empty() { ExitCode::from(EXIT_NOBODY) } else { ExitCode::SUCCESS }
}

/// One document as it is; several in a list, each with its own host.
fn as_json(mut documents: Vec<Value>, findings: &[Finding]) -> Value {
    let verdicts: Vec<Value> = findings.iter().map(Finding::as_json).collect();
    if documents.len() == 1
        && let Some(mut document) = documents.pop()
    {
        document["verdicts"] = json!(verdicts);
        return document;
    }
    json!({ "documents": documents, "verdicts": verdicts })
}

fn world_of(documents: &[Value]) -> Result<World> {
    let mut world = World::default();
    for document in documents {
        world.add(document).map_err(Error::invalid_argument)?;
    }
    Ok(world)
}

/// The documents of a file, which may hold those of several hosts, one behind the other.
///
/// # Errors
/// With the file's name: it cannot be read, or holds something else, or a rank with numbers that no rank has.
fn documents_of(file: &Path) -> Result<Vec<Value>> {
    let text = files::read(file, LIMIT)?;
    let mut documents = Vec::new();
    for document in serde_json::Deserializer::from_slice(&text).into_iter::<Value>() {
        let wrong = |error| Error::invalid_argument(format!("{} is no whole JSON: {error}", file.display()));
        let document = document.map_err(wrong)?;
        match document["documents"].as_array() {
            Some(several) => documents.extend(several.iter().cloned()),
            None => documents.push(document),
        }
    }
    for document in &documents {
        ranks::check(document).map_err(|why| Error::invalid_argument(format!("{}: {why}", file.display())))?;
    }
    Ok(documents)
}

fn watch(arguments: &Arguments, seconds: f64) -> Result<ExitCode> {
    let is_fit = (LEAST_PAUSE.as_secs_f64()..=MOST_SECONDS).contains(&seconds);
    let Some(pause) = is_fit.then(|| Duration::from_secs_f64(seconds)) else {
        let least = LEAST_PAUSE.as_secs_f64();
        return Err(Error::invalid_argument(format!("--watch={seconds}: allowed: {least} to {MOST_SECONDS} seconds")));
    };
    let is_screen = std::io::stdout().is_terminal();
    loop {
        let world = world_of(&[document(arguments)])?;
        let findings = verdict::findings(&world, arguments.late);
        let text = shown(&world, &findings, arguments);
        let frame = if is_screen {
            let size = terminal::size(std::io::stdout().as_fd()).unwrap_or(USUAL_SCREEN);
            // From the top, each line to its end, and what stood below.
            format!("\x1b[H{}\x1b[J", screen::fitted(&text, size).replace('\n', "\x1b[K\n"))
        } else {
            format!("{text}\n")
        };
        print::out("the status", &frame)?;
        poller::pause(pause);
    }
}

/// Writes a file for each process.
fn record(arguments: &Arguments, folder: &Path) -> Result<ExitCode> {
    let document = document(arguments);
    let named = |error| Error::system(format!("writing to {}", folder.display()), error);
    fs::create_dir_all(folder).map_err(named)?;
    let host = document["host"].as_str().unwrap_or_default().to_owned();
    let processes = document["processes"].as_array().cloned().unwrap_or_default();
    for process in &processes {
        let pid = process["pid"].as_u64().unwrap_or(0);
        let safe: String = host.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '-' }).collect();
        let path = folder.join(format!("rsccl-{safe}-{pid}.json"));
        let one =
            json!({ "rsccl_status": DOCUMENT_VERSION, "host": host, "reason": "asked for", "processes": [process] });
        fs::write(path, format!("{one:#}\n")).map_err(named)?;
    }
    let text = format!("{} records in {}\n", processes.len(), folder.display());
    print::out("what was done", &text)?;
    Ok(if processes.is_empty() { ExitCode::from(EXIT_NOBODY) } else { ExitCode::SUCCESS })
}

fn explain(folder: &Path) -> Result<ExitCode> {
    let named = |error| Error::system(format!("reading {}", folder.display()), error);
    let entries = fs::read_dir(folder).map_err(named)?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let (mut documents, mut left_out) = (Vec::new(), None);
    for file in &files {
        match documents_of(file) {
            Ok(found) => documents.extend(found),
            // One that a full disk or a killed process has cut must not hide what the others say.
            Err(error) => {
                print::complain(&format!("rsccl: {}; it is left out", error.message()));
                left_out = Some(error);
            }
        }
    }
    let world = world_of(&documents)?;
    if world.ranks.is_empty() {
        if let Some(error) = left_out {
            return Err(error);
        }
        print::out("the explanation", "There are no records of ranks in this folder.\n")?;
        return Ok(ExitCode::from(EXIT_NOBODY));
    }
    let sentences = explain::sentences(&world);
    let text = match &sentences[..] {
        [] if left_out.is_some() => "The ranks do not differ in the records that can be read.\n".to_owned(),
        [] => "The ranks do not differ, as far as their records go.\n".to_owned(),
        sentences => sentences.join("\n") + "\n",
    };
    print::out("the explanation", &text)?;
    Ok(match (sentences.is_empty(), left_out) {
        (false, _) => ExitCode::from(EXIT_HELD_UP),
        (true, None) => ExitCode::SUCCESS,
        (true, Some(_)) => ExitCode::FAILURE,
    })
}

/// A job is held up, or has failed; or records differ.
const EXIT_HELD_UP: u8 = 3;
/// There is no rank.
const EXIT_NOBODY: u8 = 4;
/// Columns and rows of a terminal that does not say.
const USUAL_SCREEN: (usize, usize) = (80, 24);
/// Of a file of documents.
const LIMIT: Limit = Limit { bytes: 1 << 30, advice: "it is no document of `rsccl status --json`" };
/// Of what is asked for in seconds: a day.
const MOST_SECONDS: f64 = 86_400.0;
/// Between two pictures.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
