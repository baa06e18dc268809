//! Groups that share memory, joined by rails.
//!
//! What a group does is split among its seats. The ranks that have one seat in all groups form a rail, along which a
//! ring, chain or tree carries that seat's blocks through slots. Inside a group, a seat reads what its neighbours
//! contribute and writes what they get through windows, in the same combines that talk to the rail. Groups of uneven
//! size have as many seats as the smallest has ranks: the ranks of a larger group that have no seat are its guests,
//! which contribute and get, and are on no rail. Where every rank has a block of its own (all_gather, reduce_scatter)
//! there is a seat for every rank of the largest group instead, and the ranks of a smaller group have several seats
//! each. This one scheme covers four cases:
//! ```text
//! flat ring or tree      every rank is a group of its own
//! hierarchy              groups are the layout's teams: hosts, or parts of them
//! direct, two-shot       one group of all ranks; the rail is one rank long
//! one rank               one group of one rank
//! ```
//! Where only scratch is mapped, contributions are first copied to the owner's scratch, in a region for each reader
//! (A), and results are read from the scratch of the seat that made them (B). With all buffers mapped, nothing is
//! copied. In symmetric windows nobody but the root knows where its other buffer is: the root of a reduction takes the
//! results as in (B), and the root of a broadcast copies its input to its output, where the seats read it. Flag 0 says
//! that a rank's buffers are ready, flag 1 that its results are.

use std::borrow::Cow;

use super::pattern::Pattern;
use super::ring::{Parcel, Ring};
use super::site::{CACHED_PIECE, DEPTH_OF_ONE_FLAG, Draft, Site};
use super::sizes::{Cutting, LaneSizes, Measure};
use super::tree::{Node, WithinHost};
use super::walk::number;
use super::{Combine, Lane, Layout, Operand, RankBuffer, Span, Spec, Step, Windows};
use crate::Result;
use crate::topo::layout::SearchedLane;
use crate::types::{Algorithm, Collective, Elements, Rank};

/// Pieces under way for each hop of a pipeline.
const PIECES_PER_HOP: usize = 2;

/// Rounds until a piece of scratch may be written again; `check` proves these numbers.
const DEPTH: u32 = 3;

/// Seats of a rank at most.
const MOST_SEATS: usize = 4;

const READY: u8 = 0;
const DONE: u8 = 1;

/// My place among groups and rails, on one lane.
#[derive(Debug)]
pub(super) struct Team<'a> {
    site: Site<'a>,
    /// Of a hierarchy, the layout's own: each rank of a large world plans for itself, and copies of all groups would
    /// be most of the work.
    groups: Cow<'a, [Vec<Rank>]>,
    /// My group.
    group: usize,
    /// My index in my group, and my first seat where it is below `seats`.
    place: usize,
    /// How many seats every group has.
    seats: usize,
    /// Whether some group has more than one rank.
    shared: bool,
    /// Whether some group has guests.
    guests: bool,
    windows: Windows,
    /// My place in the tree of my rail.
    node: Node,
}

/// What a lane of a team settles before its steps.
struct Shape {
    measure: Measure,
    sizes: LaneSizes,
    /// Regions for readers of what I contribute.
    contributions: usize,
}

impl Shape {
    fn reused(&self) -> bool {
        self.sizes.reused()
    }

    /// Whether a block of these numbers has elements.
    fn holds(&self, mut blocks: impl Iterator<Item = u32>) -> bool {
        blocks.any(|block| self.sizes.blocks[block as usize].length > Elements::ZERO)
    }
}

