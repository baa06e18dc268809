//! libfabric's objects: opened in order, closed in order, never while a forked child has them.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

use crate::transport::libfabric::abi::{
    FI_AV_TABLE, FI_CQ_FORMAT_TAGGED, FI_ENABLE, FI_GETWAIT, FI_RECV, FI_SEND, FI_WAIT_FD, FI_WAIT_NONE, FiAvAttr,
    FiCqAttr, FiDomain, FiEp, FiFid, FiInfo, FiMr, FiObject, FiOpsAv, FiOpsCm, FiOpsCq, FiOpsDomain, FiOpsFabric,
    FiOpsMr, FiOpsTagged,
};
use crate::transport::libfabric::library::{MOST_ADDRESS_BYTES, OfiLibrary, opened};

/// A call that libfabric has refused, and its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OfiRefusal {
    pub(super) call: &'static str,
    pub(super) code: i32,
}

/// An object of libfabric's. It stays open when it is dropped.
#[derive(Debug)]
pub(super) struct OfiObject(NonNull<FiFid>);

// SAFETY: an object may be used by any thread, one at a time (`FI_THREAD_DOMAIN`); its owner has it exclusively.
unsafe impl Send for OfiObject {}

impl OfiObject {
    pub(super) fn raw(&self) -> *mut FiFid {
        self.0.as_ptr()
    }

    /// The object as a larger structure that begins with it.
    ///
    /// # Safety
    /// It is one: of a kind that `T` is the layout of.
    unsafe fn read<T: Copy>(&self) -> T {
        // SAFETY: the caller knows the kind, and the object is open.
        unsafe { self.0.cast::<T>().read() }
    }

    /// A table of functions of the object, which is a `T`.
    ///
    /// # Safety
    /// As [`OfiObject::read`], and the table has the layout of a `U`.
    unsafe fn table<T: Copy, U: Copy>(&self, which: impl FnOnce(T) -> *const U) -> U {
        // SAFETY: the caller's word.
        let object = unsafe { self.read::<T>() };
        let table = which(object);
        // SAFETY: an open object has its tables, and the caller knows their layout.
        unsafe { table.read() }
    }

    fn checked(call: &'static str, code: c_int) -> Result<(), OfiRefusal> {
        if code == 0 { Ok(()) } else { Err(OfiRefusal { call, code }) }
    }

    fn bind(&self, call: &'static str, to: &OfiObject, flags: u64) -> Result<(), OfiRefusal> {
        // SAFETY: every object has the table, as long as it is open.
        let ops = unsafe { self.table(|fid: FiFid| fid.ops) };
        // SAFETY: two open objects of a domain.
        Self::checked(call, unsafe { (ops.bind)(self.raw(), to.raw(), flags) })
    }

    fn control(&self, call: &'static str, (command, argument): (c_int, *mut c_void)) -> Result<(), OfiRefusal> {
        // SAFETY: see `bind`.
        let ops = unsafe { self.table(|fid: FiFid| fid.ops) };
        // SAFETY: an open object, and what the command takes.
        Self::checked(call, unsafe { (ops.control)(self.raw(), command, argument) })
    }

    pub(super) fn close(self, call: &'static str) -> Result<(), OfiRefusal> {
        // SAFETY: see `bind`.
        let ops = unsafe { self.table(|fid: FiFid| fid.ops) };
        // SAFETY: an open object, for the last time.
        Self::checked(call, unsafe { (ops.close)(self.raw()) })
    }
}

/// What a communicator has open on a NIC.
#[derive(Debug)]
pub(super) struct OpenObjects {
    pub(super) endpoint: OfiObject,
    pub(super) queue: OfiObject,
    pub(super) addresses: OfiObject,
    pub(super) domain: OfiObject,
    pub(super) fabric: OfiObject,
}

/// The functions of open objects that are called again and again.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfiCalls {
    pub(super) tagged: FiOpsTagged,
    pub(super) queue: FiOpsCq,
    pub(super) addresses: FiOpsAv,
    pub(super) memory: FiOpsMr,
    pub(super) fabric: FiOpsFabric,
}

