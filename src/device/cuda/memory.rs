//! Memory of a GPU, and memory of the host that GPUs reach.
//!
//! | file | what |
//! |---|---|
//! | `pieces` | which parts of one memory are free |
//! | `unshared` | what keeps memory of the host that never leaves this process |
//! | `host_pins` | memory of the host in which kernels work, where GPUs do not reach each other's |
//! | `physical` | memory without addresses, and what it leaves its process by |
//! | `legacy` | memory that other processes open by a handle |
//! | `chunks` | memory for the threads of this process: pieces of large mappings |
//! | `allocation` | all memory that the library makes, imports or takes in |
//! | `lent` | memory that the program has allocated itself |

pub(super) mod pieces;
pub(super) mod unshared;
pub(super) mod host_pins;
pub(super) mod physical;
mod legacy;
pub(super) mod chunks;
pub(super) mod allocation;
pub(super) mod lent;
