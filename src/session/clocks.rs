//! How far the clocks of hosts are apart, for a trace of ranks on several hosts.
//!
//! All ranks tell each other what their clocks show, a few times. What rank 0 has sent cannot have come before it was
//! sent, and what this rank has sent cannot have come to rank 0 before: these two bounds of how far rank 0's clock is
//! ahead of this one close in on it from both sides. Ranks of one host have one clock, so they put their bounds
//! together.

use crate::bootstrap::Bootstrap;
use crate::error::{Error, Kind, Result};
use crate::log::spans;
use crate::sync::Wait;
use crate::transport::PeerInfo;
use crate::types::World;

/// Whether a trace of these ranks is one of several clocks: all ranks find the same.
pub(crate) fn differ(peers: &[PeerInfo]) -> bool {
    let is_first = |peer: &PeerInfo| Some(peer.host) == peers.first().map(|first| first.host);
    peers.iter().any(|peer| peer.is_traced) && !peers.iter().all(is_first)
}

/// Finds how far rank 0's clock is ahead of this host's, and tells the trace. All ranks call it.
///
/// # Errors
/// Of the exchanges.
pub(crate) fn align(bootstrap: &dyn Bootstrap, (world, peers): (World, &[PeerInfo]), wait: &Wait) -> Result<()> {
    let mut bounds = Bounds::NONE;
    let (mut mine, mut got) = (0u64, 0u64);
    for round in 0..=ROUNDS {
        let before = mine;
        mine = spans::now();
        let told = bootstrap.all_gather(&[mine.to_le_bytes(), got.to_le_bytes()].concat(), wait)?;
        let now = spans::now();
        let [first_sent, first_got] = words(told.first().map_or(&[][..], Vec::as_slice))?;
        bounds.narrow(Some(difference(first_sent, now)), (round > 0).then(|| difference(first_got, before)));
        got = now;
    }
    let told = bootstrap.all_gather(&[bounds.least.to_le_bytes(), bounds.most.to_le_bytes()].concat(), wait)?;
    let mine = &peers[world.rank.index()];
    for (_, told) in peers.iter().zip(&told).filter(|(peer, _)| peer.host == mine.host) {
        let [least, most] = words(told)?;
        bounds.narrow(Some(least.cast_signed()), Some(most.cast_signed()));
    }
    let (ahead, uncertain) = if mine.host == peers[0].host { (0, 0) } else { bounds.middle() };
    spans::align(ahead, uncertain);
    Ok(())
}

/// Between which numbers of nanoseconds rank 0's clock is ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    least: i64,
    most: i64,
}

impl Bounds {
    /// Half of the range: so that their sum is one too.
    const NONE: Bounds = Bounds { least: -(i64::MAX / 2), most: i64::MAX / 2 };

    fn narrow(&mut self, least: Option<i64>, most: Option<i64>) {
        self.least = self.least.max(least.unwrap_or(self.least)).min(Bounds::NONE.most);
        self.most = self.most.min(most.unwrap_or(self.most)).max(Bounds::NONE.least);
    }

    /// The middle, and how far each bound is from it. A clock that was set meanwhile may have crossed them.
    fn middle(self) -> (i64, u64) {
        let Bounds { least, most } = self;
        (least / 2 + most / 2, (most / 2 - least / 2).unsigned_abs())
    }
}

fn difference(one: u64, other: u64) -> i64 {
    one.wrapping_sub(other).cast_signed()
}

fn words(bytes: &[u8]) -> Result<[u64; 2]> {
    let broken = || Error::new(Kind::Remote, "a rank has told its clock in other bytes than were asked for");
    let bytes: &[u8; 16] = bytes.try_into().map_err(|_| broken())?;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
    Ok([word(0), word(8)])
}

/// Exchanges that narrow the bounds.
const ROUNDS: u32 = 8;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn bounds_close_in_from_both_sides() {
        let mut bounds = Bounds::NONE;
        assert_eq!(bounds.middle().0, 0);
        bounds.narrow(Some(100), None);
        bounds.narrow(Some(40), Some(300));
        bounds.narrow(None, Some(180));
        assert_eq!((bounds, bounds.middle()), (Bounds { least: 100, most: 180 }, (140, 40)));
        // What a stranger tells gives a number, too.
        bounds.narrow(Some(i64::MAX), Some(i64::MIN));
        let _any = bounds.middle();
        assert!(words(&[0; 15]).is_err() && words(&[]).is_err());
        assert_eq!(difference(5, 9), -4);
    }
}
