//! Random programs: collectives of every kind, messages, groups, requests, splits and registered buffers in random
//! order on several communicators at once, each result compared bit by bit; at the end a rank leaves, disagrees or
//! aborts, and the others go on without it.
//!
//! Decisions that all ranks must share follow from (seed, step); a rank's own decisions, such as to be late, also from
//! its rank. So the seed determines the program. A rank that is late spins: nothing here sleeps.

use std::io::Write as _;

use rsccl::comm::{Buffers, Call, CallCount};
use rsccl::error::Kind;
use rsccl::types::{Collective, Rank};
use rsccl::{Buffer, Communicator, Config, DataType, Error, ReduceOp, Result};

use crate::case::{Case, Placed};
use crate::verify::{Op, Placement, Program, Shape};

/// A program, and how it is judged.
#[derive(Debug, Clone, Copy)]
pub struct Script {
    pub seed: u64,
    pub steps: u64,
    /// Whether a wrong result is a failure. It is not when another thread writes into memory that the ranks share.
    pub strict: bool,
    /// Called now and then, to say that the program goes on.
    pub tell: fn(),
}

/// Settings that make paths and sizes differ, the same on all ranks.
pub fn variables(seed: u64) -> [(&'static str, &'static str); 4] {
    let mut luck = Luck::new(&[seed, 77]);
    [
        ("RSCCL_SCRATCH_BYTES", *luck.pick(&["65536", "262144", "4194304"])),
        ("NCCL_BUFFSIZE", *luck.pick(&["16384", "131072", "1048576"])),
        ("RSCCL_SPIN_US", *luck.pick(&["0", "50", "1000"])),
        ("RSCCL_REPRODUCIBLE", *luck.pick(&["0", "0", "1"])),
    ]
}

/// `config` with [`variables`].
pub fn settings(config: Config, seed: u64) -> Result<Config> {
    variables(seed).iter().try_fold(config, |config, (name, value)| config.with_variable(name, value))
}

/// The seed of the variable, a new one if the variable is `any`, or the usual one, so that all runs of the tests are
/// equal.
pub fn seed() -> u64 {
    match text("RSCCL_TEST_SEED").as_deref() {
        Some("any") => new_seed(),
        Some(seed) => seed.parse().expect("RSCCL_TEST_SEED is a number, or any"),
        None => USUAL_SEED,
    }
}

/// The seed of the variable, or a new one in each run, which is printed past the capture of the output of `test`: for tests
/// that draw a sample of what they could try.
pub fn changing_seed(test: &str) -> u64 {
    let seed = if text("RSCCL_TEST_SEED").is_some() { seed() } else { new_seed() };
    let again = format!("seed: RSCCL_TEST_SEED={seed} cargo test --features cli --test {test}\n");
    std::io::stderr().write_all(again.as_bytes()).expect("standard error can be written");
    seed
}

fn new_seed() -> u64 {
    u64::from_le_bytes(rsccl::internals::sys::random::bytes().expect("the kernel has luck"))
}

/// The steps of a program that were asked for, or a few.
pub fn steps() -> u64 {
    text("RSCCL_RANDOM_STEPS").and_then(|text| text.parse().ok()).unwrap_or(USUAL_STEPS)
}

/// How many of `all` shall be tried: the number in the variable, or all of them if it says so, or `usual`.
pub fn how_many(variable: &str, usual: usize, all: usize) -> usize {
    match text(variable).as_deref() {
        Some("all") => all,
        Some(number) => number.parse().unwrap_or_else(|_| panic!("{variable} is a number, or all")),
        None => usual,
    }
}

fn text(name: &str) -> Option<String> {
    #![expect(clippy::disallowed_methods, reason = "what a test shall do is no configuration of the library")]
    std::env::var(name).ok()
}

