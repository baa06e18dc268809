//! Messages by LL and LL128 from one block of a GPU to another, at turns that no test would get to by sending.

use super::gpu::{at, gpu, read, wait, write};
use crate::device::cuda::Cuda;
use crate::device::lines;
use crate::device::records::{
    BlockNumbers, COMBINE, ControlLayout, FIRST_MESSAGE, LaneNumbers, LaneRecord, LaunchPart, NONE, Numbers, OWN,
    OperandRecord, PeerMemory, Records, Reduction, SlotQueue, StepRecord,
};
use crate::device::{Device, DeviceMemory, Queue, Region, Sharing, StatusPage};
use crate::sync::primitive::Arc;
use crate::types::{DataType, Protocol};

/// Bytes of the words at each end of a connection, and of a slot of Simple.
const WORDS: u64 = 128;
const PAYLOAD: u64 = 64;
/// Bytes before the lines of a slot, and of the lines.
#[expect(clippy::cast_possible_truncation, reason = "128")]
const HEADER: usize = lines::HEADER as usize;
#[expect(clippy::cast_possible_truncation, reason = "32 KiB")]
const LINES: usize = lines::LINES as usize;

/// Two ranks on one GPU and the connection from one to the other.
struct Pair {
    gpu: &'static Cuda,
    protocol: Protocol,
    queue: Box<dyn Queue>,
    pages: [Arc<StatusPage>; 2],
    /// The words of the sending end, and behind the receiver's the slots and lines.
    sender: Region,
    receiver: Region,
    buffers: [Region; 2],
}

impl Pair {
    fn new(gpu: &'static Cuda, protocol: Protocol) -> Pair {
        let bytes = WORDS + lines::connection_bytes((2, PAYLOAD), lines::PROTOCOLS);
        let allocate = |bytes: u64| gpu.allocate(usize::try_from(bytes).unwrap(), Sharing::Threads).unwrap();
        let page = || Arc::new(gpu.page_for(&[gpu.home()], &[]).unwrap());
        Pair {
            gpu,
            protocol,
            queue: gpu.queue().unwrap(),
            pages: [page(), page()],
            sender: allocate(WORDS),
            receiver: allocate(bytes),
            buffers: [allocate(1 << 14), allocate(1 << 14)],
        }
    }

    /// Both ends have sent and taken so many messages.
    fn count(&self, messages: u64) {
        let beside = 8 * usize::try_from(lines::slot_kind(self.protocol) - lines::slot_kind(Protocol::Simple)).unwrap();
        let mut word = messages.to_le_bytes();
        for (region, offset) in [(&self.sender, 0), (&self.sender, 64), (&self.receiver, 64)] {
            write(self.gpu, at(region, offset + beside, 8), &mut word);
        }
    }

    /// Sends so many bytes, and returns what comes.
    fn send(&mut self, bytes: usize, seed: u8) -> (Vec<u8>, Vec<u8>) {
        let mut sent: Vec<u8> = (0..bytes).map(|place| seed.wrapping_add(place.to_le_bytes()[0])).collect();
        write(self.gpu, at(&self.buffers[0], 0, bytes), &mut sent);
        write(self.gpu, at(&self.buffers[1], 0, bytes), &mut vec![0xee; bytes]);
        let parts = [0, 1].map(|rank| self.part(rank, bytes as u64));
        // SAFETY: all memory belongs to this pair, and lives until the event is done.
        unsafe { self.queue.launch(parts.into()) }.unwrap();
        wait(&*self.queue.record().unwrap());
        assert!(self.pages.iter().all(|page| page.fault().is_none()));
        (sent, read(self.gpu, at(&self.buffers[1], 0, bytes)))
    }

