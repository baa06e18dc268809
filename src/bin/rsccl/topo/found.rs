//! The channels of a machine: searched for, or taken from a graph file.

use rsccl::internals::topo::graphs::{Graph, GraphPattern};
use rsccl::internals::topo::search::between::{self, Between, CrossNic};
use rsccl::internals::topo::search::domain::Domain;
use rsccl::internals::topo::search::{self, Inside};
use rsccl::internals::topo::system::{NodeId, System};
use rsccl::{Error, Result};

/// The channels of one domain.
#[derive(Debug, Clone)]
pub(crate) struct OfDomain {
    pub(crate) gpus: Vec<NodeId>,
    pub(crate) rings: Option<Inside>,
    pub(crate) chains: Option<Inside>,
}

/// The channels of a machine.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) domains: Vec<OfDomain>,
    /// What stands before a line about each domain: nothing where there is one.
    pub(crate) names: Vec<String>,
    /// Between domains; `None` where there is one domain, or a reason why there is no channel.
    pub(crate) between: Option<std::result::Result<Between, String>>,
}

impl Found {
    /// Searches. Equal domains are searched once.
    pub(crate) fn search(system: &System, cross: CrossNic) -> Found {
        let domains = Domain::all(system);
        let mut found: Vec<OfDomain> = Vec::with_capacity(domains.len());
        let mut firsts: Vec<(usize, OfDomain)> = Vec::new();
        for (place, domain) in domains.iter().enumerate() {
            let known = firsts.iter().find(|(first, _)| domains[*first].part == domain.part);
            let local = known.map(|(_, local)| local.clone()).unwrap_or_else(|| {
                let gpus = domain.part.gpus();
                let rings = search::rings(&domain.part, &gpus);
                let chains = search::chains_inside(&domain.part, &gpus);
                let local = OfDomain { gpus, rings, chains };
                firsts.push((place, local.clone()));
                local
            });
            let global = |inside: Inside| Inside {
                orders: inside.orders.iter().map(|order| here(domain, order)).collect(),
                ..inside
            };
            found.push(OfDomain {
                gpus: here(domain, &local.gpus),
                rings: local.rings.map(global),
                chains: local.chains.map(global),
            });
        }
        let order: Vec<usize> = (0..domains.len()).collect();
        let between = (domains.len() > 1).then(|| between::search(system, &order, cross));
        Found { names: names(system, &found), domains: found, between }
    }

    /// Puts the channels of a graph file in place of those that were found inside each domain; the notes say where the
    /// file promises more than the links carry.
    pub(crate) fn replace(&mut self, system: &System, graphs: &[Graph]) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        for domain in &mut self.domains {
            for graph in graphs {
                let carries = graph.carries(system, &domain.gpus)?;
                if let Some(carries) = carries.filter(|carries| *carries < graph.inside) {
                    notes.push(format!(
                        "graph {}: its channels are said to carry {} each; the links of this machine give them {carries}",
                        graph.id, graph.inside
                    ));
                }
                let width = carries.map_or(graph.inside, |carries| carries.min(graph.inside));
                let inside = Inside { orders: graph.orders(system, &domain.gpus)?, width };
                match graph.pattern {
                    GraphPattern::Ring => domain.rings = Some(inside),
                    GraphPattern::Tree(_) => domain.chains = Some(inside),
                    GraphPattern::Other(pattern) => {
                        notes.push(format!("graph {}: pattern {pattern} is not built", graph.id))
                    }
                }
            }
        }
        notes.dedup();
        Ok(notes)
    }

    /// As NCCL dumps them: the ring and the tree of the first domain, with NICs where channels leave it.
    pub(crate) fn graphs(&self, system: &System) -> Result<Vec<Graph>> {
        if let Some(Ok(between)) = &self.between {
            return Ok(vec![
                Graph::between(system, &between.ring, GraphPattern::Ring),
                Graph::between(system, &between.tree, GraphPattern::Tree(3)),
            ]);
        }
        let domain = self.domains.first().and_then(|domain| Some((domain.rings.as_ref()?, domain.chains.as_ref()?)));
        let (rings, chains) =
            domain.ok_or_else(|| Error::invalid_argument("--dump-graph: this machine has no two GPUs to join"))?;
        Ok(vec![Graph::inside(system, rings, GraphPattern::Ring), Graph::inside(system, chains, GraphPattern::Tree(3))])
    }
}

fn here(domain: &Domain, nodes: &[NodeId]) -> Vec<NodeId> {
    nodes.iter().map(|id| domain.nodes[id.index()]).collect()
}

fn names(system: &System, domains: &[OfDomain]) -> Vec<String> {
    let name = |domain: &OfDomain| {
        let mut hosts: Vec<u32> = domain.gpus.iter().map(|gpu| system.node(*gpu).host).collect();
        hosts.dedup();
        match (domains.len(), &hosts[..]) {
            (1, _) => String::new(),
            (_, [host]) => format!("host {host}: "),
            (_, hosts) => format!("hosts {} to {}: ", hosts[0], hosts[hosts.len() - 1]),
        }
    };
    domains.iter().map(name).collect()
}
