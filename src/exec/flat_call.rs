//! Small collectives inside a host as calls: what a rank writes into its flat slot, and what each collective takes out
//! of the other ranks' slots.

use std::ops::Range;
use std::ptr::NonNull;

use crate::device::{Average, Pass, Store, StorePolicy};
use crate::error::Result;
use crate::exec::call::{Begun, Call, CallExtent};
use crate::exec::flat::{self, Exchange, Flat};
use crate::exec::turn::WaitContext;
use crate::sync::Flag;
use crate::transport::HostWindows;
use crate::types::{Folded, Holding, Rank, RootSide, World};

/// What a rank reads in the slots of a call: the same whenever the call runs.
#[derive(Debug, Clone)]
pub struct SlotReads {
    /// Whether ranks that form teams meet in them.
    meets: bool,
    /// Whether some ranks do not wait for all others.
    rooted: bool,
    /// If this rank gets the reduction of all inputs: the elements of each slot, and those of them that it gets.
    folded: Option<(usize, Range<usize>)>,
    /// Whether it only waits for the others.
    is_nothing: bool,
}

impl SlotReads {
    /// Those of `call`.
    #[inline]
    pub fn of(call: &Call<'_>, world: World, extent: CallExtent) -> SlotReads {
        let definition = call.collective.definition();
        SlotReads {
            meets: definition.root == RootSide::Neither,
            rooted: call.collective.rooted(),
            folded: folded(call, world, extent),
            is_nothing: definition.output == Holding::Nothing,
        }
    }
}

/// Announces a call by flat slots, in which there is room. The bytes of each rank fit one slot.
#[inline]
pub fn announce<'a>(
    begun: &Begun<'a>,
    windows: &'a HostWindows,
    flat: &mut Flat,
    staging: &mut StorePolicy,
) -> Exchange<'a> {
    let Begun { call, operation, label, kernel, extent: CallExtent { input, element_bytes, .. }, .. } = begun;
    let bytes = input.index() * element_bytes;
    let mut turn = staging.turn(bytes);
    let fill = |slot: NonNull<u8>| {
        let (sources, targets) = (&[call.buffers.source()], &[slot.as_ptr()]);
        let pass = Pass {
            sources,
            raw: Some(0),
            targets,
            count: input.index(),
            finish: false,
            average: Average::Whole,
            store: turn.store,
        };
        turn.begin();
        if !kernel.is_copy(Some(0), false, Average::Whole) || turn.store == Store::Streaming {
            // SAFETY: the engine has checked the input's length, `Buffers` vouches for it; the slot is mine and large
            // enough.
            unsafe { kernel.run(&pass) };
        } else if bytes > 0 {
            // SAFETY: as above; user memory and arena do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(call.buffers.source(), slot.as_ptr(), bytes) };
        }
        turn.end();
    };
    let exchange = flat.put(windows, (operation, *label), (bytes, fill));
    staging.learn(&turn, bytes);
    exchange
}

