//! The contract of request-based NICs: what stands between the NET transport and a library that moves messages by
//! requests, such as libfabric.
//!
//! A socket is a stream of bytes with a descriptor to sleep on. A request-based NIC is neither: a message is *posted*,
//! together with memory that was registered with the NIC before, and somebody *polls* until its request is done. NICs
//! of this kind move data without the kernel, and often without the processor.
//!
//! # Adding a network
//! Write a file with a type that implements [`FoundNic`] and one that implements [`RequestNic`], and add its
//! [`NicLibrary`] to the table in `nic_libraries`: one line. `test_nic` is the smallest implementation, in about 100
//! lines. Everything else is common to all: `endpoint` keeps memory alive, `requests` opens connections, cuts messages,
//! counts credits, and proves that the other end knows the secret of the communicator.
//!
//! # What is asked of an implementation
//! - **Nothing blocks.** [`RequestNic::connect`], [`RequestNic::accept`], [`RequestNic::send`] and
//!   [`RequestNic::receive`] may say "later"; the caller asks again.
//! - **Nothing moves alone.** The caller calls [`RequestNic::progress`] as long as it waits for anything, and no thread
//!   of the implementation is needed.
//! - **Memory** is the caller's: the NIC reads and writes what was handed to it by [`NicMemory`], until it was
//!   [closed](RequestNic::close) or dropped. Sends and receives cannot be cancelled, so only that gives memory back.
//! - **Messages** of a connection have numbers. A receive takes the message of its number, in whatever order messages
//!   arrive. A NIC without numbers on its wire, which matches messages to receives in the order in which both were
//!   posted, may ignore them: the caller posts the sends of each direction in the order of their numbers, and the
//!   receives as well. Numbers of a direction go up by one, around after [`MessageNumber::MAX`]. A NIC that promises to
//!   match [by numbers](MessageMatching::ByNumber) is given numbers of a second sequence too, beside the first one
//!   ([`MessageNumber::straight`]).
//! - **Sizes** are the caller's care: no receive is posted that is smaller than the message which it will take, and no
//!   more messages are sent than the peer has room for. A NIC that is sent something else all the same, by a peer that
//!   breaks these rules, must not write past the end of a receive; it may return an error.
//! - **Life** of a peer is not the NIC's business. A NIC that notices a peer's death may return an error, and one that
//!   does not may say "later" for ever: ranks hear of deaths over their control connections.
//! - **Threads**: one at a time has the NIC, but not always the same.

pub(in crate::transport) mod endpoint;

use std::fmt;
use std::fmt::Debug;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::NonNull;

use crate::device::DmaBuf;
use crate::error::{Error, Kind, Result, shown, without_controls};
use crate::sync::primitive::Arc;
use crate::transport::VerbsSettings;
use crate::types::Rank;
use crate::wire::{self, Reader, Writer};

/// Looks below a root of the file system (`/`) whether there is hardware for a library: else a sentence, why not.
type LookForHardware = fn(&Path) -> std::result::Result<(), String>;

