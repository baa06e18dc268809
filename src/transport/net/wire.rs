//! How messages lie on the wire: what both pumps of a connection know.
//!
//! A connection is one or several sockets from sender to receiver. Each message is
//! ```text
//! socket 0      header { bytes u64, label 3 × u64 }, then its part
//! socket 1..    its part, where the message is large enough to be cut
//! ```
//! Parts are cut by length alone, so both ends cut alike. A receiver that has no free slot leaves the bytes in the
//! socket.

use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::time::Instant;

use crate::error::{Error, Kind, Result};
use crate::sync::ring::Label;
use crate::types::Rank;

/// A non-blocking socket as pumps use it: each call is one system call.
pub(super) trait DataSocket: AsFd + Debug + Send {
    /// Reads what is there; `None` where nothing is, `Some(0)` at the end.
    fn read_into(&self, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>>;
    /// Writes what fits; `None` where nothing does.
    fn write_from(&self, parts: &[IoSlice<'_>]) -> Result<Option<usize>>;
    /// Looks whether the peer's system still answers to what was sent.
    fn look(&mut self, _: Instant) -> Result<()> {
        Ok(())
    }
    /// Whether a write may end anywhere, and the next one need not offer all that this one has. No default: one that is
    /// wrong sends bytes twice.
    fn may_stop_anywhere(&self) -> bool;
    /// Whether the next read fails, whatever comes: no descriptor tells of that again.
    fn has_failed(&self) -> bool {
        false
    }
}

/// Where a socket's part begins, and where it ends: what is left of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketPart {
    pub(super) at: usize,
    pub(super) end: usize,
}

/// Cuts a message for so many sockets: whole on the first where it is small.
pub(super) fn cut(bytes: usize, sockets: usize, parts: &mut Vec<SocketPart>) {
    let used = (bytes / LEAST_PART).clamp(1, sockets);
    let share = bytes.div_ceil(used).next_multiple_of(64);
    let part = |index: usize| {
        if index >= used {
            SocketPart { at: bytes, end: bytes }
        } else {
            SocketPart { at: (index * share).min(bytes), end: ((index + 1) * share).min(bytes) }
        }
    };
    parts.clear();
    parts.extend((0..sockets).map(part));
}

pub(super) fn encode(bytes: usize, label: Label) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    for (place, word) in [bytes as u64, label[0], label[1], label[2]].into_iter().enumerate() {
        header[place * 8..(place + 1) * 8].copy_from_slice(&word.to_le_bytes());
    }
    header
}

pub(super) fn decode(header: &[u8]) -> (u64, Label) {
    let word = |place: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[place * 8 + byte]));
    (word(0), [word(1), word(2), word(3)])
}

pub(super) fn broken(error: Error, peer: Rank) -> Error {
    Error::new(Kind::Remote, format!("the data connection with rank {peer} broke: {}", error.message())).about(peer)
}

pub(super) fn cut_off(peer: Rank) -> Error {
    Error::remote(peer, format!("rank {peer} closed its data connection in the middle of a message"))
}

pub(super) const HEADER_BYTES: usize = 32;
/// Parts of less are not worth a socket of their own. Each of four rails has a part of the pieces of collectives, which
/// have 128 KiB.
pub(super) const LEAST_PART: usize = 32 << 10;
/// Bytes that are read ahead of need: a small message and its header, in one call. They are copied once more.
pub(super) const AHEAD_BYTES: usize = 4096;

const _: () = assert!(AHEAD_BYTES > HEADER_BYTES);
