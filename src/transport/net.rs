//! NET: between hosts. Both ends of the ring are in private memory; pumps move its messages over sockets, or over a NIC
//! that takes requests, where all ranks have one and the user asks for it, or all hosts show hardware of libfabric
//! ([`network_choice`]).
//!
//! Sockets: the receiver [listens](listener), the sender [connects](connector); or the other way round, where the
//! receiver's address cannot be reached. A [`ReceivePump`] stands at the one's end, a [`SendPump`] at the other's.
//! NICs: `requests`, over the contract in `request_nic`.

mod congestion;
mod connector;
mod listener;
mod known_networks;
mod network_choice;
mod nic_facts;
mod nic_libraries;
mod receive_pump;
pub(super) mod request_nic;
mod requests;
mod routes;
mod sealed_socket;
mod send_pump;
#[cfg(test)]
#[cfg(not(loom))]
mod test_nic;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;
mod watched_socket;
mod wire;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::bootstrap::Bootstrap;
use crate::bootstrap::address::localise;
use crate::bootstrap::auth::{Purpose, Terms};
use crate::config::{Encryption, MAX_SOCKETS, PortRange};
use crate::device::Sharing;
use crate::error::{Error, Result};
use crate::log;
use crate::sync::Chime;
use crate::sync::primitive::Arc;
use crate::sys::limits::{self, OpenFiles};
use crate::topo::rails::{DataNic, MOST_NICS};
use crate::transport::PeerInfo;
use crate::transport::connection::{Channel, Way};
use crate::transport::data_handshake::terms;
use crate::transport::net::connector::{DataConnector, SocketRoutes};
use crate::transport::net::listener::DataListener;
use crate::transport::net::receive_pump::ReceivePump;
use crate::transport::net::requests::RequestNet;
use crate::transport::net::routes::SocketRoute;
use crate::transport::net::sealed_socket::{DataStream, SealedSocket};
use crate::transport::net::send_pump::SendPump;
use crate::transport::net::watched_socket::WatchedSocket;
use crate::transport::nics::{NicTable, PeerRails};
use crate::transport::pump::{Pump, SlotSink, SlotSource, Wire};
use crate::transport::socket_folder::SocketFolder;
use crate::transport::table::{
    Dialling, Entry, ExpectedWire, Imported, MOST_OFFER_BYTES, MappingKey, Offered, Opening, PeerOffer, Policy,
    Transport, Unreached,
};
use crate::types::{Rank, TransportKind};
use crate::wire::{ADDRESS_BYTES, Reader, Writer};

pub use congestion::Congestion;
pub use known_networks::{KnownNetwork, KnownNic, known_networks};
pub use network_choice::{Agreement, Network, NetworkSeeker, NetworkWish, OwnNetwork};
pub use nic_facts::NicFacts;
pub use routes::DeadRoutes;

/// Socket options of data connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOptions {
    /// Sockets of each connection: `NCCL_SOCKET_NTHREADS` × `NCCL_NSOCKS_PERTHREAD`; where `None`, as many for each
    /// rail between the two ranks as its rate needs ([`Rails::sockets`](crate::topo::rails::Rails::sockets)).
    pub sockets: Option<u32>,
    /// `NCCL_SOCKET_SNDBUF`; the system's choice where `None`.
    pub send_buffer_bytes: Option<u32>,
    /// `NCCL_SOCKET_RCVBUF`; the system's choice where `None`.
    pub receive_buffer_bytes: Option<u32>,
    /// `RSCCL_PORT_RANGE`: where to listen; any free port where `None`.
    pub ports: Option<PortRange>,
    /// `RSCCL_NIC_TIMEOUT`: how long the other end may answer nothing. Each rank has its own.
    pub silence: Duration,
    /// `RSCCL_TCP_CONGESTION`; the system's choice where `None`. Each rank has its own.
    pub congestion: Option<Congestion>,
    /// `RSCCL_ENCRYPT`.
    pub encryption: Encryption,
    /// `RSCCL_SOCKET_DIR`: where SHM makes its sockets; names without a file where `None`.
    pub folder: Option<SocketFolder>,
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        let silence = USUAL_SILENCE;
        SocketOptions {
            sockets: None,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            ports: None,
            silence,
            congestion: None,
            encryption: Encryption::Off,
            folder: None,
        }
    }
}

/// One rank's side. Its listener is made when it first receives.
#[derive(Debug)]
pub(super) struct Net {
    me: Rank,
    options: SocketOptions,
    listener: Option<DataListener>,
    files: OpenFiles,
    /// Which NICs ranks have, once they have told.
    nics: Option<Arc<NicTable>>,
    /// The rails to ranks with which there are connections.
    rails: HashMap<Rank, Arc<PeerRails>>,
    dead: DeadRoutes,
    /// The hosts of which the log has the rails.
    told: HashSet<u64>,
    /// What is used in place of sockets, if anything.
    requests: Option<RequestNet>,
}

