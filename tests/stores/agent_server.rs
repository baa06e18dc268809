//! A server that speaks the protocol of PyTorch's `TCPStore`, as torchrun's agent does, and can be told to misbehave.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rsccl::internals::sys::poller::{Interest, wait_any};
use rsccl::internals::sys::thread::spawn;

pub(crate) const VALIDATE: u8 = 0;
pub(crate) const SET: u8 = 1;
pub(crate) const GET: u8 = 3;
pub(crate) const ADD: u8 = 4;
pub(crate) const WAIT: u8 = 6;
pub(crate) const DELETE: u8 = 8;
pub(crate) const PING: u8 = 13;

/// The two servers of torch differ where a request is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Of `use_libuv=True`: sends an empty value for a missing key.
    Libuv,
    /// Of `use_libuv=False`: closes the connection instead.
    Older,
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    Answer,
    Say(Vec<u8>),
    Close,
    Silence,
}

type Script = Box<dyn FnMut(&[u8]) -> Act + Send>;

/// A server on a thread; it ends when this is dropped.
pub(crate) struct AgentServer {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl AgentServer {
    pub(crate) fn start(manner: Manner) -> AgentServer {
        AgentServer::scripted("127.0.0.1:0".parse().unwrap(), manner, |_| Act::Answer)
    }

    /// A server that asks `script` what to do with each request, which it gets as it came.
    pub(crate) fn scripted(
        place: SocketAddr,
        manner: Manner,
        script: impl FnMut(&[u8]) -> Act + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind(place).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = channel();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let serving = Serving {
            listener,
            manner,
            script: Box::new(script),
            seen: seen.clone(),
            values: HashMap::new(),
            clients: Vec::new(),
        };
        let thread = Some(spawn("agent", move || serving.run(&stopped)).unwrap());
        AgentServer { address, seen, stop: Some(stop), thread }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests so far, as they came.
    pub(crate) fn seen(&self) -> Vec<Vec<u8>> {
        self.seen.lock().unwrap().clone()
    }

    /// How many connections have begun.
    pub(crate) fn connections(&self) -> usize {
        self.seen().iter().filter(|request| request[0] == VALIDATE).count()
    }
}

impl Drop for AgentServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Serving {
    listener: TcpListener,
    manner: Manner,
    script: Script,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    values: HashMap<Vec<u8>, Vec<u8>>,
    clients: Vec<Client>,
}

struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    is_valid: bool,
    waits_for: Vec<Vec<u8>>,
    is_closed: bool,
    /// The client has closed its end; what it sent before is still served.
    has_ended: bool,
}

impl Serving {
    fn run(mut self, stopped: &Receiver<()>) {
        while stopped.try_recv() == Err(TryRecvError::Empty) {
            let listens = (self.listener.as_fd(), Interest::Read);
            let reads = self.clients.iter().map(|client| (client.stream.as_fd(), Interest::Read));
            wait_any(&reads.chain([listens]).collect::<Vec<_>>(), Duration::from_millis(20)).unwrap();
            while let Ok((stream, _)) = self.listener.accept() {
                stream.set_nodelay(true).unwrap();
                self.clients.push(Client {
                    stream,
                    input: Vec::new(),
                    is_valid: false,
                    waits_for: Vec::new(),
                    is_closed: false,
                    has_ended: false,
                });
            }
            for mut client in std::mem::take(&mut self.clients) {
                client.read();
                while let Some(size) = size_of(&client.input).filter(|_| !client.is_closed) {
                    let request: Vec<u8> = client.input.drain(..size).collect();
                    self.serve(&mut client, &request);
                }
                if !client.is_closed && !client.has_ended {
                    self.clients.push(client);
                }
            }
            for client in &mut self.clients {
                if !client.waits_for.is_empty() && client.waits_for.iter().all(|key| self.values.contains_key(key)) {
                    client.waits_for.clear();
                    client.say(&[0]);
                }
            }
        }
    }

