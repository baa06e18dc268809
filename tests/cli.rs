//! The command line: the table of variables, and jobs that end as they should and leave nothing behind.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rsccl::internals::sys::process::{Exit, Group, Signal, Want, wait_ready};
use tempfile::TempDir;

/// A run of `rsccl` with an environment of its own and its output in files.
struct Job {
    folder: TempDir,
    group: Group,
}

struct Outcome {
    exit: Exit,
    stdout: String,
    stderr: String,
}

impl Job {
    fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Job {
        Job::fed(arguments, variables, Stdio::null())
    }

    fn fed(arguments: &[&str], variables: &[(&str, &str)], stdin: Stdio) -> Job {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| File::create(folder.path().join(name)).unwrap();
        // Signals that the caller of the tests ignores (nohup, a shell's background job) get their defaults back in the
        // job.
        let mut command = Command::new("/usr/bin/env");
        command.args(["--default-signal", env!("CARGO_BIN_EXE_rsccl")]).args(arguments);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", folder.path());
        command.env("DIR", folder.path()).envs(variables.iter().copied());
        command.stdin(stdin).stdout(file("stdout")).stderr(file("stderr"));
        Job { group: Group::start(&mut command).unwrap(), folder }
    }

    /// Ranks that run `script` in a shell; `$DIR` is a folder of the job's own.
    fn of_ranks(ranks: &str, options: &[&str], script: &str) -> Job {
        Job::start(&[&["run", "-n", ranks], options, &["--", "/bin/sh", "-c", script]].concat(), &[])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.path(name)).unwrap_or_default()).into_owned()
    }

    fn finish(mut self) -> (Outcome, TempDir) {
        let mut exit = None;
        until("the job ends", || {
            exit = self.group.exit().unwrap();
            exit.is_some()
        });
        let outcome = Outcome { exit: exit.unwrap(), stdout: self.read("stdout"), stderr: self.read("stderr") };
        (outcome, self.folder)
    }

    fn outcome(self) -> Outcome {
        self.finish().0
    }
}

/// Waits until `come` says so; fails the test when it does not come in good time.
fn until(what: &str, come: impl FnMut() -> bool) {
    assert!(machine::until(PATIENCE, come), "waited {PATIENCE:?} until {what}");
}

/// Waits until the processes whose numbers are in the files `names` of `folder` have ended.
fn until_gone(folder: &Path, names: &[&str]) {
    for name in names {
        let number = std::fs::read_to_string(folder.join(name)).unwrap();
        let stat = format!("/proc/{}/stat", number.trim());
        until("an orphan has ended", || {
            let text = std::fs::read_to_string(&stat).unwrap_or_default();
            // A zombie has ended; the first process of a container may never reap it.
            text.is_empty() || text.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z"))
        });
    }
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn version_and_help() {
    let version = Job::start(&["--version"], &[]).outcome();
    assert_eq!((version.exit, &*version.stdout), (Exit::Code(0), &*format!("rsccl {}\n", env!("CARGO_PKG_VERSION"))));
    let wrong = Job::start(&["run", "-n", "0", "true"], &[]).outcome();
    assert!(wrong.exit == Exit::Code(2) && wrong.stderr.contains("1..=4096"), "{}", wrong.stderr);
    let wrong = Job::start(&["run", "-n", "1", "--timeout", "-1", "true"], &[]).outcome();
    assert!(wrong.exit == Exit::Code(2) && wrong.stderr.contains("seconds above 0"), "{}", wrong.stderr);
}

#[test]
fn env_prints_every_variable_with_value_and_source() {
    let variables =
        [("NCCL_ALGO", "Ring"), ("RSCCL_SECRET", "sesame"), ("NCCL_BUFSIZE", "x"), ("RANK", "1"), ("WORLD_SIZE", "2")];
    let table = Job::start(&["env"], &variables).outcome();
    assert_eq!(table.exit, Exit::Code(0), "{}", table.stderr);
    for variable in rsccl::internals::config::VARIABLES {
        assert!(table.stdout.contains(&variable.full_name()) && table.stdout.contains(variable.doc));
    }
    let algo = table.stdout.lines().find(|line| line.starts_with("NCCL_ALGO ")).unwrap();
    assert_eq!(algo.split_whitespace().take(5).collect::<Vec<_>>(), ["NCCL_ALGO", "text", "-", "Ring", "environment"]);
    assert!(table.stdout.contains("Launched as rank 1 of 2 by torchrun, no store."), "{}", table.stdout);
    assert!(table.stdout.contains("As it is launched: no place to meet: "), "{}", table.stdout);
    assert!(table.stderr.contains("did you mean NCCL_BUFFSIZE?"), "{}", table.stderr);
    assert!(!table.stdout.contains("sesame"));
    for (name, words) in [("NCCL_DEBUG ", "VERSION, WARN, ATTN, INFO, ABORT, TRACE"), ("RSCCL_COHORT ", "joint, split")]
    {
        let line = table.stdout.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.ends_with(&format!("({words})")), "{line}");
    }

    let json = Job::start(&["env", "--json"], &variables).outcome();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["variables"].as_array().unwrap().len(), rsccl::internals::config::VARIABLES.len());
    assert_eq!((&json["launch"]["rank"], &json["launch"]["launcher"]), (&1.into(), &"torchrun".into()));
    assert_eq!(json["notes"][0]["level"], "mistake");
}

