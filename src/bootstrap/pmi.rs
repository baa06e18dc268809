//! The key-value space of a process manager that speaks PMI, by which ranks of several hosts exchange the unique id:
//! Hydra (MPICH, Intel MPI) and `srun --mpi=pmi2`, which answers PMI-1 too.
//!
//! A rank is started with a socket, whose number is `PMI_FD`. Lines of text go over it, `key=value` pairs with blanks
//! between them; each request has one answer:
//!
//! ```text
//! cmd=init pmi_version=1 pmi_subversion=1   ->  cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
//! cmd=get_my_kvsname                        ->  cmd=my_kvsname kvsname=SPACE
//! cmd=put kvsname=SPACE key=K value=V       ->  cmd=put_result rc=0
//! cmd=barrier_in                            ->  cmd=barrier_out      once all ranks have said it
//! cmd=get kvsname=SPACE key=K               ->  cmd=get_result rc=0 value=V; rc is not 0 if there is none
//! cmd=finalize                              ->  cmd=finalize_ack
//! ```
//!
//! The process has one such conversation, which is MPI's in a process of MPI. It ends when the process does: a rank
//! that leaves without `finalize` has died, in the eyes of the process manager.

use std::io::{self, Read, Write};
use std::time::Duration;

use socket2::Socket;

use crate::bootstrap::UniqueId;
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::statics::{Mutex, MutexGuard};
use crate::sync::{AbortFlag, Wait};
use crate::sys::fork::PerProcess;
use crate::sys::{given, poller};
use crate::types::{Rank, World};
use crate::wire::{Reader, Writer, cut};

/// What this process has of its process manager.
#[derive(Debug)]
enum Link {
    None,
    Open(Conversation),
    /// The process was forked by one that has the conversation.
    Parents,
}

/// The conversation with the process manager of this process.
#[derive(Debug)]
struct Conversation {
    socket: Socket,
    space: String,
    /// What has come and was not read yet.
    come: Vec<u8>,
    /// The request whose answer was not waited for to the end.
    unanswered: Option<&'static str>,
}

/// Gives the id that rank 0 has `made`, or the reason why it has none, to all ranks of `world`. All ranks call this,
/// with one key for each communicator; the others pass `None`.
///
/// # Errors
/// The one of `made`, on all ranks; [`Kind::InvalidUsage`] if `descriptor` is not a process manager's socket;
/// [`Kind::Timeout`] at the deadline of `wait`; [`Kind::System`] if the process manager has gone or does not
/// understand; [`Kind::Mismatch`] if rank 0 was told of another world.
pub(crate) fn share_id(
    descriptor: u32,
    key: &str,
    (world, made): (World, Option<Result<UniqueId>>),
    wait: &Wait,
) -> Result<UniqueId> {
    let mine = made.as_ref().map(|made| encode(world.size, made));
    let given = exchange(descriptor, key, mine.as_deref(), wait)?;
    if let Some(made) = made {
        return made;
    }
    let first = Rank::new(0);
    let given = given.ok_or_else(|| Error::remote(first, "rank 0 has given the process manager (PMI) no id"))?;
    decode(&given, world.size).map_err(|error| error.about(first))
}

pub(super) fn encode(size: u32, made: &Result<UniqueId>) -> Vec<u8> {
    let mut bytes = Writer::new();
    bytes.u32(size);
    match made {
        Ok(id) => bytes.u8(ID).bytes(id.as_bytes()),
        Err(error) => bytes.u8(FAILED).text(cut(&error.to_string(), MOST_WORDS_BYTES)),
    };
    bytes.finish()
}

pub(super) fn decode(bytes: &[u8], size: u32) -> Result<UniqueId> {
    let mut reader = Reader::new(bytes, "rank 0's id");
    let theirs = reader.u32()?;
    let made = match reader.u8()? {
        ID => Ok(UniqueId::from_bytes(reader.bytes(UniqueId::BYTES)?)?),
        FAILED => Err(reader.text(MOST_WORDS_BYTES)?),
        other => return Err(reader.malformed(&format!("an outcome of kind {other}"))),
    };
    reader.finish()?;
    if theirs != size {
        return Err(Error::mismatch(format!(
            "ranks disagree about the world: rank 0 was told that it has {theirs} ranks, this rank {size}"
        )));
    }
    made.map_err(|why| Error::remote(Rank::new(0), format!("rank 0 could not make the id: {why}")))
}

