//! Memory of a kind, and the arithmetic done in it.
//!
//! Host memory, of this process and of shared windows, is the first kind: [`Kernel`] copies and reduces there. Executors
//! describe a step as a [`Pass`] and know nothing of types, operators or vector widths.

mod host;

pub use host::{Kernel, Pass, Staging, Store, Turn};
