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
use crate::exec::{Call, CallCount, Message};
use crate::plan::{ScanFold, ScanOrder, ScanPlace, ScanRounds};
use crate::types::{Collective, World};

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
