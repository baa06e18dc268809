//! Who holds up a rank whose deadline has passed, by what all ranks have told of where they are stuck.
//!
//! Each stuck rank waits for some others. This rank follows these edges from itself: a cycle is a deadlock of the
//! program; if there is none, a rank that has not said that it waits holds up the others; if all edges end at the other
//! ends of what is waited for, all that must be here are here, and the data do not arrive.
//!
//! A rank whose thread is stuck in another communicator waits for ranks of that one. Of these this rank knows itself
//! alone: so it finds the cycles in which it waits in this communicator, and another rank in another one for it.

use std::collections::{HashMap, VecDeque};

use crate::exec::sequence;
use crate::session::stall::{ElsewhereStall, Stall};
use crate::sync::AwaitedMessage;
use crate::types::{Rank, World};

/// What all ranks have told, as one rank knows it.
#[derive(Clone, Copy)]
pub(crate) struct Picture<'a> {
    world: World,
    /// Whether a rank of another communicator is this rank, in the words of [`elsewhere`](crate::session::elsewhere).
    is_me: &'a dyn Fn(u64, Rank) -> bool,
    /// Where this rank is stuck.
    mine: &'a Stall,
    told: &'a HashMap<Rank, Stall>,
    begun: &'a BegunCounts,
}

/// How many messages ranks have begun: of each rank, by the rank of the other end and whether the first one sends.
pub(crate) type BegunCounts = HashMap<Rank, HashMap<(Rank, bool), u64>>;

/// That a rank waits for another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    /// In this call.
    pub(crate) call: String,
    kind: EdgeKind,
}

/// The kind of call in which a rank waits for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EdgeKind {
    /// A send or a recv.
    Message,
    /// One that all ranks make.
    Collective,
    /// One of another communicator.
    Elsewhere,
}

/// Whether the other end of a message has begun it or waits in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Met {
    Surely,
    /// Its rank waits in more messages than it has told of.
    Perhaps,
    No,
}

/// Who holds up this rank.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Culprit {
    /// Nobody: all are in the call of this rank.
    Nobody,
    /// A message whose two ends have begun, and which does not arrive.
    Undelivered(Edge),
    /// A message whose other end waits in more messages than it can tell of: perhaps in this one.
    Untold(Edge),
    /// This rank waits, over these edges, for one that is still in a call for which it waits for nobody.
    Behind(Vec<Edge>),
    /// These ranks wait for each other.
    Cycle(Vec<Edge>),
    /// Ranks that have not said that they wait, and what others, for which this rank waits, wait for.
    Silent(Vec<Rank>, Vec<Edge>),
    /// A rank whose thread is in a call of another communicator, and what others, for which this rank waits, wait for.
    Elsewhere(Rank, String, Vec<Edge>),
}

