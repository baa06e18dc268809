//! Endpoints against the stand-in (`tests/machine/libfabric`), which asks for what only hardware asks, and against the
//! libfabrics of this machine.

use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::device::{HostMemory, HostRegion};
use crate::error::{Error, Kind, Result};
use crate::sync::Deadline;
use crate::sys::fabric_devices::FabricDevice;
use crate::sys::library::Library;
use crate::sys::poller::{self, Interest};
use crate::sys::{clock, fork, pinning, signals};
use crate::transport::libfabric::abi;
use crate::transport::libfabric::found::{OfiFound, find_in};
use crate::transport::libfabric::greetings::OfiGreeting;
use crate::transport::libfabric::library::text_at;
use crate::transport::libfabric::providers::OfiWish;
use crate::transport::net::request_nic::endpoint::{MessagePlace, NicEndpoint};
use crate::transport::net::request_nic::{
    ConnectionId, FoundNic, MessageNumber, MessageOrder, NicHandle, NicSleep, Posted, RegionId, RegistrationNeed,
    RequestId,
};
use crate::types::Rank;

mod layouts;
mod stand_in;
mod systems;

/// A library at a path, asked for TCP over the loopback interface too.
fn found(path: &Path) -> Result<OfiFound> {
    let name = CString::new(path.as_os_str().as_bytes()).expect("a path has no zero byte");
    let wish = OfiWish { is_asked: true, own: Some([127, 0, 0, 1].into()), ..OfiWish::default() };
    find_in(&name, wish, (Rank::new(0), None)).map(|(found, _)| found)
}

/// Two endpoints with a connection, and memory of each.
struct Pair {
    ends: [NicEndpoint; 2],
    connections: [ConnectionId; 2],
    memory: [HostRegion; 2],
    regions: [RegionId; 2],
    sent: u64,
}

impl Pair {
    fn open(found: [&dyn FoundNic; 2]) -> Result<Pair> {
        let mut ends = [NicEndpoint::open(found[0])?, NicEndpoint::open(found[1])?];
        let (listener, handle) = ends[1].listen()?;
        let connect = |[end, other]: &mut [NicEndpoint; 2]| {
            other.progress()?;
            end.progress()?;
            end.connect(&handle)
        };
        let first = until(&mut ends, connect)?;
        let second = until(&mut ends, |[other, end]: &mut [NicEndpoint; 2]| {
            other.progress()?;
            end.progress()?;
            end.accept(listener)
        })?;
        let memory = || HostMemory.allocate_for_nic(MEMORY_BYTES);
        let memory = [memory()?, memory()?];
        let regions = [ends[0].register(memory[0].clone())?, ends[1].register(memory[1].clone())?];
        Ok(Pair { ends, connections: [first, second], memory, regions, sent: 0 })
    }

    fn place(&self, end: usize, number: u64, range: std::ops::Range<usize>) -> MessagePlace {
        let (connection, region) = (self.connections[end], self.regions[end]);
        MessagePlace { connection, number: MessageNumber::of(number), region, range }
    }

    fn fill(&self, end: usize, range: std::ops::Range<usize>, seed: usize) {
        let (start, bytes) = (self.memory[end].at(range.start, range.len()), range.len());
        // SAFETY: no request has these bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) };
        bytes.iter_mut().zip(pattern(seed)).for_each(|(byte, value)| *byte = value);
    }

    fn holds(&self, end: usize, range: std::ops::Range<usize>, seed: usize) -> bool {
        let (start, bytes) = (self.memory[end].at(range.start, range.len()), range.len());
        // SAFETY: no request has these bytes.
        let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) };
        bytes.iter().zip(pattern(seed)).all(|(byte, value)| *byte == value)
    }

    /// Posts, again as long as the NIC has no room; both ends move meanwhile.
    fn post(&mut self, end: usize, place: &MessagePlace, is_send: bool) -> Result<RequestId> {
        until(&mut self.ends, |ends| {
            let posted = if is_send { ends[end].send(place.clone()) } else { ends[end].receive(place.clone()) }?;
            match posted {
                Posted::Request(request) => Ok(Some(request)),
                Posted::Later => {
                    ends[0].progress()?;
                    ends[1].progress()?;
                    Ok(None)
                }
                Posted::Done => Err(Error::internal("nothing is done at once here")),
            }
        })
    }

    fn finish(&mut self, end: usize, request: RequestId) -> Result<usize> {
        until(&mut self.ends, |ends| {
            ends[0].progress()?;
            ends[1].progress()?;
            ends[end].test(request)
        })
    }

    /// Messages of these lengths both ways at once; receives are posted from the last to the first, the first half of
    /// them before the sends. All bytes are compared.
    fn exchange(&mut self, lengths: &[usize]) -> Result<()> {
        let first = self.sent;
        self.sent += u64::try_from(lengths.len()).expect("few");
        let half = MEMORY_BYTES / 2;
        let mut places = Vec::new();
        let mut at = 0;
        for (index, length) in lengths.iter().enumerate() {
            places.push((first + u64::try_from(index).expect("few"), at..at + length));
            at += length;
        }
        assert!(at <= half, "the test has enough memory");
        let shifted = |range: &std::ops::Range<usize>| range.start + half..range.end + half;
        for (number, range) in &places {
            for end in [0, 1] {
                self.fill(end, range.clone(), usize::try_from(*number).expect("few") * 2 + end);
                self.fill(end, shifted(range), 999);
            }
        }
        let mut requests = Vec::new();
        for (index, (number, range)) in places.iter().enumerate().rev() {
            if index == places.len() / 2 {
                for (number, range) in &places {
                    for end in [0, 1] {
                        let place = self.place(end, *number, range.clone());
                        requests.push((end, self.post(end, &place, true)?, range.len()));
                    }
                }
            }
            for end in [0, 1] {
                let place = self.place(end, *number, shifted(range));
                requests.push((end, self.post(end, &place, false)?, range.len()));
            }
        }
        for (end, request, length) in requests {
            let bytes = self.finish(end, request)?;
            assert_eq!(bytes, length, "of a request of end {end}");
        }
        for (number, range) in &places {
            for end in [0, 1] {
                let seed = usize::try_from(*number).expect("few") * 2 + (1 - end);
                assert!(self.holds(end, shifted(range), seed), "message {number} of {range:?} to end {end}");
            }
        }
        Ok(())
    }
}

fn until<T>(ends: &mut [NicEndpoint; 2], mut ask: impl FnMut(&mut [NicEndpoint; 2]) -> Result<Option<T>>) -> Result<T> {
    let deadline = Deadline::after(PATIENCE);
    loop {
        if let Some(answer) = ask(ends)? {
            return Ok(answer);
        }
        if deadline.passed(clock::now()) {
            return Err(Error::timeout("the test waited too long"));
        }
    }
}

fn pattern(seed: usize) -> impl Iterator<Item = u8> {
    (0usize..).map(move |place| u8::try_from((place * 31 + place / 251 + seed * 77) % 256).unwrap_or(0))
}

const MEMORY_BYTES: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
