//! What a process inherits or is denied: closed standard streams, limits of open files, of file sizes, of threads and of
//! address space, a memory cgroup. Ranks work, or say what is wrong; no call of the library ends its program, and what a
//! failed step had taken is put back.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rsccl::comm::Registered;
use rsccl::error::Kind;
use rsccl::{Buffer, Communicator, Error, ReduceOp, Result};

/// Set in the processes that the tests of this file start; what they do.
const ROLE: &str = "PROCESS_STATE_ROLE";
/// The folder of the job.
const FOLDER: &str = "PROCESS_STATE_FOLDER";
const SHM: &[(&str, &str)] = &[("NCCL_SOCKET_IFNAME", "lo")];
const NET: &[(&str, &str)] = &[("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_SHM_DISABLE", "1")];
/// Threads of the harness and of Rust have smaller stacks than this; so has what a call needs for itself.
const TOO_LITTLE_FOR_A_THREAD: u64 = 1 << 20;

fn variable(name: &str) -> Option<String> {
    #![expect(clippy::disallowed_methods, reason = "tells the processes of this test apart")]
    std::env::var(name).ok()
}

/// Where another test starts this program as a rank.
#[test]
#[ignore = "one rank of the jobs that the tests of this file start: alone it is no test"]
fn rank() {
    let Some(role) = variable(ROLE) else { return };
    let outcome = match role.split_once(' ').unwrap_or((&role, "")) {
        ("sum", _) => sum_in(&Communicator::from_env().unwrap_or_else(|error| fail(&error))),
        ("streams", closed) => without_streams(closed),
        ("limits", _) => limits(),
        ("scope", _) => scope_without_thread(),
        ("group", _) => group_without_threads(),
        ("buffers", _) => buffers(),
        ("moved", _) => moved_where_it_lies(),
        ("counted", calls) => counted(calls.parse().unwrap()),
        ("kept", _) => kept_where_it_lies(),
        ("space", _) => buffer_without_address_space(),
        ("helpers", of) => with_helpers(of),
        (other, _) => panic!("no role: {other}"),
    };
    match outcome {
        Ok(()) => end(0),
        Err(error) => fail(&error),
    }
}

/// Ends without what the harness prints at the end, which may have nowhere to go.
fn end(code: i32) -> ! {
    std::process::exit(code)
}

fn fail(error: &Error) -> ! {
    note(&format!("{:?}: {error}", error.kind()));
    end(7)
}

/// Leaves a line for the test, which reads the files of all ranks: a rank's output may be closed.
fn note(line: &str) {
    let folder = PathBuf::from(variable(FOLDER).unwrap());
    let name = format!("{}.notes", variable("RSCCL_RANK").unwrap_or_default());
    let open = || std::fs::OpenOptions::new().create(true).append(true).open(folder.join(&name));
    let mut file = open().unwrap_or_else(|_| {
        // Where no descriptor is left: standard input, which nobody reads.
        // SAFETY: a plain call; whoever uses the stream later gets an error.
        unsafe { libc::close(0) };
        open().unwrap()
    });
    writeln!(file, "{line}").unwrap();
}

fn sum_in(comm: &Communicator) -> Result<()> {
    let mut values = vec![comm.rank() + 1; 100_000];
    for _ in 0..3 {
        let mine = values.clone();
        comm.all_reduce(&mine, &mut values, ReduceOp::Sum)?;
        values.fill(comm.rank() + 1);
    }
    let mut one = [1u32];
    comm.all_reduce_in_place(&mut one, ReduceOp::Sum)?;
    assert_eq!(one[0], comm.size());
    Ok(())
}

