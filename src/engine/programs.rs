//! The programs that a communicator keeps, so that calls which come again are not planned again.

use std::collections::HashMap;

use crate::error::Result;
use crate::exec::{Call, CallCount, Program};
use crate::plan::{Count, Plan, Spec, Windows};
use crate::sync::primitive::Arc;
use crate::types::{Algorithm, Collective, Protocol, Rank, World};

/// What tells the programs of one communicator from each other: all else of a spec is the same for all of its calls.
/// Vector forms have a check sum in the place of the count, so that a hit still compares the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    collective: Collective,
    element_bytes: u32,
    root: Rank,
    count: u64,
    in_place: bool,
    means: Means,
}

/// With what the data of a call travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Means {
    pub(super) algorithm: Algorithm,
    pub(super) protocol: Protocol,
    pub(super) windows: Windows,
    /// Channels at most.
    pub(super) channels: u32,
}

/// The latest programs, as many as [`MOST_BYTES`] hold; where there is no more room, the one that was not used for
/// longest goes.
#[derive(Debug, Default)]
pub(super) struct Programs {
    /// The one that ran last: most loops call one thing again and again.
    latest: Option<(Key, Arc<Program>)>,
    kept: HashMap<Key, Kept>,
    /// For calls that differ in their counts alone (the key's count is 0): programs whose steps differ. All are in
    /// `kept` too.
    alike: HashMap<Key, Vec<Arc<Program>>>,
    /// Counts look-ups: tells which program was used when.
    clock: u64,
    bytes: usize,
    /// Programs that were planned, not counting those that share the steps of another, for tests and logs.
    builds: u64,
}

#[derive(Debug)]
struct Kept {
    program: Arc<Program>,
    used: u64,
}

impl Programs {
    /// The program of `call`: a kept one, or one built from `spec`.
    pub(super) fn of(
        &mut self,
        call: &Call<'_>,
        world: World,
        means: Means,
        spec: impl FnOnce() -> Spec,
    ) -> Result<Arc<Program>> {
        let key = Key {
            collective: call.collective,
            element_bytes: call.data_type.size(),
            root: call.root.unwrap_or_default(),
            count: check_sum(&call.count),
            in_place: call.in_place(world),
            means,
        };
        if let Some((latest, program)) = &self.latest
            && *latest == key
            && counts_match(&program.plan().spec.count, &call.count)
        {
            return Ok(Arc::clone(program));
        }
        self.clock += 1;
        let program = match self.kept.get_mut(&key) {
            Some(kept) if counts_match(&kept.program.plan().spec.count, &call.count) => {
                kept.used = self.clock;
                Arc::clone(&kept.program)
            }
            Some(_) | None => self.build(key, &spec())?,
        };
        self.latest = Some((key, Arc::clone(&program)));
        Ok(program)
    }

    /// The program of a count that is not kept: with the steps of another count, or planned anew.
    fn build(&mut self, key: Key, spec: &Spec) -> Result<Arc<Program>> {
        let alike = self.alike.entry(Key { count: 0, ..key }).or_default();
        let resize = |(place, program): (usize, &Arc<Program>)| {
            program.resized(spec).map(|resized| resized.map(|resized| (place, Arc::new(resized)))).transpose()
        };
        let program = match alike.iter().enumerate().rev().find_map(resize).transpose()? {
            Some((place, program)) => {
                // Of those that share the steps, the latest is kept for longest.
                alike[place] = Arc::clone(&program);
                program
            }
            None => {
                let program = Arc::new(Program::new(Plan::build(spec)?));
                self.builds += 1;
                self.bytes += program.shared_bytes();
                if alike.len() == MOST_ALIKE {
                    alike.remove(0);
                }
                alike.push(Arc::clone(&program));
                program
            }
        };
        self.bytes += program.bytes();
        if let Some(replaced) = self.kept.insert(key, Kept { program: Arc::clone(&program), used: self.clock }) {
            self.forget(key, replaced.program);
        }
        // The new one is the latest used, so it stays until it is alone.
        while self.bytes > MOST_BYTES && self.kept.len() > 1 {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key);
            let Some((key, gone)) = oldest.and_then(|oldest| self.kept.remove_entry(&oldest)) else { break };
            self.forget(key, gone.program);
        }
        Ok(program)
    }

    /// Takes a program that is no longer kept from the account.
    fn forget(&mut self, key: Key, gone: Arc<Program>) {
        let key = Key { count: 0, ..key };
        if let Some(alike) = self.alike.get_mut(&key) {
            alike.retain(|program| !Arc::ptr_eq(program, &gone));
            if alike.is_empty() {
                self.alike.remove(&key);
            }
        }
        self.bytes -= gone.bytes() + if gone.is_shared() { 0 } else { gone.shared_bytes() };
    }
}

