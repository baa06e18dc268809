//! What the reports say of machine and build.

use std::path::Path;
use std::process::{Command, Stdio};

use rsccl::Result;
use rsccl::config::{Config, Environment};
use rsccl::internals::config::Setting;
use rsccl::internals::sys::{cpu, host};
use serde_json::{Value, json};

/// The host's name.
pub(crate) fn hostname() -> String {
    host::hostname().unwrap_or_else(|_| "unknown".to_owned())
}

/// This process.
pub(crate) fn pid() -> u32 {
    std::process::id()
}

/// The machine, for JSON.
pub(crate) fn machine() -> Value {
    json!({
        "hostname": hostname(),
        "processor": processor(),
        "cpus": cpu::allowed(),
        "memory_bytes": memory_bytes(),
        "architecture": std::env::consts::ARCH,
    })
}

/// When the report was made: local time with its distance from UTC.
pub(crate) fn date() -> String {
    host::local_time(host::wall_time(), "%Y-%m-%dT%H:%M:%S%z")
}

/// The command line, as it was given.
pub(crate) fn command() -> String {
    let mut words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    // The processes of other transports are told their rank so.
    if let Some(place) = words.iter().position(|word| word == "--worker") {
        words.truncate(place);
    }
    words.join(" ")
}

/// Every setting that is not the default, with its source.
pub(crate) fn settings() -> Result<Value> {
    let (settings, _) = Config::default().explain(&Environment::capture())?;
    let changed = settings.iter().filter(|setting| setting.value != setting.default);
    let entry = |setting: &Setting| {
        let value = json!({ "value": setting.value, "source": setting.source.to_string() });
        (setting.variable.full_name(), value)
    };
    Ok(Value::Object(changed.map(entry).collect()))
}

/// The versions of what was measured, for JSON.
pub(crate) fn versions() -> Value {
    json!({
        "rsccl": env!("CARGO_PKG_VERSION"),
        "kernel": first_line("/proc/sys/kernel/osrelease"),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
    })
}

/// The commit that the binary was built from: the one the build was told (`RSCCL_COMMIT`), else that of the checkout
/// that the binary, or this process, lies in. A `+` says that files were changed since.
pub(crate) fn commit() -> Option<String> {
    if let Some(commit) = option_env!("RSCCL_COMMIT") {
        return Some(commit.to_owned());
    }
    let binary = std::env::current_exe().ok();
    let folders = [binary.as_deref().and_then(Path::parent), Some(Path::new("."))];
    folders.into_iter().flatten().find_map(commit_of)
}

fn commit_of(folder: &Path) -> Option<String> {
    // A checkout of something else says nothing of this binary.
    git(folder, &["cat-file", "-e", "HEAD:src/bin/rsccl/perf.rs"])?;
    let commit = git(folder, &["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(folder, &["status", "--porcelain", "--untracked-files=no"])?;
    Some(format!("{commit}{}", if changed.is_empty() { "" } else { "+" }))
}

fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn first_line(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.lines().next()?.to_owned())
}
