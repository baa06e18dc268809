//! Who is near whom, as a tree of domains of any depth: what plans take their groups and their order from.
//!
//! ```text
//!   system ─ switch group ─ NVLink clique ─ host ─ socket ─ NUMA node ─ cache ─ ranks
//! ```
//!
//! A level is left out if it neither joins nor divides anything. A clique stands above the hosts that it spans, and
//! below the host that is split into several. Where a clique spans hosts of which one is split, no tree can show it
//! whole: it is cut at the hosts.
//!
//! Domains stand in the order of their first ranks, inside their parents: so hosts of one switch group follow each
//! other, and a ring over the hosts in this order enters and leaves each group once.

mod orders;

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::topo::Topology;
use crate::topo::system::{Link, LinkKind, NodeId, NodeKind, System};
use crate::types::Rank;

pub use orders::{ChannelOrder, ChannelOrders, SearchedLane};

/// What the ranks of a domain share, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Everything.
    System,
    /// A switch of the network, or a group of switches: groups may stand in groups.
    SwitchGroup,
    /// NVLink switches.
    Clique,
    /// A host.
    Host,
    /// A socket.
    Socket,
    /// A NUMA node.
    Numa,
    /// A last-level cache.
    Cache,
}

/// Where a rank is, by ids that are equal for ranks that share something.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankPlace {
    /// The switch groups above its host, outermost first.
    pub switches: Vec<u64>,
    /// Its NVLink clique: of cluster UUID and clique id; `None` where its GPU has no switch, or it has no GPU.
    pub clique: Option<u64>,
    /// Its host.
    pub host: u64,
    /// Its socket on the host, where it is bound to one.
    pub socket: Option<u64>,
    /// Its NUMA node on the host, where it is bound to one.
    pub numa: Option<u64>,
    /// Its last-level cache on the host, where it is bound to one.
    pub cache: Option<u64>,
}

/// A domain: ranks that share something, and the domains in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// What they share.
    pub level: Level,
    /// All ranks of it, domain by domain.
    pub ranks: Vec<Rank>,
    /// The domains in it; empty where nothing parts its ranks.
    pub groups: Vec<Group>,
}

/// The tree of domains of a communicator, and what plans take from it: hosts, the teams that a hierarchy joins, and,
/// where the links between ranks are known, the order in which each channel passes the ranks.
///
/// # Examples
/// ```
/// # #[cfg(feature = "internals")] {
/// use rsccl::internals::plan::Layout;
/// use rsccl::types::Rank;
///
/// let hosts = [vec![0, 1, 2, 3, 4], vec![5]].map(|host| host.into_iter().map(Rank::new).collect());
/// let layout = Layout::of_hosts(&hosts)?.with_teams_of(3);
/// let sizes: Vec<usize> = layout.teams().iter().map(Vec::len).collect();
/// assert_eq!((layout.hosts().len(), sizes), (2, vec![2, 3, 1]));
/// # }
/// # Ok::<(), rsccl::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: Group,
    /// For each rank, the places of its domains, from the root's groups down.
    paths: Paths,
    hosts: Vec<Vec<Rank>>,
    teams: Vec<Vec<Rank>>,
    channels: ChannelOrders,
}

/// The places of ranks in the tree. Ranks of one innermost domain have one path together.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Paths {
    /// Those of the innermost domains, in the order of the tree.
    domains: Vec<Vec<(Level, usize)>>,
    /// For each rank the number of its innermost domain.
    of_ranks: Vec<usize>,
}

impl Paths {
    fn of(&self, rank: Rank) -> &[(Level, usize)] {
        &self.domains[self.of_ranks[rank.index()]]
    }
}

/// How many domains a rank is in, for the room that is made: a host, a socket, a NUMA node.
const USUAL_DEPTH: usize = 3;

