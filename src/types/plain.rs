//! Buffers of plain structs viewed as bytes, and received bytes as values, if they are valid ones.

use std::any::type_name;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes};

use crate::error::{Error, Result};

/// The bytes of a buffer of plain structs, to broadcast, gather or send them. The traits come from the crate `zerocopy`
/// 0.8, which checks at compile time that a struct has no padding and that any bytes are a valid value.
///
/// # Examples
/// ```
/// use rsccl::types::{bytes_of, bytes_of_mut};
/// use zerocopy_derive::{FromBytes, Immutable, IntoBytes}; // or those of zerocopy with its feature `derive`
///
/// #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
/// #[repr(C)]
/// struct Particle {
///     place: [f64; 3],
///     mass: f32,
///     kind: u32,
/// }
///
/// rsccl::local::run(2, |comm| {
///     let mine = [Particle { place: [0.5; 3], mass: 2.0, kind: comm.rank() }; 4];
///     let mut all = [Particle { place: [0.0; 3], mass: 0.0, kind: 9 }; 8];
///     comm.all_gather(bytes_of(&mine), bytes_of_mut(&mut all))?;
///     assert_eq!((all[3].kind, all[4].kind, all[7].place), (0, 1, [0.5; 3]));
///     Ok(())
/// })?;
/// # Ok::<(), rsccl::Error>(())
/// ```
pub fn bytes_of<T: IntoBytes + Immutable>(buffer: &[T]) -> &[u8] {
    buffer.as_bytes()
}

/// The bytes of a buffer that is written to; see [`bytes_of`].
pub fn bytes_of_mut<T: FromBytes + IntoBytes>(buffer: &mut [T]) -> &mut [u8] {
    buffer.as_mut_bytes()
}

/// The values that bytes from other ranks represent, after a check that they are valid: for `bool`, `char`, enums
/// and structs with them, some bytes are not. The traits come from the crate `zerocopy` 0.8. To send such values, use
/// [`bytes_of`].
///
/// Booleans as bytes are reduced by [`crate::ReduceOp::BitAnd`] (all ranks), [`crate::ReduceOp::BitOr`] (any rank) and
/// [`crate::ReduceOp::BitXor`] (an odd number of ranks).
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] with the first element whose bytes are not a valid value; also if the bytes
/// are not a whole number of elements, or not aligned for them.
///
/// # Examples
/// ```
/// use rsccl::ReduceOp;
/// use rsccl::types::{bytes_of, values_of};
///
/// rsccl::local::run(3, |comm| {
///     let converged = [comm.rank() != 1, true];
///     let mut everywhere = [0; 2];
///     comm.all_reduce(bytes_of(&converged), &mut everywhere, ReduceOp::BitAnd)?;
///     assert_eq!(values_of::<bool>(&everywhere)?, [false, true]);
///     Ok(())
/// })?;
/// # Ok::<(), rsccl::Error>(())
/// ```
pub fn values_of<T: TryFromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<&[T]> {
    <[T]>::try_ref_from_bytes(bytes).map_err(|_| no_values::<T>(bytes))
}

/// Why bytes are no values of T.
#[cold]
fn no_values<T: TryFromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Error {
    let (name, size) = (type_name::<T>(), size_of::<T>());
    if !bytes.len().is_multiple_of(size) {
        let message = format!("{} bytes are not a whole number of {name}, which has {size} bytes", bytes.len());
        return Error::invalid_argument(message);
    }
    if !bytes.as_ptr().addr().is_multiple_of(align_of::<T>()) {
        let message = format!("the bytes at {:p} cannot hold {name}: align them to {}", bytes, align_of::<T>());
        return Error::invalid_argument(message);
    }
    let wrong = bytes.chunks(size).position(|element| T::try_ref_from_bytes(element).is_err()).unwrap_or(0);
    let found = &bytes[wrong * size..][..size];
    Error::invalid_argument(format!("element {wrong} is not a {name}: its bytes are {found:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_values_are_refused_and_named() {
        assert_eq!(values_of::<bool>(&[0, 1, 1]).unwrap(), [false, true, true]);
        assert!(values_of::<bool>(&[]).unwrap().is_empty());
        for byte in 2..=u8::MAX {
            let error = values_of::<bool>(&[1, 0, byte]).unwrap_err();
            assert!(error.message().contains(&format!("element 2 is not a bool: its bytes are [{byte}]")), "{error}");
        }
        let words = [u32::from('a'), 0xd800, u32::from('z')];
        let bytes = bytes_of(&words);
        assert_eq!(values_of::<char>(&bytes[..4]).unwrap(), ['a']);
        let error = values_of::<char>(bytes).unwrap_err();
        assert!(error.message().contains("element 1 is not a char: its bytes are [0, 216, 0, 0]"), "{error}");
        let error = values_of::<char>(&bytes[..7]).unwrap_err();
        assert!(error.message().contains("7 bytes are not a whole number of char, which has 4 bytes"), "{error}");
        let error = values_of::<char>(&bytes[1..5]).unwrap_err();
        assert!(error.message().contains("align them to 4"), "{error}");
    }
}
