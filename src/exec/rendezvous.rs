//! Messages between ranks that share a device: their two ends meet on the host, and one copy on the device moves them.
//!
//! Two launches on one device may run one after the other, so a launch that waits for the message of another launch
//! could wait for ever ([`Cohort`](crate::exec::Cohort)). Here nothing waits on the device. A rank leaves its ends of
//! messages in a table, and the rank that brings the second end of a message puts the copy into its own stream. Events
//! order the copy after the work that the other rank's stream held, and before the work that this stream gets later. A
//! call returns when each of its ends has met the other end.

use std::collections::{HashMap, VecDeque};

use crate::device::records::{self, LaunchPart};
use crate::device::{CaptureId, Event, Region};
use crate::error::{Error, Result};
use crate::exec::{DeviceStream, lower, mismatch};
use crate::sync::primitive::{Arc, Mutex, MutexGuard};
use crate::sync::ring::Label;
use crate::types::Rank;

/// One end of a message in the memory of a device.
#[derive(Debug, Clone)]
pub struct MessageEnd {
    /// The rank of the other end.
    pub peer: Rank,
    /// Whether this end sends.
    pub sends: bool,
    /// What both ends must agree on.
    pub label: Label,
    /// The device address of its buffer.
    pub address: u64,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// Keeps the buffer's memory alive if no borrow does.
    pub keep: Option<Region>,
}

/// The table in which ranks of one process leave their ends of messages to ranks that share their device.
#[derive(Debug, Default)]
pub struct Rendezvous {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Ends whose other end has not come, by sender and receiver, in the order of their calls.
    left: HashMap<(Rank, Rank), VecDeque<LeftEnd>>,
    /// Calls that wait, by their numbers.
    waiting: HashMap<u64, WaitingCall>,
    /// How many calls there have been.
    calls: u64,
}

/// An end whose other end has not come.
#[derive(Debug)]
struct LeftEnd {
    rank: Rank,
    call: u64,
    end: MessageEnd,
}

/// A call that waits until all its ends have met theirs.
#[derive(Debug)]
struct WaitingCall {
    /// The ranks whose ends are missing, once for each missing end.
    missing: Vec<Rank>,
    stream: DeviceStream,
    capture: Option<CaptureId>,
    /// Done when the work is done that the stream held when the call came.
    ready: Arc<dyn Event>,
    /// What went wrong when an end of this call met the other end.
    failed: Option<Error>,
}

/// Two ends that have met: the first was left by a call that waits, or by the same call.
#[derive(Debug)]
struct Pair {
    first: LeftEnd,
    second: MessageEnd,
}

