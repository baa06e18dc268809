//! The sender's side of TCP connections: connects all sockets of one connection, and says what they are for.

use std::net::{SocketAddr, TcpStream};

use crate::bootstrap::auth::Terms;
use crate::bootstrap::socket;
use crate::error::{Error, Result};
use crate::transport::data_handshake::{Caller, Request};
use crate::transport::net::{SocketOptions, apply};
use crate::types::Rank;

/// One rank's side that connects: all sockets of one connection.
#[derive(Debug)]
pub(in crate::transport) struct DataConnector {
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
        Ok(DataConnector { calls: (0..options.sockets).map(call).collect::<Result<_>>()? })
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