/// Puts `mine` under `key` and waits for all ranks; yields what is under the key then.
fn exchange(descriptor: u32, key: &str, mine: Option<&[u8]>, wait: &Wait) -> Result<Option<Vec<u8>>> {
    let inherited = |parents: Option<&Mutex<Link>>| Mutex::new(parents.map_or(Link::None, |_| Link::Parents));
    let mut held = lock(CONVERSATION.get_or_inherit(inherited), wait)?;
    if matches!(*held, Link::None) {
        *held = Link::Open(Conversation::open(descriptor, wait)?);
    }
    let Link::Open(conversation) = &mut *held else {
        return Err(Error::invalid_usage(
            "this process was forked by a rank, to which the process manager (PMI) speaks; set RSCCL_STORE, or \
             MASTER_ADDR and MASTER_PORT",
        ));
    };
    if let Some(bytes) = mine {
        conversation.put(key, bytes, wait)?;
    }
    conversation.ask("barrier_in", "", "barrier_out", wait)?;
    conversation.get(key, wait)
}

/// Takes the conversation. Another thread may be in the middle of an exchange, whose deadline is not this one's.
fn lock<'a>(link: &'a Mutex<Link>, wait: &Wait) -> Result<MutexGuard<'a, Link>> {
    loop {
        if let Some(held) = link.try_lock() {
            return Ok(held);
        }
        wait.check(|| {
            "waited for another thread of this process, whose communicator the process manager (PMI) serves now"
                .to_owned()
        })?;
        poller::pause(wait.slice(LOOK));
    }
}

impl Conversation {
    fn open(descriptor: u32, wait: &Wait) -> Result<Conversation> {
        let socket = given::socket(descriptor).map_err(|error| {
            Error::invalid_usage(format!(
                "PMI_FD={descriptor} is not the process manager's socket ({error}): the variable is left over, or a \
                 program between the launcher and this one has closed it; set RSCCL_STORE, or MASTER_ADDR and \
                 MASTER_PORT"
            ))
        })?;
        let prepared = socket.set_read_timeout(Some(LOOK)).and_then(|()| socket.set_write_timeout(Some(WRITE_LIMIT)));
        prepared.map_err(|error| Error::system("the process manager's socket", error))?;
        let mut conversation = Conversation { socket, space: String::new(), come: Vec::new(), unanswered: None };
        conversation.ask("init", " pmi_version=1 pmi_subversion=1", "response_to_init", wait)?;
        let answer = conversation.ask("get_my_kvsname", "", "my_kvsname", wait)?;
        field(&answer, "kvsname")
            .ok_or_else(|| misunderstood("get_my_kvsname", &answer))?
            .clone_into(&mut conversation.space);
        // Where there is no room for it, the process manager will say that the rank has left too early.
        let _room = given::at_exit(finalize);
        Ok(conversation)
    }

    fn put(&mut self, key: &str, bytes: &[u8], wait: &Wait) -> Result<()> {
        let value = to_hex(bytes);
        if value.len() > MOST_VALUE_BYTES {
            return Err(Error::internal(format!("{} bytes are too many for the process manager", bytes.len())));
        }
        let words = format!(" kvsname={} key={key} value={value}", self.space);
        self.ask("put", &words, "put_result", wait).map(drop)
    }

    fn get(&mut self, key: &str, wait: &Wait) -> Result<Option<Vec<u8>>> {
        let words = format!(" kvsname={} key={key}", self.space);
        let answer = self.exchange_lines("get", &words, "get_result", wait)?;
        if field(&answer, "rc").is_some_and(|code| code != "0") {
            return Ok(None);
        }
        let bytes = field(&answer, "value").and_then(from_hex);
        bytes.map(Some).ok_or_else(|| misunderstood("get", &answer))
    }

    /// Makes a request, whose answer has to say `expected` and that all is well.
    fn ask(&mut self, request: &'static str, words: &str, expected: &str, wait: &Wait) -> Result<String> {
        let answer = self.exchange_lines(request, words, expected, wait)?;
        match field(&answer, "rc") {
            None | Some("0") => Ok(answer),
            Some(_) => Err(misunderstood(request, &answer)),
        }
    }

