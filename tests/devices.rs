//! The contract of devices ([`Device`], [`Queue`], [`Event`]) as tests, for host memory and for a device whose memory the processor
//! cannot touch; and captured collectives, which replay without the host.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end where something fails")]

#[allow(dead_code, reason = "other tests use the rest")]
mod far;

use std::time::Duration;

use far::{Far, FarGraph};
use rsccl::comm::DeviceStream;
use rsccl::error::Kind;
use rsccl::internals::device::{self, Device, Event, Home, HostMemory, Kernel, Pass, Place, Region, Sharing, Store};
use rsccl::internals::sys::clock::now;
use rsccl::{Config, DataType, ReduceOp, local};

/// Waits until `event` is done.
fn finish(event: &dyn Event) {
    let deadline = now() + Duration::from_secs(20);
    while !event.is_done().unwrap() {
        assert!(now() < deadline, "a queue moves without being asked");
        std::thread::yield_now();
    }
}

fn whole(region: &Region) -> Place {
    Place { address: region.base().as_ptr(), bytes: region.bytes(), home: region.home() }
}

fn host(values: &mut [u32]) -> Place {
    Place::on_host(values.as_mut_ptr().cast(), size_of_val(values))
}

fn write(device: &dyn Device, region: &Region, value: u32) {
    let mut values = vec![value; region.bytes() / 4];
    let mut queue = device.queue().unwrap();
    // SAFETY: both have as many bytes, and live until the event is done.
    unsafe { queue.copy(host(&mut values), whole(region)).unwrap() };
    finish(&*queue.record().unwrap());
}

fn read(device: &dyn Device, region: &Region) -> Vec<u32> {
    let mut values = vec![u32::MAX; region.bytes() / 4];
    let mut queue = device.queue().unwrap();
    // SAFETY: both have as many bytes, and live until the event is done.
    unsafe { queue.copy(whole(region), host(&mut values)).unwrap() };
    finish(&*queue.record().unwrap());
    values
}

fn devices() -> [Box<dyn Device>; 2] {
    [Box::new(HostMemory), Box::new(Far::new(7))]
}

#[test]
fn memory_is_zeroed_and_lives_where_it_was_made() {
    for device in devices() {
        for sharing in [Sharing::Threads, Sharing::Processes] {
            let region = device.allocate(4096, sharing).unwrap();
            assert_eq!((region.bytes(), region.home()), (4096, device.home()));
            assert_eq!(read(&*device, &region), [0; 1024]);
            assert_eq!(device.locate(region.base().addr().get() as u64), Some(device.home()));
            assert_eq!(region.on_host().is_some(), device.home() == Home::Host);
        }
    }
    assert_eq!(Far::new(7).locate(1 << 40), None);
}

#[test]
fn what_is_exported_is_the_same_memory_where_it_is_imported() {
    for device in devices() {
        let mine = device.allocate(8192, Sharing::Processes).unwrap();
        let theirs = device.import(device.export(&mine).unwrap(), 8192).unwrap();
        assert_ne!(mine.base(), theirs.base());
        write(&*device, &mine, 17);
        assert_eq!(read(&*device, &theirs), [17; 2048]);
        drop(mine);
        assert_eq!(read(&*device, &theirs), [17; 2048], "an import keeps the memory");
        let other = device.allocate(8192, Sharing::Processes).unwrap();
        let wrong = device.import(device.export(&other).unwrap(), 4096).unwrap_err();
        assert_eq!(wrong.kind(), Kind::Remote);
        assert!(device.export(&device.allocate(4096, Sharing::Threads).unwrap()).is_err());
    }
}

#[test]
fn an_owner_takes_its_memory_back_with_its_content() {
    for device in devices() {
        let mine = device.allocate(4096, Sharing::Processes).unwrap();
        let generation = mine.keep().share_anew().unwrap();
        let theirs = device.import(device.export(&mine).unwrap(), 4096).unwrap();
        write(&*device, &mine, 5);
        assert!(mine.keep().lend(generation));
        mine.keep().detach().unwrap();
        write(&*device, &theirs, 6);
        assert_eq!(read(&*device, &mine), [5; 1024]);
        assert!(!mine.keep().take_back(generation) && mine.keep().is_detached());
        assert!(mine.keep().share_anew().unwrap() != generation && !mine.keep().is_detached());
    }
}

