//! The epoch in which the ranks of a host work in each other's buffers.
//!
//! It begins with a flat exchange, in which all ranks say where their input and output lie in registered buffers. Ranks
//! that are threads of one process exchange addresses instead. If one rank's buffers cannot be reached, all ranks read
//! each other's input by the kernel, where the collective only moves data and all of them can. Otherwise they go
//! through scratch.

use std::ptr::NonNull;

use crate::error::{Error, Kind, Result};
use crate::exec::call::{Begun, Call, CallExtent};
use crate::exec::evict::{Eviction, await_peers_out};
use crate::exec::flat::Flat;
use crate::exec::interpret::Memory;
use crate::exec::program::Program;
use crate::exec::pull;
use crate::exec::turn::{Background, WaitContext};
use crate::plan::Windows;
use crate::transport::{Announced, Fabric, HostWindows, INLINE_BYTES, Lease, LeaseGuard, Loan, UserBoard, UserRange};
use crate::types::{Rank, ReduceOp, World};

/// The epoch of one large operation inside a host, in the sense of MPI's one-sided communication: an exposure epoch of
/// this rank's buffers, in which peers may work, and an access epoch of the peers' buffers, once this rank has
/// [entered](Epoch::enter) them.
///
/// An operation that ended well calls [`Epoch::end`], one that has failed [`Epoch::give_up`]. Dropping the epoch
/// instead, as a panic does, lets no further peer in and waits until all peers are out. Peers must have been told of
/// the failure before that; otherwise they may stay in until their own deadline.
#[derive(Debug)]
pub struct Epoch<'a> {
    windows: &'a HostWindows,
    over: bool,
    met: Vec<Ranges>,
    loans: Loans<'a>,
    guards: Vec<LeaseGuard<'a>>,
    /// Whether the plan works in users' buffers.
    in_users_buffers: bool,
}

/// How the ranks of a host reach each other's data in one operation; the same on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met {
    /// By a plan with such windows.
    In(Windows),
    /// By reading each other's input ([`pull`]).
    Reading,
}

