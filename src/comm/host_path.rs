//! The paths inside one host: flat slots for small calls, windows for large ones.

use std::ptr::NonNull;
use std::time::Duration;

use crate::comm::call::Call;
use crate::comm::choose::peers_may_read;
use crate::comm::engine::Engine;
use crate::device::{Kernel, Pass, Store};
use crate::error::{Error, Result};
use crate::exec::flat::Exchange;
use crate::exec::{Idle, Memory, Operation};
use crate::plan::Windows;
use crate::sync::Deadline;
use crate::sys::{clock, cpu, futex};
use crate::transport::{Board, HostWindows, INLINE_BYTES, LeaseGuard, UserRange};
use crate::types::{Collective, Rank, World};

impl Engine {
    /// Runs a call by flat slots.
    ///
    /// # Safety
    /// As [`Engine::collective`]; what any rank writes fits a flat slot.
    pub(crate) unsafe fn run_flat(&mut self, call: &Call, operation: &Operation, kernel: &Kernel) -> Result<()> {
        let world = self.world;
        let size = call.data_type.size() as usize;
        let (input, _) = call.lengths(world)?;
        let bytes = input.index() * size;
        let (windows, flat, patience, mut vigil) = self.host_parts(operation);
        let mut idle = Idle { patience, watch: &mut vigil };
        let fill = |slot: NonNull<u8>| {
            let targets = &[slot.as_ptr()];
            let (sources, count) = (&[call.input], input.index());
            let pass = Pass { sources, raw: 1, targets, count, finish: false, store: Store::Cached };
            if call.op.is_some() && !kernel.is_copy(1, false) {
                // SAFETY: the input is good for its length, as the caller promises; the slot is mine and large enough.
                unsafe { kernel.run(&pass) };
            } else if bytes > 0 {
                // SAFETY: as above; user memory and arena do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(call.input, slot.as_ptr(), bytes) };
            }
        };
        let exchange = flat.announce(windows, operation, &mut idle, (bytes, fill))?;
        // SAFETY: as the caller promises.
        let symmetric = unsafe { read_flat(call, world, kernel, &exchange, &mut idle)? };
        if symmetric {
            flat.finish_symmetric(&exchange);
        } else {
            flat.finish_rooted(&exchange);
        }
        Ok(())
    }

    /// Runs a call by a plan over windows: on the users' own buffers where all ranks' can be reached, else through scratch.
    ///
    /// # Safety
    /// As [`Engine::collective`].
    pub(crate) unsafe fn run_windows(&mut self, call: &Call, operation: &Operation, kernel: Kernel) -> Result<()> {
        let windows = self.fabric.share_windows().expect("opened before the path that needs them");
        if let Some(boards) = &windows.boards {
            boards[windows.me].write(call.input, call.output);
        }
        let announced = announce_ranges(&windows, call, self.world)?;
        windows.mine().lease().open(operation.sequence);
        let result = self.meet(operation, &announced).and_then(|met| {
            let reachable = peers_may_read(call) && (windows.boards.is_some() || met.iter().all(Option::is_some));
            let kind = if reachable { Windows::User } else { Windows::Scratch };
            let plan = self.chooser().plan(call, kind)?;
            let guards = if reachable { enter(&windows, operation)? } else { Vec::new() };
            let user = if reachable { user_memory(&windows, call, self.world, &met)? } else { Vec::new() };
            // SAFETY: as the caller promises; peers' buffers are entered and held by `guards`.
            let result = unsafe { self.run_plan(&plan, call, operation, kernel, user) };
            drop(guards);
            result
        });
        if let Err(error) = &result {
            // Peers inside my buffers must learn of it, or the lease would not drain.
            self.publish_failure(error);
        }
        close_lease(&windows);
        result
    }

    /// Announces the operation with `ranges` and returns what all ranks announced.
    fn meet(&mut self, operation: &Operation, ranges: &Ranges) -> Result<Vec<Option<Ranges>>> {
        let (windows, flat, patience, mut vigil) = self.host_parts(operation);
        let mut idle = Idle { patience, watch: &mut vigil };
        let fill = |slot: NonNull<u8>| {
            // SAFETY: my slot has room for 16 bytes beside the label.
            unsafe { slot.cast::<[u8; RANGES_BYTES]>().write(encode_ranges(ranges)) };
        };
        let exchange = flat.announce(windows, operation, &mut idle, (RANGES_BYTES, fill))?;
        let mut met = Vec::with_capacity(windows.ranks.len());
        for place in 0..windows.ranks.len() {
            let slot = exchange.read(place, &mut idle)?.data(RANGES_BYTES);
            // SAFETY: the peer wrote 16 bytes there before it raised the flag, which `read` waited for.
            met.push(decode_ranges(unsafe { slot.cast::<[u8; RANGES_BYTES]>().read() }));
        }
        flat.finish_symmetric(&exchange);
        Ok(met)
    }
}

