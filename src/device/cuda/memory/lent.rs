//! Memory of a GPU that the program has allocated itself, as others work in it: kernels of other GPUs of this process,
//! and other processes.
//!
//! | made by | reached from other GPUs of the process | leaves the process by |
//! |---|---|---|
//! | `cuMemAlloc` | yes: contexts are peers | a note (`legacy`) of `cuIpcGetMemHandle`, with the place in the allocation |
//! | `cuMemCreate`, `cuMemMap` | where the program has allowed it (`cuMemSetAccess`) | a descriptor, where it was made for that |
//! | `cuMemAllocAsync` | no | nothing |

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use cudarc::driver::sys::{CUdevice, CUdeviceptr};

use super::legacy;
use super::physical::{POSIX, location};
use crate::device::cuda::active::Active;
use crate::device::cuda::driver::context::Primary;
use crate::device::cuda::driver::result::call;
use crate::device::{Adopted, Generation, Home, Keep, Lendable, MOST_PARTS, Region};
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::Arc;
use crate::sys::note::LentNote;
use crate::sys::open;

/// What keeps a region of the program's memory: nothing but the GPU, and what other processes take it by.
#[derive(Debug)]
struct Lent {
    /// In which allocations it lies; none of a region that is handed over.
    parts: Vec<Adopted>,
    descriptor: Option<Arc<OwnedFd>>,
    /// Which the others hold while they have the memory open.
    _note: Option<LentNote>,
    _active: Arc<Active>,
}

impl Keep for Lent {
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.descriptor.clone()
    }

    fn adopted(&self) -> &[Adopted] {
        &self.parts
    }

    fn lend(&self, _: Generation) -> bool {
        false
    }

    fn take_back(&self, _: Generation) -> bool {
        false
    }

    fn detach(&self) -> Result<()> {
        Err(not_ours())
    }

    fn is_detached(&self) -> bool {
        false
    }

    fn share_anew(&self) -> Result<Generation> {
        Err(not_ours())
    }

    fn prefer_huge_pages(&self) {}
}

#[cold]
fn not_ours() -> Error {
    Error::internal("memory that the program has allocated cannot be taken back from peers")
}

/// What the driver knows of an address.
#[derive(Debug, Default, PartialEq, Eq)]
struct Facts {
    context: u64,
    buffer: u64,
    /// 0 for no pool.
    pool: u64,
    /// 0 where `cuIpcGetMemHandle` refuses the memory.
    has_legacy_handle: u64,
    /// The types of handles that the memory was made for.
    handle_types: u64,
}

impl Facts {
    fn of(primary: &Primary, address: CUdeviceptr) -> Result<Facts> {
        // Each has a width of its own, of 8 bytes at most, and stands at the low end.
        let mut values = [0_u64; ATTRIBUTES.len()];
        let mut places = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        let count = c_uint::try_from(ATTRIBUTES.len()).expect("a few");
        // SAFETY: each attribute has a place, none of which is wider than the places are.
        let asked =
            unsafe { call!(primary, cuPointerGetAttributes(count, ATTRIBUTES.as_ptr(), places.as_mut_ptr(), address)) };
        asked.map_err(|failure| primary.error(failure))?;
        let [context, buffer, pool, has_legacy_handle, handle_types] = values;
        Ok(Facts { context, buffer, pool, has_legacy_handle, handle_types })
    }
}

/// `CU_POINTER_ATTRIBUTE_CONTEXT`, `…_BUFFER_ID`, `…_MEMPOOL_HANDLE`, `…_IS_LEGACY_CUDA_IPC_CAPABLE`,
/// `…_ALLOWED_HANDLE_TYPES`
const ATTRIBUTES: [c_int; 5] = [1, 7, 17, 10, 14];
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: u64 = 3;

