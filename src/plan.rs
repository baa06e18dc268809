//! Collectives compiled to data.
//!
//! A [`Plan`] is what one rank does for one collective: lanes of steps, each walked in rounds over pieces of the
//! buffers. Executors interpret it; [`check`] proves it; it prints as text. A plan holds no pointer.
//!
//! # How a lane runs
//! ```text
//! for t in 0 .. rounds + greatest lag:
//!     for step in steps:                    in order; a step that cannot run yet blocks its lane
//!         round = t - step.lag              skipped unless 0 <= round < rounds
//!         run step for this round
//! ```
//! Lanes run side by side; a lane has one channel, and a connection is (sender, receiver, channel).
//!
//! # What a [`Action::Combine`] does in a round
//! It covers `length = min(piece, block - round * piece)` elements; where that is not positive, the step is skipped
//! whole, its slots included. It waits until each source slot holds its message and each target slot is free, then
//! stores the reduction of all sources, in their order (one source: a copy), into every target, then releases the
//! source slots and publishes the target slots. Each slot operand is one message of `length` elements on its
//! connection.
//!
//! # Steps without numbers
//! A step names blocks and regions by their numbers; where those lie, and how long they are, stands in the lane's
//! [`LaneSizes`]. So the steps of one plan serve every count for which the planner would decide the same:
//! [`Plan::resized`] computes the sizes of another count, and the steps are shared.
//!
//! # What executors may rely on
//! [`check::prove`] holds plans to this, so that executors need not ask:
//! - Several sources, and `finish`, stand only in plans of collectives that reduce.
//! - A span named `Input`, mine or a peer's, holds what its user put there: the owner's scalar has not been applied
//!   yet, and is applied at every such read. In collectives that reduce, what is named otherwise has been scaled. So
//!   that all ranks compute the same bits, a scaled value is rounded to the element type before anything is added to
//!   it.
//! - A target may be the very elements of a source; otherwise no target overlaps another operand.
//! - A connection is named at most once among the sources and once among the targets of a combine.
//! - Two lanes of a plan have two channels; a lane of one number has the same channel and rounds on all ranks, and may
//!   have no steps on some.
//! - Accesses that need an order get it from messages and flags alone, never from slots being given back: publishing a
//!   slot and raising a flag release what the lane has read and written, taking and waiting acquire it.
//! - When a rank begins a plan, all ranks have ended the plan before; a rank may end while peers still read its
//!   scratch, but not while they touch its input or output.
//! - A barrier over slots sends elements of scratch that nobody has written.
//!
//! # Flags
//! Each rank owns [`FLAGS`] flags per lane that its mapped peers can read. `Signal` says "I have come to this step in
//! this round" to the listeners that it names; `Wait` waits until the peer has signalled the same flag in the same
//! round. All ranks of a plan have the same rounds.
//!
//! # Entering
//! [`Action::Enter`] makes sure that all ranks have ended the plan before: a rank that has passed this step knows that
//! each of its mapped peers has begun this plan. The host's executor enters once for all lanes, before they begin
//! (`exec::epoch`). A device's executor enters lane by lane, so that a plan begins without help of the host. A rank
//! leaves when its lanes have ended: if peers touch its input or output, the last steps of its lanes wait for those
//! peers.

#![forbid(unsafe_code)]
#![warn(clippy::wildcard_enum_match_arm)]

mod build;
pub mod check;
mod cut;
mod direct;
mod mesh;
mod pat;
mod pattern;
mod print;
mod ring;
mod scan;
mod scan_rounds;
mod site;
mod sizes;
mod team;
mod tree;
mod walk;

pub(crate) use build::lanes;
pub use build::{LEAST_SLOTS, MOST_CHANNELS, algorithms};
pub(crate) use direct::read_the_root;
pub(crate) use pattern::Pattern;
pub(crate) use scan::{copy_lane, scan_lane};
pub(crate) use scan_rounds::{ScanFold, ScanOrder, ScanPlace, ScanRounds};
pub(crate) use site::is_one_shot;
pub use sizes::{Block, LaneSizes};
pub(crate) use team::{each_has_blocks, is_hierarchy};

use std::ops::Range;

use self::sizes::Recipe;
use crate::sync::primitive::Arc;
pub use crate::topo::layout::Layout;
use crate::types::{Algorithm, Collective, Elements, Protocol, Rank, World};

/// Flags of a lane.
pub const FLAGS: usize = 8;

/// The most lanes of a plan with windows: each rank shows its host the flags of this many lanes.
pub const WINDOW_LANES: usize = 4;

/// What one rank does for one collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What the plan is for.
    pub spec: Spec,
    /// The lanes, side by side.
    pub lanes: Vec<Lane>,
}

/// The sets of scratch of a plan: copies, one behind the other, of what the plan uses. A run in set `i` adds `i *
/// stride` to every place in scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScratchSets {
    /// How many sets there are; at least one.
    pub count: u64,
    /// Elements from a place in one set to the same place in the next set.
    pub stride: Elements,
}

/// What to plan, from one rank's point of view. Equal on all ranks but for `world.rank`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Which collective.
    pub collective: Collective,
    /// Who I am.
    pub world: World,
    /// The root, where there is one.
    pub root: Rank,
    /// How many elements.
    pub count: Count,
    /// Whether input and output are one buffer (all_reduce, broadcast, reduce: the same start; all_gather, gather:
    /// input is my block of the output; reduce_scatter, scatter: output is my block of the input; all_to_all: not in
    /// place).
    pub in_place: bool,
    /// How the data travels.
    pub algorithm: Algorithm,
    /// How slots are laid out.
    pub protocol: Protocol,
    /// Which memory of peers is mapped.
    pub windows: Windows,
    /// Which ranks share a host and a team; one layout for all plans of a communicator.
    pub layout: Arc<Layout>,
    /// LaneSizes the plan must keep within.
    pub limits: Limits,
}

