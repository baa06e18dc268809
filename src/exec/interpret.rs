//! The interpreter of plans on host memory.

use std::collections::BTreeSet;
use std::ops::Range;
use std::ptr::NonNull;

use crate::device::{Average, Kernel, Pass, Store, TimedCopy};
use crate::error::Result;
use crate::exec::drive::{Blocked, Progress, Task};
use crate::exec::history::History;
use crate::exec::operation::{Operation, sequence};
use crate::exec::step_spans::{StepOwner, StepSpans};
use crate::plan::{self, Action, Combine, Lane, Operand, Plan, RankBuffer, Span};
use crate::sync::ring::Label;
use crate::transport::{Channel, FLAG_LANES, HostWindows, LANE_FLAGS, Links, NicHold, Taken};
use crate::types::Rank;

const _: () = assert!(plan::WINDOW_LANES <= FLAG_LANES && plan::FLAGS <= LANE_FLAGS, "arenas have a plan's flags");

/// The user's buffers of one operation.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Address of the input; null if the rank has none.
    pub input: *const u8,
    /// Address of the output; null if the rank has none.
    pub output: *mut u8,
}

/// The user buffers of each rank of the host, by place, for plans that name them.
pub type UserMemory = Vec<Memory>;

/// A plan under way.
#[derive(Debug)]
pub struct PlanRun<'a> {
    plan: &'a Plan,
    kernel: Kernel,
    memory: Memory,
    history: &'a History,
    label: Label,
    element_bytes: usize,
    windows: Option<&'a HostWindows>,
    user: UserMemory,
    scratch: *mut u8,
    scratch_shift: usize,
    flag_base: u64,
    store: Store,
    /// [`plan::Spec::carries_partials`](crate::plan::Spec::carries_partials)
    carries_partials: bool,
    lanes: Vec<LaneState>,
    sources: Vec<*const u8>,
    targets: Vec<*mut u8>,
    cached: Vec<*mut u8>,
    /// The slots of the step under way, which are the last of `cached`.
    slots: Vec<(Rank, NonNull<u8>)>,
    /// What NICs write of the output.
    holds: Vec<NicHold>,
    /// What NICs read of this run's memory, for whom.
    lent: Vec<Lent>,
    /// What the trace has of its steps.
    spans: Option<Box<StepSpans>>,
}

/// Bytes from which a fold writes what peers read apart from output: bench/NOTES.md, "A fold writes output, and a copy
/// brings it to peers".
const FOLD_APART_BYTES: usize = 8 << 10;

/// Bytes of the room for folds: few enough to stay in the first or second cache, and enough that the C library copies
/// whole lines.
const ROOM_BYTES: usize = 32 << 10;

/// Whether a step has its sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Collected {
    All,
    /// The message of a peer has not come.
    LacksOne,
    /// A peer has sent for a later call.
    IsPassedBy,
}

/// Where a lane stands.
#[derive(Debug, Clone, Copy)]
struct LaneState {
    turn: u32,
    turns: u32,
    step: usize,
    /// What its step lacked when it was last tried.
    lacks: Lack,
}

/// What a step that combines waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// What its sources send.
    Sources,
    /// Room at the peers that it sends to.
    Room,
    /// Memory that it writes, and that NICs still read.
    LentMemory,
}

/// Memory that a NIC reads.
#[derive(Debug)]
struct Lent {
    peer: Rank,
    memory: Range<*const u8>,
    hold: NicHold,
}

/// What of a pass follows from its step.
#[derive(Debug, Clone, Copy)]
struct PassKind {
    /// The source that is my own input.
    raw: Option<usize>,
    finish: bool,
    average: Average,
}

impl PassKind {
    /// Whether a pass of this kind with one source changes no bit.
    fn is_copy(self, kernel: &Kernel) -> bool {
        kernel.is_copy(self.raw, self.finish, self.average)
    }
}

