//! Collectives that only move data, by the copy engines of devices in place of their processors:
//! `NCCL_P2P_USE_CUDA_MEMCPY`. For calls in windows: each rank copies what it has for others into their memory, or what
//! it gets out of it; the root of a rooted collective copies for all.
//!
//! | in the stream | why |
//! |---|---|
//! | a launch of a barrier, with the call's label | all inputs are there, and outputs may be written; the ranks run the same call |
//! | a copy to or from each rank | |
//! | the barrier again | all inputs have been read, and all outputs are there |

use crate::device::records::{LaunchPart, Reduction};
use crate::engine::device_call::{DeviceCall, Putting};
use crate::engine::device_windows::Placed;
use crate::engine::launches::Launched;
use crate::error::{Error, Result};
use crate::exec::peer_traffic::PeerTraffic;
use crate::exec::{Begun, Buffers, Call, CallCount, WindowCopy, put_copies};
use crate::log;
use crate::plan::{Pattern, RankBuffer, Windows};
use crate::transport::Way;
use crate::types::{Collective, DataType, Rank, World};

/// Runs a call in windows by copies, where the user wants that and the call only moves data; false where not.
pub(super) fn launch(on: &mut DeviceCall<'_>, begun: &Begun<'_>, placed: Option<&Placed>) -> Result<bool> {
    let (Begun { call, operation, world, .. }, Some(placed)) = (*begun, placed) else { return Ok(false) };
    if !on.given.session.settings.copy_engines {
        return Ok(false);
    }
    let (input, output) = call.buffers.places();
    let mine = [input, output].map(|place| place.addr() as u64);
    let bases = on.side.windows.bases(placed, world);
    let Some(Moves { way, copies }) = moves(call, world, mine, &bases)? else { return Ok(false) };
    let (Some(enter), Some(leave)) = (barrier_part(on, begun, placed)?, barrier_part(on, begun, placed)?) else {
        return Ok(false);
    };
    log::detail!(Tuning @ world.rank, "{}: {} copies by copy engines", call.collective, copies.len());
    let home = on.side.home;
    for (peer, copy) in &copies {
        on.count(&[PeerTraffic { peer: *peer, way, messages: 1, elements: copy.bytes }], 1);
    }
    let copies: Vec<WindowCopy> = copies.into_iter().map(|(_, copy)| copy).collect();
    on.launch(&Launched::Collective(*operation), |side, Putting { stream, captured, turn }| {
        side.launch_one(world.rank, (enter, stream, captured), turn)?;
        put_copies(stream, home, &copies)?;
        side.launch_one(world.rank, (leave, stream, captured), turn)
    })?;
    Ok(true)
}

/// A launch in which the ranks wait for each other, and which keeps what a call in windows works in; `None` where
/// the user's filters want a barrier that needs connections.
fn barrier_part(on: &mut DeviceCall<'_>, begun: &Begun<'_>, placed: &Placed) -> Result<Option<LaunchPart>> {
    let Begun { call, operation, world, .. } = *begun;
    let (collective, count) = (Collective::Barrier, CallCount::Each(0));
    let barrier = Call { collective, data_type: DataType::U8, op: None, root: None, count, buffers: Buffers::none() };
    let (lowered, windows) =
        on.program(&barrier, false)?.ok_or_else(|| Error::internal("a barrier of several ranks with nothing to do"))?;
    if windows == Windows::None || !lowered.steps.ends.is_empty() {
        return Ok(None);
    }
    let side = &*on.side;
    let folding = Reduction { data_type: DataType::U8, op: None, world: world.size };
    let mut part = side.part(world.rank, &lowered, (folding, vec![operation.label()]));
    part.bases = vec![0, 0, side.peers[world.rank.index()].scratch];
    part.keep.extend(side.windows.kept(placed));
    part.keep.extend(call.buffers.kept());
    Ok(Some(part))
}

/// The copies of a rank, each to or from a peer, and which of the two.
struct Moves {
    way: Way,
    copies: Vec<(Rank, WindowCopy)>,
}

