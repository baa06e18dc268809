//! Names of hosts, looked up until they have an address.
//!
//! A name may come later than the ranks: a cluster's DNS learns a pod's name once the pod runs. And a resolver that
//! does not answer blocks its caller for half a minute, past any deadline. So each look-up has a thread of its own, and
//! a name that has no address is looked up again until the caller's deadline.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::bootstrap::address::HostPort;
use crate::bootstrap::interface::AddressFamily;
use crate::error::{Error, Result};
use crate::log;
use crate::sync::Wait;
use crate::sys::{clock, interfaces, poller, thread};

/// The look-up of one place; see the module. An address literal takes no thread.
#[derive(Debug)]
pub(super) struct Lookup {
    place: HostPort,
    family: AddressFamily,
    answer: Option<Receiver<Result<Vec<SocketAddr>>>>,
    asked: u32,
    again: Option<Instant>,
    /// The resolver's last words.
    last: Option<String>,
}

/// How long a look-up is waited for at once: names in the hosts file and cached ones need less.
const QUICK: Duration = Duration::from_millis(5);

/// The pause before a name is asked for again: it doubles from the first to the last, so that thousands of ranks do not
/// overload the resolver for long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// How long a wait sleeps before it looks for the answer and at the abort flag again.
const LOOK: Duration = Duration::from_millis(20);

/// The addresses of `place`, once it has some.
///
/// # Errors
/// As [`Lookup::look`]; at the deadline of `wait` [`crate::error::Kind::Timeout`] with the resolver's last words.
pub(super) fn addresses(place: &HostPort, family: AddressFamily, wait: &Wait) -> Result<Vec<SocketAddr>> {
    let mut lookup = Lookup::new(place.clone(), family);
    loop {
        if let Some(found) = lookup.look(clock::now())? {
            return Ok(found);
        }
        wait.check(|| lookup.state())?;
        poller::pause(wait.slice(LOOK));
    }
}

impl Lookup {
    pub(super) fn new(place: HostPort, family: AddressFamily) -> Lookup {
        Lookup { place, family, answer: None, asked: 0, again: None, last: None }
    }

    /// The addresses if they are known now; asks if nobody has, and again after a pause if the answer was an error.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for an address literal that cannot be used: asking again would not help.
    pub(super) fn look(&mut self, now: Instant) -> Result<Option<Vec<SocketAddr>>> {
        if self.place.name().is_none() {
            return self.place.addresses(self.family, &interfaces::list()?).map(Some);
        }
        if self.again.is_some_and(|again| now < again) {
            return Ok(None);
        }
        let answer = match self.answer.take() {
            Some(answer) => answer,
            None => self.ask()?,
        };
        let outcome = match answer.recv_timeout(QUICK) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => {
                self.answer = Some(answer);
                return Ok(None);
            }
            Err(RecvTimeoutError::Disconnected) => Err(Error::internal("the thread that asks has panicked")),
        };
        match outcome {
            Ok(found) => Ok(Some(found)),
            Err(error) => {
                if self.last.is_none() {
                    let words = error.message();
                    log::warn!(
                        Bootstrap,
                        "{} has no address yet: {words}; asking again until the deadline",
                        self.place
                    );
                }
                self.last = Some(error.message().to_owned());
                let doublings = self.asked.saturating_sub(1).min(8);
                self.again = Some(now + FIRST_PAUSE.saturating_mul(1 << doublings).min(LAST_PAUSE));
                Ok(None)
            }
        }
    }

    /// Asks on a thread, which outlives this look-up if the resolver blocks: nothing waits for it.
    fn ask(&mut self) -> Result<Receiver<Result<Vec<SocketAddr>>>> {
        let (sender, receiver) = channel();
        let (place, family) = (self.place.clone(), self.family);
        let ask = move || {
            let outcome = interfaces::list().and_then(|all| place.addresses(family, &all));
            // The caller may have given up.
            drop(sender.send(outcome));
        };
        drop(thread::spawn("rsccl lookup", ask)?);
        self.asked += 1;
        self.again = None;
        Ok(receiver)
    }

    /// How often the resolver has answered that there is no address.
    pub(super) fn failures(&self) -> u32 {
        self.asked.saturating_sub(u32::from(self.answer.is_some()))
    }

    /// Why there is no address yet, for the message of a time-out.
    pub(super) fn state(&self) -> String {
        let (place, asked) = (&self.place, self.asked);
        match &self.last {
            Some(last) => format!("{place} has no address: {last} (asked {asked} times)"),
            None => format!("{place} has no address: the resolver has not answered (asked {asked} times)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::sync::AbortFlag;

    #[test]
    fn a_name_is_asked_for_again_until_the_deadline_and_the_resolver_is_quoted() {
        let place: HostPort = "no-such-host.invalid:5".parse().unwrap();
        let wait = Wait::new(Duration::from_millis(600), &AbortFlag::new());
        let error = addresses(&place, AddressFamily::Any, &wait).unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout);
        let text = error.to_string();
        assert!(text.contains("no-such-host.invalid:5 has no address") && text.contains(" times)"), "{text}");
    }

    #[test]
    fn an_abort_does_not_wait_for_the_resolver() {
        let abort = AbortFlag::new();
        abort.raise(Error::aborted("enough"));
        let place: HostPort = "no-such-host.invalid:5".parse().unwrap();
        let error = addresses(&place, AddressFamily::Any, &Wait::new(Duration::from_secs(60), &abort)).unwrap_err();
        assert_eq!(error.kind(), Kind::Aborted);
    }

    #[test]
    fn a_literal_is_an_answer_or_an_error_at_once() {
        let look = |text: &str, family| Lookup::new(text.parse().unwrap(), family).look(clock::now());
        assert_eq!(look("10.0.0.1:5", AddressFamily::Any).unwrap().unwrap(), ["10.0.0.1:5".parse().unwrap()]);
        assert_eq!(look("10.0.0.1:5", AddressFamily::V6).unwrap_err().kind(), Kind::InvalidArgument);
    }
}
