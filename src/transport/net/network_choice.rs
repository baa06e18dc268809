//! The network between hosts: sockets, or the NIC of a library that the user asks for (`NCCL_NET`), or for which this
//! host has hardware.
//!
//! Each rank that was asked looks for such a NIC before ranks meet, and tells all others what it has found, or why it
//! has found none. From what all have told each rank concludes the same: they use their NICs where each has one and all
//! of them understand each other. Where a rank has none all use sockets, with a warning, or get an error if that rank
//! insists (`RSCCL_NET_STRICT`). NICs that do not understand each other are an error that names two.
//!
//! Where `NCCL_NET` is not set, ranks look into files for hardware and tell each other whether there is some. Only if
//! all have some, and are not on one host, they load its library and tell each other once more: so a job that needs no
//! network between hosts, or has none but TCP, loads nothing. Nothing here is an error: sockets are left.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use crate::config::{Config, Encryption, NETWORKS};
use crate::error::{Error, Kind, Result, without_controls};
use crate::log;
use crate::sync::primitive::Arc;
use crate::transport::net::nic_libraries::{self, NIC_LIBRARIES};
use crate::transport::net::request_nic::{FoundNic, NicDescription, NicLibrary, NicSearch, RegistrationNeed};
use crate::transport::net::requests::LEAST_MESSAGE_BYTES;
use crate::transport::{PeerInfo, VerbsSettings};
use crate::types::Rank;
use crate::wire::{self, Reader, Writer};

/// What the user says of the network between hosts (`NCCL_NET`).
#[derive(Debug, Clone, Default)]
pub enum NetworkWish {
    /// Nothing: hardware where all ranks have some, and else sockets.
    #[default]
    Open,
    /// Sockets.
    Sockets,
    /// A library of NICs.
    Asked(AskedNetwork),
}

/// A network that the user asks for, which is not sockets.
#[derive(Debug, Clone)]
pub struct AskedNetwork {
    library: &'static NicLibrary,
    plug_ins: Option<Arc<str>>,
    network_of_plug_in: Option<Arc<str>>,
}

/// The network that all ranks of a communicator use between hosts.
#[derive(Debug, Clone, Default)]
pub struct Network {
    pub(in crate::transport) nic: Option<Arc<dyn FoundNic>>,
    /// By rank: its NIC's device, and its rate in Mbit/s where that is known and the NIC moves data by itself.
    rates: Vec<(String, Option<u32>)>,
}

/// What a rank has found of the network that it was asked for.
#[derive(Debug)]
pub struct OwnNetwork {
    found: Found,
    is_asked: bool,
}

/// A rank that looks for a network.
#[derive(Debug, Clone, Copy)]
pub struct NetworkSeeker<'a> {
    /// Its number.
    pub me: Rank,
    /// The NUMA node of its processors.
    pub node: Option<u32>,
    /// The address of the interface at which the ranks of its communicator have met.
    pub interface: IpAddr,
    /// What the user says of verbs.
    pub verbs: &'a VerbsSettings,
}

/// What ranks conclude from what all have told.
#[derive(Debug)]
pub enum Agreement {
    /// Their network.
    Made(Network),
    /// All of them may have hardware: where they are not on one host, each [looks](NetworkSeeker::hardware) for it, and
    /// they tell each other again.
    Hardware,
}

#[derive(Debug)]
enum Found {
    Sockets,
    /// Hardware that nobody has asked for, of which only files are known.
    Hardware,
    Nic(Arc<dyn FoundNic>),
    None {
        why: String,
        /// Whether that is an error.
        strict: bool,
    },
}

/// What another rank has told.
#[derive(Debug)]
enum Told {
    Sockets,
    Hardware,
    /// Boxed: of ten thousand ranks nearly all tell less.
    Nic(Box<NicDescription>),
    None {
        why: String,
        strict: bool,
    },
}

