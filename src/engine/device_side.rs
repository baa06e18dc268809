//! What a rank has on its device for calls there.
//!
//! The first call makes the rank's [`DeviceSide`] (`engine::device_entry`): words and scratch in the memory of its
//! device, which the programs of the other ranks reach, whether they are threads of this process or other processes of
//! the host (`device_sharing`). Every call, the first included, becomes a [`LaunchPart`], which the cohort launches.
//! Between processes and between devices plans work in scratch, because nobody else reaches users' buffers, unless the
//! buffers lie in windows (`engine::device_windows`); between hosts they send (`far_ends`).

use std::collections::HashMap;

use crate::device::records::{LaunchPart, PeerMemory, Reduction, SlotQueue};
use crate::device::{self, Event, Home, Region, Sharing, StatusPage};
use crate::engine::choose::SMALL_SCRATCH;
use crate::engine::device_chooser::DeviceChooser;
use crate::engine::device_windows::DeviceWindows;
use crate::engine::given::Given;
use crate::engine::launches::Launched;
use crate::engine::monitor::Monitor;
use crate::error::{Error, Result};
use crate::exec::lower::Lowered;
use crate::exec::{Call, Cohort, DeviceStream, Last, Order};
use crate::reach::device_sharing::{Brought, Meeting};
use crate::reach::far_ends::FarEnds;
use crate::reach::proxy::Attention;
use crate::reach::side_layout::Addresses;
use crate::reach::staging::StagingLayout;
use crate::session::Session;
use crate::sync::Waiting;
use crate::sync::primitive::Arc;
use crate::sync::ring::Label;
use crate::transport::{ConnectionMemory, Fabric, Need, Sizes};
use crate::types::{Collective, Elements, Protocol, Rank, World};

/// What one rank has on its device for one communicator.
#[derive(Debug)]
pub(super) struct DeviceSide {
    pub(super) home: Home,
    /// Watches the launches on streams; made with the first of them. It is the first field to be dropped, before all
    /// that the launches use.
    monitor: Option<Monitor>,
    /// Connections with ranks that are reached over the network. Dropped next: it ends when all that launches have
    /// published is on its way.
    pub(super) far: FarEnds,
    /// The stream for calls that return when they are done (`Order::Caller`).
    own_stream: DeviceStream,
    pub(super) meeting: Meeting,
    pub(super) chooser: DeviceChooser,
    pub(super) cohort: Arc<Cohort>,
    pub(super) peers: Arc<[PeerMemory]>,
    addresses: Addresses,
    staging: StagingLayout,
    /// Keeps the memory behind `peers` alive: this rank's, that of other processes, and the host's.
    kept: Vec<Region>,
    pub(super) status: Arc<StatusPage>,
    /// The ends of connections that are open, and the memory behind each.
    queues: HashMap<Need, (SlotQueue, ConnectionMemory)>,
    /// The ends that [`DeviceSide::staged_end`] has found.
    staged_ends: HashMap<Need, SlotQueue>,
    /// What all ranks have registered alike.
    pub(super) windows: DeviceWindows,
    /// The last launch of messages. Launches of messages use the same connections, so each follows the one before.
    pub(super) messages: Option<Last>,
    /// Scratch that no peer reads, for plans over connections alone: peers may still read what the plan before has put
    /// into the scratch that they see, and such a plan waits for none of them before it writes.
    pub(super) own_scratch: Region,
    /// What this rank has allocated on its device, and of the host's memory for it, since it is here.
    brought: DeviceBytes,
    /// The last program that the chooser's cache does not hold: the next one is often the same.
    last_lowered: Option<(LoweredFrom, Lowered)>,
}

/// Bytes of memory of a rank that works on a device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeviceBytes {
    /// Of the library, on the device, but for queues.
    pub(super) device: usize,
    /// Of the host, for the device.
    pub(super) pinned: usize,
    /// Of windows, which are the program's memory.
    pub(super) windows: usize,
}

/// All that the program of a scan depends on, or of a rank that is alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoweredFrom {
    pub(super) collective: Collective,
    pub(super) count: Elements,
    pub(super) room: Elements,
    pub(super) protocol: Protocol,
}

/// Bytes of a rank's scratch that no peer reads: what plans over connections, and the pieces of a scan, take.
pub(super) fn own_scratch_bytes(sizes: Sizes) -> usize {
    sizes.scratch_bytes.min(sizes.shape.slot_bytes as usize).max(SMALL_SCRATCH)
}