/// A library of request-based NICs: a line of the table.
#[derive(Debug)]
pub(in crate::transport) struct NicLibrary {
    /// What `NCCL_NET` calls it, in lower case. Users may write it in any case.
    pub(in crate::transport) name: &'static str,
    /// Whether this host has hardware for which ranks look without being asked, if `NCCL_NET` is not set; the `Err`
    /// says why not. It reads files below `root` alone, which is `/`, or a folder that replaces it in tests: nothing is
    /// loaded, since each start of each program asks. `None`: only who names the library uses it.
    pub(in crate::transport) hardware: Option<LookForHardware>,
    /// Loads the library, and finds the best NIC for a rank. Only called where the user has asked for this network, or
    /// where [`hardware`](NicLibrary::hardware) says that there may be a NIC.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] with a sentence for the user: which library is missing or too old, or why each
    /// NIC that it has will not do.
    pub(in crate::transport) find: fn(&NicSearch<'_>) -> Result<Arc<dyn FoundNic>>,
    /// All NICs that it has here, for people.
    ///
    /// # Errors
    /// As [`find`](NicLibrary::find).
    pub(in crate::transport) list: fn(&NicSearch<'_>) -> Result<NicList>,
    /// Whether [`list`](NicLibrary::list) looks into files first, and loads the library only where these show a device:
    /// then it may be called though nobody has asked for the library.
    pub(in crate::transport) looks_first: bool,
}

/// The NICs of a library.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::transport) struct NicList {
    /// Those that will do, the first one first.
    pub(in crate::transport) nics: Vec<NicDescription>,
    /// Why others will not, a sentence each.
    pub(in crate::transport) noes: Vec<String>,
}

/// What a library is told when it looks for a NIC.
#[derive(Debug, Clone, Copy)]
pub(in crate::transport) struct NicSearch<'a> {
    /// The rank that asks, for the log. Ranks of a host to which several NICs are equally near take turns by it.
    pub(in crate::transport) me: Rank,
    /// The NUMA node of the rank's processors, where they are of one: a NIC of that node is the best one.
    pub(in crate::transport) node: Option<u32>,
    /// Whether the user has asked for this network by name. Else only hardware will do.
    pub(in crate::transport) is_asked: bool,
    /// The address of the interface at which the ranks of the communicator have met. A network on top of IP uses the
    /// interface that has it; other networks may ignore it.
    pub(in crate::transport) interface: IpAddr,
    /// What the user says of verbs, for the library of that name.
    pub(in crate::transport) verbs: &'a VerbsSettings,
    /// The files of NCCL's net plug-ins that the user names (`NCCL_NET_PLUGIN`).
    pub(in crate::transport) plug_ins: Option<&'a str>,
    /// What the plug-in must call its network, where the user says so (`NCCL_NET`).
    pub(in crate::transport) network_of_plug_in: Option<&'a str>,
}

/// A NIC that a library has found for this process. Each communicator opens an endpoint of its own on it.
pub(in crate::transport) trait FoundNic: Debug + Send + Sync {
    /// What it is. All ranks tell each other.
    fn description(&self) -> &NicDescription;

    /// What it promises.
    fn promises(&self) -> &NicPromises;

    /// Its PCI bus id, where that is known.
    fn bus_id(&self) -> Option<String> {
        None
    }

    /// Why it is none of the others that the library has, one line each.
    fn noes(&self) -> &[String] {
        &[]
    }

    /// Opens an endpoint.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the NIC or the system has no more of something, with its name: for example
    /// `RLIMIT_MEMLOCK`, or a device file that the container lacks.
    fn open(&self) -> Result<Box<dyn RequestNic>>;
}

/// One communicator's endpoint on a NIC. See the [module](self) for what its methods have in common.
///
/// An error of [`connect`](RequestNic::connect), [`send`](RequestNic::send), [`receive`](RequestNic::receive),
/// [`flush`](RequestNic::flush) and [`test`](RequestNic::test) is of one connection, and others go on: a peer that has
/// finished may close its endpoint while this rank still tells it something. So is an error of
/// [`accept`](RequestNic::accept) whose kind is [`Kind::Remote`]. Any other error ends the endpoint: the caller makes
/// no more calls but [`close`](RequestNic::close).
pub(in crate::transport) trait RequestNic: Debug + Send {
    /// Begins to listen for one connection: a number for [`RequestNic::accept`], and what the peer needs for
    /// [`RequestNic::connect`].
    ///
    /// # Errors
    /// Of the NIC, or where its address does not fit a [`NicHandle`].
    fn listen(&mut self) -> Result<(ListenerId, NicHandle)>;

    /// Connects to a peer that listens; `None` is "later": the same call is to be made again. The handle has come from
    /// the peer over an authenticated connection, but may hold anything.
    ///
    /// The connection carries messages both ways. It may be returned before the peer has accepted.
    ///
    /// # Errors
    /// Of the connection: of a broken handle, or of a peer that is not there any more.
    fn connect(&mut self, to: &NicHandle) -> Result<Option<ConnectionId>>;

