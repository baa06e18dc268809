//! Processors as a terrain: ranks on cores, which share caches, NUMA nodes and sockets.

use super::Costs;
use super::terrain::{Course, DomainLinks, Labour, Mover, Terrain, places};
use crate::topo::layout::RankPlace;
use crate::types::{Rank, TransportKind};

/// A machine whose ranks are bound to cores.
#[derive(Debug, Clone, PartialEq)]
pub struct CoreMachine {
    /// The core of each rank: its socket, NUMA node and last-level cache.
    pub places: Vec<RankPlace>,
    /// Bytes that a NUMA node's memory reads and writes again in a microsecond.
    pub memory_bytes_per_us: f64,
    /// Bytes that go from one socket to another in a microsecond, in one direction.
    pub socket_bytes_per_us: f64,
    /// Microseconds that a cache line takes: inside a last-level cache, inside a socket, between sockets.
    pub line_us: [f64; 3],
}

impl CoreMachine {
    /// A machine of `sockets` sockets, each of NUMA nodes, each of last-level caches, each of cores, with a rank on
    /// every core.
    pub fn new([sockets, nodes, caches, cores]: [u64; 4]) -> CoreMachine {
        let count = sockets * nodes * caches * cores;
        let place = |core: u64| {
            let cache = core / cores;
            let node = cache / caches;
            let (cache, numa, socket) = (Some(cache), Some(node), Some(node / nodes));
            RankPlace { cache, numa, socket, ..RankPlace::default() }
        };
        CoreMachine {
            places: (0..count).map(place).collect(),
            memory_bytes_per_us: MEMORY_BYTES_PER_US,
            socket_bytes_per_us: SOCKET_BYTES_PER_US,
            line_us: LINE_US,
        }
    }

    /// The terrain on which `groups` of ranks map each other's memory, and talk to other groups through slots. Every
    /// rank is in one group, and a group is the whole machine or one socket.
    pub fn terrain(&self, groups: &[Vec<Rank>], costs: &Costs) -> Terrain {
        let domains = (0..groups.len()).collect();
        let mover = Mover::Core {
            bytes_per_us: costs.copy_bytes_per_us,
            cached_bytes_per_us: costs.cached_bytes_per_us,
            cache_bytes: costs.cache_bytes,
            reduction_factor: costs.reduction_factor(),
        };
        Terrain {
            classes: groups.iter().map(|ranks| self.links(ranks)).collect(),
            domains,
            places: places(groups),
            ranks: groups.to_vec(),
            labour: Labour { step_us: costs.step_us, message_us: 0.0, flag_us: costs.flag_us, mover },
            network_latency_us: costs.link(TransportKind::Shm).latency_us + self.line_us[2],
        }
    }

    /// The links of a group: the memory of its NUMA nodes, then both directions between its sockets and the others.
    fn links(&self, ranks: &[Rank]) -> DomainLinks {
        let place = |rank: Rank| &self.places[rank.index()];
        let mut nodes: Vec<Option<u64>> = ranks.iter().map(|rank| place(*rank).numa).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut sockets: Vec<Option<u64>> = ranks.iter().map(|rank| place(*rank).socket).collect();
        sockets.sort_unstable();
        sockets.dedup();
        let memory = |rank: Rank| nodes.binary_search(&place(rank).numa).unwrap_or_default();
        let leaves = |rank: Rank| nodes.len() + 2 * sockets.binary_search(&place(rank).socket).unwrap_or_default();
        let mut bytes_per_us = vec![self.memory_bytes_per_us; nodes.len()];
        bytes_per_us.extend(std::iter::repeat_n(self.socket_bytes_per_us, 2 * sockets.len()));
        let way = |from: Rank, to: Rank| {
            let (one, other) = (place(from), place(to));
            let mut links = vec![(memory(from), 1.0)];
            if one.socket != other.socket {
                links.extend([(leaves(from), 1.0), (leaves(to) + 1, 1.0)]);
            }
            let line = match (one.cache == other.cache, one.socket == other.socket) {
                (true, _) => self.line_us[0],
                (false, true) => self.line_us[1],
                (false, false) => self.line_us[2],
            };
            // Bytes of a cache do not pass through memory.
            if one.cache == other.cache {
                links.clear();
            }
            Course { links, latency_us: line }
        };
        let near = ranks.iter().flat_map(|from| ranks.iter().map(move |to| way(*from, *to))).collect();
        let through = |rank: &Rank| {
            let out = Course { links: vec![(memory(*rank), 1.0), (leaves(*rank), 1.0)], latency_us: 0.0 };
            (out, Course { links: vec![(leaves(*rank) + 1, 1.0)], latency_us: 0.0 })
        };
        DomainLinks {
            bytes_per_us,
            ends: Vec::new(),
            seats: ranks.len(),
            maps: true,
            network_bytes_per_us: self.socket_bytes_per_us,
            near,
            to_ports: ranks.iter().map(through).collect(),
            rails: vec![None],
            used: vec![vec![0]; ranks.len()],
        }
    }
}

