//! A port of verbs behind the contract of request-based NICs: connections out of queue pairs.
//!
//! A message is a *send with a word* to a receive that the peer has posted, and the word is its number. So peers need
//! no key to this process's memory, nor its addresses, and can write nowhere but into receives that are posted. NCCL
//! writes to the peer's memory (RDMA WRITE), for which the peer has to tell address and key of each receive by a
//! message of its own (its ring of clear-to-send). Here the caller's credits say already that receives are posted,
//! and in which order: a ring beside them would be one more message for each chunk, for nothing.
//!
//! Message n takes queue pair n modulo their number, at both ends, so each pair matches in order what it carries. A
//! message whose receive is not posted yet, a memo, is sent again by the device until it is.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sys::{clock, interfaces, random};
use crate::transport::net::request_nic::{
    ConnectionId, ListenerId, MessageNumber, NicHandle, NicMemory, NicSleep, Posted, RequestId, RequestNic,
};
use crate::transport::verbs::abi::{IBV_WC_RETRY_EXC_ERR, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, IBV_WC_WR_FLUSH_ERR, IbvWc};
use crate::transport::verbs::device::{PAIR_REQUESTS, PairId, PairPosted, PairState, PortFacts, VerbsDevice};
use crate::transport::verbs::joining::JoiningPairs;
use crate::transport::verbs::ports;
use crate::transport::verbs::requests::{VerbsFailure, VerbsRequest, VerbsRequests};
use crate::transport::verbs::set_up::{
    SetUpSocket, VerbsDoor, VerbsEnd, VerbsGreeting, VerbsHandle, called_at, first_packet,
};
use crate::transport::verbs::settings::VerbsSettings;
use crate::transport::verbs::verdicts::{VerbsEvent, fault_of};

/// A communicator's endpoint on a port.
#[derive(Debug)]
pub(super) struct VerbsNic {
    device: VerbsDevice,
    settings: VerbsSettings,
    interface: IpAddr,
    requests: VerbsRequests,
    connections: Vec<VerbsConnection>,
    /// Opened with the first listener.
    door: Option<VerbsDoor>,
    listeners: HashMap<u32, VerbsListener>,
    next_listener: u32,
    dials: HashMap<NicHandle, Dial>,
    completions: Box<[IbvWc]>,
    /// Whether the door was looked at since the caller last let the NIC move.
    has_served: bool,
    /// Why nothing on the device works any more.
    lost: Option<&'static str>,
}

#[derive(Debug)]
struct VerbsConnection {
    pairs: Vec<ConnectedPair>,
    /// The first failure of one of its requests.
    broken: Option<VerbsFailure>,
}

#[derive(Debug)]
struct ConnectedPair {
    id: PairId,
    /// Requests under way: sends, and receives.
    sends: u32,
    receives: u32,
}

#[derive(Debug)]
struct VerbsListener {
    nonce: u64,
    /// The peer that has come.
    guest: Option<Box<VerbsGuest>>,
}

/// A peer that has come for a listener.
#[derive(Debug)]
struct VerbsGuest {
    socket: SetUpSocket,
    greeting: VerbsGreeting,
    /// The queue pairs for it.
    joining: Option<JoiningPairs>,
    is_answered: bool,
}

/// A connection that this end opens.
#[derive(Debug)]
struct Dial {
    handle: VerbsHandle,
    socket: SetUpSocket,
    joining: JoiningPairs,
    /// What the peer has answered.
    theirs: Option<VerbsEnd>,
    is_joined: bool,
    /// When the caller last asked for it.
    asked: Instant,
}

impl VerbsNic {
    pub(super) fn new(device: VerbsDevice, settings: VerbsSettings, interface: IpAddr, requests: u32) -> VerbsNic {
        VerbsNic {
            device,
            settings,
            interface,
            requests: VerbsRequests::new(requests),
            connections: Vec::new(),
            door: None,
            listeners: HashMap::new(),
            next_listener: 0,
            dials: HashMap::new(),
            completions: vec![IbvWc::default(); COMPLETIONS].into_boxed_slice(),
            has_served: false,
            lost: None,
        }
    }