impl Net {
    /// For any two ranks.
    pub(super) const ENTRY: Entry = Entry { kind: TransportKind::Net, domain: Net::domain, open: Net::open };

    fn domain(_: &PeerInfo, _: Policy) -> Option<MappingKey> {
        None
    }

    fn open(me: Rank, options: SocketOptions) -> Box<dyn Transport> {
        let (rails, dead, told) = (HashMap::new(), DeadRoutes::default(), HashSet::new());
        let (files, requests) = (OpenFiles::need(1), None);
        Box::new(Net { me, options, listener: None, files, nics: None, rails, dead, told, requests })
    }

    /// The rails to `peer`; none where nothing is known.
    fn rails(&mut self, peer: Rank) -> Arc<PeerRails> {
        let Some(table) = &self.nics else { return Arc::new(PeerRails::default()) };
        let rails = self.rails.entry(peer).or_insert_with(|| Arc::new(table.rails(peer)));
        if let Some(host) = table.host(peer)
            && self.told.insert(host)
        {
            log::detail!(Init @ self.me, "NET/Socket : to the host of rank {peer}: {rails}");
        }
        Arc::clone(rails)
    }

    /// Sockets of a connection along these rails; the same number on both ranks.
    fn sockets(&self, rails: &PeerRails) -> u32 {
        self.options.sockets.unwrap_or_else(|| rails.rails.sockets(MAX_SOCKETS))
    }

    /// By which ways sockets connect to `peer`, which listens where the offer says.
    fn ways(&mut self, (peer, channel, way): (Rank, Channel, Way), offer: &DataOffer, own: SocketAddr) -> SocketRoutes {
        // The likeliest one: the peer is on the link of the interface that all ranks use.
        let met = localise(offer.address, own, &[]).first().copied().unwrap_or(offer.address);
        let met = SocketRoute::plain(met);
        let found = self.rails(peer);
        let PeerRails { mine, theirs, rails } = &*found;
        let order = self
            .nics
            .as_ref()
            .map_or_else(Vec::new, |table| rails.order((mine, theirs), table.receiving((peer, channel), way)));
        let route = |place: usize| {
            let rail = rails.used.get(place)?;
            let (_, port) = offer.ports.iter().find(|(nic, _)| usize::from(*nic) == rail.theirs)?;
            Some(SocketRoute::of_rail(rail, (mine, theirs), *port))
        };
        let routes: Vec<SocketRoute> = order.into_iter().filter_map(route).collect();
        let (own, dead) = (own.ip(), self.dead.clone());
        if routes.is_empty() {
            return SocketRoutes { own, routes: vec![met], last: None, dead };
        }
        let last = (!routes.iter().any(|route| route.is_as_plain_as(&met))).then_some(met);
        SocketRoutes { own, routes, last, dead }
    }
}

impl Transport for Net {
    fn sharing(&self) -> Option<Sharing> {
        None
    }

    fn use_nics(&mut self, table: &Arc<NicTable>, dead: &DeadRoutes) {
        (self.nics, self.dead) = (Some(Arc::clone(table)), dead.clone());
    }

    fn use_network(&mut self, network: &Network) {
        self.requests = network.nic.clone().map(|found| RequestNet::new(self.me, found));
    }

    fn nic(&self) -> Option<NicFacts> {
        self.requests.as_ref().map(RequestNet::nic)
    }

    fn listen(&mut self, peer: Rank, bootstrap: &dyn Bootstrap) -> Result<ExpectedWire> {
        if let Some(requests) = &mut self.requests {
            return requests.listen(peer, bootstrap);
        }
        let rails = self.rails(peer);
        let sockets = self.sockets(&rails);
        let listener = match &mut self.listener {
            Some(listener) => listener,
            none => {
                let terms = Terms { encryption: self.options.encryption, ..terms(bootstrap, Purpose::Data) };
                none.insert(DataListener::new(terms, self.me, bootstrap.interface(), self.options)?)
            }
        };
        let doors = listener.doors();
        let mut ports: Vec<(u8, u16)> = Vec::new();
        for rail in &rails.rails.used {
            let DataNic { name, address, .. } = &rails.mine[rail.mine];
            let Ok(number) = u8::try_from(rail.mine) else { continue };
            if ports.iter().any(|(known, _)| *known == number) {
                continue;
            }
            match listener.listen_at(*address, routes::device(&rails.mine, rail.mine)) {
                Ok(port) => ports.push((number, port)),
                Err(error) if limits::is_shortage(&error) => return Err(error),
                Err(error) => {
                    log::warn!(Net @ self.me, "no data come from rank {peer} over {name}: {}", error.message());
                }
            }
        }
        let doors = u64::try_from(listener.doors() - doors).unwrap_or(u64::MAX);
        self.files.cover(self.files.count() + u64::from(sockets) + doors);
        let (ticket, address) = (listener.expect(peer, sockets)?, listener.address());
        Ok(ExpectedWire { ticket, offer: DataOffer { ticket, address, ports }.encode(), at: Some(address) })
    }

