//! What stands on the pages of a process, read: [`page`](crate::session::page) has the layout. The pages may be those
//! of any process, so every word is a number until it is held against what it may be.

use std::fmt::Write as _;

use crate::exec;
use crate::session::page::{
    BEGUN, CALL, CALL_TEXT, COMMUNICATOR, CallWayShown, ERROR, ERROR_WORDS, GPU, HOSTS, LIMIT, LISTED, MADE_AT, MEMORY,
    MOST_LISTED, MOST_PEERS, MemoryKind, NAME, NAME_WORDS, ORIGIN, ORIGIN_WORDS, PARENT, PEERS, PHASE, Phase, READY_AT,
    RECORD_WORDS, RankState, STATE, UNIQUE_ID, USER, WAITING, WAITS, WAY, WORDS_TEXT, WORLD, WaitKind, peer_of,
    record_sum,
};
use crate::sync::AwaitedMessage;
use crate::sync::ring::Label;
use crate::sys::page_text;
use crate::sys::rank_page::process_head::{
    HIDDEN, HOST, HOST_NAME_WORDS, HOST_NAMES, HOST_WORDS, MAGIC_AT, MOST_HOST_NAMES, PROCESS, USED,
};
use crate::sys::rank_page::{HEAD_WORDS, LABEL_WORDS, LABELS, MAGIC, MOST_PAGES, PAGE_WORDS};
use crate::transport::traffic;
use crate::types::{Algorithm, Collective, Rank};

/// The version of the documents that hold [`ProcessView::as_json`]: their `rsccl_status`.
pub const DOCUMENT_VERSION: u64 = 1;

/// What the pages of a process say at a moment.
#[derive(Debug)]
pub struct ProcessView {
    /// Its number in its own namespace.
    pub process: u64,
    /// The host's name.
    host: String,
    /// Ranks that have no page.
    hidden: u64,
    ranks: Vec<RankView>,
    /// Nanoseconds of the monotonic clock.
    now: u64,
}

/// What one rank shows.
#[derive(Debug)]
struct RankView {
    state: RankState,
    communicator: u64,
    rank: u64,
    size: u64,
    parent: u64,
    unique_id: u64,
    origin: String,
    name: String,
    error: Option<String>,
    hosts: (u64, u64),
    made_at: u64,
    ready_at: u64,
    begun: u64,
    is_in_call: bool,
    user: u64,
    way: u64,
    phase: Option<Phase>,
    limit: u64,
    wait: Option<WaitView>,
    /// Whether it waits, and neither of its records is whole.
    is_torn: bool,
    peers: Vec<(u64, u64)>,
    /// Ranks on other hosts: the rank, its process there, and the host's name.
    elsewhere: Vec<(u64, u64, String)>,
    /// Bytes by [`MemoryKind`].
    memory: [u64; MemoryKind::ALL.len()],
    /// One more than the number of the GPU.
    gpu: u64,
    /// How many calls went which way, and their bytes.
    calls: Vec<(CallWayShown, u64, u64)>,
    connections: Vec<ConnectionView>,
    /// The labels of its latest collectives, in their order.
    latest: Vec<Label>,
}

/// What went through the connections with a peer.
#[derive(Debug)]
struct ConnectionView {
    /// `None` for all that have no row of their own.
    peer: Option<u64>,
    transport: Option<&'static str>,
    /// Messages and bytes.
    sent: (u64, u64),
    received: (u64, u64),
}

/// A wait that lasts.
#[derive(Debug)]
struct WaitView {
    kind: WaitKind,
    looked: u64,
    waited: u64,
    label: Label,
    messages: Vec<AwaitedMessage>,
    open: u64,
    words: String,
    meeting: String,
}

/// Why pages say nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// They are not there yet, or are none.
    Nothing,
    /// They have another layout: that of another version of the library.
    OtherVersion,
}