impl NetworkWish {
    /// Of a configuration that has been resolved.
    pub fn of(config: &Config) -> NetworkWish {
        match AskedNetwork::of(config) {
            Some(asked) => NetworkWish::Asked(asked),
            // Who forbids InfiniBand to NCCL wants sockets, and not another way to it.
            None if config.net.is_none() && !config.ib_disable => NetworkWish::Open,
            None => NetworkWish::Sockets,
        }
    }

    /// What the user asks for.
    pub(super) fn asked(&self) -> Option<&AskedNetwork> {
        if let NetworkWish::Asked(asked) = self { Some(asked) } else { None }
    }

    /// The library that the user asks for.
    pub fn library(&self) -> Option<&'static str> {
        match self {
            NetworkWish::Asked(asked) => Some(asked.name()),
            NetworkWish::Open | NetworkWish::Sockets => None,
        }
    }

    /// What ranks of this machine that meet at `interface` would use, and why nothing else, line by line. `root` is
    /// `/`, or a folder that replaces it in tests.
    pub fn described(&self, seeker: NetworkSeeker<'_>, root: &Path) -> Vec<String> {
        match self {
            NetworkWish::Sockets => Vec::new(),
            NetworkWish::Asked(asked) => match (asked.library.find)(&seeker.search(Some(asked))) {
                Ok(nic) => described(&*nic),
                Err(error) => vec![format!("{}: no NIC: {}; {SOCKETS_INSTEAD}", asked.name(), error.message())],
            },
            NetworkWish::Open => {
                let mut noes = Vec::new();
                for library in NIC_LIBRARIES {
                    let Some(hardware) = library.hardware else { continue };
                    let found = hardware(root).and_then(|()| {
                        (library.find)(&seeker.search(None)).map_err(|error| error.message().to_owned())
                    });
                    match found {
                        Ok(nic) => return described(&*nic).into_iter().chain(noes).collect(),
                        Err(why) => noes.push(format!("not {}: {why}", library.name)),
                    }
                }
                std::iter::once("Socket (TCP)".to_owned()).chain(noes).collect()
            }
        }
    }
}

/// A NIC with what is known of it, and why it is none of the others.
fn described(nic: &dyn FoundNic) -> Vec<String> {
    let description = nic.description();
    let noes = nic.noes().iter().map(|no| format!("not {no}"));
    std::iter::once(format!("{description}{}", description.facts())).chain(noes).collect()
}

impl AskedNetwork {
    /// The network of `config`, which has been resolved; `None` where that is sockets.
    pub fn of(config: &Config) -> Option<AskedNetwork> {
        let (net, plug_ins) = (config.net.as_deref(), config.net_plugin.as_deref().map(str::trim));
        let known = net.and_then(nic_libraries::named);
        let has_plug_ins = config.asks_for_plug_ins();
        let library = match (known, net) {
            (Some(library), _) => library,
            (None, Some(net)) if net.eq_ignore_ascii_case(NETWORKS[0]) => return None,
            (None, _) if has_plug_ins => nic_libraries::of_plug_ins(),
            (None, _) => return None,
        };
        // "none" of a user who asks for plug-ins all the same names none.
        let plug_ins = plug_ins.map(|names| Arc::from(if has_plug_ins { names } else { "" }));
        let network_of_plug_in = if known.is_none() { net.map(Arc::from) } else { None };
        Some(AskedNetwork { library, plug_ins, network_of_plug_in })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.library.name
    }

    /// How the user has asked for it.
    pub fn setting(&self) -> String {
        let net = self.network_of_plug_in.as_ref().map(|net| format!("NCCL_NET={net}"));
        let plug_ins = self.plug_ins.as_ref().filter(|_| self.library.name == nic_libraries::of_plug_ins().name);
        match plug_ins.map(|names| format!("NCCL_NET_PLUGIN={names}")) {
            Some(plug_ins) => net.map_or(plug_ins.clone(), |net| format!("{net}, {plug_ins}")),
            None => format!("NCCL_NET={}", self.library.name),
        }
    }
}

