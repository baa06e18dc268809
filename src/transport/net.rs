//! NET: TCP between hosts. Both ends of the ring are in private memory; pumps move its messages over sockets.
//!
//! The receiver [listens](listener), the sender [connects](connector). A [`ReceivePump`] stands at the one's end,
//! a [`SendPump`] at the other's.

mod connector;
mod listener;
mod receive_pump;
mod send_pump;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;
mod wire;

use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::bootstrap::Bootstrap;
use crate::bootstrap::address::localise;
use crate::bootstrap::auth::Purpose;
use crate::config::PortRange;
use crate::device::Sharing;
use crate::error::{Error, Result};
use crate::log;
use crate::sys::limits::OpenFiles;
use crate::transport::PeerInfo;
use crate::transport::connection::Way;
use crate::transport::data_handshake::terms;
use crate::transport::net::connector::DataConnector;
use crate::transport::net::listener::DataListener;
use crate::transport::net::receive_pump::ReceivePump;
use crate::transport::net::send_pump::SendPump;
use crate::transport::pump::{Pump, SlotSink, SlotSource, Wire};
use crate::transport::table::{Entry, Imported, MappingKey, Offered, Opening, PeerOffer, Policy, Transport};
use crate::types::{Rank, TransportKind};
use crate::wire::{Reader, Writer};

/// Socket options of data connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOptions {
    /// Sockets of each connection: `NCCL_SOCKET_NTHREADS` × `NCCL_NSOCKS_PERTHREAD`.
    pub sockets: u32,
    /// `NCCL_SOCKET_SNDBUF`; the system's choice where `None`.
    pub send_buffer_bytes: Option<u32>,
    /// `NCCL_SOCKET_RCVBUF`; the system's choice where `None`.
    pub receive_buffer_bytes: Option<u32>,
    /// `RSCCL_PORT_RANGE`: where to listen; any free port where `None`.
    pub ports: Option<PortRange>,
}

/// One rank's side. Its listener is made when it first receives.
#[derive(Debug)]
pub(super) struct Net {
    me: Rank,
    options: SocketOptions,
    listener: Option<DataListener>,
    files: OpenFiles,
}

impl Net {
    /// For any two ranks.
    pub(super) const ENTRY: Entry = Entry { kind: TransportKind::Net, domain: Net::domain, open: Net::open };

    fn domain(_: &PeerInfo, _: Policy) -> Option<MappingKey> {
        None
    }

    fn open(me: Rank, options: SocketOptions) -> Box<dyn Transport> {
        Box::new(Net { me, options, listener: None, files: OpenFiles::need(1) })
    }
}

impl Transport for Net {
    fn sharing(&self) -> Option<Sharing> {
        None
    }

    fn listen(&mut self, peer: Rank, bootstrap: &dyn Bootstrap) -> Result<(u64, Vec<u8>)> {
        let listener = match &mut self.listener {
            Some(listener) => listener,
            none => {
                let terms = terms(bootstrap, Purpose::Data);
                none.insert(DataListener::new(terms, self.me, bootstrap.interface(), self.options)?)
            }
        };
        self.files.cover(self.files.count() + u64::from(self.options.sockets));
        let ticket = listener.expect(peer)?;
        let mut offer = Writer::new();
        offer.u64(ticket).address(&listener.address());
        Ok((ticket, offer.finish()))
    }

    fn dial(&mut self, peer: Rank, offer: &[u8], bootstrap: &dyn Bootstrap) -> Result<Box<dyn Opening<Box<dyn Wire>>>> {
        let read = || -> Result<(u64, SocketAddr)> {
            let mut reader = Reader::new(offer, "an offer of sockets");
            let (ticket, address) = (reader.u64()?, reader.address()?);
            reader.finish()?;
            Ok((ticket, address))
        };
        let (ticket, theirs) = read().map_err(|error| error.about(peer))?;
        let own = bootstrap.interface();
        // The likeliest one: the peer is on the link of the interface that all ranks use.
        let address = localise(theirs, own, &[]).first().copied().unwrap_or(theirs);
        let (terms, addresses) = (terms(bootstrap, Purpose::Data), (own.ip(), address));
        self.files.cover(self.files.count() + u64::from(self.options.sockets));
        let connector = DataConnector::new(&terms, (self.me, peer), addresses, (ticket, self.options))?;
        Ok(Box::new(Connecting { peer, connector }))
    }

