//! The devices that ranks work on, and the copies of their buffers there.

use std::ops::Range;

use rsccl::comm::{DeviceStream, Window};
use rsccl::internals::device::{DeviceId, Home};
use rsccl::{Communicator, Error, ReduceOp, Result, internals};

use super::Transport;
use super::measure::Case;
use super::verify::{Placement, RankBuffers, Sample, perform_on};

/// What `--device` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Devices {
    /// All that this process has.
    All,
    /// These.
    Listed(Vec<u32>),
}

/// `cuda`, or `cuda:` and numbers with commas between.
pub(crate) fn parse(text: &str) -> std::result::Result<Devices, String> {
    if text == "cuda" {
        return Ok(Devices::All);
    }
    let numbers = text.strip_prefix("cuda:").and_then(|list| list.split(',').map(|word| word.parse().ok()).collect());
    numbers.map(Devices::Listed).ok_or_else(|| format!("`{text}` is no device: write cuda, or cuda:0,1"))
}

impl Devices {
    /// The numbers of the devices.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn numbers(&self) -> Result<Vec<u32>> {
        match self {
            Devices::Listed(numbers) => Ok(numbers.clone()),
            Devices::All => {
                // Asked for by number alone: a stream would make a context on each, in each process.
                let of = |number: u32| internals::device::of(Home::Device(DeviceId(number)));
                of(0)?;
                Ok((0..MOST_DEVICES).take_while(|number| of(*number).is_ok()).collect())
            }
        }
    }
}

/// The device of a rank of `ranks` that share these devices, threads or processes: neighbours share one.
pub(crate) fn of_rank(devices: &[u32], rank: u32, ranks: u32) -> u32 {
    let place = u64::from(rank) * devices.len() as u64 / u64::from(ranks.max(1));
    usize::try_from(place).ok().and_then(|place| devices.get(place)).copied().unwrap_or_default()
}

/// A rank's buffers on its device.
#[derive(Debug)]
pub(crate) struct OnDevice<'a, T> {
    stream: &'a DeviceStream,
    send: rsccl::comm::DeviceBuffer<T>,
    recv: rsccl::comm::DeviceBuffer<T>,
    /// Where in each of them this rank's elements are.
    places: [Range<usize>; 2],
    /// Both buffers, where they are registered.
    windows: Vec<Window>,
}

impl<'a, T: Sample> OnDevice<'a, T> {
    /// Room for `buffers`, `skew` elements off the alignment.
    pub(crate) fn new(stream: &'a DeviceStream, buffers: &RankBuffers<T>, skew: usize) -> Result<OnDevice<'a, T>> {
        let (send, recv) = (buffers.send.slice().len(), buffers.recv.slice().len());
        let (places, windows) = ([send, recv].map(|length| skew..skew + length), Vec::new());
        Ok(OnDevice { stream, send: stream.alloc(skew + send)?, recv: stream.alloc(skew + recv)?, places, windows })
    }

    /// The same in windows, which have the same length on all ranks. Collective.
    pub(crate) fn in_windows(
        comm: &Communicator,
        stream: &'a DeviceStream,
        buffers: &RankBuffers<T>,
        skew: usize,
    ) -> Result<OnDevice<'a, T>> {
        let (send, recv) = (buffers.send.slice().len(), buffers.recv.slice().len());
        let mut longest = [send as u64, recv as u64];
        comm.all_reduce_in_place(&mut longest, ReduceOp::Max)?;
        let room = longest.map(|length| usize::try_from(length).unwrap_or(usize::MAX).saturating_add(skew));
        let memory = [stream.alloc_shareable(room[0])?, stream.alloc_shareable(room[1])?];
        let windows = memory.iter().map(|memory| comm.register_window(memory)).collect::<Result<Vec<Window>>>()?;
        let places = [send, recv].map(|length| skew..skew + length);
        let [send, recv] = memory;
        Ok(OnDevice { stream, send, recv, places, windows })
    }

    /// Gives the windows back, if there are some. Collective.
    pub(crate) fn end(self, comm: &Communicator) -> Result<()> {
        self.windows.into_iter().try_for_each(|window| comm.deregister_window(window))
    }

    /// Copies the host's buffers to the device.
    pub(crate) fn upload(&mut self, buffers: &RankBuffers<T>) -> Result<()> {
        let [send, recv] = self.places.clone();
        self.stream.upload(buffers.send.slice(), self.send.slice_mut(send))?;
        self.stream.upload(buffers.recv.slice(), self.recv.slice_mut(recv))
    }

    /// Copies the device's buffers to the host.
    pub(crate) fn download(&self, buffers: &mut RankBuffers<T>) -> Result<()> {
        let [send, recv] = self.places.clone();
        self.stream.download(self.send.slice(send), buffers.send.slice_mut())?;
        self.stream.download(self.recv.slice(recv), buffers.recv.slice_mut())
    }

    /// Puts the call into the stream.
    pub(crate) fn call(&mut self, comm: &Communicator, case: &Case) -> Result<()> {
        let op = case.op.map(|op| op.reduce_op(case.data_type, case.shape.rank));
        let [send, recv] = self.places.clone();
        let recv = match case.placement {
            Placement::OutOfPlace => Some(self.recv.slice_mut(recv)),
            Placement::InPlace => None,
        };
        perform_on(&comm.on(self.stream), &case.shape, op, (self.send.slice_mut(send), recv))
    }

    /// Waits for the calls.
    pub(crate) fn finish(&self) -> Result<()> {
        self.stream.synchronize()
    }
}

/// Refuses what does not go with devices.
///
/// # Errors
/// [`rsccl::error::Kind::InvalidArgument`] that names the options.
pub(crate) fn check(transport: Transport, registered: u8) -> Result<()> {
    if transport == Transport::Net {
        return Err(Error::invalid_argument(
            "--device with --transport net: ranks on devices share memory; use local, shm or auto",
        ));
    }
    if registered == 1 {
        return Err(Error::invalid_argument("--device with -R 1: that is for host memory; use -R 2, or omit it"));
    }
    Ok(())
}

/// More devices than a process has.
const MOST_DEVICES: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_and_shared_evenly() {
        assert_eq!(parse("cuda"), Ok(Devices::All));
        assert_eq!(parse("cuda:0,2"), Ok(Devices::Listed(vec![0, 2])));
        for bad in ["", "gpu", "cuda:", "cuda:a", "cuda:1,", "cuda:-1"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let placed: Vec<u32> = (0..5).map(|rank| of_rank(&[4, 7], rank, 5)).collect();
        assert_eq!(placed, [4, 4, 4, 7, 7]);
    }
}
