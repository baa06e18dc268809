//! Where strangers come in: a listener and its connections, none of which can hold up, crowd out or spoil the others.
//!
//! A connection must prove itself and say what it wants within the handshake time-out. Those that have not are few: beyond
//! [`MAX_PENDING`] the oldest is dropped. The root and the store's server each run one on their thread.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::bootstrap::auth::{Handshake, NO_RANK, Terms};
use crate::bootstrap::link::{End, Link, SCRATCH_BYTES, moment};
use crate::bootstrap::socket;
use crate::error::{Error, Result};
use crate::log;
use crate::sys::poller::{Interest, Poller, Ready};
use crate::sys::{clock, limits, thread};
use crate::wire::frame::Frame;

/// See the module.
#[derive(Debug)]
pub(super) struct Acceptor {
    poller: Poller,
    ready: Ready,
    next_event: usize,
    listener: Option<TcpListener>,
    rules: Rules,
    stopped: UnixStream,
    is_stopped: bool,
    links: HashMap<u64, Link>,
    /// Those that have not said what they want, oldest first, since tokens count up.
    pending: BTreeSet<u64>,
    /// Those that have been told all there is to tell; closed once that is sent.
    leaving: HashSet<u64>,
    next_token: u64,
    scratch: Vec<u8>,
    /// No descriptor was left: do not accept before.
    rest_until: Option<Instant>,
    dropped: u64,
    /// Why somebody could not be accepted, the last time.
    trouble: Option<String>,
}

/// What a hall asks of those who come.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) terms: Terms,
    pub(super) handshake_timeout: Duration,
    /// The most bytes of a frame.
    pub(super) most_bytes: usize,
}

/// What one connection has said.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) token: u64,
    pub(super) frames: Vec<Frame>,
    /// It has ended behind these; the hall has forgotten it.
    pub(super) end: Option<End>,
}

/// The thread that runs a hall, and the way to end it.
#[derive(Debug)]
pub(super) struct ServiceThread {
    name: &'static str,
    /// The thread ends when this end of the pair is closed, unless a byte came before: then it goes on alone.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// The most connections that have not said what they want; beyond it the oldest is dropped.
pub(super) const MAX_PENDING: usize = 1024;

/// The most connections accepted before those that are there are looked at again.
const ACCEPTS_AT_ONCE: usize = 64;

/// How long a connection may say nothing before it makes room for others.
const IDLE_AGE: Duration = Duration::from_secs(1);

/// How long accepting rests where no descriptor is left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// The open files that a process with many ranks should be allowed.
pub(super) const WANTED_OPEN_FILES: u64 = 1 << 16;

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_LINK: u64 = 2;

impl ServiceThread {
    /// Opens a hall behind `listener` and lets `run` keep it on a thread called `name`.
    pub(super) fn start(
        name: &'static str,
        listener: TcpListener,
        rules: Rules,
        run: impl FnOnce(Acceptor) + Send + 'static,
    ) -> Result<ServiceThread> {
        limits::raise_open_files(WANTED_OPEN_FILES)?;
        let (stop, stopped) = UnixStream::pair().map_err(|error| Error::system("socketpair", error))?;
        let acceptor = Acceptor::new(listener, rules, stopped)?;
        let thread = thread::spawn(name, move || run(acceptor))?;
        Ok(ServiceThread { name, stop: Some(stop), thread: Some(thread) })
    }

    /// Lets the thread go on alone.
    pub(super) fn detach(mut self) {
        if let Some(mut stop) = self.stop.take()
            && let Err(error) = stop.write_all(&[0])
        {
            // It has ended already.
            log::trace!(Bootstrap, "{} cannot be detached: {error}", self.name);
        }
        self.thread = None;
    }

    /// Whether the thread has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for ServiceThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::warn!(Bootstrap, "the thread {} panicked", self.name);
        }
    }
}

impl Acceptor {
    fn new(listener: TcpListener, rules: Rules, stopped: UnixStream) -> Result<Acceptor> {
        let poller = Poller::new()?;
        poller.add(listener.as_fd(), LISTENER, Interest::Read)?;
        poller.add(stopped.as_fd(), STOP, Interest::Read)?;
        Ok(Acceptor {
            poller,
            ready: Ready::default(),
            next_event: 0,
            listener: Some(listener),
            rules,
            stopped,
            is_stopped: false,
            links: HashMap::new(),
            pending: BTreeSet::new(),
            leaving: HashSet::new(),
            next_token: FIRST_LINK,
            scratch: vec![0; SCRATCH_BYTES],
            rest_until: None,
            dropped: 0,
            trouble: None,
        })
    }

