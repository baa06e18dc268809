//! The smallest network behind the contract of request-based NICs: between threads of this process, for tests. It shows
//! what the next network costs, and behaves as badly as the contract allows: it says "later", delivers late and in
//! another order, needs registration, and fails where it is told to.

use std::collections::{HashMap, HashSet};

use crate::error::{Error, Kind, Result};
use crate::sync::primitive::{Arc, AtomicU64, Mutex, Ordering};
use crate::transport::net::request_nic::{
    ConnectionId, DeviceMemoryAccess, DeviceReach, FoundNic, ListenerId, MessageMatching, MessageNumber, MessageOrder,
    NicDescription, NicHandle, NicLibrary, NicList, NicMemory, NicPromises, NicSleep, Posted, RegistrationNeed,
    RequestId, RequestNic, RequestWay,
};

/// Ranks of tests ask for it by this name.
pub(in crate::transport) const LIBRARY: NicLibrary = NicLibrary {
    name: "test-nic",
    hardware: None,
    find: |_| Ok(Arc::new(TestNic::new(Manners::WORST))),
    list: |_| Ok(NicList { nics: vec![TestNic::new(Manners::WORST).description().clone()], noes: Vec::new() }),
    looks_first: false,
};

/// The same over which long messages go straight.
#[cfg(not(loom))]
pub(in crate::transport) const STRAIGHT_LIBRARY: NicLibrary = NicLibrary {
    name: "test-nic-straight",
    find: |_| Ok(Arc::new(TestNic::new(Manners::STRAIGHT))),
    list: |_| Ok(NicList { nics: vec![TestNic::new(Manners::STRAIGHT).description().clone()], noes: Vec::new() }),
    ..LIBRARY
};

/// How badly it behaves.
#[derive(Debug, Clone, Copy)]
pub(in crate::transport) struct Manners {
    /// Calls of `progress` after which messages arrive: one of 1 to this number.
    pub(in crate::transport) late: u64,
    /// Of so many calls that may say "later" one does.
    pub(in crate::transport) shy: u64,
    /// The call that posts or tests, counted from 1, from which on all of them fail.
    pub(in crate::transport) fails_at: u64,
    /// The send, counted from 1, from which on all of them fail.
    pub(in crate::transport) sends_fail_at: u64,
    /// Whether what it sends is done at once.
    pub(in crate::transport) injects: bool,
    /// Whether it says that it has something each time that somebody wants to sleep on it.
    pub(in crate::transport) is_ready: bool,
    /// Peers that come before one is let in.
    pub(in crate::transport) admits_after: u32,
    /// Whether it takes memory of devices, where nothing that came is seen before it was flushed.
    pub(in crate::transport) takes_devices: bool,
    /// What is promised of sends, and of receives.
    pub(in crate::transport) most_sends: usize,
    pub(in crate::transport) most_receives: usize,
    /// And of the rest.
    pub(in crate::transport) most_bytes: usize,
    pub(in crate::transport) matching: MessageMatching,
    pub(in crate::transport) registration: RegistrationNeed,
}

impl Manners {
    pub(in crate::transport) const WORST: Manners = Manners {
        late: 5,
        shy: 3,
        fails_at: u64::MAX,
        sends_fail_at: u64::MAX,
        injects: false,
        is_ready: false,
        admits_after: 0,
        takes_devices: false,
        most_sends: 1 << 20,
        most_receives: 1 << 20,
        most_bytes: 1 << 20,
        matching: MessageMatching::InOrder,
        registration: RegistrationNeed::All,
    };

    /// It matches by numbers and takes any memory.
    #[cfg(not(loom))]
    pub(in crate::transport) const STRAIGHT: Manners = Manners {
        matching: MessageMatching::ByNumber,
        registration: RegistrationNeed::None,
        most_bytes: crate::transport::net::request_nic::MOST_STRAIGHT_BYTES,
        ..Manners::WORST
    };

