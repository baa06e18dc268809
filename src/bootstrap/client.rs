//! The connecting side of a service (a root, a store): a connection that is retried when it fails. Its counterpart is
//! [`super::acceptor`].

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::bootstrap::Options;
use crate::bootstrap::auth::{Handshake, JobTag, NO_RANK, OtherJob, Terms};
use crate::bootstrap::link::{End, Link, MAX_RETRY_SLEEP, moment};
use crate::error::{Error, Kind, Result};
use crate::sys::poller::Poller;
use crate::types::Rank;
use crate::wire::frame::{self, Frame};

/// A client's connection to a service; see the module.
#[derive(Debug)]
pub(super) struct ServiceClient {
    to: Service,
    from: Rank,
    /// Frames that are sent at the start of every connection.
    opening: Vec<u8>,
    pub(super) link: Option<Link>,
    retries: Retries,
    tries: u32,
    again: Option<Instant>,
    last: String,
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
    pub(super) address: SocketAddr,
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
        ServiceClient {
            to,
            from,
            opening: frames,
            link: None,
            retries,
            tries: 0,
            again: None,
            last: "no answer yet".to_owned(),
        }
    }

    /// Connects, unless connected already or pausing before a retry.
    ///
    /// # Errors
    /// When the last allowed try has failed.
    pub(super) fn dial(&mut self, poller: &Poller, token: u64, now: Instant) -> Result<()> {
        if self.link.is_some() || self.again.is_some_and(|again| now < again) {
            return Ok(());
        }
        let handshake = Handshake::initiate(self.to.terms.clone(), self.from, NO_RANK)?;
        match Link::connect(self.to.address, handshake, self.to.most_bytes) {
            Ok(mut link) => {
                link.queue_frames(&self.opening);
                link.told = link.interest();
                link.handshake_until = Some(moment(now, self.retries.handshake_timeout));
                poller.add(link.fd(), token, link.told)?;
                self.link = Some(link);
                Ok(())
            }
            Err(end) => self.failed(&end, now),
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

    /// Sends a frame over the existing connection.
    ///
    /// # Errors
    /// If there is no connection any more.
    pub(super) fn send(&mut self, poller: &Poller, token: u64, frame: (u8, u32, &[u8])) -> Result<()> {
        let (name, at) = (self.to.name, self.to.address);
        let Some(link) = &mut self.link else {
            return Err(Error::new(Kind::Remote, format!("{name} at {at} is not connected")));
        };
        link.queue(frame.0, frame.1, frame.2);
        match link.flush() {
            Ok(()) => self.tell(poller, token),
            Err(end) => {
                self.link = None;
                Err(Error::new(Kind::Remote, format!("{name} at {at} went away: {end}")))
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

    /// Drops a connection whose handshake was not answered in time.
    ///
    /// # Errors
    /// When that was the last allowed try.
    pub(super) fn expire(&mut self, now: Instant) -> Result<()> {
        let silent = |link: &Link| link.peer().is_none() && link.handshake_until.is_some_and(|until| now >= until);
        if self.link.as_ref().is_some_and(silent) {
            return self.failed(&End::Rejected(SILENT.to_owned()), now);
        }
        Ok(())
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
        let who = self.to.who();
        if self.is_connected() {
            return format!("{who} did not answer in time");
        }
        let (tries, last) = (self.tries + u32::from(self.link.is_some()), &self.last);
        format!("{who} could not be reached in time ({tries} tries): {last}")
    }

    /// Plans the next try, or fails if there is none left.
    fn failed(&mut self, end: &End, now: Instant) -> Result<()> {
        self.link = None;
        self.tries += 1;
        self.last = end.to_string();
        let (who, hint, tries) = (self.to.who(), self.to.hint, self.tries);
        let failed = match end {
            End::Unreachable(_) if tries > self.retries.count => {
                Error::timeout(format!("{who} cannot be reached in {tries} tries: {end}; {hint}"))
            }
            End::Rejected(why) if tries > self.retries.count.min(REJECTED_TRIES) => {
                let message =
                    format!("{who} rejected this rank {tries} times: {why}; does another job use this address?");
                Error::new(Kind::Remote, message)
            }
            // The other job may soon be done here: then the place is this job's.
            End::OtherJob(other) if other.age >= self.retries.other_job_patience => self.to.taken_by(other),
            End::OtherJob(_) => {
                self.again = Some(now + OTHER_JOB_PAUSE);
                return Ok(());
            }
            End::Closed(why) => match self.to.server {
                Some(rank) => {
                    let (name, at) = (self.to.name, self.to.address);
                    Error::new(
                        Kind::Remote,
                        format!("rank {rank} has died: {name} at {at}, which it served, is gone ({why})"),
                    )
                }
                None => Error::new(Kind::Remote, format!("{who} went away before it answered: {why}; {hint}")),
            },
            End::Unreachable(_) | End::Rejected(_) => {
                self.again = Some(now + self.retries.sleep.saturating_mul(tries).min(MAX_RETRY_SLEEP));
                return Ok(());
            }
        };
        Err(self.to.server.into_iter().fold(failed, Error::about))
    }
}

/// The pause before the next look whether another job still has the place.
const OTHER_JOB_PAUSE: Duration = Duration::from_millis(50);

impl Service {
    /// The error that another job has the place.
    pub(super) fn taken_by(&self, other: &OtherJob) -> Error {
        let (who, theirs) = (self.who(), &other.name);
        let ours = self.terms.job.as_ref().map_or("no known job", JobTag::name);
        Error::invalid_usage(format!(
            "{who} belongs to another job: {theirs} meets there, this rank is of {ours}; give each job a meeting place of \
             its own (MASTER_PORT, RSCCL_STORE, NCCL_COMM_ID), or, for ranks that a launcher started on one host, none"
        ))
    }

    /// The service in words.
    fn who(&self) -> String {
        let Service { name, address, .. } = self;
        match self.server {
            Some(rank) => format!("{name} at {address}, which rank {rank} serves,"),
            None => format!("{name} at {address}"),
        }
    }
}
