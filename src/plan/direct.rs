//! The direct algorithm of gather, scatter and all-to-all, and of a broadcast to few ranks, through windows.
//!
//! With all buffers mapped, a rank moves its data once: to the root's output, or from a peer's input. In symmetric
//! windows the root of a gather or scatter moves all of it, because nobody else knows where its longer buffer is. With
//! scratch only, the sender copies each piece to its scratch and the reader takes it from there.
//!
//! The root of a broadcast copies each piece to its scratch once, and every other rank takes it from there. Readers
//! wait for the root alone, and it runs up to [`DEPTH`] pieces ahead, so that ranks that share processors need not run
//! in turns. Where many ranks would read one rank's memory, `team` spreads the pieces among them first.

use super::pattern::Pattern;
use super::site::{CACHED_PIECE, Draft, Site};
use super::sizes::{Cutting, LaneSizes, Measure};
use super::{Lane, Operand, RankBuffer, Span, Windows};
use crate::types::{Algorithm, Places, Rank};
use crate::{Error, Result};

/// Rounds until a piece of scratch may be written again; `check` proves it.
const DEPTH: u32 = 4;
/// Lag at which a writer waits for its readers' `DONE`: the last turn before it reuses the scratch piece (`DEPTH` - 1).
const FREE: u8 = 3;

const READY: u8 = 0;
const DONE: u8 = 1;

const _: () = assert!(FREE as u32 == DEPTH - 1);

/// Whether the ranks of a broadcast take the pieces from the root's scratch themselves.
pub(super) fn is_from_root(site: Site<'_>) -> bool {
    let spec = site.spec;
    spec.algorithm == Algorithm::Direct && site.windows() == Windows::Scratch && read_the_root(spec.world.size)
}

/// Whether ranks are so few that all may read one rank's memory. The cost model of `tune` calls this too.
pub(crate) fn read_the_root(ranks: u32) -> bool {
    (2..=FEW_RANKS).contains(&ranks)
}

/// Ranks of a broadcast up to which all read the root's scratch.
const FEW_RANKS: u32 = 8;

/// The lane of a collective through windows.
pub(super) fn lane(site: Site<'_>) -> Result<Option<Lane>> {
    let is_broadcast = site.pattern == Pattern::Broadcast;
    let staged = site.spec.windows == Windows::Scratch || is_broadcast;
    let peers = site.spec.world.ranks().len() - 1;
    let regions = match staged {
        false => 0,
        true if is_broadcast || site.pattern == Pattern::Gather => peers.min(1),
        true => peers,
    };
    let cutting = if is_broadcast { Cutting::Shares { shares: 1, parts: 1 } } else { Cutting::EachRank };
    let most = if staged { CACHED_PIECE } else { u64::MAX };
    // The readers of a broadcast copy the first half while the root copies the second.
    let under_way = if is_broadcast { 2 } else { 1 };
    let measure = Measure { regions, depth: DEPTH, most, under_way, ..Measure::of(cutting) };
    let sizes = measure.sizes(site)?;
    let direct = Direct { site, staged, root_moves: site.spec.windows == Windows::Symmetric, sizes: &sizes };
    let mut draft = Draft::default();
    match site.pattern {
        Pattern::Gather | Pattern::Scatter if direct.root_moves => direct.by_root(&mut draft),
        Pattern::Gather => direct.gather(&mut draft),
        Pattern::Scatter => direct.scatter(&mut draft),
        Pattern::AllToAll => direct.all_to_all(&mut draft),
        Pattern::Broadcast => direct.broadcast(&mut draft),
        Pattern::AllReduce | Pattern::Reduce | Pattern::AllGather | Pattern::ReduceScatter | Pattern::Barrier => {
            return Err(Error::internal(format!("{:?} is not planned by pairs", site.pattern)));
        }
    }
    Ok(site.finish(measure, sizes, draft))
}

struct Direct<'a> {
    site: Site<'a>,
    staged: bool,
    /// Whether the root moves the data of all ranks of a gather or scatter.
    root_moves: bool,
    sizes: &'a LaneSizes,
}

