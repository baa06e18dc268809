//! [`TcpStore`]: one process serves, all processes send requests.
//!
//! | frame | from → to | payload |
//! |-------|-----------|---------|
//! | set | client → server | key, value |
//! | get, delete | client → server | key |
//! | add | client → server | key, amount 8 |
//! | insert | client → server | key, member 4 |
//! | wait | client → server | keys |
//! | done | server → client | the value, the sum or the count 8, or 1 byte: whether it was there |
//! | failed | server → client | kind 1, reason |
//!
//! An answer has the tag of its request. A client has one request at a time; a new request replaces one that still
//! waits.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use super::table::ValueTable;
use super::{
    MAX_KEY_BYTES, MAX_VALUE_BYTES, MAX_WAIT_KEYS, Store, StoreConfig, check_key, check_keys, check_value, waited_for,
    waited_for_all,
};
use crate::bootstrap::acceptor::{Acceptor, Requirements, ServiceThread, Unproven};
use crate::bootstrap::address::HostPort;
use crate::bootstrap::auth::{NO_RANK, Purpose, Terms};
use crate::bootstrap::client::{Service, ServiceClient};
use crate::bootstrap::link::SCRATCH_BYTES;
use crate::bootstrap::rotation::ServicePlace;
use crate::bootstrap::serving::{self, ListenRules, ServiceListeners};
use crate::bootstrap::{Options, socket};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::Wait;
use crate::sync::primitive::{Mutex, MutexGuard};
use crate::sys::clock;
use crate::sys::fork::PerProcess;
use crate::sys::poller::{Poller, Ready};
use crate::wire::frame::Frame;
use crate::wire::{Reader, Writer};

/// A store that one process serves at a known address. The server belongs to the `TcpStore` that [`TcpStore::serve`]
/// yields and ends with it. Calls from several threads on one `TcpStore` run one after the other. A forked child may
/// use its parent's: it connects anew.
#[derive(Debug)]
pub struct TcpStore {
    client: PerProcess<Mutex<Client>>,
    /// Of clients.
    place: ServicePlace,
    options: Options,
    served: Option<Served>,
    /// Declared last, so that the client is dropped first.
    _thread: Option<ServiceThread>,
}

/// Where the store is served.
#[derive(Debug)]
struct Served {
    /// An address at which this process reaches it.
    near: SocketAddr,
    /// All, in words.
    words: String,
    unproven: Unproven,
}

const SET: u8 = 1;
const GET: u8 = 2;
const ADD: u8 = 3;
const WAIT: u8 = 4;
const DELETE: u8 = 5;
const DONE: u8 = 6;
const FAILED: u8 = 7;
const INSERT: u8 = 8;
/// The value if there is one now, behind a byte that is 1; else a 0.
const PEEK: u8 = 9;

/// The most bytes of a request or an answer.
const MAX_FRAME_BYTES: usize = 64 + MAX_WAIT_KEYS * (MAX_KEY_BYTES + 4) + MAX_VALUE_BYTES;

/// The most bytes of a failure's reason.
const MAX_REASON_BYTES: usize = 4096;

impl TcpStore {
    /// Serves a store at `place` (port 0 means any free port, see [`TcpStore::address`]) and opens it.
    ///
    /// Clients prove that they hold the secret of `config`; without one any process that reaches the port can read and
    /// write.
    ///
    /// # Errors
    /// [`Kind::System`] if the address is taken or does not belong to this machine.
    pub fn serve(place: SocketAddr, config: &StoreConfig) -> Result<TcpStore> {
        TcpStore::serve_on(place, config.options())
    }

