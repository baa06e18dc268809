//! What a rank shows of itself to whoever looks from outside, without a word of its own: `rsccl status`.
//!
//! A rank that is stopped shows what it did last. So nothing here is locked, and no word counts on another one that is
//! written beside it. What the program's calls write on their way is three words, without a look at the clock: the
//! number of the collective, that a call is under way, and how it is run. All else is written where a wait has lasted.
//!
//! # Head of a rank's page
//! | words | what |
//! |---|---|
//! | [`STATE`] | 0: no rank; else [`RankState`] |
//! | [`COMMUNICATOR`] | the number of the communicator, equal on all its ranks |
//! | [`WORLD`] | rank, and in the upper half ranks of the communicator |
//! | [`PARENT`] | the number of the communicator that it was split from, or 0 |
//! | [`UNIQUE_ID`] | the number of the unique id, or 0 |
//! | [`MADE_AT`], [`READY_AT`] | nanoseconds of the monotonic clock |
//! | [`HOSTS`] | ranks on this host, and in the upper half hosts |
//! | [`BEGUN`] | collectives that the rank has begun |
//! | [`CALL`] | whether the program is in a call of the communicator |
//! | [`USER`] | the number of the thread that has begun the latest operation |
//! | [`WAY`] | how the latest collective is run: [`CallWayShown`] |
//! | [`PHASE`] | of a rank that begins: [`Phase`] |
//! | [`LIMIT`] | nanoseconds that a call may wait |
//! | [`WAITING`] | nanoseconds of the monotonic clock at the latest look of a wait that lasts, or 0 |
//! | [`TURN`] | wait records written |
//! | [`ORIGIN`], [`NAME`], [`ERROR`] | texts: the call that made it, the program's name for it, its last error |
//! | [`WAITS`] | two wait records, written in turn: one is whole, wherever the writer has stopped |
//! | [`MEMORY`] | bytes of memory by [`MemoryKind`]; [`GPU`]: one more than the number of the GPU whose memory it is |
//! | [`CALLS`] | calls and bytes by [`CallWayShown`]; those by flat slots are all that are no others, and not counted |
//! | `transport::traffic::ROWS` | messages and bytes by connection |
//! | [`PEERS`] | of ranks on this host, and then of others: the rank; from bit 32 its process, as its host counts; from |
//! | | bit 54 the number of its host's name in the head of the process, or 0 for this host |
//!
//! # Wait record
//! | word | what |
//! |---|---|
//! | 0 | check sum of the others |
//! | 1, 2 | when the rank looked, and how long it had waited, in nanoseconds |
//! | 3 | [`WaitKind`]; from bit 8 messages listed, from bit 32 messages that are open |
//! | 4 to 6 | of a collective: its label |
//! | 8 to 23 | of each message listed, two words: peer, from bit 32 the call, bit 40 if it is sent; its number |
//! | 24 to 40 | a text: what it waits for |
//! | 41 to 47 | a text: the call, of a meeting |

use std::time::Duration;

use crate::session::host_names::HostNames;
use crate::session::stall::Stall;
use crate::sync::AwaitedMessage;
use crate::sync::primitive::Ordering;
use crate::sync::primitive::mapped::AtomicU64;
use crate::sys::rank_page::process_head::MOST_HOST_NAMES;
use crate::sys::rank_page::{HEAD_WORDS, RankPage};
use crate::sys::{clock, page_text};
use crate::transport::traffic::{self, DeviceRoute};
use crate::transport::{FabricBytes, PeerInfo, Way};
use crate::types::{Algorithm, Rank, World};

pub const STATE: usize = 0;
pub const COMMUNICATOR: usize = 1;
pub const WORLD: usize = 2;
pub const PARENT: usize = 3;
pub const UNIQUE_ID: usize = 4;
pub const MADE_AT: usize = 5;
pub const READY_AT: usize = 6;
pub const HOSTS: usize = 7;
// A line of the cache: what calls write.
pub const BEGUN: usize = 8;
pub const CALL: usize = 9;
pub const USER: usize = 10;
pub const WAY: usize = 11;
pub const PHASE: usize = 16;
pub const LIMIT: usize = 17;
pub const WAITING: usize = 18;
pub const TURN: usize = 19;
pub const ORIGIN: usize = 24;
pub const ORIGIN_WORDS: usize = 4;
pub const NAME: usize = 28;
pub const NAME_WORDS: usize = 17;
pub const ERROR: usize = 48;
pub const ERROR_WORDS: usize = 96;
pub const WAITS: usize = 160;
pub const RECORD_WORDS: usize = 48;
/// Behind the wait records.
pub const MEMORY: usize = 256;
pub const GPU: usize = 263;
pub const CALLS: usize = 272;
pub const PEERS: usize = 512;
pub const MOST_PEERS: usize = HEAD_WORDS - PEERS;
/// Bits of a process's number: Linux has none above (`PID_MAX_LIMIT`).
const PROCESS_BITS: u32 = 22;
const _: () = assert!(MOST_HOST_NAMES < 1 << (32 - PROCESS_BITS));
const _: () = assert!(NAME + NAME_WORDS <= ERROR && ERROR + ERROR_WORDS <= WAITS && WAITS + 2 * RECORD_WORDS <= MEMORY);
const _: () = assert!(MEMORY + 6 < GPU && GPU < CALLS && CALLS + 2 * 6 <= traffic::ROWS);

