//! Playing a script: what happens next, until nothing does.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::blocked;
use super::script::{Act, Script, Transfer};
use crate::Result;
use crate::tune::terrain::{Mover, Terrain};

/// What playing came to.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) time_us: f64,
    /// Messages and bytes of each connection.
    pub(super) sent: Vec<(u64, u64)>,
    /// For how long each link was busy.
    pub(super) busy_us: Vec<f64>,
}

/// Something that happens to a lane at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// The combine that it runs ends.
    End(usize),
    /// What it waited for may be there.
    Try(usize),
}

/// Microseconds as an integer in the same order, for times that are never negative.
type Order = u64;

/// A script under way.
#[derive(Debug)]
pub(super) struct Play<'a> {
    script: &'a Script<'a>,
    terrain: &'a Terrain,
    lanes: Vec<LaneAt>,
    queues: Vec<Queue>,
    flags: Vec<FlagAt>,
    /// When each rank's core is free, and how far its memory is booked.
    ranks: Vec<f64>,
    /// How far each link is booked.
    booked_us: Vec<f64>,
    busy_us: Vec<f64>,
    next: BinaryHeap<Reverse<(Order, u64, Happening)>>,
    /// Counts happenings: of those of one time, the first that was known comes first.
    known: u64,
    end_us: f64,
}

/// Where a lane stands.
#[derive(Debug, Clone, Copy, Default)]
struct LaneAt {
    turn: u64,
    step: usize,
}

/// Where a connection stands.
#[derive(Debug, Default)]
struct Queue {
    /// When each message that waits can be seen.
    arrived: VecDeque<f64>,
    /// When each slot that was given back can be used again; slots never used are not listed.
    freed: VecDeque<f64>,
    used: u32,
    /// The lane that waits for a message, and the one that waits for a slot.
    reader: Option<usize>,
    writer: Option<usize>,
    sent: (u64, u64),
}

/// Where a flag stands.
#[derive(Debug, Default)]
struct FlagAt {
    /// When it was raised for each round.
    raised: Vec<f64>,
    waiting: Vec<usize>,
}

