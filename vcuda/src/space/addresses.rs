//! The one reservation of device addresses, and which of them are free.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{GRANULARITY, round_up, size};

/// Device addresses of a process: 4 TiB, more than the memory of 16 GPUs of the largest kind. Where the system has not
/// so many, as below valgrind, which counts what a program does: 8 GiB.
const SPANS: [u64; 2] = [4 << 40, 8 << 30];

/// The reservation: device addresses without access below, the places where files are mapped above.
#[derive(Debug)]
pub(super) struct Addresses {
    base: u64,
    /// How many there are.
    span: u64,
    /// Free ranges, by first address.
    free: BTreeMap<u64, u64>,
}

impl Addresses {
    /// Reserves the addresses; no memory is used yet.
    pub(super) fn reserve() -> io::Result<Addresses> {
        let [many, few] = SPANS;
        Addresses::reserve_span(many).or_else(|_| Addresses::reserve_span(few))
    }

    fn reserve_span(span: u64) -> io::Result<Addresses> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let length = size(2 * span + GRANULARITY);
        // SAFETY: a new mapping without access, at an address of the kernel's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = round_up(address as u64, GRANULARITY).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Addresses { base, span, free: BTreeMap::from([(base, span)]) })
    }

    /// Whether an address is one of the device's.
    pub(super) fn contains(&self, address: u64) -> bool {
        (self.base..self.base + self.span).contains(&address)
    }

    /// Takes a free range; at `wanted` if that is free. Sizes and alignments are multiples of the granularity.
    pub(super) fn take(&mut self, bytes: u64, align: u64, wanted: u64) -> Option<u64> {
        let fits = |start: u64, length: u64, at: u64| {
            at >= start && at.checked_add(bytes).is_some_and(|end| end <= start + length)
        };
        let hit = self.free.range(..=wanted).next_back().map(|(start, length)| (*start, *length));
        let at_wanted =
            hit.filter(|(start, length)| wanted != 0 && wanted.is_multiple_of(align) && fits(*start, *length, wanted));
        let (start, length, at) = match at_wanted {
            Some((start, length)) => (start, length, wanted),
            None => self.free.iter().find_map(|(start, length)| {
                let at = round_up(*start, align)?;
                fits(*start, *length, at).then_some((*start, *length, at))
            })?,
        };
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + bytes < start + length {
            self.free.insert(at + bytes, start + length - at - bytes);
        }
        Some(at)
    }

    /// Gives a range back, and joins it with free neighbours.
    pub(super) fn give_back(&mut self, start: u64, bytes: u64) {
        let (mut start, mut bytes) = (start, bytes);
        if let Some(after) = self.free.remove(&(start + bytes)) {
            bytes += after;
        }
        if let Some((before, length)) = self.free.range(..start).next_back().map(|(at, length)| (*at, *length))
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
            bytes += length;
        }
        self.free.insert(start, bytes);
    }

    /// Maps the first `bytes` of a file behind the device address `start`; returns where the host finds them.
    pub(super) fn map(&self, start: u64, bytes: u64, file: BorrowedFd<'_>) -> io::Result<*mut u8> {
        let place = self.data(start);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: replaces a part of our own reservation, which nobody uses: the range was taken and is not mapped.
        let mapped = unsafe { libc::mmap(place.cast(), size(bytes), rights, flags, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(place) }
    }

    /// Takes the file away from behind a range. Nobody touches it any more.
    pub(super) fn unmap(&self, start: u64, bytes: u64) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: replaces a part of our own reservation that the caller says is out of use.
        let mapped = unsafe { libc::mmap(self.data(start).cast(), size(bytes), libc::PROT_NONE, flags, -1, 0) };
        debug_assert!(mapped != libc::MAP_FAILED, "a part of a reservation can be reserved again");
    }

    /// Where the host finds what is mapped at a device address.
    pub(super) fn data(&self, address: u64) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(size(address + self.span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_come_back_as_one() {
        let mut addresses = Addresses::reserve().expect("addresses");
        let whole = addresses.free.clone();
        let parts = [1, 3, 2].map(|count| addresses.take(count * GRANULARITY, GRANULARITY, 0).expect("room"));
        assert_eq!(parts[1], parts[0] + GRANULARITY);
        let wanted = addresses.base + (1 << 30);
        assert_eq!(addresses.take(GRANULARITY, GRANULARITY, wanted), Some(wanted));
        let aligned = addresses.take(GRANULARITY, 64 << 20, 0).expect("room");
        assert_eq!(aligned % (64 << 20), 0);
        for (start, count) in [(parts[1], 3), (aligned, 1), (parts[0], 1), (wanted, 1), (parts[2], 2)] {
            addresses.give_back(start, count * GRANULARITY);
        }
        assert_eq!(addresses.free, whole);
    }
}
