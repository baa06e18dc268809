//! Where gradients are added up: where they were computed, or in the memory of a GPU.

use rsccl::comm::{DeviceBuffer, DeviceStream};
use rsccl::{Communicator, ReduceOp, Result};

use super::model::WEIGHTS;

/// Adds gradients up over all ranks.
pub(crate) enum Gradients {
    /// In the memory of the host.
    OnHost,
    /// In a GPU's: they are copied there, added up in a stream of that GPU, and copied back.
    OnGpu { stream: DeviceStream, buffer: DeviceBuffer<f32> },
}

impl Gradients {
    /// In the memory of GPU number `device` of this process.
    pub(crate) fn on_gpu(device: u32) -> Result<Gradients> {
        let stream = DeviceStream::new(device)?;
        let buffer = stream.alloc(WEIGHTS + 1)?;
        Ok(Gradients::OnGpu { stream, buffer })
    }

    /// Adds `gradient`, with the loss behind it, up over all ranks, in place.
    pub(crate) fn add_up(&mut self, comm: &Communicator, gradient: &mut [f32]) -> Result<()> {
        match self {
            Gradients::OnHost => comm.all_reduce_in_place(gradient, ReduceOp::Sum),
            Gradients::OnGpu { stream, buffer } => {
                stream.upload(gradient, buffer.slice_mut(..))?;
                comm.on(stream).all_reduce_in_place(buffer.slice_mut(..), ReduceOp::Sum)?;
                stream.download(buffer.slice(..), gradient)
            }
        }
    }
}
