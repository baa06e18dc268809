//! A communicator's endpoint on a NIC, with the memory that was handed to it.
//!
//! Sends and receives that are under way cannot be cancelled: the NIC may write into their memory until the endpoint is
//! closed, whatever has become of the communicator. So the endpoint owns the memory, and closes the NIC before it lets
//! go of it. A NIC that cannot be closed keeps its memory for ever.
//!
//! Memory of a program's cannot be owned. It is *lent* ([`NicLoan`]) for a message, and who has the other half of the
//! loan, a [`NicHold`], does not give the memory back before the message is done: dropped earlier, it closes the NIC.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use crate::device::{HostRegion, Region};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::{Arc, AtomicBool, Mutex, Ordering};
use crate::sys::open;
use crate::sys::pinning::OwnPins;
use crate::transport::net::request_nic::{
    ConnectionId, DeviceMemoryAccess, DeviceReach, FoundNic, ListenerId, MessageNumber, NicHandle, NicMemory,
    NicPromises, NicSleep, Posted, RegionId, RegistrationNeed, RequestId, RequestNic, RequestWay,
};
use crate::transport::nic_hold::{LentMemory, NicHold};
use crate::transport::pump::PumpSleep;

/// An endpoint, as its connections share it.
pub(in crate::transport) type SharedEndpoint = Arc<Mutex<NicEndpoint>>;

/// An open endpoint. After the first error of the NIC as a whole it answers everything with that error.
#[derive(Debug)]
pub(in crate::transport) struct NicEndpoint {
    /// `None` for a NIC that pins nothing.
    pins: Option<OwnPins>,
    // Before the memory: fields are dropped in this order.
    nic: Box<dyn RequestNic>,
    regions: Vec<NicRegion>,
    promises: NicPromises,
    failure: Option<Error>,
    goes_straight: bool,
    /// What may be under way beside each connection's [own](NicPromises::own_requests).
    sends: CommonRequests,
    receives: CommonRequests,
    connections: usize,
    /// The connection whose calls let the NIC move, and how often others have called since.
    mover: Option<ConnectionId>,
    others: u32,
    /// What threads sleep on, by its number: a copy of the NIC's descriptor.
    twin: Option<(RawFd, Arc<OwnedFd>)>,
}

/// Memory that the NIC has.
#[derive(Debug)]
enum NicRegion {
    Host(HostRegion),
    Device(Region),
}

impl NicRegion {
    fn bytes(&self) -> usize {
        match self {
            NicRegion::Host(memory) => memory.bytes(),
            NicRegion::Device(memory) => memory.bytes(),
        }
    }

    /// A part of it, which lies inside.
    fn part(&self, region: RegionId, range: Range<usize>) -> NicMemory {
        let bytes = range.len();
        match self {
            NicRegion::Host(memory) => {
                NicMemory { region, start: memory.at(range.start, bytes), bytes, is_device: false }
            }
            NicRegion::Device(memory) => {
                // The address is the device's: it is counted with, and never followed.
                let start = memory.base().map_addr(|base| base.saturating_add(range.start));
                NicMemory { region, start, bytes, is_device: true }
            }
        }
    }

    fn is(&self, memory: &HostRegion) -> bool {
        matches!(self, NicRegion::Host(one) if one.base() == memory.base() && one.bytes() == memory.bytes())
    }
}

/// Requests of one way that all connections share. Each has one of its own, and one more for what goes straight, so
/// whatever others have under way, and for however long, none of them stands still.
#[derive(Debug, Clone, Copy)]
struct CommonRequests {
    all: usize,
    free: usize,
}

impl CommonRequests {
    fn new(all: usize) -> CommonRequests {
        CommonRequests { all, free: all }
    }
}

/// A message that is posted: where it comes from or goes to.
#[derive(Debug, Clone)]
pub(in crate::transport) struct MessagePlace {
    pub(in crate::transport) connection: ConnectionId,
    pub(in crate::transport) number: MessageNumber,
    pub(in crate::transport) region: RegionId,
    pub(in crate::transport) range: Range<usize>,
}