    fn serve(&mut self, client: &mut Client, request: &[u8]) {
        self.seen.lock().unwrap().push(request.to_vec());
        let act = (self.script)(request);
        match &act {
            Act::Answer => self.answer(client, request),
            Act::Say(bytes) => client.say(bytes),
            Act::Close | Act::Silence => {}
        }
        client.is_closed |= act == Act::Close;
    }

    fn answer(&mut self, client: &mut Client, request: &[u8]) {
        let (command, mut rest) = (request[0], &request[1..]);
        if command == VALIDATE {
            client.is_valid = rest == 0x3C85_F7CE_u32.to_le_bytes();
        }
        if !client.is_valid {
            client.is_closed = true;
            return;
        }
        match command {
            VALIDATE => {}
            PING => client.say(rest),
            SET => {
                let key = text(&mut rest);
                self.values.insert(key, text(&mut rest));
            }
            GET => match (self.values.get(&text(&mut rest)), self.manner) {
                (Some(value), _) => client.say(&[&(value.len() as u64).to_le_bytes()[..], value].concat()),
                (None, Manner::Libuv) => client.say(&[0; 8]),
                (None, Manner::Older) => client.is_closed = true,
            },
            ADD => {
                let value = self.values.entry(text(&mut rest)).or_insert(b"0".to_vec());
                let Ok(old) = String::from_utf8_lossy(value).parse::<i64>() else {
                    client.is_closed = true;
                    return;
                };
                let sum = old.wrapping_add(i64::from_le_bytes(rest.try_into().unwrap()));
                *value = sum.to_string().into_bytes();
                client.say(&sum.to_le_bytes());
            }
            WAIT => {
                let count = number(&mut rest);
                client.waits_for = (0..count).map(|_| text(&mut rest)).collect();
            }
            DELETE => client.say(&i64::from(self.values.remove(&text(&mut rest)).is_some()).to_le_bytes()),
            other => panic!("a client of this test sent command {other}"),
        }
    }
}

impl Client {
    fn read(&mut self) {
        self.stream.set_nonblocking(true).unwrap();
        let mut bytes = [0; 1 << 16];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => break self.has_ended = true,
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => break self.is_closed = true,
            }
        }
    }

    /// Sends `bytes`, the first ones one by one, so that the client sees its answers in pieces.
    fn say(&mut self, bytes: &[u8]) {
        self.stream.set_nonblocking(false).unwrap();
        let (slow, fast) = bytes.split_at(bytes.len().min(9));
        let sent = slow.chunks(1).try_for_each(|byte| self.stream.write_all(byte));
        self.is_closed |= sent.and_then(|()| self.stream.write_all(fast)).is_err();
    }
}

/// The bytes of the first request in `input`, if it is complete. What is no request at all is one of its own.
fn size_of(input: &[u8]) -> Option<usize> {
    let length = |at: usize| {
        let bytes = input.get(at..at + 8)?;
        Some(at + 8 + usize::try_from(u64::from_le_bytes(bytes.try_into().unwrap())).unwrap())
    };
    let size = match *input.first()? {
        VALIDATE | PING => 5,
        SET => length(length(1)?)?,
        GET | DELETE => length(1)?,
        ADD => length(1)? + 8,
        WAIT => {
            let count = u64::from_le_bytes(input.get(1..9)?.try_into().unwrap());
            (0..count).try_fold(9, |at, _| length(at))?
        }
        _ => input.len(),
    };
    (input.len() >= size).then_some(size)
}

fn number(rest: &mut &[u8]) -> u64 {
    let (number, after) = rest.split_at(8);
    *rest = after;
    u64::from_le_bytes(number.try_into().unwrap())
}

fn text(rest: &mut &[u8]) -> Vec<u8> {
    let length = usize::try_from(number(rest)).unwrap();
    let (text, after) = rest.split_at(length);
    *rest = after;
    text.to_vec()
}