impl ProcessView {
    /// Reads the pages of which `word` yields each word, at the moment `now` of the monotonic clock.
    ///
    /// # Errors
    /// Why they say nothing.
    pub fn read(word: &dyn Fn(usize) -> u64, now: u64) -> Result<ProcessView, Unread> {
        let magic = word(MAGIC_AT);
        if magic.to_le_bytes()[..5] != MAGIC.to_le_bytes()[..5] {
            return Err(Unread::Nothing);
        }
        if magic != MAGIC {
            return Err(Unread::OtherVersion);
        }
        let used = usize::try_from(word(USED)).unwrap_or(usize::MAX).min(MOST_PAGES);
        let name = |number: u64| {
            let place = usize::try_from(number).ok()?.checked_sub(1).filter(|place| *place < MOST_HOST_NAMES)?;
            text(word, (HOST_NAMES + place * HOST_NAME_WORDS, HOST_NAME_WORDS))
        };
        let names: Vec<String> = (1..=MOST_HOST_NAMES as u64).map_while(name).collect();
        let of_page = |index: usize| RankView::read(&|place| word(HEAD_WORDS + index * PAGE_WORDS + place), &names);
        Ok(ProcessView {
            process: word(PROCESS),
            host: text(word, (HOST, HOST_WORDS)).unwrap_or_default(),
            hidden: word(HIDDEN),
            ranks: (0..used).filter_map(of_page).collect(),
            now,
        })
    }

    /// As JSON: an object. `latest`: how many of each rank's latest collectives it has.
    pub fn as_json(&self, latest: usize) -> String {
        let mut ranks: Vec<String> = self.ranks.iter().map(|rank| rank.as_json(self.now, latest)).collect();
        ranks.sort_unstable();
        let (process, host, hidden) = (self.process, quoted(&self.host), self.hidden);
        let ranks = ranks.join(",");
        format!(
            "{{\"pid\":{process},\"process\":{process},\"host\":{host},\"hidden_ranks\":{hidden},\"ranks\":[{ranks}]}}"
        )
    }
}

impl ProcessView {
    /// How many ranks it shows.
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// The processes of the ranks of its host, of all its communicators.
    pub fn peer_processes(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranks.iter().flat_map(|rank| rank.peers.iter().map(|(_, process)| *process))
    }

    /// A line for each rank; `is_verbose` adds what it holds and what went through its connections.
    pub fn as_text(&self, is_verbose: bool) -> String {
        let mut text = String::new();
        for rank in &self.ranks {
            text.push_str(&rank.as_text((self.process, &self.host, self.now), is_verbose));
        }
        text
    }
}

impl RankView {
    fn as_text(&self, (process, host, now): (u64, &str, u64), is_verbose: bool) -> String {
        let RankView { rank, size, communicator, begun, .. } = self;
        let does = match (&self.error, &self.wait) {
            (Some(error), _) => format!("failed: {}", on_one_line(error)),
            (None, Some(wait)) => {
                let waited = seconds(wait.waited.saturating_add(now.saturating_sub(wait.looked)));
                let call = if wait.kind == WaitKind::Collective { exec::describe(wait.label) } else { String::new() };
                let (meeting, words) = (on_one_line(&wait.meeting), on_one_line(&wait.words));
                format!("waits for {waited} s in {call}{meeting}: for {words}")
            }
            (None, None) if self.state == RankState::Beginning => self.phase.map_or("", Phase::name).to_owned(),
            (None, None) if self.is_in_call => "in a call".to_owned(),
            (None, None) => "not in a call".to_owned(),
        };
        let mut text = format!(
            "rank {rank} of {size}, communicator {communicator:016x}, host {host}, pid {process}, {}, \
             {begun} collectives begun: {does}\n",
            self.state.name(),
            host = on_one_line(host),
        );
        if is_verbose {
            let connections: Vec<String> = self.connections.iter().map(ConnectionView::as_json).collect();
            text.push_str(&format!("  memory {}\n", self.memory_json()));
            connections.iter().for_each(|one| text.push_str(&format!("  connection {one}\n")));
        }
        text
    }
}

/// A text of another process, perhaps: without what moves a terminal's cursor or begins a line that the process has
/// made up.
pub(super) fn on_one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

