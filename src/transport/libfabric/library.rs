//! libfabric, loaded while the program runs: its functions, and the list of what it can do as plain data.
//!
//! The library is never closed: it starts threads, and registers work for the end of the process.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::IpAddr;
use std::ptr::{NonNull, null, null_mut};

use crate::sync::primitive::{Arc, AtomicBool, Ordering, statics};
use crate::sys::library::Library;
use crate::sys::signals;
use crate::transport::libfabric::abi::{
    FI_AV_TABLE, FI_BUS_PCI, FI_CONTEXT, FI_CONTEXT2, FI_ENODATA, FI_EP_RDM, FI_LINK_DOWN, FI_MR_ALLOCATED,
    FI_MR_ENDPOINT, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_ORDER_SAS, FI_RM_ENABLED, FI_SOCKADDR_IN,
    FI_SOCKADDR_IN6, FI_TAGGED, FI_THREAD_DOMAIN, FiDomainAttr, FiDomainHints, FiEpAttr, FiEpHints, FiFabricAttr,
    FiFid, FiInfo, FiRxAttr, FiTxAttr, version,
};
use crate::transport::libfabric::providers::OfiEntry;

/// The functions of a loaded libfabric.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfiLibrary {
    getinfo: unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const FiInfo, *mut *mut FiInfo) -> c_int,
    freeinfo: unsafe extern "C" fn(*mut FiInfo),
    fabric: unsafe extern "C" fn(*mut FiFabricAttr, *mut *mut FiFid, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Of the library.
    release: u32,
}

impl OfiLibrary {
    /// Loads the library of this name, or at this path. The process's signal actions stay: some releases take those of
    /// six signals.
    ///
    /// # Errors
    /// What the loader says, or what the library lacks.
    pub(super) fn load(name: &CStr) -> Result<OfiLibrary, String> {
        // Before: a fork in the middle leaves half of it to the child. Relaxed, here and below: the word alone counts.
        LOADED_BY.store(u64::from(std::process::id()), Ordering::Relaxed);
        let library = signals::kept(|| Library::open(name))?;
        macro_rules! function {
            ($name:literal, $version:literal) => {{
                // SAFETY: the field has the type that the headers give this version of the function.
                let function = unsafe { library.versioned_function($name, $version) };
                let [name, version] = [$name, $version].map(|text| text.to_string_lossy().into_owned());
                function.ok_or_else(|| format!("it has no {name}@{version}: libfabric 1.14 or later is needed"))?
            }};
        }
        let ask: unsafe extern "C" fn() -> u32 = function!(c"fi_version", c"FABRIC_1.0");
        // SAFETY: it takes nothing, and returns a number.
        let release = unsafe { ask() };
        if release < OLDEST {
            return Err(format!("it is libfabric {}, and 1.14 or later is needed", words_of(release)));
        }
        Ok(OfiLibrary {
            getinfo: function!(c"fi_getinfo", c"FABRIC_1.3"),
            freeinfo: function!(c"fi_freeinfo", c"FABRIC_1.3"),
            fabric: function!(c"fi_fabric", c"FABRIC_1.1"),
            strerror: function!(c"fi_strerror", c"FABRIC_1.0"),
            release,
        })
    }

    /// Whether a process that has forked this one has loaded libfabric, or tried to: its locks may be held here for
    /// ever, and its connections are the parent's.
    pub(super) fn is_inherited() -> bool {
        let process = LOADED_BY.load(Ordering::Relaxed);
        process != 0 && process != u64::from(std::process::id())
    }

    /// Its release, as people write it.
    pub(super) fn release(self) -> String {
        words_of(self.release)
    }

    /// What a code that a call has returned means: the minus may be there or not.
    pub(super) fn words(self, code: i32) -> String {
        let code = code.wrapping_abs();
        // SAFETY: it takes any number, and returns a text that stays, or null.
        let text = unsafe { (self.strerror)(code) };
        format!("{} ({code})", text_at(text).unwrap_or_else(|| "no words".to_owned()))
    }

