//! The place where the ranks of one host meet in private, if the user has named none: a Unix socket on an abstract name
//! made of the job's identity and the number of the communicator among those that the job makes.
//!
//! Rank 0 listens and gives its [`Record`] to each rank that asks. The name is the same in containers with a `/tmp`,
//! a process namespace or a user namespace of their own; nothing is left behind, since the kernel forgets the name
//! with the process; and the kernel says which user is at the other end, so nobody else's record is believed.
//!
//! | message | from → to | bytes |
//! |---|---|---|
//! | question | rank → rank 0 | mark 8, rank 4, world 4 |
//! | answer | rank 0 → rank | length 4, record |

use std::collections::{BTreeSet, HashMap};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::bootstrap::link::moment;
use crate::bootstrap::store::record::Record;
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::{Arc, AtomicBool, Ordering};
use crate::sync::{Deadline, Wait};
use crate::sys::descriptor::{HandoverStream, Listener};
use crate::sys::poller::{self, Interest, Poller, Ready};
use crate::sys::{clock, thread};
use crate::types::{Rank, World};
use crate::wire::{Reader, Writer};

/// The name of a lobby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LobbyName(String);

impl LobbyName {
    /// The lobby of communicator `number` of the job with this identity.
    pub(crate) fn new(job: &str, number: u64) -> LobbyName {
        let hash = blake3::hash(format!("rsccl lobby {number} of {job}").as_bytes());
        LobbyName(format!("rsccl-job-{}", &hash.to_hex()[..32]))
    }
}

impl std::fmt::Display for LobbyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the unix socket @{}", self.0)
    }
}

/// What to do if not all ranks have come after a moment: those that cannot see the lobby look elsewhere. It runs on the
/// lobby's thread, and what it yields lives as long as the lobby.
pub(crate) type Elsewhere = Box<dyn FnOnce() -> Option<Box<dyn std::any::Any + Send>> + Send>;

/// Rank 0's side. Dropping it closes the lobby.
#[derive(Debug)]
pub(crate) struct Lobby {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    /// Whether every other rank has the record.
    all_have_come: Arc<AtomicBool>,
}

impl Lobby {
    /// Opens the lobby of a world of `size` ranks, where each gets `record`.
    ///
    /// # Errors
    /// [`Kind::InvalidUsage`] if another process is rank 0 of this job already; [`Kind::System`].
    pub(crate) fn open(
        name: &LobbyName,
        size: u32,
        record: &Record,
        elsewhere: Option<Elsewhere>,
        wait: &Wait,
    ) -> Result<Lobby> {
        let listener = listen(name, wait)?;
        let (stop, stopped) = UnixStream::pair().map_err(|error| Error::system("socketpair", error))?;
        let bytes = record.encode();
        let mut answer = Writer::with_capacity(4 + bytes.len());
        answer.bytes(&bytes);
        let poller = Poller::new()?;
        poller.add(listener.as_fd(), LISTENER, Interest::Read)?;
        poller.add(stopped.as_fd(), STOP, Interest::Read)?;
        let all_have_come = Arc::new(AtomicBool::new(size == 1));
        let host = Host {
            listener,
            poller,
            _stopped: stopped,
            answer: answer.finish(),
            size,
            guests: HashMap::new(),
            next: FIRST_GUEST,
            come: BTreeSet::new(),
            all_have_come: Arc::clone(&all_have_come),
            elsewhere: elsewhere.map(|open| (moment(clock::now(), ELSEWHERE_AFTER), open)),
            _kept: None,
        };
        let thread = thread::spawn("rsccl lobby", move || host.run())?;
        Ok(Lobby { stop: Some(stop), thread: Some(thread), all_have_come })
    }

    /// Waits until every other rank has the record, at most as long as `patience`: rank 0 is about to fail.
    pub(crate) fn linger(&self, patience: Deadline, wait: &Wait) {
        let until = wait.until(patience.earlier(wait.deadline));
        // Acquire: pairs with the release of the thread, though nothing but the flag is read.
        while !self.all_have_come.load(Ordering::Acquire) && until.check(String::new).is_ok() {
            poller::pause(until.slice(PAUSE));
        }
    }
}

impl Drop for Lobby {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::warn!(Bootstrap, "the thread of the lobby panicked");
        }
    }
}

/// Takes the name. An earlier attempt of this job may just be ending.
fn listen(name: &LobbyName, wait: &Wait) -> Result<Listener> {
    let patience = wait.until(Deadline::after(TAKEN_PATIENCE).earlier(wait.deadline));
    loop {
        match Listener::bind(&name.0) {
            Err(error) if is(&error, ErrorKind::AddrInUse) => {
                let holder = HandoverStream::connect(&name.0).ok().flatten().and_then(|stream| stream.process());
                let who = holder
                    .map_or_else(|| "another process".to_owned(), |process| format!("process {}", process.number()));
                wait.abort.check()?;
                if patience.check(String::new).is_err() {
                    return Err(Error::invalid_usage(format!(
                        "rank 0 is here already: {who} holds {name}; two processes of this job were given rank 0"
                    )));
                }
                poller::pause(patience.slice(PAUSE));
            }
            other => return other,
        }
    }
}

