//! Whether executors can run a plan, as far as the plan of one rank shows it.
//!
//! [`fits`] looks at each operand once. That is cheap enough for [`Plan::build`] to check every plan, in release builds
//! and in worlds of any size. Executors follow pointers because this check has passed; [`super::prove`] shows the order
//! between ranks.

use super::{Flaw, ask, scratch_sets_fit};
use crate::plan::{
    Action, Combine, FLAGS, Lane, LaneSizes, Operand, Plan, RankBuffer, Span, Spec, WINDOW_LANES, Windows,
};
use crate::types::{Elements, Rank};

/// Checks a plan against the limits of executors and the ends of its buffers.
///
/// # Errors
/// The first flaw found: a span that passes the end of its buffer or of its lane's part of the scratch, a message
/// longer than a slot, two raw inputs in one combine, inputs with other sources between them, operands that overlap,
/// memory or flags of a rank that is not mapped, more than [`WINDOW_LANES`] lanes with windows, a flag beyond
/// [`FLAGS`], more rounds than can be counted.
pub fn fits(plan: &Plan) -> Result<(), Flaw> {
    let spec = &plan.spec;
    if spec.windows != Windows::None && plan.lanes.len() > WINDOW_LANES {
        let lanes = plan.lanes.len();
        return Err(Flaw::new(format!("the plan has {lanes} lanes; with windows it may have {WINDOW_LANES}")));
    }
    scratch_sets_fit(plan)?;
    let me = spec.world.rank;
    let host = spec.layout.hosts().iter().find(|ranks| ranks.contains(&me)).map_or(&[][..], Vec::as_slice);
    let mut mapped = vec![false; spec.world.ranks().len()];
    for rank in host.iter().filter(|rank| spec.windows != Windows::None && **rank != me) {
        mapped[rank.index()] = true;
    }
    let frame = Frame { spec, me, mapped, total: ask::total(spec) };
    let mut places = Places::default();
    plan.lanes.iter().enumerate().try_for_each(|(number, lane)| {
        frame
            .lane(lane, &mut places)
            .map_err(|(step, text)| Flaw::new(format!("rank {me} lane {number} step {step} {text}")))
    })
}

/// What the steps of one rank's plan are checked against.
struct Frame<'a> {
    spec: &'a Spec,
    me: Rank,
    /// For each rank whether it is another rank whose memory is mapped.
    mapped: Vec<bool>,
    /// Elements of all ranks together.
    total: u64,
}

/// Where the operands of one combine lie, but for slots: memory that all combines use in turn.
#[derive(Default)]
struct Places {
    sources: Vec<Place>,
    targets: Vec<Place>,
}

/// Where a span lies: whose memory, which area of it, the first element, and how it moves from round to round.
#[derive(Clone, Copy, PartialEq)]
struct Place {
    owner: Rank,
    area: RankBuffer,
    start: u64,
    end: u64,
    cycle: Option<u32>,
}

