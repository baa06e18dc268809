//! What settings do to a job, as its users see it: which ones end it, what it says, and what changes.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use rsccl::comm::CallCount;
use rsccl::types::{Collective, DataType};
use rsccl::{Communicator, ReduceOp};

/// Where a test starts this program as a rank, this is the rank.
#[test]
#[ignore = "one rank of the jobs that the tests of this file start: alone it is no test"]
fn worker() {
    if !is_rank() {
        return;
    }
    let summed = Communicator::from_env().and_then(|comm| {
        let mut sum = vec![comm.rank() + 1; 1 << 16];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        let chosen = comm.chosen(Collective::AllReduce, DataType::F32, &CallCount::Each(1 << 20))?;
        comm.finalize()?;
        Ok(format!("sum {} channels {}", sum[0], chosen.map_or(0, |chosen| chosen.channels)))
    });
    match summed {
        // The test's own output has begun a line.
        Ok(said) => println!("\n{said}"),
        Err(error) => panic!("{error}"),
    }
}

#[expect(clippy::disallowed_methods, reason = "the role of a test's process is no configuration of the library")]
fn is_rank() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// What became of the ranks of a job.
struct Outcome {
    succeeded: bool,
    /// By rank.
    stdout: Vec<String>,
    stderr: Vec<String>,
}

impl Outcome {
    fn must_succeed(self) -> Outcome {
        assert!(self.succeeded, "{}\n{}", self.stdout.concat(), self.stderr.concat());
        for stdout in &self.stdout {
            assert!(stdout.lines().any(|line| line.starts_with("sum 3 ")), "{stdout}");
        }
        self
    }

    /// How many lines of standard error have all of these parts.
    fn told(&self, parts: &[&str]) -> usize {
        self.stderr
            .iter()
            .flat_map(|text| text.lines())
            .filter(|line| parts.iter().all(|part| line.contains(part)))
            .count()
    }

    fn logged(&self, parts: &[&str]) -> usize {
        self.stdout
            .iter()
            .flat_map(|text| text.lines())
            .filter(|line| parts.iter().all(|part| line.contains(part)))
            .count()
    }

    fn channels(&self) -> Vec<u32> {
        let number = |text: &String| text.lines().find_map(|line| line.split_once(" channels ")?.1.parse().ok());
        self.stdout.iter().map(|text| number(text).unwrap()).collect()
    }
}

/// Two ranks with these variables, which meet in a folder unless a variable says where.
fn job(variables: &[(&str, &str)]) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let start = |rank: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "worker", "--ignored", "--nocapture"]).env_clear().env("HOME", folder.path());
        command.envs([(ROLE, "rank"), ("RSCCL_RANK", rank), ("RSCCL_WORLD_SIZE", "2"), ("NCCL_SOCKET_IFNAME", "lo")]);
        command.envs([("RSCCL_INIT_TIMEOUT_MS", "60000"), ("RSCCL_TIMEOUT_MS", "60000")]);
        if !variables.iter().any(|(name, _)| *name == "NCCL_COMM_ID") {
            command.env("RSCCL_STORE", &store);
        }
        command.envs(variables.iter().copied()).current_dir(&folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks = ["0", "1"].map(start);
    let outputs = ranks.map(|rank| std::thread::scope(|scope| scope.spawn(|| rank.wait_with_output()).join()));
    let outputs = outputs.map(|output| output.unwrap().unwrap());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Outcome {
        succeeded: outputs.iter().all(|output| output.status.success()),
        stdout: outputs.iter().map(|output| text(&output.stdout)).collect(),
        stderr: outputs.iter().map(|output| text(&output.stderr)).collect(),
    }
}