impl RankView {
    /// `None` where nobody has the page.
    fn read(word: &dyn Fn(usize) -> u64, names: &[String]) -> Option<RankView> {
        let state = RankState::from_code(word(STATE))?;
        let (rank, size) = halves(word(WORLD));
        let is_waiting = word(WAITING) != 0;
        let wait = if is_waiting { wait_of(word) } else { None };
        let known = (0..MOST_PEERS).map(|place| word(PEERS + place)).take_while(|peer| *peer != 0).map(peer_of);
        let (mut peers, mut elsewhere) = (Vec::new(), Vec::new());
        for (rank, process, host) in known {
            match usize::try_from(host).unwrap_or(usize::MAX).checked_sub(1) {
                None => peers.push((rank, process)),
                Some(place) => elsewhere.extend(names.get(place).map(|name| (rank, process, name.clone()))),
            }
        }
        let label = |place: usize| exec::foreign_label(|part| word(HEAD_WORDS + place * LABEL_WORDS + part));
        let mut latest: Vec<Label> = (0..LABELS).filter_map(label).collect();
        latest.sort_unstable_by_key(|label| exec::sequence(*label));
        Some(RankView {
            state,
            communicator: word(COMMUNICATOR),
            rank,
            size,
            parent: word(PARENT),
            unique_id: word(UNIQUE_ID),
            origin: text(word, (ORIGIN, ORIGIN_WORDS)).unwrap_or_default(),
            name: text(word, (NAME, NAME_WORDS)).unwrap_or_default(),
            error: text(word, (ERROR, ERROR_WORDS)),
            hosts: halves(word(HOSTS)),
            made_at: word(MADE_AT),
            ready_at: word(READY_AT),
            begun: word(BEGUN),
            is_in_call: word(CALL) != 0,
            user: word(USER),
            way: word(WAY),
            phase: Phase::from_code(word(PHASE)),
            limit: word(LIMIT),
            is_torn: is_waiting && wait.is_none(),
            wait,
            peers,
            elsewhere,
            memory: MemoryKind::ALL.map(|kind| word(MEMORY + kind.place())),
            gpu: word(GPU),
            calls: calls(word),
            connections: (0..traffic::MOST_ROWS).filter_map(|row| connection(word, row)).collect(),
            latest,
        })
    }

    fn as_json(&self, now: u64, latest: usize) -> String {
        let mut text = String::from("{");
        let mut field = |name: &str, value: &str| {
            let comma = if text.len() > 1 { "," } else { "" };
            // Writing to a string cannot fail.
            let _written = write!(text, "{comma}\"{name}\":{value}");
        };
        field("communicator", &hexadecimal(self.communicator));
        field("rank", &self.rank.to_string());
        field("size", &self.size.to_string());
        field("name", &quoted(&self.name));
        field("state", &quoted(self.state.name()));
        field("origin", &quoted(&self.origin));
        field("parent", &hexadecimal(self.parent));
        field("unique_id", &hexadecimal(self.unique_id));
        field("age_s", &seconds(now.saturating_sub(self.made_at)));
        if self.state == RankState::Beginning {
            field("phase", &quoted(self.phase.map_or("", Phase::name)));
        } else {
            field("init_s", &seconds(self.ready_at.saturating_sub(self.made_at)));
        }
        field("local_ranks", &self.hosts.0.to_string());
        field("hosts", &self.hosts.1.to_string());
        field("timeout_s", &if self.limit == u64::MAX { "null".to_owned() } else { seconds(self.limit) });
        field("begun", &self.begun.to_string());
        field("in_call", if self.is_in_call { "true" } else { "false" });
        field("thread", &self.user.to_string());
        field("way", &quoted(&way(self.way)));
        field("error", &self.error.as_deref().map_or("null".to_owned(), quoted));
        field("torn", if self.is_torn { "true" } else { "false" });
        field("wait", &self.wait.as_ref().map_or("null".to_owned(), |wait| wait.as_json(now)));
        let peers: Vec<String> = self.peers.iter().map(|(rank, process)| format!("[{rank},{process}]")).collect();
        field("processes", &format!("[{}]", peers.join(",")));
        let far = |(rank, process, host): &(u64, u64, String)| format!("[{rank},{process},{}]", quoted(host));
        field("elsewhere", &format!("[{}]", self.elsewhere.iter().map(far).collect::<Vec<_>>().join(",")));
        field("memory", &self.memory_json());
        let calls = |(way, calls, bytes): &(CallWayShown, u64, u64)| {
            format!("{{\"way\":\"{}\",\"calls\":{calls},\"bytes\":{bytes}}}", way.name())
        };
        field("calls", &format!("[{}]", self.calls.iter().map(calls).collect::<Vec<_>>().join(",")));
        let connections: Vec<String> = self.connections.iter().map(ConnectionView::as_json).collect();
        field("connections", &format!("[{}]", connections.join(",")));
        let shown = self.latest.iter().skip(self.latest.len().saturating_sub(latest));
        let shown: Vec<String> = shown.map(|label| call_json(*label)).collect();
        field("latest", &format!("[{}]", shown.join(",")));
        text.push('}');
        text
    }
}

