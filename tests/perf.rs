//! `rsccl perf` as users run it: every transport, the reports, and what it refuses.

use std::path::{Path, PathBuf};
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
        let options = ["--ranks", "3", "-b", "0", "-e", "40K", "-f", "40", "--check-only", "--transport", transport];
        let out = succeeds(&[&["all"][..], &options].concat());
        assert_eq!(rows(&out).len(), 16 * 4 + 1, "four sizes of sixteen collectives, and the barrier:\n{out}");
        assert_eq!(out.matches(" Rank ").count(), 3, "{out}");
    }
}

/// The matrix runs all of it between threads; here each algorithm and transport meets two of the numbers of ranks, as
/// processes.
#[test]
fn every_algorithm_by_every_transport() {
    let mut ranks = ["1", "2", "3", "4", "7", "8"].into_iter().cycle();
    for transport in ["local", "shm", "net"] {
        for algorithm in ["Ring", "Tree", "Direct", "PAT"] {
            for _ in 0..2 {
                let options = ["-b", "4", "-e", "40K", "-f", "100", "--check-only", "--transport", transport];
                let number = ["--algo", algorithm, "--ranks", ranks.next().expect("it goes round")];
                let out = succeeds(&[&["all"][..], &options, &number].concat());
                assert!(rows(&out).len() >= 3, "{number:?}:\n{out}");
            }
            // Each pair meets others than the one before.
            ranks.next();
        }
    }
}

#[test]
fn the_table_has_the_columns_of_nccl_tests() {
    let out = succeeds(&["all_reduce", "--ranks", "2", "-b", "1K", "-e", "4K", "-f", "2", "-n", "3", "-w", "1"]);
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
    let out = succeeds(&["reduce", "--ranks", "2", "-b", "24", "-d", "all", "-o", "all", "-r", "-1", "--check-only"]);
    // Six types of integers with nine operators, six of floats without the three on bits.
    assert_eq!(rows(&out).len(), (6 * 9 + 6 * 6) * 2);
}