impl Frame<'_> {
    /// Checks a lane; the error is the first step that is wrong, and why.
    fn lane(&self, lane: &Lane, places: &mut Places) -> Result<(), (usize, String)> {
        let rounds = lane.sizes.rounds;
        if rounds.checked_add(u32::from(lane.greatest_lag())).is_none() {
            return Err((0, format!("runs in {rounds} rounds, which are more than can be counted")));
        }
        lane.steps.iter().enumerate().try_for_each(|(number, step)| {
            let checked = match &step.action {
                Action::Enter { peers } => self.enters(number + usize::from(step.lag), peers),
                Action::Combine(combine) => self.combine(&lane.sizes, combine, places),
                Action::Signal { flag, listeners } => self.flag(*flag).and_then(|()| self.listeners(*flag, listeners)),
                Action::Wait { peer, flag } if !self.maps(*peer) => {
                    Err(format!("waits for flag {flag} of rank {peer}, which is not mapped"))
                }
                Action::Wait { flag, .. } => self.flag(*flag),
            };
            checked.map_err(|text| (number, text))
        })
    }

    fn enters(&self, step: usize, peers: &[Rank]) -> Result<(), String> {
        let mapped: Vec<Rank> = self.spec.world.ranks().filter(|rank| self.maps(*rank)).collect();
        match self.spec.windows {
            Windows::None => Err("enters, and the plan has no windows".to_owned()),
            Windows::Scratch | Windows::User | Windows::Symmetric if step > 0 => {
                Err("enters behind another step".to_owned())
            }
            Windows::Scratch | Windows::User | Windows::Symmetric if mapped != peers => {
                Err(format!("enters with ranks {peers:?}, and ranks {mapped:?} are mapped"))
            }
            Windows::Scratch | Windows::User | Windows::Symmetric => Ok(()),
        }
    }

    fn flag(&self, flag: u8) -> Result<(), String> {
        match self.spec.windows {
            _ if usize::from(flag) >= FLAGS => Err(format!("names flag {flag}; a lane has {FLAGS}")),
            Windows::None => Err(format!("names flag {flag}, and the plan has no windows")),
            Windows::Scratch | Windows::User | Windows::Symmetric => Ok(()),
        }
    }

    fn listeners(&self, flag: u8, listeners: &[Rank]) -> Result<(), String> {
        match listeners.iter().find(|listener| !self.maps(**listener)) {
            Some(listener) => Err(format!("signals flag {flag} to rank {listener}, which is not mapped")),
            None if listeners.is_empty() => Err(format!("signals flag {flag} to nobody")),
            None if !listeners.is_sorted_by(|one, next| one < next) => {
                Err(format!("signals flag {flag} to ranks that are not in order"))
            }
            None => Ok(()),
        }
    }

    fn maps(&self, peer: Rank) -> bool {
        self.mapped.get(peer.index()).copied().unwrap_or(false)
    }

    fn combine(&self, sizes: &LaneSizes, combine: &Combine, places: &mut Places) -> Result<(), String> {
        if combine.sources.is_empty() {
            return Err("combines nothing".to_owned());
        }
        if sizes.blocks.len() <= combine.block as usize {
            return Err(format!("combines block {} of {}", combine.block, sizes.blocks.len()));
        }
        let own = |operand: &&Operand| matches!(operand, Operand::Local(span) if span.buffer == RankBuffer::Input);
        if combine.sources.iter().filter(own).count() > RAW_SOURCES {
            return Err(format!("reads more than {RAW_SOURCES} raw input of its own"));
        }
        let inputs = combine.inputs();
        if combine.sources.iter().skip(inputs.end).any(|source| combine.is_input(source)) {
            return Err("reads inputs that do not stand side by side".to_owned());
        }
        let Places { sources, targets } = places;
        for (operands, places) in [(&combine.sources, &mut *sources), (&combine.targets, &mut *targets)] {
            places.clear();
            for operand in operands {
                places.extend(self.place(sizes, combine, operand)?);
            }
        }
        if combine.targets.iter().any(|operand| {
            matches!(operand, Operand::Local(span) | Operand::Window(_, span) if span.buffer == RankBuffer::Input)
        }) {
            return Err("writes to an input".to_owned());
        }
        let length = sizes.length(combine, 0).0;
        for (index, target) in targets.iter().enumerate() {
            let sources = sources.iter().filter(|source| !source.is_in_step_with(target));
            if sources.chain(&targets[..index]).any(|other| target.overlaps(other, length)) {
                return Err(format!("writes {:?} of rank {} over another of its operands", target.area, target.owner));
            }
        }
        Ok(())
    }

    /// Where a span operand lies; `None` for a slot.
    fn place(&self, sizes: &LaneSizes, combine: &Combine, operand: &Operand) -> Result<Option<Place>, String> {
        let (owner, span) = match operand {
            Operand::Slot(peer) => return self.slot(sizes.length(combine, 0), *peer).map(|()| None),
            Operand::Local(span) => (self.me, span),
            Operand::Window(peer, span) => (*peer, span),
        };
        if let Operand::Window(peer, span) = operand
            && !(self.maps(*peer) && self.spec.maps(span.buffer))
        {
            return Err(format!("names {:?} of rank {peer}, which is not mapped", span.buffer));
        }
        if span.buffer != RankBuffer::Scratch && sizes.blocks.len() <= span.index as usize {
            return Err(format!("names block {} of {}", span.index, sizes.blocks.len()));
        }
        let (start, end) = (sizes.start(span), end(sizes, combine, span));
        let name = || format!("names {:?}[{start}..{end}] of rank {owner}", span.buffer);
        let (input, output) = ask::sizes(self.spec, owner, self.total);
        let limit = match span.buffer {
            RankBuffer::Input => input,
            RankBuffer::Output => output,
            RankBuffer::Scratch if start < sizes.scratch.start || end > sizes.scratch.end.0 => {
                return Err(format!("{}, and its lane has [{}..{}]", name(), sizes.scratch.start, sizes.scratch.end));
            }
            RankBuffer::Scratch => self.spec.limits.scratch.0,
        };
        if end > limit {
            return Err(format!("{}, which has {limit}", name()));
        }
        // In place, input and output are two names of one buffer.
        let shared = ask::overlap(self.spec, owner);
        let (area, shift) = match (span.buffer, shared) {
            (RankBuffer::Input, Some((inside, _))) => (RankBuffer::Output, inside),
            (RankBuffer::Output, Some((_, inside))) => (RankBuffer::Output, inside),
            (area, _) => (area, 0),
        };
        Ok(Some(Place { owner, area, start: start.0 + shift, end: end + shift, cycle: sizes.cycle(span) }))
    }

    fn slot(&self, length: Elements, peer: Rank) -> Result<(), String> {
        let slot = self.spec.limits.slot;
        if peer == self.me || peer.get() >= self.spec.world.size {
            return Err(format!("names the slot of rank {peer}, which is not a peer"));
        }
        if length > slot {
            return Err(format!("sends {length} elements at once, and a slot holds {slot}"));
        }
        Ok(())
    }
}

/// The end of what a span covers in all rounds.
fn end(sizes: &LaneSizes, combine: &Combine, span: &Span) -> u64 {
    let pieces = sizes.cycle(span).map_or(sizes.rounds, |depth| depth.min(sizes.rounds));
    let covered = sizes.piece(combine).0.saturating_mul(u64::from(pieces)).min(sizes.block(combine).0);
    sizes.start(span).0.saturating_add(covered)
}

impl Place {
    /// Whether both name exactly the same elements in every round.
    fn is_in_step_with(&self, other: &Place) -> bool {
        self.owner == other.owner && self.area == other.area && self.start == other.start && self.cycle == other.cycle
    }

    /// Whether both may share an element in some round of `length` elements.
    fn overlaps(&self, other: &Place, length: u64) -> bool {
        let apart = self.end <= other.start || other.end <= self.start;
        let same_walk = self.cycle == other.cycle && self.start.abs_diff(other.start) >= length;
        self.owner == other.owner && self.area == other.area && !apart && !same_walk
    }
}

/// Sources of a combine to which executors can apply the scalar of the operator.
const RAW_SOURCES: usize = 1;
