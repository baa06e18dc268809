//! The accepting side of a service: its listeners and their connections. No connection can block, crowd out or corrupt
//! another.
//!
//! A connection must prove itself and send its request within the handshake time-out. The number of connections that
//! have not done so is bounded: beyond [`MAX_PENDING`] the oldest is dropped. The root and the store's server each run
//! an acceptor on their own thread.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::bootstrap::auth::{Handshake, JOB_BYTES, NO_RANK, Terms};
use crate::bootstrap::leash::{Leash, LeashOrder, LeashedThread, LooseLeash};
use crate::bootstrap::link::{End, Link, SCRATCH_BYTES, moment};
use crate::bootstrap::serving::{MAX_LISTENERS, ServiceListeners};
use crate::bootstrap::socket;
use crate::error::Result;
use crate::log;
use crate::sync::primitive::{Arc, Mutex};
use crate::sys::limits::OpenFiles;
use crate::sys::poller::{Interest, Poller, Ready};
use crate::sys::{clock, limits};
use crate::wire::frame::Frame;

/// The listeners with their connections; see the module.
#[derive(Debug)]
pub(super) struct Acceptor {
    poller: Poller,
    ready: Ready,
    next_event: usize,
    listeners: Vec<TcpListener>,
    rules: Requirements,
    leash: Leash,
    /// Room for the connections.
    files: OpenFiles,
    is_stopped: bool,
    is_given_up: bool,
    links: HashMap<u64, Link>,
    /// Connections that have not sent a request yet, oldest first, since tokens count up.
    pending: BTreeSet<u64>,
    /// Connections that have been sent their last frame; each is closed when its bytes have left.
    leaving: HashSet<u64>,
    next_token: u64,
    scratch: Vec<u8>,
    /// No descriptor was left: accept nothing before this time.
    rest_until: Option<Instant>,
    dropped: u64,
    /// Why accepting failed the last time, if it ever did.
    trouble: Option<String>,
    /// Other jobs whose ranks were refused, and when the first was: all ranks of such a job then give up at one time.
    strangers: HashMap<[u8; JOB_BYTES], Instant>,
}

/// Connections that ended in the handshake: ranks with another secret, for which others wait in vain, are among them.
/// The service counts, and who waits beside it tells.
#[derive(Debug, Clone, Default)]
pub(super) struct Unproven(Arc<Mutex<(u64, Option<SocketAddr>)>>);

impl Unproven {
    fn count(&self, from: SocketAddr) {
        let mut known = self.0.lock();
        *known = (known.0.saturating_add(1), Some(from));
    }

    /// How many there were, in words; `None` if there were none.
    pub(super) fn words(&self) -> Option<String> {
        let (count, last) = *self.0.lock();
        let from = last?.ip();
        let who = if count == 1 { "1 connection from" } else { &format!("{count} connections, the last from") };
        Some(format!(
            "{who} {from}, did not prove the secret: are RSCCL_SECRET and the version of rsccl the same on all ranks?"
        ))
    }
}

/// The requirements on connections.
#[derive(Debug, Clone)]
pub(super) struct Requirements {
    pub(super) terms: Terms,
    pub(super) handshake_timeout: Duration,
    /// The most bytes of a frame that a connection may send.
    pub(super) most_bytes: usize,
    pub(super) unproven: Unproven,
}

/// The frames that one connection has sent since the last look.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) token: u64,
    pub(super) frames: Vec<Frame>,
    /// Why the connection has ended after these frames; the acceptor has forgotten it.
    pub(super) end: Option<End>,
}

/// A thread that runs an acceptor, and the means to stop it.
#[derive(Debug)]
pub(super) struct ServiceThread(LeashedThread);

/// The most connections that have not sent a request; beyond it the oldest is dropped.
pub(super) const MAX_PENDING: usize = 1024;

/// The most connections accepted in a row before the existing ones are served again.
const ACCEPTS_AT_ONCE: usize = 64;

/// How old a silent connection must be before it may be dropped in favour of others.
const IDLE_AGE: Duration = Duration::from_secs(1);

/// How long accepting pauses when no descriptor is left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// The descriptors for which a service has room at first; it doubles that when connections come.
const FIRST_FILES: u64 = 16;

/// The most other jobs that are told apart.
const MAX_STRANGERS: usize = 256;

const STOP: u64 = 0;
const FIRST_LISTENER: u64 = 1;
const FIRST_LINK: u64 = FIRST_LISTENER + MAX_LISTENERS as u64;

impl ServiceThread {
    /// Makes an acceptor for `listeners` and runs `run` with it on a thread called `name`.
    pub(super) fn start(
        name: &'static str,
        listeners: ServiceListeners,
        rules: Requirements,
        run: impl FnOnce(Acceptor) + Send + 'static,
    ) -> Result<ServiceThread> {
        let leash = Leash::new()?;
        let acceptor = Acceptor::new(listeners.sockets, rules, leash.clone())?;
        LeashedThread::start(name, leash, move || run(acceptor)).map(ServiceThread)
    }