/// Memory of a program's that a NIC has for one message.
#[derive(Debug)]
pub(in crate::transport) struct NicLoan {
    endpoint: SharedEndpoint,
    is_out: AtomicBool,
}

impl NicLoan {
    /// A loan that has begun, and the half of it that stays with the memory.
    pub(in crate::transport) fn begin(endpoint: &SharedEndpoint) -> (Arc<NicLoan>, NicHold) {
        let loan = Arc::new(NicLoan { endpoint: Arc::clone(endpoint), is_out: AtomicBool::new(true) });
        let half: Arc<NicLoan> = Arc::clone(&loan);
        (loan, NicHold::of(half))
    }

    /// The NIC is done with the memory.
    pub(in crate::transport) fn end(&self) {
        // Pairs with the acquire below: what the NIC has written is seen by who looks there.
        self.is_out.store(false, Ordering::Release);
    }
}

impl LentMemory for NicLoan {
    fn is_over(&self) -> bool {
        // Pairs with the release above.
        !self.is_out.load(Ordering::Acquire)
    }

    fn take_back(&self) {
        self.endpoint.lock().shut();
    }
}

impl NicEndpoint {
    /// Opens an endpoint on `found`.
    ///
    /// # Errors
    /// As [`FoundNic::open`].
    pub(in crate::transport) fn open(found: &dyn FoundNic) -> Result<NicEndpoint> {
        Ok(NicEndpoint::over(found.open()?, found.promises()))
    }

    fn over(nic: Box<dyn RequestNic>, promises: &NicPromises) -> NicEndpoint {
        let own = promises.most_connections() * promises.own_requests();
        let sends = CommonRequests::new(promises.most_sends - own);
        let receives = CommonRequests::new(promises.most_receives - own);
        let goes_straight = promises.goes_straight();
        let pins = (promises.registration == RegistrationNeed::All).then(OwnPins::default);
        let (regions, failure, connections, mover, others, twin) = (Vec::new(), None, 0, None, 0, None);
        let promises = *promises;
        NicEndpoint {
            pins,
            nic,
            regions,
            promises,
            failure,
            goes_straight,
            sends,
            receives,
            connections,
            mover,
            others,
            twin,
        }
    }

    /// As [`RequestNic::listen`].
    ///
    /// # Errors
    /// As there.
    pub(in crate::transport) fn listen(&mut self) -> Result<(ListenerId, NicHandle)> {
        self.ask(|nic| nic.listen())
    }

    /// As [`RequestNic::connect`].
    ///
    /// # Errors
    /// As there.
    pub(in crate::transport) fn connect(&mut self, to: &NicHandle) -> Result<Option<ConnectionId>> {
        self.nic()?.connect(to)
    }

    /// As [`RequestNic::accept`].
    ///
    /// # Errors
    /// As there.
    pub(in crate::transport) fn accept(&mut self, listener: ListenerId) -> Result<Option<ConnectionId>> {
        self.nic()?.accept(listener).inspect_err(|error| {
            if error.kind() != Kind::Remote {
                self.failure = Some(error.duplicate());
            }
        })
    }

    /// As [`NicPromises::goes_straight`].
    pub(in crate::transport) fn goes_straight(&self) -> bool {
        self.goes_straight
    }

    /// Closes the NIC, so that it touches no memory any more: a call ends that has lent it some.
    fn shut(&mut self) {
        if self.failure.is_none() {
            let message = "a call ended while a NIC had memory of it, so the NIC was closed";
            self.failure = Some(Error::new(Kind::Aborted, message));
        }
        if let Err(error) = self.nic.close() {
            // Nobody can have the memory back, and its owner is about to use it.
            log::tell(&format!(
                "a NIC does not close that has memory of the program, which cannot go on: {}",
                error.message()
            ));
            std::process::abort();
        }
    }

    /// As [`RequestNic::tells_faults`].
    pub(in crate::transport) fn tells_faults(&self) -> bool {
        self.nic.tells_faults()
    }

