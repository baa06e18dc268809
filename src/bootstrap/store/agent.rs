//! [`AgentStore`]: the store of torchrun's agent, in the protocol of PyTorch's `TCPStore`.
//!
//! torchrun's agent serves a store at `MASTER_ADDR:MASTER_PORT` and tells its workers so by
//! `TORCHELASTIC_USE_AGENT_STORE=True`. Ranks of several hosts meet in that store, so that they need no port of their
//! own. This is the client only, and it uses only the commands that servers of all versions know:
//!
//! | command | byte | then | answer |
//! |---------|------|------|--------|
//! | VALIDATE | 0 | the number 0x3C85F7CE 4 | none; first on every connection |
//! | SET | 1 | key, value | none |
//! | GET | 3 | key | the value |
//! | ADD | 4 | key, amount 8 | the sum 8; under the key it is decimal digits |
//! | WAIT | 6 | count 8, keys | 1 byte, when all keys have values: 0. 1 if the client has cancelled the wait |
//! | DELETE | 8 | key | 8 bytes: 1 if the key had a value, 0 if not |
//!
//! Numbers are little endian. A key or a value is its length in 8 bytes and its bytes. The clients of PyTorch put a `/`
//! before every key, and so does this one: the key `k` of a store with the prefix `p` is `/p/k`.
//!
//! - A missing key is an error for GET (one server closes the connection, the other sends an empty value). So GET
//!   follows only the answer of a WAIT.
//! - The server never ends a WAIT. A client that gives up drops its connection, and its next request makes another.
//! - SET has no answer. A DELETE of a key that never exists follows it, whose answer proves that SET has arrived.
//! - The same DELETE follows VALIDATE: its answer proves that the server is a `TCPStore`, before anything is asked
//!   that must not be asked twice.
//!
//! The protocol has no authentication and no encryption: whoever reaches the agent's port can read and replace the id
//! in the store, secret included, and `RSCCL_SECRET` does not protect it. The id is as safe as torchrun's own
//! rendezvous, which goes through the same store.
//!
//! The agent and its store survive a restart of the workers, so values of an earlier round of the job are still there:
//! [`super::share_id`] recognises them by their writer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use super::{MAX_VALUE_BYTES, Store, check_key, check_keys, check_value, waited_for, waited_for_all};
use crate::bootstrap::address::HostPort;
use crate::bootstrap::interface::AddressFamily;
use crate::bootstrap::{Options, lookup, socket};
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::Mutex;
use crate::sync::{Deadline, Wait};
use crate::sys::clock;
use crate::sys::poller::{self, Interest};
use crate::wire::Writer;

/// The store that torchrun's agent serves; see the module. Calls from several threads on one `AgentStore` run one after
/// the other.
///
/// # Errors
/// As [`Store`]. An [`AgentStore::add`](Store::add) to a value that is not a number is [`Kind::Remote`]: the server
/// closes the connection.
#[derive(Debug)]
pub struct AgentStore {
    /// What precedes every key: `/`, the prefix, `/`.
    before: String,
    agent: Mutex<Agent>,
}

/// The agent, and the connection to it that no request uses.
#[derive(Debug)]
struct Agent {
    place: HostPort,
    family: AddressFamily,
    retry_sleep: Duration,
    connect_timeout: Duration,
    idle: Option<TcpStream>,
}

const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const ADD: u8 = 4;
const WAIT: u8 = 6;
const DELETE: u8 = 8;

/// What a client sends after [`VALIDATE`].
const VALIDATION: u32 = 0x3C85_F7CE;

/// The answers to [`WAIT`].
const ALL_THERE: u8 = 0;
const CANCELLED: u8 = 1;

/// The most bytes of a prefix: an id of a job that a user has written, and a few more.
const MAX_PREFIX_BYTES: usize = 1024;

/// How long [`AgentStore::peek`](Store::peek) waits for the report that a key is there. An agent that is not overloaded
/// sends it within a millisecond plus the round trip.
const PEEK_PATIENCE: Duration = Duration::from_millis(250);

/// How many connections the server may close without an answer before we say that it is no `TCPStore`. More than one,
/// because a proxy accepts and closes connections as long as the agent behind it has not started.
const CLOSED_TRIES: u32 = 5;

/// The longest pause before a connection is tried again.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// How long a wait polls before it looks at the abort flag again, which does not wake it.
const ABORT_CHECK: Duration = Duration::from_millis(20);

