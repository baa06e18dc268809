//! Collectives that are made of messages on the connections of collectives: `gather_v` and `scatter_v`, and the rounds
//! of `scan` and `exscan`.
//!
//! Which rounds a scan has, what goes to whom in each, and what is folded then, says the plan
//! ([`ScanRounds`](crate::plan::ScanRounds)). In reproducible mode all scans double, so that the order in which inputs
//! are folded depends on the ranks alone.

#![warn(clippy::wildcard_enum_match_arm)]

use std::ops::Range;

use crate::device::{Average, Kernel, Pass, Store};
use crate::error::{Error, Result};
use crate::exec::{Call, Message};
use crate::plan::{ScanFold, ScanOrder, ScanPlace, ScanRounds};
use crate::types::{Collective, World};

/// The messages of a `gather_v` or `scatter_v` that has been checked, the root's to itself among them.
pub fn blocks<'a>(call: &'a Call<'_>, world: World) -> Vec<Message<'a>> {
    // Of any home: messages carry it, and nothing is followed here.
    let (source, target) = call.buffers.places();
    let target = target.cast_mut();
    let (me, blocks) = (world.rank, call.blocks(world));
    let size = call.data_type.size() as usize;
    // Fits: the lengths have been checked.
    let offset = |elements: u64| usize::try_from(elements).unwrap_or(usize::MAX).saturating_mul(size);
    let mut messages = Vec::new();
    for peer in world.ranks() {
        if let Some(block) = blocks.between(peer, me) {
            let sized = (block.elements, call.data_type);
            // SAFETY: `Call::check` has seen that the output holds this rank's blocks; `Buffers` vouches for it.
            messages.push(unsafe { Message::recv_raw(target.wrapping_add(offset(block.to)), sized, peer) });
        }
        if let Some(block) = blocks.between(me, peer) {
            let sized = (block.elements, call.data_type);
            // SAFETY: as above, of the input.
            messages.push(unsafe { Message::send_raw(source.wrapping_add(offset(block.from)), sized, peer) });
        }
    }
    messages
}

/// A `scan` or `exscan` under way.
#[derive(Debug)]
pub struct Scan<'a> {
    call: &'a Call<'a>,
    kernel: &'a Kernel,
    rounds: ScanRounds,
    /// The elements of the whole call, and of a piece.
    count: usize,
    most: usize,
    /// What is folded when the round under way is over.
    folds: [Option<ScanFold>; 2],
    /// [`ScanPlace::Arriving`]
    arriving: Vec<u8>,
    /// [`ScanPlace::Known`]
    known: Vec<u8>,
}

impl<'a> Scan<'a> {
    /// A scan that has been checked; `kernel` reduces. If it `is_reproducible` its order depends on the ranks alone.
    pub fn new(call: &'a Call<'a>, kernel: &'a Kernel, world: World, is_reproducible: bool) -> Result<Scan<'a>> {
        let exclusive = call.collective == Collective::Exscan;
        if !exclusive && call.collective != Collective::Scan {
            return Err(Error::internal(format!("{} is no scan", call.collective)));
        }
        let count = call.lengths(world)?.0.index();
        let size = call.data_type.size() as usize;
        let most = PIECE_BYTES / size;
        let room = |is_needed: bool| vec![0; if is_needed { count.min(most) * size } else { 0 }];
        let receives = world.rank.get() > 0;
        let (arriving, known) = (room(receives), room(receives && exclusive));
        let pieces = count.div_ceil(most);
        let order = if is_reproducible { ScanOrder::Doubling } else { ScanOrder::quicker(pieces, world.size) };
        let rounds = ScanRounds::new(world, exclusive, pieces, order);
        Ok(Scan { call, kernel, rounds, count, most, folds: [None; 2], arriving, known })
    }

    /// The messages of the next round; `None` where all rounds are over. A call of no elements has its rounds too, so
    /// that ranks which disagree notice.
    pub fn round(&mut self) -> Option<Vec<Message<'_>>> {
        let round = loop {
            let round = self.rounds.next()?;
            self.folds = round.folds;
            if round.sends.is_some() || round.receives.is_some() {
                break round;
            }
            self.end_round();
        };
        let data_type = self.call.data_type;
        let sized = |piece: Range<usize>| (piece.len() as u64, data_type);
        let mut messages = Vec::with_capacity(2);
        if let Some((above, piece, place)) = round.sends {
            let (held, piece) = (self.at(place, piece).cast_const(), self.elements(piece));
            // SAFETY: it has the elements of the piece, and is written when the round is over.
            messages.push(unsafe { Message::send_raw(held, sized(piece), above) });
        }
        if let Some((below, piece)) = round.receives {
            let (into, piece) = (self.at(ScanPlace::Arriving, piece), self.elements(piece));
            // SAFETY: it has room for the elements of a piece, and is read when the round is over.
            messages.push(unsafe { Message::recv_raw(into, sized(piece), below) });
        }
        Some(messages)
    }

