//! What a rank of `worker.rs` does in windows of the memory of devices.

use rsccl::comm::{DeviceBuffer, DeviceStream};
use rsccl::internals::sys::{clock, thread};
use rsccl::{Communicator, Config, ReduceOp, Result, UniqueId};

use super::{SHOWN_TURNS, say};
#[cfg(feature = "cuda")]
use crate::own_memory::OwnMemory;

/// `windows COUNT`: all calls that work in windows; the same memory again after it was taken back.
pub fn all_calls(comm: &Communicator, stream: &DeviceStream, count: usize) -> Result<bool> {
    let room = count * comm.size() as usize + ASIDE;
    let (from, into) = (stream.alloc_shareable::<u32>(room)?, stream.alloc_shareable(room)?);
    all_calls_in(comm, stream, count, (from, into))
}

/// `own_windows KIND COUNT`: the same in memory that this process has allocated itself, on the GPU of its rank's number.
#[cfg(feature = "cuda")]
pub fn all_calls_in_own(comm: &Communicator, stream: &DeviceStream, (kind, count): (&str, usize)) -> Result<bool> {
    let gpu = comm.rank() as usize;
    // Calls lie beyond the first two allocations of `many`.
    let before = if ["many", "mixed"].contains(&kind) { 5 << 18 } else { ASIDE };
    let room = count * comm.size() as usize + before;
    // Ranks' memory need not be cut alike.
    let kind = if kind == "mixed" { ["many", "map"][gpu % 2] } else { kind };
    let memory = [(); 2].map(|()| OwnMemory::new(gpu, kind, 4 * room));
    // SAFETY: so much lies there, and it is freed when all ranks have passed the last barrier.
    let buffers = memory.each_ref().map(|memory| unsafe { DeviceBuffer::from_raw(stream, memory.address, room) });
    let [from, into] = buffers;
    let direct = all_calls_in(comm, stream, count, (from?, into?))?;
    stream.synchronize()?;
    comm.on(stream).barrier()?;
    stream.synchronize()?;
    Ok(direct)
}

/// `register_own KIND COUNT`: registers memory that this process has allocated itself, and sums in it; whether it is
/// reached directly, and what failed before that in this rank alone.
#[cfg(feature = "cuda")]
pub fn register_own(comm: &Communicator, stream: &DeviceStream, (kind, count): (&str, usize)) -> Result<String> {
    let memory = OwnMemory::new(comm.rank() as usize, kind, 4 * count);
    eprintln!("{BEGIN}");
    // SAFETY: so much lies there, and it is freed when all ranks have passed the barrier, or registering has failed.
    let adopt = || unsafe { DeviceBuffer::<u32>::from_raw(stream, memory.address, count) };
    // The others know nothing of a failure here, and wait for this rank.
    let (mut buffer, failed) = match adopt() {
        Ok(buffer) => (buffer, None),
        Err(error) => (adopt()?, Some(error)),
    };
    let window = comm.register_window(&buffer)?;
    eprintln!("{END}");
    let direct = window.is_direct();
    stream.upload(&vec![comm.rank() + 1; count], buffer.slice_mut(..))?;
    comm.on(stream).all_reduce_in_place(buffer.slice_mut(..), ReduceOp::Sum)?;
    must_be(stream, (&buffer, 0), &vec![(1..=comm.size()).sum(); count]);
    comm.deregister_window(window)?;
    comm.on(stream).barrier()?;
    stream.synchronize()?;
    Ok(failed.map_or(direct.to_string(), |error| format!("{direct} after {error}")))
}

/// What a rank writes to its standard error before and after it hands over memory of its own.
#[cfg(feature = "cuda")]
pub const BEGIN: &str = "memory of its own is registered";
#[cfg(feature = "cuda")]
pub const END: &str = "memory of its own has been registered";

