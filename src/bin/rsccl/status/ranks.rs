//! What documents say of ranks, read: of this host, or of files from other hosts. Nothing in them is trusted.

use std::collections::{BTreeMap, HashMap, HashSet};

use rsccl::internals::session::page_view::DOCUMENT_VERSION;
use serde_json::Value;

/// A process with ranks.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) host: String,
    pub(crate) pid: u64,
    pub(crate) parent: u64,
    pub(crate) command: String,
    pub(crate) state: String,
    /// Ranks of it that have no page.
    pub(crate) hidden: u64,
    /// Why it shows nothing.
    pub(crate) problem: Option<String>,
}

/// A rank, in one communicator.
#[derive(Debug)]
pub(crate) struct Rank {
    /// Its process, by number in [`World::processes`].
    pub(crate) process: usize,
    pub(crate) communicator: String,
    pub(crate) rank: u64,
    pub(crate) size: u64,
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) origin: String,
    pub(crate) parent: String,
    pub(crate) unique_id: String,
    pub(crate) phase: String,
    pub(crate) age: f64,
    pub(crate) hosts: u64,
    pub(crate) begun: u64,
    pub(crate) is_in_call: bool,
    pub(crate) thread: u64,
    pub(crate) way: String,
    pub(crate) error: Option<String>,
    pub(crate) is_torn: bool,
    pub(crate) wait: Option<Wait>,
    /// Which rank is which process, of those of its host.
    pub(crate) peers: Vec<(u64, u64)>,
    /// Of those on other hosts: the process there, and the host's name.
    pub(crate) elsewhere: Vec<(u64, u64, String)>,
    /// Bytes by what they are for.
    pub(crate) memory: Vec<(String, u64)>,
    /// Calls and their bytes, by the way they went.
    pub(crate) calls: Vec<(String, u64, u64)>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) latest: Vec<Call>,
}

/// What went between a rank and a peer: messages and bytes.
#[derive(Debug)]
pub(crate) struct Connection {
    /// `None` for all that have no row of their own.
    pub(crate) peer: Option<u64>,
    pub(crate) transport: String,
    pub(crate) sent: (u64, u64),
    pub(crate) received: (u64, u64),
}

/// A wait that lasts.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) seconds: f64,
    pub(crate) what: Awaited,
    /// What the rank itself says that it waits for.
    pub(crate) words: String,
}

/// What a wait is for.
#[derive(Debug)]
pub(crate) enum Awaited {
    Collective(Call),
    /// Messages: the peer, and the message in words, of each that is listed.
    Messages(Vec<(u64, String)>),
    /// A call of all ranks that is no collective, such as a split.
    Meeting(String),
    Other,
}

/// A collective of a rank.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) number: u64,
    /// "barrier #4".
    pub(crate) name: String,
    /// With its counts.
    pub(crate) text: String,
    /// Equal where two ranks have called the same.
    pub(crate) key: String,
}

/// All that is known.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) processes: Vec<Process>,
    pub(crate) ranks: Vec<Rank>,
    /// What became of processes without a page, by host and number.
    pub(crate) fates: HashMap<(String, u64), String>,
    /// Processes without ranks beside those of a job: host, number, parent, name.
    pub(crate) beside: Vec<(String, u64, u64, String)>,
    /// Processes of this user that cannot be looked at: host, number, name.
    pub(crate) closed: Vec<(String, u64, String)>,
    /// Boot, namespace, number and start of each process: hosts that have one `/proc` show the same ones, and processes
    /// of two containers may have one number.
    seen: HashSet<(String, String, u64, u64)>,
}

impl World {
    /// Adds what a document says.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn add(&mut self, document: &Value) -> Result<(), String> {
        if document["rsccl_status"].as_u64() != Some(DOCUMENT_VERSION) {
            return Err("it is no document of `rsccl status --json`, or of another version".to_owned());
        }
        let host = text(&document["host"]);
        for process in list(&document["processes"]) {
            self.add_process(&host, process);
        }
        for missing in list(&document["missing"]) {
            self.fates.insert((host.clone(), number(&missing["pid"])), text(&missing["fate"]));
        }
        for beside in list(&document["beside"]) {
            let (pid, parent) = (number(&beside["pid"]), number(&beside["parent"]));
            self.beside.push((host.clone(), pid, parent, text(&beside["command"])));
        }
        for closed in list(&document["not_dumpable"]) {
            self.closed.push((host.clone(), number(&closed["pid"]), text(&closed["command"])));
        }
        Ok(())
    }

    fn add_process(&mut self, host: &str, process: &Value) {
        let identity = (
            text(&process["boot"]),
            text(&process["pid_namespace"]),
            number(&process["pid"]),
            number(&process["started"]),
        );
        if !identity.0.is_empty() && !self.seen.insert(identity) {
            return;
        }
        let place = self.processes.len();
        let own = text(&process["host"]);
        self.processes.push(Process {
            host: if own.is_empty() { host.to_owned() } else { own },
            pid: number(&process["pid"]),
            parent: number(&process["parent"]),
            command: text(&process["command"]),
            state: text(&process["state"]),
            hidden: number(&process["hidden_ranks"]),
            problem: process["problem"].as_str().map(printable),
        });
        self.ranks.extend(list(&process["ranks"]).iter().filter_map(|rank| read_rank(place, rank)));
    }

    /// Ranks by communicator and number.
    pub(crate) fn by_place(&self) -> BTreeMap<(&str, u64), usize> {
        let places = self.ranks.iter().enumerate();
        places.map(|(place, rank)| ((&*rank.communicator, rank.rank), place)).collect()
    }
}