    /// So many sends, and as many receives.
    #[cfg(not(loom))]
    pub(in crate::transport) fn with_requests(count: usize) -> Manners {
        Manners { most_sends: count, most_receives: count, ..Manners::WORST }
    }
}

/// What lies in the inboxes of all endpoints, by their addresses; those that are closed have none.
static INBOXES: Mutex<Option<HashMap<u64, Vec<Packet>>>> = Mutex::new(None);
static ADDRESSES: AtomicU64 = AtomicU64::new(1);

/// A connection as both ends name it: the address and the connection of the end that has connected.
type Link = (u64, u32);

#[derive(Debug)]
struct Packet {
    link: Link,
    /// The number and the bytes of a message, or which listener is connected to.
    content: std::result::Result<(MessageNumber, Vec<u8>), ListenerId>,
    due: u64,
}

/// The last one counts the endpoints that were closed.
#[derive(Debug)]
pub(in crate::transport) struct TestNic(NicDescription, NicPromises, Manners, Arc<AtomicU64>);

#[derive(Debug)]
struct Endpoint {
    manners: Manners,
    closed: Arc<AtomicU64>,
    address: u64,
    listeners: u32,
    calls: u64,
    /// By connection: its link, and the address of the other end.
    connections: Vec<(Link, u64)>,
    arrived: Vec<Packet>,
    receives: Vec<(RequestId, Link, MessageNumber, NicMemory)>,
    /// Requests that are done after so many more calls of `progress`, with their bytes.
    done: HashMap<RequestId, (u64, usize)>,
    registered: Vec<NicMemory>,
    /// What has come for memory of a device, and is not seen there yet.
    unseen: Vec<(NicMemory, Vec<u8>)>,
    /// Sends that nobody has seen done.
    sends: HashSet<RequestId>,
    /// How many there were.
    sent: u64,
}

impl TestNic {
    pub(in crate::transport) fn new(manners: Manners) -> TestNic {
        let [network, device, provider] = ["test-nic", "test0", "threads"].map(str::to_owned);
        let protocol = "1".to_owned();
        let description = NicDescription { network, device, provider, protocol, rate_mbit: None, node: None };
        let promises = NicPromises {
            order: MessageOrder::Any,
            remote_word_bytes: 0,
            device_memory: match manners.takes_devices {
                true => DeviceMemoryAccess::WithFlush { is_forced: false },
                false => DeviceMemoryAccess::None,
            },
            most_message_bytes: manners.most_bytes,
            inject_bytes: 0,
            most_sends: manners.most_sends,
            most_receives: manners.most_receives,
            registration: manners.registration,
            matching: manners.matching,
        };
        TestNic(description, promises, manners, Arc::default())
    }

    /// How many of its endpoints were closed.
    #[cfg(not(loom))]
    pub(in crate::transport) fn closed(&self) -> u64 {
        self.3.load(Ordering::Relaxed)
    }
}

impl FoundNic for TestNic {
    fn description(&self) -> &NicDescription {
        &self.0
    }
    fn promises(&self) -> &NicPromises {
        &self.1
    }
    fn open(&self) -> Result<Box<dyn RequestNic>> {
        let address = ADDRESSES.fetch_add(1, Ordering::Relaxed);
        INBOXES.lock().get_or_insert_default().insert(address, Vec::new());
        let (connections, arrived, receives) = (Vec::new(), Vec::new(), Vec::new());
        let (manners, done, registered) = (self.2, HashMap::new(), Vec::new());
        let (listeners, calls, sends, sent, unseen) = (0, 0, HashSet::new(), 0, Vec::new());
        Ok(Box::new(Endpoint {
            manners,
            closed: Arc::clone(&self.3),
            address,
            listeners,
            calls,
            connections,
            arrived,
            receives,
            done,
            registered,
            unseen,
            sends,
            sent,
        }))
    }
}

