//! Collectives that only move data, between processes of one host: each rank reads what it needs straight from the
//! others' input, by the kernel.
//!
//! One copy in place of two through scratch. The ranks have met in the [`Epoch`], where each has said where its input
//! begins. Each then reads its blocks, and all meet again: a rank returns when nobody reads its input any more. In that
//! second meeting each rank says whether it has read everything. Where one has not, all go on by scratch.

#![warn(clippy::wildcard_enum_match_arm)]

use std::ptr::NonNull;

use crate::device::{Average, Pass, Store};
use crate::error::Result;
use crate::exec::call::{Begun, Call, CallCount};
use crate::exec::epoch::Epoch;
use crate::exec::flat::Flat;
use crate::exec::turn::WaitContext;
use crate::types::{Collective, Rank, World};

/// What a rank takes from the input of another, or from its own, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    owner: Rank,
    from: u64,
    to: u64,
    elements: u64,
}

/// Whether ranks may run such a call by reading each other's input; all of them get the same answer.
pub(super) fn serves(call: &Call<'_>, world: World) -> bool {
    let most_bytes = match call.collective {
        Collective::AllGather | Collective::AllGatherV | Collective::AllToAll => u64::MAX,
        Collective::Broadcast => MOST_BROADCAST_BYTES,
        Collective::AllReduce
        | Collective::Reduce
        | Collective::ReduceScatter
        | Collective::ReduceScatterV
        | Collective::Gather
        | Collective::Scatter
        | Collective::GatherV
        | Collective::ScatterV
        | Collective::Scan
        | Collective::Exscan
        | Collective::Barrier
        | Collective::Send
        | Collective::Recv
        | Collective::AllToAllV => 0,
    };
    let longest = match &call.count {
        CallCount::Each(count) => *count,
        CallCount::PerRank(counts) => counts.iter().copied().max().unwrap_or(0),
    };
    let bytes = longest.saturating_mul(u64::from(call.data_type.size()));
    (LEAST_BYTES..most_bytes).contains(&bytes) && world.size <= MOST_RANKS
}

/// Runs the call, which [`serves`] has named, in `epoch`. False where a rank could not read all that it needs: then all
/// ranks get false, and have to run the call in another way.
///
/// # Errors
/// Of waiting, and of peers that have given up the operation.
pub(crate) fn run(
    begun: &Begun<'_>,
    epoch: &mut Epoch<'_>,
    flat: &mut Flat,
    (streams, wait_context): (bool, &mut WaitContext<'_>),
) -> Result<bool> {
    let Begun { call, kernel, world, .. } = *begun;
    let size = u64::from(call.data_type.size());
    let (input, output) = (call.buffers.source(), call.buffers.target());
    let index = |elements: u64| usize::try_from(elements * size).expect("checked against the address space");
    let mut is_whole = true;
    for block in blocks(call, world) {
        let target = output.wrapping_add(index(block.to));
        if block.owner != world.rank {
            let Some(target) = NonNull::new(target).filter(|_| block.elements > 0) else { continue };
            let from = (block.owner, index(block.from));
            // SAFETY: the block lies inside the output, which the engine has checked and `Buffers` vouches for.
            is_whole &= unsafe { epoch.read(begun, from, (target, index(block.elements)), wait_context)? };
            continue;
        }
        let source = input.wrapping_add(index(block.from));
        if source != target.cast_const() {
            let count = usize::try_from(block.elements).expect("checked against the address space");
            let store = if streams { Store::Streaming } else { Store::Cached };
            let pass = Pass {
                sources: &[source],
                raw: None,
                targets: &[target],
                count,
                finish: false,
                average: Average::Sum,
                store,
            };
            // SAFETY: the block lies inside both buffers, as above; they do not overlap but where they are the same.
            unsafe { kernel.run(&pass) };
        }
    }
    epoch.part(begun, is_whole, flat, wait_context)
}

/// What a rank takes from whom, from its successor on, so that not all read the same rank at once.
fn blocks<'a>(call: &'a Call<'_>, world: World) -> impl Iterator<Item = Block> + use<'a> {
    let mine = call.count.of(world.rank);
    let before = |rank: Rank| match &call.count {
        CallCount::Each(count) => count * u64::from(rank.get()),
        CallCount::PerRank(counts) => counts[..rank.index()].iter().sum(),
    };
    (0..world.size).map(move |distance| world.rank.after(distance, world.size)).filter_map(move |owner| {
        match call.collective {
            Collective::Broadcast => {
                (call.root == Some(owner)).then_some(Block { owner, from: 0, to: 0, elements: mine })
            }
            Collective::AllToAll => Some(Block { owner, from: before(world.rank), to: before(owner), elements: mine }),
            Collective::AllGather | Collective::AllGatherV => {
                Some(Block { owner, from: 0, to: before(owner), elements: call.count.of(owner) })
            }
            // `serves` has not named them.
            Collective::AllReduce
            | Collective::Reduce
            | Collective::ReduceScatter
            | Collective::ReduceScatterV
            | Collective::Gather
            | Collective::Scatter
            | Collective::GatherV
            | Collective::ScatterV
            | Collective::Scan
            | Collective::Exscan
            | Collective::Barrier
            | Collective::Send
            | Collective::Recv
            | Collective::AllToAllV => None,
        }
    })
}

/// The least longest block that is read in place: the kernel's work for a page costs as much as a copy of it.
const LEAST_BYTES: u64 = 16 << 10;
/// From here on the root's processor and the readers' are faster together, through scratch, than the readers' alone
/// (measured with two ranks).
const MOST_BROADCAST_BYTES: u64 = 2 << 20;
/// Ranks of a host that read each other. All that read one rank share the lock of its page tables, so that more of them
/// wait for each other.
const MOST_RANKS: u32 = 8;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::exec::Buffers;
    use crate::types::DataType;

    fn taken(collective: Collective, root: Option<u32>, count: CallCount) -> Vec<(u32, u64, u64, u64)> {
        let world = World { rank: Rank::new(1), size: 3 };
        let buffers = Buffers::apart::<u8>(&[], &mut []);
        let call = Call { collective, data_type: DataType::U8, op: None, root: root.map(Rank::new), count, buffers };
        blocks(&call, world).map(|block| (block.owner.get(), block.from, block.to, block.elements)).collect()
    }

    #[test]
    fn each_rank_takes_what_the_collective_gives_it() {
        let each = CallCount::Each(10);
        assert_eq!(taken(Collective::Broadcast, Some(2), each.clone()), [(2, 0, 0, 10)]);
        assert_eq!(taken(Collective::AllGather, None, each.clone()), [(1, 0, 10, 10), (2, 0, 20, 10), (0, 0, 0, 10)]);
        assert_eq!(taken(Collective::AllToAll, None, each), [(1, 10, 10, 10), (2, 10, 20, 10), (0, 10, 0, 10)]);
        let uneven = CallCount::PerRank(vec![5, 0, 7]);
        assert_eq!(taken(Collective::AllGatherV, None, uneven), [(1, 0, 5, 0), (2, 0, 5, 7), (0, 0, 0, 5)]);
    }
}
