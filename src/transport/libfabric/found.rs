//! The NIC that libfabric offers this process.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::path::Path;

use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::{Arc, Mutex};
use crate::sys::fabric_devices::{self, FabricDevice};
use crate::sys::fork::PerProcess;
use crate::sys::interfaces;
use crate::transport::libfabric::abi::{FI_MR_LOCAL, FI_PROTO_XNET, FI_SOCKADDR_IN6};
use crate::transport::libfabric::library::{OfiInfos, OfiLibrary, OfiList};
use crate::transport::libfabric::nic::OfiNic;
use crate::transport::libfabric::providers::{OfiChoice, OfiEntry, OfiWish, choose};
use crate::transport::net::request_nic::{
    DeviceMemoryAccess, FoundNic, MessageMatching, MessageOrder, NicDescription, NicLibrary, NicList, NicPromises,
    NicSearch, RegistrationNeed, RequestNic,
};
use crate::types::Rank;

/// Its line in the table of libraries.
pub(in crate::transport) const LIBRARY: NicLibrary =
    NicLibrary { name: NAME, hardware: Some(hardware), find, list: nics, looks_first: false };

/// A NIC of libfabric's list.
#[derive(Debug)]
pub(super) struct OfiFound {
    infos: Arc<OfiInfos>,
    place: usize,
    entry: OfiEntry,
    description: NicDescription,
    promises: NicPromises,
    noes: Vec<String>,
}

/// Whether a device is here that this process may use without being asked to.
fn hardware(root: &Path) -> Result<(), String> {
    let devices = fabric_devices::list(root);
    if devices.is_empty() {
        return Err("no device of a fabric is here (/sys/class/infiniband, /sys/class/cxi)".to_owned());
    }
    let noes: Option<Vec<String>> = devices.iter().map(FabricDevice::refusal).collect();
    noes.map_or(Ok(()), |noes| Err(noes.join("; ")))
}

/// Finds the best NIC.
fn find(search: &NicSearch<'_>) -> Result<Arc<dyn FoundNic>> {
    let devices = fabric_devices::list(Path::new("/"));
    let wish = OfiWish { is_asked: search.is_asked, devices: &devices, own: Some(search.interface) };
    let (mut found, noes) = find_in(SONAME, wish, (search.me, search.node))?;
    for no in &noes {
        log::detail!(Net @ search.me, "NET/libfabric : not {no}");
    }
    found.noes = noes;
    Ok(Arc::new(found))
}

/// The best NIC of the library of this name for a rank on a NUMA node, where it is on one, and why it is not another.
///
/// # Errors
/// [`Kind::System`] where there is no library, or no NIC that will do.
pub(super) fn find_in(
    name: &CStr,
    wish: OfiWish<'_>,
    (me, node): (Rank, Option<u32>),
) -> Result<(OfiFound, Vec<String>)> {
    let (list, choice) = chosen(name, wish)?;
    let release = list.kept.library.release();
    let told: Vec<NicDescription> =
        choice.nics.iter().map(|place| describe(&release, &list.entries[*place], wish.devices)).collect();
    let nodes: Vec<Option<u32>> = told.iter().map(|nic| nic.node).collect();
    let place = choice.nearest((me, node), &nodes).ok_or_else(|| none_will_do(&release, &choice.noes))?;
    let entry = list.entries[place].clone();
    let (mut noes, mut description) = (choice.noes, None);
    for (nic, told) in choice.nics.iter().zip(told) {
        if *nic == place {
            description = Some(told);
        } else {
            noes.push(format!("{}{}: a rank has one NIC, which is {}", told.device, told.facts(), entry.domain));
        }
    }
    let description = description.ok_or_else(|| Error::internal("a NIC that was not among those to choose from"))?;
    let promises = promises(&entry);
    let infos = Arc::clone(&list.kept);
    Ok((OfiFound { infos, place, entry, description, promises, noes: Vec::new() }, noes))
}

/// All NICs of the best provider.
fn nics(search: &NicSearch<'_>) -> Result<NicList> {
    let devices = fabric_devices::list(Path::new("/"));
    let wish = OfiWish { is_asked: search.is_asked, devices: &devices, own: Some(search.interface) };
    let (list, choice) = chosen(SONAME, wish)?;
    let release = list.kept.library.release();
    let nics: Vec<NicDescription> =
        choice.nics.iter().map(|place| describe(&release, &list.entries[*place], &devices)).collect();
    if nics.is_empty() { Err(none_will_do(&release, &choice.noes)) } else { Ok(NicList { nics, noes: choice.noes }) }
}

fn none_will_do(release: &str, noes: &[String]) -> Error {
    Error::new(Kind::System, format!("libfabric {release} has no NIC that will do: {}", noes.join("; ")))
}

