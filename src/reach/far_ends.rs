//! The ends of connections with ranks of other hosts, as this rank's kernels have them.

use std::collections::HashMap;

use crate::device::records::SlotQueue;
use crate::device::{self, Device, Home, HostRegion, Region, Sharing, StatusPage};
use crate::error::{Error, Result};
use crate::log;
use crate::plan::LEAST_SLOTS;
use crate::reach::gpu_direct::GpuDirect;
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
    reserved: Option<Reserved>,
    /// What the NIC does with memory of the device.
    direct: Option<GpuDirect>,
    /// Whether it has refused some, which is told once.
    has_refused: bool,
    /// Of the launch that is being prepared.
    attention: Option<Attention>,
}

/// Memory of the host that was pinned at set-up for the connections of one rank, which take their slots from it in the
/// order in which they are opened. Pinning waits for kernels that run, and one of them may wait for the very call that
/// opens a connection. Who finds it full takes from the block that the ranks of a process share, and where that is full
/// too has more pinned in the middle of a call.
#[derive(Debug)]
struct Reserved {
    memory: HostRegion,
    _pinned: Region,
    used: usize,
}

#[derive(Debug)]
struct Open {
    queue: SlotQueue,
    memory: Region,
    /// Where payloads lie on the device.
    payloads: Option<Region>,
}

impl FarEnds {
    /// Bytes of the host's memory that are pinned for them.
    pub fn pinned_bytes(&self) -> usize {
        self.open.values().map(|open| open.memory.bytes()).sum()
    }

    /// Bytes of the device's memory for them.
    pub fn device_bytes(&self) -> usize {
        self.open.values().filter_map(|open| open.payloads.as_ref()).map(Region::bytes).sum()
    }

    /// For set-up: what the NIC does with memory of the device.
    pub fn go_direct(&mut self, direct: Option<GpuDirect>) {
        self.direct = direct;
    }

    /// For set-up: pins memory for the connections that are opened later, one each way with each of the `ranks` of
    /// other hosts.
    ///
    /// # Errors
    /// Where the device cannot work in the host's memory.
    pub fn prepare(&mut self, home: Home, (ranks, shape): (usize, Shape)) -> Result<()> {
        let device = device::of(home)?;
        let each = KernelSlots::memory_bytes(shape).next_multiple_of(PAGE_BYTES);
        let bytes = ranks.saturating_mul(2).saturating_mul(each).min(MOST_RESERVED_BYTES);
        let memory = device.memory_of_host(bytes, Sharing::Threads)?;
        let pinned = device.take_in(&memory)?;
        self.reserved = Some(Reserved { memory, _pinned: pinned, used: 0 });
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
        (mut end, shape): (FarEnd, Shape),
        count: u64,
    ) -> Result<()> {
        let device = device::of(home)?;
        // The ends need not have equally many slots: sockets lie between them.
        let slots = if self.bytes < MOST_BYTES { shape.slots } else { shape.slots.min(LEAST_SLOTS) };
        let shape = Shape { slots, ..shape };
        let payloads = self.payloads((me, need), device, (&mut end, shape));
        let bytes = if payloads.is_some() { KernelSlots::words_bytes(shape) } else { KernelSlots::memory_bytes(shape) };
        let host = match self.reserved.as_mut().and_then(|reserved| reserved.take(bytes)) {
            Some(reserved) => reserved,
            None => device.memory_of_host(bytes, Sharing::Threads)?,
        };
        let memory = device.take_in(&host)?;
        let slots = match &payloads {
            Some(_) => KernelSlots::with_payloads_on_device(host, shape),
            None => KernelSlots::new(host, shape),
        };
        let places = (address(&memory, 0), payloads.as_ref().map(|payloads| address(payloads, 0)));
        let queue = slots.kernels_end((me, need), places, count);
        let proxy = match &mut self.proxy {
            Some(proxy) => proxy,
            none => none.insert(Proxy::start(Arc::clone(session), Arc::clone(status), device.identity())?),
        };
        proxy.join(end, slots);
        self.bytes += memory.bytes();
        self.open.insert(need, Open { queue, memory, payloads });
        Ok(())
    }

    /// Memory of the device for the payloads of a connection, which its NIC has taken; `None` where they lie in the
    /// host's.
    fn payloads(
        &mut self,
        (me, need): (Rank, Need),
        device: &dyn Device,
        (end, shape): (&mut FarEnd, Shape),
    ) -> Option<Region> {
        let direct = self.direct.filter(|direct| direct.goes(need.way))?;
        // Whole pages of their own: plug-ins round what they register to pages, and know no offset in a DMA-BUF.
        let bytes = KernelSlots::payload_bytes(shape).next_multiple_of(NIC_PAGE);
        let room = device.allocate(bytes + NIC_PAGE, Sharing::Threads);
        let taken = room.map_err(|error| error.message().to_owned()).and_then(|room| {
            let memory = room.on_pages(NIC_PAGE, bytes);
            end.take_device((memory.clone(), shape), &direct.payloads(device, &memory)?)?;
            Ok(memory)
        });
        match taken {
            Ok(memory) => {
                self.bytes += bytes;
                Some(memory)
            }
            Err(why) => {
                if !std::mem::replace(&mut self.has_refused, true) {
                    log::warn!(Net @ me, "GPU memory goes through the host's, though GPUDirect RDMA would do: {why}");
                }
                None
            }
        }
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
        let all = self.open.values().flat_map(|open| [Some(&open.memory), open.payloads.as_ref()]).flatten();
        all.map(|memory| memory.kept_with(attention.clone())).collect()
    }
}

impl Reserved {
    /// The next `bytes`, which nobody has touched; `None` where it is full.
    fn take(&mut self, bytes: usize) -> Option<HostRegion> {
        let from = self.used;
        let until = from.checked_add(bytes)?;
        if until > self.memory.bytes() {
            return None;
        }
        self.used = until.next_multiple_of(PAGE_BYTES);
        Some(self.memory.part(from, bytes))
    }
}

/// Bytes that are pinned for one rank at set-up: a quarter of what ranks of a process share.
const MOST_RESERVED_BYTES: usize = 16 << 20;
/// Connections lie on pages of their own.
const PAGE_BYTES: usize = 4096;
/// A page as a GPU's driver has it for NICs, which is whole pages of every system.
const NIC_PAGE: usize = 64 << 10;
/// Bytes of slots from which on connections have as few as plans can do with: pinned memory is dear, and an exchange of
/// all ranks with all others has many connections.
const MOST_BYTES: usize = 64 << 20;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::device::HostMemory;

    #[test]
    fn connections_have_parts_of_their_own_of_what_was_pinned_for_them() {
        let memory = HostMemory.allocate_host(4 * PAGE_BYTES, Sharing::Threads).unwrap();
        let start = memory.base().addr().get();
        let mut reserved = Reserved { _pinned: memory.as_region().clone(), memory, used: 0 };
        let places = [100, PAGE_BYTES, PAGE_BYTES + 1, 1].map(|bytes| {
            let part = reserved.take(bytes);
            part.map(|part| (part.base().addr().get() - start, part.bytes()))
        });
        let pages = |page: usize, bytes| Some((page * PAGE_BYTES, bytes));
        assert_eq!(places, [pages(0, 100), pages(1, PAGE_BYTES), pages(2, PAGE_BYTES + 1), None]);
        assert!(reserved.take(usize::MAX).is_none());
    }
}
