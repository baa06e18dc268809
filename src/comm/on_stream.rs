//! Collectives on a stream of a device.

use crate::comm::collectives::Submit;
use crate::comm::{Call, Communicator, Message};
use crate::engine::Engine;
use crate::error::Result;
use crate::exec::{DeviceStream, NoBackground, Order};
use crate::types::World;

/// A communicator on a stream of a device ([`Communicator::on`]).
///
/// Its methods are those of [`Communicator`], on buffers in the memory of the stream's device. Each puts its call into
/// the stream and returns. The call runs after the work that the stream held before, and work that is put into the
/// stream later may use the buffers at once. The host may use them when the stream has done the call. Ranks whose
/// streams are of one device wait for each other inside the method, not on the device.
///
/// # Errors
/// A method returns errors that this rank can see alone, and the error that has ended the communicator before. An error
/// that ends it later, while the stream runs, is returned by the next call, by [`Communicator::async_error`], and by
/// [`DeviceStream::synchronize`] and [`DeviceStream::download`]; the stream goes on. Other ways to wait for the stream,
/// such as the driver's own, do not know of it.
#[derive(Debug, Clone, Copy)]
pub struct OnStream<'comm> {
    comm: &'comm Communicator,
    stream: &'comm DeviceStream,
}

impl Communicator {
    /// This communicator, for calls on `stream`. Each rank must use the same device in all calls of one communicator.
    /// Ranks may be on several hosts: their kernels send to each other through pinned memory of the host and TCP, which
    /// a thread of the communicator moves. Calls that a graph has captured replay between hosts while the communicators
    /// of all ranks live; where this rank's has gone, they end without a result.
    ///
    /// Calls of several communicators on the same GPUs run side by side, in any order, while their streams do not share a
    /// hardware queue of the GPU: a process has 8 for each (`CUDA_DEVICE_MAX_CONNECTIONS`). A program with more streams
    /// makes such calls in one order on all ranks; else two may wait for each other until the deadline.
    ///
    /// # Examples
    /// ```
    /// use rsccl::comm::DeviceStream;
    ///
    /// // Where this process has no device 0, there is no stream of it, and the error says why.
    /// match DeviceStream::new(0) {
    ///     Err(error) => assert!(error.message().contains("device 0")),
    ///     Ok(stream) => rsccl::local::run(2, |comm| {
    ///         let (mine, mut sum) = (stream.alloc::<f32>(100)?, stream.alloc::<f32>(100)?);
    ///         comm.on(&stream).all_reduce(mine.slice(..), sum.slice_mut(..), rsccl::ReduceOp::Sum)?;
    ///         stream.synchronize()
    ///     }).map(|_| ())?,
    /// }
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn on<'comm>(&'comm self, stream: &'comm DeviceStream) -> OnStream<'comm> {
        OnStream { comm: self, stream }
    }
}

impl OnStream<'_> {
    /// Puts any collective, described, into the stream.
    ///
    /// # Errors
    /// As the typed call of the same collective.
    pub fn run(&self, call: &Call<'_>) -> Result<()> {
        self.put(|engine, order| engine.collective_in(call, order, &mut NoBackground))
    }

    /// Puts messages that run side by side into the stream.
    pub(crate) fn run_messages(&self, messages: Vec<Message<'_>>) -> Result<()> {
        self.put(|engine, order| engine.messages_in(messages, order))
    }

    /// Puts an `all_to_all_v`, described as one message to and one from each rank, into the stream.
    pub(crate) fn run_exchange(&self, messages: Vec<Message<'_>>) -> Result<()> {
        self.put(|engine, order| engine.exchange_in(messages, order))
    }

    fn put(&self, put: impl FnOnce(&mut Engine, Order<'_>) -> Result<()>) -> Result<()> {
        self.stream.on_thread(|| self.comm.with_engine(|engine| put(engine, Order::Stream(self.stream))))
    }
}

impl<'a> Submit<'a> for &OnStream<'_> {
    type Output = ();

    fn world(&self) -> Result<World> {
        self.comm.world()
    }

    fn submit(self, call: Call<'a>) -> Result<()> {
        self.run(&call)
    }

    fn submit_message(self, message: Message<'a>) -> Result<()> {
        self.run_messages(vec![message])
    }

    fn submit_messages(self, messages: Vec<Message<'a>>) -> Result<()> {
        self.run_messages(messages)
    }

    fn submit_exchange(self, messages: Vec<Message<'a>>) -> Result<()> {
        self.run_exchange(messages)
    }
}