    fn dial(
        &mut self,
        (peer, channel, way): (Rank, Channel, Way),
        (offer, dialling): (&[u8], Dialling),
        bootstrap: &dyn Bootstrap,
    ) -> Result<Box<dyn Opening<Box<dyn Wire>>>> {
        if let Some(requests) = &mut self.requests {
            return requests.dial(peer, offer, bootstrap);
        }
        let offer = DataOffer::decode(offer).map_err(|error| error.about(peer))?;
        let host = self.nics.as_ref().and_then(|table| table.host(peer));
        let is_one_way = host.is_some_and(|host| self.dead.is_one_way(host));
        let dialling =
            if is_one_way && dialling == Dialling::OrReversed { Dialling::OrReversedAtOnce } else { dialling };
        let ways = self.ways((peer, channel, way), &offer, bootstrap.interface());
        let rails = self.rails(peer);
        let sockets = self.sockets(&rails);
        self.files.cover(self.files.count() + u64::from(sockets));
        let terms = Terms { encryption: self.options.encryption, ..terms(bootstrap, Purpose::Data) };
        let wanted = (offer.ticket, sockets, self.options);
        let connector = DataConnector::new(&terms, (self.me, peer), (ways, dialling), wanted)?;
        let host = host.map(|host| (host, self.dead.clone()));
        Ok(Box::new(Connecting { peer, connector, silence: self.options.silence, host }))
    }

    fn withdraw(&mut self, ticket: u64) {
        self.requests.iter_mut().for_each(|requests| requests.withdraw(ticket));
        self.listener.iter_mut().for_each(|listener| listener.withdraw(ticket));
    }

    fn note_reversed(&mut self, peer: Rank) {
        let Some(host) = self.nics.as_ref().and_then(|table| table.host(peer)) else { return };
        if self.dead.add_one_way(host) {
            log::info!(
                Net @ self.me,
                "the host of rank {peer} connects to this one for data, which has had no answer from there (NAT, or a \
                 firewall)"
            );
        }
    }

    fn offer(&mut self, _: Offered<'_>, _: &[Rank], _: &dyn Bootstrap) -> Result<Vec<u8>> {
        Err(Error::internal("memory cannot be offered over the network"))
    }

    fn import(&mut self, _: PeerOffer, _: &[u8], _: &dyn Bootstrap) -> Result<Box<dyn Opening<Imported>>> {
        Err(Error::internal("memory cannot be mapped over the network"))
    }

    fn serve(&mut self, now: Instant) -> Result<()> {
        if let Some(requests) = &mut self.requests {
            return requests.serve();
        }
        self.listener.as_mut().map_or(Ok(()), |listener| listener.progress(now))
    }

    fn sources(&self, chime: &Arc<Chime>) -> Option<Vec<BorrowedFd<'_>>> {
        let must_be_served = self.requests.as_ref().is_some_and(RequestNet::is_waiting);
        let rings = self.listener.as_ref().is_none_or(|listener| listener.ring_at_arrival(chime));
        (rings && !must_be_served).then(Vec::new)
    }

    fn accept(&mut self) -> Vec<(u64, Box<dyn Wire>)> {
        if let Some(requests) = &mut self.requests {
            return requests.accept();
        }
        let ready = self.listener.as_mut().map_or_else(Vec::new, DataListener::take_ready);
        let silence = self.options.silence;
        let wire = |peer, sockets| -> Box<dyn Wire> { Box::new(Sockets { peer, sockets, silence }) };
        ready.into_iter().map(|(ticket, peer, sockets)| (ticket, wire(peer, sockets))).collect()
    }

    fn refused(&self) -> Option<String> {
        match &self.requests {
            Some(requests) => requests.refused(),
            None => self.listener.as_ref()?.refused(),
        }
    }

    fn outstanding(&mut self) -> Vec<u64> {
        // Sockets are for ranks that may come later; they are no memory that ends with its owner.
        Vec::new()
    }

    fn log_connection(&self, me: Rank, (peer, way): (Rank, Way), channel: &str) {
        if let Some(requests) = &self.requests {
            return requests.log_connection(me, way, channel);
        }
        let end = if way == Way::Send { "send" } else { "receive" };
        let rails = self.rails.get(&peer).filter(|rails| !rails.rails.used.is_empty());
        let sockets = rails.map_or_else(|| self.options.sockets.unwrap_or(1), |rails| self.sockets(rails));
        let along = rails.map_or_else(String::new, |rails| format!(" along {}", rails.names()));
        let congestion =
            self.options.congestion.map_or_else(String::new, |name| format!(", congestion control {name}"));
        let encrypted = if self.options.encryption == Encryption::Off { "" } else { ", encrypted" };
        log::detail!(Net @ me, "{channel} [{end}] via NET/Socket, sockets {sockets}{along}{congestion}{encrypted}");
    }

    fn log_mapping(&self, _: Rank, _: &str) {}
}

