//! The side of TCP connections that connects: all sockets of one connection. It says what they are for.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::bootstrap::auth::Terms;
use crate::bootstrap::socket;
use crate::error::{Error, Result};
use crate::log;
use crate::sys::{clock, limits};
use crate::transport::data_handshake::{Caller, Request};
use crate::transport::net::routes::{DeadRoutes, SocketRoute};
use crate::transport::net::sealed_socket::DataStream;
use crate::transport::net::{SocketOptions, apply};
use crate::transport::table::{Dialling, Unreached};
use crate::types::Rank;

/// One rank's side that connects: all sockets of one connection.
#[derive(Debug)]
pub(in crate::transport) struct DataConnector {
    /// Both ends prove that they know what these say.
    terms: Terms,
    me: Rank,
    owner: Rank,
    ticket: u64,
    options: SocketOptions,
    ways: SocketRoutes,
    dialling: Dialling,
    /// That the other end is not reached by any route, where it may dial instead.
    unreached: Option<Unreached>,
    /// Routes that lead to the peer's host, which has refused or ended a connection there: its process may have died.
    /// Another connection tries them again.
    refused: DeadRoutes,
    calls: Vec<ConnectingSocket>,
    /// Whether a socket inside this host was taken from a congestion control that paces.
    stopped_pacing: bool,
}

/// The routes that the sockets of a connection may take.
#[derive(Debug)]
pub(in crate::transport) struct SocketRoutes {
    /// The address of this rank's interface on which ranks met.
    pub(in crate::transport) own: IpAddr,
    /// The sockets take these in turn: at least one.
    pub(in crate::transport) routes: Vec<SocketRoute>,
    /// How ranks met, where that is none of the routes: what is left where all of them fail.
    pub(in crate::transport) last: Option<SocketRoute>,
    /// What this rank knows of routes that fail.
    pub(in crate::transport) dead: DeadRoutes,
}

/// Why a route is left.
#[derive(Debug)]
struct RouteFailure {
    why: String,
    /// Whether the host at its end has answered, so that the route is none that fails.
    is_answered: bool,
    /// Whether it cannot answer any more.
    is_final: bool,
}

/// A socket that connects.
#[derive(Debug)]
struct ConnectingSocket {
    stream: TcpStream,
    caller: Caller,
    is_done: bool,
    route: SocketRoute,
    /// What it may try after that, the next one at the end.
    left: Vec<SocketRoute>,
    since: Instant,
}

impl DataConnector {
    /// Begins to connect to `owner` with so many sockets for `ticket`.
    pub(in crate::transport) fn new(
        terms: &Terms,
        (me, owner): (Rank, Rank),
        (ways, dialling): (SocketRoutes, Dialling),
        (ticket, sockets, options): (u64, u32, SocketOptions),
    ) -> Result<DataConnector> {
        let mut connector = DataConnector {
            terms: terms.clone(),
            me,
            owner,
            ticket,
            options,
            ways,
            dialling,
            unreached: None,
            refused: DeadRoutes::default(),
            calls: Vec::new(),
            stopped_pacing: false,
        };
        for index in 0..sockets {
            let left = connector.ways.of_socket(index);
            match connector.call(index, left)? {
                Some(call) => connector.calls.push(call),
                None => break,
            }
        }
        if connector.unreached.is_some() {
            connector.calls.clear();
        }
        if connector.stopped_pacing {
            log::detail!(Net @ me, "to rank {owner} inside this host: Reno in place of BBR");
        }
        Ok(connector)
    }

