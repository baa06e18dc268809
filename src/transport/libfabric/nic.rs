//! A NIC of libfabric behind the contract of request-based NICs: connections out of tags.
//!
//! An endpoint has no connections: a message has a tag, and goes to the first receive with that tag. So each end of a
//! connection has a number, and tags begin with the receiver's number:
//!
//! ```text
//! bits          meaning
//! 48, or 39     1: a greeting for a listener, 0: a message
//! 47-16, 38-16  number of the connection, or of the listener, at the receiver
//! 15            1: of the second sequence, of messages that go straight
//! 14-0          number of the message
//! ```
//!
//! The first ones where so many bits of a tag count, the others where fewer do, as of cxi. Numbers of connections are
//! random: nobody else tells who has sent a message. Those of messages make any order of arrival right. Whoever
//! connects sends a [`OfiGreeting`] first.

use std::collections::HashMap;

use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::Arc;
use crate::sys::random;
use crate::transport::libfabric::endpoint::{OfiAddress, OfiEndpoint, OfiMemory, RegionKey, Toward};
use crate::transport::libfabric::greetings::{GreetingPool, GreetingRoom, OfiGreeting};
use crate::transport::libfabric::library::OfiInfos;
use crate::transport::libfabric::providers::{LEAST_TAG_BITS, OfiEntry};
use crate::transport::net::request_nic::{
    ConnectionId, ListenerId, MessageNumber, NicHandle, NicMemory, NicSleep, Posted, RequestId, RequestNic,
};

/// One communicator's endpoint.
#[derive(Debug)]
pub(super) struct OfiNic {
    /// Declared before the pool: it is closed before the memory goes.
    endpoint: OfiEndpoint,
    pool: Option<GreetingPool>,
    /// How its tags are made.
    tags: TagLayout,
    address: Vec<u8>,
    listeners: HashMap<u32, OfiListener>,
    connections: HashMap<u32, OfiConnection>,
    connecting: HashMap<NicHandle, OfiConnecting>,
    /// Greetings that were posted, and for which connection.
    sent: Vec<(RequestId, GreetingRoom, u32)>,
}

#[derive(Debug)]
struct OfiListener {
    nonce: u64,
    place: GreetingRoom,
    /// The receive of the greeting; `None` where it has to be posted.
    receive: Option<RequestId>,
}

#[derive(Debug)]
struct OfiConnection {
    /// Its number at the peer.
    theirs: u32,
    peer: OfiAddress,
    /// Why the peer could not be greeted: nothing will come of it.
    broken: Option<Error>,
}

/// A greeting for which the provider had no room so far.
#[derive(Debug)]
struct OfiConnecting {
    number: u32,
    connection: OfiConnection,
    place: GreetingRoom,
    memory: OfiMemory,
}

// SAFETY: the pointer leads into the pool, which lives beside it.
unsafe impl Send for OfiConnecting {}

impl OfiNic {
    /// # Errors
    /// As [`OfiEndpoint::open`].
    pub(super) fn open(infos: &Arc<OfiInfos>, place: usize, entry: &OfiEntry) -> Result<OfiNic> {
        let endpoint = OfiEndpoint::open(infos, place, entry)?;
        let address = endpoint.address()?;
        Ok(OfiNic {
            endpoint,
            pool: Some(GreetingPool::default()),
            tags: TagLayout::of(entry),
            address,
            listeners: HashMap::new(),
            connections: HashMap::new(),
            connecting: HashMap::new(),
            sent: Vec::new(),
        })
    }

    /// A number that no connection and no listener has. They are random: whoever would send to one has to be told.
    fn number(&self) -> Result<u32> {
        loop {
            let number = u32::from_le_bytes(random::bytes()?) >> (u32::BITS - self.tags.number_bits);
            let is_connecting = self.connecting.values().any(|connecting| connecting.number == number);
            if !is_connecting && !self.listeners.contains_key(&number) && !self.connections.contains_key(&number) {
                return Ok(number);
            }
        }
    }

    /// The number of a connection at its peer, and where the peer is.
    fn connection(&self, id: ConnectionId) -> Result<(u32, OfiAddress)> {
        let unknown = || Error::internal("this NIC has no such connection");
        let OfiConnection { theirs, peer, broken } = self.connections.get(&id.0).ok_or_else(unknown)?;
        match broken {
            None => Ok((*theirs, *peer)),
            Some(error) => {
                let message = format!("the first message of a connection could not be sent: {}", error.message());
                Err(Error::new(Kind::Remote, message))
            }
        }
    }

    fn pool(&mut self) -> Result<(&mut GreetingPool, &mut OfiEndpoint)> {
        let pool = self.pool.as_mut().ok_or_else(|| Error::internal("this NIC is closed"))?;
        Ok((pool, &mut self.endpoint))
    }

