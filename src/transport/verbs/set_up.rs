//! How the two ends of a connection tell each other their queue pairs: over a socket that is closed then, since a
//! queue pair carries nothing before it knows its peer.
//!
//! ```text
//! listener                                      end that connects
//! has a door, a port for all its listeners
//!        ───── handle: address, listener, nonce ──►   (the caller carries it)
//!        ◄──── nonce, listener, end ──────────────
//! makes queue pairs, tells them their peers
//!        ───── nonce, listener, end ──────────────►
//!                                               tells its queue pairs their peers
//!        ◄──── one byte: both may send ───────────
//! ```
//! The socket proves nothing but that the handle is known; the caller's handshake, by messages of the connection,
//! does.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::bootstrap::address::localise;
use crate::bootstrap::socket;
use crate::config::PortRange;
use crate::error::{Error, Kind, Result, without_controls};
use crate::log;
use crate::sys::interfaces::Interface;
use crate::sys::{clock, interfaces, random};
use crate::transport::net::request_nic::NicHandle;
use crate::transport::verbs::gids::{GidAddress, GidKind, PortGid};
use crate::wire::{self, ADDRESS_BYTES, Reader, Writer};

/// What an end tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VerbsEnd {
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) mtu: u8,
    /// Whether its port takes packets with a global route only, as ports of virtual machines may.
    pub(super) needs_route: bool,
    /// The number of the first packet of each queue pair.
    pub(super) packet: u32,
    /// The numbers of its queue pairs, in the order in which messages take them.
    pub(super) pairs: Vec<u32>,
}

impl VerbsEnd {
    /// For people.
    pub(super) fn shown(&self) -> String {
        let gid = PortGid { index: 0, gid: self.gid, kind: GidKind::RoceV2 };
        match gid.address() {
            GidAddress::V4(address) => format!("{address}"),
            GidAddress::V6(_) | GidAddress::LinkLocal if self.lid == 0 => {
                std::net::Ipv6Addr::from(self.gid).to_string()
            }
            GidAddress::V6(_) | GidAddress::LinkLocal => format!("LID {}", self.lid),
        }
    }
}

/// What goes over the socket: both ways the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VerbsGreeting {
    pub(super) handle: VerbsHandle,
    pub(super) end: VerbsEnd,
}

/// Where an end listens, and for which of its listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VerbsHandle {
    pub(super) address: SocketAddr,
    pub(super) listener: u32,
    pub(super) nonce: u64,
}

impl VerbsHandle {
    pub(super) fn encode(&self) -> Result<NicHandle> {
        let mut writer = Writer::with_capacity(HANDLE_BYTES);
        self.write(&mut writer);
        NicHandle::new(writer.as_slice())
    }

    fn write(&self, writer: &mut Writer) {
        writer.address(&self.address).u32(self.listener).u64(self.nonce);
    }

    /// # Errors
    /// Where the bytes are no handle.
    pub(super) fn decode(handle: &NicHandle) -> Result<VerbsHandle> {
        let mut reader = Reader::new(handle.content(), "where a NIC of verbs listens");
        let read = VerbsHandle::read(&mut reader)?;
        reader.finish()?;
        Ok(read)
    }

    fn read(reader: &mut Reader<'_>) -> Result<VerbsHandle> {
        Ok(VerbsHandle { address: reader.address()?, listener: reader.u32()?, nonce: reader.u64()? })
    }
}

impl VerbsGreeting {
    fn encode(&self) -> Vec<u8> {
        let VerbsEnd { gid, lid, mtu, needs_route, packet, pairs } = &self.end;
        let mut writer = Writer::with_capacity(GREETING_BYTES);
        self.handle.write(&mut writer);
        writer.raw(gid).u16(*lid).u8(*mtu).u8(u8::from(*needs_route)).u32(*packet);
        writer.u8(u8::try_from(pairs.len()).unwrap_or(0));
        for pair in pairs {
            writer.u32(*pair);
        }
        let mut bytes = writer.finish();
        bytes.resize(GREETING_BYTES, 0);
        bytes
    }

