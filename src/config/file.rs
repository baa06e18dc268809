//! Configuration files: `NAME=value` lines, as NCCL has them.
//!
//! ```text
//! # a comment
//! NCCL_DEBUG=INFO
//! NCCL_ALGO = Ring      # white space around name and value does not count; nor does what follows " #"
//! ```
//! The first line with a name wins, as in NCCL. A line that is not an assignment is left out, as in NCCL, and reported
//! with its number.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The assignments of one file, in order.
#[derive(Debug, Clone)]
pub(super) struct ConfFile {
    pub(super) path: Arc<Path>,
    pub(super) lines: Vec<Assignment>,
    /// The lines that are no assignments.
    pub(super) ignored: Vec<IgnoredLine>,
}

/// One `NAME=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assignment {
    pub(super) name: String,
    pub(super) value: String,
    /// Counted from 1.
    pub(super) line: usize,
}

/// A line that is no assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IgnoredLine {
    /// Counted from 1.
    pub(super) line: usize,
    pub(super) why: &'static str,
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
    /// [`crate::error::Kind::InvalidArgument`] if the file is not a configuration file;
    /// [`crate::error::Kind::System`] if the system fails to read it.
    pub(super) fn open(path: &Path) -> Result<Opened> {
        use std::io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
        let shown = path.display();
        let system = |error| Error::system(format!("reading the configuration file {shown}"), error);
        let wrong = |why: String| Error::invalid_argument(format!("the configuration file {shown} {why}"));
        // Checked before opening, because opening a FIFO would wait for its writer.
        let about = match std::fs::metadata(path) {
            Ok(about) => about,
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(Opened::Missing),
            Err(error) if error.kind() == PermissionDenied => return Ok(Opened::Forbidden),
            Err(error) => return Err(system(error)),
        };
        if !about.is_file() {
            return Err(wrong("is not a regular file".to_owned()));
        }
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == PermissionDenied => return Ok(Opened::Forbidden),
            Err(error) => return Err(system(error)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(system)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(wrong(format!("is longer than {MAX_FILE_BYTES} bytes")));
        }
        if bytes.contains(&0) {
            return Err(wrong("is not text: it has a byte 0".to_owned()));
        }
        let (lines, ignored) = parse(&bytes);
        Ok(Opened::Read(ConfFile { path: path.into(), lines, ignored }))
    }

    /// The first assignment to `name`.
    pub(super) fn find(&self, name: &str) -> Option<&Assignment> {
        self.lines.iter().find(|line| line.name == name)
    }

    /// One remark about all lines that are no assignments.
    pub(super) fn remark(&self) -> Option<String> {
        let IgnoredLine { line, why } = self.ignored.first()?;
        let more = match &self.ignored[1..] {
            [] => String::new(),
            [more] => format!(", and line {}", more.line),
            all => format!(", and {} more lines, the next is {}", all.len(), all[0].line),
        };
        let path = self.path.display();
        Some(format!("{path}:{line}{more}: ignored, {why}; allowed: NAME=value, # comment, an empty line"))
    }
}

/// The assignments in `bytes`, and the lines that are none.
pub(super) fn parse(bytes: &[u8]) -> (Vec<Assignment>, Vec<IgnoredLine>) {
    let (mut assignments, mut ignored) = (Vec::new(), Vec::new());
    // Some editors begin a file with this.
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    for (index, bytes) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = index + 1;
        match assignment(bytes) {
            Ok(Some((name, value))) => {
                assignments.push(Assignment { name: name.to_owned(), value: value.to_owned(), line });
            }
            Ok(None) => {}
            Err(why) => ignored.push(IgnoredLine { line, why }),
        }
    }
    (assignments, ignored)
}