impl<'a> NetworkSeeker<'a> {
    pub(super) fn search(self, asked: Option<&'a AskedNetwork>) -> NicSearch<'a> {
        let NetworkSeeker { me, node, interface, verbs } = self;
        let plug_ins = asked.and_then(|asked| asked.plug_ins.as_deref());
        let network_of_plug_in = asked.and_then(|asked| asked.network_of_plug_in.as_deref());
        NicSearch { me, node, is_asked: asked.is_some(), interface, verbs, plug_ins, network_of_plug_in }
    }

    /// Looks for the NIC of hardware that nobody has asked for, which has room for connections with so many ranks of
    /// other hosts. `root` is `/`, or a folder that replaces it in tests.
    pub fn hardware(self, root: &Path, far_ranks: usize) -> OwnNetwork {
        let mut noes = Vec::new();
        let is_here = |library: &&NicLibrary| library.hardware.is_some_and(|hardware| hardware(root).is_ok());
        for library in NIC_LIBRARIES.iter().filter(is_here) {
            let has_room = |nic: Arc<dyn FoundNic>| {
                let (room, needed) = (nic.promises().most_connections(), 2 * far_ranks + CONNECTIONS_OF_COLLECTIVES);
                if room >= needed {
                    return Ok(nic);
                }
                let nic = nic.description();
                Err(format!(
                    "{nic} takes requests of {room} connections of a communicator, and messages between all its ranks \
                     may need {needed}; NCCL_NET={} uses it all the same",
                    library.name
                ))
            };
            match usable((library.find)(&self.search(None))).and_then(has_room) {
                Ok(nic) => return OwnNetwork { found: Found::Nic(nic), is_asked: false },
                Err(why) => noes.push(format!("not {}: {why}", library.name)),
            }
        }
        OwnNetwork { found: Found::None { why: noes.join("; "), strict: false }, is_asked: false }
    }
}

/// A NIC that was found, if its messages are long enough.
fn usable(found: Result<Arc<dyn FoundNic>>) -> std::result::Result<Arc<dyn FoundNic>, String> {
    let nic = found.map_err(|error| error.message().to_owned())?;
    let most = nic.promises().most_message_bytes;
    if most < LEAST_MESSAGE_BYTES {
        let nic = nic.description();
        return Err(format!("{nic} takes messages of {most} bytes, and {LEAST_MESSAGE_BYTES} are needed"));
    }
    Ok(nic)
}

impl OwnNetwork {
    /// Looks for a NIC where this rank is asked to, and for files of hardware below `root` where nothing is said.
    pub fn find(
        wish: &NetworkWish,
        seeker: NetworkSeeker<'_>,
        (encryption, strict): (Encryption, bool),
        root: &Path,
    ) -> OwnNetwork {
        let asked = match wish {
            NetworkWish::Sockets => return OwnNetwork { found: Found::Sockets, is_asked: false },
            NetworkWish::Open => {
                let is_here = |library: &NicLibrary| library.hardware.is_some_and(|hardware| hardware(root).is_ok());
                // What is sealed goes over sockets alone.
                let may = encryption == Encryption::Off && NIC_LIBRARIES.iter().any(is_here);
                return OwnNetwork { found: if may { Found::Hardware } else { Found::Sockets }, is_asked: false };
            }
            NetworkWish::Asked(asked) => asked,
        };
        let found = match encryption {
            Encryption::Off => usable((asked.library.find)(&seeker.search(Some(asked)))),
            Encryption::On | Encryption::ChaCha20 => Err("RSCCL_ENCRYPT seals what goes over sockets alone".to_owned()),
        };
        let none = |why: String| Found::None { why: format!("{}: {why}", asked.setting()), strict };
        OwnNetwork { found: found.map_or_else(none, Found::Nic), is_asked: true }
    }

    /// What this rank tells all others.
    pub fn told(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        match &self.found {
            Found::Sockets => _ = writer.u8(SOCKETS),
            Found::Hardware => _ = writer.u8(HARDWARE),
            Found::Nic(nic) => nic.description().encode(nic.promises(), writer.u8(NIC)),
            Found::None { why, strict } => {
                let code = if *strict { NONE_AND_STRICT } else { NONE };
                writer.u8(code).text(wire::cut(why, MOST_REASON_BYTES));
            }
        }
        writer.finish()
    }