fn all_calls_in(
    comm: &Communicator,
    stream: &DeviceStream,
    count: usize,
    (mut from, mut into): (DeviceBuffer<u32>, DeviceBuffer<u32>),
) -> Result<bool> {
    let (ranks, me) = (comm.size(), comm.rank());
    let whole = count * ranks as usize;
    let windows = [comm.register_window(&from)?, comm.register_window(&into)?];
    let direct = windows[0].is_direct();
    assert_eq!(direct, windows[1].is_direct());
    let aside = from.len() - whole;
    let mut at = Places { comm, stream, from: &mut from, into: &mut into, count, aside };
    at.check(ranks - 1)?;
    // Buffers that reach beyond a window, and others beside windows: all ranks alike.
    let mut other = stream.alloc::<u32>(whole)?;
    let filled = vec![me + 1; whole];
    stream.upload(&filled, at.from.slice_mut(..whole))?;
    comm.on(stream).all_reduce(at.from.slice(..whole), other.slice_mut(..), ReduceOp::Sum)?;
    must_be(stream, (&other, 0), &vec![ranks * (ranks + 1) / 2; whole]);
    // A second registration of the same memory.
    let again = comm.register_window(at.into)?;
    for window in windows.into_iter().chain([again]) {
        comm.deregister_window(window)?;
    }
    at.check(0)?;
    let last = comm.register_window(at.from)?;
    at.check(1)?;
    comm.deregister_window(last)?;
    comm.on(stream).barrier()?;
    Ok(direct)
}

/// Two buffers with places for calls of `count` elements of each rank at their end, from `aside` on.
struct Places<'a> {
    comm: &'a Communicator,
    stream: &'a DeviceStream,
    from: &'a mut DeviceBuffer<u32>,
    into: &'a mut DeviceBuffer<u32>,
    count: usize,
    aside: usize,
}