impl Layout {
    /// The layout of ranks at these places, in rank order.
    #[doc(hidden)]
    pub fn new(places: &[RankPlace]) -> Layout {
        let cliques = CliquesAndHosts::new(places);
        // One list of all ranks' keys, and where each begins: every rank of ten thousand makes this for all of them.
        let (mut keys, mut begins) = (Vec::with_capacity(USUAL_DEPTH * places.len()), Vec::with_capacity(places.len()));
        for place in places {
            begins.push(keys.len());
            cliques.add_key(place, &mut keys);
        }
        let end = |rank: Rank| begins.get(rank.index() + 1).copied().unwrap_or(keys.len());
        let ranks: Vec<Rank> = (0..).map(Rank::new).take(places.len()).collect();
        Layout::of(Level::System, ranks, &|rank| &keys[begins[rank.index()]..end(rank)])
    }

    /// The layout of hosts, if nothing but the hosts is known.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the hosts do not have each rank once, from 0 on, or one has none.
    pub fn of_hosts(hosts: &[Vec<Rank>]) -> Result<Layout> {
        let mut ranks = hosts.concat();
        ranks.sort_unstable();
        if !ranks.iter().copied().eq((0..).map(Rank::new).take(ranks.len())) || hosts.iter().any(Vec::is_empty) {
            let size = ranks.len();
            return Err(Error::invalid_argument(format!("the hosts {hosts:?} do not have each of {size} ranks once")));
        }
        Ok(Layout::of_checked(hosts))
    }

    /// The layout of a topology's hosts. `places` says, in rank order, where the ranks are inside their hosts; the
    /// hosts in `places` are ignored. A host hangs on the switches that its first rank tells: settings may name them to
    /// some ranks only.
    pub(crate) fn of_topology(topology: &Topology, mut places: Vec<RankPlace>) -> Layout {
        for (host, ranks) in (0..).zip(topology.hosts()) {
            let switches = places[ranks[0].index()].switches.clone();
            for rank in ranks {
                let place = &mut places[rank.index()];
                place.host = host;
                place.switches.clone_from(&switches);
            }
        }
        Layout::new(&places)
    }

    /// The layout of hosts that have each rank once.
    pub(crate) fn of_checked(hosts: &[Vec<Rank>]) -> Layout {
        let size = hosts.iter().map(Vec::len).sum();
        let mut keys = vec![Vec::new(); size];
        for (host, ranks) in (0..).zip(hosts) {
            ranks.iter().for_each(|rank| keys[rank.index()] = vec![(Level::Host, host)]);
        }
        Layout::of(Level::System, hosts.concat(), &|rank| &keys[rank.index()])
    }

    /// The layout of ranks that have these GPUs, in rank order: hosts and cliques as the graph shows them. NUMA nodes
    /// part only GPUs without NVLink or xGMI, whose way to each other leads past the processors.
    #[doc(hidden)]
    pub fn of_gpus(system: &System, gpus: &[NodeId]) -> Layout {
        let place = |gpu: &NodeId| {
            let node = system.node(*gpu);
            let linked = |link: &&Link| link.kind == LinkKind::NvLink && link.to != *gpu;
            let links = system.links(*gpu).iter().filter(linked);
            let switch = links.clone().find(|link| system.node(link.to).kind == NodeKind::Switch);
            let alone = links.count() == 0;
            RankPlace {
                host: u64::from(node.host),
                clique: switch.map(|link| u64::from(link.to.0)),
                numa: alone.then_some(u64::from(node.numa)),
                ..RankPlace::default()
            }
        };
        Layout::new(&gpus.iter().map(place).collect::<Vec<_>>())
    }

