//! The log as a program gets it: installed once for the process, so this file has one test.

use rsccl::config::{Config, Environment};
use rsccl::log;

#[test]
fn installing_prints_to_the_file_that_the_variables_name() {
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("log.%h.%p");
    let bad = folder.path().join("none/log");
    let resolve = |file: &str| {
        let variables =
            [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,ENV"), ("NCCL_DEBUG_FILE", file), ("RSCCL_ALG", "x")];
        Config::default().resolve_in(&Environment::of(variables)).unwrap()
    };
    let error = log::install(&resolve(bad.to_str().unwrap())).unwrap_err().to_string();
    assert!(error.contains("NCCL_DEBUG_FILE=") && error.contains("none/log"), "{error}");

    let config = resolve(pattern.to_str().unwrap());
    log::install(&config).unwrap();
    log::install(&config).unwrap();
    log::version();
    log::version();
    tracing::info!(target: "rsccl::init", rank = 2u32, "hello");
    tracing::info!(target: "rsccl::net", "unseen");
    tracing::debug!(target: "rsccl::init", "unseen");
    let warned_at = line!() + 1;
    tracing::warn!(target: "rsccl::net", peer = 3, "seen");
    tracing::warn!(target: "another::net", "unseen");

    let host = rsccl::internals::sys::host::hostname().unwrap();
    let host = host.split('.').next().unwrap();
    let process = std::process::id();
    let text = std::fs::read_to_string(folder.path().join(format!("log.{host}.{process}"))).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let begin = format!("{host}:{process}:{} ", rsccl::internals::sys::host::thread_id());
    assert_eq!(lines.iter().filter(|line| **line == "RSCCL version 0.1.0").count(), 1, "{text}");
    assert_eq!(lines.iter().filter(|line| **line == format!("{begin}[2] RSCCL INFO hello")).count(), 1, "{text}");
    assert_eq!(lines.iter().filter(|line| line.contains("did you mean RSCCL_ALGO?")).count(), 1, "{text}");
    let set = format!("{begin}[-] RSCCL INFO NCCL_DEBUG set by environment to INFO");
    assert!(lines.contains(&&*set), "{text}");
    let [.., before, warning] = lines[..] else { panic!("{text}") };
    assert!(before.is_empty(), "{text}");
    // The time, then the line: [2026-01-31 12:00:00] host:..
    let (time, rest) = warning.split_at("[2026-01-31 12:00:00] ".len());
    assert!(time.starts_with("[20") && time.ends_with("] "), "{warning}");
    assert_eq!(rest, format!("{begin}[-] {}:{warned_at} RSCCL WARN seen peer=3", file!()));
    assert!(!text.contains("unseen"), "{text}");
}
