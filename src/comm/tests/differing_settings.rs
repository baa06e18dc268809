//! Ranks whose settings differ, by a table of all variables: what must hold where one rank has another value.
//!
//! Either the variable is one of those that are equal on all ranks: then init fails on every rank, in one sentence with
//! a rank, the variable and both values. Or each rank may have its own: then the ranks choose the same plans, both ends
//! of each pair take the same way, and every result is right. By which way devices reach each other where the settings
//! of their ranks differ is tested in `reach::device_ways`.

use std::time::Duration;

use crate::comm::{CallCount, Chosen, Communicator};
use crate::config::{Config, VARIABLES};
use crate::error::{Kind, Result};
use crate::plan::Layout;
use crate::types::{Collective, DataType, ReduceOp, TransportKind};

/// What holds where one rank has another value of a variable.
#[derive(Clone, Copy)]
enum Rule {
    /// Init fails on every rank, with both values.
    Equal,
    /// Ranks do not meet: each is told of two that differ.
    Met,
    /// Init fails on every rank, with the names of the files.
    EqualFile,
    /// Each rank has its own.
    Own,
}
use Rule::{Equal, EqualFile, Met, Own};

/// Of each variable the value that one rank has, the others being without.
const TABLE: &[(&str, &str, Rule)] = &[
    ("NCCL_COMM_BLOCKING", "0", Own),
    ("NCCL_COMM_NAME", "odd", Own),
    ("RSCCL_TIMEOUT_MS", "30000", Own),
    ("RSCCL_INIT_TIMEOUT_MS", "30000", Own),
    ("RSCCL_REPRODUCIBLE", "1", Equal),
    ("RSCCL_SPIN_US", "0", Own),
    ("NCCL_ALGO", "Ring;all_gather:^Direct;broadcast:Tree", Equal),
    ("NCCL_PROTO", "LL128", Equal),
    // It changes nothing where no filter leaves a collective nothing: see `filters_that_are_strict_on_one_rank`.
    ("RSCCL_STRICT_FILTERS", "1", Own),
    ("RSCCL_COHORT", "split", Equal),
    ("NCCL_MIN_NCHANNELS", "2", Equal),
    ("NCCL_MAX_NCHANNELS", "1", Equal),
    // As collectives have it without the variable; messages over sockets have more.
    ("NCCL_BUFFSIZE", "1048576", Equal),
    ("RSCCL_SCRATCH_BYTES", "1048576", Equal),
    ("NCCL_P2P_DISABLE", "1", Equal),
    ("NCCL_P2P_DIRECT_DISABLE", "1", Own),
    ("NCCL_P2P_USE_CUDA_MEMCPY", "1", Equal),
    ("NCCL_P2P_READ_ENABLE", "1", Own),
    ("NCCL_MNNVL_ENABLE", "0", Own),
    ("NCCL_P2P_LL_THRESHOLD", "0", Equal),
    ("NCCL_SHM_DISABLE", "1", Equal),
    ("RSCCL_CMA_DISABLE", "1", Equal),
    ("RSCCL_CMA_FORCE", "1", Equal),
    ("NCCL_CUMEM_ENABLE", "0", Own),
    ("NCCL_P2P_LEVEL", "PXB", Equal),
    ("NCCL_NET_GDR_LEVEL", "SYS", Own),
    ("NCCL_NET_GDR_READ", "0", Own),
    ("NCCL_DMABUF_ENABLE", "0", Own),
    ("NCCL_CROSS_NIC", "0", Equal),
    ("NCCL_TOPO_FILE", "/none/of.xml", Own),
    ("NCCL_IGNORE_CPU_AFFINITY", "1", Own),
    ("RSCCL_SWITCH_FILE", "{switches}", Own),
    ("RSCCL_PROCESSORS", "1", Own),
    ("RSCCL_TUNE_FILE", "{tune}", EqualFile),
    ("RSCCL_RECORD_DIR", "/none/records", Own),
    // Without a folder nothing is done about the signal.
    ("RSCCL_RECORD_SIGTERM", "1", Own),
    ("NCCL_RAS_ADDR", "none", Own),
    // Without an address nobody listens anyway.
    ("NCCL_RAS_ENABLE", "0", Own),
    ("RSCCL_TRACE", "/none/trace", Own),
    // Without a file nothing is recorded.
    ("RSCCL_TRACE_STEPS", "1", Own),
    ("NCCL_NVTX_DISABLE", "1", Own),
    ("RSCCL_TEAM_RANKS", "2", Equal),
    ("NCCL_TOPO_DUMP_FILE", "/none/topo", Own),
    ("NCCL_GRAPH_FILE", "/none/of.xml", Own),
    ("NCCL_GRAPH_DUMP_FILE", "/none/graph", Own),
    ("NCCL_NET_PLUGIN", "/none/of.so", Equal),
    ("RSCCL_NET_STRICT", "1", Own),
    ("NCCL_NET", "test-nic", Equal),
    ("NCCL_IB_DISABLE", "1", Own),
    ("NCCL_IB_HCA", "mlx5", Own),
    ("NCCL_IB_GID_INDEX", "3", Own),
    ("NCCL_IB_ADDR_FAMILY", "AF_INET6", Own),
    ("NCCL_IB_ROCE_VERSION_NUM", "1", Own),
    ("NCCL_IB_TIMEOUT", "18", Own),
    ("NCCL_IB_RETRY_CNT", "6", Own),
    ("NCCL_IB_SL", "3", Own),
    ("NCCL_IB_TC", "106", Own),
    ("NCCL_IB_PKEY", "1", Own),
    ("NCCL_IB_QPS_PER_CONNECTION", "2", Own),
    ("NCCL_RUNTIME_CONNECT", "0", Equal),
    ("NCCL_HOSTID", "odd", Own),
    // The id says where to meet.
    ("NCCL_COMM_ID", "127.0.0.1:1", Own),
    ("RSCCL_SECRET", "0123456789abcdef", Own),
    ("RSCCL_SECRET_FILE", "{secret}", Own),
    ("RSCCL_ENCRYPT", ENCRYPT, if cfg!(feature = "encrypt") { Met } else { Own }),
    ("RSCCL_STORE", "tcp://127.0.0.1:1", Own),
    ("NCCL_SOCKET_IFNAME", "=lo", Own),
    ("RSCCL_RAILS", "lo=3", Own),
    ("RSCCL_NIC_TIMEOUT", "60", Own),
    ("RSCCL_TCP_CONGESTION", "reno", Own),
    ("NCCL_SOCKET_FAMILY", "AF_INET6", Own),
    ("RSCCL_SOCKET_DIR", "/tmp", Own),
    ("RSCCL_PORT_RANGE", "20000-29999", Own),
    ("NCCL_SOCKET_NTHREADS", "2", Equal),
    ("NCCL_NSOCKS_PERTHREAD", "3", Equal),
    ("NCCL_SOCKET_RETRY_CNT", "3", Own),
    ("NCCL_SOCKET_RETRY_SLEEP_MSEC", "3", Own),
    ("NCCL_SOCKET_RCVBUF", "131072", Equal),
    ("NCCL_SOCKET_SNDBUF", "131072", Equal),
    ("NCCL_DEBUG", "NONE", Own),
    ("NCCL_DEBUG_SUBSYS", "NET", Own),
    ("NCCL_DEBUG_FILE", "/none/log", Own),
    ("NCCL_DEBUG_TIMESTAMP_FORMAT", "%T", Own),
    ("NCCL_DEBUG_TIMESTAMP_LEVELS", "ALL", Own),
];