    /// The sockets, once all are through.
    pub(in crate::transport) fn progress(&mut self) -> Result<Option<Vec<DataStream>>> {
        if self.unreached.as_ref().is_some_and(|unreached| !unreached.may_yet) {
            return Ok(None);
        }
        let may_reverse = self.may_reverse();
        for index in 0..self.calls.len() {
            let call = &mut self.calls[index];
            if call.is_done {
                continue;
            }
            let why = match call.caller.progress(&call.stream) {
                Ok(is_done) => {
                    call.is_done = is_done;
                    call.silence()
                }
                Err(error) if call.left.is_empty() && !(may_reverse && call.is_unmade(&error)) => return Err(error),
                Err(error) => Some(RouteFailure::of_handshake(&error)),
            };
            let Some(failure) = why else { continue };
            let (route, left) = (call.route.clone(), std::mem::take(&mut call.left));
            if !left.is_empty() {
                self.leave_out(&route, failure);
                match self.call(u32::try_from(index).unwrap_or(u32::MAX), left)? {
                    Some(call) => self.calls[index] = call,
                    None => return Ok(None),
                }
            } else if may_reverse && (failure.is_final || self.unreached.is_none()) {
                // What has connected ends here, so that the owner never has the end of a connection that nobody uses.
                self.unreached = Some(unreached(route.to, &failure.why, !failure.is_final));
                if failure.is_final {
                    self.calls.clear();
                    return Ok(None);
                }
            }
            // Whoever waits for a socket without another route, or another end, gives up at its deadline.
        }
        if self.dialling == Dialling::OrReversedAtOnce
            && self.unreached.is_none()
            && let Some(call) = self.calls.iter().find(|call| !call.is_done)
        {
            self.unreached = Some(unreached(call.route.to, "there was no answer in time before", true));
        }
        if self.calls.iter().all(|call| call.is_done) {
            let calls = std::mem::take(&mut self.calls).into_iter();
            let wanted = self.terms.encryption;
            let through = |mut call: ConnectingSocket| DataStream::new(call.stream, call.caller.take_sealed(), wanted);
            return calls.map(through).collect::<Result<_>>().map(Some);
        }
        Ok(None)
    }

    /// How far it has come, in words; `None` where it is through.
    pub(in crate::transport) fn standing(&self) -> Option<String> {
        let call = self.calls.iter().find(|call| !call.is_done)?;
        let address = call.route.to;
        Some(match call.stream.peer_addr() {
            Ok(_) => format!("{address} has taken the data connection and not answered its handshake"),
            Err(_) => format!("connecting to {address} for data: no answer (does a firewall drop it?)"),
        })
    }

    /// That the other end is not reached, where it may dial instead.
    pub(in crate::transport) fn unreached(&self) -> Option<Unreached> {
        self.unreached.clone()
    }

    fn may_reverse(&self) -> bool {
        match self.dialling {
            Dialling::OrReversed | Dialling::OrReversedAtOnce => true,
            Dialling::Only => false,
        }
    }

    /// Begins to connect the socket of this number, which may take these routes; `None` where the other end has to.
    fn call(&mut self, index: u32, mut left: Vec<SocketRoute>) -> Result<Option<ConnectingSocket>> {
        loop {
            // What another socket has found dead is tried if nothing else is left.
            while left.len() > 1 && left.last().is_some_and(|route| self.has_failed(route)) {
                left.pop();
            }
            let route = left.pop().ok_or_else(|| Error::internal("a connection without a route"))?;
            let (owner, mut tuned, mut stopped) = (self.owner, Ok(()), false);
            let tune = |socket: &SockRef<'_>| {
                // Before it connects, where BBR begins.
                let is_paced = self.options.congestion.is_none() && is_inside_host(self.ways.own, route.to.ip());
                stopped = is_paced && stops_pacing(socket);
                tuned = apply(socket, self.options);
                route.bind(socket)
            };
            match socket::connect_as(route.to, tune) {
                Ok(stream) => {
                    tuned?;
                    self.stopped_pacing |= stopped;
                    let request = Request { ticket: self.ticket, index };
                    let caller = Caller::new(self.terms.clone(), (self.me, owner), request)?;
                    let since = clock::now();
                    return Ok(Some(ConnectingSocket { stream, caller, is_done: false, route, left, since }));
                }
                Err(error) if left.is_empty() && self.may_reverse() && is_unreachable(&error) => {
                    self.unreached = Some(unreached(route.to, &error.to_string(), false));
                    return Ok(None);
                }
                Err(error) if limits::is_exhausted(&error) || left.is_empty() => {
                    return Err(failed(owner, route.to, error));
                }
                Err(error) => self.leave_out(&route, RouteFailure::of_system(&error, error.to_string())),
            }
        }
    }

    fn has_failed(&self, route: &SocketRoute) -> bool {
        self.ways.dead.has(route) || self.refused.has(route)
    }

    /// Notes that a route has failed, and says so once.
    fn leave_out(&self, route: &SocketRoute, RouteFailure { why, is_answered, .. }: RouteFailure) {
        let known = if is_answered { &self.refused } else { &self.ways.dead };
        if known.add(route) {
            let (me, owner) = (self.me, self.owner);
            log::warn!(Net @ me, "no data go to rank {owner} over {route}: {why}; they take what other ways there are");
        }
    }
}