impl Direct<'_> {
    fn root(&self) -> Rank {
        self.site.spec.root
    }

    fn is_root(&self) -> bool {
        self.site.me() == self.root()
    }

    fn reused(&self) -> bool {
        self.sizes.reused()
    }

    /// Where `owner` stages what `reader` takes.
    fn stage(&self, owner: Rank, reader: Rank) -> Span {
        Span::region(if reader < owner { reader.index() } else { reader.index() - 1 })
    }

    /// The root gathers from its peers' inputs, or scatters to their outputs; each peer waits until it is done.
    fn by_root(&self, draft: &mut Draft) {
        if !self.is_root() {
            draft.signal(0, READY, [self.root()]);
            draft.wait(0, DONE, [self.root()]);
            return;
        }
        for peer in self.site.peers() {
            let block = peer.get();
            let window = |buffer| Operand::Window(peer, Span { buffer, index: block });
            let ends = match self.site.pattern == Pattern::Gather {
                true => (window(RankBuffer::Input), Operand::output(block)),
                false => (Operand::input(block), window(RankBuffer::Output)),
            };
            draft.wait(0, READY, [peer]);
            draft.copy(0, block, ends);
        }
        let mine = self.site.me().get();
        draft.copy(0, mine, (Operand::input(mine), Operand::output(mine)));
        draft.signal(0, DONE, self.site.peers());
    }

    fn gather(&self, draft: &mut Draft) {
        let mine = self.site.me().get();
        let input = Operand::input(mine);
        match (self.is_root(), self.staged) {
            (true, staged) => {
                draft.copy(0, mine, (input, Operand::output(mine)));
                if !staged {
                    draft.signal(0, READY, self.site.peers());
                    draft.wait(0, DONE, self.site.peers());
                    return;
                }
                for peer in self.site.peers() {
                    draft.wait(0, READY, [peer]);
                    let ends = (Operand::Window(peer, Span::region(0)), Operand::output(peer.get()));
                    draft.copy(0, peer.get(), ends);
                }
                draft.signal(0, DONE, self.site.peers().filter(|_| self.reused()));
            }
            (false, true) => {
                draft.copy(0, mine, (input, Operand::Local(Span::region(0))));
                draft.signal(0, READY, [self.root()]);
                draft.wait(FREE, DONE, Some(self.root()).filter(|_| self.reused()));
            }
            (false, false) => {
                draft.wait(0, READY, [self.root()]);
                let target = Operand::Window(self.root(), Span { buffer: RankBuffer::Output, index: mine });
                draft.copy(0, mine, (input, target));
                draft.signal(0, DONE, [self.root()]);
            }
        }
    }

    fn scatter(&self, draft: &mut Draft) {
        let me = self.site.me();
        let mine = me.get();
        if !self.is_root() {
            draft.wait(0, READY, [self.root()]);
            let span =
                if self.staged { self.stage(self.root(), me) } else { Span { buffer: RankBuffer::Input, index: mine } };
            draft.copy(0, mine, (Operand::Window(self.root(), span), Operand::output(mine)));
            draft.signal(0, DONE, Some(self.root()).filter(|_| !self.staged || self.reused()));
            return;
        }
        for peer in self.site.peers().filter(|_| self.staged) {
            let target = Operand::Local(self.stage(me, peer));
            draft.copy(0, peer.get(), (Operand::input(peer.get()), target));
        }
        draft.signal(0, READY, self.site.peers());
        draft.copy(0, mine, (Operand::input(mine), Operand::output(mine)));
        if !self.staged {
            draft.wait(0, DONE, self.site.peers());
        } else if self.reused() {
            draft.wait(FREE, DONE, self.site.peers());
        }
    }

    fn broadcast(&self, draft: &mut Draft) {
        let root = self.root();
        if !self.is_root() {
            draft.wait(0, READY, [root]);
            draft.copy(0, 0, (Operand::Window(root, Span::region(0)), Operand::output(0)));
            draft.signal(0, DONE, Some(root).filter(|_| self.reused()));
            return;
        }
        draft.copy(0, 0, (Operand::input(0), Operand::Local(Span::region(0))));
        draft.signal(0, READY, self.site.peers());
        // Nobody waits for this.
        if !self.site.spec.in_place {
            draft.copy(0, 0, (Operand::input(0), Operand::output(0)));
        }
        if self.reused() {
            draft.wait(FREE, DONE, self.site.peers());
        }
    }

    fn all_to_all(&self, draft: &mut Draft) {
        let me = self.site.me();
        for peer in self.site.peers().filter(|_| self.staged) {
            let given = self.site.places(me, peer).given.get();
            let target = Operand::Local(self.stage(me, peer));
            draft.copy(0, given, (Operand::input(given), target));
        }
        draft.signal(0, READY, self.site.peers());
        let own = self.site.places(me, me);
        draft.copy(0, own.given.get(), (Operand::input(own.given.get()), Operand::output(own.taken.get())));
        for peer in self.site.peers() {
            let Places { given, taken } = self.site.places(peer, me);
            let (index, taken) = (given.get(), taken.get());
            let span = if self.staged { self.stage(peer, me) } else { Span { buffer: RankBuffer::Input, index } };
            draft.wait(1, READY, [peer]);
            draft.copy(1, taken, (Operand::Window(peer, span), Operand::output(taken)));
        }
        if !self.staged {
            draft.signal(1, DONE, self.site.peers());
            draft.wait(1, DONE, self.site.peers());
        }
    }
}