fn is(error: &Error, kind: ErrorKind) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.kind() == kind)
}

/// The record of rank 0; `None` if rank 0 is not there yet.
///
/// # Errors
/// [`Kind::InvalidUsage`] if the lobby is another user's; of `wait`; [`Kind::Remote`] for an answer that is no record.
pub(crate) fn visit(name: &LobbyName, me: World, wait: &Wait) -> Result<Option<Record>> {
    let stream = match HandoverStream::connect(&name.0) {
        Ok(Some(stream)) => stream,
        Ok(None) => return Ok(None),
        Err(error) if is(&error, ErrorKind::ConnectionRefused) => return Ok(None),
        Err(error) => return Err(error),
    };
    if !stream.is_of_this_user()? {
        return Err(Error::invalid_usage(format!(
            "{name}, where ranks of this job meet, is another user's: set RSCCL_STORE"
        )));
    }
    let mut question = Writer::new();
    question.raw(&MARK).u32(me.rank.get()).u32(me.size);
    // A new connection has room for 16 bytes.
    if !matches!(stream.write(question.as_slice()), Ok(Some(_))) {
        return Ok(None);
    }
    let patience = wait.until(Deadline::after(ANSWER_PATIENCE).earlier(wait.deadline));
    let mut heard = Vec::new();
    loop {
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes) {
            // Rank 0 has ended, or closes its lobby: it may come again.
            Ok(Some(0)) | Err(_) => return Ok(None),
            Ok(Some(count)) => heard.extend_from_slice(&bytes[..count]),
            Ok(None) => {
                wait.abort.check()?;
                if patience.check(String::new).is_err() {
                    return Ok(None);
                }
                poller::wait_any(&[(stream.as_fd(), Interest::Read)], patience.slice(PAUSE))?;
            }
        }
        let mut reader = Reader::new(&heard, "the lobby's answer");
        if let Ok(record) = reader.bytes(MAX_RECORD_BYTES) {
            return Record::decode(record).map(Some);
        }
        if heard.len() > 4 + MAX_RECORD_BYTES {
            return Err(Error::new(Kind::Remote, format!("what listens at {name} sends no record")));
        }
    }
}

/// The thread's side.
struct Host {
    listener: Listener,
    poller: Poller,
    _stopped: UnixStream,
    answer: Vec<u8>,
    size: u32,
    guests: HashMap<u64, Guest>,
    next: u64,
    /// The ranks that have been answered.
    come: BTreeSet<Rank>,
    all_have_come: Arc<AtomicBool>,
    elsewhere: Option<(Instant, Elsewhere)>,
    _kept: Option<Box<dyn std::any::Any + Send>>,
}

struct Guest {
    stream: HandoverStream,
    heard: Vec<u8>,
}

impl Host {
    fn run(mut self) {
        let mut ready = Ready::default();
        loop {
            let left = self.elsewhere.as_ref().map(|(at, _)| at.saturating_duration_since(clock::now()));
            if let Err(error) = self.poller.wait(&mut ready, left.unwrap_or(Duration::MAX)) {
                log::warn!(Bootstrap, "the lobby cannot poll: {error}");
                return;
            }
            if self.elsewhere.as_ref().is_some_and(|(at, _)| clock::now() >= *at)
                && let Some((_, open)) = self.elsewhere.take()
                && !self.all_have_come.load(Ordering::Acquire)
            {
                self._kept = open();
            }
            for event in ready.iter() {
                match event.token {
                    STOP => return,
                    LISTENER => self.admit(),
                    token => self.hear(token),
                }
            }
        }
    }

