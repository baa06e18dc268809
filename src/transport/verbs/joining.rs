//! Queue pairs of a connection that is being set up, while they are told their peers.

use std::time::{Duration, Instant};

use crate::transport::verbs::device::PairId;
use crate::transport::verbs::set_up::VerbsEnd;

/// The queue pairs of this end.
#[derive(Debug)]
pub(super) struct JoiningPairs {
    /// What the peer is told of them.
    pub(super) mine: VerbsEnd,
    pub(super) pairs: Vec<PairId>,
    /// How many know their peer.
    pub(super) joined: usize,
    pub(super) search: AddressSearch,
}

impl JoiningPairs {
    pub(super) fn new(mine: VerbsEnd, pairs: Vec<PairId>) -> JoiningPairs {
        JoiningPairs { mine, pairs, joined: 0, search: AddressSearch::default() }
    }
}

/// The kernel's search for the peer's address, by ARP or neighbour discovery. One try without an answer says little: a
/// packet may be lost, a switch port may have just come up, or a thousand ranks may ask at once. So it is tried again,
/// as NCCL does.
///
/// Each try keeps the kernel busy for a second, and the endpoint with it. The pause after it is as long: other
/// connections move meanwhile.
#[derive(Debug, Default)]
pub(super) struct AddressSearch {
    /// The first try without an answer, and when the next one is due.
    since: Option<Instant>,
    next: Option<Instant>,
}

impl AddressSearch {
    /// Whether the next try is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Takes note of a try without an answer that ended `now`; for how long there was none, where that is too long.
    pub(super) fn unanswered(&mut self, now: Instant) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        self.next = Some(now + SEARCH_PAUSE);
        Some(now.saturating_duration_since(since)).filter(|passed| *passed >= SEARCH_TIME)
    }

    /// Whether there was a try without an answer.
    pub(super) fn has_begun(&self) -> bool {
        self.since.is_some()
    }
}

const SEARCH_PAUSE: Duration = Duration::from_secs(1);
/// Since the first try without an answer: three more. The deadline of the caller may end it before.
const SEARCH_TIME: Duration = Duration::from_secs(6);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::clock;

    #[test]
    fn an_address_that_does_not_answer_is_looked_for_again_but_not_for_ever() {
        let begin = clock::now();
        let at = |tenths: u64| begin + Duration::from_millis(100 * tenths);
        let mut search = AddressSearch::default();
        assert!(search.is_due(begin) && !search.has_begun());
        assert_eq!(search.unanswered(at(10)), None);
        assert!(search.has_begun() && !search.is_due(at(19)) && search.is_due(at(20)));
        assert_eq!(search.unanswered(at(30)), None);
        assert!(!search.is_due(at(39)) && search.is_due(at(40)));
        assert_eq!(search.unanswered(at(69)), None);
        assert_eq!(search.unanswered(at(70)), Some(Duration::from_secs(6)));
    }
}