impl<'a> Team<'a> {
    /// The team of a lane.
    pub(super) fn new(site: Site<'a>) -> Team<'a> {
        let spec = site.spec;
        let flat = !hierarchical(spec);
        let order = (spec.algorithm != Algorithm::Direct).then(|| in_turn(spec, site.lane));
        let groups: Cow<'a, [Vec<Rank>]> = match &order {
            None => Cow::Owned(vec![spec.world.ranks().collect()]),
            Some(order) if flat => order.groups.iter().flatten().map(|rank| vec![*rank]).collect(),
            Some(order) => order.groups.clone(),
        };
        let place = groups
            .iter()
            .enumerate()
            .find_map(|(group, ranks)| ranks.iter().position(|rank| *rank == site.me()).map(|place| (group, place)));
        let (group, place) = place.expect("a checked spec has every rank on a host");
        let most = groups.iter().map(Vec::len).max().unwrap_or(1);
        let seats =
            if each_has_blocks(spec.collective) { most } else { groups.iter().map(Vec::len).min().unwrap_or(1) };
        let node = match order {
            Some(LaneOrder { groups: hosts, inside, second_tree }) if spec.algorithm == Algorithm::Tree => {
                // A guest gets its results in the same round as the seats of its group.
                let rail = place.min(seats - 1);
                let me = on_seat(&groups[group], rail);
                if flat {
                    Node::new((&*hosts, inside), second_tree, me)
                } else {
                    let rail: Vec<[Rank; 1]> = groups.iter().map(|ranks| [on_seat(ranks, rail)]).collect();
                    Node::new((&rail, inside), second_tree, me)
                }
            }
            Some(_) | None => Node::default(),
        };
        let windows = if most == 1 { Windows::None } else { site.windows() };
        Team { site, groups, group, place, seats, shared: most > 1, guests: most > seats, windows, node }
    }

    /// The lane of a collective; `None` if no rank has anything to do.
    pub(super) fn lane(&self) -> Result<Option<Lane>> {
        if self.one_shot() {
            return self.reduce_everywhere();
        }
        let shape = self.shape()?;
        let mut draft = Draft::default();
        self.stage(&shape, &mut draft);
        self.await_ready(&shape, &mut draft);
        let lag = self.spine_lag();
        let spine = self.spine(&shape).into_iter();
        draft.steps.extend(spine.map(|step| Step { lag: step.lag + lag, ..step }));
        self.share(&shape, &mut draft);
        Ok(self.site.finish(shape.measure, shape.sizes, draft))
    }

    fn pattern(&self) -> Pattern {
        self.site.pattern
    }

    fn rooted(&self) -> bool {
        self.site.spec.collective.rooted()
    }

    fn reduces(&self) -> bool {
        self.site.spec.collective.reduces()
    }

    fn gathers(&self) -> bool {
        self.pattern() == Pattern::AllGather
    }

    fn scatters(&self) -> bool {
        self.pattern() == Pattern::ReduceScatter
    }

    fn is_root(&self) -> bool {
        self.rooted() && self.site.me() == self.site.spec.root
    }

    /// Whether `rank` has the whole result before anybody sends: the root of a broadcast.
    fn owns_result(&self, rank: Rank) -> bool {
        self.pattern() == Pattern::Broadcast && rank == self.site.spec.root
    }

    /// Whether I am on a rail.
    fn seated(&self) -> bool {
        self.place < self.seats
    }

    /// The seats of the rank at `place` of my group: none of a guest, several in a group that is smaller than others.
    fn seats_of(&self, place: usize) -> impl Iterator<Item = usize> + use<> {
        (place..self.seats).step_by(self.groups[self.group].len())
    }

    /// The most seats of a rank of any group.
    fn most_seats(&self) -> usize {
        self.groups.iter().map(|ranks| self.seats.div_ceil(ranks.len())).max().unwrap_or(1)
    }

    /// Whether what I contribute goes through my scratch.
    fn staged(&self) -> bool {
        self.windows == Windows::Scratch
    }

    /// Whether what a seat makes for others goes through its scratch.
    fn stages_results(&self) -> bool {
        self.staged() || (self.windows == Windows::Symmetric && self.pattern() == Pattern::Reduce)
    }

    /// Whether peers work in users' buffers.
    fn in_users_buffers(&self) -> bool {
        matches!(self.windows, Windows::User | Windows::Symmetric)
    }

    /// Blocks of a seat.
    fn blocks(&self) -> usize {
        let ring = self.pattern() == Pattern::AllReduce && self.site.spec.algorithm == Algorithm::Ring;
        if ring || self.gathers() || self.scatters() { self.groups.len() } else { 1 }
    }

    /// How the elements are cut: for each seat of each group, or into the blocks of each seat.
    fn cutting(&self) -> Cutting {
        let root = |seat: &usize| self.groups[0][*seat] == self.site.spec.root;
        if self.gathers() || self.scatters() {
            Cutting::EachRank
        } else if self.rooted() && self.site.is_small() {
            Cutting::OneShare { shares: self.seats, all: (0..self.seats).find(root).unwrap_or(0) }
        } else {
            Cutting::Shares { shares: self.seats, parts: self.blocks() }
        }
    }