    /// The connection for which `listener` waits; `None` is "later". A listener gives one connection, and is forgotten
    /// with it. Who connects is not proved: the caller does that by the first messages.
    ///
    /// # Errors
    /// [`Kind::Remote`] where no connection can be made with whoever has come, and the listener is forgotten; any other
    /// error is that of the NIC.
    fn accept(&mut self, listener: ListenerId) -> Result<Option<ConnectionId>>;

    /// Registers the memory of `region`, of which parts will be sent and received until the endpoint is closed. The NIC
    /// remembers its keys by the region's number. Where nothing has to be registered it does nothing.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system pins no more memory (`RLIMIT_MEMLOCK`).
    fn register(&mut self, region: NicMemory) -> Result<()>;

    /// Registers `region` of a device's memory, of which parts will go the `way` of this connection until the endpoint
    /// is closed.
    ///
    /// # Errors
    /// Why the NIC does not take it, as a sentence: then nothing has changed, and no message lies there.
    fn register_device(
        &mut self,
        connection: ConnectionId,
        way: RequestWay,
        region: NicMemory,
        reach: &DeviceReach,
    ) -> std::result::Result<(), String> {
        let _ = (connection, way, region, reach);
        Err("this network takes no memory of devices".to_owned())
    }

    /// Posts a message of the connection.
    ///
    /// # Errors
    /// Of the connection.
    fn send(&mut self, to: ConnectionId, number: MessageNumber, from: NicMemory) -> Result<Posted>;

    /// Posts a receive for the message of this number, which may be shorter than `into`. It is never [`Posted::Done`]
    /// at once, since only [`RequestNic::test`] tells how long the message was.
    ///
    /// # Errors
    /// Of the connection.
    fn receive(&mut self, from: ConnectionId, number: MessageNumber, into: NicMemory) -> Result<Posted>;

    /// Makes what a receive has put into memory of a device visible to the device, once that request is done. For
    /// memory of the host it is [`Posted::Done`].
    ///
    /// # Errors
    /// Of the connection.
    fn flush(&mut self, from: ConnectionId, received: NicMemory) -> Result<Posted>;

    /// Lets the NIC move what it can, and takes note of requests that are done. Called often: it should cost little
    /// where nothing has happened.
    ///
    /// # Errors
    /// Of the NIC.
    fn progress(&mut self) -> Result<()>;

    /// Whether a request was done when [`RequestNic::progress`] last looked: the bytes of the message then, and the NIC
    /// forgets the request. It only looks up; requests of one connection may be done in any order. A send is done when
    /// the NIC needs neither its memory nor more calls of this process to deliver it: who closes the endpoint then
    /// takes nothing back.
    ///
    /// # Errors
    /// Of a request that has failed.
    fn test(&mut self, request: RequestId) -> Result<Option<usize>>;

    /// What a thread may sleep on that has nothing to do but to wait for requests of this NIC. "Poll me" is an answer.
    ///
    /// # Errors
    /// Of the NIC.
    fn sleep(&mut self) -> Result<NicSleep<'_>> {
        Ok(NicSleep::PollMe)
    }

    /// Whether [`Kind::Remote`] stands for the peer's faults, and those of the way to it, alone. Where a NIC cannot
    /// tell faults apart, the peers of connections that break are taken to be the cause.
    fn tells_faults(&self) -> bool {
        false
    }

    /// Closes the endpoint, requests that are not done with it. After that the NIC touches no memory of the caller's
    /// any more. Dropping does the same, where this was not called.
    ///
    /// # Errors
    /// Where the NIC may still touch memory: the caller then never gives that memory back.
    fn close(&mut self) -> Result<()>;
}

/// What a thread may sleep on.
#[derive(Debug)]
pub(in crate::transport) enum NicSleep<'a> {
    /// Nothing: there is no descriptor, and only polling tells.
    PollMe,
    /// Something has happened already: [`RequestNic::progress`] finds it.
    Ready,
    /// This descriptor, which is readable once something has happened. The answer holds until the next call of any
    /// other method.
    On(BorrowedFd<'a>),
}

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) enum RequestWay {
    Out,
    In,
}

