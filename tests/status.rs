//! `rsccl status`, from outside, on jobs of processes in every kind of trouble: it names the rank that holds the others
//! up, or says what became of it.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::hint::spin_loop;
use std::io::{PipeWriter, Read, pipe};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use rsccl::internals::sys::process::{Exit, Group, Signal, wait_ready};
use rsccl::{Communicator, Progress, ReduceOp, Result};
use serde_json::Value;
use tempfile::TempDir;

/// Tells this program that it is a rank, and which role it plays.
const ROLE: &str = "RSCCL_TEST_STATUS_ROLE";

/// What a rank of a job does.
#[test]
#[ignore = "a rank of the jobs of the other tests"]
fn rank() {
    #![expect(clippy::disallowed_methods, reason = "the role of a test's process is no configuration of the library")]
    if let Ok(role) = std::env::var(ROLE) {
        play(&role).expect("the role itself goes well");
        hold();
    }
}

fn play(role: &str) -> Result<()> {
    let comm = Communicator::from_env()?;
    let mut sum = [1.5f32; 4];
    match (role, comm.rank()) {
        ("well" | "ras", _) => comm.barrier()?,
        ("computes", 2) | ("message", 1) => {
            comm.barrier()?;
            // Until it is killed.
            loop {
                spin_loop();
            }
        }
        ("computes", _) => {
            comm.barrier()?;
            comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        }
        ("message", _) => {
            comm.barrier()?;
            comm.recv(&mut sum, 1)?;
        }
        ("talks", rank) => {
            comm.register(&rsccl::Buffer::<u8>::new(1 << 20)?)?;
            comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
            comm.all_reduce_in_place(&mut vec![1u64; 1 << 16], ReduceOp::Sum)?;
            match rank {
                0 => (0..3).try_for_each(|_| comm.send(&[7u8; 1000], 1))?,
                1 => (0..3).try_for_each(|_| comm.recv(&mut [0u8; 1000], 0))?,
                _ => {}
            }
            comm.barrier()?;
        }
        ("deadline", 2) | ("sleeps", 1) => comm.barrier()?,
        ("deadline", _) => {
            comm.barrier()?;
            comm.barrier().expect_err("rank 2 does not come");
        }
        ("sleeps", _) => {
            comm.barrier()?;
            comm.split(Some(0), 0)?;
        }
        ("hook", rank) => {
            let other = comm.by_color(0, 0)?;
            match rank {
                // It tells rank 0 that it is there, and never ends.
                1 => comm.set_progress(Some(Progress::new(move || {
                    other.send(&[1u8], 0)?;
                    loop {
                        spin_loop();
                    }
                })))?,
                0 => other.recv(&mut [0u8], 1)?,
                _ => {}
            }
            comm.barrier()?;
        }
        ("calls", _) => while comm.barrier().is_ok() {},
        ("differ", 3) => drop(comm.broadcast(&mut sum, 1).expect_err("the others reduce")),
        ("differ", _) => drop(comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).expect_err("one broadcasts")),
        ("leaves", 1) => {
            comm.barrier()?;
            comm.finalize()?;
            hold();
            return Ok(());
        }
        ("leaves", _) => {
            comm.barrier()?;
            comm.barrier().expect_err("rank 1 has left");
        }
        ("crossed", rank) => {
            let other = comm.by_color(0, 0)?;
            let waits = if rank == 0 { &comm } else { &other };
            waits.barrier()?;
        }
        ("undumpable", 1) => {
            comm.barrier()?;
            // SAFETY: the call takes numbers.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }, 0);
        }
        ("undumpable", _) => {
            comm.barrier()?;
            comm.barrier()?;
        }
        (other, _) => unreachable!("no role is called {other}"),
    }
    // The communicator lives on.
    hold();
    Ok(())
}

/// Until the test ends.
fn hold() {
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing).unwrap();
}

