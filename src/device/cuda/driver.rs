//! The driver: its functions, its answers, and what every call of it needs.
//!
//! | file | what |
//! |---|---|
//! | `raw` | the driver's functions, by name and version |
//! | `result` | calls that name what failed; the driver of this process |
//! | `gate` | launches and the freeing of memory take turns |
//! | `stream` | streams and events |
//! | `context` | the primary context of a GPU |

pub(super) mod raw;
pub(super) mod gate;
pub(super) mod result;
pub(super) mod stream;
pub(super) mod context;