    /// Posts the receive of a listener's greeting, where that is missing.
    fn await_greeting(&mut self, number: u32) -> Result<()> {
        let Some(listener) = self.listeners.get(&number).filter(|listener| listener.receive.is_none()) else {
            return Ok(());
        };
        let (place, tag) = (listener.place, self.tags.of_greeting(number));
        let (pool, endpoint) = self.pool()?;
        let memory = pool.memory(place);
        // SAFETY: the room is the listener's until the greeting has come, and the pool outlives the endpoint.
        let posted = unsafe { endpoint.post(Toward::Me, tag, memory) }?;
        if let (Posted::Request(request), Some(listener)) = (posted, self.listeners.get_mut(&number)) {
            listener.receive = Some(request);
        }
        Ok(())
    }

    /// Who has greeted a listener: its number of the connection, and where it is.
    fn greeted(&mut self, nonce: u64, place: GreetingRoom, bytes: usize) -> Result<(u32, OfiAddress)> {
        let greeting = OfiGreeting::decode(&self.pool()?.0.read(place, bytes))?;
        if greeting.nonce != nonce || !self.tags.has(greeting.number) {
            return Err(Error::new(Kind::Remote, "a greeting by a sender that does not have the handle"));
        }
        Ok((greeting.number, self.endpoint.enter(&greeting.address)?))
    }

    /// Has a listener go on where the `error` is that of whoever has greeted it: anybody can send to it.
    fn await_another(&mut self, number: u32, error: Error) -> Result<Option<ConnectionId>> {
        if error.kind() != Kind::Remote {
            return Err(error);
        }
        log::detail!(Net, "NET/libfabric : a listener goes on after a wrong greeting: {}", error.message());
        if let Some(listener) = self.listeners.get_mut(&number) {
            listener.receive = None;
        }
        self.await_greeting(number)?;
        Ok(None)
    }

    /// Begins to connect: what has to be posted.
    fn begin_to_connect(&mut self, handle: &NicHandle) -> Result<OfiConnecting> {
        let OfiGreeting { nonce, number: theirs, address } = OfiGreeting::decode(handle.content())?;
        if !self.tags.has(theirs) {
            return Err(Error::new(Kind::Remote, "a peer tells a broken number of its listener"));
        }
        let peer = self.endpoint.enter(&address)?;
        let number = self.number()?;
        let greeting = OfiGreeting { nonce, number, address: self.address.clone() }.encode()?;
        let (pool, endpoint) = self.pool()?;
        let place = pool.take(endpoint)?;
        let memory = pool.write(place, &greeting);
        Ok(OfiConnecting { number, connection: OfiConnection { theirs, peer, broken: None }, place, memory })
    }
}

impl RequestNic for OfiNic {
    fn listen(&mut self) -> Result<(ListenerId, NicHandle)> {
        let number = self.number()?;
        let nonce = u64::from_le_bytes(random::bytes()?);
        let handle = OfiGreeting { nonce, number, address: self.address.clone() }.encode()?;
        let handle = NicHandle::new(&handle)?;
        let (pool, endpoint) = self.pool()?;
        let place = pool.take(endpoint)?;
        self.listeners.insert(number, OfiListener { nonce, place, receive: None });
        self.await_greeting(number)?;
        Ok((ListenerId(number), handle))
    }

    fn connect(&mut self, to: &NicHandle) -> Result<Option<ConnectionId>> {
        let connecting = match self.connecting.remove(to) {
            Some(connecting) => connecting,
            None => self.begin_to_connect(to)?,
        };
        let toward = Toward::Peer(connecting.connection.peer);
        let tag = self.tags.of_greeting(connecting.connection.theirs);
        // SAFETY: the room is the greeting's until it was sent, and the pool outlives the endpoint.
        let posted = unsafe { self.endpoint.post(toward, tag, connecting.memory) };
        match posted.inspect_err(|_| self.pool.iter_mut().for_each(|pool| pool.give_back(connecting.place)))? {
            Posted::Later => {
                self.connecting.insert(*to, connecting);
                return Ok(None);
            }
            Posted::Request(request) => self.sent.push((request, connecting.place, connecting.number)),
            Posted::Done => self.pool()?.0.give_back(connecting.place),
        }
        self.connections.insert(connecting.number, connecting.connection);
        Ok(Some(ConnectionId(connecting.number)))
    }

    fn accept(&mut self, listener: ListenerId) -> Result<Option<ConnectionId>> {
        let number = listener.0;
        self.await_greeting(number)?;
        let Some(OfiListener { nonce, place, receive }) = self.listeners.get(&number) else {
            return Err(Error::internal("this NIC has no such listener"));
        };
        let (nonce, place) = (*nonce, *place);
        let Some(request) = *receive else { return Ok(None) };
        let (theirs, peer) = match self.endpoint.test(request) {
            Ok(None) => return Ok(None),
            Ok(Some(bytes)) => match self.greeted(nonce, place, bytes) {
                Ok(peer) => peer,
                Err(error) => return self.await_another(number, error),
            },
            Err(error) => return self.await_another(number, error),
        };
        self.listeners.remove(&number);
        self.pool()?.0.give_back(place);
        self.connections.insert(number, OfiConnection { theirs, peer, broken: None });
        Ok(Some(ConnectionId(number)))
    }

