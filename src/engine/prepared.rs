//! Collectives that are kept between two steps. A prepared one has been checked and may run any number of times. An
//! announced one has written its data for the other ranks, and ends once they have written theirs.

use crate::device::Kernel;
use crate::engine::host_chooser::Path;
use crate::engine::host_side::CallWay;
use crate::exec::flat_call::SlotReads;
use crate::exec::{Begun, Call, Operation};
use crate::sync::ring::Label;
use crate::types::{Elements, World};

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

/// A collective of a request, as far as it went without waiting.
#[derive(Debug)]
pub(crate) enum Announce {
    /// This rank has done its part, and has not what it needs of the others.
    Waits(Box<AnnouncedCall>),
    /// It has ended.
    Ended,
    /// It has to begin as any call does.
    No(Call<'static>),
}

/// A collective that this rank has announced in its flat slot, and that ends once the other ranks have, too.
#[derive(Debug)]
pub(crate) struct AnnouncedCall {
    pub(super) call: Call<'static>,
    pub(super) operation: Operation,
    pub(super) label: Label,
    pub(super) kernel: Kernel,
    pub(super) lengths: (Elements, Elements),
    pub(super) reads: SlotReads,
    /// Among the flat operations.
    pub(super) number: u64,
    /// Whether it has not ended at once.
    pub(super) has_waited: bool,
}

impl AnnouncedCall {
    pub(super) fn begun(&self, world: World) -> Begun<'_> {
        let AnnouncedCall { call, operation, label, kernel, lengths, .. } = self;
        Begun { call, operation, label: *label, kernel: *kernel, world, lengths: *lengths }
    }
}
