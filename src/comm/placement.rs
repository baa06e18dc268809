//! Where the ranks are: hosts, local ranks, and the GPU that each should use.

use std::fmt;
use std::path::Path;

use crate::comm::Communicator;
use crate::comm::engine::Engine;
use crate::config::{DeviceName, Environment, VisibleDevices};
use crate::error::{Error, Result};
use crate::exec::{Beside, Nothing};
use crate::sys::gpus::{self, Gpu};
use crate::sys::{host, numa};
use crate::topo::Topology;
use crate::topo::affinity::{self, Device, Seat};
use crate::transport::host_id;
use crate::types::{Rank, World};
use crate::wire::{Reader, Writer};

/// Where a rank is, among the hosts of its communicator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// The name of my host.
    pub host_name: String,
    /// The number of my host: hosts count in the order of their lowest ranks.
    pub host: u32,
    /// How many hosts there are.
    pub hosts: u32,
    /// My number among the ranks of my host, which count in rank order.
    pub local_rank: u32,
    /// How many ranks my host has.
    pub local_size: u32,
    /// My number among the leaders, the ranks of local rank 0, if I am one. It is my host's number.
    pub leader_rank: Option<u32>,
    /// The GPU that I should use; `None` where I see none.
    pub device: Option<DeviceChoice>,
}

/// A GPU, chosen for a rank.
///
/// The ranks of a host share its GPUs evenly, each with one of its NUMA node where there is one; what `CUDA_VISIBLE_DEVICES` or a
/// container hides is not chosen. The GPUs are numbered by their place on the PCI bus. CUDA numbers them so on hosts whose GPUs
/// are all of one kind; on others `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes sure that it does.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceChoice {
    /// What `cudaSetDevice` takes.
    pub ordinal: u32,
    /// Its place on the PCI bus, `0000:3b:00.0`; for a part of a GPU, and where the driver hides the bus, its name in
    /// `CUDA_VISIBLE_DEVICES`.
    pub bus_id: String,
    /// How many ranks of the host were given it.
    pub shared_by: u32,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Placement { host_name, host, hosts, local_rank, local_size, .. } = self;
        write!(f, "host {host_name} ({host} of {hosts}), local rank {local_rank} of {local_size}")?;
        if self.leader_rank.is_some() {
            f.write_str(", leader")?;
        }
        match &self.device {
            Some(device) => write!(f, ", {device}"),
            None => f.write_str(", no GPU"),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} at {}", self.ordinal, self.bus_id)?;
        if self.shared_by > 1 { write!(f, " shared by {} ranks", self.shared_by) } else { Ok(()) }
    }
}

impl Communicator {
    /// Where this rank is: its host, its number there, the GPU to use. Collective the first time: all ranks tell each other what
    /// they see. Later calls answer from memory.
    ///
    /// # Errors
    /// Of the exchange, as init's; [`crate::error::Kind::Remote`] naming a rank that cannot tell its host's name.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     let placement = comm.placement()?;
    ///     assert_eq!((placement.host, placement.hosts), (0, 1));
    ///     assert_eq!((placement.local_rank, placement.local_size), (comm.rank(), 3));
    ///     assert_eq!(placement.leader_rank.is_some(), comm.rank() == 0);
    ///     if let Some(device) = &placement.device {
    ///         println!("cudaSetDevice({})", device.ordinal);
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn placement(&self) -> Result<Placement> {
        if let Some(known) = self.placement.get() {
            return Ok(known.clone());
        }
        let found = self.with_engine(|engine| find(engine, &mut Nothing))?;
        Ok(self.placement.get_or_init(|| found).clone())
    }
}

/// Asks all ranks where they are.
pub(super) fn find(engine: &mut Engine, beside: &mut dyn Beside) -> Result<Placement> {
    engine.meet(beside).map_err(|error| error.during("placement"))?;
    let wait = engine.init_wait();
    let mine = Facts::learn(engine.settings.host_id.as_deref());
    // A rank that knows nothing of itself tells that too, and all ranks have its error.
    let told = mine.as_ref().map_or(Vec::new(), Facts::encode);
    let gathered = engine.bootstrap.all_gather(&told, &wait).map_err(|error| error.during("placement"))?;
    mine.and_then(|_| place(engine.world, &gathered)).map_err(|error| error.during("placement"))
}

/// What a rank tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Facts {
    host: u64,
    host_name: String,
    seat: Seat,
}

