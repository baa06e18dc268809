//! A rank in a process of its own: it does what is written to its standard input, one command a line, and answers on
//! its standard output. The starter's side is `ranks.rs`.
//!
//! ```text
//! id                     makes a unique id and serves its root            → its bytes in hex
//! init ID RANK WORLD     joins                                            → rank and size
//! from_env               joins as the launcher's variables say            → rank and size
//! meet PLACE KEY RANK WORLD MS WHAT
//!                        joins by an id that travels through a store, file:FOLDER or tcp:ADDRESS, within so many
//!                        milliseconds; WHAT is `well`, `without` (rank 0 cannot make an id) or NAME=VALUE, a variable
//!                                                                         → rank and size
//! device NUMBER          `call` and `repeat` work in the memory of this device from now on, by a stream
//! gpu NUMBER             the same, of a GPU
//! host                   they work on the host again
//! device_ring COUNT      in the memory of the device: a plain send to the right neighbour, then a recv from the left one; a send whose
//!                        receiver waits in another call
//! cases SEED LARGEST     a sample of the matrix in the memory of the device, with so many elements at most
//! device_crowd ID FIRST RANKS WORLD DEVICES SEED
//!                        joins as so many ranks from FIRST on, each a thread with a stream of one of the devices, and runs the sample
//! gpu_crowd ID FIRST RANKS WORLD GPU SEED
//!                        the same, all with streams of this GPU
//! gpus_crowd ID FIRST RANKS WORLD GPUS SEED
//!                        the same, each with a stream of one of so many GPUs
//! windows COUNT          all calls in windows, checked                    → whether they are reached directly
//! own_windows KIND COUNT  the same in memory that the process has allocated itself: `own_memory.rs`
//! register_own KIND COUNT a window of such memory, and a sum in it       → as of `windows`, and what failed before
//! replay GPU COUNT       a graph that replays an all_reduce on this GPU until it fails: `replay.rs`; says `turn` as below
//! window_repeat COUNT    all_reduce in windows until it fails; says `turn` as below; the windows are given back without peers
//! window_at OFFSET COUNT an all_reduce in a window from there on
//! window_of COUNT        registers a window of so many elements           → as of `windows`
//! window_inside COUNT    the same, of memory that cannot leave the process
//! window_crowd ID FIRST RANKS WORLD GPU COUNT
//!                        as gpu_crowd, but runs `windows`
//! call NAME COUNT        a collective of f32 sums, checked bit by bit
//! repeat NAME COUNT      the same until it fails; says `turn` after each of the first turns
//! send COUNT PEER        a message
//! recv COUNT PEER
//! ring COUNT             a plain send to the right neighbour, then a recv from the left one
//! request COUNT PEER     a message that is begun in a scope and waited for there
//! post COUNT PEER        begins the receive of a message, of a communicator whose requests can be stored
//! collect                waits for it
//! registered COUNT       all_reduce in registered buffers until it fails; says `turn` as above
//! placed COUNT           the same in vectors that are registered where they lie
//! inside NAME COUNT      `repeat` in registered buffers, the same ones each time; `lying`: in vectors that are registered where they lie
//! unchanged              checks that the buffers of the last failure of `registered` or `placed` still hold what their owner wrote after it
//! threads RANKS COUNT    a world of threads in this process, of which one leaves early
//! crowd ID FIRST RANKS WORLD SEED STEPS
//!                        joins as so many ranks from FIRST on, each a thread, and runs a random program
//! random SEED STEPS      a random program, by which the communicator ends
//! suffer SEED STEPS      the same, whatever its results; how it ended
//! scribble SEED WHERE    from another thread, from now on: random words in all memory that ranks share, `anywhere` or where ranks
//!                        say what the others need to know (`said`)
//! split COLOR            the child takes the place of the communicator
//! local                  the same, of this host's ranks
//! spare COUNT            so many more descriptors can be opened from now on
//! placement              where the rank is
//! shrink RANK,RANK       the child of those that are left takes the place of the communicator
//! abort WORDS            from another thread: at once, whatever runs; has no answer
//! rounds KIND COUNT FOLDER  so many rounds of making, using and ending something: `rounds.rs`
//! many COUNT             makes so many children, of 2 ranks, each with a receive that goes on
//! end_many               lets all of these end                            → how many there were
//! burden                 threads of the library, open files, resident KiB, sleeps of these threads
//! held                   what this process holds: open files, threads, mappings, bytes of the heap
//! idle                   forks a child that does nothing
//! workers COUNT FOLDER   forks so many children, which make a communicator that meets in the folder; waits for them
//! workers_between COUNT FOLDER
//!                        the same; this process has a communicator of its own before each fork
//! workers_tcp COUNT FOLDER
//!                        the same; they meet in a store that this process serves
//! server COUNT FOLDER    forks a child that does the same, and has communicators of its own
//! inherit FOLDER         forks a child that uses what it has inherited, drops it and ends
//! beside COMMAND         one of `idle`, `clone` (a bare one) and `workers` from another thread, at once, whatever runs; says `beside ok` or `beside error TEXT`
//! finalize               says goodbye
//! drop                   drops all communicators and buffers
//! panic                  drops all communicators while it unwinds
//! ```
//! When it has started it says `ready`. Before a command it says `begin`, after it `ok TEXT` or `error KIND PEER TEXT`;
//! each such line follows a mark, since the test runner writes to the same stream.