/// What this rank copies: beginning with the rank behind it, so that not all work on the same one at once. `None` where
/// the call is not made of copies. `mine` has this rank's input and output, `bases` those of each rank in which peers
/// work.
fn moves(call: &Call<'_>, world: World, mine: [u64; 2], bases: &[u64]) -> Result<Option<Moves>> {
    let (me, blocks, size) = (world.rank, call.blocks(world), u64::from(call.data_type.size()));
    let Some(pattern) = Pattern::of(call.collective).filter(|_| call.collective.definition().only_moves()) else {
        return Ok(None);
    };
    // Peers' outputs are known, or their inputs are: to the first a rank gives, from the others it takes.
    let gives = pattern.symmetric_buffers().contains(&RankBuffer::Output);
    let mut copies = Vec::new();
    for peer in (1..=world.size).map(|step| me.after(step, world.size)) {
        let Some(block) = (if gives { blocks.between(me, peer) } else { blocks.between(peer, me) }) else { continue };
        let place = 2 * peer.index();
        let bytes = |elements: u64| elements.checked_mul(size);
        let (from, to) = if gives { (mine[0], bases[place + 1]) } else { (bases[place], mine[1]) };
        let copy = || {
            let (from, to) = (from.checked_add(bytes(block.from)?)?, to.checked_add(bytes(block.to)?)?);
            Some(WindowCopy { from, to, bytes: bytes(block.elements)? })
        };
        copies.push((peer, copy().ok_or_else(|| Error::internal("blocks that no address space holds"))?));
    }
    copies.retain(|(_, copy)| copy.from != copy.to && copy.bytes > 0);
    Ok(Some(Moves { way: if gives { Way::Send } else { Way::Receive }, copies }))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn call(collective: Collective, count: u64) -> Call<'static> {
        let (root, count) = (collective.rooted().then(|| Rank::new(2)), CallCount::Each(count));
        Call { collective, data_type: DataType::U32, op: None, root, count, buffers: Buffers::none() }
    }

    /// The buffers of each rank, where all of them lie in windows.
    const BASES: [u64; 6] = [1000, 2000, 3000, 4000, 5000, 6000];

    fn moves_of(rank: u32, call: &Call<'_>, bases: &[u64]) -> Option<Vec<(u64, u64, u64)>> {
        let world = World { rank: Rank::new(rank), size: 3 };
        let mine = [0, 1].map(|at| bases[2 * world.rank.index() + at]);
        // Peers' buffers beyond those in which ranks work may not be asked for.
        let known = Pattern::of(call.collective).map_or(&[][..], Pattern::symmetric_buffers);
        let kinds = [RankBuffer::Input, RankBuffer::Output].into_iter().cycle();
        let bases = bases.iter().zip(kinds).map(|(base, kind)| if known.contains(&kind) { *base } else { 0 });
        let moves = moves(call, world, mine, &bases.collect::<Vec<_>>()).unwrap();
        moves.map(|moves| moves.copies.iter().map(|(_, copy)| (copy.from, copy.to, copy.bytes)).collect())
    }

    #[test]
    fn each_rank_copies_what_it_gives_or_gets() {
        let gathered = moves_of(1, &call(Collective::AllGather, 5), &BASES);
        assert_eq!(gathered, Some(vec![(3000, 6020, 20), (3000, 2020, 20), (3000, 4020, 20)]));
        let exchanged = moves_of(2, &call(Collective::AllToAll, 5), &BASES);
        assert_eq!(exchanged, Some(vec![(1040, 6000, 20), (3040, 6020, 20), (5040, 6040, 20)]));
        let counts = CallCount::PerRank(vec![3, 0, 2]);
        let vector = |rank: u32| {
            let call = Call { count: counts.clone(), ..call(Collective::AllGatherV, 0) };
            moves_of(rank, &call, &BASES)
        };
        assert_eq!(vector(2), Some(vec![(5000, 2012, 8), (5000, 4012, 8), (5000, 6012, 8)]));
        assert_eq!(vector(1), Some(Vec::new()));
    }

    #[test]
    fn the_root_copies_for_all() {
        let of_root = |collective| moves_of(2, &call(collective, 5), &BASES);
        let sent = of_root(Collective::Broadcast);
        assert_eq!(sent, Some(vec![(5000, 2000, 20), (5000, 4000, 20), (5000, 6000, 20)]));
        let gathered = of_root(Collective::Gather);
        assert_eq!(gathered, Some(vec![(1000, 6000, 20), (3000, 6020, 20), (5000, 6040, 20)]));
        let scattered = of_root(Collective::Scatter);
        assert_eq!(scattered, Some(vec![(5000, 2000, 20), (5020, 4000, 20), (5040, 6000, 20)]));
        for collective in [Collective::Broadcast, Collective::Gather, Collective::Scatter] {
            assert_eq!(moves_of(0, &call(collective, 5), &BASES), Some(Vec::new()));
        }
    }

    #[test]
    fn in_place_a_rank_leaves_its_own_block() {
        // Each input is the own block of the output.
        let bases = [2000, 2000, 4020, 4000, 6040, 6000];
        let gathered = moves_of(1, &call(Collective::AllGather, 5), &bases);
        assert_eq!(gathered, Some(vec![(4020, 6020, 20), (4020, 2020, 20)]));
        let gathered = moves_of(2, &call(Collective::Gather, 5), &bases);
        assert_eq!(gathered, Some(vec![(2000, 6000, 20), (4020, 6020, 20)]));
        let one = [2000, 2000, 4000, 4000, 6000, 6000];
        let sent = moves_of(2, &call(Collective::Broadcast, 5), &one);
        assert_eq!(sent, Some(vec![(6000, 2000, 20), (6000, 4000, 20)]));
    }

    #[test]
    fn nothing_is_copied_of_nothing_and_arithmetic_is_no_copy() {
        assert_eq!(moves_of(1, &call(Collective::AllGather, 0), &BASES), Some(Vec::new()));
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce] {
            assert_eq!(moves_of(1, &call(collective, 5), &BASES), None);
        }
    }
}
