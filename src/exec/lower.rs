//! Programs as the records that devices run.

use std::collections::HashMap;

use crate::device::lines;
use crate::device::records::{
    self, BlockNumbers, LaneNumbers, LaneRecord, NONE, Numbers, OperandRecord, Records, StepRecord,
};
use crate::exec::Message;
use crate::exec::peer_traffic::{self, PeerTraffic};
use crate::plan::{Action, Combine, FLAGS, Lane, Operand, RankBuffer, Span, Windows};
use crate::sync::primitive::Arc;
use crate::transport::{Channel, Need, Way};
use crate::types::{Protocol, Rank};

const _: () = assert!(FLAGS as u64 == records::FLAGS);

/// The steps of a program as records, for any count that has the same steps.
#[derive(Debug, Clone)]
pub struct LoweredSteps {
    /// The records.
    pub records: Arc<Records>,
    /// The ends of connections that slots name, in the order of [`records::LaunchPart::queues`].
    pub ends: Arc<[Need]>,
}

/// A program as records.
#[derive(Debug, Clone)]
pub struct Lowered {
    /// Its steps.
    pub steps: LoweredSteps,
    /// What depends on the count.
    pub numbers: Arc<Numbers>,
    /// What a run moves to and from peers.
    pub traffic: Arc<[PeerTraffic]>,
}

/// Records that are being built.
#[derive(Debug)]
struct Lowering {
    /// Of slots.
    protocol: Protocol,
    carries_partials: bool,
    records: Records,
    ends: Vec<Need>,
    /// Of messages and copies, which have one block a lane.
    numbers: Numbers,
}

/// What the records of a plan's lanes depend on beside its steps.
#[derive(Debug, Clone, Copy)]
pub struct RecordMeans {
    /// Which memory of peers the plan names.
    pub windows: Windows,
    /// Whose slots it takes.
    pub protocol: Protocol,
    /// [`Spec::carries_partials`](crate::plan::Spec::carries_partials)
    pub carries_partials: bool,
}

/// The records of a lane whose slots are those of Simple, and in which all inputs of an average come together.
pub fn plan(lanes: &[Lane], windows: Windows) -> Lowered {
    plan_by(lanes, (windows, Protocol::Simple))
}

/// The same for slots of a protocol.
pub fn plan_by(lanes: &[Lane], (windows, protocol): (Windows, Protocol)) -> Lowered {
    let means = RecordMeans { windows, protocol, carries_partials: false };
    Lowered { steps: steps(lanes, means), numbers: Arc::new(numbers(lanes)), traffic: peer_traffic::of_lanes(lanes) }
}

/// The steps of a plan's lanes.
pub fn steps(lanes: &[Lane], means: RecordMeans) -> LoweredSteps {
    let mut lowering = Lowering { carries_partials: means.carries_partials, ..Lowering::by(means.protocol) };
    for (number, lane) in (0..).zip(lanes) {
        lowering.lane(lane, if means.windows == Windows::None { NONE } else { number });
    }
    lowering.finish().steps
}

/// The numbers of a plan's lanes.
pub fn numbers(lanes: &[Lane]) -> Numbers {
    let longest = |lane: &Lane| {
        let combines = lane.steps.iter().filter_map(|step| match &step.action {
            Action::Combine(combine) => Some(combine),
            Action::Enter { .. } | Action::Signal { .. } | Action::Wait { .. } => None,
        });
        combines.map(|combine| lane.sizes.length(combine, 0).0).max().unwrap_or(0)
    };
    let of_lane = |lane: &Lane| {
        let sizes = &lane.sizes;
        let turns = if lane.steps.is_empty() { 0 } else { sizes.rounds + u32::from(lane.greatest_lag()) };
        let blocks = sizes.blocks.iter().map(|block| BlockNumbers {
            input: block.input.0,
            output: block.output.0,
            length: block.length.0,
        });
        LaneNumbers {
            rounds: sizes.rounds,
            turns,
            piece: sizes.piece.0,
            depth: sizes.depth.max(1),
            scratch: sizes.scratch.start.0,
            blocks: blocks.collect(),
        }
    };
    Numbers { lanes: lanes.iter().map(of_lane).collect(), longest: lanes.iter().map(longest).max().unwrap_or(0) }
}

/// By what a message travels. Its two ends find the same, where they agree on its count and type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageWay {
    /// The protocol.
    pub protocol: Protocol,
    /// The protocols by which other messages of the connection may travel: [`lines::bit`] of each. A receiver looks
    /// there for a message that does not come, whose sender has called another count or type.
    pub possible: u32,
}