    /// [`TcpStore::serve`] by the options of the bootstrap.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn serve_on(place: SocketAddr, options: &Options) -> Result<TcpStore> {
        let (socket, address) = socket::listen_in(place, options.ports)?;
        TcpStore::start(ServiceListeners::one(socket, address), options)
    }

    /// Serves a store at every address of `place` that belongs to this machine, which may have some of them later.
    /// If strangers are kept out, and the name leads to loopback here, the store is served at all addresses.
    ///
    /// # Errors
    /// At the deadline of `wait` if the name has no address; [`Kind::System`] if the port is taken, with its holder.
    pub(crate) fn serve_at(place: &HostPort, options: &Options, wait: &Wait) -> Result<TcpStore> {
        let guarded = options.is_guarded();
        let rules = ListenRules { terms: terms(options), guarded, listener_patience: Duration::ZERO };
        TcpStore::start(serving::listen(place, rules, options, wait)?, options)
    }

    pub(super) fn start(listeners: ServiceListeners, options: &Options) -> Result<TcpStore> {
        let words = listeners.words("MASTER_ADDR (or RSCCL_STORE)", options);
        let served = Served { near: listeners.near(), words, unproven: Unproven::default() };
        let (near, terms) = (served.near, terms(options));
        if options.secret.is_none() {
            log::warn!(
                Bootstrap,
                "the store at {near} has no secret: any process can use it; give it one (StoreConfig::with_secret, \
                 RSCCL_SECRET)"
            );
        }
        let rules = Requirements {
            terms: terms.clone(),
            handshake_timeout: options.handshake_timeout,
            most_bytes: MAX_FRAME_BYTES,
            unproven: served.unproven.clone(),
        };
        let run = |acceptor| {
            Server { acceptor, table: ValueTable::default(), waiters: HashMap::new(), by_key: HashMap::new() }.run()
        };
        let thread = ServiceThread::start("rsccl store", listeners, rules, run)?;
        TcpStore::of(ServicePlace::Known(vec![near]), options, Some((served, thread)))
    }

    /// Opens the store that is, or will be, served at `place`: `host:port`, or `[ipv6]:port`. The first call connects.
    /// A name is looked up until it has an address, and again when none of its addresses answers.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`] if `place` is no such text; [`Kind::System`] if the system has no descriptor left.
    pub fn connect(place: &str, config: &StoreConfig) -> Result<TcpStore> {
        TcpStore::connect_to(&place.parse()?, config.options())
    }

    /// [`TcpStore::connect`] to a place that has been read.
    ///
    /// # Errors
    /// [`Kind::System`] if the system has no descriptor left.
    pub(crate) fn connect_to(place: &HostPort, options: &Options) -> Result<TcpStore> {
        TcpStore::of(ServicePlace::Host(place.clone(), options.family), options, None)
    }

    /// Opens the store that is served at `address`.
    ///
    /// # Errors
    /// As [`TcpStore::connect_to`].
    pub(super) fn connect_near(address: SocketAddr, options: &Options) -> Result<TcpStore> {
        TcpStore::of(ServicePlace::Known(vec![address]), options, None)
    }

    fn of(place: ServicePlace, options: &Options, served: Option<(Served, ServiceThread)>) -> Result<TcpStore> {
        let (served, thread) = served.unzip();
        let store = TcpStore { client: PerProcess::new(), place, options: options.clone(), served, _thread: thread };
        store.client().map(drop)?;
        Ok(store)
    }

    /// The client of this process.
    fn client(&self) -> Result<MutexGuard<'_, Client>> {
        let make = || Client::new(self.place.clone(), terms(&self.options), &self.options).map(Mutex::new);
        Ok(self.client.get_or_try_init(make)?.lock())
    }

    /// An address of the store, if this is the process that serves it.
    pub fn address(&self) -> Option<SocketAddr> {
        self.served.as_ref().map(|served| served.near)
    }

    fn request(&self, kind: u8, payload: &[u8], words: &dyn Fn() -> String, wait: &Wait) -> Result<Vec<u8>> {
        self.client()?.request(kind, payload, words, wait)
    }
}

pub(super) fn terms(options: &Options) -> Terms {
    let key = match &options.secret {
        Some(secret) => secret.key("rsccl store"),
        None => blake3::hash(b"rsccl store without secret").into(),
    };
    Terms { key, purpose: Purpose::Store, communicator: 0, job: options.job.clone(), encryption: options.encryption }
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8], wait: &Wait) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        let mut payload = Writer::with_capacity(8 + key.len() + value.len());
        payload.text(key).bytes(value);
        self.request(SET, payload.as_slice(), &|| format!("set '{}'", key.escape_default()), wait).map(|_| ())
    }

    fn get(&self, key: &str, wait: &Wait) -> Result<Vec<u8>> {
        check_key(key)?;
        let mut payload = Writer::new();
        payload.text(key);
        self.request(GET, payload.as_slice(), &|| waited_for(key), wait)
    }

    fn peek(&self, key: &str, wait: &Wait) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        let mut payload = Writer::new();
        payload.text(key);
        let words = || format!("look at '{}'", key.escape_default());
        let answer = self.request(PEEK, payload.as_slice(), &words, wait)?;
        let mut reader = Reader::new(&answer, "the store's answer");
        Ok((reader.u8()? == 1).then(|| reader.rest().to_vec()))
    }

    fn add(&self, key: &str, amount: i64, wait: &Wait) -> Result<i64> {
        check_key(key)?;
        let mut payload = Writer::new();
        payload.text(key).i64(amount);
        let words = || format!("add to '{}'", key.escape_default());
        let answer = self.request(ADD, payload.as_slice(), &words, wait)?;
        Reader::new(&answer, "the store's answer").i64()
    }

    fn insert(&self, key: &str, member: u32, wait: &Wait) -> Result<u64> {
        check_key(key)?;
        let mut payload = Writer::new();
        payload.text(key).u32(member);
        let words = || format!("insert into '{}'", key.escape_default());
        let answer = self.request(INSERT, payload.as_slice(), &words, wait)?;
        Reader::new(&answer, "the store's answer").u64()
    }

    fn clear(&self, key: &str, _members: u32, wait: &Wait) -> Result<()> {
        self.delete(key, wait).map(drop)
    }

    fn wait(&self, keys: &[&str], wait: &Wait) -> Result<()> {
        check_keys(keys)?;
        let mut payload = Writer::new();
        for key in keys {
            payload.text(key);
        }
        self.request(WAIT, payload.as_slice(), &|| waited_for_all(keys), wait).map(|_| ())
    }

    fn delete(&self, key: &str, wait: &Wait) -> Result<bool> {
        check_key(key)?;
        let mut payload = Writer::new();
        payload.text(key);
        let words = || format!("delete '{}'", key.escape_default());
        Ok(self.request(DELETE, payload.as_slice(), &words, wait)? == [1])
    }

    fn outlives_its_users(&self) -> bool {
        false
    }

    fn listens_at(&self) -> Option<String> {
        let Served { words, unproven, .. } = self.served.as_ref()?;
        Some(unproven.words().map_or_else(|| words.clone(), |unproven| format!("{words}; {unproven}")))
    }
}