/// Processes that play a role.
struct Job {
    ranks: Vec<Group>,
    /// Its end is the end of all that hold.
    _input: PipeWriter,
    folder: TempDir,
    /// Whether its user sees their own processes alone.
    is_nobodys: bool,
}

/// What `rsccl status` has said.
struct Told {
    code: Option<i32>,
    text: String,
}

impl Told {
    fn findings(&self) -> Vec<&str> {
        self.text.lines().filter_map(|line| line.strip_prefix("! ")).collect()
    }
}

impl Job {
    /// The ranks `started` of a world of `size`.
    fn start(role: &str, size: usize, started: &[usize]) -> Job {
        let folder = tempfile::tempdir().unwrap();
        let (reader, input) = pipe().unwrap();
        let start = |rank: &usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["rank", "--exact", "--ignored", "--test-threads=1"]).env_clear();
            let limit = if role == "deadline" { "1500" } else { "100000" };
            command.env(ROLE, role).env("RSCCL_TIMEOUT_MS", limit).env("RSCCL_INIT_TIMEOUT_MS", "100000");
            command.env("RSCCL_RECORD_DIR", folder.path().join("records")).env("RSCCL_RECORD_SIGTERM", "1");
            command.env("RSCCL_RANK", rank.to_string()).env("RSCCL_WORLD_SIZE", size.to_string());
            command.env("RSCCL_STORE", format!("file://{}", folder.path().join("store").display()));
            command.env("NCCL_SOCKET_IFNAME", "lo");
            if role == "ras" {
                let log = folder.path().join(format!("log-{rank}"));
                command.env("NCCL_RAS_ADDR", "localhost:0").env("NCCL_DEBUG_FILE", log);
                command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "RAS");
            }
            if role == "undumpable" {
                as_nobody(&mut command, Some(folder.path()));
            }
            command.stdin(reader.try_clone().unwrap()).stdout(Stdio::null());
            Group::start(&mut command).unwrap()
        };
        let is_nobodys = role == "undumpable";
        Job { ranks: started.iter().map(start).collect(), _input: input, folder, is_nobodys }
    }

    fn whole(role: &str, size: usize) -> Job {
        Job::start(role, size, &(0..size).collect::<Vec<_>>())
    }

    fn pid(&self, place: usize) -> u32 {
        self.ranks[place].id()
    }

    /// Whether a rank has written what it was doing.
    fn has_record(&self, place: usize) -> bool {
        let files = std::fs::read_dir(self.folder.path().join("records")).into_iter().flatten();
        let name = format!("-{}.json", self.pid(place));
        files.map(|file| file.unwrap().file_name()).any(|file| file.to_string_lossy().ends_with(&name))
    }

    /// Runs `rsccl status` about this job.
    fn status(&self, more: &[&str]) -> Told {
        let pids = self.ranks.iter().map(|rank| rank.id().to_string());
        let words = [pids.collect(), more.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()].concat();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        if self.is_nobodys {
            as_nobody(&mut command, None);
        }
        status_by(command, &words)
    }

    /// Asks until nothing is said but one thing, in which all `words` are.
    fn is_told(&self, words: &[&str]) -> Told {
        let is_it = |told: &Told| match &told.findings()[..] {
            [one] => words.iter().all(|word| one.contains(word)),
            _ => false,
        };
        let told = self.until(&format!("{words:?}"), is_it);
        assert_eq!(told.code, Some(3), "{}", told.text);
        told
    }

    fn until(&self, what: &str, is_it: impl Fn(&Told) -> bool) -> Told {
        let mut told = self.status(&[]);
        for _ in 0..TURNS {
            if is_it(&told) {
                return told;
            }
            wait_ready(&[], Some(PAUSE)).unwrap();
            told = self.status(&[]);
        }
        panic!("{what} is not told, but (code {:?}):\n{}", told.code, told.text)
    }

    /// Waits until all ranks of a world of `size` are ready, and nobody waits.
    fn goes_well(&self, size: usize) {
        let ready = format!("{size} processes with {size} ranks");
        let is_well =
            |told: &Told| told.code == Some(0) && told.text.contains(&ready) && !told.text.contains("from_env for");
        self.until("all goes well", is_well);
    }
}

