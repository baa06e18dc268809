//! Runs the programs of a launch from their records, as a kernel would: lanes run side by side and share words in
//! device memory, and no host code takes part.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use rsccl::internals::device::records::{
    COMBINE, ENTER, EVEN_EMPTY, EnterLine, INPUT, LaneNumbers, LaneRecord, LaunchPart, NONE, OUTPUT, OWN,
    OperandRecord, PEER, SIGNAL, SLOT_HEADER, SlotQueue, StepRecord, WAIT,
};
use rsccl::internals::device::{Kernel, LaunchFault, Pass, Store};

use super::memory::Memory;

type Outcome<T> = Result<T, String>;

/// What the walk of a lane found.
#[derive(Clone, Copy, PartialEq)]
enum Look {
    Blocked,
    Moved,
    Done,
}

/// A lane at work.
struct Lane<'p> {
    part: &'p LaunchPart,
    kernel: Kernel,
    record: LaneRecord,
    numbers: &'p LaneNumbers,
    turn: u32,
    step: u32,
    /// Whether the current step, if it enters, has told the peers.
    told: bool,
    epoch: u64,
    base: u64,
    /// Input and output of the ranks that have entered.
    users: HashMap<u32, [u64; 2]>,
    done: bool,
}

/// Runs the programs of all parts to their ends.
pub(super) fn run(parts: &[LaunchPart]) -> Outcome<()> {
    let mut all: Vec<Vec<Lane<'_>>> = Vec::new();
    for part in parts {
        let numbered = part.records.lanes.iter().zip(&part.numbers.lanes);
        all.push(numbered.map(|(record, numbers)| Lane::new(part, *record, numbers)).collect::<Outcome<_>>()?);
    }
    loop {
        let (mut moved, mut done) = (false, true);
        for lanes in &mut all {
            for at in 0..lanes.len() {
                let before = lanes[at].record.after;
                if before != NONE && !lanes[before as usize].done {
                    done = false;
                    continue;
                }
                match lanes[at].run()? {
                    Look::Done => {}
                    Look::Moved => (moved, done) = (true, false),
                    Look::Blocked => done = false,
                }
            }
            let part = lanes.first().map(|lane| lane.part);
            if let Some(part) = part.filter(|part| part.status.is_aborted() || part.status.fault().is_some()) {
                if lanes.iter().any(|lane| !lane.done) {
                    part.status.report(LaunchFault::Aborted);
                }
                lanes.iter_mut().for_each(|lane| lane.done = true);
            }
        }
        if done {
            return Ok(());
        }
        if !moved {
            std::thread::yield_now();
        }
    }
}

