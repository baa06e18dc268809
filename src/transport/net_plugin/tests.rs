//! Against the stand-in (`tests/machine/net_plugin`).

use std::ffi::{CString, c_char, c_int};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::device::{HostMemory, HostRegion};
use crate::error::{Error, Kind, Result};
use crate::sync::Deadline;
use crate::sync::primitive::Arc;
use crate::sys::library::Library;
use crate::transport::net::request_nic::endpoint::{MessagePlace, NicEndpoint};
use crate::transport::net::request_nic::{
    ConnectionId, FoundNic, ListenerId, MessageNumber, NicHandle, Posted, RegionId, RequestId,
};
use crate::transport::net_plugin::found::{find_in, names};
use crate::types::Rank;

mod layouts;
mod refusals;

/// A plug-in in a folder of its own.
struct StandIn {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl StandIn {
    /// `None` where there is no C compiler.
    fn new(options: &[&str]) -> Option<StandIn> {
        let folder = tempfile::Builder::new().prefix("plugin").tempdir_in("/tmp").unwrap();
        let options: Vec<&str> = options.iter().copied().chain(["LOOPBACK=1"]).collect();
        let path = machine::net_plugin::stand_in(folder.path(), "plugin.so", &options)?;
        Some(StandIn { path, _folder: folder })
    }

    fn found(&self) -> Result<Arc<dyn FoundNic>> {
        find_in(Rank::new(0), &[self.path.display().to_string()], None)
    }

    /// What the plug-in's caller has done wrong, and how many objects are open beside the process's context.
    fn state(&self) -> (Option<String>, c_int) {
        let name = CString::new(self.path.as_os_str().as_bytes()).unwrap();
        let library = Library::open(&name).unwrap();
        // SAFETY: the types in `stand_in.c`, here and below.
        let fault = unsafe { library.function::<extern "C" fn() -> *const c_char>(c"stand_in_fault") }.unwrap();
        // SAFETY: as above.
        let open = unsafe { library.function::<extern "C" fn() -> c_int>(c"stand_in_open") }.unwrap();
        let fault = fault();
        // SAFETY: a text that stays.
        let fault =
            (!fault.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(fault) }.to_string_lossy().into_owned());
        (fault, open())
    }
}

/// Two endpoints with a connection, and memory of each.
struct Pair {
    ends: [Option<NicEndpoint>; 2],
    connections: [ConnectionId; 2],
    memory: [HostRegion; 2],
    regions: [RegionId; 2],
    sent: u64,
}

impl Pair {
    fn open(found: &dyn FoundNic) -> Result<Pair> {
        let mut ends = [NicEndpoint::open(found)?, NicEndpoint::open(found)?];
        let (listener, handle) = ends[1].listen()?;
        let connections = connected(&mut ends, (listener, handle))?;
        let memory = || HostMemory.allocate_for_nic(2 * HALF_BYTES);
        let memory = [memory()?, memory()?];
        let regions = [ends[0].register(memory[0].clone())?, ends[1].register(memory[1].clone())?];
        Ok(Pair { ends: ends.map(Some), connections, memory, regions, sent: 0 })
    }

    fn end(&mut self, end: usize) -> &mut NicEndpoint {
        self.ends[end].as_mut().expect("it is open")
    }

    fn post(&mut self, end: usize, number: u64, range: Range<usize>, is_send: bool) -> Result<RequestId> {
        let place = MessagePlace {
            connection: self.connections[end],
            number: MessageNumber::of(number),
            region: self.regions[end],
            range,
        };
        let end = self.end(end);
        until(|| {
            end.progress()?;
            let posted = if is_send { end.send(place.clone()) } else { end.receive(place.clone()) }?;
            Ok(match posted {
                Posted::Request(request) => Some(request),
                Posted::Later => None,
                Posted::Done => return Err(Error::internal("nothing is done at once here")),
            })
        })
    }

    fn bytes(&mut self, end: usize, range: &Range<usize>) -> &mut [u8] {
        let start = self.memory[end].at(range.start, range.len());
        // SAFETY: no request has these bytes while a test looks at them.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), range.len()) }
    }