/// Messages listed in a wait record.
pub const MOST_LISTED: usize = 8;
pub const LISTED: usize = 8;
pub const WORDS_TEXT: usize = 24;
pub const CALL_TEXT: usize = 41;
const _: () = assert!(LISTED + 2 * MOST_LISTED <= WORDS_TEXT && CALL_TEXT < RECORD_WORDS);

/// The numbers of an enum that is shown as words.
macro_rules! shown {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal, $name:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type { $($(#[$variant_doc])* $variant,)+ }

        impl $type {
            pub const fn code(self) -> u64 {
                match self { $($type::$variant => $code,)+ }
            }

            pub const fn from_code(code: u64) -> Option<$type> {
                match code { $($code => Some($type::$variant),)+ _ => None }
            }

            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)+ }
            }
        }
    };
}

shown! {
    /// Where a communicator is in its life.
    RankState {
        /// It is being made.
        Beginning = 1, "beginning";
        /// It can be used.
        Ready = 2, "ready";
        /// An error has ended it.
        Failed = 3, "failed";
        /// The rank has said goodbye.
        Left = 4, "left";
    }
}

shown! {
    /// Of a rank that begins: what it does.
    Phase {
        /// It meets the others, over the network or a store.
        Meeting = 1, "meets the other ranks";
        /// It tells them who it is.
        Telling = 2, "exchanges what ranks know of themselves";
        /// It maps memory of its host's ranks.
        Connecting = 3, "connects to the ranks of its host";
    }
}

shown! {
    /// What a wait is for.
    WaitKind {
        /// A collective.
        Collective = 1, "collective";
        /// Messages.
        Messages = 2, "messages";
        /// A call of all ranks over the bootstrap, such as a split.
        Meeting = 3, "meeting";
        /// Anything else.
        Other = 4, "other";
    }
}

shown! {
    /// How a collective is run; above bit 8 stands one more than the number of the algorithm.
    CallWayShown {
        /// In one exchange of small slots.
        Flat = 1, "flat slots";
        /// In mapped memory.
        Windows = 2, "windows";
        /// Over the slots of connections.
        Slots = 3, "slots";
        /// As messages.
        Messages = 4, "messages";
        /// By one rank alone.
        Alone = 5, "alone";
        /// On a device.
        Device = 6, "a device";
    }
}

/// What memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// What the ranks of a host map of each other: slots of small calls, flags and scratch.
    Arenas,
    /// Slots of messages.
    Rings,
    /// Buffers of the program that are registered.
    Registered,
    /// The program's windows on a GPU.
    Windows,
    /// Memory of the host that is pinned for a GPU.
    Pinned,
    /// Of the library, on the GPU.
    Gpu,
}

impl CallWayShown {
    /// Where its calls are counted; behind it their bytes.
    pub(crate) const fn count_at(self) -> usize {
        let place = match self {
            CallWayShown::Flat => 0,
            CallWayShown::Windows => 1,
            CallWayShown::Slots => 2,
            CallWayShown::Messages => 3,
            CallWayShown::Alone => 4,
            CallWayShown::Device => 5,
        };
        CALLS + 2 * place
    }

    /// The word of a collective that goes this way by `algorithm`.
    pub(crate) fn by(self, algorithm: Algorithm) -> u64 {
        self.code() | (u64::from(algorithm.code()) + 1) << 8
    }
}

impl MemoryKind {
    pub(crate) const ALL: [MemoryKind; 6] = [
        MemoryKind::Arenas,
        MemoryKind::Rings,
        MemoryKind::Registered,
        MemoryKind::Windows,
        MemoryKind::Pinned,
        MemoryKind::Gpu,
    ];

    /// As documents have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            MemoryKind::Arenas => "arenas",
            MemoryKind::Rings => "rings",
            MemoryKind::Registered => "registered",
            MemoryKind::Windows => "windows",
            MemoryKind::Pinned => "pinned",
            MemoryKind::Gpu => "GPU",
        }
    }

    pub(super) fn place(self) -> usize {
        self as usize
    }
}

/// The page of a rank of this process.
#[derive(Debug)]
pub(crate) struct OwnPage {
    page: RankPage,
}

