//! The direct algorithm through slots: every rank exchanges with every rank.
//!
//! Each output element is reduced in one combine in rank order, so the bits are those of the other direct plans.

use super::build::BARRIER_SCRATCH;
use super::cut::Range;
use super::pattern::Pattern;
use super::site::{Block, Draft, Site, is_one_shot, rounds};
use super::{Action, Buffer, Combine, Lane, Operand, Span, Walk};
use crate::Result;
use crate::types::{Elements, Rank};

/// With this many slots a rank may send the next round before it has taken the messages of this one, in both hops.
const SLOTS_OF_TWO_HOPS: u32 = 4;

/// The lane of a collective over slots between all ranks.
pub(super) fn lane(site: Site<'_>) -> Result<Option<Lane>> {
    let mesh = Mesh::new(site)?;
    let mut draft = Draft::default();
    match site.pattern {
        Pattern::AllReduce | Pattern::Reduce if mesh.one_shot() => mesh.reduce_whole(&mut draft),
        Pattern::AllReduce | Pattern::Reduce => mesh.reduce_shares(&mut draft),
        Pattern::Broadcast => mesh.broadcast(&mut draft),
        Pattern::AllGather => mesh.all_gather(&mut draft),
        Pattern::ReduceScatter => mesh.reduce_scatter(&mut draft),
        Pattern::Gather => mesh.gather(&mut draft),
        Pattern::Scatter => mesh.scatter(&mut draft),
        Pattern::AllToAll => mesh.all_to_all(&mut draft),
        Pattern::Barrier => return Ok(barrier(site, false)),
    }
    draft.steps.retain(|step| !matches!(&step.action, Action::Combine(combine) if combine.targets.is_empty()));
    Ok(site.finish(mesh.rounds, draft))
}

struct Mesh<'a> {
    site: Site<'a>,
    piece: Elements,
    rounds: u32,
}

impl<'a> Mesh<'a> {
    fn new(site: Site<'a>) -> Result<Mesh<'a>> {
        let longest = site.longest_part();
        let piece = site.piece(longest, 0, 1, true)?;
        Ok(Mesh { site, piece, rounds: rounds(longest, piece)? })
    }

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
        world == 2 || is_one_shot(self.site.whole().length, world)
    }

    fn slots(&self) -> Vec<Operand> {
        self.site.peers().map(Operand::Slot).collect()
    }

    fn combine(&self, length: Elements, sources: Vec<Operand>, targets: Vec<Operand>) -> Combine {
        Combine { block: length, piece: self.piece, sources, targets, finish: false }
    }

    /// Everyone's slot in rank order, with my own input in my place.
    fn in_rank_order(&self, input: Elements) -> Vec<Operand> {
        let given = |rank| if rank == self.me() { Operand::input(input) } else { Operand::Slot(rank) };
        self.site.spec.world.ranks().map(given).collect()
    }

    fn share(&self, rank: Rank) -> Range {
        self.site.whole().cut(self.site.spec.world.ranks().len(), rank.index())
    }

    /// Everyone sends everything to those who need it.
    fn reduce_whole(&self, draft: &mut Draft) {
        let whole = self.site.whole();
        let everyone = self.site.pattern == Pattern::AllReduce;
        let receivers = match everyone {
            true => self.slots(),
            false if self.is_root() => Vec::new(),
            false => vec![Operand::Slot(self.root())],
        };
        draft.combine(0, self.combine(whole.length, vec![Operand::input(whole.start)], receivers));
        if everyone || self.is_root() {
            let sources = self.in_rank_order(whole.start);
            let combine = self.combine(whole.length, sources, vec![Operand::output(whole.start)]);
            draft.combine(1, Combine { finish: true, ..combine });
        }
    }

    /// Everyone reduces a share and sends it to those who need it.
    fn reduce_shares(&self, draft: &mut Draft) {
        let (reduce, take) = if self.site.spec.limits.slots >= SLOTS_OF_TWO_HOPS { (1, 2) } else { (0, 0) };
        let everyone = self.site.pattern == Pattern::AllReduce;
        for peer in self.site.peers() {
            let share = self.share(peer);
            draft.copy(0, share.length, self.piece, (Operand::input(share.start), Operand::Slot(peer)));
        }
        let mine = self.share(self.me());
        let output = Operand::output(mine.start);
        let targets = match everyone {
            true => std::iter::once(output).chain(self.slots()).collect(),
            false if self.is_root() => vec![output],
            false => vec![Operand::Slot(self.root())],
        };
        let combine = self.combine(mine.length, self.in_rank_order(mine.start), targets);
        draft.combine(reduce, Combine { finish: true, ..combine });
        for peer in self.site.peers().filter(|_| everyone || self.is_root()) {
            let share = self.share(peer);
            draft.copy(take, share.length, self.piece, (Operand::Slot(peer), Operand::output(share.start)));
        }
    }

