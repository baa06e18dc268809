//! `rsccl perf` as users run it: every transport, the reports, and what it refuses.

#![cfg(feature = "cli")]

use std::path::Path;
use std::process::{Command, Output};

fn perf(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    // The table says what the library would choose, so nothing of the caller's environment may choose for it.
    for name in ["NCCL_ALGO", "RSCCL_ALGO", "NCCL_PROTO", "RSCCL_PROTO", "NCCL_COMM_ID", "RSCCL_COMM_ID"] {
        command.env_remove(name);
    }
    command.arg("perf").args(arguments).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(arguments: &[&str]) -> String {
    let output = perf(arguments);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {:?}\n{out}\n{err}", output.status);
    assert!(out.contains("# Out of bounds values : 0 OK"), "{arguments:?}:\n{out}");
    out
}

/// The lines of the table: those that begin with a number.
fn rows(out: &str) -> Vec<Vec<&str>> {
    let lines = out.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn every_collective_by_every_transport() {
    for transport in ["local", "shm", "net", "auto"] {
        let options = ["-n", "3", "-b", "0", "-e", "40K", "-f", "40", "--check-only", "--transport", transport];
        let out = succeeds(&[&["all"][..], &options].concat());
        assert_eq!(rows(&out).len(), 12 * 4 + 1, "four sizes of twelve collectives, and the barrier:\n{out}");
        assert_eq!(out.matches(" Rank ").count(), 3, "{out}");
    }
}

#[test]
fn the_table_has_the_columns_of_nccl_tests() {
    let out = succeeds(&["all_reduce", "-n", "2", "-b", "1K", "-e", "4K", "-f", "2", "--iters", "3", "-w", "1"]);
    let rows = rows(&out);
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[1][..5], ["2048", "512", "float", "sum", "-1"]);
    for row in rows {
        assert_eq!(row.len(), 13, "{row:?}");
        assert!(row[5].parse::<f64>().is_ok_and(|time| time > 0.0), "{row:?}");
        assert_eq!((row[8], row[12]), ("0", "0"), "{row:?}");
    }
}

#[test]
fn types_operators_and_roots_are_all_run() {
    let out = succeeds(&["reduce", "-n", "2", "-b", "24", "-d", "all", "-o", "all", "-r", "-1", "--check-only"]);
    // Six types of integers with nine operators, six of floats without the three on bits.
    assert_eq!(rows(&out).len(), (6 * 9 + 6 * 6) * 2);
}

#[test]
fn sizes_go_by_steps_where_no_factor_is_given() {
    let out = succeeds(&["broadcast", "-b", "1K", "-e", "4K", "-i", "1K", "--check-only"]);
    let sizes: Vec<_> = rows(&out).into_iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(sizes, ["1024", "2048", "3072", "4096"]);
}

#[test]
fn json_and_plot() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (json, plot) = (folder.path().join("out.json"), folder.path().join("out.svg"));
    let path = |path: &Path| path.to_str().expect("plain text").to_owned();
    let files = ["--json", &path(&json), "--plot", &path(&plot)];
    let options = ["all_gather", "-n", "2", "-b", "64", "-e", "4K", "-f", "8", "--iters", "2", "--algo", "Ring"];
    succeeds(&[&options[..], &files].concat());
    let report = std::fs::read_to_string(&json).expect("written");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    for part in ["machine", "commit", "versions"] {
        assert!(report.get(part).is_some(), "{part}");
    }
    let results = report["results"].as_array().expect("a list");
    assert_eq!(results.len(), 6, "three sizes, out of place and in place");
    let first = &results[0];
    assert_eq!((&first["collective"], &first["type"]), (&"all_gather".into(), &"float".into()));
    assert_eq!((&first["ranks"], &first["bytes"], &first["count"]), (&2.into(), &64.into(), &8.into()));
    assert_eq!((&first["algorithm"], &first["transport"]), (&"Ring".into(), &"local".into()));
    assert_eq!(first["protocol"], "Simple", "what was chosen, not what was asked for");
    assert_eq!((&first["wrong"], &first["in_place"], &first["op"]), (&0.into(), &false.into(), &().into()));
    for number in ["time_us", "algbw_gbps", "busbw_gbps"] {
        assert!(first[number].as_f64().is_some_and(|value| value > 0.0), "{number}: {first}");
    }
    let drawing = std::fs::read_to_string(&plot).expect("written");
    assert!(drawing.starts_with("<svg") && drawing.contains("all_gather"), "{}", &drawing[..200]);
}

