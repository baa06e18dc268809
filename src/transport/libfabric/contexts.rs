//! Requests that are under way, and the memory that libfabric has for each meanwhile.

use std::cell::UnsafeCell;
use std::ffi::c_void;

use crate::error::Kind;
use crate::transport::libfabric::abi::FiContext;
use crate::transport::net::request_nic::RequestId;

/// Places for requests. Their addresses stay, since a provider may write into the memory of one until it is done.
#[derive(Debug)]
pub(super) struct Contexts {
    memory: Box<[UnsafeCell<FiContext>]>,
    states: Vec<RequestPlace>,
    free: Vec<u32>,
}

// SAFETY: the provider writes to the memory of requests under way only, during calls for which the endpoint that owns
// all of this is borrowed; nobody here reads it.
unsafe impl Send for Contexts {}

#[derive(Debug)]
struct RequestPlace {
    /// How many requests have had it: it tells a request from an earlier one.
    turn: u32,
    state: RequestState,
}

#[derive(Debug)]
enum RequestState {
    Free,
    /// With the bytes of a send: only a receive's completion tells its length.
    UnderWay(Option<usize>),
    Done(Result<usize, RequestFailure>),
}

/// Why a request has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestFailure {
    /// [`Kind::Remote`] where it is the peer's fault, or a stranger's.
    pub(super) kind: Kind,
    pub(super) why: String,
}

/// A place for a request that is about to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RequestSlot(u32);

impl Contexts {
    pub(super) fn new(count: u32) -> Contexts {
        let memory = (0..count).map(|_| UnsafeCell::new(FiContext::default())).collect();
        let states = (0..count).map(|_| RequestPlace { turn: 0, state: RequestState::Free }).collect();
        Contexts { memory, states, free: (0..count).rev().collect() }
    }

    /// A free place, and its memory; `None` where all requests are under way.
    pub(super) fn take(&mut self) -> Option<(RequestSlot, *mut c_void)> {
        let place = self.free.pop()?;
        Some((RequestSlot(place), self.memory[place as usize].get().cast()))
    }

    /// Gives a place back whose request was not posted.
    pub(super) fn give_back(&mut self, slot: RequestSlot) {
        self.free.push(slot.0);
    }

    /// The request was posted: a send of so many bytes, or a receive.
    pub(super) fn begin(&mut self, slot: RequestSlot, sent: Option<usize>) -> RequestId {
        let place = &mut self.states[slot.0 as usize];
        place.turn = place.turn.wrapping_add(1);
        place.state = RequestState::UnderWay(sent);
        RequestId(u64::from(place.turn) << 32 | u64::from(slot.0))
    }

    /// The request with this memory is done: its place. `None` where there is no such request.
    pub(super) fn end(&mut self, context: *mut c_void, outcome: Result<usize, RequestFailure>) -> Option<RequestSlot> {
        let (from, size) = (self.memory.as_ptr().addr(), size_of::<FiContext>());
        let distance = context.addr().checked_sub(from).filter(|distance| distance % size == 0)?;
        let place = self.states.get_mut(distance / size)?;
        let RequestState::UnderWay(sent) = place.state else { return None };
        place.state = RequestState::Done(outcome.map(|received| sent.unwrap_or(received)));
        u32::try_from(distance / size).ok().map(RequestSlot)
    }

    /// What has become of a request; `None` while it is under way. It is forgotten then.
    pub(super) fn test(&mut self, request: RequestId) -> Option<Result<usize, RequestFailure>> {
        let unknown =
            || Some(Err(RequestFailure { kind: Kind::System, why: "this request is not under way".to_owned() }));
        let (Ok(turn), Ok(slot)) = (u32::try_from(request.0 >> 32), u32::try_from(request.0 & 0xffff_ffff)) else {
            return unknown();
        };
        let Some(place) = self.states.get_mut(slot as usize).filter(|place| place.turn == turn) else {
            return unknown();
        };
        match std::mem::replace(&mut place.state, RequestState::Free) {
            RequestState::Free => unknown(),
            RequestState::UnderWay(sent) => {
                place.state = RequestState::UnderWay(sent);
                None
            }
            RequestState::Done(outcome) => {
                self.free.push(slot);
                Some(outcome)
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_done_once_and_a_place_serves_the_next_one() {
        let mut contexts = Contexts::new(1);
        let (slot, memory) = contexts.take().unwrap();
        assert!(contexts.take().is_none(), "all places are taken");
        let request = contexts.begin(slot, None);
        assert_eq!(contexts.test(request), None);
        assert_eq!(contexts.end(memory, Ok(7)), Some(slot));
        assert_eq!(contexts.end(memory, Ok(8)), None, "it is done once");
        assert_eq!(contexts.test(request), Some(Ok(7)));
        assert!(contexts.test(request).unwrap().is_err(), "it was forgotten");
        let (slot, again) = contexts.take().unwrap();
        assert_eq!(again, memory);
        let next = contexts.begin(slot, None);
        assert_ne!(next, request);
        assert!(contexts.test(request).unwrap().is_err() && contexts.test(next).is_none());
        assert!(contexts.end(again, Ok(0)).is_some());
        contexts.test(next);
        let (slot, memory) = contexts.take().unwrap();
        let sent = contexts.begin(slot, Some(40));
        assert!(contexts.end(memory, Ok(0)).is_some());
        assert_eq!(contexts.test(sent), Some(Ok(40)), "completions of sends have no length");
    }

    #[test]
    fn memory_that_is_no_request_s_is_told() {
        let mut contexts = Contexts::new(2);
        let (slot, memory) = contexts.take().unwrap();
        contexts.begin(slot, None);
        let off = |bytes: usize| memory.cast::<u8>().wrapping_add(bytes).cast();
        let all = [std::ptr::null_mut(), off(8), off(size_of::<FiContext>()), off(5 * size_of::<FiContext>())];
        assert!(all.into_iter().all(|context| contexts.end(context, Ok(0)).is_none()));
    }
}
