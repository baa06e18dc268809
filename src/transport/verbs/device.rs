//! An open device with what one communicator has on it: memory, queue pairs, and the queue of their completions.
//!
//! One thread at a time has it. Objects are opened in order and closed in order, never by a forked child, which has
//! copies of them.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use socket2::SockRef;

use crate::error::{Error, Kind, Result};
use crate::sys::fork::Birthplace;
use crate::sys::{open, pinning, rdma_ports};
use crate::transport::net::request_nic::{NicMemory, RegionId};
use crate::transport::verbs::abi::{
    IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN,
    IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX,
    IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPF_GRH_REQUIRED, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC, IBV_SEND_SIGNALED,
    IBV_WR_SEND_WITH_IMM, IbvAhAttr, IbvCompChannel, IbvContext, IbvContextOps, IbvCq, IbvGlobalRoute, IbvMr, IbvPd,
    IbvQp, IbvQpAttr, IbvQpCap, IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvSge, IbvWc,
};
use crate::transport::verbs::gids::{self, PortGid};
use crate::transport::verbs::library::{VerbsLibrary, VerbsRefusal, descriptors, descriptors_of};
use crate::transport::verbs::ports::rate_of_link;
use crate::transport::verbs::set_up::VerbsEnd;
use crate::transport::verbs::settings::VerbsSettings;
use crate::transport::verbs::verdicts::{EAGAIN, ENOMEM, PostVerdict, VerbsEvent};

/// What a port is, and what its device can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PortFacts {
    pub(super) number: u8,
    pub(super) is_ethernet: bool,
    /// Whether packets need a global route, also within a subnet of InfiniBand.
    pub(super) needs_route: bool,
    pub(super) gid: PortGid,
    /// The address in a subnet of InfiniBand; 0 over Ethernet.
    pub(super) lid: u16,
    /// The largest packet, as libibverbs numbers sizes: 1 is 256 bytes, 5 is 4096.
    pub(super) mtu: u8,
    pub(super) most_message_bytes: usize,
    /// Completions of one queue.
    pub(super) most_completions: u32,
    pub(super) rate_mbit: Option<u32>,
}

/// A device's context, which closes when it is dropped.
#[derive(Debug)]
struct OpenContext {
    library: VerbsLibrary,
    context: NonNull<IbvContext>,
    birthplace: Birthplace,
}

impl OpenContext {
    fn open(library: VerbsLibrary, device: &str) -> Result<OpenContext, String> {
        let no_room = |error: std::io::Error| format!("no descriptor is left: {error}");
        let context = open::above_streams_by(|| library.open(device)).map_err(no_room)?.map_err(words_of)?;
        let context = context.ok_or_else(|| {
            "libibverbs does not know it: the driver of its kind is missing (Debian: ibverbs-providers)".to_owned()
        })?;
        // SAFETY: it was just opened.
        open::note_foreign(&unsafe { descriptors_of(context) });
        Ok(OpenContext { library, context, birthplace: Birthplace::here() })
    }

    fn facts(&self, port: u8, settings: &VerbsSettings) -> Result<PortFacts, String> {
        // SAFETY: an open context, here and below.
        let device = unsafe { self.library.device_attributes(self.context) }.map_err(words_of)?;
        // SAFETY: as above.
        let attributes = unsafe { self.library.port_attributes(self.context, port) }.map_err(words_of)?;
        if attributes.state != IBV_PORT_ACTIVE {
            return Err("the port has just gone down".to_owned());
        }
        let count = u32::try_from(attributes.gid_tbl_len).unwrap_or(0).min(MOST_GIDS);
        // SAFETY: as above.
        let gids = unsafe { self.library.gids(self.context, port, count) };
        let is_ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
        let gid = if is_ethernet { gids::choose(&gids, settings)? } else { *gids.first().ok_or("it has no GID")? };
        Ok(PortFacts {
            number: port,
            is_ethernet,
            needs_route: is_ethernet || attributes.flags & IBV_QPF_GRH_REQUIRED != 0,
            gid,
            lid: if is_ethernet { 0 } else { attributes.lid },
            mtu: u8::try_from(attributes.active_mtu)
                .ok()
                .filter(|mtu| MTUS.contains(mtu))
                .ok_or("its MTU is unknown")?,
            most_message_bytes: usize::try_from(attributes.max_msg_sz).unwrap_or(0),
            most_completions: u32::try_from(device.max_cqe).unwrap_or(0),
            // 128 stands for NDR, and for all that is faster: the field is a byte.
            rate_mbit: Some(attributes.active_speed)
                .filter(|speed| *speed != 128)
                .and_then(|speed| rate_of_link(attributes.active_width.into(), speed.into())),
        })
    }
}

