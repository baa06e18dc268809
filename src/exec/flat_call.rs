//! Small collectives inside a host as calls: what a rank writes into its flat slot, and what each collective takes out
//! of the other ranks' slots.

#![warn(clippy::wildcard_enum_match_arm)]

use std::ptr::NonNull;

use crate::device::{Average, Pass, Store};
use crate::error::{Error, Result};
use crate::exec::call::Begun;
use crate::exec::flat::{Exchange, Flat};
use crate::exec::turn::WaitContext;
use crate::transport::HostWindows;
use crate::types::{Collective, Rank};

/// Runs a call by flat slots. The bytes of each rank fit one slot, and the windows are open.
///
/// # Errors
/// Of waiting for peers, and of peers that run another operation.
pub fn run(
    begun: &Begun<'_>,
    windows: &HostWindows,
    flat: &mut Flat,
    wait_context: &mut WaitContext<'_>,
) -> Result<()> {
    let Begun { call, operation, kernel, lengths: (input, _), .. } = begun;
    let size = call.data_type.size() as usize;
    let bytes = input.index() * size;
    let mut turn = wait_context.fabric.links().staging.turn(bytes);
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
    let exchange = flat.announce(windows, operation, wait_context, (bytes, fill))?;
    wait_context.fabric.links().staging.learn(&turn, bytes);
    read_slots(begun, &exchange, wait_context)?;
    if call.collective.rooted() {
        flat.finish_rooted(&exchange);
    } else {
        flat.finish_symmetric(&exchange);
    }
    Ok(())
}

/// What a rank takes out of a slot, in elements.
#[derive(Debug, Clone, Copy)]
struct Extract {
    /// How many elements the slot has.
    of: usize,
    /// The first element that is taken.
    from: usize,
    /// Where that element goes in the output.
    to: usize,
    /// How many elements are taken.
    elements: usize,
}

impl Extract {
    /// All elements of a slot.
    fn whole(elements: usize, to: usize) -> Extract {
        Extract { of: elements, from: 0, to, elements }
    }
}

/// If ranks form teams, waits for all of them. Returns whether the call is done: the last rank of a team has reduced
/// the result, which is in the output.
#[inline]
fn meet_all(
    begun: &Begun<'_>,
    exchange: &Exchange<'_>,
    wait_context: &mut WaitContext<'_>,
    (mine, before): (usize, &dyn Fn(Rank) -> usize),
) -> Result<bool> {
    if !exchange.has_teams() {
        return Ok(false);
    }
    let Begun { call, kernel, world, .. } = begun;
    let size = call.data_type.size() as usize;
    // Elements that all slots have, and the first of them that is mine.
    let (count, from) = match call.collective {
        Collective::AllReduce => (mine, 0),
        Collective::ReduceScatter | Collective::ReduceScatterV => (before(Rank::new(world.size)), before(world.rank)),
        Collective::AllGather
        | Collective::AllGatherV
        | Collective::AllToAll
        | Collective::Barrier
        | Collective::Broadcast
        | Collective::Reduce
        | Collective::Gather
        | Collective::Scatter
        | Collective::Send
        | Collective::Recv
        | Collective::AllToAllV
        | Collective::GatherV
        | Collective::ScatterV
        | Collective::Scan
        | Collective::Exscan => (0, 0),
    };
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
        return Ok(call.collective == Collective::Barrier);
    }
    let source = result.data(count * size).as_ptr().wrapping_add(from * size);
    // SAFETY: the slot has `count` elements, `mine` of them from there on, and is written anew when everyone has come
    // to the next operation; the output is the caller's.
    unsafe { std::ptr::copy_nonoverlapping(source.cast_const(), call.buffers.target(), mine * size) };
    Ok(true)
}

/// Reads the slots of other ranks that the collective needs.
fn read_slots(begun: &Begun<'_>, exchange: &Exchange<'_>, wait_context: &mut WaitContext<'_>) -> Result<()> {
    let Begun { call, kernel, world, .. } = begun;
    let world = *world;
    let (input_place, output_place) = (call.buffers.source(), call.buffers.target());
    let size = call.data_type.size() as usize;
    let count =
        |rank: Rank| Ok::<_, Error>(usize::try_from(call.count.of(rank)).expect("checked against the address space"));
    let mine = count(world.rank)?;
    let before = |rank: Rank| world.ranks().take(rank.index()).map(|rank| count(rank).unwrap_or(0)).sum::<usize>();
    let total = || before(Rank::new(world.size));
    let root = call.root.unwrap_or_default();
    let at_root = root == world.rank;
    if !call.collective.rooted() && meet_all(begun, exchange, wait_context, (mine, &before))? {
        return Ok(());
    }
    let mut copy = |rank: Rank, Extract { of, from, to, elements }: Extract| {
        let slot = exchange.read(rank.index(), of * size, wait_context)?;
        let (source, target) = (slot.as_ptr().wrapping_add(from * size), output_place.wrapping_add(to * size));
        // SAFETY: the slot has `of` elements, which its owner leaves alone until everyone is done; the output is the
        // caller's.
        unsafe { std::ptr::copy_nonoverlapping(source.cast_const(), target, elements * size) };
        Ok::<_, Error>(())
    };
    match call.collective {
        Collective::AllReduce => {
            // SAFETY: the output is the caller's; the slots hold as many bytes.
            unsafe { exchange.reduce(kernel, wait_context, (mine * size, 0), (output_place, mine))? };
        }
        Collective::ReduceScatter | Collective::ReduceScatterV => {
            let span = (total() * size, before(world.rank) * size);
            // SAFETY: as above.
            unsafe { exchange.reduce(kernel, wait_context, span, (output_place, mine))? };
        }
        Collective::Reduce if at_root => {
            // SAFETY: as above.
            unsafe { exchange.reduce(kernel, wait_context, (mine * size, 0), (output_place, mine))? };
        }
        Collective::Broadcast if !at_root => copy(root, Extract::whole(mine, 0))?,
        Collective::Broadcast if input_place != output_place.cast_const() => copy(root, Extract::whole(mine, 0))?,
        Collective::Scatter => copy(root, Extract { of: total(), from: before(world.rank), to: 0, elements: mine })?,
        Collective::AllGather | Collective::AllGatherV => {
            for rank in world.ranks() {
                copy(rank, Extract::whole(count(rank)?, before(rank)))?;
            }
        }
        Collective::Gather if at_root => {
            for rank in world.ranks() {
                copy(rank, Extract::whole(count(rank)?, before(rank)))?;
            }
        }
        Collective::AllToAll => {
            for rank in world.ranks() {
                copy(rank, Extract { of: total(), from: before(world.rank), to: before(rank), elements: mine })?;
            }
        }
        Collective::Barrier => exchange.read_all(wait_context)?,
        Collective::Reduce
        | Collective::Broadcast
        | Collective::Gather
        | Collective::Send
        | Collective::Recv
        | Collective::AllToAllV
        | Collective::GatherV
        | Collective::ScatterV
        | Collective::Scan
        | Collective::Exscan => {}
    }
    Ok(())
}