mod forked;
mod many;
#[cfg(feature = "cuda")]
mod replay;
mod rounds;
pub mod window_calls;

use std::collections::VecDeque;
use std::io::{BufRead, Write};
use std::ops::DerefMut;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use rsccl::comm::{AbortHandle, DeviceStream, OwnedRequest, Registered, Registrable};
use rsccl::error::Kind;
use rsccl::internals::sys::{clock, limits, poller, thread};
use rsccl::store::{AbortFlag, FileStore, Store, StoreConfig, TcpStore, Wait, share_id};
use rsccl::types::{Rank, World};
use rsccl::{Buffer, Communicator, Config, DataType, Error, ReduceOp, Result, UniqueId};

use crate::case::{Case, Origin, Placed, every_program};
use crate::far::Far;
use crate::random;
use crate::verify::{Op, Placement, Program, RankBuffers, Shape, Tables, perform};

/// What stands before each line that is meant for the starter.
pub const MARK: &str = "@@ ";
/// Set where the test program runs as a worker.
pub const VARIABLE: &str = "FAULTS_WORKER";

/// Whether this process is a worker.
pub fn is_wanted() -> bool {
    #![expect(clippy::disallowed_methods, reason = "the role of a test's process is no configuration of the library")]
    std::env::var_os(VARIABLE).is_some()
}

/// Serves commands until there are no more.
pub fn run() {
    let mut worker = Worker::default();
    let (sender, commands) = mpsc::channel();
    let abort = Arc::clone(&worker.abort);
    // The thread ends with the process: nothing wakes it from its read.
    let reader = thread::spawn("commands", move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            match line.split_once(' ') {
                Some(("abort", reason)) => {
                    let handle = abort.lock().unwrap_or_else(PoisonError::into_inner);
                    handle.as_ref().expect("there is a communicator").abort(reason);
                }
                Some(("beside", command)) => match fork_beside(command) {
                    Ok(()) => say("beside ok"),
                    Err(error) => say(&format!("beside error {}", error.to_string().replace('\n', " "))),
                },
                _ => sender.send(line).expect("the worker takes commands until there are no more"),
            }
        }
    });
    drop(reader.expect("a thread"));
    // Makes now what the first communicator of a process makes once, so that later counts of files and threads are
    // equal.
    rsccl::local::run(1, |_| Ok(())).expect("a world of one");
    say("ready");
    for line in commands {
        say("begin");
        match worker.serve(&line) {
            Ok(text) => say(&format!("ok {text}")),
            Err(error) => {
                let peer = error.peer().map_or("-".to_owned(), |peer| peer.to_string());
                say(&format!("error {:?} {peer} {}", error.kind(), error.to_string().replace('\n', " ")));
            }
        }
    }
}

#[derive(Default)]
struct Worker {
    comms: Vec<Communicator>,
    abort: Arc<Mutex<Option<AbortHandle>>>,
    calls: u64,
    /// The buffers of the last `registered`.
    registered: Option<(Buffer<f32>, Buffer<f32>)>,
    /// Those of the last `placed`.
    placed: Option<[Registered<Vec<f32>>; 2]>,
    /// Where `call` works, if not on the host.
    stream: Option<DeviceStream>,
    /// The receives that `post` has begun, in their order, and their communicator.
    posted: VecDeque<OwnedRequest<Vec<f32>>>,
    many: many::Many,
}