impl RankView {
    fn memory_json(&self) -> String {
        let kind = |(kind, bytes): (MemoryKind, u64)| format!("{}:{bytes}", quoted(kind.name()));
        let mut kinds: Vec<String> = MemoryKind::ALL.into_iter().zip(self.memory).map(kind).collect();
        kinds.extend(self.gpu.checked_sub(1).map(|gpu| format!("\"gpu_ordinal\":{gpu}")));
        format!("{{{}}}", kinds.join(","))
    }
}

impl ConnectionView {
    fn as_json(&self) -> String {
        let ConnectionView { peer, transport, sent, received } = self;
        let peer = peer.map_or("null".to_owned(), |peer| peer.to_string());
        let transport = transport.map_or("null".to_owned(), quoted);
        format!(
            "{{\"peer\":{peer},\"transport\":{transport},\"sent\":{},\"sent_bytes\":{},\"received\":{},\
             \"received_bytes\":{}}}",
            sent.0, sent.1, received.0, received.1
        )
    }
}

impl WaitView {
    fn as_json(&self, now: u64) -> String {
        let waited = self.waited.saturating_add(now.saturating_sub(self.looked));
        let call = if self.kind == WaitKind::Collective { call_json(self.label) } else { "null".to_owned() };
        let message = |message: &AwaitedMessage| {
            let (peer, call, number, sends) = (message.peer, message.call, message.number, message.sends);
            let text = quoted(&message.full_name());
            format!("{{\"peer\":{peer},\"call\":\"{call}\",\"number\":{number},\"sends\":{sends},\"text\":{text}}}")
        };
        let messages: Vec<String> = self.messages.iter().map(message).collect();
        format!(
            "{{\"kind\":\"{}\",\"waited_s\":{},\"looked_s\":{},\"call\":{call},\"meeting\":{},\"words\":{},\
             \"open\":{},\"messages\":[{}]}}",
            self.kind.name(),
            seconds(waited),
            seconds(now.saturating_sub(self.looked)),
            quoted(&self.meeting),
            quoted(&self.words),
            self.open,
            messages.join(",")
        )
    }
}

/// The newer one of the two wait records that is whole.
fn wait_of(word: &dyn Fn(usize) -> u64) -> Option<WaitView> {
    let record =
        |turn: usize| -> [u64; RECORD_WORDS] { std::array::from_fn(|place| word(WAITS + turn * RECORD_WORDS + place)) };
    let whole = [record(0), record(1)].into_iter().filter(|record| record[0] == record_sum(record));
    let record = whole.max_by_key(|record| record[1])?;
    let message = |place: usize| {
        let (first, number) = (record[LISTED + 2 * place], record[LISTED + 2 * place + 1]);
        let call = u8::try_from(first >> 32 & 0xff).ok().and_then(Collective::from_code)?;
        let peer = Rank::new(u32::try_from(first & u64::from(u32::MAX)).ok()?);
        Some(AwaitedMessage { peer, call, number, sends: first >> 40 & 1 == 1 })
    };
    let listed = usize::try_from(record[3] >> 8 & 0xff).unwrap_or(0).min(MOST_LISTED);
    Some(WaitView {
        kind: WaitKind::from_code(record[3] & 0xff)?,
        looked: record[1],
        waited: record[2],
        label: [record[4], record[5], record[6]],
        messages: (0..listed).filter_map(message).collect(),
        open: record[3] >> 32,
        words: page_text::read(&record[WORDS_TEXT..CALL_TEXT]).unwrap_or_default(),
        meeting: page_text::read(&record[CALL_TEXT..]).unwrap_or_default(),
    })
}

