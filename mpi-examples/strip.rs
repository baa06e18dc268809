//! A strip of a square of points, and conjugate gradients on it. Knows nothing of libraries: what a strip needs of others goes
//! through [`Ranks`].
#![expect(clippy::disallowed_methods, reason = "the rule on the clock is the library's")]

use std::ops::Range;
use std::time::{Duration, Instant};

use rsccl::Result;

/// What moves data between the ranks.
pub(crate) trait Ranks {
    /// Sends the strip's first row to the rank above and its last row to the rank below, and receives their edges into the rims.
    fn swap(&self, rows: Rows<'_>) -> Result<()>;
    /// The sum of all ranks' numbers.
    fn sum(&self, mine: f64) -> Result<f64>;
}

/// The rows that are swapped. A rank without a neighbour on a side leaves that rim as it is.
#[derive(Debug)]
pub(crate) struct Rows<'a> {
    pub(crate) rim_above: &'a mut [f64],
    pub(crate) first: &'a [f64],
    pub(crate) last: &'a [f64],
    pub(crate) rim_below: &'a mut [f64],
}

/// Solves A x = b, where A is the five-point star (4 in the middle, -1 around it), and points outside of the square are 0.
#[derive(Debug)]
pub(crate) struct Solver {
    side: usize,
    b: Vec<f64>,
    x: Vec<f64>,
    residual: Vec<f64>,
    /// Rims included.
    direction: Vec<f64>,
    image: Vec<f64>,
    /// Time in calls of the library.
    pub(crate) communication: Duration,
}

impl Solver {
    /// These rows of a square with so many points along each side.
    pub(crate) fn new(side: usize, rows: Range<usize>) -> Solver {
        let points = rows.len() * side;
        let b = (rows.start * side..rows.end * side).map(|point| 1.0 + (point % 3) as f64).collect();
        let zeros = vec![0.0; points];
        let (x, residual, image) = (zeros.clone(), zeros.clone(), zeros);
        Solver { side, b, x, residual, direction: vec![0.0; points + 2 * side], image, communication: Duration::ZERO }
    }

    /// Takes `steps` steps from x = 0. Returns by how much A x is off b in the end, as the length of the residual over that of b.
    pub(crate) fn solve(&mut self, ranks: &dyn Ranks, steps: usize) -> Result<f64> {
        self.x.fill(0.0);
        self.residual.copy_from_slice(&self.b);
        self.direction.fill(0.0);
        let own = self.own();
        self.direction[own.clone()].copy_from_slice(&self.b);
        let begun = self.sum(ranks, dot(&self.b, &self.b))?;
        let mut squares = begun;
        for _ in 0..steps {
            self.apply(ranks)?;
            let across = self.sum(ranks, dot(&self.direction[own.clone()], &self.image))?;
            // Where the residual is 0 there is nothing left to go.
            let length = if across > 0.0 { squares / across } else { 0.0 };
            let directions = &mut self.direction[own.clone()];
            for (((x, residual), direction), image) in
                self.x.iter_mut().zip(&mut self.residual).zip(&*directions).zip(&self.image)
            {
                *x += length * direction;
                *residual -= length * image;
            }
            let next = self.sum(ranks, dot(&self.residual, &self.residual))?;
            let turn = next / squares;
            // An exact solution leaves nothing to divide by in the next step.
            squares = next.max(f64::MIN_POSITIVE);
            let directions = &mut self.direction[own.clone()];
            for (direction, residual) in directions.iter_mut().zip(&self.residual) {
                *direction = residual + turn * *direction;
            }
        }
        // Not the residual that the steps have kept, which rounding takes away from the truth.
        self.direction[own].copy_from_slice(&self.x);
        self.apply(ranks)?;
        let off = self.b.iter().zip(&self.image).map(|(b, image)| (b - image) * (b - image)).sum();
        Ok((self.sum(ranks, off)? / begun).sqrt())
    }

    /// Where the strip's own points are in `direction`.
    fn own(&self) -> Range<usize> {
        self.side..self.direction.len() - self.side
    }

    fn sum(&mut self, ranks: &dyn Ranks, mine: f64) -> Result<f64> {
        let begun = Instant::now();
        let sum = ranks.sum(mine);
        self.communication += begun.elapsed();
        sum
    }

    /// `image` becomes A times `direction`.
    fn apply(&mut self, ranks: &dyn Ranks) -> Result<()> {
        let side = self.side;
        let begun = Instant::now();
        let (rim_above, rest) = self.direction.split_at_mut(side);
        let (own, rim_below) = rest.split_at_mut(rest.len() - side);
        ranks.swap(Rows { rim_above, first: &own[..side], last: &own[own.len() - side..], rim_below })?;
        self.communication += begun.elapsed();
        for (row, image) in self.image.chunks_exact_mut(side).enumerate() {
            let at = |row: usize| &self.direction[row * side..(row + 1) * side];
            let (above, here, below) = (at(row), at(row + 1), at(row + 2));
            for (image, ((above, here), below)) in image.iter_mut().zip(above.iter().zip(here).zip(below)) {
                *image = 4.0 * here - above - below;
            }
            for (image, left) in image[1..].iter_mut().zip(here) {
                *image -= left;
            }
            for (image, right) in image.iter_mut().zip(&here[1..]) {
                *image -= right;
            }
        }
        Ok(())
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    // Four sums side by side: one would wait for itself at each addition.
    let (mut sums, (a, b)) = ([0.0; 4], (a.chunks_exact(4), b.chunks_exact(4)));
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f64>() + rest
}
