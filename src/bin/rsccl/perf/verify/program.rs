//! What each collective takes and gives on each rank.

use rsccl::comm::CallCount;
use rsccl::types::Collective;
use rsccl::{Error, Result};

use super::op::Op;

/// A collective as `rsccl perf` runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    SendRecv,
    Barrier,
    AllGatherV,
    ReduceScatterV,
    AllToAllV,
    GatherV,
    ScatterV,
    Scan,
    Exscan,
}

impl Program {
    /// All of them, in the order of `rsccl perf all`.
    pub const ALL: &'static [Program] = &[
        Program::AllReduce,
        Program::Broadcast,
        Program::Reduce,
        Program::AllGather,
        Program::ReduceScatter,
        Program::AllToAll,
        Program::Gather,
        Program::Scatter,
        Program::SendRecv,
        Program::Barrier,
        Program::AllGatherV,
        Program::ReduceScatterV,
        Program::AllToAllV,
        Program::GatherV,
        Program::ScatterV,
        Program::Scan,
        Program::Exscan,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Program::AllReduce => "all_reduce",
            Program::Broadcast => "broadcast",
            Program::Reduce => "reduce",
            Program::AllGather => "all_gather",
            Program::ReduceScatter => "reduce_scatter",
            Program::AllToAll => "all_to_all",
            Program::Gather => "gather",
            Program::Scatter => "scatter",
            Program::SendRecv => "sendrecv",
            Program::Barrier => "barrier",
            Program::AllGatherV => "all_gather_v",
            Program::ReduceScatterV => "reduce_scatter_v",
            Program::AllToAllV => "all_to_all_v",
            Program::GatherV => "gather_v",
            Program::ScatterV => "scatter_v",
            Program::Scan => "scan",
            Program::Exscan => "exscan",
        }
    }

    /// The program with this name; nccl-tests' spellings (`alltoall`) are known too.
    pub fn from_name(name: &str) -> Option<Program> {
        let bare = |name: &str| name.to_ascii_lowercase().replace(['_', '-'], "");
        Program::ALL.iter().copied().find(|program| bare(program.name()) == bare(name))
    }

    /// Whether it takes an operator.
    pub fn reduces(self) -> bool {
        use Program::{AllReduce, Exscan, Reduce, ReduceScatter, ReduceScatterV, Scan};
        matches!(self, AllReduce | Exscan | Reduce | ReduceScatter | ReduceScatterV | Scan)
    }

    /// Whether it takes this operator: scans have no number of ranks to divide by, and no scalars.
    pub fn takes(self, op: Op) -> bool {
        self.reduces() && !(matches!(self, Program::Scan | Program::Exscan) && matches!(op, Op::Avg | Op::MulSum))
    }

    /// Whether it has a root.
    pub fn rooted(self) -> bool {
        use Program::{Broadcast, Gather, GatherV, Reduce, Scatter, ScatterV};
        matches!(self, Broadcast | Gather | GatherV | Reduce | Scatter | ScatterV)
    }

    /// The collective that it calls; none where it is made of messages.
    pub fn collective(self) -> Option<Collective> {
        match self {
            Program::AllReduce => Some(Collective::AllReduce),
            Program::Broadcast => Some(Collective::Broadcast),
            Program::Reduce => Some(Collective::Reduce),
            Program::AllGather => Some(Collective::AllGather),
            Program::ReduceScatter => Some(Collective::ReduceScatter),
            Program::AllToAll => Some(Collective::AllToAll),
            Program::Gather => Some(Collective::Gather),
            Program::Scatter => Some(Collective::Scatter),
            Program::Barrier => Some(Collective::Barrier),
            Program::AllGatherV => Some(Collective::AllGatherV),
            Program::ReduceScatterV => Some(Collective::ReduceScatterV),
            Program::SendRecv
            | Program::AllToAllV
            | Program::GatherV
            | Program::ScatterV
            | Program::Scan
            | Program::Exscan => None,
        }
    }

    /// The program that calls a collective, where [`Program::collective`] names that.
    pub fn of(collective: Collective) -> Option<Program> {
        Program::ALL.iter().copied().find(|program| program.collective() == Some(collective))
    }

    /// Whether it has a count for each rank.
    pub fn is_vector(self) -> bool {
        use Program::{AllGatherV, AllToAllV, GatherV, ReduceScatterV, ScatterV};
        matches!(self, AllGatherV | ReduceScatterV | AllToAllV | GatherV | ScatterV)
    }

    /// Whether its size is that of all ranks' blocks together.
    pub fn has_blocks(self) -> bool {
        use Program::{AllReduce, Barrier, Broadcast, Exscan, Reduce, Scan, SendRecv};
        !matches!(self, AllReduce | Broadcast | Reduce | SendRecv | Barrier | Scan | Exscan)
    }

    /// Bus bandwidth over algorithm bandwidth at `world` ranks: the share of the size that must cross each rank's link.
    pub fn bus_factor(self, world: u32) -> f64 {
        let ranks = f64::from(world);
        match self {
            Program::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Program::Broadcast | Program::Reduce | Program::SendRecv | Program::Scan | Program::Exscan => 1.0,
            Program::Barrier => 0.0,
            Program::AllGather
            | Program::ReduceScatter
            | Program::AllToAll
            | Program::Gather
            | Program::Scatter
            | Program::AllGatherV
            | Program::ReduceScatterV
            | Program::AllToAllV
            | Program::GatherV
            | Program::ScatterV => (ranks - 1.0) / ranks,
        }
    }
}