impl Rendezvous {
    /// Leaves the ends of one call of rank `me` on `stream`, and returns when each end has met the other end of its
    /// message. `turn` is one turn of the wait; its argument is the list of ranks that are missing. `part` is this
    /// rank's part of a launch, without a program.
    ///
    /// # Errors
    /// [`crate::error::Kind::Mismatch`] where ends differ, for both ranks; [`crate::error::Kind::InvalidUsage`] where
    /// one stream is captured and the other not, or into another graph; those of `turn` and of the device. Some of the
    /// messages may have been moved then.
    pub fn meet(
        &self,
        (me, part): (Rank, LaunchPart),
        ends: Vec<MessageEnd>,
        stream: &DeviceStream,
        turn: &mut dyn FnMut(&[Rank]) -> Result<()>,
    ) -> Result<()> {
        let capture = stream.capture()?;
        let mut state = self.state();
        let call = state.calls;
        state.calls += 1;
        let pairs = state.pair((me, call), ends);
        let moved = state.move_messages((me, part), pairs, (stream, capture));
        let missing = state.missing(call);
        if moved.is_err() || missing.is_empty() {
            return state.leave(call).and(moved);
        }
        match stream.record() {
            Ok(ready) => {
                let waiting = WaitingCall { missing, stream: stream.clone(), capture, ready, failed: None };
                state.waiting.insert(call, waiting);
            }
            Err(error) => return state.leave(call).and(Err(error)),
        }
        loop {
            let missing = match state.waiting.get(&call) {
                Some(waiting) if waiting.failed.is_none() && !waiting.missing.is_empty() => waiting.missing.clone(),
                Some(_) | None => return state.leave(call),
            };
            drop(state);
            let looked = turn(&missing);
            state = self.state();
            if looked.is_err() {
                // An error of an end says more than an error of the wait.
                return state.leave(call).and(looked);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Matches the ends of a call, in order, with ends that other calls have left, and leaves those that find none.
    fn pair(&mut self, (rank, call): (Rank, u64), ends: Vec<MessageEnd>) -> Vec<Pair> {
        let mut met = Vec::new();
        for end in ends {
            let key = if end.sends { (rank, end.peer) } else { (end.peer, rank) };
            let left = self.left.entry(key).or_default();
            let meets = left.front().is_some_and(|first| first.end.sends != end.sends);
            match meets.then(|| left.pop_front()).flatten() {
                Some(first) => met.push(Pair { first, second: end }),
                None => left.push_back(LeftEnd { rank, call, end }),
            }
        }
        met
    }

    /// The ranks for whose ends a call still waits.
    fn missing(&self, call: u64) -> Vec<Rank> {
        let mine = self.left.values().flatten().filter(|left| left.call == call);
        let mut missing: Vec<Rank> = mine.map(|left| left.end.peer).collect();
        missing.sort_unstable();
        missing
    }

    /// Removes a call and its ends; returns what went wrong with them.
    fn leave(&mut self, call: u64) -> Result<()> {
        self.left.retain(|_, left| {
            left.retain(|left| left.call != call);
            !left.is_empty()
        });
        self.waiting.remove(&call).and_then(|waiting| waiting.failed).map_or(Ok(()), Err)
    }

    /// Moves the messages whose two ends agree. The calls of ends that do not agree get a mismatch; the other call of
    /// each pair gets the result of the copies.
    fn move_messages(
        &mut self,
        (me, part): (Rank, LaunchPart),
        pairs: Vec<Pair>,
        (stream, capture): (&DeviceStream, Option<CaptureId>),
    ) -> Result<()> {
        let (mut agreed, mut result) = (Vec::new(), Ok(()));
        for pair in pairs {
            let Pair { first, second } = &pair;
            let other = self.waiting.get_mut(&first.call);
            let error = if first.end.label != second.label {
                Some((mismatch(second.label, first.rank, first.end.label), mismatch(first.end.label, me, second.label)))
            } else if other.as_ref().is_some_and(|other| other.capture != capture) {
                Some((captured_apart(), captured_apart()))
            } else {
                None
            };
            if let Some(other) = other {
                other.met(me);
                if let Some((_, theirs)) = &error {
                    other.fail(theirs);
                }
            }
            match error {
                Some((mine, _)) => result = result.and(Err(mine)),
                None => agreed.push(pair),
            }
        }
        let moved = self.copy(part, &agreed, stream);
        if let Err(error) = &moved {
            for pair in &agreed {
                self.waiting.get_mut(&pair.first.call).into_iter().for_each(|other| other.fail(error));
            }
        }
        result.and(moved)
    }

    /// One launch on `stream` that copies all messages. It runs after the work that the other calls' streams hold now,
    /// and before the work that they get later.
    fn copy(&self, mut part: LaunchPart, pairs: &[Pair], stream: &DeviceStream) -> Result<()> {
        let mut others: Vec<&WaitingCall> = Vec::new();
        for other in pairs.iter().filter_map(|pair| self.waiting.get(&pair.first.call)) {
            if !other.stream.is(stream) && !others.iter().any(|known| known.stream.is(&other.stream)) {
                stream.queue().after(&other.ready)?;
                others.push(other);
            }
        }
        let moving: Vec<&Pair> = pairs.iter().filter(|pair| pair.second.bytes > 0).collect();
        if moving.is_empty() {
            return Ok(());
        }
        let lowered = lower::copies(moving.iter().map(|pair| pair.second.bytes));
        (part.records, part.numbers) = (lowered.steps.records, lowered.numbers);
        let ends = |pair: &&Pair| {
            let (first, second) = (pair.first.end.address, pair.second.address);
            if pair.second.sends { [second, first] } else { [first, second] }
        };
        part.bases = [0; records::FIRST_MESSAGE as usize].into_iter().chain(moving.iter().flat_map(ends)).collect();
        part.labels = vec![moving[0].second.label];
        let kept = moving.iter().flat_map(|pair| [&pair.first.end.keep, &pair.second.keep]);
        part.keep = kept.flatten().cloned().collect();
        // SAFETY: the callers of both ends vouch for their memory until their streams are done, and both ends have one
        // length, because their labels are equal. The other rank stays in its call until its stream waits for the copy.
        let done = unsafe { stream.queue().launch(vec![part]) }?;
        others.iter().try_for_each(|other| other.stream.queue().after(&done))
    }
}

impl WaitingCall {
    /// Notes that an end of `rank` has come.
    fn met(&mut self, rank: Rank) {
        if let Some(place) = self.missing.iter().position(|missing| *missing == rank) {
            self.missing.swap_remove(place);
        }
    }

    fn fail(&mut self, error: &Error) {
        self.failed.get_or_insert_with(|| error.duplicate());
    }
}

/// The error of ranks of one device whose streams are not all captured into one graph.
#[cold]
pub(super) fn captured_apart() -> Error {
    Error::invalid_usage(
        "ranks of one device are captured together or not at all: let all their streams join one capture, by an event for instance",
    )
}
