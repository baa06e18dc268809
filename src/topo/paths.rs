//! The best way between two devices: the widest, and of the widest the shortest. Links between two GPUs go before every
//! other way, however wide that is: peers reach each other's memory by them, and NCCL takes the way of fewest hops.

use std::collections::VecDeque;
use std::fmt;

use crate::topo::bandwidth::Bandwidth;
use crate::topo::system::{LinkKind, NodeId, NodeKind, System};

/// How far two devices are from each other, nearest first, in NCCL's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathKind {
    /// The same device.
    Loc,
    /// NVLink, direct or through switches.
    Nvl,
    /// NVLink through another GPU.
    Nvb,
    /// A coherent link between processor and GPU.
    C2c,
    /// At most one PCI bridge.
    Pix,
    /// Several PCI bridges, and no processor.
    Pxb,
    /// A coherent link, then PCI to a NIC of the same processor.
    P2c,
    /// A NIC by way of another GPU, which is nearer to it.
    Pxn,
    /// A processor's PCI root.
    Phb,
    /// The link between sockets or NUMA nodes.
    Sys,
    /// The network.
    Net,
    /// No way.
    Dis,
}

impl PathKind {
    /// All, nearest first.
    pub const ALL: [PathKind; 12] = [
        PathKind::Loc,
        PathKind::Nvl,
        PathKind::Nvb,
        PathKind::C2c,
        PathKind::Pix,
        PathKind::Pxb,
        PathKind::P2c,
        PathKind::Pxn,
        PathKind::Phb,
        PathKind::Sys,
        PathKind::Net,
        PathKind::Dis,
    ];

    /// NCCL's name.
    pub const fn name(self) -> &'static str {
        match self {
            PathKind::Loc => "LOC",
            PathKind::Nvl => "NVL",
            PathKind::Nvb => "NVB",
            PathKind::C2c => "C2C",
            PathKind::Pix => "PIX",
            PathKind::Pxb => "PXB",
            PathKind::P2c => "P2C",
            PathKind::Pxn => "PXN",
            PathKind::Phb => "PHB",
            PathKind::Sys => "SYS",
            PathKind::Net => "NET",
            PathKind::Dis => "DIS",
        }
    }
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A way from one device to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The devices on it, both ends included; empty where there is no way.
    pub nodes: Vec<NodeId>,
    /// How far that is.
    pub kind: PathKind,
    /// What it carries: its narrowest link, with what a processor's root takes of it.
    pub bandwidth: Bandwidth,
}

/// The ways from one device to all others.
#[derive(Debug, Clone)]
pub struct Paths {
    from: NodeId,
    /// For each node the way to it; empty if the node cannot be reached.
    ways: Vec<Vec<NodeId>>,
    /// The narrowest link of each.
    bandwidth: Vec<Bandwidth>,
}

/// Whether ways lead through GPUs, or by links of GPUs and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relay {
    No,
    OneGpu,
    /// By NVLinks alone, and through no GPU.
    LinksOnly,
}

impl Paths {
    /// The ways from `from` to everything else.
    ///
    /// Each bandwidth that a link has is tried, the widest first: of the ways by links of at least that bandwidth the
    /// shortest is taken. Of equally short ones, the one whose links stand first in the description is taken. A way
    /// leads through another GPU only where no NVLink leads to the end without it, because a GPU that passes data on
    /// has less bandwidth left for its own. Between two GPUs a way by NVLinks alone, which passes no other GPU, goes
    /// before ways by PCI Express and coherent links, also where it is the narrower one.
    pub fn from(system: &System, from: NodeId) -> Paths {
        let mut direct = Paths::over(system, from, Relay::No);
        direct.prefer_links_of_gpus(system);
        let mut paths = Paths::over(system, from, Relay::OneGpu);
        for place in 0..paths.ways.len() {
            let kind = |ways: &[Vec<NodeId>]| {
                if ways[place].len() < 2 { PathKind::Dis } else { kind_of(system, &ways[place]) }
            };
            if kind(&direct.ways) == PathKind::Nvl || kind(&paths.ways) != PathKind::Nvb {
                paths.ways[place].clone_from(&direct.ways[place]);
                paths.bandwidth[place] = direct.bandwidth[place];
            }
        }
        paths
    }

    /// In place of other ways to GPUs, those by NVLinks alone.
    fn prefer_links_of_gpus(&mut self, system: &System) {
        let is_gpu = |id: NodeId| matches!(system.node(id).kind, NodeKind::Gpu { .. });
        let others =
            |way: &[NodeId]| way.windows(2).any(|pair| link_kind(system, pair[0], pair[1]) != LinkKind::NvLink);
        let passed: Vec<NodeId> =
            system.ids().filter(|to| is_gpu(*to) && is_gpu(self.from) && others(&self.ways[to.index()])).collect();
        if passed.is_empty() {
            return;
        }
        let linked = Paths::over(system, self.from, Relay::LinksOnly);
        for to in passed {
            if linked.ways[to.index()].len() > 1 {
                self.ways[to.index()].clone_from(&linked.ways[to.index()]);
                self.bandwidth[to.index()] = linked.bandwidth[to.index()];
            }
        }
    }

