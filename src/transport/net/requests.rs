//! NET over a request-based NIC: how connections are opened, and the wire that they are.
//!
//! ```text
//! receiver                                     sender
//! listens on its endpoint
//!        ───── ticket, handle (the offer) ────► connects its endpoint
//! accepts       ◄── handshake, as memos ──►     proves itself, says the ticket
//! RequestReceivePump                            RequestSendPump
//!        ───── credit (memos) ────────────────►
//!        ◄──── chunks ─────────────────────────
//!
//! of a long message, where the NIC can:
//!        ◄──── header and beginning (a chunk) ──
//! posts a receive of its size in its place
//!        ───── credit (memo) ─────────────────►
//!        ◄──── the rest, from where it lies ───
//! ```
//! The offer goes over the bootstrap, as those of all transports do. A communicator has one endpoint, made when it
//! first connects; closing it ends its connections and no other communicator's.
//!
//! **What a NIC is not believed.** Sizes: all receives are as large as any message of their kind, and lengths in
//! headers are held against slots and chunks; what goes straight is sent once a receive of its size is posted.
//! Progress: pumps say that they [wait for nothing](crate::transport::pump::Waits), so every wait polls. Life: ranks
//! hear of deaths over their control connections, and waits end by their watch.

mod connection;
mod direct_receive_pump;
mod direct_send_pump;
mod kernel_pumps;
mod pipe;
mod receive_pump;
mod send_pump;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use crate::bootstrap::Bootstrap;
use crate::bootstrap::auth::{Purpose, Terms};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::{Arc, Mutex};
use crate::sys::random;
use crate::transport::connection::Way;
use crate::transport::data_handshake::{Answerer, Caller, Refused, Request, terms};
use crate::transport::net::nic_facts::NicFacts;
use crate::transport::net::request_nic::endpoint::{NicEndpoint, SharedEndpoint};
use crate::transport::net::request_nic::{FoundNic, ListenerId, MOST_HANDLE_BYTES, NicHandle, RequestWay};
use crate::transport::net::requests::connection::RequestConnection;
use crate::transport::net::requests::kernel_pumps::{KernelEnd, KernelPump, TakenPayloads};
use crate::transport::net::requests::pipe::MemoPipe;
use crate::transport::net::requests::receive_pump::RequestReceivePump;
use crate::transport::net::requests::send_pump::RequestSendPump;
use crate::transport::pump::{DeviceSlots, KernelSink, KernelSource, Pump, SlotSink, SlotSource, Wire};
use crate::transport::table::{ExpectedWire, MOST_OFFER_BYTES, Opening};
use crate::types::Rank;
use crate::wire::{Reader, Writer};

pub(super) use connection::CHUNK_BYTES as LEAST_MESSAGE_BYTES;

/// One rank's connections over a NIC.
#[derive(Debug)]
pub(super) struct RequestNet {
    me: Rank,
    found: Arc<dyn FoundNic>,
    endpoint: Option<SharedEndpoint>,
    /// Connections that were begun: each may keep a request under way as long as the endpoint lives.
    begun: usize,
    expected: Vec<Expected>,
    ready: Vec<(u64, Box<dyn Wire>)>,
    refused: Refused,
    /// Listeners to which nobody will connect, for the next connections: a NIC never gives one back.
    spare: Vec<(ListenerId, NicHandle)>,
}

/// A connection for which this rank listens.
#[derive(Debug)]
struct Expected {
    peer: Rank,
    ticket: u64,
    terms: Terms,
    stage: ExpectedStage,
}

#[derive(Debug)]
enum ExpectedStage {
    Listening(Box<(ListenerId, NicHandle)>),
    Proving(Box<(MemoPipe, Answerer)>),
    /// It is a wire, or was given up.
    Over,
}

impl RequestNet {
    pub(super) fn new(me: Rank, found: Arc<dyn FoundNic>) -> RequestNet {
        let (endpoint, begun, expected, ready, refused) = (None, 0, Vec::new(), Vec::new(), Refused::default());
        RequestNet { me, found, endpoint, begun, expected, ready, refused, spare: Vec::new() }
    }

    /// What is known of the NIC.
    pub(super) fn nic(&self) -> NicFacts {
        NicFacts::of(&*self.found)
    }

    /// As [`Transport::listen`](crate::transport::table::Transport::listen).
    ///
    /// # Errors
    /// Of the NIC.
    pub(super) fn listen(&mut self, peer: Rank, bootstrap: &dyn Bootstrap) -> Result<ExpectedWire> {
        let listening = match self.spare.pop() {
            Some(spare) => spare,
            None => self.endpoint_for(peer)?.lock().listen()?,
        };
        let ticket = u64::from_le_bytes(random::bytes()?);
        let mut writer = Writer::new();
        writer.u64(ticket).bytes(listening.1.content());
        let (terms, stage) = (terms(bootstrap, Purpose::Data), ExpectedStage::Listening(Box::new(listening)));
        self.expected.push(Expected { peer, ticket, terms, stage });
        Ok(ExpectedWire { ticket, offer: writer.finish(), at: None })
    }