/// Where a rank's input and output lie in registered buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ranges {
    input: Option<UserRange>,
    output: Option<UserRange>,
    reachable: bool,
}

/// Reads the others' slots as the collective asks. True where I have waited for everyone.
///
/// # Safety
/// The call's buffers are good for their lengths.
unsafe fn read_flat(
    call: &Call,
    world: World,
    kernel: &Kernel,
    exchange: &Exchange<'_>,
    idle: &mut Idle<'_>,
) -> Result<bool> {
    let size = call.data_type.size() as usize;
    let count =
        |rank: Rank| Ok::<_, Error>(usize::try_from(call.count.of(rank)).expect("checked against the address space"));
    let mine = count(world.rank)?;
    let before = |rank: Rank| world.ranks().take(rank.index()).map(|rank| count(rank).unwrap_or(0)).sum::<usize>();
    let total = || before(Rank::new(world.size));
    let root = call.root.unwrap_or_default();
    let at_root = root == world.rank;
    // Copies `elements` that lie `from` elements into the slot of `rank`, which has `of`, to `to` elements into the output.
    let mut copy = |rank: Rank, (of, from): (usize, usize), (to, elements): (usize, usize)| {
        let slot = exchange.read(rank.index(), idle)?.data(of * size);
        let (source, target) = (slot.as_ptr().wrapping_add(from * size), call.output.wrapping_add(to * size));
        // SAFETY: the slot has `of` elements, which its owner leaves alone until everyone is done; the output is the caller's.
        unsafe { std::ptr::copy_nonoverlapping(source.cast_const(), target, elements * size) };
        Ok::<_, Error>(())
    };
    match call.collective {
        Collective::AllReduce => {
            // SAFETY: the output is the caller's; the slots hold as many bytes.
            unsafe { exchange.reduce(kernel, idle, (mine * size, 0), (call.output, mine))? };
        }
        Collective::ReduceScatter | Collective::ReduceScatterV => {
            let span = (total() * size, before(world.rank) * size);
            // SAFETY: as above.
            unsafe { exchange.reduce(kernel, idle, span, (call.output, mine))? };
        }
        Collective::Reduce if at_root => {
            // SAFETY: as above.
            unsafe { exchange.reduce(kernel, idle, (mine * size, 0), (call.output, mine))? };
        }
        Collective::Broadcast if !at_root => copy(root, (mine, 0), (0, mine))?,
        Collective::Broadcast if call.input != call.output.cast_const() => copy(root, (mine, 0), (0, mine))?,
        Collective::Scatter => copy(root, (total(), before(world.rank)), (0, mine))?,
        Collective::AllGather | Collective::AllGatherV => {
            for rank in world.ranks() {
                copy(rank, (count(rank)?, 0), (before(rank), count(rank)?))?;
            }
        }
        Collective::Gather if at_root => {
            for rank in world.ranks() {
                copy(rank, (count(rank)?, 0), (before(rank), count(rank)?))?;
            }
        }
        Collective::AllToAll => {
            for rank in world.ranks() {
                copy(rank, (total(), before(world.rank)), (before(rank), mine))?;
            }
        }
        Collective::Barrier => exchange.read_all(idle)?,
        Collective::Reduce
        | Collective::Broadcast
        | Collective::Gather
        | Collective::Send
        | Collective::Recv
        | Collective::AllToAllV => {}
    }
    Ok(!call.collective.rooted())
}

fn announce_ranges(windows: &HostWindows, call: &Call, world: World) -> Result<Ranges> {
    let size = call.data_type.size() as usize;
    let (input, output) = call.lengths(world)?;
    let find = |start: *const u8, bytes: usize| {
        if bytes == 0 { None } else { windows.find(start..start.wrapping_add(bytes)) }
    };
    let input_range = find(call.input, input.index() * size);
    let output_range = find(call.output, output.index() * size);
    let reachable = (input.0 == 0 || input_range.is_some()) && (output.0 == 0 || output_range.is_some());
    Ok(Ranges { input: input_range, output: output_range, reachable })
}

