//! Where a rank stands on its host: which socket, NUMA node and cache the processors share that it may run on.

use std::path::{Path, PathBuf};

use crate::config::{Config, Note};
use crate::error::{Error, Result};
use crate::log;
use crate::sys::host::hostname;
use crate::sys::numa::{self, ThreadHome};
use crate::sys::text_file;
use crate::topo::description::Machine;
use crate::topo::layout::RankPlace;
use crate::topo::machine_file;
use crate::topo::switches::Switches;
use crate::transport::{PeerInfo, SWITCH_LAYERS};

/// By what a rank's place on its host is found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The processors that count as the rank's; those on which it may run where nobody has said.
    processors: Option<Vec<u32>>,
    /// What tells the NUMA nodes in place of the system, if it describes processors alone.
    topo_file: Option<PathBuf>,
    /// Whether processors say nothing.
    ignored: bool,
    /// What tells the switches above the host: a file, or else Slurm.
    switch_file: Option<PathBuf>,
    switch_address: Option<String>,
    /// The partition of this job, which has a topology of its own in some files of Slurm's.
    partition: Option<String>,
}

impl Standing {
    /// Reads `config`, which has been resolved.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] that names the variable.
    pub(crate) fn read(config: &Config) -> Result<Standing> {
        let list = |text: &String| {
            let refused = || {
                Error::invalid_argument(format!(
                    "the rank's processors (RSCCL_PROCESSORS, Config::with_processors) must be a list of numbers and \
                     ranges such as 0-3,8, got {text:?}"
                ))
            };
            numa::list(text).filter(|all| !all.is_empty()).ok_or_else(refused)
        };
        Ok(Standing {
            processors: config.processors.as_ref().map(list).transpose()?,
            topo_file: config.topo_file.clone(),
            ignored: config.ignore_cpu_affinity,
            switch_file: config.switch_file.clone(),
            switch_address: config.switch_address.clone(),
            partition: config.switch_partition.clone(),
        })
    }

    /// What the rank's processors share. `root` is `/`, or a folder that replaces it in tests.
    pub(crate) fn home(&self, root: &Path) -> ThreadHome {
        if self.ignored {
            return ThreadHome::default();
        }
        let processors = self.processors.clone().unwrap_or_else(|| numa::allowed_processors(root));
        match self.described() {
            // Such files know neither sockets nor caches.
            Some(machine) => ThreadHome { node: machine.node_of(&processors), ..ThreadHome::default() },
            None => numa::home_of(root, &processors),
        }
    }

    /// The machine of the topology file, if it has processors alone. A file with GPUs and NICs is for those: a site
    /// names it for all jobs of a machine, and the system knows more of the processors. What is wrong with it is an
    /// error where ranks meet on GPUs, and nowhere else.
    fn described(&self) -> Option<Machine> {
        let path = self.topo_file.as_ref()?;
        let read = text_file::read(path, "the topology file", "NCCL_TOPO_FILE");
        match read.and_then(|text| machine_file::parse(&path.display().to_string(), &text)) {
            Ok((machine, _)) => Some(machine).filter(Machine::has_processors_alone),
            Err(error) => {
                let text = format!("{}: it says nothing of where ranks stand", error.message());
                log::say_once(&Note::Warning(text));
                None
            }
        }
    }

    /// The switches of the network above this host, which is called `chosen` where the user has named it.
    ///
    /// # Errors
    /// As [`Standing::told`].
    pub(crate) fn switches(&self, chosen: Option<&str>) -> Result<[u64; SWITCH_LAYERS]> {
        let told = self.told(chosen)?;
        if let Some((name, file)) = &told.file {
            for note in &file.notes {
                log::info!(Init, "RSCCL_SWITCH_FILE={name}: {note}");
            }
            if told.above.is_empty() && file.hosts() > 0 {
                let host = &told.host;
                log::warn!(Init, "RSCCL_SWITCH_FILE={name} does not name this host, {host}: it stands below no switch");
            }
        }
        Ok(numbered(&told.above))
    }

    /// What a file or Slurm tells of the network's switches. A file names this host in full or without its domain.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the file cannot be read, [`crate::error::Kind::InvalidArgument`] with its
    /// line where it is malformed.
    fn told(&self, chosen: Option<&str>) -> Result<SwitchesTold> {
        let host = || chosen.map_or_else(hostname, |chosen| Ok(chosen.to_owned()));
        let Some(path) = &self.switch_file else {
            let above = self.switch_address.as_deref().map(Switches::of_address).unwrap_or_default();
            // The name is only shown.
            return Ok(SwitchesTold { file: None, host: host().unwrap_or_default(), above });
        };
        let name = path.display().to_string();
        let text = text_file::read(path, "the file of switches", "RSCCL_SWITCH_FILE")?;
        let file = Switches::parse(&format!("RSCCL_SWITCH_FILE={name}"), &text, self.partition.as_deref())?;
        let host = host()?;
        let above = file.above_host(&host).unwrap_or_default().into_iter().map(str::to_owned).collect();
        Ok(SwitchesTold { file: Some((name, file)), host, above })
    }
}

/// What is known of the switches above this host.
#[derive(Debug, Clone, Default)]
pub struct SwitchesTold {
    /// The file and what it says, where there is one.
    pub file: Option<(String, Switches)>,
    /// This host's name.
    pub host: String,
    /// The switches above it, outermost first.
    pub above: Vec<String>,
}