fn text(word: &dyn Fn(usize) -> u64, (first, words): (usize, usize)) -> Option<String> {
    let words: Vec<u64> = (first..first + words).map(word).collect();
    page_text::read(&words)
}

/// How a collective is run, in words.
fn way(word: u64) -> String {
    let Some(way) = CallWayShown::from_code(word & 0xff) else { return String::new() };
    let algorithm = (word >> 8 & 0xff).checked_sub(1).and_then(|code| u8::try_from(code).ok());
    match algorithm.and_then(Algorithm::from_code) {
        Some(algorithm) => format!("{algorithm} by {}", way.name()),
        None => way.name().to_owned(),
    }
}

fn call_json(label: Label) -> String {
    let (number, name, text) = (exec::sequence(label), exec::short_name(label), exec::describe(label));
    // What two ranks must have in common, with no past.
    let key = format!("{:016x}{:016x}", label[0], label[1]);
    format!("{{\"number\":{number},\"name\":{},\"text\":{},\"key\":\"{key}\"}}", quoted(&name), quoted(&text))
}

/// What went which way. Collectives by flat slots are all that went no other.
fn calls(word: &dyn Fn(usize) -> u64) -> Vec<(CallWayShown, u64, u64)> {
    let ways: Vec<CallWayShown> = (1..).map_while(CallWayShown::from_code).collect();
    let counted = |way: &CallWayShown| (*way, word(way.count_at()), word(way.count_at() + 1));
    let mut calls: Vec<(CallWayShown, u64, u64)> = ways.iter().map(counted).collect();
    let others = calls.iter().filter(|(way, ..)| *way != CallWayShown::Flat).map(|(_, calls, _)| *calls);
    let others = others.fold(0, u64::saturating_add);
    for (way, calls, _) in &mut calls {
        if *way == CallWayShown::Flat {
            *calls = word(BEGUN).saturating_sub(others);
        }
    }
    calls.retain(|(_, calls, _)| *calls > 0);
    calls
}

/// `None` where there is no connection.
fn connection(word: &dyn Fn(usize) -> u64, row: usize) -> Option<ConnectionView> {
    let word = |place: usize| word(traffic::ROWS + traffic::ROW_WORDS * row + place);
    let (peer, transport) = halves(word(0));
    (peer != 0).then(|| ConnectionView {
        peer: (peer != u64::from(traffic::OTHERS)).then(|| peer - 1),
        transport: transport.checked_sub(1).and_then(traffic::transport_name),
        sent: (word(1), word(2)),
        received: (word(3), word(4)),
    })
}

fn halves(word: u64) -> (u64, u64) {
    (word & u64::from(u32::MAX), word >> 32)
}

fn hexadecimal(number: u64) -> String {
    format!("\"{number:016x}\"")
}

fn seconds(nanoseconds: u64) -> String {
    format!("{}.{:03}", nanoseconds / 1_000_000_000, nanoseconds / 1_000_000 % 1000)
}

