//! A model of the hand-shakes of a few ranks: an explorer drives the real state machine through every order of events.
//!
//! What it holds in each state: no end is made or opened twice; a rank takes no more offers at once than it may; where
//! a rank's hand-shake has ended, the peer's end is open, and all that it said has left. When nothing more can happen,
//! no rank waits, and the ends agree; so it is after a death and after a broken offer, among the ranks that live on.

use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;
use crate::error::{Error, Kind};
use crate::sync::primitive::{Arc, Mutex};

/// This rank's end of a hand-shake with `peer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    peer: usize,
    part: Part,
    owns: bool,
}

/// What is shared, and how: there are two of each, for pairs that share several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Part {
    Memory(u8),
    Wire(u8),
}

/// A hand-shake: owner, taker, and what they share.
type Pair = (usize, usize, Part);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Said {
    Ask,
    Handshake(HandshakeWord),
}

#[derive(Debug, Clone, Hash)]
struct Letter {
    from: usize,
    to: usize,
    about: Pair,
    said: Said,
    has_come: bool,
    is_broken: bool,
}

/// What is between the ranks.
#[derive(Debug, Clone, Default, Hash)]
struct Network {
    letters: Vec<Letter>,
    /// Memory that its taker has asked for, and whether it was handed over.
    wanted: BTreeSet<(Pair, bool)>,
    /// Sockets that their owner has not accepted, and those that it has.
    dialed: BTreeSet<Pair>,
    accepted: BTreeSet<Pair>,
    /// By rank: the offers that it takes now.
    taking: Vec<usize>,
    is_gone: Vec<bool>,
}

/// A rank: its machine, and what it is to begin, with whether it asks the peer to do the same.
#[derive(Debug)]
struct RankState {
    openings: Openings<Key, ()>,
    open: BTreeSet<Key>,
    script: Vec<(Key, bool)>,
    /// Whether something has happened since the machine found nothing to do.
    has_news: bool,
}

/// What may happen next.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A rank comes to its script.
    Begin(usize),
    /// A rank answers those who ask, and moves its hand-shakes on.
    Turn(usize),
    /// A letter arrives.
    Deliver(usize),
    /// The owner hands its memory over.
    Hand(Pair),
    /// The owner accepts the taker's sockets.
    Accept(Pair),
    /// A rank that waits hears of a rank that has gone.
    Learn(usize),
    /// A rank dies.
    Die(usize),
    /// An offer arrives with other bytes.
    Break(usize),
}

/// Where an exploration begins, and what may happen in it.
#[derive(Debug, Clone)]
struct Scenario {
    scripts: Vec<Vec<(Key, bool)>>,
    most_taken: usize,
    deaths: usize,
    breaks: usize,
}

struct World {
    ranks: Vec<RankState>,
    network: Arc<Mutex<Network>>,
    scenario: Scenario,
    /// What has happened, for whoever has to mend it.
    path: Vec<Event>,
}

struct Side<'a> {
    me: usize,
    open: &'a mut BTreeSet<Key>,
    network: &'a Arc<Mutex<Network>>,
    most_taken: usize,
}

/// The taker's end, under way.
#[derive(Debug)]
struct Taking {
    pair: Pair,
    network: Arc<Mutex<Network>>,
}

impl Key {
    fn pair(self, me: usize) -> Pair {
        if self.owns { (me, self.peer, self.part) } else { (self.peer, me, self.part) }
    }

    /// The other end of it, as `peer` names it.
    fn mirror(self, me: usize) -> Key {
        Key { peer: me, owns: !self.owns, ..self }
    }
}

