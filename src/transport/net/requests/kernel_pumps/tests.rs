//! Slots of kernels over the test NIC, which lets nobody see what has come for a device before it was flushed: memory
//! of the host stands for the device's.

use std::ptr::NonNull;

use crate::bootstrap::LocalBootstrap;
use crate::device::records::SlotQueue;
use crate::device::{HostMemory, HostRegion, Sharing};
use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, AtomicU64, Ordering};
use crate::sync::ring::Shape;
use crate::transport::connection::{Channel, Need, Way};
use crate::transport::kernel_slots::{FarEnd, KernelSlots, PayloadsOnDevice};
use crate::transport::net::requests::RequestNet;
use crate::transport::net::test_nic::{Manners, TestNic};
use crate::transport::pump::Wire;
use crate::transport::pumps::Pumps;
use crate::transport::table::{ExpectedWire, Opening};
use crate::types::Rank;

const SHAPE: Shape = Shape { slots: 3, slot_bytes: 4096, spread: 1 };
const MOST_TURNS: usize = 200_000;

/// The wires of a connection from rank 0 to rank 1.
fn opened(worlds: &[LocalBootstrap; 2], manners: [Manners; 2]) -> Result<[Box<dyn Wire>; 2]> {
    let net = |me: usize, rank| RequestNet::new(Rank::new(rank), Arc::new(TestNic::new(manners[me])));
    let (mut sender, mut receiver) = (net(0, 0), net(1, 1));
    let ExpectedWire { ticket, offer, .. } = receiver.listen(Rank::new(0), &worlds[1])?;
    let mut dialling: Box<dyn Opening<Box<dyn Wire>>> = sender.dial(Rank::new(1), &offer, &worlds[0])?;
    let (mut mine, mut theirs) = (None, None);
    for _ in 0..MOST_TURNS {
        if mine.is_none() {
            mine = dialling.progress()?;
        }
        receiver.serve()?;
        theirs = theirs.or_else(|| receiver.accept().pop());
        if let (Some(_), Some((came, _))) = (&mine, &theirs) {
            assert_eq!(*came, ticket);
            break;
        }
    }
    // The endpoints live on with their connections.
    let both = mine.zip(theirs).map(|(mine, theirs)| [mine, theirs.1]);
    both.ok_or_else(|| Error::internal("it does not open"))
}

/// A kernel at one end, and the pump at the other.
struct End {
    queue: SlotQueue,
    _memory: Vec<HostRegion>,
    pumps: Pumps,
    done: u64,
}

impl End {
    fn new(way: Way, wire: Box<dyn Wire>, on_device: bool) -> Result<End> {
        let need = Need { way, peer: Rank::new(u32::from(way == Way::Send)), channel: Channel::PointToPoint };
        let mut far = FarEnd::new(need, wire);
        let allocate = |bytes| HostMemory.allocate_host(bytes, Sharing::Threads);
        let address = |memory: &HostRegion| memory.base().as_ptr().expose_provenance() as u64;
        let (slots, memory) = if on_device {
            let [words, device] = [KernelSlots::words_bytes(SHAPE), KernelSlots::payload_bytes(SHAPE)].map(allocate);
            let (words, device) = (words?, device?);
            let payloads = PayloadsOnDevice::new((None, true), true);
            far.take_device((device.as_region().clone(), SHAPE), &payloads).expect("the test NIC takes it");
            (KernelSlots::with_payloads_on_device(words.clone(), SHAPE), vec![words, device])
        } else {
            let memory = allocate(KernelSlots::memory_bytes(SHAPE))?;
            (KernelSlots::new(memory.clone(), SHAPE), vec![memory])
        };
        let queue = slots.kernels_end((Rank::new(9), need), (address(&memory[0]), memory.get(1).map(address)), 0);
        let mut pumps = Pumps::default();
        far.join(slots, &mut pumps)?;
        Ok(End { queue, _memory: memory, pumps, done: 0 })
    }

    fn place(&self, address: u64) -> NonNull<u8> {
        let address = usize::try_from(address).expect("an address");
        NonNull::new(std::ptr::with_exposed_provenance_mut(address)).expect("memory of the test")
    }

    fn word(&self, address: u64) -> &AtomicU64 {
        // SAFETY: a word of the queue, which this end keeps.
        unsafe { self.place(address).cast().as_ref() }
    }

    fn slot(&self) -> u64 {
        self.done % u64::from(self.queue.count)
    }

    fn header(&self, word: u64) -> &AtomicU64 {
        self.word(self.queue.headers + self.slot() * self.queue.header_stride + 8 * word)
    }

    fn payload(&self) -> NonNull<u8> {
        self.place(self.queue.slots + self.slot() * SlotQueue::stride(self.queue.payload) + 64)
    }

    /// Publishes a message, if a slot is free.
    fn publish(&mut self, content: &[u8]) -> bool {
        if self.done - self.word(self.queue.head).load(Ordering::Acquire) == u64::from(self.queue.count) {
            return false;
        }
        // SAFETY: a free slot has room for it.
        unsafe { self.payload().as_ptr().copy_from_nonoverlapping(content.as_ptr(), content.len()) };
        for (word, value) in [content.len() as u64, self.done, 2, 3, 9].into_iter().enumerate() {
            self.header(word as u64).store(value, Ordering::Relaxed);
        }
        self.done += 1;
        self.word(self.queue.tail).store(self.done, Ordering::Release);
        true
    }