impl DeviceSide {
    /// This rank's side. All ranks of the process must have allocated their memory.
    pub(super) fn new(
        session: &Session,
        (meeting, chooser, staging): (Meeting, DeviceChooser, StagingLayout),
        brought: Brought,
        (home, status): (Home, StatusPage),
    ) -> Result<DeviceSide> {
        let status = Arc::new(status);
        session.abort.mirror(&status);
        let (addresses, peers) = meeting.addresses(&brought)?;
        let me = session.world.rank;
        let bytes = |regions: &HashMap<Rank, Region>| regions.get(&me).map_or(0, Region::bytes);
        let (device, pinned) = (bytes(&brought.sides), bytes(&brought.stages));
        Ok(DeviceSide {
            brought: DeviceBytes { device, pinned, windows: 0 },
            home,
            monitor: None,
            far: FarEnds::default(),
            own_stream: DeviceStream::of(home, device::of(home)?.queue()?),
            cohort: meeting.cohort(home),
            peers,
            addresses,
            staging,
            meeting,
            chooser,
            kept: brought.sides.into_values().chain(brought.stages.into_values()).chain(brought.pages).collect(),
            status,
            queues: HashMap::new(),
            staged_ends: HashMap::new(),
            windows: DeviceWindows::default(),
            messages: None,
            last_lowered: None,
            own_scratch: device::of(home)?.allocate(own_scratch_bytes(session.settings.sizes), Sharing::Threads)?,
        })
    }

    /// How much memory this rank has for its device.
    pub(super) fn memory_bytes(&self) -> DeviceBytes {
        let DeviceBytes { device, pinned, .. } = self.brought;
        DeviceBytes {
            device: device + self.own_scratch.bytes() + self.far.device_bytes(),
            pinned: pinned + self.far.pinned_bytes(),
            windows: self.windows.open.iter().map(|window| window.mine.bytes()).sum(),
        }
    }

    /// What the label of a call says of windows; 0 where it does not work there.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] where the memory of a window is no longer there.
    pub(super) fn window_label(&self, call: &Call<'_>, world: World) -> Result<u64> {
        let Some(placed) = self.windows.find(call, world) else { return Ok(0) };
        self.windows.check(&placed)?;
        Ok(placed.check_sum())
    }

    /// The program that `lower` makes from `from`, made anew where the last one was made from something else.
    pub(super) fn lowered_from(&mut self, from: LoweredFrom, lower: impl FnOnce() -> Lowered) -> Lowered {
        match &self.last_lowered {
            Some((last, lowered)) if *last == from => lowered.clone(),
            _ => self.last_lowered.insert((from, lower())).1.clone(),
        }
    }

    /// This rank's end of a connection whose words are in the host's memory; `None` where all is in the memory of the
    /// two devices.
    fn staged_end(&mut self, me: Rank, end: Need) -> Result<Option<SlotQueue>> {
        if !self.meeting.staged().parts(me, end.peer) {
            return Ok(None);
        }
        if let Some(known) = self.staged_ends.get(&end) {
            return Ok(Some(*known));
        }
        let made = self.staging.end((me, end), &self.addresses)?;
        self.staged_ends.insert(end, made);
        Ok(Some(made))
    }

    /// This rank's end of a connection over the network, which the fabric has opened.
    fn far_end(&mut self, session: &Arc<Session>, end: Need, fabric: &mut Fabric) -> Result<SlotQueue> {
        let (me, shape) = (session.world.rank, session.settings.sizes.shape);
        if !self.far.has(&end) {
            let opened = fabric.take_far_end(&end);
            let opened = opened.ok_or_else(|| Error::internal(format!("no connection for {end:?}")))?;
            let count = self.meeting.layout().own_count(end, self.addresses.side(me));
            self.far.open((session, &self.status), (me, end, self.home), (opened, shape), count)?;
        }
        self.far.attended(&end)
    }

