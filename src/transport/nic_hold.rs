//! What a call keeps of memory that it has lent to a NIC.
//!
//! A NIC cannot be made to give memory back: it is done with it, or it is closed. So the value that stands for such a
//! loan lives beside the borrow of the memory, and sees to one of the two, however the call ends.

use std::fmt::Debug;

use crate::sync::primitive::Arc;

/// A loan, as the NIC's side knows it.
pub(super) trait LentMemory: Debug + Send + Sync {
    /// Whether the NIC is done with the memory; what it has written there is seen then.
    fn is_over(&self) -> bool;

    /// Closes the NIC. It touches the memory no more when this returns.
    fn take_back(&self);
}

/// A call's half of a loan. Dropped before the NIC is done with the memory, it closes the NIC's endpoint, with which
/// the communicator's other connections over it end.
#[derive(Debug)]
pub struct NicHold(Arc<dyn LentMemory>);

impl NicHold {
    pub(super) fn of(loan: Arc<dyn LentMemory>) -> NicHold {
        NicHold(loan)
    }

    /// Whether the NIC is done with the memory.
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

impl Drop for NicHold {
    fn drop(&mut self) {
        if !self.is_over() {
            self.0.take_back();
        }
    }
}
