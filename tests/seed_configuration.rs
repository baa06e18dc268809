//! NCCL's own example of a configuration file: every collective runs under it, and the log says once what runs in place
//! of protocols that rsccl does not have.
//!
//! This is a test program of its own, because the log is installed once in a process.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use rsccl::config::{DebugLevel, Environment};
use rsccl::error::Kind;
use rsccl::{Config, ReduceOp};

/// As it stands there, with its comments.
const FILE: &str = "# ~/.nccl.conf 示例配置
NCCL_ALGO=Ring
NCCL_PROTO=LL128
NCCL_NET_GDR=1  # 启用 GPU Direct RDMA
NCCL_IB_DISABLE=0
";

#[test]
fn the_example_of_a_configuration_file_made_every_collective_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (path, log) = (folder.path().join("nccl.conf"), folder.path().join("log"));
    std::fs::write(&path, FILE).unwrap();
    let environment = Environment::of([("NCCL_CONF_FILE", path.to_str().unwrap())]);
    let quiet = Config::default().with_debug(DebugLevel::Warn).with_debug_file(log.to_str().unwrap());
    let config = quiet.resolve_in(&environment).unwrap();
    assert_eq!((config.algo.as_deref(), config.proto.as_deref()), (Some("Ring"), Some("LL128")));
    for elements in [1, 100_000] {
        rsccl::local::run_with(3, &config, |comm| {
            let (mut sum, mut all) = (vec![0u32; elements], vec![0u32; 3 * elements]);
            comm.all_reduce(&vec![comm.rank(); elements], &mut sum, ReduceOp::Sum)?;
            comm.all_gather(&sum, &mut all)?;
            comm.broadcast(&mut all, 1)?;
            assert!(all.iter().all(|value| *value == 3));
            comm.barrier()
        })
        .unwrap();
    }
    let text = std::fs::read_to_string(&log).unwrap();
    let said: Vec<&str> = text.lines().filter(|line| line.contains("NCCL_PROTO=LL128: ")).collect();
    assert_eq!(said.len(), 1, "{text}");
    assert!(said[0].contains("WARN") && said[0].contains("LL and Simple run in their place"), "{text}");
    assert!(!text.contains("NCCL_ALGO=Ring: "), "there are rings: {text}");

    let strict = config.with_strict_filters(true);
    let refused = rsccl::local::run_with(2, &strict, |comm| {
        let mut sum = [comm.rank()];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)
    });
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArgument);
    assert!(error.message().contains("NCCL_PROTO") && error.message().contains("Simple serves the rest"), "{error}");
}
