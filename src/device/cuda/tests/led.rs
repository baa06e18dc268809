//! The programs that the leader of a shared GPU runs for a rank of another process: they work in what that rank has
//! brought to its stage, and ranks of other GPUs take what they make. And that rank, which brings its input there.

use super::gpu::{at, gpu, read, until, wait, write};
use crate::device::cuda::Cuda;
use crate::device::records::{
    Across, BlockNumbers, COMBINE, ControlLayout, INPUT, LaneNumbers, LaneRecord, LaunchPart, NONE, Numbers, OUTPUT,
    OWN, OperandRecord, PeerMemory, Records, Reduction, StageCopy, StepRecord,
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
    /// The pages, where the GPU reaches them.
    reached: Region,
    status: Arc<StatusPage>,
    queue: Box<dyn Queue>,
    /// Input and output of each.
    buffers: Region,
}

impl Led {
    fn new(gpu: &'static Cuda) -> Led {
        let pages = HostMemory.allocate_host(2 * StatusPage::BYTES, Sharing::Threads).unwrap();
        let reached = gpu.take_in(&pages).unwrap();
        let status = Led::status(gpu, (&pages, &reached), DeviceRanks::LEADER);
        let buffers = gpu.allocate(4 * BYTES, Sharing::Threads).unwrap();
        write(gpu, at(&buffers, 0, 4 * BYTES), &mut [[7; BYTES], [0; BYTES]].concat().repeat(2));
        Led { gpu, pages, reached, status, queue: gpu.queue().unwrap(), buffers }
    }

    /// The page of a rank.
    fn status(gpu: &'static Cuda, pages: (&HostRegion, &Region), rank: usize) -> Arc<StatusPage> {
        let ranks = DeviceRanks { me: rank, ranks: vec![0, 1], first: vec![0, 1], waits: true };
        Arc::new(gpu.page_across((&[gpu.home()], &[]), pages, &ranks).unwrap())
    }

    /// The page of rank 1.
    fn member(&self) -> HostRegion {
        self.pages.part(StatusPage::BYTES, StatusPage::BYTES)
    }

    /// Launches the programs of both, of which that of rank 1 waits until it has come.
    fn launch(&mut self) -> Arc<dyn Event> {
        let done = self.launch_call(LABEL);
        assert!(!done.is_done().unwrap(), "a member is missing");
        done
    }

    /// Launches the programs of both for the call of this label.
    fn launch_call(&mut self, label: Label) -> Arc<dyn Event> {
        let part = |rank: u32| LaunchPart { labels: vec![label], ..self.part(rank) };
        let absent = vec![part(1)];
        let leader = LaunchPart { across: Some(Across { absent, ..Across::default() }), ..part(0) };
        // SAFETY: all memory belongs to this value, and lives until the event is done.
        unsafe { self.queue.launch(vec![leader]) }.unwrap()
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

/// Rank 1 as its own process launches, with the stage that rank 0 knows.
struct Member {
    status: Arc<StatusPage>,
    queue: Box<dyn Queue>,
    /// Input and output of each call.
    users: Region,
    calls: usize,
}

/// Where the buffers of a call lie, behind those of the call before: two calls have other alignments.
const APART: usize = 2 * BYTES + 5;

impl Member {
    /// One whose calls have inputs of ones, of twos, and so on.
    fn of(led: &Led, calls: u8) -> Member {
        let users = led.gpu.allocate(usize::from(calls) * APART, Sharing::Threads).unwrap();
        let of_call = |call: u8| [vec![call; BYTES], vec![0; APART - BYTES]].concat();
        let mut bytes: Vec<u8> = (1..=calls).flat_map(of_call).collect();
        write(led.gpu, at(&users, 0, users.bytes()), &mut bytes);
        let status = Led::status(led.gpu, (&led.pages, &led.reached), 1);
        Member { status, queue: led.gpu.queue().unwrap(), users, calls: 0 }
    }

    /// The label of the next call.
    fn label(&self) -> Label {
        [LABEL[0], LABEL[1], LABEL[2] + self.calls as u64]
    }

    /// Launches the next call.
    fn launch(&mut self, led: &Led) -> Arc<dyn Event> {
        let address = |region: &Region, offset: usize| at(region, offset, BYTES).address.addr() as u64;
        let [input, output] = [0, BYTES].map(|side| address(&self.users, self.calls * APART + side));
        let [staged_input, staged_output] = [2, 3].map(|place| address(&led.buffers, place * BYTES));
        let copy = |from: u64, to: u64| vec![StageCopy { from, to, bytes: BYTES as u64 }];
        let (before, after) = (copy(input, staged_input), copy(staged_output, output));
        let part = LaunchPart {
            labels: vec![self.label()],
            status: Arc::clone(&self.status),
            across: Some(Across { before, after, ..Across::default() }),
            ..led.part(1)
        };
        self.calls += 1;
        // SAFETY: all memory belongs to this value and to `led`, and lives until the event is done.
        unsafe { self.queue.launch(vec![part]) }.unwrap()
    }

    /// The output of a call.
    fn output(&self, led: &Led, call: usize) -> Vec<u8> {
        read(led.gpu, at(&self.users, call * APART + BYTES, BYTES))
    }
}

/// What lies in the stage of rank 1 as its input.
fn staged(led: &Led) -> Vec<u8> {
    read(led.gpu, at(&led.buffers, 2 * BYTES, BYTES))
}

#[test]
fn a_member_with_several_calls_in_its_stream_takes_part_in_each() {
    let Some(gpu) = gpu() else { return };
    let mut led = Led::new(gpu);
    let mut member = Member::of(&led, 3);
    let first = member.label();
    let ends: Vec<Arc<dyn Event>> = (0..3).map(|_| member.launch(&led)).collect();
    for (call, (value, end)) in (1_u8..).zip(&ends).enumerate() {
        wait(&*led.launch_call([first[0], first[1], first[2] + call as u64]));
        wait(&**end);
        assert_eq!((led.status.fault(), member.status.fault()), (None, None));
        assert!(member.output(&led, call) == [value; BYTES], "call {call}");
    }
}

/// Regression: a member that was told to stop had another call in its stream. Its input took the place of the first
/// call's, of which the leader made its own result, and its label was taken for that of another call.
#[test]
fn a_member_that_must_stop_brings_nothing_more_to_its_stage() {
    let Some(gpu) = gpu() else { return };
    let mut led = Led::new(gpu);
    let mut member = Member::of(&led, 3);
    let label = member.label();
    let ends: Vec<Arc<dyn Event>> = (0..3).map(|_| member.launch(&led)).collect();
    until(|| led.word(StatusPage::ARRIVED).load(Ordering::Acquire) != 0);
    until(|| {
        // Again and again, as its host does, because each call in the stream waits.
        member.status.raise();
        ends.iter().all(|end| end.is_done().unwrap())
    });
    assert!(staged(&led) == [1; BYTES], "what the leader works on");
    assert_eq!(member.status.fault(), Some(LaunchFault::Aborted));
    wait(&*led.launch_call(label));
    // The host of rank 0 learns why, and no program has run.
    let untouched = |place: usize| read(gpu, at(&led.buffers, place * BYTES, BYTES)) == [0; BYTES];
    assert_eq!(([1, 3].map(untouched), led.status.fault()), ([true; 2], Some(LaunchFault::Aborted)));
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