impl OwnPage {
    /// That of a rank which begins by `call`, of a communicator of this name.
    pub(crate) fn of_beginning(world: World, (call, unique_id, parent): (&str, u64, u64), name: &str) -> OwnPage {
        let page = OwnPage { page: RankPage::take() };
        page.set(WORLD, two(world.rank.get(), world.size));
        page.set(UNIQUE_ID, unique_id);
        page.set(PARENT, parent);
        page.set(MADE_AT, clock::monotonic_nanoseconds());
        page.write_text((ORIGIN, ORIGIN_WORDS), call);
        page.write_text((NAME, NAME_WORDS), name);
        page.begins(Phase::Meeting);
        // Pairs with the acquire of a reader: what it finds of a rank is there.
        page.page.head[STATE].store(RankState::Beginning.code(), Ordering::Release);
        page
    }

    /// One that nobody sees.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn hidden() -> OwnPage {
        OwnPage { page: RankPage::hidden() }
    }

    /// The same memory, for the labels.
    pub(crate) fn memory(&self) -> RankPage {
        self.page.clone()
    }

    // Relaxed in all that follows: each word stands for itself.
    #[inline(always)]
    fn set(&self, place: usize, value: u64) {
        self.page.head[place].store(value, Ordering::Relaxed);
    }

    /// Collectives that the rank has begun.
    #[inline(always)]
    pub(crate) fn begun(&self) -> &AtomicU64 {
        &self.page.head[BEGUN]
    }

    /// The program is in a call.
    #[inline(always)]
    pub(crate) fn enters_call(&self) {
        self.page.head[CALL].store(1, Ordering::Relaxed);
    }

    /// It no longer is.
    #[inline(always)]
    pub(crate) fn leaves_call(&self) {
        self.page.head[CALL].store(0, Ordering::Relaxed);
    }

    /// The thread that has begun the latest operation.
    #[inline(always)]
    pub(crate) fn user(&self) -> &AtomicU64 {
        &self.page.head[USER]
    }

    /// How the collective that begins is run.
    #[inline(always)]
    pub(crate) fn goes(&self, way: u64) {
        self.page.head[WAY].store(way, Ordering::Relaxed);
    }

    /// A collective of so many bytes goes this way, which is not that by flat slots.
    pub(crate) fn count(&self, way: CallWayShown, bytes: u64) {
        let place = way.count_at();
        for (place, more) in [(place, 1), (place + 1, bytes)] {
            self.set(place, self.page.head[place].load(Ordering::Relaxed).wrapping_add(more));
        }
    }

    /// A collective by flat slots puts so many bytes there: their number is that of all, less the others.
    #[inline(always)]
    pub(crate) fn count_flat(&self, bytes: u64) {
        const PLACE: usize = CallWayShown::Flat.count_at() + 1;
        let word = &self.page.head[PLACE];
        word.store(word.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
    }

    /// A launch moves so many messages and bytes between this rank and a peer.
    pub(crate) fn count_on_device(&self, end: (Rank, Way), route: DeviceRoute, amount: (u64, u64)) {
        traffic::count_on_device(&self.page, end, route, amount);
    }

    /// So much memory is held for this.
    pub(crate) fn holds(&self, kind: MemoryKind, bytes: usize) {
        self.set(MEMORY + kind.place(), bytes as u64);
    }

    /// So much is held by connections.
    pub(crate) fn note_connections(&self, bytes: FabricBytes) {
        let FabricBytes { arenas, rings, registered, queues: _ } = bytes;
        self.holds(MemoryKind::Arenas, arenas);
        self.holds(MemoryKind::Rings, rings);
        self.holds(MemoryKind::Registered, registered);
    }

    /// How much memory is held for this.
    pub(crate) fn held(&self, kind: MemoryKind) -> u64 {
        self.page.head[MEMORY + kind.place()].load(Ordering::Relaxed)
    }

    /// The GPU on which the rank works.
    pub(crate) fn works_on(&self, gpu: u32) {
        self.set(GPU, u64::from(gpu) + 1);
    }

    /// The same, if there is one.
    pub(crate) fn gpu(&self) -> Option<u32> {
        self.page.head[GPU].load(Ordering::Relaxed).checked_sub(1).and_then(|gpu| u32::try_from(gpu).ok())
    }

    /// What the making of the communicator does now.
    pub(crate) fn begins(&self, phase: Phase) {
        self.set(PHASE, phase.code());
    }

    /// The ranks have met: who they are.
    pub(crate) fn know(
        &self,
        (communicator, limit): (u64, Duration),
        mine: &PeerInfo,
        (peers, names): (&[PeerInfo], &HostNames),
    ) {
        self.set(COMMUNICATOR, communicator);
        self.set(LIMIT, nanoseconds(limit));
        // Numbers of processes that mean the same here.
        let here = peers.iter().filter(|peer| peer.host == mine.host && peer.space == mine.space && mine.space != 0);
        let here = here.map(|peer| (peer, 0));
        let elsewhere = peers.iter().filter(|peer| peer.host != mine.host);
        let elsewhere = elsewhere.filter_map(|peer| Some((peer, self.page.host_number(names.of(peer.host)?)?)));
        for (place, (peer, host)) in here.chain(elsewhere).take(MOST_PEERS).enumerate() {
            let process = peer.pid & ((1 << PROCESS_BITS) - 1);
            self.set(PEERS + place, two(peer.rank.get(), process | host << PROCESS_BITS));
        }
    }

    /// The communicator is made.
    pub(crate) fn is_ready(&self, (local_ranks, hosts): (usize, usize)) {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        self.set(HOSTS, two(count(local_ranks), count(hosts)));
        self.set(READY_AT, clock::monotonic_nanoseconds());
        self.set(STATE, RankState::Ready.code());
    }

    /// The rank waits, and has waited for so long.
    pub(crate) fn waits(&self, waited: Duration, stall: Option<&Stall>, words: &str) {
        let now = clock::monotonic_nanoseconds();
        let record = wait_record((now, waited), stall, words);
        let turn = self.page.head[TURN].load(Ordering::Relaxed);
        let first = WAITS + if turn.is_multiple_of(2) { 0 } else { RECORD_WORDS };
        self.page.head[first..].iter().zip(record).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        self.set(TURN, turn.wrapping_add(1));
        self.set(WAITING, now);
    }

    /// It waits no longer.
    pub(crate) fn goes_on(&self) {
        self.set(WAITING, 0);
    }

    /// An error has ended the communicator.
    pub(crate) fn fails(&self, error: &str) {
        self.goes_on();
        self.write_text((ERROR, ERROR_WORDS), error);
        self.set(STATE, RankState::Failed.code());
    }

    /// The rank has said goodbye.
    pub(crate) fn leaves(&self) {
        if self.page.head[STATE].load(Ordering::Relaxed) != RankState::Failed.code() {
            self.set(STATE, RankState::Left.code());
        }
    }

    fn write_text(&self, (first, words): (usize, usize), text: &str) {
        page_text::write(&self.page.head[first..first + words], text);
    }
}

