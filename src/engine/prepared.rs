//! Collectives that are kept between two steps. A prepared one has been checked and may run any number of times. An
//! announced one has written its data for the other ranks, and ends once they have written theirs.

use crate::device::Kernel;
use crate::engine::host_chooser::Path;
use crate::engine::host_side::{CallWay, HostSide};
use crate::error::Result;
use crate::exec::flat_call::SlotReads;
use crate::exec::{Accepted, Begun, Call, CallExtent, Operation};
use crate::sync::ring::Label;
use crate::types::World;

/// What is settled of a collective on host memory before it runs: its checks, its arithmetic and its way.
#[derive(Debug, Clone)]
pub(super) struct SettledCall {
    /// But for its number and the calls before it.
    pub(super) operation: Operation,
    /// The operation's.
    pub(super) label: Label,
    pub(super) kernel: Kernel,
    pub(super) extent: CallExtent,
    pub(super) way: SettledWay,
}

impl SettledCall {
    /// What is settled of a call that has been accepted.
    ///
    /// # Errors
    /// As [`HostSide::way`].
    pub(super) fn of(call: &Call<'_>, world: World, host: &HostSide, accepted: Accepted) -> Result<SettledCall> {
        let Accepted { extent, kernel } = accepted;
        let way = match host.way(call, world)? {
            CallWay::Path(Path::Flat) => SettledWay::Flat(SlotReads::of(call, world, extent)),
            other => SettledWay::Other(other),
        };
        let operation = operation_of(call, false, 0);
        Ok(SettledCall { operation, label: operation.label(), kernel, extent, way })
    }
}

/// What ranks must agree on of a call, but for its number and the calls before it.
pub(super) fn operation_of(call: &Call<'_>, on_device: bool, windows: u64) -> Operation {
    let &Call { collective, data_type, op, root, .. } = call;
    let count = call.count_label();
    Operation { collective, data_type, op, root, count, sequence: 0, past: 0, on_device, windows }
}

/// A collective on host memory that may run any number of times. Whoever keeps it sees to it that its buffers live as
/// long.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(super) call: Call<'static>,
    pub(super) settled: SettledCall,
}

/// How it goes.
#[derive(Debug, Clone)]
pub(super) enum SettledWay {
    /// By flat slots.
    Flat(SlotReads),
    Other(CallWay),
}

impl SettledWay {
    pub(super) fn call_way(&self) -> CallWay {
        match self {
            SettledWay::Flat(_) => CallWay::Path(Path::Flat),
            SettledWay::Other(way) => *way,
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
    pub(super) extent: CallExtent,
    pub(super) reads: SlotReads,
    /// Among the flat operations.
    pub(super) number: u64,
    /// Whether it has not ended at once.
    pub(super) has_waited: bool,
}

impl AnnouncedCall {
    pub(super) fn begun(&self, world: World) -> Begun<'_> {
        let AnnouncedCall { call, operation, label, kernel, extent, .. } = self;
        Begun { call, operation, label: *label, kernel, world, extent }
    }
}