#[test]
fn a_queue_folds_and_keeps_its_order_and_that_of_events() {
    let kernel = Kernel::reduce(DataType::U32, ReduceOp::Sum, 2).unwrap();
    for device in devices() {
        let regions: Vec<Region> = (0..3).map(|_| device.allocate(4096, Sharing::Threads).unwrap()).collect();
        let (mut first, mut second) = (vec![30; 1024], vec![12; 1024]);
        let (mut one, mut two) = (device.queue().unwrap(), device.queue().unwrap());
        // SAFETY: both have as many bytes, and live until the event is done.
        unsafe { one.copy(host(&mut first), whole(&regions[0])).unwrap() };
        // SAFETY: as above.
        unsafe { one.copy(host(&mut second), whole(&regions[1])).unwrap() };
        two.after(&one.record().unwrap()).unwrap();
        let sources = [0, 1].map(|at: usize| regions[at].base().as_ptr().cast_const());
        let targets = [regions[2].base().as_ptr()];
        let pass =
            Pass { sources: &sources, raw: None, targets: &targets, count: 1024, finish: true, store: Store::Cached };
        // SAFETY: each region has 1024 elements, and lives until the event is done.
        unsafe { two.fold(&kernel, &pass).unwrap() };
        finish(&*two.record().unwrap());
        assert_eq!(read(&*device, &regions[2]), [42; 1024]);
    }
}

#[test]
fn places_that_a_queue_cannot_reach_are_refused() {
    let far = Far::new(1).allocate(4096, Sharing::Threads).unwrap();
    let mut values = [0; 1024];
    for device in devices() {
        let mut queue = device.queue().unwrap();
        // SAFETY: it is refused.
        let error = unsafe { queue.copy(whole(&far), host(&mut values)) }.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        // SAFETY: it is refused.
        let error = unsafe { queue.copy(host(&mut [0; 5]), host(&mut values)) }.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
    }
    let error = device::of(far.home()).unwrap_err();
    assert!(error.to_string().contains("the memory of device 1"), "{error}");
}

/// Ranks 0 and 1 on device 0, ranks 2 and 3 on device 1.
#[test]
fn ranks_on_two_devices_work_in_each_others_memory_by_streams() {
    Far::add(0..2);
    local::run(4, |comm| {
        let stream = DeviceStream::new(comm.rank() / 2)?;
        for count in [1, 1000, 100_000] {
            let mut mine = stream.alloc::<u32>(count)?;
            let mut sum = stream.alloc::<u32>(count)?;
            stream.upload(&vec![comm.rank() + 1; count], mine.slice_mut(..))?;
            let on = comm.on(&stream);
            on.all_reduce(mine.slice(..), sum.slice_mut(..), ReduceOp::Sum)?;
            on.broadcast(mine.slice_mut(..), 2)?;
            let (mut reduced, mut sent) = (vec![0; count], vec![0; count]);
            stream.download(sum.slice(..), &mut reduced)?;
            stream.download(mine.slice(..), &mut sent)?;
            assert_eq!((reduced, sent), (vec![10; count], vec![3; count]), "{count} elements, rank {}", comm.rank());
        }
        Ok(())
    })
    .unwrap();
}

/// What is captured runs a hundred times with no code of the host in between: epochs and flags go on in the device's memory.
#[test]
fn captured_collectives_replay_a_hundred_times() {
    const DEVICES: std::ops::Range<u32> = 10..12;
    Far::add(DEVICES);
    let (meeting, graph) = (std::sync::Barrier::new(4), std::sync::Mutex::new(None));
    local::run(4, |comm| {
        let stream = DeviceStream::new(DEVICES.start + comm.rank() / 2)?;
        let on = comm.on(&stream);
        let (mut sum, mut gathered) = (stream.alloc::<u32>(1000)?, stream.alloc::<u32>(4000)?);
        let mut passed = stream.alloc::<u32>(1000)?;
        let (left, right) = ((comm.rank() + 3) % 4, (comm.rank() + 1) % 4);
        // The set-up takes the host: a live call before.
        on.all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
        on.send_recv(sum.slice(..), right, passed.slice_mut(..), left)?;
        stream.upload(&vec![comm.rank() + 1; 1000], sum.slice_mut(..))?;
        meeting.wait();
        if comm.rank() == 0 {
            FarGraph::begin(DEVICES);
        }
        meeting.wait();
        // Each run multiplies by the number of ranks, once all have the same.
        on.all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
        on.all_gather(sum.slice(..), gathered.slice_mut(..))?;
        on.send_recv(gathered.slice(3000..), right, passed.slice_mut(..), left)?;
        meeting.wait();
        if comm.rank() == 0 {
            let mut captured = FarGraph::end(DEVICES);
            (0..100).for_each(|_| captured.launch());
            *graph.lock().unwrap() = Some(captured);
        }
        meeting.wait();
        stream.synchronize()?;
        let expected = (1..100).fold(10u32, |sum, _| sum.wrapping_mul(4));
        let (mut sums, mut all) = (vec![0; 1000], vec![0; 4000]);
        stream.download(sum.slice(..), &mut sums)?;
        stream.download(gathered.slice(..), &mut all)?;
        assert_eq!((&sums, &all), (&vec![expected; 1000], &vec![expected; 4000]));
        stream.download(passed.slice(..), &mut sums)?;
        assert_eq!(sums, vec![expected; 1000]);
        // Live calls go on where the replays have left the words.
        on.all_reduce_in_place(sum.slice_mut(..), ReduceOp::Max)?;
        stream.download(sum.slice(..), &mut sums)?;
        assert_eq!(sums, vec![expected; 1000]);
        Ok(())
    })
    .unwrap();
}

