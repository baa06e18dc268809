//! The scan of the host's executor, round by round: which piece a rank sends and receives, and what it folds then. The
//! executor (`exec::composed`) moves the messages and runs the folds, and decides nothing.
//!
//! A scan doubles the reach of what each rank knows in every round: in the round of distance d, rank r sends the
//! reduction of its last d inputs to rank r + d, and folds what comes from rank r − d before its own. A long scan goes
//! in pieces, and along a chain where that takes fewer rounds: each rank folds what comes from the rank below before
//! its own.
//!
//! A rank begins a round when it has folded what the one before has brought. What it sends in a round stays as it is
//! until the round is over; a piece that comes lies in [`ScanPlace::Arriving`] until then.

use crate::types::{Rank, World};

/// The order in which a scan folds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanOrder {
    /// By doubling: the order in which inputs are folded depends on the ranks alone.
    Doubling,
    /// Along a chain.
    Chain,
}

impl ScanOrder {
    /// The order that takes fewer rounds for this many pieces: a chain passes each piece once, but has to fill.
    pub(crate) fn quicker(pieces: usize, ranks: u32) -> ScanOrder {
        let doublings = ranks.next_power_of_two().trailing_zeros() as usize;
        let is_chain = pieces + ranks as usize - 1 < pieces * doublings;
        if is_chain { ScanOrder::Chain } else { ScanOrder::Doubling }
    }
}

/// Where a rank has elements of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanPlace {
    /// The piece's part of the input.
    Input,
    /// The piece's part of the output, which in place is that of the input.
    Output,
    /// Room for one piece: of an exscan the reduction of the rank's last inputs, its own last. Of a scan the output is
    /// that.
    Known,
    /// Room for one piece: what a round has brought.
    Arriving,
}

/// One fold of a piece: what came from lower ranks, before what the rank has itself. Without the first it is a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScanFold {
    pub(crate) piece: usize,
    pub(crate) lower: Option<ScanPlace>,
    pub(crate) own: ScanPlace,
    pub(crate) target: ScanPlace,
}

/// What one rank does in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScanRound {
    /// To whom the rank sends which piece, and where that lies.
    pub(crate) sends: Option<(Rank, usize, ScanPlace)>,
    /// From whom which piece comes, to [`ScanPlace::Arriving`].
    pub(crate) receives: Option<(Rank, usize)>,
    /// What the rank folds when it has sent and received, one after the other.
    pub(crate) folds: [Option<ScanFold>; 2],
}

/// The rounds of one rank's scan or exscan, piece by piece: while a rank folds one piece, what it has sent of others is
/// under way, and what it holds of a piece stays in the caches.
#[derive(Debug, Clone)]
pub(crate) struct ScanRounds {
    world: World,
    exclusive: bool,
    order: ScanOrder,
    pieces: usize,
    piece: usize,
    /// By doubling: how far what the next round sends goes.
    distance: u32,
    /// Whether this rank has nothing of the piece but its input.
    is_fresh: bool,
}

impl ScanRounds {
    /// A scan, or an `exclusive` one, of this many pieces. One of none has the rounds of one piece, so that ranks which
    /// disagree notice.
    pub(crate) fn new(world: World, exclusive: bool, pieces: usize, order: ScanOrder) -> ScanRounds {
        ScanRounds { world, exclusive, order, pieces: pieces.max(1), piece: 0, distance: 1, is_fresh: true }
    }

    fn doubling_round(&mut self) -> Option<ScanRound> {
        let (me, piece) = (self.world.rank.get(), self.piece);
        if piece == self.pieces {
            return None;
        }
        if self.distance >= self.world.size {
            let folds = [self.own_output(piece), None];
            (self.piece, self.distance, self.is_fresh) = (piece + 1, 1, true);
            return Some(ScanRound { sends: None, receives: None, folds });
        }
        let distance = self.distance;
        self.distance = distance.saturating_mul(2);
        let sends = self.sends_at(distance).then(|| (Rank::new(me + distance), piece, self.held()));
        let receives = me.checked_sub(distance).map(|below| (Rank::new(below), piece));
        let folds = match receives {
            Some(_) => self.take_in(piece, self.sends_at(self.distance)),
            None => [None; 2],
        };
        Some(ScanRound { sends, receives, folds })
    }