    fn of<'k>(level: Level, ranks: Vec<Rank>, key: &dyn Fn(Rank) -> &'k [(Level, u64)]) -> Layout {
        let mut paths = Paths { domains: Vec::new(), of_ranks: vec![0; ranks.len()] };
        let root = group(level, ranks, 0, key);
        number(&root, &mut Vec::new(), &mut paths);
        let mut domains = Vec::new();
        collect(&root, Level::Host, &mut domains);
        let hosts: Vec<Vec<Rank>> = domains.into_iter().map(|host| host.ranks.clone()).collect();
        Layout { root, paths, teams: hosts.clone(), hosts, channels: ChannelOrders::default() }
    }

    /// The same layout, whose teams have at most `most` ranks. A host that has more is cut between the domains in it,
    /// and where a domain has more and nothing parts it, into parts of nearly one size.
    #[must_use]
    pub fn with_teams_of(self, most: usize) -> Layout {
        let mut hosts = Vec::new();
        collect(&self.root, Level::Host, &mut hosts);
        let teams = hosts.into_iter().flat_map(|host| cut(host, most.max(1))).collect();
        Layout { teams, ..self }
    }

    /// The outermost domain, with all ranks.
    #[doc(hidden)]
    pub const fn root(&self) -> &Group {
        &self.root
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.paths.of_ranks.len()
    }

    /// The ranks of each domain of a level; ranks that are in none are left out. For `Host` that is every rank.
    #[doc(hidden)]
    pub fn domains(&self, level: Level) -> Vec<&[Rank]> {
        let mut found = Vec::new();
        collect(&self.root, level, &mut found);
        found.into_iter().map(|group| &group.ranks[..]).collect()
    }

    /// The ranks of each host, hosts of one switch group after each other.
    pub fn hosts(&self) -> &[Vec<Rank>] {
        &self.hosts
    }

    /// The ranks of each team: those of a host, or of a part of one. A hierarchy works inside teams, and then between
    /// them.
    pub fn teams(&self) -> &[Vec<Rank>] {
        &self.teams
    }

    /// The innermost level that two ranks share.
    ///
    /// # Panics
    /// Where a rank is not of this layout.
    #[doc(hidden)]
    pub fn shared(&self, one: Rank, other: Rank) -> Level {
        let paths = self.paths.of(one).iter().zip(self.paths.of(other));
        paths.take_while(|(one, other)| one == other).last().map_or(Level::System, |((level, _), _)| *level)
    }

    /// How many ranks every host has, if all have as many.
    pub fn even(&self) -> Option<usize> {
        size_of_each(&self.hosts)
    }
}

fn size_of_each(groups: &[Vec<Rank>]) -> Option<usize> {
    let first = groups.first()?.len();
    groups.iter().all(|ranks| ranks.len() == first).then_some(first)
}

/// The teams of a domain, of at most `most` ranks.
fn cut(domain: &Group, most: usize) -> Vec<Vec<Rank>> {
    let ranks = domain.ranks.len();
    if ranks <= most {
        return vec![domain.ranks.clone()];
    }
    if domain.groups.is_empty() {
        let parts = ranks.div_ceil(most);
        let edge = |part: usize| ranks * part / parts;
        return (0..parts).map(|part| domain.ranks[edge(part)..edge(part + 1)].to_vec()).collect();
    }
    // The fewest teams, with the smallest largest team: all have one size if the domains allow that.
    let largest = domain.groups.iter().map(|group| group.ranks.len()).max().unwrap_or(most);
    let fewest = packed(domain, most).len();
    let least = (largest..most).find(|size| packed(domain, *size).len() == fewest).unwrap_or(most);
    let team = |pack: Vec<&Group>| match pack[..] {
        [one] => cut(one, most),
        _ => vec![pack.iter().flat_map(|group| group.ranks.iter().copied()).collect()],
    };
    packed(domain, least).into_iter().flat_map(team).collect()
}

/// The domains in a domain, neighbours together up to `most` ranks; one that has more stands alone.
fn packed(domain: &Group, most: usize) -> Vec<Vec<&Group>> {
    let mut packs: Vec<Vec<&Group>> = Vec::new();
    let mut held = 0;
    for group in &domain.groups {
        let ranks = group.ranks.len();
        match packs.last_mut() {
            Some(pack) if held + ranks <= most => pack.push(group),
            _ => {
                packs.push(vec![group]);
                held = 0;
            }
        }
        held += ranks;
    }
    packs
}