impl<'a> Play<'a> {
    pub(super) fn new(script: &'a Script<'a>, terrain: &'a Terrain) -> Play<'a> {
        let links = script.bytes_per_us.len();
        Play {
            script,
            terrain,
            lanes: vec![LaneAt::default(); script.lanes.len()],
            queues: script.connections.iter().map(|_| Queue::default()).collect(),
            flags: (0..script.flag_count()).map(|_| FlagAt::default()).collect(),
            ranks: vec![0.0; script.ranks],
            booked_us: vec![0.0; links],
            busy_us: vec![0.0; links],
            next: BinaryHeap::new(),
            known: 0,
            end_us: 0.0,
        }
    }

    /// Plays to the end.
    pub(super) fn run(mut self) -> Result<Played> {
        for lane in 0..self.lanes.len() {
            self.plan(0.0, Happening::Try(lane));
        }
        while let Some(Reverse((time, _, happening))) = self.next.pop() {
            let now = f64::from_bits(time);
            match happening {
                Happening::Try(lane) => self.go_on(lane, now),
                Happening::End(lane) => {
                    self.end(lane, now);
                    self.go_on(lane, now);
                }
            }
        }
        if self.lanes.iter().zip(&self.script.lanes).any(|(at, lane)| at.turn < lane.turns) {
            return Err(blocked());
        }
        let sent = self.queues.into_iter().map(|queue| queue.sent).collect();
        Ok(Played { time_us: self.end_us, sent, busy_us: self.busy_us })
    }

    fn plan(&mut self, time_us: f64, happening: Happening) {
        self.known += 1;
        self.next.push(Reverse((time_us.to_bits(), self.known, happening)));
    }

    /// Runs a lane's steps until one has to wait.
    fn go_on(&mut self, lane: usize, now: f64) {
        let script = self.script;
        let of = &script.lanes[lane];
        loop {
            let at = self.lanes[lane];
            if at.turn >= of.turns {
                self.end_us = self.end_us.max(now);
                return;
            }
            let Some(step) = of.steps.get(at.step) else {
                self.lanes[lane] = LaneAt { turn: at.turn + 1, step: 0 };
                continue;
            };
            let round = at.turn.checked_sub(u64::from(step.lag)).and_then(|round| u32::try_from(round).ok());
            let round = round.filter(|round| *round < of.rounds);
            let runs = |round: &u32| !matches!(&step.act, Act::Move(transfer) if transfer.bytes(*round) == 0);
            let Some(round) = round.filter(runs) else {
                self.lanes[lane].step += 1;
                continue;
            };
            let rank = of.rank.index();
            if matches!(self.terrain.labour.mover, Mover::Core { .. }) && self.ranks[rank] > now {
                self.plan(self.ranks[rank], Happening::Try(lane));
                return;
            }
            let begun = match &step.act {
                Act::Raise(flag) => Some(self.raise(*flag, now)),
                Act::Await(flag) => self.pass(*flag, (lane, round), now),
                Act::Move(transfer) => {
                    if self.waits(transfer, lane, now) {
                        return;
                    }
                    let end = self.begin(transfer, (rank, round), now);
                    self.plan(end, Happening::End(lane));
                    return;
                }
            };
            let Some(end) = begun else { return };
            self.lanes[lane].step += 1;
            if end > now {
                self.occupy(rank, end);
                self.plan(end, Happening::Try(lane));
                return;
            }
        }
    }

    fn occupy(&mut self, rank: usize, end: f64) {
        if matches!(self.terrain.labour.mover, Mover::Core { .. }) {
            self.ranks[rank] = self.ranks[rank].max(end);
        }
    }

    /// Raises a flag, and says when the step is over.
    fn raise(&mut self, flag: usize, now: f64) -> f64 {
        let end = now + self.terrain.labour.step_us;
        self.flags[flag].raised.push(end);
        for lane in std::mem::take(&mut self.flags[flag].waiting) {
            self.plan(end + self.terrain.labour.flag_us, Happening::Try(lane));
        }
        end
    }

    /// When the step that waits for a flag is over; `None` where the lane is tried again later.
    fn pass(&mut self, flag: usize, (lane, round): (usize, u32), now: f64) -> Option<f64> {
        let at = &mut self.flags[flag];
        let Some(raised) = usize::try_from(round).ok().and_then(|round| at.raised.get(round)) else {
            at.waiting.push(lane);
            return None;
        };
        let seen = raised + self.terrain.labour.flag_us;
        if seen > now {
            self.plan(seen, Happening::Try(lane));
            return None;
        }
        // A flag that is seen is one of many that a lane looks at in one go.
        Some(if matches!(self.terrain.labour.mover, Mover::Gpu { .. }) {
            now
        } else {
            now + self.terrain.labour.step_us
        })
    }

    /// Whether a combine has to wait for a message or a slot; then the lane is tried again when that is there.
    fn waits(&mut self, transfer: &Transfer, lane: usize, now: f64) -> bool {
        for connection in &transfer.sources {
            let queue = &mut self.queues[*connection];
            match queue.arrived.front().copied() {
                None => queue.reader = Some(lane),
                Some(time) if time > now => self.plan(time, Happening::Try(lane)),
                Some(_) => continue,
            }
            return true;
        }
        for connection in &transfer.targets {
            let queue = &mut self.queues[*connection];
            if queue.used < self.script.slots {
                continue;
            }
            match queue.freed.front().copied() {
                None => queue.writer = Some(lane),
                Some(time) if time > now => self.plan(time, Happening::Try(lane)),
                Some(_) => continue,
            }
            return true;
        }
        false
    }

    /// Books what a combine takes, and says when it ends.
    fn begin(&mut self, transfer: &Transfer, (rank, round): (usize, u32), now: f64) -> f64 {
        let bytes = float(transfer.bytes(round));
        let labour = self.terrain.labour;
        let script = self.script;
        let ends = transfer.sources.iter().chain(&transfer.targets);
        let far = ends.filter(|connection| script.connections[**connection].route.is_some()).count();
        let messages = f64::from(u32::try_from(far).unwrap_or(u32::MAX)) * labour.message_us;
        let mut end = now + labour.step_us + messages;
        let moved = bytes * transfer.operands / 2.0;
        match labour.mover {
            Mover::Core { bytes_per_us, cached_bytes_per_us, cache_bytes, reduction_factor } => {
                let cached = float(self.script.longest_bytes) <= cache_bytes;
                let factor = if transfer.reduces { reduction_factor } else { 1.0 };
                end += factor * moved / if cached { cached_bytes_per_us } else { bytes_per_us };
            }
            Mover::Gpu { bytes_per_us } => {
                self.ranks[rank] = self.ranks[rank].max(now) + moved / bytes_per_us;
                end = end.max(self.ranks[rank]);
            }
        }
        for route in &transfer.routes {
            end = end.max(self.book(*route, bytes, now) + labour.step_us);
        }
        self.occupy(rank, end);
        end
    }

    /// Books bytes on all links of a route, and says when the last of them has served these.
    fn book(&mut self, route: usize, bytes: f64, now: f64) -> f64 {
        let mut end = now;
        for (link, part) in &self.script.routes[route].links {
            let took = bytes * part / self.script.bytes_per_us[*link];
            self.busy_us[*link] += took;
            self.booked_us[*link] = self.booked_us[*link].max(now) + took;
            end = end.max(self.booked_us[*link]);
        }
        end
    }

    /// The combine of a lane has ended: slots are given back, messages are on their way.
    fn end(&mut self, lane: usize, now: f64) {
        let script = self.script;
        let at = self.lanes[lane];
        let step = &script.lanes[lane].steps[at.step];
        self.lanes[lane].step += 1;
        let Act::Move(transfer) = &step.act else { return };
        let round = u32::try_from(at.turn - u64::from(step.lag)).unwrap_or(u32::MAX);
        let bytes = transfer.bytes(round);
        for connection in &transfer.sources {
            let free = now + script.connections[*connection].latency_us;
            let queue = &mut self.queues[*connection];
            queue.arrived.pop_front();
            queue.freed.push_back(free);
            if let Some(writer) = queue.writer.take() {
                self.plan(free, Happening::Try(writer));
            }
        }
        for connection in &transfer.targets {
            let of = &script.connections[*connection];
            let sent = of.route.map_or(now, |route| self.book(route, float(bytes), now));
            let arrival = sent + of.latency_us;
            let queue = &mut self.queues[*connection];
            if queue.used < script.slots {
                queue.used += 1;
            } else {
                queue.freed.pop_front();
            }
            queue.sent = (queue.sent.0 + 1, queue.sent.1 + bytes);
            queue.arrived.push_back(arrival);
            if let Some(reader) = queue.reader.take() {
                self.plan(arrival, Happening::Try(reader));
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a model's bytes need no more than 53 bits")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}