/// Runs the program as one rank, and what is left of the world at its end. What is wrong, if anything is.
pub fn run(comm: Communicator, script: Script) -> std::result::Result<(), String> {
    let Script { seed, steps, .. } = script;
    let mut luck = Luck::new(&[seed, 99]);
    let (victim, fall) = (luck.rank(&comm), luck.below(3));
    let mut player = Player::new(comm, script);
    player.play(steps)?;
    let comm = player.take_world();
    if comm.size() == 1 {
        return comm.finalize().map_err(|error| error.to_string());
    }
    // A rank that fails ends the communicator on all ranks, also on one that is still in an earlier call.
    let come = comm.barrier();
    if comm.rank() == victim && fall == 0 {
        return come.and_then(|()| comm.finalize()).map_err(|error| error.to_string());
    }
    let error = fall_out(&comm, come, (victim, fall));
    let expected = [Kind::Remote, Kind::Mismatch, Kind::Aborted][usize::try_from(fall).expect("one of three")];
    if error.kind() != expected {
        return Err(format!("program {seed}, at its end, where {expected:?} is due: {error}"));
    }
    if comm.rank() == victim {
        return Ok(());
    }
    let rest = comm.shrink(&[victim]).map_err(|error| format!("program {seed}, shrinking: {error}"))?;
    drop(comm);
    let mut player = Player::new(rest, Script { seed: seed ^ 1, ..script });
    player.play(steps.div_ceil(4))?;
    player.take_world().finalize().map_err(|error| error.to_string())
}

/// The error that ends the communicator, after what `victim` does once all have come: it leaves, it calls something
/// else, or it aborts.
fn fall_out(comm: &Communicator, come: Result<()>, (victim, fall): (u32, u64)) -> Error {
    let mut sum = [1u32; 3];
    let result = come.and_then(|()| match (comm.rank() == victim, fall) {
        (true, 1) => comm.all_reduce_in_place(&mut sum, ReduceOp::Sum),
        (true, _) => {
            comm.abort_handle().abort("on purpose");
            comm.barrier()
        }
        (false, _) => comm.barrier(),
    });
    result.expect_err("nobody can go on without the victim")
}

/// One rank at play.
#[derive(Debug)]
struct Player {
    script: Script,
    /// My rank in the world.
    me: u32,
    /// The world, and communicators split from others; each place has one communicator for each of the ranks that are
    /// in it.
    seats: Vec<Option<Seat>>,
}

/// A communicator, and registered buffers of it.
#[derive(Debug)]
struct Seat {
    comm: Communicator,
    registered: Vec<Buffer<u32>>,
}

impl Player {
    fn new(world: Communicator, script: Script) -> Player {
        let me = world.rank();
        let mut seats: Vec<Option<Seat>> = (0..SEATS).map(|_| None).collect();
        seats[0] = Some(Seat { comm: world, registered: Vec::new() });
        Player { script, me, seats }
    }

    fn take_world(&mut self) -> Communicator {
        self.seats.drain(1..).for_each(drop);
        self.seats[0].take().expect("the world is there").comm
    }

    fn play(&mut self, steps: u64) -> std::result::Result<(), String> {
        for number in 0..steps {
            if number % TOLD == TOLD - 1 {
                (self.script.tell)();
            }
            let (what, outcome) = self.step(number);
            let wrong = match outcome {
                Ok(None) => continue,
                Ok(Some(_)) if !self.script.strict => continue,
                Ok(Some(wrong)) => wrong,
                Err(error) => error.to_string(),
            };
            return Err(format!("program {}, step {number} ({what}), rank {}: {wrong}", self.script.seed, self.me));
        }
        Ok(())
    }

    /// One step: what it was, and what is wrong.
    fn step(&mut self, number: u64) -> (&'static str, Result<Option<String>>) {
        let mut luck = Luck::new(&[self.script.seed, number]);
        let mut own = Luck::new(&[self.script.seed, number, u64::from(self.me) + 1]);
        own.dawdle();
        let place = luck.small(SEATS);
        let place = if luck.one_in(2) { 0 } else { place };
        let kind = luck.below(100);
        if kind < 6 {
            return ("split", self.split(place, &mut luck).map(|()| None));
        }
        if kind >= 91 {
            let beside = luck.small(SEATS);
            return (
                "group",
                self.group(if place == beside { vec![place] } else { vec![place, beside] }, (&mut luck, &mut own)),
            );
        }
        let Some(seat) = &mut self.seats[place] else { return ("nothing", Ok(None)) };
        match kind {
            6..45 => ("collective", collective(&seat.comm, (&mut luck, &mut own))),
            45..60 => ("burst", burst(&seat.comm, (&mut luck, &mut own))),
            60..72 => ("messages", messages(&seat.comm, (&mut luck, &mut own))),
            72..82 => ("registered", seat.registered(&mut luck, &mut own)),
            _ => ("requests", Exchange::new(&seat.comm, luck.next()).by_requests(&seat.comm, &mut own)),
        }
    }

