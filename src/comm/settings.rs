//! What the engine needs of the configuration, resolved.

use std::time::Duration;

use crate::sync::Patience;
use crate::sync::ring::Shape;
use crate::transport::{Policy, Sizes, SocketOptions};

/// What the engine needs of the configuration, resolved.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// How long an operation may wait.
    pub(crate) timeout: Duration,
    /// How long init, split and shrink may wait.
    pub(crate) init_timeout: Duration,
    /// Mixed into the host's id: ranks with different ones are on different hosts.
    pub(crate) host_id: String,
    /// How long a wait stays awake before it parks.
    pub(crate) awake: Duration,
    /// How patient waits are, once the ranks of the host are known.
    pub(crate) patience: Patience,
    /// What transports are forbidden.
    pub(crate) policy: Policy,
    /// Sizes of rings and scratch.
    pub(crate) sizes: Sizes,
    /// The same bits whatever the size, algorithm or transport.
    pub(crate) reproducible: bool,
    /// Output of at least so many bytes passes the caches by.
    pub(crate) streaming_bytes: u64,
    /// Channels that plans may use.
    pub(crate) channels: u32,
}

impl Settings {
    /// A number that is equal on two ranks whose settings fit together.
    pub(crate) fn fingerprint(&self) -> u64 {
        let text = format!("{:?} {:?} {:?} {}", self.policy, self.sizes, self.reproducible, self.channels);
        let hash = blake3::hash(text.as_bytes());
        u64::from_le_bytes(std::array::from_fn(|place| hash.as_bytes()[place]))
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            timeout: Duration::from_secs(600),
            init_timeout: Duration::from_secs(120),
            host_id: String::new(),
            awake: Duration::from_millis(1),
            patience: Patience::new(1, Duration::from_millis(1)),
            policy: Policy::default(),
            sizes: Sizes {
                shape: Shape { slots: 8, slot_bytes: 128 << 10 },
                scratch_bytes: 4 << 20,
                sockets: SocketOptions { sockets: 1, send_buffer_bytes: None, receive_buffer_bytes: None },
            },
            reproducible: false,
            streaming_bytes: 8 << 20,
            channels: 2,
        }
    }
}
