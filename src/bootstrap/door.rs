//! The door of a process: its communicators listen at common ports.
//!
//! Communicators of one process share one listener for each address (and for what else tells listeners apart, see
//! [`Doorway`]). The doorkeeper, a duty of the service thread, accepts for all of them: so one that is stopped holds up
//! no other's connections. It reads which communicator and rank a connection is for, which the first bytes of
//! the handshake say, and hands the connection to the [`Incoming`] of that rank. It takes no byte from the socket: the
//! handshake, and with it the proof of who has come, is the communicator's.
//!
//! Who waits for connections is woken without a descriptor of its own: a thread that sleeps has a chime, which is rung.
//!
//! A connection that does not say in time whom it is for is closed. One for a communicator that this process does not
//! know is kept for a while, since ranks of a new communicator do not come to it at the same moment; for one that has
//! ended, it is told so. The number of each is bounded.
//!
//! The doorkeeper starts with the first communicator and ends with the last one.

mod doorway;
mod keeper;
mod queue;
#[cfg(not(loom))]
#[cfg(not(miri))]
#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::bootstrap::auth::{Addressee, Terms};
use crate::bootstrap::door::doorway::NetworkSpace;
use crate::bootstrap::door::keeper::{Doorkeeper, Doorkeeping};
use crate::bootstrap::door::queue::IncomingQueue;
use crate::bootstrap::socket;
use crate::error::Result;
use crate::sync::Chime;
use crate::sync::primitive::{Arc, Mutex};
use crate::sync::service_thread::{self, ServiceSeat};
use crate::sys::fork::PerProcess;
use crate::types::Rank;

pub(crate) use doorway::Doorway;

/// One user's part in a listener, which closes with its last user.
#[derive(Debug)]
pub(crate) struct DoorSeat {
    keeper: Arc<Doorkeeper>,
    token: u64,
    address: SocketAddr,
}

/// The connections that have come for one rank of a communicator. Once this is dropped, such connections are told that
/// the communicator has ended.
#[derive(Debug)]
pub(crate) struct Incoming {
    keeper: Arc<Doorkeeper>,
    addressee: Addressee,
    queue: Arc<IncomingQueue>,
}

/// The doorkeeper of this process, while there are seats.
static DOORKEEPER: PerProcess<Mutex<Option<Running>>> = PerProcess::new();

#[derive(Debug)]
struct Running {
    keeper: Arc<Doorkeeper>,
    seat: ServiceSeat,
}

/// Takes a seat at the listener of `doorway`; `prepare` gives it its options if it is a new one.
///
/// # Errors
/// As [`socket::listen_in`]; [`crate::error::Kind::System`] where no thread can be started; of `prepare`.
pub(crate) fn enter(doorway: &Doorway, prepare: impl FnOnce(&TcpListener) -> Result<()>) -> Result<DoorSeat> {
    let space = NetworkSpace::here();
    // Before the lock, under which nothing is logged.
    doorway.ports.into_iter().for_each(socket::warn_of_ephemeral);
    // Dropped behind the lock: the end of a thread may be waited for.
    let (_gone, _unused);
    let mut running = DOORKEEPER.get_or_init(Mutex::default).lock();
    // It ends early where the program has closed its descriptors: who comes now gets another one.
    _gone = running.take_if(|running| running.seat.is_deaf() || running.keeper.has_ended());
    let known = running.as_ref().and_then(|running| {
        let (token, address) = running.keeper.sit_down(&space, doorway)?;
        Some(DoorSeat { keeper: Arc::clone(&running.keeper), token, address })
    });
    if let Some(seat) = known {
        return Ok(seat);
    }
    let (listener, address) = socket::listen_as(doorway.interface, doorway.ports, |socket| match &doorway.device {
        Some(device) => socket.bind_device(Some(device.as_bytes())),
        None => Ok(()),
    })?;
    prepare(&listener)?;
    let keeper = match &*running {
        Some(running) => Arc::clone(&running.keeper),
        None => {
            let new = Running::start()?;
            let keeper = Arc::clone(&new.keeper);
            // Where it cannot listen at its first door nobody needs it.
            let token = match keeper.open(space, doorway, (listener, address)) {
                Ok(token) => token,
                Err(error) => {
                    _unused = new;
                    return Err(error);
                }
            };
            *running = Some(new);
            return Ok(DoorSeat { keeper, token, address });
        }
    };
    let token = keeper.open(space, doorway, (listener, address))?;
    Ok(DoorSeat { keeper, token, address })
}

impl Running {
    fn start() -> Result<Running> {
        let keeper = Arc::new(Doorkeeper::new()?);
        let seat = service_thread::enter(|_| Box::new(Doorkeeping::of(&keeper)))?;
        Ok(Running { keeper, seat })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The seat, which is dropped behind this, wakes the thread.
        self.keeper.end();
    }
}

impl DoorSeat {
    /// Where the listener listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The connections for rank `me` of the communicator of `terms`, from now on; those that have come before, too.
    pub(crate) fn incoming(&self, terms: &Terms, me: Rank) -> Incoming {
        let addressee = Addressee::of(terms, me);
        let queue = Arc::<IncomingQueue>::default();
        self.keeper.expect(addressee, &queue);
        Incoming { keeper: Arc::clone(&self.keeper), addressee, queue }
    }

    /// Why no connection can be accepted, while that is so.
    pub(crate) fn trouble(&self) -> Option<std::io::Error> {
        self.keeper.trouble()
    }

    /// How many connections have not said whom they are for, or are for nobody that is known.
    #[cfg(test)]
    pub(crate) fn strangers(&self) -> usize {
        self.keeper.strangers()
    }
}

impl Drop for DoorSeat {
    fn drop(&mut self) {
        // A forked child's copy is of a doorkeeper that the child has not.
        let Some(running) = DOORKEEPER.get() else { return };
        let mut running = running.lock();
        let is_ours = running.as_ref().is_some_and(|running| Arc::ptr_eq(&running.keeper, &self.keeper));
        let last = running.take_if(|_| is_ours && self.keeper.stand_up(self.token));
        drop(running);
        // It waits for the thread, which others need not.
        drop(last);
    }
}

impl Incoming {
    /// The next connection, and where it comes from.
    pub(crate) fn take(&self) -> Option<(TcpStream, SocketAddr)> {
        self.queue.take()
    }

    /// Rings `chime` when a connection comes. False where one waits.
    pub(crate) fn ring_at_arrival(&self, chime: &Arc<Chime>) -> bool {
        self.queue.ring_at_arrival(chime)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let is_here = DOORKEEPER.get().is_some_and(|running| {
            running.lock().as_ref().is_some_and(|running| Arc::ptr_eq(&running.keeper, &self.keeper))
        });
        if is_here {
            self.keeper.forget(self.addressee, &self.queue);
        }
    }
}
