//! The driver: what the C entry points of `libcuda.so.1` do once their pointers are checked.
//!
//! Every function here returns an [`Outcome`]: a value, or the code that the driver's documentation names for the
//! mistake. `libcuda/` turns these into C functions.

mod result;

pub use result::{CUresult, Outcome};
