//! A plan with what each run of it needs, found once.

use std::mem::{size_of, size_of_val};

use crate::device::records::Numbers;
use crate::error::Result;
use crate::exec::lower::{self, Lowered, LoweredSteps, RecordMeans};
use crate::exec::peer_traffic::{self, PeerTraffic};
use crate::exec::windowed;
use crate::plan::{Action, Combine, Operand, Plan, RankBuffer, ScratchSets, Spec, Step};
use crate::sync::primitive::{Arc, AtomicBool, OnceLock, Ordering};
use crate::transport::{Channel, Need, Way};
use crate::types::Rank;

/// A plan as it is run, again and again: no run walks the steps to learn what they use.
#[derive(Debug)]
pub struct Program {
    plan: Plan,
    wiring: Arc<Wiring>,
    scratch_sets: ScratchSets,
    rounds: u32,
    numbers: OnceLock<Arc<Numbers>>,
    traffic: OnceLock<Arc<[PeerTraffic]>>,
}

/// What the steps of a plan use, whatever the count.
#[derive(Debug)]
struct Wiring {
    needs: Box<[Need]>,
    entered: Box<[Rank]>,
    bytes: usize,
    connected: AtomicBool,
    lowered: OnceLock<LoweredSteps>,
    windowed: OnceLock<LoweredSteps>,
}

impl Program {
    /// The program of a plan.
    pub fn new(plan: Plan) -> Program {
        let (needs, entered) = (needs(&plan), entered(&plan));
        let bytes = step_bytes(&plan) + size_of_val(&needs[..]) + size_of_val(&entered[..]);
        let connected = AtomicBool::new(false);
        let (lowered, windowed) = (OnceLock::new(), OnceLock::new());
        Program::wired(plan, Arc::new(Wiring { needs, entered, bytes, connected, lowered, windowed }))
    }

    fn wired(plan: Plan, wiring: Arc<Wiring>) -> Program {
        let scratch_sets = plan.scratch_sets();
        let rounds = plan.lanes.iter().map(|lane| lane.sizes.rounds).max().unwrap_or(0);
        Program { plan, wiring, scratch_sets, rounds, numbers: OnceLock::new(), traffic: OnceLock::new() }
    }

    /// The program of another count, which shares the steps and what was learnt of them; `None` where that count needs
    /// other steps. All else in `spec` is as in this program's.
    ///
    /// # Errors
    /// As [`Plan::build`].
    pub fn resized(&self, spec: &Spec) -> Result<Option<Program>> {
        let plan = self.plan.resized(spec)?;
        Ok(plan.map(|plan| Program::wired(plan, Arc::clone(&self.wiring))))
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The connections that the plan uses, each once, in order.
    pub fn needs(&self) -> &[Need] {
        &self.wiring.needs
    }

    /// The peers whose input or output the plan reads or writes, each once, in order.
    pub fn entered(&self) -> &[Rank] {
        &self.wiring.entered
    }

    /// How often what the plan uses of the scratch fits into it.
    pub fn scratch_sets(&self) -> ScratchSets {
        self.scratch_sets
    }

    /// The rounds of the longest lane: each flag of the plan rises by as many.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// The memory that the program takes by itself, in bytes.
    pub fn bytes(&self) -> usize {
        let blocks: usize = self.plan.lanes.iter().map(|lane| size_of_val(&lane.sizes.blocks[..])).sum();
        size_of::<Program>() + size_of_val(&self.plan.lanes[..]) + blocks
    }

    /// The memory of the steps, in bytes, which programs of other counts may share.
    pub fn shared_bytes(&self) -> usize {
        self.wiring.bytes
    }

    /// Whether both programs have the same steps in memory.
    #[cfg(all(test, not(loom)))]
    pub fn shares_steps_with(&self, other: &Program) -> bool {
        Arc::ptr_eq(&self.wiring, &other.wiring)
    }

    /// Whether another program shares the steps of this one.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.wiring) > 1
    }

    /// The program as records, made when a device first runs it. Programs of other counts share those of the steps.
    pub fn lowered(&self) -> Lowered {
        let lanes = &self.plan.lanes;
        let spec = &self.plan.spec;
        let (windows, protocol, carries_partials) = (spec.windows, spec.protocol, spec.carries_partials());
        let means = RecordMeans { windows, protocol, carries_partials };
        let steps = self.wiring.lowered.get_or_init(|| lower::steps(lanes, means));
        let numbers = self.numbers.get_or_init(|| Arc::new(lower::numbers(lanes)));
        let traffic = self.traffic.get_or_init(|| peer_traffic::of_lanes(lanes));
        Lowered { steps: steps.clone(), numbers: Arc::clone(numbers), traffic: Arc::clone(traffic) }
    }

