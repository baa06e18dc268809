//! The options of the bootstrap; `config` fills them from the environment.

use std::path::Path;
use std::time::Duration;

use crate::bootstrap::auth::JobTag;
use crate::bootstrap::interface::{AddressFamily, Rules};
use crate::config::{Encryption, PortRange};
use crate::error::{Error, Result};

/// How ids are made and how ranks find each other. The default equals NCCL's behaviour with no variable set.
#[derive(Debug, Clone)]
pub struct Options {
    /// `NCCL_COMM_ID`: a fixed `host:port` where rank 0 serves, in place of an id that is sent to the ranks.
    pub comm_id: Option<String>,
    /// The secret of a fixed address. Without one the id is marked unauthenticated.
    pub secret: Option<SharedSecret>,
    /// `NCCL_SOCKET_IFNAME`: which interfaces may be used.
    pub interfaces: Rules,
    /// `NCCL_SOCKET_FAMILY`: which addresses may be used.
    pub family: AddressFamily,
    /// `RSCCL_PORT_RANGE`: where to listen if no port is given.
    pub ports: Option<PortRange>,
    /// Whether ranks of other hosts are expected: then the root waits for an interface that they can reach, and does
    /// not use loopback.
    pub other_hosts: bool,
    /// Whether all ranks are known to be on this host: then an address that no other host reaches is right.
    pub one_host: bool,
    /// Whether rank 0 is known to have made the id: then errors of the root name rank 0.
    pub first_serves: bool,
    /// `NCCL_SOCKET_RETRY_CNT`: how often a failed connection is retried.
    pub retry_count: u32,
    /// `NCCL_SOCKET_RETRY_SLEEP_MSEC`: the pause before the k-th retry is k times this.
    pub retry_sleep: Duration,
    /// How many ranks check in with one root at most, where the world has one id: it has further roots then.
    pub root_ranks: u32,
    /// How long a root waits for the last rank after the first has come; a rank with less time left shortens it.
    pub check_in_timeout: Duration,
    /// How long a root waits for the first rank.
    pub root_lifetime: Duration,
    /// How long the handshake of a connection may take.
    pub handshake_timeout: Duration,
    /// How long a rank that waits on its connections sleeps at most. `None`: from 20 ms in a small world to a second in
    /// a large one.
    pub longest_nap: Option<Duration>,
    /// The job, as its launcher names it: ranks of two jobs that are given one address refuse each other. `None` where
    /// nothing is known of the job: such a rank may join any.
    pub job: Option<JobTag>,
    /// `RSCCL_ENCRYPT`: whether connections with roots, stores and ranks are encrypted.
    pub encryption: Encryption,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            comm_id: None,
            secret: None,
            interfaces: Rules::default(),
            family: AddressFamily::Any,
            ports: None,
            other_hosts: false,
            one_host: false,
            first_serves: false,
            retry_count: 34,
            retry_sleep: Duration::from_millis(100),
            root_ranks: ROOT_RANKS,
            check_in_timeout: Duration::from_secs(120),
            root_lifetime: Duration::from_secs(1800),
            handshake_timeout: Duration::from_secs(10),
            longest_nap: None,
            job: None,
            encryption: Encryption::Off,
        }
    }
}

impl Options {
    /// How many roots a world of this size has by one id.
    pub(crate) fn roots(&self, world: u32) -> u32 {
        world.div_ceil(self.root_ranks.max(1))
    }

    /// Whether ranks of other jobs are kept out: by a secret, or by the job's identity.
    pub(crate) fn is_guarded(&self) -> bool {
        self.secret.is_some() || self.job.is_some()
    }

    /// How long ranks try to come to a place that another job has: that job may soon have met.
    pub(crate) fn other_job_patience(&self) -> Duration {
        (self.check_in_timeout / 4).min(OTHER_JOB_PATIENCE)
    }
}

/// The most ranks of one root: each takes a descriptor of its process until all have come.
const ROOT_RANKS: u32 = 1024;

/// The longest time that ranks wait for another job to leave their meeting place.
const OTHER_JOB_PATIENCE: Duration = Duration::from_secs(5);

/// A secret that all ranks know beforehand, by which they prove that they do. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedSecret(Vec<u8>);

/// The most bytes of a secret.
const MAX_SECRET_BYTES: usize = 4096;

/// The permission bits of a file that give access to others than its owner.
const OTHERS_MODE: u32 = 0o077;

impl SharedSecret {
    /// A secret of 1 to 4096 bytes.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for any other length.
    pub fn new(bytes: &[u8]) -> Result<SharedSecret> {
        if bytes.is_empty() || bytes.len() > MAX_SECRET_BYTES {
            let length = bytes.len();
            return Err(Error::invalid_argument(format!(
                "the secret has {length} bytes: 1 to {MAX_SECRET_BYTES} are allowed"
            )));
        }
        Ok(SharedSecret(bytes.to_vec()))
    }

    /// The content of a file that only its owner may read, without a newline at its end.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if the file cannot be read, [`crate::error::Kind::InvalidArgument`] if others may
    /// read it or its length is not allowed.
    pub fn from_file(path: &Path) -> Result<SharedSecret> {
        use std::io::Read;
        use std::os::unix::fs::PermissionsExt;
        let named = |error| Error::system(format!("reading the secret {}", path.display()), error);
        let file = crate::sys::open::file(path).map_err(named)?;
        let mode = file.metadata().map_err(named)?.permissions().mode();
        if mode & OTHERS_MODE != 0 {
            let shown = path.display();
            let mode = mode & 0o777;
            return Err(Error::invalid_argument(format!(
                "the secret {shown} is readable by others (mode {mode:o}): run chmod 600 on it"
            )));
        }
        let mut bytes = Vec::new();
        file.take(u64::try_from(MAX_SECRET_BYTES).unwrap_or(u64::MAX) + 2).read_to_end(&mut bytes).map_err(named)?;
        SharedSecret::new(bytes.strip_suffix(b"\n").unwrap_or(&bytes))
    }

    /// A key derived from the secret and from `bound`, so that keys for different purposes differ.
    pub(crate) fn key(&self, bound: &str) -> [u8; 32] {
        let secret: [u8; 32] = blake3::hash(&self.0).into();
        blake3::keyed_hash(&secret, bound.as_bytes()).into()
    }
}

impl std::fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedSecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_does_not_print_and_binds() {
        let secret = SharedSecret::new(b"hush").unwrap();
        assert_eq!(format!("{secret:?}"), "SharedSecret(..)");
        assert_ne!(secret.key("a"), secret.key("b"));
        assert!(SharedSecret::new(b"").is_err() && SharedSecret::new(&[0; 4097]).is_err());
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "hush\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(SharedSecret::from_file(&path).unwrap_err().to_string().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(SharedSecret::from_file(&path).unwrap(), SharedSecret::new(b"hush").unwrap());
        assert!(SharedSecret::from_file(&folder.path().join("none")).is_err());
    }
}