impl OpeningSide for Side<'_> {
    type Key = Key;
    type End = ();

    fn owns(&self, key: Key) -> bool {
        key.owns
    }

    fn is_open(&self, key: Key) -> bool {
        self.open.contains(&key)
    }

    fn make(&mut self, key: Key) -> Result<MadeEnd<()>> {
        let end = match key.part {
            Part::Memory(_) => Expected::Open(()),
            Part::Wire(number) => Expected::Ticket((number.into(), key.peer as u64)),
        };
        Ok(MadeEnd { offer: vec![1], end })
    }

    fn take(&mut self, key: Key, offer: &[u8]) -> Result<Box<dyn Opening<()>>> {
        let mut network = self.network.lock();
        if offer != [1] {
            return Err(Error::new(Kind::Remote, "a broken offer"));
        }
        network.taking[self.me] += 1;
        assert!(network.taking[self.me] <= self.most_taken, "more offers are taken at once than may be");
        let pair = key.pair(self.me);
        if matches!(key.part, Part::Memory(_)) {
            assert!(network.wanted.insert((pair, false)), "{pair:?} is taken twice");
        }
        Ok(Box::new(Taking { pair, network: Arc::clone(self.network) }))
    }

    fn arrived(&mut self) -> Vec<(Ticket, ())> {
        let accepted = &mut self.network.lock().accepted;
        let mine: Vec<Pair> = accepted.iter().filter(|(owner, ..)| *owner == self.me).copied().collect();
        accepted.retain(|(owner, ..)| *owner != self.me);
        let ticket = |(_, taker, part): Pair| match part {
            Part::Wire(number) => ((number.into(), taker as u64), ()),
            Part::Memory(_) => unreachable!("memory comes by no socket"),
        };
        mine.into_iter().map(ticket).collect()
    }

    fn keep(&mut self, key: Key, (): ()) -> Result<()> {
        assert!(self.open.insert(key), "{key:?} is opened twice");
        if !key.owns {
            self.network.lock().taking[self.me] -= 1;
        }
        Ok(())
    }

    fn post(&mut self, key: Key, word: HandshakeWord, _: &[u8]) -> Result<()> {
        post(self.network, self.me, key, Said::Handshake(word));
        Ok(())
    }

    fn has_left(&mut self, key: Key) -> Result<bool> {
        let letters = &self.network.lock().letters;
        Ok(!letters.iter().any(|letter| (letter.from, letter.to, letter.has_come) == (self.me, key.peer, false)))
    }

    fn hear(&mut self, key: Key, word: HandshakeWord) -> Result<Option<Vec<u8>>> {
        let letters = &mut self.network.lock().letters;
        let is_it = |letter: &Letter| {
            letter.has_come
                && (letter.to, letter.about, letter.said) == (self.me, key.pair(self.me), Said::Handshake(word))
        };
        let Some(place) = letters.iter().position(is_it) else { return Ok(None) };
        Ok(Some(vec![if letters.remove(place).is_broken { 0 } else { 1 }]))
    }
}

impl Opening<()> for Taking {
    fn progress(&mut self) -> Result<Option<()>> {
        let mut network = self.network.lock();
        if network.is_gone[self.pair.0] {
            return Err(Error::new(Kind::Remote, "the owner has gone"));
        }
        Ok(match self.pair.2 {
            // As over TCP: what the owner does not answer yet is on its way.
            Part::Wire(_) => {
                network.dialed.insert(self.pair);
                Some(())
            }
            Part::Memory(_) => network.wanted.contains(&(self.pair, true)).then_some(()),
        })
    }
}

fn post(network: &Mutex<Network>, from: usize, key: Key, said: Said) {
    let mut network = network.lock();
    if !network.is_gone[key.peer] {
        let (to, about) = (key.peer, key.pair(from));
        network.letters.push(Letter { from, to, about, said, has_come: false, is_broken: false });
    }
}

impl World {
    fn new(scenario: &Scenario) -> World {
        let rank = |script: &Vec<(Key, bool)>| RankState {
            openings: Openings::new(scenario.most_taken),
            open: BTreeSet::new(),
            script: script.clone(),
            has_news: false,
        };
        let count = scenario.scripts.len();
        let network = Network { taking: vec![0; count], is_gone: vec![false; count], ..Network::default() };
        World {
            ranks: scenario.scripts.iter().map(rank).collect(),
            network: Arc::new(Mutex::new(network)),
            scenario: scenario.clone(),
            path: Vec::new(),
        }
    }

