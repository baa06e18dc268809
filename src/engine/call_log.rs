//! The log's lines about calls, in NCCL's words: `NCCL_DEBUG_SUBSYS=COLL` logs each call, `TUNING` how it is run.
//!
//! ```text
//! AllReduce: opCount 3 sendbuff 0x7f10 recvbuff 0x7f90 count 1024 datatype float op sum root 0 comm 8b0c77e1d2f3a415 [nranks=4]
//! Send: opCount 0 sendbuff 0x7f10 recvbuff 0x0 count 16 datatype float op none peer 1 comm 8b0c77e1d2f3a415 [nranks=4]
//! AllToAllV: opCount 4 sendbuff 0x7f10 recvbuff 0x7f90 sendcounts [1,2] recvcounts [1,0] datatype float op none root 0 comm ..
//! AllReduce: 4096 Bytes -> Algo Direct proto LL channel{Lo..Hi}={0..0}
//! Send: 64 Bytes to rank 1 -> proto LL
//! GatherV: 64 Bytes from rank 1 -> proto LL
//! Scan: 64 Bytes -> proto LL
//! ```
//! The last three are of GPUs' memory alone, for messages between ranks and for scans. As in NCCL, opCount is hexadecimal, and the bytes are those of the longer one of a rank's input and output. Calls
//! that a group has fused are one line. A send has no output and a receive no input: the line shows null.
//!
//! With `NCCL_DEBUG=TRACE` and `NCCL_DEBUG_SUBSYS=CALL` each call is a line from which a program can repeat it, as
//! NCCL's `TRACE_CALL`:
//!
//! ```text
//! node0:4711:4712 [0] RSCCL CALL AllReduce(7f10,7f90,1024,float,sum,0,8b0c77e1d2f3a415)
//! node0:4711:4712 [0] RSCCL CALL AllGatherV(7f10,7f90,[1,2],float,none,0,8b0c77e1d2f3a415)
//! node0:4711:4712 [0] RSCCL CALL AllToAllV(7f10,7f90,[1,2]/[1,0],float,none,0,8b0c77e1d2f3a415)
//! node0:4711:4712 [0] RSCCL CALL Send(7f10,0,16,float,none,1,8b0c77e1d2f3a415)
//! ```
//! that is name(input, output, count, type, operator, root or peer, communicator); an operator `mulsum(2.5)` has this
//! rank's scalar.

use std::fmt;

use crate::engine::choose::{Chosen, Question};
use crate::engine::host_chooser::HostChooser;
use crate::error::Result;
use crate::exec::{Call, CallCount, Message, Operation};
use crate::log;
use crate::session::Session;
use crate::types::{Collective, DataType, Protocol, Rank, ReduceOp, Scalar, World};

/// Logs a collective that begins now: that it is called, and how it is run.
#[cold]
pub(super) fn of_collective(session: &Session, chooser: &HostChooser, (call, operation): (&Call<'_>, &Operation)) {
    if !log::has_lines_of_calls() {
        return;
    }
    let (world, id) = (session.world, session.bootstrap.id());
    log::trace!(Call @ world.rank, "{}", CallTrace { call, id });
    log::detail!(Coll @ world.rank, "{}", CallLine { call, operation, world, id });
    // What devices can do is known once they have met.
    if !operation.on_device {
        of_choice(session, call, |asked| chooser.chosen(asked));
    }
}

/// Logs how a collective is run, as `choose` says.
pub(super) fn of_choice(session: &Session, call: &Call<'_>, choose: impl FnOnce(Question<'_>) -> Result<Chosen>) {
    let world = session.world;
    if call.collective.is_messages() || world.size == 1 || !log::has_lines_of_calls() {
        return;
    }
    // Where the filters leave nothing, the call itself says so.
    if let Ok(chosen) = choose(Question::of(call)) {
        log::detail!(Tuning @ world.rank, "{}", ChoiceLine { call, world, chosen });
    }
}

/// Logs a message that begins now.
#[cold]
pub(super) fn of_message(session: &Session, message: &Message<'_>, sequence: u64) {
    if !log::has_lines_of_calls() {
        return;
    }
    let (world, id) = (session.world, session.bootstrap.id());
    log::trace!(Call @ world.rank, "{}", MessageTrace { message, id });
    log::detail!(Coll @ world.rank, "{}", MessageLine { message, sequence, world, id });
}