    /// Hands `memory` to the NIC, which has it until it is closed.
    ///
    /// # Errors
    /// As [`RequestNic::register`].
    pub(in crate::transport) fn register(&mut self, memory: HostRegion) -> Result<RegionId> {
        let known = self.regions.iter().position(|one| one.is(&memory));
        if let Some(known) = known {
            return Ok(region_id(known));
        }
        let region = region_id(self.regions.len());
        let whole = NicMemory { region, start: memory.base(), bytes: memory.bytes(), is_device: false };
        // First: a NIC that fails halfway may have pinned it.
        self.regions.push(NicRegion::Host(memory));
        let (start, mut pins) = (whole.start.addr().get(), self.pins.take());
        let registered = match &mut pins {
            Some(pins) => pins.count(&(start..start + whole.bytes), || self.ask(|nic| nic.register(whole))),
            None => self.ask(|nic| nic.register(whole)),
        };
        self.pins = pins;
        registered.map(|()| region)
    }

    /// Hands `memory` of a device to the NIC for one way of a connection.
    ///
    /// # Errors
    /// Why it does not take it, as a sentence: the caller goes on without.
    pub(in crate::transport) fn register_device(
        &mut self,
        (connection, way): (ConnectionId, RequestWay),
        memory: Region,
        reach: &DeviceReach,
    ) -> std::result::Result<RegionId, String> {
        if self.promises.device_memory == DeviceMemoryAccess::None {
            return Err("this NIC takes no memory of devices".to_owned());
        }
        let region = region_id(self.regions.len());
        let memory = NicRegion::Device(memory);
        let whole = memory.part(region, 0..memory.bytes());
        // First, as above.
        self.regions.push(memory);
        let registered = match self.nic() {
            Ok(nic) => nic.register_device(connection, way, whole, reach),
            Err(error) => Err(error.message().to_owned()),
        };
        if registered.is_err() {
            // Nothing has it.
            self.regions.pop();
        }
        registered.map(|()| region)
    }

    /// The largest message.
    pub(in crate::transport) fn most_message_bytes(&self) -> usize {
        self.promises.most_message_bytes
    }

    /// Counts one more connection.
    pub(in crate::transport) fn add_connection(&mut self) {
        self.connections += 1;
    }

    /// How many receives a connection may have under way that has so many: one, the same share as all others of what
    /// is for all, and no more than there are.
    pub(in crate::transport) fn receives_for(&self, under_way: usize) -> usize {
        let share = 1 + self.receives.all / self.connections.max(1);
        share.min(under_way.max(1) + self.receives.free)
    }

    /// Counts a request that is about to be posted for a connection that has so many of this way under way. False
    /// where it must wait, since other connections have all that is not their own.
    pub(in crate::transport) fn begin(&mut self, way: RequestWay, under_way: usize) -> bool {
        let common = self.common(way);
        let is_own = under_way == 0;
        if !is_own && common.free == 0 {
            return false;
        }
        common.free -= usize::from(!is_own);
        true
    }

    /// Counts a request that is done, of a connection that had so many under way, this one too.
    pub(in crate::transport) fn end(&mut self, way: RequestWay, under_way: usize) {
        let common = self.common(way);
        common.free = common.all.min(common.free + usize::from(under_way > 1));
    }

    fn common(&mut self, way: RequestWay) -> &mut CommonRequests {
        match way {
            RequestWay::Out => &mut self.sends,
            RequestWay::In => &mut self.receives,
        }
    }

    /// As [`RequestNic::send`].
    ///
    /// # Errors
    /// As there.
    pub(in crate::transport) fn send(&mut self, place: MessagePlace) -> Result<Posted> {
        let from = self.memory(&place)?;
        self.nic()?.send(place.connection, place.number, from)
    }

    /// As [`RequestNic::receive`].
    ///
    /// # Errors
    /// As there.
    pub(in crate::transport) fn receive(&mut self, place: MessagePlace) -> Result<Posted> {
        let into = self.memory(&place)?;
        self.nic()?.receive(place.connection, place.number, into)
    }

    /// As [`RequestNic::flush`].
    ///
    /// # Errors
    /// As there.
    pub(in crate::transport) fn flush(&mut self, place: &MessagePlace) -> Result<Posted> {
        let received = self.memory(place)?;
        self.nic()?.flush(place.connection, received)
    }