impl Spec {
    /// Whether partial results go from rank to rank; otherwise all inputs of an element come together in one step, as
    /// direct plans do it on every layout. The same on all ranks.
    pub fn carries_partials(&self) -> bool {
        self.algorithm != Algorithm::Direct
    }
}

/// The count of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Count {
    /// all_reduce, broadcast, reduce: of the whole buffer. all_gather, gather: of each rank's input. reduce_scatter,
    /// scatter: of each rank's output. all_to_all: of each pair.
    Each(Elements),
    /// all_gather_v: of rank r's input. reduce_scatter_v: of rank r's output.
    PerRank(Vec<Elements>),
}

/// Which memory of peers a plan may name in [`Operand::Window`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Windows {
    /// None: slots only.
    None,
    /// The scratch of every rank on my host.
    Scratch,
    /// The scratch and the user's input and output of every rank on my host.
    User,
    /// The scratch of every rank on my host, and the user's buffer that every rank passes, which lies at the same place
    /// of a symmetric window on all ranks: the input of reduce, gather, reduce_scatter and all_to_all, the output of
    /// broadcast, scatter and all_gather, both of all_reduce. The other buffer may lie anywhere, and no peer works in
    /// it: a rank cannot know where a peer's is, and in rooted collectives the root alone has one.
    Symmetric,
}

/// LaneSizes a plan must keep within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Elements that fit a slot.
    pub slot: Elements,
    /// Slots of a connection.
    pub slots: u32,
    /// Elements of scratch that each rank owns.
    pub scratch: Elements,
    /// Channels that may be used.
    pub channels: u32,
}

/// Steps that run in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// The channel of all its slots.
    pub channel: u8,
    /// All that depends on the count.
    pub sizes: LaneSizes,
    /// The steps.
    pub steps: Arc<Vec<Step>>,
    /// How to compute the sizes of another count; `None` where the steps serve this count alone.
    recipe: Option<Recipe>,
}

/// One step of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// How many rounds this step runs behind the steps without lag.
    pub lag: u8,
    /// What it does.
    pub action: Action,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Says to `peers` that I have begun this plan, where my input and output lie, and waits until all of them have
    /// said so. Runs once, before the first round. It is the first step of each lane of a plan with windows, and stands
    /// nowhere else.
    Enter {
        /// The ranks whose memory is mapped, in order, without me.
        peers: Vec<Rank>,
    },
    /// Reduces or copies.
    Combine(Combine),
    /// Raises my flag for this round.
    Signal {
        /// Which.
        flag: u8,
        /// The ranks that wait for it, in order: at least one. A device raises the flag where each of them polls.
        listeners: Vec<Rank>,
    },
    /// Waits until `peer` has raised its flag for this round.
    Wait {
        /// Whose flag.
        peer: Rank,
        /// Which.
        flag: u8,
    },
}

/// Reduces or copies sources into targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Combine {
    /// The block whose length this combine covers over all rounds: its place in [`LaneSizes::blocks`].
    pub block: u32,
    /// How many blocks of that length, side by side in memory, move together; the piece is as many times as long.
    pub times: u32,
    /// In the order of reduction. A [`Operand::Local`] input is raw: the executor applies the operator's scalar to it.
    /// An average that [carries](Spec::carries_partials) partial results scales those that are
    /// [inputs](Combine::inputs).
    pub sources: Vec<Operand>,
    /// Where the result goes.
    pub targets: Vec<Operand>,
    /// Whether the result is final, so that an average is divided now.
    pub finish: bool,
}

impl Combine {
    /// Which sources are inputs of ranks; all others are results, partial or whole. They stand side by side, which
    /// [`check::fits`] sees to, and may be as many as ranks map each other.
    ///
    /// Inputs lie in a user's buffer, or in the scratch of a peer, who has copied its own there. Such a copy is not
    /// yet a part of a result: it has no input.
    pub fn inputs(&self) -> Range<usize> {
        let is_input = |source: &Operand| self.is_input(source);
        let first = self.sources.iter().position(is_input).unwrap_or(0);
        first..first + self.sources[first..].iter().take_while(|source| is_input(source)).count()
    }

    fn is_input(&self, source: &Operand) -> bool {
        let is_scratch =
            |target: &Operand| matches!(target, Operand::Local(span) if span.buffer == RankBuffer::Scratch);
        let adds_up = self.sources.len() > 1;
        match source {
            Operand::Local(span) => {
                span.buffer == RankBuffer::Input && (adds_up || !self.targets.iter().all(is_scratch))
            }
            Operand::Window(_, span) => match span.buffer {
                RankBuffer::Input => true,
                // What is read from scratch alone is a result that its rank hands out.
                RankBuffer::Scratch => adds_up,
                RankBuffer::Output => false,
            },
            Operand::Slot(_) => false,
        }
    }
}

/// A place that a [`Combine`] reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// My memory.
    Local(Span),
    /// The next slot of the connection from (source) or to (target) this peer on the lane's channel.
    Slot(Rank),
    /// A peer's mapped memory.
    Window(Rank, Span),
}

/// Elements of a buffer, as the rounds walk them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Which buffer.
    pub buffer: RankBuffer,
    /// Of an input or output: the block that it holds, by its place in [`LaneSizes::blocks`]. Each round is a piece
    /// further. Of scratch: the region. Each round is a piece further, and after [`LaneSizes::depth`] pieces at the
    /// start again.
    pub index: u32,
}

/// A buffer of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RankBuffer {
    /// The user's input.
    Input,
    /// The user's output.
    Output,
    /// The rank's scratch.
    Scratch,
}