fn file(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_file_that_is_not_there_is_told_and_the_job_goes_on() {
    for name in ["NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"] {
        let outcome = job(&[(name, "/none/of.xml")]).must_succeed();
        assert_eq!(outcome.told(&["rsccl: warning: ", name, "/none/of.xml"]), 1, "{:?}", outcome.stderr);
    }
    let folder = tempfile::tempdir().unwrap();
    let conf = file(folder.path(), "nccl.conf", "NCCL_TOPO_FILE=/none/of.xml\nNCCL_DEBUG=WARN\n");
    let outcome = job(&[("NCCL_CONF_FILE", &conf)]).must_succeed();
    assert_eq!((outcome.told(&["of.xml"]), outcome.logged(&["WARN", "/none/of.xml"])), (1, 2), "{:?}", outcome.stdout);
}

/// A machine's file of topology is for the GPUs and NICs in it: ranks on host memory stand where the system says.
#[test]
fn a_topology_file_of_gpus_does_not_touch_a_job_on_host_memory() {
    let folder = tempfile::tempdir().unwrap();
    let malformed = file(folder.path(), "bad.xml", "<system version=\"1\">\n<cpu numaid=\"x\"/></system>");
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/topo/machines/p4d.xml");
    for path in [&*malformed, machine, folder.path().to_str().unwrap()] {
        let outcome = job(&[("NCCL_TOPO_FILE", path)]).must_succeed();
        assert_eq!(outcome.told(&["rsccl: "]), 0, "{:?}", outcome.stderr);
    }
}

#[test]
fn lines_of_a_configuration_file_that_nccl_leaves_out_end_no_program() {
    let folder = tempfile::tempdir().unwrap();
    let conf = file(folder.path(), "nccl.conf", "[site]\nexport NCCL_DEBUG=INFO\nNCCL_DEBUG=WARN\n");
    let outcome = job(&[("NCCL_CONF_FILE", &conf)]).must_succeed();
    assert_eq!(outcome.logged(&["WARN", "nccl.conf:1, and line 2: ignored"]), 2, "{:?}", outcome.stdout);
    assert_eq!(outcome.told(&["rsccl: "]), 0, "{:?}", outcome.stderr);
}

#[test]
fn settings_of_the_log_end_no_program() {
    let folder = tempfile::tempdir().unwrap();
    let (long, here) = ("x".repeat(5000), folder.path().to_str().unwrap());
    let mut wrong = vec![
        ("NCCL_DEBUG", "FOO"),
        ("RSCCL_DEBUG", "3"),
        ("NCCL_DEBUG_SUBSYS", "INIT,^ENV"),
        ("NCCL_DEBUG_SUBSYS", "FOO"),
        ("NCCL_DEBUG_FILE", "/none/log"),
        ("NCCL_DEBUG_FILE", here),
        ("NCCL_DEBUG_FILE", &long),
        ("NCCL_DEBUG_TIMESTAMP_FORMAT", &long),
        ("NCCL_DEBUG_TIMESTAMP_LEVELS", "LOUD"),
    ];
    // Nobody reads from it: to open it for writing would wait for ever.
    let fifo = folder.path().join("fifo").to_str().unwrap().to_owned();
    if Command::new("mkfifo").arg(&fifo).status().is_ok_and(|status| status.success()) {
        wrong.push(("NCCL_DEBUG_FILE", &fifo));
    }
    for (name, value) in wrong {
        let loud = if name.ends_with("_DEBUG") { ("HOST", "") } else { ("NCCL_DEBUG", "INFO") };
        let outcome = job(&[loud, (name, value)]).must_succeed();
        assert_eq!(outcome.told(&["rsccl: warning: ", name]), 1, "{name}={value}: {:?}", outcome.stderr);
        let lines = if name.ends_with("_DEBUG") { 0 } else { 2 };
        assert_eq!(outcome.logged(&["INFO", "Init COMPLETE"]), lines, "{name}={value}: {:?}", outcome.stdout);
        assert_eq!(outcome.logged(&["INFO", "set by environment"]) > 0, lines > 0, "the usual parts: {name}={value}");
    }
}

#[test]
fn settings_of_the_log_mean_what_they_do_in_nccl() {
    let silent = job(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "")]).must_succeed();
    assert_eq!(silent.logged(&["INFO"]), 0, "an empty list has nothing: {:?}", silent.stdout);
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("log%q.%P.%%.%").to_str().unwrap().to_owned();
    job(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", &pattern)]).must_succeed();
    let text = std::fs::read_to_string(folder.path().join("log%q.%P.%.%")).expect("what is no pattern is kept");
    assert!(text.contains("Init COMPLETE"), "{text}");
    for level in ["ABORT", "TRACE", "none"] {
        let outcome = job(&[("NCCL_DEBUG", level)]).must_succeed();
        assert_eq!(outcome.logged(&["INFO", "Init COMPLETE"]), if level == "none" { 0 } else { 2 }, "{level}");
        assert_eq!(outcome.told(&["rsccl: "]), 0, "{:?}", outcome.stderr);
    }
}

