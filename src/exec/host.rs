//! Collectives inside one host: flat slots for small calls, visits to the peers' buffers for large ones; and plans of any kind.

use std::ptr::NonNull;

use crate::device::{Kernel, Pass, Store};
use crate::error::{Error, Kind, Result};
use crate::exec::call::Call;
use crate::exec::drive::{Idle, drive};
use crate::exec::evict::await_peers_out;
use crate::exec::flat::{Exchange, Flat};
use crate::exec::history::History;
use crate::exec::interpret::{Memory, PlanRun, Setting};
use crate::exec::operation::Operation;
use crate::exec::program::Program;
use crate::plan::{ScratchSets, Windows};
use crate::sync::primitive::Arc;
use crate::transport::{Board, HostWindows, INLINE_BYTES, Lease, LeaseGuard, Loan, UserRange};
use crate::types::{Collective, Rank, ReduceOp, World};

/// A world of one: output is input, scaled where the operator says so.
pub fn run_alone(call: &Call<'_>, world: World, kernel: &Kernel) -> Result<()> {
    let (input, output) = call.lengths(world)?;
    let count = input.index().min(output.index());
    let (source, target) = (call.buffers.source(), call.buffers.target());
    if count == 0 || (source == target.cast_const() && kernel.is_copy(Some(0), true)) {
        return Ok(());
    }
    let pass = Pass { sources: &[source], raw: Some(0), targets: &[target], count, finish: true, store: Store::Cached };
    // SAFETY: the engine has checked that both buffers have `count` elements; `Buffers` vouches for them.
    unsafe { kernel.run(&pass) };
    Ok(())
}

/// Runs a call by flat slots. What any rank writes fits one; the windows are open.
///
/// # Errors
/// Of waiting for peers, and of peers that run another operation.
pub fn run_flat(
    (windows, flat): (&HostWindows, &mut Flat),
    (call, operation): (&Call<'_>, &Operation),
    (world, kernel): (World, &Kernel),
    idle: &mut Idle<'_>,
) -> Result<()> {
    let size = call.data_type.size() as usize;
    let (input, _) = call.lengths(world)?;
    let bytes = input.index() * size;
    let mut turn = idle.fabric.links().staging.turn(bytes);
    let fill = |slot: NonNull<u8>| {
        let (sources, targets) = (&[call.buffers.source()], &[slot.as_ptr()]);
        let pass = Pass { sources, raw: Some(0), targets, count: input.index(), finish: false, store: turn.store };
        turn.begin();
        if !kernel.is_copy(Some(0), false) || turn.store == Store::Streaming {
            // SAFETY: the engine has checked the input's length, `Buffers` vouches for it; the slot is mine and large enough.
            unsafe { kernel.run(&pass) };
        } else if bytes > 0 {
            // SAFETY: as above; user memory and arena do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(call.buffers.source(), slot.as_ptr(), bytes) };
        }
        turn.end();
    };
    let exchange = flat.announce(windows, operation, idle, (bytes, fill))?;
    idle.fabric.links().staging.learn(&turn, bytes);
    read_flat(call, world, kernel, &exchange, idle)?;
    if call.collective.rooted() {
        flat.finish_rooted(&exchange);
    } else {
        flat.finish_symmetric(&exchange);
    }
    Ok(())
}

/// One large operation inside a host: peers may work in this rank's buffers, and this rank in theirs, while it lasts.
///
/// An operation that ended well [ends](Visit::end) it. Dropping it otherwise lets nobody in any more and waits until all are out; the
/// peers must have been told of the failure before, or they might stay in until their own deadline.
#[derive(Debug)]
pub struct Visit<'a> {
    windows: &'a HostWindows,
    over: bool,
    met: Vec<Option<Ranges>>,
    loans: Loans<'a>,
    guards: Vec<LeaseGuard<'a>>,
}