    /// Makes so many queue pairs, and what a peer is told of them.
    fn open_end(&mut self, count: usize) -> Result<JoiningPairs> {
        let mut joining = JoiningPairs::new(self.describe_end()?, Vec::new());
        for _ in 0..count {
            let made = self.device.open_pair();
            let numbered = made.and_then(|pair| self.device.pair_number(pair).map(|number| (pair, number)));
            match numbered {
                Ok((pair, number)) => {
                    joining.pairs.push(pair);
                    joining.mine.pairs.push(number);
                }
                Err(error) => {
                    self.discard(joining.pairs);
                    return Err(error);
                }
            }
        }
        Ok(joining)
    }

    /// This end, without its queue pairs.
    fn describe_end(&self) -> Result<VerbsEnd> {
        let PortFacts { gid, lid, mtu, needs_route, .. } = self.device.facts;
        Ok(VerbsEnd { gid: gid.gid, lid, mtu, needs_route, packet: first_packet()?, pairs: Vec::new() })
    }

    /// Closes queue pairs of which no connection was made.
    fn discard(&mut self, pairs: Vec<PairId>) {
        for pair in pairs {
            if let Err(error) = self.device.close_pair(pair) {
                log::trace!(Net, "a queue pair stays: {}", error.message());
            }
        }
    }

    /// Tells queue pairs their peers; false is "later".
    ///
    /// # Errors
    /// Where a peer's port is out of reach, or its numbers are those of no queue pair.
    fn join(&mut self, joining: &mut JoiningPairs, theirs: &VerbsEnd) -> Result<bool> {
        if !joining.search.is_due(clock::now()) {
            return Ok(false);
        }
        while let Some((pair, number)) = joining.pairs.get(joining.joined).zip(theirs.pairs.get(joining.joined)) {
            match self.device.join_pair(*pair, (&joining.mine, theirs), *number)? {
                PairState::Joined => joining.joined += 1,
                PairState::Unanswered(error) => {
                    if !joining.search.has_begun() {
                        log::info!(Net, "NET/IB : tried again for a while: {}", error.message());
                    }
                    return match joining.search.unanswered(clock::now()) {
                        None => Ok(false),
                        Some(passed) => Err(error.advising(&format!("it was tried for {} s", passed.as_secs()))),
                    };
                }
            }
        }
        Ok(true)
    }

    fn connected(&mut self, pairs: Vec<PairId>) -> Result<ConnectionId> {
        let id = u32::try_from(self.connections.len()).map_err(|_| Error::internal("too many connections"))?;
        let pairs = pairs.into_iter().map(|id| ConnectedPair { id, sends: 0, receives: 0 }).collect();
        self.connections.push(VerbsConnection { pairs, broken: None });
        Ok(ConnectionId(id))
    }

    fn dial(&mut self, to: &NicHandle) -> Result<Dial> {
        self.forget_abandoned();
        let handle = VerbsHandle::decode(to)?;
        let mut socket = SetUpSocket::connect(called_at(handle.address, self.interface, &interfaces::list()?))?;
        let joining = self.open_end(usize::from(self.settings.pairs.max(1)))?;
        socket.say(&VerbsGreeting { handle, end: joining.mine.clone() });
        Ok(Dial { handle, socket, joining, theirs: None, is_joined: false, asked: clock::now() })
    }

    /// Ends what this end has begun to open, and what nobody asks for any more.
    fn forget_abandoned(&mut self) {
        let now = clock::now();
        let is_abandoned = |dial: &Dial| now.saturating_duration_since(dial.asked) >= ABANDONED_TIME;
        let abandoned: Vec<Dial> = self.dials.extract_if(|_, dial| is_abandoned(dial)).map(|(_, dial)| dial).collect();
        for dial in abandoned {
            self.discard(dial.joining.pairs);
        }
    }

