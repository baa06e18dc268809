//! The device that a plug-in offers this process.

use std::collections::HashMap;
use std::ffi::c_int;
use std::path::Path;

use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::{Arc, Mutex, Ordering, statics};
use crate::sys::fork::PerProcess;
use crate::sys::{random, signals, text_file};
use crate::transport::net::request_nic::{
    DeviceMemoryAccess, FoundNic, MessageMatching, MessageOrder, NicDescription, NicLibrary, NicList, NicPromises,
    NicSearch, RegistrationNeed, RequestNic,
};
use crate::transport::net_plugin::abi::{DEVICE_HOST, POINTER_HOST};
use crate::transport::net_plugin::endpoint::PlugInNic;
use crate::transport::net_plugin::library::{PlugIn, PlugInDevice, PlugInFile, PlugInKey};
use crate::transport::net_plugin::opening::PlugInPort;
use crate::types::Rank;

/// Its line in the table of libraries.
pub(in crate::transport) const LIBRARY: NicLibrary =
    NicLibrary { name: NAME, hardware: None, find, list, looks_first: false };

/// A plug-in that is ready.
#[derive(Debug)]
pub(super) struct PreparedPlugIn {
    plug_in: Arc<PlugIn>,
    /// Of the process: it stays, so that a plug-in never ends what other communicators of the process use.
    /// What it has called its network before it started.
    first_name: String,
    context: PlugInKey,
    devices: Vec<(c_int, PlugInDevice)>,
    /// Why others will not do.
    noes: Vec<String>,
}

/// Those that are ready, and why others are not.
type PlugInsByName = HashMap<String, Result<Arc<PreparedPlugIn>, String>>;

/// A device of a plug-in.
#[derive(Debug)]
struct FoundPlugIn {
    prepared: Arc<PreparedPlugIn>,
    device: c_int,
    description: NicDescription,
    promises: NicPromises,
    noes: Vec<String>,
}

/// Finds the best device.
fn find(search: &NicSearch<'_>) -> Result<Arc<dyn FoundNic>> {
    let names = search.plug_ins.map_or_else(|| vec![USUAL_NAME.to_owned()], names);
    let (prepared, noes) = prepared_of(search.me, &names, search.network_of_plug_in)?;
    Ok(Arc::new(FoundPlugIn::new(prepared, noes)))
}

/// All devices of the first plug-in that has some.
fn list(search: &NicSearch<'_>) -> Result<NicList> {
    let names = search.plug_ins.map_or_else(|| vec![USUAL_NAME.to_owned()], names);
    let (prepared, mut noes) = prepared_of(search.me, &names, search.network_of_plug_in)?;
    noes.extend(prepared.noes.iter().cloned());
    let nics = prepared.devices.iter().map(|(_, device)| describe(&prepared.plug_in, device)).collect();
    Ok(NicList { nics, noes })
}

/// The best device of the first plug-in of these names that will do.
///
/// # Errors
/// As [`prepared_of`].
#[cfg(test)]
#[cfg(not(loom))]
pub(super) fn find_in(me: Rank, names: &[String], network: Option<&str>) -> Result<Arc<dyn FoundNic>> {
    let (prepared, noes) = prepared_of(me, names, network)?;
    Ok(Arc::new(FoundPlugIn::new(prepared, noes)))
}

/// The names of a list, as NCCL reads it.
pub(super) fn names(list: &str) -> Vec<String> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty() && name.len() <= MOST_NAME_BYTES);
    names.take(MOST_PLUG_INS).map(str::to_owned).collect()
}

/// The first plug-in of these names that has a device and, where a network is asked for, is that; and why not those
/// before it.
///
/// # Errors
/// [`Kind::System`] with a sentence for each plug-in.
fn prepared_of(me: Rank, names: &[String], network: Option<&str>) -> Result<(Arc<PreparedPlugIn>, Vec<String>)> {
    let process = LOADED_BY.load(Ordering::Relaxed);
    if process != 0 && process != u64::from(std::process::id()) {
        let why = "net plug-ins are left to the process that has forked this one, which has loaded one or tried to";
        return Err(Error::new(Kind::System, why));
    }
    let plug_ins = PLUG_INS.get_or_try_init(|| Ok::<_, Error>(Mutex::new(HashMap::new())))?;
    // Held while plug-ins are loaded: other ranks of this process wait for them.
    let mut plug_ins = plug_ins.lock();
    let mut noes = Vec::new();
    for name in names {
        match known(&mut plug_ins, me, name, network) {
            Ok(prepared) => {
                drop(plug_ins);
                return Ok((prepared, noes));
            }
            Err(why) => {
                log::detail!(Net @ me, "NET/Plugin: {name}: {why}");
                // Most name the file themselves.
                noes.push(if why.contains(name.as_str()) { why } else { format!("{name}: {why}") });
            }
        }
    }
    if noes.is_empty() {
        noes.push("NCCL_NET_PLUGIN names no plug-in".to_owned());
    }
    Err(Error::new(Kind::System, noes.join("; ")))
}