    /// Messages of these lengths both ways at once, in receives that are a little longer; all bytes are compared.
    fn exchange(&mut self, lengths: &[usize]) -> Result<()> {
        let (mut at, mut requests) = (0, Vec::new());
        for length in lengths {
            let (number, range) = (self.sent, at..at + length);
            let into = HALF_BYTES + range.start..HALF_BYTES + range.end;
            at += length + SPARE;
            assert!(at <= HALF_BYTES, "the test has enough memory");
            for end in [0, 1] {
                fill(self.bytes(end, &range), number * 2 + end as u64);
                let room = into.start..into.end + SPARE;
                requests.push((end, self.post(end, number, room, false)?, into.clone(), number));
            }
            for end in [0, 1] {
                let sent = self.post(end, number, range.clone(), true)?;
                requests.push((end, sent, range.clone(), u64::MAX));
            }
            self.sent += 1;
        }
        for (end, request, range, number) in requests {
            let came = until(|| {
                self.end(0).progress()?;
                self.end(1).progress()?;
                self.end(end).test(request)
            })?;
            assert_eq!(came, range.len(), "of a request of end {end}");
            if number < u64::MAX {
                let mut expected = vec![0; range.len()];
                fill(&mut expected, number * 2 + (1 - end) as u64);
                assert!(self.bytes(end, &range) == expected, "message {number} to end {end}");
            }
        }
        Ok(())
    }

    /// Closes both ends at once, as ranks do; whether memory was given back.
    fn close(self) -> bool {
        let Pair { ends: [first, second], memory, .. } = self;
        let keeps = memory.each_ref().map(|memory| Arc::downgrade(memory.keep()));
        drop(memory);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(first));
            scope.spawn(|| drop(second));
        });
        keeps.iter().all(|keep| keep.upgrade().is_none())
    }
}

fn connected(ends: &mut [NicEndpoint; 2], (listener, handle): (ListenerId, NicHandle)) -> Result<[ConnectionId; 2]> {
    let mut made = [None, None];
    until(|| {
        if made[0].is_none() {
            made[0] = ends[0].connect(&handle)?;
        }
        if made[1].is_none() {
            made[1] = ends[1].accept(listener)?;
        }
        Ok(made[0].zip(made[1]))
    })
    .map(|(first, second)| [first, second])
}

fn until<T>(mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Deadline::after(Duration::from_secs(20));
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if deadline.is_over() {
            return Err(Error::timeout("the test waited too long"));
        }
    }
}

fn fill(bytes: &mut [u8], seed: u64) {
    let value = |place: usize| (place as u64 * 31 + place as u64 / 251 + seed * 77) % 256;
    bytes.iter_mut().enumerate().for_each(|(place, byte)| *byte = u8::try_from(value(place)).unwrap_or(0));
}

const HALF_BYTES: usize = 4 << 20;
const SPARE: usize = 100;
/// Of all sizes that mean something: one, odd, as long as a farewell, large.
const LENGTHS: [usize; 9] = [1, 8, 24, 777, 16384, 65569, 3, 1 << 20, 25];

#[test]
fn messages_come_whole_whatever_version_and_however_late() {
    let all: [&[&str]; 9] = [
        &["VERSIONS=1"],
        &["VERSIONS=2"],
        &[],
        // As HPC-X does: before it starts it has its name alone, another one.
        &["VERSIONS=1", "FILLS_IN_INIT=1"],
        &["VERSIONS=2", "FILLS_IN_INIT=1"],
        &["FILLS_IN_INIT=1"],
        &["VERSIONS=1", "AGAIN_EVERY=3"],
        &["LATE=3"],
        &["AGAIN_EVERY=2", "LATE=1"],
    ];
    for options in all {
        let Some(plug_in) = StandIn::new(options) else { return };
        let found = plug_in.found().unwrap();
        let mut pair = Pair::open(&*found).unwrap();
        for _ in 0..3 {
            pair.exchange(&LENGTHS).unwrap_or_else(|error| panic!("{options:?}: {error}; {:?}", plug_in.state()));
        }
        assert!(pair.close(), "{options:?}");
        let own = c_int::from(!options.contains(&"VERSIONS=1"));
        assert_eq!(plug_in.state(), (None, own), "{options:?}: nothing is open but the process's context");
    }
}

#[test]
fn what_a_plug_in_tells_is_told() {
    let Some(plug_in) = StandIn::new(&["MOST_COMMS=8", "DEVICES=2", "NET=\"Their Net\""]) else { return };
    let found = plug_in.found().unwrap();
    let path = plug_in.path.display();
    let words = format!("plugin, Their Net of {path} (version 12) on stand0");
    assert_eq!(found.description().to_string(), words);
    assert_eq!((found.description().rate_mbit, found.description().node), (None, None));
    assert_eq!((found.promises().most_connections(), found.promises().most_message_bytes), (4, 1 << 30));
    assert_eq!(found.noes(), ["stand0: stand0 comes first"]);
}

