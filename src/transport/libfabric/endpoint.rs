//! One communicator's endpoint of libfabric: messages with tags between addresses, and memory.
//!
//! It knows no connections, which [`nic`](super::nic) makes of tags. A provider asks for a thread at a time
//! (`FI_THREAD_DOMAIN`): whoever has the endpoint exclusively.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use crate::error::{Error, Kind, Result};
use crate::sync::primitive::Arc;
use crate::sys::fork::Birthplace;
use crate::sys::pinning;
use crate::transport::libfabric::abi::{
    FI_ADDR_UNSPEC, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_EAGAIN, FI_EAVAIL, FI_ENOMEM, FI_ETRUNC, FI_MR_ALLOCATED,
    FI_MR_ENDPOINT, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_PROTO_XNET, FiCqErrEntry, FiCqTaggedEntry, FiInfo, FiMsgTagged,
    FiPart,
};
use crate::transport::libfabric::contexts::{Contexts, RequestFailure, RequestSlot};
use crate::transport::libfabric::library::{OfiInfos, OfiLibrary, text_at};
use crate::transport::libfabric::objects::{OfiCalls, OfiObject, OfiRefusal, OpenObjects};
use crate::transport::libfabric::providers::OfiEntry;
use crate::transport::net::request_nic::{NicSleep, Posted, RequestId};

/// An open endpoint.
#[derive(Debug)]
pub(super) struct OfiEndpoint {
    library: OfiLibrary,
    /// "net, eth0", for errors.
    name: String,
    memory_mode: c_int,
    birthplace: Birthplace,
    /// `None` once it is closed.
    objects: Option<OpenObjects>,
    calls: OfiCalls,
    /// What the provider has for each request. Kept for ever where the endpoint did not close.
    contexts: Option<Contexts>,
    regions: HashMap<RegionKey, OfiRegion>,
    next_key: u64,
    known: HashMap<Box<[u8]>, OfiAddress>,
    peers: Vec<OfiPeer>,
    /// Whether a message may be done that lies in a buffer of the provider's own.
    keeps_messages: bool,
    /// Which sends tell that all before them has arrived: the peer, and how much that is.
    fences: HashMap<RequestSlot, (OfiAddress, u64)>,
    descriptor: Option<c_int>,
    completions: Box<[FiCqTaggedEntry]>,
    /// The entry that everything was opened by.
    _infos: Arc<OfiInfos>,
}

// SAFETY: see the module: objects of libfabric have no thread of their own, and the pointers lead to what is kept here.
unsafe impl Send for OfiEndpoint {}

/// How this endpoint knows registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum RegionKey {
    /// The caller's, by its number.
    Callers(u32),
    /// For greetings.
    Own(u32),
}

#[derive(Debug)]
struct OfiRegion {
    object: OfiObject,
    /// What requests name it by.
    descriptor: *mut c_void,
}

/// A peer's address, as the endpoint numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OfiAddress(usize);

/// What the endpoint knows of a peer.
#[derive(Debug, Clone, Copy)]
struct OfiPeer {
    /// Its number in the provider's table.
    number: u64,
    /// Bytes that were posted for it, and of how many it is known that they have arrived.
    posted: u64,
    arrived: u64,
}

/// Memory of a request, and the region in which it lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfiMemory {
    pub(super) region: RegionKey,
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
}

/// A message as the provider is given it.
#[derive(Debug, Clone, Copy)]
struct OfiMessage {
    tag: u64,
    start: *mut c_void,
    bytes: usize,
    descriptor: *mut c_void,
    context: *mut c_void,
}

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Toward {
    Peer(OfiAddress),
    /// From any peer: the tag alone decides.
    Me,
}

impl OfiEndpoint {
    /// Opens an endpoint for the entry at a place of libfabric's list.
    ///
    /// # Errors
    /// [`Kind::System`] with the call that was refused, and what to do about it where that is known.
    pub(super) fn open(infos: &Arc<OfiInfos>, place: usize, entry: &OfiEntry) -> Result<OfiEndpoint> {
        let library = infos.library;
        let info: NonNull<FiInfo> =
            infos.get(place).ok_or_else(|| Error::internal("libfabric's list has no such entry"))?;
        let name = format!("{}, {}", entry.provider, entry.domain);
        let [sends, receives] = entry.most_requests();
        // A request has its place until somebody has seen it done.
        let requests = (sends + receives).max(LEAST_PLACES);
        let opened = infos.open(|| OpenObjects::open(library, info, requests as usize * 2));
        let (objects, calls, descriptor) = opened.map_err(|refused| described(library, &name, refused))?;
        // SAFETY: numbers and pointers, for which zero is a value.
        let completion: FiCqTaggedEntry = unsafe { std::mem::zeroed() };
        Ok(OfiEndpoint {
            library,
            name,
            memory_mode: entry.memory,
            birthplace: Birthplace::here(),
            objects: Some(objects),
            calls,
            contexts: Some(Contexts::new(requests)),
            regions: HashMap::new(),
            next_key: 1,
            known: HashMap::new(),
            peers: Vec::new(),
            keeps_messages: entry.protocol == FI_PROTO_XNET,
            fences: HashMap::new(),
            descriptor,
            completions: vec![completion; COMPLETIONS].into_boxed_slice(),
            _infos: Arc::clone(infos),
        })
    }

