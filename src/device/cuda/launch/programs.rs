//! Walks the programs of ranks that share a GPU on the host, so that only copies and folds in levels are left for the
//! GPU.
//!
//! Enter steps, flags and slots order the accesses of ranks. If all ranks that the programs of a launch name take part
//! in that launch, one walk through all programs, in which each lane goes as far as the others let it, yields such an
//! order, and nothing has to wait on the GPU. A launch ends when all of its lanes have ended: all messages have been
//! taken by then, so each launch begins with free slots, lowered flags and no rank entered, whatever launches came
//! before. So no state is kept between launches, and the words that `device::records` reserves for it stay unused.

use std::collections::HashMap;

use super::arguments::PassKind;
use super::levels::{LaunchLevels, LevelLaunch};
use crate::device::records::{
    COMBINE, ENTER, EVEN_EMPTY, INPUT, LaneNumbers, LaneRecord, LaunchPart, NONE, OUTPUT, OWN, OperandRecord, PEER,
    SIGNAL, SLOT, SLOT_HEADER, SlotQueue, StepRecord, WAIT,
};
use crate::device::{Kernel, LaunchFault};
use crate::error::{Error, Result};
use crate::sync::ring::Label;

/// The launches that do the work of all parts, in order. `None` if the programs do not fit each other or one of them
/// was aborted: then the parts' status pages say so, and nothing must be launched.
///
/// # Errors
/// Of kind internal, if a program names a rank that has no part here: ranks on several GPUs wait on them (`polling`).
pub(in crate::device::cuda) fn launches(parts: &[LaunchPart]) -> Result<Option<Vec<LevelLaunch>>> {
    check_all_are_here(parts)?;
    let mut walk = Walk::default();
    let mut lanes = Vec::new();
    for part in parts {
        let kernel = match part.folding.op {
            Some(op) => Kernel::reduce(part.folding.data_type, op, part.folding.world)?,
            None => Kernel::copy(part.folding.data_type),
        };
        let numbered = part.records.lanes.iter().zip(&part.numbers.lanes);
        lanes.push(numbered.map(|(record, numbers)| Lane::new(part, kernel, (*record, numbers))).collect::<Vec<_>>());
    }
    while walk.round(&mut lanes)? {}
    let have_ended = lanes.iter().flatten().all(|lane| lane.is_done) && walk.links.values().all(Link::is_empty);
    if parts.iter().any(|part| part.status.is_aborted()) {
        parts.iter().for_each(|part| part.status.report(LaunchFault::Aborted));
        return Ok(None);
    }
    if !have_ended || is_faulted(parts) {
        return tell_who_differs(parts).map(|()| None);
    }
    Ok(Some(walk.levels.launches()))
}

fn is_faulted(parts: &[LaunchPart]) -> bool {
    parts.iter().any(|part| part.status.fault().is_some())
}

/// Checks that every rank that a program names has a part in the launch.
fn check_all_are_here(parts: &[LaunchPart]) -> Result<()> {
    for part in parts.iter().filter(|part| part.peers.len() > parts.len()) {
        let records = &part.records;
        let windows = records.operands.iter().filter(|operand| operand.kind == PEER).map(|operand| operand.base);
        let waits = records.steps.iter().filter(|step| step.kind == WAIT).map(|step| step.peer);
        let mut named = records.ranks.iter().copied().chain(windows).chain(waits);
        let others_end = |end: &SlotQueue| {
            let mut theirs = parts.iter().flat_map(|part| &part.queues);
            theirs.any(|queue| queue.sends != end.sends && queue.slots == end.slots)
        };
        let all_here = named.all(|rank| parts.iter().any(|part| part.rank == rank));
        if !all_here || !part.queues.iter().all(others_end) {
            let rank = part.rank;
            return Err(Error::internal(format!("rank {rank}'s program names ranks that have no part in its launch")));
        }
    }
    Ok(())
}

/// Called if the programs do not fit each other: a lane has found a difference, waits for ever, or has left a message
/// that nobody takes. Tells every rank that has not found it itself which rank's call differs from its own.
fn tell_who_differs(parts: &[LaunchPart]) -> Result<()> {
    for part in parts {
        let differing = |other: &LaunchPart| {
            let (mine, theirs) = (*part.labels.first()?, *other.labels.first()?);
            // Two ranks may launch different messages in one call: that is no mistake.
            let differs = mine != theirs && !(part.is_of_messages() && other.is_of_messages());
            differs.then_some(LaunchFault::Mismatch { peer: other.rank, mine, theirs })
        };
        // The first fault of a page stays.
        parts.iter().find_map(differing).into_iter().for_each(|fault| part.status.report(fault));
    }
    if is_faulted(parts) {
        parts.iter().for_each(|part| part.status.report(LaunchFault::Aborted));
        return Ok(());
    }
    if parts.iter().any(LaunchPart::is_of_messages) {
        return Err(Error::mismatch(
            "the ranks' messages do not fit each other: they called with different counts or roots",
        ));
    }
    Err(Error::internal("the programs of a launch wait for each other for ever"))
}