    /// What it can do of that which is needed: reliable datagrams with tags, in memory that is registered in whichever
    /// way the provider asks for.
    ///
    /// # Errors
    /// libfabric's, as a sentence.
    pub(super) fn list(self) -> Result<OfiList, String> {
        let mut first = null_mut();
        // A release says ENOSYS where it is asked with a version above its own.
        let asked = self.release.min(NEWEST);
        let code = with_hints(|hints| {
            // SAFETY: hints of the newest size, which the library copies; no node, no service.
            let get = || unsafe { (self.getinfo)(asked, null(), null(), 0, hints, &raw mut first) };
            // The first call loads providers, each with its libraries.
            signals::kept(get)
        });
        match code.wrapping_neg() {
            0 => {}
            FI_ENODATA => first = null_mut(),
            _ => return Err(format!("fi_getinfo: {}", self.words(code))),
        }
        let (mut infos, mut entries, mut next) = (Vec::new(), Vec::new(), NonNull::new(first));
        while let Some(info) = next.filter(|_| infos.len() < MOST_ENTRIES) {
            // SAFETY: an entry of the list, which lives until `fi_freeinfo`.
            let copy = unsafe { info.read() };
            infos.push(info);
            entries.push(entry(&copy));
            next = NonNull::new(copy.next);
        }
        Ok(OfiList {
            kept: Arc::new(OfiInfos { library: self, first, infos, opened: AtomicBool::new(false) }),
            entries,
        })
    }

    /// Opens the fabric of an entry.
    pub(super) fn open_fabric(self, attributes: *mut FiFabricAttr) -> Result<NonNull<FiFid>, i32> {
        let mut fabric = null_mut();
        // SAFETY: the attributes of an entry, as the library gave them.
        let code = unsafe { (self.fabric)(attributes, &raw mut fabric, null_mut()) };
        opened(code, fabric)
    }
}

/// What a call that opens something has given.
pub(super) fn opened(code: c_int, object: *mut FiFid) -> Result<NonNull<FiFid>, i32> {
    match NonNull::new(object) {
        Some(object) if code == 0 => Ok(object),
        None if code == 0 => Err(0),
        _ => Err(code),
    }
}

/// What libfabric can do.
#[derive(Debug)]
pub(super) struct OfiList {
    pub(super) kept: Arc<OfiInfos>,
    /// Each as plain data, at the same places.
    pub(super) entries: Vec<OfiEntry>,
}

/// libfabric's own list.
#[derive(Debug)]
pub(super) struct OfiInfos {
    pub(super) library: OfiLibrary,
    first: *mut FiInfo,
    infos: Vec<NonNull<FiInfo>>,
    /// Whether something of it has been opened before.
    opened: AtomicBool,
}

// SAFETY: memory that nobody writes to: calls that take an entry copy it.
unsafe impl Send for OfiInfos {}
// SAFETY: as above.
unsafe impl Sync for OfiInfos {}

impl OfiInfos {
    /// The entry at a place of the list.
    pub(super) fn get(&self, place: usize) -> Option<NonNull<FiInfo>> {
        self.infos.get(place).copied()
    }

    /// Opens something of the list. The process's signal actions stay at the first time, when a provider may load what
    /// it needs; later they are not looked at, since another thread of the program may change them meanwhile.
    pub(super) fn open<T>(&self, open: impl FnOnce() -> T) -> T {
        // Relaxed: the word alone counts.
        if self.opened.swap(true, Ordering::Relaxed) { open() } else { signals::kept(open) }
    }
}

impl Drop for OfiInfos {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: the whole list, as the library gave it, once.
            unsafe { (self.library.freeinfo)(self.first) };
        }
    }
}

/// Calls with what is asked of a provider. Structures have the newest release's size: an older one reads less of them.
fn with_hints<T>(call: impl FnOnce(*const FiInfo) -> T) -> T {
    // SAFETY: numbers and pointers, for which zero is a value that means "not asked for", here and below.
    let mut transmit: FiTxAttr = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut receive: FiRxAttr = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut endpoint: FiEpHints = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut domain: FiDomainHints = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut fabric: FiFabricAttr = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut info: FiInfo = unsafe { std::mem::zeroed() };
    endpoint.known.kind = FI_EP_RDM;
    domain.known.threading = FI_THREAD_DOMAIN;
    domain.known.resource_mgmt = FI_RM_ENABLED;
    domain.known.av_type = FI_AV_TABLE;
    domain.known.mr_mode = MEMORY_MODES;
    info.caps = FI_TAGGED;
    info.mode = FI_CONTEXT | FI_CONTEXT2;
    info.tx_attr = &raw mut transmit;
    info.rx_attr = &raw mut receive;
    info.ep_attr = (&raw mut endpoint).cast();
    info.domain_attr = (&raw mut domain).cast();
    info.fabric_attr = &raw mut fabric;
    call(&raw const info)
}

