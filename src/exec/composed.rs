//! Collectives that are made of messages on the connections of collectives: `gather_v` and `scatter_v`, and the rounds
//! of `scan` and `exscan`.
//!
//! A scan doubles the reach of what each rank knows in every round: in the round of distance d, rank r sends the
//! reduction of its last d inputs to rank r + d, and folds what comes from rank r − d before its own. A long scan goes
//! in pieces, and along a chain where that takes fewer rounds: each rank folds what comes from the rank below before
//! its own. In reproducible mode all scans double, so that the order in which inputs are folded depends on the ranks
//! alone.

use std::ops::Range;

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

/// The order in which a scan folds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FoldOrder {
    /// By doubling.
    Doubling,
    /// Along a chain.
    Chain,
}

/// A `scan` or `exscan` under way, piece by piece: while a rank folds one piece, what it has sent of others is under
/// way, and what it holds of a piece stays in the caches.
#[derive(Debug)]
pub struct Scan<'a> {
    call: &'a Call<'a>,
    kernel: &'a Kernel,
    world: World,
    order: FoldOrder,
    /// The elements of the whole call, and of a piece.
    count: usize,
    most: usize,
    /// The elements of the piece that is folded.
    piece: Range<usize>,
    /// Along a chain: the elements that were folded and not sent yet.
    folded: Range<usize>,
    /// By doubling: how far what this round sends goes.
    distance: u32,
    /// What comes in a round.
    arriving: Vec<u8>,
    /// Of an exscan: the reduction of this rank's last inputs, its own last. Of a scan the output is that.
    known: Vec<u8>,
    /// Whether this rank has nothing of the piece but its input.
    is_fresh: bool,
}

impl<'a> Scan<'a> {
    /// A scan that has been checked; `kernel` reduces. If it `is_reproducible` its order depends on the ranks alone.
    pub fn new(call: &'a Call<'a>, kernel: &'a Kernel, world: World, is_reproducible: bool) -> Result<Scan<'a>> {
        let count = call.lengths(world)?.0.index();
        let size = call.data_type.size() as usize;
        let most = PIECE_BYTES / size;
        let room = |is_needed: bool| vec![0; if is_needed { count.min(most) * size } else { 0 }];
        let receives = world.rank.get() > 0;
        let (arriving, known) = (room(receives), room(receives && call.collective == Collective::Exscan));
        let order = if is_reproducible { FoldOrder::Doubling } else { quicker(count.div_ceil(most), world.size) };
        let piece = 0..count.min(most);
        let (distance, is_fresh) = (1, true);
        Ok(Scan { call, kernel, world, order, count, most, piece, folded: 0..0, distance, arriving, known, is_fresh })
    }

    /// The messages of the next round; `None` where all rounds are over. A call of no elements has its rounds too, so
    /// that ranks which disagree notice.
    pub fn round(&mut self) -> Option<Vec<Message<'_>>> {
        match self.order {
            FoldOrder::Doubling => self.doubling_round(),
            FoldOrder::Chain => self.chain_round(),
        }
    }

