//! The reduction that `rsccl tune` measures.

use crate::device::host::{Average, Kernel, Pass, Store};
use crate::error::{Error, Result};
use crate::types::{DataType, ReduceOp};

/// Adds `one` and `other` into `target` as a plan's step does, through the caches.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] where they are not of one length.
pub fn add(one: &[f32], other: &[f32], target: &mut [f32]) -> Result<()> {
    let count = target.len();
    if one.len() != count || other.len() != count {
        return Err(Error::invalid_argument(format!("{} and {} elements into {count}", one.len(), other.len())));
    }
    let sources = [one.as_ptr().cast::<u8>(), other.as_ptr().cast()];
    let targets = [target.as_mut_ptr().cast::<u8>()];
    let kernel = Kernel::reduce(DataType::F32, ReduceOp::Sum, 2)?;
    let pass = Pass {
        sources: &sources,
        raw: None,
        targets: &targets,
        count,
        finish: true,
        average: Average::Sum,
        store: Store::Cached,
    };
    // SAFETY: both sources and the target have `count` elements by the lines above, and are borrowed for the call; what
    // is borrowed mutably overlaps nothing.
    unsafe { kernel.run(&pass) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_their_elements() {
        let (one, other) = ([1.5, 2.0, -4.0], [0.5, 8.0, 4.0]);
        let mut sums = [9.0; 3];
        add(&one, &other, &mut sums).unwrap();
        assert_eq!(sums, [2.0, 10.0, 0.0]);
        assert!(add(&one[..2], &other, &mut sums).is_err());
    }
}