    /// Takes in what the round has brought.
    pub fn end_round(&mut self) {
        for fold in std::mem::take(&mut self.folds).into_iter().flatten() {
            self.fold(fold);
        }
    }

    /// The elements of the whole call that are in a piece.
    fn elements(&self, piece: usize) -> Range<usize> {
        let start = piece * self.most;
        start..self.count.min(start + self.most)
    }

    /// Where a piece lies.
    fn at(&mut self, place: ScanPlace, piece: usize) -> *mut u8 {
        let offset = self.elements(piece).start * self.call.data_type.size() as usize;
        match place {
            ScanPlace::Input => self.call.buffers.source().cast_mut().wrapping_add(offset),
            ScanPlace::Output => self.call.buffers.target().wrapping_add(offset),
            ScanPlace::Known => self.known.as_mut_ptr(),
            ScanPlace::Arriving => self.arriving.as_mut_ptr(),
        }
    }

    fn fold(&mut self, ScanFold { piece, lower, own, target }: ScanFold) {
        let count = self.elements(piece).len();
        let lower = lower.map(|lower| self.at(lower, piece).cast_const());
        let (own, target) = (self.at(own, piece).cast_const(), self.at(target, piece));
        // In place rank 0 has its output already.
        if count == 0 || (lower.is_none() && own == target.cast_const()) {
            return;
        }
        let sources = [lower.unwrap_or(own), own];
        let pass = Pass {
            sources: if lower.is_some() { &sources } else { &sources[1..] },
            raw: None,
            targets: &[target],
            count,
            finish: false,
            average: Average::Sum,
            store: Store::Cached,
        };
        // SAFETY: `known` and `arriving` have the elements of a piece and are this scan's own; input and output have
        // `count`, as `Call::check` has seen; a target that is a source too starts where that does.
        unsafe { self.kernel.run(&pass) };
    }
}

/// The bytes of a piece: less than a processor's caches hold of what is sent, received and written, and enough that a
/// round costs little more than its bytes (`bench/NOTES.md`, "A scan in pieces").
const PIECE_BYTES: usize = 256 << 10;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::exec::{Buffers, CallCount};
    use crate::types::{DataType, Rank};

    /// The messages of rank `me` of three, or of the one there is: peer, whether it is sent, the first element, how
    /// many.
    fn messages(collective: Collective, (me, size): (u32, u32), count: CallCount) -> Vec<(u32, bool, u64, u64)> {
        let (input, mut output) = (vec![0_i32; 12], vec![0_i32; 12]);
        let starts = [input.as_ptr().addr() as u64, output.as_ptr().addr() as u64];
        let (root, buffers) = (Some(Rank::new(size - 1)), Buffers::apart(&input, &mut output));
        let call = Call { collective, data_type: DataType::I32, op: None, root, count, buffers };
        let world = World { rank: Rank::new(me), size };
        let told = |message: Message<'_>| {
            let start = starts[usize::from(!message.sends())];
            let first = (message.address() - start) / 4;
            (message.peer().get(), message.sends(), first, message.count())
        };
        blocks(&call, world).into_iter().map(told).collect()
    }

    #[test]
    fn every_block_is_a_message_the_empty_ones_and_the_roots_own_too() {
        let counts = CallCount::PerRank(vec![3, 0, 5]);
        let at_root = messages(Collective::GatherV, (2, 3), counts.clone());
        assert_eq!(at_root, [(0, false, 0, 3), (1, false, 3, 0), (2, false, 3, 5), (2, true, 0, 5)]);
        let at_root = messages(Collective::ScatterV, (2, 3), counts);
        assert_eq!(at_root, [(0, true, 0, 3), (1, true, 3, 0), (2, false, 0, 5), (2, true, 3, 5)]);
        assert_eq!(messages(Collective::GatherV, (1, 3), CallCount::Each(4)), [(2, true, 0, 4)]);
        assert_eq!(messages(Collective::ScatterV, (1, 3), CallCount::Each(0)), [(2, false, 0, 0)]);
        let alone = messages(Collective::GatherV, (0, 1), CallCount::PerRank(vec![2]));
        assert_eq!(alone, [(0, false, 0, 2), (0, true, 0, 2)]);
    }
}
