//! Which protocols the kernels of a communicator's ranks can use between each other.

use crate::device::{self, Home};
use crate::error::Result;
use crate::log;
use crate::reach::device_sharing::Meeting;
use crate::session::Session;
use crate::sync::Wait;
use crate::types::{Protocol, Rank};

/// The protocols by which kernels that wait for each other send. Simple is always among them, and first.
#[derive(Debug)]
pub(crate) struct LineWays {
    /// Those that all ranks can use with all others, for collectives. The same on all ranks.
    pub(crate) all: Vec<Protocol>,
    /// Of each rank those that it and this rank can use with each other, for messages. The same on both.
    pub(crate) between: Vec<Vec<Protocol>>,
}

impl LineWays {
    /// Simple alone.
    pub(crate) fn simple(ranks: u32) -> LineWays {
        let between = (0..ranks).map(|_| vec![Protocol::Simple]).collect();
        LineWays { all: vec![Protocol::Simple], between }
    }
}

/// The protocols by which kernels that wait for each other send. Each rank says which of them its device can use with
/// whom, and a protocol is used where both ends can, by collectives where all ranks can: so all get the same. Those
/// that collectives do not use are told in the log, with the reason. Collective.
///
/// # Errors
/// Of the exchange.
pub fn agree(session: &Session, meeting: &Meeting, home: Home, wait: &Wait) -> Result<LineWays> {
    let world = session.world;
    let me = world.rank;
    let mut ways = LineWays::simple(world.size);
    if !meeting.waits_on_devices(session) {
        return Ok(ways);
    }
    let device = device::of(home)?;
    let refusal = |protocol: Protocol, peer: Rank| -> Option<String> {
        if peer == me {
            return None;
        }
        if meeting.is_far(peer) {
            return Some(format!("rank {peer} shares no memory of this host: between hosts there are slots alone"));
        }
        if protocol == Protocol::LowLatency128 && meeting.staged().parts(me, peer) {
            let way = if meeting.staged().between((me, peer)).is_some() { "over another GPU" } else { "by SHM" };
            return Some(format!("rank {peer} is reached {way}, which may tear lines"));
        }
        device.takes(protocol, meeting.devices()[peer.index()]).err()
    };
    let reasons = LINES.map(|protocol| world.ranks().map(|peer| refusal(protocol, peer)).collect::<Vec<_>>());
    let is_refused = reasons.iter().flatten().map(Option::is_some).collect::<Vec<bool>>();
    let told = session.bootstrap.all_gather(&packed(&is_refused), wait)?;
    for (number, (protocol, reasons)) in LINES.into_iter().zip(reasons).enumerate() {
        // A rank that says less than it should refuses.
        let refuses = |rank: Rank, peer: Rank| {
            let place = number * world.size as usize + peer.index();
            told[rank.index()].get(place / 8).is_none_or(|byte| byte >> (place % 8) & 1 != 0)
        };
        for (peer, between) in world.ranks().zip(&mut ways.between) {
            if peer != me && !refuses(me, peer) && !refuses(peer, me) {
                between.push(protocol);
            }
        }
        match world.ranks().find(|rank| world.ranks().any(|peer| refuses(*rank, peer))) {
            None => ways.all.push(protocol),
            Some(rank) => {
                let mine = reasons.into_iter().flatten().next();
                let reason = mine.unwrap_or_else(|| format!("rank {rank} cannot use it with all ranks"));
                let is_used = ways.between.iter().any(|between| between.contains(&protocol));
                let whose = if is_used { " by collectives" } else { "" };
                log::info!(Tuning @ me, "GPU memory : {protocol} is not used{whose}: {reason}");
            }
        }
    }
    Ok(ways)
}

/// Eight of them a byte, the first in the lowest bit.
fn packed(bits: &[bool]) -> Vec<u8> {
    let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
    bits.chunks(8).map(byte).collect()
}

const LINES: [Protocol; 2] = [Protocol::LowLatency, Protocol::LowLatency128];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_packed_eight_to_a_byte() {
        assert_eq!(packed(&[true, false, false, false, false, false, false, true, false, true]), [0x81, 2]);
        assert_eq!(packed(&[]), [0_u8; 0]);
    }
}