    /// Moves a connection on that this end opens; true once it stands.
    fn move_dial(&mut self, dial: &mut Dial) -> Result<bool> {
        if !dial.socket.flush()? {
            return Ok(false);
        }
        if !dial.is_joined {
            let theirs = match dial.theirs.take() {
                Some(theirs) => theirs,
                None => match dial.socket.greeting()? {
                    None => return Ok(false),
                    Some(greeting) => self.answered(dial, greeting)?,
                },
            };
            dial.is_joined = self.join(&mut dial.joining, &theirs)?;
            dial.theirs = Some(theirs);
            if !dial.is_joined {
                return Ok(false);
            }
            dial.socket.say_ready();
        }
        dial.socket.flush()
    }

    /// The peer's end, by its answer to a connection that this end opens.
    fn answered(&mut self, dial: &mut Dial, greeting: VerbsGreeting) -> Result<VerbsEnd> {
        let (count, most) = (greeting.end.pairs.len(), dial.joining.pairs.len());
        if greeting.handle != dial.handle || count > most {
            return Err(Error::new(Kind::Remote, "a peer answers with the queue pairs of another connection"));
        }
        // The peer takes fewer where it is set so.
        let surplus = dial.joining.pairs.split_off(count);
        self.discard(surplus);
        Ok(greeting.end)
    }

    /// Lets those in who have come for listeners.
    fn serve(&mut self) -> Result<()> {
        let Some(door) = &mut self.door else { return Ok(()) };
        for (socket, greeting) in door.guests()? {
            let VerbsHandle { listener, nonce, .. } = greeting.handle;
            let Some(listener) = self.listeners.get_mut(&listener).filter(|one| one.nonce == nonce) else {
                log::trace!(Net, "a socket of set-up came for no listener of this endpoint");
                continue;
            };
            // Whoever knows the handle is the peer, which may have given its first try up.
            let guest = VerbsGuest { socket, greeting, joining: None, is_answered: false };
            let former = listener.guest.replace(Box::new(guest)).and_then(|guest| guest.joining);
            self.discard(former.map(|joining| joining.pairs).unwrap_or_default());
        }
        Ok(())
    }

    /// Moves a connection on for which a peer has come; true once it stands.
    fn move_guest(&mut self, guest: &mut VerbsGuest) -> Result<bool> {
        let VerbsGuest { socket, greeting, joining, is_answered } = guest;
        if !*is_answered {
            let joining = match joining {
                Some(joining) => joining,
                None => {
                    let count = greeting.end.pairs.len().min(usize::from(self.settings.pairs.max(1)));
                    joining.insert(self.open_end(count)?)
                }
            };
            if !self.join(joining, &greeting.end)? {
                return Ok(false);
            }
            socket.say(&VerbsGreeting { handle: greeting.handle, end: joining.mine.clone() });
            *is_answered = true;
        }
        Ok(socket.flush()? && socket.is_ready()?)
    }

    /// Sends a peer away with which no connection can be made, and tells it why.
    fn refuse(&mut self, mut guest: VerbsGuest, error: &Error) -> Error {
        guest.socket.say_refusal(guest.greeting.handle, error.message());
        if let Err(error) = guest.socket.flush() {
            log::trace!(Net, "a peer does not hear that it is refused: {}", error.message());
        }
        self.discard(guest.joining.map(|joining| joining.pairs).unwrap_or_default());
        Error::new(Kind::Remote, error.message().to_owned())
    }

    /// A listener is needed no more, and perhaps the door: others of the host may need its port.
    fn forget_listener(&mut self, listener: ListenerId) {
        self.listeners.remove(&listener.0);
        if self.listeners.is_empty() {
            self.door = None;
        }
    }

    fn connection(&mut self, id: ConnectionId) -> Result<&mut VerbsConnection> {
        let connection = usize::try_from(id.0).ok().and_then(|place| self.connections.get_mut(place));
        let connection = connection.ok_or_else(|| Error::internal("this NIC has no such connection"))?;
        match &connection.broken {
            Some(failure) => Err(Error::new(failure.kind, failure.why.clone())),
            None => Ok(connection),
        }
    }