impl Places<'_> {
    /// Each call in both buffers, with exact results.
    fn check(&mut self, root: u32) -> Result<()> {
        self.check_symmetric()?;
        self.check_rooted(root)?;
        self.check_vector()
    }

    /// What a rank puts there.
    fn of(&self, rank: u32) -> Vec<u32> {
        let whole = self.count * self.comm.size() as usize;
        let value = |place: usize| rank * 1_000_003 + u32::try_from(place).expect("small") * 7 + 1;
        (0..whole).map(value).collect()
    }

    fn sums(&self) -> Vec<u32> {
        let inputs: Vec<Vec<u32>> = (0..self.comm.size()).map(|rank| self.of(rank)).collect();
        (0..inputs[0].len()).map(|place| inputs.iter().map(|input| input[place]).sum()).collect()
    }

    /// Calls in which all ranks have an input and an output.
    fn check_symmetric(&mut self) -> Result<()> {
        let Places { comm, stream, count, aside, .. } = *self;
        let (ranks, me, on) = (comm.size(), comm.rank(), comm.on(stream));
        let (inputs, sums) = ((0..ranks).map(|rank| self.of(rank)).collect::<Vec<_>>(), self.sums());
        let of = |rank: u32| &inputs[rank as usize];
        let (all, mine) = (aside.., me as usize * count);
        let part = aside..aside + count;
        let own = of(me);

        stream.upload(own, self.from.slice_mut(all.clone()))?;
        on.all_reduce(self.from.slice(all.clone()), self.into.slice_mut(all.clone()), ReduceOp::Sum)?;
        must_be(stream, (self.into, aside), &sums);
        must_be(stream, (self.from, aside), own);
        on.all_reduce_in_place(self.from.slice_mut(all.clone()), ReduceOp::Sum)?;
        must_be(stream, (self.from, aside), &sums);

        stream.upload(own, self.from.slice_mut(all.clone()))?;
        on.reduce_scatter(self.from.slice(all.clone()), self.into.slice_mut(part.clone()), ReduceOp::Sum)?;
        must_be(stream, (self.into, aside), &sums[mine..mine + count]);
        on.all_gather(self.from.slice(part.clone()), self.into.slice_mut(all.clone()))?;
        let firsts: Vec<u32> = (0..ranks).flat_map(|rank| of(rank)[..count].to_vec()).collect();
        must_be(stream, (self.into, aside), &firsts);
        on.all_to_all(self.from.slice(all.clone()), self.into.slice_mut(all.clone()))?;
        let mixed: Vec<u32> = (0..ranks).flat_map(|rank| of(rank)[mine..mine + count].to_vec()).collect();
        must_be(stream, (self.into, aside), &mixed);
        on.all_gather_in_place(self.from.slice_mut(all.clone()))?;
        let blocks: Vec<u32> =
            (0..ranks).flat_map(|rank| of(rank)[rank as usize * count..][..count].to_vec()).collect();
        must_be(stream, (self.from, aside), &blocks);
        stream.upload(own, self.into.slice_mut(all.clone()))?;
        on.reduce_scatter_in_place(self.into.slice_mut(all), ReduceOp::Sum)?;
        must_be(stream, (self.into, aside + mine), &sums[mine..mine + count]);
        Ok(())
    }

    /// Calls with a root. The other ranks pass nothing where they have nothing, and something else where they may; a
    /// buffer that the root alone has may lie outside.
    fn check_rooted(&mut self, root: u32) -> Result<()> {
        let Places { comm, stream, count, aside, .. } = *self;
        let (ranks, me, on) = (comm.size(), comm.rank(), comm.on(stream));
        let (inputs, sums) = ((0..ranks).map(|rank| self.of(rank)).collect::<Vec<_>>(), self.sums());
        let (own, whole) = (&inputs[me as usize], sums.len());
        let (all, part, mine) = (aside.., aside..aside + count, me as usize * count);
        let (fives, mut outside) = (vec![5; whole], stream.alloc::<u32>(whole)?);
        let at_root = &inputs[root as usize];
        stream.upload(own, self.into.slice_mut(all.clone()))?;
        on.broadcast(self.into.slice_mut(all.clone()), root)?;
        must_be(stream, (self.into, aside), at_root);
        stream.upload(own, self.from.slice_mut(all.clone()))?;
        stream.upload(&fives, self.into.slice_mut(all.clone()))?;
        let given = if me == root { self.from.slice(all.clone()) } else { self.from.slice(..0) };
        on.broadcast_into(given, self.into.slice_mut(all.clone()), root)?;
        must_be(stream, (self.into, aside), at_root);

        let room = if me == root { whole } else { 0 };
        stream.upload(&fives, outside.slice_mut(..))?;
        on.reduce(self.from.slice(all.clone()), outside.slice_mut(..room), ReduceOp::Sum, root)?;
        must_be(stream, (&outside, 0), if me == root { &sums } else { &fives });
        on.reduce_in_place(self.from.slice_mut(all.clone()), ReduceOp::Sum, root)?;
        must_be(stream, (self.from, aside), if me == root { &sums } else { own });

        stream.upload(own, self.from.slice_mut(all.clone()))?;
        stream.upload(&fives, self.into.slice_mut(all.clone()))?;
        on.gather(self.from.slice(part.clone()), self.into.slice_mut(aside..aside + room), root)?;
        let firsts: Vec<u32> = inputs.iter().flat_map(|input| input[..count].to_vec()).collect();
        must_be(stream, (self.into, aside), if me == root { &firsts } else { &fives });

        stream.upload(own, outside.slice_mut(..))?;
        let given = if me == root { outside.slice(..) } else { outside.slice(..0) };
        on.scatter(given, self.into.slice_mut(part.clone()), root)?;
        must_be(stream, (self.into, aside), &at_root[mine..mine + count]);
        Ok(())
    }

    /// Calls with a count for each rank, of which rank 1 has none.
    fn check_vector(&mut self) -> Result<()> {
        let Places { comm, stream, count, aside, .. } = *self;
        let (ranks, me, on) = (comm.size(), comm.rank(), comm.on(stream));
        let (inputs, sums) = ((0..ranks).map(|rank| self.of(rank)).collect::<Vec<_>>(), self.sums());
        let counts: Vec<usize> = (0..ranks as usize).map(|rank| if rank == 1 { 0 } else { count - rank % 3 }).collect();
        let (total, mine) = (counts.iter().sum::<usize>(), counts[me as usize]);
        let before: usize = counts[..me as usize].iter().sum();
        let (whole, part) = (aside..aside + total, aside..aside + mine);
        let firsts = |input: &Vec<u32>, count: &usize| input[..*count].to_vec();
        let gathered: Vec<u32> = inputs.iter().zip(&counts).flat_map(|(input, count)| firsts(input, count)).collect();

        stream.upload(&inputs[me as usize], self.from.slice_mut(aside..))?;
        on.all_gather_v(self.from.slice(part.clone()), self.into.slice_mut(whole.clone()), &counts)?;
        must_be(stream, (self.into, aside), &gathered);
        // What a rank gives may lie at a place of its own, as it does in place.
        let own = aside + before..aside + before + mine;
        stream.upload(&inputs[me as usize][..mine], self.from.slice_mut(own.clone()))?;
        on.all_gather_v(self.from.slice(own), self.into.slice_mut(whole.clone()), &counts)?;
        must_be(stream, (self.into, aside), &gathered);

        stream.upload(&inputs[me as usize], self.from.slice_mut(aside..))?;
        on.reduce_scatter_v(self.from.slice(whole), self.into.slice_mut(part), &counts, ReduceOp::Sum)?;
        must_be(stream, (self.into, aside), &sums[before..before + mine]);
        Ok(())
    }
}

