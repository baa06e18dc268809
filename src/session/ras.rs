//! What NVIDIA's client `ncclras` asks, answered: a thread of the process that listens where `NCCL_RAS_ADDR` says.
//!
//! Protocol 2 is lines of text:
//!
//! | line | answer |
//! |---|---|
//! | `CLIENT PROTOCOL n` | `SERVER PROTOCOL 2` |
//! | `TIMEOUT seconds` | `OK` |
//! | `SET FORMAT text`, `SET FORMAT json` | `OK` |
//! | `STATUS`, `VERBOSE STATUS` | the answer, and the end of the connection |
//! | anything else, such as `MONITOR`, `DIAGNOSTICS`, `CONTROL` | `ERROR: Unknown command` |
//!
//! It listens on loopback alone, since nobody who asks proves who they are; it only tells, and what it tells is what
//! `rsccl status` shows of these ranks, to any user of this host. Of the processes of a host the first has the port,
//! and tells of all ranks of its communicators: of those on this host by their pages, of those on other hosts what its
//! own ranks have heard of them ([`RemoteState`]): nobody is asked, so that no answer waits for another host. Where a
//! `libnccl` is loaded nobody listens: its processes share the port by SO_REUSEPORT, and answers would come from
//! either.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::bootstrap::socket;
use crate::error::{Error, Result};
use crate::log;
use crate::session::elsewhere::{self, RemoteRank, RemoteState};
use crate::session::page_view::{DOCUMENT_VERSION, ProcessView, on_one_line, quoted};
use crate::sync::primitive::statics::Mutex;
use crate::sys::foreign_pages::ForeignPages;
use crate::sys::fork::PerProcess;
use crate::sys::poller::{self, Interest};
use crate::sys::rank_page::{OwnPages, PAGES_NAME};
use crate::sys::{clock, host, open, thread};
use crate::types::Rank;

/// Whether this process has tried to listen.
static BEGUN: PerProcess<Mutex<bool>> = PerProcess::new();

/// Listens at `address`, if that is set and nobody of this process has tried yet. What fails is told in the log, and
/// an address that is none on standard error: ranks work without.
pub(crate) fn answer_at(address: Option<&str>, rank: Rank) {
    let Some(address) = address else { return };
    if std::mem::replace(&mut *BEGUN.get_or_init(Mutex::default).lock(), true) {
        return;
    }
    let at = match parsed(address) {
        Ok(at) => at,
        // A mistake of the user's. That another rank of the host answers at the port already is none.
        Err(error) => return log::tell(&format!("NCCL_RAS_ADDR={address:?}: nobody answers ncclras here: {error}")),
    };
    match begin(at) {
        Ok(at) => log::info!(Ras @ rank, "answers ncclras at {at}"),
        Err(error) => log::info!(Ras @ rank, "NCCL_RAS_ADDR={address:?}: nobody answers ncclras here: {error}"),
    }
}

fn begin(address: SocketAddr) -> Result<SocketAddr> {
    if let Some(why) = why_silent(std::fs::read(MAPS)) {
        return Err(Error::invalid_usage(why));
    }
    let (listener, at) = socket::listen(address)?;
    listener.set_nonblocking(true).map_err(|error| Error::system("a listener for ncclras", error))?;
    // It lives as long as the process.
    drop(thread::spawn("rsccl ras", move || serve(&listener))?);
    Ok(at)
}

/// An address of this host that no other reaches.
fn parsed(address: &str) -> Result<SocketAddr> {
    let numbers = address.strip_prefix("localhost:").map(|port| format!("{}:{port}", Ipv4Addr::LOCALHOST));
    let parsed: Option<SocketAddr> = numbers.as_deref().unwrap_or(address).parse().ok();
    let is_near = |at: &SocketAddr| match at.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback(),
    };
    parsed.filter(is_near).ok_or_else(|| {
        Error::invalid_argument("it is no address of this host alone: write localhost:28028, or an address of loopback")
    })
}

