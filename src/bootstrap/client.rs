//! The connecting side of a service (a root, a store): a connection that is retried when it fails. Its counterpart is
//! [`super::acceptor`].

use std::io;
use std::time::{Duration, Instant};

use crate::bootstrap::Options;
use crate::bootstrap::auth::{Handshake, JobTag, NO_RANK, OtherJob, Terms};
use crate::bootstrap::link::{End, Link, MAX_RETRY_SLEEP, moment};
use crate::bootstrap::rotation::{OTHERS_PATIENCE, Rotation, ServicePlace};
use crate::bootstrap::socket;
use crate::error::{Error, Kind, Result};
use crate::sys::limits;
use crate::sys::poller::Poller;
use crate::types::Rank;
use crate::wire::frame::{self, Frame};

/// A client's connection to a service; see the module.
#[derive(Debug)]
pub(super) struct ServiceClient {
    to: Service,
    rotation: Rotation,
    from: Rank,
    /// Frames that are sent at the start of every connection.
    opening: Vec<u8>,
    pub(super) link: Option<Link>,
    retries: Retries,
    tries: u32,
    /// The rejections in a row.
    rejections: u32,
    again: Option<Instant>,
    /// When the connection must be made, so that the next address has its turn.
    connected_until: Option<Instant>,
}

/// The service to connect to.
#[derive(Debug, Clone)]
pub(super) struct Service {
    /// Its name in messages: "the root", "the store".
    pub(super) name: &'static str,
    /// A question for the user, for when the service cannot be reached.
    pub(super) hint: &'static str,
    /// The rank whose process runs the service, if known.
    pub(super) server: Option<Rank>,
    pub(super) place: ServicePlace,
    pub(super) terms: Terms,
    /// The most bytes of a frame that the service sends.
    pub(super) most_bytes: usize,
}

#[derive(Debug, Clone, Copy)]
struct Retries {
    count: u32,
    sleep: Duration,
    handshake_timeout: Duration,
    other_job_patience: Duration,
}

/// How often a service that rejects the handshake is retried. It may be overloaded; but the key may also be wrong, and
/// then retrying is useless.
const REJECTED_TRIES: u32 = 5;

/// The reason reported when the connection is made but never answered: the kernel completes it even if the process
/// never accepts.
const SILENT: &str =
    "it did not answer: is its process stopped, or has it reached its limit of open files (ulimit -n)?";

impl ServiceClient {
    pub(super) fn new(to: Service, from: Rank, opening: Option<(u8, &[u8])>, options: &Options) -> ServiceClient {
        let mut frames = Vec::new();
        if let Some((kind, payload)) = opening {
            frame::append(&mut frames, kind, 0, payload);
        }
        let retries = Retries {
            count: options.retry_count,
            sleep: options.retry_sleep,
            handshake_timeout: options.handshake_timeout,
            other_job_patience: options.other_job_patience(),
        };
        let rotation = Rotation::new(to.place.clone());
        ServiceClient {
            to,
            rotation,
            from,
            opening: frames,
            link: None,
            retries,
            tries: 0,
            rejections: 0,
            again: None,
            connected_until: None,
        }
    }

    /// Connects, unless connected already, pausing before a retry, or waiting for the look-up of the service's name.
    ///
    /// # Errors
    /// When the last allowed try has failed, or none can succeed.
    pub(super) fn dial(&mut self, poller: &Poller, token: u64, now: Instant) -> Result<()> {
        if self.link.is_some() || self.again.is_some_and(|again| now < again) {
            return Ok(());
        }
        let Some(address) = self.rotation.address(now)? else { return Ok(()) };
        let handshake = Handshake::initiate(self.to.terms.clone(), self.from, NO_RANK)?;
        match Link::connect(address, handshake, self.to.most_bytes) {
            Ok(mut link) => {
                if address.ip().is_loopback() && !link.is_made() {
                    // The kernel may drop what it cannot send over a loopback that is down.
                    socket::check_loopback(address)?;
                }
                self.connected_until = self.rotation.has_others().then(|| moment(now, OTHERS_PATIENCE));
                link.queue_frames(&self.opening);
                link.told = link.interest();
                link.handshake_until = Some(moment(now, self.retries.handshake_timeout));
                poller.add(link.fd(), token, link.told)?;
                self.link = Some(link);
                Ok(())
            }
            Err(end) => {
                socket::check_loopback(address)?;
                self.failed(&end, now)
            }
        }
    }