/// The name and the value of one line; `None` for an empty line. The error says why the line is no assignment.
fn assignment(line: &[u8]) -> Result<Option<(&str, &str)>, &'static str> {
    let line = std::str::from_utf8(line).map_err(|_| "it is not UTF-8 text")?;
    let line = without_comment(line.trim());
    if line.is_empty() {
        return Ok(None);
    }
    if line.chars().any(|letter| letter.is_control() && letter != '\t') {
        return Err("it has a control character");
    }
    let (name, value) = line.split_once('=').ok_or("it has no =")?;
    let (name, value) = (name.trim(), value.trim());
    match is_name(name) {
        true => Ok(Some((name, value))),
        false if name.starts_with("export ") => Err("it begins with export, as no line of such a file may"),
        false => Err("the name before = is not made of letters, digits and _"),
    }
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

/// Why the file at `path` cannot be opened; `None` if it can, or is no regular file.
pub(super) fn unopened(path: &Path) -> Option<std::io::Error> {
    match std::fs::metadata(path) {
        // What is no regular file is not opened: that could wait.
        Ok(about) if about.is_file() => std::fs::File::open(path).err(),
        Ok(_) => None,
        Err(error) => Some(error),
    }
}

/// The most bytes of a configuration file; real files have a thousandth of it.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;
/// U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Vec<(String, String, usize)> {
        parse(text.as_bytes()).0.into_iter().map(|line| (line.name, line.value, line.line)).collect()
    }

    #[test]
    fn names_values_comments() {
        let text = "# c\n\n NCCL_A = 1  # one\r\nNCCL_B=x#y\nNCCL_C=\nNCCL_D=a=b\n#NCCL_E=1";
        let expected = [("NCCL_A", "1", 3), ("NCCL_B", "x#y", 4), ("NCCL_C", "", 5), ("NCCL_D", "a=b", 6)];
        let expected = expected.map(|(name, value, line)| (name.to_owned(), value.to_owned(), line));
        assert_eq!(parsed(text), expected);
        // As some editors write it.
        assert_eq!(parsed(&format!("\u{feff}NCCL_Z=0\r\n{text}"))[0], ("NCCL_Z".to_owned(), "0".to_owned(), 1));
    }

    #[test]
    fn lines_that_are_no_assignments_are_left_out_and_counted() {
        let (lines, ignored) = parse(b"A=1\nnonsense\n=1\nB=\x01\n\xff\xfe\n9A=1\nexport C=1\nD=2");
        assert_eq!(lines.iter().map(|line| (&*line.name, line.line)).collect::<Vec<_>>(), [("A", 1), ("D", 8)]);
        assert_eq!(ignored.iter().map(|ignored| ignored.line).collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7]);
        let whys = ["no =", "the name", "control", "UTF-8", "the name", "export"];
        assert!(ignored.iter().zip(whys).all(|(ignored, why)| ignored.why.contains(why)), "{ignored:?}");
        let remark = |ignored: &[IgnoredLine]| {
            ConfFile { path: Path::new("/x/f").into(), lines: Vec::new(), ignored: ignored.to_vec() }.remark()
        };
        assert_eq!(remark(&[]), None);
        assert!(remark(&ignored[..1]).unwrap().starts_with("/x/f:2: ignored, it has no =; allowed: NAME=value"));
        assert!(remark(&ignored[..2]).unwrap().starts_with("/x/f:2, and line 3: ignored"));
        assert!(remark(&ignored).unwrap().starts_with("/x/f:2, and 5 more lines, the next is 3: ignored"));
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = ConfFile::open(folder.path()).err().unwrap().to_string();
        assert!(refusal.contains("not a regular file"), "{refusal}");
        assert!(matches!(ConfFile::open(&folder.path().join("none")), Ok(Opened::Missing)));
        let refused = |content: &[u8]| {
            let path = folder.path().join("f");
            std::fs::write(&path, content).unwrap();
            ConfFile::open(&path).err().unwrap().to_string()
        };
        assert!(refused(&vec![b'\n'; 1 << 21]).contains("longer than 1048576 bytes"));
        assert!(refused(b"\x7fELF\x02\x00").contains("is not text"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_assignments_or_left_out(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let (lines, ignored) = parse(&bytes);
            prop_assert!(lines.iter().all(|line| is_name(&line.name) && line.line <= bytes.len() + 1));
            prop_assert!(ignored.iter().all(|ignored| lines.iter().all(|line| line.line != ignored.line)));
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
