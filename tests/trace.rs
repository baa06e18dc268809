//! The trace of `RSCCL_TRACE`: that of a job of four processes is held to the format that Chrome and Perfetto read; what
//! a killed process or a full disk leaves is whole.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rsccl::internals::sys::process::{Exit, Group, Signal, wait_ready};
use rsccl::{Communicator, ReduceOp, Result};
use serde_json::Value;
use tempfile::TempDir;

/// Tells this program that it is a rank, and which role it plays.
const ROLE: &str = "RSCCL_TEST_TRACE_ROLE";

#[test]
#[ignore = "a rank of the jobs of the other tests"]
fn rank() {
    #![expect(clippy::disallowed_methods, reason = "the role of a test's process is no configuration of the library")]
    if let Ok(role) = std::env::var(ROLE) {
        play(&role).expect("the role itself goes well");
    }
}

fn play(role: &str) -> Result<()> {
    if role == "full" {
        // As a disk that fills: longer files are an error.
        let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
        // SAFETY: the structure lives to the end of the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
    }
    let comm = Communicator::from_env()?;
    let calls = match role {
        "work" | "hosts" => 3,
        // Until it is killed.
        "flood" => u64::MAX,
        "exits" => 20_000,
        "rounds" => 0,
        _ => 5000,
    };
    for _ in 0..calls {
        comm.all_reduce_in_place(&mut [1.5f32; 2], ReduceOp::Sum)?;
    }
    if role == "killed" {
        let mut nothing = Vec::new();
        std::io::stdin().read_to_end(&mut nothing).unwrap();
    }
    if matches!(role, "work" | "hosts") {
        work(&comm)?;
    }
    if role == "rounds" {
        rounds(&comm)?;
    }
    if role == "exits" {
        // Those of a child are the process's last calls, and its goodbye does not write the trace.
        let child = comm.by_color(0, 0)?;
        child.barrier()?;
        child.finalize()?;
        // `comm` is open.
        std::process::exit(0);
    }
    comm.finalize()
}

/// Calls of each kind.
fn work(comm: &Communicator) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    comm.all_reduce_in_place(&mut vec![1u64; 1 << 17], ReduceOp::Sum)?;
    let mut word = [0u64; 3];
    comm.send_recv(&[u64::from(rank); 3], next, &mut word, before)?;
    if rank == 0 {
        comm.send(&[7u8], 3)?;
    } else if rank == 3 {
        comm.recv(&mut [0u8], 0)?;
    }
    let pair = comm.by_color(rank / 2, 0)?;
    pair.broadcast(&mut word, 1)?;
    let (sent, mut received, mut sum) = ([rank; 2], [0; 2], [rank]);
    comm.scope(|scope| {
        let receive = scope.recv(&mut received, before)?;
        let send = scope.send(&sent, next)?;
        let reduce = scope.all_reduce_in_place(&mut sum, ReduceOp::Max)?;
        receive.wait()?;
        send.wait()?;
        reduce.wait()
    })?;
    assert_eq!((received, sum), ([before; 2], [size - 1]));
    pair.finalize()
}

/// Rounds of a persistent call, as calls and as requests.
fn rounds(comm: &Communicator) -> Result<()> {
    let mut sum = comm.prepare(vec![1u64; 8], |calls, values| calls.all_reduce_in_place(values, ReduceOp::Sum))?;
    sum.run()?;
    sum.run()?;
    sum.start()?;
    sum.wait()
}

/// Processes that play a role, and the folder of their traces.
struct Job {
    ranks: Vec<Group>,
    _input: std::io::PipeWriter,
    folder: TempDir,
}