/// How a NIC may reach memory of a device.
#[derive(Debug)]
pub(in crate::transport) struct DeviceReach {
    /// As a DMA-BUF, which is the better way.
    pub(in crate::transport) dma_buf: Option<DmaBuf>,
    /// By its address.
    pub(in crate::transport) by_address: bool,
}

/// What has become of what was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) enum Posted {
    /// The NIC has no room: the same call is to be made again.
    Later,
    /// It is under way.
    Request(RequestId),
    /// It is done already: nothing is to be tested, and the memory is the caller's again.
    Done,
}

/// A request that is under way, as the NIC numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::transport) struct RequestId(pub(in crate::transport) u64);

/// A listener, as the NIC numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::transport) struct ListenerId(pub(in crate::transport) u32);

/// A connection, as the NIC numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::transport) struct ConnectionId(pub(in crate::transport) u32);

/// The number of a message of a connection in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::transport) struct MessageNumber(pub(in crate::transport) u32);

impl MessageNumber {
    /// After it comes 0 again.
    pub(in crate::transport) const MAX: MessageNumber = MessageNumber(u32::MAX >> 1);

    /// The number after so many others, counted from 0.
    pub(in crate::transport) fn of(count: u64) -> MessageNumber {
        let numbers = u64::from(MessageNumber::MAX.0) + 1;
        MessageNumber(u32::try_from(count % numbers).unwrap_or(0))
    }

    /// The same of the second sequence, whose numbers are those behind [`MessageNumber::MAX`].
    pub(in crate::transport) fn straight(count: u64) -> MessageNumber {
        MessageNumber(MessageNumber::MAX.0 + 1 + MessageNumber::of(count).0)
    }

    /// Its place in its sequence, and whether that is the second one.
    pub(in crate::transport) fn place(self) -> (u32, bool) {
        (self.0 & MessageNumber::MAX.0, self.0 > MessageNumber::MAX.0)
    }
}

/// A number that the caller gives a region of memory which it registers: from 0 on, for each endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::transport) struct RegionId(pub(in crate::transport) u32);

/// Memory that a NIC may read and write: a region, or a part of one that was registered with the same NIC before.
///
/// Only the [endpoint] makes such values. It promises that the memory is mapped, and touched by nobody while a request
/// has it, until the NIC was closed. Of memory of a device the address is the device's.
#[derive(Debug, Clone, Copy)]
pub(in crate::transport) struct NicMemory {
    region: RegionId,
    start: NonNull<u8>,
    bytes: usize,
    is_device: bool,
}

impl NicMemory {
    /// The region in which it lies.
    pub(in crate::transport) fn region(self) -> RegionId {
        self.region
    }

    /// Where it begins.
    pub(in crate::transport) fn start(self) -> NonNull<u8> {
        self.start
    }

    /// Its length.
    pub(in crate::transport) fn bytes(self) -> usize {
        self.bytes
    }

    /// Whether it lies on a device: then only the NIC reaches it, and this process does not.
    pub(in crate::transport) fn is_device(self) -> bool {
        self.is_device
    }
}

// SAFETY: the memory is a mapping of the process without thread affinity, which the endpoint keeps.
unsafe impl Send for NicMemory {}

/// Where a NIC listens, in its own terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::transport) struct NicHandle {
    bytes: [u8; MOST_HANDLE_BYTES],
    length: u16,
}

impl NicHandle {
    /// A handle of these bytes.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where they are more than [`MOST_HANDLE_BYTES`].
    pub(in crate::transport) fn new(content: &[u8]) -> Result<NicHandle> {
        let mut bytes = [0; MOST_HANDLE_BYTES];
        let (Some(room), Ok(length)) = (bytes.get_mut(..content.len()), u16::try_from(content.len())) else {
            let told = content.len();
            let message =
                format!("this network tells where it listens in {told} bytes, of which {MOST_HANDLE_BYTES} fit");
            return Err(Error::new(Kind::System, message));
        };
        room.copy_from_slice(content);
        Ok(NicHandle { bytes, length })
    }