/// Logs an `all_to_all_v` that begins now, with all its messages.
#[cold]
pub(super) fn of_exchange(session: &Session, messages: &[Message<'_>]) {
    if !log::has_lines_of_calls() {
        return;
    }
    let (exchange, world, id) = (Exchange::of(messages), session.world, session.bootstrap.id());
    log::trace!(Call @ world.rank, "{}", exchange.trace(id));
    log::detail!(Coll @ world.rank, "{}", exchange.line(session.collectives(), world, id));
}

/// The line of a collective.
struct CallLine<'a> {
    call: &'a Call<'a>,
    operation: &'a Operation,
    world: World,
    /// The communicator's number.
    id: u64,
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

/// The line of a collective from which it can be repeated.
struct CallTrace<'a> {
    call: &'a Call<'a>,
    /// The communicator's number.
    id: u64,
}

impl fmt::Display for CallTrace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallTrace { call, id } = self;
        let (input, output) = call.buffers.places();
        let (name, data_type) = (Name(call.collective), call.data_type);
        let root = call.root.map_or(0, Rank::get);
        write!(f, "{name}({:x},{:x},", input.addr(), output.addr())?;
        match &call.count {
            CallCount::Each(count) => write!(f, "{count}")?,
            CallCount::PerRank(counts) => write!(f, "{}", List(counts))?,
        }
        write!(f, ",{data_type},{},{root},{id:016x})", Operator(call.op))
    }
}

/// An operator with its scalar, if it has one.
struct Operator(Option<ReduceOp>);

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("none"),
            Some(ReduceOp::PreMulSum(scalar)) => match scalar {
                Scalar::Signed(value) => write!(f, "mulsum({value})"),
                Scalar::Unsigned(value) => write!(f, "mulsum({value})"),
                Scalar::Float(value) => write!(f, "mulsum({value:?})"),
            },
            Some(op) => f.write_str(op.name()),
        }
    }
}

/// Numbers in brackets, with no spaces.
pub struct List<'a, T>(pub &'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (place, number) in self.0.iter().enumerate() {
            write!(f, "{}{number}", if place == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

/// An `all_to_all_v`: its memory and its counts, collected from its messages.
struct Exchange {
    places: (*const u8, *const u8),
    send_counts: Vec<u64>,
    recv_counts: Vec<u64>,
    data_type: DataType,
}

impl Exchange {
    /// From the messages to and from each rank, this one included, each half in rank order.
    pub(super) fn of(messages: &[Message<'_>]) -> Exchange {
        let half = |sends: bool| messages.iter().filter(move |message| message.sends() == sends);
        let counts = |sends: bool| half(sends).map(Message::count).collect();
        // Blocks lie one behind the other, so the first one's place is the buffer's.
        let input = half(true).next().map_or(std::ptr::null(), |message| message.places().0);
        let output = half(false).next().map_or(std::ptr::null(), |message| message.places().1);
        let data_type = messages.first().map_or(DataType::U8, Message::data_type);
        Exchange { places: (input, output), send_counts: counts(true), recv_counts: counts(false), data_type }
    }

    /// The line of the call.
    pub(super) fn line(&self, sequence: u64, world: World, id: u64) -> String {
        let Exchange { places, send_counts, recv_counts, data_type } = self;
        let (input, output) = *places;
        let (sent, received) = (List(send_counts), List(recv_counts));
        format!(
            "AllToAllV: opCount {sequence:x} sendbuff {input:p} recvbuff {output:p} sendcounts {sent} recvcounts {received} \
             datatype {data_type} op none root 0 comm {id:016x} [nranks={}]",
            world.size
        )
    }

    /// The line from which the call can be repeated.
    pub(super) fn trace(&self, id: u64) -> String {
        let Exchange { places, send_counts, recv_counts, data_type } = self;
        let (input, output) = *places;
        let (sent, received) = (List(send_counts), List(recv_counts));
        format!("AllToAllV({:x},{:x},{sent}/{received},{data_type},none,0,{id:016x})", input.addr(), output.addr())
    }
}

/// The line of a message.
struct MessageLine<'a> {
    message: &'a Message<'a>,
    /// Its number among the messages of its pair.
    sequence: u64,
    world: World,
    /// The communicator's number.
    id: u64,
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

/// The line of a message from which it can be repeated.
struct MessageTrace<'a> {
    message: &'a Message<'a>,
    /// The communicator's number.
    id: u64,
}

impl fmt::Display for MessageTrace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MessageTrace { message, id } = self;
        let name = if message.sends() { "Send" } else { "Recv" };
        let (input, output) = message.places();
        let (count, data_type, peer) = (message.count(), message.data_type(), message.peer());
        write!(f, "{name}({:x},{:x},{count},{data_type},none,{peer},{id:016x})", input.addr(), output.addr())
    }
}

