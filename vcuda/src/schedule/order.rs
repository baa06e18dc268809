//! Work in its order: what a piece of it depends on, when it starts, and when it is done.

use std::time::Instant;

use super::work::{Copy, Launch};
use super::{Surroundings, World};
use crate::driver::{CUresult, Outcome};
use crate::space::{Agent, TransferError};

/// A kind of work.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Work {
    /// Nothing: a point that others wait for.
    Mark,
    /// An event is recorded.
    Record {
        /// The event.
        event: u64,
    },
    /// A kernel.
    Kernel(Box<Launch>),
    /// A copy.
    Copy(Copy),
    /// A fill.
    Fill {
        /// First address.
        target: u64,
        /// The element, repeated.
        pattern: Vec<u8>,
        /// How often.
        count: u64,
    },
    /// A function of the program, called by a thread of the driver.
    Host {
        /// The function's address.
        function: usize,
        /// Its argument.
        data: usize,
    },
    /// Memory operations, one after the other.
    Memops {
        /// What to do.
        list: Vec<Memop>,
        /// How many are done.
        done: usize,
    },
    /// Memory of a pool goes back to it.
    PoolFree {
        /// Its first address.
        address: u64,
    },
}

/// A stream memory operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memop {
    /// Stores a word.
    Write {
        /// Where.
        address: u64,
        /// Whether the word has 8 bytes, else 4.
        wide: bool,
        /// The word.
        value: u64,
    },
    /// Holds the stream until a word is as it should be.
    Wait {
        /// Where.
        address: u64,
        /// Whether the word has 8 bytes, else 4.
        wide: bool,
        /// What it is compared with.
        value: u64,
        /// How it is compared: `CU_STREAM_WAIT_VALUE_GEQ`, `EQ`, `AND`, `NOR`.
        how: u32,
    },
    /// A fence over the whole system.
    Barrier,
}

/// A piece of work that is not done.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) id: u64,
    pub(super) context: u64,
    pub(super) gpu: u32,
    pub(super) stream: u64,
    pub(super) priority: i32,
    pub(super) queue: usize,
    pub(super) after: Vec<u64>,
    pub(super) work: Work,
    pub(super) started: bool,
}

impl Operation {
    pub(super) fn is_running_kernel(&self) -> bool {
        self.started && matches!(self.work, Work::Kernel(_))
    }

    pub(super) fn agent(&self) -> Agent {
        Agent { context: self.context, gpu: self.gpu }
    }
}

impl World {
    /// Adds work to a stream, behind what the stream has and behind `after`. `branch` is for graphs: the work stands beside
    /// the stream's own line, in the hardware queue that is so many further on.
    ///
    /// # Errors
    ///
    /// The error that the stream's context has met.
    pub fn submit(&mut self, stream: u64, work: Work, after: &[u64], branch: Option<usize>) -> Outcome<u64> {
        let line = self.streams.get(&stream).ok_or(CUresult::INVALID_HANDLE)?;
        let (context, priority) = (line.context, line.priority);
        self.check_context(context)?;
        let mut depends: Vec<u64> = after.to_vec();
        if branch.is_none() {
            depends.push(line.last);
            let peers = self.streams.values().filter(|other| other.context == context && other.is_blocking());
            if line.legacy {
                depends.extend(peers.map(|other| other.last));
            } else if line.is_blocking() {
                depends.extend(peers.filter(|other| other.legacy).map(|other| other.last));
            }
        }
        depends.retain(|dependence| self.operations.contains_key(dependence));
        depends.sort_unstable();
        depends.dedup();
        self.next_operation += 1;
        let id = self.next_operation;
        let owner = self.contexts.get_mut(&context).ok_or(CUresult::CONTEXT_IS_DESTROYED)?;
        let queue = (line.queue + branch.unwrap_or(0)) % owner.queues.len();
        owner.queues[queue].push_back(id);
        let gpu = owner.gpu;
        let operation = Operation { id, context, gpu, stream, priority, queue, after: depends, work, started: false };
        self.operations.insert(id, operation);
        if branch.is_none()
            && let Some(line) = self.streams.get_mut(&stream)
        {
            line.last = id;
        }
        Ok(id)
    }

    /// Starts the heads of the queues, as far as they can; true if any did.
    pub(super) fn start_what_can(&mut self, around: &Surroundings) -> bool {
        let mut any = false;
        loop {
            let mut moved = false;
            let contexts: Vec<u64> = self.contexts.keys().copied().collect();
            for context in contexts {
                let count = self.contexts.get(&context).map_or(0, |context| context.queues.len());
                for queue in 0..count {
                    while self.start_head(around, context, queue) {
                        moved = true;
                    }
                }
            }
            if !moved {
                break;
            }
            any = true;
        }
        self.make_resident(around);
        any
    }

