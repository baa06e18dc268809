//! The values of the socket variables.

/// The address family of sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SocketFamily {
    /// IPv4.
    Inet,
    /// IPv6.
    Inet6,
}

impl SocketFamily {
    /// The names that `NCCL_SOCKET_FAMILY` takes.
    pub const NAMES: &'static [&'static str] = &["AF_INET", "AF_INET6"];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            SocketFamily::Inet => "AF_INET",
            SocketFamily::Inet6 => "AF_INET6",
        }
    }

    /// The family with this name, in any case.
    pub fn from_name(name: &str) -> Option<SocketFamily> {
        [SocketFamily::Inet, SocketFamily::Inet6].into_iter().find(|known| known.name().eq_ignore_ascii_case(name))
    }
}