    fn register(&mut self, region: NicMemory) -> Result<()> {
        // SAFETY: the contract of `NicMemory`: it stays until the NIC is closed.
        unsafe { self.endpoint.register(memory(region)) }
    }

    fn send(&mut self, to: ConnectionId, number: MessageNumber, from: NicMemory) -> Result<Posted> {
        let (theirs, peer) = self.connection(to)?;
        // SAFETY: as above, and nobody else touches it while a request has it.
        unsafe { self.endpoint.post(Toward::Peer(peer), TagLayout::of_message(theirs, number), memory(from)) }
    }

    fn receive(&mut self, from: ConnectionId, number: MessageNumber, into: NicMemory) -> Result<Posted> {
        self.connection(from)?;
        // SAFETY: as above.
        unsafe { self.endpoint.post(Toward::Me, TagLayout::of_message(from.0, number), memory(into)) }
    }

    fn flush(&mut self, _: ConnectionId, _: NicMemory) -> Result<Posted> {
        // Memory of the host is all that is offered.
        Ok(Posted::Done)
    }

    fn progress(&mut self) -> Result<()> {
        self.endpoint.progress()?;
        let mut place = 0;
        while let Some((request, room, number)) = self.sent.get(place).copied() {
            let tested = self.endpoint.test(request);
            if let Ok(None) = tested {
                place += 1;
                continue;
            }
            self.sent.swap_remove(place);
            self.pool()?.0.give_back(room);
            if let (Err(error), Some(connection)) = (tested, self.connections.get_mut(&number)) {
                connection.broken = Some(error);
            }
        }
        Ok(())
    }

    fn test(&mut self, request: RequestId) -> Result<Option<usize>> {
        self.endpoint.test(request)
    }

    fn sleep(&mut self) -> Result<NicSleep<'_>> {
        self.endpoint.sleep()
    }

    fn close(&mut self) -> Result<()> {
        let closed = self.endpoint.close();
        if closed.is_err() {
            // The provider may still write to it.
            std::mem::forget(self.pool.take());
        }
        closed
    }
}

impl Drop for OfiNic {
    fn drop(&mut self) {
        // Nobody is left to tell; what could not be closed keeps its memory.
        let _lost = self.close();
    }
}

fn memory(memory: NicMemory) -> OfiMemory {
    OfiMemory { region: RegionKey::Callers(memory.region().0), start: memory.start(), bytes: memory.bytes() }
}

/// How tags are made; the same at both ends, since their protocol says so.
#[derive(Debug, Clone, Copy)]
struct TagLayout {
    /// Bits of a connection's or listener's number.
    number_bits: u32,
}

impl TagLayout {
    fn of(entry: &OfiEntry) -> TagLayout {
        let number_bits = if entry.has_wide_tags() { u32::BITS } else { LEAST_TAG_BITS - 1 - MESSAGE_BITS };
        TagLayout { number_bits }
    }

    /// Whether a number fits.
    fn has(self, number: u32) -> bool {
        u32::BITS - number.leading_zeros() <= self.number_bits
    }

    fn of_message(receiver: u32, number: MessageNumber) -> u64 {
        let ((number, is_straight), bits) = (number.place(), MESSAGE_BITS - 1);
        let number = u64::from(number) & ((1 << bits) - 1) | u64::from(is_straight) << bits;
        u64::from(receiver) << MESSAGE_BITS | number
    }

    fn of_greeting(self, listener: u32) -> u64 {
        1 << (self.number_bits + MESSAGE_BITS) | u64::from(listener) << MESSAGE_BITS
    }
}

/// Bits of a message's number in a tag, and of its sequence. A connection has far fewer messages under way: its peer's
/// credits bound them.
const MESSAGE_BITS: u32 = 16;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn greetings_and_messages_of_all_numbers_have_tags_of_their_own() {
        for (tag_bits, most, bits) in
            [(40, (1 << 23) - 1, 40), (48, (1 << 23) - 1, 40), (49, u32::MAX, 49), (64, u32::MAX, 49)]
        {
            let tags = TagLayout::of(&OfiEntry { tag_bits, ..OfiEntry::default() });
            assert!(tags.has(most) && tags.has(0) && most.checked_add(1).is_none_or(|more| !tags.has(more)));
            let greeting = tags.of_greeting(most);
            assert_eq!(u64::BITS - greeting.leading_zeros(), bits);
            let message = TagLayout::of_message(most, MessageNumber::MAX);
            assert_eq!(greeting & message, greeting & !(1 << (bits - 1)), "the number stands in both at one place");
            let straight = TagLayout::of_message(most, MessageNumber::straight(u64::from(MessageNumber::MAX.0)));
            assert!(message < straight && straight < 1 << (bits - 1));
            assert_eq!(straight >> MESSAGE_BITS, message >> MESSAGE_BITS);
        }
    }
}
