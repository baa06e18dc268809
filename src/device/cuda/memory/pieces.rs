//! Which parts of one memory are free.

/// A part of a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::cuda) struct Piece {
    pub(in crate::device::cuda) offset: usize,
    pub(in crate::device::cuda) bytes: usize,
}

/// The free parts of one memory, sorted by offset. Two that touch are one.
#[derive(Debug)]
pub(in crate::device::cuda) struct FreePieces {
    free: Vec<Piece>,
}

impl FreePieces {
    /// A memory of `bytes`, all of them free.
    pub(in crate::device::cuda) fn new(bytes: usize) -> FreePieces {
        FreePieces { free: vec![Piece { offset: 0, bytes }] }
    }

    /// Bytes of the smallest free piece that has at least `bytes`.
    pub(super) fn best(&self, bytes: usize) -> Option<usize> {
        self.free.iter().map(|piece| piece.bytes).filter(|free| *free >= bytes).min()
    }

    /// Takes `bytes` from the smallest free piece that has as many: large pieces stay whole for large requests.
    pub(in crate::device::cuda) fn take(&mut self, bytes: usize) -> Option<Piece> {
        let fits = self.free.iter_mut().enumerate().filter(|(_, piece)| piece.bytes >= bytes);
        let (index, piece) = fits.min_by_key(|(_, piece)| piece.bytes)?;
        let taken = Piece { offset: piece.offset, bytes };
        *piece = Piece { offset: piece.offset + bytes, bytes: piece.bytes - bytes };
        if piece.bytes == 0 {
            self.free.remove(index);
        }
        Some(taken)
    }

    /// Gives back a piece that [`FreePieces::take`] gave.
    pub(in crate::device::cuda) fn give_back(&mut self, piece: Piece) {
        let mut index = self.free.partition_point(|other| other.offset < piece.offset);
        self.free.insert(index, piece);
        // Joined with the one behind, then with the one before.
        for _ in 0..2 {
            if let (Some(one), Some(two)) = (self.free.get(index).copied(), self.free.get(index + 1).copied())
                && one.offset + one.bytes == two.offset
            {
                self.free[index].bytes += two.bytes;
                self.free.remove(index + 1);
            }
            index = index.saturating_sub(1);
        }
    }

    /// Whether nothing of a memory of `bytes` is taken.
    pub(super) fn is_all(&self, bytes: usize) -> bool {
        self.free == [Piece { offset: 0, bytes }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_from_the_smallest_place_and_are_joined_again() {
        let mut free = FreePieces::new(1024);
        let taken: Vec<Piece> = [128, 256, 64, 512].iter().map(|bytes| free.take(*bytes).unwrap()).collect();
        assert_eq!(taken.iter().map(|piece| piece.offset).collect::<Vec<_>>(), [0, 128, 384, 448]);
        assert_eq!(free.best(65), None);
        free.give_back(taken[1]);
        free.give_back(taken[3]);
        // 64 bytes behind the last piece joined it.
        assert_eq!((free.best(100), free.best(257)), (Some(256), Some(576)));
        assert_eq!(free.take(100).unwrap().offset, 128);
        free.give_back(Piece { offset: 128, bytes: 100 });
        assert!(!free.is_all(1024));
        free.give_back(taken[2]);
        free.give_back(taken[0]);
        assert!(free.is_all(1024));
        assert_eq!(free.take(1025), None);
    }
}