    fn admit(&mut self) {
        loop {
            match self.listener.accept() {
                Ok(Some(stream)) => {
                    if self.guests.len() >= MAX_GUESTS {
                        self.guests.clear();
                    }
                    let token = self.next;
                    self.next += 1;
                    if self.poller.add(stream.as_fd(), token, Interest::Read).is_ok() {
                        self.guests.insert(token, Guest { stream, heard: Vec::new() });
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    log::warn!(Bootstrap, "the lobby cannot accept for now: {error}");
                    poller::pause(PAUSE);
                    return;
                }
            }
        }
    }

    fn hear(&mut self, token: u64) {
        let Some(guest) = self.guests.get_mut(&token) else { return };
        let mut bytes = [0; QUESTION_BYTES];
        match guest.stream.read(&mut bytes) {
            Ok(Some(count)) if count > 0 && guest.heard.len() + count <= QUESTION_BYTES => {
                guest.heard.extend_from_slice(&bytes[..count]);
                if guest.heard.len() < QUESTION_BYTES {
                    return;
                }
            }
            Ok(None) => return,
            Ok(Some(_)) | Err(_) => {
                self.guests.remove(&token);
                return;
            }
        }
        let Some(guest) = self.guests.remove(&token) else { return };
        let Some(rank) = asked(&guest.heard) else { return };
        // A record is shorter than the least buffer of a socket.
        if matches!(guest.stream.write(&self.answer), Ok(Some(count)) if count == self.answer.len())
            && rank.get() < self.size
        {
            self.come.insert(rank);
            let come = u32::try_from(self.come.len()).unwrap_or(u32::MAX);
            // Release: see `linger`.
            self.all_have_come.store(come >= self.size - 1, Ordering::Release);
        }
    }
}

/// The rank that asks.
fn asked(question: &[u8]) -> Option<Rank> {
    let mut reader = Reader::new(question, "a question to the lobby");
    (reader.raw(MARK.len()).ok()? == MARK).then_some(())?;
    Some(Rank::new(reader.u32().ok()?))
}

pub(super) fn decode_anything(bytes: &[u8]) {
    let _refused = asked(bytes);
}

const MARK: [u8; 8] = *b"rscclmt1";
const QUESTION_BYTES: usize = 8 + 4 + 4;
/// Above the longest record: a host's name, a namespace, a job's name, and the words of an error.
const MAX_RECORD_BYTES: usize = 16 << 10;
/// The most connections that have not asked yet.
const MAX_GUESTS: usize = 1024;
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_GUEST: u64 = 2;
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// How long rank 0 may take to answer: its thread does nothing else.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// How long an earlier rank 0 of this job may take to end.
const TAKEN_PATIENCE: Duration = Duration::from_secs(2);
/// When rank 0 looks for ranks elsewhere, too. Ranks look elsewhere as long after they have begun.
pub(crate) const ELSEWHERE_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::store::record::IdOutcome;
    use crate::sync::AbortFlag;

    fn soon() -> Wait {
        Wait::new(Duration::from_secs(30), &AbortFlag::new())
    }

    fn world(rank: u32) -> World {
        World { rank: Rank::new(rank), size: 3 }
    }

    fn record() -> Record {
        Record { size: 3, ..Record::new(IdOutcome::Failed("words".into())).unwrap() }
    }

    /// A name that no other test has.
    fn name() -> LobbyName {
        LobbyName::new(&format!("test {:x?}", crate::sys::random::bytes::<8>().unwrap()), 0)
    }

    #[test]
    fn each_rank_gets_the_record_as_often_as_it_asks_and_nothing_stays() {
        let name = name();
        assert_eq!(visit(&name, world(1), &soon()).unwrap(), None);
        let (record, wait) = (record(), soon());
        let lobby = Lobby::open(&name, 3, &record, None, &wait).unwrap();
        for _ in 0..3 {
            assert_eq!(visit(&name, world(1), &soon()).unwrap().as_ref(), Some(&record));
        }
        lobby.linger(Deadline::after(Duration::from_millis(1)), &wait);
        assert!(!lobby.all_have_come.load(Ordering::Acquire), "rank 2 has not come");
        assert_eq!(visit(&name, world(2), &soon()).unwrap().as_ref(), Some(&record));
        lobby.linger(Deadline::after(Duration::from_secs(30)), &wait);
        drop(lobby);
        assert_eq!(visit(&name, world(2), &soon()).unwrap(), None);
    }

    #[test]
    fn a_second_rank_zero_is_told_and_names_differ_by_job_and_number() {
        let (name, wait) = (name(), soon());
        let _lobby = Lobby::open(&name, 3, &record(), None, &wait).unwrap();
        let error = Lobby::open(&name, 3, &record(), None, &wait).unwrap_err();
        assert!(error.message().contains(&format!("process {}", std::process::id())), "{error}");
        assert_ne!(LobbyName::new("a", 0), LobbyName::new("a", 1));
        assert_ne!(LobbyName::new("a", 0), LobbyName::new("b", 0));
    }

    #[test]
    fn strangers_cost_only_their_own_connection() {
        let (name, wait, record) = (name(), soon(), record());
        let _lobby = Lobby::open(&name, 3, &record, None, &wait).unwrap();
        let connect = || HandoverStream::connect(&name.0).unwrap();
        let _silent: Vec<_> = (0..50).filter_map(|_| connect()).collect();
        let mut rude = connect().unwrap();
        rude.write(&[0xff; 64]).unwrap();
        assert_eq!(visit(&name, world(1), &soon()).unwrap().as_ref(), Some(&record));
        rude = connect().unwrap();
        rude.write(b"rscclmt1\xff\xff\xff\xff\xff\xff\xff\xff").unwrap();
        assert_eq!(visit(&name, world(2), &soon()).unwrap().as_ref(), Some(&record));
    }

    #[test]
    fn what_is_elsewhere_is_opened_only_where_ranks_are_missing() {
        let (name, wait) = (name(), soon());
        let opened = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&opened);
        let open: Elsewhere = Box::new(move || {
            seen.store(true, Ordering::Release);
            None
        });
        let _lobby = Lobby::open(&name, 3, &record(), Some(open), &wait).unwrap();
        while !opened.load(Ordering::Acquire) {
            wait.check(|| "nothing was opened elsewhere".to_owned()).unwrap();
            std::thread::yield_now();
        }
    }
}
