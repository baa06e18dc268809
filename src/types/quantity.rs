//! Newtypes for quantities that are easily confused: ranks, elements, bytes.

use std::fmt;

/// Nobody, as the peer of a `send`, `recv` or `send_recv`: the call does nothing and does not wait, and a buffer to
/// receive into stays as it is. What MPI calls `MPI_PROC_NULL`: a rank at the edge of a grid makes the same calls as
/// the others. No rank has this number, and no sum or difference of ranks comes near it.
///
/// # Examples
/// ```
/// use rsccl::types::NO_RANK;
///
/// rsccl::local::run(3, |comm| {
///     let (rank, last) = (comm.rank(), comm.size() - 1);
///     let left = if rank == 0 { NO_RANK } else { rank - 1 };
///     let right = if rank == last { NO_RANK } else { rank + 1 };
///     let mut from_left = [9];
///     comm.send_recv(&[rank], right, &mut from_left, left)?;
///     assert_eq!(from_left, [if rank == 0 { 9 } else { rank - 1 }]);
///     Ok(())
/// })?;
/// # Ok::<(), rsccl::Error>(())
/// ```
pub const NO_RANK: u32 = 1 << 31;

/// A rank of a communicator: `0..world`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rank(u32);

impl Rank {
    /// The rank with this number.
    pub const fn new(number: u32) -> Rank {
        Rank(number)
    }

    /// The rank as a number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The rank as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The rank `distance` after this one on the ring of `world` ranks.
    #[must_use]
    pub fn after(self, distance: u32, world: u32) -> Rank {
        Rank(wrap(u64::from(self.0) + u64::from(distance), world))
    }

    /// The rank `distance` before this one on the ring of `world` ranks.
    #[must_use]
    pub fn before(self, distance: u32, world: u32) -> Rank {
        Rank(wrap(u64::from(self.0) + u64::from(world) - u64::from(distance % world), world))
    }
}

fn wrap(value: u64, world: u32) -> u32 {
    u32::try_from(value % u64::from(world)).expect("a remainder is below its 32-bit divisor")
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// This rank in a communicator, and how many ranks there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    /// This rank, below `size`.
    pub rank: Rank,
    /// The number of ranks, at least 1.
    pub size: u32,
}

impl World {
    /// All ranks in order.
    pub fn ranks(self) -> impl DoubleEndedIterator<Item = Rank> + ExactSizeIterator + Clone {
        (0..self.size).map(Rank::new)
    }

    /// All ranks except this one, in order.
    pub fn peers(self) -> impl DoubleEndedIterator<Item = Rank> + Clone {
        self.ranks().filter(move |rank| *rank != self.rank)
    }
}

/// A count of elements, or an offset in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Elements(pub u64);

/// A count of bytes, or an offset in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

impl Elements {
    /// None.
    pub const ZERO: Elements = Elements(0);

    /// The bytes of this many elements of `size` bytes each; `None` on overflow.
    pub fn bytes(self, size: u32) -> Option<Bytes> {
        self.0.checked_mul(u64::from(size)).map(Bytes)
    }

    /// The count as an index.
    ///
    /// # Panics
    /// If the count does not fit the address space, which a count of elements in memory always does.
    pub fn index(self) -> usize {
        usize::try_from(self.0).expect("elements in memory fit the address space")
    }
}

impl Bytes {
    /// None.
    pub const ZERO: Bytes = Bytes(0);

    /// The count as an index.
    ///
    /// # Panics
    /// If the count does not fit the address space, which a count of bytes in memory always does.
    pub fn index(self) -> usize {
        usize::try_from(self.0).expect("bytes in memory fit the address space")
    }
}

macro_rules! arithmetic {
    ($type:ident) => {
        impl std::ops::Add for $type {
            type Output = $type;
            fn add(self, other: $type) -> $type {
                $type(self.0 + other.0)
            }
        }
        impl std::ops::Sub for $type {
            type Output = $type;
            fn sub(self, other: $type) -> $type {
                $type(self.0 - other.0)
            }
        }
        impl std::ops::Mul<u64> for $type {
            type Output = $type;
            fn mul(self, factor: u64) -> $type {
                $type(self.0 * factor)
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
arithmetic!(Elements);
arithmetic!(Bytes);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_wrap_both_ways() {
        assert_eq!(Rank::new(6).after(3, 7), Rank::new(2));
        assert_eq!(Rank::new(1).before(3, 7), Rank::new(5));
        assert_eq!(Rank::new(0).before(14, 7), Rank::new(0));
        assert_eq!(Rank::new(u32::MAX - 1).after(u32::MAX, u32::MAX), Rank::new(u32::MAX - 1));
    }
}
