//! What tells the listeners of a process apart.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::PortRange;

/// Where to listen. Communicators share a listener if all of this is equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doorway {
    /// The address of an interface; its port is 0.
    pub(crate) interface: SocketAddr,
    /// The ports of which one is taken; any free one where `None`.
    pub(crate) ports: Option<PortRange>,
    /// The interface that connections must come by.
    pub(crate) device: Option<String>,
    /// Options of the socket that accepted ones inherit, in words; none where it is empty.
    pub(crate) options: String,
}

impl Doorway {
    /// Of a socket with the usual options.
    pub(crate) fn plain(mut interface: SocketAddr, ports: Option<PortRange>) -> Doorway {
        interface.set_port(0);
        Doorway { interface, ports, device: None, options: String::new() }
    }
}

/// The network namespace of the calling thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NetworkSpace(PathBuf);

impl NetworkSpace {
    /// Where the system does not tell, all threads count as being in one.
    pub(super) fn here() -> NetworkSpace {
        NetworkSpace(std::fs::read_link("/proc/thread-self/ns/net").unwrap_or_default())
    }
}