#[test]
fn the_log_says_in_nccls_words_what_is_called_and_how_it_is_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = |name: &str, transport: &str, subsystems: &str| {
        // The log is added to what is there.
        let file = folder.path().join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.args([
            "perf",
            "all_reduce,send_recv",
            "-n",
            "2",
            "-b",
            "16",
            "-e",
            "64K",
            "-f",
            "4096",
            "--check-only",
        ]);
        command.args(["--transport", transport]).env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", subsystems);
        let output = command.env("RSCCL_ALG", "x").env("NCCL_DEBUG_FILE", &file).output().expect("the binary starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        std::fs::read_to_string(&file).expect("the log was written")
    };
    let count =
        |log: &str, parts: [&str; 2]| log.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count();

    let calls = log("calls", "local", "COLL,TUNING");
    for rank in ["[0] RSCCL INFO ", "[1] RSCCL INFO "] {
        let count = |part: &str| count(&calls, [rank, part]);
        assert_eq!(count("AllReduce: 16 Bytes -> Algo Direct proto LL"), 2, "out of place, in place:\n{calls}");
        assert_eq!(count("AllReduce: 65536 Bytes -> Algo Direct proto Simple"), 2, "{calls}");
        assert_eq!(count(" count 16384 datatype float op sum root 0 comm "), 2, "{calls}");
        assert_eq!(count("Send: opCount 0 sendbuff 0x"), 1, "{calls}");
        assert_eq!(count("Recv: opCount 1 sendbuff 0x0 recvbuff 0x"), 1, "{calls}");
    }
    let usual = log("usual", "local", "INIT,ENV");
    assert_eq!(count(&usual, ["[-] ", "did you mean RSCCL_ALGO?"]), 1, "{usual}");
    assert_eq!(count(&usual, ["[-] RSCCL INFO ", "NCCL_DEBUG set by environment to INFO"]), 1, "{usual}");
    assert_eq!(count(&usual, ["Init timings - local: rank 1 nranks 2 total ", "(bootstrap "]), 1, "{usual}");
    assert_eq!(count(&usual, ["rank 0 nranks 2", "Destroy COMPLETE"]), 1, "{usual}");
    for (transport, subsystem, how) in
        [("local", "P2P", "P2P/direct pointer"), ("shm", "SHM", "SHM/memfd"), ("net", "NET", "NET/Socket")]
    {
        let log = log(transport, transport, subsystem);
        let ends = if transport == "net" { 2 } else { 1 };
        for pair in ["Channel 00/1 : 0 -> 1 ", "Channel 00/1 : 1 -> 0 "] {
            assert_eq!(count(&log, [pair, how]), ends, "{log}");
        }
    }
}

#[test]
fn registered_buffers_are_worked_in_in_place() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    command.args(["perf", "all", "-n", "3", "-b", "300K", "-R", "1", "-u", "3", "--check-only", "--transport", "shm"]);
    command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "REG").env("NCCL_DEBUG_FILE", folder.path().join("log"));
    let output = command.output().expect("the binary starts");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains(" buffers: registered") && out.contains("# Out of bounds values : 0 OK"), "{out}");
    let log = std::fs::read_to_string(folder.path().join("log")).expect("the log was written");
    let lines = log.lines().filter(|line| line.contains("] RSCCL INFO Registered "));
    // Input and output of thirteen programs, and of the nine of them that have an in-place form.
    assert_eq!(lines.count(), 3 * 2 * (13 + 9), "{log}");
}

#[test]
fn as_one_process_of_a_launcher() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    command.args(["run", "-n", "3", "--", env!("CARGO_BIN_EXE_rsccl"), "perf", "all_reduce", "--launched"]);
    let output =
        command.args(["-b", "60K", "--check-only"]).env("NCCL_SOCKET_IFNAME", "lo").output().expect("it starts");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("transport: auto") && out.contains("ranks 3") && out.contains(" 0 OK"), "{out}");
}

#[test]
fn what_cannot_be_done_is_refused_with_a_reason() {
    let cases: [(&[&str], &str); 9] = [
        (&["all_reduce", "-G", "1"], "graph"),
        (&["all_produce"], "all_reduce"),
        (&["all_reduce", "-o", "band"], "bitwise"),
        (&["all_reduce", "-d", "int7"], "uint8"),
        (&["reduce", "-n", "2", "-r", "2"], "-r 2"),
        (&["all_reduce", "-b", "8K", "-e", "1K"], "-b 8192"),
        (&["all_reduce", "-b", "eight"], "eight"),
        (&["gather", "-b", "4K", "--transport", "net", "--algo", "Ring"], "Ring"),
        (&["all_reduce", "--algo", "Rong"], "Rong"),
    ];
    for (arguments, reason) in cases {
        let output = perf(arguments);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(!output.status.success(), "{arguments:?} went through:\n{out}");
        assert!(err.contains(reason), "{arguments:?}: `{reason}` is not in: {err}");
    }
}

#[test]
fn collectives_without_the_algorithm_are_left_out_and_named() {
    let out = succeeds(&["all", "-n", "3", "-b", "30K", "--check-only", "--algo", "PAT"]);
    assert_eq!(rows(&out).len(), 2, "all_gather and reduce_scatter");
    assert!(out.contains("left out") && out.contains("all_reduce"), "{out}");
}