    /// One group on the communicators at one or two places; some ranks are in one of them only.
    fn group(&self, mut places: Vec<usize>, (luck, own): (&mut Luck, &mut Luck)) -> Result<Option<String>> {
        let seed = luck.next();
        if own.one_in(2) {
            places.reverse();
        }
        let seats = places.iter().filter_map(|place| Some((self.seats[*place].as_ref()?, *place)));
        let mut parts: Vec<(&Communicator, Exchange)> = seats
            .map(|(seat, place)| (&seat.comm, Exchange::new(&seat.comm, Luck::new(&[seed, place as u64]).next())))
            .collect();
        rsccl::group(|group| {
            for (comm, part) in &mut parts {
                let ends: Vec<(u32, u32)> = part.messages.iter().map(|(distance, _)| part.ends(*distance)).collect();
                let root = part.root();
                let mut member = group.on(comm);
                for ((sent, received), (to, from)) in part.sent.iter().zip(&mut part.received).zip(ends) {
                    member.recv(received, from)?;
                    member.send(sent, to)?;
                }
                for (mine, sum) in &mut part.sums {
                    member.all_reduce(mine, sum, ReduceOp::Sum)?;
                }
                member.broadcast(&mut part.cast, root)?;
            }
            Ok(())
        })?;
        Ok(parts.iter().find_map(|(_, part)| part.wrong()))
    }

    /// Puts a new communicator of the ranks at `place` to another place.
    fn split(&mut self, place: usize, luck: &mut Luck) -> Result<()> {
        let target = 1 + luck.small(SEATS - 1);
        let (way, turn) = (luck.below(4), luck.below(64));
        let parent = self.seats[place].take();
        self.seats[target] = None;
        let Some(parent) = parent else { return Ok(()) };
        let rank = parent.comm.rank();
        let color = match way {
            0 => Some(0),
            1 => Some(rank % 2),
            2 => (u64::from(rank) != turn % u64::from(parent.comm.size())).then_some(3),
            _ => Some(u32::from(u64::from(rank) < turn % u64::from(parent.comm.size()))),
        };
        let key = i64::from(rank ^ u32::try_from(turn).expect("below 64"));
        let child = parent.comm.split(color, key)?;
        // A communicator outlives the one that it was split from.
        if place != target {
            self.seats[place] = Some(parent);
        }
        self.seats[target] = child.map(|comm| Seat { comm, registered: Vec::new() });
        Ok(())
    }
}

/// Any collective of any type, of a size about where paths part.
fn collective(comm: &Communicator, (luck, own): (&mut Luck, &mut Luck)) -> Result<Option<String>> {
    let program = *luck.pick(Program::ALL);
    let data_type = *luck.pick(DataType::ALL);
    let fitting: Vec<Op> =
        Op::ALL.iter().copied().filter(|op| op.fits(data_type) && (!program.reduces() || program.takes(*op))).collect();
    let op = *luck.pick(&fitting);
    let sizes = if luck.one_in(8) { LARGE } else { SIZES };
    let ranks = if luck.one_in(2) { comm.size() as usize } else { 1 };
    let bytes = (*luck.pick(sizes) * ranks).min(MOST_BYTES);
    let elements = (bytes / data_type.size() as usize + 2).saturating_sub(luck.small(5));
    let root = luck.rank(comm);
    let each_by_itself = luck.one_in(3);
    let wants = luck.one_in(2);
    let wants = if each_by_itself { own.one_in(2) } else { wants };
    let can = Shape::new(program, (0, comm.size()), root, 0)?.in_place().is_some();
    let placement = if wants && can { Placement::InPlace } else { Placement::OutOfPlace };
    let op = program.reduces().then_some(op);
    let case = Case { program, data_type, op, root, elements, placement, skew: own.small(4) };
    Ok(match case.run(comm, &Placed::Slices, luck.next()) {
        Ok(wrong) => wrong.map(|wrong| format!("{case}: {wrong}")),
        // A wrong step that says more.
        Err(error) => return Err(Error::new(error.kind(), format!("{case}: {error}"))),
    })
}