/// The program's memory from `address` on as a region of `home`.
///
/// # Errors
/// [`Kind::InvalidArgument`] where so much does not lie there.
pub(in crate::device::cuda) fn adopt(
    active: Arc<Active>,
    home: Home,
    (address, bytes): (u64, usize),
) -> Result<Region> {
    let mut parts = Vec::new();
    {
        let primary = active.primary();
        let _entered = primary.enter()?;
        let (end, mut at) = (address.checked_add(bytes as u64), address);
        while end.is_none_or(|end| at < end) {
            let found = mapping(primary, at);
            let (start, length) = if at == address { found? } else { found.unwrap_or((at, 0)) };
            let next = start.saturating_add(length);
            // A gap, and a driver that says nothing new, end the walk.
            if end.is_none() || next <= at || crate::device::cuda::locate(at)? != Some(home) {
                return Err(too_long(home, (address, bytes), at));
            }
            parts.push(Adopted { address: at, number: Facts::of(primary, at)?.buffer });
            at = next;
        }
    }
    let place = usize::try_from(address).ok().map(std::ptr::without_provenance_mut);
    let base = place.and_then(NonNull::new).ok_or_else(|| too_long(home, (address, bytes), address))?;
    let keep = Lent { parts, descriptor: None, _note: None, _active: active };
    // SAFETY: `DeviceBuffer::from_raw`'s caller has promised that the memory is there.
    Ok(unsafe { Region::new(base, bytes, home, Arc::new(keep)) })
}

#[cold]
fn too_long(home: Home, (address, bytes): (u64, usize), until: u64) -> Error {
    let there = until.saturating_sub(address);
    Error::invalid_argument(format!("{bytes} bytes at {address:#x}: {home} has {there} bytes there"))
}

/// Where the allocation, or the part of one that was mapped, lies in which `at` is.
fn mapping(primary: &Primary, at: CUdeviceptr) -> Result<(CUdeviceptr, u64)> {
    let (mut start, mut length) = (0, 0);
    // SAFETY: both places are ours and live through the call.
    let asked = unsafe { call!(primary, cuMemGetAddressRange(&raw mut start, &raw mut length, at)) };
    asked.map_err(|failure| {
        let error = primary.error(failure);
        Error::invalid_argument(format!("there is no GPU memory at {at:#x}: {}", error.message()))
    })?;
    Ok((start, length as u64))
}