    /// Lets the thread continue without its owner.
    pub(super) fn detach(self) -> LooseLeash {
        self.0.detach()
    }

    /// Whether the thread has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Acceptor {
    fn new(listeners: Vec<TcpListener>, rules: Requirements, leash: Leash) -> Result<Acceptor> {
        let poller = Poller::new()?;
        for (token, listener) in (FIRST_LISTENER..FIRST_LINK).zip(&listeners) {
            poller.add(listener.as_fd(), token, Interest::Read)?;
        }
        leash.watch(&poller, STOP)?;
        let files = OpenFiles::need(FIRST_FILES);
        Ok(Acceptor {
            poller,
            ready: Ready::default(),
            next_event: 0,
            listeners,
            rules,
            leash,
            files,
            is_stopped: false,
            is_given_up: false,
            links: HashMap::new(),
            pending: BTreeSet::new(),
            leaving: HashSet::new(),
            next_token: FIRST_LINK,
            scratch: vec![0; SCRATCH_BYTES],
            rest_until: None,
            dropped: 0,
            trouble: None,
            strangers: HashMap::new(),
        })
    }

    /// Waits until something happens, at most until `until`; [`Acceptor::next`] then yields what happened. False if the
    /// owner wants the thread to end.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if polling itself fails.
    pub(super) fn wait(&mut self, until: Option<Instant>) -> Result<bool> {
        // The bell was hushed when the order was read: it wakes nobody a second time.
        if self.is_stopped {
            return Ok(false);
        }
        let now = clock::now();
        self.expire(now);
        let oldest = self.pending.first().and_then(|token| self.links.get(token)).and_then(|link| link.handshake_until);
        let until = [until, oldest, self.rest_until].into_iter().flatten().min();
        let timeout = until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
        self.next_event = 0;
        self.poller.wait(&mut self.ready, timeout)?;
        Ok(!self.is_stopped)
    }

    /// The next connection on which something happened; `None` when there are no more.
    pub(super) fn next(&mut self) -> Option<Heard> {
        loop {
            let event = self.ready.get(self.next_event)?;
            self.next_event += 1;
            match event.token {
                STOP => match self.leash.read() {
                    LeashOrder::Run => {}
                    LeashOrder::GiveUp => self.is_given_up = true,
                    LeashOrder::End => self.is_stopped = true,
                },
                FIRST_LISTENER..FIRST_LINK => self.accept(event.token, clock::now()),
                token => {
                    if let Some(heard) = self.serve(token, event.readable) {
                        return Some(heard);
                    }
                }
            }
        }
    }

    fn serve(&mut self, token: u64, readable: bool) -> Option<Heard> {
        let link = self.links.get_mut(&token)?;
        let mut frames = Vec::new();
        let outcome =
            if readable { link.read(&mut self.scratch, &mut frames) } else { Ok(()) }.and_then(|()| link.flush());
        let end = outcome.err();
        if let Some(end) = &end {
            if self.pending.contains(&token) {
                self.dropped += 1;
                let from = link.address;
                if matches!(end, End::Rejected(_)) {
                    self.rules.unproven.count(from);
                }
                log::trace!(Bootstrap, "dropped a connection from {from} that made no request: {end}");
            }
            self.close(token);
        } else if let Some(job) = link.stranger() {
            self.refuse(token, job);
        } else {
            self.settle(token);
        }
        Some(Heard { token, frames, end })
    }

    /// Answers a rank of another job, and closes its connection.
    fn refuse(&mut self, token: u64, job: [u8; JOB_BYTES]) {
        if self.leaving.contains(&token) {
            return self.settle(token);
        }
        let now = clock::now();
        if !self.strangers.contains_key(&job) && self.strangers.len() < MAX_STRANGERS {
            let from = self.from(token).map_or_else(String::new, |from| format!(" from {from}"));
            log::warn!(
                Bootstrap,
                "a rank of another job has come{from}: it is refused; give each job a meeting place of its own"
            );
            self.strangers.insert(job, now);
        }
        let first = self.strangers.get(&job).copied().unwrap_or(now);
        let Some(link) = self.links.get_mut(&token) else { return };
        // A broken link is closed by the next read.
        let _read_tells = link.refuse(now.saturating_duration_since(first));
        self.leaving.insert(token);
        self.settle(token);
    }