/// The client's side.
#[derive(Debug)]
struct Client {
    service: Service,
    options: Options,
    client: ServiceClient,
    poller: Poller,
    ready: Ready,
    scratch: Vec<u8>,
    tag: u32,
    /// Whether the wait of the last request has ended, and not the connection.
    has_given_up: bool,
}

const TOKEN: u64 = 0;

impl Client {
    fn new(place: ServicePlace, terms: Terms, options: &Options) -> Result<Client> {
        let hint = "does the process that serves it still run, and does this address lead to it?";
        let service = Service { name: "the store", hint, server: None, place, terms, most_bytes: MAX_FRAME_BYTES };
        let client = ServiceClient::new(service.clone(), NO_RANK, None, options);
        let (poller, ready) = (Poller::new()?, Ready::default());
        Ok(Client {
            service,
            options: options.clone(),
            client,
            poller,
            ready,
            scratch: vec![0; SCRATCH_BYTES],
            tag: 0,
            has_given_up: false,
        })
    }

    fn request(&mut self, kind: u8, payload: &[u8], words: &dyn Fn() -> String, wait: &Wait) -> Result<Vec<u8>> {
        self.tag = self.tag.wrapping_add(1);
        let outcome = self.exchange(kind, payload, words, wait);
        let broken = outcome.as_ref().is_err_and(|error| matches!(error.kind(), Kind::Remote | Kind::System));
        // A caller that has given up may ask again soon: the look-up of the name and the connection go on.
        if broken || !(self.client.is_connected() || self.has_given_up) {
            // The next request uses a new connection. This request may or may not have taken effect, so it is not
            // repeated.
            self.client = ServiceClient::new(self.service.clone(), NO_RANK, None, &self.options);
        }
        outcome
    }

    fn exchange(&mut self, kind: u8, payload: &[u8], words: &dyn Fn() -> String, wait: &Wait) -> Result<Vec<u8>> {
        let mut asked = false;
        loop {
            let checked = wait.check(|| if asked { words() } else { format!("{}: {}", words(), self.client.state()) });
            self.has_given_up = checked.is_err();
            checked?;
            let now = clock::now();
            self.client.expire(now)?;
            self.client.dial(&self.poller, TOKEN, now)?;
            if !asked && self.client.is_connected() {
                self.client.send(&self.poller, TOKEN, (kind, self.tag, payload))?;
                asked = true;
            }
            let pause =
                self.client.again().map_or(ABORT_CHECK, |again| again.saturating_duration_since(now).min(ABORT_CHECK));
            self.poller.wait(&mut self.ready, wait.slice(pause))?;
            let Some(event) = self.ready.get(0) else { continue };
            let now = clock::now();
            let (frames, outcome) = self.client.serve(&self.poller, TOKEN, event.readable, &mut self.scratch, now);
            // Answers to requests that were given up are skipped.
            if let Some(frame) = frames.into_iter().find(|frame| asked && frame.tag == self.tag) {
                return answer(frame);
            }
            outcome?;
        }
    }
}

/// How long a wait polls before it looks at the abort flag again, which does not wake it.
const ABORT_CHECK: Duration = Duration::from_millis(20);

fn answer(frame: Frame) -> Result<Vec<u8>> {
    match frame.kind {
        DONE => Ok(frame.payload),
        FAILED => {
            let mut reader = Reader::new(&frame.payload, "the store's answer");
            let kind = if reader.u8()? == 1 { Kind::InvalidUsage } else { Kind::InvalidArgument };
            Err(Error::new(kind, reader.text(MAX_REASON_BYTES)?))
        }
        other => Err(Error::new(Kind::Remote, format!("the store answered with a frame of kind {other}"))),
    }
}

