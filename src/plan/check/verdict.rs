//! The verdict when no lane can go on: a deadlock, something left over, a wrong output, or a proof.

use super::machine::{Machine, Need, join};
use super::memory::{Clock, Conflict};
use super::{Flaw, Proof, ask};
use crate::types::{Algorithm, Collective, Rank};

/// Waiting lanes that a report of a deadlock names.
const NAMED_WAITS: usize = 8;

impl Machine<'_> {
    /// Checks that every lane has ended; names the lanes that still wait.
    pub(super) fn all_done(&mut self) -> Result<(), Flaw> {
        let mut waits = Vec::new();
        for worker in 0..self.workers.len() {
            let Some((step, round)) = self.next(worker) else { continue };
            let for_what = match self.need(worker, round)? {
                Some(Need::Message(from)) => format!("for a message of rank {from}"),
                Some(Need::Slot(to)) => format!("for rank {to} to free a slot"),
                Some(Need::Enter(peer)) => format!("for rank {peer} to enter"),
                Some(Need::Flag(peer, flag)) => format!("for flag {flag} of rank {peer}"),
                None => "for nothing".to_owned(),
            };
            waits.push(format!("{} waits {for_what}", self.describe((worker, (step, round)))));
        }
        if waits.is_empty() {
            return Ok(());
        }
        let more = waits.len().saturating_sub(NAMED_WAITS);
        waits.truncate(NAMED_WAITS);
        let tail = if more > 0 { format!("; and {more} more") } else { String::new() };
        Err(Flaw::new(format!("deadlock: {}{tail}", waits.join("; "))))
    }

    /// Checks what is left when all lanes have ended: messages that nobody took, then each rank's memory.
    pub(super) fn settle(mut self) -> Result<Proof, Flaw> {
        let left = self.connections.iter().filter(|(_, queue)| !queue.is_empty()).map(|(connection, _)| *connection);
        if let Some((from, to, channel)) = left.min() {
            return Err(Flaw::new(format!("rank {to} leaves a message of rank {from} on channel {channel}")));
        }
        for rank in self.spec().world.ranks() {
            self.settle_rank(rank).map(|_| ())?;
        }
        Ok(self.proof)
    }

    /// Checks the memory that a rank's run has left. Returns the rank's clock at that moment.
    pub(super) fn settle_rank(&mut self, rank: Rank) -> Result<Clock, Flaw> {
        let spec = self.spec();
        let mut clock = vec![0; self.plans.len() * (self.plans[0].lanes.len() + 1)];
        let callers = self.workers.len()..clock.len();
        clock[self.workers.len() + rank.index()] = 1;
        self.workers.iter().filter(|worker| worker.rank == rank).for_each(|worker| join(&mut clock, &worker.clock));
        if spec.collective == Collective::Barrier {
            let missed = callers.clone().find(|caller| clock[*caller] <= self.run[rank.index()]);
            let text = |caller: usize| format!("rank {rank} leaves before rank {} has come", caller - callers.start);
            return missed.map_or(Ok(clock.clone()), |caller| Err(Flaw::new(text(caller))));
        }
        for area in 0..2 {
            let memory = &mut self.stores[rank.index()].users[area];
            let length = memory.length();
            if let Err(Conflict { element, other, wrote }) = memory.settled(0, length, &clock) {
                let deed = if wrote { "writes" } else { "reads" };
                let text = format!("rank {rank} may leave before {} {deed}", self.whose(other));
                return Err(Flaw::new(format!("{text} element {element} of its memory")));
            }
        }
        ask::output(spec, rank).into_iter().try_for_each(|asked| self.holds(rank, &asked))?;
        Ok(clock)
    }

    fn holds(&mut self, rank: Rank, asked: &ask::Asked) -> Result<(), Flaw> {
        let spec = self.spec();
        let store = &mut self.stores[rank.index()];
        let (area, offset) = store.output;
        let mut at = 0;
        for strip in store.users[area].look(offset + asked.start, asked.length) {
            let element = asked.start + at;
            let index = asked.index + at;
            at += strip.length;
            let wrong = |text: String| Err(Flaw::new(format!("output[{element}] of rank {rank} {text}")));
            let Some(value) = strip.value else { return wrong("is never written".to_owned()) };
            let mut ranks = value.ranks.to_vec();
            if spec.algorithm != Algorithm::Direct {
                ranks.sort_unstable();
            }
            if value.index != index || ranks != asked.ranks {
                let asked = &asked.ranks;
                return wrong(format!("holds element {} of ranks {ranks:?}, not {index} of {asked:?}", value.index));
            }
            // Without a reduction a raw value is right: in place, a rank's own block is in the output from the
            // beginning.
            let reduces = spec.collective.reduces();
            if value.finished != reduces || (reduces && value.raw) {
                return wrong("is not final".to_owned());
            }
            if spec.algorithm == Algorithm::Direct && value.reductions > 1 {
                return wrong(format!("is reduced in {} combines, not in one", value.reductions));
            }
        }
        Ok(())
    }
}
