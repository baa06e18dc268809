//! Which channels join the GPUs of a communicator.
//!
//! The first rank of each host describes its host, searches it, and tells all others both: looking at a host takes
//! time, and only its own ranks can. Everyone then has all descriptions. If there is one host, the channels are those
//! that its first rank has found. If there are several, every rank searches for the channels between them, from the
//! same descriptions and so with the same result: that takes 10 ms for 1,024 hosts of eight GPUs (`bench/topo.rs`),
//! less than to hand round what one rank has found.
//!
//! What cannot be described, because NVML is missing or does not know a GPU, has no channels; plans then follow the
//! order of ranks. What a file says wrongly is an error on all ranks.

use std::path::Path;

use crate::bootstrap::MAX_GATHER_BYTES;
use crate::config::Note;
use crate::device::DeviceIdentity;
use crate::error::{Error, Result};
use crate::log;
use crate::reach::this_host;
use crate::session::Session;
use crate::session::settings::searching::Searching;
use crate::sync::Wait;
use crate::sys::{float_mode, open};
use crate::topo::Topology;
use crate::topo::channels::{self, SystemChannels};
use crate::topo::description::Machine;
use crate::topo::graphs::{self, Graph};
use crate::topo::layout::{ChannelOrders, Layout};
use crate::topo::search::between::CrossNic;
use crate::topo::system::{NodeId, System};
use crate::topo::xml;
use crate::types::{Rank, World};
use crate::wire::{self, Reader, Writer};

/// The channels between the GPUs of a communicator's ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedGpus {
    /// In which order each channel passes the ranks.
    pub orders: ChannelOrders,
    /// The rail of each rank's nearest NIC.
    pub rails: Vec<Option<u32>>,
    /// What their links are like.
    pub links: JoinedLinks,
    /// The topology and the channels of its first host, as files have them.
    files: [String; 2],
}

/// What the links between the GPUs are like, as far as the choice of a way depends on it. Of one domain alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JoinedLinks {
    /// Whether an exchange of all with all crowds them.
    pub is_crowded: bool,
    /// Whether long all-reduces are quicker along trees than along rings.
    pub are_trees_wider: bool,
}

impl JoinedLinks {
    /// Of a system with these channels.
    pub fn of(found: &SystemChannels, system: &System) -> JoinedLinks {
        JoinedLinks { is_crowded: found.are_links_crowded(system), are_trees_wider: found.are_trees_wider() }
    }
}

impl JoinedGpus {
    /// Of a description, of which nobody writes files.
    pub fn described(orders: ChannelOrders, rails: Vec<Option<u32>>, links: JoinedLinks) -> JoinedGpus {
        JoinedGpus { orders, rails, links, files: Default::default() }
    }
}

/// Which long calls follow the channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnChannels {
    /// None: all ranks of the host go through its memory.
    None,
    /// All reach each other: those that would work in scratch, those from or to one rank, and all where they would
    /// crowd their links.
    Reached,
    /// All: some ranks' devices do not reach each other's memory, so that scratch would lie in the host's, or all are
    /// joined by links between their hosts.
    All,
}

/// What the first rank of a host tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum HostNews {
    /// Where its ranks' GPUs are plugged in, the host with these GPUs, and the channels inside it.
    Found { bus_ids: Vec<String>, machine: String, graphs: String },
    /// It does not see the GPUs of all ranks of its host.
    InPart,
    /// There are no channels, for this reason.
    Unknown(String),
    /// A file that settings name is wrong.
    Wrong(String),
}