/// Where a receiver listens for a connection.
///
/// ```text
/// width  meaning
/// 8      ticket
/// 23     address at which ranks met, as the bootstrap's addresses
/// 1      count of what follows
/// 3      each: place of a NIC among those that the receiver has told of, port there
/// ```
#[derive(Debug)]
struct DataOffer {
    ticket: u64,
    address: SocketAddr,
    ports: Vec<(u8, u16)>,
}

impl DataOffer {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let count = u8::try_from(self.ports.len()).expect("as many as NICs at most");
        writer.u64(self.ticket).address(&self.address).u8(count);
        for (nic, port) in &self.ports {
            writer.u8(*nic).u16(*port);
        }
        writer.finish()
    }

    fn decode(bytes: &[u8]) -> Result<DataOffer> {
        let mut reader = Reader::new(bytes, "an offer of sockets");
        let (ticket, address, count) = (reader.u64()?, reader.address()?, reader.u8()?);
        let ports = (0..count).map(|_| Ok((reader.u8()?, reader.u16()?))).collect::<Result<_>>()?;
        reader.finish()?;
        Ok(DataOffer { ticket, address, ports })
    }
}

/// As the configuration has it without the variable: longer than a switch takes to find another way.
const USUAL_SILENCE: Duration = Duration::from_secs(10);

const _: () = assert!(8 + ADDRESS_BYTES + 1 + 3 * MOST_NICS <= MOST_OFFER_BYTES);

/// The sockets of a connection with `peer`.
#[derive(Debug)]
struct Sockets {
    peer: Rank,
    sockets: Vec<DataStream>,
    silence: Duration,
}

impl Sockets {
    /// The sockets, of which all are encrypted or none: both ranks have the same setting.
    fn watched(self) -> std::result::Result<Vec<WatchedSocket>, Vec<SealedSocket>> {
        let (mut plain, mut sealed) = (Vec::new(), Vec::new());
        for DataStream { stream, ends } in self.sockets {
            let socket = WatchedSocket::new(stream, self.silence);
            match ends {
                None => plain.push(socket),
                Some(ends) => sealed.push(SealedSocket::new(socket, ends)),
            }
        }
        if sealed.is_empty() { Ok(plain) } else { Err(sealed) }
    }
}

impl Wire for Sockets {
    fn send(self: Box<Self>, source: Box<dyn SlotSource>) -> Box<dyn Pump> {
        let peer = self.peer;
        match self.watched() {
            Ok(plain) => Box::new(SendPump::new(peer, source, plain)),
            Err(sealed) => Box::new(SendPump::new(peer, source, sealed)),
        }
    }

    fn receive(self: Box<Self>, sink: Box<dyn SlotSink>) -> Box<dyn Pump> {
        let peer = self.peer;
        match self.watched() {
            Ok(plain) => Box::new(ReceivePump::new(peer, sink, plain)),
            Err(sealed) => Box::new(ReceivePump::new(peer, sink, sealed)),
        }
    }
}

/// Sockets that are connecting.
#[derive(Debug)]
struct Connecting {
    peer: Rank,
    connector: DataConnector,
    silence: Duration,
    /// The peer's, where it is known, and what is known of hosts.
    host: Option<(u64, DeadRoutes)>,
}

impl Opening<Box<dyn Wire>> for Connecting {
    fn progress(&mut self) -> Result<Option<Box<dyn Wire>>> {
        let sockets = self.connector.progress()?;
        if let (Some(_), Some((host, known))) = (&sockets, &self.host) {
            known.end_one_way(*host);
        }
        let (peer, silence) = (self.peer, self.silence);
        Ok(sockets.map(|sockets| -> Box<dyn Wire> { Box::new(Sockets { peer, sockets, silence }) }))
    }

    fn standing(&self) -> Option<String> {
        self.connector.standing()
    }

    fn unreached(&self) -> Option<Unreached> {
        self.connector.unreached()
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
    options.congestion.map_or(Ok(()), |congestion| congestion.set(socket))?;
    watched_socket::probe(socket, options.silence).map_err(|error| Error::system("RSCCL_NIC_TIMEOUT", error))
}