impl Worker {
    fn serve(&mut self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["id"] => Ok(hex(Communicator::unique_id(&Config::default())?.as_bytes())),
            ["init", id, rank, world] => {
                let id = UniqueId::from_bytes(&unhex(id))?;
                let comm = Communicator::init(&id, number(rank), number(world), &Config::default())?;
                self.adopt_made(comm)
            }
            ["from_env"] => Communicator::from_env().map(|comm| self.adopt(comm)),
            ["meet", place, key, rank, world, milliseconds, what] => {
                let config = Config::default().with_init_timeout(Duration::from_millis(number(milliseconds)));
                let config = match what.split_once('=') {
                    Some((name, value)) => config.with_variable(name, value)?,
                    None => config,
                };
                let comm = meet(place, key, (number(rank), number(world)), &config, what != "without")?;
                self.adopt_made(comm)
            }
            ["device", device] => {
                self.stream = Some(stream_of(number(device))?);
                Ok(String::new())
            }
            ["gpu", gpu] => {
                self.stream = Some(DeviceStream::new(number(gpu))?);
                Ok(String::new())
            }
            ["host"] => {
                self.stream = None;
                Ok(String::new())
            }
            ["device_ring", count] => {
                let stream = self.stream.as_ref().expect("`device` comes first");
                device_ring(self.comm(), stream, number(count)).map(|()| String::new())
            }
            ["device_pass", count, peer] => {
                let stream = self.stream.as_ref().expect("`device` comes first");
                device_pass(self.comm(), stream, (number(count), number(peer))).map(|()| String::new())
            }
            ["cases", seed, largest] => {
                let stream = self.stream.clone().expect("`device` comes first");
                sample(self.comm(), &Placed::Device(stream), (number(seed), number(largest)))?;
                Ok(String::new())
            }
            ["device_crowd", id, first, ranks, world, devices, seed] => {
                let place = |rank: u32| stream_of(rank % number::<u32>(devices)).map(Placed::Device);
                crowd_on(&UniqueId::from_bytes(&unhex(id))?, [first, ranks, world].map(number), (seed, LARGEST), place)
            }
            ["gpu_crowd", id, first, ranks, world, gpu, seed] => {
                let place = |_| DeviceStream::new(number(gpu)).map(Placed::Device);
                crowd_on(&UniqueId::from_bytes(&unhex(id))?, [first, ranks, world].map(number), (seed, 1_003), place)
            }
            ["gpus_crowd", id, first, ranks, world, gpus, seed] => {
                let place = |rank: u32| DeviceStream::new(rank % number::<u32>(gpus)).map(Placed::Device);
                crowd_on(&UniqueId::from_bytes(&unhex(id))?, [first, ranks, world].map(number), (seed, 1_003), place)
            }
            ["window_crowd", id, first, ranks, world, gpu, count] => {
                let (id, numbers) = (UniqueId::from_bytes(&unhex(id))?, [first, ranks, world, count].map(number));
                window_calls::crowd(&id, numbers, |_| DeviceStream::new(number(gpu))).map(|()| String::new())
            }
            [command @ ("windows" | "window_repeat" | "window_at" | "window_of" | "window_inside"), .., count] => {
                let stream = self.stream.as_ref().expect("`device` comes first");
                let (comm, count) = (self.comm(), number(count));
                match command {
                    "windows" => window_calls::all_calls(comm, stream, count).map(|direct| direct.to_string()),
                    "window_repeat" => window_calls::repeat(comm, stream, count).map(|()| String::new()),
                    "window_at" => window_calls::sum_at(comm, stream, number(words[1]), count).map(|()| String::new()),
                    _ => window_calls::register(comm, stream, count, command == "window_of").map(|is| is.to_string()),
                }
            }
            #[cfg(feature = "cuda")]
            ["own_windows", kind, count] => {
                let stream = self.stream.as_ref().expect("`device` comes first");
                window_calls::all_calls_in_own(self.comm(), stream, (kind, number(count))).map(|is| is.to_string())
            }
            #[cfg(feature = "cuda")]
            ["register_own", kind, count] => {
                let stream = self.stream.as_ref().expect("`gpu` comes first");
                window_calls::register_own(self.comm(), stream, (kind, number(count)))
            }
            #[cfg(feature = "cuda")]
            ["replay", gpu, count] => {
                replay::until_it_fails(self.comm(), number(gpu), number(count)).map(|()| String::new())
            }
            ["call", name, count] => self.call(name, number(count)).map(|()| String::new()),
            ["repeat", name, count] => {
                for turn in 0u32.. {
                    self.call(name, number(count))?;
                    if turn < SHOWN_TURNS {
                        say("turn");
                    }
                }
                Ok(String::new())
            }
            [word @ ("inside" | "lying"), name, count] => {
                let origin = if word == "lying" { Origin::Vector } else { Origin::Buffer };
                self.inside(&origin, program(name), number(count)).map(|()| String::new())
            }
            ["send", count, peer] => {
                self.comm().send(&vec![1.5f32; number(count)], number(peer)).map(|()| String::new())
            }
            ["recv", count, peer] => {
                let mut buffer = vec![0f32; number(count)];
                self.comm().recv(&mut buffer, number(peer))?;
                checked(buffer.iter().all(|value| *value == 1.5), "a message")
            }
            ["ring", count] => {
                let (rank, size) = (self.comm().rank(), self.comm().size());
                self.comm().send(&vec![1.5f32; number(count)], (rank + 1) % size)?;
                let mut buffer = vec![0f32; number(count)];
                self.comm().recv(&mut buffer, (rank + size - 1) % size)?;
                checked(buffer.iter().all(|value| *value == 1.5), "a ring of messages")
            }
            ["request", count, peer] => {
                let mut buffer = vec![0f32; number(count)];
                self.comm().scope(|scope| scope.recv(&mut buffer, number(peer))?.wait())?;
                checked(buffer.iter().all(|value| *value == 1.5), "a request")
            }
            [form @ ("round" | "started"), "all_reduce", count] => {
                let buffer = vec![1.5f32; number(count)];
                let mut call =
                    self.comm().prepare(buffer, |calls, sum| calls.all_reduce_in_place(sum, ReduceOp::Sum))?;
                match form {
                    "round" => call.run()?,
                    _ => call.start().and_then(|()| call.wait())?,
                }
                let expected = (0..self.comm().size()).map(|_| 1.5).sum::<f32>();
                checked(call.buffers()?.iter().all(|value| *value == expected), "a round")
            }
            ["post", count, peer] => {
                let receive =
                    self.comm().start(vec![0f32; number(count)], |calls, buffer| calls.recv(buffer, number(peer)));
                self.posted.push_back(receive?);
                Ok(String::new())
            }
            ["collect"] => {
                let buffer = self.posted.pop_front().expect("`post` comes first").wait()?;
                checked(buffer.iter().all(|value| *value == 1.5), "a posted receive")
            }
            ["registered", count] => self.registered(number(count)).map(|()| String::new()),
            ["placed", count] => self.placed(number(count)).map(|()| String::new()),
            ["unchanged"] => {
                let slices = |(send, recv): (&[f32], &[f32])| send.iter().chain(recv).all(|value| *value == OURS);
                let fine = match (&self.registered, &self.placed) {
                    (Some((send, recv)), None) => slices((send, recv)),
                    (None, Some([send, recv])) => slices((send, recv)),
                    _ => panic!("either `registered` or `placed` has failed"),
                };
                checked(fine, "buffers after a call has returned")
            }
            ["threads", ranks, count] => threads(number(ranks), number(count)),
            ["crowd", id, first, ranks, world, seed, steps] => {
                let id = UniqueId::from_bytes(&unhex(id))?;
                crowd(&id, (number(first), number(ranks), number(world)), script(seed, steps, true))
            }
            ["random", seed, steps] => {
                let comm = self.take();
                random::run(comm, script(seed, steps, true)).map(|()| String::new()).map_err(Error::internal)
            }
            ["suffer", seed, steps] => {
                let comm = self.take();
                Ok(random::run(comm, script(seed, steps, false)).err().unwrap_or_default().replace('\n', " "))
            }
            ["scribble", seed, place] => {
                let (seed, anywhere) = (number(seed), place == "anywhere");
                // It ends with the process.
                drop(thread::spawn("scribbler", move || scribble(seed, anywhere))?);
                Ok(String::new())
            }
            ["split", color] => {
                let child = self.comm().split(Some(number(color)), 0)?.expect("a color was passed");
                self.adopt_made(child)
            }
            ["local"] => {
                let here = self.comm().on_my_host()?;
                self.adopt_made(here)
            }
            ["rounds", kind, count, folder] => {
                let stream = self.stream.as_ref().filter(|_| kind == "window");
                rounds::run(self.comm(), kind, number(count), folder.as_ref(), stream).map(|()| String::new())
            }
            ["held"] => Ok(rounds::held()),
            ["many", count] => {
                let comm = self.comms.last().expect("a communicator");
                self.many.open(comm, number(count)).map(|()| String::new())
            }
            ["end_many"] => self.many.end().map(|count| count.to_string()),
            ["burden"] => Ok(many::burden()),
            ["workers", count, folder] => {
                forked::workers(number(count), folder.as_ref(), || Ok(())).map(|()| String::new())
            }
            ["workers_between", count, folder] => {
                let own = || rsccl::local::run(2, |comm| comm.barrier()).map(drop);
                forked::workers(number(count), folder.as_ref(), own).map(|()| String::new())
            }
            ["workers_tcp", count, folder] => {
                forked::workers_over_tcp(number(count), folder.as_ref()).map(|()| String::new())
            }
            ["server", count, folder] => forked::server(number(count), folder.as_ref()).map(|()| String::new()),
            ["inherit", folder] => {
                let mut children = forked::Children::new(folder.as_ref());
                children.fork(|| {
                    let refused = self.comms.iter().all(forked::is_refused);
                    self.clear();
                    checked(refused, "what a child does with its parent's communicator").map(drop)
                });
                children.reap().map(|()| String::new())
            }
            ["spare", count] => spare(number(count)).map(|()| String::new()),
            ["placement"] => self.comm().placement().map(|placement| placement.to_string()),
            ["shrink", excluded] => {
                let excluded: Vec<u32> = excluded.split(',').map(number).collect();
                let child = self.comm().shrink(&excluded)?;
                self.adopt_made(child)
            }
            ["finalize"] => self.comms.pop().expect("a communicator").finalize().map(|()| String::new()),
            ["drop"] => {
                self.clear();
                Ok(String::new())
            }
            ["panic"] => {
                let comms = std::mem::take(&mut self.comms);
                let unwound = catch_unwind(AssertUnwindSafe(move || {
                    let _comms = comms;
                    panic!("on purpose");
                }));
                checked(unwound.is_err(), "unwinding")
            }
            _ => panic!("no such command: {line}"),
        }
    }

    /// In the buffers of the last time, where they are as large: registered anew.
    fn registered(&mut self, count: usize) -> Result<()> {
        let (mut send, mut recv) = match self.registered.take().filter(|(send, _)| send.len() == count) {
            Some(again) => again,
            None => (Buffer::<f32>::new(count)?, Buffer::<f32>::new(count)?),
        };
        let result = self.sums((&mut send, &mut recv));
        // From now on no other rank may write into them.
        send.fill(OURS);
        recv.fill(OURS);
        self.registered = Some((send, recv));
        result
    }

    /// As `registered`. Vectors that are not as large go back to where they were, and are looked at there.
    fn placed(&mut self, count: usize) -> Result<()> {
        let [mut send, mut recv] = match self.placed.take() {
            Some(again) if again[0].len() == count => again,
            before => {
                let before = before.map(|both| both.map(Registered::into_inner)).unwrap_or_default();
                assert!(before.iter().flatten().all(|value| *value == OURS), "given back as it was");
                // Their elements begin and end inside pages.
                [(); 2].map(|()| Registered::new(vec![0.0; count]))
            }
        };
        assert_eq!((send.refusal(), recv.refusal()), (None, None));
        let result = self.sums((&mut send, &mut recv));
        send.fill(OURS);
        recv.fill(OURS);
        self.placed = Some([send, recv]);
        result
    }

    fn sums<M: Registrable + DerefMut<Target = [f32]>>(&self, (send, recv): (&mut M, &mut M)) -> Result<()> {
        self.comm().register(send)?;
        self.comm().register(recv)?;
        send.fill(0.5);
        let sum = 0.5 * self.comm().size() as f32;
        for turn in 0u32.. {
            self.comm().all_reduce(send, recv, ReduceOp::Sum)?;
            // Checked in the first turns only: a rank that is stopped or killed later is most likely inside the buffers
            // of other ranks.
            if turn < SHOWN_TURNS {
                assert!(recv.iter().all(|value| *value == sum));
                say("turn");
            }
        }
        Ok(())
    }

    fn inside(&self, origin: &Origin, program: Program, elements: usize) -> Result<()> {
        let comm = self.comm();
        let shape = shape(comm, program, elements)?;
        let allocate = |room: usize| origin.allocate(comm, room);
        let mut buffers = RankBuffers::within(&shape, Placement::OutOfPlace, 0, &allocate)?;
        for turn in 0u32.. {
            perform_checked(comm, &shape, &mut buffers, turn.into())?;
            if turn < SHOWN_TURNS {
                say("turn");
            }
        }
        Ok(())
    }

    fn clear(&mut self) {
        *self.abort.lock().unwrap_or_else(PoisonError::into_inner) = None;
        (self.registered, self.placed, self.stream) = (None, None, None);
        // Children before parents.
        while self.comms.pop().is_some() {}
    }

    fn adopt(&mut self, comm: Communicator) -> String {
        let text = format!("{} {}", comm.rank(), comm.size());
        *self.abort.lock().unwrap_or_else(PoisonError::into_inner) = Some(comm.abort_handle());
        self.comms.push(comm);
        self.calls = 0;
        text
    }

    /// [`Worker::adopt`] once `comm` is made, and its parent can be used again: where calls do not block, that is later.
    fn adopt_made(&mut self, comm: Communicator) -> Result<String> {
        let made = settled(&comm);
        self.comms.last().map_or(Ok(()), |parent| match settled(parent) {
            // A parent that has failed can be shrunk.
            Err(error) if made.is_err() => Err(Error::internal(format!("the parent has ended: {error}"))),
            _ => Ok(()),
        })?;
        made.map(|()| self.adopt(comm))
    }

    fn take(&mut self) -> Communicator {
        *self.abort.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.comms.pop().expect("there is a communicator")
    }

    fn comm(&self) -> &Communicator {
        self.comms.last().expect("there is a communicator")
    }

    fn call(&mut self, name: &str, elements: usize) -> Result<()> {
        self.calls += 1;
        let Some(stream) = &self.stream else {
            return checked_call(self.comm(), program(name), elements, self.calls);
        };
        let (program, comm) = (program(name), self.comm());
        let op = program.reduces().then_some(Op::Sum);
        let (root, placement) = (comm.size() - 1, Placement::OutOfPlace);
        let case = Case { program, data_type: DataType::F32, op, root, elements, placement, skew: 0 };
        checked_case(comm, &case, &Placed::Device(stream.clone()), self.calls)
    }
}

