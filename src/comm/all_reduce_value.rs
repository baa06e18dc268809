//! The all-reduce of one number.

use crate::comm::Communicator;
use crate::error::Result;
use crate::types::{Element, ReduceOp};

impl Communicator {
    /// The reduction of every rank's `value`, on every rank: [`Communicator::all_reduce`] of one number.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Examples
    /// ```
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(3, |comm| {
    ///     let mine: f64 = [3.0, 4.0, 12.0][comm.rank() as usize];
    ///     let norm = comm.all_reduce_value(mine * mine, ReduceOp::Sum)?.sqrt();
    ///     assert_eq!(norm, 13.0);
    ///     assert!(comm.all_reduce_value(mine, ReduceOp::Max)? == 12.0);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn all_reduce_value<T: Element>(&self, value: T, op: ReduceOp) -> Result<T> {
        let mut all = [value];
        self.all_reduce_in_place(&mut all, op)?;
        let [all] = all;
        Ok(all)
    }
}