/// A text as JSON has it.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            // Written by a stranger, perhaps: nothing that moves a terminal's cursor.
            control if control.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(control))),
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::exec::{History, Operation};
    use crate::session::host_names::HostNames;
    use crate::session::page::OwnPage;
    use crate::session::stall::{CollectiveStall, Stall};
    use crate::sync::primitive::Ordering;
    use crate::sys::numa::ThreadHome;
    use crate::sys::rank_page::OwnPages;
    use crate::transport::{PeerInfo, SWITCH_LAYERS};
    use crate::types::{DataType, World};
    use crate::wire::Writer;

    /// A process with one rank, whose page is `page`.
    fn with_page(page: &OwnPage) -> impl Fn(usize) -> u64 + use<> {
        let memory = page.memory();
        move |index| match index.checked_sub(HEAD_WORDS) {
            // The names of hosts are those of this process.
            None if index >= HOST_NAMES => OwnPages::find().map_or(0, |pages| pages.word(index)),
            None => [(MAGIC_AT, MAGIC), (PROCESS, 412), (USED, 1)]
                .into_iter()
                .find_map(|(place, value)| (place == index).then_some(value))
                .unwrap_or(0),
            Some(place) if place < HEAD_WORDS => memory.head[place].load(Ordering::Relaxed),
            Some(place) => {
                memory.labels.as_flattened().get(place - HEAD_WORDS).map_or(0, |word| word.load(Ordering::Relaxed))
            }
        }
    }

    fn operation(sequence: u64) -> Operation {
        Operation {
            collective: Collective::AllReduce,
            data_type: DataType::F32,
            op: None,
            root: None,
            count: 4,
            sequence,
            past: 7 << 48,
            on_device: false,
            windows: 0,
        }
    }

    fn shown(page: &OwnPage) -> serde_json::Value {
        let word = with_page(page);
        let view = ProcessView::read(&word, crate::sys::clock::monotonic_nanoseconds()).unwrap();
        serde_json::from_str(&view.as_json(LABELS)).unwrap()
    }

    #[test]
    fn what_a_rank_does_is_read_from_its_page() {
        let world = World { rank: Rank::new(3), size: 8 };
        let page = OwnPage::of_beginning(world, ("split", 0, 0xabc), "inner \"x\"\n");
        let rank = &shown(&page)["ranks"][0];
        assert_eq!((&rank["state"], &rank["phase"]), (&"beginning".into(), &"meets the other ranks".into()));
        assert_eq!((&rank["rank"], &rank["size"], &rank["parent"]), (&3.into(), &8.into(), &"0000000000000abc".into()));
        page.is_ready((2, 4));
        page.enters_call();
        let history = History::on(page.memory());
        page.begun().store(185, Ordering::Relaxed);
        (100..185).for_each(|number| history.begin(&operation(number)));
        page.goes(CallWayShown::Slots.by(Algorithm::Ring));
        let stall = Stall::Collective(CollectiveStall { label: operation(184).label(), exchanges: 0 });
        for _ in 0..3 {
            page.waits(Duration::from_secs(12), Some(&stall), "rank 5 (its data)");
        }
        let rank = &shown(&page)["ranks"][0];
        assert_eq!((&rank["state"], &rank["name"]), (&"ready".into(), &"inner \"x\"\n".into()));
        assert_eq!(
            (&rank["begun"], &rank["in_call"], &rank["way"]),
            (&185.into(), &true.into(), &"Ring by slots".into())
        );
        let wait = &rank["wait"];
        assert_eq!(wait["call"]["text"], "all_reduce #184 (count 4, float)");
        assert!(wait["waited_s"].as_f64().unwrap() >= 12.0 && wait["words"] == "rank 5 (its data)", "{wait}");
        assert_eq!(rank["latest"].as_array().unwrap().len(), 85);
        page.goes_on();
        page.fails("rank 5 has died");
        let rank = &shown(&page)["ranks"][0];
        assert!(rank["wait"].is_null() && rank["error"] == "rank 5 has died" && rank["state"] == "failed", "{rank}");
    }

    #[test]
    fn ranks_on_other_hosts_are_shown_with_their_hosts_names() {
        let peer = |(rank, host): (u32, u64)| PeerInfo {
            rank: Rank::new(rank),
            host,
            process: rank.into(),
            pid: 100 + rank,
            space: 1,
            cores: 1,
            settings: 0,
            tuning: 0,
            home: ThreadHome::default(),
            switches: [0; SWITCH_LAYERS],
            is_traced: false,
        };
        let peers: Vec<PeerInfo> = (0..).zip([5, 5, 6, 7, 6]).map(peer).collect();
        let names = [(5, "here"), (6, "b \"x\""), (7, "c")];
        let told = peers.iter().map(|peer| {
            let mut writer = Writer::new();
            writer.text(names.iter().find(|(host, _)| *host == peer.host).unwrap().1);
            writer.finish()
        });
        let told: Vec<Vec<u8>> = told.collect();
        let (names, _) = HostNames::gathered(peers.iter().zip(told.iter().map(Vec::as_slice))).unwrap();
        let page = OwnPage::of_beginning(World { rank: Rank::new(1), size: 5 }, ("init", 1, 0), "");
        for _ in 0..2 {
            page.know((1, Duration::MAX), &peers[1], (&peers, &names));
        }
        let rank = &shown(&page)["ranks"][0];
        assert_eq!(rank["processes"], serde_json::json!([[0, 100], [1, 101]]));
        let elsewhere = serde_json::json!([[2, 102, "b \"x\""], [3, 103, "c"], [4, 104, "b \"x\""]]);
        assert_eq!(rank["elsewhere"], elsewhere);
    }

    #[test]
    fn no_text_of_a_process_begins_a_line() {
        let page = OwnPage::of_beginning(World { rank: Rank::new(3), size: 8 }, ("init", 1, 0), "");
        page.is_ready((2, 4));
        let stall = Stall::Collective(CollectiveStall { label: operation(4).label(), exchanges: 0 });
        page.waits(Duration::from_secs(12), Some(&stall), "rank 5\nrank 0 of 8, failed\x1b[2J");
        let lines = |page: &OwnPage| {
            let word = with_page(page);
            ProcessView::read(&word, crate::sys::clock::monotonic_nanoseconds()).unwrap().as_text(false)
        };
        let text = lines(&page);
        assert!(text.lines().count() == 1 && text.ends_with("for rank 5 rank 0 of 8, failed [2J\n"), "{text}");
        page.goes_on();
        page.fails("first\nsecond");
        let text = lines(&page);
        assert!(text.lines().count() == 1 && text.ends_with("failed: first second\n"), "{text}");
    }

    #[test]
    fn a_writer_that_stopped_anywhere_leaves_a_whole_record() {
        let page = OwnPage::of_beginning(World { rank: Rank::new(0), size: 2 }, ("init", 1, 0), "");
        let open = |peer| AwaitedMessage { peer: Rank::new(peer), call: Collective::Recv, number: 6, sends: false };
        let stall = |peer| Stall::Messages { open: vec![open(peer)], is_all: true };
        page.waits(Duration::from_secs(1), Some(&stall(4)), "its message");
        let before: Vec<u64> = page.memory().head.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        page.waits(Duration::from_secs(2), Some(&stall(5)), "its message");
        let after: Vec<u64> = page.memory().head.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        for written in 0..=RECORD_WORDS {
            let word = |place: usize| if place < WAITS + RECORD_WORDS + written { after[place] } else { before[place] };
            let wait = wait_of(&word).unwrap();
            let peer = wait.messages[0].peer.get();
            assert!(peer == 4 || peer == 5, "{written} words: {wait:?}");
            assert_eq!((wait.open, wait.messages[0].number), (1, 6));
        }
        assert!(wait_of(&|_| 0).is_none());
    }

    #[test]
    fn pages_of_strangers_are_refused_or_read_as_far_as_they_make_sense() {
        assert_eq!(ProcessView::read(&|_| 0, 0).unwrap_err(), Unread::Nothing);
        assert_eq!(ProcessView::read(&|_| MAGIC + (1 << 60), 0).unwrap_err(), Unread::OtherVersion);
    }

    proptest! {
        #[test]
        fn words_of_any_kind_make_json(seed: u64, known in 0..6u64) {
            let word = |index: usize| match index {
                MAGIC_AT => MAGIC,
                USED => 2,
                // Small numbers now and then, so that more is taken for valid.
                _ => {
                    let mixed = (index as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
                    if mixed.is_multiple_of(3) { mixed % 7 } else if index == HEAD_WORDS { known } else { mixed }
                }
            };
            let text = ProcessView::read(&word, seed).unwrap().as_json(LABELS);
            let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
            prop_assert!(parsed["ranks"].is_array());
        }
    }
}