/// Why nobody answers in this process, of whose memory the system has told `maps`: a `libnccl` is loaded in it, or may
/// be.
fn why_silent(maps: std::io::Result<Vec<u8>>) -> Option<&'static str> {
    const NAME: &[u8] = b"/libnccl.so";
    match maps {
        // Paths need not be text.
        Ok(maps) if !maps.windows(NAME.len()).any(|some| some == NAME) => None,
        Ok(_) => Some("this process has libnccl loaded, which answers by itself"),
        Err(_) => Some("/proc/self/maps cannot be read, so that libnccl may be loaded, which answers by itself"),
    }
}

/// Serves one client after the other, until a `libnccl` is loaded.
fn serve(listener: &TcpListener) {
    while poller::wait_any(&[(listener.as_fd(), Interest::Read)], BETWEEN_LOOKS).is_ok() {
        if why_silent(std::fs::read(MAPS)).is_some() {
            return;
        }
        match open::accept_tcp(listener) {
            Ok((stream, _)) => {
                let deadline = clock::now() + CLIENT_TIME;
                // A client that breaks off, or is too slow, has what it has.
                let _ended = stream.set_nonblocking(true).and_then(|()| Client { stream, deadline }.serve());
            }
            Err(error) => poller::pause(rest_after(&error)),
        }
    }
}

/// The rest after a client that could not be accepted: it stays at the port where no descriptor is left for it.
fn rest_after(error: &std::io::Error) -> Duration {
    match error.kind() {
        ErrorKind::WouldBlock => Duration::ZERO,
        _ => REST,
    }
}

/// Who asks.
#[derive(Debug)]
struct Client {
    stream: TcpStream,
    deadline: Instant,
}

impl Client {
    fn serve(&mut self) -> std::io::Result<()> {
        let mut form = Form::Text;
        for _ in 0..MOST_LINES {
            let Some(line) = self.line()? else { return Ok(()) };
            match answer(&line, &mut form) {
                Answer::Line(text) => self.write(format!("{text}\n").as_bytes())?,
                Answer::Status { is_verbose } => {
                    let text = match form {
                        Form::Text => status_text(is_verbose),
                        Form::Json => status_json(),
                    };
                    return self.write(text.as_bytes());
                }
            }
        }
        Ok(())
    }

    /// The next line; `None` where there is none, or it is too long.
    fn line(&mut self) -> std::io::Result<Option<String>> {
        let mut line = Vec::new();
        while line.len() < MOST_LINE_BYTES {
            let mut byte = [0];
            match self.stream.read(&mut byte) {
                Ok(0) => return Ok(None),
                Ok(_) if byte == *b"\n" => return Ok(Some(String::from_utf8_lossy(&line).trim().to_owned())),
                Ok(_) => line.extend(byte),
                Err(error) => self.wait(&error, Interest::Read)?,
            }
        }
        Ok(None)
    }

    fn write(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) => self.wait(&error, Interest::Write)?,
            }
        }
        Ok(())
    }

    /// Waits where a call would have had to.
    fn wait(&self, error: &std::io::Error, interest: Interest) -> std::io::Result<()> {
        let left = self.deadline.saturating_duration_since(clock::now());
        match error.kind() {
            ErrorKind::Interrupted => Ok(()),
            ErrorKind::WouldBlock if !left.is_zero() => {
                poller::wait_any(&[(self.stream.as_fd(), interest)], left).map_err(std::io::Error::other)
            }
            ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
            kind => Err(kind.into()),
        }
    }
}

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

/// What a line gets.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Line(&'static str),
    Status { is_verbose: bool },
}

fn answer(line: &str, form: &mut Form) -> Answer {
    let words: Vec<String> = line.split_whitespace().map(str::to_ascii_uppercase).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    match words[..] {
        ["CLIENT", "PROTOCOL", number] if is_number(number) => Answer::Line("SERVER PROTOCOL 2"),
        // Answers are made at once.
        ["TIMEOUT", seconds] if is_number(seconds) => Answer::Line("OK"),
        ["SET", "FORMAT", "TEXT"] => {
            *form = Form::Text;
            Answer::Line("OK")
        }
        ["SET", "FORMAT", "JSON"] => {
            *form = Form::Json;
            Answer::Line("OK")
        }
        ["STATUS"] => Answer::Status { is_verbose: false },
        ["VERBOSE", "STATUS"] => Answer::Status { is_verbose: true },
        _ => Answer::Line("ERROR: Unknown command"),
    }
}

