//! A secret that is never printed.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::error::{Error, Result};

/// A shared secret. It prints as `<redacted>`; only [`Secret::expose`] reads it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret of these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Secret {
        Secret(bytes.into())
    }

    /// The bytes, for use as the key of a hash.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The content of `path` without white space around it, and a warning if other users may read the file.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] if the file is not a regular file, is empty, or exceeds
    /// [`MAX_SECRET_BYTES`]; [`crate::error::Kind::System`] if it cannot be read.
    pub(super) fn read(path: &Path) -> Result<(Secret, Option<String>)> {
        let shown = path.display();
        let system = |error| Error::system(format!("reading the secret in {shown}"), error);
        let about = std::fs::metadata(path).map_err(system)?;
        if !about.is_file() {
            return Err(Error::invalid_argument(format!("the secret's file {shown} is not a regular file")));
        }
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(system)?;
        file.take(MAX_SECRET_BYTES + 1).read_to_end(&mut bytes).map_err(system)?;
        let text = bytes.trim_ascii();
        if text.is_empty() || text.len() as u64 > MAX_SECRET_BYTES {
            return Err(Error::invalid_argument(format!(
                "the secret's file {shown} holds {} bytes; allowed: 1 to {MAX_SECRET_BYTES}",
                text.len()
            )));
        }
        let others = about.permissions().mode() & GROUP_AND_OTHERS;
        let warning = (others != 0).then(|| {
            format!(
                "the secret's file {shown} is open to other users (mode {:o}): chmod 600 it",
                about.permissions().mode() & 0o777
            )
        });
        Ok((Secret(text.to_vec()), warning))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

/// The text that is printed in place of a secret.
pub(super) const REDACTED: &str = "<redacted>";
/// The most bytes of a secret: far more than any key has, far fewer than a wrong file.
pub const MAX_SECRET_BYTES: u64 = 4096;
const GROUP_AND_OTHERS: u32 = 0o077;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_trimmed_bounded_and_judged_by_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "  open sesame\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let (secret, warning) = Secret::read(&path).unwrap();
        assert_eq!(secret.expose(), b"open sesame");
        assert!(warning.unwrap().contains("644"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(Secret::read(&path).unwrap().1, None);
        std::fs::write(&path, vec![b'x'; 5000]).unwrap();
        assert!(Secret::read(&path).unwrap_err().to_string().contains("allowed: 1 to 4096"));
        std::fs::write(&path, "\n").unwrap();
        assert!(Secret::read(&path).is_err());
        assert!(Secret::read(folder.path()).unwrap_err().to_string().contains("not a regular file"));
        assert!(Secret::read(&folder.path().join("none")).is_err());
    }

    #[test]
    fn no_print_shows_it() {
        let secret = Secret::new("open sesame");
        assert_eq!(format!("{secret} {secret:?}"), "<redacted> <redacted>");
    }
}