/// Searches for the channels between the GPUs of `devices`, one for each rank. All ranks call it; `None` on all of
/// them where there is no channel to find. Channels pass hosts in the order of `layout`, where those of a switch follow
/// each other.
///
/// # Errors
/// Of the exchange; on all ranks where a file that a host's settings name cannot be read or is wrong.
pub fn find(
    session: &Session,
    (topology, layout): (&Topology, &Layout),
    devices: &[DeviceIdentity],
    wait: &Wait,
) -> Result<Option<JoinedGpus>> {
    let (me, settings) = (session.world.rank, &session.settings.searching);
    let number = topology.hosts().len();
    if devices.iter().all(|device| *device == devices[0]) {
        return Ok(None);
    }
    let local = topology.local_ranks(me);
    let is_first = local.first() == Some(&me);
    let news = is_first.then(|| {
        let uuids: Vec<[u8; 16]> = local.iter().map(|rank| devices[rank.index()].0).collect();
        describe((settings, number), me, &uuids)
            .unwrap_or_else(|error| HostNews::Wrong(error.message().to_owned()))
            .encode()
    });
    let mut told = session.bootstrap.all_gather(&news.unwrap_or_default(), wait)?;
    let in_part = |ranks: &[Rank]| matches!(HostNews::decode(&told[ranks[0].index()]), Ok(HostNews::InPart));
    if topology.hosts().iter().any(|ranks| in_part(ranks)) {
        // Where ranks may use their own GPUs alone, each tells what it sees.
        let own = in_part(local).then(|| {
            let news = describe_own((settings, number), me, devices[me.index()].0);
            news.unwrap_or_else(|error| HostNews::Wrong(error.message().to_owned())).encode()
        });
        let parts = session.bootstrap.all_gather(&own.unwrap_or_default(), wait)?;
        let hosts: Vec<&Vec<Rank>> = topology.hosts().iter().filter(|ranks| in_part(ranks)).collect();
        let fused: Vec<(usize, Vec<u8>)> = hosts
            .iter()
            .map(|ranks| Ok((ranks[0].index(), fuse(ranks, &parts, settings.cross)?.encode())))
            .collect::<Result<_>>()?;
        fused.into_iter().for_each(|(first, news)| told[first] = news);
    }
    let hosts = hosts_in_order(topology, layout);
    let joined = {
        // Every rank searches for itself, and all must find the same.
        let _mode = float_mode::standard();
        join(session.world, (&hosts, &told), settings.cross)?
    };
    if me == Rank::new(0) {
        settings.unused_graphs(number).iter().for_each(|unused| log::tell(unused));
        report(session, joined.as_ref());
    }
    // Rank 0 has logged the reason.
    Ok(joined.ok())
}

/// Looks at this host. What was assumed, and what looks wrong, is logged.
///
/// # Errors
/// Where a file cannot be read, or is wrong.
fn look(settings: &Searching, me: Rank) -> Result<this_host::ThisHost> {
    let (file, assumed) = settings.machine()?.unzip();
    let host = this_host::look(Path::new("/"), file);
    for note in assumed.iter().flatten().chain(&host.notes) {
        log::info!(Graph @ me, "this host: {note}");
    }
    for doubt in &host.doubts {
        log::warn!(Graph @ me, "this host: {doubt}");
    }
    Ok(host)
}

/// This host, for its ranks, whose GPUs have these UUIDs; one of so many hosts.
///
/// # Errors
/// Where a file cannot be read, or is wrong.
fn describe((settings, hosts): (&Searching, usize), me: Rank, uuids: &[[u8; 16]]) -> Result<HostNews> {
    let this_host::ThisHost { mut machine, gpus, .. } = look(settings, me)?;
    let bus_id = |uuid: &[u8; 16]| gpus.iter().find(|(own, _)| own == uuid).map(|(_, bus_id)| bus_id.clone());
    let Some(bus_ids) = uuids.iter().map(bus_id).collect::<Option<Vec<String>>>() else {
        return Ok(HostNews::InPart);
    };
    check_hosts(&machine)?;
    machine.keep_gpus(|bus_id| bus_ids.iter().any(|own| own == bus_id));
    let of_file = graphs_of_file(settings, hosts)?;
    let graphs = inside(&machine, &bus_ids, of_file.as_deref(), settings.cross)?;
    Ok(HostNews::Found { bus_ids, machine: xml::write(&machine), graphs })
}

/// The channels of the graph file, which counts on one host alone.
fn graphs_of_file(settings: &Searching, hosts: usize) -> Result<Option<Vec<Graph>>> {
    if hosts == 1 { settings.graphs() } else { Ok(None) }
}

/// The channels inside a host, those of a file in place of those that the search finds; empty where there are none.
///
/// # Errors
/// Where the file is not one of these GPUs.
fn inside(machine: &Machine, bus_ids: &[String], of_file: Option<&[Graph]>, cross: CrossNic) -> Result<String> {
    let system = System::new(machine)?;
    let mut found = SystemChannels::search(&system, cross);
    if let Some(graphs) = of_file {
        for note in found.replace(&system, graphs)? {
            log::say_once(&Note::Warning(format!("NCCL_GRAPH_FILE: {note}")));
        }
        found.orders(&places(&system, 0, bus_ids).unwrap_or_default())?;
    }
    Ok(found.graphs(&system).map_or_else(String::new, |graphs| graphs::write(&graphs)))
}