/// Reads what an announced call `reads`, and ends it.
///
/// # Errors
/// Of waiting for peers, and of peers that run another operation.
#[inline]
pub fn read(
    (begun, reads): (&Begun<'_>, &SlotReads),
    exchange: &Exchange<'_>,
    flat: &mut Flat,
    wait_context: &mut WaitContext<'_>,
) -> Result<()> {
    read_slots((begun, reads), exchange, wait_context)?;
    if reads.rooted {
        flat.finish_rooted(exchange);
    } else {
        flat.finish_symmetric(exchange);
    }
    Ok(())
}

/// The flag of a rank that a call reads and that has not announced it yet, with the value that it must reach; `None`
/// where all have. Not for ranks that form teams: there the rank that comes last reduces for all.
pub fn missing<'a>(
    (call, world, reads): (&Call<'_>, World, &SlotReads),
    (windows, number): (&'a HostWindows, u64),
) -> Option<(&'a Flag, u64)> {
    let missing_at = |place| flat::missing_at(windows, number, place);
    if reads.folded.is_some() || reads.is_nothing {
        return (0..world.size as usize).find_map(missing_at);
    }
    call.blocks(world).owners(world.rank).find_map(|owner| missing_at(Rank::new(owner).index()))
}

/// If ranks form teams, waits for all of them. Returns whether the call is done: the last rank of a team has reduced
/// the result, which is in the output.
#[inline]
fn meet_all(
    (begun, reads): (&Begun<'_>, &SlotReads),
    exchange: &Exchange<'_>,
    wait_context: &mut WaitContext<'_>,
) -> Result<bool> {
    if !exchange.has_teams() {
        return Ok(false);
    }
    let Begun { call, kernel, world, extent: &CallExtent { element_bytes: size, .. }, .. } = *begun;
    // Elements that all slots have, and those of them that are mine.
    let (count, mine) = reads.folded.clone().unwrap_or((0, 0..0));
    let folds = call.collective.reduces() && exchange.may_fold();
    let mut fold = |sources: &[*const u8], target: *mut u8, finish: bool| {
        let average = exchange.average(finish);
        let pass = Pass { sources, raw: None, targets: &[target], count, finish, average, store: Store::Cached };
        // SAFETY: slots of `count` elements, of ranks that have all announced this operation, so that their owners
        // leave them alone; the target is another slot, which this rank alone writes now, since it came last.
        unsafe { kernel.run(&pass) };
    };
    let Some(result) = exchange.meet(wait_context, (count * size, if folds { Some(&mut fold) } else { None }))? else {
        return Ok(false);
    };
    if !folds {
        // Nothing is read where nothing moves.
        return Ok(call.blocks(world).owners(world.rank).is_empty());
    }
    let source = result.data(count * size).as_ptr().wrapping_add(mine.start * size);
    // SAFETY: the slot has `count` elements, `mine` of them from there on, and is written anew when everyone has come
    // to the next operation; the output is the caller's.
    unsafe { std::ptr::copy_nonoverlapping(source.cast_const(), call.buffers.target(), mine.len() * size) };
    Ok(true)
}

/// If this rank gets the reduction of all inputs: the elements of each slot, and those of them that it gets.
#[inline]
fn folded(
    call: &Call<'_>,
    world: World,
    CallExtent { input, output, .. }: CallExtent,
) -> Option<(usize, Range<usize>)> {
    let definition = call.collective.definition();
    let (_, holding) = definition.sides(call.root == Some(world.rank));
    if definition.folded != Folded::All || holding == Holding::Nothing {
        return None;
    }
    // All inputs are alike; mine has the same for me as each.
    let is_whole = definition.input != Holding::Each;
    let from = if is_whole { 0 } else { index(call.count.counts().before(world.rank)) };
    Some((input.index(), from..from + output.index()))
}

/// Reads the slots of other ranks that the collective needs.
#[inline]
fn read_slots(
    (begun, reads): (&Begun<'_>, &SlotReads),
    exchange: &Exchange<'_>,
    wait_context: &mut WaitContext<'_>,
) -> Result<()> {
    let Begun { call, kernel, world, extent: &CallExtent { element_bytes: size, .. }, .. } = *begun;
    let (input_place, output_place) = (call.buffers.source(), call.buffers.target());
    if reads.meets && meet_all((begun, reads), exchange, wait_context)? {
        return Ok(());
    }
    if let Some((count, mine)) = &reads.folded {
        let span = (count * size, mine.start * size);
        // SAFETY: the output is the caller's; the slots hold as many bytes.
        return unsafe { exchange.reduce(kernel, wait_context, span, (output_place, mine.len())) };
    }
    if reads.is_nothing {
        return exchange.read_all(wait_context);
    }
    let blocks = call.blocks(world);
    for owner in blocks.owners(world.rank).map(Rank::new) {
        let Some(block) = blocks.between(owner, world.rank) else { continue };
        let (from, to) = (index(block.from) * size, index(block.to) * size);
        let target = output_place.wrapping_add(to);
        if owner == world.rank && input_place.wrapping_add(from) == target.cast_const() {
            continue;
        }
        let (of, _) = blocks.lengths(owner).expect("a call's lengths have been checked");
        let slot = exchange.read(owner.index(), index(of) * size, wait_context)?;
        let source = slot.as_ptr().wrapping_add(from);
        // SAFETY: the slot has its owner's input, which its owner leaves alone until everyone is done; the output is
        // the caller's, and both hold the block.
        unsafe { std::ptr::copy_nonoverlapping(source.cast_const(), target, index(block.elements) * size) };
    }
    Ok(())
}

#[inline]
fn index(elements: u64) -> usize {
    usize::try_from(elements).expect("checked against the address space")
}