impl Endpoint {
    /// Counts a call; true where it must say "later".
    fn is_shy(&mut self) -> Result<bool> {
        self.calls += 1;
        if self.calls >= self.manners.fails_at {
            return Err(Error::internal("the test wants this call to fail"));
        }
        Ok(self.calls.is_multiple_of(self.manners.shy))
    }

    /// Whether `to` is there, so that the packet is on its way.
    fn put(&mut self, to: u64, link: Link, content: std::result::Result<(MessageNumber, Vec<u8>), ListenerId>) -> bool {
        let due = 1 + self.calls * 7 % self.manners.late;
        let mut inboxes = INBOXES.lock();
        let inbox = inboxes.as_mut().and_then(|inboxes| inboxes.get_mut(&to));
        inbox.is_some_and(|inbox| {
            inbox.push(Packet { link, content, due });
            true
        })
    }

    fn check(&self, memory: NicMemory) {
        if self.manners.registration == RegistrationNeed::None {
            return;
        }
        let is_inside = |region: &NicMemory| {
            let end = memory.start().addr().get() + memory.bytes();
            region.region() == memory.region()
                && region.start() <= memory.start()
                && end <= region.start().addr().get() + region.bytes()
        };
        assert!(self.registered.iter().any(is_inside), "memory that is not registered");
    }
}

impl RequestNic for Endpoint {
    fn listen(&mut self) -> Result<(ListenerId, NicHandle)> {
        self.listeners += 1;
        let handle = [&self.address.to_le_bytes()[..], &self.listeners.to_le_bytes()].concat();
        Ok((ListenerId(self.listeners), NicHandle::new(&handle)?))
    }

    fn connect(&mut self, to: &NicHandle) -> Result<Option<ConnectionId>> {
        if self.is_shy()? {
            return Ok(None);
        }
        let broken = || Error::internal("a broken handle");
        let (address, rest) = to.content().split_first_chunk().ok_or_else(broken)?;
        let (listener, address) = (rest.try_into().map_err(|_| broken())?, u64::from_le_bytes(*address));
        let id = u32::try_from(self.connections.len()).expect("few");
        let link = (self.address, id);
        self.connections.push((link, address));
        self.put(address, link, Err(ListenerId(u32::from_le_bytes(listener))));
        Ok(Some(ConnectionId(id)))
    }

    fn accept(&mut self, listener: ListenerId) -> Result<Option<ConnectionId>> {
        let place = self.arrived.iter().position(|packet| packet.content == Err(listener));
        let Some(place) = place else { return Ok(None) };
        let link = self.arrived.swap_remove(place).link;
        if self.manners.admits_after > 0 {
            self.manners.admits_after -= 1;
            return Err(Error::new(Kind::Remote, "the test wants this peer to stay outside"));
        }
        self.connections.push((link, link.0));
        Ok(Some(ConnectionId(u32::try_from(self.connections.len() - 1).expect("few"))))
    }

    fn register(&mut self, region: NicMemory) -> Result<()> {
        self.registered.push(region);
        Ok(())
    }

    fn send(&mut self, to: ConnectionId, number: MessageNumber, from: NicMemory) -> Result<Posted> {
        self.check(from);
        if self.sent + 1 >= self.manners.sends_fail_at {
            return Err(Error::internal("the test wants this send to fail"));
        }
        let is_shy = self.is_shy()? || self.sends.len() >= self.manners.most_sends;
        // SAFETY: the memory is good for reads until the request is done.
        let content = unsafe { std::slice::from_raw_parts(from.start().as_ptr(), from.bytes()) }.to_vec();
        let (link, peer) = self.connections[to.0 as usize];
        if is_shy || !self.put(peer, link, Ok((number, content))) {
            return Ok(Posted::Later);
        }
        self.sent += 1;
        if self.manners.injects {
            return Ok(Posted::Done);
        }
        self.done.insert(RequestId(self.calls), (self.calls % self.manners.late, from.bytes()));
        self.sends.insert(RequestId(self.calls));
        Ok(Posted::Request(RequestId(self.calls)))
    }