/// The state of a walk: what lanes have told each other, and the copies and folds so far.
#[derive(Debug, Default)]
struct Walk {
    /// Keyed by the lane, the rank that has entered, and the rank that it lets in.
    entered: HashMap<(u32, u32, u32), Entered>,
    /// How far flags are raised, keyed by the lane, the flag, the rank that raises it, and the rank that waits for it.
    flags: HashMap<(u32, u8, u32, u32), u32>,
    /// Keyed by the address of the first slot.
    links: HashMap<u64, Link>,
    levels: LaunchLevels,
}

/// A rank that has entered, with its buffers.
#[derive(Debug, Clone, Copy)]
struct Entered {
    label: Label,
    input: u64,
    output: u64,
}

/// A connection.
#[derive(Debug, Default)]
struct Link {
    taken: u64,
    /// The published messages: their bytes, and the labels of the calls that they belong to.
    published: Vec<(u64, Label)>,
}

impl Link {
    fn is_empty(&self) -> bool {
        self.published.len() as u64 == self.taken
    }
}

/// A lane at work.
#[derive(Debug)]
struct Lane<'p> {
    part: &'p LaunchPart,
    kernel: Kernel,
    record: LaneRecord,
    numbers: &'p LaneNumbers,
    turn: u32,
    step: u32,
    is_done: bool,
}

/// Whether a step is done, or has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Blocked,
}

