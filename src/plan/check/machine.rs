//! Runs the plans of all ranks, with symbols in place of data.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use super::memory::{Clock, Conflict, Stamp};
use super::store::Store;
use super::value::{Strip, Value, side_by_side};
use super::{Flaw, Proof};
use crate::plan::{Action, Combine, FLAGS, Lane, LaneSizes, Operand, Plan, RankBuffer, Span, Spec, Windows};
use crate::types::{Collective, Rank};

/// A lane at work.
pub(super) struct Worker {
    pub(super) rank: Rank,
    lane: usize,
    turn: u64,
    step: usize,
    /// The round of the step under way, or of the next.
    round: u32,
    pub(super) clock: Clock,
    /// Step and round of each moment of the lane's clock, for reports.
    log: Vec<(usize, u32)>,
}

pub(super) struct Message {
    content: Vec<Strip>,
    clock: Rc<Clock>,
}

/// What a step waits for.
pub(super) enum Need {
    Message(Rank),
    Slot(Rank),
    Flag(Rank, u8),
    Enter(Rank),
}

pub(super) type Connection = (Rank, Rank, u8);

pub(super) struct Machine<'a> {
    pub(super) plans: &'a [Plan],
    pub(super) workers: Vec<Worker>,
    pub(super) stores: Vec<Store>,
    pub(super) connections: HashMap<Connection, VecDeque<Message>>,
    flags: HashMap<(Rank, usize, u8), Vec<Rc<Clock>>>,
    /// How often each rank runs its plan, one run behind the other.
    pub(super) runs: u32,
    /// The run that each rank is in.
    pub(super) run: Vec<u32>,
    /// The clock of each lane (rank, lane, run) when it entered that run; kept only if there are several runs.
    entered: HashMap<(Rank, usize, u32), Rc<Clock>>,
    /// The host of each rank.
    hosts: Vec<usize>,
    pub(super) proof: Proof,
}

impl<'a> Machine<'a> {
    pub(super) fn new(plans: &'a [Plan], runs: u32) -> Machine<'a> {
        let spec = &plans[0].spec;
        let lanes = plans[0].lanes.len();
        // Threads: the lanes of all ranks, rank by rank, then the callers of all ranks.
        let threads = plans.len() * (lanes + 1);
        let caller = |rank: Rank| plans.len() * lanes + rank.index();
        let worker = |rank: Rank, lane: usize| {
            let mut clock = vec![0; threads];
            clock[caller(rank)] = 1;
            Worker { rank, lane, turn: 0, step: 0, round: 0, clock, log: vec![(0, 0)] }
        };
        let workers = spec.world.ranks().flat_map(|rank| (0..lanes).map(move |lane| (rank, lane)));
        let mut hosts = vec![0; plans.len()];
        for (host, ranks) in spec.layout.hosts().iter().enumerate() {
            ranks.iter().for_each(|rank| hosts[rank.index()] = host);
        }
        Machine {
            plans,
            workers: workers.map(|(rank, lane)| worker(rank, lane)).collect(),
            stores: spec.world.ranks().map(|rank| Store::new(spec, rank, caller(rank))).collect(),
            connections: HashMap::new(),
            flags: HashMap::new(),
            runs,
            run: vec![0; plans.len()],
            entered: HashMap::new(),
            hosts,
            proof: Proof::default(),
        }
    }

    pub(super) fn spec(&self) -> &'a Spec {
        &self.plans[0].spec
    }

