//! All channels of a system: those inside each domain and those between them, and the order in which each passes the
//! ranks of a communicator.

use std::collections::HashMap;

use crate::error::Result;
use crate::topo::graphs::{Graph, GraphPattern};
use crate::topo::layout::ChannelOrders;
use crate::topo::search::between::{self, Between, CrossNic, Hop};
use crate::topo::search::domain::{Domain, Ways};
use crate::topo::search::{self, Inside};
use crate::topo::system::{NodeId, System};
use crate::types::Rank;

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
    /// file promises more than the links carry.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for a GPU that a domain does not have.
    pub fn replace(&mut self, system: &System, graphs: &[Graph]) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        for domain in &mut self.domains {
            for graph in graphs {
                let carries = graph.carries(system, &domain.gpus)?;
                if let Some(carries) = carries.filter(|carries| *carries < graph.inside) {
                    notes.push(format!(
                        "graph {}: its channels are said to carry {} each; the links of this machine give them \
                         {carries}",
                        graph.id, graph.inside
                    ));
                }
                let width = carries.map_or(graph.inside, |carries| carries.min(graph.inside));
                let inside = Inside { orders: graph.orders(system, &domain.gpus)?, width };
                match graph.pattern {
                    GraphPattern::Ring => domain.rings = Some(inside),
                    GraphPattern::Tree(_) => domain.chains = Some(inside),
                    GraphPattern::Other(pattern) => {
                        notes.push(format!("graph {}: pattern {pattern} is not built", graph.id));
                    }
                }
            }
        }
        notes.dedup();
        Ok(notes)
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
