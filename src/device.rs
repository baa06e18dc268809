//! Memory of a kind, and the arithmetic done in it.
//!
//! [`host`] is the memory of this process and of shared windows: [`Kernel`] copies and reduces there. Executors
//! describe a step as a [`Pass`] and know nothing of types, operators or vector widths.

pub mod host;

pub use host::{Kernel, Pass, Store};
