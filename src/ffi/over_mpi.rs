//! The protocol between MPI's ranks, over the calls of MPI that `rsccl/mpi.hpp` has filled in.
//!
//! A table arrives as a pointer, since the bridge knows no functions as fields. It lives as long as the process, and
//! so does what it calls: it stands in the program, beside the calls to these functions.

use super::bridge::Place;
use super::failure::{Failure, guard};
use super::places::place_of;
use super::{Comm, Settings};

use crate::error::{Error, Result};
use crate::over_mpi::{self, Handle, Mpi, Table};

/// The table behind a pointer.
///
/// # Errors
/// [`crate::error::Kind::InvalidUsage`] where the header that has filled it is of another version.
///
/// # Safety
/// The pointer is of a table of `rsccl/mpi.hpp`, of any version, which lives as long as the process.
unsafe fn table(calls: *const u8) -> Result<Mpi> {
    const { assert!(std::mem::offset_of!(Table, bytes) == 0) };
    // SAFETY: the first field of the table, whatever its version.
    let bytes = unsafe { calls.cast::<u64>().read() };
    if bytes != size_of::<Table>() as u64 {
        let message =
            "this program was compiled with the rsccl/mpi.hpp of another version of rsccl than the library is of";
        return Err(Error::invalid_usage(message));
    }
    // SAFETY: of our own version, as was just seen; it lives by the contract.
    Ok(unsafe { &*calls.cast::<Table>() })
}

/// # Safety
/// As [`table`]; `theirs` is a handle of its MPI's, null or of a communicator that lives during the call.
pub(super) unsafe fn mpi_join(comm: &mut Comm, calls: *const u8, theirs: u64, settings: &Settings) -> *mut Failure {
    guard(|| {
        // SAFETY: the caller's promise.
        let mpi = unsafe { table(calls) }?;
        // SAFETY: as above.
        let made = unsafe { over_mpi::communicator(mpi, Handle(theirs), &settings.0) }?;
        comm.0 = Some(made);
        Ok(())
    })
}

/// # Safety
/// As [`mpi_join`].
pub(super) unsafe fn mpi_like(comm: &Comm, calls: *const u8, sub: u64, child: &mut Comm) -> *mut Failure {
    comm.on(|comm| {
        // SAFETY: the caller's promise.
        let mpi = unsafe { table(calls) }?;
        // SAFETY: as above.
        let made = unsafe { over_mpi::like(mpi, comm, Handle(sub)) }?;
        child.0 = made;
        Ok(())
    })
}

/// # Safety
/// As [`mpi_join`].
pub(super) unsafe fn mpi_check(comm: &Comm, calls: *const u8, theirs: u64) -> *mut Failure {
    comm.on(|comm| {
        // SAFETY: the caller's promise.
        let mpi = unsafe { table(calls) }?;
        // SAFETY: as above.
        unsafe { over_mpi::check(mpi, comm, Handle(theirs)) }
    })
}

/// # Safety
/// As [`mpi_join`].
pub(super) unsafe fn mpi_placement(comm: &Comm, calls: *const u8, theirs: u64, place: &mut Place) -> *mut Failure {
    comm.on(|comm| {
        // SAFETY: the caller's promise.
        let mpi = unsafe { table(calls) }?;
        // SAFETY: as above.
        *place = place_of(unsafe { over_mpi::placement(mpi, comm, Handle(theirs)) }?);
        Ok(())
    })
}

/// Whether any thread may call MPI at any time; fails where this one may not call it now.
///
/// # Safety
/// As [`table`].
pub(super) unsafe fn mpi_check_thread(calls: *const u8, everywhere: &mut bool) -> *mut Failure {
    guard(|| {
        // SAFETY: the caller's promise.
        *everywhere = over_mpi::calls::check_thread(unsafe { table(calls) }?)?;
        Ok(())
    })
}

/// Lets MPI progress.
///
/// # Safety
/// As [`table`].
pub(super) unsafe fn mpi_poke(calls: *const u8) -> *mut Failure {
    // SAFETY: the caller's promise.
    guard(|| over_mpi::calls::poke(unsafe { table(calls) }?))
}