    /// The next message, if it has come.
    fn take(&mut self) -> Option<Vec<u8>> {
        if self.word(self.queue.tail).load(Ordering::Acquire) == self.done {
            return None;
        }
        let bytes = usize::try_from(self.header(0).load(Ordering::Relaxed)).expect("a length");
        assert_eq!(self.header(1).load(Ordering::Relaxed), self.done, "its label");
        // SAFETY: a message that was published.
        let content = unsafe { std::slice::from_raw_parts(self.payload().as_ptr(), bytes) }.to_vec();
        self.done += 1;
        self.word(self.queue.head).store(self.done, Ordering::Release);
        Some(content)
    }
}

fn content(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| u8::try_from((number * 31 + place * 7) % 251).expect("below 256")).collect()
}

/// Sends messages of all sizes from end to end, whose payloads lie on devices or not.
fn exchange(manners: Manners, on_device: [bool; 2]) -> Result<()> {
    let worlds: [LocalBootstrap; 2] = LocalBootstrap::world(2)?.try_into().expect("two ranks");
    let [mine, theirs] = opened(&worlds, [manners; 2])?;
    let mut sender = End::new(Way::Send, mine, on_device[0])?;
    let mut receiver = End::new(Way::Receive, theirs, on_device[1])?;
    let sizes = [0, 1, 5, 4096, 24, 4095, 32, 0, 100, 4096, 7, 2048, 1, 1, 1, 4096, 33];
    let (mut sent, mut came) = (0, 0);
    for _ in 0..MOST_TURNS {
        if sent < sizes.len() && sender.publish(&content(sent, sizes[sent])) {
            sent += 1;
        }
        sender.pumps.pump()?;
        receiver.pumps.pump()?;
        if let Some(message) = receiver.take() {
            assert_eq!(message, content(came, sizes[came]), "message {came}, on devices: {on_device:?}");
            came += 1;
        }
        if came == sizes.len() && sender.pumps.drained() {
            return Ok(());
        }
    }
    panic!("nothing moves: {sent} were sent, and {came} came, on devices: {on_device:?}");
}

const WAYS: [[bool; 2]; 4] = [[true, true], [true, false], [false, true], [false, false]];

#[test]
fn payloads_come_whole_and_in_order_wherever_they_lie() {
    for on_device in WAYS {
        exchange(Manners { takes_devices: true, ..Manners::WORST }, on_device).unwrap();
    }
}

/// Each connection has one request of each way, whatever others have.
#[test]
fn a_nic_of_few_requests_carries_payloads_too() {
    for on_device in WAYS {
        exchange(Manners { takes_devices: true, ..Manners::with_requests(2) }, on_device).unwrap();
    }
}

#[test]
fn a_nic_that_fails_is_an_error_that_names_the_peer() {
    for fails_at in [30, 60, 90] {
        let manners = Manners { takes_devices: true, fails_at, ..Manners::WORST };
        let Err(error) = exchange(manners, [true, true]) else { continue };
        assert!(error.peer().is_some(), "{error}");
    }
}

/// The receiver's NIC sends no credit any more, when a header has come and its payload cannot. Regression: the error
/// was kept for ever, and the rank waited for its deadline.
#[test]
fn a_message_that_has_begun_and_cannot_go_on_is_an_error() {
    let worlds: [LocalBootstrap; 2] = LocalBootstrap::world(2).unwrap().try_into().unwrap();
    let manners = Manners { takes_devices: true, ..Manners::with_requests(2) };
    let mut told = 0;
    for sends_fail_at in 1..30 {
        let Ok([mine, theirs]) = opened(&worlds, [manners, Manners { sends_fail_at, ..manners }]) else { continue };
        let mut sender = End::new(Way::Send, mine, true).unwrap();
        let mut receiver = End::new(Way::Receive, theirs, true).unwrap();
        let mut came = 0;
        for _ in 0..5000 {
            sender.publish(&content(0, 100));
            sender.pumps.pump().unwrap();
            if let Err(error) = receiver.pumps.pump() {
                assert_eq!(error.peer(), Some(0));
                assert!(error.message().contains("the test wants this send to fail"), "{error}");
                told += u32::from(came > 0);
                break;
            }
            came += usize::from(receiver.take().is_some());
        }
    }
    assert!(told > 3, "{told}");
}

#[test]
fn memory_that_the_nic_does_not_take_is_left_to_the_host() {
    let worlds: [LocalBootstrap; 2] = LocalBootstrap::world(2).unwrap().try_into().unwrap();
    let why = |manners: Manners, by_address| {
        let [wire, _other] = opened(&worlds, [manners; 2]).unwrap();
        let need = Need { way: Way::Send, peer: Rank::new(1), channel: Channel::PointToPoint };
        let memory = HostMemory.allocate_host(KernelSlots::payload_bytes(SHAPE), Sharing::Threads).unwrap();
        let payloads = PayloadsOnDevice::new((None, by_address), true);
        FarEnd::new(need, wire).take_device((memory.as_region().clone(), SHAPE), &payloads).unwrap_err()
    };
    let takes = Manners { takes_devices: true, ..Manners::WORST };
    assert_eq!(why(Manners::WORST, true), "this NIC takes no memory of devices");
    assert_eq!(why(takes, false), "the test NIC takes addresses");
}