impl<'a> Picture<'a> {
    pub(crate) fn new(
        world: World,
        (mine, is_me): (&'a Stall, &'a dyn Fn(u64, Rank) -> bool),
        (told, begun): (&'a HashMap<Rank, Stall>, &'a BegunCounts),
    ) -> Picture<'a> {
        Picture { world, is_me, mine, told, begun }
    }

    /// Who holds up this rank.
    pub(crate) fn culprit(&self) -> Culprit {
        if let Some(cycle) = self.cycle() {
            return Culprit::Cycle(cycle);
        }
        let (mut seen, mut silent, mut through) = (vec![false; self.world.size as usize], Vec::new(), Vec::new());
        let (mut undelivered, mut untold, mut elsewhere) = (None, None, None);
        seen[self.world.rank.index()] = true;
        let mut open = VecDeque::from([self.world.rank]);
        while let Some(rank) = open.pop_front() {
            if self.stall(rank).is_none() {
                silent.push(rank);
                continue;
            }
            if let Some(Stall::Elsewhere(_)) = self.stall(rank) {
                elsewhere.get_or_insert_with(|| (rank, self.edge(rank, rank).call));
                continue;
            }
            let ahead = self.ahead(rank);
            undelivered = undelivered.or_else(|| self.first_met(rank, Met::Surely));
            untold = untold.or_else(|| self.first_met(rank, Met::Perhaps));
            if rank != self.world.rank && through.len() < MOST_EDGES {
                through.extend(ahead.first().map(|to| self.edge(rank, *to)));
            }
            for to in ahead {
                if !std::mem::replace(&mut seen[to.index()], true) {
                    open.push_back(to);
                }
            }
        }
        if !silent.is_empty() {
            return Culprit::Silent(silent, through);
        }
        if let Some((rank, call)) = elsewhere {
            return Culprit::Elsewhere(rank, call, through);
        }
        let undelivered = undelivered.map(Culprit::Undelivered);
        let behind = || {
            let Stall::Collective(_) = self.mine else { return None };
            let first = self.edge(self.world.rank, *self.ahead(self.world.rank).first()?);
            Some(Culprit::Behind([vec![first], through].concat()))
        };
        undelivered.or_else(|| untold.map(Culprit::Untold)).or_else(behind).unwrap_or(Culprit::Nobody)
    }

    /// The first message in which `rank` waits though the other end has begun it, too, or may have.
    fn first_met(&self, rank: Rank, wanted: Met) -> Option<Edge> {
        let Some(Stall::Messages { open, .. }) = self.stall(rank) else { return None };
        let mut single = open.iter().filter(|message| message.is_single());
        let met = single.find(|message| self.met(rank, message) == wanted)?;
        Some(Edge { from: rank, to: met.peer, call: met.to_string(), kind: EdgeKind::Message })
    }

    /// Ranks that wait for each other, found on the way from this rank.
    fn cycle(&self) -> Option<Vec<Edge>> {
        let mut way = vec![(self.world.rank, self.ahead(self.world.rank).into_iter())];
        let mut seen = vec![false; self.world.size as usize];
        seen[self.world.rank.index()] = true;
        while let Some((_, ahead)) = way.last_mut() {
            let Some(to) = ahead.next() else {
                way.pop();
                continue;
            };
            if let Some(start) = way.iter().position(|(rank, _)| *rank == to) {
                let ranks: Vec<Rank> = way[start..].iter().map(|(rank, _)| *rank).collect();
                let next = ranks.iter().skip(1).chain([&to]);
                return Some(ranks.iter().zip(next).map(|(from, to)| self.edge(*from, *to)).collect());
            }
            if !std::mem::replace(&mut seen[to.index()], true) {
                way.push((to, self.ahead(to).into_iter()));
            }
        }
        None
    }

    fn stall(&self, rank: Rank) -> Option<&Stall> {
        if rank == self.world.rank { Some(self.mine) } else { self.told.get(&rank) }
    }

    /// The ranks without which `rank` does not go on, each once: not those that are in its call.
    fn ahead(&self, rank: Rank) -> Vec<Rank> {
        let absent = |is_here: &dyn Fn(&Stall) -> bool| {
            let others = self.world.ranks().filter(|other| *other != rank);
            others.filter(|other| !self.stall(*other).is_some_and(is_here)).collect()
        };
        match self.stall(rank) {
            None => Vec::new(),
            Some(Stall::Collective(stall)) => absent(&|other| other.has_come_to(sequence(stall.label))),
            Some(Stall::Meeting { exchanges, .. }) => {
                absent(&|other| matches!(other, Stall::Meeting { exchanges: theirs, .. } if theirs == exchanges))
            }
            Some(Stall::Messages { open, .. }) => {
                let mut ahead = Vec::new();
                for message in open.iter().filter(|message| self.met(rank, message) == Met::No) {
                    let is_rank = message.peer != rank && message.peer.get() < self.world.size;
                    if is_rank && !ahead.contains(&message.peer) {
                        ahead.push(message.peer);
                    }
                }
                ahead
            }
            Some(Stall::Elsewhere(stall)) => self.call_for_me(stall).map(|_| self.world.rank).into_iter().collect(),
        }
    }

    /// The call of another communicator in which a rank waits there for this one.
    fn call_for_me<'s>(&self, stall: &'s ElsewhereStall) -> Option<&'s str> {
        let mut awaited = stall.awaited.iter();
        let (_, call) = awaited.find(|(rank, _)| (self.is_me)(stall.communicator, *rank))?;
        Some(call)
    }

    /// The ranks without which this rank does not go on, as far as it knows, and the calls in which it waits for them.
    pub(crate) fn awaited(&self) -> Vec<(Rank, String)> {
        self.ahead(self.world.rank).into_iter().map(|rank| (rank, self.mine.call_for(rank))).collect()
    }

    /// Whether the rank of the other end has begun the same message or waits in it, as far as is known.
    fn met(&self, me: Rank, message: &AwaitedMessage) -> Met {
        let begun = self.begun.get(&message.peer).and_then(|begun| begun.get(&(me, !message.sends)));
        if message.is_single() && begun.is_some_and(|begun| *begun > message.number) {
            return Met::Surely;
        }
        let is_here = match self.stall(message.peer) {
            Some(Stall::Messages { open, is_all }) => {
                let is_told = open.iter().any(|other| message.meets(me, (message.peer, other)));
                if !is_told && !is_all {
                    return Met::Perhaps;
                }
                is_told
            }
            Some(Stall::Collective(stall)) => !message.is_single() && message.number == sequence(stall.label),
            Some(Stall::Meeting { .. } | Stall::Elsewhere(_)) | None => false,
        };
        if is_here { Met::Surely } else { Met::No }
    }

    fn edge(&self, from: Rank, to: Rank) -> Edge {
        let stall = self.stall(from);
        let kind = match stall {
            Some(Stall::Messages { .. }) => EdgeKind::Message,
            Some(Stall::Elsewhere(_)) => EdgeKind::Elsewhere,
            Some(Stall::Collective(_) | Stall::Meeting { .. }) | None => EdgeKind::Collective,
        };
        let call = match stall {
            Some(Stall::Elsewhere(elsewhere)) if to == self.world.rank => {
                self.call_for_me(elsewhere).map(|call| elsewhere.words(call))
            }
            _ => None,
        };
        let call = call.or_else(|| stall.map(|stall| stall.call_for(to))).unwrap_or_default();
        Edge { from, to, call, kind }
    }
}