    fn over(system: &System, from: NodeId, relay: Relay) -> Paths {
        let count = system.ids().count();
        let mut paths = Paths { from, ways: vec![Vec::new(); count], bandwidth: vec![Bandwidth(0); count] };
        paths.ways[from.index()] = vec![from];
        let mut widths: Vec<Bandwidth> = system
            .ids()
            .flat_map(|id| system.links(id))
            .map(|link| link.bandwidth)
            .filter(|width| width.0 > 0)
            .collect();
        widths.sort_unstable();
        widths.dedup();
        for width in widths.into_iter().rev() {
            paths.reach(system, width, relay);
        }
        paths
    }

    /// Breadth first over the links of at least `width`.
    fn reach(&mut self, system: &System, width: Bandwidth, relay: Relay) {
        let mut before: Vec<Option<NodeId>> = vec![None; self.ways.len()];
        let mut queue = VecDeque::from([Stop { node: self.from, by: None, gpus: 0 }]);
        before[self.from.index()] = Some(self.from);
        while let Some(stop) = queue.pop_front() {
            for link in system.links(stop.node) {
                let to = link.to;
                if link.bandwidth < width || before[to.index()].is_some() || !may_pass(system, stop, link.kind, relay) {
                    continue;
                }
                before[to.index()] = Some(stop.node);
                let is_gpu = matches!(system.node(to).kind, NodeKind::Gpu { .. });
                queue.push_back(Stop { node: to, by: Some(link.kind), gpus: stop.gpus + u32::from(is_gpu) });
                if self.ways[to.index()].is_empty() {
                    self.ways[to.index()] = walk_back(&before, self.from, to);
                    self.bandwidth[to.index()] = width;
                }
            }
        }
    }

    /// The way to `to`.
    pub fn to(&self, system: &System, to: NodeId) -> Path {
        if to == self.from {
            return Path { nodes: vec![to], kind: PathKind::Loc, bandwidth: Bandwidth::LOCAL };
        }
        let nodes = self.ways[to.index()].clone();
        if nodes.is_empty() {
            return Path { nodes, kind: PathKind::Dis, bandwidth: Bandwidth(0) };
        }
        let kind = kind_of(system, &nodes);
        let bandwidth = share_of_links(system, &nodes).into_iter().map(Share::alone).min().unwrap_or_default();
        Path { nodes, kind, bandwidth }
    }
}

fn walk_back(before: &[Option<NodeId>], from: NodeId, to: NodeId) -> Vec<NodeId> {
    let mut nodes = vec![to];
    let mut at = to;
    while at != from
        && let Some(previous) = before[at.index()]
    {
        nodes.push(previous);
        at = previous;
    }
    nodes.reverse();
    nodes
}

/// A node on the way, how it was reached, and how many GPUs lie between.
#[derive(Clone, Copy)]
struct Stop {
    node: NodeId,
    by: Option<LinkKind>,
    gpus: u32,
}

/// Data passes through bridges, switches and processors as it is. A GPU passes on only what comes by NVLink and leaves
/// by NVLink, and only one on a way does. Nothing passes through a NIC's port.
fn may_pass(system: &System, stop: Stop, leaves_by: LinkKind, relay: Relay) -> bool {
    if relay == Relay::LinksOnly && leaves_by != LinkKind::NvLink {
        return false;
    }
    match system.node(stop.node).kind {
        NodeKind::Gpu { .. } => match stop.by {
            None => true,
            Some(came_by) => {
                relay == Relay::OneGpu && came_by == LinkKind::NvLink && leaves_by == LinkKind::NvLink && stop.gpus <= 1
            }
        },
        NodeKind::Port { .. } => stop.by.is_none(),
        NodeKind::Pci | NodeKind::Switch | NodeKind::Cpu(_) | NodeKind::Nic => true,
    }
}

fn kind_of(system: &System, nodes: &[NodeId]) -> PathKind {
    let mut links = nodes.windows(2).map(|pair| link_kind(system, pair[0], pair[1]));
    let between = &nodes[1..nodes.len() - 1];
    let count = |is: fn(&NodeKind) -> bool| between.iter().filter(|id| is(&system.node(**id).kind)).count();
    let processors = count(|kind| matches!(kind, NodeKind::Cpu(_)));
    let bridges = count(|kind| matches!(kind, NodeKind::Pci));
    let ends_at_processor =
        [nodes[0], nodes[nodes.len() - 1]].iter().any(|id| matches!(system.node(*id).kind, NodeKind::Cpu(_)));
    if links.clone().any(|kind| kind == LinkKind::System) {
        return PathKind::Sys;
    }
    if links.clone().all(|kind| kind == LinkKind::NvLink) {
        let through_gpu = count(|kind| matches!(kind, NodeKind::Gpu { .. })) > 0;
        return if through_gpu { PathKind::Nvb } else { PathKind::Nvl };
    }
    if links.any(|kind| kind == LinkKind::Coherent) {
        return if processors > 0 { PathKind::P2c } else { PathKind::C2c };
    }
    if processors > 0 || ends_at_processor {
        return PathKind::Phb;
    }
    if bridges > 1 { PathKind::Pxb } else { PathKind::Pix }
}