    /// Receives a piece from below, and sends the one before it, which has been folded; rank 0 sends its input.
    fn chain_round(&mut self) -> Option<ScanRound> {
        let (me, piece) = (self.world.rank.get(), self.piece);
        let (sends, comes) = (self.sends_at(1), piece < self.pieces);
        self.piece = (piece + 1).min(self.pieces + 1);
        let above = Rank::new(me + 1);
        if me == 0 {
            let sends = sends.then_some((above, piece, ScanPlace::Input));
            return comes.then(|| ScanRound { sends, receives: None, folds: [self.own_output(piece), None] });
        }
        // The piece before, which the last round has brought.
        let before = piece.checked_sub(1).filter(|before| sends && *before < self.pieces);
        let sends_before = before.map(|before| (above, before, self.held()));
        let receives = comes.then(|| (Rank::new(me - 1), piece));
        self.is_fresh = true;
        let folds = if comes { self.take_in(piece, sends) } else { [None; 2] };
        (sends_before.is_some() || comes).then_some(ScanRound { sends: sends_before, receives, folds })
    }

    /// Folds what has arrived before what this rank holds; `sends` it afterwards or not.
    fn take_in(&mut self, piece: usize, sends: bool) -> [Option<ScanFold>; 2] {
        let (held, was_fresh) = (self.held(), std::mem::replace(&mut self.is_fresh, false));
        let fold = |own, target| ScanFold { piece, lower: Some(ScanPlace::Arriving), own, target };
        if !self.exclusive {
            return [Some(fold(held, ScanPlace::Output)), None];
        }
        // Before the output: in place that is the input, which is read here.
        let known = sends.then(|| fold(held, ScanPlace::Known));
        let output = match was_fresh {
            true => ScanFold { piece, lower: None, own: ScanPlace::Arriving, target: ScanPlace::Output },
            false => fold(ScanPlace::Output, ScanPlace::Output),
        };
        [known, Some(output)]
    }

    /// Rank 0 receives nothing: its scan is its input, and its exscan is left as it was.
    fn own_output(&self, piece: usize) -> Option<ScanFold> {
        let copy = ScanFold { piece, lower: None, own: ScanPlace::Input, target: ScanPlace::Output };
        (self.is_fresh && !self.exclusive).then_some(copy)
    }

    /// Whether this rank sends over this distance.
    fn sends_at(&self, distance: u32) -> bool {
        distance < self.world.size - self.world.rank.get()
    }

    /// Where the reduction of this rank's last inputs lies.
    fn held(&self) -> ScanPlace {
        match (self.is_fresh, self.exclusive) {
            (true, _) => ScanPlace::Input,
            (false, false) => ScanPlace::Output,
            (false, true) => ScanPlace::Known,
        }
    }
}

impl Iterator for ScanRounds {
    type Item = ScanRound;