    /// This rank's end of a connection, which has been opened with other processes and hosts.
    pub(super) fn end(&mut self, given: &mut Given<'_>, end: Need) -> Result<SlotQueue> {
        let (me, shape) = (given.session.world.rank, given.session.settings.sizes.shape);
        let fabric = &mut given.mover.fabric;
        if self.meeting.is_wired(end.peer) {
            return self.far_end(given.session, end, fabric);
        }
        if let Some(staged) = self.staged_end(me, end)? {
            return Ok(staged);
        }
        if let Some((opened, _)) = self.queues.get(&end) {
            return Ok(*opened);
        }
        let memory = match fabric.queue(&end) {
            Some(memory) => memory,
            None => self.meeting.queue(self.home, end, shape)?,
        };
        let opened = self.meeting.layout().end((me, end), &memory, &self.addresses, shape);
        self.queues.insert(end, (opened, memory));
        Ok(opened)
    }

    /// The ends that have no queue yet and for which another process, or another host, does something too.
    pub(super) fn missing_elsewhere(&self, me: Rank, ends: &[Need]) -> Vec<Need> {
        let staged = self.meeting.staged();
        let is_missing = |end: &&Need| match self.meeting.is_wired(end.peer) {
            true => !self.far.has(end),
            false if self.meeting.is_far(end.peer) => !self.queues.contains_key(end),
            false => !self.queues.contains_key(end) && !self.meeting.is_here(end.peer) && !staged.parts(me, end.peer),
        };
        ends.iter().filter(is_missing).copied().collect()
    }

    /// Where the stage of a rank on this rank's device lies, as this process addresses it.
    pub(super) fn stage_of(&self, rank: Rank) -> u64 {
        self.addresses.side(rank) + self.staging.stage(rank)
    }

    /// A rank's part of a launch, without buffers and connections.
    pub(super) fn part(&self, me: Rank, lowered: &Lowered, (folding, labels): (Reduction, Vec<Label>)) -> LaunchPart {
        LaunchPart {
            records: Arc::clone(&lowered.steps.records),
            numbers: Arc::clone(&lowered.numbers),
            folding,
            rank: me.get(),
            labels,
            bases: Vec::new(),
            layout: self.meeting.layout().control(),
            peers: Arc::clone(&self.peers),
            queues: Vec::new(),
            status: Arc::clone(&self.status),
            keep: self.kept.clone(),
            across: None,
        }
    }

    /// Waits until all launches on streams have ended, each within the time that it has, and until what they have sent
    /// to other hosts is on its way. What goes wrong ends the communicator. Nothing is launched after this.
    pub(super) fn close(&mut self) {
        drop(self.monitor.take());
        self.far.close();
    }

    /// Makes a part that is captured keep the memory of connections, because its graph may outlive the communicator.
    pub(super) fn keep_by_graph(&self, part: &mut LaunchPart, captured: bool) {
        if captured {
            let near = self.queues.values().flat_map(|(_, memory)| memory.regions());
            part.keep.extend(near.chain(self.far.kept_by_graph()));
        }
    }

    /// Whether a rank works on this rank's device.
    pub(super) fn shares_device(&self, rank: Rank) -> bool {
        self.cohort.has(rank)
    }

    /// Puts one launch into the stream, together with those of the ranks on the same device. Returns its end.
    pub(super) fn launch_one(
        &self,
        me: Rank,
        (mut part, stream, captured): (LaunchPart, &DeviceStream, bool),
        turn: &mut dyn FnMut(&[Rank]) -> Result<()>,
    ) -> Result<Arc<dyn Event>> {
        self.keep_by_graph(&mut part, captured);
        self.cohort.launch(me, (part, stream), turn)
    }

    /// The stream of a call.
    pub(super) fn stream<'s>(&'s self, order: Order<'s>) -> &'s DeviceStream {
        match order {
            Order::Caller => &self.own_stream,
            Order::Stream(stream) => stream,
        }
    }

    /// Hands a launch for which no call waits to the monitor's thread.
    pub(super) fn watch_over(
        &mut self,
        session: &Arc<Session>,
        launch: (Launched, Arc<dyn Event>),
        attention: Option<Attention>,
        turn: &mut dyn FnMut(&dyn Waiting) -> Result<()>,
    ) -> Result<()> {
        let monitor = match &mut self.monitor {
            Some(monitor) => monitor,
            none => {
                let gpu = device::of(self.home)?.identity();
                none.insert(Monitor::start(Arc::clone(session), Arc::clone(&self.status), gpu)?)
            }
        };
        monitor.add(launch, attention, turn)
    }
}