/// What another thread does at once.
fn fork_beside(command: &str) -> Result<()> {
    match command.split_whitespace().collect::<Vec<_>>()[..] {
        ["idle"] => {
            forked::idle();
            Ok(())
        }
        ["clone"] => {
            forked::bare_clone();
            Ok(())
        }
        ["workers", count, folder] => forked::workers(number(count), folder.as_ref(), || Ok(())),
        _ => panic!("no such command: {command}"),
    }
}

/// A stream of a device that the processor cannot reach.
fn stream_of(device: u32) -> Result<DeviceStream> {
    Far::add(device..device + 1);
    DeviceStream::new(device)
}

fn checked_case(comm: &Communicator, case: &Case, place: &Placed, seed: u64) -> Result<()> {
    let Some(wrong) = case.run(comm, place, seed)? else { return Ok(()) };
    // Why a launch ended early is known a little later than that it has ended.
    let until = clock::now() + LONGEST_LOOK;
    while clock::now() < until {
        if let Some(error) = comm.async_error() {
            return Err(error);
        }
        poller::pause(BETWEEN_LOOKS);
    }
    Err(Error::internal(format!("wrong: {case}: {wrong}")))
}

/// A message from and to `peer`, which does the same.
fn device_pass(comm: &Communicator, stream: &DeviceStream, (count, peer): (usize, u32)) -> Result<()> {
    let (mut mine, mut theirs) = (stream.alloc::<u32>(count)?, stream.alloc::<u32>(count)?);
    stream.upload(&vec![comm.rank(); count], mine.slice_mut(..))?;
    comm.on(stream).send_recv(mine.slice(..), peer, theirs.slice_mut(..), peer)?;
    let mut received = vec![u32::MAX; count];
    stream.download(theirs.slice(..), &mut received)?;
    checked(received.iter().all(|value| *value == peer), "a message").map(drop)
}

