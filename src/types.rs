//! The vocabulary of the crate: ranks, quantities, element types, operators, collectives, algorithms, protocols. Pure.

#![forbid(unsafe_code)]

mod collective;
mod element;
pub(crate) mod filter;
pub(crate) mod minifloat;
mod names;
mod operator;
mod plain;
pub(crate) mod quantity;

pub use collective::Collective;
pub(crate) use collective::{
    CallBlocks, CarriedBy, Contribution, Counted, Counts, Folded, Holding, InPlace, Places, RootSide,
};
pub use element::{DataType, Element, F8E4M3, F8E5M2, bf16, f16};
pub(crate) use filter::Filter;
pub use names::{Algorithm, Protocol, TransportKind};
pub use operator::{ReduceOp, Scalar};
pub use plain::{bytes_of, bytes_of_mut, values_of};
pub(crate) use quantity::{Bytes, Elements};
pub use quantity::{NO_RANK, Rank, World};