/// One collective of one size, as one rank sees it.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Which collective.
    pub program: Program,
    /// This rank.
    pub rank: u32,
    /// The root, where there is one.
    pub root: u32,
    /// Elements of each rank's block.
    pub counts: Vec<usize>,
    /// `all_to_all_v`: what this rank sends to each; else empty.
    pub sends: Vec<usize>,
    /// `all_to_all_v`: what this rank receives from each; else empty.
    pub receives: Vec<usize>,
}

/// Whose elements a stretch of a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The input of this rank.
    Of(u32),
    /// The reduction of all inputs.
    Reduced,
    /// The reduction of the inputs of this many ranks, from rank 0 on.
    First(u32),
}

/// A stretch of the output.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// Where it begins in the output.
    pub at: usize,
    /// Its elements.
    pub length: usize,
    /// Whose they are.
    pub source: Source,
    /// Where they begin there.
    pub index: usize,
}

impl Shape {
    /// The shape of `program` for `elements` in all, in nccl-tests' sense: of each rank's buffer for all_reduce,
    /// broadcast, reduce and sendrecv, and of all blocks together for the others. The blocks of vector forms are
    /// uneven, some of them empty.
    ///
    /// # Errors
    /// [`rsccl::error::Kind::InvalidArgument`] where the root is no rank.
    pub fn new(program: Program, (rank, world): (u32, u32), root: u32, elements: usize) -> Result<Shape> {
        if root >= world {
            return Err(Error::invalid_argument(format!("root {root} is out of range: the world has {world} ranks")));
        }
        let ranks = world as usize;
        let counts = match program {
            Program::Barrier => vec![0; ranks],
            _ if program.is_vector() => uneven(ranks, elements),
            _ if program.has_blocks() => vec![elements / ranks; ranks],
            _ => vec![elements; ranks],
        };
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        if program == Program::AllToAllV {
            sends = sends_of(&counts, rank);
            receives = (0..world).map(|from| sends_of(&counts, from)[rank as usize]).collect();
        }
        Ok(Shape { program, rank, root, counts, sends, receives })
    }

    /// The number of ranks.
    pub fn world(&self) -> u32 {
        u32::try_from(self.counts.len()).expect("made from a number of ranks")
    }

    /// Elements that the bandwidth counts.
    pub fn elements(&self) -> usize {
        if self.program.has_blocks() { self.counts.iter().sum() } else { self.mine() }
    }

    /// The count of one rank, for tables; the mean of vector forms.
    pub fn count(&self) -> usize {
        if self.program.has_blocks() { self.elements() / self.counts.len() } else { self.mine() }
    }

    /// The count that the library's call takes.
    pub fn call_count(&self) -> CallCount {
        match self.program {
            Program::GatherV | Program::ScatterV if !self.at_root() => CallCount::Each(self.mine() as u64),
            Program::AllGatherV | Program::ReduceScatterV | Program::GatherV | Program::ScatterV => {
                CallCount::PerRank(self.counts.iter().map(|count| *count as u64).collect())
            }
            _ => CallCount::Each(self.mine() as u64),
        }
    }

    /// Whether this rank is the root.
    pub fn at_root(&self) -> bool {
        self.rank == self.root
    }

    /// Elements of this rank's input. They begin at index 0.
    pub fn input(&self) -> usize {
        let total = || self.counts.iter().sum();
        match self.program {
            Program::AllReduce | Program::Reduce | Program::SendRecv | Program::Scan | Program::Exscan => self.mine(),
            Program::AllGather | Program::AllGatherV | Program::Gather | Program::GatherV => self.mine(),
            Program::Broadcast if self.at_root() => self.mine(),
            Program::Scatter | Program::ScatterV if self.at_root() => total(),
            Program::Broadcast | Program::Scatter | Program::ScatterV | Program::Barrier => 0,
            Program::ReduceScatter | Program::ReduceScatterV | Program::AllToAll => total(),
            Program::AllToAllV => self.sends.iter().sum(),
        }
    }