impl<'a> Epoch<'a> {
    /// Exposes this rank's buffers.
    pub fn open(windows: &'a HostWindows, begun: &Begun<'_>) -> Epoch<'a> {
        let Begun { call, operation, .. } = begun;
        if let Some(boards) = &windows.boards {
            boards[windows.me].write(call.buffers.source(), call.buffers.target());
        }
        windows.mine().lease().open(operation.sequence);
        Epoch {
            windows,
            over: false,
            met: Vec::new(),
            loans: Loans::default(),
            guards: Vec::new(),
            in_users_buffers: false,
        }
    }

    /// Meets all ranks of the host in the operation; returns what all of them can do.
    ///
    /// # Errors
    /// Of the wait, and of peers that run another operation.
    pub fn meet(&mut self, begun: &Begun<'_>, flat: &mut Flat, wait_context: &mut WaitContext<'_>) -> Result<Met> {
        let Begun { call, operation, world, .. } = *begun;
        self.loans = lend_buffers(self.windows, begun)?;
        let all_here = self.windows.ranks.len() == world.size as usize;
        let may_read = all_here && self.windows.boards.is_none() && pull::serves(call, world);
        let reads = may_read && wait_context.fabric.links().reads.reads_all();
        let ranges = announce_ranges(self.windows, begun, &self.loans);
        let mine = encode_ranges(&Ranges {
            address: reads.then(|| call.buffers.source().expose_provenance() as u64),
            ..ranges
        });
        let fill = |slot: NonNull<u8>| {
            // SAFETY: my slot has room for as many bytes beside the label.
            unsafe { slot.cast::<[u8; RANGES_BYTES]>().write(mine) };
        };
        let exchange = flat.announce(self.windows, operation, wait_context, (RANGES_BYTES, fill))?;
        exchange.meet(wait_context, (0, None))?;
        for place in 0..self.windows.ranks.len() {
            let slot = exchange.read(place, RANGES_BYTES, wait_context)?;
            // SAFETY: the peer wrote them before it raised the flag, which `read` waited for.
            self.met.push(decode_ranges(unsafe { slot.cast::<[u8; RANGES_BYTES]>().read() }));
        }
        flat.finish_symmetric(&exchange);
        let reachable = self.windows.boards.is_some() || self.met.iter().all(|ranges| ranges.reachable);
        // If each rank scales its input by a scalar of its own, no other rank can read the input unscaled.
        let raw = !matches!(call.op, Some(ReduceOp::PreMulSum(_)));
        if reachable && raw {
            return Ok(Met::In(Windows::User));
        }
        if may_read && self.met.iter().all(|ranges| ranges.address.is_some()) {
            return Ok(Met::Reading);
        }
        if may_read {
            // All ranks have come, so each has said by now how it is read.
            self.windows.probe(&mut wait_context.fabric.links().reads);
        }
        Ok(Met::In(Windows::Scratch))
    }

    /// Reads `bytes` of the input of `owner`, from `offset` on, into `place`. False where they cannot be read.
    ///
    /// # Errors
    /// Where the owner has given up the operation.
    ///
    /// # Safety
    /// `place` is good for writing `bytes`, and nobody else touches them.
    pub(super) unsafe fn read(
        &mut self,
        begun: &Begun<'_>,
        (owner, offset): (Rank, usize),
        (into, bytes): (NonNull<u8>, usize),
        wait_context: &mut WaitContext<'_>,
    ) -> Result<bool> {
        let windows = self.windows;
        let place = windows.place(owner);
        let arena = &windows.arenas[place];
        let start = self.met[place].address.expect("only where all ranks have said where their input is");
        let mut read = 0;
        while read < bytes {
            // The owner that has closed its lease waits for those that are inside, so they leave soon.
            let inside = arena.lease().enter_as(windows.me, begun.operation.sequence);
            let _inside = inside.ok_or_else(|| has_given_up(owner))?;
            let length = (bytes - read).min(READ_BYTES);
            let address = start.wrapping_add((offset + read) as u64);
            let announced = Announced { witness: arena.witness(), address };
            // SAFETY: inside what the caller gives.
            let target = unsafe { into.add(read) };
            // SAFETY: as above.
            let got = unsafe { wait_context.fabric.links().reads.read(owner, announced, (target, length)) };
            if got < length {
                wait_context.fabric.links().reads.give_up();
                return Ok(false);
            }
            read += length;
        }
        Ok(true)
    }

    /// Meets all ranks again, once this rank reads nobody's input any more. Returns whether all ranks have read all
    /// that they need.
    ///
    /// # Errors
    /// Of the wait.
    pub(super) fn part(
        &mut self,
        begun: &Begun<'_>,
        is_whole: bool,
        flat: &mut Flat,
        wait_context: &mut WaitContext<'_>,
    ) -> Result<bool> {
        let fill = |slot: NonNull<u8>| {
            // SAFETY: my slot has room for a word beside the label.
            unsafe { slot.cast::<u64>().write(u64::from(is_whole)) };
        };
        let exchange = flat.announce(self.windows, begun.operation, wait_context, (size_of::<u64>(), fill))?;
        exchange.meet(wait_context, (0, None))?;
        let mut all = true;
        for place in 0..self.windows.ranks.len() {
            let slot = exchange.read(place, size_of::<u64>(), wait_context)?;
            // SAFETY: the peer wrote it before it raised the flag, which `read` waited for.
            all &= unsafe { slot.cast::<u64>().read() } == 1;
        }
        flat.finish_symmetric(&exchange);
        Ok(all)
    }

    /// Enters the buffers that `program` works in; returns those of all ranks of the host, and where this rank works in
    /// its own. Their owners wait for this rank in the plan, so a lease that is
    /// closed means that its owner gave up the operation. Other ranks may have finished the operation by now.
    ///
    /// # Errors
    /// Those of a peer that has given up the operation, or has announced a buffer that it has not registered.
    pub(super) fn enter(&mut self, program: &Program, begun: &Begun<'_>) -> Result<(Vec<Memory>, Memory)> {
        let Begun { call, operation, world, .. } = *begun;
        let windows = self.windows;
        for rank in program.entered().iter().copied() {
            let lease = windows.arenas[windows.place(rank)].lease();
            // Threads of one process wait for each other without bound, so nobody needs to know which of them is
            // inside.
            let guard = match windows.boards {
                Some(_) => lease.enter(operation.sequence),
                None => lease.enter_as(windows.me, operation.sequence),
            };
            self.guards.push(guard.ok_or_else(|| has_given_up(rank))?);
        }
        let user = user_memory(windows, call, world, &self.met)?;
        self.in_users_buffers = true;
        let [input, output] = self.loans.each_ref().map(|loan| loan.as_ref().and_then(Loan::twin));
        let mine = Memory {
            input: input.map_or(call.buffers.source(), |twin| twin.as_ptr().cast_const()),
            output: output.map_or(call.buffers.target(), NonNull::as_ptr),
        };
        Ok((user, mine))
    }
}