impl OpenObjects {
    /// Opens all of them for an entry of libfabric's list, with room for so many completions; yields the functions, and
    /// the queue's descriptor where it has one.
    ///
    /// # Errors
    /// The first call that was refused; what was open is closed again.
    pub(super) fn open(
        library: OfiLibrary,
        info: NonNull<FiInfo>,
        completions: usize,
    ) -> Result<(OpenObjects, OfiCalls, Option<c_int>), OfiRefusal> {
        // SAFETY: an entry of a list that its owner keeps.
        let attributes = unsafe { info.read() }.fabric_attr;
        let refused = |call| move |code| OfiRefusal { call, code };
        let mut open = Opening::default();
        let fabric = OfiObject(library.open_fabric(attributes).map_err(refused("fi_fabric"))?);
        let fabric = open.keep(fabric);
        // SAFETY: a fabric has this layout.
        let fabric_ops = unsafe { open.get(fabric).table(|fabric: FiObject<FiOpsFabric>| fabric.ops) };
        let mut object = null_mut();
        // SAFETY: the entry is one of this fabric; no context.
        let code = unsafe { (fabric_ops.domain)(open.raw(fabric), info.as_ptr(), &raw mut object, null_mut()) };
        let domain = open.keep(OfiObject(opened(code, object).map_err(refused("fi_domain"))?));
        // SAFETY: a domain has this layout, and these two tables.
        let domain_ops: FiOpsDomain = unsafe { open.get(domain).table(|domain: FiDomain| domain.object.ops) };
        // SAFETY: as above.
        let memory: FiOpsMr = unsafe { open.get(domain).table(|domain: FiDomain| domain.mr) };
        let (queue, descriptor) = open_queue(&mut open, (domain, &domain_ops), completions)?;
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut vector: FiAvAttr = unsafe { std::mem::zeroed() };
        vector.kind = FI_AV_TABLE;
        let mut object = null_mut();
        // SAFETY: attributes of the newest size; no context.
        let code = unsafe { (domain_ops.av_open)(open.raw(domain), &raw mut vector, &raw mut object, null_mut()) };
        let addresses = open.keep(OfiObject(opened(code, object).map_err(refused("fi_av_open"))?));
        let mut object = null_mut();
        // SAFETY: the entry is the domain's; no context.
        let code = unsafe { (domain_ops.endpoint)(open.raw(domain), info.as_ptr(), &raw mut object, null_mut()) };
        let endpoint = open.keep(OfiObject(opened(code, object).map_err(refused("fi_endpoint"))?));
        open.get(endpoint).bind("fi_ep_bind", open.get(queue), FI_SEND | FI_RECV)?;
        open.get(endpoint).bind("fi_ep_bind", open.get(addresses), 0)?;
        open.get(endpoint).control("fi_enable", (FI_ENABLE, null_mut()))?;
        // An endpoint may change its functions when it is enabled, and not later.
        // SAFETY: layouts and tables of open objects, here and below.
        let tagged = unsafe { open.get(endpoint).table(|endpoint: FiEp| endpoint.tagged) };
        // SAFETY: as above.
        let queue_ops = unsafe { open.get(queue).table(|queue: FiObject<FiOpsCq>| queue.ops) };
        // SAFETY: as above.
        let vector_ops = unsafe { open.get(addresses).table(|vector: FiObject<FiOpsAv>| vector.ops) };
        let calls = OfiCalls { tagged, queue: queue_ops, addresses: vector_ops, memory, fabric: fabric_ops };
        Ok((open.finish(), calls, descriptor))
    }

    /// The endpoint's own address.
    ///
    /// # Errors
    /// libfabric's, and where the address is longer than any that is known.
    pub(super) fn address(&self) -> Result<Vec<u8>, OfiRefusal> {
        // SAFETY: layout and table of an open endpoint.
        let cm: FiOpsCm = unsafe { self.endpoint.table(|endpoint: FiEp| endpoint.cm) };
        let (mut address, mut length) = (vec![0u8; MOST_ADDRESS_BYTES], MOST_ADDRESS_BYTES);
        // SAFETY: a place of so many bytes, and their number.
        let code = unsafe { (cm.getname)(self.endpoint.raw(), address.as_mut_ptr().cast(), &raw mut length) };
        OfiObject::checked("fi_getname", code)?;
        address.truncate(length);
        Ok(address)
    }

