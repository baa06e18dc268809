//! The contract of devices as tests, for host memory, for a device whose memory the processor cannot touch
//! (`testing::far`), and for the GPUs that this process has.

use std::time::Duration;

use rsccl::error::Kind;
use rsccl::internals::device::{
    self, Average, Device, DeviceMemory, Event, Home, HostMemory, HostRegion, Kernel, Pass, Place, Region, Sharing,
    Store,
};
use rsccl::internals::sys::clock;
use rsccl::types::{DataType, ReduceOp};
use testing::far::Far;

/// Asks `event` until it is done.
fn finish(event: &dyn Event) {
    let began = clock::now();
    while !event.is_done().unwrap() {
        assert!(clock::now().duration_since(began) < LONGEST, "a queue moves whenever its event is asked");
        std::thread::yield_now();
    }
}

/// A few copies and folds of some KiB take microseconds; a busy machine's scheduler takes more.
const LONGEST: Duration = Duration::from_secs(20);

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

/// One of each kind. Those of this test live as long as its process, as the GPUs do.
fn devices() -> Vec<&'static dyn Device> {
    #[cfg_attr(not(feature = "cuda"), expect(unused_mut, reason = "the others are optional"))]
    let mut devices: Vec<&'static dyn Device> = vec![&HostMemory, Box::leak(Box::new(Far::new(ABSENT)))];
    #[cfg(feature = "cuda")]
    for gpu in machine::gpus::enough(1, device::cuda::gpus()).unwrap_or_default() {
        devices.push(gpu);
    }
    devices
}

/// More than a host has GPUs.
const ABSENT: u32 = 1007;

#[test]
fn memory_is_zeroed_and_lives_where_it_was_made() {
    for device in devices() {
        for sharing in [Sharing::Threads, Sharing::Processes, Sharing::Hosts] {
            let region = device.allocate(4096, sharing).unwrap();
            assert_eq!((region.bytes(), region.home()), (4096, device.home()));
            assert_eq!(read(device, &region), [0; 1024]);
            assert_eq!(device.locate(region.base().addr().get() as u64), Some(device.home()));
            assert_eq!(region.on_host().is_some(), device.home() == Home::Host);
        }
    }
    assert_eq!(Far::new(ABSENT).locate(1 << 40), None);
}

#[test]
fn what_is_exported_is_the_same_memory_where_it_is_imported() {
    for device in devices() {
        let mine = device.allocate(8192, Sharing::Processes).unwrap();
        let theirs = device.import(device.export(&mine).unwrap(), 8192).unwrap();
        assert_ne!(mine.base(), theirs.base());
        write(device, &mine, 17);
        assert_eq!(read(device, &theirs), [17; 2048]);
        drop(mine);
        assert_eq!(read(device, &theirs), [17; 2048], "an import keeps the memory");
        let other = device.allocate(8192, Sharing::Processes).unwrap();
        let wrong = device.import(device.export(&other).unwrap(), 4096).unwrap_err();
        assert_eq!(wrong.kind(), Kind::Remote);
        assert!(device.export(&device.allocate(4096, Sharing::Threads).unwrap()).is_err());
    }
}

#[test]
fn memory_of_the_host_that_is_taken_in_stays_the_hosts() {
    for device in devices() {
        let mut all: Vec<HostRegion> = (0..3).map(|_| device.memory_of_host(4096, Sharing::Threads).unwrap()).collect();
        let mine = all.swap_remove(1);
        let taken = [(); 2].map(|()| device.take_in(&mine).unwrap());
        assert!(taken.iter().all(|taken| taken.bytes() == 4096));
        if taken[0].home() != device.home() {
            continue;
        }
        write(device, &taken[0], 23);
        // SAFETY: the region has as many words, and the copy is done.
        let words = unsafe { std::slice::from_raw_parts(mine.base().as_ptr().cast::<u32>(), 1024) };
        assert!(words.iter().all(|word| *word == 23));
        for other in &all {
            assert_eq!(read(device, &device.take_in(other).unwrap()), [0; 1024]);
        }
        drop(mine);
        assert_eq!(read(device, &taken[1]), [23; 1024], "what is taken in is kept");
        assert!(device.home() == Home::Host || device.export(&taken[1]).is_err());
        drop(taken);
        let next = device.memory_of_host(4096, Sharing::Processes).unwrap();
        assert_eq!(read(device, &device.take_in(&next).unwrap()), [0; 1024], "memory is zero when it is new");
        assert!(HostMemory.export(next.as_region()).is_ok());
    }
}

#[test]
fn an_owner_takes_its_memory_back_with_its_content() {
    for device in devices() {
        let mine = device.allocate(4096, Sharing::Processes).unwrap();
        let generation = mine.keep().share_anew().unwrap();
        let theirs = device.import(device.export(&mine).unwrap(), 4096).unwrap();
        write(device, &mine, 5);
        assert!(mine.keep().lend(generation));
        mine.keep().detach().unwrap();
        write(device, &theirs, 6);
        assert_eq!(read(device, &mine), [5; 1024]);
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
        let pass = Pass {
            sources: &sources,
            raw: None,
            targets: &targets,
            count: 1024,
            finish: true,
            average: Average::Sum,
            store: Store::Cached,
        };
        // SAFETY: each region has 1024 elements, and lives until the event is done.
        unsafe { two.fold(&kernel, &pass).unwrap() };
        finish(&*two.record().unwrap());
        assert_eq!(read(device, &regions[2]), [42; 1024]);
    }
}

#[test]
fn places_that_a_queue_cannot_reach_are_refused() {
    let far = Far::new(ABSENT + 1).allocate(4096, Sharing::Threads).unwrap();
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
    assert!(error.to_string().contains("the memory of device 1008"), "{error}");
}

/// What a device cannot do is no method that fails: there is nothing to call, and whoever needs it says so.
#[test]
fn what_a_device_cannot_do_it_does_not_offer() {
    let [host, far, gpus @ ..] = &devices()[..] else { panic!("the host's memory and a device in software") };
    let offers = |device: &dyn Device| {
        [device.fabric_memory().is_some(), device.program_memory().is_some(), device.led_device().is_some()]
    };
    assert_eq!([offers(*host), offers(*far)], [[false; 3]; 2]);
    for gpu in gpus {
        assert_eq!(offers(*gpu), [true; 3], "{gpu:?}");
    }
    let errors =
        [device::fabric_of(Home::Host).err(), device::programs_of(Home::Host).err(), device::led_of(Home::Host).err()];
    for error in errors {
        let error = error.expect("the host offers none of these");
        assert_eq!(error.kind(), rsccl::error::Kind::InvalidUsage, "{error}");
        assert!(error.message().contains("host"), "{error}");
    }
}
