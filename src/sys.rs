//! All system calls: the only home of `libc`. Higher floors call safe functions.

pub mod alive;
pub mod bell;
pub mod clock;
pub mod coroutine;
pub mod cpu;
pub mod descriptor;
pub mod devices;
pub mod elf;
pub mod environment;
pub mod fabric_devices;
pub mod float_mode;
pub mod foreign_pages;
pub mod fork;
#[cfg(not(all(loom, test)))]
pub mod futex;
#[cfg(all(loom, test))]
#[path = "sys/futex_model.rs"]
pub mod futex;
pub mod given;
pub mod gpus;
pub(crate) mod handed_down;
pub mod host;
pub mod identity;
pub mod in_place;
mod inherited;
pub mod interfaces;
pub mod kept_thread;
pub mod lending;
pub mod library;
pub mod limits;
mod mapped_ranges;
pub mod memory;
#[cfg(any(feature = "cuda", all(test, not(loom))))]
pub mod note;
pub mod numa;
pub mod nvml;
pub mod open;
mod own_copies;
mod own_status;
mod page_policy;
pub mod page_text;
pub mod peer_memory;
pub mod pinning;
pub mod pmix;
pub mod poller;
pub mod ports;
pub mod prefetch;
pub mod printed;
pub mod process;
pub mod quota;
pub mod random;
pub mod rdma_ports;
pub mod ranges;
#[cfg(not(all(loom, test)))]
pub mod rank_page;
#[cfg(all(loom, test))]
#[path = "sys/rank_page_model.rs"]
pub mod rank_page;
pub mod region;
mod room;
pub mod signals;
pub mod terminal;
pub mod termination;
pub mod text_file;
pub mod thread;
pub mod unanswered;
pub mod writing;