    /// A block of a seat; `None` where a group has no rank of its own on the seat.
    fn block(&self, seat: usize, index: usize) -> Option<u32> {
        if self.gathers() || self.scatters() {
            return self.groups[index].get(seat).map(|rank| rank.get());
        }
        (seat < self.seats).then(|| number(seat * self.blocks() + index))
    }

    /// The blocks of a seat.
    fn blocks_of(&self, seat: usize) -> impl Iterator<Item = u32> {
        (0..self.blocks()).filter_map(move |index| self.block(seat, index))
    }

    fn shape(&self) -> Result<Shape> {
        let readers = if self.guests { self.seats } else { self.seats - 1 };
        let contributions = if self.staged() && !self.gathers() { readers * self.blocks() } else { 0 };
        let results = match (self.stages_results(), self.blocks()) {
            (true, blocks) if self.gathers() => blocks * self.most_seats(),
            (true, blocks) if !self.scatters() => blocks,
            (true | false, _) => 0,
        };
        let depth = if self.gathers() || self.scatters() {
            DEPTH_OF_ONE_FLAG
        } else {
            DEPTH + u32::from(self.way_down(self.node.greatest_lag))
        };
        let measure = Measure {
            cutting: self.cutting(),
            regions: contributions + results,
            depth,
            most: if self.stages_results() { CACHED_PIECE } else { u64::MAX },
            under_way: self.pieces_under_way(),
            slotted: self.groups.len() > 1,
        };
        Ok(Shape { measure, sizes: measure.sizes(self.site)?, contributions })
    }

    /// The number of pieces for a pipeline over the rail; 1 if the blocks themselves are the pipeline.
    fn pieces_under_way(&self) -> u64 {
        let hops = match self.site.spec.algorithm {
            _ if self.blocks() != 1 => 0,
            Algorithm::Tree => usize::from(self.node.greatest_lag) / PIECES_PER_HOP,
            Algorithm::Ring | Algorithm::Direct | Algorithm::Pat => self.groups.len() - 1,
        };
        if hops < 2 { 1 } else { u64::try_from(hops * PIECES_PER_HOP).unwrap_or(u64::MAX) }
    }

    fn way_down(&self, lag: u8) -> u8 {
        let tree = self.pattern() == Pattern::AllReduce && self.site.spec.algorithm == Algorithm::Tree;
        if tree { lag } else { 0 }
    }

    fn spine_lag(&self) -> u8 {
        u8::from(self.shared && !(self.gathers() && self.staged()))
    }

    fn share_lag(&self) -> u8 {
        self.spine_lag() + self.way_down(self.node.lag) + 1
    }

    /// The other ranks of my group, with their places.
    fn neighbours(&self) -> impl Iterator<Item = (usize, Rank)> {
        let group = &self.groups[self.group];
        (1..group.len()).map(move |ahead| {
            let place = (self.place + ahead) % group.len();
            (place, group[place])
        })
    }

    /// Where the rank at place `owner` keeps what it contributes to a block of a seat, which is not its own.
    fn contribution(&self, (owner, seat): (usize, usize), index: usize) -> Span {
        let own = self.seats_of(owner).filter(|own| *own < seat).count();
        Span::region((seat - own) * self.blocks() + index)
    }

    /// Where the rank on a seat keeps its results for its neighbours.
    fn result(&self, shape: &Shape, seat: usize, index: usize) -> Span {
        let before = seat / self.groups[self.group].len();
        Span::region(shape.contributions + before * self.blocks() + index)
    }

    /// Copies what I contribute to others' blocks where they can read it. The root of a broadcast also copies these
    /// blocks to its own output unless they are there, because no rank sends them back.
    fn stage(&self, shape: &Shape, draft: &mut Draft) {
        let contributes = self.reduces() || self.is_root();
        let owns = self.owns_result(self.site.me()) && !self.site.spec.in_place;
        for seat in self.neighbours().flat_map(|(reader, _)| self.seats_of(reader)) {
            for index in 0..self.blocks() {
                let Some(block) = self.block(seat, index) else { continue };
                let staged = || Operand::Local(self.contribution((self.place, seat), index));
                let staged = (self.staged() && contributes).then(staged);
                let targets: Vec<Operand> = staged.into_iter().chain(owns.then(|| Operand::output(block))).collect();
                if !targets.is_empty() {
                    let sources = vec![Operand::input(block)];
                    draft.combine(0, Combine { block, times: 1, sources, targets, finish: false });
                }
            }
        }
        let me = self.site.me();
        let listeners = self.neighbours().filter(|(place, _)| self.awaits_ready(shape, *place, me));
        draft.signal(0, READY, listeners.map(|(_, peer)| peer));
    }

