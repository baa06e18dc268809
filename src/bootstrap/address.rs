//! `host:port` in the forms that `NCCL_COMM_ID` and addresses of stores may have.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::str::FromStr;

use crate::bootstrap::interface::{AddressFamily, MAX_INTERFACES};
use crate::error::{Error, Result};
use crate::sys::interfaces::Interface;

/// `ipv4:port`, `[ipv6]:port`, `[ipv6%scope]:port` or `hostname:port`, parsed but not resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    host: Host,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Ip(IpAddr),
    Scoped(Ipv6Addr, String),
    Name(String),
}

/// The longest host name (RFC 1035).
const MAX_NAME_BYTES: usize = 253;

/// The longest interface name (the kernel's `IFNAMSIZ - 1`).
const MAX_SCOPE_BYTES: usize = 15;

impl FromStr for HostPort {
    type Err = Error;

    fn from_str(text: &str) -> Result<HostPort> {
        let wrong = |why: &str| {
            let shown: String = text.chars().take(MAX_NAME_BYTES + 16).collect();
            Error::invalid_argument(format!(
                "'{}' is not an address: {why}; write ipv4:port, [ipv6]:port, [ipv6%interface]:port or hostname:port",
                shown.escape_default()
            ))
        };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (inside, after) = rest.split_once(']').ok_or_else(|| wrong("the ']' is missing"))?;
                let port = after.strip_prefix(':').ok_or_else(|| wrong("':port' is missing after ']'"))?;
                (v6_host(inside).ok_or_else(|| wrong("the brackets hold no IPv6 address"))?, port)
            }
            None => {
                let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("':port' is missing"))?;
                if host.contains(':') {
                    return Err(wrong("an IPv6 address must be in brackets"));
                }
                (name_host(host).map_err(wrong)?, port)
            }
        };
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port =
            port.parse().ok().filter(|_| digits).ok_or_else(|| wrong("the port is not a number from 1 to 65535"))?;
        if port == 0 {
            return Err(wrong("the port must be 1 to 65535, got 0"));
        }
        Ok(HostPort { host, port })
    }
}

fn v6_host(text: &str) -> Option<Host> {
    match text.split_once('%') {
        None => Some(Host::Ip(IpAddr::V6(text.parse().ok()?))),
        Some((ip, scope)) => {
            let known = !scope.is_empty() && scope.len() <= MAX_SCOPE_BYTES;
            known.then_some(Host::Scoped(ip.parse().ok()?, scope.to_owned()))
        }
    }
}

fn name_host(text: &str) -> std::result::Result<Host, &'static str> {
    if let Ok(ip) = text.parse() {
        return Ok(Host::Ip(IpAddr::V4(ip)));
    }
    if text.is_empty() {
        return Err("the host is missing");
    }
    if text.len() > MAX_NAME_BYTES {
        return Err("the host name is longer than 253 characters");
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err("an IPv4 address has four numbers from 0 to 255");
    }
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        return Err("a host name may have letters, digits, '-', '.' and '_' only");
    }
    Ok(Host::Name(text.to_owned()))
}

