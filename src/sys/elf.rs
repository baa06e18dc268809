//! A look at a file before the loader maps it: to the loader a pipe is a file that never comes, and of a file that is
//! cut short it maps pages that are not there, which ends the process by SIGBUS.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::sys::open;

/// Why the loader must not be given the file at `path`, in words that follow its name; `None` where it may have it, and
/// where there is no such file, of which the loader has words of its own.
pub fn unfit(path: &Path) -> Option<String> {
    let about = std::fs::metadata(path).ok()?;
    if !about.is_file() {
        return Some("is no regular file".to_owned());
    }
    let needed = needed_bytes(&open::file(path).ok()?).ok().flatten()?;
    let bytes = about.len();
    (needed > bytes).then(|| format!("is cut short: it has {bytes} bytes, and its parts need {needed}; copy it again"))
}

/// Where the last part that is loaded ends in the file; `None` for a file of another kind.
fn needed_bytes(file: &File) -> io::Result<Option<u64>> {
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    if header[..6] != MAGIC {
        return Ok(None);
    }
    let (table, size, count) = (number(&header[32..40]), number(&header[54..56]), number(&header[56..58]));
    let mut end = 0;
    for place in 0..count {
        let mut part = [0; PART_BYTES];
        // The table may lie behind the end itself.
        let at = table.saturating_add(place * size);
        if file.read_exact_at(&mut part, at).is_err() {
            return Ok(Some(at.saturating_add(PART_BYTES as u64)));
        }
        if number(&part[..4]) == LOADED {
            end = end.max(number(&part[8..16]).saturating_add(number(&part[32..40])));
        }
    }
    Ok(Some(end))
}

/// A little-endian number of at most eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Of 64 bits, the least byte first.
const MAGIC: [u8; 6] = *b"\x7fELF\x02\x01";
const HEADER_BYTES: usize = 64;
const PART_BYTES: usize = 56;
/// The kind of a part that is loaded.
const LOADED: u64 = 1;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_cut_short_or_a_pipe_is_told_and_a_whole_one_is_fit() {
        let whole = std::env::current_exe().unwrap();
        assert_eq!(unfit(&whole), None);
        assert_eq!(unfit(Path::new("/no/such/file")), None);
        assert_eq!(unfit(Path::new("/dev/null")), Some("is no regular file".to_owned()));
        let folder = tempfile::tempdir().unwrap();
        let cut = folder.path().join("cut");
        let bytes = std::fs::read(&whole).unwrap();
        for length in [80, 4096] {
            std::fs::write(&cut, &bytes[..length]).unwrap();
            assert!(unfit(&cut).unwrap().starts_with(&format!("is cut short: it has {length} bytes")), "{length}");
        }
        std::fs::write(&cut, b"no program").unwrap();
        assert_eq!(unfit(&cut), None);
    }
}
