//! Whether this rank's NIC reads and writes memory of its GPU by itself (GPUDirect RDMA), and why not.
//!
//! Each rank decides for itself: the ends of a connection tell each other where their payloads lie.

use std::path::Path;

use crate::device::{self, Device, Home, NicWays, Region};
use crate::error::Result;
use crate::log;
use crate::reach::this_host;
use crate::session::Session;
use crate::session::settings::GpuDirectSettings;
use crate::topo::paths::{PathKind, Paths};
use crate::topo::system::{NodeId, NodeKind, System};
use crate::topo::transport_choice::{self, Verdict};
use crate::transport::{NicFacts, PayloadsOnDevice, Way};

/// What the NIC does with memory of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuDirect {
    ways: NicWays,
    /// Whether it reads what is sent; it writes what comes in any case.
    reads: bool,
    needs_flush: bool,
}

/// What is known of a GPU and a NIC of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Standing {
    /// How far apart they are; `None` where one of them is not known.
    kind: Option<PathKind>,
    has_links: bool,
    needs_flush: bool,
    /// What a description of the machine has against it, as a sentence.
    denied: Option<String>,
}

impl GpuDirect {
    /// Decides for the GPU of `home` and the rank's NIC, where it has one; `None` and a line in the log where NICs do
    /// not reach the GPU's memory.
    ///
    /// # Errors
    /// Where a topology file that settings name cannot be read, or is wrong.
    pub fn decide(session: &Session, home: Home, nic: Option<NicFacts>) -> Result<Option<GpuDirect>> {
        let me = session.world.rank;
        let Some(nic) = nic else { return Ok(None) };
        let device = device::of(home)?;
        let (settings, told) = (session.settings.gpu_direct, &nic.words);
        let without = |why: &str| log::info!(Net @ me, "GPUDirect RDMA: no, between {home} and {told}: {why}");
        let ways = match ways(device, settings, &nic) {
            Ok(ways) => ways,
            Err(why) => {
                without(&why);
                return Ok(None);
            }
        };
        let standing = Standing::find(session, device, &nic)?;
        if let Some(why) = &standing.denied {
            without(why);
            return Ok(None);
        }
        let verdict = transport_choice::within(standing.kind.unwrap_or(PathKind::Phb), settings.level);
        let place = if standing.kind.is_none() { ", for a NIC whose place is not known counts as PHB" } else { "" };
        match verdict {
            Verdict::No(why) => {
                without(&format!("{why}{place}"));
                Ok(None)
            }
            Verdict::Yes(why) => {
                let reads = settings.reads.unwrap_or(device.capability() >= Some(80) || standing.has_links);
                let needs_flush = standing.needs_flush || nic.takes_devices == Some(true);
                let found = GpuDirect { ways, reads, needs_flush };
                log::info!(Net @ me, "GPUDirect RDMA: yes, between {home} and {told}: {why}{place}; {}", found.words());
                Ok(Some(found))
            }
        }
    }

    /// Whether payloads of connections of this way lie on the GPU.
    pub fn goes(self, way: Way) -> bool {
        way == Way::Receive || self.reads
    }

    /// By which way the NIC may take `memory` of the device for payloads.
    ///
    /// # Errors
    /// Of the driver, as a sentence.
    pub fn payloads(self, device: &dyn Device, memory: &Region) -> std::result::Result<PayloadsOnDevice, String> {
        let reachable = device.nic_memory().filter(|_| self.ways.dma_buf);
        let dma_buf = match reachable.map(|reachable| reachable.dma_buf(memory)).transpose() {
            Ok(dma_buf) => dma_buf,
            // The other way is left.
            Err(_) if self.ways.address => None,
            Err(error) => return Err(error.message().to_owned()),
        };
        Ok(PayloadsOnDevice::new((dma_buf, self.ways.address), self.needs_flush))
    }

    fn words(self) -> String {
        let reads = if self.reads { "sends too" } else { "receives alone (NCCL_NET_GDR_READ)" };
        let flushes = if self.needs_flush { "each receive is flushed" } else { "no flush" };
        format!("{reads}, {flushes}")
    }
}

