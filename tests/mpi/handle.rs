//! MPI communicators that rsmpi has no name for, and handles that go to another thread.

use ::mpi::ffi::{self, MPI_Comm};
use ::mpi::raw::AsRaw;

/// A raw handle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle(MPI_Comm);

// SAFETY: a handle is a number, or a pointer that MPI alone follows; the tests call MPI from other threads where its
// level allows it.
unsafe impl Send for Handle {}

// SAFETY: it yields the handle that it holds.
unsafe impl AsRaw for Handle {
    type Raw = MPI_Comm;

    fn as_raw(&self) -> MPI_Comm {
        self.0
    }
}

impl Handle {
    /// That of a communicator which outlives it.
    pub(crate) fn of(comm: &impl AsRaw<Raw = MPI_Comm>) -> Handle {
        Handle(comm.as_raw())
    }

    /// `MPI_COMM_WORLD`, whether or not MPI is up.
    pub(crate) fn world() -> Handle {
        // SAFETY: a constant that the library has set when it was loaded.
        Handle(unsafe { ffi::RSMPI_COMM_WORLD })
    }

    /// `MPI_COMM_NULL`.
    pub(crate) fn null() -> Handle {
        // SAFETY: as above.
        Handle(unsafe { ffi::RSMPI_COMM_NULL })
    }

    /// Lets MPI return its errors on this communicator, in place of ending the job.
    pub(crate) fn return_errors(self) {
        // SAFETY: MPI is up, the handle is a live communicator's, and the other is a constant of the library's.
        let status = unsafe { ffi::MPI_Comm_set_errhandler(self.0, ffi::RSMPI_ERRORS_RETURN) };
        assert_eq!(status, 0);
    }

    /// Whether MPI does so.
    pub(crate) fn returns_errors(self) -> bool {
        // SAFETY: a constant that the library has set when it was loaded.
        let mut handler = unsafe { ffi::RSMPI_ERRORS_RETURN };
        // SAFETY: MPI is up, and the handle is a live communicator's; writes one handle.
        let status = unsafe { ffi::MPI_Comm_get_errhandler(self.0, &raw mut handler) };
        // SAFETY: a constant that the library has set when it was loaded.
        status == 0 && handler == unsafe { ffi::RSMPI_ERRORS_RETURN }
    }

    /// An intercommunicator between `mine`, which rank 0 of `bridge` or rank `other` of it leads, and the other half.
    /// It is left to MPI.
    pub(crate) fn between(
        mine: &impl AsRaw<Raw = MPI_Comm>,
        bridge: &impl AsRaw<Raw = MPI_Comm>,
        other: i32,
    ) -> Handle {
        let mut made = Handle::null();
        let (mine, bridge) = (mine.as_raw(), bridge.as_raw());
        // SAFETY: MPI is up; both handles are live communicators; writes one handle.
        let status = unsafe { ffi::MPI_Intercomm_create(mine, 0, bridge, other, TAG, &raw mut made.0) };
        assert_eq!(status, 0);
        made
    }
}

/// Any tag: nobody else sends at that time.
const TAG: i32 = 7;