#[test]
fn env_shows_the_table_in_spite_of_bad_values_and_fails() {
    let bad = Job::start(&["env"], &[("NCCL_BUFFSIZE", "much")]).outcome();
    assert_eq!(bad.exit, Exit::Code(2));
    assert!(
        bad.stdout.contains("environment (bad)") && bad.stderr.contains("NCCL_BUFFSIZE=\"much\""),
        "{}",
        bad.stderr
    );
    let pair = [("NCCL_SOCKET_NTHREADS", "16"), ("NCCL_NSOCKS_PERTHREAD", "16")];
    let bad = Job::start(&["env"], &pair).outcome();
    assert!(bad.exit == Exit::Code(2) && bad.stderr.contains("at most 64"), "{}", bad.stderr);
}

/// Every program refuses these, though the table of variables cannot tell.
#[test]
fn env_refuses_what_programs_refuse() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "no such thing\n").unwrap();
    let file = file.to_str().unwrap();
    for (name, value) in [
        ("NCCL_ALGO", "Rign"),
        ("NCCL_PROTO", "XX"),
        ("RSCCL_PROCESSORS", "abc"),
        ("RSCCL_TUNE_FILE", "/nonexistent"),
        ("RSCCL_TUNE_FILE", file),
        ("RSCCL_SWITCH_FILE", "/nonexistent"),
        ("RSCCL_SECRET_FILE", "/nonexistent"),
        ("NCCL_TOPO_FILE", file),
        ("NCCL_GRAPH_FILE", file),
        ("NCCL_P2P_LEVEL", "near"),
        ("NCCL_SOCKET_IFNAME", "^"),
        ("RSCCL_RAILS", "eth0"),
        ("RSCCL_TCP_CONGESTION", "carrier-pigeon"),
        ("NCCL_COMM_ID", "nowhere"),
        ("NCCL_SOCKET_RCVBUF", "1"),
        ("RSCCL_ALGO", "Rign"),
    ] {
        let bad = Job::start(&["env"], &[(name, value)]).outcome();
        assert_eq!(bad.exit, Exit::Code(2), "{name}={value}");
        assert_eq!(bad.stdout.matches("environment (bad)").count(), 1, "{name}={value}: {}", bad.stdout);
        assert!(bad.stderr.contains(name.split_once('_').unwrap().1), "{}", bad.stderr);
    }
    let unknown = Job::start(&["env"], &[("RSCCL_STOR", "x")]).outcome();
    assert_eq!(unknown.exit, Exit::Code(2));
    assert_eq!(unknown.stderr.matches("did you mean RSCCL_STORE?").count(), 1, "{}", unknown.stderr);
    // What programs only warn of.
    for (name, value) in [("NCCL_DEBUG", "LOUD"), ("NCCL_TOPO_FILE", "/none/of.xml"), ("NCCL_ALGO", "NVLS")] {
        let good = Job::start(&["env"], &[(name, value)]).outcome();
        assert_eq!((good.exit, good.stdout.contains("(bad)")), (Exit::Code(0), false), "{}", good.stderr);
        assert_eq!(good.stderr.contains(&format!("rsccl: warning: {name}=")), name != "NCCL_ALGO", "{}", good.stderr);
    }
}

#[test]
fn ranks_get_their_environment_and_a_prefix() {
    let script = r#"
        echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR"
        [ "$RSCCL_STORE" = "tcp://$MASTER_ADDR:$MASTER_PORT" ] && [ ${#RSCCL_SECRET} = 64 ] && echo complete >&2
        printf 'no end'"#;
    let outcome = Job::of_ranks("3", &[], script).outcome();
    assert_eq!(outcome.exit, Exit::Code(0), "{}", outcome.stderr);
    let expected: Vec<String> =
        (0..3).flat_map(|rank| [format!("[{rank}] {rank} {rank} 3 3 127.0.0.1"), format!("[{rank}] no end")]).collect();
    assert_eq!(sorted(&outcome.stdout), expected);
    assert_eq!(sorted(&outcome.stderr), ["[0] complete", "[1] complete", "[2] complete"]);
}

#[test]
fn an_outer_launcher_does_not_reach_the_ranks() {
    let variables = [("RSCCL_RANK", "5"), ("RSCCL_WORLD_SIZE", "9"), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
    let told = Job::start(&["run", "-n", "2", "--", env!("CARGO_BIN_EXE_rsccl"), "env"], &variables).outcome().stdout;
    let all = ["Launched as rank 1 of 2 by rsccl run, tcp://127.0.0.1:", "ranks meet by the store that rank 0 serves"];
    assert!(all.iter().all(|words| told.contains(words)), "{told}");
}

#[test]
fn the_first_failure_is_named_and_ends_the_others() {
    let script = r#"
        echo $$ > $DIR/pid$RANK
        if [ $RANK = 2 ]; then
            while [ ! -s $DIR/pid0 ] || [ ! -s $DIR/pid1 ] || [ ! -s $DIR/pid3 ]; do sleep 0.01; done
            exit 42
        fi
        exec sleep 1000"#;
    let (outcome, folder) = Job::of_ranks("4", &[], script).finish();
    assert_eq!(outcome.exit, Exit::Code(42));
    let pid = std::fs::read_to_string(folder.path().join("pid2")).unwrap();
    let said =
        format!("rsccl run: rank 2 of 4 (process {}) exited with code 42; the other ranks are ended\n", pid.trim());
    assert_eq!(outcome.stderr, said);
    until_gone(folder.path(), &["pid0", "pid1", "pid2", "pid3"]);
}

#[test]
fn a_signal_that_ends_a_rank_is_named() {
    let outcome = Job::of_ranks("1", &[], "kill -SEGV $$").outcome();
    assert_eq!(outcome.exit, Exit::Code(128 + 11));
    assert!(outcome.stderr.contains("rank 0 of 1") && outcome.stderr.contains("was ended by SIGSEGV"));
}

#[test]
fn ranks_may_say_what_they_know_before_the_first_failure_ends_them() {
    // Rank 0 fails because of rank 1's death, and is seen first; rank 2 says why it fails after both have ended.
    let script = r#"
        echo $$ > $DIR/pid$RANK
        # Ended, whether or not the launcher has reaped it.
        gone() { [ -s $DIR/pid$1 ] && ! grep -qs '^State:.[^Z]' /proc/$(cat $DIR/pid$1)/status; }
        case $RANK in
            0) exit 3 ;;
            1) until gone 0; do sleep 0.01; done; kill -ILL $$ ;;
            2) until gone 1; do sleep 0.01; done; echo "the cause" >&2; exit 4 ;;
        esac"#;
    let outcome = Job::of_ranks("3", &[], script).outcome();
    assert_eq!(outcome.exit, Exit::Code(128 + 4), "{}", outcome.stderr);
    let lines = sorted(&outcome.stderr);
    assert!(lines[0] == "[2] the cause" && lines[1].starts_with("rsccl run: rank 1 of 3 (process "), "{lines:?}");
    assert!(lines[1].ends_with(") was ended by SIGILL") && lines.len() == 2, "{lines:?}");
}