/// This host as one of its ranks sees it, whose GPU has this UUID; one of so many hosts. Its channels are those of the
/// graph file, if that counts.
///
/// # Errors
/// As [`describe`].
fn describe_own((settings, hosts): (&Searching, usize), me: Rank, uuid: [u8; 16]) -> Result<HostNews> {
    let this_host::ThisHost { machine, gpus, .. } = look(settings, me)?;
    let Some((_, bus_id)) = gpus.into_iter().find(|(own, _)| *own == uuid) else {
        return Ok(HostNews::Unknown("NVML does not show the GPUs of its ranks".to_owned()));
    };
    check_hosts(&machine)?;
    let graphs = graphs_of_file(settings, hosts)?.map_or_else(String::new, |graphs| graphs::write(&graphs));
    Ok(HostNews::Found { bus_ids: vec![bus_id], machine: xml::write(&machine), graphs })
}

fn check_hosts(machine: &Machine) -> Result<()> {
    if machine.hosts().len() > 1 {
        let message = "the topology file (NCCL_TOPO_FILE) describes several hosts: name one of a host";
        return Err(Error::invalid_argument(message));
    }
    Ok(())
}

/// What each rank of a host sees of it, as one. The channels inside it are searched for by all, unless the first rank
/// that has a graph file tells them.
///
/// # Errors
/// Where a rank has told nothing that can be read, or of a file that is wrong.
fn fuse(ranks: &[Rank], parts: &[Vec<u8>], cross: CrossNic) -> Result<HostNews> {
    let (mut bus_ids, mut machines, mut of_file) = (Vec::new(), Vec::new(), None);
    for rank in ranks {
        let broken = |error: Error| Error::remote(*rank, format!("what rank {rank} sees: {}", error.message()));
        match HostNews::decode(&parts[rank.index()]).map_err(broken)? {
            HostNews::Found { bus_ids: own, machine, graphs } => {
                bus_ids.extend(own.into_iter().take(1));
                if of_file.is_none() && !graphs.is_empty() {
                    of_file = Some(graphs::parse("graphs", &graphs).map_err(broken)?);
                }
                machines.push(xml::parse("topology", &machine).map_err(broken)?.0);
            }
            HostNews::Wrong(text) => return Err(Error::invalid_argument(format!("rank {rank}: {text}")).about(*rank)),
            HostNews::Unknown(reason) => return Ok(HostNews::Unknown(format!("rank {rank}: {reason}"))),
            HostNews::InPart => return Err(broken(Error::internal("it sees its GPUs in part"))),
        }
    }
    let mut machine = Machine::fused(machines);
    machine.keep_gpus(|bus_id| bus_ids.iter().any(|own| own == bus_id));
    let graphs = match of_file {
        Some(graphs) => inside(&machine, &bus_ids, Some(&graphs), cross)?,
        None => String::new(),
    };
    Ok(HostNews::Found { bus_ids, machine: xml::write(&machine), graphs })
}

/// The hosts that ranks are on, in the order of the layout. Its hosts are domains of memory: ranks of one host that
/// share none stand in several of them.
fn hosts_in_order<'t>(topology: &'t Topology, layout: &Layout) -> Vec<&'t [Rank]> {
    let mut hosts: Vec<&[Rank]> = Vec::new();
    for domain in layout.hosts() {
        let host = topology.local_ranks(domain[0]);
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts
}

/// The GPUs of a host at these places.
fn places(system: &System, host: u32, bus_ids: &[String]) -> Option<Vec<NodeId>> {
    let of_host = |id: &NodeId| system.node(*id).host == host;
    let gpus: Vec<NodeId> = system.gpus().into_iter().filter(of_host).collect();
    let at = |bus_id: &String| gpus.iter().copied().find(|id| system.node(*id).bus_id.as_ref() == Some(bus_id));
    bus_ids.iter().map(at).collect()
}