/// Ranks with a communicator start programs of the library that inherit their variables: each rank, or one alone.
fn with_helpers(of: &str) -> Result<()> {
    let comm = Communicator::from_env()?;
    let helper = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "rank", "--ignored", "--nocapture"]).env(ROLE, "sum").stderr(Stdio::piped());
        command
    };
    let said = |command: &mut Command| {
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let told = format!("rsccl: warning: process {} is rank {} of this job already", std::process::id(), comm.rank());
    comm.barrier()?;
    if of == "all" {
        // On a busy machine they may take so long to meet that they are told of their places.
        let (code, text) = said(&mut helper());
        assert!(code == Some(0), "{code:?}: {text}");
    } else if of == comm.rank().to_string() {
        // Long before its deadline. In the meantime the job waits for this rank.
        let mut child = helper().spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let found = lines.map_while(std::result::Result::ok).find(|line| line.contains("of this job already"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.as_ref().is_some_and(|line| line.starts_with(&told)), "{found:?}");
        assert!(found.unwrap().ends_with("is started with RSCCL_RANK=0 RSCCL_WORLD_SIZE=1"));
        let (code, text) = said(helper().env("RSCCL_RANK", "0").env("RSCCL_WORLD_SIZE", "1"));
        assert!(code == Some(0) && !text.contains("of this job already"), "{code:?}: {text}");
        let folder = tempfile::tempdir().unwrap();
        let (code, _) = said(helper().env("RSCCL_INIT_TIMEOUT_MS", "500").env(FOLDER, folder.path()));
        let note = std::fs::read_to_string(folder.path().join(format!("{of}.notes"))).unwrap();
        assert!(code == Some(7) && note.contains("Timeout") && note.contains("of this job already"), "{note}");
    }
    comm.barrier()?;
    comm.finalize()
}

/// `closed` has for each rank, between commas, which of 0, 1 and 2 it closes.
fn without_streams(closed: &str) -> Result<()> {
    let rank: usize = variable("RSCCL_RANK").unwrap().parse().unwrap();
    for number in closed.split(',').nth(rank).unwrap().bytes().map(|digit| i32::from(digit - b'0')) {
        // SAFETY: a standard stream; whoever uses it later gets an error.
        unsafe { libc::close(number) };
    }
    let comm = Communicator::from_env()?;
    // As a program's own `printf` would.
    for number in [1, 2] {
        // SAFETY: reads four bytes of a literal; where the stream is closed it is refused.
        unsafe { libc::write(number, c"text".as_ptr().cast(), 4) };
    }
    let own = |number: &u32| closed.split(',').nth(rank).unwrap().contains(&number.to_string());
    for number in (0..3).filter(own) {
        assert!(!std::fs::exists(format!("/proc/self/fd/{number}")).unwrap(), "the library has taken {number}");
    }
    sum_in(&comm)?;
    let child = comm.split(Some(0), 0)?.unwrap();
    sum_in(&child)?;
    child.finalize()?;
    comm.finalize()
}

/// The soft limit of a resource, as `/proc` shows it.
fn soft_limit(name: &str) -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let soft = line.split_ascii_whitespace().next().unwrap();
    soft.parse().unwrap_or(u64::MAX)
}

fn limits() -> Result<()> {
    let files = || soft_limit("Max open files");
    let before = files();
    let comm = Communicator::from_env()?;
    sum_in(&comm)?;
    let meanwhile = files();
    comm.finalize()?;
    note(&format!("{before} {meanwhile} {}", files()));
    Ok(())
}

/// Sets the limit of this process's address space to what it has now and `more`; none where that is `None`.
fn limit_space(more: Option<u64>) {
    let value = more.map_or("unlimited".to_owned(), |more| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        (kilobytes * 1024 + more).to_string()
    });
    let pid = std::process::id().to_string();
    let set = Command::new("prlimit").args(["--pid", &pid, &format!("--as={value}:")]).status().unwrap();
    assert!(set.success());
}

/// The error of a thread that could not be started, of this rank and this call.
fn check_thread(outcome: Result<()>, call: &str) {
    let error = outcome.unwrap_err();
    let words = ["rank 1", call, "starting the thread", "ulimit -u"];
    assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
    assert_eq!(error.kind(), Kind::System);
}

/// Regression: a request without the thread that it needs lost the communicator, and the others were told that the rank
/// had died.
fn scope_without_thread() -> Result<()> {
    let comm = Communicator::from_env()?;
    sum_in(&comm)?;
    if comm.rank() == 1 {
        limit_space(Some(TOO_LITTLE_FOR_A_THREAD));
        check_thread(comm.scope(|scope| scope.barrier().map(drop)), "request");
        limit_space(None);
    }
    comm.scope(|scope| scope.barrier()?.wait())?;
    sum_in(&comm)?;
    comm.finalize()
}