/// What a [`PlanRun`] needs besides the plan.
#[derive(Debug)]
pub struct Setting<'a> {
    /// The arithmetic.
    pub kernel: Kernel,
    /// My buffers.
    pub memory: Memory,
    /// What all ranks must agree on.
    pub operation: &'a Operation,
    /// What this rank has called before.
    pub history: &'a History,
    /// The host's mapped memory, where the plan names windows or flags.
    pub windows: Option<&'a HostWindows>,
    /// The host ranks' buffers, where the plan names them.
    pub user: UserMemory,
    /// My scratch: that of my arena where `windows` is given.
    pub scratch: *mut u8,
    /// Bytes from the beginning of each rank's scratch to the set that this run uses.
    pub scratch_shift: usize,
    /// The values of the flags of my host when the plan began.
    pub flag_base: u64,
    /// How to write output: through the caches or past them.
    pub store: Store,
    /// For whom the trace has its steps, if at all.
    pub(crate) spans: Option<StepOwner>,
}

impl<'a> PlanRun<'a> {
    /// A run of `plan` that has not begun. What its [`Program`](crate::exec::Program) needs is connected.
    ///
    /// # Safety
    /// Until the run is dropped, `setting.scratch` is good for what the plan's limits say, `setting.memory` is good for
    /// what the plan's spec says of input and output, nobody else touches it but peers through the plan, and each entry
    /// of `setting.user` is good for the same while its lease is held.
    pub unsafe fn new(plan: &'a Plan, setting: Setting<'a>) -> PlanRun<'a> {
        let begun = |lane| LaneState { turn: 0, turns: turns(lane), step: 0, lacks: Lack::Sources };
        let lanes: Vec<LaneState> = plan.lanes.iter().map(begun).collect();
        let spans = setting.spans.and_then(|of| StepSpans::of_run(of, setting.operation.sequence, lanes.len()));
        PlanRun {
            plan,
            kernel: setting.kernel,
            memory: setting.memory,
            history: setting.history,
            label: setting.operation.label(),
            element_bytes: setting.operation.data_type.size() as usize,
            windows: setting.windows,
            user: setting.user,
            scratch: setting.scratch,
            scratch_shift: setting.scratch_shift,
            flag_base: setting.flag_base,
            store: setting.store,
            carries_partials: plan.spec.carries_partials(),
            lanes,
            sources: Vec::new(),
            targets: Vec::new(),
            cached: Vec::new(),
            slots: Vec::new(),
            holds: Vec::new(),
            lent: Vec::new(),
            spans,
        }
    }

    /// Runs `lane` until it ends or cannot move.
    fn run_lane(&mut self, lane: usize, links: &mut Links) -> Result<Progress> {
        let plan = self.plan;
        let steps = &plan.lanes[lane].steps;
        let mut moved = Progress::Idle;
        while self.lanes[lane].turn < self.lanes[lane].turns {
            let state = self.lanes[lane];
            let step = &steps[state.step];
            if let Some(round) = plan.lanes[lane].round_of(step, u64::from(state.turn)) {
                if let Some(spans) = &mut self.spans {
                    spans.begin(lane);
                }
                if !self.run_step(lane, &step.action, round, links)? {
                    return Ok(moved);
                }
                if let Some(spans) = &mut self.spans {
                    let bytes = match &step.action {
                        Action::Combine(combine) => plan.lanes[lane].sizes.length(combine, round).index(),
                        Action::Enter { .. } | Action::Signal { .. } | Action::Wait { .. } => 0,
                    };
                    spans.end(lane, &step.action, (plan.lanes[lane].channel, bytes * self.element_bytes));
                }
            }
            moved = Progress::Moved;
            let state = &mut self.lanes[lane];
            state.step += 1;
            if state.step == steps.len() {
                state.step = 0;
                state.turn += 1;
            }
        }
        Ok(Progress::Done)
    }

    /// Runs the step; returns false if it must wait.
    fn run_step(&mut self, lane: usize, action: &Action, round: u32, links: &mut Links) -> Result<bool> {
        match action {
            // The ranks of the host have met before the run began: `exec::epoch`.
            Action::Enter { .. } => Ok(true),
            Action::Combine(combine) => {
                let lack = self.combine(combine, round, &self.plan.lanes[lane], links)?;
                if let Some(lack) = lack {
                    self.lanes[lane].lacks = lack;
                }
                Ok(lack.is_none())
            }
            Action::Signal { flag, .. } => {
                self.host().mine().flag(lane, *flag).raise(self.flag_target(round));
                Ok(true)
            }
            Action::Wait { peer, flag } => {
                let host = self.host();
                Ok(host.arenas[host.place(*peer)].flag(lane, *flag).reached(self.flag_target(round)))
            }
        }
    }

    /// Runs a step that combines: `None`, or what it lacks.
    fn combine(&mut self, combine: &Combine, round: u32, lane: &Lane, links: &mut Links) -> Result<Option<Lack>> {
        let length = lane.sizes.length(combine, round).index();
        if length == 0 {
            return Ok(None);
        }
        let channel = Channel::Collective(lane.channel);
        let first = |span: &Span| lane.sizes.at(span, combine, round).index();
        let bytes = length * self.element_bytes;
        let own = |source: &Operand| matches!(source, Operand::Local(span) if span.buffer == RankBuffer::Input);
        let kind = PassKind {
            raw: combine.sources.iter().position(own),
            finish: combine.finish,
            average: if self.carries_partials { Average::Parts(combine.inputs().into()) } else { Average::Whole },
        };
        let is_copy = combine.sources.len() == 1 && kind.is_copy(&self.kernel);
        if self.is_lent(combine, &first, bytes) {
            return Ok(Some(Lack::LentMemory));
        }
        let taken = match self.collect_sources(combine, &first, (length, channel), links)? {
            Collected::All => false,
            Collected::LacksOne if is_copy => {
                if !self.take_source(combine, &first, (bytes, channel), links)? {
                    return Ok(Some(Lack::Sources));
                }
                true
            }
            Collected::LacksOne | Collected::IsPassedBy => return Ok(Some(Lack::Sources)),
        };
        if !self.collect_targets(combine, &first, (length, channel), links) {
            return Ok(Some(Lack::Room));
        }
        match self.to_send(is_copy, (bytes, channel), links) {
            Some(from) => {
                self.cached.truncate(self.cached.len() - self.slots.len());
                // Slots are given back, and peers that reach memory of this rank know when a step is done.
                let is_own = !is_copy || taken || matches!(combine.sources[..], [Operand::Local(_)]);
                let from = (from, is_own && self.windows.is_none());
                if is_copy {
                    self.send_from(from, (bytes, channel), links)?;
                }
                self.store_result(kind, length, links);
                if !is_copy {
                    self.send_from(from, (bytes, channel), links)?;
                }
            }
            None => {
                self.store_result(kind, length, links);
                for (peer, _) in &self.slots {
                    links.sender(*peer, channel).publish(bytes, self.label);
                }
            }
        }
        for source in combine.sources.iter().filter(|_| !taken) {
            if let Operand::Slot(peer) = source {
                links.receiver(*peer, channel).release();
            }
        }
        Ok(None)
    }

    /// Whether a NIC still has memory that a step writes.
    fn is_lent(&mut self, combine: &Combine, first: &impl Fn(&Span) -> usize, bytes: usize) -> bool {
        if self.lent.is_empty() {
            return false;
        }
        self.lent.retain(|lent| !lent.hold.is_over());
        combine.targets.iter().any(|target| match target {
            Operand::Local(span) => {
                let start = self.local(span, first(span)).cast_const();
                let end = start.wrapping_add(bytes);
                self.lent.iter().any(|Lent { memory, .. }| memory.start < end && start < memory.end)
            }
            Operand::Window(..) | Operand::Slot(_) => false,
        })
    }

    fn collect_sources(
        &mut self,
        combine: &Combine,
        first: &impl Fn(&Span) -> usize,
        (length, channel): (usize, Channel),
        links: &mut Links,
    ) -> Result<Collected> {
        self.sources.clear();
        for source in &combine.sources {
            let place = match source {
                Operand::Local(span) => self.local(span, first(span)).cast_const(),
                Operand::Window(peer, span) => self.window(*peer, span, first(span)).cast_const(),
                Operand::Slot(peer) => {
                    let receiver = links.receiver(*peer, channel);
                    let Some(message) = receiver.peek().map_err(|error| error.about(*peer))? else {
                        return Ok(Collected::LacksOne);
                    };
                    if message.label != self.label || message.bytes != length * self.element_bytes {
                        // The peer has finished this operation without sending for it, so it called another operation.
                        // It reports that when it learns where this rank is stuck.
                        if sequence(message.label) > sequence(self.label) {
                            return Ok(Collected::IsPassedBy);
                        }
                        return Err(self.history.mismatch(self.label, *peer, message.label));
                    }
                    message.payload.as_ptr().cast_const()
                }
            };
            self.sources.push(place);
        }
        Ok(Collected::All)
    }

    /// Takes the one source of a copy past its ring, in which nothing lies, straight into an output, which then is the
    /// source. False where it has not come whole, or comes by the ring.
    fn take_source(
        &mut self,
        combine: &Combine,
        first: &impl Fn(&Span) -> usize,
        (bytes, channel): (usize, Channel),
        links: &mut Links,
    ) -> Result<bool> {
        let [Operand::Slot(peer)] = combine.sources[..] else { return Ok(false) };
        let output = combine.targets.iter().find_map(|target| match target {
            Operand::Local(span) if span.buffer == RankBuffer::Output => Some(self.local(span, first(span))),
            Operand::Local(_) | Operand::Window(..) | Operand::Slot(_) => None,
        });
        let Some(into) = output else { return Ok(false) };
        // The rest of the step must not wait once its source has come.
        let is_full = |target: &Operand| match target {
            Operand::Slot(peer) => !links.sender(*peer, channel).has_credit(),
            Operand::Local(_) | Operand::Window(..) => false,
        };
        if combine.targets.iter().any(is_full) {
            return Ok(false);
        }
        let mut hold = None;
        // SAFETY: the constructor's contract for the output, and the plan's proof for the span inside it; as long as
        // this run, which keeps what is left in `hold`.
        let taken = unsafe { links.take((peer, channel), (into, &mut hold), (bytes, self.label)) };
        self.holds.extend(hold);
        let taken = taken?;
        if taken == Taken::Whole {
            self.holds.retain(|hold| !hold.is_over());
        }
        self.sources.push(into.cast_const());
        Ok(taken == Taken::Whole)
    }

    /// Where pumps can read in place what the step sends: of a copy its source, else an output that is in the caches.
    fn to_send(&self, is_copy: bool, (bytes, channel): (usize, Channel), links: &Links) -> Option<*const u8> {
        let end = |peer: &Rank| (*peer, channel);
        let lends = self.windows.is_none();
        let can = |peer: &Rank| links.may_pass(end(peer), bytes) || (lends && links.hands_over(end(peer), bytes));
        if !self.slots.iter().any(|(peer, _)| can(peer)) {
            return None;
        }
        if is_copy {
            return self.sources.first().copied();
        }
        self.targets.first().map(|output| output.cast_const()).filter(|_| self.store == Store::Cached)
    }

    /// Sends what lies at `from` to the peers of the step's slots: past the ring where their pump takes it.
    /// Where the run `lends` it, a NIC may have it until the run ends.
    fn send_from(
        &mut self,
        (from, lends): (*const u8, bool),
        (bytes, channel): (usize, Channel),
        links: &mut Links,
    ) -> Result<()> {
        for (peer, slot) in &self.slots {
            if lends && links.hands_over((*peer, channel), bytes) {
                // SAFETY: the constructor's contract, as long as this run, which keeps the answer and writes nothing
                // there before that is over.
                let hold = unsafe { links.hand_over((*peer, channel), from, (bytes, self.label)) }?;
                if let Some(hold) = hold {
                    self.lent.push(Lent { peer: *peer, memory: from..from.wrapping_add(bytes), hold });
                    continue;
                }
            }
            // SAFETY: the constructor's contract for user memory, and the plan's proof for the span inside it; a slot
            // as a source is ours until it is released, and none of this connection, which sends.
            if !unsafe { links.pass((*peer, channel), from, (bytes, self.label)) }? {
                // SAFETY: as above; the slot is reserved for as many bytes.
                unsafe { slot.as_ptr().copy_from_nonoverlapping(from, bytes) };
                links.sender(*peer, channel).publish(bytes, self.label);
            }
        }
        Ok(())
    }

    fn collect_targets(
        &mut self,
        combine: &Combine,
        first: &impl Fn(&Span) -> usize,
        (length, channel): (usize, Channel),
        links: &mut Links,
    ) -> bool {
        self.targets.clear();
        self.cached.clear();
        self.slots.clear();
        for target in &combine.targets {
            let (place, output) = match target {
                Operand::Local(span) => (self.local(span, first(span)), span.buffer == RankBuffer::Output),
                Operand::Window(peer, span) => {
                    (self.window(*peer, span, first(span)), span.buffer == RankBuffer::Output)
                }
                Operand::Slot(peer) => {
                    let Some(slot) = links.sender(*peer, channel).reserve(length * self.element_bytes) else {
                        return false;
                    };
                    self.slots.push((*peer, slot));
                    continue;
                }
            };
            if output { self.targets.push(place) } else { self.cached.push(place) }
        }
        self.cached.extend(self.slots.iter().map(|(_, slot)| slot.as_ptr()));
        true
    }

    /// Output may pass the caches by; slots and scratch are read soon and stay in them.
    fn store_result(&mut self, kind: PassKind, count: usize, links: &mut Links) {
        let PassKind { raw, finish, average } = kind;
        // In place, a copy of a buffer onto itself is left out, even if there are other targets.
        if let [source] = self.sources[..]
            && kind.is_copy(&self.kernel)
        {
            self.targets.retain(|target| target.cast_const() != source);
            if self.targets.is_empty() && self.cached.is_empty() {
                return;
            }
        }
        let pass = Pass { sources: &self.sources, raw, targets: &[], count, finish, average, store: Store::Cached };
        // With pumps, slots are written through the caches: a pump reads them on this processor to send them.
        if !self.cached.is_empty() && !links.has_pumps() {
            let bytes = count * self.element_bytes;
            let copies = self.sources.len() == 1 && kind.is_copy(&self.kernel);
            let mut turn =
                if copies { links.staging.turn(bytes) } else { TimedCopy::untimed(links.staging.preferred(bytes)) };
            // A timed copy must not write the output in the same pass: the store policy learns from its time.
            if turn.store == Store::Streaming && self.store == Store::Streaming && !turn.is_timed() {
                self.cached.extend_from_slice(&self.targets);
                // SAFETY: as below.
                return unsafe { self.kernel.run(&Pass { targets: &self.cached, store: Store::Streaming, ..pass }) };
            }
            let folds_apart = !copies && bytes >= FOLD_APART_BYTES;
            if folds_apart && self.targets.is_empty() && turn.store == Store::Cached {
                return self.fold_in_room(kind, count, &mut links.fold_room);
            }
            let output_stays_cached = self.store == Store::Cached;
            if turn.is_timed() || turn.store == Store::Streaming || (folds_apart && output_stays_cached) {
                self.store_apart(pass, copies, &mut turn);
                links.staging.learn(&turn, bytes);
                return;
            }
        }
        if self.store == Store::Cached || self.cached.is_empty() {
            let store = if self.cached.is_empty() { self.store } else { Store::Cached };
            self.cached.extend_from_slice(&self.targets);
            let pass = Pass { targets: &self.cached, store, ..pass };
            // SAFETY: the constructor's contract for user memory; the plan's proof for spans inside buffers and for
            // order between ranks; slots are ours between peek and release, reserve and publish.
            unsafe { self.kernel.run(&pass) };
            return;
        }
        let pass = Pass { targets: &self.cached, ..pass };
        // SAFETY: as above.
        unsafe { self.kernel.run(&pass) };
        if !self.targets.is_empty() {
            let copy = Pass {
                sources: &[self.cached[0].cast_const()],
                raw: None,
                targets: &self.targets,
                count,
                finish: false,
                average: Average::Sum,
                store: self.store,
            };
            // SAFETY: as above; the source is what the pass before has just written.
            unsafe { self.kernel.run(&copy) };
        }
    }

    /// As [`PlanRun::store_result`], what peers read apart from output, and in `turn`'s way. A fold writes the output,
    /// and what peers read is copied from there: a copy writes whole lines at a time, which takes them from a far cache
    /// at little cost, where each store of a fold waits for its line.
    fn store_apart(&self, pass: Pass<'_>, copies: bool, turn: &mut TimedCopy) {
        let staged = Pass { targets: &self.cached, store: turn.store, ..pass };
        let output = Pass { targets: &self.targets, store: self.store, ..pass };
        if let Some(first) = self.targets.first().filter(|_| !copies) {
            // SAFETY: as in `store_result`.
            unsafe { self.kernel.run(&output) };
            let copy =
                Pass { sources: &[first.cast_const()], raw: None, finish: false, average: Average::Sum, ..staged };
            // SAFETY: as in `store_result`; the source is what the pass before has just written.
            return unsafe { self.kernel.run(&copy) };
        }
        turn.begin();
        // SAFETY: as in `store_result`.
        unsafe { self.kernel.run(&staged) };
        turn.end();
        if !self.targets.is_empty() {
            // SAFETY: as in `store_result`.
            unsafe { self.kernel.run(&output) };
        }
    }

    /// As [`PlanRun::store_apart`] where there is no output: `room` keeps what a fold makes, piece by piece, until it
    /// is copied.
    fn fold_in_room(&mut self, kind: PassKind, count: usize, room: &mut Vec<u8>) {
        let PassKind { raw, finish, average } = kind;
        room.resize(ROOM_BYTES, 0);
        let room = room.as_mut_ptr();
        let most = ROOM_BYTES / self.element_bytes;
        let mut left = count;
        while left > 0 {
            let count = left.min(most);
            let fold =
                Pass { sources: &self.sources, raw, targets: &[room], count, finish, average, store: Store::Cached };
            // SAFETY: as in `store_result`; the room, which nobody else has, is as large as the most elements.
            unsafe { self.kernel.run(&fold) };
            let sources = &[room.cast_const()];
            let copy = Pass { sources, raw: None, targets: &self.cached, finish: false, average: Average::Sum, ..fold };
            // SAFETY: as in `store_result`; the source is what the pass before has just written.
            unsafe { self.kernel.run(&copy) };
            let bytes = count * self.element_bytes;
            self.sources.iter_mut().for_each(|source| *source = source.wrapping_add(bytes));
            self.cached.iter_mut().for_each(|target| *target = target.wrapping_add(bytes));
            left -= count;
        }
    }

    fn local(&self, span: &Span, first: usize) -> *mut u8 {
        let base = match span.buffer {
            RankBuffer::Input => self.memory.input.cast_mut(),
            RankBuffer::Output => self.memory.output,
            RankBuffer::Scratch => self.scratch.wrapping_add(self.scratch_shift),
        };
        base.wrapping_add(first * self.element_bytes)
    }

    fn window(&self, peer: Rank, span: &Span, first: usize) -> *mut u8 {
        let host = self.host();
        let place = host.place(peer);
        let base = match span.buffer {
            RankBuffer::Input => self.user[place].input.cast_mut(),
            RankBuffer::Output => self.user[place].output,
            RankBuffer::Scratch => host.arenas[place].scratch().as_ptr().wrapping_add(self.scratch_shift),
        };
        base.wrapping_add(first * self.element_bytes)
    }

    fn host(&self) -> &'a HostWindows {
        self.windows.expect("plans that name windows or flags run with the host's windows open")
    }

    fn flag_target(&self, round: u32) -> u64 {
        self.flag_base + u64::from(round) + 1
    }

    /// The next action of a lane, with its round.
    fn current(&self, lane: usize) -> Option<(&'a Action, u32)> {
        let (state, plan_lane) = (self.lanes[lane], &self.plan.lanes[lane]);
        if state.turn >= state.turns {
            return None;
        }
        let step = &plan_lane.steps[state.step];
        plan_lane.round_of(step, u64::from(state.turn)).map(|round| (&step.action, round))
    }
}