/// An entry as plain data.
fn entry(info: &FiInfo) -> OfiEntry {
    let mut entry = OfiEntry { format: info.addr_format, mode: info.mode, ..OfiEntry::default() };
    entry.address = ip_address(info);
    // SAFETY: an attribute of an entry is null or lives as long as the entry, and releases only add to its end. Here
    // and below.
    if let Some(fabric) = unsafe { info.fabric_attr.as_ref() } {
        entry.provider = text_at(fabric.prov_name).unwrap_or_default();
    }
    // SAFETY: as above.
    if let Some(domain) = unsafe { info.domain_attr.cast::<FiDomainAttr>().as_ref() } {
        entry.domain = text_at(domain.name).unwrap_or_default();
        entry.memory = domain.mr_mode;
    }
    // SAFETY: as above.
    if let Some(endpoint) = unsafe { info.ep_attr.cast::<FiEpAttr>().as_ref() } {
        (entry.protocol, entry.protocol_version) = (endpoint.protocol, endpoint.protocol_version);
        entry.tag_bits = u64::BITS - endpoint.mem_tag_format.leading_zeros();
        entry.most_message_bytes = endpoint.max_msg_size;
    }
    // SAFETY: as above.
    if let Some(transmit) = unsafe { info.tx_attr.as_ref() } {
        entry.inject_bytes = transmit.inject_size;
        entry.is_ordered = transmit.msg_order & FI_ORDER_SAS != 0;
        entry.requests[0] = transmit.size;
    }
    // SAFETY: as above.
    if let Some(receive) = unsafe { info.rx_attr.as_ref() } {
        entry.is_ordered &= receive.msg_order & FI_ORDER_SAS != 0;
        entry.requests[1] = receive.size;
    }
    add_nic(info, &mut entry);
    entry
}

/// What the provider tells of the NIC itself.
fn add_nic(info: &FiInfo, entry: &mut OfiEntry) {
    // SAFETY: null, or it lives as long as the entry. Here and below.
    let Some(nic) = (unsafe { info.nic.as_ref() }) else { return };
    // SAFETY: as above.
    if let Some(device) = unsafe { nic.device_attr.as_ref() } {
        entry.device = text_at(device.name);
    }
    // SAFETY: as above.
    if let Some(bus) = unsafe { nic.bus_attr.as_ref() }.filter(|bus| bus.kind == FI_BUS_PCI) {
        entry.pci = Some(format!("{:04x}:{:02x}:{:02x}.{:x}", bus.domain, bus.bus, bus.device, bus.function));
    }
    // SAFETY: as above.
    if let Some(link) = unsafe { nic.link_attr.as_ref() } {
        let mbit = u64::try_from(link.speed / 1_000_000).unwrap_or(0);
        entry.rate_mbit = Some(mbit).filter(|mbit| *mbit > 0);
        entry.is_down = link.state == FI_LINK_DOWN;
    }
}

/// The IP address of an entry that has one.
fn ip_address(info: &FiInfo) -> Option<IpAddr> {
    let (offset, bytes) = match info.addr_format {
        FI_SOCKADDR_IN => (4, 4),
        FI_SOCKADDR_IN6 => (8, 16),
        _ => return None,
    };
    if info.src_addr.is_null() || info.src_addrlen < offset + bytes || info.src_addrlen > MOST_ADDRESS_BYTES {
        return None;
    }
    // SAFETY: the entry says that so many bytes are there, and they live as long as it does.
    let address = unsafe { std::slice::from_raw_parts(info.src_addr.cast::<u8>(), info.src_addrlen) };
    let address = &address[offset..offset + bytes];
    let four = || <[u8; 4]>::try_from(address).ok().map(IpAddr::from);
    four().or_else(|| <[u8; 16]>::try_from(address).ok().map(IpAddr::from))
}

/// The beginning of a text of the library.
pub(super) fn text_at(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: texts of the library end in a zero byte, and live as long as what they belong to.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    Some(crate::wire::cut(&text, MOST_TEXT_BYTES).to_owned())
}

fn words_of(release: u32) -> String {
    format!("{}.{}", release >> 16, release & 0xffff)
}

/// The process that has loaded a libfabric, or tried to; 0 before.
static LOADED_BY: statics::AtomicU64 = statics::AtomicU64::new(0);
/// The oldest release that has all that is used.
const OLDEST: u32 = version(1, 14);
/// The newest interface that is asked for.
const NEWEST: u32 = version(2, 0);
/// All that a provider may ask of memory, and that is given to it.
pub(super) const MEMORY_MODES: i32 = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
/// So many entries are looked at. A host with a dozen interfaces has a few hundred.
const MOST_ENTRIES: usize = 4096;
/// The longest address of a provider.
pub(super) const MOST_ADDRESS_BYTES: usize = 256;
const MOST_TEXT_BYTES: usize = 256;

const _: () = assert!(MEMORY_MODES == 0x274);