    /// Elements of this rank's output.
    pub fn output(&self) -> usize {
        let total = || self.counts.iter().sum();
        match self.program {
            Program::AllReduce | Program::Reduce | Program::SendRecv | Program::Broadcast => self.mine(),
            Program::Scatter | Program::ScatterV | Program::ReduceScatter | Program::ReduceScatterV => self.mine(),
            Program::Scan | Program::Exscan => self.mine(),
            Program::Gather | Program::GatherV if self.at_root() => total(),
            Program::Gather | Program::GatherV | Program::Barrier => 0,
            Program::AllGather | Program::AllGatherV | Program::AllToAll => total(),
            Program::AllToAllV => self.receives.iter().sum(),
        }
    }

    /// Indices that any rank's elements have.
    pub fn indices(&self) -> usize {
        self.counts.iter().sum()
    }

    /// What the output must hold. What lies in no segment is not touched.
    pub fn segments(&self) -> Vec<Segment> {
        let whole = |source: Source, index: usize| vec![Segment { at: 0, length: self.mine(), source, index }];
        let from_all = |index: usize| {
            let blocks = (0..self.world()).map(|rank| Segment {
                at: self.before(rank),
                length: self.counts[rank as usize],
                source: Source::Of(rank),
                index,
            });
            blocks.collect()
        };
        match self.program {
            Program::AllReduce => whole(Source::Reduced, 0),
            Program::Reduce if self.at_root() => whole(Source::Reduced, 0),
            Program::ReduceScatter | Program::ReduceScatterV => whole(Source::Reduced, self.before(self.rank)),
            Program::Broadcast => whole(Source::Of(self.root), 0),
            Program::Scatter | Program::ScatterV => whole(Source::Of(self.root), self.before(self.rank)),
            Program::Scan => whole(Source::First(self.rank + 1), 0),
            Program::Exscan if self.rank > 0 => whole(Source::First(self.rank), 0),
            Program::SendRecv => whole(Source::Of(self.left()), 0),
            Program::AllGather | Program::AllGatherV => from_all(0),
            Program::Gather | Program::GatherV if self.at_root() => from_all(0),
            Program::AllToAll => from_all(self.before(self.rank)),
            Program::AllToAllV => self.segments_of_pairs(),
            Program::Reduce | Program::Gather | Program::GatherV | Program::Barrier | Program::Exscan => Vec::new(),
        }
    }

    /// Where input and output lie in the one buffer of the in-place form, where there is one.
    pub fn in_place(&self) -> Option<(usize, usize)> {
        match self.program {
            Program::AllReduce | Program::Broadcast | Program::Reduce | Program::Scan | Program::Exscan => Some((0, 0)),
            Program::AllGather | Program::AllGatherV => Some((self.before(self.rank), 0)),
            Program::Gather | Program::GatherV => Some((if self.at_root() { self.before(self.rank) } else { 0 }, 0)),
            Program::ReduceScatter | Program::ReduceScatterV => Some((0, self.before(self.rank))),
            Program::Scatter | Program::ScatterV => Some((0, if self.at_root() { self.before(self.rank) } else { 0 })),
            Program::AllToAll | Program::AllToAllV | Program::SendRecv | Program::Barrier => None,
        }
    }

    /// The rank that I send to in `sendrecv`.
    pub fn right(&self) -> u32 {
        (self.rank + 1) % self.world()
    }

    /// The rank that I receive from in `sendrecv`.
    pub fn left(&self) -> u32 {
        (self.rank + self.world() - 1) % self.world()
    }

    /// Elements of the blocks before that of `rank`.
    pub fn before(&self, rank: u32) -> usize {
        self.counts[..rank as usize].iter().sum()
    }

    fn segments_of_pairs(&self) -> Vec<Segment> {
        let mut at = 0;
        let mut segments = Vec::with_capacity(self.counts.len());
        for rank in 0..self.world() {
            let sends = sends_of(&self.counts, rank);
            let me = self.rank as usize;
            segments.push(Segment { at, length: sends[me], source: Source::Of(rank), index: sends[..me].iter().sum() });
            at += sends[me];
        }
        segments
    }

    fn mine(&self) -> usize {
        self.counts[self.rank as usize]
    }
}

/// What `rank` sends to each in `all_to_all_v`: others get other blocks, in no symmetry.
fn sends_of(counts: &[usize], rank: u32) -> Vec<usize> {
    let world = counts.len();
    (0..world).map(|to| counts[(2 * rank as usize + to) % world]).collect()
}

/// `elements` in uneven blocks, some of them empty.
fn uneven(ranks: usize, elements: usize) -> Vec<usize> {
    let weights: Vec<usize> = (0..ranks).map(|rank| (3 + 2 * rank) % 5).collect();
    let sum: usize = weights.iter().sum();
    let mut counts: Vec<usize> = weights.iter().map(|weight| elements / sum * weight).collect();
    counts[0] += elements - counts.iter().sum::<usize>();
    counts
}
