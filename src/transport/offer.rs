//! Handing memory to another rank: through a table for threads of this process, through a unix socket for processes of the host.
//!
//! The owner makes an offer and sends its ticket over the bootstrap. A ticket is a random number and nothing else: it is looked up,
//! never used as an address. Offers end when they are taken as often as said, or with the [`Exporter`].

use std::collections::HashMap;

use crate::device::HostRegion;
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::{Arc, Mutex, MutexGuard, OnceLock};
use crate::sys::random;
use crate::transport::windows::Board;

/// What one rank hands to others of its process.
#[derive(Debug, Clone)]
pub(crate) struct LocalOffer {
    pub(crate) memory: HostRegion,
    pub(crate) board: Option<Arc<Board>>,
}

/// Offers to threads of this process that have not been taken yet.
///
/// The one table of the process: threads that join one communicator have nothing else in common. Its keys are random, so that
/// communicators do not meet, and its entries end with the fabric that made them.
fn table() -> MutexGuard<'static, HashMap<u64, (LocalOffer, usize)>> {
    static TABLE: OnceLock<Mutex<HashMap<u64, (LocalOffer, usize)>>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default).lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The offers of one rank to threads of its process.
#[derive(Debug, Default)]
pub(crate) struct LocalOffers {
    tickets: Vec<u64>,
}

impl LocalOffers {
    /// Offers `offer` to `takers` threads.
    pub(crate) fn offer(&mut self, offer: LocalOffer, takers: usize) -> Result<u64> {
        let ticket = u64::from_le_bytes(random::bytes()?);
        if takers > 0 {
            table().insert(ticket, (offer, takers));
            self.tickets.push(ticket);
        }
        Ok(ticket)
    }

    /// Whether all has been taken.
    pub(crate) fn settled(&mut self) -> bool {
        self.outstanding().is_empty()
    }

    /// The tickets of what has not been taken.
    pub(crate) fn outstanding(&mut self) -> &[u64] {
        if !self.tickets.is_empty() {
            let table = table();
            self.tickets.retain(|ticket| table.contains_key(ticket));
        }
        &self.tickets
    }
}

impl Drop for LocalOffers {
    fn drop(&mut self) {
        let mut table = table();
        for ticket in &self.tickets {
            table.remove(ticket);
        }
    }
}

/// Takes the offer that a thread of this process made.
///
/// # Errors
/// [`Kind::Remote`] where there is none: its owner has gone.
pub(crate) fn take_local(ticket: u64) -> Result<LocalOffer> {
    let mut table = table();
    let gone = || Error::new(Kind::Remote, "a thread of this process offered memory and went before it was taken");
    let (offer, left) = table.get_mut(&ticket).ok_or_else(gone)?;
    let taken = offer.clone();
    *left -= 1;
    if *left == 0 {
        table.remove(&ticket);
    }
    Ok(taken)
}
