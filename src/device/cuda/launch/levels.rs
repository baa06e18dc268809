//! Sorts the copies and folds of a launch into levels. No work of a level uses what other work of that level writes,
//! and each level runs after the level before it. So no kernel waits on the GPU: the order of the stream separates
//! levels.

use std::collections::BTreeMap;
use std::ops::Range;

use super::arguments::{Arguments, FoldOperand, FoldStep, PassKind};
use super::kernels::EntryPoint;

/// Copies and folds, added in an order in which they could run one by one.
#[derive(Debug, Default)]
pub(in crate::device::cuda) struct LaunchLevels {
    work: Vec<Work>,
    /// The operands of all work. A step names the place of its first operand.
    operands: Vec<FoldOperand>,
    touched: Touched,
}

/// A copy or fold.
#[derive(Debug, Clone, Copy)]
struct Work {
    level: u32,
    entry: EntryPoint,
    /// The bytes of each operand.
    bytes: u64,
    step: FoldStep,
}

/// One launch of a kernel: steps that do not need each other.
#[derive(Debug)]
pub(in crate::device::cuda) struct LevelLaunch {
    pub(in crate::device::cuda) entry: EntryPoint,
    pub(in crate::device::cuda) steps: Vec<FoldStep>,
    pub(in crate::device::cuda) operands: Vec<FoldOperand>,
    /// The bytes of each operand of the largest step.
    pub(in crate::device::cuda) bytes: u64,
}

impl LaunchLevels {
    /// Adds a pass of `count` elements at the first level after all work that it depends on.
    pub(in crate::device::cuda) fn put(&mut self, kind: PassKind, count: u64, (sources, targets): (&[u64], &[u64])) {
        // What is alone depends on nothing, so the first is marked when there is a second.
        if let [first] = self.work[..] {
            self.mark(&first);
        }
        let bytes = kind.bytes(count);
        let range = |address: &u64| *address..*address + bytes;
        let behind_reads = sources.iter().map(|source| self.touched.written(range(source)));
        let behind_writes = targets.iter().map(|target| self.touched.used(range(target)));
        let level = 1 + behind_reads.chain(behind_writes).max().unwrap_or(0);
        let step = kind.step(count, (number(self.operands.len()), number(sources.len())), number(targets.len()));
        self.operands.extend(sources.iter().chain(targets).map(|base| FoldOperand { base: *base, offset: 0 }));
        let work = Work { level, entry: kind.entry, bytes, step };
        if !self.work.is_empty() {
            self.mark(&work);
        }
        self.work.push(work);
    }

    /// Marks what work reads and writes.
    fn mark(&mut self, work: &Work) {
        let Work { level, bytes, step, .. } = *work;
        let operands = &self.operands[step.first_source as usize..][..(step.sources + step.targets) as usize];
        let (sources, targets) = operands.split_at(step.sources as usize);
        let range = |operand: &FoldOperand| operand.base..operand.base + bytes;
        sources.iter().for_each(|source| self.touched.mark(range(source), Use { read: level, written: 0 }));
        targets.iter().for_each(|target| self.touched.mark(range(target), Use { read: 0, written: level }));
    }

    /// The launches, in their order.
    pub(in crate::device::cuda) fn launches(mut self) -> Vec<LevelLaunch> {
        self.work.sort_by_key(|work| (work.level, work.entry.index()));
        let mut launches: Vec<LevelLaunch> = Vec::new();
        let alike = |one: &Work, next: &Work| (one.level, one.entry) == (next.level, next.entry);
        for group in self.work.chunk_by(alike) {
            let mut open: Option<LevelLaunch> = None;
            for work in group {
                let (first, all) = (work.step.first_source as usize, work.step.sources + work.step.targets);
                let operands = &self.operands[first..][..all as usize];
                // A launch whose steps do not fit its parameter needs a table, and tables are few: so begin another
                // launch instead.
                let is_full = |launch: &mut LevelLaunch| {
                    !Arguments::fit(launch.steps.len() + 1, launch.operands.len() + operands.len())
                };
                launches.extend(open.take_if(is_full));
                let empty = LevelLaunch { entry: work.entry, steps: Vec::new(), operands: Vec::new(), bytes: 0 };
                open.get_or_insert(empty).add(work, operands);
            }
            launches.extend(open);
        }
        launches
    }
}

impl LevelLaunch {
    fn add(&mut self, work: &Work, operands: &[FoldOperand]) {
        let first_source = number(self.operands.len());
        self.steps.push(FoldStep { first_source, first_target: first_source + work.step.sources, ..work.step });
        self.operands.extend_from_slice(operands);
        self.bytes = self.bytes.max(work.bytes);
    }
}

/// A place in the table of operands.
fn number(place: usize) -> u32 {
    u32::try_from(place).expect("fewer than 2^32 operands of a launch lie in memory")
}

/// The last levels that read and wrote some bytes; 0: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Use {
    read: u32,
    written: u32,
}

/// Which levels used which addresses: ranges that do not overlap, keyed by their beginnings, each with its end.
#[derive(Debug, Default)]
struct Touched {
    ranges: BTreeMap<u64, (u64, Use)>,
}

impl Touched {
    fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = Use> {
        let before = self.ranges.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let near = self.ranges.range(before..range.end.max(before));
        near.filter(move |(_, (end, _))| *end > range.start).map(|(_, (_, used))| *used)
    }