/// The same small call many times: where it has a root, some ranks run far ahead.
fn burst(comm: &Communicator, (luck, own): (&mut Luck, &mut Luck)) -> Result<Option<String>> {
    let program =
        *luck.pick(&[Program::Broadcast, Program::Scatter, Program::Reduce, Program::Gather, Program::AllReduce]);
    let root = luck.rank(comm);
    let op = program.reduces().then_some(Op::Sum);
    for _ in 0..luck.small(160) {
        let elements = luck.small(40);
        let placement = Placement::OutOfPlace;
        let case = Case { program, data_type: DataType::U32, op, root, elements, placement, skew: 0 };
        if own.one_in(8) {
            own.dawdle();
        }
        if let Some(wrong) = case.run(comm, &Placed::Slices, luck.next())? {
            return Ok(Some(format!("{case}: {wrong}")));
        }
    }
    Ok(None)
}

/// Messages from one rank to another, one pair after the other, each pair several; the sender may run ahead.
fn messages(comm: &Communicator, (luck, own): (&mut Luck, &mut Luck)) -> Result<Option<String>> {
    let me = comm.rank();
    for _ in 0..luck.below(6) {
        let (from, to, seed) = (luck.rank(comm), luck.rank(comm), luck.next());
        for number in 0..luck.below(20) {
            let bytes = luck.message_bytes();
            if from == to || (me != from && me != to) {
                continue;
            }
            let skew = own.small(9);
            let mut buffer = vec![0xee; skew + bytes];
            if me == from {
                buffer[skew..].copy_from_slice(&noise(&[seed, number], bytes));
                comm.send(&buffer[skew..], to)?;
                continue;
            }
            comm.recv(&mut buffer[skew..], from)?;
            if buffer[skew..] != noise(&[seed, number], bytes) || buffer[..skew].iter().any(|byte| *byte != 0xee) {
                return Ok(Some(format!("message {number} of {bytes} bytes from {from} to {to} is wrong")));
            }
        }
    }
    Ok(None)
}

impl Seat {
    /// Collectives in registered buffers, on some ranks in others.
    fn registered(&mut self, luck: &mut Luck, own: &mut Luck) -> Result<Option<String>> {
        let comm = &self.comm;
        let (size, me) = (comm.size() as usize, comm.rank() as usize);
        if self.registered.is_empty() {
            for _ in 0..2 {
                let buffer = Buffer::new(REGISTERED + own.small(100))?;
                comm.register(&buffer)?;
                self.registered.push(buffer);
            }
        }
        let (way, seed) = (luck.below(4), luck.next());
        let count = *luck.pick(&[3, 700, 5_000, 40_000, 100_000]) / if way == 0 || way == 3 { 1 } else { size };
        let mixed = luck.one_in(3) && own.one_in(2);
        let (mut one, mut two) = (vec![0; REGISTERED], vec![0; REGISTERED]);
        let [first, second] = &mut self.registered[..] else { return Ok(Some("two were registered".to_owned())) };
        let (send, recv) = if mixed { (&mut one[..], &mut two[..]) } else { (&mut first[..], &mut second[..]) };
        let start = own.small(60);
        let (send, recv) = (&mut send[start..], &mut recv[own.small(60)..]);
        let given = |rank: usize, index: usize| word(&[seed, rank as u64, index as u64]);
        let total = |index: usize| (0..size).fold(0u32, |sum, rank| sum.wrapping_add(given(rank, index)));
        let all = if way == 2 { count * size } else { count };
        send[..all].iter_mut().enumerate().for_each(|(index, element)| *element = given(me, index));
        let (length, expected): (usize, Box<dyn Fn(usize) -> u32>) = match way {
            0 => {
                comm.all_reduce(&send[..count], &mut recv[..count], ReduceOp::Sum)?;
                (count, Box::new(total))
            }
            1 => {
                comm.all_gather(&send[..count], &mut recv[..count * size])?;
                (count * size, Box::new(move |index| given(index / count.max(1), index % count.max(1))))
            }
            2 => {
                comm.reduce_scatter(&send[..all], &mut recv[..count], ReduceOp::Sum)?;
                (count, Box::new(move |index| total(me * count + index)))
            }
            _ => {
                recv[..count].copy_from_slice(&send[..count]);
                comm.all_reduce_in_place(&mut recv[..count], ReduceOp::Sum)?;
                (count, Box::new(total))
            }
        };
        let wrong = (0..length).find(|index| recv[*index] != expected(*index));
        Ok(wrong.map(|index| format!("way {way} of {count}, mixed {mixed}: element {index} is wrong")))
    }
}

