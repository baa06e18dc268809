//! All channels of a system: those inside each domain and those between them, and the order in which each passes the
//! ranks of a communicator.

use std::collections::HashMap;

use crate::error::Result;
use crate::topo::graphs::{Graph, GraphPattern};
use crate::topo::layout::ChannelOrders;
use crate::topo::notes::Notes;
use crate::topo::paths::{PathKind, Paths};
use crate::topo::search::between::{self, Between, CrossNic, Hop};
use crate::topo::search::domain::{Domain, Ways};
use crate::topo::search::{self, Inside};
use crate::topo::system::{NodeId, System};
use crate::types::Rank;

/// NCCL's graph 0 is of rings and 1 of trees; 2 and on are of what switches do.
const FIRST_OF_SHARP: u32 = 2;

/// The channels of one domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainChannels {
    /// Its GPUs.
    pub gpus: Vec<NodeId>,
    /// Its rings; `None` of fewer than two GPUs.
    pub rings: Option<Inside>,
    /// Its chains, which are trees inside it.
    pub chains: Option<Inside>,
}

/// The channels of a system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemChannels {
    /// Inside each domain.
    pub domains: Vec<DomainChannels>,
    /// Between domains; `None` where there is one domain, or the reason why there is no channel.
    pub between: Option<std::result::Result<Between, String>>,
}

impl SystemChannels {
    /// Searches. Equal domains are searched once.
    pub fn search(system: &System, cross: CrossNic) -> SystemChannels {
        let domains = Domain::all(system);
        let mut found: Vec<DomainChannels> = Vec::with_capacity(domains.len());
        let mut firsts: Vec<(usize, DomainChannels)> = Vec::new();
        for (place, domain) in domains.iter().enumerate() {
            let known = firsts.iter().find(|(first, _)| domains[*first].part == domain.part);
            let local = known.map(|(_, local)| local.clone()).unwrap_or_else(|| {
                let gpus = domain.part.gpus();
                let rings = search::rings(&domain.part, &gpus);
                let chains = rings.as_ref().and_then(|rings| search::chains_of(&domain.part, &gpus, rings));
                let local = DomainChannels { gpus, rings, chains };
                firsts.push((place, local.clone()));
                local
            });
            let here = |nodes: &[NodeId]| -> Vec<NodeId> { nodes.iter().map(|id| domain.nodes[id.index()]).collect() };
            let global =
                |inside: Inside| Inside { orders: inside.orders.iter().map(|order| here(order)).collect(), ..inside };
            found.push(DomainChannels {
                gpus: here(&local.gpus),
                rings: local.rings.map(global),
                chains: local.chains.map(global),
            });
        }
        let order: Vec<usize> = (0..domains.len()).collect();
        let between = (domains.len() > 1).then(|| between::search(system, &order, cross));
        SystemChannels { domains: found, between }
    }

    /// The channels that graphs name inside each domain, without a search and with none between domains.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for a GPU that a domain does not have.
    pub fn of_graphs(system: &System, graphs: &[Graph]) -> Result<SystemChannels> {
        let bare = |domain: Domain| {
            let gpus = domain.part.gpus().into_iter().map(|gpu| domain.nodes[gpu.index()]).collect();
            DomainChannels { gpus, rings: None, chains: None }
        };
        let mut found = SystemChannels { domains: Domain::all(system).into_iter().map(bare).collect(), between: None };
        found.replace(system, graphs)?;
        Ok(found)
    }

    /// Puts the channels of a graph file in place of those that were found inside each domain; the notes say where the
    /// file promises more than the links carry, and what of it is not used: NCCL's graphs for SHARP and NVLink SHARP (2
    /// and on; it always dumps them, mostly empty), and a second graph of one kind.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for a GPU that a domain does not have.
    pub fn replace(&mut self, system: &System, graphs: &[Graph]) -> Result<Vec<String>> {
        let mut notes = Notes::default();
        let mut used: [Option<&Graph>; 2] = [None, None];
        for graph in graphs.iter().filter(|graph| !graph.channels.is_empty()) {
            let about = format!("graph {}", graph.id);
            let place = match graph.pattern {
                GraphPattern::Ring => 0,
                GraphPattern::Tree(_) if graph.id >= FIRST_OF_SHARP => {
                    notes.about(about, "this id is that of reductions in switches (SHARP), which are not built");
                    continue;
                }
                GraphPattern::Tree(_) => 1,
                GraphPattern::Other(pattern) => {
                    notes.about(about, format!("pattern {pattern} is not built"));
                    continue;
                }
            };
            match used[place] {
                None => used[place] = Some(graph),
                Some(first) => {
                    notes.about(about, format!("its kind of channels is that of graph {}: the first counts", first.id))
                }
            }
        }
        for (place, what) in ["ring", "tree"].into_iter().enumerate() {
            if used[place].is_none() {
                notes.add(format!("the graph file has no channel of a {what}: those that were found stay"));
            }
        }
        for domain in &mut self.domains {
            for graph in used.into_iter().flatten() {
                let carries = graph.carries(system, &domain.gpus)?;
                if let Some(carries) = carries.filter(|carries| *carries < graph.inside) {
                    notes.add(format!(
                        "graph {}: its channels are said to carry {} each; the links of this machine give them \
                         {carries}",
                        graph.id, graph.inside
                    ));
                }
                let width = carries.map_or(graph.inside, |carries| carries.min(graph.inside));
                let inside = Inside { orders: graph.orders(system, &domain.gpus)?, width };
                match graph.pattern {
                    GraphPattern::Ring => domain.rings = Some(inside),
                    GraphPattern::Tree(_) | GraphPattern::Other(_) => domain.chains = Some(inside),
                }
            }
        }
        Ok(notes.lines())
    }