#[test]
fn sizes_go_by_steps_where_no_factor_is_given() {
    let out = succeeds(&["broadcast", "-b", "1K", "-e", "4K", "-i", "1K", "--check-only"]);
    let sizes: Vec<_> = rows(&out).into_iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(sizes, ["1024", "2048", "3072", "4096"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    let none = command.args(["perf", "broadcast", "-b", "1K", "-e", "4K", "-i", "0"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(none.status.code() == Some(2) && said.contains("-i 0 never comes from -b 1024 to -e 4096"), "{said}");
}

#[test]
fn json_and_plot() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (json, plot) = (folder.path().join("out.json"), folder.path().join("out.svg"));
    let csv = folder.path().join("out.csv");
    let path = |path: &Path| path.to_str().expect("plain text").to_owned();
    let files = ["--json", &path(&json), "--plot", &path(&plot), "--csv", &path(&csv)];
    let csv = folder.path().join("out.csv");
    let options =
        ["all_gather", "--ranks", "2", "-b", "64", "-e", "4K", "-f", "8", "-n", "2", "-w", "3", "--algo", "Ring"];
    succeeds(&[&options[..], &files].concat());
    let report = std::fs::read_to_string(&json).expect("written");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    for part in ["machine", "commit", "versions", "settings"] {
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
    assert_eq!((&first["iters"], &first["warmup_iters"]), (&2.into(), &3.into()));
    assert!(report["command"].as_str().is_some_and(|command| command.contains(" perf all_gather --ranks 2 -b 64")));
    // 2026-01-31T12:00:00+0100
    assert!(
        report["date"].as_str().is_some_and(|date| date.len() == 24 && date.starts_with("20")),
        "{}",
        report["date"]
    );
    let drawing = std::fs::read_to_string(&plot).expect("written");
    for part in ["all_gather", "time (us)", "bus bandwidth (GB/s)", "size (bytes)"] {
        assert!(drawing.starts_with("<svg") && drawing.contains(part), "{part}: {drawing}");
    }
    let table = std::fs::read_to_string(&csv).expect("written");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!((lines.len(), lines[0][2], lines[0][8]), (1 + 6, "size_bytes", "time_us"));
    assert_eq!(lines[1][..8], ["all_gather", "2", "64", "8", "float", "none", "-1", "out-of-place"]);
    assert!(lines[1][8].parse::<f64>().is_ok_and(|time| time > 0.0) && lines[1].len() == lines[0].len(), "{table}");
}

#[test]
fn a_plot_is_a_png_where_its_name_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plot = folder.path().join("out.PNG");
    succeeds(&["reduce", "-b", "64", "-e", "1K", "-f", "4", "-n", "2", "--plot", plot.to_str().expect("plain text")]);
    let bytes = std::fs::read(&plot).expect("written");
    assert_eq!(bytes[..16], *b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    let size = |at: usize| u32::from_be_bytes(std::array::from_fn(|place| bytes[at + place]));
    assert_eq!((size(16), size(20)), (960, 902));
    assert!(bytes.len() < 100_000, "{} bytes of mostly white", bytes.len());
}

/// Each line of the legend is of a pen of its own, and the picture grows with the legend.
#[test]
fn as_many_lines_as_there_are_can_be_told_apart() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plot = folder.path().join("out.svg");
    let path = plot.to_str().expect("plain text");
    let types = ["-d", "int8,float,double", "-o", "sum,max"];
    succeeds(&[&["all_reduce,broadcast,reduce", "-b", "8", "-n", "1", "-w", "1", "--plot", path], &types[..]].concat());
    let drawing = std::fs::read_to_string(&plot).expect("written");
    let height: f64 = drawing
        .split("height=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("a height")
        .parse()
        .expect("a number");
    // The legend's strokes end 40 pixels behind the axis.
    let strokes: Vec<&str> =
        drawing.lines().filter(|line| line.contains("x1=\"88.0\"") && line.contains("x2=\"128.0\"")).collect();
    let pens: std::collections::BTreeSet<&str> =
        strokes.iter().filter_map(|line| line.split_once("stroke=").map(|(_, pen)| pen)).collect();
    assert!(strokes.len() > 20 && pens.len() == strokes.len(), "{} strokes of {} pens", strokes.len(), pens.len());
    assert!(height > 848.0 + 18.0 * strokes.len() as f64, "{height}");
}

#[test]
fn what_was_not_measured_is_not_a_number() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (json, csv) = (folder.path().join("out.json"), folder.path().join("out.csv"));
    let path = |path: &Path| path.to_str().expect("plain text").to_owned();
    let files = ["--json", &path(&json), "--csv", &path(&csv)];
    let out = succeeds(&[&["all_reduce", "-b", "64", "--check-only"][..], &files].concat());
    assert_eq!(rows(&out)[0][5..], ["N/A", "N/A", "N/A", "0", "N/A", "N/A", "N/A", "0"], "{out}");
    assert!(out.contains("# Avg bus bandwidth    : N/A"), "{out}");
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("written")).expect("JSON");
    for number in ["time_us", "algbw_gbps", "busbw_gbps"] {
        assert!(report["results"][0][number].is_null(), "{number}: {report}");
    }
    assert!(std::fs::read_to_string(&csv).expect("written").contains(",N/A,N/A,N/A,0,"));
    let out = text(&perf(&["all_reduce", "-b", "64", "-n", "1", "-w", "0", "-c", "0"]).stdout);
    assert_eq!((rows(&out)[0][8], rows(&out)[0][12]), ("N/A", "N/A"), "{out}");
    assert!(out.contains("# Out of bounds values : N/A"), "{out}");
}

#[test]
fn options_mean_what_they_mean_in_nccl_tests() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let json = folder.path().join("out.json");
    let file = json.to_str().expect("plain text");
    let options =
        ["all_reduce", "-b", "64", "-n", "3", "-w", "4", "-m", "5", "-N", "2", "-z", "1", "-p", "0", "-t", "1"];
    let out = succeeds(&[&options[..], &["-g", "1", "-y", "0", "-G", "0", "-C", "0", "-J", file]].concat());
    assert_eq!(
        (out.matches(" Rank ").count(), rows(&out).len()),
        (2, 2),
        "ranks are --ranks alone, cycles are rows: {out}"
    );
    assert!(out.contains("warmup iters: 4 iters: 3 agg iters: 5"), "{out}");
    let long = ["--warmup_iters", "1", "--agg_iters", "1", "--iters", "1", "--ngpus", "1", "--nthreads", "1"];
    succeeds(&[&["all_reduce", "-b", "64"][..], &long, &["--parallel_init", "1", "--report_cputime", "0"]].concat());
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("written")).expect("JSON");
    let first = &report["results"][0];
    assert_eq!((&first["iters"], &first["warmup_iters"]), (&15.into(), &4.into()), "three iterations of five calls");
}