    /// Its bytes.
    pub(in crate::transport) fn content(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// The most bytes of a [`NicHandle`]: an address of libfabric's longest kind, and what tells one listener of it from
/// another. NCCL's plug-ins have 128.
pub(in crate::transport) const MOST_HANDLE_BYTES: usize = 288;

/// What a NIC is, as ranks tell each other and users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::transport) struct NicDescription {
    /// The name of its library, as in [`NicLibrary::name`].
    pub(in crate::transport) network: String,
    /// Its device or domain, such as "eth0" or "mlx5_0".
    pub(in crate::transport) device: String,
    /// What drives it, with versions, for people: "tcp of libfabric 2.5".
    pub(in crate::transport) provider: String,
    /// What its library puts on the wire, for programs. Two NICs understand each other exactly where these are equal:
    /// so it names protocol and version where versions do not mix, and leaves them out where they do. Of another
    /// rank's NIC it says too how its rank sends ([`NicDescription::encode`]).
    pub(in crate::transport) protocol: String,
    /// Its rate, where it is known.
    pub(in crate::transport) rate_mbit: Option<u32>,
    /// The NUMA node to which it is attached, where that is known.
    pub(in crate::transport) node: Option<u32>,
}

impl NicDescription {
    /// Why this NIC, of rank `me`, and the other one, of rank `peer`, do not understand each other.
    pub(in crate::transport) fn refusal(&self, me: Rank, (peer, theirs): (Rank, &NicDescription)) -> Option<String> {
        let is_same = self.network == theirs.network && self.protocol == theirs.protocol;
        (!is_same).then(|| {
            format!(
                "rank {me} would send by {self} ({}) and rank {peer} by {theirs} ({}), which do not understand each \
                 other",
                self.protocol, theirs.protocol
            )
        })
    }

    /// What is known of it beside its names, in brackets behind them; nothing where nothing is.
    pub(in crate::transport) fn facts(&self) -> String {
        let rate = self.rate_mbit.map(|rate| format!("{rate} Mbit/s"));
        let node = self.node.map(|node| format!("NUMA node {node}"));
        let facts: Vec<String> = rate.into_iter().chain(node).collect();
        if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) }
    }

    /// As bytes for the other ranks. What all libraries have in common, and what the NIC's promises make of it, is a
    /// part of the protocol that they are told: ends that differ in it would not understand each other's messages.
    pub(in crate::transport) fn encode(&self, promises: &NicPromises, writer: &mut Writer) {
        for text in [&self.network, &self.device, &self.provider] {
            writer.text(wire::cut(text, MOST_TEXT_BYTES));
        }
        let way = if promises.goes_straight() { "straight" } else { "by chunks" };
        let protocol = format!("{way}, wire {WIRE_VERSION}; {}", self.protocol);
        writer.text(wire::cut(&protocol, MOST_PROTOCOL_BYTES));
        writer.u32(self.rate_mbit.unwrap_or(0)).u32(self.node.unwrap_or(u32::MAX));
    }

    /// From the bytes of another rank.
    ///
    /// # Errors
    /// Where they are something else.
    pub(in crate::transport) fn decode(reader: &mut Reader<'_>) -> Result<NicDescription> {
        let mut text = |most| Ok(without_controls(&shown(&reader.text(most)?)));
        let (network, device, provider) = (text(MOST_TEXT_BYTES)?, text(MOST_TEXT_BYTES)?, text(MOST_TEXT_BYTES)?);
        let protocol = text(MOST_PROTOCOL_BYTES)?;
        let rate_mbit = Some(reader.u32()?).filter(|rate| *rate > 0);
        let node = Some(reader.u32()?).filter(|node| *node < u32::MAX);
        Ok(NicDescription { network, device, provider, protocol, rate_mbit, node })
    }
}

