//! The sender's side of TCP connections: connects all sockets of one connection, and says what they are for.

use std::net::{IpAddr, SocketAddr, TcpStream};

use socket2::SockRef;

use crate::bootstrap::auth::Terms;
use crate::bootstrap::socket;
use crate::error::{Error, Result};
use crate::log;
use crate::sys::limits;
use crate::transport::data_handshake::{Caller, Request};
use crate::transport::net::{SocketOptions, apply};
use crate::types::Rank;

/// One rank's side that connects: all sockets of one connection.
#[derive(Debug)]
pub(in crate::transport) struct DataConnector {
    calls: Vec<(TcpStream, Caller, bool)>,
    address: SocketAddr,
}

impl DataConnector {
    /// Begins to connect to `owner` at `address` with `sockets` sockets for `ticket`; `own` is this rank's interface.
    pub(in crate::transport) fn new(
        terms: &Terms,
        (me, owner): (Rank, Rank),
        (own, address): (IpAddr, SocketAddr),
        (ticket, options): (u64, SocketOptions),
    ) -> Result<DataConnector> {
        let mut stopped = false;
        let call = |index: u32| {
            let mut tuned = Ok(());
            let tune = |socket: &SockRef<'_>| {
                // Before it connects, where BBR begins.
                stopped |= is_inside_host(own, address.ip()) && stops_pacing(socket);
                tuned = apply(socket, options);
                Ok(())
            };
            let stream = socket::connect_as(address, tune).map_err(|error| failed(owner, address, error))?;
            tuned?;
            Ok((stream, Caller::new(terms.clone(), (me, owner), Request { ticket, index })?, false))
        };
        let calls = (0..options.sockets).map(call).collect::<Result<_>>()?;
        if stopped {
            log::detail!(Net @ me, "to rank {owner} inside this host: Reno in place of BBR");
        }
        Ok(DataConnector { calls, address })
    }

    /// The sockets, once all are through.
    pub(in crate::transport) fn progress(&mut self) -> Result<Option<Vec<TcpStream>>> {
        for (stream, caller, done) in self.calls.iter_mut().filter(|(_, _, done)| !done) {
            *done = caller.progress(stream)?;
        }
        if self.calls.iter().all(|(_, _, done)| *done) {
            return Ok(Some(std::mem::take(&mut self.calls).into_iter().map(|(stream, ..)| stream).collect()));
        }
        Ok(None)
    }

    /// How far it has come, in words; `None` where it is through.
    pub(in crate::transport) fn standing(&self) -> Option<String> {
        let (stream, ..) = self.calls.iter().find(|(_, _, done)| !done)?;
        let address = self.address;
        Some(match stream.peer_addr() {
            Ok(_) => format!("{address} has taken the data connection and not answered its handshake"),
            Err(_) => format!("connecting to {address} for data: no answer (does a firewall drop it?)"),
        })
    }
}

fn failed(owner: Rank, address: SocketAddr, error: std::io::Error) -> Error {
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

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::io;
    use std::net::{Ipv4Addr, Ipv6Addr};

    use socket2::{Domain, Socket, Type};

    use super::*;

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
}
