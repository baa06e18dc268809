//! The sender's side of TCP connections: connects all sockets of one connection, and says what they are for.

use std::net::{SocketAddr, TcpStream};

use crate::bootstrap::auth::Terms;
use crate::bootstrap::socket;
use crate::error::{Error, Result};
use crate::log;
use crate::transport::data_handshake::{Caller, Request};
use crate::transport::net::{SocketOptions, apply};
use crate::types::Rank;

/// One rank's side that connects: all sockets of one connection.
#[derive(Debug)]
pub(in crate::transport) struct DataConnector {
    me: Rank,
    owner: Rank,
    calls: Vec<(TcpStream, Caller, bool)>,
}

impl DataConnector {
    /// Begins to connect to `owner` at `address` with `sockets` sockets for `ticket`.
    pub(in crate::transport) fn new(
        terms: &Terms,
        (me, owner): (Rank, Rank),
        address: SocketAddr,
        (ticket, options): (u64, SocketOptions),
    ) -> Result<DataConnector> {
        let call = |index: u32| {
            let stream = socket::connect(address).map_err(|error| failed(owner, address, &error))?;
            tune(&stream, options)?;
            Ok((stream, Caller::new(terms.clone(), (me, owner), Request { ticket, index })?, false))
        };
        Ok(DataConnector { me, owner, calls: (0..options.sockets).map(call).collect::<Result<_>>()? })
    }

    /// The sockets, once all are through.
    pub(in crate::transport) fn progress(&mut self) -> Result<Option<Vec<TcpStream>>> {
        for (stream, caller, done) in self.calls.iter_mut().filter(|(_, _, done)| !done) {
            *done = caller.progress(stream)?;
            if *done && is_inside_host(stream) && stops_pacing(stream) {
                log::detail!(Net @ self.me, "to rank {} inside this host: Reno, since BBR waits between packets", self.owner);
            }
        }
        if self.calls.iter().all(|(_, _, done)| *done) {
            return Ok(Some(std::mem::take(&mut self.calls).into_iter().map(|(stream, ..)| stream).collect()));
        }
        Ok(None)
    }
}

fn failed(owner: Rank, address: SocketAddr, error: &std::io::Error) -> Error {
    Error::remote(
        owner,
        format!("connecting to the data port of rank {owner} at {address}: {}", socket::explain(error)),
    )
}

fn tune(stream: &TcpStream, options: SocketOptions) -> Result<()> {
    apply(&socket2::SockRef::from(stream), options)
}

/// Whether both ends are on this host.
fn is_inside_host(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(own), Ok(other)) if own.ip() == other.ip())
}

/// Takes a congestion control away that paces what is sent; false where there is none, or the system refuses. BBR
/// measures a path and waits between packets; inside a host there is no path, and 16 MiB take twice as long
/// (`bench/NOTES.md`, "Sockets: no pacing inside a host"). Reno is in every kernel, and free to all.
fn stops_pacing(stream: &TcpStream) -> bool {
    let socket = socket2::SockRef::from(stream);
    socket.tcp_congestion().is_ok_and(|name| name.starts_with(b"bbr")) && socket.set_tcp_congestion(b"reno").is_ok()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::io;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_goes_to_this_host_is_not_paced() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(is_inside_host(&stream));
        let socket = socket2::SockRef::from(&stream);
        let is = |name: &[u8]| socket.tcp_congestion().unwrap().starts_with(name);
        socket.set_tcp_congestion(b"reno").unwrap();
        assert!(!stops_pacing(&stream) && is(b"reno"));
        if socket.set_tcp_congestion(b"bbr").is_err() {
            // Past the capture of tests, so that it is seen.
            drop(io::Write::write_all(&mut io::stderr(), b"skipped: this kernel has no BBR\n"));
            return;
        }
        assert!(is(b"bbr"));
        assert!(stops_pacing(&stream) && is(b"reno"));
    }
}