    fn exchange_lines(&mut self, request: &'static str, words: &str, expected: &str, wait: &Wait) -> Result<String> {
        if let Some(earlier) = self.unanswered {
            return Err(Error::invalid_usage(format!(
                "the process manager (PMI) has not answered an earlier {earlier}, so it cannot be asked again"
            )));
        }
        self.unanswered = Some(request);
        self.socket.write_all(format!("cmd={request}{words}\n").as_bytes()).map_err(|error| gone(request, error))?;
        let answer = self.line(request, wait)?;
        if field(&answer, "cmd") != Some(expected) {
            return Err(misunderstood(request, &answer));
        }
        self.unanswered = None;
        Ok(answer)
    }

    /// The next line, without its end.
    fn line(&mut self, request: &str, wait: &Wait) -> Result<String> {
        loop {
            if let Some(end) = self.come.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.come.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.come.len() > MOST_LINE_BYTES {
                return Err(misunderstood(request, "a line without end"));
            }
            let mut bytes = [0; 1024];
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(gone(request, io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.come.extend_from_slice(&bytes[..count]),
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(gone(request, error)),
            }
            wait.check(|| match request {
                "barrier_in" => "waited for all ranks to come to the process manager's barrier (PMI)".to_owned(),
                _ => format!("waited for the process manager (PMI) to answer {request}"),
            })?;
        }
    }
}

/// Ends the conversation of this process, if it has one and nobody is in the middle of it.
extern "C" fn finalize() {
    let Some(held) = CONVERSATION.get() else { return };
    let Some(mut held) = held.try_lock() else { return };
    if let Link::Open(conversation) = &mut *held {
        // Nobody is left to tell of an error.
        let _gone = conversation.ask("finalize", "", "finalize_ack", &Wait::new(FINALIZE_LIMIT, &AbortFlag::new()));
    }
}

/// Two digits for each byte.
pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of pairs of digits; `None` if the text is anything else.
pub(super) fn from_hex(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect()
}

/// The value of `name` in a line of pairs.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn gone(request: &str, error: io::Error) -> Error {
    Error::system(format!("the process manager (PMI) did not answer {request}: it has ended, or ends the job"), error)
}

fn misunderstood(request: &str, answer: &str) -> Error {
    let shown: String = answer.chars().take(SHOWN_CHARS).flat_map(char::escape_default).collect();
    Error::new(Kind::System, format!("the process manager (PMI) answered {request} with '{shown}'"))
}

/// The conversation of this process. A forked child has none: its parent goes on with it.
static CONVERSATION: PerProcess<Mutex<Link>> = PerProcess::new();

/// The pause between two looks at the deadline and the abort flag.
const LOOK: Duration = Duration::from_millis(20);
/// How long a process manager may leave a request in the socket.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// How long the end of the process waits for the process manager.
const FINALIZE_LIMIT: Duration = Duration::from_secs(2);
/// What every process manager takes (`get_maxes` says 1024).
const MOST_VALUE_BYTES: usize = 1000;
const MOST_LINE_BYTES: usize = 4096;
const SHOWN_CHARS: usize = 100;
/// So that the words fit in a value, with two digits for each byte.
const MOST_WORDS_BYTES: usize = 450;

