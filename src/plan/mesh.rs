//! The direct algorithm through slots: every rank exchanges with every rank.
//!
//! Each output element is reduced in one combine in rank order, so the bits are those of the other direct plans.

use super::build::BARRIER_SCRATCH;
use super::pattern::Pattern;
use super::site::{Draft, Site};
use super::sizes::{Cutting, Measure};
use super::{Action, Combine, Lane, Operand, Span};
use crate::Result;
use crate::types::Rank;

/// With this many slots a rank may send the next round before it has taken the messages of this one, in both hops.
const SLOTS_OF_TWO_HOPS: u32 = 4;

/// The lane of a collective over slots between all ranks.
pub(super) fn lane(site: Site<'_>) -> Result<Option<Lane>> {
    let mesh = Mesh { site };
    let ranks = site.spec.world.ranks().len();
    let cutting = match site.pattern {
        Pattern::AllReduce | Pattern::Reduce if !mesh.one_shot() => Cutting::Shares { shares: ranks, parts: 1 },
        Pattern::AllReduce | Pattern::Reduce | Pattern::Broadcast => WHOLE,
        Pattern::AllGather | Pattern::ReduceScatter | Pattern::AllToAll | Pattern::Gather | Pattern::Scatter => {
            Cutting::EachRank
        }
        Pattern::Barrier => return barrier(site, false),
    };
    let measure = Measure { slotted: true, ..Measure::of(cutting) };
    let mut draft = Draft::default();
    match site.pattern {
        Pattern::AllReduce | Pattern::Reduce if mesh.one_shot() => mesh.reduce_whole(&mut draft),
        Pattern::AllReduce | Pattern::Reduce => mesh.reduce_shares(&mut draft),
        Pattern::Broadcast => mesh.broadcast(&mut draft),
        Pattern::AllGather => mesh.all_gather(&mut draft),
        Pattern::ReduceScatter => mesh.reduce_scatter(&mut draft),
        Pattern::Gather => mesh.gather(&mut draft),
        Pattern::Scatter => mesh.scatter(&mut draft),
        Pattern::AllToAll | Pattern::Barrier => mesh.all_to_all(&mut draft),
    }
    draft.steps.retain(|step| !matches!(&step.action, Action::Combine(combine) if combine.targets.is_empty()));
    let sizes = measure.sizes(site)?;
    Ok(site.finish(measure, sizes, draft))
}

/// The block of a whole buffer.
const WHOLE: Cutting = Cutting::Shares { shares: 1, parts: 1 };

struct Mesh<'a> {
    site: Site<'a>,
}

