//! Communicators from MPI communicators.