const ID: u8 = 0;
const FAILED: u8 = 1;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::sys::thread;

    fn soon() -> Wait {
        Wait::new(Duration::from_secs(10), &AbortFlag::new())
    }

    /// A conversation with a process manager that gives these answers, one to each request.
    fn with(answers: &[&str]) -> Result<Conversation> {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let answers: Vec<String> = answers.iter().map(|&answer| answer.to_owned()).collect();
        let manager = thread::spawn("manager", move || {
            let mut requests = BufReader::new(theirs.try_clone().unwrap()).lines();
            let mut theirs = theirs;
            for answer in answers {
                let Some(Ok(_)) = requests.next() else { return };
                theirs.write_all(answer.as_bytes()).unwrap();
            }
            // Until the rank has gone.
            requests.for_each(drop);
        });
        drop(manager.unwrap());
        Conversation::open(u32::try_from(mine.as_raw_fd()).unwrap(), &soon())
    }

    const INIT: &str = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
    const SPACE: &str = "cmd=my_kvsname rc=0 kvsname=1.0\n";

    #[test]
    fn values_go_out_and_come_back() {
        let put = "cmd=put_result rc=0\n";
        // As Slurm and Hydra write it.
        let got =
            ["cmd=get_result rc=0 value=00ff6b\n", "cmd=get_result rc=0 msg=success value=\n", "cmd=get_result rc=1\n"];
        let mut conversation = with(&[&[INIT, SPACE, put, "cmd=barrier_out\n"][..], &got].concat()).unwrap();
        assert_eq!(conversation.space, "1.0");
        conversation.put("key", &[0, 255, b'k'], &soon()).unwrap();
        conversation.ask("barrier_in", "", "barrier_out", &soon()).unwrap();
        let values = [(); 3].map(|()| conversation.get("key", &soon()).unwrap());
        assert_eq!(values, [Some(vec![0, 255, b'k']), Some(vec![]), None]);
        assert!(conversation.put("key", &[0; 600], &soon()).is_err(), "more than a value holds");
    }

    #[test]
    fn a_second_thread_waits_for_the_conversation_until_its_own_deadline() {
        let link = Mutex::new(Link::None);
        let held = link.lock();
        let wait = Wait::new(Duration::from_millis(50), &AbortFlag::new());
        let error = lock(&link, &wait).unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout);
        assert!(error.to_string().contains("waited for another thread of this process"), "{error}");
        drop(held);
        assert!(matches!(*lock(&link, &wait.until(crate::sync::Deadline::NEVER)).unwrap(), Link::None));
    }

    #[test]
    fn answers_that_make_no_sense_are_errors() {
        let refused = |answers: &[&str]| with(answers).unwrap_err().to_string();
        let text = refused(&["cmd=response_to_init rc=-1\n"]);
        assert!(text.contains("answered init with 'cmd=response_to_init rc=-1'"), "{text}");
        assert!(refused(&[INIT, "cmd=my_kvsname rc=0\n"]).contains("answered get_my_kvsname"), "no name");
        assert!(refused(&["\u{7}\n"]).contains("\\u{7}"), "not shown as it is");
        assert!(refused(&[&"x".repeat(9000)]).contains("a line without end"));
        for value in ["0g", "012", "\u{e9}\u{e9}"] {
            let answer = format!("cmd=get_result rc=0 value={value}\n");
            let error = with(&[INIT, SPACE, &answer]).unwrap().get("key", &soon()).unwrap_err();
            assert!(error.to_string().contains("answered get with"), "{error}");
        }
        let words = Error::invalid_usage("no interface");
        let told = decode(&encode(3, &Err(words)), 3).unwrap_err().to_string();
        assert!(told.contains("rank 0 could not make the id: no interface"), "{told}");
        let id = UniqueId::fresh("10.0.0.1:1".parse().unwrap()).unwrap();
        assert_eq!(decode(&encode(3, &Ok(id)), 3).unwrap(), id);
        assert!(decode(&encode(3, &Ok(id)), 4).unwrap_err().to_string().contains("has 3 ranks, this rank 4"));
        let whole = encode(3, &Ok(id));
        assert!((0..whole.len()).all(|length| decode(&whole[..length], 3).is_err()));
    }

    #[test]
    fn a_barrier_that_is_not_reached_ends_at_the_deadline_and_is_not_entered_again() {
        let mut conversation = with(&[INIT, SPACE]).unwrap();
        let shortly = Wait::new(Duration::from_millis(50), &AbortFlag::new());
        let late = conversation.ask("barrier_in", "", "barrier_out", &shortly).unwrap_err();
        assert_eq!(late.kind(), Kind::Timeout);
        assert!(late.to_string().contains("all ranks to come to the process manager's barrier"), "{late}");
        let again = conversation.get("key", &soon()).unwrap_err().to_string();
        assert!(again.contains("has not answered an earlier barrier_in"), "{again}");
    }

    #[test]
    fn a_number_that_is_no_socket_is_refused_with_what_to_do() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = Conversation::open(u32::try_from(file.as_raw_fd()).unwrap(), &soon()).unwrap_err().to_string();
        assert!(error.contains("is not the process manager's socket") && error.contains("set RSCCL_STORE"), "{error}");
    }
}