impl Mesh<'_> {
    fn me(&self) -> Rank {
        self.site.me()
    }

    fn root(&self) -> Rank {
        self.site.spec.root
    }

    fn is_root(&self) -> bool {
        self.me() == self.root()
    }

    fn one_shot(&self) -> bool {
        let world = self.site.spec.world.size;
        world == 2 || self.site.is_one_shot()
    }

    fn slots(&self) -> Vec<Operand> {
        self.site.peers().map(Operand::Slot).collect()
    }

    fn combine(&self, block: u32, sources: Vec<Operand>, targets: Vec<Operand>) -> Combine {
        Combine { block, times: 1, sources, targets, finish: false }
    }

    /// Everyone's slot in rank order, with my own input in my place.
    fn in_rank_order(&self, block: u32) -> Vec<Operand> {
        let given = |rank| if rank == self.me() { Operand::input(block) } else { Operand::Slot(rank) };
        self.site.spec.world.ranks().map(given).collect()
    }

    /// Everyone sends everything to those who need it.
    fn reduce_whole(&self, draft: &mut Draft) {
        let everyone = self.site.pattern == Pattern::AllReduce;
        let receivers = match everyone {
            true => self.slots(),
            false if self.is_root() => Vec::new(),
            false => vec![Operand::Slot(self.root())],
        };
        draft.combine(0, self.combine(0, vec![Operand::input(0)], receivers));
        if everyone || self.is_root() {
            let combine = self.combine(0, self.in_rank_order(0), vec![Operand::output(0)]);
            draft.combine(1, Combine { finish: true, ..combine });
        }
    }

    /// Everyone reduces a share and sends it to those who need it.
    fn reduce_shares(&self, draft: &mut Draft) {
        let (reduce, take) = if self.site.spec.limits.slots >= SLOTS_OF_TWO_HOPS { (1, 2) } else { (0, 0) };
        let everyone = self.site.pattern == Pattern::AllReduce;
        self.give(draft);
        let mine = self.me().get();
        let output = Operand::output(mine);
        let targets = match everyone {
            true => std::iter::once(output).chain(self.slots()).collect(),
            false if self.is_root() => vec![output],
            false => vec![Operand::Slot(self.root())],
        };
        let combine = self.combine(mine, self.in_rank_order(mine), targets);
        draft.combine(reduce, Combine { finish: true, ..combine });
        if everyone || self.is_root() {
            self.take(take, draft);
        }
    }

    fn broadcast(&self, draft: &mut Draft) {
        let output = Operand::output(0);
        let combine = if self.is_root() {
            let targets = std::iter::once(output).chain(self.slots()).collect();
            self.combine(0, vec![Operand::input(0)], targets)
        } else {
            self.combine(0, vec![Operand::Slot(self.root())], vec![output])
        };
        draft.combine(0, combine);
    }

    fn all_gather(&self, draft: &mut Draft) {
        let mine = self.me().get();
        let targets = std::iter::once(Operand::output(mine)).chain(self.slots()).collect();
        draft.combine(0, self.combine(mine, vec![Operand::input(mine)], targets));
        self.take(1, draft);
    }

    /// Takes the block of every other rank.
    fn take(&self, lag: u8, draft: &mut Draft) {
        for peer in self.site.peers() {
            draft.copy(lag, peer.get(), (Operand::Slot(peer), Operand::output(peer.get())));
        }
    }

    /// Sends every other rank its block.
    fn give(&self, draft: &mut Draft) {
        for peer in self.site.peers() {
            draft.copy(0, peer.get(), (Operand::input(peer.get()), Operand::Slot(peer)));
        }
    }

    fn reduce_scatter(&self, draft: &mut Draft) {
        self.give(draft);
        let mine = self.me().get();
        let combine = self.combine(mine, self.in_rank_order(mine), vec![Operand::output(mine)]);
        draft.combine(1, Combine { finish: true, ..combine });
    }

    fn gather(&self, draft: &mut Draft) {
        let mine = self.me().get();
        let target = if self.is_root() { Operand::output(mine) } else { Operand::Slot(self.root()) };
        draft.copy(0, mine, (Operand::input(mine), target));
        if self.is_root() {
            self.take(0, draft);
        }
    }

    fn scatter(&self, draft: &mut Draft) {
        let mine = self.me().get();
        let source = if self.is_root() { Operand::input(mine) } else { Operand::Slot(self.root()) };
        draft.copy(0, mine, (source, Operand::output(mine)));
        if self.is_root() {
            self.give(draft);
        }
    }

    /// Every rank has a block for every rank; the definition says which.
    fn all_to_all(&self, draft: &mut Draft) {
        let given = |peer| self.site.places(self.me(), peer).given.get();
        let taken = |peer| self.site.places(peer, self.me()).taken.get();
        draft.copy(0, given(self.me()), (Operand::input(given(self.me())), Operand::output(taken(self.me()))));
        for peer in self.site.peers() {
            draft.copy(0, given(peer), (Operand::input(given(peer)), Operand::Slot(peer)));
        }
        for peer in self.site.peers() {
            draft.copy(1, taken(peer), (Operand::Slot(peer), Operand::output(taken(peer))));
        }
    }
}

/// The lane of a barrier over slots. Each rank sends a token to every other rank at once, or, with `halving`, to the
/// ranks 1, 2, 4, … ahead.
pub(super) fn barrier(site: Site<'_>, halving: bool) -> Result<Option<Lane>> {
    let (sent, taken) = (Operand::Local(Span::region(0)), Operand::Local(Span::region(1)));
    let world = site.spec.world;
    let mut draft = Draft::default();
    if halving {
        for distance in std::iter::successors(Some(1_u32), |far| far.checked_mul(2)).take_while(|far| *far < world.size)
        {
            draft.copy(0, 0, (sent, Operand::Slot(world.rank.after(distance, world.size))));
            draft.copy(0, 0, (Operand::Slot(world.rank.before(distance, world.size)), taken));
        }
    } else {
        let targets: Vec<Operand> = site.peers().map(Operand::Slot).collect();
        if !targets.is_empty() {
            draft.combine(0, Combine { block: 0, times: 1, sources: vec![sent], targets, finish: false });
        }
        site.peers().for_each(|peer| draft.copy(0, 0, (Operand::Slot(peer), taken)));
    }
    let measure = Measure { regions: BARRIER_SCRATCH, ..Measure::of(Cutting::Token) };
    let sizes = measure.sizes(site)?;
    Ok(site.finish(measure, sizes, draft))
}

/// The lane of a barrier by flags: each rank signals, and waits for all others.
pub(super) fn barrier_by_flags(site: Site<'_>) -> Result<Option<Lane>> {
    let mut draft = Draft::default();
    if site.spec.world.size > 1 {
        draft.signal(0, 0, site.peers());
        draft.wait(0, 0, site.peers());
    }
    let measure = Measure::of(Cutting::Token);
    let sizes = measure.sizes(site)?;
    Ok(site.finish(measure, sizes, draft))
}