impl AgentStore {
    /// Opens the store of the agent at `place`. Keys begin with `/prefix/`: other jobs and torch itself use the same
    /// store. The first request connects; a server that refuses or cannot be reached is tried again until the deadline
    /// of the request.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`] if the prefix is empty or longer than 1024 bytes.
    pub fn open(place: &HostPort, prefix: String, options: &Options) -> Result<AgentStore> {
        if !(1..=MAX_PREFIX_BYTES).contains(&prefix.len()) {
            let length = prefix.len();
            return Err(Error::invalid_argument(format!(
                "the prefix of keys in the store of torchrun's agent must have 1 to {MAX_PREFIX_BYTES} bytes, got \
                 {length}"
            )));
        }
        let agent = Agent {
            place: place.clone(),
            family: options.family,
            retry_sleep: options.retry_sleep,
            connect_timeout: options.handshake_timeout,
            idle: None,
        };
        Ok(AgentStore { before: format!("/{prefix}/"), agent: Mutex::new(agent) })
    }

    fn put_key(&self, request: &mut Writer, key: &str) {
        request.u64(length(self.before.len() + key.len())).raw(self.before.as_bytes()).raw(key.as_bytes());
    }

    /// A request that begins with `command` and `key`.
    fn command(&self, command: u8, key: &str) -> Writer {
        let mut request = Writer::new();
        self.put_key(request.u8(command), key);
        request
    }

    /// A [`WAIT`] for all of `keys`.
    fn wait_for(&self, keys: &[&str]) -> Vec<u8> {
        let mut request = Writer::new();
        request.u8(WAIT).u64(length(keys.len()));
        for key in keys {
            self.put_key(&mut request, key);
        }
        request.finish()
    }

    /// A [`DELETE`] of the empty key, which is never there: [`check_key`] refuses it.
    fn delete_nothing(&self) -> Vec<u8> {
        self.command(DELETE, "").finish()
    }

    /// Runs one request on a connection that has proved itself. A connection whose request fails is dropped: an answer
    /// that comes late would be taken for the next request's.
    fn talk<T>(
        &self,
        words: &dyn Fn() -> String,
        wait: &Wait,
        exchange: impl FnOnce(&Line<'_>) -> Result<T>,
    ) -> Result<T> {
        wait.check(words)?;
        let mut agent = self.agent.lock();
        let stream = match agent.idle.take().filter(is_quiet) {
            Some(stream) => stream,
            None => agent.connect(&self.delete_nothing(), words, wait)?,
        };
        let value = exchange(&Line { stream: &stream, who: &agent.who(), words, wait })?;
        agent.idle = Some(stream);
        Ok(value)
    }

    /// The value under `key`; waits for it, but with `patience` at most that long once the server is reached.
    ///
    /// The key may be deleted between the answer to [`WAIT`] and [`GET`]. Then the server sends an empty value, or
    /// closes the connection. So both are believed only the second time.
    fn value(&self, key: &str, patience: Option<Duration>, wait: &Wait) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        let (waiting, getting) = (self.wait_for(&[key]), self.command(GET, key).finish());
        let mut is_second = false;
        loop {
            let mut stage = Stage::Connecting;
            let found = self.talk(&|| waited_for(key), wait, |line| {
                stage = Stage::Waiting;
                let deadline = patience.map_or(Deadline::NEVER, Deadline::after);
                let patient = wait.until(deadline.earlier(wait.deadline));
                Line { wait: &patient, ..*line }.request(&waiting, Line::wait_answer)?;
                stage = Stage::Getting;
                line.request(&getting, Line::value)
            });
            match (found, stage) {
                (Ok(value), _) if is_second || !value.is_empty() => return Ok(Some(value)),
                (Ok(_), _) => {}
                (Err(error), Stage::Getting) if error.kind() == Kind::Remote && !is_second => {}
                (Err(error), Stage::Waiting) if error.kind() == Kind::Timeout && patience.is_some() => return Ok(None),
                (Err(error), _) => return Err(error),
            }
            is_second = true;
        }
    }
}

/// How far the search for a value has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Connecting,
    Waiting,
    Getting,
}

