//! A look at who serves an address: the root of an id, or the store of a job.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::bootstrap::Options;
use crate::bootstrap::address::localise;
use crate::bootstrap::auth::{Handshake, NO_RANK, OtherJob, Terms};
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::link::{End, Link, SCRATCH_BYTES};
use crate::error::Result;
use crate::sync::{Deadline, Wait};
use crate::sys::poller::{Poller, Ready};
use crate::sys::{clock, interfaces};

/// What serves an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The service that was looked for: it has proved that it holds the key.
    Service,
    /// That service of another job.
    OtherJob(OtherJob),
    /// Nothing, or something else.
    Nothing,
}

/// How long a service may take to prove itself; its thread does nothing else.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a wait polls before it looks at the abort flag again.
const ABORT_CHECK: Duration = Duration::from_millis(20);

/// The most bytes of a frame: a service sends none to a connection that makes no request.
const MOST_BYTES: usize = 64;

/// Connects to the root of `id` and runs the handshake, which proves that it has the id's secret. False if nothing
/// answers, or something else does.
///
/// # Errors
/// The abort's reason, or the time-out of `wait`.
pub(super) fn root_answers(id: &UniqueId, wait: &Wait) -> Result<bool> {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    for address in localise(id.address(), any, &interfaces::list()?) {
        if who_serves(address, &id.terms(&Options::default()), wait)? == Answer::Service {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Connects to `address` and runs the handshake by `terms`.
///
/// # Errors
/// The abort's reason, or the time-out of `wait`.
pub(super) fn who_serves(address: SocketAddr, terms: &Terms, wait: &Wait) -> Result<Answer> {
    let handshake = Handshake::initiate(terms.clone(), NO_RANK, NO_RANK)?;
    let Ok(mut link) = Link::connect(address, handshake, MOST_BYTES) else { return Ok(Answer::Nothing) };
    let (poller, mut ready, mut scratch) = (Poller::new()?, Ready::default(), vec![0; SCRATCH_BYTES]);
    link.told = link.interest();
    poller.add(link.fd(), 0, link.told)?;
    let patience = Deadline::after(PATIENCE);
    while link.peer().is_none() {
        wait.check(|| format!("waited for what serves {address} to prove itself"))?;
        if patience.passed(clock::now()) {
            return Ok(Answer::Nothing);
        }
        poller.wait(&mut ready, wait.slice(ABORT_CHECK))?;
        let Some(event) = ready.get(0) else { continue };
        let read = if event.readable { link.read(&mut scratch, &mut Vec::new()) } else { Ok(()) };
        match read.and_then(|()| link.flush()) {
            Ok(()) => {}
            Err(End::OtherJob(other)) => return Ok(Answer::OtherJob(other)),
            Err(_) if link.peer().is_some() => return Ok(Answer::Service),
            Err(_) => return Ok(Answer::Nothing),
        }
        let wanted = link.interest();
        if wanted != link.told {
            poller.modify(link.fd(), 0, wanted)?;
            link.told = wanted;
        }
    }
    Ok(Answer::Service)
}
