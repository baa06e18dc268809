//! Messages between two ranks.

use crate::comm::Communicator;
use crate::error::Result;
use crate::exec::Message;
use crate::types::{Element, Rank};

impl Communicator {
    /// Sends `buffer` to rank `peer`, which calls [`Communicator::recv`] with a buffer of the same type and count.
    ///
    /// Returns when the buffer may be changed; a large message does not end before the peer receives. To exchange with a peer, put send
    /// and recv into a [group](crate::group()).
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for a peer that is no rank, [`crate::error::Kind::InvalidUsage`] for the own rank
    /// outside a group, [`crate::error::Kind::Mismatch`] where type or count differ.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(2, |comm| {
    ///     let mut word = [0u64];
    ///     match comm.rank() {
    ///         0 => comm.send(&[7u64], 1)?,
    ///         _ => comm.recv(&mut word, 0)?,
    ///     }
    ///     assert_eq!(word[0], if comm.rank() == 1 { 7 } else { 0 });
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn send<T: Element>(&self, buffer: &[T], peer: u32) -> Result<()> {
        self.message(Message::send(buffer, Rank::new(peer)))
    }

    /// Receives into `buffer` from rank `peer`, which calls [`Communicator::send`] with a buffer of the same type and count.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn recv<T: Element>(&self, buffer: &mut [T], peer: u32) -> Result<()> {
        self.message(Message::recv(buffer, Rank::new(peer)))
    }

    /// Runs a message that is described at run time.
    pub(super) fn message(&self, message: Message<'_>) -> Result<()> {
        self.with_engine(|engine| engine.message(message))
    }
}