    fn lane(&self, worker: usize) -> &'a Lane {
        let Worker { rank, lane, .. } = &self.workers[worker];
        &self.plans[rank.index()].lanes[*lane]
    }

    fn sizes(&self, worker: usize) -> &'a LaneSizes {
        &self.lane(worker).sizes
    }

    /// Runs every lane to its end.
    pub(super) fn run(&mut self) -> Result<(), Flaw> {
        loop {
            let before = self.proof.steps;
            for worker in 0..self.workers.len() {
                while self.advance(worker)? {}
            }
            let again = self.begin_again()?;
            if self.proof.steps == before && !again {
                break;
            }
        }
        self.all_done()
    }

    /// Lets each rank that has ended a run begin the next one, unless that run was the last. True if any rank did.
    fn begin_again(&mut self) -> Result<bool, Flaw> {
        let mut any = false;
        for rank in self.spec().world.ranks() {
            let workers: Vec<usize> =
                (0..self.workers.len()).filter(|worker| self.workers[*worker].rank == rank).collect();
            let ended = workers.iter().all(|worker| self.next(*worker).is_none());
            if !ended || self.run[rank.index()] + 1 >= self.runs {
                continue;
            }
            // Between two runs the caller checks the outputs and fills its buffers again.
            let clock = self.settle_rank(rank)?;
            self.run[rank.index()] += 1;
            let caller = self.workers.len() + rank.index();
            let now = Stamp { thread: caller, time: self.run[rank.index()] + 1 };
            let spec = self.spec();
            self.stores[rank.index()].refill(spec, rank, now);
            for worker in workers {
                let worker = &mut self.workers[worker];
                join(&mut worker.clock, &clock);
                worker.clock[caller] = now.time;
                (worker.turn, worker.step) = (0, 0);
            }
            any = true;
        }
        Ok(any)
    }

    /// How many rounds a lane has run in all runs before the current one.
    fn base(&self, worker: usize) -> usize {
        let rounds = usize::try_from(self.lane(worker).sizes.rounds).unwrap_or(usize::MAX);
        rounds * self.run[self.workers[worker].rank.index()] as usize
    }

    /// Joins into a lane's clock the clocks with which its peers have entered the same run.
    fn enter(&mut self, worker: usize, peers: &[Rank]) {
        let (rank, lane) = (self.workers[worker].rank, self.workers[worker].lane);
        let run = self.run[rank.index()];
        for peer in peers {
            if let Some(clock) = self.entered.get(&(*peer, lane, run)) {
                join(&mut self.workers[worker].clock, clock);
            }
        }
    }

    /// Runs the next step of a lane, if there is one that can run.
    fn advance(&mut self, worker: usize) -> Result<bool, Flaw> {
        let lane = self.lane(worker);
        let Some((index, round)) = self.next(worker) else { return Ok(false) };
        let step = &lane.steps[index];
        if matches!(step.action, Action::Enter { .. }) {
            let Worker { rank, lane, clock, .. } = &self.workers[worker];
            let place = (*rank, *lane, self.run[rank.index()]);
            self.entered.entry(place).or_insert_with(|| Rc::new(clock.clone()));
        }
        if self.need(worker, round)?.is_some() {
            return Ok(false);
        }
        let at = &mut self.workers[worker];
        at.log.push((index, round));
        let time = u32::try_from(at.log.len() - 1).map_err(|_| Flaw::new("a lane has more than 2^32 steps"))?;
        at.clock[worker] = time;
        match &step.action {
            Action::Enter { .. } if index > 0 || step.lag > 0 => {
                return Err(self.flaw(worker, "enters when the lane has begun"));
            }
            // In a single run entering orders nothing: the order inside a plan must come from its other steps.
            Action::Enter { .. } if self.runs == 1 => {}
            Action::Enter { peers } => self.enter(worker, peers),
            Action::Combine(combine) => self.combine(worker, combine, round)?,
            Action::Signal { flag, .. } => self.signal(worker, *flag, round)?,
            Action::Wait { peer, flag } => {
                let raised = &self.flags[&(*peer, self.workers[worker].lane, *flag)];
                let round = self.base(worker) + usize::try_from(round).expect("a round fits a usize");
                let clock = Rc::clone(&raised[round]);
                join(&mut self.workers[worker].clock, &clock);
            }
        }
        self.workers[worker].step += 1;
        self.proof.steps += 1;
        Ok(true)
    }

    /// The next step of a lane and its round; skips steps that do not run in this turn.
    pub(super) fn next(&mut self, worker: usize) -> Option<(usize, u32)> {
        let lane = self.lane(worker);
        let turns = u64::from(lane.sizes.rounds) + u64::from(lane.greatest_lag());
        let at = &mut self.workers[worker];
        while at.turn < turns {
            while let Some(step) = lane.steps.get(at.step) {
                let round = lane.round_of(step, at.turn);
                let empty = |round: u32| match &step.action {
                    Action::Combine(combine) => lane.sizes.length(combine, round).0 == 0,
                    Action::Enter { .. } | Action::Signal { .. } | Action::Wait { .. } => false,
                };
                if let Some(round) = round.filter(|round| !empty(*round)) {
                    at.round = round;
                    return Some((at.step, round));
                }
                at.step += 1;
            }
            (at.turn, at.step) = (at.turn + 1, 0);
        }
        None
    }

    /// What the next step of a lane waits for.
    pub(super) fn need(&self, worker: usize, round: u32) -> Result<Option<Need>, Flaw> {
        let lane = self.lane(worker);
        let Worker { rank: me, lane: number, step, .. } = &self.workers[worker];
        let queued = |from: Rank, to: Rank| self.connections.get(&(from, to, lane.channel)).map_or(0, VecDeque::len);
        match &lane.steps[*step].action {
            Action::Combine(combine) => {
                let slots = usize::try_from(self.spec().limits.slots).unwrap_or(usize::MAX);
                let source = combine.sources.iter().find_map(|operand| match operand {
                    Operand::Slot(from) if queued(*from, *me) == 0 => Some(Need::Message(*from)),
                    Operand::Slot(_) | Operand::Local(_) | Operand::Window(..) => None,
                });
                let target = combine.targets.iter().find_map(|operand| match operand {
                    Operand::Slot(to) if queued(*me, *to) >= slots => Some(Need::Slot(*to)),
                    Operand::Slot(_) | Operand::Local(_) | Operand::Window(..) => None,
                });
                Ok(source.or(target))
            }
            Action::Enter { peers } => {
                let run = self.run[me.index()];
                let entered = |peer: &&Rank| self.entered.contains_key(&(**peer, *number, run));
                let missing = peers.iter().find(|peer| !entered(peer));
                Ok(missing.filter(|_| self.runs > 1).map(|peer| Need::Enter(*peer)))
            }
            Action::Signal { .. } => Ok(None),
            Action::Wait { peer, flag } => {
                let mapped = self.spec().windows != Windows::None && self.neighbours(*me, *peer);
                if !mapped || peer == me {
                    return Err(self.flaw(worker, format!("waits for a flag of rank {peer}, which is not mapped")));
                }
                let raised = self.flags.get(&(*peer, *number, *flag)).map_or(0, Vec::len);
                let round = self.base(worker).saturating_add(usize::try_from(round).unwrap_or(usize::MAX));
                Ok((raised <= round).then_some(Need::Flag(*peer, *flag)))
            }
        }
    }

    fn neighbours(&self, one: Rank, other: Rank) -> bool {
        let host = |rank: Rank| self.hosts.get(rank.index());
        host(one).is_some() && host(one) == host(other)
    }

    fn signal(&mut self, worker: usize, flag: u8, round: u32) -> Result<(), Flaw> {
        let due = self.base(worker) + round as usize + 1;
        let Worker { rank, lane, clock, .. } = &self.workers[worker];
        if usize::from(flag) >= FLAGS {
            return Err(self.flaw(worker, format!("raises flag {flag}; a lane has {FLAGS}")));
        }
        let raised = self.flags.entry((*rank, *lane, flag)).or_default();
        raised.push(Rc::new(clock.clone()));
        if raised.len() != due {
            return Err(self.flaw(worker, format!("raises flag {flag} twice in a round")));
        }
        Ok(())
    }

    fn combine(&mut self, worker: usize, combine: &Combine, round: u32) -> Result<(), Flaw> {
        self.operands_fit(worker, combine, round)?;
        let length = self.sizes(worker).length(combine, round).0;
        // Join all clocks first: a step is one moment, and comes after all the messages that it takes.
        let mut taken = HashMap::new();
        for operand in &combine.sources {
            if let Operand::Slot(from) = operand {
                let message = self.take(worker, *from)?;
                join(&mut self.workers[worker].clock, &message.clock);
                taken.insert(*from, message.content);
            }
        }
        let mut contents = Vec::new();
        for operand in &combine.sources {
            let content = match operand {
                Operand::Slot(from) => taken.remove(from).unwrap_or_default(),
                Operand::Local(span) => self.read(worker, self.workers[worker].rank, *span, (round, combine))?,
                Operand::Window(owner, span) => self.read(worker, *owner, *span, (round, combine))?,
            };
            let found: u64 = content.iter().map(|strip| strip.length).sum();
            if found != length {
                let text = format!("combines {length} elements, but {} has {found}", name(operand));
                return Err(self.flaw(worker, text));
            }
            contents.push(content);
        }
        let result = self.reduce(worker, combine, &contents)?;
        for operand in &combine.targets {
            match operand {
                Operand::Slot(to) => self.give(worker, *to, &result)?,
                Operand::Local(span) => {
                    self.write(worker, self.workers[worker].rank, *span, (round, combine, &result))?
                }
                Operand::Window(owner, span) => self.write(worker, *owner, *span, (round, combine, &result))?,
            }
        }
        Ok(())
    }

    fn reduce(&self, worker: usize, combine: &Combine, contents: &[Vec<Strip>]) -> Result<Vec<Strip>, Flaw> {
        let reduces = self.spec().collective.reduces();
        if !reduces && (combine.sources.len() != 1 || combine.finish) {
            return Err(self.flaw(worker, "reduces or finishes in a collective that does not reduce"));
        }
        let mut result = Vec::new();
        for (length, values) in side_by_side(contents) {
            let values: Option<Vec<Value>> = values.into_iter().collect();
            let value = match values {
                None if self.spec().collective == Collective::Barrier => None,
                None => return Err(self.flaw(worker, "reads elements that nobody has written")),
                Some(mut values) if values.len() == 1 => values.pop(),
                Some(values) => Some(Value::reduce(&values).map_err(|text| self.flaw(worker, text))?),
            };
            let value = match value {
                Some(value) if combine.finish && value.finished => {
                    return Err(self.flaw(worker, format!("finishes element {} twice", value.index)));
                }
                value => value.map(|value| Value { finished: value.finished || combine.finish, ..value }),
            };
            result.push(Strip { length, value });
        }
        Ok(result)
    }

    /// Whether a combine may name these operands, and none of them overlaps another wrongly.
    fn operands_fit(&self, worker: usize, combine: &Combine, round: u32) -> Result<(), Flaw> {
        let me = self.workers[worker].rank;
        let length = self.sizes(worker).length(combine, round).0;
        let slot = self.spec().limits.slot.0;
        for (at, operand) in combine.sources.iter().chain(&combine.targets).enumerate() {
            let target = at >= combine.sources.len();
            let wrong = match operand {
                Operand::Slot(peer) if *peer == me || peer.index() >= self.plans.len() => "connects to no peer",
                Operand::Slot(_) if length > slot => "sends more than a slot holds",
                Operand::Window(peer, _) if *peer == me || !self.neighbours(me, *peer) => "is not on this host",
                Operand::Window(_, span) if !self.spec().maps(span.buffer) => "is not mapped",
                Operand::Window(_, span) | Operand::Local(span) if target && span.buffer == RankBuffer::Input => {
                    "is a target, and an input"
                }
                Operand::Window(..) | Operand::Local(_) | Operand::Slot(_) => continue,
            };
            return Err(self.flaw(worker, format!("names {}, which {wrong}", name(operand))));
        }
        let twice = |operands: &[Operand]| {
            let slots = |index: usize| matches!(operands[index], Operand::Slot(_));
            (1..operands.len()).any(|index| slots(index) && operands[..index].contains(&operands[index]))
        };
        if twice(&combine.sources) || twice(&combine.targets) {
            return Err(self.flaw(worker, "names a connection twice"));
        }
        self.no_partial_overlap(worker, combine, round)
    }

    /// A target may be exactly a source; it may not overlap one otherwise, nor another target.
    fn no_partial_overlap(&self, worker: usize, combine: &Combine, round: u32) -> Result<(), Flaw> {
        let me = self.workers[worker].rank;
        let sizes = self.sizes(worker);
        let length = sizes.length(combine, round).0;
        let first = |span: &Span| sizes.at(span, combine, round).0;
        let place = |operand: &Operand| match operand {
            Operand::Slot(_) => None,
            Operand::Local(span) => Some((me, self.stores[me.index()].place(span.buffer, first(span)))),
            Operand::Window(owner, span) => Some((*owner, self.stores[owner.index()].place(span.buffer, first(span)))),
        };
        let overlap = |one: (Rank, (usize, u64)), other: (Rank, (usize, u64))| {
            one.0 == other.0 && one.1.0 == other.1.0 && one.1.1.abs_diff(other.1.1) < length
        };
        for (index, target) in combine.targets.iter().enumerate() {
            let Some(here) = place(target) else { continue };
            let sources = combine.sources.iter().filter_map(place).filter(|source| *source != here);
            let targets = combine.targets[..index].iter().filter_map(place);
            if sources.chain(targets).any(|other| overlap(here, other)) {
                return Err(self.flaw(worker, format!("writes {} over another of its operands", name(target))));
            }
        }
        Ok(())
    }

    fn take(&mut self, worker: usize, from: Rank) -> Result<Message, Flaw> {
        let connection = (from, self.workers[worker].rank, self.lane(worker).channel);
        let message = self.connections.get_mut(&connection).and_then(VecDeque::pop_front);
        message.ok_or_else(|| self.flaw(worker, "takes a message that is not there"))
    }

    fn give(&mut self, worker: usize, to: Rank, content: &[Strip]) -> Result<(), Flaw> {
        let connection = (self.workers[worker].rank, to, self.lane(worker).channel);
        let clock = Rc::new(self.workers[worker].clock.clone());
        self.proof.messages += 1;
        self.proof.elements += content.iter().map(|strip| strip.length).sum::<u64>();
        self.connections.entry(connection).or_default().push_back(Message { content: content.to_vec(), clock });
        Ok(())
    }

    fn read(
        &mut self,
        worker: usize,
        owner: Rank,
        span: Span,
        (round, combine): (u32, &Combine),
    ) -> Result<Vec<Strip>, Flaw> {
        let length = self.sizes(worker).length(combine, round).0;
        let first = self.sizes(worker).at(&span, combine, round).0;
        self.inside(worker, (owner, span.buffer), (first, length))?;
        let now = self.now(worker);
        let clock = &self.workers[worker].clock;
        let store = &mut self.stores[owner.index()];
        let (area, start) = store.place(span.buffer, first);
        let memory = store.area(area);
        let found = memory.read((start, length), now, clock);
        let content = memory.look(start, length);
        found.map_err(|conflict| self.unordered(worker, (owner, span.buffer), "reads", conflict))?;
        if span.buffer == RankBuffer::Input {
            let mut index = first;
            for strip in &content {
                if strip.value.as_ref() != Some(&Value::input(owner.get(), index)) {
                    let text = format!("reads input[{index}] of rank {owner}, which has been overwritten");
                    return Err(self.flaw(worker, text));
                }
                index += strip.length;
            }
        } else if self.spec().collective.reduces()
            && content.iter().any(|strip| strip.value.as_ref().is_some_and(|value| value.raw))
        {
            let text = format!("reads an input of rank {owner} under the name of {:?}", span.buffer);
            return Err(self.flaw(worker, text));
        }
        let ready = |value: Value| Value { raw: false, ..value };
        Ok(content.into_iter().map(|strip| Strip { value: strip.value.map(ready), ..strip }).collect())
    }

    fn write(
        &mut self,
        worker: usize,
        owner: Rank,
        span: Span,
        (round, combine, content): (u32, &Combine, &[Strip]),
    ) -> Result<(), Flaw> {
        let length = self.sizes(worker).length(combine, round).0;
        let first = self.sizes(worker).at(&span, combine, round).0;
        self.inside(worker, (owner, span.buffer), (first, length))?;
        let now = self.now(worker);
        let clock = &self.workers[worker].clock;
        let store = &mut self.stores[owner.index()];
        let (area, start) = store.place(span.buffer, first);
        let written = store.area(area).write(start, content, now, clock);
        written.map_err(|conflict| self.unordered(worker, (owner, span.buffer), "writes", conflict))
    }

    fn now(&self, worker: usize) -> Stamp {
        Stamp { thread: worker, time: self.workers[worker].clock[worker] }
    }

    fn flaw(&self, worker: usize, text: impl AsRef<str>) -> Flaw {
        let Worker { step, round, .. } = self.workers[worker];
        Flaw::new(format!("{} {}", self.describe((worker, (step, round))), text.as_ref()))
    }

    pub(super) fn describe(&self, (worker, (step, round)): (usize, (usize, u32))) -> String {
        let Worker { rank, lane, .. } = &self.workers[worker];
        format!("rank {rank} lane {lane} step {step} round {round}")
    }

    fn inside(
        &self,
        worker: usize,
        (owner, buffer): (Rank, RankBuffer),
        (first, length): (u64, u64),
    ) -> Result<(), Flaw> {
        let size = self.stores[owner.index()].size(buffer);
        let end = first.saturating_add(length);
        let Range { start, end: limit } = &self.sizes(worker).scratch;
        let has = if end > size {
            format!("which has {size}")
        } else if buffer == RankBuffer::Scratch && (first < start.0 || end > limit.0) {
            format!("and its lane has [{start}..{limit}]")
        } else {
            return Ok(());
        };
        Err(self.flaw(worker, format!("names {buffer:?}[{first}..{end}] of rank {owner}, {has}")))
    }

    fn unordered(&self, worker: usize, (owner, buffer): (Rank, RankBuffer), verb: &str, conflict: Conflict) -> Flaw {
        let Conflict { element, other, wrote } = conflict;
        let deed = if wrote { "written" } else { "read" };
        let text = format!(
            "{verb} {buffer:?} of rank {owner} (element {element} of its memory), {deed} by {}; nothing orders the two",
            self.whose(other)
        );
        self.flaw(worker, text)
    }

    pub(super) fn whose(&self, stamp: Stamp) -> String {
        match self.workers.get(stamp.thread) {
            None => format!("the caller of rank {}", stamp.thread - self.workers.len()),
            Some(worker) => {
                let moment = worker.log.get(usize::try_from(stamp.time).unwrap_or(usize::MAX));
                self.describe((stamp.thread, moment.copied().unwrap_or_default()))
            }
        }
    }
}

/// Raises a clock to the moments that another clock knows of.
pub(super) fn join(clock: &mut Clock, other: &Clock) {
    clock.iter_mut().zip(other).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
}

fn name(operand: &Operand) -> String {
    match operand {
        Operand::Slot(peer) => format!("the slot of rank {peer}"),
        Operand::Local(span) => format!("its {:?}", span.buffer),
        Operand::Window(peer, span) => format!("the {:?} of rank {peer}", span.buffer),
    }
}
