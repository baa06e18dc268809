//! A look at who serves an address: the root of an id, and whether its ranks still meet; or the store of a job.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::bootstrap::address::localise;
use crate::bootstrap::auth::{Handshake, NO_RANK, OtherJob, Terms};
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::link::{End, Link, SCRATCH_BYTES};
use crate::bootstrap::{Options, checkin};
use crate::error::Result;
use crate::sync::{Deadline, Wait};
use crate::sys::poller::{Poller, Readiness, Ready};
use crate::sys::{clock, interfaces};
use crate::wire::frame::Frame;

/// What serves an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The service that was looked for: it has proved that it holds the key.
    Service,
    /// That service of another job.
    OtherJob(OtherJob),
    /// Nothing, or something else.
    Nothing,
    /// It cannot be told: no network leads there now, or nothing comes back.
    Unreachable,
}

/// What the root of an id says of the ranks that meet there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RootState {
    /// They still meet.
    Gathers,
    /// They have failed to meet, for this reason.
    Failed(String),
    /// Its host refuses the connection, or something else answers: the root has ended.
    Ended,
    /// This rank cannot reach it, or not yet.
    Unreachable,
}

/// How long a service may take to prove itself and to answer; its thread does nothing else.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a wait polls before it looks at the abort flag again.
const ABORT_CHECK: Duration = Duration::from_millis(20);

/// The most bytes of a frame: the answer of a root, which may hold a reason.
const MOST_BYTES: usize = 16 << 10;

/// Connects to the root of `id`, which proves by the handshake that it has the id's secret, and asks whether ranks
/// still meet there.
///
/// # Errors
/// The abort's reason, or the time-out of `wait`.
pub(super) fn state_of_root(id: &UniqueId, wait: &Wait) -> Result<RootState> {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let mut is_reached = false;
    for address in localise(id.address(), any, &interfaces::list()?) {
        // Not encrypted: what is asked and answered is no secret, and a root does as it is asked.
        let (answer, frames) = ask(address, &id.terms(&Options::default()), Some(checkin::ASK), wait)?;
        if answer == Answer::Service {
            return Ok(match frames.first() {
                Some(frame) if frame.kind == checkin::LATE => {
                    RootState::Failed(checkin::decode_refusal(&frame.payload).message().to_owned())
                }
                Some(_) => RootState::Gathers,
                // It has ended while it was asked.
                None => RootState::Ended,
            });
        }
        is_reached |= answer != Answer::Unreachable;
    }
    Ok(if is_reached { RootState::Ended } else { RootState::Unreachable })
}

/// Connects to `address` and runs the handshake by `terms`.
///
/// # Errors
/// The abort's reason, or the time-out of `wait`.
pub(super) fn who_serves(address: SocketAddr, terms: &Terms, wait: &Wait) -> Result<Answer> {
    ask(address, terms, None, wait).map(|(answer, _)| answer)
}

/// Connects to `address`, runs the handshake by `terms`, and sends a request of the kind `request`: yields the frames
/// that answer it, at least one from a service that stays connected.
fn ask(address: SocketAddr, terms: &Terms, request: Option<u8>, wait: &Wait) -> Result<(Answer, Vec<Frame>)> {
    let mut frames = Vec::new();
    let handshake = Handshake::initiate(terms.clone(), NO_RANK, NO_RANK)?;
    let mut link = match Link::connect(address, handshake, MOST_BYTES) {
        Ok(link) => link,
        Err(end) => return Ok((without_service(&end), frames)),
    };
    if let Some(kind) = request {
        link.queue(kind, 0, &[]);
    }
    let (poller, mut ready, mut scratch) = (Poller::new()?, Ready::default(), vec![0; SCRATCH_BYTES]);
    link.told = link.interest();
    poller.add(link.fd(), 0, link.told)?;
    let patience = Deadline::after(PATIENCE);
    while link.peer().is_none() || (request.is_some() && frames.is_empty()) {
        wait.check(|| match link.peer() {
            None => format!("waited for what serves {address} to prove itself"),
            Some(_) => format!("waited for the root at {address} to say whether its ranks still meet"),
        })?;
        if patience.passed(clock::now()) {
            return Ok((if link.is_connected() { Answer::Nothing } else { Answer::Unreachable }, frames));
        }
        poller.wait(&mut ready, wait.slice(ABORT_CHECK))?;
        let Some(event) = ready.get(0) else { continue };
        if let Some(answer) = advance(&mut link, event, &poller, (&mut scratch, &mut frames))? {
            return Ok((answer, frames));
        }
    }
    Ok((Answer::Service, frames))
}