/// A ring of messages on devices in which every rank sends first; then rank 0 sends while the others wait in a barrier
/// on the host.
fn device_ring(comm: &Communicator, stream: &DeviceStream, count: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let (mut mine, mut theirs) = (stream.alloc::<u32>(count)?, stream.alloc::<u32>(count)?);
    stream.upload(&vec![rank; count], mine.slice_mut(..))?;
    let mut received = vec![u32::MAX; count];
    comm.on(stream).send(mine.slice(..), right)?;
    comm.on(stream).recv(theirs.slice_mut(..), left)?;
    stream.download(theirs.slice(..), &mut received)?;
    checked(received.iter().all(|value| *value == left), "a ring")?;
    // Rank 0 has sent nothing to the last rank so far, where there are three ranks or more.
    let last = size - 1;
    if rank == 0 {
        comm.on(stream).send(mine.slice(..), last)?;
    }
    comm.barrier()?;
    if rank == last {
        comm.on(stream).recv(theirs.slice_mut(..), 0)?;
        stream.download(theirs.slice(..), &mut received)?;
        checked(received.iter().all(|value| *value == 0), "a message that was sent early")?;
    }
    stream.synchronize()
}

/// Several ranks of a world, each a thread of this process with a stream of its own, run the sample.
fn crowd_on(
    id: &UniqueId,
    [first, ranks, world]: [u32; 3],
    (seed, largest): (&str, usize),
    place: impl Fn(u32) -> Result<Placed> + Sync,
) -> Result<String> {
    let rank = |rank: u32| {
        let comm = Communicator::init(id, rank, world, &Config::default())?;
        sample(&comm, &place(rank)?, (number(seed), largest))
    };
    let ended = thread::side_by_side("rank", (first..first + ranks).collect(), rank, || ())?;
    ended.into_iter().collect::<Result<()>>().map(|()| String::new())
}

