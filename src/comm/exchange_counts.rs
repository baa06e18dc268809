//! The counts of an exchange of which each rank knows only what it sends.

use crate::comm::Communicator;
use crate::error::{Error, Result};
use crate::exec::wrong_counts;

impl Communicator {
    /// Tells every rank how many elements this rank will send to it, `send_counts[r]` to rank r, and returns how many
    /// each will send here: the `recv_counts` of [`Communicator::all_to_all_v`]. All ranks call it.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where there is not one count for each rank, and those of
    /// [`Communicator::all_to_all`].
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     // Rank r sends r elements to everyone.
    ///     let me = comm.rank() as usize;
    ///     let send_counts = [me; 3];
    ///     let recv_counts = comm.exchange_counts(&send_counts)?;
    ///     assert_eq!(recv_counts, [0, 1, 2]);
    ///     let (send, mut recv) = (vec![comm.rank(); 3 * me], vec![9; recv_counts.iter().sum()]);
    ///     comm.all_to_all_v(&send, &mut recv, (&send_counts, &recv_counts))?;
    ///     assert_eq!(recv, [1, 2, 2]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn exchange_counts(&self, send_counts: &[usize]) -> Result<Vec<usize>> {
        if send_counts.len() != self.size() as usize {
            return Err(self.at(wrong_counts(send_counts.len(), self.size()).during("exchange_counts")));
        }
        let sent: Vec<u64> = send_counts.iter().map(|count| *count as u64).collect();
        let mut received = vec![0; sent.len()];
        self.all_to_all(&sent, &mut received)?;
        let fit = |count: u64| usize::try_from(count).map_err(|_| self.at(too_large(count).during("exchange_counts")));
        received.into_iter().map(fit).collect()
    }
}

fn too_large(count: u64) -> Error {
    Error::invalid_argument(format!("a peer sends {count} elements, more than this machine's addresses hold"))
}