fn group_without_threads() -> Result<()> {
    let comm = Communicator::from_env()?;
    let other = comm.split(Some(0), 0)?.unwrap();
    let both = || {
        rsccl::group(|group| {
            group.on(&comm).barrier()?;
            group.on(&other).barrier()
        })
    };
    sum_in(&comm)?;
    sum_in(&other)?;
    if comm.rank() == 1 {
        limit_space(Some(TOO_LITTLE_FOR_A_THREAD));
        check_thread(both(), "group");
        limit_space(None);
    }
    both()?;
    sum_in(&other)?;
    sum_in(&comm)?;
    other.finalize()?;
    comm.finalize()
}

/// Four buffers of half of what the group may have: the error comes before the first is touched.
fn buffers() -> Result<()> {
    let buffers: Result<Vec<_>> = (0..4).map(|_| Buffer::<u8>::new(32 << 20)).collect();
    let error = buffers.unwrap_err();
    note(&error.to_string());
    let mut small = Buffer::<u8>::new(8 << 20)?;
    small.fill(1);
    Ok(())
}

/// Registers where it lies, twice, what there would not be room for a second time.
fn moved_where_it_lies() -> Result<()> {
    let value = |at: usize| u8::try_from(at % 251).expect("below 251");
    let mut vector: Vec<u8> = (0..256 << 20).map(value).collect();
    for turn in 0..2 {
        let mut registered = Registered::new(vector);
        assert_eq!(registered.refusal(), None);
        assert!(registered.iter().enumerate().all(|(at, byte)| *byte == value(at + turn)));
        registered.iter_mut().enumerate().for_each(|(at, byte)| *byte = value(at + turn + 1));
        vector = registered.into_inner();
    }
    assert!(vector.iter().enumerate().all(|(at, byte)| *byte == value(at + 2)));
    Ok(())
}

/// Gives memory back that was registered where it lies after so many calls in it.
fn counted(calls: u32) -> Result<()> {
    let comm = Communicator::from_env()?;
    let mut sums = Registered::new(vec![0u32; 100_000]);
    assert_eq!(sums.refusal(), None);
    comm.register(&sums)?;
    for _ in 0..calls {
        sums.fill(1);
        comm.all_reduce_in_place(&mut sums, ReduceOp::Sum)?;
    }
    assert!(sums.into_inner().iter().all(|sum| *sum == comm.size()));
    comm.finalize()
}

/// Gives memory back while the kernel locks every new mapping, and lets this process lock next to nothing.
fn kept_where_it_lies() -> Result<()> {
    // The log is that of a communicator.
    let comm = Communicator::from_env()?;
    let value = |at: usize| u8::try_from(at % 251).expect("below 251");
    let is_whole = |bytes: &[u8]| bytes.iter().enumerate().all(|(at, byte)| *byte == value(at));
    let new = || (0..1 << 20).map(value).collect::<Vec<u8>>();
    let (vector, dropped) = (new(), new());
    let place = vector.as_ptr();
    let (registered, dropped) = (Registered::new(vector), Registered::new(dropped));
    assert_eq!((registered.refusal(), dropped.refusal()), (None, None));
    let (later, room) = (new(), new());
    drop(room);
    lock_new_mappings(64 << 10);
    let back = registered.into_inner();
    assert!(is_whole(&back) && back.as_ptr() != place, "a copy, since the memory stays shared");
    drop(dropped);
    // Neither can memory move; it is as it was.
    let refused = Registered::new(later);
    let why = refused.refusal().expect("no mapping can be had").to_owned();
    assert!(why.contains("mmap of"), "{why}");
    assert!(is_whole(&refused) && is_whole(&refused.into_inner()));
    note(&why);
    comm.finalize()
}