    /// Moves bytes and yields the frames that arrived.
    ///
    /// # Errors
    /// When the last allowed try has failed.
    pub(super) fn serve(
        &mut self,
        poller: &Poller,
        token: u64,
        readable: bool,
        scratch: &mut [u8],
        now: Instant,
    ) -> (Vec<Frame>, Result<()>) {
        let mut frames = Vec::new();
        let Some(link) = &mut self.link else { return (frames, Ok(())) };
        let outcome = if readable { link.read(scratch, &mut frames) } else { Ok(()) }.and_then(|()| link.flush());
        let outcome = match outcome {
            Ok(()) => self.tell(poller, token),
            Err(end) => self.failed(&end, now),
        };
        (frames, outcome)
    }

    /// Sends a frame over this connection, and over each that takes its place, behind those that are sent at the start.
    ///
    /// # Errors
    /// As [`ServiceClient::send`], if there is a connection.
    pub(super) fn send_always(&mut self, poller: &Poller, token: u64, (kind, payload): (u8, &[u8])) -> Result<()> {
        frame::append(&mut self.opening, kind, 0, payload);
        if self.link.is_some() { self.send(poller, token, (kind, 0, payload)) } else { Ok(()) }
    }

    /// Sends a frame over the existing connection.
    ///
    /// # Errors
    /// If there is no connection any more.
    pub(super) fn send(&mut self, poller: &Poller, token: u64, frame: (u8, u32, &[u8])) -> Result<()> {
        let name = self.to.name;
        let Some(link) = &mut self.link else {
            return Err(Error::new(Kind::Remote, format!("{name} at {} is not connected", self.rotation)));
        };
        link.queue(frame.0, frame.1, frame.2);
        match link.flush() {
            Ok(()) => self.tell(poller, token),
            Err(end) => {
                self.link = None;
                Err(Error::new(Kind::Remote, format!("{name} at {} went away: {end}", self.rotation)))
            }
        }
    }

    fn tell(&mut self, poller: &Poller, token: u64) -> Result<()> {
        if let Some(link) = &mut self.link {
            let wanted = link.interest();
            if wanted != link.told {
                poller.modify(link.fd(), token, wanted)?;
                link.told = wanted;
            }
        }
        Ok(())
    }

    /// Drops a connection that was not made, or whose handshake was not answered, in time.
    ///
    /// # Errors
    /// When that was the last allowed try.
    pub(super) fn expire(&mut self, now: Instant) -> Result<()> {
        let Some(link) = self.link.as_ref().filter(|link| link.peer().is_none()) else { return Ok(()) };
        let passed = |until: Option<Instant>| until.is_some_and(|until| now >= until);
        match (passed(link.handshake_until), link.is_made()) {
            (true, true) => self.failed(&End::Rejected(SILENT.to_owned()), now),
            (late, false) if late || passed(self.connected_until) => {
                self.failed(&End::Unreachable(io::ErrorKind::TimedOut.into()), now)
            }
            _ => Ok(()),
        }
    }

    /// When the next try is due, if one is planned.
    pub(super) fn again(&self) -> Option<Instant> {
        self.again.filter(|_| self.link.is_none())
    }

