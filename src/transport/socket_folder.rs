//! A folder for the sockets on which memory is handed over between ranks of one machine whose network namespaces
//! differ, as those of two pods: names without a file end at the namespace, a socket in a shared folder does not.

use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A folder in which sockets can be made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SocketFolder {
    bytes: [u8; MOST_FOLDER_BYTES],
    length: usize,
    /// The number of its file system and its own number there: equal wherever it is mounted on this machine.
    identity: (u64, u64),
}

impl SocketFolder {
    /// The folder at this path.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] if it is not there, is no folder, or its path is relative or too long
    /// for a socket's address.
    pub fn at(path: &Path) -> Result<SocketFolder> {
        let refused = |why: &str| {
            let path = path.display();
            Error::invalid_argument(format!("RSCCL_SOCKET_DIR={path} (Config::with_socket_dir): {why}"))
        };
        let given = path.as_os_str().as_bytes();
        if !path.is_absolute() {
            return Err(refused("the path must be absolute"));
        }
        if given.len() > MOST_FOLDER_BYTES {
            return Err(refused(&format!(
                "the path may have {MOST_FOLDER_BYTES} bytes: a socket's address has no more"
            )));
        }
        let there = std::fs::metadata(path).map_err(|error| refused(&error.to_string()))?;
        if !there.is_dir() {
            return Err(refused("it is no folder"));
        }
        let mut bytes = [0; MOST_FOLDER_BYTES];
        bytes[..given.len()].copy_from_slice(given);
        Ok(SocketFolder { bytes, length: given.len(), identity: (there.dev(), there.ino()) })
    }

    /// The path of the socket with this name in it; `None` if the name, which a peer may have sent, is no plain one.
    pub(super) fn socket(&self, name: &str) -> Option<PathBuf> {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        (is_plain && !name.is_empty() && name.len() <= MOST_SOCKET_BYTES).then(|| self.path().join(name))
    }

    /// Equal for two ranks that see one folder.
    pub(super) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsString::from_vec(self.bytes[..self.length].to_vec()))
    }
}

impl fmt::Debug for SocketFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SocketFolder({})", self.path().display())
    }
}

/// The kernel's bound of a socket's path, with the zero byte at its end (`sun_path`).
const MOST_PATH_BYTES: usize = 108;
/// Of a socket's name in the folder.
const MOST_SOCKET_BYTES: usize = 38;
const MOST_FOLDER_BYTES: usize = MOST_PATH_BYTES - 1 - 1 - MOST_SOCKET_BYTES;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_known_by_itself_and_not_by_its_path() {
        let temporary = tempfile::tempdir().unwrap();
        let link = temporary.path().join("link");
        let folder = temporary.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        let (one, other) = (SocketFolder::at(&folder).unwrap(), SocketFolder::at(&link).unwrap());
        assert_eq!(one.identity(), other.identity());
        assert_ne!(one.identity(), SocketFolder::at(temporary.path()).unwrap().identity());
        assert_eq!(one.socket("rsccl-0a").unwrap(), folder.join("rsccl-0a"));
        for name in ["", "../x", "a/b", "a\0", &"x".repeat(39)] {
            assert_eq!(one.socket(name), None, "{name:?}");
        }
    }

    #[test]
    fn what_is_no_folder_is_told() {
        let why = |path: &str| SocketFolder::at(Path::new(path)).unwrap_err().to_string();
        assert!(why("here").contains("RSCCL_SOCKET_DIR=here (Config::with_socket_dir): the path must be absolute"));
        assert!(why("/no/such/folder").contains("No such file"));
        assert!(why("/dev/null").contains("it is no folder"));
        assert!(why(&format!("/{}", "x".repeat(68))).contains("the path may have 68 bytes"));
    }
}