    /// As [`RequestNic::send`], of memory that is lent.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// The memory stays as it is until the request is done or the NIC was closed: a [`NicHold`] sees to that.
    pub(in crate::transport) unsafe fn send_lent(
        &mut self,
        (connection, number): (ConnectionId, MessageNumber),
        (start, bytes): (NonNull<u8>, usize),
    ) -> Result<Posted> {
        self.nic()?.send(connection, number, NicMemory { region: LENT, start, bytes, is_device: false })
    }

    /// The same for [`RequestNic::receive`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As above, and nobody else touches it.
    pub(in crate::transport) unsafe fn receive_lent(
        &mut self,
        (connection, number): (ConnectionId, MessageNumber),
        (start, bytes): (NonNull<u8>, usize),
    ) -> Result<Posted> {
        self.nic()?.receive(connection, number, NicMemory { region: LENT, start, bytes, is_device: false })
    }

    /// As [`RequestNic::test`].
    ///
    /// # Errors
    /// As there.
    pub(in crate::transport) fn test(&mut self, request: RequestId) -> Result<Option<usize>> {
        self.nic()?.test(request)
    }

    /// Lets the NIC move, once for each turn of a thread that asks for several connections: the calls of one of them do
    /// it for all.
    ///
    /// # Errors
    /// As [`RequestNic::progress`].
    pub(in crate::transport) fn move_for(&mut self, connection: ConnectionId) -> Result<()> {
        if self.mover != Some(connection) && self.mover.is_some() && self.others < MOST_OTHERS {
            self.others += 1;
            return Ok(());
        }
        (self.mover, self.others) = (Some(connection), 0);
        self.progress()
    }

    /// A connection that calls no more for a while: the next one that does lets the NIC move.
    pub(in crate::transport) fn leave_moving(&mut self, connection: ConnectionId) {
        self.mover.take_if(|mover| *mover == connection);
    }

    /// As [`RequestNic::progress`].
    ///
    /// # Errors
    /// As there.
    pub(in crate::transport) fn progress(&mut self) -> Result<()> {
        self.ask(|nic| nic.progress())
    }

    /// As [`RequestNic::sleep`].
    ///
    /// # Errors
    /// As there.
    pub(in crate::transport) fn sleep(&mut self) -> Result<NicSleep<'_>> {
        self.nic()?.sleep()
    }

    /// As [`NicEndpoint::sleep`], for threads that leave the endpoint to others meanwhile: so the descriptor is a copy,
    /// and what others let the NIC move may be told by it no more.
    ///
    /// # Errors
    /// As there, or of the system.
    pub(in crate::transport) fn pump_sleep(&mut self) -> Result<PumpSleep> {
        let known = self.twin.as_ref().map(|(number, _)| *number);
        let fresh = match self.sleep()? {
            NicSleep::PollMe => return Ok(PumpSleep::Ask),
            NicSleep::Ready => return Ok(PumpSleep::Moved),
            NicSleep::On(descriptor) if known == Some(descriptor.as_raw_fd()) => None,
            NicSleep::On(descriptor) => Some((descriptor.as_raw_fd(), open::twin(descriptor))),
        };
        if let Some((number, twin)) = fresh {
            let twin = twin.map_err(|error| Error::system("dup of a NIC's descriptor", error))?;
            self.twin = Some((number, Arc::new(twin)));
        }
        Ok(self.twin.as_ref().map_or(PumpSleep::Ask, |(_, twin)| PumpSleep::On(Arc::clone(twin))))
    }

    /// The memory of a message.
    fn memory(&self, MessagePlace { region, range, .. }: &MessagePlace) -> Result<NicMemory> {
        let whole = usize::try_from(region.0).ok().and_then(|place| self.regions.get(place));
        let whole = whole.filter(|whole| range.start <= range.end && range.end <= whole.bytes());
        let whole = whole.ok_or_else(|| Error::internal("a message outside the memory of its NIC"))?;
        Ok(whole.part(*region, range.clone()))
    }

    /// The NIC, which has not failed before.
    fn nic(&mut self) -> Result<&mut dyn RequestNic> {
        match &self.failure {
            None => Ok(&mut *self.nic),
            Some(error) => Err(error.duplicate()),
        }
    }

    /// A call whose error is that of the NIC as a whole.
    fn ask<T>(&mut self, call: impl FnOnce(&mut dyn RequestNic) -> Result<T>) -> Result<T> {
        call(self.nic()?).inspect_err(|error| self.failure = Some(error.duplicate()))
    }
}

