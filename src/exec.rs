//! Running operations on host memory.
//!
//! [`Operation`] is what all ranks must agree on. [`flat`] is the straight path of small collectives inside a host: one
//! hop, no plan. [`PlanRun`] interprets plans; [`MessageRun`] is one send or recv. [`drive`] runs any number of them
//! side by side and waits when none can move. Programs on the memory of devices are [lowered](lower) to records, which
//! the ranks of one device, a [`Cohort`], launch together.

pub mod alone;
mod buffers;
mod call;
mod cohort;
pub mod composed;
mod device_buffer;
mod drive;
pub mod epoch;
mod evict;
pub mod flat;
pub mod flat_call;
#[cfg(feature = "cuda")]
mod cudarc_slice;
#[cfg(feature = "cuda")]
mod foreign_stream;
mod fuse;
mod history;
pub(crate) mod in_place;
mod interpret;
mod last_calls;
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "slices of cudarc alone are lent"))]
mod lent;
pub mod lower;
mod message;
mod message_run;
mod operation;
pub mod peer_traffic;
mod pool_blocks;
mod program;
pub mod pull;
mod registered;
mod rendezvous;
mod resumable;
pub mod run;
mod shared_pool;
mod stages;
mod step_spans;
mod window_copies;
pub mod stream_callers;
mod turn;
#[cfg(feature = "cpp")]
mod untyped_memory;
mod windowed;

pub use buffers::Buffers;
pub use call::{Begun, Call, CallCount, CallExtent, Order, wrong_counts};
pub use cohort::{Cohort, DeviceStream, Last, launch_alone};
#[cfg(feature = "cuda")]
pub use cudarc_slice::{CudarcSlice, CudarcSliceMut};
pub use device_buffer::{DeviceBuffer, DeviceSlice, DeviceSliceMut};
pub(crate) use device_buffer::{ReadBuffer, WriteBuffer};
pub use drive::{Blocked, FlagWait, Progress, Task, drive, drive_one, drive_pair};
pub use fuse::{fused_prefix, fuses, run_fused};
pub use history::{History, foreign_label, mismatch};
pub use in_place::{OwnedElements, Registered, RegisteredSlice, Registrable, with_registered};
pub use last_calls::{Accepted, LastCalls};
pub use lent::Keeper;
#[cfg(feature = "cuda")]
pub use lent::Lender;
pub use message::{Message, check_to_self, copy_to_self};
pub use message_run::{MessageQueue, MessageRun, PROMISED_MESSAGES, channel_of, leave_all};
use operation::called;
pub use operation::{Operation, describe, is_same, relabelled, same_call, sequence, short_name};
pub use program::Program;
pub use registered::Buffer;
pub use rendezvous::{MessageEnd, Rendezvous};
pub use resumable::{AwaitedFlags, Resumable};
pub use shared_pool::{SharedPool, SharedVec};
pub use stages::{StagedSide, Stages};
pub(crate) use step_spans::{SLOT_KIND, STEP_KIND, StepOwner, step_name};
pub(crate) use stream_callers::REASON_PATIENCE;
pub(crate) use turn::{Aside, Asides, Went};
pub use turn::{Background, CallTurn, NoBackground, WaitContext};
#[cfg(feature = "cpp")]
pub(crate) use untyped_memory::UntypedMemory;
pub use window_copies::{WindowCopy, put_copies};
