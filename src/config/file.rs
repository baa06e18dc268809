//! Configuration files: `NAME=value` lines, as NCCL has them.
//!
//! ```text
//! # a comment
//! NCCL_DEBUG=INFO
//! NCCL_ALGO = Ring      # white space around name and value does not count; nor does what follows " #"
//! ```
//! The first line with a name wins, as in NCCL. A line that is not an assignment is an error with file and line.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The assignments of one file, in order.
#[derive(Debug, Clone)]
pub(super) struct ConfFile {
    pub(super) path: Arc<Path>,
    pub(super) lines: Vec<Assignment>,
}

/// One `NAME=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assignment {
    pub(super) name: String,
    pub(super) value: String,
    /// Counted from 1.
    pub(super) line: usize,
}

/// The result of opening a file.
pub(super) enum Opened {
    Read(ConfFile),
    /// The file does not exist.
    Missing,
    /// The file exists, but this user may not read it.
    Forbidden,
}

impl ConfFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] with file and line if the file is not a configuration file;
    /// [`crate::error::Kind::System`] if the system fails to read it.
    pub(super) fn open(path: &Path) -> Result<Opened> {
        use std::io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
        let shown = path.display();
        let system = |error| Error::system(format!("reading the configuration file {shown}"), error);
        // Checked before opening, because opening a FIFO would wait for its writer.
        let about = match std::fs::metadata(path) {
            Ok(about) => about,
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(Opened::Missing),
            Err(error) if error.kind() == PermissionDenied => return Ok(Opened::Forbidden),
            Err(error) => return Err(system(error)),
        };
        if !about.is_file() {
            return Err(Error::invalid_argument(format!("the configuration file {shown} is not a regular file")));
        }
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == PermissionDenied => return Ok(Opened::Forbidden),
            Err(error) => return Err(system(error)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(system)?;
        Ok(Opened::Read(ConfFile { path: path.into(), lines: parse(&bytes, path)? }))
    }

    /// The first assignment to `name`.
    pub(super) fn find(&self, name: &str) -> Option<&Assignment> {
        self.lines.iter().find(|line| line.name == name)
    }
}

/// Parses the assignments in `bytes`; `path` is used in errors.
pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<Vec<Assignment>> {
    let shown = path.display();
    let wrong = |line: usize, why: &str| {
        Err(Error::invalid_argument(format!("{shown}:{line}: {why}; allowed: NAME=value, # comment, an empty line")))
    };
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let message = format!("the configuration file {shown} is longer than {MAX_FILE_BYTES} bytes");
        return Err(Error::invalid_argument(message));
    }
    let mut assignments = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let number = index + 1;
        let Ok(line) = std::str::from_utf8(line) else { return wrong(number, "not UTF-8 text") };
        let line = without_comment(line.trim());
        if line.is_empty() {
            continue;
        }
        if line.chars().any(|letter| letter.is_control() && letter != '\t') {
            return wrong(number, "a control character");
        }
        let Some((name, value)) = line.split_once('=') else { return wrong(number, "no = in the line") };
        let (name, value) = (name.trim(), value.trim());
        if !is_name(name) {
            return wrong(number, "the name before = is not made of letters, digits and _");
        }
        assignments.push(Assignment { name: name.to_owned(), value: value.to_owned(), line: number });
    }
    Ok(assignments)
}

/// The line without its comment. A `#` begins a comment at the start of the line or after white space: `a#b` is a
/// value, `a #b` a value and a comment.
fn without_comment(line: &str) -> &str {
    let starts = line.match_indices('#').map(|(at, _)| at);
    let comment = starts.into_iter().find(|at| line[..*at].chars().next_back().is_none_or(char::is_whitespace));
    line[..comment.unwrap_or(line.len())].trim_end()
}

fn is_name(name: &str) -> bool {
    let first = name.bytes().next();
    first.is_some_and(|byte| !byte.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The most bytes of a configuration file; real files have a thousandth of it.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Vec<(String, String, usize)> {
        let lines = parse(text.as_bytes(), Path::new("f")).unwrap();
        lines.into_iter().map(|line| (line.name, line.value, line.line)).collect()
    }

    fn refused(text: &[u8]) -> String {
        parse(text, Path::new("/x/f")).unwrap_err().to_string()
    }

    #[test]
    fn names_values_comments() {
        let text = "# c\n\n NCCL_A = 1  # one\r\nNCCL_B=x#y\nNCCL_C=\nNCCL_D=a=b\n#NCCL_E=1";
        let expected = [("NCCL_A", "1", 3), ("NCCL_B", "x#y", 4), ("NCCL_C", "", 5), ("NCCL_D", "a=b", 6)];
        assert_eq!(parsed(text), expected.map(|(name, value, line)| (name.to_owned(), value.to_owned(), line)));
    }

    #[test]
    fn errors_name_file_and_line() {
        assert!(refused(b"A=1\nnonsense").starts_with("/x/f:2: no = in the line"));
        assert!(refused(b"=1").starts_with("/x/f:1: the name"));
        assert!(refused(b"9A=1").starts_with("/x/f:1: the name"));
        assert!(refused(b"A=1\n\nB=\x00").starts_with("/x/f:3: a control character"));
        assert!(refused(b"\xff\xfe").starts_with("/x/f:1: not UTF-8"));
        assert!(refused(&vec![b'\n'; 1 << 21]).contains("longer than 1048576 bytes"));
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = ConfFile::open(folder.path()).err().unwrap().to_string();
        assert!(refusal.contains("not a regular file"), "{refusal}");
        assert!(matches!(ConfFile::open(&folder.path().join("none")), Ok(Opened::Missing)));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(lines) = parse(&bytes, Path::new("f")) {
                prop_assert!(lines.iter().all(|line| is_name(&line.name) && line.line <= bytes.len() + 1));
            }
        }

        #[test]
        fn lines_lead_back(
            lines in proptest::collection::vec(("[A-Z_][A-Z0-9_]{0,12}", "[a-z0-9=,:/^]{0,12}"), 0..20)
        ) {
            let text: String = lines.iter().map(|(name, value)| format!(" {name} =  {value} # end\n")).collect();
            let found = parsed(&text);
            prop_assert_eq!(found.len(), lines.len());
            for (line, (name, value)) in found.iter().zip(&lines) {
                prop_assert_eq!((&line.0, &line.1), (name, value));
            }
        }
    }
}
