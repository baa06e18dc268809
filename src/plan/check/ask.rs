//! The definition of each collective: how large the buffers are, how they overlap in place, and what outputs hold.

use crate::plan::Spec;
use crate::types::{Collective, Elements, Rank};

/// Elements of all ranks together.
pub(super) fn total(spec: &Spec) -> u64 {
    spec.count.before(Rank::new(spec.world.size)).0
}

/// Elements of a rank's input and output, where all ranks have `all` together.
pub(super) fn sizes(spec: &Spec, rank: Rank, all: u64) -> (u64, u64) {
    let own = spec.count.of(rank).0;
    let at_root = |elements: u64| if rank == spec.root { elements } else { 0 };
    match spec.collective {
        Collective::AllReduce => (own, own),
        Collective::Broadcast => (at_root(own), own),
        Collective::Reduce => (own, at_root(own)),
        Collective::AllGather | Collective::AllGatherV => (own, all),
        Collective::ReduceScatter | Collective::ReduceScatterV => (all, own),
        Collective::AllToAll => (all, all),
        Collective::Gather => (own, at_root(all)),
        Collective::Scatter => (at_root(all), own),
        Collective::Barrier
        | Collective::Send
        | Collective::Recv
        | Collective::AllToAllV
        | Collective::GatherV
        | Collective::ScatterV
        | Collective::Scan
        | Collective::Exscan => (0, 0),
    }
}

/// Where input and output begin in the one buffer that they share in place; `None` where they are two buffers.
pub(super) fn overlap(spec: &Spec, rank: Rank) -> Option<(u64, u64)> {
    if !spec.in_place {
        return None;
    }
    let block = spec.count.before(rank).0;
    match spec.collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => Some((0, 0)),
        Collective::AllGather | Collective::AllGatherV => Some((block, 0)),
        Collective::ReduceScatter | Collective::ReduceScatterV => Some((0, block)),
        Collective::Gather => (rank == spec.root).then_some((block, 0)),
        Collective::Scatter => (rank == spec.root).then_some((0, block)),
        Collective::AllToAll
        | Collective::Barrier
        | Collective::Send
        | Collective::Recv
        | Collective::AllToAllV
        | Collective::GatherV
        | Collective::ScatterV
        | Collective::Scan
        | Collective::Exscan => None,
    }
}

/// A range of an output, and what its elements must hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The first element in the output.
    pub(super) start: u64,
    /// How many elements.
    pub(super) length: u64,
    /// The element of the inputs that belongs to the first element of the range.
    pub(super) index: u64,
    /// The ranks whose inputs are reduced, or the one rank whose input is copied.
    pub(super) ranks: Vec<u32>,
}

/// What the output of `rank` must hold.
pub(super) fn output(spec: &Spec, rank: Rank) -> Vec<Asked> {
    let all = || spec.world.ranks().map(Rank::get).collect::<Vec<_>>();
    let (_, size) = sizes(spec, rank, total(spec));
    let before = spec.count.before(rank).0;
    let blocks = |index: u64| {
        let block = |owner: Rank| Asked {
            start: spec.count.before(owner).0,
            length: spec.count.of(owner).0,
            index,
            ranks: vec![owner.get()],
        };
        spec.world.ranks().map(block).collect::<Vec<_>>()
    };
    let one = |index: u64, ranks: Vec<u32>| vec![Asked { start: 0, length: size, index, ranks }];
    match spec.collective {
        _ if size == Elements::ZERO.0 => Vec::new(),
        Collective::AllReduce | Collective::Reduce => one(0, all()),
        Collective::Broadcast => one(0, vec![spec.root.get()]),
        Collective::ReduceScatter | Collective::ReduceScatterV => one(before, all()),
        Collective::Scatter => one(before, vec![spec.root.get()]),
        Collective::AllGather | Collective::AllGatherV | Collective::Gather => blocks(0),
        Collective::AllToAll => blocks(before),
        Collective::Barrier
        | Collective::Send
        | Collective::Recv
        | Collective::AllToAllV
        | Collective::GatherV
        | Collective::ScatterV
        | Collective::Scan
        | Collective::Exscan => Vec::new(),
    }
}