/// Every program on a few types and sizes, in and out of place.
fn sample(comm: &Communicator, place: &Placed, (seed, largest): (u64, usize)) -> Result<()> {
    let cases =
        every_program(comm.size(), &[0, 1, 1_003, largest], &[(DataType::F32, Op::Sum), (DataType::U8, Op::Max)]);
    let mut numbered = (seed..).zip(&cases);
    numbered.try_for_each(|(seed, case)| checked_case(comm, case, place, seed))
}

/// A collective of f32 sums, checked bit by bit; `seed` chooses the inputs.
pub fn checked_call(comm: &Communicator, program: Program, elements: usize, seed: u64) -> Result<()> {
    let shape = shape(comm, program, elements)?;
    let mut buffers = RankBuffers::<f32>::new(&shape, Placement::OutOfPlace, 0)?;
    perform_checked(comm, &shape, &mut buffers, seed)
}

/// The last rank is the root.
fn shape(comm: &Communicator, program: Program, elements: usize) -> Result<Shape> {
    Shape::new(program, (comm.rank(), comm.size()), comm.size() - 1, elements)
}

fn perform_checked(comm: &Communicator, shape: &Shape, buffers: &mut RankBuffers<f32>, seed: u64) -> Result<()> {
    let op = shape.program.reduces().then_some(Op::Sum);
    let tables = Tables::<f32>::new(seed, comm.size(), op, shape.indices());
    buffers.fill(shape, &tables)?;
    let op = op.map(|op| op.reduce_op(DataType::F32, comm.rank()));
    perform(comm, shape, op, buffers)?;
    match buffers.check(shape, &tables)?.first {
        None => Ok(()),
        Some(wrong) => Err(Error::internal(format!("wrong: {wrong}"))),
    }
}

