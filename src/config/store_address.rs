//! The address of the store where ranks meet that know only their numbers.

use std::fmt;
use std::path::PathBuf;

/// The address of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreAddress {
    /// A store that rank 0 serves.
    Tcp {
        /// A name or an address; an IPv6 address without brackets.
        host: String,
        /// The port, not 0.
        port: u16,
    },
    /// A folder or file that all ranks see.
    File(PathBuf),
}

impl StoreAddress {
    /// The forms that [`StoreAddress::parse`] takes, in words.
    pub const ALLOWED: &'static str = "tcp://host:port, tcp://[ipv6]:port or file:///path";

    /// Reads an address.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<StoreAddress, String> {
        if let Some(path) = text.strip_prefix("file://") {
            return match path.starts_with('/') && !path.contains('\0') {
                true => Ok(StoreAddress::File(PathBuf::from(path))),
                false => Err("the path after file:// does not begin with /".to_owned()),
            };
        }
        let rest = text.strip_prefix("tcp://").ok_or("it begins with neither tcp:// nor file://")?;
        let (host, port) = rest.rsplit_once(':').ok_or("there is no :port")?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        match bracketed {
            None if host.contains([':', '[', ']']) => return Err("an IPv6 address needs brackets".to_owned()),
            _ => {}
        }
        StoreAddress::tcp(bracketed.unwrap_or(host), port)
    }

    /// The address made of a host and the text of a port.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub(super) fn tcp(host: &str, port: &str) -> Result<StoreAddress, String> {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || ".-_:%".contains(letter);
        if host.is_empty() || host.len() > MAX_HOST_BYTES || !host.chars().all(plain) {
            return Err("the host is neither a name nor an address".to_owned());
        }
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let number = port.parse::<u16>().ok().filter(|number| digits && *number != 0);
        let port = number.ok_or("the port is not a number from 1 to 65535")?;
        Ok(StoreAddress::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreAddress::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            StoreAddress::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            StoreAddress::File(path) => write!(f, "file://{}", path.display()),
        }
    }
}

/// The longest name that DNS allows.
const MAX_HOST_BYTES: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_lead_back() {
        for text in ["tcp://node-1.cluster:29500", "tcp://127.0.0.1:1", "tcp://[fe80::1%eth0]:65535", "file:///tmp/a b"]
        {
            assert_eq!(StoreAddress::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("udp://x:1", "neither tcp"),
            ("tcp://x", "no :port"),
            ("tcp://x:0", "port"),
            ("tcp://x:65536", "port"),
            ("tcp://x:+1", "port"),
            ("tcp://:1", "host"),
            ("tcp://a b:1", "host"),
            ("tcp://::1:1", "brackets"),
            ("file://relative", "begin with /"),
        ] {
            assert!(StoreAddress::parse(text).unwrap_err().contains(why), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in "(tcp://|file://|)[\\[\\]:/0-9a-z%\\PC]{0,30}") {
            if let Ok(address) = StoreAddress::parse(&text) {
                prop_assert_eq!(StoreAddress::parse(&address.to_string()), Ok(address));
            }
        }
    }
}