    /// Its own address, at most [`MOST_ADDRESS_BYTES`](super::library::MOST_ADDRESS_BYTES) long.
    ///
    /// # Errors
    /// libfabric's.
    pub(super) fn address(&self) -> Result<Vec<u8>> {
        self.objects()?.address().map_err(|refused| self.refused(refused))
    }

    /// Whether memory has to be registered before it is sent or received.
    pub(super) fn needs_registration(&self) -> bool {
        self.memory_mode & FI_MR_LOCAL != 0
    }

    /// Registers memory, if the provider asks for it.
    ///
    /// # Errors
    /// libfabric's, with the limit of locked memory where that may be the reason.
    ///
    /// # Safety
    /// The memory stays mapped until the endpoint is closed.
    pub(super) unsafe fn register(&mut self, memory: OfiMemory) -> Result<()> {
        if !self.needs_registration() {
            return Ok(());
        }
        let objects = self.objects()?;
        if self.memory_mode & FI_MR_ALLOCATED != 0 {
            pinning::populate(memory.start, memory.bytes);
        }
        let key = if self.memory_mode & FI_MR_PROV_KEY == 0 { self.next_key } else { 0 };
        let is_bound = self.memory_mode & FI_MR_ENDPOINT != 0;
        // SAFETY: the caller keeps the memory.
        let made = unsafe { objects.register(&self.calls, (memory.start, memory.bytes), (key, is_bound)) };
        let (object, descriptor) = made.map_err(|refused| self.refused(refused))?;
        self.next_key += 1;
        self.regions.insert(memory.region, OfiRegion { object, descriptor });
        Ok(())
    }

    /// Enters a peer's address.
    ///
    /// # Errors
    /// [`Kind::Remote`] where the provider takes none of the address, and what libfabric says else.
    pub(super) fn enter(&mut self, address: &[u8]) -> Result<OfiAddress> {
        if let Some(known) = self.known.get(address) {
            return Ok(*known);
        }
        let objects = self.objects()?;
        let (vector, mut number) = (objects.addresses.raw(), 0);
        // A provider reads as many bytes as its addresses have, whatever came.
        let mut whole = address.to_vec();
        whole.resize(super::library::MOST_ADDRESS_BYTES.max(address.len()), 0);
        // SAFETY: one address, with more bytes than any provider's; the call is over when it returns, since no queue
        // for events is bound.
        let count =
            unsafe { (self.calls.addresses.insert)(vector, whole.as_ptr().cast(), 1, &raw mut number, 0, null_mut()) };
        if count < 0 {
            return Err(self.refused(OfiRefusal { call: "fi_av_insert", code: count }));
        }
        if count != 1 {
            let length = address.len();
            return Err(self.failed(Kind::Remote, &format!("fi_av_insert takes no address of these {length} bytes")));
        }
        let place = OfiAddress(self.peers.len());
        self.peers.push(OfiPeer { number, posted: 0, arrived: 0 });
        self.known.insert(address.into(), place);
        Ok(place)
    }

