//! The networks that a machine has, for people: all NICs of each library, whichever of them ranks would use.

use std::path::Path;

use crate::transport::net::network_choice::{NetworkSeeker, NetworkWish};
use crate::transport::net::nic_libraries::NIC_LIBRARIES;
use crate::transport::net::request_nic::{NicDescription, NicLibrary, NicList};

/// A library of NICs, or sockets, and what it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownNetwork {
    /// What `NCCL_NET` calls it.
    pub name: String,
    /// Its NICs, the first one first.
    pub nics: Vec<KnownNic>,
    /// Why it has no others, or none, a sentence each.
    pub noes: Vec<String>,
}

/// A NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownNic {
    /// Its device, with the port where it has several.
    pub device: String,
    /// What drives it, and by which address peers reach it.
    pub by: String,
    /// Its rate, where that is known.
    pub rate_mbit: Option<u32>,
    /// Its NUMA node, where that is known.
    pub node: Option<u32>,
}

/// What each library has here. Only what the user asks for by `wish` is loaded, and what files show hardware for below
/// `root`, which is `/`, or a folder that replaces it in tests.
pub fn known_networks(wish: &NetworkWish, seeker: NetworkSeeker<'_>, root: &Path) -> Vec<KnownNetwork> {
    NIC_LIBRARIES.iter().map(|library| of_library(library, wish, seeker, root)).collect()
}

fn of_library(library: &NicLibrary, wish: &NetworkWish, seeker: NetworkSeeker<'_>, root: &Path) -> KnownNetwork {
    let asked = wish.asked().filter(|asked| asked.name() == library.name);
    let look = || (library.list)(&seeker.search(asked)).map_err(|error| error.message().to_owned());
    let found = match (asked, library.hardware) {
        (Some(_), _) => look(),
        (None, _) if library.looks_first => look(),
        (None, Some(hardware)) => hardware(root).map_err(|why| not_loaded(&why, library.name)).and_then(|()| look()),
        (None, None) => Err(not_loaded("nobody asks for it", library.name)),
    };
    let NicList { nics, noes } = found.unwrap_or_else(|why| NicList { nics: Vec::new(), noes: vec![why] });
    KnownNetwork { name: library.name.to_owned(), nics: nics.into_iter().map(KnownNic::from).collect(), noes }
}

fn not_loaded(why: &str, name: &str) -> String {
    format!("not loaded: {why}; NCCL_NET={name} does so")
}

impl From<NicDescription> for KnownNic {
    fn from(told: NicDescription) -> KnownNic {
        let NicDescription { device, provider, rate_mbit, node, .. } = told;
        KnownNic { device, by: provider, rate_mbit, node }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::config::Config;
    use crate::transport::VerbsSettings;
    use crate::types::Rank;

    fn known(config: &Config) -> Vec<KnownNetwork> {
        let nowhere = Path::new("/nowhere");
        let verbs = VerbsSettings { is_disabled: true, ..VerbsSettings::default() };
        let interface = Ipv4Addr::LOCALHOST.into();
        let seeker = NetworkSeeker { me: Rank::new(0), node: None, interface, verbs: &verbs };
        known_networks(&NetworkWish::of(config), seeker, nowhere)
    }

    #[test]
    fn each_library_says_what_it_has_or_why_it_was_not_loaded() {
        let all = known(&Config::default());
        let said: Vec<(&str, &str)> = all.iter().map(|one| (&*one.name, &*one.noes[0])).collect();
        let files = "no device of a fabric is here (/sys/class/infiniband, /sys/class/cxi)";
        assert_eq!(
            said,
            [
                ("libfabric", &*format!("not loaded: {files}; NCCL_NET=libfabric does so")),
                ("IB", "NCCL_IB_DISABLE=1 leaves no device"),
                ("plugin", "not loaded: nobody asks for it; NCCL_NET=plugin does so"),
                ("test-nic", "not loaded: nobody asks for it; NCCL_NET=test-nic does so"),
                ("test-nic-straight", "not loaded: nobody asks for it; NCCL_NET=test-nic-straight does so"),
            ]
        );
        assert!(all.iter().all(|one| one.nics.is_empty()));
    }

    #[test]
    fn what_is_asked_for_is_loaded_and_shown_with_its_facts() {
        let all = known(&Config::default().with_net("test-nic"));
        let asked = all.iter().find(|one| one.name == "test-nic").expect("it is a line of the table");
        assert_eq!((asked.nics.len(), asked.noes.len()), (1, 0), "{asked:?}");
        let none = known(&Config::default().with_net_plugin("/none/of.so"));
        let plug_in = none.iter().find(|one| one.name == "plugin").expect("it is a line of the table");
        assert!(plug_in.noes[0].contains("there is no /none/of.so where the loader looks"), "{plug_in:?}");
    }
}