    /// The network of all ranks, from what each `told`, in rank order; with what stands behind that.
    ///
    /// # Errors
    /// The same on all ranks: [`Kind::Mismatch`] where two that were asked do not understand each other,
    /// [`Kind::System`] where one that insists has no NIC; [`Kind::Remote`] where one has told something else.
    pub fn agree<'a>(
        self,
        me: Rank,
        told: impl IntoIterator<Item = (Rank, &'a [u8])>,
    ) -> Result<(Agreement, Vec<&'a [u8]>)> {
        let (mut all, mut rests) = (Vec::new(), Vec::new());
        for (rank, bytes) in told {
            let mut reader = Reader::new(bytes, "what a rank tells of its network");
            let told = Told::read(&mut reader).map_err(|error| {
                Error::remote(rank, format!("rank {rank} does not tell its network: {}", error.message()))
            })?;
            all.push((rank, told));
            rests.push(reader.rest());
        }
        // Own words are shown as a whole; others send the beginning of theirs.
        if let (Found::None { why: whole, .. }, Some((_, Told::None { why, .. }))) =
            (&self.found, all.iter_mut().find(|(rank, _)| *rank == me))
        {
            why.clone_from(whole);
        }
        self.concluded(me, &all).map(|agreement| (agreement, rests))
    }

    /// What all ranks conclude.
    fn concluded(self, me: Rank, all: &[(Rank, Told)]) -> Result<Agreement> {
        let sockets = || Ok(Agreement::Made(Network::default()));
        if all.iter().all(|(_, told)| matches!(told, Told::Hardware)) {
            return Ok(Agreement::Hardware);
        }
        for (rank, told) in all {
            match told {
                Told::Sockets | Told::Hardware | Told::Nic(_) => {}
                Told::None { why, strict: true } => {
                    let message = format!("rank {rank} has not the network that it must use: {why}");
                    return Err(Error::new(Kind::System, message).about(*rank));
                }
                Told::None { why, strict: false } => {
                    if !self.is_asked {
                        log::info!(Net @ me, "rank {rank}: {why}; {BETWEEN_HOSTS}");
                    } else if *rank == me {
                        log::tell(&format!("{why}; {BETWEEN_HOSTS}"));
                    } else {
                        log::warn!(Net @ me, "rank {rank}: {why}; {BETWEEN_HOSTS}");
                    }
                    return sockets();
                }
            }
        }
        if let Found::Hardware = self.found
            && let Some((rank, _)) = all.iter().find(|(_, told)| matches!(told, Told::Sockets))
        {
            log::info!(Net @ me, "rank {rank} has no NIC that goes without being asked for; {BETWEEN_HOSTS}");
        }
        let Found::Nic(nic) = self.found else { return sockets() };
        let mut nics: Vec<(Rank, &NicDescription)> = Vec::new();
        for (rank, told) in all {
            // Whoever has other settings is named by them, after this.
            let Told::Nic(description) = told else { return sockets() };
            nics.push((*rank, description));
        }
        if let Some((first, its)) = nics.first().copied()
            && let Some((other, why)) = nics.iter().find_map(|other| Some((other.0, its.refusal(first, *other)?)))
        {
            if !self.is_asked {
                log::warn!(Net @ me, "{why}; {BETWEEN_HOSTS}");
                return sockets();
            }
            return Err(Error::mismatch(why).about(if other == me { first } else { other }));
        }
        let NicDescription { network, provider, device, .. } = nic.description();
        log::detail!(Init @ me, "NET/{network} : Using {provider} on {device}{}", nic.description().facts());
        // What TCP carries is up to processors, and not to the wire.
        let is_by_itself = nic.promises().registration == RegistrationNeed::All;
        let rate = |nic: &NicDescription| (nic.device.clone(), nic.rate_mbit.filter(|_| is_by_itself));
        let rates = nics.into_iter().map(|(_, nic)| rate(nic)).collect();
        Ok(Agreement::Made(Network { nic: Some(nic), rates }))
    }
}

impl Network {
    /// Megabits per second of the NICs that ranks of one host use, of the host that has the least; `None` over sockets,
    /// and where a rate is not known. The same on all `peers`, which are all ranks, in rank order.
    pub fn least_host_mbit(&self, peers: &[PeerInfo]) -> Option<u64> {
        let mut hosts: BTreeMap<u64, BTreeMap<&str, u64>> = BTreeMap::new();
        for (peer, (device, rate)) in peers.iter().zip(&self.rates) {
            hosts.entry(peer.host).or_default().insert(device, u64::from((*rate)?));
        }
        if self.rates.len() != peers.len() {
            return None;
        }
        hosts.values().map(|nics| nics.values().sum()).min()
    }
}

impl Told {
    fn read(reader: &mut Reader<'_>) -> Result<Told> {
        Ok(match reader.u8()? {
            SOCKETS => Told::Sockets,
            HARDWARE => Told::Hardware,
            NIC => Told::Nic(Box::new(NicDescription::decode(reader)?)),
            code @ (NONE | NONE_AND_STRICT) => {
                Told::None { why: without_controls(&reader.text(MOST_REASON_BYTES)?), strict: code == NONE_AND_STRICT }
            }
            code => return Err(reader.malformed(&format!("an unknown code, {code}"))),
        })
    }
}

const SOCKETS: u8 = 0;
const NIC: u8 = 1;
const NONE: u8 = 2;
const NONE_AND_STRICT: u8 = 3;
const HARDWARE: u8 = 4;
/// What collectives may need beside a connection for each rank of another host and way: two channels of rings and
/// trees.
const CONNECTIONS_OF_COLLECTIVES: usize = 16;
const SOCKETS_INSTEAD: &str = "Socket (TCP) in its place";
const BETWEEN_HOSTS: &str = "ranks of different hosts use Socket (TCP)";
/// Bytes of a reason that a rank tells; the rest is cut off.
const MOST_REASON_BYTES: usize = 256;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::numa::ThreadHome;
    use crate::transport::net::request_nic::{NicPromises, RequestNic};
    use crate::transport::net::test_nic::{Manners, TestNic};

