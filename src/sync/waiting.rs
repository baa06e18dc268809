//! What a wait waits for: in words for its error, and as messages, so that a stalled rank can tell its peers.

use std::fmt;

use crate::types::{Collective, Rank};

/// What a wait waits for. A closure that yields the words is one.
pub trait Waiting {
    /// In words, as in "rank 3 (its data for this call)".
    fn words(&self) -> String;

    /// The messages that have not ended; `None` where the wait does not know of messages.
    fn messages(&self) -> Option<Vec<AwaitedMessage>> {
        None
    }

    /// Those without which the program does not go on: all, unless the program has begun them and waits for others, or
    /// for none.
    fn blocking(&self) -> Option<Vec<AwaitedMessage>> {
        self.messages()
    }

    /// The ranks with which connections are not open yet, where the wait is for connections: no message with another
    /// rank holds the program up.
    fn unconnected(&self) -> Option<Vec<Rank>> {
        None
    }

    /// What this side knows of the connections that it waits on, where that is out of the ordinary: words for the end
    /// of the error.
    fn beside(&self) -> Option<String> {
        None
    }
}

impl<F: Fn() -> String> Waiting for F {
    fn words(&self) -> String {
        self()
    }
}

/// A message for whose other end a rank waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwaitedMessage {
    /// The rank of the other end.
    pub peer: Rank,
    /// What this rank called: a send, a recv, or the collective that the message is a part of.
    pub call: Collective,
    /// The call's number: among the sends to the peer, the recvs from it, or the collectives.
    pub number: u64,
    /// Whether this end sends.
    pub sends: bool,
}

impl AwaitedMessage {
    /// Whether `other`, of rank `peer`, is the other end of this message of rank `me`.
    pub fn meets(&self, me: Rank, (peer, other): (Rank, &AwaitedMessage)) -> bool {
        self.peer == peer && *other == self.other_end(me)
    }

    /// The same message as the rank of the other end has it, if this end is that of rank `me`.
    pub fn other_end(&self, me: Rank) -> AwaitedMessage {
        let call = match self.call {
            Collective::Send => Collective::Recv,
            Collective::Recv => Collective::Send,
            part => part,
        };
        AwaitedMessage { peer: me, call, number: self.number, sends: !self.sends }
    }

    /// Whether it is no part of a collective.
    pub fn is_single(&self) -> bool {
        matches!(self.call, Collective::Send | Collective::Recv)
    }

    /// With the other end's rank: "recv #3 from rank 1".
    pub fn full_name(&self) -> String {
        let (way, peer) = (if self.sends { "to" } else { "from" }, self.peer);
        if self.is_single() {
            format!("{self} {way} rank {peer}")
        } else {
            format!("the data of {self} {way} rank {peer}")
        }
    }
}

/// The call alone: "recv #3".
impl fmt::Display for AwaitedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.call, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ends_of_one_message_meet() {
        let end = |peer, call, number, sends| AwaitedMessage { peer: Rank::new(peer), call, number, sends };
        let (send, recv) = (end(1, Collective::Send, 3, true), end(0, Collective::Recv, 3, false));
        let [me, peer] = [0, 1].map(Rank::new);
        assert!(send.meets(me, (peer, &recv)) && recv.meets(peer, (me, &send)));
        let others = [
            end(0, Collective::Recv, 4, false),
            end(2, Collective::Recv, 3, false),
            end(0, Collective::Send, 3, true),
            end(0, Collective::AllToAllV, 3, false),
        ];
        for other in others {
            assert!(!send.meets(me, (peer, &other)), "{other:?}");
        }
        let [part, counterpart] =
            [(1, true), (0, false)].map(|(peer, sends)| end(peer, Collective::AllToAllV, 3, sends));
        assert!(part.meets(me, (peer, &counterpart)));
        assert_eq!((send.full_name(), recv.full_name()), ("send #3 to rank 1".into(), "recv #3 from rank 0".into()));
        assert_eq!(part.full_name(), "the data of all_to_all_v #3 to rank 1");
    }
}