/// Eight channels of DDR5-4800 are 307 GB/s; a byte that is read and written again passes twice, and eight tenths are
/// reached.
const MEMORY_BYTES_PER_US: f64 = 120_000.0;
/// Three xGMI or UPI links between two sockets carry some 100 GB/s in each direction.
const SOCKET_BYTES_PER_US: f64 = 100_000.0;
/// A line of a core's cache takes some 25 ns inside one last-level cache, 100 ns across a socket's fabric, 200 ns to
/// the other socket: as core-to-core measurements of present servers show.
const LINE_US: [f64; 3] = [0.025, 0.1, 0.2];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Count, Limits, Plan, Spec, Windows};
    use crate::sync::primitive::Arc;
    use crate::topo::layout::{Layout, Level};
    use crate::tune::{Folding, plans, simulate};
    use crate::types::{Algorithm, Collective, Elements, Protocol, World};

    /// Microseconds of an all-reduce of `elements` elements by groups of a level.
    fn time_us(machine: &CoreMachine, level: Level, (algorithm, elements): (Algorithm, u64)) -> f64 {
        let layout = Layout::new(&machine.places);
        let groups: Vec<Vec<Rank>> = layout.domains(level).into_iter().map(<[Rank]>::to_vec).collect();
        let size = u32::try_from(layout.size()).unwrap();
        let terrain = machine.terrain(&groups, &Costs::default());
        let spec = |rank| Spec {
            collective: Collective::AllReduce,
            world: World { rank, size },
            root: Rank::new(0),
            count: Count::Each(Elements(elements)),
            in_place: false,
            algorithm,
            protocol: Protocol::Simple,
            windows: Windows::User,
            layout: Arc::new(Layout::of_hosts(&groups).unwrap()),
            limits: Limits { slot: Elements(1 << 15), slots: 8, scratch: Elements(1 << 20), channels: 2 },
        };
        let plans = plans(&terrain, Folding::Exact, |rank| Plan::build(&spec(rank)));
        simulate(plans, 4, (&terrain, Folding::Exact)).unwrap().time.as_secs_f64() * 1e6
    }

    /// If each socket is a group, data crosses between sockets once. Otherwise every rank fetches it across for itself.
    #[test]
    fn groups_by_socket_spare_the_link_between_sockets() {
        for (name, machine) in
            [("2 x 32 cores", CoreMachine::new([2, 1, 4, 8])), ("192 cores", CoreMachine::new([2, 4, 3, 8]))]
        {
            let layout = Layout::new(&machine.places);
            assert_eq!(layout.domains(Level::Socket).len(), 2, "{name}");
            let large = 4 << 20;
            let flat = time_us(&machine, Level::Host, (Algorithm::Direct, large));
            let by_socket = time_us(&machine, Level::Socket, (Algorithm::Ring, large));
            println!("{name}, 16 MiB: {flat:.0} us as one group, {by_socket:.0} us by sockets");
            assert!(by_socket < 0.95 * flat, "{name}: {flat} {by_socket}");
        }
    }

    #[test]
    fn ranks_of_a_cache_stand_together() {
        let machine = CoreMachine::new([2, 4, 3, 8]);
        let layout = Layout::new(&machine.places);
        assert_eq!(
            (layout.size(), layout.domains(Level::Numa).len(), layout.domains(Level::Cache).len()),
            (192, 8, 24)
        );
        assert_eq!(layout.shared(Rank::new(0), Rank::new(7)), Level::Cache);
        assert_eq!(layout.shared(Rank::new(0), Rank::new(8)), Level::Numa);
        assert_eq!(layout.shared(Rank::new(0), Rank::new(191)), Level::Host);
    }
}