impl Task for PlanRun<'_> {
    fn progress(&mut self, links: &mut Links) -> Result<Progress> {
        let (mut moved, mut done) = (Progress::Idle, true);
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].turn >= self.lanes[lane].turns {
                continue;
            }
            match self.run_lane(lane, links)? {
                Progress::Done => moved = Progress::Moved,
                Progress::Moved => (moved, done) = (Progress::Moved, false),
                Progress::Idle => done = false,
            }
        }
        if done {
            self.lent.retain(|lent| !lent.hold.is_over());
        }
        Ok(if done && self.lent.is_empty() { Progress::Done } else { moved })
    }

    fn blocked<'b>(&'b self, links: &'b Links) -> Option<Blocked<'b>> {
        let mut open = (0..self.lanes.len()).filter_map(|lane| Some((lane, self.current(lane)?)));
        let (lane, (action, round)) = open.next()?;
        if open.next().is_some() {
            return None;
        }
        match action {
            Action::Enter { .. } | Action::Signal { .. } => None,
            Action::Wait { peer, flag } => {
                let host = self.host();
                Some(Blocked { flag: (host.arenas[host.place(*peer)].flag(lane, *flag), self.flag_target(round)) })
            }
            // No flag tells of it.
            Action::Combine(_) if self.lanes[lane].lacks == Lack::LentMemory => None,
            Action::Combine(combine) => {
                let channel = Channel::Collective(self.plan.lanes[lane].channel);
                let missing = combine.sources.iter().filter_map(|operand| match operand {
                    Operand::Slot(peer) => Some(links.receiver_ref(*peer, channel)?.arrival()),
                    Operand::Local(_) | Operand::Window(..) => None,
                });
                let full = combine.targets.iter().filter_map(|operand| match operand {
                    Operand::Slot(peer) => Some(links.sender_ref(*peer, channel)?.credit()),
                    Operand::Local(_) | Operand::Window(..) => None,
                });
                missing.chain(full).find(|(flag, target)| !flag.reached(*target)).map(|flag| Blocked { flag })
            }
        }
    }

    fn waiting_for(&self) -> String {
        let waiting = (0..self.lanes.len()).find_map(|lane| Some((lane, self.current(lane)?)));
        let of = |what: &str, peers: Vec<String>| format!("{} {} ({what})", plural(peers.len()), peers.join(", "));
        let borrowers = || {
            let peers: BTreeSet<Rank> = self.lent.iter().map(|lent| lent.peer).collect();
            of("to take data of this call", peers.iter().map(Rank::to_string).collect())
        };
        let Some((lane, (action, _))) = waiting else {
            return if self.lent.is_empty() { "nothing".to_owned() } else { borrowers() };
        };
        match action {
            Action::Enter { .. } | Action::Signal { .. } => "nothing".to_owned(),
            Action::Wait { peer, .. } => of("to do its part of this call", vec![peer.to_string()]),
            Action::Combine(combine) => {
                let slots = |operands: &[Operand]| {
                    let peers = operands.iter().filter_map(|operand| match operand {
                        Operand::Slot(peer) => Some(peer.to_string()),
                        Operand::Local(_) | Operand::Window(..) => None,
                    });
                    peers.collect::<Vec<_>>()
                };
                let sources = slots(&combine.sources);
                match self.lanes[lane].lacks {
                    Lack::LentMemory => borrowers(),
                    Lack::Sources if !sources.is_empty() => of("to send data of this call", sources),
                    Lack::Sources | Lack::Room => of("to take data of this call", slots(&combine.targets)),
                }
            }
        }
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "rank" } else { "ranks" }
}

fn turns(lane: &Lane) -> u32 {
    if lane.steps.is_empty() {
        return 0;
    }
    lane.sizes.rounds + u32::from(lane.greatest_lag())
}
