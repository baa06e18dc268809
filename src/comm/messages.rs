//! Messages between two ranks.

use crate::comm::{Communicator, typed};
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

    /// Sends `send` to rank `target` and receives into `recv` from rank `source`, side by side: ranks that all send to their neighbour
    /// get there. Either may be the own rank, if both are.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     let ring = |distance: u32| (comm.rank() + distance) % comm.size();
    ///     let mut left = [0; 2];
    ///     comm.send_recv(&[comm.rank(); 2], ring(1), &mut left, ring(2))?;
    ///     assert_eq!(left, [ring(2); 2]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn send_recv<T: Element>(&self, send: &[T], target: u32, recv: &mut [T], source: u32) -> Result<()> {
        self.messages(typed::send_recv((send, target), (recv, source)))
    }

    /// Runs messages side by side.
    pub(super) fn messages(&self, messages: Vec<Message<'_>>) -> Result<()> {
        self.with_engine(|engine| engine.messages(messages))
    }

    /// Runs a message that is described at run time.
    pub(super) fn message(&self, message: Message<'_>) -> Result<()> {
        self.with_engine(|engine| engine.message(message))
    }
}