impl Facts {
    fn learn(chosen_host: Option<&str>) -> Result<Facts> {
        let root = Path::new("/");
        let wanted = VisibleDevices::read(&Environment::capture());
        let mut host_name = host::hostname()?;
        host_name.truncate(host_name.floor_char_boundary(MAX_NAME_BYTES));
        let seat = Seat { node: numa::node_of_thread(root), devices: visible(&gpus::list(root), &wanted) };
        Ok(Facts { host: host_id(chosen_host)?, host_name, seat })
    }

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u64(self.host).text(&self.host_name).u64(encode_node(self.seat.node));
        for device in &self.seat.devices {
            writer.text(&device.id).u64(encode_node(device.node));
        }
        writer.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Facts> {
        let mut reader = Reader::new(bytes, "what a rank tells of its place");
        let (host, host_name, node) = (reader.u64()?, reader.text(MAX_NAME_BYTES)?, decode_node(reader.u64()?));
        let mut devices = Vec::new();
        while !reader.rest().is_empty() {
            if devices.len() == gpus::MAX_GPUS {
                return Err(reader.malformed("more GPUs than a host may have"));
            }
            devices.push(Device { id: reader.text(MAX_NAME_BYTES)?, node: decode_node(reader.u64()?) });
        }
        reader.finish()?;
        Ok(Facts { host, host_name, seat: Seat { node, devices } })
    }
}

fn encode_node(node: Option<u32>) -> u64 {
    node.map_or(0, |node| u64::from(node) + 1)
}

fn decode_node(value: u64) -> Option<u32> {
    value.checked_sub(1).and_then(|node| u32::try_from(node).ok())
}

/// The GPUs that CUDA would show of `all`, which are in CUDA's order, where the user wants to see `wanted`.
fn visible(all: &[Gpu], wanted: &VisibleDevices) -> Vec<Device> {
    let whole = |gpu: &Gpu| Device { id: gpu.bus_id.clone(), node: gpu.node };
    let VisibleDevices::Only(names) = wanted else { return all.iter().map(whole).collect() };
    let (mut seen, mut part): (Vec<Device>, Option<Device>) = (Vec::new(), None);
    for name in names {
        let device = match name {
            DeviceName::Index(index) => usize::try_from(*index).ok().and_then(|index| all.get(index)).map(whole),
            DeviceName::Uuid(prefix) => by_uuid(all, prefix),
            DeviceName::Mig(name) => (!all.is_empty()).then(|| Device { id: name.clone(), node: None }),
        };
        // CUDA ends its list at an entry that names no GPU, and shows none at all where one is named twice.
        match device {
            Some(device) if seen.iter().any(|other| other.id == device.id) => return Vec::new(),
            Some(device) if seen.len() < gpus::MAX_GPUS => {
                if part.is_none() && matches!(name, DeviceName::Mig(_)) {
                    part = Some(device.clone());
                }
                seen.push(device);
            }
            _ => break,
        }
    }
    // Of parts of GPUs it shows a process one, the first, and no whole GPU beside it.
    part.map_or(seen, |part| vec![part])
}

/// The only GPU whose UUID begins with `prefix`.
fn by_uuid(all: &[Gpu], prefix: &str) -> Option<Device> {
    let begins = |uuid: &str| uuid.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    let mut named = all.iter().filter(|gpu| gpu.uuid.as_deref().is_some_and(begins));
    match (named.next(), named.next()) {
        (Some(gpu), None) => Some(Device { id: gpu.bus_id.clone(), node: gpu.node }),
        // The driver keeps a UUID to itself: CUDA may know the GPU all the same.
        (None, _) if all.iter().any(|gpu| gpu.uuid.is_none()) => Some(Device { id: prefix.to_owned(), node: None }),
        _ => None,
    }
}

/// My place, from what all ranks told.
fn place(world: World, gathered: &[Vec<u8>]) -> Result<Placement> {
    let mut facts = Vec::with_capacity(gathered.len());
    for (rank, bytes) in world.ranks().zip(gathered) {
        let broken =
            |error: Error| Error::remote(rank, format!("rank {rank} does not tell its place: {}", error.message()));
        facts.push(Facts::decode(bytes).map_err(broken)?);
    }
    let topology = Topology::new(facts.iter().map(|facts| facts.host));
    let number = |count: usize| u32::try_from(count).map_err(|_| Error::internal("more ranks than ranks can be"));
    let locals = topology.local_ranks(world.rank);
    let is_me = |rank: &Rank| *rank == world.rank;
    let (Some(host), Some(local)) =
        (topology.hosts().iter().position(|ranks| ranks.iter().any(is_me)), locals.iter().position(is_me))
    else {
        return Err(Error::internal("a rank is on no host"));
    };
    let seats: Vec<Seat> = locals.iter().map(|rank| facts[rank.index()].seat.clone()).collect();
    let device = affinity::assign(&seats)[local].map(|choice| DeviceChoice {
        ordinal: choice.ordinal,
        bus_id: seats[local].devices[choice.ordinal as usize].id.clone(),
        shared_by: choice.shared_by,
    });
    let host = number(host)?;
    Ok(Placement {
        host_name: facts[world.rank.index()].host_name.clone(),
        host,
        hosts: number(topology.hosts().len())?,
        local_rank: number(local)?,
        local_size: number(locals.len())?,
        leader_rank: (local == 0).then_some(host),
        device,
    })
}

