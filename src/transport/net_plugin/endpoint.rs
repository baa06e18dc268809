//! A communicator's endpoint on a device of a plug-in.
//!
//! **Progress.** Plug-ins move in `test`. Receives are tested when their owner asks, sends in each turn: nobody asks
//! for the last ones, such as credits, and the peer waits for them.
//!
//! **The end.** Receives cannot be taken back, and what a plug-in does with those that are posted when their connection
//! is closed is its own affair; one keeps their domain for ever. So an end that closes says *farewell*, as a message:
//! how many receives it has posted on this connection in all. The peer sends as many messages, and tells its own number
//! in them; then neither end has a request left, and both close. Where that takes longer than [`PATIENCE`], or the
//! connection is broken, the connection is closed all the same, and its memory is never given back.

use std::collections::HashMap;
use std::ffi::c_int;
use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::sync::Deadline;
use crate::sync::primitive::Arc;
use crate::sys::fork::Birthplace;
use crate::sys::random;
use crate::transport::net::request_nic::{
    ConnectionId, DeviceReach, ListenerId, MessageNumber, NicHandle, NicMemory, Posted, RegionId, RequestId,
    RequestNic, RequestWay,
};
use crate::transport::net_plugin::abi::{POINTER_CUDA, POINTER_DMA_BUF};
use crate::transport::net_plugin::library::{PlugInEnd, PlugInKey, PlugInObject};
use crate::transport::net_plugin::opening::{
    FAREWELL_AT, PlugInDialling, PlugInListening, PlugInNonce, PlugInPort, PlugInWays,
};
use crate::transport::net_plugin::requests::{PlugInRequest, PlugInRequests, RequestEnd, RequestPlace};

/// One communicator's endpoint.
#[derive(Debug)]
pub(super) struct PlugInNic {
    port: PlugInPort,
    /// Connections, both ways of one counted once, that the device has room for.
    room: usize,
    regions: HashMap<RegionId, NicMemory>,
    listening: HashMap<u32, PlugInListening>,
    dialling: HashMap<NicHandle, PlugInDialling>,
    connections: HashMap<u32, PlugInConnection>,
    requests: PlugInRequests,
    /// Sends that nobody has seen done.
    sends: Vec<RequestId>,
    /// Requests of connections that were not made, which may be under way.
    lost: usize,
    /// What kinds of memory the device takes, as the plug-in writes them.
    pointers: c_int,
    /// How many connections and listeners there were.
    numbers: u32,
    is_closed: bool,
    birthplace: Birthplace,
}

/// A connection.
#[derive(Debug)]
struct PlugInConnection {
    ways: PlugInWays,
    /// Registrations of the callers' memory, by region and way.
    keys: Vec<(RegionId, PlugInWay, PlugInKey)>,
    /// Messages that were posted each way.
    sent: u64,
    received: u64,
    /// Receives that are under way.
    awaited: usize,
    /// How many receives the peer has posted, once it has said so: nobody uses the connection any more.
    farewell: Option<u64>,
    /// Whether this end has said so.
    has_said_farewell: bool,
    broken: Option<Error>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlugInWay {
    Out,
    In,
}

impl PlugInConnection {
    fn new(ways: PlugInWays) -> PlugInConnection {
        let (keys, sent, received, awaited) = (Vec::new(), 0, 0, 0);
        let (farewell, has_said_farewell, broken) = (None, false, None);
        PlugInConnection { ways, keys, sent, received, awaited, farewell, has_said_farewell, broken }
    }

    fn object(&self, way: PlugInWay) -> PlugInObject {
        match way {
            PlugInWay::Out => self.ways.send,
            PlugInWay::In => self.ways.receive,
        }
    }

    fn check(&self) -> Result<()> {
        match (&self.broken, self.farewell) {
            (_, Some(_)) => Err(Error::new(Kind::Remote, "the peer has closed its end of the connection")),
            (Some(error), None) => Err(error.duplicate()),
            (None, None) => Ok(()),
        }
    }

