//! What the log says of calls, in NCCL's words: `NCCL_DEBUG_SUBSYS=COLL` each call, `TUNING` how it is run.
//!
//! ```text
//! AllReduce: opCount 3 sendbuff 0x7f10 recvbuff 0x7f90 count 1024 datatype float op sum root 0 comm 8b0c77e1d2f3a415 [nranks=4]
//! Send: opCount 0 sendbuff 0x7f10 recvbuff 0x0 count 16 datatype float op none peer 1 comm 8b0c77e1d2f3a415 [nranks=4]
//! AllReduce: 4096 Bytes -> Algo Direct proto LL
//! ```
//! As in NCCL, opCount is hexadecimal, and the bytes are the longer ones of a rank's input and output. A call of several that a group
//! has fused is one line.

use std::fmt;

use crate::comm::choose::Chosen;
use crate::exec::{Call, Message, Operation};
use crate::types::{Collective, Rank, World};

/// The line of a collective.
pub(super) struct CallLine<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) operation: &'a Operation,
    pub(super) world: World,
    /// The communicator's.
    pub(super) id: u64,
}

impl fmt::Display for CallLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallLine { call, operation, world, id } = self;
        let ((input, output), count) = (call.buffers.places(), call.count.of(world.rank));
        let op = call.op.map_or("none".to_owned(), |op| op.to_string());
        let root = call.root.map_or(0, Rank::get);
        let (name, number, data_type) = (Name(call.collective), operation.sequence, call.data_type);
        write!(f, "{name}: opCount {number:x} sendbuff {input:p} recvbuff {output:p} count {count} ")?;
        write!(f, "datatype {data_type} op {op} root {root} comm {id:016x} [nranks={}]", world.size)
    }
}

/// The line of a message.
pub(super) struct MessageLine<'a> {
    pub(super) message: &'a Message<'a>,
    /// Among the messages of its pair.
    pub(super) sequence: u64,
    pub(super) world: World,
    /// The communicator's.
    pub(super) id: u64,
}

impl fmt::Display for MessageLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MessageLine { message, sequence, world, id } = self;
        let name = if message.sends() { "Send" } else { "Recv" };
        let (input, output) = message.places();
        let (count, data_type, peer) = (message.count(), message.data_type(), message.peer());
        write!(f, "{name}: opCount {sequence:x} sendbuff {input:p} recvbuff {output:p} count {count} ")?;
        write!(f, "datatype {data_type} op none peer {peer} comm {id:016x} [nranks={}]", world.size)
    }
}

/// The line of a choice.
pub(super) struct ChoiceLine<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) world: World,
    pub(super) chosen: Chosen,
}

impl fmt::Display for ChoiceLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Chosen { algorithm, protocol } = self.chosen;
        // A call is checked before it is logged, so its lengths are good.
        let elements = self.call.lengths(self.world).map_or(0, |(input, output)| input.0.max(output.0));
        let bytes = elements.saturating_mul(u64::from(self.call.data_type.size()));
        write!(f, "{}: {bytes} Bytes -> Algo {algorithm} proto {protocol}", Name(self.call.collective))
    }
}

/// A collective's name as NCCL spells it: `AllReduce`.
struct Name(Collective);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for word in self.0.name().split('_') {
            let mut letters = word.chars();
            let first = letters.next().map(|letter| letter.to_ascii_uppercase());
            write!(f, "{}{}", first.map_or_else(String::new, String::from), letters.as_str())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::{Buffers, CallCount};
    use crate::types::{Algorithm, DataType, Protocol, ReduceOp};

    #[test]
    fn lines_are_those_of_nccl() {
        let world = World { rank: Rank::new(1), size: 4 };
        let mut buffer = [0f32; 8];
        let call = Call {
            collective: Collective::ReduceScatter,
            data_type: DataType::F32,
            op: Some(ReduceOp::Max),
            root: None,
            count: CallCount::Each(2),
            buffers: Buffers::output_inside(&mut buffer, 2, 2),
        };
        let (from, into) = call.buffers.places();
        let operation = Operation {
            collective: call.collective,
            data_type: call.data_type,
            op: call.op,
            root: None,
            count: 2,
            sequence: 26,
        };
        let line = CallLine { call: &call, operation: &operation, world, id: 0xab }.to_string();
        assert_eq!(
            line,
            format!(
                "ReduceScatter: opCount 1a sendbuff {from:p} recvbuff {into:p} count 2 datatype float op max root 0 \
                 comm 00000000000000ab [nranks=4]"
            )
        );
        let chosen = Chosen { algorithm: Algorithm::Direct, protocol: Protocol::LowLatency };
        let line = ChoiceLine { call: &call, world, chosen }.to_string();
        assert_eq!(line, "ReduceScatter: 32 Bytes -> Algo Direct proto LL");
        let message = Message::send(&[1u8, 2], Rank::new(3));
        let line = MessageLine { message: &message, sequence: 10, world, id: 1 }.to_string();
        assert!(line.starts_with("Send: opCount a sendbuff 0x") && line.contains(" recvbuff 0x0 count 2 "), "{line}");
        assert!(line.ends_with(" peer 3 comm 0000000000000001 [nranks=4]"), "{line}");
    }
}