impl<'p> Lane<'p> {
    fn new(part: &'p LaunchPart, record: LaneRecord, numbers: &'p LaneNumbers) -> Outcome<Lane<'p>> {
        let folding = part.folding;
        let kernel = match folding.op {
            Some(op) => Kernel::reduce(folding.data_type, op, folding.world).map_err(|error| error.to_string())?,
            None => Kernel::copy(folding.data_type),
        };
        let mut lane = Lane {
            part,
            kernel,
            record,
            numbers,
            turn: 0,
            step: 0,
            told: false,
            epoch: 0,
            base: 0,
            users: HashMap::new(),
            done: numbers.turns == 0,
        };
        if record.flags != NONE {
            let state = lane.mine(part.layout.state(record.flags));
            (lane.epoch, lane.base) = (load(state)?, load(state + 8)?);
        }
        Ok(lane)
    }

    fn control(&self, rank: u32) -> u64 {
        self.part.peers[rank as usize].control
    }

    /// A word of this rank.
    fn mine(&self, offset: u64) -> u64 {
        self.control(self.part.rank) + offset
    }

    fn run(&mut self) -> Outcome<Look> {
        let mut moved = Look::Blocked;
        while !self.done {
            let step = self.part.records.steps[(self.record.first_step + self.step) as usize];
            let round = self.turn.checked_sub(step.lag.into()).filter(|round| *round < self.numbers.rounds);
            let round = round.filter(|_| step.kind != ENTER || self.turn == 0);
            if let Some(round) = round
                && !self.perform(&step, round)?
            {
                return Ok(moved);
            }
            moved = Look::Moved;
            self.step += 1;
            if self.step == self.record.steps {
                (self.step, self.turn) = (0, self.turn + 1);
            }
            if self.turn == self.numbers.turns {
                self.end()?;
            }
        }
        Ok(if moved == Look::Moved { moved } else { Look::Done })
    }

    fn end(&mut self) -> Outcome<()> {
        self.done = true;
        if self.record.flags != NONE {
            let state = self.mine(self.part.layout.state(self.record.flags));
            store(state, self.epoch + 1)?;
            store(state + 8, self.base + u64::from(self.numbers.rounds))?;
        }
        Ok(())
    }

    fn ranks(&self, step: &StepRecord) -> &'p [u32] {
        &self.part.records.ranks[step.first as usize..][..step.sources as usize]
    }

    /// Performs a step; false if it must wait.
    fn perform(&mut self, step: &StepRecord, round: u32) -> Outcome<bool> {
        let (layout, lane, value) = (self.part.layout, self.record.flags, self.base + u64::from(round) + 1);
        match step.kind {
            ENTER => self.enter(step),
            SIGNAL => {
                for listener in self.ranks(step) {
                    store(self.control(*listener) + layout.flag(lane, step.flag, self.part.rank), value)?;
                }
                Ok(true)
            }
            WAIT => Ok(load(self.mine(layout.flag(lane, step.flag, step.peer)))? >= value),
            COMBINE => self.combine(step, round),
            other => Err(format!("a step of kind {other}")),
        }
    }

    fn enter(&mut self, step: &StepRecord) -> Outcome<bool> {
        let (part, layout, lane) = (self.part, self.part.layout, self.record.flags);
        let label = part.labels[self.record.label as usize];
        if !self.told {
            let line = EnterLine {
                ready: self.epoch + 1,
                label,
                input: part.bases[INPUT as usize],
                output: part.bases[OUTPUT as usize],
                reserved: [0; 2],
            };
            for peer in self.ranks(step) {
                let at = self.control(*peer) + layout.enter_line(lane, self.epoch, part.rank);
                let words = line.label.into_iter().chain([line.input, line.output]);
                for (place, word) in (1..).zip(words) {
                    store(at + 8 * place, word)?;
                }
                store(at, line.ready)?;
            }
            self.told = true;
        }
        for peer in self.ranks(step) {
            let at = self.mine(layout.enter_line(lane, self.epoch, *peer));
            if load(at)? != self.epoch + 1 {
                return Ok(false);
            }
            let theirs = [load(at + 8)?, load(at + 16)?, load(at + 24)?];
            if theirs != label {
                return self.differs(*peer, theirs);
            }
            self.users.insert(*peer, [load(at + 32)?, load(at + 40)?]);
        }
        Ok(true)
    }

    /// Ends this part, because a peer has called something else.
    fn differs(&mut self, peer: u32, theirs: [u64; 3]) -> Outcome<bool> {
        let mine = self.part.labels[self.record.label as usize];
        self.part.status.report(LaunchFault::Mismatch { peer, mine, theirs });
        Ok(false)
    }

    fn combine(&mut self, step: &StepRecord, round: u32) -> Outcome<bool> {
        let length = self.numbers.length(step, round);
        if length == 0 && step.flag != EVEN_EMPTY {
            return Ok(true);
        }
        let part = self.part;
        let size = u64::from(part.folding.data_type.size());
        let bytes = length * size;
        let operands = &part.records.operands[step.first as usize..];
        let (sources, targets) = operands.split_at(step.sources as usize);
        let targets = &targets[..step.targets as usize];
        let (mut from, mut into) = (Vec::new(), Vec::new());
        for source in sources {
            let address = match self.memory(source, step, round)? {
                Some(address) => address,
                None => match self.arrived(source, bytes)? {
                    Some(address) => address,
                    None => return Ok(false),
                },
            };
            from.push(self.follow(address, bytes)?.cast_const());
        }
        for target in targets {
            let address = match self.memory(target, step, round)? {
                Some(address) => address,
                None => match self.free(target)? {
                    Some(address) => address,
                    None => return Ok(false),
                },
            };
            into.push(self.follow(address, bytes)?);
        }
        if length > 0 {
            let raw = (step.raw != NONE).then_some(step.raw as usize);
            let count = usize::try_from(length).expect("64 bits");
            let finish = step.finish == 1;
            let pass = Pass {
                sources: &from,
                raw,
                targets: &into,
                count,
                finish,
                average: step.average(),
                store: Store::Cached,
            };
            // SAFETY: each operand is inside of an allocation, and the plan's proof orders the accesses of all ranks.
            unsafe { self.kernel.run(&pass) };
        }
        sources.iter().filter_map(|source| self.queue(source)).try_for_each(take)?;
        let label = part.labels[self.record.label as usize];
        targets.iter().filter_map(|target| self.queue(target)).try_for_each(|queue| publish(queue, bytes, label))?;
        Ok(true)
    }

    fn follow(&self, address: u64, bytes: u64) -> Outcome<*mut u8> {
        if bytes == 0 {
            return Ok(std::ptr::dangling_mut());
        }
        Memory::follow(address, usize::try_from(bytes).expect("64 bits")).map(|(pointer, _)| pointer)
    }

    /// The address of an operand that is no slot.
    fn memory(&self, operand: &OperandRecord, step: &StepRecord, round: u32) -> Outcome<Option<u64>> {
        let base = match operand.kind {
            OWN => self.part.bases[operand.base as usize],
            PEER => match operand.buffer {
                INPUT | OUTPUT => {
                    let user = self.users.get(&operand.base).ok_or("a buffer of a rank that has not entered")?;
                    user[operand.buffer as usize]
                }
                _ => self.part.peers[operand.base as usize].scratch,
            },
            _ => return Ok(None),
        };
        let element = self.numbers.start(operand, step, round);
        Ok(Some(base + element * u64::from(self.part.folding.data_type.size())))
    }

    fn queue(&self, operand: &OperandRecord) -> Option<&'p SlotQueue> {
        (operand.kind > PEER).then(|| &self.part.queues[operand.base as usize])
    }

    /// The payload of a message that has come.
    fn arrived(&mut self, operand: &OperandRecord, bytes: u64) -> Outcome<Option<u64>> {
        let queue = self.queue(operand).ok_or("an operand of no kind")?;
        let taken = load(queue.mine)?;
        if load(queue.tail)? <= taken {
            return Ok(None);
        }
        let header = header(queue, taken);
        let theirs = [load(header + 8)?, load(header + 16)?, load(header + 24)?];
        if theirs != self.part.labels[self.record.label as usize] || load(header)? != bytes {
            let peer = u32::try_from(load(header + 32)?).unwrap_or(NONE);
            return self.differs(peer, theirs).map(|_| None);
        }
        Ok(Some(slot(queue, taken) + SLOT_HEADER))
    }

    /// The payload of a slot that is free.
    fn free(&self, operand: &OperandRecord) -> Outcome<Option<u64>> {
        let queue = self.queue(operand).ok_or("an operand of no kind")?;
        let sent = load(queue.mine)?;
        let free = sent - load(queue.head)? < u64::from(queue.count);
        Ok(free.then(|| slot(queue, sent) + SLOT_HEADER))
    }
}

