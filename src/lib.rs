//! rsccl: collective communication for host and GPU memory.
//!
//! It is NCCL's stack built anew as a Rust engine: unique id, bootstrap, topology, plans, transports, executor. One API for
//! ranks that are threads, processes of one host, or processes of many hosts; the same collectives as NCCL, with the vector
//! forms of MPI beside them, and errors with names in them in place of hangs.
//!
//! It does not replace MPI: no derived types, no files, no one-sided windows. It does not start jobs over hosts: a launcher
//! (`srun`, `mpirun`, `torchrun`) does. It works on host memory on Linux, and on GPUs (`cuda`; tested on one real GPU and several virtual ones).
//!
//! ## A program
//!
//! Four ranks as threads, on any laptop:
//!
//! ```rust
//! use rsccl::{ReduceOp, local};
//!
//! fn main() -> rsccl::Result<()> {
//!     let sums = local::run(4, |comm| {
//!         let mine = [comm.rank(), 1];
//!         let mut sum = [0; 2];
//!         comm.all_reduce(&mine, &mut sum, ReduceOp::Sum)?;
//!         Ok(sum)
//!     })?;
//!     println!("{sums:?}");
//!     assert_eq!(sums, [[6, 4]; 4]); // on every rank: 0 + 1 + 2 + 3, and how many they are
//!     Ok(())
//! }
//! ```
//!
//! It prints `[[6, 4], [6, 4], [6, 4], [6, 4]]`. As processes, the closure's body follows `Communicator::from_env()?`, which
//! learns rank, world and meeting place from whatever launched it:
//!
//! ```sh
//! rsccl run -n 4 -- ./program                                              # this host
//! srun -n 8 ./program                      # Slurm, on one host or on several
//! mpirun -n 4 ./program                    # on one host or on several; no MPI needed
//! torchrun --nproc-per-node 8 --no-python ./program                        # as training jobs are started
//! ```
//!
//! With no launcher at all, set `RSCCL_RANK`, `RSCCL_WORLD_SIZE` and `RSCCL_STORE`, or call `Communicator::init`, which takes a
//! unique id, a rank and the world's size. Programs that have MPI make their communicator from MPI's (feature `mpi`); C++ has
//! the same as classes (feature `cpp`).
//!
//! ## What needs what
//!
//! | you want | it needs | without it |
//! |---|---|---|
//! | ranks as threads | nothing | |
//! | ranks as processes of one host | memfd and futex of Linux | `NCCL_SHM_DISABLE=1`: TCP on loopback |
//! | waits that wake by themselves | membarrier of Linux 4.16 | parked waits look again each millisecond |
//! | large calls between processes that copy nothing | a registered `Buffer` or `SharedPool`, or memory that is `Registered` where it lies | one copy by the kernel, or two by scratch |
//! | several hosts | TCP between them, hardware that libfabric reaches, InfiniBand and RoCE by verbs (`NCCL_NET=IB`) or a plug-in made for NCCL (`NCCL_NET_PLUGIN`); GPU memory goes through pinned memory of the host, straight to the NIC of a plug-in that takes it, or by NVLinks where they join hosts | |
//! | only your own processes at the meeting place | the unique id, or `RSCCL_SECRET` beside an address; that nobody reads what goes over TCP: feature `encrypt` (a C compiler) and `RSCCL_ENCRYPT=1` | `NCCL_DEBUG=WARN` warns |
//! | the same bits on every transport and size | `RSCCL_REPRODUCIBLE=1` | the fastest algorithm |
//! | a communicator from an MPI communicator | feature `mpi`: an MPI and libclang at build time | `Communicator::from_env` under `mpirun` |
//! | C++ classes | feature `cpp`: a C++17 compiler; `cpp/install.sh PREFIX` | |
//! | the command line | feature `cli`: more crates to build | the library alone |

#![cfg_attr(
    not(feature = "internals"),
    allow(
        dead_code,
        unused_imports,
        reason = "what only the command, benches and tests reach; builds with them tell what nobody uses"
    )
)]
#![expect(unreachable_pub, reason = "inside a floor `pub` is for the floors above; programs see docs/public-api.txt")]

