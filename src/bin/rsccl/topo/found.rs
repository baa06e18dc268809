//! The channels of a machine, with what stands before each line about them.

use rsccl::internals::topo::channels::{DomainChannels, SystemChannels};
use rsccl::internals::topo::graphs::Graph;
use rsccl::internals::topo::search::between::{Between, CrossNic};
use rsccl::internals::topo::system::System;
use rsccl::{Error, Result};

/// The channels of a machine.
#[derive(Debug)]
pub(crate) struct Found {
    channels: SystemChannels,
    /// What stands before a line about each domain: nothing where there is one.
    pub(crate) names: Vec<String>,
}

impl Found {
    /// Searches.
    pub(crate) fn search(system: &System, cross: CrossNic) -> Found {
        let channels = SystemChannels::search(system, cross);
        Found { names: names(system, &channels.domains), channels }
    }

    pub(crate) fn domains(&self) -> &[DomainChannels] {
        &self.channels.domains
    }

    pub(crate) fn between(&self) -> Option<&std::result::Result<Between, String>> {
        self.channels.between.as_ref()
    }

    /// [`SystemChannels::replace`]
    pub(crate) fn replace(&mut self, system: &System, graphs: &[Graph]) -> Result<Vec<String>> {
        self.channels.replace(system, graphs)
    }

    /// [`SystemChannels::gaps`]
    pub(crate) fn gaps(&self, system: &System) -> Vec<String> {
        self.channels.gaps(system)
    }

    /// As NCCL dumps them: see [`SystemChannels::graphs`].
    pub(crate) fn graphs(&self, system: &System) -> Result<[Graph; 2]> {
        let missing = || Error::invalid_argument("--dump-graph: this machine has no two GPUs to join");
        self.channels.graphs(system).ok_or_else(missing)
    }
}

fn names(system: &System, domains: &[DomainChannels]) -> Vec<String> {
    let name = |domain: &DomainChannels| {
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