    /// Whether the service has proved itself on the current connection.
    pub(super) fn is_connected(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.peer().is_some())
    }

    /// The state in words, for the message of a time-out.
    pub(super) fn state(&self) -> String {
        let who = self.who();
        if self.is_connected() {
            return format!("{who} did not answer in time");
        }
        let (tries, last) = (self.tries + u32::from(self.link.is_some()), self.rotation.state());
        // The service may be one of this process, which then cannot accept its own connection.
        let shortage = limits::shortage().map_or_else(String::new, |why| format!("; this process: {}", why.message()));
        format!("{who} could not be reached in time ({tries} tries): {last}{shortage}")
    }

    /// Plans the next try, or fails if there is none left.
    fn failed(&mut self, end: &End, now: Instant) -> Result<()> {
        self.link = None;
        if let End::Differs(error) = end {
            // The next try would say the same.
            let differs = Error::mismatch(format!("{} does not meet this rank: {}", self.who(), error.message()));
            return Err(self.to.server.into_iter().fold(differs, Error::about));
        }
        if self.rotation.failed(end) && !matches!(end, End::Closed(_)) {
            // The next address has its turn at once.
            return Ok(());
        }
        self.tries += 1;
        let (who, hint, tries, last) = (self.who(), self.to.hint, self.tries, self.rotation.state());
        // Only rejections in a row tell that something else serves there: one may be of a service that is just ending.
        self.rejections = if self.rotation.is_rejected() { self.rejections + 1 } else { 0 };
        let rejections = self.rejections;
        let failed = match end {
            End::Unreachable(_) if tries > self.retries.count => {
                Error::timeout(format!("{who} cannot be reached in {tries} tries: {last}; {hint}"))
            }
            End::Rejected(why) if rejections > self.retries.count.min(REJECTED_TRIES) => {
                let message = format!(
                    "{who} rejected this rank {rejections} times: {why}; does another job use this address, or is \
                     RSCCL_SECRET or the version of rsccl not the same on all ranks?"
                );
                Error::new(Kind::Remote, message)
            }
            // The other job may soon be done here: then the place is this job's.
            End::OtherJob(other) if other.age >= self.retries.other_job_patience => {
                taken_by(&self.who(), &self.to.terms, other)
            }
            End::OtherJob(_) => {
                self.again = Some(now + OTHER_JOB_PAUSE);
                return Ok(());
            }
            End::Closed(why) => match self.to.server {
                Some(rank) => {
                    let (name, at) = (self.to.name, &self.rotation);
                    Error::new(
                        Kind::Remote,
                        format!("rank {rank} has died: {name} at {at}, which it served, is gone ({why})"),
                    )
                }
                None => Error::new(Kind::Remote, format!("{who} went away before it answered: {why}; {hint}")),
            },
            End::Unreachable(_) | End::Rejected(_) | End::Differs(_) => {
                self.again = Some(now + self.retries.sleep.saturating_mul(tries).min(MAX_RETRY_SLEEP));
                return Ok(());
            }
        };
        Err(self.to.server.into_iter().fold(failed, Error::about))
    }

    /// The service in words.
    fn who(&self) -> String {
        let (name, at) = (self.to.name, &self.rotation);
        match self.to.server {
            Some(rank) => format!("{name} at {at}, which rank {rank} serves,"),
            None => format!("{name} at {at}"),
        }
    }
}

/// The pause before the next look whether another job still has the place.
const OTHER_JOB_PAUSE: Duration = Duration::from_millis(50);

/// The error that another job has the place of `who`, a service that `terms` looked for.
pub(super) fn taken_by(who: &str, terms: &Terms, other: &OtherJob) -> Error {
    let ours = terms.job.as_ref().map_or("no known job", JobTag::name);
    Error::invalid_usage(format!(
        "{who} belongs to another job: {} meets there, this rank is of {ours}; give each job a meeting place of its \
         own (MASTER_PORT, RSCCL_STORE, NCCL_COMM_ID), or, for ranks that a launcher started on one host, none",
        other.name
    ))
}

#[cfg(test)]
#[cfg(feature = "encrypt")]
#[cfg(not(loom))]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::bootstrap::auth::{HELLO_BYTES, Purpose};
    use crate::config::Encryption;
    use crate::sync::{AbortFlag, Wait};
    use crate::sys::clock;
    use crate::sys::poller::Ready;

    #[test]
    fn a_service_whose_encryption_differs_is_asked_once() {
        // A service follows whom it hears, unless it cannot encrypt: a rank stands for one.
        let terms = |encryption| Terms { key: [3; 32], purpose: Purpose::Peer, communicator: 9, job: None, encryption };
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let place = ServicePlace::Known(vec![listener.local_addr().unwrap()]);
        let (name, hint, terms_here) = ("the store", "does it run?", terms(Encryption::On));
        let service = Service { name, hint, server: Some(Rank::new(0)), place, terms: terms_here, most_bytes: 100 };
        let mut client = ServiceClient::new(service, Rank::new(1), None, &Options::default());
        let (poller, mut ready) = (Poller::new().unwrap(), Ready::default());
        let wait = Wait::new(Duration::from_secs(30), &AbortFlag::new());
        let answer = || {
            let mut stream = listener.accept().unwrap().0;
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let (mut there, mut hello) = (Handshake::respond(terms(Encryption::Off), NO_RANK), [0; HELLO_BYTES]);
            stream.read_exact(&mut hello).unwrap();
            there.receive(&mut &hello[..]).unwrap();
            assert!(there.has_told_difference());
            stream.write_all(&there.take_output()).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(answer);
            client.dial(&poller, 0, clock::now()).unwrap();
            let error = loop {
                wait.check(|| "the answer".to_owned()).unwrap();
                poller.wait(&mut ready, Duration::from_millis(20)).unwrap();
                if let (_, Err(error)) = client.serve(&poller, 0, true, &mut [0; 1000], clock::now()) {
                    break error;
                }
            };
            assert_eq!((error.kind(), error.peer(), client.tries), (Kind::Mismatch, Some(0), 0));
            let words = "which rank 0 serves, does not meet this rank: RSCCL_ENCRYPT is 1 on this rank and something";
            assert!(error.message().contains(words), "{error}");
        });
    }
}
