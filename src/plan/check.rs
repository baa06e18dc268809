//! The proof of a set of plans.
//!
//! [`prove`] runs the plans of all ranks on symbols instead of data. An element's value is the list of ranks whose
//! contributions it holds; a message, a buffer, a window carry such values. It finds
//! - output elements that do not hold exactly what the collective's definition asks, or that a direct plan of a
//!   reduction does not reduce in one combine in rank order;
//! - deadlocks, with the limits' slots for each connection, naming who waits for whom;
//! - messages of different length at both ends, larger than a slot, or never taken;
//! - spans outside their buffer, or outside their lane's part of the scratch; writes to inputs, windows and flags of
//!   ranks that are not mapped;
//! - signals that name other listeners than those that wait for them;
//! - accesses to one element, one of them a write, that nothing orders, for every schedule and not only the one run.
//!
//! # Why one schedule stands for all
//! A connection has one sending and one receiving lane, and a flag has one raising lane. So a step that can run stays
//! able to run until it does, and what a step reads from slots and flags does not depend on the schedule: either every
//! schedule blocks, at the same steps, or none does. Vector clocks tell which accesses are ordered: the steps of a lane
//! follow each other, a message is sent before it is taken, a flag is raised before a wait for it ends. The return of a
//! slot orders nothing here, so a proof also holds with more slots than the limits say.
//!
//! # What is taken for granted
//! When a rank begins this plan, all ranks have finished the plan before it, so all scratch is free. Nothing is taken
//! for granted about users' buffers: the proof shows that a rank touches a peer's input and output only after hearing
//! from that peer, and that it hears from all who touch its own before it ends. [`prove_repeated`] takes neither for
//! granted: it is for executors that run several plans in a row without the host.

mod ask;
mod fits;
mod machine;
mod memory;
mod store;
mod value;
mod verdict;

pub use fits::fits;

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use super::{Action, Lane, LaneSizes, Plan, ScratchSets};
use crate::types::Rank;

/// How much a proof has run: counts over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Proof {
    /// Steps that ran, all ranks and rounds together.
    pub steps: u64,
    /// Messages that went through slots.
    pub messages: u64,
    /// Elements in those messages.
    pub elements: u64,
}

/// Why a set of plans is wrong, in one sentence that names rank, lane, step and round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw(String);

impl Flaw {
    fn new(text: impl Into<String>) -> Flaw {
        Flaw(text.into())
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Flaw {}

/// Proves the plans of all ranks, in rank order.
///
/// # Errors
/// The first flaw found.
pub fn prove(plans: &[Plan]) -> Result<Proof, Flaw> {
    prove_runs(plans, 1)
}

/// Proves the plans of all ranks for `runs` runs in a row without the host: a rank begins the next run when its own
/// lanes have ended, whatever the others do. That all ranks have ended the run before, which [`prove`] takes for
/// granted, must then come from [`Action::Enter`].
///
/// # Errors
/// The first flaw found.
pub fn prove_repeated(plans: &[Plan], runs: u32) -> Result<Proof, Flaw> {
    prove_runs(plans, runs.max(2))
}

fn prove_runs(plans: &[Plan], runs: u32) -> Result<Proof, Flaw> {
    agree(plans)?;
    plans.iter().try_for_each(fits)?;
    let mut machine = machine::Machine::new(plans, runs);
    machine.run()?;
    let proof = machine.settle()?;
    listeners_wait(plans)?;
    Ok(proof)
}

/// Whether every signal names exactly the ranks that wait for it.
fn listeners_wait(plans: &[Plan]) -> Result<(), Flaw> {
    let steps = |plan: &Plan| {
        let lanes = plan.lanes.iter().enumerate();
        lanes
            .flat_map(|(lane, steps)| steps.steps.iter().map(move |step| (lane, step.action.clone())))
            .collect::<Vec<_>>()
    };
    let mut waiting: HashMap<(Rank, usize, u8), BTreeSet<Rank>> = HashMap::new();
    for plan in plans {
        for (lane, action) in steps(plan) {
            if let Action::Wait { peer, flag } = action {
                waiting.entry((peer, lane, flag)).or_default().insert(plan.spec.world.rank);
            }
        }
    }
    for plan in plans {
        let rank = plan.spec.world.rank;
        for (lane, action) in steps(plan) {
            let Action::Signal { flag, listeners } = action else { continue };
            let wait = waiting.get(&(rank, lane, flag)).cloned().unwrap_or_default();
            if !listeners.iter().eq(&wait) {
                let numbers = |ranks: &mut dyn Iterator<Item = &Rank>| ranks.map(|rank| rank.get()).collect::<Vec<_>>();
                let (named, wait) = (numbers(&mut listeners.iter()), numbers(&mut wait.iter()));
                let text = format!(
                    "rank {rank} lane {lane} signals flag {flag} to ranks {named:?}, and ranks {wait:?} wait for it"
                );
                return Err(Flaw::new(text));
            }
        }
    }
    Ok(())
}

/// Whether each lane stays in its own part of the scratch, whichever set of scratch the run uses.
fn scratch_sets_fit(plan: &Plan) -> Result<(), Flaw> {
    let ScratchSets { count, stride } = plan.scratch_sets();
    let shift = stride * (count - 1);
    let next = plan.lanes.iter().skip(1).map(|lane| lane.sizes.scratch.start).chain([plan.spec.limits.scratch]);
    if plan.lanes.iter().zip(next).any(|(lane, next)| lane.sizes.scratch.end + shift > next) {
        return Err(Flaw::new(format!("{count} sets of scratch, each {stride} elements on, do not fit their lanes")));
    }
    Ok(())
}

/// Whether the plans are of one world and one spec, and the lanes with equal numbers agree on all ranks.
fn agree(plans: &[Plan]) -> Result<(), Flaw> {
    let Some(first) = plans.first() else {
        return Err(Flaw::new("there are no plans"));
    };
    if first.spec.world.ranks().len() != plans.len() {
        return Err(Flaw::new(format!("{} plans for {} ranks", plans.len(), first.spec.world.size)));
    }
    for (plan, rank) in plans.iter().zip(first.spec.world.ranks()) {
        let mut spec = plan.spec.clone();
        if spec.world.rank != rank {
            return Err(Flaw::new(format!("the plan of rank {} stands in the place of rank {rank}", spec.world.rank)));
        }
        spec.world = first.spec.world;
        if spec != first.spec {
            return Err(Flaw::new(format!("rank {rank} plans for another spec than rank 0")));
        }
        let frame = |lane: &Lane| {
            let LaneSizes { rounds, piece, depth, scratch, .. } = &lane.sizes;
            (lane.channel, *rounds, *piece, *depth, scratch.clone())
        };
        if !plan.lanes.iter().map(frame).eq(first.lanes.iter().map(frame)) {
            return Err(Flaw::new(format!(
                "rank {rank} has other lanes (channel, rounds, piece, depth, scratch) than rank 0"
            )));
        }
    }
    scratch_sets_fit(first)?;
    let mut channels: Vec<u8> = first.lanes.iter().map(|lane| lane.channel).collect();
    channels.sort_unstable();
    if channels.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Flaw::new("two lanes have one channel, so their messages would mix"));
    }
    Ok(())
}
