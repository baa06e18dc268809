//! The processors of each rank.

use std::path::Path;

use clap::ValueEnum;
use rsccl::internals::sys::numa;
use rsccl::{Error, Result};

/// The binding of ranks to processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bind {
    /// Each rank gets a core of its own.
    Core,
    /// Ranks are distributed over the NUMA nodes in blocks; each may use its whole node.
    Numa,
    /// Each rank may use the processors that this command may use.
    None,
}

impl Bind {
    /// The processors of each rank; empty if ranks are not bound. `root` is `/`, or a folder that replaces it in tests.
    ///
    /// # Errors
    /// [`rsccl::error::Kind::InvalidUsage`] if there are fewer cores than ranks, or the system does not report its
    /// nodes.
    pub(crate) fn places(self, root: &Path, ranks: u32) -> Result<Vec<Vec<u32>>> {
        let count = usize::try_from(ranks).unwrap_or(usize::MAX);
        match self {
            Bind::None => Ok(Vec::new()),
            Bind::Core => {
                let mut cores = numa::cores(root);
                if cores.len() < count {
                    return Err(Error::invalid_usage(format!(
                        "--bind core: {ranks} ranks need a core each, this process may use {}; use --bind none, or fewer ranks",
                        cores.len()
                    )));
                }
                cores.truncate(count);
                Ok(cores)
            }
            Bind::Numa => {
                let nodes = numa::nodes(root);
                if nodes.is_empty() {
                    return Err(Error::invalid_usage(
                        "--bind numa: this system does not report NUMA nodes; use --bind none",
                    ));
                }
                Ok((0..count).map(|rank| nodes[rank * nodes.len() / count].clone()).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_cores_or_nodes_in_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/thread-self/status", "Cpus_allowed_list:\t0-3\n");
        let places = |bind: Bind, ranks| bind.places(folder.path(), ranks);
        assert!(places(Bind::None, 9).unwrap().is_empty());
        assert_eq!(places(Bind::Core, 3).unwrap(), [[0], [1], [2]]);
        let error = places(Bind::Core, 5).unwrap_err().to_string();
        assert!(error.contains("5 ranks need a core each, this process may use 4"), "{error}");
        assert!(places(Bind::Numa, 2).unwrap_err().to_string().contains("does not report NUMA nodes"));
        write("sys/devices/system/node/node0/cpulist", "0-1");
        write("sys/devices/system/node/node1/cpulist", "2-3");
        assert_eq!(places(Bind::Numa, 3).unwrap(), [[0, 1], [0, 1], [2, 3]]);
        assert_eq!(places(Bind::Numa, 1).unwrap(), [[0, 1]]);
    }
}