    /// Domains whose GPUs no ring joins, each with two GPUs between which no way leads.
    pub fn gaps(&self, system: &System) -> Vec<String> {
        let apart = |gpus: &[NodeId]| {
            let mut pairs = gpus.iter().map(|from| {
                let ways = Paths::from(system, *from);
                let to = gpus.iter().find(|to| ways.to(system, **to).kind == PathKind::Dis)?;
                Some((*from, *to))
            });
            pairs.find_map(|pair| pair)
        };
        let mut gaps = Vec::new();
        for domain in self.domains.iter().filter(|domain| domain.gpus.len() > 1 && domain.rings.is_none()) {
            let count = domain.gpus.len();
            gaps.push(match apart(&domain.gpus) {
                Some((from, to)) => format!(
                    "no channel joins {count} GPUs, which share links: no way leads from {} to {}",
                    system.name(from),
                    system.name(to)
                ),
                None => format!("no channel joins {count} GPUs, which share links"),
            });
        }
        gaps
    }

    /// The ring and the tree of the first domain as NCCL dumps them, with NICs where channels leave it; `None` where
    /// there are no two GPUs to join.
    pub fn graphs(&self, system: &System) -> Option<[Graph; 2]> {
        if let Some(Ok(between)) = &self.between {
            return Some([
                Graph::between(system, &between.ring, GraphPattern::Ring),
                Graph::between(system, &between.tree, GraphPattern::Tree(3)),
            ]);
        }
        let domain = self.domains.first()?;
        let (rings, chains) = (domain.rings.as_ref()?, domain.chains.as_ref()?);
        let chains = Graph::inside(system, chains, GraphPattern::Tree(3));
        Some([Graph::inside(system, rings, GraphPattern::Ring), chains])
    }

    /// Whether an exchange of all GPUs with all crowds their links: see [`search::is_crowded`]. Of one domain alone:
    /// between several, data follow channels anyway.
    pub fn are_links_crowded(&self, system: &System) -> bool {
        match (&self.between, &self.domains[..]) {
            (None, [DomainChannels { gpus, rings: Some(rings), .. }]) => search::is_crowded(system, gpus, rings),
            _ => false,
        }
    }

    /// Whether trees carry long all-reduces of one domain quicker than rings: see [`search::are_trees_wider`].
    pub fn are_trees_wider(&self) -> bool {
        match (&self.between, &self.domains[..]) {
            (None, [DomainChannels { gpus, rings: Some(rings), chains: Some(chains) }]) => {
                search::are_trees_wider(rings, chains, gpus.len())
            }
            _ => false,
        }
    }

    /// The order in which channels pass the ranks that have these GPUs, in rank order. Ranks that share a GPU follow
    /// each other. `None` where there are no channels: a single GPU, or no way between domains.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where a channel of a graph file does not pass every rank once.
    pub fn orders(&self, gpus: &[NodeId]) -> Result<Option<ChannelOrders>> {
        let mut ranks: HashMap<NodeId, Vec<Rank>> = HashMap::new();
        for (gpu, rank) in gpus.iter().zip(0..) {
            ranks.entry(*gpu).or_default().push(Rank::new(rank));
        }
        let of = |gpus: &Vec<NodeId>| -> Vec<Rank> {
            gpus.iter().flat_map(|gpu| ranks.get(gpu).cloned().unwrap_or_default()).collect()
        };
        let (rings, chains) = match (&self.between, &self.domains[..]) {
            (Some(Ok(found)), _) => {
                let hops = |channel: &Vec<Hop>| channel.iter().map(|hop| of(&hop.gpus)).collect();
                let spell = |channels: &[Vec<Hop>]| -> Vec<Vec<Vec<Rank>>> { channels.iter().map(hops).collect() };
                (spell(&found.ring.channels), spell(&found.tree.channels))
            }
            (None, [DomainChannels { rings: Some(rings), chains: Some(chains), .. }]) => {
                let spell = |inside: &Inside| -> Vec<Vec<Vec<Rank>>> {
                    inside.orders.iter().map(|order| vec![of(order)]).collect()
                };
                (spell(rings), spell(chains))
            }
            _ => return Ok(None),
        };
        if rings.is_empty() || chains.is_empty() {
            return Ok(None);
        }
        ChannelOrders::new(gpus.len(), rings, chains).map(Some)
    }
}

