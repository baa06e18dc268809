//! rsccl: collective communication for host and GPU memory.

pub mod bootstrap;
pub mod comm;
pub mod config;
pub mod device;
pub mod error;
pub mod exec;
pub mod log;
pub mod plan;
pub mod protocol;
pub mod sync;
pub mod sys;
pub mod topo;
pub mod transport;
pub mod tune;
pub mod types;
pub mod wire;

pub use bootstrap::UniqueId;
pub use comm::{Buffer, Communicator, group, local};
pub use config::Config;
pub use error::{Error, Result};
pub use types::{DataType, Element, ReduceOp};
