//! Where the ranks are: hosts, local ranks, and the GPU that each should use.

use std::fmt;
use std::path::Path;

use crate::comm::{Communicator, Home};
use crate::config::VisibleDevices;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::reach::visible_gpus::{SplitGpus, visible};
use crate::sys::gpus;
use crate::sys::{host, numa};
use crate::topo::Topology;
use crate::topo::affinity::{self, Seat};
use crate::types::Rank;

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
    /// Where this rank is: its host, its number there, the GPU to use. Not collective: the ranks have told each other
    /// in init what they see, and a child of a split or shrink has that from its parent. So any rank may ask at any
    /// time; where requests are under way, too.
    ///
    /// The GPU is chosen by what the threads that called init saw then: their processors, their `CUDA_VISIBLE_DEVICES`.
    /// A child chooses anew, among its own ranks: its GPU may be another than its parent's.
    ///
    /// # Errors
    /// [`crate::error::Kind::InProgress`] while the communicator is being made by a non-blocking init, split or shrink;
    /// the error with which that has failed; [`crate::error::Kind::System`] if the host has no name;
    /// [`crate::error::Kind::InvalidUsage`] in a forked child.
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
        self.check_process()?;
        match self.placement.get() {
            Some(known) => Ok(known.clone()),
            // Only now the program looks whether the communicator is made; or the host has no name.
            None => self.with_engine(|engine| placement_of(engine)),
        }
    }

    /// Keeps the placement of an engine that has just been made.
    pub(super) fn note_placement(&self, home: &Home) {
        if let (Home::Ready(engine), None) = (home, self.placement.get())
            && let Ok(found) = placement_of(engine)
        {
            self.placement.get_or_init(|| found);
        }
    }
}

/// Where the rank of `engine` is.
///
/// # Errors
/// [`crate::error::Kind::System`] if the host has no name.
fn placement_of(engine: &Engine) -> Result<Placement> {
    place(engine.hosts(), engine.session.world.rank, &engine.session.seats.seats(), host::hostname()?)
}

/// What this thread sees of its host's GPUs, of which the program's environment leaves it the `wanted` ones.
pub(super) fn seat_of_thread(wanted: &VisibleDevices) -> Seat {
    let root = Path::new("/");
    let shown = SplitGpus::of_driver(gpus::driver_branch(root));
    let devices = visible(&gpus::list_or_ask(root), shown, wanted);
    Seat { node: numa::node_of_thread(root), devices }
}

/// The place of rank `me` on these hosts. `seats` are those of its host's ranks, in rank order.
fn place(topology: &Topology, me: Rank, seats: &[Seat], host_name: String) -> Result<Placement> {
    let (locals, is_me) = (topology.local_ranks(me), |rank: &Rank| *rank == me);
    let host = topology.hosts().iter().position(|ranks| ranks.iter().any(is_me));
    let (Some(host), Some(local)) = (host, locals.iter().position(is_me)) else {
        return Err(Error::internal("a rank is on no host"));
    };
    let number = |count: usize| u32::try_from(count).map_err(|_| Error::internal("more ranks than ranks can be"));
    let choice = affinity::assign(seats).get(local).copied().flatten();
    let device = choice.map(|choice| DeviceChoice {
        ordinal: choice.ordinal,
        bus_id: seats[local].devices[choice.ordinal as usize].id.clone(),
        shared_by: choice.shared_by,
    });
    let host = number(host)?;
    Ok(Placement {
        host_name,
        host,
        hosts: number(topology.hosts().len())?,
        local_rank: number(local)?,
        local_size: number(locals.len())?,
        leader_rank: (local == 0).then_some(host),
        device,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::affinity::Device;

    #[test]
    fn hosts_leaders_and_devices_follow_from_what_was_told() {
        let device = |(bus, node)| Device { id: format!("0000:{bus}:00.0"), node: Some(node) };
        let seat = |node| Seat { node: Some(node), devices: [("01", 0), ("02", 0), ("81", 1)].map(device).to_vec() };
        let topology = Topology::new([9, 4, 9, 4]);
        let (on_b, on_a) = ([seat(1), seat(0)], [seat(0), seat(0)]);
        let all = [("b", &on_b), ("a", &on_a), ("b", &on_b), ("a", &on_a)];
        let placed =
            (0..).map(Rank::new).zip(all).map(|(me, (name, seats))| place(&topology, me, seats, name.to_owned()));
        let placed: Vec<Placement> = placed.collect::<Result<_>>().unwrap();
        assert_eq!(
            placed.iter().map(Placement::to_string).collect::<Vec<_>>(),
            [
                "host b (0 of 2), local rank 0 of 2, leader, GPU 2 at 0000:81:00.0",
                "host a (1 of 2), local rank 0 of 2, leader, GPU 0 at 0000:01:00.0",
                "host b (0 of 2), local rank 1 of 2, GPU 0 at 0000:01:00.0",
                "host a (1 of 2), local rank 1 of 2, GPU 1 at 0000:02:00.0",
            ]
        );
        assert_eq!((placed[2].leader_rank, placed[2].local_size, placed[2].hosts), (None, 2, 2));
    }
}