/// The server's side, on its own thread.
struct Server {
    acceptor: Acceptor,
    table: ValueTable,
    waiters: HashMap<u64, Waiter>,
    /// For each key, the clients that wait for it; a client is listed under the first key that it lacks.
    by_key: HashMap<String, BTreeSet<u64>>,
}

struct Waiter {
    tag: u32,
    /// The key that this client lacks, and those not looked at yet.
    lacks: String,
    then: Vec<String>,
    /// Whether the client wants the value.
    value: bool,
}

impl Server {
    fn run(mut self) {
        loop {
            match self.acceptor.wait(None) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    log::warn!(Bootstrap, "the store cannot poll: {error}");
                    return;
                }
            }
            while let Some(heard) = self.acceptor.next() {
                for frame in heard.frames {
                    self.frame(heard.token, &frame);
                }
                if heard.end.is_some() {
                    self.forget(heard.token);
                }
            }
        }
    }

    fn frame(&mut self, token: u64, frame: &Frame) {
        self.acceptor.keep(token);
        self.forget(token);
        match self.request(token, frame) {
            Ok(Some(payload)) => self.acceptor.send(token, DONE, frame.tag, &payload),
            Ok(None) => {}
            Err(error) => {
                let mut payload = Writer::new();
                payload.u8(u8::from(error.kind() == Kind::InvalidUsage)).text(error.message());
                self.acceptor.send(token, FAILED, frame.tag, payload.as_slice());
            }
        }
    }

    /// The answer, or `None` if it comes later.
    fn request(&mut self, token: u64, frame: &Frame) -> Result<Option<Vec<u8>>> {
        let mut reader = Reader::new(&frame.payload, "a request to the store");
        if frame.kind == WAIT {
            let mut keys = Vec::new();
            while !reader.rest().is_empty() && keys.len() < MAX_WAIT_KEYS {
                keys.push(reader.text(MAX_KEY_BYTES)?);
            }
            reader.finish()?;
            return Ok(self.wait(token, frame.tag, keys, false));
        }
        let key = reader.text(MAX_KEY_BYTES)?;
        match frame.kind {
            SET => {
                let value = reader.bytes(MAX_VALUE_BYTES)?.to_vec();
                reader.finish()?;
                self.table.set(&key, value)?;
                self.wake(&key);
                Ok(Some(Vec::new()))
            }
            GET => Ok(self.wait(token, frame.tag, vec![key], true)),
            PEEK => Ok(Some(match self.table.get(&key) {
                Some(value) => [&[1][..], value].concat(),
                None => vec![0],
            })),
            ADD => {
                let amount = reader.i64()?;
                let sum = self.table.add(&key, amount)?;
                self.wake(&key);
                Ok(Some(sum.to_le_bytes().to_vec()))
            }
            INSERT => {
                let member = reader.u32()?;
                let count = self.table.insert(&key, member)?;
                self.wake(&key);
                Ok(Some(count.to_le_bytes().to_vec()))
            }
            DELETE => Ok(Some(vec![u8::from(self.table.delete(&key))])),
            other => Err(Error::invalid_argument(format!("a request of unknown kind {other}"))),
        }
    }

    /// The answer if all keys have values; otherwise registers the client under the first key that has none.
    fn wait(&mut self, token: u64, tag: u32, mut keys: Vec<String>, value: bool) -> Option<Vec<u8>> {
        match keys.iter().position(|key| self.table.get(key).is_none()) {
            Some(place) => {
                let then = keys.split_off(place + 1);
                let lacks = keys.pop().unwrap_or_default();
                self.by_key.entry(lacks.clone()).or_default().insert(token);
                self.waiters.insert(token, Waiter { tag, lacks, then, value });
                None
            }
            None if value => keys.first().and_then(|key| self.table.get(key)).cloned(),
            None => Some(Vec::new()),
        }
    }

    /// Answers those who waited for `key`, which now has a value.
    fn wake(&mut self, key: &str) {
        for token in self.by_key.remove(key).unwrap_or_default() {
            let Some(waiter) = self.waiters.remove(&token) else { continue };
            let mut keys = vec![waiter.lacks];
            keys.extend(waiter.then);
            if let Some(payload) = self.wait(token, waiter.tag, keys, waiter.value) {
                self.acceptor.send(token, DONE, waiter.tag, &payload);
            }
        }
    }

    /// Forgets a client that does not wait any more.
    fn forget(&mut self, token: u64) {
        let Some(waiter) = self.waiters.remove(&token) else { return };
        if let Some(waiting) = self.by_key.get_mut(&waiter.lacks) {
            waiting.remove(&token);
            if waiting.is_empty() {
                self.by_key.remove(&waiter.lacks);
            }
        }
    }
}
