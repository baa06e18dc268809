//! What tests of all float types share: their bits, and the paths on which they are reduced.

#![expect(clippy::cast_possible_truncation, reason = "bits are cut to the width of a type")]

use rsccl::comm::{Communicator, DeviceStream};
use rsccl::types::{Algorithm, Element, F8E4M3, F8E5M2, bf16, f16};
use rsccl::{Config, ReduceOp, Result, local};

/// A float type by its bits, which no arithmetic of a thread's mode touches.
pub(crate) trait FloatBits: Element + PartialEq {
    const QUIET_NAN: u64;
    const SIGN: u64;
    const ONE: u64;
    /// The bits behind the exponent.
    const FRACTION: u64;
    fn of_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! float_bits {
    ($($type:ty: $bits:ty, $nan:literal, $one:literal, $fraction:literal, $of:expr, $to:expr;)+) => {$(
        impl FloatBits for $type {
            const QUIET_NAN: u64 = $nan;
            const SIGN: u64 = 1 << (<$bits>::BITS - 1);
            const ONE: u64 = $one;
            const FRACTION: u64 = (1 << $fraction) - 1;

            fn of_bits(bits: u64) -> $type {
                let of: fn($bits) -> $type = $of;
                of(bits as $bits)
            }

            fn bits(self) -> u64 {
                let bits: fn($type) -> $bits = $to;
                bits(self).into()
            }
        }
    )+};
}

float_bits! {
    f64: u64, 0x7ff8_0000_0000_0000, 0x3ff0_0000_0000_0000, 52, f64::from_bits, f64::to_bits;
    f32: u32, 0x7fc0_0000, 0x3f80_0000, 23, f32::from_bits, f32::to_bits;
    f16: u16, 0x7e00, 0x3c00, 10, f16::from_bits, f16::to_bits;
    bf16: u16, 0x7fc0, 0x3f80, 7, bf16::from_bits, bf16::to_bits;
    F8E4M3: u8, 0x7f, 0x38, 3, F8E4M3, |x| x.0;
    F8E5M2: u8, 0x7e, 0x3c, 2, F8E5M2, |x| x.0;
}

/// `function::<T>(arguments)?` for each float type, in an array.
macro_rules! of_each_float {
    ($function:ident($($argument:expr),*)) => {
        [
            $function::<f64>($($argument),*)?,
            $function::<f32>($($argument),*)?,
            $function::<rsccl::types::f16>($($argument),*)?,
            $function::<rsccl::types::bf16>($($argument),*)?,
            $function::<rsccl::types::F8E4M3>($($argument),*)?,
            $function::<rsccl::types::F8E5M2>($($argument),*)?,
        ]
    };
}
pub(crate) use of_each_float;

/// Where a rank's buffers lie. Each method returns what its call leaves in the buffer of the result.
pub(crate) enum Memory {
    Host,
    /// A device's; calls are put into this stream.
    Device(DeviceStream),
}

impl Memory {
    pub(crate) fn all_reduce<T: Element>(&self, comm: &Communicator, mine: &[T], op: ReduceOp) -> Result<Vec<T>> {
        let mut all = mine.to_vec();
        match self {
            Memory::Host => comm.all_reduce(mine, &mut all, op)?,
            Memory::Device(stream) => {
                let (mut input, mut output) = (stream.alloc(mine.len())?, stream.alloc(mine.len())?);
                stream.upload(mine, input.slice_mut(..))?;
                comm.on(stream).all_reduce(input.slice(..), output.slice_mut(..), op)?;
                stream.download(output.slice(..), &mut all)?;
            }
        }
        Ok(all)
    }

    pub(crate) fn reduce_scatter<T: Element>(&self, comm: &Communicator, mine: &[T], op: ReduceOp) -> Result<Vec<T>> {
        let count = mine.len() / comm.size() as usize;
        let mut part = mine[..count].to_vec();
        match self {
            Memory::Host => comm.reduce_scatter(mine, &mut part, op)?,
            Memory::Device(stream) => {
                let (mut input, mut output) = (stream.alloc(mine.len())?, stream.alloc(count)?);
                stream.upload(mine, input.slice_mut(..))?;
                comm.on(stream).reduce_scatter(input.slice(..), output.slice_mut(..), op)?;
                stream.download(output.slice(..), &mut part)?;
            }
        }
        Ok(part)
    }

    /// All-reduces in place, or reduces in place to a root.
    pub(crate) fn in_place<T: Element>(
        &self,
        comm: &Communicator,
        mine: &[T],
        (op, root): (ReduceOp, Option<u32>),
    ) -> Result<Vec<T>> {
        let mut buffer = mine.to_vec();
        match self {
            Memory::Host => match root {
                None => comm.all_reduce_in_place(&mut buffer, op)?,
                Some(root) => comm.reduce_in_place(&mut buffer, op, root)?,
            },
            Memory::Device(stream) => {
                let mut there = stream.alloc(mine.len())?;
                stream.upload(mine, there.slice_mut(..))?;
                match root {
                    None => comm.on(stream).all_reduce_in_place(there.slice_mut(..), op)?,
                    Some(root) => comm.on(stream).reduce_in_place(there.slice_mut(..), op, root)?,
                }
                stream.download(there.slice(..), &mut buffer)?;
            }
        }
        Ok(buffer)
    }
}

/// The configurations of ranks that are threads, by which they exchange in the way of their names.
pub(crate) fn ways() -> [(&'static str, Config); 3] {
    let config = Config::default().with_timeout(crate::TIMEOUT);
    let shared = config.clone().with_p2p_disable(true);
    let sockets = shared.clone().with_shm_disable(true);
    [("threads", config), ("shared memory", shared), ("sockets", sockets)]
}

/// Runs `body` by each way with each algorithm, and with the one that is chosen, for each number of ranks.
pub(crate) fn on_every_path(
    algorithms: &[Algorithm],
    ranks: &[u32],
    body: impl Fn(&Communicator, &str) -> Result<()> + Sync,
) {
    for (name, config) in ways() {
        for algorithm in std::iter::once(None).chain(algorithms.iter().map(Some)) {
            let config = match algorithm {
                None => config.clone(),
                Some(algorithm) => config.clone().with_algo(algorithm.name()).with_proto("Simple"),
            };
            let path = format!("{name}, {algorithm:?}");
            for ranks in ranks {
                local::run_with(*ranks, &config, |comm| {
                    body(&comm, &path)?;
                    comm.finalize()
                })
                .unwrap_or_else(|error| panic!("{path}, {ranks} ranks: {error}"));
            }
        }
    }
}
