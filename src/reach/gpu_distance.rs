//! How far apart GPUs of this host are, where `NCCL_P2P_LEVEL` asks.

use std::path::Path;

use crate::device::DeviceIdentity;
use crate::error::Result;
use crate::reach::this_host;
use crate::session::settings::searching::Searching;
use crate::topo::paths::{PathKind, Paths};
use crate::topo::system::{NodeId, System};

/// This host's GPUs and the ways between them.
#[derive(Debug)]
pub(super) struct GpuDistances {
    system: System,
    /// By UUID.
    gpus: Vec<([u8; 16], NodeId)>,
}

impl GpuDistances {
    /// Looks at this host.
    ///
    /// # Errors
    /// Where a topology file that settings name cannot be read, or is wrong.
    pub fn of(settings: &Searching) -> Result<GpuDistances> {
        let host = this_host::look(Path::new("/"), settings.machine()?.map(|(machine, _)| machine));
        let system = System::new(&host.machine)?;
        let nodes = system.gpus();
        let at = |bus_id: &String| nodes.iter().copied().find(|id| system.node(*id).bus_id.as_ref() == Some(bus_id));
        let gpus = host.gpus.iter().filter_map(|(uuid, bus_id)| Some((*uuid, at(bus_id)?))).collect();
        Ok(GpuDistances { system, gpus })
    }

    /// How far apart two GPUs are; `None` where one is not known here, and the driver alone decides.
    pub fn kind(&self, one: DeviceIdentity, other: DeviceIdentity) -> Option<PathKind> {
        let node = |wanted: DeviceIdentity| self.gpus.iter().find(|(uuid, _)| *uuid == wanted.0).map(|(_, node)| *node);
        Some(Paths::from(&self.system, node(one)?).to(&self.system, node(other)?).kind)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::topo::machines;

    #[test]
    fn bridged_gpus_are_nearer_than_those_of_other_sockets() {
        let system = machines::system("a100bridge");
        let gpus = (0..).zip(system.gpus()).map(|(number, node)| ([number; 16], node)).collect();
        let all = GpuDistances { system, gpus };
        let kind = |one: u8, other: u8| all.kind(DeviceIdentity([one; 16]), DeviceIdentity([other; 16]));
        assert_eq!([kind(0, 1), kind(0, 7)], [Some(PathKind::Nvl), Some(PathKind::Sys)]);
        assert_eq!(kind(0, 99), None, "of a GPU that is not shown the driver decides");
    }
}