    /// Posts a message or a receive. One that has failed has told that by its request: a peer that has sent all that
    /// it had to may be gone while this rank still tells it something, so a further receive is no error, and waits.
    fn post(&mut self, id: ConnectionId, number: MessageNumber, memory: NicMemory, is_send: bool) -> Result<Posted> {
        let connection = match self.connection(id) {
            Err(error) if !is_send && error.kind() == Kind::Remote => return Ok(Posted::Later),
            Err(error) => return Err(error),
            Ok(connection) => connection,
        };
        let pair = place_of(number, connection.pairs.len());
        let ConnectedPair { id: pair_id, sends, receives } = connection.pairs[pair];
        if (if is_send { sends } else { receives }) >= PAIR_REQUESTS {
            return Ok(Posted::Later);
        }
        let sent = is_send.then_some(memory.bytes());
        let Some(request) = self.requests.begin(VerbsRequest { connection: id.0, pair, number, sent }) else {
            return Ok(Posted::Later);
        };
        let posted = if is_send {
            self.device.send(pair_id, (request.0, number.0), memory)
        } else {
            self.device.receive(pair_id, request.0, memory)
        };
        let untold = match posted {
            Ok(PairPosted::Taken) => None,
            Ok(PairPosted::Untold(error)) => Some(error),
            Ok(PairPosted::Later) => {
                self.requests.take_back(request);
                return Ok(Posted::Later);
            }
            Err(error) => {
                self.requests.take_back(request);
                return Err(error);
            }
        };
        let pair = &mut self.connection(id)?.pairs[pair];
        *(if is_send { &mut pair.sends } else { &mut pair.receives }) += 1;
        if let Some(error) = untold {
            // Its completion comes as that of a request which was flushed.
            self.fail(id.0, VerbsFailure { kind: error.kind(), why: error.message().to_owned() });
        }
        Ok(Posted::Request(request))
    }

    /// Takes note of what is done; whether there was any.
    fn settle(&mut self) -> Result<bool> {
        let mut has_moved = false;
        loop {
            let count = self.device.poll(&mut self.completions)?;
            for place in 0..count {
                let completion = self.completions[place];
                self.end(&completion)?;
            }
            has_moved |= count > 0;
            if count < self.completions.len() {
                return Ok(has_moved);
            }
        }
    }

    fn end(&mut self, completion: &IbvWc) -> Result<()> {
        let id = RequestId(completion.wr_id);
        let Some(request) = self.requests.under_way(id) else {
            let name = self.device.name();
            return Err(Error::new(
                Kind::System,
                format!("verbs ({name}): it has ended a request that is not under way"),
            ));
        };
        let outcome = self.outcome(completion, &request);
        let connection = usize::try_from(request.connection).ok().and_then(|place| self.connections.get_mut(place));
        let has_peer_gone =
            connection.as_ref().is_some_and(|one| one.broken.as_ref().is_some_and(VerbsFailure::is_peers));
        if completion.status == IBV_WC_WR_FLUSH_ERR && has_peer_gone && request.sent.is_none() {
            // Nothing comes any more, and that alone is no failure: the peer may have sent all that it had to.
            return Ok(());
        }
        if let Some(pair) = connection.and_then(|connection| connection.pairs.get_mut(request.pair)) {
            let count = if request.sent.is_some() { &mut pair.sends } else { &mut pair.receives };
            *count = count.saturating_sub(1);
        }
        if let Err(failure) = &outcome {
            self.fail(request.connection, failure.clone());
            self.hear_events();
        }
        self.requests.end(id, outcome);
        Ok(())
    }

    /// The first failure of a connection ends all its queue pairs. Otherwise those that are well would never end what
    /// they have under way: its peer sends no more.
    fn fail(&mut self, connection: u32, failure: VerbsFailure) {
        let place = usize::try_from(connection).unwrap_or(usize::MAX);
        let Some(connection) = self.connections.get_mut(place).filter(|one| one.broken.is_none()) else { return };
        connection.broken = Some(failure);
        for pair in &connection.pairs {
            if let Err(error) = self.device.fail_pair(pair.id) {
                log::trace!(Net, "a queue pair of a connection that has failed goes on: {}", error.message());
            }
        }
    }

