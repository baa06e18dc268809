//! The values of all elements: the inputs of every rank and their reduction.

use std::cell::OnceCell;

use super::op::Op;
use super::program::Source;
use super::sample::{Dice, Sample};

/// The inputs of all ranks, and their reduction, for one run of one collective.
///
/// Elements repeat after [`PERIOD`], a prime, so that tables are short, and filling or checking a large buffer costs
/// little more than one pass over it. Displaced data is still found, because no chunk, slot or block is a multiple of a
/// prime of that size.
#[derive(Debug)]
pub struct Tables<T> {
    seed: u64,
    world: u32,
    op: Option<Op>,
    length: usize,
    ranks: Vec<OnceCell<Vec<T>>>,
    reduced: OnceCell<Vec<T>>,
    /// The reduction of the inputs of the first 0, 1, 2... ranks.
    first: Vec<OnceCell<Vec<T>>>,
}

impl<T: Sample> Tables<T> {
    /// Tables for indices below `indices`; longer ones wrap.
    pub fn new(seed: u64, world: u32, op: Option<Op>, indices: usize) -> Tables<T> {
        let length = indices.clamp(1, PERIOD);
        let ranks = (0..world).map(|_| OnceCell::new()).collect();
        let first = (0..=world).map(|_| OnceCell::new()).collect();
        Tables { seed, world, op, length, ranks, reduced: OnceCell::new(), first }
    }

    /// Writes what `source` has from `index` on to `target`.
    pub fn fill(&self, source: Source, index: usize, target: &mut [T]) {
        let table = self.table(source);
        let mut from = index % table.len();
        let mut rest = target;
        while !rest.is_empty() {
            let (piece, others) = rest.split_at_mut(rest.len().min(table.len() - from));
            piece.copy_from_slice(&table[from..from + piece.len()]);
            (rest, from) = (others, 0);
        }
    }

    /// Writes elements to `target` that are nowhere what `source` has from `index` on.
    pub fn fill_with_others(&self, source: Source, index: usize, target: &mut [T]) {
        self.fill(source, index, target);
        for element in target {
            *element = T::of_bits(!element.bits());
        }
    }

    /// Compares `found` with what `source` has from `index` on: how many differ, and where the first.
    pub fn compare(&self, source: Source, index: usize, found: &[T]) -> (usize, Option<usize>) {
        let table = self.table(source);
        let (mut wrong, mut first) = (0, None);
        let (mut from, mut done) = (index % table.len(), 0);
        while done < found.len() {
            let length = (found.len() - done).min(table.len() - from);
            let pairs = || found[done..done + length].iter().zip(&table[from..]);
            let differ = pairs().filter(|(found, expected)| found.bits() != expected.bits()).count();
            if differ > 0 && first.is_none() {
                first = pairs().position(|(found, expected)| found.bits() != expected.bits()).map(|place| done + place);
            }
            wrong += differ;
            (from, done) = (0, done + length);
        }
        (wrong, first)
    }

    /// What `source` has at `index`.
    pub fn at(&self, source: Source, index: usize) -> T {
        let table = self.table(source);
        table[index % table.len()]
    }

    fn table(&self, source: Source) -> &[T] {
        match source {
            Source::Of(rank) => self.ranks[rank as usize].get_or_init(|| self.draw(rank)),
            Source::Reduced => self.reduced.get_or_init(|| self.reduce(self.world)),
            Source::First(ranks) => self.first[ranks as usize].get_or_init(|| self.reduce(ranks)),
        }
    }

    fn draw(&self, rank: u32) -> Vec<T> {
        let draw = |index: usize| T::draw(self.op, &Dice::new(self.seed, (rank, self.world), index as u64));
        (0..self.length).map(draw).collect()
    }

    /// The reduction of the inputs of the first `ranks` ranks.
    fn reduce(&self, ranks: u32) -> Vec<T> {
        let op = self.op.expect("only what reduces asks for the reduction");
        let ranks: Vec<&[T]> = (0..ranks).map(|rank| self.table(Source::Of(rank))).collect();
        (0..self.length).map(|index| T::reduce(op, ranks.iter().map(|table| table[index]))).collect()
    }
}

/// Elements after which tables repeat: the greatest prime below 2¹⁶.
pub const PERIOD: usize = 65_521;
