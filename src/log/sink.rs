//! The destination of lines.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::sys::{text_file, writing};

use super::line::Identity;

/// Standard output, or a file.
#[derive(Debug)]
pub(super) enum Sink {
    StandardOutput,
    File(File),
}

impl Sink {
    /// The file that `pattern` names, or standard output without a pattern, or where the file cannot be opened, as in
    /// NCCL. Behind it the reason why it cannot.
    pub(super) fn open(pattern: Option<&str>, identity: &Identity) -> (Sink, Option<String>) {
        let Some(pattern) = pattern else { return (Sink::StandardOutput, None) };
        let path = expand(pattern, identity);
        // Each line is appended by one write, so processes that share a file do not break each other's lines.
        match text_file::open_to_append(Path::new(&path)) {
            Ok(file) => (Sink::File(file), None),
            Err(error) => {
                let why =
                    format!("NCCL_DEBUG_FILE={pattern:?}: opening {path:?}: {error}: the log goes to standard output");
                (Sink::StandardOutput, Some(why))
            }
        }
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

/// Replaces `%h` by the host, `%p` by the process number, `%%` by a percent sign; keeps what has no meaning, as NCCL
/// does.
fn expand(pattern: &str, identity: &Identity) -> String {
    let mut path = String::with_capacity(pattern.len());
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            path.push(letter);
            continue;
        }
        match letters.next() {
            Some('h') => path.push_str(&identity.host),
            Some('p') => path.push_str(&identity.process.to_string()),
            Some('%') => path.push('%'),
            Some(other) => path.extend(['%', other]),
            None => path.push('%'),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let identity = Identity { host: "node0".to_owned(), process: 11 };
        let of = |pattern| expand(pattern, &identity);
        assert_eq!(of("/a/%h.%p%%"), "/a/node0.11%");
        assert_eq!([of("/a/%q%P"), of("/a/%"), of("%%h")], ["/a/%q%P", "/a/%", "%h"]);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_told_with_its_name() {
        let identity = Identity { host: "node0".to_owned(), process: 11 };
        let (sink, told) = Sink::open(Some("/no/such/folder/%h"), &identity);
        assert!(matches!(sink, Sink::StandardOutput));
        let told = told.unwrap();
        assert!(
            told.contains("NCCL_DEBUG_FILE=\"/no/such/folder/%h\"") && told.contains("/no/such/folder/node0"),
            "{told}"
        );
        assert!(matches!(Sink::open(None, &identity), (Sink::StandardOutput, None)));
    }
}