    /// The same state, apart from this one.
    fn copy(&self) -> World {
        let network = Arc::new(Mutex::new(self.network.lock().clone()));
        let stage = |pair: Pair, stage: &Stage<()>| match stage {
            Stage::Awaiting => Stage::Awaiting,
            Stage::Taking(_) => Stage::Taking(Box::new(Taking { pair, network: Arc::clone(&network) })),
            Stage::Saying => Stage::Saying,
            Stage::Offered { ticket, is_taken } => Stage::Offered { ticket: *ticket, is_taken: *is_taken },
            Stage::Open => Stage::Open,
        };
        let rank = |(me, rank): (usize, &RankState)| {
            let under_way = rank.openings.under_way.iter().map(|(key, now)| (*key, stage(key.pair(me), now)));
            let openings = Openings { under_way: under_way.collect(), most_taken: rank.openings.most_taken };
            RankState { openings, open: rank.open.clone(), script: rank.script.clone(), has_news: rank.has_news }
        };
        let ranks = self.ranks.iter().enumerate().map(rank).collect();
        World { ranks, network, scenario: self.scenario.clone(), path: self.path.clone() }
    }

    /// A number that is equal for equal states.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for RankState { openings, open, script, has_news } in &self.ranks {
            for (key, stage) in &openings.under_way {
                let offered = match stage {
                    Stage::Offered { ticket, is_taken } => Some((*ticket, *is_taken)),
                    Stage::Taking(_) | Stage::Saying | Stage::Awaiting | Stage::Open => None,
                };
                (key, stage.place(), offered).hash(&mut hasher);
            }
            (open, script.len(), has_news).hash(&mut hasher);
        }
        (&*self.network.lock(), self.scenario.deaths, self.scenario.breaks).hash(&mut hasher);
        hasher.finish()
    }

    /// What must happen some time, and then what may happen.
    fn events(&self) -> (Vec<Event>, Vec<Event>) {
        let network = self.network.lock();
        let (mut must, mut may) = (Vec::new(), Vec::new());
        let is_gone = |rank: usize| network.is_gone[rank];
        for (me, rank) in self.ranks.iter().enumerate().filter(|(me, _)| !is_gone(*me)) {
            if !rank.script.is_empty() {
                must.push(Event::Begin(me));
            }
            if rank.has_news {
                must.push(Event::Turn(me));
            }
            if rank.openings.is_any() && network.is_gone.contains(&true) {
                must.push(Event::Learn(me));
            }
            if self.scenario.deaths > 0 {
                may.push(Event::Die(me));
            }
        }
        for (place, letter) in network.letters.iter().enumerate().filter(|(_, letter)| !letter.has_come) {
            // What a dead rank has said may be lost.
            if is_gone(letter.from) { &mut may } else { &mut must }.push(Event::Deliver(place));
            let is_offer = letter.said == Said::Handshake(HandshakeWord::Offer);
            if self.scenario.breaks > 0 && is_offer && !letter.is_broken {
                may.push(Event::Break(place));
            }
        }
        let handed = network.wanted.iter().filter(|((owner, ..), is_handed)| !is_handed && !is_gone(*owner));
        must.extend(handed.map(|(pair, _)| Event::Hand(*pair)));
        for pair in &network.dialed {
            if is_gone(pair.1) { &mut may } else { &mut must }.push(Event::Accept(*pair));
        }
        (must, may)
    }

    fn apply(&mut self, event: Event) {
        self.path.push(event);
        let mut news = Vec::new();
        match event {
            Event::Begin(me) => {
                for (key, asks) in std::mem::take(&mut self.ranks[me].script) {
                    if self.begin(me, key) && asks {
                        post(&self.network, me, key, Said::Ask);
                    }
                }
                news.push(me);
            }
            Event::Turn(me) => self.turn(me),
            Event::Deliver(place) => {
                let letter = &mut self.network.lock().letters[place];
                letter.has_come = true;
                news.extend([letter.to, letter.from]);
            }
            Event::Hand(pair) => {
                let mut network = self.network.lock();
                network.wanted.remove(&(pair, false));
                network.wanted.insert((pair, true));
                news.push(pair.1);
            }
            Event::Accept(pair) => {
                let mut network = self.network.lock();
                network.dialed.remove(&pair);
                network.accepted.insert(pair);
                news.push(pair.0);
            }
            Event::Learn(me) => self.end(me),
            Event::Die(me) => {
                self.scenario.deaths -= 1;
                self.end(me);
            }
            Event::Break(place) => {
                self.scenario.breaks -= 1;
                self.network.lock().letters[place].is_broken = true;
            }
        }
        for rank in news {
            self.ranks[rank].has_news = true;
        }
    }

    /// A rank answers those who ask it, and then moves its hand-shakes on. An error ends it.
    fn turn(&mut self, me: usize) {
        let is_ask = |letter: &Letter| (letter.to, letter.said, letter.has_come) == (me, Said::Ask, true);
        let asks: Vec<Letter> = self.network.lock().letters.extract_if(.., |letter| is_ask(letter)).collect();
        for Letter { from, about: (owner, _, part), .. } in asks {
            self.begin(me, Key { peer: from, part, owns: owner == me });
        }
        let RankState { openings, open, has_news, .. } = &mut self.ranks[me];
        let most_taken = self.scenario.most_taken;
        match openings.progress(&mut Side { me, open, network: &self.network, most_taken }) {
            Ok(moved) => *has_news = moved,
            Err(_) => self.end(me),
        }
    }

    fn begin(&mut self, me: usize, key: Key) -> bool {
        let RankState { openings, open, .. } = &mut self.ranks[me];
        let most_taken = self.scenario.most_taken;
        openings.begin(key, &mut Side { me, open, network: &self.network, most_taken }).expect("nothing fails here")
    }

    /// A rank has died or failed: what it offered ends with it, and nobody reads what it was told.
    fn end(&mut self, me: usize) {
        self.ranks[me].script.clear();
        self.ranks[me].openings = Openings::new(self.scenario.most_taken);
        let mut network = self.network.lock();
        network.is_gone[me] = true;
        network.letters.retain(|letter| letter.to != me);
        network.wanted.retain(|((owner, taker, _), _)| *owner != me && *taker != me);
        network.dialed.retain(|(owner, ..)| *owner != me);
        network.accepted.retain(|(owner, ..)| *owner != me);
        for (other, rank) in self.ranks.iter_mut().enumerate() {
            rank.has_news |= other != me && rank.openings.is_any();
        }
    }

    /// What holds in every state.
    fn check(&self) {
        let network = self.network.lock();
        for (me, rank) in self.ranks.iter().enumerate().filter(|(me, _)| !network.is_gone[*me]) {
            for key in rank.open.iter().filter(|key| !rank.openings.has(**key)) {
                // A taker knows that the owner's end is there, or arrives.
                let other = &self.ranks[key.peer];
                let (mirror, pair) = (key.mirror(me), key.pair(me));
                let arrives = !key.owns && (network.dialed.contains(&pair) || network.accepted.contains(&pair));
                let is_there = other.open.contains(&mirror) || arrives || network.is_gone[key.peer];
                assert!(is_there, "{key:?} of rank {me} has ended, the other end is not open: {:?}", self.path);
            }
            if !rank.openings.is_any() {
                let unsaid = network.letters.iter().find(|letter| {
                    letter.from == me && !letter.has_come && letter.said != Said::Ask && !network.is_gone[letter.to]
                });
                assert!(unsaid.is_none(), "rank {me} goes on, and {unsaid:?} has not left: {:?}", self.path);
            }
        }
    }

    /// What holds when nothing more has to happen.
    fn check_end(&self) {
        let network = self.network.lock();
        for (me, rank) in self.ranks.iter().enumerate().filter(|(me, _)| !network.is_gone[*me]) {
            assert!(!rank.openings.is_any(), "rank {me} waits for ever: {:?} {:?}", rank.openings, self.path);
            for key in rank.open.iter().filter(|key| !network.is_gone[key.peer]) {
                let is_whole = self.ranks[key.peer].open.contains(&key.mirror(me));
                assert!(is_whole, "{key:?} of rank {me} is half open: {:?}", self.path);
            }
        }
        let left = network.letters.iter().find(|letter| !network.is_gone[letter.from]);
        assert!(left.is_none(), "nobody heard {left:?}: {:?}", self.path);
        if !network.is_gone.contains(&true) {
            for (me, script) in self.scenario.scripts.iter().enumerate() {
                assert!(
                    script.iter().all(|(key, _)| self.ranks[me].open.contains(key)),
                    "rank {me} has not all: {:?}",
                    self.path
                );
            }
        }
    }
}