    /// Whether the peer, which has said farewell, waits for more.
    fn owes(&self) -> bool {
        self.farewell.is_some_and(|posted| self.sent < posted)
    }
}

/// What is said at the end: who has it cannot take it for a message of a rank, since the nonce is in it.
fn farewell(nonce: &PlugInNonce, received: u64) -> [u8; FAREWELL_BYTES] {
    let mut bytes = [0; FAREWELL_BYTES];
    bytes[..nonce.len()].copy_from_slice(nonce);
    bytes[nonce.len()..].copy_from_slice(&received.to_le_bytes());
    bytes
}

impl PlugInNic {
    pub(super) fn new(port: PlugInPort, room: usize, pointers: c_int) -> PlugInNic {
        PlugInNic {
            port,
            room,
            regions: HashMap::new(),
            listening: HashMap::new(),
            dialling: HashMap::new(),
            connections: HashMap::new(),
            requests: PlugInRequests::default(),
            sends: Vec::new(),
            lost: 0,
            pointers,
            numbers: 0,
            is_closed: false,
            birthplace: Birthplace::here(),
        }
    }

    /// A number for one more connection.
    fn number(&mut self) -> Result<u32> {
        if self.connections.len() + self.listening.len() + self.dialling.len() >= self.room {
            let (net, room) = (&self.port.plug_in.net, self.room);
            let message = format!("net plug-in {net}: its device takes {room} connections, and this is one more");
            return Err(Error::new(Kind::System, message));
        }
        self.numbers += 1;
        Ok(self.numbers)
    }

    fn connection(&mut self, id: ConnectionId) -> Result<&mut PlugInConnection> {
        self.connections.get_mut(&id.0).ok_or_else(|| Error::internal("this NIC has no such connection"))
    }

    /// The registration of the memory's region with one way of a connection.
    fn key(&mut self, id: ConnectionId, way: PlugInWay, memory: NicMemory) -> Result<PlugInKey> {
        let region = memory.region();
        let whole = self.regions.get(&region).copied();
        let whole = whole.ok_or_else(|| Error::internal("memory that is not registered"))?;
        let port = self.port.clone();
        let connection = self.connection(id)?;
        if let Some((.., key)) = connection.keys.iter().find(|(known, its, _)| (*known, *its) == (region, way)) {
            return Ok(*key);
        }
        // SAFETY: the connection is open; the region stays until the endpoint was closed, which takes this back.
        let key = unsafe { port.plug_in.register(connection.object(way), (whole.start(), whole.bytes())) };
        let key = key.map_err(|refusal| port.error(refusal))?;
        connection.keys.push((region, way, key));
        Ok(key)
    }

    /// Registers memory of a GPU with one way of a connection: as a DMA-BUF where both ends have them, as NCCL does.
    fn register_device(
        &mut self,
        (id, way): (ConnectionId, PlugInWay),
        memory: NicMemory,
        reach: &DeviceReach,
    ) -> std::result::Result<(), String> {
        let plug_in = Arc::clone(&self.port.plug_in);
        let pointers = self.pointers;
        let connection = self.connection(id).map_err(|error| error.message().to_owned())?;
        let (object, place) = (connection.object(way), (memory.start(), memory.bytes()));
        let mut noes = Vec::new();
        let mut key = None;
        match &reach.dma_buf {
            Some(_) if pointers & POINTER_DMA_BUF == 0 => noes.push("it takes no DMA-BUF".to_owned()),
            Some(dma_buf) => {
                // SAFETY: the connection is open; the endpoint keeps the memory until it was closed, which takes this
                // back.
                let made = unsafe { plug_in.register_dma_buf(object, place, dma_buf) };
                key = made.map_err(|refusal| noes.push(refusal.words())).ok();
            }
            None => noes.push("the GPU's driver gives no DMA-BUF".to_owned()),
        }
        if key.is_none() {
            if pointers & POINTER_CUDA == 0 {
                noes.push("it takes no addresses of GPUs".to_owned());
            } else if !reach.by_address {
                noes.push("the GPU's driver has no memory that NICs know by address".to_owned());
            } else {
                // SAFETY: as above.
                let made = unsafe { plug_in.register_address(object, place) };
                key = made.map_err(|refusal| noes.push(refusal.words())).ok();
            }
        }
        let Some(key) = key else { return Err(format!("net plug-in {}: {}", plug_in.net, noes.join("; "))) };
        self.regions.insert(memory.region(), memory);
        self.connection(id).map_err(|error| error.message().to_owned())?.keys.push((memory.region(), way, key));
        Ok(())
    }

    /// Posts a message or a receive.
    fn post(&mut self, id: ConnectionId, way: PlugInWay, memory: NicMemory) -> Result<Posted> {
        let farewell = self.connection(id)?.farewell;
        if farewell.is_some() && way == PlugInWay::In {
            return Ok(Posted::Later);
        }
        self.connection(id)?.check()?;
        let key = self.key(id, way, memory)?;
        self.post_at(id, way, memory.into(), key)
    }