/// What the ranks show that have a communicator with ranks of this process, each process by itself. The first is this.
fn views() -> Vec<ProcessView> {
    let now = clock::monotonic_nanoseconds();
    let Some(pages) = OwnPages::find() else { return Vec::new() };
    let Ok(mine) = ProcessView::read(&|word| pages.word(word), now) else { return Vec::new() };
    let others: BTreeSet<u64> = mine.peer_processes().filter(|process| *process != mine.process).collect();
    let others = others.into_iter().filter_map(|process| view_of(process, now));
    std::iter::once(mine).chain(others).collect()
}

fn view_of(process: u64, now: u64) -> Option<ProcessView> {
    let name = format!("/memfd:{} (deleted)", PAGES_NAME.to_string_lossy());
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    let is_pages = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|target| target.as_os_str() == name.as_str());
    let mut found = entries.filter_map(std::result::Result::ok).map(|entry| entry.path()).filter(is_pages);
    found.find_map(|path| {
        let pages = ForeignPages::open(&path).ok()?;
        ProcessView::read(&|word| pages.word(word), now).ok().filter(|view| view.process == process)
    })
}

/// What the ranks of this process know of those on other hosts, each rank of a communicator once.
fn remote_ranks() -> Vec<RemoteRank> {
    let mut known: Vec<RemoteRank> = elsewhere::all().iter().flat_map(|own| own.remote_ranks()).collect();
    known.sort_by_key(|one| (one.communicator, one.rank, one.standing == RemoteState::Silent));
    known.dedup_by_key(|one| (one.communicator, one.rank));
    known
}

impl RemoteState {
    /// A word for programs, and what is known beyond it.
    fn told(&self) -> (&'static str, &str) {
        match self {
            RemoteState::Dead(why) => ("dead", why),
            RemoteState::Left => ("left", ""),
            RemoteState::Waits(call) => ("waits", call),
            RemoteState::Silent => ("silent", ""),
        }
    }
}

impl RemoteRank {
    fn as_json(&self) -> String {
        let RemoteRank { communicator, rank, size, host, host_name, pid, standing } = self;
        let (state, words) = standing.told();
        format!(
            "{{\"communicator\":\"{communicator:016x}\",\"rank\":{rank},\"size\":{size},\"host\":{},\
             \"host_id\":\"{host:016x}\",\"pid\":{pid},\"state\":\"{state}\",\"words\":{}}}",
            quoted(host_name),
            quoted(words)
        )
    }

    fn as_text(&self) -> String {
        let RemoteRank { communicator, rank, size, host: _, host_name, pid, standing } = self;
        let does = match standing {
            RemoteState::Dead(why) => format!("has died: {}", on_one_line(why)),
            RemoteState::Left => "has left".to_owned(),
            RemoteState::Waits(call) => format!("waits in {}", on_one_line(call)),
            RemoteState::Silent => "has told nothing: it computes, or is stopped".to_owned(),
        };
        let host = on_one_line(host_name);
        format!("rank {rank} of {size}, communicator {communicator:016x}, host {host}, pid {pid}: {does}\n")
    }
}

fn status_json() -> String {
    let host = quoted(&host::hostname().unwrap_or_default());
    let processes: Vec<String> = views().iter().map(|view| view.as_json(LATEST)).collect();
    let remote: Vec<String> = remote_ranks().iter().map(RemoteRank::as_json).collect();
    format!(
        "{{\"rsccl_status\":{DOCUMENT_VERSION},\"host\":{host},\"processes\":[{}],\"remote\":[{}]}}\n",
        processes.join(","),
        remote.join(",")
    )
}

fn status_text(is_verbose: bool) -> String {
    let (views, remote) = (views(), remote_ranks());
    let ranks: usize = views.iter().map(ProcessView::ranks).sum();
    let mut text = format!(
        "RSCCL version {}\n\n{} processes of host {} with {ranks} ranks of communicators\n\n",
        env!("CARGO_PKG_VERSION"),
        views.len(),
        host::hostname().unwrap_or_default()
    );
    views.iter().for_each(|view| text.push_str(&view.as_text(is_verbose)));
    if !remote.is_empty() {
        text.push_str(&format!("\n{} ranks on other hosts, by what they have told here\n\n", remote.len()));
        remote.iter().for_each(|one| text.push_str(&one.as_text()));
    }
    if !is_verbose {
        text.push_str("\nrsccl status says who holds whom up.\n");
    }
    text
}