fn must_be(stream: &DeviceStream, (buffer, from): (&DeviceBuffer<u32>, usize), wanted: &[u32]) {
    let mut found = vec![0; wanted.len()];
    stream.download(buffer.slice(from..from + wanted.len()), &mut found).expect("it is there");
    let differs = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    assert!(
        differs.is_none(),
        "place {differs:?} of {}: {:?}",
        wanted.len(),
        differs.map(|at| (found[at], wanted[at]))
    );
}

/// `window_repeat COUNT`: sums in windows until that fails; the windows are given back without their peers.
pub fn repeat(comm: &Communicator, stream: &DeviceStream, count: usize) -> Result<()> {
    let (from, mut into) = (stream.alloc_shareable::<u32>(count)?, stream.alloc_shareable::<u32>(count)?);
    let windows = [comm.register_window(&from)?, comm.register_window(&into)?];
    let failed = (0u32..).find_map(|turn| {
        let called = comm.on(stream).all_reduce(from.slice(..), into.slice_mut(..), ReduceOp::Sum);
        let ended = called.and_then(|()| stream.synchronize()).and_then(|()| comm.async_error().map_or(Ok(()), Err));
        if turn < SHOWN_TURNS && ended.is_ok() {
            say("turn");
        }
        ended.err()
    });
    for window in windows {
        assert!(comm.deregister_window(window).is_err(), "the communicator has ended");
    }
    failed.map_or(Ok(()), Err)
}

/// `window_at OFFSET COUNT`: a sum in a window from this element on; the error that ends the communicator.
pub fn sum_at(comm: &Communicator, stream: &DeviceStream, offset: usize, count: usize) -> Result<()> {
    let mut buffer = stream.alloc_shareable::<u32>(2 * count)?;
    let _window = comm.register_window(&buffer)?;
    comm.on(stream).all_reduce_in_place(buffer.slice_mut(..count), ReduceOp::Sum)?;
    comm.on(stream).all_reduce_in_place(buffer.slice_mut(offset..offset + count), ReduceOp::Sum)?;
    // No call follows before it is told: its label would come after that of the sum.
    let deadline = clock::now() + TOLD_WITHIN;
    while comm.async_error().is_none() && clock::now() < deadline {
        std::thread::yield_now();
    }
    comm.on(stream).barrier()
}

/// `window_of COUNT`: registers a buffer of as many elements, which may not be shareable.
pub fn register(comm: &Communicator, stream: &DeviceStream, count: usize, shareable: bool) -> Result<bool> {
    let buffer = if shareable { stream.alloc_shareable::<u32>(count)? } else { stream.alloc::<u32>(count)? };
    comm.register_window(&buffer).map(|window| window.is_direct())
}

/// `window_crowd ID FIRST RANKS WORLD COUNT`: joins as so many ranks from `first` on, each a thread with a stream.
pub fn crowd(
    id: &UniqueId,
    [first, ranks, world, count]: [u32; 4],
    stream: impl Fn(u32) -> Result<DeviceStream> + Sync,
) -> Result<()> {
    let one = |rank: u32| {
        let comm = Communicator::init(id, rank, world, &Config::default())?;
        let direct = all_calls(&comm, &stream(rank)?, count as usize)?;
        assert!(direct, "rank {rank}");
        comm.finalize()
    };
    let ended = thread::side_by_side("rank", (first..first + ranks).collect(), one, || ())?;
    ended.into_iter().collect()
}

/// Elements before those that calls get.
const ASIDE: usize = 5;
/// More than the ranks need to hear of a mismatch.
const TOLD_WITHIN: std::time::Duration = std::time::Duration::from_secs(20);