impl SocketRoutes {
    /// The routes that a socket may take, the first one at the end.
    fn of_socket(&self, index: u32) -> Vec<SocketRoute> {
        let count = self.routes.len().max(1);
        let (before, from) = self.routes.split_at(usize::try_from(index).unwrap_or(0) % count);
        from.iter().chain(before).chain(&self.last).rev().cloned().collect()
    }
}

impl ConnectingSocket {
    /// Whether the error is of the network or the other host, before the socket was connected.
    fn is_unmade(&self, error: &Error) -> bool {
        let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
        self.stream.peer_addr().is_err() && source.is_some_and(is_unreachable)
    }

    /// Why the route does not answer, once it has had its time.
    fn silence(&self) -> Option<RouteFailure> {
        let is_silent = self.stream.peer_addr().is_err() && clock::now().duration_since(self.since) >= ROUTE_PATIENCE;
        let remedy = match self.route.device {
            Some(_) => {
                " (several interfaces in one subnet need net.ipv4.conf.NAME.rp_filter 0 or 2, arp_ignore 1 and \
                 arp_announce 2)"
            }
            None => "",
        };
        let why = || format!("no answer within {} s{remedy}", ROUTE_PATIENCE.as_secs());
        is_silent.then(|| RouteFailure { why: why(), is_answered: false, is_final: false })
    }
}

impl RouteFailure {
    /// Of an error behind the call that connects.
    fn of_handshake(error: &Error) -> RouteFailure {
        let why = error.message().to_owned();
        match std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>()) {
            Some(error) => RouteFailure::of_system(error, why),
            // The other end has said something that is wrong, or has closed the connection.
            None => RouteFailure { why, is_answered: true, is_final: true },
        }
    }

    fn of_system(error: &io::Error, why: String) -> RouteFailure {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset};
        let answers = [ConnectionRefused, ConnectionReset, ConnectionAborted, BrokenPipe];
        RouteFailure { why, is_answered: answers.contains(&error.kind()), is_final: true }
    }
}

/// Whether the network or the other host has kept a socket from connecting.
fn is_unreachable(error: &io::Error) -> bool {
    use io::ErrorKind::{
        AddrNotAvailable, ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkDown,
        NetworkUnreachable, PermissionDenied, TimedOut,
    };
    // Permission: of a firewall on this host. Machines on the way may reset what they do not let through.
    let kinds = [
        AddrNotAvailable,
        ConnectionAborted,
        ConnectionRefused,
        ConnectionReset,
        HostUnreachable,
        NetworkDown,
        NetworkUnreachable,
        PermissionDenied,
        TimedOut,
    ];
    kinds.contains(&error.kind())
}

fn unreached(address: SocketAddr, why: &str, may_yet: bool) -> Unreached {
    Unreached { why: format!("connecting to {address} for data: {why}"), may_yet }
}

