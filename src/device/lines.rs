//! Where messages lie whose words carry their own flags, by LL and LL128: in the receiver's memory, as
//! `kernels/lines.h` has it. Why an old flag is never taken for a new one stands there.

use super::records::{SLOT, SLOT_HEADER};
use crate::types::Protocol;

/// Slots of lines of a connection, for each protocol: at least as many as the messages that a connection promises to
/// take ahead of their receiver (`exec::PROMISED_MESSAGES`).
pub const SLOTS: u32 = 8;
/// Bytes before the lines of a slot.
pub(in crate::device) const HEADER: u64 = 128;
/// Bytes of a slot's lines.
pub(in crate::device) const LINES: u64 = 32 << 10;
/// Lines begin at a multiple of this, and one of LL128 has so many bytes.
const LINE: u64 = 128;
/// Bytes of data in a line of LL128; the others are its flag.
const DATA: u64 = LINE - 8;

/// Bytes of data that a slot holds; `None` for Simple, whose slots are as long as the settings say.
pub fn payload(protocol: Protocol) -> Option<u64> {
    match protocol {
        Protocol::Simple => None,
        // Half of each word is its flag.
        Protocol::LowLatency => Some(LINES / 2),
        Protocol::LowLatency128 => Some(LINES / LINE * DATA),
    }
}

/// [`super::records::OperandRecord::kind`] of a slot.
pub fn slot_kind(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Simple => SLOT,
        Protocol::LowLatency => SLOT + 1,
        Protocol::LowLatency128 => SLOT + 2,
    }
}

/// The bit of a protocol in the list of those by which a message may come ([`super::records::StepRecord::peer`]).
pub fn bit(protocol: Protocol) -> u32 {
    1 << (slot_kind(protocol) - SLOT)
}

/// Bytes of a connection's slots of Simple, and behind them of lines by the first `protocols` of LL and LL128.
pub fn connection_bytes((count, payload): (u32, u64), protocols: u32) -> u64 {
    // The slots begin at a multiple of 64, so the lines begin at most 64 bytes behind them.
    slots_bytes((count, payload)).next_multiple_of(LINE) + lines_bytes(protocols)
}

/// Bytes of a connection's slots of Simple.
pub fn slots_bytes((count, payload): (u32, u64)) -> u64 {
    u64::from(count) * (SLOT_HEADER + payload)
}

/// Bytes of a connection's slots of lines, and of the gap before them.
pub fn lines_bytes(protocols: u32) -> u64 {
    LINE + u64::from(protocols * SLOTS) * (HEADER + LINES)
}

/// Where lines begin in memory that is free from `address` on.
pub fn first(address: u64) -> u64 {
    address.next_multiple_of(LINE)
}

/// LL and LL128.
pub const PROTOCOLS: u32 = 2;
/// LL alone.
pub const LL_ALONE: u32 = 1;

#[cfg(test)]
#[test]
fn lines_lie_where_the_kernels_look_for_them() {
    use super::headers::constant;
    assert_eq!(u64::from(SLOTS), constant("LINE_SLOTS"));
    assert_eq!([HEADER, LINES, LINE, DATA], ["LINE_HEADER", "LINE_BYTES", "LINE_128", "DATA_128"].map(constant));
    let protocols = [Protocol::Simple, Protocol::LowLatency, Protocol::LowLatency128];
    let kinds = protocols.map(|protocol| u64::from(slot_kind(protocol) - SLOT));
    assert_eq!(kinds, ["SIMPLE", "LL", "LL128"].map(constant));
}