/// The rank, the process and the number of the host in a word of [`PEERS`].
pub(super) fn peer_of(word: u64) -> (u64, u64, u64) {
    let upper = word >> 32;
    (word & u64::from(u32::MAX), upper & ((1 << PROCESS_BITS) - 1), upper >> PROCESS_BITS)
}

/// Two numbers as a word.
fn two(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A wait as a record.
fn wait_record((now, waited): (u64, Duration), stall: Option<&Stall>, words: &str) -> [u64; RECORD_WORDS] {
    let mut record = [0; RECORD_WORDS];
    (record[1], record[2]) = (now, nanoseconds(waited));
    let mut open: &[AwaitedMessage] = &[];
    record[3] = match stall {
        Some(Stall::Collective(stall)) => {
            record[4..7].copy_from_slice(&stall.label);
            WaitKind::Collective
        }
        Some(Stall::Messages { open: messages, .. }) => {
            open = messages;
            WaitKind::Messages
        }
        Some(Stall::Meeting { call, .. }) => {
            text_into(&mut record[CALL_TEXT..], call);
            WaitKind::Meeting
        }
        Some(Stall::Elsewhere(_)) | None => WaitKind::Other,
    }
    .code();
    for (place, message) in open.iter().take(MOST_LISTED).enumerate() {
        let call = u64::from(message.call.code()) << 32 | u64::from(message.sends) << 40;
        record[LISTED + 2 * place] = u64::from(message.peer.get()) | call;
        record[LISTED + 2 * place + 1] = message.number;
    }
    record[3] |= (open.len().min(MOST_LISTED) as u64) << 8 | (open.len().min(u32::MAX as usize) as u64) << 32;
    text_into(&mut record[WORDS_TEXT..CALL_TEXT], words);
    record[0] = record_sum(&record);
    record
}

fn text_into(place: &mut [u64], text: &str) {
    let words: Vec<AtomicU64> = place.iter().map(|_| AtomicU64::new(0)).collect();
    page_text::write(&words, text);
    place.iter_mut().zip(words).for_each(|(place, word)| *place = word.into_inner());
}

/// The check sum of a wait record: of all words but the first.
pub(super) fn record_sum(record: &[u64]) -> u64 {
    let mix = |sum: u64, word: &u64| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Never 0, the sum of a record that nobody has written.
    record.iter().skip(1).fold(1, mix) | 1
}
