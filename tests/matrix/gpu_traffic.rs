//! What a rank's page says of calls on GPUs: calls and bytes, and what went to and from each peer, by which way.

use crate::matrix::gpu::must_pass_with;
use crate::matrix::gpu::several::on_gpus;

/// Of ranks whose GPUs reach each other, and of ranks between which the host's memory lies.
#[test]
fn calls_on_gpus_are_counted_by_peer_and_way() {
    let variables = [("NCCL_ALGO", "allreduce:ring"), ("NCCL_PROTO", "Simple")];
    for (machine, route) in [("2-nvswitch", "gpu p2p"), ("4-pcie", "gpu shm")] {
        let expected = [("RSCCL_TEST_ROUTE", route)];
        must_pass_with(machine, "gpu_traffic::ranks::on_two", &[&variables[..], &expected].concat());
    }
    for copy_engines in ["0", "1"] {
        let variables = [("NCCL_P2P_USE_CUDA_MEMCPY", copy_engines), ("NCCL_PROTO", "Simple")];
        must_pass_with("2-nvswitch", "gpu_traffic::ranks::in_windows", &variables);
    }
}

/// The first call on a GPU makes what calls there need: the log, the trace, a program and the pages tell of it.
#[test]
fn the_set_up_of_a_gpu_is_timed_and_its_memory_is_told() {
    let folder = tempfile::tempdir().expect("a folder for the trace");
    let trace = folder.path().join("trace.json").to_string_lossy().into_owned();
    let variables = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT"), ("RSCCL_TRACE", &*trace)];
    let told = must_pass_with("2-nvswitch", "gpu_traffic::ranks::memory_of_two", &variables);
    let text = std::fs::read_to_string(&trace).expect("a trace is written");
    for rank in 0..2 {
        let line = format!("Init timings - GPU set-up: rank {rank} nranks 2 total ");
        assert!(told.contains(&line), "{line}: {told}");
        let slice =
            |line: &&str| line.contains("\"name\":\"GPU set-up\"") && line.contains(&format!("\"rank\":{rank}"));
        assert_eq!(text.lines().filter(slice).count(), 1, "rank {rank}: {text}");
    }
}

/// The part of this process's pages that is of the rank of this communicator.
fn shown(name: &str, rank: u32) -> String {
    use rsccl::internals::session::page_view::ProcessView;
    use rsccl::internals::sys::rank_page::OwnPages;

    let pages = OwnPages::find().expect("this process has ranks");
    let view = ProcessView::read(&|word| pages.word(word), 0).expect("they have pages").as_json(0);
    let parts = view.split("{\"communicator\":");
    let is_it =
        |part: &&str| part.contains(&format!("\"rank\":{rank},")) && part.contains(&format!("\"name\":\"{name}\""));
    parts.into_iter().find(is_it).unwrap_or_else(|| panic!("no rank {rank} of {name}: {view}")).to_owned()
}

/// By which way the test is to find that bytes went.
fn route() -> String {
    #![expect(clippy::disallowed_methods, reason = "what a test is told is no configuration of the library")]
    std::env::var("RSCCL_TEST_ROUTE").unwrap_or_default()
}

/// Whatever becomes of `body` on two ranks on a GPU each, of a communicator of this name; nothing where there are none.
fn on_two_gpus(name: &str, body: impl Fn(rsccl::Communicator, rsccl::comm::DeviceStream) -> rsccl::Result<()> + Sync) {
    let config = rsccl::Config::default().with_timeout(crate::TIMEOUT).with_name(name);
    on_gpus((2, 1), &config, body);
}

mod ranks {
    use rsccl::ReduceOp;

    use super::{on_two_gpus, route, shown};

    #[test]
    fn on_two_by_ring_and_by_messages() {
        on_two_gpus("ring", |comm, stream| {
            let mut values = stream.alloc::<f32>(1000)?;
            for _ in 0..3 {
                comm.on(&stream).all_reduce_in_place(values.slice_mut(..), ReduceOp::Sum)?;
            }
            let (me, peer) = (comm.rank(), 1 - comm.rank());
            let told = shown("ring", me);
            assert!(told.contains("{\"way\":\"a device\",\"calls\":3,\"bytes\":12000}"), "{told}");
            // Each half is sent to be reduced, and once it is.
            let row = format!("{{\"peer\":{peer},\"transport\":\"{}\",\"sent\":6,\"sent_bytes\":12000,", route());
            assert!(told.contains(&row), "{row}: {told}");
            assert!(told.contains("\"received\":6,\"received_bytes\":12000}"), "{told}");
            comm.finalize()
        });
        on_two_gpus("messages", |comm, stream| {
            let (mine, mut theirs) = (stream.alloc::<u8>(300)?, stream.alloc::<u8>(300)?);
            let (me, peer) = (comm.rank(), 1 - comm.rank());
            for _ in 0..2 {
                comm.on(&stream).send_recv(mine.slice(..), peer, theirs.slice_mut(..), peer)?;
            }
            let told = shown("messages", me);
            let row = format!("{{\"peer\":{peer},\"transport\":\"{}\",\"sent\":2,\"sent_bytes\":600,", route());
            assert!(told.contains(&row) && told.contains("\"received\":2,\"received_bytes\":600}"), "{row}: {told}");
            comm.finalize()
        });
    }

    #[test]
    fn memory_of_two_is_told() {
        on_two_gpus("memory", |comm, stream| {
            let before = comm.memory()?;
            assert_eq!((before.gpu, before.gpu_ordinal), (0, None));
            let mut values = stream.alloc::<f32>(1000)?;
            comm.on(&stream).all_reduce_in_place(values.slice_mut(..), ReduceOp::Sum)?;
            let (me, held) = (comm.rank(), comm.memory()?);
            assert!(held.gpu > 0 && held.gpu_ordinal == Some(me), "{held:?}");
            let told = shown("memory", me);
            let shown = format!("\"GPU\":{},\"gpu_ordinal\":{me}}}", held.gpu);
            assert!(told.contains(&shown), "{shown}: {told}");
            comm.finalize()
        });
    }

    /// By kernels or by copies: what a rank has for the other is read, or written, once.
    #[test]
    fn in_windows_of_two() {
        on_two_gpus("windows", |comm, stream| {
            let (mine, mut all) = (stream.alloc::<u32>(640)?, stream.alloc::<u32>(1280)?);
            let windows = [comm.register_window(&mine)?, comm.register_window(&all)?];
            comm.on(&stream).all_gather(mine.slice(..), all.slice_mut(..))?;
            let (me, peer) = (comm.rank(), 1 - comm.rank());
            let told = shown("windows", me);
            let row = format!("{{\"peer\":{peer},\"transport\":\"gpu p2p\",");
            let rest = told.split_once(&row).and_then(|(_, rest)| rest.split_once('}')).expect(&told).0;
            let bytes = |word: &str| rest.contains(&format!("\"{word}_bytes\":2560"));
            assert!(bytes("sent") != bytes("received") && rest.matches("_bytes\":0").count() == 1, "{told}");
            windows.into_iter().try_for_each(|window| comm.deregister_window(window))?;
            comm.finalize()
        });
    }
}
