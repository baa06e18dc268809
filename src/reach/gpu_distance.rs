//! Which GPUs are too far apart to reach each other's memory, by `NCCL_P2P_LEVEL`.

use std::path::Path;

use crate::device::DeviceIdentity;
use crate::error::Result;
use crate::reach::this_host;
use crate::session::settings::searching::Searching;
use crate::topo::paths::Paths;
use crate::topo::reach::{self, Levels, Verdict};
use crate::topo::system::{NodeId, System};

/// This host's GPUs and the ways between them.
#[derive(Debug)]
pub(super) struct GpuDistances {
    system: System,
    /// By UUID.
    gpus: Vec<([u8; 16], NodeId)>,
    levels: Levels,
}

impl GpuDistances {
    /// Looks at this host; `None` where no level is set, and the driver alone decides.
    ///
    /// # Errors
    /// Where a topology file that settings name cannot be read, or is wrong.
    pub fn of(settings: &Searching) -> Result<Option<GpuDistances>> {
        let Some(peer) = settings.peer_level else { return Ok(None) };
        let host = this_host::look(Path::new("/"), settings.machine()?.map(|(machine, _)| machine));
        let system = System::new(&host.machine)?;
        let nodes = system.gpus();
        let at = |bus_id: &String| nodes.iter().copied().find(|id| system.node(*id).bus_id.as_ref() == Some(bus_id));
        let gpus = host.gpus.iter().filter_map(|(uuid, bus_id)| Some((*uuid, at(bus_id)?))).collect();
        Ok(Some(GpuDistances { system, gpus, levels: Levels { peer: Some(peer), direct: None } }))
    }

    /// Why these two may not reach each other's memory; `None` where they may, or one is not known here.
    pub fn forbids(&self, one: DeviceIdentity, other: DeviceIdentity) -> Option<String> {
        let node = |wanted: DeviceIdentity| self.gpus.iter().find(|(uuid, _)| *uuid == wanted.0).map(|(_, node)| *node);
        let way = Paths::from(&self.system, node(one)?).to(&self.system, node(other)?);
        match reach::peers(&self.system, &way, self.levels) {
            Verdict::Yes(_) => None,
            Verdict::No(reason) => Some(reason),
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::topo::machines;
    use crate::topo::paths::PathKind;

    /// What communicators forbid is what `rsccl topo --why` and `rsccl sim` say: for each machine, pair and level.
    #[test]
    fn tools_and_communicators_agree() {
        // Without a level nothing is looked at, and nothing is forbidden.
        let usual = Searching::read(&Config::default()).expect("the defaults");
        assert!(GpuDistances::of(&usual).expect("nothing to read").is_none());
        for machine in machines::ALL.iter().filter(|machine| **machine != "nvl72") {
            let system = machines::system(machine);
            let nodes = system.gpus();
            let gpus: Vec<([u8; 16], NodeId)> = (0..).zip(&nodes).map(|(number, node)| ([number; 16], *node)).collect();
            for peer in [None, Some(PathKind::Loc), Some(PathKind::Nvl), Some(PathKind::Pxb), Some(PathKind::Sys)] {
                let levels = Levels { peer, direct: None };
                let all = GpuDistances { system: system.clone(), gpus: gpus.clone(), levels };
                for (one, other) in gpus.iter().zip(&gpus[1..]) {
                    let forbidden =
                        peer.is_some() && all.forbids(DeviceIdentity(one.0), DeviceIdentity(other.0)).is_some();
                    let pair = reach::Pair { from: one.1, to: other.1, denied: None };
                    let told = reach::check_p2p(&system, pair, levels).access;
                    assert_eq!(told.is_yes(), !forbidden, "{machine}: {peer:?}: {told:?}");
                }
            }
        }
    }

    /// The bridged pairs of a machine may, at NVL; across sockets no two may, at PXB.
    #[test]
    fn a_level_forbids_what_is_farther() {
        let system = machines::system("a100bridge");
        let gpus = (0..).zip(system.gpus()).map(|(number, node)| ([number; 16], node)).collect();
        let mut all = GpuDistances { system, gpus, levels: Levels { peer: Some(PathKind::Nvl), direct: None } };
        let ask = |all: &GpuDistances, one: u8, other: u8| {
            all.forbids(DeviceIdentity([one; 16]), DeviceIdentity([other; 16])).is_none()
        };
        assert_eq!([ask(&all, 0, 1), ask(&all, 0, 2), ask(&all, 0, 7)], [true, false, false]);
        all.levels.peer = Some(PathKind::Sys);
        assert!(ask(&all, 0, 2) && ask(&all, 0, 7));
        all.levels.peer = Some(PathKind::Loc);
        assert!(!ask(&all, 0, 1) && ask(&all, 0, 99), "of a GPU that is not shown the driver decides");
    }
}