    /// # Errors
    /// Where the bytes are no greeting, or say why the peer makes no connection.
    fn decode(bytes: &[u8]) -> Result<VerbsGreeting> {
        let mut reader = Reader::new(bytes, "the queue pairs of a peer");
        let handle = VerbsHandle::read(&mut reader)?;
        let (gid, lid, mtu, route, packet) =
            (reader.array()?, reader.u16()?, reader.u8()?, reader.u8()?, reader.u32()?);
        let count = usize::from(reader.u8()?);
        if (mtu, count) == (0, 0) {
            let why = without_controls(&reader.text(MOST_REFUSAL_BYTES)?);
            return Err(Error::new(Kind::Remote, format!("the peer makes no connection: {why}")));
        }
        if route > 1 || count == 0 || count > MOST_PAIRS || !(1..=5).contains(&mtu) || packet > MOST_PACKET {
            return Err(reader.malformed(&format!("{count} queue pairs, MTU {mtu}, route {route}, packet {packet}")));
        }
        let pairs = (0..count).map(|_| reader.u32()).collect::<Result<_>>()?;
        Ok(VerbsGreeting { handle, end: VerbsEnd { gid, lid, mtu, needs_route: route == 1, packet, pairs } })
    }
}

/// As long as a greeting: that there is no end, and why.
fn refusal(handle: VerbsHandle, why: &str) -> Vec<u8> {
    let mut writer = Writer::with_capacity(GREETING_BYTES);
    handle.write(&mut writer);
    writer.raw(&NO_END).text(wire::cut(why, MOST_REFUSAL_BYTES));
    let mut bytes = writer.finish();
    bytes.resize(GREETING_BYTES, 0);
    bytes
}

/// The number of the first packet of an end's queue pairs.
///
/// # Errors
/// Of the system's random numbers.
pub(super) fn first_packet() -> Result<u32> {
    Ok(u32::from_le_bytes(random::bytes()?) & MOST_PACKET)
}

/// A socket of set-up, and what is to be written to it and read from it.
#[derive(Debug)]
pub(super) struct SetUpSocket {
    stream: TcpStream,
    /// What is not written yet.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl SetUpSocket {
    /// Begins to connect.
    ///
    /// # Errors
    /// [`Kind::Remote`] where nobody listens there.
    pub(super) fn connect(address: SocketAddr) -> Result<SetUpSocket> {
        let stream = socket::connect(address).map_err(|error| lost(&error))?;
        Ok(SetUpSocket { stream, outgoing: Vec::new(), incoming: Vec::new() })
    }

    /// Will write this.
    pub(super) fn say(&mut self, greeting: &VerbsGreeting) {
        self.outgoing.extend(greeting.encode());
    }

    /// Will write that this end makes no connection, and why.
    pub(super) fn say_refusal(&mut self, handle: VerbsHandle, why: &str) {
        self.outgoing.extend(refusal(handle, why));
    }

    /// Will write the byte that says that both may send.
    pub(super) fn say_ready(&mut self) {
        self.outgoing.push(READY);
    }

    /// Writes what the socket takes; whether all is written.
    ///
    /// # Errors
    /// [`Kind::Remote`] where the peer has gone.
    pub(super) fn flush(&mut self) -> Result<bool> {
        if !self.outgoing.is_empty() && socket::reset_if_own(&self.stream) {
            return Err(Error::new(Kind::Remote, "the socket by which queue pairs are told: nobody listens there"));
        }
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if is_later(error.kind()) => return Ok(false),
                Err(error) => return Err(lost(&error)),
            }
        }
        Ok(true)
    }

    /// The peer's greeting, once it is there.
    ///
    /// # Errors
    /// [`Kind::Remote`] where the peer has gone, or says something else.
    pub(super) fn greeting(&mut self) -> Result<Option<VerbsGreeting>> {
        let Some(bytes) = self.take(GREETING_BYTES)? else { return Ok(None) };
        VerbsGreeting::decode(&bytes).map(Some)
    }

    /// Whether the peer has said that both may send.
    ///
    /// # Errors
    /// As [`SetUpSocket::greeting`].
    pub(super) fn is_ready(&mut self) -> Result<bool> {
        match self.take(1)? {
            None => Ok(false),
            Some(bytes) if bytes == [READY] => Ok(true),
            Some(_) => Err(Error::new(Kind::Remote, "a peer says something else than that it is ready")),
        }
    }

    fn take(&mut self, count: usize) -> Result<Option<Vec<u8>>> {
        let mut room = [0; GREETING_BYTES];
        while self.incoming.len() < count {
            let wanted = room.get_mut(..count - self.incoming.len()).unwrap_or_default();
            match self.stream.read(wanted) {
                Ok(0) => return Err(Error::new(Kind::Remote, "the peer has closed the socket of set-up")),
                Ok(came) => self.incoming.extend(&room[..came]),
                Err(error) if is_later(error.kind()) => return Ok(None),
                Err(error) => return Err(lost(&error)),
            }
        }
        Ok(Some(std::mem::take(&mut self.incoming)))
    }
}

