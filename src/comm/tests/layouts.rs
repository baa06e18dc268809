//! The layouts on which communicators plan.

use std::time::Duration;

use crate::Communicator;
use crate::config::Config;
use crate::error::{Kind, Result};
use crate::plan::Layout;

const TWO_NODES: &str = r#"<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"/>
  <cpu numaid="1" affinity="000000f0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"/>
</system>
"#;

/// The layout of ranks with these configurations, which must be the same on all of them.
fn layout(configs: &[Config]) -> Result<Layout> {
    let id = &Communicator::unique_id(&configs[0])?;
    let world = u32::try_from(configs.len()).unwrap();
    let join = |(rank, config)| {
        let comm = Communicator::init(id, rank, world, config)?;
        let layout = comm.with_engine(|engine| Ok(engine.layout().clone()))?;
        comm.finalize().map(|_| layout)
    };
    let all: Vec<Result<Layout>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..world).zip(configs).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let all: Vec<Layout> = all.into_iter().collect::<Result<_>>()?;
    assert!(all.iter().all(|other| *other == all[0]), "ranks differ: {all:?}");
    Ok(all[0].clone())
}

fn teams(configs: &[Config]) -> Vec<Vec<u32>> {
    layout(configs).unwrap().teams().iter().map(|team| team.iter().map(|rank| rank.get()).collect()).collect()
}

fn base() -> Config {
    let config = Config::default().with_socket_interfaces("lo").with_host_id("one");
    config.with_timeout(Duration::from_secs(20)).with_init_timeout(Duration::from_secs(20))
}

#[test]
fn teams_follow_the_nodes_of_a_topology_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.xml");
    std::fs::write(&file, TWO_NODES).unwrap();
    let with = |each: &dyn Fn(Config) -> Config| {
        let at = |processors: &&str| each(base().with_topo_file(&file).with_processors(*processors));
        ["4", "0", "5-6", "1", "7"].iter().map(at).collect::<Vec<_>>()
    };
    assert_eq!(teams(&with(&|config| config)), [vec![0, 2, 4, 1, 3]], "a small host is one team");
    assert_eq!(teams(&with(&|config| config.with_team_ranks(3))), [vec![0, 2, 4], vec![1, 3]]);
    let ignored = with(&|config| config.with_team_ranks(3).with_ignore_cpu_affinity(true));
    assert_eq!(teams(&ignored), [vec![0, 1], vec![2, 3, 4]], "by number, where nothing is known");
}

#[test]
fn a_rank_whose_topology_file_is_malformed_tells_all() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.xml");
    std::fs::write(&file, "<system version=\"1\">\n<cpu numaid=\"x\"/></system>").unwrap();
    let error = layout(&[base(), base().with_topo_file(&file)]).unwrap_err();
    assert!(matches!(error.kind(), Kind::InvalidArgument | Kind::Remote), "{error}");
    assert!(error.to_string().contains("bad.xml:2:"), "{error}");
}

#[test]
fn ranks_with_other_sizes_of_teams_do_not_meet() {
    let error = layout(&[base(), base().with_team_ranks(3)]).unwrap_err();
    assert_eq!(error.kind(), Kind::Mismatch, "{error}");
}
