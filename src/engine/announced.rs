//! Small collectives of requests: announced where they begin, and ended once the others have announced them.

use crate::device::{Home, Kernel};
use crate::engine::prepared::{Prepared, PreparedWay};
use crate::engine::{Engine, call_log};
use crate::error::Result;
use crate::exec::flat_call::SlotReads;
use crate::exec::{Background, Begun, Call, NoBackground, Operation};
use crate::log;
use crate::sync::Flag;
use crate::sync::ring::Label;
use crate::types::{Elements, World};

/// A collective of a request, as far as it went without waiting.
#[derive(Debug)]
pub(crate) enum Announce {
    /// This rank has done its part, and has not what it needs of the others.
    Waits(Box<AnnouncedCall>),
    /// It has ended.
    Ended,
    /// It has to begin as any call does.
    No(Call<'static>),
}

/// A collective that this rank has announced in its flat slot, and that ends once the other ranks have, too.
#[derive(Debug)]
pub(crate) struct AnnouncedCall {
    call: Call<'static>,
    operation: Operation,
    label: Label,
    kernel: Kernel,
    lengths: (Elements, Elements),
    reads: SlotReads,
    number: u64,
}

impl AnnouncedCall {
    fn begun(&self, world: World) -> Begun<'_> {
        let AnnouncedCall { call, operation, label, kernel, lengths, .. } = self;
        Begun { call, operation, label: *label, kernel: *kernel, world, lengths: *lengths }
    }
}

impl Engine {
    /// Announces a collective of a request, if it goes by flat slots, and ends it if the others have announced it by
    /// now. Never waits.
    ///
    /// # Errors
    /// As the call's.
    pub(crate) fn announce(&mut self, call: Call<'static>) -> Result<Announce> {
        if call.buffers.home() != Home::Host || self.has_device() || !self.host().can_announce() {
            return Ok(Announce::No(call));
        }
        let Prepared { call, operation, kernel, lengths, way, .. } = self.prepare(call)?;
        let PreparedWay::Flat(reads) = way else { return Ok(Announce::No(call)) };
        let (host, given) = self.host_and_given();
        let session = given.session;
        session.begin_call();
        let (sequence, past) = (session.next_collective(), session.history.past());
        let operation = Operation { sequence, past, ..operation };
        let label = operation.label();
        if log::hears_calls() {
            call_log::of_collective(session, &host.chooser, (&call, &operation));
        }
        session.history.begin_as(label, 0);
        let mut announced = AnnouncedCall { call, operation, label, kernel, lengths, reads, number: 0 };
        announced.number = host.announce(given, &announced.begun(session.world))?;
        if self.awaited(&announced).is_some() {
            return Ok(Announce::Waits(Box::new(announced)));
        }
        self.end_announced(&announced, &mut NoBackground)?;
        Ok(Announce::Ended)
    }

    /// The flag that an announced call waits for, with the value that it must reach; `None` where it ends without a
    /// wait.
    pub(crate) fn awaited(&self, announced: &AnnouncedCall) -> Option<(&Flag, u64)> {
        let AnnouncedCall { call, reads, number, .. } = announced;
        self.host().missing((call, self.session.world, reads), *number)
    }

    /// Ends an announced call, beside `background` work where it has to wait.
    ///
    /// # Errors
    /// Of what other ranks are part of.
    pub(crate) fn end_announced(&mut self, announced: &AnnouncedCall, background: &mut dyn Background) -> Result<()> {
        let (host, given) = self.host_and_given();
        let begun = announced.begun(given.session.world);
        let of = (&begun, &announced.reads, announced.number);
        let ended = host.end_announced(given, of, background);
        announced.call.buffers.note_call();
        ended.map_err(|error| error.during(announced.operation.to_string()))
    }
}