impl Drop for OpenContext {
    fn drop(&mut self) {
        if self.birthplace.is_here() {
            // SAFETY: an open context.
            open::forget_foreign(&unsafe { descriptors_of(self.context) });
            // SAFETY: nothing that was opened on it is open any more.
            let _lost = unsafe { self.library.close_device_of(self.context) };
        }
    }
}

/// What the port of a device is, and which GID its connections would use.
///
/// # Errors
/// A sentence.
pub(super) fn facts_of(
    library: VerbsLibrary,
    (device, port): (&str, u8),
    settings: &VerbsSettings,
) -> Result<PortFacts, String> {
    OpenContext::open(library, device)?.facts(port, settings)
}

/// What a communicator has open on a device.
#[derive(Debug)]
pub(super) struct VerbsDevice {
    /// "mlx5_0:1", for errors.
    name: String,
    pub(super) facts: PortFacts,
    settings: VerbsSettings,
    /// The functions for what is posted and polled.
    ops: IbvContextOps,
    /// `None` once it is closed.
    open: Option<OpenVerbs>,
}

// SAFETY: objects of libibverbs may be used by any thread; the pointers lead to what is kept here.
unsafe impl Send for VerbsDevice {}

/// The objects.
#[derive(Debug)]
struct OpenVerbs {
    pairs: Vec<Option<NonNull<IbvQp>>>,
    regions: HashMap<RegionId, NonNull<IbvMr>>,
    queue: NonNull<IbvCq>,
    channel: NonNull<IbvCompChannel>,
    domain: NonNull<IbvPd>,
    arrivals: RawFd,
    context: OpenContext,
}

/// Whether a queue pair knows its peer.
#[derive(Debug)]
pub(super) enum PairState {
    Joined,
    /// The peer's address has not answered. The pair can be told again.
    Unanswered(Error),
}

/// What has become of a request that was posted.
#[derive(Debug)]
pub(super) enum PairPosted {
    /// It is under way.
    Taken,
    /// The pair has no room.
    Later,
    /// It lies in its queue, and the device was not told: it may never end by itself.
    Untold(Error),
}

/// A queue pair of a device, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PairId(usize);

