//! Waiting and notification: deadlines, the abort flag, slot rings, sequence flags, back-off with futex parking.
//!
//! A [`Flag`] is a counter in memory that several ranks map: one writer raises it, any number of ranks wait for it. A
//! ring ([`ring::Sender`], [`ring::Receiver`]) is a queue of slots between two ranks, built from two flags. A waiter
//! spins a little, yields, then parks on the flag ([`Backoff`]); each slow turn checks the abort flag, the deadline and
//! the peers ([`Watch`]).

mod abort;
pub(crate) mod arrivals;
mod backoff;
mod chime;
mod distance;
mod ending;
mod lock;
pub(crate) mod flag;
pub(crate) mod offer;
pub mod primitive;
pub(crate) mod progress;
pub(crate) mod progress_thread;
mod rest;
pub mod ring;
#[cfg(sanitize_thread)]
mod seen;
pub(crate) mod service_thread;
mod turn;
mod turns;
mod wait;
mod waiting;

pub use abort::AbortFlag;
pub(crate) use abort::Mirror;
pub use arrivals::Arrivals;
pub use backoff::{Backoff, Patience, Watch};
pub use chime::Chime;
pub(crate) use ending::Ending;
pub use flag::Flag;
pub use progress::Progress;
pub(crate) use progress::{HookSlot, WeakHook};
pub(crate) use rest::RestEnds;
pub use turn::{Turn, Turned};
pub use turns::{Denied, KeptVisit, Stay, TurnGuard, Turns};
pub use wait::{Deadline, NoteReader, TimeLimit, Wait, time_in_words};
pub use waiting::{AwaitedMessage, Waiting};