fn group<'k>(level: Level, ranks: Vec<Rank>, depth: usize, key: &dyn Fn(Rank) -> &'k [(Level, u64)]) -> Group {
    let mut parts: Vec<((Level, u64), Vec<Rank>)> = Vec::new();
    let mut places: HashMap<(Level, u64), usize> = HashMap::new();
    let mut whole = true;
    let mut before: Option<((Level, u64), usize)> = None;
    for rank in &ranks {
        match key(*rank).get(depth) {
            Some(id) => {
                // Mostly the ranks of a domain follow each other.
                let known = before.filter(|(other, _)| other == id).map(|(_, place)| place);
                let place = known.unwrap_or_else(|| *places.entry(*id).or_insert(parts.len()));
                before = Some((*id, place));
                if place == parts.len() {
                    parts.push((*id, Vec::new()));
                }
                parts[place].1.push(*rank);
            }
            None => whole = false,
        }
    }
    if !whole || parts.is_empty() {
        return Group { level, ranks, groups: Vec::new() };
    }
    // The level of hosts is always kept, so that every rank has one. Another level is left out if it does not divide
    // anything.
    if let [((of, _), _)] = &parts[..]
        && *of != Level::Host
    {
        return group(level, ranks, depth + 1, key);
    }
    let groups: Vec<Group> = parts.into_iter().map(|((level, _), ranks)| group(level, ranks, depth + 1, key)).collect();
    let ranks = groups.iter().flat_map(|group| group.ranks.iter().copied()).collect();
    Group { level, ranks, groups }
}

fn number(of: &Group, path: &mut Vec<(Level, usize)>, paths: &mut Paths) {
    if of.groups.is_empty() {
        of.ranks.iter().for_each(|rank| paths.of_ranks[rank.index()] = paths.domains.len());
        paths.domains.push(path.clone());
    }
    for (place, group) in of.groups.iter().enumerate() {
        path.push((group.level, place));
        number(group, path, paths);
        path.pop();
    }
}

fn collect<'g>(of: &'g Group, level: Level, found: &mut Vec<&'g Group>) {
    if of.level == level {
        found.push(of);
        return;
    }
    of.groups.iter().for_each(|group| collect(group, level, found));
}

/// Which cliques span hosts, and which hosts are split.
struct CliquesAndHosts {
    /// For each clique its hosts.
    hosts: HashMap<u64, Vec<u64>>,
    /// For each host its cliques.
    cliques: HashMap<u64, Vec<Option<u64>>>,
}

impl CliquesAndHosts {
    fn new(places: &[RankPlace]) -> CliquesAndHosts {
        let mut found = CliquesAndHosts { hosts: HashMap::new(), cliques: HashMap::new() };
        for place in places {
            let cliques = found.cliques.entry(place.host).or_default();
            if !cliques.contains(&place.clique) {
                cliques.push(place.clique);
            }
            if let Some(clique) = place.clique {
                let hosts = found.hosts.entry(clique).or_default();
                if !hosts.contains(&place.host) {
                    hosts.push(place.host);
                }
            }
        }
        found
    }