impl Job {
    fn start(role: &str, size: usize, more: &[(&str, &str)]) -> Job {
        let folder = tempfile::tempdir().unwrap();
        let (reader, input) = std::io::pipe().unwrap();
        let start = |rank: usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["rank", "--exact", "--ignored", "--test-threads=1", "--nocapture"]).env_clear();
            command.env(ROLE, role).env("RSCCL_TIMEOUT_MS", "100000").env("RSCCL_INIT_TIMEOUT_MS", "100000");
            command.env("RSCCL_TRACE", folder.path().join("trace.json"));
            command.env("RSCCL_RANK", rank.to_string()).env("RSCCL_WORLD_SIZE", size.to_string());
            command.env("RSCCL_STORE", format!("file://{}", folder.path().join("store").display()));
            command.env("NCCL_SOCKET_IFNAME", "lo").envs(more.iter().copied());
            if role == "hosts" {
                command.env("NCCL_HOSTID", format!("host-{}", rank / 2));
            }
            let told = std::fs::File::create(folder.path().join(format!("told-{rank}"))).unwrap();
            command.stdin(reader.try_clone().unwrap()).stdout(Stdio::null()).stderr(told);
            Group::start(&mut command).unwrap()
        };
        Job { ranks: (0..size).map(start).collect(), _input: input, folder }
    }

    fn file(&self, rank: usize) -> PathBuf {
        self.folder.path().join(format!("trace-{rank}.json"))
    }

    fn told(&self, rank: usize) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("told-{rank}"))).unwrap()
    }

    /// Waits until all have ended well.
    fn end(&mut self) {
        for turn in 0..self.ranks.len() {
            let mut ended = None;
            for _ in 0..TURNS {
                ended = self.ranks[turn].exit().unwrap();
                if ended.is_some() {
                    break;
                }
                wait_ready(&[], Some(PAUSE)).unwrap();
            }
            let ended = ended.expect("it ends");
            assert_eq!(ended, Exit::Code(0), "rank {turn}: {}", self.told(turn));
        }
    }

    /// What `rsccl trace merge` makes of the traces, and what it says.
    fn merged(&self) -> (Vec<Value>, String) {
        let output = self.folder.path().join("all.json");
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.args(["trace", "merge"]).args((0..self.ranks.len()).map(|rank| self.file(rank)));
        let told = command.arg("-o").arg(&output).env_clear().stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&told.stdout).into_owned() + &String::from_utf8_lossy(&told.stderr);
        assert!(told.status.success(), "{text}");
        (events(&output), text)
    }
}

/// How often is looked, and how long between two times: two minutes.
const TURNS: u32 = 1200;
const PAUSE: Duration = Duration::from_millis(100);

fn events(path: &Path) -> Vec<Value> {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A time of an event, in nanoseconds.
fn nanoseconds(event: &Value, field: &str) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "times of a test")]
    event[field].as_f64().map(|time| (time * 1e3).round() as i64).unwrap_or_else(|| panic!("no {field}: {event}"))
}

type Track = (u64, u64);

fn track(event: &Value) -> Track {
    let number = |field: &str| event[field].as_u64().unwrap_or_else(|| panic!("no {field}: {event}"));
    (number("pid"), number("tid"))
}

/// Holds the events of a whole trace of one host to the format.
fn check(events: &[Value]) {
    check_with(events, true);
}

/// The same where clocks are known a little less well: a message may seem to come before it was sent.
fn check_loosely(events: &[Value]) {
    check_with(events, false);
}