impl fmt::Display for NicDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} on {}", self.network, self.provider, self.device)
    }
}

/// The most bytes that a rank tells of each name in its [`NicDescription`]; the rest is cut off.
const MOST_TEXT_BYTES: usize = 64;
/// The same of its protocol, of which a part is told by the library.
const MOST_PROTOCOL_BYTES: usize = MOST_TEXT_BYTES + 32;
/// What rsccl puts into the messages of all NICs: another number wherever headers, memos or their numbers change.
const WIRE_VERSION: u32 = 2;

/// What a NIC promises, for those who choose protocols and sizes. So far the order and the words of a message are not
/// looked at: pumps wait for completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) struct NicPromises {
    /// In which order messages of a connection come.
    pub(in crate::transport) order: MessageOrder,
    /// Bytes of a word that a sender can attach to a message, and that the receiver's completion shows; 0 where there
    /// is none.
    pub(in crate::transport) remote_word_bytes: u8,
    /// Whether it can send from and receive into memory of GPUs.
    pub(in crate::transport) device_memory: DeviceMemoryAccess,
    /// The largest message.
    pub(in crate::transport) most_message_bytes: usize,
    /// Up to which size a send is often [`Posted::Done`] at once.
    pub(in crate::transport) inject_bytes: usize,
    /// Sends of an endpoint that can be under way at once; what is posted beyond them comes back as [`Posted::Later`].
    pub(in crate::transport) most_sends: usize,
    /// The same of receives, of which a NIC may have fewer.
    pub(in crate::transport) most_receives: usize,
    /// Whether memory must be registered.
    pub(in crate::transport) registration: RegistrationNeed,
    /// How it finds the receive of a message.
    pub(in crate::transport) matching: MessageMatching,
}

impl NicPromises {
    /// Connections for which an endpoint has room: half of the requests of each way are theirs, one for each. That one
    /// is enough: a listener waits for a greeting, an end in the handshake or a sender for a memo, and a receiver for a
    /// chunk.
    /// Where messages go straight, a second one of each way is the connection's own, for those.
    pub(in crate::transport) fn most_connections(&self) -> usize {
        self.most_sends.min(self.most_receives) / 2 / self.own_requests()
    }

    /// Sends that each connection has of its own, and as many receives.
    pub(in crate::transport) fn own_requests(&self) -> usize {
        if self.goes_straight() { 2 } else { 1 }
    }

    /// Whether long messages go straight between their places at both ends. Memory of programs is registered with no
    /// NIC: it would have to be told when a program unmaps it.
    pub(in crate::transport) fn goes_straight(&self) -> bool {
        self.matching == MessageMatching::ByNumber
            && self.registration == RegistrationNeed::None
            && self.most_message_bytes >= MOST_STRAIGHT_BYTES
    }
}

/// The most bytes of a message that goes straight.
pub(in crate::transport) const MOST_STRAIGHT_BYTES: usize = 1 << 30;

/// How a NIC finds the receive of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) enum MessageMatching {
    /// The first message takes the first receive.
    InOrder,
    /// By their numbers, in whatever order both were posted: so a receive into its own place can be posted for a
    /// message whose header has come, beside receives that wait for any message.
    ByNumber,
}

/// In which order the messages of a connection are put into the receiver's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) enum MessageOrder {
    /// In any, and the bytes of one message as well: only its completion tells that a message is there.
    Any,
    /// As they were sent, and the bytes of each from first to last: protocols that look for words in memory (LL) work.
    AsSent,
}

/// Whether a NIC reaches memory of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) enum DeviceMemoryAccess {
    /// It does not: data of GPUs go through memory of the host.
    None,
    /// It does, and [`RequestNic::flush`] makes what came visible.
    WithFlush {
        /// Whether that is needed whatever the device promises.
        is_forced: bool,
    },
}

/// Whether a NIC needs memory to be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) enum RegistrationNeed {
    /// Any memory will do.
    None,
    /// All memory that is sent or received must be registered, and pages of it stay pinned.
    All,
}