impl Epoch<'_> {
    /// The operation ended well: the plan's proof says that no peer touches this rank's buffers any more.
    ///
    /// # Errors
    /// If an operation of another communicator on one of the buffers has failed meanwhile, and has taken the buffer
    /// from the peers.
    pub fn end(mut self) -> Result<()> {
        self.over = true;
        let in_users_buffers = self.in_users_buffers;
        if self.in_users_buffers {
            let [input, output] = &self.loans;
            let window = |loan: &Loan<'_>| loan.range().window;
            // Of one buffer it is one call.
            let other = input.iter().filter(|input| output.as_ref().map(window) != Some(window(input)));
            other.chain(output).for_each(|loan| loan.calls().note());
            if let Some(output) = output {
                // SAFETY: the output of a call whose buffers vouch for it, and all peers are through with it.
                unsafe { output.copy_out() };
            }
        }
        let whole = std::mem::take(&mut self.loans).into_iter().flatten().all(Loan::end);
        // Also of a rank that has entered nobody's: peers may have written into its own, which are no longer shared.
        if whole || !in_users_buffers { Ok(()) } else { Err(taken_away()) }
    }

    /// The operation has failed, of which peers have been told: leaves their buffers, lets no further peer into this
    /// rank's, and waits until all are out. Work that stops its waits stops this one too: the thread that resumes it
    /// may be the one that the peers need to leave.
    pub fn give_up(mut self, fabric: &mut Fabric, background: &mut dyn Background) {
        self.leave();
        let mut eviction = Eviction::begin();
        while !eviction.is_over(self.windows, &self.loans) {
            if background.stop_for_peers(fabric) { eviction.note_turn() } else { eviction.rest() }
        }
        self.over = true;
    }

    fn leave(&mut self) {
        self.guards.clear();
        self.windows.mine().lease().close();
    }
}

impl Drop for Epoch<'_> {
    fn drop(&mut self) {
        self.leave();
        if !self.over {
            await_peers_out(self.windows, &self.loans);
        }
    }
}

/// The call's input and output, where they lie in registered buffers.
pub(super) type Loans<'a> = [Option<Loan<'a>>; 2];

/// Where a rank's input and output lie in registered buffers, and where its input begins in its own process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ranges {
    input: Option<UserRange>,
    output: Option<UserRange>,
    reachable: bool,
    /// `None` where the rank cannot read the others' memory.
    address: Option<u64>,
}

/// Lends the call's buffers to peers that are processes, where they are registered; threads know addresses.
fn lend_buffers<'a>(windows: &'a HostWindows, begun: &Begun<'_>) -> Result<Loans<'a>> {
    if windows.boards.is_some() || windows.ranks.len() > Lease::PLACES {
        return Ok(Loans::default());
    }
    let Begun { call, extent: &CallExtent { input, output, .. }, .. } = *begun;
    let size = call.data_type.size() as usize;
    let lend = |start: *const u8, bytes: usize| {
        if bytes == 0 { Ok(None) } else { windows.lend(start..start.wrapping_add(bytes)) }
    };
    let loans =
        [lend(call.buffers.source(), input.index() * size)?, lend(call.buffers.target(), output.index() * size)?];
    let copied = match &loans {
        // In place one is a part of the other.
        [Some(input), Some(output)] if output.covers(input) => [None, Some(output)],
        [Some(input), Some(output)] if input.covers(output) => [Some(input), None],
        [input, output] => [input.as_ref(), output.as_ref()],
    };
    for loan in copied.into_iter().flatten() {
        // SAFETY: the call's buffers vouch for what was lent. What the output holds before the call comes back where
        // the call does not write it.
        unsafe { loan.copy_in() };
    }
    Ok(loans)
}

fn announce_ranges(windows: &HostWindows, begun: &Begun<'_>, loans: &Loans<'_>) -> Ranges {
    let &CallExtent { input, output, .. } = begun.extent;
    let [lent_input, lent_output] = loans;
    let reaches = (input.0 == 0 || lent_input.is_some()) && (output.0 == 0 || lent_output.is_some());
    let reachable = reaches && windows.ranks.len() <= Lease::PLACES;
    let [input, output] = loans.each_ref().map(|loan| loan.as_ref().map(Loan::range));
    Ranges { input, output, reachable, address: None }
}

