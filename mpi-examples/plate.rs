//! A plate of points, or a block of it, that heat flows through. Knows nothing of ranks: what a block needs of others, and what
//! all blocks must agree on, goes through closures.
#![expect(clippy::disallowed_methods, reason = "the rule on the clock is the library's")]

use std::ops::Range;
use std::time::{Duration, Instant};

use rsccl::Result;

/// Points of the plate along each side.
pub(crate) const SIDE: usize = 200;
/// How hot one side of the plate is held; the other three are at zero.
const HOT: f64 = 100.0;
/// Solved, once no point changes by more in a step.
const TOLERANCE: f64 = 0.02;
const STEPS_BETWEEN_CHECKS: usize = 20;
const MOST_STEPS: usize = 100_000;

/// Points of the plate, with a rim of one point around them that belongs to the neighbours or is the plate's side.
#[derive(Debug)]
pub(crate) struct Block {
    /// Where the block begins in the plate.
    first: (usize, usize),
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Row by row, rim included: row and column 0 are rim.
    pub(crate) field: Vec<f64>,
    next: Vec<f64>,
}

impl Block {
    /// The block of these rows and columns, cold but for the hot side where it touches that.
    pub(crate) fn new(rows: Range<usize>, columns: Range<usize>) -> Block {
        let width = columns.len() + 2;
        let mut field = vec![0.0; (rows.len() + 2) * width];
        if rows.start == 0 {
            field[..width].fill(HOT);
        }
        let first = (rows.start, columns.start);
        Block { first, rows: rows.len(), columns: columns.len(), next: field.clone(), field }
    }

    fn width(&self) -> usize {
        self.columns + 2
    }

    /// Places in `field` of the points of a row, without the rim's left and right.
    pub(crate) fn points(&self, row: usize) -> Range<usize> {
        row * self.width() + 1..row * self.width() + 1 + self.columns
    }

    /// The same as a list, for a halo.
    pub(crate) fn row(&self, row: usize) -> Vec<usize> {
        self.points(row).collect()
    }

    /// Places in `field` of the points of a column, without the rim's top and bottom.
    pub(crate) fn column(&self, column: usize) -> Vec<usize> {
        (1..=self.rows).map(|row| row * self.width() + column).collect()
    }

    /// Where in this block, the whole plate, the points of a row of `part` stand.
    pub(crate) fn points_of(&self, part: &Block, row: usize) -> Range<usize> {
        let start = (part.first.0 + row) * self.width() + part.first.1 + 1;
        start..start + part.columns
    }

    /// Makes every point the mean of its four neighbours. Returns the greatest change.
    fn step(&mut self) -> f64 {
        let (width, mut greatest) = (self.width(), 0.0);
        for row in 1..=self.rows {
            let points = self.points(row);
            let above = &self.field[points.start - width..points.end - width];
            let below = &self.field[points.start + width..points.end + width];
            let left = &self.field[points.start - 1..points.end - 1];
            let right = &self.field[points.start + 1..points.end + 1];
            let (now, next) = (&self.field[points.clone()], &mut self.next[points]);
            for column in 0..self.columns {
                // Always in this order, so that every way to cut the plate gives the same bits.
                next[column] = 0.25 * ((above[column] + below[column]) + (left[column] + right[column]));
                greatest = f64::max(greatest, (next[column] - now[column]).abs());
            }
        }
        std::mem::swap(&mut self.field, &mut self.next);
        greatest
    }
}

/// Where the time went.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Phases {
    pub(crate) compute: Duration,
    pub(crate) halo: Duration,
    pub(crate) reduce: Duration,
}

/// Steps until nothing changes much. `exchange` fills the block's rim; `greatest` finds the greatest of all blocks' changes.
/// Returns the number of steps.
pub(crate) fn solve(
    block: &mut Block,
    mut exchange: impl FnMut(&mut Block) -> Result<()>,
    greatest: impl Fn(f64) -> Result<f64>,
) -> Result<(usize, Phases)> {
    let mut phases = Phases::default();
    let mut since = Instant::now();
    let mut lap = |phase: &mut Duration| {
        let now = Instant::now();
        *phase += now - since;
        since = now;
    };
    for step in 1..=MOST_STEPS {
        exchange(block)?;
        lap(&mut phases.halo);
        let change = block.step();
        lap(&mut phases.compute);
        if step % STEPS_BETWEEN_CHECKS == 0 {
            let change = greatest(change)?;
            lap(&mut phases.reduce);
            if change < TOLERANCE {
                return Ok((step, phases));
            }
        }
    }
    panic!("no end after {MOST_STEPS} steps: the plate does not come to rest");
}