impl HostPort {
    /// A host, in any of the forms above but without port, and a port.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] if `host` is not a valid host.
    pub fn new(host: &str, port: u16) -> Result<HostPort> {
        match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]:{port}").parse(),
            false => format!("{host}:{port}").parse(),
        }
    }

    /// The socket addresses, at least one: a name may have several. Looks up a name (which may block as long as the
    /// resolver does; the service's clients and servers do that on a thread, see [`super::lookup`]) and the index of a
    /// scope.
    ///
    /// `family` picks among the addresses of a name. An explicit loopback address, or `localhost`, is used whatever
    /// the family: it is usually no choice of the user but the way in which a launcher on this host is reached.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if the name is unknown; [`crate::error::Kind::InvalidArgument`] if the scope is
    /// not the name of an interface, or no address is of the wanted family.
    pub fn addresses(&self, family: AddressFamily, interfaces: &[Interface]) -> Result<Vec<SocketAddr>> {
        let mut found: Vec<SocketAddr> = Vec::new();
        for address in self.of_any_family(interfaces)? {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        let fits: Vec<_> = found.iter().copied().filter(|address| family.allows(address.ip())).collect();
        if !fits.is_empty() {
            return Ok(fits);
        }
        found.retain(|address| self.is_explicit_loopback() && address.ip().is_loopback());
        if !found.is_empty() {
            return Ok(found);
        }
        Err(Error::invalid_argument(format!(
            "the address {self} does not belong to the family that NCCL_SOCKET_FAMILY asks for ({family})"
        )))
    }

    fn of_any_family(&self, interfaces: &[Interface]) -> Result<Vec<SocketAddr>> {
        match &self.host {
            Host::Ip(ip) => Ok(vec![SocketAddr::new(*ip, self.port)]),
            Host::Scoped(ip, scope) => {
                Ok(vec![SocketAddrV6::new(*ip, self.port, 0, scope_number(scope, interfaces)?).into()])
            }
            Host::Name(name) => {
                let named = |error| Error::system(format!("looking up the host '{name}'"), error);
                let found = (name.as_str(), self.port).to_socket_addrs().map_err(named)?.collect();
                Ok(on_own_loopback(found, self.port, interfaces))
            }
        }
    }

    /// The name, where the host is given by one.
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.host {
            Host::Name(name) => Some(name),
            Host::Ip(_) | Host::Scoped(..) => None,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Whether the user means loopback: by its address, or by `localhost`.
    pub(crate) fn is_explicit_loopback(&self) -> bool {
        match &self.host {
            Host::Ip(ip) => ip.is_loopback(),
            Host::Scoped(..) => false,
            Host::Name(name) => name.eq_ignore_ascii_case("localhost"),
        }
    }
}

/// The addresses of a name; if it leads to a loopback address that this machine does not have, the one that it has: a
/// machine with IPv6 only may list `localhost`, and its own name, with IPv4's addresses.
fn on_own_loopback(found: Vec<SocketAddr>, port: u16, interfaces: &[Interface]) -> Vec<SocketAddr> {
    let mut own = interfaces.iter().filter(|interface| interface.running && interface.address.is_loopback());
    let is_elsewhere = |address: &SocketAddr| {
        let mut same_family = own.clone().filter(|own| own.address.is_ipv4() == address.is_ipv4());
        address.ip().is_loopback() && same_family.next().is_none()
    };
    match !found.is_empty() && found.iter().all(is_elsewhere) {
        true => own.next().map_or(found, |own| vec![SocketAddr::new(own.address, port)]),
        false => found,
    }
}

fn scope_number(scope: &str, interfaces: &[Interface]) -> Result<u32> {
    if let Ok(number) = scope.parse() {
        return Ok(number);
    }
    let scoped = interfaces.iter().find(|interface| interface.name == scope && interface.scope != 0);
    scoped.map(|interface| interface.scope).ok_or_else(|| {
        Error::invalid_argument(format!("no interface with an IPv6 address is called '{}'", scope.escape_default()))
    })
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let port = self.port;
        match &self.host {
            Host::Ip(ip) => SocketAddr::new(*ip, port).fmt(f),
            Host::Scoped(ip, scope) => write!(f, "[{ip}%{scope}]:{port}"),
            Host::Name(name) => write!(f, "{name}:{port}"),
        }
    }
}