    /// Waits until something happens, and until `until` at most. [`Acceptor::next`] tells what. False where the hall's owner wants
    /// it to end.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where polling itself fails.
    pub(super) fn wait(&mut self, until: Option<Instant>) -> Result<bool> {
        let now = clock::now();
        self.expire(now);
        let oldest = self.pending.first().and_then(|token| self.links.get(token)).and_then(|link| link.handshake_until);
        let until = [until, oldest, self.rest_until].into_iter().flatten().min();
        let timeout = until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
        self.next_event = 0;
        self.poller.wait(&mut self.ready, timeout)?;
        Ok(!self.is_stopped)
    }

    /// What happened, one connection at a time; `None` once all is told.
    pub(super) fn next(&mut self) -> Option<Heard> {
        loop {
            let event = self.ready.get(self.next_event)?;
            self.next_event += 1;
            match event.token {
                LISTENER => self.accept(clock::now()),
                STOP => self.is_stopped = !self.is_detached(),
                token => {
                    if let Some(heard) = self.serve(token, event.readable) {
                        return Some(heard);
                    }
                }
            }
        }
    }

    /// The owner's socket has something to say: a byte means to go on alone, its end means to end.
    fn is_detached(&mut self) -> bool {
        let detached = matches!(self.stopped.read(&mut [0]), Ok(1));
        detached && self.poller.remove(self.stopped.as_fd()).is_ok()
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
                log::trace!(Bootstrap, "dropped a connection from {from}, which had not proved who it is: {end}");
            }
            self.close(token);
        } else {
            self.settle(token);
        }
        Some(Heard { token, frames, end })
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_AT_ONCE {
            let Some(listener) = &self.listener else { return };
            match socket::accept(listener) {
                Ok(Some((stream, from))) => self.admit(stream, from, now),
                Ok(None) => return,
                Err(error) => {
                    self.trouble = Some(socket::explain(&error));
                    // Whoever waits longest for nothing makes room; a rank says what it wants at once, and must not be the one.
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

    /// Stops accepting for a moment, so that a connection that cannot be accepted does not make the loop spin.
    fn rest(&mut self, now: Instant) {
        let Some(listener) = &self.listener else { return };
        let outcome = self.poller.modify(listener.as_fd(), LISTENER, Interest::None);
        self.rest_until = outcome.is_ok().then_some(now + EXHAUSTED_PAUSE);
    }

    /// Whether the oldest connection that has not said what it wants has had time to.
    fn is_idle(&self, now: Instant) -> bool {
        let oldest = self.pending.first().and_then(|token| self.links.get(token));
        let until = oldest.and_then(|link| link.handshake_until);
        until.is_some_and(|until| until.saturating_duration_since(now) + IDLE_AGE <= self.rules.handshake_timeout)
    }

    /// Drops the connection that has gone longest without saying what it wants; false where there is none.
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
            let listening = self.listener.as_ref().map(|l| self.poller.modify(l.as_fd(), LISTENER, Interest::Read));
            self.rest_until = listening.is_some_and(|outcome| outcome.is_err()).then_some(now + EXHAUSTED_PAUSE);
        }
    }

    /// Tells the poller what the link waits for now; closes it where nothing is left to say.
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

    /// The connection has said what it wants, and may stay.
    pub(super) fn keep(&mut self, token: u64) {
        self.pending.remove(&token);
    }

    /// Where the connection comes from.
    pub(super) fn from(&self, token: u64) -> Option<SocketAddr> {
        self.links.get(&token).map(|link| link.address)
    }

    /// Sends a frame.
    pub(super) fn send(&mut self, token: u64, kind: u8, tag: u32, payload: &[u8]) {
        let Some(link) = self.links.get_mut(&token) else { return };
        link.queue(kind, tag, payload);
        // A link that is broken says so when it is read.
        let _read_tells = link.flush();
        self.settle(token);
    }

    /// Sends a frame and closes behind it.
    pub(super) fn send_last(&mut self, token: u64, kind: u8, payload: &[u8]) {
        if self.links.contains_key(&token) {
            self.keep(token);
            self.leaving.insert(token);
            self.send(token, kind, 0, payload);
        }
    }

    /// Whether somebody still has to be sent its last frame.
    pub(super) fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Accepts nobody any more.
    pub(super) fn shut(&mut self) {
        self.listener = None;
    }

    /// Why somebody could not be accepted, the last time that happened.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// How many strangers were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    fn close(&mut self, token: u64) {
        self.pending.remove(&token);
        self.leaving.remove(&token);
        self.links.remove(&token);
    }
}