    /// Posts a message, or a receive for one.
    ///
    /// # Errors
    /// libfabric's; [`Kind::InvalidUsage`] in a forked child.
    ///
    /// # Safety
    /// The memory stays, and nobody else touches it, until the request is done or the endpoint is closed.
    pub(super) unsafe fn post(&mut self, toward: Toward, tag: u64, memory: OfiMemory) -> Result<Posted> {
        self.objects()?;
        let descriptor = match self.regions.get(&memory.region) {
            Some(region) => region.descriptor,
            None if self.needs_registration() => {
                return Err(Error::internal(format!("{}: memory was not registered", self.name)));
            }
            None => null_mut(),
        };
        let Some(contexts) = &mut self.contexts else { return Err(self.gone()) };
        let Some((slot, context)) = contexts.take() else { return Ok(Posted::Later) };
        let message = OfiMessage { tag, start: memory.start.as_ptr().cast(), bytes: memory.bytes, descriptor, context };
        let (call, code) = match toward {
            // SAFETY: the caller keeps the memory, and `contexts` the request's own.
            Toward::Peer(address) => ("fi_tsend", unsafe { self.send(address, slot, &message) }?),
            // SAFETY: as above.
            Toward::Me => ("fi_trecv", unsafe { self.receive(&message) }?),
        };
        let Some(contexts) = &mut self.contexts else { return Err(self.gone()) };
        let code = i32::try_from(code).unwrap_or(i32::MIN);
        if code == 0 {
            let sent = matches!(toward, Toward::Peer(_)).then_some(memory.bytes);
            return Ok(Posted::Request(contexts.begin(slot, sent)));
        }
        contexts.give_back(slot);
        if code == -FI_EAGAIN { Ok(Posted::Later) } else { Err(self.refused(OfiRefusal { call, code })) }
    }

    /// # Safety
    /// As [`OfiEndpoint::post`], also of the memory of the request.
    unsafe fn receive(&self, message: &OfiMessage) -> Result<isize> {
        let OfiMessage { tag, start, bytes, descriptor, context } = *message;
        let (endpoint, receive) = (self.objects()?.endpoint.raw(), self.calls.tagged.recv);
        // SAFETY: an open endpoint; memory that the caller keeps.
        Ok(unsafe { receive(endpoint, start, bytes, descriptor, FI_ADDR_UNSPEC, tag, 0, context) })
    }

    /// # Safety
    /// As [`OfiEndpoint::post`], also of the memory of the request.
    unsafe fn send(&mut self, address: OfiAddress, slot: RequestSlot, message: &OfiMessage) -> Result<isize> {
        let OfiMessage { tag, start, bytes, mut descriptor, context } = *message;
        let (endpoint, tagged) = (self.objects()?.endpoint.raw(), self.calls.tagged);
        let Some(peer) = self.peers.get_mut(address.0) else { return Err(self.gone()) };
        let posted = peer.posted + bytes as u64 + MESSAGE_COST;
        let is_fence = self.keeps_messages && posted - peer.arrived > SURELY_TAKEN;
        let code = if is_fence {
            let part = FiPart { iov_base: start, iov_len: bytes };
            let (msg_iov, desc, iov_count) = (&raw const part, &raw mut descriptor, 1);
            let message = FiMsgTagged { msg_iov, desc, iov_count, addr: peer.number, tag, ignore: 0, context, data: 0 };
            // SAFETY: as below; the provider copies what describes the message.
            unsafe { (tagged.sendmsg)(endpoint, &raw const message, FI_COMPLETION | FI_DELIVERY_COMPLETE) }
        } else {
            // SAFETY: an open endpoint, a number of its table, memory that the caller keeps.
            unsafe { (tagged.send)(endpoint, start, bytes, descriptor, peer.number, tag, context) }
        };
        if code == 0 {
            peer.posted = posted;
            self.fences.extend(is_fence.then_some((slot, (address, posted))));
        }
        Ok(code)
    }

    /// Lets the provider move what it can, and takes note of requests that are done.
    ///
    /// # Errors
    /// Of the queue, and of a request that is none of ours.
    pub(super) fn progress(&mut self) -> Result<()> {
        let queue = self.objects()?.queue.raw();
        loop {
            let (place, most) = (self.completions.as_mut_ptr(), self.completions.len());
            // SAFETY: an open queue, and room for so many entries of the format with which it was opened.
            let count = unsafe { (self.calls.queue.read)(queue, place.cast(), most) };
            if count == -(FI_EAVAIL as isize) {
                if self.take_error(queue)? {
                    continue;
                }
                // A later call asks again, as waits look at aborts and deadlines between calls.
                return Ok(());
            }
            if count == 0 || count == -(FI_EAGAIN as isize) {
                return Ok(());
            }
            let Some(count) = usize::try_from(count).ok().filter(|count| *count <= most) else {
                let code = i32::try_from(count).unwrap_or(i32::MIN);
                return Err(self.refused(OfiRefusal { call: "fi_cq_read", code }));
            };
            for place in 0..count {
                let FiCqTaggedEntry { op_context, len, .. } = self.completions[place];
                self.end(op_context, Ok(len))?;
            }
            if count < most {
                return Ok(());
            }
        }
    }