/// The plug-in of this name, ready.
fn known(
    plug_ins: &mut PlugInsByName,
    me: Rank,
    name: &str,
    network: Option<&str>,
) -> Result<Arc<PreparedPlugIn>, String> {
    if let Some(known) = plug_ins.get(name) {
        let prepared = known.clone()?;
        let PlugIn { file, net, .. } = &*prepared.plug_in;
        // What it calls its network once it has started does as well.
        let by_own_name = is_asked_for(file, net, network);
        return by_own_name.or_else(|_| is_asked_for(file, &prepared.first_name, network)).map(|()| prepared);
    }
    // Before: a fork in the middle leaves half of it to the child. Relaxed, here and above: the word alone counts.
    LOADED_BY.store(u64::from(std::process::id()), Ordering::Relaxed);
    // A file may be there later, and another network may be asked for: only what a plug-in itself has said is kept.
    let file = PlugInFile::load(name)?;
    is_asked_for(&file.file, &file.net, network)?;
    let prepared = PreparedPlugIn::new(me, &file).map(Arc::new);
    plug_ins.insert(name.to_owned(), prepared.clone());
    prepared
}

fn is_asked_for(file: &str, net: &str, network: Option<&str>) -> Result<(), String> {
    match network {
        Some(asked) if !asked.eq_ignore_ascii_case(net) => {
            Err(format!("{file} has the network {net:?}, and NCCL_NET asks for {asked:?}"))
        }
        _ => Ok(()),
    }
}

impl PreparedPlugIn {
    /// Prepares a plug-in, and asks for its devices.
    ///
    /// # Errors
    /// A sentence: that it fails, or why none of its devices will do.
    fn new(me: Rank, file: &PlugInFile) -> Result<PreparedPlugIn, String> {
        // Signals, this once: later another thread of the program may change what is done about them meanwhile.
        let (plug_in, context, names) = signals::kept(|| file.start(u64::from(me.get())))?;
        let of_it = |why: String| format!("{} (version {}) {why}", plug_in.file, plug_in.version);
        if !names.is_empty() {
            let names = names.join(", ");
            log::detail!(Net @ me, "NET/Plugin: {} has set {names}, which is put back", plug_in.file);
        }
        let count = plug_in.devices().map_err(|refusal| of_it(format!("tells no devices: {}", refusal.words())))?;
        if count <= 0 {
            return Err(of_it("has no devices".to_owned()));
        }
        let (mut devices, mut noes) = (Vec::new(), Vec::new());
        for number in 0..count.min(MOST_DEVICES) {
            match plug_in.device(number).map_err(|refusal| refusal.words()).and_then(usable) {
                Ok(device) => devices.push((number, device)),
                Err(why) => noes.push(format!("device {number}: {why}")),
            }
        }
        if devices.is_empty() {
            return Err(of_it(format!("has no device that will do: {}", noes.join("; "))));
        }
        // The fastest; of equal ones the plug-in's first, whose speed may not be told.
        devices.sort_by_key(|(number, device)| (std::cmp::Reverse(device.speed), *number));
        let first_name = file.net.clone();
        Ok(PreparedPlugIn { plug_in: Arc::new(plug_in), first_name, context, devices, noes })
    }
}

/// A device that carries memory of the host.
fn usable(device: PlugInDevice) -> Result<PlugInDevice, String> {
    let PlugInDevice { name, pointers, device_type, .. } = &device;
    if *device_type != DEVICE_HOST {
        return Err(format!("{name} is driven by kernels of GPUs (type {device_type}), which rsccl does not do"));
    }
    if pointers & POINTER_HOST == 0 {
        return Err(format!("{name} takes no memory of the host"));
    }
    Ok(device)
}