    fn outcome(&self, completion: &IbvWc, request: &VerbsRequest) -> Result<usize, VerbsFailure> {
        let &IbvWc { status, byte_len, wc_flags, imm_data, .. } = completion;
        let name = self.device.name();
        if status == IBV_WC_SUCCESS {
            let word = u32::from_be(imm_data);
            return match request.sent {
                Some(bytes) => Ok(bytes),
                None if wc_flags & IBV_WC_WITH_IMM != 0 && word == request.number.0 => {
                    Ok(usize::try_from(byte_len).unwrap_or(usize::MAX))
                }
                None => {
                    let why = format!("verbs ({name}): message {word} came in place of {}", request.number.0);
                    Err(VerbsFailure { kind: Kind::Remote, why })
                }
            };
        }
        let broken = self.connections.get(request.connection as usize).and_then(|one| one.broken.clone());
        if let (IBV_WC_WR_FLUSH_ERR, Some(first)) = (status, broken) {
            return Err(first);
        }
        let words = self.device.words_of_status(status);
        let VerbsSettings { timeout, retries, .. } = self.settings;
        let down = self.device.port_state().filter(|state| !ports::is_active(state));
        let kind = fault_of(status, (request.sent.is_some(), down.is_none()));
        let remedy = match down {
            Some(state) => format!(": this rank's own port is {}", ports::shown_state(&state)),
            None if status == IBV_WC_RETRY_EXC_ERR => format!(
                ": the peer's port does not answer (NCCL_IB_TIMEOUT={timeout}, NCCL_IB_RETRY_CNT={retries}): its \
                 process has ended, a link is down, or the two ports do not reach each other"
            ),
            None => String::new(),
        };
        Err(VerbsFailure { kind, why: format!("verbs ({name}): {words}{remedy}") })
    }

    /// Takes note of what has become of the port, of the device, and of queue pairs.
    fn hear_events(&mut self) {
        while let Some(event) = self.device.take_event() {
            match event {
                VerbsEvent::PortDown => log::warn!(Net, "NET/IB : port {} has gone down", self.device.name()),
                VerbsEvent::PortUp => log::info!(Net, "NET/IB : port {} is up again", self.device.name()),
                VerbsEvent::DeviceLost(why) => {
                    log::warn!(Net, "NET/IB : {}: {why}", self.device.name());
                    self.lost.get_or_insert(why);
                }
                VerbsEvent::PairLost(address, (why, kind)) => {
                    let has_it =
                        |one: &VerbsConnection| one.pairs.iter().any(|pair| self.device.is_at(pair.id, address));
                    let connection = self.connections.iter().position(has_it);
                    let why = format!("verbs ({}): {why}", self.device.name());
                    if let Some(connection) = connection.and_then(|place| u32::try_from(place).ok()) {
                        self.fail(connection, VerbsFailure { kind, why });
                    }
                }
                VerbsEvent::Other => {}
            }
        }
    }

    /// # Errors
    /// Where nothing on the device works any more.
    fn must_live(&self) -> Result<()> {
        let Some(why) = self.lost else { return Ok(()) };
        Err(Error::new(Kind::System, format!("verbs ({}): {why}", self.device.name())))
    }
}

impl RequestNic for VerbsNic {
    fn listen(&mut self) -> Result<(ListenerId, NicHandle)> {
        let door = match &self.door {
            Some(door) => door,
            None => self.door.insert(VerbsDoor::open(self.interface, self.settings.ports)?),
        };
        let (listener, nonce) = (self.next_listener, u64::from_le_bytes(random::bytes()?));
        let handle = VerbsHandle { address: door.address(), listener, nonce }.encode()?;
        self.next_listener += 1;
        self.listeners.insert(listener, VerbsListener { nonce, guest: None });
        Ok((ListenerId(listener), handle))
    }