/// The channels, from what the first rank of each host has told; or the reason why there are none.
///
/// # Errors
/// Where a rank has told nothing that can be read, or of a file that is wrong.
fn join(
    world: World,
    (hosts, told): (&[&[Rank]], &[Vec<u8>]),
    cross: CrossNic,
) -> Result<std::result::Result<JoinedGpus, String>> {
    let (mut machines, mut all_bus_ids, mut of_first) = (Vec::new(), Vec::new(), String::new());
    for ranks in hosts {
        let first = ranks[0];
        let broken = |what: String| Error::remote(first, format!("what rank {first} tells of its host: {what}"));
        match HostNews::decode(&told[first.index()]).map_err(|error| broken(error.message().to_owned()))? {
            HostNews::Wrong(text) => return Err(Error::invalid_argument(format!("rank {first}: {text}")).about(first)),
            HostNews::InPart => return Ok(Err(format!("the host of rank {first}: seen in part"))),
            HostNews::Unknown(reason) => return Ok(Err(format!("the host of rank {first}: {reason}"))),
            HostNews::Found { bus_ids, .. } if bus_ids.len() != ranks.len() => {
                return Err(broken(format!("{} GPUs for {} ranks", bus_ids.len(), ranks.len())));
            }
            HostNews::Found { bus_ids, machine, graphs } => {
                let machine = xml::parse("topology", &machine).map_err(|error| broken(error.message().to_owned()))?.0;
                machines.push(machine);
                all_bus_ids.push(bus_ids);
                if machines.len() == 1 {
                    of_first = graphs;
                }
            }
        }
    }
    let machine = Machine::joined(machines);
    let channels = |system: &System| -> Result<(SystemChannels, Vec<NodeId>)> {
        let mut gpus = vec![NodeId(u32::MAX); world.ranks().len()];
        for ((ranks, bus_ids), host) in hosts.iter().zip(&all_bus_ids).zip(0..) {
            let found =
                places(system, host, bus_ids).ok_or_else(|| Error::internal("a description without its GPUs"))?;
            ranks.iter().zip(found).for_each(|(rank, gpu)| gpus[rank.index()] = gpu);
        }
        let found = match hosts.len() {
            1 if !of_first.is_empty() => SystemChannels::of_graphs(system, &graphs::parse("graphs", &of_first)?)?,
            _ => SystemChannels::search(system, cross),
        };
        Ok((found, gpus))
    };
    // What fails here fails alike on all ranks, and leaves plans the order of ranks.
    let joined = System::new(&machine).and_then(|system| {
        let (found, gpus) = channels(&system)?;
        let Some(orders) = found.orders(&gpus)? else {
            let gap = || found.gaps(&system).into_iter().next();
            let reason = found.between.as_ref().and_then(|between| between.as_ref().err().cloned()).or_else(gap);
            return Ok(Err(reason.unwrap_or_else(|| "no channel joins the GPUs".to_owned())));
        };
        let graphs = found.graphs(&system).map_or_else(String::new, |graphs| graphs::write(&graphs));
        let rails = channels::rails(&system, &gpus);
        let links = JoinedLinks::of(&found, &system);
        Ok(Ok(JoinedGpus { orders, rails, links, files: [xml::write(&machine), graphs] }))
    });
    Ok(joined.unwrap_or_else(|error| Err(error.message().to_owned())))
}

/// Logs the channels and writes the files that settings name.
fn report(session: &Session, joined: std::result::Result<&JoinedGpus, &String>) {
    let (me, settings) = (session.world.rank, &session.settings.searching);
    let joined = match joined {
        Ok(joined) => joined,
        Err(reason) => return log::info!(Graph @ me, "no channels between GPUs: {reason}"),
    };
    for (name, orders) in [("Channel", joined.orders.rings()), ("Chain", joined.orders.chains())] {
        for (number, order) in orders.iter().enumerate() {
            let ranks: Vec<String> = order.iter().flatten().map(|rank| rank.get().to_string()).collect();
            log::info!(Graph @ me, "{name} {number:02}/{:02} : {}", orders.len(), ranks.join(" "));
        }
    }
    let files =
        [(&settings.topo_dump_file, "NCCL_TOPO_DUMP_FILE"), (&settings.graph_dump_file, "NCCL_GRAPH_DUMP_FILE")];
    for ((path, variable), text) in files.into_iter().zip(&joined.files) {
        if let Some(Err(error)) = path.as_ref().map(|path| open::write(path, text.as_bytes())) {
            log::warn!(Graph @ me, "{variable} is not written: {error}");
        }
    }
}

