//! How the two ends of slots of kernels agree what goes over their connection: chunks, as between rings of the host, or
//! payloads straight from and into slots.
//!
//! Each end knows by itself whether its payloads lie on a device whose memory the NIC takes. The sender says so in a
//! memo, with the largest message of its NIC; the receiver answers in one what is done: payloads go straight if those
//! of either end lie on a device, and the other end then has its NIC take them from the host's memory. Chunks are left
//! to ends that both have them there, where a message of a few bytes is one of the NIC's in place of two.

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::os::fd::BorrowedFd;

use crate::error::{Error, Result};
use crate::sys::poller::Interest;
use crate::transport::net::request_nic::RegionId;
use crate::transport::net::requests::connection::RequestConnection;
use crate::transport::net::requests::direct_receive_pump::DirectReceivePump;
use crate::transport::net::requests::direct_send_pump::DirectSendPump;
use crate::transport::net::requests::receive_pump::RequestReceivePump;
use crate::transport::net::requests::send_pump::RequestSendPump;
use crate::transport::pump::{KernelSink, KernelSource, Pump, PumpSleep, SlotPlaces, Waits};

/// The memory of a device that the NIC of a connection has taken for payloads.
#[derive(Debug, Clone, Copy)]
pub(super) struct TakenPayloads {
    pub(super) region: RegionId,
    pub(super) needs_flush: bool,
}

/// The pump of one end, which first agrees with the other.
#[derive(Debug)]
pub(super) enum KernelPump {
    Agreeing(Option<Box<Agreeing>>),
    Agreed(Box<dyn Pump>),
}

/// An end that has not agreed yet.
#[derive(Debug)]
pub(super) struct Agreeing {
    connection: RequestConnection,
    end: KernelEnd,
    payloads: Option<TakenPayloads>,
    /// What this end has to say, until it is said.
    word: Option<Vec<u8>>,
    /// What was agreed on, at the receiver.
    is_direct: Option<bool>,
}

/// What kernels have.
#[derive(Debug)]
pub(super) enum KernelEnd {
    Source(Box<dyn KernelSource>),
    Sink(Box<dyn KernelSink>),
}

impl KernelEnd {
    fn slots(&self) -> SlotPlaces<'_> {
        match self {
            KernelEnd::Source(source) => source.slots(),
            KernelEnd::Sink(sink) => sink.slots(),
        }
    }
}

impl KernelPump {
    pub(super) fn new(connection: RequestConnection, end: KernelEnd, payloads: Option<TakenPayloads>) -> KernelPump {
        let word = match &end {
            KernelEnd::Source(_) => {
                let most = connection.most_message_bytes() as u64;
                Some([&[u8::from(payloads.is_some())][..], &most.to_le_bytes()].concat())
            }
            KernelEnd::Sink(_) => None,
        };
        KernelPump::Agreeing(Some(Box::new(Agreeing { connection, end, payloads, word, is_direct: None })))
    }

    fn agree(&mut self) -> Result<Option<&mut Box<dyn Pump>>> {
        if let KernelPump::Agreeing(place) = self {
            let Some(agreeing) = place else { return Err(Error::internal("a pump that could not agree")) };
            agreeing.connection.progress()?;
            let Some(is_direct) = agreeing.step()? else { return Ok(None) };
            let Some(agreeing) = place.take() else { return Ok(None) };
            *self = KernelPump::Agreed(agreeing.pump(is_direct)?);
        }
        match self {
            KernelPump::Agreed(pump) => Ok(Some(pump)),
            KernelPump::Agreeing(_) => Ok(None),
        }
    }
}