/// The line that says by which protocol a message, or a scan, goes between devices.
pub(super) struct LineOfWay {
    /// `Send` of both ends of a message that is none of a collective.
    pub(super) collective: Collective,
    pub(super) bytes: u64,
    /// Of a message: whether this rank sends it, and the other rank.
    pub(super) peer: Option<(bool, Rank)>,
    pub(super) protocol: Protocol,
}

impl fmt::Display for LineOfWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LineOfWay { collective, bytes, peer, protocol } = *self;
        let name = match (collective, peer) {
            (Collective::Send, Some((false, _))) => Name(Collective::Recv),
            _ => Name(collective),
        };
        write!(f, "{name}: {bytes} Bytes ")?;
        match peer {
            Some((true, peer)) => write!(f, "to rank {peer} ")?,
            Some((false, peer)) => write!(f, "from rank {peer} ")?,
            None => {}
        }
        write!(f, "-> proto {protocol}")
    }
}

/// The line that says how a call is run.
struct ChoiceLine<'a> {
    call: &'a Call<'a>,
    world: World,
    chosen: Chosen,
}

impl fmt::Display for ChoiceLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Chosen { algorithm, protocol, channels } = self.chosen;
        let last = channels.saturating_sub(1);
        // A call is checked before it is logged, so its lengths are valid.
        let elements = self.call.lengths(self.world).map_or(0, |(input, output)| input.0.max(output.0));
        let bytes = elements.saturating_mul(u64::from(self.call.data_type.size()));
        let name = Name(self.call.collective);
        write!(f, "{name}: {bytes} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..{last}}}")
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
            past: 0,
            on_device: false,
            windows: 0,
        };
        let line = CallLine { call: &call, operation: &operation, world, id: 0xab }.to_string();
        assert_eq!(
            line,
            format!(
                "ReduceScatter: opCount 1a sendbuff {from:p} recvbuff {into:p} count 2 datatype float op max root 0 \
                 comm 00000000000000ab [nranks=4]"
            )
        );
        let trace = CallTrace { call: &call, id: 0xab }.to_string();
        let (input, output) = (from.addr(), into.addr());
        assert_eq!(trace, format!("ReduceScatter({input:x},{output:x},2,float,max,0,00000000000000ab)"));
        let chosen = Chosen { algorithm: Algorithm::Direct, protocol: Protocol::LowLatency, channels: 1 };
        let line = ChoiceLine { call: &call, world, chosen }.to_string();
        assert_eq!(line, "ReduceScatter: 32 Bytes -> Algo Direct proto LL channel{Lo..Hi}={0..0}");
        let message = Message::send(&[1u8, 2], Rank::new(3));
        let line = MessageLine { message: &message, sequence: 10, world, id: 1 }.to_string();
        assert!(line.starts_with("Send: opCount a sendbuff 0x") && line.contains(" recvbuff 0x0 count 2 "), "{line}");
        assert!(line.ends_with(" peer 3 comm 0000000000000001 [nranks=4]"), "{line}");
    }

    #[test]
    fn an_exchange_of_all_with_all_is_a_line_with_its_counts() {
        let world = World { rank: Rank::new(0), size: 2 };
        let (sent, mut received) = ([1u8, 2, 3], [0u8; 2]);
        let (input, output) = (sent.as_ptr(), received.as_ptr());
        let (own, other) = received.split_at_mut(1);
        let messages = [
            Message::send(&sent[..1], Rank::new(0)),
            Message::recv(own, Rank::new(0)),
            Message::send(&sent[1..], Rank::new(1)),
            Message::recv(other, Rank::new(1)),
        ];
        let line = Exchange::of(&messages).line(17, world, 1);
        assert_eq!(
            line,
            format!(
                "AllToAllV: opCount 11 sendbuff {input:p} recvbuff {output:p} sendcounts [1,2] recvcounts [1,1] datatype uint8 \
                 op none root 0 comm 0000000000000001 [nranks=2]"
            )
        );
    }
}