impl HostNews {
    fn encode(self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            HostNews::Found { bus_ids, machine, graphs } => {
                writer.u8(FOUND).text(&machine).text(&graphs);
                bus_ids.iter().for_each(|bus_id| _ = writer.text(bus_id));
            }
            HostNews::InPart => _ = writer.u8(IN_PART),
            HostNews::Unknown(text) => _ = writer.u8(UNKNOWN).text(&text),
            HostNews::Wrong(text) => _ = writer.u8(WRONG).text(wire::cut(&text, MAX_REASON_BYTES)),
        }
        let told = writer.finish();
        if told.len() <= MAX_GATHER_BYTES {
            return told;
        }
        let length = told.len();
        HostNews::Unknown(format!("its description of {length} bytes is longer than {MAX_GATHER_BYTES}")).encode()
    }

    fn decode(bytes: &[u8]) -> Result<HostNews> {
        let mut reader = Reader::new(bytes, "a description of a host");
        match reader.u8()? {
            FOUND => {
                let (machine, graphs) = (reader.text(MAX_GATHER_BYTES)?, reader.text(MAX_GATHER_BYTES)?);
                let mut bus_ids = Vec::new();
                while !reader.rest().is_empty() {
                    bus_ids.push(reader.text(MAX_BUS_ID_BYTES)?);
                }
                Ok(HostNews::Found { bus_ids, machine, graphs })
            }
            IN_PART => Ok(HostNews::InPart),
            UNKNOWN => Ok(HostNews::Unknown(reader.text(MAX_REASON_BYTES)?)),
            WRONG => Ok(HostNews::Wrong(reader.text(MAX_REASON_BYTES)?)),
            other => Err(reader.malformed(&format!("kind {other}"))),
        }
    }
}