impl VerbsDevice {
    /// Opens a port, with room for so many completions.
    ///
    /// # Errors
    /// [`Kind::System`] with the call that was refused, and what to do about it where that is known.
    pub(super) fn open(
        library: VerbsLibrary,
        (device, port): (&str, u8),
        settings: &VerbsSettings,
        completions: u32,
    ) -> Result<VerbsDevice> {
        let name = format!("{device}:{port}");
        let failed = |why: String| Error::new(Kind::System, format!("verbs ({name}): {why}"));
        let context = OpenContext::open(library, device).map_err(failed)?;
        let facts = context.facts(port, settings).map_err(failed)?;
        // SAFETY: an open context begins with its device and this table.
        let ops = unsafe { context.context.as_ref() }.ops;
        let refused = |refusal| described(&name, refusal);
        // SAFETY: an open context.
        let domain = unsafe { library.open_domain(context.context) }.map_err(refused)?;
        let close_domain = || {
            // SAFETY: nothing was made in it.
            let _lost = unsafe { library.close_domain(domain) };
        };
        // SAFETY: an open context.
        let channel = open::above_streams_by(|| unsafe { library.open_channel(context.context) })
            .map_err(|error| Error::system("open of /dev/null", error))
            .and_then(|made| made.map_err(refused))
            .inspect_err(|_| close_domain())?;
        let entries = c_int::try_from(completions).unwrap_or(c_int::MAX);
        // SAFETY: both are open.
        let queue = unsafe { library.open_queue(context.context, channel, entries) }.map_err(|refusal| {
            // SAFETY: nothing was made on it.
            let _lost = unsafe { library.close_channel(channel) };
            close_domain();
            described(&name, refusal)
        })?;
        // SAFETY: both are open.
        let (arrivals, events) = unsafe { descriptors(context.context, channel) };
        open::note_foreign(&[arrivals]);
        let (pairs, regions) = (Vec::new(), HashMap::new());
        let opened = OpenVerbs { pairs, regions, queue, channel, domain, arrivals, context };
        let device = VerbsDevice { name, facts, settings: settings.clone(), ops, open: Some(opened) };
        for descriptor in [arrivals, events] {
            // SAFETY: descriptors of objects that `device` keeps open.
            let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
            let set = SockRef::from(&descriptor).set_nonblocking(true);
            set.map_err(|error| Error::system("fcntl of a descriptor of libibverbs", error))?;
        }
        Ok(device)
    }

    /// "mlx5_0:1".
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Registers memory, of which parts will be sent and received until the device is closed.
    ///
    /// # Errors
    /// The device's, with the limit of locked memory where that may be the reason.
    pub(super) fn register(&mut self, region: NicMemory) -> Result<()> {
        let open = self.objects()?;
        let (library, memory) = (open.context.library, (region.start(), region.bytes()));
        // SAFETY: an open domain; the contract of `NicMemory`: it stays until the NIC is closed.
        let made = unsafe { library.register(open.domain, memory) };
        let made = made.map_err(|refusal| described(&self.name, refusal))?;
        self.objects_mut()?.regions.insert(region.region(), made);
        Ok(())
    }

