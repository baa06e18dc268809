//! Goal: what a framework such as PyTorch keeps over a library like this one, its process group: a store through which ids
//! travel, a communicator for each device that is made when it is first used, and one more for each pair of ranks that send
//! to each other. Init is non-blocking and polled, so that a watchdog could give up on it. Ranks share the GPUs evenly, if
//! there are some.
//!
//!     cargo run --example 11_process_group
//!     vcuda/run 2-nvswitch -- target/debug/examples/11_process_group     # built with feature cuda
//!
//! Prints, and a line for cuda:0 where there is a GPU (feature `cuda`):
//!
//!     cpu: 4 ranks, sum 10, made 1 communicator for all and 1 for a pair
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

use std::collections::HashMap;
use std::time::Duration;

use rsccl::comm::DeviceStream;
use rsccl::error;
use rsccl::store::{AbortFlag, HashStore, Store, Wait, share_id};
use rsccl::types::{Rank, World};
use rsccl::{Communicator, Config, Error, ReduceOp, Result};

const WORLD: u32 = 4;
/// What init may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a rank's tensors live: one communicator for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Device {
    Cpu,
    Cuda(u32),
}

/// What all ranks' devices have in common, so that they find each other's ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Cpu,
    Cuda { gpus: u32 },
}

impl Kind {
    fn of_rank(self, rank: u32) -> Device {
        match self {
            Kind::Cpu => Device::Cpu,
            Kind::Cuda { gpus } => Device::Cuda(rank * gpus / WORLD),
        }
    }
}

impl Device {
    fn key(self) -> String {
        match self {
            Device::Cpu => "cpu".to_owned(),
            Device::Cuda(number) => format!("cuda:{number}"),
        }
    }
}

/// One rank's handle of the ranks that train together.
struct ProcessGroup<'s> {
    store: &'s dyn Store,
    rank: u32,
    /// By the key of the device, or of the pair.
    communicators: HashMap<String, Communicator>,
    /// How many ids were shared among all ranks, who all count alike.
    shared: u32,
}

impl ProcessGroup<'_> {
    /// Sums `tensor` over all ranks.
    fn all_reduce(&mut self, device: Device, tensor: &mut [f32]) -> Result<()> {
        let world = World { rank: Rank::new(self.rank), size: WORLD };
        let comm = self.communicator(device.key(), None, world)?;
        match device {
            Device::Cpu => comm.all_reduce_in_place(tensor, ReduceOp::Sum),
            Device::Cuda(number) => {
                let stream = DeviceStream::new(number)?;
                let mut there = stream.alloc(tensor.len())?;
                stream.upload(tensor, there.slice_mut(..))?;
                comm.on(&stream).all_reduce_in_place(there.slice_mut(..), ReduceOp::Sum)?;
                stream.download(there.slice(..), tensor)
            }
        }
    }

    fn send(&mut self, device: Device, tensor: &[f32], to: u32) -> Result<()> {
        let (comm, peer) = self.pair(device, to)?;
        match device {
            Device::Cpu => comm.send(tensor, peer),
            Device::Cuda(number) => {
                let stream = DeviceStream::new(number)?;
                let mut there = stream.alloc(tensor.len())?;
                stream.upload(tensor, there.slice_mut(..))?;
                comm.on(&stream).send(there.slice(..), peer)?;
                stream.synchronize()
            }
        }
    }

    fn recv(&mut self, device: Device, tensor: &mut [f32], from: u32) -> Result<()> {
        let (comm, peer) = self.pair(device, from)?;
        match device {
            Device::Cpu => comm.recv(tensor, peer),
            Device::Cuda(number) => {
                let stream = DeviceStream::new(number)?;
                let mut there = stream.alloc(tensor.len())?;
                comm.on(&stream).recv(there.slice_mut(..), peer)?;
                stream.download(there.slice(..), tensor)
            }
        }
    }

    /// The communicator of this rank and `other`, in which the lower one is rank 0, and the other's rank in it. The other
    /// ranks of the group know nothing of it.
    fn pair(&mut self, device: Device, other: u32) -> Result<(&Communicator, u32)> {
        let (low, high) = (self.rank.min(other), self.rank.max(other));
        let world = World { rank: Rank::new(u32::from(self.rank == high)), size: 2 };
        let kind = if device == Device::Cpu { "cpu" } else { "cuda" };
        let (key, peer) = (format!("{kind}:{low}:{high}"), u32::from(other == high));
        Ok((self.communicator(key.clone(), Some(key), world)?, peer))
    }

    /// The communicator of a key, made when it is first asked for. Its rank 0 puts an id into the store, under the name
    /// that all of its ranks know: the pair's, or, since devices differ by rank, a number that all ranks count.
    fn communicator(&mut self, key: String, name: Option<String>, world: World) -> Result<&Communicator> {
        if !self.communicators.contains_key(&key) {
            let config = Config::default().with_socket_interfaces("lo").with_blocking(false);
            let config = config.with_init_timeout(PATIENCE);
            let wait = Wait::new(PATIENCE, &AbortFlag::new());
            let name = name.unwrap_or_else(|| {
                self.shared += 1;
                self.shared.to_string()
            });
            let id = share_id(self.store, &name, world, || Communicator::unique_id(&config), &wait)?;
            let comm = Communicator::init(&id, world.rank.get(), world.size, &config)?;
            await_init(&comm)?;
            self.communicators.insert(key.clone(), comm);
        }
        self.communicators.get(&key).ok_or_else(|| Error::internal("it was made a moment ago"))
    }
}

