//! The direct algorithm of gather, scatter and all-to-all, through windows.
//!
//! With all buffers mapped, a rank moves its data once: to the root's output, or from a peer's input. With scratch
//! only, the sender copies each piece to its scratch and the reader takes it from there.

use super::pattern::Pattern;
use super::site::{Block, CACHED_PIECE, Draft, Site, rounds};
use super::{Buffer, Lane, Operand, Span, Walk, Windows};
use crate::types::{Elements, Rank};
use crate::{Error, Result};

/// Rounds until a piece of scratch may be written again; `check` proves it.
const DEPTH: u32 = 4;
/// Lag at which a writer waits for its readers' `DONE`: the last turn before it reuses the scratch piece (`DEPTH` - 1).
const FREE: u8 = 3;

const READY: u8 = 0;
const DONE: u8 = 1;

const _: () = assert!(FREE as u32 == DEPTH - 1);

/// The lane of a collective through windows.
pub(super) fn lane(site: Site<'_>) -> Result<Option<Lane>> {
    let longest = site.longest_part();
    let staged = site.spec.windows == Windows::Scratch;
    let peers = site.spec.world.ranks().len() - 1;
    let regions = match staged {
        false => 0,
        true if site.pattern == Pattern::Gather => peers.min(1),
        true => peers,
    };
    let wanted = if staged { longest.min(Elements(CACHED_PIECE)) } else { longest };
    let piece = site.piece(wanted, regions, DEPTH, false)?;
    let rounds = rounds(longest, piece)?;
    let direct = Direct { site, staged, piece, rounds, depth: rounds.clamp(1, DEPTH) };
    let mut draft = Draft { scratch: direct.region(regions).start - site.scratch().start, ..Draft::default() };
    match site.pattern {
        Pattern::Gather => direct.gather(&mut draft),
        Pattern::Scatter => direct.scatter(&mut draft),
        Pattern::AllToAll => direct.all_to_all(&mut draft),
        Pattern::AllReduce
        | Pattern::Broadcast
        | Pattern::Reduce
        | Pattern::AllGather
        | Pattern::ReduceScatter
        | Pattern::Barrier => return Err(Error::internal(format!("{:?} is not planned by pairs", site.pattern))),
    }
    Ok(site.finish(direct.rounds, draft))
}

struct Direct<'a> {
    site: Site<'a>,
    staged: bool,
    piece: Elements,
    rounds: u32,
    /// Pieces of a region.
    depth: u32,
}

impl Direct<'_> {
    fn root(&self) -> Rank {
        self.site.spec.root
    }

    fn is_root(&self) -> bool {
        self.site.me() == self.root()
    }

    fn reused(&self) -> bool {
        self.rounds > self.depth
    }

    fn copy(&self, lag: u8, length: Elements, ends: (Operand, Operand), draft: &mut Draft) {
        draft.copy(lag, length, self.piece, ends);
    }

    /// Where `owner` stages what `reader` takes.
    fn stage(&self, owner: Rank, reader: Rank) -> Span {
        let before = if reader < owner { reader.get() } else { reader.get() - 1 };
        self.region(usize::try_from(before).expect("a rank fits a usize"))
    }

    fn region(&self, index: usize) -> Span {
        let index = u64::try_from(index).expect("a region's index fits 64 bits");
        let start = self.site.scratch().start + self.piece * u64::from(self.depth) * index;
        Span { buffer: Buffer::Scratch, start, walk: Walk::Cycle(self.depth) }
    }

    fn gather(&self, draft: &mut Draft) {
        let Block { input, output, length } = self.site.block_of(self.site.me());
        let input = Operand::input(input);
        match (self.is_root(), self.staged) {
            (true, staged) => {
                self.copy(0, length, (input, Operand::output(output)), draft);
                if !staged {
                    draft.signal(0, READY, self.site.peers());
                    draft.wait(0, DONE, self.site.peers());
                    return;
                }
                for peer in self.site.peers() {
                    let block = self.site.block_of(peer);
                    draft.wait(0, READY, [peer]);
                    let ends = (Operand::Window(peer, self.region(0)), Operand::output(block.output));
                    self.copy(0, block.length, ends, draft);
                }
                draft.signal(0, DONE, self.site.peers().filter(|_| self.reused()));
            }
            (false, true) => {
                self.copy(0, length, (input, Operand::Local(self.region(0))), draft);
                draft.signal(0, READY, [self.root()]);
                draft.wait(FREE, DONE, Some(self.root()).filter(|_| self.reused()));
            }
            (false, false) => {
                draft.wait(0, READY, [self.root()]);
                let target = Operand::Window(self.root(), Span::linear(Buffer::Output, output));
                self.copy(0, length, (input, target), draft);
                draft.signal(0, DONE, [self.root()]);
            }
        }
    }

    fn scatter(&self, draft: &mut Draft) {
        let me = self.site.me();
        let Block { input, output, length } = self.site.block_of(me);
        if !self.is_root() {
            draft.wait(0, READY, [self.root()]);
            let span = if self.staged { self.stage(self.root(), me) } else { Span::linear(Buffer::Input, input) };
            self.copy(0, length, (Operand::Window(self.root(), span), Operand::output(output)), draft);
            draft.signal(0, DONE, Some(self.root()).filter(|_| !self.staged || self.reused()));
            return;
        }
        for peer in self.site.peers().filter(|_| self.staged) {
            let block = self.site.block_of(peer);
            let target = Operand::Local(self.stage(me, peer));
            self.copy(0, block.length, (Operand::input(block.input), target), draft);
        }
        draft.signal(0, READY, self.site.peers());
        self.copy(0, length, (Operand::input(input), Operand::output(output)), draft);
        if !self.staged {
            draft.wait(0, DONE, self.site.peers());
        } else if self.reused() {
            draft.wait(FREE, DONE, self.site.peers());
        }
    }

    fn all_to_all(&self, draft: &mut Draft) {
        let me = self.site.me();
        let part = self.site.part(self.site.spec.count.longest());
        let place = |rank: Rank| self.site.spec.count.before(rank) + part.start;
        for peer in self.site.peers().filter(|_| self.staged) {
            let target = Operand::Local(self.stage(me, peer));
            self.copy(0, part.length, (Operand::input(place(peer)), target), draft);
        }
        draft.signal(0, READY, self.site.peers());
        self.copy(0, part.length, (Operand::input(place(me)), Operand::output(place(me))), draft);
        for peer in self.site.peers() {
            let span = if self.staged { self.stage(peer, me) } else { Span::linear(Buffer::Input, place(me)) };
            draft.wait(1, READY, [peer]);
            self.copy(1, part.length, (Operand::Window(peer, span), Operand::output(place(peer))), draft);
        }
        if !self.staged {
            draft.signal(1, DONE, self.site.peers());
            draft.wait(1, DONE, self.site.peers());
        }
    }
}