/// The users' buffers of all ranks of the host, whose leases are held.
fn user_memory(windows: &HostWindows, call: &Call<'_>, world: World, met: &[Ranges]) -> Result<Vec<Memory>> {
    if let Some(boards) = &windows.boards {
        let read = |board: &UserBoard| {
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
            // A rank with zero elements may announce no buffer; from any other rank that is a protocol error.
            if bytes == 0 {
                return Ok(std::ptr::null_mut());
            }
            let place = range.and_then(|range| windows.resolve(place, range, bytes));
            place.map(NonNull::as_ptr).ok_or_else(|| {
                Error::remote(*rank, format!("rank {rank} announced a buffer outside what it registered"))
            })
        };
        memory.push(Memory {
            input: resolve(ranges.input, input.index() * size)?.cast_const(),
            output: resolve(ranges.output, output.index() * size)?,
        });
    }
    Ok(memory)
}

#[cold]
fn has_given_up(rank: Rank) -> Error {
    Error::remote(rank, format!("rank {rank} has given up this operation"))
}

#[cold]
fn taken_away() -> Error {
    Error::new(
        Kind::System,
        "a call on another communicator failed while peers worked in the same registered buffer, which was taken away from them: \
         what they wrote for this call may be missing",
    )
}

/// Input and output as two words: registration in the upper 16 bits, offset in the lower 48; all ones: none. A third
/// word has the address in the upper 62 bits, and below it whether there is one and whether the buffers are reachable.
fn encode_ranges(ranges: &Ranges) -> [u8; RANGES_BYTES] {
    let word = |range: Option<UserRange>| {
        let fits = range.filter(|range| range.offset <= OFFSET_MASK);
        fits.map_or(u64::MAX, |range| u64::from(range.window) << 48 | range.offset)
    };
    // No user address has bits above the 57th.
    let address = ranges.address.filter(|address| *address < 1 << 62);
    let last = address.map_or(0, |address| address << 2 | 2) | u64::from(ranges.reachable);
    let mut bytes = [0; RANGES_BYTES];
    bytes[..8].copy_from_slice(&word(ranges.input).to_le_bytes());
    bytes[8..16].copy_from_slice(&word(ranges.output).to_le_bytes());
    bytes[16..].copy_from_slice(&last.to_le_bytes());
    bytes
}

fn decode_ranges(bytes: [u8; RANGES_BYTES]) -> Ranges {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
    let range = |word: u64| {
        let window = u16::try_from(word >> 48).expect("16 bits are left");
        (word != u64::MAX).then_some(UserRange { window, offset: word & OFFSET_MASK })
    };
    let last = word(16);
    let address = (last & 2 != 0).then_some(last >> 2);
    Ranges { input: range(word(0)), output: range(word(8)), reachable: last & 1 != 0, address }
}

/// Bytes that are read at once: a peer that gives up the operation waits so long.
const READ_BYTES: usize = 1 << 20;

const RANGES_BYTES: usize = 24;
const OFFSET_MASK: u64 = (1 << 48) - 1;

const _: () = assert!(RANGES_BYTES <= INLINE_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{HostMemory, Sharing};
    use crate::exec::{Buffers, CallCount};
    use crate::transport::{Arena, Neighbour, Registration};
    use crate::types::{Collective, DataType, Rank};

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
            registered: vec![Some(Registration {
                serial: 0,
                generation: memory().keep().share_anew().unwrap(),
                memory: vec![memory(), memory()],
                life: std::sync::Weak::new(),
                calls: crate::transport::PeerCalls::default(),
                placed: None,
            })],
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
            let mine = Ranges { input: range(0, 0), output: range(0, 800), reachable: true, address: None };
            // Encoded and decoded again.
            let theirs = Ranges { input, output, reachable: true, address: Some(u64::MAX >> 7) };
            assert_eq!(decode_ranges(encode_ranges(&theirs)), theirs);
            let theirs = decode_ranges(encode_ranges(&theirs));
            user_memory(&windows, &call, world, &[mine, theirs]).map_err(|error| (error.kind(), error.peer()))
        };
        let fine = found(range(0, 8), range(0, 4096 - 800)).unwrap();
        assert_eq!(fine[1].input.addr() - windows.registered[0].as_ref().unwrap().memory[1].base().as_ptr().addr(), 8);
        let bad = [None, range(0, 4096 - 799), range(1, 0), range(u16::MAX, 7), range(0, OFFSET_MASK)];
        for bad in bad {
            assert_eq!(found(bad, range(0, 0)).unwrap_err(), (Kind::Remote, Some(1)), "input {bad:?}");
            assert_eq!(found(range(0, 0), bad).unwrap_err(), (Kind::Remote, Some(1)), "output {bad:?}");
        }
    }
}