/// What the library of this name lists, and the NICs among that.
///
/// # Errors
/// [`Kind::System`] where there is no library.
fn chosen(name: &CStr, wish: OfiWish<'_>) -> Result<(Arc<OfiList>, OfiChoice)> {
    let system = |why: String| Error::new(Kind::System, why);
    if OfiLibrary::is_inherited() {
        let why = "libfabric is left to the process that has forked this one, which has loaded it or tried to";
        return Err(system(why.to_owned()));
    }
    let lists = LISTS.get_or_try_init(|| Ok::<_, Error>(Mutex::new(HashMap::new())))?;
    // Held while the library is loaded: other ranks of this process wait for the list.
    let mut lists = lists.lock();
    let known = lists.get(name).map(Arc::clone);
    let known = known.map(|list| (choose(&list.entries, wish), list)).filter(|(choice, _)| !choice.nics.is_empty());
    let (choice, list) = match known {
        Some(known) => known,
        None => {
            let list = Arc::new(list(name, wish.is_asked).map_err(system)?);
            lists.insert(name.to_owned(), Arc::clone(&list));
            (choose(&list.entries, wish), list)
        }
    };
    drop(lists);
    Ok((list, choice))
}

/// Loads the library of this name, and has it list what it can do.
fn list(name: &CStr, is_asked: bool) -> Result<OfiList, String> {
    let otherwise = if is_asked { "leave NCCL_NET out" } else { "say NCCL_NET=Socket" };
    let library = OfiLibrary::load(name)
        .map_err(|why| format!("libfabric cannot be loaded: {why}; install it (Debian: libfabric1), or {otherwise}"))?;
    library.list().map_err(|why| format!("libfabric {}: {why}", library.release()))
}

impl FoundNic for OfiFound {
    fn description(&self) -> &NicDescription {
        &self.description
    }

    fn promises(&self) -> &NicPromises {
        &self.promises
    }

    fn bus_id(&self) -> Option<String> {
        self.entry.pci.clone()
    }

    fn noes(&self) -> &[String] {
        &self.noes
    }

    fn open(&self) -> Result<Box<dyn RequestNic>> {
        Ok(Box::new(OfiNic::open(&self.infos, self.place, &self.entry)?))
    }
}

/// What other ranks and users are told of an entry.
fn describe(release: &str, entry: &OfiEntry, devices: &[FabricDevice]) -> NicDescription {
    let OfiEntry { provider, domain, .. } = entry;
    let device = entry.known(devices);
    let interface = interfaces::device(Path::new("/"), domain);
    let told = entry.rate_mbit.and_then(|rate| u32::try_from(rate).ok());
    let shown = device.and_then(|device| device.rate_mbit).filter(|rate| *rate > 0);
    let on_bus = || entry.pci.as_ref().and_then(|place| fabric_devices::node_on_bus(Path::new("/"), place));
    NicDescription {
        network: NAME.to_owned(),
        device: domain.clone(),
        provider: format!("{provider} of libfabric {release}"),
        protocol: protocol(release, entry),
        rate_mbit: told.or(shown).or(interface.rate_mbit),
        node: device.and_then(|device| device.node).or(interface.node).or_else(on_bus),
    }
}

/// What goes over the wire. Releases of native TCP understand each other, whatever they call it; those of other
/// providers promise nothing, and fail without an error where they do not.
fn protocol(release: &str, entry: &OfiEntry) -> String {
    if entry.protocol == FI_PROTO_XNET {
        let tags = if entry.has_wide_tags() { "" } else { ", short tags" };
        return format!("native TCP over {}{tags}", if entry.format == FI_SOCKADDR_IN6 { "IPv6" } else { "IPv4" });
    }
    let OfiEntry { provider, format, protocol, protocol_version, .. } = entry;
    let tags = if entry.has_wide_tags() { "wide tags, " } else { "" };
    format!("{provider} {protocol}.{protocol_version}, addresses {format}, {tags}release {release}")
}

fn promises(entry: &OfiEntry) -> NicPromises {
    let is_stream = entry.protocol == FI_PROTO_XNET && entry.is_ordered;
    NicPromises {
        order: if is_stream { MessageOrder::AsSent } else { MessageOrder::Any },
        remote_word_bytes: 0,
        device_memory: DeviceMemoryAccess::None,
        most_message_bytes: entry.most_message_bytes,
        // Each send has a completion: without one nobody would know whether the provider needs more calls for it.
        inject_bytes: 0,
        most_sends: entry.most_requests()[0] as usize,
        most_receives: entry.most_requests()[1] as usize,
        registration: if entry.memory & FI_MR_LOCAL == 0 { RegistrationNeed::None } else { RegistrationNeed::All },
        // Of tags, which have the numbers.
        matching: MessageMatching::ByNumber,
    }
}

/// What each library of this process has listed: that takes tens of milliseconds, and more where hardware is looked
/// for. A library lists anew where nothing of it will do.
static LISTS: PerProcess<Mutex<HashMap<CString, Arc<OfiList>>>> = PerProcess::new();
const NAME: &str = "libfabric";
const SONAME: &CStr = c"libfabric.so.1";