/// The addresses under which this host may reach the address of a peer, the likeliest first; `interface` is the one
/// that this rank uses. The scope of a link-local address is an index of the machine where it was read, so it is
/// replaced by the scopes of our own interfaces: any of them may be on the peer's link.
pub(crate) fn localise(address: SocketAddr, interface: SocketAddr, all: &[Interface]) -> Vec<SocketAddr> {
    let SocketAddr::V6(theirs) = address else { return vec![address] };
    if !theirs.ip().is_unicast_link_local() {
        return vec![address];
    }
    let chosen = match interface {
        SocketAddr::V6(ours) => ours.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let on_links = all.iter().filter(|other| other.running && other.address.is_ipv6()).map(|other| other.scope);
    let mut scopes: Vec<u32> = Vec::new();
    for scope in [chosen].into_iter().chain(on_links) {
        if scope != 0 && !scopes.contains(&scope) && scopes.len() < MAX_INTERFACES {
            scopes.push(scope);
        }
    }
    if scopes.is_empty() {
        return vec![address];
    }
    scopes.into_iter().map(|scope| SocketAddrV6::new(*theirs.ip(), theirs.port(), 0, scope).into()).collect()
}

/// The addresses that a peer may have, the likeliest first. Nearly every peer has one, which takes no memory elsewhere:
/// each rank knows all others.
#[derive(Debug, Clone, Default)]
pub(crate) enum PeerAddresses {
    /// They are not known yet.
    #[default]
    Unknown,
    /// One.
    One(SocketAddr),
    /// A link-local one, which may be on any link of this host.
    OnLinks(Vec<SocketAddr>),
}

impl PeerAddresses {
    /// None as long as they are not known.
    pub(crate) fn as_slice(&self) -> &[SocketAddr] {
        match self {
            PeerAddresses::Unknown => &[],
            PeerAddresses::One(address) => std::slice::from_ref(address),
            PeerAddresses::OnLinks(all) => all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<HostPort> {
        text.parse()
    }

    #[test]
    fn all_forms_are_understood() {
        for text in ["10.0.0.1:80", "[::1]:65535", "[fe80::1%eth0]:1", "node-7.cluster_2.example:29500"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(HostPort::new("::1", 5).unwrap().to_string(), "[::1]:5");
        assert_eq!(HostPort::new("host", 5).unwrap().to_string(), "host:5");
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, why) in [
            ("host", "':port' is missing"),
            ("host:", "not a number from 1 to 65535"),
            ("host:+5", "not a number from 1 to 65535"),
            ("host:65536", "not a number from 1 to 65535"),
            ("host:0", "must be 1 to 65535, got 0"),
            (":5", "the host is missing"),
            ("::1:5", "must be in brackets"),
            ("[::1:5", "']' is missing"),
            ("[::1]5", "after ']'"),
            ("[1.2.3.4]:5", "no IPv6 address"),
            ("[fe80::1%]:5", "no IPv6 address"),
            ("1.2.3:5", "four numbers"),
            ("1.2.3.256:5", "four numbers"),
            ("ho st:5", "letters, digits"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn scopes_and_families_are_checked() {
        let link = Interface {
            name: "eth0".into(),
            address: "fe80::2".parse().unwrap(),
            netmask: "ffff:ffff:ffff:ffff::".parse().unwrap(),
            scope: 4,
            running: true,
        };
        let resolve = |text: &str, family| -> Result<Vec<String>> {
            let found = parse(text).unwrap().addresses(family, std::slice::from_ref(&link))?;
            Ok(found.iter().map(SocketAddr::to_string).collect())
        };
        assert_eq!(resolve("[fe80::1%eth0]:9", AddressFamily::Any).unwrap(), ["[fe80::1%4]:9"]);
        assert_eq!(resolve("[fe80::1%7]:9", AddressFamily::V6).unwrap(), ["[fe80::1%7]:9"]);
        assert!(resolve("[fe80::1%eth1]:9", AddressFamily::Any).unwrap_err().to_string().contains("'eth1'"));
        assert!(resolve("10.0.0.1:9", AddressFamily::V6).unwrap_err().to_string().contains("AF_INET6"));
        assert_eq!(resolve("localhost:9", AddressFamily::V4).unwrap(), ["127.0.0.1:9"]);
        // `rsccl run` gives its ranks such a place, whatever the family of the network is.
        assert_eq!(resolve("127.0.0.1:9", AddressFamily::V6).unwrap(), ["127.0.0.1:9"]);
        assert_eq!(resolve("[::1]:9", AddressFamily::V4).unwrap(), ["[::1]:9"]);
    }

    #[test]
    fn a_name_of_loopback_leads_to_the_loopback_that_the_machine_has() {
        let has = |address: &str| Interface {
            name: "lo".into(),
            address: address.parse().unwrap(),
            netmask: address.parse().unwrap(),
            scope: 0,
            running: true,
        };
        let at = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let (v4, v6, network) = (has("127.0.0.1"), has("::1"), has("fd00::5"));
        for (found, own, used) in [
            (&["127.0.0.1:9"][..], vec![&v6, &network], &["[::1]:9"][..]),
            (&["127.0.1.1:9"], vec![&network, &v6], &["[::1]:9"]),
            (&["[::1]:9"], vec![&v4], &["127.0.0.1:9"]),
            (&["127.0.1.1:9"], vec![&v4, &v6], &["127.0.1.1:9"]),
            (&["127.0.0.1:9", "[::1]:9"], vec![&v6], &["127.0.0.1:9", "[::1]:9"]),
            (&["127.0.1.1:9", "[fd00::5]:9"], vec![&v6, &network], &["127.0.1.1:9", "[fd00::5]:9"]),
            (&["127.0.0.1:9"], vec![&network], &["127.0.0.1:9"]),
            (&[], vec![&v6], &[]),
        ] {
            let own: Vec<Interface> = own.into_iter().cloned().collect();
            assert_eq!(on_own_loopback(at(found), 9, &own), at(used), "{found:?}");
        }
    }

    #[test]
    fn a_link_local_peer_is_tried_through_each_of_our_scopes() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let link = |name: &str, scope, running| Interface {
            name: name.into(),
            address: "fe80::2".parse().unwrap(),
            netmask: "ffff:ffff:ffff:ffff::".parse().unwrap(),
            scope,
            running,
        };
        let all = [link("eth0", 2, true), link("eth1", 3, true), link("eth2", 4, false)];
        let shown = |theirs: &str, ours: &str| -> Vec<String> {
            localise(address(theirs), address(ours), &all).iter().map(SocketAddr::to_string).collect()
        };
        assert_eq!(shown("[fe80::2%9]:5", "[fe80::1%3]:0"), ["[fe80::2%3]:5", "[fe80::2%2]:5"]);
        assert_eq!(shown("[fe80::2%9]:5", "10.0.0.2:0"), ["[fe80::2%2]:5", "[fe80::2%3]:5"]);
        assert_eq!(shown("[fd00::2]:5", "[fe80::1%3]:0"), ["[fd00::2]:5"]);
        assert_eq!(shown("10.0.0.1:5", "[fe80::1%3]:0"), ["10.0.0.1:5"]);
        let none = localise(address("[fe80::2%9]:5"), address("10.0.0.2:0"), &[]);
        assert_eq!(none, [address("[fe80::2%9]:5")]);
    }
}
