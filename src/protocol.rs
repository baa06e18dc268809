//! How data and the news of its arrival share a slot: arithmetic only.
//!
//! | protocol | line | in a line | payload of a slot of b bytes | the flag |
//! |---|---|---|---|---|
//! | Simple | the slot | data | b | outside: the connection's tail |
//! | LL | 16 bytes | data 4, flag 4, data 4, flag 4 | ⌊b/16⌋·8 | 32 bits, twice in a line |
//! | LL128 | 128 bytes | data 120, flag 8 | ⌊b/128⌋·120 | 64 bits |
//!
//! A line is stored and loaded whole, so who finds a flag finds the data beside it; no fence stands between them.

#![forbid(unsafe_code)]

use crate::types::{Bytes, Elements, Protocol};

/// After so many messages of a connection its LL slots must be filled with zero flags: a line that short messages left
/// alone keeps its old flag, and 32-bit flags come again.
pub const CLEAN_EVERY: u64 = 1 << 30;

/// How a protocol lays out a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a line; 1 where the slot has no lines.
    pub line: u32,
    /// Bytes of data in a row, from the start of a line.
    pub data: u32,
    /// Bytes of the flag that follows them; 0 where flags are outside.
    pub flag: u32,
}

impl Layout {
    /// The layout of a protocol.
    pub const fn of(protocol: Protocol) -> Layout {
        match protocol {
            Protocol::Simple => Layout { line: 1, data: 1, flag: 0 },
            Protocol::LowLatency => Layout { line: 16, data: 4, flag: 4 },
            Protocol::LowLatency128 => Layout { line: 128, data: 120, flag: 8 },
        }
    }

    /// Bytes of data in a line.
    pub const fn data_of_line(self) -> u32 {
        self.data * (self.line / (self.data + self.flag))
    }

    /// Bytes of data that a slot of so many bytes holds.
    pub fn payload(self, slot: Bytes) -> Bytes {
        Bytes(slot.0 / u64::from(self.line) * u64::from(self.data_of_line()))
    }

    /// Elements of `size` bytes that a slot of so many bytes holds.
    pub fn elements(self, slot: Bytes, size: u32) -> Elements {
        Elements(self.payload(slot).0 / u64::from(size))
    }

    /// Lines that so many bytes of data take.
    pub fn lines(self, payload: Bytes) -> u64 {
        payload.0.div_ceil(u64::from(self.data_of_line()))
    }

    /// Bytes of a slot that holds so many bytes of data.
    pub fn slot(self, payload: Bytes) -> Bytes {
        Bytes(self.lines(payload) * u64::from(self.line))
    }

    /// Where in the slot a byte of the data lies.
    pub fn place(self, byte: Bytes) -> Bytes {
        let data = u64::from(self.data);
        Bytes(byte.0 / data * (data + u64::from(self.flag)) + byte.0 % data)
    }

    /// Where in the slot the flags of a line lie.
    pub fn flags(self, line: u64) -> impl Iterator<Item = Bytes> {
        let row = u64::from(self.data + self.flag);
        let rows = if self.flag == 0 { 0 } else { u64::from(self.line) / row };
        let start = line * u64::from(self.line);
        (0..rows).map(move |index| Bytes(start + index * row + u64::from(self.data)))
    }

    /// The flag of a connection's message by its number from 0 on: never 0, and another than that of the
    /// [`CLEAN_EVERY`] messages before.
    pub fn flag_of(self, message: u64) -> u64 {
        if self.flag == 4 { message % u64::from(u32::MAX) + 1 } else { message + 1 }
    }
}

const _: () = assert!(CLEAN_EVERY < u32::MAX as u64);
const _: () = assert!(Layout::of(Protocol::LowLatency).data_of_line() == 8);
const _: () = assert!(Layout::of(Protocol::LowLatency128).data_of_line() == 120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_those_of_the_table() {
        let payload = |protocol, slot| Layout::of(protocol).payload(Bytes(slot)).0;
        assert_eq!(payload(Protocol::Simple, 524_288), 524_288);
        assert_eq!(payload(Protocol::LowLatency, 65_536), 32_768);
        assert_eq!(payload(Protocol::LowLatency, 17), 8);
        assert_eq!(payload(Protocol::LowLatency128, 76_800), 72_000);
        assert_eq!(Layout::of(Protocol::LowLatency128).elements(Bytes(256), 8).0, 30);
    }

    #[test]
    fn data_and_flags_fill_a_slot_without_overlap() {
        for protocol in Protocol::ALL {
            let layout = Layout::of(*protocol);
            for payload in [0, 1, 7, 8, 9, 120, 121, 1000] {
                let slot = layout.slot(Bytes(payload));
                assert!(layout.payload(slot).0 >= payload);
                let mut used = vec![false; slot.index()];
                let flags = (0..layout.lines(Bytes(payload))).flat_map(|line| layout.flags(line));
                let flags = flags.flat_map(|at| (at.0..at.0 + u64::from(layout.flag)).map(Bytes));
                for at in (0..payload).map(|byte| layout.place(Bytes(byte))).chain(flags) {
                    assert!(!std::mem::replace(&mut used[at.index()], true), "{protocol} {payload} {at}");
                }
            }
        }
    }

    #[test]
    fn flags_are_never_zero_and_come_late_again() {
        let layout = Layout::of(Protocol::LowLatency);
        for message in [0, 1, u64::from(u32::MAX) - 1, u64::from(u32::MAX), u64::from(u32::MAX) + 1] {
            assert!((1..=u64::from(u32::MAX)).contains(&layout.flag_of(message)));
            assert_ne!(layout.flag_of(message), layout.flag_of(message + CLEAN_EVERY));
        }
    }
}