/// The count, or a number made of all counts.
fn check_sum(count: &CallCount) -> u64 {
    match count {
        CallCount::Each(count) => *count,
        CallCount::PerRank(counts) => {
            counts.iter().fold(0, |sum: u64, count| (sum.rotate_left(5) ^ count).wrapping_mul(SPREAD))
        }
    }
}

fn counts_match(planned: &Count, called: &CallCount) -> bool {
    match (planned, called) {
        (Count::Each(planned), CallCount::Each(called)) => planned.0 == *called,
        (Count::PerRank(planned), CallCount::PerRank(called)) => {
            planned.iter().map(|count| count.0).eq(called.iter().copied())
        }
        (Count::Each(_), CallCount::PerRank(_)) | (Count::PerRank(_), CallCount::Each(_)) => false,
    }
}

/// Bytes of the programs that a communicator keeps. A program of a host of 8 ranks takes some 5 KB, so that over a
/// thousand different calls are kept; one of 1,024 ranks that all send to each other some 400 KB.
const MOST_BYTES: usize = 8 << 20;

/// Programs with different steps that are tried for a count that is not kept.
const MOST_ALIKE: usize = 4;

/// An odd number whose bits are spread: 2⁶⁴ divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::exec::Buffers;
    use crate::plan::{Layout, Limits};
    use crate::types::{DataType, Elements, ReduceOp};

    /// A host for each rank; one layout for all specs, as a communicator has.
    fn layout(ranks: u32) -> Arc<Layout> {
        thread_local! {
            static LAYOUTS: std::cell::RefCell<HashMap<u32, Arc<Layout>>> = std::cell::RefCell::default();
        }
        let hosts = || (0..ranks).map(|rank| vec![Rank::new(rank)]).collect::<Vec<_>>();
        let made = || Arc::new(Layout::of_hosts(&hosts()).unwrap());
        LAYOUTS.with_borrow_mut(|layouts| Arc::clone(layouts.entry(ranks).or_insert_with(made)))
    }

    fn look_up(programs: &mut Programs, ranks: u32, count: CallCount) -> Arc<Program> {
        let world = World { rank: Rank::new(0), size: ranks };
        let vector = matches!(count, CallCount::PerRank(_));
        let (collective, op) =
            if vector { (Collective::AllGatherV, None) } else { (Collective::AllReduce, Some(ReduceOp::Sum)) };
        let spec_count = match &count {
            CallCount::Each(count) => Count::Each(Elements(*count)),
            CallCount::PerRank(counts) => Count::PerRank(counts.iter().copied().map(Elements).collect()),
        };
        let buffers = Buffers::apart::<f32>(&[], &mut []);
        let call = Call { collective, data_type: DataType::F32, op, root: None, count, buffers };
        let (algorithm, protocol) = (Algorithm::Ring, Protocol::Simple);
        let means = Means { algorithm, protocol, windows: Windows::None, channels: 2 };
        let spec = || Spec {
            collective,
            world,
            root: Rank::new(0),
            count: spec_count,
            in_place: false,
            algorithm,
            protocol,
            windows: means.windows,
            layout: layout(ranks),
            limits: Limits { slot: Elements(1024), slots: 8, scratch: Elements(1024), channels: means.channels },
        };
        programs.of(&call, world, means, spec).unwrap()
    }

    /// Regression: the cache held 32 plans, first in, first out, so that a loop over 33 gradient buckets planned each
    /// of them in each iteration, for ever.
    #[test]
    fn two_hundred_counts_in_turn_share_one_plan() {
        let mut programs = Programs::default();
        for _ in 0..3 {
            for count in 0..200 {
                let program = look_up(&mut programs, 8, CallCount::Each(2000 + count));
                assert_eq!(program.plan().spec.count, Count::Each(Elements(2000 + count)));
            }
        }
        assert_eq!(programs.builds, 1, "all counts have the same steps");
        assert_eq!(programs.kept.len(), 200);
        assert!(programs.bytes <= MOST_BYTES);
        let one = look_up(&mut programs, 8, CallCount::Each(2000));
        assert!(Arc::ptr_eq(&one, &look_up(&mut programs, 8, CallCount::Each(2000))));
    }

    #[test]
    fn counts_of_each_rank_are_compared() {
        let mut programs = Programs::default();
        let counts = |last: u64| CallCount::PerRank(vec![3, 5, last]);
        for _ in 0..2 {
            for last in [7, 8, 7] {
                let program = look_up(&mut programs, 3, counts(last));
                assert!(counts_match(&program.plan().spec.count, &counts(last)));
            }
        }
        assert_eq!((programs.builds, programs.kept.len()), (1, 2));
        look_up(&mut programs, 3, counts(0));
        assert_eq!(programs.builds, 2, "a block without elements has no steps");
        assert!(!counts_match(&Count::PerRank(vec![Elements(3)]), &CallCount::PerRank(vec![3, 5])));
        assert!(!counts_match(&Count::PerRank(vec![Elements(3)]), &CallCount::Each(3)));
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let mut programs = Programs::default();
        let often = CallCount::Each(1);
        look_up(&mut programs, 256, often.clone());
        let size = look_up(&mut programs, 256, CallCount::Each(100_000)).bytes();
        let fit = u64::try_from(MOST_BYTES / size).unwrap();
        assert!(fit >= 200, "a count of 256 ranks takes {size} bytes");
        for count in 1..2 * fit {
            look_up(&mut programs, 256, CallCount::Each(100_000 + count));
            look_up(&mut programs, 256, often.clone());
            assert!(programs.bytes <= MOST_BYTES);
            assert_eq!(programs.bytes, held(&programs));
        }
        assert_eq!(programs.builds, 2, "what is used between all others is built once, and the others share a plan");
        let latest = look_up(&mut programs, 256, CallCount::Each(100_000 + 2 * fit - 1));
        let again = look_up(&mut programs, 256, CallCount::Each(100_000));
        assert!(!Arc::ptr_eq(&latest, &again));
        assert_eq!(programs.builds, 2, "what was not used for longest has gone, and its steps have stayed");
    }

    /// Where steps differ, all of what they take goes with the last program that has them.
    #[test]
    fn memory_of_steps_is_bounded_too() {
        let mut programs = Programs::default();
        // Each of these counts leaves another rank without elements, and so has steps of its own.
        let counts =
            |hole: u64| CallCount::PerRank((0..256).map(|rank| u64::from(rank != hole % 256) + hole / 256).collect());
        for hole in 0..256 {
            look_up(&mut programs, 256, counts(hole));
            assert!(programs.bytes <= MOST_BYTES);
            assert_eq!(programs.bytes, held(&programs));
        }
        assert_eq!(programs.builds, 256);
        assert!(programs.kept.len() < 256, "{} programs of {} bytes", programs.kept.len(), programs.bytes);
        assert!(programs.alike.values().all(|alike| alike.len() <= MOST_ALIKE));
    }

    /// The bytes of all programs, counted from the programs themselves.
    fn held(programs: &Programs) -> usize {
        let mut seen: Vec<Arc<Program>> = Vec::new();
        for kept in programs.kept.values() {
            if !seen.iter().any(|program| program.shares_steps_with(&kept.program)) {
                seen.push(Arc::clone(&kept.program));
            }
        }
        let own: usize = programs.kept.values().map(|kept| kept.program.bytes()).sum();
        own + seen.iter().map(|program| program.shared_bytes()).sum::<usize>()
    }
}
