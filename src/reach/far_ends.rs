//! The ends of connections with ranks of other hosts, as this rank's kernels have them.

use std::collections::HashMap;

use crate::device::records::SlotQueue;
use crate::device::{self, Home, Region, Sharing, StatusPage};
use crate::error::{Error, Result};
use crate::plan::LEAST_SLOTS;
use crate::reach::proxy::{Attention, Proxy};
use crate::reach::side_layout::address;
use crate::session::Session;
use crate::sync::primitive::Arc;
use crate::sync::ring::Shape;
use crate::transport::{FarEnd, KernelSlots, Need};
use crate::types::Rank;

/// The connections of one rank. They are opened when a program first needs them.
#[derive(Debug, Default)]
pub struct FarEnds {
    /// The thread at the other ends of the slots. Dropped before the memory.
    proxy: Option<Proxy>,
    open: HashMap<Need, Open>,
    /// Of all slots.
    bytes: usize,
    /// Keeps a block of the host's memory pinned, from which later pieces come without pinning, which waits for
    /// kernels. Ranks of a process share it: a connection that finds it full has more pinned in the middle of a call.
    pinned: Option<Region>,
    /// Of the launch that is being prepared.
    attention: Option<Attention>,
}

#[derive(Debug)]
struct Open {
    queue: SlotQueue,
    memory: Region,
}

impl FarEnds {
    /// Bytes of the host's memory that are pinned for them.
    pub fn pinned_bytes(&self) -> usize {
        self.open.values().map(|open| open.memory.bytes()).sum()
    }

    /// For set-up: pins memory for the connections that are opened later.
    ///
    /// # Errors
    /// Where the device cannot work in the host's memory.
    pub fn prepare(&mut self, home: Home) -> Result<()> {
        let device = device::of(home)?;
        self.pinned = Some(device.take_in(&device.memory_of_host(1, Sharing::Threads)?)?);
        Ok(())
    }

    /// Whether a connection is open.
    pub fn has(&self, need: &Need) -> bool {
        self.open.contains_key(need)
    }

    /// Gives a connection of rank `me`, which works in `home`, its slots, and hands it to the proxy's thread. The rank
    /// counts at `count` what it sends or receives there.
    ///
    /// # Errors
    /// Of memory, or where no thread can be started.
    pub fn open(
        &mut self,
        (session, status): (&Arc<Session>, &Arc<StatusPage>),
        (me, need, home): (Rank, Need, Home),
        (end, shape): (FarEnd, Shape),
        count: u64,
    ) -> Result<()> {
        let device = device::of(home)?;
        // The ends need not have equally many slots: sockets lie between them.
        let slots = if self.bytes < MOST_BYTES { shape.slots } else { shape.slots.min(LEAST_SLOTS) };
        let shape = Shape { slots, ..shape };
        let host = device.memory_of_host(KernelSlots::memory_bytes(shape), Sharing::Threads)?;
        let memory = device.take_in(&host)?;
        let slots = KernelSlots::new(host, shape);
        let queue = slots.kernels_end((me, need), address(&memory, 0), count);
        let proxy = match &mut self.proxy {
            Some(proxy) => proxy,
            none => none.insert(Proxy::start(Arc::clone(session), Arc::clone(status), device.identity())?),
        };
        proxy.join(end, slots);
        self.bytes += memory.bytes();
        self.open.insert(need, Open { queue, memory });
        Ok(())
    }

    /// An open end, for a launch that is being prepared: the proxy attends to it from now on.
    ///
    /// # Errors
    /// Where the end is not open.
    pub fn attended(&mut self, need: &Need) -> Result<SlotQueue> {
        let (Some(open), Some(proxy)) = (self.open.get(need), &self.proxy) else {
            return Err(Error::internal(format!("no slots for {need:?}")));
        };
        self.attention.get_or_insert_with(|| proxy.attend(false));
        Ok(open.queue)
    }

    /// The proxy's attention for the launch that was prepared, if it needs any. Whoever has it keeps it until the
    /// launch has ended.
    pub fn take_attention(&mut self) -> Option<Attention> {
        self.attention.take()
    }

    /// Waits until all that launches have sent is on its way, and tells graphs that nobody serves them any more.
    /// Nothing is launched after this.
    pub fn close(&mut self) {
        drop(self.proxy.take());
    }

    /// The memory of all slots as a graph keeps it: with the proxy's attention.
    pub fn kept_by_graph(&self) -> Vec<Region> {
        let Some(proxy) = self.proxy.as_ref().filter(|_| self.attention.is_some()) else { return Vec::new() };
        let attention = Arc::new(proxy.attend(true));
        self.open.values().map(|open| open.memory.kept_with(attention.clone())).collect()
    }
}

/// Bytes of slots from which on connections have as few as plans can do with: pinned memory is dear, and an exchange of
/// all ranks with all others has many connections.
const MOST_BYTES: usize = 64 << 20;