/// As `mlockall(MCL_FUTURE)` of a user who may lock `most` bytes.
fn lock_new_mappings(most: u64) {
    const CAP_IPC_LOCK: u32 = 14;
    const VERSION_3: u32 = 0x2008_0522;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the call reads one `rlimit`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
    // Of this thread: effective, permitted and inherited, twice 32 bits each.
    let (mut header, mut sets) = ([VERSION_3, 0], [0u32; 6]);
    // SAFETY: the call fills both.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) }, 0);
    sets[0] &= !(1 << CAP_IPC_LOCK);
    sets[1] &= !(1 << CAP_IPC_LOCK);
    // SAFETY: the call reads both.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) }, 0);
    // SAFETY: a plain call.
    assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0, "{}", std::io::Error::last_os_error());
}

fn buffer_without_address_space() -> Result<()> {
    limit_space(Some(64 << 20));
    let error = Buffer::<u8>::new(256 << 20).unwrap_err();
    assert!(error.kind() == Kind::System && error.message().contains("ulimit -v"), "{error}");
    limit_space(None);
    Buffer::<u8>::new(256 << 20).map(drop)
}

/// A job of such processes, started by a shell that runs `before` first.
struct Job<'a> {
    ranks: u32,
    role: &'a str,
    before: &'a str,
    variables: &'a [(&'a str, &'a str)],
}

/// What came of it.
struct Outcome {
    output: Output,
    /// Of the ranks, in order.
    notes: Vec<String>,
}

impl Job<'_> {
    fn run(&self) -> Outcome {
        let folder = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let script = format!("{}\nexec \"$@\"", self.before);
        let ranks = self.ranks.to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.args(["run", "-n", &ranks, "--timeout", "60", "--", "/bin/sh", "-c", &script, "sh"]).arg(program);
        command.args(["rank", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, self.role).env(FOLDER, folder.path()).env("RSCCL_INIT_TIMEOUT_MS", "20000");
        command.envs(self.variables.iter().copied());
        let output = command.output().unwrap();
        let notes = (0..self.ranks).map(|rank| folder.path().join(format!("{rank}.notes")));
        let notes = notes.map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect();
        Outcome { output, notes }
    }
}

impl Outcome {
    fn text(&self) -> String {
        let (out, err) = (String::from_utf8_lossy(&self.output.stdout), String::from_utf8_lossy(&self.output.stderr));
        format!("{}\nnotes {:?}\n{out}\n{err}", self.output.status, self.notes)
    }

    fn must_be_fine(&self) {
        assert!(self.output.status.success(), "{}", self.text());
    }

    /// Every rank failed, none by a signal, and each says all of `words`.
    fn must_fail_with(&self, words: &[&str]) {
        assert_eq!(self.output.status.code(), Some(7), "{}", self.text());
        // A rank that comes late to its error is ended when the first has failed.
        let told: Vec<&String> = self.notes.iter().filter(|note| !note.is_empty()).collect();
        assert!(
            !told.is_empty() && told.iter().all(|note| words.iter().all(|word| note.contains(word))),
            "{}",
            self.text()
        );
    }
}

/// Regression: with descriptors 0 to 2 closed the library's sockets had these numbers. Lines of the log and of the
/// program went into connections; rank 0 hung past every deadline.
#[test]
fn standard_streams_may_be_closed() {
    for variables in [SHM, NET] {
        for closed in ["012,012", "0,", ",2", "12,0", ",1"] {
            let logged = [variables, &[("NCCL_DEBUG", "INFO")]].concat();
            let role = format!("streams {closed}");
            Job { ranks: 2, role: &role, before: "", variables: &logged }.run().must_be_fine();
        }
    }
}

/// Regression: a program that a rank had started, and that is no rank, waited in that rank's place for two minutes, and
/// nobody said so.
#[test]
fn a_program_in_a_ranks_place_is_told_so_at_once() {
    for variables in [SHM, NET] {
        for of in ["0", "1"] {
            Job { ranks: 2, role: &format!("helpers {of}"), before: "", variables }.run().must_be_fine();
        }
    }
    // At a place that the user names.
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let place = format!("127.0.0.1:{port}");
    Job { ranks: 2, role: "helpers 1", before: "", variables: &[("NCCL_COMM_ID", &place)] }.run().must_be_fine();
}

