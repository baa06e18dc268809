//! The layout of a line.

use std::fmt::Write;
use std::time::Duration;

use crate::config::DebugLevel;
use crate::sys::host;

/// The process's part of every line: host and process.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) host: String,
    pub(super) process: u32,
}

/// The content of one line.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) level: DebugLevel,
    /// Whether this is a CALL line, from which a program's calls can be replayed; NCCL prints those without time and
    /// place.
    pub(super) is_call: bool,
    /// The time at the beginning of the line, formatted; empty for none.
    pub(super) time: &'a str,
    pub(super) thread: u32,
    pub(super) rank: Option<u32>,
    /// File and line of the event.
    pub(super) place: (&'a str, u32),
    /// The time since logging began.
    pub(super) elapsed: Duration,
    pub(super) text: &'a str,
}

impl Line<'_> {
    /// The line with its end; before a warning there is an empty line.
    pub(super) fn print(&self, identity: &Identity) -> String {
        let mut out = String::with_capacity(self.text.len() + 96);
        let written = self.write(&mut out, identity);
        debug_assert!(written.is_ok(), "a String takes everything");
        out
    }

    fn write(&self, out: &mut String, identity: &Identity) -> std::fmt::Result {
        if self.level == DebugLevel::Version {
            return writeln!(out, "{}", Plain(self.text));
        }
        if self.level == DebugLevel::Warn {
            out.push('\n');
        }
        write!(out, "{}{}:{}:{} ", self.time, identity.host, identity.process, self.thread)?;
        match self.rank {
            Some(rank) => write!(out, "[{rank}] ")?,
            None => out.push_str("[-] "),
        }
        if self.is_call {
            return writeln!(out, "RSCCL CALL {}", Plain(self.text));
        }
        if self.level == DebugLevel::Trace {
            write!(out, "{:.6} ", self.elapsed.as_secs_f64() * 1e3)?;
        }
        if matches!(self.level, DebugLevel::Warn | DebugLevel::Trace) {
            let (file, line) = self.place;
            write!(out, "{file}:{line} ")?;
        }
        writeln!(out, "RSCCL {} {}", self.level.name(), Plain(self.text))
    }
}

/// The text on one line, with control characters escaped: text from another process must not forge lines or control a
/// terminal.
struct Plain<'a>(&'a str);

impl std::fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for letter in self.0.chars() {
            match letter.is_control() && letter != '\t' {
                true => write!(f, "{}", letter.escape_default())?,
                false => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// Formats `time` as `strftime` does; in addition `%1f` to `%9f` are digits of the second's fraction.
pub(super) fn print_time(time: Duration, format: &str) -> String {
    let mut plain = String::with_capacity(format.len());
    let mut letters = format.chars().peekable();
    while let Some(letter) = letters.next() {
        plain.push(letter);
        if letter != '%' {
            continue;
        }
        let Some(next) = letters.next() else {
            // A final % has no meaning in strftime.
            plain.push('%');
            break;
        };
        let digits = next.to_digit(10).filter(|digits| (1..=9).contains(digits) && letters.peek() == Some(&'f'));
        match digits {
            Some(digits) => {
                letters.next();
                plain.pop();
                let fraction = time.subsec_nanos() / 10u32.pow(9 - digits);
                plain.push_str(&format!("{fraction:0width$}", width = digits as usize));
            }
            None => plain.push(next),
        }
    }
    host::local_time(time, &plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(level: DebugLevel) -> Line<'static> {
        Line {
            level,
            is_call: false,
            time: "",
            thread: 12,
            rank: Some(3),
            place: ("src/a.rs", 7),
            elapsed: Duration::from_micros(1500),
            text: "says\nit",
        }
    }

    #[test]
    fn lines_have_the_layout_of_nccl() {
        let identity = Identity { host: "node0".to_owned(), process: 11 };
        let print = |line: Line<'_>| line.print(&identity);
        assert_eq!(print(line(DebugLevel::Info)), "node0:11:12 [3] RSCCL INFO says\\nit\n");
        let warning = Line { time: "[t] ", ..line(DebugLevel::Warn) };
        assert_eq!(print(warning), "\n[t] node0:11:12 [3] src/a.rs:7 RSCCL WARN says\\nit\n");
        assert_eq!(print(line(DebugLevel::Trace)), "node0:11:12 [3] 1.500000 src/a.rs:7 RSCCL TRACE says\\nit\n");
        assert_eq!(print(Line { rank: None, ..line(DebugLevel::Info) }), "node0:11:12 [-] RSCCL INFO says\\nit\n");
        assert_eq!(print(line(DebugLevel::Version)), "says\\nit\n");
        let call = Line { is_call: true, ..line(DebugLevel::Trace) };
        assert_eq!(print(call), "node0:11:12 [3] RSCCL CALL says\\nit\n");
    }

    #[test]
    fn fractions_of_a_second() {
        let time = Duration::new(1_000_000_000, 12_345_678);
        assert_eq!(print_time(time, "%3f"), "012");
        assert_eq!(print_time(time, "<%9f>"), "<012345678>");
        assert_eq!(print_time(time, "%%3f"), "%3f");
        assert_eq!(print_time(time, "%Y%"), "2001%");
        assert_eq!(print_time(time, "%Y.%6f "), "2001.012345 ");
    }
}