impl Agreeing {
    /// Whether payloads go straight, once both ends know.
    fn step(&mut self) -> Result<Option<bool>> {
        match self.end {
            KernelEnd::Source(_) => {
                if !self.say()? {
                    return Ok(None);
                }
                self.connection.expect_memos(1)?;
                let Some(memo) = self.connection.take_memo()? else { return Ok(None) };
                match memo.content() {
                    [DIRECT] => Ok(Some(true)),
                    [CHUNKED] if self.payloads.is_none() => Ok(Some(false)),
                    _ => Err(self.unknown()),
                }
            }
            KernelEnd::Sink(_) => {
                if self.is_direct.is_none() {
                    self.connection.expect_memos(1)?;
                    let Some(memo) = self.connection.take_memo()? else { return Ok(None) };
                    let Some((wants @ (0 | 1), most)) = memo.content().split_first() else {
                        return Err(self.unknown());
                    };
                    let most = <[u8; 8]>::try_from(most).map(u64::from_le_bytes).map_err(|_| self.unknown())?;
                    let is_direct = *wants == 1 || self.payloads.is_some();
                    let most = most.min(self.connection.most_message_bytes() as u64);
                    let (slot, peer) = (self.end.slots().slot_bytes, self.connection.peer());
                    if is_direct && slot as u64 > most {
                        return Err(Error::remote(
                            peer,
                            format!(
                                "GPUDirect RDMA with rank {peer} takes messages of {slot} bytes, and one of the two \
                                 NICs takes {most}: NCCL_NET_GDR_LEVEL=LOC on all ranks does without"
                            ),
                        ));
                    }
                    self.is_direct = Some(is_direct);
                    self.word = Some(vec![if is_direct { DIRECT } else { CHUNKED }]);
                }
                let said = self.say()?;
                Ok(self.is_direct.filter(|_| said))
            }
        }
    }

    /// Says what is left to say. True once nothing is.
    fn say(&mut self) -> Result<bool> {
        if let Some(word) = &self.word
            && self.connection.send_memo(word)?
        {
            self.word = None;
        }
        // Its request is given back: a connection is sure of one each way alone.
        Ok(self.word.is_none() && self.connection.have_memos_left()?)
    }

    fn unknown(&self) -> Error {
        let peer = self.connection.peer();
        Error::remote(peer, format!("rank {peer} does not say where the payloads of its GPU lie"))
    }

    fn pump(self: Box<Self>, is_direct: bool) -> Result<Box<dyn Pump>> {
        let Agreeing { connection, end, payloads, .. } = *self;
        if !is_direct {
            return Ok(match end {
                KernelEnd::Source(source) => Box::new(RequestSendPump::new(connection, source)),
                KernelEnd::Sink(sink) => Box::new(RequestReceivePump::new(connection, sink)),
            });
        }
        let TakenPayloads { region, needs_flush } = match payloads {
            Some(taken) => taken,
            None => {
                let region = connection.register(end.slots().memory.clone())?;
                TakenPayloads { region, needs_flush: false }
            }
        };
        Ok(match end {
            KernelEnd::Source(source) => Box::new(DirectSendPump::new(connection, source, region)),
            KernelEnd::Sink(sink) => Box::new(DirectReceivePump::new(connection, sink, (region, needs_flush))),
        })
    }
}

impl Pump for KernelPump {
    fn progress(&mut self) -> Result<bool> {
        let is_new = matches!(self, KernelPump::Agreeing(_));
        match self.agree()? {
            Some(pump) => Ok(pump.progress()? | is_new),
            None => Ok(false),
        }
    }

    fn waits(&self) -> Waits {
        match self {
            KernelPump::Agreeing(_) => Waits::Nothing,
            KernelPump::Agreed(pump) => pump.waits(),
        }
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
        Vec::new()
    }

    fn sleep(&mut self) -> Result<PumpSleep> {
        match self {
            KernelPump::Agreeing(Some(agreeing)) if agreeing.word.is_none() => agreeing.connection.sleep(),
            KernelPump::Agreeing(_) => Ok(PumpSleep::Ask),
            KernelPump::Agreed(pump) => pump.sleep(),
        }
    }

    fn drained(&self) -> bool {
        match self {
            KernelPump::Agreed(pump) => pump.drained(),
            KernelPump::Agreeing(Some(agreeing)) => match &agreeing.end {
                KernelEnd::Source(source) => !source.has_more(),
                KernelEnd::Sink(_) => true,
            },
            KernelPump::Agreeing(None) => true,
        }
    }

    fn part(&mut self) -> bool {
        match self {
            KernelPump::Agreed(pump) => pump.part(),
            // Nothing was sent.
            KernelPump::Agreeing(_) => true,
        }
    }
}

const CHUNKED: u8 = 1;
const DIRECT: u8 = 2;
