//! An operation and its label: what all ranks must agree on, how it travels, and the mismatch error where they differ.

#![warn(clippy::wildcard_enum_match_arm)]

use std::fmt;

use crate::sync::ring::Label;
use crate::types::{Collective, Counted, DataType, Rank, ReduceOp};

/// One operation of a communicator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Operation {
    /// Which collective, or `Send` for both ends of a message.
    pub collective: Collective,
    /// The elements' type.
    pub data_type: DataType,
    /// The operator, where the collective has one.
    pub op: Option<ReduceOp>,
    /// The root, where the collective has one.
    pub root: Option<Rank>,
    /// The count as the caller gave it; for vector forms a hash of all counts.
    pub count: u64,
    /// Its number: among the communicator's collectives, or among the messages of a pair.
    pub sequence: u64,
    /// Stands for all collectives before it, where it is one: ranks whose earlier calls differed differ here. In the
    /// upper 16 bits, as a label has it.
    pub past: u64,
    /// Whether it works in the memory of devices: such ranks and ranks on the host never meet.
    pub on_device: bool,
    /// A check sum of where its buffers lie in windows, which is the same on all ranks; 0 where they lie in none.
    pub windows: u64,
}

impl Operation {
    /// As a message's label.
    #[inline]
    pub fn label(&self) -> Label {
        let op = self.op.map_or(NONE, |op| u64::from(op.code()));
        let root = self.root.map_or(0, |root| u64::from(root.get()) + 1);
        let kind = u64::from(self.collective.code());
        let number = self.sequence | self.past;
        let memory = u64::from(self.on_device) << DEVICE_BIT | short_sum(self.windows) << WINDOWS_AT;
        let first = kind | u64::from(self.data_type.code()) << 8 | op << 16 | root << 24 | memory;
        // All bits of the check sum: ranks that pass one count and other places always have other labels.
        [first, self.count ^ self.windows, number]
    }
}

/// The label of a call that runs once more, with its number and what has been called before.
#[inline]
pub fn relabelled([call, count, _]: Label, sequence: u64, past: u64) -> Label {
    [call, count, sequence | past]
}

/// The number that a label carries. At ten million calls a second the 48 bits last for 325 days.
#[inline]
pub fn sequence(label: Label) -> u64 {
    label[2] & SEQUENCE
}

/// The label of the same call under the name by which this rank has called it.
pub(super) fn called(label: Label, collective: Collective) -> Label {
    [label[0] & !0xff | u64::from(collective.code()), label[1], label[2]]
}

/// Whether a label is of a message that is none of a collective.
pub(super) fn is_send(label: Label) -> bool {
    label[0] & 0xff == u64::from(Collective::Send.code())
}

/// Whether two labels are the same. Word by word, since an array is compared 16 bytes at a time, and such a load waits
/// until two words that have just been stored have left the processor's store buffer.
#[inline]
pub fn is_same(one: Label, other: Label) -> bool {
    one[0] == other[0] && one[1] == other[1] && one[2] == other[2]
}

/// Whether two labels are of the same call; what was called before may differ.
pub fn same_call(one: Label, other: Label) -> bool {
    one[..2] == other[..2] && sequence(one) == sequence(other)
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.collective, self.sequence)
    }
}

/// The bits of a window check sum that stand in a label by themselves: 0 only for calls that work in no window.
fn short_sum(windows: u64) -> u64 {
    if windows == 0 { 0 } else { (windows & u64::from(u16::MAX)).max(1) }
}

/// The call and number of a label, whatever its bits: "barrier #4".
pub fn short_name(label: Label) -> String {
    format!("{} #{}", kind_name(label), sequence(label))
}

fn kind_name(label: Label) -> &'static str {
    let code = u8::try_from(label[0] & 0xff).expect("masked to 8 bits");
    Collective::from_code(code).map_or("an unknown collective", Collective::name)
}

/// A label in words, whatever its bits.
pub fn describe(label: Label) -> String {
    describe_in(label, 0)
}