/// Whether the program's memory is still that which was [adopted](adopt).
pub(in crate::device::cuda) fn is_still_there(active: &Active, region: &Region) -> Result<bool> {
    let primary = active.primary();
    let _entered = primary.enter()?;
    for part in region.keep().adopted() {
        if Facts::of(primary, part.address)?.buffer != part.number {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How the program's memory is handed to the kernels of `visitors` in this process, and to other processes if there are
/// any `elsewhere`; or why it cannot be.
pub(in crate::device::cuda) fn lendable(
    active: &Arc<Active>,
    region: &Region,
    (visitors, elsewhere): (&[CUdevice], bool),
) -> Result<std::result::Result<Lendable, String>> {
    let primary = active.primary();
    let _entered = primary.enter()?;
    let (address, bytes) = (region.base().addr().get() as u64, region.bytes());
    let facts = Facts::of(primary, address)?;
    if facts.pool != 0 {
        return Ok(Err("is of a pool (cuMemAllocAsync), which only its own GPU reaches".to_owned()));
    }
    let mut handle = 0;
    let place: *mut c_void = region.base().as_ptr().cast();
    // SAFETY: the place of the handle is ours; the driver refuses an address of memory that is not mapped.
    match unsafe { call!(primary, cuMemRetainAllocationHandle(&raw mut handle, place)) } {
        Ok(()) => {}
        Err(refusal) if NOT_MAPPED.contains(&refusal.code) => {
            return whole_allocation(active, region, &facts, elsewhere);
        }
        Err(failure) => return Err(primary.error(failure)),
    }
    // SAFETY: gives back the reference that was taken just now: what is mapped stays.
    primary.give_back(|| unsafe { call!(primary, cuMemRelease(handle)) });
    let (mut at, mut mapped) = (address, Vec::new());
    while at < address + bytes as u64 {
        for visitor in visitors {
            let (mut flags, location) = (0, location(*visitor));
            // SAFETY: both places live through the call.
            let asked = unsafe { call!(primary, cuMemGetAccess(&raw mut flags, &raw const location, at)) };
            asked.map_err(|failure| primary.error(failure))?;
            if flags != READ_WRITE {
                return Ok(Err(format!("may not be written by GPU {visitor}: allow that (cuMemSetAccess)")));
            }
        }
        let (start, length) = mapping(primary, at)?;
        mapped.push((start, length));
        at = start + length;
    }
    if !elsewhere {
        return Ok(Ok(Lendable { parts: vec![region.clone()], offset: 0 }));
    }
    if mapped.len() > MOST_PARTS {
        let text = format!("lies in {} allocations, of which others map {MOST_PARTS}: make them larger", mapped.len());
        return Ok(Err(text));
    }
    let offset = usize::try_from(address - mapped[0].0).expect("inside one mapping");
    let mut parts = Vec::with_capacity(mapped.len());
    for (start, length) in mapped {
        if Facts::of(primary, start)?.handle_types & POSIX.unsigned_abs() as u64 == 0 {
            return Ok(Err("was not made for other processes (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)".to_owned()));
        }
        let descriptor = exported(primary, start)?;
        let base = usize::try_from(start).ok().map(std::ptr::without_provenance_mut).and_then(NonNull::new);
        let base = base.ok_or_else(|| Error::internal("memory at address 0"))?;
        let length = usize::try_from(length).expect("a length of memory");
        parts.push(offered(active, (base, length, region.home()), (descriptor, None)));
    }
    Ok(Ok(Lendable { parts, offset }))
}

/// What the driver answers of memory that was not mapped (`cuMemMap`): `CUDA_ERROR_INVALID_VALUE`, `…_NOT_PERMITTED`,
/// `…_NOT_SUPPORTED`.
const NOT_MAPPED: [c_int; 3] = [1, 800, 801];

/// A part of what `cuMemAlloc` has allocated.
fn whole_allocation(
    active: &Arc<Active>,
    region: &Region,
    facts: &Facts,
    elsewhere: bool,
) -> Result<std::result::Result<Lendable, String>> {
    let primary = active.primary();
    if facts.context != primary.number() {
        return Ok(Err("is of a context that is not its GPU's primary one".to_owned()));
    }
    if !elsewhere {
        return Ok(Ok(Lendable { parts: vec![region.clone()], offset: 0 }));
    }
    if facts.has_legacy_handle == 0 {
        return Ok(Err("has no handle for other processes (cuIpcGetMemHandle)".to_owned()));
    }
    let note = legacy::note_of(primary, region.base().addr().get() as u64, region.bytes())?;
    let descriptor = note.descriptor()?;
    let same = (region.base(), region.bytes(), region.home());
    Ok(Ok(Lendable { parts: vec![offered(active, same, (descriptor, Some(note)))], offset: 0 }))
}

/// What other processes import.
fn offered(
    active: &Arc<Active>,
    (base, bytes, home): (NonNull<u8>, usize, Home),
    (descriptor, note): (OwnedFd, Option<LentNote>),
) -> Region {
    let active = Arc::clone(active);
    let keep = Lent { parts: Vec::new(), descriptor: Some(Arc::new(descriptor)), _note: note, _active: active };
    // SAFETY: an allocation of the program, or a part of one, which it keeps.
    unsafe { Region::new(base, bytes, home, Arc::new(keep)) }
}

/// A descriptor of the allocation that is mapped at `at`.
fn exported(primary: &Primary, at: CUdeviceptr) -> Result<OwnedFd> {
    let mut handle = 0;
    let place = usize::try_from(at).map_or(std::ptr::null_mut(), std::ptr::without_provenance_mut);
    // SAFETY: the place of the handle is ours; something is mapped at the address.
    unsafe { call!(primary, cuMemRetainAllocationHandle(&raw mut handle, place)) }
        .map_err(|failure| primary.error(failure))?;
    let mut descriptor: c_int = -1;
    let into: *mut c_void = (&raw mut descriptor).cast();
    // SAFETY: we hold a reference of the handle; the place has the width of a descriptor.
    let made = unsafe { call!(primary, cuMemExportToShareableHandle(into, handle, POSIX, 0)) };
    // SAFETY: gives back the reference that was taken just now.
    primary.give_back(|| unsafe { call!(primary, cuMemRelease(handle)) });
    made.map_err(|failure| Error::new(Kind::System, primary.error(failure).message().to_owned()))?;
    // SAFETY: the driver made the descriptor for us alone.
    unsafe { open::own(descriptor) }.map_err(|error| Error::system("dup of a GPU memory's descriptor", error))
}
