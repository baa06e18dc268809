//! Which protocols the kernels of a communicator's ranks can use between each other.

use crate::comm::device_sharing::Meeting;
use crate::comm::session::Session;
use crate::device::{self, Home};
use crate::error::Result;
use crate::log;
use crate::sync::Wait;
use crate::types::{Protocol, Rank};

/// The protocols by which kernels that wait for each other send, beside Simple. Each rank says which of them its device
/// can use with all others, and a protocol is used where all ranks can: so all get the same list. Those that are
/// refused are told in the log, with the reason. Collective.
///
/// # Errors
/// Of the exchange.
pub(super) fn agree(session: &Session, meeting: &Meeting, home: Home, wait: &Wait) -> Result<Vec<Protocol>> {
    let me = session.world.rank;
    if !meeting.waits_on_devices(session) {
        return Ok(vec![Protocol::Simple]);
    }
    let device = device::of(home)?;
    let refusal = |protocol: Protocol| -> Option<String> {
        let of_peer = |peer: Rank| {
            if meeting.is_far(peer) {
                return Err(format!("rank {peer} shares no memory of this host, and plans between hosts take slots"));
            }
            if protocol == Protocol::LowLatency128 && meeting.staged().parts(me, peer) {
                let way = if meeting.staged().between((me, peer)).is_some() { "over another GPU" } else { "by SHM" };
                return Err(format!("rank {peer} is reached {way}, which may tear lines"));
            }
            device.takes(protocol, meeting.devices()[peer.index()])
        };
        session.world.ranks().filter(|peer| *peer != me).find_map(|peer| of_peer(peer).err())
    };
    let reasons = LINES.map(refusal);
    let mine = reasons.each_ref().map(|reason| u8::from(reason.is_some()));
    let told = session.bootstrap.all_gather(&mine, wait)?;
    let mut all = vec![Protocol::Simple];
    for (number, (protocol, reason)) in LINES.into_iter().zip(reasons).enumerate() {
        // A rank that says less than it should refuses.
        let refuses = |bytes: &Vec<u8>| bytes.get(number) != Some(&0);
        match session.world.ranks().zip(&told).find(|(_, bytes)| refuses(bytes)) {
            None => all.push(protocol),
            Some((rank, _)) => {
                let reason = reason.unwrap_or_else(|| format!("rank {rank} cannot use it with all ranks"));
                log::info!(Tuning @ me, "GPU memory : {protocol} is not used: {reason}");
            }
        }
    }
    Ok(all)
}

const LINES: [Protocol; 2] = [Protocol::LowLatency, Protocol::LowLatency128];