/// What is wrong with a document of a file: somebody may have written, or cut, it.
pub(crate) fn check(document: &Value) -> Result<(), String> {
    World::default().add(document)?;
    for process in list(&document["processes"]) {
        if let Some(rank) = list(&process["ranks"]).iter().find(|rank| read_rank(0, rank).is_none()) {
            let pid = number(&process["pid"]);
            let (own, size) = (&rank["rank"], &rank["size"]);
            return Err(format!("process {pid} has a rank {own} of {size}, which no rank is: the file is damaged"));
        }
    }
    Ok(())
}

/// `None` for what no rank can be.
fn read_rank(process: usize, rank: &Value) -> Option<Rank> {
    let (own, size) = (number(&rank["rank"]), number(&rank["size"]));
    if own >= size || size > MOST_RANKS {
        return None;
    }
    let pair = |pair: &Value| Some((pair[0].as_u64()?, pair[1].as_u64()?));
    let far = |far: &Value| Some((far[0].as_u64()?, far[1].as_u64()?, text(&far[2])));
    let memory = |(kind, bytes): (&String, &Value)| (printable(kind), number(bytes));
    Some(Rank {
        process,
        communicator: text(&rank["communicator"]),
        rank: own,
        size,
        name: text(&rank["name"]),
        state: text(&rank["state"]),
        origin: text(&rank["origin"]),
        parent: text(&rank["parent"]),
        unique_id: text(&rank["unique_id"]),
        phase: text(&rank["phase"]),
        age: rank["age_s"].as_f64().unwrap_or(0.0),
        hosts: number(&rank["hosts"]),
        begun: number(&rank["begun"]),
        is_in_call: rank["in_call"].as_bool().unwrap_or(false),
        thread: number(&rank["thread"]),
        way: text(&rank["way"]),
        error: rank["error"].as_str().map(printable),
        is_torn: rank["torn"].as_bool().unwrap_or(false),
        wait: read_wait(&rank["wait"]),
        peers: list(&rank["processes"]).iter().filter_map(pair).collect(),
        elsewhere: list(&rank["elsewhere"]).iter().filter_map(far).collect(),
        memory: rank["memory"].as_object().into_iter().flatten().map(memory).collect(),
        calls: list(&rank["calls"])
            .iter()
            .map(|one| (text(&one["way"]), number(&one["calls"]), number(&one["bytes"])))
            .collect(),
        connections: list(&rank["connections"]).iter().map(read_connection).collect(),
        latest: list(&rank["latest"]).iter().map(read_call).collect(),
    })
}

fn read_connection(one: &Value) -> Connection {
    Connection {
        peer: one["peer"].as_u64(),
        transport: text(&one["transport"]),
        sent: (number(&one["sent"]), number(&one["sent_bytes"])),
        received: (number(&one["received"]), number(&one["received_bytes"])),
    }
}

fn read_wait(wait: &Value) -> Option<Wait> {
    let seconds = wait["waited_s"].as_f64()?;
    let message = |message: &Value| (number(&message["peer"]), text(&message["text"]));
    let what = match wait["kind"].as_str()? {
        "collective" => Awaited::Collective(read_call(&wait["call"])),
        "messages" => Awaited::Messages(list(&wait["messages"]).iter().map(message).collect()),
        "meeting" => Awaited::Meeting(text(&wait["meeting"])),
        _ => Awaited::Other,
    };
    Some(Wait { seconds, what, words: text(&wait["words"]) })
}

fn read_call(call: &Value) -> Call {
    let (name, words, key) = (text(&call["name"]), text(&call["text"]), text(&call["key"]));
    Call { number: number(&call["number"]), name, text: words, key }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn text(value: &Value) -> String {
    value.as_str().map(printable).unwrap_or_default()
}

/// Without what moves a terminal's cursor.
fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// Of a communicator: more than any world has.
const MOST_RANKS: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_process_that_two_documents_have_is_one_and_processes_of_two_containers_are_two() {
        let mut world = World::default();
        for (space, known) in [("pid:[1]", 1), ("pid:[1]", 1), ("pid:[2]", 2)] {
            let process = json!({ "boot": "b", "pid_namespace": space, "pid": 7, "started": 5, "ranks": [] });
            let document = json!({ "rsccl_status": DOCUMENT_VERSION, "host": "h", "processes": [process] });
            world.add(&document).unwrap();
            assert_eq!(world.processes.len(), known, "{space}");
        }
    }
}
