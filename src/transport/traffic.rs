//! Messages and bytes by connection, on a rank's page: rows of [`ROW_WORDS`] words from [`ROWS`] on.
//!
//! | word | what |
//! |---|---|
//! | 0 | one more than the peer, and in the upper half one more than the number of the transport, or of the way between |
//! | | devices ([`DeviceRoute`]); 0: no row |
//! | 1, 2 | messages and bytes sent |
//! | 3, 4 | messages and bytes received |
//!
//! Connections beyond the last row but one share the last, whose peer is [`OTHERS`].

use crate::sync::primitive::Ordering;
use crate::sync::ring::EndCount;
use crate::sys::rank_page::{HEAD_WORDS, RankPage};
use crate::transport::connection::Way;
use crate::types::{Rank, TransportKind};

pub const ROWS: usize = 304;
pub const ROW_WORDS: usize = 5;
pub const MOST_ROWS: usize = 40;
const _: () = assert!(ROWS + ROW_WORDS * MOST_ROWS <= HEAD_WORDS / 2, "peers begin there");
/// In the place of a peer: all those that have no row of their own.
pub const OTHERS: u32 = u32::MAX;

/// How bytes get from one rank on a GPU to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceRoute {
    /// Inside one GPU.
    Inside,
    /// From GPU to GPU.
    Peer,
    /// By memory of the host.
    Pinned,
    /// Over the network.
    Wire,
}

impl DeviceRoute {
    const ALL: [DeviceRoute; 4] = [DeviceRoute::Inside, DeviceRoute::Peer, DeviceRoute::Pinned, DeviceRoute::Wire];
    /// Behind the numbers of all transports.
    const FIRST_CODE: u64 = 1 << 8;

    fn code(self) -> u64 {
        DeviceRoute::FIRST_CODE + self as u64
    }

    const fn name(self) -> &'static str {
        match self {
            DeviceRoute::Inside => "one gpu",
            DeviceRoute::Peer => "gpu p2p",
            DeviceRoute::Pinned => "gpu shm",
            DeviceRoute::Wire => "gpu net",
        }
    }
}

/// The name of the transport of this number, or of the way between devices.
pub fn transport_name(code: u64) -> Option<&'static str> {
    let route = DeviceRoute::ALL.into_iter().find(|route| route.code() == code).map(DeviceRoute::name);
    let transport = || u8::try_from(code).ok().and_then(TransportKind::from_code).map(TransportKind::name);
    route.or_else(transport)
}

/// Counts on its page what a launch of a rank moves between it and a peer. Only the thread that has the rank's engine
/// counts.
pub fn count_on_device(page: &RankPage, (peer, way): (Rank, Way), route: DeviceRoute, (messages, bytes): (u64, u64)) {
    let at = place_of(page, (peer, way), route.code());
    for (place, more) in [(at, messages), (at + 1, bytes)] {
        // Relaxed: each word stands for itself.
        page.head[place].store(page.head[place].load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }
}

/// Where an end's messages are counted; behind them its bytes.
fn place_of(page: &RankPage, (peer, way): (Rank, Way), transport: u64) -> usize {
    let own = u64::from(peer.get().wrapping_add(1)) | (transport + 1) << 32;
    let place = |row: usize| ROWS + ROW_WORDS * row;
    let is_free = |row: &usize| {
        let found = page.head[place(*row)].load(Ordering::Relaxed);
        found == 0 || found == own
    };
    let (row, key) = match (0..MOST_ROWS - 1).find(is_free) {
        Some(row) => (row, own),
        None => (MOST_ROWS - 1, u64::from(OTHERS)),
    };
    page.head[place(row)].store(key, Ordering::Relaxed);
    place(row)
        + match way {
            Way::Send => 1,
            Way::Receive => 3,
        }
}

/// Where the ends of this rank's connections count.
#[derive(Debug)]
pub(super) struct ConnectionTraffic(RankPage);

impl ConnectionTraffic {
    pub(super) fn on(page: RankPage) -> ConnectionTraffic {
        ConnectionTraffic(page)
    }

    /// Where an end counts.
    pub(super) fn end(&self, end: (Rank, Way), kind: TransportKind) -> EndCount {
        EndCount::new(self.0.clone(), place_of(&self.0, end, kind.code().into()))
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
        for (messages, bytes) in [(1, 5), (3, 95)] {
            count_on_device(&page, (Rank::new(2), Way::Send), DeviceRoute::Peer, (messages, bytes));
        }
        let last = MOST_ROWS - 1;
        // A row of its own would have been another way to rank 2.
        assert_eq!([word(last, 0), word(last, 1), word(last, 4)], [u64::from(OTHERS), 6 + 4, 6 * 128]);
        let page = RankPage::hidden();
        count_on_device(&page, (Rank::new(2), Way::Receive), DeviceRoute::Pinned, (3, 95));
        let row: Vec<u64> = page.head[ROWS..ROWS + ROW_WORDS].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        assert_eq!([row[0] & 0xffff_ffff, row[1], row[2], row[3], row[4]], [3, 0, 0, 3, 95]);
        assert_eq!(transport_name((row[0] >> 32) - 1), Some("gpu shm"));
    }

    #[test]
    fn each_transport_and_way_has_a_name_of_its_own() {
        let codes = (0..=u64::from(u8::MAX)).chain(DeviceRoute::ALL.map(DeviceRoute::code));
        let names: Vec<&str> = codes.filter_map(transport_name).collect();
        assert_eq!(names, ["local", "shm", "net", "one gpu", "gpu p2p", "gpu shm", "gpu net"]);
        assert_eq!((transport_name(300), transport_name(u64::MAX)), (None, None));
    }
}