    fn broadcast(&self, draft: &mut Draft) {
        let whole = self.site.whole();
        let output = Operand::output(whole.start);
        let combine = if self.is_root() {
            let targets = std::iter::once(output).chain(self.slots()).collect();
            self.combine(whole.length, vec![Operand::input(whole.start)], targets)
        } else {
            self.combine(whole.length, vec![Operand::Slot(self.root())], vec![output])
        };
        draft.combine(0, combine);
    }

    fn all_gather(&self, draft: &mut Draft) {
        let Block { input, output, length } = self.site.block_of(self.me());
        let targets = std::iter::once(Operand::output(output)).chain(self.slots()).collect();
        draft.combine(0, self.combine(length, vec![Operand::input(input)], targets));
        self.take(1, draft);
    }

    /// Takes the block of every other rank.
    fn take(&self, lag: u8, draft: &mut Draft) {
        for peer in self.site.peers() {
            let block = self.site.block_of(peer);
            draft.copy(lag, block.length, self.piece, (Operand::Slot(peer), Operand::output(block.output)));
        }
    }

    /// Sends every other rank its block.
    fn give(&self, draft: &mut Draft) {
        for peer in self.site.peers() {
            let block = self.site.block_of(peer);
            draft.copy(0, block.length, self.piece, (Operand::input(block.input), Operand::Slot(peer)));
        }
    }

    fn reduce_scatter(&self, draft: &mut Draft) {
        self.give(draft);
        let Block { input, output, length } = self.site.block_of(self.me());
        let combine = self.combine(length, self.in_rank_order(input), vec![Operand::output(output)]);
        draft.combine(1, Combine { finish: true, ..combine });
    }

    fn gather(&self, draft: &mut Draft) {
        let Block { input, output, length } = self.site.block_of(self.me());
        let target = if self.is_root() { Operand::output(output) } else { Operand::Slot(self.root()) };
        draft.copy(0, length, self.piece, (Operand::input(input), target));
        if self.is_root() {
            self.take(0, draft);
        }
    }

    fn scatter(&self, draft: &mut Draft) {
        let Block { input, output, length } = self.site.block_of(self.me());
        let source = if self.is_root() { Operand::input(input) } else { Operand::Slot(self.root()) };
        draft.copy(0, length, self.piece, (source, Operand::output(output)));
        if self.is_root() {
            self.give(draft);
        }
    }

    fn all_to_all(&self, draft: &mut Draft) {
        let Range { start, length } = self.site.part(self.site.spec.count.longest());
        let place = |rank: Rank| self.site.spec.count.before(rank) + start;
        let own = place(self.me());
        draft.copy(0, length, self.piece, (Operand::input(own), Operand::output(own)));
        for peer in self.site.peers() {
            draft.copy(0, length, self.piece, (Operand::input(place(peer)), Operand::Slot(peer)));
        }
        for peer in self.site.peers() {
            draft.copy(1, length, self.piece, (Operand::Slot(peer), Operand::output(place(peer))));
        }
    }
}

/// The lane of a barrier over slots. Each rank sends a token to every other rank at once, or, with `halving`, to the
/// ranks 1, 2, 4, … ahead.
pub(super) fn barrier(site: Site<'_>, halving: bool) -> Option<Lane> {
    let token = |start| Operand::Local(Span { buffer: Buffer::Scratch, start, walk: Walk::Cycle(1) });
    let (sent, taken) = (token(Elements(0)), token(Elements(1)));
    let world = site.spec.world;
    let one = Elements(1);
    let mut draft = Draft { scratch: Elements(BARRIER_SCRATCH), ..Draft::default() };
    if halving {
        for distance in std::iter::successors(Some(1_u32), |far| far.checked_mul(2)).take_while(|far| *far < world.size)
        {
            draft.copy(0, one, one, (sent, Operand::Slot(world.rank.after(distance, world.size))));
            draft.copy(0, one, one, (Operand::Slot(world.rank.before(distance, world.size)), taken));
        }
    } else {
        let targets: Vec<Operand> = site.peers().map(Operand::Slot).collect();
        if !targets.is_empty() {
            draft.combine(0, Combine { block: one, piece: one, sources: vec![sent], targets, finish: false });
        }
        site.peers().for_each(|peer| draft.copy(0, one, one, (Operand::Slot(peer), taken)));
    }
    site.finish(1, draft)
}

/// The lane of a barrier by flags: each rank signals, and waits for all others.
pub(super) fn barrier_by_flags(site: Site<'_>) -> Option<Lane> {
    let mut draft = Draft::default();
    if site.spec.world.size > 1 {
        draft.signal(0, 0, site.peers());
        draft.wait(0, 0, site.peers());
    }
    site.finish(1, draft)
}
