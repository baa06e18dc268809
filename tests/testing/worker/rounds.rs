//! Rounds of making, using and ending something, by a worker: after many of them it holds what it held after a few.

use std::path::Path;
use std::time::Duration;

use rsccl::comm::DeviceStream;
use rsccl::error::Kind;
use rsccl::internals::sys::poller;
use rsccl::store::{AbortFlag, FileStore, Store, StoreConfig, TcpStore, Wait};
use rsccl::{Buffer, Communicator, Config, Error, ReduceOp, Result, UniqueId};

use super::forked;

/// Runs `count` rounds of `kind` on the ranks of `comm`, which all do the same.
pub(super) fn run(
    comm: &Communicator,
    kind: &str,
    count: u32,
    folder: &Path,
    stream: Option<&DeviceStream>,
) -> Result<()> {
    match kind {
        "nonblocking" => {
            let own = meet(comm, &Config::default().with_blocking(false))?;
            settle(&own)?;
            for _ in 0..count {
                let child = own.split(Some(0), 0)?.expect("a color was passed");
                settle(&child)?;
                settle(&own)?;
                use_it(&child)?;
            }
            own.finalize()
        }
        "group" => {
            let child = comm.by_color(0, 0)?;
            (0..count).try_for_each(|_| {
                let (mut one, mut other) = ([1u32; 100], [1u32; 100]);
                rsccl::group(|group| {
                    group.on(comm).all_reduce_in_place(&mut one, ReduceOp::Sum)?;
                    group.on(&child).all_reduce_in_place(&mut other, ReduceOp::Sum)
                })
            })
        }
        "owned" => {
            for _ in 0..count {
                let ranks = comm.by_color(0, 0)?;
                let sum = ranks.start(vec![1u32; 1000], |calls, sum| calls.all_reduce_in_place(sum, ReduceOp::Sum))?;
                let split = ranks.split(Some(0), 0)?.expect("a color was passed");
                assert_eq!(sum.wait()?[999], comm.size());
                split.finalize()?;
                ranks.finalize()?;
            }
            Ok(())
        }
        _ => (0..count).try_for_each(|_| round(comm, kind, folder, stream)),
    }
}

fn round(comm: &Communicator, kind: &str, folder: &Path, stream: Option<&DeviceStream>) -> Result<()> {
    match kind {
        "world" => {
            let own = meet(comm, &Config::default())?;
            use_it(&own)?;
            own.finalize()
        }
        "dropped" => use_it(&meet(comm, &Config::default())?),
        "aborted" => {
            let own = meet(comm, &Config::default())?;
            use_it(&own)?;
            own.abort("on purpose");
            must_fail(own.barrier(), Kind::Aborted)?;
            comm.barrier()
        }
        "failed" => {
            let config = Config::default().with_init_timeout(Duration::from_millis(20));
            let id = Communicator::unique_id(&config)?;
            must_fail(Communicator::init(&id, 0, 2, &config).map(drop), Kind::Timeout)?;
            // And before rank 0 has come.
            let id = Communicator::unique_id(&config)?;
            Communicator::init(&id, 0, 2, &config.with_blocking(false))?.abort("on purpose");
            Ok(())
        }
        "split" => {
            let child = comm.split((comm.rank() != 1).then_some(0), 0)?;
            child.as_ref().map_or(Ok(()), use_it)
        }
        "local" => use_it(&comm.on_my_host()?),
        "shrink" if comm.rank() + 1 == comm.size() => comm.barrier(),
        "shrink" => {
            let rest = comm.shrink(&[comm.size() - 1])?;
            use_it(&rest)?;
            rest.finalize()?;
            comm.barrier()
        }
        "requests" => {
            let (mut sum, mine, mut theirs) = ([1u32; 100], [comm.rank(); 50_000], [0u32; 50_000]);
            let (next, last) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
            comm.scope(|scope| {
                let all = [scope.all_reduce_in_place(&mut sum, ReduceOp::Sum)?, scope.send(&mine, next)?];
                let received = scope.recv(&mut theirs, last)?;
                all.into_iter().try_for_each(rsccl::comm::Request::wait)?;
                received.wait()
            })
        }
        "registered" | "deregistered" => {
            let mut buffer = Buffer::<u32>::new(100_000)?;
            comm.register(&buffer)?;
            buffer.fill(1);
            comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum)?;
            assert!(buffer.iter().all(|sum| *sum == comm.size()));
            if kind == "deregistered" {
                comm.deregister(&buffer)?;
                buffer.fill(1);
                comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum)?;
                assert!(buffer.iter().all(|sum| *sum == comm.size()));
            }
            Ok(())
        }
        "window" => {
            let stream = stream.expect("`device` comes first");
            let mut buffer = stream.alloc_shareable::<u32>(1000)?;
            let window = comm.register_window(&buffer)?;
            comm.on(stream).all_reduce_in_place(buffer.slice_mut(..), ReduceOp::Sum)?;
            stream.synchronize()?;
            comm.deregister_window(window)
        }
        "store" => {
            let wait = Wait::new(Duration::from_secs(20), &AbortFlag::new());
            FileStore::open(folder, &wait)?.set("key", b"value", &wait)?;
            let store = TcpStore::serve("127.0.0.1:0".parse().expect("an address"), &StoreConfig::default())?;
            store.set("key", b"value", &wait)?;
            store.get("key", &wait).map(drop)
        }
        "forked" => {
            // The ranks' children do not meet each other.
            let own = folder.join(comm.rank().to_string());
            std::fs::create_dir_all(&own).map_err(|error| Error::internal(error.to_string()))?;
            forked::workers(2, &own, || Ok(()))
        }
        other => Err(Error::internal(format!("there is no kind of round {other}"))),
    }
}

/// A communicator of the ranks of `comm`.
fn meet(comm: &Communicator, config: &Config) -> Result<Communicator> {
    let mut bytes = [0; UniqueId::BYTES];
    if comm.rank() == 0 {
        bytes = *Communicator::unique_id(config)?.as_bytes();
    }
    comm.broadcast(&mut bytes, 0)?;
    Communicator::init(&UniqueId::from_bytes(&bytes)?, comm.rank(), comm.size(), config)
}

fn use_it(comm: &Communicator) -> Result<()> {
    for length in [1, 50_000] {
        let mut sum = vec![1u32; length];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        assert!(sum.iter().all(|sum| *sum == comm.size()));
    }
    Ok(())
}

fn settle(comm: &Communicator) -> Result<()> {
    while let Some(error) = comm.async_error() {
        if error.kind() != Kind::InProgress {
            return Err(error);
        }
        poller::pause(Duration::from_micros(200));
    }
    Ok(())
}

fn must_fail(outcome: Result<()>, kind: Kind) -> Result<()> {
    match outcome {
        Err(error) if error.kind() == kind => Ok(()),
        Err(error) => Err(Error::internal(format!("another error: {error}"))),
        Ok(()) => Err(Error::internal("it did not fail")),
    }
}

/// What this process holds: open files, threads, mappings, bytes of the heap.
pub(super) fn held() -> String {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).expect("/proc is there").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is there").lines().count();
    // SAFETY: a plain call.
    let heap = unsafe { libc::mallinfo2() };
    format!("{} {} {maps} {}", count("fd"), count("task"), heap.uordblks + heap.hblkhd)
}