/// Messages between all ranks at some distances, and collectives with them.
#[derive(Debug)]
struct Exchange {
    seed: u64,
    size: u64,
    me: u64,
    /// For each message the distance to its receiver, and its bytes.
    messages: Vec<(u64, usize)>,
    sent: Vec<Vec<u8>>,
    received: Vec<Vec<u8>>,
    sums: Vec<(Vec<u32>, Vec<u32>)>,
    cast: Vec<u32>,
}

impl Exchange {
    fn new(comm: &Communicator, seed: u64) -> Exchange {
        let (size, me) = (u64::from(comm.size()), u64::from(comm.rank()));
        let mut luck = Luck::new(&[seed]);
        let messages: Vec<(u64, usize)> =
            (0..luck.below(5)).map(|_| (luck.below(size), luck.message_bytes())).collect();
        let payload = |number: usize, from: u64, bytes: usize| noise(&[seed, number as u64, from], bytes);
        let sent = messages.iter().enumerate().map(|(number, (_, bytes))| payload(number, me, *bytes)).collect();
        let received = messages.iter().map(|(_, bytes)| vec![0xee; *bytes]).collect();
        let counts: Vec<usize> = (0..luck.below(5)).map(|_| *luck.pick(&[0, 1, 7, 300, 3_000, 30_000])).collect();
        let sum = |(number, count): (usize, &usize)| {
            ((0..*count).map(|index| word(&[seed, number as u64, me, index as u64])).collect(), vec![0; *count])
        };
        let sums = counts.iter().enumerate().map(sum).collect();
        let cast = (0..*luck.pick(&[0usize, 5, 5_000])).map(|index| word(&[seed, me, index as u64])).collect();
        Exchange { seed, size, me, messages, sent, received, sums, cast }
    }

    fn ends(&self, distance: u64) -> (u32, u32) {
        let rank = |number: u64| u32::try_from(number % self.size).expect("a rank");
        (rank(self.me + distance), rank(self.me + self.size - distance))
    }

    fn root(&self) -> u32 {
        u32::try_from(self.seed % self.size).expect("a rank")
    }

    /// All of it as requests, which are waited for in any order, or by the end of the scope.
    fn by_requests(mut self, comm: &Communicator, own: &mut Luck) -> Result<Option<String>> {
        // A request to the own rank is not allowed.
        for (distance, _) in &mut self.messages {
            *distance = if self.size > 1 { 1 + *distance % (self.size - 1) } else { 0 };
        }
        let ends: Vec<(u32, u32)> = self.messages.iter().map(|(distance, _)| self.ends(*distance)).collect();
        let (root, alone) = (self.root(), self.size == 1);
        let (sent, received, sums, cast) = (&self.sent, &mut self.received, &mut self.sums, &mut self.cast);
        comm.scope(|scope| {
            let mut begun = Vec::new();
            for ((sent, received), (to, from)) in sent.iter().zip(received).zip(ends).filter(|_| !alone) {
                let late = own.one_in(2);
                if late {
                    begun.push(scope.send(sent, to)?);
                }
                begun.push(scope.recv(received, from)?);
                if !late {
                    begun.push(scope.send(sent, to)?);
                }
                own.dawdle();
            }
            for (mine, sum) in sums {
                begun.push(scope.all_reduce(mine, sum, ReduceOp::Sum)?);
            }
            let (count, buffers) = (CallCount::Each(cast.len() as u64), Buffers::shared(cast));
            let (collective, root) = (Collective::Broadcast, Some(Rank::new(root)));
            begun.push(scope.begin(Call { collective, data_type: DataType::U32, op: None, root, count, buffers })?);
            while !begun.is_empty() && !own.one_in(6) {
                begun.swap_remove(own.small(begun.len())).wait()?;
            }
            Ok(())
        })?;
        Ok(if alone { None } else { self.wrong() })
    }