fn check_with(events: &[Value], is_one_clock: bool) {
    let mut slices: BTreeMap<Track, Vec<(i64, i64)>> = BTreeMap::new();
    let mut arrows: BTreeMap<String, Vec<(Track, i64, bool)>> = BTreeMap::new();
    let mut bars: BTreeMap<(u64, String), i32> = BTreeMap::new();
    let (mut ranks, mut threads, mut latest) = (BTreeSet::new(), BTreeSet::new(), 0);
    for event in events {
        let (track, kind) = (track(event), event["ph"].as_str().unwrap());
        assert!(track.0 >= 1 && event["name"].as_str().is_some_and(|name| !name.is_empty()), "{event}");
        let at = nanoseconds(event, "ts");
        assert!(at >= latest, "in the order of time: {event}");
        latest = at;
        if kind == "M" {
            match event["name"].as_str().unwrap() {
                "process_name" => drop(ranks.insert(track.0)),
                "thread_name" => drop(threads.insert(track)),
                "process_sort_index" => {}
                other => panic!("{other}"),
            }
            continue;
        }
        assert!(event["cat"].as_str().is_some(), "{event}");
        let id = || event["id"].as_str().unwrap_or_else(|| panic!("no id: {event}")).to_owned();
        match kind {
            "X" => {
                let length = nanoseconds(event, "dur");
                assert!(length >= 0 && event["args"]["comm"].is_string() && event["args"]["rank"].is_u64(), "{event}");
                slices.entry(track).or_default().push((at, at + length));
            }
            "s" => arrows.entry(id()).or_default().push((track, at, true)),
            "f" => {
                assert_eq!(event["bp"], "e", "{event}");
                arrows.entry(id()).or_default().push((track, at, false));
            }
            "i" => assert!(matches!(event["s"].as_str(), Some("t" | "p")), "{event}"),
            "b" => *bars.entry((track.0, id())).or_default() += 1,
            "e" => *bars.entry((track.0, id())).or_default() -= 1,
            other => panic!("{other}: {event}"),
        }
    }
    for (track, spans) in &slices {
        assert!(ranks.contains(&track.0) && threads.contains(track), "{track:?} has no name");
        // In order of their begin, the longer one first: each ends inside of those that have not ended.
        let mut open: Vec<(i64, i64)> = Vec::new();
        for span in spans {
            open.retain(|(_, end)| *end > span.0);
            assert!(open.iter().all(|(_, end)| *end >= span.1), "{track:?}: {span:?} leaves {open:?}");
            open.push(*span);
        }
    }
    for (id, ends) in &arrows {
        let mut ends = ends.clone();
        ends.sort_by_key(|(_, _, is_sent)| !is_sent);
        let [(_, sent, true), (_, received, false)] = ends[..] else { panic!("{id}: {ends:?}") };
        assert!(sent <= received || !is_one_clock, "{id}: {ends:?}");
        for (track, at, _) in &ends {
            // Viewers look for the slice that is open at this time; catapult's importer (chrome://tracing, as of
            // 6fd8bbe7) left arrows out that stood at the end of their slice, or in one without length.
            let holds = |(begin, end): &(i64, i64)| begin <= at && at < end;
            assert!(slices[track].iter().any(holds), "{id}: no slice of {track:?} at {at}");
        }
    }
    assert!(bars.values().all(|open| *open == 0), "{bars:?}");
}

fn count(events: &[Value], kind: &str, name: &str) -> usize {
    events.iter().filter(|event| event["ph"] == kind && event["name"] == name).count()
}

