//! Device memory: addresses, blocks in files, who may touch what, and the state that the processes of a machine share.

pub mod state;
