//! The destination of lines.

use std::fs::{File, OpenOptions};
use std::io::Write;

use crate::error::{Error, Result};
use crate::sys::{open, writing};

use super::line::Identity;

/// Standard output, or a file.
#[derive(Debug)]
pub(super) enum Sink {
    StandardOutput,
    File(File),
}

impl Sink {
    /// The file that `pattern` names, or standard output without a pattern.
    ///
    /// # Errors
    /// If the file cannot be opened, or the pattern has an unknown `%`.
    pub(super) fn open(pattern: Option<&str>, identity: &Identity) -> Result<Sink> {
        let Some(pattern) = pattern else { return Ok(Sink::StandardOutput) };
        let wrong = |why: &str| Error::invalid_argument(format!("NCCL_DEBUG_FILE={pattern:?}: {why}"));
        let path = expand(pattern, identity).map_err(|why| wrong(&why))?;
        // Each line is appended by one write, so processes that share a file do not break each other's lines.
        let opened = open::file_with(OpenOptions::new().create(true).append(true), path.as_ref());
        opened
            .map(Sink::File)
            .map_err(|error| Error::system(format!("NCCL_DEBUG_FILE={pattern:?}: opening {path:?}"), error))
    }

    /// Writes a whole line at once.
    pub(super) fn write(&self, line: &str) {
        let written = writing::without_signal(|| match self {
            Sink::StandardOutput => std::io::stdout().lock().write_all(line.as_bytes()),
            Sink::File(file) => (&mut &*file).write_all(line.as_bytes()),
        });
        // A full disk, a limit of file sizes or a closed pipe must not stop the communication that the line is about.
        drop(written);
    }
}

/// Replaces `%h` by the host, `%p` by the process number, `%%` by a percent sign.
fn expand(pattern: &str, identity: &Identity) -> std::result::Result<String, String> {
    let mut path = String::with_capacity(pattern.len());
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match (letter, if letter == '%' { letters.next() } else { None }) {
            ('%', Some('h')) => path.push_str(&identity.host),
            ('%', Some('p')) => path.push_str(&identity.process.to_string()),
            ('%', Some('%')) => path.push('%'),
            ('%', _) => return Err("a % without meaning; allowed: %h host, %p process, %% percent sign".to_owned()),
            (letter, _) => path.push(letter),
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn patterns() {
        let identity = Identity { host: "node0".to_owned(), process: 11 };
        assert_eq!(expand("/a/%h.%p%%", &identity), Ok("/a/node0.11%".to_owned()));
        assert!(expand("/a/%x", &identity).is_err());
        assert!(expand("/a/%", &identity).is_err());
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error_with_its_name() {
        let identity = Identity { host: "node0".to_owned(), process: 11 };
        let error = Sink::open(Some("/no/such/folder/%h"), &identity).unwrap_err();
        assert_eq!(error.kind(), Kind::System);
        let text = error.to_string();
        assert!(
            text.contains("NCCL_DEBUG_FILE=\"/no/such/folder/%h\"") && text.contains("/no/such/folder/node0"),
            "{text}"
        );
    }
}