#[test]
fn the_trace_of_four_processes_is_in_the_format() {
    let mut job = Job::start("work", 4, &[]);
    job.end();
    for rank in 0..4 {
        assert!(events(&job.file(rank)).len() > 10, "each process has a whole file");
    }
    let (all, told) = job.merged();
    assert!(told.contains("4 files, 4 ranks, ") && !told.contains("cut"), "{told}");
    check(&all);
    // Three small ones and a large one on each rank; those of a request are bars.
    assert_eq!((count(&all, "X", "all_reduce"), count(&all, "b", "all_reduce")), (16, 4));
    assert_eq!(
        (count(&all, "X", "send to 3"), count(&all, "X", "recv from 0"), count(&all, "X", "broadcast")),
        (1, 1, 4)
    );
    // The message, four of a ring, and four of requests.
    assert_eq!((count(&all, "s", "message"), count(&all, "f", "message")), (9, 9));
    // The pairs were split from the world: their calls stand on the same tracks.
    let named = |event: &&Value| event["name"] == "process_name";
    let names: BTreeSet<&str> = all.iter().filter(named).map(|event| event["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 4);
    assert!((0..4).all(|rank| names.iter().any(|name| name.starts_with(&format!("rank {rank} (")))), "{names:?}");
    for phase in ["init", "init: bootstrap", "init: allgathers", "init: topology", "init: connections"] {
        assert_eq!(count(&all, "X", phase), 8, "{phase}");
    }
    let text = all.iter().find(|event| event["name"] == "broadcast").unwrap()["args"]["call"].as_str().unwrap();
    assert_eq!(text, "broadcast #0 (count 3, uint64, root 1)");
}

#[test]
fn steps_of_plans_have_tracks_of_their_own_and_their_messages_arrows() {
    let mut job = Job::start(
        "work",
        4,
        &[
            ("RSCCL_TRACE_STEPS", "1"),
            ("NCCL_P2P_DISABLE", "1"),
            ("NCCL_SHM_DISABLE", "1"),
            ("NCCL_ALGO", "allreduce:ring"),
        ],
    );
    job.end();
    let (all, _) = job.merged();
    check(&all);
    let steps: BTreeSet<&str> =
        all.iter().filter(|event| event["cat"] == "step").map(|event| event["name"].as_str().unwrap()).collect();
    assert!(steps.contains("send") && steps.contains("receive, reduce, send"), "{steps:?}");
    assert!(count(&all, "s", "message") > 9, "slots have arrows too");
    // The reduction that is a request runs a plan, too: its lanes are no lanes of the thread's calls.
    let named = |event: &&Value| event["name"] == "thread_name";
    let of_requests = |event: &&Value| event["args"]["name"].as_str().is_some_and(|name| name.contains("request lane"));
    let lanes: BTreeSet<Track> = all.iter().filter(named).filter(of_requests).map(track).collect();
    let is_sum = |event: &&Value| event["name"] == "receive, reduce, send" || event["name"] == "receive, reduce";
    let on_them = |event: &&Value| lanes.contains(&track(event));
    let ranks: BTreeSet<u64> = all.iter().filter(is_sum).filter(on_them).map(|event| track(event).0).collect();
    let owners: BTreeSet<u64> = lanes.iter().map(|(rank, _)| *rank).collect();
    // The rank where the ring of its one element begins sends only.
    assert_eq!((owners.len(), ranks.len()), (4, 3), "steps of requests on {lanes:?}");
}

#[test]
fn rounds_of_persistent_calls_have_their_steps() {
    let mut job = Job::start(
        "rounds",
        2,
        &[
            ("RSCCL_TRACE_STEPS", "1"),
            ("NCCL_P2P_DISABLE", "1"),
            ("NCCL_SHM_DISABLE", "1"),
            ("NCCL_ALGO", "allreduce:ring"),
        ],
    );
    job.end();
    let (all, _) = job.merged();
    check(&all);
    // Two rounds that ran as calls, and one that was started, on each rank.
    assert_eq!((count(&all, "X", "all_reduce"), count(&all, "b", "all_reduce")), (4, 2));
    let lanes = |word: &str| -> BTreeSet<Track> {
        let named = all.iter().filter(|event| event["name"] == "thread_name");
        named.filter(|event| event["args"]["name"].as_str().unwrap().contains(word)).map(track).collect()
    };
    let (of_requests, of_calls) = (lanes(", request lane "), lanes(", lane "));
    let steps = |rank: u64, tracks: &BTreeSet<Track>| -> Vec<&str> {
        let steps = all.iter().filter(|event| event["cat"] == "step" && track(event).0 == rank + 1);
        let mut steps: Vec<&str> =
            steps.filter(|step| tracks.contains(&track(step))).map(|step| step["name"].as_str().unwrap()).collect();
        steps.sort_unstable();
        steps
    };
    for rank in 0..2 {
        let (started, ran) = (steps(rank, &of_requests), steps(rank, &of_calls));
        assert!(started.iter().any(|step| step.contains("send")), "rank {rank}: {started:?}");
        let mut twice = [&started[..], &started[..]].concat();
        twice.sort_unstable();
        assert_eq!(ran, twice, "rank {rank}: the steps of two rounds");
    }
}

#[test]
fn a_process_that_exits_with_a_communicator_open_leaves_its_trace_whole() {
    let mut job = Job::start("exits", 1, &[]);
    job.end();
    assert!(!PathBuf::from(format!("{}.records", job.file(0).display())).exists(), "{}", job.told(0));
    let (all, _) = job.merged();
    check(&all);
    assert_eq!((count(&all, "X", "all_reduce"), count(&all, "X", "barrier")), (20_000, 1), "{}", job.told(0));
}

#[test]
fn clocks_of_hosts_are_put_side_by_side() {
    // Two hosts by their names, which have one clock: so it is known how far they are apart.
    let mut job = Job::start("hosts", 4, &[]);
    job.end();
    let (all, _) = job.merged();
    check_loosely(&all);
    for event in all.iter().filter(|event| event["name"] == "process_name") {
        let (ahead, uncertain) = (&event["args"]["clock_ahead_ns"], &event["args"]["clock_uncertain_ns"]);
        let (ahead, uncertain) = (ahead.as_i64().unwrap().unsigned_abs(), uncertain.as_u64().unwrap());
        assert!(ahead <= uncertain && uncertain < 10_000_000_000, "{event}");
        assert_eq!(uncertain == 0, event["args"]["rank"].as_u64().unwrap() < 2, "{event}");
    }
}

#[test]
fn what_a_killed_process_leaves_can_be_read() {
    let job = Job::start("killed", 2, &[]);
    let has = |rank: usize| {
        std::fs::read_to_string(job.file(rank)).is_ok_and(|text| text.matches("all_reduce").count() > 9999)
    };
    for _ in 0..TURNS {
        if has(0) && has(1) {
            break;
        }
        wait_ready(&[], Some(PAUSE)).unwrap();
    }
    assert!(has(0) && has(1), "what was recorded is written soon: {}", job.told(0));
    job.ranks[0].signal(Signal::KILL).unwrap();
    check_sorted(&job.merged().0);

    // As a write that the end of the process has cut.
    let text = std::fs::read_to_string(job.file(0)).unwrap();
    std::fs::write(job.file(0), &text[..text.len() - 40]).unwrap();
    let (cut, told) = job.merged();
    assert!(told.contains("trace-0.json: its end is cut: 1 events are lost"), "{told}");
    check_sorted(&cut);
}

fn check_sorted(events: &[Value]) {
    check(events);
    let calls = count(events, "X", "all_reduce");
    assert!(calls >= 9999, "of 5000 calls on each rank at most one is lost: {calls}");
}

#[test]
fn a_disk_that_fills_ends_the_trace_and_not_the_job() {
    // Shared memory is under the same limit.
    let mut job = Job::start("full", 2, &[("NCCL_SHM_DISABLE", "1")]);
    job.end();
    for rank in 0..2 {
        let told = job.told(rank);
        assert!(told.contains("RSCCL_TRACE: writing ") && told.contains("nothing more is recorded there"), "{told}");
        assert!(told.contains("what was written before is whole"), "{told}");
        events(&job.file(rank));
    }
}

#[test]
fn a_trace_is_one_file_when_its_rank_has_left() {
    let mut job = Job::start("many", 1, &[]);
    job.end();
    let names = std::fs::read_dir(job.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let names: BTreeSet<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    assert!(!names.iter().any(|name| name.ends_with(".records")), "{names:?}");
    assert_eq!(count(&events(&job.file(0)), "X", "all_reduce"), 5000, "{}", job.told(0));
}

#[test]
fn records_that_a_killed_process_has_not_made_text_of_are_merged() {
    let mut job = Job::start("flood", 1, &[]);
    let records = PathBuf::from(format!("{}.records", job.file(0).display()));
    let has_many = || std::fs::metadata(&records).is_ok_and(|about| about.len() > 4 << 20);
    for _ in 0..TURNS {
        if has_many() {
            break;
        }
        wait_ready(&[], Some(PAUSE)).unwrap();
    }
    assert!(has_many(), "calls in a row are not made text of at once: {}", job.told(0));
    job.ranks[0].signal(Signal::KILL).unwrap();
    // It may still be in a write, until the kernel has ended it.
    for _ in 0..TURNS {
        if job.ranks[0].exit().unwrap().is_some() {
            break;
        }
        wait_ready(&[], Some(PAUSE)).unwrap();
    }
    let (all, told) = job.merged();
    check(&all);
    assert!(told.contains("trace-0.json: its process ended before its text was whole: "), "{told}");
    assert!(count(&all, "X", "all_reduce") > 60_000, "{}", all.len());
    let whole = events(&job.file(0)).len();
    assert!(whole < 1 << 15, "and the file alone is whole, though it has {whole} events only");
}

/// NVTX, as far as the library asks for it: what it is told it appends to a file.
const NVTX: &str = r#"
#include <stdio.h>
#include <stdlib.h>
static void note(const char *what, const char *name) {
    FILE *file = fopen(getenv("NVTX_NOTES"), "a");
    if (file) { fprintf(file, "%s %s\n", what, name); fclose(file); }
}
int nvtxRangePushA(const char *name) { note("push", name); return 0; }
int nvtxRangePop(void) { note("pop", "-"); return 0; }
"#;

/// Regression: a trace that was named twice had all its events twice, and one that was the output was lost.
#[test]
fn a_file_counts_once_and_is_never_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let one = folder.path().join("one.json");
    let text = "[\n{\"name\":\"a\",\"ph\":\"X\",\"ts\":1,\"dur\":1,\"pid\":1,\"tid\":1}\n]\n";
    std::fs::write(&one, text).unwrap();
    let merge = |output: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        let told = command.args(["trace", "merge"]).args([&one, &one]).arg("-o").arg(output).output().unwrap();
        let text = String::from_utf8_lossy(&told.stdout).into_owned() + &String::from_utf8_lossy(&told.stderr);
        (told.status.code(), text)
    };
    let (code, said) = merge(&folder.path().join("all.json"));
    assert!(code == Some(0) && said.contains("1 files, 0 ranks, 1 events") && said.contains("named before"), "{said}");
    let (code, said) = merge(&one);
    assert!(code == Some(2) && said.contains("is one of the traces"), "{said}");
    assert_eq!(std::fs::read_to_string(&one).unwrap(), text);
}

#[test]
fn calls_are_ranges_where_a_profiler_is_injected() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(at("nvtx.c"), NVTX).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o", &at("libnvToolsExt.so.1"), &at("nvtx.c")]);
    match compiler.output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => return println!("skipped: no C compiler: {error}"),
    }
    let (path, notes, none) = (folder.path().to_string_lossy(), at("notes"), at("none"));
    let profiler = ("NVTX_INJECTION64_PATH", "a profiler's library");
    let mut job = Job::start("work", 4, &[("LD_LIBRARY_PATH", &path), ("NVTX_NOTES", &notes), profiler]);
    job.end();
    let text = std::fs::read_to_string(&notes).unwrap();
    let count = |what: &str| text.lines().filter(|line| line.starts_with(what)).count();
    // Three small ones and a large one on each rank; what a request does has no range.
    assert_eq!((count("push rsccl all_reduce"), count("push rsccl broadcast")), (16, 4), "{text}");
    assert_eq!((count("push rsccl send"), count("push rsccl recv"), count("push rsccl messages")), (1, 1, 4), "{text}");
    assert_eq!(count("push"), count("pop"), "{text}");
    let off = [("LD_LIBRARY_PATH", &*path), ("NVTX_NOTES", &*none), profiler, ("NCCL_NVTX_DISABLE", "1")];
    Job::start("work", 4, &off).end();
    assert!(!Path::new(&none).exists(), "it was told to leave them out");
    Job::start("work", 4, &off[..2]).end();
    assert!(!Path::new(&none).exists(), "without a profiler nobody hears of them, and no call pays for them");
}

#[test]
fn a_file_that_cannot_be_is_told_and_the_job_goes_on() {
    let mut job = Job::start("work", 4, &[("RSCCL_TRACE", "/no/such/folder/%r.json")]);
    job.end();
    assert!(job.told(2).contains("RSCCL_TRACE: opening /no/such/folder/2.json: "), "{}", job.told(2));
    assert!(job.told(2).contains("nothing is recorded"), "{}", job.told(2));
}