    /// Whether the rank at `place` of my group waits until `peer` is ready. It does if it reads what `peer`
    /// contributes, writes `peer`'s output, or needs to know that `peer` no longer reads its scratch.
    fn awaits_ready(&self, shape: &Shape, place: usize, peer: Rank) -> bool {
        let holds_blocks = || self.seats_of(place).any(|seat| shape.holds(self.blocks_of(seat)));
        let all = match self.windows {
            Windows::None => false,
            Windows::User | Windows::Symmetric => place < self.seats,
            Windows::Scratch if self.gathers() => false,
            Windows::Scratch => shape.reused() || (self.reduces() && holds_blocks()),
        };
        let from_root = self.pattern() == Pattern::Broadcast && self.group == 0 && peer == self.site.spec.root;
        all || (from_root && self.staged() && holds_blocks())
    }

    fn await_ready(&self, shape: &Shape, draft: &mut Draft) {
        let peers = self.neighbours().map(|(_, peer)| peer);
        draft.wait(self.spine_lag(), READY, peers.filter(|peer| self.awaits_ready(shape, self.place, *peer)));
    }

    /// What I give to and take from a block of one of my seats.
    fn parcel(&self, shape: &Shape, (seat, index): (usize, usize), block: u32) -> Parcel {
        Parcel {
            block,
            sources: self.sources((seat, index), block),
            targets: self.targets(shape, (seat, index), block),
        }
    }

    fn sources(&self, (seat, index): (usize, usize), block: u32) -> Vec<Operand> {
        let me = self.site.me();
        let given = |place: usize| {
            let owner = self.groups[self.group][place];
            let staged = self.staged() && owner != me;
            let copied = self.windows == Windows::Symmetric && self.owns_result(owner) && owner != me;
            let raw = Span { buffer: if copied { RankBuffer::Output } else { RankBuffer::Input }, index: block };
            Operand::of(owner, me, if staged { self.contribution((place, seat), index) } else { raw })
        };
        if self.reduces() {
            (0..self.groups[self.group].len()).map(given).collect()
        } else if self.gathers() {
            (index == self.group).then(|| Operand::input(block)).into_iter().collect()
        } else {
            let root = self.site.spec.root;
            let near = self.groups[self.group].iter().position(|rank| *rank == root);
            near.map(given).into_iter().collect()
        }
    }

    fn targets(&self, shape: &Shape, (seat, index): (usize, usize), block: u32) -> Vec<Operand> {
        let me = self.site.me();
        let mine = Operand::output(block);
        let result = self.stages_results().then(|| Operand::Local(self.result(shape, seat, index)));
        let window = |peer: Rank| Operand::Window(peer, Span { buffer: RankBuffer::Output, index: block });
        if self.scatters() {
            return (index == self.group).then_some(mine).into_iter().collect();
        }
        if self.pattern() == Pattern::Reduce {
            let root = self.site.spec.root;
            let target = if me == root { mine } else { result.unwrap_or_else(|| window(root)) };
            return vec![target];
        }
        match self.windows {
            Windows::User | Windows::Symmetric => {
                let without = self.neighbours().filter(|(_, peer)| !self.owns_result(*peer));
                std::iter::once(mine).chain(without.map(|(_, peer)| window(peer))).collect()
            }
            Windows::None | Windows::Scratch => {
                let taken = self.neighbours().any(|(_, peer)| self.takes(shape, peer, seat));
                let staged = result.filter(|_| taken);
                let mine = (staged.is_none() || !self.keeps_later()).then_some(mine);
                mine.into_iter().chain(staged).collect()
            }
        }
    }

    /// What goes along my rails. All ranks take theirs in the order of the seats, so that a rail waits for those before
    /// it alone, also where two of them share a connection.
    fn spine(&self, shape: &Shape) -> Vec<Step> {
        self.seats_of(self.place).flat_map(|seat| self.rail(shape, seat)).collect()
    }