fn link_kind(system: &System, from: NodeId, to: NodeId) -> LinkKind {
    widest_link(system, from, to).0
}

fn widest_link(system: &System, from: NodeId, to: NodeId) -> (LinkKind, Bandwidth) {
    let links = system.links(from).iter().filter(|link| link.to == to);
    links.max_by_key(|link| link.bandwidth).map_or((LinkKind::Pci, Bandwidth(0)), |link| (link.kind, link.bandwidth))
}

/// What a way takes of one of its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The link.
    pub link: (NodeId, NodeId),
    /// What the link carries.
    pub bandwidth: Bandwidth,
    /// Fifths of the way's own data that go over it: 5, or 6 where a processor's root makes more of it.
    pub fifths: u64,
}

impl Share {
    /// What a way gets of the link that has it to itself.
    pub fn alone(self) -> Bandwidth {
        Bandwidth(self.bandwidth.0 * 5 / self.fifths)
    }
}

/// The links of a way, with what it takes of each: between two GPUs through an Intel root, 6 bytes take the place of 5
/// on PCI.
pub fn share_of_links(system: &System, nodes: &[NodeId]) -> Vec<Share> {
    let is_gpu = |id: NodeId| matches!(system.node(id).kind, NodeKind::Gpu { .. });
    let taxes = |id: &NodeId| matches!(system.node(*id).kind, NodeKind::Cpu(processor) if processor.taxes_peers());
    let (Some(first), Some(last)) = (nodes.first(), nodes.last()) else { return Vec::new() };
    let taxed = is_gpu(*first) && is_gpu(*last) && nodes.iter().any(taxes);
    let share = |pair: &[NodeId]| {
        let (kind, bandwidth) = widest_link(system, pair[0], pair[1]);
        Share { link: (pair[0], pair[1]), bandwidth, fifths: if taxed && kind == LinkKind::Pci { 6 } else { 5 } }
    };
    nodes.windows(2).map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::xml;

    /// Links between two GPUs lie beside coherent links to the processor that are wider: peers use the former.
    #[test]
    fn links_of_gpus_go_before_wider_ways_by_coherent_links() {
        let of = |links: u32| {
            let gpu = |own: u32, other: u32| {
                let link = format!(r#"<xgmi target="0000:{other}0:00.0" count="{links}" tclass="0x120000"/>"#);
                let link = if links == 0 { String::new() } else { link };
                format!(
                    "<pci busid='0000:{own}0:00.0' class='0x120000' link_speed='32.0 GT/s PCIe' link_width='16'>\
                     <gpu dev='{}' gcn='gfx942' gdr='1'><c2c count='6' bw='70000'/>{link}</gpu></pci>",
                    own - 1
                )
            };
            let text = format!(r#"<system><cpu numaid="0" arch="arm64">{}{}</cpu></system>"#, gpu(1, 2), gpu(2, 1));
            let system = System::new(&xml::parse("two", &text).unwrap().0).unwrap();
            let gpus = system.gpus();
            let way = Paths::from(&system, gpus[0]).to(&system, gpus[1]);
            (way.kind, way.bandwidth.gigabytes())
        };
        assert_eq!([of(7), of(1)], [(PathKind::Nvl, 336.0), (PathKind::Nvl, 48.0)]);
        // Without links the coherent way is left.
        assert_eq!(of(0).0, PathKind::P2c);
    }

    /// A link of 36 GB/s goes before PCI Express of 48, and a way through another GPU does not.
    #[test]
    fn links_of_gpus_go_before_wider_pci_express() {
        let gpu = |own: u32, links: &str| {
            format!(
                "<pci busid='0000:1{own}:00.0' class='0x038000' link_speed='32 GT/s' link_width='16'>\
                 <gpu dev='{own}' sm='90' gcn='910' arch='38911' gdr='1'>{links}</gpu></pci>"
            )
        };
        let to = |other: u32| format!("<xgmi target='0000:1{other}:00.0' count='1' tclass='0x038000'/>");
        let gpus = [gpu(0, &to(1)), gpu(1, &(to(0) + &to(2))), gpu(2, &to(1))].concat();
        let cpu = "<cpu numaid='0' arch='x86_64' vendor='AuthenticAMD' familyid='175' modelid='1'>";
        let text = format!("<system>{cpu}{gpus}</cpu></system>");
        let system = System::new(&xml::parse("three", &text).unwrap().0).unwrap();
        let gpus = system.gpus();
        let way = |from: usize, to: usize| {
            let way = Paths::from(&system, gpus[from]).to(&system, gpus[to]);
            (way.kind, way.bandwidth.gigabytes())
        };
        assert_eq!((way(0, 1), way(2, 1)), ((PathKind::Nvl, 36.0), (PathKind::Nvl, 36.0)));
        assert_eq!(way(0, 2), (PathKind::Phb, 48.0));
    }
}
