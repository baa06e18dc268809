//! The matrix on machines of several NUMA nodes, whose hosts hang on two switches: ranks stand where a topology file and
//! their processors say, and hosts where a file of switches does.

use rsccl::types::Algorithm;
use rsccl::{Communicator, Config, Result};

use crate::{SLOT_KINDS, TIMEOUT, each_with, every_program, every_program_by, judge, run_rank, seed};
use testing::case::Placed;

/// Two nodes of eight processors each.
const TWO_NODES: &str = r#"<system version="1">
  <cpu numaid="0" affinity="000000ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"/>
  <cpu numaid="1" affinity="0000ff00" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"/>
</system>
"#;

/// Hosts 0 and 2 follow each other.
const TWO_SWITCHES: &str = "SwitchName=left Nodes=host[0,2]\nright: host1\n";

/// The configuration of each rank, of which `places` has host and processors.
fn standing([file, switches]: [&std::path::Path; 2], team_ranks: u32, places: &[(u32, &str)]) -> Vec<Config> {
    let all = Config::default().with_socket_interfaces("lo").with_timeout(TIMEOUT);
    let all = all.with_topo_file(file).with_switch_file(switches).with_team_ranks(team_ranks).with_p2p_disable(true);
    let of =
        |(host, processors): &(u32, &str)| all.clone().with_host_id(format!("host{host}")).with_processors(*processors);
    places.iter().map(of).collect()
}

/// Every program as it is chosen, and each that has a hierarchy by the algorithms of hierarchies.
fn run_on(team_ranks: u32, places: &[(u32, &str)]) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("two-nodes.xml");
    std::fs::write(&file, TWO_NODES).expect("a file");
    let switches = folder.path().join("switches");
    std::fs::write(&switches, TWO_SWITCHES).expect("a file");
    let ranks = u32::try_from(places.len()).expect("a few");
    let configs = standing([&file, &switches], team_ranks, places);
    let run = |name: &str, configs: &[Config], cases: &[testing::case::Case]| {
        let seed = seed();
        let name = format!("{places:?}, {name}, seed {seed}");
        let body = |comm: Communicator| -> Result<Vec<String>> { run_rank(comm, &Placed::Slices, cases, seed) };
        judge(&name, each_with(configs, body).expect("ranks start and end").concat());
    };
    run("as chosen", &configs, &every_program(ranks, &[1, 40_009], &SLOT_KINDS[..2]));
    for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::Direct] {
        let (forced, cases) = every_program_by(algorithm, ranks, &[0, 5, 1_003, 40_009]);
        let forced: Vec<Config> =
            configs.iter().map(|config| config.clone().with_algo(&*forced).with_proto("Simple")).collect();
        run(algorithm.name(), &forced, &cases);
    }
}

/// Three ranks on one node and five on the other, not in the order of their numbers.
#[test]
fn teams_of_uneven_nodes() {
    run_on(5, &[(0, "8"), (0, "0"), (0, "9-10"), (0, "12"), (0, "1"), (0, "11"), (0, "2,7"), (0, "15")]);
}

/// Three hosts: the first has two nodes with one and two ranks, the second has one node, and the third has one bound
/// and one unbound rank.
#[test]
fn several_hosts_of_several_nodes() {
    run_on(2, &[(0, "0"), (1, "3"), (2, "0-15"), (0, "8"), (1, "4"), (2, "1"), (0, "9")]);
}
