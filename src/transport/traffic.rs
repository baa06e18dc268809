//! Messages and bytes by connection, on a rank's page: rows of [`ROW_WORDS`] words from [`ROWS`] on.
//!
//! | word | what |
//! |---|---|
//! | 0 | one more than the peer, and in the upper half one more than the number of the transport; 0: no row |
//! | 1, 2 | messages and bytes sent |
//! | 3, 4 | messages and bytes received |
//!
//! Connections beyond the last row but one share the last, whose peer is [`OTHERS`].

use crate::sync::EndCount;
use crate::sync::primitive::Ordering;
use crate::sys::rank_page::{HEAD_WORDS, RankPage};
use crate::transport::connection::Way;
use crate::types::{Rank, TransportKind};

pub const ROWS: usize = 304;
pub const ROW_WORDS: usize = 5;
pub const MOST_ROWS: usize = 40;
const _: () = assert!(ROWS + ROW_WORDS * MOST_ROWS <= HEAD_WORDS / 2, "peers begin there");
/// In the place of a peer: all those that have no row of their own.
pub const OTHERS: u32 = u32::MAX;

/// Where the ends of this rank's connections count.
#[derive(Debug)]
pub(super) struct ConnectionTraffic(RankPage);

impl ConnectionTraffic {
    pub(super) fn on(page: RankPage) -> ConnectionTraffic {
        ConnectionTraffic(page)
    }

    /// Where an end counts.
    pub(super) fn end(&self, (peer, way): (Rank, Way), kind: TransportKind) -> EndCount {
        let key = |peer: u32| u64::from(peer.wrapping_add(1)) | (u64::from(kind.code()) + 1) << 32;
        let own = key(peer.get());
        let place = |row: usize| ROWS + ROW_WORDS * row;
        let is_free = |row: &usize| {
            let found = self.0.head[place(*row)].load(Ordering::Relaxed);
            found == 0 || found == own
        };
        let (row, key) = match (0..MOST_ROWS - 1).find(is_free) {
            Some(row) => (row, own),
            None => (MOST_ROWS - 1, u64::from(OTHERS)),
        };
        self.0.head[place(row)].store(key, Ordering::Relaxed);
        let at = match way {
            Way::Send => 1,
            Way::Receive => 3,
        };
        EndCount::new(self.0.clone(), place(row) + at)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn each_connection_has_a_row_until_rows_are_few() {
        let page = RankPage::hidden();
        let traffic = ConnectionTraffic::on(page.clone());
        let word = |row: usize, place: usize| page.head[ROWS + ROW_WORDS * row + place].load(Ordering::Relaxed);
        for peer in 0..u32::try_from(MOST_ROWS).unwrap() + 5 {
            for (way, bytes) in [(Way::Send, 8), (Way::Receive, 100), (Way::Receive, 28)] {
                traffic.end((Rank::new(peer), way), TransportKind::Net).add(bytes);
            }
        }
        assert_eq!([word(2, 0) & 0xffff_ffff, word(2, 1), word(2, 2), word(2, 3), word(2, 4)], [3, 1, 8, 2, 128]);
        let last = MOST_ROWS - 1;
        assert_eq!([word(last, 0), word(last, 1), word(last, 4)], [u64::from(OTHERS), 6, 6 * 128]);
    }
}