impl<'a> Visit<'a> {
    /// Opens this rank's buffers for `operation`.
    pub fn open(windows: &'a HostWindows, call: &Call<'_>, operation: &Operation) -> Visit<'a> {
        if let Some(boards) = &windows.boards {
            boards[windows.me].write(call.buffers.source(), call.buffers.target());
        }
        windows.mine().lease().open(operation.sequence);
        Visit { windows, over: false, met: Vec::new(), loans: Loans::default(), guards: Vec::new() }
    }

    /// Meets all ranks of the host in the operation. The kind of windows that all of them can use.
    ///
    /// # Errors
    /// Of the wait, and of peers that run another operation.
    pub fn meet(
        &mut self,
        flat: &mut Flat,
        (call, operation): (&Call<'_>, &Operation),
        world: World,
        idle: &mut Idle<'_>,
    ) -> Result<Windows> {
        self.loans = lend_buffers(self.windows, call, world)?;
        let mine = encode_ranges(&announce_ranges(self.windows, call, world, &self.loans)?);
        let fill = |slot: NonNull<u8>| {
            // SAFETY: my slot has room for as many bytes beside the label.
            unsafe { slot.cast::<[u8; RANGES_BYTES]>().write(mine) };
        };
        let exchange = flat.announce(self.windows, operation, idle, (RANGES_BYTES, fill))?;
        for place in 0..self.windows.ranks.len() {
            let slot = exchange.read(place, idle)?.data(RANGES_BYTES);
            // SAFETY: the peer wrote them before it raised the flag, which `read` waited for.
            self.met.push(decode_ranges(unsafe { slot.cast::<[u8; RANGES_BYTES]>().read() }));
        }
        flat.finish_symmetric(&exchange);
        let reachable = self.windows.boards.is_some() || self.met.iter().all(Option::is_some);
        // Where each rank scales its input by a scalar of its own, no other rank can read it raw.
        let raw = !matches!(call.op, Some(ReduceOp::PreMulSum(_)));
        Ok(if reachable && raw { Windows::User } else { Windows::Scratch })
    }

    /// Enters the buffers that `program` works in. Their owners wait for this rank in the plan, so one that is closed was given up; other
    /// ranks may have finished the operation by now.
    ///
    /// # Errors
    /// Of a peer that has given up the operation, or announced what it has not registered.
    fn enter(
        &mut self,
        program: &Program,
        call: &Call<'_>,
        operation: &Operation,
        world: World,
    ) -> Result<Vec<Memory>> {
        let windows = self.windows;
        for rank in program.entered().iter().copied() {
            let gone = || Error::remote(rank, format!("rank {rank} has given up this operation"));
            let lease = windows.arenas[windows.place(rank)].lease();
            // Threads of one process wait for each other, however long that takes; nobody asks which of them is inside.
            let guard = match windows.boards {
                Some(_) => lease.enter(operation.sequence),
                None => lease.enter_as(windows.me, operation.sequence),
            };
            self.guards.push(guard.ok_or_else(gone)?);
        }
        user_memory(windows, call, world, &self.met)
    }
}

impl Visit<'_> {
    /// The operation ended well: the plan's proof says that no peer touches this rank's buffers any more.
    ///
    /// # Errors
    /// Where another operation on one of the buffers, of another communicator, has failed meanwhile and taken it from the peers.
    pub fn end(mut self) -> Result<()> {
        self.over = true;
        let entered = !self.guards.is_empty();
        let whole = std::mem::take(&mut self.loans).into_iter().flatten().all(Loan::end);
        if whole || !entered { Ok(()) } else { Err(taken_away()) }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.guards.clear();
        self.windows.mine().lease().close();
        if !self.over {
            await_peers_out(self.windows, &self.loans);
        }
    }
}

/// The call's input and output, where they lie in registered buffers.
pub(super) type Loans<'a> = [Option<Loan<'a>>; 2];

/// What `run_plan` needs besides plan and call.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// Who I am.
    pub world: World,
    /// The arithmetic.
    pub kernel: Kernel,
    /// The host's windows, where the plan names any.
    pub windows: Option<&'a HostWindows>,
    /// Scratch of plans that need some without windows.
    pub scratch: &'a mut [u8],
    /// What this rank has called before.
    pub history: &'a History,
    /// Plans with windows that ran before, the same on all ranks of the host.
    pub runs: u64,
    /// What the flags of my host stood at when the plan began.
    pub flag_base: u64,
    /// Output of at least so many bytes passes the caches by.
    pub streaming_bytes: u64,
}