    fn wrong(&self) -> Option<String> {
        let Exchange { seed, size, me, .. } = *self;
        for (number, ((distance, bytes), found)) in self.messages.iter().zip(&self.received).enumerate() {
            let from = (me + size - distance) % size;
            if *found != noise(&[seed, number as u64, from], *bytes) {
                return Some(format!("message {number} of {bytes} bytes from {from} is wrong"));
            }
        }
        for (number, (_, sum)) in self.sums.iter().enumerate() {
            let given = |rank: u64, index: usize| word(&[seed, number as u64, rank, index as u64]);
            let total = |index: usize| (0..size).fold(0u32, |sum, rank| sum.wrapping_add(given(rank, index)));
            if let Some(index) = (0..sum.len()).find(|index| sum[*index] != total(*index)) {
                return Some(format!("sum {number} of {}: element {index} is wrong", sum.len()));
            }
        }
        let root = u64::from(self.root());
        let wrong = (0..self.cast.len()).find(|index| self.cast[*index] != word(&[seed, root, *index as u64]));
        wrong.map(|index| format!("broadcast of {}: element {index} is wrong", self.cast.len()))
    }
}

/// Numbers that follow from others.
#[derive(Debug)]
pub struct Luck(u64);

impl Luck {
    pub fn new(of: &[u64]) -> Luck {
        Luck(of.iter().fold(0, |state, number| mix(state ^ mix(*number))))
    }

    #[expect(clippy::should_implement_trait, reason = "it never ends, and nobody iterates")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn small(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("below an index")
    }

    fn rank(&mut self, comm: &Communicator) -> u32 {
        u32::try_from(self.below(u64::from(comm.size()))).expect("a rank")
    }

    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.small(of.len())]
    }

    fn message_bytes(&mut self) -> usize {
        let about = *self.pick(MESSAGES);
        (about + 1).saturating_sub(self.small(3))
    }

    /// Spins for a random time, more often a short one than a long one.
    fn dawdle(&mut self) {
        let turns = if self.one_in(3) { 1u64 << self.below(18) } else { 0 };
        (0..turns).for_each(|_| std::hint::spin_loop());
    }
}

/// Scatters bits (the finaliser of SplitMix64, Steele et al. 2014).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word(of: &[u64]) -> u32 {
    u32::try_from(Luck::new(of).0 >> 32).expect("32 bits are left")
}

fn noise(of: &[u64], bytes: usize) -> Vec<u8> {
    let mut luck = Luck::new(of);
    let words = (0..bytes.div_ceil(8)).flat_map(|_| luck.next().to_le_bytes());
    words.take(bytes).collect()
}

/// Places for communicators.
const SEATS: usize = 4;
/// Sizes near the limits where the path changes: inline data, one-shot plans, flat slots of threads and of processes,
/// slots of rings, cached pieces.
const SIZES: &[usize] = &[0, 4, 16, 24, 200, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072, 262_144];
/// More than a ring's slots, or a rank's scratch, or what stays in the caches.
const LARGE: &[usize] = &[524_288, 1_048_576, 3_000_000, 8_400_000];
const MOST_BYTES: usize = 9_000_000;
/// Bytes of messages: inline, within a slot, slots of 2 KiB to 128 KiB, more than all of them.
const MESSAGES: &[usize] = &[0, 1, 8, 16, 64, 2_048, 16_384, 131_072, 1_048_576];
/// Elements of a registered buffer.
const REGISTERED: usize = 120_000;
/// The usual seed. It has once found a bug: a connection that was offered twice.
const USUAL_SEED: u64 = 9_447_791_666_585_560_653;
/// Steps where nobody asks for more: a few seconds for all worlds of a test.
const USUAL_STEPS: u64 = 40;
/// Steps between two calls of `Script::tell`.
const TOLD: u64 = 20;