    /// A NIC that speaks another protocol.
    #[derive(Debug)]
    struct Speaking(TestNic, NicDescription);

    impl FoundNic for Speaking {
        fn description(&self) -> &NicDescription {
            &self.1
        }
        fn promises(&self) -> &NicPromises {
            self.0.promises()
        }
        fn open(&self) -> Result<Box<dyn RequestNic>> {
            self.0.open()
        }
    }

    fn speaking(protocol: &str, provider: &str) -> OwnNetwork {
        speaking_over(TestNic::new(Manners::WORST), protocol, provider)
    }

    fn speaking_over(nic: TestNic, protocol: &str, provider: &str) -> OwnNetwork {
        let (protocol, provider) = (protocol.to_owned(), provider.to_owned());
        let description = NicDescription { protocol, provider, rate_mbit: Some(100), ..nic.description().clone() };
        OwnNetwork { found: Found::Nic(Arc::new(Speaking(nic, description))), is_asked: true }
    }

    fn none(strict: bool) -> OwnNetwork {
        OwnNetwork { found: Found::None { why: "NCCL_NET=test-nic: no device".to_owned(), strict }, is_asked: true }
    }

    /// The same of a rank that nobody has asked.
    fn unasked(own: OwnNetwork) -> OwnNetwork {
        OwnNetwork { is_asked: false, ..own }
    }