const FOUND: u8 = 1;
const UNKNOWN: u8 = 2;
const WRONG: u8 = 3;
const IN_PART: u8 = 4;
/// `00000000:00:00.0`
const MAX_BUS_ID_BYTES: usize = 32;
/// An error with the name of a file.
const MAX_REASON_BYTES: usize = 4 << 10;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::topo::machines;
    use crate::types::Algorithm;

    /// What the first rank of a host of this machine tells, where its ranks have these GPUs of it.
    fn told(name: &str, gpus: &[usize]) -> Vec<u8> {
        let (mut machine, _) = xml::parse(name, machines::text(name)).unwrap();
        let system = System::new(&machine).unwrap();
        let all: Vec<String> = system.gpus().iter().map(|gpu| system.node(*gpu).bus_id.clone().unwrap()).collect();
        let bus_ids: Vec<String> = gpus.iter().map(|gpu| all[*gpu].clone()).collect();
        machine.keep_gpus(|bus_id| bus_ids.iter().any(|own| own == bus_id));
        let system = System::new(&machine).unwrap();
        let graphs = SystemChannels::search(&system, CrossNic::IfBetter).graphs(&system);
        let graphs = graphs.map_or_else(String::new, |graphs| graphs::write(&graphs));
        HostNews::Found { bus_ids, machine: xml::write(&machine), graphs }.encode()
    }

    fn joined(hosts: &[u64], told: &[Vec<u8>]) -> Result<std::result::Result<JoinedGpus, String>> {
        let size = u32::try_from(hosts.len()).unwrap();
        let topology = Topology::new(hosts.iter().copied());
        let hosts: Vec<&[Rank]> = topology.hosts().iter().map(Vec::as_slice).collect();
        join(World { rank: Rank::new(0), size }, (&hosts, told), CrossNic::IfBetter)
    }

    /// Ranks on the GPUs of a cube mesh, in another order than that of the GPUs: each two that follow each other in a
    /// ring have a link.
    #[test]
    fn rings_pass_ranks_along_the_links_of_their_gpus() {
        let gpus = [5, 2, 7, 0, 3, 6, 1, 4];
        let mut all = vec![Vec::new(); 8];
        all[0] = told("dgx1v", &gpus);
        let found = joined(&[4; 8], &all).unwrap().unwrap();
        assert_eq!(found.orders.rings().len(), 6);
        let system = machines::system("dgx1v");
        let nodes = system.gpus();
        for ring in found.orders.rings() {
            let ring = &ring[0];
            for (place, rank) in ring.iter().enumerate() {
                let next = ring[(place + 1) % ring.len()];
                let [from, to] = [*rank, next].map(|rank| nodes[gpus[rank.index()]]);
                assert!(system.links(from).iter().any(|link| link.to == to), "{rank} to {next} in {ring:?}");
            }
        }
        // A rank for half of the GPUs each: the rings pass those alone.
        let mut half = vec![Vec::new(); 4];
        half[0] = told("dgx1v", &gpus[..4]);
        assert!(joined(&[4; 4], &half).unwrap().unwrap().orders.rings().iter().all(|ring| ring[0].len() == 4));
        // Two ranks on each GPU follow each other.
        let mut twice = vec![Vec::new(); 4];
        twice[0] = told("h100x8", &[1, 1, 6, 6]);
        let rings = joined(&[4; 4], &twice).unwrap().unwrap().orders;
        let passed = |ring: &Vec<Vec<Rank>>| ring[0].iter().map(|rank| rank.get()).collect::<Vec<u32>>();
        assert!(
            rings.rings().iter().all(|ring| [[0, 1, 2, 3], [2, 3, 0, 1]].iter().any(|pairs| passed(ring) == pairs))
        );
    }

    /// Two hosts whose ranks are dealt out in turn, of which the first ranks tell: four rings, one for each NIC.
    #[test]
    fn hosts_are_joined_by_their_nics() {
        let mut all = vec![Vec::new(); 16];
        all[..2].fill(told("p4d", &[0, 1, 2, 3, 4, 5, 6, 7]));
        let hosts: Vec<u64> = (0..16).map(|rank| rank % 2).collect();
        let found = joined(&hosts, &all).unwrap().unwrap();
        assert_eq!((found.orders.rings().len(), found.orders.chains().len()), (4, 4));
        for ring in found.orders.rings() {
            assert!(
                ring.iter().all(|host| host.len() == 8 && host.iter().all(|rank| rank.get() % 2 == host[0].get() % 2))
            );
        }
        let layout = crate::plan::Layout::of_hosts(Topology::new(hosts).hosts()).unwrap();
        assert_eq!(layout.with_channels(found.orders).unwrap().lanes_of(Algorithm::Tree), Some(8));
    }

    /// Four hosts of two switches, which rank 0 to 3 begin in turn: channels pass both hosts of a switch before they
    /// leave it.
    #[test]
    fn channels_pass_hosts_in_the_order_that_is_given() {
        let mut all = vec![Vec::new(); 8];
        all[..4].fill(told("h100x8", &[0, 4]));
        let topology = Topology::new((0..8).map(|rank| rank % 4));
        let hosts: Vec<&[Rank]> = [0, 2, 1, 3].map(|host| &topology.hosts()[host][..]).to_vec();
        let found = join(World { rank: Rank::new(0), size: 8 }, (&hosts, &all), CrossNic::IfBetter).unwrap().unwrap();
        for channel in found.orders.rings().iter().chain(found.orders.chains()) {
            let passed: Vec<u32> = channel.iter().map(|host| host[0].get() % 4).collect();
            assert_eq!(passed, [0, 2, 1, 3]);
        }
    }

    /// Two hosts whose ranks share no memory with each other: the layout has a domain for each rank.
    #[test]
    fn hosts_of_many_domains_are_joined_once() {
        let topology = Topology::new((0..4).map(|rank| rank / 2));
        let domains = Layout::of_hosts(&[3, 0, 1, 2].map(|rank| vec![Rank::new(rank)])).unwrap();
        let hosts = hosts_in_order(&topology, &domains);
        assert_eq!(hosts, [&topology.hosts()[1][..], &topology.hosts()[0][..]]);
        let mut all = vec![Vec::new(); 4];
        [0, 2].into_iter().for_each(|first| all[first] = told("h100x8", &[0, 4]));
        let found = join(World { rank: Rank::new(0), size: 4 }, (&hosts, &all), CrossNic::IfBetter).unwrap().unwrap();
        assert!(domains.with_channels(found.orders).is_ok());
    }

    #[test]
    fn what_a_rank_cannot_tell_of_its_host_names_that_rank() {
        let good = || told("dgx1v", &[0]);
        let ranks = [4, 5].map(Rank::new);
        let parts = |last: HostNews| [vec![Vec::new(); 4], vec![good(), last.encode()]].concat();
        let wrong =
            fuse(&ranks, &parts(HostNews::Wrong("t.xml:3: no tag".to_owned())), CrossNic::IfBetter).err().unwrap();
        assert_eq!((wrong.peer(), wrong.message()), (Some(5), "rank 5: t.xml:3: no tag"));
        let unknown = parts(HostNews::Unknown("no NVML".to_owned()));
        let HostNews::Unknown(reason) = fuse(&ranks, &unknown, CrossNic::IfBetter).unwrap() else {
            panic!("rank 5 knows nothing");
        };
        assert_eq!(reason, "rank 5: no NVML");
    }

    /// Ranks that see their own GPUs alone, each of which tells its part: rings are those of the whole.
    #[test]
    fn ranks_that_see_their_own_gpus_tell_them_together() {
        let system = machines::system("dgx1v");
        let bus_ids: Vec<String> = system.gpus().iter().map(|gpu| system.node(*gpu).bus_id.clone().unwrap()).collect();
        let part = |own: &String| {
            let (mut machine, _) = xml::parse("dgx1v", machines::text("dgx1v")).unwrap();
            machine.cpus.iter_mut().for_each(|cpu| {
                crate::topo::description::walk_mut(&mut cpu.devices, &mut |device| {
                    if let crate::topo::description::Function::Gpu(gpu) = &mut device.function
                        && device.bus_id != *own
                    {
                        gpu.links.clear();
                    }
                });
            });
            HostNews::Found { bus_ids: vec![own.clone()], machine: xml::write(&machine), graphs: String::new() }
                .encode()
        };
        let parts: Vec<Vec<u8>> = bus_ids.iter().map(part).collect();
        let ranks: Vec<Rank> = (0..8).map(Rank::new).collect();
        let mut all = vec![Vec::new(); 8];
        all[0] = fuse(&ranks, &parts, CrossNic::IfBetter).unwrap().encode();
        let fused = joined(&[4; 8], &all).unwrap().unwrap();
        all[0] = told("dgx1v", &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(fused.orders, joined(&[4; 8], &all).unwrap().unwrap().orders);
        let broken = fuse(&ranks[..1], &[vec![9]], CrossNic::IfBetter).unwrap_err();
        assert_eq!((broken.kind(), broken.peer()), (Kind::Remote, Some(0)));
        // A graph file that one of them names counts, though none of them sees all GPUs: here one of the six rings.
        let mut file = SystemChannels::search(&system, CrossNic::IfBetter).graphs(&system).unwrap();
        file[0].channels.truncate(1);
        let HostNews::Found { bus_ids: own, machine, .. } = HostNews::decode(&parts[3]).unwrap() else {
            panic!("rank 3 has described its GPU");
        };
        let mut parts = parts;
        parts[3] = HostNews::Found { bus_ids: own, machine, graphs: graphs::write(&file) }.encode();
        all[0] = fuse(&ranks, &parts, CrossNic::IfBetter).unwrap().encode();
        let rings = joined(&[4; 8], &all).unwrap().unwrap().orders;
        assert_eq!((fused.orders.rings().len(), rings.rings().len()), (6, 1));
    }

    #[test]
    fn a_graph_file_of_one_host_is_named_where_there_are_several() {
        let searching = Searching::read(&crate::Config::default().with_graph_file("/etc/graph.xml")).unwrap();
        let told = searching.unused_graphs(3).unwrap();
        assert!(
            told.starts_with("NCCL_GRAPH_FILE=\"/etc/graph.xml\" is not used") && told.contains("are on 3"),
            "{told}"
        );
        assert_eq!(searching.unused_graphs(1), None);
        assert!(graphs_of_file(&searching, 3).unwrap().is_none(), "it is not even read");
        assert!(graphs_of_file(&searching, 1).is_err());
    }

    #[test]
    fn what_is_missing_or_wrong_is_told() {
        let unknown = HostNews::Unknown("no NVML".to_owned()).encode();
        assert_eq!(joined(&[1, 1], &[unknown, Vec::new()]).unwrap(), Err("the host of rank 0: no NVML".to_owned()));
        let wrong = HostNews::Wrong("f.xml:3:1: <pci> has no attribute busid".to_owned()).encode();
        let error = joined(&[1, 2], &[told("h100x8", &[0]), wrong]).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (Kind::InvalidArgument, Some(1)));
        assert!(error.message().contains("f.xml:3:1"), "{error}");
        for broken in [Vec::new(), vec![9], told("h100x8", &[0])] {
            assert_eq!(joined(&[1, 1], &[broken, Vec::new()]).unwrap_err().kind(), Kind::Remote);
        }
        let long = HostNews::Found { bus_ids: Vec::new(), machine: "x".repeat(1 << 17), graphs: String::new() };
        assert!(matches!(HostNews::decode(&long.encode()).unwrap(), HostNews::Unknown(_)));
    }
}