    fn connect(&mut self, to: &NicHandle) -> Result<Option<ConnectionId>> {
        let mut dial = match self.dials.remove(to) {
            Some(dial) => dial,
            None => self.dial(to)?,
        };
        match self.move_dial(&mut dial) {
            Ok(true) => self.connected(dial.joining.pairs).map(Some),
            Ok(false) => {
                dial.asked = clock::now();
                self.dials.insert(*to, dial);
                Ok(None)
            }
            Err(error) => {
                self.discard(dial.joining.pairs);
                Err(error)
            }
        }
    }

    fn accept(&mut self, listener: ListenerId) -> Result<Option<ConnectionId>> {
        // Once for all listeners of a turn.
        if !std::mem::replace(&mut self.has_served, true) {
            self.serve()?;
        }
        let Some(expected) = self.listeners.get_mut(&listener.0) else {
            return Err(Error::internal("this NIC has no such listener"));
        };
        let Some(mut guest) = expected.guest.take() else { return Ok(None) };
        match self.move_guest(&mut guest) {
            Ok(true) => {
                self.forget_listener(listener);
                self.connected(guest.joining.map(|joining| joining.pairs).unwrap_or_default()).map(Some)
            }
            Ok(false) => {
                if let Some(expected) = self.listeners.get_mut(&listener.0) {
                    expected.guest = Some(guest);
                }
                Ok(None)
            }
            Err(error) if guest.is_answered => {
                // The listener waits on: the peer may come again.
                log::detail!(Net, "NET/IB : a peer left during set-up: {}", error.message());
                self.discard(guest.joining.map(|joining| joining.pairs).unwrap_or_default());
                Ok(None)
            }
            Err(error) => {
                self.forget_listener(listener);
                Err(self.refuse(*guest, &error))
            }
        }
    }

    fn register(&mut self, region: NicMemory) -> Result<()> {
        self.device.register(region)
    }

    fn send(&mut self, to: ConnectionId, number: MessageNumber, from: NicMemory) -> Result<Posted> {
        self.post(to, number, from, true)
    }

    fn receive(&mut self, from: ConnectionId, number: MessageNumber, into: NicMemory) -> Result<Posted> {
        self.post(from, number, into, false)
    }

    fn flush(&mut self, _: ConnectionId, _: NicMemory) -> Result<Posted> {
        // Memory of the host is all that is offered.
        Ok(Posted::Done)
    }

    fn progress(&mut self) -> Result<()> {
        self.has_served = false;
        self.must_live()?;
        self.settle().map(|_| ())
    }

    fn test(&mut self, request: RequestId) -> Result<Option<usize>> {
        match self.requests.test(request) {
            None => Ok(None),
            Some(Ok(bytes)) => Ok(Some(bytes)),
            Some(Err(failure)) => Err(Error::new(failure.kind, failure.why)),
        }
    }

    fn tells_faults(&self) -> bool {
        true
    }

    fn sleep(&mut self) -> Result<NicSleep<'_>> {
        self.hear_events();
        self.must_live()?;
        self.device.ring_at_next()?;
        if self.settle()? {
            return Ok(NicSleep::Ready);
        }
        Ok(NicSleep::On(self.device.descriptor()?))
    }

    fn close(&mut self) -> Result<()> {
        self.dials.clear();
        self.listeners.clear();
        self.door = None;
        self.device.close()
    }
}

/// The place of the queue pair that carries a message. The count of pairs, which need not divide the numbers, is that
/// of both ends; where numbers begin anew, at 2^31, both turn alike.
fn place_of(number: MessageNumber, pairs: usize) -> usize {
    usize::try_from(number.0).unwrap_or(0) % pairs.max(1)
}

/// A caller that waits asks far more often.
const ABANDONED_TIME: Duration = Duration::from_secs(60);
/// So many completions are taken at a time.
const COMPLETIONS: usize = 16;
