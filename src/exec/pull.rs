//! Collectives that only move data, between processes of one host: each rank reads what it needs straight from the
//! others' input, by the kernel.
//!
//! One copy in place of two through scratch. The ranks have met in the [`Epoch`], where each has said where its input
//! begins. Each then reads its blocks, and all meet again: a rank returns when nobody reads its input any more. In that
//! second meeting each rank says whether it has read everything. Where one has not, all go on by scratch.

use std::ptr::NonNull;

use crate::device::{Average, Pass, Store};
use crate::error::Result;
use crate::exec::call::{Begun, Call};
use crate::exec::epoch::Epoch;
use crate::exec::flat::Flat;
use crate::exec::turn::WaitContext;
use crate::types::{Contribution, Holding, RootSide, World};

/// Whether ranks may run such a call by reading each other's input; all of them get the same answer.
pub(super) fn serves(call: &Call<'_>, world: World) -> bool {
    let definition = call.collective.definition();
    let most_bytes = match (definition.root, definition.input) {
        _ if !definition.only_moves() => 0,
        (RootSide::Neither, _) => u64::MAX,
        // A broadcast. Of a scatter and a gather, one rank would do all the work, or all would read one rank.
        (RootSide::Input, Holding::One) => MOST_BROADCAST_BYTES,
        (RootSide::Input | RootSide::Output, _) => 0,
    };
    let longest = call.count.counts().longest();
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
    for block in contributions(call, world) {
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

/// What a rank takes from whom, from itself and its successor on, so that not all read the same rank at once.
fn contributions<'a>(call: &'a Call<'_>, world: World) -> impl Iterator<Item = Contribution> + use<'a> {
    let (me, blocks) = (world.rank, call.blocks(world));
    (0..world.size).filter_map(move |distance| blocks.between(me.after(distance, world.size), me))
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
    use crate::exec::{Buffers, CallCount};
    use crate::types::{Collective, DataType, Rank};

    fn taken(collective: Collective, root: Option<u32>, count: CallCount) -> Vec<(u32, u64, u64, u64)> {
        let world = World { rank: Rank::new(1), size: 3 };
        let buffers = Buffers::apart::<u8>(&[], &mut []);
        let call = Call { collective, data_type: DataType::U8, op: None, root: root.map(Rank::new), count, buffers };
        contributions(&call, world).map(|block| (block.owner.get(), block.from, block.to, block.elements)).collect()
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