    fn doubling_round(&mut self) -> Option<Vec<Message<'_>>> {
        if self.distance >= self.world.size {
            self.keep_own();
            if self.piece.end == self.count {
                return None;
            }
            self.next_piece();
        }
        let me = self.world.rank.get();
        let above = self.sends_at(self.distance).then(|| (Rank::new(me + self.distance), self.piece.clone()));
        let below = me.checked_sub(self.distance).map(Rank::new);
        Some(self.messages(above, below))
    }

    /// Receives a piece from below, and sends the one before it, which has been folded; rank 0 sends its input.
    fn chain_round(&mut self) -> Option<Vec<Message<'_>>> {
        let (me, is_over) = (self.world.rank.get(), self.piece.start == self.count);
        let sent = if me == 0 { self.piece.clone() } else { std::mem::take(&mut self.folded) };
        let above = (self.sends_at(1) && !sent.is_empty()).then(|| (Rank::new(me + 1), sent));
        let below = me.checked_sub(1).filter(|_| !is_over).map(Rank::new);
        let messages = self.messages(above, below);
        (!messages.is_empty()).then_some(messages)
    }

    /// A message with what this rank holds of a piece, and one that brings what a rank below holds of this piece.
    fn messages(&mut self, above: Option<(Rank, Range<usize>)>, below: Option<Rank>) -> Vec<Message<'_>> {
        let data_type = self.call.data_type;
        let mut messages = Vec::with_capacity(2);
        if let Some((above, piece)) = above {
            // SAFETY: it has the elements of the piece, and is written when the round is over.
            messages.push(unsafe { Message::send_raw(self.held(&piece), (piece.len() as u64, data_type), above) });
        }
        if let Some(below) = below {
            let (into, sized) = (self.arriving.as_mut_ptr(), (self.piece.len() as u64, data_type));
            // SAFETY: it has room for the elements of a piece, and is read when the round is over.
            messages.push(unsafe { Message::recv_raw(into, sized, below) });
        }
        messages
    }

    /// Takes in what the round has brought.
    pub fn end_round(&mut self) {
        let me = self.world.rank.get();
        match self.order {
            FoldOrder::Doubling => {
                if me >= self.distance {
                    self.take_in(self.distance.checked_mul(2).is_some_and(|next| self.sends_at(next)));
                }
                self.distance = self.distance.saturating_mul(2);
            }
            FoldOrder::Chain => {
                if me == 0 {
                    self.keep_own();
                } else if !self.piece.is_empty() {
                    // What was sent in this round is of the piece before.
                    self.is_fresh = true;
                    self.take_in(self.sends_at(1));
                    self.folded = self.piece.clone();
                }
                self.piece = self.piece.end..self.count.min(self.piece.end + self.most);
            }
        }
    }

    /// Folds what has arrived before what this rank holds; `sends` it afterwards or not.
    fn take_in(&mut self, sends: bool) {
        let (arriving, held, output) = (self.arriving.as_ptr(), self.held(&self.piece), self.output(&self.piece));
        if self.call.collective == Collective::Scan {
            self.fold(&[arriving, held], output);
        } else {
            // Before the output: in place that is the input, which is read here.
            if sends {
                let known = self.known.as_mut_ptr();
                self.fold(&[arriving, held], known);
            }
            let theirs = [arriving, output.cast_const()];
            self.fold(if self.is_fresh { &theirs[..1] } else { &theirs }, output);
        }
        self.is_fresh = false;
    }

    fn next_piece(&mut self) {
        self.piece = self.piece.end..self.count.min(self.piece.end + self.most);
        (self.distance, self.is_fresh) = (1, true);
    }

    /// Rank 0 receives nothing: its scan is its input, and its exscan is left as it was.
    fn keep_own(&self) {
        let (input, output) = (self.input(&self.piece), self.output(&self.piece));
        let is_scan = self.call.collective == Collective::Scan;
        if is_scan && self.is_fresh && !self.piece.is_empty() && input != output.cast_const() {
            self.fold(&[input], output);
        }
    }

    /// Whether this rank sends over this distance.
    fn sends_at(&self, distance: u32) -> bool {
        distance < self.world.size - self.world.rank.get()
    }

    /// The reduction of this rank's last inputs.
    fn held(&self, piece: &Range<usize>) -> *const u8 {
        match self.call.collective {
            _ if self.is_fresh => self.input(piece),
            Collective::Scan => self.output(piece).cast_const(),
            _ => self.known.as_ptr(),
        }
    }

    fn input(&self, piece: &Range<usize>) -> *const u8 {
        self.call.buffers.source().wrapping_add(piece.start * self.call.data_type.size() as usize)
    }

    fn output(&self, piece: &Range<usize>) -> *mut u8 {
        self.call.buffers.target().wrapping_add(piece.start * self.call.data_type.size() as usize)
    }

    fn fold(&self, sources: &[*const u8], target: *mut u8) {
        let pass = Pass {
            sources,
            raw: None,
            targets: &[target],
            count: self.piece.len(),
            finish: false,
            average: Average::Sum,
            store: Store::Cached,
        };
        // SAFETY: `known` and `arriving` have the elements of a piece and are this scan's own; input and output have
        // `count`, as `Call::check` has seen; a target that is a source too starts where that does.
        unsafe { self.kernel.run(&pass) };
    }
}

/// The order that takes fewer rounds for so many pieces: a chain passes each piece once, but has to fill.
fn quicker(pieces: usize, ranks: u32) -> FoldOrder {
    let doublings = ranks.next_power_of_two().trailing_zeros() as usize;
    let is_chain = pieces + ranks as usize - 1 < pieces * doublings;
    if is_chain { FoldOrder::Chain } else { FoldOrder::Doubling }
}

/// The bytes of a piece: less than a processor's caches hold of what is sent, received and written, and enough that a
/// round costs little more than its bytes (`bench/NOTES.md`, "A scan in pieces").
const PIECE_BYTES: usize = 256 << 10;
