//! A collective that runs any number of times: what a call finds out about itself, kept.

use crate::device::Kernel;
use crate::engine::host_chooser::Path;
use crate::engine::host_side::CallWay;
use crate::exec::flat_call::SlotReads;
use crate::exec::{Call, Operation};
use crate::sync::ring::Label;
use crate::types::Elements;

/// A collective on host memory that was checked. Whoever keeps it sees to it that its buffers live as long.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(super) call: Call<'static>,
    /// But for its number and the calls before it.
    pub(super) operation: Operation,
    /// The operation's.
    pub(super) label: Label,
    pub(super) kernel: Kernel,
    pub(super) lengths: (Elements, Elements),
    pub(super) way: PreparedWay,
}

/// How it goes.
#[derive(Debug)]
pub(super) enum PreparedWay {
    /// By flat slots.
    Flat(SlotReads),
    Other(CallWay),
}

impl PreparedWay {
    pub(super) fn call_way(&self) -> CallWay {
        match self {
            PreparedWay::Flat(_) => CallWay::Path(Path::Flat),
            PreparedWay::Other(way) => *way,
        }
    }
}

impl Prepared {
    /// The call.
    pub(crate) fn call(&self) -> &Call<'static> {
        &self.call
    }
}