fn failed(owner: Rank, address: SocketAddr, error: io::Error) -> Error {
    let call = format!("connecting to the data port of rank {owner} at {address}");
    if limits::is_exhausted(&error) {
        return limits::with_remedy(Error::system(call, error));
    }
    Error::remote(owner, format!("{call}: {error}"))
}

/// Whether an address is of this host, as far as the interface tells that ranks use.
fn is_inside_host(own: IpAddr, address: IpAddr) -> bool {
    address == own || address.is_loopback()
}

/// Takes a congestion control away that paces what is sent; false where there is none, or the system refuses. BBR
/// measures a path and waits between packets; inside a host there is no path, and 16 MiB take nearly twice as long
/// (`bench/NOTES.md`, "Sockets: no pacing inside a host"). Reno is in every kernel, and free to all.
fn stops_pacing(socket: &SockRef<'_>) -> bool {
    socket.tcp_congestion().is_ok_and(|name| name.starts_with(b"bbr")) && socket.set_tcp_congestion(b"reno").is_ok()
}

/// How long a route may take to answer while there is another: a lost packet is sent again after one second.
const ROUTE_PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::bootstrap::LocalBootstrap;
    use crate::bootstrap::auth::Purpose;
    use crate::config::Config;
    use crate::session::settings::Settings;
    use crate::sync::Deadline;
    use crate::transport::data_handshake;

    /// Connects a socket by the first of two routes, which fails, and then by the second one. Whether the first one
    /// counts as dead, for all connections to come.
    fn is_dead_after(first: SocketRoute, second: SocketAddr) -> bool {
        let bootstrap = LocalBootstrap::world(1).unwrap().remove(0);
        let terms = data_handshake::terms(&bootstrap, Purpose::Data);
        let dead = DeadRoutes::default();
        let routes = vec![first.clone(), SocketRoute::plain(second)];
        let ways = SocketRoutes { own: second.ip(), routes, last: None, dead: dead.clone() };
        let options = Settings::read(&Config::default()).unwrap().sizes.sockets;
        let ranks = (Rank::new(0), Rank::new(1));
        let mut connector = DataConnector::new(&terms, ranks, (ways, Dialling::Only), (1, 1, options)).unwrap();
        let deadline = Deadline::after(Duration::from_secs(60));
        while connector.calls[0].route.to != second {
            assert!(connector.progress().unwrap().is_none() && !deadline.is_over());
            std::thread::yield_now();
        }
        dead.has(&first)
    }

    /// Regression: a peer whose process had died made the routes to its host dead also for communicators that are made
    /// of those who are left.
    #[test]
    fn a_route_whose_peer_refuses_is_not_dead() {
        let listens = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let second = listens.local_addr().unwrap();
        // Of this host, too, and nobody listens there.
        let refuses = SocketAddr::from(([127, 0, 0, 2], second.port()));
        assert!(!is_dead_after(SocketRoute::plain(refuses), second));
        let nowhere = SocketRoute { device: Some("rsccl-none".to_owned()), ..SocketRoute::plain(refuses) };
        assert!(is_dead_after(nowhere, second));
    }

    /// What becomes of a connection to a port where nobody listens, by the only route.
    fn of_a_refused_dial(dialling: Dialling) -> Result<Option<Unreached>> {
        let bootstrap = LocalBootstrap::world(1).unwrap().remove(0);
        let terms = data_handshake::terms(&bootstrap, Purpose::Data);
        let closed = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let routes = vec![SocketRoute::plain(closed)];
        let ways = SocketRoutes { own: closed.ip(), routes, last: None, dead: DeadRoutes::default() };
        let options = Settings::read(&Config::default()).unwrap().sizes.sockets;
        let ranks = (Rank::new(0), Rank::new(1));
        let mut connector = DataConnector::new(&terms, ranks, (ways, dialling), (1, 4, options))?;
        let deadline = Deadline::after(Duration::from_secs(60));
        while connector.unreached().is_none() {
            assert!(connector.progress()?.is_none() && !deadline.is_over());
            std::thread::yield_now();
        }
        assert!(connector.progress()?.is_none(), "it waits for the other end");
        Ok(connector.unreached())
    }

    #[test]
    fn errors_of_a_way_are_told_from_those_of_this_process() {
        // EPERM, EADDRNOTAVAIL, ENETDOWN, ENETUNREACH, ECONNABORTED, ECONNRESET, ETIMEDOUT, ECONNREFUSED, EHOSTUNREACH.
        for code in [1, 99, 100, 101, 103, 104, 110, 111, 113] {
            assert!(is_unreachable(&io::Error::from_raw_os_error(code)), "{code}");
        }
        // ENOMEM, ENFILE, EMFILE, EPIPE, ENOBUFS.
        for code in [12, 23, 24, 32, 105] {
            assert!(!is_unreachable(&io::Error::from_raw_os_error(code)), "{code}");
        }
    }

    #[test]
    fn a_dial_that_fails_is_left_to_the_other_end_if_that_can_dial() {
        let Unreached { why, may_yet } = of_a_refused_dial(Dialling::OrReversed).unwrap().unwrap();
        assert!(!may_yet && why.starts_with("connecting to 127.0.0.1:") && why.contains("refused"), "{why}");
        let error = of_a_refused_dial(Dialling::Only).unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
    }

    #[test]
    fn what_goes_to_this_host_is_not_paced() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let is = |name: &[u8]| socket.tcp_congestion().unwrap().starts_with(name);
        socket.set_tcp_congestion(b"reno").unwrap();
        assert!(!stops_pacing(&SockRef::from(&socket)) && is(b"reno"));
        if socket.set_tcp_congestion(b"bbr").is_err() {
            // Past the capture of tests, so that it is seen.
            drop(io::Write::write_all(&mut io::stderr(), b"skipped: this kernel has no BBR\n"));
            return;
        }
        assert!(is(b"bbr"));
        assert!(stops_pacing(&SockRef::from(&socket)) && is(b"reno"));
    }

    #[test]
    fn addresses_of_this_host_are_its_interface_s_and_loopback_s() {
        let own = IpAddr::from([10, 0, 0, 1]);
        assert!(is_inside_host(own, own) && is_inside_host(own, Ipv4Addr::LOCALHOST.into()));
        assert!(is_inside_host(own, Ipv6Addr::LOCALHOST.into()) && is_inside_host(own, IpAddr::from([127, 0, 0, 2])));
        assert!(!is_inside_host(own, IpAddr::from([10, 0, 0, 2])));
    }

    #[test]
    fn a_socket_tries_the_other_rails_and_at_last_the_way_by_which_ranks_met() {
        let route = |host: u8| SocketRoute::plain(SocketAddr::from(([10, 0, 0, host], 1)));
        let own = IpAddr::from([10, 0, 0, 9]);
        let ways = |last| SocketRoutes { own, routes: (0..3).map(route).collect(), last, dead: DeadRoutes::default() };
        let tries = |ways: SocketRoutes, index| {
            ways.of_socket(index).iter().rev().map(|route| route.to.ip()).collect::<Vec<_>>()
        };
        let addresses = |hosts: &[u8]| hosts.iter().map(|host| route(*host).to.ip()).collect::<Vec<_>>();
        assert_eq!(tries(ways(None), 4), addresses(&[1, 2, 0]));
        assert_eq!(tries(ways(Some(route(7))), 0), addresses(&[0, 1, 2, 7]));
        let dead = DeadRoutes::default();
        assert!(!dead.has(&route(1)) && dead.add(&route(1)) && !dead.add(&route(1)) && dead.has(&route(1)));
        assert!(!dead.has(&SocketRoute { interface: Some("eth1".to_owned()), ..route(1) }));
    }
}