/// The time of 64 bytes once was that of page faults: 5 calls of warm-up, 20 timed ones.
#[test]
fn the_default_warms_up_until_the_time_stands_and_times_for_a_while() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let json = folder.path().join("out.json");
    let file = json.to_str().expect("plain text");
    let first = |options: &[&str]| {
        succeeds(&[&["all_reduce", "-b", "64", "-J", file][..], options].concat());
        let report = std::fs::read_to_string(&json).expect("written");
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        let number = |name: &str| report["results"][0][name].as_u64().expect("a number");
        (number("warmup_iters"), number("iters"))
    };
    let (warm_up, calls) = first(&[]);
    assert!(warm_up >= 4 && calls >= 20, "{warm_up} {calls}");
    // No time at all is time for one look.
    assert_eq!(first(&["--warmup-time", "0", "-n", "7"]), (1, 7));
}

#[test]
fn the_head_says_what_else_the_machine_does() {
    let out = succeeds(&["all_reduce", "--ranks", "2", "-b", "64", "--check-only"]);
    let line = out.lines().find(|line| line.starts_with("# load: ")).unwrap_or_else(|| panic!("no load:\n{out}"));
    assert!([" processors: ", " quota: "].iter().all(|word| line.contains(word)), "{line}");
    let processors = std::thread::available_parallelism().expect("it is known").get();
    let ranks = (processors + 1).to_string();
    if processors < 64 {
        let out = succeeds(&["all_reduce", "--ranks", &ranks, "-b", "64", "--check-only"]);
        assert!(out.contains(&format!("# Warning: {ranks} ranks share ")), "{out}");
    }
}

/// A control group that leaves its processes half a processor.
struct HalfProcessor(PathBuf);

impl HalfProcessor {
    /// Why there is none, where the system does not let this user make one.
    fn make() -> Result<HalfProcessor, String> {
        let own = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let mounts = std::fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
        let mut why = "no control groups for processors are mounted".to_owned();
        for mount in mounts.lines() {
            let [_, top, kind, options] = mount.split(' ').take(4).collect::<Vec<_>>()[..] else { continue };
            let rules = |controllers: &str| controllers.split(',').any(|controller| controller == "cpu");
            if kind != "cgroup2" && !(kind == "cgroup" && rules(options)) {
                continue;
            }
            let of_kind = own.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
            let mine = |controllers: &str| if kind == "cgroup2" { controllers.is_empty() } else { rules(controllers) };
            for (_, path) in of_kind.filter(|(controllers, _)| mine(controllers)) {
                let name = format!("rsccl-perf-test-{}", std::process::id());
                let group = HalfProcessor(Path::new(top).join(path.trim_start_matches('/')).join(name));
                match group.limit(kind) {
                    Ok(()) => return Ok(group),
                    Err(error) => why = format!("{}: {error}", group.0.display()),
                }
            }
        }
        Err(why)
    }

    fn limit(&self, kind: &str) -> std::io::Result<()> {
        std::fs::create_dir(&self.0)?;
        if kind == "cgroup2" {
            return std::fs::write(self.0.join("cpu.max"), "50000 100000");
        }
        std::fs::write(self.0.join("cpu.cfs_period_us"), "100000")?;
        std::fs::write(self.0.join("cpu.cfs_quota_us"), "50000")
    }
}

impl Drop for HalfProcessor {
    fn drop(&mut self) {
        // Its processes have ended; where it was never made there is nothing to remove.
        drop(std::fs::remove_dir(&self.0));
    }
}

#[test]
fn a_quota_is_named_and_counts_as_processors() {
    let group = match HalfProcessor::make() {
        Ok(group) => group,
        Err(why) => return println!("skipped: no control group can be made here: {why}"),
    };
    let script = r#"echo $$ > "$1/cgroup.procs" && exec "$2" perf all_reduce --ranks 2 -b 64 --check-only -J -"#;
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", script, "sh"]).arg(&group.0).arg(env!("CARGO_BIN_EXE_rsccl"));
    let output = shell.output().expect("it starts");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(
        err.contains(" quota: 0.5\n") && err.contains("# Warning: a quota leaves this job the time of 0.5"),
        "{err}"
    );
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["machine"]["cpus"], 1, "{out}");
}