/// A label in words. `windows` is this rank's check sum of the call's places, if it works in windows: it shows the
/// count of a peer at the same places.
pub(super) fn describe_in(label: Label, windows: u64) -> String {
    let byte = |shift: u32| u8::try_from(label[0] >> shift & 0xff).expect("masked to 8 bits");
    let kind = kind_name(label);
    let data_type = DataType::from_code(byte(8)).map_or("unknown type", DataType::name);
    let short = label[0] >> WINDOWS_AT & u64::from(u16::MAX);
    let known = short == short_sum(windows);
    let counted = label[1] ^ if known { windows } else { 0 };
    let collective = Collective::from_code(byte(0));
    let mut parts = match collective.map(|collective| collective.definition().counted) {
        // Nobody passes elements.
        _ if collective == Some(Collective::Barrier) && label[1] == 0 => Vec::new(),
        // The label of a vector form has a hash in the place of the counts.
        Some(Counted::PerRank) => vec![format!("counts with check sum {counted:016x}"), data_type.to_owned()],
        Some(Counted::PerPair) => vec!["counts of each pair".to_owned(), data_type.to_owned()],
        None | Some(Counted::Once | Counted::AtRoot) => {
            let sum = || format!("count and places with check sum {counted:016x}");
            vec![if known { format!("count {counted}") } else { sum() }, data_type.to_owned()]
        }
    };
    parts.extend(ReduceOp::name_of_code(byte(16)).map(str::to_owned));
    if label[0] >> DEVICE_BIT != 0 {
        parts.push("on a device".to_owned());
    }
    if short != 0 {
        parts.push(format!("in windows at places with check sum {short:04x}"));
    }
    let root = label[0] >> 24 & ROOT;
    if root != 0 {
        parts.push(format!("root {}", root - 1));
    }
    let details = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    format!("{kind} #{}{details}", sequence(label))
}

const NONE: u64 = 0xff;
/// The bit of a label's first word that says where the call works.
const DEVICE_BIT: u32 = 63;
/// The bits below it say where in windows; the root ends below those.
const WINDOWS_AT: u32 = DEVICE_BIT - u16::BITS;
const ROOT: u64 = (1 << (WINDOWS_AT - 24)) - 1;
/// The bits of a label's third word that have the number.
pub(super) const SEQUENCE: u64 = (1 << 48) - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::mismatch;

    #[test]
    fn a_mismatch_names_both_sides() {
        let mine = Operation {
            collective: Collective::AllReduce,
            data_type: DataType::F32,
            op: Some(ReduceOp::Sum),
            root: None,
            count: 4,
            sequence: 17,
            past: 0,
            on_device: false,
            windows: 0,
        };
        let theirs =
            Operation { collective: Collective::Broadcast, op: None, root: Some(Rank::new(2)), count: 8, ..mine };
        let error = mismatch(mine.label(), Rank::new(1), theirs.label());
        assert_eq!(
            error.message(),
            "this rank called all_reduce #17 (count 4, float, sum), rank 1 called broadcast #17 (count 8, float, root 2)"
        );
        // No rank passes elements to a barrier.
        let barrier =
            Operation { collective: Collective::Barrier, op: None, count: 0, data_type: DataType::U8, ..mine };
        assert_eq!(describe(barrier.label()), "barrier #17");
        let apart = Operation { on_device: true, ..barrier };
        assert_eq!(describe(apart.label()), "barrier #17 (on a device)");
        let apart = Operation { on_device: true, ..theirs };
        assert_eq!(describe(apart.label()), "broadcast #17 (count 8, float, on a device, root 2)");
        let placed = Operation { windows: 0xabcd_0000_0a0f, ..apart };
        let words = "broadcast #17 (count 8, float, on a device, in windows at places with check sum 0a0f, root 2)";
        assert_eq!(describe_in(placed.label(), placed.windows), words);
        let elsewhere = "broadcast #17 (count and places with check sum 0000abcd00000a07, float, on a device, \
             in windows at places with check sum 0a0f, root 2)";
        assert_eq!(describe(placed.label()), elsewhere);
        assert!(describe([u64::MAX; 3]).contains("unknown"));
        let vector = Operation { collective: Collective::AllGatherV, op: None, count: 0xab, ..mine };
        assert_eq!(describe(vector.label()), "all_gather_v #17 (counts with check sum 00000000000000ab, float)");
    }
}