    /// As [`Transport::withdraw`](crate::transport::table::Transport::withdraw).
    pub(super) fn withdraw(&mut self, ticket: u64) {
        let Some(place) = self.expected.iter().position(|expected| expected.ticket == ticket) else { return };
        if let ExpectedStage::Listening(listening) = self.expected.swap_remove(place).stage {
            self.spare.push(*listening);
        }
    }

    /// As [`Transport::dial`](crate::transport::table::Transport::dial).
    ///
    /// # Errors
    /// Of a broken offer, or of the NIC.
    pub(super) fn dial(
        &mut self,
        peer: Rank,
        offer: &[u8],
        bootstrap: &dyn Bootstrap,
    ) -> Result<Box<dyn Opening<Box<dyn Wire>>>> {
        let mut reader = Reader::new(offer, "an offer of a connection");
        let read = (|| Ok((reader.u64()?, NicHandle::new(reader.bytes(MOST_HANDLE_BYTES)?)?)))();
        let (ticket, handle) = read.map_err(|error: Error| error.about(peer))?;
        reader.finish().map_err(|error| error.about(peer))?;
        let caller = Caller::new(terms(bootstrap, Purpose::Data), (self.me, peer), Request { ticket, index: 0 })?;
        let (endpoint, stage) = (self.endpoint_for(peer)?, DialStage::Connecting(Box::new((handle, caller))));
        Ok(Box::new(Dialling { peer, endpoint, stage }))
    }

    /// Moves the connections for which this rank listens on.
    ///
    /// # Errors
    /// Of the NIC; what is wrong with one connection ends that connection alone, and is [told](Self::refused).
    pub(super) fn serve(&mut self) -> Result<()> {
        let Some(endpoint) = self.endpoint.clone().filter(|_| !self.expected.is_empty()) else { return Ok(()) };
        endpoint.lock().progress()?;
        for expected in &mut self.expected {
            match expected.progress(&endpoint, self.me)? {
                Ok(Some(wire)) => self.ready.push((expected.ticket, Box::new(wire))),
                Ok(None) => {}
                Err(error) => {
                    log::trace!(Net @ self.me, "a connection over the NIC was refused: {error}");
                    self.refused.add(format_args!("rank {}", expected.peer), error.message());
                    expected.stage = ExpectedStage::Over;
                }
            }
        }
        self.expected.retain(|expected| !matches!(expected.stage, ExpectedStage::Over));
        Ok(())
    }

    /// Whether peers may connect, so that somebody has to [serve](RequestNet::serve).
    pub(super) fn is_waiting(&self) -> bool {
        !self.expected.is_empty()
    }

    /// As [`Transport::refused`](crate::transport::table::Transport::refused).
    pub(super) fn refused(&self) -> Option<String> {
        self.refused.words("its NIC")
    }

    /// The wires that have come, by their tickets.
    pub(super) fn accept(&mut self) -> Vec<(u64, Box<dyn Wire>)> {
        std::mem::take(&mut self.ready)
    }

    /// Writes the line for a connection.
    pub(super) fn log_connection(&self, me: Rank, way: Way, channel: &str) {
        let end = if way == Way::Send { "send" } else { "receive" };
        let nic = self.found.description();
        log::detail!(Net @ me, "{channel} [{end}] via NET/{}, {} on {}", nic.network, nic.provider, nic.device);
    }

    /// The endpoint, which is opened at first, for one more connection.
    fn endpoint_for(&mut self, peer: Rank) -> Result<SharedEndpoint> {
        let room = self.found.promises().most_connections();
        if self.begun >= room {
            let message = format!(
                "{} takes requests of {room} connections of a communicator, and the one with rank {peer} is one more; \
                 NCCL_NET=Socket has no such limit",
                self.found.description()
            );
            return Err(Error::new(Kind::System, message));
        }
        self.begun += 1;
        if let Some(endpoint) = &self.endpoint {
            return Ok(Arc::clone(endpoint));
        }
        // Maybe nobody has asked for it, so the way without it is named.
        let open = NicEndpoint::open(&*self.found).map_err(|error| error.advising("NCCL_NET=Socket does without it"));
        let endpoint = Arc::new(Mutex::new(open?));
        Ok(Arc::clone(self.endpoint.insert(endpoint)))
    }
}

impl Expected {
    /// The wire, once the peer has connected and proved itself, or what is wrong with this connection.
    ///
    /// # Errors
    /// Of the NIC, or of memory.
    fn progress(&mut self, endpoint: &SharedEndpoint, me: Rank) -> Result<Result<Option<RequestWire>>> {
        if let ExpectedStage::Listening(listening) = &self.stage {
            let accepted = endpoint.lock().accept(listening.0);
            let id = match accepted {
                Ok(Some(id)) => id,
                Ok(None) => return Ok(Ok(None)),
                // Whoever has come is the reason: no matter of the others.
                Err(error) if error.kind() == Kind::Remote => return Ok(Err(error.about(self.peer))),
                Err(error) => return Err(error),
            };
            let connection = RequestConnection::new(self.peer, endpoint, id)?;
            let answerer = Answerer::new(self.terms.clone(), me);
            self.stage = ExpectedStage::Proving(Box::new((MemoPipe::new(connection), answerer)));
        }
        Ok(self.prove())
    }