    fn receive(&mut self, from: ConnectionId, number: MessageNumber, into: NicMemory) -> Result<Posted> {
        self.check(into);
        let receives = self.receives.len() + self.done.len() - self.sends.len();
        if self.is_shy()? || receives >= self.manners.most_receives {
            return Ok(Posted::Later);
        }
        self.receives.push((RequestId(self.calls), self.connections[from.0 as usize].0, number, into));
        Ok(Posted::Request(RequestId(self.calls)))
    }

    fn register_device(
        &mut self,
        _: ConnectionId,
        _: RequestWay,
        region: NicMemory,
        reach: &DeviceReach,
    ) -> std::result::Result<(), String> {
        if !reach.by_address {
            return Err("the test NIC takes addresses".to_owned());
        }
        self.registered.push(region);
        Ok(())
    }

    fn flush(&mut self, _: ConnectionId, received: NicMemory) -> Result<Posted> {
        self.check(received);
        if !received.is_device() {
            return Ok(Posted::Done);
        }
        if self.is_shy()? {
            return Ok(Posted::Later);
        }
        let place = self.unseen.iter().position(|(into, _)| into.start() == received.start());
        let (into, bytes) = self.unseen.swap_remove(place.expect("a flush of what has come"));
        // SAFETY: the memory is good for writes until its owner hears that it was flushed.
        unsafe { into.start().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.done.insert(RequestId(self.calls), (self.calls % self.manners.late, 0));
        Ok(Posted::Request(RequestId(self.calls)))
    }

    fn progress(&mut self) -> Result<()> {
        self.done.values_mut().for_each(|(due, _)| *due = due.saturating_sub(1));
        if let Some(inbox) = INBOXES.lock().as_mut().and_then(|inboxes| inboxes.get_mut(&self.address)) {
            inbox.iter_mut().for_each(|packet| packet.due -= 1);
            self.arrived.extend(inbox.extract_if(.., |packet| packet.due == 0));
        }
        for packet in std::mem::take(&mut self.arrived) {
            let sent = packet.content.as_ref().ok().map(|(number, _)| (packet.link, *number));
            let is_its = |receive: &(RequestId, Link, MessageNumber, NicMemory)| sent == Some((receive.1, receive.2));
            match (self.receives.iter().position(is_its), &packet.content) {
                (Some(place), Ok((_, bytes))) => {
                    let (request, .., into) = self.receives.swap_remove(place);
                    assert!(bytes.len() <= into.bytes(), "a receive that is too small");
                    if into.is_device() {
                        self.unseen.push((into, bytes.clone()));
                    } else {
                        // SAFETY: the memory is good for writes until the request is done.
                        unsafe { into.start().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                    }
                    self.done.insert(request, (0, bytes.len()));
                }
                _ => self.arrived.push(packet),
            }
        }
        Ok(())
    }

    fn test(&mut self, request: RequestId) -> Result<Option<usize>> {
        if self.manners.fails_at <= self.calls {
            return Err(Error::internal("the test wants requests to fail from now on"));
        }
        let is_done = self.done.get(&request).is_some_and(|(due, _)| *due == 0);
        if !is_done {
            return Ok(None);
        }
        self.sends.remove(&request);
        Ok(self.done.remove(&request).map(|(_, bytes)| bytes))
    }

    fn sleep(&mut self) -> Result<NicSleep<'_>> {
        Ok(if self.manners.is_ready { NicSleep::Ready } else { NicSleep::PollMe })
    }

    fn close(&mut self) -> Result<()> {
        let inbox = INBOXES.lock().as_mut().and_then(|inboxes| inboxes.remove(&self.address));
        self.closed.fetch_add(u64::from(inbox.is_some()), Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        INBOXES.lock().as_mut().map(|inboxes| inboxes.remove(&self.address));
    }
}