impl Drop for NicEndpoint {
    fn drop(&mut self) {
        // Before the NIC unpins them.
        self.pins = None;
        if let Err(error) = self.nic.close() {
            log::warn!(Net, "a NIC does not close, so its memory is not given back: {}", error.message());
            std::mem::forget(std::mem::take(&mut self.regions));
        }
    }
}

fn region_id(place: usize) -> RegionId {
    RegionId(u32::try_from(place).expect("fewer regions than connections"))
}

/// The region of memory that is lent, which is none: NICs that are lent memory need no registration.
const LENT: RegionId = RegionId(u32::MAX);
/// Calls of other connections after which one of them lets the NIC move: the one that did so may be called no more.
const MOST_OTHERS: u32 = 16;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::device::{HostMemory, Sharing};
    use crate::sync::primitive::{AtomicU64, Ordering};
    use crate::transport::net::test_nic::{Manners, TestNic};

    /// Notes when it is closed, how many bytes it could still touch then, and whether it can be closed at all.
    #[derive(Debug)]
    struct Closing {
        memory: Option<NicMemory>,
        sees: Arc<AtomicU64>,
        can_close: bool,
    }

    impl RequestNic for Closing {
        fn listen(&mut self) -> Result<(ListenerId, NicHandle)> {
            Err(Error::internal("the first error"))
        }
        fn connect(&mut self, _: &NicHandle) -> Result<Option<ConnectionId>> {
            Ok(None)
        }
        fn accept(&mut self, _: ListenerId) -> Result<Option<ConnectionId>> {
            Ok(None)
        }
        fn register(&mut self, region: NicMemory) -> Result<()> {
            self.memory = Some(region);
            Ok(())
        }
        fn send(&mut self, _: ConnectionId, _: MessageNumber, _: NicMemory) -> Result<Posted> {
            Ok(Posted::Later)
        }
        fn receive(&mut self, _: ConnectionId, _: MessageNumber, _: NicMemory) -> Result<Posted> {
            Ok(Posted::Later)
        }
        fn flush(&mut self, _: ConnectionId, _: NicMemory) -> Result<Posted> {
            Ok(Posted::Done)
        }
        fn progress(&mut self) -> Result<()> {
            self.sees.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        fn test(&mut self, _: RequestId) -> Result<Option<usize>> {
            Ok(None)
        }
        fn close(&mut self) -> Result<()> {
            let Some(memory) = self.memory else { return Ok(()) };
            let last = memory.start().as_ptr().wrapping_add(memory.bytes() - 1);
            // SAFETY: the endpoint keeps the memory until the NIC was closed.
            let last = unsafe { last.read() };
            self.sees.store(u64::from(last), Ordering::Relaxed);
            if self.can_close { Ok(()) } else { Err(Error::internal("busy")) }
        }
    }

    fn endpoint(can_close: bool) -> (NicEndpoint, Arc<AtomicU64>) {
        let sees = Arc::default();
        let nic = Box::new(Closing { memory: None, sees: Arc::clone(&sees), can_close });
        (NicEndpoint::over(nic, TestNic::new(Manners::with_requests(64)).promises()), sees)
    }

    fn memory() -> HostRegion {
        let memory = HostMemory.allocate_host(4096, Sharing::Threads).unwrap();
        // SAFETY: inside the memory, which nobody else has.
        unsafe { memory.at(4095, 1).write(7) };
        memory
    }

    #[test]
    fn memory_stays_until_its_nic_is_closed_though_its_owner_has_gone() {
        let (mut endpoint, sees) = endpoint(true);
        let owner = memory();
        let keep = Arc::downgrade(owner.keep());
        endpoint.register(owner).unwrap();
        assert!(keep.upgrade().is_some());
        drop(endpoint);
        assert_eq!(sees.load(Ordering::Relaxed), 7, "the memory was there when the NIC was closed");
        assert!(keep.upgrade().is_none());
    }

    #[test]
    fn memory_of_a_nic_that_cannot_be_closed_is_never_given_back() {
        let (mut endpoint, _) = endpoint(false);
        let owner = memory();
        let keep = Arc::downgrade(owner.keep());
        endpoint.register(owner).unwrap();
        drop(endpoint);
        assert!(keep.upgrade().is_some());
    }

    #[test]
    fn memory_is_registered_once_and_nothing_outside_is_posted() {
        let (mut endpoint, _) = endpoint(true);
        let memory = memory();
        let region = endpoint.register(memory.clone()).unwrap();
        assert_eq!(endpoint.register(memory.clone()).unwrap(), region);
        assert_ne!(endpoint.register(memory.part(0, 64)).unwrap(), region);
        let (connection, number) = (ConnectionId(0), MessageNumber::of(0));
        let place = |region, range| MessagePlace { connection, number, region, range };
        assert_eq!(endpoint.send(place(region, 4000..4096)).unwrap(), Posted::Later);
        for wrong in [place(region, 4000..4097), place(RegionId(9), 0..1), place(region, Range { start: 2, end: 1 })] {
            assert!(endpoint.send(wrong.clone()).is_err() && endpoint.receive(wrong).is_err());
        }
    }

    #[test]
    fn the_first_error_of_a_nic_is_the_last_call_of_it() {
        let (mut endpoint, sees) = endpoint(true);
        endpoint.progress().unwrap();
        assert!(endpoint.listen().is_err());
        assert_eq!(endpoint.progress().unwrap_err().message(), "the first error");
        assert_eq!(sees.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn connections_share_what_is_not_theirs_alone() {
        let (mut endpoint, _) = endpoint(true);
        let shares: Vec<usize> = (0..40)
            .map(|_| {
                endpoint.add_connection();
                endpoint.receives_for(0)
            })
            .collect();
        assert_eq!((&shares[..4], shares[31], shares[39]), (&[33, 17, 11, 9][..], 2, 1));
        // One has all, and each other one has one.
        assert!((0..33).all(|under_way| endpoint.begin(RequestWay::In, under_way)));
        assert!(!endpoint.begin(RequestWay::In, 33) && !endpoint.begin(RequestWay::In, 1));
        assert!(endpoint.begin(RequestWay::In, 0) && endpoint.begin(RequestWay::Out, 1));
        assert_eq!((endpoint.receives_for(0), endpoint.receives_for(1)), (1, 1));
        endpoint.end(RequestWay::In, 33);
        assert!(endpoint.begin(RequestWay::In, 1) && !endpoint.begin(RequestWay::In, 1));
        endpoint.end(RequestWay::In, 1);
        assert!(!endpoint.begin(RequestWay::In, 1), "a connection's own is nobody else's");
    }

    #[test]
    fn one_of_many_connections_moves_the_nic_in_each_turn() {
        let (mut endpoint, sees) = endpoint(true);
        for turn in 1..=10 {
            for connection in 0..8 {
                endpoint.move_for(ConnectionId(connection)).unwrap();
            }
            assert_eq!(sees.load(Ordering::Relaxed), turn);
        }
        // The one that did it has nothing more to do, or says nothing and has ended.
        let before = sees.load(Ordering::Relaxed);
        endpoint.leave_moving(ConnectionId(3));
        endpoint.move_for(ConnectionId(3)).unwrap();
        assert_eq!(sees.load(Ordering::Relaxed), before, "another one does it");
        endpoint.leave_moving(ConnectionId(0));
        endpoint.move_for(ConnectionId(3)).unwrap();
        assert_eq!(sees.load(Ordering::Relaxed), before + 1);
        for _ in 0..=MOST_OTHERS {
            endpoint.move_for(ConnectionId(9)).unwrap();
        }
        assert!(sees.load(Ordering::Relaxed) > 10);
    }
}