impl Walk {
    /// Lets each lane go as far as it can. Returns whether any lane has moved.
    fn round(&mut self, parts: &mut [Vec<Lane<'_>>]) -> Result<bool> {
        let mut moved = false;
        for lanes in parts {
            for at in 0..lanes.len() {
                let before = lanes[at].record.after;
                let begins = before == NONE || lanes[before as usize].is_done;
                // A lane that has found a fault stays where it is.
                if begins && !lanes[at].is_done && lanes[at].part.status.fault().is_none() {
                    moved |= self.advance(&mut lanes[at])?;
                }
            }
        }
        Ok(moved)
    }

    fn advance(&mut self, lane: &mut Lane<'_>) -> Result<bool> {
        let mut moved = false;
        while !lane.is_done {
            if let Some((step, round)) = lane.next()
                && self.perform(lane, &step, round)? == Outcome::Blocked
            {
                return Ok(moved);
            }
            moved = true;
            lane.go_on();
        }
        Ok(moved)
    }

    fn perform(&mut self, lane: &Lane<'_>, step: &StepRecord, round: u32) -> Result<Outcome> {
        let (number, me) = (lane.record.flags, lane.part.rank);
        match step.kind {
            ENTER => Ok(self.enter(lane, step)),
            SIGNAL => {
                let raised = lane.ranks(step).iter().map(|listener| ((number, step.flag, me, *listener), round + 1));
                self.flags.extend(raised);
                Ok(Outcome::Done)
            }
            WAIT => {
                let raised = self.flags.get(&(number, step.flag, step.peer, me)).copied().unwrap_or(0);
                Ok(if raised > round { Outcome::Done } else { Outcome::Blocked })
            }
            COMBINE => self.combine(lane, step, round),
            other => Err(Error::internal(format!("a step of kind {other}"))),
        }
    }

    fn enter(&mut self, lane: &Lane<'_>, step: &StepRecord) -> Outcome {
        let (part, number) = (lane.part, lane.record.flags);
        let mine =
            Entered { label: lane.label(), input: part.bases[INPUT as usize], output: part.bases[OUTPUT as usize] };
        self.entered.extend(lane.ranks(step).iter().map(|peer| ((number, part.rank, *peer), mine)));
        for peer in lane.ranks(step) {
            match self.entered.get(&(number, *peer, part.rank)) {
                None => return Outcome::Blocked,
                Some(theirs) if theirs.label != mine.label => return lane.differs(*peer, theirs.label),
                Some(_) => {}
            }
        }
        Outcome::Done
    }

    fn combine(&mut self, lane: &Lane<'_>, step: &StepRecord, round: u32) -> Result<Outcome> {
        let length = lane.numbers.length(step, round);
        if length == 0 && step.flag != EVEN_EMPTY {
            return Ok(Outcome::Done);
        }
        let bytes = length * lane.element();
        let (sources, targets) = lane.operands(step);
        let (mut from, mut into) = (Vec::with_capacity(sources.len()), Vec::with_capacity(targets.len()));
        for source in sources {
            let place = match lane.queue(source) {
                Some(queue) => self.arrived(lane, queue, bytes),
                None => Some(self.memory(lane, source, (step, round))?),
            };
            let Some(place) = place else { return Ok(Outcome::Blocked) };
            from.push(place);
        }
        for target in targets {
            let place = match lane.queue(target) {
                Some(queue) => self.free(queue),
                None => Some(self.memory(lane, target, (step, round))?),
            };
            let Some(place) = place else { return Ok(Outcome::Blocked) };
            into.push(place);
        }
        if length > 0 {
            let raw = (step.raw != NONE).then_some(step.raw as usize);
            let how = (step.finish == 1, step.average());
            self.levels.put(PassKind::new(&lane.kernel, from.len(), raw, how), length, (&from, &into));
        }
        for queue in sources.iter().filter_map(|source| lane.queue(source)) {
            self.link(queue).taken += 1;
        }
        for queue in targets.iter().filter_map(|target| lane.queue(target)) {
            self.link(queue).published.push((bytes, lane.label()));
        }
        Ok(Outcome::Done)
    }

    fn link(&mut self, queue: &SlotQueue) -> &mut Link {
        self.links.entry(queue.slots).or_default()
    }

    /// The payload of the next message, if it has come and is what the lane expects.
    fn arrived(&mut self, lane: &Lane<'_>, queue: &SlotQueue, bytes: u64) -> Option<u64> {
        let link = self.link(queue);
        let taken = link.taken;
        let (sent, theirs) = usize::try_from(taken).ok().and_then(|taken| link.published.get(taken)).copied()?;
        if theirs != lane.label() || sent != bytes {
            lane.differs(queue.rank, theirs);
            return None;
        }
        Some(payload(queue, taken))
    }

    /// The payload of a slot that is free.
    fn free(&mut self, queue: &SlotQueue) -> Option<u64> {
        let link = self.link(queue);
        let sent = link.published.len() as u64;
        (sent - link.taken < u64::from(queue.count)).then(|| payload(queue, sent))
    }

    /// Where an operand that is no slot begins in a round.
    fn memory(&self, lane: &Lane<'_>, operand: &OperandRecord, (step, round): (&StepRecord, u32)) -> Result<u64> {
        let part = lane.part;
        let base = match (operand.kind, operand.buffer) {
            (OWN, _) => part.bases[operand.base as usize],
            (PEER, INPUT | OUTPUT) => {
                let theirs = self.entered.get(&(lane.record.flags, operand.base, part.rank));
                let theirs = theirs.ok_or_else(|| Error::internal("a buffer of a rank that has not entered"))?;
                if operand.buffer == INPUT { theirs.input } else { theirs.output }
            }
            (PEER, _) => part.peers[operand.base as usize].scratch,
            (other, _) => return Err(Error::internal(format!("an operand of kind {other}"))),
        };
        Ok(base + lane.numbers.start(operand, step, round) * lane.element())
    }
}

/// The payload of message number `number`.
fn payload(queue: &SlotQueue, number: u64) -> u64 {
    queue.slots + number % u64::from(queue.count) * (SLOT_HEADER + queue.payload) + SLOT_HEADER
}

impl<'p> Lane<'p> {
    fn new(part: &'p LaunchPart, kernel: Kernel, (record, numbers): (LaneRecord, &'p LaneNumbers)) -> Lane<'p> {
        Lane { part, kernel, record, numbers, turn: 0, step: 0, is_done: numbers.turns == 0 }
    }

    /// The step that is next, with its round; `None` if it does not run in this turn.
    fn next(&self) -> Option<(StepRecord, u32)> {
        let step = self.part.records.steps[(self.record.first_step + self.step) as usize];
        let round = self.turn.checked_sub(step.lag.into()).filter(|round| *round < self.numbers.rounds)?;
        (step.kind != ENTER || self.turn == 0).then_some((step, round))
    }

    fn go_on(&mut self) {
        self.step += 1;
        if self.step == self.record.steps {
            (self.step, self.turn) = (0, self.turn + 1);
        }
        self.is_done = self.turn == self.numbers.turns;
    }

    fn label(&self) -> Label {
        self.part.labels[self.record.label as usize]
    }

    /// Bytes of an element.
    fn element(&self) -> u64 {
        u64::from(self.part.folding.data_type.size())
    }

    fn ranks(&self, step: &StepRecord) -> &'p [u32] {
        &self.part.records.ranks[step.first as usize..][..step.sources as usize]
    }

    /// Sources and targets.
    fn operands(&self, step: &StepRecord) -> (&'p [OperandRecord], &'p [OperandRecord]) {
        let all = &self.part.records.operands[step.first as usize..][..(step.sources + step.targets) as usize];
        all.split_at(step.sources as usize)
    }

    fn queue(&self, operand: &OperandRecord) -> Option<&'p SlotQueue> {
        (operand.kind == SLOT).then(|| &self.part.queues[operand.base as usize])
    }

    /// A peer called something else: this part ends.
    fn differs(&self, peer: u32, theirs: Label) -> Outcome {
        self.part.status.report(LaunchFault::Mismatch { peer, mine: self.label(), theirs });
        Outcome::Blocked
    }
}
