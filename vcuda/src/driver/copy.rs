//! Copies and fills. Which of them wait, and when the source is read, is as documented for each kind of memory.

use std::sync::Arc;

use super::{CUresult, Current, Driver, Outcome};
use crate::schedule::{Copy, Reason, Work};
use crate::simt::MemoryFault;
use crate::space::Side;

/// What a copy's call says about its two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the host to the device.
    HostToDevice,
    /// From the device to the host.
    DeviceToHost,
    /// Between device addresses.
    DeviceToDevice,
    /// As the addresses say.
    Any,
}

/// A copy as a call asks for it.
#[derive(Debug, Clone, Copy)]
pub struct CopyRequest {
    /// First address of the target.
    pub target: u64,
    /// First address of the source.
    pub source: u64,
    /// Bytes.
    pub bytes: u64,
    /// What the call says about the sides.
    pub direction: Direction,
}

impl Driver {
    /// A copy by a call that is not asynchronous: in the legacy stream.
    pub fn copy(&self, request: CopyRequest) -> Outcome {
        let current = self.current()?;
        self.guard_capture()?;
        self.copy_in(current, 0, request, true)
    }

    /// A copy in a stream.
    pub fn copy_async(&self, request: CopyRequest, stream: u64) -> Outcome {
        let (_, current) = self.stream(stream)?;
        self.copy_in(current, stream, request, false)
    }

    /// `cuMemcpyPeer` and its asynchronous form: the two contexts are checked.
    pub fn copy_peer(&self, request: CopyRequest, contexts: [u64; 2], stream: Option<u64>) -> Outcome {
        for context in contexts {
            self.usable(&self.engine.lock(), context)?;
        }
        match stream {
            Some(stream) => self.copy_async(request, stream),
            None => self.copy(request),
        }
    }

    fn copy_in(&self, current: Current, stream: u64, request: CopyRequest, synchronous: bool) -> Outcome {
        let CopyRequest { target, source, bytes, direction } = request;
        if bytes == 0 {
            return Ok(());
        }
        if target == 0 || source == 0 || target.checked_add(bytes).is_none() || source.checked_add(bytes).is_none() {
            return Err(CUresult::INVALID_VALUE);
        }
        let sides = (self.space.side(target), self.space.side(source));
        let fits = match direction {
            Direction::HostToDevice => sides.0 != Side::Pageable && sides.1 != Side::Device,
            Direction::DeviceToHost => sides.0 != Side::Device && sides.1 != Side::Pageable,
            Direction::DeviceToDevice => sides.0 != Side::Pageable && sides.1 != Side::Pageable,
            Direction::Any => true,
        };
        if !fits {
            return Err(CUresult::INVALID_VALUE);
        }
        self.check_exists(current, target, bytes)?;
        self.check_exists(current, source, bytes)?;
        let captured = self.is_captured(stream)?;
        // An asynchronous call reads ordinary memory before it returns, and writes it before it returns.
        let staged = (sides.1 == Side::Pageable && !synchronous && !captured).then(|| self.read_host(source, bytes));
        let operation = self.enqueue(stream, Work::Copy(Copy { target, source, bytes, staged }))?;
        let touches_host = sides.0 != Side::Device || sides.1 != Side::Device;
        let waits =
            if synchronous { touches_host || self.must_wait(&[target, source]) } else { sides.0 == Side::Pageable };
        match operation.filter(|_| waits) {
            Some(operation) => self.engine.wait_for(current.context, vec![operation], Reason::Asked),
            None => Ok(()),
        }
    }

    /// A fill by a call that is not asynchronous; it returns before the fill is done, unless it is the host's memory.
    pub fn fill(&self, target: u64, pattern: &[u8], count: u64) -> Outcome {
        let current = self.current()?;
        self.guard_capture()?;
        let operation = self.fill_in(current, 0, target, pattern, count)?;
        let waits = self.space.side(target) != Side::Device || self.must_wait(&[target]);
        match operation.filter(|_| waits) {
            Some(operation) => self.engine.wait_for(current.context, vec![operation], Reason::Asked),
            None => Ok(()),
        }
    }

    /// A fill in a stream.
    pub fn fill_async(&self, target: u64, pattern: &[u8], count: u64, stream: u64) -> Outcome {
        let (_, current) = self.stream(stream)?;
        self.fill_in(current, stream, target, pattern, count).map(|_| ())
    }

    fn fill_in(&self, current: Current, stream: u64, target: u64, pattern: &[u8], count: u64) -> Outcome<Option<u64>> {
        if count == 0 {
            return Ok(None);
        }
        let bytes = count.checked_mul(pattern.len() as u64).ok_or(CUresult::INVALID_VALUE)?;
        let aligned = target.is_multiple_of(pattern.len() as u64);
        if target == 0 || !aligned || target.checked_add(bytes).is_none() || self.space.side(target) == Side::Pageable {
            return Err(CUresult::INVALID_VALUE);
        }
        self.check_exists(current, target, bytes)?;
        self.enqueue(stream, Work::Fill { target, pattern: pattern.to_vec(), count })
    }

    /// Refuses a range that is not one of memory; what the context may not touch is found when the work runs.
    fn check_exists(&self, current: Current, address: u64, bytes: u64) -> Outcome {
        match self.space.check_range(current.agent(), address, bytes) {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.fault, MemoryFault::NoAccess { .. }) => Ok(()),
            Err(_) => Err(CUresult::INVALID_VALUE),
        }
    }

    fn must_wait(&self, addresses: &[u64]) -> bool {
        addresses.iter().any(|address| self.space.piece(*address).is_some_and(|piece| piece.sync_memops))
    }

    fn read_host(&self, source: u64, bytes: u64) -> Arc<Vec<u8>> {
        let length = crate::space::size(bytes);
        let mut copy = vec![0_u8; length];
        let address = std::ptr::with_exposed_provenance::<u8>(crate::space::size(source));
        // SAFETY: the program says by its call that these bytes of its own memory can be read; the vector has as many.
        unsafe { std::ptr::copy_nonoverlapping(address, copy.as_mut_ptr(), length) };
        Arc::new(copy)
    }
}
