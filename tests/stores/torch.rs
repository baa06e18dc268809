//! `AgentStore` beside PyTorch itself, where there is one: `RSCCL_TEST_TORCH` names a Python that has torch.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use rsccl::error::Kind;
use rsccl::internals::bootstrap::Root;
use rsccl::store::{MAX_VALUE_BYTES, Store, share_id};
use rsccl::types::{Rank, World};

use super::agent::REQUESTS;
use super::agent_server::{AgentServer, Manner, PING};
use crate::{open, options, shortly, soon};

/// `torch_peer.py` with these arguments; `None` if no Python is named.
fn torch(arguments: &[&str]) -> Option<Command> {
    #![expect(clippy::disallowed_methods, reason = "a test's own knob")]
    let Some(python) = std::env::var_os("RSCCL_TEST_TORCH") else {
        writeln!(std::io::stderr(), "skipped: no torch: RSCCL_TEST_TORCH names no Python that has it")
            .expect("standard error can be written");
        return None;
    };
    let mut command = Command::new(python);
    command.args(["-W", "ignore", concat!(env!("CARGO_MANIFEST_DIR"), "/stores/torch_peer.py")]).args(arguments);
    Some(command)
}

/// A process that is killed when this is dropped.
struct Torch(Child);

impl Drop for Torch {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn torch_sends_the_same_requests() {
    let server = AgentServer::start(Manner::Libuv);
    let Some(mut client) = torch(&["client", &server.address().port().to_string()]) else { return };
    assert!(client.status().unwrap().success());
    let seen: Vec<_> = server.seen().into_iter().filter(|request| request[0] != PING).collect();
    assert_eq!(seen, REQUESTS);
}

#[test]
fn torch_serves_this_client() {
    for kind in ["libuv", "older"] {
        let Some(mut command) = torch(&["serve", kind]) else { return };
        let mut torch = Torch(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let mut asked: ChildStdin = torch.0.stdin.take().unwrap();
        let mut answers = BufReader::new(torch.0.stdout.take().unwrap()).lines();
        let port: u16 = answers.next().unwrap().unwrap().parse().unwrap();
        let place = ([127, 0, 0, 1], port).into();
        let store = open(place);
        assert_eq!(store.get("from torch", &soon()).unwrap(), b"a value of torch", "{kind}");
        assert_eq!(store.add("n", -7, &soon()).unwrap(), -2);
        assert_eq!(store.get("n", &soon()).unwrap(), b"-2");
        store.set("from rsccl", b"a value of rsccl", &soon()).unwrap();
        for (key, value) in [("from rsccl", "a value of rsccl"), ("n", "-2")] {
            writeln!(asked, "{key}").unwrap();
            assert_eq!(answers.next().unwrap().unwrap(), value);
        }
        store.set("big\0é", &vec![7; MAX_VALUE_BYTES], &soon()).unwrap();
        assert_eq!(store.get("big\0é", &soon()).unwrap(), vec![7; MAX_VALUE_BYTES]);
        store.set("empty", b"", &soon()).unwrap();
        assert_eq!((0..100).find_map(|_| store.peek("empty", &soon()).unwrap()), Some(Vec::new()));
        assert_eq!(store.peek("none", &soon()).unwrap(), None);
        assert_eq!(store.get("none", &shortly()).unwrap_err().kind(), Kind::Timeout);
        assert_eq!(store.add("empty", 1, &soon()).unwrap_err().kind(), Kind::Remote);
        store.wait(&["n"; 1024], &soon()).unwrap();
        assert!(store.delete("empty", &soon()).unwrap() && !store.delete("empty", &soon()).unwrap());
        let (id, _root) = Root::serve(&options()).unwrap();
        let ids: Vec<_> = std::thread::scope(|scope| {
            let share = |rank| {
                let members = World { rank: Rank::new(rank), size: 3 };
                share_id(&open(place), "id", members, || Ok(id), &soon()).unwrap()
            };
            let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || share(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(ids, [id; 3]);
        assert_eq!(store.peek("id", &soon()).unwrap(), None);
        drop(torch);
        let gone = store.add("n", 1, &shortly()).unwrap_err();
        assert!(matches!(gone.kind(), Kind::Remote | Kind::Timeout), "{gone}");
    }
}
