//! Where a client tries to reach a service: the addresses that it may have, one after the other.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::bootstrap::address::HostPort;
use crate::bootstrap::interface::AddressFamily;
use crate::bootstrap::link::End;
use crate::bootstrap::lookup::Lookup;
use crate::error::Result;

/// The place of a service.
#[derive(Debug, Clone)]
pub(super) enum ServicePlace {
    /// At one of these addresses, of which there is at least one.
    Known(Vec<SocketAddr>),
    /// At an address of this host, whose name is looked up.
    Host(HostPort, AddressFamily),
}

/// The turns through the addresses of a place. A round tries each once; after it a name is looked up again, because it
/// may have moved.
#[derive(Debug)]
pub(super) struct Rotation {
    place: ServicePlace,
    lookup: Option<Lookup>,
    /// The addresses of this round.
    addresses: Vec<SocketAddr>,
    /// What became of those of them that have been tried.
    failures: Vec<String>,
    rejections: usize,
    /// The failures of the last round that has ended.
    last: Option<String>,
}

/// How long a connection may take where other addresses are left to try: a black hole must not hold them up.
pub(super) const OTHERS_PATIENCE: Duration = Duration::from_secs(3);

impl Rotation {
    pub(super) fn new(place: ServicePlace) -> Rotation {
        Rotation { place, lookup: None, addresses: Vec::new(), failures: Vec::new(), rejections: 0, last: None }
    }

    /// The address to try now; `None` while the name is being looked up.
    ///
    /// # Errors
    /// As [`Lookup::look`].
    pub(super) fn address(&mut self, now: Instant) -> Result<Option<SocketAddr>> {
        if self.failures.len() >= self.addresses.len() {
            match &self.place {
                ServicePlace::Known(addresses) => self.addresses.clone_from(addresses),
                ServicePlace::Host(place, family) => {
                    let lookup = self.lookup.get_or_insert_with(|| Lookup::new(place.clone(), *family));
                    let Some(found) = lookup.look(now)? else { return Ok(None) };
                    self.addresses = found;
                    self.lookup = None;
                }
            }
            self.failures.clear();
            self.rejections = 0;
        }
        Ok(self.addresses.get(self.failures.len()).copied())
    }

    /// Records the end of the try of the current address; true if the round has other addresses left.
    pub(super) fn failed(&mut self, end: &End) -> bool {
        let words = match self.addresses.get(self.failures.len()) {
            Some(address) if self.addresses.len() > 1 => format!("{}: {end}", address.ip()),
            _ => end.to_string(),
        };
        self.failures.push(words);
        self.rejections += usize::from(matches!(end, End::Rejected(_)));
        self.last = Some(self.failures.join("; "));
        self.failures.len() < self.addresses.len()
    }

    /// Whether there is more than one address.
    pub(super) fn has_others(&self) -> bool {
        self.addresses.len() > 1
    }

    /// Whether every address of this round has rejected the handshake: then something else serves there.
    pub(super) fn is_rejected(&self) -> bool {
        self.rejections > 0 && self.rejections == self.failures.len()
    }

    /// What became of the last tries, and of the look-up that is under way.
    pub(super) fn state(&self) -> String {
        match (&self.last, &self.lookup) {
            (None, None) => "no answer yet".to_owned(),
            (Some(last), None) => last.clone(),
            (None, Some(lookup)) => lookup.state(),
            (Some(last), Some(lookup)) => format!("{last}; {}", lookup.state()),
        }
    }
}

/// The place, and the addresses of a name if it has been looked up.
impl fmt::Display for Rotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list =
            |addresses: &[SocketAddr]| addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
        match &self.place {
            ServicePlace::Known(addresses) => f.write_str(&list(addresses)),
            ServicePlace::Host(place, _) if place.name().is_none() || self.addresses.is_empty() => place.fmt(f),
            ServicePlace::Host(place, _) => write!(f, "{place} ({})", list(&self.addresses)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::sys::clock;

    fn refused() -> End {
        End::Unreachable(io::ErrorKind::ConnectionRefused.into())
    }

    #[test]
    fn a_round_tries_each_address_once_and_tells_of_all() {
        let addresses: Vec<SocketAddr> = vec!["10.0.0.3:5".parse().unwrap(), "10.0.0.1:5".parse().unwrap()];
        let mut rotation = Rotation::new(ServicePlace::Known(addresses.clone()));
        assert_eq!(rotation.state(), "no answer yet");
        for _ in 0..2 {
            assert_eq!(rotation.address(clock::now()).unwrap(), Some(addresses[0]));
            assert!(rotation.failed(&End::Rejected("another job".to_owned())) && rotation.has_others());
            assert_eq!(rotation.address(clock::now()).unwrap(), Some(addresses[1]));
            assert!(!rotation.failed(&refused()));
            assert!(!rotation.is_rejected());
        }
        assert_eq!(rotation.state(), "10.0.0.3: another job; 10.0.0.1: connection refused");
        assert_eq!(rotation.to_string(), "10.0.0.3:5, 10.0.0.1:5");
    }

    #[test]
    fn one_address_is_told_without_its_number_and_may_reject() {
        let mut rotation = Rotation::new(ServicePlace::Host("10.0.0.1:5".parse().unwrap(), AddressFamily::Any));
        assert!(rotation.address(clock::now()).unwrap().is_some() && !rotation.has_others());
        assert!(!rotation.failed(&End::Rejected("another job".to_owned())) && rotation.is_rejected());
        assert_eq!((rotation.state().as_str(), rotation.to_string().as_str()), ("another job", "10.0.0.1:5"));
    }
}
