//! The requests of an endpoint, by numbers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::transport::net::request_nic::{NicMemory, RequestId};
use crate::transport::net_plugin::library::PlugInObject;

/// Requests that are under way, or done and not asked for since.
#[derive(Debug, Default)]
pub(super) struct PlugInRequests {
    places: Vec<PlugInPlace>,
    free: Vec<u32>,
    /// How many the plug-in may still have of each connection that it has some of.
    under_way: HashMap<u32, usize>,
}

#[derive(Debug)]
struct PlugInPlace {
    /// How often it was given away: a number that was given back means nothing.
    turn: u32,
    request: Option<PlugInRequest>,
}

/// A request.
#[derive(Debug)]
pub(super) struct PlugInRequest {
    pub(super) connection: u32,
    pub(super) object: PlugInObject,
    pub(super) place: RequestPlace,
    pub(super) is_send: bool,
    pub(super) end: RequestEnd,
}

/// Where what was posted lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestPlace {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
    /// Whether that is memory of a GPU, which this process does not reach.
    pub(super) is_device: bool,
}

// SAFETY: the memory has no thread affinity.
unsafe impl Send for RequestPlace {}

impl From<NicMemory> for RequestPlace {
    fn from(memory: NicMemory) -> RequestPlace {
        RequestPlace { start: memory.start(), bytes: memory.bytes(), is_device: memory.is_device() }
    }
}

/// What has become of a request.
#[derive(Debug)]
pub(super) enum RequestEnd {
    UnderWay,
    /// With so many bytes.
    Done(usize),
    /// With a length that cannot be: it is over all the same.
    Failed(Error),
    /// Its connection is broken, or the plug-in has failed when it was asked, maybe for the sake of another request: it
    /// may have this one's memory all the same.
    Broken(Error),
    /// It took what the peer sends at the end: its caller waits for nothing.
    Farewell,
}

impl PlugInRequests {
    /// Notes a request that was posted.
    pub(super) fn add(&mut self, request: PlugInRequest) -> RequestId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(PlugInPlace { turn: 0, request: None });
            u32::try_from(self.places.len() - 1).expect("far fewer requests")
        });
        let one = &mut self.places[place as usize];
        *self.under_way.entry(request.connection).or_default() += 1;
        one.request = Some(request);
        RequestId(u64::from(one.turn) << 32 | u64::from(place))
    }

    /// A request that was not taken.
    ///
    /// # Errors
    /// Where there is none of this number.
    pub(super) fn get(&self, id: RequestId) -> Result<&PlugInRequest> {
        let (place, turn) = parts(id);
        let known = self.places.get(place).filter(|known| known.turn == turn);
        known.and_then(|known| known.request.as_ref()).ok_or_else(|| Error::internal("this NIC has no such request"))
    }

    /// Says what has become of a request that was under way.
    pub(super) fn end(&mut self, id: RequestId, end: RequestEnd) {
        let (place, turn) = parts(id);
        let known = self.places.get_mut(place).filter(|known| known.turn == turn);
        if let Some(request) = known.and_then(|known| known.request.as_mut())
            && matches!(request.end, RequestEnd::UnderWay)
        {
            if !matches!(end, RequestEnd::Broken(_) | RequestEnd::UnderWay)
                && let Entry::Occupied(mut left) = self.under_way.entry(request.connection)
            {
                *left.get_mut() -= 1;
                if *left.get() == 0 {
                    left.remove();
                }
            }
            request.end = end;
        }
    }

    /// Takes what has become of a request, and forgets it; `None` where it is under way, or will never be done.
    ///
    /// # Errors
    /// Of the request.
    pub(super) fn take(&mut self, id: RequestId) -> Result<Option<usize>> {
        if matches!(self.get(id)?.end, RequestEnd::UnderWay | RequestEnd::Farewell) {
            return Ok(None);
        }
        let (place, _) = parts(id);
        let one = &mut self.places[place];
        one.turn = one.turn.wrapping_add(1);
        self.free.push(u32::try_from(place).expect("it was one"));
        match one.request.take().map(|request| request.end) {
            Some(RequestEnd::Done(bytes)) => Ok(Some(bytes)),
            Some(RequestEnd::Failed(error) | RequestEnd::Broken(error)) => Err(error),
            Some(RequestEnd::UnderWay | RequestEnd::Farewell) | None => Ok(None),
        }
    }

    /// How many the plug-in may still have.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.values().sum()
    }

    /// Whether it may still have any of a connection's.
    pub(super) fn has_any_of(&self, connection: u32) -> bool {
        self.under_way.contains_key(&connection)
    }

    /// Whether a request is under way: one that was taken is not.
    pub(super) fn is_under_way(&self, id: RequestId) -> bool {
        self.get(id).is_ok_and(|request| matches!(request.end, RequestEnd::UnderWay))
    }

    /// All that are under way.
    pub(super) fn all_under_way(&self) -> Vec<RequestId> {
        let number = |(place, known): (usize, &PlugInPlace)| RequestId(u64::from(known.turn) << 32 | place as u64);
        let all = self.places.iter().enumerate().map(number);
        all.filter(|id| self.is_under_way(*id)).collect()
    }
}

fn parts(id: RequestId) -> (usize, u32) {
    let turn = u32::try_from(id.0 >> 32).expect("32 bits");
    (usize::try_from(id.0 & u64::from(u32::MAX)).unwrap_or(usize::MAX), turn)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn request() -> PlugInRequest {
        let start = NonNull::dangling();
        let object = PlugInObject(NonNull::dangling());
        let place = RequestPlace { start, bytes: 8, is_device: false };
        PlugInRequest { connection: 3, object, place, is_send: true, end: RequestEnd::UnderWay }
    }

    #[test]
    fn a_number_means_one_request_and_nothing_after_it() {
        let mut requests = PlugInRequests::default();
        let first = requests.add(request());
        assert_eq!((requests.take(first).unwrap(), requests.under_way()), (None, 1));
        assert_eq!(requests.all_under_way(), [first]);
        requests.end(first, RequestEnd::Done(7));
        assert_eq!((requests.take(first).unwrap(), requests.under_way()), (Some(7), 0));
        let second = requests.add(request());
        assert_ne!(first, second, "of the same place");
        assert!(requests.take(first).is_err() && requests.get(second).is_ok());
    }

    #[test]
    fn a_request_whose_connection_is_broken_may_still_be_under_way() {
        let mut requests = PlugInRequests::default();
        let [broken, failed, farewell] = [(); 3].map(|()| requests.add(request()));
        requests.end(broken, RequestEnd::Broken(Error::internal("broken")));
        requests.end(failed, RequestEnd::Failed(Error::internal("failed")));
        requests.end(farewell, RequestEnd::Farewell);
        assert!(requests.take(broken).unwrap_err().message().contains("broken"));
        assert!(requests.take(failed).unwrap_err().message().contains("failed"));
        assert_eq!((requests.take(farewell).unwrap(), requests.under_way()), (None, 1));
        assert!(requests.has_any_of(3) && !requests.has_any_of(4));
    }
}
