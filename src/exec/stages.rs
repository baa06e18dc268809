//! How the buffers of a call lie in stages: memory of each rank that the rank which launches for all can reach.
//!
//! A call whose buffers are too long for a stage becomes several, its pieces: each takes a range of every block. A
//! stage holds the blocks of a piece close together, those of the input first.

use crate::device::{Home, Place};
use crate::exec::{Buffers, Call, CallCount};
use crate::types::{Holding, Rank, World};

/// A call, cut into pieces that fit into stages.
#[derive(Debug)]
pub struct Stages<'a> {
    call: &'a Call<'a>,
    world: World,
    element: u64,
    /// Elements of a block in one piece, at most.
    piece: u64,
    pieces: u64,
}

/// One of a rank's two buffers in a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedSide {
    /// The blocks: the offset in the user's buffer and the length, in bytes.
    pub blocks: Vec<(u64, u64)>,
    /// Where the first of them lies in the stage.
    pub stage: u64,
}

impl<'a> Stages<'a> {
    /// A call that has been checked, with stages of `bytes`.
    pub fn new(call: &'a Call<'a>, world: World, bytes: usize) -> Stages<'a> {
        let element = u64::from(call.data_type.size());
        let many = |holding| match holding {
            Holding::Nothing => 0,
            Holding::One => 1,
            Holding::Each => u64::from(world.size),
        };
        // At the root, which has the most.
        let (input, output) = call.collective.definition().sides(true);
        let blocks: u64 = many(input) + many(output);
        let most = (bytes as u64).saturating_sub(GRAIN) / element / blocks.max(1);
        // Whole lines, where there is room for one.
        let piece = if most >= LINE { most / LINE * LINE } else { most.max(1) };
        let longest = call.count.counts().longest();
        Stages { call, world, element, piece, pieces: longest.div_ceil(piece).max(1) }
    }

    /// How many calls it becomes.
    pub fn pieces(&self) -> u64 {
        self.pieces
    }

    /// The count of a piece.
    pub fn count(&self, piece: u64) -> CallCount {
        match &self.call.count {
            CallCount::Each(count) => CallCount::Each(self.cut(*count, piece)),
            CallCount::PerRank(counts) => {
                CallCount::PerRank(counts.iter().map(|count| self.cut(*count, piece)).collect())
            }
        }
    }

    /// A rank's input and output in a piece.
    pub fn sides(&self, rank: Rank, piece: u64) -> [StagedSide; 2] {
        let (input, output) = self.call.collective.definition().sides(self.call.root.is_none_or(|root| root == rank));
        let [input, output] = [input, output].map(|holding| self.blocks(holding, rank, piece));
        let behind = input.iter().map(|(_, bytes)| bytes).sum::<u64>().next_multiple_of(GRAIN);
        [StagedSide { blocks: input, stage: 0 }, StagedSide { blocks: output, stage: behind }]
    }

    /// Lends `plan` the call that a piece is for `rank`, with its input and output at these addresses of `home`. The
    /// call must only be planned, because nobody vouches for the addresses.
    pub fn planned<T>(
        &self,
        (rank, piece): (Rank, u64),
        (places, home): ([u64; 2], Home),
        plan: impl FnOnce(&Call<'_>) -> T,
    ) -> T {
        let sides = self.sides(rank, piece);
        let [input, output] = [0, 1].map(|side: usize| Place {
            address: std::ptr::without_provenance_mut(usize::try_from(places[side]).unwrap_or(0)),
            bytes: usize::try_from(sides[side].bytes()).unwrap_or(0),
            home,
        });
        let Call { collective, data_type, op, root, .. } = *self.call;
        // SAFETY: nothing follows these addresses: `plan` plans.
        let buffers = unsafe { Buffers::from_places(input, output) };
        plan(&Call { collective, data_type, op, root, count: self.count(piece), buffers })
    }

    /// The offset and the length in bytes of what the piece has of each block.
    fn blocks(&self, holding: Holding, rank: Rank, piece: u64) -> Vec<(u64, u64)> {
        let cut = |(before, count): (u64, u64)| {
            let start = before + (self.piece * piece).min(count);
            (start * self.element, self.cut(count, piece) * self.element)
        };
        self.call.blocks(self.world).held(holding, rank).map(cut).collect()
    }

    /// Elements of a piece of a block of `count`.
    fn cut(&self, count: u64, piece: u64) -> u64 {
        count.saturating_sub(self.piece * piece).min(self.piece)
    }
}