/// Of a line that a client sends: those of the protocol have 32.
const MOST_LINE_BYTES: usize = 256;
/// Lines of one client.
const MOST_LINES: usize = 64;
/// How long one client may take: others wait meanwhile.
const CLIENT_TIME: Duration = Duration::from_secs(5);
/// How often the thread looks whether a `libnccl` has been loaded.
const BETWEEN_LOOKS: Duration = Duration::from_secs(10);
/// The rest where clients cannot be accepted.
const REST: Duration = Duration::from_secs(1);
const MAPS: &str = "/proc/self/maps";
/// Collectives that a document has of each rank.
const LATEST: usize = 8;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_protocol_are_answered() {
        let mut form = Form::Text;
        assert_eq!(answer("CLIENT PROTOCOL 2", &mut form), Answer::Line("SERVER PROTOCOL 2"));
        assert_eq!(answer("TIMEOUT 0", &mut form), Answer::Line("OK"));
        assert_eq!(answer("set format json", &mut form), Answer::Line("OK"));
        assert_eq!(form, Form::Json);
        assert_eq!(answer("VERBOSE STATUS", &mut form), Answer::Status { is_verbose: true });
        for refused in ["MONITOR", "MONITOR all", "DIAGNOSTICS", "CONTROL PROFILER_MASK 1", "", "SET FORMAT xml"] {
            assert_eq!(answer(refused, &mut form), Answer::Line("ERROR: Unknown command"), "{refused}");
        }
    }

    #[test]
    fn an_address_that_is_none_or_of_other_hosts_is_refused() {
        assert!(parsed("localhost:28028").is_ok() && parsed("[::1]:1").is_ok());
        for wrong in ["none", "localhost", "0.0.0.0:28028", "10.0.0.1:28028"] {
            let said = parsed(wrong).unwrap_err();
            assert!(said.message().contains("write localhost:28028"), "{wrong}: {said}");
        }
    }

    #[test]
    fn a_client_that_cannot_be_accepted_is_not_tried_again_at_once() {
        // Nobody can be accepted at a connection, and its end makes it ready.
        let (listener, at) = socket::listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let stream = TcpStream::connect(at).unwrap();
        drop(listener.accept().unwrap());
        let no_listener = TcpListener::from(std::os::fd::OwnedFd::from(stream));
        poller::wait_any(&[(no_listener.as_fd(), Interest::Read)], CLIENT_TIME).unwrap();
        let error = open::accept_tcp(&no_listener).unwrap_err();
        assert_eq!(rest_after(&error), REST, "{error}");
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert_eq!(rest_after(&std::io::Error::from_raw_os_error(code)), REST);
        }
        assert!(rest_after(&ErrorKind::WouldBlock.into()).is_zero());
    }

    #[test]
    fn a_process_that_may_have_libnccl_does_not_answer() {
        let path = |name: &str| [b"7f00-7f01 r-xp 0 0 0 /opt/\xff/", name.as_bytes(), b"\n"].concat();
        assert_eq!(why_silent(Ok(path("librsccl.so"))), None);
        assert!(why_silent(Ok(path("libnccl.so.2.21"))).unwrap().contains("has libnccl"));
        let why = why_silent(Err(ErrorKind::PermissionDenied.into())).unwrap();
        assert!(why.contains("cannot be read"), "{why}");
    }

    #[test]
    fn only_addresses_of_loopback_are_listened_at() {
        assert_eq!(parsed("localhost:28028").unwrap().to_string(), "127.0.0.1:28028");
        assert!(parsed("127.0.0.2:0").is_ok() && parsed("[::1]:5").is_ok());
        for refused in ["0.0.0.0:28028", "192.168.0.1:28028", "[::]:28028", "node0:28028", "28028", ""] {
            assert!(parsed(refused).is_err(), "{refused}");
        }
    }
}
