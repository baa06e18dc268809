//! Where a service listens whose address all ranks know beforehand: a name may have several addresses, and some of them
//! may not be usable yet.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use crate::bootstrap::address::HostPort;
use crate::bootstrap::auth::Terms;
use crate::bootstrap::client::taken_by;
use crate::bootstrap::holder::{self, Holder};
use crate::bootstrap::probe::{Answer, who_serves};
use crate::bootstrap::{Options, lookup, reach, socket};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::Wait;
use crate::sys::interfaces::{self, Interface};
use crate::sys::{clock, poller, ports};

/// The listeners of one service, with their addresses: at least one.
#[derive(Debug)]
pub(super) struct ServiceListeners {
    pub(super) sockets: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    /// Whether the user has asked for loopback.
    explicit: bool,
}

/// What a service asks of the place where it listens.
#[derive(Debug, Clone)]
pub(super) struct ListenRules {
    /// What the service proves to those who come: by these it is known whether it is served there already.
    pub(super) terms: Terms,
    /// Whether clients prove themselves: then the service may listen at every address of this host.
    pub(super) guarded: bool,
    /// How long to try again while another process listens there.
    pub(super) listener_patience: Duration,
}

/// The most listeners of one service.
pub(super) const MAX_LISTENERS: usize = 16;