/// Runs `program`, whose plan was built for `call`, to its end; `visit` where it works in users' buffers. Its needs are connected.
///
/// # Errors
/// Of waiting, of sockets, and of peers that run another operation.
pub(crate) fn run_plan(
    (program, visit): (&Program, Option<&mut Visit<'_>>),
    (call, operation): (&Call<'_>, &Operation),
    surroundings: Surroundings<'_>,
    idle: &mut Idle<'_>,
) -> Result<()> {
    let (plan, world) = (program.plan(), surroundings.world);
    let user = match visit {
        Some(visit) if plan.spec.windows == Windows::User => visit.enter(program, call, operation, world)?,
        _ => Vec::new(),
    };
    let (_, output) = call.lengths(world)?;
    let streams = output.0 * u64::from(call.data_type.size()) >= surroundings.streaming_bytes;
    let scratch =
        surroundings.windows.map_or(surroundings.scratch.as_mut_ptr(), |windows| windows.mine().scratch().as_ptr());
    let setting = Setting {
        kernel: surroundings.kernel,
        memory: Memory { input: call.buffers.source(), output: call.buffers.target() },
        operation,
        history: surroundings.history,
        windows: surroundings.windows,
        user,
        scratch,
        scratch_shift: scratch_shift(program, surroundings.runs, call.data_type.size() as usize),
        flag_base: surroundings.flag_base,
        store: if streams { Store::Streaming } else { Store::Cached },
    };
    // SAFETY: the engine has checked the buffers against the call that the plan is for, and `Buffers` vouches for them; peers'
    // buffers are entered, and `visit` holds the leases until after this run; scratch is as large as the plan's limits say.
    let mut run = unsafe { PlanRun::new(plan, setting) };
    drive(&mut [&mut run], idle)
}

/// The runs of a communicator go through sets of scratch in turn. What is written again at once still lies in the caches of those who
/// have read it; to take it back from there costs more than to write lines that have left them.
fn scratch_shift(program: &Program, runs: u64, element_bytes: usize) -> usize {
    let plan = program.plan();
    if plan.spec.windows != Windows::Scratch {
        return 0;
    }
    let ScratchSets { count, stride } = program.scratch_sets();
    let enough = TURNED_BYTES / (stride.index() * element_bytes * plan.lanes.len().max(1));
    let turn = runs % count.min(u64::try_from(enough).unwrap_or(u64::MAX)).max(1);
    (stride * turn).index() * element_bytes
}

/// Where a rank's input and output lie in registered buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ranges {
    input: Option<UserRange>,
    output: Option<UserRange>,
    reachable: bool,
}

/// Reads the others' slots as the collective asks.
fn read_flat(
    call: &Call<'_>,
    world: World,
    kernel: &Kernel,
    exchange: &Exchange<'_>,
    idle: &mut Idle<'_>,
) -> Result<()> {
    let (input_place, output_place) = (call.buffers.source(), call.buffers.target());
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
        let (source, target) = (slot.as_ptr().wrapping_add(from * size), output_place.wrapping_add(to * size));
        // SAFETY: the slot has `of` elements, which its owner leaves alone until everyone is done; the output is the caller's.
        unsafe { std::ptr::copy_nonoverlapping(source.cast_const(), target, elements * size) };
        Ok::<_, Error>(())
    };
    match call.collective {
        Collective::AllReduce => {
            // SAFETY: the output is the caller's; the slots hold as many bytes.
            unsafe { exchange.reduce(kernel, idle, (mine * size, 0), (output_place, mine))? };
        }
        Collective::ReduceScatter | Collective::ReduceScatterV => {
            let span = (total() * size, before(world.rank) * size);
            // SAFETY: as above.
            unsafe { exchange.reduce(kernel, idle, span, (output_place, mine))? };
        }
        Collective::Reduce if at_root => {
            // SAFETY: as above.
            unsafe { exchange.reduce(kernel, idle, (mine * size, 0), (output_place, mine))? };
        }
        Collective::Broadcast if !at_root => copy(root, (mine, 0), (0, mine))?,
        Collective::Broadcast if input_place != output_place.cast_const() => copy(root, (mine, 0), (0, mine))?,
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
        | Collective::AllToAllV
        | Collective::GatherV
        | Collective::ScatterV
        | Collective::Scan
        | Collective::Exscan => {}
    }
    Ok(())
}

/// Lends the call's buffers to peers that are processes, where they are registered; threads know addresses.
fn lend_buffers<'a>(windows: &'a HostWindows, call: &Call<'_>, world: World) -> Result<Loans<'a>> {
    if windows.boards.is_some() || windows.ranks.len() > Lease::PLACES {
        return Ok(Loans::default());
    }
    let size = call.data_type.size() as usize;
    let (input, output) = call.lengths(world)?;
    let lend = |start: *const u8, bytes: usize| {
        if bytes == 0 { None } else { windows.lend(start..start.wrapping_add(bytes)) }
    };
    let input = lend(call.buffers.source(), input.index() * size);
    Ok([input, lend(call.buffers.target(), output.index() * size)])
}

fn announce_ranges(windows: &HostWindows, call: &Call<'_>, world: World, loans: &Loans<'_>) -> Result<Ranges> {
    let (input, output) = call.lengths(world)?;
    let [lent_input, lent_output] = loans;
    let reaches = (input.0 == 0 || lent_input.is_some()) && (output.0 == 0 || lent_output.is_some());
    let reachable = reaches && windows.ranks.len() <= Lease::PLACES;
    let [input, output] = loans.each_ref().map(|loan| loan.as_ref().map(Loan::range));
    Ok(Ranges { input, output, reachable })
}