/// Whether this user may look at every process.
fn sees_all() -> bool {
    std::fs::read_dir("/proc/1/fd").is_ok()
}

/// Runs a command as a user who sees their own processes alone, if this one sees all; `folder` is theirs too.
fn as_nobody(command: &mut Command, folder: Option<&std::path::Path>) {
    if !sees_all() {
        return;
    }
    std::os::unix::process::CommandExt::uid(command, NOBODY);
    if let Some(folder) = folder {
        let everybody = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
        std::fs::set_permissions(folder, everybody).unwrap();
    }
}

/// The user that no file belongs to.
const NOBODY: u32 = 65534;

fn status(arguments: &[String]) -> Told {
    status_by(Command::new(env!("CARGO_BIN_EXE_rsccl")), arguments)
}

fn status_by(mut command: Command, arguments: &[String]) -> Told {
    let output = command.arg("status").args(arguments).env_clear().stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Told { code: output.status.code(), text }
}

/// How often a question is asked, and how long between two times: two minutes.
const TURNS: u32 = 600;
const PAUSE: Duration = Duration::from_millis(200);

#[test]
fn a_job_in_which_nobody_waits_is_shown_as_it_is() {
    let job = Job::whole("well", 3);
    job.goes_well(3);
    let told = job.until("the last call", |told| told.text.matches("last barrier #0").count() == 3);
    assert!(told.text.contains("Nobody holds another up.") && told.text.contains("2 of 3"), "{}", told.text);
}