    /// Makes a queue pair that can be told its peer.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn open_pair(&mut self) -> Result<PairId> {
        let open = self.objects()?;
        let (library, domain) = (open.context.library, open.domain);
        let attributes = IbvQpInitAttr {
            qp_context: null_mut(),
            send_cq: open.queue.as_ptr(),
            recv_cq: open.queue.as_ptr(),
            srq: null_mut(),
            cap: IbvQpCap { max_send_wr: PAIR_REQUESTS, max_recv_wr: PAIR_REQUESTS, ..ONE_PART },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: an open domain and queue.
        let pair = unsafe { library.open_pair(domain, attributes) };
        let pair = pair.map_err(|refusal| described(&self.name, refusal))?;
        let open = self.objects_mut()?;
        let id = PairId(open.pairs.len());
        open.pairs.push(Some(pair));
        let attributes = IbvQpAttr {
            qp_state: IBV_QPS_INIT,
            pkey_index: self.settings.partition,
            port_num: self.facts.number,
            // None for peers: they write to receives that are posted, and to nothing else.
            qp_access_flags: 0,
            ..IbvQpAttr::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(id, "ibv_modify_qp (INIT)", (attributes, mask))?;
        Ok(id)
    }

    /// The number by which a peer reaches a queue pair.
    ///
    /// # Errors
    /// Where it is closed.
    pub(super) fn pair_number(&self, id: PairId) -> Result<u32> {
        let pair = self.pair(id)?;
        // SAFETY: an open pair, whose number does not change.
        Ok(unsafe { pair.as_ref() }.qp_num)
    }

    /// Tells a queue pair its peer: from then on both may send. `mine` and `theirs` are the ends; `pair` is the
    /// peer's. Over Ethernet the kernel looks for the peer's address meanwhile, for a second at most.
    ///
    /// # Errors
    /// [`Kind::System`] where the peer's address is not reachable from here.
    pub(super) fn join_pair(
        &mut self,
        id: PairId,
        (mine, theirs): (&VerbsEnd, &VerbsEnd),
        pair: u32,
    ) -> Result<PairState> {
        let VerbsSettings { timeout, retries, .. } = self.settings;
        let attributes = IbvQpAttr {
            qp_state: IBV_QPS_RTR,
            ah_attr: way_to(theirs, &self.facts, &self.settings),
            path_mtu: mine.mtu.min(theirs.mtu).into(),
            dest_qp_num: pair,
            rq_psn: theirs.packet,
            max_dest_rd_atomic: 1,
            min_rnr_timer: LATER_TIMER,
            ..IbvQpAttr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        if let Err(refusal) = self.changed(id, "ibv_modify_qp (RTR)", (attributes, mask))? {
            let (own, peer) = (self.facts.gid.shown(), theirs.shown());
            let advice = format!("the peer's port, {peer}, may be out of reach of {own} of {}", self.name);
            let error = described(&self.name, refusal).advising(&advice);
            return if refusal.code == ETIMEDOUT { Ok(PairState::Unanswered(error)) } else { Err(error) };
        }
        let attributes = IbvQpAttr {
            qp_state: IBV_QPS_RTS,
            timeout,
            retry_cnt: retries,
            // For ever: a peer that has not posted a receive yet lives all the same.
            rnr_retry: 7,
            sq_psn: mine.packet,
            max_rd_atomic: 1,
            ..IbvQpAttr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(id, "ibv_modify_qp (RTS)", (attributes, mask)).map(|()| PairState::Joined)
    }

    /// Ends what a queue pair has under way: all its requests complete, as flushed.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn fail_pair(&mut self, id: PairId) -> Result<()> {
        let attributes = IbvQpAttr { qp_state: IBV_QPS_ERR, ..IbvQpAttr::default() };
        self.modify(id, "ibv_modify_qp (ERR)", (attributes, IBV_QP_STATE))
    }

    /// Whether this is the address of a queue pair.
    pub(super) fn is_at(&self, id: PairId, address: u64) -> bool {
        self.pair(id).is_ok_and(|pair| pair.as_ptr().addr() as u64 == address)
    }

    fn modify(&self, id: PairId, call: &'static str, change: (IbvQpAttr, c_int)) -> Result<()> {
        self.changed(id, call, change)?.map_err(|refusal| described(&self.name, refusal))
    }

    fn changed(&self, id: PairId, call: &'static str, change: (IbvQpAttr, c_int)) -> Result<Result<(), VerbsRefusal>> {
        let (pair, library) = (self.pair(id)?, self.objects()?.context.library);
        // SAFETY: an open pair.
        Ok(unsafe { library.modify_pair(call, pair, change) })
    }

    /// Closes a queue pair that has no requests.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn close_pair(&mut self, id: PairId) -> Result<()> {
        let open = self.objects_mut()?;
        let library = open.context.library;
        let Some(place) = open.pairs.get_mut(id.0) else { return Ok(()) };
        let Some(pair) = *place else { return Ok(()) };
        // SAFETY: an open pair, which leaves the list where it closes.
        let closed = unsafe { library.close_pair(pair) };
        if closed.is_ok() {
            *place = None;
        }
        closed.map_err(|refusal| described(&self.name, refusal))
    }

    /// Posts a send, with a word that the receiver's completion shows.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn send(&mut self, id: PairId, (request, word): (u64, u32), from: NicMemory) -> Result<PairPosted> {
        let (pair, mut part) = (self.pair(id)?, self.part(from)?);
        let mut message = IbvSendWr {
            wr_id: request,
            next: null_mut(),
            sg_list: &raw mut part,
            num_sge: 1,
            opcode: IBV_WR_SEND_WITH_IMM,
            send_flags: IBV_SEND_SIGNALED,
            imm_data: word.to_be(),
            others: [0; 11],
        };
        let (call, mut bad) = (self.ops.post_send.ok_or_else(|| self.lacks("post_send"))?, null_mut());
        // SAFETY: an open pair, one message of one part; the caller keeps its memory.
        let code = unsafe { call(pair.as_ptr(), &raw mut message, &raw mut bad) };
        self.posted("ibv_post_send", PostVerdict::of(code, !bad.is_null()))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn receive(&mut self, id: PairId, request: u64, into: NicMemory) -> Result<PairPosted> {
        let (pair, mut part) = (self.pair(id)?, self.part(into)?);
        let mut message = IbvRecvWr { wr_id: request, next: null_mut(), sg_list: &raw mut part, num_sge: 1 };
        let (call, mut bad) = (self.ops.post_recv.ok_or_else(|| self.lacks("post_recv"))?, null_mut());
        // SAFETY: an open pair, one receive of one part; the caller keeps its memory.
        let code = unsafe { call(pair.as_ptr(), &raw mut message, &raw mut bad) };
        self.posted("ibv_post_recv", PostVerdict::of(code, !bad.is_null()))
    }

    fn posted(&self, call: &'static str, verdict: PostVerdict) -> Result<PairPosted> {
        match verdict {
            PostVerdict::Taken => Ok(PairPosted::Taken),
            PostVerdict::Later => Ok(PairPosted::Later),
            PostVerdict::Refused(code) => Err(described(&self.name, VerbsRefusal { call, code })),
            PostVerdict::Untold(code) => Ok(PairPosted::Untold(described(&self.name, VerbsRefusal { call, code }))),
        }
    }

    /// Takes completions from the queue into `into`: how many.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn poll(&self, into: &mut [IbvWc]) -> Result<usize> {
        let queue = self.objects()?.queue;
        let call = self.ops.poll_cq.ok_or_else(|| self.lacks("poll_cq"))?;
        let most = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: an open queue, and room for so many completions.
        let count = unsafe { call(queue.as_ptr(), most, into.as_mut_ptr()) };
        let taken = usize::try_from(count).ok().filter(|count| *count <= into.len());
        // No code of `errno`.
        taken.ok_or_else(|| Error::new(Kind::System, format!("verbs ({}): ibv_poll_cq gives {count}", self.name)))
    }