fn is_later(kind: ErrorKind) -> bool {
    // A socket that is not connected yet says the last.
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected)
}

fn lost(error: &std::io::Error) -> Error {
    Error::new(Kind::Remote, format!("the socket by which queue pairs are told: {}", socket::explain(error)))
}

/// Where this host reaches the address of a peer, from the interface that has `own`.
pub(super) fn called_at(told: SocketAddr, own: IpAddr, all: &[Interface]) -> SocketAddr {
    localise(told, on_link(own, all), all).first().copied().unwrap_or(told)
}

/// The address of an own interface, with its scope where it is one of a link. The port is 0.
fn on_link(own: IpAddr, all: &[Interface]) -> SocketAddr {
    let mut address = SocketAddr::new(own, 0);
    if let SocketAddr::V6(six) = &mut address
        && six.ip().is_unicast_link_local()
    {
        six.set_scope_id(all.iter().find(|one| one.address == own).map_or(0, |one| one.scope));
    }
    address
}

/// Where an endpoint's peers tell their queue pairs.
#[derive(Debug)]
pub(super) struct VerbsDoor {
    listener: TcpListener,
    address: SocketAddr,
    guests: Vec<SetUpGuest>,
}

/// A socket that has not said for which listener it is.
#[derive(Debug)]
struct SetUpGuest {
    socket: SetUpSocket,
    since: Instant,
}

impl VerbsDoor {
    /// Listens at `interface`.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(interface: IpAddr, ports: Option<PortRange>) -> Result<VerbsDoor> {
        let address = on_link(interface, &interfaces::list()?);
        let (listener, address) = socket::listen_in(address, ports)?;
        Ok(VerbsDoor { listener, address, guests: Vec::new() })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Those who have said for which listener they are, with that. Who says something else is sent away, and of too
    /// many who have said nothing the oldest.
    ///
    /// # Errors
    /// Where the system gives no more descriptors.
    pub(super) fn guests(&mut self) -> Result<Vec<(SetUpSocket, VerbsGreeting)>> {
        let now = clock::now();
        while let Some((stream, _)) =
            socket::accept(&self.listener).map_err(|error| Error::system("accept of a socket of set-up", error))?
        {
            let socket = SetUpSocket { stream, outgoing: Vec::new(), incoming: Vec::new() };
            self.guests.push(SetUpGuest { socket, since: now });
        }
        let mut known = Vec::new();
        for mut guest in std::mem::take(&mut self.guests) {
            match guest.socket.greeting() {
                Ok(Some(greeting)) => known.push((guest.socket, greeting)),
                Ok(None) if now.saturating_duration_since(guest.since) < GUEST_TIME => self.guests.push(guest),
                Ok(None) => {}
                Err(error) => log::trace!(Net, "a socket of set-up was refused: {}", error.message()),
            }
        }
        // Not before they were read: a thousand peers may have come at once.
        let surplus = self.guests.len().saturating_sub(MOST_GUESTS);
        self.guests.drain(..surplus);
        Ok(known)
    }
}

