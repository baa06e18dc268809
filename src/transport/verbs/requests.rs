//! Requests that are under way on a device, by the numbers that completions show.

use crate::error::Kind;
use crate::transport::net::request_nic::{MessageNumber, RequestId};

/// Places for requests.
#[derive(Debug)]
pub(super) struct VerbsRequests {
    places: Vec<VerbsPlace>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct VerbsPlace {
    /// How many requests have had it: it tells a request from an earlier one.
    turn: u32,
    state: VerbsPlaceState,
}

#[derive(Debug)]
enum VerbsPlaceState {
    Free,
    UnderWay(VerbsRequest),
    Done(Result<usize, VerbsFailure>),
}

/// A request: which connection it is of, on which of its queue pairs, and which message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VerbsRequest {
    pub(super) connection: u32,
    pub(super) pair: usize,
    pub(super) number: MessageNumber,
    /// The bytes of a send: only a receive's completion tells its length.
    pub(super) sent: Option<usize>,
}

/// Why a request has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VerbsFailure {
    /// [`Kind::Remote`] where it is the peer's fault, or that of the way to it.
    pub(super) kind: Kind,
    pub(super) why: String,
}

impl VerbsFailure {
    /// Whether it is the peer's fault, or that of the way to it.
    pub(super) fn is_peers(&self) -> bool {
        self.kind == Kind::Remote
    }
}

impl VerbsRequests {
    pub(super) fn new(count: u32) -> VerbsRequests {
        let places = (0..count).map(|_| VerbsPlace { turn: 0, state: VerbsPlaceState::Free }).collect();
        VerbsRequests { places, free: (0..count).rev().collect() }
    }

    /// Begins a request: its number. `None` where all places are taken.
    pub(super) fn begin(&mut self, request: VerbsRequest) -> Option<RequestId> {
        let slot = self.free.pop()?;
        let place = &mut self.places[slot as usize];
        place.turn = place.turn.wrapping_add(1);
        place.state = VerbsPlaceState::UnderWay(request);
        Some(RequestId(u64::from(place.turn) << 32 | u64::from(slot)))
    }

    /// Takes a request back that was not posted.
    pub(super) fn take_back(&mut self, id: RequestId) {
        if let Some((slot, place)) = self.place(id) {
            place.state = VerbsPlaceState::Free;
            self.free.push(slot);
        }
    }

    /// The request of this number, while it is under way.
    pub(super) fn under_way(&mut self, id: RequestId) -> Option<VerbsRequest> {
        match self.place(id)?.1.state {
            VerbsPlaceState::UnderWay(request) => Some(request),
            VerbsPlaceState::Free | VerbsPlaceState::Done(_) => None,
        }
    }

    /// A request that is under way is done.
    pub(super) fn end(&mut self, id: RequestId, outcome: Result<usize, VerbsFailure>) {
        if let Some((_, place)) = self.place(id) {
            place.state = VerbsPlaceState::Done(outcome);
        }
    }

    /// What has become of a request; `None` while it is under way. It is forgotten then.
    pub(super) fn test(&mut self, id: RequestId) -> Option<Result<usize, VerbsFailure>> {
        let unknown = VerbsFailure { kind: Kind::Internal, why: "this request is not under way".to_owned() };
        let Some((slot, place)) = self.place(id) else { return Some(Err(unknown)) };
        match std::mem::replace(&mut place.state, VerbsPlaceState::Free) {
            VerbsPlaceState::Free => Some(Err(unknown)),
            VerbsPlaceState::UnderWay(request) => {
                place.state = VerbsPlaceState::UnderWay(request);
                None
            }
            VerbsPlaceState::Done(outcome) => {
                self.free.push(slot);
                Some(outcome)
            }
        }
    }

    fn place(&mut self, id: RequestId) -> Option<(u32, &mut VerbsPlace)> {
        let (turn, slot) = (u32::try_from(id.0 >> 32).ok()?, u32::try_from(id.0 & 0xffff_ffff).ok()?);
        let place = self.places.get_mut(slot as usize).filter(|place| place.turn == turn)?;
        Some((slot, place))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_done_once_and_a_place_serves_the_next_one() {
        let mut requests = VerbsRequests::new(1);
        let request = VerbsRequest { connection: 3, pair: 1, number: MessageNumber::of(9), sent: None };
        let first = requests.begin(request).unwrap();
        assert_eq!(requests.begin(request), None, "all places are taken");
        assert_eq!((requests.under_way(first), requests.test(first)), (Some(request), None));
        requests.end(first, Ok(7));
        assert_eq!(requests.under_way(first), None);
        assert_eq!(requests.test(first), Some(Ok(7)));
        assert!(requests.test(first).unwrap().is_err(), "it was forgotten");
        let next = requests.begin(request).unwrap();
        assert_ne!(next, first);
        requests.end(first, Ok(8));
        assert!(requests.test(first).unwrap().is_err() && requests.test(next).is_none());
        requests.take_back(next);
        assert!(requests.begin(request).is_some());
        for wrong in [0, 5, u64::MAX, 1 << 32] {
            assert_eq!(requests.under_way(RequestId(wrong)), None);
            assert!(requests.test(RequestId(wrong)).unwrap().is_err());
        }
    }
}
