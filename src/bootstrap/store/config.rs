//! How a store over TCP is served and opened.

use std::path::Path;
use std::time::Duration;

use crate::bootstrap::auth::JobTag;
use crate::bootstrap::{Options, SharedSecret, sealed};
use crate::config::Encryption;
use crate::error::Result;

/// How a [`TcpStore`](super::TcpStore) is served and opened. All its processes have the same secret and job; the
/// default has neither, so that any process that reaches the port can use the store, and nothing is encrypted.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use rsccl::store::{AbortFlag, Store, StoreConfig, TcpStore, Wait};
///
/// # fn main() -> rsccl::Result<()> {
/// let config = StoreConfig::default().with_secret(b"a word among friends")?.with_job("night run", "run 7 of group 2");
/// let served = TcpStore::serve(([127, 0, 0, 1], 0).into(), &config)?;
/// let place = served.address().expect("this process serves it").to_string();
/// let wait = Wait::new(Duration::from_secs(30), &AbortFlag::new());
/// TcpStore::connect(&place, &config)?.set("key", b"value", &wait)?;
/// assert_eq!(served.get("key", &wait)?, b"value");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct StoreConfig(Options);

impl StoreConfig {
    /// What clients must prove to hold: 1 to 4096 bytes.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for any other length.
    pub fn with_secret(mut self, bytes: &[u8]) -> Result<StoreConfig> {
        self.0.secret = Some(SharedSecret::new(bytes)?);
        Ok(self)
    }

    /// The same out of a file that only its owner may read, without a newline at its end.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if the file cannot be read, [`crate::error::Kind::InvalidArgument`] if others may
    /// read it or its length is not allowed.
    pub fn with_secret_file(mut self, path: impl AsRef<Path>) -> Result<StoreConfig> {
        self.0.secret = Some(SharedSecret::from_file(path.as_ref())?);
        Ok(self)
    }

    /// The job: processes of two jobs that are given one address refuse each other. `key` tells it from all others,
    /// `name` is what people call it. A process that says nothing of its job may use the store of any.
    #[must_use]
    pub fn with_job(mut self, name: &str, key: &str) -> StoreConfig {
        self.0.job = Some(JobTag::new(name, key));
        self
    }

    /// Whether what this process and the store say to each other is encrypted, by keys that each connection agrees on
    /// and both ends forget. Off, whatever `RSCCL_ENCRYPT` says. A process that serves a store does as each of its
    /// clients asks. Encryption keeps out nobody who holds the secret, and without a secret that is everybody.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] where this build cannot encrypt: it lacks the cargo feature `encrypt`.
    pub fn with_encrypt(mut self, encrypt: Encryption) -> Result<StoreConfig> {
        if encrypt != Encryption::Off {
            sealed::check_built()?;
        }
        self.0.encryption = encrypt;
        Ok(self)
    }

    /// How often a failed connection is tried again; the pause before the k-th time is k times `pause`. 34 times, and
    /// 100 ms, as for the connections of communicators.
    #[must_use]
    pub fn with_retries(mut self, count: u32, pause: Duration) -> StoreConfig {
        self.0.retry_count = count;
        self.0.retry_sleep = pause;
        self
    }

    /// As the rest of the bootstrap takes it.
    pub(super) fn options(&self) -> &Options {
        &self.0
    }
}
