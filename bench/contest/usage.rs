//! What this process takes: processor time, memory, descriptors, threads.

use std::fs;

/// Seconds of processor time, of the program and of the kernel for it.
pub(crate) fn processor_s() -> f64 {
    // SAFETY: `rusage` is plain numbers, for which zero bytes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a place for the answer.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The session of this process: the scheduler shares processors out among sessions.
pub(crate) fn session() -> i32 {
    // SAFETY: it asks for the number of the caller's own session.
    unsafe { libc::getsid(0) }
}

/// kB resident, kB of its share of shared pages, descriptors, threads: a JSON object.
pub(crate) fn now() -> String {
    let (status, pages) = ("/proc/self/status", "/proc/self/smaps_rollup");
    // The folder itself is open while it is read.
    let descriptors = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1));
    format!(
        r#"{{"rss_kb":{},"pss_kb":{},"descriptors":{descriptors},"threads":{}}}"#,
        field(status, "VmRSS:"),
        field(pages, "Pss:"),
        field(status, "Threads:")
    )
}

fn field(file: &str, name: &str) -> i64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(-1)
}