    fn offer(&mut self, _: Offered<'_>, _: &[Rank], _: &dyn Bootstrap) -> Result<Vec<u8>> {
        Err(Error::internal("memory cannot be offered over the network"))
    }

    fn import(&mut self, _: PeerOffer, _: &[u8], _: &dyn Bootstrap) -> Result<Box<dyn Opening<Imported>>> {
        Err(Error::internal("memory cannot be mapped over the network"))
    }

    fn serve(&mut self, now: Instant) -> Result<()> {
        self.listener.as_mut().map_or(Ok(()), |listener| listener.progress(now))
    }

    fn sources(&self) -> Option<Vec<BorrowedFd<'_>>> {
        self.listener.as_ref().map_or_else(|| Some(Vec::new()), DataListener::sources)
    }

    fn accept(&mut self) -> Vec<(u64, Box<dyn Wire>)> {
        let ready = self.listener.as_mut().map_or_else(Vec::new, DataListener::take_ready);
        let wire = |peer, sockets| -> Box<dyn Wire> { Box::new(Sockets { peer, sockets }) };
        ready.into_iter().map(|(ticket, peer, sockets)| (ticket, wire(peer, sockets))).collect()
    }

    fn refused(&self) -> Option<String> {
        self.listener.as_ref()?.refused()
    }

    fn outstanding(&mut self) -> Vec<u64> {
        // Sockets are for ranks that may come later; they are no memory that ends with its owner.
        Vec::new()
    }

    fn log_connection(&self, me: Rank, way: Way, channel: &str) {
        let (end, sockets) = (if way == Way::Send { "send" } else { "receive" }, self.options.sockets);
        log::detail!(Net @ me, "{channel} [{end}] via NET/Socket, sockets {sockets}");
    }

    fn log_mapping(&self, _: Rank, _: &str) {}
}

/// The sockets of a connection with `peer`.
#[derive(Debug)]
struct Sockets {
    peer: Rank,
    sockets: Vec<TcpStream>,
}

impl Wire for Sockets {
    fn send(self: Box<Self>, source: Box<dyn SlotSource>) -> Box<dyn Pump> {
        Box::new(SendPump::new(self.peer, source, self.sockets))
    }

    fn receive(self: Box<Self>, sink: Box<dyn SlotSink>) -> Box<dyn Pump> {
        Box::new(ReceivePump::new(self.peer, sink, self.sockets))
    }
}

/// Sockets that are connecting.
#[derive(Debug)]
struct Connecting {
    peer: Rank,
    connector: DataConnector,
}

impl Opening<Box<dyn Wire>> for Connecting {
    fn progress(&mut self) -> Result<Option<Box<dyn Wire>>> {
        let sockets = self.connector.progress()?;
        Ok(sockets.map(|sockets| -> Box<dyn Wire> { Box::new(Sockets { peer: self.peer, sockets }) }))
    }

    fn standing(&self) -> Option<String> {
        self.connector.standing()
    }
}

fn apply(socket: &socket2::SockRef<'_>, options: SocketOptions) -> Result<()> {
    let wide = |bytes: u32| usize::try_from(bytes).unwrap_or(usize::MAX);
    if let Some(bytes) = options.send_buffer_bytes {
        socket.set_send_buffer_size(wide(bytes)).map_err(|error| Error::system("NCCL_SOCKET_SNDBUF", error))?;
    }
    if let Some(bytes) = options.receive_buffer_bytes {
        socket.set_recv_buffer_size(wide(bytes)).map_err(|error| Error::system("NCCL_SOCKET_RCVBUF", error))?;
    }
    Ok(())
}