#[test]
fn launched_side_by_side_it_is_one_job() {
    let run = |ranks: &str, options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.args(["run", "-n", ranks, "--", env!("CARGO_BIN_EXE_rsccl"), "perf", "all_reduce", "-b", "64"]);
        let output = command.args(options).env("NCCL_SOCKET_IFNAME", "lo").output().expect("it starts");
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (right, out, err) = run("3", &["--check-only"]);
    assert!(right && out.matches("# Using ranks").count() == 1 && out.matches(" Rank ").count() == 3, "{out}{err}");
    let (right, _, err) = run("2", &["--ranks", "4"]);
    assert!(
        !right && err.contains("--ranks 4: rsccl run has started this process as one of the 2 ranks of a job"),
        "{err}"
    );
    // A world of one is a shell to start jobs from.
    let (right, out, err) = run("1", &["--check-only"]);
    assert!(right && out.matches(" Rank ").count() == 2, "{out}{err}");
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
            "--ranks",
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
        let output =
            command.env("NCCL_BUFSIZE", "x").env("NCCL_DEBUG_FILE", &file).output().expect("the binary starts");
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
    assert_eq!(count(&usual, ["[-] ", "did you mean NCCL_BUFFSIZE?"]), 1, "{usual}");
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
    command.args([
        "perf",
        "all",
        "--ranks",
        "3",
        "-b",
        "300K",
        "-R",
        "1",
        "-u",
        "3",
        "--check-only",
        "--transport",
        "shm",
    ]);
    command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "REG").env("NCCL_DEBUG_FILE", folder.path().join("log"));
    let output = command.output().expect("the binary starts");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains(" buffers: registered") && out.contains("# Out of bounds values : 0 OK"), "{out}");
    let log = std::fs::read_to_string(folder.path().join("log")).expect("the log was written");
    let lines = log.lines().filter(|line| line.contains("] RSCCL INFO Registered "));
    // Input and output of seventeen programs, and of the thirteen of them that have an in-place form.
    assert_eq!(lines.count(), 3 * 2 * (17 + 13), "{log}");
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
    let cases: [(&[&str], &str); 16] = [
        (&["all_reduce", "-G", "1"], "this command does not do that on GPUs"),
        (
            &["all_reduce", "-g", "2"],
            "-g 2: --ranks alone counts ranks, and --device names GPUs; use --ranks 2 --device cuda",
        ),
        (&["all_reduce", "-t", "4"], "use --ranks 4"),
        (&["all_reduce", "-C", "1"], "CPU time is the time shown"),
        (&["all_reduce", "--plot", "x.jpg"], "must end in .svg or .png"),
        (&["all_reduce", "--json", "/no/such/folder/x.json"], "--json /no/such/folder/x.json"),
        (&["all_reduce", "--csv", "/no/such/folder/x.csv"], "--csv /no/such/folder/x.csv"),
        (&["all_reduce", "--plot", "/no/such/folder/x.png"], "--plot /no/such/folder/x.png"),
        (&["all_produce"], "all_reduce"),
        (&["all_reduce", "-o", "band"], "bitwise"),
        (&["all_reduce", "-d", "int7"], "uint8"),
        (&["reduce", "--ranks", "2", "-r", "2"], "-r 2"),
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
        assert!(
            out.is_empty() || !reason.contains("/no/"),
            "{arguments:?}: files are opened before anything runs:\n{out}"
        );
    }
}

#[test]
fn a_report_goes_to_standard_output_and_the_exit_code_says_who_is_at_fault() {
    let perf = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.args(["perf", "all_reduce", "-b", "64", "--check-only"]).args(more).output().expect("rsccl starts")
    };
    let good = perf(&["--json", "-"]);
    let report: serde_json::Value = serde_json::from_slice(&good.stdout).expect("JSON and nothing else");
    assert_eq!(report["results"].as_array().map(Vec::len), Some(2));
    assert!(text(&good.stderr).contains("Out of bounds values : 0 OK"), "{}", text(&good.stderr));
    assert!(!std::path::Path::new("-").exists());
    let plot = std::env::temp_dir().join(format!("rsccl-no-plot-{}.svg", std::process::id()));
    for wrong in [&["--plot", plot.to_str().unwrap()][..], &["--no-such-option"], &["-r", "9"], &["--proto", "LL256"]] {
        let output = perf(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", text(&output.stderr));
    }
    assert!(!plot.exists());
    let output = perf(&["--proto", "LL128"]);
    let words = text(&output.stderr);
    assert!(words.contains("--proto") && !words.contains("RSCCL_STRICT_FILTERS"), "{words}");
}

#[test]
fn collectives_without_the_algorithm_are_left_out_and_named() {
    let out = succeeds(&["all", "--ranks", "3", "-b", "30K", "--check-only", "--algo", "PAT"]);
    assert_eq!(rows(&out).len(), 2, "all_gather and reduce_scatter");
    assert!(out.contains("left out") && out.contains("all_reduce"), "{out}");
}