    fn end(&mut self, context: *mut c_void, outcome: Result<usize, RequestFailure>) -> Result<()> {
        let Some(contexts) = &mut self.contexts else { return Err(self.gone()) };
        let failure = outcome.as_ref().err().cloned();
        if let Some(slot) = contexts.end(context, outcome) {
            if let Some((address, arrived)) = self.fences.remove(&slot).filter(|_| failure.is_none())
                && let Some(peer) = self.peers.get_mut(address.0)
            {
                peer.arrived = peer.arrived.max(arrived);
            }
            return Ok(());
        }
        let unknown = || "it has ended a request that is not under way".to_owned();
        Err(self.failed(Kind::System, &failure.map_or_else(unknown, |failure| failure.why)))
    }

    /// Takes a request that has failed from the queue; false where the queue tells none.
    fn take_error(&mut self, queue: *mut super::abi::FiFid) -> Result<bool> {
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut entry: FiCqErrEntry = unsafe { std::mem::zeroed() };
        // SAFETY: an entry of the newest size; older releases write less of it.
        let count = unsafe { (self.calls.queue.readerr)(queue, &raw mut entry, 0) };
        match i32::try_from(count).unwrap_or(i32::MIN) {
            code if code == 0 || code == -FI_EAGAIN => return Ok(false),
            code if code < 0 => return Err(self.refused(OfiRefusal { call: "fi_cq_readerr", code })),
            _ => {}
        }
        let (kind, why) = if entry.err == FI_ETRUNC {
            let (more, room) = (entry.olen, entry.len);
            (Kind::Remote, format!("a message is longer than its receive of {room} bytes, by {more}"))
        } else {
            let text = self.calls.queue.strerror.and_then(|words| {
                // SAFETY: the queue's own code; no place for the text, so the provider has one.
                text_at(unsafe { words(queue, entry.prov_errno, entry.err_data, null_mut(), 0) })
            });
            let own = text.filter(|text| !text.is_empty()).map_or_else(String::new, |text| format!(": {text}"));
            (Kind::System, format!("{}{own}", self.library.words(entry.err)))
        };
        self.end(entry.op_context, Err(RequestFailure { kind, why })).map(|()| true)
    }

    /// What has become of a request, as far as [`OfiEndpoint::progress`] has seen; `None` while it is under way.
    ///
    /// # Errors
    /// Of a request that has failed; [`Kind::Remote`] where the message was longer than its receive.
    pub(super) fn test(&mut self, request: RequestId) -> Result<Option<usize>> {
        let Some(contexts) = &mut self.contexts else { return Err(self.gone()) };
        match contexts.test(request) {
            None => Ok(None),
            Some(Ok(bytes)) => Ok(Some(bytes)),
            Some(Err(RequestFailure { kind, why })) => Err(self.failed(kind, &why)),
        }
    }

    /// What a thread may sleep on.
    ///
    /// # Errors
    /// Of the queue.
    pub(super) fn sleep(&mut self) -> Result<NicSleep<'_>> {
        let objects = self.objects()?;
        let (Some(descriptor), Some(trywait)) = (self.descriptor, self.calls.fabric.trywait) else {
            return Ok(NicSleep::PollMe);
        };
        let mut queue = objects.queue.raw();
        // SAFETY: an open fabric and its queue, which was opened with a descriptor.
        let code = unsafe { trywait(objects.fabric.raw(), &raw mut queue, 1) };
        match code.wrapping_neg() {
            // SAFETY: the queue's descriptor, open as long as the queue is: the endpoint is borrowed meanwhile.
            0 => Ok(NicSleep::On(unsafe { BorrowedFd::borrow_raw(descriptor) })),
            FI_EAGAIN => Ok(NicSleep::Ready),
            _ => Err(self.refused(OfiRefusal { call: "fi_trywait", code })),
        }
    }

    /// Closes everything. After success the provider touches no memory of requests or regions any more.
    ///
    /// # Errors
    /// Where the endpoint does not close: then memory of requests is never given back.
    pub(super) fn close(&mut self) -> Result<()> {
        let Some(objects) = self.objects.take() else { return Ok(()) };
        let mut regions: Vec<OfiRegion> = self.regions.drain().map(|(_, region)| region).collect();
        if !self.birthplace.is_here() {
            // They are the parent's, which goes on with them: memory and descriptors of this process are copies.
            std::mem::forget(self.contexts.take());
            return Ok(());
        }
        let OpenObjects { endpoint, queue, addresses, domain, fabric } = objects;
        // An endpoint does not close while regions are bound to it; else regions stay until nothing uses them.
        let mut first = Ok(());
        if self.memory_mode & FI_MR_ENDPOINT != 0 {
            first = close_all(std::mem::take(&mut regions));
        }
        if let Err(refused) = endpoint.close("fi_close of the endpoint") {
            std::mem::forget(self.contexts.take());
            let first = first.err().unwrap_or(refused);
            return Err(self.refused(first));
        }
        self.contexts = None;
        // Nothing uses the rest any more. What does not close is lost, and harms nobody.
        let _lost = close_all(regions);
        for object in [queue, addresses, domain, fabric] {
            let _lost = object.close("fi_close");
        }
        Ok(())
    }

    /// What is open.
    ///
    /// # Errors
    /// In a forked child: the provider's connections, queues and registered memory are the parent's.
    fn objects(&self) -> Result<&OpenObjects> {
        if !self.birthplace.is_here() {
            return Err(Error::invalid_usage(format!(
                "{}: this process was forked by the one that has opened it; make a communicator of its own here, which \
                 uses sockets",
                self.name
            )));
        }
        self.objects.as_ref().ok_or_else(|| self.gone())
    }

    fn gone(&self) -> Error {
        Error::internal(format!("{} is closed", self.name))
    }

    fn failed(&self, kind: Kind, why: &str) -> Error {
        Error::new(kind, format!("libfabric ({}): {why}", self.name))
    }

    fn refused(&self, refused: OfiRefusal) -> Error {
        described(self.library, &self.name, refused)
    }
}

