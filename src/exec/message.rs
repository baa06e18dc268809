//! One send or recv: a message of any length in the slots of a pair's connection.
//!
//! The first slot carries the label, which has type and count of the whole message, so that the receiver knows before it takes
//! a byte whether both ends mean the same. A message of no elements takes one empty slot.

use crate::error::Result;
use crate::exec::Operation;
use crate::exec::drive::{Blocked, Progress, Task};
use crate::sync::ring::Label;
use crate::transport::{Channel, Links};
use crate::types::Rank;

/// Which end of the message.
#[derive(Debug, Clone, Copy)]
pub enum Direction {
    /// From this memory.
    Send(*const u8),
    /// Into this memory.
    Recv(*mut u8),
}

/// A message under way.
#[derive(Debug)]
pub struct MessageRun {
    operation: Operation,
    label: Label,
    peer: Rank,
    direction: Direction,
    bytes: usize,
    moved: usize,
    begun: bool,
}

impl MessageRun {
    /// A message of `bytes` that has not begun; the point-to-point connection with `peer` is open.
    ///
    /// # Safety
    /// Until the run is dropped, the memory of `direction` is good for `bytes`, and nobody else touches it (recv) or writes it (send).
    pub unsafe fn new(operation: Operation, peer: Rank, direction: Direction, bytes: usize) -> MessageRun {
        MessageRun { operation, label: operation.label(), peer, direction, bytes, moved: 0, begun: false }
    }

    /// The other end.
    pub fn peer(&self) -> Rank {
        self.peer
    }

    /// What the message is called in errors: "send #3 to rank 1".
    pub fn name(&self) -> String {
        let (what, to) = if self.sends() { ("send", "to") } else { ("recv", "from") };
        format!("{what} #{} {to} rank {}", self.operation.sequence, self.peer)
    }

    fn sends(&self) -> bool {
        matches!(self.direction, Direction::Send(_))
    }

    fn complete(&self) -> bool {
        self.begun && self.moved == self.bytes
    }

    fn send(&mut self, from: *const u8, links: &mut Links) -> bool {
        let sender = links.sender(self.peer, Channel::PointToPoint);
        let Some(slot) = sender.reserve() else { return false };
        let length = (self.bytes - self.moved).min(sender.shape().slot_bytes as usize);
        // SAFETY: the source is inside the caller's memory, since moved + length <= bytes; the slot is reserved and as large as
        // its shape says; a slot never overlaps user memory.
        unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(self.moved), slot.as_ptr(), length) };
        sender.publish(length, self.label);
        self.moved += length;
        self.begun = true;
        true
    }

    fn recv(&mut self, into: *mut u8, links: &mut Links) -> Result<bool> {
        let receiver = links.receiver(self.peer, Channel::PointToPoint);
        let Some(message) = receiver.peek().map_err(|error| error.about(self.peer))? else { return Ok(false) };
        let due = (self.bytes - self.moved).min(receiver.shape().slot_bytes as usize);
        if message.label != self.label || message.bytes != due {
            return Err(self.operation.mismatch(self.peer, message.label));
        }
        let target = into.wrapping_add(self.moved);
        // SAFETY: the target is inside the caller's memory, since moved + due <= bytes; the slot holds `due` bytes, ours until
        // released.
        unsafe { std::ptr::copy_nonoverlapping(message.payload.as_ptr().cast_const(), target, due) };
        receiver.release();
        self.moved += due;
        self.begun = true;
        Ok(true)
    }
}

impl Task for MessageRun {
    fn progress(&mut self, links: &mut Links) -> Result<Progress> {
        let mut moved = Progress::Idle;
        while !self.complete() {
            let went = match self.direction {
                Direction::Send(from) => self.send(from, links),
                Direction::Recv(into) => self.recv(into, links)?,
            };
            if !went {
                return Ok(moved);
            }
            moved = Progress::Moved;
        }
        Ok(Progress::Done)
    }

    fn blocked<'a>(&'a self, links: &'a Links) -> Option<Blocked<'a>> {
        let flag = match self.direction {
            Direction::Send(_) => links.sender_ref(self.peer, Channel::PointToPoint)?.credit(),
            Direction::Recv(_) => links.receiver_ref(self.peer, Channel::PointToPoint)?.arrival(),
        };
        Some(Blocked { flag })
    }

    fn waiting_for(&self) -> String {
        let what = match self.direction {
            Direction::Send(_) => "to recv",
            Direction::Recv(_) => "to send",
        };
        format!("rank {} ({what} message #{})", self.peer, self.operation.sequence)
    }
}

/// The messages of one connection's end, one after the other.
#[derive(Debug)]
pub struct MessageQueue<'a> {
    runs: Vec<&'a mut MessageRun>,
    at: usize,
}

impl<'a> MessageQueue<'a> {
    /// One queue for each connection's end, each in the order of `runs`.
    pub fn by_connection(runs: &'a mut [MessageRun]) -> Vec<MessageQueue<'a>> {
        let mut queues: Vec<MessageQueue<'a>> = Vec::new();
        for run in runs {
            let same = |queue: &&mut MessageQueue<'a>| {
                let first = &queue.runs[0];
                first.peer == run.peer && first.sends() == run.sends()
            };
            match queues.iter_mut().find(same) {
                Some(queue) => queue.runs.push(run),
                None => queues.push(MessageQueue { runs: vec![run], at: 0 }),
            }
        }
        queues
    }
}

impl Task for MessageQueue<'_> {
    fn progress(&mut self, links: &mut Links) -> Result<Progress> {
        let mut moved = Progress::Idle;
        while let Some(run) = self.runs.get_mut(self.at) {
            match run.progress(links)? {
                Progress::Done => self.at += 1,
                Progress::Moved => return Ok(Progress::Moved),
                Progress::Idle => return Ok(moved),
            }
            moved = Progress::Moved;
        }
        Ok(Progress::Done)
    }

    fn blocked<'b>(&'b self, links: &'b Links) -> Option<Blocked<'b>> {
        self.runs.get(self.at)?.blocked(links)
    }

    fn waiting_for(&self) -> String {
        self.runs.get(self.at).map_or_else(String::new, |run| run.waiting_for())
    }
}