/// Queue pairs of a connection: as many as NCCL takes.
pub(super) const MOST_PAIRS: usize = 128;
/// Numbers of packets have 24 bits.
const MOST_PACKET: u32 = 0xff_ffff;
const HANDLE_BYTES: usize = ADDRESS_BYTES + 4 + 8;
const GREETING_BYTES: usize = HANDLE_BYTES + NO_END.len() + 4 * MOST_PAIRS;
/// In place of all of an end up to the numbers of its pairs: the words of a refusal stand in their place.
const NO_END: [u8; 16 + 2 + 1 + 1 + 4 + 1] = [0; 25];
const MOST_REFUSAL_BYTES: usize = 4 * MOST_PAIRS - 4;
const READY: u8 = 0x52;
/// Sockets that have said nothing yet.
const MOST_GUESTS: usize = 256;
/// How long they may say nothing.
const GUEST_TIME: Duration = Duration::from_secs(10);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::sync::Deadline;

    fn greeting(pairs: usize) -> VerbsGreeting {
        let address = "[fe80::1%3]:4791".parse().unwrap();
        let pairs = (0..pairs).map(|pair| u32::try_from(pair).unwrap() * 7 + 17).collect();
        let handle = VerbsHandle { address, listener: 5, nonce: 1 << 63 };
        VerbsGreeting {
            handle,
            end: VerbsEnd { gid: [0xfe; 16], lid: 0xc001, mtu: 5, needs_route: true, packet: 0xff_ffff, pairs },
        }
    }

    #[test]
    fn greetings_come_back_and_broken_ones_are_refused() {
        for pairs in [1, 2, MOST_PAIRS] {
            let bytes = greeting(pairs).encode();
            assert_eq!(bytes.len(), GREETING_BYTES);
            assert_eq!(VerbsGreeting::decode(&bytes).unwrap(), greeting(pairs));
            for cut in 0..HANDLE_BYTES + 25 {
                assert!(VerbsGreeting::decode(&bytes[..cut]).is_err(), "{cut} bytes");
            }
        }
        let end = HANDLE_BYTES + 16;
        for (place, value) in
            [(0, 9), (end + 2, 0), (end + 2, 6), (end + 3, 2), (end + 7, 1), (end + 8, 0), (end + 8, 129)]
        {
            let mut bytes = greeting(3).encode();
            bytes[place] = value;
            assert!(VerbsGreeting::decode(&bytes).is_err(), "byte {place} is {value}");
        }
        let handle = greeting(1).handle.encode().unwrap();
        assert_eq!(VerbsHandle::decode(&handle).unwrap(), greeting(1).handle);
        assert!(VerbsHandle::decode(&NicHandle::new(&handle.content()[1..]).unwrap()).is_err());
        assert!(VerbsHandle::decode(&NicHandle::new(&[handle.content(), &[0]].concat()).unwrap()).is_err());
    }

    #[test]
    fn a_refusal_comes_in_words() {
        let long = "x".repeat(2 * GREETING_BYTES);
        for (why, told) in [("no\nroom", "no\\nroom"), ("", ""), (&long, &long[..MOST_REFUSAL_BYTES])] {
            let bytes = refusal(greeting(1).handle, why);
            assert_eq!(bytes.len(), GREETING_BYTES);
            let error = VerbsGreeting::decode(&bytes).unwrap_err();
            assert_eq!(
                (error.kind(), error.message()),
                (Kind::Remote, &*format!("the peer makes no connection: {told}"))
            );
        }
    }

    #[test]
    fn ends_are_shown_by_what_reaches_them() {
        let shown = |gid: &str, lid| {
            let gid = gid.parse::<std::net::Ipv6Addr>().unwrap().octets();
            VerbsEnd { gid, lid, ..greeting(1).end }.shown()
        };
        assert_eq!(shown("::ffff:10.9.0.1", 0), "10.9.0.1");
        assert_eq!(shown("2001:db8::5", 0), "2001:db8::5");
        assert_eq!(shown("fe80::5", 9), "LID 9");
    }

    fn until<T>(mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let deadline = Deadline::after(Duration::from_secs(20));
        loop {
            if let Some(answer) = ask()? {
                return Ok(answer);
            }
            if deadline.passed(clock::now()) {
                return Err(Error::timeout("the test waited too long"));
            }
        }
    }

    #[test]
    fn both_ends_learn_of_each_other_and_strangers_are_sent_away() {
        let mut door = VerbsDoor::open([127, 0, 0, 1].into(), None).unwrap();
        let mut stranger = socket::connect(door.address()).unwrap();
        until(|| Ok(stranger.write_all(&[7; GREETING_BYTES]).ok())).unwrap();
        let mut caller = SetUpSocket::connect(door.address()).unwrap();
        caller.say(&greeting(2));
        until(|| Ok(caller.flush()?.then_some(()))).unwrap();
        let mut guests = until(|| Ok(Some(door.guests()?).filter(|guests| !guests.is_empty()))).unwrap();
        let (mut answerer, came) = guests.pop().unwrap();
        assert!(came == greeting(2) && guests.is_empty());
        answerer.say(&greeting(1));
        until(|| Ok(answerer.flush()?.then_some(()))).unwrap();
        assert_eq!(until(|| caller.greeting()).unwrap(), greeting(1));
        assert!(!answerer.is_ready().unwrap());
        caller.say_ready();
        until(|| Ok(caller.flush()?.then_some(()))).unwrap();
        until(|| Ok(answerer.is_ready()?.then_some(()))).unwrap();
        drop(caller);
        assert_eq!(until(|| answerer.greeting()).unwrap_err().kind(), Kind::Remote);
        assert!(
            until(|| Ok(door.guests()?.is_empty().then_some(door.guests.len())).map(|n| n.filter(|n| *n == 0))).is_ok()
        );
    }

    #[test]
    fn all_who_have_greeted_get_in_and_of_the_silent_ones_the_oldest_leave() {
        let mut door = VerbsDoor::open([127, 0, 0, 1].into(), None).unwrap();
        let (address, callers) = (door.address(), MOST_GUESTS + 44);
        let come = |greeting: Option<VerbsGreeting>| {
            let mut socket = SetUpSocket::connect(address).unwrap();
            greeting.iter().for_each(|greeting| socket.say(greeting));
            until(|| Ok((socket.flush()? && socket.stream.peer_addr().is_ok()).then_some(()))).unwrap();
            socket
        };
        let silent: Vec<_> = (0..3).map(|_| come(None)).collect();
        let said: Vec<_> = (0..callers).map(|_| come(Some(greeting(1)))).collect();
        let mut known = 0;
        until(|| {
            known += door.guests()?.len();
            Ok((known >= callers || door.guests.len() < silent.len()).then_some(()))
        })
        .unwrap();
        assert_eq!((known, door.guests.len()), (callers, silent.len()), "who came all at once");
        drop(said);
        let more: Vec<_> = (0..MOST_GUESTS).map(|_| come(None)).collect();
        until(|| Ok(Some(door.guests()?).filter(|_| door.guests.len() == MOST_GUESTS))).unwrap();
        assert_eq!(more.len(), MOST_GUESTS);
        for mut socket in silent {
            assert_eq!(until(|| socket.greeting()).unwrap_err().kind(), Kind::Remote, "the oldest");
        }
    }

    /// The kernel may give a caller the very port that it calls, where nobody listens any more.
    #[test]
    fn a_socket_that_is_connected_to_itself_is_nobody() {
        let own = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        own.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        own.connect(&own.local_addr().unwrap()).unwrap();
        own.set_nonblocking(true).unwrap();
        let mut socket = SetUpSocket { stream: own.into(), outgoing: Vec::new(), incoming: Vec::new() };
        socket.say(&greeting(1));
        let error = until(|| Ok(socket.flush()?.then_some(()))).and_then(|()| until(|| socket.greeting())).unwrap_err();
        assert!(error.kind() == Kind::Remote && error.message().contains("nobody listens there"), "{error}");
    }

    /// An index of an interface is one of the machine that has told it.
    #[test]
    fn peers_on_a_link_are_called_by_this_hosts_own_interface() {
        let all = [("eth0", "fe80::7", 2), ("eth1", "fe80::8", 5)].map(|(name, address, scope)| Interface {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            netmask: "ffff:ffff:ffff:ffff::".parse().unwrap(),
            scope,
            running: true,
        });
        let call = |told: &str, own: &str| called_at(told.parse().unwrap(), own.parse().unwrap(), &all).to_string();
        assert_eq!(call("[fe80::1%3]:4791", "fe80::8"), "[fe80::1%5]:4791");
        assert_eq!(call("[fe80::1%3]:4791", "fe80::7"), "[fe80::1%2]:4791");
        assert_eq!(call("[2001:db8::1]:4791", "2001:db8::2"), "[2001:db8::1]:4791");
        assert_eq!(call("10.8.0.1:4791", "10.8.0.2"), "10.8.0.1:4791");
    }

    #[test]
    fn a_port_where_nobody_listens_is_an_error() {
        let door = VerbsDoor::open([127, 0, 0, 1].into(), None).unwrap();
        let address = door.address();
        drop(door);
        let error = SetUpSocket::connect(address).and_then(|mut socket| {
            socket.say(&greeting(1));
            until(|| Ok(socket.flush()?.then_some(())))?;
            until(|| socket.greeting())
        });
        assert_eq!(error.unwrap_err().kind(), Kind::Remote);
    }
}