impl Store for AgentStore {
    fn set(&self, key: &str, value: &[u8], wait: &Wait) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        let mut request = self.command(SET, key);
        request.u64(length(value.len())).raw(value).raw(&self.delete_nothing());
        let words = || format!("set '{}'", key.escape_default());
        self.talk(&words, wait, |line| line.request(request.as_slice(), Line::nothing_deleted))
    }

    fn get(&self, key: &str, wait: &Wait) -> Result<Vec<u8>> {
        let value = self.value(key, None, wait)?;
        value.ok_or_else(|| Error::internal("a wait for a key without patience has ended without its value"))
    }

    fn peek(&self, key: &str, wait: &Wait) -> Result<Option<Vec<u8>>> {
        self.value(key, Some(PEEK_PATIENCE), wait)
    }

    fn add(&self, key: &str, amount: i64, wait: &Wait) -> Result<i64> {
        check_key(key)?;
        let mut request = self.command(ADD, key);
        request.i64(amount);
        let words = || format!("add to '{}'", key.escape_default());
        let sum = self.talk(&words, wait, |line| line.request(request.as_slice(), Line::number))?;
        // The server's sum wraps around.
        if sum.checked_sub(amount).is_none() {
            let key = key.escape_default();
            return Err(Error::invalid_usage(format!("adding {amount} to the number under '{key}' has overflowed")));
        }
        Ok(sum)
    }

    fn wait(&self, keys: &[&str], wait: &Wait) -> Result<()> {
        check_keys(keys)?;
        if keys.is_empty() {
            return Ok(());
        }
        let request = self.wait_for(keys);
        self.talk(&|| waited_for_all(keys), wait, |line| line.request(&request, Line::wait_answer))
    }

    fn delete(&self, key: &str, wait: &Wait) -> Result<bool> {
        check_key(key)?;
        let request = self.command(DELETE, key);
        let words = || format!("delete '{}'", key.escape_default());
        self.talk(&words, wait, |line| match line.request(request.as_slice(), Line::number)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(line.wrong(&format!("answered DELETE with {other}, where 0 and 1 are allowed"))),
        })
    }

    fn outlives_its_users(&self) -> bool {
        true
    }
}

/// Why a try gave no connection.
enum NoConnection {
    /// The server may come yet.
    Unreachable(String),
    /// Something accepted the connection and closed it before the first answer.
    Closed(Error),
    /// No further try would help, or the wait has ended.
    Final(Error),
}

impl Agent {
    /// The server in words.
    fn who(&self) -> String {
        format!("the store of torchrun's agent at {}", self.place)
    }

    /// The address to try now, the addresses of the name in turn. The name is looked up at every try, since it may lead
    /// elsewhere while we wait.
    fn address(&self, tries: u32, wait: &Wait) -> std::result::Result<SocketAddr, NoConnection> {
        let found = lookup::addresses(&self.place, self.family, wait).map_err(NoConnection::Final)?;
        let turn = usize::try_from(tries).unwrap_or(0) % found.len().max(1);
        let none = || NoConnection::Unreachable("its name has no address".to_owned());
        found.get(turn).copied().ok_or_else(none)
    }

    /// A connection on which the server has proved that it is a `TCPStore`, by the answer to `probe`.
    fn connect(&self, probe: &[u8], words: &dyn Fn() -> String, wait: &Wait) -> Result<TcpStream> {
        let mut greeting = Writer::new();
        greeting.u8(VALIDATE).u32(VALIDATION).raw(probe);
        let (mut tries, mut closed) = (0u32, 0u32);
        let mut last = "no answer yet".to_owned();
        loop {
            tries += 1;
            let state = |last: &str| {
                format!("{}: {} could not be reached in time ({tries} tries): {last}", words(), self.who())
            };
            match self.attempt((greeting.as_slice(), tries - 1), words, wait, &|| state(&last)) {
                Ok(stream) => return Ok(stream),
                Err(NoConnection::Final(error)) => return Err(error),
                Err(NoConnection::Unreachable(why)) => last = why,
                Err(NoConnection::Closed(error)) => {
                    closed += 1;
                    if closed == CLOSED_TRIES {
                        let how = format!("it closed {closed} connections before it answered");
                        return Err(self.stranger(&how).with_source(error));
                    }
                    last = error.message().to_owned();
                }
            }
            let again = Deadline::after(self.retry_sleep.saturating_mul(tries).min(MAX_PAUSE));
            while !again.passed(clock::now()) {
                wait.check(|| state(&last))?;
                poller::pause(wait.slice(again.slice(clock::now(), ABORT_CHECK)));
            }
        }
    }

    fn attempt(
        &self,
        (greeting, tries): (&[u8], u32),
        words: &dyn Fn() -> String,
        wait: &Wait,
        state: &dyn Fn() -> String,
    ) -> std::result::Result<TcpStream, NoConnection> {
        let unreachable = |error: io::Error| NoConnection::Unreachable(socket::explain(&error));
        wait.check(state).map_err(NoConnection::Final)?;
        let stream = socket::connect(self.address(tries, wait)?).map_err(unreachable)?;
        let limit = Deadline::after(self.connect_timeout);
        while !is_connected(&stream).map_err(unreachable)? {
            if limit.passed(clock::now()) {
                return Err(NoConnection::Unreachable("it did not answer".to_owned()));
            }
            wait.check(state).map_err(NoConnection::Final)?;
            let slice = wait.slice(ABORT_CHECK);
            poller::wait_any(&[(stream.as_fd(), Interest::Write)], slice).map_err(NoConnection::Final)?;
        }
        if socket::reset_if_own(&stream) {
            return Err(NoConnection::Unreachable("nobody listens there".to_owned()));
        }
        let line = Line { stream: &stream, who: &self.who(), words, wait };
        let proof = line.request(greeting, Line::number).map_err(|error| match error.kind() {
            Kind::Remote => NoConnection::Closed(error),
            Kind::System => NoConnection::Unreachable(error.message().to_owned()),
            _ => NoConnection::Final(error),
        })?;
        match proof {
            0 => Ok(stream),
            other => {
                let bytes = other.to_le_bytes();
                let how = format!("its first answer is '{}', where eight zero bytes are right", bytes.escape_ascii());
                Err(NoConnection::Final(self.stranger(&how)))
            }
        }
    }