impl Culprit {
    /// The rank to look at, if it is one.
    pub(crate) fn rank(&self) -> Option<Rank> {
        match self {
            Culprit::Cycle(edges) => edges.first().map(|edge| edge.to),
            Culprit::Silent(ranks, _) => ranks.first().copied(),
            Culprit::Elsewhere(rank, ..) => Some(*rank),
            Culprit::Behind(edges) => edges.last().map(|edge| edge.to),
            Culprit::Undelivered(_) | Culprit::Untold(_) | Culprit::Nobody => None,
        }
    }

    /// In words, behind what was waited for. `spans_hosts`: whether a network is between some of the ranks.
    pub(crate) fn words(&self, mine: &Stall, spans_hosts: bool) -> String {
        let why = if spans_hosts {
            ", and nothing arrives: does the network between the hosts drop packets, or large ones alone (an MTU that \
             is smaller on the way)?"
        } else {
            ": a rank may be stopped"
        };
        match self {
            Culprit::Nobody => {
                let here = match mine {
                    Stall::Messages { .. } => "the other ends wait in it too",
                    Stall::Collective(_) | Stall::Meeting { .. } | Stall::Elsewhere(_) => {
                        "all other ranks wait in it too"
                    }
                };
                format!("{here}{why}")
            }
            Culprit::Undelivered(Edge { from, to, call, .. }) => {
                format!("rank {from} waits for rank {to} in {call}, and rank {to} has begun its end of it{why}")
            }
            Culprit::Untold(Edge { from, to, call, .. }) => format!(
                "rank {from} waits for rank {to} in {call}, and rank {to} waits in more messages than it can tell of: \
                 whether in this one is not known"
            ),
            Culprit::Behind(edges) => {
                format!("{}, and that one is in an earlier call, in which all others have been{why}", chain(edges))
            }
            Culprit::Cycle(edges) => {
                let way_out = if edges.iter().all(|edge| edge.kind == EdgeKind::Message) {
                    "; use send_recv or a group, which send and receive at once"
                } else if edges.iter().any(|edge| edge.kind == EdgeKind::Elsewhere) {
                    ", unless another thread makes the missing call; all ranks must make their calls on several \
                     communicators in one order"
                } else {
                    ""
                };
                format!("{}: none of them can go on{way_out}", chain(edges))
            }
            Culprit::Silent(ranks, through) => {
                let through = on_the_way(through);
                let named = ranks.iter().take(NAMED_RANKS).map(|rank| format!("rank {rank}"));
                let named = named.collect::<Vec<_>>().join(", ");
                let more = if ranks.len() > NAMED_RANKS { ", ..." } else { "" };
                let [has, it, waits, is] = match &ranks[..] {
                    [_] => ["has", "it", "waits", "is"],
                    _ => ["have", "they", "wait", "are"],
                };
                format!(
                    "{through}{named}{more} {has} not said that {it} {waits}: {it} may compute, or {is} stopped, or \
                     {waits} in another communicator"
                )
            }
            Culprit::Elsewhere(rank, call, through) => {
                format!("{}rank {rank} waits in {call}", on_the_way(through))
            }
        }
    }
}