/// Without the feature any other value is an error of that rank alone.
const ENCRYPT: &str = if cfg!(feature = "encrypt") { "1" } else { "0" };

/// The files that the table names.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in
            [("switches", "left: odd\n"), ("secret", "0123456789abcdef"), ("tune", "rsccl-tune 1\nflag_us = 5\n")]
        {
            std::fs::write(folder.path().join(name), text).unwrap();
            std::fs::set_permissions(folder.path().join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        Files(folder)
    }

    fn value(&self, text: &str) -> String {
        match text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some(name) => self.0.path().join(name).display().to_string(),
            None => text.to_owned(),
        }
    }
}

/// How ranks are connected where their settings are alike: as threads, by shared memory, and on hosts of their own.
fn standings() -> [(&'static str, Vec<Config>); 3] {
    let base = Config::default().with_socket_interfaces("lo").with_init_timeout(Duration::from_secs(20));
    let base = base.with_timeout(Duration::from_secs(20));
    let alike = |config: Config| vec![config; 3];
    let hosts = ["a", "b", "a"].map(|host| base.clone().with_host_id(host));
    [
        ("threads", alike(base.clone())),
        ("shared memory", alike(base.clone().with_p2p_disable(true))),
        ("two hosts", hosts.to_vec()),
    ]
}

/// What each rank knows of the communicator that must be the same on all.
#[derive(Debug, PartialEq)]
struct Known {
    layout: Layout,
    near: TransportKind,
    plans: Vec<Option<Chosen>>,
}

/// What each rank gets that joins with its configuration and calls of each kind.
fn outcomes(configs: &[Config]) -> Vec<Result<Known>> {
    let id = &Communicator::unique_id(&configs[0]).unwrap();
    let join = |(rank, config): (u32, &Config)| {
        let comm = Communicator::init(id, rank, 3, config)?;
        comm.await_start()?;
        let known = known(&comm)?;
        call(&comm)?;
        comm.finalize().map(|_| known)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).zip(configs).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn known(comm: &Communicator) -> Result<Known> {
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter};
    let mut plans = Vec::new();
    for collective in [AllReduce, Broadcast, AllGather, ReduceScatter, AllToAll] {
        for count in [1, 3000, 1 << 20] {
            plans.push(comm.chosen(collective, DataType::F32, &CallCount::Each(count))?);
        }
    }
    comm.with_engine(|engine| Ok(Known { layout: engine.layout().clone(), near: engine.fabric().near(), plans }))
}

/// A collective by flat slots, one by a plan, a ring of messages, and a child.
fn call(comm: &Communicator) -> Result<()> {
    for count in [2, 40_000] {
        let mut sum = vec![comm.rank() + 1; count];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        assert!(sum.iter().all(|value| *value == 6));
        let (mine, mut got) = (vec![comm.rank(); count], vec![0; count]);
        crate::group(|group| {
            group.on(comm).send(&mine, (comm.rank() + 1) % 3)?;
            group.on(comm).recv(&mut got, (comm.rank() + 2) % 3)
        })?;
        assert!(got.iter().all(|value| *value == (comm.rank() + 2) % 3));
    }
    let half = comm.by_color(comm.rank() / 2, 0)?;
    half.await_start()?;
    half.barrier()
}

fn set(config: &Config, name: &str, value: &str) -> Config {
    config.clone().with_variable(name, value).unwrap_or_else(|error| panic!("{name}={value}: {error}"))
}

/// Checks that each of three ranks, of which `odd` is another than the rest, names one that differs from it, and says
/// `sentence` of this rank and that one.
fn all_say(case: &str, ends: Vec<Result<Known>>, odd: u32, sentence: impl Fn(bool, u32) -> Vec<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (rank, end) in (0..3u32).zip(ends) {
        let Err(error) = end else {
            wrong.push(format!("{case}: rank {rank} has joined"));
            continue;
        };
        let other = if rank == odd { u32::from(odd == 0) } else { odd };
        let parts = sentence(rank == odd, other);
        let is_told = parts.iter().all(|part| error.message().contains(part));
        if error.kind() != Kind::Mismatch || error.peer() != Some(other) || !is_told {
            wrong.push(format!("{case}: rank {rank} says {:?} {error}, and not {parts:?}", error.kind()));
        }
    }
    wrong
}

/// What is wrong with a rank's end where rank `odd` has another value, which the root has seen.
fn has_not_met(
    case: &str,
    end: Result<Known>,
    (name, odd): (&str, u32),
    (usually, oddly): (&str, &str),
) -> Option<String> {
    // The first that comes is named first.
    let told: Vec<String> = (0..3u32)
        .filter(|rank| *rank != odd)
        .flat_map(|other| [(odd, oddly, other, usually), (other, usually, odd, oddly)])
        .map(|(a, of_a, b, of_b)| format!("{name} is {of_a} on rank {a} and {of_b} on rank {b}"))
        .collect();
    match end {
        Ok(_) => Some(format!("{case}: a rank has joined")),
        Err(error) if error.kind() == Kind::Mismatch && told.iter().any(|told| error.message().contains(told)) => None,
        Err(error) => Some(format!("{case}: {:?} {error}", error.kind())),
    }
}

/// What is wrong where rank `odd` has this value and the others none.
fn judge((name, value, rule): (&str, &str, Rule), odd: u32, (standing, usual): &(&str, Vec<Config>)) -> Vec<String> {
    let (mut configs, case) = (usual.clone(), format!("{name}={value} on rank {odd} of {standing}"));
    let shown = |config: &Config| {
        let known = VARIABLES.iter().find(|variable| variable.full_name() == name).unwrap();
        match known.shown(config) {
            text if text.is_empty() => "not set".to_owned(),
            text => text,
        }
    };
    let usually = shown(&configs[odd as usize]);
    configs[odd as usize] = set(&configs[odd as usize], name, value);
    let oddly = shown(&configs[odd as usize]);
    let ends = outcomes(&configs);
    match rule {
        Equal => all_say(&case, ends, odd, |is_odd, other| {
            let (mine, theirs) = if is_odd { (&oddly, &usually) } else { (&usually, &oddly) };
            vec![format!("{name} is {mine} on this rank and {theirs} on rank {other}")]
        }),
        EqualFile => all_say(&case, ends, odd, |_, _| {
            vec![name.to_owned(), value.to_owned(), "has no tuning file".to_owned(), format!("rank {odd} ")]
        }),
        Met => ends.into_iter().filter_map(|end| has_not_met(&case, end, (name, odd), (&usually, &oddly))).collect(),
        Own => {
            let found: Vec<Known> = match ends.into_iter().collect::<Result<_>>() {
                Ok(found) => found,
                Err(error) => return vec![format!("{case}: {error}")],
            };
            let differs = |one: &&Known| **one != found[0];
            found.iter().find(differs).map(|one| format!("{case}: {one:?} and {:?}", found[0])).into_iter().collect()
        }
    }
}

#[test]
fn one_rank_with_another_value_of_any_variable() {
    let known: Vec<String> = VARIABLES.iter().map(crate::config::Variable::full_name).collect();
    assert!(known.iter().eq(TABLE.iter().map(|(name, ..)| name)), "the table has each variable, in their order");
    let (files, standings, mut wrong) = (Files::new(), standings(), Vec::new());
    for (number, (name, value, rule)) in (0..).zip(TABLE) {
        // Which rank it is and how the ranks are connected takes turns: three times the cases take three seconds.
        let standing = &standings[number as usize % standings.len()];
        wrong.extend(judge((*name, &*files.value(value), *rule), number / 3 % 3, standing));
    }
    // A rank that maps memory early, where the others do not.
    wrong.extend(judge(("NCCL_RUNTIME_CONNECT", "0", Equal), 0, &standings[0]));
    for standing in &standings {
        for name in ["NCCL_HOSTID", "NCCL_SOCKET_FAMILY", "RSCCL_PROCESSORS"] {
            let line = TABLE.iter().find(|(known, ..)| *known == name).unwrap();
            wrong.extend(judge(*line, 1, standing));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Regression: the error named NCCL_ALGO, which is the same on both ranks.
#[test]
fn filters_that_are_strict_on_one_rank() {
    let (name, usual) = standings().into_iter().next().unwrap();
    let usual: Vec<Config> = usual.iter().map(|config| set(config, "NCCL_ALGO", "Tree")).collect();
    let wrong = judge(("RSCCL_STRICT_FILTERS", "1", Equal), 1, &(name, usual));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