    /// Has the next completion be told by the descriptor. Whoever sleeps on it must [poll](Self::poll) before, for
    /// those that have come in between are not told.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn ring_at_next(&mut self) -> Result<()> {
        let open = self.objects()?;
        // SAFETY: an open channel of one queue.
        unsafe { open.context.library.take_queue_events(open.channel) }
            .map_err(|refusal| described(&self.name, refusal))?;
        let call = self.ops.req_notify_cq.ok_or_else(|| self.lacks("req_notify_cq"))?;
        // SAFETY: an open queue.
        let code = unsafe { call(open.queue.as_ptr(), 0) };
        if code == 0 {
            return Ok(());
        }
        Err(described(&self.name, VerbsRefusal { call: "ibv_req_notify_cq", code: code.wrapping_abs() }))
    }

    /// The descriptor that tells of completions.
    ///
    /// # Errors
    /// Where it is closed.
    pub(super) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        // SAFETY: the channel's descriptor, open as long as the device, which is borrowed meanwhile.
        Ok(unsafe { BorrowedFd::borrow_raw(self.objects()?.arrivals) })
    }

    /// The next event of the device.
    pub(super) fn take_event(&self) -> Option<VerbsEvent> {
        let open = self.objects().ok()?;
        // SAFETY: an open context.
        let event = unsafe { open.context.library.take_event(open.context.context) };
        event.map(|event| VerbsEvent::of(event, self.facts.number))
    }

    /// The state of the port now, in sysfs's words, where it can be read.
    pub(super) fn port_state(&self) -> Option<String> {
        let (device, _) = self.name.rsplit_once(':')?;
        let ports = rdma_ports::of(Path::new("/"), device)?.ports;
        ports.into_iter().find(|port| port.number == self.facts.number).map(|port| port.state)
    }

    /// What a completion's status means.
    pub(super) fn words_of_status(&self, status: u32) -> String {
        self.objects().map_or_else(|_| format!("status {status}"), |open| open.context.library.words_of_status(status))
    }

    /// Closes everything. After success the device touches no memory any more.
    ///
    /// # Errors
    /// Where it does not close: it may still touch memory then.
    pub(super) fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let OpenVerbs { pairs, regions, queue, channel, domain, arrivals, context } = open;
        if !context.birthplace.is_here() {
            // The parent's, which goes on with them; memory of a NIC has no copy here.
            return Ok(());
        }
        let library = context.library;
        let mut first = Ok(());
        for pair in pairs.into_iter().flatten() {
            // SAFETY: an open pair, once.
            first = first.and(unsafe { library.close_pair(pair) });
        }
        // A region closes whatever uses it, so it stays where a pair has not closed.
        for region in regions.into_values().take(if first.is_ok() { usize::MAX } else { 0 }) {
            // SAFETY: an open region, once, and no pair is open that has requests.
            first = first.and(unsafe { library.close_region(region) });
        }
        if let Err(refusal) = first {
            // What did not close may still be in use.
            std::mem::forget(context);
            return Err(described(&self.name, refusal));
        }
        // Nothing uses the rest any more. What does not close is lost, and harms nobody.
        // SAFETY: the pairs are closed, and all events were acknowledged.
        let _lost = unsafe { library.close_queue(queue) };
        open::forget_foreign(&[arrivals]);
        // SAFETY: the queue is closed.
        let _lost = unsafe { library.close_channel(channel) };
        // SAFETY: pairs and regions are closed.
        let _lost = unsafe { library.close_domain(domain) };
        Ok(())
    }

    fn pair(&self, id: PairId) -> Result<NonNull<IbvQp>> {
        let pair = self.objects()?.pairs.get(id.0).copied().flatten();
        pair.ok_or_else(|| Error::internal(format!("verbs ({}): this queue pair is closed", self.name)))
    }

    fn part(&self, memory: NicMemory) -> Result<IbvSge> {
        let region = self.objects()?.regions.get(&memory.region());
        let region = region.ok_or_else(|| Error::internal(format!("verbs ({}): not registered", self.name)))?;
        // SAFETY: an open region, whose keys do not change.
        let lkey = unsafe { region.as_ref() }.lkey;
        let length = u32::try_from(memory.bytes());
        let length = length.map_err(|_| Error::internal("a message of 4 GiB"))?;
        Ok(IbvSge { addr: memory.start().as_ptr().expose_provenance() as u64, length, lkey })
    }

    /// What is open.
    ///
    /// # Errors
    /// In a forked child: queue pairs and registered memory are the parent's.
    fn objects(&self) -> Result<&OpenVerbs> {
        let open = self.open.as_ref();
        let open = open.ok_or_else(|| Error::internal(format!("verbs ({}): this NIC is closed", self.name)))?;
        if open.context.birthplace.is_here() {
            return Ok(open);
        }
        Err(Error::invalid_usage(format!(
            "verbs ({}): this process was forked by the one that has opened it; make a communicator of its own here",
            self.name
        )))
    }

    fn objects_mut(&mut self) -> Result<&mut OpenVerbs> {
        self.objects()?;
        self.open.as_mut().ok_or_else(|| Error::internal("this NIC is closed"))
    }

    fn lacks(&self, call: &str) -> Error {
        Error::new(Kind::System, format!("verbs ({}): its driver has no {call}", self.name))
    }
}

