//! The buffers of a contestant: a program's own arrays, which are the same for all, buffers that are registered, or
//! blocks of the allocator that are registered where they lie.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rsccl::comm::Registered;
use rsccl::{Buffer, Communicator, Result};

#[derive(Default)]
pub(crate) enum Memory {
    /// A request has it.
    #[default]
    Away,
    Ordinary(Private),
    Registered(Buffer<f32>),
    /// `malloc`'s block, as a `Vec` and a `std::vector` have it: it begins 16 bytes into a page.
    InPlace(Registered<Vec<f32>>),
}

impl Memory {
    pub(crate) fn ordinary(elements: usize) -> Memory {
        Memory::Ordinary(Private::new(elements))
    }

    /// Collective: all ranks register buffers of these lengths, in the same order.
    pub(crate) fn registered(comm: &Communicator, elements: usize) -> Result<Memory> {
        let buffer = Buffer::new(elements)?;
        comm.register(&buffer)?;
        Ok(Memory::Registered(buffer))
    }

    /// As `registered`.
    pub(crate) fn in_place(comm: &Communicator, elements: usize) -> Result<Memory> {
        let memory = Registered::new(vec![0.0; elements]);
        assert_eq!(memory.refusal(), None, "not registered where it lies");
        comm.register(&memory)?;
        Ok(Memory::InPlace(memory))
    }
}

impl Deref for Memory {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Memory::Away => &[],
            Memory::Ordinary(private) => private,
            Memory::Registered(buffer) => buffer,
            Memory::InPlace(memory) => memory,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Memory::Away => &mut [],
            Memory::Ordinary(private) => private,
            Memory::Registered(buffer) => buffer,
            Memory::InPlace(memory) => memory,
        }
    }
}

/// Private memory that begins at a multiple of 2 MiB, in small pages, as in `driver/loop.hpp`.
pub(crate) struct Private {
    base: NonNull<libc::c_void>,
    bytes: usize,
    data: NonNull<f32>,
    elements: usize,
}

// SAFETY: the mapping belongs to this value alone, and threads have no part in it.
unsafe impl Send for Private {}

const ALIGNMENT: usize = 2 << 20;

impl Private {
    fn new(elements: usize) -> Private {
        let bytes = elements.max(1) * size_of::<f32>() + 2 * ALIGNMENT;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping of the kernel's choice touches no memory that anybody has.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        assert!(base != libc::MAP_FAILED, "no memory for {bytes} bytes");
        // SAFETY: the mapping just made; advice changes no contents. Where the kernel has no huge pages it refuses, which is as good.
        unsafe { libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE) };
        let base = NonNull::new(base).expect("a mapping is never at null");
        let data = base.cast::<u8>().map_addr(|address| {
            address.checked_add(address.get().wrapping_neg() % ALIGNMENT).expect("inside the mapping")
        });
        Private { base, bytes, data: data.cast(), elements }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, unmapped once; nobody borrows it any more.
        unsafe { libc::munmap(self.base.as_ptr(), self.bytes) };
    }
}

impl Deref for Private {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: `elements` floats from `data` lie inside the mapping, which is zeroed when it is new.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.elements) }
    }
}

impl DerefMut for Private {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as for `deref`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.elements) }
    }
}
