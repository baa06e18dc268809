//! Where the ranks are: hosts, local ranks, and the GPU that each should use.

use std::fmt;
use std::path::Path;

use crate::bootstrap::Agreed;
use crate::comm::Communicator;
use crate::config::{Environment, VisibleDevices};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exec::{Background, NoBackground};
use crate::reach::visible_gpus::{SplitGpus, visible};
use crate::sys::gpus;
use crate::sys::{host, numa};
use crate::topo::Topology;
use crate::topo::affinity::{self, Device, Seat};
use crate::transport::host_id;
use crate::types::{Rank, World};
use crate::wire::{self, Reader, Writer};

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

/// The part of a [`Placement`] that every rank knows from init, so that it need not ask the others.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Locality {
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
}

/// A GPU, chosen for a rank.
///
/// The ranks of a host share its GPUs evenly, each with one of its NUMA node where there is one; what
/// `CUDA_VISIBLE_DEVICES` or a container hides is not chosen. The GPUs are numbered by their place on the PCI bus. CUDA
/// numbers them so on hosts whose GPUs are all of one kind; on others `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes sure that it
/// does.
///
/// Of a GPU that MIG has split, a process uses parts, and CUDA shows fewer of them than there are:
///
/// | driver | `CUDA_VISIBLE_DEVICES` not set | a list of parts, `MIG-…` | a list of numbers or of `GPU-…` |
/// |---|---|---|---|
/// | before 570 | the first part of the first GPU that is split, and no other | the first part of the list | the first part of the first GPU of the list that is split |
/// | 570 and later | a part of each GPU instance, and the GPUs that are not split | the parts of the list | the GPUs of the list up to the first that is split, and its first part |
///
/// So before 570 all ranks of a host share one part unless their launcher gives each a list of its own, as Slurm does.
/// NVIDIA does not say what a number of the list counts on such hosts; here it counts GPUs, and what might be counted
/// in another way is left out. Where a GPU instance is split further, into several compute instances, a list of parts
/// counts up to its first: names do not tell which belong together. A GPU in MIG mode that is not split yet looks like
/// any other here, and CUDA cannot use it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceChoice {
    /// What `cudaSetDevice` takes.
    pub ordinal: u32,
    /// Its place on the PCI bus, `0000:3b:00.0`. For a part of a GPU, and where the driver hides the bus, its name in
    /// `CUDA_VISIBLE_DEVICES`: as that variable has it, or `MIG-GPU-…/1/0` with the numbers of GPU instance and compute
    /// instance.
    pub bus_id: String,
    /// How many ranks of the host use it.
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
    /// Where this rank is: its host, its number there, the GPU to use. The first call is collective, because all ranks
    /// tell each other what they see. Later calls return the same answer at once.
    ///
    /// # Errors
    /// Of the exchange, within [`crate::Config::timeout`]; [`crate::error::Kind::Mismatch`] where other ranks are in
    /// another call;
    /// the error of a rank that cannot tell where it is, after which the communicator is as before.
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
        let found = self.with_engine(|engine| find(engine, &mut NoBackground))?.map_err(|error| self.at(error))?;
        Ok(self.placement.get_or_init(|| found).clone())
    }
}

impl Communicator {
    /// Which ranks share a host with this one, as init found it. Not collective: any rank may ask at any time.
    ///
    /// # Errors
    /// [`crate::error::Kind::InProgress`] while a non-blocking init is under way; the error that has ended the
    /// communicator.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     if comm.rank() == 2 {
    ///         let here = comm.locality()?; // the others do not take part
    ///         assert_eq!((here.local_rank, here.local_size, here.host, here.hosts), (2, 3, 0, 1));
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn locality(&self) -> Result<Locality> {
        self.with_engine(|engine| locality_of(engine))
    }
}

/// Where the rank of `engine` is, as init found it.
pub(super) fn locality_of(engine: &Engine) -> Result<Locality> {
    let (topology, me) = (engine.hosts(), engine.session.world.rank);
    let (locals, is_me) = (topology.local_ranks(me), |rank: &Rank| *rank == me);
    let host = topology.hosts().iter().position(|ranks| ranks.iter().any(is_me)).unwrap_or_default();
    let local = locals.iter().position(is_me).unwrap_or_default();
    let numbers = [host, topology.hosts().len(), local, locals.len()].map(u32::try_from);
    let [Ok(host), Ok(hosts), Ok(local_rank), Ok(local_size)] = numbers else {
        return Err(Error::internal("more ranks than ranks can be"));
    };
    Ok(Locality { host_name: host::hostname()?, host, hosts, local_rank, local_size })
}

/// Asks all ranks where they are. The inner error is that of a rank which cannot tell, the same on all ranks.
pub(super) fn find(engine: &mut Engine, background: &mut dyn Background) -> Agreed<Placement> {
    let named = |error: Error| error.during("placement");
    let wait = engine.meet("placement", background).map_err(named)?;
    let mine = Facts::learn(engine.session.settings.host_id.as_deref()).map(|facts| facts.encode());
    match engine.session.bootstrap.agree(mine, &wait).map_err(named)? {
        Ok(told) => place(engine.session.world, &told).map_err(named).map(Ok),
        Err(error) => Ok(Err(named(error))),
    }
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
        // First: it fails where no descriptor is left, and what follows would find nothing then.
        let host = host_id(chosen_host)?;
        let root = Path::new("/");
        let wanted = VisibleDevices::read(&Environment::capture());
        let mut host_name = host::hostname()?;
        host_name.truncate(wire::cut(&host_name, MAX_NAME_BYTES).len());
        let shown = SplitGpus::of_driver(gpus::driver_branch(root));
        let devices = visible(&gpus::list_or_ask(root), shown, &wanted);
        let seat = Seat { node: numa::node_of_thread(root), devices };
        Ok(Facts { host, host_name, seat })
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

/// Longer than the name of a host (64 on Linux, 255 by POSIX) or of a GPU (40).
const MAX_NAME_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(host: u64, host_name: &str, node: u32) -> Vec<u8> {
        let device = |(bus, node)| Device { id: format!("0000:{bus}:00.0"), node: Some(node) };
        let devices = [("01", 0), ("02", 0), ("81", 1)].map(device).to_vec();
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
