use super::*;

#[test]
fn names_and_codes_lead_back() {
    for collective in Collective::ALL {
        assert_eq!(Collective::from_name(collective.name()), Some(*collective));
        assert_eq!(Collective::from_code(collective.code()), Some(*collective));
    }
    assert_eq!(Collective::from_code(200), None);
}

/// An element of an input: whose, and which.
type Given = (u32, u64);

/// An element of an output: the elements that are reduced there, in rank order; none where it stays as it is.
type Got = Vec<Given>;

/// A call in the words of MPI's standard.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    collective: Collective,
    ranks: u32,
    root: u32,
    counts: &'a [u64],
}

impl Asked<'_> {
    fn count(&self, rank: u32) -> u64 {
        self.counts[rank as usize]
    }

    /// The displacement of a rank's block, as `displs` has it where blocks lie one behind the other.
    fn displacement(&self, rank: u32) -> u64 {
        (0..rank).map(|before| self.count(before)).sum()
    }

    fn all(&self) -> u64 {
        self.displacement(self.ranks)
    }

    /// The elements of a rank's input.
    fn input(&self, rank: u32) -> u64 {
        let is_root = rank == self.root;
        match self.collective {
            Collective::AllReduce | Collective::Reduce | Collective::Scan | Collective::Exscan => self.count(rank),
            Collective::AllGather | Collective::AllGatherV | Collective::Gather | Collective::GatherV => {
                self.count(rank)
            }
            Collective::Broadcast if is_root => self.count(rank),
            Collective::Scatter | Collective::ScatterV if is_root => self.all(),
            Collective::ReduceScatter | Collective::ReduceScatterV | Collective::AllToAll => self.all(),
            _ => 0,
        }
    }

    /// The output of a rank, element by element.
    fn output(&self, rank: u32) -> Vec<Got> {
        let is_root = rank == self.root;
        let folded = |ranks: Range<u32>, start: u64| -> Vec<Got> {
            (0..self.count(rank)).map(|at| ranks.clone().map(|owner| (owner, start + at)).collect()).collect()
        };
        let copied = |owner: u32, start: u64, count: u64| (start..start + count).map(move |at| vec![(owner, at)]);
        let of_each = |start: u64| -> Vec<Got> {
            (0..self.ranks).flat_map(|owner| copied(owner, start, self.count(owner))).collect()
        };
        let mine = self.displacement(rank);
        match self.collective {
            Collective::AllReduce => folded(0..self.ranks, 0),
            Collective::Reduce if is_root => folded(0..self.ranks, 0),
            Collective::ReduceScatter | Collective::ReduceScatterV => folded(0..self.ranks, mine),
            Collective::Scan => folded(0..rank + 1, 0),
            Collective::Exscan => folded(0..rank, 0),
            Collective::Broadcast => copied(self.root, 0, self.count(rank)).collect(),
            Collective::Scatter | Collective::ScatterV => copied(self.root, mine, self.count(rank)).collect(),
            Collective::AllGather | Collective::AllGatherV => of_each(0),
            Collective::Gather | Collective::GatherV if is_root => of_each(0),
            Collective::AllToAll => of_each(mine),
            _ => Vec::new(),
        }
    }

    fn blocks(&self, counts: Counts<'static>) -> CallBlocks<'static> {
        let root = self.collective.rooted().then(|| Rank::new(self.root));
        CallBlocks::new(self.collective, root, counts, self.ranks)
    }
}

/// Counts of up to seven ranks: equal ones, and where `vector` uneven ones with empty blocks at all places.
fn counts_of(ranks: u32, vector: bool) -> Vec<Counts<'static>> {
    const UNEVEN: [&[u64]; 4] = [&[3, 0, 2, 5, 1, 0, 4], &[0, 4, 0, 0, 7, 1, 1], &[0; 7], &[1, 2, 3, 4, 5, 6, 0]];
    match vector {
        true => UNEVEN.iter().map(|counts| Counts::PerRank(&counts[..ranks as usize])).collect(),
        false => [0, 1, 3].map(Counts::Each).to_vec(),
    }
}

/// Each collective of 1 to 7 ranks, of every root and counts of every kind.
fn for_each_call(mut look: impl FnMut(Asked<'_>, CallBlocks<'static>)) {
    for &collective in Collective::ALL {
        let counted = collective.definition().counted;
        let vector = matches!(counted, Counted::PerRank | Counted::AtRoot);
        for ranks in 1..=7 {
            for counts in counts_of(ranks, vector) {
                let each: Vec<u64> = (0..ranks).map(|rank| counts.of(Rank::new(rank))).collect();
                for root in 0..if collective.rooted() { ranks } else { 1 } {
                    let asked = Asked { collective, ranks, root, counts: &each };
                    // Those of messages have no blocks, or blocks of counts for each pair.
                    if !matches!(collective, Collective::Send | Collective::Recv | Collective::AllToAllV) {
                        look(asked, asked.blocks(counts));
                    }
                }
            }
        }
    }
}