/// For each of these GPUs the rail of the port that is nearest to it, where that port names one.
pub fn rails(system: &System, gpus: &[NodeId]) -> Vec<Option<u32>> {
    let domains = Domain::all(system);
    // Of equal domains the first is looked at: for each of its GPUs, the rail.
    let mut firsts: Vec<(usize, Vec<Option<u32>>)> = Vec::new();
    let mut of_gpu: HashMap<NodeId, Option<u32>> = HashMap::new();
    for (place, domain) in domains.iter().enumerate() {
        let known = firsts.iter().position(|(first, _)| domains[*first].part == domain.part);
        let known = known.unwrap_or_else(|| {
            firsts.push((place, rails_of(domain)));
            firsts.len() - 1
        });
        let global = domain.part.gpus().into_iter().map(|gpu| domain.nodes[gpu.index()]);
        of_gpu.extend(global.zip(firsts[known].1.iter().copied()));
    }
    gpus.iter().map(|gpu| of_gpu.get(gpu).copied().flatten()).collect()
}

fn rails_of(domain: &Domain) -> Vec<Option<u32>> {
    let ways = Ways::new(&domain.part);
    let rail = |gpu: usize| {
        let mut near = (0..ways.ports.len()).filter(|port| ways.near(*port).contains(&gpu));
        near.find_map(|port| ways.rails[port])
    };
    (0..ways.gpus.len()).map(rail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::graphs;
    use crate::topo::machines;
    use crate::topo::xml;

    /// NCCL dumps a graph for SHARP, empty mostly, behind the trees.
    #[test]
    fn an_empty_graph_takes_nothing_away() {
        let system = machines::system("dgx1v");
        let found = SystemChannels::search(&system, CrossNic::IfBetter);
        let text = graphs::write(&found.graphs(&system).unwrap());
        let row = |id: u32, pattern: u32, channels: &str| {
            format!(
                "<graph id='{id}' pattern='{pattern}' speedintra='10' speedinter='10' typeintra='NVL' typeinter='PIX'>\
                 {channels}</graph></graphs>"
            )
        };
        let with = |row: String| graphs::parse("f", &text.replace("</graphs>", &row)).unwrap();
        let chain = "<channel><gpu dev=\"0\"/><gpu dev=\"1\"/></channel>";
        let cases = [
            (row(2, 3, ""), None),
            (row(2, 3, chain), Some("graph 2: this id is that of reductions in switches (SHARP)")),
            (row(1, 1, chain), Some("graph 1: its kind of channels is that of graph 1: the first counts")),
            (row(3, 5, chain), Some("graph 3: pattern 5 is not built")),
        ];
        for (row, expected) in cases {
            let mut replaced = found.clone();
            let notes = replaced.replace(&system, &with(row)).unwrap();
            assert_eq!(replaced, found);
            assert_eq!(notes.len(), usize::from(expected.is_some()), "{notes:?}");
            assert!(expected.is_none_or(|start| notes[0].starts_with(start)), "{notes:?}");
        }
        // Of rings alone, the trees that were found stay.
        let mut rings = found.clone();
        let ring = &graphs::parse("f", &text).unwrap()[..1];
        assert_eq!(rings.replace(&system, ring).unwrap().len(), 1);
        assert_eq!(rings, found);
    }

    /// Two hosts of one NVLink clique, of which a GPU has lost its links: no ring, and the reason.
    #[test]
    fn a_gap_names_two_gpus() {
        let gpu = |host: u32, device: u32, links: &str| {
            format!(
                "<pci busid='000{host}:0{device}:00.0' class='0x030200' link_speed='32.0 GT/s PCIe' link_width='16'>\
                 <gpu dev='{device}' sm='100' gdr='1'>{links}</gpu></pci>"
            )
        };
        let switched = r#"<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>"#;
        let rack = |last: &str| {
            let of = |host: u32, links: &str| {
                format!(r#"<cpu host_hash="{host}" numaid="0">{}{}</cpu>"#, gpu(host, 0, switched), gpu(host, 1, links))
            };
            let text = format!("<system>{}{}</system>", of(1, switched), of(2, last));
            let system = System::new(&xml::parse("rack", &text).unwrap().0).unwrap();
            SystemChannels::search(&system, CrossNic::IfBetter).gaps(&system)
        };
        assert_eq!(rack(switched), [""; 0]);
        assert_eq!(
            rack(""),
            ["no channel joins 4 GPUs, which share links: no way leads from host 0 GPU 0 to host 1 GPU 1"]
        );
    }
}