    /// Registers memory, for sends and receives; the region and what requests name it by.
    ///
    /// # Errors
    /// libfabric's.
    ///
    /// # Safety
    /// The memory stays mapped until the region or the endpoint is closed.
    pub(super) unsafe fn register(
        &self,
        calls: &OfiCalls,
        (start, bytes): (NonNull<u8>, usize),
        (key, is_bound): (u64, bool),
    ) -> Result<(OfiObject, *mut c_void), OfiRefusal> {
        let mut object = null_mut();
        let (domain, access) = (self.domain.raw(), FI_SEND | FI_RECV);
        // SAFETY: an open domain, and memory that the caller keeps; no offset, flags or context.
        let code = unsafe {
            (calls.memory.reg)(domain, start.as_ptr().cast(), bytes, access, 0, key, 0, &raw mut object, null_mut())
        };
        let region = OfiObject(opened(code, object).map_err(|code| OfiRefusal { call: "fi_mr_reg", code })?);
        if is_bound {
            let bound = region.bind("fi_mr_bind", &self.endpoint, 0);
            if let Err(refused) = bound.and_then(|()| region.control("fi_mr_enable", (FI_ENABLE, null_mut()))) {
                // The first error counts.
                let _second = region.close("fi_close");
                return Err(refused);
            }
        }
        // SAFETY: a region has this layout.
        let descriptor = unsafe { region.read::<FiMr>() }.mem_desc;
        Ok((region, descriptor))
    }
}

/// Opens the queue of completions, with a descriptor where the provider has one.
fn open_queue(
    open: &mut Opening,
    (domain, ops): (usize, &FiOpsDomain),
    completions: usize,
) -> Result<(usize, Option<c_int>), OfiRefusal> {
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut attributes: FiCqAttr = unsafe { std::mem::zeroed() };
    (attributes.size, attributes.format) = (completions, FI_CQ_FORMAT_TAGGED);
    let mut first = Err(0);
    for kind in [FI_WAIT_FD, FI_WAIT_NONE] {
        attributes.wait_obj = kind;
        let mut object = null_mut();
        // SAFETY: attributes of the newest size; no context.
        let code = unsafe { (ops.cq_open)(open.raw(domain), &raw mut attributes, &raw mut object, null_mut()) };
        first = opened(code, object);
        let Ok(queue) = first else { continue };
        let queue = open.keep(OfiObject(queue));
        let mut descriptor: c_int = -1;
        let told = open.get(queue).control("fi_control", (FI_GETWAIT, (&raw mut descriptor).cast()));
        return Ok((queue, (kind == FI_WAIT_FD && told.is_ok() && descriptor >= 0).then_some(descriptor)));
    }
    Err(OfiRefusal { call: "fi_cq_open", code: first.err().unwrap_or(0) })
}

/// Objects that are open so far. Dropped, it closes them, the last one first.
#[derive(Debug, Default)]
struct Opening(Vec<OfiObject>);

impl Opening {
    fn keep(&mut self, object: OfiObject) -> usize {
        self.0.push(object);
        self.0.len() - 1
    }

    fn get(&self, place: usize) -> &OfiObject {
        &self.0[place]
    }

    fn raw(&self, place: usize) -> *mut FiFid {
        self.0[place].raw()
    }

    /// All of them, in the order in which `OpenObjects::open` has opened them.
    fn finish(mut self) -> OpenObjects {
        let all: [OfiObject; 5] = std::mem::take(&mut self.0).try_into().expect("five are opened above");
        let [fabric, domain, queue, addresses, endpoint] = all;
        OpenObjects { endpoint, queue, addresses, domain, fabric }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        while let Some(object) = self.0.pop() {
            // The error that ended the opening counts.
            let _second = object.close("fi_close");
        }
    }
}
