//! What every rank knows of every other: the facts that selection needs, and how they travel.

use crate::error::{Error, Kind, Result};
use crate::sys::numa::ThreadHome;
use crate::types::Rank;

/// Facts of one rank, gathered from all at init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerInfo {
    /// The rank.
    pub rank: Rank,
    /// Equal where two ranks are on one host and can share memory.
    pub host: u64,
    /// A random number of the process: equal where two ranks are threads of one process.
    pub process: u64,
    /// The process's id.
    pub pid: u32,
    /// Equal where two ranks mean the same process by one id; 0 where a rank's system does not tell.
    pub space: u64,
    /// Processors that the rank may run on.
    pub cores: u32,
    /// A hash of the settings that must be equal on all ranks.
    pub settings: u64,
    /// A hash of the measured costs that it has read; 0 where it has read none.
    pub tuning: u64,
    /// What those processors share.
    pub home: ThreadHome,
    /// Hashes of the switches of the network above its host, outermost first; 0 where there is none.
    pub switches: [u64; SWITCH_LAYERS],
    /// Whether it records a trace.
    pub is_traced: bool,
}

/// Layers of switches by which hosts are put in order; the innermost of deeper networks.
pub const SWITCH_LAYERS: usize = 4;

impl PeerInfo {
    /// As bytes for the all-gather.
    pub fn encode(&self) -> [u8; PeerInfo::BYTES] {
        let mut bytes = [0; PeerInfo::BYTES];
        bytes[0..4].copy_from_slice(&self.rank.get().to_le_bytes());
        bytes[4..8].copy_from_slice(&self.pid.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.host.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.process.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.settings.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.cores.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.tuning.to_le_bytes());
        for (place, switch) in self.switches.iter().enumerate() {
            bytes[56 + 8 * place..64 + 8 * place].copy_from_slice(&switch.to_le_bytes());
        }
        bytes[PeerInfo::BYTES - 16] = u8::from(self.is_traced);
        bytes[PeerInfo::BYTES - 8..].copy_from_slice(&self.space.to_le_bytes());
        let ThreadHome { socket, node, cache } = self.home;
        for (place, id) in [socket, node, cache].into_iter().enumerate() {
            bytes[36 + 4 * place..40 + 4 * place].copy_from_slice(&id.unwrap_or(NO_HOME).to_le_bytes());
        }
        bytes
    }

    /// From the bytes of `rank`.
    ///
    /// # Errors
    /// [`Kind::Remote`] where they are not [`PeerInfo::BYTES`] or name another rank.
    pub fn decode(rank: Rank, bytes: &[u8]) -> Result<PeerInfo> {
        let broken = || Error::new(Kind::Remote, format!("rank {rank} sent broken peer info")).about(rank);
        let bytes: &[u8; PeerInfo::BYTES] = bytes.try_into().map_err(|_| broken())?;
        let word32 = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let word64 = |at: usize| u64::from(word32(at)) | u64::from(word32(at + 4)) << 32;
        if word32(0) != rank.get() {
            return Err(broken());
        }
        let (pid, cores) = (word32(4), word32(32));
        let home = |at: usize| Some(word32(at)).filter(|id| *id != NO_HOME);
        let home = ThreadHome { socket: home(36), node: home(40), cache: home(44) };
        let (host, process, settings, tuning) = (word64(8), word64(16), word64(24), word64(48));
        let switches = std::array::from_fn(|place| word64(56 + 8 * place));
        let (space, is_traced) = (word64(PeerInfo::BYTES - 8), word64(PeerInfo::BYTES - 16) != 0);
        Ok(PeerInfo { rank, pid, space, cores, host, process, settings, tuning, home, switches, is_traced })
    }

    /// Bytes of [`PeerInfo::encode`].
    pub const BYTES: usize = 56 + 8 * SWITCH_LAYERS + 16;
}

/// What stands for a socket, node or cache that a rank does not have; no system counts so far.
const NO_HOME: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_comes_back() {
        let home = ThreadHome { socket: Some(1), node: None, cache: Some(48) };
        let (rank, host) = (Rank::new(3), u64::MAX - 5);
        let info = PeerInfo {
            rank,
            host,
            process: 1 << 40,
            pid: 77,
            space: 1 << 60,
            cores: 2,
            settings: 9,
            tuning: 7 << 40,
            home,
            switches: [1 << 50, 2, 0, 0],
            is_traced: true,
        };
        assert_eq!(PeerInfo::decode(Rank::new(3), &info.encode()).unwrap(), info);
        assert_eq!(PeerInfo::decode(Rank::new(2), &info.encode()).unwrap_err().kind(), Kind::Remote);
        assert!(PeerInfo::decode(Rank::new(3), &info.encode()[1..]).is_err());
    }
}