    fn seeker(verbs: &VerbsSettings) -> NetworkSeeker<'_> {
        NetworkSeeker { me: Rank::new(0), node: None, interface: [127, 0, 0, 1].into(), verbs }
    }

    /// What a rank finds whose hosts' files lie below `root`.
    fn find(wish: &NetworkWish, how: (Encryption, bool), root: &Path) -> OwnNetwork {
        OwnNetwork::find(wish, seeker(&VerbsSettings::default()), how, root)
    }

    #[test]
    fn plug_ins_are_asked_for_by_their_files_or_by_their_network() {
        let asked = |net: Option<&str>, plug_ins: Option<&str>| {
            let mut config = Config::default();
            (config.net, config.net_plugin) = (net.map(str::to_owned), plug_ins.map(str::to_owned));
            let asked = AskedNetwork::of(&config)?;
            let verbs = VerbsSettings::default();
            let search = seeker(&verbs).search(Some(&asked));
            let told = (search.plug_ins.map(str::to_owned), search.network_of_plug_in.map(str::to_owned));
            Some((asked.name(), asked.setting(), told))
        };
        let text = |text: &str| Some(text.to_owned());
        let setting = "NCCL_NET_PLUGIN=a,b".to_owned();
        assert_eq!(asked(None, Some(" a,b ")), Some(("plugin", setting.clone(), (text("a,b"), None))));
        let both = "NCCL_NET=Their Net, NCCL_NET_PLUGIN=a".to_owned();
        assert_eq!(asked(Some("Their Net"), Some("a")), Some(("plugin", both, (text("a"), text("Their Net")))));
        assert_eq!(asked(Some("plugin"), Some("a,b")), Some(("plugin", setting, (text("a,b"), None))));
        assert_eq!(asked(Some("plugin"), None), Some(("plugin", "NCCL_NET=plugin".to_owned(), (None, None))));
        let none = Some(("plugin", "NCCL_NET_PLUGIN=".to_owned(), (text(""), None)));
        assert_eq!(asked(Some("plugin"), Some("none")), none);
        assert_eq!(asked(Some("libfabric"), Some("a")).map(|asked| asked.0), Some("libfabric"));
        for sockets in [(None, None), (None, Some("none")), (Some("Socket"), Some("a")), (Some("Theirs"), None)] {
            assert_eq!(asked(sockets.0, sockets.1), None, "{sockets:?}");
        }
    }

    /// What each of two ranks concludes: whether it has a NIC, `None` where it is still to look, or its error.
    fn conclude(ranks: [fn() -> OwnNetwork; 2]) -> [Result<Option<bool>>; 2] {
        let told = ranks.map(|rank| [rank().told(), b"rest".to_vec()].concat());
        [0, 1].map(|me| {
            let told = (0..).map(Rank::new).zip(told.iter().map(Vec::as_slice));
            let (agreement, rests) = ranks[me]().agree(Rank::new(u32::try_from(me).unwrap()), told)?;
            assert_eq!(rests, [b"rest", b"rest"]);
            Ok(match agreement {
                Agreement::Made(network) => Some(network.nic.is_some()),
                Agreement::Hardware => None,
            })
        })
    }

    #[test]
    fn ranks_use_nics_where_all_have_one() {
        let sockets = || find(&NetworkWish::Sockets, (Encryption::Off, true), Path::new("/"));
        for (ranks, expected) in [
            ([sockets as fn() -> OwnNetwork; 2], false),
            ([|| speaking("1", "a 1.0"), || speaking("1", "a 2.0")], true),
            ([|| speaking("1", "a 1.0"), || none(false)], false),
            ([|| none(false), || none(false)], false),
        ] {
            for concluded in conclude(ranks) {
                assert_eq!(concluded.unwrap(), Some(expected));
            }
        }
    }

    #[test]
    fn hardware_that_nobody_has_asked_for_is_looked_for_where_all_have_some_and_never_an_error() {
        let hardware = || OwnNetwork { found: Found::Hardware, is_asked: false };
        let sockets = || OwnNetwork { found: Found::Sockets, is_asked: false };
        for (ranks, expected) in [
            ([hardware as fn() -> OwnNetwork; 2], None),
            ([hardware, sockets], Some(false)),
            ([|| unasked(speaking("1", "a")), || unasked(speaking("1", "b"))], Some(true)),
            ([|| unasked(speaking("1", "a")), || unasked(speaking("2", "b"))], Some(false)),
            ([|| unasked(speaking("1", "a")), || unasked(none(false))], Some(false)),
            // Settings differ, which is told by others.
            ([hardware, || speaking("1", "a")], Some(false)),
        ] {
            for concluded in conclude(ranks) {
                assert_eq!(concluded.unwrap(), expected);
            }
        }
    }

    #[test]
    fn files_of_hardware_are_looked_at_where_nothing_is_asked_or_sealed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let find = |wish: NetworkWish, encryption| super::tests::find(&wish, (encryption, true), root).found;
        let verbs = VerbsSettings::default();
        assert!(matches!(find(NetworkWish::Open, Encryption::Off), Found::Sockets));
        let no = "not libfabric: no device of a fabric is here (/sys/class/infiniband, /sys/class/cxi)";
        assert_eq!(NetworkWish::Open.described(seeker(&verbs), root), ["Socket (TCP)", no]);
        let device = root.join("sys/class/cxi/cxi0/device");
        std::fs::create_dir_all(&device).unwrap();
        std::os::unix::fs::symlink("../../bus/pci/drivers/cxi_core", device.join("driver")).unwrap();
        assert!(matches!(find(NetworkWish::Open, Encryption::Off), Found::Sockets), "its device file is missing");
        let described = NetworkWish::Open.described(seeker(&verbs), root).join("\n");
        assert!(described.contains("not libfabric: cxi0: its device file /dev/cxi0 is not here"), "{described}");
        std::fs::create_dir(root.join("dev")).unwrap();
        std::fs::write(root.join("dev/cxi0"), "").unwrap();
        assert!(matches!(find(NetworkWish::Open, Encryption::Off), Found::Hardware));
        assert!(matches!(find(NetworkWish::Open, Encryption::On), Found::Sockets));
        let wish = |config: Config| NetworkWish::of(&config);
        assert!(matches!(wish(Config::default().with_net("Socket")), NetworkWish::Sockets));
        assert!(matches!(wish(Config::default().with_ib_disable(true)), NetworkWish::Sockets));
        assert!(matches!(wish(Config::default()), NetworkWish::Open));
    }

    #[test]
    fn the_rate_of_a_network_is_that_of_the_host_with_the_least() {
        let peer = |(number, host): (u32, &u64)| PeerInfo {
            rank: Rank::new(number),
            host: *host,
            process: number.into(),
            pid: number,
            space: 0,
            cores: 1,
            settings: 0,
            tuning: 0,
            home: ThreadHome::default(),
            switches: [0; 4],
            is_traced: false,
        };
        let peers: Vec<PeerInfo> = (0..).zip(&[1, 1, 1, 2]).map(peer).collect();
        let of = |rates: [(&str, Option<u32>); 4]| {
            let rates = rates.map(|(device, rate)| (device.to_owned(), rate)).to_vec();
            Network { nic: None, rates }.least_host_mbit(&peers)
        };
        let [a, b] = [("a", Some(100)), ("b", Some(200))];
        assert_eq!(of([a, b, a, b]), Some(200), "two NICs of the first host are 300");
        assert_eq!(of([a, a, a, b]), Some(100));
        assert_eq!(of([a, a, ("b", None), b]), None);
        assert_eq!(Network::default().least_host_mbit(&peers), None);
    }

    #[test]
    fn an_error_names_who_has_none_or_two_that_do_not_understand_each_other() {
        for concluded in conclude([|| none(true), || speaking("1", "a")]) {
            let error = concluded.unwrap_err();
            assert_eq!((error.kind(), error.peer()), (Kind::System, Some(0)));
            assert!(error.message().contains("NCCL_NET=test-nic: no device"), "{error}");
        }
        let concluded = conclude([|| speaking("rxm 1", "a 1.17"), || speaking("rxm 2", "a 2.5")]);
        for (me, concluded) in (0..).zip(concluded) {
            let error = concluded.unwrap_err();
            assert_eq!((error.kind(), error.peer()), (Kind::Mismatch, Some(1 - me)));
            for part in ["rank 0", "a 1.17", "rxm 1", "rank 1", "a 2.5", "rxm 2"] {
                assert!(error.message().contains(part), "{error} has {part}");
            }
        }
    }

    /// Each rank alone decides whether long messages go straight, by what its release of a library promises.
    #[test]
    fn ranks_that_send_in_different_ways_are_told_so() {
        let straight = || speaking_over(TestNic::new(Manners::STRAIGHT), "1", "a 2.0");
        let chunks = || speaking("1", "a 1.0");
        for concluded in conclude([straight, straight]) {
            assert_eq!(concluded.unwrap(), Some(true));
        }
        for (me, concluded) in (0..).zip(conclude([straight, chunks])) {
            let error = concluded.unwrap_err();
            assert_eq!((error.kind(), error.peer()), (Kind::Mismatch, Some(1 - me)));
            for part in ["(straight, wire 2; 1)", "(by chunks, wire 2; 1)"] {
                assert!(error.message().contains(part), "{error} has {part}");
            }
        }
    }

    #[test]
    fn the_rank_that_has_none_shows_all_its_reasons() {
        let long = || {
            let why = format!("{}; /dev/cxi0 is not here", "a reason ".repeat(40));
            OwnNetwork { found: Found::None { why, strict: true }, is_asked: true }
        };
        let [own, other] = conclude([long, || speaking("1", "a")]).map(|concluded| concluded.unwrap_err());
        assert!(own.message().ends_with("; /dev/cxi0 is not here"), "{own}");
        assert!(
            other.message().len() < own.message().len() && other.message().contains("a reason a reason"),
            "{other}"
        );
    }

    #[test]
    fn what_other_ranks_tell_controls_no_terminal() {
        let clears = || OwnNetwork { found: Found::None { why: "a\x1b[2Jb".to_owned(), strict: true }, is_asked: true };
        let [_, other] = conclude([clears, || speaking("1", "a")]).map(|concluded| concluded.unwrap_err());
        assert!(other.message().ends_with(": a\\u{1b}[2Jb"), "{other}");
        let nic = || speaking("1", "\x1b]0;a\x07");
        let [first, second] = conclude([nic, || speaking("2", "b")]).map(|concluded| concluded.unwrap_err());
        assert!(!first.message().chars().chain(second.message().chars()).any(char::is_control), "{first}, {second}");
    }

    #[test]
    fn what_a_library_has_not_or_encryption_forbids_is_told() {
        static NOWHERE: NicLibrary =
            NicLibrary { name: "nowhere", find: |_| Err(Error::new(Kind::System, "no device")), ..NIC_LIBRARIES[0] };
        let told = |encryption| {
            let asked = AskedNetwork { library: &NOWHERE, plug_ins: None, network_of_plug_in: None };
            match find(&NetworkWish::Asked(asked), (encryption, false), Path::new("/")).found {
                Found::None { why, strict: false } => why,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(told(Encryption::Off), "NCCL_NET=nowhere: no device");
        assert!(told(Encryption::On).contains("RSCCL_ENCRYPT"));
    }

    #[test]
    fn what_is_told_comes_back_and_broken_words_name_their_rank() {
        let words = speaking("1", &"ä".repeat(60)).told();
        let Told::Nic(nic) = Told::read(&mut Reader::new(&words, "a test")).unwrap() else { panic!("a NIC") };
        assert_eq!((nic.provider, nic.rate_mbit, nic.node), ("ä".repeat(32), Some(100), None));
        for broken in [&words[..words.len() - 1], &[9], &[], &[NONE, 255, 255, 255, 255]] {
            let told = [(Rank::new(0), &*words), (Rank::new(1), broken)];
            let error = speaking("1", "a").agree(Rank::new(0), told).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(1)));
        }
    }
}
