//! What runs on a GPU: kernels, what they are given, and what is kept until they have run.
//!
//! | file | what |
//! |---|---|
//! | `kernels` | the kernels that ship, loaded into a context |
//! | `arguments` | the records that a launch hands to a kernel, and the shape of its grid |
//! | `graphs` | what keeps alive what captured launches need |
//! | `tables` | steps and operands that are too large for the parameter of a launch |
//! | `levels` | in which launches the copies and folds of ranks of one GPU go there |
//! | `programs` | what ranks of one GPU do, walked on the host |
//! | `walks` | what the walks of the last launches have yielded |
//! | `polling` | programs that wait on the GPU, for ranks on other GPUs |
//! | `members` | calls of processes that share a GPU: one of them leads |
//! | `queue` | a queue of a GPU, into which all of this is put |

pub(super) mod kernels;
pub(super) mod arguments;
pub(super) mod graphs;
pub(super) mod tables;
mod levels;
mod programs;
pub(super) mod walks;
pub(super) mod polling;
pub(super) mod members;
pub(super) mod queue;