/// The pause before the next try to listen: it doubles from the first to the last.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// Listens at every address of `place` that belongs to this machine, and at all addresses of the machine if the name
/// leads to its loopback and the service is guarded: other hosts know the name by other addresses. (Debian gives a
/// host's own name the address 127.0.1.1.)
///
/// If this machine does not have the addresses yet, waits for the link that may bring them. If the port is taken,
/// tries again as long as its [`Holder`] is worth it.
///
/// # Errors
/// As [`lookup::addresses`] and [`socket::listen`]. If the port is taken, the message says who holds it.
pub(super) fn listen(place: &HostPort, rules: ListenRules, options: &Options, wait: &Wait) -> Result<ServiceListeners> {
    let mut told = false;
    let mut taken_since: Option<Instant> = None;
    let (mut before, mut pause) = (None, RETRY_PAUSE);
    loop {
        let found = match lookup::addresses(place, options.family, wait) {
            Ok(found) => found,
            // The name was known before: what it led to is the better reason.
            Err(over) if over.kind() == Kind::Timeout => return Err(before.unwrap_or(over)),
            Err(error) => return Err(error),
        };
        let error = match open(place, &found, rules.guarded, options) {
            Ok(listeners) => return Ok(listeners),
            Err(error) => error,
        };
        let error = if socket::is(&error, io::ErrorKind::AddrInUse) {
            let since = *taken_since.get_or_insert_with(clock::now);
            let waited = clock::now().saturating_duration_since(since);
            holder_of((place, &found), error, (&rules, waited), (options, wait))?
        } else if socket::is(&error, io::ErrorKind::AddrNotAvailable) && may_get_more(&found, options)? {
            error
        } else {
            return Err(error);
        };
        if !told {
            told = true;
            log::warn!(Bootstrap, "cannot serve yet: {}; trying again", error.message());
        }
        if let Err(over) = wait.check(String::new) {
            return Err(if over.kind() == Kind::Timeout { error } else { over });
        }
        before = Some(error);
        poller::pause(wait.slice(pause));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn open(place: &HostPort, found: &[SocketAddr], guarded: bool, options: &Options) -> Result<ServiceListeners> {
    let explicit = place.is_explicit_loopback();
    let mut listeners = ServiceListeners { sockets: Vec::new(), addresses: Vec::new(), explicit };
    let mut missing = None;
    for address in found.iter().take(MAX_LISTENERS) {
        match socket::listen(*address) {
            Ok((socket, address)) => listeners.push(socket, address),
            // Nothing brings a loopback address, or a family that the kernel does not have.
            Err(error) if is_missing(&error) => {
                let comes = !address.ip().is_loopback() && socket::is(&error, io::ErrorKind::AddrNotAvailable);
                if missing.as_ref().is_none_or(|(_, earlier)| comes && !earlier) {
                    missing = Some((error, comes));
                }
            }
            Err(error) => return Err(error),
        }
    }
    if let Some((error, comes)) = missing {
        let only_loopback = listeners.addresses.iter().all(|address| address.ip().is_loopback());
        if listeners.sockets.is_empty() || (only_loopback && comes && may_get_more(found, options)?) {
            return Err(error);
        }
    }
    if guarded && listeners.reach_this_host_only() && !explicit {
        let first = listeners.addresses[0];
        // Their port is needed.
        drop(listeners);
        let (socket, everywhere) = socket::listen_everywhere(place.port(), options.family)?;
        log::info!(Bootstrap, "{place} is {}: listening at all addresses of this host", first.ip());
        return Ok(ServiceListeners { sockets: vec![socket], addresses: vec![everywhere], explicit });
    }
    Ok(listeners)
}

/// The error that the port is taken, which says by whom, for as long as it is worth to try again.
///
/// # Errors
/// That error, once it is not. Another job, or an earlier process of this one, may soon have met, or end.
fn holder_of(
    (place, found): (&HostPort, &[SocketAddr]),
    error: Error,
    (rules, waited): (&ListenRules, Duration),
    (options, wait): (&Options, &Wait),
) -> Result<Error> {
    let mut answer = Answer::Nothing;
    for address in found {
        if matches!(answer, Answer::Nothing | Answer::Unreachable) {
            answer = who_serves(*address, &rules.terms, wait)?;
        }
    }
    let patience = rules.listener_patience.max(options.other_job_patience());
    let (error, is_over) = match answer {
        Answer::OtherJob(other) => (
            taken_by(&format!("the place {place}, where rank 0 serves,"), &rules.terms, &other),
            other.age.max(waited) >= patience,
        ),
        Answer::Service => {
            let message = format!(
                "rank 0 is here already: it serves at {place}; either two processes of this job were given rank 0, or \
                 another job, of which nothing is known, uses this address: give each a port of its own"
            );
            (Error::invalid_usage(message), waited >= patience)
        }
        Answer::Nothing | Answer::Unreachable => {
            let holder = holder::of(place.port());
            (taken(&error, &holder), waited >= holder.patience(rules.listener_patience))
        }
    };
    if is_over { Err(error) } else { Ok(error) }
}

/// Whether this machine lacks the address, now or for good.
fn is_missing(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(ports::is_unknown_family) || socket::is(error, io::ErrorKind::AddrNotAvailable)
}

/// Whether this machine may have more of the addresses `found` soon: a link that may bring them is still down, or the
/// kernel still looks whether another host has a new IPv6 address.
fn may_get_more(found: &[SocketAddr], options: &Options) -> Result<bool> {
    let all = interfaces::list()?;
    let is_here = |address: &SocketAddr| all.iter().any(|have| have.address == address.ip());
    let is_new = |address: &SocketAddr| address.is_ipv6() && !address.ip().is_loopback() && is_here(address);
    Ok(found.iter().any(is_new) || reach::may_come_up(&all, options)?)
}

/// The error of a port that `holder` has. Its source stays the system's.
fn taken(error: &Error, holder: &Holder) -> Error {
    let message = format!("{}: {holder}", error.message());
    Error::new(Kind::System, message).with_source(io::Error::from(io::ErrorKind::AddrInUse))
}

/// Whether loopback has IPv4's address. Assumed where the system does not tell.
fn has_v4_loopback(all: &[Interface]) -> bool {
    let mut loopbacks = all.iter().map(|interface| interface.address).filter(IpAddr::is_loopback).peekable();
    loopbacks.peek().is_none() || loopbacks.any(|address| address.is_ipv4())
}

impl ServiceListeners {
    /// One listener.
    pub(super) fn one(socket: TcpListener, address: SocketAddr) -> ServiceListeners {
        ServiceListeners { sockets: vec![socket], addresses: vec![address], explicit: address.ip().is_loopback() }
    }

    fn push(&mut self, socket: TcpListener, address: SocketAddr) {
        self.sockets.push(socket);
        self.addresses.push(address);
    }

    fn reach_this_host_only(&self) -> bool {
        self.addresses.iter().all(|address| address.ip().is_loopback())
    }

    /// An address at which this process reaches the service.
    pub(super) fn near(&self) -> SocketAddr {
        let address = self.addresses[0];
        if !address.ip().is_unspecified() {
            return address;
        }
        // A listener of both families takes IPv4 too, which loopback has nearly everywhere.
        let is_v4 = address.is_ipv4() || has_v4_loopback(&interfaces::list().unwrap_or_default());
        let loopback: IpAddr = if is_v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        SocketAddr::new(loopback, address.port())
    }

    /// Where rank 0 listens, in words, with the remedy if no other host reaches that and ranks may be on others;
    /// `variable` names the place.
    pub(super) fn words(&self, variable: &str, options: &Options) -> String {
        let place = |address: &SocketAddr| match address.ip().is_unspecified() {
            true => format!("port {} of every address of its host", address.port()),
            false => address.to_string(),
        };
        let list: Vec<String> = self.addresses.iter().map(place).collect();
        let remedy = match (self.reach_this_host_only() && !options.one_host, self.explicit) {
            (false, _) => String::new(),
            (true, explicit) => {
                let or_secret = if explicit { "" } else { ", or set RSCCL_SECRET on all ranks" };
                let why = "which is loopback: no other host reaches it";
                format!(", {why}; if ranks run on others, set {variable} to an address of the network{or_secret}")
            }
        };
        format!("rank 0 listens at {}{remedy}", list.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::auth::Purpose;
    use crate::config::Encryption;
    use crate::sync::AbortFlag;

    #[test]
    fn loopback_is_ipv6s_only_where_ipv4_has_none() {
        let named = |address: &str| {
            let (address, netmask) = (address.parse().unwrap(), address.parse().unwrap());
            Interface { name: "any".to_owned(), address, netmask, scope: 0, running: true }
        };
        assert!(has_v4_loopback(&[]) && has_v4_loopback(&[named("::1"), named("127.0.0.1")]));
        assert!(has_v4_loopback(&[named("10.0.0.1")]) && !has_v4_loopback(&[named("10.0.0.1"), named("::1")]));
    }

    fn alone() -> ListenRules {
        let terms =
            Terms { key: [1; 32], purpose: Purpose::Store, communicator: 0, job: None, encryption: Encryption::Off };
        ListenRules { terms, guarded: true, listener_patience: Duration::ZERO }
    }

    fn soon() -> Wait {
        Wait::new(Duration::from_secs(10), &AbortFlag::new())
    }

    /// A port that is free: it was just ours.
    fn free_port() -> u16 {
        socket::listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap().1.port()
    }

    #[test]
    fn explicit_loopback_is_never_widened_and_is_told() {
        let place = HostPort::new("127.0.0.1", free_port()).unwrap();
        let listeners = listen(&place, alone(), &Options::default(), &soon()).unwrap();
        assert_eq!(listeners.near().to_string(), place.to_string());
        let words = listeners.words("MASTER_ADDR", &Options::default());
        assert!(words.contains(&format!("rank 0 listens at {place}, which is loopback")), "{words}");
        assert!(words.contains("if ranks run on others, set MASTER_ADDR") && !words.contains("SECRET"), "{words}");
        // Where all ranks are here it is the right place, and the cause is another.
        let here = Options { one_host: true, ..Options::default() };
        assert_eq!(listeners.words("MASTER_ADDR", &here), format!("rank 0 listens at {place}"));
    }

    #[test]
    fn a_port_that_a_process_listens_at_is_told_at_once_with_the_process() {
        let (_held, address) = socket::listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let place = HostPort::new("127.0.0.1", address.port()).unwrap();
        let error = listen(&place, alone(), &Options::default(), &soon()).unwrap_err();
        assert!(socket::is(&error, io::ErrorKind::AddrInUse), "{error}");
        let told = error.to_string().contains("this process listens there already");
        // A container may hide /proc.
        assert!(told || holder::of(address.port()) == Holder::Unseen, "{error}");
    }

    #[test]
    fn a_port_of_an_outgoing_connection_is_waited_for_and_told_at_the_deadline() {
        use socket2::{Domain, Socket, Type};
        let (_server, address) = socket::listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let outgoing = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        outgoing.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        outgoing.connect(&address.into()).unwrap();
        let port = outgoing.local_addr().unwrap().as_socket().unwrap().port();
        let place = HostPort::new("127.0.0.1", port).unwrap();
        let wait = Wait::new(Duration::from_millis(100), &AbortFlag::new());
        let error = listen(&place, alone(), &Options::default(), &wait).unwrap_err();
        assert!(socket::is(&error, io::ErrorKind::AddrInUse), "{error}");
        let told = error.to_string().contains("ip_local_port_range");
        // A container may hide /proc.
        assert!(told || holder::of(port) == Holder::Unseen, "{error}");
        // Without TIME-WAIT.
        outgoing.set_linger(Some(Duration::ZERO)).unwrap();
        drop(outgoing);
        listen(&place, alone(), &Options::default(), &soon()).unwrap();
    }

    #[test]
    fn all_addresses_of_this_host_are_reached_by_both_families() {
        let port = free_port();
        let (socket, address) =
            socket::listen_everywhere(port, crate::bootstrap::interface::AddressFamily::Any).unwrap();
        let listeners = ServiceListeners { sockets: vec![socket], addresses: vec![address], explicit: false };
        assert!(std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        assert!(std::net::TcpStream::connect(listeners.near()).is_ok());
        let words = listeners.words("MASTER_ADDR", &Options::default());
        assert_eq!(words, format!("rank 0 listens at port {port} of every address of its host"));
    }
}