/// What a line-wise client of `ncclras`'s protocol gets.
fn ask_ras(address: &str, lines: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    std::io::Write::write_all(&mut stream, lines.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn nvidia_s_client_is_answered_for_all_ranks_of_the_host() {
    let job = Job::whole("ras", 3);
    job.until("the last call", |told| told.text.matches("last barrier #0").count() == 3);
    let log = std::fs::read_to_string(job.folder.path().join("log-1")).unwrap();
    let address = log.split("answers ncclras at ").nth(1).and_then(|rest| rest.lines().next()).expect(&log);
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let text = ask_ras(address, "CLIENT PROTOCOL 2\nTIMEOUT 5\nMONITOR\nSET FORMAT text\nSTATUS\n");
    assert!(text.starts_with("SERVER PROTOCOL 2\nOK\nERROR: Unknown command\nOK\n"), "{text}");
    assert!(text.contains("3 processes of host ") && text.contains(" with 3 ranks of communicators"), "{text}");
    for rank in 0..3 {
        let line = text.lines().find(|line| line.starts_with(&format!("rank {rank} of 3, "))).expect(&text);
        assert!(line.contains(&format!("pid {}, ready, 1 collectives begun: not in a call", job.pid(rank))), "{line}");
    }
    let verbose = ask_ras(address, "CLIENT PROTOCOL 2\nVERBOSE STATUS\n");
    assert!(verbose.matches("  memory {\"arenas\":").count() == 3, "{verbose}");
    let json = ask_ras(address, "CLIENT PROTOCOL 2\nSET FORMAT json\nSTATUS\n");
    let document: Value = serde_json::from_str(json.split_once("OK\n").unwrap().1).unwrap();
    assert_eq!(document["processes"].as_array().unwrap().len(), 3, "{document}");
    // One that says too much, and one that says nothing, get nothing and hold nobody up for long.
    let mut long = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut long, &[b'x'; 1000]).unwrap();
    // Its end may come as a reset, since nobody has read all of it.
    assert!(!matches!(long.read(&mut [0; 64]), Ok(1..)), "it is told nothing");
    let _silent = std::net::TcpStream::connect(address).unwrap();
    assert!(ask_ras(address, "STATUS\n").contains("3 processes"));
}

/// The bytes of `src/ras/client.cc` as NCCL 2.24.3 and 2.30.7 have it, for `ncclras -t 3 -v -f json`: it sends a line once
/// the one before is answered, each answer has to end in a line feed and nothing behind it, and reads the rest to the end.
#[test]
fn the_steps_of_nvidia_s_client_are_answered_one_by_one() {
    let job = Job::whole("ras", 2);
    job.until("the last call", |told| told.text.matches("last barrier #0").count() == 2);
    let log = std::fs::read_to_string(job.folder.path().join("log-0")).unwrap();
    let Some(address) = log.split("answers ncclras at ").nth(1).and_then(|rest| rest.lines().next()) else {
        panic!("nobody answers: {log}")
    };
    let ask = |steps: &[(&str, &str)], last: &str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        for (line, answer) in steps {
            std::io::Write::write_all(&mut stream, line.as_bytes()).unwrap();
            let mut told = vec![0; answer.len()];
            stream.read_exact(&mut told).unwrap();
            assert_eq!(String::from_utf8_lossy(&told), *answer);
        }
        std::io::Write::write_all(&mut stream, last.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let hello = ("CLIENT PROTOCOL 2\n", "SERVER PROTOCOL 2\n");
    let json = ask(&[hello, ("TIMEOUT 3\n", "OK\n"), ("SET FORMAT json\n", "OK\n")], "VERBOSE STATUS\n");
    let document: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((document["processes"].as_array().unwrap().len(), &document["remote"]), (2, &Value::Array(Vec::new())));
    assert!(ask(&[hello], "STATUS\n").starts_with("RSCCL version "));
}

#[test]
fn memory_and_traffic_are_shown() {
    let job = Job::whole("talks", 3);
    job.until("the last call", |told| told.text.matches("last barrier #2").count() == 3);
    let document: Value = serde_json::from_str(&job.status(&["--json"]).text).unwrap();
    let processes = document["processes"].as_array().unwrap();
    let of_rank =
        |rank: u64| processes.iter().map(|process| &process["ranks"][0]).find(|one| one["rank"] == rank).unwrap();
    for rank in 0..3 {
        let (memory, calls) = (&of_rank(rank)["memory"], &of_rank(rank)["calls"]);
        let held = |kind: &str| memory[kind].as_u64().unwrap();
        assert!(held("arenas") > 1 << 20 && held("registered") >= 1 << 20 && held("GPU") == 0, "{memory}");
        let flat = calls.as_array().unwrap().iter().find(|one| one["way"] == "flat slots").unwrap();
        assert_eq!((&flat["calls"], &flat["bytes"]), (&2.into(), &16.into()), "{calls}");
        let large = calls.as_array().unwrap().iter().find(|one| one["way"] == "windows").unwrap();
        assert_eq!((&large["calls"], &large["bytes"]), (&1.into(), &(8 << 16).into()), "{calls}");
    }
    let (sender, receiver) = (&of_rank(0)["connections"][0], &of_rank(1)["connections"][0]);
    assert_eq!((&sender["peer"], &sender["transport"]), (&1.into(), &"shm".into()), "{sender}");
    assert_eq!((&sender["sent"], &sender["sent_bytes"], &sender["received"]), (&3.into(), &3000.into(), &0.into()));
    assert_eq!((&receiver["received"], &receiver["received_bytes"]), (&3.into(), &3000.into()), "{receiver}");
    let told = job.status(&["--details"]);
    assert!(told.text.contains("rank 1 by shm: sent 3 (3000 B), received 0 (0 B)"), "{}", told.text);
    assert!(told.text.contains("2 by flat slots (16 B), 1 by windows (512 KiB)"), "{}", told.text);
}

#[test]
fn where_there_is_no_rank_that_is_said() {
    let told = status(&[std::process::id().to_string()]);
    assert_eq!(told.code, Some(4), "{}", told.text);
    // The jobs of other tests may run.
    let none = told.text.contains("No process of this user here has a rank of rsccl.");
    assert!(none || told.text.contains("This user sees no rank of rsccl in process"), "{}", told.text);
}

#[test]
fn a_script_knows_an_error_and_a_wrong_command_line_from_a_job_in_trouble() {
    let told = |words: &[&str]| status(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    let codes = [&["--merge", "/no/such/file"][..], &["--watch=0"], &["--no-such-option"], &["--late", "soon"]]
        .map(|words| told(words).code);
    assert_eq!(codes, [Some(1), Some(2), Some(2), Some(2)]);
    for wrong in [&["--late", "nan"][..], &["--late=-1"], &["--rows", "0"], &["--watch=1e30"]] {
        let told = told(wrong);
        assert!(told.code == Some(2) && told.text.contains("allowed: "), "{wrong:?}: {}", told.text);
    }
}

#[test]
fn a_damaged_file_is_named_and_hides_no_other_record() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let document = |rank: u32| {
        format!(
            "{{\"rsccl_status\": {}, \"host\": \"here\", \"processes\": [{{\"pid\": 7, \"ranks\": [{{\"rank\": {rank}, \
             \"size\": 2, \"communicator\": \"c\"}}]}}]}}",
            rsccl::internals::session::page_view::DOCUMENT_VERSION
        )
    };
    let other = write("other.json", "{\"a\": 1}");
    let damaged = write("damaged.json", &document(9));
    let pipe = folder.path().join("pipe").to_string_lossy().into_owned();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let wrong = [(&other, "it is no document"), (&damaged, "a rank 9 of 2"), (&pipe, "a named pipe")];
    for (file, words) in wrong {
        let told = status(&["--merge".to_owned(), file.clone()]);
        assert!(told.code == Some(2) && told.text.contains(words) && told.text.contains(file), "{}", told.text);
    }
    write("whole.json", &document(1));
    let told = status(&["--explain".to_owned(), folder.path().to_string_lossy().into_owned()]);
    assert_eq!(told.code, Some(3), "{}", told.text);
    for words in ["other.json", "damaged.json", "it is left out", "no record of rank 0"] {
        assert!(told.text.contains(words), "`{words}` is not in: {}", told.text);
    }
}

#[test]
fn pages_of_another_user_are_not_read() {
    let job = Job::whole("well", 2);
    job.goes_well(2);
    if !sees_all() {
        return println!("skipped: only root can be another user");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    as_nobody(&mut command, None);
    let told = status_by(command, &[job.pid(0).to_string()]);
    assert_eq!(told.code, Some(4), "{}", told.text);
    assert!(told.text.contains("No process of this user here has a rank of rsccl."), "{}", told.text);
}

#[test]
fn a_rank_that_computes_is_named_and_so_are_those_that_wait_for_it() {
    let job = Job::whole("computes", 4);
    let late = format!("pid {}) has not entered all_reduce #1 for ", job.pid(2));
    job.is_told(&["rank 2 (host ", &late, "; 3 ranks wait in it; rank 2 computes (not in rsccl)"]);
    let me = std::process::id();
    let told = status(&[me.to_string()]);
    let (said, listed) =
        (format!("This user sees no rank of rsccl in process {me}; processes with ranks: "), job.pid(2).to_string());
    assert!(told.code == Some(4) && told.text.contains(&said) && told.text.contains(&listed), "{}", told.text);

    // What was gathered says the same, and where ranks differ is found in the records.
    let json = job.status(&["--json"]);
    let mut document: Value = serde_json::from_str(&json.text).unwrap();
    let verdict = &document["verdicts"][0];
    assert_eq!((&verdict["kind"], &verdict["rank"]), (&"late".into(), &2.into()), "{verdict}");
    assert_eq!((&verdict["pid"], &verdict["waiting"]), (&job.pid(2).into(), &3.into()), "{verdict}");
    let file = |name: &str| job.folder.path().join(name).to_string_lossy().into_owned();
    let mut other = document.clone();
    other["host"] = "elsewhere".into();
    let processes = document["processes"].as_array_mut().unwrap();
    other["processes"] = processes.split_off(2).into();
    for process in other["processes"].as_array_mut().unwrap() {
        process["host"] = "elsewhere".into();
    }
    std::fs::write(file("here.json"), document.to_string()).unwrap();
    std::fs::write(file("there.json"), other.to_string()).unwrap();
    // Hosts of one `/proc`, as name spaces have it, show each process twice.
    let twice = status(&["--merge".to_owned(), file("here.json"), file("there.json"), file("here.json")]);
    assert!(
        twice.text.contains("4 processes with 4 ranks") && twice.text.contains("3 ranks wait in it"),
        "{}",
        twice.text
    );
    let merged = status(&["--merge".to_owned(), file("here.json"), file("there.json")]);
    assert_eq!((merged.code, merged.findings().len()), (Some(3), 1), "{}", merged.text);
    assert!(merged.text.contains("3 ranks wait in it; rank 2 computes"), "{}", merged.text);

    let records = file("records");
    let told = job.status(&["--record", &records]);
    assert!(told.text.contains("4 records in"), "{}", told.text);
    let told = status(&["--explain".to_owned(), records]);
    assert_eq!(told.code, Some(3), "{}", told.text);
    let words = "rank 2 has not called all_reduce #1 (count 4, float, sum), which others have; the last call there is \
                 barrier #0";
    assert!(told.text.contains(words), "{}", told.text);
}

#[test]
fn a_rank_that_does_not_come_to_a_split_is_named() {
    let job = Job::whole("sleeps", 3);
    let late = format!("pid {}) has not entered split for ", job.pid(1));
    job.is_told(&["rank 1 (host ", &late, "; 2 ranks wait in it; rank 1 is not in rsccl, sleeps"]);
}

#[test]
fn a_rank_that_sends_nothing_is_named() {
    let job = Job::whole("message", 2);
    let late = format!("rank 0 waits for rank 1 (host {}, pid {}) in recv #0 from rank 1 for ", host(), job.pid(1));
    job.is_told(&[&late, "; 1 rank waits in it; rank 1 computes (not in rsccl)"]);
}

#[test]
fn a_stopped_process_is_looked_at_and_named() {
    let job = Job::whole("calls", 4);
    job.goes_well(4);
    job.ranks[1].signal(Signal::STOP).unwrap();
    let stopped = format!("rank 1 (host {}, pid {}) has not e", host(), job.pid(1));
    job.is_told(&[&stopped, " barrier #", "; 3 ranks wait in it; rank 1 is stopped (SIGSTOP)"]);
    job.ranks[1].signal(Signal::CONTINUE).unwrap();
    job.goes_well(4);
}

#[test]
fn a_rank_whose_hook_does_not_return_is_in_a_call() {
    let job = Job::whole("hook", 3);
    // The first call maps the memory of the host's ranks, for which all wait.
    let late = format!("rank 1 (host {}, pid {}) has not ended barrier #0 for ", host(), job.pid(1));
    let does = "; 2 ranks wait in it; rank 1 is in a call of rsccl, runs (its last collective is barrier #0)";
    job.is_told(&[&late, does]);
}

#[test]
fn a_dead_process_is_named() {
    let mut job = Job::whole("calls", 3);
    job.goes_well(3);
    let dead = job.pid(1);
    drop(job.ranks.remove(1));
    let words = format!("rank 1 (host {}, pid {dead}) has died: its process has ended", host());
    job.is_told(&[&words]);
}

#[test]
fn a_rank_that_has_left_is_named() {
    let job = Job::whole("leaves", 3);
    let words = format!("rank 1 (host {}, pid {}) has left", host(), job.pid(1));
    job.is_told(&[&words]);
}

#[test]
fn ranks_in_different_collectives_are_told_apart() {
    let job = Job::whole("differ", 4);
    let told = job.is_told(&[
        "ranks differ in collective #0 of communicator ",
        "ranks 0, 1 and 2 called all_reduce #0 (count 4, float, sum), ",
        "rank 3 called broadcast #0 (count 4, float, root 1)",
    ]);
    assert!(told.text.contains("failed: "), "{}", told.text);
}

#[test]
fn ranks_whose_deadline_passes_leave_records_that_say_who_is_missing() {
    let job = Job::whole("deadline", 3);
    let records = job.folder.path().join("records");
    job.until("records", |_| [0, 1].iter().all(|place| job.has_record(*place)));
    let told = status(&["--explain".to_owned(), records.to_string_lossy().into_owned()]);
    assert_eq!(told.code, Some(3), "{}", told.text);
    assert!(told.text.contains(": 2 collectives on each rank; no record of rank 2"), "{}", told.text);
}

#[test]
fn a_process_that_sigterm_ends_leaves_a_record_and_ends_by_the_signal() {
    let mut job = Job::whole("well", 2);
    job.goes_well(2);
    job.ranks[1].signal(Signal::TERMINATE).unwrap();
    let mut exit = None;
    for _ in 0..TURNS {
        exit = job.ranks[1].exit().unwrap();
        if exit.is_some() {
            break;
        }
        wait_ready(&[], Some(PAUSE)).unwrap();
    }
    assert_eq!(exit, Some(Exit::Signal(Signal::TERMINATE)));
    assert!(job.has_record(1) && !job.has_record(0));
    let records = job.folder.path().join("records").to_string_lossy().into_owned();
    let told = status(&["--explain".to_owned(), records]);
    assert!(told.text.contains(": 1 collective on each rank; no record of rank 0"), "{}", told.text);
}

#[test]
fn two_communicators_that_wait_for_each_other_are_a_circle() {
    let job = Job::whole("crossed", 2);
    let (first, second) = (
        format!("rank 0 (host {}, pid {}) waits in barrier #0 of communicator ", host(), job.pid(0)),
        format!("rank 1 (host {}, pid {}) waits in barrier #0 of communicator ", host(), job.pid(1)),
    );
    job.is_told(&["ranks wait for each other for ", &first, &second]);
}

#[test]
fn a_rank_that_never_started_is_named() {
    let job = Job::start("well", 4, &[0, 1, 3]);
    job.is_told(&["rank 2 never started (of 4); 3 ranks wait in from_env for "]);
}

#[test]
fn a_process_that_is_not_dumpable_is_named_as_such() {
    let job = Job::whole("undumpable", 2);
    let words =
        format!("rank 1 (host {}, pid {}) cannot be looked at: its process is not dumpable", host(), job.pid(1));
    let is_it = |told: &Told| told.text.contains("cannot be looked at: its process is not dumpable");
    let told = job.until(&words, is_it);
    assert_eq!(told.code, Some(3), "{}", told.text);
}

#[test]
fn a_screen_is_drawn_again_and_again_until_it_is_interrupted() {
    let job = Job::whole("well", 2);
    job.goes_well(2);
    let (mut reader, writer) = pipe().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    command.args(["status", &job.pid(0).to_string(), "--watch=0.1"]).stdin(Stdio::null()).stdout(writer);
    let watch = Group::start(&mut command).unwrap();
    drop(command);
    let (mut text, mut bytes) = (Vec::new(), [0; 4096]);
    while String::from_utf8_lossy(&text).matches("Nobody holds another up.").count() < 3 {
        let ready = wait_ready(&[(reader.as_fd(), rsccl::internals::sys::process::Want::Read)], Some(PAUSE * TURNS));
        assert_eq!(ready.unwrap(), [true], "{}", String::from_utf8_lossy(&text));
        let count = reader.read(&mut bytes).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&text));
        text.extend(&bytes[..count]);
    }
    watch.signal(Signal::INTERRUPT).unwrap();
}

fn host() -> String {
    rsccl::internals::sys::host::hostname().unwrap()
}