fn program(name: &str) -> Program {
    Program::from_name(name).unwrap_or_else(|| panic!("no such collective: {name}"))
}

/// A world that fails, inside this process: rank 1 leaves while the others wait for it.
fn threads(ranks: u32, count: usize) -> Result<String> {
    let ends = rsccl::local::run(ranks, |comm| {
        let (mut buffer, mut byte) = (vec![1f32; count], [0u8]);
        comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum)?;
        let to_right = rsccl::group(|group| {
            group.on(&comm).send(&[1u8], (comm.rank() + 1) % ranks)?;
            group.on(&comm).recv(&mut byte, (comm.rank() + ranks - 1) % ranks)
        });
        if comm.rank() == 1 {
            return to_right.map(|()| None);
        }
        // Others may be ahead and have failed already.
        Ok(to_right.and_then(|()| comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum)).err())
    })?;
    let named = ends.iter().flatten().filter(|error| error.peer() == Some(1)).count();
    checked(named == ends.len() - 1, "who left")
}

/// Joins by an id that travels through the store at `place`.
fn meet(place: &str, key: &str, (rank, size): (u32, u32), config: &Config, can: bool) -> Result<Communicator> {
    let wait = Wait::new(config.init_timeout, &AbortFlag::new());
    let store: Box<dyn Store> = match place.split_once(':').expect("kind:place") {
        ("file", folder) => Box::new(FileStore::open(folder, &wait)?),
        (_, address) => Box::new(TcpStore::connect(address, &StoreConfig::default())?),
    };
    let make = || match can {
        true => Communicator::unique_id(config),
        false => Err(Error::internal("no id on purpose")),
    };
    let id = share_id(&*store, key, World { rank: Rank::new(rank), size }, make, &wait)?;
    Communicator::init(&id, rank, size, config)
}

/// Several ranks of a world, each a thread of this process.
fn crowd(id: &UniqueId, (first, ranks, world): (u32, u32, u32), script: random::Script) -> Result<String> {
    let config = random::settings(Config::default(), script.seed)?;
    let rank = |rank: u32| {
        let played = Communicator::init(id, rank, world, &config).map(|comm| random::run(comm, script));
        played.unwrap_or_else(|error| Err(error.to_string()))
    };
    let played = thread::side_by_side("rank", (first..first + ranks).collect(), rank, || ())?;
    let wrong: Vec<String> = played.into_iter().filter_map(std::result::Result::err).collect();
    if wrong.is_empty() { Ok(String::new()) } else { Err(Error::internal(wrong.join("; "))) }
}