/// More than a host's name (64 on Linux, 255 by POSIX) or a GPU's (40) has.
const MAX_NAME_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gpus() -> Vec<Gpu> {
        let gpu = |bus: &str, uuid: Option<&str>, node| Gpu {
            bus_id: format!("0000:{bus}:00.0"),
            uuid: uuid.map(str::to_owned),
            node,
        };
        vec![gpu("01", Some("GPU-aa00-1"), Some(0)), gpu("02", Some("GPU-aa11-2"), Some(0)), gpu("81", None, Some(1))]
    }

    fn seen(names: &[DeviceName]) -> Vec<String> {
        visible(&gpus(), &VisibleDevices::Only(names.to_vec())).into_iter().map(|device| device.id).collect()
    }

    #[test]
    fn what_is_visible_is_what_cuda_shows() {
        let (index, uuid) = (DeviceName::Index, |text: &str| DeviceName::Uuid(text.to_owned()));
        assert_eq!(visible(&gpus(), &VisibleDevices::All).len(), 3);
        assert_eq!(seen(&[]), [""; 0]);
        assert_eq!(seen(&[index(2), index(0)]), ["0000:81:00.0", "0000:01:00.0"]);
        assert_eq!(seen(&[index(1), index(3), index(0)]), ["0000:02:00.0"]);
        assert_eq!(seen(&[index(1), index(0), index(1)]), [""; 0], "one is named twice");
        assert_eq!(seen(&[uuid("GPU-AA11"), uuid("GPU-aa00-1")]), ["0000:02:00.0", "0000:01:00.0"]);
        assert_eq!(seen(&[uuid("GPU-aa")]), [""; 0], "two begin so");
        assert_eq!(seen(&[uuid("GPU-77")]), ["GPU-77"], "may be the one whose UUID is hidden");
        let part = |name: &str| DeviceName::Mig(name.to_owned());
        assert_eq!(seen(&[part("MIG-5"), part("MIG-7")]), ["MIG-5"], "CUDA shows one part");
        assert_eq!(seen(&[index(0), part("MIG-5"), index(1)]), ["MIG-5"], "and no GPU beside it");
        assert_eq!(seen(&[part("MIG-5"), part("MIG-5")]), [""; 0], "one is named twice");
        assert!(visible(&[], &VisibleDevices::Only(vec![DeviceName::Mig("MIG-5".to_owned()), index(0)])).is_empty());
    }

    fn told(host: u64, host_name: &str, node: u32) -> Vec<u8> {
        let devices = visible(&gpus(), &VisibleDevices::All);
        Facts { host, host_name: host_name.to_owned(), seat: Seat { node: Some(node), devices } }.encode()
    }

    #[test]
    fn hosts_leaders_and_devices_follow_from_what_was_told() {
        let all = [told(9, "b", 1), told(4, "a", 0), told(9, "b", 0), told(4, "a", 0)];
        let lines: Vec<String> =
            (0..4).map(|rank| place(World { rank: Rank::new(rank), size: 4 }, &all).unwrap().to_string()).collect();
        assert_eq!(
            lines,
            [
                "host b (0 of 2), local rank 0 of 2, leader, GPU 2 at 0000:81:00.0",
                "host a (1 of 2), local rank 0 of 2, leader, GPU 0 at 0000:01:00.0",
                "host b (0 of 2), local rank 1 of 2, GPU 0 at 0000:01:00.0",
                "host a (1 of 2), local rank 1 of 2, GPU 1 at 0000:02:00.0",
            ]
        );
        let third = place(World { rank: Rank::new(2), size: 4 }, &all).unwrap();
        assert_eq!((third.leader_rank, third.local_size, third.hosts), (None, 2, 2));
    }

    #[test]
    fn a_rank_that_tells_nothing_is_named() {
        let error = place(World { rank: Rank::new(0), size: 2 }, &[told(1, "a", 0), Vec::new()]).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (crate::error::Kind::Remote, Some(1)));
    }

    proptest! {
        #[test]
        fn facts_come_back(host: u64, host_name in "[a-z0-9.]{0,64}", node in proptest::option::of(any::<u32>()),
                           devices in proptest::collection::vec(("[ -~]{0,64}", proptest::option::of(any::<u32>())), 0..9)) {
            let devices = devices.into_iter().map(|(id, node)| Device { id, node }).collect();
            let facts = Facts { host, host_name, seat: Seat { node, devices } };
            prop_assert_eq!(Facts::decode(&facts.encode()).unwrap(), facts);
        }

        #[test]
        fn any_bytes_are_facts_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _refused = Facts::decode(&bytes);
        }
    }
}