    fn written(&self, range: Range<u64>) -> u32 {
        self.overlapping(range).map(|used| used.written).max().unwrap_or(0)
    }

    fn used(&self, range: Range<u64>) -> u32 {
        self.overlapping(range).map(|used| used.written.max(used.read)).max().unwrap_or(0)
    }

    /// Splits the range that contains `address`, if there is one, at that address.
    fn split(&mut self, address: u64) {
        let Some((start, (end, used))) = self.ranges.range(..address).next_back().map(|(at, range)| (*at, *range))
        else {
            return;
        };
        if end > address {
            self.ranges.insert(start, (address, used));
            self.ranges.insert(address, (end, used));
        }
    }

    fn mark(&mut self, range: Range<u64>, by: Use) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let mut at = range.start;
        let mut gaps = Vec::new();
        for (start, (end, used)) in self.ranges.range_mut(range.clone()) {
            if *start > at {
                gaps.push(at..*start);
            }
            *used = Use { read: used.read.max(by.read), written: used.written.max(by.written) };
            at = *end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        self.ranges.extend(gaps.into_iter().map(|gap| (gap.start, (gap.end, by))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Average, Kernel};
    use crate::types::{DataType, ReduceOp};

    const LAST: (bool, Average) = (true, Average::Sum);

    /// Adds copies (from, to, bytes), and returns the targets of each level in the order of the launches.
    fn levels(copies: &[(u64, u64, u64)]) -> Vec<Vec<u64>> {
        let mut levels = LaunchLevels::default();
        for (from, into, bytes) in copies {
            levels.put(
                PassKind::new(&Kernel::copy(DataType::U8), 1, None, (false, Average::Sum)),
                *bytes,
                (&[*from], &[*into]),
            );
        }
        let targets = |launch: LevelLaunch| launch.operands.chunks(2).map(|pair| pair[1].base).collect();
        levels.launches().into_iter().map(targets).collect()
    }

    #[test]
    fn what_needs_nothing_of_the_others_shares_a_launch() {
        assert_eq!(levels(&[(0, 100, 10), (10, 110, 10), (0, 120, 20)]), [[100, 110, 120]]);
        // Two copies that share one byte: a read after a write, a write after a read, a write after a write.
        assert_eq!(levels(&[(0, 100, 10), (109, 200, 10)]), [[100], [200]]);
        assert_eq!(levels(&[(0, 100, 10), (200, 9, 10)]), [[100], [9]]);
        assert_eq!(levels(&[(0, 100, 10), (20, 91, 10)]), [[100], [91]]);
        // The fourth needs the first alone.
        assert_eq!(
            levels(&[(0, 100, 10), (100, 200, 10), (200, 300, 10), (100, 400, 10)]),
            [vec![100], vec![200, 400], vec![300]]
        );
        // In place.
        assert_eq!(levels(&[(0, 0, 10), (10, 10, 10)]), [[0, 10]]);
    }

    #[test]
    fn ranges_are_split_and_joined_across_gaps() {
        let mut touched = Touched::default();
        touched.mark(10..20, Use { read: 0, written: 1 });
        touched.mark(30..40, Use { read: 2, written: 0 });
        touched.mark(15..35, Use { read: 3, written: 0 });
        let seen: Vec<u32> = (0..10).map(|at| touched.used(at * 5..at * 5 + 5)).collect();
        assert_eq!(seen, [0, 0, 1, 3, 3, 3, 3, 2, 0, 0]);
        assert_eq!((touched.written(0..100), touched.written(20..100), touched.used(0..0)), (1, 0, 0));
        touched.mark(0..100, Use { read: 0, written: 4 });
        assert_eq!((touched.written(22..23), touched.written(99..100), touched.written(100..200)), (4, 4, 0));
    }

    #[test]
    fn kernels_and_large_tables_get_launches_of_their_own() {
        let mut levels = LaunchLevels::default();
        let sum = Kernel::reduce(DataType::F32, ReduceOp::Sum, 2).unwrap();
        for pair in 0..100 {
            let at = pair * 1000;
            levels.put(PassKind::new(&sum, 2, None, LAST), 5, (&[at, at + 100], &[at + 200]));
            levels.put(PassKind::new(&sum, 1, None, LAST), 7, (&[at + 300], &[at + 400]));
        }
        let launches = levels.launches();
        assert_eq!(launches.iter().map(|launch| launch.steps.len()).sum::<usize>(), 200);
        let mut copies = launches.iter().filter(|launch| launch.entry == EntryPoint::Copy);
        assert!(copies.all(|launch| launch.bytes == 28 && launch.operands.len() == 2 * launch.steps.len()));
        assert!(launches.iter().all(|launch| Arguments::inline(&launch.steps, &launch.operands).is_some()));
        let last = launches.last().unwrap();
        assert_eq!((last.bytes, last.steps[1].first_source, last.steps[1].first_target), (20, 3, 5));
        // 300 sources fit no launch's parameter, so the fold is one launch with a table.
        let mut levels = LaunchLevels::default();
        let sources: Vec<u64> = (0..300).map(|at| at * 10).collect();
        levels.put(PassKind::new(&sum, 300, None, LAST), 1, (&sources, &[1 << 20]));
        assert_eq!(levels.launches().len(), 1);
    }
}
