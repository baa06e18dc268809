//! Averages that are finite where the average is, and which NaN and which zero `Min` and `Max` give, in the memory of
//! GPUs on every path: what `averages` and `extremes` hold on the host.

use crate::matrix::gpu::must_pass;

/// A GPU that lies between two others.
const BETWEEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/gpu-between.toml");

#[test]
fn floats_of_ranks_of_one_gpu() {
    must_pass("1", "gpu_floats::several::on_one");
}

#[test]
fn floats_between_gpus() {
    must_pass("2-nvswitch", "gpu_floats::several::on_two");
}

#[test]
fn floats_of_gpus_that_reach_each_other_through_others() {
    must_pass(BETWEEN, "gpu_floats::several::on_three");
}

mod several {
    use rsccl::Config;
    use rsccl::types::Algorithm;

    use crate::TIMEOUT;
    use crate::matrix::averages::{Agreed, averages_in};
    use crate::matrix::extremes::extremes_in;
    use crate::matrix::floats::Memory;
    use crate::matrix::gpu::several::on_gpus;

    fn by(algorithm: Algorithm, protocol: &str) -> Config {
        patient().with_algo(algorithm.name()).with_proto(protocol)
    }

    fn patient() -> Config {
        Config::default().with_timeout(TIMEOUT)
    }

    /// `ranks` on each of `gpus`.
    fn check((gpus, ranks): (u32, u32), path: &str, config: &Config, counts: &[usize]) {
        let path = format!("{gpus} GPUs of {ranks} ranks, {path}");
        let agreed = Agreed::default();
        on_gpus((gpus, ranks), config, |comm, stream| {
            averages_in((&comm, &Memory::Device(stream)), counts, (&path, &agreed))?;
            comm.finalize()
        });
    }

    /// The least and the greatest, of as many ranks.
    fn check_extremes((gpus, ranks): (u32, u32), path: &str, config: &Config) {
        on_gpus((gpus, ranks), config, |comm, stream| {
            extremes_in((&comm, &Memory::Device(stream)), &[4], path)?;
            comm.finalize()
        });
    }

    /// The host walks the programs, and kernels fold.
    #[test]
    fn on_one_gpu() {
        check((1, 1), "alone", &patient(), &[5]);
        for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::Direct] {
            check((1, 3), algorithm.name(), &by(algorithm, "Simple"), &[5, 301]);
        }
        check_extremes((1, 3), "one GPU", &by(Algorithm::Ring, "Simple"));
    }

    #[test]
    fn on_one_gpu_where_ranks_wait_for_each_other() {
        check((1, 3), "split", &by(Algorithm::Ring, "Simple").with_cohort("split"), &[37]);
    }

    #[test]
    fn on_two_by_each_protocol() {
        for protocol in ["Simple", "LL", "LL128"] {
            check((2, 1), &format!("Ring {protocol}"), &by(Algorithm::Ring, protocol), &[37]);
        }
        check((2, 1), "Direct LL", &by(Algorithm::Direct, "LL"), &[37]);
        check_extremes((2, 1), "LL128", &by(Algorithm::Ring, "LL128"));
    }

    #[test]
    fn on_two_reproducible() {
        check((2, 1), "reproducible", &patient().with_reproducible(true), &[37]);
    }

    /// As if each were on a host of its own.
    #[test]
    fn on_two_by_sockets() {
        let config = by(Algorithm::Ring, "Simple").with_p2p_disable(true).with_shm_disable(true);
        check((2, 1), "sockets", &config.with_socket_interfaces("lo"), &[37]);
    }

    #[test]
    fn on_three_by_slots() {
        check((3, 1), "between, Ring", &by(Algorithm::Ring, "Simple"), &[37]);
    }
}