    /// The wire, once the peer has proved itself.
    ///
    /// # Errors
    /// Of the connection.
    fn prove(&mut self) -> Result<Option<RequestWire>> {
        let ExpectedStage::Proving(proving) = &mut self.stage else { return Ok(None) };
        let (pipe, answerer) = &mut **proving;
        let said = answerer.progress(pipe).map_err(|error| error.about(self.peer))?;
        let Some((peer, request)) = said else { return Ok(None) };
        if (peer, request) != (self.peer, Request { ticket: self.ticket, index: 0 }) {
            let message = format!("rank {peer} took an offer for rank {}", self.peer);
            return Err(Error::remote(peer, message));
        }
        match std::mem::replace(&mut self.stage, ExpectedStage::Over) {
            ExpectedStage::Proving(proving) => Ok(Some(RequestWire::over(proving.0.into_connection()))),
            ExpectedStage::Listening(..) | ExpectedStage::Over => Ok(None),
        }
    }
}

/// A connection that this rank opens to a peer that listens.
#[derive(Debug)]
struct Dialling {
    peer: Rank,
    endpoint: SharedEndpoint,
    stage: DialStage,
}

#[derive(Debug)]
enum DialStage {
    Connecting(Box<(NicHandle, Caller)>),
    Proving(Box<(MemoPipe, Caller)>),
    Over,
}

impl Opening<Box<dyn Wire>> for Dialling {
    fn progress(&mut self) -> Result<Option<Box<dyn Wire>>> {
        let mut endpoint = self.endpoint.lock();
        endpoint.progress()?;
        if let DialStage::Connecting(connecting) = &self.stage {
            let connected = endpoint.connect(&connecting.0);
            let Some(id) = connected.map_err(|error| error.about(self.peer))? else { return Ok(None) };
            drop(endpoint);
            let pipe = MemoPipe::new(RequestConnection::new(self.peer, &self.endpoint, id)?);
            let DialStage::Connecting(connecting) = std::mem::replace(&mut self.stage, DialStage::Over) else {
                return Err(Error::internal("a connection that is not connecting"));
            };
            self.stage = DialStage::Proving(Box::new((pipe, connecting.1)));
        } else {
            drop(endpoint);
        }
        let DialStage::Proving(proving) = &mut self.stage else { return Ok(None) };
        let (pipe, caller) = &mut **proving;
        if !caller.progress(pipe)? || !pipe.is_flushed()? {
            return Ok(None);
        }
        match std::mem::replace(&mut self.stage, DialStage::Over) {
            DialStage::Proving(proving) => Ok(Some(Box::new(RequestWire::over(proving.0.into_connection())))),
            DialStage::Connecting(_) | DialStage::Over => Ok(None),
        }
    }

    fn standing(&self) -> Option<String> {
        match self.stage {
            DialStage::Connecting(_) => Some("its NIC has not taken the data connection".to_owned()),
            DialStage::Proving(_) => Some("its NIC has not answered the handshake of the data connection".to_owned()),
            DialStage::Over => None,
        }
    }
}

/// A connection that both ends have proved.
#[derive(Debug)]
struct RequestWire {
    connection: RequestConnection,
    /// Memory of a device that the NIC has taken.
    payloads: Option<TakenPayloads>,
}

impl RequestWire {
    fn over(connection: RequestConnection) -> RequestWire {
        RequestWire { connection, payloads: None }
    }
}

impl Wire for RequestWire {
    fn send(self: Box<Self>, source: Box<dyn SlotSource>) -> Box<dyn Pump> {
        Box::new(RequestSendPump::new(self.connection, source))
    }

    fn receive(self: Box<Self>, sink: Box<dyn SlotSink>) -> Box<dyn Pump> {
        Box::new(RequestReceivePump::new(self.connection, sink))
    }

    fn take_device(&mut self, way: Way, slots: DeviceSlots<'_>) -> std::result::Result<(), String> {
        let DeviceSlots { memory, reach, needs_flush, slot_bytes } = slots;
        let most = self.connection.most_message_bytes();
        if slot_bytes > most {
            return Err(format!("slots have {slot_bytes} bytes (NCCL_BUFFSIZE), and the NIC takes messages of {most}"));
        }
        let way = match way {
            Way::Send => RequestWay::Out,
            Way::Receive => RequestWay::In,
        };
        let region = self.connection.register_device(way, memory, reach)?;
        self.payloads = Some(TakenPayloads { region, needs_flush });
        Ok(())
    }

    fn send_of_kernels(self: Box<Self>, source: Box<dyn KernelSource>) -> Box<dyn Pump> {
        Box::new(KernelPump::new(self.connection, KernelEnd::Source(source), self.payloads))
    }

    fn receive_for_kernels(self: Box<Self>, sink: Box<dyn KernelSink>) -> Box<dyn Pump> {
        Box::new(KernelPump::new(self.connection, KernelEnd::Sink(sink), self.payloads))
    }
}

const _: () = assert!(8 + 4 + MOST_HANDLE_BYTES <= MOST_OFFER_BYTES);
