//! The values of the socket variables.

use std::fmt;
use std::ops::RangeInclusive;

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

/// Whether connections are encrypted, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encryption {
    /// They are not.
    #[default]
    Off,
    /// By AES-128-GCM where both processors have instructions for it, else by ChaCha20-Poly1305.
    On,
    /// By ChaCha20-Poly1305, whatever the processors have.
    ChaCha20,
}

impl Encryption {
    /// The names that `RSCCL_ENCRYPT` takes.
    pub const NAMES: &'static [&'static str] = &["0", "1", "ChaCha20"];
    const ALL: [Encryption; 3] = [Encryption::Off, Encryption::On, Encryption::ChaCha20];

    /// Its name.
    pub const fn name(self) -> &'static str {
        Encryption::NAMES[self.code() as usize]
    }

    /// The value with this name, in any case.
    pub fn from_name(name: &str) -> Option<Encryption> {
        Encryption::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(name))
    }

    /// The value as a number, for messages between ranks.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Encryption::Off => 0,
            Encryption::On => 1,
            Encryption::ChaCha20 => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Encryption> {
        Encryption::ALL.get(usize::from(code)).copied()
    }
}

/// The ports where ranks listen, from the first to the last.
///
/// ```
/// use rsccl::config::PortRange;
///
/// let range = PortRange::new(50_000, 50_100).unwrap();
/// assert_eq!((range.to_string().as_str(), range.ports().count()), ("50000-50100", 101));
/// assert!(PortRange::new(50_100, 50_000).is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    pub(super) const ALLOWED: &'static str = "two ports, the first not above the last, as in 50000-50100";

    /// The ports from `first` to `last`; `None` if there are none, or `first` is 0, which is no port.
    pub const fn new(first: u16, last: u16) -> Option<PortRange> {
        if first == 0 || first > last {
            return None;
        }
        Some(PortRange { first, last })
    }

    /// The ports, in order.
    pub const fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }

    /// Parses `first-last`, or says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<PortRange, String> {
        let (first, last) = text.split_once('-').ok_or("not two ports with - between them")?;
        let port = |digits: &str| {
            let digits = digits.trim();
            let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u16>().ok());
            number.flatten().filter(|port| *port != 0).ok_or(format!("{digits:?} is no port from 1 to 65535"))
        };
        PortRange::new(port(first)?, port(last)?).ok_or("the first port is above the last".to_owned())
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}