// In reading order: what programs hold, then what carries it, down to the system. Programs see what is `pub` here.
pub mod comm; // communicators and all that is called on them
#[cfg(any(feature = "mpi", feature = "cpp"))]
mod over_mpi; // the protocol between MPI's ranks, over a table of MPI's calls

#[cfg(feature = "mpi")]
pub mod mpi; // communicators from MPI communicators
pub mod config; // settings: the program's, with the environment over them
pub mod error; // the one error type
pub mod types; // ranks, element types, operators, names
pub mod log; // what `NCCL_DEBUG` asks for

mod engine; // running a call
mod reach; // whose memory of devices is reached, and how
mod session; // what a rank knows of its communicator

mod plan; // a collective as data, and the proof of it
mod tune; // which algorithm, by a model of its cost
mod topo; // who is near whom

mod exec; // running plans, small calls and messages
mod transport; // rings and windows: local, shm, net
mod device; // memory of a kind, and arithmetic in it

mod bootstrap; // unique id, root, stores, control connections
mod sync; // flags, rings, waits
mod sys; // every system call
mod wire; // bytes that leave the process
#[cfg(feature = "cpp")]
mod ffi; // what the C++ classes stand on

pub use bootstrap::UniqueId;
pub use comm::{Buffer, Communicator, Placement, group, local};
pub use config::Config;
pub use error::{Error, Result};
pub use sync::Progress;
pub use types::{DataType, Element, ReduceOp};

/// Stores: places where ranks meet that share a key-value store and no launcher.
pub mod store {
    pub use crate::bootstrap::store::{
        FileStore, HashStore, IdCounter, MAX_KEY_BYTES, MAX_VALUE_BYTES, MAX_WAIT_KEYS, Store, StoreConfig, TcpStore,
        share_id,
    };
    pub use crate::sync::{AbortFlag, Wait};
}

/// What this package's own command line, benches and tests reach beyond the interface. It makes no promise: anything here changes
/// without notice. No function of it takes a call that nobody has checked. A feature, because a library has the code of all that can be
/// named from outside, and takes longer to build for it.
#[cfg(any(test, feature = "internals"))]
#[doc(hidden)]
pub mod internals {
    pub mod bootstrap {
        pub use crate::bootstrap::*;
    }
    pub mod comm {
        pub use crate::comm::meeting_place::place_in_words;
    }
    pub mod config {
        pub use crate::config::layers::{Note, Source};
        pub use crate::config::nearest::nearest;
        pub use crate::config::registry::{CONF_FILE_DOC, Prefixes, VARIABLES, Variable};
        pub use crate::config::setting::Setting;
        pub use crate::config::value::{Kind, TimeUnit};
    }
    pub mod device {
        pub use crate::device::*;
    }
    pub mod engine {
        pub use crate::engine::foreseen;
    }
    pub mod plan {
        pub use crate::plan::*;
    }
    pub mod reach {
        pub mod this_host {
            pub use crate::reach::this_host::*;
        }
    }
    pub mod session {
        pub mod page_view {
            pub use crate::session::page_view::{DOCUMENT_VERSION, ProcessView, Unread};
        }
        pub mod settings {
            pub use crate::session::settings::{
                GpuDirectSettings, check, network_here, networks_here, nics_here, ways,
            };
        }
        pub mod trace_text {
            pub use crate::session::trace_text::left;
        }
    }
    pub mod sys {
        pub use crate::sys::{
            clock, cpu, devices, float_mode, foreign_pages, host, interfaces, limits, numa, nvml, open, poller,
            process, quota, random, rank_page, terminal, text_file, thread, writing,
        };
    }
    pub mod topo {
        pub use crate::topo::*;
    }
    pub mod transport {
        pub use crate::transport::{KnownNetwork, KnownNic};
    }
    pub mod tune {
        pub use crate::tune::*;
    }
    pub mod types {
        pub use crate::types::filter::{Filter, Selectable};
        pub use crate::types::quantity::{Bytes, Elements};
    }
    pub mod wire {
        pub use crate::wire::*;
    }
}

/// The README's programs are compiled, and run where they can be.
#[cfg(all(doctest, feature = "mpi"))]
#[doc = include_str!("../README.md")]
struct Readme;
