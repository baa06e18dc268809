//! Windows as users hold them: memory of devices that all ranks have registered alike. What an engine does in them is
//! in `engine::device_windows`.

use crate::comm::Communicator;
use crate::engine::device_windows::RegisteredWindow;
use crate::error::Result;
use crate::exec::{DeviceBuffer, NoBackground};
use crate::types::Element;

/// Memory of a device that [`Communicator::register_window`] has registered on all ranks.
///
/// Dropping it leaves the memory registered until the communicator ends; [`Communicator::deregister_window`] takes it
/// back before.
#[derive(Debug)]
pub struct Window(RegisteredWindow);

impl Window {
    /// Whether ranks of other processes and devices work in it. Otherwise calls in it run as calls in any buffer do;
    /// the log says why (`NCCL_DEBUG=INFO`, `NCCL_DEBUG_SUBSYS=REG`). The same on all ranks.
    pub fn is_direct(&self) -> bool {
        self.0.is_direct()
    }
}

impl Communicator {
    /// Lets the ranks of other processes and devices work in `buffer` in place (NCCL: `ncclCommWindowRegister` with
    /// `NCCL_WIN_COLL_SYMMETRIC`). Collective: all ranks register, in the same order, buffers of the same length that
    /// were allocated by [`DeviceStream::alloc_shareable`](crate::comm::DeviceStream::alloc_shareable), or by the
    /// program itself ([`DeviceBuffer::from_raw`]). It is set-up: it waits for all ranks.
    ///
    /// A call takes part in this if the buffers in which its peers work lie in windows:
    ///
    /// | call | peers work in |
    /// |---|---|
    /// | `all_reduce` | `send` and `recv` |
    /// | `all_gather`, `all_gather_v`, `broadcast`, `scatter` | `recv`, or the one buffer of a `broadcast` |
    /// | `reduce_scatter`, `reduce_scatter_v`, `all_to_all`, `reduce`, `gather` | `send`, or the one buffer in place |
    ///
    /// The caller promises that all ranks then pass the same place for these buffers: the same window, and the same
    /// distance from its beginning. A rank that does not ends the call with a
    /// [mismatch](crate::error::Kind::Mismatch). Where the root of a `gather` or `scatter` is in place, its own block
    /// lies inside its longer buffer: then the others pass their blocks at the same distance as that block. The other
    /// buffer of a call may lie anywhere, on each rank at another place, and what a rank passes that the call ignores
    /// does not count.
    ///
    /// Other calls work in windows as in any buffer: those with `PreMulSum`, scans, messages, and `all_to_all_v`,
    /// `gather_v` and `scatter_v`, in which a rank does not know the counts of its peers, and so not where their blocks
    /// begin. When a call in windows has failed, other ranks may write into them until they have heard of it.
    ///
    /// Where ranks cannot map the memory, and where all are threads on one device, whose calls work in place anyway,
    /// the window is registered in name ([`Window::is_direct`]).
    ///
    /// The memory stays mapped until [`Communicator::deregister_window`], or the end of the communicator and of the
    /// graphs that its calls were captured in. The buffer may be dropped before.
    ///
    /// # Errors
    /// On all ranks: [`crate::error::Kind::InvalidArgument`] where lengths differ;
    /// [`crate::error::Kind::InvalidUsage`] for more than 1,024 windows, and where a buffer is not of the device in
    /// which its rank works. Else those of set-up.
    ///
    /// # Examples
    /// ```
    /// use rsccl::ReduceOp;
    /// use rsccl::comm::DeviceStream;
    ///
    /// // Where this process has no device 0, there is no stream of it, and the error says why.
    /// match DeviceStream::new(0) {
    ///     Err(error) => assert!(error.message().contains("device 0")),
    ///     Ok(stream) => rsccl::local::run(2, |comm| {
    ///         let mut sums = stream.alloc_shareable::<f32>(1 << 20)?;
    ///         let window = comm.register_window(&sums)?;
    ///         comm.on(&stream).all_reduce_in_place(sums.slice_mut(..), ReduceOp::Sum)?;
    ///         stream.synchronize()?;
    ///         comm.deregister_window(window)
    ///     }).map(|_| ())?,
    /// }
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn register_window<T: Element>(&self, buffer: &DeviceBuffer<T>) -> Result<Window> {
        self.with_engine(|engine| {
            let registered = engine.register_window(buffer.region(), &mut NoBackground);
            registered.map(Window).map_err(|error| error.during("register_window"))
        })
    }

    /// Takes a window back: from then on no call works in the others' memory. It stays mapped for as long as this
    /// process has calls under way on the GPU, and for the graphs that calls in it were captured in. Collective: all
    /// ranks take back the same window. What the buffer holds stays.
    ///
    /// Where the communicator has failed, before or by the death of a rank meanwhile, it waits for nobody: its error is
    /// returned, and this rank has taken the window back.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] for a window of another communicator; those of a collective call.
    pub fn deregister_window(&self, window: Window) -> Result<()> {
        let ended = self.with_engine(|engine| {
            engine.deregister_window(&window.0, &mut NoBackground).map_err(|error| error.during("deregister_window"))
        });
        if ended.is_err() {
            // It may have failed before: no peer comes then, and none needs to.
            self.with_failed(|engine| engine.forget_window(&window.0));
        }
        ended
    }
}