/// A rank that calls something else is named, the streams go on, and their memory can be used and freed.
#[test]
fn a_mismatch_on_a_stream_names_both_calls_and_leaves_the_stream_usable() {
    Far::add(20..22);
    let config = Config::default().with_timeout(Duration::from_secs(20));
    let errors = local::run_with(2, &config, |comm| {
        let stream = DeviceStream::new(20 + comm.rank())?;
        let on = comm.on(&stream);
        let mut values = stream.alloc::<u32>(300)?;
        on.barrier()?;
        let count = if comm.rank() == 0 { 300 } else { 200 };
        on.all_reduce_in_place(values.slice_mut(..count), ReduceOp::Sum)?;
        stream.synchronize()?;
        let deadline = now() + Duration::from_secs(20);
        while comm.async_error().is_none() && now() < deadline {
            std::thread::yield_now();
        }
        let error = on.barrier().expect_err("the communicator has ended");
        stream.upload(&[7; 300], values.slice_mut(..))?;
        let mut back = [0; 300];
        stream.download(values.slice(..), &mut back)?;
        assert_eq!(back, [7; 300]);
        Ok((error.kind(), error.to_string()))
    });
    for (kind, text) in errors.unwrap() {
        assert_eq!(kind, Kind::Mismatch, "{text}");
        assert!(text.contains("count 300") && text.contains("count 200"), "{text}");
    }
}

/// A rank that never calls is named at the deadline, where ranks share the device and where they do not.
#[test]
fn a_rank_that_never_calls_is_found_at_the_deadline() {
    Far::add(30..32);
    for devices in [1, 2] {
        let config = Config::default().with_timeout(Duration::from_secs(2));
        let over = std::sync::Barrier::new(2);
        let outcome = local::run_with(2, &config, |comm| {
            let stream = DeviceStream::new(30 + comm.rank() % devices)?;
            let on = comm.on(&stream);
            on.barrier()?;
            stream.synchronize()?;
            if comm.rank() == 1 {
                over.wait();
                return Ok(String::new());
            }
            let called = on.barrier();
            let synchronized = stream.synchronize();
            let error = called.and_then(|()| on.barrier()).expect_err("rank 1 does not come");
            over.wait();
            synchronized.map(|()| error.to_string())
        });
        let told = outcome.unwrap().concat();
        assert!(told.contains("rank 1"), "{devices} devices: {told}");
    }
}

/// Messages are between their two ranks: others on the same device need not call.
#[test]
fn two_ranks_of_a_device_exchange_messages_while_the_others_do_something_else() {
    Far::add(40..41);
    local::run(4, |comm| {
        let stream = DeviceStream::new(40)?;
        let on = comm.on(&stream);
        on.barrier()?;
        let (mut mine, mut theirs) = (stream.alloc::<u64>(300_000)?, stream.alloc::<u64>(300_000)?);
        if comm.rank() < 2 {
            let other = 1 - comm.rank();
            stream.upload(&vec![u64::from(comm.rank()); 300_000], mine.slice_mut(..))?;
            on.send_recv(mine.slice(..), other, theirs.slice_mut(..), other)?;
            let mut got = vec![9; 300_000];
            stream.download(theirs.slice(..), &mut got)?;
            assert_eq!(got, vec![u64::from(other); 300_000]);
        }
        on.barrier()?;
        stream.synchronize()
    })
    .unwrap();
}