    fn rail(&self, shape: &Shape, seat: usize) -> Vec<Step> {
        let parcel = |index| self.block(seat, index).map(|block| self.parcel(shape, (seat, index), block));
        let parcels: Vec<Option<Parcel>> = (0..self.blocks()).map(parcel).collect();
        let order = self.groups.iter().map(|ranks| on_seat(ranks, seat)).collect();
        let ring = Ring { order, position: self.group };
        let tree = self.site.spec.algorithm == Algorithm::Tree;
        let one = || parcels.first().and_then(Option::as_ref);
        match self.pattern() {
            Pattern::AllReduce if !tree => ring.all_reduce(&parcels),
            Pattern::AllGather => ring.all_gather(&parcels),
            Pattern::ReduceScatter => ring.reduce_scatter(&parcels),
            Pattern::AllReduce => one().map_or_else(Vec::new, |parcel| self.node.all_reduce(parcel)),
            Pattern::Broadcast if tree => one().map_or_else(Vec::new, |parcel| vec![self.node.broadcast(parcel)]),
            Pattern::Broadcast => one().map_or_else(Vec::new, |parcel| vec![ring.broadcast(parcel)]),
            Pattern::Reduce if tree => one().map_or_else(Vec::new, |parcel| vec![self.node.reduce(parcel)]),
            Pattern::Reduce => one().map_or_else(Vec::new, |parcel| vec![ring.reduce(parcel)]),
            // These patterns have no rails; `build` never comes here with them.
            Pattern::AllToAll | Pattern::Gather | Pattern::Scatter | Pattern::Barrier => Vec::new(),
        }
    }

    /// Signals that my results are ready, and takes the results of my neighbours.
    fn share(&self, shape: &Shape, draft: &mut Draft) {
        if !self.shared || (self.staged() && self.scatters()) {
            return;
        }
        let lag = self.share_lag();
        let all = shape.reused() || self.in_users_buffers();
        let me = self.site.me();
        let given = |peer: Rank| self.seats_of(self.place).any(|seat| self.takes(shape, peer, seat));
        let listeners = self.neighbours().filter(|(_, peer)| self.seated() && (all || given(*peer)));
        draft.signal(lag - 1, DONE, listeners.map(|(_, peer)| peer));
        if self.keeps_later() && !self.site.spec.in_place {
            for block in self.seats_of(self.place).filter_map(|seat| self.block(seat, 0)) {
                draft.copy(lag - 1, block, (Operand::input(block), Operand::output(block)));
            }
        }
        for (place, peer) in self.neighbours() {
            let taken = || self.seats_of(place).filter(|seat| self.takes(shape, me, *seat));
            if taken().next().is_some() || (all && place < self.seats) {
                draft.wait(lag, DONE, [peer]);
            }
            for (seat, index) in taken().flat_map(|seat| (0..self.blocks()).map(move |index| (seat, index))) {
                let Some(block) = self.block(seat, index) else { continue };
                let ends = (Operand::Window(peer, self.result(shape, seat, index)), Operand::output(block));
                draft.copy(lag, block, ends);
            }
        }
    }

    /// Whether I copy my block to my output after the signal that it is staged: my neighbours wait for the signal, and
    /// nobody waits for the output.
    fn keeps_later(&self) -> bool {
        self.gathers() && self.staged() && self.groups.len() == 1
    }

    /// Whether `reader`, of my group, takes what `seat` made from its scratch.
    fn takes(&self, shape: &Shape, reader: Rank, seat: usize) -> bool {
        let wants = !self.owns_result(reader) && (self.pattern() != Pattern::Reduce || reader == self.site.spec.root);
        self.stages_results() && wants && shape.holds(self.blocks_of(seat))
    }

    /// Whether it is faster if every rank reduces everything by itself.
    fn one_shot(&self) -> bool {
        let direct = self.site.spec.algorithm == Algorithm::Direct && self.pattern() == Pattern::AllReduce;
        direct && self.staged() && self.site.is_one_shot() && self.site.fits_scratch()
    }

    /// Each rank copies its whole contribution to its scratch; then each rank reduces all of them in rank order.
    fn reduce_everywhere(&self) -> Result<Option<Lane>> {
        let me = self.site.me();
        let (input, staged) = (Operand::input(0), Span::region(0));
        let mut draft = Draft::default();
        draft.copy(0, 0, (input, Operand::Local(staged)));
        draft.signal(0, READY, self.site.peers());
        draft.wait(0, READY, self.site.peers());
        let sources = self.site.spec.world.ranks();
        let sources = sources.map(|owner| if owner == me { input } else { Operand::Window(owner, staged) }).collect();
        let targets = vec![Operand::output(0)];
        draft.combine(0, Combine { block: 0, times: 1, sources, targets, finish: true });
        let measure = Measure { regions: 1, ..Measure::of(Cutting::Shares { shares: 1, parts: 1 }) };
        let sizes = measure.sizes(self.site)?;
        Ok(self.site.finish(measure, sizes, draft))
    }
}