/// Rank 1 leaves with 3, and rank 0 falls over that: by an exception that nobody catches, as a pipe's writer, by a code.
#[test]
fn the_first_cause_is_named_and_not_what_fell_over_it() {
    for (fall, others) in [("kill -ABRT $$", "; the other ranks are ended"), ("kill -PIPE $$", ""), ("exit 1", "")] {
        // In the second round the launcher, once it watches all (`tfd`), sees both ends at once: which came first?
        for stopped in [false, true] {
            let others = if stopped { "" } else { others };
            let script = format!(
                r#"
                gone() {{ [ -s $DIR/pid$1 ] && ! grep -qs '^State:.[^Z]' /proc/$(cat $DIR/pid$1)/status; }}
                echo $$ > $DIR/$RANK; mv $DIR/$RANK $DIR/pid$RANK
                case $RANK in
                    0) until gone 1; do sleep 0.01; done; {fall} ;;
                    1) until [ -s $DIR/pid0 ] && [ $(cat /proc/$PPID/fdinfo/* 2>&1 | grep -c ^tfd) -ge 3 ]; do sleep 0.01; done; {} exit 3 ;;
                    2) until gone 0; do sleep 0.01; done; {} exec sleep 1000 ;;
                esac"#,
                if stopped { "kill -STOP $PPID;" } else { "" },
                if others.is_empty() { "exit 0;" } else { "" },
            );
            let job = Job::of_ranks("3", &[], &script);
            if stopped {
                until("the ranks are there", || (0..3).all(|rank| job.path(&format!("pid{rank}")).exists()));
                until_gone(job.folder.path(), &["pid0", "pid1", "pid2"]);
                job.group.signal(Signal::CONTINUE).unwrap();
            }
            let (outcome, folder) = job.finish();
            let pid = std::fs::read_to_string(folder.path().join("pid1")).unwrap();
            let said = format!("rsccl run: rank 1 of 3 (process {}) exited with code 3{others}\n", pid.trim());
            assert_eq!((outcome.exit, outcome.stderr), (Exit::Code(3), said), "{fall}, stopped: {stopped}");
        }
    }
}

#[test]
fn what_ranks_leave_behind_ends_with_the_job() {
    let script = "sleep 1000 & echo $! > $DIR/background$RANK; echo done";
    let (outcome, folder) = Job::of_ranks("2", &[], script).finish();
    assert_eq!((outcome.exit, sorted(&outcome.stdout)), (Exit::Code(0), vec!["[0] done", "[1] done"]));
    until_gone(folder.path(), &["background0", "background1"]);
}

#[test]
fn ranks_end_with_a_launcher_that_is_killed() {
    let job = Job::of_ranks("2", &[], "echo $$ > $DIR/pid$RANK; exec sleep 1000");
    until("both ranks run", || ["pid0", "pid1"].iter().all(|name| !job.read(name).is_empty()));
    job.group.signal(Signal::KILL).unwrap();
    let (outcome, folder) = job.finish();
    assert_eq!(outcome.exit, Exit::Signal(Signal::KILL));
    until_gone(folder.path(), &["pid0", "pid1"]);
}

/// The ranks note the signal and end with `code`, and so does the job.
fn forwarded(signal: Signal, trap: &str, code: i32) {
    let script =
        format!("trap 'echo got {trap}; exit {code}' {trap}; : > $DIR/ready$RANK; while :; do sleep 0.01; done");
    let job = Job::of_ranks("2", &[], &script);
    until("both ranks are ready", || ["ready0", "ready1"].iter().all(|name| job.path(name).exists()));
    job.group.signal(signal).unwrap();
    let outcome = job.outcome();
    assert_eq!(outcome.exit, Exit::Code(code), "{}", outcome.stderr);
    assert_eq!(sorted(&outcome.stdout), [format!("[0] got {trap}"), format!("[1] got {trap}")]);
}

#[test]
fn signals_are_passed_on() {
    forwarded(Signal::TERMINATE, "TERM", 7);
    forwarded(Signal::INTERRUPT, "INT", 7);
    // USR1 does not ask the job to end. A code other than 0 would count as a failure here, and the launcher would end
    // the
    // other rank before it can write its line.
    forwarded(Signal::USER_1, "USR1", 0);
}

#[test]
fn a_rank_that_heeds_no_signal_is_killed_at_the_second() {
    let script = "trap '' INT TERM; echo $$ > $DIR/pid$RANK; while :; do sleep 0.01; done";
    let job = Job::of_ranks("2", &[], script);
    until("both ranks are ready", || ["pid0", "pid1"].iter().all(|name| !job.read(name).is_empty()));
    job.group.signal(Signal::INTERRUPT).unwrap();
    // A signal of another number: two pending signals of one number would be merged into one.
    job.group.signal(Signal::TERMINATE).unwrap();
    let (outcome, folder) = job.finish();
    assert_eq!(outcome.exit, Exit::Code(128 + 9), "{}", outcome.stderr);
    until_gone(folder.path(), &["pid0", "pid1"]);
}

#[test]
fn the_time_limit_names_who_had_not_ended() {
    let script = "[ $RANK = 1 ] && exit 0; exec sleep 1000";
    let outcome = Job::of_ranks("4", &["--timeout", "0.5"], script).outcome();
    assert_eq!(outcome.exit, Exit::Code(124));
    assert!(outcome.stderr.contains("ranks 0, 2-3 had not ended"), "{}", outcome.stderr);
}

#[test]
fn a_program_that_cannot_start_is_named() {
    let missing = Job::start(&["run", "-n", "2", "--", "/no/such/program"], &[]).outcome();
    assert_eq!(missing.exit, Exit::Code(127));
    assert!(missing.stderr.contains("cannot start /no/such/program as rank 0"), "{}", missing.stderr);
    let folder = Job::start(&["run", "-n", "2", "--", "/etc"], &[]).outcome();
    assert_eq!(folder.exit, Exit::Code(126));
}

#[test]
fn long_and_binary_output_comes_through_in_pieces() {
    let script = r#"head -c 3000000 /dev/zero | tr '\0' x; printf '\377\000\n'"#;
    let (outcome, folder) = Job::of_ranks("2", &[], script).finish();
    assert_eq!(outcome.exit, Exit::Code(0));
    let bytes = std::fs::read(folder.path().join("stdout")).unwrap();
    assert_eq!(bytes.iter().filter(|byte| **byte == b'x').count(), 6_000_000);
    assert_eq!(bytes.iter().filter(|byte| **byte == 0).count(), 2);
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    assert!(
        lines
            .clone()
            .all(|line| line.len() <= (16 << 10) + 4 && (line.starts_with(b"[0] ") || line.starts_with(b"[1] ")))
    );
}

#[test]
fn a_reader_that_leaves_ends_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("{} run -n 2 yes | head -n 1; echo over", env!("CARGO_BIN_EXE_rsccl"));
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]).stdout(File::create(folder.path().join("stdout")).unwrap());
    let mut group = Group::start(&mut command).unwrap();
    until("the pipeline ends", || group.exit().unwrap().is_some());
    let text = std::fs::read_to_string(folder.path().join("stdout")).unwrap();
    assert!(text.ends_with("] y\nover\n"), "{text}");
}

#[test]
fn an_interrupt_that_the_caller_ignores_stays_ignored_and_sigterm_ends_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, program) = (folder.path().display(), env!("CARGO_BIN_EXE_rsccl"));
    let rank = format!("trap ': > {dir}/told$RANK' USR1; : > {dir}/ready$RANK; while :; do sleep 0.01; done");
    // As a shell starts its background jobs.
    let mut command = Command::new("/usr/bin/env");
    command.args(["--default-signal", "/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh", program]);
    command.args(["run", "-n", "2", "--", "/bin/sh", "-c", &rank]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(folder.path().join("stderr")).unwrap());
    let mut group = Group::start(&mut command).unwrap();
    let all = |name: &str| (0..2).all(|rank| folder.path().join(format!("{name}{rank}")).exists());
    until("both ranks are ready", || all("ready"));
    group.signal(Signal::INTERRUPT).unwrap();
    // The launcher takes the lower number first: once the ranks have been told, it has dealt with the interrupt.
    group.signal(Signal::USER_1).unwrap();
    until("both ranks are told", || all("told"));
    assert_eq!(group.exit().unwrap(), None, "the interrupt has ended nothing");
    group.signal(Signal::TERMINATE).unwrap();
    let mut exit = None;
    until("the job ends", || {
        exit = group.exit().unwrap();
        exit.is_some()
    });
    let stderr = std::fs::read_to_string(folder.path().join("stderr")).unwrap();
    // The shells speak of their own children; the launcher has nothing to say.
    assert!(exit == Some(Exit::Code(128 + 15)) && !stderr.contains("rsccl run:"), "{exit:?} {stderr}");
}

#[test]
fn rank_0_has_the_standard_input_and_the_others_have_none() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let job = Job::fed(&["run", "-np", "2", "--", "/bin/sh", "-c", "wc -c"], &[], reader.into());
    // More than a pipe holds, so it is passed on as rank 0 reads.
    let text = "x".repeat(300_000);
    std::io::Write::write_all(&mut writer, text.as_bytes()).unwrap();
    drop(writer);
    let outcome = job.outcome();
    assert_eq!((outcome.exit, sorted(&outcome.stdout)), (Exit::Code(0), vec!["[0] 300000", "[1] 0"]));
    // A program that does not read its input ends too.
    let (reader, writer) = std::io::pipe().unwrap();
    let outcome = Job::fed(&["run", "-n", "1", "true"], &[], reader.into()).outcome();
    assert_eq!(outcome.exit, Exit::Code(0), "{}", outcome.stderr);
    drop(writer);
}

#[test]
fn each_rank_has_a_log_file() {
    let script = "echo out $RANK; echo err $RANK >&2; printf 'no end'";
    let job = Job::of_ranks("2", &["--log-dir", "/dev/null/logs"], script).outcome();
    assert!(job.exit == Exit::Code(1) && job.stderr.contains("--log-dir: /dev/null/logs"), "{}", job.stderr);
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("a/b");
    let outcome = Job::of_ranks("2", &["--log-dir", logs.to_str().unwrap()], script).outcome();
    assert_eq!(sorted(&outcome.stdout), ["[0] no end", "[0] out 0", "[1] no end", "[1] out 1"]);
    for rank in 0..2 {
        let log = std::fs::read_to_string(logs.join(format!("rank-{rank}.log"))).unwrap();
        for part in [format!("out {rank}\n"), format!("err {rank}\n"), "no end".to_owned()] {
            assert!(log.contains(&part) && !log.contains('['), "{log}");
        }
    }
}

/// Output as it would be without the launcher; the log files are as ever.
#[test]
fn output_has_no_prefix_if_none_is_wanted() {
    let bytes = "one\\n\\n\\377[0] two\\nno end";
    let script = format!("printf '{bytes}'; echo err >&2");
    let folder = tempfile::tempdir().unwrap();
    let outputs = |options: &[&str]| {
        let (outcome, job) = Job::of_ranks("1", options, &script).finish();
        assert_eq!(outcome.exit, Exit::Code(0), "{}", outcome.stderr);
        (std::fs::read(job.path().join("stdout")).unwrap(), outcome.stderr)
    };
    let log = folder.path().to_str().unwrap();
    assert_eq!(
        outputs(&["--no-prefix", "--log-dir", log]),
        (b"one\n\n\xff[0] two\nno end".to_vec(), "err\n".to_owned())
    );
    assert_eq!(outputs(&[]), (b"[0] one\n[0] \n[0] \xff[0] two\n[0] no end\n".to_vec(), "[0] err\n".to_owned()));
    let logged = std::fs::read(folder.path().join("rank-0.log")).unwrap();
    assert!(logged.starts_with(b"err\none\n") || logged.starts_with(b"one\n\n\xff[0] two\nno end"), "{logged:?}");
    // More than the launcher holds at a time, in one line.
    let long = Job::of_ranks("1", &["--no-prefix"], "head -c 100000 /dev/zero | tr '\\0' x; echo y").outcome();
    assert_eq!(long.stdout, "x".repeat(100_000) + "y\n");
    // The launcher's own words stay apart from a line that has no end.
    let failed = Job::of_ranks("1", &["--no-prefix"], "printf 'why' >&2; exit 3").outcome();
    let lines = sorted(&failed.stderr);
    assert!(
        failed.exit == Exit::Code(3) && lines[0].starts_with("rsccl run: rank 0 ") && lines[1] == "why",
        "{lines:?}"
    );
    let several = Job::of_ranks("3", &["--no-prefix"], "echo $RANK; printf 'no end'").outcome();
    assert_eq!(sorted(&several.stdout), ["0", "1", "2", "no end", "no end", "no end"]);
    let help = Job::start(&["run", "--help"], &[]).outcome();
    assert!(help.stdout.contains("--no-prefix"), "{}", help.stdout);
}

#[test]
fn ranks_are_bound_to_cores_or_nodes() {
    let script = "grep Cpus_allowed_list /proc/self/status";
    let outcome = Job::of_ranks("1", &["--bind", "core"], script).outcome();
    assert_eq!(outcome.exit, Exit::Code(0), "{}", outcome.stderr);
    let free = Job::of_ranks("1", &["--nproc-per-node", "1"], script).outcome();
    assert_eq!(free.exit, Exit::Code(2), "two names of one option: {}", free.stderr);
    let cores = Job::of_ranks("4096", &["--bind", "core"], script).outcome();
    assert!(cores.exit == Exit::Code(1) && cores.stderr.contains("4096 ranks need a core each"), "{}", cores.stderr);
}

#[test]
fn options_of_other_launchers_are_taken_or_named() {
    let script = ["--", "/bin/sh", "-c", "echo $A $B"];
    for options in [
        &["-n2", "--bind-to", "none", "-x", "A=1", "-x", "B", "-H", "localhost:2"][..],
        &["-np2", "-genv", "A", "1", "--oversubscribe", "-bind-to=none"],
        &["-n=2", "-env", "A", "1", "--nnodes=1"],
        &["--np", "2", "--env=A=1"],
        &["-n", "2", "-genv", "A=1"],
        &["-xA=1", "-N1", "-n", "2"],
    ] {
        let outcome = Job::start(&[&["run"], options, &script].concat(), &[("B", "b")]).outcome();
        assert_eq!(
            (outcome.exit, sorted(&outcome.stdout)),
            (Exit::Code(0), vec!["[0] 1 b", "[1] 1 b"]),
            "{}",
            outcome.stderr
        );
    }
    for (options, told) in [
        (&["-n", "2", "--bindto", "core"][..], "there is no option --bindto; did you mean --bind?"),
        (&["--timeot", "3", "-n", "2"], "there is no option --timeot; did you mean --timeout?"),
        (&["-n", "2", "-H", "a,b"], "-H a,b: \"a\" is not this host: `rsccl run` starts ranks on this host alone"),
        (&["-n", "2", "-x", "RANK=7"], "`rsccl run` gives RANK to each rank itself"),
        (&["-n", "2", "--bind-to", "socket"], "[possible values: core, numa, none]"),
        (&["-n", "0"], "0 is not in 1..=4096"),
        (&["-n", "2", "--oversubscribe=false"], "--oversubscribe=false: --oversubscribe has no value"),
        (&[], "--ranks <N>"),
    ] {
        let outcome = Job::start(&[&["run"], options, &["--", "true"]].concat(), &[]).outcome();
        assert!(outcome.exit == Exit::Code(2) && outcome.stderr.contains(told), "{options:?}: {}", outcome.stderr);
    }
}

#[test]
fn help_is_spelt_in_many_ways() {
    for help in ["--help", "-help", "-h", "--h"] {
        let outcome = Job::start(&["run", "-n", "1", help], &[]).outcome();
        assert_eq!(outcome.exit, Exit::Code(0), "{help}: {}", outcome.stderr);
        assert!(outcome.stdout.contains("Usage: rsccl run"), "{help}: {}", outcome.stdout);
    }
}

/// What stands behind `:` is a program's own, unless it is how mpirun is given a second program.
#[test]
fn a_second_program_is_refused_and_a_colon_is_not() {
    for (words, said) in [
        (&["--", "echo", ":", "-nothing"][..], "[0] : -nothing\n"),
        (&["echo", ":", "-nothing"], "[0] : -nothing\n"),
        (&["--", "echo", ":", "-n", "2", "./b"], "[0] : -n 2 ./b\n"),
    ] {
        let outcome = Job::start(&[&["run", "-n", "1"], words].concat(), &[]).outcome();
        assert_eq!((outcome.exit, &*outcome.stdout), (Exit::Code(0), said), "{words:?}: {}", outcome.stderr);
    }
    for words in [&[":", "--np", "2", "./b"][..], &[":", "-H", "b", "./b"], &[":", "-n1", "./b"]] {
        let outcome = Job::start(&[&["run", "-n", "1", "echo", "a"], words].concat(), &[]).outcome();
        let told = "`rsccl run` starts one program: to run several, start a script that chooses one by RSCCL_RANK";
        assert!(outcome.exit == Exit::Code(2) && outcome.stderr.contains(told), "{words:?}: {}", outcome.stderr);
    }
}

/// A question without an end of line is shown, and what the rank says after the answer stands behind it.
#[test]
fn a_question_is_shown_before_its_line_ends() {
    let script = r#"[ $RANK = 0 ] || exit 0; printf 'name? '; read name; echo "hello $name""#;
    let (stdin, mut answers) = std::io::pipe().unwrap();
    let (mut questions, stdout) = std::io::pipe().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    command
        .args(["run", "-n", "2", "--", "/bin/sh", "-c", script])
        .stdin(stdin)
        .stdout(stdout)
        .stderr(Stdio::inherit());
    let mut group = Group::start(&mut command).unwrap();
    drop(command);
    let mut shown = String::new();
    read_until(&mut questions, &mut shown, "name? ");
    std::io::Write::write_all(&mut answers, b"you\n").unwrap();
    read_until(&mut questions, &mut shown, "\n");
    assert_eq!(shown, "[0] name? hello you\n");
    until("the job ends", || group.exit().unwrap() == Some(Exit::Code(0)));
}

/// Standard output and standard error are one pipe: what is said on the one begins a line of its own where a question
/// on the other has not ended.
#[test]
fn a_question_and_an_error_share_no_line() {
    for (other, said) in [("[ $RANK = 1 ]", "[1] err"), ("[ $RANK = 0 ]", "[0] err")] {
        let folder = tempfile::tempdir().unwrap();
        let ask = "[ $RANK = 1 ] || printf 'name? '";
        let wait = format!("if {other}; then until [ -e $DIR/go ]; do sleep 0.01; done; echo err >&2; fi");
        let script = format!("{ask}; {wait}; [ $RANK = 1 ] || {{ read name; echo \"hello $name\"; }}");
        let (stdin, mut answers) = std::io::pipe().unwrap();
        let (mut questions, stdout) = std::io::pipe().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.args(["run", "-n", "2", "--", "/bin/sh", "-c", &script]).env("DIR", folder.path());
        command.stdin(stdin).stderr(stdout.try_clone().unwrap()).stdout(stdout);
        let mut group = Group::start(&mut command).unwrap();
        drop(command);
        let mut shown = String::new();
        read_until(&mut questions, &mut shown, "name? ");
        std::fs::write(folder.path().join("go"), "").unwrap();
        read_until(&mut questions, &mut shown, "err\n");
        std::io::Write::write_all(&mut answers, b"you\n").unwrap();
        read_until(&mut questions, &mut shown, "you\n");
        assert_eq!(shown, format!("[0] name? \n{said}\n[0] hello you\n"));
        until("the job ends", || group.exit().unwrap() == Some(Exit::Code(0)));
    }
}

/// Machines without an address of IPv4; the network's address is new, and the kernel still looks whether another host has
/// it. They are network namespaces, in which every port is free.
#[test]
fn machines_with_ipv6_only_run_jobs_by_every_way_to_meet() {
    let run = |setup: &str, command: &str, variables: &[(&str, &str)]| {
        let script = format!("ip link set lo up && ip addr del 127.0.0.1/8 dev lo && {setup} {command}");
        let folder = tempfile::tempdir().unwrap();
        let words = ["-k", "100", "60", "unshare", "--net", "sh", "-c", &script];
        let mut child = Command::new("timeout");
        child.args(words).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", folder.path());
        child.env("R", env!("CARGO_BIN_EXE_rsccl")).env("DIR", folder.path()).envs(variables.iter().copied());
        let output = child.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let able = run("true", "", &[]);
    if able.0 != Some(0) {
        let told =
            format!("skipped: a machine with IPv6 only needs a network namespace, root and iproute2: {}", able.1);
        std::io::Write::write_all(&mut std::io::stderr(), format!("{}\n", told.trim()).as_bytes()).unwrap();
        return;
    }
    let network = "ip link add v0 type veth peer name v1 && ip link set v1 up && ip link set v0 up && \
                   ip addr add fd00::5/64 dev v0 && ip addr show tentative | grep -q fd00::5 &&";
    let job = "perf all_reduce --transport net -n 1 -w 0 -b 1K -e 1K";
    let launched = format!("\"$R\" run -n 2 -- \"$R\" {job}");
    let alone = format!("\"$R\" {job} --ranks 2");
    let by_hand = format!(
        "{{ RSCCL_RANK=1 RSCCL_WORLD_SIZE=2 \"$R\" {job} & RSCCL_RANK=0 RSCCL_WORLD_SIZE=2 \"$R\" {job} && wait $!; }}"
    );
    let file = format!("RSCCL_STORE=file://$DIR/store; export RSCCL_STORE; {by_hand}");
    let (secret, name) = (("RSCCL_SECRET", "all ranks know it"), "hostname ipv6-only && ");
    let hosts = "echo 127.0.1.1 ipv6-only >$DIR/hosts && mount --bind $DIR/hosts /etc/hosts && ";
    let named = format!("unshare --uts --mount sh -c '{name}{hosts}{by_hand}'");
    for (setup, command, variables) in [
        ("", &launched, &[][..]),
        ("", &alone, &[]),
        ("", &file, &[]),
        ("", &by_hand, &[("RSCCL_STORE", "tcp://localhost:2000")]),
        ("", &by_hand, &[("RSCCL_STORE", "tcp://[::1]:2000")]),
        ("", &by_hand, &[("MASTER_ADDR", "localhost"), ("MASTER_PORT", "2000")]),
        ("", &by_hand, &[("NCCL_COMM_ID", "[::1]:2000")]),
        ("", &named, &[("MASTER_ADDR", "ipv6-only"), ("MASTER_PORT", "2000"), secret]),
        (network, &launched, &[]),
        (network, &alone, &[]),
        (network, &file, &[]),
        (network, &by_hand, &[("RSCCL_STORE", "tcp://[fd00::5]:2000")]),
        (network, &by_hand, &[("NCCL_COMM_ID", "[fd00::5]:2000")]),
    ] {
        let (code, said) = run(setup, command, variables);
        let right = said.matches("Out of bounds values : 0 OK").count();
        assert_eq!((code, right), (Some(0), 1), "{setup} {command} {variables:?}: {said}");
    }
    for command in ["\"$R\" topo", "\"$R\" run -n 2 -- sh -c 'test $MASTER_ADDR = ::1'"] {
        let (code, said) = run("", command, &[]);
        assert_eq!(code, Some(0), "{command}: {said}");
    }
}

/// Reads into `seen` until it ends with `end`.
fn read_until(pipe: &mut std::io::PipeReader, seen: &mut String, end: &str) {
    while !seen.ends_with(end) {
        let ready = wait_ready(&[(pipe.as_fd(), Want::Read)], Some(PATIENCE)).unwrap();
        assert!(ready[0], "waited {PATIENCE:?} for {end:?} behind {seen:?}");
        let mut bytes = [0; 256];
        let count = std::io::Read::read(pipe, &mut bytes).unwrap();
        assert!(count > 0, "the output ended behind {seen:?}");
        seen.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
}

/// What a command does with this standard output: its exit code and what it says on standard error.
fn with_output(arguments: &[&str], stdout: impl Into<Stdio>) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    let output = command.args(arguments).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
    let output = output.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The commands, each with enough to print.
const PRINTING: [&[&str]; 6] = [
    &["--help"],
    &["env"],
    &["topo"],
    &["sim", "barrier", "--ranks", "2"],
    &["perf", "barrier", "-n", "1", "-w", "1"],
    &["run", "-n", "2", "echo", "something"],
];

#[test]
fn a_full_disk_is_an_error_of_every_command() {
    for arguments in PRINTING {
        let (code, said) = with_output(arguments, File::options().write(true).open("/dev/full").unwrap());
        assert!(code == Some(1) && said.contains("No space left on device"), "{arguments:?}: {code:?} {said}");
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    }
    // A standard error that takes nothing is no reason to panic: the exit code is the last word.
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    let wrong =
        command.args(["sim", "all_reduce", "--algo", "Fast"]).stdout(Stdio::null()).stderr(full()).status().unwrap();
    assert_eq!(wrong.code(), Some(2));
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    let lost =
        command.args(["run", "-n", "1", "--", "/bin/sh", "-c", "echo lost >&2"]).stderr(full()).status().unwrap();
    assert_eq!(lost.code(), Some(1));
}

/// A reader that has left has read enough.
#[test]
fn a_reader_that_leaves_is_no_error_of_what_was_printed() {
    for arguments in PRINTING.iter().filter(|arguments| arguments[0] != "run") {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, said) = with_output(arguments, writer);
        assert!(code == Some(0) && !said.contains("pipe") && !said.contains("panicked"), "{arguments:?}: {said}");
    }
}

/// Standard output that does not block, as other programs leave it behind: a slow reader gets every byte.
#[test]
fn output_that_does_not_block_is_waited_for() {
    let file = format!("{}/src/topo/machines/h100x8.xml", env!("CARGO_MANIFEST_DIR"));
    let arguments = ["topo", "--file", &file, "--hosts", "8", "--json"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    let whole = command.args(arguments).output().unwrap().stdout;
    let (mut slow, fast) = UnixStream::pair().unwrap();
    fast.set_nonblocking(true).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    command.args(arguments).stdout(OwnedFd::from(fast)).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    drop(command);
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut got = Vec::new();
    // Small pieces: whoever writes is far ahead.
    let mut bytes = [0; 512];
    loop {
        match std::io::Read::read(&mut slow, &mut bytes).unwrap() {
            0 => break,
            count => got.extend_from_slice(&bytes[..count]),
        }
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && got == whole, "{} of {} bytes: {said}", got.len(), whole.len());
}

/// Where the configuration was used, and not where lines are written.
#[test]
fn a_warning_names_the_place_that_it_comes_from() {
    let perf = ["perf", "barrier", "--ranks", "1", "-n", "1", "-w", "1"];
    let outcome = Job::start(&perf, &[("NCCL_DEBUG", "WARN"), ("NCCL_BUFSIZE", "1M")]).outcome();
    let all = outcome.stdout + &outcome.stderr;
    let warnings: Vec<&str> = all.lines().filter(|line| line.contains("RSCCL WARN")).collect();
    assert!(warnings.iter().any(|line| line.contains("did you mean NCCL_BUFFSIZE?")), "{all}");
    assert!(warnings.iter().all(|line| line.contains(" src/comm/") && !line.contains(" src/log.rs:")), "{all}");
}

#[test]
fn ranks_that_ignore_an_interrupt_are_spoken_of() {
    let job = Job::of_ranks("2", &[], "trap '' INT; : > $DIR/ready$RANK; while :; do sleep 0.01; done");
    until("both ranks are ready", || ["ready0", "ready1"].iter().all(|name| job.path(name).exists()));
    job.group.signal(Signal::INTERRUPT).unwrap();
    until("the launcher says what a second signal does", || {
        let said = job.read("stderr");
        said.contains("rsccl run: ranks 0-1 did not end at SIGINT so far: killed in ")
            && said.contains(" s (the signal again: at once)\n")
    });
    job.group.signal(Signal::INTERRUPT).unwrap();
    assert_eq!(job.outcome().exit, Exit::Code(128 + 9));
}

/// Far beyond what any step takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// `rsccl tune` writes what ranks read, or measures nothing; a file that somebody changed is refused with its line.
#[test]
fn what_tune_measures_is_a_file_for_ranks() {
    let (outcome, _) = Job::start(&["tune", "-o", "/absent/tuned"], &[]).finish();
    assert_eq!((outcome.exit, &*outcome.stdout), (Exit::Code(1), ""), "{}", outcome.stderr);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuned");
    let (outcome, _) = Job::start(&["tune", "--quick", "-o", file.to_str().unwrap()], &[]).finish();
    assert_eq!(outcome.exit, Exit::Code(0), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("a message over TCP"), "{}", outcome.stdout);
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().next(), Some("rsccl-tune 1"), "{text}");
    let perf = ["perf", "all_reduce", "-n", "2", "-b", "1K", "-e", "1K", "--check-only"];
    let (outcome, _) = Job::start(&perf, &[("RSCCL_TUNE_FILE", file.to_str().unwrap())]).finish();
    assert_eq!(outcome.exit, Exit::Code(0), "{}", outcome.stderr);
    std::fs::write(&file, text.replace("flag_us = ", "flag_us = 1")).unwrap();
    let (outcome, _) = Job::start(&perf, &[("RSCCL_TUNE_FILE", file.to_str().unwrap())]).finish();
    assert_ne!(outcome.exit, Exit::Code(0));
    // The hash stands in the last line.
    let words = format!("tuned:{}: the constants have the hash ", text.lines().count());
    assert!(outcome.stderr.contains(&words), "{}", outcome.stderr);
}
