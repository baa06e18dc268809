//! The programs that the leader of a shared GPU runs for a rank of another process: they work in what that rank has
//! brought to its stage, and ranks of other GPUs take what they make.

use super::gpu::{at, gpu, read, wait, write};
use crate::device::cuda::Cuda;
use crate::device::records::{
    Across, BlockNumbers, COMBINE, ControlLayout, INPUT, LaneNumbers, LaneRecord, LaunchPart, NONE, Numbers, OUTPUT,
    OWN, OperandRecord, PeerMemory, Records, Reduction, StepRecord,
};
use crate::device::{
    Device, DeviceMemory, DeviceRanks, Event, HostMemory, HostRegion, LaunchFault, LedDevice, Queue, Region, Sharing,
    StatusPage,
};
use crate::sync::Mirror;
use crate::sync::primitive::{Arc, AtomicU32, AtomicU64, Ordering};
use crate::sync::ring::Label;
use crate::types::DataType;

const BYTES: usize = 1_000;
const LABEL: Label = [1, 2, 3];

/// Ranks 0 and 1 of two processes on one GPU, by the process of rank 0, which leads. The program of each copies its
/// input to its output.
struct Led {
    gpu: &'static Cuda,
    pages: HostRegion,
    /// Keeps the pages where the GPU reaches them.
    _reached: Region,
    status: Arc<StatusPage>,
    queue: Box<dyn Queue>,
    /// Input and output of each.
    buffers: Region,
}

impl Led {
    fn new(gpu: &'static Cuda) -> Led {
        let pages = HostMemory.allocate_host(2 * StatusPage::BYTES, Sharing::Threads).unwrap();
        let reached = gpu.take_in(&pages).unwrap();
        let ranks = DeviceRanks { me: DeviceRanks::LEADER, ranks: vec![0, 1], first: vec![0, 1], waits: true };
        let status = gpu.page_across((&[gpu.home()], &[]), (&pages, &reached), &ranks).unwrap();
        let buffers = gpu.allocate(4 * BYTES, Sharing::Threads).unwrap();
        write(gpu, at(&buffers, 0, 4 * BYTES), &mut [[7; BYTES], [0; BYTES]].concat().repeat(2));
        Led { gpu, pages, _reached: reached, status: Arc::new(status), queue: gpu.queue().unwrap(), buffers }
    }

    /// The page of rank 1.
    fn member(&self) -> HostRegion {
        self.pages.part(StatusPage::BYTES, StatusPage::BYTES)
    }

    /// Launches the programs of both, of which that of rank 1 waits until it has come.
    fn launch(&mut self) -> Arc<dyn Event> {
        let absent = vec![self.part(1)];
        let leader = LaunchPart { across: Some(Across { absent, ..Across::default() }), ..self.part(0) };
        // SAFETY: all memory belongs to this value, and lives until the event is done.
        let done = unsafe { self.queue.launch(vec![leader]) }.unwrap();
        assert!(!done.is_done().unwrap(), "a member is missing");
        done
    }

    fn part(&self, rank: u32) -> LaunchPart {
        let own = |base: u32| OperandRecord { kind: OWN, base, buffer: base, index: 0 };
        let step = StepRecord { times: 1, sources: 1, targets: 1, raw: NONE, kind: COMBINE, ..StepRecord::default() };
        let records = Records {
            lanes: vec![LaneRecord { steps: 1, flags: NONE, after: NONE, ..LaneRecord::default() }],
            steps: vec![step],
            operands: vec![own(INPUT), own(OUTPUT)],
            ranks: Vec::new(),
        };
        let length = BYTES as u64;
        let blocks = vec![BlockNumbers { length, ..BlockNumbers::default() }];
        let lane = LaneNumbers { rounds: 1, turns: 1, piece: length, depth: 1, scratch: 0, blocks };
        let place = |number: u32| at(&self.buffers, number as usize * BYTES, BYTES).address.addr() as u64;
        LaunchPart {
            records: Arc::new(records),
            numbers: Arc::new(Numbers { lanes: vec![lane], longest: length }),
            folding: Reduction { data_type: DataType::U8, op: None, world: 2 },
            rank,
            labels: vec![LABEL],
            bases: vec![place(2 * rank), place(2 * rank + 1), 0],
            layout: ControlLayout { ranks: 2, lanes: 0 },
            peers: [PeerMemory::default(); 2].into(),
            queues: Vec::new(),
            status: Arc::clone(&self.status),
            keep: Vec::new(),
            across: None,
        }
    }

    /// Rank 1 comes, to a call of this label.
    fn arrive(&self, label: Label) {
        let member = self.member();
        for (place, word) in label.into_iter().enumerate() {
            let offset = StatusPage::LABEL + place * size_of::<u64>();
            // SAFETY: inside the page, aligned, and only used as an atomic word while the page lives.
            let at = unsafe { member.at(offset, size_of::<AtomicU64>()).cast::<AtomicU64>().as_ref() };
            at.store(word, Ordering::Relaxed);
        }
        self.word(StatusPage::ARRIVED).store(1, Ordering::Release);
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        let at = self.pages.at(StatusPage::BYTES + offset, size_of::<AtomicU32>());
        // SAFETY: inside the pages, aligned, and only used as an atomic word while they live.
        unsafe { at.cast::<AtomicU32>().as_ref() }
    }

    /// Whether the programs of the ranks have run, and whether rank 1 may go on.
    fn outcome(&self) -> ([bool; 2], bool) {
        let has_run = |rank: usize| read(self.gpu, at(&self.buffers, (2 * rank + 1) * BYTES, BYTES)) == [7; BYTES];
        ([0, 1].map(has_run), self.word(StatusPage::DONE).load(Ordering::Acquire) != 0)
    }

    /// What stands on the page of rank 1.
    fn fault_of_member(&self) -> Option<LaunchFault> {
        StatusPage::on(self.member(), Box::new(())).fault()
    }
}

#[test]
fn a_member_that_has_come_takes_part() {
    let Some(gpu) = gpu() else { return };
    let mut led = Led::new(gpu);
    for _ in 0..2 {
        let done = led.launch();
        led.arrive(LABEL);
        wait(&*done);
        assert_eq!((led.outcome(), led.status.fault(), led.fault_of_member()), (([true; 2], true), None, None));
    }
}

/// Regression: the stream of a leader that had been told to stop went on without the members that had not come, and ran
/// their programs on whatever lay in their stages.
#[test]
fn no_program_of_an_absent_member_runs_once_the_leader_must_stop() {
    let Some(gpu) = gpu() else { return };
    let mut led = Led::new(gpu);
    let done = led.launch();
    led.status.raise();
    wait(&*done);
    // The host of rank 1 learns why, and lets its stream go on itself.
    assert_eq!((led.outcome(), led.status.fault()), (([false; 2], false), Some(LaunchFault::Aborted)));
}

/// Regression: so did a leader whose member had called something else.
#[test]
fn no_program_of_a_member_runs_that_has_called_something_else() {
    let Some(gpu) = gpu() else { return };
    let mut led = Led::new(gpu);
    let done = led.launch();
    let theirs = [1, 2, 4];
    led.arrive(theirs);
    wait(&*done);
    let of_leader = Some(LaunchFault::Mismatch { peer: 1, mine: LABEL, theirs });
    let of_member = Some(LaunchFault::Mismatch { peer: 0, mine: theirs, theirs: LABEL });
    assert_eq!((led.status.fault(), led.fault_of_member()), (of_leader, of_member));
    assert_eq!(led.outcome(), ([false; 2], true));
}
