//! By what the channels between GPUs are searched for: files in place of detection and search, and where both are
//! written.

use std::path::PathBuf;

use crate::config::Config;
use crate::error::Result;
use crate::sys::text_file;
use crate::topo::description::Machine;
use crate::topo::graphs::{self, Graph};
use crate::topo::machine_file;
use crate::topo::search::between::CrossNic;

/// By what the channels between GPUs are searched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Searching {
    topo_file: Option<PathBuf>,
    graph_file: Option<PathBuf>,
    /// Where rank 0 writes the topology.
    pub(crate) topo_dump_file: Option<PathBuf>,
    /// Where rank 0 writes the channels.
    pub(crate) graph_dump_file: Option<PathBuf>,
    /// Whether channels may leave a host by another NIC than they enter by.
    pub(crate) cross: CrossNic,
}

impl Searching {
    /// Reads `config`, which has been resolved. Files are read when ranks first meet on GPUs.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] that names the variable.
    pub(crate) fn read(config: &Config) -> Result<Searching> {
        Ok(Searching {
            topo_file: config.topo_file.clone(),
            graph_file: config.graph_file.clone(),
            topo_dump_file: config.topo_dump_file.clone(),
            graph_dump_file: config.graph_dump_file.clone(),
            cross: CrossNic::of_number(config.cross_nic),
        })
    }

    /// The machine of the topology file, and what was assumed; `None` where none is named.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the file cannot be read, [`crate::error::Kind::InvalidArgument`] with its
    /// line and column where it is malformed.
    pub(crate) fn machine(&self) -> Result<Option<(Machine, Vec<String>)>> {
        let Some(path) = &self.topo_file else { return Ok(None) };
        let text = text_file::read(path, "the topology file", "NCCL_TOPO_FILE")?;
        machine_file::parse(&path.display().to_string(), &text).map(Some)
    }

    /// The remark that the graph file, if one is named, is not used: it is one of a host.
    pub(crate) fn unused_graphs(&self, hosts: usize) -> Option<String> {
        graphs::unused(("NCCL_GRAPH_FILE", &self.graph_file.as_ref()?.display().to_string()), hosts)
    }

    /// The channels of the graph file; `None` where none is named.
    ///
    /// # Errors
    /// As [`Searching::machine`].
    pub(crate) fn graphs(&self) -> Result<Option<Vec<Graph>>> {
        let Some(path) = &self.graph_file else { return Ok(None) };
        let text = text_file::read(path, "the graph file", "NCCL_GRAPH_FILE")?;
        graphs::parse(&path.display().to_string(), &text).map(Some)
    }
}