/// By which ways device, NIC and settings let the NIC reach the device's memory.
fn ways(device: &dyn Device, settings: GpuDirectSettings, nic: &NicFacts) -> std::result::Result<NicWays, String> {
    if nic.takes_devices.is_none() {
        return Err("this NIC takes memory of the host alone".to_owned());
    }
    let reachable = device.nic_memory().ok_or("NICs do not reach memory of this device")?;
    let NicWays { dma_buf, address } = reachable.nic_ways()?;
    let ways = NicWays { dma_buf: dma_buf && settings.dma_buf, address };
    match ways {
        NicWays { dma_buf: false, address: false } => {
            Err("NCCL_DMABUF_ENABLE=0, and the driver knows no other way".to_owned())
        }
        NicWays { .. } => Ok(ways),
    }
}

impl Standing {
    fn find(session: &Session, device: &dyn Device, nic: &NicFacts) -> Result<Standing> {
        let file = session.settings.searching.machine()?.map(|(machine, _)| machine);
        let is_described = file.is_some();
        let host = this_host::look(Path::new("/"), file);
        let system = System::new(&host.machine)?;
        let uuid = device.identity().0;
        let bus_id = host.gpus.iter().find(|(own, _)| *own == uuid).map(|(_, bus_id)| bus_id);
        let gpu = system.gpus().into_iter().find(|id| bus_id.is_some() && system.node(*id).bus_id.as_ref() == bus_id);
        let standing = Standing::of(&system, gpu, nic, device.capability());
        // What the library, driver and plug-in say for themselves goes before what the system's files show.
        Ok(Standing { denied: standing.denied.filter(|_| is_described), ..standing })
    }

    fn of(system: &System, gpu: Option<NodeId>, nic: &NicFacts, capability: Option<u32>) -> Standing {
        let Some(gpu) = gpu else {
            return Standing { kind: None, has_links: false, needs_flush: capability < Some(90), denied: None };
        };
        let ways = Paths::from(system, gpu);
        // Libraries name a port behind the device's name.
        let device = nic.device.split(':').next().unwrap_or_default();
        let is_it = |id: &NodeId| match &system.node(*id).kind {
            NodeKind::Port { name, .. } => *name == device,
            _ => false,
        };
        let card = || system.ids().find(|id| nic.bus_id.is_some() && system.node(*id).bus_id == nic.bus_id);
        let place = system.ports().into_iter().find(is_it).or_else(card);
        let linked = |other: &NodeId| *other != gpu && ways.to(system, *other).kind <= PathKind::Nvb;
        Standing {
            kind: place.map(|place| ways.to(system, place).kind),
            has_links: system.gpus().iter().any(linked),
            needs_flush: transport_choice::flush(system, gpu).is_yes(),
            denied: place.and_then(|place| {
                match transport_choice::direct(system, &ways.to(system, place), Some(PathKind::Dis)) {
                    Verdict::No(why) => Some(why),
                    Verdict::Yes(_) => None,
                }
            }),
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::topo::machines::system;

    fn nic(device: &str, bus_id: Option<&str>) -> NicFacts {
        let (device, bus_id) = (device.to_owned(), bus_id.map(str::to_owned));
        NicFacts { words: device.clone(), device, bus_id, takes_devices: Some(false) }
    }

    #[test]
    fn a_nic_is_found_by_its_name_or_its_place_on_the_bus() {
        let system = system("h100x8");
        let gpu = system.gpus().first().copied();
        let NodeKind::Port { name, .. } = &system.node(system.ports()[0]).kind else { panic!("a port") };
        let found = Standing::of(&system, gpu, &nic(&format!("{name}:1"), None), Some(90));
        assert_eq!(found, Standing { kind: Some(PathKind::Pix), has_links: true, needs_flush: false, denied: None });
        let card = system.ids().find(|id| {
            let is_port = |to: NodeId| matches!(system.node(to).kind, NodeKind::Port { .. });
            system.node(*id).bus_id.is_some() && system.links(*id).iter().any(|link| is_port(link.to))
        });
        let bus_id = card.and_then(|card| system.node(card).bus_id.clone()).expect("ports have cards");
        let by_place = Standing::of(&system, gpu, &nic("another", Some(&bus_id)), Some(90));
        assert!(by_place.kind.is_some_and(|kind| kind <= PathKind::Pxb), "{by_place:?}");
        assert_eq!(Standing::of(&system, gpu, &nic("another", None), Some(90)).kind, None);
    }

    #[test]
    fn of_a_gpu_that_is_not_shown_its_capability_says_whether_to_flush() {
        let system = system("h100x8");
        let needs = |capability| Standing::of(&system, None, &nic("m0", None), capability).needs_flush;
        assert!(needs(Some(80)) && !needs(Some(90)) && needs(None));
    }
}