/// The switches above this host by `config`, which has been resolved.
///
/// # Errors
/// Of a file that cannot be read, or is malformed.
pub fn switches_of(config: &Config) -> Result<SwitchesTold> {
    Standing::read(config)?.told(config.host_id.as_deref())
}

/// Switches, outermost first, as the numbers that ranks tell of them: equal names have equal numbers, none is 0.
fn numbered(names: &[String]) -> [u64; SWITCH_LAYERS] {
    let number = |name: &String| {
        let hash = blake3::hash(name.as_bytes());
        u64::from_le_bytes(std::array::from_fn(|place| hash.as_bytes()[place])).max(1)
    };
    let innermost = &names[names.len().saturating_sub(SWITCH_LAYERS)..];
    std::array::from_fn(|place| innermost.get(place).map_or(0, number))
}

/// The place that a rank has told; its host is numbered elsewhere.
pub(crate) fn place(peer: &PeerInfo) -> RankPlace {
    let ThreadHome { socket, node, cache } = peer.home;
    RankPlace {
        socket: socket.map(u64::from),
        numa: node.map(u64::from),
        cache: cache.map(u64::from),
        switches: peer.switches.into_iter().filter(|switch| *switch != 0).collect(),
        ..RankPlace::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_NODES: &str = r#"<system version="1">
  <cpu numaid="0" affinity="00000000,0000ff0f" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"/>
  <cpu numaid="1" affinity="00000001,000000f0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"/>
</system>
"#;

    fn standing(processors: &str, file: Option<&Path>) -> Standing {
        let mut config = Config::default().with_processors(processors);
        config.topo_file = file.map(Path::to_owned);
        Standing::read(&config).unwrap()
    }

    #[test]
    fn a_topology_file_tells_the_node() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("two.xml");
        std::fs::write(&file, TWO_NODES).unwrap();
        let node = |processors| standing(processors, Some(&file)).home(folder.path());
        assert_eq!(node("0-3,8"), ThreadHome { node: Some(0), ..ThreadHome::default() });
        assert_eq!(node("4,32").node, Some(1));
        assert_eq!([node("3-4"), node("16"), node("8191")], [ThreadHome::default(); 3]);
        let ignored = Standing { ignored: true, ..standing("0", Some(&file)) };
        assert_eq!(ignored.home(folder.path()), ThreadHome::default());
    }

    /// A site names the file of its GPUs for all jobs: those on host memory stand where the system says.
    #[test]
    fn a_file_of_gpus_and_one_that_is_wrong_do_not_place_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file.xml");
        let gpus = crate::topo::machines::text("h100x8");
        let malformed = "<system version=\"1\">\n<cpu numaid=\"x\"/></system>";
        for text in [gpus, malformed] {
            std::fs::write(&file, text).unwrap();
            for processors in ["0", "0-3", "64"] {
                let by_system = standing(processors, None).home(Path::new("/"));
                assert_eq!(standing(processors, Some(&file)).home(Path::new("/")), by_system);
            }
        }
    }

    /// A file names hosts with or without their domain; without a file, Slurm's address counts.
    #[test]
    fn switches_are_told_by_a_file_or_by_slurm() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("switches");
        std::fs::write(&file, "SwitchName=leaf Nodes=n[1-2]\nSwitchName=spine Switches=leaf\nother: n3.example\n")
            .unwrap();
        let mut config = Config::default().with_switch_file(&file);
        config.switch_address = Some("a.b.n1".to_owned());
        let at = |config: &Config, host| Standing::read(config).unwrap().switches(Some(host)).unwrap();
        let [one, two, three] = ["n1", "n2.example", "n3.example"].map(|host| at(&config, host));
        assert_eq!((one, one.iter().filter(|switch| **switch != 0).count()), (two, 2));
        assert!(three[0] != 0 && three[1] == 0 && !one.contains(&three[0]));
        assert_eq!(at(&config, "n4"), [0; SWITCH_LAYERS]);
        config.switch_file = None;
        assert_eq!(at(&config, "n1").map(|switch| switch != 0), [true, true, false, false]);
        std::fs::write(&file, "nothing").unwrap();
        let wrong = Standing::read(&Config::default().with_switch_file(&file)).unwrap().switches(Some("n1"));
        let wrong = wrong.unwrap_err();
        assert!(
            wrong.message().starts_with("RSCCL_SWITCH_FILE=") && wrong.message().contains("switches:1: "),
            "{wrong}"
        );
        // Slurm's address comes with the environment.
        let environment = crate::config::Environment::of([("SLURM_TOPOLOGY_ADDR", "spine.leaf.n1")]);
        let config = Config::default().resolve_in(&environment).unwrap();
        assert_eq!(at(&config, "n1"), one, "whatever names the switches");
        // A file of Slurm's has several topologies, of which this job's partition has one.
        std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/descriptions/topology.yaml"), &file).unwrap();
        let layers = |variables: &[(&str, &str)]| {
            let environment = crate::config::Environment::of(variables.iter().copied());
            let config = Config::default().with_switch_file(&file).resolve_in(&environment).unwrap();
            at(&config, "node03.example").iter().filter(|switch| **switch != 0).count()
        };
        assert_eq!((layers(&[]), layers(&[("SLURM_JOB_PARTITION", "gpu")])), (2, 1));
    }

    #[test]
    fn lists_that_are_wrong_are_refused_by_name() {
        for text in ["", "3-1", "a", "0-3;8"] {
            let error = Standing::read(&Config::default().with_processors(text)).unwrap_err();
            assert!(error.to_string().contains("RSCCL_PROCESSORS"), "{error}");
        }
    }
}