/// Polls a communicator until it can be used. The deadline of init bounds the loop.
fn await_init(comm: &Communicator) -> Result<()> {
    loop {
        match comm.async_error() {
            Some(error) if error.kind() == error::Kind::InProgress => std::thread::yield_now(), // ... or give up: comm.abort("why")
            Some(error) => return Err(error),
            None => return Ok(()),
        }
    }
}

fn main() -> Result<()> {
    let store = HashStore::new();
    let gpus = (0..WORLD).find(|number| DeviceStream::new(*number).is_err()).unwrap_or(WORLD);
    let reports = std::thread::scope(|scope| {
        let rank = |rank| {
            let store = &store;
            let group = ProcessGroup { store, rank, communicators: HashMap::new(), shared: 0 };
            scope.spawn(move || train(gpus, group))
        };
        let threads: Vec<_> = (0..WORLD).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Result<Vec<_>>>()
    })?;
    reports[0].iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// What every rank does on each kind of device.
fn train(gpus: u32, mut group: ProcessGroup<'_>) -> Result<Vec<String>> {
    let kinds = [Some(Kind::Cpu), (gpus > 0).then_some(Kind::Cuda { gpus })];
    kinds.into_iter().flatten().map(|kind| step(kind.of_rank(group.rank), &mut group)).collect()
}

/// Sums over all, and rank 0 hands the result to rank 3, which has it already.
fn step(device: Device, group: &mut ProcessGroup<'_>) -> Result<String> {
    let before = group.communicators.len();
    let mut tensor = [group.rank as f32 + 1.0; 1000];
    group.all_reduce(device, &mut tensor)?;
    group.all_reduce(device, &mut [0.0; 10])?;
    let all = group.communicators.len() - before;
    let mut copy = [0.0; 1000];
    match group.rank {
        0 => group.send(device, &tensor, 3)?,
        3 => {
            group.recv(device, &mut copy, 0)?;
            assert_eq!(copy, tensor);
        }
        _ => {}
    }
    assert_eq!(tensor, [10.0; 1000]);
    let (key, pairs) = (device.key(), group.communicators.len() - before - all);
    Ok(format!("{key}: {WORLD} ranks, sum {}, made {all} communicator for all and {pairs} for a pair", tensor[0]))
}