    fn post_at(
        &mut self,
        id: ConnectionId,
        way: PlugInWay,
        RequestPlace { start, bytes, is_device }: RequestPlace,
        key: PlugInKey,
    ) -> Result<Posted> {
        let port = self.port.clone();
        let connection = self.connection(id)?;
        let object = connection.object(way);
        let posted = match way {
            // SAFETY: the connection is open, and the registration its own; the memory is the request's until it is
            // done or the endpoint closed: the contract of `NicMemory`, and of the room's farewell.
            PlugInWay::Out => unsafe { port.plug_in.send(object, (start, bytes), key) },
            // SAFETY: as above.
            PlugInWay::In => unsafe { port.plug_in.receive(object, (start, bytes), key) },
        };
        let posted = posted.map_err(|refusal| {
            let error = port.error(refusal);
            connection.broken = Some(error.duplicate());
            error
        })?;
        let Some(object) = posted else { return Ok(Posted::Later) };
        let is_send = way == PlugInWay::Out;
        let count = if is_send { &mut connection.sent } else { &mut connection.received };
        *count += 1;
        connection.awaited += usize::from(!is_send);
        let (connection, end) = (id.0, RequestEnd::UnderWay);
        let place = RequestPlace { start, bytes, is_device };
        let request = self.requests.add(PlugInRequest { connection, object, place, is_send, end });
        if is_send {
            self.sends.push(request);
        }
        Ok(Posted::Request(request))
    }

    /// Asks the plug-in for a request that is under way, and notes what it says.
    fn look(&mut self, id: RequestId) -> Result<()> {
        let PlugInRequest { connection: number, object, place, is_send, end } = self.requests.get(id)?;
        let (number, object, place, is_send) = (*number, *object, *place, *is_send);
        let bytes = place.bytes;
        if !matches!(end, RequestEnd::UnderWay) {
            return Ok(());
        }
        let connection = self.connection(ConnectionId(number))?;
        if let Some(error) = &connection.broken {
            let error = error.duplicate();
            self.requests.end(id, RequestEnd::Broken(error));
            return Ok(());
        }
        // SAFETY: it is under way, and its connection open.
        let tested = unsafe { self.port.plug_in.test(object) };
        let told = match tested {
            Ok(None) => return Ok(()),
            // How long a message was that was sent is known better here.
            Ok(Some(_)) if is_send => Ok(bytes),
            Ok(Some(told)) => usize::try_from(told).ok().filter(|told| *told <= bytes).ok_or_else(|| {
                let net = &self.port.plug_in.net;
                let message = format!("net plug-in {net}: a message of {told} bytes came where {bytes} fit");
                Error::new(Kind::Remote, message)
            }),
            Err(refusal) => {
                let error = self.port.error(refusal);
                self.connection(ConnectionId(number))?.broken = Some(error.duplicate());
                self.requests.end(id, RequestEnd::Broken(error));
                return Ok(());
            }
        };
        let connection = self.connection(ConnectionId(number))?;
        connection.awaited -= usize::from(!is_send);
        let end = match told {
            Ok(told) if !is_send && connection.takes_leave(place, told) => RequestEnd::Farewell,
            Ok(told) => RequestEnd::Done(told),
            Err(error) => {
                connection.broken = Some(error.duplicate());
                RequestEnd::Failed(error)
            }
        };
        self.requests.end(id, end);
        Ok(())
    }

    /// Sends what the peer's receives wait for, where it has said farewell; and says it, where this end closes.
    fn part(&mut self, number: u32, closes: bool) -> Result<()> {
        let id = ConnectionId(number);
        loop {
            let connection = self.connection(id)?;
            let says_it = closes && !connection.has_said_farewell && connection.awaited > 0;
            if connection.broken.is_some() || !(connection.owes() || says_it) {
                return Ok(());
            }
            let ways = &connection.ways;
            let (place, key) = (ways.room.at(FAREWELL_AT, FAREWELL_BYTES), ways.room_key);
            let words = farewell(&ways.nonce, connection.received);
            // SAFETY: inside the room, which is this connection's. Sends that are under way have the same words there,
            // for nothing is received any more once they were written.
            unsafe { place.as_ptr().copy_from_nonoverlapping(words.as_ptr(), FAREWELL_BYTES) };
            let place = RequestPlace { start: place, bytes: FAREWELL_BYTES, is_device: false };
            if self.post_at(id, PlugInWay::Out, place, key)? == Posted::Later {
                return Ok(());
            }
            self.connection(id)?.has_said_farewell = true;
        }
    }