#[cfg(feature = "cuda")]
#[test]
fn ranks_share_the_memory_of_a_virtual_gpu() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/vcuda/run");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", "300", script, "--strict", "1", "--", env!("CARGO_BIN_EXE_rsccl"), "perf"]);
    command.args(["all_reduce,all_gather,sendrecv,barrier", "--ranks", "3", "--device", "cuda:0", "-b", "1K"]);
    command.args(["-d", "float,half", "-n", "2", "-w", "1", "-m", "2", "-u", "1", "-c", "2"]);
    let output = command.output().expect("the machine starts");
    let text = [text(&output.stdout), text(&output.stderr)].concat();
    assert!(output.status.success(), "{text}");
    assert!(text.contains(" device 0"), "{text}");
}

/// One process for each GPU: a launcher's, or this command's own.
#[cfg(feature = "cuda")]
#[test]
fn processes_work_on_virtual_gpus_of_their_own() {
    let (script, rsccl) = (concat!(env!("CARGO_MANIFEST_DIR"), "/vcuda/run"), env!("CARGO_BIN_EXE_rsccl"));
    let launched = ["run", "-n", "2", "--", rsccl, "perf"];
    for (before, after) in [(&launched[..], &[][..]), (&["perf"], &["--ranks", "2", "--transport", "auto", "-R", "2"])]
    {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", "300", script, "--strict", "2-nvswitch", "--", rsccl]).args(before);
        command.args(["all_reduce,sendrecv", "--device", "cuda", "-b", "1K", "-d", "float"]).args(after);
        command.args(["-n", "2", "-w", "1", "-m", "2", "-u", "1", "-c", "2"]);
        let output = command.output().expect("the machine starts");
        let text = [text(&output.stdout), text(&output.stderr)].concat();
        assert!(output.status.success(), "{text}");
        assert!([" device 0", " device 1"].iter().all(|device| text.contains(device)), "{text}");
    }
}

/// What bench/gpu-check/run prints for items of its quick form on a virtual GPU, with `program` as the command, and its status.
#[cfg(feature = "cuda")]
fn check_gpu(program: &str, items: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(program, folder.path().join("rsccl")).expect("a link");
    let root = env!("CARGO_MANIFEST_DIR");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", "300", &format!("{root}/vcuda/run"), "1", "--"]);
    command.args([&format!("{root}/bench/gpu-check/run"), "--quick", "--binaries"]).arg(folder.path());
    let output = command.arg("--results").arg(folder.path()).args(items).output().expect("the machine starts");
    let kept = std::fs::read_to_string(folder.path().join("gpu-check.md")).expect("the results are kept");
    assert!(kept.contains("--quick") && kept.contains("| item | verdict |"), "{kept}");
    let told = [text(&output.stdout), text(&output.stderr)].concat();
    assert!(told.lines().filter(|line| line.starts_with("== ")).all(|line| kept.contains(line)), "{kept}");
    (output.status.code(), told)
}

#[cfg(feature = "cuda")]
#[test]
fn the_check_of_a_gpu_judges_a_virtual_one() {
    let (status, told) = check_gpu(env!("CARGO_BIN_EXE_rsccl"), &[]);
    assert_eq!(status, Some(0), "{told}");
    let verdict = |item: &str, words: &str| {
        let start = format!("== {item}: {words}");
        assert!(told.lines().any(|line| line.starts_with(&start)), "{start}:\n{told}");
    };
    verdict("attributes", "ok");
    verdict("modules", "ok");
    verdict("litmus", "skipped: the driver here is the virtual one");
    verdict("conformance", "ok: 2 cases, without the tests of faults_processes, matrix");
    verdict("sanitizer", "skipped: compute-sanitizer works on the real driver only");
    verdict("figures", "ok: no goal judged");
    let facts = told.lines().find(|line| line.starts_with("== facts: ")).expect("a verdict");
    assert!(facts.contains(": ok") || facts.contains(": skipped: bench/gpu-probe needs"), "{facts}");
}

#[cfg(feature = "cuda")]
#[test]
fn the_check_of_a_gpu_says_what_failed() {
    let (status, told) = check_gpu("/bin/false", &["conformance", "figures"]);
    assert_eq!(status, Some(1), "{told}");
    for words in ["== conformance: FAILED: 2 of it: 2 threads: status 1", "== figures: FAILED: 3 of it"] {
        assert!(told.contains(words), "{told}");
    }
}
