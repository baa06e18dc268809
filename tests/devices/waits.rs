//! What goes on while a rank waits for its device, as it does in every other wait: the program's hook, requests that
//! were begun before, what travels over sockets, and an abort from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rsccl::comm::{Buffers, Call, CallCount, DeviceBuffer, DeviceStream};
use rsccl::error::Kind;
use rsccl::internals::sys::clock::now;
use rsccl::types::{Collective, DataType};
use rsccl::{Communicator, Config, Progress, ReduceOp, Result, local};

use crate::apart;
use testing::far::{Far, FarGraph};

const COUNT: usize = 500;
/// How long a wait lasts that nobody ends.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Far beyond what any of these tests takes.
const NEVER: Duration = Duration::from_secs(60);

/// A call in which a rank waits for the other one.
struct Waiting {
    name: &'static str,
    /// Whether the ranks have one device each, and not one for both.
    apart: bool,
    call: fn(&Communicator, &DeviceStream, &mut DeviceBuffer<u32>) -> Result<()>,
}

/// By another wait each.
const WAITS: &[Waiting] = &[
    Waiting { name: "for the other rank of the device", apart: false, call: |comm, _, memory| comm.run(&sum(memory)) },
    Waiting {
        name: "for the other rank of the device, in a call on a stream",
        apart: false,
        call: |comm, stream, memory| comm.on(stream).all_reduce_in_place(memory.slice_mut(..), ReduceOp::Sum),
    },
    Waiting { name: "for the end of a launch", apart: true, call: |comm, _, memory| comm.run(&sum(memory)) },
    Waiting { name: "for a message on one device", apart: false, call: message },
    Waiting { name: "for a message between devices", apart: true, call: message },
    Waiting {
        name: "for a stream",
        apart: true,
        call: |comm, stream, memory| {
            comm.on(stream).all_reduce_in_place(memory.slice_mut(..), ReduceOp::Sum)?;
            stream.synchronize()
        },
    },
    Waiting {
        name: "for a copy behind a call",
        apart: true,
        call: |comm, stream, memory| {
            comm.on(stream).all_reduce_in_place(memory.slice_mut(..), ReduceOp::Sum)?;
            stream.download(memory.slice(..), &mut [0; COUNT])
        },
    },
    Waiting {
        name: "for room among the calls on streams",
        apart: true,
        call: |comm, stream, _| (0..1100).try_for_each(|_| comm.on(stream).barrier()),
    },
];

/// A call that returns when it has run.
fn sum(memory: &mut DeviceBuffer<u32>) -> Call<'_> {
    Call {
        collective: Collective::AllReduce,
        data_type: DataType::U32,
        op: Some(ReduceOp::Sum),
        root: None,
        count: CallCount::Each(COUNT as u64),
        buffers: Buffers::shared_on_device(memory.slice_mut(..)),
    }
}

fn message(comm: &Communicator, stream: &DeviceStream, memory: &mut DeviceBuffer<u32>) -> Result<()> {
    match comm.rank() {
        0 => comm.on(stream).recv(memory.slice_mut(..), 1)?,
        _ => comm.on(stream).send(memory.slice(..), 0)?,
    }
    stream.synchronize()
}