    fn part(&self, rank: u32, length: u64) -> LaunchPart {
        let sends = rank == 0;
        let address = |region: &Region| region.base().addr().get() as u64;
        let own = OperandRecord { kind: OWN, base: FIRST_MESSAGE, ..OperandRecord::default() };
        let slot = OperandRecord { kind: lines::slot_kind(self.protocol), ..OperandRecord::default() };
        let step = StepRecord { times: 1, sources: 1, targets: 1, raw: NONE, kind: COMBINE, ..StepRecord::default() };
        let records = Records {
            lanes: vec![LaneRecord { steps: 1, flags: NONE, after: NONE, ..LaneRecord::default() }],
            steps: vec![step],
            operands: if sends { vec![own, slot] } else { vec![slot, own] },
            ranks: Vec::new(),
        };
        let blocks = vec![BlockNumbers { length, ..BlockNumbers::default() }];
        let lane = LaneNumbers { rounds: 1, turns: 1, piece: length, depth: 1, scratch: 0, blocks };
        let (sender, receiver) = (address(&self.sender), address(&self.receiver));
        LaunchPart {
            records: Arc::new(records),
            numbers: Arc::new(Numbers { lanes: vec![lane], longest: length }),
            folding: Reduction { data_type: DataType::U8, op: None, world: 2 },
            rank,
            labels: vec![[1, 2, 3]],
            bases: vec![0, 0, 0, address(&self.buffers[rank as usize])],
            layout: ControlLayout { ranks: 2, lanes: 0 },
            peers: [PeerMemory::default(); 2].into(),
            queues: vec![SlotQueue {
                rank: 0,
                sends,
                slots: receiver + WORDS,
                headers: receiver + WORDS,
                header_stride: SlotQueue::stride(PAYLOAD),
                lines: lines::first(receiver + WORDS + lines::slots_bytes((2, PAYLOAD))),
                count: 2,
                payload: PAYLOAD,
                tail: receiver,
                head: sender,
                mine: 64 + if sends { sender } else { receiver },
            }],
            status: Arc::clone(&self.pages[rank as usize]),
            keep: Vec::new(),
            across: None,
        }
    }

    /// The lines of a slot.
    fn lines(&self, slot: usize) -> Vec<u8> {
        let simple = usize::try_from(WORDS + 2 * (64 + PAYLOAD)).unwrap().next_multiple_of(128);
        let before = if self.protocol == Protocol::LowLatency { 0 } else { lines::SLOTS as usize };
        let first = simple + (before + slot) * (HEADER + LINES) + HEADER;
        read(self.gpu, at(&self.receiver, first, LINES))
    }
}

/// Lengths of messages: long and short ones take turns, so that old flags stand behind the short ones.
const LENGTHS: [usize; 5] = [5_003, 8, 121, 1, 2_000];

/// Flags go round: from the greatest to 1. Each slot is used some times before and after.
#[test]
fn messages_come_whole_where_flags_begin_anew() {
    let Some(gpu) = gpu() else { return };
    for protocol in [Protocol::LowLatency, Protocol::LowLatency128] {
        let mut pair = Pair::new(gpu, protocol);
        for turn in [0, (1 << 32) - 3] {
            pair.count(turn * u64::from(lines::SLOTS));
            for number in 0..20_u8 {
                let (sent, taken) = pair.send(LENGTHS[usize::from(number) % 5], number.wrapping_mul(37));
                assert!(sent == taken, "{protocol}, message {number} from turn {turn} on: {sent:?} {taken:?}");
            }
        }
    }
}

/// Flags are 32 bits: one that stands for longer than they take to go round would be taken for a new one. So now and
/// then a message, however short, is followed by as many words as the slot has.
#[test]
fn no_old_flag_of_ll_lasts_until_it_comes_again() {
    let Some(gpu) = gpu() else { return };
    let mut pair = Pair::new(gpu, Protocol::LowLatency);
    let clean = 1_u64 << 30;
    pair.count((clean - 2) * u64::from(lines::SLOTS));
    for turn in [clean - 2, clean - 1, clean] {
        for slot in 0..2 {
            pair.send(8, 1);
            let words = pair.lines(slot);
            let flags: Vec<u64> =
                words.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()) >> 32).collect();
            let behind = if turn < clean - 1 { 0 } else { clean };
            assert!(flags[..2] == [turn + 1; 2] && flags[2..].iter().all(|flag| *flag == behind), "turn {turn}");
        }
        (2..lines::SLOTS).for_each(|_| drop(pair.send(8, 1)));
    }
}