impl FoundPlugIn {
    fn new(prepared: Arc<PreparedPlugIn>, mut noes: Vec<String>) -> FoundPlugIn {
        let (device, known) = prepared.devices[0].clone();
        let plug_in = &prepared.plug_in;
        noes.extend(prepared.noes.iter().cloned());
        let behind = prepared.devices[1..].iter();
        noes.extend(behind.map(|(_, other)| format!("{}: {} comes first", other.name, known.name)));
        let description = describe(plug_in, &known);
        let room = connections(&known);
        let most = if known.most_message_bytes > 0 { known.most_message_bytes } else { MOST_MESSAGE_BYTES };
        let promises = NicPromises {
            order: MessageOrder::Any,
            remote_word_bytes: 0,
            device_memory: match plug_in.takes_devices(known.pointers) {
                true => DeviceMemoryAccess::WithFlush { is_forced: known.forces_flush },
                false => DeviceMemoryAccess::None,
            },
            most_message_bytes: most.min(MOST_MESSAGE_BYTES),
            inject_bytes: 0,
            most_sends: 2 * room,
            most_receives: 2 * room,
            registration: RegistrationNeed::All,
            matching: MessageMatching::InOrder,
        };
        FoundPlugIn { prepared, device, description, promises, noes }
    }
}

impl FoundNic for FoundPlugIn {
    fn description(&self) -> &NicDescription {
        &self.description
    }

    fn promises(&self) -> &NicPromises {
        &self.promises
    }

    fn bus_id(&self) -> Option<String> {
        let path = self.prepared.devices[0].1.pci_path.as_deref()?;
        path.rsplit('/').next().filter(|name| name.contains(':')).map(str::to_owned)
    }

    fn noes(&self) -> &[String] {
        &self.noes
    }

    fn open(&self) -> Result<Box<dyn RequestNic>> {
        let plug_in = Arc::clone(&self.prepared.plug_in);
        let context = if plug_in.has_contexts() {
            let _turn = PLUG_INS.get().map(|plug_ins| plug_ins.lock());
            let number = u64::from_le_bytes(random::bytes()?);
            let failed = |why| Error::new(Kind::System, format!("net plug-in {}: {why}", plug_in.net));
            plug_in.init(number).map_err(failed)?
        } else {
            self.prepared.context
        };
        let port = PlugInPort { plug_in, device: self.device, context };
        let pointers = self.prepared.devices[0].1.pointers;
        Ok(Box::new(PlugInNic::new(port, self.promises.most_connections(), pointers)))
    }
}

/// What other ranks and users are told of a device.
fn describe(plug_in: &PlugIn, device: &PlugInDevice) -> NicDescription {
    NicDescription {
        network: NAME.to_owned(),
        device: device.name.clone(),
        provider: format!("{} of {} (version {})", plug_in.net, plug_in.file, plug_in.version),
        // A plug-in does not tell its release, so equal names must do.
        protocol: format!("{}, {WIRE}", plug_in.net),
        rate_mbit: u32::try_from(device.speed).ok().filter(|rate| *rate > 0),
        node: device.pci_path.as_deref().and_then(node),
    }
}

/// Connections of ours, each of which takes one of the plug-in's each way. A device that tells no number has many.
fn connections(device: &PlugInDevice) -> usize {
    match usize::try_from(device.most_comms) {
        Ok(0) | Err(_) => MOST_CONNECTIONS,
        Ok(most) => (most / 2).clamp(1, MOST_CONNECTIONS),
    }
}

/// The NUMA node of a device in `/sys`, from where the plug-in says that it is.
fn node(path: &str) -> Option<u32> {
    if !path.starts_with("/sys/") || path.contains("..") {
        return None;
    }
    text_file::read(&Path::new(path).join("numa_node"), "a NIC's node", "net plug-in").ok()?.trim().parse().ok()
}

/// The plug-ins of this process, by the names that users gave them: each is prepared once, and one that has failed then
/// is not asked again.
static PLUG_INS: PerProcess<Mutex<PlugInsByName>> = PerProcess::new();
/// The process that has loaded a plug-in, or tried to; 0 before.
static LOADED_BY: statics::AtomicU64 = statics::AtomicU64::new(0);

const NAME: &str = "plugin";
/// Where NCCL looks if nothing is asked for.
const USUAL_NAME: &str = "libnccl-net.so";
/// What our ends say to each other over a plug-in: [`opening`](crate::transport::net_plugin::opening), and farewells.
const WIRE: &str = "rsccl 1";
/// As in NCCL: the longest name, and the most of them.
const MOST_NAME_BYTES: usize = 254;
const MOST_PLUG_INS: usize = 14;
const MOST_DEVICES: c_int = 256;
const MOST_CONNECTIONS: usize = 1 << 15;
/// A version 8 has lengths of 31 bits.
const MOST_MESSAGE_BYTES: usize = 1 << 30;
