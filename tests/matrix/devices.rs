//! The same cases in the memory of devices that the processor cannot touch, put into streams: one rank on each device,
//! and several.

use rsccl::comm::DeviceStream;
use rsccl::types::Algorithm;
use rsccl::{Communicator, Config, local};

use crate::matrix::averages::{Agreed, averages_in};
use crate::matrix::extremes::extremes_in;
use crate::matrix::floats::Memory;
use crate::{
    KINDS, SIZES, SLOT_KINDS, TIMEOUT, every_operator, every_program, every_program_by, judge, run_rank, seed, tried,
};
use testing::case::{Case, Placed};
use testing::far::Far;

/// Runs all cases on ranks that stand on as many devices.
fn run_on_devices(ranks: u32, devices: u32, config: Config, cases: &[Case]) {
    Far::add(0..devices);
    let (seed, config) = (seed(), config.with_timeout(TIMEOUT));
    let name = format!("{ranks} ranks on {devices} devices, {:?}, seed {seed}", config.algo);
    let cases = &*tried(cases, &name);
    let failures = local::run_with(ranks, &config, |comm| {
        let kind = Placed::Device(DeviceStream::new(comm.rank() * devices / ranks)?);
        run_rank(comm, &kind, cases, seed)
    });
    judge(&name, failures.expect("ranks start and end").concat());
}

#[test]
fn every_program_on_devices() {
    for (ranks, devices) in [(1, 1), (2, 1), (2, 2), (3, 3), (4, 2), (7, 3), (8, 8)] {
        run_on_devices(ranks, devices, Config::default(), &every_program(ranks, SIZES, KINDS));
    }
}

#[test]
fn every_operator_on_devices() {
    for (ranks, devices) in [(2, 1), (3, 2)] {
        run_on_devices(ranks, devices, Config::default(), &every_operator(&[131, 9_000]));
    }
}

/// Averages whose sums overflow, NaN and zeros, in place or not, by each algorithm.
#[test]
fn floats_on_devices() {
    Far::add(0..3);
    for (ranks, devices) in [(1, 1), (3, 1), (3, 3)] {
        for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::Direct] {
            let config = Config::default().with_timeout(TIMEOUT).with_algo(algorithm.name()).with_proto("Simple");
            let (path, agreed) = (format!("{ranks} ranks on {devices} devices, {algorithm:?}"), Agreed::default());
            let body = |comm: Communicator| {
                let memory = Memory::Device(DeviceStream::new(comm.rank() * devices / ranks)?);
                averages_in((&comm, &memory), &[5, 301], (&path, &agreed))?;
                extremes_in((&comm, &memory), &[5], &path)?;
                comm.finalize()
            };
            local::run_with(ranks, &config, body).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    }
}

#[test]
fn large_buffers_on_devices() {
    run_on_devices(2, 2, Config::default(), &every_program(2, &[3_000_017], &KINDS[..1]));
    run_on_devices(4, 2, Config::default(), &every_program(4, &[400_009], &KINDS[..1]));
}

/// Each algorithm forced: Direct works in peers' memory, the others through slots of device memory.
#[test]
fn every_algorithm_on_devices() {
    for (ranks, devices) in [(2, 2), (3, 1), (4, 2), (8, 4)] {
        for algorithm in Algorithm::ALL.iter().copied() {
            let (forced, mut cases) = every_program_by(algorithm, ranks, &[0, 1, 1_003, 40_009]);
            cases.retain(|case| SLOT_KINDS.iter().any(|(data_type, _)| *data_type == case.data_type));
            run_on_devices(ranks, devices, Config::default().with_algo(forced).with_proto("Simple"), &cases);
        }
    }
}

/// Ranks that may not share memory, as if each were on a host of its own: kernels send to each other through memory of
/// the host and sockets.
#[test]
fn every_program_and_algorithm_on_devices_of_several_hosts() {
    let apart = || Config::default().with_p2p_disable(true).with_shm_disable(true).with_socket_interfaces("lo");
    for (ranks, devices) in [(2, 2), (3, 3), (4, 2)] {
        run_on_devices(ranks, devices, apart(), &every_program(ranks, SIZES, SLOT_KINDS));
    }
    run_on_devices(2, 2, apart(), &every_operator(&[131]));
    run_on_devices(2, 2, apart(), &every_program(2, &[400_009], &KINDS[..1]));
    for algorithm in Algorithm::ALL.iter().copied() {
        let (forced, mut cases) = every_program_by(algorithm, 4, &[0, 1, 40_009]);
        cases.retain(|case| SLOT_KINDS.iter().any(|(data_type, _)| *data_type == case.data_type));
        run_on_devices(4, 4, apart().with_algo(forced).with_proto("Simple"), &cases);
    }
}