    /// The same records for a launch that knows where all ranks' buffers lie in windows.
    pub fn in_windows(&self) -> Lowered {
        let lowered = self.lowered();
        let steps = self.wiring.windowed.get_or_init(|| windowed::in_windows(&lowered.steps));
        Lowered { steps: steps.clone(), ..lowered }
    }

    /// Whether a run has found all [`Program::needs`] connected. Connections stay open while the communicator that
    /// keeps the program lives, so that no later run asks again.
    pub fn is_connected(&self) -> bool {
        // Relaxed: only the thread that runs the communicator's calls looks at it, and a communicator changes threads
        // by a lock.
        self.wiring.connected.load(Ordering::Relaxed)
    }

    /// Says that all needs are connected.
    pub fn set_connected(&self) {
        self.wiring.connected.store(true, Ordering::Relaxed);
    }
}

fn combines(plan: &Plan) -> impl Iterator<Item = (Channel, &Combine)> {
    plan.lanes.iter().flat_map(|lane| {
        lane.steps.iter().filter_map(|step| match &step.action {
            Action::Combine(combine) => Some((Channel::Collective(lane.channel), combine)),
            Action::Enter { .. } | Action::Signal { .. } | Action::Wait { .. } => None,
        })
    })
}

fn needs(plan: &Plan) -> Box<[Need]> {
    let mut needs = Vec::new();
    for (channel, combine) in combines(plan) {
        for (way, operands) in [(Way::Receive, &combine.sources), (Way::Send, &combine.targets)] {
            needs.extend(operands.iter().filter_map(|operand| match operand {
                Operand::Slot(peer) => Some(Need { way, peer: *peer, channel }),
                Operand::Local(_) | Operand::Window(..) => None,
            }));
        }
    }
    needs.sort_unstable();
    needs.dedup();
    needs.into_boxed_slice()
}

fn entered(plan: &Plan) -> Box<[Rank]> {
    let operands = combines(plan).flat_map(|(_, combine)| combine.sources.iter().chain(&combine.targets));
    let owners = operands.filter_map(|operand| match operand {
        Operand::Window(owner, span) if span.buffer != RankBuffer::Scratch => Some(*owner),
        Operand::Window(..) | Operand::Local(_) | Operand::Slot(_) => None,
    });
    let mut ranks: Vec<Rank> = owners.collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks.into_boxed_slice()
}

/// What the steps of a plan take of the heap.
fn step_bytes(plan: &Plan) -> usize {
    let steps: usize = plan.lanes.iter().map(|lane| lane.steps.len()).sum();
    let operands: usize = combines(plan).map(|(_, combine)| combine.sources.len() + combine.targets.len()).sum();
    let listeners: usize = plan.lanes.iter().flat_map(|lane| lane.steps.iter()).map(listeners).sum();
    steps * size_of::<Step>() + operands * size_of::<Operand>() + listeners * size_of::<Rank>()
}

fn listeners(step: &Step) -> usize {
    match &step.action {
        Action::Enter { peers } => peers.len(),
        Action::Signal { listeners, .. } => listeners.len(),
        Action::Combine(_) | Action::Wait { .. } => 0,
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::plan::{Count, Layout, Limits, Windows};
    use crate::types::{Algorithm, Collective, Elements, Protocol, World};

    #[test]
    fn programs_of_other_counts_share_the_records_of_their_steps() {
        let ranks: Vec<Rank> = (0..4).map(Rank::new).collect();
        let layout = Arc::new(Layout::of_hosts(&[ranks]).unwrap());
        for (algorithm, windows) in [(Algorithm::Ring, Windows::None), (Algorithm::Direct, Windows::User)] {
            let spec = |count: u64| Spec {
                collective: Collective::AllReduce,
                world: World { rank: Rank::new(1), size: 4 },
                root: Rank::new(0),
                count: Count::Each(Elements(count)),
                in_place: false,
                algorithm,
                protocol: Protocol::Simple,
                windows,
                layout: Arc::clone(&layout),
                limits: Limits { slot: Elements(4096), slots: 8, scratch: Elements(1 << 20), channels: 2 },
            };
            let few = Program::new(Plan::build(&spec(64_000)).unwrap());
            let records = few.lowered().steps.records;
            for count in [64_001, 70_000, 90_000] {
                let many = few.resized(&spec(count)).unwrap().expect("the steps are the same");
                let lowered = many.lowered();
                assert!(Arc::ptr_eq(&lowered.steps.records, &records), "{algorithm:?} of {count}");
                assert_ne!(lowered.numbers, few.lowered().numbers, "{algorithm:?} of {count}");
                // A program of this count alone has the same.
                let alone = Program::new(Plan::build(&spec(count)).unwrap()).lowered();
                assert_eq!((alone.steps.records, alone.numbers), (Arc::clone(&records), lowered.numbers));
            }
        }
    }
}
