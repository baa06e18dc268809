//! Collectives that are made of messages on the connections of collectives: `gather_v` and `scatter_v`, and the rounds
//! of `scan` and `exscan`.
//!
//! A scan doubles the reach of what each rank knows in every round: in the round of distance d, rank r sends the
//! reduction of its last d inputs to rank r + d, and folds what comes from rank r − d before its own.

use crate::device::{Average, Kernel, Pass, Store};
use crate::error::Result;
use crate::exec::{Call, CallCount, Message};
use crate::types::{Collective, Rank, World};

/// The messages of a `gather_v` or `scatter_v` that has been checked, the root's to itself among them.
pub fn blocks<'a>(call: &'a Call<'_>, world: World) -> Vec<Message<'a>> {
    let root = call.root.unwrap_or_default();
    // Of any home: messages carry it, and nothing is followed here.
    let (source, target) = call.buffers.places();
    let target = target.cast_mut();
    let gathers = call.collective == Collective::GatherV;
    let size = call.data_type.size() as usize;
    let mut messages = Vec::new();
    if let (CallCount::PerRank(counts), true) = (&call.count, root == world.rank) {
        let mut before = 0;
        for (rank, count) in world.ranks().zip(counts) {
            let sized = (*count, call.data_type);
            messages.push(if gathers {
                // SAFETY: `Call::check` has seen that the output has all counts together; `Buffers` vouches for it.
                // Blocks lie one behind the other.
                unsafe { Message::recv_raw(target.wrapping_add(before), sized, rank) }
            } else {
                // SAFETY: as above, of the input.
                unsafe { Message::send_raw(source.wrapping_add(before), sized, rank) }
            });
            // Fits: the lengths have been checked.
            before += usize::try_from(*count).unwrap_or(usize::MAX) * size;
        }
    }
    let sized = (call.count.of(world.rank), call.data_type);
    messages.push(if gathers {
        // SAFETY: `Call::check` has seen that the input has this rank's count; `Buffers` vouches for it.
        unsafe { Message::send_raw(source, sized, root) }
    } else {
        // SAFETY: as above, of the output.
        unsafe { Message::recv_raw(target, sized, root) }
    });
    messages
}

/// A `scan` or `exscan` under way, round by round.
#[derive(Debug)]
pub struct Scan<'a> {
    call: &'a Call<'a>,
    kernel: &'a Kernel,
    world: World,
    count: usize,
    /// How far what this round sends goes.
    distance: u32,
    /// The reduction of this rank's last `distance` inputs, its own last.
    known: Vec<u8>,
    /// What comes in a round.
    arriving: Vec<u8>,
    /// Whether the output has something of the ranks below.
    begun: bool,
}

impl<'a> Scan<'a> {
    /// A scan that has been checked; `kernel` reduces.
    pub fn new(call: &'a Call<'a>, kernel: &'a Kernel, world: World) -> Result<Scan<'a>> {
        let count = call.lengths(world)?.0.index();
        let bytes = count * call.data_type.size() as usize;
        let mut known = vec![0; bytes];
        if bytes > 0 {
            // SAFETY: `Call::check` has seen that the input has `count` elements; `Buffers` vouches for it.
            unsafe { std::ptr::copy_nonoverlapping(call.buffers.source(), known.as_mut_ptr(), bytes) };
        }
        let mut scan = Scan { call, kernel, world, count, distance: 1, known, arriving: vec![0; bytes], begun: false };
        if call.collective == Collective::Scan {
            let own = scan.known.as_ptr();
            scan.fold(&[own], call.buffers.target());
            scan.begun = true;
        }
        Ok(scan)
    }

    /// The messages of the next round; `None` where all rounds are over.
    pub fn round(&mut self) -> Option<Vec<Message<'_>>> {
        if self.distance >= self.world.size {
            return None;
        }
        let (me, sized) = (self.world.rank.get(), (self.count as u64, self.call.data_type));
        let mut messages = Vec::with_capacity(2);
        if self.distance < self.world.size - me {
            let above = Rank::new(me + self.distance);
            // SAFETY: it has `count` elements, and is written when the round is over.
            messages.push(unsafe { Message::send_raw(self.known.as_ptr(), sized, above) });
        }
        if let Some(below) = me.checked_sub(self.distance) {
            // SAFETY: it has room for `count` elements, and is read when the round is over.
            messages.push(unsafe { Message::recv_raw(self.arriving.as_mut_ptr(), sized, Rank::new(below)) });
        }
        Some(messages)
    }

    /// Takes in what the round has brought.
    pub fn end_round(&mut self) {
        if self.world.rank.get() >= self.distance {
            let (arriving, known, output) =
                (self.arriving.as_ptr(), self.known.as_mut_ptr(), self.call.buffers.target());
            let theirs = [arriving, output.cast_const()];
            self.fold(if self.begun { &theirs } else { &theirs[..1] }, output);
            self.begun = true;
            self.fold(&[arriving, known.cast_const()], known);
        }
        self.distance = self.distance.saturating_mul(2);
    }

    fn fold(&self, sources: &[*const u8], target: *mut u8) {
        let pass = Pass {
            sources,
            raw: None,
            targets: &[target],
            count: self.count,
            finish: false,
            average: Average::Sum,
            store: Store::Cached,
        };
        // SAFETY: `known` and `arriving` have `count` elements and are this scan's own, and so has the output, as
        // `Call::check` has seen; a target that is a source too starts where that does.
        unsafe { self.kernel.run(&pass) };
    }
}