/// Ends of ranks have receives posted for messages that never come.
#[test]
fn ends_that_close_with_receives_posted_leave_nothing_behind() {
    for options in [&["VERSIONS=1"][..], &["AGAIN_EVERY=3"], &["LATE=2"]] {
        let Some(plug_in) = StandIn::new(options) else { return };
        let found = plug_in.found().unwrap();
        let mut pair = Pair::open(&*found).unwrap();
        pair.exchange(&LENGTHS).unwrap();
        for number in 0..8 {
            let at = HALF_BYTES + number * 1000;
            pair.post(0, 100 + number as u64, at..at + 1000, false).unwrap();
        }
        pair.post(1, 100, HALF_BYTES..HALF_BYTES + 256, false).unwrap();
        assert!(pair.close(), "{options:?}: memory is given back");
        let own = c_int::from(options != ["VERSIONS=1"]);
        assert_eq!(plug_in.state(), (None, own), "{options:?}");
    }
}

#[test]
fn an_end_whose_peer_is_gone_hears_later_and_keeps_the_memory_of_what_is_posted() {
    let Some(plug_in) = StandIn::new(&[]) else { return };
    let found = plug_in.found().unwrap();
    let mut pair = Pair::open(&*found).unwrap();
    pair.exchange(&[64]).unwrap();
    let receive = pair.post(0, 1, HALF_BYTES..HALF_BYTES + 256, false).unwrap();
    // It closes alone, with a receive posted, for whose sake it says so and waits a little.
    pair.post(1, 1, HALF_BYTES..HALF_BYTES + 256, false).unwrap();
    let keep = Arc::downgrade(pair.memory[1].keep());
    pair.memory[1] = pair.memory[0].clone();
    pair.ends[1] = None;
    assert!(keep.upgrade().is_some(), "the peer has not answered: the memory stays");
    // What is left is a farewell, which is no message.
    for _ in 0..100 {
        pair.end(0).progress().unwrap();
        assert_eq!(pair.end(0).test(receive).unwrap(), None);
    }
    let place = MessagePlace {
        connection: pair.connections[0],
        number: MessageNumber::of(1),
        region: pair.regions[0],
        range: 0..64,
    };
    let error = pair.end(0).send(place).unwrap_err();
    assert_eq!((error.kind(), error.message()), (Kind::Remote, "the peer has closed its end of the connection"));
}

#[test]
fn a_length_that_cannot_be_is_an_error() {
    for (told, words) in [("1000000", "1000064"), ("-65", "-1")] {
        // Of messages of 64 bytes alone: the greeting comes as it is.
        let Some(plug_in) = StandIn::new(&[&format!("TOLD=+(one->header == 64 ? {told} : 0)")]) else { return };
        let found = plug_in.found().unwrap();
        let mut pair = Pair::open(&*found).unwrap();
        pair.exchange(&[63, 65]).unwrap();
        let error = pair.exchange(&[64]).unwrap_err();
        let sentence = format!("net plug-in Stand-in: a message of {words} bytes came where 164 fit");
        assert_eq!((error.kind(), error.message()), (Kind::Remote, &*sentence));
        // The connection is broken, and others are not.
        let error = pair.post(0, 9, 0..64, true).unwrap_err();
        assert!(error.message() == sentence || pair.post(1, 9, 0..64, true).unwrap_err().message() == sentence);
        assert!(pair.end(0).listen().is_ok());
    }
}

#[test]
fn a_device_has_room_for_as_many_connections_as_it_says() {
    let Some(plug_in) = StandIn::new(&["MOST_COMMS=4"]) else { return };
    let found = plug_in.found().unwrap();
    let mut end = NicEndpoint::open(&*found).unwrap();
    end.listen().unwrap();
    end.listen().unwrap();
    let error = end.listen().unwrap_err();
    assert_eq!(error.message(), "net plug-in Stand-in: its device takes 2 connections, and this is one more");
}

#[test]
fn a_stranger_who_connects_first_costs_its_own_connection_only() {
    let Some(plug_in) = StandIn::new(&[]) else { return };
    let found = plug_in.found().unwrap();
    let mut ends = [NicEndpoint::open(&*found).unwrap(), NicEndpoint::open(&*found).unwrap()];
    let (listener, handle) = ends[1].listen().unwrap();
    let mut wrong = handle.content().to_vec();
    wrong[0] ^= 1;
    let wrong = NicHandle::new(&wrong).unwrap();
    for _ in 0..200 {
        assert!(ends[0].connect(&wrong).unwrap().is_none() && ends[1].accept(listener).unwrap().is_none());
    }
    connected(&mut ends, (listener, handle)).unwrap();
    assert!(NicHandle::new(&[0; 7]).is_ok_and(|short| ends[0].connect(&short).is_err()), "a broken handle");
}

#[test]
fn lists_of_names_are_read_as_nccl_reads_them() {
    assert_eq!(names("aws-ofi, ,libnccl-net-x.so,/a/b.so,"), ["aws-ofi", "libnccl-net-x.so", "/a/b.so"]);
    assert_eq!(names(&"x,".repeat(40)).len(), 14);
    assert_eq!(names(&"x".repeat(255)), [""; 0]);
}