impl MessageWay {
    /// Of a connection that has nothing but slots of Simple.
    pub const SIMPLE: MessageWay = MessageWay { protocol: Protocol::Simple, possible: 0 };
}

/// The records of messages on `channel`, each of which goes its way. Messages run side by side, except those of one
/// connection, which keep their order. A message of rank `me` to itself is a copy; both its ends are in the list.
/// Elements are bytes. Buffers and labels are numbered in the order of the messages, buffers from
/// [`records::FIRST_MESSAGE`] on. A slot of Simple holds `slot_bytes`.
pub fn messages(
    messages: &[Message<'_>],
    ways: &[MessageWay],
    me: Rank,
    (channel, slot_bytes): (Channel, u64),
) -> Lowered {
    let mut lowering = Lowering::by(Protocol::Simple);
    let mut own_recvs = (0u32..).zip(messages).filter(|(_, message)| message.peer() == me && !message.sends());
    let mut latest: HashMap<Need, u32> = HashMap::new();
    let mut traffic = Vec::new();
    for (number, (message, way)) in (0u32..).zip(messages.iter().zip(ways)) {
        let bytes = message.count() * u64::from(message.data_type().size());
        let own = own_buffer(number);
        if message.peer() == me {
            if let Some((recv, _)) = message.sends().then(|| own_recvs.next()).flatten() {
                lowering.copy([own, own_buffer(recv)], (bytes, bytes));
            }
            continue;
        }
        let end = Need { channel, ..message.need() };
        let (kind, base) = (lines::slot_kind(way.protocol), lowering.end(end));
        let slot = OperandRecord { kind, base, ..OperandRecord::default() };
        let ends = if message.sends() { [own, slot] } else { [slot, own] };
        // A message without bytes takes one slot without bytes, so that both ends still compare their labels.
        let lane = lowering.copy(ends, (bytes, lines::payload(way.protocol).unwrap_or(slot_bytes)));
        let step = &mut lowering.records.steps[lane as usize];
        step.flag = records::EVEN_EMPTY;
        step.peer = way.possible;
        let record = &mut lowering.records.lanes[lane as usize];
        record.label = number;
        record.after = latest.insert(end, lane).unwrap_or(NONE);
        let messages = u64::from(lowering.numbers.lanes[lane as usize].rounds);
        traffic.push(PeerTraffic { peer: message.peer(), way: end.way, messages, elements: bytes });
    }
    Lowered { traffic: traffic.into(), ..lowering.finish() }
}

/// The records of copies of these numbers of bytes, side by side. The source and the target of each copy are two
/// consecutive buffers, from [`records::FIRST_MESSAGE`] on.
pub fn copies(bytes: impl Iterator<Item = u64>) -> Lowered {
    let mut lowering = Lowering::by(Protocol::Simple);
    for (number, bytes) in (0u32..).zip(bytes) {
        let ends = [own_buffer(2 * number), own_buffer(2 * number + 1)];
        lowering.copy(ends, (bytes, bytes));
    }
    lowering.finish()
}

fn own_buffer(message: u32) -> OperandRecord {
    OperandRecord { kind: records::OWN, base: records::FIRST_MESSAGE + message, ..OperandRecord::default() }
}

impl Lowering {
    fn by(protocol: Protocol) -> Lowering {
        Lowering {
            protocol,
            carries_partials: false,
            records: Records::default(),
            ends: Vec::new(),
            numbers: Numbers::default(),
        }
    }

    fn finish(self) -> Lowered {
        let steps = LoweredSteps { records: Arc::new(self.records), ends: self.ends.into() };
        Lowered { steps, numbers: Arc::new(self.numbers), traffic: Vec::new().into() }
    }

    fn place_of_steps(&self) -> u32 {
        place(self.records.steps.len())
    }

    fn place_of_operands(&self) -> u32 {
        place(self.records.operands.len())
    }

    /// Adds a lane that copies this many bytes by a step of its own, in as many rounds as they have pieces (at least
    /// one); returns its place, which is that of the step too.
    fn copy(&mut self, ends: [OperandRecord; 2], (length, piece): (u64, u64)) -> u32 {
        let rounds = u32::try_from(length.div_ceil(piece.max(1)).max(1)).unwrap_or(u32::MAX);
        let (first, first_step) = (self.place_of_operands(), self.place_of_steps());
        self.records.operands.extend(ends);
        let step = StepRecord { times: 1, first, sources: 1, targets: 1, raw: NONE, ..StepRecord::default() };
        self.records.steps.push(StepRecord { kind: records::COMBINE, ..step });
        self.records.lanes.push(LaneRecord { first_step, steps: 1, flags: NONE, after: NONE, label: 0, reserved: 0 });
        let blocks = vec![BlockNumbers { length, ..BlockNumbers::default() }];
        self.numbers.lanes.push(LaneNumbers { rounds, turns: rounds, piece, depth: 1, scratch: 0, blocks });
        self.numbers.longest = self.numbers.longest.max(length.min(piece));
        place(self.records.lanes.len() - 1)
    }

    fn lane(&mut self, lane: &Lane, flags: u32) {
        let first_step = self.place_of_steps();
        for step in &*lane.steps {
            let record = match &step.action {
                Action::Enter { peers } => self.listed(records::ENTER, peers),
                Action::Signal { flag, listeners } => {
                    StepRecord { flag: *flag, ..self.listed(records::SIGNAL, listeners) }
                }
                Action::Wait { peer, flag } => {
                    StepRecord { kind: records::WAIT, peer: peer.get(), flag: *flag, ..StepRecord::default() }
                }
                Action::Combine(combine) => self.combine(combine, lane.channel),
            };
            self.records.steps.push(StepRecord { lag: step.lag, ..record });
        }
        let steps = self.place_of_steps() - first_step;
        self.records.lanes.push(LaneRecord { first_step, steps, flags, after: NONE, label: 0, reserved: 0 });
    }

    /// A step that names ranks.
    fn listed(&mut self, kind: u8, ranks: &[Rank]) -> StepRecord {
        let first = place(self.records.ranks.len());
        self.records.ranks.extend(ranks.iter().map(|rank| rank.get()));
        StepRecord { kind, first, sources: place(ranks.len()), ..StepRecord::default() }
    }

    fn combine(&mut self, combine: &Combine, channel: u8) -> StepRecord {
        let first = self.place_of_operands();
        let channel = Channel::Collective(channel);
        for (way, operands) in [(Way::Receive, &combine.sources), (Way::Send, &combine.targets)] {
            for operand in operands {
                let record = self.operand(operand, (way, channel));
                self.records.operands.push(record);
            }
        }
        let own = |operand: &Operand| matches!(operand, Operand::Local(span) if span.buffer == RankBuffer::Input);
        let inputs = if self.carries_partials { combine.inputs() } else { 0..0 };
        StepRecord {
            average: if self.carries_partials { records::SHARES } else { records::WHOLE },
            first_input: place(inputs.start),
            inputs: place(inputs.len()),
            block: combine.block,
            times: combine.times,
            first,
            sources: place(combine.sources.len()),
            targets: place(combine.targets.len()),
            raw: combine.sources.iter().position(own).map_or(NONE, place),
            kind: records::COMBINE,
            finish: u8::from(combine.finish),
            ..StepRecord::default()
        }
    }

    fn operand(&mut self, operand: &Operand, (way, channel): (Way, Channel)) -> OperandRecord {
        let spanned = |kind: u32, base: u32, span: &Span| OperandRecord {
            kind,
            base,
            buffer: number(span.buffer),
            index: span.index,
        };
        match operand {
            Operand::Local(span) => spanned(records::OWN, number(span.buffer), span),
            Operand::Window(peer, span) => spanned(records::PEER, peer.get(), span),
            Operand::Slot(peer) => {
                let base = self.end(Need { way, peer: *peer, channel });
                OperandRecord { kind: lines::slot_kind(self.protocol), base, ..OperandRecord::default() }
            }
        }
    }

    /// The place of a connection's end.
    fn end(&mut self, end: Need) -> u32 {
        let known = self.ends.iter().position(|other| *other == end);
        place(known.unwrap_or_else(|| {
            self.ends.push(end);
            self.ends.len() - 1
        }))
    }
}

fn number(buffer: RankBuffer) -> u32 {
    match buffer {
        RankBuffer::Input => records::INPUT,
        RankBuffer::Output => records::OUTPUT,
        RankBuffer::Scratch => records::SCRATCH,
    }
}

/// A place in one of the tables, which [`crate::plan::check::fits`] and the number of messages keep below 2^32.
fn place(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NONE)
}
