//! The cheapest tour through all GPUs: exact for few, by exchanges for many.

/// With at most this many GPUs the cheapest tour is found, else one that no exchange of parts makes cheaper.
pub(super) const EXACT: usize = 8;
/// What a hop costs where there is no way: more than all ways of a tour together, and little enough for sums.
pub(super) const NO_WAY: u64 = u64::MAX >> 8;

/// A way through all GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tour {
    pub(super) order: Vec<usize>,
    pub(super) cost: u64,
    /// Whether it is proved that none is cheaper.
    pub(super) exact: bool,
}

/// Where exchanges start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// With the tour that is given.
    Hint,
    /// With that one, and with the nearest GPU after each.
    Both,
}

/// What hops between places cost. Where tours begin and end outside, the last place is the outside, and the others are
/// GPUs.
pub(super) struct HopCosts {
    places: usize,
    hops: Vec<u64>,
    outside: bool,
}

impl HopCosts {
    /// Of a ring without `ends`; with them, what it costs to begin and to end at each GPU.
    pub(super) fn new(size: usize, hops: &[u64], ends: Option<(&[u64], &[u64])>) -> HopCosts {
        let Some((first, last)) = ends else { return HopCosts { places: size, hops: hops.to_vec(), outside: false } };
        let mut all = Vec::with_capacity((size + 1) * (size + 1));
        for (row, last) in hops.chunks(size).zip(last) {
            all.extend_from_slice(row);
            all.push(*last);
        }
        all.extend_from_slice(first);
        all.push(0);
        HopCosts { places: size + 1, hops: all, outside: true }
    }

    fn hop(&self, from: usize, to: usize) -> u64 {
        self.hops[from * self.places + to]
    }

    /// The cheapest tour; `None` once `left` steps are used up.
    pub(super) fn shortest(&self, start: (Option<&[usize]>, Start), left: &mut u64) -> Option<Tour> {
        let size = self.places - usize::from(self.outside);
        let (mut tour, exact) =
            if size <= EXACT { (self.exact(left)?, true) } else { (self.exchanged(start, left)?, false) };
        let cost = (0..tour.len()).map(|at| self.hop(tour[at], tour[(at + 1) % tour.len()])).sum();
        // A tour begins outside, or at GPU 0.
        let first = if self.outside { size } else { 0 };
        let at = tour.iter().position(|place| *place == first)?;
        tour.rotate_left(at);
        if self.outside {
            tour.remove(0);
        }
        Some(Tour { order: tour, cost, exact })
    }

    /// Held and Karp's: for each set of places and each last one of it, the cheapest way from the last place of all.
    fn exact(&self, left: &mut u64) -> Option<Vec<usize>> {
        let others = self.places - 1;
        let sets = 1_usize << others;
        spend(left, sets * others * others / 4)?;
        let mut best = vec![u64::MAX; sets * others];
        let mut before = vec![0; sets * others];
        for place in 0..others {
            best[(1 << place) * others + place] = self.hop(others, place);
        }
        for set in 1..sets {
            for last in (0..others).filter(|last| set >> last & 1 == 1) {
                let cost = best[set * others + last];
                for next in (0..others).filter(|next| set >> next & 1 == 0) {
                    let at = (set | 1 << next) * others + next;
                    let with = cost + self.hop(last, next);
                    if with < best[at] {
                        (best[at], before[at]) = (with, last);
                    }
                }
            }
        }
        let mut set = sets - 1;
        let mut last = (0..others).min_by_key(|last| best[set * others + last] + self.hop(*last, others))?;
        let mut tour = vec![others];
        while set != 0 {
            tour.push(last);
            let previous = before[set * others + last];
            set &= !(1 << last);
            last = previous;
        }
        tour.reverse();
        Some(tour)
    }

    fn exchanged(&self, (hint, start): (Option<&[usize]>, Start), left: &mut u64) -> Option<Vec<usize>> {
        let outside = self.outside.then_some(self.places - 1);
        let hint = hint.map(|hint| outside.into_iter().chain(hint.iter().copied()).collect());
        let nearest = (start == Start::Both || hint.is_none()).then(|| self.nearest_first());
        let mut best: Option<(u64, Vec<usize>)> = None;
        for mut tour in hint.into_iter().chain(nearest) {
            while self.exchange_parts(&mut tour, left)? | self.turn_parts(&mut tour, left)? {}
            let cost = (0..tour.len()).map(|at| self.hop(tour[at], tour[(at + 1) % tour.len()])).sum();
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, tour));
            }
        }
        best.map(|(_, tour)| tour)
    }

    fn nearest_first(&self) -> Vec<usize> {
        let mut tour = vec![self.places - 1];
        let mut free: Vec<usize> = (0..self.places - 1).collect();
        while let Some(at) = (0..free.len()).min_by_key(|at| (self.hop(tour[tour.len() - 1], free[*at]), free[*at])) {
            tour.push(free.remove(at));
        }
        tour
    }

    /// Lets neighbouring parts of the tour change places where that makes it cheaper; whether any did.
    fn exchange_parts(&self, tour: &mut [usize], left: &mut u64) -> Option<bool> {
        let (count, mut any) = (tour.len(), false);
        for (one, two) in (1..count).flat_map(|one| (one + 1..count).map(move |two| (one, two))) {
            spend(left, count - two)?;
            let cut = self.hop(tour[one - 1], tour[one]) + self.hop(tour[two - 1], tour[two]);
            let joined = self.hop(tour[one - 1], tour[two]);
            // The parts are `one..two` and `two..three`.
            let cheaper = |three: &usize| {
                let (last, after) = (tour[three - 1], tour[three % count]);
                let now = joined + self.hop(last, tour[one]) + self.hop(tour[two - 1], after);
                now < cut + self.hop(last, after)
            };
            if let Some(three) = (two + 1..=count).find(cheaper) {
                tour[one..three].rotate_left(two - one);
                any = true;
            }
        }
        Some(any)
    }

    /// Turns parts of the tour round where that makes it cheaper; whether any was.
    fn turn_parts(&self, tour: &mut [usize], left: &mut u64) -> Option<bool> {
        let (count, mut any) = (tour.len(), false);
        for one in 1..count {
            spend(left, count - one)?;
            let (mut there, mut back) = (0, 0);
            for two in one + 1..count {
                there += self.hop(tour[two - 1], tour[two]);
                back += self.hop(tour[two], tour[two - 1]);
                let (before, after) = (tour[one - 1], tour[(two + 1) % count]);
                let turned = self.hop(before, tour[two]) + back + self.hop(tour[one], after);
                if turned < self.hop(before, tour[one]) + there + self.hop(tour[two], after) {
                    tour[one..=two].reverse();
                    any = true;
                    break;
                }
            }
        }
        Some(any)
    }
}

/// Takes steps from those that are left; `None` when they are used up.
fn spend(left: &mut u64, steps: usize) -> Option<()> {
    *left = left.saturating_sub(steps as u64);
    (*left > 0).then_some(())
}
