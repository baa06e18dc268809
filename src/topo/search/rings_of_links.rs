//! Links between GPUs as arcs, and their split into rings, by a search that is bounded by steps and not by time.

use crate::topo::bandwidth::Bandwidth;
use crate::topo::search::MAX_CHANNELS;
use crate::topo::system::{LinkKind, NodeId, System};

/// Steps of the search for one number of rings: less than a millisecond. What takes longer, packing finds.
const STEPS: u32 = 10_000;

/// How many arcs lead from each GPU to each other one: the bandwidth between them in whole multiples of a width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arcs {
    size: usize,
    free: Vec<u32>,
}

impl Arcs {
    /// The arcs of width `unit` between `gpus`.
    pub fn of(system: &System, gpus: &[NodeId], unit: Bandwidth) -> Arcs {
        let size = gpus.len();
        let mut free = vec![0; size * size];
        for (from, gpu) in gpus.iter().enumerate() {
            for link in system.links(*gpu).iter().filter(|link| link.kind == LinkKind::NvLink) {
                if let Some(to) = gpus.iter().position(|other| *other == link.to) {
                    free[from * size + to] = u32::try_from(link.bandwidth.0 / unit.0.max(1)).unwrap_or(u32::MAX);
                }
            }
        }
        Arcs { size, free }
    }

    /// The arcs from one GPU to another that nobody has taken.
    pub fn left(&self, from: usize, to: usize) -> u32 {
        self.free[from * self.size + to]
    }

    /// Takes an arc, which must be left.
    pub fn take(&mut self, from: usize, to: usize) {
        self.free[from * self.size + to] -= 1;
    }

    /// Undoes [`Arcs::take`].
    pub fn give_back(&mut self, from: usize, to: usize) {
        self.free[from * self.size + to] += 1;
    }

    /// Whether there are as many arcs at all as these paths through all GPUs need.
    pub fn may_have(&self, paths: usize) -> bool {
        self.free.iter().map(|arcs| *arcs as usize).sum::<usize>() >= paths * (self.size - 1)
    }

    /// Each ring leaves each GPU once and enters it once.
    pub fn most_rings(&self) -> usize {
        let leaving = |gpu: usize| self.free[gpu * self.size..][..self.size].iter().sum::<u32>();
        let entering = |gpu: usize| self.free.iter().skip(gpu).step_by(self.size).sum::<u32>();
        let least = (0..self.size).map(|gpu| leaving(gpu).min(entering(gpu))).min().unwrap_or(0);
        usize::try_from(least).unwrap_or(usize::MAX).min(MAX_CHANNELS)
    }

    /// A number of rings, each of arcs of its own; `None` where there are none, or none was found in the steps allowed.
    pub fn split(&self, rings: usize) -> Option<Vec<Vec<usize>>> {
        let mut search = Search { arcs: self.clone(), wanted: rings, done: Vec::new(), order: vec![0], steps: STEPS };
        search.go_on().then_some(search.done)
    }
}

struct Search {
    arcs: Arcs,
    wanted: usize,
    done: Vec<Vec<usize>>,
    /// The ring that grows, from GPU 0.
    order: Vec<usize>,
    steps: u32,
}

impl Search {
    /// Depth first: the next GPU of the ring, the one with the most arcs left first; then the next ring.
    fn go_on(&mut self) -> bool {
        if self.done.len() == self.wanted {
            return true;
        }
        let Some(steps) = self.steps.checked_sub(1) else { return false };
        self.steps = steps;
        let size = self.arcs.size;
        let last = self.order[self.order.len() - 1];
        if self.order.len() == size {
            let back = last * size;
            if self.arcs.free[back] == 0 || !self.in_order() {
                return false;
            }
            self.arcs.free[back] -= 1;
            let order = std::mem::replace(&mut self.order, vec![0]);
            self.done.push(order);
            if self.go_on() {
                return true;
            }
            self.order = self.done.pop().unwrap_or_default();
            self.arcs.free[back] += 1;
            return false;
        }
        let mut next: Vec<usize> =
            (1..size).filter(|to| self.arcs.free[last * size + to] > 0 && !self.order.contains(to)).collect();
        next.sort_by_key(|to| (std::cmp::Reverse(self.arcs.free[last * size + to]), *to));
        for to in next {
            self.arcs.free[last * size + to] -= 1;
            self.order.push(to);
            let found = self.go_on();
            if found {
                return true;
            }
            self.order.pop();
            self.arcs.free[last * size + to] += 1;
        }
        false
    }

    /// Rings that leave GPU 0 for the same GPU are found in any order: only one of the orders is searched.
    fn in_order(&self) -> bool {
        self.done.last().is_none_or(|before| before[1] != self.order[1] || *before <= self.order)
    }
}
