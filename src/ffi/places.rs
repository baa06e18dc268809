//! Where ranks are, and the communicators of those places, on the way to C++.

use super::bridge::Place;
use super::{Comm, Failure, int_of};
use crate::comm::{MemoryUse, Placement};

pub(super) fn placement(comm: &Comm, place: &mut Place) -> *mut Failure {
    comm.on(|comm| {
        *place = place_of(comm.placement()?);
        Ok(())
    })
}

/// In the order of `rsccl::MemoryUse`; the GPU's number is one more than it is, and 0 where there is none.
pub(super) fn memory_use(comm: &Comm, held: &mut Vec<u64>) -> *mut Failure {
    comm.on(|comm| {
        let MemoryUse { arenas, rings, registered, windows, pinned, gpu, gpu_ordinal } = comm.memory()?;
        let number = gpu_ordinal.map_or(0, |gpu| u64::from(gpu) + 1);
        *held = vec![arenas, rings, registered, windows, pinned, gpu, number];
        Ok(())
    })
}

pub(super) fn on_my_host(comm: &Comm, child: &mut Comm) -> *mut Failure {
    comm.on(|comm| {
        child.0 = Some(comm.on_my_host()?);
        Ok(())
    })
}

pub(super) fn cross(comm: &Comm, child: &mut Comm) -> *mut Failure {
    comm.on(|comm| {
        child.0 = Some(comm.cross()?);
        Ok(())
    })
}

/// A placement as C++ reads it.
pub(super) fn place_of(found: Placement) -> Place {
    let device = found.device.as_ref();
    Place {
        printed: found.to_string(),
        host: int_of(found.host),
        hosts: int_of(found.hosts),
        local_rank: int_of(found.local_rank),
        local_size: int_of(found.local_size),
        leader_rank: found.leader_rank.map_or(-1, int_of),
        device: device.map_or(-1, |device| int_of(device.ordinal)),
        bus_id: device.map_or_else(String::new, |device| device.bus_id.clone()),
        shared_by: device.map_or(0, |device| int_of(device.shared_by)),
        host_name: found.host_name,
    }
}