/// Two ranks on devices from `first` on, which have made the call before, so that connections are open. `body` gets
/// what a call takes.
fn two_ranks<T: Send>(
    (first, waiting): (u32, &Waiting),
    config: &Config,
    body: impl Fn(&Communicator, &mut dyn FnMut() -> Result<()>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    Far::add(first..first + 2);
    local::run_with(2, config, |comm| {
        let stream = DeviceStream::new(first + if waiting.apart { comm.rank() } else { 0 })?;
        let mut memory = stream.alloc::<u32>(COUNT)?;
        (waiting.call)(&comm, &stream, &mut memory)?;
        stream.synchronize()?;
        comm.barrier()?;
        body(&comm, &mut || (waiting.call)(&comm, &stream, &mut memory))
    })
}

/// A hook that says, once it is `armed`, that it was called.
#[derive(Default)]
struct Hook {
    armed: AtomicBool,
    calls: AtomicU32,
}

impl Hook {
    fn progress(self: &Arc<Hook>) -> Progress {
        let hook = Arc::clone(self);
        Progress::new(move || {
            hook.calls.fetch_add(u32::from(hook.armed.load(Ordering::Acquire)), Ordering::AcqRel);
            Ok(())
        })
    }

    fn was_called(&self) -> bool {
        self.calls.load(Ordering::Acquire) > 0
    }

    /// Waits until the hook was called, or the communicator has ended.
    fn await_call(&self, ended: impl Fn() -> bool) -> bool {
        let deadline = now() + NEVER;
        while !self.was_called() && !ended() && now() < deadline {
            std::thread::yield_now();
        }
        self.was_called()
    }
}

/// The other rank comes once the hook was called, as a rank that waits in another library for this one.
#[test]
fn the_hook_is_called_in_every_wait_for_a_device() {
    let mut silent = Vec::new();
    for waiting in WAITS {
        let (hook, is_over) = (Arc::new(Hook::default()), AtomicBool::new(false));
        let ended = two_ranks((110, waiting), &Config::default().with_timeout(TIMEOUT), |comm, call| {
            if comm.rank() == 0 {
                comm.set_progress(Some(hook.progress()))?;
                hook.armed.store(true, Ordering::Release);
                let ended = call();
                is_over.store(true, Ordering::Release);
                return ended;
            }
            hook.await_call(|| is_over.load(Ordering::Acquire));
            call()
        });
        if !hook.was_called() || ended.is_err() {
            silent.push((waiting.name, ended.err().map(|error| error.to_string())));
        }
    }
    assert!(silent.is_empty(), "{silent:#?}");
}

/// Once the hook was called, the rank is in its wait, in which the other one never comes.
#[test]
fn an_abort_ends_every_wait_for_a_device() {
    let mut wrong = Vec::new();
    for waiting in WAITS {
        let hook = Arc::new(Hook::default());
        let over = std::sync::Barrier::new(2);
        let ended = two_ranks((112, waiting), &Config::default().with_timeout(NEVER), |comm, call| {
            if comm.rank() == 1 {
                over.wait();
                return Ok(None);
            }
            comm.set_progress(Some(hook.progress()))?;
            let (returned, aborted) = (AtomicBool::new(false), std::sync::Mutex::new(None::<Instant>));
            let ended = std::thread::scope(|threads| {
                threads.spawn(|| {
                    let deadline = now() + TIMEOUT;
                    while !hook.was_called() && !returned.load(Ordering::Acquire) && now() < deadline {
                        std::thread::yield_now();
                    }
                    *aborted.lock().unwrap() = Some(now());
                    comm.abort("enough");
                });
                hook.armed.store(true, Ordering::Release);
                let ended = call();
                returned.store(true, Ordering::Release);
                ended
            });
            let took = aborted.lock().unwrap().map(|aborted| now().duration_since(aborted));
            over.wait();
            Ok(Some((ended.map_err(|error| (error.kind(), error.to_string())), took)))
        });
        let ended = ended.map(|ended| ended.into_iter().flatten().next());
        let is_right = match &ended {
            Ok(Some((Err((Kind::Aborted, text)), Some(took)))) => text.contains("enough") && *took < TIMEOUT,
            _ => false,
        };
        if !is_right || !hook.was_called() {
            wrong.push((waiting.name, hook.was_called(), ended.map_err(|error| error.to_string())));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A hook that fails ends the communicator, in whatever wait it is called.
#[test]
fn a_hook_that_fails_ends_every_wait_for_a_device() {
    let mut wrong = Vec::new();
    for waiting in WAITS {
        let over = std::sync::Barrier::new(2);
        let ended = two_ranks((118, waiting), &Config::default().with_timeout(TIMEOUT), |comm, call| {
            if comm.rank() == 1 {
                over.wait();
                return Ok(None);
            }
            comm.set_progress(Some(Progress::new(|| Err(rsccl::Error::invalid_argument("no more of it")))))?;
            let ended = call().map_err(|error| error.to_string());
            over.wait();
            Ok(Some(ended))
        });
        let ended = ended.map(|ended| ended.into_iter().flatten().next());
        let told = |ended: &Option<std::result::Result<(), String>>| {
            ended.as_ref().is_some_and(|ended| ended.as_ref().is_err_and(|text| text.contains("no more of it")))
        };
        if !ended.as_ref().is_ok_and(told) {
            wrong.push((waiting.name, ended.map_err(|error| error.to_string())));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A program takes its hook away, because the other library is about to end, and then waits for its stream.
#[test]
fn a_hook_that_was_taken_away_is_not_called_in_a_wait_for_a_stream() {
    for taken in [false, true] {
        let (hook, waits) = (Arc::new(Hook::default()), WAITS.iter().find(|waiting| waiting.name == "for a stream"));
        let (config, over) = (Config::default().with_timeout(Duration::from_millis(500)), std::sync::Barrier::new(2));
        let ended = two_ranks((120, waits.expect("one of them")), &config, |comm, _| {
            let stream = DeviceStream::new(120 + comm.rank())?;
            comm.on(&stream).barrier()?;
            stream.synchronize()?;
            comm.barrier()?;
            if comm.rank() == 1 {
                over.wait();
                return Ok(None);
            }
            comm.set_progress(Some(hook.progress()))?;
            comm.on(&stream).barrier()?;
            if taken {
                comm.set_progress(None)?;
            }
            hook.armed.store(true, Ordering::Release);
            let ended = stream.synchronize().err().map(|error| error.kind());
            over.wait();
            Ok(ended)
        });
        assert!(ended.is_ok_and(|ended| ended[0].is_some()), "rank 1 does not come");
        assert_eq!(hook.was_called(), !taken, "taken away: {taken}");
    }
}

/// Rank 0 has begun a message of host memory, which rank 1 wants to see at its end before it comes to the collective on
/// device memory in which rank 0 is. Neither slots nor sockets hold it.
#[test]
fn messages_go_on_while_a_rank_waits_for_its_device() {
    const LONG: usize = 4 << 20;
    let mut stuck = Vec::new();
    let threads = Config::default();
    for (name, config) in [("threads", threads), ("sockets", apart())] {
        for (devices, sends) in [(1, false), (1, true), (2, false), (2, true)] {
            Far::add(114..116);
            let config = config.clone().with_timeout(TIMEOUT);
            let ended = local::run_with(2, &config, |comm| {
                let stream = DeviceStream::new(114 + comm.rank() % devices)?;
                let mut memory = stream.alloc::<u32>(COUNT)?;
                comm.run(&sum(&mut memory))?;
                let mut long = vec![comm.rank(); LONG];
                if comm.rank() == 0 {
                    comm.scope(|scope| {
                        let begun = if sends { scope.send(&long, 1)? } else { scope.recv(&mut long, 1)? };
                        let reduced = scope.begin(sum(&mut memory))?;
                        reduced.wait()?;
                        begun.wait()
                    })?;
                } else {
                    if sends {
                        comm.recv(&mut long, 0)?
                    } else {
                        comm.send(&long, 0)?
                    }
                    comm.run(&sum(&mut memory))?;
                }
                let expected = u32::from(!sends);
                assert!((comm.rank() == u32::from(!sends)) || long.iter().all(|value| *value == expected));
                comm.finalize()
            });
            if let Err(error) = ended {
                stuck.push((name, devices, sends, error.to_string()));
            }
        }
    }
    assert!(stuck.is_empty(), "{stuck:#?}");
}

/// What the program's hook calls of its device could spoil the capture.
#[test]
fn no_hook_is_called_while_a_stream_is_captured() {
    const DEVICE: u32 = 116;
    Far::add(DEVICE..DEVICE + 1);
    for captures in [false, true] {
        let (hook, over) = (Arc::new(Hook::default()), std::sync::Barrier::new(2));
        let config = Config::default().with_timeout(Duration::from_millis(300));
        let ended = local::run_with(2, &config, |comm| {
            let stream = DeviceStream::new(DEVICE)?;
            let mut memory = stream.alloc::<u32>(COUNT)?;
            comm.on(&stream).all_reduce_in_place(memory.slice_mut(..), ReduceOp::Sum)?;
            stream.synchronize()?;
            comm.barrier()?;
            let mut ended = None;
            if comm.rank() == 0 {
                comm.set_progress(Some(hook.progress()))?;
                if captures {
                    FarGraph::begin(DEVICE..DEVICE + 1);
                }
                hook.armed.store(true, Ordering::Release);
                ended = comm.on(&stream).all_reduce_in_place(memory.slice_mut(..), ReduceOp::Sum).err();
                hook.armed.store(false, Ordering::Release);
                if captures {
                    drop(FarGraph::end(DEVICE..DEVICE + 1));
                }
            }
            over.wait();
            Ok(ended.map(|error| error.to_string()))
        });
        let told = ended.unwrap().remove(0).expect("rank 1 does not come");
        assert!(told.contains("rank 1"), "{told}");
        assert_eq!(hook.was_called(), !captures, "captured: {captures}");
    }
}