impl Drop for OfiEndpoint {
    fn drop(&mut self) {
        // Nobody is left to tell; what could not be closed keeps its memory.
        let _lost = self.close();
    }
}

impl OfiEntry {
    /// So many sends an endpoint has under way, and so many receives.
    pub(super) fn most_requests(&self) -> [u32; 2] {
        if self.protocol == FI_PROTO_XNET {
            // It says 256, and takes as many as there is memory for.
            return [TCP_REQUESTS / 2; 2];
        }
        self.requests.map(|most| u32::try_from(most).unwrap_or(u32::MAX).min(MOST_REQUESTS / 2))
    }
}

fn close_all(regions: Vec<OfiRegion>) -> Result<(), OfiRefusal> {
    let mut first = Ok(());
    for region in regions {
        first = first.and(region.object.close("fi_close of a region"));
    }
    first
}

/// A refusal as an error, with what to do about it.
fn described(library: OfiLibrary, name: &str, refused: OfiRefusal) -> Error {
    let OfiRefusal { call, code } = refused;
    if code == 0 {
        return Error::new(Kind::System, format!("libfabric ({name}): {call} succeeds and yields nothing"));
    }
    let error = Error::new(Kind::System, format!("libfabric ({name}): {call}: {}", library.words(code)));
    let advice = match (call, code.wrapping_neg()) {
        // A provider says the first where memory cannot be locked, or the system's own code.
        (_, FI_ENOMEM | EPERM | FI_EAGAIN) if LOCKING_CALLS.contains(&call) => pinning::lock_remedy(),
        ("fi_domain", EPERM | EACCES) => {
            let device = name.rsplit(", ").next().unwrap_or(name);
            Some(format!("it may be that this user may not open the device file of {device}, in /dev"))
        }
        _ => None,
    };
    match advice {
        Some(advice) => error.advising(&advice),
        None => error,
    }
}

/// The calls that have memory locked, of the caller or of the provider's own.
const LOCKING_CALLS: [&str; 6] = ["fi_mr_reg", "fi_mr_bind", "fi_mr_enable", "fi_cq_open", "fi_endpoint", "fi_enable"];

/// Native TCP calls a message done that lies in its own buffer of 9,000 bytes, where the socket has no room: it is lost
/// if the endpoint closes then, and comes late if nobody calls the provider. So many bytes a socket takes in any case,
/// counted from the last message of which it is known that the peer has it. What goes beyond is done when it has
/// arrived.
const SURELY_TAKEN: u64 = 32 << 10;
/// What a message costs a socket beside its bytes.
const MESSAGE_COST: u64 = 512;
/// What `mlock` says to a process that may lock nothing.
const EPERM: i32 = 1;
/// What `open` says to a user without rights.
const EACCES: i32 = 13;
/// So many completions are taken at a time.
const COMPLETIONS: usize = 16;
/// How many requests an endpoint has at least places for: 64 bytes each.
const LEAST_PLACES: u32 = 64;
/// How many it has under way at most, whatever the provider says.
const MOST_REQUESTS: u32 = 8192;
/// The same of native TCP.
const TCP_REQUESTS: u32 = 4096;
