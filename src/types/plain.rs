//! Buffers of plain structs as bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The bytes of a buffer of plain structs, to be broadcast, gathered or sent. The traits are those of the crate `zerocopy` 0.8, which
/// checks at compile time that a struct has no padding and no value that some bytes would not be.
///
/// # Examples
/// ```
/// use rsccl::types::{bytes_of, bytes_of_mut};
/// use zerocopy::{FromBytes, Immutable, IntoBytes};
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

/// [`bytes_of`] for a buffer that is written.
pub fn bytes_of_mut<T: FromBytes + IntoBytes>(buffer: &mut [T]) -> &mut [u8] {
    buffer.as_mut_bytes()
}