/// The users' buffers of all ranks of the host, whose leases are held.
fn user_memory(windows: &HostWindows, call: &Call<'_>, world: World, met: &[Option<Ranges>]) -> Result<Vec<Memory>> {
    if let Some(boards) = &windows.boards {
        let read = |board: &Arc<Board>| {
            let (input, output) = board.read();
            Memory { input, output }
        };
        return Ok(boards.iter().map(read).collect());
    }
    let size = call.data_type.size() as usize;
    let mut memory = Vec::with_capacity(met.len());
    for (place, (ranges, rank)) in met.iter().zip(&windows.ranks).enumerate() {
        let (input, output) = call.lengths(World { rank: *rank, ..world })?;
        let resolve = |range: Option<UserRange>, bytes: usize| {
            // Who has no elements needs no place for them; whoever else announces none is not to be believed.
            if bytes == 0 {
                return Ok(std::ptr::null_mut());
            }
            let place = range.and_then(|range| windows.resolve(place, range, bytes));
            place.map(NonNull::as_ptr).ok_or_else(|| {
                Error::remote(*rank, format!("rank {rank} announced a buffer outside what it registered"))
            })
        };
        let ranges = ranges.expect("only where all ranks are reachable");
        memory.push(Memory {
            input: resolve(ranges.input, input.index() * size)?.cast_const(),
            output: resolve(ranges.output, output.index() * size)?,
        });
    }
    Ok(memory)
}

#[cold]
fn taken_away() -> Error {
    Error::new(
        Kind::System,
        "a call on another communicator failed while peers worked in the same registered buffer, which was taken away from them: \
         what they wrote for this call may be missing",
    )
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
/// Scratch that sets take turns in: more than second-level caches hold, so little that it stays in the third (measured from 1 to 4 MiB).
const TURNED_BYTES: usize = 2 << 20;
const OFFSET_MASK: u64 = (1 << 48) - 1;

const _: () = assert!(RANGES_BYTES <= INLINE_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{HostMemory, Sharing};
    use crate::exec::{Buffers, CallCount};
    use crate::transport::{Arena, Neighbour, Registered};
    use crate::types::DataType;

    /// Regression: a peer that announced elements in no place was believed, and null was followed.
    #[test]
    fn what_a_peer_announces_is_resolved_inside_what_it_registered_or_refused() {
        let world = World { rank: Rank::new(0), size: 2 };
        let memory = || HostMemory.allocate_host(4096, Sharing::Threads).unwrap();
        let windows = HostWindows {
            ranks: world.ranks().collect(),
            me: 0,
            arenas: (0..2).map(|_| Arena::create(4096, Sharing::Threads).unwrap()).collect(),
            neighbours: vec![Neighbour::Thread; 2],
            boards: None,
            registered: vec![Registered {
                generation: memory().keep().share_anew().unwrap(),
                memory: vec![memory(), memory()],
            }],
        };
        let (send, mut recv) = ([0u64; 100], [0u64; 100]);
        let call = Call {
            collective: Collective::AllReduce,
            data_type: DataType::U64,
            op: Some(ReduceOp::Sum),
            root: None,
            count: CallCount::Each(100),
            buffers: Buffers::apart(&send, &mut recv),
        };
        let range = |window: u16, offset: u64| Some(UserRange { window, offset });
        let found = |input: Option<UserRange>, output: Option<UserRange>| {
            let mine = Some(Ranges { input: range(0, 0), output: range(0, 800), reachable: true });
            // As it travels.
            let theirs = decode_ranges(encode_ranges(&Ranges { input, output, reachable: true }));
            user_memory(&windows, &call, world, &[mine, theirs]).map_err(|error| (error.kind(), error.peer()))
        };
        let fine = found(range(0, 8), range(0, 4096 - 800)).unwrap();
        assert_eq!(fine[1].input.addr() - windows.registered[0].memory[1].base().as_ptr().addr(), 8);
        let bad = [None, range(0, 4096 - 799), range(1, 0), range(u16::MAX, 7), range(0, OFFSET_MASK)];
        for bad in bad {
            assert_eq!(found(bad, range(0, 0)).unwrap_err(), (Kind::Remote, Some(1)), "input {bad:?}");
            assert_eq!(found(range(0, 0), bad).unwrap_err(), (Kind::Remote, Some(1)), "output {bad:?}");
        }
    }
}