/// Connects to all of `addresses` at once and runs the handshake by `terms` with each: what serves them. One patience
/// holds for all, and the first service that proves itself ends the look; of those that have not answered by then,
/// nothing is said.
///
/// # Errors
/// The abort's reason, or the time-out of `wait`.
pub(super) fn who_serve(addresses: &[SocketAddr], terms: &Terms, wait: &Wait) -> Result<Vec<(SocketAddr, Answer)>> {
    let (poller, mut ready, mut scratch) = (Poller::new()?, Ready::default(), vec![0; SCRATCH_BYTES]);
    let (mut answers, mut links, mut frames) = (Vec::new(), BTreeMap::new(), Vec::new());
    for (token, address) in (0..).zip(addresses) {
        let handshake = Handshake::initiate(terms.clone(), NO_RANK, NO_RANK)?;
        match Link::connect(*address, handshake, MOST_BYTES) {
            Ok(mut link) => {
                link.told = link.interest();
                poller.add(link.fd(), token, link.told)?;
                links.insert(token, link);
            }
            Err(end) => answers.push((*address, without_service(&end))),
        }
    }
    let patience = Deadline::after(PATIENCE);
    while !links.is_empty() && !patience.passed(clock::now()) {
        wait.check(|| format!("waited for what serves {} addresses to prove itself", links.len()))?;
        poller.wait(&mut ready, wait.slice(ABORT_CHECK))?;
        for event in ready.iter() {
            let Some(link) = links.get_mut(&event.token) else { continue };
            let answer = advance(link, event, &poller, (&mut scratch, &mut frames))?;
            let Some(answer) = answer.or_else(|| link.peer().map(|_| Answer::Service)) else { continue };
            answers.push((link.address, answer));
            if matches!(answers.last(), Some((_, Answer::Service))) {
                return Ok(answers);
            }
            links.remove(&event.token);
        }
    }
    let silent = |link: &Link| if link.is_connected() { Answer::Nothing } else { Answer::Unreachable };
    answers.extend(links.values().map(|link| (link.address, silent(link))));
    Ok(answers)
}

/// Reads and writes what can be now; what serves there, if the connection has ended or something else serves.
fn advance(
    link: &mut Link,
    event: Readiness,
    poller: &Poller,
    (scratch, frames): (&mut [u8], &mut Vec<Frame>),
) -> Result<Option<Answer>> {
    let read = if event.readable { link.read(scratch, frames) } else { Ok(()) };
    match read.and_then(|()| link.flush()) {
        Ok(()) => {}
        Err(End::OtherJob(other)) => return Ok(Some(Answer::OtherJob(other))),
        Err(End::Differs(_)) => return Ok(Some(Answer::Service)),
        Err(_) if link.peer().is_some() => return Ok(Some(Answer::Service)),
        Err(end) => return Ok(Some(without_service(&end))),
    }
    let wanted = link.interest();
    if wanted != link.told {
        poller.modify(link.fd(), event.token, wanted)?;
        link.told = wanted;
    }
    Ok(None)
}

/// What the end of a connection says of an address behind which no service has proved itself.
fn without_service(end: &End) -> Answer {
    match end {
        End::Unreachable(error) if error.kind() != std::io::ErrorKind::ConnectionRefused => Answer::Unreachable,
        _ => Answer::Nothing,
    }
}
