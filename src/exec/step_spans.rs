//! The steps of a plan in the trace, each on the track of its lane, and the messages between them as arrows.

use crate::log::spans::{self, REQUEST_LANES, RequestLanes, SpanOwner, TraceSpan};
use crate::plan::{Action, Combine, Operand};
use crate::types::Rank;

/// Of a record: a step. Its words: what it does with the peer that it waits for, bytes, nothing.
pub(crate) const STEP_KIND: u8 = 16;
/// Of a record: an end of a message in a slot. Its words: peer and bit 32 if it is sent, number, channel.
pub(crate) const SLOT_KIND: u8 = 17;

const RECEIVES: u64 = 1;
const REDUCES: u64 = 2;
const SENDS: u64 = 4;
const SIGNALS: u64 = 8;
const WAITS: u64 = 16;
/// Where a step's bits stand, above its peer.
const BITS_AT: u32 = 32;

/// For whom a plan runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepOwner {
    pub(crate) of: SpanOwner,
    /// Whether it runs as a request, beside others of its thread.
    pub(crate) is_request: bool,
}

/// What a run notes of its steps.
#[derive(Debug)]
pub(super) struct StepSpans {
    of: SpanOwner,
    /// Of a request: its lanes.
    lanes: Option<RequestLanes>,
    /// The number of the collective.
    sequence: u64,
    /// Of each lane: when its step was first tried; 0 where it was not.
    since: Vec<u64>,
    /// Messages of this run by peer, channel and direction: both ends count alike.
    counts: Vec<((Rank, u8, bool), u64)>,
}

impl StepSpans {
    /// Of a run with so many lanes; `None` where steps are not recorded.
    pub(super) fn of_run(owner: StepOwner, sequence: u64, lanes: usize) -> Option<Box<StepSpans>> {
        if !spans::has_steps() {
            return None;
        }
        let since = vec![0; lanes];
        // Where more requests run than have room, some are left out.
        let lanes = if owner.is_request { Some(RequestLanes::take(lanes)?) } else { None };
        Some(Box::new(StepSpans { of: owner.of, lanes, sequence, since, counts: Vec::new() }))
    }

    /// The step of a lane is tried.
    pub(super) fn begin(&mut self, lane: usize) {
        if self.since[lane] == 0 {
            self.since[lane] = spans::now();
        }
    }

    /// It has been done.
    pub(super) fn end(&mut self, lane: usize, action: &Action, (channel, bytes): (u8, usize)) {
        let times = (std::mem::take(&mut self.since[lane]), spans::now());
        let what = match action {
            Action::Enter { .. } => return,
            Action::Combine(_) if bytes == 0 => return,
            Action::Signal { .. } => SIGNALS << BITS_AT,
            Action::Wait { peer, .. } => WAITS << BITS_AT | u64::from(peer.get()),
            Action::Combine(combine) => combined(combine),
        };
        let lane = match &self.lanes {
            Some(lanes) => lanes.number(lane),
            None => u16::try_from(lane + 1).unwrap_or(u16::MAX).min(REQUEST_LANES - 1),
        };
        let record = |kind, words| spans::record(&TraceSpan { kind, lane, of: self.of, times, words });
        record(STEP_KIND, [what, bytes as u64, 0]);
        let Action::Combine(combine) = action else { return };
        let ends = combine.sources.iter().map(|end| (end, false)).chain(combine.targets.iter().map(|end| (end, true)));
        for (end, sends) in ends {
            let Operand::Slot(peer) = end else { continue };
            let key = (*peer, channel, sends);
            let place = self.counts.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                self.counts.push((key, 0));
                self.counts.len() - 1
            });
            let number = self.sequence << 20 | self.counts[place].1;
            self.counts[place].1 += 1;
            record(SLOT_KIND, [u64::from(peer.get()) | u64::from(sends) << BITS_AT, number, u64::from(channel)]);
        }
    }
}

fn combined(combine: &Combine) -> u64 {
    let is_slot = |operand: &Operand| matches!(operand, Operand::Slot(_));
    let bits = [
        (combine.sources.iter().any(is_slot), RECEIVES),
        (combine.sources.len() > 1, REDUCES),
        (combine.targets.iter().any(is_slot), SENDS),
    ];
    bits.into_iter().filter(|(is_so, _)| *is_so).fold(0, |all, (_, bit)| all | bit) << BITS_AT
}

/// What a step's first word says: its name.
pub(crate) fn step_name(word: u64) -> String {
    let (bits, peer) = (word >> BITS_AT, word & u64::from(u32::MAX));
    if bits & WAITS != 0 {
        return format!("wait for rank {peer}");
    }
    let parts = [(RECEIVES, "receive"), (REDUCES, "reduce"), (SENDS, "send"), (SIGNALS, "signal")];
    let parts: Vec<&str> = parts.into_iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| name).collect();
    if parts.is_empty() { "copy".to_owned() } else { parts.join(", ") }
}