/// The edges over which this rank waits for another one, before what that one does.
fn on_the_way(edges: &[Edge]) -> String {
    if edges.is_empty() { String::new() } else { format!("{}; ", chain(edges)) }
}

/// "rank 0 waits for rank 1 in recv #3, rank 1 for rank 0 in barrier #4".
fn chain(edges: &[Edge]) -> String {
    let first = edges.iter().take(MOST_EDGES).enumerate().map(|(at, Edge { from, to, call, .. })| {
        let waits = if at == 0 { "waits " } else { "" };
        format!("rank {from} {waits}for rank {to} in {call}")
    });
    let more = if edges.len() > MOST_EDGES { ", ..." } else { "" };
    format!("{}{more}", first.collect::<Vec<_>>().join(", "))
}

/// Ranks that a time-out names.
const NAMED_RANKS: usize = 8;
/// Edges that it tells.
const MOST_EDGES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Operation;
    use crate::session::stall::CollectiveStall;
    use crate::types::{Collective, DataType};

    fn message(call: Collective, peer: u32, number: u64) -> Stall {
        let open = vec![AwaitedMessage { peer: Rank::new(peer), call, number, sends: call == Collective::Send }];
        Stall::Messages { open, is_all: true }
    }

    fn recv(peer: u32, number: u64) -> Stall {
        message(Collective::Recv, peer, number)
    }

    fn send(peer: u32, number: u64) -> Stall {
        message(Collective::Send, peer, number)
    }

    fn barrier(sequence: u64) -> Stall {
        let (collective, data_type) = (Collective::Barrier, DataType::U8);
        let (op, root, count, past, on_device, windows) = (None, None, 0, 0, false, 0);
        let operation = Operation { collective, data_type, op, root, count, sequence, past, on_device, windows };
        Stall::Collective(CollectiveStall { label: operation.label(), exchanges: 0 })
    }

    /// The number of another communicator, and the rank that rank 0 has there.
    const ME: (u64, u32) = (7, 5);

    /// A rank whose thread waits in that communicator for its ranks `awaited`, in calls of these numbers.
    fn elsewhere(name: &str, awaited: &[(u32, u64)]) -> Stall {
        let awaited = awaited.iter().map(|(rank, number)| (Rank::new(*rank), format!("recv #{number}"))).collect();
        Stall::Elsewhere(ElsewhereStall { communicator: ME.0, name: name.to_owned(), awaited })
    }

    /// What rank 0 finds where the ranks have told `stalls`.
    fn found(stalls: &[Option<Stall>]) -> (Culprit, String) {
        found_with(stalls, &[])
    }

    /// [`found`], where ranks have also told how many messages they have begun.
    fn found_with(stalls: &[Option<Stall>], begun: &[((Rank, Rank, bool), u64)]) -> (Culprit, String) {
        let size = u32::try_from(stalls.len()).unwrap();
        let ranks = (0..size).map(Rank::new);
        let told: HashMap<Rank, Stall> = ranks.zip(stalls).filter_map(|(rank, it)| Some((rank, it.clone()?))).collect();
        let mine = stalls[0].as_ref().expect("rank 0 is stuck");
        let world = World { rank: Rank::new(0), size };
        let mut counts = BegunCounts::default();
        for ((rank, peer, sends), count) in begun {
            counts.entry(*rank).or_default().insert((*peer, *sends), *count);
        }
        let is_me = |communicator: u64, rank: Rank| (communicator, rank.get()) == ME;
        let culprit = Picture::new(world, (mine, &is_me), (&told, &counts)).culprit();
        let words = culprit.words(mine, false);
        (culprit, words)
    }

    #[test]
    fn a_cycle_is_told_as_one() {
        let (culprit, words) = found(&[Some(recv(1, 3)), Some(barrier(4))]);
        let told = "rank 0 waits for rank 1 in recv #3, rank 1 for rank 0 in barrier #4: none of them can go on";
        assert_eq!((words.as_str(), culprit.rank()), (told, Some(Rank::new(1))));
        // One that this rank is not in.
        let (culprit, words) = found(&[Some(barrier(0)), Some(barrier(0)), Some(recv(1, 0))]);
        assert!(words.starts_with("rank 2 waits for rank 1 in recv #0, rank 1 for rank 2 in barrier #0"), "{words}");
        assert!(matches!(culprit, Culprit::Cycle(edges) if edges.len() == 2));
        let (_, words) = found(&[Some(recv(1, 0)), Some(recv(2, 0)), Some(recv(0, 0))]);
        assert!(words.ends_with("use send_recv or a group, which send and receive at once"), "{words}");
    }

    #[test]
    fn a_cycle_over_two_communicators_is_told_as_one() {
        let (culprit, words) = found(&[Some(barrier(3)), Some(elsewhere("", &[(4, 8), (5, 9)]))]);
        let told = "rank 0 waits for rank 1 in barrier #3, rank 1 for rank 0 in recv #9 of another communicator: none \
                    of them can go on, unless another thread makes the missing call; ";
        assert!(words.starts_with(told), "{words}");
        assert_eq!(culprit.rank(), Some(Rank::new(1)));
        // Over a third rank, in messages alone, by a communicator that has a name.
        let (_, words) = found(&[Some(recv(1, 3)), Some(recv(2, 0)), Some(elsewhere("inner", &[(5, 1)]))]);
        let told = "rank 0 waits for rank 1 in recv #3, rank 1 for rank 2 in recv #0, rank 2 for rank 0 in recv #1 of \
                    communicator inner: none of them can go on, unless";
        assert!(words.starts_with(told) && !words.contains("send_recv"), "{words}");
    }

    #[test]
    fn a_rank_that_waits_elsewhere_for_others_is_named_with_its_call() {
        let (culprit, words) = found(&[Some(recv(1, 3)), Some(elsewhere("", &[(4, 8)]))]);
        assert_eq!(words, "rank 1 waits in recv #8 of another communicator");
        assert_eq!(culprit.rank(), Some(Rank::new(1)));
        let (_, words) = found(&[Some(recv(1, 3)), Some(recv(2, 0)), Some(elsewhere("", &[]))]);
        assert_eq!(words, "rank 1 waits for rank 2 in recv #0; rank 2 waits in a call of another communicator");
        // One that has told nothing may hold them all up.
        let (culprit, _) = found(&[Some(barrier(3)), Some(elsewhere("", &[(4, 8)])), None]);
        assert_eq!(culprit.rank(), Some(Rank::new(2)));
    }

    /// Regression: a rank that had done its part and was in the next call was told to wait for this one, as a cycle.
    #[test]
    fn a_rank_in_a_later_collective_has_come_to_this_one() {
        let (culprit, words) = found(&[Some(barrier(0)), None, Some(barrier(1))]);
        assert_eq!(culprit.rank(), Some(Rank::new(1)), "{words}");
        assert!(words.starts_with("rank 1 has not said that it waits"), "{words}");
        let (culprit, words) = found(&[Some(barrier(1)), Some(barrier(0)), Some(barrier(1))]);
        assert_eq!(culprit.rank(), Some(Rank::new(1)), "{words}");
        assert!(words.starts_with("rank 0 waits for rank 1 in barrier #1, and that one is in an earlier"), "{words}");
    }

    #[test]
    fn the_two_ends_of_a_message_are_no_cycle() {
        let (_, words) = found(&[Some(recv(1, 3)), Some(send(0, 3))]);
        assert_eq!(
            words,
            "rank 0 waits for rank 1 in recv #3, and rank 1 has begun its end of it: a rank may be stopped"
        );
        let (culprit, _) = found(&[Some(recv(1, 3)), Some(send(0, 4))]);
        assert!(matches!(culprit, Culprit::Cycle(_)), "{culprit:?}");
        let (culprit, words) = found(&[Some(barrier(0)), Some(send(2, 5)), Some(recv(1, 5))]);
        assert_eq!(culprit.rank(), None, "it may be either end");
        assert_eq!(
            words,
            "rank 1 waits for rank 2 in send #5, and rank 2 has begun its end of it: a rank may be stopped"
        );
    }

    /// Regression: a rank with more messages than a note holds was said to have begun each, and the network to drop
    /// them.
    #[test]
    fn of_a_rank_that_cannot_tell_all_its_messages_nothing_is_claimed() {
        let many = |open: Stall| match open {
            Stall::Messages { open, .. } => Stall::Messages { open, is_all: false },
            other => other,
        };
        let (culprit, words) = found(&[Some(recv(1, 3)), Some(many(send(2, 0))), Some(recv(1, 0))]);
        assert!(matches!(culprit, Culprit::Untold(_)), "{culprit:?}");
        assert!(!culprit.words(&recv(1, 3), true).contains("drop packets"), "{culprit:?}");
        assert!(words.starts_with("rank 0 waits for rank 1 in recv #3, and rank 1 waits in more messages"), "{words}");
        let (culprit, _) = found(&[Some(recv(1, 3)), Some(many(send(0, 3)))]);
        assert!(matches!(culprit, Culprit::Undelivered(_)), "it has told of this one: {culprit:?}");
    }

    /// The sender's system has taken the message, so the sender has gone on; the network loses it.
    #[test]
    fn a_message_that_was_sent_is_no_edge() {
        let stalls = [Some(recv(1, 3)), Some(barrier(0))];
        let sent = |count| [((Rank::new(1), Rank::new(0), true), count)];
        let (culprit, words) = found_with(&stalls, &sent(4));
        assert!(matches!(culprit, Culprit::Undelivered(_)), "{words}");
        assert_eq!(
            words,
            "rank 0 waits for rank 1 in recv #3, and rank 1 has begun its end of it: a rank may be stopped"
        );
        assert!(culprit.words(&recv(1, 3), true).contains("MTU"));
        assert!(matches!(found_with(&stalls, &sent(3)).0, Culprit::Cycle(_)), "those before it");
        let received = [((Rank::new(1), Rank::new(0), false), 4)];
        assert!(matches!(found_with(&stalls, &received).0, Culprit::Cycle(_)), "the other way");
    }

    #[test]
    fn the_silent_rank_is_named_and_the_way_to_it() {
        let (culprit, words) = found(&[Some(recv(1, 3)), Some(recv(2, 0)), None, Some(barrier(0))]);
        assert_eq!(culprit.rank(), Some(Rank::new(2)));
        assert!(words.starts_with("rank 1 waits for rank 2 in recv #0; rank 2 has not said that it waits:"), "{words}");
        let (culprit, words) = found(&[Some(barrier(0)), Some(barrier(0)), None, None]);
        assert_eq!(culprit.rank(), Some(Rank::new(2)), "the first of them");
        assert!(words.starts_with("rank 2, rank 3 have not said that they wait:"), "{words}");
    }

    #[test]
    fn ranks_that_are_all_here_hold_up_nobody() {
        let (culprit, words) = found(&[Some(barrier(2)), Some(barrier(2)), Some(barrier(2))]);
        assert_eq!(
            (culprit, words.as_str()),
            (Culprit::Nobody, "all other ranks wait in it too: a rank may be stopped")
        );
        let part = |peer| message(Collective::AllToAllV, peer, 2);
        let (culprit, _) = found(&[Some(barrier(2)), Some(part(0))]);
        assert_eq!(culprit, Culprit::Nobody, "one of them by a request");
        assert!(Culprit::Nobody.words(&barrier(2), true).contains("MTU"));
    }

    #[test]
    fn what_makes_no_sense_is_no_edge() {
        let (culprit, _) = found(&[Some(recv(1, 0)), Some(recv(99, 0))]);
        assert_eq!(culprit, Culprit::Nobody);
        let (culprit, _) = found(&[Some(recv(1, 0)), Some(recv(1, 0))]);
        assert_eq!(culprit, Culprit::Nobody, "it waits for itself");
    }

    #[test]
    fn messages_that_were_not_told_may_be_the_other_ends() {
        let mut cut = send(0, 7);
        if let Stall::Messages { is_all, .. } = &mut cut {
            *is_all = false;
        }
        let (culprit, _) = found(&[Some(recv(1, 3)), Some(cut)]);
        assert!(matches!(culprit, Culprit::Untold(_)), "{culprit:?}");
    }
}
