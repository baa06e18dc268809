//! Collectives that only move data, by the copy engines of devices in place of their processors:
//! `NCCL_P2P_USE_CUDA_MEMCPY`. For calls in windows: each rank copies what it gets out of the other ranks' memory.
//!
//! | in the stream | why |
//! |---|---|
//! | a launch of a barrier, with the call's label | all inputs are there; the ranks run the same call |
//! | a copy from each rank | |
//! | the barrier again | all inputs have been read, so that their owners may write them |

use crate::comm::engine::Engine;
use crate::comm::window::Placed;
use crate::device::Home;
use crate::device::records::{LaunchPart, Reduction};
use crate::error::{Error, Result};
use crate::exec::{Begun, Buffers, Call, CallCount, Order, WindowCopy, put_copies};
use crate::log;
use crate::plan::Windows;
use crate::types::{Collective, DataType, Rank, World};

impl Engine {
    /// Runs a call in windows by copies, where the user wants that and the call only moves data; false where not.
    pub(super) fn launch_copies(
        &mut self,
        begun: &Begun<'_>,
        placed: Option<&Placed>,
        (home, order): (Home, Order<'_>),
    ) -> Result<bool> {
        let (Begun { call, operation, world, .. }, Some(placed)) = (*begun, placed) else { return Ok(false) };
        if !self.session.settings.copy_engines {
            return Ok(false);
        }
        let Some(moves) = moves(call, world, &self.side_mut()?.windows.bases(placed))? else { return Ok(false) };
        let (Some(enter), Some(leave)) =
            (self.barrier_part(begun, placed, order)?, self.barrier_part(begun, placed, order)?)
        else {
            return Ok(false);
        };
        log::detail!(Tuning @ world.rank, "{}: {} copies by copy engines", call.collective, moves.len());
        self.launch_all(operation, order, |side, stream, turn| {
            side.launch_one(world.rank, (enter, stream), turn)?;
            put_copies(stream, home, &moves)?;
            side.launch_one(world.rank, (leave, stream), turn)
        })?;
        Ok(true)
    }

    /// A launch in which the ranks wait for each other, and which keeps what a call in windows works in; `None` where
    /// the user's filters want a barrier that needs connections.
    fn barrier_part(&mut self, begun: &Begun<'_>, placed: &Placed, order: Order<'_>) -> Result<Option<LaunchPart>> {
        let Begun { call, operation, world, .. } = *begun;
        let (collective, count) = (Collective::Barrier, CallCount::Each(0));
        let barrier =
            Call { collective, data_type: DataType::U8, op: None, root: None, count, buffers: Buffers::none() };
        let (lowered, windows) = self
            .device_program(&barrier, false)?
            .ok_or_else(|| Error::internal("a barrier of several ranks with nothing to do"))?;
        if windows == Windows::None || !lowered.steps.ends.is_empty() {
            return Ok(None);
        }
        let side = self.side_mut()?;
        let folding = Reduction { data_type: DataType::U8, op: None, world: world.size };
        let mut part = side.part(world.rank, &lowered, (folding, vec![operation.label()]));
        part.bases = vec![0, 0, side.peers[world.rank.index()].scratch];
        part.keep.extend(side.windows.kept(placed));
        part.keep.extend(call.buffers.kept());
        part.keep.extend(side.kept_by_graph(order)?);
        Ok(Some(part))
    }
}

/// What this rank copies: beginning with the rank behind it, so that not all read the same one at once. `None` where
/// the call is not made of copies. `bases` has the input and the output of each rank.
fn moves(call: &Call<'_>, world: World, bases: &[u64]) -> Result<Option<Vec<WindowCopy>>> {
    let too_long = || Error::internal("a block that no address space holds");
    let block = call.count.of(world.rank).checked_mul(u64::from(call.data_type.size())).ok_or_else(too_long)?;
    let me = world.rank.index();
    let (input, output) = (|rank: Rank| bases[2 * rank.index()], bases[2 * me + 1]);
    let place = |rank: Rank| u64::from(rank.get()) * block;
    let from_all = |from: &dyn Fn(Rank) -> u64| {
        let ranks = (0..world.size).map(|step| Rank::new((world.rank.get() + 1 + step) % world.size));
        ranks.map(|rank| WindowCopy { from: from(rank), to: output + place(rank), bytes: block }).collect::<Vec<_>>()
    };
    let mut moves = match call.collective {
        Collective::AllGather => from_all(&input),
        // In place, a rank would overwrite what others have yet to read.
        Collective::AllToAll if input(world.rank) != output => from_all(&|rank| input(rank) + place(world.rank)),
        Collective::Broadcast => {
            let root = call.root.ok_or_else(|| Error::internal("a broadcast without a root"))?;
            vec![WindowCopy { from: bases[2 * root.index() + 1], to: output, bytes: block }]
        }
        _ => return Ok(None),
    };
    moves.retain(|copy| copy.from != copy.to && copy.bytes > 0);
    Ok(Some(moves))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn call(collective: Collective, count: u64) -> Call<'static> {
        let (root, count) = ((collective == Collective::Broadcast).then(|| Rank::new(2)), CallCount::Each(count));
        Call { collective, data_type: DataType::U32, op: None, root, count, buffers: Buffers::none() }
    }

    fn moves_of(rank: u32, call: &Call<'_>, bases: &[u64]) -> Option<Vec<(u64, u64, u64)>> {
        let world = World { rank: Rank::new(rank), size: 3 };
        let moves = moves(call, world, bases).unwrap();
        moves.map(|moves| moves.iter().map(|copy| (copy.from, copy.to, copy.bytes)).collect())
    }

    #[test]
    fn each_rank_copies_what_it_gets() {
        let bases = [1000, 2000, 3000, 4000, 5000, 6000];
        let gathered = moves_of(1, &call(Collective::AllGather, 5), &bases);
        assert_eq!(gathered, Some(vec![(5000, 4040, 20), (1000, 4000, 20), (3000, 4020, 20)]));
        let exchanged = moves_of(2, &call(Collective::AllToAll, 5), &bases);
        assert_eq!(exchanged, Some(vec![(1040, 6000, 20), (3040, 6020, 20), (5040, 6040, 20)]));
        assert_eq!(moves_of(0, &call(Collective::Broadcast, 5), &bases), Some(vec![(6000, 2000, 20)]));
        assert_eq!(moves_of(2, &call(Collective::Broadcast, 5), &bases), Some(Vec::new()));
    }

    #[test]
    fn in_place_a_rank_leaves_its_own_block() {
        // Each input is the own block of the output.
        let bases = [2000, 2000, 4020, 4000, 6040, 6000];
        let gathered = moves_of(1, &call(Collective::AllGather, 5), &bases);
        assert_eq!(gathered, Some(vec![(6040, 4040, 20), (2000, 4000, 20)]));
        assert_eq!(moves_of(0, &call(Collective::AllToAll, 5), &bases), None);
    }

    #[test]
    fn nothing_is_copied_of_nothing_and_arithmetic_is_no_copy() {
        let bases = [1000, 2000, 3000, 4000, 5000, 6000];
        assert_eq!(moves_of(1, &call(Collective::AllGather, 0), &bases), Some(Vec::new()));
        assert_eq!(moves_of(1, &call(Collective::AllReduce, 5), &bases), None);
        assert_eq!(moves_of(1, &call(Collective::ReduceScatter, 5), &bases), None);
    }
}