/// Programs of all ranks in all ranks' places are a world like any other.
#[test]
fn programs_that_all_ranks_start_meet() {
    for variables in [SHM, NET] {
        Job { ranks: 3, role: "helpers all", before: "", variables }.run().must_be_fine();
    }
}

/// Regression: a limit of file sizes ended ranks by SIGXFSZ, without a word.
#[test]
fn a_limit_of_file_sizes_is_an_error_with_what_to_do() {
    let words = ["ulimit -f", "NCCL_SHM_DISABLE=1", "File too large"];
    Job { ranks: 2, role: "sum", before: "ulimit -f 64", variables: SHM }.run().must_fail_with(&words);
    let handled = "trap '' XFSZ; ulimit -f 64";
    Job { ranks: 2, role: "sum", before: handled, variables: SHM }.run().must_fail_with(&words);
}

/// What the error proposes works; a log that may not grow loses its lines, and ends nothing.
#[test]
fn ranks_work_under_a_limit_of_file_sizes_without_shared_memory() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log").to_string_lossy().into_owned();
    for limit in ["ulimit -f 1", "ulimit -f 0"] {
        let logged = [NET, &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", &log)]].concat();
        Job { ranks: 2, role: "sum", before: limit, variables: &logged }.run().must_be_fine();
    }
    assert!(log_bytes(Path::new(&log)) > 0);
}

/// Regression: a log or a report beyond the limit of file sizes ended the command.
#[test]
fn the_command_says_that_a_file_may_not_grow() {
    let folder = tempfile::tempdir().unwrap();
    let (command, place) = (env!("CARGO_BIN_EXE_rsccl"), folder.path().display());
    let logs = format!("ulimit -f 0; exec {command} run -n 2 --log-dir {place} -- echo text");
    let report = format!("ulimit -f 0; exec {command} perf all_reduce -b 8 -e 8 --json {place}/report");
    // A rank itself is ended by the signal, as anywhere else: 128 + SIGXFSZ.
    let rank = format!("ulimit -f 0; exec {command} run -n 1 -- /bin/sh -c 'exec cp /bin/sh {place}/copy'");
    let output = Command::new("/bin/sh").args(["-c", &rank]).output().unwrap();
    assert_eq!(output.status.code(), Some(128 + 25), "{output:?}");
    for words in ["tune --quick -o P/tuned", "topo --dump P/topo", "env > P/env", "perf barrier -n 1 --csv P/csv"] {
        let script = format!("ulimit -f 0; exec {command} {}", words.replace("P/", &format!("{place}/")));
        let output = Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("File too large") && text.contains("ulimit -f"), "{words}: {output:?}");
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
    }
    for (script, code, words) in [(logs, 0, "'s log file cannot be written"), (report, 1, "writing")] {
        let output = Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
        assert!(text.contains(words) && text.contains("File too large"), "{output:?}");
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
}