fn slot(queue: &SlotQueue, number: u64) -> u64 {
    queue.slots + number % u64::from(queue.count) * (SLOT_HEADER + queue.payload)
}

fn header(queue: &SlotQueue, number: u64) -> u64 {
    queue.headers + number % u64::from(queue.count) * queue.header_stride
}

fn take(queue: &SlotQueue) -> Outcome<()> {
    let taken = load(queue.mine)? + 1;
    store(queue.mine, taken)?;
    store(queue.head, taken)
}

fn publish(queue: &SlotQueue, bytes: u64, label: [u64; 3]) -> Outcome<()> {
    let sent = load(queue.mine)?;
    let header = header(queue, sent);
    for (place, word) in (0..).zip([bytes].into_iter().chain(label).chain([u64::from(queue.rank)])) {
        store(header + 8 * place, word)?;
    }
    store(queue.mine, sent + 1)?;
    store(queue.tail, sent + 1)
}

fn word(address: u64) -> Outcome<&'static AtomicU64> {
    let (pointer, _) = Memory::follow(address, size_of::<u64>())?;
    // SAFETY: the eight bytes lie in an allocation that the launch keeps, and every access to them is atomic.
    Ok(unsafe { AtomicU64::from_ptr(pointer.cast()) })
}

/// Acquires what was written before the word.
fn load(address: u64) -> Outcome<u64> {
    Ok(word(address)?.load(Ordering::Acquire))
}

/// Releases what was written before the word.
fn store(address: u64, value: u64) -> Outcome<()> {
    word(address)?.store(value, Ordering::Release);
    Ok(())
}