    /// Parts from all peers, as far as they do the same within [`PATIENCE`].
    fn part_from_all(&mut self) {
        let deadline = Deadline::after(PATIENCE);
        let numbers: Vec<u32> = self.connections.keys().copied().collect();
        loop {
            for number in &numbers {
                // What fails there is that connection's, which is broken then.
                let _broken = self.part(*number, true);
            }
            let mut is_open = false;
            for request in self.requests.all_under_way() {
                let _broken = self.look(request);
                is_open |= self.requests.is_under_way(request);
            }
            is_open |= self.connections.values().any(|one| one.broken.is_none() && one.owes());
            if !is_open || deadline.is_over() {
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl PlugInConnection {
    /// Whether what has come is what the peer says at the end, or follows it.
    fn takes_leave(&mut self, RequestPlace { start, is_device, .. }: RequestPlace, bytes: usize) -> bool {
        if self.farewell.is_some() {
            return true;
        }
        // This process does not see what lies on a device. A peer that says farewell says it to each receive, so the
        // next one in memory of the host tells.
        if bytes != FAREWELL_BYTES || is_device {
            return false;
        }
        let mut words = [0; FAREWELL_BYTES];
        // SAFETY: the receive was at least as long, and is done; its memory stays until the endpoint was closed.
        unsafe { start.as_ptr().copy_to_nonoverlapping(words.as_mut_ptr(), FAREWELL_BYTES) };
        let Some((nonce, posted)) = words.split_last_chunk::<8>() else { return false };
        let posted = u64::from_le_bytes(*posted);
        if nonce != self.ways.nonce {
            return false;
        }
        // A peer that tells more than it can have posted gets no more than that.
        self.farewell = Some(posted.min(self.sent + MOST_OWED));
        true
    }
}

impl RequestNic for PlugInNic {
    fn listen(&mut self) -> Result<(ListenerId, NicHandle)> {
        let number = self.number()?;
        let (listening, handle) = PlugInListening::new(&self.port, random::bytes()?)?;
        self.listening.insert(number, listening);
        Ok((ListenerId(number), handle))
    }

    fn connect(&mut self, to: &NicHandle) -> Result<Option<ConnectionId>> {
        if !self.dialling.contains_key(to) {
            // For the limit alone.
            self.number()?;
            self.dialling.insert(*to, PlugInDialling::new(&self.port, to)?);
        }
        let Some(dialling) = self.dialling.get_mut(to) else { return Ok(None) };
        let progressed = dialling.progress();
        if matches!(progressed, Ok(None)) {
            return Ok(None);
        }
        if let Some(dialling) = self.dialling.remove(to) {
            self.lost += usize::from(dialling.give_up());
        }
        let Some(ways) = progressed? else { return Ok(None) };
        let number = self.number()?;
        self.connections.insert(number, PlugInConnection::new(ways));
        Ok(Some(ConnectionId(number)))
    }

    fn accept(&mut self, listener: ListenerId) -> Result<Option<ConnectionId>> {
        let unknown = || Error::internal("this NIC has no such listener");
        let listening = self.listening.get_mut(&listener.0).ok_or_else(unknown)?;
        let Some(ways) = listening.progress()? else { return Ok(None) };
        self.listening.remove(&listener.0);
        self.connections.insert(listener.0, PlugInConnection::new(ways));
        Ok(Some(ConnectionId(listener.0)))
    }

    /// Plug-ins register memory with a connection: it is done at the first message there.
    fn register(&mut self, region: NicMemory) -> Result<()> {
        self.regions.insert(region.region(), region);
        Ok(())
    }

    fn send(&mut self, to: ConnectionId, _: MessageNumber, from: NicMemory) -> Result<Posted> {
        self.post(to, PlugInWay::Out, from)
    }

    fn receive(&mut self, from: ConnectionId, _: MessageNumber, into: NicMemory) -> Result<Posted> {
        self.post(from, PlugInWay::In, into)
    }

    fn register_device(
        &mut self,
        connection: ConnectionId,
        way: RequestWay,
        region: NicMemory,
        reach: &DeviceReach,
    ) -> std::result::Result<(), String> {
        let way = match way {
            RequestWay::Out => PlugInWay::Out,
            RequestWay::In => PlugInWay::In,
        };
        PlugInNic::register_device(self, (connection, way), region, reach)
    }

    fn flush(&mut self, from: ConnectionId, received: NicMemory) -> Result<Posted> {
        if !received.is_device() {
            return Ok(Posted::Done);
        }
        // Of a peer that has closed its end there may be more that came before.
        if let Some(broken) = &self.connection(from)?.broken {
            return Err(broken.duplicate());
        }
        let key = self.key(from, PlugInWay::In, received)?;
        let port = self.port.clone();
        let connection = self.connection(from)?;
        // SAFETY: the connection is open, the registration its own, and the memory inside it.
        let posted =
            unsafe { port.plug_in.flush(connection.object(PlugInWay::In), (received.start(), received.bytes()), key) };
        let posted = posted.map_err(|refusal| {
            let error = port.error(refusal);
            connection.broken = Some(error.duplicate());
            error
        })?;
        // The real ones answer without a request where nothing is to be done.
        let Some(object) = posted else { return Ok(Posted::Done) };
        // As a send is: nothing has come by it, and its end tells no length.
        let (connection, end, is_send) = (from.0, RequestEnd::UnderWay, true);
        let place = received.into();
        Ok(Posted::Request(self.requests.add(PlugInRequest { connection, object, place, is_send, end })))
    }

    fn progress(&mut self) -> Result<()> {
        let mut place = 0;
        while let Some(send) = self.sends.get(place).copied() {
            // One that its owner has taken is no longer known.
            if self.requests.is_under_way(send) {
                self.look(send)?;
            }
            if self.requests.is_under_way(send) {
                place += 1;
            } else {
                self.sends.swap_remove(place);
            }
        }
        let owed = self.connections.iter().filter(|(_, one)| one.broken.is_none() && one.owes());
        for number in owed.map(|(number, _)| *number).collect::<Vec<_>>() {
            // What fails there is that connection's.
            let _broken = self.part(number, false);
        }
        Ok(())
    }

    fn test(&mut self, request: RequestId) -> Result<Option<usize>> {
        self.look(request)?;
        self.requests.take(request)
    }

    fn close(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        if !self.birthplace.is_here() {
            // The plug-in's connections are the parent's, and a forked child has none of the memory.
            std::mem::forget(std::mem::take(&mut self.connections));
            std::mem::forget((std::mem::take(&mut self.listening), std::mem::take(&mut self.dialling)));
            return Err(Error::new(Kind::System, "a net plug-in is the parent's in a forked child"));
        }
        self.part_from_all();
        let mut lost = self.lost + self.requests.under_way();
        let port = &self.port;
        for (number, connection) in self.connections.drain() {
            if self.requests.has_any_of(number) {
                // Left as it is, with its memory: some plug-ins end all connections of a thread, also those of other
                // communicators, where one is closed with requests under way.
                std::mem::forget(connection);
                continue;
            }
            let PlugInConnection { ways, keys, .. } = connection;
            for (_, way, key) in keys {
                port.deregister(if way == PlugInWay::Out { ways.send } else { ways.receive }, key);
            }
            port.deregister(ways.send, ways.room_key);
            port.close(PlugInEnd::Send(ways.send));
            port.close(PlugInEnd::Receive(ways.receive));
        }
        lost += self.listening.drain().map(|(_, one)| usize::from(one.give_up())).sum::<usize>();
        lost += self.dialling.drain().map(|(_, one)| usize::from(one.give_up())).sum::<usize>();
        if lost == 0 {
            // SAFETY: nothing that was made with the context is there any more.
            let ended = unsafe { port.plug_in.finalize(port.context) };
            return ended.map_err(|refusal| port.error(refusal));
        }
        let message = format!("net plug-in {}: {lost} requests were under way", port.plug_in.net);
        Err(Error::new(Kind::System, message))
    }
}

impl Drop for PlugInNic {
    fn drop(&mut self) {
        // Nobody is left to tell; what could not be closed keeps its memory.
        let _lost = self.close();
    }
}

const FAREWELL_BYTES: usize = 24;
/// More receives than a connection has posted at once.
const MOST_OWED: u64 = 64;
/// How long an end that closes waits for its peers to do the same.
const PATIENCE: Duration = Duration::from_millis(100);