    fn stranger(&self, how: &str) -> Error {
        let place = &self.place;
        let message = format!(
            "what answers at {place} is not torchrun's store (PyTorch's TCPStore): {how}; does MASTER_ADDR:MASTER_PORT \
             lead to torchrun's agent?"
        );
        Error::new(Kind::Remote, message)
    }
}

/// A connection while a request uses it.
#[derive(Clone, Copy)]
struct Line<'a> {
    stream: &'a TcpStream,
    /// The server in words.
    who: &'a str,
    /// The request in words.
    words: &'a dyn Fn() -> String,
    wait: &'a Wait,
}

impl Line<'_> {
    /// Sends `request` by one write, if the kernel has room for all of it, and reads its answer. Two small writes would
    /// cost 40 ms: the kernel holds the second one back until the server has acknowledged the first.
    fn request<T>(&self, request: &[u8], answer: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let mut rest = request;
        while !rest.is_empty() {
            match (&mut &*self.stream).write(rest) {
                Ok(0) => return Err(self.closed()),
                Ok(count) => rest = &rest[count..],
                Err(error) => self.pause(error, Interest::Write, "takes no request")?,
            }
        }
        answer(self)
    }

    /// Fills `bytes` with the next bytes from the server. `silence` says what the server does as long as it sends none.
    fn fill(&self, bytes: &mut [u8], silence: &str) -> Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            match (&mut &*self.stream).read(&mut bytes[filled..]) {
                Ok(0) => return Err(self.closed()),
                Ok(count) => filled += count,
                Err(error) => self.pause(error, Interest::Read, silence)?,
            }
        }
        Ok(())
    }

    /// Waits until a call that gave `error` can go on.
    ///
    /// # Errors
    /// If it never can: [`Kind::Remote`] if the server has closed the connection, [`Kind::System`] if the way to it is
    /// broken.
    fn pause(&self, error: io::Error, interest: Interest, silence: &str) -> Result<()> {
        match error.kind() {
            ErrorKind::WouldBlock => {
                self.wait.check(|| format!("{}: {} is connected and {silence}", (self.words)(), self.who))?;
                poller::wait_any(&[(self.stream.as_fd(), interest)], self.wait.slice(ABORT_CHECK))
            }
            ErrorKind::Interrupted => Ok(()),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Err(self.closed()),
            _ => Err(Error::system(format!("the connection to {}", self.who), error)),
        }
    }

    fn number(&self) -> Result<i64> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes, SILENT)?;
        Ok(i64::from_le_bytes(bytes))
    }

    fn nothing_deleted(&self) -> Result<()> {
        match self.number()? {
            0 => Ok(()),
            other => Err(self.wrong(&format!("answered DELETE of a key that is never there with {other}"))),
        }
    }

    fn wait_answer(&self) -> Result<()> {
        let mut answer = [0];
        self.fill(&mut answer, "has no value there yet")?;
        match answer[0] {
            ALL_THERE => Ok(()),
            CANCELLED => Err(self.wrong("cancelled a wait, which this rank has not asked for")),
            other => Err(self.wrong(&format!("answered WAIT with {other}, where 0 and 1 are allowed"))),
        }
    }

    fn value(&self) -> Result<Vec<u8>> {
        let mut announced = [0; 8];
        self.fill(&mut announced, SILENT)?;
        let announced = u64::from_le_bytes(announced);
        let length = usize::try_from(announced).ok().filter(|length| *length <= MAX_VALUE_BYTES).ok_or_else(|| {
            self.wrong(&format!("announced a value of {announced} bytes, where at most {MAX_VALUE_BYTES} are allowed"))
        })?;
        let mut value = vec![0; length];
        self.fill(&mut value, SILENT)?;
        Ok(value)
    }

    fn closed(&self) -> Error {
        self.wrong("closed the connection")
    }

    fn wrong(&self, what: &str) -> Error {
        Error::new(Kind::Remote, format!("{} {what}", self.who))
    }
}

/// What a server does that owes an answer.
const SILENT: &str = "did not answer";

/// Whether a connect that was begun is complete.
fn is_connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a connection that no request uses is still good: it has not ended, and nothing has come unasked.
fn is_quiet(stream: &TcpStream) -> bool {
    matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("a length of memory fits 64 bits")
}