impl Drop for VerbsDevice {
    fn drop(&mut self) {
        // Nobody is left to tell; what could not be closed keeps its memory.
        let _lost = self.close();
    }
}

/// The way to the peer's port: by LID within a subnet of InfiniBand, and by GID wherever either end needs that.
fn way_to(theirs: &VerbsEnd, facts: &PortFacts, settings: &VerbsSettings) -> IbvAhAttr {
    let grh = IbvGlobalRoute {
        dgid: [first_word(theirs.gid), last_word(theirs.gid)],
        flow_label: 0,
        sgid_index: facts.gid.index,
        hop_limit: 255,
        traffic_class: settings.traffic_class,
    };
    let is_global = facts.needs_route || theirs.needs_route;
    IbvAhAttr {
        grh: if is_global { grh } else { IbvGlobalRoute::default() },
        dlid: theirs.lid,
        sl: settings.service_level,
        is_global: u8::from(is_global),
        port_num: facts.number,
        ..IbvAhAttr::default()
    }
}

fn first_word(gid: [u8; 16]) -> u64 {
    gid.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

fn last_word(gid: [u8; 16]) -> u64 {
    gid.last_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

/// A refusal in words.
fn words_of(refusal: VerbsRefusal) -> String {
    let VerbsRefusal { call, code } = refusal;
    if code == 0 {
        return format!("{call} yields nothing");
    }
    format!("{call}: {}", std::io::Error::from_raw_os_error(code))
}

/// A refusal as an error, with what to do about it.
fn described(name: &str, refusal: VerbsRefusal) -> Error {
    let error = Error::new(Kind::System, format!("verbs ({name}): {}", words_of(refusal)));
    let locks = ["ibv_reg_mr", "ibv_create_cq", "ibv_create_qp"].contains(&refusal.call);
    let advice = if locks && [ENOMEM, EPERM, EAGAIN].contains(&refusal.code) { pinning::lock_remedy() } else { None };
    match advice {
        Some(advice) => error.advising(&advice),
        None => error,
    }
}

/// Requests of each way that a queue pair has room for. A connection has fewer under way.
pub(super) const PAIR_REQUESTS: u32 = 32;
const ONE_PART: IbvQpCap =
    IbvQpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
/// A message for which no receive is posted yet, one of the handshake, is sent again after 0.08 ms.
const LATER_TIMER: u8 = 6;
/// The numbers of the sizes of packets.
const MTUS: std::ops::RangeInclusive<u8> = 1..=5;
/// So many entries of a table of GIDs are looked at: a queue pair names its own in a byte.
const MOST_GIDS: u32 = 256;
const EPERM: i32 = 1;
const ETIMEDOUT: i32 = 110;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::transport::verbs::gids::GidKind;

    #[test]
    fn packets_have_a_global_route_wherever_either_end_needs_it() {
        let settings = VerbsSettings { service_level: 3, traffic_class: 106, ..VerbsSettings::default() };
        let gid = PortGid { index: 5, gid: [1; 16], kind: GidKind::RoceV2 };
        for (is_ethernet, mine, theirs, expected) in
            [(true, true, true, 1), (false, false, false, 0), (false, true, false, 1), (false, false, true, 1)]
        {
            let facts = PortFacts {
                number: 2,
                is_ethernet,
                needs_route: mine,
                gid,
                lid: 7,
                mtu: 3,
                most_message_bytes: 1 << 30,
                most_completions: 64,
                rate_mbit: None,
            };
            let end = VerbsEnd { gid: [9; 16], lid: 8, mtu: 3, needs_route: theirs, packet: 0, pairs: vec![1] };
            let way = way_to(&end, &facts, &settings);
            assert_eq!((way.is_global, way.dlid, way.sl, way.port_num), (expected, 8, 3, 2));
            let grh = if expected == 1 { (0x0909_0909_0909_0909, 5, 106, 255) } else { (0, 0, 0, 0) };
            assert_eq!((way.grh.dgid[1], way.grh.sgid_index, way.grh.traffic_class, way.grh.hop_limit), grh);
        }
    }
}