    /// Starts the head of a queue; false if there is none or it has to wait.
    fn start_head(&mut self, around: &Surroundings, context: u64, queue: usize) -> bool {
        let Some(id) = self.contexts.get(&context).and_then(|context| context.queues[queue].front().copied()) else {
            return false;
        };
        let Some(operation) = self.operations.get(&id) else {
            self.pop(context, queue);
            return true;
        };
        if operation.after.iter().any(|dependence| self.operations.contains_key(dependence)) {
            return false;
        }
        if matches!(operation.work, Work::Memops { .. }) && !self.do_memops(around, id) {
            return false;
        }
        // A memory operation that failed has ended its context's work.
        let Some(operation) = self.operations.get_mut(&id) else { return false };
        operation.started = true;
        let at_once = match &operation.work {
            Work::Mark | Work::Record { .. } | Work::Memops { .. } => true,
            Work::PoolFree { address } => {
                around.space.free(*address);
                true
            }
            Work::Kernel(_) => {
                self.enlist(id);
                false
            }
            Work::Copy(_) | Work::Fill { .. } => {
                self.transfers.push_back(id);
                false
            }
            Work::Host { .. } => {
                self.host_calls.push_back(id);
                false
            }
        };
        self.pop(context, queue);
        if at_once {
            self.finish(id);
        }
        true
    }

    fn pop(&mut self, context: u64, queue: usize) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.queues[queue].pop_front();
        }
    }

    /// A piece of work is done.
    pub(super) fn finish(&mut self, id: u64) {
        let Some(operation) = self.operations.remove(&id) else { return };
        self.has_news = true;
        let Work::Record { event } = operation.work else { return };
        if let Some(Some(recorded)) = self.events.get_mut(&event).map(|event| event.recorded.as_mut())
            && recorded.operation == id
        {
            recorded.at = Some(Instant::now());
        }
    }

    /// Does memory operations up to the first wait that must wait; true if all are done.
    fn do_memops(&mut self, around: &Surroundings, id: u64) -> bool {
        let Some(operation) = self.operations.get_mut(&id) else { return false };
        let agent = operation.agent();
        let Work::Memops { list, done } = &mut operation.work else { return true };
        let mut failed = None;
        while let Some(memop) = list.get(*done) {
            match do_memop(around, agent, *memop) {
                Ok(true) => *done += 1,
                Ok(false) => return false,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            around.space.state().moved();
        }
        if let Some(error) = failed {
            let context = operation.context;
            let what = format!("a memory operation on address {:#x}: {:?}", error.address, error.fault);
            self.fail(context, CUresult::ILLEGAL_ADDRESS, &what);
            return false;
        }
        true
    }

    /// A context meets an error: it is printed, all its work is gone, and all its calls answer the error from now on.
    pub fn fail(&mut self, context: u64, error: CUresult, what: &str) {
        eprintln!("vcuda: {error}: {what}");
        if let Some(owner) = self.contexts.get_mut(&context) {
            owner.error.get_or_insert(error);
        }
        self.abandon(context);
    }

    /// Drops all work of a context.
    pub(super) fn abandon(&mut self, context: u64) {
        self.has_news = true;
        let gone: Vec<u64> = self.unfinished(context);
        for id in &gone {
            self.operations.remove(id);
        }
        if let Some(owner) = self.contexts.get_mut(&context) {
            for queue in &mut owner.queues {
                queue.clear();
            }
        }
        for gpu in &mut self.gpus {
            gpu.drop_grids(&gone);
        }
        self.transfers.retain(|id| !gone.contains(id));
        self.host_calls.retain(|id| !gone.contains(id));
    }
}

fn do_memop(around: &Surroundings, agent: Agent, memop: Memop) -> Result<bool, TransferError> {
    match memop {
        Memop::Barrier => Ok(true),
        Memop::Write { address, wide, value } => {
            around.space.store_word(agent, address, wide, value)?;
            Ok(true)
        }
        Memop::Wait { address, wide, value, how } => {
            Ok(is_satisfied(around.space.load_word(agent, address, wide)?, value, wide, how))
        }
    }
}

/// Whether a wait on a word is over.
pub(super) fn is_satisfied(word: u64, value: u64, wide: bool, how: u32) -> bool {
    match (how & 3, wide) {
        // "Greater" goes around: the difference, as a signed number, is not negative.
        (0, true) => word.wrapping_sub(value) < 1 << 63,
        (0, false) => word.wrapping_sub(value) & 0xFFFF_FFFF < 1 << 31,
        (1, true) => word == value,
        (1, false) => word == value & 0xFFFF_FFFF,
        (2, _) => word & value != 0,
        (_, true) => !(word | value) != 0,
        (_, false) => !(word | value) & 0xFFFF_FFFF != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::is_satisfied;

    #[test]
    fn waits_compare_as_documented() {
        assert!(is_satisfied(5, 5, false, 0) && is_satisfied(6, 5, false, 0) && !is_satisfied(4, 5, false, 0));
        assert!(is_satisfied(2, 0xFFFF_FFFF, false, 0), "greater goes around");
        assert!(is_satisfied(2, u64::MAX, true, 0) && !is_satisfied(2, 0xFFFF_FFFF, true, 0));
        assert!(is_satisfied(7, 7, true, 1) && !is_satisfied(8, 7, true, 1));
        assert!(is_satisfied(6, 2, false, 2) && !is_satisfied(4, 2, false, 2));
        assert!(is_satisfied(0, 1, false, 3) && !is_satisfied(0xFFFF_FFFF, 0, false, 3));
    }
}
