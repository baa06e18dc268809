//! What the command line says, and what a table of figures must say of its machine.

use std::env;
use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

use crate::collective::Collective;

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) collectives: Vec<Collective>,
    /// Bytes.
    pub(crate) sizes: Vec<usize>,
    pub(crate) rounds: usize,
    /// Only print which MPI it is.
    pub(crate) version: bool,
}

impl Options {
    pub(crate) fn parse() -> Result<Options, String> {
        let sizes = vec![8, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 16 << 20];
        let mut options = Options { collectives: Vec::new(), sizes, rounds: 21, version: false };
        let mut words = env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--collective" => {
                    let name = value()?;
                    let known = || Collective::ALL.map(Collective::name).join(", ");
                    let collective = Collective::from_name(&name);
                    options
                        .collectives
                        .push(collective.ok_or_else(|| format!("--collective {name}: one of {}", known()))?);
                }
                "--sizes" => options.sizes = value()?.split(',').map(parse_size).collect::<Result<_, _>>()?,
                "--rounds" => {
                    options.rounds = value()?.parse().map_err(|error| format!("--rounds: {error}"))?;
                    if options.rounds == 0 {
                        return Err("--rounds 0: at least one".to_owned());
                    }
                }
                "--quick" => (options.sizes, options.rounds) = (vec![8, 100_000], 1),
                "--version" => options.version = true,
                // Compared with the job by `job::expect_ranks`.
                "--ranks" => drop(value()?),
                other => {
                    let known = "--collective NAME, --sizes A,B,..., --rounds N, --quick, --ranks N, --version";
                    return Err(format!("{other}: known are {known}"));
                }
            }
        }
        if options.collectives.is_empty() {
            options.collectives = Collective::ALL.to_vec();
        }
        Ok(options)
    }
}

/// Bytes, with K and M for powers of 1024.
fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let number: usize = digits.parse().map_err(|error| format!("--sizes {text}: {error}"))?;
    number.checked_mul(factor).filter(|bytes| *bytes <= 1 << 30).ok_or(format!("--sizes {text}: at most 1024M"))
}

/// Processors, system, load and commit, in one line.
pub(crate) fn machine() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("?");
    let load = read("/proc/loadavg");
    format!(
        "{} × {}, Linux {}, load {}, commit {}",
        available_parallelism().map_or(0, usize::from),
        model.trim_start_matches([' ', '\t', ':']),
        read("/proc/sys/kernel/osrelease").trim(),
        load.split(' ').next().unwrap_or("?"),
        commit()
    )
}

fn commit() -> String {
    let git = Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"]).output();
    let text = git.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    if text.is_empty() { "unknown".to_owned() } else { text }
}
