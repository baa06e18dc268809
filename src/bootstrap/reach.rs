//! The choice of the interface whose address this rank tells the others; waits for one that is still coming up.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::bootstrap::{Options, interface, socket};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::{Deadline, Wait};
use crate::sys::interfaces::{self, Interface};
use crate::sys::{clock, poller};

/// The requirements on an interface.
pub(super) struct Wanted<'a> {
    /// Picks one interface of a list.
    pub(super) pick: &'a dyn Fn(&[Interface]) -> Result<Interface>,
    /// Whether ranks of other hosts must reach it: then loopback is not enough.
    pub(super) by_others: &'a dyn Fn(&[Interface]) -> bool,
}

/// The wanted interface, as soon as it is up.
///
/// # Errors
/// [`Kind::InvalidUsage`] with the list of interfaces: at once if no link has a name that the options allow, else at
/// the deadline of `wait`.
pub(super) fn interface(wanted: &Wanted<'_>, options: &Options, wait: &Wait) -> Result<Interface> {
    let started = clock::now();
    let mut told = false;
    loop {
        let all = interfaces::list()?;
        let why = match (wanted.pick)(&all) {
            Ok(found) if !found.address.is_loopback() || !(wanted.by_others)(&all) => return Ok(found),
            Ok(_) => interface::nothing_usable("no network interface is up that other hosts reach", &all, options),
            Err(error) if !may_come_up(&all, options)? => return Err(error),
            Err(error) => error,
        };
        if !told {
            told = true;
            log::warn!(Bootstrap, "{}; waiting for one to come up", why.message());
        }
        wait.check(String::new)
            .map_err(|over| if over.kind() == Kind::Timeout { overdue(&why, started) } else { over })?;
        poller::pause(wait.slice(LOOK));
    }
}

/// Listens at the address of `chosen`, by `open`. A new IPv6 address cannot be used while the kernel looks whether
/// another host has it, which takes a second or two: this call waits for that.
///
/// # Errors
/// Of `open`.
pub(super) fn listen<T>(chosen: &Interface, wait: &Wait, open: impl Fn(SocketAddr) -> Result<T>) -> Result<T> {
    let patience = Deadline::after(NEW_ADDRESS_PATIENCE);
    loop {
        let outcome = open(interface::address(chosen));
        let is_new = |error: &Error| chosen.address.is_ipv6() && socket::is(error, ErrorKind::AddrNotAvailable);
        if !outcome.as_ref().is_err_and(is_new) || patience.earlier(wait.deadline).passed(clock::now()) {
            return outcome;
        }
        wait.abort.check()?;
        poller::pause(wait.slice(LOOK));
    }
}

fn overdue(why: &Error, started: Instant) -> Error {
    let waited = clock::now().saturating_duration_since(started).as_secs_f64();
    Error::invalid_usage(format!("{}; waited {waited:.1} s for one to come up", why.message()))
}

/// Whether a link that the options allow exists but cannot be used yet.
///
/// # Errors
/// [`Kind::System`] if the kernel does not tell.
pub(crate) fn may_come_up(all: &[Interface], options: &Options) -> Result<bool> {
    let is_up = |name: &str| all.iter().any(|interface| interface.name == name && interface.running);
    let may = |name: &String| interface::is_ordinary(name) && options.interfaces.allow(name) && !is_up(name);
    Ok(interfaces::links()?.iter().any(may))
}

/// How long a new address may take to be usable.
const NEW_ADDRESS_PATIENCE: Duration = Duration::from_secs(5);

/// The pause between two looks at the interfaces.
const LOOK: Duration = Duration::from_millis(50);