/// Regression: a rank that had ended without joining was named by nobody, and the others waited for it in vain.
#[test]
fn ranks_that_had_ended_before_the_first_failure_are_named() {
    let script = r#"
        # The launcher knows the order of ends once it watches all (`tfd`).
        watched() { [ $(cat /proc/$PPID/fdinfo/* 2>&1 | grep -c ^tfd) -ge 3 ]; }
        if [ $RANK = 1 ]; then until watched; do sleep 0.01; done; echo $$ > $DIR/pid1; exit 0; fi
        while [ ! -s $DIR/pid1 ]; do sleep 0.01; done
        # The job keeps what is left of it until all have ended.
        gone=$(cat $DIR/pid1)
        while kill -0 $gone && ! grep -q '^State:.Z' /proc/$gone/status; do sleep 0.01; done
        exit 7"#;
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    let job = command.args(["run", "-n", "3", "--timeout", "60", "--", "/bin/sh", "-c", script]);
    let output = job.env("DIR", folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("exited with code 7; rank 1 had ended with code 0 before"), "{said}");
}

#[test]
fn an_interface_that_the_host_lacks_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuned");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    let output = command.args(["tune", "--interface", "nosuch", "-o"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("no such interface; it has lo"), "{said}");
}

/// Without a launcher there is nothing to say of one; a launcher whose numbers are wrong is a mistake.
#[test]
fn wrong_numbers_of_a_launcher_are_told_by_the_table_of_variables() {
    for (variables, words) in [
        ([("RANK", "5"), ("WORLD_SIZE", "2")], "RANK=5 (environment) is not below WORLD_SIZE=2"),
        ([("RSCCL_RANK", "0"), ("RSCCL_WORLD_SIZE", "99999999999")], "allowed: a whole number, 1 to 1048576"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        let output = command.arg("env").env_clear().envs(variables).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(words), "{said}");
    }
}

fn log_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// Regression: every world, even of one rank, raised the soft limit to the hard one for ever, also for its children.
#[test]
fn a_small_world_leaves_the_limit_of_open_files_alone() {
    for ranks in [1, 2] {
        let outcome = Job { ranks, role: "limits", before: "ulimit -Sn 256", variables: NET }.run();
        outcome.must_be_fine();
        assert!(outcome.notes.iter().all(|note| note == "256 256 256\n"), "{}", outcome.text());
    }
}

#[test]
fn a_limit_that_is_too_low_is_raised_and_put_back() {
    let outcome = Job { ranks: 3, role: "limits", before: "ulimit -Sn 40", variables: NET }.run();
    outcome.must_be_fine();
    for note in &outcome.notes {
        let numbers: Vec<u64> = note.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect();
        assert!(numbers[0] == 40 && numbers[1] > 40 && numbers[1] < 256 && numbers[2] == 40, "{}", outcome.text());
    }
    // Never above the hard limit.
    let hard = Job { ranks: 3, role: "limits", before: "ulimit -n 40", variables: NET }.run();
    hard.must_be_fine();
    assert!(hard.notes.iter().all(|note| note == "40 40 40\n"), "{}", hard.text());
}

/// Regression: rank 0 whose store had no descriptor left to accept its own connection told "no answer yet", and other
/// steps told no remedy.
#[test]
fn a_limit_of_descriptors_that_is_too_low_for_any_world_is_told_with_what_to_do() {
    for limit in [6, 8, 9, 12] {
        let before = format!("ulimit -n {limit}");
        let variables = [NET, &[("RSCCL_INIT_TIMEOUT_MS", "1500")]].concat();
        let outcome = Job { ranks: 1, role: "sum", before: &before, variables: &variables }.run();
        // A world of one may do with few.
        if !outcome.output.status.success() {
            outcome.must_fail_with(&["Too many open files", "ulimit -n"]);
        }
        let outcome = Job { ranks: 2, role: "sum", before: &before, variables: &variables }.run();
        assert!(!outcome.output.status.success(), "{}", outcome.text());
        assert!(outcome.notes[0].is_empty() || outcome.notes[0].contains("ulimit -n"), "{}", outcome.text());
        assert!(outcome.notes.iter().any(|note| note.contains("ulimit -n")), "{}", outcome.text());
    }
}

/// Regression: ranks inherited the limit that `rsccl run` had raised for itself.
#[test]
fn run_starts_ranks_with_the_limit_that_it_found() {
    let command = format!("ulimit -Sn 30; {} run -n 8 -- /bin/sh -c 'ulimit -Sn'", env!("CARGO_BIN_EXE_rsccl"));
    let output = Command::new("/bin/sh").args(["-c", &command]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.lines().count() == 8, "{output:?}");
    assert!(text.lines().all(|line| line.ends_with("] 30")), "{text}");
}

#[test]
fn a_scope_without_a_thread_leaves_the_communicator_as_it_was() {
    for variables in [SHM, NET] {
        Job { ranks: 3, role: "scope", before: "", variables }.run().must_be_fine();
    }
}

#[test]
fn a_group_without_threads_leaves_its_communicators_as_they_were() {
    Job { ranks: 3, role: "group", before: "", variables: SHM }.run().must_be_fine();
}

#[test]
fn a_buffer_beyond_the_limit_of_address_space_names_it() {
    Job { ranks: 1, role: "space", before: "", variables: SHM }.run().must_be_fine();
}

/// Regression: what a cgroup cannot hold was given, and the first touch ended the process.
#[test]
fn what_a_memory_cgroup_cannot_hold_is_an_error_at_once() {
    let Some(group) = Group::new(64) else { return };
    let before = format!("echo $$ > {}/cgroup.procs", group.0.display());
    let outcome = Job { ranks: 1, role: "buffers", before: &before, variables: SHM }.run();
    outcome.must_be_fine();
    let words = ["has room for", "memory.", &*group.0.to_string_lossy(), "Cannot allocate memory"];
    assert!(words.iter().all(|word| outcome.notes[0].contains(word)), "{}", outcome.text());
}

/// Pages move in pieces: a cgroup of 300 MiB holds 256 MiB that move, and would end a process that moved them at once.
#[test]
fn memory_moves_where_there_is_no_room_for_it_twice() {
    let Some(group) = Group::new(300) else { return };
    let before = format!("echo $$ > {}/cgroup.procs", group.0.display());
    Job { ranks: 1, role: "moved", before: &before, variables: SHM }.run().must_be_fine();
}

/// Moving pays from some dozens of calls on.
#[test]
fn a_registration_that_is_given_back_after_few_calls_is_told_of_once() {
    let logged = [SHM, &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "REG")]].concat();
    for (calls, is_told) in [(19, true), (20, false)] {
        let outcome = Job { ranks: 2, role: &format!("counted {calls}"), before: "", variables: &logged }.run();
        outcome.must_be_fine();
        let words = format!("was given back after {calls} calls in which peers worked in it");
        // One line of each rank.
        assert_eq!(outcome.text().matches(&words).count(), if is_told { 2 } else { 0 }, "{}", outcome.text());
    }
}

/// What the kernel gives no pages for stays shared, with its content, and one line says so.
#[test]
fn memory_that_cannot_be_given_back_stays_shared_and_is_told_of_once() {
    let logged = [SHM, &[("NCCL_DEBUG", "WARN")]].concat();
    let outcome = Job { ranks: 1, role: "kept", before: "", variables: &logged }.run();
    outcome.must_be_fine();
    // One that was taken out, and one that was dropped.
    let told = outcome.text().matches("that was registered where it lies stays shared, with its content").count();
    assert!(told == 2 && outcome.notes[0].contains("mmap of"), "{}", outcome.text());
}

/// A memory cgroup of so many MiB, where this user may make one.
struct Group(PathBuf);

impl Group {
    fn new(mebibytes: u64) -> Option<Group> {
        let name = format!("rsccl-test-{}-{mebibytes}", std::process::id());
        let places = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/unified", "memory.max"),
        ];
        for (place, limit) in places {
            let folder = Path::new(place).join(&name);
            if std::fs::create_dir(&folder).is_ok() {
                let group = Group(folder);
                if std::fs::write(group.0.join(limit), (mebibytes << 20).to_string()).is_ok() {
                    return Some(group);
                }
            }
        }
        // Past the capture of tests, so that it is seen.
        drop(std::io::stderr().write_all(b"skipped: this user can make no memory cgroup\n"));
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended.
        drop(std::fs::remove_dir(&self.0));
    }
}

/// Launchers of MPIs look in the current folder too.
#[test]
fn run_names_a_program_of_the_current_folder_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("simulation"), "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    let output = command.current_dir(folder.path()).args(["run", "-n", "1", "--", "simulation"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(127));
    assert!(told.contains("cannot start simulation") && told.contains("write ./simulation"), "{told}");
}

/// The store that a user has named is not where these ranks meet; what an outer run has set is nobody's wish.
#[test]
fn run_says_that_its_ranks_meet_elsewhere_than_at_the_store_that_is_set() {
    let told = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.env_remove("RSCCL_STORE").env_remove("RSCCL_RUN").envs(variables.iter().copied());
        let output = command.args(["run", "-n", "1", "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(told(&[]), "");
    let set = told(&[("RSCCL_STORE", "file:///no/such/folder")]);
    assert_eq!(set, "rsccl run: RSCCL_STORE is set, but these ranks meet at a store of their own\n");
    assert_eq!(told(&[("RSCCL_STORE", "tcp://127.0.0.1:9"), ("RSCCL_RUN", "7")]), "");
}