    /// Adds the domains of a rank, outermost first.
    fn add_key(&self, place: &RankPlace, key: &mut Vec<(Level, u64)>) {
        let whole = |host: &u64| self.cliques.get(host).is_none_or(|cliques| cliques.len() == 1);
        let hosts = place.clique.and_then(|clique| self.hosts.get(&clique));
        let spans = hosts.is_some_and(|hosts| hosts.len() > 1 && hosts.iter().all(whole));
        let split = place.clique.is_some() && !whole(&place.host);
        key.extend(place.switches.iter().map(|switch| (Level::SwitchGroup, *switch)));
        if let (Some(clique), true) = (place.clique, spans) {
            key.push((Level::Clique, clique));
        }
        key.push((Level::Host, place.host));
        if let (Some(clique), true) = (place.clique, split) {
            key.push((Level::Clique, clique));
        }
        let inner = [(Level::Socket, place.socket), (Level::Numa, place.numa), (Level::Cache, place.cache)];
        key.extend(inner.into_iter().filter_map(|(level, id)| Some((level, id?))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::{machines, xml};
    use proptest::prelude::*;

    fn ranks(numbers: &[u32]) -> Vec<Rank> {
        numbers.iter().copied().map(Rank::new).collect()
    }

    fn shown(group: &Group) -> String {
        if group.groups.is_empty() {
            let ranks: Vec<String> = group.ranks.iter().map(|rank| rank.get().to_string()).collect();
            return format!("{:?}({})", group.level, ranks.join(" "));
        }
        let groups: Vec<String> = group.groups.iter().map(shown).collect();
        format!("{:?}[{}]", group.level, groups.join(" "))
    }

    fn on(host: u64) -> RankPlace {
        RankPlace { host, ..RankPlace::default() }
    }

    #[test]
    fn todays_hosts_are_a_tree_of_one_level() {
        let layout = Layout::of_hosts(&[ranks(&[0, 2]), ranks(&[1, 3])]).unwrap();
        assert_eq!(shown(layout.root()), "System[Host(0 2) Host(1 3)]");
        assert_eq!(layout.hosts(), [ranks(&[0, 2]), ranks(&[1, 3])]);
        assert_eq!((layout.even(), layout.size()), (Some(2), 4));
        assert_eq!(layout.shared(Rank::new(0), Rank::new(2)), Level::Host);
        assert_eq!(layout.shared(Rank::new(0), Rank::new(1)), Level::System);
        let by_ids = Layout::new(&[on(7), on(9), on(7), on(9)]);
        assert_eq!(by_ids, layout);
    }

    #[test]
    fn hosts_of_a_switch_follow_each_other() {
        let at = |switch: u64, host: u64| RankPlace { switches: vec![switch], ..on(host) };
        let layout = Layout::new(&[at(1, 1), at(2, 2), at(1, 3), at(2, 4), at(1, 1)]);
        assert_eq!(shown(layout.root()), "System[SwitchGroup[Host(0 4) Host(2)] SwitchGroup[Host(1) Host(3)]]");
        assert_eq!(layout.hosts(), [ranks(&[0, 4]), ranks(&[2]), ranks(&[1]), ranks(&[3])]);
        assert_eq!(layout.shared(Rank::new(0), Rank::new(2)), Level::SwitchGroup);
        assert_eq!(layout.even(), None);
    }

    #[test]
    fn a_host_hangs_on_the_switches_of_its_first_rank() {
        let topology = Topology::new([1, 1, 2, 2]);
        let places = [vec![7], vec![], vec![], vec![7]].map(|switches| RankPlace { switches, ..RankPlace::default() });
        let layout = Layout::of_topology(&topology, places.to_vec());
        assert_eq!(layout.hosts(), topology.hosts());
    }

    #[test]
    fn a_clique_spans_hosts_or_splits_one() {
        let at = |clique: u64, host: u64| RankPlace { clique: Some(clique), ..on(host) };
        let two_racks = Layout::new(&[at(1, 1), at(1, 2), at(2, 3), at(2, 4)]);
        assert_eq!(shown(two_racks.root()), "System[Clique[Host(0) Host(1)] Clique[Host(2) Host(3)]]");
        let split = Layout::new(&[at(1, 1), at(1, 1), at(2, 1), at(2, 1)]);
        assert_eq!(shown(split.root()), "System[Host[Clique(0 1) Clique(2 3)]]");
        // Clique 1 has half of host 1 and all of host 2.
        let both = Layout::new(&[at(1, 1), at(2, 1), at(1, 2)]);
        assert_eq!(shown(both.root()), "System[Host[Clique(0) Clique(1)] Host(2)]");
        assert_eq!(both.domains(Level::Host).len(), 2);
        // One rack is all there is: nothing parts its hosts but themselves.
        let rack = Layout::new(&[at(1, 1), at(1, 2)]);
        assert_eq!(shown(rack.root()), "System[Host(0) Host(1)]");
    }

    #[test]
    fn a_graph_tells_hosts_and_cliques() {
        let of = |machine: &str, hosts: u32| {
            let (machine, _) = xml::parse(machine, machines::text(machine)).unwrap();
            let system = System::new(&machine.repeated(hosts)).unwrap();
            shown(Layout::of_gpus(&system, &system.gpus()).root())
        };
        assert_eq!(of("h100x8", 2), "System[Host(0 1 2 3 4 5 6 7) Host(8 9 10 11 12 13 14 15)]");
        assert_eq!(of("dgx1v", 1), "System[Host(0 1 2 3 4 5 6 7)]");
        // Its links lead from each GPU to itself.
        assert_eq!(of("ncv4-gen4", 1), "System[Host[Numa(0) Numa(1) Numa(2) Numa(3)]]");
        let rack = of("nvl72", 2);
        assert!(rack.starts_with("System[Clique[Host(0 1 2 3) Host(4 5 6 7)"), "{rack}");
        assert_eq!(rack.matches("Clique").count(), 2, "{rack}");
    }

    #[test]
    fn processors_part_a_host() {
        let at = |socket, cache| RankPlace { socket: Some(socket), numa: Some(socket), cache: Some(cache), ..on(5) };
        let layout = Layout::new(&[at(0, 0), at(0, 1), at(1, 2), at(1, 2)]);
        assert_eq!(shown(layout.root()), "System[Host[Socket[Cache(0) Cache(1)] Socket(2 3)]]");
        assert_eq!(layout.shared(Rank::new(0), Rank::new(1)), Level::Socket);
        // A rank that is bound to nothing leaves the host in one piece.
        let unbound = Layout::new(&[at(0, 0), on(5), at(1, 2)]);
        assert_eq!(shown(unbound.root()), "System[Host(0 1 2)]");
    }

    #[test]
    fn hosts_are_cut_into_teams_between_their_domains() {
        let sizes = |layout: &Layout| layout.teams().iter().map(Vec::len).collect::<Vec<_>>();
        let host = |size: u32| Layout::of_hosts(&[(0..size).map(Rank::new).collect()]).unwrap();
        assert_eq!(sizes(&host(64)), [64]);
        assert_eq!(sizes(&host(64).with_teams_of(64)), [64]);
        assert_eq!(sizes(&host(65).with_teams_of(64)), [32, 33]);
        assert_eq!(sizes(&host(96).with_teams_of(32)), [32; 3]);
        // Two sockets of three caches: of four ranks, four and one, and three each.
        let caches = [4, 4, 1, 3, 3, 3];
        let at = |cache: u64| RankPlace { socket: Some(cache / 3), cache: Some(cache), ..on(1) };
        let places: Vec<RankPlace> = (0..).zip(caches).flat_map(|(cache, ranks)| vec![at(cache); ranks]).collect();
        let layout = Layout::new(&places);
        assert_eq!(sizes(&layout.clone().with_teams_of(18)), [18]);
        assert_eq!(sizes(&layout.clone().with_teams_of(9)), [9, 9]);
        assert_eq!(sizes(&layout.clone().with_teams_of(5)), [4, 5, 3, 3, 3]);
        assert_eq!(sizes(&layout.clone().with_teams_of(3)), [2, 2, 2, 2, 1, 3, 3, 3]);
        // Where domains allow it, teams are of one size, and none spans sockets.
        let at = |rank: u64| RankPlace { socket: Some(rank / 48), cache: Some(rank / 8), ..on(1) };
        let even = Layout::new(&(0..96).map(at).collect::<Vec<_>>()).with_teams_of(32);
        assert_eq!(sizes(&even), [24; 4]);
        assert_eq!(sizes(&layout.clone().with_teams_of(1)), [1; 18]);
        assert_eq!(layout.with_teams_of(5).teams().concat().len(), 18);
    }

    #[test]
    fn hosts_have_each_rank_once() {
        for wrong in [vec![ranks(&[0, 1]), ranks(&[1])], vec![ranks(&[1, 2])], vec![ranks(&[0]), ranks(&[])]] {
            Layout::of_hosts(&wrong).unwrap_err();
        }
    }

    proptest! {
        /// Whatever the places: every rank is on one host, hosts are those of the places, and domains hold their
        /// groups' ranks.
        #[test]
        fn every_rank_is_on_its_host(places in proptest::collection::vec(
            (0u64..3, proptest::option::of(0u64..4), 0u64..6, proptest::option::of(0u64..2)), 1..24))
        {
            // A host hangs on one switch.
            let places: Vec<RankPlace> = places
                .into_iter()
                .map(|(_, clique, host, socket)| RankPlace { switches: vec![host % 3], clique, host, socket, ..RankPlace::default() })
                .collect();
            let layout = Layout::new(&places);
            let mut seen = vec![0; places.len()];
            for host in layout.hosts() {
                for rank in host {
                    seen[rank.index()] += 1;
                    prop_assert_eq!(places[rank.index()].host, places[host[0].index()].host);
                }
            }
            prop_assert!(seen.iter().all(|times| *times == 1));
            let mut hosts: Vec<u64> = places.iter().map(|place| place.host).collect();
            hosts.sort_unstable();
            hosts.dedup();
            prop_assert_eq!(layout.hosts().len(), hosts.len());
        }
    }
}