/// Enters the buffers of all peers of the host.
fn enter<'a>(windows: &'a HostWindows, operation: &Operation) -> Result<Vec<LeaseGuard<'a>>> {
    let peers = windows.arenas.iter().zip(&windows.ranks).enumerate().filter(|(place, _)| *place != windows.me);
    peers
        .map(|(_, (arena, rank))| {
            let gone = || Error::remote(*rank, format!("rank {rank} has given up this operation"));
            arena.lease().enter(operation.sequence).ok_or_else(gone)
        })
        .collect()
}

/// The users' buffers of all ranks of the host, whose leases are held.
fn user_memory(windows: &HostWindows, call: &Call, world: World, met: &[Option<Ranges>]) -> Result<Vec<Memory>> {
    if let Some(boards) = &windows.boards {
        let read = |board: &std::sync::Arc<Board>| {
            let (input, output) = board.read();
            Memory { input, output }
        };
        return Ok(boards.iter().map(read).collect());
    }
    let size = call.data_type.size() as usize;
    let mut memory = Vec::with_capacity(met.len());
    for (place, (ranges, rank)) in met.iter().zip(&windows.ranks).enumerate() {
        let (input, output) = call.lengths(World { rank: *rank, ..world })?;
        let resolve = |range: Option<UserRange>, bytes: usize| match range {
            None => Ok(std::ptr::null_mut()),
            Some(range) => windows.resolve(place, range, bytes).map(NonNull::as_ptr).ok_or_else(|| {
                Error::remote(*rank, format!("rank {rank} announced a buffer outside what it registered"))
            }),
        };
        let ranges = ranges.expect("only where all ranks are reachable");
        memory.push(Memory {
            input: resolve(ranges.input, input.index() * size)?.cast_const(),
            output: resolve(ranges.output, output.index() * size)?,
        });
    }
    Ok(memory)
}

/// Lets nobody into my buffers any more, and waits until all are out. Threads of this process always come out: they see the
/// failure at their next look. A process that died inside keeps its mapping to itself, so after a while it is not waited for.
fn close_lease(windows: &HostWindows) {
    let lease = windows.mine().lease();
    lease.close();
    let strict = windows.boards.is_some();
    let deadline = Deadline::after(LEASE_PATIENCE);
    let mut turns = 0u32;
    while !lease.drained() {
        turns = turns.saturating_add(1);
        if turns < YIELDS {
            cpu::yield_now();
            continue;
        }
        if !strict && deadline.passed(clock::now()) {
            tracing::warn!(target: "rsccl::coll", "a peer that died is still counted inside this rank's buffers");
            return;
        }
        futex::nap(LEASE_NAP);
    }
}

/// Input and output as two words: registration in the upper 16 bits, offset in the lower 48; all ones: none.
fn encode_ranges(ranges: &Ranges) -> [u8; RANGES_BYTES] {
    let word = |range: Option<UserRange>| {
        let fits = range.filter(|range| range.offset <= OFFSET_MASK);
        fits.map_or(u64::MAX, |range| u64::from(range.window) << 48 | range.offset)
    };
    let reachable = u64::from(ranges.reachable);
    let mut bytes = [0; RANGES_BYTES];
    bytes[..8].copy_from_slice(&word(ranges.input).to_le_bytes());
    bytes[8..16].copy_from_slice(&word(ranges.output).to_le_bytes());
    bytes[16..].copy_from_slice(&reachable.to_le_bytes());
    bytes
}

/// `None` where the rank's buffers cannot be reached.
fn decode_ranges(bytes: [u8; RANGES_BYTES]) -> Option<Ranges> {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
    let range = |word: u64| {
        let window = u16::try_from(word >> 48).expect("16 bits are left");
        (word != u64::MAX).then_some(UserRange { window, offset: word & OFFSET_MASK })
    };
    (word(16) == 1).then(|| Ranges { input: range(word(0)), output: range(word(8)), reachable: true })
}

const RANGES_BYTES: usize = 24;
const OFFSET_MASK: u64 = (1 << 48) - 1;
/// Looks at the lease before the wait for peers sleeps.
const YIELDS: u32 = 1000;
/// How long the wait for peers sleeps between two looks.
const LEASE_NAP: Duration = Duration::from_micros(200);
/// How long a process waits for others to leave its buffers.
const LEASE_PATIENCE: Duration = Duration::from_secs(5);

const _: () = assert!(RANGES_BYTES <= INLINE_BYTES);