#[test]
fn every_output_holds_what_mpi_says() {
    for_each_call(|asked, blocks| {
        for rank in 0..asked.ranks {
            let reader = Rank::new(rank);
            let expected = asked.output(rank);
            let lengths = blocks.lengths(reader).unwrap();
            let output = if asked.collective == Collective::Exscan { asked.count(rank) } else { expected.len() as u64 };
            assert_eq!(lengths, (asked.input(rank), output), "{asked:?}, rank {rank}");
            let mut got = vec![Got::new(); expected.len()];
            for owner in 0..asked.ranks {
                let Some(block) = blocks.between(Rank::new(owner), reader) else { continue };
                assert_eq!(block.owner.get(), owner);
                assert!(block.from + block.elements <= asked.input(owner), "{asked:?}: {block:?} to {rank}");
                for at in 0..block.elements {
                    got[usize::try_from(block.to + at).unwrap()].push((owner, block.from + at));
                }
            }
            assert_eq!(got, expected, "{asked:?}, rank {rank}");
        }
    });
}

#[test]
fn owners_are_those_who_have_something() {
    for_each_call(|asked, blocks| {
        for reader in (0..asked.ranks).map(Rank::new) {
            let has = |owner: &u32| blocks.between(Rank::new(*owner), reader).is_some();
            let owners: Vec<u32> = (0..asked.ranks).filter(has).collect();
            assert_eq!(blocks.owners(reader).collect::<Vec<_>>(), owners, "{asked:?}, {reader}");
        }
    });
}

/// What a rank has for itself stays where it is in the in-place form, and nobody else's block comes to lie on an input
/// that is still needed but where the whole buffers are one.
#[test]
fn in_place_each_rank_has_its_own_block() {
    for_each_call(|asked, blocks| {
        let definition = asked.collective.definition();
        for rank in (0..asked.ranks).map(Rank::new) {
            let start = blocks.counts.before(rank);
            let (input, output) = match definition.in_place() {
                Some(InPlace::Same) => (0, 0),
                Some(InPlace::InputInOutput) => (start, 0),
                Some(InPlace::OutputInInput) => (0, start),
                None => continue,
            };
            if let Some(own) = blocks.between(rank, rank) {
                assert_eq!(input + own.from, output + own.to, "{asked:?}, {rank}");
            }
        }
    });
    let forms = |collective: Collective| collective.definition().in_place();
    assert_eq!(forms(Collective::AllToAll), None);
    assert_eq!(forms(Collective::Barrier), None);
    assert_eq!(forms(Collective::GatherV), Some(InPlace::InputInOutput));
    assert_eq!(forms(Collective::ReduceScatterV), Some(InPlace::OutputInInput));
}

/// The blocks that a buffer holds fill it, in rank order.
#[test]
fn blocks_fill_their_buffers() {
    for_each_call(|asked, blocks| {
        for rank in (0..asked.ranks).map(Rank::new) {
            let (input, output) = asked.collective.definition().sides(rank.get() == asked.root);
            let lengths = blocks.lengths(rank).unwrap();
            for (holding, length) in [(input, lengths.0), (output, lengths.1)] {
                let mut end = 0;
                for (start, elements) in blocks.held(holding, rank) {
                    assert_eq!(start, end, "{asked:?}, {rank}");
                    end += elements;
                }
                assert_eq!(end, length, "{asked:?}, {rank}");
            }
        }
        let longest = (0..asked.ranks).map(|rank| asked.input(rank)).max();
        assert_eq!(blocks.longest_input(), longest, "{asked:?}");
    });
}

#[test]
fn what_cannot_be_counted_has_no_lengths() {
    let blocks = |collective, counts| CallBlocks::new(collective, None, counts, 4);
    assert_eq!(blocks(Collective::AllToAll, Counts::Each(u64::MAX / 2)).lengths(Rank::new(0)), None);
    assert_eq!(blocks(Collective::AllGatherV, Counts::PerRank(&[u64::MAX, 1, 0, 0])).lengths(Rank::new(0)), None);
    assert_eq!(blocks(Collective::ReduceScatter, Counts::Each(u64::MAX / 2)).longest_input(), None);
    // A rank that is none has no block.
    assert_eq!(Counts::PerRank(&[1, 2]).of(Rank::new(2)), 0);
    assert_eq!(Counts::PerRank(&[1, 2]).before(Rank::new(9)), 3);
}

/// Of a vector form whose counts the root alone knows, the others know their own block and where it is in their buffer.
#[test]
fn beside_the_root_a_rank_knows_its_own_block() {
    let seen = |collective, me| {
        let blocks = CallBlocks::new(collective, Some(Rank::new(0)), Counts::Each(5), 3);
        (blocks.lengths(Rank::new(me)).unwrap(), blocks.between(Rank::new(me), Rank::new(0)))
    };
    let (lengths, given) = seen(Collective::GatherV, 2);
    assert_eq!((lengths, given.map(|block| (block.from, block.elements))), ((5, 0), Some((0, 5))));
    let blocks = CallBlocks::new(Collective::ScatterV, Some(Rank::new(0)), Counts::Each(5), 3);
    let taken = blocks.between(Rank::new(0), Rank::new(2)).map(|block| (block.to, block.elements));
    assert_eq!((blocks.lengths(Rank::new(2)).unwrap(), taken), ((0, 5), Some((0, 5))));
}