    fn accept(&mut self, token: u64, now: Instant) {
        let place = usize::try_from(token - FIRST_LISTENER).unwrap_or(usize::MAX);
        for _ in 0..ACCEPTS_AT_ONCE {
            let Some(listener) = self.listeners.get(place) else { return };
            match socket::accept(listener) {
                Ok(Some((stream, from))) => self.admit(stream, from, now),
                Ok(None) => return,
                Err(error) => {
                    self.trouble = Some(socket::explain(&error));
                    // The oldest silent connection makes room. It is no rank: a rank sends its request at once.
                    if limits::is_exhausted(&error) && self.is_idle(now) && self.drop_oldest() {
                        return;
                    }
                    log::warn!(Bootstrap, "cannot accept connections for now: {}", socket::explain(&error));
                    return self.rest(now);
                }
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, from: SocketAddr, now: Instant) {
        while self.pending.len() >= MAX_PENDING {
            self.drop_oldest();
        }
        // The listeners are few, and half of the limit is left to the program.
        if self.links.len() as u64 >= self.files.count() {
            self.files.cover(2 * self.files.count());
        }
        let handshake = Handshake::respond(self.rules.terms.clone(), NO_RANK);
        let mut link = Link::accepted(stream, from, handshake, self.rules.most_bytes);
        link.handshake_until = Some(moment(now, self.rules.handshake_timeout));
        link.told = Interest::Read;
        let token = self.next_token;
        self.next_token += 1;
        if self.poller.add(link.fd(), token, Interest::Read).is_ok() {
            self.links.insert(token, link);
            self.pending.insert(token);
        }
    }

    /// Stops accepting for a moment: otherwise the loop would spin on a connection that it cannot accept.
    fn rest(&mut self, now: Instant) {
        self.rest_until = self.poll_listeners(Interest::None).then_some(now + EXHAUSTED_PAUSE);
    }

    /// Sets the interest in every listener; false if that failed for one, or there is none.
    fn poll_listeners(&self, interest: Interest) -> bool {
        let set =
            |(token, listener): (u64, &TcpListener)| self.poller.modify(listener.as_fd(), token, interest).is_ok();
        !self.listeners.is_empty() && (FIRST_LISTENER..FIRST_LINK).zip(&self.listeners).all(set)
    }

    /// Whether the oldest connection without a request has had enough time to send one.
    fn is_idle(&self, now: Instant) -> bool {
        let oldest = self.pending.first().and_then(|token| self.links.get(token));
        let until = oldest.and_then(|link| link.handshake_until);
        until.is_some_and(|until| until.saturating_duration_since(now) + IDLE_AGE <= self.rules.handshake_timeout)
    }

    /// Drops the oldest connection that has not sent a request; false if there is none.
    fn drop_oldest(&mut self) -> bool {
        let Some(token) = self.pending.first().copied() else { return false };
        self.close(token);
        self.dropped += 1;
        true
    }

    fn expire(&mut self, now: Instant) {
        let is_due = |link: &Link| link.handshake_until.is_some_and(|until| now >= until);
        while self.pending.first().is_some_and(|token| self.links.get(token).is_none_or(is_due)) {
            self.drop_oldest();
        }
        if self.rest_until.is_some_and(|until| now >= until) {
            let again = self.listeners.is_empty() || self.poll_listeners(Interest::Read);
            self.rest_until = (!again).then_some(now + EXHAUSTED_PAUSE);
        }
    }

    /// Updates the poller's interest in the link; closes a leaving link that has sent everything.
    fn settle(&mut self, token: u64) {
        let Some(link) = self.links.get_mut(&token) else { return };
        if link.unsent() == 0 && self.leaving.contains(&token) {
            link.finish();
            return self.close(token);
        }
        let wanted = link.interest();
        if wanted != link.told && self.poller.modify(link.fd(), token, wanted).is_ok() {
            link.told = wanted;
        }
    }

    /// Marks a connection that has sent a valid request: it is no longer dropped for being silent.
    pub(super) fn keep(&mut self, token: u64) {
        self.pending.remove(&token);
    }

    /// The address of the other side.
    pub(super) fn from(&self, token: u64) -> Option<SocketAddr> {
        self.links.get(&token).map(|link| link.address)
    }

    pub(super) fn send(&mut self, token: u64, kind: u8, tag: u32, payload: &[u8]) {
        let Some(link) = self.links.get_mut(&token) else { return };
        link.queue(kind, tag, payload);
        // An error here is a broken link; the next read reports it.
        let _read_tells = link.flush();
        self.settle(token);
    }

    /// Sends a frame and closes the connection after it.
    pub(super) fn send_last(&mut self, token: u64, kind: u8, payload: &[u8]) {
        if self.links.contains_key(&token) {
            self.keep(token);
            self.leaving.insert(token);
            self.send(token, kind, 0, payload);
        }
    }

    /// Whether a leaving connection still has bytes to send.
    pub(super) fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Closes the listeners.
    pub(super) fn shut(&mut self) {
        self.listeners.clear();
    }

    /// Whether the thread was told to end unless somebody has come who needs it.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// Why accepting failed the last time, if it ever did.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// How many connections were dropped without a valid request.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    fn close(&mut self, token: u64) {
        self.pending.remove(&token);
        self.leaving.remove(&token);
        self.links.remove(&token);
    }
}
