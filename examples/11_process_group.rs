//! Goal: what a framework such as PyTorch keeps over a library like this one, its process group: a store through which ids
//! travel, a communicator for each device that is made when it is first used, and one more for each pair of ranks that send
//! to each other. Init is non-blocking and polled, so that a watchdog could give up on it.
//!
//!     cargo run --example 11_process_group
//!
//! Prints, and a line for cuda:0 where there is a GPU (feature `cuda`):
//!
//!     cpu: 4 ranks, sum 10, made 1 communicator for all and 1 for a pair
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

use std::collections::HashMap;
use std::time::Duration;

use rsccl::comm::DeviceStream;
use rsccl::error::Kind;
use rsccl::store::{AbortFlag, HashStore, Store, Wait, share_id};
use rsccl::types::{Rank, World};
use rsccl::{Communicator, Config, Error, ReduceOp, Result};

const WORLD: u32 = 4;
/// What init may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where tensors live: one communicator for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Device {
    Cpu,
    Cuda(u32),
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
    communicators: HashMap<String, Communicator>,
}

impl ProcessGroup<'_> {
    /// Sums `tensor` over all ranks.
    fn all_reduce(&mut self, device: Device, tensor: &mut [f32]) -> Result<()> {
        let world = World { rank: Rank::new(self.rank), size: WORLD };
        let comm = self.communicator(device.key(), world)?;
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

    fn send(&mut self, tensor: &[f32], to: u32) -> Result<()> {
        let (comm, peer) = self.pair(to)?;
        comm.send(tensor, peer)
    }

    fn recv(&mut self, tensor: &mut [f32], from: u32) -> Result<()> {
        let (comm, peer) = self.pair(from)?;
        comm.recv(tensor, peer)
    }

    /// The communicator of this rank and `other`, in which the lower one is rank 0, and the other's rank in it. The other
    /// ranks of the group know nothing of it.
    fn pair(&mut self, other: u32) -> Result<(&Communicator, u32)> {
        let (low, high) = (self.rank.min(other), self.rank.max(other));
        let world = World { rank: Rank::new(u32::from(self.rank == high)), size: 2 };
        let peer = u32::from(other == high);
        Ok((self.communicator(format!("{low}:{high}"), world)?, peer))
    }

    /// The communicator of a key, made when it is first asked for. Its rank 0 puts an id into the store under that key.
    fn communicator(&mut self, key: String, world: World) -> Result<&Communicator> {
        if !self.communicators.contains_key(&key) {
            let config = Config::default().with_socket_interfaces("lo").with_blocking(false);
            let config = config.with_init_timeout(PATIENCE);
            let wait = Wait::new(PATIENCE, &AbortFlag::new());
            let id = share_id(self.store, &key, world, || Communicator::unique_id(&config), &wait)?;
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
            Some(error) if error.kind() == Kind::InProgress => std::thread::yield_now(), // ... or give up: comm.abort("why")
            Some(error) => return Err(error),
            None => return Ok(()),
        }
    }
}

fn main() -> Result<()> {
    let store = HashStore::new();
    let mut devices = vec![Device::Cpu];
    devices.extend(DeviceStream::new(0).is_ok().then_some(Device::Cuda(0)));
    for device in devices {
        let reports = std::thread::scope(|scope| {
            let rank = |rank| {
                let store = &store;
                scope.spawn(move || train(device, &mut ProcessGroup { store, rank, communicators: HashMap::new() }))
            };
            let threads: Vec<_> = (0..WORLD).map(rank).collect();
            threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Result<Vec<_>>>()
        })?;
        println!("{}", reports[0]);
    }
    Ok(())
}

/// What every rank does: sums over all, and rank 0 hands the result to rank 3, which has it already.
fn train(device: Device, group: &mut ProcessGroup<'_>) -> Result<String> {
    let mut tensor = [group.rank as f32 + 1.0; 1000];
    group.all_reduce(device, &mut tensor)?;
    group.all_reduce(device, &mut [0.0; 10])?;
    let mut copy = [0.0; 1000];
    match group.rank {
        0 => group.send(&tensor, 3)?,
        3 => {
            group.recv(&mut copy, 0)?;
            assert_eq!(copy, tensor);
        }
        _ => {}
    }
    let pairs = group.communicators.keys().filter(|key| **key != device.key()).count();
    let (key, all) = (device.key(), group.communicators.len() - pairs);
    Ok(format!("{key}: {WORLD} ranks, sum {}, made {all} communicator for all and {pairs} for a pair", tensor[0]))
}