/// Goes through every order of events; returns how many states there are.
fn explore(scenario: &Scenario) -> usize {
    let mut seen = HashSet::new();
    let mut worlds = vec![World::new(scenario)];
    while let Some(world) = worlds.pop() {
        if !seen.insert(world.fingerprint()) {
            continue;
        }
        world.check();
        let (must, may) = world.events();
        if must.is_empty() {
            world.check_end();
        }
        for event in must.into_iter().chain(may) {
            let mut next = world.copy();
            next.apply(event);
            worlds.push(next);
        }
    }
    seen.len()
}

fn owner_of(part: Part, taker: usize) -> Key {
    Key { peer: taker, part, owns: true }
}

fn taker_of(part: Part, owner: usize) -> Key {
    Key { peer: owner, part, owns: false }
}

fn of(scripts: &[&[(Key, bool)]]) -> Scenario {
    Scenario { scripts: scripts.iter().map(|script| script.to_vec()).collect(), most_taken: 1, deaths: 0, breaks: 0 }
}

/// A ring of three, and a chain; a pair that shares memory one way and a wire the other; two ranks of which each asks
/// the other; a rank that is asked in another call; and more offers for a rank than it takes at once.
fn scenarios() -> Vec<Scenario> {
    let (memory, wire) = (Part::Memory(0), Part::Wire(0));
    let pair = of(&[
        &[(owner_of(memory, 1), false), (taker_of(wire, 1), false)],
        &[(owner_of(wire, 0), false), (taker_of(memory, 0), false)],
    ]);
    let rank = |me: usize| [(owner_of(memory, (me + 1) % 3), false), (taker_of(memory, (me + 2) % 3), false)];
    let ring = of(&[&rank(0), &rank(1), &rank(2)]);
    let chain = of(&[
        &[(owner_of(wire, 1), false)],
        &[(taker_of(wire, 0), false), (owner_of(wire, 2), false)],
        &[(taker_of(wire, 1), false)],
    ]);
    let asking = |part| of(&[&[(owner_of(part, 1), true)], &[(taker_of(part, 0), true)]]);
    let asked = of(&[&[], &[(taker_of(wire, 0), true), (taker_of(memory, 0), true)]]);
    let many = of(&[
        &[(taker_of(memory, 1), false), (taker_of(Part::Memory(1), 1), false), (taker_of(wire, 1), false)],
        &[(owner_of(memory, 0), false), (owner_of(Part::Memory(1), 0), false), (owner_of(wire, 0), false)],
    ]);
    vec![ring, chain, pair, asking(memory), asking(wire), asked, many]
}

#[test]
fn every_order_of_events_opens_both_ends() {
    for (number, scenario) in scenarios().into_iter().enumerate() {
        for most_taken in [1, 2] {
            let states = explore(&Scenario { most_taken, ..scenario.clone() });
            assert!(states > 200, "scenario {number} has {states} states");
        }
    }
}

#[test]
fn after_a_death_or_a_broken_offer_nobody_waits_and_nothing_is_half_open() {
    // Three ranks in a ring have states beyond number then, and a chain has them too.
    for scenario in &scenarios()[1..] {
        explore(&Scenario { deaths: 1, ..scenario.clone() });
        explore(&Scenario { breaks: 1, ..scenario.clone() });
    }
}