/// Whether every rank has a block of its own, which travels between groups on the rail of that rank's seat.
pub(crate) fn each_has_blocks(collective: Collective) -> bool {
    matches!(Pattern::of(collective), Some(Pattern::AllGather | Pattern::ReduceScatter))
}

/// The rank of a group that has a seat.
fn on_seat(ranks: &[Rank], seat: usize) -> Rank {
    ranks[seat % ranks.len()]
}

/// Whether teams work as groups. Where every rank has a block of its own, each of those blocks needs a seat, and a rank
/// of a small team has no more than [`MOST_SEATS`]: with more of them, pieces become too short.
pub(crate) fn is_hierarchy(collective: Collective, layout: &Layout) -> bool {
    let teams = layout.teams();
    let fit = match Pattern::of(collective) {
        Some(Pattern::AllReduce | Pattern::Broadcast | Pattern::Reduce) => true,
        Some(Pattern::AllGather | Pattern::ReduceScatter) => {
            let sizes = || teams.iter().map(Vec::len);
            sizes().max().unwrap_or(1) <= MOST_SEATS * sizes().min().unwrap_or(1)
        }
        Some(Pattern::AllToAll | Pattern::Gather | Pattern::Scatter | Pattern::Barrier) | None => false,
    };
    fit && teams.len() > 1 && teams.iter().any(|ranks| ranks.len() > 1)
}

pub(super) fn hierarchical(spec: &Spec) -> bool {
    spec.windows != Windows::None && is_hierarchy(spec.collective, &spec.layout)
}

/// In which order a lane passes the ranks.
struct LaneOrder<'a> {
    groups: Cow<'a, [Vec<Rank>]>,
    /// How trees pass the ranks of a group.
    inside: WithinHost,
    second_tree: bool,
}

/// The groups of a hierarchy, the root's first where there is one, and the root on a seat; else the order of the
/// lane's channel, where channels were searched for; else the hosts in turn, each with its ranks in turn: the root
/// first where there is one; else every lane begins each host at another rank, so that the lanes cross between hosts at
/// different ranks.
fn in_turn(spec: &Spec, lane: usize) -> LaneOrder<'_> {
    let hierarchical = hierarchical(spec);
    if let (false, Some(searched)) = (hierarchical, spec.layout.searched(spec.algorithm, lane)) {
        return in_order(spec, searched);
    }
    let order = if hierarchical { spec.layout.teams() } else { spec.layout.hosts() };
    if hierarchical && !spec.collective.rooted() {
        return LaneOrder { groups: order.into(), inside: WithinHost::Heap, second_tree: lane % 2 == 1 };
    }
    let mut groups = order.to_vec();
    for ranks in groups.iter_mut().filter(|_| !hierarchical) {
        let by = lane % ranks.len();
        ranks.rotate_left(by);
    }
    if spec.collective.rooted() {
        let group = groups.iter().position(|ranks| ranks.contains(&spec.root)).unwrap_or(0);
        groups.rotate_left(group);
        let seats = groups.iter().map(Vec::len).min().unwrap_or(1);
        let seat = groups[0].iter().position(|rank| *rank == spec.root).unwrap_or(0);
        if !hierarchical {
            groups[0].rotate_left(seat);
        } else if seat >= seats {
            groups[0].swap(seat, 0);
        }
    }
    LaneOrder { groups: groups.into(), inside: WithinHost::Heap, second_tree: lane % 2 == 1 }
}

/// The order of a channel, turned so that the root is first where there is one: chains are rings that are cut open, so
/// that the first rank of a chain can follow the last.
fn in_order(spec: &Spec, SearchedLane { order, second_tree }: SearchedLane<'_>) -> LaneOrder<'static> {
    let mut groups = if spec.algorithm == Algorithm::Ring { vec![order.concat()] } else { order.clone() };
    if spec.collective.rooted() {
        let group = groups.iter().position(|ranks| ranks.contains(&spec.root)).unwrap_or(0);
        groups.rotate_left(group);
        let place = groups[0].iter().position(|rank| *rank == spec.root).unwrap_or(0);
        groups[0].rotate_left(place);
    }
    LaneOrder { groups: groups.into(), inside: WithinHost::Chain, second_tree }
}