fn script(seed: &str, steps: &str, strict: bool) -> random::Script {
    random::Script { seed: number(seed), steps: number(steps), strict, tell: || say("turn") }
}

/// Writes random words where no correct rank writes: into the flags, labels, leases and data of this rank and of its
/// peers; or only into the data next to the labels, so that calls are not refused at once.
fn scribble(seed: u64, anywhere: bool) {
    let mut luck = random::Luck::new(&[seed]);
    let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").expect("a process's own memory");
    for turn in 0u64.. {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("a process's own maps");
        let shared: Vec<(u64, u64)> = maps
            .lines()
            .filter(|line| line.contains("/memfd:rsccl-arena") || line.contains("/memfd:rsccl-buffer"))
            .map(range)
            .collect();
        for _ in 0..if shared.is_empty() { 0 } else { luck.below(200) } {
            let (start, end) = *luck.pick(&shared);
            let reach = if anywhere && luck.one_in(4) { end - start } else { CONTROL_BYTES.min(end - start) };
            let at = start + luck.below(reach - LINE_BYTES) / 8 * 8;
            let word = *luck.pick(&[0, 1, 2, 1 << 16, (1 << 48) - 1, u64::MAX - 1, u64::MAX, turn]);
            let word = if luck.one_in(3) { luck.next() } else { word };
            // What has just been unmapped cannot be written.
            if anywhere {
                drop(memory.write_at(&word.to_le_bytes(), at));
            } else {
                let words = [word, *luck.pick(&[0, u64::MAX]), 1].map(u64::to_le_bytes).concat();
                drop(memory.write_at(&words, at / LINE_BYTES * LINE_BYTES + DATA_OFFSET));
            }
            let pause = luck.below(if anywhere { 14 } else { 4 });
            (0..luck.below(1 << pause)).for_each(|_| std::hint::spin_loop());
        }
    }
}

/// Where a line of a process's maps begins and ends.
fn range(line: &str) -> (u64, u64) {
    let (start, rest) = line.split_once('-').expect("start-end");
    let end = rest.split_once(' ').expect("a line has more").0;
    let number = |text: &str| u64::from_str_radix(text, 16).expect("hex");
    (number(start), number(end))
}

/// Waits until a communicator is no longer being made, nor has its engine lent; the deadline of init bounds that.
fn settled(comm: &Communicator) -> Result<()> {
    loop {
        match comm.async_error() {
            Some(error) if error.kind() == Kind::InProgress => poller::pause(BETWEEN_LOOKS),
            Some(error) => return Err(error),
            None => return Ok(()),
        }
    }
}

/// Lets at most `count` more descriptors be opened: the others are taken. The library raises the soft limit where it
/// needs more, so the hard one counts, which is lowered once.
fn spare(count: usize) -> Result<()> {
    static TAKEN: Mutex<Vec<std::fs::File>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    taken.clear();
    limits::lower_open_files(MOST_FILES)?;
    let mut full = false;
    while !full {
        match std::fs::File::open("/dev/null") {
            Ok(file) => taken.push(file),
            Err(error) => {
                assert!(limits::is_exhausted(&error), "{error}");
                full = true;
            }
        }
    }
    let left = taken.len().saturating_sub(count);
    taken.truncate(left);
    Ok(())
}

/// What a process may have open at most, once it has been told to spare descriptors; more than "plenty" of them.
const MOST_FILES: u64 = 2048;

fn checked(right: bool, what: &str) -> Result<String> {
    if right { Ok(String::new()) } else { Err(Error::internal(format!("wrong: {what}"))) }
}

fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{MARK}{text}").and_then(|()| output.flush()).expect("the starter reads");
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("no number: {word}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("hex"));
    pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hex")).collect()
}

/// The bytes at the start of each mapping that hold flags, labels, leases and small data.
const CONTROL_BYTES: u64 = 8 << 10;
const LINE_BYTES: u64 = 64;
/// Where the data of a cache line begins, after its flag and its label.
const DATA_OFFSET: u64 = 40;
const SHOWN_TURNS: u32 = 5;
/// How long the reason of a launch's end may take; a communicator looks every 2 ms.
const LONGEST_LOOK: Duration = Duration::from_secs(5);
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);
/// Elements of the sample's largest call.
pub const LARGEST: usize = 20_011;
/// What a caller writes into its buffers when a call has returned.
const OURS: f32 = 7.0;
