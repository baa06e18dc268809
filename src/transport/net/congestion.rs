//! The congestion control that the user asks for.

use std::fmt;

use socket2::{Domain, Protocol, SockRef};

use crate::error::{Error, Result, shown};
use crate::sys::open;

/// A congestion control that this kernel has, and lets this process use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Congestion {
    name: [u8; MOST_NAME_BYTES],
    length: usize,
}

impl Congestion {
    /// The one of this name.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the kernel refuses it, with those that it has;
    /// [`crate::error::Kind::System`] where no socket can be opened to ask it.
    pub fn named(text: &str) -> Result<Congestion> {
        let length = text.len();
        if length == 0 || length > MOST_NAME_BYTES {
            return Err(refused(text, &format!("a name has 1 to {MOST_NAME_BYTES} characters")));
        }
        let mut name = [0; MOST_NAME_BYTES];
        name[..length].copy_from_slice(text.as_bytes());
        let congestion = Congestion { name, length };
        let [v4, v6] = [Domain::IPV4, Domain::IPV6].map(|domain| open::socket(domain, Some(Protocol::TCP)));
        let socket = v4.or(v6).map_err(|error| Error::system("a socket to ask for RSCCL_TCP_CONGESTION", error))?;
        congestion.set(&SockRef::from(&socket)).map(|()| congestion)
    }

    /// Gives it to a socket.
    ///
    /// # Errors
    /// As [`Congestion::named`].
    pub(super) fn set(&self, socket: &SockRef<'_>) -> Result<()> {
        let set = socket.set_tcp_congestion(&self.name[..self.length]);
        set.map_err(|error| refused(&self.to_string(), &format!("the kernel refuses it ({error})")))
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.name[..self.length]))
    }
}

impl fmt::Debug for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Congestion({self})")
    }
}

fn refused(name: &str, why: &str) -> Error {
    let (free, all) = (known("tcp_allowed_congestion_control"), known("tcp_available_congestion_control"));
    Error::invalid_argument(format!(
        "RSCCL_TCP_CONGESTION={:?} (Config::with_tcp_congestion): {why}; it lets everybody have: {free}; it knows: \
         {all}; others are modules, as tcp_bbr",
        shown(name)
    ))
}

fn known(setting: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{setting}"));
    text.map_or_else(|_| "it does not say".to_owned(), |text| text.trim().to_owned())
}

/// The kernel's `TCP_CA_NAME_MAX`, less its end.
const MOST_NAME_BYTES: usize = 15;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use socket2::{Socket, Type};

    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_name_is_set_or_refused_with_those_that_there_are() {
        let reno = Congestion::named("reno").unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        reno.set(&SockRef::from(&socket)).unwrap();
        assert!(socket.tcp_congestion().unwrap().starts_with(b"reno"));
        for name in ["", "no-such", "longer than any name", "re\0no"] {
            let error = Congestion::named(name).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidArgument, "{name}: {error}");
            assert!(error.message().contains("RSCCL_TCP_CONGESTION") && error.message().contains("reno"), "{error}");
        }
    }
}