    fn next(&mut self) -> Option<ScanRound> {
        match self.order {
            ScanOrder::Doubling => self.doubling_round(),
            ScanOrder::Chain => self.chain_round(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an element holds: the ranks whose inputs were reduced, first and last, and the order in which they were.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Reduced {
        first: u32,
        last: u32,
        order: String,
    }

    impl Reduced {
        fn before(&self, above: &Reduced) -> Reduced {
            assert_eq!(self.last + 1, above.first, "{} before {}", self.order, above.order);
            let order = format!("({} {})", self.order, above.order);
            Reduced { first: self.first, last: above.last, order }
        }
    }

    /// A rank that runs its rounds on symbols. Each place holds a piece's number and what its elements are.
    struct Runner {
        rounds: ScanRounds,
        /// The round under way, and whether its message has been taken, and has come.
        round: Option<(ScanRound, bool, bool)>,
        /// By piece. In place the input is the output.
        input: Vec<Option<Reduced>>,
        output: Vec<Option<Reduced>>,
        in_place: bool,
        known: Option<(usize, Reduced)>,
        arriving: Option<(usize, Reduced)>,
    }

    impl Runner {
        fn at(&self, place: ScanPlace, piece: usize) -> Reduced {
            let of_piece = |held: &Option<(usize, Reduced)>| {
                let (number, value) = held.clone().expect("something is held");
                assert_eq!(number, piece, "another piece lies at {place:?}");
                value
            };
            match place {
                ScanPlace::Input if !self.in_place => self.input[piece].clone().expect("a piece of the input"),
                ScanPlace::Input | ScanPlace::Output => self.output[piece].clone().expect("the output was written"),
                ScanPlace::Known => of_piece(&self.known),
                ScanPlace::Arriving => of_piece(&self.arriving),
            }
        }

        fn fold(&mut self, fold: ScanFold) {
            let own = self.at(fold.own, fold.piece);
            let value = fold.lower.map_or(own.clone(), |lower| self.at(lower, fold.piece).before(&own));
            match fold.target {
                ScanPlace::Output => self.output[fold.piece] = Some(value),
                ScanPlace::Known => self.known = Some((fold.piece, value)),
                ScanPlace::Input | ScanPlace::Arriving => panic!("folds into {:?}", fold.target),
            }
        }

        /// Ends the round under way if its messages are through, and begins the next. Whether anything moved.
        fn go_on(&mut self) -> bool {
            match self.round {
                Some((round, true, true)) => {
                    round.folds.into_iter().flatten().for_each(|fold| self.fold(fold));
                    self.round = None;
                }
                Some(_) => return false,
                None => {}
            }
            self.round = self.rounds.next().map(|round| (round, round.sends.is_none(), round.receives.is_none()));
            self.round.is_some()
        }
    }

    /// Runs the rounds of all ranks, in which a send waits for its receiver, and returns what their outputs hold.
    fn run(
        size: u32,
        (exclusive, in_place): (bool, bool),
        pieces: usize,
        order: ScanOrder,
    ) -> Vec<Vec<Option<Reduced>>> {
        let runner = |rank: u32| {
            let own = Reduced { first: rank, last: rank, order: rank.to_string() };
            let input = vec![Some(own); pieces];
            let output = if in_place { input.clone() } else { vec![None; pieces] };
            let rounds = ScanRounds::new(World { rank: Rank::new(rank), size }, exclusive, pieces, order);
            Runner { rounds, round: None, input, output, in_place, known: None, arriving: None }
        };
        let mut ranks: Vec<Runner> = (0..size).map(runner).collect();
        let mut moves = true;
        while std::mem::take(&mut moves) {
            for rank in 0..ranks.len() {
                while ranks[rank].go_on() {
                    moves = true;
                }
                let Some((ScanRound { sends: Some((peer, piece, place)), .. }, false, _)) = ranks[rank].round else {
                    continue;
                };
                let Some((ScanRound { receives: Some((from, awaited)), .. }, _, false)) = ranks[peer.index()].round
                else {
                    continue;
                };
                if from.index() != rank {
                    continue;
                }
                assert_eq!(awaited, piece, "rank {rank} sends {peer} another piece");
                let value = ranks[rank].at(place, piece);
                ranks[peer.index()].arriving = Some((piece, value));
                ranks[rank].round.as_mut().expect("it is under way").1 = true;
                ranks[peer.index()].round.as_mut().expect("it is under way").2 = true;
                moves = true;
            }
        }
        let stuck = ranks.iter().position(|runner| runner.round.is_some());
        assert_eq!(stuck, None, "{size} ranks, {pieces} pieces, {order:?}: a rank waits for ever");
        ranks.into_iter().map(|runner| runner.output).collect()
    }

    #[test]
    fn every_output_is_the_scan_of_the_ranks_below() {
        for size in 1..=17 {
            for (pieces, order) in
                [1, 2, 3, 5].into_iter().flat_map(|pieces| [(pieces, ScanOrder::Doubling), (pieces, ScanOrder::Chain)])
            {
                for kind in [(false, false), (false, true), (true, false), (true, true)] {
                    let (exclusive, in_place) = kind;
                    for (rank, output) in (0_u32..).zip(run(size, kind, pieces, order)) {
                        let asked = if exclusive { rank.checked_sub(1).map(|last| (0, last)) } else { Some((0, rank)) };
                        // Rank 0 of an exscan keeps what it has.
                        let asked = asked.or(in_place.then_some((0, 0)));
                        for held in &output {
                            let held = held.as_ref().map(|held| (held.first, held.last));
                            assert_eq!(held, asked, "rank {rank} of {size}, {pieces} pieces, {order:?}, {kind:?}");
                        }
                        let same = output.iter().all(|held| *held == output[0]);
                        assert!(same, "the order of folds depends on the piece");
                    }
                }
            }
        }
    }

    /// Reproducible scans double: the number of pieces, and so the count, may not change the order of the folds.
    #[test]
    fn doubling_folds_in_an_order_that_depends_on_the_ranks_alone() {
        for size in 2..=17 {
            let order = |pieces| {
                run(size, (false, false), pieces, ScanOrder::Doubling).into_iter().map(|output| output[0].clone())
            };
            assert!(order(1).eq(order(4)), "{size} ranks");
        }
    }

    #[test]
    fn no_elements_take_the_rounds_of_one_piece() {
        let rounds = |pieces| ScanRounds::new(World { rank: Rank::new(1), size: 4 }, true, pieces, ScanOrder::Doubling);
        assert!(rounds(0).eq(rounds(1)) && rounds(0).count() > 1);
    }

    #[test]
    fn many_pieces_go_along_a_chain() {
        let orders = [0, 1, 4, 64].map(|pieces| ScanOrder::quicker(pieces, 8));
        assert_eq!(orders, [ScanOrder::Doubling, ScanOrder::Doubling, ScanOrder::Chain, ScanOrder::Chain]);
        assert_eq!(ScanOrder::quicker(64, 2), ScanOrder::Doubling, "of two ranks both are one round a piece");
    }
}