#[test]
fn the_log_has_the_name_of_the_communicator_and_the_times_that_are_asked_for() {
    let variables = [
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_COMM_NAME", "weather"),
        ("NCCL_DEBUG_TIMESTAMP_FORMAT", "<%Y|%3f> "),
        ("NCCL_DEBUG_TIMESTAMP_LEVELS", "INFO"),
    ];
    let outcome = job(&variables).must_succeed();
    assert_eq!(outcome.logged(&[" commName weather ", "Init COMPLETE"]), 2, "{:?}", outcome.stdout);
    for line in outcome.stdout.iter().flat_map(|text| text.lines()).filter(|line| line.contains(" RSCCL INFO ")) {
        let (year, fraction) = line.strip_prefix('<').unwrap().split_once("> ").unwrap().0.split_once('|').unwrap();
        assert!(year.len() == 4 && fraction.len() == 3, "{line}");
        assert!(year.chars().chain(fraction.chars()).all(|digit| digit.is_ascii_digit()), "{line}");
    }
    let usual = job(&[("NCCL_DEBUG", "INFO")]).must_succeed();
    assert_eq!(usual.logged(&["["]), usual.logged(&["[0]"]) + usual.logged(&["[1]"]) + usual.logged(&["[-]"]));
}

#[test]
fn mistyped_names_are_told() {
    for name in ["RSCCL_TIMEOUT", "RSCCL_REPRODUCABLE"] {
        let outcome = job(&[(name, "10")]);
        assert!(!outcome.succeeded, "no other program reads {name}");
        assert_eq!(outcome.told(&[name, "did you mean RSCCL_"]), 2, "{:?}", outcome.stderr);
    }
    for (name, meant) in [("NCCL_BUFSIZE", "NCCL_BUFFSIZE"), ("NCCL_TIMEOUT_MS", "RSCCL_TIMEOUT_MS")] {
        let outcome = job(&[(name, "1000")]).must_succeed();
        assert_eq!(outcome.told(&["rsccl: warning: ", name, "did you mean", meant]), 1, "{:?}", outcome.stderr);
    }
    let quiet = job(&[("NCCL_IB_HCA", "mlx5"), ("RSCCL_ROOT", "/opt/rsccl"), ("RSCCL_TIMEOUT_MS", "")]).must_succeed();
    assert_eq!(quiet.told(&["rsccl: "]), 0, "{:?}", quiet.stderr);
}

#[test]
fn channels_are_bounded_by_the_user() {
    let over_sockets = ("NCCL_SHM_DISABLE", "1");
    let channels = |variables: &[(&str, &str)]| job(&[variables, &[over_sockets]].concat()).must_succeed().channels();
    assert_eq!(channels(&[]), [2, 2]);
    assert_eq!(channels(&[("NCCL_MAX_NCHANNELS", "1")]), [1, 1]);
    assert_eq!(channels(&[("NCCL_MIN_NCHANNELS", "8")]), [8, 8]);
    // In memory that the ranks of a host share, four are the most; the log says so.
    let shared = job(&[("NCCL_MIN_NCHANNELS", "8"), ("NCCL_DEBUG", "WARN")]).must_succeed();
    assert_eq!(shared.channels(), [4, 4]);
    assert!(shared.logged(&["WARN", "NCCL_MIN_NCHANNELS=8", "at most 4"]) >= 1, "{:?}", shared.stdout);
    assert_eq!(job(&[("NCCL_MIN_NCHANNELS", "3")]).must_succeed().channels(), [3, 3]);
}

#[test]
fn ranks_meet_at_an_address_with_a_secret_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let secret = file(folder.path(), "secret", "open sesame\n");
    private(Path::new(&secret));
    // No other process uses an address of loopback that is this process's own.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let address = format!("127.41.{high}.{low}");
    let free = TcpListener::bind((&*address, 0)).unwrap().local_addr().unwrap();
    let place = free.to_string();
    let outcome =
        job(&[("NCCL_COMM_ID", &place), ("RSCCL_SECRET_FILE", &secret), ("NCCL_DEBUG", "WARN")]).must_succeed();
    assert_eq!(outcome.logged(&["no secret"]), 0, "{:?}", outcome.stdout);
    let without = job(&[("NCCL_COMM_ID", &place), ("NCCL_DEBUG", "WARN")]).must_succeed();
    assert_eq!(without.logged(&["WARN", "no secret"]), 1, "{:?}", without.stdout);
}

fn private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// In the environment of a rank.
const ROLE: &str = "SETTINGS_ROLE";