impl StagedSide {
    /// Whether a program finds the blocks in the user's buffer as it does in a stage: one behind the other.
    pub fn is_whole(&self) -> bool {
        self.blocks.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0)
    }

    /// The offset in the user's buffer of the first block.
    pub fn start(&self) -> u64 {
        self.blocks.first().map_or(0, |(start, _)| *start)
    }

    /// Offsets in the user's buffer and in the stage of each block, and its length; blocks without bytes are left out.
    pub fn copies(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let mut staged = self.stage;
        let placed = self.blocks.iter().map(move |(start, bytes)| {
            let at = staged;
            staged += bytes;
            (*start, at, *bytes)
        });
        placed.filter(|(_, _, bytes)| *bytes > 0)
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Where outputs begin in a stage: a multiple of this, in bytes.
const GRAIN: u64 = 256;
/// Elements of which a piece has a multiple.
const LINE: u64 = 64;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::types::{Collective, DataType, ReduceOp};

    fn call(collective: Collective, count: CallCount) -> Call<'static> {
        let op = collective.reduces().then_some(ReduceOp::Sum);
        let root = collective.rooted().then_some(Rank::new(1));
        Call { collective, data_type: DataType::F32, op, root, count, buffers: Buffers::none() }
    }

    /// The pieces of a call cover each buffer once, in order, and fit their stages.
    #[test]
    fn pieces_cover_the_buffers_and_fit_the_stages() {
        let per_rank = |counts: [u64; 3]| CallCount::PerRank(counts.to_vec());
        let cases = [
            (Collective::AllReduce, CallCount::Each(1000)),
            (Collective::Broadcast, CallCount::Each(0)),
            (Collective::Reduce, CallCount::Each(77)),
            (Collective::AllGather, CallCount::Each(500)),
            (Collective::AllGatherV, per_rank([3, 0, 900])),
            (Collective::ReduceScatter, CallCount::Each(333)),
            (Collective::ReduceScatterV, per_rank([100, 200, 1])),
            (Collective::AllToAll, CallCount::Each(129)),
            (Collective::Gather, CallCount::Each(64)),
            (Collective::Scatter, CallCount::Each(65)),
            (Collective::Barrier, CallCount::Each(0)),
        ];
        for (collective, count) in cases {
            let call = call(collective, count);
            for bytes in [1 << 11, 1 << 12, 1 << 20] {
                for rank in 0..3 {
                    let world = World { rank: Rank::new(rank), size: 3 };
                    let stages = Stages::new(&call, world, bytes);
                    let lengths = call.lengths(world).unwrap();
                    let mut covered = [0, 0];
                    for piece in 0..stages.pieces() {
                        let sides = stages.sides(world.rank, piece);
                        let end = sides[1].stage + sides[1].bytes();
                        assert!(end <= bytes as u64, "{collective}, {bytes}: {end}");
                        covered = [0, 1].map(|side: usize| covered[side] + sides[side].bytes());
                        let piece_call =
                            Call { count: stages.count(piece), buffers: Buffers::none(), ..call_of(&call) };
                        let (input, output) = piece_call.lengths(world).unwrap();
                        assert_eq!([input.0 * 4, output.0 * 4], sides.map(|side| side.bytes()), "{collective}");
                    }
                    assert_eq!(covered, [lengths.0.0 * 4, lengths.1.0 * 4], "{collective}, {bytes}");
                }
            }
        }
    }

    fn call_of(call: &Call<'_>) -> Call<'static> {
        let Call { collective, data_type, op, root, .. } = *call;
        Call { collective, data_type, op, root, count: CallCount::Each(0), buffers: Buffers::none() }
    }

    #[test]
    fn a_piece_of_several_blocks_takes_a_range_of_each() {
        let call = call(Collective::AllGather, CallCount::Each(100));
        let world = World { rank: Rank::new(0), size: 2 };
        let stages = Stages::new(&call, world, 256 + 64 * 4 * 3);
        assert_eq!((stages.pieces(), stages.count(1)), (2, CallCount::Each(36)));
        let [input, output] = stages.sides(Rank::new(0), 1);
        assert_eq!((input.start(), input.is_whole(), output.is_whole()), (256, true, false));
        assert_eq!(output.copies().collect::<Vec<_>>(), [(256, 256, 144), (656, 400, 144)]);
    }
}
